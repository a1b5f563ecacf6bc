// SPDX-License-Identifier: Apache-2.0
//! Logs of runs that went wrong: truncated, empty, or with clocks that jump.

use std::{fs, path::Path};

use fide_jitter_analysis::{
    CulpritKind, Host, Interference, MISSING, RunInfo, Sample, Schedule, Stamp,
    synth::{Disturbance, Noise, Scenario, synthesize},
};
use serde_json::Value;

use super::common::{Reported, export, fide, report, run, stderr, write};

const PERIOD_NS: i64 = 1_000_000;

fn info() -> RunInfo {
    RunInfo {
        method: "udp".to_owned(),
        period_ns: PERIOD_NS.unsigned_abs(),
        schedule: Schedule::Absolute,
        same_clock: true,
        cores: [Some(0), Some(1), Some(1), Some(0)],
        isolation: [("culprits".to_owned(), "recorded".to_owned())].into(),
        ..RunInfo::default()
    }
}

/// A packet with regular times.
fn even(id: u64) -> Sample {
    let due = id.cast_signed() * PERIOD_NS;
    Sample::new(id, [due + 100, due + 20_000, due + 21_000, due + 41_000])
}

fn evens(packets: u64) -> Vec<Sample> {
    (0..packets).map(even).collect()
}

/// Writes a log of these packets and reports on it.
fn of(info: &RunInfo, rows: &[Sample]) -> Reported {
    let dir = tempfile::tempdir().expect("a directory");
    let log = write(&dir.path().join("run.fjl"), info, rows, &[]);
    assert_eq!(export(&log).len(), rows.len());
    report(&log)
}

/// Faults by stamp and kind, each once.
fn faults(run: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let all = run["clocks"]["first_faults"].as_array().expect("a list");
    let mut all: Vec<_> = all.iter().map(|fault| (text(&fault["stamp"]), text(&fault["kind"]))).collect();
    all.sort();
    all.dedup();
    all
}

fn known(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(stamp, kind)| ((*stamp).to_owned(), (*kind).to_owned())).collect()
}

#[test]
fn json_comes_without_a_page_unless_one_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    write(&dir.path().join("run.fjl"), &info(), &evens(100), &[]);
    let files = || {
        let mut all: Vec<String> = fs::read_dir(dir.path())
            .expect("read")
            .map(|entry| entry.expect("read").file_name().to_string_lossy().into_owned())
            .collect();
        all.sort();
        all
    };
    let of = |more: &[&str]| {
        let output = run(fide(&["report", "run.fjl"]).args(more).current_dir(dir.path()));
        assert_eq!(output.status.code(), Some(0), "{more:?}: {}", stderr(&output));
        (output.stdout.is_empty(), files())
    };
    assert_eq!(of(&["--json"]), (false, vec!["run.fjl".to_owned()]));
    assert_eq!(of(&["--json", "--html", "both.html"]), (false, vec!["both.html".to_owned(), "run.fjl".to_owned()]));
    assert_eq!(of(&[]), (true, ["both.html", "jitter.html", "run.fjl"].map(str::to_owned).to_vec()));
}

/// A long log with a disturbance on B's core every 25.4 ms.
fn long(path: &Path) -> Vec<u8> {
    let made = synthesize(&Scenario {
        period_ns: PERIOD_NS.unsigned_abs(),
        schedule: Schedule::Absolute,
        packets: 12_000,
        disturbances: vec![Disturbance::new(Stamp::Ts2, 25_400_000.0, 300_000.0)],
        noise: Noise::quiet(),
        clock: None,
        seed: 3,
    });
    let rows: Vec<Sample> = (0..made.samples.len()).filter_map(|row| made.samples.get(row)).collect();
    let backup = |window: i64| {
        let start_ns = made.info.start_ns + window * 25_400_000;
        Interference { kind: CulpritKind::Thread, host: Host::B, cpu: 1, name: 0, start_ns, end_ns: start_ns + 300_000 }
    };
    let events: Vec<Interference> = (0..470).map(backup).collect();
    let info = RunInfo { isolation: info().isolation, cores: info().cores, ..made.info };
    fs::read(write(path, &info, &rows, &events)).expect("read")
}

