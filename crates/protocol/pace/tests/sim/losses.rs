// SPDX-License-Identifier: Apache-2.0
//! Lossy paths: no more is lost than was asked for, and that costs little more than what it must.

use fide_link_model::LinkSpec;
use fide_pace::{
    loss::Gilbert,
    transport::{Algorithm, Config},
};

use crate::world::{FlowSpec, Sends, World, percentile_ms};

const S: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;
/// Time for which messages count, after the first seconds.
const RUN_S: u64 = 30;

/// What became of a flow's messages.
#[derive(Debug, Clone, Copy)]
struct Outcome {
    /// The share that was not delivered.
    lost: f64,
    /// Packets sent again, copies and redundancy, for each message.
    more: f64,
    p50_ms: f64,
    p99_ms: f64,
}

/// A message each millisecond, to be delivered within 60 ms, over a path of 16 Mbit/s, twice what the messages need.
fn run(losses: Gilbert, delay_ns: u64, config: Config) -> Outcome {
    run_seed(losses, delay_ns, config, 1)
}

fn run_seed(losses: Gilbert, delay_ns: u64, config: Config, seed: u64) -> Outcome {
    let there = LinkSpec { losses, ..LinkSpec::of(delay_ns).with_rate(16_000_000, 180_000) };
    let mut flow = FlowSpec { sends: Sends::Every(MS), ..FlowSpec::held() };
    flow.config = Config { deadline_ns: 60 * MS, queue_max: 20, ..config };
    let back = LinkSpec { losses, ..LinkSpec::of(delay_ns) };
    let mut world = World::new(seed, there, back, &[flow]);
    world.run_until(5 * S);
    let before = world.flows[0].counts().sent;
    let (from_ns, to_ns) = (5 * S, (5 + RUN_S) * S);
    world.run_until(to_ns);
    let after = world.flows[0].counts().sent;
    world.run_until(to_ns + S);
    let mut times = world.flows[0].delivery_times_ns(from_ns, to_ns);
    let sent = world.flows[0].ways[0].sent.values().filter(|sent| (from_ns..to_ns).contains(&sent.at_ns)).count();
    let more = (after.again + after.redundancy) - (before.again + before.redundancy);
    Outcome {
        lost: 1.0 - times.len() as f64 / sent as f64,
        more: more as f64 / (after.symbols - before.symbols) as f64,
        p50_ms: percentile_ms(&mut times, 0.5),
        p99_ms: percentile_ms(&mut times, 0.99),
    }
}

/// A packet that is not lost stands for one message at most, so (1 - r) / (1 - p) packets are the least for each message.
fn least(losses: Gilbert, residual_loss: f64) -> f64 {
    ((1.0 - residual_loss) / (1.0 - losses.rate()) - 1.0).max(0.0)
}

/// Of the 30 messages of a run that may be lost at least: some of a few seconds before may be paid for later.
const CHANCE: f64 = 1.25;

/// Packets besides the messages' that the path takes, for each of them.
const TAKES: f64 = 0.85;

const PATHS: [(f64, f64); 6] = [(0.01, 1.0), (0.03, 1.0), (0.1, 1.0), (0.01, 3.0), (0.03, 3.0), (0.1, 3.0)];

/// What every kind of path makes of it, for each share that may be lost.
fn outcomes(delay_ns: u64, even_ways: bool, mut check: impl FnMut(Gilbert, f64, Outcome)) {
    for algorithm in [Algorithm::Level, Algorithm::XPace] {
        for residual_loss in [0.01, 0.001] {
            for (rate, burst) in PATHS {
                let losses = Gilbert::of(rate, burst);
                let config = Config { algorithm, residual_loss, even_ways, ..Config::default() };
                let outcome = run(losses, delay_ns, config);
                println!(
                    "{algorithm:?}, {} ms, {rate} lost in bursts of {burst}, {residual_loss} asked for: {:.5} lost, {:.4} more packets, at least {:.4}; delivery p50 {:.1}, p99 {:.1} ms",
                    delay_ns / MS,
                    outcome.lost,
                    outcome.more,
                    least(losses, residual_loss),
                    outcome.p50_ms,
                    outcome.p99_ms,
                );
                check(losses, residual_loss, outcome);
            }
        }
    }
}

/// Rounds that the deadline has room for cost what was lost, and a burst longer than what may be passed over.
#[test]
fn no_more_is_lost_than_was_asked_for() {
    outcomes(5 * MS, false, |losses, residual_loss, outcome| {
        assert!(outcome.lost <= CHANCE * residual_loss, "{outcome:?}");
        assert!(outcome.more <= 1.3 * least(losses, residual_loss) + 0.01, "{outcome:?}");
    });
}

/// Without time for a round only redundancy ahead helps, and the path takes some more packets: where these do not suffice, they do what
/// they can, and no message waits in a queue of them.
#[test]
fn redundancy_takes_no_more_than_the_path_does() {
    outcomes(15 * MS, false, |losses, residual_loss, outcome| {
        assert!(outcome.more <= TAKES, "{outcome:?}");
        assert!(outcome.lost <= (CHANCE * residual_loss).max(0.4 * losses.rate()), "{outcome:?}");
        assert!(outcome.p50_ms < 25.0, "{outcome:?}");
    });
}

/// Of two ways of 15 ms each a deadline of 60 ms has time for one round, if it is known that they are even.
#[test]
fn even_ways_leave_time_for_a_round() {
    outcomes(15 * MS, true, |losses, residual_loss, outcome| {
        assert!(outcome.lost <= (CHANCE * residual_loss).max(0.15 * losses.rate()), "{outcome:?}");
        // With many bursts FEEDBACK is lost, too, so that the round comes too late, and most has to go ahead.
        let is_enough = losses.burst() < 2.0 || losses.rate() < 0.05;
        assert!(outcome.more <= if is_enough { 0.35 } else { TAKES }, "{outcome:?}");
    });
}

