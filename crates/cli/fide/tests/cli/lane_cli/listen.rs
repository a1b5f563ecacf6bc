// SPDX-License-Identifier: Apache-2.0
//! The output of `fide lane listen`.

use fide_agent_api::event::{EventRecord, kind};
use fide_agent_api::protocol::{ErrorCode, Op, Refusal, Reply};
use fide_agent_api::table::{HostRecord, name_bytes};
use rustix::process::Signal;
use serde_json::json;

use super::fake::{FakeAgent, Peer};
use super::{Lines, Running, done};

fn listening(agent: &FakeAgent, services: &[u8]) -> Peer {
    let (peer, _) = agent.greet("one");
    for service in services {
        done(&peer, &Op::Listen { service: *service });
    }
    peer
}

/// Packet 42 of lane 2 of a host.
fn record(host: u16) -> EventRecord {
    let seq = 2 << 56 | 42;
    EventRecord {
        kind: kind::LANE_MESSAGE,
        host,
        slot: 9,
        incarnation: 6,
        seq,
        rx_ns: 1_000_000_088,
        ..Default::default()
    }
}

#[test]
fn messages_are_printed_with_all_fields() {
    let mut agent = FakeAgent::new();
    agent.table.write_host(2, &HostRecord { name: name_bytes("beta"), ..Default::default() });
    let mut listen = Running::start(&agent, &["listen", "7", "9", "--json", "--count", "2"]);
    let peer = listening(&agent, &[7, 9]);
    assert_eq!(listen.json(), json!({"kind": "listening", "host": "alpha", "services": [7, 9]}));
    agent.tell(record(2), b"good \"day\"");
    let expected = json!({
        "kind": "message", "host": "beta", "host_id": 2, "incarnation": 6, "service": 9, "lane": 2, "number": 42,
        "plane": 0, "rx_ns": 1_000_000_088, "text": "good \"day\"",
    });
    assert_eq!(listen.json(), expected);
    drop(peer);
    assert_eq!(listen.json()["kind"], "detached");
    let (_peer, _) = agent.greet("one");
    assert_eq!(listen.json()["kind"], "reattached");
    agent.tell(EventRecord { plane: 1, ..record(1) }, &[0xff]);
    let second = listen.json();
    assert_eq!((&second["host"], &second["plane"], &second["text"]), (&"host 1".into(), &1.into(), &"\u{fffd}".into()));
    assert_eq!(listen.end().0, Some(0), "two were heard");
}

#[test]
fn text_and_bytes_for_people() {
    for (more, shown) in [(&[][..], "\"a\\nb\""), (&["--hex"][..], "610a62")] {
        let mut agent = FakeAgent::new();
        let mut listen = Running::start(&agent, &[&["listen", "9"], more].concat());
        let _peer = listening(&agent, &[9]);
        agent.tell(record(2), b"a\nb");
        assert_eq!(listen.line(), format!("1.000000088 host 2 service 9 lane 2 packet 42 plane 0: {shown}"));
        listen.signal(Signal::INT);
        let (code, out, err) = listen.end();
        assert_eq!((code, &*out, &*err), (Some(0), "", "fide: listening on alpha to 9\n"));
    }
}

#[test]
fn it_ends_when_nobody_reads_any_more_and_when_it_may_not_listen() {
    let mut agent = FakeAgent::new();
    let mut listen = Running::start(&agent, &["listen", "9"]);
    let peer = listening(&agent, &[9]);
    // Its standard output is closed.
    let other = std::process::Command::new("true").stdout(std::process::Stdio::piped()).spawn();
    let mut other = other.expect("started");
    listen.out = Lines::of(other.stdout.take().expect("piped"));
    other.wait().expect("ended");
    agent.tell(record(2), b"unread");
    assert_eq!(listen.end().0, Some(0));
    drop(peer);

    let listen = Running::start(&agent, &["listen", "9"]);
    let (peer, _) = agent.greet("one");
    peer.send(&Reply::error(peer.request().id, Refusal::new(ErrorCode::BadRequest, "no", "")).to_bytes());
    assert_eq!(listen.end().0, Some(2));
    for arguments in [&["listen"][..], &["listen", "0"], &["listen", "256"], &["listen", "9", "--count", "0"]] {
        assert_eq!(Running::start(&agent, arguments).end().0, Some(2), "{arguments:?}");
    }
}
