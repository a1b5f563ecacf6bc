// SPDX-License-Identifier: Apache-2.0
//! The network graph G of X-Lane §3.1: hosts, switches, and cables that are two directed links each.

mod check;
mod generate;

use std::collections::HashMap;

pub use check::{BANDWIDTH_BPS, TopologyError, name_fits};
pub use generate::{CableSpec, FatTree, LeafSpine};

/// Most nodes of a topology: four times a fat tree of k = 48.
pub const MAX_NODES: usize = 1 << 17;
/// Most cables of a topology.
pub const MAX_CABLES: usize = 1 << 19;

/// A host or a switch, by its place in the topology.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct NodeId(pub u32);

/// One direction of a cable: cable `id / 2`, from its first to its second end if even.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct LinkId(pub u32);

/// A cable, by its place in the topology.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct CableId(pub u32);

impl NodeId {
    /// As an index.
    #[must_use]
    pub const fn at(self) -> usize {
        self.0 as usize
    }
}

impl LinkId {
    /// As an index.
    #[must_use]
    pub const fn at(self) -> usize {
        self.0 as usize
    }

    /// The cable of this link.
    #[must_use]
    pub const fn cable(self) -> CableId {
        CableId(self.0 / 2)
    }

    /// The other direction of the same cable.
    #[must_use]
    pub const fn reverse(self) -> Self {
        Self(self.0 ^ 1)
    }
}

impl CableId {
    /// As an index.
    #[must_use]
    pub const fn at(self) -> usize {
        self.0 as usize
    }

    /// Its two directions.
    #[must_use]
    pub const fn links(self) -> [LinkId; 2] {
        [LinkId(self.0 * 2), LinkId(self.0 * 2 + 1)]
    }
}

/// Whether packets may pass through a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeKind {
    /// Sends and receives, never forwards.
    Host,
    /// Forwards.
    Switch,
}

/// A host or a switch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    pub name: String,
    pub kind: NodeKind,
    /// Height above the hosts, for drawings and for telling trunk from core cables: hosts 0, their switches 1.
    pub tier: u8,
}

/// What kind of cable it is in the failure statistics that FiDe App. C uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CableKind {
    /// Between a host and its switch, or between that and the next tier.
    Trunk,
    /// Between the two highest of three tiers.
    Core,
}

/// A cable between two nodes; both directions are alike.
#[derive(Clone, PartialEq, Debug)]
pub struct Cable {
    pub ends: [NodeId; 2],
    /// Name of the port at each end; what a switch driver needs.
    pub ports: [String; 2],
    /// beta(u, v), bits per second.
    pub bandwidth_bps: u64,
    /// Bytes that the egress queue of the lane holds, in wire bytes.
    pub queue_bytes: u64,
    /// lambda_min(u, v): propagation, and processing at the node where it ends, nanoseconds.
    pub latency_min_ns: u64,
    /// delta_max(u, v): how much longer that may take, nanoseconds.
    pub jitter_max_ns: u64,
    /// Bits per second of this direction's highest priority that others use already.
    pub reserved_bps: u64,
    /// What those others may send at once, wire bytes.
    pub reserved_burst_bytes: u64,
    /// In the statistics of failures; none: by the tiers of its ends.
    pub kind: Option<CableKind>,
    /// Probability of at least one failure in a year; none: by its kind.
    pub failure_per_year: Option<f64>,
}

/// Hosts, switches and cables, checked, with each node's links at hand.
#[derive(Clone, Debug)]
pub struct Topology {
    nodes: Vec<Node>,
    cables: Vec<Cable>,
    by_name: HashMap<String, NodeId>,
    /// Links that leave node n: `leaving[starts[n]..starts[n + 1]]`.
    starts: Vec<u32>,
    leaving: Vec<LinkId>,
    /// Where each link leads: `[from, to]`.
    ends: Vec<[NodeId; 2]>,
}

impl Topology {
    /// Checks and indexes.
    ///
    /// # Errors
    /// [`TopologyError`], which names the node or the cable that is wrong.
    pub fn new(nodes: Vec<Node>, cables: Vec<Cable>) -> Result<Self, TopologyError> {
        let by_name = check::check(&nodes, &cables)?;
        let ends: Vec<[NodeId; 2]> =
            cables.iter().flat_map(|cable| [cable.ends, [cable.ends[1], cable.ends[0]]]).collect();
        let mut starts = vec![0_u32; nodes.len() + 1];
        for [from, _] in &ends {
            starts[from.at() + 1] += 1;
        }
        for node in 0..nodes.len() {
            starts[node + 1] += starts[node];
        }
        let mut next = starts.clone();
        let mut leaving = vec![LinkId(0); ends.len()];
        for (link, [from, _]) in (0..).zip(&ends) {
            leaving[next[from.at()] as usize] = LinkId(link);
            next[from.at()] += 1;
        }
        Ok(Self { nodes, cables, by_name, starts, leaving, ends })
    }

