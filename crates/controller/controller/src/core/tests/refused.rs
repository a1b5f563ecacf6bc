// SPDX-License-Identifier: Apache-2.0
//! A refusal changes nothing, whatever is asked.

use fide_controller_api::Method;
use fide_controller_api::limits::LANES_PER_HOST;
use fide_controller_api::paths::{self, template};
use fide_planner::CableId;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::Options;
use super::world::{World, topology};

#[test]
fn lanes_of_a_host_are_bounded() {
    let options = Options::default();
    let grace_ns = options.grace_ns;
    let mut world = World::new(options);
    let ids: Vec<u64> = (0..LANES_PER_HOST).map(|_| world.lane("h1", &["h2"], 1_000_000_000)).collect();
    let body = json!({"name": "l", "receivers": ["h2"], "size_max_bytes": 200, "period_min_ns": 1_000_000_000u64});
    let ask = |world: &mut World, host| world.ask(host, Method::Post, paths::LANES, "", body.clone());
    let before = world.whole();
    let (status, answer) = ask(&mut world, "h1");
    assert_eq!((status, &answer["error"]["code"]), (409, &json!("full")), "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("64 lanes already; release one"));
    assert_eq!(world.whole(), before);
    // Other hosts, and heartbeats, have limits of their own.
    assert_eq!(ask(&mut world, "h3").0, 200);
    world.ask("h1", Method::Post, paths::APPS, "", json!({"app": "a"}));
    let (status, answer) =
        world.ask("h2", Method::Post, paths::MONITORS, "", json!({"app": "a@h1", "timeout_ns": 100_000_000}));
    assert_eq!(status, 200, "{answer}");
    // A lane that ends counts until it is out of the switches.
    world.ask("h1", Method::Delete, template::LANE, &ids[0].to_string(), Value::Null);
    assert_eq!(ask(&mut world, "h1").0, 409);
    world.pass(grace_ns);
    assert_eq!(ask(&mut world, "h1").0, 200);
}

#[test]
fn monitor_that_cannot_be_held_is_forgotten() {
    let mut world = World::new(Options::default());
    world.ask("h1", Method::Post, paths::APPS, "", json!({"app": "a"}));
    let network = topology();
    // No cable leads to h1 any more.
    for cable in (0..u32::try_from(network.cables().len()).unwrap()).map(|n| network.cable_name(CableId(n))) {
        if cable.split("--").any(|end| end.split(':').next() == Some("h1")) {
            let (status, answer) = world.ask("op", Method::Put, template::CABLE, &cable, json!({"in_use": false}));
            assert_eq!(status, 200, "{answer}");
        }
    }
    let before = world.whole();
    let (status, answer) =
        world.ask("h2", Method::Post, paths::MONITORS, "", json!({"app": "a@h1", "timeout_ns": 100_000_000}));
    assert_eq!((status, &answer["error"]["code"]), (409, &json!("no_trees")), "{answer}");
    assert_eq!(world.whole(), before);
}

#[derive(Debug, Clone)]
struct Asked {
    kind: u8,
    host: usize,
    lane: u64,
    a: u64,
    b: u64,
    wait_ns: u64,
}

const HOSTS: [&str; 7] = ["h1", "h2", "h3", "h4", "h5", "h6", "nobody"];

fn ask(world: &mut World, asked: &Asked) -> (u16, Value) {
    let Asked { kind, host, lane, a, b, .. } = *asked;
    let me = HOSTS[host];
    let receivers: Vec<&str> = HOSTS.iter().enumerate().filter(|(n, _)| a >> n & 1 == 1).map(|(_, h)| *h).collect();
    // From nothing to far more than a link carries.
    let period = 200u64 << (b % 20);
    let lane_body = json!({
        "name": "l", "receivers": receivers, "size_max_bytes": 64 + a % 1500, "period_min_ns": period,
        "redundancy": 1 + b % 3, "latency_max_ns": if a % 5 == 0 { json!(b * 50) } else { Value::Null },
    });
    let app = format!("p{}", a % 3);
    let of = format!("{app}@{}", HOSTS[(b % 7) as usize]);
    let id = lane.to_string();
    match kind {
        0..=2 => world.ask(me, Method::Post, paths::LANES, "", lane_body),
        3 | 4 => world.ask(me, Method::Put, template::LANE, &id, lane_body),
        5 => world.ask(me, Method::Delete, template::LANE, &id, Value::Null),
        6 => {
            let body = json!({"interval_ns": a * 1000, "packets": b, "exceeded": u64::from(a % 7 == 0)});
            world.ask(me, Method::Post, template::USAGE, &id, body)
        }
        7 => {
            let body = json!({"tree": a % 4, "generation": b % 3, "missing": a % 2 == 0});
            world.ask(me, Method::Post, template::LANE_REPORTS, &id, body)
        }
        8 => world.ask(me, Method::Post, template::MOVED, &id, json!({"tree": a % 4, "generation": b % 3})),
        9 => world.ask(me, Method::Post, paths::APPS, "", json!({"app": app})),
        10 => world.ask(me, Method::Delete, template::APP, &app, Value::Null),
        11 | 12 => {
            let body = json!({"app": of, "timeout_ns": period * 2, "pbsize": a % 1500});
            world.ask(me, Method::Post, paths::MONITORS, "", body)
        }
        13 => world.ask(me, Method::Delete, template::MONITOR, &of, Value::Null),
        14 => {
            let network = topology();
            let count = u64::try_from(network.cables().len()).unwrap();
            // One receiver more than there are hosts, which is refused.
            let cable = u32::try_from(a % (count + 1)).unwrap();
            let name = if u64::from(cable) < count { network.cable_name(CableId(cable)) } else { "no".to_owned() };
            world.ask("op", Method::Put, template::CABLE, &name, json!({"in_use": b % 3 == 0}))
        }
        _ => world.ask(me, Method::Post, paths::LANES, "", json!({"name": a})),
    }
}

/// Asks one thing after another; each refusal leaves the whole controller as it was.
fn refusals_leave_no_trace(
    all: impl IntoIterator<Item = (u8, usize, u64, u64, u64, u64)>,
) -> Result<(), TestCaseError> {
    let mut world = World::new(Options::default());
    for (kind, host, lane, a, b, wait_ns) in all {
        let asked = Asked { kind, host, lane, a, b, wait_ns };
        world.pass(asked.wait_ns);
        let before = world.whole();
        let (status, answer) = ask(&mut world, &asked);
        if status >= 400 {
            prop_assert_eq!(world.whole(), before, "{:?}: {}", asked, answer);
        }
    }
    Ok(())
}

/// Lane 1 shares a link with lane 2; a change of it is refused after it was taken out of the plan.
#[test]
fn refused_change_of_a_lane_that_shares_a_link_changes_nothing() {
    let asked = [(0, 1, 0, 430, 0, 0), (0, 3, 0, 1680, 246, 0), (0, 1, 0, 404, 844, 0), (3, 3, 1, 0, 0, 399_312)];
    refusals_leave_no_trace(asked).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn refusals_change_nothing(
        all in prop::collection::vec(
            (0..16u8, 0..7usize, 0..12u64, 0..2000u64, 0..2000u64, prop_oneof![Just(0u64), 0..60_000_000u64]), 1..40),
    ) {
        refusals_leave_no_trace(all)?;
    }
}
