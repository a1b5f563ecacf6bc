// SPDX-License-Identifier: Apache-2.0
use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex},
};

use fide_net::link::Polled;
use fide_wire::{Ack, Builder, Key, seal};

use super::super::tests::{engine_of, now};
use super::*;
use crate::clock::HostClocks;

/// What the two ends of a plane have written.
#[derive(Debug, Default)]
struct Memory {
    come: VecDeque<Vec<u8>>,
    sent: Vec<Vec<u8>>,
    is_gone: bool,
}

#[derive(Debug, Clone, Default)]
struct Shared(Arc<Mutex<Memory>>);

impl Polled for Shared {
    fn send(&mut self, payload: &[u8]) -> io::Result<()> {
        let mut memory = self.0.lock().expect("no panic");
        if memory.is_gone {
            return Err(io::ErrorKind::NetworkDown.into());
        }
        memory.sent.push(payload.to_vec());
        Ok(())
    }

    fn receive(&mut self, buffer: &mut [u8; PAYLOAD_MAX + 1]) -> Option<usize> {
        let packet = self.0.lock().expect("no panic").come.pop_front()?;
        let len = packet.len().min(buffer.len());
        buffer[..len].copy_from_slice(&packet[..len]);
        Some(len)
    }
}

const POLL_NS: u64 = 250_000;

/// An engine whose only plane is memory.
fn polled() -> (Engine, Shared) {
    let (mut engine, _exchange) = engine_of(1);
    let memory = Shared::default();
    engine.ports.receivers.clear();
    engine.ports.polled.push(Box::new(memory.clone()));
    engine.facts.poll_ns = POLL_NS;
    (engine, memory)
}

/// A heartbeat of the other host.
fn heartbeat(seq: u64, key: Key) -> Vec<u8> {
    let mut bytes = [0; PAYLOAD_MAX];
    let mut builder = Builder::heartbeat(&mut bytes, 2, 7, seq).expect("room");
    builder.push_ack(Ack { incarnation: 7, seq_low: 0 }).expect("room");
    let len = builder.finish();
    seal(&mut bytes[..len], 0, &key);
    bytes[..len].to_vec()
}

#[test]
fn loop_looks_into_memory_and_wakes_for_it() {
    let (mut engine, memory) = polled();
    let clocks = &mut HostClocks;
    engine.turn(clocks);
    assert_eq!(memory.0.lock().expect("no panic").sent.len(), 2, "a heartbeat, and its shape: nobody is up yet");
    let due_ns = engine.next_turn_ns(now().mono_ns);
    assert!(due_ns <= now().mono_ns + POLL_NS, "the heartbeat after is due in a second");
    let key = engine.keys.current;
    let beat = heartbeat(1, key);
    // Of another cluster, cut short, and too long.
    let wrong = [heartbeat(2, Key([8; 16])), beat[..beat.len() - 1].to_vec(), vec![1; PAYLOAD_MAX + 9], Vec::new()];
    memory.0.lock().expect("no panic").come.extend(wrong.into_iter().chain([beat]));
    engine.turn(clocks);
    assert_eq!(engine.detector.peer(2).map(|peer| peer.state), Some(PeerState::Up));
    let counters = &engine.counters;
    assert_eq!((counters.bad_tag, counters.malformed), (2, 2));
    assert!(memory.0.lock().expect("no panic").come.is_empty());
}

#[test]
fn flood_in_memory_takes_a_bounded_part_of_a_turn() {
    let (mut engine, memory) = polled();
    engine.turn(&mut HostClocks);
    memory.0.lock().expect("no panic").come.extend(vec![vec![0; 40]; 3 * DATAGRAMS_PER_TURN]);
    engine.turn(&mut HostClocks);
    assert_eq!(memory.0.lock().expect("no panic").come.len(), 2 * DATAGRAMS_PER_TURN);
    assert!(!engine.busy_turn, "the loop sleeps until it looks again");
}

#[test]
fn memory_that_is_gone_counts_packets_that_were_not_sent() {
    let (mut engine, memory) = polled();
    memory.0.lock().expect("no panic").is_gone = true;
    engine.turn(&mut HostClocks);
    assert_eq!(engine.counters.sends_failed, 2);
}
