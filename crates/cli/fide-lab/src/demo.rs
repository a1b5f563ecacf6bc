// SPDX-License-Identifier: Apache-2.0
//! `fide-lab demo`: a cluster on this machine in which processes and hosts die. Every death must be notified,
//! and nothing else may be.

mod agreement;
mod cluster;
mod deaths;
mod ears;
mod loopback;
pub(crate) mod network;
mod pace;
mod page;
mod plot;
mod redis;
mod results;
mod right;
mod say;
mod silence;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use anyhow::Context;
use fide_testbed::figures::{Figure, Machine};
use serde_json::{Value, json};

use cluster::{Cluster, OBSERVER, SILENT, VICTIMS, WATCHER};
use fide_cli::exit::{Done, Failure, UNHEALTHY, code_of_file};
use fide_cli::say::{say, tell};
use results::Results;
use say::Part;

pub(crate) use agreement::REPLICA;
pub(crate) use deaths::VICTIM;

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    other: Option<Other>,
    /// Processes to kill of each kind
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    trials: u32,
    /// Processes with 512 MiB resident to kill of each kind
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    large_trials: u32,
    /// Silences of a host under trust = "network"; half as many follow under trust = "lease"
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    silences: u32,
    /// Length of the part under full load
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100))]
    stretch: u32,
    /// Directory for demo.html and its drawings
    #[arg(long, value_name = "DIR", default_value = "target/demo")]
    out: PathBuf,
    /// Run over loopback, which needs no privileges: three agents, UDP, pidfds, and processes that die
    #[arg(long)]
    loopback: bool,
    /// Print every figure as JSON on stdout, and nothing else there
    #[arg(long)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum Other {
    /// Run a replicated counter on five hosts: leader after leader is killed under load, until one replica is
    /// left
    ///
    /// Exit codes: 0 nothing was lost or counted twice, 1 something was, 2 usage, 3 unsupported here.
    Agreement(agreement::Arguments),
    /// Run stock redis-servers with Fide's module on three hosts: leader after leader is killed, stopped or cut
    /// off under load
    ///
    /// Exit codes: 0 nothing acknowledged was lost and all servers have the same data, 1 not so, 2 usage, 3 no
    /// root, or a program is missing.
    Redis(redis::Arguments),
    /// Send the same messages over two equal links, by X-PACE and by TCP, and show how long each is on its way
    ///
    /// Exit codes: 0 both have run, 1 one has not, 2 usage, 3 no root, or no such TCP.
    Pace(pace::Arguments),
}

/// Parts of the demo on a testbed.
const PARTS: u32 = 3;
/// Exit code of an interrupted program, as a shell gives it.
const INTERRUPTED: i32 = 130;
/// Trials of each kind over loopback, unless fewer are asked for.
const LOOPBACK_TRIALS: u32 = 30;
const LOOPBACK_LARGE_TRIALS: u32 = 5;

pub(crate) fn run(arguments: &Arguments) -> Done {
    match &arguments.other {
        Some(Other::Agreement(arguments)) => return agreement::run(arguments),
        Some(Other::Redis(arguments)) => return redis::run(arguments),
        Some(Other::Pace(arguments)) => return pace::run(arguments),
        None => {}
    }
    make_out(&arguments.out)?;
    ctrlc::set_handler(interrupted).context("waiting for an interrupt")?;
    let start = Instant::now();
    let machine = Machine::here();
    say::line(&format!(
        "fide-lab demo on {} cores of {}{}, Linux {}, {}",
        machine.cores,
        machine.cpu,
        if machine.hypervisor { " in a virtual machine" } else { "" },
        machine.kernel,
        machine.os
    ));
    let mut results = Results {
        machine,
        setup: Vec::new(),
        deaths: Vec::new(),
        silences: Vec::new(),
        counts: Vec::new(),
        expectations: Vec::new(),
        notes: Vec::new(),
        timeline: None,
    };
    let missing = fide_testbed::supported().err().filter(|_| !arguments.loopback);
    if let Some(why) = &missing {
        say::line(&format!("over loopback only, with fewer trials: {why}"));
    }
    if arguments.loopback || missing.is_some() {
        over_loopback(arguments, &mut results)?;
    } else {
        on_testbed(arguments, &mut results)?;
    }
    results.setup.push(("took_s".to_owned(), json!(start.elapsed().as_secs())));
    finish(arguments, &results)
}

/// Creates the directory for the drawings of a demo.
fn make_out(out: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(out).map_err(|error| {
        let why = format!("{} cannot be created: {error}; name another directory with --out", out.display());
        Failure::new(code_of_file(&error), anyhow::anyhow!(why))
    })
}

/// Runs on a thread of its own. Agents and namespaces end with this process, by the testbed's reaper.
fn interrupted() {
    static ONCE: AtomicBool = AtomicBool::new(false);
    if !ONCE.swap(true, Ordering::Relaxed) {
        say!("\nfide-lab demo: interrupted; everything it made is being removed");
        std::process::exit(INTERRUPTED);
    }
}

