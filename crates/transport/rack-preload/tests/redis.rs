// SPDX-License-Identifier: Apache-2.0
//! A Redis server and its clients under the library, and the same without it: the clients see the same.

mod under;

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    thread,
};

use fide_rack::meet::monitor::Monitor;
use under::{ends, until};

fn is_installed(name: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(name).is_file()))
}

/// A server, and what has to be known to be its client.
struct Redis<'a> {
    server: Child,
    port: String,
    directory: &'a Path,
    is_under: bool,
}

fn command(name: &str, is_under: bool, directory: &Path) -> Command {
    let mut command = Command::new(name);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).current_dir(directory);
    if is_under {
        under::sets(&mut command, directory);
    }
    command
}

impl<'a> Redis<'a> {
    fn start(is_under: bool, directory: &'a Path) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
        let mut server = command("redis-server", is_under, directory);
        server.args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--enable-debug-command", "yes"]);
        let server = server.stdout(Stdio::null()).spawn().unwrap();
        let redis = Self { server, port, directory, is_under };
        until("a server that answers", || redis.asks(&["PING"]) == "PONG\n");
        redis
    }

    fn client(&self, name: &str, arguments: &[&str]) -> Command {
        let mut client = command(name, self.is_under, self.directory);
        client.args(["-p", &self.port]).args(arguments);
        client
    }

    /// The answer to one command.
    fn asks(&self, arguments: &[&str]) -> String {
        let mut client = self.client("redis-cli", arguments).spawn().unwrap();
        let printed = client.stdout.take().unwrap();
        ends(client, printed)
    }

    /// The answers to one client's commands, one a line.
    fn says(&self, commands: &str) -> String {
        let mut client = self.client("redis-cli", &[]).stdin(Stdio::piped()).spawn().unwrap();
        let (mut to, from) = (client.stdin.take().unwrap(), client.stdout.take().unwrap());
        let commands = commands.to_owned();
        let writes = thread::spawn(move || to.write_all(commands.as_bytes()));
        let printed = ends(client, from);
        writes.join().unwrap().unwrap();
        printed
    }

    /// A client that goes on, with its first lines.
    fn listens(&self, arguments: &[&str], lines: usize) -> Listener {
        let mut child = self.client("redis-cli", arguments).spawn().unwrap();
        let mut listener = Listener { from: BufReader::new(child.stdout.take().unwrap()), child };
        listener.lines(lines);
        listener
    }

    fn saves(&self) -> String {
        let last = self.asks(&["INFO", "persistence"]);
        let answer = self.asks(&["BGSAVE"]);
        until("the end of a BGSAVE", || self.asks(&["INFO", "persistence"]).contains("rdb_bgsave_in_progress:0"));
        assert!(last.contains("rdb_bgsave_in_progress:0"), "{last}");
        let now = self.asks(&["INFO", "persistence"]);
        assert!(now.contains("rdb_last_bgsave_status:ok"), "{now}");
        answer
    }

    fn has_no(&self, of: &str) {
        until(of, || !self.asks(&["CLIENT", "LIST"]).contains(of));
    }
}

struct Listener {
    child: Child,
    from: BufReader<ChildStdout>,
}

