// SPDX-License-Identifier: Apache-2.0
//! From measurements to the bound a timeout stands on.
//!
//! FiDe §3.3: `TO = HB + lambda_min + 2 delta_max`. Clocks of two hosts are not comparable to a
//! microsecond, but the *variation* of the delay is: heartbeat n was due at `n * HB` of its sender,
//! so `rx(n) - n * HB` is the delay plus a constant, and its spread is the jitter of sender,
//! network and receiver together.
//!
//! The number says when a heartbeat was due but for a constant, which changes: a sender that is late by
//! periods leaves out slots of its schedule and no number, and one that decides a view sends some between two
//! slots. So a delay is only compared with others of late. Of one that comes early that is the same at once;
//! slots left out look like lateness until those before are forgotten, which is never more than the sender
//! was late.

use core::fmt;

/// What calibration cannot see in a few seconds, the floor accounts for: the longest gap measured
/// over days on hosts of that kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostKind {
    /// Core kept free at boot and real-time priority.
    Isolated,
    /// Real-time priority on a core shared with others, or any virtual machine.
    Shared,
    /// Ordinary thread.
    Ordinary,
}

/// What the loop has, for people.
impl fmt::Display for HostKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Isolated => "on a core of its own, with real-time priority",
            Self::Shared => "with real-time priority on a core that it shares",
            Self::Ordinary => "as an ordinary thread, without real-time priority",
        })
    }
}

impl HostKind {
    /// Smallest jitter to count with, in nanoseconds.
    #[must_use]
    pub fn jitter_floor_ns(self) -> u64 {
        match self {
            Self::Isolated => 20_000,
            // A softirq that drains a flood holds a core for milliseconds (netdev_budget_usecs).
            Self::Shared => 3_500_000,
            Self::Ordinary => 20_000_000,
        }
    }
}

/// A delay beyond so many times the jitter counted with is a stall of the sender or of the network,
/// to be answered by a fence or a verdict, not by a longer timeout.
pub const STALL_FACTOR: u64 = 4;

/// Delay variation of one peer's heartbeats on one plane as seen here.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spread {
    base_ns: i128,
    low_before_ns: i64,
    high: Recent,
    /// The newest heartbeat: its number, and when it came.
    last: (u64, u64),
    samples: u64,
    window_low_ns: i64,
    window_samples: u32,
}

/// Samples after which the lowest delay is taken anew (the one before still counts as long again), so that
/// neither clock drift between two hosts (at 200 ppm, 0.2 us per heartbeat of 1 ms) nor slots that a sender
/// has left out count as jitter for long.
const WINDOW: u32 = 100;

impl Spread {
    /// Takes one heartbeat: number `seq`, sent every `heartbeat_ns`, received at `rx_ns`. Returns
    /// the delay above the lowest of late, in nanoseconds; one beyond `stall_ns` is no jitter and
    /// does not count.
    pub fn record(&mut self, seq: u64, heartbeat_ns: u64, rx_ns: u64, stall_ns: u64) -> u64 {
        let offset = i128::from(rx_ns) - i128::from(seq) * i128::from(heartbeat_ns);
        if self.samples == 0 {
            self.base_ns = offset;
            (self.low_before_ns, self.window_low_ns) = (i64::MAX, i64::MAX);
        }
        let delay = i64::try_from(offset - self.base_ns).unwrap_or(i64::MAX);
        self.window_low_ns = self.window_low_ns.min(delay);
        let low_ns = self.low_before_ns.min(self.window_low_ns);
        self.window_samples += 1;
        if self.window_samples == WINDOW {
            self.low_before_ns = std::mem::replace(&mut self.window_low_ns, i64::MAX);
            self.window_samples = 0;
        }
        self.samples += 1;
        let above = delay.saturating_sub(low_ns);
        let above = above.max(self.beyond_period(seq, heartbeat_ns, rx_ns));
        let late_ns = above.unsigned_abs();
        self.high.record(rx_ns, if late_ns <= stall_ns { late_ns } else { 0 });
        late_ns
    }

    /// By how much longer than its periods the time since the newest heartbeat was. Where some come between
    /// two slots each makes the next of the schedule look early, and this is what is left to see lateness by:
    /// what a timeout has to allow for, at least.
    fn beyond_period(&mut self, seq: u64, heartbeat_ns: u64, rx_ns: u64) -> i64 {
        let (last_seq, last_ns) = self.last;
        if seq <= last_seq {
            return 0;
        }
        self.last = (seq, rx_ns);
        if last_seq == 0 {
            return 0;
        }
        let periods_ns = (seq - last_seq).saturating_mul(heartbeat_ns);
        i64::try_from(rx_ns.saturating_sub(last_ns).saturating_sub(periods_ns)).unwrap_or(i64::MAX)
    }

