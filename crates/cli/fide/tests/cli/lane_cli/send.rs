// SPDX-License-Identifier: Apache-2.0
//! Requests, packets and output of `fide lane send`.

use std::time::Duration;

use fide_agent_api::event::lane_reason;
use fide_agent_api::protocol::{ErrorCode, LaneOk, Op, Refusal, Reply};
use rustix::process::Signal;

use super::fake::{FakeAgent, Peer, lane_ok};
use super::{Running, done, message};

const CLOSE: Op = Op::CloseLane { handle: 3 };

/// A period in which only the first packet ever leaves.
const HOUR_NS: u64 = 3_600_000_000_000;

fn granted(agent: &FakeAgent, period_ns: u64) -> Peer {
    let (peer, _) = agent.greet("one");
    let request = peer.request();
    assert!(matches!(request.op, Op::OpenLane { .. }), "{request:?}");
    peer.lane_ok(agent, request.id, &LaneOk { period_ns, ..lane_ok(3) });
    peer
}

const SEND: [&str; 10] = ["send", "work", "--to", "h2", "--service", "7", "--size", "100", "--period", "1ms"];

fn start(agent: &FakeAgent, more: &[&str]) -> Running {
    Running::start(agent, &[&SEND, more].concat())
}

#[test]
fn each_line_is_a_message_and_the_lane_is_given_back() {
    let mut agent = FakeAgent::new();
    let all = [
        "send",
        "work",
        "--to",
        "h2,h3",
        "--service",
        "7",
        "--size",
        "100",
        "--period",
        "1.5ms",
        "--messages",
        "2",
        "--priority",
        "0",
        "--trees",
        "1",
        "--latency-max",
        "250us",
    ];
    let mut sending = Running::start(&agent, &all);
    let (peer, _) = agent.greet("one");
    let request = peer.request();
    let Op::OpenLane { name, asked } = &request.op else { panic!("{request:?}") };
    assert_eq!((name.as_str(), asked.receivers.join(" ").as_str()), ("work", "h2 h3"));
    assert_eq!((asked.message_max_bytes, asked.messages_max, asked.period_ns), (100, 2, 1_500_000));
    assert_eq!((asked.priority, asked.redundancy, asked.latency_max_ns), (0, Some(1), Some(250_000)));
    peer.lane_ok(&agent, request.id, &LaneOk { trees: 1, ..lane_ok(3) });
    assert_eq!(
        sending.line(),
        "lane work over one tree: a packet of 150 bytes every 1 ms, 5 us to the nearest host, 12 us to any"
    );
    sending.write("one\n\ntwo");
    assert_eq!(message(&mut agent), (3, 7, b"one".to_vec()));
    assert_eq!(message(&mut agent), (3, 7, vec![]));
    sending.write("\nthree");
    assert_eq!(message(&mut agent), (3, 7, b"two".to_vec()));
    drop(sending.stdin.take());
    assert_eq!(message(&mut agent), (3, 7, b"three".to_vec()));
    done(&peer, &CLOSE);
    let (code, out, err) = sending.end();
    assert_eq!((code, &*out, &*err), (Some(0), "lane work is closed, 4 messages were sent\n", ""));
}

#[test]
fn send_keeps_to_the_granted_rate_by_default() {
    for (burst, expected) in [(&[][..], 2), (&["--burst"][..], 5)] {
        let mut agent = FakeAgent::new();
        let mut sending = start(&agent, &[&["--messages", "2", "--json"], burst].concat());
        // The granted period is longer than requested, and the grant counts.
        let peer = granted(&agent, HOUR_NS);
        let first = sending.json();
        assert_eq!(
            (&first["kind"], &first["lane"], &first["period_ns"]),
            (&"granted".into(), &12.into(), &HOUR_NS.into())
        );
        assert_eq!(
            (&first["bounded"], &first["latency_min_ns"], &first["trees"]),
            (&true.into(), &5000.into(), &2.into())
        );
        sending.write("1\n2\n3\n4\n5\n");
        for number in 1..=expected {
            assert_eq!(message(&mut agent).2, number.to_string().as_bytes());
        }
        // The program prints it after another turn, in which it has sent nothing.
        agent.tell_changed(9, lane_reason::TE);
        agent.tell(fide_agent_api::event::EventRecord::of_host(fide_agent_api::event::kind::FENCED, 1), b"");
        assert_eq!(sending.json()["kind"], "fenced");
        assert_eq!(agent.next_lane_message(), None);
        sending.signal(Signal::TERM);
        done(&peer, &CLOSE);
        let (code, out, _) = sending.end();
        assert_eq!(code, Some(0), "{out}");
        let last: serde_json::Value = serde_json::from_str(&out).expect("JSON");
        assert_eq!((&last["kind"], &last["sent"]), (&"closed".into(), &expected.into()));
    }
}

