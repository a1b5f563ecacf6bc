// SPDX-License-Identifier: Apache-2.0
//! `bench-redis`: stock servers with the module, beside servers without it.
//!
//! | figure | what happens |
//! |---|---|
//! | `redis_set_vs_standalone` | SET at the leader of a group that tolerates 1 to 4 failures, beside a server alone |
//! | `redis_set_pipelined_vs_standalone` | the same with 16 commands in each pipeline |
//! | `redis_get_vs_standalone` | GET at the leader, and at a follower |
//! | `redis_mix_vs_standalone` | one SET to ten GETs, at the leader, beside a server alone |
//! | `redis_set_vs_wait1` | SET in a group of two, beside asynchronous replication to one replica and `WAIT 1` |
//! | `redis_disk_vs_aof`, `redis_disk_vs_aof_of_one` | SET in a group of two, and of one, with `durable disk`, beside a server alone with `appendfsync always` |
//! | `redis_disk_vs_wait1` | SET in a group of two with `durable disk`, beside a server and a replica with `appendfsync always`, and `WAIT 1` |
//! | `redis_set_vs_redisraft`, `redis_latency_vs_redisraft` | SET in groups of 2 and 3, beside 3 and 5 servers with RedisRaft, which tolerate as many failures |
//! | `redis_failover_vs_sentinel` | the same as `redis_failover`, beside three sentinels with their fastest setting without a false fail-over |
//! | `redis_memory_growth`, `redis_memory_lost` | minutes of writes at the memory limit of a group of two |
//! | `redis_failover` | from `kill -9` of the leader to the next write that a waiting client is acknowledged |
//!
//! 50 clients, values of 25 bytes, by redis-benchmark on the server's own host.
#![forbid(unsafe_code)]

mod cluster;
mod failover;
mod load;
mod memory;
mod rounds;
mod sentinel;
mod wanted;

use std::{process::ExitCode, time::Duration};

use anyhow::ensure;
use clap::Parser;
use cluster::{Cluster, Kind};
use fide_testbed::figures::{Figure, Goal, Report, Statistic};
use load::Clients;
use rounds::{benchmark, clients, in_turns, latency_beside, rate_beside};
use wanted::{RAFT_FAILURES, Wanted, settle};

/// Measures the Redis module and writes target/bench/redis.json.
#[derive(Debug, Parser)]
struct Args {
    /// Say what has moved beyond the spread since an earlier run: its JSON file, or a folder with one of this
    /// bench's name.
    #[arg(long, value_name = "OLD")]
    compare: Option<std::path::PathBuf>,
    /// Everything briefly, to see that it works; no number to quote.
    #[arg(long)]
    quick: bool,
    /// Only the figures whose names begin so.
    #[arg(long, value_name = "FIGURE")]
    only: Vec<String>,
    /// Failures that the largest group tolerates.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=4))]
    failures: u8,
    /// A folder with `redis-server` and `redisraft.so`, built elsewhere: the figures beside RedisRaft are not measured
    /// without it.
    #[arg(long, value_name = "FOLDER")]
    redisraft: Option<std::path::PathBuf>,
    /// How long the servers are kept at their memory limit.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=60))]
    minutes: u64,
    /// Servers are given these arguments too.
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    server: Vec<String>,
}

impl Args {
    fn wants(&self, figure: &str) -> bool {
        let is_named = |begin: &String| figure.starts_with(begin.as_str()) || begin.starts_with(figure);
        self.only.is_empty() || self.only.iter().any(is_named)
    }

    fn requests(&self, pipeline: u32) -> u64 {
        (if self.quick { 20_000 } else { 200_000 }) * u64::from(if pipeline > 1 { 4_u8 } else { 1 })
    }

    fn rounds(&self) -> usize {
        if self.quick { 1 } else { 5 }
    }
}

