// SPDX-License-Identifier: Apache-2.0
//! Lanes of programs, end to end: real agents, a real controller, switches of namespaces. Packets within the
//! contract arrive once, packets beyond it do not, and a program or agent that dies releases only what was
//! its own.

mod common;
mod packets;

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use common::{LIMIT, World, world, world_at};
use fide_agent_api::protocol::ErrorCode;
use fide_client::{Declined, Error, Event, LaneReason, LaneWanted};
use fide_testbed::{fabric::Cut, trace::Trace};

const SERVICE: u8 = 7;
const PERIOD: Duration = Duration::from_millis(10);
/// How long to wait for a message that must not come.
const QUIET: Duration = Duration::from_millis(100);

fn wanted(name: &str) -> LaneWanted {
    LaneWanted::new(name, &["h2", "h3"], 100, PERIOD)
}

/// A cable between switches that a tree of the lane goes over.
fn inner_link(world: &mut World, tree: usize) -> usize {
    let lane = world.lanes().pop().expect("a lane");
    let links = lane["trees"][tree]["links"].as_array().cloned().expect("links");
    let ends = |link: &serde_json::Value| [0, 2].map(|at| link[at].as_str().expect("a name").to_owned());
    let inner = links.iter().map(ends).find(|ends| ends.iter().all(|name| !name.starts_with('h')));
    let [from, to] = inner.expect("a link between switches");
    world.fabric.link(&from, &to).expect("a link")
}

#[test]
fn root_packets_within_the_contract_arrive_once_despite_cuts() {
    let Some(mut world) = world("", "") else { return };
    let traces = [1, 2].map(|host| Trace::where_kernel_can(world.agents.pid(host).expect("an agent"), "fide-loop"));
    let (mut one, mut two, mut three) = (world.program(1), world.program(2), world.program(3));
    two.client.listen(SERVICE).expect("listening");
    three.client.listen(SERVICE).expect("listening");
    three.client.listen(8).expect("listening");
    let lane = one.client.open_lane(wanted("log")).expect("a lane");
    assert_eq!(lane.trees, 2);
    assert!(lane.grant.latency.is_some_and(|latency| latency.jitter_max > Duration::ZERO), "{lane:?}");
    assert_eq!((lane.grant.period, lane.grant.message_max_bytes), (PERIOD, 100));

    let mut sent = Vec::new();
    let mut send = |one: &mut common::Program, count: usize| {
        for _ in 0..count {
            let message = format!("message {}", sent.len()).into_bytes();
            one.client.lane_send(lane.id, SERVICE, &message).expect("taken");
            sent.push((SERVICE, message));
            sleep(PERIOD * 2);
        }
        sent.clone()
    };
    let all = send(&mut one, 20);
    assert_eq!(two.await_messages(20), all);
    assert_eq!(three.await_messages(20), all);
    // One tree is cut without an alarm: the other carries the packets, and the receivers have the controller
    // replace it.
    let link = inner_link(&mut world, 0);
    world.fabric.cut_link(link, Cut::Silent).expect("cut");
    let all = send(&mut one, 20);
    assert_eq!(two.await_messages(40), all);
    assert_eq!(three.await_messages(40), all);
    world.until("another tree is in use", |world| {
        let tree = world.lanes()[0]["trees"][0].clone();
        let moved = tree["generation"].as_u64() > Some(0) && tree["phase"] == "used";
        if moved { Ok(()) } else { Err(tree.to_string()) }
    });
    assert_ne!(inner_link(&mut world, 0), link);
    world.fabric.restore_link(link).expect("restored");
    // Another service in the same lane.
    one.client.lane_send(lane.id, 8, b"eight").expect("taken");
    assert_eq!(three.await_messages(41).last(), Some(&(8, b"eight".to_vec())));
    sleep(QUIET);
    assert_eq!(two.messages(), all);
    assert_eq!(world.metric(2, "fide_lane_packets_total{direction=\"lost\"}"), 0);
    assert_eq!(world.metric(2, "fide_lane_messages_dropped_total{reason=\"no_listener\"}"), 1);

    // A message that the agent may not send is refused here.
    assert_eq!(one.client.lane_send(lane.id, 0, b"x"), Err(Declined::Service));
    let too_long = Declined::MessageTooLarge { len: 101, max: 100 };
    assert_eq!(one.client.lane_send(lane.id, 1, &[0; 101]), Err(too_long));

    two.client.unlisten(SERVICE).expect("not listening");
    one.client.close_lane(lane.id).expect("closed");
    assert_eq!(one.client.lane_send(lane.id, SERVICE, b"x"), Err(Declined::NoLane));
    world.until("the controller has it back", |world| {
        let lanes = world.lanes();
        if lanes.is_empty() { Ok(()) } else { Err(format!("{lanes:?}")) }
    });
    drop((one, two));
    sleep(QUIET);
    for trace in traces.into_iter().flatten() {
        let traced = trace.finish().expect("a trace");
        assert_eq!(traced.waits(), [] as [String; 0], "{traced:#?}");
    }
}

