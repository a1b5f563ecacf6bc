// SPDX-License-Identifier: Apache-2.0
//! Whether something happens periodically, and when it happens next (X-PACE §IV-C2): an application's sends, or messages
//! that come.
//!
//! The *period* is the mean of the last intervals that are near their median, if most of them are: one event that is late, or
//! missing, changes nothing. The *phase* follows the events slowly, so that jitter does not move the prediction, and is kept modulo the
//! period, so that several events at once, or a gap, do not move it either.

/// Intervals that are remembered.
const INTERVALS: usize = 16;
/// Intervals before a period is believed.
const INTERVALS_LEAST: usize = 4;
/// An interval is near the period, and an event near its time, within this share of the period: one part of so many.
const NEAR: u64 = 4;
/// The share of the intervals that are near, of a rhythm.
const MOST: [u64; 2] = [3, 4];
/// The share of an event's distance by which the phase follows it: one part of so many.
const FOLLOWS: i64 = 4;
/// Events in a row that are not near their time: the phase is another one.
const STRAYS_MAX: u32 = 4;
/// Periods without an event: it has stopped.
const MISSING_MAX: u64 = 8;
/// Longest period.
const PERIOD_MAX_NS: u64 = 60_000_000_000;

/// Events, and what they foretell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rhythm {
    intervals: [u64; INTERVALS],
    /// The same, those that are known, in ascending order.
    sorted: [u64; INTERVALS],
    /// Intervals so far.
    count: usize,
    last_ns: Option<u64>,
    period_ns: Option<u64>,
    /// When the last event, or one before it, would have been without jitter.
    phase_ns: u64,
    strays: u32,
}

impl Rhythm {
    /// Something has happened. What happens within the same instant counts once.
    pub fn note(&mut self, now_ns: u64) {
        let Some(last_ns) = self.last_ns.replace(now_ns) else { return };
        let interval_ns = now_ns.saturating_sub(last_ns);
        if interval_ns == 0 {
            return;
        }
        if interval_ns > PERIOD_MAX_NS {
            *self = Self { last_ns: Some(now_ns), ..Self::default() };
            return;
        }
        self.remember(interval_ns);
        let was_known = self.period_ns.is_some();
        self.period_ns = self.find_period();
        if let Some(period_ns) = self.period_ns {
            if was_known { self.follow(now_ns, period_ns) } else { self.set_phase(now_ns) }
        }
    }

    fn remember(&mut self, interval_ns: u64) {
        let known = self.count.min(INTERVALS);
        let former_ns = std::mem::replace(&mut self.intervals[self.count % INTERVALS], interval_ns);
        let after = self.sorted[..known].partition_point(|sorted_ns| *sorted_ns < interval_ns);
        // The room of the one that is forgotten, or of one that was not known yet, moves to where the new one belongs.
        let room =
            if known < INTERVALS { known } else { self.sorted.partition_point(|sorted_ns| *sorted_ns < former_ns) };
        if room < after {
            self.sorted[room..after].rotate_left(1);
            self.sorted[after - 1] = interval_ns;
        } else {
            self.sorted[after..=room].rotate_right(1);
            self.sorted[after] = interval_ns;
        }
        self.count += 1;
    }

    fn find_period(&self) -> Option<u64> {
        let known = self.count.min(INTERVALS);
        if known < INTERVALS_LEAST {
            return None;
        }
        let sorted = &self.sorted[..known];
        let median_ns = sorted[known / 2];
        let near = sorted.iter().filter(|interval_ns| interval_ns.abs_diff(median_ns) <= median_ns / NEAR);
        let (near, sum_ns) = near.fold((0_u64, 0), |(count, sum_ns), interval_ns| (count + 1, sum_ns + interval_ns));
        (near * MOST[1] >= known as u64 * MOST[0]).then(|| sum_ns / near)
    }

    fn set_phase(&mut self, at_ns: u64) {
        (self.phase_ns, self.strays) = (at_ns, 0);
    }

    fn follow(&mut self, now_ns: u64, period_ns: u64) {
        let since_ns = now_ns.saturating_sub(self.phase_ns);
        let due_ns = self.phase_ns + (since_ns + period_ns / 2) / period_ns * period_ns;
        if now_ns.abs_diff(due_ns) > period_ns / NEAR {
            self.strays += 1;
            if self.strays > STRAYS_MAX {
                self.set_phase(now_ns);
            } else {
                self.phase_ns = due_ns;
            }
            return;
        }
        let off_ns = i64::try_from(now_ns).unwrap_or(0) - i64::try_from(due_ns).unwrap_or(0);
        self.set_phase(due_ns.saturating_add_signed(off_ns / FOLLOWS));
    }

    /// Nanoseconds from one event to the next. None: they are not periodic, or too few are known.
    #[must_use]
    pub fn period_ns(&self) -> Option<u64> {
        self.period_ns
    }

