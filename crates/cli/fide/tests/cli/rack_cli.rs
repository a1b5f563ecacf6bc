// SPDX-License-Identifier: Apache-2.0
//! `fide rack` as real processes: programs of Python whose connections go over memory, a monitor that comes and goes, and what is refused.

mod checks;
mod links;
mod users;

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;

const FIDE: &str = env!("CARGO_BIN_EXE_fide");
/// For what takes milliseconds.
const LIMIT: Duration = Duration::from_secs(60);

/// Ends with the test.
struct Process {
    child: Child,
    out: BufReader<ChildStdout>,
    input: Option<ChildStdin>,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let input = child.stdin.take();
        Self { child, out, input }
    }

    /// The next line that it prints; empty at the end.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// A client asks once more.
    fn asks_again(&mut self) {
        self.input.as_mut().unwrap().write_all(b"\n").unwrap();
        assert_eq!(self.line(), "asked");
    }

    /// Nothing more comes to its standard input: a client ends. Its exit code.
    fn finishes(&mut self) -> i32 {
        self.input = None;
        self.ends()
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Its exit code, once it has ended; 128 and more: a signal.
    fn ends(&mut self) -> i32 {
        let until = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code().unwrap_or_else(|| 128 + status.signal().unwrap());
            }
            assert!(Instant::now() < until, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn fide(words: &[&str]) -> Command {
    let mut command = Command::new(FIDE);
    command.arg("rack").args(words).env_remove("FIDE_RACK_MONITOR").env_remove("XDG_RUNTIME_DIR");
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The output of a program, for a failing test.
fn said(output: &Output) -> String {
    format!("{}: {}{}", output.status, text(&output.stdout), text(&output.stderr))
}

/// Cargo puts it beside this test.
fn library() -> PathBuf {
    let path = std::env::current_exe().unwrap().with_file_name("libfide_rack_preload.so");
    assert!(path.exists(), "cargo builds the library before the tests of those that depend on it");
    path
}

/// A directory with a monitor's socket, and what the programs say of themselves at their end.
struct Host {
    directory: tempfile::TempDir,
}

impl Host {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().unwrap().to_owned()
    }

    fn socket(&self) -> String {
        self.path("monitor.sock")
    }

    /// A monitor that is ready.
    fn monitor(&self) -> Process {
        let mut monitor =
            Process::start(fide(&["monitor", "--socket", &self.socket(), "--json"]).stderr(Stdio::null()));
        let ready: Value = serde_json::from_str(&monitor.line()).unwrap();
        assert!(ready["ready"] == true && ready["socket"] == self.socket().as_str(), "{ready}");
        assert_eq!(ready["pid"], monitor.child.id());
        monitor
    }

    fn run(&self, options: &[&str], words: &[&str]) -> Command {
        let mut command = fide(&["run", "--monitor", &self.socket(), "--library", library().to_str().unwrap()]);
        command.args(options).arg("--").args(words);
        command
    }

    /// An end of Python under the library.
    fn end(&self, role: &str, argument: &str) -> Process {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/rack_cli/ends.py");
        let stats = format!("--stats={}", self.path("stats"));
        Process::start(&mut self.run(&[&stats], &["python3", script.to_str().unwrap(), role, argument]))
    }

    /// A server for so many connections, and its port.
    fn server(&self, count: &str) -> (Process, String) {
        let mut server = self.end("server", count);
        let port = server.line();
        assert!(!port.is_empty());
        (server, port)
    }

    /// A client whose connection stands.
    fn client(&self, port: &str) -> Process {
        let mut client = self.end("client", port);
        assert_eq!(client.line(), "asked");
        client
    }

    /// The same, once both ends have their memory.
    fn client_with_memory(&self, port: &str) -> Process {
        let mut client = self.client(port);
        let until = Instant::now() + LIMIT;
        while self.top()["connections"][0]["over"] != "memory" {
            assert!(Instant::now() < until, "{}", self.top());
            client.asks_again();
        }
        client
    }

    fn top(&self) -> Value {
        let output = fide(&["top", "--monitor", &self.socket(), "--once", "--json"]).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// How many programs have said that so many of their connections were over memory.
    fn attached(&self, count: u32) -> usize {
        let stats = fs::read_to_string(self.path("stats")).unwrap_or_default();
        stats.lines().filter(|line| line.ends_with(&format!("attached {count}"))).count()
    }
}

#[test]
fn two_programs_of_python_share_memory_and_are_shown() {
    let host = Host::new();
    let mut monitor = host.monitor();
    let (mut server, port) = host.server("1");
    let mut client = host.client_with_memory(&port);
    let top = host.top();
    let connection = &top["connections"][0];
    assert_eq!(top["connections"].as_array().unwrap().len(), 1, "{top}");
    assert_eq!((&connection["over"], &connection["why"]), (&"memory".into(), &Value::Null), "{top}");
    assert_eq!(
        (&connection["client"]["pid"], &connection["server"]["pid"]),
        (&client.child.id().into(), &server.child.id().into())
    );
    assert!(connection["peer"].as_str().unwrap().ends_with(&format!(":{port}")), "{top}");
    // Others may not look into memory, as a rule.
    let is_seen = connection["carried_bytes"]["to_server"].is_u64();
    assert!(is_seen || !rustix::process::geteuid().is_root(), "{top}");
    assert_eq!(
        (&top["counts"]["asked"], &top["counts"]["paired"], &top["of_all_users"]),
        (&2.into(), &1.into(), &true.into())
    );
    for options in [&[][..], &["--connections"]] {
        let output = fide(&["top", "--monitor", &host.socket(), "--once"]).args(options).output().unwrap();
        let shown = text(&output.stdout);
        assert!(shown.contains("1 connections over memory, 0 over TCP") && shown.contains(" → "), "{shown}");
        assert_eq!(shown.contains(&port), !options.is_empty(), "{shown}");
    }
    let pid = server.child.id().to_string();
    let output = fide(&["check", "--pid", &pid, "--json"]).output().unwrap();
    let judged: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success() && judged["accelerated"] == true && judged["memories"] == 1, "{}", said(&output));
    assert_eq!((&judged["tcp"]["within_host"], &judged["tcp"]["listeners"]), (&1.into(), &1.into()), "{judged}");
    let listed = &judged["connections"][0];
    assert!(listed["local"] == format!("127.0.0.1:{port}") && listed["within_host"] == true, "{judged}");
    client.asks_again();
    assert_eq!((client.finishes(), server.line().as_str(), server.ends()), (0, "served", 0));
    assert_eq!(host.attached(1), 2);
    let top = host.top();
    assert!(top["connections"].as_array().unwrap().is_empty() && top["counts"]["paired"] == 1, "{top}");
    let output = fide(&["metrics", "--monitor", &host.socket()]).output().unwrap();
    let metrics = text(&output.stdout);
    assert!(metrics.contains("\nfide_rack_paired_total 1\n") && metrics.contains("why=\"unproven\"} 0"), "{metrics}");
    monitor.signal(rustix::process::Signal::TERM);
    assert_eq!(monitor.ends(), 0);
    let ended: Value = serde_json::from_str(&monitor.line()).unwrap();
    assert!(ended["ended"] == "signal" && ended["counts"]["paired"] == 1, "{ended}");
    for name in ["monitor.sock", "monitor.sock.view"] {
        assert!(!fs::exists(host.path(name)).unwrap(), "{name} is left");
    }
}

/// The other end is not under the library.
#[test]
fn connection_that_stays_with_tcp_is_shown_with_the_reason() {
    let host = Host::new();
    let _monitor = host.monitor();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/rack_cli/ends.py");
    let mut server = Process::start(Command::new("python3").arg(script).args(["server", "1"]));
    let port = server.line();
    let mut client = host.client(&port);
    let top = host.top();
    let connection = &top["connections"][0];
    assert_eq!((&connection["over"], &connection["server"]), (&"tcp".into(), &Value::Null), "{top}");
    assert!(connection["why"].as_str().unwrap().contains("the other end has not asked"), "{top}");
    let pid = server.child.id().to_string();
    let output = fide(&["check", "--pid", &pid]).output().unwrap();
    let says = text(&output.stdout);
    assert!(
        output.status.code() == Some(1) && says.contains("was not started by `fide rack run`"),
        "{}",
        said(&output)
    );
    client.asks_again();
    assert_eq!((client.finishes(), server.ends()), (0, 0));
    assert_eq!(host.attached(1), 0);
}

#[test]
fn connections_outlive_a_killed_monitor_and_the_next_one_takes_its_place() {
    let host = Host::new();
    let mut monitor = host.monitor();
    // One runs: there is no second one.
    let output = fide(&["monitor", "--socket", &host.socket()]).output().unwrap();
    assert!(output.status.code() == Some(1) && text(&output.stderr).contains("runs at"), "{}", said(&output));
    let (mut server, port) = host.server("1");
    let mut client = host.client_with_memory(&port);
    monitor.signal(rustix::process::Signal::KILL);
    assert_eq!(monitor.ends(), 128 + libc::SIGKILL);
    assert!(fs::exists(host.socket()).unwrap(), "a killed monitor leaves its socket");
    for words in [&["top", "--once"][..], &["metrics"]] {
        let output = fide(words).args(["--monitor", &host.socket()]).output().unwrap();
        assert!(
            output.status.code() == Some(1) && text(&output.stderr).contains("has been killed"),
            "{}",
            said(&output)
        );
    }
    let output = host.run(&["--require"], &["true"]).output().unwrap();
    assert!(output.status.code() == Some(1) && text(&output.stderr).contains("has been killed"), "{}", said(&output));
    let _next = host.monitor();
    client.asks_again();
    assert_eq!((client.finishes(), server.ends()), (0, 0));
    let (mut server, port) = host.server("1");
    let mut client = host.client_with_memory(&port);
    client.asks_again();
    assert_eq!((client.finishes(), server.ends()), (0, 0));
    assert_eq!(host.attached(1), 4);
}

#[test]
fn program_without_monitor_runs_over_tcp_and_says_so() {
    let host = Host::new();
    let output = host.run(&[], &["sh", "-c", "echo done; exit 7"]).output().unwrap();
    assert!(output.status.code() == Some(7) && text(&output.stdout) == "done\n", "{}", said(&output));
    let says = text(&output.stderr);
    for part in ["sh runs over kernel TCP", "no monitor runs at", "fide rack monitor --socket"] {
        assert!(says.contains(part), "{says}");
    }
    // Where the caller names none.
    let output = fide(&["run", "--require", "true"]).env("FIDE_RACK_MONITOR", "/nowhere/sock").output().unwrap();
    assert!(output.status.code() == Some(1) && text(&output.stderr).contains("/nowhere/sock"), "{}", said(&output));
}

#[test]
fn program_that_is_not_there_or_no_program_is_refused_as_a_shell_does() {
    let host = Host::new();
    let _monitor = host.monitor();
    let file = host.path("file");
    fs::write(&file, "no program").unwrap();
    for (words, code, says) in [
        (&["no-program-of-this-name"][..], 127, "No such file"),
        (&[file.as_str()], 126, "Permission denied"),
        (&["sh", "-c", "kill -TERM $$"], 128 + libc::SIGTERM, ""),
        (&["sh", "-c", "test \"$LD_PRELOAD\" != \"${LD_PRELOAD%:/dev/null}\""], 0, ""),
    ] {
        let mut command = host.run(&[], words);
        // What is there stays; nothing can be preloaded from there, and nothing is said of it where standard error is not read.
        if code == 0 {
            command.env("LD_PRELOAD", "/dev/null");
        }
        let output = command.output().unwrap();
        let ended = output.status.code().unwrap_or_else(|| 128 + output.status.signal().unwrap());
        assert!(ended == code && text(&output.stderr).contains(says), "{words:?}: {}", said(&output));
    }
}

#[test]
fn program_that_cannot_be_judged_is_not_under_the_library() {
    let host = Host::new();
    let _monitor = host.monitor();
    // Nobody is there to start it, with or without it.
    assert_eq!(host.run(&["--require"], &["no-program-of-this-name"]).output().unwrap().status.code(), Some(127));
    let script = host.path("script");
    fs::write(&script, "#!/usr/bin/env no-program-of-this-name\n").unwrap();
    fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let output = host.run(&[], &[&script]).output().unwrap();
    assert!(
        output.status.code() == Some(127) && text(&output.stderr).contains("runs over kernel TCP"),
        "{}",
        said(&output)
    );
    assert_eq!(host.run(&["--require"], &[&script]).output().unwrap().status.code(), Some(3));
}

/// The program and its library as a package has them, and without the library.
#[test]
fn library_is_found_beside_the_program_and_where_packages_have_it() {
    let host = Host::new();
    let _monitor = host.monitor();
    let made = |words: &[&str]| assert!(Command::new(words[0]).args(&words[1..]).status().unwrap().success());
    let (bin, lib) = (host.path("bin"), host.path("lib/fide"));
    made(&["mkdir", "-p", &bin, &lib]);
    made(&["cp", FIDE, &bin]);
    let run = |options: &[&str]| {
        let mut command = Command::new(format!("{bin}/fide"));
        command.args(["rack", "run", "--monitor", &host.socket()]).args(options);
        command.args(["--", "sh", "-c", "echo \"$LD_PRELOAD\""]).output().unwrap()
    };
    let output = run(&[]);
    assert!(output.status.success() && text(&output.stdout) == "\n", "{}", said(&output));
    let says = text(&output.stderr);
    assert!(says.contains("runs over kernel TCP") && says.contains(&bin) && says.contains("--library"), "{says}");
    assert_eq!(run(&["--require"]).status.code(), Some(3));
    // Nor is that of an outer `fide rack run`, which may not fit.
    let under = ["/nowhere/a.so:/nowhere/libfide_rack_preload.so", "/nowhere/libfide_rack_preload.so"];
    for (before, left) in under.into_iter().zip(["/nowhere/a.so\n", "\n"]) {
        let mut command = Command::new(format!("{bin}/fide"));
        command.args(["rack", "run", "sh", "-c", "echo \"$LD_PRELOAD\""]).env("LD_PRELOAD", before);
        assert_eq!(text(&command.output().unwrap().stdout), left);
    }
    let output = run(&["--library", "/nowhere/l.so"]);
    assert!(output.status.code() == Some(2) && text(&output.stderr).contains("/nowhere/l.so"), "{}", said(&output));
    for directory in [&lib, &bin] {
        made(&["cp", library().to_str().unwrap(), directory]);
        let output = run(&["--require"]);
        let real = fs::canonicalize(directory).unwrap();
        assert_eq!(text(&output.stdout), format!("{}/libfide_rack_preload.so\n", real.display()), "{}", said(&output));
    }
}
