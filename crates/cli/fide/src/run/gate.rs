// SPDX-License-Identifier: Apache-2.0
//! Starts the program stopped before its first instruction, so that it is registered before it does anything.

use std::{
    ffi::OsString,
    io,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::{Child, Command, ExitCode},
};

use fide_client::Permit;
use rustix::pipe::{PipeFlags, pipe_with};

use super::child;
use crate::exit::{Failure, UNHEALTHY, USAGE};
use crate::say::say;

/// Argument with which this program starts another one on command; see [`gate`].
pub(crate) const GATE: &str = "__gate";

/// The program's environment, one line for each variable: the permit under which it may act as it begins.
pub(super) fn as_environment(permit: Option<&Permit>) -> String {
    let mut lines = String::new();
    if let Some(permit) = permit {
        lines.push_str(&format!("FIDE_HOST_ID={}\nFIDE_INCARNATION={}\n", permit.host_id, permit.incarnation));
        if let Some(token) = permit.token() {
            lines.push_str(&format!("FIDE_TOKEN={token}\n"));
        }
    }
    lines.push_str("go\n");
    lines
}

/// Starts the program stopped before its first instruction, until the pipe delivers its variables.
pub(super) fn spawn_at_gate(command: &[OsString]) -> Result<(Child, OwnedFd), Failure> {
    let (wait, go) = pipe_with(PipeFlags::CLOEXEC).map_err(io::Error::from)?;
    let this = std::env::current_exe()?;
    let mut gated = Command::new(this);
    gated.arg(GATE).arg(wait.as_raw_fd().to_string()).args(command);
    // Variables of an outer `fide run`, if there is one.
    for name in ["FIDE_TOKEN", "FIDE_INCARNATION", "FIDE_HOST_ID"] {
        gated.env_remove(name);
    }
    let wait_fd = wait.as_raw_fd();
    // This process blocks signals in order to pass them on; the program must not inherit that.
    child::begin_as_program(&mut gated);
    // SAFETY: between fork and exec only fcntl(2) and prctl(2), which are safe there.
    unsafe {
        gated.pre_exec(move || {
            if libc::fcntl(wait_fd, libc::F_SETFD, 0) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The program must not outlive the process that stops it. (If that one is dead already, the gate
            // stays closed.)
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        });
    }
    Ok((gated.spawn()?, go))
}

/// A user called the internal verb by hand.
fn not_by_fide_run() -> ExitCode {
    say!(
        "fide: {GATE} is for `fide run`, which gives it an open pipe and a program; use `fide run --name NAME -- CMD`"
    );
    ExitCode::from(USAGE)
}

/// Whether it is an open descriptor besides those of input, output and errors, which the library owns.
fn is_inherited(fd: i32) -> bool {
    // SAFETY: fcntl(2) with F_GETFD takes any number.
    fd > libc::STDERR_FILENO && unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0
}

/// Runs in the child of [`spawn_at_gate`]: waits for the command, then becomes the program. Its process id
/// and start time stay the same.
pub(crate) fn gate(arguments: &[OsString]) -> ExitCode {
    let [fd, program, rest @ ..] = arguments else { return not_by_fide_run() };
    let Some(fd) = fd.to_str().and_then(|fd| fd.parse::<i32>().ok()).filter(|fd| is_inherited(*fd)) else {
        return not_by_fide_run();
    };
    // SAFETY: it is open, the parent left us this descriptor and nothing else here owns it.
    let wait = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut order = String::new();
    if io::Read::read_to_string(&mut std::fs::File::from(wait), &mut order).is_err() || !order.ends_with("go\n") {
        return ExitCode::from(UNHEALTHY);
    }
    let variables = order.lines().filter_map(|line| line.split_once('='));
    let error = Command::new(program).args(rest).envs(variables).exec();
    say!("fide run: {}: {error}", program.display());
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
}
