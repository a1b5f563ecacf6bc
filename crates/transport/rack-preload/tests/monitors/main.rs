// SPDX-License-Identifier: Apache-2.0
//! Programs whose monitor is restarted, has no place for them, or does not answer: they go on, and come back to it.

mod crowds;
#[path = "../under/mod.rs"]
mod under;

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, TcpListener},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use fide_rack::meet::{ask::Asks, monitor::Monitor};
use rustix::process::{Pid, Signal, kill_process};
use under::{LIMIT, MONITOR, until};

/// Connections that are made until one has its memory.
const TRIES: usize = 300;

struct Program {
    child: Child,
    to: Option<ChildStdin>,
    lines: mpsc::Receiver<String>,
}

impl Program {
    fn start(directory: &Path, script: &str, arguments: &[&str]) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(script);
        let mut command = Command::new("python3");
        command.arg(script).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        under::sets(&mut command, directory);
        let mut child = command.spawn().unwrap();
        let (to, from) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        let (tell, lines) = mpsc::channel();
        thread::spawn(move || {
            let read = |from: BufReader<ChildStdout>| from.lines().map_while(Result::ok);
            let _ = read(from).try_for_each(|line| tell.send(line));
        });
        Self { child, to, lines }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(LIMIT).unwrap()
    }

    /// Makes a connection, and waits until it is done with it.
    fn says(&mut self, what: &str) {
        writeln!(self.to.as_mut().unwrap(), "{what}").unwrap();
        assert_eq!(self.line(), what);
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.to = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn both(directory: &Path, how: &[&str]) -> [Program; 2] {
    let server = Program::start(directory, "talks.py", &[&["server"], how].concat());
    let client = Program::start(directory, "talks.py", &["client", &server.line()]);
    [server, client]
}

fn paired(monitor: &Monitor) -> u64 {
    monitor.view().counts.paired
}

/// Connections are made until one of them has its memory.
fn comes_back(client: &mut Program, monitor: &Monitor) {
    for _ in 0..TRIES {
        client.says("talk 30");
        if paired(monitor) > 0 {
            return;
        }
    }
    panic!("no connection has its memory");
}

#[test]
fn programs_come_back_to_a_monitor_that_is_restarted() {
    for how in [&[][..], &["forks"]] {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().join(MONITOR);
        // As the programs begin there is none.
        let [_server, mut client] = both(directory.path(), how);
        client.says("talk 3");
        for _ in 0..3 {
            let monitor = Monitor::start(&at).unwrap();
            comes_back(&mut client, &monitor);
            client.says("keep 30");
            drop(monitor);
            client.says("talk 30");
        }
    }
}

/// A server that forks has more children than the monitor has places: each has one only while it asks.
#[test]
fn children_keep_no_place_at_the_monitor() {
    let directory = tempfile::tempdir().unwrap();
    let monitor = Monitor::start(&directory.path().join(MONITOR)).unwrap();
    let [_server, mut client] = both(directory.path(), &["forks"]);
    for count in 1..=20 {
        for _ in 0..TRIES {
            client.says("keep 20");
            if paired(&monitor) >= count {
                break;
            }
        }
        assert!(paired(&monitor) >= count, "no connection has its memory");
    }
    // It lets go as it next looks at its connection.
    until("the server and the client alone are connected", || {
        client.says("again 1");
        monitor.clients() <= 2
    });
}

/// Where the monitor of the test below listens, in a process of its own.
const STOPPED_AT: &str = "FIDE_RACK_TEST_STOPPED_AT";

#[test]
#[ignore = "run by the next one"]
fn monitor_in_a_process_of_its_own() {
    let Some(path) = std::env::var_os(STOPPED_AT) else { return };
    let _monitor = Monitor::start(path.as_ref()).unwrap();
    // Until its parent ends it, or is gone.
    let _ = std::io::stdin().read(&mut [0]);
}

/// A monitor that can be stopped.
struct Stopped {
    process: Child,
    directory: tempfile::TempDir,
}

impl Stopped {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(MONITOR);
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["monitor_in_a_process_of_its_own", "--exact", "--ignored"])
            .env(STOPPED_AT, &path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        until("a monitor", || Asks::connect(&path).is_ok());
        Self { process, directory }
    }

    fn signal(&self, which: Signal) {
        kill_process(Pid::from_child(&self.process), which).unwrap();
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// It cannot be told what it need not keep any more: the other ends wait for their end for as long as it keeps it.
#[test]
fn connections_end_also_if_a_slow_monitor_was_asked_about_too_many() {
    const MANY: usize = 500;
    let monitor = Stopped::start();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let mut client = Program::start(monitor.directory.path(), "talks.py", &["client", &port]);
    client.says("keep 0");
    monitor.signal(Signal::STOP);
    let connections: Vec<_> = (0..MANY)
        .map(|_| {
            client.says("keep 0");
            listener.accept().unwrap().0
        })
        .collect();
    client.says("drop 0");
    monitor.signal(Signal::CONT);
    for mut connection in connections {
        connection.set_read_timeout(Some(LIMIT)).unwrap();
        assert_eq!(connection.read(&mut [0]).unwrap(), 0);
    }
}

/// It takes no connection, and has no place for those that wait. Each child of the server would wait for some seconds.
#[test]
fn nobody_waits_for_a_monitor_that_is_stopped() {
    let monitor = Stopped::start();
    let (directory, path) = (&monitor.directory, monitor.directory.path().join(MONITOR));
    let [_server, mut client] = both(directory.path(), &["forks"]);
    client.says("talk 30");
    monitor.signal(Signal::STOP);
    let mut crowd = Vec::new();
    until("a monitor that takes no more", || {
        Asks::connect_within(&path, Duration::ZERO).map(|asks| crowd.push(asks)).is_err()
    });
    let (mut turns, until) = (0, Instant::now() + LIMIT);
    while turns < 50 {
        assert!(Instant::now() < until, "{turns} connections within {LIMIT:?}");
        client.says("talk 2");
        turns += 1;
    }
    monitor.signal(Signal::CONT);
    client.says("talk 30");
}
