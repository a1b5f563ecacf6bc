// SPDX-License-Identifier: Apache-2.0
//! When a program is stopped and may go on: a margin before its lease ends, from a thread of real-time priority.
//!
//! This is best effort. The thread may not run for as long as the whole machine does not, and then the
//! program runs on until it is stopped; a write that is under way is not taken back. Storage that must never
//! accept a late write refuses old fencing tokens ([`fide_client::Token`]).

use fide_sys::clock::mono_ns;
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use fide_client::Live;
use fide_net::isolation::{LOOP_PRIORITY, lock_memory, set_fifo};
use rustix::{
    event::{EventfdFlags, eventfd},
    thread::{ClockId, NanosleepRelativeResult, Timespec, clock_nanosleep_relative},
};

use super::{
    network::Network,
    stopper::{Stopper, is_out_of_reach},
};
use crate::say::say;

/// While stopped, how often to look whether it may go on.
const LOOK_STOPPED_NS: u64 = 2_000_000;
/// Longest time between two looks, so that the thread ends soon.
const LOOK_MAX_NS: u64 = 50_000_000;
/// Shortest time between two looks, so that a lease about to end takes no core.
const LOOK_MIN_NS: u64 = 100_000;
/// The margin is at most the longest recent lease divided by this; otherwise short leases would never be long
/// enough.
const MARGIN_PART: u64 = 4;
/// At each look the longest lease seen is reduced by itself divided by this.
const FORGET_PART: u64 = 64;

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Nothing,
    Stop,
    GoOn,
}

/// The decision alone.
#[derive(Debug)]
pub(super) struct Fence {
    margin_max_ns: u64,
    longest_ns: u64,
    stopped: bool,
}

impl Fence {
    /// Begins stopped or running.
    pub(super) fn new(margin_max_ns: u64, stopped: bool) -> Self {
        Self { margin_max_ns, longest_ns: 0, stopped }
    }

    fn margin_ns(&self) -> u64 {
        self.margin_max_ns.min(self.longest_ns / MARGIN_PART)
    }

    /// The program was not continued: the lease ended before that.
    fn stopped_again(self) -> Self {
        Self { stopped: true, ..self }
    }

    /// A look at the lease: what to do, and after how long to look again.
    pub(super) fn look(&mut self, now_ns: u64, until_ns: u64) -> (Act, u64) {
        let left_ns = until_ns.saturating_sub(now_ns);
        self.longest_ns = left_ns.max(self.longest_ns - self.longest_ns / FORGET_PART);
        let margin_ns = self.margin_ns();
        match self.stopped {
            // Twice the margin, so that it does not stop again at once.
            true if left_ns > 2 * margin_ns => {
                self.stopped = false;
                (Act::GoOn, LOOK_MIN_NS)
            }
            true => (Act::Nothing, LOOK_STOPPED_NS),
            false if left_ns <= margin_ns => {
                self.stopped = true;
                (Act::Stop, LOOK_STOPPED_NS)
            }
            false => (Act::Nothing, (left_ns - margin_ns).clamp(LOOK_MIN_NS, LOOK_MAX_NS)),
        }
    }
}

/// How many complaints are kept until they are fetched.
const COMPLAINTS_MAX: usize = 64;

struct Shared {
    /// The program is to be stopped, and may be stopped already. Set before it is stopped, and cleared after
    /// it continues.
    to_be_stopped: AtomicBool,
    /// All of the fence is in force: the program is stopped, and the network is fenced.
    stopped: AtomicBool,
    /// The program is to be stopped, whatever the lease is.
    held: AtomicBool,
    out_of_reach: AtomicBool,
    ending: AtomicBool,
    complaints: Mutex<Vec<String>>,
    changed: OwnedFd,
}

