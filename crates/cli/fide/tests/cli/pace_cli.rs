// SPDX-License-Identifier: Apache-2.0
//! `fide pace` as real processes over the loopback: streams, tunnels, and what is refused.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::UdpSocket,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
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

/// A free port that no other test takes: below those that the kernel gives away by itself.
fn port() -> u16 {
    const PORTS: std::ops::Range<u32> = 20_000..32_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id() * 64;
    let mut ports =
        std::iter::repeat_with(|| PORTS.start + (first + NEXT.fetch_add(1, Relaxed)) % (PORTS.end - PORTS.start));
    let free = |port: u32| u16::try_from(port).ok().filter(|port| UdpSocket::bind(("127.0.0.1", *port)).is_ok());
    ports.find_map(free).unwrap()
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
        // From the beginning: what a reader leaves in a full pipe until its deadline is not delivered.
        let reads = std::thread::spawn(move || {
            let mut came = String::new();
            out.read_to_string(&mut came).map(|_| came)
        });
        let key = of_client.to_str().unwrap();
        let mut sender = fide(&["send", &at, "--key", key, "--lines", "--deadline", "5s", "--json"]).spawn().unwrap();
        let lines: String = (0..500).map(|at| format!("line {at} {}\n", "x".repeat(at))).collect();
        sender.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        let sent = sender.wait_with_output().unwrap();
        assert!(sent.status.success(), "{}", text(&sent.stderr));
        let report: serde_json::Value = serde_json::from_slice(&sent.stdout).unwrap();
        assert_eq!(report["sent"]["messages"], 500, "{report}");
        assert!(report["ended"].is_null(), "{report}");
        let came = reads.join().unwrap().unwrap();
        assert!(came == lines, "{} bytes came of {}", came.len(), lines.len());
        assert_eq!(status(receiver), Some(0));
    }
}

/// A program, a client, and a tunnel between them.
struct Tunnel {
    _dir: tempfile::TempDir,
    program: UdpSocket,
    client: UdpSocket,
    /// The end that forwards, and the one that takes; what they say is read to no end.
    far: (Process, BufReader<std::process::ChildStderr>),
    near: (Process, BufReader<std::process::ChildStderr>),
}

impl Tunnel {
    fn open() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let key = new_key(dir.path(), "key");
        let key = key.to_str().unwrap();
        let program = UdpSocket::bind("127.0.0.1:0").unwrap();
        program.set_read_timeout(Some(LIMIT)).unwrap();
        let (there, here) = (format!("127.0.0.1:{}", port()), format!("127.0.0.1:{}", port()));
        let forward = program.local_addr().unwrap().to_string();
        let far = waits(&["tunnel", "--accept", &there, "--forward", &forward, "--key", key, "--deadline", "5s"]);
        let near = waits(&["tunnel", "--from", &here, "--to", &there, "--key", key, "--deadline", "5s"]);
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.set_read_timeout(Some(LIMIT)).unwrap();
        client.connect(&here).unwrap();
        Self { _dir: dir, program, client, far, near }
    }
}

