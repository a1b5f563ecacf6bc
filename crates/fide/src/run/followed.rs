// SPDX-License-Identifier: Apache-2.0
//! A program under watch, until it ends.

use std::{io, os::fd::AsFd, sync::Arc, time::Duration};

use anyhow::anyhow;
use fide_agent::signals::{Signal as Asked, Signals};
use fide_client::{Client, Event};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::Signal,
};

use super::{
    FenceArguments, OnExclusion, OnFence,
    commands::{CONTINUED, Commands, EXCLUDED, STOPPED},
    fence::Keeper,
    job::{self, Suspensions},
    stopper::{Stopper, is_out_of_reach},
};
use crate::exit::Failure;

/// How often to look whether the fence's thread still lives, and whether signals reach the program.
const LOOK: Duration = Duration::from_millis(500);
/// For how long all of the program may take to be stopped before `fide run` is suspended.
const SUSPEND_LIMIT: Duration = Duration::from_secs(2);
/// For how long the operator's command may take before `fide run` is suspended.
const COMMAND_LIMIT: Duration = Duration::from_secs(10);

/// What SIGTERM means to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// It is meant for the program.
    PassOn,
    /// Leave the program alone.
    LetGo,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Process,
    LetGo,
    /// It goes on, as another user, and nothing of ours can end it.
    OutOfReach,
}

/// A program under watch.
pub(super) struct Followed<'a> {
    pub(super) stopper: Arc<Stopper>,
    /// None: the program asks the client library itself.
    pub(super) keeper: Option<Keeper>,
    pub(super) arguments: &'a FenceArguments,
    pub(super) commands: Commands<'a>,
    pub(super) suspensions: Suspensions,
    pub(super) stop: Stop,
    /// Others were told that it is dead.
    pub(super) excluded: bool,
    /// What was last said and run: that it is stopped.
    pub(super) said_stopped: bool,
    /// It was said that signals do not reach it.
    pub(super) said_out_of_reach: bool,
}

