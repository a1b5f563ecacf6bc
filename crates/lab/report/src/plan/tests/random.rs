// SPDX-License-Identifier: Apache-2.0
//! Whatever a planner has granted can be drawn.

use fide_planner::{
    CableId, Limits, NodeId, Planner,
    topology::{Cable, Node, NodeKind, Topology},
};
use proptest::prelude::*;

use super::{checked, request};
use crate::plan::{DrawOptions, draw, draw_before_after, to_json};

fn topology() -> impl Strategy<Value = Topology> {
    let nodes = prop::collection::vec((any::<bool>(), prop_oneof![0..4_u8, any::<u8>()]), 0..70);
    let cables = prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..160);
    (nodes, cables).prop_map(|(nodes, ends)| {
        let nodes: Vec<Node> = nodes
            .into_iter()
            .enumerate()
            .map(|(n, (host, tier))| {
                let (kind, tier) = if host { (NodeKind::Host, 0) } else { (NodeKind::Switch, tier) };
                // Some names are long.
                Node { name: format!("n{n}{}", "-x".repeat(n % 30)), kind, tier }
            })
            .collect();
        let cables = ends.into_iter().enumerate().filter_map(|(n, (a, b))| {
            let (a, b) = (!nodes.is_empty()).then(|| (a.index(nodes.len()), b.index(nodes.len())))?;
            let ends = [a, b].map(|node| NodeId(u32::try_from(node).unwrap()));
            (a != b).then(|| Cable {
                ends,
                ports: [format!("a{n}"), format!("b{n}")],
                bandwidth_bps: 1_000_000_000,
                queue_bytes: 100_000,
                latency_min_ns: 500,
                jitter_max_ns: 50,
                reserved_bps: 0,
                reserved_burst_bytes: 0,
                kind: None,
                failure_per_year: None,
            })
        });
        let cables = cables.collect();
        Topology::new(nodes, cables).unwrap()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_state_is_drawn(
        topology in topology(),
        requests in prop::collection::vec((any::<prop::sample::Index>(), 1..6_usize, 1..4_u8, ".{0,20}"), 0..12),
        broken in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        switch in any::<prop::sample::Index>(),
    ) {
        let mut planner = Planner::new(topology, Limits::default()).unwrap();
        let hosts = super::host_names(planner.topology());
        let before = planner.clone();
        for (from, n, redundancy, name) in requests {
            if hosts.is_empty() {
                break;
            }
            let from = from.index(hosts.len());
            let to: Vec<&str> = (1..=n.min(hosts.len() - 1)).map(|j| hosts[(from + j) % hosts.len()].as_str()).collect();
            // Most are refused, because the networks are random. A smaller redundancy succeeds more often.
            if planner.request(request(&name, &hosts[from], &to, redundancy)).is_err() {
                let _ = planner.request(request(&name, &hosts[from], &to[..to.len().min(1)], 1));
            }
        }
        let cables = planner.topology().cables().len();
        for cable in broken.iter().filter(|_| cables > 0) {
            planner.set_cable(CableId(u32::try_from(cable.index(cables)).unwrap()), false);
        }
        if !planner.topology().nodes().is_empty() {
            let node = NodeId(u32::try_from(switch.index(planner.topology().nodes().len())).unwrap());
            planner.set_switch(node, false);
        }
        checked(&draw(&planner, &DrawOptions::default()).unwrap());
        checked(&draw_before_after(&before, &planner, &DrawOptions::default()).unwrap());
        if let Some((_, first)) = planner.allocations().next() {
            let view = DrawOptions { title: first.request.name.clone(), only: vec![first.request.name.clone()] };
            checked(&draw(&planner, &view).unwrap());
            checked(&draw_before_after(&before, &planner, &view).unwrap());
        }
        prop_assert_eq!(to_json(&planner, &[])["requests"].as_array().map(Vec::len), Some(planner.allocations().count()));
    }
}