#[test]
fn datagrams_of_any_program_go_through_a_tunnel_and_back() {
    let Tunnel { _dir, program, client, far: (far, _far_errors), near: (near, _near_errors) } = Tunnel::open();
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

/// They come from ports of their own, and each gets its answers.
#[test]
fn programs_share_a_tunnel() {
    let Tunnel { _dir, program, client, far: _far, near: _near } = Tunnel::open();
    let other = UdpSocket::bind("127.0.0.1:0").unwrap();
    other.set_read_timeout(Some(LIMIT)).unwrap();
    other.connect(client.peer_addr().unwrap()).unwrap();
    let (mut buffer, mut froms) = ([0; 2000], [None; 2]);
    for round in 0..50_u8 {
        // Both before either is answered.
        client.send(&[0, round]).unwrap();
        other.send(&[1, round]).unwrap();
        let came = [(); 2].map(|()| {
            let (len, from) = program.recv_from(&mut buffer).unwrap();
            let who = usize::from(buffer[0]);
            assert_eq!((len, buffer[1]), (2, round), "{:?}", &buffer[..len]);
            assert_eq!(*froms[who].get_or_insert(from), from, "a flow keeps its port");
            (buffer[0], from)
        });
        for (who, from) in came.iter().rev() {
            program.send_to(&[*who, round, b'!'], from).unwrap();
        }
        for (who, socket) in [(0, &client), (1, &other)] {
            let len = socket.recv(&mut buffer).unwrap();
            assert_eq!(buffer[..len], [who, round, b'!']);
        }
    }
    assert!(froms[0] != froms[1], "{froms:?}");
}

/// One that knows no flows hands its datagrams on as they are, and greets nobody.
#[test]
fn tunnel_of_another_version_is_refused_before_anything_is_handed_on() {
    use fide_pace_socket::{ClientKey, Config, Endpoint, ServerKey};
    let dir = tempfile::tempdir().unwrap();
    let key = new_key(dir.path(), "key");
    let text = fs::read_to_string(&key).unwrap();
    let key = key.to_str().unwrap();
    let config = Config { deadline_ns: 60_000_000_000, queue_max: 100, ..Config::default() };
    let ends = |(process, mut errors): (Process, BufReader<std::process::ChildStderr>)| {
        assert_eq!(status(process), Some(1));
        let mut says = String::new();
        errors.read_to_string(&mut says).unwrap();
        assert!(says.contains("version 2 of tunnels") && says.contains("the same release"), "{says}");
    };
    // It takes what comes, and says nothing.
    let server = Endpoint::server("127.0.0.1:0".parse().unwrap(), ServerKey::parse(&text).unwrap(), config).unwrap();
    let (from, to) = (format!("127.0.0.1:{}", port()), server.local_address().unwrap().to_string());
    let near = waits(&["tunnel", "--from", &from, "--to", &to, "--key", key]);
    let there = server.accept().unwrap();
    UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"not handed on", &from).unwrap();
    ends(near);
    let why = there.recv().unwrap_err().to_string();
    assert!(why.contains("the same release"), "{why}");

    let program = UdpSocket::bind("127.0.0.1:0").unwrap();
    program.set_nonblocking(true).unwrap();
    let (accept, forward) = (format!("127.0.0.1:{}", port()), program.local_addr().unwrap().to_string());
    let far = waits(&["tunnel", "--accept", &accept, "--forward", &forward, "--key", key]);
    let client_key = ClientKey::parse(&text).unwrap();
    let here = Endpoint::client().unwrap().connect(accept.parse().unwrap(), &client_key, config).unwrap();
    while here.try_send(b"datagram", None).is_ok() {
        std::thread::sleep(Duration::from_millis(20));
    }
    ends(far);
    assert_eq!(program.recv(&mut [0; 100]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}

fn json(output: &Output) -> serde_json::Value {
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Views until one is as it should be.
fn await_top(words: &[&str], is_so: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
    let since = std::time::Instant::now();
    loop {
        // A process that has just been started shows nothing yet, which is said by 1.
        let output = output(words);
        let view = serde_json::from_slice(&output.stdout).unwrap_or_default();
        if is_so(&view) {
            return view;
        }
        assert!(since.elapsed() < LIMIT, "{view:#} {}", text(&output.stderr));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn top_shows_connections_of_running_programs_and_nothing_of_killed_ones() {
    let dir = tempfile::tempdir().unwrap();
    let key = new_key(dir.path(), "key");
    let key = key.to_str().unwrap();
    let at = format!("127.0.0.1:{}", port());
    let (receiver, _errors) = waits(&["recv", &at, "--key", key, "--lines"]);
    let mut sender = Process(fide(&["send", &at, "--key", key, "--lines", "--deadline", "5s"]).spawn().unwrap());
    let mut input = sender.0.stdin.take().unwrap();
    for line in 0..200 {
        writeln!(input, "line {line}").unwrap();
    }
    let (there, here) = (receiver.0.id().to_string(), sender.0.id().to_string());
    let of_sender = await_top(&["top", "--once", "--json", "--pid", &here], |view| {
        view["endpoints"][0]["shown"][0]["out"]["messages"] == 200
    });
    let endpoint = &of_sender["endpoints"][0];
    assert_eq!(
        (&endpoint["program"], &endpoint["accepts"]),
        (&"fide pace send".into(), &false.into()),
        "{of_sender:#}"
    );
    let shown = &endpoint["shown"][0];
    assert_eq!(shown["peer"], at, "{of_sender:#}");
    assert!(
        shown["out"]["bottleneck"].is_string() && shown["out"]["paces_ns"]["transmit"].as_u64() > Some(0),
        "{shown:#}"
    );
    assert!(shown["path"]["round_trip_us"].is_u64() && shown["path"]["loss"].is_number(), "{shown:#}");
    await_top(&["top", "--once", "--json", "--pid", &there], |view| {
        view["endpoints"][0]["shown"][0]["in"]["messages"] == 200
    });
    let view = text(&output(&["top", "--once", "--pid", &here]).stdout);
    assert!(view.contains("fide pace send") && view.contains("200 messages") && view.contains('['), "{view}");

    // One object for each view, and rates from the second one on.
    let mut top = Process(fide(&["top", "--json", "--every", "100ms", "--pid", &here]).spawn().unwrap());
    let lines = BufReader::new(top.0.stdout.take().unwrap()).lines().take(2);
    let views: Vec<serde_json::Value> = lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    let rate = |view: &serde_json::Value| view["endpoints"][0]["shown"][0]["out"]["messages_per_s"].clone();
    assert!(rate(&views[0]).is_null(), "{views:#?}");

    sender.0.kill().unwrap();
    sender.0.wait().unwrap();
    let gone = output(&["top", "--once", "--pid", &here]);
    let errors = text(&gone.stderr);
    assert!(gone.status.code() == Some(1) && errors.contains("FIDE_PACE_SHOW=1"), "{errors}");
}

/// Whoever reads what is received takes five milliseconds for a message.
#[test]
fn top_names_a_slow_reader_at_both_ends() {
    let dir = tempfile::tempdir().unwrap();
    let key = new_key(dir.path(), "key");
    let key = key.to_str().unwrap();
    let at = format!("127.0.0.1:{}", port());
    let (mut receiver, _errors) = waits(&["recv", &at, "--key", key]);
    let mut sender = Process(fide(&["send", &at, "--key", key, "--deadline", "60s"]).spawn().unwrap());
    let (mut input, mut out) = (sender.0.stdin.take().unwrap(), receiver.0.stdout.take().unwrap());
    let is_over = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(move || while !is_over.load(Relaxed) && input.write_all(&[7; 1100]).is_ok() {});
        scope.spawn(move || {
            while !is_over.load(Relaxed) && out.read_exact(&mut [0; 1100]).is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        // A thread that did not run for a moment is the slowest step for two seconds.
        for (process, way) in [(&sender, "out"), (&receiver, "in")] {
            let view = await_top(&["top", "--once", "--json", "--pid", &process.0.id().to_string()], |view| {
                view["endpoints"][0]["shown"][0][way]["bottleneck"] == "deliver"
            });
            let way = &view["endpoints"][0]["shown"][0][way];
            assert!(way["paces_ns"]["deliver"].as_u64() > Some(0), "{view:#}");
        }
        is_over.store(true, Relaxed);
        receiver.0.kill().unwrap();
        sender.0.kill().unwrap();
    });
}

#[test]
fn bench_says_what_the_other_end_got() {
    let dir = tempfile::tempdir().unwrap();
    let key = new_key(dir.path(), "key");
    let key = key.to_str().unwrap();
    let at = format!("127.0.0.1:{}", port());
    let (other, _errors) = waits(&["bench", "--accept", &at, "--key", key]);
    let words = ["bench", &at, "--key", key, "--deadline", "5s", "--seconds", "2", "--every", "5ms", "--size", "300"];
    let whole = json(&fide(&words).arg("--json").output().unwrap());
    let number = |name: &str| whole[name].as_u64().unwrap();
    assert!(number("sent") > 50 && number("sent") == number("delivered"), "{whole:#}");
    assert_eq!((number("lost"), number("size")), (0, 300), "{whole:#}");
    assert!(whole["delivery"]["p50_us"].as_u64() > Some(0) && number("uncertainty_us") > 0, "{whole:#}");
    // Nothing is delivered after its deadline.
    let longest_us = whole["delivery"]["longest_us"].as_u64().unwrap();
    assert!(longest_us <= 5_000_000 + number("uncertainty_us"), "{whole:#}");
    let shares: f64 = whole["bottleneck"].as_object().unwrap().values().map(|share| share.as_f64().unwrap()).sum();
    assert!((shares - 1.0).abs() < 1e-6, "{whole:#}");
    // The other end serves one after another.
    let said = fide(&["bench", &at, "--key", key, "--seconds", "1"]).output().unwrap();
    let said = text(&said.stdout);
    assert!(said.contains("delivered") && said.contains("slowest step") && said.contains("first to last"), "{said}");

    // An application that takes 5 ms for a message, a fifth more or less.
    let words = ["bench", &at, "--key", key, "--deadline", "5s", "--seconds", "1", "--receive-every", "5ms", "--json"];
    let whole = json(&fide(&words).output().unwrap());
    let number = |name: &str| whole[name].as_u64().unwrap();
    assert!(whole["between_delivered"]["p1_us"].as_u64() >= Some(4000), "{whole:#}");
    assert!(number("optimum_us") >= 5000 * number("delivered"), "{whole:#}");
    let over = number("whole_us") as f64 / number("optimum_us") as f64;
    assert!((whole["whole_over_optimum"].as_f64().unwrap() - over).abs() < 1e-3, "{whole:#}");
    rustix::process::kill_process(rustix::process::Pid::from_child(&other.0), rustix::process::Signal::TERM).unwrap();
    assert_eq!(status(other), Some(0));

    // `fide pace recv` answers nobody.
    let at = format!("127.0.0.1:{}", port());
    let (_receiver, _errors) = waits(&["recv", &at, "--key", key]);
    let wrong = output(&["bench", &at, "--key", key, "--seconds", "1"]);
    let errors = text(&wrong.stderr);
    assert!(wrong.status.code() == Some(1) && errors.contains("`fide pace bench --accept`"), "{errors}");
}

/// Somebody sends to the far end's socket for the program, whose port it guesses.
#[test]
fn tunnel_takes_and_gives_nothing_but_to_its_program() {
    let Tunnel { program, client, far: _far, near: _near, _dir } = Tunnel::open();
    let mut buffer = [0; 2000];
    client.send(b"hello").unwrap();
    let (_, inside) = program.recv_from(&mut buffer).unwrap();
    let stranger = UdpSocket::bind("127.0.0.3:0").unwrap();
    stranger.set_nonblocking(true).unwrap();
    stranger.send_to(b"evil", ("127.0.0.1", inside.port())).unwrap();
    // What the program says after it comes first.
    program.send_to(b"an answer", inside).unwrap();
    let len = client.recv(&mut buffer).unwrap();
    assert_eq!(text(&buffer[..len]), "an answer");
    client.send(b"for the program alone").unwrap();
    let len = program.recv(&mut buffer).unwrap();
    assert_eq!(text(&buffer[..len]), "for the program alone");
    assert_eq!(stranger.recv(&mut buffer).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}

/// The sender waits for its standard input, which stays open.
#[test]
fn send_ends_by_a_signal_while_it_reads() {
    let dir = tempfile::tempdir().unwrap();
    let key = new_key(dir.path(), "key");
    let key = key.to_str().unwrap();
    let at = format!("127.0.0.1:{}", port());
    let (mut receiver, _errors) = waits(&["recv", &at, "--key", key]);
    let mut sender = Process(fide(&["send", &at, "--key", key, "--deadline", "5s"]).spawn().unwrap());
    let mut input = sender.0.stdin.take().unwrap();
    input.write_all(b"one").unwrap();
    let mut out = [0; 3];
    receiver.0.stdout.as_mut().unwrap().read_exact(&mut out).unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_child(&sender.0), rustix::process::Signal::TERM).unwrap();
    assert_eq!(status(sender), Some(1));
    // It has told the other end why.
    assert_eq!(status(receiver), Some(1));
    drop(input);
}

#[test]
fn send_ends_with_its_receiver_while_it_reads() {
    let dir = tempfile::tempdir().unwrap();
    let key = new_key(dir.path(), "key");
    let key = key.to_str().unwrap();
    let at = format!("127.0.0.1:{}", port());
    let (mut receiver, _errors) = waits(&["recv", &at, "--key", key]);
    let mut sender = Process(fide(&["send", &at, "--key", key, "--deadline", "5s"]).spawn().unwrap());
    let mut input = sender.0.stdin.take().unwrap();
    input.write_all(b"one").unwrap();
    let mut out = [0; 3];
    receiver.0.stdout.as_mut().unwrap().read_exact(&mut out).unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_child(&receiver.0), rustix::process::Signal::TERM)
        .unwrap();
    assert_eq!(status(sender), Some(1));
    drop(input);
}

#[test]
fn peer_that_is_killed_ends_send_and_recv_with_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let key = new_key(dir.path(), "key");
    let key = key.to_str().unwrap();
    for kills_receiver in [true, false] {
        let at = format!("127.0.0.1:{}", port());
        let (mut receiver, mut of_receiver) = waits(&["recv", &at, "--key", key, "--idle", "1s"]);
        let words = ["send", &at, "--key", key, "--deadline", "60s", "--idle", "1s"];
        let mut sender = Process(fide(&words).spawn().unwrap());
        let mut input = sender.0.stdin.take().unwrap();
        let mut of_sender = sender.0.stderr.take().unwrap();
        input.write_all(b"one").unwrap();
        let mut out = [0; 3];
        receiver.0.stdout.as_mut().unwrap().read_exact(&mut out).unwrap();
        let (mut killed, left) = if kills_receiver { (receiver, sender) } else { (sender, receiver) };
        killed.0.kill().unwrap();
        assert_eq!(status(left), Some(1));
        let mut says = String::new();
        let errors: &mut dyn Read = if kills_receiver { &mut of_sender } else { &mut of_receiver };
        errors.read_to_string(&mut says).unwrap();
        let peer = if kills_receiver { at.as_str() } else { "127.0.0.1:" };
        assert!(says.contains(peer) && says.contains("the other end was not heard any more"), "{says}");
        drop(input);
    }
}

#[test]
fn recv_says_in_json_what_came() {
    let dir = tempfile::tempdir().unwrap();
    let key = new_key(dir.path(), "key");
    let key = key.to_str().unwrap();
    let at = format!("127.0.0.1:{}", port());
    let (mut receiver, mut errors) = waits(&["recv", &at, "--key", key, "--json"]);
    let mut sender = fide(&["send", &at, "--key", key, "--deadline", "5s"]).spawn().unwrap();
    sender.stdin.take().unwrap().write_all(b"one").unwrap();
    assert!(sender.wait().unwrap().success());
    let (mut out, mut says) = (String::new(), String::new());
    receiver.0.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    errors.read_to_string(&mut says).unwrap();
    assert_eq!(out, "one");
    let report: serde_json::Value = serde_json::from_str(says.lines().last().unwrap()).unwrap();
    assert_eq!(report["received"]["messages"], 1, "{report}");
}

/// The way is cut for four seconds just as the last messages leave.
#[test]
fn send_waits_for_its_last_messages_as_long_as_their_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let key = new_key(dir.path(), "key");
    let key = key.to_str().unwrap();
    let at = format!("127.0.0.1:{}", port());
    let (mut receiver, _errors) = waits(&["recv", &at, "--key", key, "--lines"]);
    let (front, back) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    back.connect(&at).unwrap();
    let (through, is_cut) = (front.local_addr().unwrap().to_string(), &AtomicBool::new(false));
    let is_over = &AtomicBool::new(false);
    let (client, front, back) = (&Mutex::new(None), &front, &back);
    for socket in [front, back] {
        socket.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    }
    let came = std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut buffer = [0; 2000];
            while !is_over.load(Relaxed) {
                let Ok((len, from)) = front.recv_from(&mut buffer) else { continue };
                *client.lock().unwrap() = Some(from);
                let _ = (!is_cut.load(Relaxed)).then(|| back.send(&buffer[..len]));
            }
        });
        scope.spawn(move || {
            let mut buffer = [0; 2000];
            while !is_over.load(Relaxed) {
                let (Ok(len), Some(to)) = (back.recv(&mut buffer), *client.lock().unwrap()) else { continue };
                let _ = (!is_cut.load(Relaxed)).then(|| front.send_to(&buffer[..len], to));
            }
        });
        let words = ["send", &through, "--key", key, "--lines", "--deadline", "40s", "--loss", "0.000001"];
        let mut sender = fide(&words).spawn().unwrap();
        let mut input = sender.stdin.take().unwrap();
        let mut out = BufReader::new(receiver.0.stdout.take().unwrap()).lines();
        input.write_all(b"first\n").unwrap();
        let first = out.next().unwrap().unwrap();
        is_cut.store(true, Relaxed);
        input.write_all(b"second\nthird\n").unwrap();
        drop(input);
        std::thread::sleep(Duration::from_secs(4));
        is_cut.store(false, Relaxed);
        let sent = sender.wait_with_output().unwrap();
        let came: Vec<_> = std::iter::once(first).chain(out.map(Result::unwrap)).collect();
        is_over.store(true, Relaxed);
        (sent.status.code(), came)
    });
    assert_eq!(came, (Some(0), ["first", "second", "third"].map(str::to_owned).to_vec()));
    assert_eq!(status(receiver), Some(0));
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
    refused(&["recv", "127.0.0.1:9", "--key", key, "--idle", "900ms"], 2, "is not a time from 1s to 3600s");
    refused(&["recv", "203.0.113.1:9", "--key", key], 2, "no UDP socket at 203.0.113.1:9");
    refused(&["tunnel", "--key", key], 2, "--accept and --forward");
    refused(&["top", "--every", "1ms"], 2, "is not a time from 100ms to 60s");
    refused(&["bench", "--key", key], 2, "--accept");
    refused(&["bench", "127.0.0.1:9", "--key", key, "--every", "1m"], 2, "is not a time from 10us to 10s");
    refused(&["bench", "--accept", "127.0.0.1:9", "--key", key, "--receive-every", "5ms"], 2, "--receive-every");
    refused(&["bench", "127.0.0.1:9", "--key", key, "--size", "3"], 2, "33..=");
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
