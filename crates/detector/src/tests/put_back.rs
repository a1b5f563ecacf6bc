// SPDX-License-Identifier: Apache-2.0
//! A machine that was put back to a snapshot, or has a clone: others acknowledge what it has yet to send.

use fide_wire::{Ack, Builder, PAYLOAD_MAX};

use crate::config::tests::cluster;
use crate::*;

const MS: u64 = 1_000_000;
const ME: Ack = Ack { incarnation: 10, seq_low: 3 };

/// Host 1, incarnation 10, which host 2 has answered, and which has sent 3 heartbeats.
fn host() -> Detector {
    let mut host = Detector::new(Config { me: 1, incarnation: 10, ..cluster(3) }, 0).unwrap();
    host.handle_packet(0, 0, 0, &heartbeat(1, Ack { seq_low: 0, ..ME })).unwrap();
    let mut buf = [0; PAYLOAD_MAX];
    for beat in 0..3 {
        host.poll_transmit(beat * MS, &mut buf).expect("a heartbeat");
    }
    while host.poll_event().is_some() {}
    host
}

fn heartbeat(seq: u64, ack: Ack) -> Vec<u8> {
    let mut buf = [0; PAYLOAD_MAX];
    let mut builder = Builder::heartbeat(&mut buf, 2, 20, seq).unwrap();
    builder.push_ack(ack).unwrap();
    builder.push_ack(Ack::default()).unwrap();
    let len = builder.finish();
    buf[..len].to_vec()
}

fn events(host: &mut Detector) -> Vec<Event> {
    std::iter::from_fn(|| host.poll_event()).collect()
}

#[test]
fn acknowledgement_of_what_was_sent_says_nothing() {
    let mut host = host();
    host.handle_packet(3 * MS, 3 * MS, 0, &heartbeat(2, ME)).unwrap();
    host.handle_packet(3 * MS, 3 * MS, 0, &heartbeat(3, Ack { incarnation: 9, seq_low: 77 })).unwrap();
    assert!(!host.is_put_back() && !host.is_excluded());
}

#[test]
fn acknowledgement_of_a_heartbeat_yet_to_be_sent_fences_the_host_for_good() {
    let mut host = host();
    host.handle_packet(3 * MS, 3 * MS, 0, &heartbeat(2, Ack { seq_low: 4, ..ME })).unwrap();
    assert!(events(&mut host).contains(&Event::PutBack { by: 2, incarnation: 10 }));
    assert!(host.is_put_back() && host.is_excluded());
    assert_eq!(host.lease_until_ns(), 0);
    assert!(host.poll_transmit(9 * MS, &mut [0; PAYLOAD_MAX]).is_none());
    let taken_over = Detector::from_bytes(&host.to_bytes()).unwrap();
    assert!(taken_over.is_put_back(), "whoever takes over knows it, too");
}

#[test]
fn acknowledgement_of_a_later_incarnation_fences_the_host_for_good() {
    let mut host = host();
    host.handle_packet(3 * MS, 3 * MS, 0, &heartbeat(2, Ack { incarnation: 11, seq_low: 1 })).unwrap();
    assert!(events(&mut host).contains(&Event::PutBack { by: 2, incarnation: 10 }));
}

/// A peer that has begun anew since does not answer this incarnation, which it heard as a later one: its heartbeats are no signs of life here.
#[test]
fn acknowledgement_of_a_later_incarnation_by_one_not_yet_known_shows_it_too() {
    let later = |incarnation| {
        let mut buf = [0; PAYLOAD_MAX];
        let mut builder = Builder::heartbeat(&mut buf, 2, incarnation, 1).unwrap();
        builder.push_ack(Ack { incarnation: 11, seq_low: 7 }).unwrap();
        builder.push_ack(Ack::default()).unwrap();
        let len = builder.finish();
        buf[..len].to_vec()
    };
    for incarnation in [19, 21] {
        let mut packet_read = host();
        let _ = packet_read.handle_packet(3 * MS, 3 * MS, 0, &later(incarnation));
        assert!(packet_read.is_put_back(), "#{incarnation} of host 2");
        let mut sections_read = host();
        let _ = sections_read.handle_sections(3 * MS, 3 * MS, 0, &later(incarnation));
        assert!(sections_read.is_put_back(), "#{incarnation} of host 2");
    }
}

#[test]
fn beat_of_the_receive_program_shows_it_too() {
    let mut host = host();
    let beat = Beat {
        peer: 2,
        plane: 0,
        incarnation: 20,
        seq: 2,
        rx_ns: 3 * MS,
        received: 2,
        ack_incarnation: 10,
        ack_seq_low: 9,
        promise_us: 1000,
        view: None,
    };
    host.handle_beat(3 * MS, &beat).unwrap();
    assert!(host.is_put_back());
}

#[cfg(feature = "planted")]
#[test]
fn planted_faults_miss_that_a_machine_was_put_back() {
    use crate::planted::Planted::{HeedsTheKnownOnly, MissesItself};
    assert!(super::fails_with(MissesItself, beat_of_the_receive_program_shows_it_too));
    assert!(super::fails_with(MissesItself, acknowledgement_of_a_heartbeat_yet_to_be_sent_fences_the_host_for_good));
    let not_yet_known = acknowledgement_of_a_later_incarnation_by_one_not_yet_known_shows_it_too;
    assert!(super::fails_with(HeedsTheKnownOnly, not_yet_known));
}
