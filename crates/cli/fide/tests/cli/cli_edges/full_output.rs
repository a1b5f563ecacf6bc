// SPDX-License-Identifier: Apache-2.0
//! A standard output that takes nothing: the command says so and fails, whatever it was to print.

use std::{
    fs::{self, File},
    path::PathBuf,
    process::{Command, Stdio},
};

use super::{
    common::{Place, said},
    odd_agent::OddAgent,
};

fn full() -> File {
    File::options().write(true).open("/dev/full").expect("/dev/full")
}

fn fails_with_output_full(command: &mut Command) {
    let child = command.stdout(full()).stderr(Stdio::piped()).spawn().expect("started");
    let output = child.wait_with_output().expect("waited for");
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{command:?}: {err}");
    assert!(err.contains("fide: standard output could not be written: No space left on device"), "{command:?}: {err}");
}

fn example(name: &str) -> String {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples")).join(name);
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn full_standard_output_is_an_error_that_names_it() {
    let place = Place::new();
    let (log, plan) = (example("jitter/disturbed.fjl"), example("fat-tree-k8.toml"));
    assert_eq!(said(&mut place.fide(&["controller", "init", "pki", "--address", "127.0.0.1"])).0, Some(0));
    for words in [
        &["--help"][..],
        &["--version"],
        &["controller", "discover", "--help"],
        &["agent", "--explain-config"],
        &["agent", "--explain-config", "--json"],
        &["agent", "--check=file", "--host", "a", "--config", "fide.toml"],
        &["completions", "bash"],
        &["controller", "explain-config"],
        &["controller", "certificates", "pki"],
        &["controller", "issue", "pki", "host", "h1"],
        &["doctor", "--no-measure"],
        &["doctor", "--no-measure", "--json"],
        &["jitter", "export", &log],
        &["jitter", "report", &log, "--json"],
        &["plan", &plan],
        &["plan", "--odds"],
        &["plan", "--odds", "--json"],
        &["tune", "--plan"],
        &["tune", "--plan", "--json"],
        &["tune", "--undo", "--state-dir", "none"],
        &["tune", "--boot", "--json"],
    ] {
        fails_with_output_full(&mut place.fide(words));
    }
}

#[test]
fn answer_of_the_agent_that_cannot_be_printed_is_an_error() {
    let place = Place::new();
    let event = r#"{"id":"a-1","text":"up"}"#;
    for (answer, words) in [
        (r#"{"text":"fide_up 1\n"}"#.to_owned(), &["metrics"][..]),
        // Without an end of the line: it would stay in a buffer.
        (r#"{"text":"fide_up 1"}"#.to_owned(), &["metrics"]),
        (format!(r#"{{"events":[{event}]}}"#), &["explain"]),
        (r#"{"text":"up","evidence":{}}"#.to_owned(), &["explain", "a-1"]),
        ("{}".to_owned(), &["status", "--json"]),
    ] {
        let _agent = OddAgent::start(&place, &format!(r#"{{"id":1,"ok":{answer}}}"#));
        fails_with_output_full(place.fide(words).env("FIDE_SOCKET", "agent.sock"));
    }
}

#[test]
fn full_standard_error_ends_no_work() {
    let place = Place::new();
    let log = example("jitter/disturbed.fjl");
    let mut report = place.fide(&["jitter", "report", &log, "--html", "page.html"]);
    let status = report.stdout(Stdio::null()).stderr(full()).status().expect("fide");
    assert_eq!(status.code(), Some(0));
    assert!(fs::metadata(place.path("page.html")).expect("written").len() > 0);
}