fn on_testbed(arguments: &Arguments, results: &mut Results) -> anyhow::Result<()> {
    say::line(&format!(
        "Four hosts in network namespaces, on two switches: processes die on h{VICTIMS}, h{WATCHER} is notified, \
         h{SILENT} falls silent, h{OBSERVER} only observes.\n\
         Times are from just before an event to the moment a waiting program on another host goes on, on one clock.\n\
         Nothing outside these namespaces is touched, and all of it is removed at the end. It takes one to two minutes, most of it for {} \
         processes that fill 512 MiB each (--large-trials).",
        2 * arguments.large_trials
    ));
    let bed = cluster::build()?;

    let part = Part::begin(1, PARTS, "trust = network, policy = network: a silence beyond the timeout is a death");
    let mut cluster = Cluster::start(&bed, "network", "network")?;
    describe(&cluster, "network", results)?;
    let mut scene = cluster.scene()?;
    for kind in deaths::SMALL {
        results.deaths.push(scene.group(kind, arguments.trials));
    }
    for kind in deaths::LARGE.into_iter().filter(|_| arguments.large_trials > 0) {
        results.deaths.push(scene.group(kind, arguments.large_trials));
    }
    expect_deaths(&scene.tally, results);
    drop(scene);
    silence::measure(&mut cluster, arguments.silences, false, results)?;
    right::no_other_verdict(&mut cluster, false, results)?;
    drop(cluster);
    let mut took_s = vec![part.done()];

    let rule = "trust = lease, policy = majority: a silent host fences itself before anybody acts on its silence";
    let part = Part::begin(2, PARTS, rule);
    let mut cluster = Cluster::start(&bed, "lease", "majority")?;
    describe(&cluster, "lease", results)?;
    silence::measure(&mut cluster, arguments.silences.div_ceil(2), true, results)?;

    took_s.push(part.done());

    let part = Part::begin(3, PARTS, "being right");
    right::one_cable(&mut cluster, results)?;
    right::stopped_observer(&mut cluster, results)?;
    right::stopped_host(&mut cluster, results)?;
    let mut scene = cluster.scene()?;
    right::stretch(&mut cluster, &mut scene, Duration::from_secs(arguments.stretch.into()), results)?;
    drop(scene);
    right::no_other_verdict(&mut cluster, true, results)?;
    took_s.push(part.done());
    results.setup.push(("parts_s".to_owned(), json!(took_s)));
    Ok(())
}

fn over_loopback(arguments: &Arguments, results: &mut Results) -> anyhow::Result<()> {
    let agents = loopback::Agents::start()?;
    say::line("Three agents on 127.77.x.x that use UDP: processes die on h1, and h2 is notified. It takes about 10 s.");
    let status = agents.status(WATCHER)?;
    describe_status(&status, "loopback", results);
    let mut scene = agents.scene()?;
    for kind in deaths::SMALL {
        results.deaths.push(scene.group(kind, arguments.trials.min(LOOPBACK_TRIALS)));
    }
    let large = arguments.large_trials.min(LOOPBACK_LARGE_TRIALS);
    for kind in deaths::LARGE.into_iter().filter(|_| large > 0) {
        results.deaths.push(scene.group(kind, large));
    }
    expect_deaths(&scene.tally, results);
    Ok(())
}

fn expect_deaths(tally: &deaths::Tally, results: &mut Results) {
    let why = tally.wrong.as_ref().map(|why| format!("; the last one not: {why}")).unwrap_or_default();
    results.expect(
        "another host is notified of each death of a process, with its reason",
        tally.seen == tally.deaths,
        format!("{} of {}, {} by the kernel program itself{why}", tally.seen, tally.deaths, tally.direct),
    );
    results.expect(
        "no process is declared dead before it dies",
        tally.premature == 0,
        format!("{} of {}", tally.premature, tally.deaths),
    );
    results.counts.push(Figure::count("told_by_the_kernel_program", tally.direct.into(), tally.deaths.into()));
}

/// Prints and notes the rungs and the timeouts of the agents.
fn describe(cluster: &Cluster<'_>, rule: &str, results: &mut Results) -> anyhow::Result<()> {
    let status = cluster.status(WATCHER)?;
    describe_status(&status, rule, results);
    Ok(())
}

fn describe_status(status: &Value, rule: &str, results: &mut Results) {
    let mut notes = Vec::new();
    let mut used = Vec::new();
    for (ladder, rungs) in status["rungs"].as_object().into_iter().flatten() {
        let rung = rungs.get(0).unwrap_or(rungs);
        used.push(format!("{ladder} {}", rung["used"].as_str().unwrap_or("-")));
        if let Some(why) = rung["fell_back"].as_str() {
            notes.push(format!("    {ladder}: {why}"));
        }
    }
    let timeouts: Vec<String> = cluster::peers(status)
        .filter(|peer| peer["monitored"] == json!(true))
        .filter_map(|peer| {
            let timeout_us = peer["timeout_us"].as_i64().filter(|us| *us > 0)?;
            Some(format!("{} {}", peer["host"].as_str()?, results::time(timeout_us * 1000)))
        })
        .collect();
    let heartbeat = status["heartbeat_us"].as_i64().map_or("-".to_owned(), |us| results::time(us * 1000));
    say::line(&format!("  heartbeat {heartbeat}; timeouts that h{WATCHER} chose: {}", timeouts.join(", ")));
    say::line(&format!("  by {}", used.join("; ")));
    for note in notes {
        say::line(&note);
    }
    results.setup.push((
        rule.to_owned(),
        json!({
            "trust": status["trust"], "policy": status["policy"], "heartbeat_us": status["heartbeat_us"],
            "timeout_us": status["timeout_us"], "timeouts": timeouts, "rungs": status["rungs"],
        }),
    ));
}

fn finish(arguments: &Arguments, results: &Results) -> Done {
    let path = arguments.out.join("demo.html");
    page::write(&path, results)?;
    let path = path.display().to_string();
    let table = results.table();
    if arguments.json {
        say::line(&format!("\n{table}"));
        tell!("{:#}", results.to_json(&path));
    } else {
        tell!("\n{table}");
        tell!("with drawings: {path}");
    }
    let broken: Vec<&str> = results.broken().map(|broken| broken.expected.as_str()).collect();
    if broken.is_empty() {
        say::line("everything held");
        return Ok(ExitCode::SUCCESS);
    }
    say::line(&format!("DID NOT HOLD: {}", broken.join("; ")));
    Ok(ExitCode::from(UNHEALTHY))
}
