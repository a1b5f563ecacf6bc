// SPDX-License-Identifier: Apache-2.0
//! One property at a time, and arbitrary packets.

use crate::config::tests::cluster;
use crate::events::{EVENTS_MAX, EVENTS_RESERVE};
use crate::piggyback::{POOL_MAX, QUEUE_MAX, REORDER_MAX};
use crate::roster::Remote;
use crate::*;
use fide_types::HostId;
use fide_wire::{Ack, Body, Builder, HOST_SLOT, MAX_HOSTS, NOTICE_LEN, PAYLOAD_MAX, Packet, ProcessState, set_plane};
use proptest::prelude::*;

const MS: u64 = 1_000_000;

fn plain(me: HostId) -> Detector {
    let config = Config { me, incarnation: 10, trust: Trust::Network, policy: Policy::Network, ..cluster(3) };
    Detector::new(config, 0).unwrap()
}

/// A heartbeat of `sender`, with more put in by `fill`.
fn heartbeat(sender: HostId, incarnation: u32, seq: u64, fill: impl FnOnce(&mut Builder<'_>)) -> Vec<u8> {
    let mut buf = [0u8; PAYLOAD_MAX];
    let mut b = Builder::heartbeat(&mut buf, sender, incarnation, seq).unwrap();
    // The acknowledgements of an observer that has answered incarnation 10 of host 1.
    b.push_ack(Ack { incarnation: 10, seq_low: 0 }).unwrap();
    b.push_ack(Ack::default()).unwrap();
    fill(&mut b);
    let len = b.finish();
    buf[..len].to_vec()
}

fn process(slot: u8, state: ProcessState, pb_seq: u32, at_ns: u64) -> fide_wire::Roster {
    let name = Some(format!("p{slot}").parse().unwrap());
    fide_wire::Roster { slot, state, name, incarnation: 7, pb_seq, at_ns }
}

fn events(d: &mut Detector) -> Vec<Event> {
    std::iter::from_fn(|| d.poll_event()).collect()
}

fn verdicts(d: &mut Detector) -> Vec<(u16, u8, Reason)> {
    let verdict = |e| if let Event::Verdict(v) = e { Some((v.host, v.slot, v.reason)) } else { None };
    events(d).into_iter().filter_map(verdict).collect()
}

/// Everything but the counters, and which incarnations are named as excluded.
fn digest(d: &Detector) -> String {
    let fixed = (&d.events, &d.views, &d.lease, d.is_excluded(), d.last_seq());
    let peers: Vec<_> = d.peers.others().map(|peer| peer.clone().without_exclusion()).collect();
    format!("{fixed:?} {peers:?} {:?}", d.remotes)
}

#[test]
fn heartbeats_keep_an_absolute_schedule_and_never_burst() {
    let mut d = plain(1);
    let mut buf = [0u8; PAYLOAD_MAX];
    assert_eq!(d.poll_transmit(0, &mut buf).map(|t| t.seq), Some(1));
    assert!(d.poll_transmit(MS - 1, &mut buf).is_none());
    assert_eq!(d.poll_timeout(), MS);
    assert_eq!(d.poll_transmit(MS + 300_000, &mut buf).map(|t| t.seq), Some(2));
    assert_eq!(d.poll_timeout(), 2 * MS, "late once, then on schedule again");
    assert_eq!(d.poll_transmit(5 * MS + 1, &mut buf).map(|t| t.seq), Some(3));
    assert!(d.poll_transmit(5 * MS + 2, &mut buf).is_none());
    assert_eq!((d.counters().heartbeats_skipped, d.counters().heartbeats_sent), (3, 3));
    assert_eq!(d.poll_timeout(), 6 * MS);
}

#[test]
fn notice_goes_before_any_heartbeat() {
    let mut d = plain(1);
    let mut buf = [0u8; PAYLOAD_MAX];
    let slot = d.join(0, "a".parse().unwrap()).unwrap().slot;
    d.poll_transmit(0, &mut buf).unwrap();
    d.process_changed(100, slot, ProcessState::Killed(9), 99).unwrap();
    assert_eq!(d.poll_timeout(), 0, "at once");
    let notice = d.poll_transmit(2 * MS, &mut buf).unwrap();
    assert_eq!((notice.kind, notice.len, notice.seq), (TransmitKind::Notice, NOTICE_LEN, 1));
    assert_eq!(d.poll_transmit(2 * MS, &mut buf).unwrap().kind, TransmitKind::Heartbeat);
    let again = d.process_changed(100, slot, ProcessState::Alive, 99);
    assert_eq!(again, Err(ProcessError::Ended { slot }));
    assert_eq!(d.process_changed(0, 9, ProcessState::Left, 0), Err(ProcessError::NotJoined { slot: 9 }));
    assert_eq!(d.process_changed(0, slot, ProcessState::HostSilent, 0), Err(ProcessError::NotForLocal));
}

#[test]
fn stalled_and_recovered_processes_cause_no_extra_packet() {
    let mut d = plain(1);
    let mut buf = [0u8; PAYLOAD_MAX];
    let slot = d.join(0, "a".parse().unwrap()).unwrap().slot;
    let mut observer = plain(2);
    // The two hosts come to know each other.
    for now in [0, MS, 2 * MS, 3 * MS] {
        let len = d.poll_transmit(now, &mut buf).unwrap().len;
        observer.handle_packet(now, now, 0, &buf[..len]).unwrap();
        let len = observer.poll_transmit(now, &mut buf).unwrap().len;
        d.handle_packet(now, now, 0, &buf[..len]).unwrap();
    }
    let start = 3 * MS;
    d.tick(start);
    for (at, state) in [(100, ProcessState::Stalled), (200, ProcessState::Alive), (300, ProcessState::Stalled)] {
        d.process_changed(start + at, slot, state, start + at).unwrap();
        assert_eq!(d.poll_timeout(), start + MS, "with the next heartbeat");
        assert!(d.poll_transmit(start + at + 1, &mut buf).is_none());
    }
    let now = start + MS;
    let (heartbeat, before) = (d.poll_transmit(now, &mut buf).unwrap(), d.counters().notices_sent);
    assert_eq!((heartbeat.kind, before), (TransmitKind::Heartbeat, 0));
    observer.handle_packet(now, now, 0, &buf[..heartbeat.len]).unwrap();
    assert_eq!(verdicts(&mut observer), vec![(1, slot, Reason::Stalled)]);
    d.process_changed(now, slot, ProcessState::Killed(9), now).unwrap();
    assert_eq!(d.poll_transmit(now, &mut buf).unwrap().kind, TransmitKind::Notice);
}

#[test]
fn timer_hint_is_not_a_verdict() {
    let mut d = plain(1);
    d.handle_packet(0, 0, 0, &heartbeat(2, 5, 1, |_| {})).unwrap();
    for now in (0..5 * MS).step_by(100_000) {
        d.timer_fired(now);
    }
    assert_eq!(verdicts(&mut d), vec![]);
    d.timer_fired(5 * MS);
    assert_eq!(verdicts(&mut d), vec![(2, HOST_SLOT, Reason::HostSilent)]);
    assert_eq!(d.counters().timer_hints, 51);
}

#[test]
fn peers_never_heard_are_never_judged() {
    let mut d = plain(1);
    for now in (0..100 * MS).step_by(500_000) {
        d.tick(now);
    }
    assert_eq!(verdicts(&mut d), vec![]);
    assert_eq!(d.peer(2).unwrap().state, PeerState::Unknown);
    assert_eq!((d.peer(1), d.peer(4), d.peer(0)), (None, None, None));
}

#[test]
fn refused_packet_changes_nothing() {
    let mut d = plain(1);
    d.handle_packet(0, 0, 0, &heartbeat(2, 5, 100, |b| b.roster(&process(0, ProcessState::Alive, 0, 1)).unwrap()))
        .unwrap();
    d.handle_packet(0, 0, 0, &heartbeat(3, 8, 1, |_| {})).unwrap();
    for now in (0..=5 * MS).step_by(500_000) {
        d.handle_packet(now, now, 0, &heartbeat(2, 5, 101 + now / 500_000, |_| {})).unwrap();
        d.tick(now);
    }
    events(&mut d);
    assert_eq!(d.peer(3).unwrap().state, PeerState::Dead);
    let now = 6 * MS;
    let kill = |b: &mut Builder<'_>| b.roster(&process(0, ProcessState::Killed(0), 0, 2)).unwrap();
    let mut wrong_plane = heartbeat(2, 5, 200, kill);
    set_plane(&mut wrong_plane, 1);
    let mut few = [0u8; PAYLOAD_MAX];
    let len = Builder::heartbeat(&mut few, 2, 5, 200).unwrap().finish();
    let cases: Vec<(Vec<u8>, Refusal)> = vec![
        (heartbeat(2, 5, 105, kill), Refusal::Replayed { host: 2, seq: 105 }),
        (heartbeat(2, 5, 30, kill), Refusal::Replayed { host: 2, seq: 30 }),
        (heartbeat(2, 4, 500, kill), Refusal::StaleIncarnation { host: 2, incarnation: 4, current: 5 }),
        (heartbeat(3, 8, 2, kill), Refusal::DeadIncarnation { host: 3, incarnation: 8 }),
        (heartbeat(1, 9, 1, kill), Refusal::OwnId { host: 1 }),
        (heartbeat(9, 9, 1, kill), Refusal::NotAMember { host: 9 }),
        (wrong_plane, Refusal::WrongPlane { sent: 1, arrived: 0 }),
        (few[..len].to_vec(), Refusal::Members { got: 0, want: 2 }),
    ];
    for (bytes, refusal) in cases {
        let before = digest(&d);
        assert_eq!(d.handle_packet(now, now, 0, &bytes), Err(refusal));
        assert_eq!(digest(&d), before, "{refusal}");
    }
    let c = d.counters();
    assert_eq!((c.refused_replayed, c.refused_stale_incarnation, c.refused_dead_incarnation), (2, 1, 1));
    // Nor is a notice of an incarnation never heard accepted.
    let mut buf = [0u8; PAYLOAD_MAX];
    let len = Builder::notice(&mut buf, 2, 6, 1, &process(0, ProcessState::Killed(0), 0, 1)).unwrap();
    assert!(d.handle_packet(now, now, 0, &buf[..len]).is_err());
    assert_eq!(d.peer(2).unwrap().incarnation, 5);
    // The excluded incarnation learns of it.
    let t = d.poll_transmit(now, &mut buf).unwrap();
    let packet = Packet::new(&buf[..t.len]).unwrap();
    assert!(packet.bodies().any(|b| matches!(b, Body::Excluded(e) if e.iter().any(|e| e == (3, 8)))));
}

#[test]
fn beats_may_skip_and_repeat_and_count_losses() {
    let mut d = plain(1);
    let beat = |seq, rx_ns, received| Beat {
        peer: 2,
        plane: 0,
        incarnation: 5,
        seq,
        rx_ns,
        received,
        ack_incarnation: 10,
        ack_seq_low: 0,
        promise_us: 0,
        view: None,
    };
    d.handle_beat(0, &beat(3, 0, 1)).unwrap();
    d.handle_beat(10, &beat(3, 0, 1)).unwrap();
    d.handle_beat(MS, &beat(9, MS, 5)).unwrap();
    let peer = d.peer(2).unwrap();
    assert_eq!((peer.last_seq, peer.received[0], peer.lost[0], peer.state), (9, 5, 2, PeerState::Up));
    assert!(matches!(d.handle_beat(0, &Beat { plane: 7, ..beat(1, 0, 0) }), Err(Refusal::WrongPlane { .. })));
    assert!(matches!(
        d.handle_beat(0, &Beat { incarnation: 4, ..beat(1, 0, 0) }),
        Err(Refusal::StaleIncarnation { .. })
    ));
    // Sections of a heartbeat are still read if its beat came first. Reading them again changes nothing.
    let bytes = heartbeat(2, 5, 9, |b| {
        b.roster(&process(0, ProcessState::Alive, 0, 1)).unwrap();
        b.piggyback(0, 1, b"x").unwrap();
    });
    d.handle_sections(MS, MS, 0, &bytes).unwrap();
    let once = events(&mut d);
    assert!(matches!(
        once[..],
        [Event::Up { slot: HOST_SLOT, .. }, Event::Up { slot: 0, .. }, Event::Piggyback { .. }]
    ));
    d.handle_sections(MS, MS, 0, &bytes).unwrap();
    assert_eq!(events(&mut d), vec![]);
}

#[test]
fn verdict_waits_for_messages_sent_before_it() {
    let mut d = plain(1);
    d.handle_packet(0, 0, 0, &heartbeat(2, 5, 1, |b| b.roster(&process(0, ProcessState::Alive, 0, 1)).unwrap()))
        .unwrap();
    events(&mut d);
    let mut buf = [0u8; PAYLOAD_MAX];
    let len = Builder::notice(&mut buf, 2, 5, 1, &process(0, ProcessState::Killed(0), 2, 2)).unwrap();
    d.handle_packet(10, 10, 0, &buf[..len]).unwrap();
    assert_eq!(verdicts(&mut d), vec![], "two messages are still missing");
    d.handle_packet(20, 20, 0, &heartbeat(2, 5, 3, |b| b.piggyback(0, 2, b"two").unwrap())).unwrap();
    assert_eq!(events(&mut d), vec![], "the second waits for the first");
    d.handle_packet(30, 30, 0, &heartbeat(2, 5, 2, |b| b.piggyback(0, 1, b"one").unwrap())).unwrap();
    let mut seen_events = Vec::new();
    while let Some(event) = d.poll_event() {
        seen_events.push((d.piggyback_bytes(&event).to_vec(), matches!(event, Event::Verdict(_))));
    }
    assert_eq!(seen_events, vec![(b"one".to_vec(), false), (b"two".to_vec(), false), (vec![], true)]);
    // It is reported once, however often it is repeated, and nothing of the process comes after.
    d.handle_packet(40, 40, 0, &buf[..len]).unwrap();
    d.handle_packet(
        50,
        50,
        0,
        &heartbeat(2, 5, 4, |b| {
            b.roster(&process(0, ProcessState::Killed(0), 2, 2)).unwrap();
            b.piggyback(0, 3, b"late").unwrap();
        }),
    )
    .unwrap();
    assert_eq!(events(&mut d), vec![]);
}

#[test]
fn missing_messages_are_given_up_once_every_plane_passed_them() {
    let mut d = plain(1);
    d.handle_packet(0, 0, 0, &heartbeat(2, 5, 1, |b| b.roster(&process(0, ProcessState::Alive, 0, 1)).unwrap()))
        .unwrap();
    d.handle_packet(0, 0, 0, &heartbeat(2, 5, 3, |b| b.roster(&process(0, ProcessState::Exited(0), 1, 2)).unwrap()))
        .unwrap();
    d.handle_packet(0, 0, 0, &heartbeat(2, 5, 4, |_| {})).unwrap();
    assert_eq!(verdicts(&mut d), vec![], "plane 1 may still bring heartbeat 2");
    let mut other = heartbeat(2, 5, 4, |_| {});
    set_plane(&mut other, 1);
    d.handle_packet(0, 0, 1, &other).unwrap();
    let seen_events = events(&mut d);
    let [Event::Verdict(v)] = seen_events[..] else { panic!("{seen_events:?}") };
    assert_eq!((v.reason, v.evidence.piggybacks_lost), (Reason::Exited(0), 1));
    assert_eq!(d.counters().piggybacks_lost, 1);
}

#[test]
fn oldest_gap_is_given_up_at_the_reorder_bound() {
    let mut d = plain(1);
    d.handle_packet(0, 0, 0, &heartbeat(2, 5, 1, |b| b.roster(&process(0, ProcessState::Alive, 0, 1)).unwrap()))
        .unwrap();
    events(&mut d);
    for i in 0..REORDER_MAX as u32 {
        d.handle_packet(0, 0, 0, &heartbeat(2, 5, 10 + u64::from(i), |b| b.piggyback(0, 3 + i, b"m").unwrap()))
            .unwrap();
    }
    assert_eq!(events(&mut d), vec![]);
    d.handle_packet(0, 0, 0, &heartbeat(2, 5, 30, |b| b.piggyback(0, 20, b"m").unwrap())).unwrap();
    let seqs: Vec<u32> =
        events(&mut d).iter().map(|e| if let Event::Piggyback { pb_seq, .. } = e { *pb_seq } else { 0 }).collect();
    assert_eq!(seqs, (3..3 + REORDER_MAX as u32).collect::<Vec<_>>());
    assert_eq!(d.counters().piggybacks_lost, 2);
}

#[test]
fn full_event_queue_drops_messages_but_no_verdicts() {
    let mut d = plain(1);
    d.handle_packet(0, 0, 0, &heartbeat(2, 5, 1, |b| b.roster(&process(0, ProcessState::Alive, 0, 1)).unwrap()))
        .unwrap();
    let count = POOL_MAX as u64 + 100;
    for i in 0..count {
        let _ = d.handle_packet(0, 0, 0, &heartbeat(2, 5, 2 + i, |b| b.piggyback(0, 1 + i as u32, b"m").unwrap()));
    }
    assert_eq!(d.counters().piggybacks_no_buffer, 100);
    for _ in 0..EVENTS_MAX {
        d.emit(Event::TimeoutChanged { host: 2, timeout_ns: 1 });
    }
    assert_eq!(d.events.len(), EVENTS_MAX - EVENTS_RESERVE);
    for now in (0..=5 * MS).step_by(500_000) {
        d.tick(now);
    }
    assert_eq!(verdicts(&mut d).len(), 2, "the host and its process");
    assert!(d.counters().events_lost > 0);
    assert!(d.pool.put(b"free again").is_some());
}

#[test]
fn message_of_the_granted_size_fits_a_steady_heartbeat() {
    for n in [2u16, 3, 16, 64] {
        let mut d = Detector::new(cluster(n), 0).unwrap();
        let slot = d.join(0, "p".parse().unwrap()).unwrap().slot;
        let grant = d.piggyback_grant();
        let mut buf = [0u8; PAYLOAD_MAX];
        d.piggyback(slot, &vec![1; grant]).unwrap();
        let error = d.piggyback(slot, &vec![1; grant + 1]).unwrap_err();
        assert_eq!(error, PiggybackError::TooLarge { size: grant + 1, granted: grant });
        let sent = (0..10u64).filter_map(|i| {
            d.tick(i * MS);
            let t = d.poll_transmit(i * MS, &mut buf)?;
            let packet = Packet::new(&buf[..t.len]).unwrap();
            packet.bodies().any(|b| matches!(b, Body::Piggyback { .. })).then_some(i)
        });
        assert!(sent.count() == 1, "{n} hosts: once, after the roster entry");
    }
}

#[test]
fn smaller_payload_max_shrinks_heartbeats_and_grants_and_counts_lost_messages() {
    let (mut a, mut b) = (plain(1), plain(2));
    b.peers[1].follow(10);
    b.peers[1].note(0, 0, true);
    let mut buf = [0u8; PAYLOAD_MAX];
    let slot = a.join(0, "a".parse().unwrap()).unwrap().slot;
    let before = a.piggyback_grant();
    for len in [1000, 3, 900, 4] {
        a.piggyback(slot, &vec![7; len]).unwrap();
    }
    let granted = a.set_payload_max(500);
    // Header, two acknowledgements, the message's own section header and number.
    assert_eq!((granted, a.piggyback_grant()), (500 - 28 - 2 * 8 - 8, granted));
    let refused = a.piggyback(slot, &vec![7; granted + 1]).unwrap_err();
    assert_eq!(refused, PiggybackError::TooLarge { size: granted + 1, granted });
    a.piggyback(slot, &vec![7; granted]).unwrap();
    let mut delivered = Vec::new();
    for beat in 0..8 {
        while let Some(sent) = a.poll_transmit(beat * MS, &mut buf) {
            assert!(sent.len <= 500, "{} bytes", sent.len);
            for plane in 0..2 {
                set_plane(&mut buf[..sent.len], plane);
                b.handle_packet(beat * MS, beat * MS, plane, &buf[..sent.len]).unwrap();
            }
        }
        delivered.extend(events(&mut b).iter().filter_map(|e| match e {
            Event::Piggyback { pb_seq, len, .. } => Some((*pb_seq, usize::from(*len))),
            _ => None,
        }));
    }
    assert_eq!(delivered, [(2, 3), (4, 4), (5, granted)], "the two that became too long are missing");
    assert_eq!((a.counters().piggybacks_lost, b.counters().piggybacks_lost), (2, 2));
    assert_eq!(a.set_payload_max(0), a.config().piggyback_grant(), "never below what heartbeats need");
    assert_eq!(a.config().payload_max, a.config().payload_min());
    assert_eq!(a.set_payload_max(usize::MAX), before);
}

#[test]
fn watch_by_name_is_reported_to_the_program_once() {
    let (mut a, mut b) = (plain(1), plain(2));
    let mut buf = [0u8; PAYLOAD_MAX];
    let target = a.join(0, "target".parse().unwrap()).unwrap().slot;
    let exchange = |from: &mut Detector, to: &mut Detector, now: u64, buf: &mut [u8; PAYLOAD_MAX]| {
        while let Some(sent) = from.poll_transmit(now, buf) {
            to.handle_packet(now, now, 0, &buf[..sent.len]).unwrap();
        }
    };
    exchange(&mut a, &mut b, 0, &mut buf);
    // The watcher joins and watches at once: its name and its wish travel in one heartbeat.
    let watcher = b.join(0, "watcher".parse().unwrap()).unwrap().slot;
    let wanted = Wanted { timeout_ns: 0, pbsize: 99 };
    let at = Target { host: 1, process: Some("target".parse().unwrap()) };
    b.monitor(at, wanted, watcher).unwrap();
    let mut seen_events = Vec::new();
    for beat in 1..6 {
        exchange(&mut b, &mut a, beat * MS, &mut buf);
        exchange(&mut a, &mut b, beat * MS, &mut buf);
        for event in events(&mut a) {
            if let Event::MonitorRequest { host, watcher_slot, slot, pbsize, .. } = event {
                seen_events.push((a.process(host, watcher_slot).map(|p| p.name.to_string()), slot, pbsize));
            }
        }
    }
    assert_eq!(seen_events, [(Some("watcher".to_owned()), target, 99)]);
    // A watch of a program on the same host: no heartbeat brings it.
    a.monitor(at, wanted, HOST_SLOT).unwrap();
    let local = Event::MonitorRequest { host: 1, watcher_slot: HOST_SLOT, slot: target, timeout_us: 0, pbsize: 99 };
    assert_eq!(events(&mut a), [local]);
}

#[test]
fn piggyback_queue_refuses_at_its_bound() {
    let mut d = plain(1);
    let slot = d.join(0, "p".parse().unwrap()).unwrap().slot;
    assert_eq!(d.piggyback_capacity(slot), QUEUE_MAX);
    for i in 1..=QUEUE_MAX as u32 {
        assert_eq!(d.piggyback(slot, b"m"), Ok(i));
    }
    assert_eq!(d.piggyback(slot, b"m"), Err(PiggybackError::Full { queued: QUEUE_MAX }));
    assert_eq!(d.piggyback(9, b"m"), Err(PiggybackError::NotJoined { slot: 9 }));
    assert_eq!((d.piggyback_capacity(slot), d.piggyback_capacity(9), d.piggyback_capacity(0xff)), (0, 0, 0));
}

#[test]
fn hurried_piggybacks_go_out_in_urgent_heartbeats_up_to_a_bound() {
    let mut d = plain(1);
    let mut buf = [0u8; PAYLOAD_MAX];
    let slot = d.join(0, "p".parse().unwrap()).unwrap().slot;
    d.set_urgent_max(4); // Two of them are kept for views.
    let mut sends = |d: &mut Detector, now: u64| d.poll_transmit(now, &mut buf).is_some();
    assert!(sends(&mut d, 0));
    d.hurry();
    assert!(!sends(&mut d, 1), "no message waits");
    for _ in 0..2 {
        d.piggyback(slot, b"m").unwrap();
        assert!(d.poll_timeout() <= 1 && sends(&mut d, 1), "a program waits for it");
        d.piggyback(slot, b"later").unwrap();
        assert!(!sends(&mut d, 1), "no program waits for it");
        d.hurry();
    }
    assert!(!sends(&mut d, 1), "at the bound it waits for the next scheduled heartbeat");
    assert_eq!(d.counters().heartbeats_urgent, 2);
    let next_ns = d.next_heartbeat_ns();
    assert!(sends(&mut d, next_ns));
    assert_eq!(d.piggyback_capacity(slot), QUEUE_MAX, "with all messages that waited");
}

#[test]
fn single_host_acts_alone() {
    let mut d = Detector::new(cluster(1), 0).unwrap();
    assert_eq!(d.lease_until_ns(), u64::MAX);
    let mut buf = [0u8; PAYLOAD_MAX];
    for now in (0..30 * MS).step_by(500_000) {
        d.tick(now);
        d.poll_transmit(now, &mut buf);
    }
    assert_eq!(d.view().members, HostSet::first(1));
    assert!(!d.is_fenced(30 * MS));
    d.leave(30 * MS);
    assert!(d.is_fenced(30 * MS));
    assert_eq!(d.join(0, "x".parse().unwrap()), Err(JoinError::Leaving));
}

#[test]
fn restart_needs_a_higher_incarnation() {
    let mut d = plain(1);
    let old = d.join(0, "p".parse().unwrap()).unwrap();
    assert_eq!(d.restart(0, 10), Err(RestartError::Incarnation { incarnation: 10, present: 10 }));
    d.restart(0, 11).unwrap();
    let new = d.process(1, old.slot).unwrap().incarnation;
    assert!(new > old.incarnation);
}

prop_compose! {
    fn any_section()(
        which in 0u8..9, slot in 0u8..5, a in 0u32..20, b in 0u32..20, hosts in 0u64..16, state in 1u8..=5, own in any::<bool>(),
    ) -> Section { Section { which, slot, a, b, hosts, state, own } }
}

#[derive(Debug, Clone)]
struct Section {
    which: u8,
    slot: u8,
    a: u32,
    b: u32,
    hosts: u64,
    state: u8,
    own: bool,
}

fn put(builder: &mut Builder<'_>, s: &Section) {
    let mut members = fide_wire::Membership { hosts: 0, incarnations: [0; MAX_HOSTS] };
    HostSet(s.hosts).iter().for_each(|h| members.insert(h, if h == 1 && s.own { 10 } else { s.b }));
    let id = fide_wire::ViewId { generation: s.a % 4, number: s.b % 4 };
    let state = ProcessState::from_bytes(s.state, 0).unwrap();
    let _ = match s.which {
        0 => builder.roster(&fide_wire::Roster { pb_seq: s.a, incarnation: s.b, ..process(s.slot, state, s.a, 1) }),
        1 => builder.piggyback(s.slot, s.a + 1, b"anything"),
        2 => builder.view(&fide_wire::ViewRepr::steady(id)),
        3 => builder.view(&fide_wire::ViewRepr { members: Some(members), ..fide_wire::ViewRepr::steady(id) }),
        4 => builder.view(&fide_wire::ViewRepr {
            acceptor: Some((s.a, s.hosts)),
            accepted: s.own.then_some((s.b, members)),
            proposal: Some(fide_wire::Proposal { ballot: s.a << 8 | s.b, value: Some(members) }),
            ..fide_wire::ViewRepr::steady(id)
        }),
        5 => builder.promise(s.a * 1000),
        6 => builder.excluded([(1 + s.slot as u16, s.a)].into_iter()).map(|_| ()),
        7 => builder.monitor(&fide_wire::Monitor {
            target_host: 1,
            target_slot: s.slot,
            watcher_slot: s.slot,
            timeout_us: s.a,
            pbsize: 9,
        }),
        _ => builder.goodbye(),
    };
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Authenticated peers may send anything in any order: no panic, no second final verdict, messages in
    /// order.
    #[test]
    fn arbitrary_packets_keep_the_invariants(
        majority in any::<bool>(), lease in any::<bool>(),
        steps in proptest::collection::vec(
            (2u16..5, 1u32..4, 1u64..40, 0u8..2, 0u64..4_000_000, proptest::collection::vec(any_section(), 0..4), any::<bool>(), 0u32..30), 1..80),
    ) {
        let config = Config {
            incarnation: 10,
            policy: if majority { Policy::Majority } else { Policy::Network },
            trust: if lease { Trust::Lease } else { Trust::Network },
            ..cluster(4)
        };
        let mut d = Detector::new(config, 0).unwrap();
        let _ = d.join(0, "mine".parse().unwrap());
        let mut now = 0;
        let mut ended = std::collections::BTreeSet::new();
        let mut last = std::collections::BTreeMap::new();
        let mut buf = [0u8; PAYLOAD_MAX];
        for (sender, incarnation, seq, plane, wait, sections, split, acked) in steps {
            now += wait;
            let mut packet = [0u8; PAYLOAD_MAX];
            let mut b = Builder::heartbeat(&mut packet, sender, incarnation, seq).unwrap();
            for _ in 0..3 { b.push_ack(Ack { incarnation: 10, seq_low: acked }).unwrap(); }
            sections.iter().for_each(|s| put(&mut b, s));
            let len = b.finish();
            set_plane(&mut packet, plane);
            let rx = now.saturating_sub(wait / 2);
            let _ = if split { d.handle_sections(now, rx, plane, &packet[..len]) } else { d.handle_packet(now, rx, plane, &packet[..len]) };
            d.tick(now);
            while let Some(t) = d.poll_transmit(now, &mut buf) {
                prop_assert!(Packet::new(&buf[..t.len]).is_ok());
            }
            prop_assert!(d.poll_timeout() > now.saturating_sub(10_000_000) || d.poll_timeout() <= now);
            while let Some(event) = d.poll_event() {
                match event {
                    Event::Verdict(v) => {
                        let key = (v.host, v.slot, v.incarnation, if v.slot == HOST_SLOT { 0 } else { d.peers[v.host].dead_incarnation });
                        let first = !v.reason.is_final() || v.slot != HOST_SLOT || ended.insert(key);
                        prop_assert!(first, "{v:?}");
                    }
                    Event::Up { host, slot, incarnation, .. } => { last.insert((host, slot), (incarnation, 0)); }
                    Event::Piggyback { host, slot, incarnation, pb_seq, .. } => {
                        let entry = last.get_mut(&(host, slot)).unwrap();
                        prop_assert!(entry.0 == incarnation && pb_seq > entry.1);
                        entry.1 = pb_seq;
                    }
                    _ => {}
                }
            }
            for peer in d.peers.others() {
                let undecided = |r: &Remote| u16::from(r.gap) + u16::from(r.pending_end.is_some());
                let open: u16 = d.remotes.of(peer.id).map(|(_, remote)| undecided(remote)).sum();
                prop_assert_eq!(open, peer.open);
            }
        }
    }

    #[test]
    fn garbage_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200), plane in 0u8..3) {
        let mut d = plain(1);
        let before = digest(&d);
        prop_assert!(d.handle_packet(0, 0, plane, &bytes).is_err());
        prop_assert!(d.handle_sections(0, 0, plane, &bytes).is_err());
        prop_assert_eq!(digest(&d), before);
    }
}

