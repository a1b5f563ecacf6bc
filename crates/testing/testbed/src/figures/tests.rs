// SPDX-License-Identifier: Apache-2.0
use super::*;
use serde_json::json;

fn samples(ns: &[u64]) -> Samples {
    let mut s = Samples::default();
    ns.iter().for_each(|n| s.add(*n));
    s
}

#[test]
fn a_figure_has_its_baseline_ratio_and_goal() {
    let (fide, tcp) = (samples(&[60_000, 70_000, 80_000]), samples(&[100_000; 3]));
    let figure = Figure::time("sigkill_small_vs_tcp_fin", Statistic::P50, &fide)
        .against("tcp_fin", Statistic::P50, &tcp)
        .goal(Goal::AtMost(0.7));
    let v = serde_json::to_value(&figure).unwrap();
    assert_eq!((&v["unit"], &v["statistic"], &v["n"]), (&json!("us"), &json!("p50"), &json!(3)));
    assert_eq!((&v["goal"], &v["met"], &v["baseline"]), (&json!("<= 0.7"), &json!(true), &json!("tcp_fin")));
    let ratio = v["ratio"].as_f64().unwrap();
    assert!((ratio - 0.7).abs() < 0.001, "{ratio}");
    assert_eq!(figure.goal(Goal::AtMost(0.5)).met, Some(false));
}

#[test]
fn unmeasured_figure_is_null_with_the_reason() {
    let v = serde_json::to_value(Figure::unmeasured("x", "us", "no bfdd").goal(Goal::AtMost(1.0))).unwrap();
    assert_eq!((&v["met"], &v["value"], &v["why"]), (&json!(null), &json!(null), &json!("no bfdd")));
    assert!(v.get("ratio").is_none() && v.get("baseline").is_none());
    // A comparison with nothing gives no ratio and meets no goal.
    let figure = Figure::time("y", Statistic::P99, &samples(&[5]))
        .against("bfd", Statistic::P99, &Samples::default())
        .goal(Goal::AtMost(1.0));
    assert_eq!((figure.ratio, figure.met), (None, None));
    assert!(figure.why.unwrap().contains("bfd was not measured"));
    assert_eq!(Figure::time("z", Statistic::P50, &Samples::default()).value, None);
}

#[test]
fn a_sample_beyond_the_longest_counts_as_the_longest() {
    let s = samples(&[u64::MAX]);
    assert_eq!(s.n(), 1);
    // Within the histogram's three digits.
    assert!(s.max() >= MAX_SAMPLE_NS && s.max() <= MAX_SAMPLE_NS / 100 * 101);
}

#[test]
fn few_samples_have_a_maximum_and_no_percentile() {
    let few = Figure::time("x", Statistic::P99, &samples(&[1_000, 2_000, 9_000]));
    assert_eq!((few.statistic.as_str(), few.value, few.p99), ("max", few.max, None));
    let many = Figure::time("x", Statistic::P99, &samples(&[1_000; P99_LEAST as usize]));
    assert_eq!((many.statistic.as_str(), many.p99.is_some()), ("p99", true));
    let spread = many.spread_of([3.0, 1.0, 2.0]).spread;
    assert_eq!(spread, Some([1.0, 3.0]));
}

#[test]
fn ratio_of_pairs_is_the_middle_ratio_and_not_that_of_the_middles() {
    let (rates, bases) = ([100.0, 50.0, 210.0], [200.0, 90.0, 300.0]);
    let mut sorted = rates;
    sorted.sort_by(f64::total_cmp);
    let base = Figure::rate("base", &[90.0, 200.0, 300.0]);
    let figure = Figure::rate("x", &sorted).beside("base", &base);
    assert_eq!(figure.ratio, Some(0.5));
    let figure = figure.ratio_of_pairs(rates.into_iter().zip(bases)).goal(Goal::AtLeast(0.55));
    assert_eq!((figure.ratio, figure.ratio_spread), (Some(50.0 / 90.0), Some([0.5, 0.7])));
    assert_eq!((figure.met, figure.baseline_value), (Some(true), Some(200.0)));
    let mut report = Report::new("redis");
    report.add(figure);
    assert!(report.to_string().contains("0.556 (0.500..0.700)"), "{report}");
}

#[test]
fn the_table_holds_every_figure_and_reason() {
    let mut report = Report::new("detect");
    report.add(Figure::count("false_deaths", 0, 100).goal(Goal::AtMost(0.0)));
    report.add(Figure::unmeasured("bfd", "us", "no bfdd here"));
    let table = report.to_string();
    assert!(table.contains("false_deaths") && table.contains("yes") && table.contains("bfd: no bfdd here"), "{table}");
    let json = serde_json::to_value(&report).unwrap();
    assert!(json["machine"]["cores"].as_u64().unwrap() > 0);
    assert_eq!(json["figures"].as_array().unwrap().len(), 2);
}
