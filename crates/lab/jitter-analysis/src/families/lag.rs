// SPDX-License-Identifier: Apache-2.0
//! Candidate periods: counts of the times between any two late packets.
//!
//! Ends of windows are whole multiples of T apart. So T and its multiples stand out among the distances,
//! compared with a random process with the same packets. If delays are small, distances near multiples of the
//! sending interval are frequent anyway; therefore each distance is compared with others that have the same
//! remainder.

use super::late::Late;

/// Width of a bin of distances, ns.
const BIN_NS: f64 = 8000.0;
/// Widths of a peak in bins: for exact windows, for windows with jitter, and for slow ones that drift.
const WIDTHS: [usize; 3] = [2, 6, 20];
/// Maximum number of pairs to count.
const PAIRS_MAX: f64 = 5e6;
/// Longest distance to count, ns.
const LAG_MAX_NS: f64 = 1.2e10;
/// Number of peaks to examine per width.
const PEAKS: usize = 60;
/// A peak may be up to this multiple of T.
const MULTIPLE_MAX: usize = 64;
/// Number of multiples of T that are summed up, at first and for the best candidates.
const SUM: [usize; 2] = [24, 200];
/// How many candidates are examined again with more multiples.
const AGAIN: usize = 100;
/// Minimum number of late packets for a search.
pub(super) const LATE_MIN: usize = 6;

/// Counted distances.
struct Lags {
    /// Cumulative counts up to each bin.
    counts: Vec<u32>,
    /// The expected counts, accumulated over one sending interval from its start.
    expected: Vec<f64>,
    period: f64,
    span: f64,
}

impl Lags {
    fn of(ends: &[i64], period: f64, span: f64, lag_max: f64) -> Lags {
        let bins = (lag_max / BIN_NS) as usize + 1;
        let mut counts = vec![0_u32; bins + 1];
        // The average counts of distances with the same remainder.
        let folds = ((period / BIN_NS).round() as usize).max(1);
        let mut sums = vec![0.0; folds];
        let mut from = 0;
        for (i, &end) in ends.iter().enumerate() {
            while (end - ends[from]) as f64 >= lag_max {
                from += 1;
            }
            for &other in &ends[from..i] {
                counts[((end - other) as f64 / BIN_NS) as usize + 1] += 1;
            }
        }
        let (mut at, mut weight) = (BIN_NS / 2.0, 0.0);
        for bin in 0..bins {
            while at >= period {
                at -= period;
            }
            sums[((at / period * folds as f64) as usize).min(folds - 1)] += f64::from(counts[bin + 1]);
            weight += 1.0 - ((bin as f64 + 0.5) * BIN_NS / span).min(1.0);
            at += BIN_NS;
            counts[bin + 1] += counts[bin];
        }
        // The number of sending intervals that all bins together cover; long distances count less, because
        // fewer of them fit into the run.
        let intervals = (weight * BIN_NS / period).max(1e-9);
        let mut expected = vec![0.0; folds + 1];
        for fold in 0..folds {
            expected[fold + 1] = expected[fold] + sums[fold] / intervals;
        }
        Lags { counts, expected, period, span }
    }

    fn bins(&self) -> usize {
        self.counts.len() - 1
    }

    /// The expected number of distances below `lag`, in a run without end.
    fn expected_below(&self, lag: f64) -> f64 {
        let folds = self.expected.len() - 1;
        let intervals = lag / self.period;
        let whole = intervals as u64 as f64;
        let at = (intervals - whole) * folds as f64;
        let fold = (at as usize).min(folds - 1);
        let (low, high) = (self.expected[fold], self.expected[fold + 1]);
        whole * self.expected[folds] + low + (high - low) * (at - fold as f64)
    }

    /// Count and expected count of `width` bins around a distance.
    fn around(&self, lag: f64, width: usize) -> (f64, f64) {
        let from = ((lag / BIN_NS - width as f64 / 2.0 + 0.5).max(0.0) as usize).min(self.bins());
        self.between(from, (from + width).min(self.bins()))
    }

    fn between(&self, from: usize, to: usize) -> (f64, f64) {
        let (low, high) = (from as f64 * BIN_NS, to as f64 * BIN_NS);
        let fade = (1.0 - low / self.span).max(0.0);
        let expected = (self.expected_below(high) - self.expected_below(low)) * fade;
        (f64::from(self.counts[to] - self.counts[from]), expected)
    }

    /// How much the multiples of a period stand out, roughly in sigmas.
    fn score(&self, t: f64, width: usize, most: usize) -> f64 {
        let reach = (self.bins() as f64 * BIN_NS / t) as usize;
        let (mut count, mut expected) = (0.0, 0.0);
        for m in 1..=reach.min(most) {
            let (c, e) = self.around(m as f64 * t, width);
            count += c;
            expected += e;
        }
        (count - expected) / (expected + 1.0).sqrt()
    }

