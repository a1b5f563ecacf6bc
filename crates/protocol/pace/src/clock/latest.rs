// SPDX-License-Identifier: Apache-2.0
//! The latest that the other end's clock may show, so that nothing is delivered that may have expired by it.
//!
//! ```text
//!  other     ──── r ──────────── s ────
//!                ╱                ╲
//!  this end ── a ──────────────────── b ──
//! ```
//!
//! **At most.** What left here at `a` came there at `r`, later than `a`: the other clock is ahead by at most `r - a`. That is too
//! much by what this one packet took on its way there. Of the exchanges of the last moments the lowest counts.
//!
//! **At least.** What left there at `s` came here at `b`: the other clock is ahead by at least `s - b`. Each packet says that.
//!
//! **Steps.** If the second exceeds the first, a clock has stepped, and nothing is known until an exchange is over that began after
//! that. A step that is shorter than a round trip need not show so. Therefore exchanges of long ago do not count, however
//! good they were. And what a packet says raises the bound at once: the other clock is ahead at least by what the packet says, and the
//! shortest round trip besides. That is enough unless the packet waited in queues for longer than the shortest way back.
//!
//! **Lost time.** If this end's clock has lost time (a virtual machine was paused), packets of the other end seem to be faster than
//! any before. If the other end's has, an exchange shows the same of this end's packets. Whatever was made before that is
//! older than the clocks say: it is not sent, and expires sooner here.
//!
//! **What that is worth.** Without steps nothing is delivered late. After a step, until the first exchange is over that began after it, and
//! as long after that as exchanges of before count (three quarters of the shortest round trip, at least 75 ms), a
//! message may be late by as much as its packet waited in queues longer than the shortest way back takes, and by no more
//! than the step. A clock that is set forward by as much as a packet waits cannot be told from a queue that is gone.

use super::{Stamps, ahead};

/// How much faster one clock may run than the other: 100 us in a second, as crystals do, and 500 at either end by which a kernel corrects
/// its clock, rounded up to 1,000.
pub(super) const RATE_MAX_PPM: u64 = 1000;
/// Exchanges of this share of the shortest round trip count, and of so much at least.
const RECENT_SHARE: u64 = 4;
const RECENT_US: u64 = 25_000;
/// Packets of this time count for what is ahead at least.
const PACKETS_US: u64 = 500_000;
/// What is usual is that of this time.
const USUAL_US: u64 = 5_000_000;
/// A packet that is faster than usual by more than this share of the shortest round trip: a host has stood still.
const FASTER_SHARE: u64 = 4;
const FASTER_US: u64 = 200;
/// A clock was set if packets are faster by this share, and so much: that is no queue.
const SET_SHARE: u64 = 16;
const SET_US: u64 = 1000;
/// After this time it is known what is usual.
const LEARNT_US: u64 = 1_000_000;
/// Of a time without packets so much counts for that, somewhat more than is between two requests for the clock: an outage teaches
/// nothing.
const UNSEEN_US: u64 = 600_000;

/// The least of the values of one to two spans of time.
#[derive(Debug, Clone, Copy)]
struct Least {
    span_us: u64,
    ages_ppm: u64,
    began_us: u64,
    /// Of this span and the one before: when, and the value.
    values: [Option<(u64, i64)>; 2],
}

impl Least {
    fn new(span_us: u64, ages_ppm: u64) -> Self {
        Self { span_us, ages_ppm, began_us: 0, values: [None; 2] }
    }

    fn clear(&mut self) {
        self.values = [None; 2];
    }

    fn aged(&self, now_us: u64, (at_us, value): (u64, i64)) -> i64 {
        let by_us = u128::from(now_us.saturating_sub(at_us)) * u128::from(self.ages_ppm) / 1_000_000;
        value.saturating_add(i64::try_from(by_us).unwrap_or(i64::MAX))
    }

    fn get(&self, now_us: u64) -> Option<i64> {
        self.values.iter().flatten().map(|value| self.aged(now_us, *value)).min()
    }

    /// The least of those that were added in the last three spans.
    fn recent(&self, now_us: u64) -> Option<i64> {
        let passed_us = now_us.saturating_sub(self.began_us);
        let counts = [passed_us < 2 * self.span_us, passed_us < self.span_us];
        let values = self.values.iter().zip(counts).filter(|(_, counts)| *counts).filter_map(|(value, _)| *value);
        values.map(|value| self.aged(now_us, value)).min()
    }

