// SPDX-License-Identifier: Apache-2.0
//! Orders the units in each row so that few cables cross and pods stay together.
//!
//! A unit is a switch, or all hosts that are cabled to the same switches. A row is a tier; hosts are the
//! lowest row. Units that are connected through rows up to some height form a part of the network that stays
//! together: the hosts of a rack, then a pod. Within a part, units are ordered by the mean place of their
//! neighbours, below and above in turn (Sugiyama et al. 1981). The order with the fewest crossings wins.

use std::collections::{BTreeMap, HashMap};

use fide_planner::{NodeId, Topology, topology::NodeKind};

/// Number of ordering sweeps.
const SWEEPS: usize = 4;
/// With more connections between units than this, there is only one sweep.
const SWEPT_MAX: usize = 50_000;

/// A switch, or hosts on the same switches.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Unit {
    pub(crate) row: usize,
    /// One switch, or hosts in their order.
    pub(crate) nodes: Vec<NodeId>,
    pub(crate) hosts: bool,
}

/// All units in their rows.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) units: Vec<Unit>,
    /// Indices of units, hosts first, left to right.
    pub(crate) rows: Vec<Vec<usize>>,
    /// Unit of each node.
    pub(crate) unit_of: Vec<usize>,
    /// For each unit, the other units that it is connected to.
    pub(crate) neighbours: Vec<Vec<usize>>,
    /// For each unit, the part that it belongs to one row above its own; it is the same for all units of a
    /// pod.
    pub(crate) pod: Vec<usize>,
}

impl Order {
    pub(crate) fn of(topology: &Topology) -> Self {
        let (units, unit_of) = units(topology);
        let mut neighbours: Vec<Vec<usize>> = vec![Vec::new(); units.len()];
        for cable in topology.cables() {
            let [a, b] = cable.ends.map(|end| unit_of[end.at()]);
            if a != b {
                neighbours[a].push(b);
                neighbours[b].push(a);
            }
        }
        for all in &mut neighbours {
            all.sort_unstable();
            all.dedup();
        }
        let mut rows: Vec<Vec<usize>> = vec![Vec::new(); units.iter().map(|unit| unit.row + 1).max().unwrap_or(0)];
        for (at, unit) in units.iter().enumerate() {
            rows[unit.row].push(at);
        }
        let parts = parts(&units, &neighbours, rows.len());
        let pod = units.iter().enumerate().map(|(at, unit)| parts[(unit.row + 1).min(rows.len() - 1)][at]).collect();
        let mut order = Self { units, rows, unit_of, neighbours, pod };
        order.sweep(&parts);
        order
    }

    fn sweep(&mut self, parts: &[Vec<usize>]) {
        let top = self.rows.len();
        // Sort keys: larger parts first, then the parts within them. The whole network distinguishes nothing.
        let prefix: Vec<Vec<usize>> = (0..self.units.len())
            .map(|at| (self.units[at].row.max(1)..top).rev().map(|height| parts[height][at]).collect())
            .collect();
        let mut place = vec![0.0; self.units.len()];
        for row in &mut self.rows {
            row.sort_by(|a, b| prefix[*a].cmp(&prefix[*b]).then(a.cmp(b)));
            number(row, &mut place);
        }
        let turns = if self.neighbours.iter().map(Vec::len).sum::<usize>() / 2 > SWEPT_MAX { 1 } else { SWEEPS };
        let mut best: Option<(u64, Vec<Vec<usize>>)> = None;
        for turn in 0..turns {
            let up = turn % 2 == 0;
            for step in 0..top {
                let row = if up { step } else { top - 1 - step };
                let mean = |at: usize| {
                    let others = self.neighbours[at].iter().filter(|other| {
                        let other = self.units[**other].row;
                        if up { other < row } else { other > row }
                    });
                    let (sum, n) = others.fold((0.0, 0.0), |(sum, n), other| (sum + place[*other], n + 1.0));
                    if n > 0.0 { sum / n } else { place[at] }
                };
                let mut keyed: Vec<(f64, usize)> = self.rows[row].iter().map(|at| (mean(*at), *at)).collect();
                keyed.sort_by(|(x, a), (y, b)| {
                    prefix[*a].cmp(&prefix[*b]).then(x.total_cmp(y)).then(place[*a].total_cmp(&place[*b]))
                });
                self.rows[row] = keyed.into_iter().map(|(_, at)| at).collect();
                number(&self.rows[row], &mut place);
            }
            if turns == 1 {
                return;
            }
            let crossings = self.crossings();
            if best.as_ref().is_none_or(|(least, _)| crossings < *least) {
                best = Some((crossings, self.rows.clone()));
            }
        }
        if let Some((_, rows)) = best {
            self.rows = rows;
        }
    }

