// SPDX-License-Identifier: Apache-2.0
//! Hosts that take time away from an end's thread: it wakes late, and reads several packets at once.

use fide_link_model::LinkSpec;

use crate::{
    queues::moves,
    world::{FlowSpec, Pauses, World, percentile_ms},
};

const S: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

/// One packet in a hundred or so meets a pause of 5 ms.
const SHORT: Pauses = Pauses { every_ns: 500 * MS, long_ns: 5 * MS, has_times: false };
/// A twentieth of all time is taken away.
const LONG: Pauses = Pauses { every_ns: 200 * MS, long_ns: 10 * MS, has_times: true };
/// Of the sender and of the receiver.
const CASES: [[Option<Pauses>; 2]; 4] =
    [[Some(SHORT), None], [None, Some(SHORT)], [Some(SHORT), Some(SHORT)], [Some(LONG), Some(LONG)]];

fn slow() -> LinkSpec {
    LinkSpec::of(15 * MS).with_rate(1_600_000, 18_000)
}

/// A held flow, and back a way with a delay only.
fn world(seed: u64, there: LinkSpec, pauses: [Option<Pauses>; 2]) -> World {
    World::new(seed, there, LinkSpec::of(15 * MS), &[FlowSpec { pauses, ..FlowSpec::held() }])
}

/// Messages of a time a second, and the longest queue in packets of the slow link.
fn sent_and_queue(world: &mut World, until_ns: u64) -> (f64, f64) {
    let from_ns = world.now_ns;
    world.links[0].longest_queue_ns = 0;
    world.run_until(until_ns);
    let sent = world.flows[0].gaps_ns(from_ns, until_ns).len() as f64;
    (sent * 1e9 / (until_ns - from_ns) as f64, world.links[0].longest_queue_ns as f64 / 5.4e6)
}

/// What leaves late is not sent too fast later: the path is not taken for faster than its application.
#[test]
fn sender_that_wakes_late_fills_no_queue() {
    for pauses in [SHORT, LONG] {
        for seed in 1..=6 {
            let mut world = world(seed, slow(), [Some(pauses), None]);
            let (sent, queue) = sent_and_queue(&mut world, 10 * S);
            let p99 = percentile_ms(&mut world.flows[0].delivery_times_ns(0, 10 * S), 0.99);
            let used = sent * 1079.0 * 8.0 / 1.6e6;
            println!("{pauses:?}, seed {seed}: {used:.3} of the path used, queue of {queue:.1}, p99 {p99:.1} ms");
            // At best 20.4 ms; what a pause has taken is not made up for.
            assert!(p99 <= 1.1 * 20.4 && queue <= 1.5 && used >= 0.92);
        }
    }
}

/// As `queues::bottleneck_that_moves_is_followed`.
#[test]
fn bottleneck_that_moves_is_followed_in_spite_of_pauses() {
    let of = |bits_per_s| LinkSpec::of(15 * MS).with_rate(bits_per_s, 60_000);
    for pauses in CASES {
        for seed in 1..=4 {
            let mut world = world(seed, of(3_200_000), pauses);
            for (at, bits_per_s) in [3_200_000, 1_600_000, 3_200_000, 1_600_000].into_iter().enumerate() {
                world.links[0].spec = of(bits_per_s);
                let from_ns = 8 * S * at as u64;
                world.run_until(from_ns + 4 * S);
                let (sent, queue) = sent_and_queue(&mut world, from_ns + 8 * S);
                let (used, queue) = (sent * 1079.0 * 8.0 / bits_per_s as f64, queue * bits_per_s as f64 / 1.6e6);
                println!(
                    "{pauses:?}, seed {seed}, {bits_per_s}: {used:.2} of the path used, queue of {queue:.1} packets"
                );
                assert!(used > 0.88 && queue <= 2.0);
            }
        }
    }
}

/// As `queues::slowest_step_that_moves_is_followed`.
#[test]
fn slowest_step_that_moves_is_followed_in_spite_of_pauses() {
    for pauses in CASES {
        for seed in 1..=6 {
            for (pace_ms, mean_ms, queue) in moves(|there| world(seed, there, pauses)) {
                println!(
                    "{pauses:?}, seed {seed}: pace {pace_ms} ms, mean {mean_ms:.2} ms, queue of {queue:.1} packets"
                );
                assert!((0.95..1.13).contains(&(mean_ms / pace_ms)) && queue <= 2.0);
            }
        }
    }
}

/// The receiver's thread is the slowest step, and its pace says less than it takes: what waits for it is seen as a queue, though the
/// host tells when each packet has come.
#[test]
fn packets_that_wait_for_a_busy_thread_are_a_queue() {
    for (delay_ns, bits_per_s, thread_ns) in
        [(MS / 20, 400_000_000, MS / 10), (5 * MS, 50_000_000, MS / 4), (5 * MS, 50_000_000, MS / 5)]
    {
        // It tells times, and never pauses.
        let pauses = [None, Some(Pauses { every_ns: 1000 * S, long_ns: 1, has_times: true })];
        let way = || LinkSpec::of(delay_ns).with_rate(bits_per_s, 500_000);
        let flow = FlowSpec { pauses, thread_ns, ..FlowSpec::held() };
        let mut world = World::new(1, way(), way(), &[flow]);
        world.run_until(5 * S);
        let mut times = world.flows[0].delivery_times_ns(2 * S, 5 * S);
        let used = times.len() as f64 * thread_ns as f64 / 3e9;
        let p50_ms = percentile_ms(&mut times, 0.5) - delay_ns as f64 / 1e6;
        println!(
            "{delay_ns} ns, {bits_per_s} bit/s, {thread_ns} ns a packet: {used:.2} used, p50 {p50_ms:.2} ms above the delay"
        );
        assert!(used > 0.85 && p50_ms < 8.0 * thread_ns as f64 / 1e6 + 0.3);
    }
}

/// Threads that wake late on a short path: FEEDBACK is late by much more than a round trip, and what is under way meanwhile too.
#[test]
fn late_threads_on_a_short_path_do_not_stop_a_flow() {
    for ends in [[false, true], [true, true]] {
        let [untold, told] = [false, true].map(|has_times| {
            let pauses = ends.map(|is| is.then_some(Pauses { every_ns: 2 * MS, long_ns: 5 * MS, has_times }));
            let way = || LinkSpec::of(MS / 20).with_rate(100_000_000, 500_000);
            let rates = (1..=4).map(|seed| {
                let mut world = World::new(seed, way(), way(), &[FlowSpec { pauses, ..FlowSpec::held() }]);
                world.run_until(4 * S);
                world.flows[0].delivery_times_ns(2 * S, 4 * S).len() as f64 / 2.0 * 8000.0 / 1e6
            });
            rates.sum::<f64>() / 4.0
        });
        println!("pauses at {ends:?}: {untold:.1} Mbit/s, {told:.1} if the hosts tell times");
        assert!(told > 0.75 * untold, "{told:.1} and {untold:.1} Mbit/s");
    }
}
