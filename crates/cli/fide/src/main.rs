// SPDX-License-Identifier: Apache-2.0
//! `fide`: the command line. Each subcommand is a file; none holds protocol logic.

// All output goes through `say`: these macros panic where output cannot be written.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod agent;
mod ask;
mod columns;
#[cfg(feature = "controller")]
mod controller;
mod demo;
mod diag;
mod doctor;
mod explain;
mod gaps;
mod host;
mod jitter;
mod lane;
mod live;
mod manual;
mod netlink;
mod pace;
mod plan;
mod rack;
mod reader;
mod replace;
mod run;
mod timeouts;
mod tune;
mod watch;
mod windows;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::{CommandFactory, Parser, Subcommand};

use fide_cli::{exit, say};

/// Tells the machines of a cluster that a process or a host has died, within microseconds, and is right about it.
///
/// Exit codes, unless a command lists others: 0 done, 1 unhealthy (also: no agent answers), 2 usage (also: a
/// file that was named is wrong or missing), 3 unsupported here, 4 not permitted.
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
    /// Run this host's witness: its vote lets one of two other hosts go on without the other
    ///
    /// Programs on its host may watch others, but not join: `fide run` is refused there.
    Witness(agent::Arguments),
    /// Wait for events about a process or host, and print them
    Watch(watch::Arguments),
    /// Start a program under watch, and stop it while this host may not act
    ///
    /// Exit codes: the program's own; 128 plus the number of the signal that ended it; 125 if the program
    /// runs on because it belongs to another user and cannot be signalled; 126 or 127 if it could not begin.
    /// If there is no program: 1 unhealthy, 2 usage, 3 unsupported here, 4 not permitted.
    ///
    /// Signals are passed on to the program unchanged, and end `fide run` only when the program ends. The
    /// exceptions are SIGKILL and the signals of `fide run`'s own faults, after which the program is killed.
    /// Signals of the terminal (Ctrl-C, Ctrl-\) reach both at once. While a fence stops the program, the
    /// second SIGTERM, SIGINT or SIGQUIT kills it. Ctrl-Z stops the program before it suspends `fide run`: a
    /// suspended `fide run` could not fence it.
    Run(run::RunArguments),
    /// Put a running program under watch, and stop it while this host may not act
    ///
    /// SIGTERM, SIGINT and SIGQUIT end the watch and leave the program running; all other signals are
    /// ignored. Run it outside the control group of the unit that it guards: it would freeze itself together
    /// with the unit.
    Guard(run::GuardArguments),
    /// Show what this host's agent knows
    Status(ask::StatusArguments),
    /// Say why an event was reported
    Explain(ask::ExplainArguments),
    /// Print the agent's metrics as Prometheus text
    Metrics(ask::MetricsArguments),
    /// Send and hear messages with a latency contract
    Lane(lane::Arguments),
    /// Carry messages with deadlines between two hosts, paced to the slowest step: no agent, no root
    Pace(pace::Arguments),
    /// Carry the TCP connections of unmodified programs of this host over shared memory: no agent, no root
    Rack(rack::Arguments),
    /// Measure what this host and its path to another host can promise
    Jitter(jitter::Arguments),
    /// Plan redundant multicast trees through a network, and say how long a packet can take
    ///
    /// Exit codes: 0 all requests fit, 1 some are refused, 2 usage or a wrong file, 4 not permitted.
    Plan(plan::Arguments),
    /// Judge this host's settings, and measure the jitter that it can hold
    ///
    /// Exit codes: 0 nothing is bad, 1 something is, 2 usage, 3 this host cannot be examined, 4 not
    /// permitted.
    Doctor(doctor::Arguments),
    /// Change this host's settings, and restore them
    ///
    /// Exit codes: 0 done, 1 a change was refused (other than moving an interrupt that cannot be moved), or
    /// --undo did not restore everything, 2 usage, 3 unsupported here, 4 not permitted.
    Tune(tune::Arguments),
    /// Run the resource controller, make its certificates, and send it requests
    #[cfg(feature = "controller")]
    Controller(controller::Arguments),
    /// Build a cluster on this machine and show what happens when its processes and hosts die
    ///
    /// `fide demo redis` loses leader after leader of a replicated Redis, `fide demo agreement` those of a
    /// counter; `fide demo pace` shows delivery times of X-PACE beside TCP's. It starts `fide-lab`, which is not
    /// for production hosts. Exit codes: those of the demo; 3 if there is no `fide-lab`.
    Demo(demo::Arguments),
    /// Print a script that lets a shell complete `fide`'s subcommands and options
    ///
    /// For bash: `fide completions bash > /usr/share/bash-completion/completions/fide`. For zsh:
    /// `fide completions zsh > /usr/share/zsh/vendor-completions/_fide`. For fish:
    /// `fide completions fish > /usr/share/fish/vendor_completions.d/fide.fish`.
    Completions(manual::CompletionsArguments),
    /// Write the manual pages, one for each subcommand
    ///
    /// `man -l DIR/fide-run.1` shows one; in /usr/local/share/man/man1 `man fide-run` finds it.
    Man(manual::ManArguments),
}

impl Command {
    /// Whether it still has something to do, or to undo, when nobody reads what it prints ([`reader`]).
    fn outlives_its_reader(&self) -> bool {
        match self {
            Self::Agent(_) | Self::Witness(_) | Self::Watch(_) | Self::Run(_) | Self::Guard(_) => true,
            Self::Lane(_) | Self::Plan(_) | Self::Demo(_) => true,
            Self::Pace(arguments) => arguments.outlives_its_reader(),
            Self::Rack(arguments) => arguments.outlives_its_reader(),
            #[cfg(feature = "controller")]
            Self::Controller(arguments) => arguments.outlives_its_reader(),
            Self::Jitter(arguments) => arguments.outlives_its_reader(),
            Self::Status(_) | Self::Explain(_) | Self::Metrics(_) | Self::Doctor(_) | Self::Tune(_) => false,
            Self::Completions(_) | Self::Man(_) => false,
        }
    }
}

fn main() -> ExitCode {
    // Names of programs and files need not be text.
    let mut words = std::env::args_os().skip(1);
    match words.next() {
        Some(word) if word == run::GATE => return run::gate(&words.collect::<Vec<_>>()),
        Some(word) if word == run::WARDEN => return run::warden(&words.collect::<Vec<_>>()),
        Some(word) if word == rack::GUARD => return rack::guard(),
        _ => {}
    }
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        // `--help` and `--version` are answers: it is an error if they cannot be written.
        Err(answer) if !answer.use_stderr() => {
            return ended(say::shown(answer.print().and_then(|()| io::stdout().flush())).map(|()| ExitCode::SUCCESS));
        }
        Err(wrong) => wrong.exit(),
    };
    if !arguments.command.outlives_its_reader() {
        reader::is_needed();
    }
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
        Command::Pace(arguments) => pace::run(&arguments),
        Command::Rack(arguments) => rack::run(&arguments),
        Command::Jitter(arguments) => jitter::run(&arguments),
        Command::Plan(arguments) => plan::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Tune(arguments) => tune::run(&arguments),
        #[cfg(feature = "controller")]
        Command::Controller(arguments) => controller::run(arguments),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Completions(arguments) => manual::completions(&arguments, Arguments::command()),
        Command::Man(arguments) => manual::man(&arguments, Arguments::command()),
    };
    ended(done)
}

fn ended(done: exit::Done) -> ExitCode {
    match done {
        Ok(code) => code,
        Err(failure) => {
            say::say!("fide: {failure}");
            ExitCode::from(failure.code)
        }
    }
}
