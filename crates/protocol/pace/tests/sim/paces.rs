// SPDX-License-Identifier: Apache-2.0
//! The paces of all steps are for one message, whatever part of a packet, or however many packets, that is (X-PACE §IV-B).

use fide_link_model::LinkSpec;
use fide_pace::step::Step::{self, Deliver, Network, Receive, Send};

use crate::world::{FlowSpec, Sends, World};

const S: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

/// Messages of so many bytes over a link: what the receiver's application takes for each, what its thread says that it takes for a packet,
/// and how the sender sends.
#[derive(Clone, Copy)]
struct Case {
    bytes: usize,
    bits_per_s: u64,
    sends: Sends,
    work_ns: u64,
    packet_ns: u64,
    slowest: Step,
    /// Of the network, and of the slowest step.
    network_ms: f64,
    pace_ms: f64,
}

/// 100 bytes are 179 on the link, with what only some packets carry somewhat more. 20,000 are 15 packets, 21,200 bytes.
const CASES: [Case; 8] = {
    let held = Sends::Held;
    let small = Case {
        bytes: 100,
        bits_per_s: 1_600_000,
        sends: held,
        work_ns: 0,
        packet_ns: 0,
        slowest: Network,
        network_ms: 0.95,
        pace_ms: 0.95,
    };
    let large = Case { bytes: 20_000, bits_per_s: 16_000_000, network_ms: 10.7, pace_ms: 10.7, ..small };
    [
        small,
        Case { work_ns: 3 * MS, slowest: Deliver, pace_ms: 3.0, ..small },
        Case { sends: Sends::Every(3 * MS), slowest: Send, pace_ms: 3.0, ..small },
        large,
        Case { work_ns: 5 * MS, ..large },
        Case { work_ns: 25 * MS, slowest: Deliver, pace_ms: 25.0, ..large },
        Case { sends: Sends::Every(25 * MS), slowest: Send, pace_ms: 25.0, ..large },
        Case { packet_ns: MS, slowest: Receive, pace_ms: 15.0, ..large },
    ]
};

