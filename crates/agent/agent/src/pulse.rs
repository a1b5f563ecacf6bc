// SPDX-License-Identifier: Apache-2.0
//! Whether the loop still turns, as the control thread sees it.

use std::time::{Duration, Instant};

/// Shortest time between two looks.
const LOOK: Duration = Duration::from_millis(200);
/// Looks in a row without a turn after which the loop hangs: five seconds. It turns at least ten times a
/// second, and a witness' loop is as slow as its disk.
const STILL_MAX: u32 = 25;

/// The result of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// It has turned since the last look, or it is too early to look.
    Turns,
    /// It has not turned.
    Still,
    /// It has not turned for so long that it will not.
    Hangs,
}

/// The looks so far. Counts looks, not time: a process that was stopped as a whole, and goes on, does not
/// hang.
#[derive(Debug)]
pub struct Pulse {
    turns: u64,
    still: u32,
    looked: Instant,
}

impl Pulse {
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { turns: 0, still: 0, looked: now }
    }

    /// Looks, with the number of turns until now.
    pub fn look(&mut self, turns: u64, now: Instant) -> Look {
        if turns != self.turns {
            (self.turns, self.still, self.looked) = (turns, 0, now);
            return Look::Turns;
        }
        if now.saturating_duration_since(self.looked) >= LOOK {
            (self.still, self.looked) = (self.still + 1, now);
        }
        match self.still {
            0 => Look::Turns,
            1..STILL_MAX => Look::Still,
            _ => Look::Hangs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loop_without_turns_hangs_but_a_stopped_process_does_not() {
        let mut now = Instant::now();
        let mut pulse = Pulse::new(now);
        let mut look = |turns: u64, later: Duration| {
            now += later;
            pulse.look(turns, now)
        };
        assert_eq!(look(1, LOOK), Look::Turns);
        assert_eq!(look(1, LOOK / 2), Look::Turns, "too soon to tell");
        assert_eq!(look(1, LOOK), Look::Still);
        assert_eq!(look(1, Duration::from_secs(3600)), Look::Still, "both were stopped");
        assert_eq!(look(2, Duration::ZERO), Look::Turns);
        let looks: Vec<Look> = (0..STILL_MAX).map(|_| look(2, LOOK)).collect();
        assert_eq!(looks.iter().filter(|look| **look == Look::Still).count(), STILL_MAX as usize - 1);
        assert_eq!(looks.last(), Some(&Look::Hangs));
    }
}
