// SPDX-License-Identifier: Apache-2.0
//! Differences between the cabling and a topology.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use fide_planner::Topology;
use serde::Serialize;

use crate::figures::Source;
use crate::survey::{End, Survey};

#[cfg(test)]
mod tests;

/// Two ends, the smaller first.
type Pair = (End, End);

/// A difference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Difference {
    /// Planned, and neither of its ends was found with another cable.
    Missing {
        a: End,
        b: End,
        /// Nothing at all was heard of this host.
        silent: Option<String>,
    },
    /// Found, and no cable is planned at either of its ends.
    Extra { a: End, b: End },
    /// The same ports, or some of them, are joined differently.
    Crossed { planned: Vec<Pair>, found: Vec<Pair> },
    /// The plan promises more than the ports send.
    Slower { a: End, b: End, planned_bps: u64, found_bps: u64, source: Source },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |pairs: &[Pair]| pairs.iter().map(|(a, b)| format!("{a}--{b}")).collect::<Vec<_>>().join(", ");
        match self {
            Difference::Missing { a, b, silent: None } => write!(f, "missing: {a}--{b}"),
            Difference::Missing { a, b, silent: Some(host) } => {
                write!(f, "missing: {a}--{b}; nothing was heard of {host} at all")
            }
            Difference::Extra { a, b } => write!(f, "extra: {a}--{b}"),
            Difference::Crossed { planned, found } => {
                write!(f, "crossed: instead of {} there is {}", list(planned), list(found))
            }
            Difference::Slower { a, b, planned_bps, found_bps, source } => {
                write!(f, "slower: {a}--{b} has {found_bps} bit/s ({source}), and the file promises {planned_bps}")
            }
        }
    }
}

/// How `survey` differs from `topology`: cables first, in the topology's order, then bandwidths.
#[must_use]
pub fn compare(survey: &Survey, topology: &Topology) -> Vec<Difference> {
    let planned: Vec<Pair> = topology
        .cables()
        .iter()
        .map(|cable| {
            let [a, b] = [0, 1].map(|n| End::new(&topology.node(cable.ends[n]).name, &cable.ports[n]));
            pair(a, b)
        })
        .collect();
    let found: Vec<Pair> = survey.cables.iter().map(|cable| pair(cable.a.clone(), cable.b.clone())).collect();
    let (is_planned, is_found): (BTreeSet<&Pair>, BTreeSet<&Pair>) = (planned.iter().collect(), found.iter().collect());
    let missing = planned.iter().filter(|pair| !is_found.contains(pair));
    let extra = found.iter().filter(|pair| !is_planned.contains(pair));
    let cables: Vec<(&Pair, bool)> = missing.map(|pair| (pair, true)).chain(extra.map(|pair| (pair, false))).collect();
    let mut differences: Vec<Difference> =
        together(&cables).into_iter().map(|group| tell(&group, survey, topology)).collect();
    differences.extend(slower(survey, topology, &planned));
    differences
}

fn pair(a: End, b: End) -> Pair {
    if b < a { (b, a) } else { (a, b) }
}

/// Groups of cables that share ports.
fn together<'a>(cables: &[(&'a Pair, bool)]) -> Vec<Vec<(&'a Pair, bool)>> {
    // Each group by its first cable; the first cable at a port stands for the port.
    let mut first: Vec<usize> = (0..cables.len()).collect();
    let mut at: BTreeMap<&End, usize> = BTreeMap::new();
    for (n, (pair, _)) in cables.iter().enumerate() {
        for end in [&pair.0, &pair.1] {
            let other = *at.entry(end).or_insert(n);
            let (one, other) = (first[n].min(first[other]), first[n].max(first[other]));
            first.iter_mut().filter(|group| **group == other).for_each(|group| *group = one);
        }
    }
    let mut groups: BTreeMap<usize, Vec<(&Pair, bool)>> = BTreeMap::new();
    for (cable, group) in cables.iter().zip(first) {
        groups.entry(group).or_default().push(*cable);
    }
    groups.into_values().collect()
}

fn tell(group: &[(&Pair, bool)], survey: &Survey, topology: &Topology) -> Difference {
    if let [((a, b), planned)] = group {
        let (a, b) = (a.clone(), b.clone());
        if !planned {
            return Difference::Extra { a, b };
        }
        let silent = [&a, &b].into_iter().map(|end| &end.node).find(|name| {
            topology.find(name).is_some_and(|node| topology.is_host(node)) && !survey.hosts.contains(name)
        });
        return Difference::Missing { silent: silent.cloned(), a, b };
    }
    let of = |which| group.iter().filter(|(_, planned)| *planned == which).map(|(pair, _)| (*pair).clone()).collect();
    Difference::Crossed { planned: of(true), found: of(false) }
}

fn slower(survey: &Survey, topology: &Topology, planned: &[Pair]) -> Vec<Difference> {
    let promised: BTreeMap<&Pair, u64> =
        planned.iter().zip(topology.cables().iter().map(|cable| cable.bandwidth_bps)).collect();
    let cables = survey.cables.iter().filter_map(|cable| {
        let (figure, pair) = (cable.bandwidth_bps, pair(cable.a.clone(), cable.b.clone()));
        let planned_bps = *promised.get(&pair)?;
        let known = ![Source::Given, Source::Assumed].contains(&figure.source);
        let (a, b) = pair;
        (known && figure.value < planned_bps).then_some(Difference::Slower {
            a,
            b,
            planned_bps,
            found_bps: figure.value,
            source: figure.source,
        })
    });
    cables.collect()
}
