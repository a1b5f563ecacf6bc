// SPDX-License-Identifier: Apache-2.0
//! `fide jitter sweep`: the same measurement at several sending intervals. One disturbance shows as a
//! different pattern at each of them (jitter report §3); together, the patterns identify the disturbance.

use std::{fs, io::BufWriter, path::PathBuf, process::ExitCode, sync::atomic::Ordering};

use anyhow::anyhow;
use fide_jitter_analysis::{families::RunView, stats::StatsOptions};
use fide_report::run::{Disturbance, Report, Run, to_json};

use super::{
    analyse,
    path::{self, Out, Path},
    report::write_page,
};
use fide_cli::units::interval;

use crate::exit::{Done, Failure, UNHEALTHY, USAGE};
use crate::say::{say, show};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    path: Path,
    /// Sending intervals, one after the other
    #[arg(long, value_name = "US", value_delimiter = ',', default_values_t = [999.0, 1000.0, 1001.0, 200.0, 50.0])]
    period_us: Vec<f64>,
    /// How long to measure at each of them
    #[arg(long, default_value_t = 20.0)]
    seconds: f64,
    /// Directory for the logs and the page
    #[arg(long, value_name = "DIR", default_value = "jitter-sweep")]
    out: PathBuf,
    /// Print what was found as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Done {
    if !(arguments.seconds > 0.0 && arguments.seconds <= 1e6) {
        return Err(Failure::new(USAGE, anyhow!("--seconds {}: a time above 0 is needed", arguments.seconds)));
    }
    // All of them are checked before the first is measured.
    let packets = |period_us: f64| (arguments.seconds * 1e6 / period_us).ceil().max(1.0) as u64;
    let plans = arguments
        .period_us
        .iter()
        .map(|&period_us| arguments.path.options(period_us, packets(period_us)))
        .collect::<Result<Vec<_>, _>>()?;
    let all: u64 = plans.iter().map(|options| options.plan.packets).sum();
    if all > analyse::SWEEP_PACKETS_MAX as u64 {
        let most = analyse::SWEEP_PACKETS_MAX;
        return Err(Failure::new(USAGE, anyhow!("{all} packets in all, at most {most}: measure for a shorter time")));
    }
    fs::create_dir_all(&arguments.out).map_err(|error| Failure::file(&arguments.out, &error))?;
    let progress = path::stop_on_interrupt()?;
    let (mut runs, mut views, mut answered) = (Vec::<Run>::new(), Vec::new(), 0);
    for (n, options) in plans.iter().enumerate() {
        if progress.stop.load(Ordering::Relaxed) {
            say!("interrupted: what was measured so far is analysed");
            break;
        }
        say!("{} of {}: a packet every {}", n + 1, plans.len(), interval(options.plan.period_ns));
        let name = format!("{}-{}us", n + 1, options.plan.period_ns as f64 / 1e3);
        let log = arguments.out.join(format!("{name}.fjl"));
        let out = Out::open(&log).map_err(|error| Failure::file(&log, &error))?;
        let measured = path::measure(options, &progress)?;
        let file = out.emptied().map_err(|error| Failure::new(UNHEALTHY, error))?;
        measured.write(BufWriter::new(file)).map_err(|error| Failure::new(UNHEALTHY, error))?;
        if let Some(why) = &measured.ended {
            say!("ended early: {why}");
        }
        views.push(RunView::of(&measured.info, &measured.samples));
        let ran = (measured.events.as_slice(), measured.names.as_slice());
        let run = analyse::run_of(name, measured.info.clone(), &measured.samples, ran, &StatsOptions::default());
        answered += run.stats.answered;
        runs.push(run);
    }
    let across = analyse::across(&views);
    let report = Report { runs: &runs, disturbances: Some(&across) };
    write_page(&arguments.out.join("report.html"), report)?;
    if arguments.json {
        show!("{:#}", to_json(report))?;
    } else {
        tell(&runs, &across)?;
    }
    match plans.first() {
        Some(options) if answered == 0 => Err(path::nobody_answered(options)),
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn tell(runs: &[Run], across: &[Disturbance]) -> Result<(), Failure> {
    for run in runs {
        show!("a packet every {}: {} sent, {} lost", interval(run.info.period_ns), run.stats.packets, run.stats.lost)?;
        for family in run.families.iter().flatten() {
            show!("  {}", family.sentence)?;
        }
    }
    if across.is_empty() {
        show!("no disturbance explains what the runs show")?;
    }
    for one in across {
        show!("together: {}", one.sentence)?;
        if !one.alternatives_ns.is_empty() {
            let others: Vec<String> = one.alternatives_ns.iter().map(|ns| format!("{:.4} ms", ns / 1e6)).collect();
            show!("  a period of {} would fit as well", others.join(", "))?;
        }
    }
    Ok(())
}
