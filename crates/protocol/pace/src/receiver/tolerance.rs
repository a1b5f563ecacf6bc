// SPDX-License-Identifier: Apache-2.0
//! How long a gap is awaited if some messages may be lost (X-PACE §IV-A: partial reliability).
//!
//! The latest data is not to wait for data that need not come. So a gap is passed over as soon as it cannot be of packets
//! that were overtaken, as long as the share of lost messages stays below what the sender's application asked for. The
//! sender hears of it, and does not send again what nobody awaits. If more is lost, gaps are awaited, and what was lost
//! is sent again.

use crate::flight::REORDERED_MAX;

/// The share of what may be lost that gaps may use up. The rest is for what is lost for good although it is awaited. The sender
/// counts with these, too: [`crate::sender`].
pub(crate) const USED: f64 = 0.95;
/// Longest gap, in symbols, that is passed over.
pub(super) const GAP_MAX: u64 = 4;
/// Messages that may be passed over one after another, and messages lost beyond what was asked for that are remembered.
pub(crate) const CREDIT_MAX: f64 = GAP_MAX as f64;
pub(crate) const DEBT_MAX: f64 = 64.0;
/// Gaps that are remembered, to see whether they were of overtaken packets.
const REMEMBERED: usize = 16;
/// A packet that comes after this share of a round trip was sent again: it was not overtaken.
const AGAIN_SHARE: f64 = 0.75;
/// After this share of a round trip, and a millisecond, a gap is passed over though few packets came after it.
const PASSED_SHARE: f64 = 0.125;
const PASSED_US: f64 = 1000.0;
/// Packets that were overtaken are awaited longer by this factor, and each message that is delivered makes it shorter again.
const PATIENCE: f64 = 1.25;
const PATIENCE_KEPT: f64 = 0.9995;

/// A gap that was passed over.
#[derive(Debug, Clone, Copy, Default)]
struct Passed {
    from: u64,
    to: u64,
    noticed_us: u64,
}

/// What may be lost, and was.
#[derive(Debug, Default)]
pub(super) struct Tolerance {
    share: f64,
    round_trip_us: f64,
    /// Messages that may be passed over; below 0 if more are lost than was asked for.
    credit: f64,
    /// Of that, what is used by gaps whose messages are not counted yet.
    pending: f64,
    /// The first symbol of the gap that is awaited, and since when.
    gap: Option<(u64, u64)>,
    /// How long packets may be overtaken for.
    patience_us: f64,
    /// When the gap is passed over, if only time is missing.
    due_us: Option<u64>,
    passed: [Passed; REMEMBERED],
    place: usize,
    /// Symbols below this one may be restored by redundancy.
    coded_until: u64,
    now_us: u64,
}

#[allow(clippy::cast_precision_loss, reason = "messages, and times")]
fn as_f64(number: u64) -> f64 {
    number as f64
}

impl Tolerance {
    /// The share of messages that may be lost, and the time of a round trip.
    pub(super) fn set(&mut self, share: f64, round_trip_us: u64) {
        self.share = share.clamp(0.0, 1.0);
        self.round_trip_us = as_f64(round_trip_us);
    }

    pub(super) fn set_now(&mut self, now_us: u64) {
        self.now_us = now_us;
    }

    /// The sender's clock has stepped: since when a gap is awaited is not known.
    pub(super) fn forget_gap(&mut self) {
        (self.gap, self.due_us) = (None, None);
    }

    /// So many messages are known to be delivered or lost.
    pub(super) fn count(&mut self, all: u64, lost: u64) {
        self.pending = 0.0;
        self.credit = (self.credit + USED * self.share * as_f64(all) - as_f64(lost)).clamp(-DEBT_MAX, CREDIT_MAX);
        self.patience_us *= PATIENCE_KEPT;
    }

    /// Symbols below this one may be restored.
    pub(super) fn coded(&mut self, until: u64) {
        self.coded_until = self.coded_until.max(until);
    }

