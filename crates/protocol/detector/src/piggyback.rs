// SPDX-License-Identifier: Apache-2.0
//! Application messages that ride on heartbeats (FiDe §4.1, FCURB's fail-consistency).
//!
//! Sending: each process has a queue of [`QUEUE_MAX`] messages. Each message goes out in exactly one
//! heartbeat, over every plane. Receiving: first in, first out per process. A message that overtook another
//! one waits for it in the pool until every working plane has passed it; then the missing messages count as
//! lost. With more than [`REORDER_MAX`] waiting messages of one process, the oldest gap is given up at once.

use fide_types::HostId;
use fide_wire::{MAX_PROCESSES, PIGGYBACK_MAX};
use serde::{Deserialize, Serialize};

/// Messages of one local process that may wait for a heartbeat.
pub const QUEUE_MAX: usize = 16;
/// Messages of one remote process that may wait for an earlier one.
pub const REORDER_MAX: usize = 8;
/// Messages received and not yet polled, of all processes.
pub const POOL_MAX: usize = 512;

/// Writes a message into place `at` of the places for which `room` has capacity. Places are first used in
/// order, so at most one is filled at a time, and memory that no message has reached yet is not touched.
fn write(room: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let end = (at + 1) * PIGGYBACK_MAX;
    if room.len() < end {
        room.resize(end, 0);
    }
    room[at * PIGGYBACK_MAX..][..bytes.len()].copy_from_slice(bytes);
}

/// The local queues, one per slot.
#[derive(Debug, Clone)]
pub struct Queues {
    /// By slot: the part of its room that was ever used.
    bytes: Box<[Vec<u8>]>,
    lens: Box<[u16]>,
    heads: [u8; MAX_PROCESSES],
    counts: [u8; MAX_PROCESSES],
    turn: usize,
    total: usize,
}

impl Default for Queues {
    fn default() -> Queues {
        Queues::new()
    }
}

impl Queues {
    pub fn new() -> Queues {
        Queues {
            bytes: (0..MAX_PROCESSES).map(|_| Vec::with_capacity(QUEUE_MAX * PIGGYBACK_MAX)).collect(),
            lens: vec![0; MAX_PROCESSES * QUEUE_MAX].into_boxed_slice(),
            heads: [0; MAX_PROCESSES],
            counts: [0; MAX_PROCESSES],
            turn: 0,
            total: 0,
        }
    }

    pub fn len(&self, slot: usize) -> usize {
        usize::from(self.counts[slot])
    }

    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// False at the bound.
    pub fn push(&mut self, slot: usize, bytes: &[u8]) -> bool {
        if self.len(slot) == QUEUE_MAX || bytes.len() > PIGGYBACK_MAX {
            return false;
        }
        let at = (usize::from(self.heads[slot]) + self.len(slot)) % QUEUE_MAX;
        self.lens[slot * QUEUE_MAX + at] = bytes.len() as u16;
        write(&mut self.bytes[slot], at, bytes);
        self.counts[slot] += 1;
        self.total += 1;
        true
    }

    /// The oldest message of `slot`.
    pub fn front(&self, slot: usize) -> Option<&[u8]> {
        if self.counts[slot] == 0 {
            return None;
        }
        Some(self.message(slot, usize::from(self.heads[slot])))
    }

    fn message(&self, slot: usize, at: usize) -> &[u8] {
        &self.bytes[slot][at * PIGGYBACK_MAX..][..usize::from(self.lens[slot * QUEUE_MAX + at])]
    }

    pub fn pop(&mut self, slot: usize) {
        if self.counts[slot] > 0 {
            self.heads[slot] = (self.heads[slot] + 1) % QUEUE_MAX as u8;
            self.counts[slot] -= 1;
            self.total -= 1;
        }
    }

    pub fn clear(&mut self, slot: usize) {
        self.total -= self.len(slot);
        self.counts[slot] = 0;
    }

    /// Slots with something queued, in one round that begins after the slot served last.
    pub fn turns(&self) -> impl Iterator<Item = usize> + use<> {
        let (turn, counts) = (self.turn, self.counts);
        (0..MAX_PROCESSES).map(move |i| (turn + i) % MAX_PROCESSES).filter(move |slot| counts[*slot] > 0)
    }

    pub fn served(&mut self, slot: usize) {
        self.turn = (slot + 1) % MAX_PROCESSES;
    }
}

/// In a snapshot: the messages only, not the room for more.
#[derive(Serialize, Deserialize)]
struct QueuesState {
    turn: usize,
    messages: Vec<(u8, Vec<u8>)>,
}

impl Serialize for Queues {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut messages = Vec::new();
        for slot in 0..MAX_PROCESSES {
            for at in 0..self.len(slot) {
                let place = (usize::from(self.heads[slot]) + at) % QUEUE_MAX;
                messages.push((slot as u8, self.message(slot, place).to_vec()));
            }
        }
        QueuesState { turn: self.turn, messages }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Queues {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Queues, D::Error> {
        let state = QueuesState::deserialize(deserializer)?;
        let mut queues = Queues { turn: state.turn % MAX_PROCESSES, ..Queues::new() };
        for (slot, bytes) in &state.messages {
            if usize::from(*slot) >= MAX_PROCESSES || !queues.push(usize::from(*slot), bytes) {
                return Err(serde::de::Error::custom("more messages than the queues hold"));
            }
        }
        Ok(queues)
    }
}

/// A message received, in a buffer of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Message {
    pub host: HostId,
    pub slot: u8,
    pub pb_seq: u32,
    pub seq: u64,
    pub rx_ns: u64,
    pub len: u16,
}