#[test]
fn root_excessive_lane_is_demoted_then_restored_then_ended() {
    let Some(mut world) = world("offences_max = 2", "") else { return };
    let (mut one, mut two) = (world.program(1), world.program(2));
    two.client.listen(SERVICE).expect("listening");
    let lane = one.client.open_lane(wanted("greedy")).expect("a lane");
    // One leaves at once, one waits for the next packet; the others do not fit.
    for number in 0..20u8 {
        one.client.lane_send(lane.id, SERVICE, &[number; 100]).expect("taken");
    }
    let (grant, _) = one.changed(lane.id, LaneReason::BwExceeded);
    assert_eq!(grant.latency, None, "nothing is bounded any more");
    // Messages that are not dropped arrive at their time.
    let (came, dropped) = world.until("each is dropped or arrives", |world| {
        let dropped = world.metric(1, "fide_lane_messages_dropped_total{reason=\"exceeded\"}");
        let came = two.messages().len();
        if came as u64 + dropped == 20 { Ok((came, dropped)) } else { Err(format!("{came} came, {dropped} did not")) }
    });
    assert!((1..20).contains(&came), "{came} of 20");
    assert_eq!(world.lanes()[0]["standing"], "demoted");
    // Best effort still carries.
    one.client.lane_send(lane.id, SERVICE, b"still").expect("taken");
    assert_eq!(two.await_messages(came + 1).pop(), Some((SERVICE, b"still".to_vec())));

    // X-Lane: recovered with changeBandwidth.
    let again = LaneWanted { messages_max: 2, ..wanted("greedy") };
    let changed = one.client.change_lane(lane.id, again).expect("changed");
    assert!(changed.grant.latency.is_some(), "{changed:?}");
    assert!(changed.grant.packet_max_bytes > lane.grant.packet_max_bytes);
    assert_eq!(world.lanes()[0]["standing"], "held");
    sleep(2 * PERIOD);
    let before = two.messages().len();
    one.client.lane_send(lane.id, SERVICE, &[1; 100]).expect("taken");
    one.client.lane_send(lane.id, SERVICE, &[2; 100]).expect("taken");
    two.await_messages(before + 2);
    assert_eq!(world.metric(1, "fide_lane_messages_dropped_total{reason=\"exceeded\"}"), dropped);

    for number in 0..20u8 {
        one.client.lane_send(lane.id, SERVICE, &[number; 100]).expect("taken");
    }
    let why = one.terminated(lane.id);
    assert!(why.contains("exceeded"), "{why}");
    // Packets may still be sent until the grace period is over.
    world.until("the end of the grace period", |_| match one.client.lane_send(lane.id, SERVICE, b"x") {
        Err(Declined::NoLane) => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

#[test]
fn root_unused_bandwidth_is_returned_and_impossible_lanes_are_refused() {
    let Some(mut world) = world("unused_reports = 1", "") else { return };
    let mut one = world.program(1);
    let lane = one.client.open_lane(wanted("idle")).expect("a lane");
    let (grant, grace) = one.changed(lane.id, LaneReason::BwUnused);
    assert_eq!(grant.period, 2 * PERIOD);
    assert!(grace > Duration::ZERO);

    let refused = |result: Result<fide_client::Lane, Error>| match result {
        Err(Error::Refused(refusal)) => (refusal.code, refusal.to_string()),
        other => panic!("{other:?}"),
    };
    let mut ask = |change: &dyn Fn(&mut LaneWanted)| {
        let mut asked = wanted("other");
        change(&mut asked);
        refused(one.client.open_lane(asked))
    };
    let (code, text) = ask(&|asked| asked.period = Duration::from_micros(2));
    assert_eq!(code, ErrorCode::NoCapacity, "{text}");
    assert!(text.contains("h1"), "it names the link: {text}");
    let (code, text) = ask(&|asked| asked.receivers = vec!["h9".into()]);
    assert_eq!(code, ErrorCode::UnknownHost, "{text}");
    for (says, change) in [
        (
            "this host itself",
            &(|asked: &mut LaneWanted| asked.receivers = vec!["h1".into()]) as &dyn Fn(&mut LaneWanted),
        ),
        ("named twice", &|asked| asked.receivers = vec!["h2".into(), "h2".into()]),
        ("without receivers", &|asked| asked.receivers.clear()),
        ("do not fit a packet", &|asked| asked.message_max_bytes = 1161),
        ("do not fit a packet", &|asked| asked.messages_max = 0),
        ("sub-lane 2", &|asked| asked.priority = 2),
        ("3 trees", &|asked| asked.redundancy = Some(3)),
    ] {
        let (code, text) = ask(change);
        assert_eq!(code, ErrorCode::BadRequest, "{text}");
        assert!(text.contains(says), "{text}");
    }
    let (code, text) = ask(&|asked| asked.latency_max = Some(Duration::from_nanos(10)));
    assert_eq!(code, ErrorCode::NoCapacity, "{text}");
    let (code, text) = ask(&|asked| asked.name = "heartbeat".into());
    assert_eq!(code, ErrorCode::NameTaken, "{text}");
    assert!(matches!(one.client.listen(0), Err(Error::Refused(_))));
    assert_eq!(world.lanes().len(), 1);
}

#[test]
fn root_programs_share_a_lane_and_dead_programs_release_their_share() {
    let Some(mut world) = world("", "") else { return };
    let (mut a, mut b, mut ear) = (world.program(1), world.program(1), world.program(2));
    ear.client.listen(1).expect("listening");
    ear.client.listen(2).expect("listening");
    let shared = LaneWanted { messages_max: 4, ..wanted("shared") };
    let of_a = a.client.open_lane(shared.clone()).expect("a lane");
    let of_b = b.client.open_lane(shared).expect("the same lane");
    assert_eq!(of_a.number, of_b.number);
    assert_eq!(world.lanes().len(), 1);
    let other = LaneWanted { messages_max: 3, ..wanted("shared") };
    assert!(matches!(b.client.open_lane(other), Err(Error::Refused(refusal)) if refusal.code == ErrorCode::NameTaken));
    // Two services of two programs in one packet, often.
    for _ in 0..20 {
        // The first message may leave at once; later ones within the period share the next packet.
        a.client.lane_send(of_a.id, 1, b"a").expect("taken");
        b.client.lane_send(of_b.id, 2, b"b").expect("taken");
        a.client.lane_send(of_a.id, 1, b"c").expect("taken");
        sleep(3 * PERIOD);
    }
    assert_eq!(ear.await_messages(60).len(), 60);
    let packets: std::collections::BTreeSet<u64> = ear
        .events
        .iter()
        .filter_map(|event| if let Event::LaneMessage { seq, .. } = event { Some(*seq) } else { None })
        .collect();
    assert!(packets.len() < 60, "no packet carried both");

    drop(a);
    b.client.lane_send(of_b.id, 2, b"alone").expect("taken");
    ear.await_messages(61);
    drop(b);
    world.until("nobody's lane goes back", |world| {
        let lanes = world.lanes();
        if lanes.is_empty() { Ok(()) } else { Err(format!("{lanes:?}")) }
    });
}

#[test]
fn root_a_lane_outlives_its_controller_and_its_agent() {
    let Some(mut world) = world("", "") else { return };
    let (mut one, mut two) = (world.program(1), world.program(2));
    two.client.listen(SERVICE).expect("listening");
    let lane = one.client.open_lane(wanted("steady")).expect("a lane");
    let number = lane.number;
    one.client.lane_send(lane.id, SERVICE, b"before").expect("taken");
    two.await_messages(1);

    // Programs continue while the controller is down.
    world.controller.kill();
    for n in 0..10u8 {
        one.client.lane_send(lane.id, SERVICE, &[n]).expect("taken");
        sleep(2 * PERIOD);
    }
    two.await_messages(11);
    let asked = Instant::now();
    let refused = one.client.open_lane(wanted("now"));
    assert!(matches!(&refused, Err(Error::Refused(refusal)) if refusal.code == ErrorCode::Gone), "{refused:?}");
    assert!(asked.elapsed() < LIMIT);
    world.controller.run(&world.fabric).expect("controller");
    let again = one.client.open_lane(wanted("now")).expect("a lane");
    one.client.close_lane(again.id).expect("closed");

    // An agent that is killed and restarted opens the lane again; the controller has kept it.
    world.agents.kill(1).expect("killed");
    world.agents.restart(1).expect("restarted");
    one.wait("the agent is back", |event| matches!(event, Event::Reattached { .. }).then_some(()));
    let before = two.messages().len();
    world.until("the lane is back", |_| {
        one.look();
        one.client.lane_send(lane.id, SERVICE, b"after").map_err(|declined| declined.to_string())
    });
    let came = two.await_messages(before + 1);
    assert_eq!(came.last(), Some(&(SERVICE, b"after".to_vec())));
    let lanes = world.lanes();
    assert_eq!(lanes.len(), 1, "{lanes:?}");
    assert_eq!(lanes[0]["lane"], number, "it is the same lane");

    // An agent that leaves releases its lanes.
    world.agents.stop(1).expect("stopped");
    let lanes = world.lanes();
    assert!(lanes.is_empty(), "{lanes:?}");
}

#[test]
fn root_programs_are_notified_of_a_new_plan() {
    let Some(mut world) = world("", "") else { return };
    let (mut one, mut two) = (world.program(1), world.program(2));
    two.client.monitor("@h1", fide_client::Wanted::default()).expect("a monitor");
    let planned = |world: &World| {
        let status = world.agents.ask(2, "status", serde_json::json!({})).expect("status");
        let peers = status["peers"].as_array().cloned().expect("peers");
        let peer = peers.into_iter().find(|peer| peer["host"] == "h1").expect("h1");
        peer["network"]["jitter_max_ns"].as_u64().expect("a number")
    };
    let before = world.until("the contract of the heartbeats is known", |world| {
        let known = planned(world);
        if known > 0 { Ok(known) } else { Err("not yet".to_owned()) }
    });
    two.look();
    two.events.clear();
    // In the sub-lane of the heartbeats, which then wait for it.
    let urgent = LaneWanted { message_max_bytes: 1160, priority: 0, ..wanted("urgent") };
    one.client.open_lane(urgent).expect("a lane");
    let after = world.until("the heartbeats may be later", |world| {
        let now = planned(world);
        if now > before { Ok(now) } else { Err(format!("{now} ns, {before} ns before")) }
    });
    println!("jitter of the network: {before} ns, then {after} ns");
    two.wait("another timeout", |event| matches!(event, Event::TimeoutChanged { .. }).then_some(()));
}

#[test]
fn root_a_thin_network_carries_shorter_messages() {
    // Half of the cable is for lanes: the heartbeats of one host with the longest messages fit, those of two
    // hosts do not.
    let Some(world) = world_at(12_000_000, "", "") else { return };
    let granted = (1..=3).map(|host| {
        let mut program = world.program(host);
        let joined = program.client.join("thin").expect("joined");
        program.client.piggyback(&vec![1; joined.pbsize.into()]).expect("what is granted is taken");
        let declined = program.client.piggyback(&vec![1; usize::from(joined.pbsize) + 1]);
        assert!(matches!(declined, Err(Declined::TooLarge { .. })), "{declined:?}");
        joined.pbsize
    });
    let granted: Vec<u16> = granted.collect();
    let (least, most) = (granted.iter().min().expect("three"), granted.iter().max().expect("three"));
    assert!(*least > 0 && least < most, "{granted:?}");
}

#[test]
fn root_where_the_policy_is_to_stop_hosts_leave_while_they_are_still_heard() {
    let Some(mut world) = world("without_redundancy = \"stop\"", "") else { return };
    let mut two = world.program(2);
    two.client.monitor("@h1", fide_client::Wanted::default()).expect("a monitor");
    two.wait("h1 is up", |event| matches!(event, Event::Up { .. }).then_some(()));
    // The only cable of h1 on one plane: there is no second tree from it, nor to it.
    let link = world.fabric.link("h1", "l1a").expect("a cable");
    world.fabric.cut_link(link, Cut::Carrier).expect("cut");
    let why = two.wait("what became of h1", |event| match event {
        Event::Verdict(verdict) => Some(verdict.reason),
        _ => None,
    });
    assert_eq!(why, fide_client::Reason::Left, "it said goodbye over the plane that it still had");
    world.until("h1's agent has ended", |world| {
        let log = world.agents.log(1);
        if log.contains("as the controller's policy is to stop") { Ok(()) } else { Err(log) }
    });
}
