// SPDX-License-Identifier: Apache-2.0
//! `bench-agreement`: how fast members agree.
//!
//! | figure | what happens |
//! |---|---|
//! | `decisions_in_process` | 3 members of HSUC in one thread, messages handed over as bytes: 64-byte proposals, as many to an instance as fit |
//! | `decisions_in_process_unbatched` | the same, one to an instance |
//! | `decisions_in_process_huc` | the same by HUC, each heartbeat at once |
//! | `decisions_in_process_group` | as the first, in a group: with views, leases and a tail of decisions for those who join |
//! | `hsuc_vs_etcd_raft`, `hsuc_vs_etcd_raft_least` | 3 replicas in network namespaces, closed-loop clients at the leader; etcd's raft over the same network in the same run |
//! | `huc_vs_etcd_raft` | the same by HUC, whose decisions ride on the agents' heartbeats, and whose values go ahead, many as one |
//! | `huc_decision` | one client's value, until it is decided by HUC |
//! | `leader_killed`, and its parts | from `kill -9` of the leader to the next one's first decision |
//! | `idle_member_cpu_share` | what a member takes of a core while nobody proposes anything |
//! | `sim_speed` | packets that the simulator delivers per second on one core, by seed |
#![forbid(unsafe_code)]

use std::{process::ExitCode, time::Instant};

use clap::Parser;
use fide_agreement::{Group, HostSet, Hsuc, Huc, Links, Trust, View, ViewMember, group, hsuc, huc, transfer};
use fide_sim::cluster::{self, plan::Plan};
use fide_testbed::figures::{Figure, Goal, Report};

const MEMBERS: u16 = 3;
const WINDOW: u64 = 32;
const PROPOSAL: [u8; 64] = [7; 64];
const VALUE_MAX: usize = 16 << 10;
/// Repetitions, each measured separately.
const RUNS: usize = 11;

/// Measures agreement and writes target/bench/agreement.json.
#[derive(Debug, Parser)]
struct Args {
    /// Say what has moved beyond the spread since an earlier run: its JSON file, or a folder with one of this
    /// bench's name.
    #[arg(long, value_name = "OLD")]
    compare: Option<std::path::PathBuf>,
    /// Proposals of each of the repetitions.
    #[arg(long, default_value_t = 400_000, value_parser = clap::value_parser!(u32).range(1000..=100_000_000))]
    proposals: u32,
    /// Everything briefly, to see that it works; no number to quote.
    #[arg(long)]
    quick: bool,
    /// Rounds of each protocol with each number of clients, a second each.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Only the figures whose names begin so, and a result file with only these; all when nothing is named.
    #[arg(long, value_name = "FIGURE", value_parser = figure)]
    only: Vec<String>,
}

impl Args {
    /// How many rounds, and the length of a run, s.
    fn rounds(&self) -> (usize, f64) {
        if self.quick { (1, 0.2) } else { (self.rounds.into(), 1.0) }
    }

    fn kills(&self) -> usize {
        if self.quick { 3 } else { 31 }
    }

    fn wants(&self, figure: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|begin| figure.starts_with(begin.as_str()))
    }

    fn wants_any(&self, figures: &[&str]) -> bool {
        figures.iter().any(|figure| self.wants(figure))
    }
}

/// All figures: first those of one process, then those of three over the network.
const IN_PROCESS: [&str; 5] = [
    "decisions_in_process",
    "decisions_in_process_unbatched",
    "decisions_in_process_group",
    "decisions_in_process_huc",
    "sim_speed",
];
const OVER_NETWORK: [&str; 10] = [
    "hsuc_vs_etcd_raft",
    "hsuc_vs_etcd_raft_least",
    "huc_vs_etcd_raft",
    "huc_decision",
    "leader_killed",
    "leader_killed_detection",
    "leader_killed_to_leader",
    "leader_killed_to_sure",
    "leader_killed_to_first",
    "idle_member_cpu_share",
];

/// A prefix of the names of figures.
fn figure(word: &str) -> Result<String, String> {
    let mut all = IN_PROCESS.iter().chain(&OVER_NETWORK);
    if all.any(|figure| figure.starts_with(word)) {
        return Ok(word.to_owned());
    }
    Err(format!("no figure begins so; there are {}", [&IN_PROCESS[..], &OVER_NETWORK[..]].concat().join(", ")))
}

mod killed;
mod load;
mod members;
mod network;
use members::{Bare, rates};

fn hsuc(me: u16) -> anyhow::Result<Bare<Hsuc>> {
    let members = HostSet::first(MEMBERS.into());
    let setting = hsuc::Setting { window: WINDOW, value_max: VALUE_MAX, links: Links::Reliable };
    Ok(Bare(Hsuc::new(&setting, me, members)?))
}

fn huc(me: u16) -> anyhow::Result<Bare<Huc>> {
    // Each member may use as many bytes as an instance of HSUC has.
    let setting = huc::Setting { value_max: VALUE_MAX * usize::from(MEMBERS), trust: Trust::Network };
    Ok(Bare(Huc::new(&setting, me, HostSet::first(MEMBERS.into()))?))
}

