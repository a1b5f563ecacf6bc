// SPDX-License-Identifier: Apache-2.0
//! `fide pace` as real processes over the loopback: streams, tunnels, and what is refused.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::UdpSocket,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

const FIDE: &str = env!("CARGO_BIN_EXE_fide");
/// For what takes milliseconds.
const LIMIT: Duration = Duration::from_secs(60);

/// Ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn fide(words: &[&str]) -> Command {
    let mut command = Command::new(FIDE);
    command.arg("pace").args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn output(words: &[&str]) -> Output {
    fide(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn write_key(dir: &Path, name: &str, key: &str) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, key).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
    path
}

fn new_key(dir: &Path, name: &str) -> PathBuf {
    write_key(dir, name, &text(&output(&["key"]).stdout))
}

/// A free port, as far as one can know.
fn port() -> u16 {
    UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Starts one that says on standard error that it waits, and returns once it has.
fn waits(words: &[&str]) -> (Process, BufReader<std::process::ChildStderr>) {
    let mut child = fide(words).spawn().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let process = Process(child);
    let mut line = String::new();
    errors.read_line(&mut line).unwrap();
    assert!(line.contains("waiting") || line.contains("are carried"), "{line}");
    (process, errors)
}

fn status(mut process: Process) -> Option<i32> {
    let since = std::time::Instant::now();
    loop {
        if let Some(status) = process.0.try_wait().unwrap() {
            return status.code();
        }
        assert!(since.elapsed() < LIMIT, "it does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn standard_input_comes_out_at_the_other_end() {
    let dir = tempfile::tempdir().unwrap();
    let secret = new_key(dir.path(), "secret");
    let private = write_key(dir.path(), "private", &text(&output(&["key", "--private"]).stdout));
    let public = text(&output(&["key", "--public", private.to_str().unwrap()]).stdout);
    let public = write_key(dir.path(), "public", &public);
    for (of_server, of_client) in [(&secret, &secret), (&private, &public)] {
        let at = format!("127.0.0.1:{}", port());
        let (mut receiver, _errors) = waits(&["recv", &at, "--key", of_server.to_str().unwrap(), "--lines"]);
        let mut out = receiver.0.stdout.take().unwrap();
        let key = of_client.to_str().unwrap();
        let mut sender = fide(&["send", &at, "--key", key, "--lines", "--deadline", "5s", "--json"]).spawn().unwrap();
        let lines: String = (0..500).map(|at| format!("line {at} {}\n", "x".repeat(at))).collect();
        sender.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        let sent = sender.wait_with_output().unwrap();
        assert!(sent.status.success(), "{}", text(&sent.stderr));
        let report: serde_json::Value = serde_json::from_slice(&sent.stdout).unwrap();
        assert_eq!(report["sent"]["messages"], 500, "{report}");
        let mut came = String::new();
        out.read_to_string(&mut came).unwrap();
        assert!(came == lines, "{} bytes came of {}", came.len(), lines.len());
        assert_eq!(status(receiver), Some(0));
    }
}

#[test]
fn datagrams_of_any_program_go_through_a_tunnel_and_back() {
    let dir = tempfile::tempdir().unwrap();
    let key = new_key(dir.path(), "key");
    let key = key.to_str().unwrap();
    let program = UdpSocket::bind("127.0.0.1:0").unwrap();
    program.set_read_timeout(Some(LIMIT)).unwrap();
    let (there, here) = (format!("127.0.0.1:{}", port()), format!("127.0.0.1:{}", port()));
    let forward = program.local_addr().unwrap().to_string();
    let (far, _far_errors) =
        waits(&["tunnel", "--accept", &there, "--forward", &forward, "--key", key, "--deadline", "5s"]);
    let (near, _near_errors) = waits(&["tunnel", "--from", &here, "--to", &there, "--key", key, "--deadline", "5s"]);
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.set_read_timeout(Some(LIMIT)).unwrap();
    client.connect(&here).unwrap();
    let mut buffer = [0; 65_536];
    for len in [0, 1, 1000, 1472, 9000, 60_000] {
        let sent: Vec<u8> = (0..len).map(|at| u8::try_from(at % 251).unwrap()).collect();
        client.send(&sent).unwrap();
        let (got, from) = program.recv_from(&mut buffer).unwrap();
        assert!(buffer[..got] == sent[..], "{got} bytes came of {len}");
        program.send_to(&buffer[..got], from).unwrap();
        let got = client.recv(&mut buffer).unwrap();
        assert!(buffer[..got] == sent[..], "{got} bytes came back of {len}");
    }
    // One end goes, and the other with it.
    rustix::process::kill_process(rustix::process::Pid::from_child(&near.0), rustix::process::Signal::TERM).unwrap();
    assert_eq!(status(near), Some(0));
    assert_eq!(status(far), Some(0));
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let key = new_key(dir.path(), "key");
    let key = key.to_str().unwrap();
    let refused = |words: &[&str], code: i32, says: &str| {
        let output = output(words);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {errors}");
        assert!(errors.contains(says), "{words:?}: {errors}");
    };
    refused(&["send", "127.0.0.1:9", "--key", "/nowhere"], 2, "/nowhere");
    refused(&["send", "nonsense", "--key", key], 2, "use HOST:PORT");
    refused(&["send", "127.0.0.1:9", "--key", key, "--deadline", "1m"], 2, "is not a time");
    refused(&["send", "127.0.0.1:9", "--key", key, "--loss", "0"], 2, "is no share");
    refused(&["recv", "203.0.113.1:9", "--key", key], 2, "no UDP socket at 203.0.113.1:9");
    refused(&["tunnel", "--key", key], 2, "--accept and --forward");
    let open = dir.path().join("open");
    fs::write(&open, text(&output(&["key"]).stdout)).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).unwrap();
    refused(&["send", "127.0.0.1:9", "--key", open.to_str().unwrap()], 2, "chmod 0400");
    let wrong = write_key(dir.path(), "wrong", "a password");
    refused(&["send", "127.0.0.1:9", "--key", wrong.to_str().unwrap()], 2, "`fide pace key` makes one");

    let at = format!("127.0.0.1:{}", port());
    let (_receiver, _errors) = waits(&["recv", &at, "--key", key]);
    let other = new_key(dir.path(), "other");
    refused(&["send", &at, "--key", other.to_str().unwrap()], 1, "the other end has another key");
}
