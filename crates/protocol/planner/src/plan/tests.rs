// SPDX-License-Identifier: Apache-2.0

use proptest::prelude::*;

use super::*;
use crate::topology::{CableSpec, FatTree, LeafSpine};

fn leaf_spine() -> Planner {
    let topology = LeafSpine { groups: 2, homing: 2, spines: 3, hosts: 3 }.build(&CableSpec::default()).unwrap();
    Planner::new(topology, Limits::default()).unwrap()
}

fn request(sender: &str, receivers: &[&str]) -> Request {
    Request {
        name: format!("{sender} to {}", receivers.join(" ")),
        sender: sender.into(),
        receivers: receivers.iter().map(|host| (*host).to_owned()).collect(),
        size_max_bytes: 1000,
        period_min_ns: 100_000,
        priority: 0,
        redundancy: 2,
        latency_max_ns: None,
    }
}

fn cable(planner: &Planner, name: &str) -> CableId {
    planner.topology().find_cable(name).unwrap()
}

/// FiDe App. B: the earliest of any tree, the latest of any.
#[test]
fn a_contract_covers_all_trees() {
    let mut planner = leaf_spine();
    let (id, changed) = planner.request(request("h1", &["h2", "h4"])).unwrap();
    assert!(changed.is_empty());
    let contract = planner.allocation(id).unwrap().contract.clone();
    for (j, latency) in contract.receivers.iter().enumerate() {
        let trees: Vec<Latency> = (0..2).map(|tree| planner.tree_latency(id, tree, j).unwrap()).collect();
        assert_eq!(latency.latency_min_ns, trees.iter().map(|t| t.latency_min_ns).min().unwrap());
        assert_eq!(latency.latency_max_ns(), trees.iter().map(|t| t.latency_max_ns()).max().unwrap());
        // TO = HB + lambda_min + 2 delta_max.
        let to = latency.timeout_ns(1_000_000);
        assert_eq!(to, 1_000_000 + latency.latency_min_ns + 2 * latency.jitter_max_ns);
    }
    assert_eq!(contract.overall().latency_max_ns(), contract.receivers[1].latency_max_ns());
    assert!(planner.tree_latency(id, 2, 0).is_none() && planner.tree_latency(id, 0, 2).is_none());
}

#[test]
fn cost_of_a_newcomer_is_announced_and_given_back() {
    let mut planner = leaf_spine();
    let (first, _) = planner.request(request("h1", &["h3"])).unwrap();
    let before = planner.allocation(first).unwrap().contract.clone();
    let (second, changed) = planner.request(request("h2", &["h3"])).unwrap();
    assert_eq!(changed.len(), 1);
    assert_eq!((changed[0].id, &changed[0].before), (first, &before));
    assert!(changed[0].after.overall().latency_max_ns() > before.overall().latency_max_ns());
    let changed = planner.release(second).unwrap();
    assert_eq!((changed[0].id, &changed[0].after), (first, &before));
    assert_eq!(planner.release(second), Err(Refusal::Unknown(second.0)));
}

#[test]
fn a_refusal_names_the_link_and_changes_nothing() {
    let mut planner = leaf_spine();
    planner.request(request("h1", &["h2"])).unwrap();
    let before: Vec<LinkUse> = planner.links().collect();
    let mut large = request("h1", &["h2"]);
    large.period_min_ns = 1_500;
    let error = planner.request(large).unwrap_err();
    assert!(matches!(&error, Refusal::Link { what: Overload::Bandwidth { .. }, .. }), "{error}");
    assert!(error.to_string().contains("h1>leaf-0-0") || error.to_string().contains("h1>leaf-0-1"), "{error}");
    let mut soon = request("h2", &["h4"]);
    soon.latency_max_ns = Some(5_000);
    let error = planner.request(soon).unwrap_err();
    assert!(matches!(&error, Refusal::Late { allowed_ns: 5_000, .. }), "{error}");
    let unknown = planner.request(request("h1", &["h99"])).unwrap_err();
    assert!(unknown.to_string().contains("\"h99\""), "{unknown}");
    for wrong in [
        request("h1", &["h1"]),
        request("h1", &["h2", "h2"]),
        request("h1", &[]),
        request("h1", &["leaf-0-0"]),
        Request { redundancy: 4, ..request("h1", &["h2"]) },
        Request { priority: 9, ..request("h1", &["h2"]) },
        Request { period_min_ns: 0, ..request("h1", &["h2"]) },
        Request { size_max_bytes: 0, ..request("h1", &["h2"]) },
    ] {
        assert!(matches!(planner.request(wrong), Err(Refusal::Request(_))));
    }
    assert_eq!(planner.links().collect::<Vec<_>>(), before);
}

