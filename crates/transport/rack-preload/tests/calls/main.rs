// SPDX-License-Identifier: Apache-2.0
//! Calls on sockets, under the library and without it: what a call says, and what the program sees by it, is the kernel's own answer on
//! this machine, or one of [`differences`].
//!
//! The scenarios are in C (`program/`). Both ends of a connection are in one program, so that one thing happens after the other. The kernel
//! says how many bytes have gone over TCP, by which the program knows that its connection goes over memory.

mod differences;
mod gate;
#[path = "../under/mod.rs"]
mod under;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt::Write as _,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use differences::{DIFFERENCES, Difference, Kind};
use fide_rack::meet::monitor::Monitor;
use gate::Gate;

const SOURCES: [&str; 10] =
    ["main", "data", "flags", "ends", "names", "waits", "sets", "signals", "processes", "races"];
/// A scenario takes a few seconds at most, and longer on a host that has much else to do.
const LIMIT: Duration = Duration::from_secs(60);
/// Programs at a time: they wait most of the time.
const AT_ONCE: usize = 12;
/// Runs without the library at most, where one with it says something else.
const AGAIN: usize = 8;
const HANGS: &str = "it hangs";

/// How a connection has its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Mode {
    /// Without the library.
    Plain,
    /// From the beginning.
    Memory,
    /// The other end never asks for it.
    Tcp,
    /// There is no monitor.
    Alone,
    /// It comes before the call with this number.
    Over(usize),
}

/// A scenario, and as what it is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Run {
    scenario: &'static str,
    mode: Mode,
    family: &'static str,
    order: &'static str,
}

/// What a program printed.
#[derive(Debug, Default)]
struct Seen {
    lines: Vec<String>,
    /// Calls that were counted.
    steps: usize,
    /// The memory did not come when it should have.
    is_without: bool,
}

struct Host {
    program: PathBuf,
    directory: tempfile::TempDir,
    _monitor: Monitor,
    runs: AtomicU64,
}

impl Host {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("calls");
        let of = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/calls/program");
        let mut compiles = Command::new("cc");
        compiles.args(["-O0", "-w", "-pthread", "-o"]).arg(&program);
        compiles.args(SOURCES.map(|name| of.join(name).with_extension("c")));
        assert!(compiles.status().expect("cc, which links Rust's programs, too").success());
        let monitor = Monitor::start(&directory.path().join(under::MONITOR)).unwrap();
        Self { program, directory, _monitor: monitor, runs: AtomicU64::new(0) }
    }

    fn scenarios(&self) -> Vec<&'static str> {
        let output = Command::new(&self.program).arg("list").output().unwrap();
        let names: &'static str = String::leak(String::from_utf8(output.stdout).unwrap());
        names.lines().collect()
    }

    fn run(&self, run: Run) -> Seen {
        let of_run = self.directory.path().join(self.runs.fetch_add(1, Ordering::Relaxed).to_string());
        let mode = match run.mode {
            Mode::Plain => "plain",
            Mode::Memory => "memory",
            Mode::Tcp => "tcp",
            Mode::Alone => "alone",
            Mode::Over(_) => "over",
        };
        let mut command = Command::new(&self.program);
        command.args([run.scenario, mode, run.family, run.order]);
        let mut gate = None;
        if run.mode != Mode::Plain {
            under::sets(&mut command, self.directory.path());
        }
        match run.mode {
            Mode::Alone => {
                command.env("FIDE_RACK_MONITOR", &of_run);
            }
            Mode::Over(step) => {
                command.arg(step.to_string()).env("FIDE_RACK_MONITOR", &of_run);
                gate = Some(Gate::new(&of_run, self.directory.path().join(under::MONITOR)));
            }
            _ => {}
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        listens(command.spawn().unwrap(), gate.as_ref())
    }

    /// All of them, by some threads.
    fn run_all(&self, runs: impl IntoIterator<Item = Run>) -> BTreeMap<Run, Seen> {
        let (left, seen) = (Mutex::new(runs.into_iter().collect::<VecDeque<_>>()), Mutex::new(BTreeMap::new()));
        thread::scope(|scope| {
            for _ in 0..AT_ONCE {
                scope.spawn(|| {
                    loop {
                        let Some(run) = left.lock().unwrap().pop_front() else { return };
                        let of_run = self.run(run);
                        seen.lock().unwrap().insert(run, of_run);
                    }
                });
            }
        });
        seen.into_inner().unwrap()
    }
}

