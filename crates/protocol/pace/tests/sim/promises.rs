// SPDX-License-Identifier: Apache-2.0
//! Promises of every connection, over whatever link.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use fide_link_model::LinkSpec;
use fide_pace::{
    loss::Gilbert,
    transport::{Algorithm, Config},
};
use rand::{RngExt, SeedableRng, rngs::SmallRng};

use crate::{
    counts::settle,
    world::{FlowSpec, Pauses, Sends, Traffic, Way, World},
};

const MS: u64 = 1_000_000;
/// Runs with these seeds, unless `FIDE_PACE_SEEDS=from..to` says others.
const SEEDS: u64 = 100;
/// A run changes until then.
const RUN_NS: u64 = 2000 * MS;

fn link(random: &mut SmallRng) -> LinkSpec {
    let delay_ns = random.random_range(0..60 * MS);
    let mut spec = LinkSpec::of(delay_ns);
    spec = match random.random_bool(0.6) {
        true => spec.with_rate(random.random_range(200_000..20_000_000), random.random_range(4000..200_000)),
        // One that is hardly ever the bottleneck.
        false => spec.with_rate(50_000_000, 1_000_000),
    };
    if random.random_bool(0.6) {
        let burst_max = if random.random_bool(0.2) { 40.0 } else { 6.0 };
        spec.losses = Gilbert::of(random.random_range(0.0..0.2), random.random_range(1.0..burst_max));
    }
    if random.random_bool(0.5) {
        spec.jitter_ns = random.random_range(1..20 * MS);
    }
    if random.random_bool(0.3) {
        spec.repeats = random.random_range(0.0..0.3);
    }
    if random.random_bool(0.2) {
        spec.marks_from_bytes = random.random_range(1500..20_000);
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
        even_ways: random.random_bool(0.3),
        ..Config::default()
    };
    let Traffic { sends, bytes, work_ns } = traffic(random);
    let own_deadlines_ns = random.random_bool(0.2).then(|| {
        let from_ns = random.random_range(1..100 * MS);
        (from_ns, from_ns + random.random_range(0..500 * MS))
    });
    FlowSpec {
        config,
        sends,
        bytes,
        work_ns,
        back: random.random_bool(0.4).then(|| traffic(random)),
        own_deadlines_ns,
        starts_ns: random.random_range(0..200 * MS),
        ahead_ns: random.random_range(-3_600_000_000_000..3_600_000_000_000),
        drift_ppm: random.random_range(-100..=100),
        pauses: [0; 2].map(|_| random.random_bool(0.2).then(|| pauses(random))),
        thread_ns: if random.random_bool(0.1) { random.random_range(MS / 100..2 * MS) } else { 0 },
    }
}

fn traffic(random: &mut SmallRng) -> Traffic {
    let longest = if random.random_bool(0.2) { 20_000 } else { 2000 };
    Traffic {
        sends: if random.random_bool(0.5) { Sends::Held } else { Sends::Every(random.random_range(MS / 5..30 * MS)) },
        bytes: (random.random_range(0..100), random.random_range(100..longest)),
        work_ns: if random.random_bool(0.3) { random.random_range(MS..20 * MS) } else { 0 },
    }
}

/// A step of a clock, of a microsecond to twenty seconds, either way.
fn step_ns(random: &mut SmallRng) -> i64 {
    #[allow(clippy::cast_possible_truncation)]
    let ns = 10_f64.powf(random.random_range(3.0..10.3)) as i64;
    if random.random_bool(0.5) { ns } else { -ns }
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
        world.excuses_steps = true;
        world.run_until(random.random_range(200 * MS..1500 * MS));
        // What can change in mid-run.
        while world.now_ns < RUN_NS {
            if random.random_bool(0.7) {
                world.links[0].spec = link(&mut random);
                world.links[1].spec = link(&mut random);
            }
            for flow in 0..world.flows.len() {
                if random.random_bool(0.3) {
                    world.step_clock(flow, random.random_range(0..2), step_ns(&mut random));
                }
            }
            world.run_until(world.now_ns + random.random_range(10 * MS..1500 * MS));
        }
        let count =
            |of: fn(&Way) -> usize| world.flows.iter().flat_map(|flow| &flow.ways).map(of).sum::<usize>() as u64;
        let counted = [count(|way| way.sent.len()), count(|way| way.delivered.len())];
        settle(&mut world);
        counted
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
