// SPDX-License-Identifier: Apache-2.0
//! A directed multicast tree, and the proof that several share nothing.

use std::collections::{HashMap, HashSet};

use crate::topology::{LinkId, NodeId, Topology};

/// One link of a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hop {
    pub link: LinkId,
    /// The hop before it; none at the sender.
    pub before: Option<u32>,
}

/// A tree from a sender to its receivers. Hops are sorted by the one before them, and each comes after it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tree {
    hops: Vec<Hop>,
    /// For each receiver of the request the hop that ends there.
    receivers: Vec<u32>,
}

/// Why links are not a tree that serves a request, or several not disjoint.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TreeError {
    #[error("{node} is entered twice")]
    EnteredTwice { node: String },
    #[error("{link} is not reached from the sender")]
    Unreached { link: String },
    #[error("host {node} would have to forward")]
    HostForwards { node: String },
    #[error("receiver {node} is not reached")]
    Missed { node: String },
    #[error("{node} receives nothing and forwards nothing")]
    Useless { node: String },
    #[error("two trees share {what}")]
    Shared { what: String },
    #[error("{wanted} trees are asked for, {given} given")]
    Count { wanted: usize, given: usize },
}

impl Tree {
    /// Orders `links` from the sender and checks that they are a tree that reaches all receivers, and nothing else.
    ///
    /// # Errors
    /// [`TreeError`].
    pub fn new(topology: &Topology, sender: NodeId, receivers: &[NodeId], links: &[LinkId]) -> Result<Self, TreeError> {
        let name = |node: NodeId| topology.node(node).name.clone();
        let mut children: HashMap<NodeId, Vec<LinkId>> = HashMap::new();
        let mut entered: HashSet<NodeId> = HashSet::from([sender]);
        for link in links {
            if !entered.insert(topology.to(*link)) {
                return Err(TreeError::EnteredTwice { node: name(topology.to(*link)) });
            }
            children.entry(topology.from(*link)).or_default().push(*link);
        }
        let mut hops: Vec<Hop> = Vec::with_capacity(links.len());
        let mut ends: HashMap<NodeId, u32> = HashMap::new();
        let grow = |hops: &mut Vec<Hop>, node, before| {
            for link in children.get(&node).into_iter().flatten() {
                hops.push(Hop { link: *link, before });
            }
        };
        grow(&mut hops, sender, None);
        let mut next = 0;
        while let Some(hop) = hops.get(next as usize).copied() {
            let node = topology.to(hop.link);
            ends.insert(node, next);
            if topology.is_host(node) {
                if children.contains_key(&node) {
                    return Err(TreeError::HostForwards { node: name(node) });
                }
                if !receivers.contains(&node) {
                    return Err(TreeError::Useless { node: name(node) });
                }
            } else if !children.contains_key(&node) {
                return Err(TreeError::Useless { node: name(node) });
            }
            grow(&mut hops, node, Some(next));
            next += 1;
        }
        if hops.len() < links.len() {
            let reached: HashSet<LinkId> = hops.iter().map(|hop| hop.link).collect();
            let link = links.iter().find(|link| !reached.contains(link)).expect("one is missing");
            return Err(TreeError::Unreached { link: topology.link_name(*link) });
        }
        let receivers = receivers
            .iter()
            .map(|node| ends.get(node).copied().ok_or_else(|| TreeError::Missed { node: name(*node) }))
            .collect::<Result<_, _>>()?;
        Ok(Self { hops, receivers })
    }

    /// Its links, parents first.
    #[must_use]
    pub fn hops(&self) -> &[Hop] {
        &self.hops
    }

    /// Indices of the hops that follow a hop; they stand together.
    #[must_use]
    pub fn after(&self, hop: u32) -> std::ops::Range<usize> {
        let first = self.hops.partition_point(|other| other.before < Some(hop));
        let last = self.hops.partition_point(|other| other.before <= Some(hop));
        first..last
    }

    /// Its links, in no order that means anything.
    pub fn links(&self) -> impl Iterator<Item = LinkId> + '_ {
        self.hops.iter().map(|hop| hop.link)
    }

    /// Index of the hop that ends at receiver `j` of the request.
    #[must_use]
    pub fn arrival(&self, j: usize) -> usize {
        self.receivers[j] as usize
    }

    /// Number of receivers.
    #[must_use]
    pub fn receivers(&self) -> usize {
        self.receivers.len()
    }

    /// The hops from the sender to receiver `j`, as indices.
    #[must_use]
    pub fn path(&self, j: usize) -> Vec<usize> {
        let mut path = vec![self.arrival(j)];
        while let Some(before) = self.hops[path[path.len() - 1]].before {
            path.push(before as usize);
        }
        path.reverse();
        path
    }

    /// Switches that it passes through.
    pub fn switches<'a>(&'a self, topology: &'a Topology) -> impl Iterator<Item = NodeId> + 'a {
        self.links().map(|link| topology.to(link)).filter(|node| !topology.is_host(*node))
    }
}

/// Proves that no two of the trees share a switch or a cable (FiDe App. B, "vertex-disjoint in their internal nodes").
///
/// # Errors
/// [`TreeError::Shared`] with the first that two share.
pub fn check_disjoint(topology: &Topology, trees: &[Tree]) -> Result<(), TreeError> {
    let (mut switches, mut cables) = (HashSet::new(), HashSet::new());
    for tree in trees {
        for link in tree.links() {
            if !cables.insert(link.cable()) {
                return Err(TreeError::Shared { what: topology.cable_name(link.cable()) });
            }
        }
        for switch in tree.switches(topology) {
            if !switches.insert(switch) {
                return Err(TreeError::Shared { what: topology.node(switch).name.clone() });
            }
        }
    }
    Ok(())
}