    /// The best of several periods around a candidate, at a finer resolution, or the candidate if none is
    /// better.
    fn sharpen(&self, c: Candidate, steps: i32, most: usize) -> Candidate {
        let mut best = c;
        for step in -steps..=steps {
            let period = c.period + 0.75 * c.slack * f64::from(step) / f64::from(steps);
            let score = self.score(period, c.width, most);
            if score > best.score {
                best = Candidate { period, score, ..c };
            }
        }
        best
    }

    fn peaks(&self, shortest: f64, width: usize) -> Vec<f64> {
        let step = (width / 2).max(1);
        let mut peaks: Vec<(f64, f64)> = Vec::new();
        let first = (shortest / BIN_NS) as usize;
        for bin in (first..self.bins().saturating_sub(width)).step_by(step) {
            if self.counts[bin + width] - self.counts[bin] < 2 {
                continue;
            }
            let (count, expected) = self.between(bin, bin + width);
            let score = (count - expected) / (expected + 1.0).sqrt();
            if score > 1.5 {
                peaks.push((score, (bin as f64 + width as f64 / 2.0) * BIN_NS));
            }
        }
        peaks.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
        peaks.truncate(PEAKS);
        peaks.into_iter().map(|p| p.1).collect()
    }
}

/// A period to try.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub(super) period: f64,
    /// How far off it may be, ns.
    pub(super) slack: f64,
    pub(super) score: f64,
    /// Width in bins of the peaks at its multiples.
    width: usize,
}

/// The best `most` candidate periods within `range`, from late packets in the order of their ends.
pub(super) fn candidates(lates: &[Late], period: f64, range: (f64, f64), most: usize) -> Vec<Candidate> {
    let mut ends: Vec<i64> = lates.iter().map(|l| l.end).collect();
    if ends.len() < LATE_MIN {
        return Vec::new();
    }
    // Takes all pairs if they are few, else a part of the run: if there are so many late packets, a period
    // shows in a part too.
    let mut span = (ends[ends.len() - 1] - ends[0]).max(1) as f64;
    let pairs = |n: usize, span: f64, lag: f64| n as f64 * n as f64 * (lag / span).min(1.0);
    let mut lag_max = LAG_MAX_NS.min(span);
    while pairs(ends.len(), span, lag_max) > PAIRS_MAX {
        if lag_max > 2.2 * range.1 {
            lag_max *= 0.7;
        } else {
            let keep = (ends.len() as f64 * 0.7) as usize;
            ends.truncate(keep.max(LATE_MIN));
            span = (ends[ends.len() - 1] - ends[0]).max(1) as f64;
            lag_max = lag_max.min(span);
        }
    }
    let lags = Lags::of(&ends, period, span, lag_max);
    let mut found: Vec<Candidate> = Vec::new();
    for width in WIDTHS {
        let slack = width as f64 * BIN_NS / 2.0;
        for peak in lags.peaks(range.0, width) {
            // A faster period must stand out more than the slower ones that the same peak allows.
            let mut best = 0.0;
            for m in 1..=MULTIPLE_MAX {
                let (t, slack) = (peak / m as f64, slack / m as f64);
                if t < range.0 {
                    break;
                }
                if t > range.1 {
                    continue;
                }
                let c = lags.sharpen(Candidate { period: t, slack, score: 0.0, width }, 1, SUM[0]);
                if c.score > best {
                    best = 1.05 * c.score;
                    found.push(c);
                }
            }
        }
    }
    found.sort_unstable_by(|a, b| b.score.total_cmp(&a.score));
    // A period that stands out a little with few multiples may stand out much more with many.
    let mut again: Vec<Candidate> = Vec::new();
    for c in found {
        if again.len() == AGAIN {
            break;
        }
        if !again.iter().any(|k| (c.period - k.period).abs() < c.slack.min(k.slack)) {
            again.push(c);
        }
    }
    let mut found: Vec<Candidate> = again.into_iter().map(|c| lags.sharpen(c, 12, SUM[1])).collect();
    found.sort_unstable_by(|a, b| b.score.total_cmp(&a.score));
    let mut kept: Vec<Candidate> = Vec::new();
    for c in found {
        // Skips a period that is already kept, and multiples or parts of a kept one, which stands out at
        // least as much.
        let known = |k: &Candidate| {
            let (slow, fast) = if c.period > k.period { (&c, k) } else { (k, &c) };
            let ratio = (slow.period / fast.period).round();
            (slow.period - ratio * fast.period).abs() < slow.slack.max(ratio * fast.slack)
        };
        if !kept.iter().any(known) {
            kept.push(c);
        }
        if kept.len() == most {
            break;
        }
    }
    kept
}
