// SPDX-License-Identifier: Apache-2.0
//! A network at the level of packets (the model of X-Lane §3.1): a packet that comes to a node is put into
//! the egress queue of every next link, is sent in the order of sub-lanes and then of arrival, and takes
//! between latency_min and latency_min + jitter_max to the next node. Best-effort frames are sent only while
//! no packet of the lane waits, but are not broken off. Time is in picoseconds.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use fide_planner::request::PRIORITIES;
use fide_planner::{LinkId, Planner, RequestId, Topology, Tree, transmission_ps};

/// Events of one run; beyond it the caller has asked for too much.
const EVENTS_MAX: u64 = 200_000_000;

/// A periodic sender on one tree.
#[derive(Clone, Debug)]
pub struct Flow {
    pub id: RequestId,
    /// Which tree of the request.
    pub tree_index: usize,
    pub tree: Tree,
    pub priority: u8,
    pub period_ps: u64,
    /// Wire bytes of its largest and smallest packet.
    pub wire_max_bytes: u64,
    pub wire_min_bytes: u64,
}

/// All trees of a planner.
#[must_use]
pub fn flows(planner: &Planner) -> Vec<Flow> {
    planner
        .allocations()
        .flat_map(|(id, allocation)| {
            allocation.trees.iter().enumerate().map(move |(tree_index, tree)| Flow {
                id,
                tree_index,
                tree: tree.clone(),
                priority: allocation.request.priority,
                period_ps: allocation.request.period_min_ns * 1000,
                wire_max_bytes: allocation.request.wire_bytes(),
                wire_min_bytes: fide_planner::request::WIRE_MIN_BYTES,
            })
        })
        .collect()
}

/// What the world decides: everything that a contract leaves open.
pub trait Schedule {
    /// When packet `n` of a flow is handed to its sender's queue; at least a period after the one before.
    /// None: no more.
    fn sent_ps(&mut self, flow: usize, n: u32) -> Option<u64>;
    /// Wire bytes of packet `n`.
    fn wire_bytes(&mut self, flow: usize, n: u32) -> u64;
    /// How much longer than its least a packet takes over a link, at most `max_ps`.
    fn jitter_ps(&mut self, flow: usize, n: u32, link: LinkId, max_ps: u64) -> u64;
    /// What is left of a best-effort frame on a link that is without packets of the lane as this one comes,
    /// at most `max_ps`.
    fn frame_left_ps(&mut self, flow: usize, n: u32, link: LinkId, max_ps: u64) -> u64;
    /// Which of two flows is put into a queue first if they come in the same picosecond: the smaller.
    fn rank(&self, flow: usize) -> u32;
}

/// What came of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// For each flow and receiver: the shortest and longest time under way, and when the packet of the
    /// longest was sent.
    pub latency_ps: Vec<Vec<Option<(u64, u64)>>>,
    /// For each link: the most wire bytes of the lane that were in its queue, the one being sent included.
    pub backlog_bytes: Vec<u64>,
    /// For each flow: when its packet 0 came to the queue of each hop.
    pub first_at_ps: Vec<Vec<u64>>,
    pub packets: u64,
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    flow: u32,
    n: u32,
    hop: u32,
    sent_ps: u64,
    wire_bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    /// Packet (by its place) comes to the queue of its hop, or to the receiver. Before what a link does at
    /// that time: a packet that comes as a link becomes free is still in time.
    Comes { rank: u32, packet: u32 },
    /// A link has sent what it was sending.
    Free { link: LinkId },
}

#[derive(Default)]
struct Port {
    busy: bool,
    sending: Option<Packet>,
    waiting: [VecDeque<Packet>; PRIORITIES],
    waiting_bytes: u64,
}

struct World<'a, S> {
    topology: &'a Topology,
    flows: &'a [Flow],
    schedule: &'a mut S,
    best_effort_wire_bytes: u64,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    packets: Vec<Packet>,
    free_places: Vec<u32>,
    ports: Vec<Port>,
    /// For each flow and hop the receiver that it ends at.
    receiver: Vec<Vec<Option<usize>>>,
    outcome: Outcome,
}

/// Runs until no packet is left.
///
/// # Panics
/// If the schedule breaks a rule (a jitter beyond its bound, packets sooner than a period after each other),
/// or sends more than a run can take.
pub fn run<S: Schedule>(topology: &Topology, flows: &[Flow], best_effort_wire_bytes: u64, schedule: &mut S) -> Outcome {
    let receiver = flows
        .iter()
        .map(|flow| {
            let mut at = vec![None; flow.tree.hops().len()];
            (0..flow.tree.receivers()).for_each(|j| at[flow.tree.arrival(j)] = Some(j));
            at
        })
        .collect();
    let mut world = World {
        topology,
        flows,
        schedule,
        best_effort_wire_bytes,
        events: BinaryHeap::new(),
        packets: Vec::new(),
        free_places: Vec::new(),
        ports: (0..topology.links()).map(|_| Port::default()).collect(),
        receiver,
        outcome: Outcome {
            latency_ps: flows.iter().map(|flow| vec![None; flow.tree.receivers()]).collect(),
            backlog_bytes: vec![0; topology.links()],
            first_at_ps: flows.iter().map(|flow| vec![u64::MAX; flow.tree.hops().len()]).collect(),
            packets: 0,
        },
    };
    for flow in 0..u32::try_from(flows.len()).expect("flows are few") {
        world.send(flow, 0, None);
    }
    let mut events = 0;
    while let Some(Reverse((now, event))) = world.events.pop() {
        events += 1;
        assert!(events < EVENTS_MAX, "more than {EVENTS_MAX} events: ask for fewer packets");
        match event {
            Event::Comes { packet, .. } => world.comes(now, packet),
            Event::Free { link } => world.free(now, link),
        }
    }
    world.outcome
}

