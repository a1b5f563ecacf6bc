// SPDX-License-Identifier: Apache-2.0
//! Round trips, and the difference between the two ends' clocks, from four times as NTP takes them
//! (X-PACE §IV-A1).
//!
//! ```text
//!  sender    t1 ─────┐                  ┌────► t4
//!  receiver          └────► t2 ... t3 ──┘
//! ```
//!
//! The round trip is `(t4 - t1) - (t3 - t2)`. The receiver's clock is ahead by `((t2 - t1) + (t3 - t4)) / 2` if both
//! ways take equally long, and by at most half a round trip more or less if they do not. The sample with the
//! shortest round trip of the last seconds counts: it waited least in queues. A clock's rate differs from the
//! other's by its *drift*, so a sample's uncertainty grows with its age.
//!
//! That is for people. Whether a message may have expired is said by [`latest`], which stands steps of the clocks, too.

mod latest;

pub use latest::Told;

use latest::Latest;

use crate::windowed::{Smallest, Windowed};

/// How long the shortest round trip counts.
const SHORTEST_WINDOW_NS: u64 = 10_000_000_000;
/// How much faster one clock may run than the other, before it is measured: 100 us in a second, as crystals do.
const DRIFT_MAX_PPM: u64 = 100;
/// A sample's round trip, before any is known, and the longest that a set-up may say.
const INITIAL_US: u64 = 333_000;
const INITIAL_MAX_US: u64 = 10_000_000;
/// Shortest time over which a drift is measured.
const DRIFT_SPAN_US: u64 = 1_000_000;

/// Four times in microseconds: `t1` and `t4` by the clock of the end that measures, `t2` and `t3` by the other's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamps {
    pub t1_us: u64,
    pub t2_us: u64,
    pub t3_us: u64,
    pub t4_us: u64,
}

#[allow(clippy::cast_possible_wrap, reason = "a difference of two clocks, either way")]
fn ahead(of: u64, than: u64) -> i64 {
    of.wrapping_sub(than) as i64
}

impl Stamps {
    /// The time on the way, there and back.
    #[must_use]
    pub fn round_trip_us(&self) -> u64 {
        u64::try_from(ahead(self.t4_us, self.t1_us).saturating_sub(ahead(self.t3_us, self.t2_us))).unwrap_or(0)
    }

    /// By how much the other clock is ahead, if both ways take equally long.
    #[must_use]
    pub fn offset_us(&self) -> i64 {
        let (there, back) = (ahead(self.t2_us, self.t1_us), ahead(self.t3_us, self.t4_us));
        // The mean without an overflow.
        (there >> 1) + (back >> 1) + (there & back & 1)
    }
}

/// How two clocks differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offset {
    /// The other clock is ahead by so much.
    pub us: i64,
    /// And by at most so much more or less.
    pub uncertainty_us: u64,
}

/// The best sample of the offset.
#[derive(Debug, Clone, Copy)]
struct Sample {
    at_us: u64,
    offset_us: i64,
    round_trip_us: u64,
}

impl Sample {
    /// The most by which it may be wrong at a time, if the drift is taken for this one.
    fn uncertainty_us(&self, now_us: u64, drift_ppm: i64) -> u64 {
        let age_us = now_us.saturating_sub(self.at_us);
        self.round_trip_us / 2 + age_us.saturating_mul(DRIFT_MAX_PPM + drift_ppm.unsigned_abs()) / 1_000_000
    }
}

/// What one end knows of the path and of the other end's clock.
#[derive(Debug, Clone)]
pub struct RoundTrips {
    /// A round trip, before any is known.
    initial_us: u64,
    smoothed_us: u64,
    variation_us: u64,
    latest_us: u64,
    shortest: Windowed<Smallest>,
    best: Option<Sample>,
    /// A good sample of some time before, for the drift.
    earlier: Option<Sample>,
    drift_ppm: i64,
    latest: Latest,
    steps: u64,
    exchanges: u64,
}

impl Default for RoundTrips {
    fn default() -> Self {
        Self {
            initial_us: INITIAL_US,
            smoothed_us: 0,
            variation_us: 0,
            latest_us: 0,
            shortest: Windowed::new(SHORTEST_WINDOW_NS),
            best: None,
            earlier: None,
            drift_ppm: 0,
            latest: Latest::default(),
            steps: 0,
            exchanges: 0,
        }
    }
}

impl RoundTrips {
    /// `set_up_us`: the time that the set-up took, for a path that takes longer than most.
    #[must_use]
    pub fn new(set_up_us: u64) -> Self {
        Self { initial_us: set_up_us.clamp(INITIAL_US, INITIAL_MAX_US), ..Self::default() }
    }

    /// The newest packet of the other end has come, which left at `sent_us` by that end's clock.
    pub fn came(&mut self, now_us: u64, sent_us: u64) -> Told {
        let told = self.latest.came(now_us, sent_us, self.shortest_us());
        if told.stepped {
            self.stepped();
        }
        told
    }