/// A group as in a service: with views, leases, and the last decisions kept for joining members.
fn group(me: u16) -> anyhow::Result<Group<Hsuc>> {
    let members: Vec<ViewMember> = (1..=MEMBERS).map(|host| ViewMember { host, incarnation: 1 }).collect();
    let config = group::Config {
        group: 1,
        me,
        incarnation: 1,
        hosts: HostSet::first(MEMBERS.into()),
        setting: hsuc::Setting { window: WINDOW, value_max: VALUE_MAX, links: Links::Lossy },
        tail_max: 1 << 20,
        transfer: transfer::Config {
            chunk_max: 1400,
            payload_max: 1 << 20,
            stored_max: 4 << 20,
            reserved: 2 << 20,
            wants_max: 64,
            arriving_max: 16,
        },
    };
    Ok(Group::found(config, View::new(1, &members)?)?)
}

/// Packets delivered per second, over so many seeds each time.
fn sim_speed(seeds: u64) -> anyhow::Result<Vec<f64>> {
    let mut rates = Vec::new();
    for run in 0..RUNS as u64 {
        let (begun, mut deliveries) = (Instant::now(), 0);
        for seed in run * seeds..(run + 1) * seeds {
            let stats = cluster::run(&Plan::of(seed), None);
            deliveries += stats.map_err(|failure| anyhow::anyhow!("seed {seed}: {}", failure.violation))?.deliveries;
        }
        #[allow(clippy::cast_precision_loss, reason = "a rate")]
        rates.push(deliveries as f64 / begun.elapsed().as_secs_f64());
    }
    rates.sort_by(f64::total_cmp);
    Ok(rates)
}

fn run(args: &Args) -> anyhow::Result<()> {
    let proposals = if args.quick { 20_000 } else { u64::from(args.proposals) };
    let mut report = Report::new("agreement").compared_with(args.compare.as_deref())?;
    if args.wants_any(&IN_PROCESS[..4]) {
        in_process(&mut report, proposals)?;
    }
    if args.wants("sim_speed") {
        report.add(simulated(args.quick)?);
    }
    if args.wants_any(&OVER_NETWORK) {
        match fide_testbed::supported() {
            Ok(()) => network::run(args, &mut report)?,
            Err(why) => {
                for name in OVER_NETWORK {
                    report.add(Figure::unmeasured(name, "", why.to_string()));
                }
            }
        }
    }
    report.figures.retain(|figure| args.wants(&figure.figure));
    report.conclude()?;
    Ok(())
}

/// A figure of rates in ascending order.
fn rate(name: &str, rates: &[f64], goal: f64) -> Figure {
    Figure::rate(name, rates).goal(Goal::AtLeast(goal))
}

fn simulated(quick: bool) -> anyhow::Result<Figure> {
    let rates = sim_speed(if quick { 5 } else { 200 })?;
    Ok(rate("sim_speed", &rates, 2e6).remark("packets of detectors and groups, seeds as in `make sim`"))
}

fn in_process(report: &mut Report, proposals: u64) -> anyhow::Result<()> {
    let single = rates(hsuc, proposals / 8, 1)?;
    let batched = rates(hsuc, proposals, 512)?;
    let grouped = rates(group, proposals, 512)?;
    let heartbeats = rates(huc, proposals, 512)?;
    let of_batched = rate("decisions_in_process", &batched, 2e6);
    let of_group = rate("decisions_in_process_group", &grouped, 2e6).beside("decisions_in_process", &of_batched);
    report.add(of_batched.remark("64-byte proposals, as many to an instance as fit 16 KiB"));
    report.add(rate("decisions_in_process_unbatched", &single, 2e5).remark("one to an instance"));
    report.add(of_group.remark("the same in a group, over links that may lose"));
    let of_huc = rate("decisions_in_process_huc", &heartbeats, 2e6);
    report.add(of_huc.remark("the leader proposes, the others say that they have nothing to say"));
    Ok(())
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match words.split_first() {
        Some((first, rest)) if first == network::REPLICA => fide_counter::main(rest),
        _ => run(&Args::parse()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("bench-agreement: {why:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_named_by_their_beginnings_and_nothing_else() {
        let args = |words: &[&str]| Args::try_parse_from([&["bench-agreement"], words].concat());
        let killed = args(&["--only", "leader_killed"]).unwrap();
        assert!(killed.wants("leader_killed_to_sure") && !killed.wants("huc_decision"));
        assert!(killed.wants_any(&OVER_NETWORK) && !killed.wants_any(&IN_PROCESS));
        let why = args(&["--only", "leader_kiled"]).unwrap_err().to_string();
        assert!(why.contains("leader_killed_detection, "), "{why}");
        assert!(args(&[]).unwrap().wants("anything"));
    }
}
