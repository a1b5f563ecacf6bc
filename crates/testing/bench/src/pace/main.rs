// SPDX-License-Identifier: Apache-2.0
//! `bench-pace`: X-PACE beside TCP, over emulated links, in one run (X-PACE §V).
//!
//! | figure | what happens |
//! |---|---|
//! | `network_p99_over_optimum` | the network is the bottleneck (1.6 Mbit/s, 15 ms): delivery time of 99 of 100 messages, over 20 ms |
//! | `network_p99_vs_tcp` | the same beside the better one of tuned CUBIC and BBR |
//! | `network_gap_least_ms`, `network_gap_most_ms` | time between two messages at the sender, 1st and 99th percentile; optimum 5 ms |
//! | `receiver_time_over_optimum` | the receiver takes 5 ms for a message, by a fifth more or less: the whole run, over 10 s |
//! | `receiver_settled_p99_ms` | the same: delivery time of messages sent after the first 200 ms |
//! | `internet_p99_vs_cubic`, `internet_range_vs_cubic` | a path like one through the Internet to a home: p99, and p1 to p99 |
//! | `wlan_range_vs_bbr` | a path like a wireless network's: p1 to p99 |
#![forbid(unsafe_code)]

mod flow;
mod ours;
mod tcp;

use std::{net::SocketAddr, process::ExitCode, time::Duration};

use anyhow::Result;
use clap::Parser;
use fide_link_model::LinkSpec;
use fide_pace_socket::Algorithm;
use fide_testbed::{
    Spec, Testbed,
    emulator::Emulator,
    figures::{Figure, Goal, Report},
};
use flow::{Carrier, ROUNDS, Run, Scenario};

/// Measures X-PACE and writes target/bench/pace.json.
#[derive(Debug, Parser)]
struct Args {
    /// Say what has moved beyond the spread since an earlier run: its JSON file, or a folder with one of this
    /// bench's name.
    #[arg(long, value_name = "OLD")]
    compare: Option<std::path::PathBuf>,
    /// Everything briefly, to see that it works; no number to quote.
    #[arg(long)]
    quick: bool,
    /// Only the scenarios whose names begin so: network, receiver, sender, internet, wlan.
    #[arg(long, value_name = "SCENARIO")]
    only: Vec<String>,
}

const MS: u64 = 1_000_000;
const WORK: Duration = Duration::from_millis(5);
const NONE: Duration = Duration::ZERO;
const XPACE: Carrier = Carrier::Pace(Algorithm::XPace);
const LEVEL: Carrier = Carrier::Pace(Algorithm::Level);
const CUBIC: Carrier = Carrier::Tcp { congestion: "cubic", is_tuned: true };
const BBR: Carrier = Carrier::Tcp { congestion: "bbr", is_tuned: true };
const CARRIERS: [Carrier; 6] = [
    XPACE,
    LEVEL,
    CUBIC,
    BBR,
    Carrier::Tcp { congestion: "cubic", is_tuned: false },
    Carrier::Tcp { congestion: "bbr", is_tuned: false },
];

