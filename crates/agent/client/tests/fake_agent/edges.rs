// SPDX-License-Identifier: Apache-2.0
//! Other versions, nonsense, hang-ups, lost sessions.

use crate::fake::*;
use fide_agent_api::event::{EventRecord, kind};
use fide_agent_api::table::{HostRecord, LEASE_FOREVER_NS, ProcessRecord, state};
use fide_client::{
    Client, ConnectOptions, Declined, Error, Event, MonitorId, Reason, Wanted,
    protocol::{Empty, ErrorCode, HelloOk, JoinOk, MonitorOk, Op, PROTOCOL_VERSION, PeerState, Refusal, Reply},
};
use fide_types::PIGGYBACK_MAX;
use std::{path::PathBuf, time::Duration};

const LONG: Option<Duration> = Some(Duration::from_secs(20));

pub(crate) fn next(client: &mut Client) -> Event {
    client.wait_event(LONG).unwrap().expect("an event")
}

#[test]
fn agent_of_another_version_is_named() {
    let agent = FakeAgent::new();
    let message = "this agent speaks protocol 2, the client 1";
    let refusing = || {
        let peer = agent.accept();
        let refusal = Refusal::new(ErrorCode::Version, message, "update the client");
        peer.send(&Reply::error(peer.request().id, refusal).to_bytes());
    };
    let error = beside(refusing, || Client::connect(agent.options()).unwrap_err()).1;
    assert!(matches!(&error, Error::Refused(refusal) if refusal.code == ErrorCode::Version));
    assert!(error.to_string().contains(message), "{error}");
    let other = || {
        let peer = agent.accept();
        peer.ok(peer.request().id, &HelloOk { protocol: 99, ..agent.hello("x") });
    };
    let error = beside(other, || Client::connect(agent.options()).unwrap_err()).1.to_string();
    let speaks = format!("speaks {PROTOCOL_VERSION}");
    assert!(error.contains("protocol 99") && error.contains(&speaks), "{error}");
}