impl Followed<'_> {
    pub(super) fn is_stopped(&self) -> bool {
        self.keeper.as_ref().is_some_and(Keeper::stopped)
    }

    /// Waits until the program ends, and says what happens to it.
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
                return Ok(Ended::Process);
            }
            drop(fds);
            self.commands.look();
            if nothing && !self.stopper.is_reached() {
                self.say_out_of_reach();
            }
            match (signals.take(), self.stop) {
                (Some(Asked::Stop), Stop::LetGo) => return Ok(Ended::LetGo),
                (Some(Asked::Stop), Stop::PassOn) => match self.stopper.signal(Signal::TERM) {
                    Err(error) if is_out_of_reach(&error) => {
                        self.say_out_of_reach();
                        return Ok(Ended::OutOfReach);
                    }
                    done => done?,
                },
                (Some(Asked::Reload), Stop::PassOn) => match self.stopper.signal(Signal::HUP) {
                    Err(error) if is_out_of_reach(&error) => self.say_out_of_reach(),
                    done => done?,
                },
                (Some(Asked::Reload), Stop::LetGo) | (None, _) => {}
            }
            if self.suspensions.take() {
                self.suspend();
            }
            if let Some(keeper) = &mut self.keeper {
                keeper.quiet();
                keeper.complaints().iter().for_each(|wrong| eprintln!("fide: {wrong}"));
                if keeper.is_over() {
                    keeper.end()?;
                    return Err(anyhow!("the fence's thread has ended").into());
                }
                if keeper.is_out_of_reach() {
                    self.say_out_of_reach();
                }
            }
            self.follow_fence();
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

    /// Says and runs what follows if it was stopped, or goes on, since the last time.
    fn follow_fence(&mut self) {
        let stopped = self.is_stopped();
        if stopped == self.said_stopped || self.excluded {
            return;
        }
        self.said_stopped = stopped;
        match (self.arguments.on_fence, stopped) {
            _ if self.said_out_of_reach => eprintln!(
                "fide: this host is {}; the program is out of reach and runs",
                if stopped { "fenced" } else { "heard again" }
            ),
            (OnFence::Kill, true) => eprintln!("fide: this host is fenced; the program is killed"),
            (_, true) => eprintln!("fide: this host is fenced; the program is stopped until it is heard again"),
            (_, false) => eprintln!("fide: this host is heard again; the program goes on"),
        }
        self.commands.begin(if stopped { STOPPED } else { CONTINUED });
    }

    /// Others hold the program for dead, and may have replaced it. The lease of this new incarnation is not the program's: it is
    /// never acknowledged, so the program stays stopped.
    fn rejoined(&mut self, incarnation: u32) -> Result<Option<Ended>, Failure> {
        if self.keeper.is_none() || std::mem::replace(&mut self.excluded, true) {
            return Ok(None);
        }
        let others = format!(
            "fide: this host is incarnation {incarnation} now: others were told that the program is dead, and may run another in \
             its place"
        );
        let mut ended = None;
        match self.arguments.on_exclusion {
            OnExclusion::Kill => match self.stopper.kill() {
                Ok(()) => eprintln!("{others}; it is killed"),
                Err(error) if is_out_of_reach(&error) => {
                    eprintln!("{others}; it runs on, as it cannot be killed");
                    self.say_out_of_reach();
                    ended = Some(Ended::OutOfReach);
                }
                Err(error) => return Err(error.into()),
            },
            OnExclusion::Stop if self.said_out_of_reach => eprintln!("{others}; it runs on, as it cannot be stopped"),
            OnExclusion::Stop => {
                eprintln!("{others}; it stays stopped, and is never let go on. End it, and start it anew");
            }
        }
        self.commands.begin(EXCLUDED);
        Ok(ended)
    }

    fn say_out_of_reach(&mut self) {
        if !std::mem::replace(&mut self.said_out_of_reach, true) {
            eprintln!(
                "fide: the program is out of reach: it runs as another user (setuid) and refuses signals, so a fence does not stop \
                 it. Give `fide run` a control group or run it as root, so that it can"
            );
        }
    }

    /// The terminal wants this process suspended (Ctrl-Z): it stops the program first, for it fences nobody then.
    fn suspend(&mut self) {
        let Some(keeper) = &self.keeper else { return job::stop_this() };
        let why = match (self.stop, self.arguments.on_fence) {
            // It holds nobody, and says so.
            (Stop::LetGo, _) => Some("it would fence nobody; end it with Ctrl-C, or run it in the background with `&`"),
            (_, OnFence::Kill) => {
                Some("a fence meanwhile could not kill the program; run it in the background with `&`")
            }
            _ if !self.stopper.has_own_group() => Some(
                "without a control group anybody could let the program go on, and nobody would fence it. A program that the \
                 terminal has stopped goes on with `kill -CONT`; run it in the background with `&`",
            ),
            _ => None,
        };
        if let Some(why) = why {
            eprintln!("fide: not suspended: {why}");
            return;
        }
        keeper.hold(true);
        let until = std::time::Instant::now() + SUSPEND_LIMIT;
        while !(keeper.stopped() && self.stopper.holds()) {
            if std::time::Instant::now() >= until {
                eprintln!("fide: not suspended: not all of the program could be stopped before");
                keeper.hold(false);
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        if !self.said_stopped && !self.excluded {
            self.said_stopped = true;
            eprintln!(
                "fide: suspended, with the program stopped before; it goes on with `fg` or `bg`, if this host may act then"
            );
            self.commands.begin(STOPPED);
        }
        if self.commands.finish_within(COMMAND_LIMIT) {
            job::stop_this();
        } else {
            eprintln!("fide: not suspended: --fence-command still runs");
        }
        if let Some(keeper) = &self.keeper {
            keeper.hold(false);
        }
    }
}

/// What the operator of the program should know.
fn report(event: &Event) {
    match event {
        Event::Detached { why } => eprintln!("fide: the agent went away ({why}); looking for it"),
        Event::Reattached { .. } => eprintln!("fide: the agent is back"),
        Event::Dropped { what, refusal } => eprintln!("fide: {what} is not under watch any more: {refusal}"),
        _ => {}
    }
}
