// SPDX-License-Identifier: Apache-2.0
//! What happens at each bound.

use super::*;

fn offer(host: &mut Transfers, from: u16, identity: Identity, number: u64) {
    host.receive(from, &bytes(TransferMessage::Offer { identity, number })).unwrap();
}

#[test]
fn offer_without_room_waits_until_one_is_forgotten() {
    let mut world = World::new(2, Config { stored_max: 100, ..config() });
    let (first, second) = (world.offer(1, payload(1, 60)), identity(2, 60));
    world.calm();
    world.at(1).forget(&first);
    world.spread(1);
    world.offer(1, payload(2, 60));
    for _ in 0..5 {
        world.round();
    }
    assert_eq!((world.spread(1), world.host(2).get(&second)), (vec![], None));
    assert!(world.host(2).counters().offers_put_off > 0);
    assert_eq!(world.at(1).poll_refused(), None);
    world.at(2).forget(&first);
    world.calm();
    assert_eq!(world.spread(1), [second]);
    // The same for a host's own payloads.
    let full = RoomError::Full { len: 41, used: 60, max: 100 };
    assert_eq!(world.at(1).offer(payload(3, 41), HostSet::EMPTY), Err(OfferError::Room(full)));
    assert_eq!(world.at(1).store(payload(3, 41)), Err(full));
    assert_eq!(world.at(1).fetch(identity(3, 41), 2), Err(FetchError::Room(full)));
    assert_eq!(world.at(1).store(payload(2, 60)), Ok(second), "no second copy");
    assert_eq!(world.host(1).used_bytes(), 60);
    world.at(1).forget(&second);
    world.at(1).store(payload(3, 41)).unwrap();
}

#[test]
fn offer_that_never_has_room_is_refused() {
    let mut host = Transfers::new(2, Config { stored_max: 900, ..config() }).unwrap();
    let refused = |host: &mut Transfers, len, reason| {
        let identity = Identity { len, hash: [9; 32] };
        offer(host, 1, identity, len);
        assert_eq!(sent(host), [(to(&[1]), bytes(TransferMessage::Refuse { identity, number: len, reason }))]);
    };
    refused(&mut host, 901, Reason::BeyondRoom);
    refused(&mut host, 1000, Reason::BeyondRoom);
    refused(&mut host, 1001, Reason::TooLong);
    refused(&mut host, u64::MAX, Reason::TooLong);
    assert_eq!((host.used_bytes(), host.arriving.len()), (0, 0));
    let long = RoomError::TooLong { len: 901, max: 900 };
    assert_eq!(host.store(payload(1, 901)), Err(long));
    assert_eq!(host.fetch(Identity { len: 901, hash: [0; 32] }, 1), Err(long.into()));
}

#[test]
fn payloads_under_way_are_bounded() {
    let mut world = World::new(2, config());
    let offered: Vec<_> = (0..10).map(|seed| world.offer(1, payload(seed, 100))).collect();
    world.step(1);
    assert_eq!(world.host(2).arriving.len(), 4);
    assert_eq!(world.host(2).counters().offers_put_off, 6);
    assert_eq!(world.at(2).fetch(identity(99, 5), 1), Err(RoomError::Arriving { max: 4 }.into()));
    world.calm();
    assert_eq!(world.spread(1).len(), offered.len());
}

