// SPDX-License-Identifier: Apache-2.0
//! What an application learns that asks (X-PACE §IV-C2): the bottleneck and its changes, the delay, and when the next message
//! is to be expected.

use fide_link_model::LinkSpec;
use fide_pace::step::Step;

use crate::world::{FlowSpec, Sends, World, percentile_ms};

const S: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

/// Clocks that are an hour apart, losses, and two ways that take equally long.
fn periodic(loss: f64) -> World {
    let way = LinkSpec { losses: fide_pace::loss::Gilbert::of(loss, 1.0), ..LinkSpec::of(15 * MS) };
    let flow = FlowSpec { sends: Sends::Every(10 * MS), ahead_ns: 3_600 * 1_000_000_000, ..FlowSpec::held() };
    World::new(1, way, way, &[flow])
}

#[test]
fn delay_and_periods_are_told() {
    let mut world = periodic(0.0);
    world.run_until(5 * S);
    let (sender, now_ns) = world.transport(0, 0);
    let view = sender.view(now_ns);
    let mut times = world.flows[0].delivery_times_ns(4 * S, 5 * S);
    let delay_ms = percentile_ms(&mut times, 0.5);
    println!("{view:?}, and {delay_ms} ms");
    assert!((view.delay_ns as f64 / 1e6 - delay_ms).abs() < 0.5);
    assert_eq!(view.send_period_ns, Some(10 * MS));
    let (receiver, now_ns) = world.transport(0, 1);
    let period_ns = receiver.view(now_ns).receive_period_ns.expect("known");
    assert!(period_ns.abs_diff(10 * MS) < MS / 2, "{period_ns}");
}

/// A packet in fifty is lost and sent again, and some messages behind it wait for it; the others come when they are expected.
#[test]
fn next_message_is_foretold_in_spite_of_losses() {
    let mut world = periodic(0.02);
    let (mut asked, mut right) = (0, 0);
    // What is asked in the middle between two messages.
    for at in 0..200 {
        world.run_until(2 * S + at * 10 * MS + 20 * MS);
        let before = world.flows[0].ways[0].delivered.len();
        let (receiver, now_ns) = world.transport(0, 1);
        let Some(next_ns) = receiver.next_message_at(now_ns) else { continue };
        asked += 1;
        let in_ns = next_ns.saturating_sub(now_ns);
        world.run_until(world.now_ns + in_ns + MS);
        right += usize::from(in_ns <= 10 * MS && world.flows[0].ways[0].delivered.len() > before);
    }
    println!("{right} of {asked}");
    assert!(asked >= 190 && right * 10 >= asked * 8, "{right} of {asked}");
}

#[test]
fn change_of_the_bottleneck_is_told_and_nothing_else() {
    let of = |bits_per_s| LinkSpec::of(15 * MS).with_rate(bits_per_s, 60_000);
    let mut world = World::new(1, of(3_200_000), LinkSpec::of(15 * MS), &[FlowSpec::held()]);
    let mut told = Vec::new();
    for at in 0..2000 {
        if at == 1000 {
            world.links[0].spec = of(1_600_000);
        }
        world.run_until(at * 10 * MS);
        let (sender, now_ns) = world.transport(0, 0);
        if let Some(view) = sender.take_change(now_ns) {
            told.push((at, view.bottleneck.expect("a change of it")));
        }
    }
    println!("{told:?}");
    let of = |from: u64, to: u64| told.iter().filter(|(at, _)| (from..to).contains(at)).count();
    assert!(of(400, 1000) <= 2, "at a rate that stays");
    assert!((1..=50).contains(&of(1000, 1400)), "while the path is measured anew");
    assert!(of(1400, 2000) <= 2, "at the other rate");
    let (step, pace_ns) = told.last().expect("some").1;
    // A packet of 1,280 bytes and their headers, as a path of this rate takes it.
    assert!(step == Step::Network && (5 * MS..8 * MS).contains(&pace_ns), "{step:?} {pace_ns}");
}
