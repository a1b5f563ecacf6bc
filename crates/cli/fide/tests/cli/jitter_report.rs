// SPDX-License-Identifier: Apache-2.0
//! The shipped example log, from the file to the page in a browser: the real program, and Chromium if it is
//! installed.

use std::{fs, path::Path, process::Command};

use fide_testbed::browser::Browser;
use serde_json::Value;

/// The planted period (examples/jitter/README.md).
const PERIOD_NS: f64 = 25_382_000.0;
const NAME: &str = "backup";
/// Plots of a run.
const PLOTS: usize = 23;

/// The text between an element with this attribute and the end of that element.
fn element<'a>(page: &'a str, attribute: &str, end: &str) -> &'a str {
    let rest = page.split(attribute).nth(1).unwrap_or_else(|| panic!("{attribute} is not on the page"));
    rest.split(end).next().expect("a first part")
}

#[test]
fn example_shows_the_culprit_and_its_period() {
    let log = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/jitter/disturbed.fjl");
    assert!(fs::metadata(&log).expect("shipped").len() <= 300 << 10, "an example stays small");
    let dir = tempfile::tempdir().expect("a directory");
    let html = dir.path().join("page.html");
    let output = Command::new(env!("CARGO_BIN_EXE_fide"))
        .args(["jitter", "report", "--json", "--html"])
        .args([&html, &log])
        .output()
        .expect("fide runs");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let run = &report["runs"][0];

    let families = run["families"].as_array().expect("analysed");
    let near = |family: &&Value| {
        family["period_ns"].as_f64().is_some_and(|period_ns| (period_ns / PERIOD_NS - 1.0).abs() < 0.001)
    };
    let family = families.iter().find(near).unwrap_or_else(|| panic!("not found: {families:?}"));
    assert!(family["kind"].as_str().expect("text").starts_with("ts2-"), "at the receiver: {family}");
    let culprits = run["culprits"].as_array().expect("recorded");
    let named = culprits.iter().find(|culprit| culprit["kind"] != "unknown").expect("somebody is blamed");
    assert_eq!((&named["name"], &named["kind"]), (&NAME.into(), &"thread".into()), "{culprits:?}");

    let page = fs::read_to_string(&html).expect("written");
    let Some(browser) = Browser::here() else { return };
    let seen = browser.probe(&page, &["--window-size=1300,1000"]).expect("opened");
    seen.assert_whole(PLOTS);
    assert_eq!(seen.lines_of("fits"), ["true"]);
    let families = element(&seen.page, "data-table=\"families-0\"", "</article>");
    let sentence = family["sentence"].as_str().expect("text").to_owned();
    assert!(families.contains(&sentence) && families.contains("25.38"), "{sentence} is not in {families}");
    let table = element(&seen.page, "data-table=\"culprits-0\"", "</table>");
    for culprit in culprits.iter().filter_map(|culprit| culprit["name"].as_str()).filter(|name| !name.is_empty()) {
        assert!(table.contains(culprit), "{culprit} is not in {table}");
    }
    assert!(table.contains("unknown"), "{table}");
    let late = element(&seen.page, "data-table=\"late-0\"", "</table>");
    assert!(late.contains(&format!("thread {NAME} on core 1")), "{late}");
}
