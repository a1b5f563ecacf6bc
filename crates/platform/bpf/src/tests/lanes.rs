// SPDX-License-Identifier: Apache-2.0
//! Packets of lanes: handed to the agent, and what must not be.

use fide_wire::{ChunkBuilder, PAYLOAD_MAX, Scheme, chunk};

use super::rig::{Beat, INCARNATION, KEY, Rig, XDP_DROP};
use crate::intf::{ADMIT_DEAD, Admit, PACKET_CHUNKS, PACKET_DAMAGED, PACKET_SECTIONS, WAKE_PACKET, WAKE_RING_BYTES};

fn packet(sender: u16, incarnation: u32, chunks: usize) -> Vec<u8> {
    let mut buffer = [0; PAYLOAD_MAX];
    let mut builder = ChunkBuilder::new(&mut buffer, Scheme::Chunks36, sender, incarnation, 7).expect("room");
    for _ in 0..chunks {
        builder.push(9, b"piece").expect("room");
    }
    let len = builder.finish();
    chunk::seal(&mut buffer[..len], 0, &KEY);
    buffer[..len].to_vec()
}

#[test]
fn root_a_lanes_packet_is_handed_on_whole_and_touches_no_slot() {
    let Some(mut rig) = Rig::new() else { return };
    let untouched = rig.slots();
    for chunks in [0, 1, 40] {
        let packet = packet(1, INCARNATION, chunks);
        assert_eq!(rig.run(&packet), XDP_DROP);
        let news = rig.wakes();
        assert_eq!(news.len(), 1);
        assert_eq!((news[0].0.kind, news[0].0.detail, news[0].0.subject), (WAKE_PACKET, PACKET_CHUNKS, 0));
        assert_eq!(news[0].1, packet);
    }
    assert_eq!(rig.slots(), untouched);
}

#[test]
fn root_a_damaged_one_is_handed_on_only_where_it_is_wanted() {
    let mut damaged = packet(1, INCARNATION, 3);
    damaged[50] ^= 1;
    let mut heartbeat = Beat::of(1, 1).plain();
    heartbeat[20] ^= 1;
    let Some(mut rig) = Rig::new() else { return };
    rig.run(&damaged);
    assert!(rig.wakes().is_empty());
    let Some(mut rig) = Rig::salvaging() else { return };
    rig.run(&damaged);
    let news = rig.wakes();
    assert_eq!((news.len(), news[0].0.detail, &news[0].1), (1, PACKET_DAMAGED, &damaged));
    assert_eq!(rig.receive.stats().bad_tag, 1);
    // Anything else is as it was.
    rig.run(&heartbeat);
    let mut stranger = packet(1, INCARNATION, 3);
    stranger[4] = 77;
    rig.run(&stranger);
    assert!(rig.wakes().is_empty());
}

#[test]
fn root_of_a_host_that_is_not_heard_nothing_is() {
    let Some(mut rig) = Rig::salvaging() else { return };
    for incarnation in [INCARNATION - 1, INCARNATION + 1] {
        rig.run(&packet(1, incarnation, 1));
    }
    rig.receive.admit(1, Admit { incarnation: INCARNATION, flags: ADMIT_DEAD, timeout_ns: 0 });
    rig.run(&packet(1, INCARNATION, 1));
    assert!(rig.wakes().is_empty(), "not even to say that it is dead: heartbeats do");
    assert_eq!(rig.receive.stats().stale, 3);
}

#[test]
fn root_lanes_leave_room_for_heartbeats() {
    let Some(mut rig) = Rig::new() else { return };
    let packet = packet(1, INCARNATION, 40);
    for _ in 0..WAKE_RING_BYTES as usize / packet.len() {
        rig.run(&packet);
    }
    assert!(rig.receive.stats().wake_ring_full > 0);
    rig.run(&Beat::of(1, 1).with(|builder| builder.goodbye().expect("room")));
    let news = rig.wakes();
    let last = news.last().expect("many");
    assert_eq!((last.0.kind, last.0.detail), (WAKE_PACKET, PACKET_SECTIONS), "its sections were handed on");
}
