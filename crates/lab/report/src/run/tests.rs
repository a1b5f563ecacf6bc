// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::run::measures::{ORDER, TIMES, key};
use fide_jitter_analysis::sample::{Fault, FaultKind, Restart};
use fide_jitter_analysis::stats::Measure;
use fide_jitter_analysis::synth::{Disturbance, Noise, Scenario, synthesize};
use fide_jitter_analysis::{MISSING, RunInfo, RunStats, Sample, Samples, Schedule, Stamp, StatsOptions};
use fide_testbed::documented::{assert_documented, fields, section};
use proptest::prelude::*;
use serde_json::Value;
use std::collections::BTreeSet;

fn scenario(packets: u64, noise: Noise) -> Scenario {
    let disturbances = vec![Disturbance { phase_ns: 3e5, ..Disturbance::new(Stamp::Ts2, 0.1e9 + 5_000.0, 2e5) }];
    let clock = None;
    Scenario { period_ns: 1_000_000, schedule: Schedule::Absolute, packets, disturbances, noise, clock, seed: 7 }
}

fn run_of(name: &str, info: RunInfo, samples: &Samples) -> Run {
    let stats = RunStats::of(&info, samples, &StatsOptions::default());
    Run::new(name, info, stats)
}

fn made(name: &str, scenario: &Scenario) -> Run {
    let made = synthesize(scenario);
    run_of(name, made.info, &made.samples)
}

/// A run in which each packet is a row of stamps.
fn small(rows: &[[i64; 4]]) -> Run {
    let info = RunInfo { method: "udp".into(), period_ns: 1_000_000, same_clock: true, ..RunInfo::default() };
    let mut samples = Samples::new();
    rows.iter().enumerate().for_each(|(i, ts)| samples.push(&Sample::new(i as u64, *ts), info.period_ns));
    run_of("small", info, &samples)
}

/// Names of the plots of a run, as the page has them.
fn plots(index: usize) -> Vec<String> {
    let successive =
        ORDER.iter().filter(|m| matches!(m, Measure::Successive(_))).map(|m| format!("{}-{index}", key(*m)));
    let times =
        TIMES.iter().flat_map(|m| ["time", "histogram", "tail"].map(|what| format!("{}-{what}-{index}", key(*m))));
    successive.chain(times).chain([format!("violation-{index}")]).collect()
}

/// Asserts what holds for every page, whatever its content.
fn sound(page: &str) {
    for wrong in [
        "NaN",
        "inf ",
        "inf\"",
        "-9223372036854775808",
        "http:",
        "https:",
        "src=",
        "url(",
        "@import",
        "data-points=\"0\"",
    ] {
        let at = page.find(wrong);
        assert!(
            at.is_none(),
            "{wrong}: ...{:?}",
            at.map(|at| page[at.saturating_sub(200)..].chars().take(300).collect::<String>())
        );
    }
    for name in
        ["section", "div", "table", "tr", "td", "th", "ul", "li", "figure", "svg", "dl", "article", "p", "h4", "main"]
    {
        let opened = page.matches(&format!("<{name}>")).count() + page.matches(&format!("<{name} ")).count();
        assert_eq!(opened, page.matches(&format!("</{name}>")).count(), "{name}");
    }
}

#[test]
fn a_run_has_all_its_plots_and_numbers() {
    let run = made("one", &scenario(20_000, Noise::quiet()));
    let page = render(std::slice::from_ref(&run));
    sound(&page);
    for name in plots(0) {
        assert!(page.contains(&format!("data-plot=\"{name}\"")), "{name}");
    }
    for name in ["packets", "percentiles", "violation", "late", "conditions"] {
        assert!(page.contains(&format!("data-table=\"{name}-0\"")), "{name}");
    }
    assert!(!page.contains("Nothing to draw"));
    assert!(page.contains("Not analysed.") && page.contains("No culprit is known: not recorded"));
    // The maximum is shown, not only a percentile.
    let summary = run.stats.measure(Measure::RoundTrip).unwrap().summary.clone().unwrap();
    assert!(page.contains(&format!("title=\"{} ns\"", summary.max_ns)));
    assert!(page.contains(&format!("title=\"{} ns\"", summary.jitter_ns)));
    assert_eq!(page, render(&[run]), "the same run gives the same page");
}

