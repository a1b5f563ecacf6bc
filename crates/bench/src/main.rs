// SPDX-License-Identifier: Apache-2.0
//! `make bench-detect`: how soon a death is known, by Fide and by what it is compared with, trial about trial in one run.
//!
//! | part | what happens | compared with |
//! |---|---|---|
//! | `killed` | a process dies, small and with 512 MiB resident | TCP FIN, pidfd, memberlist |
//! | `silent` | a host's ports at the switches are cut | BFD, memberlist |
//! | `steady` | nobody dies: false verdicts under load, an agent's share of a core | |
//! | `crowd` | 64 programs on each of 9 hosts, one of each dies | |
//! | `sessions` | programs come and go: heartbeats that are late because of it | |
#![forbid(unsafe_code)]

mod crowd;
mod fide_side;
mod killed;
mod list;
mod sessions;
mod silent;
mod steady;
mod trials;

use clap::Parser;
use fide_testbed::figures::Report;
use std::process::ExitCode;
use std::time::Duration;

/// Measures detection times and writes target/bench/detect.json.
#[derive(Debug, Parser)]
struct Args {
    /// Trials of each kind with a small process.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    kills: u32,
    /// Trials of each kind with 512 MiB resident.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    big_kills: u32,
    /// Trials of BFD with a silent host, which take three seconds each.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    silences: u32,
    /// Trials of Fide with a silent host.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    fide_silences: u32,
    /// Trials of each kind of a fast memberlist.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    list_trials: u32,
    /// Trials of each kind of memberlist's LAN setting, which take five seconds each.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    lan_trials: u32,
    /// Seconds under load for which a setting of memberlist has to stay right to be tried further; three times as long
    /// to be taken.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=30))]
    stretch_s: u32,
    /// Seconds under load in which nobody may be declared dead.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=120))]
    load_s: u32,
    /// Seconds at rest over which an agent's share of a core is measured.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=600))]
    idle_s: u32,
    /// Only these parts, and a result file with only their figures; all when none is named.
    #[arg(long, value_enum)]
    only: Vec<Part>,
    /// Everything once or twice, to see that it works: below a minute, and no number to quote. Overrides the numbers
    /// above; memberlist is taken at a setting that was not searched for.
    #[arg(long)]
    quick: bool,
    /// Leave memberlist out.
    #[arg(long)]
    no_memberlist: bool,
    /// Leave BFD out.
    #[arg(long)]
    no_bfd: bool,
}

/// A part of the bench.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Killed,
    Silent,
    Steady,
    Crowd,
    Sessions,
}

impl Args {
    fn quickened(mut self) -> Self {
        if self.quick {
            (self.kills, self.big_kills, self.list_trials, self.lan_trials) = (10, 2, 1, 1);
            (self.silences, self.fide_silences, self.load_s, self.idle_s) = (2, 5, 5, 2);
        }
        self
    }

    /// How long nine hosts are watched for a false verdict before somebody dies.
    fn quiet(&self) -> Duration {
        Duration::from_millis(if self.quick { 500 } else { 5000 })
    }

    fn wants(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }
}

fn main() -> ExitCode {
    match run(&Args::parse().quickened()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("bench-detect: {why:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> anyhow::Result<()> {
    fide_testbed::supported()?;
    // What was started is removed by the testbed's reaper, whichever way this ends.
    ctrlc::set_handler(|| std::process::exit(130))?;
    let mut report = Report::new("detect");
    if args.wants(Part::Killed) || args.wants(Part::Silent) {
        let lists = list::Settings::find(args, &mut report)?;
        if args.wants(Part::Killed) {
            killed::measure(args, &lists, &mut report)?;
        }
        if args.wants(Part::Silent) {
            silent::measure(args, &lists, &mut report)?;
        }
    }
    if args.wants(Part::Steady) {
        steady::measure(args, &mut report);
    }
    if args.wants(Part::Crowd) {
        crowd::measure(args, &mut report);
    }
    if args.wants(Part::Sessions) {
        sessions::measure(args, &mut report);
    }
    print!("\n{report}");
    println!("written to {}", report.write()?.display());
    Ok(())
}
