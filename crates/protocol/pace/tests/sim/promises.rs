// SPDX-License-Identifier: Apache-2.0
//! Promises of every connection, over whatever link.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use fide_link_model::LinkSpec;
use fide_pace::{
    loss::Gilbert,
    transport::{Algorithm, Config},
};
use rand::{RngExt, SeedableRng, rngs::SmallRng};

use crate::world::{FlowSpec, Pauses, Sends, World};

const MS: u64 = 1_000_000;
/// Runs with these seeds, unless `FIDE_PACE_SEEDS=from..to` says others.
const SEEDS: u64 = 100;

fn link(random: &mut SmallRng) -> LinkSpec {
    let delay_ns = random.random_range(0..60 * MS);
    let mut spec = LinkSpec::of(delay_ns);
    spec = match random.random_bool(0.6) {
        true => spec.with_rate(random.random_range(200_000..20_000_000), random.random_range(4000..200_000)),
        // One that is hardly ever the bottleneck.
        false => spec.with_rate(50_000_000, 1_000_000),
    };
    if random.random_bool(0.6) {
        spec.losses = Gilbert::of(random.random_range(0.0..0.2), random.random_range(1.0..6.0));
    }
    if random.random_bool(0.5) {
        spec.jitter_ns = random.random_range(1..20 * MS);
    }
    if random.random_bool(0.3) {
        spec.repeats = random.random_range(0.0..0.3);
    }
    if random.random_bool(0.3) {
        spec.mtu = random.random_range(1228..1500);
    }
    spec
}

fn flow(random: &mut SmallRng) -> FlowSpec {
    let algorithm = if random.random_bool(0.5) { Algorithm::XPace } else { Algorithm::Level };
    let config = Config {
        deadline_ns: random.random_range(5 * MS..300 * MS),
        residual_loss: random.random_range(0.0001..0.05),
        queue_max: random.random_range(1..40),
        algorithm,
        ..Config::default()
    };
    let longest = if random.random_bool(0.2) { 20_000 } else { 2000 };
    FlowSpec {
        config,
        sends: if random.random_bool(0.5) { Sends::Held } else { Sends::Every(random.random_range(MS / 5..30 * MS)) },
        bytes: (random.random_range(0..100), random.random_range(100..longest)),
        work_ns: if random.random_bool(0.3) { random.random_range(MS..20 * MS) } else { 0 },
        starts_ns: random.random_range(0..200 * MS),
        ahead_ns: random.random_range(-3_600_000_000_000..3_600_000_000_000),
        drift_ppm: random.random_range(-100..=100),
        pauses: [0; 2].map(|_| random.random_bool(0.2).then(|| pauses(random))),
        thread_ns: if random.random_bool(0.1) { random.random_range(MS / 100..2 * MS) } else { 0 },
    }
}

fn pauses(random: &mut SmallRng) -> Pauses {
    let (every_ns, long_ns) = (random.random_range(5 * MS..500 * MS), random.random_range(MS..20 * MS));
    Pauses { every_ns, long_ns, has_times: random.random_bool(0.5) }
}

/// Messages sent and delivered in a run. [`World`] looks at each that is delivered.
fn run(seed: u64) -> [u64; 2] {
    let run = std::panic::catch_unwind(|| {
        let mut random = SmallRng::seed_from_u64(seed);
        let flows: Vec<FlowSpec> = (0..random.random_range(1..4)).map(|_| flow(&mut random)).collect();
        let (there, back) = (link(&mut random), link(&mut random));
        let mut world = World::new(seed, there, back, &flows);
        world.run_until(1_000_000_000);
        // What can change in mid-run.
        world.links[0].spec = link(&mut random);
        world.links[1].spec = link(&mut random);
        for flow in 0..world.flows.len() {
            if random.random_bool(0.3) {
                world.step_clock(flow, random.random_range(0..2), random.random_range(1000..20_000_000_000));
            }
        }
        world.run_until(2_000_000_000);
        let count = |of: fn(&crate::world::Flow) -> usize| world.flows.iter().map(of).sum::<usize>() as u64;
        [count(|flow| flow.sent.len()), count(|flow| flow.delivered.len())]
    });
    run.unwrap_or_else(|_| panic!("again: FIDE_PACE_SEEDS={seed}..{}", seed + 1))
}

/// The seeds to run with: so many, unless `FIDE_PACE_SEEDS` says others.
pub(crate) fn seeds(count: u64) -> std::ops::Range<u64> {
    let chosen = std::env::var("FIDE_PACE_SEEDS").ok();
    chosen.as_deref().map_or(0..count, |text| {
        let ends = text.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
        ends.unwrap_or_else(|| panic!("FIDE_PACE_SEEDS={text}: it has the form 0..100"))
    })
}

#[test]
fn nothing_is_delivered_late_twice_out_of_order_or_wrong() {
    let seeds = seeds(SEEDS);
    let (next, count) = (AtomicU64::new(seeds.start), seeds.end - seeds.start);
    let (sent, delivered) = (AtomicU64::new(0), AtomicU64::new(0));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let [of_sent, of_delivered] = run(seed);
                    sent.fetch_add(of_sent, Relaxed);
                    delivered.fetch_add(of_delivered, Relaxed);
                    let done = seed + 1 - seeds.start;
                    if done.is_multiple_of(1000) {
                        println!("{done} of {count} seeds");
                    }
                }
            });
        }
    });
    let [sent, delivered] = [sent, delivered].map(AtomicU64::into_inner);
    println!("{delivered} of {sent} messages were delivered");
    // A run of a single seed may be over a path that lets nothing through in time.
    assert!(count < SEEDS || delivered > sent / 4 && sent > 10_000, "{delivered} of {sent}");
}
