// SPDX-License-Identifier: Apache-2.0
//! `fide pace recv`: messages to standard output.

use std::{
    io::{self, Write},
    process::ExitCode,
    sync::Arc,
};

use fide_pace_socket::{Closed, RecvError};

use super::{Out, Way, end_on_signal, lost};
use crate::{
    exit::Done,
    say::{say, shown},
};

#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Where to wait, as ADDRESS:PORT
    at: String,
    #[command(flatten)]
    way: Way,
    /// End each message with a line end
    #[arg(long)]
    lines: bool,
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let endpoint = arguments.way.server(&arguments.at, 1)?;
    if let Ok(address) = endpoint.local_address() {
        say!("fide: waiting at {address}");
    }
    let connection = Arc::new(endpoint.accept().map_err(anyhow::Error::from)?);
    drop(endpoint);
    end_on_signal(&connection);
    let mut out = io::stdout().lock();
    let why = loop {
        let message = match connection.recv() {
            Ok(message) => message,
            Err(RecvError(why)) => break why,
        };
        let mut written = out.write_all(&message.bytes);
        if arguments.lines {
            written = written.and_then(|()| out.write_all(b"\n"));
        }
        let written = written.and_then(|()| out.flush());
        if written.as_ref().is_err_and(|why| why.kind() == io::ErrorKind::BrokenPipe) {
            break Closed::Here;
        }
        shown(written)?;
        connection.recycle(message);
    };
    drop(out);
    arguments.way.report(&connection, Some(&why), Out::Errors)?;
    match why {
        Closed::There(reason) if reason.is_empty() => Ok(ExitCode::SUCCESS),
        Closed::Here => Ok(ExitCode::SUCCESS),
        why => Err(lost(&connection, RecvError(why))),
    }
}
