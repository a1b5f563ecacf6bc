// SPDX-License-Identifier: Apache-2.0
//! The largest or smallest value of the last seconds, in constant memory.
//!
//! The best of each quarter of the window is kept. So what is reported is never older than the window, and never worse than the best of
//! its last three quarters.

/// The better of two values.
pub trait Better: Copy {
    fn is_better(self, than: Self) -> bool;
}

/// The largest is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Largest(pub u64);

/// The smallest is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Smallest(pub u64);

impl Better for Largest {
    fn is_better(self, than: Self) -> bool {
        self.0 >= than.0
    }
}

impl Better for Smallest {
    fn is_better(self, than: Self) -> bool {
        self.0 <= than.0
    }
}

#[derive(Debug, Clone, Copy)]
struct Sample<V> {
    at_ns: u64,
    value: V,
}

/// Parts of a window.
const PARTS: u64 = 4;
/// The one that has begun, and those before it that may reach into the window.
const KEPT: usize = PARTS as usize + 1;

/// The best value of a window of time.
#[derive(Debug, Clone, Copy)]
pub struct Windowed<V> {
    window_ns: u64,
    /// The best of each part of the time, in the place of its number.
    best: [Option<Sample<V>>; KEPT],
    last: Option<Sample<V>>,
}

impl<V: Better> Windowed<V> {
    /// A window of this length, without samples.
    #[must_use]
    pub fn new(window_ns: u64) -> Self {
        Self { window_ns, best: [None; KEPT], last: None }
    }

    /// Forgets all samples.
    pub fn clear(&mut self) {
        (self.best, self.last) = ([None; KEPT], None);
    }

    /// The best value as of the last update; none before the first.
    #[must_use]
    pub fn get(&self) -> Option<V> {
        self.last.and_then(|last| self.at(last.at_ns))
    }

    /// The best value at a time: none if no sample is younger than the window.
    #[must_use]
    pub fn at(&self, now_ns: u64) -> Option<V> {
        let is_inside = |sample: &&Sample<V>| now_ns.saturating_sub(sample.at_ns) <= self.window_ns;
        let values = self.best.iter().flatten().chain(&self.last).filter(is_inside).map(|sample| sample.value);
        values.reduce(|one, other| if other.is_better(one) { other } else { one })
    }

    /// The number of the part of the time that a sample is of.
    fn part(&self, at_ns: u64) -> u64 {
        at_ns / self.window_ns.div_ceil(PARTS).max(1)
    }

    /// Adds a sample. `now_ns` never goes back.
    pub fn update(&mut self, now_ns: u64, value: V) {
        let new = Sample { at_ns: now_ns, value };
        self.last = Some(new);
        let part = self.part(now_ns);
        let is_of_part = |sample: &Sample<V>| self.part(sample.at_ns) == part;
        let place = usize::try_from(part % KEPT as u64).unwrap_or(0);
        let before = self.best[place].filter(is_of_part);
        self.best[place] = before.filter(|before| !value.is_better(before.value)).or(Some(new));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The filter never reports less than the best of the last three quarters, nor more than the best of the window.
        #[test]
        fn largest_is_between_that_of_three_quarters_and_of_the_window(
            samples in prop::collection::vec((0_u64..60, 0_u64..1000), 1..300),
        ) {
            const WINDOW: u64 = 200;
            let mut filter = Windowed::<Largest>::new(WINDOW);
            let (mut now, mut all) = (0, Vec::new());
            for (gap, value) in samples {
                now += gap;
                all.push((now, value));
                filter.update(now, Largest(value));
                let of_last = |window: u64| {
                    let recent = all.iter().filter(|(at, _)| now - at <= window);
                    recent.map(|(_, value)| *value).max().unwrap_or(0)
                };
                let got = filter.get().map_or(0, |value| value.0);
                prop_assert!(got <= of_last(WINDOW), "{got} of {all:?}");
                prop_assert!(got >= of_last(WINDOW / 4 * 3), "{got} of {all:?}");
            }
        }
    }

    #[test]
    fn old_best_leaves_the_window() {
        let mut filter = Windowed::<Smallest>::new(100);
        assert_eq!(filter.get(), None);
        filter.update(0, Smallest(5));
        for at in (10..=100).step_by(10) {
            filter.update(at, Smallest(8));
            assert_eq!(filter.get(), Some(Smallest(5)), "at {at}");
        }
        filter.update(110, Smallest(9));
        assert_eq!(filter.get(), Some(Smallest(8)));
        assert_eq!(filter.at(1000), None, "nothing is known any more");
        filter.clear();
        assert_eq!(filter.get(), None);
    }
}
