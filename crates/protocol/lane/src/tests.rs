// SPDX-License-Identifier: Apache-2.0

use fide_wire::{Key, chunk::seal};
use proptest::prelude::*;

use super::*;

const PERIOD: u64 = 10_000_000;
const INCARNATION: u32 = 7;

fn terms(messages: usize, len: usize) -> Terms {
    let (scheme, packet_max_bytes) = message::best_scheme(messages, len).expect("fits");
    Terms { packet_max_bytes, period_ns: PERIOD, scheme }
}

/// What leaves by `now`, with the time at which it does.
fn drain(outlet: &mut Outlet, now: u64, out: &mut Vec<(u64, Vec<u8>)>) {
    while let Some(due) = outlet.due_ns().filter(|due| *due <= now) {
        let packet = outlet.poll(due.max(1), INCARNATION).expect("built").expect("due");
        seal(packet, 0, &Key([3; 16]));
        out.push((due, packet.to_vec()));
    }
}

fn delivered(inlet: &mut Inlet, bytes: &[u8], whole: bool) -> Vec<(u8, Vec<u8>)> {
    let mut out = Vec::new();
    let packet = ChunkPacket::new(bytes).expect("a packet");
    inlet.take(&packet, whole, |message| out.push((message.service, message.bytes.to_vec())));
    out
}

/// Packets with one message each.
fn packets(count: u8) -> Vec<Vec<u8>> {
    let mut outlet = Outlet::new(5, 2, terms(1, 40), 1_000_000);
    let mut out = Vec::new();
    for n in 0..count {
        let now = 1_000_000 + u64::from(n) * PERIOD;
        outlet.offer(now, 9, &[n; 40]).expect("within the contract");
        drain(&mut outlet, now, &mut out);
    }
    out.into_iter().map(|(_, bytes)| bytes).collect()
}

proptest! {
    #[test]
    fn whatever_is_offered_the_contract_holds(
        offers in prop::collection::vec((0u64..2 * PERIOD, 1u8..=255, 0usize..400), 1..100), messages in 1usize..4, len in 0usize..300,
    ) {
        let terms = terms(messages, len);
        let mut outlet = Outlet::new(1, 2, terms, 0);
        let (mut now, mut out, mut taken) = (0, Vec::new(), Vec::new());
        let offered = offers.len() as u64;
        for (pause, service, len) in offers {
            now += pause;
            drain(&mut outlet, now, &mut out);
            let message = vec![service; len];
            if outlet.offer(now, service, &message).is_ok() {
                taken.push((service, message));
            }
            drain(&mut outlet, now, &mut out);
        }
        drain(&mut outlet, now + 40 * PERIOD, &mut out);
        prop_assert!(out.windows(2).all(|pair| pair[1].0 >= pair[0].0 + PERIOD));
        prop_assert!(out.iter().all(|(_, bytes)| bytes.len() <= terms.packet_max_bytes));
        // What was taken is what leaves, in its order; the rest is counted.
        let mut inlet = Inlet::default();
        let read: Vec<_> = out.iter().flat_map(|(_, bytes)| delivered(&mut inlet, bytes, true)).collect();
        prop_assert!(read == taken, "{} read, {} taken", read.len(), taken.len());
        let sent = outlet.sent();
        prop_assert_eq!((sent.messages, sent.exceeded), (taken.len() as u64, offered - taken.len() as u64));
        prop_assert_eq!(sent.packets, out.len() as u64);
    }

    #[test]
    fn one_packet_a_period_is_never_refused(phases in prop::collection::vec(0u64..PERIOD, 1..200)) {
        let mut outlet = Outlet::new(1, 2, terms(1, 100), 0);
        let mut out = Vec::new();
        for (period, phase) in (0..).zip(phases) {
            let now = period * PERIOD + phase;
            drain(&mut outlet, now, &mut out);
            prop_assert_eq!(outlet.offer(now, 1, &[0; 100]), Ok(()));
            drain(&mut outlet, now, &mut out);
        }
    }

    #[test]
    fn copies_in_any_order_are_delivered_once(order in prop::collection::vec(0usize..40, 0..200)) {
        let packets = packets(40);
        let (mut inlet, mut seen) = (Inlet::default(), Vec::new());
        for at in order {
            for (_, bytes) in delivered(&mut inlet, &packets[at], true) {
                prop_assert_eq!(usize::from(bytes[0]), at);
                prop_assert!(!seen.contains(&at));
                seen.push(at);
            }
        }
        let received = inlet.received();
        prop_assert_eq!(received.packets, seen.len() as u64);
        prop_assert_eq!((received.late, received.lost), (0, 0));
    }
}

