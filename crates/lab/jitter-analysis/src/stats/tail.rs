// SPDX-License-Identifier: Apache-2.0
//! How late can a packet be that has not been seen yet? Answered by the method of peaks over a threshold.
//!
//! Above a high threshold, the excess of independent, identically distributed times follows a generalized
//! Pareto distribution (GPD) with shape `xi` and scale `sigma`. Late packets come in clusters, so exceedances
//! at most [`CLUSTER_GAP`] packets apart count as one cluster, with its maximum. The GPD is fitted to the
//! clusters' excesses by the quasi-likelihood estimator of Zhang and Stephens (2009), which exists for all
//! data. The maximum of the next `N` packets exceeds the following level with probability `risk`, where
//! `rate` is the number of clusters per packet:
//!
//! ```text
//! level = u + sigma / xi * (y^-xi - 1),   y = -ln(1 - risk) / (N * rate)
//! ```
//!
//! **Threshold:** the lowest of those given by the numbers of [`EXCEEDANCES`] above which an Anderson-Darling
//! test (against resamples of the fitted distribution) does not reject the fit at [`FIT_LEVEL`].
//! **Confidence:** percentiles over resamples of the clusters, whose number is resampled too. Far beyond what
//! was measured, the intervals are somewhat too narrow: 90% where 95% are asked for, with exponential times
//! extrapolated 20-fold.

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution as _, Poisson};
use serde::{Deserialize, Serialize};

/// Numbers of exceedances for which thresholds are tried, before they are counted by clusters.
pub const EXCEEDANCES: [usize; 9] = [2000, 1400, 1000, 700, 500, 350, 250, 175, 120];
/// At most this share of all packets counts as tail: a twentieth of the share at which independent peaks
/// would merge into clusters.
pub const SHARE_MAX: f64 = 0.01;
/// Exceedances at most this many packets apart are one cluster.
pub const CLUSTER_GAP: usize = 5;
/// Minimum number of clusters for a fit.
pub const CLUSTERS_MIN: usize = 50;
/// A fit is rejected if a smaller share than this of its own resamples fits worse.
pub const FIT_LEVEL: f64 = 0.1;
/// From this shape on, the distribution has no mean, and no level means much.
pub const SHAPE_MAX: f64 = 1.0;
/// Number of resamples for the test of the fit.
const FIT_RESAMPLES: usize = 99;

/// What to compute.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TailOptions {
    /// The number of future packets that the bound is for.
    pub packets: u64,
    /// Probability that one of them exceeds the level.
    pub risk: f64,
    /// Confidence of the interval.
    pub confidence: f64,
    /// Number of resamples for the interval.
    pub resamples: usize,
    /// Seed of the resamples.
    pub seed: u64,
}

impl Default for TailOptions {
    fn default() -> Self {
        TailOptions { packets: 1_000_000, risk: 0.01, confidence: 0.95, resamples: 400, seed: 1 }
    }
}

/// A bound by extreme-value statistics.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TailBound {
    /// The options asked for.
    pub options: TailOptions,
    /// The level that is exceeded with probability `risk` among the next `packets`, ns. Never below the
    /// threshold.
    pub level_ns: f64,
    /// Confidence interval of the level, ns.
    pub interval_ns: (f64, f64),
    /// Threshold, ns.
    pub threshold_ns: i64,
    /// Number of clusters above it.
    pub clusters: usize,
    /// Number of single packets above it.
    pub exceedances: usize,
    /// Shape `xi`: below 0 there is a largest possible value, above 0 a heavy tail.
    pub shape: f64,
    /// Scale, ns.
    pub scale_ns: f64,
    /// Where the distribution ends, if it does (shape below 0), ns.
    pub end_ns: Option<f64>,
    /// Share of the fit's own resamples that fit worse than the data.
    pub fit: f64,
    /// The assumptions under which the bound holds.
    pub assumptions: Vec<String>,
}

