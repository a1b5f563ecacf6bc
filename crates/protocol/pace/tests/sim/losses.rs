// SPDX-License-Identifier: Apache-2.0
//! Lossy paths: no more is lost than was asked for, and that costs little more than what it must.

use fide_link_model::LinkSpec;
use fide_pace::{loss::Gilbert, transport::Algorithm};

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

/// A message each millisecond, so far away, to be delivered within 60 ms.
fn run(losses: Gilbert, residual_loss: f64, delay_ns: u64, algorithm: Algorithm) -> Outcome {
    let there = LinkSpec { losses, ..LinkSpec::of(delay_ns).with_rate(50_000_000, 1_000_000) };
    let mut flow = FlowSpec { sends: Sends::Every(MS), ..FlowSpec::held() };
    flow.config.algorithm = algorithm;
    flow.config.residual_loss = residual_loss;
    flow.config.deadline_ns = 60 * MS;
    flow.config.queue_max = 20;
    let mut world = World::new(1, there, LinkSpec::of(delay_ns), &[flow]);
    world.run_until(5 * S);
    let before = world.flows[0].counts().sent;
    let (from_ns, to_ns) = (5 * S, (5 + RUN_S) * S);
    world.run_until(to_ns);
    let after = world.flows[0].counts().sent;
    world.run_until(to_ns + S);
    let mut times = world.flows[0].delivery_times_ns(from_ns, to_ns);
    let sent = world.flows[0].sent.values().filter(|sent| (from_ns..to_ns).contains(&sent.at_ns)).count();
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

#[test]
fn no_more_is_lost_than_was_asked_for() {
    for (residual_loss, delay_ns) in [(0.01, 5 * MS), (0.001, 5 * MS), (0.01, 15 * MS), (0.001, 15 * MS)] {
        for (rate, burst) in [(0.01, 1.0), (0.03, 1.0), (0.1, 1.0), (0.01, 3.0), (0.03, 3.0), (0.1, 3.0)] {
            let losses = Gilbert::of(rate, burst);
            let outcome = run(losses, residual_loss, delay_ns, Algorithm::XPace);
            let least = least(losses, residual_loss);
            println!(
                "{delay_ns} ns, {rate} lost in bursts of {burst}, {residual_loss} asked for: {:.5} lost, {:.4} more packets, least {least:.4} ({:.2}); delivery p50 {:.1}, p99 {:.1} ms",
                outcome.lost,
                outcome.more,
                outcome.more / least,
                outcome.p50_ms,
                outcome.p99_ms,
            );
            assert!(outcome.lost <= residual_loss + 1e-6, "{outcome:?}");
            // Rounds that the deadline has room for cost what was lost; where more must be done blocks are short.
            let has_rounds = delay_ns < 15 * MS;
            // A burst longer than what may be passed over is sent again.
            assert!(!has_rounds || outcome.more <= 1.3 * least + 0.01, "{outcome:?}");
        }
    }
}
