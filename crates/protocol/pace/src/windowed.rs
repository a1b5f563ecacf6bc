// SPDX-License-Identifier: Apache-2.0
//! The largest or smallest value of the last seconds, in constant memory.
//!
//! Three samples are kept, the best of the whole window and the best since each of the others, as K. Nichols'
//! filter does, which Linux' BBR uses too. Whenever the best one leaves the window, a recent one takes its place.

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

/// The best value of a window of time.
#[derive(Debug, Clone, Copy)]
pub struct Windowed<V> {
    window_ns: u64,
    best: Option<[Sample<V>; 3]>,
    last: Option<Sample<V>>,
}

impl<V: Better> Windowed<V> {
    /// A window of this length, without samples.
    #[must_use]
    pub fn new(window_ns: u64) -> Self {
        Self { window_ns, best: None, last: None }
    }

    /// Forgets all samples.
    pub fn clear(&mut self) {
        (self.best, self.last) = (None, None);
    }

    /// The best value as of the last update; none before the first.
    #[must_use]
    pub fn get(&self) -> Option<V> {
        self.best.map(|best| best[0].value)
    }

    /// The best value at a time: none if no sample is younger than the window.
    #[must_use]
    pub fn at(&self, now_ns: u64) -> Option<V> {
        let is_inside = |sample: &&Sample<V>| now_ns.saturating_sub(sample.at_ns) <= self.window_ns;
        self.best.iter().flatten().chain(&self.last).find(is_inside).map(|sample| sample.value)
    }

    /// Adds a sample. `now_ns` never goes back.
    pub fn update(&mut self, now_ns: u64, value: V) {
        let new = Sample { at_ns: now_ns, value };
        self.last = Some(new);
        let Some(best) = &mut self.best else {
            self.best = Some([new; 3]);
            return;
        };
        let age = |sample: &Sample<V>| now_ns.saturating_sub(sample.at_ns);
        if value.is_better(best[0].value) || age(&best[2]) > self.window_ns {
            *best = [new; 3];
            return;
        }
        if value.is_better(best[1].value) {
            best[1] = new;
            best[2] = new;
        } else if value.is_better(best[2].value) {
            best[2] = new;
        }
        if age(&best[0]) > self.window_ns {
            *best = [best[1], best[2], new];
            if age(&best[0]) > self.window_ns {
                *best = [best[1], best[2], new];
            }
        } else if best[1].at_ns == best[0].at_ns && age(&best[0]) > self.window_ns / 4 {
            // A quarter of the window has passed without a better second one: one from this quarter will do.
            best[1] = new;
            best[2] = new;
        } else if best[2].at_ns == best[1].at_ns && age(&best[0]) > self.window_ns / 2 {
            best[2] = new;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The filter never reports less than the best of the last quarter, nor more than the best of the window.
        #[test]
        fn largest_is_between_that_of_a_quarter_and_of_the_window(
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
                prop_assert!(got >= value, "{got} of {all:?}");
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
