// SPDX-License-Identifier: Apache-2.0
//! A small world: hosts with drifting clocks, two planes that delay, lose, duplicate and reorder, pauses,
//! cuts, crashes.

use crate::receive_model::ReceiveModel;
use crate::*;
use fide_types::{HostId, host_index};
use fide_wire::{HOST_SLOT, Membership, PAYLOAD_MAX, ViewId};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Chooses faults: the same ones for the same seed on every machine.
#[derive(Clone)]
pub(super) struct Rng(ChaCha8Rng);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0.random()
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0.random_range(0..n.max(1))
    }

    pub(super) fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }
}

/// A host promises at most this many times the timeout that it began with.
const PROMISE_FACTOR: u32 = 4;

struct Flight {
    at_ns: u64,
    to: usize,
    plane: u8,
    bytes: Vec<u8>,
}

/// The lease of a crashed agent, which its programs still read in shared memory.
struct OrphanLease {
    incarnation: u32,
    view: ViewId,
    members: Membership,
    until_ns: u64,
}

pub(super) struct Node {
    pub config: Config,
    pub detector: Option<Detector>,
    pub urgent_max: u32,
    pub promise_factor: u32,
    pub drift_ppm: i64,
    pub offset_ns: u64,
    pub paused_until_ns: u64,
    /// Since when its machine has been suspended, if it is. Its clock stands still meanwhile.
    asleep_since_ns: Option<u64>,
    slept_ns: u64,
    pub restart_at_ns: Option<u64>,
    /// Of a witness: its last vote, and how many lives it has had.
    vote: Option<(Vote, u32)>,
    inbox: VecDeque<(u64, u8, Vec<u8>)>,
    kernel: ReceiveModel,
    /// When its agent started, and when each incarnation last ran (world time).
    started_ns: u64,
    last_ns: BTreeMap<u32, u64>,
    orphans: Vec<OrphanLease>,
    last_turn_ns: u64,
    /// On its disk: the highest generation stored, and the one being written, until when.
    pub kept: u32,
    pub keeping: Option<(u32, u64)>,
    /// The most that its present life promises, which is on disk before it promises anything; and until when
    /// the promises of earlier lives bind.
    promised: Option<(u32, u64)>,
    /// What was delivered to its user by (host, slot, incarnation): whether it has ended, and the last
    /// piggyback.
    delivered: BTreeMap<(u16, u8, u32), (bool, u32)>,
}

pub(super) struct World {
    pub now_ns: u64,
    pub step_ns: u64,
    pub nodes: Vec<Node>,
    pub rng: Rng,
    pub latency_ns: u64,
    pub jitter_ns: u64,
    pub loss: u64,
    pub duplicate: u64,
    /// Per mille of loop turns that are late by a step.
    pub lazy: u64,
    /// (from, to, plane).
    pub cuts: BTreeSet<(usize, usize, u8)>,
    /// No wrong judgement may happen: trust lease, and no cut of all planes under policy network.
    pub strict: bool,
    /// No host notices that its clock stood still.
    pub blind: bool,
    /// No view has two memberships.
    pub one_membership: bool,
    pub trace: Vec<String>,
    pub auto_restart: bool,
    /// Receive as through the kernel's program: beats apart from sections.
    pub kernel: bool,
    pub delivered: u64,
    pub verdicts: u64,
    pub views: BTreeMap<ViewId, HostSet>,
    pub members: BTreeMap<ViewId, Membership>,
    /// Incarnations that were declared dead somewhere.
    dead: BTreeSet<(u16, u32)>,
    incarnations: u32,
    /// How many seconds each host's wall clock is ahead. With it, incarnations are numbered as agents do, and
    /// generations are stored on disk first. Without it, incarnations are numbered in the order in which they
    /// begin.
    pub ahead_s: Option<Vec<u32>>,
    /// How long storing a generation takes.
    pub disk_ns: u64,
    /// The newest generation by which a host acted.
    acted: u32,
    flights: Vec<Flight>,
    /// What an eavesdropper has recorded, with the senders.
    tape: Option<VecDeque<(usize, u8, Vec<u8>)>>,
    replays: Vec<Replay>,
}

