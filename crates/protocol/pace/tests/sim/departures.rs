// SPDX-License-Identifier: Apache-2.0
//! Packets that are written ahead, for a host that keeps their times better than it wakes a thread.

use fide_link_model::LinkSpec;

use crate::world::{FlowSpec, Pauses, World, percentile_ms};

const S: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;
const AHEAD_NS: u64 = 250_000;

/// A thread that is woken late again and again, by 80 us and seldom by more than 250.
const LATE: Pauses = Pauses { every_ns: 300_000, long_ns: 80_000, has_times: true };

/// The 1st and 99th percentile of the times between packets in microseconds, the 99th of delivery in milliseconds, and what was
/// delivered, from the second second on.
fn run(bits_per_s: u64, ahead_ns: u64, pauses: Option<Pauses>) -> ([f64; 2], f64, usize) {
    let there = LinkSpec::of(5 * MS).with_rate(bits_per_s, 100_000);
    let flow = FlowSpec { pauses: [pauses, None], ..FlowSpec::held() };
    let mut world = World::new(1, there, LinkSpec::of(5 * MS), &[flow]);
    world.transport(0, 0).0.writes_ahead(ahead_ns);
    world.run_until(10 * S);
    let flow = &world.flows[0];
    let steady = flow.departed_ns.iter().filter(|at_ns| **at_ns > 2 * S).copied().collect::<Vec<_>>();
    let mut gaps: Vec<u64> = steady.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
    let gaps = [0.01, 0.99].map(|share| percentile_ms(&mut gaps, share) * 1000.0);
    let mut times = flow.delivery_times_ns(2 * S, 10 * S);
    (gaps, percentile_ms(&mut times, 0.99), times.len())
}

/// At 540 us a packet.
#[test]
fn times_are_kept_though_a_thread_wakes_late() {
    let least = |gaps: [f64; 2]| gaps[1] - gaps[0];
    let (calm, calm_p99, calm_count) = run(16_000_000, 0, None);
    let (late, ..) = run(16_000_000, 0, Some(LATE));
    let (kept, kept_p99, kept_count) = run(16_000_000, AHEAD_NS, Some(LATE));
    println!("gaps in us: calm {calm:.0?}, late {late:.0?}, kept {kept:.0?}; p99 {calm_p99:.2} and {kept_p99:.2} ms");
    assert!(least(late) > 2.0 * least(kept), "by so much gaps differ that its thread makes");
    assert!(kept_p99 <= calm_p99 + 0.3, "a message is made so much sooner");
    assert!(kept_count * 100 >= calm_count * 97, "{kept_count} of {calm_count}");
}
