// SPDX-License-Identifier: Apache-2.0
//! The replicated state: a few registers, and the last answer to each client.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Most registers.
pub(crate) const KEYS_MAX: u8 = 16;

/// An operation on one register. Registers hold 0 at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Op {
    Read {
        key: u8,
    },
    Write {
        key: u8,
        value: u64,
    },
    /// Sets `value` if the register holds `old`.
    Cas {
        key: u8,
        old: u64,
        value: u64,
    },
}

impl Op {
    pub(crate) fn key(self) -> u8 {
        match self {
            Self::Read { key } | Self::Write { key, .. } | Self::Cas { key, .. } => key,
        }
    }
}

/// The name of an operation. A client sends its next operation once the previous one was answered; if it
/// gives one up, it continues as another client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Id {
    pub(crate) client: u32,
    /// From 1.
    pub(crate) count: u32,
}

/// A value of the log: an operation that may change a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Change {
    pub(crate) id: Id,
    pub(crate) op: Op,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Registers {
    values: [u64; KEYS_MAX as usize],
    /// By client: its last operation, and the result.
    answered: BTreeMap<u32, (u32, u64)>,
    /// Number of changes applied, and a hash of them in their order.
    pub(crate) applied: u64,
    pub(crate) hash: u64,
}

impl Registers {
    pub(crate) fn read(&self, key: u8) -> Option<u64> {
        self.values.get(usize::from(key)).copied()
    }

    /// The value of the register just before, if this operation was applied now. Each operation is applied
    /// once.
    pub(crate) fn apply(&mut self, Change { id, op }: Change) -> Option<u64> {
        let value = self.values.get_mut(usize::from(op.key()))?;
        if self.answered.get(&id.client).is_some_and(|(count, _)| id.count <= *count) {
            return None;
        }
        let found = *value;
        match op {
            Op::Read { .. } => {}
            Op::Write { value: new, .. } => *value = new,
            Op::Cas { old, value: new, .. } => {
                if found == old {
                    *value = new;
                }
            }
        }
        self.answered.insert(id.client, (id.count, found));
        self.applied += 1;
        for word in [u64::from(id.client), u64::from(id.count), *value] {
            self.hash = (self.hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
        Some(found)
    }

    /// The result of an operation that was applied before.
    pub(crate) fn answered(&self, id: Id) -> Option<u64> {
        self.answered.get(&id.client).filter(|(count, _)| *count == id.count).map(|(_, found)| *found)
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("numbers")
    }

    /// None if these bytes are no state.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn change(client: u32, count: u32, op: Op) -> Change {
        Change { id: Id { client, count }, op }
    }

    #[test]
    fn retried_operation_is_applied_once() {
        let mut registers = Registers::default();
        let write = |count, value| change(1, count, Op::Write { key: 0, value });
        assert_eq!(registers.apply(write(1, 7)), Some(0));
        assert_eq!(registers.apply(write(2, 8)), Some(7));
        let before = registers.clone();
        for again in [write(2, 8), write(1, 7)] {
            assert_eq!(registers.apply(again), None);
        }
        assert_eq!(registers, before);
        assert_eq!(registers.answered(Id { client: 1, count: 2 }), Some(7));
        assert_eq!(registers.answered(Id { client: 1, count: 1 }), None);
    }

    #[test]
    fn swap_needs_the_old_value() {
        let mut registers = Registers::default();
        let swap = |count, old, value| change(1, count, Op::Cas { key: 3, old, value });
        assert_eq!(registers.apply(swap(1, 5, 6)), Some(0));
        assert_eq!(registers.read(3), Some(0));
        assert_eq!(registers.apply(swap(2, 0, 6)), Some(0));
        assert_eq!((registers.read(3), registers.read(4), registers.read(KEYS_MAX)), (Some(6), Some(0), None));
    }

    proptest! {
        #[test]
        fn state_survives_its_transfer(all in prop::collection::vec((0u32..4, 0u8..KEYS_MAX, any::<u64>()), 0..30)) {
            let mut registers = Registers::default();
            for (count, (client, key, value)) in (1..).zip(all) {
                registers.apply(change(client, count, Op::Write { key, value }));
            }
            prop_assert_eq!(Registers::from_bytes(&registers.to_bytes()), Some(registers));
        }
    }
}
