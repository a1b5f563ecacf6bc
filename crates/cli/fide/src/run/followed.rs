// SPDX-License-Identifier: Apache-2.0
//! Follows a registered program until it ends.

use std::{
    io,
    os::fd::AsFd,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::anyhow;
use fide_client::{Client, Event};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{
    FenceArguments, OnExclusion, OnFence,
    commands::{CONTINUED, Commands, EXCLUDED, STOPPED},
    fence::Keeper,
    job::{self, Suspensions},
    signals::{Received, Signals},
    stopper::{Stopper, is_out_of_reach},
};
use crate::exit::Failure;
use crate::say::say;

/// How often to look whether the fence's thread still lives, and whether signals reach the program.
const LOOK: Duration = Duration::from_millis(500);
/// How long the fence's thread may take to stop the whole program.
const KEEPER_LIMIT: Duration = Duration::from_secs(2);
/// How long the operator's command may take before `fide run` is suspended.
const COMMAND_LIMIT: Duration = Duration::from_secs(10);

/// The meaning of signals to this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// They are meant for the program.
    PassOn,
    /// Signals that ask for an end leave the program alone.
    LetGo,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Process,
    LetGo,
    /// The program continues as another user, and this process cannot end it.
    OutOfReach,
}

/// A registered program.
pub(super) struct Followed<'a> {
    /// `None`: the program asks the client library itself.
    pub(super) keeper: Option<Keeper>,
    /// Dropped after the keeper, whose thread uses it, and before commands are waited for: the program's
    /// leftovers go with it.
    pub(super) stopper: Arc<Stopper>,
    pub(super) arguments: &'a FenceArguments,
    pub(super) commands: Commands<'a>,
    pub(super) suspensions: Suspensions,
    pub(super) stop: Stop,
    /// Others were notified that the program is dead.
    pub(super) excluded: bool,
    /// The program was asked to end while it was stopped.
    pub(super) asked_to_end: bool,
    /// The last report and command said that it is stopped.
    pub(super) said_stopped: bool,
    /// It was reported that signals do not reach the program.
    pub(super) said_out_of_reach: bool,
    /// It was reported that the program has left its control group.
    pub(super) said_left: bool,
    /// When the program's children were last searched for outside of its control group.
    pub(super) looked: Instant,
}