    /// This end's clock has stepped. Exchanges that began before are not to be added.
    pub fn own_clock_stepped(&mut self, now_us: u64) {
        if self.is_known() {
            self.latest.forget(now_us);
            self.stepped();
        }
    }

    fn stepped(&mut self) {
        self.steps += 1;
        self.drift_ppm = 0;
        (self.best, self.earlier) = (None, None);
    }

    /// Takes one exchange. `now_ns`: this end's clock, as in `t4_us`.
    pub fn add(&mut self, now_ns: u64, stamps: &Stamps) -> Told {
        let (whole_us, there_us) = (ahead(stamps.t4_us, stamps.t1_us), ahead(stamps.t3_us, stamps.t2_us));
        if there_us < 0 || there_us > whole_us {
            self.latest.forget(stamps.t4_us);
            self.stepped();
            return Told { stepped: true, ..Told::default() };
        }
        let round_trip_us = stamps.round_trip_us();
        self.latest_us = round_trip_us;
        self.shortest.update(now_ns, Smallest(round_trip_us));
        if self.smoothed_us == 0 {
            (self.smoothed_us, self.variation_us) = (round_trip_us, round_trip_us / 2);
        } else {
            // RFC 6298.
            self.variation_us = (3 * self.variation_us + self.smoothed_us.abs_diff(round_trip_us)) / 4;
            self.smoothed_us = (7 * self.smoothed_us + round_trip_us) / 8;
        }
        let told = self.latest.exchanged(stamps, self.shortest_us());
        if told.stepped {
            self.stepped();
        }
        if told.counts {
            self.exchanges += 1;
            self.add_offset(Sample { at_us: stamps.t4_us, offset_us: stamps.offset_us(), round_trip_us });
        }
        told
    }

    /// The latest that the other end's clock may show: nothing is delivered that has expired by it. None before the first exchange,
    /// and from a step of a clock on until the next one is over that begins after it.
    #[must_use]
    pub fn latest_there_us(&self, now_us: u64) -> Option<u64> {
        self.latest.get(now_us, self.shortest_us())
    }

    fn add_offset(&mut self, new: Sample) {
        let Some(best) = self.best else {
            self.best = Some(new);
            return;
        };
        let uncertainty_us = |of: &Sample| of.uncertainty_us(new.at_us, 0);
        let (of_new, of_best) = (uncertainty_us(&new), uncertainty_us(&best));
        if new.offset_us.abs_diff(best.offset_us) > of_new + of_best {
            // Both cannot be right: a clock has stepped, or an end was suspended.
            self.stepped();
            self.best = Some(new);
            return;
        }
        if of_new > of_best {
            return;
        }
        self.best = Some(new);
        match self.earlier {
            Some(earlier) if new.at_us.saturating_sub(earlier.at_us) >= DRIFT_SPAN_US => {
                let moved = i128::from(new.offset_us) - i128::from(earlier.offset_us);
                let ppm = moved * 1_000_000 / i128::from(new.at_us - earlier.at_us);
                let max = i64::try_from(DRIFT_MAX_PPM).unwrap_or(i64::MAX);
                self.drift_ppm = i64::try_from(ppm).unwrap_or(max).clamp(-max, max);
                self.earlier = Some(new);
            }
            Some(_) => {}
            None => self.earlier = Some(new),
        }
    }

    /// By how much the other end's clock is ahead, and how sure that is. None before the first exchange.
    #[must_use]
    pub fn offset(&self, now_us: u64) -> Option<Offset> {
        let best = self.best?;
        let age_us = i64::try_from(now_us.saturating_sub(best.at_us)).unwrap_or(i64::MAX);
        let moved = i128::from(age_us) * i128::from(self.drift_ppm) / 1_000_000;
        let us = best.offset_us.saturating_add(i64::try_from(moved).unwrap_or(0));
        Some(Offset { us, uncertainty_us: best.uncertainty_us(now_us, self.drift_ppm) })
    }

    /// How much faster the other clock runs, in microseconds for each second.
    #[must_use]
    pub fn drift_ppm(&self) -> i64 {
        self.drift_ppm
    }

    /// Times at which a clock was seen to step, or this end did not run for a second.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Exchanges by which the clocks were compared.
    #[must_use]
    pub fn exchanges(&self) -> u64 {
        self.exchanges
    }

    #[must_use]
    pub fn is_known(&self) -> bool {
        self.smoothed_us > 0
    }

    /// The running mean; before the first a third of a second, or what the set-up took if that is more.
    #[must_use]
    pub fn smoothed_us(&self) -> u64 {
        if self.is_known() { self.smoothed_us } else { self.initial_us }
    }

    /// The mean distance from that.
    #[must_use]
    pub fn variation_us(&self) -> u64 {
        if self.is_known() { self.variation_us } else { self.initial_us / 2 }
    }

