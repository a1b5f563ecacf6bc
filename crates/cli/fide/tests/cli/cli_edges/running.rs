// SPDX-License-Identifier: Apache-2.0
//! Answers of an agent on loopback, in words and units for people.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{BufRead, BufReader},
    os::unix::ffi::OsStrExt,
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use super::common::{GOOD, Place, refused, said};

/// Longer than anything here takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(20);

struct Agent {
    place: Place,
    child: Child,
}

impl Agent {
    fn start(port: u16) -> Self {
        let place = Place::with(&GOOD.replacen("7590", &port.to_string(), 1));
        let log = File::create(place.path("log")).expect("made");
        let child = place.agent(&[]).stdout(Stdio::null()).stderr(log).spawn().expect("started");
        let agent = Self { place, child };
        let until = Instant::now() + LIMIT;
        while agent.asks(&["status"]).0 == Some(1) && !agent.place.path("agent.sock").exists() {
            assert!(Instant::now() < until, "no agent: {}", agent.log());
            std::thread::sleep(Duration::from_millis(5));
        }
        agent
    }

    fn asks(&self, words: &[&str]) -> (Option<i32>, String, String) {
        said(self.place.fide(words).env("FIDE_SOCKET", "agent.sock"))
    }

    fn refuses(&self, words: &[&str], code: i32, says: &[&str]) -> String {
        refused(self.place.fide(words).env("FIDE_SOCKET", "agent.sock"), code, says)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.place.path("log")).unwrap_or_default()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn agent_answers_in_words_and_in_times_with_units() {
    let agent = Agent::start(7592);
    let (code, out, err) = agent.asks(&["watch", "@a", "--limit", "0.1"]);
    assert!(code == Some(0) && out.starts_with("watching @a: this host itself"), "{out}{err}");
    let (_, out, _) = agent.asks(&["watch", "@a", "--limit", "0.1", "--json"]);
    assert!(out.contains("\"state\":\"alive\""), "{out}");
    let (code, out, err) = agent.asks(&["watch", "x@a", "--limit", "0.1"]);
    assert!(
        code == Some(0) && out.starts_with("watching x@a: unknown, on this host: its end is notified at once"),
        "{out}{err}"
    );
    let (code, out, err) = agent.asks(&["watch", "@b", "--limit", "0.1"]);
    assert!(code == Some(0) && out.contains("silence is noticed within ") && out.contains(" ms"), "{out}{err}");
    let said = agent.refuses(
        &["watch", "@b", "--timeout-us", "1"],
        2,
        &["a timeout of 1 us is shorter than the pair's", " ms; ask for at least that"],
    );
    assert!(!said.contains(" ns"), "{said}");
    agent.refuses(&["watch", "@nobody"], 2, &["nobody"]);
    agent.refuses(&["explain", "a-999999"], 2, &["a-999999", "`fide explain` without an id lists the last ones"]);
    let (_, out, _) = agent.asks(&["status"]);
    assert!(out.contains("heartbeat 5 ms") && !out.contains("µs"), "{out}");
    let debug = ["Shared", "Ordinary", "Some(", "Duration", "{ "];
    assert!(debug.iter().all(|words| !out.contains(words)), "{out}");
}

#[test]
fn log_has_no_colours_where_it_is_no_terminal() {
    let agent = Agent::start(7593);
    let until = Instant::now() + LIMIT;
    while !agent.log().contains("agent is running") {
        assert!(Instant::now() < until, "{}", agent.log());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!agent.log().contains('\u{1b}'), "{:?}", agent.log());
}

#[test]
fn programs_get_their_arguments_though_they_are_no_text() {
    let agent = Agent::start(7594);
    let fide = |words: &[&[u8]]| {
        let words: Vec<&OsStr> = words.iter().map(|word| OsStr::from_bytes(word)).collect();
        let mut command = agent.place.fide(&words);
        command.env("FIDE_SOCKET", "agent.sock");
        command
    };
    let mut watching = fide(&[b"watch", b"x@a", b"--on-failure", b"printf '\xff' > reacted"]);
    let mut watching = watching.stdout(Stdio::piped()).spawn().expect("started");
    let mut said = String::new();
    BufReader::new(watching.stdout.take().expect("piped")).read_line(&mut said).expect("read");
    assert!(said.starts_with("watching x@a"), "{said}");
    let words: [&[u8]; 9] =
        [b"run", b"--name", b"x", b"--on-fence", b"ignore", b"--", b"sh", b"-c", b"echo \xff; exit 7"];
    let output = fide(&words).output().expect("run");
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(7), &b"\xff\n"[..]), "{output:?}");
    assert_eq!(watching.wait().expect("ended").code(), Some(1));
    assert_eq!(fs::read(agent.place.path("reacted")).expect("the command has run"), b"\xff");
    let words: [&[u8]; 7] = [b"run", b"--name", b"x", b"--on-fence", b"ignore", b"--", b"./no\xff"];
    let output = fide(&words).output().expect("run");
    assert_eq!(output.status.code(), Some(127), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("fide run: ./no\u{fffd}: No such file"), "{output:?}");
}
