// SPDX-License-Identifier: Apache-2.0
//! All trees and all queues: the adjustment phase of X-Lane §3.2 and FiDe App. B.
//!
//! What a queue delays its packets by depends on the jitter that they bring, and they bring what the queues
//! before have given them. From flows without jitter, each queue is computed anew whenever something that
//! comes to it has changed, until nothing changes: the least values that agree with each other. They hold,
//! also if queues depend on each other in a circle: of all packets that break their bound, the first to do so
//! would have met only packets that keep theirs. When a tree is added all values grow, so that the old ones
//! are where to start; when one goes, what comes after its queues starts anew.

use std::collections::{BTreeMap, BTreeSet};

use crate::queue::{Arrival, Bounds, Input, Server, bounds, transmission_ps};
use crate::request::{PRIORITIES, Request, WIRE_MIN_BYTES, wire_bytes};
use crate::topology::{LinkId, Topology};
use crate::tree::Tree;

/// Queues computed until it is given up, for each queue in use.
const VISITS_MAX: usize = 256;
/// A packet under way for longer than this is refused: a second.
const UNDER_WAY_MAX_PS: u64 = 1_000_000_000_000;

/// A tree among those of the network.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct FlowId(pub(crate) u64, pub(crate) u8);

/// Why the trees cannot all be held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Trouble {
    pub(crate) link: LinkId,
    pub(crate) what: Overload,
}

/// What is too much for a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Overload {
    #[error("it would carry {needed_bps} bit/s of the lane, {allowed_bps} are allowed")]
    Bandwidth { needed_bps: u64, allowed_bps: u64 },
    #[error("{needed_bytes} bytes of the lane may wait there at once, {allowed_bytes} are allowed")]
    Queue { needed_bytes: u64, allowed_bytes: u64 },
    #[error("no bound for the delay was found")]
    Unbounded,
}

#[derive(Clone, Debug)]
struct Flow {
    priority: u8,
    period_ps: u64,
    wire_max_bytes: u64,
    wire_min_bytes: u64,
    bandwidth_bps: u64,
    tree: Tree,
    /// For each hop: earliest and latest arrival at its queue after the packet was sent, and the queue's delay.
    at: Vec<HopTimes>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct HopTimes {
    earliest_ps: u64,
    latest_ps: u64,
    delay_ps: u64,
}

#[derive(Clone, Debug, Default)]
struct Queue {
    /// Hops that wait here, in the order they came.
    hops: Vec<(FlowId, u32)>,
    /// How many of them are of each sub-lane.
    of: [u64; PRIORITIES],
    lane_bps: u64,
    wait_ps: [u64; PRIORITIES],
    backlog_bytes: u64,
}

/// What a link may carry.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Shares {
    pub(crate) bandwidth: f64,
    pub(crate) queue: f64,
    pub(crate) best_effort_wire_bytes: u64,
}

/// What of a link is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkUse {
    pub link: LinkId,
    pub trees: usize,
    pub lane_bps: u64,
    pub allowed_bps: u64,
    /// Wire bytes that may wait at once.
    pub backlog_bytes: u64,
    pub allowed_bytes: u64,
    /// The longest that any packet of these trees is here, from its arrival until its last bit has left, picoseconds.
    pub delay_max_ps: u64,
}

/// The trees in a topology, with the times of each hop.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    shares: Shares,
    flows: BTreeMap<FlowId, Flow>,
    queues: Vec<Queue>,
}

/// Queues to compute, nearest to the senders first: then on networks whose trees go up and down each is computed once.
#[derive(Default)]
struct Worklist(BTreeSet<(u8, LinkId)>);

impl Worklist {
    fn push(&mut self, topology: &Topology, link: LinkId) {
        let [from, to] = [topology.from(link), topology.to(link)].map(|node| topology.node(node).tier);
        let rank = if to > from { from } else { u8::MAX - from };
        self.0.insert((rank, link));
    }
}

/// What to put back, last first, if a tree cannot be added.
#[derive(Default)]
struct Before {
    times: Vec<(FlowId, u32, HopTimes)>,
    queues: Vec<(LinkId, [u64; PRIORITIES], u64)>,
}

