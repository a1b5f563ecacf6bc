// SPDX-License-Identifier: Apache-2.0

mod bounds;
mod schedules;
mod trouble;
mod world;

use super::{message::TransferMessage, *};
use world::{World, config, identity, payload};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// All messages to be sent.
fn sent(host: &mut Transfers) -> Vec<(HostSet, Vec<u8>)> {
    let mut out = Vec::new();
    std::iter::from_fn(|| host.poll_transmit(&mut out).map(|to| (to, out.clone()))).collect()
}

fn to(hosts: &[HostId]) -> HostSet {
    hosts.iter().copied().collect()
}

fn bytes(message: TransferMessage<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.write(&mut bytes);
    bytes
}

/// The first one of BLAKE3's published vectors.
#[test]
fn identity_is_length_and_hash() {
    let empty = Identity::of(&[]);
    assert_eq!(hex(&empty.hash), "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262");
    let of = Identity::of(b"abc");
    assert_eq!(hex(&of.hash), "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85");
    let mut bytes = Vec::new();
    of.write(&mut bytes);
    assert_eq!(hex(&bytes), format!("0300000000000000{}", hex(&of.hash)));
    assert_eq!(bytes.len(), Identity::LEN);
    assert_eq!(Identity::read(&bytes), Ok(of));
    let wrong = TransferError::Length { what: "an identity", len: 39, want: 40 };
    assert_eq!(Identity::read(&bytes[..39]), Err(wrong));
    assert_eq!(of.to_string(), "6437b3ac3846 (3 bytes)");
}

#[test]
fn golden_bytes_of_each_message() {
    let identity = Identity { len: 0x0102_0304_0506_0708, hash: [0xaa; 32] };
    let of = format!("0807060504030201{}", "aa".repeat(32));
    let number = 0x1112_1314_1516_1718;
    let golden = [
        (TransferMessage::Offer { identity, number }, format!("10010000{of}1817161514131211")),
        (
            TransferMessage::Want { identity, first: 0x0102_0304, count: 0x0506_0708 },
            format!("11010000{of}0403020108070605"),
        ),
        (TransferMessage::Chunk { identity, index: 0x0102_0304, bytes: b"xyz" }, format!("12010000{of}0403020178797a")),
        (TransferMessage::Have { identity, number }, format!("13010000{of}1817161514131211")),
        (
            TransferMessage::Refuse { identity, number, reason: Reason::TooLong },
            format!("14010100{of}1817161514131211"),
        ),
        (
            TransferMessage::Refuse { identity, number, reason: Reason::BeyondRoom },
            format!("14010200{of}1817161514131211"),
        ),
        (TransferMessage::Refuse { identity, number, reason: Reason::Wrong }, format!("14010300{of}1817161514131211")),
        (
            TransferMessage::Refuse { identity, number, reason: Reason::Forgotten },
            format!("14010400{of}1817161514131211"),
        ),
        (TransferMessage::Missing { identity }, format!("15010000{of}")),
    ];
    for (message, golden) in golden {
        assert_eq!(hex(&bytes(message)), golden, "{message:?}");
        assert_eq!(TransferMessage::read(&bytes(message)), Ok(message));
    }
}

