// SPDX-License-Identifier: Apache-2.0
//! Ctrl-Z at `fide run`: a suspended process fences nothing, so the program is stopped first.
//!
//! SIGTSTP, SIGTTIN and SIGTTOU are blocked: the terminal stops the program, which is in the same process
//! group, but never this process. A SIGTSTP is read from a descriptor, the program's control group is frozen,
//! and only then does this process stop itself, so that the shell sees it. After `fg` the program continues
//! if its host may act.

use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

/// Receives the terminal's request to suspend.
#[derive(Debug)]
pub(super) struct Suspensions(OwnedFd);

impl Suspensions {
    /// Blocks the terminal's stop signals in the calling thread and in threads that it starts. Call before
    /// any other thread exists.
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

    /// Whether this process is to be suspended. (In the background it reads and sets no terminal: the other
    /// two signals concern the program.)
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

/// Parent, process group and session of a process, from /proc/PID/stat.
fn relations(pid: i32) -> Option<[i32; 3]> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before may contain any character.
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace().skip(1);
    let mut next = || fields.next()?.parse().ok();
    Some([next()?, next()?, next()?])
}

/// Whether no process could continue this one once it is suspended: no member of its process group has a
/// parent in the same session and in another group, as a shell with job control is. (`ssh -t`, `docker exec
/// -t`; POSIX calls the group orphaned.)
pub(super) fn is_orphaned() -> bool {
    let own = i32::try_from(std::process::id()).ok();
    let Some([_, group, session]) = own.and_then(relations) else { return false };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let all = entries.filter_map(|entry| relations(entry.file_name().to_str()?.parse().ok()?));
    let has_keeper = |[parent, of, _]: [i32; 3]| {
        of == group && relations(parent).is_some_and(|[_, other, theirs]| theirs == session && other != group)
    };
    !all.into_iter().any(has_keeper)
}

/// Stops this process with all its threads. Returns only after another process has continued it.
pub(super) fn stop_this() {
    // SAFETY: raise(3) has no preconditions. It signals this thread, which takes the signal before it
    // returns; a signal for the process might be taken by another thread, while this one runs on.
    let _ = unsafe { libc::raise(libc::SIGSTOP) };
}

/// Continues all processes that the terminal has stopped together with this one.
pub(super) fn continue_all() {
    let _ = rustix::process::kill_process_group(rustix::process::getpgrp(), rustix::process::Signal::CONT);
}
