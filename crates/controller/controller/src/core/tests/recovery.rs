// SPDX-License-Identifier: Apache-2.0

use fide_controller_api::Method;
use fide_controller_api::event::WithoutRedundancy;
use fide_controller_api::paths::{self, template};
use serde_json::json;

use super::super::{Event, Options};
use super::world::{World, topology};

/// A cable between switches that a tree of a lane uses: (switch, port), as its upper end sees it.
fn inner_cable(world: &mut World, id: u64, tree: usize) -> (String, String) {
    let lane = world.see(id);
    let links = lane["trees"][tree]["links"].as_array().unwrap().clone();
    let link = links.iter().find(|link| link[0].as_str().unwrap().starts_with("spine")).expect("it goes over a spine");
    (link[0].as_str().unwrap().to_owned(), link[1].as_str().unwrap().to_owned())
}

fn carrier(world: &mut World, (switch, port): &(String, String), up: bool) {
    world.event(Event::Carrier { switch: switch.clone(), port: port.clone(), up });
}

#[test]
fn cut_cable_moves_only_its_tree() {
    let mut world = World::new(Options::default());
    let id = world.lane("h1", &["h2", "h4", "h5"], 100_000);
    world.move_on("h1");
    let before = world.see(id);
    let cable = inner_cable(&mut world, id, 0);
    world.upcalls_of("h4", "tree");
    world.slow = true;
    carrier(&mut world, &cable, false);
    assert!(world.upcalls_of("h1", "tree").is_empty(), "not before the switches have it");
    world.carry_out_held_back();
    let upcalls = world.upcalls_of("h1", "tree");
    assert_eq!(upcalls.len(), 1);
    assert_eq!((&upcalls[0]["tree"], &upcalls[0]["generation"]), (&json!(0), &json!(1)));
    assert_eq!(upcalls[0]["groups"], before["trees"][0]["groups"], "receivers listen to it already");
    assert_ne!(upcalls[0]["group"], before["trees"][0]["group"]);
    let now = world.see(id);
    assert_eq!(now["trees"][1], before["trees"][1]);
    world.check(id);
    // The old tree stays in the switches until the sender has moved.
    assert_eq!(world.groups().len(), 3);
    let body = json!({"tree": 0, "generation": 1});
    world.ask("h1", Method::Post, template::MOVED, &id.to_string(), body);
    world.pass(0);
    assert_eq!(world.groups().len(), 2);
    world.check(id);
}

#[test]
fn silent_cable_is_found_from_the_receivers_reports() {
    let mut world = World::new(Options::default());
    let id = world.lane("h1", &["h2", "h4", "h5"], 100_000);
    world.move_on("h1");
    let (spine, leaf) = inner_cable(&mut world, id, 1);
    // h4 and h5 are behind it, h2 is not.
    for host in ["h4", "h5"] {
        let body = json!({"tree": 1, "generation": 0, "missing": true});
        let (status, answer) = world.ask(host, Method::Post, template::LANE_REPORTS, &id.to_string(), body);
        assert_eq!(status, 200, "{answer}");
    }
    world.pass(5_000_000);
    let network = world.ask("op", Method::Get, paths::NETWORK, "", json!(null)).1;
    let suspected: Vec<&str> = network["cables"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|cable| cable["suspected"] == true)
        .map(|cable| cable["cable"].as_str().unwrap())
        .collect();
    let topology = topology();
    let name = |a: &str, b: &str| topology.cable_name(topology.find_cable(&format!("{a}--{b}")).unwrap());
    assert!(suspected.contains(&name(&spine, &leaf).as_str()), "{suspected:?}");
    assert!(suspected.iter().all(|cable| !cable.contains("h2")), "{suspected:?}");
}

fn miss(world: &mut World, id: u64, host: &str, tree: u8, generation: u32) {
    let body = json!({"tree": tree, "generation": generation, "missing": true});
    let (status, answer) = world.ask(host, Method::Post, template::LANE_REPORTS, &id.to_string(), body);
    assert_eq!(status, 200, "{answer}");
}