#[test]
fn several_runs_are_compared() {
    let quiet = made("quiet", &scenario(20_000, Noise::quiet()));
    let busy = made("busy", &scenario(20_000, Noise::busy()));
    let apart = made("apart", &Scenario { clock: Some((5_000_000_000, 10.0)), ..scenario(20_000, Noise::quiet()) });
    let page = render(&[quiet, busy, apart]);
    sound(&page);
    for measure in TIMES {
        for what in ["histogram", "tail"] {
            let open = format!("data-plot=\"{}-{what}-all\"", key(measure));
            let figure = page.split(&open).nth(1).unwrap().split("</figure>").next().unwrap();
            // Absolute times are not drawn beside times above a baseline.
            let runs = if matches!(measure, Measure::AToB | Measure::BToA) { 2 } else { 3 };
            assert_eq!(figure.matches("class=\"line ").count(), runs, "{open}");
            assert_eq!(figure.contains("without apart"), runs == 2);
            // They differ in more than colour.
            assert!(figure.contains("class=\"line c0 d0 run0\"") && figure.contains("class=\"line c1 d1 run1\""));
            assert_eq!(figure.matches("class=\"marker ").count(), runs);
        }
    }
    for index in 0..3 {
        assert!(plots(index).iter().all(|name| page.contains(&format!("data-plot=\"{name}\""))));
    }
    assert!(page.contains("Conditions that differ"));
}

#[test]
fn nothing_and_little_is_said_to_be_so() {
    sound(&render(&[]));
    assert!(render(&[]).contains("There is no run"));
    let lost = [1_000_000, MISSING, MISSING, MISSING];
    let cases = [
        (small(&[]), "The log has no packet", "the log has no packet"),
        (small(&[[0, 10_000, 15_000, 30_000]]), "The log has one packet", "there is no other to compare it with"),
        (small(&[[0, MISSING, MISSING, MISSING], lost]), "No packet came back: 2 sent", "no packet came back"),
        (small(&[[MISSING; 4], [MISSING; 4]]), "No packet was sent", "no packet was sent"),
    ];
    for (run, remark, why) in &cases {
        let page = render(std::slice::from_ref(run));
        sound(&page);
        assert!(page.contains(remark) && page.contains(why), "{remark}\n{page}");
    }
    let all: Vec<Run> = cases.into_iter().map(|c| c.0).collect();
    sound(&render(&all));
    assert_eq!(to_json(&all)["runs"].as_array().unwrap().len(), 4);
}

#[test]
fn failed_clocks_and_restarted_pongs_are_named() {
    let info = RunInfo { period_ns: 1_000_000, ..RunInfo::default() };
    let mut samples = Samples::new();
    for id in 0..2000_i64 {
        let back = if id == 700 { 50_000_000 } else { 0 };
        let t = id * 1_000_000;
        samples.restart(if id < 900 { 1 } else { 2 });
        samples.push(
            &Sample::new(id as u64, [t, t + 9_000_000_000, t + 9_000_001_000, t + 30_000 - back]),
            info.period_ns,
        );
    }
    let page = render(&[run_of("faulty", info, &samples)]);
    sound(&page);
    for words in
        ["went back", "first in row 700 at ts4", "The pong restarted 1 times, at row 900", "clocks of their own"]
    {
        assert!(page.contains(words), "{words}");
    }
}

