// SPDX-License-Identifier: Apache-2.0
//! Impossible arguments are refused before anything is measured or written, with a hint.

use std::{fs, path::Path};

use fide_jitter_analysis::RunInfo;

use super::common::{Running, fide, run, stderr, write};

/// Arguments, the exit code, and what the message must hold.
type Refusal<'a> = (&'a [&'a str], i32, &'a [&'a str]);

fn all_refused(refusals: &[Refusal<'_>]) {
    for (arguments, code, words) in refusals {
        let output = run(&mut fide(arguments));
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(*code), "{arguments:?}: {said}");
        assert!(output.stdout.is_empty(), "{arguments:?}: {output:?}");
        for words in *words {
            assert!(said.contains(words), "{arguments:?}: {words} is not in: {said}");
        }
    }
}

/// A ping over loopback with these arguments.
fn ping<'a>(out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut all = vec!["ping", "--from", "127.0.0.1", "--to", "127.0.0.2", "--no-record", "--unlocked", "--out", out];
    all.extend(more);
    all
}

#[test]
fn impossible_ping_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("kept.fjl");
    fs::write(&out, "an earlier run").expect("written");
    let out = out.to_str().expect("text");
    let refused: [(&[&str], i32, &[&str]); 15] = [
        (&["--packets", "0"], 2, &["0 packets", "1 to 20000000"]),
        (&["--packets", "20000001"], 2, &["1 to 20000000"]),
        (&["--packets", "many"], 2, &["--packets", "many"]),
        (&["--period-us", "19.999"], 2, &["19999 ns", "20000"]),
        (&["--period-us", "0"], 2, &["20000"]),
        (&["--period-us", "NaN"], 2, &["--period-us NaN"]),
        (&["--period-us", "inf"], 2, &["--period-us inf"]),
        (&["--period-us=-5"], 2, &["--period-us -5"]),
        (&["--bytes", "1"], 2, &["1 bytes"]),
        (&["--bytes", "100000"], 2, &["100000 bytes"]),
        (
            &["--method", "carrier-pigeon"],
            2,
            &["carrier-pigeon", "udp, udp-poll, af-packet, xdp-slot, af-xdp, af-xdp-zc"],
        ),
        (&["--method", "xdp-reflect"], 2, &["with pong"]),
        // Loopback has no Ethernet frames.
        (&["--method", "af-packet"], 3, &["lo", "udp and udp-poll"]),
        (&["--core", "0", "--unpinned"], 2, &["--unpinned"]),
        (&["--same-machine", "here"], 2, &["--same-machine", "here"]),
    ];
    for (more, code, words) in refused {
        all_refused(&[(&ping(out, more), code, words)]);
        assert_eq!(fs::read_to_string(out).expect("there"), "an earlier run", "{more:?} cost an earlier log");
    }
    let fresh = dir.path().join("fresh.fjl");
    all_refused(&[(&ping(fresh.to_str().expect("text"), &["--method", "af-packet"]), 3, &[])]);
    assert!(!fresh.exists(), "a log of nothing");
    all_refused(&[
        (&ping("/nowhere/at/all.fjl", &["--packets", "1"]), 2, &["/nowhere/at/all.fjl"]),
        (&["ping", "--from", "192.0.2.1", "--to", "192.0.2.2"], 2, &["192.0.2.1", "127.0.0.1 (lo)"]),
        (&["ping", "--from", "here", "--to", "192.0.2.2"], 2, &["--from", "here"]),
        (&["ping", "--from", "127.0.0.1"], 2, &["--to"]),
    ]);
}

#[test]
fn impossible_sweep_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("sweep").to_str().expect("text").to_owned();
    let sweep = ["sweep", "--from", "127.0.0.1", "--to", "127.0.0.2", "--out", &out];
    let refused: [(&[&str], i32, &[&str]); 5] = [
        (&["--seconds", "0"], 2, &["--seconds 0"]),
        (&["--seconds", "NaN"], 2, &["--seconds NaN"]),
        (&["--period-us", "1000,10"], 2, &["10000 ns", "20000"]),
        (&["--period-us", "0"], 2, &["20000"]),
        (&["--period-us", "20", "--seconds", "100000"], 2, &["packets"]),
    ];
    for (more, code, words) in refused {
        all_refused(&[(&[&sweep[..], more].concat(), code, words)]);
    }
    assert!(!Path::new(&out).exists(), "nothing is measured before all is known to be right");
}