#[test]
fn who_was_promised_a_latency_keeps_it() {
    let mut planner = leaf_spine();
    let (id, _) = planner.request(request("h1", &["h3"])).unwrap();
    let latency = planner.allocation(id).unwrap().contract.overall().latency_max_ns();
    planner.release(id).unwrap();
    planner.request(Request { latency_max_ns: Some(latency), ..request("h1", &["h3"]) }).unwrap();
    let error = planner.request(request("h2", &["h3"])).unwrap_err();
    assert!(matches!(&error, Refusal::Harms { other, .. } if other.starts_with("h1")), "{error}");
}

#[test]
fn queues_of_a_share_are_not_exceeded() {
    let topology = LeafSpine { groups: 1, homing: 2, spines: 0, hosts: 4 };
    let small = CableSpec { queue_bytes: 3_000, ..CableSpec::default() };
    let limits = Limits { queue_share: 0.5, ..Limits::default() };
    let mut planner = Planner::new(topology.build(&small).unwrap(), limits).unwrap();
    planner.request(request("h1", &["h4"])).unwrap();
    let error = planner.request(request("h2", &["h4"])).unwrap_err();
    assert!(matches!(&error, Refusal::Link { what: Overload::Queue { .. }, .. }), "{error}");
    assert!(error.to_string().contains(">h4"), "{error}");
}

#[test]
fn queue_that_holds_one_packet_takes_one() {
    let topology = LeafSpine { groups: 1, homing: 1, spines: 0, hosts: 2 };
    let one = |queue_bytes| {
        let cable = CableSpec { queue_bytes, ..CableSpec::default() };
        let limits = Limits { queue_share: 1.0, ..Limits::default() };
        let mut planner = Planner::new(topology.build(&cable).unwrap(), limits).unwrap();
        planner.request(Request { redundancy: 1, size_max_bytes: 8_972, ..request("h1", &["h2"]) }).map(drop)
    };
    one(12_000).unwrap();
    let error = one(9_000).unwrap_err().to_string();
    assert!(error.contains("9038 bytes of the lane may wait there at once, 9000 are allowed"), "{error}");
}

#[test]
fn a_broken_tree_is_replaced_and_the_other_stays() {
    let mut planner = leaf_spine();
    let (id, _) = planner.request(request("h1", &["h2", "h4", "h5"])).unwrap();
    let before = planner.allocation(id).unwrap().trees.clone();
    let broken = before[0].links().find(|link| {
        let topology = planner.topology();
        !topology.is_host(topology.from(*link)) && !topology.is_host(topology.to(*link))
    });
    let broken = broken.unwrap().cable();
    planner.set_cable(broken, false);
    assert_eq!(planner.broken(id), [0]);
    planner.replace(id, 0, &BTreeSet::new()).unwrap();
    let after = &planner.allocation(id).unwrap().trees;
    assert_eq!(after[1], before[1]);
    assert!(after[0].links().all(|link| link.cable() != broken));
    check_disjoint(planner.topology(), after).unwrap();
    assert!(planner.broken(id).is_empty());
    // A host's own cable has no other.
    let own = cable(&planner, "h4--leaf-1-0");
    planner.set_cable(own, false);
    let tree = planner.broken(id)[0];
    let held = planner.allocation(id).unwrap().trees.clone();
    assert!(planner.replace(id, tree, &BTreeSet::new()).is_err());
    assert_eq!(planner.allocation(id).unwrap().trees, held, "refused: as before");
    assert!(matches!(planner.replace(id, 7, &BTreeSet::new()), Err(Refusal::NoSuchTree { .. })));
}

