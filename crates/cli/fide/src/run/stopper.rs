// SPDX-License-Identifier: Apache-2.0
//! Stops a program, continues it, and kills it, by the best of three rungs.
//!
//! | rung | reaches |
//! |---|---|
//! | cgroup v2 (`cgroup.freeze`, `cgroup.kill`) | the program and all that it started |
//! | cgroup v1 freezer | the same |
//! | signals | the program alone, not what it started, and not once it runs as another user |
//!
//! A program that leaves its control group and keeps its process id (`systemd-run --scope`, pam_systemd) gets
//! the signals, too; so do its children that have left the group ([`Outside`]).

use std::{
    io,
    os::fd::OwnedFd,
    sync::{
        Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rustix::process::{Pid, Signal, pidfd_send_signal, test_kill_process};

use super::{
    group::{Group, Places, is_gone},
    outside::Outside,
};
use crate::say::say;

/// Before a kill: how often to check whether the program is frozen. A process in an uninterruptible sleep may
/// take longer, and is not waited for.
const FROZEN_LOOK: Duration = Duration::from_micros(100);
const FROZEN_LOOKS_MAX: usize = 20;

/// Stops one program.
#[derive(Debug)]
pub(super) struct Stopper {
    pid: Option<Pid>,
    pidfd: OwnedFd,
    group: Option<Group>,
    /// Why there is no better rung.
    missing: String,
    /// The process was found outside its group, and stopped by a signal.
    signalled: AtomicBool,
    /// Its children that have left the group, if the group was made for it.
    outside: Option<Outside>,
}

fn raw(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

/// A group that its program has left and that another process has removed is empty.
fn fine_if_gone(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if is_gone(&error) => Ok(()),
        done => done,
    }
}

/// Whether it failed because we may not signal the user of the program.
pub(super) fn is_out_of_reach(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

impl Stopper {
    /// Puts a process that has started nothing yet into a control group of its own, if there can be one.
    pub(super) fn around(places: &Places, pid: u32, pidfd: OwnedFd, warden: Weak<OwnedFd>) -> Self {
        let (group, missing) = match places.make(pid) {
            Ok(group) => (Some(group), String::new()),
            Err(missing) => (None, missing),
        };
        let outside = raw(pid).filter(|_| group.is_some()).map(|pid| Outside::of(pid, warden));
        Self { pid: raw(pid), pidfd, group, missing, signalled: AtomicBool::new(false), outside }
    }

    /// A running process, with its unit's control group if that is known.
    pub(super) fn of(pid: u32, pidfd: OwnedFd, group: io::Result<Group>) -> Self {
        let (group, missing) = match group {
            Ok(group) => (Some(group), String::new()),
            Err(error) => (None, format!("cgroup: {error}; ")),
        };
        Self { pid: raw(pid), pidfd, group, missing, signalled: AtomicBool::new(false), outside: None }
    }

    pub(super) fn pidfd(&self) -> &OwnedFd {
        &self.pidfd
    }

    pub(super) fn pid(&self) -> Option<Pid> {
        self.pid
    }

    /// Whether a control group was made for the program, and the program is in it.
    pub(super) fn has_own_group(&self) -> bool {
        self.group.as_ref().is_some_and(Group::is_own) && !self.has_left()
    }

    /// Whether the program's process has left its control group.
    pub(super) fn has_left(&self) -> bool {
        self.group.as_ref().zip(self.pid).is_some_and(|(group, pid)| !group.holds(pid))
    }

    fn outside(&self) -> Option<(&Outside, &Group)> {
        self.outside.as_ref().zip(self.group.as_ref())
    }

    /// Whether children of the program are also stopped and killed after they have left the group.
    pub(super) fn reaches_outside(&self) -> bool {
        self.outside().is_some()
    }

    /// Spares a child of this process: it does not belong to the program.
    pub(super) fn spare(&self, pid: Pid) {
        if let Some((outside, _)) = self.outside() {
            outside.spare(pid);
        }
    }

    /// Searches for children of the program that have left the group. Only for the thread that starts
    /// commands.
    pub(super) fn look_outside(&self) {
        if let Some((outside, group)) = self.outside() {
            outside.look(group);
        }
    }

    /// Reports about processes outside of the group since the last call.
    pub(super) fn news(&self) -> Vec<String> {
        self.outside().map(|(outside, _)| outside.news()).unwrap_or_default()
    }

    /// Whether a child of the program is known to be outside of the group.
    pub(super) fn has_outside(&self) -> bool {
        self.outside().is_some_and(|(outside, _)| !outside.pids().is_empty())
    }

    /// The rung, as text.
    pub(super) fn rung(&self) -> String {
        match &self.group {
            Some(group) => group.name(),
            None => {
                format!("SIGSTOP to the program alone, not to what it starts ({})", self.missing.trim_end_matches("; "))
            }
        }
    }

    /// How to continue the program by hand, as text.
    pub(super) fn remedy(&self) -> String {
        match (&self.group, self.pid) {
            (Some(group), _) => group.remedy(),
            (None, pid) => format!("kill -CONT {}", pid.map_or_else(String::new, |pid| pid.to_string())),
        }
    }

    /// Stops the program, and known processes outside of its group. [`Self::stop_outside`] finds the others,
    /// which takes longer.
    pub(super) fn stop(&self) -> io::Result<()> {
        let Some(group) = &self.group else { return self.signal(Signal::STOP) };
        let frozen = group.freeze(true);
        if let Some((outside, _)) = self.outside() {
            outside.stop_known();
        }
        if !self.has_left() {
            return frozen;
        }
        self.signalled.store(true, Ordering::SeqCst);
        self.signal(Signal::STOP)?;
        fine_if_gone(frozen)
    }

    /// Searches for processes outside of its group, and stops them.
    pub(super) fn stop_outside(&self) {
        if let Some((outside, group)) = self.outside() {
            outside.stop(group);
        }
    }

    /// Stops the program again where its group does not: it may have left the group since [`Self::stop`], in
    /// which case the kernel thaws it; and any process with the right to signal it can continue it. Has no
    /// effect on a process that is stopped already.
    pub(super) fn stop_again(&self) -> io::Result<()> {
        if let Some((outside, group)) = self.outside() {
            outside.stop_again(group);
        }
        if self.group.is_some() && !self.has_left() { Ok(()) } else { self.stop_by_signal() }
    }

    /// Stops its process, and all processes of a group that was made for it, by signals as well. The signals
    /// still hold a process that is later moved out of the frozen group unnoticed.
    pub(super) fn hold_by_signal(&self) -> io::Result<()> {
        if let Some((outside, group)) = self.outside() {
            outside.hold(group);
        }
        self.stop_by_signal()
    }

    fn stop_by_signal(&self) -> io::Result<()> {
        self.signal(Signal::STOP)?;
        self.signalled.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Continues the program.
    pub(super) fn go_on(&self) -> io::Result<()> {
        let Some(group) = &self.group else { return self.signal(Signal::CONT) };
        // Before the group, so that a shell that continues sees none of its children stopped.
        if let Some((outside, _)) = self.outside() {
            outside.go_on();
        }
        let thawed = group.freeze(false);
        if !self.signalled.swap(false, Ordering::SeqCst) {
            return thawed;
        }
        self.signal(Signal::CONT)?;
        fine_if_gone(thawed)
    }

    /// Whether only this process can continue the program.
    pub(super) fn holds(&self) -> bool {
        self.group.as_ref().is_some_and(Group::is_frozen) && !self.has_left()
    }

    /// Kills the program, and all processes that are in its group or have left it: otherwise they would stay
    /// stopped. Succeeds if the program has ended.
    pub(super) fn kill(&self) -> io::Result<()> {
        self.find_before_kill();
        let killed = self.kill_group();
        if let Some((outside, group)) = self.outside() {
            outside.kill(group);
        }
        killed
    }

    /// Finds processes outside of the group while their parents still lead to them: once moved to the group
    /// of this process, an orphan could belong to any program. The program is frozen first, so that no parent
    /// ends meanwhile.
    fn find_before_kill(&self) {
        let Some((_, group)) = self.outside() else { return };
        // If this fails, the kill fails too, and reports it.
        let _ = self.stop();
        for _ in 0..FROZEN_LOOKS_MAX {
            if group.is_frozen() {
                break;
            }
            std::thread::sleep(FROZEN_LOOK);
        }
        self.stop_outside();
    }

    /// Kills processes outside of the group again that have not died since [`Self::kill`].
    pub(super) fn kill_again(&self) {
        if let Some((outside, group)) = self.outside() {
            outside.kill_again(group);
        }
    }

    fn kill_group(&self) -> io::Result<()> {
        let Some(group) = &self.group else { return self.signal(Signal::KILL) };
        let left = self.has_left();
        let killed = group.kill();
        if !left {
            // In its group it may run as another user, and dies all the same.
            return killed;
        }
        self.signal(Signal::KILL)?;
        fine_if_gone(killed)
    }

    /// Whether signals reach the program. A program that becomes another user refuses them.
    pub(super) fn is_reached(&self) -> bool {
        match (&self.group, self.pid) {
            (Some(_), _) if !self.has_left() => true,
            (_, Some(pid)) => !matches!(test_kill_process(pid), Err(rustix::io::Errno::PERM)),
            _ => true,
        }
    }

    /// The processes that this stops.
    pub(super) fn pids(&self) -> Vec<Pid> {
        let mut pids = self.group.as_ref().map(Group::pids).unwrap_or_default();
        pids.extend(self.outside().map(|(outside, _)| outside.pids()).unwrap_or_default());
        pids.extend(self.pid.filter(|pid| !pids.contains(pid)));
        pids
    }

    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(&self.pidfd, signal) {
            // The process has just ended; the next look finds that.
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Stopper {
    /// Processes that have left the group end with the group.
    fn drop(&mut self) {
        if let Some((outside, group)) = self.outside() {
            outside.kill(group);
            outside.news().iter().for_each(|news| say!("fide: {news}"));
        }
    }
}
