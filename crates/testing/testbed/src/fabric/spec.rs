// SPDX-License-Identifier: Apache-2.0
//! The hosts, switches and links of a fabric, and generators for the data-centre topologies in which the
//! papers plan trees.

use crate::net::MAX_TESTBED_HOSTS;
use crate::node::FIRST_HOST;
use crate::{Error, Result};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Most switches of one fabric.
pub const MAX_SWITCHES: usize = 64;
/// Most links of one fabric; each has two interface numbers from [`super::wire::FIRST_LINK_INDEX`] on.
pub const MAX_LINKS: usize = 1024;
/// Linux's IFNAMSIZ without the terminating zero.
const MAX_PORT_NAME: usize = 15;
/// Ports of a host, in order of the planes.
pub(crate) const HOST_PORTS: [&str; 2] = ["p0", "p1"];
/// Names that a fabric needs for itself.
pub(crate) const MANAGEMENT: &str = "mgmt";
pub(crate) const CONTROLLER: &str = "ctl";

/// What a switch is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwitchKind {
    /// A Linux bridge; trees are static multicast entries.
    Bridge,
    /// Open vSwitch with the datapath in user space; trees are OpenFlow groups.
    Ovs,
}

/// One switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwitchSpec {
    /// `l1a`, `s1`: small letters, digits and `_`, at most 12; not `h` and a number, which are hosts.
    pub name: String,
    /// What it is made of.
    pub kind: SwitchKind,
}

/// One end of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// `h1` or a switch's name.
    pub node: String,
    /// Interface there: `p0` or `p1` at a host; at a switch by custom the neighbour's name.
    pub port: String,
}

/// One cable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkSpec {
    /// One end.
    pub a: End,
    /// The other.
    pub b: End,
}

/// What to build. The generators below make the usual graphs; the fields are public for other graphs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FabricSpec {
    /// Hosts, 1..=64; named h1, h2, ...
    pub hosts: usize,
    /// Switches.
    pub switches: Vec<SwitchSpec>,
    /// Links. They are cut by their place in this list.
    pub links: Vec<LinkSpec>,
    /// Rate of every link and direction in Mbit/s, with classes of strict priority for DSCP CS7 and, after
    /// it, EF. It applies at the hosts too, but not to senders that bypass the queueing disciplines
    /// (AF_PACKET, XDP). `None`: as fast as the machine, without a queue.
    pub rate_mbit: Option<u32>,
    /// Whether there is a separate management network: `m0` with 10.71.0.&lt;host&gt; at each host, and a
    /// controller's namespace with 10.71.0.254.
    pub management: bool,
}

/// Shape of [`FabricSpec::three_tier`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreeTier {
    /// Hosts in all, spread over the edge pairs in order.
    pub hosts: usize,
    /// Pods.
    pub pods: usize,
    /// Pairs of edge switches per pod.
    pub edge_pairs: usize,
    /// Aggregation switches per pod; each edge switch is linked to all of its pod.
    pub aggregation: usize,
    /// Core switches; core c is linked to aggregation switch (c - 1) mod `aggregation` + 1 of every pod.
    pub cores: usize,
}

impl FabricSpec {
    fn empty(hosts: usize) -> FabricSpec {
        FabricSpec { hosts, switches: Vec::new(), links: Vec::new(), rate_mbit: None, management: false }
    }

    /// Two switches `l1a` and `l1b` that are not linked; `p0` of every host at the first, `p1` at the second.
    /// The deployment with the shortest trees (FiDe §3.3, deployment notes).
    pub fn single_pair(hosts: usize) -> FabricSpec {
        FabricSpec::two_tier(hosts, 1, 0)
    }

    /// Leaf pairs `l1a`, `l1b`, `l2a`, ... with the hosts spread over them in order, and every leaf linked to every
    /// spine `s1`, `s2`, ... Disjoint trees between pairs need two spines.
    pub fn two_tier(hosts: usize, leaf_pairs: usize, spines: usize) -> FabricSpec {
        let mut spec = FabricSpec::empty(hosts);
        let pairs: Vec<_> = (1..=leaf_pairs).map(|p| spec.pair(&format!("l{p}"))).collect();
        spec.spread_hosts(&pairs);
        for s in 1..=spines {
            let spine = spec.switch(format!("s{s}"));
            for leaf in pairs.iter().flatten() {
                spec.link(leaf, &spine);
            }
        }
        spec
    }

