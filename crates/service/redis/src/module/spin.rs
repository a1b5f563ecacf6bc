// SPDX-License-Identifier: Apache-2.0
//! Polling for a moment before Redis' loop sleeps: a follower that has just acknowledged something expects
//! the next message soon, and on a virtual machine a sleeping core takes longer to wake than the message took
//! to come. Other threads run between two polls.

use std::{
    os::fd::{BorrowedFd, RawFd},
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Longest time to poll: about a leader's turn.
const LONGEST: Duration = Duration::from_micros(300);
/// Most waits without polling after a poll in vain; they begin with 1 and double each time.
const SKIPPED_MAX: u32 = 64;

/// Whether polling is worth it.
#[derive(Debug)]
pub(super) struct Spin {
    /// Redis' own epoll descriptor: readable if anything at all has come. None: it was not found, and the
    /// loop sleeps at once.
    epoll: Option<RawFd>,
    /// The group has had something for this server since the last wait.
    is_called: bool,
    skips: u32,
    left: u32,
}

impl Spin {
    pub(super) const fn off() -> Self {
        Self { epoll: None, is_called: false, skips: 0, left: 0 }
    }

    /// For the loop with this epoll descriptor.
    pub(super) fn of_loop(epoll: Option<RawFd>) -> Self {
        Self { epoll, ..Self::off() }
    }

    pub(super) fn note_called(&mut self) {
        self.is_called = true;
    }

    /// Polls until something has come, for a moment, if that was worth it lately.
    pub(super) fn wait(&mut self) {
        let Some(epoll) = self.epoll.filter(|_| std::mem::take(&mut self.is_called)) else { return };
        if self.left > 0 {
            self.left -= 1;
            return;
        }
        // SAFETY: Redis' loop is open as long as the process lives.
        let epoll = unsafe { BorrowedFd::borrow_raw(epoll) };
        let begun = Instant::now();
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        while begun.elapsed() < LONGEST {
            let mut polled = [PollFd::new(&epoll, PollFlags::IN)];
            if poll(&mut polled, Some(&at_once)).is_ok_and(|ready| ready > 0) {
                self.skips = 0;
                return;
            }
            rustix::thread::sched_yield();
        }
        self.skips = (2 * self.skips).clamp(1, SKIPPED_MAX);
        self.left = self.skips;
    }
}
