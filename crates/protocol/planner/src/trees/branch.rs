// SPDX-License-Identifier: Apache-2.0
//! Branch and bound over all sets of K disjoint trees. A tree is built by attaching one receiver after the other with a
//! path from what is there; in a given order of receivers every tree is built in just one way.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Search, Weigh};
use crate::topology::{LinkId, NodeId};

/// No owner.
const FREE: u8 = u8::MAX;

struct Branch<'a, W> {
    search: &'a Search<'a, W>,
    /// (tree, receiver), in the order of attachment.
    order: Vec<(u8, NodeId)>,
    /// Least load of all attachments from each place in `order` on.
    load_from: Vec<u64>,
    /// Least latency from the sender to each node.
    nearest: Vec<u64>,
    owner: Vec<u8>,
    depth: Vec<u64>,
    links: Vec<Vec<LinkId>>,
    /// Links of the path being searched, from the receiver back.
    path: Vec<LinkId>,
    bound: u64,
    best: Option<Vec<Vec<LinkId>>>,
    steps: u64,
    steps_max: u64,
}

/// The cheapest trees below `bound` (all, if none), and whether everything was searched.
pub(super) fn cheaper<W: Weigh>(
    search: &Search<'_, W>,
    bound: Option<u64>,
    steps_max: u64,
) -> (Option<Vec<Vec<LinkId>>>, bool) {
    let nodes = search.topology.nodes().len();
    let nearest = nearest(search);
    let mut receivers = search.receivers.to_vec();
    // The farthest first: its latency bounds the cost.
    receivers.sort_by_key(|receiver| Reverse(nearest[receiver.at()]));
    let trees = u8::try_from(search.redundancy).expect("at most 3");
    let order: Vec<(u8, NodeId)> =
        receivers.iter().flat_map(|receiver| (0..trees).map(|tree| (tree, *receiver))).collect();
    let least = |receiver: NodeId| {
        let into = search.topology.entering(receiver);
        into.filter_map(|link| search.open(link)).map(|weight| weight.load_ps).min().unwrap_or(0)
    };
    let mut load_from = vec![0; order.len() + 1];
    for place in (0..order.len()).rev() {
        load_from[place] = load_from[place + 1] + least(order[place].1);
    }
    let mut branch = Branch {
        search,
        order,
        load_from,
        nearest,
        owner: vec![FREE; nodes],
        depth: vec![0; nodes],
        links: vec![Vec::new(); search.redundancy],
        path: Vec::new(),
        bound: bound.unwrap_or(u64::MAX),
        best: None,
        steps: 0,
        steps_max,
    };
    branch.attach(0, 0, 0);
    (branch.best, branch.steps < steps_max)
}

fn nearest<W: Weigh>(search: &Search<'_, W>) -> Vec<u64> {
    let mut nearest = vec![u64::MAX; search.topology.nodes().len()];
    nearest[search.sender.at()] = 0;
    let mut waiting = BinaryHeap::from([Reverse((0, search.sender))]);
    while let Some(Reverse((at, node))) = waiting.pop() {
        if at > nearest[node.at()] || !search.forwards(node) {
            continue;
        }
        for link in search.topology.leaving(node) {
            let Some(weight) = search.open(*link) else { continue };
            let to = search.topology.to(*link);
            if at + weight.latency_ps < nearest[to.at()] {
                nearest[to.at()] = at + weight.latency_ps;
                waiting.push(Reverse((nearest[to.at()], to)));
            }
        }
    }
    nearest
}

impl<W: Weigh> Branch<'_, W> {
    /// Attaches the receivers from `place` on; `latest` and `load` are those of what is there.
    fn attach(&mut self, place: usize, latest: u64, load: u64) {
        let Some((tree, receiver)) = self.order.get(place).copied() else {
            if latest + load < self.bound {
                self.bound = latest + load;
                self.best = Some(self.links.clone());
            }
            return;
        };
        self.extend(place, tree, receiver, 0, latest, load);
    }

    /// Extends the path of `place`, which has come back as far as `node`; `behind` is its latency from there.
    fn extend(&mut self, place: usize, tree: u8, node: NodeId, behind: u64, latest: u64, load: u64) {
        let topology = self.search.topology;
        let mut ways: Vec<(u64, LinkId, u64, u64)> = Vec::new();
        for link in topology.entering(node) {
            let from = topology.from(link);
            if !self.search.forwards(from) || self.nearest[from.at()] == u64::MAX {
                continue;
            }
            if from != self.search.sender && self.search.weigh.blocked(from) {
                continue;
            }
            let Some(weight) = self.search.open(link) else { continue };
            let joins = from == self.search.sender || self.owner[from.at()] == tree;
            if !joins && self.owner[from.at()] != FREE {
                continue;
            }
            let behind = behind + weight.latency_ps;
            let before = if joins { self.depth[from.at()] } else { self.nearest[from.at()] };
            let least = latest.max(before + behind) + load + weight.load_ps;
            ways.push((least, link, behind, load + weight.load_ps));
        }
        ways.sort_unstable();
        for (least, link, behind, load) in ways {
            self.steps += 1;
            if self.steps >= self.steps_max || least + self.load_from[place + 1] >= self.bound {
                return;
            }
            let from = topology.from(link);
            let joins = from == self.search.sender || self.owner[from.at()] == tree;
            if self.taken(tree, link) {
                continue;
            }
            self.path.push(link);
            if joins {
                self.join(place, tree, behind, latest, load);
            } else {
                // Not to be passed twice by this path.
                self.owner[from.at()] = FREE - 1;
                self.extend(place, tree, from, behind, latest, load);
                self.owner[from.at()] = FREE;
            }
            self.path.pop();
        }
    }

    /// Whether another tree has this cable between two hosts; all other cables end at a switch, which has one owner.
    fn taken(&self, tree: u8, link: LinkId) -> bool {
        let topology = self.search.topology;
        topology.is_host(topology.from(link))
            && topology.is_host(topology.to(link))
            && (0..tree).any(|other| self.links[usize::from(other)].contains(&link))
    }

    /// The path has reached the tree: makes it part of it, goes on, and takes it back.
    fn join(&mut self, place: usize, tree: u8, behind: u64, latest: u64, load: u64) {
        let topology = self.search.topology;
        let path = std::mem::take(&mut self.path);
        let first = topology.from(path[path.len() - 1]);
        // Trees are alike: the first path of each begins after that of the one before.
        let first_of_tree = self.links[usize::from(tree)].is_empty();
        let begins = path[path.len() - 1];
        let after = !first_of_tree || tree == 0 || self.links[usize::from(tree) - 1][0] < begins;
        if after {
            let mut at = self.depth[first.at()];
            let latest = latest.max(at + behind);
            let own = &mut self.links[usize::from(tree)];
            let before = own.len();
            own.extend(path.iter().rev());
            for link in path.iter().rev() {
                let to = topology.to(*link);
                at += self.search.open(*link).expect("it was open").latency_ps;
                if !topology.is_host(to) {
                    self.owner[to.at()] = tree;
                    self.depth[to.at()] = at;
                }
            }
            self.attach(place + 1, latest, load);
            self.links[usize::from(tree)].truncate(before);
            for link in &path {
                let to = topology.to(*link);
                if !topology.is_host(to) {
                    // The path that passes it is still being searched.
                    self.owner[to.at()] = FREE - 1;
                }
            }
        }
        self.path = path;
    }
}