/// The path takes one packet for seven of the messages: of how many packets these are makes no difference.
#[test]
fn redundancy_of_messages_of_two_packets_leaves_room_for_them() {
    let losses = Gilbert::of(0.03, 1.0);
    let there = LinkSpec { losses, ..LinkSpec::of(15 * MS).with_rate(16_000_000, 180_000) };
    let mut flow = FlowSpec { sends: Sends::Every(1240 * MS / 1000), bytes: (2000, 2000), ..FlowSpec::held() };
    flow.config = Config { deadline_ns: 60 * MS, queue_max: 20, ..Config::default() };
    let mut world = World::new(1, there, LinkSpec { losses, ..LinkSpec::of(15 * MS) }, &[flow]);
    world.run_until(15 * S);
    let sent = world.flows[0].counts().sent;
    let more = sent.redundancy as f64 / sent.symbols as f64;
    let p50_ms = percentile_ms(&mut world.flows[0].delivery_times_ns(5 * S, 14 * S), 0.5);
    println!("{more:.3} packets of redundancy for each of a message; delivery p50 {p50_ms:.1} ms");
    assert!(more < 0.15 && p50_ms < 30.0);
}

/// No message follows in time that could show a loss, or complete a block: the redundancy of each leaves with it.
#[test]
fn rare_messages_have_redundancy_of_their_own() {
    let losses = Gilbert::of(0.1, 1.0);
    for (delay_ms, deadline_ms, every_ms) in
        [(0.5, 5, 20), (0.5, 10, 20), (5.0, 20, 20), (15.0, 50, 20), (15.0, 60, 100), (15.0, 45, 1000)]
    {
        let way = LinkSpec { losses, ..LinkSpec::of((delay_ms * 1e6) as u64).with_rate(50_000_000, 1_000_000) };
        let config = Config { deadline_ns: deadline_ms * MS, ..Config::default() };
        let flow = FlowSpec { config, sends: Sends::Every(every_ms * MS), ..FlowSpec::held() };
        let mut world = World::new(1, way, way, &[flow]);
        // What is lost is to be known first.
        let (from_ns, to_ns) = (200 * every_ms * MS, 600 * every_ms * MS);
        world.run_until(to_ns + S);
        let mut times = world.flows[0].delivery_times_ns(from_ns, to_ns);
        let lost = 1.0 - times.len() as f64 / 400.0;
        let p99_ms = percentile_ms(&mut times, 0.99);
        println!("{delay_ms} ms, {deadline_ms} ms, each {every_ms} ms: {lost:.4} lost; delivery p99 {p99_ms:.1} ms");
        assert!(lost < 0.03);
    }
}

/// What several seeds make of a path on the average: the share that was lost over the one that was asked for, and the outcome with the mean of
/// the packets besides the messages'.
fn mean_of_seeds(losses: Gilbert, even_ways: bool, residual_loss: f64) -> (f64, Outcome) {
    let config = Config { residual_loss, even_ways, ..Config::default() };
    // With 4 and 6 pairs of packets among the first ones are behind lost ones.
    let all = [1, 2, 3, 4, 5, 6].map(|seed| run_seed(losses, 15 * MS, config, seed));
    let mean = |of: fn(&Outcome) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
    let outcome = Outcome { lost: mean(|one| one.lost), more: mean(|one| one.more), ..all[0] };
    println!("{losses:?}, {even_ways} even ways, {residual_loss} asked for: {outcome:?}");
    (outcome.lost / residual_loss, outcome)
}

/// No round is possible: a window that slides costs less than blocks, and waits less for what it restores.
#[test]
fn redundancy_ahead_reaches_the_loss_that_was_asked_for() {
    // The most packets besides the messages', for each of them.
    for (rate, burst, residual_loss, most) in [
        (0.01, 1.0, 0.001, 0.075),
        (0.1, 1.0, 0.01, 0.24),
        (0.1, 1.0, 0.001, 0.34),
        (0.01, 3.0, 0.001, 0.4),
        (0.03, 3.0, 0.01, 0.28),
        (0.05, 3.0, 0.001, 0.63),
        (0.1, 3.0, 0.01, 0.55),
    ] {
        let (over, outcome) = mean_of_seeds(Gilbert::of(rate, burst), false, residual_loss);
        assert!(over <= 1.0 && outcome.more <= most, "{outcome:?}");
        assert!(outcome.p50_ms < 17.0, "{outcome:?}");
    }
    // The path takes less than would be needed.
    let (over, outcome) = mean_of_seeds(Gilbert::of(0.1, 3.0), false, 0.001);
    assert!(over <= 2.5 && outcome.more <= 0.7, "{outcome:?}");
}

/// A round is possible, though FEEDBACK is lost, and comes late where a burst lasts.
#[test]
fn round_of_even_ways_reaches_the_loss_that_was_asked_for() {
    for (rate, burst, residual_loss, most) in [
        (0.1, 1.0, 0.01, 0.13),
        (0.03, 3.0, 0.001, 0.055),
        (0.05, 3.0, 0.001, 0.17),
        (0.1, 3.0, 0.01, 0.175),
        (0.1, 3.0, 0.001, 0.65),
    ] {
        let (over, outcome) = mean_of_seeds(Gilbert::of(rate, burst), true, residual_loss);
        assert!(over <= 1.0 && outcome.more <= most, "{outcome:?}");
    }
}
