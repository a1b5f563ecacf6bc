// SPDX-License-Identifier: Apache-2.0
//! A process that outlives `fide run` for a moment: it kills what the program has started, which the kernel's death signal does
//! not reach, and removes the control group.

use std::{
    fs, io,
    io::Read,
    os::{fd::OwnedFd, unix::process::CommandExt},
    path::Path,
    process::{Child, Command, ExitCode, Stdio},
};

use rustix::pipe::{PipeFlags, pipe_with};

use super::stopper;

/// Argument of this program that makes it a warden: the control group follows.
pub(crate) const WARDEN: &str = "__warden";

/// The warden of one program, as `fide run` sees it.
#[derive(Debug)]
pub(super) struct Warden {
    process: Child,
    /// Its other end is the warden's standard input: it ends with this process, however that ends.
    alive: Option<OwnedFd>,
}

impl Warden {
    pub(super) fn start(dir: &Path) -> io::Result<Self> {
        let (theirs, alive) = pipe_with(PipeFlags::CLOEXEC)?;
        let mut command = Command::new(std::env::current_exe()?);
        // A group of its own: what a terminal sends to `fide run` is not for it.
        command.arg(WARDEN).arg(dir).stdin(Stdio::from(theirs)).stdout(Stdio::null()).process_group(0);
        Ok(Self { process: command.spawn()?, alive: Some(alive) })
    }
}

impl Drop for Warden {
    fn drop(&mut self) {
        drop(self.alive.take());
        let _ = self.process.wait();
    }
}

/// What the process does: waits until `fide run` is gone, then kills what is in the control group.
pub(crate) fn warden(arguments: &[String]) -> ExitCode {
    let [dir] = arguments else { return ExitCode::from(crate::exit::USAGE) };
    let dir = Path::new(dir);
    // Nothing is ever sent: this ends with the other end.
    let _ = io::stdin().read_to_end(&mut Vec::new());
    if !dir.exists() {
        return ExitCode::SUCCESS;
    }
    if fs::write(dir.join("cgroup.kill"), "1").is_err() {
        // Version 1: all are killed, then those that are frozen go on to die.
        for pid in fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default().lines() {
            if let Some(pid) = pid.parse().ok().and_then(rustix::process::Pid::from_raw) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        let _ = fs::write(dir.join("freezer.state"), "THAWED");
    }
    stopper::remove(dir);
    ExitCode::SUCCESS
}
