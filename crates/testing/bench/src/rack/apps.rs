// SPDX-License-Identifier: Apache-2.0
//! Programs of others, unmodified, over memory beside kernel TCP: both ends under the library, or neither.

mod nginx;
mod postgres;
mod redis;

use std::{
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use fide_rack::meet::monitor::Monitor;
use fide_testbed::{
    end_within,
    figures::{Figure, Goal, Report},
    find_binary, retry_until,
};
use rustix::process::{Pid, Signal, kill_process};

const LIMIT: Duration = Duration::from_secs(30);
const LIBRARY: &str = "libfide_rack_preload.so";

/// What carries the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    Tcp,
    Memory,
}

pub(crate) const BOTH: [Over; 2] = [Over::Memory, Over::Tcp];

/// A monitor, and a folder for what programs write.
pub(crate) struct Bed {
    _monitor: Monitor,
    pub(crate) folder: tempfile::TempDir,
    library: PathBuf,
}

impl Bed {
    pub(crate) fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        // PostgreSQL does not run as root, and its user has to reach the monitor and the library.
        let opens = |path: &Path| std::fs::set_permissions(path, PermissionsExt::from_mode(0o777));
        opens(folder.path())?;
        let (socket, library) = (folder.path().join("rack.sock"), folder.path().join(LIBRARY));
        std::fs::copy(find_binary(LIBRARY)?, &library)?;
        let monitor = Monitor::start(&socket)?;
        opens(&socket)?;
        Ok(Self { _monitor: monitor, folder, library })
    }

    /// A program that ends with this one. `user`: as whom it runs; none: as this one.
    pub(crate) fn command(&self, over: Over, user: Option<&str>, program: &Path) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]);
        if let Some(user) = user {
            command.args(["--reuid", user, "--regid", user, "--init-groups"]);
        }
        command.args(["--", "env"]);
        if over == Over::Memory {
            command.arg(format!("LD_PRELOAD={}", self.library.display()));
            command.arg(format!("FIDE_RACK_MONITOR={}", self.folder.path().join("rack.sock").display()));
        }
        command.arg(program).stdin(Stdio::null());
        command
    }

    /// A folder of this name for files of a program that runs as this user.
    fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.folder.path().join(name);
        std::fs::create_dir_all(&path)?;
        Ok(path)
    }
}

/// A port that nobody has now.
fn port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// A server that runs.
struct Server {
    child: Child,
    ends_by: Signal,
    port: u16,
}

impl Server {
    /// Starts it, and waits until it listens. Its output is kept for the error.
    fn start(mut command: Command, port: u16, log: &Path, ends_by: Signal) -> Result<Self> {
        let output = std::fs::File::create(log)?;
        let child = command.stdout(output.try_clone()?).stderr(output).spawn().context("setpriv of util-linux")?;
        let mut server = Self { child, ends_by, port };
        let listens = retry_until("the server", LIMIT, || {
            if let Ok(Some(status)) = server.child.try_wait() {
                return Ok(Err(status));
            }
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map(|_| Ok(())).map_err(|why| why.to_string())
        });
        match listens {
            Ok(Ok(())) => Ok(server),
            Ok(Err(status)) => bail!("{status}: {}", std::fs::read_to_string(log)?.trim()),
            Err(why) => bail!("{why}: {}", std::fs::read_to_string(log)?.trim()),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.child), self.ends_by);
        if end_within(&mut self.child, LIMIT).is_err() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// What a program says that ends well.
fn output(mut command: Command) -> Result<String> {
    let output = command.output().context("setpriv of util-linux")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr));
    Ok(text)
}

/// What was measured in rounds over both, in turns.
#[derive(Debug, Default)]
pub(crate) struct Pair {
    memory: Vec<f64>,
    tcp: Vec<f64>,
}

impl Pair {
    pub(crate) fn add(&mut self, over: Over, value: f64) {
        match over {
            Over::Memory => self.memory.push(value),
            Over::Tcp => self.tcp.push(value),
        }
    }

    fn pairs(&self) -> Vec<(f64, f64)> {
        super::pairs(&self.memory, &self.tcp)
    }

    /// The middle one of the rounds, and of the ratios.
    pub(crate) fn rate(&self, name: &str, unit: &str) -> Figure {
        let of = |name: &str, rounds: &[f64]| {
            let mut sorted = rounds.to_vec();
            sorted.sort_by(f64::total_cmp);
            Figure { unit: unit.into(), ..Figure::rate(name, &sorted) }.spread_of(sorted)
        };
        of(name, &self.memory).beside("TCP", &of("tcp", &self.tcp)).ratio_of_pairs(self.pairs())
    }
}

/// What is measured of a program: its figures' names with their units and goals, and the program as people know it.
struct App {
    name: &'static str,
    figures: &'static [(&'static str, &'static str, Option<Goal>)],
    /// One round: a value for each figure.
    start: fn(&Bed, Over) -> Result<Running>,
}

/// A server, and what measures a round of it: a value for each figure.
type Running = (Server, Box<dyn Fn(&Bed, bool) -> Result<Vec<f64>>>);

const APPS: [App; 3] = [redis::APP, nginx::APP, postgres::APP];

impl App {
    fn measure(&self, bed: &Bed, rounds: usize, is_quick: bool) -> Result<Vec<Pair>> {
        let mut pairs: Vec<Pair> = self.figures.iter().map(|_| Pair::default()).collect();
        let servers = BOTH.map(|over| (self.start)(bed, over).map(|running| (over, running)));
        let [memory, tcp] = servers;
        let servers = [memory?, tcp?];
        for round in 0..=rounds {
            for turn in 0..BOTH.len() {
                let (over, (_, measure)) = &servers[(round + turn) % BOTH.len()];
                let values = measure(bed, is_quick || round == 0)?;
                // The first round is to warm up.
                if round > 0 {
                    pairs.iter_mut().zip(values).for_each(|(pair, value)| pair.add(*over, value));
                }
            }
        }
        Ok(pairs)
    }
}

/// Adds the figures of all programs; those of one that is not there say so.
pub(crate) fn measure(report: &mut Report, rounds: usize, is_quick: bool) -> Result<()> {
    let bed = Bed::new()?;
    for app in &APPS {
        eprintln!("{} under the library and without it", app.name);
        match app.measure(&bed, rounds, is_quick) {
            Ok(pairs) => {
                for ((name, unit, goal), pair) in app.figures.iter().zip(pairs) {
                    let figure = pair.rate(name, unit);
                    report.add(goal.map_or(figure.clone(), |goal| figure.goal(goal)));
                }
            }
            Err(why) => {
                eprintln!("bench-rack: {}: {why:#}", app.name);
                let why = format!("{why:#}").lines().next().unwrap_or_default().to_owned();
                for (name, unit, goal) in app.figures {
                    let figure = Figure::unmeasured(name, unit, &why);
                    report.add(goal.map_or(figure.clone(), |goal| figure.goal(goal)));
                }
            }
        }
    }
    Ok(())
}
