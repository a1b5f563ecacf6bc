// SPDX-License-Identifier: Apache-2.0
//! Replay protection.

/// What a [`ReplayWindow`] says of a sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// Not seen before; now marked.
    Fresh,
    /// Seen before: a duplicate, a replay, or the copy from the other plane.
    Duplicate,
    /// Too far behind the highest one to know; sequence number 0, which nobody sends, is always this.
    Old,
}

/// Remembers which of the last [`ReplayWindow::WIDTH`] sequence numbers were accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct ReplayWindow {
    highest: u64,
    /// Bit i set: `highest - i` was accepted.
    bits: u64,
}

impl ReplayWindow {
    pub const WIDTH: u64 = 64;

    pub const fn new() -> ReplayWindow {
        ReplayWindow { highest: 0, bits: 0 }
    }

    /// The highest number accepted, 0 for none.
    pub const fn highest(&self) -> u64 {
        self.highest
    }

    /// Says whether `seq` is new and marks it.
    pub fn accept(&mut self, seq: u64) -> Seen {
        let seen = self.check(seq);
        if seen == Seen::Fresh {
            if seq > self.highest {
                let by = seq - self.highest;
                self.bits = if by >= Self::WIDTH { 0 } else { self.bits << by };
                self.bits |= 1;
                self.highest = seq;
            } else {
                self.bits |= 1 << (self.highest - seq);
            }
        }
        seen
    }

    /// Says whether `seq` is new, without marking it.
    pub fn check(&self, seq: u64) -> Seen {
        if seq == 0 {
            Seen::Old
        } else if seq > self.highest {
            Seen::Fresh
        } else if self.highest - seq >= Self::WIDTH {
            Seen::Old
        } else if self.bits >> (self.highest - seq) & 1 == 1 {
            Seen::Duplicate
        } else {
            Seen::Fresh
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn at_the_edges() {
        let mut w = ReplayWindow::new();
        assert_eq!(w.accept(0), Seen::Old);
        assert_eq!(w.accept(1), Seen::Fresh);
        assert_eq!(w.accept(1), Seen::Duplicate);
        assert_eq!(w.accept(64), Seen::Fresh);
        assert_eq!(w.accept(1), Seen::Duplicate);
        assert_eq!(w.accept(65), Seen::Fresh);
        assert_eq!(w.accept(1), Seen::Old);
        assert_eq!(w.accept(2), Seen::Fresh);
        assert_eq!(w.accept(u64::MAX), Seen::Fresh);
        assert_eq!(w.accept(u64::MAX), Seen::Duplicate);
        assert_eq!(w.accept(u64::MAX - 63), Seen::Fresh);
        assert_eq!(w.accept(u64::MAX - 64), Seen::Old);
    }

    proptest! {
        #[test]
        fn like_a_set(seqs in proptest::collection::vec(1u64..300, 0..400)) {
            let mut w = ReplayWindow::new();
            let mut set = BTreeSet::new();
            for seq in seqs {
                let expected = match set.last() {
                    Some(top) if *top >= seq && top - seq >= ReplayWindow::WIDTH => Seen::Old,
                    _ if set.contains(&seq) => Seen::Duplicate,
                    _ => Seen::Fresh,
                };
                prop_assert_eq!(w.accept(seq), expected);
                if expected == Seen::Fresh { set.insert(seq); }
            }
        }
    }
}
