// SPDX-License-Identifier: Apache-2.0
//! `fide`: the command line. Each subcommand is a file; none holds protocol logic.

mod agent;
mod ask;
mod columns;
mod controller;
mod doctor;
mod gaps;
mod host;
mod jitter;
mod lane;
mod plan;
mod run;
mod say;
mod timeouts;
mod tune;
mod watch;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use fide_cli::exit::{self, Failure};

/// Tells the machines of a cluster that a process or a host has died, within microseconds, and is right about it.
///
/// Exit codes: 0 ok, 1 unhealthy, 2 usage, 3 unsupported here, 4 not permitted.
#[derive(Parser)]
#[command(version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run this host's agent
    Agent(agent::Arguments),
    /// Run this host's witness: a vote for two others, of which one goes on
    ///
    /// Programs on its host may watch others, but not join: `fide run` is refused there.
    Witness(agent::Arguments),
    /// Wait for what happens to a process or host, and print it
    Watch(watch::Arguments),
    /// Start a program under watch, and stop it while this host may not act
    ///
    /// Exit codes: the program's own, 128 and the number of the signal that ended it, 125 if it runs on because it is another user's
    /// and refuses signals, 126 or 127 if it could not begin; without a program 1 unhealthy, 2 usage, 3 unsupported here, 4 not
    /// permitted.
    ///
    /// Ctrl-Z stops the program before it suspends `fide run`, which would fence nobody otherwise.
    Run(run::RunArguments),
    /// Put a running program under watch, and stop it while this host may not act
    ///
    /// To be run outside the control group of the unit that it guards: it would freeze itself with it.
    Guard(run::GuardArguments),
    /// Show what this host's agent knows
    Status(ask::StatusArguments),
    /// Say why an event was told
    Explain(ask::ExplainArguments),
    /// Print the agent's metrics as Prometheus text
    Metrics(ask::MetricsArguments),
    /// Send and hear messages with a latency contract
    Lane(lane::Arguments),
    /// Measure what this host and the way to another one can promise
    Jitter(jitter::Arguments),
    /// Plan redundant multicast trees through a network, and say how long a packet can take
    ///
    /// Exit codes: 0 all requests are held, 1 some are refused, 2 usage, or a file that says no plan.
    Plan(plan::Arguments),
    /// Judge what this host is set to, and measure what it holds
    ///
    /// Exit codes: 0 nothing is bad, 1 something is, 2 usage, 3 this host tells nothing.
    Doctor(doctor::Arguments),
    /// Change what this host is set to, and restore it
    ///
    /// Exit codes: 0 done, 1 something but interrupts that cannot be moved was refused, or left by --undo, 2 usage,
    /// 3 unsupported here, 4 not permitted.
    Tune(tune::Arguments),
    /// Run the resource controller, make its certificates, ask it
    Controller(controller::Arguments),
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    match words.next().as_deref() {
        Some(run::GATE) => return run::gate(&words.collect::<Vec<_>>()),
        Some(run::WARDEN) => return run::warden(&words.collect::<Vec<_>>()),
        _ => {}
    }
    let arguments = Arguments::parse();
    let done = match arguments.command {
        Command::Agent(arguments) => agent::run(&arguments, false),
        Command::Witness(arguments) => agent::run(&arguments, true),
        Command::Watch(arguments) => watch::run(&arguments),
        Command::Run(arguments) => run::run(arguments),
        Command::Guard(arguments) => run::guard(&arguments),
        Command::Status(arguments) => ask::status(&arguments),
        Command::Explain(arguments) => ask::explain(&arguments),
        Command::Metrics(arguments) => ask::metrics(&arguments),
        Command::Lane(arguments) => lane::run(&arguments),
        Command::Jitter(arguments) => jitter::run(&arguments),
        Command::Plan(arguments) => plan::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Tune(arguments) => tune::run(&arguments),
        Command::Controller(arguments) => controller::run(arguments),
    };
    match done {
        Ok(code) => code,
        Err(Failure { code, error }) => {
            say::say!("fide: {error:#}");
            ExitCode::from(code)
        }
    }
}
