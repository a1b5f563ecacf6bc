// SPDX-License-Identifier: Apache-2.0
//! `fide.stopped-after`: a server that somebody has stopped (SIGSTOP, a debugger) holds up its group, as it is not
//! dead. A guard beside it turns that into a crash, from which the others go on.
//!
//! The guard is a process of its own that shares the server's memory and descriptors, so that it costs neither: a
//! copy would keep every page that the server changes. It looks at the server's state in /proc, and kills the
//! server when that was *stopped* in [`LOOKS`] looks in a row, over the whole time. A server that is busy, or sleeps,
//! is not killed. Killing is final, so it is right even if somebody continues the server at the same moment: the
//! kernel reports its end as that of every other process. The guard ends with the server.
//!
//! What it does not see: a control group that is frozen, as that stops the guard, too.

use std::{
    ffi::{c_int, c_void},
    fs::File,
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, OwnedFd},
    ptr,
    time::Duration,
};

use rustix::{
    process::{
        Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, getppid, kill_process, pidfd_open,
        pidfd_send_signal, set_parent_process_death_signal, setsid, waitid, waitpid,
    },
    time::{ClockId, Timespec, clock_gettime},
};

/// Looks in a row that have to find the server stopped.
const LOOKS: u32 = 8;
/// Longest time that can be set, ms: a day.
pub(super) const AFTER_MAX_MS: i64 = 86_400_000;
/// Shortest time between two looks.
const LOOK_MIN: Duration = Duration::from_millis(1);
/// Bytes of /proc/PID/stat up to the state: the pid, and the name of at most 15 bytes in parentheses.
const STAT_LEN: usize = 64;
/// Of the guard's stack, which holds a few calls.
const STACK_LEN: usize = 128 << 10;

/// What the guard needs to know.
struct Orders {
    server: Pid,
    stat: File,
    look: Duration,
    after: Duration,
}

/// The guard of this process.
pub(super) struct Guard {
    process: OwnedFd,
    /// In use until the guard has ended.
    _orders: Box<Orders>,
    _stack: Box<[MaybeUninit<u8>]>,
}

impl Guard {
    /// Begins to look.
    ///
    /// # Errors
    /// The kernel makes no process, or /proc is not there.
    pub(super) fn start(after: Duration) -> io::Result<Self> {
        let stat = File::open(format!("/proc/{}/stat", std::process::id()))?;
        let orders = Box::new(Orders { server: getpid(), stat, look: (after / LOOKS).max(LOOK_MIN), after });
        let mut stack = Box::<[u8]>::new_uninit_slice(STACK_LEN);
        let top = stack.as_mut_ptr_range().end;
        let top = top.wrapping_sub(top.addr() % 16);
        // Handlers of the server's signals would run in the guard, on the server's memory.
        let blocked = Blocked::all();
        let flags = libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_FS | libc::SIGCHLD;
        // SAFETY: `watch` runs on a stack of its own and is given orders that both outlive it: they are dropped after
        // `Drop::drop` has awaited its end. It shares this thread's local storage, and uses none: it makes system
        // calls that set no `errno`, allocates nothing, and cannot panic.
        let pid = unsafe { libc::clone(watch, top.cast(), flags, ptr::from_ref(&*orders).cast_mut().cast()) };
        let result = if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(pid) };
        drop(blocked);
        let pid = Pid::from_raw(result?).expect("a process has an id");
        // Redis awaits children that it does not know, too, so the id may be another process' later.
        let process = pidfd_open(pid, PidfdFlags::empty()).inspect_err(|_| {
            let _ = kill_process(pid, Signal::KILL);
            while matches!(waitpid(Some(pid), WaitOptions::empty()), Err(rustix::io::Errno::INTR)) {}
        })?;
        Ok(Self { process, _orders: orders, _stack: stack })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = pidfd_send_signal(&self.process, Signal::KILL);
        // Its memory is freed after that.
        let ended = || waitid(WaitId::PidFd(self.process.as_fd()), WaitIdOptions::EXITED);
        while matches!(ended(), Err(rustix::io::Errno::INTR)) {}
    }
}

/// All signals are blocked in this thread while it lives.
struct Blocked(libc::sigset_t);

impl Blocked {
    fn all() -> Self {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: both are sets that the calls fill in.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            Self(before.assume_init())
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the set that the kernel has returned.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}

/// The guard. See [`Guard::start`] for what it may do.
extern "C" fn watch(orders: *mut c_void) -> c_int {
    // SAFETY: the orders of `Guard::start`, which nobody changes.
    let Orders { server, stat, look, after } = unsafe { &*orders.cast::<Orders>() };
    // What is sent to the server's session is not for the guard.
    let _ = setsid();
    if set_parent_process_death_signal(Some(Signal::KILL)).is_err() || getppid() != Some(*server) {
        return 0;
    }
    let pause = timespec(*look);
    let (mut looks, mut since) = (0_u32, now());
    loop {
        let _ = rustix::thread::nanosleep(&pause);
        let mut text = [0; STAT_LEN];
        let is_stopped = match rustix::io::pread(stat.as_fd(), &mut text, 0) {
            Ok(len) => is_stopped(text.get(..len).unwrap_or_default()),
            Err(_) => false,
        };
        if !is_stopped {
            (looks, since) = (0, now());
            continue;
        }
        looks = looks.saturating_add(1);
        // Its parent is the server, as long as that is not reaped: the id means no other process.
        if looks >= LOOKS && now().saturating_sub(since) >= *after && getppid() == Some(*server) {
            let _ = kill_process(*server, Signal::KILL);
        }
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.cast_unsigned(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Whether a process is stopped, by a signal or a tracer, from its /proc/PID/stat.
fn is_stopped(stat: &[u8]) -> bool {
    // The name may have anything in it, also parentheses.
    let Some(end) = stat.iter().rposition(|byte| *byte == b')') else { return false };
    matches!(stat.get(end + 2), Some(b'T' | b't'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_follows_the_name_whatever_is_in_it() {
        assert!(is_stopped(b"12 (redis-server) T 1 12 12"));
        assert!(is_stopped(b"12 (a) S (b) t 1 12"));
        for stat in [&b"12 (redis-server) S 1"[..], b"12 (T) R 1", b"12 (x)", b"", b"12 (redis"] {
            assert!(!is_stopped(stat), "{}", String::from_utf8_lossy(stat));
        }
    }
}
