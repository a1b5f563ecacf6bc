// SPDX-License-Identifier: Apache-2.0
//! The end of what is sent: a sender knows soon that all has come, though nothing follows and nobody reads.

use fide_link_model::LinkSpec;
use fide_pace::loss::Gilbert;

use crate::world::{FlowSpec, Sends, World};

const S: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;
/// Long beside the rounds that lost packets need.
const DEADLINE_NS: u64 = 60 * S;

/// How long after its last message a sender knows that all has come. Feedback is lost as well as messages are.
fn idle_after_ns(seed: u64, losses: Gilbert, every_ns: u64) -> u64 {
    let way = LinkSpec { losses, ..LinkSpec::of(5 * MS).with_rate(50_000_000, 1_000_000) };
    // The receiver's application takes one message, and no other.
    let mut flow = FlowSpec { sends: Sends::Every(every_ns), work_ns: 3600 * S, ..FlowSpec::held() };
    flow.config.deadline_ns = DEADLINE_NS;
    flow.config.queue_max = 100;
    let mut world = World::new(seed, way, way, &[flow]);
    world.run_until((50 + 15 * seed) * every_ns);
    world.stop_sends(0);
    let from_ns = world.now_ns;
    while !world.transport(0, 0).0.is_idle() {
        world.run_until(world.now_ns + MS);
    }
    world.now_ns - from_ns
}

#[test]
fn sender_knows_soon_that_all_has_come() {
    for (rate, burst) in [(0.01, 1.0), (0.1, 1.0), (0.1, 3.0)] {
        for every_ns in [MS, 20 * MS, 100 * MS] {
            for seed in 0..30 {
                let took_ns = idle_after_ns(seed, Gilbert::of(rate, burst), every_ns);
                assert!(
                    took_ns < 2 * S,
                    "{took_ns} ns with {rate} lost in bursts of {burst}, a message each {every_ns} ns, seed {seed}"
                );
            }
        }
    }
}
