// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::topology::{Cable, CableSpec, FatTree, LeafSpine, Node, NodeKind};
use crate::tree::{Tree, check_disjoint};

/// Links that cost what a table says.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) weights: Vec<Option<Weight>>,
    pub(super) blocked: BTreeSet<NodeId>,
}

impl Weigh for Table {
    fn weigh(&self, link: LinkId) -> Option<Weight> {
        self.weights[link.at()]
    }

    fn blocked(&self, switch: NodeId) -> bool {
        self.blocked.contains(&switch)
    }
}

fn even(topology: &Topology) -> Table {
    let weight = Weight { latency_ps: 1000, load_ps: 0 };
    Table { weights: vec![Some(weight); topology.links()], blocked: BTreeSet::new() }
}

fn search<'a>(
    topology: &'a Topology,
    weigh: &'a Table,
    sender: NodeId,
    receivers: &'a [NodeId],
    redundancy: usize,
) -> Search<'a, Table> {
    Search { topology, weigh, sender, receivers, redundancy }
}

/// The links are trees, and share nothing.
fn prove(search: &Search<'_, Table>, found: &Found) {
    let trees: Vec<Tree> = found
        .trees
        .iter()
        .map(|links| Tree::new(search.topology, search.sender, search.receivers, links).unwrap())
        .collect();
    assert_eq!(trees.len(), search.redundancy);
    check_disjoint(search.topology, &trees).unwrap();
    assert_eq!(search.cost(&found.trees), found.cost);
}

/// Switches 0.. and hosts after them, cables between the named numbers.
fn network(switches: u32, hosts: u32, cables: &[(u32, u32)]) -> Topology {
    let node = |kind, name| Node { name, kind, tier: 0 };
    let mut nodes: Vec<Node> = (0..switches).map(|s| node(NodeKind::Switch, format!("s{s}"))).collect();
    nodes.extend((0..hosts).map(|h| node(NodeKind::Host, format!("h{h}"))));
    let cables = cables.iter().enumerate().map(|(number, (a, b))| Cable {
        ends: [NodeId(*a), NodeId(*b)],
        ports: [format!("p{number}"), format!("p{number}")],
        bandwidth_bps: 1_000_000_000,
        queue_bytes: 100_000,
        latency_min_ns: 1000,
        jitter_max_ns: 0,
        reserved_bps: 0,
        reserved_burst_bytes: 0,
        kind: None,
        failure_per_year: None,
    });
    Topology::new(nodes, cables.collect()).unwrap()
}

#[test]
fn a_pair_of_switches_gives_two_trees_of_one_switch_each() {
    let topology = network(2, 3, &[(2, 0), (2, 1), (3, 0), (3, 1), (4, 0), (4, 1)]);
    let weigh = even(&topology);
    let receivers = [NodeId(3), NodeId(4)];
    let search = search(&topology, &weigh, NodeId(2), &receivers, 2);
    let found = search.find().unwrap();
    prove(&search, &found);
    assert_eq!(found.cost, Cost { latency_ps: 2000, load_ps: 0 });
    assert!(found.proved);
}

#[test]
fn a_host_with_one_cable_is_named_with_its_switch() {
    let topology = network(2, 2, &[(2, 0), (2, 1), (3, 0), (0, 1)]);
    let weigh = even(&topology);
    let error = search(&topology, &weigh, NodeId(2), &[NodeId(3)], 2).find().unwrap_err();
    let NoTrees::Cut { cut, paths, .. } = &error else { panic!("{error}") };
    assert_eq!((cut.as_str(), *paths), ("s0", 1), "{error}");
    let error = search(&topology, &weigh, NodeId(2), &[NodeId(3)], 1).find();
    assert!(error.is_ok());
}

#[test]
fn an_island_is_named() {
    let topology = network(2, 2, &[(2, 0), (3, 1)]);
    let weigh = even(&topology);
    let error = search(&topology, &weigh, NodeId(2), &[NodeId(3)], 1).find().unwrap_err();
    assert_eq!(error, NoTrees::Island { sender: "h0".into(), receiver: "h1".into() });
}

/// Each receiver has two separate ways, but no two trees for both: all need the middle switches.
#[test]
fn paths_for_each_but_not_for_all_is_an_error_of_its_own() {
    // h0 to s0 and s1; h1 on s0, s2; h2 on s1, s2; s2 reached from both.
    let topology = network(3, 3, &[(3, 0), (3, 1), (4, 0), (4, 2), (5, 1), (5, 2), (0, 2), (1, 2)]);
    let weigh = even(&topology);
    let error = search(&topology, &weigh, NodeId(3), &[NodeId(4), NodeId(5)], 2).find().unwrap_err();
    assert!(matches!(error, NoTrees::Together { how: "all were searched", .. }), "{error}");
}

