// SPDX-License-Identifier: Apache-2.0

use super::*;
use crate::topology::{CableSpec, FatTree, LeafSpine};
use crate::{Limits, Planner, Request};

fn held(topology: Topology, hosts: &[&str], redundancy: u8) -> Planner {
    let mut planner = Planner::new(topology, Limits::default()).unwrap();
    let request = Request {
        name: "r".into(),
        sender: hosts[0].into(),
        receivers: hosts[1..].iter().map(|host| (*host).to_owned()).collect(),
        size_max_bytes: 100,
        period_min_ns: 1_000_000,
        priority: 0,
        redundancy,
        latency_max_ns: None,
    };
    planner.request(request).unwrap();
    planner
}

fn compound(planner: &Planner, rates: &Rates) -> f64 {
    let (_, allocation) = planner.allocations().next().unwrap();
    rates.compound(planner.topology(), allocation)
}

/// FiDe Table 3 and App. C, two processes. 22.7 is 1 / 0.044, rounded before it was inverted.
#[test]
fn the_published_odds() {
    let rates = Rates::default();
    for (height, probability, years) in [(1, 0.044, 22.7), (2, 0.089, 11.3), (3, 0.17, 6.0)] {
        let computed = rates.fat_tree(2, height);
        assert!((computed - probability).abs() < 0.005, "{height}: {computed}");
        assert!((1.0 / computed - years).abs() < 0.15, "{height}: {}", 1.0 / computed);
    }
    let tcp = tcp_errors(20_000);
    assert!((tcp.soonest_s - 320.0).abs() < 1e-6);
    assert!((tcp.latest_s / 86_400.0 - 2.3).abs() < 0.02);
}

/// Trees of two hosts have just the cables that the closed form counts.
#[test]
fn real_trees_of_two_hosts_give_the_closed_form() {
    let rates = Rates::default();
    let pair = LeafSpine { groups: 1, homing: 2, spines: 0, hosts: 2 }.build(&CableSpec::default()).unwrap();
    let fat = |_: ()| FatTree { k: 4, homing: 2 }.build(&CableSpec::default()).unwrap();
    for (topology, hosts, height) in [(pair, ["h1", "h2"], 1), (fat(()), ["h-0-0-0", "h-1-0-0"], 3)] {
        let planner = held(topology, &hosts, 2);
        let difference = compound(&planner, &rates) - rates.fat_tree(2, height);
        assert!(difference.abs() < 1e-12, "height {height}: {difference}");
    }
}

#[test]
fn one_tree_alone_fails_with_each_of_its_cables_and_rates_of_one_s_own_count() {
    let topology = || LeafSpine { groups: 1, homing: 2, spines: 0, hosts: 3 }.build(&CableSpec::default()).unwrap();
    let rates = Rates { trunk_per_year: 0.01, core_per_year: 0.0, group: 0.5 };
    let alone = compound(&held(topology(), &["h1", "h2", "h3"], 1), &rates);
    let two = compound(&held(topology(), &["h1", "h2", "h3"], 2), &rates);
    assert!((alone - 0.03).abs() < 1e-12 && (two - 0.015).abs() < 1e-12, "{alone} {two}");
    // Never more than certain.
    let certain = Rates { trunk_per_year: 1.0, core_per_year: 1.0, group: 1.0 };
    assert!((compound(&held(topology(), &["h1", "h2", "h3"], 2), &certain) - 1.0).abs() < 1e-12);
}

#[test]
fn a_rate_is_a_probability() {
    assert!(Rates::default().check().is_ok());
    for wrong in [-0.1, 1.1, f64::NAN] {
        let error = Rates { group: wrong, ..Rates::default() }.check().unwrap_err();
        assert!(error.to_string().contains("group"), "{error}");
    }
}