/// Buffers for messages received.
#[derive(Debug, Clone)]
pub struct Pool {
    /// The part of the room that was ever used.
    bytes: Vec<u8>,
    /// By buffer: the message in it, if that waits for an earlier one.
    waiting: Box<[Option<Message>]>,
    free: Vec<u16>,
    waits: usize,
}

impl Default for Pool {
    fn default() -> Pool {
        Pool::new()
    }
}

impl Pool {
    pub fn new() -> Pool {
        Pool {
            bytes: Vec::with_capacity(POOL_MAX * PIGGYBACK_MAX),
            waiting: vec![None; POOL_MAX].into_boxed_slice(),
            free: (0..POOL_MAX as u16).rev().collect(),
            waits: 0,
        }
    }

    /// A buffer with a copy of `bytes`; `None` at the bound.
    pub fn put(&mut self, bytes: &[u8]) -> Option<u16> {
        if bytes.len() > PIGGYBACK_MAX {
            return None;
        }
        let buffer = self.free.pop()?;
        write(&mut self.bytes, usize::from(buffer), bytes);
        Some(buffer)
    }

    pub fn get(&self, buffer: u16, len: u16) -> &[u8] {
        let at = usize::from(buffer) * PIGGYBACK_MAX;
        &self.bytes[at..at + usize::from(len)]
    }

    pub fn release(&mut self, buffer: u16) {
        self.free.push(buffer);
    }

    pub fn wait(&mut self, buffer: u16, waiting: Message) {
        self.waiting[usize::from(buffer)] = Some(waiting);
        self.waits += 1;
    }

    /// The message of (host, slot) with the lowest number that waits: its buffer, and how many wait.
    pub fn lowest(&self, host: HostId, slot: u8) -> Option<(u16, Message, usize)> {
        if self.waits == 0 {
            return None;
        }
        let mut found: Option<(u16, Message, usize)> = None;
        for (buffer, waiting) in self.waiting.iter().enumerate() {
            let Some(w) = waiting.filter(|w| w.host == host && w.slot == slot) else { continue };
            found = Some(match found {
                Some((b, low, count)) if low.pb_seq <= w.pb_seq => (b, low, count + 1),
                Some((_, _, count)) => (buffer as u16, w, count + 1),
                None => (buffer as u16, w, 1),
            });
        }
        found
    }

    pub fn is_waiting(&self, host: HostId, slot: u8, pb_seq: u32) -> bool {
        self.waits > 0 && self.waiting.iter().flatten().any(|w| w.host == host && w.slot == slot && w.pb_seq == pb_seq)
    }

    /// The message waits no longer; the buffer stays taken.
    pub fn unwait(&mut self, buffer: u16) {
        if self.waiting[usize::from(buffer)].take().is_some() {
            self.waits -= 1;
        }
    }
}

/// In a snapshot: the messages that wait, by the buffer they are in.
#[derive(Serialize, Deserialize)]
struct PoolState(Vec<(u16, Message, Vec<u8>)>);

impl Serialize for Pool {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let waiting = (0u16..).zip(&self.waiting).filter_map(|(buffer, waiting)| Some((buffer, (*waiting)?)));
        PoolState(waiting.map(|(buffer, waiting)| (buffer, waiting, self.get(buffer, waiting.len).to_vec())).collect())
            .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Pool {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Pool, D::Error> {
        let mut pool = Pool::new();
        for (buffer, waiting, bytes) in PoolState::deserialize(deserializer)?.0 {
            let at = usize::from(buffer);
            if at >= POOL_MAX || bytes.len() > PIGGYBACK_MAX || pool.waiting[at].is_some() {
                return Err(serde::de::Error::custom(
                    "a message in a buffer that the pool does not have, or that is taken",
                ));
            }
            write(&mut pool.bytes, at, &bytes);
            pool.waiting[at] = Some(waiting);
            pool.free.retain(|free| *free != buffer);
            pool.waits += 1;
        }
        Ok(pool)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_keep_order_and_bound_and_take_turns() {
        let mut q = Queues::new();
        for i in 0..QUEUE_MAX {
            assert!(q.push(3, &[i as u8]));
        }
        assert!(!q.push(3, &[99]), "at the bound it is declined");
        assert!(q.push(5, b"x"));
        assert_eq!(q.turns().collect::<Vec<_>>(), vec![3, 5]);
        assert_eq!(q.front(3), Some(&[0u8][..]));
        q.pop(3);
        q.served(3);
        assert_eq!(q.turns().collect::<Vec<_>>(), vec![5, 3]);
        assert!(q.push(3, &[16]));
        for i in 1..=QUEUE_MAX {
            assert_eq!(q.front(3), Some(&[i as u8][..]));
            q.pop(3);
        }
        q.clear(5);
        assert!(q.is_empty());
    }

    #[test]
    fn pool_is_bounded_and_its_buffers_are_reused() {
        let mut pool = Pool::new();
        let buffers: Vec<u16> = (0..POOL_MAX).map(|i| pool.put(&[i as u8; 3]).unwrap()).collect();
        assert_eq!(pool.put(b"y"), None);
        assert_eq!(pool.get(buffers[7], 3), &[7; 3]);
        pool.wait(buffers[0], Message { host: 2, slot: 1, pb_seq: 9, ..Message::default() });
        pool.wait(buffers[1], Message { host: 2, slot: 1, pb_seq: 4, ..Message::default() });
        let (low, w, count) = pool.lowest(2, 1).unwrap();
        assert_eq!((low, w.pb_seq, count), (buffers[1], 4, 2));
        pool.unwait(low);
        pool.release(low);
        assert!(pool.is_waiting(2, 1, 9) && !pool.is_waiting(2, 1, 4));
        assert_eq!(pool.put(b"y"), Some(low));
    }
}
