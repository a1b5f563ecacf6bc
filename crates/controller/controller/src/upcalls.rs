// SPDX-License-Identifier: Apache-2.0
//! Events that the controller sends its peers unasked (`bandwidthChanged`, `bandwidthTerminated`: X-Lane
//! List. 1).
//!
//! Each peer has a queue of events numbered 1, 2, 3 ... It asks for the events after the last one that it
//! has handled ([`fide_controller_api::paths::upcalls`]), and by asking acknowledges all up to that one.
//! Events that are not acknowledged are delivered again with each answer, also after a restart of the
//! controller: at least once, in order, and the numbers identify repeats.
//!
//! A queue is bounded. At the bound the oldest events are dropped. From then on each answer names the lost
//! numbers until the peer acknowledges them; the peer then asks for the whole state instead.
//!
//! [`Upcalls`] is pure and is stored; [`Board`] lets pollers wait for it.

mod board;

use std::collections::{BTreeMap, VecDeque};

use fide_controller_api::identity::Identity;
use serde::{Deserialize, Serialize};

pub use board::{Board, Closed};

/// Events kept per peer; at the bound the oldest is dropped and reported as lost.
pub const EVENTS_MAX: usize = 1024;
/// Bytes of events kept per peer; at the bound as above.
pub const QUEUE_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of events kept for all peers; at the bound the oldest event of the peer with the most is dropped.
/// Half of a snapshot, which holds them.
pub const ALL_BYTES_MAX: usize = crate::store::SNAPSHOT_MAX / 2;
/// Bytes of one event. A longer one is refused where it is created: see [`Upcalls::push`].
pub const EVENT_BYTES_MAX: usize = 16 * 1024;
/// Events, and bytes of them, in one answer. The rest is in the next.
pub const BATCH_MAX: usize = 64;
pub const BATCH_BYTES_MAX: usize = 256 * 1024;

/// One event of a peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upcall {
    pub number: u64,
    /// JSON text.
    pub body: String,
}

/// One answer to a peer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// Numbers, first and last, of events that were dropped before they were acknowledged.
    pub lost: Option<(u64, u64)>,
    pub events: Vec<Upcall>,
}

impl Batch {
    pub fn is_empty(&self) -> bool {
        self.lost.is_none() && self.events.is_empty()
    }
}

/// Why nothing is delivered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UpcallError {
    #[error(
        "event {after} was never sent, the last one was {last}; ask with after={last}, and for the whole state again"
    )]
    NeverSent { after: u64, last: u64 },
    #[error("an event of {bytes} bytes is too long; at most {EVENT_BYTES_MAX} are allowed")]
    TooLong { bytes: usize },
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Queue {
    /// Number of the last event pushed.
    last: u64,
    acknowledged: u64,
    /// All events up to this number are gone, acknowledged or not.
    dropped: u64,
    events: VecDeque<Upcall>,
    bytes: usize,
}

impl Queue {
    /// How many bytes they were.
    fn drop_oldest(&mut self) -> usize {
        let Some(event) = self.events.pop_front() else { return 0 };
        self.bytes = self.bytes.saturating_sub(event.body.len());
        self.dropped = event.number;
        event.body.len()
    }
}

/// The queues of all peers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upcalls {
    queues: BTreeMap<Identity, Queue>,
    /// Bytes of all queues.
    bytes: usize,
}

impl Upcalls {
    /// Appends an event for `peer` and returns its number. At the bounds the oldest are dropped.
    pub fn push(&mut self, peer: Identity, body: String) -> Result<u64, UpcallError> {
        if body.len() > EVENT_BYTES_MAX {
            return Err(UpcallError::TooLong { bytes: body.len() });
        }
        let queue = self.queues.entry(peer).or_default();
        queue.last += 1;
        queue.bytes += body.len();
        self.bytes += body.len();
        queue.events.push_back(Upcall { number: queue.last, body });
        while queue.events.len() > EVENTS_MAX || queue.bytes > QUEUE_BYTES_MAX {
            self.bytes = self.bytes.saturating_sub(queue.drop_oldest());
        }
        let last = queue.last;
        while self.bytes > ALL_BYTES_MAX {
            let Some(longest) = self.queues.values_mut().max_by_key(|queue| queue.bytes) else { break };
            self.bytes = self.bytes.saturating_sub(longest.drop_oldest());
        }
        Ok(last)
    }

    /// Acknowledges all events of `peer` up to `after`. Returns whether that was new.
    pub fn acknowledge(&mut self, peer: Identity, after: u64) -> Result<bool, UpcallError> {
        let Some(queue) = self.queues.get_mut(&peer) else {
            return if after == 0 { Ok(false) } else { Err(UpcallError::NeverSent { after, last: 0 }) };
        };
        if after > queue.last {
            return Err(UpcallError::NeverSent { after, last: queue.last });
        }
        if after <= queue.acknowledged {
            return Ok(false);
        }
        queue.acknowledged = after;
        while queue.events.front().is_some_and(|event| event.number <= after) {
            self.bytes = self.bytes.saturating_sub(queue.drop_oldest());
        }
        Ok(true)
    }

    /// The events that `peer` has not acknowledged yet, oldest first, as many as fit into one answer.
    pub fn pending(&self, peer: Identity) -> Batch {
        let Some(queue) = self.queues.get(&peer) else { return Batch::default() };
        let lost = (queue.dropped > queue.acknowledged).then(|| (queue.acknowledged + 1, queue.dropped));
        let mut bytes = 0;
        let fits = |event: &&Upcall| {
            bytes += event.body.len();
            bytes <= BATCH_BYTES_MAX
        };
        Batch { lost, events: queue.events.iter().take(BATCH_MAX).take_while(fits).cloned().collect() }
    }

    /// Number of the last event acknowledged by `peer`.
    pub fn acknowledged(&self, peer: Identity) -> u64 {
        self.queues.get(&peer).map_or(0, |queue| queue.acknowledged)
    }

    /// All peers with a queue.
    pub fn peers(&self) -> impl Iterator<Item = Identity> {
        self.queues.keys().copied()
    }

    /// Drops the queue of a peer that was removed for good.
    pub fn forget(&mut self, peer: Identity) {
        let gone = self.queues.remove(&peer).map_or(0, |queue| queue.bytes);
        self.bytes = self.bytes.saturating_sub(gone);
    }
}

#[cfg(test)]
mod tests;
