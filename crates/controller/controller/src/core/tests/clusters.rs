// SPDX-License-Identifier: Apache-2.0

use fide_controller_api::Method;
use fide_controller_api::paths::{self, template};
use serde_json::{Value, json};

use super::super::Options;
use super::world::World;

fn join(world: &mut World, host: &str, app: &str) {
    assert_eq!(world.ask(host, Method::Post, paths::APPS, "", json!({"app": app})).0, 200);
}

fn monitor(world: &mut World, host: &str, app: &str, timeout_ns: u64, pbsize: u64) -> (u16, Value) {
    let body = json!({"app": app, "timeout_ns": timeout_ns, "pbsize": pbsize});
    world.ask(host, Method::Post, paths::MONITORS, "", body)
}

#[test]
fn heartbeats_follow_the_most_demanding_watcher() {
    let mut world = World::new(Options::default());
    join(&mut world, "h1", "db");
    let (status, first) = monitor(&mut world, "h2", "db@h1", 1_000_000, 100);
    assert_eq!(status, 200, "{first}");
    assert!(first["timeout_ns"].as_u64().unwrap() <= 1_000_000, "{first}");
    assert_eq!(world.upcalls_of("h1", "monitor_request").len(), 1);
    assert_eq!(world.upcalls_of("h1", "pbsize_changed")[0]["pbsize"], 100);
    let (status, second) = monitor(&mut world, "h4", "db@h1", 200_000, 1000);
    assert_eq!(status, 200, "{second}");
    assert_eq!(world.upcalls_of("h1", "pbsize_changed")[0]["pbsize"], 1000);
    let upcalls = world.upcalls_of("h2", "timeout_changed");
    assert!(
        upcalls.last().unwrap()["timeout_ns"].as_u64().unwrap() < first["timeout_ns"].as_u64().unwrap(),
        "{upcalls:?}"
    );
    world.pass(100_000_000);
    let lane = second["lane"].as_u64().unwrap();
    world.move_on("h1");
    world.check(lane);
    // The demanding watcher leaves: the other's timeout grows again, and it is notified.
    let (status, _) = world.ask("h4", Method::Delete, template::MONITOR, "db@h1", Value::Null);
    assert_eq!(status, 200);
    assert_eq!(world.upcalls_of("h2", "timeout_changed").last().unwrap()["timeout_ns"], first["timeout_ns"]);
    world.restart();
    let (status, _) = world.ask("h1", Method::Delete, template::APP, "db", Value::Null);
    assert_eq!(status, 200);
    world.pass(100_000_000);
    assert!(world.groups().is_empty(), "{:?}", world.groups());
}

#[test]
fn impossible_monitors_are_refused_with_reason() {
    let mut world = World::new(Options::default());
    join(&mut world, "h1", "db");
    for (host, app, timeout_ns, pbsize, status, word) in [
        ("h2", "db", 1_000_000, 0, 422, "NAME@HOST"),
        ("h2", "cache@h1", 1_000_000, 0, 404, "joins first"),
        ("h1", "db@h1", 1_000_000, 0, 422, "same host"),
        ("h2", "db@h1", 0, 0, 422, "timeout_ns"),
        ("h2", "db@h1", 1_000_000, 1419, 422, "1418"),
        ("h77", "db@h1", 1_000_000, 0, 409, "topology"),
    ] {
        let before = world.state_bytes();
        let (found, answer) = monitor(&mut world, host, app, timeout_ns, pbsize);
        assert_eq!(found, status, "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(word), "{answer}");
        assert_eq!(world.state_bytes(), before);
    }
}
