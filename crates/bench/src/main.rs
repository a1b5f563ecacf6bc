// SPDX-License-Identifier: Apache-2.0
//! `make bench-detect`: how soon a death is known, by Fide and by what it is compared with, trial about trial in one run.
//!
//! Two parts. A process is killed, small and with 512 MiB resident: TCP FIN, pidfd, Fide. A host falls silent (its ports
//! at the switches are cut): BFD, memberlist in its LAN setting and in the fastest one that stayed right under load, Fide.
#![forbid(unsafe_code)]

mod fide_side;
mod killed;
mod silent;
mod trials;

use clap::Parser;
use fide_testbed::figures::Report;
use std::process::ExitCode;

/// Measures detection times and writes target/bench/detect.json.
#[derive(Debug, Parser)]
struct Args {
    /// Trials of each kind with a small process.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    kills: u32,
    /// Trials of each kind with 512 MiB resident.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    big_kills: u32,
    /// Trials of each kind with a silent host, but for memberlist's LAN setting, which takes five seconds each.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    silences: u32,
    /// Trials of memberlist's LAN setting.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    lan_silences: u32,
    /// Seconds under load for which a setting of memberlist has to stay right to be tried further; three times as long
    /// to be taken.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=30))]
    stretch_s: u32,
    /// Leave memberlist out.
    #[arg(long)]
    no_memberlist: bool,
    /// Leave BFD out.
    #[arg(long)]
    no_bfd: bool,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
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
    killed::measure(args, &mut report)?;
    silent::measure(args, &mut report)?;
    print!("\n{report}");
    println!("written to {}", report.write()?.display());
    Ok(())
}
