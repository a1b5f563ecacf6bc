// SPDX-License-Identifier: Apache-2.0
//! What both ends have counted at the end of a run: each message that was taken is accounted for.

use fide_link_model::LinkSpec;
use fide_pace::packet::{Frame, SENT_LEN, read_frame};

use crate::world::{FlowSpec, Sends, World};

const S: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;
/// For what is under way to come or to expire, and clocks that have stepped to be compared.
const DRAINS_NS: u64 = 5 * S;

/// Nothing more is sent, and the links lose nothing: all that was taken comes or is given up. One more message each way then tells the
/// receiver of all before it, so that
///
/// ```text
/// taken = delivered + lost, of which: dropped at the sender + late at the receiver + lost on the way
/// ```
pub(crate) fn settle(world: &mut World) {
    for flow in 0..world.flows.len() {
        world.stop_sends(flow);
        world.stop_back(flow);
        world.take_at_once(flow);
    }
    for link in &mut world.links {
        link.spec = LinkSpec { mtu: link.spec.mtu, ..LinkSpec::of(link.spec.delay_ns) };
    }
    let longest_ns = world.flows.iter().map(|flow| flow.longest_deadline_ns()).max().unwrap_or(0);
    world.run_until(world.now_ns + longest_ns + DRAINS_NS);
    for flow in 0..world.flows.len() {
        (0..2).for_each(|end| _ = world.send_one(flow, end, 30 * S));
    }
    // A path that took a packet in a second, or an application that sent one in five, is remembered for a while.
    world.run_until(world.now_ns + 10 * S);
    for flow in 0..world.flows.len() {
        for end in 0..2 {
            let (sender, _) = world.transport(flow, end);
            assert!(sender.is_idle(), "flow {flow}: what end {end} has sent is still under way: {sender:?}");
            let of_sender = sender.counts().sent;
            let of_receiver = world.transport(flow, 1 - end).0.counts().received;
            let way = &world.flows[flow].ways[end];
            let case = format!("flow {flow}, from end {end}: {of_sender:?}, {of_receiver:?}");
            assert_eq!(
                way.delivered.last().map(|last| last.0),
                way.sent.keys().last().copied(),
                "the last one: {case}"
            );
            assert_eq!(of_sender.messages, way.sent.len() as u64, "{case}");
            assert_eq!(of_receiver.delivered, way.delivered.len() as u64, "{case}");
            assert_eq!(of_sender.messages, of_receiver.delivered + of_receiver.lost, "{case}");
            assert!(of_sender.dropped + of_receiver.late <= of_receiver.lost, "{case}");
        }
    }
}

/// Over a path that loses nothing no message of one packet is lost on the way: more is sent than the path takes, and more than the receiver
/// takes.
#[test]
fn what_is_not_delivered_was_dropped_or_late() {
    for (every_ns, work_ns) in [(2 * MS, 0), (10 * MS, 15 * MS), (2 * MS, 15 * MS)] {
        for bytes in [100, 1000] {
            let mut flow =
                FlowSpec { sends: Sends::Every(every_ns), bytes: (bytes, bytes), work_ns, ..FlowSpec::held() };
            (flow.config.deadline_ns, flow.config.queue_max) = (80 * MS, 50);
            let there = LinkSpec::of(15 * MS).with_rate(400_000 * bytes as u64 / 100, 1_000_000);
            let mut world = World::new(1, there, LinkSpec::of(15 * MS), &[flow]);
            world.run_until(3 * S);
            settle(&mut world);
            let sent = world.transport(0, 0).0.counts().sent;
            let received = world.transport(0, 1).0.counts().received;
            println!("each {every_ns} ns, {work_ns} ns of work, {bytes} bytes: {sent:?}, {received:?}");
            assert_eq!(sent.messages, received.delivered + sent.dropped + received.late);
            assert!(sent.dropped + received.late > 0);
        }
    }
}

/// What cannot arrive in time is dropped at the sender, counts so, and nothing of it leaves.
#[test]
fn what_cannot_arrive_in_time_is_dropped_at_the_sender() {
    let way = LinkSpec::of(20 * MS);
    let mut world = World::new(1, way, way, &[FlowSpec { sends: Sends::Every(10 * MS), ..FlowSpec::held() }]);
    world.run_until(2 * S);
    world.stop_sends(0);
    world.run_until(3 * S);
    // A round trip takes 40 ms.
    for (deadline_ns, packets, dropped) in [(30 * MS, 0, 1), (39 * MS, 0, 2), (41 * MS, 1, 2)] {
        let (sender, now_ns) = world.transport(0, 0);
        sender.send(now_ns, &[7; 3000], Some(deadline_ns)).expect("it is taken");
        let (mut plain, mut symbols) = ([0; 1500], 0);
        while let Some(written) = sender.write(now_ns, &mut plain) {
            let mut frames = &plain[SENT_LEN..written.len];
            while let Ok(Some(frame)) = read_frame(&mut frames) {
                symbols += usize::from(matches!(frame, Frame::Data { .. } | Frame::Redundancy { .. }));
            }
        }
        assert_eq!((symbols > 0, sender.counts().sent.dropped), (packets > 0, dropped), "{deadline_ns} ns");
    }
    let counts = world.transport(0, 0).0.counts().sent;
    assert_eq!(counts.messages, world.flows[0].ways[0].sent.len() as u64 + 3);
}
