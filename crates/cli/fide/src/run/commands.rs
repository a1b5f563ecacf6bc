// SPDX-License-Identifier: Apache-2.0
//! The operator's `--fence-command`: one at a time, and the last one to run is the one for the last state.

use std::{
    ffi::OsStr,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::{Child, Command, Stdio},
    sync::Weak,
    time::{Duration, Instant},
};

use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use super::{child, stopper::Stopper};
use crate::say::say;

/// How often to check whether the command has ended, while waiting for it.
const LOOK: Duration = Duration::from_millis(5);

/// How long a command may run after the program has ended.
const END_LIMIT: Duration = Duration::from_secs(60);

/// States of a program, as the command gets them.
pub(super) const STOPPED: &str = "stopped";
pub(super) const CONTINUED: &str = "continued";
pub(super) const EXCLUDED: &str = "excluded";

struct Running {
    child: Child,
    /// Readable when it has ended.
    ended: Option<OwnedFd>,
    what: &'static str,
}

/// Runs commands; waits for the last one in the end.
pub(super) struct Commands<'a> {
    command: Option<&'a OsStr>,
    running: Option<Running>,
    /// The command to run after the present one has ended.
    next: Option<&'static str>,
    /// Excludes commands from the processes of the program.
    stopper: Weak<Stopper>,
}

impl<'a> Commands<'a> {
    pub(super) fn new(command: Option<&'a OsStr>, stopper: Weak<Stopper>) -> Self {
        Self { command, running: None, next: None, stopper }
    }

    /// Runs the command for a state. A command that still runs for an earlier state is killed first, with its
    /// children, because that state is over; but the command for a stop is waited for if the program is then
    /// stopped for good.
    pub(super) fn begin(&mut self, what: &'static str) {
        if self.command.is_none() {
            return;
        }
        self.look();
        self.next = None;
        match &self.running {
            None => self.spawn(what),
            Some(former) if former.what == STOPPED && what == EXCLUDED => self.next = Some(what),
            Some(former) => {
                say!("fide: --fence-command for `{}` still ran; it is killed: the state is `{what}` now", former.what);
                self.kill();
                self.spawn(what);
            }
        }
    }

    fn kill(&mut self) {
        let Some(mut former) = self.running.take() else { return };
        if let Some(group) = pid_of(&former.child) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = former.child.wait();
    }

    fn spawn(&mut self, what: &'static str) {
        let Some(command) = self.command else { return };
        let mut shell = Command::new("sh");
        // The standard input belongs to the program.
        shell.arg("-c").arg(command).env("FIDE_FENCE", what).stdin(Stdio::null()).process_group(0);
        child::begin_clean(&mut shell);
        match shell.spawn() {
            Ok(child) => {
                if let (Some(stopper), Some(pid)) = (self.stopper.upgrade(), pid_of(&child)) {
                    stopper.spare(pid);
                }
                let ended = pid_of(&child).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
                self.running = Some(Running { child, ended, what });
            }
            Err(error) => say!("fide: --fence-command `{}` could not be run: {error}", command.display()),
        }
    }

    /// Reports how the command ended, if it has, and runs the next one.
    pub(super) fn look(&mut self) {
        let Some(running) = &mut self.running else { return };
        let ended = match running.child.try_wait() {
            Ok(None) => return,
            Ok(Some(status)) if status.success() => None,
            Ok(Some(status)) => Some(status.to_string()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(how) = ended {
            say!(
                "fide: --fence-command `{}` ended for `{}` with {how}",
                self.command.unwrap_or_default().display(),
                running.what
            );
        }
        self.running = None;
        if let Some(what) = self.next.take() {
            self.spawn(what);
        }
    }

    /// Waits for the end of the command, at most `limit`. True if it has ended.
    pub(super) fn finish_within(&mut self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        loop {
            self.look();
            if self.running.is_none() || Instant::now() >= until {
                return self.running.is_none();
            }
            std::thread::sleep(LOOK);
        }
    }

    /// The program has ended: waits for the last command, for [`END_LIMIT`] each, and no longer than until
    /// `is_asked_to_end`.
    pub(super) fn finish(&mut self, mut is_asked_to_end: impl FnMut() -> bool) {
        let mut until = Instant::now() + END_LIMIT;
        loop {
            let what = self.running.as_ref().map(|running| running.what);
            self.look();
            let Some(running) = &self.running else { return };
            if what != Some(running.what) {
                until = Instant::now() + END_LIMIT;
            }
            let asked = is_asked_to_end();
            if asked || Instant::now() >= until {
                say!(
                    "fide: --fence-command for `{}` still ran {}; it is killed",
                    running.what,
                    if asked { "when this was asked to end" } else { "a minute after the end of the program" }
                );
                self.kill();
                if let Some(what) = self.next.take() {
                    self.spawn(what);
                }
            } else {
                std::thread::sleep(LOOK);
            }
        }
    }

    /// A descriptor that becomes readable at the end of the running command, if there is one.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.running.as_ref()?.ended.as_ref().map(AsFd::as_fd)
    }
}

impl Drop for Commands<'_> {
    fn drop(&mut self) {
        self.finish(|| false);
    }
}

fn pid_of(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_states_command_runs_last_and_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("ran");
        let command = format!("[ $FIDE_FENCE = continued ] && sleep 600; echo $FIDE_FENCE >> {}", file.display());
        let mut commands = Commands::new(Some(command.as_ref()), Weak::new());
        commands.begin(CONTINUED);
        assert!(!commands.finish_within(Duration::from_millis(20)), "it sleeps");
        commands.begin(EXCLUDED);
        drop(commands);
        assert_eq!(std::fs::read_to_string(&file).expect("it ran"), "excluded\n");
    }

    #[test]
    fn hanging_command_is_killed_at_a_request_to_end() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("ran");
        let command = format!("[ $FIDE_FENCE = stopped ] && exec sleep 600; echo $FIDE_FENCE >> {}", file.display());
        let mut commands = Commands::new(Some(command.as_ref()), Weak::new());
        commands.begin(STOPPED);
        commands.begin(EXCLUDED);
        let mut asked = 0;
        commands.finish(|| {
            asked += 1;
            asked == 3
        });
        assert_eq!(
            std::fs::read_to_string(&file).expect("it ran"),
            "excluded\n",
            "the one that waited for it still runs"
        );
    }

    #[test]
    fn exclusion_lets_the_command_of_the_stop_end_first() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("ran");
        let command = format!("[ $FIDE_FENCE = stopped ] && sleep 0.1; echo $FIDE_FENCE >> {}", file.display());
        let mut commands = Commands::new(Some(command.as_ref()), Weak::new());
        commands.begin(STOPPED);
        commands.begin(EXCLUDED);
        drop(commands);
        assert_eq!(std::fs::read_to_string(&file).expect("it ran"), "stopped\nexcluded\n");
    }
}