#[test]
fn what_a_log_says_stays_text() {
    const EVIL: &str =
        "</title></style></script>\"><script>alert(1)</script><img src=x onerror='alert(2)'>\u{0}\u{202e}";
    let mut run = made(EVIL, &scenario(2000, Noise::quiet()));
    let info = &mut run.info;
    for field in [&mut info.method, &mut info.host_a, &mut info.host_b, &mut info.tool_version] {
        EVIL.clone_into(field);
    }
    info.isolation.insert(EVIL.into(), EVIL.into());
    let family = FamilyText {
        kind: EVIL.into(),
        place: EVIL.into(),
        sentence: EVIL.into(),
        alternatives_ns: vec![7.5e6],
        ..FamilyText::default()
    };
    run.families = Some(vec![family]);
    run.culprits =
        Some(vec![CulpritTotal { kind: EVIL.into(), name: EVIL.into(), packets: 1, ..CulpritTotal::default() }]);
    let blame = vec![Blame { kind: EVIL.into(), name: EVIL.into(), cpu: Some(1), ns: 5 }];
    run.late = Some(vec![LatePacket { place: EVIL.into(), blame, ..LatePacket::default() }]);
    let benign = made("benign", &scenario(2000, Noise::quiet()));
    let page = render(&[run, benign]);
    for wrong in ["<script>alert", "<img", "onerror='", "\u{0}", "\u{202e}"] {
        assert!(!page.contains(wrong), "{wrong}");
    }
    assert_eq!((page.matches("<script>").count(), page.matches("</title>").count()), (1, 1));
    assert!(page.contains("&lt;script&gt;alert(1)"));
}

#[test]
fn families_and_culprits_are_in_words_and_numbers() {
    let mut run = made("named", &scenario(2000, Noise::quiet()));
    run.families = Some(Vec::new());
    run.culprits = Some(vec![CulpritTotal {
        kind: "thread".into(),
        name: "kworker/1:2".into(),
        packets: 41,
        share: 0.82,
        worst_ns: 201_300,
    }]);
    run.late = Some(vec![LatePacket { id: 60_214, late_ns: 201_300, ..LatePacket::default() }]);
    let page = render(std::slice::from_ref(&run));
    sound(&page);
    assert!(page.contains("None found"));
    for words in ["kworker/1:2", "82%", "60,214", "201.3 us"] {
        assert!(page.contains(words), "{words}");
    }
    let culprits = page.split("data-table=\"culprits-0\"").nth(1).unwrap().split("</table>").next().unwrap();
    assert!(culprits.contains("unknown"), "unknown is there also if it is nothing");
    run.families = Some(vec![FamilyText {
        kind: "ts2-arrow".into(),
        period_ns: 1e8 + 5e3,
        period_error: 1e-5,
        duration_ns: 2e5,
        duration_at_least: true,
        hits: 41,
        confidence: 0.9997,
        sentence: "Something takes the core.".into(),
        ..FamilyText::default()
    }]);
    let page = render(&[run]);
    for words in ["100.005 ms +- 1 us", "at least 200 us", "99.97%", "Something takes the core."] {
        assert!(page.contains(words), "{words}");
    }
}

#[test]
fn a_page_stays_small() {
    // Thinned plots do not grow beyond this, however long the run; a noisy one has most of its dots apart.
    let page = render(&[made("busy", &scenario(300_000, Noise::busy()))]);
    assert!(page.len() < 2_000_000, "{}", page.len());
}

#[test]
fn cause_of_several_runs_is_reported_for_each() {
    let runs = [small(&[[0, 1, 2, 3]]), small(&[[0, 1, 2, 3]])];
    assert!(!render(&runs).contains("One cause"), "nobody looked");
    assert_eq!(to_json(&runs)["disturbances"], Value::Null);
    let none = render(Report { runs: &runs, disturbances: Some(&[]) });
    assert!(none.contains("No disturbance was found"));
    let behind = crate::run::model::Disturbance {
        sentence: "something <takes> the core".into(),
        alternatives_ns: vec![7.5e6],
        shows: vec![Shows { kind: Some("ts2-arrow".into()), packets: 42, ..Shows::default() }, Shows::default()],
        ..Default::default()
    };
    let page = render(Report { runs: &runs, disturbances: Some(&[behind]) });
    sound(&page);
    for words in ["something &lt;takes&gt;", "ts2-arrow", "42", "not at all", "need not show", "period of 7.5"] {
        assert!(page.contains(words), "{words}");
    }
}

