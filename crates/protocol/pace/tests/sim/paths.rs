// SPDX-License-Identifier: Apache-2.0
//! Paths that change under a connection: outages, sizes, delays, overtaking and repetitions.

use fide_link_model::LinkSpec;
use fide_pace::{loss::Gilbert, transport::Algorithm};

use crate::world::{FlowSpec, Sends, World};

const S: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

const BOTH: [Algorithm; 2] = [Algorithm::Level, Algorithm::XPace];

fn held(algorithm: Algorithm) -> FlowSpec {
    let mut flow = FlowSpec::held();
    flow.config.algorithm = algorithm;
    flow
}

/// Nothing comes through.
fn out(spec: LinkSpec) -> LinkSpec {
    LinkSpec { losses: Gilbert { to_bad: 1.0, to_good: 0.0 }, ..spec }
}

/// Messages sent within a time that were delivered, a second.
fn per_s(world: &World, from_ns: u64, to_ns: u64) -> f64 {
    world.flows[0].delivery_times_ns(from_ns, to_ns).len() as f64 * 1e9 / (to_ns - from_ns) as f64
}

/// An outage after three seconds: messages delivered a second before it, packets sent during it, and messages delivered a second
/// from a second and ten round trips after it on.
fn outage(algorithm: Algorithm, there: LinkSpec, outage_ns: u64, ways: [bool; 2]) -> [f64; 3] {
    let back = LinkSpec::of(there.delay_ns);
    let mut world = World::new(1, there, back, &[held(algorithm)]);
    world.run_until(3 * S);
    for (link, is_out) in world.links.iter_mut().zip(ways) {
        link.spec = if is_out { out(link.spec) } else { link.spec };
    }
    let packets = world.links[0].packets;
    world.run_until(3 * S + outage_ns);
    let during = world.links[0].packets - packets;
    (world.links[0].spec, world.links[1].spec) = (there, back);
    let from_ns = 4 * S + outage_ns + 20 * there.delay_ns;
    world.run_until(from_ns + S + S / 4);
    assert_eq!(world.transport(0, 0).0.closed(), None);
    [per_s(&world, 2 * S, 3 * S), during as f64, per_s(&world, from_ns, from_ns + S)]
}

#[test]
fn outage_below_the_idle_limit_is_survived() {
    for algorithm in BOTH {
        for (mbit_per_s, delay_ns, outage_ns) in
            [(1, 15 * MS, 10 * S), (20, 15 * MS, 2 * S), (50, 5 * MS, 10 * S), (50, 20 * MS, 28 * S)]
        {
            let there = LinkSpec::of(delay_ns).with_rate(mbit_per_s * 1_000_000, 250_000);
            for ways in [[true, true], [true, false], [false, true]] {
                let [before, during, after] = outage(algorithm, there, outage_ns, ways);
                println!(
                    "{algorithm:?}, {mbit_per_s} Mbit/s, {} s {ways:?}: {before:.0} a second, {during} packets into it, {after:.0} after it",
                    outage_ns / S
                );
                // Before it counts as an outage, some round trips pass; then there are some requests a second.
                let round_trips = 2.0 * delay_ns as f64 / 1e9 * before;
                assert!(during <= 12.0 * round_trips + 100.0 + 12.0 * (outage_ns / S) as f64);
                assert!(after >= 0.75 * before);
            }
        }
    }
}

/// More is given up than a receiver has room for.
#[test]
fn outage_of_a_gigabit_is_survived() {
    let there = LinkSpec::of(20 * MS).with_rate(1_000_000_000, 5_000_000);
    let [before, _, after] = outage(Algorithm::Level, there, 2 * S, [true, true]);
    println!("{before:.0} a second, {after:.0} after it");
    assert!(after >= 0.75 * before);
}

/// The share of messages sent within a time that was delivered.
fn share(world: &World, from_ns: u64, to_ns: u64) -> f64 {
    let sent = world.flows[0].ways[0].sent.values().filter(|sent| (from_ns..to_ns).contains(&sent.at_ns)).count();
    world.flows[0].delivery_times_ns(from_ns, to_ns).len() as f64 / sent as f64
}