/// Recorded packets of one host that are sent to another again and again, in order, two a millisecond.
struct Replay {
    to: usize,
    packets: Vec<(u8, Vec<u8>)>,
    next: usize,
    at_ns: u64,
}

/// The newest packets that an eavesdropper keeps.
const TAPE_MAX: usize = 4000;

impl World {
    pub(super) fn new(configs: Vec<Config>, seed: u64) -> World {
        let nodes = configs
            .into_iter()
            .map(|config| Node {
                kernel: ReceiveModel::new(config.me),
                config,
                detector: None,
                urgent_max: 0,
                promise_factor: PROMISE_FACTOR,
                drift_ppm: 0,
                offset_ns: 0,
                paused_until_ns: 0,
                asleep_since_ns: None,
                slept_ns: 0,
                restart_at_ns: None,
                vote: None,
                inbox: VecDeque::new(),
                started_ns: 0,
                last_ns: BTreeMap::new(),
                orphans: Vec::new(),
                last_turn_ns: 0,
                kept: 0,
                keeping: None,
                promised: None,
                delivered: BTreeMap::new(),
            })
            .collect();
        World {
            now_ns: 1_000_000_000,
            step_ns: 50_000,
            nodes,
            rng: Rng::new(seed),
            latency_ns: 50_000,
            jitter_ns: 0,
            loss: 0,
            duplicate: 0,
            lazy: 0,
            cuts: BTreeSet::new(),
            strict: true,
            blind: false,
            one_membership: true,
            trace: Vec::new(),
            auto_restart: true,
            kernel: false,
            delivered: 0,
            verdicts: 0,
            views: BTreeMap::new(),
            members: BTreeMap::new(),
            dead: BTreeSet::new(),
            incarnations: 0,
            ahead_s: None,
            disk_ns: 1_000_000,
            acted: 0,
            flights: Vec::new(),
            tape: None,
            replays: Vec::new(),
        }
    }

    /// Records everything sent from now on.
    pub(super) fn record(&mut self) {
        self.tape.get_or_insert_default();
    }

    /// Sends `to` what was recorded of `from`, again and again.
    pub(super) fn replay(&mut self, from: usize, to: usize) {
        let tape = self.tape.iter().flatten();
        let packets = tape.filter(|(host, _, _)| *host == from).map(|(_, p, b)| (*p, b.clone())).collect();
        self.replays.push(Replay { to, packets, next: 0, at_ns: self.now_ns });
    }

    fn replays(&mut self) {
        for replay in self.replays.iter_mut().filter(|r| r.at_ns <= self.now_ns && !r.packets.is_empty()) {
            let (plane, bytes) = replay.packets[replay.next].clone();
            replay.next = (replay.next + 1) % replay.packets.len();
            replay.at_ns = self.now_ns + 500_000;
            self.flights.push(Flight { at_ns: self.now_ns, to: replay.to, plane, bytes });
        }
    }

    pub(super) fn local_ns(&self, node: usize) -> u64 {
        let n = &self.nodes[node];
        let awake_ns = n.asleep_since_ns.unwrap_or(self.now_ns) - n.slept_ns;
        let drift = i128::from(awake_ns) * i128::from(n.drift_ppm) / 1_000_000;
        (i128::from(awake_ns) + drift) as u64 + n.offset_ns
    }

    /// Suspends the node's machine for `span_ns`: nothing runs, its clock stands still, and packets to it
    /// wait.
    pub(super) fn suspend(&mut self, node: usize, span_ns: u64) {
        let n = &mut self.nodes[node];
        if n.asleep_since_ns.is_none() {
            n.asleep_since_ns = Some(self.now_ns);
            n.paused_until_ns = self.now_ns + span_ns;
        }
    }