impl Network {
    pub(crate) fn new(topology: &Topology, shares: Shares) -> Self {
        Self { shares, flows: BTreeMap::new(), queues: vec![Queue::default(); topology.links()] }
    }

    pub(crate) fn allowed_bps(&self, topology: &Topology, link: LinkId) -> u64 {
        let cable = topology.cable(link);
        let free = cable.bandwidth_bps - cable.reserved_bps;
        #[allow(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share"
        )]
        let share = (cable.bandwidth_bps as f64 * self.shares.bandwidth) as u64;
        // Below the whole, so that a busy period ends.
        share.min(free.saturating_sub(1))
    }

    fn allowed_bytes(&self, topology: &Topology, link: LinkId) -> u64 {
        #[allow(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share"
        )]
        let bytes = (topology.cable(link).queue_bytes as f64 * self.shares.queue) as u64;
        bytes
    }

    fn server(&self, topology: &Topology, link: LinkId) -> Server {
        let cable = topology.cable(link);
        Server {
            bandwidth_bps: cable.bandwidth_bps,
            best_effort_ps: transmission_ps(self.shares.best_effort_wire_bytes, cable.bandwidth_bps),
            reserved_burst_ps: transmission_ps(cable.reserved_burst_bytes, cable.bandwidth_bps),
            reserved_bps: cable.reserved_bps,
        }
    }

    pub(crate) fn lane_bps(&self, link: LinkId) -> u64 {
        self.queues[link.at()].lane_bps
    }

    /// What a packet that comes now may have to wait, without itself.
    pub(crate) fn wait_ps(&self, topology: &Topology, link: LinkId, priority: u8) -> u64 {
        let queue = &self.queues[link.at()];
        if queue.hops.is_empty() {
            let server = self.server(topology, link);
            return server.best_effort_ps + server.reserved_burst_ps;
        }
        queue.wait_ps[usize::from(priority)]
    }

    /// Trees at a link that a packet of this sub-lane makes wait.
    pub(crate) fn delayed(&self, link: LinkId, priority: u8) -> u64 {
        self.queues[link.at()].of[usize::from(priority)..].iter().sum()
    }

    /// Trees that use a link.
    pub(crate) fn users(&self, link: LinkId) -> impl Iterator<Item = FlowId> + '_ {
        self.queues[link.at()].hops.iter().map(|(flow, _)| *flow)
    }

    pub(crate) fn tree(&self, flow: FlowId) -> &Tree {
        &self.flows[&flow].tree
    }

    /// What of every link in use is used.
    pub(crate) fn links<'a>(&'a self, topology: &'a Topology) -> impl Iterator<Item = LinkUse> + 'a {
        self.queues.iter().zip(0..).filter(|(queue, _)| !queue.hops.is_empty()).map(|(queue, link)| LinkUse {
            link: LinkId(link),
            trees: queue.hops.len(),
            lane_bps: queue.lane_bps,
            allowed_bps: self.allowed_bps(topology, LinkId(link)),
            backlog_bytes: queue.backlog_bytes,
            allowed_bytes: self.allowed_bytes(topology, LinkId(link)),
            delay_max_ps: queue
                .hops
                .iter()
                .map(|(id, hop)| self.flows[id].at[*hop as usize].delay_ps)
                .max()
                .unwrap_or(0),
        })
    }

    /// Adds trees; if they cannot be held with what is there, nothing has changed.
    pub(crate) fn add(
        &mut self,
        topology: &Topology,
        request: &Request,
        trees: Vec<(FlowId, Tree)>,
    ) -> Result<(), Trouble> {
        let added: Vec<FlowId> = trees.iter().map(|(flow, _)| *flow).collect();
        let mut work = Worklist::default();
        for (id, tree) in trees {
            for (hop, link) in (0..).zip(tree.links()) {
                let queue = &mut self.queues[link.at()];
                // By tree, not by time of arrival: a tree taken out and put back leaves the queue as it was.
                let place = queue.hops.partition_point(|(other, _)| *other < id);
                queue.hops.insert(place, (id, hop));
                queue.of[usize::from(request.priority)] += 1;
                queue.lane_bps += request.bandwidth_bps();
                work.push(topology, link);
            }
            let mut flow = Flow {
                priority: request.priority,
                period_ps: request.period_min_ns * 1000,
                wire_max_bytes: request.wire_bytes(),
                // The contract names a largest size: smaller packets are sooner.
                wire_min_bytes: WIRE_MIN_BYTES.min(wire_bytes(request.size_max_bytes)),
                bandwidth_bps: request.bandwidth_bps(),
                at: vec![HopTimes::default(); tree.hops().len()],
                tree,
            };
            flow.reset(topology);
            self.flows.insert(id, flow);
        }
        let mut before = Before::default();
        let settled = self.too_much(topology, &work).map_or(Ok(()), Err);
        let settled = settled.and_then(|()| self.settle(topology, work, &mut before));
        let Err(trouble) = settled else { return Ok(()) };
        for (flow, hop, times) in before.times.into_iter().rev() {
            self.flow_mut(flow).at[hop as usize] = times;
        }
        for (link, wait_ps, backlog_bytes) in before.queues.into_iter().rev() {
            let queue = &mut self.queues[link.at()];
            (queue.wait_ps, queue.backlog_bytes) = (wait_ps, backlog_bytes);
        }
        self.take_out(&added);
        Err(trouble)
    }

    fn too_much(&self, topology: &Topology, work: &Worklist) -> Option<Trouble> {
        work.0.iter().find_map(|(_, link)| {
            let (needed_bps, allowed_bps) = (self.lane_bps(*link), self.allowed_bps(topology, *link));
            (needed_bps > allowed_bps)
                .then_some(Trouble { link: *link, what: Overload::Bandwidth { needed_bps, allowed_bps } })
        })
    }

    /// Takes trees out without computing anything; gives the links that they used.
    fn take_out(&mut self, flows: &[FlowId]) -> Vec<LinkId> {
        let mut touched = Vec::new();
        for id in flows {
            let Some(flow) = self.flows.remove(id) else { continue };
            for link in flow.tree.links() {
                let queue = &mut self.queues[link.at()];
                queue.hops.retain(|(other, _)| other != id);
                queue.of[usize::from(flow.priority)] -= 1;
                queue.lane_bps -= flow.bandwidth_bps;
                touched.push(link);
            }
        }
        touched
    }

    /// Takes trees out; what is left gets its new, smaller times.
    pub(crate) fn remove(&mut self, topology: &Topology, flows: &[FlowId]) {
        let touched = self.take_out(flows);
        for link in &touched {
            if self.queues[link.at()].hops.is_empty() {
                self.queues[link.at()] = Queue::default();
            }
        }
        let mut work = Worklist::default();
        for link in self.affected(&touched) {
            for (id, hop) in self.queues[link.at()].hops.clone() {
                let flow = self.flow_mut(id);
                flow.at[hop as usize].delay_ps = 0;
                for next in flow.tree.after(hop) {
                    flow.at[next].latest_ps = flow.at[next].earliest_ps;
                }
            }
            work.push(topology, link);
        }
        let settled = self.settle(topology, work, &mut Before::default());
        debug_assert!(settled.is_ok(), "fewer trees cannot be more than was held: {settled:?}");
    }

    /// Queues in use whose times may depend on what waits at these.
    fn affected(&self, links: &[LinkId]) -> BTreeSet<LinkId> {
        let mut affected = BTreeSet::new();
        let mut waiting: Vec<LinkId> = links.to_vec();
        while let Some(link) = waiting.pop() {
            if self.queues[link.at()].hops.is_empty() || !affected.insert(link) {
                continue;
            }
            for (id, hop) in &self.queues[link.at()].hops {
                let tree = &self.flows[id].tree;
                waiting.extend(tree.after(*hop).map(|next| tree.hops()[next].link));
            }
        }
        affected
    }

    fn flow_mut(&mut self, flow: FlowId) -> &mut Flow {
        self.flows.get_mut(&flow).expect("a hop's tree is there")
    }

    fn compute(&self, topology: &Topology, link: LinkId) -> Result<Bounds, Trouble> {
        let cable = topology.cable(link);
        let arrivals: Vec<Arrival> = self.queues[link.at()]
            .hops
            .iter()
            .map(|(id, hop)| {
                let flow = &self.flows[id];
                let times = flow.at[*hop as usize];
                let input = flow.tree.hops()[*hop as usize].before.map(|before| {
                    let link = flow.tree.hops()[before as usize].link;
                    let cable = topology.cable(link);
                    Input { link: link.0, bandwidth_bps: cable.bandwidth_bps, jitter_ps: cable.jitter_max_ns * 1000 }
                });
                Arrival {
                    priority: flow.priority,
                    transmission_ps: transmission_ps(flow.wire_max_bytes, cable.bandwidth_bps),
                    transmission_min_ps: transmission_ps(flow.wire_min_bytes, cable.bandwidth_bps),
                    period_ps: flow.period_ps,
                    jitter_ps: times.latest_ps - times.earliest_ps,
                    input,
                }
            })
            .collect();
        bounds(&self.server(topology, link), &arrivals).map_err(|_| Trouble { link, what: Overload::Unbounded })
    }

    fn settle(&mut self, topology: &Topology, mut work: Worklist, before: &mut Before) -> Result<(), Trouble> {
        let in_use = self.queues.iter().filter(|queue| !queue.hops.is_empty()).count();
        let mut visits = VISITS_MAX * in_use;
        while let Some((_, link)) = work.0.pop_first() {
            visits = visits.checked_sub(1).ok_or(Trouble { link, what: Overload::Unbounded })?;
            let bounds = self.compute(topology, link)?;
            let allowed_bytes = self.allowed_bytes(topology, link);
            if bounds.backlog_bytes > allowed_bytes {
                let what = Overload::Queue { needed_bytes: bounds.backlog_bytes, allowed_bytes };
                return Err(Trouble { link, what });
            }
            let queue = &mut self.queues[link.at()];
            before.queues.push((link, queue.wait_ps, queue.backlog_bytes));
            (queue.wait_ps, queue.backlog_bytes) = (bounds.wait_ps, bounds.backlog_bytes);
            let cable = topology.cable(link);
            let under_way_ps = (cable.latency_min_ns + cable.jitter_max_ns) * 1000;
            for (place, delay_ps) in bounds.delay_ps.into_iter().enumerate() {
                let (id, hop) = self.queues[link.at()].hops[place];
                let flow = self.flow_mut(id);
                let times = flow.at[hop as usize];
                if times.delay_ps != delay_ps {
                    before.times.push((id, hop, times));
                    flow.at[hop as usize].delay_ps = delay_ps;
                }
                let latest_ps = times.latest_ps + delay_ps + under_way_ps;
                if latest_ps > UNDER_WAY_MAX_PS {
                    return Err(Trouble { link, what: Overload::Unbounded });
                }
                for next in flow.tree.after(hop) {
                    if flow.at[next].latest_ps != latest_ps {
                        before.times.push((id, u32::try_from(next).expect("few hops"), flow.at[next]));
                        flow.at[next].latest_ps = latest_ps;
                        work.push(topology, flow.tree.hops()[next].link);
                    }
                }
            }
        }
        Ok(())
    }

    /// Earliest and latest arrival at receiver `j` of a tree, picoseconds after the packet was handed to the
    /// sender's queue.
    pub(crate) fn arrival_ps(&self, topology: &Topology, flow: FlowId, j: usize) -> (u64, u64) {
        let flow = &self.flows[&flow];
        let hop = flow.tree.arrival(j);
        let link = flow.tree.hops()[hop].link;
        let cable = topology.cable(link);
        let at = flow.at[hop];
        let earliest =
            at.earliest_ps + transmission_ps(flow.wire_min_bytes, cable.bandwidth_bps) + cable.latency_min_ns * 1000;
        let latest = at.latest_ps + at.delay_ps + (cable.latency_min_ns + cable.jitter_max_ns) * 1000;
        (earliest, latest)
    }
}

impl Flow {
    /// As if it were alone and no queue delayed it.
    fn reset(&mut self, topology: &Topology) {
        for hop in 0..self.at.len() {
            let this = self.tree.hops()[hop];
            let earliest_ps = this.before.map_or(0, |before| {
                let cable = topology.cable(self.tree.hops()[before as usize].link);
                self.at[before as usize].earliest_ps
                    + transmission_ps(self.wire_min_bytes, cable.bandwidth_bps)
                    + cable.latency_min_ns * 1000
            });
            self.at[hop] = HopTimes { earliest_ps, latest_ps: earliest_ps, delay_ps: 0 };
        }
    }
}
