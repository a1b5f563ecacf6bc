// SPDX-License-Identifier: Apache-2.0
//! The controller's decisions: lanes, their trees, and the detector's cluster (X-Lane §2.2, Listing 1,
//! §3.2, §3.3; FiDe §3.1, §3.3, Listing 1).
//!
//! - `state`: the stored state; a change is made by applying its records, at once and again after a
//!   restart.
//! - `lanes`: `requestBandwidth`, `changeBandwidth`, `releaseBandwidth`; `notify`: the contracts that change with them.
//! - `trees`: from planned links to installed rules, make before break; a tree replaced by another.
//! - `faults`: cables without carrier, receivers that get one copy only: which tree is broken, by which
//!   cables, and what follows.
//! - `usage`: packets beyond the contract, and unused bandwidth.
//! - `routes`: which path does what; `asked`: what its requests have in common.
//! - `restart`: stored lanes, allocated and ordered again.
//! - `cluster`: `join`, `quit`, `monitor`, `unmonitor`.
//!
//! **A contract is given before it is needed and withdrawn after it was needed.** A lane whose latency
//! grows is notified first; the cause begins only after the grace period ([`Options::grace_ns`]). A tree
//! uses two groups in turns: the new one is in every switch before the sender is notified, and the old one
//! leaves the switches after the sender has reported that it moved.
//!
//! It holds no socket, clock or thread; see [`crate::handler::Handler`].

mod asked;
mod cluster;
mod faults;
mod lanes;
mod notify;
mod restart;
mod routes;
mod state;
#[cfg(test)]
mod tests;
mod trees;
mod usage;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use fide_controller_api::Code;
use fide_controller_api::event::{Event as Upcall, WithoutRedundancy};
use fide_controller_api::identity::Identity;
use fide_planner::{CableId, Limits, Planner, RequestId, Topology};
use serde_json::json;

use crate::clock::Now;
use crate::handler::{Answer, Decision, Handler, Peer, Request, RestoreError, Route};
use routes::Action;
use state::{Record, State};

/// Lanes at a time; each has [`GROUPS_PER_LANE`] groups.
pub const LANES_MAX: u64 = 1 << 17;
/// Two groups for each of up to four trees.
const GROUPS_PER_LANE: u64 = 8;
/// First of the groups of lanes, a range of 20 bits. Their lowest 23 bits, which make the hardware address,
/// differ.
pub const GROUPS: Ipv4Addr = fide_wire::TREE_GROUPS.0;
/// Length of the range's prefix.
pub const GROUPS_PREFIX: u8 = 12;
const _: () = assert!(fide_wire::TREE_GROUPS.1.to_bits() == GROUPS.to_bits() | (u32::MAX >> GROUPS_PREFIX));
const _: () = assert!(LANES_MAX * GROUPS_PER_LANE == 1 << (32 - GROUPS_PREFIX));

/// How the controller behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    pub without_redundancy: WithoutRedundancy,
    /// How long an old contract holds after the new one was announced.
    pub grace_ns: u64,
    /// How long other receivers of a tree may report before its fault is looked for.
    pub gather_ns: u64,
    /// After this a cable that was only suspected is used again.
    pub suspicion_ns: u64,
    /// After this another tree is looked for again, if there was none.
    pub retry_ns: u64,
    /// Offences after which a lane is terminated.
    pub offences_max: u32,
    /// Reports in a row with less than half in use, after which half is reclaimed.
    pub unused_reports: u32,
    /// Shortest period of heartbeats.
    pub heartbeat_min_ns: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            without_redundancy: WithoutRedundancy::Continue,
            grace_ns: 50_000_000,
            gather_ns: 3_000_000,
            suspicion_ns: 30_000_000_000,
            retry_ns: 1_000_000_000,
            offences_max: 3,
            unused_reports: 10,
            heartbeat_min_ns: 20_000,
        }
    }
}

/// An order to a switch. Orders to one switch are carried out one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwitchOrder {
    pub switch: String,
    /// Grows with every order; returned in [`Event::Applied`].
    pub number: u64,
    /// After a start: the switch is to have these groups and no others.
    pub anew: bool,
    /// Group and the ports that it leaves by.
    pub install: Vec<(Ipv4Addr, BTreeSet<String>)>,
    pub remove: Vec<Ipv4Addr>,
}

