// SPDX-License-Identifier: Apache-2.0
//! How flows share a link with each other.

use fide_link_model::LinkSpec;
use fide_pace::transport::Algorithm;
use rand::{RngExt, SeedableRng, rngs::SmallRng};

use crate::world::{FlowSpec, World};

const S: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;
/// Bytes on the link of a packet with a message of 1,000 bytes.
const PACKET_BYTES: f64 = 1079.0;

/// Flows over one link.
#[derive(Debug, Clone, Copy)]
struct Scenario {
    flows: u64,
    bits_per_s: u64,
    round_trip_ns: u64,
    /// Flows start one after another, so far apart.
    apart_ns: u64,
    from_ns: u64,
    to_ns: u64,
    seed: u64,
    jitter_ns: u64,
    bursts_ns: u64,
    marks_from_bytes: u64,
    drift_ppm: i64,
}

/// What became of them from `from_ns` to `to_ns`.
#[derive(Debug, Clone, Copy)]
struct Outcome {
    jain: f64,
    /// The share of the link that was used for messages.
    used: f64,
    /// In packets, and in milliseconds.
    longest_queue: f64,
    longest_queue_ms: f64,
}

fn jain(got: &[f64]) -> f64 {
    let (sum, squares) = got.iter().fold((0.0, 0.0), |(sum, squares), got| (sum + got, squares + got * got));
    sum * sum / (got.len() as f64 * squares)
}

impl Scenario {
    /// From 10 s to 40 s, without jitter, bursts, marks and drift.
    fn of(flows: u64, bits_per_s: u64, round_trip_ns: u64, apart_ns: u64) -> Self {
        Self {
            flows,
            bits_per_s,
            round_trip_ns,
            apart_ns,
            from_ns: 10 * S,
            to_ns: 40 * S,
            seed: 1,
            jitter_ns: 0,
            bursts_ns: 0,
            marks_from_bytes: u64::MAX,
            drift_ppm: 0,
        }
    }

    fn run(self) -> Outcome {
        let mut random = SmallRng::seed_from_u64(self.seed);
        let delay_ns = self.round_trip_ns / 2;
        let buffer_bytes = self.bits_per_s * self.round_trip_ns.max(50 * MS) / S / 8 * 2;
        let mut there = LinkSpec::of(delay_ns).with_rate(self.bits_per_s, buffer_bytes);
        there.jitter_ns = self.jitter_ns;
        there.bursts_ns = self.bursts_ns;
        there.marks_from_bytes = self.marks_from_bytes;
        let flows: Vec<FlowSpec> = (0..self.flows)
            .map(|at| {
                let mut flow = FlowSpec::held();
                flow.config.algorithm = Algorithm::Level;
                flow.config.deadline_ns = 300 * MS;
                flow.drift_ppm = self.drift_ppm;
                flow.starts_ns = at * self.apart_ns + random.random_range(0..10 * MS);
                flow
            })
            .collect();
        let mut world = World::new(self.seed, there, LinkSpec::of(delay_ns), &flows);
        world.run_until(self.from_ns);
        world.links[0].longest_queue_ns = 0;
        let before: Vec<u64> = world.flows.iter().map(|flow| flow.carried_bytes).collect();
        world.run_until(self.to_ns);
        let got: Vec<f64> =
            world.flows.iter().zip(before).map(|(flow, before)| (flow.carried_bytes - before) as f64 * 8.0).collect();
        let link_bits = self.bits_per_s as f64 * (self.to_ns - self.from_ns) as f64 / 1e9;
        let longest_queue_ms = world.links[0].longest_queue_ns as f64 / 1e6;
        let packet_ms = PACKET_BYTES * 8e3 / self.bits_per_s as f64;
        let outcome = Outcome {
            jain: jain(&got),
            used: got.iter().sum::<f64>() / link_bits,
            longest_queue: longest_queue_ms / packet_ms,
            longest_queue_ms,
        };
        let Outcome { jain, used, longest_queue, longest_queue_ms } = outcome;
        println!(
            "{} flows, {} kbit/s, {} ms, {} ms apart, seed {}: Jain {jain:.3}, used {used:.3}, queue {longest_queue:.1} packets, {longest_queue_ms:.2} ms",
            self.flows,
            self.bits_per_s / 1000,
            self.round_trip_ns / MS,
            self.apart_ns / MS,
            self.seed,
        );
        outcome
    }
}

