// SPDX-License-Identifier: Apache-2.0
//! The memory shared with the agent: alive table, session, event ring.

use crate::error::Error;
use crate::permit::{Permit, View, ViewId};
use fide_agent_api::event::EVENT_MAX;
use fide_agent_api::protocol::{EventsVia, HELLO_FDS, HelloOk};
use fide_agent_api::session::{Beat, ClientSession};
use fide_agent_api::table::{LEASE_FOREVER_NS, TableReader, ViewRecord, ViewUnreadable};
use fide_shm::bpf_ring::BpfRing;
use fide_shm::swap::Swap;
use fide_sys::clock;
use rustix::{
    fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Itimerspec, TimerfdTimerFlags, Timespec},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

/// CLOCK_MONOTONIC in nanoseconds; no system call (vDSO).
pub fn now_ns() -> u64 {
    clock::mono_ns()
}

/// Checks that this process has the agent's clocks. Otherwise the agent's lease would mean nothing here.
fn same_clocks(table: &TableReader) -> Result<(), Error> {
    let (agent, own) = (table.time_namespace(), clock::time_namespace());
    if agent == own { Ok(()) } else { Err(Error::TimeNamespace { agent, own }) }
}

/// Where a lease with `left_ns` ends on CLOCK_MONOTONIC, which was read as `now_ns` before the lease: never
/// too late.
fn until_ns(now_ns: u64, left_ns: u64) -> u64 {
    match left_ns {
        0 => 0,
        LEASE_FOREVER_NS => LEASE_FOREVER_NS,
        left_ns => now_ns.saturating_add(left_ns),
    }
}

/// The memory and descriptors in the agent's reply to `hello`.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) table: Arc<TableReader>,
    pub(crate) session: ClientSession,
    ring: Option<BpfRing>,
    events: OwnedFd,
    /// Wakes the agent; `None` if the agent offers none.
    bell: Option<OwnedFd>,
}

impl Memory {
    /// Maps and checks the descriptors.
    pub(crate) fn map(hello: &HelloOk, fds: Vec<OwnedFd>) -> Result<Self, Error> {
        let mut fds = fds;
        let bell = if fds.len() > HELLO_FDS { fds.pop() } else { None };
        let [table, session, events]: [OwnedFd; HELLO_FDS] = fds.try_into().map_err(|fds: Vec<OwnedFd>| {
            let problem = format!("{} descriptors, not {HELLO_FDS} (has this program too many files open?)", fds.len());
            Error::Protocol { op: "hello", problem }
        })?;
        let ring = match hello.events {
            EventsVia::Bpf => Some(BpfRing::open(events.as_fd())?),
            EventsVia::Shm => None,
        };
        let table = Arc::new(TableReader::map(table.as_fd())?);
        same_clocks(&table)?;
        Ok(Self { table, session: ClientSession::map(session)?, ring, events, bell })
    }