/// From five seconds on the path takes datagrams of a size only, and tells nobody.
#[test]
fn path_that_begins_to_drop_large_packets_is_left() {
    let cases = [
        (1200, 10 * MS, 100 * MS),
        (1300, 10 * MS, 100 * MS),
        (1390, 2 * MS, 100 * MS),
        (1200, 100 * MS, 100 * MS),
        // Coded packets go ahead.
        (1250, 4 * MS, 45 * MS),
        // Nothing changes.
        (1500, 10 * MS, 100 * MS),
    ];
    for algorithm in BOTH {
        for bytes in [(300, 300), (1200, 1200), (5000, 5000), (0, 5000)] {
            for (takes, every_ns, deadline_ns) in cases {
                let losses = Gilbert::of(0.01, 1.0);
                let way = LinkSpec { losses, ..LinkSpec::of(15 * MS).with_rate(50_000_000, 500_000) };
                let mut flow = FlowSpec { sends: Sends::Every(every_ns), bytes, ..held(algorithm) };
                (flow.config.queue_max, flow.config.deadline_ns) = (20, deadline_ns);
                let mut world = World::new(1, way, way, &[flow]);
                world.run_until(5 * S);
                world.links[0].spec.mtu = takes + 28;
                world.run_until(13 * S);
                let found = world.flows[0].counts().black_holes;
                let packet_bytes = usize::try_from(world.transport(0, 0).0.snapshot(0).packet_bytes).unwrap();
                let shares = [(5, 7), (7, 12)].map(|(from, to)| share(&world, from * S, to * S));
                println!(
                    "{algorithm:?}, {bytes:?} bytes each {} ms, datagrams up to {takes}: {found} found, now {packet_bytes}; {:.3} delivered within 2 s, {:.4} later",
                    every_ns / MS,
                    shares[0],
                    shares[1]
                );
                // Of messages each 100 ms by XPace some seconds' are lost with any losses: the path seems as slow as they make it.
                let most_lost = match (algorithm, every_ns > 50 * MS) {
                    (Algorithm::Level, false) => 0.01,
                    (Algorithm::Level, true) => 0.1,
                    (Algorithm::XPace, false) => 0.05,
                    (Algorithm::XPace, true) => 0.95,
                };
                let least = if most_lost > 0.9 { 0.3 } else { 0.5 };
                assert!(shares[0] > least && shares[1] > 1.0 - most_lost);
                // A message of 1,200 bytes is a datagram of 1,254, and more beside FEEDBACK or in coded packets.
                let (least, most) = match bytes {
                    (_, 300) => (0, 0),
                    (_, 1200) => (1254, 1452),
                    _ => (1452, 1452),
                };
                assert!(found == u64::from(takes < least) || takes < most && found == 1);
                assert!(found == 0 || (takes - 16..=takes).contains(&packet_bytes));
            }
        }
    }
}

/// A buffer that is nearly full has room for small packets, and none for large ones.
#[test]
fn full_buffer_is_no_path_of_small_packets() {
    for algorithm in BOTH {
        for (mbit_per_s, buffer_bytes, tcps) in
            [(2, 3000, 1), (2, 18_000, 1), (10, 6000, 2), (1, 4000, 0), (10, 60_000, 3)]
        {
            let there = LinkSpec::of(15 * MS).with_rate(mbit_per_s * 1_000_000, buffer_bytes);
            let mut flow = FlowSpec { sends: Sends::Every(5 * MS), bytes: (0, 3000), ..held(algorithm) };
            flow.config.queue_max = 20;
            let mut world = World::new(1, there, LinkSpec::of(15 * MS), &[flow]);
            (0..tcps).for_each(|_| world.add_tcp(2 * S));
            world.run_until(2 * S);
            let (mut small, mut changes, mut before) = (0, 0, 0);
            for at in 0..3000 {
                world.run_until(2 * S + at * 10 * MS);
                let bytes = world.transport(0, 0).0.snapshot(0).packet_bytes;
                small += u32::from(bytes < 1452);
                changes += u32::from(bytes < before);
                before = bytes;
            }
            let is_hopeless = algorithm == Algorithm::XPace && buffer_bytes <= 4000;
            let holes = world.flows[0].counts().black_holes;
            let losses = world.links[0].dropped as f64 / world.links[0].packets as f64;
            println!(
                "{algorithm:?}, {mbit_per_s} Mbit/s, buffer of {buffer_bytes}, {tcps} TCPs: {losses:.3} lost, {holes} found, {changes} times smaller, for {} ms",
                small * 10
            );
            // A third of all packets are lost there: so may all probes be.
            assert!(is_hopeless || holes == 0 && small < 150);
        }
    }
}

