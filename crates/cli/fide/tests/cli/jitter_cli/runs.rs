// SPDX-License-Identifier: Apache-2.0
//! Measurements over loopback that do not go as planned. They need no privileges; each uses its own
//! addresses.

use std::{net::UdpSocket, os::unix::process::CommandExt, process::Command};

use fide_testbed::documented::{assert_documented, fields, section};

use super::common::{LIMIT, Running, export, fide, json, report, run, stderr};

/// A ping between these hosts of 127.72/16, without a core or priority.
fn ping(from: &str, to: &str, more: &[&str]) -> Command {
    let mut command =
        fide(&["ping", "--from", from, "--to", to, "--unpinned", "--ordinary", "--unlocked", "--sleep-states"]);
    command.args(more);
    command
}

fn pong(at: &str) -> Running {
    Running::pong(&mut fide(&["pong", "--from", at, "--unpinned", "--ordinary", "--unlocked", "--sleep-states"]))
}

#[test]
fn unanswered_ping_says_what_to_do() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = dir.path().join("run.fjl");
    let output = run(ping("127.72.1.1", "127.72.1.2", &["--packets", "20", "--json", "--out"]).arg(&log));
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("nobody answered") && said.contains("`fide jitter pong --from 127.72.1.2`"), "{said}");
    assert!(said.contains("7412"), "{said}");
    let summary = json(&output);
    assert_eq!((&summary["packets"], &summary["answered"]), (&20.into(), &0.into()));
    let reported = report(&log);
    assert_eq!((&reported.run["packets"]["lost"], &reported.run["pongs"]), (&20.into(), &serde_json::json!([])));
    assert!(reported.page.contains("No packet came back: 20 sent, all lost."));
}

#[test]
fn one_packet_is_a_measurement() {
    let _pong = pong("127.72.2.2");
    let dir = tempfile::tempdir().expect("a directory");
    let log = dir.path().join("run.fjl");
    let output = run(ping("127.72.2.1", "127.72.2.2", &["--packets", "1", "--out"]).arg(&log));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.starts_with("127.72.2.1 to 127.72.2.2, udp, 1024 bytes every 1000 us"), "{text}");
    assert!(text.contains("1 packets: 1 answered, 0 lost"), "{text}");
    assert!(report(&log).page.contains("The log has one packet"));
}

#[test]
fn every_field_of_ping_is_documented() {
    let _pong = pong("127.72.9.2");
    let dir = tempfile::tempdir().expect("a directory");
    let log = dir.path().join("run.fjl");
    let output = run(ping("127.72.9.1", "127.72.9.2", &["--packets", "20", "--json", "--out"]).arg(&log));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let mut json = json(&output);
    // Names of conditions are not fields, and the fields of a family belong to a report.
    json["run"]["isolation"].take();
    json["families"].take();
    let page = include_str!("../../../../../../docs/develop/jitter-json.md");
    assert_documented(section(page, "## What a ping prints"), &fields(&json));
}

#[test]
fn interrupt_keeps_the_measurement() {
    // It receives the pings and sends nothing.
    let ear = UdpSocket::bind("127.72.3.2:7413").expect("bound");
    ear.set_read_timeout(Some(LIMIT)).expect("set");
    let dir = tempfile::tempdir().expect("a directory");
    let log = dir.path().join("run.fjl");
    let more = ["--packets", "1000000", "--port", "7413", "--json", "--out"];
    let running = Running::start(ping("127.72.3.1", "127.72.3.2", &more).arg(&log));
    for _ in 0..20 {
        ear.recv(&mut [0; 2000]).expect("a ping");
    }
    running.interrupt();
    let output = running.finish();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let summary = json(&output);
    let packets = summary["packets"].as_u64().expect("a number");
    assert!((20..1_000_000).contains(&packets), "{packets}");
    assert_eq!(summary["ended"], "told to stop");
    let reported = report(&log);
    let conditions = &reported.run["conditions"]["isolation"];
    assert_eq!((&conditions["ended"], &conditions["log"]), (&"told to stop".into(), &().into()), "whole");
    assert_eq!(reported.run["packets"]["logged"], packets);
    assert!(reported.page.contains("ended before its last packet: told to stop"));
    assert_eq!(export(&log).len() as u64, packets);
}

#[test]
fn an_interrupt_ends_a_wait_of_an_hour() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = dir.path().join("run.fjl");
    for method in ["udp", "udp-poll"] {
        let more = ["--period-us", "3600000000", "--port", "7414", "--method", method, "--json", "--out"];
        let running = Running::start(ping("127.72.4.1", "127.72.4.2", &more).arg(&log));
        running.bound(7414);
        running.interrupt();
        let summary = json(&running.finish());
        assert_eq!((&summary["ended"], &summary["packets"]), (&"told to stop".into(), &0.into()));
        assert!(report(&log).page.contains("The log has no packet"));
    }
}

#[test]
fn missing_culprits_are_explained_in_the_report() {
    let _pong = pong("127.72.5.2");
    let dir = tempfile::tempdir().expect("a directory");
    let log = dir.path().join("run.fjl");
    let arguments =
        ["ping", "--from", "127.72.5.1", "--to", "127.72.5.2", "--ordinary", "--unlocked", "--packets", "50"];
    for (more, rights, why) in [
        (&["--no-record"][..], true, "not recorded: not asked for"),
        (&["--unpinned"], true, "not recorded: the measuring thread has no core of its own"),
        (&["--core", "1000"], true, "not recorded: the measuring thread has no core of its own"),
        (&[], false, "not recorded: the kernel did not take the culprit recorder"),
    ] {
        let mut command = fide(&arguments);
        command.args(more).args(["--json", "--out"]).arg(&log);
        if !rights {
            without_rights(&mut command);
        }
        let output = run(&mut command);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let culprits = json(&output)["run"]["isolation"]["culprits"].as_str().expect("a text").to_owned();
        assert!(culprits.starts_with(why), "{culprits}");
        let reported = report(&log);
        if culprits.contains("no core of its own") {
            assert_eq!(reported.run["conditions"]["cores"], serde_json::json!([null, null, null, null]), "{more:?}");
        }
        assert!(reported.run["culprits"].is_null());
        assert_eq!(reported.run["conditions"]["isolation"]["culprits"], culprits);
        assert!(reported.page.contains(&format!("No culprit is known: {why}")), "{culprits}");
        assert_eq!(reported.run["packets"]["answered"], 50, "measured all the same");
    }
}

/// Drops every capability, as for a user that is not root.
fn without_rights(command: &mut Command) {
    // SAFETY: prctl is a plain system call, allocates nothing and takes no lock, as a child of a process with
    // threads must.
    unsafe {
        command.pre_exec(|| {
            for capability in 0..=63 {
                // Fails beyond the last one, and for a user without capabilities.
                libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0);
            }
            Ok(())
        });
    }
}