    /// All nodes, by [`NodeId`].
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// All cables, by [`CableId`].
    #[must_use]
    pub fn cables(&self) -> &[Cable] {
        &self.cables
    }

    /// Ids of all nodes.
    pub fn node_ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..u32::try_from(self.nodes.len()).expect("at most MAX_NODES")).map(NodeId)
    }

    /// Ids of all hosts, in order.
    pub fn hosts(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.node_ids().filter(|node| self.is_host(*node))
    }

    /// Ids of all cables.
    pub fn cable_ids(&self) -> impl Iterator<Item = CableId> + use<> {
        (0..u32::try_from(self.cables.len()).expect("at most MAX_CABLES")).map(CableId)
    }

    /// Number of directed links.
    #[must_use]
    pub fn links(&self) -> usize {
        self.ends.len()
    }

    /// A node.
    #[must_use]
    pub fn node(&self, node: NodeId) -> &Node {
        &self.nodes[node.at()]
    }

    /// Whether it is a host.
    #[must_use]
    pub fn is_host(&self, node: NodeId) -> bool {
        self.nodes[node.at()].kind == NodeKind::Host
    }

    /// The cable of a link.
    #[must_use]
    pub fn cable(&self, link: LinkId) -> &Cable {
        &self.cables[link.cable().at()]
    }

    /// Where a link begins.
    #[must_use]
    pub fn from(&self, link: LinkId) -> NodeId {
        self.ends[link.at()][0]
    }

    /// Where a link ends.
    #[must_use]
    pub fn to(&self, link: LinkId) -> NodeId {
        self.ends[link.at()][1]
    }

    /// Name of the port that a link leaves from.
    #[must_use]
    pub fn port(&self, link: LinkId) -> &str {
        &self.cable(link).ports[link.at() & 1]
    }

    /// Links that leave a node.
    #[must_use]
    pub fn leaving(&self, node: NodeId) -> &[LinkId] {
        &self.leaving[self.starts[node.at()] as usize..self.starts[node.at() + 1] as usize]
    }

    /// Links that enter a node.
    pub fn entering(&self, node: NodeId) -> impl Iterator<Item = LinkId> + '_ {
        self.leaving(node).iter().map(|link| link.reverse())
    }

    /// A node by its name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<NodeId> {
        self.by_name.get(name).copied()
    }

    /// `from>to`, with the port if there are several cables between the two.
    #[must_use]
    pub fn link_name(&self, link: LinkId) -> String {
        let (from, to) = (self.from(link), self.to(link));
        let alike = self.leaving(from).iter().filter(|other| self.to(**other) == to).count();
        let (from, to) = (&self.node(from).name, &self.node(to).name);
        if alike > 1 { format!("{from}:{}>{to}", self.port(link)) } else { format!("{from}>{to}") }
    }

    /// `a--b`, with the ports if there are several cables between the two.
    #[must_use]
    pub fn cable_name(&self, cable: CableId) -> String {
        let link = cable.links()[0];
        let (from, to) = (self.from(link), self.to(link));
        let alike = self.leaving(from).iter().filter(|other| self.to(**other) == to).count();
        let (from, to) = (&self.node(from).name, &self.node(to).name);
        if alike > 1 {
            format!("{from}:{}--{to}:{}", self.port(link), self.port(link.reverse()))
        } else {
            format!("{from}--{to}")
        }
    }

    /// A cable by a name that [`Topology::cable_name`] gives, either end first.
    #[must_use]
    pub fn find_cable(&self, name: &str) -> Option<CableId> {
        let (a, b) = name.split_once("--")?;
        let (a, a_port) = a.split_once(':').map_or((a, None), |(node, port)| (node, Some(port)));
        let (b, b_port) = b.split_once(':').map_or((b, None), |(node, port)| (node, Some(port)));
        let (a, b) = (self.find(a)?, self.find(b)?);
        let fits = |link: &&LinkId| {
            self.to(**link) == b
                && a_port.is_none_or(|port| self.port(**link) == port)
                && b_port.is_none_or(|port| self.port(link.reverse()) == port)
        };
        let mut found = self.leaving(a).iter().filter(fits);
        let link = found.next()?;
        // A name that fits several cables names none.
        found.next().is_none().then(|| link.cable())
    }

    /// Its kind in the statistics of failures: as given, else a core cable if it ends at the third tier or above.
    #[must_use]
    pub fn cable_kind(&self, cable: CableId) -> CableKind {
        let cable = &self.cables[cable.at()];
        let tier = cable.ends.iter().map(|end| self.node(*end).tier).max().unwrap_or(0);
        cable.kind.unwrap_or(if tier >= 3 { CableKind::Core } else { CableKind::Trunk })
    }
}

#[cfg(test)]
mod tests;
