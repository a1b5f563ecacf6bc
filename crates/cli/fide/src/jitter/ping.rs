// SPDX-License-Identifier: Apache-2.0
//! `fide jitter ping`.

use std::{
    io::BufWriter,
    path::PathBuf,
    process::ExitCode,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::Context;
use fide_host_tuning::{
    bound::{self, Bound, DEFAULT_FILE, Here, Sample},
    roots::Roots,
};
use fide_jitter_analysis::{
    families::{FamilyOptions, find_families},
    stats::{Measure, RunStats, StatsOptions, series},
};
use fide_latency_probe::session::{Measurement, Options};

use super::{
    path::{self, Out, Path},
    say,
};
use crate::exit::{Done, Failure, UNHEALTHY};
use crate::say::{say, show};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    path: Path,
    /// Sending interval
    #[arg(long, default_value_t = 1000.0)]
    period_us: f64,
    /// Number of packets
    #[arg(long, default_value_t = 10_000)]
    packets: u64,
    /// Where to write the log
    #[arg(long, value_name = "FILE", default_value = "jitter.fjl")]
    out: PathBuf,
    /// Write down what was measured as the bound of this interface, for the agent's timeout and `fide doctor`
    #[arg(long)]
    bound: bool,
    /// File that holds the bounds
    #[arg(long, value_name = "FILE", default_value = DEFAULT_FILE)]
    bound_file: PathBuf,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Done {
    let options = arguments.path.options(arguments.period_us, arguments.packets)?;
    // Opened before the measurement: an hour later is too late to learn that the log cannot be written.
    let out = Out::open(&arguments.out).map_err(|error| Failure::file(&arguments.out, &error))?;
    let measured = path::measure(&options, &path::stop_on_interrupt()?)?;
    let file = out.emptied().map_err(|error| Failure::new(UNHEALTHY, error))?;
    measured.write(BufWriter::new(file)).map_err(|error| Failure::new(UNHEALTHY, error))?;
    let stats = RunStats::of(&measured.info, &measured.samples, &StatsOptions::default());
    if arguments.bound {
        write_bound(arguments, &options, &measured).map_err(|error| Failure::new(UNHEALTHY, error))?;
    }
    let found = find_families(&measured.info, &measured.samples, &FamilyOptions::default());
    if arguments.json {
        show!("{:#}", say::summary_json(&measured, &stats, &found))?;
    } else {
        say::summary(&measured, &stats)?;
        for family in &found.families {
            show!("{}", family.text)?;
        }
        show!("written to {}", arguments.out.display())?;
    }
    if stats.answered == 0 {
        return Err(path::nobody_answered(&options));
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the bound of this interface: the worse of the two directions. Between two clocks, the variation of
/// a direction is known but not its minimum; half of the minimum round trip stands in for it.
fn write_bound(arguments: &Arguments, options: &Options, measured: &Measurement) -> anyhow::Result<()> {
    let core = options.wanted.core.context("a bound belongs to a core: measure pinned to the agent's core")?;
    let extremes = |measure| {
        let values = series(&measured.info, &measured.samples, measure).values;
        Some((*values.iter().min()?, *values.iter().max()?, values.len()))
    };
    let (there, back) = (extremes(Measure::AToB), extremes(Measure::BToA));
    let (Some(there), Some(back), Some(network)) = (there, back, extremes(Measure::Network)) else {
        anyhow::bail!("no answer came, so there is no bound to write down");
    };
    let jitter_ns = (there.1 - there.0).max(back.1 - back.0).max(0).unsigned_abs();
    let least_ns = (network.0 / 2).max(0).unsigned_abs();
    let roots = Roots::default();
    let here = Here {
        kernel: roots.kernel()?,
        boot_id: roots.boot_id()?,
        core,
        interface: Some(options.interface.name.clone()),
    };
    let sample = Sample { min_ns: least_ns, max_ns: least_ns + jitter_ns, count: there.2.min(back.2) as u64 };
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    bound::write(&arguments.bound_file, &Bound::of_sample(&here, options.method.name(), sample, now_s))?;
    say!("bound of {} written to {}", options.interface.name, arguments.bound_file.display());
    Ok(())
}
