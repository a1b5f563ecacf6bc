// SPDX-License-Identifier: Apache-2.0
//! Runs a plan, event by event.
//!
//! ```text
//!  events by time ──► a host: its turn, or a packet ──► detector, group ──► packets ──► network ──► events
//!                                                          │ what users are told
//!                                                          ▼ checks, after every step
//! ```
//!
//! Faults begin when the hosts have founded their group, or with the hosts. The first violation ends the run.

use std::{cmp::Reverse, collections::BinaryHeap, fmt};

use fide_agreement::{Entry, HostSet, Standing, group::entries};
use fide_detector::{Event as Told, PeerState, Policy, Verdict};
use fide_wire::PAYLOAD_MAX;
use rand::RngExt;

use super::{
    check::{Checked, Log, Register, Verdicts, Views, Violation, leased, number, one_leader, violated},
    host::{Clock, Host, INBOX_MAX, PAYLOAD_MAX_BYTES, Packet},
    plan::{FAULTS_NS, FOUNDED_NS, MS, Plan, QUIET_NS, What, milliseconds},
    protocol::Protocol,
    state::State,
};

mod network;
mod stats;

use network::Network;
pub use stats::Stats;

/// A turn whose time has passed comes so much later, ns.
const SOON_NS: u64 = 1_000;
/// Copies of heartbeats that a host sends after it was asked to leave.
const GOODBYES: u32 = 30;
/// Hosts start within this.
const STARTS_NS: u64 = 5 * MS;
/// The longest that a host misses its turn.
const NAP_NS: u64 = 3 * MS;

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    /// In the network's store.
    Arrives(usize),
    /// Host by place; void unless it is the one that it waits for.
    Turn(usize),
    Start(usize),
    /// Faults begin, if the group is founded.
    Begins,
    Fault(usize),
    Work,
    Quiet,
    End,
}

type Events = BinaryHeap<Reverse<(u64, u64, Next)>>;

pub(super) struct World<'p, P: Protocol> {
    plan: &'p Plan,
    now_ns: u64,
    hosts: Vec<Host<P>>,
    network: Network,
    incarnations: u32,
    values: u64,
    log: Log,
    register: Register,
    verdicts: Verdicts,
    views: Views,
    stats: Stats,
    trace: Option<Vec<String>>,
    /// To write packets into.
    heartbeat: Box<[u8; PAYLOAD_MAX]>,
    datagram: Vec<u8>,
}