    #[must_use]
    pub fn latest_us(&self) -> u64 {
        self.latest_us
    }

    /// The shortest of the last seconds: what the path takes with empty queues.
    #[must_use]
    pub fn shortest_us(&self) -> u64 {
        self.shortest.get().map_or(self.initial_us, |smallest| smallest.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An exchange between clocks that differ by `offset_us`.
    fn exchange(t1_us: u64, offset_us: i64, there_us: u64, back_us: u64) -> Stamps {
        let other = |time_us: u64| time_us.wrapping_add_signed(offset_us);
        let t2 = t1_us + there_us;
        let t3 = t2 + 40;
        Stamps { t1_us, t2_us: other(t2), t3_us: other(t3), t4_us: t3 + back_us }
    }

    proptest! {
        /// Whatever the two ways take, the true offset is within the uncertainty.
        #[test]
        fn true_offset_is_within_the_uncertainty(
            offset_us in -1_000_000_000_000_i64..1_000_000_000_000,
            delays in prop::collection::vec((0_u64..50_000, 0_u64..50_000, 0_u64..100_000), 1..60),
        ) {
            let mut trips = RoundTrips::default();
            let mut now_us = 2_000_000_000_000;
            for (there, back, gap) in delays {
                let stamps = exchange(now_us, offset_us, there, back);
                prop_assert_eq!(stamps.round_trip_us(), there + back);
                now_us = stamps.t4_us;
                trips.add(now_us * 1000, &stamps);
                let offset = trips.offset(now_us).unwrap();
                prop_assert!(offset.us.abs_diff(offset_us) <= offset.uncertainty_us + 1, "{offset:?}");
                now_us += gap;
            }
            prop_assert_eq!(trips.steps(), 0);
        }
    }

    #[test]
    fn stepped_clock_is_seen_at_once() {
        let mut trips = RoundTrips::default();
        let mut now_us = 5_000_000;
        for at in 0..50 {
            let stamps = exchange(now_us, if at < 25 { 700 } else { -3_000_000 }, 5000, 5000);
            trips.add(stamps.t4_us * 1000, &stamps);
            let offset = trips.offset(stamps.t4_us).unwrap();
            assert_eq!(offset.us, if at < 25 { 700 } else { -3_000_000 });
            now_us += 20_000;
        }
        assert_eq!(trips.steps(), 1);
    }

    #[test]
    fn drift_is_measured() {
        let mut trips = RoundTrips::default();
        for second in 0..60_u64 {
            // The other clock gains 40 us each second.
            let offset_us = 1000 + 40 * i64::try_from(second).unwrap();
            let stamps = exchange(second * 1_000_000, offset_us, 5000, 5000);
            trips.add(stamps.t4_us * 1000, &stamps);
        }
        assert!((38..=42).contains(&trips.drift_ppm()), "{}", trips.drift_ppm());
        let later = trips.offset(62 * 1_000_000).unwrap();
        assert!(later.us.abs_diff(1000 + 40 * 62) < 30, "{later:?}");
    }

    /// The two ways of the first exchanges differ, which looks like a drift.
    #[test]
    fn drift_that_was_measured_wrong_is_within_the_uncertainty() {
        let mut trips = RoundTrips::default();
        let true_us = |now_us: u64| 1000 + i64::try_from(now_us / 10_000).unwrap();
        for (second, there_us, back_us) in [(1, 10_000, 0), (2, 10_000, 0), (3, 0, 10_000)] {
            let stamps = exchange(second * 1_000_000, true_us(second * 1_000_000), there_us, back_us);
            trips.add(stamps.t4_us * 1000, &stamps);
        }
        assert_eq!(trips.drift_ppm(), -100);
        for second in 4..300_u64 {
            let now_us = second * 1_000_000;
            let stamps = exchange(now_us, true_us(now_us), 80_000, 80_000);
            trips.add(stamps.t4_us * 1000, &stamps);
            let offset = trips.offset(stamps.t4_us).unwrap();
            assert!(offset.us.abs_diff(true_us(stamps.t4_us)) <= offset.uncertainty_us + 1, "{second} s: {offset:?}");
            assert!(
                trips.latest_there_us(stamps.t4_us) >= Some(stamps.t4_us.wrapping_add_signed(true_us(stamps.t4_us)))
            );
        }
    }

    #[test]
    fn queues_do_not_move_the_offset() {
        let mut trips = RoundTrips::default();
        let mut now_us = 5_000_000;
        for queue in [0, 40_000, 80_000, 20_000] {
            let stamps = exchange(now_us, 123, 5000 + queue, 5000);
            trips.add(stamps.t4_us * 1000, &stamps);
            assert_eq!(trips.offset(stamps.t4_us).unwrap().us, 123);
            now_us = stamps.t4_us;
        }
        assert_eq!(trips.shortest_us(), 10_000);
        assert_eq!(trips.latest_us(), 30_000);
    }
}
