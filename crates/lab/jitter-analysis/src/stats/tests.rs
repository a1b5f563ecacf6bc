// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::sample::{Sample, Schedule};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn info() -> RunInfo {
    RunInfo { period_ns: 1000, same_clock: true, ..RunInfo::default() }
}

fn run(rows: impl IntoIterator<Item = (u64, [i64; 4])>) -> Samples {
    let mut samples = Samples::new();
    rows.into_iter().for_each(|(id, ts)| samples.push(&Sample::new(id, ts), 1000));
    samples
}

fn steady(n: i64) -> Samples {
    run((0..n).map(|i| (i as u64, [i * 1000, i * 1000 + 10 + i % 3, i * 1000 + 15 + i % 3, i * 1000 + 30])))
}

#[test]
fn measures_of_a_steady_run() {
    let stats = RunStats::of(&info(), &steady(1000), &StatsOptions::default());
    assert_eq!((stats.packets, stats.answered, stats.lost, stats.late.packets), (1000, 1000, 0, 0));
    let summary = |m| stats.measure(m).unwrap().summary.clone().unwrap();
    assert_eq!(summary(Measure::Successive(Stamp::Ts1)).jitter_ns, 0);
    assert_eq!(summary(Measure::Successive(Stamp::Ts1)).n, 999);
    let one_way = summary(Measure::AToB);
    assert_eq!((one_way.min_ns, one_way.max_ns, one_way.jitter_ns), (10, 12, 2));
    assert_eq!(summary(Measure::Network).max_ns, 25);
    assert_eq!(summary(Measure::RoundTrip).relative_jitter, Some(0.0));
}

#[test]
fn no_packet_and_one_packet() {
    for n in [0, 1] {
        let stats = RunStats::of(&info(), &steady(n), &StatsOptions::default());
        assert_eq!(stats.packets, n as u64);
        assert!(stats.measures.iter().all(|m| m.summary.as_ref().is_none_or(|s| s.n == 1)));
        assert!(matches!(stats.measure(Measure::RoundTrip).unwrap().tail, Some(Err(NoTail::TooFew { .. }))));
    }
}

#[test]
fn loss_late_sends_and_absent_ids_are_counted() {
    let samples = run([
        (0, [0, 10, 15, 30]),
        (1, [1500, 1510, 1515, MISSING]),
        (2, [2000, MISSING, MISSING, MISSING]),
        (3, [MISSING; 4]),
        (6, [6000, 6010, 6015, 6030]),
    ]);
    let stats = RunStats::of(&info(), &samples, &StatsOptions::default());
    assert_eq!((stats.lost, stats.lost_after_b, stats.unsent, stats.absent, stats.answered), (2, 1, 1, 2, 2));
    assert_eq!(stats.late, LateSends { after_ns: 100, packets: 1, max_ns: 500 });
    let relative = RunInfo { schedule: Schedule::Relative, ..info() };
    let stats = RunStats::of(&relative, &samples, &StatsOptions::default());
    assert_eq!((stats.late.packets, stats.late.max_ns), (1, 500));
}

#[test]
fn clocks_that_differ_jump_or_go_back() {
    let other = RunInfo { same_clock: false, ..info() };
    let offset = -5_000_000_000;
    // B's clock is behind, and 100 ppm slow.
    let b = |i: i64, t: i64| offset + t - i / 10;
    let samples = run((0..20_000).map(|i| {
        let t = i * 1000 + if i % 1000 == 3 { 400 } else { 0 };
        (i as u64, [i * 1000, b(i, t + 10), b(i, t + 15), t + 30])
    }));
    let stats = RunStats::of(&other, &samples, &StatsOptions::default());
    let one_way = stats.measure(Measure::AToB).unwrap();
    assert_eq!(one_way.reference, Reference::Baseline);
    let jitter = one_way.summary.as_ref().unwrap().jitter_ns;
    assert!((390..430).contains(&jitter), "{jitter}");
    assert_eq!(one_way.violation, None);

    let back = run([(0, [9000, 9010, 9015, 9030]), (1, [5000, 5010, 5015, 5030]), (2, [6000, 6010, 6005, 5900])]);
    let stats = RunStats::of(&info(), &back, &StatsOptions::default());
    assert_eq!(stats.measure(Measure::Successive(Stamp::Ts1)).unwrap().impossible, 1);
    assert_eq!(stats.measure(Measure::AtB).unwrap().impossible, 1);
    assert_eq!(stats.measure(Measure::RoundTrip).unwrap().impossible, 1);
    assert!(stats.faults_total > 0);
}

#[test]
fn a_new_pong_does_not_make_a_difference() {
    let mut samples = run([(0, [0, 10, 15, 30])]);
    samples.restart(1);
    samples.push(&Sample::new(1, [1000, 700_010, 700_015, 1030]), 1000);
    let s = series(&info(), &samples, Measure::Successive(Stamp::Ts2));
    assert_eq!((s.values.len(), s.impossible), (0, 1));
    assert_eq!(series(&info(), &samples, Measure::Successive(Stamp::Ts1)).values, [1000]);
}

#[test]
fn xlane_metric() {
    let v = violation(10.0, 4.0, 110.0, 100_000);
    assert!((v.one - 4e-4).abs() < 1e-12);
    assert!((v.any - 1.0).abs() < 1e-9);
    let v = violation(10.0, 4.0, 20_010.0, 100_000);
    assert!((v.any - (1.0 - (1.0 - 1e-8_f64).powi(100_000))).abs() < 1e-9, "{}", v.any);
    assert_eq!(violation(10.0, 4.0, 10.0, 1).any, 1.0);
    assert_eq!(violation(10.0, 4.0, 5.0, 0).any, 0.0);
    let tail = table_violation(&Distribution::new((0..1000).map(|i| 5000 + i % 10).collect())).unwrap();
    assert_eq!((tail.limit_ns, tail.packets), (50_090.0, 100_000));
}