    /// `at_us`: the value was measured then, or later.
    fn add(&mut self, now_us: u64, at_us: u64, value: i64) {
        let passed_us = now_us.saturating_sub(self.began_us);
        if passed_us >= self.span_us || self.values == [None; 2] {
            let before = self.values[0].filter(|_| passed_us < 2 * self.span_us);
            (self.values, self.began_us) = ([None, before], now_us);
        }
        let new = (at_us, value);
        if self.values[0].is_none_or(|least| self.aged(now_us, new) <= self.aged(now_us, least)) {
            self.values[0] = Some(new);
        }
    }
}

/// What a packet or an exchange says of the clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Told {
    /// A clock has stepped.
    pub stepped: bool,
    /// This end's clock may have lost time: whatever was made here before is older than it says.
    pub lost_time: bool,
    /// The other end's clock may have lost so much time: whatever it sent before is older than it says.
    pub older_us: u64,
    /// By both clocks a packet takes longer from here to there by so much, as one of them was set.
    pub longer_us: i64,
    /// The exchange counts: it began after the last step.
    pub counts: bool,
}

/// What bounds the other end's clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Latest {
    /// The other clock is ahead by this at most.
    at_most: Least,
    usual_at_most: Least,
    /// Of the newest exchange: when it began, and the value.
    newest: Option<(u64, i64)>,
    /// And by this at least: negated.
    at_least: Least,
    usual_at_least: Least,
    /// Since when it is known what is usual.
    learns_us: Option<u64>,
    /// When a packet came last.
    seen_us: Option<u64>,
    /// Only exchanges count that began after that.
    since_us: u64,
    /// What was known before a step.
    before: Option<i64>,
}

impl Default for Latest {
    fn default() -> Self {
        Self {
            at_most: Least::new(RECENT_US, RATE_MAX_PPM),
            usual_at_most: Least::new(USUAL_US, 0),
            newest: None,
            at_least: Least::new(PACKETS_US, RATE_MAX_PPM),
            usual_at_least: Least::new(USUAL_US, 0),
            learns_us: None,
            seen_us: None,
            since_us: 0,
            before: None,
        }
    }
}

fn i64_of(us: u64) -> i64 {
    i64::try_from(us).unwrap_or(i64::MAX)
}

impl Latest {
    /// A clock has stepped, and nothing is known until an exchange is over that begins from now on.
    pub(super) fn forget(&mut self, now_us: u64) {
        self.before = self.at_most.get(now_us).max(self.before);
        self.since_us = now_us;
        (self.learns_us, self.newest) = (None, None);
        [&mut self.at_most, &mut self.usual_at_most, &mut self.at_least, &mut self.usual_at_least]
            .into_iter()
            .for_each(Least::clear);
    }

    fn is_learnt(&self, now_us: u64) -> bool {
        self.learns_us.is_some_and(|since_us| now_us.saturating_sub(since_us) >= LEARNT_US)
    }

    /// Whether something is faster than usual by more than this.
    fn is_beyond(&self, now_us: u64, faster_us: i64, by_us: u64) -> bool {
        self.is_learnt(now_us) && faster_us > i64_of(by_us.max(FASTER_US))
    }

    /// The newest packet of the other end came, which left at this time by its clock.
    pub(super) fn came(&mut self, now_us: u64, sent_us: u64, shortest_us: u64) -> Told {
        let unseen_us = self.seen_us.replace(now_us).map_or(0, |seen_us| now_us.saturating_sub(seen_us));
        if let Some(learns_us) = &mut self.learns_us {
            *learns_us += unseen_us.saturating_sub(UNSEEN_US);
        }
        let behind_us = ahead(now_us, sent_us);
        let is_step = self.at_most.get(now_us).is_some_and(|at_most_us| behind_us.saturating_neg() > at_most_us);
        let faster_us = self.usual_at_least.get(now_us).map_or(0, |usual_us| usual_us.saturating_sub(behind_us));
        let lost_time = is_step || self.is_beyond(now_us, faster_us, shortest_us / FASTER_SHARE);
        let is_set = self.is_beyond(now_us, faster_us, (shortest_us / SET_SHARE).max(SET_US));
        if is_step {
            self.forget(now_us);
        }
        self.learns_us.get_or_insert(now_us);
        self.at_least.add(now_us, now_us, behind_us);
        self.usual_at_least.add(now_us, now_us, behind_us);
        let longer_us = if is_set { faster_us } else { 0 };
        Told { stepped: is_step, lost_time, longer_us, ..Told::default() }
    }