/// Starts servers of some kind, on so many hosts.
type Start<'a> = dyn Fn(&Kind, usize) -> anyhow::Result<Cluster> + 'a;
/// Some figures that are measured together. What was measured stays in the report even if the rest fails.
type Part = (&'static [Wanted], fn(&Args, &Start<'_>, &mut Report) -> anyhow::Result<()>);

const BESIDE_ALONE: [Wanted; 4] = [
    Wanted::rate("redis_set_vs_standalone").each_failure(),
    Wanted::rate("redis_set_pipelined_vs_standalone").each_failure(),
    Wanted::rate("redis_get_vs_standalone").each_failure().goal(Goal::AtLeast(0.95)),
    Wanted::rate("redis_get_follower_vs_standalone").each_failure().goal(Goal::AtLeast(0.95)),
];
const MIX: [Wanted; 1] = [Wanted::rate("redis_mix_vs_standalone").each_failure()];
const WAIT1: [Wanted; 2] = [
    Wanted::rate("redis_set_vs_wait1").goal(Goal::AtLeast(1.0)),
    Wanted::rate("redis_set_vs_async").goal(Goal::AtLeast(1.0)),
];
const DISK: [Wanted; 2] =
    [Wanted::rate("redis_disk_vs_aof").goal(Goal::AtLeast(0.8)), Wanted::rate("redis_disk_vs_aof_of_one")];
const DISK_OF_TWO: [Wanted; 1] = [Wanted::rate("redis_disk_vs_wait1")];
const RAFT: [Wanted; 2] = [
    Wanted::rate("redis_set_vs_redisraft").each_raft().goal(Goal::AtLeast(1.7)),
    Wanted::time("redis_latency_vs_redisraft").each_raft().goal(Goal::AtMost(0.46)),
];
const FAILOVER: [Wanted; 3] = [
    Wanted::time("redis_failover").goal(Goal::AtMost(10_000.0)),
    Wanted::time("redis_failover_p99").goal(Goal::AtMost(50_000.0)),
    Wanted::time("redis_failover_vs_sentinel").goal(Goal::AtMost(0.02)),
];
const MEMORY: [Wanted; 2] = [
    Wanted::share("redis_memory_growth").goal(Goal::AtMost(1.1)),
    Wanted::count("redis_memory_lost").goal(Goal::AtMost(0.0)),
];

const PARTS: [Part; 8] = [
    (&BESIDE_ALONE, beside_alone),
    (&MIX, mix),
    (&WAIT1, wait1),
    (&DISK, disk),
    (&DISK_OF_TWO, disk_of_two),
    (&RAFT, redisraft),
    (&FAILOVER, failover),
    (&MEMORY, memory),
];

fn run(args: &Args) -> anyhow::Result<()> {
    let mut report = Report::new("redis").compared_with(args.compare.as_deref())?;
    let server: Vec<&str> = args.server.iter().map(String::as_str).collect();
    let start = |kind: &Kind, hosts: usize| Cluster::start(kind, hosts, &server);
    let is_wanted = |part: &&Part| part.0.iter().any(|figure| args.wants(figure.name));
    let wanted: Vec<&Part> = PARTS.iter().filter(is_wanted).collect();
    ensure!(!wanted.is_empty(), "no figure begins with {}", args.only.join(" or "));
    let mut failed = Vec::new();
    for (figures, measure) in wanted {
        let begun = report.figures.len();
        let why = match measure(args, &start, &mut report) {
            Ok(()) => "its part has ended without it".to_owned(),
            Err(why) => {
                eprintln!("bench-redis: {why:#}");
                // What follows the first line is what the servers said.
                format!("{why:#}").lines().next().unwrap_or_default().to_owned()
            }
        };
        failed.extend(settle(args, figures, &mut report, begun, &why));
    }
    report.conclude()?;
    ensure!(failed.is_empty(), "not measured: {}", failed.join(", "));
    Ok(())
}

