// SPDX-License-Identifier: Apache-2.0
//! One host of a world: its clocks, its agent, a member's process, a service, and its disk.

use std::{collections::VecDeque, rc::Rc};

use fide_agreement::{HostSet, Standing, group::Incarnations};
use fide_detector::receive_model::ReceiveModel;
use fide_detector::{Config, Detector, Member, Role, Trust, Vote};
use fide_group::packet::Sender;
use fide_types::{
    HostId,
    planted::{self, Planted},
};
use fide_wire::{Membership, PAYLOAD_MAX, PIGGYBACK_MAX, ViewId};
use rand_chacha::ChaCha8Rng;

use super::{
    agent::Agent,
    check::Checked,
    clock::Clock,
    disk::Disk,
    numbers::Numbers,
    plan::{HEARTBEAT_NS, MS, Plan},
    protocol::Protocol,
    seat::Seat,
    service::Service,
    session::Table,
    store::Store,
};

mod machine;

/// Heartbeats that wait for an agent that does not run, as in a socket's queue; further ones are lost.
pub(super) const INBOX_MAX: usize = 256;
/// The id of the only group.
pub(super) const GROUP: u64 = 0xf1de;
/// Bytes of a payload in one datagram.
pub(super) const CHUNK_MAX: usize = 400;

/// A packet on its way.
#[derive(Debug, Clone)]
pub(super) struct Packet {
    pub(super) plane: u8,
    pub(super) voice: Voice,
    pub(super) bytes: Vec<u8>,
}

impl Packet {
    /// The sender's host, if its agent has forgotten what it said.
    pub(super) fn forgetful(&self) -> Option<u16> {
        let Voice::Agent { forgets: true } = self.voice else { return None };
        fide_wire::Packet::new(&self.bytes).ok().map(|packet| packet.sender())
    }
}

/// The sender of a packet.
#[derive(Debug, Clone, Copy)]
pub(super) enum Voice {
    /// An agent. `forgets`: its machine was put back, or is a clone, and the agent continues as its former
    /// incarnation.
    Agent { forgets: bool },
    /// A member, which has sealed the packet and may ask for one.
    Member { sender: Sender, asks: bool },
}

/// A member's record on disk.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Record {
    pub(super) incarnation: u32,
    /// Incarnations of this record that may have been let in to a view.
    pub(super) own: Incarnations,
    /// Whether there is a group.
    pub(super) is_founded: bool,
}

/// What an agent stores before it promises anything, as `agent/src/promise.rs` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Promise {
    /// How often the host had started: the clock of another boot does not compare.
    boot: u64,
    /// The longest promise of this life.
    most_us: u32,
    /// The longest promise of earlier lives, and until when it binds, on the clock of that boot.
    former_us: u32,
    until_ns: u64,
}

/// The XDP receive program of one agent.
#[derive(Debug, Clone)]
pub(super) struct Kernel {
    pub(super) slots: ReceiveModel,
    /// The ring from the receive program to the agent: when each packet came, and the packet.
    pub(super) ring: VecDeque<(u64, Packet)>,
}

