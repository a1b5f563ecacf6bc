// SPDX-License-Identifier: Apache-2.0
//! A distribution of many times, up to the maximum and not only up to some percentile (jitter report §1).

use serde::{Deserialize, Serialize};

/// The shares for which a summary gives percentiles, if there are enough samples to tell them from the
/// maximum.
pub const PERCENTILES: [f64; 11] = [0.0, 0.01, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 0.999_9, 0.999_99, 0.999_999];

/// Times, sorted, ns.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    sorted: Vec<i64>,
    mean: f64,
    variance: f64,
}

/// A distribution in a few numbers. All times are in ns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// How many.
    pub n: u64,
    /// Shortest.
    pub min_ns: i64,
    /// Longest.
    pub max_ns: i64,
    /// `max - min`: what the jitter report (§1) calls jitter.
    pub jitter_ns: i64,
    /// Mean.
    pub mean_ns: f64,
    /// Standard deviation.
    pub std_ns: f64,
    /// X-Lane's relative jitter (§6.3), `(max - min) / mean`; None for a mean that is not above 0.
    pub relative_jitter: Option<f64>,
    /// Pairs of a share and the time that this share does not exceed, up to (1, max).
    pub percentiles: Vec<(f64, i64)>,
}

/// A histogram with bins of growing width.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// Where each bin begins, and where the last one ends (inclusive), ns: one more than `counts`.
    pub edges_ns: Vec<i64>,
    /// How many fell into each bin.
    pub counts: Vec<u64>,
}

impl Distribution {
    /// The distribution of these times.
    pub fn new(mut values: Vec<i64>) -> Self {
        values.sort_unstable();
        let n = values.len().max(1) as f64;
        // Summed up relative to the median, so that large absolute values do not cost precision.
        let centre = values.get(values.len() / 2).copied().unwrap_or(0);
        let (mut sum, mut squares) = (0.0, 0.0);
        for &v in &values {
            let d = (i128::from(v) - i128::from(centre)) as f64;
            sum += d;
            squares += d * d;
        }
        let off = sum / n;
        let variance = if values.len() < 2 { 0.0 } else { ((squares - n * off * off) / (n - 1.0)).max(0.0) };
        Distribution { sorted: values, mean: centre as f64 + off, variance }
    }

    /// How many.
    pub fn n(&self) -> usize {
        self.sorted.len()
    }

    /// All times, sorted.
    pub fn sorted(&self) -> &[i64] {
        &self.sorted
    }

    /// Shortest time; None without times.
    pub fn min(&self) -> Option<i64> {
        self.sorted.first().copied()
    }

    /// Longest time; None without times.
    pub fn max(&self) -> Option<i64> {
        self.sorted.last().copied()
    }

    /// Mean, ns.
    pub fn mean(&self) -> f64 {
        self.mean
    }

    /// Variance (of the sample), ns squared.
    pub fn variance(&self) -> f64 {
        self.variance
    }

    /// The smallest time that a share `q` of all does not exceed; None without times.
    pub fn quantile(&self, q: f64) -> Option<i64> {
        let rank = (q.clamp(0.0, 1.0) * self.n() as f64).ceil() as usize;
        self.sorted.get(rank.clamp(1, self.n().max(1)) - 1).copied()
    }

    /// How many exceed `ns`.
    pub fn above(&self, ns: i64) -> usize {
        self.n() - self.sorted.partition_point(|&v| v <= ns)
    }

    /// The distribution in a few numbers; None without times.
    pub fn summary(&self) -> Option<Summary> {
        let (min_ns, max_ns) = (self.min()?, self.max()?);
        let enough = |q: &&f64| (1.0 - **q) * self.n() as f64 >= 1.0;
        let mut percentiles: Vec<_> =
            PERCENTILES.iter().filter(enough).filter_map(|&q| Some((q, self.quantile(q)?))).collect();
        percentiles.push((1.0, max_ns));
        let jitter_ns = max_ns.saturating_sub(min_ns);
        Some(Summary {
            n: self.n() as u64,
            min_ns,
            max_ns,
            jitter_ns,
            mean_ns: self.mean,
            std_ns: self.variance.sqrt(),
            relative_jitter: (self.mean > 0.0).then(|| jitter_ns as f64 / self.mean),
            percentiles,
        })
    }

    /// A histogram with at most `bins` bins. Their widths start at 1% of the interquartile range and grow
    /// with the distance from the minimum, so that both the baseline and the tail are visible.
    pub fn histogram(&self, bins: usize) -> Histogram {
        let (Some(min), Some(max), true) = (self.min(), self.max(), bins > 0) else {
            return Histogram { edges_ns: Vec::new(), counts: Vec::new() };
        };
        let span = max.saturating_sub(min) as f64 + 1.0;
        let body = self.quantile(0.75).unwrap_or(max).saturating_sub(self.quantile(0.25).unwrap_or(min)) as f64;
        let scale = body.max(1.0).min(span);
        // edge(x) = scale * (exp(x * rate) - 1): linear for the body, logarithmic beyond.
        let rate = (span / scale).ln_1p();
        let mut edges = vec![min];
        for i in 1..bins {
            let edge = min.saturating_add((scale * (rate * i as f64 / bins as f64).exp_m1()) as i64);
            if edge > edges[edges.len() - 1] && edge < max {
                edges.push(edge);
            }
        }
        let starts: Vec<usize> = edges.iter().map(|&e| self.sorted.partition_point(|&v| v < e)).collect();
        let ends = starts.iter().skip(1).copied().chain([self.n()]);
        let counts = starts.iter().zip(ends).map(|(s, e)| (e - s) as u64).collect();
        edges.push(max);
        Histogram { edges_ns: edges, counts }
    }

    /// At most `points` (at least 2) points of the cumulative distribution, each a time and the share of all
    /// times that do not exceed it. Half of the points are evenly spread, and half are ever closer to the
    /// maximum.
    pub fn cdf(&self, points: usize) -> Vec<(i64, f64)> {
        let n = self.n();
        if n == 0 {
            return Vec::new();
        }
        let even = points.max(2).div_ceil(2);
        let tail = points.max(2) - even;
        let mut ranks: Vec<usize> = (0..even).map(|i| (n - 1) * i / even).collect();
        ranks.extend((0..tail).map(|i| n - (n as f64).powf(1.0 - (i + 1) as f64 / tail as f64).round() as usize));
        ranks.sort_unstable();
        ranks.dedup();
        let mut cdf: Vec<(i64, f64)> = ranks.iter().map(|&r| (self.sorted[r], (r + 1) as f64 / n as f64)).collect();
        // One point per time: the highest.
        cdf.reverse();
        cdf.dedup_by_key(|p| p.0);
        cdf.reverse();
        for (ns, share) in &mut cdf {
            *share = 1.0 - self.above(*ns) as f64 / n as f64;
        }
        cdf
    }
}
