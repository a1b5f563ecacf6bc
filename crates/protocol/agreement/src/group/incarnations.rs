// SPDX-License-Identifier: Apache-2.0
//! Incarnations that a host knows to be its own: its processes take them from the clock, so that there are gaps, and what
//! is in a gap may be another process's, whose disk was lost.

/// Most ranges that are kept. The oldest are dropped beyond: the host answers for fewer incarnations then, and others
/// wait where it would have answered.
pub const RANGES_MAX: usize = 32;

/// Incarnations of one host, as ranges in ascending order. Between two ranges at least one number is missing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Incarnations {
    ranges: Vec<(u32, u32)>,
}

/// Why ranges are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RangesError {
    #[error("there are {got} ranges of incarnations; at most {RANGES_MAX}")]
    TooMany { got: usize },
    #[error(
        "incarnations {first} to {last} are no range, or do not follow the one before, which ends with {before}: both are at least 1, the first is not \
         above the last, and a number is left out between two ranges"
    )]
    Order { first: u32, last: u32, before: u32 },
}

impl Incarnations {
    /// These ranges, each with its first and last number.
    ///
    /// # Errors
    /// [`RangesError`].
    pub fn from_ranges(ranges: impl IntoIterator<Item = (u32, u32)>) -> Result<Self, RangesError> {
        let ranges: Vec<(u32, u32)> = ranges.into_iter().collect();
        if ranges.len() > RANGES_MAX {
            return Err(RangesError::TooMany { got: ranges.len() });
        }
        let mut before = 0;
        for (at, &(first, last)) in ranges.iter().enumerate() {
            let follows = if at == 0 { first > 0 } else { first > before && first - before > 1 };
            if !follows || last < first {
                return Err(RangesError::Order { first, last, before });
            }
            before = last;
        }
        Ok(Self { ranges })
    }

    /// All from `first` to `last`; none if `last` is lower.
    #[must_use]
    pub fn range(first: u32, last: u32) -> Self {
        let first = first.max(1);
        Self { ranges: if first <= last { vec![(first, last)] } else { Vec::new() } }
    }

    /// In ascending order, each with its first and last number.
    #[must_use]
    pub fn ranges(&self) -> &[(u32, u32)] {
        &self.ranges
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    #[must_use]
    pub fn contains(&self, incarnation: u32) -> bool {
        self.ranges.iter().any(|(first, last)| (*first..=*last).contains(&incarnation))
    }

    /// Adds an incarnation. One that is not above all others is not added: its process would be older than theirs.
    pub fn push(&mut self, incarnation: u32) {
        match self.ranges.last_mut() {
            Some((_, last)) if incarnation <= *last => {}
            Some((_, last)) if incarnation - *last == 1 => *last = incarnation,
            _ if incarnation == 0 => {}
            _ => {
                self.ranges.push((incarnation, incarnation));
                let surplus = self.ranges.len().saturating_sub(RANGES_MAX);
                self.ranges.drain(..surplus);
            }
        }
    }

    /// Leaves out `incarnation`, which may be another process's too, and those that follow each other up to it: they were
    /// taken one after the other from the same clock, which was behind. Those of an earlier clock stay.
    pub fn disown(&mut self, incarnation: u32) {
        self.ranges.pop_if(|(_, last)| *last >= incarnation.saturating_sub(1));
    }

    /// Without those below `first`.
    #[must_use]
    pub fn since(&self, first: u32) -> Self {
        let since = self.ranges.iter().filter(|(_, last)| *last >= first).map(|(from, last)| (first.max(*from), *last));
        Self { ranges: since.collect() }
    }

    /// Without `incarnation` and those above.
    #[must_use]
    pub fn before(&self, incarnation: u32) -> Self {
        let before = self.ranges.iter().filter(|(first, _)| *first < incarnation);
        Self { ranges: before.map(|(first, last)| (*first, (*last).min(incarnation - 1))).collect() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_hold_what_was_added(steps in prop::collection::vec((1u32..4, any::<bool>()), 0..60), at in 0u32..200) {
            let (mut ranges, mut all, mut next) = (Incarnations::default(), BTreeSet::new(), 0);
            for (step, is_own) in steps {
                next += step;
                if is_own {
                    ranges.push(next);
                    all.insert(next);
                }
                // It is not added a second time, nor is a lower one.
                ranges.push(next.min(all.last().copied().unwrap_or(0)));
            }
            // The oldest may be dropped.
            let from = ranges.ranges().first().map_or(u32::MAX, |(first, _)| *first);
            prop_assert!(ranges.ranges().len() == RANGES_MAX || all.first().is_none_or(|first| *first == from));
            for number in 0..200 {
                prop_assert_eq!(ranges.contains(number), number >= from && all.contains(&number));
                prop_assert_eq!(ranges.since(at).contains(number), number >= at && ranges.contains(number));
                prop_assert_eq!(ranges.before(at).contains(number), number < at && ranges.contains(number));
            }
            for part in [ranges.clone(), ranges.since(at), ranges.before(at)] {
                prop_assert_eq!(Incarnations::from_ranges(part.ranges().iter().copied()), Ok(part));
            }
        }
    }

    #[test]
    fn oldest_range_is_dropped_at_the_bound() {
        let mut ranges = Incarnations::default();
        (0..RANGES_MAX as u32 + 3).for_each(|at| ranges.push(10 * (at + 1)));
        assert_eq!((ranges.ranges().len(), ranges.ranges()[0]), (RANGES_MAX, (40, 40)));
    }

    #[test]
    fn disowned_are_those_of_the_same_clock() {
        let ranges = |of: &[(u32, u32)]| Incarnations::from_ranges(of.iter().copied()).unwrap();
        let disown = |of: &[(u32, u32)], incarnation| {
            let mut ranges = ranges(of);
            ranges.disown(incarnation);
            ranges
        };
        assert_eq!(disown(&[(20, 21), (500, 501)], 502), ranges(&[(20, 21)]));
        assert_eq!(disown(&[(20, 21), (500, 502)], 502), ranges(&[(20, 21)]));
        assert_eq!(disown(&[(20, 21)], 500), ranges(&[(20, 21)]));
        assert_eq!(disown(&[], 500), ranges(&[]));
    }

    #[test]
    fn ranges_out_of_order_are_refused() {
        let many = (0..RANGES_MAX as u32 + 1).map(|at| (2 * at + 1, 2 * at + 1));
        assert_eq!(Incarnations::from_ranges(many), Err(RangesError::TooMany { got: RANGES_MAX + 1 }));
        for wrong in [&[(0, 3)][..], &[(3, 2)], &[(1, 2), (2, 3)], &[(1, 2), (3, 4)], &[(5, 6), (1, 2)]] {
            let error = Incarnations::from_ranges(wrong.iter().copied()).unwrap_err();
            assert!(matches!(error, RangesError::Order { .. }), "{wrong:?}: {error}");
        }
        assert!(Incarnations::from_ranges([(1, 2), (4, u32::MAX)]).unwrap().contains(7));
    }
}