    /// The sender is another incarnation, with numbers of its own. How late its host was counts on.
    pub fn begin_anew(&mut self) {
        *self = Self { high: self.high, ..Self::default() };
    }

    /// As if a delay of so much had been seen now.
    pub fn recall(&mut self, now_ns: u64, jitter_ns: u64) {
        self.high = Recent::begin(now_ns, jitter_ns);
    }

    /// Largest delay above the lowest of late, in nanoseconds.
    #[must_use]
    pub fn jitter_max_ns(&self) -> u64 {
        self.high.most_ns()
    }

    /// Heartbeats recorded.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples
    }
}

/// For how long the greatest of late counts, at least; at most twice as long.
pub const RECENT_NS: u64 = 10_000_000_000;

/// The greatest of late: of what was recorded within [`RECENT_NS`], and of some before.
#[derive(Clone, Copy, Debug, Default)]
pub struct Recent {
    most_ns: u64,
    before_ns: u64,
    since_ns: u64,
}

impl Recent {
    /// As if `ns` had been recorded now.
    #[must_use]
    pub fn begin(now_ns: u64, ns: u64) -> Self {
        Self { most_ns: ns, before_ns: 0, since_ns: now_ns }
    }

    /// Takes one, and forgets what has become old. Whether the greatest is another one now.
    pub fn record(&mut self, now_ns: u64, ns: u64) -> bool {
        let known_ns = self.most_ns();
        if now_ns.saturating_sub(self.since_ns) >= RECENT_NS {
            self.before_ns = std::mem::take(&mut self.most_ns);
            self.since_ns = now_ns;
        }
        self.most_ns = self.most_ns.max(ns);
        self.most_ns() != known_ns
    }

    /// The greatest of late.
    #[must_use]
    pub fn most_ns(&self) -> u64 {
        self.most_ns.max(self.before_ns)
    }
}

