// SPDX-License-Identifier: Apache-2.0
//! The last heartbeat, repeated while another agent takes over.

use fide_wire::{PAYLOAD_MAX, Packet, set_seq};

use crate::frozen::REPEATS_MAX;

/// The last heartbeat, kept to be repeated under new sequence numbers: its acknowledgements and promises
/// stay true.
#[derive(Debug)]
pub(super) struct Repeat {
    payload: Box<[u8; PAYLOAD_MAX]>,
    len: usize,
    next_ns: Option<u64>,
    count: u64,
}

impl Repeat {
    pub(super) fn new() -> Self {
        Self { payload: Box::new([0; PAYLOAD_MAX]), len: 0, next_ns: None, count: 0 }
    }

    /// Keeps a heartbeat that is about to be sent.
    pub(super) fn keep(&mut self, payload: &[u8]) {
        self.payload[..payload.len()].copy_from_slice(payload);
        self.len = payload.len();
    }

    /// Begins to repeat; the first repeat is due at `next_ns`.
    pub(super) fn begin(&mut self, next_ns: u64) {
        (self.next_ns, self.count) = (Some(next_ns), 0);
    }

    /// Ends the repeats. How many there were, if they had begun.
    pub(super) fn end(&mut self) -> Option<u64> {
        self.next_ns.take().map(|_| self.count)
    }

    /// When the next one is due; `None` unless repeats have begun.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.next_ns
    }

    /// How many repeats there were.
    #[cfg(test)]
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Whether a repeat is due (`Some`). The one after it is then due a period later.
    pub(super) fn take_due(&mut self, now_raw_ns: u64, period_ns: u64) -> Option<()> {
        let due_ns = self.next_ns.filter(|due_ns| *due_ns <= now_raw_ns)?;
        self.next_ns = Some(due_ns + period_ns);
        Some(())
    }

    /// The kept heartbeat under the next number, to be sealed; `None` at the bound of repeats, or without
    /// one.
    pub(super) fn next(&mut self) -> Option<&mut [u8]> {
        if self.count >= REPEATS_MAX {
            return None;
        }
        let payload = &mut self.payload[..self.len];
        let seq = Packet::new(&payload).ok()?.seq() + 1;
        self.count += 1;
        set_seq(payload, seq);
        Some(payload)
    }
}

#[cfg(test)]
mod tests {
    use fide_wire::Builder;

    use super::*;

    #[test]
    fn repeats_count_on_and_end_at_their_bound() {
        let mut repeat = Repeat::new();
        repeat.begin(10);
        assert!(repeat.next().is_none(), "nothing was ever sent");
        let mut bytes = [0; PAYLOAD_MAX];
        let len = Builder::heartbeat(&mut bytes, 1, 7, 41).expect("room").finish();
        repeat.keep(&bytes[..len]);
        assert!(repeat.take_due(9, 5).is_none());
        assert_eq!((repeat.take_due(12, 5), repeat.next_ns()), (Some(()), Some(15)));
        for expected in 42..42 + REPEATS_MAX {
            let payload = repeat.next().expect("below the bound");
            assert_eq!(Packet::new(&payload).expect("whole").seq(), expected);
        }
        assert!(repeat.next().is_none());
        assert_eq!((repeat.end(), repeat.end()), (Some(REPEATS_MAX), None));
    }
}
