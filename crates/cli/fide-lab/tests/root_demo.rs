// SPDX-License-Identifier: Apache-2.0
//! Runs the demos.

mod left;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::AtomicBool,
    thread,
    time::Duration,
};

use fide_testbed::{Lines, Stops, documented, end_within, find_binary, say_not_tested, supported};
use rustix::process::{Pid, Signal, kill_process};

#[test]
fn root_the_demo_kills_leader_after_leader_and_loses_nothing() {
    if let Err(why) = supported() {
        println!("skipped: {why}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let words = ["demo", "agreement", "--json", "--hosts", "3", "--between", "200", "--out"];
    let output = Command::new(env!("CARGO_BIN_EXE_fide-lab"))
        .args(words)
        .arg(dir.path())
        .current_dir(dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let gaps = json["gaps"].as_array().unwrap();
    assert_eq!(gaps.len(), 2, "{json}");
    for gap in gaps {
        for stage in ["detect", "level", "lead", "decide"] {
            assert!(gap["stages"][format!("{stage}_us")].is_number(), "{gap}");
        }
    }
    assert!(json["counter"].as_u64().unwrap() > 0 && json["counter"] == json["answered"], "{json}");
    let chart = std::fs::read_to_string(dir.path().join("agreement.svg")).unwrap();
    assert!(chart.starts_with("<svg") && chart.contains("h2 killed"), "{chart:.200}");
}

#[test]
fn root_messages_by_pace_and_by_tcp_are_drawn_side_by_side() {
    if let Err(why) = supported() {
        println!("skipped: {why}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let words = ["demo", "pace", "--json", "--seconds", "2", "--out"];
    let output = Command::new(env!("CARGO_BIN_EXE_fide-lab")).args(words).arg(dir.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let flows = json["flows"].as_array().unwrap();
    let names: Vec<_> = flows.iter().map(|flow| flow["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["X-PACE", "TCP CUBIC"]);
    let best = json["optimum_ms"].as_f64().unwrap();
    for flow in flows {
        let messages = flow["messages"].as_array().unwrap();
        assert_eq!(flow["delivered"], messages.len(), "{flow}");
        assert!(messages.len() > 20 && flow["sent"].as_u64().unwrap() >= messages.len() as u64, "{flow}");
        // The link lets none through sooner.
        assert!(flow["delivery_ms"]["p1"].as_f64().unwrap() > best - 1.0, "{flow}");
    }
    let chart = fs::read_to_string(dir.path().join("pace.svg")).unwrap();
    assert!(chart.starts_with("<svg") && chart.contains("TCP CUBIC: p50"), "{chart:.200}");
}

/// On a terminal of 80 columns, which `script` makes.
#[test]
fn root_messages_by_pace_and_by_tcp_are_drawn_while_they_run() {
    if let Err(why) = supported() {
        println!("skipped: {why}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let demo = format!("{} demo pace --seconds 2 --out {}", env!("CARGO_BIN_EXE_fide-lab"), dir.path().display());
    let words = ["-qec", &format!("stty cols 80 rows 24; exec {demo}"), "/dev/null"];
    let output = Command::new("script").args(words).env("TERM", "xterm").stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("TCP CUBIC, as it comes and not paced"), "{said}");
    // Bars and whole figures of each flow, and what they mean.
    let (live, end) = said.split_once(" delivery, ms").unwrap_or_else(|| panic!("no table: {said}"));
    for name in ["X-PACE", "TCP CUBIC"] {
        let is_bars = |line: &str| {
            let figures =
                line.split_once(name).filter(|(bars, _)| bars.contains(['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█']));
            figures.is_some_and(|(_, figures)| figures.contains("p50") && figures.contains(" ms"))
        };
        assert!(live.lines().any(is_bars), "{name}: {live}");
    }
    assert!(live.contains("the highest bar is") && live.contains("X-PACE's slowest step: "), "{live}");
    // The plot stands before the table, with both flows' marks.
    let plot: Vec<&str> = live.lines().rev().take(18).collect();
    assert!(plot.iter().any(|line| line.contains("o X-PACE, x TCP CUBIC; 8 both")), "{plot:#?}");
    for mark in ["ooo", "x"] {
        assert!(plot.iter().any(|line| line.contains(mark) && !line.contains("TCP")), "{mark}: {plot:#?}");
    }
    assert!(end.contains("at best") && end.contains("drawing: "), "{end}");
}

/// The demo goes on even if the reader of its output goes away: the results have a page of their own.
#[test]
fn root_demo_says_of_each_part_how_long_it_took() {
    if let Err(why) = supported() {
        println!("skipped: {why}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (reader, unread) = std::io::pipe().unwrap();
    drop(reader);
    let words = ["demo", "--trials", "2", "--large-trials", "0", "--silences", "2", "--stretch", "1", "--out"];
    let mut demo = Command::new(env!("CARGO_BIN_EXE_fide-lab"));
    demo.args(words).arg(dir.path()).stdout(unread).stderr(std::process::Stdio::piped());
    let output = demo.spawn().unwrap().wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    for part in 1..=3 {
        assert!(
            said.contains(&format!("{part} of 3. ")) && said.contains(&format!("part {part} of 3 took ")),
            "{said}"
        );
    }
    // Whether all expectations hold depends on the machine.
    assert!(matches!(output.status.code(), Some(0 | 1)) && !said.contains("panicked"), "{}: {said}", output.status);
    assert!(std::fs::read_to_string(dir.path().join("demo.html")).unwrap().contains("parts_s"));
}

/// The folder of the module, which cargo builds with the tests; none where the demo of Redis cannot run.
fn redis_module_dir() -> Option<PathBuf> {
    if let Err(why) = supported() {
        println!("skipped: {why}");
        return None;
    }
    let has_redis = Command::new("redis-benchmark").arg("--version").output().is_ok();
    if !has_redis {
        say_not_tested("the demo of Redis: redis-tools is not installed");
        return None;
    }
    let module = find_binary("libfide_redis.so").expect("cargo builds it with the tests");
    module.parent().map(PathBuf::from)
}

#[test]
fn root_redis_loses_leader_after_leader_and_no_acknowledged_write() {
    let Some(module_dir) = redis_module_dir() else { return };
    let dir = tempfile::tempdir().unwrap();
    let words = ["demo", "redis", "--json", "--kills", "1", "--between", "300", "--out"];
    let mut demo = Command::new(env!("CARGO_BIN_EXE_fide-lab"));
    demo.args(words).arg(dir.path()).env("FIDE_BIN_DIR", module_dir);
    let demo = demo.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (id, ended) = (demo.id(), AtomicBool::new(false));
    let (output, started) = thread::scope(|scope| {
        let lists = scope.spawn(|| left::processes_until(id, &ended));
        let stops = Stops(&ended);
        let output = demo.wait_with_output().unwrap();
        drop(stops);
        (output, lists.join().unwrap())
    });
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    left::assert_all_gone(id, &started);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let gaps = json["gaps"].as_array().unwrap();
    let faults: Vec<_> = gaps.iter().map(|gap| gap["fault"].as_str().unwrap()).collect();
    assert_eq!(faults, ["killed", "stopped", "cut"], "{json}");
    for gap in gaps {
        let us = |stage: &serde_json::Value| stage.as_f64().unwrap();
        let stages: f64 = gap["stages"].as_object().unwrap().values().map(us).sum();
        assert!(gap["leader"] != gap["next"] && us(&gap["total_us"]) <= stages + 0.01, "{gap}");
        assert!(us(&gap["stages"]["detect_us"]) > 0.0, "{gap}");
    }
    assert_eq!(json["held"], true, "{json}");
    let writes = &json["writes"];
    assert!(writes["acknowledged"].as_u64().unwrap() > 100 && writes["lost"] == 0, "{json}");
    let digests = json["digests"].as_array().unwrap();
    assert!(digests.len() == 3 && digests.iter().all(|one| one["digest"] == digests[0]["digest"]), "{json}");
    let cut_off = json["cut_off"].as_array().unwrap();
    assert!(cut_off.len() == 1 && cut_off[0]["refused"].as_u64().unwrap() > 0, "{json}");
    // More than the numbering clients: redis-benchmark ran, too.
    let sets: u64 = json["sets"]["samples"].as_array().unwrap().iter().map(|one| one["sets"].as_u64().unwrap()).sum();
    assert!(sets > writes["acknowledged"].as_u64().unwrap(), "{sets} SETs: {json}");
    let page = fs::read_to_string(dir.path().join("redis.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("cut off") && !page.contains("DID NOT HOLD"), "{page:.200}");
    let documents = include_str!("../../../../docs/develop/redis-demo-json.md");
    documented::assert_documented(documents, &documented::fields(&json));
}

/// Starts the demo and waits until the first leader is lost.
fn begun(dir: &tempfile::TempDir, module_dir: &Path) -> (Child, Lines) {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_fide-lab"));
    demo.args(["demo", "redis", "--between", "300", "--out"]).arg(dir.path()).stdout(Stdio::null());
    demo.env("FIDE_BIN_DIR", module_dir);
    let mut demo = demo.stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = Lines::of(demo.stderr.take().unwrap());
    lines.find_words("killed: h");
    (demo, lines)
}

#[test]
fn root_redis_removes_everything_when_it_is_interrupted_or_killed() {
    let Some(module_dir) = redis_module_dir() else { return };
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let dir = tempfile::tempdir().unwrap();
        let (mut demo, _said) = begun(&dir, &module_dir);
        // It starts nothing while its processes are listed.
        kill_process(Pid::from_child(&demo), Signal::STOP).unwrap();
        left::await_stopped(demo.id());
        let started = left::processes_of(demo.id());
        kill_process(Pid::from_child(&demo), signal).unwrap();
        kill_process(Pid::from_child(&demo), Signal::CONT).unwrap();
        let status = end_within(&mut demo, Duration::from_secs(30)).unwrap();
        assert_eq!(status.code(), (signal != Signal::KILL).then_some(130), "{signal:?}: {status}");
        left::assert_all_gone(demo.id(), &started);
    }
}

#[test]
fn redis_says_what_to_install() {
    let dir = tempfile::tempdir().unwrap();
    let demo = |path: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fide-lab"));
        command.args(["demo", "redis", "--out"]).arg(dir.path()).env("PATH", path).output().unwrap()
    };
    // `ip` is there, redis-benchmark is not.
    let bin = dir.path().join("bin");
    fs::create_dir(&bin).unwrap();
    if let Some(ip) = ["/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip"].into_iter().find(|ip| fs::exists(ip).unwrap()) {
        std::os::unix::fs::symlink(ip, bin.join("ip")).unwrap();
    }
    let output = demo(bin.to_str().unwrap());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    let wanted = if supported().is_ok() { "apt-get install redis-tools" } else { "root" };
    assert!(said.contains(wanted), "{said}");
}
