// SPDX-License-Identifier: Apache-2.0
use super::*;

fn series(watcher: &'static str, ns: &[i64], failed: u32) -> Series {
    Series { watcher, ns: ns.to_vec(), failed, why: (failed > 0).then(|| "no verdict".to_owned()) }
}

fn results() -> Results {
    Results {
        machine: Machine::here(),
        setup: Vec::new(),
        deaths: vec![Group {
            key: "sigkill".to_owned(),
            title: "SIGKILL".to_owned(),
            series: vec![series(FIDE, &[100_000, 50_000, 70_000], 1), series(TCP_FIN, &[140_000], 0)],
        }],
        silences: vec![Group {
            key: "host_silent_lease_cut".to_owned(),
            title: "both cables cut".to_owned(),
            series: vec![series("over_timeout", &[-3_000], 0)],
        }],
        counts: vec![Figure::count("false_verdicts", 0, 20)],
        expectations: Vec::new(),
        notes: Vec::new(),
        timeline: None,
    }
}

#[test]
fn times_have_three_digits_or_so() {
    for (ns, text) in [
        (850, "0.85 us"),
        (46_200, "46 us"),
        (1_250_000, "1.25 ms"),
        (12_340_000, "12.3 ms"),
        (250_000_000, "250 ms"),
        (3_000_000_000, "3.00 s"),
        (-3_000, "-3.00 us"),
    ] {
        assert_eq!(time(ns), text);
    }
}

#[test]
fn quantiles_are_trials() {
    let times: Vec<i64> = (1..=100).collect();
    let all = series(FIDE, &times, 0);
    assert_eq!([0.0, 0.5, 0.99, 1.0].map(|p| all.quantile(p)), [1, 50, 99, 100].map(Some));
    assert_eq!(series(FIDE, &[7], 0).quantile(0.99), Some(7));
    assert_eq!(series(FIDE, &[], 3).quantile(0.5), None);
}

#[test]
fn failed_trials_are_shown_and_a_ratio_is_to_the_baseline() {
    let results = results();
    let json = results.to_json("demo.html");
    let fide = &json["figures"][0];
    assert_eq!(fide["figure"], "sigkill_fide");
    assert_eq!((&fide["trials"], &fide["failed"], &fide["n"]), (&json!(4), &json!(1), &json!(3)));
    assert_eq!((&fide["p50"], &fide["ratio"]), (&json!(70.0), &json!(0.5)));
    assert!(fide["why"].as_str().is_some_and(|why| why.contains("no verdict")));
    assert_eq!(json["figures"][3]["figure"], "false_verdicts");
    let table = results.table();
    assert!(table.contains("Fide: 1 failed, the last one: no verdict"), "{table}");
    assert!(table.lines().any(|line| line.starts_with("SIGKILL") && line.ends_with("0.50")), "{table}");
    assert!(table.contains("-3.00 us"), "{table}");
}

#[test]
fn failed_expectation_is_reported() {
    let mut results = results();
    results.expect("water is wet", true, "it is");
    assert!(results.broken().next().is_none());
    results.expect("ice is warm", false, "it is not");
    assert_eq!(results.broken().count(), 1);
    assert_eq!(results.to_json("x")["held"], json!(false));
    assert!(results.table().contains("FAIL ice is warm: it is not"));
}
