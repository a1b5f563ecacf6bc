// SPDX-License-Identifier: Apache-2.0
//! A lock in memory that several processes share. It is held for the copy of some bytes, which may be those of a file, and not while its
//! holder waits for another one, but for a tenth of a second where an end goes back to TCP.
//!
//! A process may be killed while it holds it. Who waits for it finds out, and takes it: what it protects is not to be trusted then.

use std::{
    cell::Cell,
    hint,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open, test_kill_process},
    thread::{futex, gettid},
};

/// Somebody sleeps for it.
const CONTENDED: u32 = 1 << 31;
/// Looks before a sleep: its holder is done soon.
const LOOKS: u32 = 100;
/// After so long it is asked whether the holder still lives.
const ASKS_AFTER: Duration = Duration::from_millis(100);

/// 0: free. Else the number of the thread that holds it, and [`CONTENDED`].
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Lock(AtomicU32);

/// Why it is not held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    /// Its holder was killed. It is held now, by this thread, and what it protects may be half changed.
    HolderDied,
    /// This thread holds it already: it was interrupted by a signal.
    Own,
}

/// Holds it until it is dropped.
#[derive(Debug)]
pub(crate) struct Held<'a>(&'a Lock);

thread_local! {
    /// The number of this thread; 0: it was not asked for.
    static OWN: Cell<u32> = const { Cell::new(0) };
}

fn own_thread() -> u32 {
    match OWN.get() {
        0 => {
            let own = gettid().as_raw_nonzero().get().cast_unsigned();
            OWN.set(own);
            own
        }
        own => own,
    }
}

/// After a fork, in the child: its thread has another number.
pub(crate) fn in_child() {
    OWN.set(0);
}

impl Lock {
    #[cfg(test)]
    const fn free() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Waits for it.
    ///
    /// # Errors
    /// With [`Lost::HolderDied`] it is held, too.
    pub(crate) fn hold(&self) -> (Option<Held<'_>>, Result<(), Lost>) {
        let own = own_thread();
        let mut looks = 0;
        loop {
            let now = match self.0.compare_exchange_weak(0, own, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return (Some(Held(self)), Ok(())),
                Err(0) => continue,
                Err(now) => now,
            };
            if now & !CONTENDED == own {
                return (None, Err(Lost::Own));
            }
            if looks < LOOKS {
                looks += 1;
                hint::spin_loop();
                continue;
            }
            if self.sleeps(now) && !is_alive(now & !CONTENDED) {
                // Others may sleep for it, too.
                let taken = own | CONTENDED;
                if self.0.compare_exchange(now | CONTENDED, taken, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                    return (Some(Held(self)), Err(Lost::HolderDied));
                }
            }
        }
    }

    /// True: nobody has let it go for a while.
    fn sleeps(&self, now: u32) -> bool {
        let contended = now | CONTENDED;
        if now != contended && self.0.compare_exchange(now, contended, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return false;
        }
        let timeout = ASKS_AFTER.try_into().ok();
        futex::wait(&self.0, futex::Flags::empty(), contended, timeout.as_ref()) == Err(Errno::TIMEDOUT)
    }
}

/// By its number in this process' namespace of numbers: processes that share a connection are of one, as a rule.
fn is_alive(thread: u32) -> bool {
    Pid::from_raw(thread.cast_signed())
        .is_some_and(|thread| test_kill_process(thread) != Err(Errno::SRCH) && !is_zombie(thread))
}

/// Whether it is a process that has ended, and that its parent has not waited for: that may be the one who asks. Other threads than the
/// first one of a process leave nothing.
fn is_zombie(thread: Pid) -> bool {
    let Ok(process) = pidfd_open(thread, PidfdFlags::empty()) else { return false };
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&now)).is_ok_and(|ended| ended > 0)
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.0.0.swap(0, Ordering::Release) & CONTENDED != 0 {
            // All of them: the one that gets it does not know of the others.
            let _ = futex::wake(&self.0.0, futex::Flags::empty(), u32::MAX >> 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Arc, atomic::AtomicU64, mpsc},
        thread,
    };

    use super::*;

    #[test]
    fn one_thread_at_a_time_holds_it() {
        let (lock, count) = (Lock::free(), AtomicU64::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let (held, state) = lock.hold();
                        assert!(held.is_some() && state.is_ok());
                        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), 80_000);
        assert_eq!(lock.0.into_inner(), 0);
    }

    #[test]
    fn holder_that_died_is_found_out() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let dead = child.id();
        child.wait().unwrap();
        let lock = Lock(AtomicU32::new(dead));
        let (held, state) = lock.hold();
        assert!(held.is_some());
        assert_eq!(state, Err(Lost::HolderDied));
        drop(held);
        assert!(lock.hold().1.is_ok(), "it is free again");
    }

    /// Its parent does not wait for it: it may be the one that waits for the lock.
    #[test]
    fn holder_that_died_is_found_out_before_its_parent_waits_for_it() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let lock = Arc::new(Lock(AtomicU32::new(child.id())));
        child.kill().unwrap();
        let (of_thread, (tells, told)) = (Arc::clone(&lock), mpsc::channel());
        thread::spawn(move || tells.send(of_thread.hold().1).unwrap());
        // Each wait is short, should this process be stopped for a while.
        let state = (0..1000).find_map(|_| told.recv_timeout(Duration::from_millis(10)).ok());
        assert_eq!(state, Some(Err(Lost::HolderDied)));
        child.wait().unwrap();
    }

    #[test]
    fn holder_that_lives_is_waited_for() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        assert!(is_alive(child.id()) && is_alive(own_thread()));
        assert!(thread::spawn(own_thread).join().is_ok_and(|thread| !is_alive(thread)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_alive(child.id()));
    }

    #[test]
    fn who_holds_it_does_not_wait_for_itself() {
        let lock = Lock::free();
        let (_held, _) = lock.hold();
        assert_eq!(lock.hold().1, Err(Lost::Own));
    }
}
