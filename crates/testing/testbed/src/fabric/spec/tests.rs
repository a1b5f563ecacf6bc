// SPDX-License-Identifier: Apache-2.0
use super::*;

fn refused(spec: FabricSpec) -> String {
    spec.check().unwrap_err().to_string()
}

#[test]
fn two_tiers_have_every_leaf_at_every_spine_and_every_host_at_both_of_its_leaves() {
    let spec = FabricSpec::two_tier(5, 2, 3);
    spec.check().unwrap();
    assert_eq!(spec.switches.len(), 4 + 3);
    assert_eq!(spec.links.len(), 5 * 2 + 4 * 3);
    // Three hosts at the first pair, two at the second.
    assert!(spec.link_between("h3", "l1a").is_some() && spec.link_between("l2b", "h4").is_some());
    assert!(spec.link_between("h3", "l2a").is_none() && spec.link_between("l1a", "l1b").is_none());
    for leaf in ["l1a", "l1b", "l2a", "l2b"] {
        assert!(["s1", "s2", "s3"].iter().all(|s| spec.link_between(leaf, s).is_some()));
    }
    let link = &spec.links[spec.link_between("h4", "l2b").unwrap()];
    assert_eq!((link.a.port.as_str(), link.b.port.as_str()), ("p1", "h4"));
    assert_eq!(spec.planes(1), 2);
}

#[test]
fn three_tiers_join_their_pods_by_cores_of_which_each_has_one_switch_in_every_pod() {
    let spec = FabricSpec::three_tier(ThreeTier { hosts: 4, pods: 2, edge_pairs: 1, aggregation: 2, cores: 2 });
    spec.check().unwrap();
    assert_eq!(spec.switches.len(), 4 + 4 + 2);
    assert_eq!(spec.links.len(), 4 * 2 + 4 * 2 + 2 * 2);
    assert!(spec.link_between("a1_1", "c1").is_some() && spec.link_between("a2_2", "c2").is_some());
    assert!(spec.link_between("a1_1", "c2").is_none() && spec.link_between("e1_1a", "a2_1").is_none());
    assert_eq!(spec.links_of("c1").len(), 2);
}

#[test]
fn one_pair_has_two_switches_without_a_link_between_them() {
    let spec = FabricSpec::single_pair(3);
    spec.check().unwrap();
    assert_eq!((spec.switches.len(), spec.links.len()), (2, 6));
    assert!(spec.clone().on_ovs().switches.iter().all(|s| s.kind == SwitchKind::Ovs));
    assert_eq!(spec.clone().limited(10).managed().rate_mbit, Some(10));
}

#[test]
fn tree_reaches_every_other_host_once_within_its_rules() {
    let spec = FabricSpec::two_tier(4, 2, 2);
    let tree = spec.tree(1, 1, |s| s == "s2" || s.ends_with('b'));
    let ports = |s: &str| tree[s].iter().map(String::as_str).collect::<Vec<_>>();
    assert_eq!(tree.keys().collect::<Vec<_>>(), ["l1b", "l2b", "s2"]);
    assert_eq!((ports("l1b"), ports("s2"), ports("l2b")), (vec!["h2", "s2"], vec!["l2b"], vec!["h3", "h4"]));
    assert_eq!(spec.tree(1, 0, |_| false).keys().collect::<Vec<_>>(), ["l1a"]);
}

#[test]
fn impossible_spec_has_a_hint() {
    assert!(refused(FabricSpec::single_pair(0)).contains("1 to 64"));
    assert!(refused(FabricSpec::single_pair(2).limited(0)).contains("1 or more"));
    assert!(refused(FabricSpec::two_tier(2, 40, 1)).contains("at most 64"));
    assert!(refused(FabricSpec::two_tier(2, 0, 1)).contains("no cable at p0"));
    let with = |change: fn(&mut FabricSpec)| {
        let mut spec = FabricSpec::two_tier(2, 1, 1);
        change(&mut spec);
        refused(spec)
    };
    assert!(with(|s| s.switches[0].name = "h7".into()).contains("not `h` and a number"));
    assert!(with(|s| s.switches[0].name = "ctl".into()).contains("taken"));
    assert!(with(|s| s.switches[1].name = "l1a".into()).contains("taken"));
    assert!(with(|s| s.links[0].b.node = "nowhere".into()).contains("no node `nowhere`"));
    assert!(with(|s| s.links[0].a.port = "p2".into()).contains("p0 and p1"));
    assert!(with(|s| s.links[0].b.port = "br0".into()).contains("br0"));
    assert!(with(|s| s.links[1].a.port = "p0".into()).contains("two cables"));
    assert!(with(|s| s.links[0].b = End { node: "h2".into(), port: "p1".into() }).contains("a switch"));
}
