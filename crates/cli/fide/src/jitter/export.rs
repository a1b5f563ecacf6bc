// SPDX-License-Identifier: Apache-2.0
//! `fide jitter export`.

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::anyhow;
use fide_cli::logs::open;
use fide_jitter_analysis::log;

use crate::exit::{Done, Failure, UNHEALTHY};
use crate::say::shown;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A log of `fide jitter ping`
    log: PathBuf,
    /// Write what ran on the cores meanwhile, instead of the packets
    #[arg(long)]
    events: bool,
    /// Where to write; by default standard output
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Done {
    let log = open(&arguments.log)?;
    let to: Box<dyn Write> = match &arguments.out {
        Some(path) => Box::new(File::create(path).map_err(|error| Failure::file(path, &error))?),
        None => Box::new(std::io::stdout().lock()),
    };
    let mut to = BufWriter::new(to);
    let written = if arguments.events {
        log::write_events_csv(&mut to, &log.events, &log.names)
    } else {
        log::write_samples_csv(&mut to, &log.info, &log.samples)
    };
    let written = written.and_then(|()| to.flush());
    match (&arguments.out, written) {
        (None, written) => shown(written)?,
        (Some(path), Err(error)) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            return Err(Failure::new(UNHEALTHY, anyhow!("{} could not be written: {error}", path.display())));
        }
        // The reader has closed the pipe: it has read enough.
        _ => {}
    }
    Ok(ExitCode::SUCCESS)
}
