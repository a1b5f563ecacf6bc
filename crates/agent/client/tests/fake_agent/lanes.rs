// SPDX-License-Identifier: Apache-2.0
//! Lanes, where the agent goes away, refuses, answers late, or changes and ends them.

use crate::{edges::next, fake::*};
use fide_agent_api::event::lane_reason;
use fide_client::{
    Client, Declined, Error, Event, LANES_MAX, Lane, LaneId, LaneReason, LaneWanted, Wanted,
    protocol::{Empty, ErrorCode, LaneOk, Op, Refusal, Reply},
};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::time::{Duration, Instant};

const PERIOD: Duration = Duration::from_millis(1);
const GRACE: Duration = Duration::from_secs(3600);

fn wanted(name: &str) -> LaneWanted {
    LaneWanted::new(name, &["beta"], 100, PERIOD)
}

fn open(agent: &FakeAgent, peer: &Peer, client: &mut Client, name: &str, handle: u8) -> Lane {
    beside(|| assert_eq!(peer.opens_lane(agent, handle), name), || client.open_lane(wanted(name)).unwrap()).1
}

fn gone(code: ErrorCode, message: &str) -> Refusal {
    Refusal::new(code, message, "")
}

/// A client with a monitor (watch 7) and lanes "a" (handle 3) and "b" (handle 4), whose agent went away and
/// is back.
fn reattached(agent: &mut FakeAgent) -> (Peer, Client, [LaneId; 2]) {
    let (peer, mut client) = connected(agent);
    beside(|| peer.monitors(7), || client.monitor("db@beta", Wanted::default()).unwrap());
    let lanes = [open(agent, &peer, &mut client, "a", 3).id, open(agent, &peer, &mut client, "b", 4).id];
    drop(peer);
    assert!(matches!(next(&mut client), Event::Detached { .. }));
    for lane in lanes {
        assert_eq!(client.lane_send(lane, 9, b"x"), Err(Declined::Detached));
    }
    let ((peer, _), event) = beside(|| agent.greet("one"), || next(&mut client));
    assert_eq!(event, Event::Reattached { resumed: true });
    (peer, client, lanes)
}

/// Handles answers, and no event, until the lane can be used again.
fn sends(client: &mut Client, lane: LaneId, message: &[u8]) {
    let until = Instant::now() + Duration::from_secs(20);
    while client.lane_send(lane, 9, message) == Err(Declined::Detached) {
        assert_eq!(client.poll_event().unwrap(), None);
        assert!(Instant::now() < until, "it is not opened again");
    }
}

#[test]
fn lane_is_opened_used_changed_and_given_back() {
    let mut agent = FakeAgent::new();
    let (peer, mut client) = connected(&agent);
    let asked = LaneWanted { latency_max: Some(PERIOD), messages_max: 2, ..wanted("work") };
    let serve = || {
        let request = peer.request();
        let Op::OpenLane { name, asked } = &request.op else { panic!("{request:?}") };
        assert_eq!(
            (name.as_str(), asked.receivers.as_slice(), asked.period_ns),
            ("work", &["beta".into()][..], 1_000_000)
        );
        assert_eq!((asked.messages_max, asked.priority, asked.latency_max_ns), (2, 1, Some(1_000_000)));
        peer.lane_ok(&agent, request.id, &lane_ok(3));
    };
    let lane = beside(serve, || client.open_lane(asked).unwrap()).1;
    assert_eq!((lane.number, lane.trees, lane.grant.period), (12, 2, PERIOD));
    let latency = lane.grant.latency.expect("bounded");
    assert_eq!((latency.min, latency.jitter_max), (Duration::from_micros(5), Duration::from_micros(7)));

    client.lane_send(lane.id, 200, b"hello").unwrap();
    assert_eq!(agent.next_lane_message(), Some((3, 200, b"hello".to_vec())));
    assert_eq!(agent.rings(), 1);

    let serve = || {
        let request = peer.request();
        let Op::ChangeLane { handle: 3, asked } = &request.op else { panic!("{request:?}") };
        assert_eq!(asked.message_max_bytes, 50);
        peer.lane_ok(&agent, request.id, &LaneOk { message_max_bytes: 50, bounded: false, ..lane_ok(3) });
    };
    let other = LaneWanted { message_max_bytes: 50, ..wanted("ignored") };
    let changed = beside(serve, || client.change_lane(lane.id, other).unwrap()).1;
    assert_eq!((changed.id, changed.grant.message_max_bytes, changed.grant.latency), (lane.id, 50, None));
    assert_eq!(client.lane_send(lane.id, 1, &[0; 51]), Err(Declined::MessageTooLarge { len: 51, max: 50 }));

    let serve = || {
        let request = peer.request();
        assert_eq!(request.op, Op::CloseLane { handle: 3 });
        peer.ok(request.id, &Empty {});
    };
    beside(serve, || client.close_lane(lane.id).unwrap());
    assert_eq!(client.lane_send(lane.id, 1, b"x"), Err(Declined::NoLane));
    assert!(matches!(client.close_lane(lane.id), Err(Error::Unregistered(_))));
    assert!(matches!(client.change_lane(lane.id, wanted("work")), Err(Error::Unregistered(_))));
}

