// SPDX-License-Identifier: Apache-2.0
//! Programs as they are, under the library and without it: their clients see the same, and programs that cannot be under it are unharmed.
//!
//! They need packages, and so are run by `make test-rack`.

#[path = "../under/mod.rs"]
mod under;

use std::{
    fs,
    io::{BufRead, BufReader},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use fide_rack::meet::monitor::Monitor;
use under::{LIMIT, ends};

/// A directory for a run, with a monitor if it is under the library.
struct Host {
    monitor: Option<Monitor>,
    directory: tempfile::TempDir,
}

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/apps/programs")
}

impl Host {
    fn new(is_under: bool) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let monitor = is_under.then(|| Monitor::start(&directory.path().join(under::MONITOR)).unwrap());
        Self { monitor, directory }
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).current_dir(self.directory.path());
        if self.monitor.is_some() {
            under::sets(&mut command, self.directory.path());
        }
        command
    }

    /// Runs a client to its end: what it printed.
    fn client(&self, command: &mut Command) -> String {
        let mut client = command.spawn().unwrap_or_else(|why| panic!("{command:?}: {why}"));
        let printed = client.stdout.take().unwrap();
        ends(client, printed)
    }

    /// A server that prints its ports first, and ends by itself; a client that gets them: what both printed.
    fn pair(&self, server: &mut Command, client: &mut Command) -> String {
        let mut server = server.spawn().unwrap_or_else(|why| panic!("{server:?}: {why}"));
        let mut of_server = BufReader::new(server.stdout.take().unwrap());
        let mut ports = String::new();
        of_server.read_line(&mut ports).unwrap();
        let reads = thread::spawn(move || ends(server, of_server));
        let of_client = self.client(client.args(ports.split_whitespace()));
        of_client + &reads.join().unwrap()
    }

    /// A server with a port of its own that does not end by itself, once it answers.
    fn server(&self, port: u16, command: &mut Command) -> Server {
        let child = command.stdout(Stdio::null()).spawn().unwrap_or_else(|why| panic!("{command:?}: {why}"));
        let until = Instant::now() + LIMIT;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < until, "{command:?} does not listen within {LIMIT:?}");
            thread::sleep(Duration::from_millis(5));
        }
        Server(child)
    }

    /// Connections of each process that went over to memory, the most first.
    fn attached(&self) -> Vec<u32> {
        let stats = fs::read_to_string(self.directory.path().join(under::STATS)).unwrap_or_default();
        let mut counts: Vec<u32> = stats.lines().filter_map(|line| line.rsplit_once(' ')?.1.parse().ok()).collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        counts
    }
}

/// Ends with it.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Runs it without the library, and under it: it is to print the same, and its connections to go over memory.
fn is_the_same(least: u32, run: impl Fn(&Host) -> String) {
    let [plain, under] = [false, true].map(|is_under| {
        let host = Host::new(is_under);
        (run(&host), host.attached())
    });
    assert!(plain.1.is_empty());
    let most = under.1.first().copied().unwrap_or(0);
    assert_eq!(under.0, plain.0);
    assert!(most >= least, "{most} connections of one process went over memory, of {least} at least");
    assert!(plain.0.lines().count() > 3, "it has printed little: {}", plain.0);
}

#[test]
#[ignore = "needs memcached: make test-rack"]
fn memcached_is_the_same() {
    is_the_same(36, |host| {
        let port = free_port();
        let mut command = host.command("memcached");
        command.args(["-l", "127.0.0.1", "-U", "0", "-u", "root", "-m", "512", "-c", "200", "-p", &port.to_string()]);
        let _server = host.server(port, &mut command);
        host.client(host.command("python3").arg(programs().join("memcached.py")).arg(port.to_string()))
    });
}

#[test]
#[ignore = "takes long: make test-rack"]
fn streams_of_asyncio_are_the_same() {
    is_the_same(6, |host| {
        let with = |role| {
            let mut command = host.command("python3");
            command.arg(programs().join("streams.py")).arg(role);
            command
        };
        host.pair(&mut with("server"), &mut with("client"))
    });
}

#[test]
#[ignore = "needs a JDK: make test-rack"]
fn selectors_streams_and_http_of_java_are_the_same() {
    let classes = tempfile::tempdir().unwrap();
    let mut compiles = Command::new("javac");
    let compiled = compiles.arg("-d").arg(classes.path()).arg(programs().join("Streams.java")).status();
    assert!(compiled.expect("javac (apt-get install default-jdk-headless)").success());
    is_the_same(9, |host| {
        let with = |role| {
            let mut command = host.command("java");
            command.arg("-cp").arg(classes.path()).args(["Streams", role]);
            command
        };
        host.pair(&mut with("server"), &mut with("client"))
    });
}

/// Go makes its system calls by itself, and a server under the library has both kinds of clients.
#[test]
#[ignore = "needs Go and Redis: make test-rack"]
fn clients_of_go_are_unharmed_beside_others_over_memory() {
    let built = tempfile::tempdir().unwrap();
    let client = built.path().join("client");
    let mut builds = Command::new("go");
    builds.args(["build", "-o"]).arg(&client).arg(programs().join("client.go")).current_dir(built.path());
    assert!(builds.status().expect("go (apt-get install golang-go)").success());
    is_the_same(20, |host| {
        let port = free_port();
        let mut command = host.command("redis-server");
        command.args(["--save", "", "--bind", "127.0.0.1", "--port", &port.to_string()]);
        let _server = host.server(port, &mut command);
        let mut benchmark = host.command("redis-benchmark");
        benchmark.args(["-q", "-t", "set,get", "-c", "30", "-n", "60000", "-p", &port.to_string()]);
        let mut others = benchmark.stdout(Stdio::null()).spawn().unwrap();
        let printed = host.client(host.command(client.to_str().unwrap()).arg(port.to_string()));
        assert!(others.wait().unwrap().success());
        printed
    });
}