/// Why there is no such bound.
#[derive(Debug, Clone, PartialEq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoTail {
    /// There are too few peaks in the tail.
    #[error(
        "only {clusters} separate peaks above any threshold tried; at least {CLUSTERS_MIN} are needed: measure longer"
    )]
    TooFew {
        /// The largest number of clusters found.
        clusters: usize,
    },
    /// No threshold fits.
    #[error(
        "above none of the thresholds tried do the peaks follow a generalized Pareto distribution (best fit {best:.3}, \
         {FIT_LEVEL} needed): several causes mixed, or not stationary; look at the families first"
    )]
    BadFit {
        /// Best share of resamples that fit worse.
        best: f64,
    },
    /// The distribution fits, but gives no useful bound.
    #[error("the tail is so heavy (shape {shape:.2}, at least {SHAPE_MAX}) that no level bounds it")]
    TooHeavy {
        /// Fitted shape.
        shape: f64,
    },
    /// Options that make no sense.
    #[error("risk and confidence must be between 0 and 1, and packets and resamples above 0")]
    Options,
}

/// Fitted generalized Pareto distribution.
#[derive(Debug, Clone, Copy)]
struct Pareto {
    shape: f64,
    scale: f64,
}

impl Pareto {
    /// Fits sorted positive excesses by the method of Zhang and Stephens (2009).
    fn fit(x: &[f64]) -> Pareto {
        let n = x.len() as f64;
        let grid = 20 + n.sqrt() as usize;
        let quartile = x[((n / 4.0 + 0.5) as usize).clamp(1, x.len()) - 1].max(f64::MIN_POSITIVE);
        let last = x[x.len() - 1];
        let mean_log = |theta: f64| x.iter().map(|&x| (-theta * x).ln_1p()).sum::<f64>() / n;
        let mut theta = Vec::with_capacity(grid);
        let mut likelihood = Vec::with_capacity(grid);
        for j in 1..=grid {
            let t = 1.0 / last + (1.0 - (grid as f64 / (j as f64 - 0.5)).sqrt()) / (3.0 * quartile);
            let k = -mean_log(t);
            theta.push(t);
            likelihood.push(n * ((t / k).ln() + k - 1.0));
        }
        let best = likelihood.iter().copied().filter(|l| l.is_finite()).fold(f64::MIN, f64::max);
        let weights: Vec<f64> = likelihood.iter().map(|l| if l.is_finite() { (l - best).exp() } else { 0.0 }).collect();
        let all: f64 = weights.iter().sum();
        let t = theta.iter().zip(&weights).map(|(t, w)| t * w).sum::<f64>() / all;
        let shape = mean_log(t);
        Pareto { shape, scale: -shape / t }
    }

    /// Share of excesses above `x`.
    fn above(&self, x: f64) -> f64 {
        if self.shape.abs() < 1e-9 {
            return (-x / self.scale).exp();
        }
        (1.0 + self.shape * x / self.scale).max(0.0).powf(-1.0 / self.shape)
    }

    /// Excess above which a share `p` lies.
    fn level(&self, p: f64) -> f64 {
        if self.shape.abs() < 1e-9 {
            -self.scale * p.ln()
        } else {
            self.scale / self.shape * (p.powf(-self.shape) - 1.0)
        }
    }

    fn draw(&self, n: usize, rng: &mut impl Rng) -> Vec<f64> {
        let mut x: Vec<f64> = (0..n).map(|_| self.level(1.0 - rng.random::<f64>()).max(f64::MIN_POSITIVE)).collect();
        x.sort_unstable_by(f64::total_cmp);
        x
    }

    /// Anderson-Darling distance of sorted excesses.
    fn distance(&self, x: &[f64]) -> f64 {
        let n = x.len();
        let cut = |p: f64| p.clamp(1e-12, 1.0 - 1e-12);
        let sum: f64 = (0..n)
            .map(|i| {
                let (below, above) = (cut(1.0 - self.above(x[i])), cut(self.above(x[n - 1 - i])));
                (2 * i + 1) as f64 * (below.ln() + above.ln())
            })
            .sum();
        -(n as f64) - sum / n as f64
    }

    fn fit_of(&self, x: &[f64], rng: &mut impl Rng) -> f64 {
        let distance = self.distance(x);
        let worse = (0..FIT_RESAMPLES)
            .filter(|_| {
                let again = self.draw(x.len(), rng);
                Pareto::fit(&again).distance(&again) > distance
            })
            .count();
        (worse + 1) as f64 / (FIT_RESAMPLES + 1) as f64
    }

    fn bound(&self, threshold: i64, rate: f64, options: &TailOptions) -> f64 {
        let y = -(-options.risk).ln_1p() / (options.packets as f64 * rate);
        threshold as f64 + if y < 1.0 { self.level(y) } else { 0.0 }
    }
}