/// An event outside the controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A switch has carried out an order, or reports why not. It keeps trying the parts that failed.
    Applied { switch: String, number: u64, error: Option<String> },
    /// A switch port has lost or found its carrier.
    Carrier { switch: String, port: String, up: bool },
    /// A switch was not as ordered, and was repaired.
    Drift { switch: String, what: String },
}

/// A step that is due later.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Later {
    /// Look for the fault of a tree.
    Gathered { lane: u64, tree: u8 },
    /// Remove a tree's former group from the switches.
    Sweep { lane: u64, tree: u8, generation: u32 },
    /// Look for another tree again.
    Retry { lane: u64, tree: u8 },
    /// Use a suspected cable again.
    Trust { cable: u32 },
    /// Notify the sender of an installed tree.
    Begin { lane: u64, tree: u8, generation: u32 },
    /// Give away the bandwidth that was reclaimed or lost by demotion.
    Settle { lane: u64 },
    /// Forget a lane that ended.
    Forget { lane: u64 },
}

/// The results of a decision.
#[derive(Debug, Default)]
struct Out {
    records: Vec<Record>,
    upcalls: Vec<(Identity, Upcall)>,
    orders: BTreeMap<String, SwitchOrder>,
}

impl Out {
    fn is_empty(&self) -> bool {
        self.records.is_empty() && self.upcalls.is_empty() && self.orders.is_empty()
    }
}

/// The controller's state machine.
#[derive(Debug)]
pub struct Core {
    topology: Topology,
    limits: Limits,
    options: Options,
    planner: Planner,
    state: State,
    /// Number of the last order to any switch.
    ordered: u64,
    /// For each lane and tree the orders that have to be carried out before it is used.
    waits: BTreeMap<(u64, u8), BTreeMap<String, u64>>,
    later: BTreeSet<(u64, Later)>,
    /// For each lane and tree the receivers that miss it.
    missing: BTreeMap<(u64, u8), faults::Missed>,
    suspected: BTreeSet<CableId>,
    /// Lanes that delay others, and from when on they may be used.
    begin_ns: BTreeMap<u64, u64>,
    now: Now,
}

impl Core {
    /// A controller of this network, without lanes.
    ///
    /// # Errors
    /// Limits that name no cable, or invalid shares.
    pub fn new(
        topology: Topology,
        limits: Limits,
        options: Options,
    ) -> Result<Core, fide_planner::limits::LimitsError> {
        let planner = Planner::new(topology.clone(), limits.clone())?;
        Ok(Core {
            topology,
            limits,
            options,
            planner,
            state: State::default(),
            ordered: 0,
            waits: BTreeMap::new(),
            later: BTreeSet::new(),
            missing: BTreeMap::new(),
            suspected: BTreeSet::new(),
            begin_ns: BTreeMap::new(),
            now: Now { boot_ns: 0, unix_ns: 0 },
        })
    }

    /// The planner, for drawings.
    #[must_use]
    pub fn planner(&self) -> &Planner {
        &self.planner
    }

    fn apply(&mut self, out: &mut Out, record: Record) {
        self.state.apply(&record);
        out.records.push(record);
    }

    fn after(&mut self, delay_ns: u64, what: Later) {
        self.later.insert((self.now.boot_ns + delay_ns, what));
    }

    /// Turns the results into a decision.
    fn decide(out: Out, answer: Option<Answer>) -> Decision<SwitchOrder> {
        let effects = out.orders.into_values().collect();
        let upcalls = out.upcalls.into_iter().map(|(peer, event)| (peer, json!(event))).collect();
        let record = (!out.records.is_empty()).then(|| state::encode(&out.records));
        Decision { answer, record, upcalls, effects, ..Decision::default() }
    }

    /// This decision's order to a switch.
    fn order<'o>(&mut self, out: &'o mut Out, switch: &str) -> &'o mut SwitchOrder {
        out.orders.entry(switch.to_owned()).or_insert_with(|| {
            self.ordered += 1;
            SwitchOrder {
                switch: switch.to_owned(),
                number: self.ordered,
                anew: false,
                install: Vec::new(),
                remove: Vec::new(),
            }
        })
    }

    /// The group of a tree.
    fn group(slot: u64, tree: u8, generation: u32) -> Ipv4Addr {
        let offset = slot * GROUPS_PER_LANE + u64::from(tree) * 2 + u64::from(generation & 1);
        Ipv4Addr::from(u32::from(GROUPS) + u32::try_from(offset).expect("below 2^20"))
    }
}