#[test]
fn a_shorter_period_is_kept_at_once() {
    let mut agent = FakeAgent::new();
    let mut sending = start(&agent, &["--json"]);
    let peer = granted(&agent, HOUR_NS);
    sending.json();
    sending.write("1\n2\n");
    assert_eq!(message(&mut agent).2, b"1");
    agent.tell_changed(3, lane_reason::BW_UNUSED);
    let event = sending.json();
    assert_eq!((&event["kind"], &event["reason"]), (&"bandwidth_changed".into(), &"BW_UNUSED".into()));
    assert_eq!((&event["grace_ns"], &event["bounded"]), (&50_000_000.into(), &false.into()));
    assert_eq!((&event["period_ns"], &event["jitter_max_ns"]), (&2_000_000.into(), &serde_json::Value::Null));
    assert_eq!(message(&mut agent).2, b"2", "the period is 2 ms now");
    drop(sending.stdin.take());
    done(&peer, &CLOSE);
    assert_eq!(sending.end().0, Some(0));
}

#[test]
fn upcalls_are_for_people_too_and_the_end_is_an_error() {
    let mut agent = FakeAgent::new();
    let mut sending = start(&agent, &[]);
    let _peer = granted(&agent, 1_000_000);
    sending.line();
    sending.write("1\n");
    message(&mut agent);
    agent.tell_changed(3, lane_reason::BW_EXCEEDED);
    agent.tell_terminated(3, Duration::from_millis(50), "it exceeded its contract 3 times");
    let (code, out, err) = sending.end();
    assert_eq!((code, &*out), (Some(1), ""), "{err}");
    let lines: Vec<&str> = err.lines().collect();
    assert_eq!(
        lines,
        [
            "fide: more was sent than agreed; in 50 ms the lane is a packet of 150 bytes every 2 ms, best effort, no latency is \
             bounded",
            "fide: lane work is over in 50 ms: it exceeded its contract 3 times",
            "fide: lane work is over after 1 messages; ask for another one",
        ]
    );
}

#[test]
fn lines_wait_while_the_agent_is_away() {
    let mut agent = FakeAgent::new();
    let mut sending = start(&agent, &["--json"]);
    let peer = granted(&agent, 1_000_000);
    sending.json();
    sending.write("1\n");
    message(&mut agent);
    drop(peer);
    assert_eq!(sending.json()["kind"], "detached");
    sending.write("2\n");
    let (peer, _) = agent.greet("one");
    assert_eq!(sending.json()["kind"], "reattached");
    assert_eq!(agent.next_lane_message(), None);
    assert_eq!(peer.opens_lane(&agent, 5), "work");
    assert_eq!(message(&mut agent), (5, 7, b"2".to_vec()));
    // A lane that is refused when the agent is back is over.
    drop(peer);
    let (peer, _) = agent.greet("one");
    let refusal = Refusal::new(ErrorCode::NoCapacity, "the cable s1-s2 is full", "");
    peer.send(&Reply::error(peer.request().id, refusal).to_bytes());
    for kind in ["detached", "reattached", "dropped"] {
        assert_eq!(sending.json()["kind"], kind);
    }
    let (code, _, err) = sending.end();
    assert!(code == Some(1) && err.contains("work is over after 2 messages"), "{code:?} {err}");
}

#[test]
fn too_long_line_is_named_and_earlier_lines_are_sent() {
    let mut agent = FakeAgent::new();
    let mut sending = start(&agent, &[]);
    let peer = granted(&agent, 1_000_000);
    sending.line();
    sending.write(&format!("short\n{}\nafter\n", "x".repeat(101)));
    assert_eq!(message(&mut agent).2, b"short");
    done(&peer, &CLOSE);
    let (code, _, err) = sending.end();
    assert_eq!(code, Some(2));
    assert!(
        err.contains("line 2: message of 101 bytes, this lane carries at most 100") && err.contains("--size"),
        "{err}"
    );
    assert_eq!(agent.next_lane_message(), None);
}

#[test]
fn refusals_have_the_codes_of_all_subcommands() {
    let agent = FakeAgent::new();
    for (refusal, code) in [
        (ErrorCode::NotSupported, 3),
        (ErrorCode::NotPermitted, 4),
        (ErrorCode::UnknownHost, 2),
        (ErrorCode::NoCapacity, 1),
        (ErrorCode::NameTaken, 1),
    ] {
        let sending = start(&agent, &[]);
        let (peer, _) = agent.greet("one");
        peer.send(&Reply::error(peer.request().id, Refusal::new(refusal, "it is so", "do this")).to_bytes());
        let (found, out, err) = sending.end();
        assert_eq!((found, &*out, &*err), (Some(code), "", "fide: it is so; do this\n"));
    }
    for (flag, value, named) in [
        ("--service", "0", "1..=255"),
        ("--period", "10", "such as 10ms"),
        ("--latency-max", "soon", "such as 10ms"),
        ("--messages", "0", "--messages"),
    ] {
        let mut wrong = SEND.to_vec();
        match wrong.iter().position(|word| *word == flag) {
            Some(at) => wrong[at + 1] = value,
            None => wrong.extend([flag, value]),
        }
        let (code, _, err) = Running::start(&agent, &wrong).end();
        assert!(code == Some(2) && err.contains(flag) && err.contains(named), "{code:?} {err}");
    }
    let (code, _, err) = Running::start(&agent, &["send", "work"]).end();
    assert!(code == Some(2) && err.contains("--to"), "{code:?} {err}");
    std::fs::remove_file(agent.path()).expect("its socket");
    let (code, _, err) = start(&agent, &[]).end();
    assert!(code == Some(1) && err.contains("no Fide agent at"), "{code:?} {err}");
}
