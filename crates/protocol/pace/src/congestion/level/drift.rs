// SPDX-License-Identifier: Apache-2.0
//! How much faster the receiver's clock runs. A one-way delay by two clocks grows with their drift; a round trip by one
//! clock does not. So the shortest way back, as the difference of both, shows the drift.

use super::as_f64;

/// The shortest way back of each such time is compared with that of the one before.
const EPOCH_NS: u64 = 1_000_000_000;
/// Largest drift in microseconds a second: twice that of crystals.
const DRIFT_MAX: f64 = 200.0;
/// A way back that changes by more is another one.
const DRIFT_SEEN_MAX: f64 = 100.0 * DRIFT_MAX;
/// Weight of a new epoch.
const WEIGHT: f64 = 0.3;

#[derive(Debug)]
pub(super) struct Drift {
    epoch_ns: u64,
    /// The shortest way back of this epoch, when it was seen, and the same of the epoch before.
    least: Option<(i64, u64)>,
    before: Option<(i64, u64)>,
    /// Microseconds a second; none before two epochs.
    drift: Option<f64>,
    last_ns: u64,
    /// What has accumulated so far.
    moved_us: f64,
}

impl Drift {
    pub(super) fn new() -> Self {
        Self { epoch_ns: 0, least: None, before: None, drift: None, last_ns: 0, moved_us: 0.0 }
    }

    /// The one-way delay as by a clock without drift.
    pub(super) fn corrected(&mut self, now_ns: u64, one_way_us: i64, round_trip_us: u64) -> i64 {
        let back_us = i64::try_from(round_trip_us).unwrap_or(0).saturating_sub(one_way_us);
        if now_ns.saturating_sub(self.epoch_ns) >= EPOCH_NS {
            if let (Some((least_us, at_ns)), Some((before_us, before_ns))) = (self.least, self.before)
                && at_ns > before_ns
            {
                #[allow(clippy::cast_precision_loss, reason = "a drift")]
                let moved_us = before_us.saturating_sub(least_us) as f64;
                let new = moved_us * 1e9 / as_f64(at_ns - before_ns);
                if new.abs() <= DRIFT_SEEN_MAX {
                    let new = new.clamp(-DRIFT_MAX, DRIFT_MAX);
                    let drift = self.drift.get_or_insert(new);
                    *drift += WEIGHT * (new - *drift);
                }
            }
            (self.epoch_ns, self.before, self.least) = (now_ns, self.least, None);
        }
        if self.least.is_none_or(|(least_us, _)| back_us < least_us) {
            self.least = Some((back_us, now_ns));
        }
        let passed_ns = now_ns.saturating_sub(std::mem::replace(&mut self.last_ns, now_ns)).min(EPOCH_NS);
        self.moved_us += self.drift.unwrap_or(0.0) * as_f64(passed_ns) / 1e9;
        #[allow(clippy::cast_possible_truncation, reason = "a time")]
        let moved_us = self.moved_us as i64;
        one_way_us.saturating_sub(moved_us)
    }
}