/// Table I, and the two networks of §V-B2 and V-B3.
fn scenarios() -> Vec<(Scenario, LinkSpec)> {
    let of = |name, send_work, receive_work, send_buffer, receive_buffer| Scenario {
        name,
        send_work,
        receive_work,
        send_buffer,
        receive_buffer,
    };
    let local = LinkSpec::of(15 * MS);
    vec![
        (of("network", NONE, NONE, 18_000, 18_000), local.with_rate(1_600_000, 18_000)),
        (of("receiver", NONE, WORK, 60_000, 6000), local.with_rate(16_000_000, 180_000)),
        (of("sender", WORK, NONE, 60_000, 60_000), local.with_rate(16_000_000, 180_000)),
        (of("internet", NONE, NONE, 112_500, 112_500), LinkSpec::internet()),
        (of("wlan", NONE, NONE, 112_500, 112_500), LinkSpec::wlan()),
    ]
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("bench-pace: {why:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let mut report = Report::new("pace").compared_with(args.compare.as_deref())?;
    let rounds = if args.quick { 200 } else { ROUNDS };
    for (scenario, link) in scenarios() {
        if !args.only.is_empty() && !args.only.iter().any(|begin| scenario.name.starts_with(begin.as_str())) {
            continue;
        }
        let mut runs = Vec::new();
        for carrier in CARRIERS {
            let testbed = Testbed::build(Spec { planes: 1, ..Spec::hosts(2) })?;
            let back = LinkSpec {
                losses: link.losses,
                jitter_ns: link.jitter_ns,
                reorders: false,
                ..LinkSpec::of(link.delay_ns)
            };
            let emulator = Emulator::between(testbed.host(1), testbed.host(2), [link, back], 7)?;
            let to = SocketAddr::from((Emulator::address(1), 7000));
            let run = flow::run(&testbed, to, carrier, &scenario, rounds)?;
            say(&scenario, carrier, &run, &emulator);
            runs.push((carrier, run));
        }
        figures(&mut report, scenario.name, &runs, rounds);
    }
    report.conclude()?;
    Ok(())
}

fn say(scenario: &Scenario, carrier: Carrier, run: &Run, emulator: &Emulator) {
    let (queue_ns, dropped) = emulator.take_longest_queue_ns(0);
    println!(
        "{:9} {:18} {:5} of {:5} came in {:6.2} s; delivery p1 {:7.2} p50 {:7.2} p99 {:7.2} ms; gaps p1 {:6.2} p99 {:6.2} ms; longest queue {:6.1} ms, {dropped} dropped",
        scenario.name,
        carrier.name(),
        run.times.len(),
        run.sent,
        run.whole_ns as f64 / 1e9,
        run.time_ms(0, 0.01),
        run.time_ms(0, 0.5),
        run.time_ms(0, 0.99),
        run.gap_ms(0.01),
        run.gap_ms(0.99),
        queue_ns as f64 / 1e6,
    );
}

fn value(name: &str, unit: &str, value: f64, n: usize) -> Figure {
    Figure {
        figure: name.into(),
        value: value.is_finite().then_some(value),
        unit: unit.into(),
        statistic: "total".into(),
        n: n as u64,
        ..Figure::default()
    }
}

/// The figures of a scenario, of the controller that is the default.
fn figures(report: &mut Report, scenario: &str, runs: &[(Carrier, Run)], rounds: usize) {
    let of = |carrier: Carrier| runs.iter().find(|(other, _)| *other == carrier).map(|(_, run)| run);
    let default = Carrier::Pace(Algorithm::default());
    let (Some(ours), Some(cubic), Some(bbr)) = (of(default), of(CUBIC), of(BBR)) else { return };
    let range = |run: &Run| run.time_ms(0, 0.99) - run.time_ms(0, 0.01);
    let n = ours.times.len();
    match scenario {
        "network" => {
            let p99 = ours.time_ms(0, 0.99);
            report.add(value("network_p99_over_optimum", "ratio", p99 / 20.0, n).goal(Goal::AtMost(1.10)));
            let tcp = cubic.time_ms(0, 0.99).min(bbr.time_ms(0, 0.99));
            report.add(value("network_p99_vs_tcp", "ratio", p99 / tcp, n).goal(Goal::AtMost(0.75)));
            report.add(value("network_gap_least_ms", "ms", ours.gap_ms(0.01), n).goal(Goal::AtLeast(4.4)));
            report.add(value("network_gap_most_ms", "ms", ours.gap_ms(0.99), n).goal(Goal::AtMost(6.0)));
        }
        "receiver" => {
            let optimum = rounds as f64 * 5e6;
            let whole = ours.whole_ns as f64 / optimum;
            report.add(value("receiver_time_over_optimum", "ratio", whole, n).goal(Goal::AtMost(1.05)));
            report.add(value("receiver_settled_p99_ms", "ms", ours.time_ms(200 * MS, 0.99), n));
        }
        "internet" => {
            let p99 = ours.time_ms(0, 0.99) / cubic.time_ms(0, 0.99);
            report.add(value("internet_p99_vs_cubic", "ratio", p99, n).goal(Goal::AtMost(0.46)));
            report
                .add(value("internet_range_vs_cubic", "ratio", range(ours) / range(cubic), n).goal(Goal::AtMost(0.09)));
        }
        "wlan" => {
            report.add(value("wlan_range_vs_bbr", "ratio", range(ours) / range(bbr), n).goal(Goal::AtMost(0.1)));
        }
        _ => {}
    }
}
