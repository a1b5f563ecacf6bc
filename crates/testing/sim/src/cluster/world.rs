// SPDX-License-Identifier: Apache-2.0
//! Runs a plan, event by event.
//!
//! ```text
//!  events by time ──► an agent: its turn, or a packet ──► detector ──► packets ──► network ──► events
//!                │                                          │ table, rings
//!                ├──► a member: its turn ─────────────────► group ──► packets
//!                └──► a service, its keeper                 │ decisions, events
//!                                                           ▼ checks, after every step
//! ```
//!
//! Faults begin when the hosts have founded their group, or with the hosts. The first violation ends the run.

use std::collections::VecDeque;

use fide_agreement::{Standing, View};
use fide_types::HostId;
use fide_wire::PAYLOAD_MAX;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{
    check::{Calm, Checked, Deaths, HostViews, Log, Masters, Register, Tokens, Verdicts, Views, Violation, violated},
    host::{Host, Packet, Voice},
    machines::Machines,
    plan::{FAULTS_NS, FOUNDED_NS, MS, Plan, QUIET_NS, What, milliseconds},
    protocol::Protocol,
};

mod agents;
mod end;
mod events;
mod faults;
mod machines;
mod network;
mod seats;
mod services;
mod stats;
mod turns;

use network::Network;
pub use stats::Stats;

/// How much later a turn comes whose time has passed, ns.
const SOON_NS: u64 = 1_000;
/// How long a restarting member waits at most until all hosts know that its previous process has ended.
const PATIENCE_NS: u64 = 50 * MS;
/// Hosts start within this.
const STARTS_NS: u64 = 5 * MS;
/// The longest that a host misses its turn.
const NAP_NS: u64 = 3 * MS;
/// The longest that a program takes to wake up.
const WAKE_NS: u64 = 40_000;
/// The longest that an agent's control thread takes to serve a request.
const SERVE_NS: u64 = 150_000;

#[derive(Debug)]
enum Next {
    /// A packet arrives at a host.
    Arrives(u16, Packet),
    /// Turn of an agent, by place; void unless it is the turn that the agent waits for.
    Agent(usize),
    /// Turn of a member, by place; void unless it is the turn that the member waits for.
    Seat(usize),
    /// Turn of a service, by place; void unless it is the turn that the service waits for.
    Service(usize),
    /// A machine starts, by place.
    Start(usize),
    StartAgent(usize),
    StartSeat(usize),
    /// An agent's control thread continues a write to disk; void unless it is the time that the thread waits
    /// for.
    Disk(usize),
    /// All hosts crash, and start again within so long.
    PowerCut(u64),
    /// This host is cut off, and all others crash.
    AllButOneCrash(u16),
    /// Operators end and restart the machine at this place, if the number still matches.
    Renew(usize, u64),
    /// The host that started for the nth time has said goodbye, and ends.
    Gone(usize, u64),
    /// Faults begin, once the group is founded.
    Begins,
    Fault(usize),
    /// A host is cut off.
    CutOff(u16),
    Replay(usize, u64),
    Work,
    /// Masters act.
    Act,
    Quiet,
    End,
}

pub(super) struct World<'p, P: Protocol> {
    plan: &'p Plan,
    now_ns: u64,
    hosts: Machines<P>,
    network: Network,
    pids: u32,
    values: u64,
    /// Payloads that may be proposed once more.
    payloads: Vec<Vec<u8>>,
    /// Hosts that are cut off at the next change of view, and how much later, ns.
    armed: Vec<(u16, u64)>,
    /// The host that is cut off when a new lineage begins to act, and how much later, ns.
    dooms: Option<(u16, u64)>,
    /// All hosts crash when the next member stores that there is a group, and start again within so long.
    cuts_at_record: Option<u64>,
    /// Random source of disks, separate so that runs without slow disks stay what they were.
    disks: ChaCha8Rng,
    /// Recorded heartbeats, the newest last.
    recorded: VecDeque<(u16, u8, Vec<u8>)>,
    /// Process of a member, by host and the member's incarnation.
    processes: std::collections::HashMap<(u16, u32), u32>,
    /// Hosts that have stored that there is a group, each with its member's incarnation and the first view of
    /// that member.
    began: Vec<(u16, u32, View)>,
    log: Log,
    register: Register,
    verdicts: Verdicts,
    calm: Calm,
    host_views: HostViews,
    tokens: Tokens,
    deaths: Deaths,
    masters: Masters,
    views: Views,
    snapshots: Vec<machines::Snapshot<P>>,
    /// How many machines have been put back, or are clones.
    machines: u64,
    /// The latest time, s, that a correct wall clock has shown to a machine that was put back or had a clone.
    latest_s: u64,
    twin: Option<machines::Twin>,
    /// Another member heard a machine that was put back, or a clone, as its former incarnation, or such a
    /// machine has founded the group again. Nothing more is checked about the group.
    torn: bool,
    /// An agent accepted a heartbeat of an agent that had forgotten its promises and accepted votes. Nothing
    /// more is checked about views and leases of hosts.
    forgotten: bool,
    stats: Stats,
    trace: Option<Vec<String>>,
    /// Heartbeats are recorded, because the plan replays some.
    records: bool,
    /// Buffer that packets are written into.
    heartbeat: Box<[u8; PAYLOAD_MAX]>,
}

