// SPDX-License-Identifier: Apache-2.0
//! Linearizability of a register on the log: a write is a value of an instance, a read returns how much of
//! the log was applied.
//!
//! The log is one order of all writes, so the history is linearizable in that order if no read sees less than
//! was answered before it began, and no write comes before what was answered when it began (Herlihy and Wing,
//! 1990). Reads take no time here.

use std::collections::HashMap;

use super::{Checked, violated};

#[derive(Debug, Default)]
pub(in super::super) struct Register {
    /// Instances up to this one were seen by a user that got an answer.
    seen: u64,
    /// Writes without an answer: the host of each, and `seen` when the write began.
    open: HashMap<u64, (u16, u64)>,
}

impl Register {
    pub(in super::super) fn write(&mut self, value: u64, at: u16) {
        self.open.insert(value, (at, self.seen));
    }

    /// A member has delivered an instance with these values. Writes that were made at this member are
    /// answered.
    pub(in super::super) fn delivered(&mut self, by: u16, instance: u64, values: impl Iterator<Item = u64>) -> Checked {
        for value in values {
            let Some(&(at, seen)) = self.open.get(&value) else { continue };
            if instance <= seen {
                let text = format!("value {value} was written after instance {seen} was seen, and is in {instance}");
                return violated("linearizability", text);
            }
            if at == by {
                self.open.remove(&value);
                self.seen = self.seen.max(instance);
            }
        }
        Ok(())
    }

    pub(in super::super) fn read(&mut self, at: u16, applied: u64) -> Checked {
        if applied < self.seen {
            let text = format!("a read at h{at} sees {applied} instances; {} were seen before it began", self.seen);
            return violated("linearizability", text);
        }
        self.seen = applied;
        Ok(())
    }
}
