// SPDX-License-Identifier: Apache-2.0
//! Ctrl-Z at `fide run`: a process that is suspended fences nobody, so the program is stopped first.
//!
//! SIGTSTP, SIGTTIN and SIGTTOU are blocked: the terminal stops the program, which is in the same process group, and never this
//! process. What was asked for by SIGTSTP is read from a descriptor, the program's control group is frozen, and only then does
//! this process stop itself, so that the shell sees it. After `fg` the program goes on if its host may act.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

/// Receives the terminal's wish to suspend.
#[derive(Debug)]
pub(super) struct Suspensions(OwnedFd);

impl Suspensions {
    /// Blocks the terminal's stop signals in the calling thread and those that it starts. Before any other thread exists.
    pub(super) fn block() -> io::Result<Self> {
        // SAFETY: the set is plain memory that the calls fill; the descriptor is ours alone.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for signal in [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU] {
                libc::sigaddset(&raw mut set, signal);
            }
            if libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
            let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(Self(OwnedFd::from_raw_fd(fd))) }
        }
    }

    /// Whether it is to be suspended. (In the background this process reads and sets no terminal: the other two mean the program.)
    pub(super) fn take(&self) -> bool {
        let mut asked = false;
        loop {
            // SAFETY: plain data; zeroes are a valid value.
            let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
            // SAFETY: the structure is writable for its size.
            let got = unsafe { libc::read(self.0.as_raw_fd(), (&raw mut info).cast(), size_of_val(&info)) };
            if got != isize::try_from(size_of_val(&info)).expect("128") {
                return asked;
            }
            asked |= i32::try_from(info.ssi_signo) == Ok(libc::SIGTSTP);
        }
    }
}

impl AsFd for Suspensions {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Stops this process with all its threads. Returns when somebody has continued it, and not before.
pub(super) fn stop_this() {
    // SAFETY: raise(3) has no preconditions. It is for this very thread, which takes the signal before it returns; one for the process
    // might be taken by another thread, while this one goes on.
    let _ = unsafe { libc::raise(libc::SIGSTOP) };
}

/// Lets all that the terminal has stopped with this process go on.
pub(super) fn continue_all() {
    let _ = rustix::process::kill_process_group(rustix::process::getpgrp(), rustix::process::Signal::CONT);
}