impl<'p, P: Protocol> World<'p, P> {
    pub(super) fn new(plan: &'p Plan, traces: bool) -> Self {
        Self {
            plan,
            now_ns: 0,
            hosts: Machines::new(plan),
            network: Network::new(plan),
            pids: 0,
            values: 0,
            payloads: Vec::new(),
            armed: Vec::new(),
            dooms: None,
            cuts_at_record: None,
            disks: ChaCha8Rng::seed_from_u64(plan.seed.rotate_left(32) ^ 0xd15c),
            recorded: VecDeque::new(),
            processes: std::collections::HashMap::new(),
            began: Vec::new(),
            log: Log::default(),
            register: Register::default(),
            verdicts: Verdicts::default(),
            calm: Calm::NONE,
            host_views: HostViews::default(),
            tokens: Tokens::default(),
            deaths: Deaths::default(),
            masters: Masters::default(),
            views: Views::default(),
            snapshots: Vec::new(),
            machines: 0,
            latest_s: 0,
            twin: None,
            torn: false,
            forgotten: false,
            stats: Stats::default(),
            trace: traces.then(Vec::new),
            records: plan.faults.iter().any(|fault| matches!(fault.what, What::Replay { .. })),
            heartbeat: Box::new([0; PAYLOAD_MAX]),
        }
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    pub(super) fn take_trace(&mut self) -> Vec<String> {
        self.trace.take().unwrap_or_default()
    }

    fn note(&mut self, text: impl FnOnce(&Self) -> String) {
        if self.trace.is_some() {
            let line = format!("{:>10.4} ms  {}", milliseconds(self.now_ns), text(self));
            self.trace.get_or_insert_default().push(line);
        }
    }

    pub(super) fn run(&mut self) -> Result<Stats, Violation> {
        for at in 0..self.hosts.places() {
            let start_ns = self.network.random.random_range(0..STARTS_NS);
            self.network.push(start_ns, Next::Start(at));
        }
        self.network.push(if self.plan.early { 0 } else { STARTS_NS + 10 * MS }, Next::Begins);
        loop {
            let (at_ns, next) = self.network.events.pop().expect("the end is among the events");
            debug_assert!(at_ns >= self.now_ns, "time goes on");
            self.now_ns = at_ns;
            match next {
                Next::Arrives(to, packet) => self.arrives_twice(to, packet)?,
                Next::Agent(at) if self.hosts[at].turn_ns == at_ns => self.agent_turn(at)?,
                Next::Seat(at) if self.hosts[at].seat.as_ref().is_some_and(|seat| seat.turn_ns == at_ns) => {
                    self.seat_turn(at)?;
                }
                Next::Service(at) if self.hosts[at].service.as_ref().is_some_and(|it| it.turn_ns == at_ns) => {
                    self.service_turn(at)?;
                }
                Next::Agent(_) | Next::Seat(_) | Next::Service(_) => {}
                Next::Start(at) if self.hosts[at].is_up => {}
                Next::Start(at) => self.start(at),
                // A stopped machine starts nothing.
                next @ (Next::StartAgent(at) | Next::StartSeat(at)) if self.hosts[at].stopped_until_ns > at_ns => {
                    let until_ns = self.hosts[at].stopped_until_ns;
                    self.network.push(until_ns, next);
                }
                Next::StartAgent(at) => self.start_agent(at),
                Next::StartSeat(at) => self.start_seat(at)?,
                Next::Disk(at) if self.hosts[at].numbers.due_ns() == Some(at_ns) => self.disk(at),
                Next::Disk(_) => {}
                Next::PowerCut(_) if self.network.calm => {}
                Next::PowerCut(down_ns) => self.power_cut(down_ns),
                Next::AllButOneCrash(away) => self.all_but_one_crash(away),
                Next::Renew(at, machine) => self.renew(at, machine),
                Next::Gone(at, lives) => self.gone(at, lives),
                Next::Begins => self.begin()?,
                Next::Fault(at) => self.fault(self.plan.faults[at].what)?,
                Next::CutOff(host) => {
                    if !self.network.calm {
                        self.network.cut_off(host, 0);
                        self.network.cut_off(host, 1);
                    }
                }
                Next::Replay(at, until_ns) => self.replay(at, until_ns),
                Next::Work => self.work()?,
                Next::Act => self.act()?,
                Next::Quiet => self.quiet()?,
                Next::End => return self.end(),
            }
        }
    }

    /// Hosts that may be in the group.
    fn members(&self) -> impl Iterator<Item = &Host<P>> {
        self.hosts.originals().iter().filter(|host| !host.is_witness(self.plan))
    }

    fn start(&mut self, at: usize) {
        self.hosts[at].is_up = true;
        self.hosts[at].starts += 1;
        self.hosts[at].paused_until_ns = 0;
        self.hosts[at].clock.begin(self.now_ns);
        if self.is_twice(at) {
            self.hosts[at].go_astray(true, false);
        }
        self.start_agent(at);
        let after_ns = self.network.random.random_range(0..MS);
        self.network.push(self.now_ns + after_ns, Next::StartSeat(at));
    }

    fn start_agent(&mut self, at: usize) {
        if !self.hosts[at].is_up || self.hosts[at].agent.is_some() {
            return;
        }
        self.hosts[at].start_agent(self.plan, self.now_ns);
        self.calm.but_from(self.now_ns);
        self.verdicts.starts(at);
        self.network.push(self.now_ns, Next::Agent(at));
        self.note(|world| format!("the agent of h{} starts as #{}", world.hosts[at].id, world.hosts[at].incarnation));
    }

    fn start_seat(&mut self, at: usize) -> Checked {
        let host = &self.hosts[at];
        if !host.is_up || host.leaves || host.seat.is_some() || host.is_witness(self.plan) {
            return Ok(());
        }
        let local_ns = host.clock.local_ns(self.now_ns);
        let now = host.clock.read(self.now_ns);
        let is_in = host.agent.as_ref().is_some_and(|agent| agent.table.lease_left_ns(host.incarnation, &now) > 0);
        let id = host.id;
        if (host.record.read().is_some() || host.aside.is_some())
            && !self.plan.hasty
            && !(is_in && (self.all_know(id) || self.now_ns > host.ended_ns + PATIENCE_NS))
        {
            self.network.push(self.now_ns + MS, Next::StartSeat(at));
            return Ok(());
        }
        self.pids += 1;
        let next = host.next_of_seat(self.now_ns);
        if self.machines > 0 && self.processes.contains_key(&(id, next)) {
            // The disk was put back: other hosts know another process under this incarnation of the member.
            self.tear();
        }
        let host = &mut self.hosts[at];
        host.start_seat(self.plan, self.now_ns, local_ns, self.pids)?;
        let seat = host.seat.as_mut().expect("it started");
        seat.turn_ns = self.now_ns;
        // The founder's process may have ended before it knew that its view was stored.
        let founded = seat.core.group.recalled().member.map(|member| member.view);
        if let Some(view) = founded.filter(|view| view.number() > 1 && view.members().len() == 1) {
            self.views.founded_from_disk(&view)?;
        }
        self.network.push(self.now_ns, Next::Seat(at));
        self.note(|world| {
            let sender = world.hosts[at].seat.as_ref().map(|seat| (seat.pid, seat.sender.incarnation));
            let past = world.hosts[at].seat.as_ref().map(|seat| seat.core.group.recalled());
            let past = past.and_then(|past| past.member).map(|member| (member.view.number(), member.position));
            let id = world.hosts[at].id;
            match past {
                Some(past) => format!(
                    "a member of h{id} starts: program and incarnation {sender:?}; view and position on disk {past:?}"
                ),
                None => format!("a member of h{id} starts: program and incarnation {sender:?}"),
            }
        });
        Ok(())
    }

    /// Every running agent knows the current incarnation of this host, and which of its processes have ended.
    fn all_know(&self, id: HostId) -> bool {
        let host = &self.hosts[id];
        let Some(own) = &host.agent else { return false };
        let agents = self.hosts.iter().filter(|other| other.id != id).filter_map(|other| other.agent.as_ref());
        let mut agents = agents.map(|agent| &agent.detector);
        agents.all(|detector| {
            let knows = detector.peer(id).is_some_and(|peer| peer.incarnation == host.incarnation);
            knows
                && (0..8).all(|slot| match own.detector.process(id, slot) {
                    Some(own) if own.state.is_final() => {
                        let known = detector.process(id, slot);
                        known.is_some_and(|known| known.incarnation == own.incarnation && known.state.is_final())
                    }
                    _ => true,
                })
        })
    }

    fn begin(&mut self) -> Checked {
        if !self.plan.early && !self.members().all(|host| host.standing() == Some(Standing::Member)) {
            if self.now_ns > FOUNDED_NS + 6 * self.plan.timeout_ns() + 4 * self.plan.disk_ns {
                return violated("founding", format!("not all are members of a group after {} ns", self.now_ns));
            }
            self.network.push(self.now_ns + MS, Next::Begins);
            return Ok(());
        }
        self.note(|_| "faults begin".to_owned());
        self.network.calm = false;
        for (at, fault) in self.plan.faults.iter().enumerate() {
            self.network.push(self.now_ns + fault.at_ns, Next::Fault(at));
        }
        self.network.push(self.now_ns, Next::Work);
        if self.plan.service {
            self.network.push(self.now_ns, Next::Act);
        }
        self.network.push(self.now_ns + FAULTS_NS, Next::Quiet);
        self.network.push(self.now_ns + FAULTS_NS + self.plan.quiet_ns(QUIET_NS), Next::End);
        Ok(())
    }

    fn arrives_at(&mut self, at: usize, packet: Packet) -> Checked {
        if matches!(packet.voice, Voice::Member { .. }) {
            self.arrives_at_seat(at, packet);
            return Ok(());
        }
        let host = &self.hosts[at];
        let runs = host.suspended_until_ns <= self.now_ns && host.stopped_until_ns <= self.now_ns;
        if host.kernel.is_some() && host.agent.is_some() && runs {
            let waits =
                host.paused_until_ns > self.now_ns || host.agent.as_ref().is_some_and(super::agent::Agent::is_frozen);
            if self.kernel_takes(at, packet) && !waits {
                self.read_kernel(at);
                return self.follow(at);
            }
            return Ok(());
        }
        let host = &mut self.hosts[at];
        let waits =
            host.paused_until_ns > self.now_ns || host.agent.as_ref().is_some_and(super::agent::Agent::is_frozen);
        if host.agent.is_none() || waits && host.inbox.len() >= super::host::INBOX_MAX {
            self.network.give_back(packet.bytes);
            return Ok(());
        }
        if waits {
            host.inbox.push_back(packet);
            return Ok(());
        }
        self.feed(at, packet);
        self.follow(at)
    }

    fn arrives_at_seat(&mut self, at: usize, packet: Packet) {
        self.hears_astray(at, &packet);
        match &mut self.hosts[at].seat {
            Some(seat) if seat.inbox.len() < super::seat::INBOX_MAX => seat.inbox.push_back(packet),
            _ => return self.network.give_back(packet.bytes),
        }
        self.wake_seat(at);
    }
}

/// Counts a copy. A host that has crashed sends no more.
fn may_send(dies_after: &mut Option<u32>) -> bool {
    match dies_after {
        None => true,
        Some(0) => false,
        Some(copies) => {
            *copies -= 1;
            true
        }
    }
}
