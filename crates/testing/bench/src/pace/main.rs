// SPDX-License-Identifier: Apache-2.0
//! `bench-pace`: X-PACE beside TCP, QUIC and SRT, over emulated links, in one run (X-PACE §V).
//!
//! | figure | what happens |
//! |---|---|
//! | `network_p99_over_optimum` | the network is the bottleneck (1.6 Mbit/s, 15 ms): delivery time of 99 of 100 messages, over 20 ms |
//! | `network_p99_vs_tcp`, `network_p99_vs_quic` | the same beside the better one of tuned CUBIC and BBR, of QUIC's datagrams and one of its streams |
//! | `network_p99_vs_srt` | the same beside SRT in live mode with 100 ms, whose source is told four fifths of the link |
//! | `network_gap_least_ms`, `network_gap_most_ms` | time between two messages at the sender, 1st and 99th percentile; optimum 5 ms |
//! | `network_p99_vs_bare`, `network_bare_p99_over_optimum`, `network_bare_gap_most_ms` | the same beside a bare UDP socket whose sender is told the rate: what the machine allows |
//! | `receiver_time_over_optimum` | the receiver takes 5 ms for a message, by a fifth more or less: the whole run, over 10 s |
//! | `receiver_settled_p99_ms`, `receiver_settled_over_optimum` | the same: delivery time of messages sent after the first 200 ms; the same over 15.5 ms |
//! | `receiver_settled_after_ms` | the same: when the median of 20 messages is at most that time and one message's work, and stays so: no message waits behind another |
//! | `internet_p99_vs_cubic`, `internet_range_vs_cubic` | a path like one through the Internet to a home: p99, and p1 to p99 |
//! | `wlan_range_vs_bbr`, `wlan_range_vs_bbr_tuned` | a path like a wireless network's: p1 to p99, beside BBR with the kernel's buffers, for which the paper's table has no others, and with those of the path through the Internet |
//! | `queue_after_move_packets` | the bottleneck moves: the longest queue, on the link or at the receiver, from two filter windows (4 s) after each move on |
//! | `pace_after_move_off`, `windows_until_pace` | the same: how far the pace is from the slowest step's then, and when it was reached |
//! | `residual_loss_over_asked`, `redundancy_over_least` | links that lose 1 to 10 %: the worst row (`lossy.rs`, `least.rs`) |
//! | `gaps_least_200us`, `gaps_most_200us_vs_bare`, `gaps_longest_200us_vs_bare` | time between packets at a pace of 200 us, and of 500 and 900: 1st percentile over the pace; 99th percentile and longest over those of a bare sender (`gaps.rs`) |
//! | `fairness`, `share_beside_bbr`, `share_beside_cubic` | flows that share a link: Jain's index, and what the poorer one of two has of its half |
//! | `xor_vs_reed_solomon` | the one coded packet of a block by exclusive or, over the same by Reed-Solomon: the median of blocks of 1 to 64 symbols |
//! | `cpu_vs_tcp`, `goodput_gbps`, `goodput_vs_tcp` | CPU time of the sender for a message of 1,200 bytes, and what goes through, a core for each side |
#![forbid(unsafe_code)]

mod carriers;
mod cost;
mod flow;
mod found;
mod gaps;
mod least;
mod lossy;
mod moves;
mod plots;
mod priority;
mod scenarios;
mod shared;

use std::{process::ExitCode, time::Instant};

use anyhow::{Result, ensure};
use clap::{Parser, Subcommand};
use fide_testbed::figures::Report;

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
    /// Only the parts whose names begin so: network, receiver, sender, internet, wlan, moves, loss, gaps, shared, cost.
    #[arg(long, value_name = "PART")]
    only: Vec<String>,
    /// Run as ordinary processes. Otherwise all carriers and links have real-time priority alike, so that what else runs on
    /// the machine counts less.
    #[arg(long)]
    ordinary: bool,
    #[command(subcommand)]
    side: Option<OneSide>,
}

#[derive(Debug, Subcommand)]
enum OneSide {
    /// One side of a flow, as a process of its own: the bench starts it.
    #[command(hide = true)]
    Side { spec: String },
}

/// Adds the figures of a part; briefly if it is to be quick.
type Measure = fn(&mut Report, bool);

/// All that can be asked for.
const PARTS: [&str; 10] =
    ["network", "receiver", "sender", "internet", "wlan", "moves", "loss", "gaps", "shared", "cost"];

fn main() -> ExitCode {
    let args = Args::parse();
    let result = match &args.side {
        Some(OneSide::Side { spec }) => cost::side_main(spec),
        None => run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("bench-pace: {why:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    for only in &args.only {
        ensure!(
            PARTS.iter().any(|part| part.starts_with(only.as_str())),
            "--only {only}: there is no such part; there are {}",
            PARTS.join(", ")
        );
    }
    let is_wanted = |part: &str| args.only.is_empty() || args.only.iter().any(|begin| part.starts_with(begin.as_str()));
    println!("{}", if args.ordinary { "as ordinary processes" } else { priority::get() });
    let (mut report, begun) = (Report::new("pace").compared_with(args.compare.as_deref())?, Instant::now());
    let done = scenarios::measure(&mut report, is_wanted, args.quick)?;
    let parts: [(&str, Measure); 5] = [
        ("moves", moves::measure),
        ("loss", lossy::measure),
        ("gaps", gaps::measure),
        ("shared", shared::measure),
        ("cost", cost::measure),
    ];
    for (part, measure) in parts {
        if is_wanted(part) {
            measure(&mut report, args.quick);
        }
    }
    println!("measured in {:.0} s", begun.elapsed().as_secs_f64());
    plots::draw(&done)?;
    report.conclude()?;
    Ok(())
}
