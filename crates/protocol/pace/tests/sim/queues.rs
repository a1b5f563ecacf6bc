// SPDX-License-Identifier: Apache-2.0
//! How long the queues of bottlenecks become: the scenarios of X-PACE §V-B. Times here are simulated, so that they are
//! the same in every run.

use fide_link_model::LinkSpec;
use fide_pace::{
    loss::Gilbert,
    transport::{Algorithm, Config},
};

use crate::world::{FlowSpec, Sends, World, percentile_ms};

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
    let counts = format!("{} sent, {} delivered", flow.ways[0].sent.len(), flow.ways[0].delivered.len());
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
    assert!(world.flows[0].ways[0].sent.len() > 1800, "the path is used");
}

/// The receiving application takes 5 ms for a message.
#[test]
fn receiver_is_the_bottleneck() {
    let there = LinkSpec::of(15 * MS).with_rate(16_000_000, 60_000);
    let (world, ..) = run(Algorithm::Level, there, 5 * MS);
    let flow = &world.flows[0];
    assert!(flow.ways[0].delivered.len() as f64 > 2000.0 / 1.05, "the receiver never waits for long");
    let times = spread(flow.delivery_times_ns(S / 5, 10 * S));
    println!("after 200 ms: {times:.2?}");
    assert!(times[1] < 15.5 + 5.0, "half a message waits for the receiver: {times:?}");
}

/// Jain's index of what flows got in a time.
fn jain(world: &World, from_ns: u64, to_ns: u64) -> f64 {
    let got: Vec<f64> = world.flows.iter().map(|flow| flow.delivery_times_ns(from_ns, to_ns).len() as f64).collect();
    println!("{got:?}");
    let (sum, squares) = got.iter().fold((0.0, 0.0), |(sum, squares), got| (sum + got, squares + got * got));
    sum * sum / (got.len() as f64 * squares)
}

#[test]
fn flows_share_fairly() {
    for (count, bits_per_s) in [(2, 3_200_000), (10, 16_000_000)] {
        let there = LinkSpec::of(15 * MS).with_rate(bits_per_s, 100_000);
        let flows: Vec<FlowSpec> =
            (0..count).map(|at| FlowSpec { starts_ns: at * S / 4, ..held(Algorithm::Level) }).collect();
        let mut world = World::new(1, there, LinkSpec::of(15 * MS), &flows);
        world.run_until(10 * S);
        world.links[0].longest_queue_ns = 0;
        world.run_until(40 * S);
        let index = jain(&world, 10 * S, 40 * S);
        let queue = world.links[0].longest_queue_ns as f64 / 1e6;
        let times = spread(world.flows[0].delivery_times_ns(10 * S, 40 * S));
        println!("{count} flows: {index:.3}, longest queue {queue:.1} ms, delivery {times:.2?}");
        assert!(index >= 0.95);
    }
}

/// The network becomes slower, and faster again.
#[test]
fn bottleneck_that_moves_is_followed() {
    let of = |bits_per_s| LinkSpec::of(15 * MS).with_rate(bits_per_s, 60_000);
    let mut world = World::new(1, of(3_200_000), LinkSpec::of(15 * MS), &[held(Algorithm::Level)]);
    for (at, bits_per_s) in [3_200_000, 1_600_000, 6_400_000, 800_000, 1_600_000].into_iter().enumerate() {
        world.links[0].spec = of(bits_per_s);
        let from = at as u64 * 10 * S;
        // Two windows of the filter.
        world.run_until(from + 4 * S);
        world.links[0].longest_queue_ns = 0;
        world.run_until(from + 10 * S);
        let packet_ms = 1079.0 * 8e3 / bits_per_s as f64;
        let queue = world.links[0].longest_queue_ns as f64 / 1e6 / packet_ms;
        let times = spread(world.flows[0].delivery_times_ns(from + 4 * S, from + 10 * S));
        let sent = world.flows[0].gaps_ns(from + 4 * S, from + 10 * S).len() as f64 * packet_ms / 6000.0;
        println!("{bits_per_s}: queue of {queue:.2} packets, delivery {times:.2?}, {sent:.2} of the path used");
        assert!(queue <= 2.0 && sent > 0.9);
    }
}

/// A message each 10 ms over a path that is never full: one lost packet after another says nothing about its rate.
#[test]
fn losses_and_jitter_do_not_slow_a_flow_down() {
    for (loss, jitter_ns) in [(0.05, 0), (0.1, 0), (0.05, 2 * MS), (0.1, 2 * MS)] {
        for algorithm in [Algorithm::XPace, Algorithm::Level] {
            let way = LinkSpec {
                losses: Gilbert::of(loss, 1.0),
                jitter_ns,
                ..LinkSpec::of(5 * MS).with_rate(50_000_000, 1_000_000)
            };
            let mut flow = FlowSpec { sends: Sends::Every(10 * MS), bytes: (900, 1000), ..held(algorithm) };
            (flow.config.queue_max, flow.config.deadline_ns) = (100, S);
            let mut world = World::new(1, way, way, &[flow]);
            world.run_until(10 * S);
            let flow = &world.flows[0];
            let times = spread(flow.delivery_times_ns(0, 10 * S));
            println!(
                "{algorithm:?}, {loss} lost, jitter {jitter_ns} ns: {} of {}; delivery {times:.2?}",
                flow.ways[0].delivered.len(),
                flow.ways[0].sent.len()
            );
            assert!(flow.ways[0].sent.len() > 990 && flow.ways[0].delivered.len() > 990);
        }
    }
}

