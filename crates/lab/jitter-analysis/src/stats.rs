// SPDX-License-Identifier: Apache-2.0
//! A run in numbers, for a report or for a bound.
//!
//! - [`Measure`] and [`series`]: a time per packet, from its four stamps.
//! - [`Distribution`], [`Summary`], [`Histogram`]: distributions up to the maximum.
//! - [`violation()`]: X-Lane's metric; [`tail_bound`]: a bound by extreme-value statistics.
//! - [`thin`]: fewer points for a plot, with all extremes.
//! - [`RunStats::of`]: all of these.

mod distribution;
mod measure;
mod plot;
mod tail;
mod violation;

pub use distribution::{Distribution, Histogram, PERCENTILES, Summary};
pub use measure::{Measure, Reference, Series, series};
pub use plot::{Point, thin};
pub use tail::{
    CLUSTER_GAP, CLUSTERS_MIN, EXCEEDANCES, FIT_LEVEL, NoTail, SHAPE_MAX, SHARE_MAX, TailBound, TailOptions, tail_bound,
};
pub use violation::{TABLE_FACTOR, TABLE_PACKETS, Violation, table_violation, violation};

use crate::clocks::{Aligned, ClockMoves};
use crate::sample::{Fault, MISSING, Restart, RunInfo, Samples, Stamp};
use serde::{Deserialize, Serialize};

/// What to compute.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StatsOptions {
    /// A packet counts as late if it is sent more than this after it was due, ns; None means a tenth of the
    /// sending interval.
    pub late_after_ns: Option<i64>,
    /// Number of bins of a histogram.
    pub bins: usize,
    /// Number of points of a cumulative distribution.
    pub cdf_points: usize,
    /// Number of buckets of a plot: half of its number of points.
    pub plot_buckets: usize,
    /// Options of the extreme-value bound.
    pub tail: TailOptions,
}

impl Default for StatsOptions {
    fn default() -> Self {
        StatsOptions {
            late_after_ns: None,
            bins: 100,
            cdf_points: 200,
            plot_buckets: 2000,
            tail: TailOptions::default(),
        }
    }
}

/// Packets sent late (never hidden: their lateness is in [`Measure::SendLateness`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LateSends {
    /// Sent more than this after they were due, ns.
    pub after_ns: i64,
    /// How many.
    pub packets: u64,
    /// Lateness of the latest, ns; 0 without packets.
    pub max_ns: i64,
}

/// One measure in numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasureStats {
    /// The measure.
    pub measure: Measure,
    /// What its values are relative to.
    pub reference: Reference,
    /// Packets left out because of a clock fault.
    pub impossible: u64,
    /// None without values.
    pub summary: Option<Summary>,
    /// Histogram of its values.
    pub histogram: Histogram,
    /// Cumulative distribution: pairs of a time in ns and the share that does not exceed it.
    pub cdf: Vec<(i64, f64)>,
    /// Values by packet number, thinned.
    pub points: Vec<Point>,
    /// X-Lane's metric, as in its table 2; for latencies.
    pub violation: Option<Violation>,
    /// Extreme-value bound, or why there is none; for latencies.
    pub tail: Option<Result<TailBound, NoTail>>,
}

/// A run in numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunStats {
    /// Number of packets in the log.
    pub packets: u64,
    /// Ids between the first and the last that are not in the log: not sent, or not recorded.
    pub absent: u64,
    /// Packets without a send stamp, which were due but not sent.
    pub unsent: u64,
    /// Packets sent and answered.
    pub answered: u64,
    /// Packets sent, but no answer came.
    pub lost: u64,
    /// How many of these B is known to have received, so that the answer was lost.
    pub lost_after_b: u64,
    /// lost / sent; 0 if none was sent.
    pub loss: f64,
    /// Packets sent late.
    pub late: LateSends,
    /// The first clock faults.
    pub faults: Vec<Fault>,
    /// Number of all clock faults.
    pub faults_total: u64,
    /// How the two hosts' clocks moved against each other, which is taken out of pings and pongs; None if
    /// they have one clock.
    pub clocks: Option<ClockMoves>,
    /// The pongs that answered; more than one if the pong restarted.
    pub pongs: Vec<Restart>,
    /// In the order of [`Measure::ALL`].
    pub measures: Vec<MeasureStats>,
}

impl RunStats {
    /// The statistics of a run.
    pub fn of(info: &RunInfo, samples: &Samples, options: &StatsOptions) -> RunStats {
        let [ts1, ts2, _, ts4] = Stamp::ALL.map(|s| samples.stamps(s));
        let (mut unsent, mut lost, mut lost_after_b) = (0, 0, 0);
        for row in 0..samples.len() {
            match (ts1[row], ts4[row]) {
                (MISSING, _) => unsent += 1,
                (_, MISSING) => {
                    lost += 1;
                    lost_after_b += u64::from(ts2[row] != MISSING);
                }
                _ => {}
            }
        }
        let packets = samples.len() as u64;
        let gap = |w: &[u64]| w[1].saturating_sub(w[0]).saturating_sub(1);
        let absent = samples.ids().windows(2).map(gap).fold(0, u64::saturating_add);
        let after_ns = options.late_after_ns.unwrap_or((info.period_ns / 10).min(i64::MAX as u64) as i64);
        let mut late = LateSends { after_ns, packets: 0, max_ns: 0 };
        let aligned = Aligned::of(info, samples);
        let measures = Measure::ALL
            .iter()
            .map(|&measure| {
                let series = measure::aligned_series(info, samples, &aligned, measure);
                if measure == Measure::SendLateness {
                    late.packets = series.values.iter().filter(|&&v| v > after_ns).count() as u64;
                    late.max_ns = series.values.iter().copied().max().unwrap_or(0).max(0);
                }
                MeasureStats::of(info, samples, measure, series, options)
            })
            .collect();
        RunStats {
            packets,
            absent,
            unsent,
            answered: packets - unsent - lost,
            lost,
            lost_after_b,
            loss: if packets > unsent { lost as f64 / (packets - unsent) as f64 } else { 0.0 },
            late,
            faults: samples.faults().to_vec(),
            faults_total: samples.faults_total(),
            clocks: aligned.moves,
            pongs: samples.restarts().to_vec(),
            measures,
        }
    }

    /// The statistics of one measure.
    pub fn measure(&self, measure: Measure) -> Option<&MeasureStats> {
        self.measures.iter().find(|m| m.measure == measure)
    }
}

impl MeasureStats {
    fn of(info: &RunInfo, samples: &Samples, measure: Measure, series: Series, options: &StatsOptions) -> Self {
        let reference = measure.reference(info);
        let ids = samples.ids();
        let points = series.rows.iter().zip(&series.values).map(|(&row, &ns)| Point { id: ids[row as usize], ns });
        let points = thin(points, options.plot_buckets);
        let latency = !matches!(measure, Measure::Successive(_) | Measure::SendLateness);
        let tail = latency.then(|| tail_bound(&series.values, &options.tail));
        let Series { values, impossible, rows } = series;
        drop(rows);
        let all = Distribution::new(values);
        MeasureStats {
            measure,
            reference,
            impossible,
            summary: all.summary(),
            histogram: all.histogram(options.bins),
            cdf: all.cdf(options.cdf_points),
            points,
            // Relative to an arbitrary zero, ten times a percentile means nothing.
            violation: (latency && reference == Reference::Absolute).then(|| table_violation(&all)).flatten(),
            tail,
        }
    }
}

#[cfg(test)]
mod tests;