#[test]
fn what_exceeds_says_by_how_much() {
    let mut outlet = Outlet::new(1, 2, terms(1, 40), 0);
    outlet.offer(0, 1, &[0; 10]).expect("fits");
    assert!(outlet.poll(0, INCARNATION).expect("built").is_some());
    assert_eq!(outlet.due_ns(), None);
    assert_eq!(outlet.offer(1, 1, &[0; 60]), Err(Exceeded::Size { len: 60, max: 58 }));
    for _ in 0..3 {
        outlet.offer(1, 1, &[0; 58]).expect("the next packet, and two for a loop that is late");
    }
    assert_eq!(outlet.offer(4, 1, &[]), Err(Exceeded::Rate { packets: 3, wait_ns: PERIOD - 4 }));
    assert!(outlet.poll(PERIOD - 1, INCARNATION).expect("built").is_none());
    assert_eq!(outlet.sent(), Sent { packets: 1, messages: 4, exceeded: 2 });
    assert!(outlet.poll(PERIOD, INCARNATION).expect("built").is_some());
    outlet.offer(PERIOD, 1, &[0; 58]).expect("there is room again");
}

#[test]
fn a_loop_that_is_late_blames_nobody() {
    // Planned with a period shorter than the program's, as the agent does; the loop stands still for 19 ms
    // now and then.
    let terms = Terms { period_ns: 875_000, ..terms(1, 40) };
    let mut outlet = Outlet::new(1, 2, terms, 0);
    let (mut out, mut turn) = (Vec::new(), 0);
    let mut pending = Vec::new();
    for millisecond in 0..10_000u64 {
        let now = millisecond * 1_000_000;
        pending.push(now);
        if now < turn {
            continue;
        }
        for _ in pending.drain(..) {
            outlet.offer(now, 1, &[0; 40]).expect("the program keeps to one a millisecond");
        }
        drain(&mut outlet, now, &mut out);
        if millisecond % 250 == 0 {
            turn = now + 19_000_000;
        }
    }
    assert_eq!(outlet.sent().exceeded, 0);
}

#[test]
fn what_is_no_packet_of_ours_moves_no_window() {
    let packets = packets(40);
    let mut inlet = Inlet::default();
    assert!(delivered(&mut inlet, &packets[0], false).is_empty(), "nothing is known of the sender yet");
    delivered(&mut inlet, &packets[0], true);
    assert!(delivered(&mut inlet, &packets[39], false).is_empty(), "too far from what is known");
    // Whole chunks of packets to come are delivered, once.
    assert_eq!(delivered(&mut inlet, &packets[5], false), [(9, vec![5; 40])]);
    assert_eq!(delivered(&mut inlet, &packets[3], true), [(9, vec![3; 40])]);
    assert_eq!(delivered(&mut inlet, &packets[6], true), [(9, vec![6; 40])]);
    assert!(delivered(&mut inlet, &packets[5], true).is_empty());
    assert_eq!(delivered(&mut inlet, &packets[4], true), [(9, vec![4; 40])]);
    assert_eq!(inlet.received().packets, 5);
}

