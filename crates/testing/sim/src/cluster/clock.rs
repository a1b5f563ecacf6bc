// SPDX-License-Identifier: Apache-2.0
//! The clocks of one host.

use fide_sys::clock::Clocks;
use fide_types::planted::{self, Planted};

/// An hour: no run takes longer.
const LONGEST_NS: u64 = 3_600_000_000_000;

fn signed(ns: u64) -> i64 {
    debug_assert!(ns <= LONGEST_NS, "a run of {ns} ns");
    ns.cast_signed()
}

/// The clocks of a host: CLOCK_MONOTONIC_RAW at a rate of its own, CLOCK_MONOTONIC, which is slewed besides,
/// and CLOCK_BOOTTIME, which is CLOCK_MONOTONIC but goes on while the host is suspended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    drift_ppm: i64,
    slew_ppm: i64,
    /// When the present rates began, and what the clocks showed then.
    since_ns: u64,
    raw_ns: u64,
    mono_ns: u64,
    /// How long the host was suspended.
    asleep_ns: u64,
    /// How long the host was stopped with all clocks except the processor's counter.
    stopped_ns: u64,
    /// How long the host was stopped undetectably.
    unseen_ns: u64,
    stands: Stands,
}

/// Which clock continues while a host's clocks are stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stands {
    /// CLOCK_BOOTTIME: the host is suspended.
    Suspended,
    /// The processor's counter: a hypervisor has stopped the machine, and puts back its kernel's clock.
    Counted,
    /// No clock: a hypervisor has stopped the machine, and puts back everything that would show it.
    Unseen,
}

impl Clock {
    pub(super) fn new((drift_ppm, offset_ns): (i64, u64)) -> Self {
        Self {
            drift_ppm,
            slew_ppm: 0,
            since_ns: 0,
            raw_ns: offset_ns,
            mono_ns: offset_ns,
            asleep_ns: 0,
            stopped_ns: 0,
            unseen_ns: 0,
            stands: Stands::Suspended,
        }
    }

    fn run(self, now_ns: u64, ppm: i64) -> u64 {
        let run_ns = signed(now_ns.saturating_sub(self.since_ns));
        (run_ns + run_ns * ppm / 1_000_000).cast_unsigned()
    }

    /// Reads all clocks at a true time.
    pub(super) fn read(self, now_ns: u64) -> Clocks {
        let run_ns = self.run(now_ns, self.drift_ppm);
        let raw_ns = self.raw_ns + run_ns;
        let is_slewed = self.slew_ppm != 0;
        let mono_ns = self.mono_ns + if is_slewed { self.run(now_ns, self.drift_ppm + self.slew_ppm) } else { run_ns };
        let asleep_ns = if planted::is(Planted::SleepsUnseen) { 0 } else { self.asleep_ns };
        let raw_ns = if planted::is(Planted::SlewedClock) { mono_ns } else { raw_ns };
        let stopped_ns = if planted::is(Planted::StopsUnseen) { 0 } else { self.stopped_ns };
        Clocks { mono_ns, boot_ns: mono_ns + asleep_ns, raw_ns, tsc: raw_ns + stopped_ns }
    }

    /// The clock that leases and timeouts are counted on, at a true time.
    pub(super) fn local_ns(self, now_ns: u64) -> u64 {
        self.read(now_ns).raw_ns
    }

    /// The first true time at which that clock shows `local_ns`, or a little later; `u64::MAX` if that is too
    /// far away.
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

    /// From now on CLOCK_MONOTONIC runs faster by `ppm`.
    pub(super) fn slew(&mut self, now_ns: u64, ppm: i64) {
        if !self.stands(now_ns) {
            self.stop(now_ns);
        }
        self.slew_ppm = ppm;
    }

    /// Whether the clocks are stopped at a true time.
    pub(super) fn stands(self, now_ns: u64) -> bool {
        now_ns < self.since_ns
    }

    /// Stops the host's clocks from now on, for so long.
    pub(super) fn stand(&mut self, now_ns: u64, for_ns: u64, stands: Stands) {
        self.stop(now_ns);
        self.since_ns = now_ns + for_ns;
        self.stands = stands;
        *self.meanwhile() += for_ns;
    }

    /// A snapshot from `then_ns` runs from now on, with its clocks as they were.
    pub(super) fn go_on(&mut self, then_ns: u64, now_ns: u64) {
        if self.stands(then_ns) {
            self.since_ns += now_ns - then_ns;
        } else {
            self.stop(then_ns);
            self.since_ns = now_ns;
        }
        self.unseen_ns += now_ns - then_ns;
    }

    /// The counter of the time during which the clocks are stopped.
    fn meanwhile(&mut self) -> &mut u64 {
        match self.stands {
            Stands::Suspended => &mut self.asleep_ns,
            Stands::Counted => &mut self.stopped_ns,
            Stands::Unseen => &mut self.unseen_ns,
        }
    }

    /// The host starts anew: stopped clocks continue.
    pub(super) fn begin(&mut self, now_ns: u64) {
        if self.stands(now_ns) {
            *self.meanwhile() -= self.since_ns - now_ns;
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
    fn restarted_host_is_not_suspended() {
        let mut clock = Clock::new((0, 0));
        clock.stand(1_000, 500, Stands::Suspended);
        clock.begin(1_200);
        assert_eq!((clock.read(1_300).raw_ns, clock.read(1_300).asleep_ns()), (1_100, 200));
    }

    #[test]
    fn stopped_hosts_miss_time_on_all_clocks_or_on_all_but_the_counter() {
        for (stands, counted_ns) in [(Stands::Counted, 500), (Stands::Unseen, 0)] {
            let mut clock = Clock::new((0, 0));
            clock.stand(1_000, 500, stands);
            let now = clock.read(1_700);
            assert_eq!((now.raw_ns, now.mono_ns, now.boot_ns, now.tsc), (1_200, 1_200, 1_200, 1_200 + counted_ns));
        }
    }

    #[test]
    fn suspended_hosts_miss_time_on_all_clocks_but_one() {
        let mut clock = Clock::new((0, 0));
        clock.stand(1_000, 500, Stands::Suspended);
        assert!(clock.stands(1_200) && !clock.stands(1_500));
        let now = clock.read(1_700);
        assert_eq!((now.raw_ns, now.mono_ns, now.boot_ns), (1_200, 1_200, 1_700));
        assert_eq!(clock.true_ns(1_200), 1_701);
    }
}
