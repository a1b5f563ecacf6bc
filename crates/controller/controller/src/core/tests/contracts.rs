// SPDX-License-Identifier: Apache-2.0

use fide_controller_api::Method;
use fide_controller_api::paths::{self, template};
use serde_json::{Value, json};

use super::super::Options;
use super::world::World;

const GRACE: u64 = 50_000_000;

#[test]
fn lane_is_installed_then_announced_then_used() {
    let mut world = World::new(Options::default());
    world.slow = true;
    let id = world.lane("h1", &["h2", "h4", "h5"], 100_000);
    assert!(world.upcalls_of("h1", "tree").is_empty(), "no switch has it yet");
    world.carry_out_held_back();
    let upcalls = world.upcalls_of("h1", "tree");
    assert_eq!(upcalls.len(), 2, "{upcalls:?}");
    assert_ne!(upcalls[0]["port"], upcalls[1]["port"]);
    assert_eq!(world.upcalls_of("h5", "tree").len(), 2, "receivers listen");
    world.check(id);
    for tree in upcalls {
        let body = json!({"tree": tree["tree"], "generation": 0});
        let (status, _) = world.ask("h1", Method::Post, template::MOVED, &id.to_string(), body);
        assert_eq!(status, 200);
    }
    assert!(world.see(id)["trees"].as_array().unwrap().iter().all(|tree| tree["phase"] == "used"));
}

#[test]
fn newcomer_waits_until_delayed_lanes_are_notified() {
    let mut world = World::new(Options::default());
    let first = world.lane("h1", &["h2"], 100_000);
    world.move_on("h1");
    let before = world.see(first)["resources"].clone();
    // The same switches.
    let second = world.lane("h3", &["h2"], 100_000);
    let upcalls = world.upcalls_of("h1", "bandwidth_changed");
    assert_eq!(upcalls.len(), 1, "{upcalls:?}");
    assert_eq!((&upcalls[0]["reason"], &upcalls[0]["grace_ns"]), (&json!("TE"), &json!(GRACE)));
    assert!(upcalls[0]["resources"]["jitter_max_ns"].as_u64() > before["jitter_max_ns"].as_u64());
    assert!(world.upcalls_of("h3", "tree").is_empty(), "not before the grace period is over");
    world.pass(GRACE - 1);
    assert!(world.upcalls_of("h3", "tree").is_empty());
    world.pass(1);
    assert_eq!(world.upcalls_of("h3", "tree").len(), 2);
    // When the newcomer ends, the first lane has its contract back.
    let (status, _) = world.ask("h3", Method::Delete, template::LANE, &second.to_string(), Value::Null);
    assert_eq!(status, 200);
    assert!(world.upcalls_of("h1", "bandwidth_changed").is_empty(), "it may still be sending");
    world.pass(GRACE);
    assert_eq!(world.upcalls_of("h1", "bandwidth_changed")[0]["resources"], before);
    assert_eq!(world.groups().len(), 2, "only the first lane's");
}

#[test]
fn change_of_figures_keeps_trees_and_refusal_changes_nothing() {
    let mut world = World::new(Options::default());
    let id = world.lane("h1", &["h2", "h4"], 100_000);
    world.move_on("h1");
    let ask = |world: &mut World, host: &str, period: u64| {
        let body = json!({"name": "l", "receivers": ["h2", "h4"], "size_max_bytes": 300, "period_min_ns": period});
        world.ask(host, Method::Put, template::LANE, &id.to_string(), body)
    };
    let (status, answer) = ask(&mut world, "h1", 50_000);
    assert_eq!((status, &answer["resources"]["period_min_ns"]), (200, &json!(50_000)), "{answer}");
    world.check(id);
    let before = world.state_bytes();
    let (status, answer) = ask(&mut world, "h1", 1_000_000_000_000);
    assert_eq!((status, &answer["error"]["code"]), (422, &json!("bad_request")), "{answer}");
    let (status, answer) = ask(&mut world, "h2", 50_000);
    assert_eq!((status, &answer["error"]["code"]), (403, &json!("not_yours")), "{answer}");
    let (status, answer) = ask(&mut world, "h3", 50_000);
    assert_eq!((status, &answer["error"]["code"]), (404, &json!("no_such_lane")), "{answer}");
    assert_eq!(world.state_bytes(), before);
}

