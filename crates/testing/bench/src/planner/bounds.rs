// SPDX-License-Identifier: Apache-2.0
//! Runs plans packet by packet.

use crate::{Args, spread};
use fide_planner::topology::{CableSpec, FatTree};
use fide_planner::{Limits, Planner};
use fide_sim::adversary::{Random, aim};
use fide_sim::network::{Outcome, flows, run as simulate};
use fide_sim::scenario::{self, Size};
use fide_testbed::figures::{Figure, Goal, Report};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

const SIZE: Size = Size { switches: 10, hosts: 9, requests: 20 };
/// Packets of each flow in a random schedule.
const PACKETS: u32 = 25;
/// Changes that the aimed schedules try.
const TRIES: u32 = 120;
/// Requests of a fat tree that are attacked by aimed schedules.
const REQUESTS: usize = 20;

pub(crate) fn run(args: &Args, report: &mut Report) -> anyhow::Result<()> {
    let bar = indicatif::ProgressBar::new(u64::from(args.allocations)).with_message("allocations run");
    let (mut broken, mut packets, mut trees) = (0, 0, 0);
    for number in 0..u64::from(args.allocations) {
        bar.inc(1);
        let seed = args.seed + number;
        let planner = scenario::random(seed, SIZE);
        let flows = flows(&planner);
        trees += flows.len() as u64;
        let best_effort = planner.limits().best_effort_wire_bytes;
        let outcome = simulate(planner.topology(), &flows, best_effort, &mut Random::new(seed, &flows, PACKETS));
        packets += outcome.packets;
        let mut late = late(&planner, &outcome);
        // Every tenth allocation also runs by a schedule aimed at one of its trees.
        if number % 10 == 0 && !flows.is_empty() {
            let target = usize::try_from(number / 10)? % flows.len();
            let j = usize::try_from(number)? % flows[target].tree.receivers();
            let worst = aim(&planner, &flows, target, j, TRIES / 4, seed);
            let bound = planner.tree_latency(flows[target].id, flows[target].tree_index, j).expect("it is held");
            late += u64::from(worst.latency_ps > bound.latency_max_ns() * 1000);
        }
        if late > 0 {
            bar.println(format!("a bound does not hold: bench-planner --only bounds --allocations 1 --seed {seed}"));
        }
        broken += late;
    }
    bar.finish_and_clear();
    let remark = format!("{trees} trees, {packets} packets sent over links");
    report.add(
        Figure::count("bound_violations", broken, u64::from(args.allocations)).goal(Goal::AtMost(0.0)).remark(remark),
    );
    report.add(tightness(args));
    Ok(())
}

/// Latencies and queues beyond the planner's promise.
fn late(planner: &Planner, outcome: &Outcome) -> u64 {
    let mut late = 0;
    for (flow, latencies) in flows(planner).iter().zip(&outcome.latency_ps) {
        for (j, latency) in latencies.iter().enumerate() {
            let Some((min, max)) = latency else { continue };
            let bound = planner.tree_latency(flow.id, flow.tree_index, j).expect("it is held");
            late += u64::from(*max > bound.latency_max_ns() * 1000 || *min < bound.latency_min_ns * 1000);
        }
    }
    late + planner.links().filter(|link| outcome.backlog_bytes[link.link.at()] > link.backlog_bytes).count() as u64
}

/// On fat trees: the latest packet that schedules aimed at each tree's farthest receiver can make, as a share
/// of its bound.
fn tightness(args: &Args) -> Figure {
    let mut shares = Vec::new();
    let all: &[(u64, u64)] = if args.quick { &[(4, 1)] } else { &[(4, 3), (6, 2), (8, 2)] };
    for (k, seeds) in all {
        for seed in args.seed..args.seed + seeds {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            let homing = if k % 4 == 0 { 2 } else { 3 };
            let topology = FatTree { k: *k, homing }.build(&CableSpec::default()).expect("k is even");
            let hosts: Vec<String> = topology.hosts().map(|host| topology.node(host).name.clone()).collect();
            let mut planner = Planner::new(topology, Limits::default()).expect("the defaults are right");
            for number in 0..REQUESTS {
                let mut request = scenario::request(&mut random, &hosts, number);
                request.redundancy = 2;
                let _ = planner.request(request);
            }
            let flows = flows(&planner);
            let bar = indicatif::ProgressBar::new(flows.len() as u64).with_message(format!("k = {k}"));
            for target in 0..flows.len() {
                bar.inc(1);
                let (id, tree) = (flows[target].id, flows[target].tree_index);
                let bound = |j: usize| planner.tree_latency(id, tree, j).expect("it is held").latency_max_ns();
                let farthest = (0..flows[target].tree.receivers()).max_by_key(|j| bound(*j)).expect("one at least");
                let worst = aim(&planner, &flows, target, farthest, TRIES, seed);
                #[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
                shares.push(worst.latency_ps as f64 / (bound(farthest) * 1000) as f64);
            }
            bar.finish_and_clear();
        }
    }
    spread("bound_tightness", "share", "p50", shares, Goal::AtLeast(0.7))
}
