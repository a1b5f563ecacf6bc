// SPDX-License-Identifier: Apache-2.0
//! Messages between clients, members and the run, and the format of a history.

use serde::{Deserialize, Serialize};

use crate::register::{Id, Op};

/// A datagram to a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ask {
    Op {
        id: Id,
        op: Op,
    },
    /// Asks for the member's standing.
    Probe {
        number: u64,
    },
}

/// A datagram from a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// The value of the register just before the operation took effect, if that is known.
    Found {
        id: Id,
        found: Option<u64>,
    },
    /// This attempt has no effect; host `leader` leads, 0 if unknown.
    NotHere {
        id: Id,
        leader: u16,
    },
    Probe {
        number: u64,
        stands: Stands,
    },
}

/// The standing of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stands {
    pub(crate) is_member: bool,
    /// How many members its view has.
    pub(crate) members: u16,
    pub(crate) may_answer: bool,
    pub(crate) position: u64,
    pub(crate) applied: u64,
    pub(crate) hash: u64,
}

/// Longest datagram in either direction.
pub(crate) const DATAGRAM_MAX: usize = 256;

pub(crate) fn to_bytes<T: Serialize>(message: &T) -> Vec<u8> {
    postcard::to_stdvec(message).expect("numbers")
}

/// What a member prints, one JSON object in a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Reported {
    /// It is a member of the group.
    Ready { ns: u64 },
    /// It is no longer a member, and waits to be let in again.
    Out { ns: u64 },
    /// It leads, and may answer reads.
    Leads { ns: u64 },
}

/// One operation of a history, as the judge reads it (`baselines/histories`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) client: u32,
    /// `read`, `write` or `cas`.
    pub(crate) op: String,
    pub(crate) key: u8,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) old: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) value: u64,
    pub(crate) call: u64,
    /// `None`: it was never answered, and may take effect at any time.
    #[serde(default, rename = "return", skip_serializing_if = "Option::is_none")]
    pub(crate) returned: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) found: Option<u64>,
    /// Host whose member answered; 0 if none did.
    #[serde(default)]
    pub(crate) host: u16,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Record {
    pub(crate) fn new(client: u32, op: Op, call: u64) -> Self {
        let (name, old, value) = match op {
            Op::Read { .. } => ("read", 0, 0),
            Op::Write { value, .. } => ("write", 0, value),
            Op::Cas { old, value, .. } => ("cas", old, value),
        };
        Self { client, op: name.to_owned(), key: op.key(), old, value, call, returned: None, found: None, host: 0 }
    }
}

/// What a client process prints at its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tally {
    /// Operations in its history.
    pub(crate) operations: u64,
    /// Operations, among those, that were never answered.
    pub(crate) open: u64,
    /// Reads that a member refused: they have no effect and are no operations.
    pub(crate) refused: u64,
    /// Reads of each register after the last fault that were not answered.
    pub(crate) last_reads_missing: u64,
}