/// The thread that keeps a program in step with its lease.
pub(super) struct Keeper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Keeper {
    /// Begins with a program that runs, or is about to. `kills`: kill it instead of stopping it.
    ///
    /// # Errors
    /// A thread or descriptor cannot be made.
    pub(super) fn begin(
        live: Live,
        stopper: Arc<Stopper>,
        network: Network,
        margin_max_ns: u64,
        kills: bool,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            to_be_stopped: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            held: AtomicBool::new(false),
            out_of_reach: AtomicBool::new(false),
            complaints: Mutex::new(Vec::new()),
            ending: AtomicBool::new(false),
            changed: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        let theirs = Arc::clone(&shared);
        let fence = Fence::new(margin_max_ns, false);
        let (granted, urgent) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("fence".into()).spawn(move || {
            // Lower than the priority of the agent's loop, which has to prove that this host is heard.
            let _ = granted.send(set_fifo(LOOP_PRIORITY - 2));
            let result = turns(&live, &stopper, network, fence, kills, &theirs);
            let _ = rustix::io::write(&theirs.changed, &1u64.to_ne_bytes());
            result
        })?;
        let memory = lock_memory();
        let rungs = [
            urgent
                .recv()
                .map_err(io::Error::other)?
                .err()
                .map(|error| format!("no real-time priority: {error}; needs CAP_SYS_NICE")),
            (!memory.held()).then(|| format!("memory is not locked: {}", memory.text())),
        ];
        for missing in rungs.into_iter().flatten() {
            say!("fide: the fence may come late under load ({missing})");
        }
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Whether the program is stopped now.
    pub(super) fn stopped(&self) -> bool {
        self.shared.stopped.load(Ordering::SeqCst)
    }

    /// Stops the program and keeps it stopped, whatever the lease is; or returns it to its lease. The thread
    /// does so at its next look.
    pub(super) fn hold(&self, held: bool) {
        self.shared.held.store(held, Ordering::SeqCst);
    }

    /// Whether the program is to be stopped, or is stopped already. A caller that continues it for another
    /// reason checks before and after that.
    pub(super) fn is_to_be_stopped(&self) -> bool {
        self.shared.to_be_stopped.load(Ordering::SeqCst)
    }

    /// Whether the program could not be stopped, because it runs as another user.
    pub(super) fn is_out_of_reach(&self) -> bool {
        self.shared.out_of_reach.load(Ordering::SeqCst)
    }

    /// Failures since the last call.
    pub(super) fn complaints(&self) -> Vec<String> {
        self.shared.complaints.lock().map(|mut list| std::mem::take(&mut *list)).unwrap_or_default()
    }

    /// Takes the readiness of the descriptor back.
    pub(super) fn quiet(&self) {
        let _ = rustix::io::read(&self.shared.changed, &mut [0; 8]);
    }

    /// Ends the thread, and returns its failure.
    pub(super) fn end(&mut self) -> io::Result<()> {
        self.shared.ending.store(true, Ordering::SeqCst);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(io::Error::other("the fence's thread panicked")),
            None => Ok(()),
        }
    }

    /// Whether the thread has ended by itself: then nothing stops the program at the end of its lease.
    pub(super) fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

impl AsFd for Keeper {
    /// Readable once the program was stopped or continued, or the thread has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.changed.as_fd()
    }
}

/// Records that the program refuses signals; the rest of the fence still takes place.
fn reached(done: io::Result<()>, shared: &Shared) -> io::Result<()> {
    match done {
        Err(error) if is_out_of_reach(&error) => {
            shared.out_of_reach.store(true, Ordering::SeqCst);
            Ok(())
        }
        done => done,
    }
}

/// Keeps failures until they are fetched.
fn note(shared: &Shared, wrong: impl IntoIterator<Item = String>) {
    if let Ok(mut list) = shared.complaints.lock() {
        let room = COMPLAINTS_MAX.saturating_sub(list.len());
        list.extend(wrong.into_iter().take(room));
    }
}