/// The messages of a whole transfer, one by one.
#[test]
fn offer_is_fetched_and_reported_at_both_ends() {
    let mut offerer = Transfers::new(1, config()).unwrap();
    let mut receiver = Transfers::new(2, config()).unwrap();
    let identity = offerer.offer(b"0123456789".to_vec(), to(&[1, 2])).unwrap();
    let offer = bytes(TransferMessage::Offer { identity, number: 1 });
    assert_eq!(sent(&mut offerer), [(to(&[2]), offer.clone())]);
    receiver.receive(1, &offer).unwrap();
    let want = bytes(TransferMessage::Want { identity, first: 0, count: 3 });
    assert_eq!(sent(&mut receiver), [(to(&[1]), want.clone())]);
    offerer.receive(2, &want).unwrap();
    let chunks = sent(&mut offerer);
    let expected = [&b"0123"[..], b"4567", b"89"];
    for (index, (chunk, expected)) in chunks.iter().zip(expected).enumerate() {
        let index = index as u32;
        assert_eq!(chunk, &(to(&[2]), bytes(TransferMessage::Chunk { identity, index, bytes: expected })));
        assert_eq!(receiver.get(&identity), None);
        receiver.receive(1, &chunk.1).unwrap();
    }
    assert_eq!(receiver.get(&identity), Some(&b"0123456789"[..]));
    assert_eq!((receiver.poll_arrived(), receiver.poll_arrived()), (Some(identity), None));
    let have = bytes(TransferMessage::Have { identity, number: 1 });
    assert_eq!(sent(&mut receiver), [(to(&[1]), have.clone())]);
    assert_eq!(offerer.poll_spread(), None);
    offerer.receive(2, &have).unwrap();
    assert_eq!((offerer.poll_spread(), offerer.poll_spread()), (Some(identity), None));
    // Late messages change nothing.
    offerer.receive(2, &have).unwrap();
    receiver.receive(1, &chunks[1].1).unwrap();
    assert_eq!((offerer.poll_spread(), receiver.poll_arrived()), (None, None));
    assert_eq!(receiver.counters().chunks_late, 1);
    assert_eq!(receiver.stored().map(|(_, by)| by).collect::<Vec<_>>(), [to(&[1])]);
}

#[test]
fn payloads_of_every_length_around_a_chunk() {
    for len in [0, 1, 3, 4, 5, 8, 9, 64, 1000] {
        let mut world = World::new(3, config());
        let identity = world.offer(1, payload(1, len));
        world.calm();
        assert_eq!(world.spread(1), [identity], "{len} bytes");
        for host in 2..=3 {
            assert_eq!(world.host(host).get(&identity), Some(&*payload(1, len)), "{len} bytes");
            assert_eq!(world.arrived(host), [identity]);
        }
    }
}

#[test]
fn sixty_four_mebibytes() {
    let len = 64 << 20;
    let config = Config { chunk_max: 1400, payload_max: len, stored_max: len, wants_max: 256, ..config() };
    let mut world = World::new(2, config);
    let sent = payload(1, len as usize);
    let identity = world.offer(1, sent.clone());
    world.calm();
    assert!(world.host(2).get(&identity) == Some(&*sent));
    assert_eq!(world.spread(1), [identity]);
    assert_eq!(world.host(2).counters().chunks_taken, len.div_ceil(1400));
    assert_eq!(world.host(2).counters().chunks_late, 0);
}

#[test]
fn receiver_paces_the_sender() {
    let mut offerer = Transfers::new(1, config()).unwrap();
    let mut receiver = Transfers::new(2, config()).unwrap();
    let identity = offerer.offer(payload(1, 100), to(&[2])).unwrap();
    receiver.receive(1, &sent(&mut offerer)[0].1).unwrap();
    let (mut asked, mut came) = (0, 0);
    while receiver.get(&identity).is_none() {
        for (_, want) in sent(&mut receiver) {
            let TransferMessage::Want { first, count, .. } = TransferMessage::read(&want).unwrap() else {
                panic!("no want")
            };
            assert_eq!(first, asked);
            asked += count;
            assert!(count >= 4 || asked == 25, "not one by one");
            offerer.receive(2, &want).unwrap();
        }
        assert!(asked - came <= 8, "{asked} asked for, {came} came");
        let mut out = Vec::new();
        assert_eq!(offerer.poll_transmit(&mut out), Some(to(&[2])));
        receiver.receive(1, &out).unwrap();
        came += 1;
    }
    assert_eq!(came, 25);
}

#[test]
fn offer_to_nobody_spreads_at_once() {
    let mut host = Transfers::new(1, config()).unwrap();
    let identity = host.offer(vec![1], HostSet::EMPTY).unwrap();
    assert_eq!(host.poll_spread(), Some(identity));
    assert_eq!(host.offer(vec![1], to(&[1])), Ok(identity));
    assert_eq!((host.poll_spread(), host.poll_spread()), (Some(identity), None));
    assert_eq!((host.used_bytes(), sent(&mut host)), (1, vec![]));
}