    /// Pods with pairs of edge switches `e<pod>_<pair>a`, `...b` and aggregation switches `a<pod>_<n>`, joined by cores
    /// `c1`, `c2`, ... Disjoint trees need two aggregation switches per pod and two cores.
    pub fn three_tier(shape: ThreeTier) -> FabricSpec {
        let mut spec = FabricSpec::empty(shape.hosts);
        let mut pairs = Vec::new();
        for pod in 1..=shape.pods {
            let of_pod: Vec<_> = (1..=shape.edge_pairs).map(|p| spec.pair(&format!("e{pod}_{p}"))).collect();
            for n in 1..=shape.aggregation {
                let aggregation = spec.switch(format!("a{pod}_{n}"));
                for edge in of_pod.iter().flatten() {
                    spec.link(edge, &aggregation);
                }
            }
            pairs.extend(of_pod);
        }
        spec.spread_hosts(&pairs);
        for c in 1..=shape.cores {
            let core = spec.switch(format!("c{c}"));
            for pod in (1..=shape.pods).filter(|_| shape.aggregation > 0) {
                spec.link(&format!("a{pod}_{}", (c - 1) % shape.aggregation + 1), &core);
            }
        }
        spec
    }

    /// All switches as Open vSwitch.
    pub fn on_ovs(mut self) -> FabricSpec {
        self.switches.iter_mut().for_each(|s| s.kind = SwitchKind::Ovs);
        self
    }

    /// With the management network.
    pub fn managed(self) -> FabricSpec {
        FabricSpec { management: true, ..self }
    }

    /// With every link limited to `rate_mbit`.
    pub fn limited(self, rate_mbit: u32) -> FabricSpec {
        FabricSpec { rate_mbit: Some(rate_mbit), ..self }
    }

    /// Place in `links` of the link between two nodes, in either order.
    pub fn link_between(&self, one: &str, other: &str) -> Option<usize> {
        self.links.iter().position(|l| (l.a.node == one && l.b.node == other) || (l.a.node == other && l.b.node == one))
    }

    /// Places in `links` of all links of a node.
    pub fn links_of(&self, node: &str) -> Vec<usize> {
        let of_node = |l: &LinkSpec| l.a.node == node || l.b.node == node;
        (0..self.links.len()).filter(|i| of_node(&self.links[*i])).collect()
    }

    /// Planes of a host: how many of `p0`, `p1` it has.
    pub fn planes(&self, host: usize) -> usize {
        self.links_of(&format!("h{host}")).len()
    }

    /// A tree of shortest paths from a host's port `p<plane>` to all other hosts at theirs, through the
    /// switches that `through` allows: it gives, for each switch, the ports where packets leave. It serves to
    /// test a fabric, and does no planning.
    pub fn tree(
        &self,
        from: usize,
        plane: usize,
        through: impl Fn(&str) -> bool,
    ) -> BTreeMap<String, BTreeSet<String>> {
        // Neighbours of a switch, as the port there and the name of the node behind it.
        let neighbours = |switch: &str| -> Vec<(String, &End)> {
            let both = self.links.iter().flat_map(|l| [(&l.a, &l.b), (&l.b, &l.a)]);
            both.filter(|(near, _)| near.node == switch).map(|(near, far)| (near.port.clone(), far)).collect()
        };
        let sender = format!("h{from}");
        let first = self.links.iter().flat_map(|l| [(&l.a, &l.b), (&l.b, &l.a)]);
        let mut first = first.filter(|(near, _)| near.node == sender && near.port == HOST_PORTS[plane]);
        let Some((_, first)) = first.next() else { return BTreeMap::new() };
        // For each node reached: the switch before it, and the port there.
        let mut before: BTreeMap<&str, (&str, String)> = BTreeMap::new();
        let mut queue = VecDeque::from([first.node.as_str()]);
        while let Some(switch) = queue.pop_front() {
            for (port, far) in neighbours(switch) {
                let node = far.node.as_str();
                let host = self.is_host(node);
                let new = node != sender && node != first.node && !before.contains_key(node);
                if new && if host { far.port == HOST_PORTS[plane] } else { through(node) } {
                    before.insert(node, (switch, port));
                    if !host {
                        queue.push_back(node);
                    }
                }
            }
        }
        let mut tree: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for host in before.keys().filter(|n| self.is_host(n)) {
            let mut node = *host;
            while let Some((switch, port)) = before.get(node) {
                tree.entry(switch.to_string()).or_default().insert(port.clone());
                node = switch;
            }
        }
        tree
    }

