// SPDX-License-Identifier: Apache-2.0
//! Memory that an agent shares with a program of its host: the alive table, a ring of events, an outbox, and
//! a connection for requests. The memory outlives both, as mapped memory does.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    rc::Rc,
};

use fide_agent_api::protocol::{JoinOk, MonitorOk};
use fide_agreement::HostSet;
use fide_sys::clock::{Clocks, FOREVER_NS, Lease};
use fide_types::{
    HostId,
    planted::{self, Planted},
};
use fide_wire::ViewId;

mod copies;

pub(super) use copies::Copies;

/// By how much the processor's counter may be ahead of the clock, as in `agent/src/clock.rs`.
pub(super) const COUNTER_NOISE_NS: u64 = 100_000;
/// Events that wait for a program; further ones are lost and counted.
pub(super) const RING_MAX: usize = 1024;
/// Messages that wait for the agent; further ones are refused.
const OUTBOX_MAX: usize = 16;

/// The agent's data for all programs, as in `fide-shm`'s alive table.
#[derive(Debug, Clone, Default)]
pub(super) struct Table {
    pub(super) incarnation: Cell<u32>,
    pub(super) fenced: Cell<bool>,
    lease: Cell<Lease>,
    /// The view of the lease.
    pub(super) view: Cell<ViewId>,
    /// Hosts that have recently reported that they hear this one.
    pub(super) heard_by: Cell<HostSet>,
}

impl Table {
    /// The host may act until then, on the clock that its agent counts leases on.
    pub(super) fn set_lease(&self, until_ns: u64, now: &Clocks) {
        self.lease.set(match until_ns {
            FOREVER_NS => Lease::FOREVER,
            _ if until_ns <= now.raw_ns => Lease::default(),
            _ => Lease {
                until_raw_ns: until_ns,
                asleep_ns: now.asleep_ns(),
                tsc_from: now.tsc.saturating_sub(COUNTER_NOISE_NS),
                tsc_until: now.tsc + (until_ns - now.raw_ns) + COUNTER_NOISE_NS,
            },
        });
    }

    /// For how long a program of this incarnation of the host may act.
    pub(super) fn lease_left_ns(&self, incarnation: u32, now: &Clocks) -> u64 {
        let other = self.incarnation.get() != incarnation && !planted::is(Planted::LeaseOfAnother);
        if self.fenced.get() || other { 0 } else { self.lease.get().left_ns(now) }
    }

    /// The incarnation and view that programs act by now, according to this table.
    pub(super) fn acting(&self, now: &Clocks) -> Option<(u32, ViewId)> {
        let incarnation = self.incarnation.get();
        (self.lease_left_ns(incarnation, now) > 0).then(|| (incarnation, self.view.get()))
    }
}

/// One program's memory.
#[derive(Debug, Clone, Default)]
pub(super) struct Session {
    pub(super) token: u32,
    ring: RefCell<VecDeque<Box<[u8]>>>,
    outbox: RefCell<VecDeque<(u8, Box<[u8]>)>>,
    /// The program rings for its messages to be sent.
    pub(super) rung: Cell<bool>,
    pub(super) lost: Cell<u64>,
}

impl Session {
    pub(super) fn new(token: u32) -> Rc<Self> {
        Rc::new(Self { token, ..Self::default() })
    }

    pub(super) fn push(&self, record: &[u8]) {
        let mut ring = self.ring.borrow_mut();
        if ring.len() < RING_MAX {
            ring.push_back(record.into());
        } else {
            self.lost.set(self.lost.get() + 1);
        }
    }

    pub(super) fn pop(&self) -> Option<Box<[u8]>> {
        self.ring.borrow_mut().pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ring.borrow().is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.ring.borrow().len()
    }

    pub(super) fn leave(&self, slot: u8, message: &[u8]) -> bool {
        let mut outbox = self.outbox.borrow_mut();
        let fits = outbox.len() < OUTBOX_MAX;
        if fits {
            outbox.push_back((slot, message.into()));
        }
        fits
    }

    pub(super) fn take(&self) -> Option<(u8, Box<[u8]>)> {
        self.outbox.borrow_mut().pop_front()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Op {
    /// With the program's former session, if it had one.
    Hello {
        token: u32,
    },
    Join {
        name: String,
    },
    /// `name@host`, or the host itself.
    Monitor {
        host: HostId,
        name: Option<String>,
    },
}

#[derive(Debug)]
pub(super) enum Answer {
    Hello { table: Rc<Table>, session: Rc<Session> },
    Joined(JoinOk),
    Monitored(MonitorOk),
    Refused,
}

/// A connection. It is closed when either end goes.
#[derive(Debug, Default)]
pub(super) struct Link {
    pub(super) closed: Cell<bool>,
    pub(super) request: RefCell<Option<Op>>,
    pub(super) answer: RefCell<Option<Answer>>,
}

impl Link {
    /// The program has something to do.
    pub(super) fn calls(&self) -> bool {
        self.closed.get() || self.answer.borrow().is_some()
    }
}
