// SPDX-License-Identifier: Apache-2.0
//! The plots of a report, and their content.

use crate::run::html::Html;
use crate::run::measures::{self, key, meaning, title, why_none};
use crate::run::model::Run;
use crate::run::plot::{Axis, Layer, Plot, Shape, THREE, TWO, missing};
use crate::run::scale::{Scale, Unit};
use fide_jitter_analysis::Stamp;
use fide_jitter_analysis::stats::{Histogram, Measure, MeasureStats, violation};

/// Numbers of packets for which the violation probability is drawn.
pub(crate) const VIOLATION_PACKETS: [u64; 3] = [1_000, 100_000, 10_000_000];
/// The percentiles that delimit the band of most packets.
const MOST: (f64, f64) = (0.01, 0.99);
/// In comparisons of runs, neighbouring bins with fewer packets than this are joined.
const JOIN_BELOW: u64 = 5;
/// Probabilities below this are not drawn.
const PROBABILITY_MIN: f64 = 1e-9;

fn layer(shape: Shape, name: impl Into<String>, points: Vec<(f64, f64)>) -> Layer {
    Layer { shape, look: 0, run: None, name: name.into(), points }
}

fn packets(stats: &MeasureStats) -> Scale {
    let (first, last) = (stats.points.first().map_or(0, |p| p.id), stats.points.last().map_or(1, |p| p.id));
    let room = (last.saturating_sub(first) as f64 * 0.01).max(1.0);
    Scale::linear((first as f64 - room).max(-1.0), last as f64 + room)
}

/// The band of most packets, because thinned dots show only the extremes.
fn most(stats: &MeasureStats, less: f64) -> Layer {
    let at = |q: f64| stats.summary.as_ref().and_then(|s| s.percentiles.iter().find(|p| p.0 == q));
    let (first, last) = (stats.points.first(), stats.points.last());
    let corners = at(MOST.0).zip(at(MOST.1)).zip(first.zip(last));
    let points = corners.map_or(Vec::new(), |((low, high), (first, last))| {
        vec![(first.id as f64, low.1 as f64 - less), (last.id as f64, high.1 as f64 - less)]
    });
    layer(Shape::Band, "98% of the packets", points)
}

/// One panel of the jitter report's figure 1.
pub(crate) fn successive(run: &Run, index: usize, stamp: Stamp, html: &mut Html) {
    let measure = Measure::Successive(stamp);
    let (key, name) =
        (format!("{}-{index}", key(measure)), format!("{}: difference to the packet before", stamp.name()));
    let Some(stats) = measures::of(run, measure) else {
        return missing(html, &key, &name, &why_none(run, measure));
    };
    let period = run.info.period_ns as f64;
    let points: Vec<(f64, f64)> = stats.points.iter().map(|p| (p.id as f64, p.ns as f64 - period)).collect();
    let values: Vec<f64> = points.iter().map(|p| p.1).collect();
    let y = Scale::around(0.0, &values);
    let words = if y.inner().is_some() { "difference (shaded: logarithmic)" } else { "difference" };
    Plot {
        key,
        x: Axis::new(packets(stats), Unit::Packet, "packet id"),
        y: Axis::new(y, Unit::Deviation(period), words),
        layers: vec![most(stats, period), layer(Shape::Dots, meaning(measure, run), points)],
        title: name,
        size: TWO,
    }
    .write(html);
}

