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

/// A receiver asks for the way of what it receives. The clocks are an hour apart and drift, and the way there takes longer.
#[test]
fn receiver_is_told_the_bottleneck_the_delay_and_the_clocks() {
    let of = |work_ns: u64| {
        let there = LinkSpec::of(20 * MS).with_rate(1_600_000, 60_000);
        let spec = FlowSpec { ahead_ns: 3_600 * 1_000_000_000, drift_ppm: 40, work_ns, ..FlowSpec::held() };
        let mut world = World::new(1, there, LinkSpec::of(10 * MS), &[spec]);
        world.run_until(10 * S);
        let (sender, now_ns) = world.transport(0, 0);
        let of_sender = sender.view(now_ns);
        let (receiver, now_ns) = world.transport(0, 1);
        println!("{:?}\n{of_sender:?}", receiver.incoming_view(now_ns));
        (receiver.incoming_view(now_ns), of_sender, receiver.snapshot(now_ns))
    };
    let (view, of_sender, snapshot) = of(0);
    let (step, pace_ns) = view.bottleneck.expect("known");
    assert!(step == Step::Network && (4 * MS..8 * MS).contains(&pace_ns), "{step:?} {pace_ns}");
    let told_ns = of_sender.paces.get(Step::Network);
    assert!(pace_ns.abs_diff(told_ns) < told_ns / 20, "{pace_ns} is what the sender has told of {told_ns}");
    assert_eq!(view.paces, snapshot.back);
    // What is passed on to the receiver's application, and back to the sender's (X-PACE §III-B).
    assert_eq!(view.paces.forward(Step::Receive), pace_ns);
    assert_eq!(of_sender.paces.backward(Step::Transmit), told_ns);
    assert!((20..=60).contains(&of_sender.drift_ppm), "{}", of_sender.drift_ppm);
    let (clock, of_sender) = (view.peer_clock.expect("known"), of_sender.peer_clock.expect("known"));
    // The sender's is behind, by what 32 bits of microseconds have room for; and it has lost 400 us since.
    let ahead_us = i64::from((-3_600_000_400_i64) as i32);
    assert!(clock.us.abs_diff(ahead_us) <= clock.uncertainty_us + 1, "{clock:?} for {ahead_us}");
    assert!(
        (clock.us + of_sender.us).unsigned_abs() <= clock.uncertainty_us + of_sender.uncertainty_us,
        "{of_sender:?}"
    );
    // The mean of packets that are 5 ms long on the link, and wait in a queue of a part of one.
    let one_way_us = view.one_way_ns.expect("known") / 1000;
    assert!((24_000..32_000).any(|true_us| one_way_us.abs_diff(true_us) <= clock.uncertainty_us), "{one_way_us}");
    assert_eq!(snapshot.one_way_here_us, Some(one_way_us));

    let (view, _, _) = of(20 * MS);
    let (step, pace_ns) = view.bottleneck.expect("known");
    assert!(step == Step::Deliver && (16 * MS..25 * MS).contains(&pace_ns), "{step:?} {pace_ns}");
    assert!(view.total_ns.is_some_and(|total_ns| total_ns >= pace_ns * 9 / 10), "{:?} in all", view.total_ns);
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