/// The clusters' excesses above a threshold, sorted, and the number of packets that exceed it.
fn clusters(values: &[i64], threshold: i64) -> (Vec<f64>, usize) {
    let mut peaks: Vec<f64> = Vec::new();
    let (mut exceedances, mut last) = (0, None);
    for (i, &v) in values.iter().enumerate() {
        if v <= threshold {
            continue;
        }
        exceedances += 1;
        let excess = (i128::from(v) - i128::from(threshold)) as f64;
        match (peaks.last_mut(), last) {
            (Some(peak), Some(before)) if i - before <= CLUSTER_GAP => *peak = peak.max(excess),
            _ => peaks.push(excess),
        }
        last = Some(i);
    }
    peaks.sort_unstable_by(f64::total_cmp);
    (peaks, exceedances)
}

/// The bound for these times in ns, which are in the order of the packets.
pub fn tail_bound(values: &[i64], options: &TailOptions) -> Result<TailBound, NoTail> {
    let share = |p: f64| p > 0.0 && p < 1.0;
    if !share(options.risk) || !share(options.confidence) || options.packets == 0 || options.resamples == 0 {
        return Err(NoTail::Options);
    }
    let mut rng = ChaCha8Rng::seed_from_u64(options.seed);
    let mut scratch = values.to_vec();
    let (mut most, mut best, mut end) = (0, 0.0_f64, scratch.len());
    for wanted in EXCEEDANCES {
        if wanted as f64 > SHARE_MAX * values.len() as f64 {
            continue;
        }
        // The next threshold is within the part above the last one.
        let rank = values.len() - wanted - 1;
        let from = values.len() - end;
        let threshold = *scratch[from..].select_nth_unstable(rank - from).1;
        end = values.len() - rank;
        let (peaks, exceedances) = clusters(values, threshold);
        most = most.max(peaks.len());
        if peaks.len() < CLUSTERS_MIN {
            continue;
        }
        let pareto = Pareto::fit(&peaks);
        let fit = pareto.fit_of(&peaks, &mut rng);
        best = best.max(fit);
        if fit < FIT_LEVEL {
            continue;
        }
        if pareto.shape >= SHAPE_MAX {
            return Err(NoTail::TooHeavy { shape: pareto.shape });
        }
        let rate = peaks.len() as f64 / values.len() as f64;
        return Ok(TailBound {
            options: *options,
            level_ns: pareto.bound(threshold, rate, options),
            interval_ns: interval(&peaks, threshold, values.len(), options, &mut rng),
            threshold_ns: threshold,
            clusters: peaks.len(),
            exceedances,
            shape: pareto.shape,
            scale_ns: pareto.scale,
            end_ns: (pareto.shape < 0.0).then(|| threshold as f64 - pareto.scale / pareto.shape),
            fit,
            assumptions: assumptions(values.len(), options),
        });
    }
    if most < CLUSTERS_MIN { Err(NoTail::TooFew { clusters: most }) } else { Err(NoTail::BadFit { best }) }
}

fn interval(peaks: &[f64], threshold: i64, n: usize, options: &TailOptions, rng: &mut impl Rng) -> (f64, f64) {
    let poisson = Poisson::new(peaks.len() as f64);
    let mut levels: Vec<f64> = (0..options.resamples)
        .map(|_| {
            let count = poisson.as_ref().map_or(peaks.len(), |p| p.sample(rng) as usize).max(CLUSTERS_MIN / 2);
            let mut again: Vec<f64> = (0..count).map(|_| peaks[rng.random_range(0..peaks.len())]).collect();
            again.sort_unstable_by(f64::total_cmp);
            Pareto::fit(&again).bound(threshold, count as f64 / n as f64, options)
        })
        .collect();
    levels.sort_unstable_by(f64::total_cmp);
    let at = |q: f64| levels[((levels.len() - 1) as f64 * q).round() as usize];
    let outside = (1.0 - options.confidence) / 2.0;
    (at(outside), at(1.0 - outside))
}

fn assumptions(n: usize, options: &TailOptions) -> Vec<String> {
    let mut all = vec![
        "the next packets meet the same conditions as those measured: same hosts, load and settings".to_owned(),
        format!("peaks more than {CLUSTER_GAP} packets apart are independent"),
        "above the threshold all peaks have one cause, or their mixture behaves as one".to_owned(),
    ];
    if options.packets > n as u64 {
        let factor = options.packets as f64 / n as f64;
        all.push(format!("the tail goes on as it began, {factor:.1} times as far as was measured"));
    }
    all
}
