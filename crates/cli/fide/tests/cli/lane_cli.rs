// SPDX-License-Identifier: Apache-2.0
//! The real `fide lane` at a fake agent, which grants, changes, ends and goes away as the test says. Lanes of
//! real agents are tested with those agents.

mod listen;
mod send;

#[allow(dead_code, reason = "the client's own tests use the rest of it")]
#[path = "../../../../agent/client/tests/fake_agent/fake.rs"]
mod fake;

use std::{
    io::Write,
    process::{Child, ChildStdin, Command, Stdio},
    time::{Duration, Instant},
};

use fake::{FakeAgent, Peer};
use fide_testbed::Lines;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Bound of every wait; no wait is expected to come near it.
const LIMIT: Duration = Duration::from_secs(30);

/// A running `fide lane`; killed at the end.
struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    out: Lines,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    fn start(agent: &FakeAgent, arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_fide"))
            .arg("lane")
            .args(arguments)
            .env("FIDE_SOCKET", agent.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started");
        let (stdin, out) = (child.stdin.take(), Lines::of(child.stdout.take().expect("piped")));
        Self { child, stdin, out }
    }

    fn write(&mut self, text: &str) {
        self.stdin.as_mut().expect("open").write_all(text.as_bytes()).expect("written");
    }

    fn line(&mut self) -> String {
        self.out.next().expect("a line")
    }

    fn json(&mut self) -> Value {
        let line = self.line();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a pid")).expect("not 0");
        kill_process(pid, signal).expect("sent");
    }

    /// Waits for its end; returns the exit code and the rest of its output.
    fn end(mut self) -> (Option<i32>, String, String) {
        drop(self.stdin.take());
        let out = self.out.rest();
        let err = Lines::of(self.child.stderr.take().expect("piped")).rest();
        let code = self.child.wait().expect("ended").code();
        assert!(!err.contains("panicked"), "{err}");
        (code, out, err)
    }
}

/// The next message in the outbox, with a bound.
fn message(agent: &mut FakeAgent) -> (u8, u8, Vec<u8>) {
    let until = Instant::now() + LIMIT;
    loop {
        if let Some(message) = agent.next_lane_message() {
            return message;
        }
        assert!(Instant::now() < until, "nothing was sent");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Asserts that this is the next request, and acknowledges it.
fn done(peer: &Peer, expected: &fide_agent_api::protocol::Op) {
    let request = peer.request();
    assert_eq!(&request.op, expected);
    peer.ok(request.id, &fide_agent_api::protocol::Empty {});
}
