// SPDX-License-Identifier: Apache-2.0
//! The lower baseline of a series of delays. It may drift, because two hosts' clocks drift against each
//! other, and the sender's schedule drifts against its clock.
//!
//! The 20% quantile is taken of each block of [`BLOCK`] values (a disturbance may delay most packets), then
//! the running median of these over 21 blocks (a stall may delay a few whole blocks). Between the centres of
//! the blocks, the baseline is a straight line.

/// Values per block.
pub(crate) const BLOCK: usize = 256;
/// Blocks to either side in the running median.
const REACH: usize = 10;
/// The share of a block's values below its level.
const SHARE: f64 = 0.2;

/// A baseline.
#[derive(Debug, Clone)]
pub(crate) struct Baseline {
    levels: Vec<i64>,
}

impl Baseline {
    /// The baseline of these values.
    pub(crate) fn of(values: &[i64]) -> Self {
        let mut scratch = Vec::with_capacity(BLOCK);
        // The last block takes the remaining values if they are too few for a block of their own.
        let blocks = (values.len() / BLOCK).max(1);
        let raw: Vec<i64> = (0..blocks)
            .map(|b| {
                let end = if b + 1 == blocks { values.len() } else { (b + 1) * BLOCK };
                scratch.clear();
                scratch.extend_from_slice(&values[b * BLOCK..end]);
                middle(&mut scratch, SHARE)
            })
            .collect();
        let mut near = Vec::with_capacity(2 * REACH + 1);
        let levels = (0..blocks)
            .map(|b| {
                // The same number to either side; otherwise the median of a slope would be off at the ends.
                let reach = REACH.min(b).min(blocks - 1 - b);
                near.clear();
                near.extend_from_slice(&raw[b - reach..=b + reach]);
                middle(&mut near, 0.5)
            })
            .collect();
        Baseline { levels }
    }

    /// The baseline at value `i`.
    pub(crate) fn at(&self, i: usize) -> i64 {
        let half = BLOCK / 2;
        let last = self.levels.len() - 1;
        let b = (i.saturating_sub(half) / BLOCK).min(last.saturating_sub(1));
        if last == 0 {
            return self.levels[0];
        }
        let (from, to) = (self.levels[b], self.levels[b + 1]);
        let x = i as i64 - (b * BLOCK + half) as i64;
        let step = i128::from(to) - i128::from(from);
        let at = i128::from(from) + step * i128::from(x) / BLOCK as i128;
        at.clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }
}

/// The value below which a share `q` of the values lies; 0 without values.
pub(crate) fn middle(values: &mut [i64], q: f64) -> i64 {
    if values.is_empty() {
        return 0;
    }
    let rank = (q * (values.len() - 1) as f64) as usize;
    *values.select_nth_unstable(rank).1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drift_is_followed_and_stalls_are_not() {
        let stalled = |i: i64| if (5000..5600).contains(&i) { 20_000_000 } else { 0 };
        let values: Vec<i64> = (0..20_000).map(|i| i * 20 + i * 7919 % 1000 + stalled(i)).collect();
        let base = Baseline::of(&values);
        for i in (0..20_000).step_by(37) {
            let off = base.at(i) - i as i64 * 20;
            assert!((-5000..12_000).contains(&off), "{i}: {off}");
        }
    }

    #[test]
    fn few_values_and_extremes() {
        assert_eq!(Baseline::of(&[]).at(0), 0);
        assert_eq!(Baseline::of(&[7]).at(0), 7);
        let wild: Vec<i64> = (0..2000).map(|i| if i % 2 == 0 { i64::MAX } else { i64::MIN + 1 }).collect();
        let base = Baseline::of(&wild);
        assert!((0..2000).all(|i| base.at(i) < i64::MAX));
    }
}