/// Sections that came before a peer counted as up may have been skipped, so its sender must go on carrying
/// them.
#[test]
fn only_heartbeats_after_the_peer_came_up_are_acknowledged() {
    let mut d = plain(1);
    let mut buf = [0u8; PAYLOAD_MAX];
    let mut acked = |d: &mut Detector, now_ns| {
        let len = d.poll_transmit(now_ns, &mut buf).expect("a heartbeat").len;
        Packet::new(&buf[..len]).expect("whole").ack(2).expect("of host 2")
    };
    d.handle_packet(0, 0, 0, &heartbeat(2, 20, 5, |_| {})).expect("the first one");
    assert_eq!(d.peer(2).map(|p| p.state), Some(PeerState::Up));
    assert_eq!(acked(&mut d, MS), Ack { incarnation: 20, seq_low: 0 }, "heard, but nothing of it was taken yet");
    d.handle_packet(MS, MS, 0, &heartbeat(2, 20, 6, |_| {})).expect("the next one");
    assert_eq!(acked(&mut d, 2 * MS), Ack { incarnation: 20, seq_low: 6 });
    // Another incarnation starts over.
    d.handle_packet(2 * MS, 2 * MS, 0, &heartbeat(2, 21, 7, |_| {})).expect("a new incarnation");
    assert_eq!(acked(&mut d, 3 * MS).seq_low, 0);
    d.handle_packet(3 * MS, 3 * MS, 0, &heartbeat(2, 21, 8, |_| {})).expect("the next one");
    assert_eq!(acked(&mut d, 4 * MS), Ack { incarnation: 21, seq_low: 8 });
}

