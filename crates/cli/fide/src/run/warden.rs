// SPDX-License-Identifier: Apache-2.0
//! A process that outlives `fide run` for a moment: it kills what the program has started, which the kernel's death signal does
//! not reach, also where that is known to have left the control group, and removes the group.

use std::{
    ffi::OsString,
    io::{self, BufRead},
    os::{fd::OwnedFd, unix::process::CommandExt},
    path::Path,
    process::{Child, Command, ExitCode, Stdio},
    sync::{Arc, Weak},
};

use rustix::{
    fs::{OFlags, fcntl_setfl},
    pipe::{PipeFlags, pipe_with},
    process::Pid,
};

use super::{
    child, group,
    outside::{self, Id, OUTSIDE_MAX},
};

/// Argument of this program that makes it a warden: directories of control groups follow, whether or not they exist yet.
pub(crate) const WARDEN: &str = "__warden";

/// The warden of one program, as `fide run` sees it.
#[derive(Debug)]
pub(super) struct Warden {
    process: Child,
    /// Its other end is the warden's standard input: it ends with this process, however that ends.
    alive: Option<Arc<OwnedFd>>,
}

impl Warden {
    /// Begins before the groups are made: at no moment would one be left.
    pub(super) fn start<'a>(dirs: impl Iterator<Item = &'a Path>) -> io::Result<Self> {
        let (theirs, alive) = pipe_with(PipeFlags::CLOEXEC)?;
        // The fence waits for no warden.
        fcntl_setfl(&alive, OFlags::NONBLOCK)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(WARDEN).args(dirs).stdin(Stdio::from(theirs)).stdout(Stdio::null());
        // A group of its own, and deaf: what is sent to end or to suspend `fide run` is not for it. It ends with its input.
        command.process_group(0);
        child::begin_deaf(&mut command);
        Ok(Self { process: command.spawn()?, alive: Some(Arc::new(alive)) })
    }

    /// Where it is told of processes that are in none of the groups, each by a line of its number and its beginning.
    pub(super) fn ear(&self) -> Weak<OwnedFd> {
        self.alive.as_ref().map(Arc::downgrade).unwrap_or_default()
    }
}

impl Drop for Warden {
    fn drop(&mut self) {
        drop(self.alive.take());
        let _ = self.process.wait();
    }
}

/// What the process does: waits until `fide run` is gone, then ends what is in the control groups.
pub(crate) fn warden(arguments: &[OsString]) -> ExitCode {
    if arguments.is_empty() {
        return ExitCode::from(crate::exit::USAGE);
    }
    // It got the limit of a program.
    child::dump_no_core();
    // This ends with the other end.
    let mut left = Vec::new();
    for id in io::stdin().lock().lines().map_while(Result::ok).filter_map(|line| id_of(&line)) {
        if left.len() >= OUTSIDE_MAX {
            left.retain(|id: &Id| id.is_live());
        }
        if left.len() < OUTSIDE_MAX {
            left.push(id);
        }
    }
    outside::kill_all(&left);
    for dir in arguments.iter().map(Path::new).filter(|dir| dir.exists()) {
        group::end(dir);
    }
    ExitCode::SUCCESS
}

fn id_of(line: &str) -> Option<Id> {
    let (pid, start) = line.split_once(' ')?;
    Some(Id { pid: Pid::from_raw(pid.parse().ok()?)?, start: start.parse().ok()? })
}
