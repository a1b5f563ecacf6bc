// SPDX-License-Identifier: Apache-2.0
//! The slowest step is the network, the receiver or the sender, or the path is like one through the Internet or a wireless
//! network (§V-B): every carrier in each.

use std::{net::SocketAddr, time::Duration};

use anyhow::Result;
use fide_link_model::LinkSpec;
use fide_pace_socket::Algorithm;
use fide_testbed::{
    Spec, Testbed,
    emulator::Emulator,
    figures::{Goal, Report},
};

use crate::{
    carriers::{self, BARE, BBR, BBR_UNTUNED, CUBIC, Carrier, DATAGRAMS, LEVEL, PACKET, STREAM},
    flow::{self, ROUNDS, Run, Scenario},
    found::add,
};

/// Each carrier's run in a scenario, or why there is none.
pub(crate) type Runs = Vec<(Carrier, Result<Run, String>)>;

const MS: u64 = 1_000_000;
const WORK: Duration = Duration::from_millis(5);
const NONE: Duration = Duration::ZERO;
/// After so long X-PACE has found the pace of a slow receiver, §V-B1.
const SETTLED_MS: u64 = 200;
/// How near to the least time it delivers at its best, §VI.
const SETTLED_OVER: f64 = 1.24;

/// Table I, and the two networks of §V-B2 and V-B3.
fn all() -> Vec<(Scenario, LinkSpec)> {
    let of = |name, send_work, receive_work, send_buffer, receive_buffer, link: LinkSpec| {
        let at_best = Duration::from_nanos(PACKET as u64 * 8_000_000_000 / link.bits_per_s);
        // The model's mean: the rate is even between its least share and all of it, and pauses now and then.
        let mean = link.varies.map_or(1.0, |varies| (1.0 + varies.least_share) / 2.0 * (1.0 - varies.pauses));
        let pace = at_best.div_f64(mean).max(send_work).max(receive_work);
        let least = Duration::from_nanos(link.delay_ns) + at_best;
        (Scenario { name, send_work, receive_work, send_buffer, receive_buffer, pace, least }, link)
    };
    let local = LinkSpec::of(15 * MS);
    let (slow, fast) = (local.with_rate(1_600_000, 18_000), local.with_rate(16_000_000, 180_000));
    vec![
        of("network", NONE, NONE, 18_000, 18_000, slow),
        of("receiver", NONE, WORK, 60_000, 6000, fast),
        of("sender", WORK, NONE, 60_000, 60_000, fast),
        of("internet", NONE, NONE, 112_500, 112_500, LinkSpec::internet()),
        of("wlan", NONE, NONE, 112_500, 112_500, LinkSpec::wlan()),
    ]
}

/// All that are compared. Where the link alone sets the pace, also the bare sender, right after ours, as the machine changes
/// with time.
fn carriers_of(scenario: &str) -> impl Iterator<Item = Carrier> {
    let has_bare = scenario == "network";
    carriers::ALL
        .into_iter()
        .flat_map(move |carrier| [Some(carrier), (has_bare && carrier == LEVEL).then_some(BARE)])
        .flatten()
}

/// Runs those that are wanted, and adds their figures.
///
/// # Errors
/// No testbed can be built here.
pub(crate) fn measure(
    report: &mut Report,
    is_wanted: impl Fn(&str) -> bool,
    is_quick: bool,
) -> Result<Vec<(Scenario, Runs)>> {
    let rounds = if is_quick { ROUNDS / 10 } else { ROUNDS };
    let mut done = Vec::new();
    for (scenario, link) in all().into_iter().filter(|(scenario, _)| is_wanted(scenario.name)) {
        let mut runs = Runs::new();
        for carrier in carriers_of(scenario.name) {
            let testbed = Testbed::build(Spec { planes: 1, ..Spec::hosts(2) })?;
            let back = LinkSpec {
                losses: link.losses,
                jitter_ns: link.jitter_ns,
                reorders: false,
                ..LinkSpec::of(link.delay_ns)
            };
            let emulator = Emulator::between(testbed.host(1), testbed.host(2), [link, back], 7)?;
            let to = SocketAddr::from((Emulator::address(1), 7000));
            let run = flow::run(&testbed, to, carrier, &scenario, rounds).map_err(|why| format!("{why:#}"));
            say(&scenario, carrier, &run, &emulator);
            runs.push((carrier, run));
        }
        figures(report, &scenario, &runs, rounds);
        done.push((scenario, runs));
    }
    Ok(done)
}

fn say(scenario: &Scenario, carrier: Carrier, run: &Result<Run, String>, emulator: &Emulator) {
    let (name, of) = (scenario.name, carrier.name());
    let run = match run {
        Ok(run) => run,
        Err(why) => return println!("{name:9} {of:18} NOT MEASURED: {why}"),
    };
    let (queue_ns, _) = emulator.take_longest_queue_ns(0);
    let seen = emulator.seen(0);
    println!(
        "{name:9} {of:18} {:5} of {:5} came in {:6.2} s; delivery p1 {:7.2} p50 {:7.2} p99 {:7.2} ms; gaps p1 {:6.2} p99 {:6.2} ms; \
         longest queue {:6.1} ms, {} dropped of {} packets of {:4.0} bytes",
        run.times.len(),
        run.sent,
        run.whole_ns as f64 / 1e9,
        run.time_ms(0, 0.01),
        run.time_ms(0, 0.5),
        run.time_ms(0, 0.99),
        run.gap_ms(0.01),
        run.gap_ms(0.99),
        queue_ns as f64 / 1e6,
        seen.dropped,
        seen.packets,
        seen.bytes as f64 / seen.packets.max(1) as f64,
    );
}