/// The echoes in the next heartbeat of `d`.
fn echoes(d: &mut Detector, now_ns: u64) -> Vec<(u16, u32, u64)> {
    let mut buf = [0u8; PAYLOAD_MAX];
    let len = d.poll_transmit(now_ns, &mut buf).expect("a heartbeat").len;
    let packet = Packet::new(&buf[..len]).expect("whole");
    packet.bodies().flat_map(|b| if let Body::Echo(e) = b { e.iter().collect() } else { vec![] }).collect()
}

/// A heartbeat of host 2, which has answered nobody.
fn unanswered(incarnation: u32, seq: u64, echo: Option<(u16, u32, u64)>) -> Vec<u8> {
    let mut buf = [0u8; PAYLOAD_MAX];
    let mut b = Builder::heartbeat(&mut buf, 2, incarnation, seq).unwrap();
    b.push_ack(Ack { incarnation: 9, seq_low: 44 }).unwrap();
    b.push_ack(Ack::default()).unwrap();
    b.echoes(echo.into_iter()).unwrap();
    let len = b.finish();
    buf[..len].to_vec()
}

#[test]
fn recorded_heartbeat_is_no_sign_of_life() {
    let mut d = plain(1);
    let mut buf = [0u8; PAYLOAD_MAX];
    for seq in 1..=9 {
        let now = seq * MS;
        // Echoes of the incarnation before, of a heartbeat not sent yet, and of another host.
        for echo in [None, Some((1, 9, 3)), Some((1, 10, seq)), Some((3, 10, 1))] {
            assert_eq!(d.handle_packet(now, now, 0, &unanswered(5, seq, echo)), Ok(Accepted::Unanswered));
        }
        d.tick(now);
        assert_eq!(d.peer(2).unwrap().state, PeerState::Unknown);
        assert_eq!(echoes(&mut d, now), [(2, 5, seq)], "so that host 2 can answer if it is alive");
    }
    assert_eq!((events(&mut d).len(), d.counters().heartbeats_unanswered), (0, 36));
    // A notice of it is a fact, but about an unknown process.
    let len = Builder::notice(&mut buf, 2, 5, 9, &process(0, ProcessState::Killed(0), 0, 1)).unwrap();
    assert_eq!(d.handle_packet(9 * MS, 9 * MS, 0, &buf[..len]), Ok(Accepted::Unanswered));
    // It is alive after all.
    assert_eq!(d.handle_packet(9 * MS, 9 * MS, 0, &unanswered(5, 10, Some((1, 10, 9)))), Ok(Accepted::Heartbeat));
    assert_eq!(d.peer(2).unwrap().state, PeerState::Up);
    // Its recordings are older than its answer.
    let replayed = d.handle_packet(9 * MS, 9 * MS, 0, &unanswered(5, 10, Some((1, 10, 9))));
    assert_eq!(replayed, Err(Refusal::Replayed { host: 2, seq: 10 }));
    // Another incarnation of it has not answered.
    assert_eq!(d.handle_packet(9 * MS, 9 * MS, 0, &unanswered(6, 1, None)), Ok(Accepted::Unanswered));
}

