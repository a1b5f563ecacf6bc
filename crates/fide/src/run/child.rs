// SPDX-License-Identifier: Apache-2.0
//! Signals that a child begins with. `fide run` blocks some, and a child inherits what is blocked and what is ignored.

use std::{io, os::unix::process::CommandExt, process::Command};

/// What is sent to end or to suspend a program.
const DEAF_TO: [i32; 6] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
/// One beyond the last signal.
const SIGNALS_END: i32 = 65;

/// Nothing is blocked in the calling thread any more. Between fork and exec: calls only what is safe there.
pub(super) fn unblock_all() -> io::Result<()> {
    // SAFETY: a set on the stack, which sigemptyset(3) fills before pthread_sigmask(3) reads it; both are safe after fork.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        match libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()) {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// The child begins with no signal blocked and none ignored.
pub(super) fn begin_clean(command: &mut Command) {
    // SAFETY: between fork and exec only signal(2) and `unblock_all`, which are safe there.
    unsafe {
        command.pre_exec(|| {
            for signal in 1..SIGNALS_END {
                // SIGKILL, SIGSTOP and those of the C library refuse, and are never ignored.
                let _ = libc::signal(signal, libc::SIG_DFL);
            }
            unblock_all()
        });
    }
}

/// The child begins with no signal blocked, and ignores what is sent to end or to suspend a program.
pub(super) fn begin_deaf(command: &mut Command) {
    begin_clean(command);
    // SAFETY: between fork and exec only signal(2), which is safe there.
    unsafe {
        command.pre_exec(|| {
            for signal in DEAF_TO {
                let _ = libc::signal(signal, libc::SIG_IGN);
            }
            Ok(())
        });
    }
}