/// Bursts of lost packets, of which some round trips have many, are no reason to become slow.
#[test]
fn bursts_of_losses_do_not_slow_a_flow_down() {
    for (loss, burst) in [(0.05, 3.0), (0.1, 1.0), (0.1, 3.0), (0.3, 1.5)] {
        for delay_ns in [5 * MS, 15 * MS] {
            let way =
                LinkSpec { losses: Gilbert::of(loss, burst), ..LinkSpec::of(delay_ns).with_rate(16_000_000, 180_000) };
            let mut world = World::new(1, way, LinkSpec::of(delay_ns), &[held(Algorithm::Level)]);
            // The second ten seconds are as good as the first.
            for from in [5, 15] {
                world.run_until(from * S);
                let before = world.flows[0].carried_bytes;
                world.run_until((from + 10) * S);
                let share = (world.flows[0].carried_bytes - before) as f64 / (20e6 * (1.0 - loss));
                println!(
                    "{loss} lost in bursts of {burst}, {} ms, from {from} s: {share:.2} of what the path takes",
                    delay_ns / MS
                );
                assert!(share > 0.9);
            }
        }
    }
}

/// Paths so fast that packets leave together: they are used, and the queue is that of packets that left together.
#[test]
fn packets_of_fast_paths_leave_together() {
    for (mbits_per_s, queue_max) in [(300, 64), (1000, 64), (1000, 1), (4000, 64)] {
        let way = LinkSpec::of(50_000).with_rate(mbits_per_s * 1_000_000, 4_000_000);
        let mut flow = held(Algorithm::Level);
        flow.config.queue_max = queue_max;
        let mut world = World::new(1, way, LinkSpec::of(50_000), &[flow]);
        world.run_until(S / 5);
        world.links[0].longest_queue_ns = 0;
        world.run_until(S);
        let flow = &world.flows[0];
        let packet_ns = 1079.0 * 8e3 / mbits_per_s as f64;
        let sent = flow.gaps_ns(S / 5, S).len() as f64 * packet_ns / 0.8e9;
        let queue_us = world.links[0].longest_queue_ns as f64 / 1e3;
        let times = spread(flow.delivery_times_ns(S / 5, S));
        println!(
            "{mbits_per_s} Mbit/s, {queue_max} wait: {sent:.2} of the path used, queue {queue_us:.0} us, delivery {times:.3?}"
        );
        assert!(sent > 0.9 && queue_us < 400.0);
    }
}

/// Jitter moves the packets of a pair together, so that the path seems fast: its buffer is small, and little is lost all the same.
#[test]
fn jitter_does_not_hide_a_path_at_the_start() {
    for seed in 1..=6 {
        let there = LinkSpec { losses: Gilbert::of(0.0, 1.0), ..LinkSpec::internet() };
        let back = LinkSpec { jitter_ns: there.jitter_ns, reorders: false, ..LinkSpec::of(there.delay_ns) };
        let mut world = World::new(seed, there, back, &[held(Algorithm::Level)]);
        world.run_until(2 * S);
        let sent = world.flows[0].ways[0].sent.len();
        let times = spread(world.flows[0].delivery_times_ns(0, 2 * S));
        println!("{seed}: {sent} sent, {} dropped, delivery {times:.1?}", world.links[0].dropped);
        // The link carries 2,300.
        assert!(world.links[0].dropped <= 20 && sent > 1000);
    }
}

/// A flow whose own packets fill the buffer, as the link has become ten times slower, does not take them for others'.
#[test]
fn link_that_becomes_ten_times_slower_is_used() {
    let of = |bits_per_s| LinkSpec::of(15 * MS).with_rate(bits_per_s, 60_000);
    let mut world = World::new(1, of(16_000_000), LinkSpec::of(15 * MS), &[held(Algorithm::Level)]);
    for (at, bits_per_s) in [16_000_000, 1_600_000, 16_000_000, 2_000_000].into_iter().enumerate() {
        world.links[0].spec = of(bits_per_s);
        let from = at as u64 * 12 * S;
        for part in [2, 4, 8, 12] {
            let part_from = world.now_ns;
            world.links[0].longest_queue_ns = 0;
            world.run_until(from + part * S);
            let packet_ms = 1079.0 * 8e3 / bits_per_s as f64;
            let queue = world.links[0].longest_queue_ns as f64 / 1e6 / packet_ms;
            let ms = (world.now_ns - part_from) as f64 / 1e6;
            let sent = world.flows[0].gaps_ns(part_from, world.now_ns).len() as f64 * packet_ms / ms;
            println!("{bits_per_s} until {part} s: {sent:.2} of the path used, queue of {queue:.1} packets");
            assert!(part < 8 || queue <= 2.0 && sent > 0.85);
        }
    }
}

