// SPDX-License-Identifier: Apache-2.0
//! What a server takes from its own replication link, and since when nothing ([`super::stuck`]).
//!
//! Looks are counted, not time: while Redis executes a long command, or loads a dump, this module does not look.

use super::TICK_MS;

/// A link may take nothing for so long, seconds of a loop that is free.
pub(super) const STUCK_S: i64 = 10;
const LOOKS_MAX: i64 = STUCK_S * 1000 / TICK_MS;
/// A server that takes this many bytes of a long unit is not stuck. Fewer may have gone into the buffers of a connection
/// that nobody reads.
const PART: u64 = 1 << 20;

/// What a link has taken.
#[derive(Debug, Default)]
pub(super) struct Taking {
    /// The last position that the link is to bring.
    pub(super) pushed: u64,
    /// The position that the server had applied, and the bytes it had taken, when it was last seen to take something.
    applied: u64,
    taken: u64,
    /// Looks since then.
    looks: i64,
}

impl Taking {
    pub(super) fn note_pushed(&mut self, position: u64) {
        self.pushed = position;
    }

    /// One more look. `waits`: there is something that the server has not applied. Whether it is stuck.
    pub(super) fn look(&mut self, waits: bool, applied: u64, taken: u64) -> bool {
        if !waits || applied != self.applied || taken - self.taken >= PART {
            (self.applied, self.taken, self.looks) = (applied, taken, 0);
            return false;
        }
        self.looks += 1;
        self.looks > LOOKS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_link_that_takes_nothing_for_long_is_stuck() {
        let mut taking = Taking::default();
        let mut looks =
            |waits: bool, applied: u64, taken: u64, count: i64| (0..count).any(|_| taking.look(waits, applied, taken));
        assert!(!looks(false, 0, 0, 2 * LOOKS_MAX), "nothing waits");
        assert!(!looks(true, 0, 0, LOOKS_MAX));
        assert!(!looks(true, 0, PART, LOOKS_MAX), "a part of a long unit");
        assert!(!looks(true, 1, PART, LOOKS_MAX), "a unit");
        assert!(!looks(false, 1, PART, 1) && !looks(true, 1, PART, LOOKS_MAX), "all was applied meanwhile");
        assert!(looks(true, 1, PART + 1000, 2), "signs of life in a buffer");
    }
}
