// SPDX-License-Identifier: Apache-2.0
//! `histories`: registers replicated by real members under faults, and whether what clients saw is linearizable.
#![forbid(unsafe_code)]

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::bail;
use clap::Parser;
use fide_histories::{
    CLIENTS, MEMBER, RELAY, client, judge,
    member::{self, Planted, Protocol},
    plan::{Plan, scenarios},
    relay,
    report::Report,
    run::{Options, Outcome, Programs, run},
};

/// Runs a replicated set of registers under faults, and judges what its clients saw by porcupine. Needs root.
///
/// Exit codes: 0 all runs are as they should be, 1 some are not, 2 usage, 3 this machine cannot hold a testbed.
#[derive(Debug, Parser)]
#[command(name = "histories", max_term_width = 100)]
struct Args {
    /// Seed of the first run; each further run has the next one. A seed decides hosts, protocol and faults.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many runs; 200, or 3 with a guest.
    #[arg(long)]
    runs: Option<u64>,
    /// Faults of this name, in place of those of the seed; `all` for each in turn.
    #[arg(long)]
    scenario: Option<String>,
    /// Say which scenarios there are.
    #[arg(long)]
    list: bool,
    /// Only by this protocol; else as the seed says.
    #[arg(long, value_enum)]
    protocol: Option<Protocol>,
    /// Only with so many hosts; else as the seed says.
    #[arg(long, value_parser = clap::value_parser!(u8).range(3..=5))]
    hosts: Option<u8>,
    /// Five hosts of which the last is an emulated machine, stopped by its monitor and slewed; kernel and
    /// file system are in this directory (`make histories-guest` makes it).
    #[arg(long, value_name = "DIR", conflicts_with_all = ["scenario", "hosts"])]
    guest: Option<PathBuf>,
    /// Members store decisions, and now and then all processes end at once.
    #[arg(long, conflicts_with_all = ["scenario", "guest"])]
    durable: bool,
    /// Plants a fault in the members, which has to be found.
    #[arg(long, value_enum)]
    planted: Option<Planted>,
    /// All members have to be back so many seconds after the last fault; 20, or 60 with a guest.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=300))]
    recovery_limit: Option<u64>,
    /// A run has failed, too, if they were back later than so many milliseconds after it; 1000 for seeds
    /// without a guest; a guest and named schedules may take as long as `--recovery-limit` says.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=300_000))]
    recovery_goal_ms: Option<u64>,
    /// Where failed runs are kept.
    #[arg(long, default_value = "target/histories")]
    out: PathBuf,
    /// The report as JSON.
    #[arg(long)]
    json: bool,
    /// Print what happened in each run.
    #[arg(short, long)]
    verbose: bool,
}

fn plans(args: &Args) -> anyhow::Result<Vec<Plan>> {
    let mut plans = Vec::new();
    for seed in args.seed..args.seed + args.runs.unwrap_or(if args.guest.is_some() { 3 } else { 200 }) {
        let mut of_seed = if args.guest.is_some() { Plan::with_guest(seed) } else { Plan::of(seed) };
        if args.durable {
            of_seed = Plan::durable(seed);
        }
        // Drawn as for the seed's own run, so that the rest does not depend on the options.
        if args.protocol.is_some_and(|protocol| protocol != of_seed.protocol)
            || args.hosts.is_some_and(|hosts| usize::from(hosts) != of_seed.hosts)
        {
            if args.scenario.is_none() {
                continue;
            }
            of_seed.protocol = args.protocol.unwrap_or(of_seed.protocol);
        }
        let Some(name) = &args.scenario else {
            plans.push(of_seed);
            continue;
        };
        let before = plans.len();
        let named = scenarios().iter().filter(|scenario| name == "all" || name == scenario.name);
        plans.extend(named.map(|scenario| scenario.plan(seed, of_seed.protocol)));
        if plans.len() == before {
            bail!("there is no scenario {name}; `--list` names them");
        }
    }
    if plans.is_empty() {
        bail!("none of these seeds is of such a run; give more --runs");
    }
    Ok(plans)
}

fn line(outcome: &Outcome) -> String {
    let Outcome { seed, hosts, protocol, operations, open, .. } = outcome;
    let name = outcome.scenario.map_or(String::new(), |name| format!(" {name}"));
    let recovery = outcome.recovery_ms.map_or("not back".to_owned(), |ms| format!("back after {ms:.0} ms"));
    let verdict = outcome.verdict.as_ref().map_or("not judged", |verdict| &verdict.verdict);
    format!("seed {seed}{name}: {hosts} hosts, {protocol}, {operations} operations, {open} open, {recovery}, {verdict}")
}

fn histories(args: &Args) -> anyhow::Result<bool> {
    let plans = plans(args)?;
    let programs = Programs {
        agent: fide_testbed::find_binary("fide")?,
        histories: std::env::current_exe()?,
        judge: fide_testbed::find_binary(judge::PROGRAM)?,
    };
    let recovery_limit = Duration::from_secs(args.recovery_limit.unwrap_or(if args.guest.is_some() { 60 } else { 20 }));
    let judged = args.guest.is_none() && args.scenario.is_none() && !args.durable;
    let goal = if judged { Duration::from_secs(1) } else { recovery_limit };
    let options = Options {
        programs,
        planted: args.planted,
        guest: args.guest.clone(),
        recovery_limit,
        recovery_goal: args.recovery_goal_ms.map_or(goal, Duration::from_millis),
        out: args.out.clone(),
    };
    let mut outcomes = Vec::new();
    for plan in &plans {
        let outcome = run(plan, &options);
        eprintln!("{}", line(&outcome));
        if args.verbose {
            outcome.diary.iter().for_each(|line| eprintln!("    {line}"));
        }
        outcome.problems.iter().for_each(|problem| eprintln!("    {problem}"));
        outcomes.push(outcome);
    }
    let report = Report::of(&outcomes);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{report}");
    }
    // A planted fault has to be found.
    Ok(if args.planted.is_some() { report.illegal == report.runs } else { report.failed == 0 })
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match words.split_first() {
        Some((first, rest)) if first == MEMBER => member::main(rest).map(|()| true),
        Some((first, rest)) if first == RELAY => relay::main(rest).map(|()| true),
        Some((first, rest)) if first == CLIENTS => client::main(rest).map(|()| true),
        _ => {
            let args = Args::parse();
            if args.list {
                scenarios().iter().for_each(|scenario| println!("{:22} {}", scenario.name, scenario.about));
                return ExitCode::SUCCESS;
            }
            if let Err(why) = fide_testbed::supported() {
                eprintln!("histories: {why}");
                return ExitCode::from(3);
            }
            histories(&args)
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("histories: {why:#}");
            ExitCode::FAILURE
        }
    }
}
