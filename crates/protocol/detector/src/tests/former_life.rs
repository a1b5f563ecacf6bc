// SPDX-License-Identifier: Apache-2.0
//! A witness that starts again: acknowledgements of its former life do not count in its present one.

use fide_wire::{Ack, Builder, PAYLOAD_MAX};

use crate::config::tests::cluster;
use crate::*;

const MS: u64 = 1_000_000;
const INCARNATION: u32 = 10;

/// Heartbeat `seq` of host 2, which acknowledges heartbeat `acked` of host 1, and may echo another one.
fn heartbeat(seq: u64, acked: u32, echo: Option<u64>) -> Vec<u8> {
    let mut buf = [0; PAYLOAD_MAX];
    let mut builder = Builder::heartbeat(&mut buf, 2, 20, seq).unwrap();
    builder.push_ack(Ack { incarnation: INCARNATION, seq_low: acked }).unwrap();
    builder.push_ack(Ack::default()).unwrap();
    if let Some(echo) = echo {
        builder.echoes([(1, INCARNATION, echo)].into_iter()).unwrap();
    }
    let len = builder.finish();
    buf[..len].to_vec()
}

/// Host 1 in its second life, after three heartbeats. Host 2 has answered it with heartbeat 100.
fn answered() -> Detector {
    let config = Config { me: 1, incarnation: INCARNATION, ..cluster(3) };
    let vote = Detector::new(config.clone(), 0).unwrap().vote();
    let mut witness = Detector::resume(config, &vote, 2, 0).unwrap();
    let (mut buf, mut last) = ([0; PAYLOAD_MAX], 0);
    for beat in 0..3 {
        let sent = witness.poll_transmit(beat * MS, &mut buf).expect("a heartbeat");
        last = fide_wire::Packet::new(&buf[..sent.len]).unwrap().seq();
    }
    witness.handle_packet(3 * MS, 3 * MS, 0, &heartbeat(100, last as u32 - 2, Some(last - 2))).unwrap();
    assert!(witness.peers[2].has_answered());
    witness
}

#[test]
fn late_acknowledgement_of_a_former_life_does_not_count() {
    let acked = |witness: &Detector| (witness.peers[2].acked_seq(), witness.peers[2].limit_ns());
    let (mut by_packet, mut by_slot) = (answered(), answered());
    let before = acked(&by_packet);
    by_packet.handle_packet(4 * MS, 4 * MS, 0, &heartbeat(99, 3, None)).unwrap();
    // The slot of the plane that has delivered less stands further back.
    let beat = Beat {
        peer: 2,
        plane: 1,
        incarnation: 20,
        seq: 99,
        rx_ns: 4 * MS,
        received: 1,
        ack_incarnation: INCARNATION,
        ack_seq_low: 3,
        promise_us: 5000,
        view: None,
    };
    by_slot.handle_beat(4 * MS, &beat).unwrap();
    assert_eq!([acked(&by_packet), acked(&by_slot)], [before; 2]);
}

#[cfg(feature = "planted")]
#[test]
fn planted_faults_take_what_a_former_life_was_acknowledged() {
    assert!(super::fails_with(
        fide_types::planted::Planted::TakesFormerAcks,
        late_acknowledgement_of_a_former_life_does_not_count
    ));
}