#[test]
fn every_field_is_documented() {
    let mut run = made("one", &scenario(20_000, Noise::quiet()));
    run.families = Some(vec![FamilyText::default()]);
    run.culprits = Some(vec![CulpritTotal::default()]);
    run.late = Some(vec![LatePacket { blame: vec![Blame::default()], ..LatePacket::default() }]);
    run.info.isolation = [("governor".to_owned(), "performance".to_owned())].into();
    run.stats.pongs = vec![Restart { row: 0, incarnation: 1 }];
    run.stats.faults = vec![Fault { row: 0, stamp: Stamp::Ts1, kind: FaultKind::Order, by: 1 }];
    let one = fide_jitter_analysis::clocks::Move { row: 3, until_row: 4, by_ns: -50_000 };
    run.stats.clocks =
        Some(fide_jitter_analysis::clocks::ClockMoves { drift_ppm: 2.0, moves: vec![one], moves_total: 1 });
    let behind = crate::run::model::Disturbance { shows: vec![Shows::default()], ..Default::default() };
    let mut json = to_json(Report { runs: &[run], disturbances: Some(&[behind]) });
    assert_eq!(json["version"], JSON_VERSION);
    // Names of conditions are not fields, and all measures have the same ones.
    json["runs"][0]["conditions"]["isolation"].take();
    let measures = json["runs"][0]["measures"].as_object_mut().unwrap();
    let mut found = BTreeSet::new();
    for (name, measure) in measures.iter_mut() {
        found.extend(fields(&serde_json::json!({ "measure": measure.take() })));
        assert!(ORDER.iter().any(|of| key(*of) == name), "{name}");
    }
    assert_eq!(measures.len(), ORDER.len());
    // These are null in one measure and an object in another.
    let all = found.clone();
    found.retain(|field| !all.iter().any(|other| other.starts_with(&format!("{field}."))));
    found.extend(fields(&json));
    let page = include_str!("../../../../../docs/develop/jitter-json.md");
    assert_documented(section(page, "## What a report is"), &found);
    assert!(page.contains(&format!("Version {JSON_VERSION}")), "the page is about this version");
}

#[test]
fn json_has_the_extremes_and_null_for_the_unknown() {
    let run = made("one", &scenario(50_000, Noise::busy()));
    let json = to_json(std::slice::from_ref(&run));
    let json = &json["runs"][0];
    assert!(json["families"].is_null() && json["culprits"].is_null() && json["late_packets"].is_null());
    for measure in ORDER {
        let of = &json["measures"][key(measure)];
        let points = of["points"].as_array().unwrap();
        let all = || points.iter().map(|p| p[1].as_i64().unwrap());
        assert_eq!(of["summary"]["max_ns"].as_i64(), all().max(), "{measure:?}");
        assert_eq!(of["summary"]["min_ns"].as_i64(), all().min(), "{measure:?}");
    }
    let empty = to_json(&[small(&[])]);
    assert!(empty["runs"][0]["measures"]["round_trip"]["summary"].is_null());
    assert!(empty["runs"][0]["measures"]["round_trip"]["no_bound"].is_string());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_log_gives_a_sound_page(
        rows in prop::collection::vec(prop::array::uniform4(prop_oneof![Just(MISSING), any::<i64>(), 0..5_000_000i64]), 0..12),
        same_clock: bool, period_ns in prop_oneof![Just(0), Just(u64::MAX), 1..2_000_000u64], start_ns: i64, relative: bool,
        started_unix_ns: i64, first in prop_oneof![Just(0), Just(u64::MAX - 20)],
    ) {
        let schedule = if relative { Schedule::Relative } else { Schedule::Absolute };
        let info = RunInfo { same_clock, period_ns, start_ns, schedule, started_unix_ns, ..RunInfo::default() };
        let mut samples = Samples::new();
        rows.iter().enumerate().for_each(|(i, ts)| samples.push(&Sample::new(first + i as u64, *ts), period_ns));
        let run = run_of("any", info, &samples);
        let page = render(&[run.clone(), run]);
        // A log may have the smallest possible time as its start.
        if start_ns != i64::MIN {
            sound(&page);
        }
    }
}
