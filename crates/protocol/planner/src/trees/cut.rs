// SPDX-License-Identifier: Apache-2.0
//! By Menger's theorem K trees need, for each receiver, K ways that share nothing; where there are fewer, as many nodes
//! or cables separate it from the sender. Augmenting paths on the graph of split nodes.

use std::collections::{HashMap, HashSet, VecDeque};

use super::{NoTrees, Search, Weigh};
use crate::topology::{LinkId, NodeId};

/// A node's entrance (false) or exit (true).
type Side = (NodeId, bool);

#[derive(Clone, Copy)]
enum Step {
    /// Over a link, or back over one that a way uses.
    Link(LinkId),
    Back(LinkId),
    /// From a node's entrance to its exit, or back.
    Through(NodeId),
    BackThrough(NodeId),
}

/// Whether every receiver has K separate ways.
pub(super) fn check<W: Weigh>(search: &Search<'_, W>) -> Result<(), NoTrees> {
    for receiver in search.receivers {
        separate(search, *receiver)?;
    }
    Ok(())
}

fn separate<W: Weigh>(search: &Search<'_, W>, receiver: NodeId) -> Result<(), NoTrees> {
    let name = |node: NodeId| search.topology.node(node).name.clone();
    let mut links: HashSet<LinkId> = HashSet::new();
    let mut through: HashSet<NodeId> = HashSet::new();
    for paths in 0..search.redundancy {
        let reached = match augment(search, receiver, &links, &through) {
            Ok(steps) => {
                for step in steps {
                    match step {
                        Step::Link(link) => links.insert(link),
                        Step::Back(link) => links.remove(&link),
                        Step::Through(node) => through.insert(node),
                        Step::BackThrough(node) => through.remove(&node),
                    };
                }
                continue;
            }
            Err(reached) => reached,
        };
        let (sender, receiver) = (name(search.sender), name(receiver));
        if paths == 0 {
            return Err(NoTrees::Island { sender, receiver });
        }
        let mut cut: Vec<String> = through
            .iter()
            .filter(|node| reached.contains(&(**node, false)) && !reached.contains(&(**node, true)))
            .map(|node| name(*node))
            .collect();
        let exit = |node: NodeId| (node, node == search.sender || !search.topology.is_host(node));
        cut.extend(
            links
                .iter()
                .filter(|link| {
                    reached.contains(&exit(search.topology.from(**link)))
                        && !reached.contains(&(search.topology.to(**link), false))
                })
                .map(|link| search.topology.link_name(*link)),
        );
        cut.sort();
        return Err(NoTrees::Cut { sender, receiver, cut: cut.join(" or "), paths, wanted: search.redundancy });
    }
    Ok(())
}

/// One more way besides those in use, or all that can be reached.
fn augment<W: Weigh>(
    search: &Search<'_, W>,
    receiver: NodeId,
    links: &HashSet<LinkId>,
    through: &HashSet<NodeId>,
) -> Result<Vec<Step>, HashSet<Side>> {
    let topology = search.topology;
    let start = (search.sender, true);
    let mut by: HashMap<Side, (Side, Step)> = HashMap::new();
    let mut reached = HashSet::from([start]);
    let mut waiting = VecDeque::from([start]);
    while let Some(side) = waiting.pop_front() {
        let (node, exit) = side;
        let mut next: Vec<(Side, Step)> = Vec::new();
        if exit {
            for link in topology.leaving(node) {
                let to = topology.to(*link);
                let wanted = to == receiver || !topology.is_host(to);
                if wanted && to != search.sender && !links.contains(link) && search.open(*link).is_some() {
                    next.push(((to, false), Step::Link(*link)));
                }
            }
            if through.contains(&node) {
                next.push(((node, false), Step::BackThrough(node)));
            }
        } else {
            if !through.contains(&node) {
                next.push(((node, true), Step::Through(node)));
            }
            for link in topology.entering(node).filter(|link| links.contains(link)) {
                next.push(((topology.from(link), true), Step::Back(link)));
            }
        }
        for (to, step) in next {
            if reached.insert(to) {
                by.insert(to, (side, step));
                if to == (receiver, false) {
                    let mut steps = Vec::new();
                    let mut at = to;
                    while let Some((before, step)) = by.get(&at) {
                        steps.push(*step);
                        at = *before;
                    }
                    return Ok(steps);
                }
                waiting.push_back(to);
            }
        }
    }
    Err(reached)
}
