// SPDX-License-Identifier: Apache-2.0
//! How fast packets come, by the receiver's clock.

use super::as_f64;

/// Checkpoints that are kept.
const KEPT: usize = 16;

/// Bytes delivered up to some times.
#[derive(Debug)]
pub(super) struct Deliveries {
    /// Time at the receiver and bytes delivered by then; the newest is at `last`.
    points: [(u64, u64); KEPT],
    last: usize,
    count: usize,
}

impl Deliveries {
    pub(super) fn new() -> Self {
        Self { points: [(0, 0); KEPT], last: 0, count: 0 }
    }

    /// So many bytes had been delivered at this time. Checkpoints are about `span_us / 8` apart.
    pub(super) fn add(&mut self, came_us: u64, bytes: u64, span_us: u64) {
        let (newest_us, _) = self.points[self.last];
        if self.count > 0 && came_us < newest_us {
            // It was overtaken; its bytes count with the next one.
            return;
        }
        let before_us = if self.count > 1 { self.points[(self.last + KEPT - 1) % KEPT].0 } else { 0 };
        // The newest one is replaced until it is far enough from the one before it.
        if self.count == 0 || newest_us.saturating_sub(before_us) >= span_us / 8 {
            self.last = (self.last + 1) % KEPT;
            self.count = (self.count + 1).min(KEPT);
        }
        self.points[self.last] = (came_us, bytes);
    }

    /// Bytes a second over the last `span_us`; none if less is known.
    pub(super) fn bytes_per_s(&self, span_us: u64) -> Option<f64> {
        let (newest_us, newest) = self.points[self.last];
        let (from_us, from) = (1..self.count)
            .map(|back| self.points[(self.last + KEPT - back) % KEPT])
            .find(|(at_us, _)| newest_us.saturating_sub(*at_us) >= span_us)?;
        (newest_us > from_us).then(|| as_f64(newest.saturating_sub(from)) * 1e6 / as_f64(newest_us - from_us))
    }
}
