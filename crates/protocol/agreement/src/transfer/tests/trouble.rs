// SPDX-License-Identifier: Apache-2.0
//! Wrong bytes, hosts that crash, payloads that are forgotten, messages that come late.

use super::*;

/// Sends the chunks that a host wants, each changed by `change`. Returns the hosts that it asked, one after
/// the other.
fn served(receiver: &mut Transfers, payload: &[u8], mut change: impl FnMut(u32, &mut Vec<u8>)) -> Vec<u16> {
    let identity = Identity::of(payload);
    let mut hosts = Vec::new();
    for _ in 0..100 {
        receiver.resend();
        for (to, message) in sent(receiver) {
            let TransferMessage::Want { first, count, .. } = TransferMessage::read(&message).unwrap() else { continue };
            let host = to.iter().next().unwrap();
            hosts.push(host);
            for index in first..first + count {
                let mut chunk = payload[place(index, 4, payload.len())].to_vec();
                change(index, &mut chunk);
                receiver.receive(host, &bytes(TransferMessage::Chunk { identity, index, bytes: &chunk })).unwrap();
            }
        }
    }
    hosts.dedup();
    hosts
}

#[test]
fn damaged_chunk_is_found_and_repaired() {
    let (payload, identity) = (payload(1, 90), identity(1, 90));
    let mut receiver = Transfers::new(2, config()).unwrap();
    receiver.receive(1, &bytes(TransferMessage::Offer { identity, number: 1 })).unwrap();
    let mut damage = 2;
    served(&mut receiver, &payload, |index, chunk| {
        if index == 13 && damage > 0 {
            damage -= 1;
            chunk[2] ^= 0x10;
        }
    });
    assert_eq!(receiver.get(&identity), Some(&*payload));
    assert_eq!((receiver.poll_arrived(), receiver.poll_missing()), (Some(identity), None));
    assert_eq!((receiver.counters().payloads_wrong, receiver.counters().sources_given_up), (2, 0));
}

#[test]
fn source_of_wrong_bytes_is_given_up() {
    let identity = identity(1, 90);
    let mut receiver = Transfers::new(2, config()).unwrap();
    let offer = bytes(TransferMessage::Offer { identity, number: 1 });
    receiver.receive(1, &offer).unwrap();
    let mut chunks = 0;
    let mut answers = Vec::new();
    for _ in 0..100 {
        for (_, message) in sent(&mut receiver) {
            let TransferMessage::Want { first, count, .. } = TransferMessage::read(&message).unwrap() else {
                answers.push(message);
                continue;
            };
            for index in first..first + count {
                chunks += 1;
                let lie = vec![0; place(index, 4, 90).len()];
                receiver.receive(1, &bytes(TransferMessage::Chunk { identity, index, bytes: &lie })).unwrap();
            }
        }
    }
    let refuse = bytes(TransferMessage::Refuse { identity, number: 1, reason: Reason::Wrong });
    assert_eq!((chunks, &answers), (3 * 23, &vec![refuse.clone()]));
    assert_eq!((receiver.poll_arrived(), receiver.poll_missing()), (None, Some(identity)));
    assert_eq!((receiver.counters().payloads_wrong, receiver.counters().sources_given_up), (3, 1));
    assert_eq!((receiver.used_bytes(), receiver.get(&identity)), (0, None));
    // That offer stays refused; another one is taken.
    receiver.receive(1, &offer).unwrap();
    assert_eq!(sent(&mut receiver), [(to(&[1]), refuse)]);
    receiver.receive(1, &bytes(TransferMessage::Offer { identity, number: 2 })).unwrap();
    assert_eq!(receiver.arriving.len(), 1);
}

#[test]
fn another_source_is_asked_after_a_wrong_payload() {
    let (payload, identity) = (payload(1, 90), identity(1, 90));
    let mut receiver = Transfers::new(2, config()).unwrap();
    receiver.receive(1, &bytes(TransferMessage::Offer { identity, number: 1 })).unwrap();
    receiver.fetch(identity, 3).unwrap();
    assert_eq!(sent(&mut receiver)[0].0, to(&[1]));
    let mut first = true;
    let hosts = served(&mut receiver, &payload, |index, chunk| {
        if first {
            chunk.fill(0);
        }
        first &= index != 22;
    });
    assert_eq!((receiver.get(&identity), receiver.counters().payloads_wrong), (Some(&*payload), 1));
    assert_eq!(hosts, [1, 3], "not the liar twice in a row");
}