/// A measure over time, its histogram and its tail.
pub(crate) fn measure(run: &Run, index: usize, measure: Measure, html: &mut Html) {
    let name = title(measure);
    let Some(stats) = measures::of(run, measure) else {
        return missing(html, &format!("{}-{index}", key(measure)), &name, &why_none(run, measure));
    };
    let what = if measures::relative(measure, run) { "above the run's baseline" } else { "time" };
    let points: Vec<(f64, f64)> = stats.points.iter().map(|p| (p.id as f64, p.ns as f64)).collect();
    let y = Scale::times(&points.iter().map(|p| p.1).collect::<Vec<_>>());
    Plot {
        key: format!("{}-time-{index}", key(measure)),
        title: format!("{name}, packet by packet"),
        size: THREE,
        x: Axis::new(packets(stats), Unit::Packet, "packet id"),
        y: Axis::new(y, Unit::Time, what),
        layers: vec![most(stats, 0.0), layer(Shape::Dots, &name, points)],
    }
    .write(html);

    let x = Scale::spread(&[&stats.cdf]);
    let (bars, highest) = bars(&stats.histogram);
    Plot {
        key: format!("{}-histogram-{index}", key(measure)),
        title: format!("{name}, histogram"),
        size: THREE,
        x: Axis::new(x, Unit::Time, what),
        y: Axis::new(Scale::log(0.6, highest * 1.5), Unit::Count, "packets per bin"),
        layers: vec![layer(Shape::Bars, &name, bars)],
    }
    .write(html);

    let points = exceedance(&stats.cdf);
    Plot {
        key: format!("{}-tail-{index}", key(measure)),
        title: format!("{name}, share of packets that take longer"),
        size: THREE,
        x: Axis::new(x, Unit::Time, what),
        y: Axis::new(shares(points.iter()), Unit::Share, "1 - F, up to the maximum"),
        layers: vec![layer(Shape::Line, &name, points)],
    }
    .write(html);
}

fn bars(histogram: &Histogram) -> (Vec<(f64, f64)>, f64) {
    let counts = histogram.counts.iter().copied().chain([0]);
    let bars = histogram.edges_ns.iter().zip(counts).map(|(&edge, n)| (edge as f64, n as f64)).collect();
    (bars, histogram.counts.iter().copied().max().unwrap_or(1).max(1) as f64)
}

/// The share of packets above each time; for the last time, the share that reaches it, because none is above
/// it.
fn exceedance(cdf: &[(i64, f64)]) -> Vec<(f64, f64)> {
    let mut reached = 1.0;
    let mut points = Vec::with_capacity(cdf.len());
    for (i, &(ns, share)) in cdf.iter().enumerate() {
        let above = if i + 1 == cdf.len() { reached } else { 1.0 - share };
        points.push((ns as f64, above));
        reached = above;
    }
    points
}

fn shares<'a>(points: impl Iterator<Item = &'a (f64, f64)>) -> Scale {
    let low = points.map(|p| p.1).filter(|p| *p > 0.0).fold(1.0, f64::min);
    Scale::log((low / 1.6).min(0.5), 1.0)
}

/// Density, as share per us, which can be compared between histograms with different bins. Bins with few
/// packets are joined, so that the line does not fall to 0 between single packets.
fn density(histogram: &Histogram) -> Vec<(f64, f64)> {
    let all = histogram.counts.iter().sum::<u64>().max(1) as f64;
    let mut joined: Vec<(i64, i64, u64)> = Vec::new();
    for (w, &n) in histogram.edges_ns.windows(2).zip(&histogram.counts) {
        match joined.last_mut() {
            Some(bin) if bin.2 < JOIN_BELOW => (bin.1, bin.2) = (w[1], bin.2 + n),
            _ => joined.push((w[0], w[1], n)),
        }
    }
    if let [.., before, last] = joined.as_mut_slice()
        && last.2 < JOIN_BELOW
    {
        (before.1, before.2) = (last.1, before.2 + last.2);
        joined.pop();
    }
    let height = |&(from, to, n): &(i64, i64, u64)| n as f64 / all / (to.saturating_sub(from).max(1) as f64 / 1e3);
    joined.iter().flat_map(|bin| [(bin.0 as f64, height(bin)), (bin.1 as f64, height(bin))]).collect()
}