    /// A symbol has come that is not awaited any more.
    pub(super) fn late(&mut self, symbol: u64) {
        let Some(passed) = self.passed.iter().find(|passed| (passed.from..passed.to).contains(&symbol)) else { return };
        let late_us = as_f64(self.now_us.saturating_sub(passed.noticed_us));
        if late_us < AGAIN_SHARE * self.round_trip_us {
            self.patience_us = self.patience_us.max(PATIENCE * late_us);
        }
    }

    /// Whether the gap of these symbols is passed over; those from `end` on have not been sent yet, as far as is known.
    pub(super) fn passes(&mut self, from: u64, to: u64, end: u64, now_us: u64) -> bool {
        if self.share == 0.0 || now_us == 0 {
            self.due_us = None;
            return false;
        }
        let since_us = match self.gap {
            Some((gap, since_us)) if gap == from => since_us,
            _ => {
                self.due_us = None;
                self.gap = Some((from, now_us));
                now_us
            }
        };
        let cost = as_f64(to - from);
        let is_lost = end >= to + REORDERED_MAX;
        if from < self.coded_until || self.credit - self.pending < cost {
            self.due_us = None;
            return false;
        }
        let few_us = if is_lost { 0.0 } else { PASSED_SHARE * self.round_trip_us + PASSED_US };
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a round trip or so")]
        let due_us = since_us + self.patience_us.max(few_us) as u64;
        if now_us < due_us {
            self.due_us = Some(due_us);
            return false;
        }
        self.pending += cost;
        self.passed[self.place % REMEMBERED] = Passed { from, to, noticed_us: since_us };
        self.place += 1;
        (self.gap, self.due_us) = (None, None);
        true
    }

    /// When to look again at the gap that begins here, by the sender's clock.
    pub(super) fn due_us(&self, from: u64) -> Option<u64> {
        self.due_us.filter(|_| self.gap.is_some_and(|(gap, _)| gap == from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tolerance(share: f64) -> Tolerance {
        let mut tolerance = Tolerance::default();
        tolerance.set(share, 30_000);
        tolerance
    }

    #[test]
    fn no_more_is_passed_over_than_may_be_lost() {
        let mut tolerance = tolerance(0.01);
        let mut lost = 0;
        // Each tenth message is missing.
        for at in 1..10_000_u64 {
            let passes = at % 10 == 0 && tolerance.passes(at, at + 1, at + 9, 1000 * at);
            lost += u64::from(passes);
            tolerance.count(1, u64::from(passes));
        }
        assert!((90..=100).contains(&lost), "{lost}");
    }

    #[test]
    fn what_is_lost_for_good_is_no_more_to_be_passed_over() {
        let mut tolerance = tolerance(0.01);
        tolerance.count(300, 3);
        assert!(!tolerance.passes(10, 11, 20, 1));
        tolerance.count(200, 0);
        assert!(tolerance.passes(10, 11, 20, 1));
        // Until it is counted it is used up.
        assert!(!tolerance.passes(12, 13, 20, 1));
    }

    #[test]
    fn packets_that_were_overtaken_make_it_patient() {
        let mut tolerance = tolerance(0.1);
        tolerance.count(40, 0);
        assert!(
            !tolerance.passes(10, 11, 13, 5000) && tolerance.due_us(10) == Some(9750),
            "two later ones are not enough"
        );
        assert!(tolerance.passes(10, 11, 14, 6000));
        tolerance.set_now(7000);
        tolerance.late(10);
        assert!(!tolerance.passes(20, 21, 24, 20_000) && tolerance.due_us(20) == Some(22_500));
        assert!(tolerance.passes(20, 21, 24, 22_500) && tolerance.due_us(20).is_none());
        // This one was sent again.
        tolerance.set_now(50_000);
        tolerance.late(20);
        assert!(!tolerance.passes(30, 31, 34, 60_000) && tolerance.due_us(30) == Some(62_500));
    }

    #[test]
    fn redundancy_and_applications_that_want_everything_are_awaited() {
        let mut without = tolerance(0.0);
        without.count(1000, 0);
        assert!(!without.passes(10, 11, 20, 1000));
        let mut coded = tolerance(0.1);
        coded.count(1000, 0);
        coded.coded(64);
        assert!(!coded.passes(10, 11, 20, 1000) && coded.passes(70, 71, 80, 1000));
    }
}
