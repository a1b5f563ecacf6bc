// SPDX-License-Identifier: Apache-2.0
//! The process that guards the connections of a monitor to other hosts ([`fide_rack::meet::guard`]).

use std::{
    io,
    os::unix::process::CommandExt,
    process::{Child, Command, ExitCode, Stdio},
};

use fide_rack::meet::guard::{Guard, guards};
use fide_sys::seqpacket::pair;

use super::monitor::raise_descriptors;
use crate::{run::begin_deaf, say::say};

/// Argument that makes this program a guard: its standard input is a socket to its monitor.
pub(crate) const GUARD: &str = "__rack-guard";

/// Starts a guard, which ends with this process, however that ends.
///
/// # Errors
/// The kernel's.
pub(super) fn start() -> io::Result<(Guard, Child)> {
    let (own, its) = pair()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(GUARD).stdin(Stdio::from(its)).stdout(Stdio::null());
    // Signals that end the monitor are not for it: it ends once the monitor has.
    command.process_group(0);
    begin_deaf(&mut command);
    Ok((Guard::new(own), command.spawn()?))
}

/// The guard's process.
pub(crate) fn guard() -> ExitCode {
    raise_descriptors();
    match guards(io::stdin()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            say!("fide: connections to other hosts are not guarded any more: {why}");
            ExitCode::FAILURE
        }
    }
}