/// All runs in one plot: the densities, and the tails.
pub(crate) fn overlay(runs: &[Run], measure: Measure, html: &mut Html) {
    let all: Vec<(usize, &Run, &MeasureStats)> =
        runs.iter().enumerate().filter_map(|(i, run)| Some((i, run, measures::of(run, measure)?))).collect();
    // Absolute times and times above a baseline must not be compared.
    let absolute = all.iter().any(|(_, run, _)| !measures::relative(measure, run));
    let used: Vec<_> = all.iter().filter(|(_, run, _)| !absolute || !measures::relative(measure, run)).collect();
    let left: Vec<String> =
        (0..runs.len()).filter(|i| used.iter().all(|u| u.0 != *i)).map(|i| runs[i].name.clone()).collect();
    let name = title(measure);
    if used.is_empty() {
        return missing(html, &format!("{}-all", key(measure)), &name, "no run has values");
    }
    let note = match left.len() {
        0 => String::new(),
        1 => format!(" (without {}: see there)", left[0]),
        n => format!(" (without {n} runs: see there)"),
    };
    let what = if absolute { "time" } else { "above each run's baseline" };
    let x = Scale::spread(&used.iter().map(|u| u.2.cdf.as_slice()).collect::<Vec<_>>());
    let layers = |points: &dyn Fn(&MeasureStats) -> Vec<(f64, f64)>| -> Vec<Layer> {
        let of = |&&(i, run, stats): &&(usize, &Run, &MeasureStats)| {
            let name = format!("{}. {}", i + 1, run.name);
            Layer { look: i, run: Some(i), ..layer(Shape::Line, name, points(stats)) }
        };
        used.iter().map(of).collect()
    };
    let layers_of_density = layers(&|stats| density(&stats.histogram));
    let values = || layers_of_density.iter().flat_map(|l| &l.points).map(|p| p.1).filter(|d| *d > 0.0);
    let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    let y = Scale::log(low / 2.0, high * 2.0);
    Plot {
        key: format!("{}-histogram-all", key(measure)),
        title: format!("{name}, histograms{note}"),
        size: TWO,
        x: Axis::new(x, Unit::Time, what),
        y: Axis::new(y, Unit::Density, "share of the packets per us"),
        layers: layers_of_density.clone(),
    }
    .write(html);
    let tails = layers(&|stats| exceedance(&stats.cdf));
    let y = shares(tails.iter().flat_map(|l| &l.points));
    Plot {
        key: format!("{}-tail-all", key(measure)),
        title: format!("{name}, share of packets that take longer{note}"),
        size: TWO,
        x: Axis::new(x, Unit::Time, what),
        y: Axis::new(y, Unit::Share, "1 - F, up to the maximum"),
        layers: tails,
    }
    .write(html);
}

/// X-Lane's violation probability against the limit, for round trips.
pub(crate) fn violations(run: &Run, index: usize, html: &mut Html) {
    let (key, title) = (format!("violation-{index}"), "Round trip above a limit among the next packets".to_owned());
    let Some(summary) = measures::of(run, Measure::RoundTrip).and_then(|m| m.summary.as_ref()) else {
        return missing(html, &key, &title, &why_none(run, Measure::RoundTrip));
    };
    if summary.n < 2 || summary.std_ns <= 0.0 {
        return missing(html, &key, &title, "all packets took the same time, so the metric is 0 for every limit");
    }
    // From the limit that a packet certainly exceeds to one that it hardly ever exceeds.
    let (low, far) = (summary.mean_ns + summary.std_ns, summary.mean_ns + summary.std_ns / PROBABILITY_MIN.sqrt());
    let high = far.min(100.0 * summary.max_ns as f64).max(2.0 * low);
    const STEPS: i32 = 120;
    let limit = |i: i32| low * (high / low).powf(f64::from(i) / f64::from(STEPS));
    let layers: Vec<Layer> = VIOLATION_PACKETS
        .iter()
        .enumerate()
        .map(|(look, &n)| {
            let at = |limit: f64| violation(summary.mean_ns, summary.std_ns.powi(2), limit, n).any;
            let points: Vec<_> =
                (0..=STEPS).map(limit).map(|l| (l, at(l))).filter(|p| p.1 >= PROBABILITY_MIN).collect();
            let name = format!("next {} packets", crate::units::count(n));
            Layer { look, ..layer(Shape::Line, name, points) }
        })
        .collect();
    let lowest = layers.iter().flat_map(|l| &l.points).map(|p| p.1).fold(0.1, f64::min);
    Plot {
        key,
        title,
        size: TWO,
        x: Axis::new(Scale::log(low, high), Unit::Time, "limit"),
        y: Axis::new(Scale::log(lowest / 1.5, 1.3), Unit::Share, "probability, at most"),
        layers,
    }
    .write(html);
}
