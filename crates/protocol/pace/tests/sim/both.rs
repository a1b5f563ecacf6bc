// SPDX-License-Identifier: Apache-2.0
//! Both ends send: what happens to one way leaves the other alone.

use fide_link_model::LinkSpec;
use fide_pace::{loss::Gilbert, step::Step};

use crate::world::{FlowSpec, Sends, Traffic, World, percentile_ms};

const S: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

/// What came of one way, from 2 s to 12 s.
#[derive(Debug, Clone, Copy)]
struct Outcome {
    /// Messages a second that were sent, and the share of them that was delivered.
    per_s: f64,
    share: f64,
    p50_ms: f64,
    p99_ms: f64,
}

fn outcome(world: &World, way: usize) -> Outcome {
    let way = &world.flows[0].ways[way];
    let sent = way.gaps_ns(2 * S, 12 * S).len() as f64 + 1.0;
    let mut times = way.delivery_times_ns(2 * S, 12 * S);
    let share = times.len() as f64 / sent;
    let [p50_ms, p99_ms] = [0.5, 0.99].map(|of| percentile_ms(&mut times, of));
    Outcome { per_s: sent / 10.0, share, p50_ms, p99_ms }
}

/// Messages of 1,000 bytes both ways; that the one back is 1.6 Mbit/s is what holds its sender.
fn run(losses: Gilbert, work_ns: u64, sends: Sends) -> (Outcome, Outcome, World) {
    let there = LinkSpec { losses, ..LinkSpec::of(15 * MS).with_rate(16_000_000, 60_000) };
    let back = LinkSpec::of(15 * MS).with_rate(1_600_000, 60_000);
    let traffic = Traffic { sends: Sends::Held, bytes: (1000, 1000), work_ns: 0 };
    let flow = FlowSpec { sends, work_ns, back: Some(traffic), ..FlowSpec::held() };
    let mut world = World::new(1, there, back, &[flow]);
    world.run_until(13 * S);
    let (of_there, of_back) = (outcome(&world, 0), outcome(&world, 1));
    println!("{losses:?}, {work_ns} ns: there {of_there:.2?}, back {of_back:.2?}");
    (of_there, of_back, world)
}

/// The rate may differ by so much: a way also carries FEEDBACK for the other, and loses it.
fn assert_same(one: Outcome, other: Outcome, rate: f64) {
    let is_same = (one.per_s / other.per_s - 1.0).abs() < rate
        && (one.share - other.share).abs() < 0.01
        && (one.p50_ms - other.p50_ms).abs() < 0.1 * other.p50_ms
        && (one.p99_ms - other.p99_ms).abs() < 0.3 * other.p99_ms;
    assert!(is_same, "{one:?}, and alone {other:?}");
}

#[test]
fn losses_one_way_leave_the_other_alone() {
    let every = Sends::Every(10 * MS);
    let (_, alone, _) = run(Gilbert::of(0.0, 1.0), 0, every);
    for (loss, burst) in [(0.05, 1.0), (0.1, 3.0)] {
        let (there, back, _) = run(Gilbert::of(loss, burst), 0, every);
        assert_same(back, alone, 0.2);
        assert!(there.share > 0.98, "{there:?}");
    }
}

#[test]
fn slow_receiver_one_way_leaves_the_other_alone() {
    // A message each 25 ms as well, so that as much FEEDBACK is sent.
    let (_, alone, _) = run(Gilbert::of(0.0, 1.0), 0, Sends::Every(25 * MS));
    let (there, back, mut world) = run(Gilbert::of(0.0, 1.0), 25 * MS, Sends::Held);
    assert_same(back, alone, 0.05);
    assert!(there.per_s < 42.0, "{there:?}");
    // Each end names the step that is slow for its own messages.
    let slowest = [0, 1].map(|end| {
        let (sender, now_ns) = world.transport(0, end);
        sender.view(now_ns).bottleneck.expect("known").0
    });
    assert_eq!(slowest, [Step::Deliver, Step::Network]);
}

/// The way back is held by its receiver, the way there by the network: neither takes the other's pace.
#[test]
fn each_way_has_its_own_size_of_messages() {
    let link = |bits_per_s| LinkSpec::of(15 * MS).with_rate(bits_per_s, 100_000);
    let traffic = Traffic { sends: Sends::Held, bytes: (100, 100), work_ns: 3 * MS };
    let mut flow = FlowSpec { bytes: (20_000, 20_000), back: Some(traffic), ..FlowSpec::held() };
    flow.config.deadline_ns = 300 * MS;
    let mut world = World::new(1, link(16_000_000), link(1_600_000), &[flow]);
    world.run_until(8 * S);
    let paces = [0, 1].map(|end| {
        let (sender, now_ns) = world.transport(0, end);
        let view = sender.view(now_ns);
        (view.bottleneck.expect("known").0, view.paces.get(Step::Network) as f64 / 1e6)
    });
    println!("{paces:?}");
    assert!(matches!(paces, [(Step::Network, 9.0..15.0), (Step::Deliver, 0.8..1.4)]), "{paces:?}");
}
