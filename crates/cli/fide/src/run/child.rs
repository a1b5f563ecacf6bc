// SPDX-License-Identifier: Apache-2.0
//! The initial state of a child. `fide run` blocks some signals and limits its own core dumps, and a child
//! inherits both.

use std::{io, os::unix::process::CommandExt, process::Command, sync::OnceLock};

use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};

/// One beyond the last signal.
const SIGNALS_END: i32 = 65;
/// Too small for a core file, and the only limit with which the kernel does not start a program that takes
/// core dumps (core(5)).
const NO_CORE: u64 = 1;

/// The limit that this process was started with.
static CORE: OnceLock<Rlimit> = OnceLock::new();

/// From here on this process dumps no core: during a dump the kernel has ended its threads, but holds back
/// its descriptors and its children's death signal, so a program would run without a fence. Children started
/// by this module get the former limit.
pub(super) fn dump_no_core() {
    dump_none(*CORE.get_or_init(|| getrlimit(Resource::Core)));
}

fn dump_none(former: Rlimit) {
    let wanted = Rlimit { current: Some(NO_CORE), maximum: former.maximum.map(|most| most.max(NO_CORE)) };
    if setrlimit(Resource::Core, wanted).is_err() {
        // The limit is 0 and may not be raised, which prevents core files but not programs that take core
        // dumps. Only in that case, because this setting hides namespaces and descriptors in /proc from
        // agents without CAP_SYS_PTRACE. It ends with the next exec.
        let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    }
}

/// Restores the core dumps that this process was started with. Runs between fork and exec, so it makes only
/// safe calls.
fn dump_core_again(former: Option<Rlimit>) -> io::Result<()> {
    former.map_or(Ok(()), |former| setrlimit(Resource::Core, former).map_err(Into::into))
}

/// Undoes the settings that `fide run` has for itself: no signal is blocked, and core dumps are as before.
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

/// Unblocks all signals in the calling thread. Runs between fork and exec, so it makes only safe calls.
fn unblock_all() -> io::Result<()> {
    // SAFETY: a set on the stack, which sigemptyset(3) fills before pthread_sigmask(3) reads it; both are
    // safe after fork.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        match libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()) {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// The child begins with no signal blocked and none ignored, and dumps core as this process was started to.
pub(super) fn begin_clean(command: &mut Command) {
    begin_as_program(command);
    // SAFETY: between fork and exec only signal(2), which is safe there.
    unsafe {
        command.pre_exec(|| {
            for signal in 1..SIGNALS_END {
                // SIGKILL, SIGSTOP and the C library's own signals refuse, and are never ignored.
                let _ = libc::signal(signal, libc::SIG_DFL);
            }
            Ok(())
        });
    }
}

/// The child begins with no signal blocked, and ignores every signal that can be ignored: service managers
/// signal a whole control group.
pub(crate) fn begin_deaf(command: &mut Command) {
    begin_clean(command);
    // SAFETY: between fork and exec only signal(2), which is safe there.
    unsafe {
        command.pre_exec(|| {
            // A process that ignores SIGCHLD cannot wait for children.
            for signal in (1..SIGNALS_END).filter(|signal| *signal != libc::SIGCHLD) {
                let _ = libc::signal(signal, libc::SIG_IGN);
            }
            Ok(())
        });
    }
}

#[cfg(test)]
#[allow(clippy::print_stdout, reason = "a test that is skipped says so")]
mod tests {
    use super::*;

    /// How a process dumps core that was started with this limit, as a user without rights or not: (its
    /// limit, whether it does at all).
    fn dumps(limit: u64, has_rights: bool) -> (i32, i32) {
        let mut command = Command::new("true");
        // SAFETY: between fork and exec, which never comes, only system calls.
        unsafe {
            command.pre_exec(move || {
                let former = Rlimit { current: Some(limit), maximum: Some(limit) };
                setrlimit(Resource::Core, former)?;
                if !has_rights && libc::setuid(65534) != 0 {
                    return Err(io::Error::last_os_error());
                }
                // What an exec as that user does.
                libc::prctl(libc::PR_SET_DUMPABLE, 1);
                dump_none(former);
                let limit = getrlimit(Resource::Core).current.map_or(99, |limit| i32::try_from(limit).unwrap_or(99));
                Err(io::Error::from_raw_os_error(100 + 10 * limit + libc::prctl(libc::PR_GET_DUMPABLE)))
            });
        }
        let number = command.spawn().expect_err("it ends before").raw_os_error().expect("a number") - 100;
        (number / 10, number % 10)
    }

    #[test]
    fn root_no_inherited_limit_lets_a_process_dump_core() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: not root");
            return;
        }
        for limit in [1, 1 << 20] {
            assert_eq!([true, false].map(|has_rights| dumps(limit, has_rights)), [(1, 1); 2], "{limit}");
        }
        // With this limit programs that take core dumps get them. Root may raise it, but for one without
        // CAP_SYS_RESOURCE.
        assert_eq!(dumps(0, false), (0, 0));
        assert!([(1, 1), (0, 0)].contains(&dumps(0, true)));
    }
}
