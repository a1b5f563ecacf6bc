// SPDX-License-Identifier: Apache-2.0
//! Processes die while the agent of their watchers is away, with each rung of receiving.

use std::time::Duration;

use fide_client::{Event, Reason};
use fide_testbed::{AgentSpec, AgentsSpec, Victim, VictimSpec};
use serde_json::json;

use super::common::{World, calm, until, until_true, world};

/// Slots of a host.
const SLOTS: usize = 64;

fn lacks(world: &World, of: usize, name: &str) -> bool {
    let members = world.status(of)["view"]["members"].clone();
    !members.as_array().expect("a list").contains(&json!(name))
}

/// A process of h2, whose slot h2 gives to another process, and a process of h1 itself. How h1 receives does
/// not matter to the latter, whose end takes seconds to be certain.
fn deaths_while_h1_has_no_agent(receive: &str, rung: &str, of_its_own: bool) {
    let agent = AgentSpec { receive: receive.into(), ..AgentSpec::default() };
    let sections = "[limits]\nonly_root = true\n".into();
    let Some(mut world) = world(3, AgentsSpec { agent, sections, ..calm() }) else { return };
    assert_eq!(world.receive_rungs(1), [rung; 2]);
    let victim = |host: usize| Victim::spawn(Some(world.bed.host(host)), &VictimSpec::default()).expect("victim");
    let (far, own, lives) = (victim(2), victim(1), victim(2));
    let mut there = world.client(2);
    there.client.join_pid("far", far.pid(), Duration::ZERO).expect("joined");
    there.client.join_pid("lives", lives.pid(), Duration::ZERO).expect("joined");
    let others: Vec<_> = (2..SLOTS).map(|_| world.sleeper(2)).collect();
    for (n, other) in (2..).zip(&others) {
        there.client.join_pid(&format!("other{n}"), other.pid(), Duration::ZERO).expect("joined");
    }
    let mut here = world.client(1);
    here.client.join_pid("own", own.pid(), Duration::ZERO).expect("joined");
    let mut eyes = world.client(1);
    let (far_id, own_id, lives_id) = (eyes.watch("far@h2"), eyes.watch("own@h1"), eyes.watch("lives@h2"));
    let last_id = eyes.watch(&format!("other{}@h2", SLOTS - 1));
    world.agents.kill(1).expect("killed");
    until_true("h1 is out", || lacks(&world, 2, "h1"));
    far.kill().expect("killed");
    own.kill().expect("killed");
    // There is no other free slot.
    until("its slot is free", || there.client.join("next").map(drop).map_err(|why| why.to_string()));
    world.agents.restart(1).expect("started");
    // The same on this host, at once.
    let mut later = world.client(1);
    later.client.join("next").expect("joined");
    assert_eq!(eyes.reason(&far_id), Reason::Exited(-1));
    if of_its_own {
        assert_eq!(eyes.reason(&own_id), Reason::HostSilent);
    }
    world.settled(&[1, 2, 3]);
    eyes.quiet();
    assert!(eyes.finals(&far_id) == 1 && eyes.finals(&own_id) <= 1, "{:#?}", eyes.events);
    assert_eq!((eyes.finals(&lives_id), eyes.finals(&last_id)), (0, 0), "{:#?}", eyes.events);
    // Both are still watched, and their ends notified as usual.
    drop(lives);
    assert!(matches!(eyes.reason(&lives_id), Reason::Killed(_) | Reason::Exited(_)));
    let lost = |event: &&Event| matches!(event, Event::Lost { .. } | Event::Dropped { .. });
    assert_eq!(eyes.events.iter().find(lost), None);
}

#[test]
fn root_deaths_while_watching_agent_is_away_are_notified_by_xdp() {
    deaths_while_h1_has_no_agent("xdp-generic", "xdp generic", true);
}

#[test]
fn root_deaths_while_watching_agent_is_away_are_notified_by_udp() {
    deaths_while_h1_has_no_agent("udp", "udp", false);
}