    fn switch(&mut self, name: String) -> String {
        self.switches.push(SwitchSpec { name: name.clone(), kind: SwitchKind::Bridge });
        name
    }

    fn pair(&mut self, name: &str) -> [String; 2] {
        ["a", "b"].map(|side| self.switch(format!("{name}{side}")))
    }

    /// A link whose ports are named after the neighbours.
    fn link(&mut self, one: &str, other: &str) {
        let end = |node: &str, port: &str| End { node: node.into(), port: port.into() };
        self.links.push(LinkSpec { a: end(one, other), b: end(other, one) });
    }

    fn spread_hosts(&mut self, pairs: &[[String; 2]]) {
        let per_pair = self.hosts.div_ceil(pairs.len().max(1)).max(1);
        for host in FIRST_HOST..=self.hosts {
            let Some(pair) = pairs.get((host - FIRST_HOST) / per_pair) else { return };
            for (plane, switch) in pair.iter().enumerate() {
                let name = format!("h{host}");
                let a = End { node: name.clone(), port: HOST_PORTS[plane].into() };
                self.links.push(LinkSpec { a, b: End { node: switch.clone(), port: name } });
            }
        }
    }

    pub(crate) fn is_host(&self, node: &str) -> bool {
        host_number(node).is_some_and(|h| (FIRST_HOST..=self.hosts).contains(&h))
    }

    pub(crate) fn check(&self) -> Result<()> {
        let bad = |why: String| Err(Error::Spec(why));
        if !(1..=MAX_TESTBED_HOSTS).contains(&self.hosts) {
            return bad(format!("{} hosts; 1 to {MAX_TESTBED_HOSTS} are possible", self.hosts));
        }
        if self.switches.len() > MAX_SWITCHES || self.links.len() > MAX_LINKS {
            let (s, l) = (self.switches.len(), self.links.len());
            return bad(format!("{s} switches and {l} links; at most {MAX_SWITCHES} and {MAX_LINKS} are possible"));
        }
        if self.rate_mbit == Some(0) {
            return bad("a rate of 0 Mbit/s lets nothing through; give 1 or more, or none".into());
        }
        let mut switches = BTreeSet::new();
        for SwitchSpec { name, .. } in &self.switches {
            let letters = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
            if !letters || !(1..=12).contains(&name.len()) || host_number(name).is_some() {
                return bad(format!(
                    "switch `{name}`: a name has 1 to 12 small letters, digits and `_`, and is not `h` and a number"
                ));
            }
            if [MANAGEMENT, CONTROLLER].contains(&name.as_str()) || !switches.insert(name.as_str()) {
                return bad(format!("switch `{name}`: the name is taken; choose another"));
            }
        }
        let mut ports: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for link in &self.links {
            for end in [&link.a, &link.b] {
                let fits = if self.is_host(&end.node) {
                    HOST_PORTS.contains(&end.port.as_str())
                } else if switches.contains(end.node.as_str()) {
                    let taken = ["lo", "br0", "m0"].contains(&end.port.as_str());
                    (1..=MAX_PORT_NAME).contains(&end.port.len()) && !end.port.contains(['/', ' ', '\n']) && !taken
                } else {
                    return bad(format!("link {link:?}: there is no node `{}`", end.node));
                };
                if !fits {
                    return bad(format!(
                        "link {link:?}: port `{}` cannot be; a host has p0 and p1, a switch any interface name but lo, \
                         br0 and m0",
                        end.port
                    ));
                }
                if !ports.entry(&end.node).or_default().insert(&end.port) {
                    return bad(format!("port {} of {} has two cables", end.port, end.node));
                }
            }
            if link.a.node == link.b.node || (self.is_host(&link.a.node) && self.is_host(&link.b.node)) {
                return bad(format!("link {link:?}: a link joins two nodes of which one at least is a switch"));
            }
        }
        for host in FIRST_HOST..=self.hosts {
            if !ports.get(format!("h{host}").as_str()).is_some_and(|p| p.contains(HOST_PORTS[0])) {
                return bad(format!("h{host} has no cable at p0; every host needs one"));
            }
        }
        Ok(())
    }
}

/// 7 for `h7`.
fn host_number(node: &str) -> Option<usize> {
    node.strip_prefix('h').filter(|n| n.bytes().all(|b| b.is_ascii_digit()) && !n.is_empty())?.parse().ok()
}

#[cfg(test)]
mod tests;