#[test]
fn a_change_that_is_refused_leaves_the_request_as_it_was() {
    let mut planner = leaf_spine();
    let (id, _) = planner.request(request("h1", &["h2"])).unwrap();
    let held = planner.allocation(id).unwrap().clone();
    assert!(planner.change(id, Request { period_min_ns: 1_001, ..request("h1", &["h2"]) }).is_err());
    let now = planner.allocation(id).unwrap();
    assert_eq!((&now.trees, &now.contract, &now.request), (&held.trees, &held.contract, &held.request));
    planner.change(id, Request { period_min_ns: 50_000, ..request("h1", &["h2", "h5"]) }).unwrap();
    assert_eq!(planner.allocation(id).unwrap().contract.receivers.len(), 2);
}

#[test]
fn excluded_cables_are_not_used_and_wrong_names_are_said() {
    let topology = || LeafSpine { groups: 2, homing: 2, spines: 2, hosts: 1 }.build(&CableSpec::default()).unwrap();
    let limits = Limits { exclude: vec!["leaf-0-0--spine-0".into(), "leaf-1-0--spine-1".into()], ..Limits::default() };
    let mut planner = Planner::new(topology(), limits).unwrap();
    let (id, _) = planner.request(request("h1", &["h2"])).unwrap();
    let excluded = [cable(&planner, "leaf-0-0--spine-0"), cable(&planner, "leaf-1-0--spine-1")];
    let trees = &planner.allocation(id).unwrap().trees;
    assert!(trees.iter().flat_map(Tree::links).all(|link| !excluded.contains(&link.cable())));
    for limits in [
        Limits { only: vec!["leaf-0-0--nowhere".into()], ..Limits::default() },
        Limits { bandwidth_share: 0.0, ..Limits::default() },
        Limits { queue_share: 1.5, ..Limits::default() },
        Limits { best_effort_wire_bytes: 1 << 20, ..Limits::default() },
    ] {
        assert!(Planner::new(topology(), limits).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// However requests come and go, bounds are those of a network that only ever had what is left, over the
    /// same trees.
    #[test]
    fn bounds_do_not_remember(steps in prop::collection::vec((0_u8..4, any::<u32>(), any::<u32>(), 0_u8..3), 1..30)) {
        let topology = FatTree { k: 4, homing: 2 }.build(&CableSpec::default()).unwrap();
        let hosts: Vec<String> = topology.hosts().map(|host| topology.node(host).name.clone()).collect();
        let mut planner = Planner::new(topology.clone(), Limits::default()).unwrap();
        let mut held: Vec<RequestId> = Vec::new();
        for (what, a, b, priority) in steps {
            let pick = |n: u32| n as usize % hosts.len();
            let far = (pick(a) + 1 + b as usize % (hosts.len() - 1)) % hosts.len();
            let more = (far + 1) % hosts.len();
            let mut receivers = vec![hosts[far].as_str()];
            if more != pick(a) {
                receivers.push(&hosts[more]);
            }
            let asked = Request { priority, ..request(&hosts[pick(a)], &receivers) };
            match (what, held.is_empty()) {
                (0 | 1, _) | (_, true) => {
                    if let Ok((id, _)) = planner.request(asked) {
                        held.push(id);
                    }
                }
                (2, false) => {
                    let id = held.swap_remove(a as usize % held.len());
                    planner.release(id).unwrap();
                }
                _ => {
                    let id = held[a as usize % held.len()];
                    let _ = planner.change(id, asked);
                }
            }
        }
        let mut fresh = Planner::new(topology, Limits::default()).unwrap();
        for (id, allocation) in planner.allocations() {
            let links: Vec<Vec<LinkId>> = allocation.trees.iter().map(|tree| tree.links().collect()).collect();
            fresh.hold(id, allocation.request.clone(), &links).unwrap();
        }
        for (id, allocation) in planner.allocations() {
            prop_assert_eq!(&allocation.contract, &fresh.allocation(id).unwrap().contract);
        }
        let uses = |planner: &Planner| planner.links().map(|l| (l.link, l.lane_bps, l.backlog_bytes)).collect::<Vec<_>>();
        prop_assert_eq!(uses(&planner), uses(&fresh));
    }
}
