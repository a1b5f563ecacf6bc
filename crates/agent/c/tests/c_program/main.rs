// SPDX-License-Identifier: Apache-2.0
//! C programs build against the header and the static library, get a clear error without an agent, and have
//! a lane with a running one.

#[allow(dead_code, reason = "the client's own tests use the rest of it")]
#[path = "../../../client/tests/fake_agent/fake.rs"]
mod fake;
mod library;

use fake::*;
use fide_agent_api::event::lane_reason;
use fide_client::protocol::{Empty, Op};
use fide_testbed::Lines;
use library::{compile, includes, library, root};
use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

fn build(dir: &Path, example: &str) -> PathBuf {
    let program = dir.join(example);
    compile(&root().join(format!("examples/{example}.c")), &["-std=c99"], &program);
    program
}

#[test]
fn example_builds_without_warnings_and_names_the_missing_agent() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "monitor");
    let missing = dir.path().join("no.sock");
    let output = Command::new(&program).arg("db@beta").env("FIDE_SOCKET", &missing).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("no Fide agent at") && said.contains("fide agent") && said.contains("no.sock"), "{said}");
    assert_eq!(Command::new(&program).output().unwrap().status.code(), Some(2));
}

/// What a document has a reader type in the root of the repository.
fn documented(file: &str, source: &str) -> String {
    let text = std::fs::read_to_string(root().join(file)).expect("it is there");
    let begin = format!("gcc examples/{source}.c ");
    let line = text.lines().find(|line| line.contains(&begin)).unwrap_or_else(|| panic!("{file} has no {begin}"));
    let words = &line[line.find(&begin).expect("found")..];
    words.split("   #").next().expect("a first part").trim().to_owned()
}

/// In a directory that looks like the root of the repository after `cargo build --release -p fide-c`.
#[test]
fn documented_commands_build_examples_that_run() {
    let dir = tempfile::tempdir().unwrap();
    for part in ["examples", "crates"] {
        std::os::unix::fs::symlink(root().join(part), dir.path().join(part)).unwrap();
    }
    let release = dir.path().join("target/release");
    std::fs::create_dir_all(&release).unwrap();
    std::os::unix::fs::symlink(library("libfide.so"), release.join("libfide.so")).unwrap();
    let missing = dir.path().join("no.sock");
    let key = "0123456789abcdef0123456789abcdef";
    for (file, source, args) in [
        ("docs/develop/api.md", "monitor", "db@beta"),
        ("docs/develop/groups.md", "lines/lines", "state beta"),
        ("examples/monitor.c", "monitor", "db@beta"),
        ("examples/lane.c", "lane", "beta"),
    ] {
        let words = documented(file, source);
        let example = source.rsplit('/').next().expect("a name");
        let run = |words: &str| {
            let mut shell = Command::new("sh");
            shell.args(["-c", words]).current_dir(&dir).env_remove("LD_LIBRARY_PATH").env("FIDE_SOCKET", &missing);
            shell.env("LINES_KEY", key);
            shell.output().unwrap()
        };
        let built = run(&words);
        assert!(built.status.success(), "{file}: {words}: {}", String::from_utf8_lossy(&built.stderr));
        let ran = run(&format!("./{example} {args}"));
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.code() == Some(1) && said.contains("no Fide agent at"), "{file}: {words}: {said}");
        std::fs::remove_file(dir.path().join(example)).unwrap();
    }
}

#[test]
fn headers_are_valid_cxx() {
    for header in ["fide.h", "fide_group.h"] {
        let path =
            includes().map(|path| path.join(header)).into_iter().find(|path| path.exists()).expect("it is there");
        let output = Command::new("gcc")
            .args(["-x", "c++", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"])
            .args(includes().map(|path| format!("-I{}", path.display())))
            .arg(path)
            .output()
            .expect("gcc is needed to test the C ABI");
        let said = String::from_utf8_lossy(&output.stderr);
        // Without a C++ front end there is nothing to check.
        assert!(output.status.success() || said.contains("cc1plus"), "{said}");
    }
}

#[test]
fn c_program_opens_a_lane_and_gets_its_events() {
    let mut agent = FakeAgent::new();
    let program = build(agent.dir.path(), "lane");
    let missing = Command::new(&program).arg("beta").env("FIDE_SOCKET", "/nonexistent/agent.sock").output().unwrap();
    assert_eq!(missing.status.code(), Some(1));
    let mut child = Command::new(&program)
        .args(["beta", "gamma"])
        .env("FIDE_SOCKET", agent.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = Lines::of(child.stdout.take().unwrap());
    let mut said = || lines.next().expect("a line");

    let (peer, _) = agent.greet("one");
    let request = peer.request();
    assert_eq!(request.op, Op::Listen { service: 7 });
    peer.ok(request.id, &Empty {});
    let request = peer.request();
    let Op::OpenLane { name, asked } = request.op else { panic!("{request:?}") };
    assert_eq!((name.as_str(), asked.receivers), ("example", vec!["beta".to_owned(), "gamma".to_owned()]));
    assert_eq!((asked.message_max_bytes, asked.messages_max, asked.period_ns), (20, 1, 10_000_000));
    assert_eq!((asked.priority, asked.redundancy, asked.latency_max_ns), (1, None, None));
    peer.lane_ok(&agent, request.id, &lane_ok(3));
    assert_eq!(said(), "one packet of 150 bytes every 1000 us, at every receiver within 12000 ns");

    let until = Instant::now() + Duration::from_secs(20);
    let message = loop {
        if let Some(message) = agent.next_lane_message() {
            break message;
        }
        assert!(Instant::now() < until, "nothing in the outbox");
        std::thread::yield_now();
    };
    assert_eq!(message, (3, 7, b"hello 1".to_vec()));
    agent.tell_message(7, b"good day");
    assert_eq!(said(), "host 2 says \"good day\"");
    agent.tell_changed(3, lane_reason::BW_EXCEEDED);
    assert_eq!(said(), "lane 1: too much was sent; in 50 ms one packet of 150 bytes every 2000 us, without bounds");
    agent.tell_terminated(3, Duration::from_millis(50), "it exceeded its contract 3 times");
    assert_eq!(said(), "lane 1 (example) is over in 50 ms: it exceeded its contract 3 times");
    let request = peer.request();
    assert_eq!(request.op, Op::CloseLane { handle: 3 });
    peer.ok(request.id, &Empty {});
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
