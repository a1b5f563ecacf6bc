// SPDX-License-Identifier: Apache-2.0
//! The cheapest set of trees by trying all of them; what the methods are measured against, on networks of a
//! few switches.
//!
//! For every set of switches all ways to give each of them, and each receiver, a link to come by are tried;
//! then all ways to give K trees sets without a common switch. Shares nothing with the searches beside what a
//! link costs.

use super::{Search, Weigh};
use crate::topology::{LinkId, NodeId};

/// Most switches and receivers.
pub const SWITCHES_MAX: usize = 7;
/// See [`SWITCHES_MAX`].
pub const RECEIVERS_MAX: usize = 5;

/// Latency of the latest receiver, and sum of loads, picoseconds.
type Price = (u64, u64);

/// Cost of the cheapest K trees, picoseconds; none if there are none.
///
/// # Panics
/// If the network is too large, or has a cable from the sender to a receiver: two trees might use it.
pub fn cheapest_ps<W: Weigh>(search: &Search<'_, W>) -> Option<u64> {
    let topology = search.topology;
    let switches: Vec<NodeId> = topology.node_ids().filter(|node| !topology.is_host(*node)).collect();
    assert!(switches.len() <= SWITCHES_MAX && search.receivers.len() <= RECEIVERS_MAX, "too large to try all");
    let direct = topology.leaving(search.sender).iter().any(|link| topology.is_host(topology.to(*link)));
    assert!(!direct, "a cable from host to host");
    let fronts: Vec<Vec<Price>> = (0..1_usize << switches.len())
        .map(|set| {
            let inner: Vec<NodeId> =
                switches.iter().enumerate().filter(|(i, _)| set >> i & 1 == 1).map(|(_, node)| *node).collect();
            if inner.is_empty() || inner.iter().any(|node| search.weigh.blocked(*node)) {
                return Vec::new();
            }
            all_trees(search, &inner)
        })
        .collect();
    let mut best = None;
    choose(&fronts, search.redundancy, 0, 0, (0, 0), &mut best);
    best
}

/// Gives each of `k` trees a set after `from` that has nothing of `taken`.
fn choose(fronts: &[Vec<Price>], k: usize, from: usize, taken: usize, sum: Price, best: &mut Option<u64>) {
    if k == 0 {
        let total = sum.0 + sum.1;
        *best = Some(best.map_or(total, |known| known.min(total)));
        return;
    }
    for (set, front) in fronts.iter().enumerate().skip(from) {
        if set & taken == 0 {
            for (latency, load) in front {
                choose(fronts, k - 1, set + 1, taken | set, (sum.0.max(*latency), sum.1 + load), best);
            }
        }
    }
}

/// Prices of all trees that pass exactly these switches, without those that another beats.
fn all_trees<W: Weigh>(search: &Search<'_, W>, inner: &[NodeId]) -> Vec<Price> {
    let topology = search.topology;
    let nodes: Vec<NodeId> = inner.iter().chain(search.receivers).copied().collect();
    let ways: Vec<Vec<LinkId>> = nodes
        .iter()
        .map(|node| {
            let from_tree = |link: &LinkId| {
                let from = topology.from(*link);
                (from == search.sender || inner.contains(&from)) && search.weigh.weigh(*link).is_some()
            };
            topology.entering(*node).filter(from_tree).collect()
        })
        .collect();
    if ways.iter().any(Vec::is_empty) {
        return Vec::new();
    }
    let mut front: Vec<Price> = Vec::new();
    let mut at = vec![0_usize; nodes.len()];
    loop {
        if let Some((latency, load)) = price(search, &nodes, inner.len(), &ways, &at)
            && !front.iter().any(|known| known.0 <= latency && known.1 <= load)
        {
            front.retain(|known| !(latency <= known.0 && load <= known.1));
            front.push((latency, load));
        }
        // The next combination.
        let Some(place) = (0..at.len()).find(|place| at[*place] + 1 < ways[*place].len()) else { return front };
        at[place] += 1;
        at[..place].fill(0);
    }
}

fn price<W: Weigh>(
    search: &Search<'_, W>,
    nodes: &[NodeId],
    inner: usize,
    ways: &[Vec<LinkId>],
    at: &[usize],
) -> Option<Price> {
    let (mut latest, mut load) = (0, 0);
    for (place, ways) in ways.iter().enumerate() {
        load += search.weigh.weigh(ways[at[place]])?.load_ps;
    }
    for receiver in inner..nodes.len() {
        let (mut node, mut latency) = (receiver, 0);
        // As many steps as there are switches, or it goes round in a circle.
        for step in 0.. {
            if step > inner {
                return None;
            }
            let link = ways[node][at[node]];
            latency += search.weigh.weigh(link)?.latency_ps;
            let from = search.topology.from(link);
            if from == search.sender {
                break;
            }
            node = nodes[..inner].iter().position(|other| *other == from)?;
        }
        latest = latest.max(latency);
    }
    // Switches that lead nowhere only add load: another set has the tree without them. Those in a circle are
    // not reached.
    Some((latest, load))
}
