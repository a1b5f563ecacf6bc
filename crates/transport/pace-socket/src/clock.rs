// SPDX-License-Identifier: Apache-2.0
//! When the kernel received a datagram, which it says by the host's time of day.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::now_ns;

/// The two clocks are read within this time, or they are not compared.
const MOMENT_NS: u64 = 5000;
/// The time of day was set if it differs by more than this from what it was.
const SET_NS: u64 = 100_000;

pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// By how much the host's time of day is ahead of [`now_ns`].
#[derive(Debug, Default)]
pub(crate) struct HostClock {
    /// As they were compared last.
    last_ns: u64,
}

impl HostClock {
    /// None: it was set since they were compared last, so that a time from before says nothing; or this thread did not run
    /// between two looks.
    pub(crate) fn ahead_ns(&mut self) -> Option<u64> {
        let before_ns = now_ns();
        let of_day = SystemTime::now();
        self.compare(before_ns, of_day.duration_since(UNIX_EPOCH).map_or(0, nanoseconds), now_ns())
    }

    fn compare(&mut self, before_ns: u64, of_day_ns: u64, after_ns: u64) -> Option<u64> {
        if after_ns.saturating_sub(before_ns) > MOMENT_NS {
            return None;
        }
        let ahead_ns = of_day_ns.checked_sub(after_ns)?;
        let last_ns = std::mem::replace(&mut self.last_ns, ahead_ns);
        (ahead_ns.abs_diff(last_ns) <= SET_NS).then_some(ahead_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_day_that_was_set_says_nothing_of_what_came_before() {
        let mut clock = HostClock::default();
        assert_eq!(clock.compare(1000, 500_001_000, 1000), None, "nothing is known yet");
        assert_eq!(clock.compare(2000, 500_002_100, 2100), Some(500_000_000));
        assert_eq!(clock.compare(3000, 900_003_000, 3000), None, "it was set");
        assert_eq!(clock.compare(4000, 900_004_000, 4000), Some(900_000_000));
        assert_eq!(clock.compare(5000, 900_005_000, 5000 + MOMENT_NS + 1), None, "the thread did not run");
        assert_eq!(clock.compare(6000, 900_006_000 + SET_NS, 6000), Some(900_000_000 + SET_NS), "it drifts");
        assert_eq!(clock.compare(7000, 10, 7000), None, "before the epoch");
    }

    #[test]
    fn clocks_of_this_host_are_compared() {
        let mut clock = HostClock::default();
        let found = std::iter::repeat_with(|| clock.ahead_ns()).take(10_000).flatten().count();
        assert!(found > 0);
    }
}
