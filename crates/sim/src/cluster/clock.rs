// SPDX-License-Identifier: Apache-2.0
//! The clocks of one host.

use fide_detector::planted::{self, Planted};
use fide_shm::clock::Clocks;

/// No run takes longer: an hour.
const LONGEST_NS: u64 = 3_600_000_000_000;

fn signed(ns: u64) -> i64 {
    debug_assert!(ns <= LONGEST_NS, "a run of {ns} ns");
    ns.cast_signed()
}

/// The clocks of a host: CLOCK_MONOTONIC_RAW at a rate of its own, CLOCK_MONOTONIC, which is slewed besides, and CLOCK_BOOTTIME, which
/// is CLOCK_MONOTONIC but goes on while the host is suspended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    drift_ppm: i64,
    slew_ppm: i64,
    /// Since when the present rates hold, and what the clocks showed then.
    since_ns: u64,
    raw_ns: u64,
    mono_ns: u64,
    /// How long the host was suspended.
    asleep_ns: u64,
}

impl Clock {
    pub(super) fn new((drift_ppm, offset_ns): (i64, u64)) -> Self {
        Self { drift_ppm, slew_ppm: 0, since_ns: 0, raw_ns: offset_ns, mono_ns: offset_ns, asleep_ns: 0 }
    }

    fn run(self, now_ns: u64, ppm: i64) -> u64 {
        let run_ns = signed(now_ns.saturating_sub(self.since_ns));
        (run_ns + run_ns * ppm / 1_000_000).cast_unsigned()
    }

    /// All of them at a true time.
    pub(super) fn read(self, now_ns: u64) -> Clocks {
        let mono_ns = self.mono_ns + self.run(now_ns, self.drift_ppm + self.slew_ppm);
        let raw_ns = self.raw_ns + self.run(now_ns, self.drift_ppm);
        let asleep_ns = if planted::is(Planted::SleepsUnseen) { 0 } else { self.asleep_ns };
        let raw_ns = if planted::is(Planted::SlewedClock) { mono_ns } else { raw_ns };
        Clocks { mono_ns, boot_ns: mono_ns + asleep_ns, raw_ns, tsc: 0 }
    }

    /// What leases and timeouts are counted on, at a true time.
    pub(super) fn local_ns(self, now_ns: u64) -> u64 {
        self.read(now_ns).raw_ns
    }

    /// The first true time at which that shows `local_ns`, or a little later; never, if that is too far away.
    pub(super) fn true_ns(self, local_ns: u64) -> u64 {
        let slew_ppm = if planted::is(Planted::SlewedClock) { self.slew_ppm } else { 0 };
        let run_ns = local_ns.saturating_sub(self.raw_ns);
        if run_ns > LONGEST_NS {
            return u64::MAX;
        }
        self.since_ns + (signed(run_ns) * 1_000_000 / (1_000_000 + self.drift_ppm + slew_ppm) + 1).cast_unsigned()
    }

    fn stop(&mut self, now_ns: u64) {
        let Clocks { mono_ns, raw_ns, .. } = self.read(now_ns);
        (self.mono_ns, self.raw_ns, self.since_ns) = (mono_ns, raw_ns, now_ns);
    }

    /// From now on CLOCK_MONOTONIC runs faster by so much.
    pub(super) fn slew(&mut self, now_ns: u64, ppm: i64) {
        if !self.stands(now_ns) {
            self.stop(now_ns);
        }
        self.slew_ppm = ppm;
    }

    /// It stands still at a true time.
    pub(super) fn stands(self, now_ns: u64) -> bool {
        now_ns < self.since_ns
    }

    /// The host is suspended from now on for so long.
    pub(super) fn suspend(&mut self, now_ns: u64, for_ns: u64) {
        self.stop(now_ns);
        self.since_ns = now_ns + for_ns;
        self.asleep_ns += for_ns;
    }

    /// The host starts anew: what stood still goes on.
    pub(super) fn begin(&mut self, now_ns: u64) {
        if self.stands(now_ns) {
            self.asleep_ns -= self.since_ns - now_ns;
            self.since_ns = now_ns;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slewing_moves_the_monotonic_clock_and_not_the_raw_one() {
        let mut clock = Clock::new((100, 7));
        assert_eq!(clock.local_ns(1_000_000), 1_000_107);
        clock.slew(1_000_000, 80_000);
        let now = clock.read(2_000_000);
        assert_eq!((now.raw_ns, now.mono_ns, now.asleep_ns()), (2_000_207, 2_080_207, 0));
        assert!(clock.true_ns(2_000_207).abs_diff(2_000_000) < 3);
        clock.slew(2_000_000, 0);
        assert_eq!(clock.read(3_000_000).mono_ns, 3_080_307);
    }

    #[test]
    fn a_host_that_starts_anew_is_not_suspended() {
        let mut clock = Clock::new((0, 0));
        clock.suspend(1_000, 500);
        clock.begin(1_200);
        assert_eq!((clock.read(1_300).raw_ns, clock.read(1_300).asleep_ns()), (1_100, 200));
    }

    #[test]
    fn suspended_hosts_miss_time_on_all_clocks_but_one() {
        let mut clock = Clock::new((0, 0));
        clock.suspend(1_000, 500);
        assert!(clock.stands(1_200) && !clock.stands(1_500));
        let now = clock.read(1_700);
        assert_eq!((now.raw_ns, now.mono_ns, now.boot_ns), (1_200, 1_200, 1_700));
        assert_eq!(clock.true_ns(1_200), 1_701);
    }
}