#[test]
fn impossible_messages_are_declined_without_waking_the_agent() {
    let mut agent = FakeAgent::new();
    let (peer, mut client) = connected(&agent);
    assert_eq!(client.lane_send(LaneId(1), 1, b"x"), Err(Declined::NoLane));
    let lane = open(&agent, &peer, &mut client, "work", 0).id;
    assert_eq!(client.lane_send(lane, 1, &[0; 101]), Err(Declined::MessageTooLarge { len: 101, max: 100 }));
    assert_eq!(client.lane_send(lane, 0, b"x"), Err(Declined::Service));
    assert_eq!((agent.next_lane_message(), agent.rings()), (None, 0));
    let sent = (0..10_000).take_while(|_| client.lane_send(lane, 1, &[7; 100]).is_ok()).count();
    assert!(sent > 100, "{sent}");
    assert_eq!(client.lane_send(lane, 1, &[7; 100]), Err(Declined::Full));
    assert_eq!(agent.next_lane_message(), Some((0, 1, vec![7; 100])));
    client.lane_send(lane, 1, &[7; 100]).unwrap();
    assert!(matches!(client.open_lane(wanted("no spaces")), Err(Error::Name(_))));
}

#[test]
fn network_refusals_are_returned_whole_and_leave_no_lane() {
    let agent = FakeAgent::new();
    let (peer, mut client) = connected(&agent);
    for number in 0..=LANES_MAX {
        let serve = || {
            let refusal = gone(ErrorCode::NoCapacity, "the cable s1-s2 is full");
            peer.send(&Reply::error(peer.request().id, refusal).to_bytes());
        };
        let error = beside(serve, || client.open_lane(wanted("work")).unwrap_err()).1;
        assert!(matches!(&error, Error::Refused(refusal) if refusal.message.contains("s1-s2")), "{number}: {error}");
    }
    for handle in 0..LANES_MAX {
        open(&agent, &peer, &mut client, &format!("lane-{handle}"), handle as u8);
    }
    assert!(matches!(client.open_lane(wanted("more")), Err(Error::TooMany { what: "lanes", limit: LANES_MAX })));
}

#[test]
fn lanes_are_reopened_while_events_arrive() {
    let mut agent = FakeAgent::new();
    let (peer, mut client, [a, b]) = reattached(&mut agent);
    // The first one is asked for; the answer takes its time.
    let first = peer.request();
    assert!(matches!(&first.op, Op::OpenLane { name, .. } if name == "a"), "{first:?}");
    agent.tell(up(7, 1), b"");
    assert!(matches!(next(&mut client), Event::Up { .. }), "a death would not wait either");
    assert_eq!(client.lane_send(a, 9, b"x"), Err(Declined::Detached));
    assert!(matches!(client.change_lane(a, wanted("a")), Err(Error::Detached(_))));

    peer.lane_ok(&agent, first.id, &lane_ok(5));
    agent.tell(killed(7, 1), b"");
    // Taking an event also handles the answer, and requests the next lane.
    assert!(matches!(next(&mut client), Event::Verdict(_)));
    sends(&mut client, a, b"x");
    assert_eq!(agent.next_lane_message(), Some((5, 9, b"x".to_vec())), "with its new handle");
    assert_eq!(client.lane_send(b, 9, b"x"), Err(Declined::Detached));
    assert_eq!(peer.opens_lane(&agent, 6), "b");
    agent.tell(up(7, 2), b"");
    assert!(matches!(next(&mut client), Event::Up { .. }));
    sends(&mut client, b, b"y");
    assert_eq!(agent.next_lane_message(), Some((6, 9, b"y".to_vec())));
}

