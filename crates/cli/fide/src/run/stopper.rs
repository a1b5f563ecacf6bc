// SPDX-License-Identifier: Apache-2.0
//! What stops a program, lets it go on, and kills it: the best of three rungs.
//!
//! | rung | reaches |
//! |---|---|
//! | cgroup v2 (`cgroup.freeze`, `cgroup.kill`) | the program and all that it started |
//! | cgroup v1 freezer | the same |
//! | signals | the program alone, not what it started, and not once it runs as another user |
//!
//! A program that leaves its control group and keeps its process id (`systemd-run --scope`, pam_systemd) gets the signals, too, and so
//! does what it started and has left the group ([`Outside`]).

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

/// Before a kill, until the program is frozen. A process in an uninterruptible sleep may take longer, and is not waited for.
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
    /// What it started and has left the group, where that was made for it.
    outside: Option<Outside>,
}

fn raw(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

/// A group that its program has left and somebody has removed holds nothing.
fn fine_if_gone(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if is_gone(&error) => Ok(()),
        done => done,
    }
}

/// Whether it failed because the program runs as a user whom we may not signal.
pub(super) fn is_out_of_reach(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

impl Stopper {
    /// Puts a process that has started nothing yet into a control group of its own, where that is to be had.
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

    /// Whether a control group was made for the program, and it is in there.
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

    /// Whether what the program starts is stopped and killed also where it leaves the group.
    pub(super) fn reaches_outside(&self) -> bool {
        self.outside().is_some()
    }

    /// A child of this process that is not the program's.
    pub(super) fn spare(&self, pid: Pid) {
        if let Some((outside, _)) = self.outside() {
            outside.spare(pid);
        }
    }

    /// Looks for what the program started and has left the group. By the thread that starts commands alone.
    pub(super) fn look_outside(&self) {
        if let Some((outside, group)) = self.outside() {
            outside.look(group);
        }
    }

    /// What to say of processes outside of the group since the last time.
    pub(super) fn news(&self) -> Vec<String> {
        self.outside().map(|(outside, _)| outside.news()).unwrap_or_default()
    }

    /// Whether something that the program started is known to be outside of the group.
    pub(super) fn has_outside(&self) -> bool {
        self.outside().is_some_and(|(outside, _)| !outside.pids().is_empty())
    }

    /// The rung, for people.
    pub(super) fn rung(&self) -> String {
        match &self.group {
            Some(group) => group.name(),
            None => {
                format!("SIGSTOP to the program alone, not to what it starts ({})", self.missing.trim_end_matches("; "))
            }
        }
    }

    /// What lets it go on when nobody holds it any more, for people.
    pub(super) fn remedy(&self) -> String {
        match (&self.group, self.pid) {
            (Some(group), _) => group.remedy(),
            (None, pid) => format!("kill -CONT {}", pid.map_or_else(String::new, |pid| pid.to_string())),
        }
    }

    /// Stops it, and what is known to be outside of its group. The rest of that is found by [`Self::stop_outside`], which takes longer.
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

    /// Looks for all that is outside of its group, and stops it.
    pub(super) fn stop_outside(&self) {
        if let Some((outside, group)) = self.outside() {
            outside.stop(group);
        }
    }

    /// Stops it again where its group does not: it may have left that since [`Self::stop`], and the kernel thaws whoever is moved out of
    /// a frozen group; and whoever may signal it can let it go on. Nothing happens to a process that is stopped already.
    pub(super) fn stop_again(&self) -> io::Result<()> {
        if let Some((outside, group)) = self.outside() {
            outside.stop_again(group);
        }
        if self.group.is_some() && !self.has_left() { Ok(()) } else { self.stop_by_signal() }
    }

    /// Stops its process, and all of a group that was made for it, by signals as well, which hold them also where they are moved out of the
    /// frozen group later, and nobody looks.
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

    /// Lets it go on.
    pub(super) fn go_on(&self) -> io::Result<()> {
        let Some(group) = &self.group else { return self.signal(Signal::CONT) };
        // Before the group: a shell that goes on sees none of its children stopped.
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

    /// Whether nobody but us can let it go on.
    pub(super) fn holds(&self) -> bool {
        self.group.as_ref().is_some_and(Group::is_frozen) && !self.has_left()
    }

    /// Kills it, and all that is in its group, or has left that: stopped, the rest would stay so. Fine if it has ended.
    pub(super) fn kill(&self) -> io::Result<()> {
        self.find_before_kill();
        let killed = self.kill_group();
        if let Some((outside, group)) = self.outside() {
            outside.kill(group);
        }
        killed
    }

    /// Finds what is outside of the group while parents still lead to it: moved to where this process is, it could be anybody's afterwards.
    /// Frozen, so that no parent ends meanwhile.
    fn find_before_kill(&self) {
        let Some((_, group)) = self.outside() else { return };
        // Whatever fails here does so in the kill, which says it.
        let _ = self.stop();
        for _ in 0..FROZEN_LOOKS_MAX {
            if group.is_frozen() {
                break;
            }
            std::thread::sleep(FROZEN_LOOK);
        }
        self.stop_outside();
    }

    /// Kills again what is outside of the group and has not died since [`Self::kill`].
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
            // In its group it may be another user's, and dies all the same.
            return killed;
        }
        self.signal(Signal::KILL)?;
        fine_if_gone(killed)
    }

    /// Whether signals reach it. A program that becomes another user refuses them.
    pub(super) fn is_reached(&self) -> bool {
        match (&self.group, self.pid) {
            (Some(_), _) if !self.has_left() => true,
            (_, Some(pid)) => !matches!(test_kill_process(pid), Err(rustix::io::Errno::PERM)),
            _ => true,
        }
    }

    /// The processes that are stopped by this.
    pub(super) fn pids(&self) -> Vec<Pid> {
        let mut pids = self.group.as_ref().map(Group::pids).unwrap_or_default();
        pids.extend(self.outside().map(|(outside, _)| outside.pids()).unwrap_or_default());
        pids.extend(self.pid.filter(|pid| !pids.contains(pid)));
        pids
    }

    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(&self.pidfd, signal) {
            // It has just ended, which the next look finds.
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Stopper {
    /// What has left the group goes with the group.
    fn drop(&mut self) {
        if let Some((outside, group)) = self.outside() {
            outside.kill(group);
            outside.news().iter().for_each(|news| say!("fide: {news}"));
        }
    }
}