#[test]
fn impossible_pong_is_refused() {
    all_refused(&[
        (&["pong", "--from", "192.0.2.1"], 2, &["192.0.2.1", "127.0.0.1 (lo)"]),
        (&["pong", "--from", "fe80::1"], 2, &["--from", "fe80::1"]),
        (&["pong", "--from", "127.0.0.1", "--to", "nobody"], 2, &["--to", "nobody"]),
        (&["pong", "--from", "127.0.0.1", "--port", "70000"], 2, &["--port", "70000"]),
        (&["pong", "--from", "127.0.0.1", "--method", "post"], 2, &["post", "xdp-reflect"]),
        (&["pong", "--from", "127.0.0.1", "--method", "xdp-slot"], 2, &["--to"]),
        (&["pong", "--from", "127.0.0.1", "--method", "af-xdp"], 3, &["lo", "udp and udp-poll"]),
        (&["pong"], 2, &["--from"]),
    ]);
    let _there = Running::pong(&mut fide(&["pong", "--from", "127.72.0.1", "--unlocked", "--ordinary"]));
    all_refused(&[(&["pong", "--from", "127.72.0.1"], 1, &["127.72.0.1", "7412", "taken", "--port"])]);
}

#[test]
fn what_is_no_log_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let put = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).expect("written");
        path.to_str().expect("text").to_owned()
    };
    let good = write(&dir.path().join("good.fjl"), &RunInfo { period_ns: 1000, ..RunInfo::default() }, &[], &[]);
    let good = fs::read(good).expect("read");
    let mut other = good.clone();
    other[8] = 2;
    let mut flipped = good.clone();
    flipped[20] ^= 1;
    let (other, flipped) = (put("other.fjl", &other), put("flipped.fjl", &flipped));
    let (empty, text, head) =
        (put("empty.fjl", b""), put("text.fjl", b"id,ts1,ts2\n1,2,3\n"), put("head.fjl", &good[..30]));
    let nowhere = dir.path().join("nowhere.fjl").to_str().expect("text").to_owned();
    let itself = dir.path().to_str().expect("text");
    for (path, words) in [
        (&*empty, &["not a jitter log", "empty"][..]),
        (&text, &["not a jitter log", "FIDEJTR"]),
        (&other, &["version 2", "version 1"]),
        (&head, &["within its header"]),
        (&flipped, &["corrupt at byte", "checksum"]),
        (&nowhere, &["No such file"]),
        (itself, &["directory"]),
    ] {
        for command in [&["report", path, "--html", "/nowhere/page.html"][..], &["export", path]] {
            all_refused(&[(command, 2, words), (command, 2, &[path])]);
        }
    }
    // A good log beside it does not make up for it.
    let (fine, page) = (put("fine.fjl", &good), dir.path().join("page.html"));
    let page = page.to_str().expect("text");
    all_refused(&[(&["report", &fine, &empty, "--html", page], 2, &["empty.fjl"])]);
    assert!(!dir.path().join("page.html").exists());
    all_refused(&[
        (&["report"], 2, &["LOGS"]),
        (&["report", &fine, "--html", "/nowhere/page.html"], 2, &["/nowhere/page.html"]),
        (&["report", &fine, "--html", page, "--risk", "0"], 2, &["--risk"]),
        (&["report", &fine, "--html", page, "--risk", "NaN"], 2, &["--risk"]),
        (&["report", &fine, "--html", page, "--next", "0"], 2, &["--next"]),
        (&["export", &fine, "--out", "/nowhere/x.csv"], 2, &["/nowhere/x.csv"]),
    ]);
}
