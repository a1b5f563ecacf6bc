// SPDX-License-Identifier: Apache-2.0
//! `fide-lab`: builds clusters on this machine, to show Fide at work and to measure it. Not for production
//! hosts.

mod demo;
mod selftest;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Builds clusters and networks on this machine, to show Fide at work.
///
/// Exit codes: 0 ok, 1 something was wrong, 2 usage, 3 unsupported here, 4 not permitted.
#[derive(Parser)]
#[command(version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build a cluster, kill processes and silence hosts in it, and show which host was notified when
    Demo(demo::Arguments),
    /// Build a network of switches, plan trees in it, and cut every cable in turn
    DemoNetwork(demo::network::Arguments),
    /// Plant disturbances on this machine and see whether `fide jitter` finds them
    Selftest(selftest::Arguments),
}

fn main() -> ExitCode {
    // The demo starts this program on the hosts that it has built.
    let mut words = std::env::args().skip(1);
    match words.next().as_deref() {
        Some(demo::REPLICA) => {
            return match fide_counter::main(&words.collect::<Vec<_>>()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    fide_cli::say::say!("fide-lab: {error:#}");
                    ExitCode::FAILURE
                }
            };
        }
        Some(demo::VICTIM) => return fide_testbed::victim_main(&words.collect::<Vec<_>>()),
        _ => {}
    }
    let arguments = Arguments::parse();
    let done = match arguments.command {
        Command::Demo(arguments) => demo::run(&arguments),
        Command::DemoNetwork(arguments) => demo::network::run(&arguments),
        Command::Selftest(arguments) => selftest::run(&arguments),
    };
    match done {
        Ok(code) => code,
        Err(failure) => {
            fide_cli::say::say!("fide-lab: {failure}");
            ExitCode::from(failure.code)
        }
    }
}
