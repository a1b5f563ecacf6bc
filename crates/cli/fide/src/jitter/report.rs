// SPDX-License-Identifier: Apache-2.0
//! `fide jitter report`: logs in; one page out, or the same in JSON, or both.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::anyhow;
use fide_jitter_analysis::{
    families::RunView,
    stats::{StatsOptions, TailOptions},
};
use fide_report::run::{Report, render, to_json};

use fide_cli::logs;

use super::analyse;
use crate::exit::{Done, Failure, USAGE};
use crate::replace::replace;
use crate::say::{say, show};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Logs of `fide jitter ping`; several are shown side by side, and explained together if all are of the
    /// same two hosts
    #[arg(required = true)]
    logs: Vec<PathBuf>,
    /// Where to write the page; by default jitter.html, and with --json nowhere
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print the same as JSON; docs/develop/jitter-json.md lists the fields
    #[arg(long)]
    json: bool,
    /// Number of future packets that the bounds are for
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    next: u64,
    /// Probability with which one of them may exceed the bound
    #[arg(long, value_name = "P", default_value_t = 0.01)]
    risk: f64,
}

pub(crate) fn run(arguments: &Arguments) -> Done {
    if !(arguments.risk > 0.0 && arguments.risk < 1.0) || arguments.next == 0 {
        return Err(Failure::new(USAGE, anyhow!("--risk is between 0 and 1, --next at least 1")));
    }
    let tail = TailOptions { packets: arguments.next, risk: arguments.risk, ..TailOptions::default() };
    let options = StatsOptions { tail, ..StatsOptions::default() };
    let (mut runs, mut views, mut packets) = (Vec::new(), Vec::new(), 0);
    for path in &arguments.logs {
        say!("reading {}", path.display());
        let log = logs::open(path)?;
        packets += log.samples.len();
        if arguments.logs.len() > 1 && packets <= analyse::SWEEP_PACKETS_MAX {
            views.push(RunView::of(&log.info, &log.samples));
        }
        let name = path.file_stem().map_or_else(|| "run".to_owned(), |name| name.to_string_lossy().into_owned());
        runs.push(analyse::run_of(name, log.info, &log.samples, (&log.events, &log.names), &options));
    }
    let hosts = |run: &fide_report::run::Run| (run.info.host_a.clone(), run.info.host_b.clone());
    let same = runs.windows(2).all(|two| hosts(&two[0]) == hosts(&two[1]));
    let across = if runs.len() < 2 {
        None
    } else if !same {
        say!("no search for a common cause: the runs are not all between the same two hosts");
        None
    } else if views.len() < runs.len() {
        say!("no search for a common cause: {packets} packets, at most {}", analyse::SWEEP_PACKETS_MAX);
        None
    } else {
        say!("looking for what explains all {} runs", runs.len());
        Some(analyse::across(&views))
    };
    let report = Report { runs: &runs, disturbances: across.as_deref() };
    let page = arguments.html.as_deref().or((!arguments.json).then_some(Path::new("jitter.html")));
    if let Some(page) = page {
        write_page(page, report)?;
    }
    if arguments.json {
        show!("{:#}", to_json(report))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the page.
pub(super) fn write_page(to: &Path, report: Report<'_>) -> Result<(), Failure> {
    replace(to, render(report).as_bytes()).map_err(|error| Failure::file(to, &error))?;
    say!("written to {}", to.display());
    Ok(())
}
