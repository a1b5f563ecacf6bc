// SPDX-License-Identifier: Apache-2.0
//! The state that the log leads to.
//!
//! A value begins with a run, a client and the client's count (`u64`, `u32`, `u32`, little-endian). Run 0
//! belongs to clients outside: its values count, each count of a client once.

use crate::lines::Add;

pub(crate) const VALUE_MIN: usize = 16;
/// Most clients outside.
pub(crate) const CLIENTS_MAX: u32 = 4096;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) applied: u64,
    pub(crate) hash: u64,
    pub(crate) counter: u64,
    /// By client: its last count.
    counts: Vec<u32>,
}

/// The beginning of a value.
pub(crate) struct Value {
    pub(crate) run: u64,
    pub(crate) add: Add,
}

impl Value {
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let (run, rest) = bytes.split_first_chunk()?;
        let (client, rest) = rest.split_first_chunk()?;
        let add = Add { client: u32::from_le_bytes(*client), count: u32::from_le_bytes(*rest.first_chunk()?) };
        Some(Self { run: u64::from_le_bytes(*run), add })
    }

    /// Writes the beginning over that of `bytes`.
    pub(crate) fn write(&self, bytes: &mut [u8]) {
        bytes[..8].copy_from_slice(&self.run.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.add.client.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.add.count.to_le_bytes());
    }
}

/// The hash of the former hash and the next value, as in `baselines/etcd-raft`: words of a value in pairs,
/// both halves of their product.
fn hash(before: u64, value: &[u8]) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let (mut sum, mut place) = (value.len() as u64, ODD);
    let mut add = |two: u128| {
        let product =
            u128::from(two as u64 ^ place).wrapping_mul(u128::from((two >> 64) as u64 ^ place.rotate_left(32)));
        sum = sum.wrapping_add(product as u64 ^ (product >> 64) as u64);
        place = place.wrapping_add(ODD);
    };
    let (twos, rest) = value.as_chunks();
    twos.iter().for_each(|two| add(u128::from_le_bytes(*two)));
    rest.iter().for_each(|byte| add((*byte).into()));
    (before ^ sum).wrapping_mul(ODD).rotate_left(29)
}

impl State {
    pub(crate) fn apply(&mut self, bytes: &[u8]) {
        self.hash = hash(self.hash, bytes);
        self.applied += 1;
        if let Some(Value { run: 0, add }) = Value::read(bytes) {
            self.count(add);
        }
    }

    fn count(&mut self, Add { client, count }: Add) {
        if client >= CLIENTS_MAX {
            return;
        }
        let client = client as usize;
        if client >= self.counts.len() {
            self.counts.resize(client + 1, 0);
        }
        // Sent again after a leader's death: it counts once.
        if count == self.counts[client] + 1 {
            self.counts[client] = count;
            self.counter += 1;
        }
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        let numbers = [self.applied, self.hash, self.counter];
        let numbers = numbers.iter().flat_map(|number| number.to_le_bytes());
        numbers.chain(self.counts.iter().flat_map(|count| count.to_le_bytes())).collect()
    }

    /// `None` if the bytes are no value.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let (numbers, counts) = bytes.split_at_checked(24)?;
        let number = |at: usize| Some(u64::from_le_bytes(*numbers.get(at..)?.first_chunk()?));
        let (counts, []) = counts.as_chunks::<4>() else { return None };
        let counts = counts.iter().map(|count| u32::from_le_bytes(*count)).collect();
        Some(Self { applied: number(0)?, hash: number(8)?, counter: number(16)?, counts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value(run: u64, client: u32, count: u32) -> Vec<u8> {
        let mut bytes = vec![9; 20];
        Value { run, add: Add { client, count } }.write(&mut bytes);
        bytes
    }

    #[test]
    fn repeated_request_counts_once() {
        let mut state = State::default();
        for (client, count) in [(0, 1), (0, 1), (3, 1), (0, 2), (3, 1), (0, 1), (0, 2)] {
            state.apply(&value(0, client, count));
        }
        state.apply(&value(7, 0, 3));
        state.apply(&value(0, CLIENTS_MAX, 1));
        assert_eq!((state.counter, state.applied), (3, 9));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(all in prop::collection::vec((0u32..9, 0u32..5), 0..40)) {
            let mut state = State::default();
            all.iter().for_each(|(client, count)| state.apply(&value(0, *client, *count)));
            let bytes = state.write();
            prop_assert_eq!(State::read(&bytes), Some(state));
            prop_assert_eq!(State::read(&bytes[..bytes.len() - 1]), None);
        }
    }
}
