// SPDX-License-Identifier: Apache-2.0
//! What has to reach every peer goes into *every* heartbeat, from the first that has room until each live,
//! listening peer has acknowledged one of them: whichever it acknowledged, that heartbeat carried the entry.

use serde::{Deserialize, Serialize};

/// How far something that has to reach every peer has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Carry {
    /// Every peer knows it.
    #[default]
    Settled,
    /// Not yet in a heartbeat.
    Pending,
    /// In every heartbeat since that one.
    Since(u64),
}

impl Carry {
    /// All that listen have acknowledged heartbeats up to `acked_seq`.
    pub fn acknowledge(&mut self, acked_seq: u64) {
        if matches!(self, Carry::Since(first) if acked_seq >= *first) {
            *self = Carry::Settled;
        }
    }

    /// Heartbeat `seq` carries it.
    pub fn carried(&mut self, seq: u64) {
        if *self == Carry::Pending {
            *self = Carry::Since(seq);
        }
    }
}