    fn resume(&mut self, node: usize) {
        let Some(since_ns) = self.nodes[node].asleep_since_ns.take() else { return };
        let gap_ns = self.now_ns - since_ns;
        self.nodes[node].slept_ns += gap_ns;
        self.wake_orphans(node);
        let now = self.local_ns(node);
        if let Some(d) = &mut self.nodes[node].detector
            && !self.blind
        {
            d.doubt(now, gap_ns);
        }
    }

    /// Programs that read a lease see that their machine was suspended since.
    fn wake_orphans(&mut self, node: usize) {
        if !self.blind {
            self.nodes[node].orphans.clear();
        }
    }

    /// As an agent takes it: above what its disk holds, and no less than its wall clock.
    fn next_incarnation(&mut self, node: usize) -> u32 {
        self.incarnations += 1;
        let Some(ahead_s) = &self.ahead_s else { return self.incarnations };
        let clock_s = 100 + ahead_s[node] + (self.now_ns / 1_000_000_000) as u32;
        let n = &self.nodes[node];
        incarnation::next(Some(n.config.incarnation), Some(n.kept), clock_s.into()).expect("numbers are left")
    }

    /// Completes what was being written to the disk, and writes more if the detector needs it.
    fn keep(&mut self, node: usize, detector: &mut Detector) {
        let (now_ns, disk_ns) = (self.now_ns, self.disk_ns);
        let n = &mut self.nodes[node];
        if let Some((generation, _)) = n.keeping.take_if(|(_, at_ns)| *at_ns <= now_ns) {
            n.kept = n.kept.max(generation);
            detector.has_kept_generation(generation);
        }
        let wanted = detector.generation_to_keep();
        if n.keeping.is_none() && wanted > n.kept {
            n.keeping = Some((wanted, now_ns + disk_ns));
        }
    }

    /// Starts the node, or starts it again as a new incarnation after a crash.
    pub(super) fn start(&mut self, node: usize) {
        let incarnation = self.next_incarnation(node);
        if self.nodes[node].asleep_since_ns.is_some() {
            self.wake_orphans(node);
        }
        let now = self.local_ns(node);
        let n = &mut self.nodes[node];
        n.config.incarnation = incarnation;
        let mut detector = Detector::new(n.config.clone(), now).unwrap();
        n.keeping = None;
        if self.ahead_s.is_some() {
            detector.keeps_generations_up_to(n.kept);
        }
        let former_ns = n.promised.map_or(now, |(most_us, before_ns)| before_ns.max(now + u64::from(most_us) * 1000));
        let most_us = n.config.timeout_ns as u32 / 1000 * n.promise_factor;
        n.promised = Some((most_us, former_ns));
        detector.heed_former(now, (former_ns - now).div_ceil(1000) as u32);
        detector.set_promise_max(most_us);
        detector.set_urgent_max(n.urgent_max);
        n.detector = Some(detector);
        n.delivered.clear();
        n.inbox.clear();
        n.kernel = ReceiveModel::new(n.config.me);
        n.paused_until_ns = 0;
        n.restart_at_ns = None;
        n.started_ns = self.now_ns;
        if let Some(since_ns) = n.asleep_since_ns.take() {
            n.slept_ns += self.now_ns - since_ns;
        }
    }

    /// Starts a crashed witness again, as the incarnation that it was.
    pub(super) fn recall(&mut self, node: usize) {
        let now = self.local_ns(node);
        let n = &mut self.nodes[node];
        let (vote, lives) = n.vote.as_mut().expect("a witness that has crashed");
        *lives += 1;
        let mut detector = Detector::resume(n.config.clone(), vote, *lives, now).unwrap();
        detector.set_urgent_max(n.urgent_max);
        n.detector = Some(detector);
        n.delivered.clear();
        n.kernel = ReceiveModel::new(n.config.me);
        n.started_ns = self.now_ns;
    }

