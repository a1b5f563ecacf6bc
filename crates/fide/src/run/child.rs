// SPDX-License-Identifier: Apache-2.0
//! What a child begins with. `fide run` blocks some signals and limits its own core dumps, and a child inherits both.

use std::{io, os::unix::process::CommandExt, process::Command, sync::OnceLock};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What is sent to end or to suspend a program.
const DEAF_TO: [i32; 6] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
/// One beyond the last signal.
const SIGNALS_END: i32 = 65;
/// Too small for a core file, and the one limit by which the kernel starts no program that takes core dumps (core(5)).
const NO_CORE: u64 = 1;

/// The limit that this process was started with.
static CORE: OnceLock<Rlimit> = OnceLock::new();

/// This process dumps no core from here on: while it does, the kernel has ended its threads and keeps its descriptors and its
/// children's death signal back, so that a program would run without a fence. (PR_SET_DUMPABLE would do the same, and hide namespaces
/// and descriptors in /proc from agents that have no CAP_SYS_PTRACE.) Children begun by this module get the former limit.
pub(super) fn dump_no_core() {
    let former = *CORE.get_or_init(|| getrlimit(Resource::Core));
    let wanted = Rlimit { current: Some(NO_CORE), maximum: former.maximum.map(|most| most.max(NO_CORE)) };
    // Without the right to raise a limit of 0 there are no core files, either.
    let _ = setrlimit(Resource::Core, wanted);
}

/// The core dumps that this process was to have. Between fork and exec: calls only what is safe there.
fn dump_core_again(former: Option<Rlimit>) -> io::Result<()> {
    former.map_or(Ok(()), |former| setrlimit(Resource::Core, former).map_err(Into::into))
}

/// Settings that `fide run` has for itself are not for the program: no signal is blocked, and core dumps are as they were.
pub(super) fn begin_as_program(command: &mut Command) {
    let former = CORE.get().copied();
    // SAFETY: between fork and exec only setrlimit(2) and `unblock_all`, which are safe there.
    unsafe {
        command.pre_exec(move || {
            dump_core_again(former)?;
            unblock_all()
        });
    }
}

/// Nothing is blocked in the calling thread any more. Between fork and exec: calls only what is safe there.
fn unblock_all() -> io::Result<()> {
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

/// The child begins with no signal blocked and none ignored, and dumps core as this process was to.
pub(super) fn begin_clean(command: &mut Command) {
    begin_as_program(command);
    // SAFETY: between fork and exec only signal(2), which is safe there.
    unsafe {
        command.pre_exec(|| {
            for signal in 1..SIGNALS_END {
                // SIGKILL, SIGSTOP and those of the C library refuse, and are never ignored.
                let _ = libc::signal(signal, libc::SIG_DFL);
            }
            Ok(())
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
