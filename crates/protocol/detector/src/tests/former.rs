// SPDX-License-Identifier: Apache-2.0
//! Several processes of one name, one after the other: each is reported before its successor, or not at all.

use crate::config::tests::cluster;
use crate::*;
use fide_types::HostId;
use fide_wire::{Ack, Body, Builder, PAYLOAD_MAX, Packet, ProcessState, Roster};

const MS: u64 = 1_000_000;

fn plain(me: HostId) -> Detector {
    let config = Config { me, incarnation: 10, trust: Trust::Network, policy: Policy::Network, ..cluster(2) };
    Detector::new(config, 0).unwrap()
}

/// A process of host 2 with this name, in one of its heartbeats.
fn entry(slot: u8, incarnation: u32, state: ProcessState) -> Roster {
    Roster { slot, state, name: Some("db".parse().unwrap()), incarnation, pb_seq: 0, at_ns: incarnation.into() }
}

/// Host 2 sends these entries to host 1, one heartbeat after the other. Returns what host 1 reports: slots,
/// and whether their processes ended.
fn reported(heartbeats: &[&[Roster]]) -> Vec<(u8, bool)> {
    let mut detector = plain(1);
    for (seq, entries) in (1..).zip(heartbeats) {
        let mut bytes = [0u8; PAYLOAD_MAX];
        let mut builder = Builder::heartbeat(&mut bytes, 2, 10, seq).unwrap();
        // It has heard host 1, so this is no recording.
        builder.push_ack(Ack { incarnation: 10, seq_low: 0 }).unwrap();
        entries.iter().for_each(|entry| builder.roster(entry).unwrap());
        let len = builder.finish();
        detector.handle_packet(seq * MS, seq * MS, 0, &bytes[..len]).unwrap();
    }
    let about = |event| match event {
        Event::Up { host: 2, slot, .. } if slot != HOST => Some((slot, false)),
        Event::Verdict(Verdict { host: 2, slot, .. }) => Some((slot, true)),
        _ => None,
    };
    std::iter::from_fn(|| detector.poll_event()).filter_map(about).collect()
}

const HOST: u8 = fide_wire::HOST_SLOT;
const ALIVE: ProcessState = ProcessState::Alive;
const EXITED: ProcessState = ProcessState::Exited(0);

#[test]
fn succeeded_process_is_not_reported_up_after_its_successor() {
    let (old, new) = (7, 8);
    // In one heartbeat, in the order of the slots; and in two heartbeats.
    assert_eq!(reported(&[&[entry(0, new, ALIVE), entry(1, old, EXITED)]]), [(0, false)]);
    assert_eq!(reported(&[&[entry(0, new, ALIVE)], &[entry(1, old, EXITED)], &[entry(1, old, ALIVE)]]), [(0, false)]);
    // Even if its successor has ended by then.
    assert_eq!(reported(&[&[entry(0, new, EXITED)], &[entry(1, old, EXITED)]]), [(0, false), (0, true)]);
    // And the other way round.
    let both = [(1, false), (1, true), (0, false)];
    assert_eq!(reported(&[&[entry(1, old, ALIVE)], &[entry(1, old, EXITED), entry(0, new, ALIVE)]]), both);
    assert_eq!(reported(&[&[entry(1, old, EXITED)], &[entry(0, new, ALIVE)]]), both);
}

#[test]
fn succeeded_process_that_was_up_is_reported_dead_before_its_successor_is_up() {
    // The heartbeats with its end were lost, and it is no longer carried.
    assert_eq!(reported(&[&[entry(1, 7, ALIVE)], &[entry(0, 8, ALIVE)]]), [(1, false), (1, true), (0, false)]);
}

/// The processes in the next heartbeats: slots, and whether they ended.
fn said(detector: &mut Detector, heartbeats: u64) -> Vec<Vec<(u8, bool)>> {
    let mut bytes = [0u8; PAYLOAD_MAX];
    let mut all = Vec::new();
    while all.len() < heartbeats as usize {
        let now = detector.poll_timeout();
        detector.tick(now);
        let Some(sent) = detector.poll_transmit(now, &mut bytes) else { continue };
        if sent.kind != TransmitKind::Heartbeat {
            continue;
        }
        let packet = Packet::new(&bytes[..sent.len]).unwrap();
        let entry = |body: Body<'_>| match body {
            Body::Roster(roster) => Some((roster.slot, roster.state != ALIVE)),
            _ => None,
        };
        all.push(packet.bodies().filter_map(entry).collect());
    }
    all
}

/// Host 2 hears nobody; its process `db` has ended in slot 1, and another one is in slot 0.
fn succeeded() -> Detector {
    let mut detector = plain(2);
    let join = |detector: &mut Detector, name: &str| detector.join(0, name.parse().unwrap()).unwrap().slot;
    let ends = |detector: &mut Detector, slot| {
        detector.process_changed(1, slot, ProcessState::Exited(0), 1).unwrap();
    };
    assert_eq!((join(&mut detector, "other"), join(&mut detector, "db")), (0, 1));
    ends(&mut detector, 0);
    detector.restart(2, 11).unwrap();
    ends(&mut detector, 1);
    assert_eq!(join(&mut detector, "db"), 0);
    detector
}

/// Heartbeat `seq` of host 1, at which host 2 is up.
fn is_heard(detector: &mut Detector, seq: u64) {
    let mut bytes = [0u8; PAYLOAD_MAX];
    let mut builder = Builder::heartbeat(&mut bytes, 1, 10, seq).unwrap();
    builder.push_ack(Ack { incarnation: 11, seq_low: 0 }).unwrap();
    let len = builder.finish();
    let now = detector.poll_timeout();
    detector.handle_packet(now, now, 0, &bytes[..len]).unwrap();
}

#[test]
fn end_is_sent_before_the_successor() {
    let mut detector = plain(2);
    is_heard(&mut detector, 1);
    let mut detector = {
        let mut again = succeeded();
        is_heard(&mut again, 1);
        detector = again;
        detector
    };
    for sections in said(&mut detector, 5) {
        let (old, new) = (sections.iter().position(|said| said.0 == 1), sections.iter().position(|said| said.0 == 0));
        assert!(new.is_some() && old.is_none_or(|old| old < new.unwrap()), "{sections:?}");
    }
}

#[test]
fn new_listener_gets_no_succeeded_process() {
    let mut detector = succeeded();
    // No peer listens, so it is sent to none.
    said(&mut detector, 3);
    is_heard(&mut detector, 1);
    assert_eq!(said(&mut detector, 2), [vec![(0, false)], vec![(0, false)]]);
}
