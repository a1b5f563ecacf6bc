// SPDX-License-Identifier: Apache-2.0
//! Signals as a descriptor, so that the control thread handles them between two requests.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

/// An operator's request by signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM, SIGINT: leave.
    Stop,
    /// SIGHUP: read the key file again.
    Reload,
}

/// Receives the signals.
#[derive(Debug)]
pub struct Signals(OwnedFd);

impl Signals {
    /// Blocks the signals in the calling thread and those it starts, and receives them instead.
    /// To be called before any other thread exists.
    ///
    /// # Errors
    /// The kernel's.
    pub fn block() -> io::Result<Self> {
        // SAFETY: the set is plain memory that the calls fill; the descriptor is ours alone.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
                libc::sigaddset(&raw mut set, signal);
            }
            if libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
            let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(Self(OwnedFd::from_raw_fd(fd))) }
        }
    }

    /// The next signal, if there is one.
    #[must_use]
    pub fn take(&self) -> Option<Signal> {
        // SAFETY: plain data; zeroes are a valid value.
        let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
        // SAFETY: the structure is writable for its size.
        let got = unsafe { libc::read(self.0.as_raw_fd(), (&raw mut info).cast(), size_of_val(&info)) };
        if got != isize::try_from(size_of_val(&info)).expect("128") {
            return None;
        }
        match i32::try_from(info.ssi_signo) {
            Ok(libc::SIGHUP) => Some(Signal::Reload),
            _ => Some(Signal::Stop),
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