impl Followed<'_> {
    pub(super) fn is_stopped(&self) -> bool {
        self.keeper.as_ref().is_some_and(Keeper::stopped)
    }

    /// Waits until the program ends, and reports what happens to it.
    pub(super) fn follow(&mut self, client: &mut Client, signals: &Signals) -> Result<Ended, Failure> {
        let limit = Timespec { tv_sec: 0, tv_nsec: i64::from(LOOK.subsec_nanos()) };
        loop {
            let pidfd = self.stopper.pidfd().as_fd();
            let mut fds = vec![
                PollFd::from_borrowed_fd(pidfd, PollFlags::IN),
                PollFd::new(signals, PollFlags::IN),
                PollFd::new(&self.suspensions, PollFlags::IN),
                PollFd::from_borrowed_fd(client.as_fd(), PollFlags::IN),
            ];
            fds.extend(self.keeper.as_ref().map(|keeper| PollFd::from_borrowed_fd(keeper.as_fd(), PollFlags::IN)));
            fds.extend(self.commands.fd().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            let nothing = match poll(&mut fds, Some(&limit)) {
                Ok(ready) => ready == 0,
                Err(rustix::io::Errno::INTR) => false,
                Err(error) => return Err(io::Error::from(error).into()),
            };
            if !fds[0].revents().is_empty() {
                drop(fds);
                self.end_what_is_stopped();
                return Ok(Ended::Process);
            }
            drop(fds);
            self.commands.look();
            if nothing {
                self.look_for_program();
            }
            if self.looked.elapsed() >= LOOK {
                self.stopper.look_outside();
                self.looked = Instant::now();
            }
            self.stopper.news().iter().for_each(|news| say!("fide: {news}"));
            match (signals.take(), self.stop) {
                (Some(received), Stop::LetGo) if received.asks_to_end() => return Ok(Ended::LetGo),
                (Some(received), Stop::PassOn) => {
                    if let Some(ended) = self.pass_on(received)? {
                        return Ok(ended);
                    }
                }
                (Some(_), Stop::LetGo) | (None, _) => {}
            }
            if self.suspensions.take() {
                self.suspend();
            }
            if let Some(keeper) = &mut self.keeper {
                keeper.quiet();
                keeper.complaints().iter().for_each(|wrong| say!("fide: {wrong}"));
                if keeper.is_over() {
                    keeper.end()?;
                    return Err(anyhow!("the fence's thread has ended").into());
                }
                if keeper.is_out_of_reach() {
                    self.say_out_of_reach();
                }
            }
            self.follow_fence();
            if self.is_stopped() {
                self.look_for_program();
            }
            while let Some(event) = client.poll_event()? {
                report(&event);
                if let Event::Rejoined { incarnation } = event
                    && let Some(ended) = self.rejoined(incarnation)?
                {
                    return Ok(ended);
                }
            }
        }
    }

    /// Passes a signal on to the program. A stopped program takes it when it continues; at a second request
    /// to end, or if it will never continue, it is killed.
    fn pass_on(&mut self, received: Received) -> Result<Option<Ended>, Failure> {
        let (ends, stopped) = (received.asks_to_end(), self.is_stopped());
        let kills = ends && stopped && (self.excluded || std::mem::replace(&mut self.asked_to_end, true));
        let sent = if kills {
            self.stopper.kill()
        } else if received.is_to_be_passed_on(self.stopper.pid()) {
            self.stopper.signal(received.signal)
        } else {
            Ok(())
        };
        match sent {
            Err(error) if is_out_of_reach(&error) => {
                self.say_out_of_reach();
                return Ok(ends.then_some(Ended::OutOfReach));
            }
            done => done?,
        }
        if ends && stopped && !kills {
            say!(
                "fide: the program is stopped, and ends at the latest when this host is heard again; the next SIGTERM or Ctrl-C kills it"
            );
        }
        Ok(None)
    }

    /// If the program was stopped or continued since the last call: reports that, and runs the command for
    /// it.
    fn follow_fence(&mut self) {
        let stopped = self.is_stopped();
        if stopped == self.said_stopped || self.excluded {
            return;
        }
        self.said_stopped = stopped;
        match (self.arguments.on_fence, stopped) {
            _ if self.said_out_of_reach => say!(
                "fide: this host is {}; the program is out of reach and runs",
                if stopped { "fenced" } else { "heard again" }
            ),
            (OnFence::Kill, true) => say!("fide: this host is fenced; the program is killed"),
            (_, true) => say!("fide: this host is fenced; the program is stopped until it is heard again"),
            (_, false) => say!("fide: this host is heard again; the program goes on"),
        }
        self.commands.begin(if stopped { STOPPED } else { CONTINUED });
    }

    /// Others have declared the program dead, and may have replaced it. The lease of the new incarnation does
    /// not hold for it: that incarnation is never acknowledged, so the program stays stopped.
    fn rejoined(&mut self, incarnation: u32) -> Result<Option<Ended>, Failure> {
        let Some(keeper) = &self.keeper else { return Ok(None) };
        if std::mem::replace(&mut self.excluded, true) {
            return Ok(None);
        }
        // Nothing continues the program any more. Its lease ends at the thread's next look, if not before.
        // The network must be fenced before this ends, and dying processes must not be frozen: in version 1
        // they would never die.
        keeper.hold(true);
        if !self.await_keeper(|keeper, _| keeper.stopped()) {
            say!("fide: the fence is late: addresses and connections of the program may still be in use");
        }
        let others = format!(
            "fide: this host is incarnation {incarnation} now: others were notified that the program is dead, and may run another in \
             its place"
        );
        let mut ended = None;
        match self.arguments.on_exclusion {
            OnExclusion::Kill => match self.stopper.kill() {
                Ok(()) => say!("{others}; it is killed"),
                Err(error) if is_out_of_reach(&error) => {
                    say!("{others}; it runs on, as it cannot be killed");
                    self.say_out_of_reach();
                    ended = Some(Ended::OutOfReach);
                }
                Err(error) => return Err(error.into()),
            },
            OnExclusion::Stop if self.said_out_of_reach => say!("{others}; it runs on, as it cannot be stopped"),
            OnExclusion::Stop => {
                say!("{others}; it stays stopped, and is never let go on. End it, and start it anew");
            }
        }
        self.commands.begin(EXCLUDED);
        Ok(ended)
    }

    /// Reports the state of its group, and of our right to signal it.
    fn look_for_program(&mut self) {
        if !self.said_left && self.stopper.has_left() {
            self.said_left = true;
            let and =
                if self.stopper.reaches_outside() { "and what it starts" } else { "alone, not to what it starts" };
            say!(
                "fide: the program has left its control group (as systemd-run and pam_systemd do): it is fenced by SIGSTOP to its \
                 process {and}"
            );
        }
        if !self.stopper.is_reached() {
            self.say_out_of_reach();
        }
    }

    /// The program has ended, or is left alone: ends the rest of the fence, and waits for the operator's
    /// command, which SIGTERM, SIGINT and SIGQUIT end.
    pub(super) fn finish(self, signals: &Signals) {
        let Self { keeper, stopper, mut commands, .. } = self;
        drop(keeper);
        drop(stopper);
        commands.finish(|| signals.take_end());
    }

    /// The process has ended. If the program is stopped, its leftovers die too: in a unit's group they would
    /// stay frozen, and so would the next process that is started there.
    fn end_what_is_stopped(&mut self) {
        let Some(keeper) = &mut self.keeper else { return };
        // Its group may be gone too, which the thread and the kill find out.
        let _ = keeper.end();
        if !keeper.is_to_be_stopped() {
            return;
        }
        let _ = self.stopper.kill();
        // The first sign of a fence that kills is the end of the program.
        if !self.excluded && !std::mem::replace(&mut self.said_stopped, true) {
            say!("fide: this host is fenced; the program has ended with that");
            self.commands.begin(STOPPED);
        }
    }

    fn say_out_of_reach(&mut self) {
        if !std::mem::replace(&mut self.said_out_of_reach, true) {
            say!(
                "fide: the program is out of reach: it runs as another user (setuid) and refuses signals, so a fence does not stop \
                 it. Give `fide run` a control group or run it as root, so that it can"
            );
        }
    }

    /// The terminal suspends this process (Ctrl-Z): the program is stopped first, because a suspended process
    /// fences nothing.
    fn suspend(&mut self) {
        let orphaned = job::is_orphaned();
        let Some(keeper) = self.keeper.as_ref().filter(|_| !orphaned) else {
            if orphaned {
                say!("fide: not suspended: no shell here could let it go on (its process group is orphaned)");
                return self.resume();
            }
            return job::stop_this();
        };
        self.stopper.look_outside();
        let why = match (self.stop, self.arguments.on_fence) {
            (Stop::LetGo, _) => Some("it would fence nobody"),
            (_, OnFence::Kill) => Some("it could not kill the program, were this host fenced meanwhile"),
            _ if !self.stopper.has_own_group() => {
                Some("without a control group anybody could let the program go on, and nobody would fence it")
            }
            _ if self.stopper.has_outside() => Some(
                "processes of the program have left its control group: anybody could let them go on, and nobody would fence them",
            ),
            _ => None,
        };
        if let Some(why) = why {
            say!("fide: not suspended: {why}. To have the terminal back, start it with `&`");
            return self.resume();
        }
        keeper.hold(true);
        // While suspended, this process cannot see a process that is moved out of the group, so a signal
        // stops the program, too. A program of another user may refuse it, and has its group.
        let is_held = |keeper: &Keeper, stopper: &Stopper| keeper.stopped() && stopper.holds();
        let signalled = || match self.stopper.hold_by_signal() {
            Err(error) => is_out_of_reach(&error),
            Ok(()) => true,
        };
        if !self.await_keeper(is_held) || !signalled() {
            say!("fide: not suspended: not all of the program could be stopped before");
            self.leave_to_lease();
            return self.resume();
        }
        if !self.said_stopped && !self.excluded {
            self.said_stopped = true;
            say!(
                "fide: suspended, with the program stopped before; it goes on with `fg` or `bg`, if this host may act then"
            );
            self.commands.begin(STOPPED);
        }
        if self.commands.finish_within(COMMAND_LIMIT) {
            job::stop_this();
            self.leave_to_lease();
        } else {
            say!("fide: not suspended: --fence-command still runs");
            self.leave_to_lease();
            self.resume();
        }
    }

    /// Returns the program to its lease, unless it is never to continue.
    fn leave_to_lease(&self) {
        if let Some(keeper) = self.keeper.as_ref().filter(|_| !self.excluded) {
            keeper.hold(false);
        }
    }

    /// Continues a program that the terminal has stopped with Ctrl-Z, so that it can end.
    fn resume(&self) {
        let fenced = || self.keeper.as_ref().is_some_and(Keeper::is_to_be_stopped);
        // A program that guards another one is not in the same process group.
        if self.stop == Stop::LetGo || fenced() {
            return;
        }
        job::continue_all();
        if fenced() {
            // If a fence began just now, the program is stopped again, whichever was first. The keeper
            // reports a failure, too.
            let _ = self.stopper.stop();
        }
    }

    /// Waits for a while until the keeper has reached a state.
    fn await_keeper(&self, so_far: impl Fn(&Keeper, &Stopper) -> bool) -> bool {
        let Some(keeper) = &self.keeper else { return true };
        let until = Instant::now() + KEEPER_LIMIT;
        while !so_far(keeper, &self.stopper) {
            if Instant::now() >= until || keeper.is_over() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }
}

/// Reports an event that the operator of the program should know.
fn report(event: &Event) {
    match event {
        Event::Detached { why } => say!("fide: the agent went away ({why}); looking for it"),
        Event::Reattached { .. } => say!("fide: the agent is back"),
        Event::Dropped { what, refusal } => say!("fide: {what} is not under watch any more: {refusal}"),
        _ => {}
    }
}
