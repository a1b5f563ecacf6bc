// SPDX-License-Identifier: Apache-2.0
//! Heartbeats: what is refused, what is replayed, what a slot holds.

use std::{
    cell::{Cell, RefCell},
    sync::atomic::{AtomicBool, Ordering},
};

use fide_wire::{HEADER_LEN, PAYLOAD_MAX, ProcessState, ReplayWindow, Roster, Seen, ViewId, ViewRepr, ack_index};
use proptest::{prelude::*, test_runner::TestRunner};

use super::rig::{Beat, INCARNATION, KEY, ME, MEMBERS, Rig, XDP_DROP, XDP_PASS, frame, notice, run};
use crate::intf::{
    ADMIT_DEAD, Admit, PACKET_NOTICE, PACKET_SECTIONS, PACKET_UNADMITTED, Stats, WAKE_PACKET, WAKE_RING_BYTES,
};
use fide_types::MAX_PLANES;

/// Counters that a frame raised.
fn raised(rig: &Rig, frame: &[u8]) -> (u32, Stats) {
    let before = rig.receive.stats();
    let action = rig.run_frame(frame);
    let after = rig.receive.stats();
    let stats = Stats {
        accepted: after.accepted - before.accepted,
        malformed: after.malformed - before.malformed,
        bad_tag: after.bad_tag - before.bad_tag,
        foreign: after.foreign - before.foreign,
        stale: after.stale - before.stale,
        replayed: after.replayed - before.replayed,
        ..Stats::default()
    };
    (action, stats)
}

fn counts(stats: &Stats) -> [u64; 6] {
    [stats.accepted, stats.malformed, stats.bad_tag, stats.foreign, stats.stale, stats.replayed]
}

const ACCEPTED: [u64; 6] = [1, 0, 0, 0, 0, 0];
const MALFORMED: [u64; 6] = [0, 1, 0, 0, 0, 0];
const FOREIGN: [u64; 6] = [0, 0, 0, 1, 0, 0];
const STALE: [u64; 6] = [0, 0, 0, 0, 1, 0];
const REPLAYED: [u64; 6] = [0, 0, 0, 0, 0, 1];
const NOTHING: [u64; 6] = [0; 6];

#[test]
fn root_what_is_not_ours_passes_and_what_is_broken_is_counted() {
    let Some(mut rig) = Rig::new() else { return };
    let good = frame(&Beat::of(1, 1).plain());
    let untouched = rig.slots();
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = good.clone();
        change(&mut frame);
        frame
    };
    let passed: Vec<(&str, Vec<u8>)> = vec![
        ("another port", with(&|f| f[37] ^= 1)),
        ("TCP", with(&|f| f[23] = 6)),
        ("IPv6", with(&|f| f[12..14].copy_from_slice(&0x86ddu16.to_be_bytes()))),
        ("IP options", with(&|f| f[14] = 0x46)),
        ("no whole UDP header", good[..41].to_vec()),
        ("only Ethernet", good[..14].to_vec()),
    ];
    for (what, frame) in passed {
        let (action, stats) = raised(&rig, &frame);
        assert_eq!((action, counts(&stats)), (XDP_PASS, NOTHING), "{what}");
    }
    let udp_len = |f: &mut Vec<u8>, len: usize| f[38..40].copy_from_slice(&u16::try_from(len).unwrap().to_be_bytes());
    let broken: Vec<(&str, Vec<u8>)> = vec![
        ("no byte", frame(&[])),
        ("1 byte", frame(&[0x11])),
        ("27 bytes", frame(&[0; HEADER_LEN - 1])),
        ("1473 bytes", frame(&[0; PAYLOAD_MAX + 1])),
        ("first fragment", with(&|f| f[20] = 0x20)),
        ("last fragment", with(&|f| f[21] = 1)),
        ("truncated", good[..good.len() - 1].to_vec()),
        ("truncated to its headers", good[..42].to_vec()),
        ("longer than it is", with(&|f| udp_len(f, PAYLOAD_MAX + 8))),
        ("UDP length 0", with(&|f| udp_len(f, 0))),
        ("UDP length 7", with(&|f| udp_len(f, 7))),
        ("UDP length 65535", with(&|f| udp_len(f, 65535))),
    ];
    for (what, frame) in broken {
        let (action, stats) = raised(&rig, &frame);
        assert_eq!((action, counts(&stats)), (XDP_DROP, MALFORMED), "{what}");
    }
    assert_eq!(rig.slots(), untouched);
    assert!(rig.wakes().is_empty());
    assert_eq!(raised(&rig, &good).1.accepted, 1, "and the good one is taken");
}

