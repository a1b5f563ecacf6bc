// SPDX-License-Identifier: Apache-2.0
//! For which incarnation of its host a program may act.

use crate::edges::next;
use crate::fake::*;
use fide_agent_api::event::{EventRecord, kind};
use fide_agent_api::table::{LEASE_FOREVER_NS, ViewRecord};
use fide_client::{
    Error, Event, Wanted,
    protocol::{ErrorCode, Refusal, Reply},
};

#[test]
fn new_agents_lease_is_not_ours_until_acknowledged() {
    let agent = FakeAgent::new();
    agent.table.set_lease_until(LEASE_FOREVER_NS);
    let (peer, mut client) = connected(&agent);
    beside(|| peer.joins(6), || client.join("me").unwrap());
    beside(|| peer.monitors(7), || client.monitor("db@beta", Wanted::default()).unwrap());
    let live = client.live();
    assert!(!live.fenced());
    let path = client.socket_path().to_owned();
    drop((peer, agent));
    assert!(matches!(next(&mut client), Event::Detached { .. }));

    let second = FakeAgent::new();
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(second.path(), &path).unwrap();
    second.table.set_incarnation(6);
    second.table.set_lease_until(LEASE_FOREVER_NS);
    let serve = || {
        let (peer, _) = second.greet("two");
        // The client has its table by now, and its lease runs: while registrations are under way, the lease
        // counts for nobody.
        let request = peer.request();
        assert!(live.fenced() && live.may_act().is_none());
        peer.ok(request.id, &joined(9));
        peer.monitors(1);
        peer
    };
    let (_peer, event) = beside(serve, || next(&mut client));
    assert_eq!(event, Event::Reattached { resumed: false });
    assert!(client.fenced(), "nobody has said that he knows");
    assert_eq!(next(&mut client), Event::Rejoined { incarnation: 6 });
    assert!(client.fenced() && client.may_act().is_none() && live.lease_remaining().is_some_and(|left| left.is_zero()));
    assert!(matches!(client.rejoined_acknowledge(5), Err(Error::NotRejoined { given: 5, reported: 6 })));
    assert!(client.fenced());
    client.rejoined_acknowledge(6).unwrap();
    assert!(!client.fenced() && !live.fenced());
    assert_eq!(live.may_act().expect("it may").incarnation, 6);
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
}

#[test]
fn exclusion_fences_until_acknowledged_even_if_its_record_was_lost() {
    let mut agent = FakeAgent::new();
    agent.table.set_lease_until(LEASE_FOREVER_NS);
    let (_peer, mut client) = connected(&agent);
    assert!(!client.fenced());
    agent.table.set_incarnation(8);
    assert!(client.fenced(), "no event was needed");
    assert_eq!(client.poll_event().unwrap(), Some(Event::Rejoined { incarnation: 8 }), "read from the table");
    agent.tell(EventRecord { kind: kind::REJOINED, incarnation: 8, ..Default::default() }, b"");
    assert_eq!(client.poll_event().unwrap(), None, "reported once");
    client.rejoined_acknowledge(8).unwrap();
    assert!(!client.fenced());
    agent.table.set_incarnation(9);
    assert!(client.fenced());
    client.rejoined_acknowledge(8).unwrap();
    assert!(client.fenced(), "what it knows is not what this host is");
}

#[test]
fn permit_names_view_incarnation_and_end() {
    let agent = FakeAgent::new();
    let (_peer, client) = connected(&agent);
    assert_eq!(client.may_act(), None, "until proven heard");
    agent.table.set_lease_until(LEASE_FOREVER_NS);
    let permit = client.may_act().expect("it may");
    assert_eq!((permit.host_id, permit.incarnation, permit.until_ns), (1, 5, LEASE_FOREVER_NS));
    assert_eq!((permit.view, permit.token()), (None, None), "policy network");
    let settled_ns = fide_client::now_ns() + 3_600_000_000_000;
    agent.table.set_view(&ViewRecord { generation: 3, number: 4, members: 0b11, settled_ns });
    let permit = client.may_act().expect("it may");
    assert_eq!(permit.token().expect("a view").to_string(), "000000030000000400000005");
    assert!(!permit.is_lowest(), "another host may act by an older view");
    agent.table.set_view(&ViewRecord { generation: 3, number: 5, members: 0b11, settled_ns: 1 });
    let later = client.may_act().expect("it may");
    assert!(later.is_lowest() && later.token() > permit.token());
}

#[test]
fn name_that_is_still_taken_is_asked_for_again() {
    let agent = FakeAgent::new();
    let (peer, mut client) = connected(&agent);
    beside(|| peer.joins(6), || client.join("me").unwrap());
    drop(peer);
    assert!(matches!(next(&mut client), Event::Detached { .. }));
    let serve = || {
        let (peer, _) = agent.greet("two");
        let refusal = Refusal::new(ErrorCode::NameTaken, "another process is \"me\"", "");
        peer.send(&Reply::error(peer.request().id, refusal).to_bytes());
        let (again, asked) = agent.greet("two");
        assert_eq!(asked.as_deref(), Some("two"));
        again.joins(7);
        (peer, again)
    };
    let (_peers, event) = beside(serve, || next(&mut client));
    assert_eq!(event, Event::Reattached { resumed: false }, "and not given up");
}