#[test]
fn slowest_step_is_named_for_messages_of_any_size() {
    let mut wrong = Vec::new();
    for Case { bytes, bits_per_s, sends, work_ns, packet_ns, slowest, network_ms, pace_ms } in CASES {
        let mut flow = FlowSpec { bytes: (bytes, bytes), work_ns, ..FlowSpec::held() };
        flow.config.deadline_ns = 300 * MS;
        let there = LinkSpec::of(10 * MS).with_rate(bits_per_s, 100_000);
        let mut world = World::new(1, there, LinkSpec::of(10 * MS), &[flow]);
        // So that the network's rate is known.
        world.run_until(S);
        world.flows[0].spec.sends = sends;
        world.restart_sends(0);
        let (mut named, mut paces) = (0, Vec::new());
        for at in 0..350 {
            world.run_until(S + at * 20 * MS);
            if packet_ns > 0 {
                let (receiver, now_ns) = world.transport(0, 1);
                receiver.note_step(now_ns, Receive, packet_ns);
            }
            if at < 150 {
                continue;
            }
            let (sender, now_ns) = world.transport(0, 0);
            let view = sender.view(now_ns);
            named += usize::from(view.bottleneck.is_some_and(|(step, _)| step == slowest));
            paces.push([Network, slowest].map(|step| view.paces.get(step) as f64 / 1e6));
        }
        let mean = |at: usize| paces.iter().map(|paces| paces[at]).sum::<f64>() / paces.len() as f64;
        let (network, pace) = (mean(0), mean(1));
        let gaps = world.flows[0].gaps_ns(4 * S, 8 * S);
        let gap = 4000.0 / gaps.len() as f64;
        let case = format!(
            "{bytes} bytes, {slowest:?}: named {named} of 200 times, {pace:.2} ms; network {network:.2} ms; a message each {gap:.2} ms"
        );
        println!("{case}");
        let is_near = |of: f64, expected: f64| (of / expected - 1.0).abs() < 0.25;
        let is_kept = gap > 0.95 * pace && gap < 1.35 * pace;
        if named < 190 || !is_near(network, network_ms) || !is_near(pace, pace_ms) || !is_kept {
            wrong.push(case);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A sender that was slow is so for as long as its paces count.
#[test]
fn slow_turns_count_for_the_window_that_was_asked_for() {
    let pace_ms = |paces_window_ns, after_ns| {
        let mut flow = FlowSpec { sends: Sends::Every(50 * MS), ..FlowSpec::held() };
        flow.config.paces_window_ns = paces_window_ns;
        let mut world = World::new(1, LinkSpec::of(10 * MS), LinkSpec::of(10 * MS), &[flow]);
        world.run_until(S);
        world.flows[0].spec.sends = Sends::Every(5 * MS);
        world.restart_sends(0);
        world.run_until(S + after_ns);
        let (sender, now_ns) = world.transport(0, 0);
        sender.view(now_ns).paces.get(Send) / MS
    };
    for window_ns in [200 * MS, 2 * S, 10 * S] {
        let [inside, outside] = [window_ns / 4 * 3, window_ns + 100 * MS].map(|after_ns| pace_ms(window_ns, after_ns));
        assert_eq!([inside, outside], [50, 5], "{window_ns} ns");
    }
}

/// Over paths so fast that packets leave together messages of any size use the path, and no more of them wait than leave at once.
#[test]
fn messages_of_any_size_use_a_fast_path() {
    for (bytes, mbits_per_s) in [(100, 300_u64), (100, 1000), (20_000, 300), (20_000, 1000)] {
        let way = LinkSpec::of(50_000).with_rate(mbits_per_s * 1_000_000, 4_000_000);
        let mut flow = FlowSpec { bytes: (bytes, bytes), ..FlowSpec::held() };
        flow.config.queue_max = 64;
        let mut world = World::new(1, way, LinkSpec::of(50_000), &[flow]);
        world.run_until(S / 5);
        let before = world.flows[0].carried_bytes;
        let mut longest = 0;
        for at in 0..300 {
            world.run_until(S / 5 + at * MS);
            let (sender, now_ns) = world.transport(0, 0);
            longest = sender.snapshot(now_ns).waiting_to_leave.max(longest);
        }
        let share = (world.flows[0].carried_bytes - before) as f64 / (mbits_per_s as f64 * 299e3 / 8.0);
        println!("{bytes} bytes, {mbits_per_s} Mbit/s: {share:.2} of the path; {longest} wait at most");
        assert!(share > 0.75 && longest <= 3);
    }
}

/// A receiver that takes a message each second, and then none any more, is sent no more than before.
#[test]
fn slow_receiver_that_stops_is_sent_no_more() {
    let link = LinkSpec::of(5 * MS).with_rate(16_000_000, 100_000);
    let mut flow = FlowSpec { work_ns: S, ..FlowSpec::held() };
    flow.config.deadline_ns = 5 * S;
    let mut world = World::new(1, link, link, &[flow]);
    world.run_until(60 * S);
    world.stop_receiver(0, 100 * S);
    world.run_until(100 * S);
    let sent = |from_s, to_s| {
        let times = from_s * S..to_s * S;
        world.flows[0].ways[0].sent.values().filter(|sent| times.contains(&sent.at_ns)).count()
    };
    let (before, after) = (sent(40, 60), sent(80, 100));
    assert!((15..25).contains(&before) && after <= before, "{before} in 20 s, and {after} after it stopped");
}

/// Paces of many seconds cross the network, as a receiver's work and as the network's.
#[test]
fn paces_of_many_seconds_are_kept() {
    let link = LinkSpec::of(5 * MS).with_rate(16_000_000, 100_000);
    for work_s in [2, 10, 30] {
        let mut flow = FlowSpec { work_ns: work_s * S, ..FlowSpec::held() };
        // What is sent before the pace is known expires.
        flow.config.deadline_ns = 5 * work_s * S;
        let mut world = World::new(1, link, link, &[flow]);
        let (from_ns, to_ns) = (30 * work_s * S, 60 * work_s * S);
        world.run_until(to_ns);
        let way = &world.flows[0].ways[0];
        let sent = way.sent.values().filter(|sent| (from_ns..to_ns).contains(&sent.at_ns)).count();
        let (sender, now_ns) = world.transport(0, 0);
        let there_ns = sender.view(now_ns).paces.get(Deliver);
        let (receiver, now_ns) = world.transport(0, 1);
        let here_ns = receiver.incoming_view(now_ns).paces.get(Deliver);
        println!(
            "{work_s} s of work: {sent} sent; {there_ns} ns known to the sender, and {here_ns} ns to the receiver"
        );
        assert!((26..=40).contains(&sent), "{work_s} s of work: {sent} sent where about 30 were taken");
        assert!(there_ns.abs_diff(here_ns) < here_ns / 4, "{there_ns} ns, {here_ns} ns");
    }
    let mut flow = FlowSpec { bytes: (4_000_000, 4_000_000), ..FlowSpec::held() };
    flow.config.deadline_ns = 120 * S;
    let slow = LinkSpec::of(5 * MS).with_rate(1_600_000, 100_000);
    let mut world = World::new(1, slow, slow, &[flow]);
    world.run_until(120 * S);
    let (receiver, now_ns) = world.transport(0, 1);
    let network_ns = receiver.incoming_view(now_ns).paces.get(Network);
    assert!((18 * S..25 * S).contains(&network_ns), "{network_ns} ns for 4 MB at 1.6 Mbit/s");
}

/// A receiver that takes a message in 5 ms is sent as many as before soon after a pause of any length.
#[test]
fn pause_of_a_receiver_is_soon_forgotten() {
    let link = LinkSpec::of(5 * MS).with_rate(16_000_000, 100_000);
    for pause_s in [1, 10, 30, 120, 600] {
        let mut world = World::new(1, link, link, &[FlowSpec { work_ns: 5 * MS, ..FlowSpec::held() }]);
        world.run_until(10 * S);
        let over_ns = (10 + pause_s) * S;
        world.stop_receiver(0, over_ns);
        world.run_until(over_ns + 8 * S);
        let again = over_ns + 5 * S..over_ns + 8 * S;
        let sent = world.flows[0].ways[0].sent.values().filter(|sent| again.contains(&sent.at_ns)).count();
        assert!(sent > 500, "{pause_s} s: {sent} in three seconds");
    }
}

/// Before anything is known of a slow receiver, some tens of messages go ahead.
#[test]
fn start_against_a_slow_receiver() {
    let link = LinkSpec::of(5 * MS).with_rate(16_000_000, 100_000);
    for work_ms in [50, 200, 1000, 10_000] {
        let mut flow = FlowSpec { work_ns: work_ms * MS, ..FlowSpec::held() };
        flow.config.deadline_ns = 10 * work_ms * MS;
        let mut world = World::new(1, link, link, &[flow]);
        world.run_until(20 * work_ms * MS);
        let sent = world.flows[0].ways[0].sent.len();
        println!("{work_ms} ms: {sent} sent while about 20 were taken");
        assert!(sent < 110, "{work_ms} ms of work: {sent} sent while about 20 were taken");
    }
}