#[test]
fn recorded_beat_of_the_receive_program_is_no_sign_of_life() {
    let mut d = plain(1);
    let beat = |seq, ack_incarnation| Beat {
        peer: 2,
        plane: 0,
        incarnation: 5,
        seq,
        rx_ns: 0,
        received: seq,
        ack_incarnation,
        ack_seq_low: 1,
        promise_us: 1000,
        view: Some(fide_wire::ViewId { generation: 3, number: 3 }),
    };
    d.handle_beat(0, &beat(1, 9)).unwrap();
    let peer = d.peer(2).unwrap();
    assert_eq!((peer.state, peer.last_seq, peer.view.is_none()), (PeerState::Unknown, 0, true));
    assert_eq!(echoes(&mut d, 0), [(2, 5, 1)]);
    d.handle_beat(0, &beat(2, 10)).unwrap();
    assert_eq!(d.peer(2).unwrap().state, PeerState::Up);
    assert_eq!(echoes(&mut d, MS), [], "it knows this host already");
}

#[test]
fn resumed_witness_takes_no_answer_to_its_former_life() {
    let mut config = cluster(3);
    (config.incarnation, config.members[0].role) = (10, Role::Witness);
    let vote = Detector::new(config.clone(), 0).unwrap().vote();
    let mut d = Detector::resume(config, &vote, 2, 0).unwrap();
    let former = (1 << crate::life::LIFE_BITS) + 77;
    let mut buf = [0u8; PAYLOAD_MAX];
    d.poll_transmit(0, &mut buf).unwrap();
    let now = d.last_seq();
    // Neither an acknowledgement of its incarnation nor an echo of its former life is an answer.
    assert_eq!(d.handle_packet(0, 0, 0, &heartbeat(2, 5, 1, |_| {})), Ok(Accepted::Unanswered));
    assert_eq!(d.handle_packet(0, 0, 0, &unanswered(5, 2, Some((1, 10, former)))), Ok(Accepted::Unanswered));
    assert_eq!(d.handle_packet(0, 0, 0, &unanswered(5, 3, Some((1, 10, now)))), Ok(Accepted::Heartbeat));
    // A peer that its former life had acknowledged answers again.
    let mut other = plain(2);
    let beat = |seq| {
        let mut buf = [0u8; PAYLOAD_MAX];
        let mut b = Builder::heartbeat(&mut buf, 1, 10, seq).unwrap();
        b.push_ack(Ack { incarnation: 10, seq_low: 0 }).unwrap();
        b.push_ack(Ack::default()).unwrap();
        let len = b.finish();
        buf[..len].to_vec()
    };
    other.handle_packet(0, 0, 0, &beat(former)).unwrap();
    assert_eq!(echoes(&mut other, 0), [], "acknowledged, so it needs no echo");
    let mut silent = beat(now);
    silent[fide_wire::HEADER_LEN..fide_wire::HEADER_LEN + 8].fill(0);
    other.handle_packet(MS, MS, 0, &silent).unwrap();
    assert_eq!(echoes(&mut other, MS), [(1, 10, now)]);
}