#[test]
fn a_log_cut_off_is_reported_as_far_as_it_goes() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("run.fjl");
    let whole = long(&path);
    let reported = report(&path);
    assert_eq!(reported.run["packets"]["logged"], 12_000);
    assert_eq!(reported.run["culprits"][0]["name"], "backup");
    assert!(!reported.page.contains("cut off") && !reported.stderr.contains("cut off"));
    let mut kept = 12_000;
    for len in [whole.len() - 1, whole.len() - 100, whole.len() * 7 / 10, whole.len() * 2 / 5, 1000] {
        fs::write(&path, &whole[..len]).expect("written");
        let Reported { run, page, stderr } = report(&path);
        let logged = run["packets"]["logged"].as_u64().expect("a number");
        assert!(
            logged <= kept && (logged == 12_000) == (len + 1000 > whole.len()),
            "{len}: {logged} of {kept} packets"
        );
        kept = logged;
        assert!(stderr.contains("run.fjl: cut off at byte"), "{stderr}");
        let note = run["conditions"]["isolation"]["log"].as_str().expect("a text");
        assert!(note.starts_with("cut off at byte") && page.contains(&format!("not whole: {note}")), "{note}");
        assert_eq!(export(&path).len() as u64, kept);
        // The culprits come last. If they are cut off, no culprit can be named, which differs from an
        // undisturbed run.
        if len + 1 < whole.len() {
            assert_eq!((&run["culprits"], &run["late_packets"]), (&Value::Null, &Value::Null));
            assert!(page.contains("No culprit is known: recorded, but the log was cut off before them"));
        } else {
            assert_eq!(run["culprits"][0]["name"], "backup");
        }
    }
    assert_eq!(kept, 0, "nothing but the header");
}

#[test]
fn a_log_of_no_packet_and_of_one_is_reported() {
    let none = of(&info(), &[]);
    assert_eq!((&none.run["packets"]["logged"], &none.run["families"]), (&0.into(), &Value::Array(vec![])));
    assert!(none.run["measures"]["round_trip"]["summary"].is_null());
    assert!(none.page.contains("The log has no packet"));
    let one = of(&info(), &[even(0)]);
    assert_eq!(one.run["measures"]["round_trip"]["summary"]["max_ns"], 40_900);
    assert!(one.page.contains("The log has one packet"));
    let lost = of(&info(), &[Sample::new(0, [100, MISSING, MISSING, MISSING])]);
    assert_eq!((&lost.run["packets"]["lost"], &lost.run["packets"]["loss"]), (&1.into(), &1.0.into()));
    let unsent = of(&info(), &[Sample::new(0, [MISSING; 4])]);
    assert_eq!((&unsent.run["packets"]["unsent"], &unsent.run["packets"]["sent"]), (&1.into(), &0.into()));
    // Logs that another program may have written.
    let zero = of(&RunInfo { period_ns: 0, ..info() }, &evens(3));
    assert_eq!(zero.run["packets"]["answered"], 3);
}

#[test]
fn clocks_that_jump_wrap_or_go_back_are_reported() {
    // A's clock is set back by a second at packet 500.
    let back = |sample: Sample| {
        let by = if sample.id < 500 { 0 } else { 1_000_000_000 };
        let [a, b, c, d] = sample.ts;
        Sample::new(sample.id, [a - by, b, c, d - by])
    };
    let rows: Vec<Sample> = evens(1000).into_iter().map(back).collect();
    let set_back = of(&RunInfo { same_clock: false, ..info() }, &rows);
    assert_eq!(faults(&set_back.run), known(&[("ts1", "backwards"), ("ts4", "backwards")]));
    assert_eq!(set_back.run["clocks"]["faults"], 2);
    assert!(set_back.page.contains("went back"));

    // B's clock is set forward by an hour.
    let forward = |sample: Sample| {
        let by = if sample.id < 500 { 0 } else { 3_600_000_000_000 };
        let [a, b, c, d] = sample.ts;
        Sample::new(sample.id, [a, b + by, c + by, d])
    };
    let rows: Vec<Sample> = evens(1000).into_iter().map(forward).collect();
    let jumped = of(&RunInfo { same_clock: false, ..info() }, &rows);
    assert_eq!(faults(&jumped.run), known(&[("ts2", "jumped"), ("ts3", "jumped")]));
    assert_eq!(jumped.run["measures"]["round_trip"]["summary"]["max_ns"], 40_900, "one clock is enough for these");
    assert!(jumped.page.contains("jumped"));

    // B counts nanoseconds in 32 bits.
    let wraps = |sample: Sample| {
        let [a, b, c, d] = sample.ts;
        let cut = |ns: i64| (ns + 4_000_000_000) % (1 << 32);
        Sample::new(sample.id, [a, cut(b), cut(c), d])
    };
    let rows: Vec<Sample> = evens(1000).into_iter().map(wraps).collect();
    let wrapped = of(&RunInfo { same_clock: false, ..info() }, &rows);
    assert_eq!(faults(&wrapped.run), known(&[("ts2", "wrapped"), ("ts3", "wrapped")]));
    assert!(wrapped.page.contains("wrapped"));
}