pub(super) struct Host<P: Protocol> {
    pub(super) id: HostId,
    pub(super) clock: Clock,
    /// The host has not crashed.
    pub(super) is_up: bool,
    /// How often the host has started.
    pub(super) starts: u64,
    pub(super) agent: Option<Agent>,
    pub(super) incarnation: u32,
    pub(super) seat: Option<Seat<P>>,
    /// When the previous member ended, true time.
    pub(super) ended_ns: u64,
    pub(super) service: Option<Service>,
    pub(super) record: Disk<Record>,
    /// The log of a durable group.
    pub(super) store: Store,
    /// Record and log on the disk with which this host ran before.
    pub(super) aside: Option<(Disk<Record>, Store)>,
    /// The disk of that log is full until then, true time.
    pub(super) full_until_ns: u64,
    /// The vote of a witness, and how often the witness has started.
    votes: Disk<(Vote, u32)>,
    promise: Disk<Promise>,
    pub(super) numbers: Numbers,
    lives: u32,
    /// Tables that killed agents have left to their programs, as long as there is a lease in them.
    orphaned: Vec<Rc<Table>>,
    /// The newest generation of views that the host has acted by.
    pub(super) acted: u32,
    /// Packets that wait for the agent.
    pub(super) inbox: VecDeque<Packet>,
    /// The receive program, if the kernel receives heartbeats.
    pub(super) kernel: Option<Kernel>,
    /// The agent is paused until then, true time.
    pub(super) paused_until_ns: u64,
    /// The whole host is suspended until then, true time.
    pub(super) suspended_until_ns: u64,
    /// The machine is stopped until then, true time.
    pub(super) stopped_until_ns: u64,
    /// The machine was stopped undetectably, as this incarnation: until then, on its own clock, it may
    /// believe in a lease from before the stop.
    believes: Option<(u32, u64)>,
    /// The least that the wall clock shows, s. The clock of a machine that was put back is later than every
    /// incarnation that the machine took before.
    pub(super) wall_least_s: u64,
    /// Set if the machine was put back, or runs twice.
    astray: Option<machine::Astray>,
    /// The number of the machine among those that were put back or run twice.
    pub(super) machine: u64,
    /// The agent's next turn, true time; other planned turns are void.
    pub(super) turn_ns: u64,
    /// An excluded host comes back as another incarnation at this true time.
    pub(super) restart_ns: Option<u64>,
    /// The host has said goodbye, and is about to end.
    pub(super) leaves: bool,
    /// How many copies the host still sends before it crashes.
    pub(super) dies_after: Option<u32>,
}

impl<P: Protocol> Host<P> {
    pub(super) fn new(id: HostId, plan: &Plan) -> Self {
        Self {
            id,
            clock: Clock::new(plan.clocks[id]),
            is_up: false,
            starts: 0,
            agent: None,
            incarnation: 0,
            seat: None,
            ended_ns: 0,
            service: None,
            record: Disk::default(),
            store: Store::default(),
            aside: None,
            full_until_ns: 0,
            votes: Disk::default(),
            promise: Disk::default(),
            numbers: Numbers::default(),
            lives: 0,
            orphaned: Vec::new(),
            acted: 0,
            inbox: VecDeque::new(),
            kernel: None,
            paused_until_ns: 0,
            suspended_until_ns: 0,
            stopped_until_ns: 0,
            believes: None,
            wall_least_s: 0,
            astray: None,
            machine: 0,
            turn_ns: u64::MAX,
            restart_ns: None,
            leaves: false,
            dies_after: None,
        }
    }

    /// Stores the longest promise of this life of the agent. Returns for how long promises of earlier lives
    /// may still bind, us.
    fn begin_promise(&mut self, most_us: u32, local_ns: u64) -> u32 {
        let former_us = self.promise.read().map_or(0, |before| {
            let left_us = match before {
                Promise { boot, until_ns, former_us, .. } if boot == self.starts => {
                    u32::try_from(until_ns.saturating_sub(local_ns).div_ceil(1000))
                        .map_or(former_us, |left| left.min(former_us))
                }
                Promise { former_us, .. } => former_us,
            };
            before.most_us.max(left_us)
        });
        let until_ns = local_ns + u64::from(former_us) * 1000;
        self.promise.write(Promise { boot: self.starts, most_us, former_us, until_ns });
        self.promise.sync();
        former_us
    }

    /// The next incarnation, as an agent takes it.
    pub(super) fn next_incarnation(&mut self, plan: &Plan, now_ns: u64) -> u32 {
        self.numbers.next(plan.wall_s(self.id, self.starts, now_ns).max(self.wall_least_s))
    }

