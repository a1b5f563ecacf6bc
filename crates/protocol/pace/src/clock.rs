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
//! other's by its *drift*, so a sample is worth less with its age.
//!
//! How sure that is does not depend on which sample counts: each one bounds the offset from both sides, and the bounds grow apart by
//! the most that clocks may drift until the next one. A sample that contradicts them shows a step of a clock.
//!
//! That is for people. Whether a message may have expired is said by [`latest`], which stands steps of the clocks, too.

mod latest;

pub use latest::Told;

use latest::{Latest, RATE_MAX_PPM};

use crate::windowed::{Smallest, Windowed};

/// How long the shortest round trip counts.
const SHORTEST_WINDOW_NS: u64 = 10_000_000_000;
/// How much faster one clock runs than the other as a rule: 100 us in a second at most, as crystals do. For what is likely only: for what
/// is sure it is [`RATE_MAX_PPM`].
const USUAL_PPM: u64 = 100;
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
    /// By how much it is wrong at a time at most, as a rule.
    fn error_us(&self, now_us: u64) -> u64 {
        let age_us = now_us.saturating_sub(self.at_us);
        self.round_trip_us / 2 + age_us.saturating_mul(USUAL_PPM) / 1_000_000
    }
}

/// What the offset is at least and at most.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    at_us: u64,
    least_us: i64,
    most_us: i64,
}

impl Bounds {
    /// What left here at `t1` came there later, and what came here at `t4` left there earlier. Times are cut to microseconds.
    fn of(stamps: &Stamps) -> Self {
        let most_us = ahead(stamps.t2_us, stamps.t1_us).saturating_add(1);
        let least_us = ahead(stamps.t3_us, stamps.t4_us).saturating_sub(1);
        let most = Self { at_us: stamps.t1_us, least_us: i64::MIN, most_us }.at(stamps.t4_us);
        Self { least_us, ..most }
    }

    /// At a later time.
    fn at(&self, now_us: u64) -> Self {
        let age_us = now_us.saturating_sub(self.at_us);
        let drifts_us = i64::try_from(age_us.saturating_mul(RATE_MAX_PPM).div_ceil(1_000_000)).unwrap_or(i64::MAX);
        Self {
            at_us: now_us,
            least_us: self.least_us.saturating_sub(drifts_us),
            most_us: self.most_us.saturating_add(drifts_us),
        }
    }