#[test]
fn a_blocked_switch_and_a_cable_that_may_not_be_used_are_not_used() {
    let topology = LeafSpine { groups: 2, homing: 2, spines: 3, hosts: 2 }.build(&CableSpec::default()).unwrap();
    let mut weigh = even(&topology);
    weigh.blocked.insert(topology.find("spine-0").unwrap());
    let cable = topology.find_cable("leaf-1-0--spine-1").unwrap();
    cable.links().iter().for_each(|link| weigh.weights[link.at()] = None);
    let host = |name| topology.find(name).unwrap();
    let receivers = [host("h3"), host("h4")];
    let search = search(&topology, &weigh, host("h1"), &receivers, 2);
    let found = search.find().unwrap();
    prove(&search, &found);
    let used = |name| found.trees.iter().flatten().any(|link| topology.to(*link) == host(name));
    assert!(!used("spine-0") && used("spine-1") && used("spine-2"));
    assert!(found.trees.iter().flatten().all(|link| link.cable() != cable));
}

#[test]
fn three_trees_in_a_fat_tree_of_three_homes() {
    let topology = FatTree { k: 12, homing: 3 }.build(&CableSpec::default()).unwrap();
    let weigh = even(&topology);
    let hosts: Vec<NodeId> = topology.hosts().step_by(61).take(8).collect();
    let search = search(&topology, &weigh, hosts[0], &hosts[1..], 3);
    let found = search.find().unwrap();
    prove(&search, &found);
    assert_eq!(found.method, Method::BottomUp);
}

/// A small network without cables from host to host, and what each link costs.
fn small() -> impl Strategy<Value = (Topology, Table, usize)> {
    let shape = (2_u32..=6, 2_u32..=5, 1_usize..=2);
    shape.prop_flat_map(|(switches, hosts, redundancy)| {
        let pairs: Vec<(u32, u32)> = (0..switches)
            .flat_map(|a| (a + 1..switches).map(move |b| (a, b)))
            .chain((switches..switches + hosts).flat_map(|h| (0..switches).map(move |s| (h, s))))
            .collect();
        let count = pairs.len();
        let present = prop::collection::vec(0_u8..100, count);
        let weights = prop::collection::vec((1_u64..20, 0_u64..8, 0_u8..30), count * 2);
        (Just(pairs), present, weights).prop_map(move |(pairs, present, weights)| {
            let here: Vec<(u32, u32)> =
                pairs.iter().zip(&present).filter(|(_, p)| **p < 65).map(|(pair, _)| *pair).collect();
            let topology = network(switches, hosts, &here);
            let weights = weights[..here.len() * 2].iter().map(|(latency, load, open)| {
                (*open > 0).then_some(Weight { latency_ps: latency * 1000, load_ps: load * 1000 })
            });
            let weigh = Table { weights: weights.collect(), blocked: BTreeSet::new() };
            (topology, weigh, redundancy)
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// On every network that can be enumerated: as cheap as the cheapest, and trees are found just where there are any.
    #[test]
    fn as_cheap_as_trying_all((topology, weigh, redundancy) in small()) {
        let hosts: Vec<NodeId> = topology.hosts().collect();
        let search = search(&topology, &weigh, hosts[0], &hosts[1..], redundancy);
        let best = brute::cheapest_ps(&search);
        match search.find() {
            Ok(found) => {
                prove(&search, &found);
                let best = best.expect("trees were found");
                prop_assert!(found.cost.total_ps() >= best);
                prop_assert!(found.cost.total_ps() * 100 <= best * 101, "{:?}, best is {best}", found);
            }
            Err(error) => prop_assert_eq!(best, None, "{}", error),
        }
    }

    /// Regular networks with any costs: App. B's construction alone gives trees that share nothing.
    #[test]
    fn bottom_up_on_any_costs(k in 1_u64..=3, costs in prop::collection::vec((1_u64..9, 0_u64..9), 512), pick: u64) {
        let topology = FatTree { k: 2 * k.max(2), homing: if k == 3 { 3 } else { 2 } }.build(&CableSpec::default()).unwrap();
        let cost = |link: usize| {
            let (latency, load) = costs[link % costs.len()];
            Some(Weight { latency_ps: latency * 100, load_ps: load * 100 })
        };
        let weigh = Table { weights: (0..topology.links()).map(cost).collect(), blocked: BTreeSet::new() };
        let hosts: Vec<NodeId> = topology.hosts().collect();
        let first = usize::try_from(pick % hosts.len() as u64).unwrap();
        let chosen: Vec<NodeId> = (0..6).map(|i| hosts[(first + i * 3) % hosts.len()]).collect();
        let redundancy = if k == 3 { 3 } else { 2 };
        let search = search(&topology, &weigh, chosen[0], &chosen[1..], redundancy);
        let trees = regular::bottom_up(&search).expect("a fat tree is regular");
        let found = Found { cost: search.cost(&trees), trees, method: Method::BottomUp, proved: false };
        prove(&search, &found);
    }
}
