// SPDX-License-Identifier: Apache-2.0
//! A machine that was put back to a snapshot, or has a clone: peers acknowledge heartbeats that it has yet to
//! send.

use fide_wire::{Ack, Builder, PAYLOAD_MAX};

use super::named::Hosts;
use crate::config::tests::cluster;
use crate::*;

const MS: u64 = 1_000_000;
const ME: Ack = Ack { incarnation: 10, seq_low: 3 };

/// Incarnation 10 of host 1, which host 2 has answered, after 3 heartbeats.
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
fn acknowledgement_of_a_sent_heartbeat_is_no_sign() {
    let mut host = host();
    host.handle_packet(3 * MS, 3 * MS, 0, &heartbeat(2, ME)).unwrap();
    host.handle_packet(3 * MS, 3 * MS, 0, &heartbeat(3, Ack { incarnation: 9, seq_low: 77 })).unwrap();
    assert!(!host.is_put_back() && !host.is_excluded());
}

#[test]
fn acknowledgement_of_an_unsent_heartbeat_fences_for_good() {
    let mut host = host();
    host.handle_packet(3 * MS, 3 * MS, 0, &heartbeat(2, Ack { seq_low: 4, ..ME })).unwrap();
    assert!(events(&mut host).contains(&Event::PutBack { by: 2, incarnation: 10 }));
    assert!(host.is_put_back() && host.is_excluded());
    assert_eq!(host.lease_until_ns(), 0);
    assert!(host.poll_transmit(9 * MS, &mut [0; PAYLOAD_MAX]).is_none());
    let taken_over = Detector::from_bytes(&host.to_bytes()).unwrap();
    assert!(taken_over.is_put_back(), "an agent that takes over knows it too");
}

#[test]
fn acknowledgement_of_a_later_incarnation_fences_for_good() {
    let mut host = host();
    host.handle_packet(3 * MS, 3 * MS, 0, &heartbeat(2, Ack { incarnation: 11, seq_low: 1 })).unwrap();
    assert!(events(&mut host).contains(&Event::PutBack { by: 2, incarnation: 10 }));
}

/// Host 2 as `incarnation` acknowledges a later life of host 1.
fn later_life(incarnation: u32, seq: u64) -> Vec<u8> {
    let mut buf = [0; PAYLOAD_MAX];
    let mut builder = Builder::heartbeat(&mut buf, 2, incarnation, seq).unwrap();
    builder.push_ack(Ack { incarnation: 11, seq_low: 7 }).unwrap();
    builder.push_ack(Ack::default()).unwrap();
    let len = builder.finish();
    buf[..len].to_vec()
}

fn beat(incarnation: u32, ack_incarnation: u32) -> Beat {
    Beat {
        peer: 2,
        plane: 0,
        incarnation,
        seq: 2,
        rx_ns: 3 * MS,
        received: 2,
        ack_incarnation,
        ack_seq_low: 9,
        promise_us: 1000,
        view: None,
    }
}

/// For each way in: does the acknowledgement of a later life by `incarnation` of host 2 show that the machine
/// was put back?
fn shown_by(host: impl Fn() -> Detector, incarnation: u32) -> [bool; 3] {
    shown_in(host, incarnation, 2)
}

fn shown_in(host: impl Fn() -> Detector, incarnation: u32, seq: u64) -> [bool; 3] {
    let mut hosts = [host(), host(), host()];
    let _ = hosts[0].handle_packet(3 * MS, 3 * MS, 0, &later_life(incarnation, seq));
    let _ = hosts[1].handle_sections(3 * MS, 3 * MS, 0, &later_life(incarnation, seq));
    let _ = hosts[2].handle_beat(3 * MS, &Beat { seq, ..beat(incarnation, 11) });
    hosts.map(|host| host.is_put_back())
}

/// A peer that has restarted since does not answer this incarnation, as it heard a later one. Its heartbeats
/// are no signs of life here.
#[test]
fn acknowledgement_of_a_later_incarnation_by_a_restarted_peer_is_a_sign() {
    assert_eq!(shown_by(host, 21), [true; 3]);
    // Even after something else of that incarnation was heard.
    let newer_unanswered = || {
        let mut host = host();
        let mut silent = beat(21, 0);
        silent.ack_seq_low = 0;
        host.handle_beat(3 * MS, &silent).unwrap();
        assert!(!host.is_put_back());
        host
    };
    assert_eq!(shown_by(newer_unanswered, 21), [true; 3]);
}