    /// How often connections between rows next to each other cross.
    pub(crate) fn crossings(&self) -> u64 {
        let mut at = vec![0; self.units.len()];
        for row in &self.rows {
            row.iter().enumerate().for_each(|(n, unit)| at[*unit] = n);
        }
        let mut total = 0;
        for (number, row) in self.rows.iter().enumerate().skip(1) {
            let mut pairs: Vec<(usize, usize)> = Vec::new();
            for unit in row {
                let below = self.neighbours[*unit].iter().filter(|other| self.units[**other].row + 1 == number);
                pairs.extend(below.map(|other| (at[*unit], at[*other])));
            }
            pairs.sort_unstable();
            // Counts the pairs so far that end further to the right, with a Fenwick tree.
            let width = self.rows[number - 1].len();
            let mut sums = vec![0_u64; width + 1];
            for (seen, (_, low)) in (0_u64..).zip(pairs) {
                let (mut i, mut left) = (low + 1, 0);
                while i > 0 {
                    left += sums[i];
                    i &= i - 1;
                }
                total += seen - left;
                i = low + 1;
                while i <= width {
                    sums[i] += 1;
                    i += i & i.wrapping_neg();
                }
            }
        }
        total
    }
}

/// Sets each unit's place to the middle of its share of the row, 0 to 1.
#[allow(clippy::cast_precision_loss, reason = "at most MAX_NODES")]
fn number(row: &[usize], place: &mut [f64]) {
    for (n, unit) in row.iter().enumerate() {
        place[*unit] = (n as f64 + 0.5) / row.len() as f64;
    }
}

fn units(topology: &Topology) -> (Vec<Unit>, Vec<usize>) {
    let mut tiers: BTreeMap<u8, usize> = BTreeMap::new();
    for node in topology.nodes().iter().filter(|node| node.kind == NodeKind::Switch) {
        tiers.insert(node.tier, 0);
    }
    for (row, tier) in (1..).zip(tiers.values_mut()) {
        *tier = row;
    }
    let mut units: Vec<Unit> = Vec::new();
    let mut unit_of = Vec::with_capacity(topology.nodes().len());
    let mut same: HashMap<Vec<NodeId>, usize> = HashMap::new();
    for id in topology.node_ids() {
        let node = topology.node(id);
        if node.kind == NodeKind::Switch {
            unit_of.push(units.len());
            units.push(Unit { row: tiers[&node.tier], nodes: vec![id], hosts: false });
            continue;
        }
        let mut on: Vec<NodeId> = topology.leaving(id).iter().map(|link| topology.to(*link)).collect();
        on.sort_unstable();
        on.dedup();
        let unit = *same.entry(on).or_insert_with(|| {
            units.push(Unit { row: 0, nodes: Vec::new(), hosts: true });
            units.len() - 1
        });
        units[unit].nodes.push(id);
        unit_of.push(unit);
    }
    (units, unit_of)
}

/// For each height, the part of the network that each unit belongs to if only the rows up to that height
/// exist. A part is named by the number of its first unit.
fn parts(units: &[Unit], neighbours: &[Vec<usize>], rows: usize) -> Vec<Vec<usize>> {
    fn root(parent: &mut [usize], mut at: usize) -> usize {
        while parent[at] != at {
            parent[at] = parent[parent[at]];
            at = parent[at];
        }
        at
    }
    let mut parent: Vec<usize> = (0..units.len()).collect();
    (0..rows)
        .map(|height| {
            for (at, unit) in units.iter().enumerate().filter(|(_, unit)| unit.row <= height) {
                let joined =
                    |other: &&usize| units[**other].row <= height && unit.row.max(units[**other].row) == height;
                for other in neighbours[at].iter().filter(joined) {
                    let (a, b) = (root(&mut parent, at), root(&mut parent, *other));
                    parent[a.max(b)] = a.min(b);
                }
            }
            (0..units.len()).map(|at| root(&mut parent, at)).collect()
        })
        .collect()
}