#[test]
fn percentiles_go_up_to_the_maximum_and_no_further_than_the_samples() {
    let d = Distribution::new((1..=1000).rev().collect());
    assert_eq!(d.quantile(0.5), Some(500));
    assert_eq!(d.quantile(0.999), Some(999));
    let s = d.summary().unwrap();
    assert_eq!(s.percentiles.last(), Some(&(1.0, 1000)));
    assert!(s.percentiles.iter().all(|(q, _)| *q <= 0.999 || *q == 1.0));
    assert!((s.std_ns - 288.819).abs() < 0.01);
    let large = Distribution::new(vec![i64::MAX - 2, i64::MAX - 1, i64::MAX]);
    assert_eq!(large.variance(), 1.0);
}

fn exponential(n: usize, seed: u64) -> Vec<i64> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..n).map(|_| 5000 + (-(1.0 - rng.random::<f64>()).ln() * 1000.0) as i64).collect()
}

#[test]
fn tail_of_an_exponential_is_found() {
    let options = TailOptions { resamples: 100, ..TailOptions::default() };
    // The level exceeded with probability 0.01 among 1e6 packets: 5000 + 1000 ln(1e6 / 0.01005) = 23413.
    let (mut inside, n) = (0, 40);
    for seed in 0..n {
        let bound = tail_bound(&exponential(50_000, seed), &TailOptions { seed, ..options }).unwrap();
        assert!(bound.shape.abs() < 0.3, "{bound:?}");
        assert!(bound.clusters >= CLUSTERS_MIN && bound.exceedances >= bound.clusters && bound.fit >= FIT_LEVEL);
        inside += i32::from(bound.interval_ns.0 < 23_413.0 && 23_413.0 < bound.interval_ns.1);
    }
    // Nominal 38; resampling percentiles are known to fall somewhat short.
    assert!(inside >= 34, "{inside} of {n}");
    let again = |seed| tail_bound(&exponential(20_000, 1), &TailOptions { seed, ..options }).unwrap();
    assert_eq!(again(3), again(3));
}

#[test]
fn meaningless_tails_are_refused() {
    let options = TailOptions { resamples: 50, ..TailOptions::default() };
    assert!(matches!(tail_bound(&exponential(500, 1), &options), Err(NoTail::TooFew { .. })));
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let heavy: Vec<i64> = (0..50_000).map(|_| (1000.0 * rng.random::<f64>().powf(-2.0)) as i64).collect();
    assert!(matches!(tail_bound(&heavy, &options), Err(NoTail::TooHeavy { .. } | NoTail::BadFit { .. })));
    // Two causes: a baseline, and one value again and again.
    let two: Vec<i64> = (0..50_000).map(|i| if i % 30 == 0 { 90_000 + i % 7 } else { i % 100 }).collect();
    assert!(matches!(tail_bound(&two, &options), Err(NoTail::BadFit { .. })));
    assert_eq!(tail_bound(&two, &TailOptions { risk: 0.0, ..options }), Err(NoTail::Options));
    let same = vec![7; 10_000];
    assert!(tail_bound(&same, &options).is_err());
}

#[test]
fn stats_become_json_and_back() {
    let stats = RunStats::of(&info(), &steady(3000), &StatsOptions::default());
    let text = serde_json::to_string(&stats).unwrap();
    let back: RunStats = serde_json::from_str(&text).unwrap();
    assert_eq!(back.measures.len(), stats.measures.len());
    assert_eq!(back.measures[0].points, stats.measures[0].points);
}

proptest! {
    #[test]
    fn thinning_keeps_all_extremes(values in prop::collection::vec(any::<i64>(), 0..500), buckets in 1..40_usize) {
        let points = values.iter().enumerate().map(|(i, &ns)| Point { id: i as u64, ns });
        let thinned = thin(points, buckets);
        prop_assert!(thinned.len() <= (2 * buckets).max(values.len().min(2 * buckets)));
        prop_assert!(thinned.windows(2).all(|w| w[0].id < w[1].id));
        prop_assert_eq!(thinned.iter().map(|p| p.ns).max(), values.iter().copied().max());
        prop_assert_eq!(thinned.iter().map(|p| p.ns).min(), values.iter().copied().min());
    }

    #[test]
    fn histograms_and_cdfs_count_everything(values in prop::collection::vec(any::<i64>(), 1..300), bins in 1..60_usize) {
        let d = Distribution::new(values.clone());
        let h = d.histogram(bins);
        prop_assert_eq!(h.counts.iter().sum::<u64>(), values.len() as u64);
        prop_assert_eq!(h.edges_ns.len(), h.counts.len() + 1);
        prop_assert!(h.counts.len() <= bins);
        let cdf = d.cdf(bins);
        prop_assert!(cdf.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 < w[1].1));
        prop_assert_eq!(cdf.last().map(|p| p.1), Some(1.0));
    }

    #[test]
    fn no_stamps_make_the_statistics_panic(rows in prop::collection::vec((any::<u64>(), any::<[i64; 4]>()), 0..60),
                                           same_clock in any::<bool>(), period_ns in any::<u64>()) {
        let info = RunInfo { same_clock, period_ns, ..RunInfo::default() };
        let _ = RunStats::of(&info, &run(rows), &StatsOptions::default());
    }
}