#[test]
fn each_report_of_a_batch_is_taken_or_refused_alone() {
    let mut world = World::new(Options::default());
    let ids: Vec<u64> = (0..2).map(|_| world.lane("h1", &["h2", "h4"], 200_000)).collect();
    world.pass(100_000_000);
    world.move_on("h1");
    let report = |lane: u64, tree: u8| json!({"lane": lane, "tree": tree, "generation": 0, "missing": true});
    let body = json!({"reports": [report(ids[0], 0), report(999, 0), report(ids[1], 7), report(ids[1], 0)]});
    let (status, answer) = world.ask("h4", Method::Post, paths::REPORTS, "", body);
    assert_eq!(status, 200, "{answer}");
    let refused: Vec<&str> =
        answer["refused"].as_array().unwrap().iter().map(|r| r["error"]["code"].as_str().unwrap()).collect();
    assert_eq!(refused, ["no_such_lane", "no_such_tree"]);
    world.pass(5_000_000);
    let generations: Vec<_> = ids.iter().map(|id| world.see(*id)["trees"].clone()).collect();
    assert_eq!((&generations[0][0]["generation"], &generations[0][1]["generation"]), (&json!(1), &json!(0)));
    assert_eq!((&generations[1][0]["generation"], &generations[1][1]["generation"]), (&json!(1), &json!(0)));
    for body in [json!({}), json!({"reports": 3}), json!({"reports": vec![json!({}); 1025]})] {
        assert_eq!(world.ask("h4", Method::Post, paths::REPORTS, "", body).0, 422);
    }
}

#[test]
fn early_reports_count_only_if_the_tree_stays_missed() {
    let mut world = World::new(Options::default());
    let id = world.lane("h1", &["h2", "h4"], 100_000);
    // Both were notified of the trees; the sender uses one before the other.
    miss(&mut world, id, "h4", 0, 0);
    miss(&mut world, id, "h4", 1, 0);
    world.pass(100_000_000);
    world.move_on("h1");
    let body = json!({"tree": 0, "generation": 0, "missing": false});
    world.ask("h4", Method::Post, template::LANE_REPORTS, &id.to_string(), body);
    world.pass(100_000_000);
    let trees = world.see(id)["trees"].clone();
    assert_eq!(trees[0]["generation"], 0, "it has come meanwhile");
    assert_eq!(trees[1]["generation"], 1, "it has not");
}

#[test]
fn silent_cable_between_switches_is_avoided_if_possible() {
    let mut world = World::new(Options::default());
    let id = world.lane("h1", &["h2", "h4"], 100_000);
    world.move_on("h1");
    // h2 misses nothing, so the fault is beyond the first leaf: a spine's cables, or h4's cable, which has
    // no alternative.
    let old = inner_cable(&mut world, id, 0);
    miss(&mut world, id, "h4", 0, 0);
    world.pass(5_000_000);
    assert_eq!(world.see(id)["trees"][0]["generation"], 1);
    assert_ne!(inner_cable(&mut world, id, 0), old);
    world.check(id);
    world.move_on("h1");
    // The third spine is used by the other tree. Before this tree is given up, further reports are awaited.
    miss(&mut world, id, "h4", 0, 1);
    world.pass(5_000_000);
    assert!(world.upcalls_of("h1", "redundancy_lost").is_empty());
    world.pass(50_000_000);
    assert_eq!(world.see(id)["trees"][0]["phase"], "lost");
    let upcalls = world.upcalls_of("h1", "redundancy_lost");
    assert_eq!((&upcalls[0]["policy"], &upcalls[0]["tree"]), (&json!("continue"), &json!(0)));
    world.pass(40_000_000_000);
    assert_ne!(world.see(id)["trees"][0]["phase"], "lost");
    world.check(id);
}

