// SPDX-License-Identifier: Apache-2.0
//! Any schedule, any bytes.

use proptest::prelude::*;

use super::*;

fn any_config() -> impl Strategy<Value = Config> {
    (1usize..=40, 1usize..=6, 1usize..=3).prop_map(|(chunk_max, wants_max, arriving_max)| Config {
        chunk_max,
        wants_max,
        arriving_max,
        ..config()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Messages are lost, damaged, repeated and reordered: once that stops, all hosts have all payloads, and
    /// nothing else.
    #[test]
    fn all_hosts_get_all_payloads_over_lossy_links(
        hosts in 2u16..=4, config in any_config(), steps in prop::collection::vec((any::<u8>(), any::<u16>()), 0..400),
    ) {
        World::new(hosts, config).follow(&steps, false)?;
    }

    /// The same where hosts crash, for the live ones.
    #[test]
    fn live_hosts_get_all_payloads_of_live_hosts(
        hosts in 2u16..=5, config in any_config(), steps in prop::collection::vec((any::<u8>(), any::<u16>()), 0..400),
    ) {
        World::new(hosts, config).follow(&steps, true)?;
    }

    /// Where there is room for only one payload at a time, and one host offers.
    #[test]
    fn little_room_costs_only_time(
        config in any_config(), steps in prop::collection::vec((15u8..240, any::<u16>()), 0..300), lens in prop::collection::vec(0usize..100, 1..6),
    ) {
        let mut world = World::new(3, Config { stored_max: 600, ..config });
        for (seed, len) in lens.iter().enumerate() {
            world.offer(1, payload(seed as u8, *len));
        }
        world.follow(&steps, false)?;
    }
}

/// Host 2 in the middle of everything: it stores, offers, and fetches from hosts 1 and 3.
fn busy() -> (Transfers, Vec<Identity>) {
    let mut host = Transfers::new(2, Config { stored_max: 2000, ..config() }).unwrap();
    let offered = host.offer(payload(1, 30), to(&[1, 3])).unwrap();
    let stored = host.store(payload(2, 9)).unwrap();
    let (of_one, fetched) = (identity(3, 50), identity(4, 7));
    host.receive(1, &bytes(TransferMessage::Offer { identity: of_one, number: 1 })).unwrap();
    host.fetch(fetched, 3).unwrap();
    sent(&mut host);
    host.receive(1, &bytes(TransferMessage::Chunk { identity: of_one, index: 1, bytes: &payload(3, 50)[4..8] }))
        .unwrap();
    host.receive(1, &bytes(TransferMessage::Want { identity: stored, first: 0, count: 2 })).unwrap();
    (host, vec![offered, stored, of_one, fetched])
}

/// Bytes that begin like a message.
fn any_message() -> impl Strategy<Value = (u16, u8, u8, u8, usize, u64, Vec<u8>)> {
    let small = prop_oneof![6 => 0u8..12, 1 => any::<u8>()];
    (
        prop_oneof![8 => 1u16..5, 1 => any::<u16>()],
        prop_oneof![8 => 15u8..23, 1 => any::<u8>()],
        prop_oneof![8 => Just(1u8), 1 => any::<u8>()],
        prop_oneof![8 => Just(0u8), 2 => 0u8..6],
        0usize..7,
        any::<u64>(),
        prop_oneof![
            prop::collection::vec(small, 0..10),
            (0u32..16, 0u32..16).prop_map(|(a, b)| [a.to_le_bytes(), b.to_le_bytes()].concat()),
        ],
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn any_refused_bytes_change_nothing(
        messages in prop::collection::vec(any_message(), 1..40), cut in 0usize..200,
    ) {
        let (mut host, known) = busy();
        for (from, kind, version, reason, which, len, tail) in messages {
            let mut message = vec![kind, version, reason, 0];
            known.get(which).copied().unwrap_or(Identity { len: len >> (len % 64), hash: [1; 32] }).write(&mut message);
            message.extend_from_slice(&tail);
            message.truncate(if cut < message.len() && which == 5 { cut } else { message.len() });
            let before = format!("{host:?}");
            if host.receive(from, &message).is_err() {
                prop_assert_eq!(format!("{host:?}"), before);
            }
            prop_assert!(host.used_bytes() <= 2000);
            prop_assert!(host.arriving.len() <= 4);
            prop_assert_eq!(host.get(&known[0]), Some(&*payload(1, 30)));
            prop_assert_eq!(host.get(&known[1]), Some(&*payload(2, 9)));
        }
        while host.poll_transmit(&mut Vec::new()).is_some() {}
        host.resend();
        while host.poll_transmit(&mut Vec::new()).is_some() {}
    }

    #[test]
    fn message_reads_and_writes_the_same(message in prop::collection::vec(any::<u8>(), 0..64), kind in 15u8..23) {
        let mut message = message;
        for (at, byte) in [kind, 1, 0, 0].into_iter().enumerate() {
            message.get_mut(at).into_iter().for_each(|place| *place = byte);
        }
        if let Ok(read) = TransferMessage::read(&message) {
            prop_assert_eq!(bytes(read), message);
        }
    }
}