#[test]
fn clocks_of_two_hosts_need_not_agree() {
    // B is two days ahead, and 50 millionths fast.
    let other = |sample: Sample| {
        let [a, b, c, d] = sample.ts;
        let by = |ns: i64| ns + ns / 20_000 + 172_800_000_000_000;
        Sample::new(sample.id, [a, by(b), by(c), d])
    };
    let rows: Vec<Sample> = evens(5000).into_iter().map(other).collect();
    let two = of(&RunInfo { same_clock: false, ..info() }, &rows);
    assert_eq!((&two.run["clocks"]["faults"], &two.run["clocks"]["same"]), (&0.into(), &false.into()));
    let there = &two.run["measures"]["a_to_b"];
    assert_eq!(there["reference"], "baseline", "how much longer than the fastest, not how long");
    let jitter_ns = there["summary"]["jitter_ns"].as_i64().expect("a number");
    assert!(jitter_ns < 10_000, "the drift, 250 us in all, is no jitter: {jitter_ns}");
    assert_eq!(two.run["measures"]["round_trip"]["summary"]["jitter_ns"], 0);
    assert!(two.page.contains("A and B have clocks of their own"));

    // Declared as one clock by mistake: B is two days behind. No time is invented.
    let rows: Vec<Sample> = evens(1000)
        .into_iter()
        .map(|sample| {
            let [a, b, c, d] = sample.ts;
            Sample::new(sample.id, [a, b - 172_800_000_000_000, c - 172_800_000_000_000, d])
        })
        .collect();
    let wrong = of(&info(), &rows);
    let there = &wrong.run["measures"]["a_to_b"];
    assert_eq!((&there["summary"], &there["left_out"]), (&Value::Null, &1000.into()));
    assert!(wrong.page.contains("--same-machine"), "what may be wrong is said");
}

#[test]
fn any_log_is_reported() {
    let edge = [MISSING, MISSING + 1, -1, 0, 1, i64::MAX - 1, i64::MAX];
    let ids = [0, 1, 1, 5, 3, u64::MAX - 1, u64::MAX, 0];
    let pick = |n: usize| edge[n % edge.len()];
    let rows: Vec<Sample> = (0..800)
        .map(|n| Sample { id: ids[n % 8], ts: [pick(n), pick(n / 7), pick(n / 3), pick(n / 2)], hw: [pick(n / 5); 4] })
        .collect();
    let event = |n: usize| {
        let (x, y) = (pick(n), pick(n / 2));
        let (kind, host) = (CulpritKind::ALL[n % 4], if n.is_multiple_of(3) { Host::A } else { Host::B });
        Interference { kind, host, cpu: n as u32 % 3, name: n as u32 % 5, start_ns: x.min(y), end_ns: x.max(y) }
    };
    let events: Vec<Interference> = (0..200).map(event).collect();
    let dir = tempfile::tempdir().expect("a directory");
    for (period_ns, start_ns) in [(0, 0), (1, i64::MIN), (1_000_000, i64::MAX), (u64::MAX, 0)] {
        for (schedule, same_clock) in [(Schedule::Absolute, true), (Schedule::Relative, false)] {
            let info = RunInfo { period_ns, start_ns, schedule, same_clock, ..info() };
            let log = write(&dir.path().join("run.fjl"), &info, &rows, &events);
            let reported = report(&log);
            assert!(reported.run["clocks"]["faults"].as_u64() > Some(0), "{}", reported.run["clocks"]);
            assert_eq!(export(&log).len(), rows.len());
        }
    }
}

#[test]
fn what_a_log_says_stays_text() {
    let script = "<script>alert(1)</script>";
    let named = RunInfo { method: script.to_owned(), host_a: "\u{202e}\0\n".to_owned(), ..info() };
    let reported = of(&named, &evens(10));
    assert!(!reported.page.contains(script));
    assert_eq!(reported.run["conditions"]["method"], script);
}