#[test]
fn late_report_moves_suspicion_to_cables_between_switches() {
    let mut world = World::new(Options::default());
    let id = world.lane("h1", &["h2", "h4", "h5"], 100_000);
    world.move_on("h1");
    let old = inner_cable(&mut world, id, 0);
    // As long as h5 has not reported, its path clears all cables but h4's own.
    miss(&mut world, id, "h4", 0, 0);
    world.pass(5_000_000);
    assert_eq!(world.see(id)["trees"][0]["generation"], 0);
    miss(&mut world, id, "h5", 0, 0);
    world.pass(4_000_000);
    let lane = world.see(id);
    assert_eq!((&lane["trees"][0]["generation"], &lane["trees"][0]["phase"]), (&json!(1), &json!("ready")), "{lane}");
    assert_ne!(inner_cable(&mut world, id, 0), old);
    assert!(world.upcalls_of("h1", "redundancy_lost").is_empty());
    world.check(id);

    // Even after the tree was given up.
    world.move_on("h1");
    miss(&mut world, id, "h4", 1, 0);
    world.pass(200_000_000);
    assert_eq!(world.see(id)["trees"][1]["phase"], "lost");
    miss(&mut world, id, "h5", 1, 0);
    world.pass(5_000_000);
    assert_ne!(world.see(id)["trees"][1]["phase"], "lost");
    world.check(id);
}

#[test]
fn suspicion_moves_every_tree_that_it_explains() {
    let mut world = World::new(Options::default());
    let ids: Vec<u64> = ["h1", "h2", "h3"]
        .into_iter()
        .cycle()
        .take(12)
        .map(|from| world.lane(from, &["h4", "h5"], 1_000_000))
        .collect();
    // Newcomers wait until the lanes before them are notified that they get later.
    world.pass(1_000_000_000);
    ["h1", "h2", "h3"].into_iter().for_each(|host| world.move_on(host));
    // Trees over one cable between spine and leaf; the planner spreads them.
    let cable = inner_cable(&mut world, ids[0], 0);
    let trees: Vec<(u64, u8)> = ids.iter().flat_map(|id| [(*id, 0), (*id, 1)]).collect();
    let over = |world: &mut World, (id, tree): &(u64, u8)| inner_cable(world, *id, usize::from(*tree)) == cable;
    let (over, others): (Vec<_>, Vec<_>) = trees.into_iter().partition(|tree| over(&mut world, tree));
    let [first, second, third, ..] = over[..] else { panic!("{over:?}") };
    let lost = |world: &mut World, (id, tree): (u64, u8), host: &str| miss(world, id, host, tree, 0);
    let moved = |world: &mut World, (id, tree): (u64, u8)| world.see(id)["trees"][usize::from(tree)]["generation"] == 1;
    lost(&mut world, first, "h4");
    lost(&mut world, first, "h5");
    // By itself this report would point at h4's cable, and others would be awaited.
    lost(&mut world, second, "h4");
    world.pass(4_000_000);
    assert!(moved(&mut world, first) && moved(&mut world, second));
    assert!(!moved(&mut world, third), "nobody misses it");
    // A report that is explained by now is not gathered.
    lost(&mut world, third, "h5");
    assert!(moved(&mut world, third));
    // These paths have no suspected cable.
    let elsewhere = others.into_iter().find(|(id, tree)| inner_cable(&mut world, *id, usize::from(*tree)).0 != cable.0);
    let elsewhere = elsewhere.expect("there are three spines");
    lost(&mut world, elsewhere, "h4");
    assert!(!moved(&mut world, elsewhere));
    let [first, second, third] = [first, second, third].map(|(id, _)| id);
    [first, second, third].into_iter().for_each(|id| world.check(id));
}

#[test]
fn lost_tree_is_retried_at_one_pace_despite_flapping() {
    let mut world = World::new(Options::default());
    let id = world.lane("h1", &["h2"], 100_000);
    world.move_on("h1");
    let _ = id;
    for _ in 0..10 {
        carrier(&mut world, &("leaf-0-1".to_owned(), "h2".to_owned()), false);
        world.pass(1_000);
        // The cable's other end, and another cable that does not help.
        carrier(&mut world, &("spine-0".to_owned(), "leaf-0-0".to_owned()), true);
        world.pass(1_000);
    }
    assert_eq!(world.retries(), 1);
}

#[test]
fn answers_to_old_orders_do_not_count_for_new_ones() {
    let mut world = World::new(Options::default());
    world.lane("h1", &["h2"], 100_000);
    let before = world.last_order();
    world.slow = true;
    world.reload();
    world.event(Event::Applied { switch: "leaf-0-0".into(), number: before, error: None });
    assert!(world.held_numbers().iter().all(|number| *number > before), "{:?}", world.held_numbers());
}