/// A packet changed by somebody who has the key.
fn resealed(beat: Beat, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut payload = beat.plain();
    change(&mut payload);
    let tag = fide_wire::tag(&beat.key, &payload);
    payload[16..24].copy_from_slice(&tag.to_le_bytes());
    frame(&payload)
}

#[test]
fn root_authentic_nonsense_is_refused_by_its_reason() {
    let Some(mut rig) = Rig::with([1, 0], KEY) else { return };
    let untouched = rig.slots();
    let beat = Beat::of(1, 1);
    let refused: Vec<(&str, Vec<u8>, [u64; 6])> = vec![
        ("magic", resealed(beat, |p| p[0] ^= 1), MALFORMED),
        ("version 2", resealed(beat, |p| p[2] = 0x21), MALFORMED),
        ("kind 4", resealed(beat, |p| p[2] = 0x14), MALFORMED),
        ("too few acknowledgements", resealed(beat, |p| p[6] -= 1), MALFORMED),
        ("acknowledgements that are not there", resealed(beat, |p| p.truncate(HEADER_LEN + 8)), MALFORMED),
        ("sequence number 0", frame(&Beat::of(1, 0).plain()), MALFORMED),
        ("host 0", resealed(beat, |p| p[4] = 0), FOREIGN),
        ("a host beyond the members", resealed(beat, |p| p[4] = 6), FOREIGN),
        ("host 65535", resealed(beat, |p| p[4..6].fill(0xff)), FOREIGN),
        ("my own id", resealed(beat, |p| p[4] = 3), FOREIGN),
        ("a plane that is another interface's", frame(&beat.on(1).plain()), FOREIGN),
        ("plane 2", frame(&beat.on(2).plain()), FOREIGN),
        ("plane 255", frame(&beat.on(255).plain()), FOREIGN),
        ("an older incarnation", frame(&beat.incarnation(INCARNATION - 1).plain()), STALE),
    ];
    for (what, frame, expected) in refused {
        let (action, stats) = raised(&rig, &frame);
        assert_eq!((action, counts(&stats)), (XDP_DROP, expected), "{what}");
        let news = rig.wakes();
        // The first of an old incarnation is shown to the agent, which answers that it is dead.
        assert_eq!(news.len(), usize::from(expected == STALE), "{what}: {news:?}");
    }
    assert_eq!(rig.slot(1, 0).stale, 1);
    let stale = format!("stale: {}", rig.slot(1, 0).stale);
    assert_eq!(rig.slots().replacen(&stale, "stale: 0", 1), untouched);
}

#[test]
fn root_a_heartbeat_counts_once_per_plane_and_once_in_all() {
    let Some(mut rig) = Rig::new() else { return };
    let goodbye = |seq, plane| frame(&Beat::of(1, seq).on(plane).with(|b| b.goodbye().expect("room")));
    let took = |rig: &Rig, frame: &[u8]| counts(&raised(rig, frame).1);
    assert_eq!(took(&rig, &goodbye(5, 0)), ACCEPTED);
    assert_eq!(took(&rig, &goodbye(5, 0)), REPLAYED, "the same again");
    assert_eq!(took(&rig, &goodbye(5, 1)), ACCEPTED, "the copy of the other plane says that the plane works");
    assert_eq!(took(&rig, &goodbye(5, 1)), REPLAYED);
    let news = rig.wakes();
    assert_eq!(news.len(), 1, "sections are read once");
    assert_eq!((news[0].0.kind, news[0].0.detail, news[0].0.subject), (WAKE_PACKET, PACKET_SECTIONS, 0));
    assert_eq!(news[0].1, &goodbye(5, 0)[42..], "whole and unchanged, its tag included");

    // Out of order: new on no plane's slot, but its sections are new.
    assert_eq!(took(&rig, &goodbye(70, 0)), ACCEPTED);
    assert_eq!(took(&rig, &goodbye(60, 0)), ACCEPTED);
    assert_eq!(rig.slot(1, 0).seq, 70, "a slot holds the newest");
    assert_eq!(took(&rig, &goodbye(7, 0)), ACCEPTED, "63 behind");
    assert_eq!(took(&rig, &goodbye(7, 0)), REPLAYED);
    assert_eq!(took(&rig, &goodbye(6, 0)), REPLAYED, "64 behind: too old to know");
    // The slow plane is behind by more than the window: it works, and says nothing new.
    assert_eq!(took(&rig, &goodbye(6, 1)), ACCEPTED);
    assert_eq!(rig.slot(1, 1).seq, 6);
    assert_eq!(rig.wakes().len(), 3);
    let slot = rig.slot(1, 0);
    assert_eq!((slot.received, slot.duplicate), (4, 3));
}