/// A path that is another one from four seconds to nine, and then as before: the share of messages delivered from three seconds
/// after that on, and how many were delivered a second before it and then.
fn changed(flow: FlowSpec, usual: LinkSpec, other: LinkSpec) -> (f64, [f64; 2]) {
    let mut world = World::new(1, usual, usual, &[flow]);
    world.run_until(4 * S);
    (world.links[0].spec, world.links[1].spec) = (other, other);
    world.run_until(9 * S);
    (world.links[0].spec, world.links[1].spec) = (usual, usual);
    world.run_until(15 * S);
    let rates = [per_s(&world, 2 * S, 4 * S), per_s(&world, 12 * S, 14 * S)];
    (share(&world, 12 * S, 14 * S), rates)
}

/// [`World`] looks at each message: none is late, comes twice, or out of order.
#[test]
fn path_that_changes_for_a_while_is_used_again() {
    let usual = LinkSpec::of(5 * MS).with_rate(20_000_000, 100_000);
    let others = [
        ("longer", LinkSpec { delay_ns: 100 * MS, ..usual }),
        ("with overtaking", LinkSpec { jitter_ns: 100 * MS, ..usual }),
        ("in bursts of 10 ms", LinkSpec { bursts_ns: 10 * MS, reorders: false, ..usual }),
        ("in bursts of 40 ms", LinkSpec { bursts_ns: 40 * MS, reorders: false, ..usual }),
    ];
    for algorithm in BOTH {
        for sends in [Sends::Held, Sends::Every(5 * MS)] {
            for (what, other) in others {
                let mut flow = FlowSpec { sends, ..held(algorithm) };
                (flow.config.queue_max, flow.config.deadline_ns) =
                    (if sends == Sends::Held { 1 } else { 20 }, 600 * MS);
                let (later, [before, after]) = changed(flow, usual, other);
                println!(
                    "{algorithm:?}, {sends:?}, {what}: {before:.0} a second before, {after:.0} after, {later:.3} of them"
                );
                assert!(later > 0.99 && after >= 0.75 * before);
            }
        }
    }
}

/// More than any window later.
#[test]
fn packets_that_come_again_a_second_later_change_nothing() {
    for algorithm in BOTH {
        let way = LinkSpec::of(5 * MS).with_rate(50_000_000, 200_000);
        let mut world = World::new(1, way, way, &[held(algorithm)]);
        world.again_ns = S;
        world.run_until(5 * S);
        let repeated = world.transport(0, 1).0.counts().repeated_packets;
        let delivered = per_s(&world, 2 * S, 4 * S);
        println!("{algorithm:?}: {delivered:.0} a second, {repeated} came again");
        assert!(delivered > 5000.0 && repeated > 15_000);
    }
}

/// A route changes, so that a round trip takes 10 ms and then 100 or 200: feedback does not come in time, and what packets take longer
/// is no queue.
#[test]
fn path_that_has_become_longer_is_used_soon() {
    for (mbit_per_s, delay_ns) in [(2, 100 * MS), (20, 100 * MS), (20, 50 * MS), (100, 50 * MS)] {
        let usual = LinkSpec::of(5 * MS).with_rate(mbit_per_s * 1_000_000, 250_000);
        let mut flow = held(Algorithm::Level);
        flow.config.deadline_ns = S;
        let mut world = World::new(1, usual, LinkSpec::of(5 * MS), &[flow]);
        world.run_until(4 * S);
        (world.links[0].spec, world.links[1].spec) = (LinkSpec { delay_ns, ..usual }, LinkSpec::of(delay_ns));
        world.run_until(10 * S);
        let before = per_s(&world, 2 * S, 4 * S);
        let after = [0, 1, 2, 3].map(|at| per_s(&world, (4 + at) * S, (5 + at) * S) / before);
        println!(
            "{mbit_per_s} Mbit/s, {} ms: {before:.0} a second, of them in each after it {after:.2?}",
            delay_ns / MS
        );
        assert!(after[2] > 0.9 && after[3] > 0.9);
    }
}