/// A host that lost its memory, and whose former incarnation was ahead of its clock, is not put back.
/// Recordings of its peers from the time of that incarnation fence nobody.
#[test]
fn recordings_of_a_later_former_life_are_no_sign() {
    // Recordings of earlier incarnations of peers, after they have answered.
    assert_eq!(shown_by(host, 19), [false; 3]);
    // And before they have.
    let unanswered = || Detector::new(Config { me: 1, incarnation: 10, ..cluster(3) }, 0).unwrap();
    for incarnation in [19, 20, 21] {
        assert_eq!(shown_by(unanswered, incarnation), [false; 3], "#{incarnation} of host 2");
    }
}

/// Peers that remember the former incarnation make the host restart above that one. They may declare it dead
/// at different times; the host must not come back as the same incarnation.
#[test]
fn host_that_lost_its_memory_comes_back_above_its_former_incarnation() {
    for (trust, policy) in
        [(Trust::Network, Policy::Network), (Trust::Lease, Policy::Network), (Trust::Lease, Policy::Majority)]
    {
        for (start, slower) in [(4, 1), (4, 2), (8, 2), (9, 2), (4, 5), (9, 5)] {
            let mut hosts = Hosts::new(trust, policy, 1);
            let timeout_ns = hosts.nodes[2].as_ref().unwrap().peer(1).unwrap().timeout_ns;
            hosts.nodes[2].as_mut().unwrap().set_timeout(0, 1, slower * timeout_ns).unwrap();
            (0..50).for_each(|_| hosts.round(0));
            hosts.nodes[0] = None;
            (0..3).for_each(|_| hosts.round(0));
            hosts.incarnations[0] = start;
            hosts.start(0);
            let case = format!("{trust:?} {policy:?}, from {start}, h3 waits {slower} times as long");
            for _ in 0..2000 {
                hosts.round(0);
                let host = hosts.nodes[0].as_ref().unwrap();
                assert!(!host.is_put_back(), "{case}");
            }
            let up = |at: usize, id| hosts.nodes[at].as_ref().unwrap().peer(id).unwrap().state == PeerState::Up;
            assert!(up(0, 2) && up(0, 3) && up(1, 1) && up(2, 1), "{case}");
            assert_eq!(hosts.incarnations[0], 12, "{case}");
        }
    }
}

/// The peer has lived on, and has answered this incarnation since.
#[test]
fn recordings_of_a_peer_before_its_answer_are_no_sign() {
    let answered_late = || {
        let mut host = Detector::new(Config { me: 1, incarnation: 10, ..cluster(3) }, 0).unwrap();
        host.handle_packet(0, 0, 0, &heartbeat(9000, Ack { seq_low: 0, ..ME })).unwrap();
        host
    };
    assert_eq!(shown_in(answered_late, 20, 5000), [false; 3]);
    assert_eq!(shown_in(answered_late, 20, 9001), [true; 3]);
}

/// A peer has only named this incarnation as dead: the later one belongs to a state directory that was lost.
#[test]
fn word_of_a_peer_that_excludes_this_incarnation_is_no_sign() {
    let named = || {
        let mut host = Detector::new(Config { me: 1, incarnation: 10, ..cluster(3) }, 0).unwrap();
        host.handle_packet(0, 0, 0, &excluding(9000)).unwrap();
        host
    };
    assert_eq!(shown_in(named, 20, 9001), [false; 3]);
}