#[test]
fn garbage_silence_and_missing_memory_are_errors_not_panics() {
    let agent = FakeAgent::new();
    let connect = || Client::connect(agent.options()).unwrap_err();
    let answer = |bytes: &[u8]| {
        let peer = agent.accept();
        peer.request();
        peer.send(bytes);
    };
    let error = beside(|| answer(b"\xff\x00nonsense"), connect).1.to_string();
    assert!(error.contains("no reply"), "{error}");
    let error = beside(|| answer(br#"{"id":1,"ok":{"protocol":1}}"#), connect).1.to_string();
    assert!(error.contains("unexpected shape") && error.contains("host"), "{error}");
    let bare = Reply::ok(1, &agent.hello("x")).to_bytes();
    let error = beside(|| answer(&bare), connect).1.to_string();
    assert!(error.contains("0 descriptors, not 3"), "{error}");
    let error = beside(|| drop(agent.accept()), connect).1;
    assert!(matches!(error, Error::HungUp { op: "hello", .. }), "{error}");
    let options = ConnectOptions { call_timeout: Duration::from_millis(20), ..agent.options() };
    assert!(matches!(Client::connect(options), Err(Error::Timeout { op: "hello", .. })));
    let nowhere = ConnectOptions { path: Some(agent.dir.path().join("none")), ..agent.options() };
    assert!(matches!(Client::connect(nowhere), Err(Error::NoAgent { .. })));
}

#[test]
fn events_come_in_order_without_their_duplicates() {
    let mut agent = FakeAgent::new();
    let (peer, mut client) = connected(&agent);
    let monitor = beside(|| peer.monitors(7), || client.monitor("db@beta", Wanted::default()).unwrap()).1;
    assert_eq!((monitor.id, monitor.timeout), (MonitorId(1), Duration::from_micros(900)));
    assert_eq!(client.poll_event().unwrap(), None);
    agent.tell(up(7, 1), b"db@beta");
    agent.tell(killed(0, 1), b"");
    agent.tell(killed(7, 1), b"");
    agent.tell(killed(99, 1), b"");
    agent.tell(EventRecord { kind: 77, ..Default::default() }, b"");
    agent.tell(up(7, 2), b"db@beta");
    assert!(matches!(next(&mut client), Event::Up { evidence, .. } if evidence.incarnation == 1));
    assert!(matches!(next(&mut client), Event::Verdict(v) if v.reason == Reason::Killed(9) && &*v.target == "db@beta"));
    assert!(matches!(next(&mut client), Event::Up { evidence, .. } if evidence.incarnation == 2));
    assert_eq!(client.poll_event().unwrap(), None);
    let counters = client.counters();
    assert_eq!((counters.duplicates, counters.unknown, counters.undecodable), (1, 1, 1));
    agent.table.write_host(2, &HostRecord { state: state::ALIVE, ..Default::default() });
    let process = ProcessRecord { state: state::ALIVE, incarnation: 2, ..Default::default() };
    agent.table.write_process(2, 4, &process);
    assert_eq!(client.peer_state(monitor.id), PeerState::Alive);
    agent.table.write_process(2, 4, &ProcessRecord { incarnation: 3, ..process });
    assert_eq!(client.peer_state(monitor.id), PeerState::Dead, "its slot belongs to another one now");
}

#[test]
fn events_after_many_unknown_records_are_delivered() {
    let mut agent = FakeAgent::new();
    let (peer, mut client) = connected(&agent);
    beside(|| peer.monitors(7), || client.monitor("db@beta", Wanted::default()).unwrap());
    for _ in 0..500 {
        agent.tell(killed(99, 1), b"");
    }
    agent.tell(up(7, 1), b"");
    assert!(matches!(next(&mut client), Event::Up { .. }));
    assert_eq!(client.counters().unknown, 500);
}

#[test]
fn piggybacks_too_large_and_too_many_are_distinguished() {
    let mut agent = FakeAgent::new();
    let (peer, mut client) = connected(&agent);
    assert_eq!(client.piggyback(b"x"), Err(Declined::NotJoined));
    beside(|| peer.joins(6), || client.join("me").unwrap());
    assert_eq!(client.piggyback(&[0; 101]), Err(Declined::TooLarge { len: 101, pbsize: 100 }));
    let sent = (0..10_000).take_while(|_| client.piggyback(&[1; 100]).is_ok()).count();
    assert!(sent > 100, "{sent}");
    assert_eq!(client.piggyback(&[1; 100]), Err(Declined::Full));
    let mut buffer = [0; PIGGYBACK_MAX];
    assert_eq!(agent.session.pop_outbox(&mut buffer).unwrap(), Some((6, &[1; 100][..])));
    client.piggyback(&[1; 100]).unwrap();
}

/// epoll_wait counts in whole milliseconds; epoll_pwait2 does not, if the library that calls it knows that
/// the kernel has it.
#[test]
fn waits_below_a_millisecond_are_not_rounded_up() {
    let agent = FakeAgent::new();
    let (_peer, mut client) = connected(&agent);
    let mut shortest = |wait: Duration| {
        let once = || {
            let begun = std::time::Instant::now();
            assert_eq!(client.wait_event(Some(wait)).unwrap(), None);
            begun.elapsed()
        };
        std::iter::repeat_with(once).take(100).min().unwrap()
    };
    // The best of many: a machine under load makes any single one long.
    let (short, whole) = (shortest(Duration::from_micros(50)), shortest(Duration::from_millis(1)));
    assert!(2 * short < whole, "{short:?} beside {whole:?}");
}

#[test]
fn lease_fences_without_an_agent_in_all_threads() {
    let agent = FakeAgent::new();
    let (peer, client) = connected(&agent);
    let live = client.live();
    assert!(client.fenced(), "until proven heard");
    agent.table.set_lease_until(LEASE_FOREVER_NS);
    assert!(!client.fenced());
    assert_eq!(live.lease_remaining(), None);
    drop(peer);
    agent.table.set_lease_until(fide_client::now_ns());
    assert!(std::thread::spawn(move || live.fenced()).join().unwrap());
    client.beat();
    assert_eq!(agent.session.beat(), 1);
}

#[test]
fn known_token_resumes_the_same_memory() {
    let mut agent = FakeAgent::new();
    let (peer, mut client) = connected(&agent);
    beside(|| peer.monitors(7), || client.monitor("db@beta", Wanted::default()).unwrap());
    agent.tell(up(7, 1), b"");
    drop(peer);
    assert!(matches!(next(&mut client), Event::Up { .. }));
    assert!(matches!(next(&mut client), Event::Detached { .. }));
    agent.tell(killed(7, 1), b"");
    assert!(matches!(next(&mut client), Event::Verdict(_)), "the ring is read on");
    let ((peer, asked), event) = beside(|| agent.greet("one"), || next(&mut client));
    assert_eq!(asked.as_deref(), Some("one"));
    assert_eq!(event, Event::Reattached { resumed: true });
    agent.tell(killed(7, 1), b"");
    agent.tell(up(7, 2), b"");
    assert!(
        matches!(next(&mut client), Event::Up { evidence, .. } if evidence.incarnation == 2),
        "delivered before: dropped"
    );
    let done = beside(|| peer.ok(peer.request().id, &Empty {}), || client.unmonitor(MonitorId(1)));
    done.1.unwrap();
    assert_eq!(client.counters().detached, 1);
}

#[test]
fn everything_is_registered_with_a_new_agent() {
    let agent = FakeAgent::new();
    let (peer, mut client) = connected(&agent);
    beside(|| peer.joins(6), || client.join("me").unwrap());
    beside(|| peer.monitors(7), || client.monitor("db@beta", Wanted::default()).unwrap());
    beside(|| peer.monitors(8), || client.monitor("@beta", Wanted::default()).unwrap());
    let (db, live) = (MonitorId(2), client.live());
    drop((peer, agent));
    let path = client_path(&client);
    assert!(matches!(next(&mut client), Event::Detached { .. }));

    let mut second = FakeAgent::new();
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(second.path(), &path).unwrap();
    let serve = || {
        let (peer, asked) = second.greet("two");
        assert_eq!(asked.as_deref(), Some("one"));
        peer.joins(9);
        peer.monitors(1);
        let refusal = Refusal::new(ErrorCode::UnknownHost, "no host beta", "");
        peer.send(&Reply::error(peer.request().id, refusal).to_bytes());
        peer
    };
    let (peer, event) = beside(serve, || next(&mut client));
    assert!(
        matches!(event, Event::Dropped { what, refusal } if &*what == "@beta" && refusal.code == ErrorCode::UnknownHost)
    );
    assert_eq!(next(&mut client), Event::Reattached { resumed: false });
    assert!(live.fenced());
    second.table.set_lease_until(LEASE_FOREVER_NS);
    assert!(!live.fenced(), "handles of other threads follow to the new table");
    second.tell(up(1, 1), b"");
    assert!(matches!(next(&mut client), Event::Up { monitor, .. } if monitor == db), "ids stay");
    client.piggyback(b"x").unwrap();
    let mut buffer = [0; PIGGYBACK_MAX];
    assert_eq!(second.session.pop_outbox(&mut buffer).unwrap(), Some((9, &b"x"[..])), "in the new slot");
    drop(peer);
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
}

fn client_path(client: &Client) -> PathBuf {
    client.socket_path().to_owned()
}

#[test]
fn registration_continues_after_the_agent_died() {
    let agent = FakeAgent::new();
    let (peer, mut client) = connected(&agent);
    beside(|| peer.joins(6), || client.join("me").unwrap());
    beside(|| peer.monitors(7), || client.monitor("db@beta", Wanted::default()).unwrap());
    drop(peer);
    assert!(matches!(next(&mut client), Event::Detached { .. }));
    let serve = || {
        let (peer, _) = agent.greet("two");
        peer.joins(9);
        peer.request();
        drop(peer);
        let (peer, asked) = agent.greet("two");
        assert_eq!(asked.as_deref(), Some("two"));
        peer.monitors(1);
        // A third connection: hangs up in the middle of the greeting.
        drop(peer);
        drop(agent.accept());
        agent.greet("two")
    };
    let ((peer, _), events) = beside(serve, || [next(&mut client), next(&mut client), next(&mut client)]);
    assert_eq!(events[0], Event::Reattached { resumed: false });
    assert!(matches!(events[1], Event::Detached { .. }));
    assert_eq!(events[2], Event::Reattached { resumed: true });
    drop(peer);
}

#[test]
fn former_has_the_longest_timeout_of_all_earlier_agents() {
    let mut agent = FakeAgent::new();
    let (peer, mut client) = connected(&agent);
    let granted = |peer: &Peer, timeout_us| {
        let request = peer.request();
        assert!(matches!(request.op, Op::Monitor { .. }), "{request:?}");
        let state = PeerState::Unknown;
        let (watch, host_id, pbsize, slot, incarnation) = (1, 2, 0, 0, 0);
        peer.ok(request.id, &MonitorOk { watch, host_id, timeout_us, pbsize, state, slot, incarnation });
    };
    let registered = |peer: &Peer| {
        let request = peer.request();
        let Op::Former { timeout_us, .. } = request.op else { panic!("{request:?}") };
        (request.id, timeout_us)
    };
    beside(|| granted(&peer, 9000), || client.monitor("db@beta", Wanted::default()).unwrap());
    agent.tell(up(1, 1), b"");
    assert!(matches!(next(&mut client), Event::Up { .. }));
    drop(peer);
    assert!(matches!(next(&mut client), Event::Detached { .. }));
    let serve = || {
        let mut all = Vec::new();
        // Two agents end before they have answered; the third stays.
        for (token, timeout_us) in [("two", 100), ("three", 200), ("four", 300)] {
            let (peer, _) = agent.greet(token);
            granted(&peer, timeout_us);
            let (id, former) = registered(&peer);
            all.push(former);
            if token == "four" {
                peer.ok(id, &Empty {});
                return (peer, all);
            }
        }
        unreachable!()
    };
    let ((peer, all), event) = beside(serve, || next(&mut client));
    assert_eq!(event, Event::Reattached { resumed: false });
    assert_eq!(all, [9000; 3]);
    drop(peer);
    assert!(matches!(next(&mut client), Event::Detached { .. }));
    let serve = || {
        let (peer, _) = agent.greet("five");
        granted(&peer, 400);
        let (id, former) = registered(&peer);
        peer.ok(id, &Empty {});
        (peer, former)
    };
    let ((_peer, former), _) = beside(serve, || next(&mut client));
    assert_eq!(former, 300, "granted by the last agent that had it");
}

#[test]
fn call_waits_for_the_agent_and_gives_up_in_time() {
    let mut agent = FakeAgent::new();
    let options = ConnectOptions { call_timeout: Duration::from_millis(300), ..agent.options() };
    let ((peer, _), mut client) = beside(|| agent.greet("one"), || Client::connect(options).unwrap());
    agent.listener = None;
    drop(peer);
    assert!(matches!(client.join("me"), Err(Error::HungUp { op: "join", .. })));
    assert!(matches!(client.join("me"), Err(Error::Detached(_))));
    agent.listen();
    let serve = || {
        let (peer, _) = agent.greet("one");
        peer.joins(2);
        peer
    };
    let (_peer, joined) = beside(serve, || {
        // The pause between attempts may be longer than this short call.
        std::iter::repeat_with(|| client.join("me")).take(20).find_map(Result::ok).expect("the agent is back")
    });
    assert_eq!(joined.slot, 2);
}

#[test]
fn late_reply_is_not_taken_for_the_next_one() {
    let agent = FakeAgent::new();
    let options = ConnectOptions { call_timeout: Duration::from_millis(50), ..agent.options() };
    let ((peer, _), mut client) = beside(|| agent.greet("one"), || Client::connect(options).unwrap());
    assert!(matches!(client.join("slow"), Err(Error::Timeout { op: "join", .. })));
    let first = peer.request();
    peer.ok(first.id, &JoinOk { slot: 1, incarnation: 1, pbsize: 0 });
    let joined = beside(|| peer.joins(2), || client.join("quick").unwrap()).1;
    assert_eq!(joined.slot, 2);
}

#[test]
fn names_are_checked_before_the_agent_is_asked() {
    let agent = FakeAgent::new();
    let (_peer, mut client) = connected(&agent);
    assert!(matches!(client.join("no spaces"), Err(Error::Name(_))));
    assert!(matches!(client.monitor("beta", Wanted::default()), Err(Error::Name(_))));
    assert!(matches!(client.unmonitor(MonitorId(4)), Err(Error::Unregistered(_))));
}

#[test]
fn lost_events_are_reported_with_their_number() {
    let mut agent = FakeAgent::new();
    let (_peer, mut client) = connected(&agent);
    agent.session.set_lost(3);
    agent.tell(EventRecord::of_host(kind::FENCED, 1), b"");
    assert_eq!(next(&mut client), Event::Fenced);
    assert_eq!(next(&mut client), Event::Lost { count: 3 });
    assert_eq!(client.poll_event().unwrap(), None);
}
