// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::{Kind, Packet, PacketError, fuzz, verify};
use proptest::prelude::*;

const KEY: Key = Key([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
/// Fewest flipped bits that a chunk's checksum may miss, per scheme: see `docs/internals/chunks.md`.
const DISTANCE: [usize; 2] = [9, 8];

/// What a place is given or holds: service and data; `None` is empty.
type Place = Option<(u8, Vec<u8>)>;

fn golden(text: &str) -> Vec<u8> {
    let digits: String =
        text.lines().flat_map(|l| l.split('#').next().unwrap_or("").split_whitespace().collect::<Vec<_>>()).collect();
    (0..digits.len() / 2).map(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).unwrap()).collect()
}

/// A sealed packet of host 2; `None` is an empty place.
fn packet(scheme: Scheme, seq: u64, chunks: &[Place]) -> Vec<u8> {
    let mut buf = [0xa5u8; PAYLOAD_MAX];
    let mut b = ChunkBuilder::new(&mut buf, scheme, 2, 0x11, seq).unwrap();
    for (i, chunk) in chunks.iter().enumerate() {
        let at = match chunk {
            Some((service, bytes)) => b.push(*service, bytes),
            None => b.push_empty(),
        };
        assert_eq!(at, Ok(i as u8));
    }
    let len = b.finish();
    seal(&mut buf[..len], 1, &KEY);
    buf[..len].to_vec()
}

fn full(scheme: Scheme, seq: u64) -> Vec<u8> {
    let chunks: Vec<_> =
        (0..scheme.chunks_max()).map(|i| Some((i as u8 + 1, vec![i as u8; i % (scheme.data_max() + 1)]))).collect();
    packet(scheme, seq, &chunks)
}

/// The places as they were read: `Err` is the damaged index.
fn places(bytes: &[u8]) -> Vec<Result<Place, ChunkError>> {
    ChunkPacket::new(bytes).unwrap().places().map(|p| p.map(|c| c.map(|c| (c.service, c.bytes.to_vec())))).collect()
}

fn small() -> [Place; 3] {
    [Some((1, b"lane".to_vec())), None, Some((9, vec![]))]
}

#[test]
fn golden_packets() {
    for (scheme, text) in [
        (Scheme::Chunks26, include_str!("../../golden/chunks26.txt")),
        (Scheme::Chunks36, include_str!("../../golden/chunks36.txt")),
    ] {
        let bytes = packet(scheme, 0x1122_3344_5566_7788, &small());
        assert_eq!(golden(text), bytes, "{scheme:?}: {bytes:02x?}");
        assert_eq!(verify(&bytes, &KEY.into()), Ok(()));
        assert_eq!(places(&bytes), small().map(Ok));
        fuzz::fuzz_chunks(&bytes);
    }
}

/// The check values of the CRC catalogue's convention: the checksum of "123456789".
#[test]
fn the_algorithms_say_what_they_are() {
    let check = |algorithm: &Algorithm<u32>| {
        let table = Crc::<u32, Lanes>::new(Box::leak(Box::new(*algorithm)));
        assert_eq!(table.checksum(b"123456789"), algorithm.check);
        // Residue: what the register holds, before the last xor, after data and its checksum.
        let mut digest = table.digest();
        digest.update(b"123456789");
        digest.update(&algorithm.check.to_le_bytes());
        assert_eq!(digest.finalize() ^ algorithm.xorout, algorithm.residue);
    };
    [&CRC_26, &CRC_36, &CRC_HEADER].into_iter().for_each(check);
}

/// The crate's tables against the definition: bit by bit, as in the polynomial's division.
#[test]
fn the_checksum_is_the_remainder_by_the_polynomial() {
    for scheme in Scheme::ALL {
        let poly = scheme.table().algorithm.poly.reverse_bits();
        let bytes: Vec<u8> = (0..scheme.chunk_len() as u8 + 13).map(|i| i.wrapping_mul(41)).collect();
        let mut register = u32::MAX;
        for byte in &bytes {
            register ^= u32::from(*byte);
            for _ in 0..8 {
                register = register >> 1 ^ if register & 1 == 1 { poly } else { 0 };
            }
        }
        assert_eq!(scheme.table().checksum(&bytes), !register);
    }
}

#[test]
fn the_schemes_are_those_of_the_paper() {
    assert_eq!(Scheme::ALL.map(|s| (s.chunks_max(), s.chunk_len(), s.data_max())), [(55, 26, 20), (40, 36, 30)]);
    for scheme in Scheme::ALL {
        assert_eq!(Scheme::from_u8(scheme as u8), Some(scheme));
        let bytes = full(scheme, 7);
        assert_eq!(bytes.len(), scheme.packet_len(scheme.chunks_max()));
        assert_eq!(ChunkPacket::new(&bytes[..]).unwrap().chunks().filter(Result::is_ok).count(), scheme.chunks_max());
    }
    assert_eq!((Scheme::from_u8(0), Scheme::from_u8(3)), (None, None));
}

#[test]
fn what_does_not_fit_is_said_and_changes_nothing() {
    for scheme in Scheme::ALL {
        let max = scheme.data_max();
        let mut buf = [0u8; PAYLOAD_MAX];
        let mut b = ChunkBuilder::new(&mut buf, scheme, 1, 1, 1).unwrap();
        assert_eq!(b.push(0, b"x"), Err(ChunkBuildError::Service));
        assert_eq!(b.push(1, &vec![1; max + 1]), Err(ChunkBuildError::TooLong { len: max + 1, max }));
        assert_eq!(b.remaining(), scheme.chunks_max());
        for i in 0..scheme.chunks_max() {
            assert_eq!(b.push(255, &vec![1; max]), Ok(i as u8));
        }
        let full = Err(ChunkBuildError::Full { max: scheme.chunks_max() });
        assert_eq!((b.push(1, &[]), b.push_empty(), b.remaining()), (full, full, 0));
        let len = b.finish();
        seal(&mut buf[..len], 0, &KEY);
        assert!(places(&buf[..len]).iter().all(|p| *p == Ok(Some((255, vec![1; max])))));
    }
    assert_eq!(
        ChunkBuilder::new(&mut [0; 31], Scheme::Chunks26, 1, 1, 1).err(),
        Some(ChunkBuildError::NoRoom { room: 31 })
    );
    let mut short = [0; CHUNK_HEADER_LEN + 2 * 26 + 25];
    assert_eq!(ChunkBuilder::new(&mut short, Scheme::Chunks26, 1, 1, 1).unwrap().remaining(), 2);
}

#[test]
fn refusals_say_what_was_wrong() {
    let good = packet(Scheme::Chunks26, 5, &small());
    // With the header's checksum made good again, unless `raw`.
    let with = |at: usize, value: u8, raw: bool| {
        let mut b = good.clone();
        b[at] = value;
        if !raw {
            let checksum = header_checksum(&b);
            b[HEADER_CRC..CHUNK_HEADER_LEN].copy_from_slice(&checksum.to_le_bytes());
        }
        ChunkPacket::new(b).map(|_| ()).unwrap_err()
    };
    assert_eq!(ChunkPacket::new(&good[..31]).unwrap_err(), ChunkPacketError::Length { len: 31 });
    assert_eq!(ChunkPacket::new(&[0u8; 1473]).unwrap_err(), ChunkPacketError::Length { len: 1473 });
    assert_eq!(with(0, 0, true), ChunkPacketError::Magic { magic: 0xf100 });
    assert_eq!(with(2, 0x23, true), ChunkPacketError::Version { version: 2 });
    assert_eq!(with(2, 0x11, true), ChunkPacketError::Kind { kind: 1 });
    assert!(matches!(with(7, 2, true), ChunkPacketError::Header { .. }));
    assert_eq!(with(3, 2, false), ChunkPacketError::Plane { plane: 2 });
    assert_eq!(with(4, 0, false), ChunkPacketError::Sender { sender: 0 });
    assert_eq!(with(4, 65, false), ChunkPacketError::Sender { sender: 65 });
    assert_eq!(with(6, 0, false), ChunkPacketError::Scheme { scheme: 0 });
    assert_eq!(with(7, 56, false), ChunkPacketError::Count { count: 56, max: 55 });
    assert_eq!(with(7, 2, false), ChunkPacketError::Announced { len: 110, need: 84 });
    // The two families of packets refuse each other.
    assert_eq!(Packet::new(&good[..]).unwrap_err(), PacketError::Kind { kind: CHUNKS });
    assert!(CHUNKS != Kind::Heartbeat as u8 && CHUNKS != Kind::Notice as u8);
}

#[test]
fn undamaged_chunk_of_another_format_differs_from_a_damaged_one() {
    for (at, value) in [(0, NO_SERVICE), (1, 21), (1, 3), (1, 255)] {
        let mut b = packet(Scheme::Chunks26, 5, &small());
        b[CHUNK_HEADER_LEN + at] = value;
        assert_eq!(places(&b)[0], Err(ChunkError::Damaged { index: 0 }));
        let seed = Seed::new(Scheme::Chunks26, 2, 0x11, 5);
        let checksum = seed.checksum(0, &b[CHUNK_HEADER_LEN..CHUNK_HEADER_LEN + 22]);
        b[CHUNK_HEADER_LEN + 22..CHUNK_HEADER_LEN + 26].copy_from_slice(&checksum.to_le_bytes());
        assert_eq!(places(&b)[0], Err(ChunkError::Malformed { index: 0 }));
    }
}

#[test]
fn a_packet_is_sealed_for_each_plane_and_its_chunks_stay() {
    let one = packet(Scheme::Chunks36, 5, &small());
    let mut two = one.clone();
    seal(&mut two, 0, &KEY);
    assert_eq!(verify(&two, &KEY.into()), Ok(()));
    assert_eq!((ChunkPacket::new(&two[..]).unwrap().plane(), one[3]), (0, 1));
    assert_eq!(one[CHUNK_HEADER_LEN..], two[CHUNK_HEADER_LEN..]);
}

/// Every chunk of a packet in every other place of it, and of the packet sent before.
#[test]
fn a_chunk_out_of_place_or_out_of_date_is_not_taken() {
    for scheme in Scheme::ALL {
        let (old, new) = (full(scheme, 0xffff_ffff), full(scheme, 0));
        let at = |i: usize| scheme.packet_len(i)..scheme.packet_len(i + 1);
        for to in 0..scheme.chunks_max() {
            for from in 0..scheme.chunks_max() {
                for source in [&old, &new] {
                    if from == to && source == &new {
                        continue;
                    }
                    let mut b = new.clone();
                    b[at(to)].copy_from_slice(&source[at(from)]);
                    assert_eq!(places(&b)[to], Err(ChunkError::Damaged { index: to as u8 }));
                }
            }
        }
    }
}

fn any_scheme() -> impl Strategy<Value = Scheme> {
    prop_oneof![Just(Scheme::Chunks26), Just(Scheme::Chunks36)]
}

prop_compose! {
    fn any_chunks()(scheme in any_scheme())(
        chunks in proptest::collection::vec(
            proptest::option::of((1u8.., proptest::collection::vec(any::<u8>(), 0..=scheme.data_max()))),
            1..=scheme.chunks_max(),
        ),
        scheme in Just(scheme),
    ) -> (Scheme, Vec<Place>) { (scheme, chunks) }
}

fn flip(bytes: &mut [u8], bit: usize) {
    bytes[bit / 8] ^= 1 << (bit % 8);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn round_trip((scheme, chunks) in any_chunks(), sender in 1u16..=64, incarnation in any::<u32>(), seq in any::<u64>()) {
        let mut buf = [0xffu8; PAYLOAD_MAX];
        let mut b = ChunkBuilder::new(&mut buf, scheme, sender, incarnation, seq).unwrap();
        for chunk in &chunks {
            match chunk {
                Some((service, bytes)) => b.push(*service, bytes).unwrap(),
                None => b.push_empty().unwrap(),
            };
        }
        let len = b.finish();
        seal(&mut buf[..len], 0, &KEY);
        prop_assert_eq!(verify(&buf[..len], &KEY.into()), Ok(()));
        let p = ChunkPacket::new(&buf[..len]).unwrap();
        prop_assert_eq!((p.scheme(), p.sender(), p.incarnation(), p.seq()), (scheme, sender, incarnation, seq));
        prop_assert_eq!(p.count(), chunks.len());
        prop_assert_eq!(places(&buf[..len]), chunks.iter().cloned().map(Ok).collect::<Vec<_>>());
        let read: Vec<_> = p.chunks().map(|c| c.unwrap()).map(|c| Some((c.service, c.bytes.to_vec()))).collect();
        prop_assert_eq!(read, chunks.into_iter().filter(Option::is_some).collect::<Vec<_>>());
        fuzz::fuzz_chunks(&buf[..len]);
    }

    /// Any flips fewer than the distance, and any burst of up to 32 bits: one chunk is lost, and only that one.
    #[test]
    fn damage_is_seen_and_costs_one_chunk(
        (scheme, chunks) in any_chunks(), seq in any::<u64>(), hit in any::<prop::sample::Index>(),
        flips in proptest::collection::vec(any::<prop::sample::Index>(), 1..9),
        burst in any::<bool>(), burst_at in any::<prop::sample::Index>(), pattern in 1u32..,
    ) {
        let good = packet(scheme, seq, &chunks);
        let hit = hit.index(chunks.len());
        let bits = 8 * scheme.chunk_len();
        let mut bad = good.clone();
        let chunk = &mut bad[scheme.packet_len(hit)..scheme.packet_len(hit + 1)];
        if burst {
            let at = burst_at.index(bits - 31);
            (0..32).filter(|i| pattern >> i & 1 == 1).for_each(|i| flip(chunk, at + i));
        } else {
            let flips: std::collections::BTreeSet<usize> = flips.iter().map(|f| f.index(bits)).collect();
            let under = DISTANCE[scheme as usize - 1] - 1;
            flips.iter().take(under).for_each(|bit| flip(chunk, *bit));
        }
        let mut expected = places(&good);
        expected[hit] = Err(ChunkError::Damaged { index: hit as u8 });
        prop_assert_eq!(places(&bad), expected);
        prop_assert!(verify(&bad, &KEY.into()).is_err());
    }

    /// Up to seven flipped bits of the header, its tag aside: nothing of the packet is taken.
    #[test]
    fn a_damaged_header_costs_the_packet(
        (scheme, chunks) in any_chunks(), seq in any::<u64>(),
        flips in proptest::collection::btree_set(prop_oneof![0usize..16 * 8, 24usize * 8..32 * 8], 1..8),
    ) {
        let mut bad = packet(scheme, seq, &chunks);
        flips.iter().for_each(|bit| flip(&mut bad, *bit));
        prop_assert!(ChunkPacket::new(&bad[..]).is_err());
    }

    /// Chunks behind the header of another packet, which itself is in order. (One in 2^32 would be taken by chance.)
    #[test]
    fn another_packets_chunks_are_not_taken(
        from in any_scheme(), to in any_scheme(), sender in 3u16..=64, incarnation in any::<u32>(), seq in any::<u64>(),
    ) {
        let source = full(from, 0);
        let mut buf = [0u8; PAYLOAD_MAX];
        let mut b = ChunkBuilder::new(&mut buf, to, sender, incarnation, seq).unwrap();
        while b.push_empty().is_ok() {}
        let len = b.finish();
        seal(&mut buf[..len], 0, &KEY);
        let copied = CHUNK_HEADER_LEN..len.min(source.len());
        buf[copied.clone()].copy_from_slice(&source[copied.clone()]);
        let whole = copied.len() / to.chunk_len();
        prop_assert!(whole >= 39);
        let all = places(&buf[..len]);
        prop_assert!(all[..whole].iter().all(|p| matches!(p, Err(ChunkError::Damaged { .. }))), "{all:?}");
    }

    #[test]
    fn truncation_never_panics(scheme in any_scheme(), cut in any::<prop::sample::Index>()) {
        let bytes = full(scheme, 3);
        let cut = cut.index(bytes.len());
        fuzz::fuzz_chunks(&bytes[..cut]);
        prop_assert!(ChunkPacket::new(&bytes[..cut]).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        fuzz::fuzz_body(&bytes);
    }

    /// Random chunks behind a header in order: none is taken, whatever they are.
    #[test]
    fn random_chunks_are_not_taken(scheme in any_scheme(), count in 1usize..4, noise in any::<[u8; 108]>()) {
        let mut b = packet(scheme, 1, &vec![None; count]);
        let len = b.len() - CHUNK_HEADER_LEN;
        b[CHUNK_HEADER_LEN..].copy_from_slice(&noise[..len]);
        fuzz::fuzz_body(&b);
        prop_assert!(places(&b).iter().all(Result::is_err));
    }
}