#[test]
fn next_source_is_asked_at_once_after_a_crash() {
    let identity = identity(1, 90);
    let mut receiver = Transfers::new(2, config()).unwrap();
    [1, 3, 4].into_iter().for_each(|host| receiver.fetch(identity, host).unwrap());
    let want = bytes(TransferMessage::Want { identity, first: 0, count: 8 });
    assert_eq!(sent(&mut receiver), [(to(&[1]), want.clone())]);
    receiver.crashed(4);
    assert_eq!(sent(&mut receiver), [], "it was not asked");
    receiver.crashed(1);
    assert_eq!(sent(&mut receiver), [(to(&[3]), want)]);
    receiver.resend();
    assert_eq!(sent(&mut receiver), [], "an answer may be under way");
}

#[test]
fn empty_payload_with_another_hash_is_refused() {
    let mut receiver = Transfers::new(2, config()).unwrap();
    let identity = Identity { len: 0, hash: [1; 32] };
    receiver.receive(1, &bytes(TransferMessage::Offer { identity, number: 1 })).unwrap();
    let refuse = bytes(TransferMessage::Refuse { identity, number: 1, reason: Reason::Wrong });
    assert_eq!(sent(&mut receiver), [(to(&[1]), refuse)]);
    assert_eq!(receiver.poll_missing(), Some(identity));
}

#[test]
fn payload_of_a_crashed_host_is_missing() {
    let mut world = World::new(3, config());
    let (lost, kept) = (world.offer(1, payload(1, 400)), identity(2, 400));
    world.at(2).store(payload(2, 400)).unwrap();
    world.offer(1, payload(2, 400));
    for _ in 0..3 {
        (1..=3).for_each(|host| world.step(host));
        assert_eq!(world.host(3).arriving.len(), 2);
    }
    world.at(3).fetch(kept, 2).unwrap();
    let half = world.host(3).counters().chunks_taken;
    assert!(half > 20);
    world.crash(1);
    world.calm();
    assert_eq!((world.missing(2), world.missing(3)), (vec![lost], vec![lost]));
    // The other one goes on where the first one stopped.
    assert_eq!((world.arrived(3), world.host(3).used_bytes()), (vec![kept], 400));
    assert_eq!(world.host(3).counters().chunks_taken, 100 + half / 2);
}

#[test]
fn crashed_host_is_neither_awaited_nor_heard() {
    let mut world = World::new(3, config());
    let identity = world.offer(1, payload(1, 40));
    world.crash(3);
    for _ in 0..3 {
        world.step(1);
        world.step(2);
    }
    assert_eq!((world.arrived(2), world.spread(1)), (vec![identity], vec![]));
    world.notice(0);
    assert_eq!(world.spread(1), [identity]);
    assert_eq!(world.at(1).receive(3, &[]), Err(TransferError::Crashed { host: 3 }));
    assert_eq!(world.at(1).fetch(identity, 3), Err(FetchError::Crashed { host: 3 }));
    // It is not offered to a host that is known to be dead.
    let other = world.at(1).offer(payload(2, 4), to(&[3])).unwrap();
    assert_eq!(world.at(1).poll_spread(), Some(other));
    // When it comes back, it has nothing of what its former incarnation had.
    world.at(1).joined(3);
    let number = world.host(1).last + 1;
    world.at(1).offer(payload(1, 40), to(&[3])).unwrap();
    assert_eq!(sent(world.at(1)), [(to(&[3]), bytes(TransferMessage::Offer { identity, number }))]);
    // Its first offer is a new one.
    let mut host = Transfers::new(2, config()).unwrap();
    let offer = bytes(TransferMessage::Offer { identity, number: 1 });
    host.receive(1, &offer).unwrap();
    host.forget(&identity);
    host.joined(1);
    host.receive(1, &offer).unwrap();
    assert_eq!(host.arriving.len(), 1);
}