#[test]
fn root_the_window_is_the_one_of_the_wire_crate() {
    let Some(rig) = Rig::new() else { return };
    let (rig, incarnation) = (RefCell::new(rig), Cell::new(INCARNATION));
    let steps = proptest::collection::vec((1u64..200, 0u8..2), 1..120);
    TestRunner::default()
        .run(&steps, |steps| {
            let mut rig = rig.borrow_mut();
            let incarnation = incarnation.replace(incarnation.get() + 1) + 1;
            rig.receive.admit(1, Admit { incarnation, flags: 0, timeout_ns: 0 });
            let (mut merged, mut newest) = (ReplayWindow::new(), [0u64; MAX_PLANES]);
            for (seq, plane) in steps {
                let beat = Beat::of(1, seq).on(plane).incarnation(incarnation);
                let (_, stats) = raised(&rig, &frame(&beat.with(|b| b.goodbye().expect("room"))));
                let fresh = merged.accept(seq) == Seen::Fresh;
                let on_plane = seq > newest[usize::from(plane)];
                newest[usize::from(plane)] = newest[usize::from(plane)].max(seq);
                prop_assert_eq!(counts(&stats), if fresh || on_plane { ACCEPTED } else { REPLAYED });
                prop_assert_eq!(rig.wakes().len(), usize::from(fresh), "sections of {}", seq);
                prop_assert_eq!(rig.slot(1, usize::from(plane)).seq, newest[usize::from(plane)]);
            }
            Ok(())
        })
        .expect("as the model");
}

#[test]
fn root_incarnations() {
    let Some(mut rig) = Rig::new() else { return };
    rig.run(&Beat::of(1, 900).plain());
    let known = rig.slot(1, 0);

    // A newer one that the agent has not admitted: the agent hears of it, the slot stays.
    let newer = Beat::of(1, 1).incarnation(INCARNATION + 1);
    rig.run(&newer.plain());
    let news = rig.wakes();
    assert_eq!((news.len(), news[0].0.detail), (1, PACKET_UNADMITTED));
    assert_eq!(news[0].1, newer.plain());
    assert_eq!(format!("{:?}", rig.slot(1, 0)), format!("{known:?}"));

    // Admitted: it begins anew, and the one before is stale.
    rig.receive.admit(1, Admit { incarnation: INCARNATION + 1, flags: 0, timeout_ns: 0 });
    rig.run(&newer.plain());
    let slot = rig.slot(1, 0);
    assert_eq!((slot.incarnation, slot.seq, slot.received), (INCARNATION + 1, 1, 1));
    let (_, stats) = raised(&rig, &frame(&Beat::of(1, 901).plain()));
    assert_eq!(counts(&stats), STALE);
    assert_eq!(rig.slot(1, 0).seq, 1);
    let _ = rig.wakes();

    // Dead: nothing of it counts, and the agent sees one in thirty-two.
    rig.receive.admit(2, Admit { incarnation: INCARNATION, flags: ADMIT_DEAD, timeout_ns: 0 });
    for seq in 1..=96 {
        let (action, stats) = raised(&rig, &frame(&Beat::of(2, seq).plain()));
        assert_eq!((action, counts(&stats)), (XDP_DROP, STALE));
    }
    let slot = rig.slot(2, 0);
    assert_eq!((slot.incarnation, slot.seq, slot.received, slot.stale), (0, 0, 0, 96));
    let news = rig.wakes();
    assert_eq!(news.len(), 3, "a sample");
    assert!(news.iter().all(|(wake, _)| wake.detail == PACKET_UNADMITTED));
}

#[test]
fn root_a_slot_says_what_the_heartbeat_said() {
    let Some(mut rig) = Rig::new() else { return };
    let steady = ViewRepr::steady(ViewId { generation: 17, number: 4 });
    for sender in (1..=MEMBERS).filter(|sender| *sender != ME) {
        assert!(ack_index(sender, ME).is_some());
        for (plane, promise, view) in [(0u8, true, true), (1, true, false), (0, false, true), (1, false, false)] {
            let seq = 10 * u64::from(plane) + if promise { 1 } else { 2 };
            rig.run(&Beat::of(sender, seq).on(plane).with(|b| {
                if promise {
                    b.promise(1500).expect("room");
                }
                if view {
                    b.view(&steady).expect("room");
                }
            }));
            let slot = rig.slot(sender, usize::from(plane));
            assert_eq!((slot.incarnation, slot.seq), (INCARNATION, seq));
            assert_eq!((slot.ack_incarnation, slot.ack_seq_low), (100 + u32::from(ME), 1000 * u32::from(ME)));
            assert_eq!(slot.promise_us, if promise { 1500 } else { 0 });
            assert_eq!((slot.view_generation, slot.view_number), if view { (17, 4) } else { (0, 0) });
            assert!(slot.rx_ns > 0);
        }
    }
    assert!(rig.wakes().is_empty(), "steady sections are no work for the agent");
}