    /// With newer ones. None: both cannot be right.
    fn with(&self, new: &Self) -> Option<Self> {
        let before = self.at(new.at_us);
        let (least_us, most_us) = (before.least_us.max(new.least_us), before.most_us.min(new.most_us));
        (least_us <= most_us).then_some(Self { at_us: new.at_us, least_us, most_us })
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
    bounds: Option<Bounds>,
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
            bounds: None,
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
        (self.best, self.bounds, self.earlier) = (None, None, None);
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
            self.add_bounds(&Bounds::of(stamps));
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

    fn add_bounds(&mut self, new: &Bounds) {
        let both = self.bounds.map_or(Some(*new), |bounds| bounds.with(new));
        if both.is_none() {
            // A clock has stepped, or an end was suspended.
            self.stepped();
        }
        self.bounds = Some(both.unwrap_or(*new));
    }

    fn add_offset(&mut self, new: Sample) {
        if self.best.is_some_and(|best| new.error_us(new.at_us) > best.error_us(new.at_us)) {
            return;
        }
        self.best = Some(new);
        let earlier = *self.earlier.get_or_insert(new);
        if new.at_us.saturating_sub(earlier.at_us) >= DRIFT_SPAN_US {
            self.drift_ppm = self.drift_between(&earlier, &new).unwrap_or(self.drift_ppm);
            self.earlier = Some(new);
        }
    }

    /// A drift beyond what is usual is believed as far as no queue explains it. None: no clock drifts so.
    fn drift_between(&self, earlier: &Sample, new: &Sample) -> Option<i64> {
        let span_us = i128::from(new.at_us - earlier.at_us);
        let ppm = |us: i128| us * 1_000_000 / span_us;
        let measured = ppm(i128::from(new.offset_us) - i128::from(earlier.offset_us));
        let waited_us = [earlier, new].map(|sample| sample.round_trip_us.saturating_sub(self.shortest_us()));
        let by_queues = ppm(i128::from(waited_us[0] / 2) + i128::from(waited_us[1] / 2)) + 1;
        let (usual, most) = (i128::from(USUAL_PPM), i128::from(RATE_MAX_PPM));
        let drift = measured.clamp(-usual, usual).clamp(measured - by_queues, measured + by_queues);
        i64::try_from(drift).ok().filter(|_| drift.abs() <= most)
    }

    /// By how much the other end's clock is ahead, and how sure that is. None before the first exchange.
    #[must_use]
    pub fn offset(&self, now_us: u64) -> Option<Offset> {
        let (best, bounds) = (self.best?, self.bounds?.at(now_us));
        let age_us = i64::try_from(now_us.saturating_sub(best.at_us)).unwrap_or(i64::MAX);
        let moved = i128::from(age_us) * i128::from(self.drift_ppm) / 1_000_000;
        let likely_us = best.offset_us.saturating_add(i64::try_from(moved).unwrap_or(0));
        let us = likely_us.clamp(bounds.least_us, bounds.most_us);
        Some(Offset { us, uncertainty_us: us.abs_diff(bounds.least_us).max(us.abs_diff(bounds.most_us)) })
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
        for (way_us, measured) in [(500, -400), (10_000, 0)] {
            let mut trips = RoundTrips::default();
            let true_us = |now_us: u64| 1000 + i64::try_from(now_us / 10_000).unwrap();
            for (second, there_us, back_us) in [(1, way_us, 0), (2, 0, way_us)] {
                let stamps = exchange(second * 1_000_000, true_us(second * 1_000_000), there_us, back_us);
                trips.add(stamps.t4_us * 1000, &stamps);
            }
            // A clock does not drift by 10 ms in a second.
            assert!(trips.drift_ppm().abs_diff(measured) < 10, "{}", trips.drift_ppm());
            for second in 3..300_u64 {
                let now_us = second * 1_000_000;
                let stamps = exchange(now_us, true_us(now_us), 80_000, 80_000);
                trips.add(stamps.t4_us * 1000, &stamps);
                let offset = trips.offset(stamps.t4_us).unwrap();
                let there_us = true_us(stamps.t4_us);
                assert!(offset.us.abs_diff(there_us) <= offset.uncertainty_us, "{second} s: {offset:?}");
                assert!(trips.latest_there_us(stamps.t4_us) >= Some(stamps.t4_us.wrapping_add_signed(there_us)));
            }
        }
    }

    /// At each drift that clocks may have, with a queue of 20 ms one way from 5 s on: what is said to be sure is, no step is seen, and the
    /// estimate is as good as the drift is usual.
    #[test]
    fn drift_of_any_clock_is_within_the_uncertainty() {
        for (ppm, queue_us) in
            [0, 40, -100, 200, 500, -500, 1000, -1000].into_iter().flat_map(|ppm| [(ppm, 0), (ppm, 20_000)])
        {
            let mut trips = RoundTrips::default();
            let drifts = |us: u64| 7_000_000 + i64::try_from(us).unwrap() * ppm / 1_000_000;
            let other = |us: u64| us.wrapping_add_signed(drifts(us));
            let mut worst_us = 0;
            for at in 0..1200 {
                let t1_us = 1_000_000_000 + at * 100_000;
                let t2_us = t1_us + 5000 + if at < 50 { 0 } else { queue_us };
                let (t3_us, t4_us) = (t2_us + 40, t2_us + 5040);
                trips.add(t4_us * 1000, &Stamps { t1_us, t2_us: other(t2_us), t3_us: other(t3_us), t4_us });
                for now_us in [t4_us, t4_us + 90_000] {
                    let offset = trips.offset(now_us).unwrap();
                    let error_us = offset.us.abs_diff(drifts(now_us));
                    assert!(error_us <= offset.uncertainty_us, "{ppm} ppm, {at}: {offset:?}, wrong by {error_us} us");
                    assert!(queue_us > 0 || offset.uncertainty_us < 5500, "{ppm} ppm, {at}: {offset:?}");
                    if at > 12 {
                        worst_us = worst_us.max(error_us);
                    }
                }
            }
            println!("{ppm} ppm, {queue_us} us: wrong by {worst_us} us at most, drift {} ppm", trips.drift_ppm());
            assert_eq!(trips.steps(), 0, "{ppm} ppm");
            if queue_us == 0 {
                assert!(worst_us < 20 && trips.drift_ppm().abs_diff(ppm) < 10, "{ppm} ppm: {worst_us} us");
            }
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