    /// When the next event is to be expected. One that is late is still expected at its time, which has passed then, for
    /// a quarter of a period. None: the events are not periodic, or have stopped.
    #[must_use]
    pub fn next_ns(&self, now_ns: u64) -> Option<u64> {
        let (period_ns, last_ns) = (self.period_ns?, self.last_ns?);
        let missing = now_ns.saturating_sub(last_ns) / period_ns;
        if missing > MISSING_MAX {
            return None;
        }
        // The phase is at most half a period from the last event, on either side.
        let is_after = |at_ns: u64| at_ns > last_ns + period_ns / 2 && at_ns + period_ns / NEAR >= now_ns;
        let from_ns = self.phase_ns;
        (0..=MISSING_MAX + 2).map(|periods| from_ns + periods * period_ns).find(|at_ns| is_after(*at_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    fn of(times: impl IntoIterator<Item = u64>) -> Rhythm {
        let mut rhythm = Rhythm::default();
        times.into_iter().for_each(|at_ns| rhythm.note(at_ns));
        rhythm
    }

    proptest! {
        #[test]
        fn intervals_are_kept_in_order(intervals in prop::collection::vec(1_u64..20, 1..80)) {
            let mut rhythm = Rhythm::default();
            for (at, interval_ns) in intervals.iter().enumerate() {
                rhythm.remember(*interval_ns);
                let mut last = intervals[(at + 1).saturating_sub(INTERVALS)..=at].to_vec();
                last.sort_unstable();
                prop_assert_eq!(&rhythm.sorted[..last.len()], &last[..]);
            }
        }

        /// With jitter of a tenth of the period, and events that are missing now and then, the next one is foretold to a
        /// quarter of a period.
        #[test]
        fn next_event_is_foretold_in_spite_of_jitter(
            period_ns in 50_000_u64..1_000_000_000,
            begin_ns in 0_u64..1_000_000_000_000,
            jitter in prop::collection::vec(0_u64..100, 40),
            missing in prop::collection::hash_set(0_usize..40, 0..4),
        ) {
            let time = |at: usize| begin_ns + period_ns * at as u64;
            let late = |at: usize| time(at) + period_ns * jitter[at] / 1000;
            let rhythm = of((0..40).filter(|at| !missing.contains(at)).map(late));
            let found_ns = rhythm.period_ns().expect("a period");
            prop_assert!(found_ns.abs_diff(period_ns) <= period_ns / 10, "{found_ns} for {period_ns}");
            let now_ns = time(39) + period_ns / 2;
            let next_ns = rhythm.next_ns(now_ns).expect("known");
            prop_assert!(next_ns.abs_diff(time(40)) <= period_ns / 4, "{next_ns} for {}", time(40));
        }

        /// Whatever happens, what is foretold is not long past, nor far.
        #[test]
        fn any_events_are_survived(
            intervals in prop::collection::vec(0_u64..100_000_000_000, 0..60),
            later_ns in 0_u64..1_000_000_000_000,
        ) {
            let mut now_ns = 0;
            let mut rhythm = Rhythm::default();
            for interval_ns in intervals {
                now_ns += interval_ns;
                rhythm.note(now_ns);
            }
            now_ns += later_ns;
            if let Some(next_ns) = rhythm.next_ns(now_ns) {
                let period_ns = rhythm.period_ns().expect("known");
                prop_assert!(next_ns + period_ns / NEAR >= now_ns && next_ns <= now_ns + 2 * period_ns);
            }
        }
    }

    #[test]
    fn irregular_events_have_no_period() {
        let intervals = [1, 7, 2, 9, 3, 12, 1, 30, 4, 8, 2, 16];
        let times = intervals.iter().scan(0, |at_ns, interval| {
            *at_ns += interval * MS;
            Some(*at_ns)
        });
        let rhythm = of(times);
        assert_eq!((rhythm.period_ns(), rhythm.next_ns(100 * MS)), (None, None));
        assert_eq!(of([0, 10 * MS, 20 * MS]).period_ns(), None, "too few");
    }

    #[test]
    fn late_event_keeps_the_phase_of_the_others() {
        let mut rhythm = of((0..20).map(|at| at * 10 * MS));
        // Number 20 is sent again, and comes with number 21.
        rhythm.note(213 * MS);
        rhythm.note(213 * MS);
        rhythm.note(220 * MS);
        assert_eq!(rhythm.next_ns(221 * MS), Some(230 * MS));
        assert_eq!(rhythm.next_ns(231 * MS), Some(230 * MS), "it is late");
        assert_eq!(rhythm.next_ns(234 * MS), Some(240 * MS), "it does not come any more");
    }

    #[test]
    fn another_period_takes_over() {
        let fast = (0..40).map(|at| at * 10 * MS);
        let slow = (0..40).map(|at| 400 * MS + at * 25 * MS);
        let rhythm = of(fast.chain(slow));
        assert_eq!(rhythm.period_ns(), Some(25 * MS));
        assert_eq!(rhythm.next_ns(1376 * MS), Some(1400 * MS));
    }

    #[test]
    fn events_that_have_stopped_foretell_nothing() {
        let rhythm = of((0..20).map(|at| at * 10 * MS));
        assert!(rhythm.next_ns(250 * MS).is_some());
        assert_eq!(rhythm.next_ns(300 * MS), None);
        assert_eq!(rhythm.period_ns(), Some(10 * MS));
    }
}