impl Handler for Core {
    type Event = Event;
    type Effect = SwitchOrder;

    fn routes(&self) -> Vec<Route> {
        routes::all()
    }

    fn restore(&mut self, snapshot: Option<&[u8]>, records: &[&[u8]]) -> Result<(), RestoreError> {
        let wrong = |error: String| RestoreError(format!("the stored state of lanes cannot be read: {error}"));
        let mut fresh = Core::new(self.topology.clone(), self.limits.clone(), self.options.clone())
            .map_err(|error| wrong(error.to_string()))?;
        if let Some(bytes) = snapshot {
            fresh.state = state::decode(bytes).map_err(wrong)?;
        }
        for bytes in records {
            let records: Vec<Record> = state::decode(bytes).map_err(wrong)?;
            records.iter().for_each(|record| fresh.state.apply(record));
        }
        fresh.hold_all();
        // A late answer to an order from before must not pass for an answer to a new one.
        fresh.ordered = self.ordered;
        *self = fresh;
        Ok(())
    }

    fn snapshot(&self) -> Vec<u8> {
        state::encode(&self.state)
    }

    fn resume(&mut self, now: Now) -> Decision<SwitchOrder> {
        self.now = now;
        let mut out = Out::default();
        let mut effects = self.order_anew(&mut out);
        let mut decision = Self::decide(out, None);
        // Orders for newly planned trees come after those for the stored ones.
        effects.append(&mut decision.effects);
        decision.effects = effects;
        decision
    }

    fn change(&mut self, peer: &Peer, request: &Request, now: Now) -> Decision<SwitchOrder> {
        self.now = now;
        let mut out = Out::default();
        let answer = match routes::action(request) {
            Some(Action::Change(change)) => change(self, &mut out, peer, request),
            _ => Err(Answer::error(404, Code::NoSuchPath, format!("nothing is changed at {}", request.path))),
        };
        match answer {
            Ok(body) => Self::decide(out, Some(Answer::ok(body))),
            // A refusal changes nothing. A refusal that has begun to change something is a fault, and is
            // rolled back.
            Err(answer) if out.is_empty() => Decision::answer(answer),
            Err(answer) => {
                tracing::error!("a refusal had begun to change something, which is taken back: {}", answer.body);
                Decision { take_back: true, ..Decision::answer(answer) }
            }
        }
    }

    fn read(&self, peer: &Peer, request: &Request, _: Now) -> Answer {
        let answer = match routes::action(request) {
            Some(Action::Read(read)) => read(self, peer, request),
            _ => Err(Answer::error(404, Code::NoSuchPath, format!("there is nothing to read at {}", request.path))),
        };
        answer.map_or_else(|refused| refused, Answer::ok)
    }

    fn event(&mut self, event: Event, now: Now) -> Decision<SwitchOrder> {
        self.now = now;
        let mut out = Out::default();
        match event {
            Event::Applied { switch, number, error } => self.applied(&mut out, &switch, number, error),
            Event::Carrier { switch, port, up } => self.carrier(&mut out, &switch, &port, up),
            Event::Drift { switch, what } => {
                tracing::warn!("switch {switch} was changed by others, and is put right as far as it can be: {what}")
            }
        }
        Self::decide(out, None)
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.later.first().map(|(at, _)| *at)
    }

    fn tick(&mut self, now: Now) -> Decision<SwitchOrder> {
        self.now = now;
        let mut out = Out::default();
        while let Some((at, what)) = self.later.first().cloned().filter(|(at, _)| *at <= now.boot_ns) {
            self.later.remove(&(at, what.clone()));
            match what {
                Later::Gathered { lane, tree } => self.find_fault(&mut out, lane, tree),
                Later::Sweep { lane, tree, generation } => self.sweep(&mut out, lane, tree, generation),
                Later::Retry { lane, tree } => self.retry(&mut out, lane, tree),
                Later::Trust { cable } => self.trust(CableId(cable)),
                Later::Begin { lane, tree, generation } => self.begin(&mut out, lane, tree, generation),
                Later::Settle { lane } => self.settle(&mut out, lane),
                Later::Forget { lane } => self.forget(&mut out, lane),
            }
        }
        Self::decide(out, None)
    }
}

fn request_id(lane: u64) -> RequestId {
    RequestId(lane)
}
