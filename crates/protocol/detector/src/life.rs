// SPDX-License-Identifier: Apache-2.0
//! What this host knows of its own incarnation: whether it still belongs to the cluster, and which heartbeats
//! it sent.

use serde::{Deserialize, Serialize};

/// Bits of a sequence number that count within one life of an incarnation: 2^40 heartbeats of 1 ms are 34
/// years. The bits above number the lives. Only a witness has more than one.
pub(crate) const LIFE_BITS: u32 = 40;

/// The own incarnation: its lives and its end.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Life {
    resumed: bool,
    former_seq: u64,
    highest_heard: u32,
    excluded: bool,
    put_back: bool,
    leaving: bool,
}

impl Life {
    /// The incarnation had a life before this one. Its heartbeats had numbers up to `former_seq`.
    pub(crate) fn resume(&mut self, former_seq: u64) {
        (self.resumed, self.former_seq) = (true, former_seq);
    }

    /// A new incarnation begins. Those before it sent heartbeats up to `former_seq`.
    pub(crate) fn restart(&mut self, former_seq: u64) {
        (self.resumed, self.former_seq, self.excluded) = (false, former_seq, false);
    }

    /// Had this incarnation another life before? Then what answers it may be a recording.
    pub(crate) fn is_resumed(&self) -> bool {
        self.resumed
    }

    /// The last sequence number that this life did not use.
    pub(crate) fn former_seq(&self) -> u64 {
        self.former_seq
    }

    /// Peers mention that incarnation of this host.
    pub(crate) fn hear_of(&mut self, incarnation: u32) {
        self.highest_heard = self.highest_heard.max(incarnation);
    }

    /// The highest incarnation of this host that peers have mentioned.
    pub(crate) fn highest_heard(&self) -> u32 {
        self.highest_heard
    }

    /// The others go on without this incarnation.
    pub(crate) fn exclude(&mut self) {
        self.excluded = true;
    }

    pub(crate) fn is_excluded(&self) -> bool {
        self.excluded
    }

    /// The machine was put back to a snapshot, or runs twice. It is out until an operator starts it anew.
    pub(crate) fn put_back(&mut self) {
        self.put_back = true;
    }

    pub(crate) fn is_put_back(&self) -> bool {
        self.put_back
    }

    pub(crate) fn leave(&mut self) {
        self.leaving = true;
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving
    }
}
