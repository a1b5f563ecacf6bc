// SPDX-License-Identifier: Apache-2.0
//! K trees on any network, by negotiated congestion (McMurchie and Ebeling, "PathFinder", 1995): every tree
//! is routed as if alone; a switch that several want becomes dearer, now for the others in it and for good a
//! little, until each switch is wanted by one.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

use super::{Search, Weigh};
use crate::topology::{LinkId, NodeId};

/// Rounds until it gives up.
const ROUNDS_MAX: u32 = 60;
/// Rounds after the first success in which something cheaper may turn up.
const ROUNDS_AFTER: u32 = 8;

struct State<'a, W> {
    search: &'a Search<'a, W>,
    /// How many trees pass each node now.
    users: Vec<u32>,
    /// Price of each node for having been wanted by several before, picoseconds.
    history_ps: Vec<u64>,
    /// What one more user costs, picoseconds; grows with the rounds.
    present_ps: u64,
}

/// Trees that share nothing, or none if there are none or they were not found.
pub(super) fn negotiate<W: Weigh>(search: &Search<'_, W>) -> Option<Vec<Vec<LinkId>>> {
    let nodes = search.topology.nodes().len();
    let unit = unit_ps(search);
    let mut state = State { search, users: vec![0; nodes], history_ps: vec![0; nodes], present_ps: unit / 2 };
    let mut trees: Vec<Vec<LinkId>> = vec![Vec::new(); search.redundancy];
    let mut best: Option<(u64, Vec<Vec<LinkId>>)> = None;
    // One tree has nobody to negotiate with: it is grown in both ways.
    let mut left = if search.redundancy == 1 { 2 } else { ROUNDS_MAX };
    // Both ways of growing: by the nearest way from what is there, and by the shortest way from the sender.
    let mut from_sender = false;
    while left > 0 {
        left -= 1;
        for i in 0..trees.len() {
            state.count(&trees[i], false);
            let others: HashSet<u32> = direct(search, &trees, i);
            trees[i] = state.route(&others, from_sender)?;
            state.count(&trees[i], true);
        }
        let mut clean = true;
        for node in 0..nodes {
            if state.users[node] > 1 {
                state.history_ps[node] += unit;
                clean = false;
            }
        }
        if clean {
            let total = search.cost(&trees).total_ps();
            if best.as_ref().is_none_or(|(known, _)| total < *known) {
                best = Some((total, trees.clone()));
            }
            left = left.min(ROUNDS_AFTER);
            from_sender = !from_sender;
        } else {
            state.present_ps += state.present_ps / 2 + 1;
        }
    }
    best.map(|(_, trees)| trees)
}

/// Cables from the sender to receivers that other trees use.
fn direct<W: Weigh>(search: &Search<'_, W>, trees: &[Vec<LinkId>], but: usize) -> HashSet<u32> {
    let others = trees.iter().enumerate().filter(|(i, _)| *i != but).flat_map(|(_, links)| links);
    others
        .filter(|link| {
            search.topology.from(**link) == search.sender && search.topology.is_host(search.topology.to(**link))
        })
        .map(|link| link.cable().0)
        .collect()
}

/// What a node costs that is wanted twice, to begin with: a usual link's cost.
fn unit_ps<W: Weigh>(search: &Search<'_, W>) -> u64 {
    let open = (0..search.topology.links()).filter_map(|link| search.weigh.weigh(LinkId(u32::try_from(link).ok()?)));
    let (sum, count) = open.fold((0_u64, 0_u64), |(sum, n), weight| (sum + weight.latency_ps + weight.load_ps, n + 1));
    (sum / count.max(1)).max(1_000)
}

impl<W: Weigh> State<'_, W> {
    fn count(&mut self, links: &[LinkId], add: bool) {
        for link in links {
            let to = self.search.topology.to(*link);
            if !self.search.topology.is_host(to) {
                let users = &mut self.users[to.at()];
                *users = if add { *users + 1 } else { *users - 1 };
            }
        }
    }

    /// One tree to all receivers; none if one cannot be reached at any price.
    fn route(&self, taken: &HashSet<u32>, from_sender: bool) -> Option<Vec<LinkId>> {
        let topology = self.search.topology;
        let mut reached: HashSet<NodeId> = HashSet::from([self.search.sender]);
        let mut depth_ps = std::collections::HashMap::from([(self.search.sender, 0_u64)]);
        let mut links = Vec::new();
        let mut missing: HashSet<NodeId> = self.search.receivers.iter().copied().collect();
        while !missing.is_empty() {
            let mut price = vec![u64::MAX; topology.nodes().len()];
            let mut by = vec![LinkId(0); topology.nodes().len()];
            let mut waiting = BinaryHeap::new();
            for node in &reached {
                if self.search.forwards(*node) {
                    price[node.at()] = if from_sender { depth_ps[node] } else { 0 };
                    waiting.push(Reverse((price[node.at()], *node)));
                }
            }
            let mut end = None;
            while let Some(Reverse((at, node))) = waiting.pop() {
                if at > price[node.at()] {
                    continue;
                }
                if missing.contains(&node) {
                    end = Some(node);
                    break;
                }
                for link in topology.leaving(node) {
                    let to = topology.to(*link);
                    if reached.contains(&to) || taken.contains(&link.cable().0) {
                        continue;
                    }
                    let Some(weight) = self.search.open(*link) else { continue };
                    let crowd = u64::from(self.users[to.at()]) * self.present_ps + self.history_ps[to.at()];
                    let next = at + weight.latency_ps + weight.load_ps + crowd;
                    if next < price[to.at()] {
                        price[to.at()] = next;
                        by[to.at()] = *link;
                        waiting.push(Reverse((next, to)));
                    }
                }
            }
            let end = end?;
            missing.remove(&end);
            let mut path = Vec::new();
            let mut node = end;
            while !reached.contains(&node) {
                path.push(by[node.at()]);
                node = topology.from(by[node.at()]);
            }
            for link in path.into_iter().rev() {
                let weight = self.search.open(link)?;
                let to = topology.to(link);
                depth_ps.insert(to, depth_ps[&topology.from(link)] + weight.latency_ps);
                reached.insert(to);
                links.push(link);
            }
        }
        Some(links)
    }
}
