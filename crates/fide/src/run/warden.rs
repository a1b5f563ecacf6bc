// SPDX-License-Identifier: Apache-2.0
//! A process that outlives `fide run` for a moment: it kills what the program has started, which the kernel's death signal does
//! not reach, and removes the control group.

use std::{
    io::{self, Read},
    os::{fd::OwnedFd, unix::process::CommandExt},
    path::Path,
    process::{Child, Command, ExitCode, Stdio},
};

use rustix::pipe::{PipeFlags, pipe_with};

use super::{child, group};

/// Argument of this program that makes it a warden: directories of control groups follow, whether or not they exist yet.
pub(crate) const WARDEN: &str = "__warden";

/// The warden of one program, as `fide run` sees it.
#[derive(Debug)]
pub(super) struct Warden {
    process: Child,
    /// Its other end is the warden's standard input: it ends with this process, however that ends.
    alive: Option<OwnedFd>,
}

impl Warden {
    /// Begins before the groups are made: at no moment would one be left.
    pub(super) fn start<'a>(dirs: impl Iterator<Item = &'a Path>) -> io::Result<Self> {
        let (theirs, alive) = pipe_with(PipeFlags::CLOEXEC)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(WARDEN).args(dirs).stdin(Stdio::from(theirs)).stdout(Stdio::null());
        // A group of its own, and deaf: what is sent to end or to suspend `fide run` is not for it. It ends with its input.
        command.process_group(0);
        child::begin_deaf(&mut command);
        Ok(Self { process: command.spawn()?, alive: Some(alive) })
    }
}

impl Drop for Warden {
    fn drop(&mut self) {
        drop(self.alive.take());
        let _ = self.process.wait();
    }
}

/// What the process does: waits until `fide run` is gone, then ends what is in the control groups.
pub(crate) fn warden(arguments: &[String]) -> ExitCode {
    if arguments.is_empty() {
        return ExitCode::from(crate::exit::USAGE);
    }
    // It got the limit of a program.
    child::dump_no_core();
    // Nothing is ever sent: this ends with the other end.
    let _ = io::stdin().read_to_end(&mut Vec::new());
    for dir in arguments.iter().map(Path::new).filter(|dir| dir.exists()) {
        group::end(dir);
    }
    ExitCode::SUCCESS
}