#[test]
fn payload_offered_again_is_reported_again_and_stored_once() {
    let mut world = World::new(2, config());
    let identity = world.offer(1, payload(1, 50));
    world.calm();
    assert_eq!(world.spread(1), [identity]);
    assert_eq!(world.offer(1, payload(1, 50)), identity);
    assert_eq!(world.host(1).used_bytes(), 50);
    assert_eq!(world.spread(1), [], "not before it is known that they still have it");
    world.calm();
    assert_eq!(world.spread(1), [identity]);
    assert_eq!(world.host(2).counters().chunks_taken, 13);
    // Once it is forgotten there, it is fetched again.
    world.at(2).forget(&identity);
    world.offer(1, payload(1, 50));
    world.calm();
    assert_eq!(world.spread(1), [identity]);
    assert_eq!(world.host(2).counters().chunks_taken, 26);
    // Offered twice before it is reported: reported once.
    world.offer(1, payload(2, 50));
    let identity = world.offer(1, payload(2, 50));
    world.calm();
    assert_eq!(world.spread(1), [identity]);
}

#[test]
fn joining_host_fetches_a_state() {
    let mut world = World::new(3, config());
    let identity = world.at(1).store(payload(7, 90)).unwrap();
    world.at(3).fetch(identity, 1).unwrap();
    world.calm();
    assert_eq!(world.arrived(3), [identity]);
    assert_eq!(world.host(3).get(&identity), Some(&*payload(7, 90)));
    assert!(world.spread(1).is_empty() && world.host(2).get(&identity).is_none());
    // A stored payload is reported at once.
    world.at(3).fetch(identity, 2).unwrap();
    assert_eq!(world.arrived(3), [identity]);
    // Host 2 does not have it.
    world.at(3).forget(&identity);
    world.at(3).fetch(identity, 2).unwrap();
    world.calm();
    assert_eq!((world.arrived(3), world.missing(3)), (vec![], vec![identity]));
    // When host 1 is named too, it is found.
    world.at(3).fetch(identity, 2).unwrap();
    world.at(3).fetch(identity, 1).unwrap();
    world.calm();
    assert_eq!((world.arrived(3), world.missing(3)), (vec![identity], vec![]));
}

#[test]
fn offer_of_a_stored_payload_needs_no_chunk() {
    let mut world = World::new(2, config());
    world.at(2).store(payload(1, 60)).unwrap();
    let identity = world.offer(1, payload(1, 60));
    world.calm();
    assert_eq!(world.spread(1), [identity]);
    assert_eq!((world.host(2).counters().chunks_taken, world.arrived(2)), (0, vec![]));
    // The same while it is arriving.
    let identity = world.offer(1, payload(2, 60));
    world.step(1);
    world.step(2);
    assert_eq!(world.host(2).arriving.len(), 1);
    world.at(2).store(payload(2, 60)).unwrap();
    world.calm();
    assert_eq!((world.spread(1), world.arrived(2)), (vec![identity], vec![identity]));
    assert_eq!(world.host(2).used_bytes(), 120);
}

#[test]
fn impossible_configurations_are_refused() {
    let says = |config: Config| Transfers::new(1, config).unwrap_err().to_string();
    let good = config();
    assert_eq!(Transfers::new(0, good).unwrap_err().to_string(), "this host is 0; hosts are 1 to 64");
    assert!(Transfers::new(65, good).unwrap_err().to_string().contains("65"));
    assert!(says(Config { chunk_max: 0, ..good }).contains("chunks of 0 bytes; 1 to 65000"));
    assert!(says(Config { chunk_max: 65_001, ..good }).contains("65001"));
    let long = Config { chunk_max: 2, payload_max: 1 << 33, ..good };
    assert!(says(long).contains("payloads of 8589934592 bytes; in chunks of this size 8589934590"));
    assert!(says(Config { wants_max: 0, ..good }).contains("wants_max is 0"));
    assert!(says(Config { arriving_max: 0, ..good }).contains("arriving_max is 0; 1 to 256"));
    assert!(says(Config { arriving_max: 257, ..good }).contains("257"));
    assert_eq!(identity(1, 3), Identity::of(&payload(1, 3)));
}
