// SPDX-License-Identifier: Apache-2.0
//! How long the queues of bottlenecks become: the scenarios of X-PACE §V-B. Times here are simulated, so that they are
//! the same in every run.

use fide_pace::transport::Algorithm;

use crate::{
    link::LinkSpec,
    world::{FlowSpec, World, percentile_ms},
};

const S: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

fn held(algorithm: Algorithm) -> FlowSpec {
    let mut flow = FlowSpec::held();
    flow.config.algorithm = algorithm;
    flow
}

/// The 1st, 50th and 99th percentile, and the longest, in milliseconds.
fn spread(mut values: Vec<u64>) -> [f64; 4] {
    [0.01, 0.5, 0.99, 1.0].map(|share| percentile_ms(&mut values, share))
}

/// Ten seconds of one flow: times from sending to delivery, and between packets.
fn run(algorithm: Algorithm, there: LinkSpec, work_ns: u64) -> (World, [f64; 4], [f64; 4]) {
    let flow = FlowSpec { work_ns, ..held(algorithm) };
    let mut world = World::new(1, there, LinkSpec::of(15 * MS), &[flow]);
    world.run_until(10 * S);
    let flow = &world.flows[0];
    let (times, gaps) = (spread(flow.delivery_times_ns(0, 10 * S)), spread(flow.gaps_ns(0, 10 * S)));
    let counts = format!("{} sent, {} delivered", flow.sent.len(), flow.delivered.len());
    println!("{algorithm:?}: {counts}; delivery {times:.2?}; gaps {gaps:.2?}; dropped {}", world.links[0].dropped);
    (world, times, gaps)
}

/// §V-B1: 1.6 Mbit/s and 15 ms. A message of 1,000 bytes is one of 1,079 on the link: 5.4 ms, and 20.4 ms there.
#[test]
fn network_is_the_bottleneck() {
    let there = LinkSpec::of(15 * MS).with_rate(1_600_000, 18_000);
    run(Algorithm::XPace, there, 0);
    let (world, times, gaps) = run(Algorithm::Level, there, 0);
    assert!(times[2] <= 1.1 * 20.4, "99 of 100 within 1.1 of the least: {times:?}");
    assert!(gaps[0] >= 4.4 && gaps[2] <= 6.0, "{gaps:?}");
    assert_eq!(world.links[0].dropped, 0);
    assert!(world.flows[0].sent.len() > 1800, "the path is used");
}

/// The receiving application takes 5 ms for a message.
#[test]
fn receiver_is_the_bottleneck() {
    let there = LinkSpec::of(15 * MS).with_rate(16_000_000, 60_000);
    let (world, ..) = run(Algorithm::Level, there, 5 * MS);
    let flow = &world.flows[0];
    assert!(flow.delivered.len() as f64 > 2000.0 / 1.05, "the receiver never waits for long");
    let times = spread(flow.delivery_times_ns(S / 5, 10 * S));
    println!("after 200 ms: {times:.2?}");
    assert!(times[1] < 15.5 + 5.0, "half a message waits for the receiver: {times:?}");
}