/// Its agent was restarted before, and restarts again some time after it has heard that it is excluded.
#[test]
fn host_that_lost_its_memory_comes_back_above_a_dead_incarnation() {
    for (trust, policy) in
        [(Trust::Network, Policy::Network), (Trust::Lease, Policy::Network), (Trust::Lease, Policy::Majority)]
    {
        for pause in [0, 1, 2, 5, 30] {
            let mut hosts = Hosts::new(trust, policy, 1);
            (0..50).for_each(|_| hosts.round(0));
            hosts.start(0);
            (0..50).for_each(|_| hosts.round(0));
            (hosts.incarnations[0], hosts.restarts_after) = (4, pause);
            hosts.start(0);
            for _ in 0..2000 {
                hosts.round(0);
                assert!(!hosts.nodes[0].as_ref().unwrap().is_put_back(), "{policy:?}, {pause} ms later");
            }
            let up = |at: usize, id| hosts.nodes[at].as_ref().unwrap().peer(id).unwrap().state == PeerState::Up;
            assert!(up(0, 2) && up(0, 3) && up(1, 1) && up(2, 1), "{policy:?}, {pause} ms later");
            assert!(hosts.incarnations[0] > 12);
        }
    }
}

/// Host 2 names host 1 as excluded, which is an answer.
fn excluding(seq: u64) -> Vec<u8> {
    let mut buf = [0; PAYLOAD_MAX];
    let mut builder = Builder::heartbeat(&mut buf, 2, 20, seq).unwrap();
    builder.push_ack(Ack::default()).unwrap();
    builder.push_ack(Ack::default()).unwrap();
    builder.excluded([(1, 10)].into_iter()).unwrap();
    let len = builder.finish();
    buf[..len].to_vec()
}

/// Host 1 after `count` more heartbeats.
fn host_after(count: u64) -> Detector {
    let mut host = host();
    host.skip_heartbeats(count);
    host
}

/// A snapshot may be old, although acknowledgements show only the lower half of a number.
#[test]
fn snapshot_from_weeks_ago_is_detected() {
    // Heartbeats since the snapshot; of 1 ms each, they are 25, 37 and 49 days.
    for since in [(1u64 << 31) - 3, 1 << 31, (1 << 31) + (1 << 30), (1 << 32) - 1] {
        let mut host = host();
        host.handle_packet(3 * MS, 3 * MS, 0, &heartbeat(2, ME)).unwrap();
        // Some time after its return, and from a peer with a clock of its own.
        host.skip_heartbeats(5000);
        #[allow(clippy::cast_possible_truncation, reason = "the lower half")]
        let seq_low = (3 + since) as u32;
        let peer_seq = 2 + since - since / 1000;
        host.handle_packet(4 * MS, 4 * MS, 0, &heartbeat(peer_seq, Ack { seq_low, ..ME })).unwrap();
        assert!(host.is_put_back(), "{since}");
    }
}

/// No host judges it, and it hears none: it repeats what it heard before the snapshot, until its numbers are
/// as far as they were, and beyond.
#[test]
fn word_of_a_put_back_peer_that_hears_nobody_is_no_sign() {
    for (back, deaf) in
        [(1u64 << 10, 1u64), (1 << 20, 1), (1 << 21, 1), (1 << 30, 1 << 30), ((1 << 31) - 9, 9), (1 << 31, 1 << 30)]
    {
        let mut host = host_after(1 << 31);
        let acked = |count: u64| {
            #[allow(clippy::cast_possible_truncation, reason = "the lower half")]
            let seq_low = ((1 << 31) + 3 - count) as u32;
            Ack { seq_low, ..ME }
        };
        host.handle_packet(3 * MS, 3 * MS, 0, &heartbeat(1 << 33, acked(0))).unwrap();
        host.skip_heartbeats(back);
        for further in [1, deaf / 2 + 2, deaf + 3] {
            host.handle_packet(4 * MS, 4 * MS, 0, &heartbeat((1 << 33) + further, acked(back))).unwrap();
            assert!(!host.is_put_back(), "{back} back, deaf since {further} more than that");
            host.skip_heartbeats(deaf / 2);
        }
    }
}

/// The peer has restarted since it heard the unsent heartbeat.
#[test]
fn word_of_a_restarted_peer_is_a_sign() {
    for (sent, since) in [(3, (1u64 << 32) - 9), (3, 1 << 31), (1 << 31, 1 << 30), ((1 << 31) + 3, 1)] {
        let mut host = host_after(sent - 3);
        #[allow(clippy::cast_possible_truncation, reason = "the lower half")]
        let [now, then] = [sent, sent + since].map(|number| number as u32);
        host.handle_packet(3 * MS, 3 * MS, 0, &heartbeat(2, Ack { seq_low: now, ..ME })).unwrap();
        host.handle_beat(3 * MS, &Beat { seq: 1, ack_incarnation: 0, ack_seq_low: 0, ..beat(21, 0) }).unwrap();
        assert!(!host.is_put_back());
        host.handle_beat(4 * MS, &Beat { seq: 1 << 30, ack_seq_low: then, ..beat(21, 10) }).unwrap();
        assert!(host.is_put_back(), "{since} after {sent}");
    }
}