impl Listener {
    fn lines(&mut self, count: usize) -> Vec<String> {
        (0..count)
            .map(|_| {
                let mut line = String::new();
                self.from.read_line(&mut line).unwrap();
                // What a monitor is told begins with the time and the client.
                line.split_once("] ").map_or(line.clone(), |(_, said)| said.to_owned())
            })
            .collect()
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// All that the clients see.
fn seen(is_under: bool, directory: &Path) -> Vec<String> {
    let mut redis = Redis::start(is_under, directory);
    let mut seen = Vec::new();
    let mut commands = String::new();
    for number in 0..300 {
        commands += &format!("SET k{number} v{number}\nINCRBY sum {number}\nLPUSH list {number}\nGET k{number}\n");
    }
    commands += "LRANGE list 0 -1\nSETRANGE big 999999 x\nGET big\nMULTI\nINCR sum\nGET sum\nEXEC\n";
    commands +=
        "EVAL \"return redis.call('GET', 'k7')\" 0\nNOTHING\nGET list\nINFO keyspace\nDEBUG SLEEP 0.05\nDBSIZE\n";
    seen.push(redis.says(&commands));

    // A client of each kind that only listens, and one that lets all others wait.
    let mut monitor = redis.listens(&["MONITOR"], 1);
    let mut subscriber = redis.listens(&["SUBSCRIBE", "news"], 3);
    let sleeper = redis.client("redis-cli", &["DEBUG", "SLEEP", "0.3"]).spawn().unwrap();
    let published: String = (0..200).map(|number| format!("PUBLISH news {number}\n")).collect();
    seen.push(redis.says(&published));
    seen.extend(subscriber.lines(3 * 200));
    seen.push(sleeper.wait_with_output().map(|output| String::from_utf8(output.stdout).unwrap()).unwrap());
    let mut monitored = monitor.lines(2 + 200);
    monitored.sort();
    seen.extend(monitored);

    // Clients that are killed, by the server and by the kernel.
    seen.push(redis.asks(&["CLIENT", "KILL", "TYPE", "pubsub"]));
    let mut rest = String::new();
    subscriber.from.read_to_string(&mut rest).unwrap();
    seen.push(rest);
    subscriber.child.wait().unwrap();
    monitor.kill();
    redis.has_no("cmd=monitor");
    let blocked = redis.listens(&["BLPOP", "nothing", "0"], 0);
    until("a client that waits", || redis.asks(&["CLIENT", "LIST"]).contains("cmd=blpop"));
    blocked.kill();
    redis.has_no("cmd=blpop");

    // The server forks while clients write.
    let mut benchmark = redis.client("redis-benchmark", &["-t", "set", "-r", "5000", "-n", "40000", "-c", "20", "-q"]);
    let mut writes = benchmark.stdout(Stdio::null()).spawn().unwrap();
    for _ in 0..3 {
        seen.push(redis.saves());
    }
    assert!(writes.wait().unwrap().success());
    redis.has_no("cmd=set");
    let size = redis.asks(&["DBSIZE"]);
    seen.push(redis.saves());
    seen.push(redis.asks(&["DEBUG", "RELOAD", "NOSAVE"]));
    assert_eq!(redis.asks(&["DBSIZE"]), size);
    seen.push(redis.asks(&["GET", "k7"]));

    // Pipelines.
    let mut benchmark =
        redis.client("redis-benchmark", &["-t", "set,get", "-n", "100000", "-c", "20", "-P", "16", "-q"]);
    assert!(benchmark.stdout(Stdio::null()).status().unwrap().success());
    seen.push(redis.asks(&["SHUTDOWN", "NOSAVE"]));
    until("the end of the server", || redis.server.try_wait().unwrap().is_some());
    seen
}

#[test]
fn redis_is_the_same() {
    for name in ["redis-server", "redis-cli", "redis-benchmark"] {
        if !is_installed(name) {
            eprintln!("skipped: no {name} in PATH (apt-get install redis-server)");
            return;
        }
    }
    let [plain, under] = [false, true].map(|is_under| {
        let directory = tempfile::tempdir().unwrap();
        let _monitor = is_under.then(|| Monitor::start(&directory.path().join(under::MONITOR)).unwrap());
        let seen = seen(is_under, directory.path());
        let stats = fs::read_to_string(directory.path().join(under::STATS)).unwrap_or_default();
        let attached = stats.lines().filter_map(|line| line.rsplit_once(' ')?.1.parse::<u32>().ok());
        (seen, attached.max().unwrap_or(0))
    });
    assert_eq!(plain.1, 0);
    // Those of both benchmarks.
    assert!(under.1 >= 40, "{} connections of the server went over memory", under.1);
    for (at, (plain, under)) in plain.0.iter().zip(&under.0).enumerate() {
        assert!(plain == under, "{at}: {under:.1000}, and without the library: {plain:.1000}");
    }
    assert_eq!(plain.0.len(), under.0.len());
}