    /// Wakes the agent for the messages left in the session's memory.
    pub(crate) fn ring(&self) {
        if let Some(bell) = &self.bell {
            // A full counter (`EAGAIN`) has rung already.
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
    }

    /// The descriptor to wait on for events.
    pub(crate) fn events_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Whether no event waits: one load, for spinning.
    pub(crate) fn is_empty(&self) -> bool {
        self.ring.as_ref().is_none_or(BpfRing::is_empty) && self.session.inbox_is_empty()
    }

    /// Clears the wake-up before draining, so that no event in between is missed.
    pub(crate) fn acknowledge(&self) {
        if self.ring.is_none() {
            // A timer (an eventfd of former agents) returns its whole count in one read. A blocking one was
            // reported readable.
            let _ = rustix::io::read(&self.events, &mut [0; 8]);
        }
    }

    /// Wakes the own epoll once more, after a bounded drain has left records.
    pub(crate) fn wake_again(&self) {
        if self.ring.is_none() {
            let once = Itimerspec {
                it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
                it_value: Timespec { tv_sec: 0, tv_nsec: 1 },
            };
            if rustix::time::timerfd_settime(&self.events, TimerfdTimerFlags::empty(), &once).is_err() {
                // A former agent's eventfd. A full counter (`EAGAIN`) wakes as well.
                let _ = rustix::io::write(&self.events, &1u64.to_ne_bytes());
            }
        }
    }

    /// Passes at most `limit` records to `each`. Returns how many there were.
    pub(crate) fn drain(&mut self, limit: usize, mut each: impl FnMut(&[u8])) -> Result<usize, Error> {
        let mut records = match &mut self.ring {
            Some(ring) => ring.drain(limit, &mut each)?,
            None => 0,
        };
        let mut buffer = [0; EVENT_MAX];
        while records < limit
            && let Some(bytes) = self.session.pop_inbox(&mut buffer)?
        {
            records += 1;
            each(bytes);
        }
        Ok(records)
    }

    pub(crate) fn live(&self) -> Maps {
        Maps { table: Arc::clone(&self.table), beat: self.session.beat() }
    }
}

/// The part of the memory that any thread may use.
#[derive(Debug)]
pub(crate) struct Maps {
    pub(crate) table: Arc<TableReader>,
    pub(crate) beat: Beat,
}

/// Attempts to read view and lease of one moment; views do not change more often.
const VIEW_LOOKS_MAX: usize = 4;

/// A view, and a lease that was read while that view held. No lease (0) if the view changes at each
/// attempt.
fn of_one_moment<V: PartialEq>(mut view: impl FnMut() -> V, mut lease: impl FnMut() -> (u64, u64)) -> (V, (u64, u64)) {
    let mut before = view();
    let mut now_ns = 0;
    for _ in 0..VIEW_LOOKS_MAX {
        let (asked_ns, left_ns) = lease();
        let after = view();
        if after == before {
            return (before, (asked_ns, left_ns));
        }
        (before, now_ns) = (after, asked_ns);
    }
    (before, (now_ns, 0))
}

/// A permit of one moment. None without a lease, and none if the view cannot be read: a role may follow
/// from the view, and the token does.
fn permit(
    host_id: u16,
    incarnation: u32,
    view: impl FnMut() -> Result<Option<ViewRecord>, ViewUnreadable>,
    lease: impl FnMut() -> (u64, u64),
) -> Option<Permit> {
    let (view, (now_ns, left_ns)) = of_one_moment(view, lease);
    let view = view.ok()?.map(|view| View {
        id: ViewId { generation: view.generation, number: view.number },
        members: view.members,
        settled_ns: view.settled_ns,
    });
    let until_ns = until_ns(now_ns, left_ns);
    (left_ns != 0).then_some(Permit { host_id, incarnation, now_ns, until_ns, view })
}

/// The lock-free part of a client, for any number of threads: whether this host may act, what is known of
/// others, "I make progress". Follows the client from agent to agent. No call makes a system call.
///
/// A lease counts for the incarnation of this host under which the program runs: the agent's at `connect`,
/// later the last one acknowledged ([`crate::Client::rejoined_acknowledge`]). When the host was excluded,
/// or its agent started anew, others were notified that everything here is dead, and may have replaced it.
#[derive(Clone)]
pub struct Live(Arc<Shared>);

struct Shared {
    maps: Swap<Maps>,
    /// The incarnation that the program has acknowledged.
    acknowledged: AtomicU32,
}

impl Live {
    pub(crate) fn new(maps: Maps, incarnation: u32) -> Self {
        Self(Arc::new(Shared { maps: Swap::new(maps), acknowledged: AtomicU32::new(incarnation) }))
    }

    pub(crate) fn replace(&self, maps: Maps) {
        self.0.maps.replace(maps);
    }

    pub(crate) fn acknowledge(&self, incarnation: u32) {
        self.0.acknowledged.store(incarnation, Ordering::SeqCst);
    }

    fn with<R>(&self, look: impl FnOnce(&Maps) -> R) -> R {
        self.0.maps.with(look)
    }

    /// The incarnation of this host that the program runs under, as acknowledged.
    #[must_use]
    pub fn incarnation(&self) -> u32 {
        self.0.acknowledged.load(Ordering::SeqCst)
    }