/// A group beside a server alone.
fn beside_alone(args: &Args, start: &Start<'_>, report: &mut Report) -> anyhow::Result<()> {
    let alone = start(&Kind::Alone, 1)?;
    for failures in 1..=usize::from(args.failures) {
        let group = start(&Kind::Group("hsuc"), failures + 1)?;
        let leader = group.await_ready()?;
        let follower = group.running().into_iter().find(|host| *host != leader).expect("two servers");
        let [set, pipelined, get, at_follower] = BESIDE_ALONE.map(|figure| figure.name);
        let wanted = [
            (set, leader, ("set", 1)),
            (pipelined, leader, ("set", 16)),
            (get, leader, ("get", 1)),
            (at_follower, follower, ("get", 1)),
        ];
        for (name, host, test) in wanted.into_iter().filter(|(name, ..)| args.wants(name)) {
            eprintln!("{name}: {failures} tolerated");
            let [of, base] =
                in_turns(args, [benchmark(args, (&group, host), test), benchmark(args, (&alone, 1), test)])?;
            report.add(rate_beside(&format!("{name}_{failures}"), &of, "a server alone", &base));
        }
    }
    Ok(())
}

/// Redis' own log, synced before each answer.
const APPEND_ONLY: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

/// Durable groups of two and of one beside a server alone that syncs its file, too.
fn disk(args: &Args, start: &Start<'_>, report: &mut Report) -> anyhow::Result<()> {
    let always = Cluster::start(&Kind::Alone, 1, &APPEND_ONLY)?;
    for (name, servers) in [("redis_disk_vs_aof", 2), ("redis_disk_vs_aof_of_one", 1)] {
        if !args.wants(name) {
            continue;
        }
        eprintln!("{name}");
        let group = start(&Kind::Durable, servers)?;
        let leader = group.await_ready()?;
        let test = ("set", 1);
        let [of, base] =
            in_turns(args, [benchmark(args, (&group, leader), test), benchmark(args, (&always, 1), test)])?;
        report.add(rate_beside(name, &of, "a server alone, appendfsync always", &base));
    }
    Ok(())
}

/// Leaders are killed; masters that Sentinel watches, too.
fn failover(args: &Args, start: &Start<'_>, report: &mut Report) -> anyhow::Result<()> {
    let kills = if args.quick { 3 } else { 100 };
    let samples = failover::measure(&mut start(&Kind::Group("hsuc"), 3)?, kills)?;
    let own = |name: &str| Figure::time(name, Statistic::P50, &samples);
    report.add(own("redis_failover"));
    report.add(Figure::time("redis_failover_p99", Statistic::P99, &samples));
    if args.wants("redis_failover_vs_sentinel") {
        let (kills, length) = if args.quick { (1, 3) } else { (10, 20) };
        let mut replicas = start(&Kind::Replicas, 3)?;
        let beside = sentinel::measure(&mut replicas, kills, Duration::from_secs(length))?;
        let figure = own("redis_failover_vs_sentinel").against(&beside.name, Statistic::P50, &beside.samples);
        report.add(figure.remark(beside.remark));
    }
    Ok(())
}

/// Servers at their memory limit.
fn memory(args: &Args, _: &Start<'_>, report: &mut Report) -> anyhow::Result<()> {
    let length = if args.quick { Duration::from_secs(20) } else { Duration::from_secs(60 * args.minutes) };
    let cluster = Cluster::start(&Kind::Group("hsuc"), 2, &memory::SERVER)?;
    let figures = memory::measure(&cluster, length).map_err(|why| cluster.explain(&why))?;
    figures.into_iter().for_each(|figure| report.add(figure));
    Ok(())
}