/// What it prints until it ends.
fn listens(mut child: Child, gate: Option<&Gate>) -> Seen {
    let (mut answers, printed) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let (says, said) = mpsc::channel();
    // A child that it has left behind may keep its output open.
    thread::spawn(move || {
        BufReader::new(printed).split(b'\n').map_while(Result::ok).all(|line| says.send(line).is_ok());
    });
    let (mut seen, until) = (Seen::default(), Instant::now() + LIMIT);
    while let Ok(line) = said.recv_timeout(until.saturating_duration_since(Instant::now())) {
        let line = String::from_utf8_lossy(&line).into_owned();
        match line.strip_prefix('*') {
            Some("memory") => {
                gate.expect("a gate").opens();
                let _ = answers.write_all(b"!");
            }
            Some("none") => seen.is_without = true,
            Some(other) => {
                seen.steps = other.strip_prefix("steps ").and_then(|steps| steps.parse().ok()).unwrap();
                break;
            }
            None => seen.lines.push(line),
        }
    }
    while Instant::now() < until {
        if let Some(status) = child.try_wait().unwrap() {
            if !status.success() {
                seen.lines.push(format!("it ends with {status}"));
            }
            return seen;
        }
        thread::sleep(Duration::from_millis(1));
    }
    seen.lines.push(HANGS.to_owned());
    child.kill().unwrap();
    child.wait().unwrap();
    seen
}

/// What is not as without the library, in the order of lines: what it is here, and all that it was there.
fn compares<'a>(plain: &'a [Seen], seen: &'a Seen) -> Vec<(&'a str, Vec<&'a str>)> {
    let most = plain.iter().chain([seen]).map(|seen| seen.lines.len()).max().unwrap_or(0);
    let line = |seen: &'a Seen, at: usize| seen.lines.get(at).map_or("", String::as_str);
    let both = |at| (line(seen, at), plain.iter().map(|plain| line(plain, at)).collect::<Vec<_>>());
    (0..most).map(both).filter(|(ours, kernels)| !kernels.contains(ours)).collect()
}

struct Compared {
    host: Host,
    /// The kernel's own answers, which may differ from run to run.
    plain: BTreeMap<Run, Vec<Seen>>,
    /// Known differences that were met.
    met: BTreeSet<usize>,
    told: String,
    /// Runs in which the memory came in the middle, and in which it should have and did not: the connection was closed before, or shut.
    over: [usize; 2],
}

impl Compared {
    fn new() -> Self {
        Self { host: Host::new(), plain: BTreeMap::new(), met: BTreeSet::new(), told: String::new(), over: [0; 2] }
    }

