// SPDX-License-Identifier: Apache-2.0
//! Redundancy of a window that slides where its messages differ, or end.

use fide_link_model::LinkSpec;
use fide_pace::{loss::Gilbert, transport::Config};

use crate::world::{FlowSpec, Sends, World};

const S: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

/// A message each so often, to be delivered within 60 ms of which a round trip takes 30.
fn world(seed: u64, losses: Gilbert, every_ns: u64, own_deadlines_ns: Option<(u64, u64)>) -> World {
    let way = LinkSpec { losses, ..LinkSpec::of(15 * MS).with_rate(16_000_000, 180_000) };
    let config = Config { deadline_ns: 60 * MS, residual_loss: 0.01, queue_max: 20, ..Config::default() };
    let flow = FlowSpec { config, sends: Sends::Every(every_ns), own_deadlines_ns, ..FlowSpec::held() };
    World::new(seed, way, LinkSpec { losses, ..LinkSpec::of(15 * MS) }, &[flow])
}

/// What is lost of the last messages is given up once it has expired, though nothing follows it.
#[test]
fn sender_of_a_window_knows_that_the_last_messages_are_over() {
    for every_ns in [MS, 20 * MS, 100 * MS] {
        for seed in 0..30 {
            let mut world = world(seed, Gilbert::of(0.1, 1.0), every_ns, None);
            world.run_until((400 + seed) * every_ns);
            world.stop_sends(0);
            let from_ns = world.now_ns;
            while !world.transport(0, 0).0.is_idle() {
                world.run_until(world.now_ns + MS);
                let took_ms = (world.now_ns - from_ns) / MS;
                assert!(took_ms < 200, "seed {seed}, each {every_ns} ns: {took_ms} ms");
            }
        }
    }
}

/// Redundancy is planned for the connection's deadline, and does not suffice: what is lost beyond it has time for several rounds.
#[test]
fn messages_with_longer_deadlines_are_sent_again() {
    for seed in 1..=8 {
        let mut world = world(seed, Gilbert::of(0.3, 2.0), MS, Some((S, S)));
        world.run_until(3 * S);
        world.stop_sends(0);
        world.run_until(6 * S);
        let times = world.flows[0].delivery_times_ns(S, 3 * S);
        let mean_ms = times.iter().sum::<u64>() / MS / times.len() as u64;
        let given_up = world.flows[0].counts().sent.given_up;
        println!("seed {seed}: {} delivered, after {mean_ms} ms, {given_up} given up", times.len());
        assert!(given_up <= 5 && mean_ms < 200);
    }
}
