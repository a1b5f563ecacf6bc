// SPDX-License-Identifier: Apache-2.0
//! No packet is later than its contract says, none sooner, and no queue longer: on any network, for any schedule.

use fide_planner::Planner;
use fide_sim::adversary::{Random, aim};
use fide_sim::network::{Flow, Outcome, flows, run};
use fide_sim::scenario::{self, Size};
use proptest::prelude::*;

const SIZE: Size = Size { switches: 8, hosts: 7, requests: 12 };

/// What does not hold, in words.
fn broken(planner: &Planner, flows: &[Flow], outcome: &Outcome) -> Option<String> {
    for (flow, latencies) in flows.iter().zip(&outcome.latency_ps) {
        for (j, latency) in latencies.iter().enumerate() {
            let Some((min, max)) = latency else { continue };
            let tree = planner.tree_latency(flow.id, flow.tree_index, j).expect("it is held");
            let contract = planner.allocation(flow.id).expect("it is held").contract.receivers[j];
            for (what, bound) in [("tree", tree), ("contract", contract)] {
                if *max > bound.latency_max_ns() * 1000 || *min < bound.latency_min_ns * 1000 {
                    return Some(format!("{flow:?} receiver {j}: {min} to {max} ps, {what} says {bound:?} ns"));
                }
            }
        }
    }
    planner.links().find_map(|link| {
        let most = outcome.backlog_bytes[link.link.at()];
        (most > link.backlog_bytes).then(|| format!("{most} bytes waited at {link:?}"))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_random_schedule_breaks_a_contract(network: u64, schedule: u64) {
        let planner = scenario::random(network, SIZE);
        let flows = flows(&planner);
        let mut random = Random::new(schedule, &flows, 30);
        let outcome = run(planner.topology(), &flows, planner.limits().best_effort_wire_bytes, &mut random);
        prop_assert_eq!(broken(&planner, &flows, &outcome), None);
    }

    #[test]
    fn no_aimed_packet_breaks_its_contract(network: u64, seed: u64) {
        let planner = scenario::random(network, SIZE);
        let flows = flows(&planner);
        prop_assume!(!flows.is_empty());
        let target = usize::try_from(seed % flows.len() as u64).unwrap();
        let j = usize::try_from(seed / 7).unwrap() % flows[target].tree.receivers();
        let worst = aim(&planner, &flows, target, j, 30, seed);
        let bound = planner.tree_latency(flows[target].id, flows[target].tree_index, j).unwrap();
        prop_assert!(worst.latency_ps <= bound.latency_max_ns() * 1000, "{worst:?} of {bound:?}");
    }
}
