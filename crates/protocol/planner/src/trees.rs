// SPDX-License-Identifier: Apache-2.0
//! Finding K trees for one request that share no switch and no cable (FiDe App. B).
//!
//! - [`regular`]: the bottom-up construction of App. B, on networks where it applies: exact among trees of
//!   shortest paths that enter each class of nodes once.
//! - [`negotiate`]: any network. Trees are routed one after the other over nodes whose price rises as long as several
//!   want them (negotiated congestion, McMurchie and Ebeling 1995). Sound, not complete.
//! - [`branch`]: searches all sets of trees that could be cheaper than the best known; exhaustive if it ends within its
//!   bound. Small networks: it makes both of the above exact.
//! - [`cut`]: names what is in the way when there are none.
//! - [`brute`]: all sets of trees, for comparison.
//!
//! Whatever finds them, [`crate::tree::check_disjoint`] proves them.

mod branch;
pub mod brute;
mod cut;
mod negotiate;
mod regular;

use serde::{Deserialize, Serialize};

use crate::topology::{LinkId, NodeId, Topology};

/// Networks with more switches are not searched exhaustively.
pub const EXHAUSTIVE_SWITCHES_MAX: usize = 24;
/// Links looked at by the exhaustive search before it gives up.
pub const EXHAUSTIVE_STEPS_MAX: u64 = 400_000;

/// What a link would cost one more tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Weight {
    /// Longest time from the queue's tail to the next node, with the packet itself, picoseconds.
    pub latency_ps: u64,
    /// By how much the packet delays the trees that are there, summed over them, picoseconds.
    pub load_ps: u64,
}

/// What links cost; the state of the network as the search sees it.
pub trait Weigh {
    /// None: the link may not be used.
    fn weigh(&self, link: LinkId) -> Option<Weight>;
    /// Whether a switch may not be used.
    fn blocked(&self, _switch: NodeId) -> bool {
        false
    }
}

/// App. B's cost of a set of trees: its largest latency, plus what it adds to others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Cost {
    /// Largest lambda_min + delta_max of any receiver over any tree, picoseconds.
    pub latency_ps: u64,
    /// Sum of delays added to other trees, picoseconds.
    pub load_ps: u64,
}

impl Cost {
    /// The sum that is minimised.
    #[must_use]
    pub const fn total_ps(self) -> u64 {
        self.latency_ps + self.load_ps
    }
}

/// How trees were found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// App. B's construction.
    BottomUp,
    /// Negotiated congestion.
    Negotiated,
    /// The exhaustive search found a cheaper set than either.
    Searched,
    /// They were given, not looked for.
    Kept,
}

/// Trees for one request.
#[derive(Clone, Debug)]
pub struct Found {
    /// K lists of links.
    pub trees: Vec<Vec<LinkId>>,
    pub cost: Cost,
    pub method: Method,
    /// No cheaper set exists: all were searched.
    pub proved: bool,
}

/// Why there are no trees.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoTrees {
    #[error("{receiver} cannot be reached from {sender} over the links that may be used")]
    Island { sender: String, receiver: String },
    #[error(
        "every way from {sender} to {receiver} passes {cut}: {paths} of the {wanted} trees are possible. Attach it to another \
         switch, or ask for redundancy {paths}"
    )]
    Cut { sender: String, receiver: String, cut: String, paths: usize, wanted: usize },
    #[error(
        "no {wanted} trees that share no switch reach all receivers together, though each receiver alone has {wanted} \
         separate ways ({how})"
    )]
    Together { wanted: usize, how: &'static str },
}

/// What is searched for.
#[derive(Clone, Copy)]
pub struct Search<'a, W> {
    pub topology: &'a Topology,
    pub weigh: &'a W,
    pub sender: NodeId,
    /// At most 63.
    pub receivers: &'a [NodeId],
    /// K, 1 to 3.
    pub redundancy: usize,
}

impl<W: Weigh> Search<'_, W> {
    /// Whether a packet may go on from `node` over `link`.
    fn open(&self, link: LinkId) -> Option<Weight> {
        let to = self.topology.to(link);
        if self.topology.is_host(to) {
            if !self.receivers.contains(&to) {
                return None;
            }
        } else if self.weigh.blocked(to) {
            return None;
        }
        self.weigh.weigh(link)
    }

    /// Whether a packet may leave `node`: it is the sender or a switch.
    fn forwards(&self, node: NodeId) -> bool {
        node == self.sender || !self.topology.is_host(node)
    }

    /// Cost of trees, by their links.
    fn cost(&self, trees: &[Vec<LinkId>]) -> Cost {
        let mut cost = Cost::default();
        for links in trees {
            let mut reached: std::collections::HashMap<NodeId, u64> = std::collections::HashMap::new();
            let mut waiting: Vec<(NodeId, u64)> = vec![(self.sender, 0)];
            while let Some((node, at)) = waiting.pop() {
                reached.insert(node, at);
                for link in links.iter().filter(|link| self.topology.from(**link) == node) {
                    let weight = self.weigh.weigh(*link).expect("only usable links are in a tree");
                    cost.load_ps += weight.load_ps;
                    waiting.push((self.topology.to(*link), at + weight.latency_ps));
                }
            }
            let latest = self.receivers.iter().filter_map(|receiver| reached.get(receiver)).max();
            cost.latency_ps = cost.latency_ps.max(latest.copied().unwrap_or(0));
        }
        cost
    }

    /// Finds K trees, the cheapest that the methods above can.
    ///
    /// # Errors
    /// [`NoTrees`].
    pub fn find(&self) -> Result<Found, NoTrees> {
        let mut found = regular::bottom_up(self).map(|trees| Found {
            cost: self.cost(&trees),
            trees,
            method: Method::BottomUp,
            proved: false,
        });
        let switches = self.topology.nodes().len() - self.topology.hosts().count();
        let small = switches <= EXHAUSTIVE_SWITCHES_MAX;
        if found.is_none() {
            cut::check(self)?;
            found = negotiate::negotiate(self).map(|trees| Found {
                cost: self.cost(&trees),
                trees,
                method: Method::Negotiated,
                proved: false,
            });
        }
        if !small {
            return found.ok_or(NoTrees::Together {
                wanted: self.redundancy,
                how: "not proved: negotiation found none, and the network is too large to search",
            });
        }
        let bound = found.as_ref().map(|found| found.cost.total_ps());
        let (cheaper, exhausted) = branch::cheaper(self, bound, EXHAUSTIVE_STEPS_MAX);
        if let Some(trees) = cheaper {
            found = Some(Found { cost: self.cost(&trees), trees, method: Method::Searched, proved: exhausted });
        } else if let Some(found) = &mut found {
            found.proved = exhausted;
        }
        found.ok_or(NoTrees::Together {
            wanted: self.redundancy,
            how: if exhausted { "all were searched" } else { "not proved: the search reached its bound" },
        })
    }
}

#[cfg(test)]
mod tests;
