// SPDX-License-Identifier: Apache-2.0
//! The bodies of fuzz targets, which also run as tests on a stable compiler.

use crate::{Body, Builder, ChunkBuilder, ChunkError, ChunkPacket, Key, PAYLOAD_MAX, Packet, verify};

/// Reads `bytes` in every way there is. Must not panic whatever they are; what is accepted must be written back
/// to the same bytes.
pub fn fuzz_body(bytes: &[u8]) {
    let _ = verify(bytes, &Key([7; 16]).into());
    fuzz_chunks(bytes);
    let _ = crate::AnnouncedShape::read(bytes);
    let Ok(packet) = Packet::new(bytes) else { return };
    let mut buf = [0u8; PAYLOAD_MAX];
    let mut out = match Builder::heartbeat(&mut buf, packet.sender(), packet.incarnation(), packet.seq()) {
        Ok(builder) => builder,
        Err(error) => panic!("an empty heartbeat always fits: {error}"),
    };
    for host in 1..=crate::MAX_HOSTS as u16 {
        if let Some(ack) = packet.ack(host) {
            assert!(out.push_ack(ack).is_ok(), "what was read must fit again");
        }
    }
    for section in packet.sections() {
        let again = match section.body() {
            Ok(Body::Roster(roster)) => out.roster(&roster),
            Ok(Body::Piggyback { slot, pb_seq, bytes }) => out.piggyback(slot, pb_seq, bytes),
            Ok(Body::View(view)) => out.view(&view.repr()),
            Ok(Body::Promise { timeout_us }) => out.promise(timeout_us),
            Ok(Body::Excluded(excluded)) => out.excluded(excluded.iter()).map(|_| ()),
            Ok(Body::Goodbye) => out.goodbye(),
            Ok(Body::AllNamed) => out.all_named(),
            Ok(Body::Monitor(monitor)) => out.monitor(&monitor),
            Ok(Body::Echo(echoes)) => out.echoes(echoes.iter()).map(|_| ()),
            Ok(Body::Unknown) => out.section(section.kind, section.slot, section.bytes, &[]),
            Err(error) => panic!("Packet::new let through: {error}"),
        };
        assert!(again.is_ok(), "what was read must fit again: {again:?}");
    }
    let len = out.finish();
    assert_eq!(len, bytes.len(), "what was read must be written at the same length");
}

/// The same for a packet of chunks. A damaged chunk must leave the others' places alone.
pub fn fuzz_chunks(bytes: &[u8]) {
    let Ok(packet) = ChunkPacket::new(bytes) else { return };
    let mut buf = [0u8; PAYLOAD_MAX];
    let mut out =
        match ChunkBuilder::new(&mut buf, packet.scheme(), packet.sender(), packet.incarnation(), packet.seq()) {
            Ok(builder) => builder,
            Err(error) => panic!("a packet without chunks always fits: {error}"),
        };
    let mut damaged = [false; 256];
    let mut count = 0;
    for (index, place) in packet.places().enumerate() {
        let again = match place {
            Ok(Some(chunk)) => {
                assert_eq!(usize::from(chunk.index), index, "a chunk knows its place");
                out.push(chunk.service, chunk.bytes)
            }
            Ok(None) => out.push_empty(),
            Err(ChunkError::Damaged { index: at } | ChunkError::Malformed { index: at }) => {
                assert_eq!(usize::from(at), index, "a damaged chunk is named");
                damaged[index] = true;
                out.push_empty()
            }
        };
        assert!(again.is_ok(), "what was read must fit again: {again:?}");
        count += 1;
    }
    assert_eq!(count, packet.count(), "every place announced is read");
    let len = out.finish();
    assert_eq!(len, bytes.len(), "what was read must be written at the same length");
    for (index, damaged) in damaged.iter().enumerate().take(count) {
        let at = packet.scheme().packet_len(index)..packet.scheme().packet_len(index + 1);
        assert!(*damaged || buf[at.clone()] == bytes[at], "what was read must be written back to the same bytes");
    }
}
