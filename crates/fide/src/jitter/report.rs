// SPDX-License-Identifier: Apache-2.0
//! `fide jitter report`: logs in, one page and the same in JSON out.

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::anyhow;
use fide_jitter::stats::{RunStats, StatsOptions, TailOptions};
use fide_jitter_report::{Run, render, to_json};

use super::export;
use crate::exit::{Done, Failure, USAGE};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Logs of `fide jitter ping`; several are shown side by side
    #[arg(required = true)]
    logs: Vec<PathBuf>,
    /// Where to write the page
    #[arg(long, value_name = "FILE", default_value = "jitter.html")]
    html: PathBuf,
    /// Print the same as JSON
    #[arg(long)]
    json: bool,
    /// For how many packets to come bounds are given
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    next: u64,
    /// Probability with which one of them may be beyond the bound
    #[arg(long, value_name = "P", default_value_t = 0.01)]
    risk: f64,
}

pub(crate) fn run(arguments: &Arguments) -> Done {
    if !(arguments.risk > 0.0 && arguments.risk < 1.0) || arguments.next == 0 {
        return Err(Failure::new(USAGE, anyhow!("--risk is between 0 and 1, --next at least 1")));
    }
    let tail = TailOptions { packets: arguments.next, risk: arguments.risk, ..TailOptions::default() };
    let options = StatsOptions { tail, ..StatsOptions::default() };
    let mut runs = Vec::new();
    for path in &arguments.logs {
        eprintln!("reading {}", path.display());
        let log = export::open(path)?;
        let stats = RunStats::of(&log.info, &log.samples, &options);
        let name = path.file_stem().map_or_else(|| "run".to_owned(), |name| name.to_string_lossy().into_owned());
        runs.push(Run::new(name, log.info, stats));
    }
    fs::write(&arguments.html, render(&runs))
        .map_err(|error| Failure::new(USAGE, anyhow!("{}: {error}", arguments.html.display())))?;
    eprintln!("written to {}", arguments.html.display());
    if arguments.json {
        println!("{:#}", to_json(&runs));
    }
    Ok(ExitCode::SUCCESS)
}