    /// Starts an agent. A witness with a vote on disk continues as its former incarnation; any other host
    /// takes its next one.
    pub(super) fn start_agent(&mut self, plan: &Plan, now_ns: u64) {
        let recalled = self.votes.read().filter(|_| self.is_witness(plan));
        let incarnation = match recalled {
            Some((vote, _)) => vote.incarnation,
            None => self.next_incarnation(plan, now_ns),
        };
        let all = HostSet::first(usize::from(plan.hosts));
        let members = (1..=plan.hosts).map(|id| Member {
            id,
            name: format!("h{id}").parse().expect("a name"),
            role: if plan.group().contains(id) { Role::Voter } else { Role::Witness },
            monitors: all.minus(HostSet::from_iter([id])),
        });
        let config = Config {
            me: self.id,
            incarnation,
            members: members.collect(),
            planes: 2,
            heartbeat_ns: HEARTBEAT_NS,
            trust: Trust::Lease,
            policy: plan.policy,
            timeout_ns: plan.timeouts[self.id],
            stall_slack_ns: HEARTBEAT_NS,
            drift_ppm: plan.drift_ppm,
            piggyback_max: PIGGYBACK_MAX,
            payload_max: PAYLOAD_MAX,
        };
        self.incarnation = incarnation;
        let local_ns = self.clock.local_ns(now_ns);
        let detector = match recalled {
            Some((mut vote, lives)) => {
                self.lives = lives + 1;
                if planted::is(Planted::ForgetsVote) {
                    vote = Vote { id: ViewId::NONE, members: Membership::EMPTY, promised: 0, accepted: None, ..vote };
                }
                Detector::resume(config, &vote, self.lives, local_ns)
            }
            None => Detector::new(config, local_ns),
        };
        let mut detector = detector.expect("a good configuration");
        detector.keeps_generations_up_to(self.numbers.begin());
        let most_us = u32::try_from(plan.promises[self.id] / 1000).expect("milliseconds");
        detector.heed_former(local_ns, self.begin_promise(most_us, local_ns));
        detector.set_promise_max(most_us);
        detector.set_urgent_max(plan.urgent[self.id]);
        if self.is_witness(plan) {
            self.votes.write((detector.vote(), self.lives));
            self.votes.sync();
        }
        let slots = || Kernel { slots: ReceiveModel::new(self.id), ring: VecDeque::new() };
        self.kernel = plan.xdp[self.id].then(slots);
        self.agent = Some(Agent::new(self.id, plan.hosts, detector, &self.clock.read(now_ns)));
        self.inbox.clear();
        self.restart_ns = None;
        self.turn_ns = now_ns;
    }

    /// Kills the agent and nothing else. Its programs continue to act by what the agent left in its table.
    pub(super) fn end_agent(&mut self, now_ns: u64) {
        let now = self.clock.read(now_ns);
        if let Some(agent) = self.agent.take() {
            agent.end();
            self.orphaned.push(agent.table);
        }
        // A lease that is over never begins again, because no agent renews it.
        self.orphaned.retain(|table| table.acting(&now).is_some());
        self.numbers.end_agent();
        self.inbox.clear();
        self.turn_ns = u64::MAX;
        self.restart_ns = None;
    }

    /// The next incarnation of the member, as `crates/agent/group/src/record.rs` takes it, whose seconds are milliseconds
    /// here: by the clock, and above all that the record has.
    pub(super) fn next_of_seat(&self, true_ns: u64) -> u32 {
        let clock = u32::try_from(true_ns / MS).expect("seconds");
        self.record.read().map_or(clock + 1, |record| clock.max(record.incarnation + 1))
    }

    /// Starts a member's process, as the next incarnation, which is stored first. `true_ns`: the time of the world.
    pub(super) fn start_seat(&mut self, plan: &Plan, true_ns: u64, now_ns: u64, pid: u32) -> Checked {
        let is_first = self.record.read().is_none();
        let incarnation = self.next_of_seat(true_ns);
        let mut record = Record { incarnation, ..self.record.read().unwrap_or_default() };
        self.record.write(record.clone());
        self.record.sync();
        let recalled = plan.durable.map(|_| self.store.open(incarnation)).transpose()?;
        // A host stores what it is a member of before its record.
        record.is_founded |= recalled.as_ref().is_some_and(|recalled| recalled.member.is_some());
        self.seat = Some(Seat::new(plan, self.id, pid, (&record, is_first), recalled, now_ns));
        if !record.is_founded {
            self.may_be_let_in();
        }
        Ok(())
    }

    /// The member's next process has the disk with which this host ran before, or an empty one.
    pub(super) fn swap_disk(&mut self) -> Checked {
        self.store.sync()?;
        let (record, store) = self.aside.take().unwrap_or_default();
        self.aside = Some((std::mem::replace(&mut self.record, record), std::mem::replace(&mut self.store, store)));
        Ok(())
    }

