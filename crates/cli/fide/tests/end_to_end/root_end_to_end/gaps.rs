// SPDX-License-Identifier: Apache-2.0
//! Gaps between heartbeats, as `fide status` and the metrics report them, whether the kernel or the agent
//! counts.

use fide_testbed::{AgentSpec, AgentsSpec};
use serde_json::{Value, json};

use super::{
    common::{World, calm, output, until_true, world},
    joins::take_over,
};

/// How many heartbeats that end a gap must come.
const GAPS: u64 = 20;

fn of(world: &World, peer: &str) -> Value {
    world.agents.ask(1, "gaps", json!({ "host": peer })).expect("gaps")
}

fn count(world: &World, peer: &str) -> u64 {
    of(world, peer)["count"].as_u64().expect("a count")
}

fn gaps_are_reported_and_outlive_a_takeover(world: &World) {
    for peer in ["h2", "h3"] {
        until_true("heartbeats come", || count(world, peer) > GAPS);
        let all = of(world, peer);
        let buckets = all["buckets"].as_array().expect("buckets");
        assert_eq!(buckets.iter().filter_map(|bucket| bucket[1].as_u64()).sum::<u64>(), all["count"]);
        let longest_ns = all["longest_ns"].as_u64().expect("one");
        assert!(buckets.last().and_then(|bucket| bucket[0].as_u64()) <= Some(longest_ns), "{all}");
        // The mean is at most the longest gap, and the sum not longer than the time passed.
        let (sum_ns, count) = (all["sum_ns"].as_u64().expect("a sum"), all["count"].as_u64().expect("a count"));
        assert!(0 < sum_ns && sum_ns <= longest_ns * count && all["longest_at_ns"].as_u64() <= all["now_ns"].as_u64());
    }
    let (_, text, _) = output(&mut world.fide(1, &["status"]));
    assert!(text.contains("heartbeats of h2: the longest gap, ") && text.contains(" % of the timeout, "), "{text}");
    let (_, text, _) = output(&mut world.fide(1, &["metrics"]));
    assert!(text.contains("fide_heartbeat_gap_seconds_bucket{peer=\"h3\",le=\"+Inf\"} "), "{text}");
    assert!(world.agents.ask(1, "gaps", json!({ "host": "h1" })).is_err(), "not of itself");

    let before = count(world, "h2");
    let agent = take_over(world, 1);
    let after = count(world, "h2");
    assert!(after >= before, "{after} after {before}");
    until_true("heartbeats go on", || count(world, "h2") > after + GAPS);
    let longest_ns = of(world, "h2")["longest_ns"].as_u64();
    // The same incarnation has continued.
    assert!(longest_ns < Some(calm().timeout_us.map_or(0, u64::from) * 1000), "{longest_ns:?}");
    drop(agent);
}

#[test]
fn root_gaps_counted_by_the_kernel_outlive_a_takeover() {
    let Some(world) = world(3, calm()) else { return };
    gaps_are_reported_and_outlive_a_takeover(&world);
}

#[test]
fn root_gaps_counted_by_the_agent_outlive_a_takeover() {
    let agent = AgentSpec { receive: "udp".into(), exit_watch: "pidfd".into(), ..AgentSpec::default() };
    let Some(world) = world(3, AgentsSpec { agent, ..calm() }) else { return };
    gaps_are_reported_and_outlive_a_takeover(&world);
}
