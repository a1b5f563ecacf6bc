// SPDX-License-Identifier: Apache-2.0
//! Everything that is reported about a plan, computed once.

use fide_planner::{Allocation, CableId, Latency, LinkUse, RequestId, Tree, topology::CableKind, trees::Method};
use serde::Serialize;

use crate::plan::model::Plan;

/// Latency of one receiver, or of several together, with the timeout that follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Times {
    /// lambda_min.
    pub latency_min_ns: u64,
    /// lambda_min + delta_max.
    pub latency_max_ns: u64,
    /// delta_max.
    pub jitter_max_ns: u64,
    /// TO = HB + lambda_min + 2 delta_max (FiDe §3.3), with the period of the request as HB.
    pub timeout_ns: u64,
}

impl Times {
    fn of(latency: Latency, period_ns: u64) -> Self {
        Self {
            latency_min_ns: latency.latency_min_ns,
            latency_max_ns: latency.latency_max_ns(),
            jitter_max_ns: latency.jitter_max_ns,
            timeout_ns: latency.timeout_ns(period_ns),
        }
    }

    /// From the earliest latency of any receiver to the latest of any.
    fn over(all: &[ReceiverFigures], period_ns: u64) -> Self {
        let min = all.iter().map(|one| one.times.latency_min_ns).min().unwrap_or(0);
        let max = all.iter().map(|one| one.times.latency_max_ns).max().unwrap_or(0);
        Self::of(Latency { latency_min_ns: min, jitter_max_ns: max - min }, period_ns)
    }
}

/// One receiver.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ReceiverFigures {
    pub host: String,
    #[serde(flatten)]
    pub times: Times,
}

/// One link of a tree.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct HopFigures {
    pub from: String,
    pub to: String,
    /// The port of `from`.
    pub port: String,
    pub cable: String,
}

/// One tree.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct TreeFigures {
    /// Whether it uses something that does not work.
    pub broken: bool,
    pub overall: Times,
    pub receivers: Vec<ReceiverFigures>,
    /// Parents first.
    pub links: Vec<HopFigures>,
}

/// How likely all trees of a request fail together (FiDe App. C).
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Odds {
    /// An upper bound.
    pub probability_per_year: f64,
    /// 1 / probability; `None` if the probability is 0.
    pub years_between: Option<f64>,
}

impl Odds {
    /// The odds for a probability per year.
    #[must_use]
    pub fn of(probability_per_year: f64) -> Self {
        let years_between = (probability_per_year > 0.0).then(|| 1.0 / probability_per_year);
        Self { probability_per_year, years_between }
    }

    /// For people: `once in 22.6 years`.
    #[must_use]
    pub fn words(&self) -> String {
        self.years_between.map_or("never".to_owned(), |years| format!("once in {}", crate::units::years(years)))
    }
}

/// One request that was granted.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct RequestFigures {
    pub id: u64,
    pub name: String,
    pub sender: String,
    /// Largest UDP payload.
    pub size_max_bytes: u64,
    /// Bytes on the wire of a packet of that size.
    pub wire_max_bytes: u64,
    pub period_min_ns: u64,
    /// Bandwidth that one tree takes of each of its links.
    pub bandwidth_bps: u64,
    pub priority: u8,
    pub redundancy: u8,
    pub latency_max_ns: Option<u64>,
    pub method: Method,
    /// Whether it was proved that no cheaper trees existed when these were chosen.
    pub proved_cheapest: bool,
    /// The contract, as long as one tree works.
    pub overall: Times,
    pub receivers: Vec<ReceiverFigures>,
    pub trees: Vec<TreeFigures>,
    pub odds: Odds,
}

/// One direction of a cable that trees use.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct LinkFigures {
    pub link: String,
    pub cable: String,
    pub from: String,
    pub to: String,
    pub port: String,
    pub works: bool,
    pub trees: usize,
    pub lane_bps: u64,
    pub allowed_bps: u64,
    /// Wire bytes of the lane that may wait at once.
    pub backlog_bytes: u64,
    pub allowed_bytes: u64,
    /// The longest time that a packet of these trees spends at this queue, its own transmission included.
    pub delay_max_ns: u64,
}

impl LinkFigures {
    /// Share of the allowed bandwidth that is used.
    #[must_use]
    pub fn lane_share(&self) -> f64 {
        share(self.lane_bps, self.allowed_bps)
    }

    /// Share of the allowed queue that may be used.
    #[must_use]
    pub fn backlog_share(&self) -> f64 {
        share(self.backlog_bytes, self.allowed_bytes)
    }
}

#[allow(clippy::cast_precision_loss, reason = "for people")]
pub(crate) fn share(used: u64, allowed: u64) -> f64 {
    if allowed == 0 { 0.0 } else { used as f64 / allowed as f64 }
}

/// One cable, used or not. Both directions are alike, except for their trees.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CableFigures {
    pub cable: String,
    /// The nodes that it joins.
    pub ends: [String; 2],
    /// Its port at each of them.
    pub ports: [String; 2],
    pub bandwidth_bps: u64,
    /// Capacity of the lane's egress queue, wire bytes.
    pub queue_bytes: u64,
    /// Propagation, and processing at the node where it ends.
    pub latency_min_ns: u64,
    /// How much longer the latency may be.
    pub jitter_max_ns: u64,
    /// Rate that others send at the highest priority, in each direction.
    pub reserved_bps: u64,
    /// Burst that those others may send at once, wire bytes.
    pub reserved_burst_bytes: u64,
    pub kind: CableKind,
    /// Its own probability of a failure, or that of its kind.
    pub failure_per_year: f64,
    /// Whether the limits let trees use it.
    pub allowed: bool,
    pub works: bool,
    /// Number of trees over it, in both directions; 0 if it is not used.
    pub trees: usize,
}

