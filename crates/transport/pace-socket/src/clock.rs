// SPDX-License-Identifier: Apache-2.0
//! When the kernel received a datagram, which it says by the host's time of day.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::now_ns;

/// The two clocks are read within this time, or they are not compared.
const MOMENT_NS: u64 = 5000;
/// The time of day was set if it differs by more than this from what it was.
const SET_NS: u64 = 20_000;

pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// By how much the host's time of day is ahead of [`now_ns`].
#[derive(Debug, Default)]
pub(crate) struct HostClock {
    /// As they were compared last.
    last_ns: u64,
    /// The time of day was set before this time: what it said earlier is not known.
    since_ns: u64,
}

impl HostClock {
    /// Compares the clocks. Times of day of before are known from then on, unless this thread did not run between two looks.
    pub(crate) fn compare(&mut self) -> Compared {
        let before_ns = now_ns();
        let of_day = SystemTime::now();
        self.compared(before_ns, of_day.duration_since(UNIX_EPOCH).map_or(0, nanoseconds), now_ns())
    }

    fn compared(&mut self, before_ns: u64, of_day_ns: u64, after_ns: u64) -> Compared {
        let ahead_ns = of_day_ns.checked_sub(after_ns).filter(|_| after_ns.saturating_sub(before_ns) <= MOMENT_NS);
        if let Some(ahead_ns) = ahead_ns {
            let last_ns = std::mem::replace(&mut self.last_ns, ahead_ns);
            if ahead_ns.abs_diff(last_ns) > SET_NS {
                self.since_ns = after_ns;
            }
        }
        Compared { ahead_ns, since_ns: self.since_ns }
    }
}

/// What is known of the time of day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Compared {
    ahead_ns: Option<u64>,
    since_ns: u64,
}

impl Compared {
    /// A time of day by [`now_ns`]; none if it is of before the time of day was set.
    pub(crate) fn of_day_ns(self, of_day: Duration) -> Option<u64> {
        nanoseconds(of_day).checked_sub(self.ahead_ns?).filter(|ns| *ns >= self.since_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_day_that_was_set_says_nothing_of_what_came_before() {
        const AHEAD_NS: u64 = 500_000_000;
        let mut clock = HostClock::default();
        let of_day = |ns: u64| Duration::from_nanos(ns);
        let first = clock.compared(1000, AHEAD_NS + 1000, 1000);
        assert_eq!(first.of_day_ns(of_day(AHEAD_NS + 900)), None, "nothing was known then");
        assert_eq!(clock.compared(2000, AHEAD_NS + 2100, 2100).of_day_ns(of_day(AHEAD_NS + 1500)), Some(1500));
        // It is set forward by 50 ms. What was stamped before that is read in several turns.
        let ahead_ns = AHEAD_NS + 50_000_000;
        for now_ns in [100_000_000, 100_100_000, 100_200_000] {
            let compared = clock.compared(now_ns, ahead_ns + now_ns, now_ns);
            assert_eq!(compared.of_day_ns(of_day(AHEAD_NS + 99_000_000)), None, "by the former time of day");
        }
        let compared = clock.compared(100_300_000, ahead_ns + 100_300_000, 100_300_000);
        assert_eq!(compared.of_day_ns(of_day(ahead_ns + 100_150_000)), Some(100_150_000));
        let compared = clock.compared(100_400_000, ahead_ns, 100_400_000 + MOMENT_NS + 1);
        assert_eq!(compared.of_day_ns(of_day(ahead_ns + 100_350_000)), None, "the thread did not run");
        let compared = clock.compared(100_500_000, ahead_ns + 100_500_000 + SET_NS, 100_500_000);
        assert_eq!(compared.of_day_ns(of_day(ahead_ns + 100_450_000)), Some(100_450_000 - SET_NS), "it drifts");
    }

    #[test]
    fn clocks_of_this_host_are_compared() {
        let mut clock = HostClock::default();
        let found =
            std::iter::repeat_with(|| clock.compare()).take(10_000).filter(|found| found.ahead_ns.is_some()).count();
        assert!(found > 0);
    }
}
