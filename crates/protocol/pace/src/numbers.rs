// SPDX-License-Identifier: Apache-2.0
//! Which packet numbers have come: each counts once, and the newest are named in FEEDBACK.

use crate::packet::{RUNS_MAX, Run, Runs, low};

/// Packets before the largest one that are still told from repetitions; older ones count as repeated.
pub const REPLAY_WINDOW: u64 = 4096;
const WORDS: usize = (REPLAY_WINDOW / 64) as usize;

/// The numbers of packets that have come.
#[derive(Debug, Clone)]
pub struct Numbers {
    /// The largest; none before the first.
    largest: Option<u64>,
    /// One bit for each number up to the largest, within the window.
    seen: [u64; WORDS],
}

impl Default for Numbers {
    fn default() -> Self {
        Self { largest: None, seen: [0; WORDS] }
    }
}

#[allow(clippy::cast_possible_truncation, reason = "less than the window")]
fn place(number: u64) -> (usize, u64) {
    ((number % REPLAY_WINDOW / 64) as usize, 1 << (number % 64))
}

impl Numbers {
    #[must_use]
    pub fn largest(&self) -> Option<u64> {
        self.largest
    }

    /// Whether a number has come, or is too old to tell.
    #[must_use]
    pub fn has(&self, number: u64) -> bool {
        let Some(largest) = self.largest else { return false };
        if number > largest {
            return false;
        }
        let (word, bit) = place(number);
        largest - number >= REPLAY_WINDOW || self.seen[word] & bit != 0
    }

    /// Takes a number. False: it has come before, or is too old to tell.
    pub fn take(&mut self, number: u64) -> bool {
        if self.has(number) {
            return false;
        }
        let first = self.largest.map_or(number, |largest| largest + 1);
        if number - first.min(number) >= REPLAY_WINDOW {
            self.seen.fill(0);
        } else {
            for skipped in first..=number {
                let (word, bit) = place(skipped);
                self.seen[word] &= !bit;
            }
        }
        let (word, bit) = place(number);
        self.seen[word] |= bit;
        self.largest = self.largest.max(Some(number));
        true
    }

    /// Numbers in a row, downwards from this one, that have come, or have not.
    fn run(&self, from: u64, come: bool) -> u64 {
        let oldest = self.largest.unwrap_or(0).saturating_sub(REPLAY_WINDOW - 1);
        let most = (from + 1).saturating_sub(oldest);
        let mut len = 0;
        while len < most {
            let (word, bit) = place(from - len);
            // This number and those below it in the word, from the highest bit on.
            let below = bit.trailing_zeros() + 1;
            let bits = self.seen[word] << (u64::BITS - below);
            let alike = if come { bits.leading_ones() } else { bits.leading_zeros() }.min(below);
            len += u64::from(alike);
            if alike < below {
                break;
            }
        }
        len.min(most)
    }

    /// How many came without a gap up to the largest.
    #[must_use]
    pub fn newest_run(&self) -> u64 {
        self.largest.map_or(0, |largest| self.run(largest, true))
    }

    /// What FEEDBACK says: the largest number, how many came without a gap up to it, and the runs before that reach up to `oldest` or
    /// beyond. None before the first packet.
    #[must_use]
    pub fn runs(&self, oldest: u64) -> Option<(u32, u16, Runs)> {
        let largest = self.largest?;
        let bounded = |count: u64| u16::try_from(count).unwrap_or(u16::MAX);
        let newest = self.run(largest, true);
        let (mut runs, mut below) = (Runs::new(), largest.checked_sub(newest));
        for _ in 0..RUNS_MAX {
            let Some(missing_from) = below else { break };
            let gap = self.run(missing_from, false);
            let Some(from) = missing_from.checked_sub(gap).filter(|from| *from >= oldest) else { break };
            let len = self.run(from, true);
            if gap == 0 || len == 0 {
                break;
            }
            runs.push(Run { gap: bounded(gap), len: bounded(len) });
            below = from.checked_sub(len);
        }
        Some((low(largest), bounded(newest), runs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// The numbers that FEEDBACK names.
    fn named((largest, newest, runs): (u32, u16, Runs)) -> BTreeSet<u64> {
        let mut named = BTreeSet::new();
        let mut at = u64::from(largest) + 1;
        let mut take = |at: &mut u64, gap: u64, len: u64| {
            *at -= gap;
            for _ in 0..len {
                *at -= 1;
                named.insert(*at);
            }
        };
        take(&mut at, 0, newest.into());
        runs.as_slice().iter().for_each(|run| take(&mut at, run.gap.into(), run.len.into()));
        named
    }

    proptest! {
        #[test]
        fn each_number_counts_once_and_feedback_names_the_newest(
            steps in prop::collection::vec((0_u64..300, 0_u64..6000), 1..400)
        ) {
            let (mut numbers, mut come, mut next) = (Numbers::default(), BTreeSet::new(), 0_u64);
            for (ahead, back) in steps {
                let number = (next + ahead).saturating_sub(back);
                next = next.max(number);
                let largest = come.last().copied().unwrap_or(0);
                let is_old = !come.is_empty() && number + REPLAY_WINDOW <= largest;
                prop_assert_eq!(numbers.take(number), !is_old && come.insert(number));
                let largest = *come.last().unwrap();
                let named = named(numbers.runs(0).unwrap());
                let oldest = *named.first().unwrap();
                prop_assert_eq!(numbers.largest(), Some(largest));
                prop_assert!(named.iter().eq(come.range(oldest..)), "a gap within: {:?}", named);
                prop_assert!(numbers.has(number));
            }
        }
    }

    #[test]
    fn all_runs_are_named_as_far_as_there_is_room() {
        let mut numbers = Numbers::default();
        (0..200).step_by(2).for_each(|number| assert!(numbers.take(number)));
        let (largest, newest, runs) = numbers.runs(0).unwrap();
        assert_eq!((largest, newest, runs.as_slice().len()), (198, 1, RUNS_MAX));
        assert!(runs.as_slice().iter().all(|run| (run.gap, run.len) == (1, 1)));
        let counts = [191, 190, 199].map(|oldest| numbers.runs(oldest).map(|(.., runs)| runs.as_slice().len()));
        assert_eq!(counts, [Some(3), Some(4), Some(0)]);
    }

    #[test]
    fn number_far_ahead_forgets_the_old_ones() {
        let mut numbers = Numbers::default();
        assert!(numbers.take(7) && numbers.take(1 << 40));
        assert!(!numbers.take(7) && !numbers.take(1 << 40) && numbers.take((1 << 40) - 1));
    }
}