    fn lease_left_ns(&self) -> u64 {
        self.with(|maps| maps.table.lease_left_ns(self.incarnation()))
    }

    /// CLOCK_MONOTONIC until which this program may act: 0 when fenced, [`LEASE_FOREVER_NS`] without limit.
    /// Use it only to decide when to ask again: that clock shows no suspension of the machine, but
    /// [`Live::fenced`] does.
    #[must_use]
    pub fn lease_until_ns(&self) -> u64 {
        let now_ns = now_ns();
        until_ns(now_ns, self.lease_left_ns())
    }

    /// Whether this program must not act now: the agent says so, the lease is over (also because the agent
    /// was killed), this host has another incarnation than the acknowledged one, or the machine stood still
    /// since the lease was given, as far as its clocks show that (docs/internals/clocks.md).
    ///
    /// The answer is about the moment of asking. The program may be stopped right after it, for any time: a
    /// resource that must not see a late write needs a token ([`Live::may_act`]).
    #[must_use]
    pub fn fenced(&self) -> bool {
        self.lease_left_ns() == 0
    }

    /// How long this host may still act if its agent's loop does not run again: zero when fenced, `None`
    /// without limit. Agents give no lease without limit: under trust = "network" it is the shortest
    /// timeout, and does not depend on being heard.
    #[must_use]
    pub fn lease_remaining(&self) -> Option<Duration> {
        let left_ns = self.lease_left_ns();
        (left_ns != LEASE_FOREVER_NS).then(|| Duration::from_nanos(left_ns))
    }

    /// Whether this program may act now, as what, and until when. `None`: it is fenced, or the agent died
    /// while it wrote a new view. This is the one call for a program that acts in a role. The lease alone
    /// means that no other host acts on this host's *silence*; the view names the members, and the token
    /// lets resources refuse late writes.
    #[must_use]
    pub fn may_act(&self) -> Option<Permit> {
        self.with(|maps| {
            let incarnation = self.incarnation();
            // View and lease must be of one moment: a lease in a newer view does not support a role that
            // follows from an older view's members. An agent writes a view before its first lease in it.
            let lease = || (self::now_ns(), maps.table.lease_left_ns(incarnation));
            permit(maps.table.host_id(), incarnation, || maps.table.view(), lease)
        })
    }

    /// "I make progress": one atomic addition. A process that joined with a beat timeout calls this more
    /// often.
    pub fn beat(&self) {
        self.with(|maps| maps.beat.beat());
    }

    /// Reads the alive table.
    pub fn with_table<R>(&self, look: impl FnOnce(&TableReader) -> R) -> R {
        self.with(|maps| look(&maps.table))
    }
}

impl std::fmt::Debug for Live {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Live").field("fenced", &self.fenced()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn permit_has_no_older_view_than_its_lease() {
        // The view, and the lease with it, changes between the first look at the view and the look at the
        // lease.
        let looks = Cell::new(0);
        let held = || if looks.get() == 0 { 1 } else { 2 };
        let view = || held();
        let lease = || {
            looks.set(looks.get() + 1);
            (looks.get(), 100 * held())
        };
        assert_eq!(of_one_moment(view, lease), (2, (2, 200)));
    }

    #[test]
    fn view_that_cannot_be_read_gives_no_permit() {
        let lease = || (5, 100);
        assert_eq!(permit(1, 7, || Err(ViewUnreadable), lease), None);
        let without_view = permit(1, 7, || Ok(None), lease).expect("policy network");
        assert_eq!((without_view.view, without_view.until_ns), (None, 105));
    }

    #[test]
    fn views_that_change_at_each_look_give_no_permit() {
        let looks = Cell::new(0);
        let view = || {
            looks.set(looks.get() + 1);
            looks.get()
        };
        let (_, (_, left_ns)) = of_one_moment(view, || (7, 100));
        assert_eq!((left_ns, looks.get()), (0, VIEW_LOOKS_MAX + 1));
    }
}