#[test]
fn repeated_wants_use_bounded_memory() {
    let mut host = Transfers::new(1, config()).unwrap();
    let identity = host.store(payload(1, 1000)).unwrap();
    let want = |first, count| bytes(TransferMessage::Want { identity, first, count });
    for _ in 0..1000 {
        host.receive(2, &want(0, 250)).unwrap();
    }
    assert_eq!(host.peers[2].queued(), (1, 0));
    assert_eq!(sent(&mut host).len(), 250, "each chunk once");
    // Of ranges that do not touch, the newest are served.
    for first in 0..125 {
        host.receive(2, &want(first * 2, 1)).unwrap();
    }
    let other = host.store(payload(2, 1000)).unwrap();
    for first in 0..125 {
        host.receive(2, &bytes(TransferMessage::Want { identity: other, first: first * 2, count: 1 })).unwrap();
    }
    assert_eq!((host.peers[2].queued(), host.counters().dropped), ((RANGES_MAX, 0), 250 - RANGES_MAX as u64));
    let served = sent(&mut host);
    let newest =
        served.iter().filter(|(_, chunk)| chunk[4..44] == bytes(TransferMessage::Missing { identity: other })[4..44]);
    assert_eq!((served.len(), newest.count()), (RANGES_MAX, 125));
    // They become one range of all that they cover, in any order.
    for (first, count) in [(10, 5), (20, 5), (15, 5), (0, 3), (2, 9)] {
        host.receive(2, &want(first, count)).unwrap();
    }
    assert_eq!((host.peers[2].queued().0, sent(&mut host).len()), (1, 25));
    // Ranges of a forgotten payload take up no room.
    host.receive(2, &want(0, 9)).unwrap();
    host.forget(&identity);
    assert_eq!(host.peers[2].queued(), (0, 0));
    // Many payloads that are not stored are asked for.
    for len in 0..1000 {
        let identity = Identity { len, hash: [1; 32] };
        host.receive(2, &bytes(TransferMessage::Want { identity, first: 0, count: 1 })).unwrap();
        host.receive(2, &bytes(TransferMessage::Want { identity, first: 0, count: 1 })).unwrap();
    }
    assert_eq!(host.peers[2].queued(), (0, ANSWERS_MAX));
    assert_eq!(sent(&mut host).len(), ANSWERS_MAX);
}

#[test]
fn hosts_and_payloads_take_turns() {
    let mut host = Transfers::new(1, config()).unwrap();
    let all = [host.store(payload(1, 1000)).unwrap(), host.store(payload(2, 1000)).unwrap()];
    for (from, identity) in [(2, all[0]), (2, all[1]), (3, all[0])] {
        host.receive(from, &bytes(TransferMessage::Want { identity, first: 0, count: 250 })).unwrap();
    }
    let first: Vec<_> = sent(&mut host).into_iter().take(400).collect();
    let to_three = first.iter().filter(|(receiver, _)| *receiver == to(&[3])).count();
    assert_eq!(to_three, 200);
    for identity in all {
        let of = bytes(TransferMessage::Missing { identity });
        let of = first.iter().filter(|(receiver, chunk)| *receiver == to(&[2]) && chunk[4..44] == of[4..44]);
        assert_eq!(of.count(), 100);
    }
    // A host that asks again keeps its turn, and gets no other.
    host.receive(4, &bytes(TransferMessage::Want { identity: all[0], first: 5, count: 5 })).unwrap();
    host.receive(4, &bytes(TransferMessage::Want { identity: all[1], first: 0, count: 5 })).unwrap();
    host.receive(4, &bytes(TransferMessage::Want { identity: all[0], first: 0, count: 5 })).unwrap();
    let first = bytes(TransferMessage::Chunk { identity: all[0], index: 0, bytes: &payload(1, 1000)[..4] });
    assert_eq!(sent(&mut host)[0], (to(&[4]), first));
    // Answers to hosts and wants of payloads take turns too.
    for (from, len) in [(2, 1), (2, 2), (3, 1)] {
        let identity = Identity { len, hash: [1; 32] };
        host.receive(from, &bytes(TransferMessage::Want { identity, first: 0, count: 1 })).unwrap();
    }
    let hosts: Vec<_> = sent(&mut host).into_iter().map(|(to, _)| to).collect();
    assert_eq!(hosts, [to(&[2]), to(&[3]), to(&[2])]);
    for seed in 10..13 {
        offer(&mut host, 5, identity(seed, 1000), seed.into());
    }
    sent(&mut host);
    host.resend();
    host.resend();
    let mut out = Vec::new();
    let mut want = |host: &mut Transfers| {
        host.poll_transmit(&mut out);
        out[4..44].to_vec()
    };
    let first = want(&mut host);
    for index in 0..8 {
        let chunk = &payload(10, 1000)[index as usize * 4..][..4];
        host.receive(5, &bytes(TransferMessage::Chunk { identity: identity(10, 1000), index, bytes: chunk })).unwrap();
    }
    let (second, third) = (want(&mut host), want(&mut host));
    assert!(first != second && second != third && third != first);
}