    /// An exchange is over.
    pub(super) fn exchanged(&mut self, stamps: &Stamps, shortest_us: u64) -> Told {
        if stamps.t1_us < self.since_us {
            return Told::default();
        }
        let now_us = stamps.t4_us;
        let at_most_us = ahead(stamps.t2_us, stamps.t1_us);
        let before_us = self.at_most.get(now_us).or(self.before);
        let mut told = Told::default();
        let now_at_most_us = self.at_most.aged(now_us, (stamps.t1_us, at_most_us));
        let contradicts = |packet: &&(u64, i64)| self.at_least.aged(now_us, **packet).saturating_neg() > now_at_most_us;
        let contradicting_us = self.at_least.values.iter().flatten().filter(contradicts).map(|packet| packet.0).max();
        if let Some(came_us) = contradicting_us {
            told.stepped = true;
            self.forget(now_us);
            if stamps.t1_us < came_us {
                // Either may be of before the step.
                return told;
            }
            self.since_us = stamps.t1_us;
            self.at_least.add(now_us, now_us, ahead(stamps.t4_us, stamps.t3_us));
        }
        let fell_us = before_us.map_or(0, |before_us| before_us.saturating_sub(at_most_us));
        let usual_us = self.usual_at_most.get(now_us).or(self.before);
        let faster_us = usual_us.map_or(0, |usual_us| usual_us.saturating_sub(at_most_us));
        let is_known = told.stepped || self.before.is_some();
        if is_known {
            told.longer_us = fell_us.max(0).saturating_neg();
        }
        if is_known || self.is_beyond(now_us, faster_us, shortest_us / FASTER_SHARE) {
            // What this exchange waited in queues hides as much of the step, and later ones need not wait.
            let hidden_us = i64_of(stamps.round_trip_us().saturating_sub(shortest_us));
            told.older_us = u64::try_from(fell_us.saturating_add(hidden_us)).unwrap_or(0);
        }
        told.counts = true;
        self.before = None;
        self.learns_us.get_or_insert(now_us);
        self.at_most.span_us = (shortest_us / RECENT_SHARE).max(RECENT_US);
        self.at_most.add(now_us, stamps.t1_us, at_most_us);
        self.newest = Some((stamps.t1_us, at_most_us));
        self.usual_at_most.add(now_us, stamps.t1_us, at_most_us);
        told
    }