impl<'p, P: Protocol> World<'p, P> {
    pub(super) fn new(plan: &'p Plan, traces: bool) -> Self {
        let hosts: Vec<Host<P>> =
            (1..).zip(&plan.clocks).map(|(id, clock)| Host::new(id, Clock::new(*clock))).collect();
        Self {
            plan,
            now_ns: 0,
            hosts,
            network: Network::new(plan),
            incarnations: 0,
            values: 0,
            log: Log::default(),
            register: Register::default(),
            verdicts: Verdicts::default(),
            views: Views::default(),
            stats: Stats::default(),
            trace: traces.then(Vec::new),
            heartbeat: Box::new([0; PAYLOAD_MAX]),
            datagram: Vec::new(),
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
        for at in 0..self.hosts.len() {
            let start_ns = self.network.random.random_range(0..STARTS_NS);
            self.network.push(start_ns, Next::Start(at));
        }
        self.network.push(if self.plan.early { 0 } else { STARTS_NS + 10 * MS }, Next::Begins);
        loop {
            let Reverse((at_ns, _, next)) = self.network.events.pop().expect("the end is among the events");
            debug_assert!(at_ns >= self.now_ns, "time goes on");
            self.now_ns = at_ns;
            match next {
                Next::Arrives(place) => self.arrives(place)?,
                Next::Turn(at) if self.hosts[at].turn_ns == at_ns => self.turn(at)?,
                Next::Turn(_) => {}
                Next::Start(at) => self.start(at),
                Next::Begins => self.begin()?,
                Next::Fault(at) => self.fault(self.plan.faults[at].what),
                Next::Work => self.work()?,
                Next::Quiet => self.quiet(),
                Next::End => return self.end(),
            }
        }
    }

    /// Hosts that may be in the group.
    fn members(&self) -> impl Iterator<Item = &Host<P>> {
        self.hosts.iter().filter(|host| !host.is_witness(self.plan))
    }

    fn start(&mut self, at: usize) {
        self.incarnations += 1;
        self.hosts[at].start(self.plan, self.now_ns, self.incarnations);
        self.verdicts.starts(self.hosts[at].id);
        self.network.push(self.now_ns, Next::Turn(at));
    }

    fn begin(&mut self) -> Checked {
        if !self.plan.early && !self.members().all(|host| host.standing() == Some(Standing::Member)) {
            if self.now_ns > FOUNDED_NS {
                return violated("founding", format!("not all are members of a group after {FOUNDED_NS} ns"));
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
        self.network.push(self.now_ns + FAULTS_NS, Next::Quiet);
        self.network.push(self.now_ns + FAULTS_NS + QUIET_NS, Next::End);
        Ok(())
    }

    fn arrives(&mut self, place: usize) -> Checked {
        let (to, packet) = self.network.take(place);
        let at = usize::from(to) - 1;
        let host = &mut self.hosts[at];
        if host.detector.is_none() || host.paused_until_ns > self.now_ns && host.inbox.len() >= INBOX_MAX {
            self.network.give_back(packet);
            return Ok(());
        }
        if host.paused_until_ns > self.now_ns {
            host.inbox.push_back(packet);
            return Ok(());
        }
        self.feed(at, packet);
        self.follow(at)
    }

    fn feed(&mut self, at: usize, packet: Packet) {
        self.stats.deliveries += 1;
        self.hosts[at].receive(self.now_ns, &packet);
        self.network.give_back(packet);
    }

    fn turn(&mut self, at: usize) -> Checked {
        let naps = !self.network.calm && self.network.chance(self.plan.nap_permille);
        let host = &mut self.hosts[at];
        if naps && host.paused_until_ns <= self.now_ns {
            host.paused_until_ns = self.now_ns + self.network.random.random_range(0..NAP_NS);
        }
        if host.paused_until_ns > self.now_ns {
            host.turn_ns = host.paused_until_ns;
            self.network.push(host.turn_ns, Next::Turn(at));
            return Ok(());
        }
        while let Some(packet) = self.hosts[at].inbox.pop_front() {
            self.feed(at, packet);
            self.follow(at)?;
            if self.hosts[at].detector.is_none() {
                return Ok(());
            }
        }
        if self.hosts[at].restart_ns.is_some_and(|restart_ns| restart_ns <= self.now_ns) {
            self.incarnations += 1;
            self.hosts[at].begin_again(self.plan, self.now_ns, self.incarnations);
        }
        if !self.hosts[at].turn(self.now_ns) {
            return Ok(());
        }
        self.follow(at)
    }

    /// What follows at a host from what has happened there.
    fn follow(&mut self, at: usize) -> Checked {
        // Users are told before anything is sent, or after.
        let tells_first = self.network.chance(500);
        let reads_first = self.network.chance(50);
        loop {
            let mut goes_on = self.events(at)? | self.record(at) | self.state(at)?;
            if reads_first {
                // Whoever answers has told what it has decided.
                self.read(at)?;
            }
            for tells in [tells_first, !tells_first] {
                goes_on |= if tells { self.tell(at)? } else { self.transmit(at) };
                if self.hosts[at].dies_after == Some(0) {
                    self.crash(at);
                    return Ok(());
                }
            }
            if !goes_on {
                break;
            }
        }
        let host = &mut self.hosts[at];
        if host.standing() == Some(Standing::Removed) && host.restart_ns.is_none() {
            self.stats.removals += 1;
            // It serves those who have not heard of it for a while.
            host.restart_ns = Some(self.now_ns + 10 * MS);
        }
        let turn_ns = host.deadline_ns().max(self.now_ns + SOON_NS).max(host.paused_until_ns);
        if turn_ns != host.turn_ns {
            host.turn_ns = turn_ns;
            self.network.push(turn_ns, Next::Turn(at));
        }
        one_leader(&self.hosts, at, self.now_ns)
    }

    fn events(&mut self, at: usize) -> Result<bool, Violation> {
        let mut any = false;
        loop {
            let host = &mut self.hosts[at];
            let Some(event) = host.detector.as_mut().and_then(|detector| detector.poll_event()) else { return Ok(any) };
            any = true;
            if let Some(group) = &mut host.group {
                group.detected(&event);
            }
            let id = host.id;
            if let Told::Piggyback { host: from, .. } = event {
                let bytes = host.detector.as_ref().map_or(&[][..], |detector| detector.piggyback_bytes(&event));
                self.datagram.clear();
                self.datagram.extend_from_slice(bytes);
                host.broadcast(from, &self.datagram);
                self.stats.broadcasts += 1;
                continue;
            }
            match event {
                Told::Excluded { .. } => {
                    self.stats.exclusions += 1;
                    host.restart_ns = Some(self.now_ns + MS);
                }
                Told::Verdict(_) => self.stats.verdicts += 1,
                _ => {}
            }
            self.note(|_| match event {
                Told::Verdict(verdict) => {
                    let Verdict { host, incarnation, kind, evidence, .. } = verdict;
                    format!("h{id} is told that h{host}#{incarnation} is dead: {kind:?}, by {:?}", evidence.via)
                }
                Told::ViewChanged { id: view, members } => {
                    let members: Vec<u16> = members.iter().collect();
                    format!("h{id} is in view {}.{} of {members:?}", view.generation, view.number)
                }
                event => format!("h{id} is told {event:?}"),
            });
            self.verdicts.told(id, &event, &self.hosts, self.now_ns)?;
        }
    }

    fn tell(&mut self, at: usize) -> Result<bool, Violation> {
        let mut any = false;
        loop {
            let host = &mut self.hosts[at];
            let (id, lease) = (host.id, host.lease(self.now_ns));
            let Some(decision) = host.group.as_mut().and_then(|group| group.poll_decision(lease)) else {
                return Ok(any);
            };
            any = true;
            self.stats.decisions += 1;
            let (instance, value) = (decision.instance, decision.value.to_vec());
            let group = host.group.as_ref().expect("it has told a decision");
            let mut told = Vec::new();
            for entry in entries(&value) {
                let number = match &entry {
                    Entry::Value(value) => number(value),
                    Entry::Payload(identity) => {
                        let Some(payload) = group.payload(identity) else {
                            return violated("payloads", format!("h{id} tells {identity}, which is not there"));
                        };
                        payload.get(..8).and_then(number)
                    }
                    Entry::View(view) => {
                        self.views.told(view)?;
                        continue;
                    }
                };
                told.extend(number);
            }
            self.note(|_| format!("h{id} tells instance {instance}: {:?}", Shown(&value, &told)));
            leased(id, lease, "tells a decision")?;
            let host = &mut self.hosts[at];
            self.log.told(id, host.state, instance, &value, &told)?;
            host.state.tell(instance, &value);
            self.register.told(id, instance, told.into_iter())?;
        }
    }

    /// A host stores that there is a group, or crashes before or after that.
    fn record(&mut self, at: usize) -> bool {
        let host = &mut self.hosts[at];
        let Some(group) = &mut host.group else { return false };
        let Some(view) = group.poll_record().cloned() else { return false };
        let id = host.id;
        let crashes = self.plan.early && !self.network.calm && self.network.chance(50);
        let when = self.network.random.random_range(0..3);
        if crashes && when == 0 {
            self.crash(at);
            return false;
        }
        host.record.write(());
        if crashes && when == 1 {
            self.crash(at);
            return false;
        }
        host.record.sync();
        if crashes {
            self.crash(at);
            return false;
        }
        group.recorded();
        self.note(|_| format!("h{id} begins with {view:?}"));
        true
    }

    /// A user gives its state to the group, or takes over another's.
    fn state(&mut self, at: usize) -> Result<bool, Violation> {
        let host = &mut self.hosts[at];
        let Some(group) = &mut host.group else { return Ok(false) };
        if group.wants_state() {
            // There is room for many; it is asked for again.
            let _ = group.give_state(host.state.bytes());
            return Ok(true);
        }
        let Some((position, bytes)) = group.poll_install() else { return Ok(false) };
        let (id, state) = (host.id, State::read(bytes));
        group.installed();
        host.state = self.log.taken_over(id, position, state)?;
        self.stats.transfers += 1;
        self.note(|_| format!("h{id} takes over the state at {position}"));
        Ok(true)
    }

    fn transmit(&mut self, at: usize) -> bool {
        let host = &mut self.hosts[at];
        let network = &mut self.network;
        if host.is_witness(self.plan) && !host.store_vote(|| !network.calm && network.chance(20)) {
            self.crash(at);
            return false;
        }
        let host = &mut self.hosts[at];
        let (id, now_ns, local_ns) = (host.id, self.now_ns, host.clock.local_ns(self.now_ns));
        let others = HostSet::first(usize::from(self.plan.hosts)).minus(HostSet::from_iter([id]));
        let mut any = false;
        let buffer = &mut self.heartbeat;
        while let Some(sent) = host.detector.as_mut().and_then(|detector| detector.poll_transmit(local_ns, buffer)) {
            any = true;
            for plane in 0..2 {
                fide_wire::set_plane(&mut buffer[..], plane);
                for to in others.iter() {
                    if may_send(&mut host.dies_after) {
                        self.network.send(now_ns, id, to, plane, false, &buffer[..sent.len]);
                    }
                }
            }
        }
        any |= host.ride(&mut self.datagram);
        let Some(group) = &mut host.group else { return any };
        let datagram = &mut self.datagram;
        while let Some(to) = group.poll_transmit(datagram) {
            any = true;
            for to in to.iter() {
                if may_send(&mut host.dies_after) {
                    group.address(datagram, to);
                    let plane = u8::from(self.network.chance(500));
                    self.network.send(now_ns, id, to, plane, true, datagram);
                }
            }
        }
        any
    }

    fn crash(&mut self, at: usize) {
        if self.hosts[at].detector.is_some() {
            self.stats.crashes += 1;
            self.hosts[at].crash();
            let id = self.hosts[at].id;
            self.note(|_| format!("h{id} crashes"));
        }
    }

    fn fault(&mut self, what: What) {
        self.note(|_| format!("{what:?}"));
        match what {
            What::Crash { host } => self.crash(usize::from(host) - 1),
            What::CrashSending { host, copies } => {
                let host = &mut self.hosts[usize::from(host) - 1];
                host.dies_after = host.detector.is_some().then_some(copies);
            }
            What::Start { host } => {
                if self.hosts[usize::from(host) - 1].detector.is_none() {
                    self.start(usize::from(host) - 1);
                }
            }
            What::Pause { host, for_ns } => {
                let host = &mut self.hosts[usize::from(host) - 1];
                host.paused_until_ns = host.paused_until_ns.max(self.now_ns + for_ns);
            }
            // It says no goodbye: it comes back as the one that it was.
            What::Leave { host } if self.hosts[usize::from(host) - 1].is_witness(self.plan) => {
                self.crash(usize::from(host) - 1);
            }
            What::Leave { host } => {
                let now_ns = self.now_ns;
                let host = &mut self.hosts[usize::from(host) - 1];
                let local_ns = host.clock.local_ns(now_ns);
                if let Some(detector) = &mut host.detector {
                    detector.leave(local_ns);
                    if let Some(group) = &mut host.group {
                        group.leave();
                    }
                    host.restart_ns = None;
                    // It says goodbye some times before it is gone.
                    host.dies_after = Some(GOODBYES);
                }
            }
            What::Remove { host: subject } => {
                let now_ns = self.now_ns;
                if let Some(host) = self.hosts.iter_mut().find(|host| host.leads(now_ns)) {
                    let lease = host.lease(now_ns);
                    // Refused, if it is no member.
                    let _ = host.group.as_mut().map(|group| group.remove(lease, subject));
                }
            }
            What::Cut { from, to, plane } => self.network.cut(from, to, plane),
            What::Isolate { host, plane } => {
                for other in 1..=self.plan.hosts {
                    self.network.cut(host, other, plane);
                    self.network.cut(other, host, plane);
                }
            }
            What::Split { side } => {
                let on = |host: u16| side >> (host - 1) & 1 == 1;
                for from in 1..=self.plan.hosts {
                    for to in (1..=self.plan.hosts).filter(|to| on(*to) != on(from)) {
                        self.network.cut(from, to, 0);
                        self.network.cut(from, to, 1);
                    }
                }
            }
            What::Divide { among } => {
                let among = HostSet(among);
                for from in among.iter() {
                    for to in among.iter().filter(|to| *to != from) {
                        self.network.cut(from, to, 0);
                        self.network.cut(from, to, 1);
                    }
                }
            }
            What::Heal => self.network.mend(),
        }
    }

    /// A user writes or reads, at whoever believes to lead, or anywhere.
    fn work(&mut self) -> Checked {
        if self.network.calm {
            return Ok(());
        }
        let next_ns = self.network.random.random_range(0..2 * self.plan.work_every_ns);
        self.network.push(self.now_ns + next_ns, Next::Work);
        let first = self.network.random.random_range(0..self.hosts.len());
        let anywhere = self.network.chance(if P::RIDES { 500 } else { 100 });
        let believes = |host: &Host<P>| host.group.as_ref().is_some_and(|group| group.leader() == Some(host.id));
        let places = (0..self.hosts.len()).map(|step| (first + step) % self.hosts.len());
        let runs = |at: &usize| {
            let host = &self.hosts[*at];
            host.paused_until_ns <= self.now_ns && host.detector.is_some() && (anywhere || believes(host))
        };
        let Some(at) = places.into_iter().find(runs) else { return Ok(()) };
        if self.network.chance(500) {
            return self.read(at);
        }
        let host = &mut self.hosts[at];
        let (id, lease) = (host.id, host.lease(self.now_ns));
        let Some(group) = &mut host.group else { return Ok(()) };
        let value = self.values + 1;
        let taken = if self.network.chance(20) {
            let mut payload = vec![7; self.network.random.random_range(8..PAYLOAD_MAX_BYTES) as usize];
            payload[..8].copy_from_slice(&value.to_le_bytes());
            let taken = group.propose_payload(lease, payload).is_ok();
            self.stats.payloads += u64::from(taken);
            taken
        } else {
            group.propose(lease, &value.to_le_bytes()).is_ok()
        };
        if taken {
            let incarnation = host.incarnation;
            self.values = value;
            self.stats.writes += 1;
            self.note(|_| format!("h{id} is asked to write {value}"));
            self.log.proposed(value, incarnation);
            self.register.write(value, id);
            return self.follow(at);
        }
        Ok(())
    }

    /// A user asks for the state.
    fn read(&mut self, at: usize) -> Checked {
        let host = &self.hosts[at];
        let (id, lease, position) = (host.id, host.lease(self.now_ns), host.state.position);
        if host.group.as_ref().is_some_and(|group| group.may_answer(lease)) {
            self.stats.reads += 1;
            self.note(|_| format!("h{id} is read: {position} instances"));
            leased(id, lease, "answers")?;
            self.log.read(id, position)?;
            self.register.read(id, position)?;
        }
        Ok(())
    }

    fn quiet(&mut self) {
        self.note(|_| "all is well from here on".to_owned());
        self.network.calm = true;
        self.network.mend();
        for at in 0..self.hosts.len() {
            let host = &mut self.hosts[at];
            // Who has said goodbye goes.
            host.dies_after = host.dies_after.filter(|_| host.standing() == Some(Standing::Left));
            if host.paused_until_ns > self.now_ns {
                host.paused_until_ns = self.now_ns;
                host.turn_ns = self.now_ns;
                self.network.push(self.now_ns, Next::Turn(at));
            }
        }
    }

    /// Under policy `network` each host judges alone, and only who was up. A member that died before it was so here is not judged
    /// here; where all who could tell of it are gone too, nobody knows better than to wait.
    fn waits_for_the_unknown(&self, host: &Host<P>) -> bool {
        let (Some(group), Some(detector)) = (&host.group, &host.detector) else { return false };
        let incarnation = |id: u16| group.view().and_then(|view| view.incarnation(id));
        let runs = |id: u16| {
            let other = self.hosts.iter().find(|other| other.id == id);
            other.is_some_and(|other| other.detector.is_some() && Some(other.incarnation) == incarnation(id))
        };
        let unknown = |id: u16| {
            detector
                .peer(id)
                .is_none_or(|peer| Some(peer.incarnation) != incarnation(id) || peer.state == PeerState::Unknown)
        };
        let others = group.others();
        self.plan.policy == Policy::Network && !others.is_empty() && others.iter().all(|id| !runs(id) && unknown(id))
    }

    fn end(&mut self) -> Result<Stats, Violation> {
        let runs = |host: &&Host<P>| host.detector.is_some() && host.standing() != Some(Standing::Left);
        let acts = |host: &Host<P>| host.standing() == Some(Standing::Member) && host.lease(self.now_ns).holds();
        let running: Vec<&Host<P>> = self.members().filter(runs).collect();
        let acting: Vec<&Host<P>> = running.iter().copied().filter(|host| acts(host)).collect();
        let settled: Vec<_> = acting.iter().map(|host| (host.id, host.incarnation, host.state.position)).collect();
        let bereft = acting.iter().any(|host| self.waits_for_the_unknown(host));
        if !bereft {
            self.log.settled(&settled)?;
        }
        if !bereft && !acting.is_empty() && acting.len() < running.len() {
            let out: Vec<_> =
                running.iter().filter(|host| !acts(host)).map(|host| (host.id, host.standing())).collect();
            return violated("termination", format!("while others act, these do not: {out:?}"));
        }
        self.stats.acting_at_the_end = acting.len() as u64;
        self.stats.bereft = bereft.into();
        self.stats.views = self.views.agreed() - 1;
        self.stats.simulated_ns = self.now_ns;
        Ok(self.stats)
    }
}

/// What was told, to be read.
struct Shown<'a>(&'a [u8], &'a [u64]);

impl fmt::Debug for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.1)?;
        let views = entries(self.0).filter_map(|entry| match entry {
            Entry::View(view) => Some(view),
            _ => None,
        });
        views.into_iter().try_for_each(|view| write!(f, ", view {}: {:?}", view.number(), view.hosts()))
    }
}

/// Counts a copy. One that dies sends no more.
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