/// All cables, in the order of the topology.
pub(crate) fn cables(plan: &Plan<'_>) -> Vec<CableFigures> {
    let (planner, topology) = (plan.planner, plan.planner.topology());
    let mut trees = vec![0; topology.cables().len()];
    for link in planner.links() {
        trees[link.link.cable().at()] += link.trees;
    }
    let of = |id: CableId| {
        let cable = &topology.cables()[id.at()];
        CableFigures {
            cable: topology.cable_name(id),
            ends: cable.ends.map(|end| topology.node(end).name.clone()),
            ports: cable.ports.clone(),
            bandwidth_bps: cable.bandwidth_bps,
            queue_bytes: cable.queue_bytes,
            latency_min_ns: cable.latency_min_ns,
            jitter_max_ns: cable.jitter_max_ns,
            reserved_bps: cable.reserved_bps,
            reserved_burst_bytes: cable.reserved_burst_bytes,
            kind: topology.cable_kind(id),
            failure_per_year: plan.rates.cable(topology, id),
            allowed: planner.allows(id),
            works: planner.works(id),
            trees: trees[id.at()],
        }
    };
    topology.cable_ids().map(of).collect()
}

/// All requests, and the links in use.
#[derive(Clone, PartialEq, Debug)]
pub struct Figures {
    pub requests: Vec<RequestFigures>,
    /// Links in use, in order.
    pub links: Vec<LinkFigures>,
}

impl Figures {
    /// The figures of a plan.
    #[must_use]
    pub fn of<'a>(plan: impl Into<Plan<'a>>) -> Self {
        let plan = plan.into();
        Self {
            requests: plan.planner.allocations().map(|(id, allocation)| request(&plan, id, allocation)).collect(),
            links: plan.planner.links().map(|link| link_figures(&plan, &link)).collect(),
        }
    }

    /// Keeps only the requests that are named; keeps all if none is named.
    #[must_use]
    pub fn only(mut self, names: &[String]) -> Self {
        self.requests.retain(|request| names.is_empty() || names.contains(&request.name));
        self
    }

    /// The links with the largest share of their bandwidth or their queue used, at most `n`, the fullest first.
    #[must_use]
    pub fn fullest(&self, n: usize) -> Vec<&LinkFigures> {
        let mut links: Vec<&LinkFigures> = self.links.iter().collect();
        let full = |link: &LinkFigures| link.lane_share().max(link.backlog_share());
        links.sort_by(|a, b| full(b).total_cmp(&full(a)));
        links.truncate(n);
        links
    }
}

pub(crate) fn request(plan: &Plan<'_>, id: RequestId, allocation: &Allocation) -> RequestFigures {
    let request = &allocation.request;
    let period_ns = request.period_min_ns;
    let named = |latencies: Vec<Latency>| -> Vec<ReceiverFigures> {
        let hosts = request.receivers.iter().cloned().zip(latencies);
        hosts.map(|(host, latency)| ReceiverFigures { host, times: Times::of(latency, period_ns) }).collect()
    };
    let broken = plan.planner.broken(id);
    let trees = allocation.trees.iter().enumerate().map(|(n, tree)| {
        let latency = |j| plan.planner.tree_latency(id, n, j).expect("the planner holds this tree and receiver");
        let receivers = named((0..request.receivers.len()).map(latency).collect());
        let overall = Times::over(&receivers, period_ns);
        TreeFigures { broken: broken.contains(&n), overall, receivers, links: hops(plan, tree) }
    });
    RequestFigures {
        id: id.0,
        name: request.name.clone(),
        sender: request.sender.clone(),
        size_max_bytes: request.size_max_bytes,
        wire_max_bytes: request.wire_bytes(),
        period_min_ns: period_ns,
        bandwidth_bps: request.bandwidth_bps(),
        priority: request.priority,
        redundancy: request.redundancy,
        latency_max_ns: request.latency_max_ns,
        method: allocation.method,
        proved_cheapest: allocation.proved,
        overall: Times::of(allocation.contract.overall(), period_ns),
        receivers: named(allocation.contract.receivers.clone()),
        trees: trees.collect(),
        odds: Odds::of(plan.rates.compound(plan.planner.topology(), allocation)),
    }
}

fn hops(plan: &Plan<'_>, tree: &Tree) -> Vec<HopFigures> {
    let topology = plan.planner.topology();
    let name = |node| topology.node(node).name.clone();
    tree.links()
        .map(|link| HopFigures {
            from: name(topology.from(link)),
            to: name(topology.to(link)),
            port: topology.port(link).to_owned(),
            cable: topology.cable_name(link.cable()),
        })
        .collect()
}

fn link_figures(plan: &Plan<'_>, of: &LinkUse) -> LinkFigures {
    let topology = plan.planner.topology();
    LinkFigures {
        link: topology.link_name(of.link),
        cable: topology.cable_name(of.link.cable()),
        from: topology.node(topology.from(of.link)).name.clone(),
        to: topology.node(topology.to(of.link)).name.clone(),
        port: topology.port(of.link).to_owned(),
        works: plan.planner.works(of.link.cable()),
        trees: of.trees,
        lane_bps: of.lane_bps,
        allowed_bps: of.allowed_bps,
        backlog_bytes: of.backlog_bytes,
        allowed_bytes: of.allowed_bytes,
        delay_max_ns: of.delay_max_ps.div_ceil(1000),
    }
}
