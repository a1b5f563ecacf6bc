// SPDX-License-Identifier: Apache-2.0
//! The first seconds of a flow: jitter moves the packets of a pair together or apart, so that the link seems faster or slower than it is.

use fide_link_model::LinkSpec;
use fide_pace::loss::Gilbert;

use crate::world::{FlowSpec, Pauses, World, percentile_ms};

const MS: u64 = 1_000_000;
/// Messages of a run, as many as the bench sends.
const MESSAGES: usize = 2000;
const SEEDS: u64 = 25;

/// Threads that wake late, by a little and often, or by much and seldom.
fn hosts() -> [Option<Pauses>; 4] {
    let pauses = |every_ns, long_ns| Some(Pauses { every_ns, long_ns, has_times: true });
    [None, pauses(2 * MS, MS / 12), pauses(20 * MS, MS / 2), pauses(100 * MS, 2 * MS)]
}

/// A path like one through the Internet, which loses nothing: what a lost message delays is no queue.
fn world(seed: u64, pauses: Option<Pauses>) -> World {
    let there = LinkSpec { losses: Gilbert::of(0.0, 1.0), ..LinkSpec::internet() };
    let back = LinkSpec { jitter_ns: there.jitter_ns, reorders: false, ..LinkSpec::of(there.delay_ns) };
    let mut flow = FlowSpec { pauses: [pauses; 2], bytes: (960, 960), ..FlowSpec::held() };
    flow.config.residual_loss = 0.01;
    World::new(seed, there, back, &[flow])
}

/// The start learns the link's rate before it comes near to it: the buffer of 25 ms is filled in part, and few messages wait.
#[test]
fn start_in_spite_of_jitter_fills_no_buffer() {
    for pauses in hosts() {
        let (mut ranges, mut queues) = (Vec::new(), Vec::new());
        for seed in 1..=SEEDS {
            let mut world = world(seed, pauses);
            while world.flows[0].ways[0].sent.len() < MESSAGES {
                world.run_until(world.now_ns + 20 * MS);
                // The link carries them in 1.7 s.
                assert!(world.now_ns < 3000 * MS, "seed {seed}: the path is not used");
            }
            let mut times = world.flows[0].delivery_times_ns(0, world.now_ns);
            let [p1_ms, p99_ms] = [0.01, 0.99].map(|share| percentile_ms(&mut times, share));
            ranges.push(p99_ms - p1_ms);
            queues.push(world.links[0].longest_queue_ns as f64 / 1e6);
        }
        [&mut ranges, &mut queues].into_iter().for_each(|values| values.sort_by(f64::total_cmp));
        println!("{pauses:?}: p1 to p99 {ranges:.1?} ms, longest queues {queues:.1?} ms");
        // TCP CUBIC has 130 ms from p1 to p99 there. All but one are below a tenth of that.
        let [middle, nearly_most, most] =
            [SEEDS as usize / 2, SEEDS as usize - 2, SEEDS as usize - 1].map(|at| ranges[at]);
        assert!(middle < 5.0 && nearly_most < 11.7 && most < 15.0 && queues[SEEDS as usize - 1] < 15.0);
    }
}
