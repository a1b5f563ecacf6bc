// SPDX-License-Identifier: Apache-2.0
//! Processes that `fide guard` refuses before it asks any agent.

use std::process::Command;

use super::{fide, said, text};

const REFUSED: i32 = 2;

#[test]
fn guard_refuses_unfenceable_processes() {
    for (pid, why) in [("0", "no process id"), ("1", "cannot be fenced"), ("x", "--pid")] {
        let output = fide(&["guard", "--name", "db", "--pid", pid]).output().expect("run");
        let refused = output.status.code() == Some(REFUSED) && text(&output.stderr).contains(why);
        assert!(refused, "--pid {pid}: {}", said(&output));
    }
    // Without a fence, the first process of a container may be registered like any other: here only the agent
    // is missing.
    let words = ["guard", "--name", "db", "--pid", "1", "--detach", "--socket", "/nonexistent/agent.sock"];
    let output = fide(&words).output().expect("run");
    assert!(output.status.code() == Some(1) && text(&output.stderr).contains("/nonexistent"), "{}", said(&output));
}

#[test]
fn guard_refuses_its_tracer() {
    if Command::new("strace").arg("-V").output().is_err() {
        println!("not tested: no strace here");
        return;
    }
    let line = format!("exec strace -o /dev/null {} guard --name db --pid $$", env!("CARGO_BIN_EXE_fide"));
    let output = Command::new("sh").args(["-c", &line]).output().expect("run");
    let refused = output.status.code() == Some(REFUSED) && text(&output.stderr).contains("traces");
    assert!(refused, "{}", said(&output));
}

#[test]
fn guard_refuses_itself() {
    for more in ["", "--detach"] {
        let line = format!("exec {} guard --name db --pid $$ {more}", env!("CARGO_BIN_EXE_fide"));
        let output = Command::new("sh").args(["-c", &line]).output().expect("run");
        let refused = output.status.code() == Some(REFUSED) && text(&output.stderr).contains("itself");
        assert!(refused, "{line}: {}", said(&output));
    }
}