    pub(super) fn crash(&mut self, node: usize) {
        let now = self.local_ns(node);
        let n = &mut self.nodes[node];
        if let Some(d) = &n.detector {
            // An agent grants its programs no lease beyond the timeout that it began with, from its last
            // turn.
            let until_ns = d.lease_until_ns().min(n.last_turn_ns.saturating_add(d.config().timeout_ns));
            let (incarnation, view, members) = (d.config().incarnation, d.views.id(), *d.views.members());
            n.orphans.retain(|o| now < o.until_ns);
            n.orphans.push(OrphanLease { incarnation, view, members, until_ns });
        }
        n.vote = n.detector.as_ref().map(|detector| (detector.vote(), n.vote.map_or(0, |(_, lives)| lives)));
        self.nodes[node].detector = None;
        self.nodes[node].restart_at_ns = None;
        self.nodes[node].inbox.clear();
    }

    pub(super) fn run(&mut self, span_ns: u64) {
        let end = self.now_ns + span_ns;
        while self.now_ns < end {
            self.now_ns += self.step_ns;
            self.replays();
            self.arrive();
            let first = self.rng.below(self.nodes.len() as u64) as usize;
            for i in 0..self.nodes.len() {
                let node = (first + i) % self.nodes.len();
                let lazy = self.lazy > 0 && self.rng.chance(self.lazy);
                if self.nodes[node].paused_until_ns <= self.now_ns && !lazy {
                    self.resume(node);
                    self.turn(node);
                }
            }
            self.check();
        }
    }

    fn arrive(&mut self) {
        let now = self.now_ns;
        let mut at = 0;
        while at < self.flights.len() {
            let asleep = self.nodes[self.flights[at].to].asleep_since_ns.is_some();
            if self.flights[at].at_ns <= now && !asleep {
                let flight = self.flights.remove(at);
                let rx = self.local_ns(flight.to);
                let node = &mut self.nodes[flight.to];
                // A socket's queue has a bound.
                if self.kernel && !node.kernel.take(rx, flight.plane, &flight.bytes, node.inbox.len() < 64) {
                    continue;
                }
                if node.detector.is_some() && node.inbox.len() < 64 {
                    node.inbox.push_back((rx, flight.plane, flight.bytes));
                }
            } else {
                at += 1;
            }
        }
    }

    fn turn(&mut self, node: usize) {
        let now = self.local_ns(node);
        if self.nodes[node].restart_at_ns.is_some_and(|at| self.now_ns >= at) {
            self.nodes[node].restart_at_ns = None;
            let incarnation = self.next_incarnation(node);
            if let Some(d) = &mut self.nodes[node].detector {
                d.restart(now, incarnation).unwrap();
                self.nodes[node].config.incarnation = incarnation;
            }
        }
        let Some(mut detector) = self.nodes[node].detector.take() else { return };
        self.nodes[node].last_ns.insert(detector.config().incarnation, self.now_ns);
        while let Some((rx, plane, bytes)) = self.nodes[node].inbox.pop_front() {
            let result = if self.kernel {
                detector.handle_sections(now, rx, plane, &bytes)
            } else {
                detector.handle_packet(now, rx, plane, &bytes)
            };
            self.delivered += u64::from(result.is_ok());
        }
        for beat in self.nodes[node].kernel.beats() {
            let _ = detector.handle_beat(now, &beat);
        }
        detector.tick(now);
        if self.ahead_s.is_some() {
            self.keep(node, &mut detector);
        }
        self.nodes[node].last_turn_ns = now;
        let mut buf = [0u8; PAYLOAD_MAX];
        while let Some(transmit) = detector.poll_transmit(now, &mut buf) {
            for plane in 0..self.nodes[node].config.planes {
                fide_wire::set_plane(&mut buf, plane);
                for to in (0..self.nodes.len()).filter(|to| *to != node) {
                    self.send(node, to, plane, &buf[..transmit.len]);
                }
            }
        }
        while let Some(event) = detector.poll_event() {
            let bytes = detector.piggyback_bytes(&event).to_vec();
            self.deliver(node, &detector, event, &bytes);
        }
        self.check_no_recording(node, &detector);
        let (id, members) = (detector.view().id, *detector.views.members());
        let known = self.members.entry(id).or_insert(members);
        assert!(*known == members || !self.one_membership, "h{}: two memberships of view {id:?}", node + 1);
        self.nodes[node].detector = Some(detector);
    }