#[test]
fn messages_per_resend_are_bounded() {
    let mut host = Transfers::new(1, Config { wants_max: 1000, payload_max: 4000, ..config() }).unwrap();
    for seed in 0..150 {
        host.offer(payload(seed, 8), to(&[2, 3])).unwrap();
    }
    assert_eq!(sent(&mut host).len(), 150);
    host.resend();
    assert_eq!(sent(&mut host), [], "an answer may be under way");
    let mut again = Vec::new();
    for _ in 0..3 {
        host.resend();
        let offers = sent(&mut host);
        assert_eq!(offers.len(), OFFERS_PER_RESEND);
        again.extend(offers);
    }
    again.truncate(150);
    again.sort_unstable_by(|one, other| one.1.cmp(&other.1));
    again.dedup();
    assert_eq!(again.len(), 150, "each before one comes twice");
    // Every second chunk of a payload under way is lost.
    let lost = payload(200, 4000);
    offer(&mut host, 2, Identity::of(&lost), 1);
    assert_eq!(sent(&mut host).len(), 1);
    for index in (0..1000).step_by(2) {
        let chunk = &lost[index as usize * 4..][..4];
        host.receive(2, &bytes(TransferMessage::Chunk { identity: Identity::of(&lost), index, bytes: chunk })).unwrap();
    }
    let wants = |host: &mut Transfers| -> Vec<u32> {
        let read = |(_, message): (HostSet, Vec<u8>)| match TransferMessage::read(&message) {
            Ok(TransferMessage::Want { first, count: 1, .. }) => Some(first),
            _ => None,
        };
        sent(host).into_iter().filter_map(read).collect()
    };
    host.resend();
    assert!(wants(&mut host).is_empty(), "they may be under way");
    host.resend();
    assert_eq!(wants(&mut host), (0..32).map(|at| 2 * at + 1).collect::<Vec<_>>());
    host.resend();
    assert_eq!(wants(&mut host), (32..64).map(|at| 2 * at + 1).collect::<Vec<_>>());
    assert_eq!((host.counters().wants_resent, host.arriving[0].outstanding()), (64, 500));
}

#[test]
fn offers_beyond_an_unanswered_one_are_bounded() {
    let mut host = Transfers::new(1, config()).unwrap();
    let first = host.offer(payload(1, 8), to(&[2])).unwrap();
    for number in 2..=OFFERS_MAX {
        let identity = host.offer(payload(2, 8), to(&[2])).unwrap();
        host.receive(2, &bytes(TransferMessage::Have { identity, number })).unwrap();
    }
    assert_eq!(host.offer(payload(2, 8), to(&[2])), Err(OfferError::Unanswered { oldest: 1 }));
    host.receive(2, &bytes(TransferMessage::Have { identity: first, number: 1 })).unwrap();
    host.offer(payload(2, 8), to(&[2])).unwrap();
    // So a host that has seen the newest offer still knows what became of the oldest one.
    let mut receiver = Transfers::new(2, config()).unwrap();
    offer(&mut receiver, 1, identity(3, 8), OFFERS_MAX);
    offer(&mut receiver, 1, first, 1);
    assert_eq!(receiver.arriving.len(), 2);
    // A finished offer leaves no trace for the offers that take its place.
    receiver.forget(&first);
    offer(&mut receiver, 1, identity(9, 0), OFFERS_MAX + 2);
    offer(&mut receiver, 1, first, OFFERS_MAX + 1);
    assert_eq!(receiver.arriving.len(), 2);
    offer(&mut receiver, 1, identity(4, 0), u64::MAX);
    offer(&mut receiver, 1, identity(5, 8), u64::MAX - OFFERS_MAX);
    assert_eq!((receiver.arriving.len(), receiver.stored().count()), (2, 1), "older than that is done with");
}

