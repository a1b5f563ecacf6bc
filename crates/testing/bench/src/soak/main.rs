// SPDX-License-Identifier: Apache-2.0
//! `make soak`: many heartbeats between real agents, over as many runs as it takes, and the tail of the gaps
//! between them.
//!
//! No process dies, so each verdict is false and fails the run. Measurements are stored once a minute and
//! when the run is interrupted; the next run continues them.
#![forbid(unsafe_code)]

mod state;

use anyhow::Context;
use clap::Parser;
use fide_bench::heard::{Heard, Listener};
use fide_testbed::figures::Machine;
use fide_testbed::{Agents, AgentsSpec, Spec, Testbed, find_binary, retry_until};
use serde_json::json;
use state::{Conditions, State};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const HOSTS: usize = 3;
/// Time between two reads of the agents' counts and of the time that the hypervisor took.
const LOOK: Duration = Duration::from_millis(200);
const STORE: Duration = Duration::from_secs(60);
const PROGRESS: Duration = Duration::from_secs(10);
/// How long all hosts may take to hear each other.
const UP_LIMIT: Duration = Duration::from_secs(20);
/// How long agents take to settle.
const SETTLE: Duration = Duration::from_millis(500);
/// An interrupt reaches the agents, too, and their goodbyes are verdicts: the interrupt has arrived here by
/// then.
const INTERRUPT: Duration = Duration::from_millis(300);

/// Receives heartbeats of real agents until there are enough; says how long the gaps between them were.
#[derive(Debug, Parser)]
struct Args {
    /// Heartbeats to receive, those of earlier runs included.
    #[arg(long, default_value_t = 100_000_000, value_parser = clap::value_parser!(u64).range(1_000..=1_000_000_000_000))]
    heartbeats: u64,
    /// Time between two heartbeats, us.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(20..=1_000_000))]
    heartbeat_us: u32,
    /// Begin anew, and forget what earlier runs have measured.
    #[arg(long)]
    fresh: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(code) => code,
        Err(why) => {
            eprintln!("soak: {why:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> anyhow::Result<ExitCode> {
    fide_testbed::supported()?;
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed))?;
    let dir = std::env::var_os("FIDE_SOAK_DIR").map_or_else(|| PathBuf::from("target/soak"), PathBuf::from);
    let path = dir.join("state.json");
    let conditions = Conditions {
        hosts: HOSTS,
        heartbeat_us: args.heartbeat_us,
        kernel: Machine::here().kernel,
        agent: build_of(&find_binary("fide")?)?,
    };
    let mut state = if args.fresh { State::new(conditions) } else { State::resume(&path, conditions)? };
    let measured = match state.heartbeats >= args.heartbeats {
        true => Ok(()),
        false => soak(args, &mut state, &path, &interrupted),
    };
    // The measurements count, whatever ended the run.
    state.store(&path).with_context(|| format!("storing {}", path.display()))?;
    if args.json {
        println!("{:#}", state.json());
    } else {
        print!("\n{}", state.text());
    }
    eprintln!("stored in {}", path.display());
    let stopped = interrupted.load(Ordering::Relaxed);
    if !stopped {
        measured?;
    }
    if state.false_verdicts > 0 || state.intervals_lost > 0 {
        let (verdicts, lost) = (state.false_verdicts, state.intervals_lost);
        eprintln!("soak: {verdicts} false verdicts, {lost} intervals that no agent reported");
        return Ok(ExitCode::FAILURE);
    }
    if stopped && state.heartbeats < args.heartbeats {
        eprintln!("interrupted: the next `make soak` goes on");
        return Ok(ExitCode::from(130));
    }
    Ok(ExitCode::SUCCESS)
}

/// Identifies the build of a program: its length, and its modification time.
fn build_of(program: &Path) -> anyhow::Result<String> {
    let found = std::fs::metadata(program).with_context(|| format!("looking at {}", program.display()))?;
    let written = found.modified()?.duration_since(std::time::UNIX_EPOCH)?;
    Ok(format!("{} bytes, written at {} s", found.len(), written.as_secs()))
}

/// Listens until there are enough heartbeats, or until an interrupt.
fn soak(args: &Args, state: &mut State, path: &Path, interrupted: &AtomicBool) -> anyhow::Result<()> {
    state.runs += 1;
    let bed = Testbed::build(Spec::hosts(HOSTS))?;
    let agents = Agents::start(
        &bed,
        AgentsSpec {
            program: vec![find_binary("fide")?],
            heartbeat_us: args.heartbeat_us,
            sections: "[limits]\nonly_root = true\n".into(),
            ..AgentsSpec::default()
        },
    )?;
    await_all_up(&agents)?;
    std::thread::sleep(SETTLE);
    let mut listener = Listener::start(&agents, HOSTS)?;
    let mut progress = Progress { begun: Instant::now(), printed: Instant::now(), had: state.heartbeats };
    let mut stored = Instant::now();
    while state.heartbeats < args.heartbeats {
        std::thread::sleep(LOOK);
        let heard = listen(&mut listener, &agents, interrupted);
        if interrupted.load(Ordering::Relaxed) {
            // The agents were interrupted as well: this interval does not count.
            return Ok(());
        }
        let heard = match heard {
            Ok(heard) => heard,
            Err(why) => {
                // The worst gap may have been in the lost interval.
                state.intervals_lost += 1;
                return Err(why);
            }
        };
        let judged = state.false_verdicts;
        state.add(&heard);
        if state.false_verdicts > judged {
            state.store(path)?;
        }
        progress.tell(state, args.heartbeats);
        if stored.elapsed() >= STORE {
            state.store(path)?;
            stored = Instant::now();
        }
    }
    Ok(())
}

fn listen(listener: &mut Listener, agents: &Agents, interrupted: &AtomicBool) -> anyhow::Result<Heard> {
    let mut heard = listener.listen(agents)?;
    listener.judge(agents, &mut heard)?;
    if heard.verdicts > 0 && !interrupted.load(Ordering::Relaxed) {
        std::thread::sleep(INTERRUPT);
    }
    Ok(heard)
}

fn await_all_up(agents: &Agents) -> anyhow::Result<()> {
    for host in 1..=HOSTS {
        retry_until(&format!("a cluster seen from h{host}"), UP_LIMIT, || {
            let status = agents.ask(host, "status", json!({}))?;
            let up = status["peers"].as_array().into_iter().flatten().filter(|peer| peer["state"] == "up").count();
            if up + 1 == HOSTS { Ok(()) } else { Err(format!("{up} of {} peers are up", HOSTS - 1)) }
        })?;
    }
    Ok(())
}

struct Progress {
    begun: Instant,
    printed: Instant,
    /// Heartbeats before this run.
    had: u64,
}

impl Progress {
    fn tell(&mut self, state: &State, wanted: u64) {
        if self.printed.elapsed() < PROGRESS {
            return;
        }
        self.printed = Instant::now();
        let rate = (state.heartbeats - self.had) as f64 / self.begun.elapsed().as_secs_f64();
        let left = wanted.saturating_sub(state.heartbeats) as f64 / rate.max(1.0);
        let longest_ns = state.all.gaps().longest_ns;
        eprintln!(
            "{} of {wanted} heartbeats ({:.1} %), {rate:.0} a second, {:.0} min left; longest gap {:.1} us, false verdicts {}, stolen {:.2} s",
            state.heartbeats,
            100.0 * state.heartbeats as f64 / wanted as f64,
            left / 60.0,
            longest_ns as f64 / 1000.0,
            state.false_verdicts,
            state.steal_ticks as f64 / 100.0
        );
    }
}