    fn scenarios(&self) -> Vec<&'static str> {
        match std::env::var("SCENARIO") {
            Ok(one) => vec![&*String::leak(one)],
            Err(_) => self.host.scenarios(),
        }
    }

    fn runs_plain(&mut self, runs: impl IntoIterator<Item = Run>) {
        for (run, seen) in self.host.run_all(runs) {
            assert!(!seen.lines.iter().any(|line| line.starts_with("failed") || line == HANGS), "{run:?}: {seen:?}");
            self.plain.entry(run).or_default().push(seen);
        }
    }

    /// What the known differences do not explain.
    fn unexplained(&mut self, run: Run, seen: &Seen) -> Vec<(String, String)> {
        let is_over = matches!(run.mode, Mode::Over(_));
        let mut rest = Vec::new();
        for (ours, kernels) in compares(&self.plain[&run.plain()], seen) {
            let is = |known: &Difference| {
                let [of_kernel, of_library] = known.lines;
                let is_met = of_library == ours && kernels.contains(&of_kernel) && known.scenario == run.scenario;
                is_met && (is_over || known.kind != Kind::Over)
            };
            match DIFFERENCES.iter().position(is) {
                Some(known) => drop(self.met.insert(known)),
                None => rest.push((ours.to_owned(), kernels[0].to_owned())),
            }
        }
        rest
    }

    fn runs(&mut self, runs: Vec<Run>) {
        for (run, seen) in self.host.run_all(runs) {
            let mut rest = self.unexplained(run, &seen);
            for _ in 0..AGAIN {
                if rest.is_empty() {
                    break;
                }
                // The kernel may have said so, too, if it had been asked more often.
                self.runs_plain([run.plain()]);
                rest = self.unexplained(run, &seen);
            }
            for (ours, kernels) in rest {
                let _ = writeln!(self.told, "{run:?}: {ours:?}, and without the library {kernels:?}");
            }
            match run.mode {
                Mode::Memory if seen.is_without => drop(writeln!(self.told, "{run:?}: not over memory")),
                Mode::Over(_) => self.over[usize::from(seen.is_without)] += 1,
                _ => {}
            }
        }
    }

    fn ends(self) {
        let all = if std::env::var_os("SCENARIO").is_some() { 0 } else { DIFFERENCES.len() };
        let shows = |at: usize| {
            let Difference { scenario, lines: [kernels, ours], why, .. } = DIFFERENCES[at];
            format!("{scenario}: {ours:?} instead of {kernels:?}, as {why}")
        };
        let gone = |kind| {
            let is_gone = |at: &usize| DIFFERENCES[*at].kind == kind && !self.met.contains(at);
            (0..all).filter(is_gone).map(shows).collect::<Vec<_>>()
        };
        let [gone, mended] = [Kind::Stays, Kind::Fault].map(gone);
        eprintln!("faults that were not met: {mended:#?}");
        assert!(self.told.is_empty(), "calls that say something else than without the library:\n{}", self.told);
        assert!(self.over[0] >= 3 * self.over[1], "in too few runs the memory came in the middle: {:?}", self.over);
        assert!(gone.is_empty(), "these are as without the library: take them out of the table: {gone:#?}");
    }
}

impl Run {
    fn plain(self) -> Self {
        Self { mode: Mode::Plain, ..self }
    }
}

/// Where the memory comes: before so many parts of all calls that are shown.
fn steps_of(plain: &BTreeMap<Run, Vec<Seen>>, parts: impl Fn(usize) -> BTreeSet<usize>) -> Vec<Run> {
    let over = |(run, seen): (&Run, &Vec<Seen>)| {
        let run = *run;
        parts(seen[0].steps).into_iter().map(move |step| Run { mode: Mode::Over(step), ..run })
    };
    plain.iter().flat_map(|(run, seen)| over((run, seen)).collect::<Vec<_>>()).collect()
}

fn all(scenarios: &[&'static str], mode: Mode, family: &'static str, order: &'static str) -> Vec<Run> {
    scenarios.iter().map(|scenario| Run { scenario, mode, family, order }).collect()
}

const ORDERS: [&str; 2] = ["connects", "accepts"];

#[test]
fn calls_are_the_same() {
    let mut compared = Compared::new();
    let scenarios = compared.scenarios();
    let mut runs = Vec::new();
    for order in ORDERS {
        compared.runs_plain(all(&scenarios, Mode::Plain, "4", order));
        runs.extend(all(&scenarios, Mode::Memory, "4", order));
    }
    runs.extend(all(&scenarios, Mode::Tcp, "4", "connects"));
    let parts = |steps: usize| [steps / 2].into();
    runs.extend(steps_of(&compared.plain, parts).into_iter().filter(|run| run.order == "connects"));
    compared.runs(runs);
    compared.ends();
}

/// As the test above, for each way to name an address, and with the memory at each call.
#[test]
#[ignore = "takes minutes: make test-rack"]
fn calls_are_the_same_wherever_the_memory_comes() {
    let mut compared = Compared::new();
    let scenarios = compared.scenarios();
    for order in ORDERS {
        for family in ["6", "m"] {
            compared.runs_plain(all(&scenarios, Mode::Plain, family, order));
            for mode in [Mode::Memory, Mode::Tcp, Mode::Alone] {
                compared.runs(all(&scenarios, mode, family, order));
            }
        }
    }
    let parts = |steps: usize| (0..=steps).collect();
    let runs = steps_of(&compared.plain, parts);
    let is_enough = |run: &Run| run.family == "6" && run.order == "connects";
    compared.runs(runs.into_iter().filter(is_enough).collect());
    compared.ends();
}