    /// The latest that the other clock may show. None: nothing is known.
    pub(super) fn get(&self, now_us: u64, shortest_us: u64) -> Option<u64> {
        let newest_us = self.at_most.aged(now_us, self.newest?);
        let at_most_us = self.at_most.recent(now_us).map_or(newest_us, |recent_us| recent_us.min(newest_us));
        let by_packets_us =
            self.at_least.get(now_us).map(|behind_us| behind_us.saturating_neg().saturating_add(i64_of(shortest_us)));
        Some(now_us.wrapping_add_signed(by_packets_us.map_or(at_most_us, |us| us.max(at_most_us))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1000;
    const ROUND_TRIP: u64 = 20 * MS;
    /// What a drift may do within it.
    const DRIFT: i64 = 20;

    /// Two clocks, of which the other one is ahead by `offset_us`, and a path of 10 ms either way.
    struct Clocks {
        latest: Latest,
        now_us: u64,
        offset_us: i64,
    }

    impl Clocks {
        fn new() -> Self {
            Self { latest: Latest::default(), now_us: 3_600_000 * MS, offset_us: 7_000_000 }
        }

        fn there(&self, now_us: u64) -> u64 {
            now_us.wrapping_add_signed(self.offset_us)
        }

        /// A packet has come that took so long.
        fn came(&mut self, took_us: u64) -> Told {
            self.latest.came(self.now_us, self.there(self.now_us - took_us), ROUND_TRIP)
        }

        /// An exchange is over that began so long ago, and took so long there.
        fn exchanged(&mut self, began_us: u64, there_us: u64) -> Told {
            let t1_us = self.now_us - began_us;
            let t2_us = self.there(t1_us + there_us);
            self.latest.exchanged(&Stamps { t1_us, t2_us, t3_us: t2_us, t4_us: self.now_us }, ROUND_TRIP)
        }

        /// By how much the bound is later than the other clock.
        fn margin_us(&self) -> Option<i64> {
            self.latest.get(self.now_us, ROUND_TRIP).map(|us| ahead(us, self.there(self.now_us)))
        }

        fn learn(&mut self) {
            for _ in 0..200 {
                self.now_us += 10 * MS;
                assert_eq!(self.came(10 * MS), Told::default());
                assert!(self.exchanged(ROUND_TRIP, 10 * MS).counts);
            }
            assert_eq!(self.margin_us(), Some(10_000 + DRIFT));
        }
    }

    proptest! {
        /// Whatever the ways take, and however the clocks drift, the other clock shows no more than the bound.
        #[test]
        fn bound_is_never_too_early(
            ppm in -1000_i64..1000,
            ways in prop::collection::vec((0_u64..80_000, 0_u64..80_000, 0_u64..300_000), 1..80),
        ) {
            let (mut latest, begin_us, mut now_us) = (Latest::default(), 1_000_000_000, 1_000_000_000_u64);
            let there = |now_us: u64| {
                let drift_us = i64::try_from(now_us - begin_us).unwrap() * ppm / 1_000_000;
                now_us.wrapping_add_signed(5_000_000 + drift_us)
            };
            let mut shortest_us = u64::MAX;
            for (way_there, way_back, gap_us) in ways {
                let t1_us = now_us;
                let t2_us = there(t1_us + way_there);
                now_us += way_there + way_back;
                shortest_us = shortest_us.min(way_there + way_back);
                let stamps = Stamps { t1_us, t2_us, t3_us: t2_us, t4_us: now_us };
                // Without what packets say, too.
                let mut alone = latest;
                alone.exchanged(&stamps, shortest_us);
                prop_assert!(alone.get(now_us, 0).unwrap() + 2 >= there(now_us));
                prop_assert!(!latest.came(now_us, t2_us, shortest_us).stepped);
                let told = latest.exchanged(&stamps, shortest_us);
                prop_assert!(told.counts && !told.stepped);
                for later_us in [0, gap_us] {
                    let bound_us = latest.get(now_us + later_us, shortest_us).unwrap();
                    prop_assert!(bound_us + 2 >= there(now_us + later_us));
                }
                now_us += gap_us;
            }
        }
    }

    /// A few packets from a queue, then an outage, and then packets that met none: no clock has stepped.
    #[test]
    fn outage_teaches_nothing_of_what_is_usual() {
        let mut clocks = Clocks::new();
        for _ in 0..10 {
            clocks.now_us += MS;
            assert_eq!(clocks.came(14 * MS), Told::default());
        }
        clocks.now_us += 2500 * MS;
        assert_eq!(clocks.came(8 * MS), Told::default());
        // Packets that are seldom teach it, too.
        for _ in 0..4 {
            clocks.now_us += 500 * MS;
            assert_eq!(clocks.came(14 * MS), Told::default());
        }
        clocks.now_us += 500 * MS;
        assert!(clocks.came(MS).lost_time);
    }

    /// The exchange that shows how much older messages are waits in a queue, and the next one does not.
    #[test]
    fn queue_hides_nothing_of_time_that_the_other_clock_has_lost() {
        for queue_us in [0, 20 * MS, 60 * MS] {
            let mut clocks = Clocks::new();
            clocks.learn();
            clocks.offset_us -= 100_000;
            clocks.now_us += 200 * MS;
            let told = clocks.exchanged(ROUND_TRIP + queue_us, 10 * MS + queue_us);
            assert!(told.counts, "{told:?}");
            clocks.now_us += 100 * MS;
            assert!(clocks.exchanged(ROUND_TRIP, 10 * MS).counts);
            let older_us = i64::try_from(told.older_us).unwrap() + clocks.margin_us().unwrap();
            assert!(older_us >= 100_000, "{older_us} us with a queue of {queue_us} us");
        }
    }

    /// An exchange of before a step does not count for ever, though only one has followed.
    #[test]
    fn exchanges_of_before_a_step_count_for_three_spans() {
        let mut clocks = Clocks::new();
        clocks.learn();
        // By less than a round trip, which looks like a queue.
        clocks.offset_us += 15_000;
        clocks.now_us += 30 * MS;
        assert!(clocks.exchanged(ROUND_TRIP, 10 * MS).counts);
        clocks.now_us += 75 * MS;
        let margin_us = clocks.margin_us().unwrap();
        assert!(margin_us >= 0, "{margin_us}");
    }

    #[test]
    fn exchange_of_before_a_step_says_nothing() {
        let mut clocks = Clocks::new();
        clocks.learn();
        let before = clocks.latest;
        clocks.offset_us += 100_000;
        clocks.now_us += 10 * MS;
        assert!(clocks.came(10 * MS).stepped && clocks.margin_us().is_none());
        // One whose first half was before it.
        clocks.now_us += 5 * MS;
        let mut stamps = Stamps { t1_us: clocks.now_us - ROUND_TRIP, t2_us: 0, t3_us: 0, t4_us: clocks.now_us };
        stamps.t2_us = stamps.t1_us.wrapping_add_signed(7_000_000) + 10 * MS;
        stamps.t3_us = stamps.t2_us;
        assert!(!clocks.latest.exchanged(&stamps, ROUND_TRIP).counts && clocks.margin_us().is_none());
        clocks.now_us += 15 * MS;
        assert!(clocks.exchanged(ROUND_TRIP, 10 * MS).counts);
        assert_eq!(clocks.margin_us(), Some(10_000 + DRIFT));
        // The same, if the packet that shows the step is overtaken by that exchange.
        clocks.latest = before;
        clocks.now_us += ROUND_TRIP;
        assert!(clocks.exchanged(ROUND_TRIP, 10 * MS).counts && clocks.margin_us() >= Some(0));
    }

    /// It shows in no exchange, but each packet says at once how far the other clock is at least.
    #[test]
    fn step_of_less_than_a_round_trip_is_never_too_early() {
        let mut clocks = Clocks::new();
        clocks.learn();
        clocks.offset_us += 15_000;
        for at in 0..50 {
            clocks.now_us += MS;
            let told = clocks.came(10 * MS);
            assert_eq!((told.stepped, told.lost_time), (false, at == 0));
            assert!(clocks.margin_us() >= Some(0), "{:?}", clocks.margin_us());
            if at >= 20 {
                clocks.exchanged(ROUND_TRIP, 10 * MS);
            }
        }
        assert_eq!(clocks.margin_us(), Some(10_000 + DRIFT));
    }

    /// The other end's clock was set back, or its host stood still.
    #[test]
    fn what_was_made_before_a_step_back_is_older() {
        for by_us in [8_000, 15_000, 80_000, 3_600_000_000] {
            let mut clocks = Clocks::new();
            clocks.learn();
            clocks.offset_us -= by_us;
            clocks.now_us += ROUND_TRIP;
            clocks.came(10 * MS);
            let told = clocks.exchanged(ROUND_TRIP, 10 * MS);
            let older_us = i64::try_from(told.older_us).unwrap();
            // A drift may be as much besides.
            assert!((by_us..=by_us + 2 * DRIFT).contains(&older_us), "{told:?}");
            assert!(told.counts && clocks.margin_us() >= Some(10_000 + DRIFT));
            clocks.now_us += 1000 * MS;
            clocks.came(10 * MS);
            clocks.exchanged(ROUND_TRIP, 10 * MS);
            assert_eq!(clocks.margin_us(), Some(10_000 + DRIFT));
        }
    }

    #[test]
    fn queues_and_jitter_make_nothing_older() {
        let mut clocks = Clocks::new();
        clocks.learn();
        for at in 0..3000_u64 {
            clocks.now_us += 5 * MS;
            let told = clocks.came(10 * MS + at * 7919 % 30_000);
            let exchanged = clocks.exchanged(100 * MS, 10 * MS + at * 104_729 % 30_000);
            assert_eq!((told, exchanged), (Told::default(), Told { counts: true, ..Told::default() }));
        }
    }
}
