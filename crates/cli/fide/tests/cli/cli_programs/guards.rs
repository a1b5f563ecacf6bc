// SPDX-License-Identifier: Apache-2.0
//! Processes that `fide guard` refuses before it asks any agent.

use std::{fs, process::Command, sync::mpsc};

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

#[test]
fn guard_refuses_what_is_no_process_of_a_program() {
    let refused = |pid: &str, says: &[&str]| {
        for more in [&[][..], &["--detach"]] {
            let output = fide(&["guard", "--name", "db", "--pid", pid]).args(more).output().expect("run");
            let said_all = says.iter().all(|says| text(&output.stderr).contains(says));
            assert!(output.status.code() == Some(REFUSED) && said_all, "--pid {pid}: {}", said(&output));
        }
    };
    let (tell, told) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        tell.send(rustix::thread::gettid().as_raw_nonzero().get()).expect("told");
        let _ = ended.recv();
    });
    let thread_id = told.recv().expect("a thread").to_string();
    let process = std::process::id();
    refused(&thread_id, &[&format!("a thread of process {process}"), &format!("--pid {process}")]);
    drop(end);
    thread.join().expect("ended");
    // In a container there may be none.
    if fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
        refused("2", &["a thread of the kernel, which nothing stops"]);
    }
}

#[test]
fn guard_asks_for_a_process_or_a_unit() {
    let output = fide(&["guard", "--name", "db"]).output().expect("run");
    let says = text(&output.stderr).contains("<--pid <PID>|--unit <UNIT>>");
    assert!(output.status.code() == Some(REFUSED) && says, "{}", said(&output));
    let both = fide(&["guard", "--name", "db", "--pid", "1", "--unit", "x"]).output().expect("run");
    assert!(
        both.status.code() == Some(REFUSED) && text(&both.stderr).contains("cannot be used with"),
        "{}",
        said(&both)
    );
}