#[test]
fn lost_tree_reports_policy_and_repair_is_used_at_once() {
    let mut world = World::new(Options { without_redundancy: WithoutRedundancy::Stop, ..Options::default() });
    let id = world.lane("h1", &["h2"], 100_000);
    world.move_on("h1");
    let cut = ("leaf-0-1".to_owned(), "h2".to_owned());
    carrier(&mut world, &cut, false);
    let upcalls = world.upcalls_of("h2", "redundancy_lost");
    assert_eq!((upcalls.len(), &upcalls[0]["policy"]), (1, &json!("stop")), "{upcalls:?}");
    world.pass(3_000_000_000);
    assert!(world.upcalls_of("h2", "redundancy_lost").is_empty(), "reported once");
    assert!(world.upcalls_of("h1", "tree").is_empty());
    carrier(&mut world, &cut, true);
    assert_eq!(world.upcalls_of("h1", "tree").len(), 1);
    world.check(id);
}

#[test]
fn refusing_switch_is_bypassed() {
    let mut world = World::new(Options::default());
    world.refusing.insert("spine-0".into());
    world.refusing.insert("leaf-none".into());
    let id = world.lane("h1", &["h2", "h4"], 100_000);
    let lane = world.see(id);
    let text = lane["trees"].to_string();
    assert!(!text.contains("spine-0"), "{text}");
    assert_eq!(world.upcalls_of("h1", "tree").len(), 2);
    world.check(id);
}

#[test]
fn restart_in_any_state_ends_with_the_same_trees() {
    let mut world = World::new(Options::default());
    let first = world.lane("h1", &["h2", "h4", "h5"], 100_000);
    world.restart();
    world.move_on("h1");
    world.slow = true;
    let second = world.lane("h4", &["h1"], 200_000);
    // Its orders are lost with the controller.
    world.held_back.clear();
    world.slow = false;
    world.restart();
    world.pass(100_000_000);
    assert_eq!(world.upcalls_of("h4", "tree").iter().filter(|tree| tree["lane"] == second).count(), 2);
    world.move_on("h4");
    let cable = inner_cable(&mut world, first, 1);
    world.slow = true;
    carrier(&mut world, &cable, false);
    world.held_back.clear();
    world.slow = false;
    world.restart();
    world.pass(100_000_000);
    world.move_on("h1");
    world.pass(2_000_000_000);
    for id in [first, second] {
        world.check(id);
    }
    assert_eq!(world.groups().len(), 4);
}

/// A lane whose tree 0 is missed by h4 until it is given up. Returns its number and the generation that was
/// given up.
fn given_up(world: &mut World) -> (u64, u32) {
    let id = world.lane("h1", &["h2", "h4"], 100_000);
    world.pass(60_000_000);
    for generation in 0..3 {
        world.move_on("h1");
        miss(world, id, "h4", 0, generation);
        world.pass(60_000_000);
        if world.see(id)["trees"][0]["phase"] == "lost" {
            world.upcalls_of("h1", "tree");
            return (id, generation);
        }
    }
    panic!("still not given up: {}", world.see(id));
}

#[test]
fn tree_heard_again_is_used_again_at_once() {
    let mut world = World::new(Options::default());
    let (id, generation) = given_up(&mut world);
    let body = json!({"tree": 0, "generation": generation, "missing": false});
    let (status, answer) = world.ask("h4", Method::Post, template::LANE_REPORTS, &id.to_string(), body);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(world.upcalls_of("h1", "tree").len(), 1);
    world.check(id);
}

#[test]
fn suspected_cable_is_used_rather_than_no_tree() {
    let mut world = World::new(Options::default());
    let second = world.lane("h2", &["h4", "h5"], 100_000);
    world.move_on("h2");
    given_up(&mut world);
    // Another lane loses a cable; h4's own, which has no alternative, is suspected.
    let before = world.see(second)["trees"][0]["generation"].as_u64();
    let cable = inner_cable(&mut world, second, 0);
    carrier(&mut world, &cable, false);
    let lane = world.see(second);
    assert_eq!(lane["trees"][0]["generation"].as_u64(), before.map(|g| g + 1), "{lane}");
    assert_ne!(lane["trees"][0]["phase"], "lost", "{lane}");
    world.check(second);
}