    fn send(&mut self, from: usize, to: usize, plane: u8, bytes: &[u8]) {
        if let Some(tape) = &mut self.tape
            && (0..self.nodes.len()).find(|n| *n != from) == Some(to)
        {
            if tape.len() == TAPE_MAX {
                tape.pop_front();
            }
            tape.push_back((from, plane, bytes.to_vec()));
        }
        if self.cuts.contains(&(from, to, plane)) || self.rng.chance(self.loss) {
            return;
        }
        for _ in 0..1 + u64::from(self.rng.chance(self.duplicate)) {
            let delay = self.latency_ns + self.rng.below(self.jitter_ns);
            self.flights.push(Flight { at_ns: self.now_ns + delay, to, plane, bytes: bytes.to_vec() });
        }
    }

    /// Checks an event against those delivered before.
    fn deliver(&mut self, node: usize, detector: &Detector, event: Event, bytes: &[u8]) {
        let line = describe(&event, detector);
        self.trace.push(format!("{:>9.2}ms h{} {line}", (self.now_ns - 1_000_000_000) as f64 / 1e6, node + 1));
        let delivered = &mut self.nodes[node].delivered;
        match event {
            Event::Up { host, slot, incarnation, .. } => {
                let old = delivered.insert((host, slot, incarnation), (false, 0));
                assert!(old.is_none(), "h{}: up twice: {line}", node + 1);
            }
            Event::Verdict(v) => {
                self.verdicts += 1;
                let Some(entry) = delivered.get_mut(&(v.host, v.slot, v.incarnation)) else {
                    panic!("h{}: a verdict about something never up: {line}", node + 1)
                };
                assert!(!entry.0, "h{}: a verdict after a final one: {line}", node + 1);
                entry.0 = v.reason.is_final();
                if v.slot == HOST_SLOT && v.reason == Reason::HostSilent {
                    self.check_verdict(node, &v);
                }
            }
            Event::Piggyback { host, slot, incarnation, pb_seq, .. } => {
                let Some(entry) = delivered.get_mut(&(host, slot, incarnation)) else {
                    panic!("h{}: a message of an unknown process: {line}", node + 1)
                };
                assert!(!entry.0, "h{}: a message after the verdict: {line}", node + 1);
                assert!(pb_seq > entry.1, "h{}: messages out of order: {line}", node + 1);
                entry.1 = pb_seq;
                let text = String::from_utf8_lossy(bytes);
                assert!(text.starts_with(&format!("{host}/{incarnation}/{pb_seq} ")), "wrong bytes {text:?}: {line}");
            }
            Event::ViewChanged { id, members } => {
                let known = *self.views.entry(id).or_insert(members);
                assert!(known == members || !self.one_membership, "h{}: two memberships of view {id:?}", node + 1);
            }
            Event::Excluded { .. } if self.auto_restart => {
                self.nodes[node].restart_at_ns = Some(self.now_ns + 3 * self.step_ns);
            }
            _ => {}
        }
    }

    /// Only incarnations that were alive after the observer's agent had started count as received.
    fn check_no_recording(&self, node: usize, detector: &Detector) {
        let started_ns = self.nodes[node].started_ns;
        for peer in detector.peers.others().filter(|peer| peer.heard()) {
            let (host, incarnation) = (peer.id, peer.incarnation);
            let last_ns = self.nodes[host_index(host)].last_ns.get(&incarnation).copied().unwrap_or(0);
            assert!(last_ns >= started_ns, "h{} takes a recording of h{host}#{incarnation} for life", node + 1);
        }
    }

