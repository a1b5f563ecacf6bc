// SPDX-License-Identifier: Apache-2.0
//! Answers and events, to the letter. The golden file is the contract's own text, and tests its types too.

use fide_controller_api::Method;
use fide_controller_api::paths::{self, template};
use serde_json::{Value, json};

use super::super::{Event, Options};
use super::world::World;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../controller-api/tests/answers.jsonl");
/// Set to write the file instead of comparing with it. Doing so changes the contract.
const REWRITE: &str = "FIDE_REWRITE_ANSWERS";

/// Everything that a controller sends during a series of lanes, one line for each.
#[derive(Default)]
struct Said(Vec<String>);

impl Said {
    fn note(&mut self, what: &str, body: &Value) {
        self.0.push(json!({"what": what, "body": body}).to_string());
    }

    fn upcalls(&mut self, world: &mut World) {
        for (to, body) in std::mem::take(&mut world.upcalls) {
            self.note("event", &json!({"to": to, "event": body}));
        }
    }
}

#[test]
fn answers_and_events_match_the_contract() {
    let mut world = World::new(Options::default());
    let mut said = Said::default();
    let mut ask = |world: &mut World, who: &str, method, path: &'static str, of: &str, body: Value, what: &str| {
        let (status, answer) = world.ask(who, method, path, of, body);
        said.note(if status == 200 { what } else { "failed" }, &answer);
        said.upcalls(world);
        answer
    };
    let w = &mut world;
    w.slow = true;
    let lane = json!({
        "name": "log", "receivers": ["h2", "h4"], "size_max_bytes": 1000, "period_min_ns": 4_000_000, "priority": 1,
        "label": 3, "latency_max_ns": 90_000_000,
    });
    let first = ask(w, "h1", Method::Post, paths::LANES, "", lane.clone(), "lane")["lane"].to_string();
    ask(w, "op", Method::Get, paths::NETWORK, "", Value::Null, "network");
    w.carry_out_held_back();
    ask(w, "h2", Method::Get, paths::LANES, "", Value::Null, "lanes");
    let moved = json!({"tree": 0, "generation": 0});
    ask(w, "h1", Method::Post, template::MOVED, &first, moved, "generation");
    ask(w, "h1", Method::Post, template::MOVED, &first, json!({"tree": 1, "generation": 0}), "generation");
    // Another lane makes it later.
    let other = json!({"name": "big", "receivers": ["h2"], "size_max_bytes": 1400, "period_min_ns": 1_000_000});
    ask(w, "h3", Method::Post, paths::LANES, "", other, "lane");
    w.pass(100_000_000);
    ask(w, "h1", Method::Get, template::LANE, &first, Value::Null, "lane");
    // One receiver less.
    let less = json!({"name": "log", "receivers": ["h2"], "size_max_bytes": 1000, "period_min_ns": 4_000_000});
    ask(w, "h1", Method::Put, template::LANE, &first, less, "lane");
    w.pass(100_000_000);
    let usage = |packets, exceeded| json!({"interval_ns": 1_000_000_000, "packets": packets, "exceeded": exceeded});
    ask(w, "h1", Method::Post, template::USAGE, &first, usage(250, 0), "lane");
    ask(w, "h1", Method::Post, template::USAGE, &first, usage(250, 2), "lane");
    w.pass(100_000_000);
    // The detector's cluster.
    ask(w, "h1", Method::Post, paths::APPS, "", json!({"app": "db"}), "app");
    let monitor = json!({"app": "db@h1", "timeout_ns": 400_000_000, "pbsize": 100});
    ask(w, "h4", Method::Post, paths::MONITORS, "", monitor, "monitored");
    let sooner = json!({"app": "db@h1", "timeout_ns": 100_000_000, "pbsize": 20});
    ask(w, "h5", Method::Post, paths::MONITORS, "", sooner, "monitored");
    ask(w, "op", Method::Get, paths::CLUSTER, "", Value::Null, "cluster");
    ask(w, "h4", Method::Delete, template::MONITOR, "db@h1", Value::Null, "app");
    ask(w, "h1", Method::Delete, template::APP, "db", Value::Null, "app");
    w.pass(100_000_000);
    // Reports, good and bad.
    let reports = json!({"reports": [
        {"lane": 2, "tree": 0, "generation": 0, "missing": false}, {"lane": 99, "tree": 0, "generation": 0, "missing": true},
        {"lane": "x", "tree": 0}, {"lane": 2, "tree": 7, "generation": 0, "missing": true},
    ]});
    ask(w, "h2", Method::Post, paths::REPORTS, "", reports, "reported");
    let report = json!({"tree": 1, "generation": 0, "missing": false});
    ask(w, "h2", Method::Post, template::LANE_REPORTS, "2", report, "generation");
    // A host with one cable has no other tree.
    let cables: Vec<String> = w.ask("op", Method::Get, paths::NETWORK, "", Value::Null).1["cables"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|cable| cable["cable"].as_str().map(str::to_owned))
        .filter(|name| name.split("--").any(|end| end == "h3"))
        .collect();
    ask(w, "op", Method::Put, template::CABLE, &cables[0], json!({"in_use": false}), "cable_set");
    ask(w, "op", Method::Get, paths::NETWORK, "", Value::Null, "network");
    ask(w, "op", Method::Get, template::LANE, "2", Value::Null, "lane");
    ask(w, "op", Method::Put, template::CABLE, &cables[0], json!({"in_use": true}), "cable_set");
    // Its end.
    ask(w, "h1", Method::Delete, template::LANE, &first, Value::Null, "released");
    ask(w, "h1", Method::Post, template::USAGE, &first, usage(1, 0), "usage");
    ask(w, "h1", Method::Get, paths::SELF, "", Value::Null, "self");
    ask(w, "op", Method::Get, paths::SELF, "", Value::Null, "self");
    // Refusals.
    let as_other = json!({"name": "a", "sender": "h2", "receivers": ["h3"], "size_max_bytes": 1, "period_min_ns": 1});
    ask(w, "h1", Method::Post, paths::LANES, "", as_other, "");
    ask(w, "h1", Method::Post, paths::LANES, "", json!({"name": 3}), "");
    ask(w, "h1", Method::Put, template::LANE, "2", lane, "");
    ask(w, "h6", Method::Get, template::LANE, "2", Value::Null, "");
    ask(w, "h1", Method::Post, paths::MONITORS, "", json!({"app": "none@h2", "timeout_ns": 1}), "");
    ask(w, "op", Method::Put, template::CABLE, "a--b", json!({"in_use": true}), "");
    w.event(Event::Carrier { switch: "nowhere".into(), port: "p".into(), up: true });
    let text = said.0.join("\n") + "\n";
    if std::env::var_os(REWRITE).is_some() {
        std::fs::write(GOLDEN, &text).unwrap();
    }
    let golden = std::fs::read_to_string(GOLDEN).unwrap();
    for (line, (said, golden)) in text.lines().zip(golden.lines()).enumerate() {
        assert_eq!(said, golden, "line {}", line + 1);
    }
    assert_eq!(text.lines().count(), golden.lines().count());
}
