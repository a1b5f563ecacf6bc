// SPDX-License-Identifier: Apache-2.0
//! A process that outlives `fide run` for a moment. It kills the program's children, which the kernel's death
//! signal does not reach, also if they are known to have left the control group, and removes the group.

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

/// Argument that makes this program a warden: directories of control groups follow, whether or not they exist
/// yet.
pub(crate) const WARDEN: &str = "__warden";

/// The warden of one program, as `fide run` sees it.
#[derive(Debug)]
pub(super) struct Warden {
    process: Child,
    /// The other end is the warden's standard input, so the warden ends with this process, however that ends.
    alive: Option<Arc<OwnedFd>>,
}

impl Warden {
    /// Starts before the groups are made, so that no group is ever left behind.
    pub(super) fn start<'a>(dirs: impl Iterator<Item = &'a Path>) -> io::Result<Self> {
        let (theirs, alive) = pipe_with(PipeFlags::CLOEXEC)?;
        // The fence never waits for the warden.
        fcntl_setfl(&alive, OFlags::NONBLOCK)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(WARDEN).args(dirs).stdin(Stdio::from(theirs)).stdout(Stdio::null());
        // The warden has its own process group and ignores signals: signals that end or suspend `fide run`
        // are not for it. It ends with its input.
        command.process_group(0);
        child::begin_deaf(&mut command);
        Ok(Self { process: command.spawn()?, alive: Some(Arc::new(alive)) })
    }

    /// The warden is notified here of processes that are in none of the groups, by one line each: process id
    /// and start time.
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

/// The warden's process: waits until `fide run` is gone, then kills the processes in the control groups.
pub(crate) fn warden(arguments: &[OsString]) -> ExitCode {
    if arguments.is_empty() {
        return ExitCode::from(crate::exit::USAGE);
    }
    // The warden got the core limit of a program.
    child::dump_no_core();
    // The loop ends when the other end is closed.
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