/// A witness that starts again would number its processes as before: the end of one would be reported of
/// another.
#[test]
fn witness_refuses_joins_in_every_life() {
    let mut config = cluster(3);
    (config.incarnation, config.members[0].role) = (10, Role::Witness);
    let mut first = Detector::new(config.clone(), 0).unwrap();
    assert_eq!(first.join(0, "db".parse().unwrap()), Err(JoinError::Witness));
    let mut second = Detector::resume(config.clone(), &first.vote(), 1, 20 * MS).unwrap();
    assert_eq!(second.join(20 * MS, "web".parse().unwrap()), Err(JoinError::Witness));
    assert!(events(&mut second).iter().all(|event| !matches!(event, Event::Up { .. })), "nothing is reported");
    let mut voter = Detector::new(Config { me: 2, ..config }, 0).unwrap();
    assert!(voter.join(0, "db".parse().unwrap()).is_ok());
}

#[test]
fn echoes_take_turns_at_their_bound() {
    use crate::echo::ECHOES_MAX;
    let config = Config { incarnation: 10, trust: Trust::Network, policy: Policy::Network, ..cluster(64) };
    let mut d = Detector::new(config, 0).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for turn in 0..64 {
        let now = turn * MS;
        for sender in 2..=64 {
            let mut buf = [0u8; PAYLOAD_MAX];
            let mut b = Builder::heartbeat(&mut buf, sender, 5, turn + 1).unwrap();
            (0..63).for_each(|_| b.push_ack(Ack::default()).unwrap());
            let len = b.finish();
            d.handle_packet(now, now, 0, &buf[..len]).unwrap();
        }
        let seen_events = echoes(&mut d, now);
        assert_eq!(seen_events.len(), ECHOES_MAX);
        seen.extend(seen_events.iter().map(|(host, _, _)| *host));
    }
    assert_eq!(seen.len(), 63, "every peer has had a turn");
    assert_eq!(echoes(&mut d, 200 * MS), [], "no peer is heard any more");
}

