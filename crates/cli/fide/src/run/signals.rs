// SPDX-License-Identifier: Apache-2.0
//! Signals sent to `fide run` and `fide guard`. None that a program may handle ends the supervisor while its
//! program lives: an unfenced program would be left behind.
//!
//! | signal | `fide run` | `fide guard` |
//! |---|---|---|
//! | TERM, INT, QUIT | passed on unchanged. While the program is stopped by a fence, the second one kills it | lets the program go, and ends |
//! | HUP, USR1, USR2, WINCH, ALRM, ABRT, real-time signals and all others | passed on unchanged | ignored |
//! | TSTP, TTIN, TTOU | see [`super::job`] | the same |
//! | CHLD, CONT, PIPE | not passed on: they concern the supervisor, and CONT would lift a fence | ignored |
//! | ILL, TRAP, BUS, FPE, SEGV, SYS | not passed on: they say that the supervisor itself is broken. They end it, and the warden kills the program | end it |
//! | KILL, STOP | cannot be caught. KILL: the warden kills the program. STOP: nothing fences the program until CONT | |
//!
//! The terminal sends its signals (Ctrl-C, Ctrl-\, a resize, a hang-up) to a whole process group. A program
//! in the group of `fide run` has such a signal already, so it is not sent again. What a process sends with
//! kill(2) to a whole group arrives twice, because the kernel does not say that it went to a group. A value
//! sent with sigqueue(3) is not passed on.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use rustix::process::{Pid, Signal, getpgid, getpgrp, getpid, getsid};

/// Not taken from the descriptor: they concern only this process, or [`super::job::Suspensions`] takes them.
const LEFT_ALONE: [i32; 12] = [
    libc::SIGCHLD,
    libc::SIGCONT,
    libc::SIGPIPE,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGSEGV,
    libc::SIGSYS,
];

/// Receives every other signal that can be caught.
#[derive(Debug)]
pub(super) struct Signals(OwnedFd);

/// A signal that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) signal: Signal,
    /// From the kernel: the terminal, or a limit of this process.
    by_kernel: bool,
}

impl Signals {
    /// Blocks the signals in the calling thread and in threads that it starts, and receives them instead.
    /// Call before any other thread exists.
    pub(super) fn block() -> io::Result<Self> {
        // SAFETY: the set is plain memory that the calls fill; the descriptor is ours alone.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            // Without the C library's own signals.
            libc::sigfillset(&raw mut set);
            for signal in LEFT_ALONE {
                libc::sigdelset(&raw mut set, signal);
            }
            if libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
            let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(Self(OwnedFd::from_raw_fd(fd))) }
        }
    }

    /// The next signal, if there is one.
    pub(super) fn take(&self) -> Option<Received> {
        // SAFETY: plain data; zeroes are a valid value.
        let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
        // SAFETY: the structure is writable for its size.
        let got = unsafe { libc::read(self.0.as_raw_fd(), (&raw mut info).cast(), size_of_val(&info)) };
        if got != isize::try_from(size_of_val(&info)).expect("128") {
            return None;
        }
        let number = i32::try_from(info.ssi_signo).ok()?;
        // SAFETY: the kernel has just delivered this number, and the set holds none that the C library keeps
        // for itself.
        let signal = unsafe { Signal::from_raw_unchecked(number) };
        Some(Received { signal, by_kernel: info.ssi_code == libc::SI_KERNEL })
    }

    /// Takes all signals that have come. True if one of them asks for the end.
    pub(super) fn take_end(&self) -> bool {
        std::iter::from_fn(|| self.take()).fold(false, |ends, received| ends | received.asks_to_end())
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Received {
    /// Whether it asks for the end of the program.
    pub(super) fn asks_to_end(self) -> bool {
        [Signal::TERM, Signal::INT, Signal::QUIT].contains(&self.signal)
    }

    /// Whether the program `of` has to get the same signal: it has not got it yet, and the signal concerns
    /// more than this process.
    pub(super) fn is_to_be_passed_on(self, of: Option<Pid>) -> bool {
        let shares_group = || of.is_some_and(|pid| getpgid(Some(pid)) == Ok(getpgrp()));
        match self.signal.as_raw() {
            _ if !self.by_kernel => true,
            libc::SIGINT | libc::SIGQUIT | libc::SIGWINCH => !shares_group(),
            // At a hang-up, the terminal signals only the leader of its session.
            libc::SIGHUP => getsid(None) == Ok(getpid()) || !shares_group(),
            // Limits of this process (SIGXCPU, SIGXFSZ).
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::process::CommandExt, process::Command};

    use super::*;

    fn own() -> Option<Pid> {
        Some(getpid())
    }

    fn received(signal: Signal, by_kernel: bool) -> Received {
        Received { signal, by_kernel }
    }

    #[test]
    fn terminals_signals_are_passed_on_to_another_process_group_only() {
        let mut other = Command::new("sleep").arg("600").process_group(0).spawn().expect("started");
        let of_another_group = i32::try_from(other.id()).ok().and_then(Pid::from_raw);
        for signal in [Signal::INT, Signal::QUIT, Signal::WINCH] {
            assert!(!received(signal, true).is_to_be_passed_on(own()), "{signal:?}");
            assert!(received(signal, true).is_to_be_passed_on(of_another_group), "{signal:?}");
            assert!(received(signal, false).is_to_be_passed_on(own()), "{signal:?}");
        }
        assert!(!received(Signal::XCPU, true).is_to_be_passed_on(of_another_group), "a limit of this process");
        other.kill().expect("killed");
        other.wait().expect("reaped");
    }

    #[test]
    fn three_signals_ask_for_the_end() {
        let ends = |signal| received(signal, false).asks_to_end();
        assert!([Signal::TERM, Signal::INT, Signal::QUIT].into_iter().all(ends));
        assert!(![Signal::HUP, Signal::USR1, Signal::ABORT].into_iter().any(ends));
    }
}