/// The peer was put back, hears nobody, and restarts as another incarnation, which repeats what it heard
/// before the snapshot.
#[test]
fn word_of_a_put_back_and_restarted_peer_is_no_sign() {
    for back in [1u64 << 20, 1 << 30, (1 << 31) + (1 << 20), 3 << 30] {
        let mut host = host_after(1 << 30);
        let acked = Ack { seq_low: (1 << 30) + 3, ..ME };
        host.handle_packet(3 * MS, 3 * MS, 0, &heartbeat(1 << 30, acked)).unwrap();
        host.skip_heartbeats(back);
        #[allow(clippy::cast_possible_truncation, reason = "the lower half")]
        let seq_low = ((1 << 30) + 3 + back) as u32;
        host.handle_packet(4 * MS, 4 * MS, 0, &heartbeat((1 << 30) + back, Ack { seq_low, ..ME })).unwrap();
        for seq in 1..4 {
            let old = Beat { seq: (1 << 30) + seq, ack_seq_low: acked.seq_low, ..beat(21, 10) };
            host.handle_beat(5 * MS, &old).unwrap();
            assert!(!host.is_put_back(), "{back} back");
        }
    }
}

/// The peer acknowledges what it heard long ago, until it has heard this host again.
#[test]
fn word_of_a_put_back_peer_is_no_sign() {
    let peer = || {
        let mut host = host_after(1 << 31);
        let now = Ack { seq_low: (1 << 31) + 3, ..ME };
        host.handle_packet(3 * MS, 3 * MS, 0, &heartbeat(9000, now)).unwrap();
        assert!(!host.is_put_back());
        host
    };
    let (mut packet, mut sections, mut beats) = (peer(), peer(), peer());
    let _ = packet.handle_packet(4 * MS, 4 * MS, 0, &heartbeat(5000, ME));
    let _ = sections.handle_sections(4 * MS, 4 * MS, 0, &heartbeat(5000, ME));
    let old = Beat { seq: 5000, rx_ns: 4 * MS, ack_seq_low: 3, ..beat(20, 10) };
    let _ = beats.handle_beat(4 * MS, &old);
    assert_eq!([packet, sections, beats].map(|host| host.is_put_back()), [false; 3]);
}

/// No host judges an observer that was stopped together with its clocks: it repeats once what it heard
/// before.
#[test]
fn word_of_a_peer_stopped_for_weeks_is_no_sign() {
    for since in [1u64 << 20, 1 << 30, (1 << 31) + 1, (1 << 32) - 9, (1 << 32) + 9] {
        for acked in [0, 3] {
            let mut host = host();
            host.handle_packet(3 * MS, 3 * MS, 0, &heartbeat(2, Ack { seq_low: acked, ..ME })).unwrap();
            host.skip_heartbeats(since);
            host.handle_packet(4 * MS, 4 * MS, 0, &heartbeat(3, ME)).unwrap();
            assert!(!host.is_put_back(), "{since} heartbeats later, {acked}");
            // The peer hears this host again.
            #[allow(clippy::cast_possible_truncation, reason = "the lower half")]
            let seq_low = (3 + since) as u32;
            host.handle_packet(5 * MS, 5 * MS, 0, &heartbeat(4, Ack { seq_low, ..ME })).unwrap();
            assert!(!host.is_put_back());
            // Then it acknowledges a heartbeat that is yet to be sent.
            host.handle_packet(6 * MS, 6 * MS, 0, &heartbeat(5, Ack { seq_low: seq_low + 2, ..ME })).unwrap();
            assert!(host.is_put_back(), "{since} heartbeats later, {acked}");
        }
    }
}

