// SPDX-License-Identifier: Apache-2.0

use super::*;

fn node(name: &str, kind: NodeKind) -> Node {
    Node { name: name.into(), kind, tier: u8::from(kind == NodeKind::Switch) }
}

fn cable(a: u32, b: u32, port: &str) -> Cable {
    Cable {
        ends: [NodeId(a), NodeId(b)],
        ports: [port.into(), port.into()],
        bandwidth_bps: 1_000_000_000,
        queue_bytes: 10_000,
        latency_min_ns: 100,
        jitter_max_ns: 10,
        reserved_bps: 0,
        reserved_burst_bytes: 0,
        kind: None,
        failure_per_year: None,
    }
}

fn nodes() -> Vec<Node> {
    vec![node("h1", NodeKind::Host), node("s1", NodeKind::Switch), node("s2", NodeKind::Switch)]
}

#[test]
fn fat_trees_have_the_published_sizes() {
    for (k, homing) in [(4_u64, 1_u64), (4, 2), (16, 2), (12, 3)] {
        let topology = FatTree { k, homing }.build(&CableSpec::default()).unwrap();
        let hosts = topology.hosts().count() as u64;
        assert_eq!(hosts, k * k * k / 4, "k = {k}");
        assert_eq!(topology.nodes().len() as u64 - hosts, 5 * k * k / 4);
        // Every host has its homes; k^3/4 cables in each of the two tiers above.
        assert_eq!(topology.cables().len() as u64, hosts * homing + k * k * k / 2);
        for host in topology.hosts() {
            assert_eq!(topology.leaving(host).len() as u64, homing);
        }
    }
}

#[test]
fn links_are_found_from_both_ends() {
    let topology = LeafSpine { groups: 2, homing: 2, spines: 3, hosts: 2 }.build(&CableSpec::default()).unwrap();
    for node in topology.node_ids() {
        for link in topology.leaving(node) {
            assert_eq!(topology.from(*link), node);
            assert_eq!(topology.to(link.reverse()), node);
            assert_eq!(link.reverse().reverse(), *link);
            assert!(topology.entering(topology.to(*link)).any(|other| other == *link));
        }
    }
    for cable in (0..).map(CableId).take(topology.cables().len()) {
        assert_eq!(topology.find_cable(&topology.cable_name(cable)), Some(cable));
    }
    assert_eq!(topology.find_cable("spine-0--leaf-0-0"), topology.find_cable("leaf-0-0--spine-0"));
    assert_eq!(topology.find_cable("leaf-0-0"), None);
}

#[test]
fn parallel_cables_are_named_with_their_ports() {
    let topology = Topology::new(nodes(), vec![cable(1, 2, "p0"), cable(1, 2, "p1")]).unwrap();
    assert_eq!(topology.cable_name(CableId(1)), "s1:p1--s2:p1");
    assert_eq!(topology.find_cable("s1:p1--s2:p1"), Some(CableId(1)));
    assert_eq!(topology.find_cable("s1--s2"), None, "which of the two?");
}

#[test]
fn core_cables_are_those_of_the_third_tier() {
    let topology = FatTree { k: 4, homing: 2 }.build(&CableSpec::default()).unwrap();
    let kind = |name| topology.cable_kind(topology.find_cable(name).unwrap());
    assert_eq!(kind("agg-0-0--core-0-0"), CableKind::Core);
    assert_eq!(kind("edge-0-0--agg-0-0"), CableKind::Trunk);
    assert_eq!(kind("h-0-0-0--edge-0-0"), CableKind::Trunk);
}

#[test]
fn what_is_no_topology_is_said() {
    let with = |change: fn(&mut Cable)| {
        let mut wrong = cable(0, 1, "p0");
        change(&mut wrong);
        Topology::new(nodes(), vec![wrong]).unwrap_err().to_string()
    };
    for (error, words) in [
        (with(|c| c.bandwidth_bps = 0), "bandwidth_bps is 0"),
        (with(|c| c.queue_bytes = 0), "queue_bytes is 0"),
        (with(|c| c.latency_min_ns = u64::MAX), "latency_min_ns"),
        (with(|c| c.jitter_max_ns = u64::MAX), "jitter_max_ns"),
        (with(|c| c.reserved_bps = c.bandwidth_bps), "below the bandwidth"),
        (with(|c| c.failure_per_year = Some(1.5)), "0 to 1"),
        (with(|c| c.ends[1] = NodeId(0)), "two different nodes"),
        (with(|c| c.ends[1] = NodeId(9)), "node number 9, of 3"),
        (with(|c| c.ports[0] = "a b".into()), "\"a b\""),
    ] {
        assert!(error.contains(words), "{error}");
    }
    let twice = Topology::new(nodes(), vec![cable(0, 1, "p0"), cable(0, 2, "p0")]).unwrap_err();
    assert!(twice.to_string().contains("port \"p0\" of h1"), "{twice}");
    let mut same = nodes();
    same[2].name = "s1".into();
    assert_eq!(Topology::new(same, Vec::new()).unwrap_err(), TopologyError::Twice { name: "s1".into() });
    let mut named = nodes();
    named[0].name = "h--1".into();
    assert!(matches!(Topology::new(named, Vec::new()), Err(TopologyError::Name { .. })));
    for (k, homing) in [(3, 1), (0, 1), (66, 1), (4, 3), (4, 0)] {
        assert!(FatTree { k, homing }.build(&CableSpec::default()).is_err(), "k = {k}, homing = {homing}");
    }
    let none = LeafSpine { groups: 2, homing: 2, spines: 0, hosts: 1 };
    assert!(none.build(&CableSpec::default()).unwrap_err().to_string().contains("spines"));
}
