// SPDX-License-Identifier: Apache-2.0
//! A server that takes nothing from its own replication link ends, and leaves the group to the others: it would hold them
//! up once enough decisions wait for it ([`FEED_MAX`]), and could not lead.
//!
//! Redis connects again within a second wherever it can, so this is a host whose loopback does not work, or a setting that
//! keeps Redis from its link. Looks are counted, not time: while Redis executes a long command, or loads a dump, this
//! module does not look.

use super::{
    TICK_MS,
    state::{Act, FEED_MAX, Mode, State},
};

/// A link may take nothing for so long, seconds of a loop that is free.
const STUCK_S: i64 = 10;
const LOOKS_MAX: i64 = STUCK_S * 1000 / TICK_MS;
/// A server that takes this many bytes of a long unit is not stuck. Fewer may have gone into the buffers of a connection
/// that nobody reads.
const PART: u64 = 1 << 20;

/// What a link has taken.
#[derive(Debug, Default)]
pub(super) struct Stuck {
    /// The last position that the link is to bring.
    pushed: u64,
    /// The position that the server had applied, and the bytes it had taken, when it was last seen to take something.
    applied: u64,
    taken: u64,
    /// Looks since then.
    looks: i64,
}

impl Stuck {
    pub(super) fn note_pushed(&mut self, position: u64) {
        self.pushed = position;
    }

    /// One more look. `waits`: there is something that the server has not applied. Whether it is stuck.
    fn look(&mut self, waits: bool, applied: u64, taken: u64) -> bool {
        if !waits || applied != self.applied || taken - self.taken >= PART {
            (self.applied, self.taken, self.looks) = (applied, taken, 0);
            return false;
        }
        self.looks += 1;
        self.looks > LOOKS_MAX
    }
}

impl State {
    /// Ends this server if its link is stuck and there are others.
    pub(super) fn look_whether_stuck(&mut self) {
        let is_fed = matches!(self.mode, Mode::Following | Mode::Leading);
        // Without the end of a unit there is no position, and much of it may have come.
        let waits = self.stuck.pushed.min(self.fed) > self.applied || self.feed.len() > FEED_MAX;
        if !self.stuck.look(is_fed && waits, self.applied, self.feed.taken()) || !self.member.has_others() {
            return;
        }
        let link = if self.feed.is_streaming() { "stands" } else { "does not stand" };
        let wait = self.feed.len();
        self.mode = Mode::Out;
        self.act(Act::End(format!(
            "it has taken nothing from its own replication link for {STUCK_S} s, which {link}; {wait} bytes of what the group has decided \
             wait for it. Redis has to reach 127.0.0.1:{}: look at the loopback interface, and at what this log says of MASTER",
            self.feed.port()
        )));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_link_that_takes_nothing_for_long_is_stuck() {
        let mut stuck = Stuck::default();
        let mut looks =
            |waits: bool, applied: u64, taken: u64, count: i64| (0..count).any(|_| stuck.look(waits, applied, taken));
        assert!(!looks(false, 0, 0, 2 * LOOKS_MAX), "nothing waits");
        assert!(!looks(true, 0, 0, LOOKS_MAX));
        assert!(!looks(true, 0, PART, LOOKS_MAX), "a part of a long unit");
        assert!(!looks(true, 1, PART, LOOKS_MAX), "a unit");
        assert!(!looks(false, 1, PART, 1) && !looks(true, 1, PART, LOOKS_MAX), "all was applied meanwhile");
        assert!(looks(true, 1, PART + 1000, 2), "signs of life in a buffer");
    }
}