/// The slowest step is the network, the receiver, the sender, and the network again: X-PACE §V-B1 in one run. Its pace and the mean time
/// between two messages, in milliseconds, and the longest queue in packets of the slow link, from 4 s after each move on. `world_of`: a held
/// flow whose link there is this one at first.
pub(crate) fn moves(world_of: impl FnOnce(LinkSpec) -> World) -> [(f64, f64, f64); 4] {
    let local = LinkSpec::of(15 * MS);
    let (slow, fast) = (local.with_rate(1_600_000, 18_000), local.with_rate(16_000_000, 180_000));
    let (mut world, mut from_ns) = (world_of(slow), 0);
    let phases = [
        (slow, Sends::Held, 0, 5.4),
        (fast, Sends::Held, 8 * MS, 8.0),
        (fast, Sends::Every(12 * MS), 0, 12.0),
        (slow, Sends::Held, 0, 5.4),
    ];
    phases.map(|(link, sends, work_ns, pace_ms)| {
        world.links[0].spec = link;
        (world.flows[0].spec.sends, world.flows[0].spec.work_ns) = (sends, work_ns);
        world.restart_sends(0);
        world.run_until(from_ns + 4 * S);
        world.links[0].longest_queue_ns = 0;
        world.run_until(from_ns + 8 * S);
        let gaps = world.flows[0].gaps_ns(from_ns + 4 * S, from_ns + 8 * S);
        from_ns += 8 * S;
        (pace_ms, 4000.0 / gaps.len() as f64, world.links[0].longest_queue_ns as f64 / 1e6 / 5.4)
    })
}

#[test]
fn slowest_step_that_moves_is_followed() {
    for seed in 1..=12 {
        let back = LinkSpec::of(15 * MS);
        for (pace_ms, mean_ms, queue) in moves(|there| World::new(seed, there, back, &[held(Algorithm::Level)])) {
            println!("seed {seed}: pace {pace_ms} ms, mean {mean_ms:.2} ms, queue of {queue:.1} packets");
            // A flow that takes its own queue for another's finds out.
            assert!((mean_ms / pace_ms - 1.0).abs() < 0.1 && queue <= 2.0);
        }
    }
}

/// Messages of several packets, more than the path takes: those that arrive use most of it.
#[test]
fn messages_that_are_too_many_do_not_each_leave_in_part() {
    for (packets, queue_max, deadline_ns) in
        [(2, 100, 60 * MS), (5, 20, 60 * MS), (5, 100, 150 * MS), (20, 10, 200 * MS), (100, 8, 500 * MS)]
    {
        let bytes = 1100 * packets;
        let config = Config { queue_max, deadline_ns, ..Config::default() };
        let sends = Sends::Every(bytes as u64 * 300);
        let flow = FlowSpec { config, sends, bytes: (bytes, bytes), ..FlowSpec::held() };
        let there = LinkSpec::of(15 * MS).with_rate(16_000_000, 200_000);
        let mut world = World::new(1, there, LinkSpec::of(15 * MS), &[flow]);
        world.run_until(8 * S);
        let arrived = world.flows[0].delivery_times_ns(2 * S, 7 * S).len() * bytes;
        // Of the two million bytes that the path takes in a second.
        let share = arrived as f64 / 10_000_000.0;
        println!("{packets} packets each, {queue_max} may wait, {} ms: {share:.3}", deadline_ns / MS);
        assert!(share > 0.45);
    }
}

/// Over a way back of a twentieth of the rate FEEDBACK makes no queue, so that it is in time: it does not name all that was ever lost.
#[test]
fn feedback_about_losses_fits_a_slow_way_back() {
    for loss in [0.0, 0.02] {
        let there = LinkSpec { losses: Gilbert::of(loss, 1.0), ..LinkSpec::of(15 * MS).with_rate(10_000_000, 200_000) };
        let back = LinkSpec::of(15 * MS).with_rate(500_000, 60_000);
        let mut world = World::new(1, there, back, &[held(Algorithm::Level)]);
        world.run_until(4 * S);
        world.links[0].longest_queue_ns = 0;
        world.run_until(10 * S);
        let [queue, back] = [0, 1].map(|way| world.links[way].longest_queue_ns as f64 / 1e6);
        let bytes = world.links[1].bytes / world.links[1].packets;
        println!("{loss} lost: FEEDBACK of {bytes} bytes, queue of {queue:.1} ms there, of {back:.1} ms back");
        // Two packets take 1.7 ms.
        assert!(queue < 1.7 && back < 60.0 && bytes < 120);
    }
}