#[test]
fn changed_terms_of_a_reopened_lane_are_reported() {
    let mut agent = FakeAgent::new();
    let (peer, mut client, [a, b]) = reattached(&mut agent);
    let request = peer.request();
    peer.lane_ok(&agent, request.id, &LaneOk { bounded: false, period_ns: 2_000_000, ..lane_ok(3) });
    let Event::LaneChanged { lane, grant, reason, grace } = next(&mut client) else { panic!() };
    assert_eq!((lane, reason, grace), (a, LaneReason::Te, Duration::ZERO));
    assert_eq!((grant.latency, grant.period), (None, 2 * PERIOD));
    // The same terms: no event.
    assert_eq!(peer.opens_lane(&agent, 4), "b");
    agent.tell(up(7, 1), b"");
    assert!(matches!(next(&mut client), Event::Up { .. }));
    sends(&mut client, b, b"x");
}

#[test]
fn lane_refused_by_the_new_agent_is_dropped() {
    let mut agent = FakeAgent::new();
    let (peer, mut client, [a, b]) = reattached(&mut agent);
    let serve = || {
        let refusal = gone(ErrorCode::NoCapacity, "full");
        peer.send(&Reply::error(peer.request().id, refusal).to_bytes());
    };
    let Event::Dropped { what, refusal } = beside(serve, || next(&mut client)).1 else { panic!() };
    assert_eq!((&*what, refusal.code), ("a", ErrorCode::NoCapacity));
    assert_eq!(client.lane_send(a, 9, b"x"), Err(Declined::NoLane));
    assert_eq!(peer.opens_lane(&agent, 8), "b");
    sends(&mut client, b, b"x");
    assert_eq!(agent.next_lane_message(), Some((8, 9, b"x".to_vec())));
}

#[test]
fn answer_to_a_reopened_lane_is_not_lost_in_another_call() {
    let mut agent = FakeAgent::new();
    let (peer, mut client, [a, b]) = reattached(&mut agent);
    let serve = || {
        let first = peer.request();
        let call = peer.request();
        assert_eq!(call.op, Op::Listen { service: 4 });
        peer.lane_ok(&agent, first.id, &lane_ok(5));
        peer.ok(call.id, &Empty {});
    };
    beside(serve, || client.listen(4).unwrap());
    client.lane_send(a, 9, b"x").unwrap();
    // The next lane is refused, also during a call: a program that waits on the descriptor is woken.
    let serve = || {
        let second = peer.request();
        let call = peer.request();
        assert_eq!(call.op, Op::Unlisten { service: 4 });
        peer.send(&Reply::error(second.id, gone(ErrorCode::Gone, "no controller")).to_bytes());
        peer.ok(call.id, &Empty {});
    };
    beside(serve, || client.unlisten(4).unwrap());
    assert_eq!(client.lane_send(b, 9, b"x"), Err(Declined::NoLane));
    let long = Timespec { tv_sec: 20, tv_nsec: 0 };
    let mut fds = [PollFd::from_borrowed_fd(client.as_fd(), PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut fds, Some(&long)), Ok(1));
    assert!(matches!(client.poll_event(), Ok(Some(Event::Dropped { what, .. })) if &*what == "b"));
    assert_eq!(client.poll_event().unwrap(), None);
    let mut fds = [PollFd::from_borrowed_fd(client.as_fd(), PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0), "once");
}

#[test]
fn lane_closed_while_reopening_does_not_stay_at_the_agent() {
    let mut agent = FakeAgent::new();
    let (peer, mut client, [a, b]) = reattached(&mut agent);
    let serve = || {
        assert_eq!(peer.opens_lane(&agent, 5), "a");
        // The next one is asked for before this one goes back.
        let second = peer.request();
        let close = peer.request();
        assert_eq!(close.op, Op::CloseLane { handle: 5 });
        peer.ok(close.id, &Empty {});
        peer.lane_ok(&agent, second.id, &lane_ok(6));
    };
    beside(serve, || client.close_lane(a).unwrap());
    assert_eq!(client.lane_send(a, 9, b"x"), Err(Declined::NoLane));
    // Its turn has not come: no request is needed.
    sends(&mut client, b, b"x");
}