impl<S: Schedule> World<'_, S> {
    fn put(&mut self, at: u64, packet: Packet) {
        let place = match self.free_places.pop() {
            Some(place) => {
                self.packets[place as usize] = packet;
                place
            }
            None => {
                self.packets.push(packet);
                u32::try_from(self.packets.len() - 1).expect("bounded by EVENTS_MAX")
            }
        };
        let rank = self.schedule.rank(packet.flow as usize);
        self.events.push(Reverse((at, Event::Comes { rank, packet: place })));
    }

    /// Hands packet `n` of a flow to the queues of its sender.
    fn send(&mut self, flow: u32, n: u32, before_ps: Option<u64>) {
        let Some(sent_ps) = self.schedule.sent_ps(flow as usize, n) else { return };
        let spec = &self.flows[flow as usize];
        if let Some(before) = before_ps {
            assert!(sent_ps >= before + spec.period_ps, "packet {n} of flow {flow} is sent too soon");
        }
        let wire_bytes = self.schedule.wire_bytes(flow as usize, n);
        assert!((spec.wire_min_bytes..=spec.wire_max_bytes).contains(&wire_bytes), "{wire_bytes} bytes");
        for (hop, this) in (0..).zip(spec.tree.hops()) {
            if this.before.is_none() {
                self.put(sent_ps, Packet { flow, n, hop, sent_ps, wire_bytes });
            }
        }
    }

    fn comes(&mut self, now: u64, place: u32) {
        let packet = self.packets[place as usize];
        self.free_places.push(place);
        let spec = &self.flows[packet.flow as usize];
        let hop = spec.tree.hops()[packet.hop as usize];
        if packet.n == 0 {
            self.outcome.first_at_ps[packet.flow as usize][packet.hop as usize] = now;
        }
        // The next packet is known when this one is sent.
        if packet.hop == 0 {
            self.send(packet.flow, packet.n + 1, Some(packet.sent_ps));
        }
        let link = hop.link;
        let cable = self.topology.cable(link);
        let port = &mut self.ports[link.at()];
        port.waiting[usize::from(spec.priority)].push_back(packet);
        port.waiting_bytes += packet.wire_bytes;
        self.outcome.backlog_bytes[link.at()] = self.outcome.backlog_bytes[link.at()].max(port.waiting_bytes);
        if !port.busy {
            port.busy = true;
            let most = transmission_ps(self.best_effort_wire_bytes, cable.bandwidth_bps);
            let left = self.schedule.frame_left_ps(packet.flow as usize, packet.n, link, most);
            assert!(left <= most, "a frame of {left} ps of at most {most}");
            self.events.push(Reverse((now + left, Event::Free { link })));
        }
    }

    fn free(&mut self, now: u64, link: LinkId) {
        let cable = self.topology.cable(link);
        if let Some(packet) = self.ports[link.at()].sending.take() {
            self.ports[link.at()].waiting_bytes -= packet.wire_bytes;
            self.outcome.packets += 1;
            let most = cable.jitter_max_ns * 1000;
            let jitter = self.schedule.jitter_ps(packet.flow as usize, packet.n, link, most);
            assert!(jitter <= most, "a jitter of {jitter} ps of at most {most}");
            let at = now + cable.latency_min_ns * 1000 + jitter;
            let flow = packet.flow as usize;
            if let Some(j) = self.receiver[flow][packet.hop as usize] {
                let took = at - packet.sent_ps;
                let known = &mut self.outcome.latency_ps[flow][j];
                *known = Some(known.map_or((took, took), |(min, max)| (min.min(took), max.max(took))));
            }
            for next in self.flows[flow].tree.after(packet.hop) {
                let hop = u32::try_from(next).expect("few hops");
                self.put(at, Packet { hop, ..packet });
            }
        }
        let port = &mut self.ports[link.at()];
        match port.waiting.iter_mut().find_map(VecDeque::pop_front) {
            Some(packet) => {
                let took = transmission_ps(packet.wire_bytes, cable.bandwidth_bps);
                port.sending = Some(packet);
                self.events.push(Reverse((now + took, Event::Free { link })));
            }
            None => port.busy = false,
        }
    }
}