#[test]
fn payloads_and_refusals_are_bounded() {
    let mut host = Transfers::new(1, Config { payload_max: 2000, stored_max: 1 << 20, ..config() }).unwrap();
    for len in 0..PAYLOADS_MAX - 1 {
        host.store(payload(1, len)).unwrap();
    }
    host.fetch(identity(2, 5), 2).unwrap();
    assert_eq!(host.store(payload(3, 9)), Err(RoomError::Payloads));
    offer(&mut host, 2, identity(3, 9), 1);
    assert_eq!((host.arriving.len(), host.counters().offers_put_off), (1, 1));
    // A missing payload counts until it is polled.
    host.crashed(2);
    assert_eq!(host.store(payload(3, 9)), Err(RoomError::Payloads));
    assert!(host.poll_missing().is_some());
    host.store(payload(3, 9)).unwrap();
    for number in 1..=REFUSED_MAX as u64 + 1 {
        let identity = host.offer(payload(3, 9), to(&[3])).unwrap();
        host.receive(3, &bytes(TransferMessage::Refuse { identity, number, reason: Reason::TooLong })).unwrap();
    }
    assert_eq!(host.refused.len(), REFUSED_MAX);
    sent(&mut host);
    host.resend();
    host.resend();
    assert_eq!(sent(&mut host).len(), 1, "the last one is asked again");
}

/// A state and the decisions since it have room beside all offers, here and where they arrive.
#[test]
fn offers_leave_room_for_stored_and_fetched_payloads() {
    let config = Config { payload_max: 400, stored_max: 1000, reserved: 500, ..config() };
    let mut host = Transfers::new(1, config).unwrap();
    host.offer(payload(1, 400), to(&[2])).unwrap();
    let full = RoomError::Full { len: 200, used: 400, max: 500 };
    assert_eq!(host.offer(payload(2, 200), to(&[2])), Err(OfferError::Room(full)));
    offer(&mut host, 2, identity(3, 200), 1);
    assert_eq!((host.arriving.len(), host.counters().offers_put_off), (0, 1));
    host.store(payload(4, 200)).unwrap();
    host.fetch(identity(5, 400), 2).unwrap();
    assert_eq!(host.used_bytes(), 1000);
    let mut host = Transfers::new(1, Config { payload_max: 2000, stored_max: 1 << 20, ..config }).unwrap();
    let offered = (0..2000).take_while(|len| host.offer(payload(1, *len), to(&[])).is_ok()).count();
    assert_eq!(offered, OFFERED_MAX);
    host.store(payload(2, 9)).unwrap();
}

/// An offer of a long payload allocates its length and a bit for each chunk.
#[test]
fn arriving_payload_has_one_buffer() {
    let len = 1 << 20;
    let mut host =
        Transfers::new(2, Config { chunk_max: 1024, payload_max: len, stored_max: 2 * len, ..config() }).unwrap();
    for number in 1..=8 {
        offer(&mut host, 1, Identity { len, hash: [number; 32] }, number.into());
    }
    assert_eq!((host.arriving.len(), host.used_bytes()), (2, 2 * len));
    for arriving in &host.arriving {
        let (bytes, bits) = arriving.sizes();
        assert_eq!((bytes, bits), (1 << 20, 1024 / 8));
    }
    // In any order, and however often chunks come, nothing more is allocated.
    sent(&mut host);
    assert_eq!(host.used_bytes(), 2 * len);
    host.crashed(1);
    assert_eq!((host.arriving.len(), host.used_bytes()), (0, 0));
}
