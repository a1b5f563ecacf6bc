// SPDX-License-Identifier: Apache-2.0
use crate::config::tests::cluster;
use crate::*;
use fide_wire::PAYLOAD_MAX;

const MS: u64 = 1_000_000;

fn exchange(from: &mut Detector, to: &mut Detector, now: u64) {
    let mut buf = [0u8; PAYLOAD_MAX];
    from.tick(now);
    while let Some(transmit) = from.poll_transmit(now, &mut buf) {
        to.handle_packet(now, now, 0, &buf[..transmit.len]).unwrap();
    }
}

fn events(d: &mut Detector) -> Vec<Event> {
    std::iter::from_fn(|| d.poll_event()).collect()
}

/// Two hosts that have heard each other every millisecond for 20 ms.
fn acting_pair() -> (Detector, Detector) {
    let host = |me| Detector::new(Config { me, ..cluster(2) }, 0).unwrap();
    let (mut a, mut b) = (host(1), host(2));
    for beat in 1..=20 {
        exchange(&mut a, &mut b, beat * MS);
        exchange(&mut b, &mut a, beat * MS);
    }
    events(&mut a);
    (a, b)
}

#[test]
fn suspension_ends_the_lease_until_a_later_heartbeat_is_acknowledged() {
    let (mut a, mut b) = acting_pair();
    // b acknowledges a heartbeat from before the suspension; the acknowledgement arrives after it.
    exchange(&mut a, &mut b, 21 * MS);
    let mut late = [0u8; PAYLOAD_MAX];
    b.tick(21 * MS);
    let len = b.poll_transmit(21 * MS, &mut late).expect("a heartbeat").len;
    assert!(!a.is_fenced(21 * MS), "it acts");
    a.doubt(21 * MS, 3_000 * MS);
    assert!(a.is_fenced(21 * MS), "however much of the lease was left");
    let happened = events(&mut a);
    assert!(happened.contains(&Event::ObserverStalled { gap_ns: 3_000 * MS, withheld: 0 }), "{happened:?}");
    assert!(happened.iter().any(|event| matches!(event, Event::Fenced { .. })), "{happened:?}");
    a.handle_packet(21 * MS, 21 * MS, 0, &late[..len]).unwrap();
    assert!(a.is_fenced(21 * MS), "the acknowledged heartbeat is from before");
    for beat in 22..25 {
        exchange(&mut a, &mut b, beat * MS);
        exchange(&mut b, &mut a, beat * MS);
    }
    assert!(!a.is_fenced(24 * MS), "it is heard again");
}

#[test]
fn suspension_withholds_suspicion() {
    let (mut a, _b) = acting_pair();
    let timeout_ns = a.peer(2).unwrap().timeout_ns;
    // b was silent for almost its timeout when the machine was suspended; what it sent meanwhile was lost
    // here.
    let almost = 20 * MS + timeout_ns - MS;
    a.tick(almost);
    let silent = |a: &mut Detector| events(a).iter().any(|event| matches!(event, Event::Verdict(_)));
    a.doubt(almost, 60_000 * MS);
    a.tick(almost + 2 * MS);
    assert!(!a.peer(2).unwrap().suspected && !silent(&mut a));
}