/// The vote changes at every turn: the urgent heartbeats go out between two scheduled ones, and no more than
/// that.
#[test]
fn urgent_heartbeats_are_bounded_and_keep_the_schedule() {
    let mut buf = [0; PAYLOAD_MAX];
    for urgent_max in [0, 1, URGENT_MAX, 100] {
        let mut d = Detector::new(cluster(3), 0).unwrap();
        d.set_urgent_max(urgent_max);
        for slot in 0..3 {
            let due_ns = slot * MS;
            assert!(d.poll_transmit(due_ns, &mut buf).is_some(), "a scheduled one");
            assert!(d.poll_transmit(due_ns, &mut buf).is_none(), "the vote has not changed");
            let mut sent = 0;
            for turn in 1..=20 {
                d.views.recall(&crate::view::Vote { promised: slot as u32 * 100 + turn, ..d.vote() });
                let due = d.poll_timeout() <= d.last_tick_ns;
                let transmit = d.poll_transmit(due_ns + u64::from(turn) * 10_000, &mut buf);
                assert_eq!(transmit.is_some(), due, "a packet is sent if and only if one is due");
                sent += u32::from(transmit.is_some_and(|transmit| transmit.kind == TransmitKind::Heartbeat));
            }
            assert_eq!(sent, urgent_max.min(URGENT_MAX));
            assert_eq!(d.next_heartbeat_ns(), due_ns + MS);
        }
        let counters = d.counters();
        assert_eq!((counters.heartbeats_sent, counters.heartbeats_skipped), (3 + counters.heartbeats_urgent, 0));
    }
}