/// Groups of two and three beside clusters of RedisRaft that tolerate as many failures, in turns.
fn redisraft(args: &Args, start: &Start<'_>, report: &mut Report) -> anyhow::Result<()> {
    let Some(folder) = &args.redisraft else {
        let why = "no --redisraft FOLDER with redis-server and redisraft.so, whose licence keeps them out of here";
        for figure in RAFT {
            figure.names(0).iter().for_each(|name| report.add(figure.unmeasured(name, why)));
        }
        return Ok(());
    };
    for failures in 1..=RAFT_FAILURES {
        let names = RAFT.map(|figure| format!("{}_{failures}", figure.name));
        eprintln!("{}", names[0]);
        let raft = Cluster::start(&Kind::Raft(folder.clone()), 2 * failures + 1, &[])?;
        let group = start(&Kind::Group("hsuc"), failures + 1)?;
        let leader = group.await_ready()?;
        let test = ("set", 1);
        let [of, base] = in_turns(args, [benchmark(args, (&group, leader), test), benchmark(args, (&raft, 1), test)])?;
        let beside = format!("RedisRaft, {} servers", 2 * failures + 1);
        report.add(rate_beside(&names[0], &of, &beside, &base));
        report.add(latency_beside(&names[1], &of, &beside, &base));
    }
    Ok(())
}

/// A durable group of two beside what Redis has to put each write on two disks before its answer: a replica
/// acknowledges to `WAIT` once its own append-only file is synced, as it answers at the end of a turn.
fn disk_of_two(args: &Args, start: &Start<'_>, report: &mut Report) -> anyhow::Result<()> {
    eprintln!("redis_disk_vs_wait1");
    let length = Duration::from_millis(if args.quick { 300 } else { 3000 });
    let replicas = Cluster::start(&Kind::Replicas, 2, &APPEND_ONLY)?;
    let group = start(&Kind::Durable, 2)?;
    let leader = group.await_ready()?;
    let own = Clients::set(group.bed.host(leader), None)?;
    let waiting = Clients::set(replicas.bed.host(1), Some(1))?;
    let [of, base] = in_turns(args, [clients(own, length), clients(waiting, length)])?;
    report.add(rate_beside("redis_disk_vs_wait1", &of, "one replica, WAIT 1, both appendfsync always", &base));
    Ok(())
}

/// Reads and writes mixed, at the leader of a group and at a server alone, in turns.
fn mix(args: &Args, start: &Start<'_>, report: &mut Report) -> anyhow::Result<()> {
    let length = Duration::from_millis(if args.quick { 300 } else { 2000 });
    let alone = start(&Kind::Alone, 1)?;
    for failures in 1..=usize::from(args.failures) {
        eprintln!("redis_mix_vs_standalone: {failures} tolerated");
        let group = start(&Kind::Group("hsuc"), failures + 1)?;
        let leader = group.await_ready()?;
        let (own, plain) = (Clients::mix(group.bed.host(leader))?, Clients::mix(alone.bed.host(1))?);
        let [of, base] = in_turns(args, [clients(own, length), clients(plain, length)])?;
        report.add(rate_beside(&format!("redis_mix_vs_standalone_{failures}"), &of, "a server alone", &base));
    }
    Ok(())
}

/// A group of two beside a server that one replica follows: clients of the group, clients that wait for the
/// replica, and clients that do not, in turns.
fn wait1(args: &Args, start: &Start<'_>, report: &mut Report) -> anyhow::Result<()> {
    eprintln!("redis_set_vs_wait1");
    let length = Duration::from_millis(if args.quick { 300 } else { 3000 });
    let replicas = start(&Kind::Replicas, 2)?;
    let group = start(&Kind::Group("hsuc"), 2)?;
    let leader = group.await_ready()?;
    let own = Clients::set(group.bed.host(leader), None)?;
    let waiting = Clients::set(replicas.bed.host(1), Some(1))?;
    let without = Clients::set(replicas.bed.host(1), None)?;
    let sides = [own, waiting, without].map(|side| clients(side, length));
    let [of, waiting, without] = in_turns(args, sides)?;
    report.add(rate_beside("redis_set_vs_wait1", &of, "one replica and WAIT 1", &waiting));
    report.add(rate_beside("redis_set_vs_async", &of, "one replica, no WAIT", &without));
    Ok(())
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match fide_testbed::supported() {
        Ok(()) => run(&args),
        Err(why) => Err(why.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("bench-redis: {why:#}");
            ExitCode::FAILURE
        }
    }
}
