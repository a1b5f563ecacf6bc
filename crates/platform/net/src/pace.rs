// SPDX-License-Identifier: Apache-2.0
//! Waiting until a point in time or until something arrives.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr,
};

use fide_sys::clock::mono_ns;

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
        // SAFETY: no memory is handed over; the descriptor is ours alone.
        let epoll = unsafe {
            let fd = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        Ok(Self { epoll, mode, spun_since_ns: 0 })
    }

    /// Waits for `fd` to become readable too, and reports it as `token`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn add(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN, token)
    }

    /// Waits for `fd` to be written anew: it is reported once for each time, and never has to be read.
    ///
    /// # Errors
    /// The kernel's.
    pub fn add_edge(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN | libc::EPOLLET, token)
    }

    /// Waits for `fd` no longer. Closing it is not enough while another process has it open too.
    ///
    /// # Errors
    /// The kernel's, if it was not waited for.
    pub fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, 0, 0)
    }

    fn control(&self, operation: i32, fd: BorrowedFd<'_>, events: i32, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events.cast_unsigned(), u64: token };
        // SAFETY: the event outlives the call.
        let result = unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, fd.as_raw_fd(), &raw mut event) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
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
        let timeout = libc::timespec {
            tv_sec: (timeout_ns / 1_000_000_000).cast_signed(),
            tv_nsec: (timeout_ns % 1_000_000_000).cast_signed(),
        };
        // SAFETY: the buffer holds READY_MAX events; the timeout outlives the call. epoll_pwait2 is
        // called by number: the C library of Debian 12 exports it, but older ones do not.
        let count = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.epoll.as_raw_fd(),
                ready.events.as_mut_ptr(),
                READY_MAX as libc::c_int,
                &raw const timeout,
                ptr::null::<libc::sigset_t>(),
                0usize,
            )
        };
        ready.count = usize::try_from(count).unwrap_or(0);
        if count < 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        Ok(())
    }
}

/// What a wait reported.
pub struct Ready {
    events: [libc::epoll_event; READY_MAX],
    count: usize,
}

impl Default for Ready {
    fn default() -> Self {
        Self { events: [libc::epoll_event { events: 0, u64: 0 }; READY_MAX], count: 0 }
    }
}

impl Ready {
    /// Tokens of what is readable.
    pub fn tokens(&self) -> impl Iterator<Item = u64> + '_ {
        self.events[..self.count].iter().map(|event| event.u64)
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