/// A restarted host goes on counting its heartbeats.
#[test]
fn sequence_numbers_of_a_former_incarnation_are_no_sign() {
    let mut host = host_after(1 << 31);
    host.apply(3 * MS, crate::view::Outcome::Excluded, 2);
    host.restart(3 * MS, 12).unwrap();
    let of_now = |seq, seq_low| heartbeat(seq, Ack { incarnation: 12, seq_low });
    let mut buf = [0; PAYLOAD_MAX];
    host.poll_transmit(5 * MS, &mut buf).expect("a heartbeat");
    host.handle_packet(5 * MS, 5 * MS, 0, &of_now(2, (1 << 31) + 4)).unwrap();
    assert!(!host.is_put_back());
    host.handle_packet(6 * MS, 6 * MS, 0, &of_now(3, (1 << 31) + 5)).unwrap();
    assert!(host.is_put_back());
}

/// The lower half of heartbeat number 2^32 is 0, as in an acknowledgement of none.
#[test]
fn acknowledgement_of_no_heartbeat_gives_no_lease() {
    let mut host = host_after((1 << 32) - 4);
    let mut buf = [0; PAYLOAD_MAX];
    for beat in 3..6 {
        host.poll_transmit(beat * MS, &mut buf).expect("a heartbeat");
    }
    assert!(host.last_seq() > 1 << 32);
    let before = (host.lease_until_ns(), host.held_up_by());
    host.handle_packet(6 * MS, 6 * MS, 0, &heartbeat(2, Ack { seq_low: 0, ..ME })).unwrap();
    assert_eq!((host.lease_until_ns(), host.held_up_by()), before);
}

/// The machine was excluded before it hears the sign. It does not restart by itself either.
#[test]
fn sign_after_the_exclusion_counts() {
    let mut host = host();
    let mut silent = heartbeat(2, Ack::default());
    host.handle_packet(3 * MS, 3 * MS, 0, &silent).unwrap();
    host.apply(3 * MS, crate::view::Outcome::Excluded, 2);
    assert!(host.is_excluded() && !host.is_put_back());
    silent = heartbeat(3, Ack { incarnation: 11, seq_low: 1 });
    let _ = host.handle_packet(4 * MS, 4 * MS, 0, &silent);
    assert!(host.is_put_back());
    assert!(events(&mut host).contains(&Event::PutBack { by: 2, incarnation: 10 }));
    assert_eq!(host.restart(5 * MS, 12), Err(RestartError::PutBack));
    assert_eq!((host.config().incarnation, host.is_excluded(), host.lease_until_ns()), (10, true, 0));
}

#[test]
fn beat_of_the_receive_program_is_a_sign() {
    let mut host = host();
    host.handle_beat(3 * MS, &beat(20, 10)).unwrap();
    assert!(host.is_put_back());
}

#[cfg(feature = "planted")]
#[test]
fn planted_faults_miss_that_a_machine_was_put_back() {
    use fide_types::planted::Planted::*;
    assert!(super::fails_with(MissesItself, beat_of_the_receive_program_is_a_sign));
    assert!(super::fails_with(MissesItself, acknowledgement_of_an_unsent_heartbeat_fences_for_good));
    let not_yet_known = acknowledgement_of_a_later_incarnation_by_a_restarted_peer_is_a_sign;
    assert!(super::fails_with(HeedsTheKnownOnly, not_yet_known));
    assert!(super::fails_with(HeedsRecordings, recordings_of_a_later_former_life_are_no_sign));
    assert!(super::fails_with(HeedsTheOld, recordings_of_a_peer_before_its_answer_are_no_sign));
    assert!(super::fails_with(PassesThroughFormers, host_that_lost_its_memory_comes_back_above_its_former_incarnation));
    assert!(super::fails_with(TakesBehindForAhead, word_of_a_put_back_peer_that_hears_nobody_is_no_sign));
    assert!(super::fails_with(CountsFromNow, word_of_a_peer_stopped_for_weeks_is_no_sign));
    assert!(super::fails_with(TakesNothingForANumber, acknowledgement_of_no_heartbeat_gives_no_lease));
    assert!(super::fails_with(TakesNamingForHearing, word_of_a_peer_that_excludes_this_incarnation_is_no_sign));
    assert!(super::fails_with(ExcludedOnly, sign_after_the_exclusion_counts));
}