#[test]
fn a_longer_period_counts_from_the_last_packet_and_a_smaller_packet_drops_what_waits() {
    let mut outlet = Outlet::new(1, 2, terms(2, 40), 0);
    outlet.offer(5, 1, &[1]).expect("fits");
    outlet.poll(5, INCARNATION).expect("built").expect("due");
    for n in 2..8 {
        outlet.offer(6, 1, &[n; 40]).expect("six fit three packets");
    }
    let shorter = Terms { period_ns: PERIOD / 2, ..terms(1, 40) };
    outlet.change(7, shorter);
    assert_eq!(outlet.due_ns(), Some(5 + PERIOD / 2));
    assert_eq!(outlet.sent(), Sent { packets: 1, messages: 6, exceeded: 1 }, "and five fit five");
    let longer = Terms { period_ns: 3 * PERIOD, ..shorter };
    outlet.change(8, longer);
    outlet.poll(5 + PERIOD / 2, INCARNATION).expect("built").expect("due: the period in which it was taken holds");
}

#[test]
fn loss_is_counted_once_it_is_sure_and_a_lane_used_anew_is_none() {
    let mut outlet = Outlet::new(0, 2, terms(1, 8), 0);
    let mut inlet = Inlet::default();
    let send = |outlet: &mut Outlet, n: u64| {
        outlet.offer(n * PERIOD, 1, &[]).expect("fits");
        let packet = outlet.poll(n * PERIOD, INCARNATION).expect("built").expect("due");
        seal(packet, 0, &Key([3; 16]));
        packet.to_vec()
    };
    for n in 1..=200 {
        let packet = send(&mut outlet, n);
        if n == 10 || n > 100 && n < 180 {
            continue;
        }
        delivered(&mut inlet, &packet, true);
    }
    // 10, and of the 79 those that left the window when 200 came.
    assert_eq!(inlet.received().lost, 1 + (200 - 64 - 100));
    assert_eq!(inlet.received().packets, 120);
    let mut again = Outlet::new(0, 2, terms(1, 8), 1_000_000 * PERIOD);
    let packet = send(&mut again, 1_000_001);
    assert_eq!(delivered(&mut inlet, &packet, true).len(), 1);
    assert_eq!(inlet.received().lost, 37);
}

#[test]
fn old_copy_and_other_incarnation_are_distinguished() {
    let packets = packets(80);
    let mut inlet = Inlet::default();
    delivered(&mut inlet, &packets[79], true);
    assert!(delivered(&mut inlet, &packets[15], true).is_empty());
    assert_eq!(inlet.received().late, 1);
    let mut outlet = Outlet::new(5, 2, terms(1, 8), 0);
    outlet.offer(0, 1, b"new").expect("fits");
    let packet = outlet.poll(0, INCARNATION + 1).expect("built").expect("due");
    seal(packet, 0, &Key([3; 16]));
    assert_eq!(delivered(&mut inlet, packet, true), [(1, b"new".to_vec())]);
}

#[test]
fn a_damaged_copy_gives_what_is_whole_and_the_other_copy_the_rest() {
    let mut outlet = Outlet::new(1, 2, terms(3, 40), 1_000_000);
    for service in 1..=3 {
        outlet.offer(1_000_000, service, &[service; 40]).expect("fits");
    }
    let packet = outlet.poll(1_000_000, INCARNATION).expect("built").expect("due");
    seal(packet, 0, &Key([3; 16]));
    let mut damaged = packet.to_vec();
    let chunk = Scheme::Chunks36.chunk_len();
    assert_eq!(damaged.len(), 32 + 6 * chunk);
    damaged[32 + 3 * chunk] ^= 1;
    let mut inlet = Inlet::resumed(INCARNATION, number_of(ChunkPacket::new(&*packet).expect("a packet").seq()) - 1);
    assert_eq!(delivered(&mut inlet, &damaged, false), [(1, vec![1; 40]), (3, vec![3; 40])]);
    assert_eq!(delivered(&mut inlet, &damaged, false), []);
    assert_eq!(delivered(&mut inlet, packet, true), [(2, vec![2; 40])]);
    assert_eq!(delivered(&mut inlet, packet, true), []);
    let received = inlet.received();
    assert_eq!((received.packets, received.damaged, received.duplicates), (1, 2, 1));
}

#[test]
fn the_lane_is_in_the_upper_bits_of_the_number() {
    assert_eq!(lane_of(ChunkPacket::new(&packets(1)[0]).expect("a packet").seq()), 5);
}
