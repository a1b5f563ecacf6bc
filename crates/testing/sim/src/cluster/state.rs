// SPDX-License-Identifier: Apache-2.0
//! A user's state of the log: its length, and a number that depends on every value.

/// Longest payload, and longest state of a user, bytes.
pub(super) const PAYLOAD_MAX_BYTES: u64 = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct State {
    /// Instances delivered, or taken over from another member.
    pub(super) position: u64,
    pub(super) sum: u64,
}

impl State {
    pub(super) fn apply(&mut self, instance: u64, value: &[u8]) {
        self.position = instance;
        for byte in value.iter().chain(&instance.to_le_bytes()) {
            // FNV-1a.
            self.sum = (self.sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// The state as another member takes it over. Lengths differ, and the content shows whether it is
    /// complete.
    pub(super) fn bytes(self) -> Vec<u8> {
        let len = 16 + self.sum % (PAYLOAD_MAX_BYTES - 16);
        let head = self.position.to_le_bytes().into_iter().chain(self.sum.to_le_bytes());
        head.chain((16..len).map(|at| (self.sum.rotate_left((at % 64) as u32) & 0xff) as u8)).collect()
    }

    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let state = Self { position: number(0)?, sum: number(8)? };
        (state.bytes() == bytes).then_some(state)
    }
}