    /// No host is declared dead while it acts, or its programs do.
    fn check_verdict(&mut self, by: usize, verdict: &Verdict) {
        let acts = self.strict
            && self.acting().any(|(host, incarnation, ..)| (host, incarnation) == (verdict.host, verdict.incarnation));
        assert!(!acts, "h{} judged h{} silent, which still acts: {verdict:?}", by + 1, verdict.host);
        self.dead.insert((verdict.host, verdict.incarnation));
    }

    /// The hosts that act: id, incarnation, and the view by which they act.
    fn acting(&self) -> impl Iterator<Item = (u16, u32, ViewId, Membership)> + '_ {
        let awake = |n: &usize| self.nodes[*n].asleep_since_ns.is_none();
        (0..self.nodes.len()).filter(awake).flat_map(|n| {
            let (node, now, me) = (&self.nodes[n], self.local_ns(n), n as u16 + 1);
            let agent = node.detector.as_ref().filter(move |d| !d.is_fenced(now));
            let agent = agent.map(|d| (me, d.config().incarnation, d.views.id(), *d.views.members()));
            let orphans = node.orphans.iter().filter(move |o| now < o.until_ns);
            agent.into_iter().chain(orphans.map(move |o| (me, o.incarnation, o.view, o.members)))
        })
    }

    /// Does anything act on this host as this incarnation?
    pub(super) fn acts_as(&self, node: usize, incarnation: u32) -> bool {
        self.acting().any(|(host, life, ..)| usize::from(host) == node + 1 && life == incarnation)
    }

    /// Every host that acts is a member of the newest view held by any of them.
    fn check(&mut self) {
        self.check_alone();
        let dead =
            |(host, incarnation, ..): &(u16, u32, ViewId, Membership)| self.dead.contains(&(*host, *incarnation));
        if !self.strict {
            return;
        }
        if let Some((host, incarnation, ..)) = self.acting().find(dead) {
            panic!("h{host}#{incarnation} acts, but was declared dead");
        }
        if self.nodes[0].config.policy != Policy::Majority {
            return;
        }
        let voters = self.nodes[0].config.voters();
        let active: Vec<_> = self.acting().filter(|(host, ..)| voters.contains(*host)).collect();
        let Some((_, _, newest, members)) = active.iter().max_by_key(|(_, _, view, _)| *view) else { return };
        for (host, incarnation, view, _) in &active {
            assert_eq!(view.generation, newest.generation, "two lineages act at once");
            assert!(members.contains(*host, *incarnation), "h{host} acts in {view:?} outside of {newest:?}");
        }
        let generation = newest.generation;
        assert!(generation >= self.acted, "acts by generation {generation} after {}: tokens go back", self.acted);
        self.acted = generation;
    }

    /// No host acts beside another one that has declared it dead and acts too.
    fn check_alone(&self) {
        if !self.strict {
            return;
        }
        let awake = |n: &usize| self.nodes[*n].asleep_since_ns.is_none();
        let acts = |n: &usize| self.nodes[*n].detector.as_ref().is_some_and(|d| !d.is_fenced(self.local_ns(*n)));
        let active: Vec<usize> = (0..self.nodes.len()).filter(awake).filter(acts).collect();
        for (a, b) in active.iter().flat_map(|a| active.iter().map(move |b| (*a, *b))) {
            let (Some(one), Some(other)) = (&self.nodes[a].detector, &self.nodes[b].detector) else { continue };
            let Some(peer) = one.peer(b as u16 + 1) else { continue };
            let dead = peer.state == PeerState::Dead && peer.incarnation == other.config().incarnation;
            assert!(!dead, "h{} acts, and h{}, which it has declared dead, acts too", a + 1, b + 1);
        }
    }

    /// Queues a message that says whose it is.
    pub(super) fn piggyback(&mut self, node: usize, slot: u8, size: usize) -> Result<u32, PiggybackError> {
        let Some(d) = &mut self.nodes[node].detector else { return Err(PiggybackError::NotJoined { slot }) };
        let process = d.process(node as u16 + 1, slot);
        let (incarnation, next) = process.map_or((0, 0), |p| (p.incarnation, p.pb_seq + 1));
        let mut bytes = format!("{}/{incarnation}/{next} ", node + 1).into_bytes();
        bytes.resize(bytes.len().max(size), b'.');
        d.piggyback(slot, &bytes)
    }

    pub(super) fn isolate(&mut self, node: usize, plane: u8, cut: bool) {
        for other in (0..self.nodes.len()).filter(|o| *o != node) {
            for pair in [(node, other, plane), (other, node, plane)] {
                if cut {
                    self.cuts.insert(pair);
                } else {
                    self.cuts.remove(&pair);
                }
            }
        }
    }
}

