// SPDX-License-Identifier: Apache-2.0
//! `make bench-jitter`: whether the jitter bench measures what it says, and what it costs.
//!
//! | figure | what happens | compared with |
//! |---|---|---|
//! | `recording_cost` | round trips while culprits are recorded | the same without |
//! | `vs_sockperf` | round trips of the UDP method | sockperf's ping-pong |
//! | `vs_cyclictest` | wake-ups of an isolated thread | cyclictest |
//! | `culprit_attributed` | threads, timers and packets planted on a core | who the analysis blames |
//! | `planted_recovered` | disturbances of known period and length planted at four sending intervals | what is found |
//! | `no_false_family` | made-up runs of noise alone | |
//! | `analyse_10m` | ten million packets read, analysed and drawn | |
#![forbid(unsafe_code)]

mod cost;
mod noise;
mod planted;
mod tools;
mod volume;

use clap::Parser;
use fide_selftest::run::Cores;
use fide_testbed::figures::Report;
use fide_testbed::{Spec, Testbed};
use std::process::ExitCode;

/// Measures the jitter bench itself and writes target/bench/jitter.json.
#[derive(Debug, Parser)]
struct Args {
    /// Say what has moved beyond the spread since an earlier run: its JSON file, or a folder with one of this
    /// bench's name.
    #[arg(long, value_name = "OLD")]
    compare: Option<std::path::PathBuf>,
    /// Seconds of each comparison with another tool.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(4..=600))]
    seconds: u32,
    /// Seconds for each kind of planted noise.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=600))]
    noise_s: u32,
    /// Packets to be analysed.
    #[arg(long, default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1000..=20_000_000))]
    packets: u64,
    /// Everything briefly, to see that it works; no number to quote.
    #[arg(long)]
    quick: bool,
    /// Only these parts, and a result file with only their figures; all when none is named.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
}

/// Parts that can be asked for one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// The cost of recording, sockperf and cyclictest.
    Cost,
    /// Culprits of planted noise.
    Noise,
    /// Periodic disturbances, planted and not.
    Planted,
    /// Ten million packets.
    Volume,
}

impl Args {
    fn runs(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }
}

fn main() -> ExitCode {
    let mut args = Args::parse();
    if args.quick {
        (args.seconds, args.noise_s, args.packets) = (4, 2, 100_000);
    }
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("bench-jitter: {why:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> anyhow::Result<()> {
    fide_testbed::supported()?;
    // The testbed's reaper removes everything that was started, however this ends.
    ctrlc::set_handler(|| std::process::exit(130))?;
    let mut report = Report::new("jitter").compared_with(args.compare.as_deref())?;
    let cores = Cores::here()?;
    let bed = Testbed::build(Spec { hosts: 3, planes: 1, ..Spec::default() })?;
    // First, in a process that holds nothing else yet.
    if args.runs(Part::Volume) {
        volume::run(args, &mut report);
    }
    if args.runs(Part::Cost) {
        cost::run(args, &bed, cores, &mut report);
    }
    if args.runs(Part::Noise) {
        noise::run(args, &bed, cores, &mut report);
    }
    if args.runs(Part::Planted) {
        planted::run(args, &bed, cores, &mut report);
    }
    report.conclude()?;
    Ok(())
}
