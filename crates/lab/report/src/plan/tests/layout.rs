// SPDX-License-Identifier: Apache-2.0
//! Tests of the order within rows. The places that follow from it are inspected by eye, not tested.

use std::collections::BTreeSet;

use fide_planner::{
    NodeId,
    topology::{Cable, CableSpec, FatTree, Node, Topology},
};
use proptest::prelude::*;

use crate::plan::draw::{layout::Layout, order::Order};

/// The same network with its nodes in another order.
fn shuffled(topology: &Topology, by: &[usize]) -> Topology {
    let mut new = vec![0; by.len()];
    by.iter().enumerate().for_each(|(at, old)| new[*old] = u32::try_from(at).unwrap());
    let nodes: Vec<Node> = by.iter().map(|old| topology.nodes()[*old].clone()).collect();
    let end = |node: NodeId| NodeId(new[node.at()]);
    let cables: Vec<Cable> =
        topology.cables().iter().map(|cable| Cable { ends: cable.ends.map(end), ..cable.clone() }).collect();
    Topology::new(nodes, cables).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn pods_stay_together_in_any_file_order(
        by in Just((0..6 * 6 * 6 / 4 + 45).collect::<Vec<usize>>()).prop_shuffle(),
    ) {
        let regular = FatTree { k: 6, homing: 3 }.build(&CableSpec::default()).unwrap();
        prop_assert_eq!(regular.nodes().len(), by.len());
        let topology = shuffled(&regular, &by);
        let layout = Layout::of(&topology, &topology.hosts().collect());
        for (row, nodes) in layout.order.iter().enumerate().take(3) {
            let pods: Vec<&str> =
                nodes.iter().map(|node| topology.node(*node).name.split('-').nth(1).unwrap()).collect();
            let changes = pods.windows(2).filter(|two| two[0] != two[1]).count();
            prop_assert_eq!(changes, 6 - 1, "row {}: {:?}", row, pods);
            prop_assert!(nodes.windows(2).all(|two| layout.at(two[0]).x < layout.at(two[1]).x));
        }
    }

    #[test]
    fn crossings_are_counted_right(
        below in 1..8_usize, above in 1..8_usize, pairs in prop::collection::btree_set((0..8_usize, 0..8_usize), 0..30),
    ) {
        // Hosts with one switch each, and switches above those.
        let cables: BTreeSet<(usize, usize)> = pairs.into_iter().map(|(a, b)| (a % below, b % above)).collect();
        let mut text = String::new();
        for n in 0..below {
            text += &format!("[[host]]\nname = \"h{n}\"\n[[switch]]\nname = \"low{n}\"\ntier = 1\n");
            text += &format!("[[cable]]\na = \"h{n}\"\nb = \"low{n}\"\n");
        }
        (0..above).for_each(|n| text += &format!("[[switch]]\nname = \"high{n}\"\ntier = 2\n"));
        cables.iter().for_each(|(a, b)| text += &format!("[[cable]]\na = \"low{a}\"\nb = \"high{b}\"\n"));
        let topology = fide_planner::file::parse(&text).unwrap().topology;
        let order = Order::of(&topology);
        let place = |row: usize, name: String| {
            let unit = order.unit_of[topology.find(&name).unwrap().at()];
            order.rows[row].iter().position(|other| *other == unit).unwrap()
        };
        let ends: Vec<(usize, usize)> =
            cables.iter().map(|(a, b)| (place(1, format!("low{a}")), place(2, format!("high{b}")))).collect();
        let cross = |(a, b): (usize, usize), (c, d): (usize, usize)| (a < c && b > d) || (a > c && b < d);
        let mut wanted = 0;
        for (n, one) in ends.iter().enumerate() {
            wanted += ends[..n].iter().filter(|other| cross(*one, **other)).count() as u64;
        }
        // The cables of hosts may cross too, and count as well.
        let hosts: Vec<(usize, usize)> =
            (0..below).map(|n| (place(0, format!("h{n}")), place(1, format!("low{n}")))).collect();
        for (n, one) in hosts.iter().enumerate() {
            wanted += hosts[..n].iter().filter(|other| cross(*one, **other)).count() as u64;
        }
        prop_assert_eq!(order.crossings(), wanted);
    }
}