#[test]
fn host_cannot_ask_for_another_host() {
    let mut world = World::new(Options::default());
    let body = json!({"name": "l", "sender": "h2", "receivers": ["h3"], "size_max_bytes": 1, "period_min_ns": 100_000});
    let (status, answer) = world.ask("h1", Method::Post, paths::LANES, "", body);
    assert_eq!((status, &answer["error"]["code"]), (403, &json!("not_you")), "{answer}");
    let body = json!({"name": "l", "receivers": ["h9"], "size_max_bytes": 1, "period_min_ns": 100_000});
    let (status, answer) = world.ask("h1", Method::Post, paths::LANES, "", body);
    assert_eq!(status, 422, "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("\"h9\""), "{answer}");
    let (status, answer) = world.ask("h1", Method::Post, paths::LANES, "", json!({"name": 3}));
    assert_eq!(status, 422, "{answer}");
}

#[test]
fn lane_beyond_its_contract_is_demoted_then_ended() {
    let mut world = World::new(Options::default());
    let other = world.lane("h1", &["h2"], 100_000);
    let id = world.lane("h3", &["h2"], 100_000);
    world.pass(GRACE);
    world.move_on("h1");
    world.move_on("h3");
    let usage = |world: &mut World, exceeded: u64| {
        let body = json!({"interval_ns": 1_000_000_000, "packets": 10_000, "exceeded": exceeded});
        world.ask("h3", Method::Post, template::USAGE, &id.to_string(), body).1
    };
    assert_eq!(usage(&mut world, 0)["standing"], "held");
    world.upcalls_of("h1", "bandwidth_changed");
    assert_eq!(usage(&mut world, 5)["standing"], "demoted");
    let upcalls = world.upcalls_of("h3", "bandwidth_changed");
    let last = upcalls.last().unwrap();
    assert_eq!((&last["reason"], &last["resources"]), (&json!("BW_EXCEEDED"), &json!("UNBOUNDED")), "{upcalls:?}");
    world.pass(GRACE);
    assert_eq!(world.upcalls_of("h1", "bandwidth_changed").len(), 1, "a lane that shares its queues gets better");
    world.check(other);
    // It asks again, and gets its bounds back.
    let body = json!({"name": "l", "receivers": ["h2"], "size_max_bytes": 200, "period_min_ns": 50_000});
    let (status, answer) = world.ask("h3", Method::Put, template::LANE, &id.to_string(), body);
    assert_eq!((status, &answer["standing"]), (200, &json!("held")), "{answer}");
    usage(&mut world, 1);
    usage(&mut world, 1);
    assert_eq!(world.upcalls_of("h3", "bandwidth_terminated").len(), 1);
    world.pass(GRACE);
    assert_eq!(world.ask("h3", Method::Get, template::LANE, &id.to_string(), Value::Null).0, 404);
    assert_eq!(world.groups().len(), 2);
}

#[test]
fn offence_is_forgiven_in_time() {
    let mut world = World::new(Options::default());
    let id = world.lane("h3", &["h2"], 100_000);
    world.move_on("h3");
    let usage = |world: &mut World, exceeded: u64| {
        let body = json!({"interval_ns": 1_000_000_000, "packets": 10_000, "exceeded": exceeded});
        assert_eq!(world.ask("h3", Method::Post, template::USAGE, &id.to_string(), body).0, 200);
    };
    // As many offences as end a lane, each long after the one before.
    for _ in 0..5 {
        usage(&mut world, 1);
        for _ in 0..30 {
            usage(&mut world, 0);
        }
    }
    assert!(world.upcalls_of("h3", "bandwidth_terminated").is_empty());
    for _ in 0..3 {
        usage(&mut world, 1);
    }
    assert_eq!(world.upcalls_of("h3", "bandwidth_terminated").len(), 1);
}

#[test]
fn unused_bandwidth_is_reclaimed_by_halves() {
    let mut world = World::new(Options { unused_reports: 3, ..Options::default() });
    let id = world.lane("h1", &["h2"], 100_000);
    world.move_on("h1");
    let usage = |world: &mut World, packets: u64| {
        let body = json!({"interval_ns": 1_000_000_000, "packets": packets, "exceeded": 0});
        world.ask("h1", Method::Post, template::USAGE, &id.to_string(), body).1
    };
    usage(&mut world, 100);
    usage(&mut world, 100);
    // Used in between: the count begins anew.
    usage(&mut world, 9_000);
    usage(&mut world, 100);
    usage(&mut world, 100);
    assert!(world.upcalls_of("h1", "bandwidth_changed").is_empty());
    usage(&mut world, 100);
    let upcalls = world.upcalls_of("h1", "bandwidth_changed");
    assert_eq!(
        (&upcalls[0]["reason"], &upcalls[0]["resources"]["period_min_ns"]),
        (&json!("BW_UNUSED"), &json!(200_000))
    );
    world.pass(GRACE);
    world.check(id);
    // Nothing at all is used: in the end the lane is terminated.
    for _ in 0..30 {
        usage(&mut world, 0);
        world.pass(GRACE);
    }
    assert_eq!(world.upcalls_of("h1", "bandwidth_terminated").len(), 1);
}
