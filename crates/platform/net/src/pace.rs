// SPDX-License-Identifier: Apache-2.0
//! Waiting until a point in time or until something arrives.

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
};

use fide_sys::clock::mono_ns;
use rustix::event::{
    Timespec,
    epoll::{self, CreateFlags, Event, EventData, EventFlags},
};

/// How the loop waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Blocks in the kernel; a core is shared with other work.
    Sleep,
    /// Spins, and steps aside for [`YIELD_NS`] after every [`SPIN_NS`]: a thread that never does
    /// is taken off its core for 50 ms a second by the kernel's fair server.
    Busy,
}

/// Longest uninterrupted spin.
pub const SPIN_NS: u64 = 1_000_000;
/// Sleep between two spins.
pub const YIELD_NS: u64 = 100_000;
/// Descriptors one [`Waiter::wait`] reports at most.
pub const READY_MAX: usize = 16;

/// An epoll set with nanosecond timeouts.
#[derive(Debug)]
pub struct Waiter {
    epoll: OwnedFd,
    mode: Mode,
    spun_since_ns: u64,
}

impl Waiter {
    /// An empty set.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(mode: Mode) -> io::Result<Self> {
        Ok(Self { epoll: epoll::create(CreateFlags::CLOEXEC)?, mode, spun_since_ns: 0 })
    }

    /// Waits for `fd` to become readable too, and reports it as `token`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn add(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, EventData::new_u64(token), EventFlags::IN)?)
    }

    /// Waits for `fd` to be written anew: it is reported once for each time, and never has to be read.
    ///
    /// # Errors
    /// The kernel's.
    pub fn add_edge(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, EventData::new_u64(token), EventFlags::IN | EventFlags::ET)?)
    }

    /// Waits for `fd` no longer. Closing it is not enough while another process has it open too.
    ///
    /// # Errors
    /// The kernel's, if it was not waited for.
    pub fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, fd)?)
    }

    /// Waits until `deadline_ns` or until something is readable; `ready` gets the tokens. In busy
    /// mode it returns at once with what there is, and sleeps only when its spin is used up.
    ///
    /// # Errors
    /// The kernel's; an interruption by a signal counts as nothing ready.
    pub fn wait(&mut self, deadline_ns: u64, ready: &mut Ready) -> io::Result<()> {
        let now = mono_ns();
        let timeout_ns = match self.mode {
            Mode::Sleep => deadline_ns.saturating_sub(now),
            Mode::Busy if now.saturating_sub(self.spun_since_ns) < SPIN_NS => 0,
            Mode::Busy => {
                self.spun_since_ns = now + YIELD_NS;
                YIELD_NS.min(deadline_ns.saturating_sub(now))
            }
        };
        let timeout = Timespec {
            tv_sec: (timeout_ns / 1_000_000_000).cast_signed(),
            tv_nsec: (timeout_ns % 1_000_000_000).cast_signed(),
        };
        ready.count = 0;
        match epoll::wait(&self.epoll, &mut ready.events[..], Some(&timeout)) {
            Ok(count) => ready.count = count,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(())
    }
}

/// What a wait reported.
pub struct Ready {
    events: [Event; READY_MAX],
    count: usize,
}

impl Default for Ready {
    fn default() -> Self {
        let none = Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        Self { events: [none; READY_MAX], count: 0 }
    }
}

impl Ready {
    /// Tokens of what is readable.
    pub fn tokens(&self) -> impl Iterator<Item = u64> + '_ {
        self.events[..self.count].iter().map(|event| event.data.u64())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_wait_ends_at_its_deadline_and_not_before() {
        let mut waiter = Waiter::new(Mode::Sleep).expect("epoll");
        let mut ready = Ready::default();
        let deadline = mono_ns() + 3_000_000;
        waiter.wait(deadline, &mut ready).expect("wait");
        assert!(mono_ns() >= deadline);
        assert_eq!(ready.tokens().count(), 0);
    }

    #[test]
    fn an_edge_is_named_once_and_a_removed_one_not_at_all() {
        let mut waiter = Waiter::new(Mode::Sleep).expect("epoll");
        let flags = rustix::event::EventfdFlags::NONBLOCK;
        let bell = rustix::event::eventfd(0, flags).expect("eventfd");
        let other_end = bell.try_clone().expect("descriptor");
        waiter.add_edge(bell.as_fd(), 7).expect("add");
        let mut ready = Ready::default();
        let mut rung = |waiter: &mut Waiter| {
            waiter.wait(mono_ns(), &mut ready).expect("wait");
            ready.tokens().collect::<Vec<_>>()
        };
        for _ in 0..2 {
            rustix::io::write(&other_end, &1u64.to_ne_bytes()).expect("rung");
            assert_eq!(rung(&mut waiter), [7]);
            assert_eq!(rung(&mut waiter), []);
        }
        waiter.remove(bell.as_fd()).expect("remove");
        drop(bell);
        rustix::io::write(&other_end, &1u64.to_ne_bytes()).expect("rung");
        assert_eq!(rung(&mut waiter), []);
    }

    #[test]
    fn what_is_readable_is_named() {
        for mode in [Mode::Sleep, Mode::Busy] {
            let mut waiter = Waiter::new(mode).expect("epoll");
            let (reader, writer) = rustix::pipe::pipe().expect("pipe");
            waiter.add(reader.as_fd(), 42).expect("add");
            rustix::io::write(&writer, b"x").expect("write");
            let mut ready = Ready::default();
            waiter.wait(mono_ns() + 1_000_000_000, &mut ready).expect("wait");
            assert_eq!(ready.tokens().collect::<Vec<_>>(), [42]);
        }
    }
}
