// SPDX-License-Identifier: Apache-2.0
//! What clocks and long paths do to delivery: round trips of seconds, steps of either clock, and clocks that drift.

use fide_link_model::LinkSpec;
use fide_pace::transport::{Algorithm, Config, DEADLINE_MAX_NS};
use rand::{RngExt, SeedableRng, rngs::SmallRng};

use crate::{
    promises::seeds,
    world::{FlowSpec, Sends, World},
};

const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;

/// A message each 10 ms, from a deadline.
fn flow(deadline_ns: u64, algorithm: Algorithm) -> FlowSpec {
    let config = Config { deadline_ns, algorithm, queue_max: 20, ..Config::default() };
    FlowSpec { config, sends: Sends::Every(10 * MS), ..FlowSpec::held() }
}

fn path(round_trip_ns: u64) -> LinkSpec {
    LinkSpec::of(round_trip_ns / 2).with_rate(2_000_000, 100_000)
}

/// The share of the messages sent within a time that was delivered.
fn share(world: &World, from_ns: u64, to_ns: u64) -> f64 {
    let flow = &world.flows[0];
    let sent = flow.ways[0].sent.values().filter(|sent| (from_ns..to_ns).contains(&sent.at_ns)).count();
    #[allow(clippy::cast_precision_loss)]
    let share = flow.delivery_times_ns(from_ns, to_ns).len() as f64 / sent.max(1) as f64;
    if sent < 10 { 0.0 } else { share }
}

#[test]
fn messages_cross_round_trips_of_seconds() {
    for algorithm in [Algorithm::Level, Algorithm::XPace] {
        for round_trip_ms in [480, 520, 700, 1500, 3000, 6000] {
            let round_trip_ns = round_trip_ms * MS;
            let path = path(round_trip_ns);
            let mut world = World::new(1, path, path, &[flow(round_trip_ns * 3 / 2, algorithm)]);
            world.run_until(10 * round_trip_ns);
            let share = share(&world, 4 * round_trip_ns, 8 * round_trip_ns);
            assert!(share > 0.95, "{algorithm:?}, {round_trip_ms} ms: {share} were delivered");
        }
    }
}

/// After two round trips and a second all is as before, and nothing is late meanwhile, which [`World`] sees to.
#[test]
fn step_of_either_clock_is_over_soon() {
    let mut failed = Vec::new();
    for algorithm in [Algorithm::Level, Algorithm::XPace] {
        for round_trip_ms in [4, 30, 80, 300] {
            for step_ms in [5, 20, 70, 200, 1000, 40_000, 3_600_000, 36_000_000] {
                for (end, by_ms) in [(0, step_ms), (0, -step_ms), (1, step_ms), (1, -step_ms)] {
                    let round_trip_ns = round_trip_ms * MS;
                    let path = path(round_trip_ns);
                    let mut spec = flow(round_trip_ns * 3 / 2 + 20 * MS, algorithm);
                    // Clocks that show no less than nothing afterwards.
                    spec.ahead_ns = 7_000_000_000_000;
                    let mut world = World::aged(1, path, path, &[spec]);
                    let steps_ns = 4 * S + 3 * MS;
                    world.run_until(steps_ns);
                    let before = share(&world, 2 * S, 3 * S);
                    world.step_clock(0, end, by_ms * 1_000_000);
                    let again_ns = steps_ns + 2 * round_trip_ns + S;
                    world.run_until(again_ns + 2 * S);
                    let after = share(&world, again_ns, again_ns + S);
                    if before < 0.95 || after < 0.95 {
                        failed.push(format!(
                            "{algorithm:?}, {round_trip_ms} ms, end {end} by {by_ms} ms: {before}, {after}"
                        ));
                    }
                }
            }
        }
    }
    assert!(failed.is_empty(), "{} runs: {failed:#?}", failed.len());
}

/// Steps of any size, of either clock, over paths with a queue and jitter. A queue may hide a step: it is no longer here than the way
/// back takes at least, which is what [`fide_pace::clock`] says of nothing being late.
#[test]
fn nothing_is_late_after_a_step() {
    for seed in seeds(300) {
        let run = std::panic::catch_unwind(|| {
            let mut random = SmallRng::seed_from_u64(seed);
            let mut link = |delay_ns| {
                let (bits_per_s, buffer) = (random.random_range(500_000..5_000_000), random.random_range(3000..20_000));
                let mut spec = LinkSpec::of(delay_ns).with_rate(bits_per_s, buffer);
                spec.jitter_ns = random.random_range(1..10 * MS);
                let waits_ns = spec.jitter_ns + (buffer + 1500) * 8 * S / bits_per_s;
                (spec, waits_ns, random.random_range(0..100 * MS))
            };
            let (there, waits_ns, more_ns) = link(0);
            let (back, ..) = link(waits_ns + more_ns);
            let there = LinkSpec { delay_ns: random.random_range(0..back.delay_ns), ..there };
            let mut spec = flow(random.random_range(5 * MS..600 * MS), Algorithm::Level);
            spec.sends = Sends::Every(random.random_range(MS..50 * MS));
            spec.ahead_ns = random.random_range(0..7_000_000_000_000);
            spec.drift_ppm = random.random_range(-1000..=1000);
            let mut world = World::aged(seed, there, back, &[spec]);
            for _ in 0..4 {
                let until_ns = world.now_ns + random.random_range(3 * S..5 * S);
                world.run_until(until_ns);
                let size_ns = 10_f64.powf(random.random_range(6.0..13.0));
                #[allow(clippy::cast_possible_truncation)]
                let by_ns = size_ns as i64 * if random.random_bool(0.5) { 1 } else { -1 };
                world.step_clock(0, random.random_range(0..2), by_ns);
            }
            world.run_until(world.now_ns + 3 * S);
        });
        run.unwrap_or_else(|_| panic!("again: FIDE_PACE_SEEDS={seed}..{}", seed + 1));
    }
}

/// The receiving application takes ten minutes for a message, so that messages wait for it until they expire.
#[test]
fn deadline_of_half_an_hour_is_kept_and_a_longer_one_is_refused() {
    let path = path(40 * MS);
    let spec = FlowSpec { sends: Sends::Every(60 * S), work_ns: 600 * S, ..flow(DEADLINE_MAX_NS, Algorithm::Level) };
    let mut world = World::new(1, path, path, &[spec]);
    world.run_until(4 * 3600 * S);
    let mut waited_ns = world.flows[0].delivery_times_ns(0, u64::MAX);
    waited_ns.sort_unstable();
    assert!(waited_ns.len() > 20 && waited_ns.last() > Some(&(1700 * S)), "{waited_ns:?}");
    let (sender, now_ns) = world.transport(0, 0);
    let refused = sender.send(now_ns, b"", Some(7200 * S)).unwrap_err();
    assert_eq!(refused.to_string(), "a deadline of 7200 s, and at most 1800 s are allowed: give a shorter one");
}