/// An event in one line, without anything that depends on rounding.
pub(super) fn describe(event: &Event, detector: &Detector) -> String {
    let who = |host: HostId, slot: u8, incarnation: u32| {
        if slot == HOST_SLOT {
            return format!("h{host}#{incarnation}");
        }
        let name = detector.process(host, slot).map_or("?".into(), |p| p.name.to_string());
        format!("{name}@h{host}#{}", incarnation & 0xfff)
    };
    let set = |s: &HostSet| s.iter().map(|h| format!("h{h}")).collect::<Vec<_>>().join(",");
    match event {
        Event::Up { host, slot, incarnation, .. } => format!("up {}", who(*host, *slot, *incarnation)),
        Event::Verdict(v) => {
            let e = &v.evidence;
            let mut line = format!("verdict {} {:?} via {:?}", who(v.host, v.slot, v.incarnation), v.reason, e.via);
            if !e.votes.is_empty() {
                line += &format!(" votes {}", set(&e.votes));
            }
            if e.superseded_by != 0 {
                line += &format!(" superseded_by {}", e.superseded_by);
            }
            if e.piggybacks_lost != 0 {
                line += &format!(" piggybacks_lost {}", e.piggybacks_lost);
            }
            if e.own_stalls != 0 {
                line += &format!(" own_stalls {} withheld {}", e.own_stalls, e.withheld);
            }
            line
        }
        Event::Piggyback { host, slot, incarnation, pb_seq, len, .. } => {
            format!("piggyback {} {pb_seq} of {len} bytes", who(*host, *slot, *incarnation))
        }
        Event::ObserverStalled { gap_ns, withheld } => {
            format!("observer_stalled {:.1}ms withheld {withheld}", *gap_ns as f64 / 1e6)
        }
        Event::PathLost { host, plane } => format!("path_lost h{host} plane {plane}"),
        Event::PathRestored { host, plane } => format!("path_restored h{host} plane {plane}"),
        Event::Fenced { .. } => "fenced".into(),
        Event::Unfenced { lease_until_ns } => {
            if *lease_until_ns == u64::MAX {
                "unfenced for good".into()
            } else {
                "unfenced".into()
            }
        }
        Event::Excluded { by, incarnation } => format!("excluded #{incarnation} by h{by}"),
        Event::PutBack { by, incarnation } => format!("put back #{incarnation}, as h{by} shows"),
        Event::ViewChanged { id, members } => format!("view {}.{} {}", id.generation, id.number, set(members)),
        Event::MonitorRequest { host, slot, pbsize, .. } => format!("watched by h{host}: slot {slot} pbsize {pbsize}"),
        Event::TimeoutChanged { host, timeout_ns } => format!("timeout h{host} {timeout_ns}ns"),
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() && std::env::var("FIDE_SEED").is_ok() {
            eprintln!("{}", self.trace.join("\n"));
        }
    }
}