/// A killed program does not continue, whatever the lease is later, and its network stays fenced.
fn turns(
    live: &Live,
    stopper: &Stopper,
    mut network: Network,
    mut fence: Fence,
    kills: bool,
    shared: &Shared,
) -> io::Result<()> {
    while !shared.ending.load(Ordering::SeqCst) {
        let lease = || if shared.held.load(Ordering::SeqCst) { 0 } else { live.lease_until_ns() };
        let (act, wait_ns) = fence.look(mono_ns(), lease());
        if act == Act::Stop || act == Act::GoOn && !kills {
            let wrong = if act == Act::Stop {
                shared.to_be_stopped.store(true, Ordering::SeqCst);
                // Independent of later events, and of whether the main thread looks meanwhile.
                if !kills || network.is_fenced_at_all() {
                    reached(stopper.stop(), shared)?;
                }
                // After the program is stopped, because the program acts; before it is killed, because the
                // kernel would send the data of a dead one.
                let wrong = network.fence(mono_ns(), || stopper.pids());
                if kills {
                    reached(stopper.kill(), shared)?;
                } else {
                    stopper.stop_outside();
                }
                wrong
            } else {
                let wrong = network.lift(mono_ns());
                // The fence took a while.
                if lease() <= mono_ns() {
                    fence = fence.stopped_again();
                    let again = network.fence(mono_ns(), || stopper.pids());
                    note(shared, wrong.into_iter().chain(again));
                    continue;
                }
                reached(stopper.go_on(), shared)?;
                shared.to_be_stopped.store(false, Ordering::SeqCst);
                wrong
            };
            note(shared, wrong);
            shared.stopped.store(act == Act::Stop, Ordering::SeqCst);
            let _ = rustix::io::write(&shared.changed, &1u64.to_ne_bytes());
        } else if shared.stopped.load(Ordering::SeqCst) {
            if kills {
                stopper.kill_again();
            } else {
                reached(stopper.stop_again(), shared)?;
            }
            let done = network.retry(mono_ns(), || stopper.pids());
            if !done.is_empty() {
                note(shared, done);
                let _ = rustix::io::write(&shared.changed, &1u64.to_ne_bytes());
            }
        } else {
            let done = network.retry_to_lift(mono_ns());
            if !done.is_empty() {
                note(shared, done);
                let _ = rustix::io::write(&shared.changed, &1u64.to_ne_bytes());
            }
        }
        let wait = Timespec { tv_sec: 0, tv_nsec: wait_ns.min(999_999_999).cast_signed() };
        // A wait ends with a suspension of the host: the lease has ended meanwhile.
        match clock_nanosleep_relative(ClockId::Boottime, &wait) {
            NanosleepRelativeResult::Ok | NanosleepRelativeResult::Interrupted(_) => {}
            NanosleepRelativeResult::Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn program_stops_a_margin_before_its_lease_ends() {
        let mut fence = Fence::new(MS, false);
        assert_eq!(fence.look(0, 12 * MS), (Act::Nothing, 11 * MS));
        assert_eq!(fence.look(11 * MS, 12 * MS).0, Act::Stop);
        assert_eq!(fence.look(20 * MS, 12 * MS), (Act::Nothing, LOOK_STOPPED_NS));
        assert_eq!(fence.look(21 * MS, 23 * MS).0, Act::Nothing, "so little would stop it again at once");
        assert_eq!(fence.look(22 * MS, 34 * MS).0, Act::GoOn);
        assert_eq!(fence.look(23 * MS, 0).0, Act::Stop, "another incarnation's");
    }

    #[test]
    fn short_leases_leave_time_to_run() {
        let mut fence = Fence::new(MS, false);
        for turn in 0..1000 {
            let now = turn * MS / 10;
            assert_eq!(fence.look(now, now + MS).0, Act::Nothing, "at {now}");
        }
        assert_eq!(fence.look(200 * MS, 200 * MS + MS / 10).0, Act::Stop);
    }

    #[test]
    fn shrinking_lease_does_not_stop_a_program_for_ever() {
        let mut fence = Fence::new(20 * MS, false);
        assert_eq!(fence.look(0, 100 * MS).0, Act::Nothing);
        let goes_on = (1..2000).any(|turn| fence.look(turn * MS, turn * MS + 4 * MS).0 == Act::GoOn);
        assert!(goes_on, "the margin follows the leases");
    }

    #[test]
    fn lease_without_end_never_stops_it() {
        let mut fence = Fence::new(MS, true);
        assert_eq!(fence.look(MS, u64::MAX).0, Act::GoOn);
        assert_eq!(fence.look(2 * MS, u64::MAX), (Act::Nothing, LOOK_MAX_NS));
    }
}