/// One flow beside a sender that fills queues, with a buffer of so many bandwidth-delay products. Returns what the flow
/// and the filler get in 30 s, as shares of the link.
fn beside_filler(filler: Filler, bits_per_s: u64, round_trip_ns: u64, products: u64, level_first: bool) -> [f64; 2] {
    let delay_ns = round_trip_ns / 2;
    let buffer_bytes = bits_per_s / 8 * round_trip_ns / S * products;
    let there = LinkSpec::of(delay_ns).with_rate(bits_per_s, buffer_bytes.max(6000));
    let of = |algorithm, starts_ns| {
        let mut flow = FlowSpec::held();
        flow.config.algorithm = algorithm;
        flow.config.deadline_ns = S;
        flow.starts_ns = starts_ns;
        flow
    };
    let (level_ns, filler_ns) = if level_first { (0, 2 * S) } else { (2 * S, 0) };
    let mut flows = vec![of(Algorithm::Level, level_ns)];
    if filler == Filler::Bbr {
        flows.push(of(Algorithm::XPace, filler_ns));
    }
    let mut world = World::new(1, there, LinkSpec::of(delay_ns), &flows);
    if filler == Filler::Cubic {
        world.add_tcp(filler_ns);
    }
    let carried = |world: &World| {
        let other = world.tcps.first().map(|tcp| tcp.carried_bytes);
        [world.flows[0].carried_bytes, other.unwrap_or_else(|| world.flows[1].carried_bytes)]
    };
    world.run_until(5 * S);
    let before = carried(&world);
    world.run_until(35 * S);
    let after = carried(&world);
    let link_bytes = bits_per_s as f64 / 8.0 * 30.0;
    let [level, other] = [0, 1].map(|at| (after[at] - before[at]) as f64 / link_bytes);
    println!(
        "{filler:?}, {} kbit/s, {} ms, buffer of {products} products, first {level_first}: {level:.3}, {other:.3}, dropped {}",
        bits_per_s / 1000,
        round_trip_ns / MS,
        world.links[0].dropped
    );
    [level, other]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Filler {
    Cubic,
    Bbr,
}

#[test]
fn flows_share_fairly_at_many_rates_and_round_trips() {
    for (flows, bits_per_s) in [(2, 1_600_000), (2, 16_000_000), (10, 16_000_000)] {
        for round_trip_ns in [5 * MS, 30 * MS, 100 * MS] {
            for apart_ns in [0, 250 * MS] {
                let outcome = Scenario::of(flows, bits_per_s, round_trip_ns, apart_ns).run();
                assert!(outcome.jain >= 0.95 && outcome.used >= 0.95, "{outcome:?}");
                // A few packets of each flow.
                assert!(outcome.longest_queue <= 5.0 * flows as f64, "{outcome:?}");
            }
        }
    }
    // Shorter, as there is so much to simulate.
    for (bits_per_s, from_ns) in [(100_000_000, 5 * S), (1_000_000_000, 3 * S)] {
        let scenario = Scenario::of(2, bits_per_s, 5 * MS, 250 * MS);
        let outcome = Scenario { from_ns, to_ns: from_ns + S, ..scenario }.run();
        assert!(outcome.jain >= 0.95 && outcome.used >= 0.95 && outcome.longest_queue_ms <= 1.0, "{outcome:?}");
    }
}

#[test]
fn jitter_and_bursts_leave_the_path_used() {
    for (bits_per_s, round_trip_ns) in [(1_600_000, 30 * MS), (16_000_000, 30 * MS), (16_000_000, 5 * MS)] {
        for (jitter_ns, bursts_ns) in [(2 * MS, 0), (0, 4 * MS)] {
            let scenario = Scenario::of(1, bits_per_s, round_trip_ns, 0);
            let outcome = Scenario { jitter_ns, bursts_ns, ..scenario }.run();
            // A few packets, or as many as come in one burst.
            let burst = bursts_ns as f64 / 1e9 * bits_per_s as f64 / (8.0 * 1079.0);
            assert!(outcome.used >= 0.85 && outcome.longest_queue <= burst.max(4.0), "{outcome:?}");
        }
    }
}

#[test]
fn marks_are_followed_without_losses() {
    for flows in [1, 2] {
        let outcome = Scenario { marks_from_bytes: 1079, ..Scenario::of(flows, 16_000_000, 30 * MS, 250 * MS) }.run();
        assert!(outcome.used >= 0.95 && outcome.jain >= 0.95 && outcome.longest_queue <= 5.0, "{outcome:?}");
    }
}

#[test]
fn drift_of_clocks_is_no_queue() {
    for drift_ppm in [-100, 100] {
        let outcome = Scenario { drift_ppm, ..Scenario::of(1, 16_000_000, 30 * MS, 0) }.run();
        assert!(outcome.used >= 0.95 && outcome.longest_queue <= 3.0, "{outcome:?}");
    }
}

#[test]
fn neither_side_starves_beside_queue_fillers() {
    for (bits_per_s, round_trip_ns) in [(16_000_000, 30 * MS), (4_000_000, 60 * MS), (100_000_000, 10 * MS)] {
        for (filler, products) in [(Filler::Cubic, 1), (Filler::Cubic, 2), (Filler::Bbr, 1), (Filler::Bbr, 2)] {
            for level_first in [true, false] {
                // So many packets are only tried where it is hardest.
                if bits_per_s > 16_000_000 && (products > 1 || level_first) {
                    continue;
                }
                // A third of a fair share.
                let shares = beside_filler(filler, bits_per_s, round_trip_ns, products, level_first);
                assert!(shares.iter().all(|share| *share >= 1.0 / 6.0), "{shares:?}");
            }
        }
    }
}

/// One packet a burst finds the same delay each time, and a few more would wait: the flow does not stay in step.
#[test]
fn flow_is_not_in_step_with_bursts() {
    for (bits_per_s, bursts_ns) in [(16_000_000, 8 * MS), (30_000_000, 2 * MS), (30_000_000, 4 * MS)] {
        for seed in 1..=4 {
            let scenario = Scenario { seed, bursts_ns, ..Scenario::of(1, bits_per_s, 30 * MS, 0) };
            let outcome = Scenario { to_ns: 15 * S, ..scenario }.run();
            assert!(outcome.used >= 0.9, "{outcome:?}");
        }
    }
}
