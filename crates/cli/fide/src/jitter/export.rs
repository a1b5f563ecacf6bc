// SPDX-License-Identifier: Apache-2.0
//! `fide jitter export`.

use std::{
    fs::File,
    io::{BufReader, BufWriter, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use fide_jitter_analysis::{Ending, Log, log, read_log};

use crate::exit::{Done, Failure, UNHEALTHY, USAGE};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A log of `fide jitter ping`
    log: PathBuf,
    /// What ran on the cores meanwhile, instead of the packets
    #[arg(long)]
    events: bool,
    /// Where to write; by default standard output
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Done {
    let log = open(&arguments.log)?;
    let failed = |error: std::io::Error| Failure::new(UNHEALTHY, error);
    let to: Box<dyn Write> = match &arguments.out {
        Some(path) => Box::new(
            File::create(path).map_err(|error| Failure::new(USAGE, anyhow::anyhow!("{}: {error}", path.display())))?,
        ),
        None => Box::new(std::io::stdout().lock()),
    };
    let mut to = BufWriter::new(to);
    let written = if arguments.events {
        log::write_events_csv(&mut to, &log.events, &log.names)
    } else {
        log::write_samples_csv(&mut to, &log.info, &log.samples)
    };
    match written.and_then(|()| to.flush()) {
        // Whoever reads has read enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        written => written.map(|()| ExitCode::SUCCESS).map_err(failed),
    }
}

/// Reads a log. What is missing of it is said on standard error, and among the conditions for whoever reads the report.
pub(super) fn open(path: &Path) -> Result<Log, Failure> {
    let named = |error: &dyn std::fmt::Display| Failure::new(USAGE, anyhow::anyhow!("{}: {error}", path.display()));
    let file = File::open(path).map_err(|error| named(&error))?;
    let mut log = read_log(BufReader::new(file)).map_err(|error| named(&error))?;
    if let Ending::CutOff { .. } = log.ending {
        eprintln!("fide: {}: {}", path.display(), log.ending);
        let conditions = &mut log.info.isolation;
        conditions.insert("log".to_owned(), log.ending.to_string());
        // Nobody to blame is another thing.
        if let Some(culprits) = conditions.get_mut("culprits").filter(|_| log.events.is_empty()) {
            *culprits = format!("{culprits}, but the log was cut off before them");
        }
    }
    Ok(log)
}