#[test]
fn forgotten_payload_stays_free() {
    let mut world = World::new(2, config());
    // Arrived, and forgotten: a late copy of the offer does not bring it back.
    let identity = world.offer(1, payload(1, 40));
    let offer = bytes(TransferMessage::Offer { identity, number: 1 });
    world.calm();
    world.at(2).forget(&identity);
    assert_eq!((world.host(2).used_bytes(), world.arrived(2)), (0, vec![identity]));
    world.at(2).receive(1, &offer).unwrap();
    assert_eq!(world.host(2).used_bytes(), 0);
    assert_eq!(sent(world.at(2)), [(to(&[1]), bytes(TransferMessage::Have { identity, number: 1 }))]);
    // Not reported if it is forgotten first.
    world.spread(1);
    world.at(1).offer(payload(2, 9), HostSet::EMPTY).unwrap();
    world.at(1).forget(&self::identity(2, 9));
    assert_eq!(world.spread(1), []);
    // While it arrives: its offerer gets a refusal.
    let identity = world.offer(1, payload(3, 40));
    world.step(1);
    assert_eq!(world.host(2).used_bytes(), 40);
    world.at(2).forget(&identity);
    assert_eq!(world.host(2).used_bytes(), 0);
    world.calm();
    assert_eq!(world.at(1).poll_refused(), Some((2, identity, Reason::Forgotten)));
    assert_eq!((world.spread(1), world.arrived(2), world.missing(2)), (vec![], vec![], vec![]));
    // While it is offered: a host that fetches it hears that it is missing.
    let identity = world.offer(1, payload(4, 40));
    world.step(1);
    world.step(2);
    world.at(1).forget(&identity);
    world.calm();
    assert_eq!((world.missing(2), world.host(2).used_bytes()), (vec![identity], 0));
}

/// A late answer to a former offer says nothing about this one.
#[test]
fn answers_are_to_one_offer() {
    let mut host = Transfers::new(1, config()).unwrap();
    let identity = host.offer(payload(1, 40), to(&[2])).unwrap();
    let have = |number| bytes(TransferMessage::Have { identity, number });
    host.receive(2, &have(1)).unwrap();
    assert_eq!(host.poll_spread(), Some(identity));
    host.offer(payload(1, 40), to(&[2])).unwrap();
    host.receive(2, &have(1)).unwrap();
    assert_eq!(host.poll_spread(), None);
    host.receive(2, &have(2)).unwrap();
    assert_eq!(host.poll_spread(), Some(identity));
    assert_eq!(host.receive(2, &have(3)), Err(TransferError::Number { number: 3, last: Some(2) }));
}

#[test]
fn refusal_is_reported_once_and_ends_with_its_host() {
    let mut host = Transfers::new(1, config()).unwrap();
    let identity = host.offer(payload(1, 40), to(&[2, 3])).unwrap();
    let refuse = bytes(TransferMessage::Refuse { identity, number: 1, reason: Reason::TooLong });
    host.receive(2, &refuse).unwrap();
    host.receive(2, &refuse).unwrap();
    host.receive(3, &bytes(TransferMessage::Have { identity, number: 1 })).unwrap();
    assert_eq!((host.poll_refused(), host.poll_refused()), (Some((2, identity, Reason::TooLong)), None));
    assert_eq!((host.poll_spread(), sent(&mut host)), (None, vec![]));
    host.crashed(2);
    assert_eq!(host.poll_spread(), Some(identity));
}