    /// Stored before the member asks to be let in with the state that it was offered, or founds the group.
    pub(super) fn may_be_let_in(&mut self) {
        let Some(mut record) = self.record.read() else { return };
        record.own.push(record.incarnation);
        self.record.write(record);
        self.record.sync();
    }

    pub(super) fn is_witness(&self, plan: &Plan) -> bool {
        !plan.group().contains(self.id)
    }

    /// Stores the vote before it is sent. The host may crash before, during or after that; then false.
    pub(super) fn store_vote(&mut self, mut crashes: impl FnMut() -> bool) -> bool {
        let Some(agent) = &self.agent else { return true };
        let vote = (agent.detector.vote(), self.lives);
        if self.votes.read() == Some(vote) {
            return true;
        }
        if crashes() {
            return false;
        }
        self.votes.write(vote);
        if crashes() {
            return false;
        }
        if !planted::is(Planted::VotesUnsynced) {
            self.votes.sync();
        }
        !crashes()
    }

    /// `disks`: says what of unsynced writes is lost.
    pub(super) fn crash(&mut self, now_ns: u64, disks: &mut ChaCha8Rng) {
        self.end_agent(now_ns);
        self.store.crash(disks);
        self.orphaned.clear();
        self.numbers.crash();
        self.votes.crash();
        self.promise.crash();
        self.record.crash();
        self.is_up = false;
        self.leaves = false;
        self.suspended_until_ns = 0;
        self.stopped_until_ns = 0;
        self.believes = None;
        self.astray = None;
        self.seat = None;
        self.service = None;
        self.dies_after = None;
    }

    /// The incarnations and views that programs of this host act by: from the table of its agent, and from
    /// tables of agents that were killed.
    pub(super) fn acting(&self, now_ns: u64) -> impl Iterator<Item = (u32, ViewId)> {
        let now = self.clock.read(now_ns);
        let tables = self.agent.iter().map(|agent| &agent.table).chain(&self.orphaned);
        tables.filter_map(move |table| table.acting(&now))
    }

    /// Whether the host, or a program on it, may act as this incarnation.
    pub(super) fn acts_as(&self, incarnation: u32, now_ns: u64) -> bool {
        self.acting(now_ns).any(|(acts_as, _)| acts_as == incarnation)
    }

    /// The host is stopped with all its clocks. What was left of its lease, at most one promise of another
    /// host, continues to count down after the stop.
    pub(super) fn begin_to_believe(&mut self, plan: &Plan, now_ns: u64) {
        let promises = plan.promises.iter().filter(|(host, _)| *host != self.id).map(|(_, promise)| *promise);
        self.believes = Some((self.incarnation, self.clock.local_ns(now_ns) + promises.max().unwrap_or(0)));
    }

    /// The host may believe in a lease from before it was stopped: nothing is promised about what it does by
    /// that lease (docs/internals/clocks.md).
    pub(super) fn believes(&self, now_ns: u64) -> bool {
        self.is_astray() || self.believes_old(now_ns)
    }

    fn believes_old(&self, now_ns: u64) -> bool {
        self.believes.is_some_and(|(_, until_ns)| self.clock.local_ns(now_ns) < until_ns)
    }

    /// As `believes`, for this incarnation or an earlier one, whose programs may have had a lease as well.
    pub(super) fn believes_as(&self, incarnation: u32, now_ns: u64) -> bool {
        self.is_astray_as(incarnation)
            || self.believes_old(now_ns) && self.believes.is_some_and(|(of, _)| of >= incarnation)
    }

    /// The member may speak for the group: two members must never do so at once.
    pub(super) fn leads(&self, now_ns: u64) -> bool {
        self.seat.as_ref().is_some_and(|seat| seat.may_answer(&self.clock.read(now_ns)))
    }

    /// The standing of the host's member, if there is one.
    pub(super) fn standing(&self) -> Option<Standing> {
        self.seat.as_ref().map(Seat::standing)
    }

    /// When the agent needs its next turn, true time.
    pub(super) fn deadline_ns(&self) -> u64 {
        let Some(agent) = &self.agent else { return u64::MAX };
        let local_ns = match agent.frozen_until_ns() {
            Some(until_ns) => until_ns,
            None => agent.detector.poll_timeout(),
        };
        self.clock.true_ns(local_ns).min(self.restart_ns.unwrap_or(u64::MAX))
    }
}