#[test]
fn root_other_sections_reach_the_agent_once() {
    let Some(mut rig) = Rig::new() else { return };
    let roster = Roster {
        slot: 3,
        state: ProcessState::Alive,
        name: Some(fide_wire::Name::new(b"redis").expect("a name")),
        incarnation: 1,
        pb_seq: 0,
        at_ns: 0,
    };
    for seq in 1..=20 {
        for plane in [1, 0] {
            let payload = Beat::of(4, seq).on(plane).with(|b| {
                b.promise(900).expect("room");
                b.roster(&roster).expect("room");
                b.piggyback(3, u32::try_from(seq).unwrap(), &vec![7; 60 * usize::try_from(seq).unwrap()])
                    .expect("room");
            });
            rig.run(&payload);
            let news = rig.wakes();
            assert_eq!(news.len(), usize::from(plane == 1), "the first copy only");
            if let Some((wake, bytes)) = news.first() {
                assert_eq!((wake.kind, wake.detail, wake.subject), (WAKE_PACKET, PACKET_SECTIONS, 1));
                assert_eq!(bytes, &payload);
            }
        }
        assert_eq!(rig.slot(4, 0).promise_us, 900, "the steady ones are taken where they are");
    }
}

#[test]
fn root_sections_that_the_agent_cannot_be_given_are_as_if_they_were_lost() {
    let Some(mut rig) = Rig::new() else { return };
    // Full-sized packets: more than the ring holds.
    let sent = u64::from(WAKE_RING_BYTES) / 1500 + 100;
    for seq in 1..=sent {
        rig.run(&Beat::of(1, seq).with(|b| b.piggyback(0, 1, &[1; 1392]).expect("room")));
    }
    let stats = rig.receive.stats();
    assert!(stats.wake_ring_full > 0 && stats.accepted > 0, "{stats:?}");
    assert_eq!(stats.accepted + stats.wake_ring_full, sent);
    assert_eq!(rig.slot(1, 0).seq, stats.accepted, "never acknowledged: its sender carries them again");

    // Liveness needs no room there, and neither does a death.
    rig.run(&Beat::of(1, sent + 1).plain());
    rig.run(&Beat::of(2, 1).plain());
    assert_eq!((rig.slot(1, 0).seq, rig.slot(2, 0).seq), (sent + 1, 1));
    rig.run(&notice(1, 0, 1, 0, 0));
    let news = rig.wakes();
    assert_eq!(news.len() as u64, stats.accepted + 1);
    assert_eq!(news.last().expect("the notice").0.detail, PACKET_NOTICE, "room is kept for those");
    rig.run(&Beat::of(1, sent + 2).with(|b| b.goodbye().expect("room")));
    assert_eq!(rig.wakes().len(), 1, "read empty, it takes records again");
}

#[test]
fn root_a_slot_is_never_read_torn() {
    const WRITES: u32 = 30_000;
    let Some(rig) = Rig::new() else { return };
    let writing = AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for seq in 1..=WRITES {
                let payload = Beat::of(1, seq.into()).with(|b| {
                    b.promise(seq).expect("room");
                    b.view(&ViewRepr::steady(ViewId { generation: seq, number: seq })).expect("room");
                });
                run(rig.receive.program(), &frame(&payload));
            }
            writing.store(false, Ordering::Release);
        });
        let (mut last, mut seen) = (0, 0u64);
        while writing.load(Ordering::Acquire) {
            let Some(slot) = rig.receive.slot(1, 0) else { continue };
            let seq = u32::try_from(slot.seq).expect("small");
            assert_eq!([slot.promise_us, slot.view_generation, slot.view_number], [seq; 3], "{slot:?}");
            assert_eq!(slot.received, u64::from(seq));
            assert!(seq >= last, "a slot never goes back");
            seen += u64::from(seq > last);
            last = seq;
        }
        assert!(seen > 0);
    });
    assert_eq!(rig.slot(1, 0).seq, u64::from(WRITES));
}
