// SPDX-License-Identifier: Apache-2.0
//! A descriptor that becomes readable at a time, or when it is rung: both by one timer of the kernel, which is exact to
//! microseconds where event loops round up to milliseconds.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    sync::{Arc, Mutex, PoisonError},
    task::Wake,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, read},
    time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime},
};

/// Bells that are kept for the next operation.
const KEPT_MAX: usize = 64;

static KEPT: Mutex<Vec<Arc<Bell>>> = Mutex::new(Vec::new());

/// The descriptor.
#[derive(Debug)]
pub(crate) struct Bell(OwnedFd);

fn time(ns: u64) -> Timespec {
    let seconds = i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX);
    Timespec { tv_sec: seconds, tv_nsec: i64::try_from(ns % 1_000_000_000).unwrap_or(0) }
}

impl Bell {
    /// One that nobody uses. It may still be rung by what it was used for before.
    pub(crate) fn get() -> io::Result<Arc<Self>> {
        let kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(bell) = kept {
            return Ok(bell);
        }
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        // The clock of `fide_pace_socket::now_ns`.
        Ok(Arc::new(Self(timerfd_create(TimerfdClockId::Boottime, flags)?)))
    }

    /// It may be used again.
    pub(crate) fn give_back(self: Arc<Self>) {
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < KEPT_MAX {
            kept.push(self);
        }
    }

    fn set(&self, flags: TimerfdTimerFlags, ns: u64) {
        let once = Itimerspec { it_interval: time(0), it_value: time(ns.max(1)) };
        // It fails for no time that can be said.
        let _ = timerfd_settime(&self.0, flags, &once);
    }

    /// It becomes readable at a time of `fide_pace_socket::now_ns`, if it is not rung before.
    pub(crate) fn set_at(&self, at_ns: u64) {
        self.set(TimerfdTimerFlags::ABSTIME, at_ns);
    }

    /// It becomes readable now.
    pub(crate) fn ring(&self) {
        self.set(TimerfdTimerFlags::empty(), 1);
    }

    /// It is not readable any more.
    pub(crate) fn silence(&self) {
        let _ = read(&self.0, &mut [0; 8]);
    }

    pub(crate) fn fileno(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// Waits until it is readable, but no longer than a time. A signal ends it, too.
    pub(crate) fn wait(&self, within_ns: u64) -> Result<(), Errno> {
        poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&time(within_ns))).map(drop)
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }
}