/// The figures of a scenario, of the controller that is the default.
fn figures(report: &mut Report, scenario: &Scenario, runs: &Runs, rounds: usize) {
    let of = |carrier: Carrier| -> Result<&Run, String> {
        let run = runs.iter().find(|(other, _)| *other == carrier).map(|(_, run)| run);
        let run = run.ok_or_else(|| format!("{} did not run", carrier.name()))?;
        let run = run.as_ref().map_err(Clone::clone)?;
        if run.times.is_empty() { Err(format!("no message came by {}", carrier.name())) } else { Ok(run) }
    };
    let ours = of(Carrier::Pace(Algorithm::default()));
    let n = ours.as_ref().map_or(0, |run| run.times.len());
    let p99 = |carrier: Carrier| of(carrier).map(|run| run.time_ms(0, 0.99));
    let range = |run: &Run| run.time_ms(0, 0.99) - run.time_ms(0, 0.01);
    let of_ours = |figure: &dyn Fn(&Run) -> f64| ours.as_ref().map(|run| figure(run)).map_err(Clone::clone);
    // Over the better one of two others.
    let p99_vs = |others: [Carrier; 2]| -> Result<f64, String> {
        let least = p99(others[0])?.min(p99(others[1])?);
        Ok(of_ours(&|run| run.time_ms(0, 0.99))? / least)
    };
    let mut ratio = |name: &str, value: Result<f64, String>, goal: Option<Goal>| {
        let unit = if name.ends_with("_ms") { "ms" } else { "ratio" };
        add(report, name, unit, n, goal, value);
    };
    let at_most = |limit: f64| Some(Goal::AtMost(limit));
    match scenario.name {
        "network" => {
            let over = of_ours(&|run| run.time_ms(0, 0.99) / 20.0);
            ratio("network_p99_over_optimum", over, at_most(1.10));
            ratio("network_p99_vs_tcp", p99_vs([CUBIC, BBR]), at_most(0.75));
            ratio("network_p99_vs_quic", p99_vs([DATAGRAMS, STREAM]), at_most(0.75));
            ratio("network_p99_vs_srt", p99_vs([Carrier::Srt; 2]), at_most(0.75));
            ratio("network_gap_least_ms", of_ours(&|run| run.gap_ms(0.01)), Some(Goal::AtLeast(4.4)));
            ratio("network_gap_most_ms", of_ours(&|run| run.gap_ms(0.99)), at_most(6.0));
            // Whether the machine or the transport is to blame.
            ratio("network_p99_vs_bare", p99_vs([BARE; 2]), None);
            let n = of(BARE).map_or(0, |run| run.times.len());
            add(report, "network_bare_p99_over_optimum", "ratio", n, None, p99(BARE).map(|p99| p99 / 20.0));
            add(report, "network_bare_gap_most_ms", "ms", n, None, of(BARE).map(|run| run.gap_ms(0.99)));
        }
        "receiver" => {
            let optimum_ns = rounds as f64 * WORK.as_secs_f64() * 1e9;
            ratio("receiver_time_over_optimum", of_ours(&|run| run.whole_ns as f64 / optimum_ns), at_most(1.05));
            let settled_ms = of_ours(&|run| run.time_ms(SETTLED_MS * MS, 0.99));
            ratio("receiver_settled_p99_ms", settled_ms.clone(), None);
            let least_ms = scenario.least.as_secs_f64() * 1e3;
            let over = settled_ms.map(|settled_ms| settled_ms / least_ms);
            ratio("receiver_settled_over_optimum", over, at_most(SETTLED_OVER));
            // A message that waits for less than that finds no other one before it.
            #[allow(clippy::cast_possible_truncation, reason = "milliseconds")]
            let at_most_ns = (scenario.least + WORK).as_nanos() as u64;
            let after_ms = of_ours(&|run| run.settled_after_ms(at_most_ns));
            ratio("receiver_settled_after_ms", after_ms, at_most(SETTLED_MS as f64));
        }
        "internet" => {
            ratio("internet_p99_vs_cubic", p99_vs([CUBIC; 2]), at_most(0.46));
            let range = of(CUBIC).and_then(|cubic| Ok(of_ours(&range)? / range(cubic)));
            ratio("internet_range_vs_cubic", range, at_most(0.09));
        }
        "wlan" => {
            // The paper's table of buffers has no wireless network.
            let vs = |other: Carrier| of(other).and_then(|bbr| Ok(of_ours(&range)? / range(bbr)));
            ratio("wlan_range_vs_bbr", vs(BBR_UNTUNED), at_most(0.1));
            ratio("wlan_range_vs_bbr_tuned", vs(BBR), None);
        }
        _ => {}
    }
}
