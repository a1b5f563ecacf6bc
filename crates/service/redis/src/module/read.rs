// SPDX-License-Identifier: Apache-2.0
//! What is known of reads at a follower ([`super::reads`]).

use std::{collections::VecDeque, time::Instant};

use super::COMMANDS;
use crate::{
    redis::{Blocked, Text},
    written::Written,
};

/// A read that waits until the server has applied what may be decided.
pub(super) struct WaitingRead {
    pub(super) client: Blocked,
    pub(super) args: Vec<Text>,
    /// The name of the client's user: Redis checks patterns of SORT_RO while it executes it.
    pub(super) user: Vec<u8>,
    /// Hashes of the keys on which alone the answer depends; none: it may depend on everything.
    pub(super) keys: Option<Vec<u64>>,
    /// None: this server had no lease yet when it looked last.
    pub(super) need: Option<u64>,
    pub(super) view: u32,
    pub(super) since: Instant,
}

/// Reads that wait, and what is known of keys.
#[derive(Default)]
pub(super) struct Reads {
    pub(super) waiting: VecDeque<WaitingRead>,
    pub(super) written: Written,
    /// [`super::member::Member::changes`] when the stored values were looked at last; none: they are not known.
    pub(super) walked: Option<u64>,
}

impl Reads {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// A decision was delivered.
    pub(super) fn deliver(&mut self, position: u64, value: &[u8], applied: u64) {
        COMMANDS.with_borrow(|commands| {
            self.written.deliver(position, value, applied, &|name| commands.written_by(name));
        });
    }
}