#[test]
fn wrong_message_is_named_and_changes_nothing() {
    let mut host = Transfers::new(2, config()).unwrap();
    let (identity, other) = (identity(1, 30), identity(2, 30));
    let stored = host.store(payload(3, 10)).unwrap();
    host.receive(1, &bytes(TransferMessage::Offer { identity, number: 7 })).unwrap();
    assert_eq!(sent(&mut host).len(), 1);
    let with = |message: &[u8], at: usize, byte: u8| {
        let mut message = message.to_vec();
        message[at] = byte;
        message
    };
    let offer = bytes(TransferMessage::Offer { identity: other, number: 8 });
    let have = bytes(TransferMessage::Have { identity: other, number: 1 });
    let want = |first, count| bytes(TransferMessage::Want { identity: stored, first, count });
    let chunk = |identity, index, chunk: &[u8]| bytes(TransferMessage::Chunk { identity, index, bytes: chunk });
    let refuse = bytes(TransferMessage::Refuse { identity, number: 1, reason: Reason::Wrong });
    let wrong: [(u16, Vec<u8>, &str); 27] = [
        (1, vec![], "0 bytes; the shortest message has 44"),
        (1, offer[..43].to_vec(), "43 bytes; the shortest message has 44"),
        (1, offer[..51].to_vec(), "51 bytes; an offer has 52"),
        (1, [&offer[..], b"x"].concat(), "53 bytes; an offer has 52"),
        (1, want(0, 1)[..48].to_vec(), "48 bytes; a want has 52"),
        (1, have[..48].to_vec(), "48 bytes; a have has 52"),
        (1, refuse[..48].to_vec(), "48 bytes; a refuse has 52"),
        (1, chunk(identity, 0, b"")[..47].to_vec(), "47 bytes; the shortest chunk has 48"),
        (1, [&bytes(TransferMessage::Missing { identity })[..], b"x"].concat(), "45 bytes; a missing has 44"),
        (1, with(&offer, 1, 2), "version 2; this program speaks 1"),
        (1, with(&offer, 0, 15), "kind 15; 16 (offer)"),
        (1, with(&offer, 0, 22), "kind 22;"),
        (1, with(&offer, 2, 1), "1 in the place of a reason; it has to be 0"),
        (1, with(&refuse, 2, 5), "reason 5; 1 (too long)"),
        (1, with(&offer, 44, 0), "offer 0; offers are numbered from 1"),
        (1, have, "offer 1; offers are numbered from 1, and 0 is the last of this host"),
        (0, offer.clone(), "from host 0; the others are 1 to 64, without this host"),
        (2, offer.clone(), "from host 2;"),
        (65, offer, "from host 65;"),
        (1, chunk(other, 0, b"0123"), "a chunk of e074ea76ef57 (30 bytes), which this host has not asked for"),
        (3, chunk(identity, 0, b"0123"), "from host 3; host 1 was asked"),
        (1, chunk(identity, 8, b"0123"), "chunk 8 of"),
        (1, chunk(identity, 0, b"012"), "3 bytes in chunk 0 of"),
        (1, chunk(identity, 7, b"012"), "it has 2; do all hosts have the same chunk_max?"),
        (1, want(0, 0), "0 chunks wanted from 0 on"),
        (1, want(1, 3), "which has 3 chunks"),
        (1, want(u32::MAX, u32::MAX), "4294967295 chunks wanted"),
    ];
    let before = format!("{host:?}");
    for (from, message, says) in wrong {
        let error = host.receive(from, &message).unwrap_err().to_string();
        assert!(error.contains(says), "{error} does not contain {says}");
        assert_eq!(format!("{host:?}"), before, "{error}");
    }
    let missing = bytes(TransferMessage::Missing { identity });
    assert_eq!(host.receive(3, &missing), Err(TransferError::NotAsked { identity, from: 3, asked: 1 }));
    // A payload with more chunks than are asked for at once.
    let identity = self::identity(4, 90);
    host.receive(1, &bytes(TransferMessage::Offer { identity, number: 9 })).unwrap();
    sent(&mut host);
    let early = TransferError::Early { identity, index: 8, asked: 8 };
    assert_eq!(host.receive(1, &chunk(identity, 8, b"0123")), Err(early));
    assert_eq!(host.fetch(identity, 2), Err(FetchError::Host { host: 2 }));
    assert_eq!(host.fetch(identity, 65), Err(FetchError::Host { host: 65 }));
}

#[test]
fn two_offers_of_one_payload_are_reported_once() {
    let mut host = Transfers::new(1, config()).unwrap();
    let have = |number| bytes(TransferMessage::Have { identity: identity(1, 40), number });
    let offer = |host: &mut Transfers, whom: u16| host.offer(payload(1, 40), to(&[whom])).unwrap();
    offer(&mut host, 2);
    let identity = offer(&mut host, 3);
    host.receive(3, &have(2)).unwrap();
    assert_eq!(host.poll_spread(), None);
    host.receive(2, &have(2)).unwrap();
    // Spread, but not polled before it is offered to one more host.
    offer(&mut host, 4);
    assert_eq!(host.poll_spread(), None);
    host.receive(4, &have(3)).unwrap();
    assert_eq!((host.poll_spread(), host.poll_spread()), (Some(identity), None));
    // The receiver answers the newer one; a late copy of the older one brings nothing back.
    let mut receiver = Transfers::new(2, config()).unwrap();
    let offered = |number| bytes(TransferMessage::Offer { identity, number });
    receiver.receive(1, &offered(1)).unwrap();
    receiver.receive(1, &offered(2)).unwrap();
    served(&mut receiver, &payload(1, 40), |_, _| {});
    receiver.forget(&identity);
    receiver.receive(1, &offered(1)).unwrap();
    assert_eq!((receiver.used_bytes(), sent(&mut receiver)), (0, vec![(to(&[1]), have(1))]));
}

#[test]
fn payload_that_came_meanwhile_is_not_missing() {
    let mut host = Transfers::new(2, config()).unwrap();
    let (kept, fetched) = (identity(1, 9), identity(2, 9));
    host.fetch(kept, 1).unwrap();
    host.fetch(fetched, 1).unwrap();
    host.crashed(1);
    host.store(payload(1, 9)).unwrap();
    host.fetch(fetched, 3).unwrap();
    assert_eq!(host.poll_missing(), None);
}
