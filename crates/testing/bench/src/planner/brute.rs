// SPDX-License-Identifier: Apache-2.0
//! The planner's trees beside the cheapest of all, on networks small enough to try all.

use crate::{Args, spread};
use fide_planner::topology::{CableSpec, LeafSpine};
use fide_planner::trees::brute;
use fide_planner::{Limits, Planner, Topology};
use fide_sim::scenario::{self, Size};
use fide_testbed::figures::{Figure, Goal, Report};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const SIZE: Size = Size { switches: 6, hosts: 6, requests: 0 };
/// Most requests that are held before the compared one.
const BEFORE: usize = 12;

pub(crate) fn run(args: &Args, report: &mut Report) {
    let bar = indicatif::ProgressBar::new(u64::from(args.networks)).with_message("networks enumerated");
    let (mut ratios, mut missed, mut none) = (Vec::new(), 0_u64, 0_u64);
    let mut regular = 0_u64;
    for seed in args.seed..args.seed + u64::from(args.networks) {
        bar.inc(1);
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let topology = network(&mut random);
        let hosts: Vec<String> = topology.hosts().map(|host| topology.node(host).name.clone()).collect();
        let limits = Limits { bandwidth_share: 1.0, queue_share: 1.0, ..Limits::default() };
        let mut planner = Planner::new(topology, limits).expect("limits are right");
        for number in 0..random.random_range(0..=BEFORE) {
            let _ = planner.request(scenario::request(&mut random, &hosts, number));
        }
        let mut request = scenario::request(&mut random, &hosts, BEFORE);
        request.receivers.truncate(brute::RECEIVERS_MAX);
        let compared = planner.with_search(&request, |search| (search.find(), brute::cheapest_ps(search)));
        match compared.expect("hosts and figures are right") {
            (Ok(found), Some(best)) => {
                #[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
                ratios.push(found.cost.total_ps() as f64 / best as f64);
                regular += u64::from(found.method == fide_planner::trees::Method::BottomUp);
            }
            (Err(_), Some(_)) => {
                bar.println(format!("trees exist and were not found: seed {seed}"));
                missed += 1;
            }
            (Err(_), None) => none += 1,
            (Ok(_), None) => unreachable!("trees were found where trying all found none: seed {seed}"),
        }
    }
    bar.finish_and_clear();
    let remark = format!(
        "cost found / cheapest; {regular} by App. B's construction alone; on {none} networks there are no trees; {missed} \
         missed"
    );
    let mut figure = spread("cost_vs_brute_force", "ratio", "max", ratios, Goal::AtMost(1.01));
    if missed > 0 {
        figure.met = Some(false);
    }
    report.add(Figure { why: Some(remark), ..figure });
}

/// A small network without cables between hosts: trying all trees does not show which tree has such a cable.
fn network(random: &mut ChaCha8Rng) -> Topology {
    if random.random_range(0..3) == 0 {
        let spines = random.random_range(2..=3);
        return LeafSpine { groups: 2, homing: 2, spines, hosts: 3 }.build(&CableSpec::default()).expect("in range");
    }
    loop {
        let topology = scenario::irregular(random, SIZE);
        let direct = topology.cables().iter().any(|cable| cable.ends.iter().all(|end| topology.is_host(*end)));
        if !direct {
            return topology;
        }
    }
}