/// The jitter to count with on a host of this kind that showed `observed_max_ns`: half as much again,
/// since minutes of measurement stand for months of service.
#[must_use]
pub fn bound_ns(kind: HostKind, observed_max_ns: u64) -> u64 {
    (observed_max_ns + observed_max_ns / 2).max(kind.jitter_floor_ns())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sender_of_another_period_looks_later_with_every_heartbeat() {
        // A tenth longer than here, as if its configuration said so: why all hosts need the same
        // (`docs/operate/configuration.md`).
        let mut spread = Spread::default();
        let late = |spread: &mut Spread, seq| spread.record(seq, 1_000_000, 77_000_000_000 + seq * 1_100_000, u64::MAX);
        for seq in 0..100 {
            assert_eq!(late(&mut spread, seq), seq * 100_000);
        }
        assert!(spread.jitter_max_ns() > 9 * 1_000_000, "though none was late");
    }

    #[test]
    fn a_steady_sender_has_no_jitter() {
        let mut spread = Spread::default();
        for seq in 0..5000 {
            spread.record(seq, 1_000_000, 77_000_000_000 + seq * 1_000_000, u64::MAX);
        }
        assert_eq!(spread.jitter_max_ns(), 0);
    }

    #[test]
    fn a_skipped_heartbeat_is_not_late() {
        let mut spread = Spread::default();
        for seq in (0..100).filter(|seq| seq % 7 != 3) {
            spread.record(seq, 1_000_000, 5 + seq * 1_000_000, u64::MAX);
        }
        assert_eq!(spread.jitter_max_ns(), 0);
    }

    #[test]
    fn drift_is_not_jitter() {
        let mut spread = Spread::default();
        for seq in 0..1_000_000u64 {
            spread.record(seq, 1_000_000, 9_000 + seq * 1_000_200, u64::MAX);
        }
        assert!(spread.jitter_max_ns() <= 2 * u64::from(WINDOW) * 200, "{}", spread.jitter_max_ns());
    }

    #[test]
    fn a_stall_is_not_jitter() {
        let mut spread = Spread::default();
        for seq in 0..100 {
            let late = if seq == 50 { 51_000_000 } else { seq % 2 * 30_000 };
            spread.record(seq, 1_000_000, 5 + seq * 1_000_000 + late, 8_000_000);
        }
        assert_eq!(spread.jitter_max_ns(), 30_000);
    }

    #[test]
    fn heartbeats_between_two_slots_are_no_jitter() {
        let mut spread = Spread::default();
        let mut seq = 0;
        for slot in 0..2000u64 {
            let due_ns = 5 + slot * 1_000_000;
            // Of a ballot in every hundredth slot.
            for between in 0..=if slot % 100 == 7 { 4 } else { 0 } {
                seq += 1;
                spread.record(seq, 1_000_000, due_ns + between * 200_000, u64::MAX);
            }
            assert_eq!(spread.jitter_max_ns(), 0, "{slot}");
        }
    }

    #[test]
    fn slots_left_out_count_no_longer_than_the_lateness_that_they_are() {
        let mut spread = Spread::default();
        let mut shift_ns = 0;
        for seq in 0..5 * 500u64 {
            // Late by 1.4 periods: sent at once, and the slot after it is left out.
            let late_ns = if seq % 500 == 250 { 1_400_000 } else { 0 };
            spread.record(seq, 1_000_000, 5 + seq * 1_000_000 + shift_ns + late_ns, u64::MAX);
            shift_ns += late_ns / 1_000_000 * 1_000_000;
            assert!(spread.jitter_max_ns() <= 1_400_000, "{seq}: {}", spread.jitter_max_ns());
        }
    }

    #[test]
    fn the_greatest_of_late_is_forgotten_after_one_to_two_windows() {
        let mut recent = Recent::begin(0, 5_000);
        assert!(!recent.record(RECENT_NS / 2, 4_000) && !recent.record(RECENT_NS, 10), "of the window before");
        assert_eq!(recent.most_ns(), 5_000);
        assert!(recent.record(RECENT_NS + 1, 7_000), "a greater one at once");
        assert!(!recent.record(2 * RECENT_NS, 20));
        assert!(recent.record(3 * RECENT_NS, 30));
        assert_eq!(recent.most_ns(), 30);
    }

    #[test]
    fn a_disturbance_is_forgotten_after_one_to_two_windows_whatever_comes_between() {
        for extras in [0, 4u64] {
            let (mut spread, mut seq) = (Spread::default(), 0);
            let mut seen = Vec::new();
            for slot in 0..3 * RECENT_NS / 1_000_000 {
                let due_ns = 5_000_000_000 + slot * 1_000_000;
                let late_ns = if slot == 50 { 3_000_000 } else { 0 };
                for between in 0..=extras {
                    seq += 1;
                    spread.record(seq, 1_000_000, due_ns + late_ns + between * 100_000, u64::MAX);
                }
                seen.push(spread.jitter_max_ns());
            }
            let held = seen.iter().filter(|ns| **ns > 2_000_000).count() as u64;
            assert!((RECENT_NS..=2 * RECENT_NS).contains(&(held * 1_000_000)), "{extras}: {held} ms");
            assert_eq!(seen.last(), Some(&0), "{extras}");
        }
    }

    #[test]
    fn lateness_is_seen_though_others_come_between() {
        let (mut spread, mut seq) = (Spread::default(), 0);
        for slot in 0..200u64 {
            let late_ns = if slot == 150 { 5_000_000 } else { 0 };
            for between in 0..5 {
                seq += 1;
                spread.record(seq, 1_000_000, 7 + slot * 1_000_000 + late_ns + between * 150_000, u64::MAX);
            }
        }
        // Of the period before, 0.6 ms had passed with the last one between.
        assert_eq!(spread.jitter_max_ns(), 5_000_000 - 600_000);
    }

    #[test]
    fn how_late_a_host_was_outlives_its_incarnation() {
        let mut spread = Spread::default();
        spread.recall(1_000_000_000, 4_000_000);
        spread.record(70, 1_000_000, 1_001_000_000, u64::MAX);
        spread.begin_anew();
        spread.record(1, 1_000_000, 1_500_000_000, u64::MAX);
        assert_eq!(spread.jitter_max_ns(), 4_000_000);
    }

    proptest! {
        #[test]
        fn jitter_is_never_more_than_the_spread_put_in(delays in prop::collection::vec(0u64..1_000_000, 2..500)) {
            let mut spread = Spread::default();
            for (seq, delay) in delays.iter().enumerate() {
                spread.record(seq as u64, 1_000_000, 1_000 + seq as u64 * 1_000_000 + delay, u64::MAX);
            }
            let span = delays.iter().max().unwrap() - delays.iter().min().unwrap();
            prop_assert!(spread.jitter_max_ns() <= span);
        }
    }
}