#[test]
fn lanes_and_services_are_registered_with_a_fresh_agent() {
    let mut agent = FakeAgent::new();
    let (peer, mut client) = connected(&agent);
    for service in [4, 5] {
        beside(|| peer.ok(peer.request().id, &Empty {}), || client.listen(service).unwrap());
    }
    let lane = open(&agent, &peer, &mut client, "a", 3).id;
    drop(peer);
    assert!(matches!(next(&mut client), Event::Detached { .. }));
    let serve = || {
        let (peer, _) = agent.greet("two");
        let request = peer.request();
        assert_eq!(request.op, Op::Listen { service: 5 });
        peer.ok(request.id, &Empty {});
        let request = peer.request();
        assert_eq!(request.op, Op::Listen { service: 4 });
        peer.send(&Reply::error(request.id, gone(ErrorCode::Full, "no")).to_bytes());
        peer
    };
    let (peer, event) = beside(serve, || next(&mut client));
    assert!(matches!(event, Event::Dropped { what, .. } if &*what == "service 4"));
    assert_eq!(next(&mut client), Event::Reattached { resumed: false });
    assert_eq!(peer.opens_lane(&agent, 3), "a");
    // A client that stopped listening gets no message.
    agent.tell_message(4, b"unheard");
    agent.tell_message(5, b"heard");
    let Event::LaneMessage { host_id: 2, service: 5, seq: 77, plane: 1, bytes, .. } = next(&mut client) else {
        panic!()
    };
    assert_eq!(&*bytes, b"heard");
    assert_eq!(client.counters().unknown, 1);
    sends(&mut client, lane, b"x");
}

#[test]
fn lane_changes_and_end_are_reported_with_grace() {
    let mut agent = FakeAgent::new();
    let (peer, mut client) = connected(&agent);
    let lane = open(&agent, &peer, &mut client, "work", 3).id;
    agent.tell_changed(9, lane_reason::TE);
    for (reason, expected) in [
        (lane_reason::TE, LaneReason::Te),
        (lane_reason::BW_EXCEEDED, LaneReason::BwExceeded),
        (lane_reason::BW_UNUSED, LaneReason::BwUnused),
        (77, LaneReason::Other(77)),
    ] {
        agent.tell_changed(3, reason);
        let Event::LaneChanged { lane: changed, grant, reason, grace } = next(&mut client) else { panic!() };
        assert_eq!((changed, reason, grace), (lane, expected, Duration::from_millis(50)));
        assert_eq!((grant.message_max_bytes, grant.period, grant.latency), (80, 2 * PERIOD, None));
    }
    assert_eq!(client.counters().unknown, 1, "nobody's lane");
    assert_eq!(client.lane_send(lane, 1, &[0; 81]), Err(Declined::MessageTooLarge { len: 81, max: 80 }));

    agent.tell_terminated(3, GRACE, "it was not used");
    let Event::LaneTerminated { lane: ended, name, why, grace } = next(&mut client) else { panic!() };
    assert_eq!((ended, &*name, &*why, grace), (lane, "work", "it was not used", GRACE));
    client.lane_send(lane, 1, b"last words").unwrap();
    assert_eq!(agent.next_lane_message(), Some((3, 1, b"last words".to_vec())));
    // Sent twice, delivered once.
    agent.tell_terminated(3, GRACE, "again");
    assert_eq!((client.poll_event().unwrap(), client.counters().unknown), (None, 2));
    // Another lane takes its place, and its handle: the agent reports when the grace is over.
    let other = open(&agent, &peer, &mut client, "work", 3).id;
    assert_eq!(client.lane_send(lane, 1, b"x"), Err(Declined::NoLane));
    client.lane_send(other, 1, b"x").unwrap();
}

#[test]
fn lane_ends_with_its_grace_period() {
    let mut agent = FakeAgent::new();
    let (peer, mut client) = connected(&agent);
    let lane = open(&agent, &peer, &mut client, "work", 3).id;
    agent.tell_terminated(3, Duration::ZERO, "over");
    assert!(matches!(next(&mut client), Event::LaneTerminated { .. }));
    assert_eq!(client.lane_send(lane, 1, b"x"), Err(Declined::NoLane));
    // It is not opened again, and does not count.
    for handle in 0..LANES_MAX {
        open(&agent, &peer, &mut client, &format!("lane-{handle}"), handle as u8);
    }
}
