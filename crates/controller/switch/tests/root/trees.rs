// SPDX-License-Identifier: Apache-2.0
//! Whole trees through fabrics, installed by drivers.

use super::common::{group, heard, hears, open, root_or_skip, tree};
use fide_switch::Lanes;
use fide_testbed::fabric::{Cut, Fabric, FabricSpec, SwitchKind, ThreeTier, ovs_supported};

/// Both trees of h1: exactly the receivers get exactly one copy each; a cut switch of one leaves the other.
fn try_trees(spec: FabricSpec, spine: &str) {
    let fabric = Fabric::build(spec).unwrap();
    let all: Vec<usize> = (2..=fabric.hosts().len()).collect();
    let mut drivers = Vec::new();
    for plane in 0..2 {
        for (switch, rule) in tree(&fabric, plane) {
            let mut driver = open(fabric.switch(&switch).unwrap());
            driver.prepare(&Lanes::default()).unwrap();
            driver.install(std::slice::from_ref(&rule)).unwrap().complete().unwrap();
            assert_eq!(driver.audit(&[rule]).unwrap(), [], "{switch}");
            drivers.push(driver);
        }
        hears(&fabric, plane, group(plane as u8, 1), 20, &all);
    }
    for c in fabric.counters().unwrap() {
        assert!(c.tx_packets < 150, "something circulates: {c:?}");
    }
    fabric.cut_switch(spine, Cut::Silent).unwrap();
    assert_ne!(heard(&fabric, 0, group(0, 1), 5, &[]), all);
    hears(&fabric, 1, group(1, 1), 5, &all);
    for driver in &mut drivers {
        driver.restore().unwrap();
    }
    hears(&fabric, 1, group(1, 1), 5, &[]);
}

#[test]
fn root_trees_through_two_tiers() {
    root_or_skip!();
    try_trees(FabricSpec::two_tier(4, 2, 2), "s1");
}

#[test]
fn root_trees_through_bridges_and_open_vswitches() {
    root_or_skip!(ovs_supported());
    let mut spec = FabricSpec::two_tier(3, 2, 2);
    for s in spec.switches.iter_mut().filter(|s| ["l1a", "s1", "l2b"].contains(&s.name.as_str())) {
        s.kind = SwitchKind::Ovs;
    }
    try_trees(spec, "s1");
}

#[test]
fn root_trees_through_three_tiers() {
    root_or_skip!();
    let shape = ThreeTier { hosts: 4, pods: 2, edge_pairs: 1, aggregation: 2, cores: 2 };
    try_trees(FabricSpec::three_tier(shape), "c1");
}
