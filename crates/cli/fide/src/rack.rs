// SPDX-License-Identifier: Apache-2.0
//! `fide rack`: TCP connections of unmodified programs of this host, over memory that both ends share.

mod check;
mod guard;
mod hangup;
mod kernel;
mod link;
mod metrics;
mod monitor;
mod place;
mod run;
mod top;
mod view;

pub(crate) use guard::{GUARD, guard};

use crate::exit::Done;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Start a program whose TCP connections to programs of this host go over memory
    ///
    /// The other end has to be started so, too, and a monitor has to run before both. All other connections, and all of a
    /// program that cannot be accelerated, go over TCP as without it; what is the reason is said on standard error.
    ///
    /// Exit codes: the program's own; 126 or 127 if it could not begin; with --require, if it would not be accelerated:
    /// 1 no monitor, 3 the program or the library; 2 usage.
    Run(run::Arguments),
    /// Run this host's monitor, which brings the two ends of a connection together
    ///
    /// SIGTERM, SIGINT and SIGHUP end it. Connections that are over memory stay so without it.
    ///
    /// Exit codes: 0 ended by a signal, 1 one runs there already, 2 usage, 4 not permitted.
    Monitor(monitor::Arguments),
    /// Say what of a program would not go over memory, and why
    ///
    /// It reads the program's file, and those of its libraries; nothing is run. What a program loads later by itself, or starts,
    /// is not looked at.
    ///
    /// Exit codes: 0 accelerated, 1 not, 2 usage (also: no such program), 4 not permitted.
    Check(check::Arguments),
    /// Show which programs' connections go over memory, which do not, and why
    ///
    /// It asks the monitor, and shows connections of this user's programs; of all users' to root. Bytes do not pass the monitor: they
    /// are read from the programs' memory where this user may do that (root), and lag by up to 128 KiB in each direction.
    ///
    /// Exit codes: 0 ended, 1 no monitor, 2 usage, 4 not permitted.
    Top(top::Arguments),
    /// End this host's TCP connections to hosts that the agent declares dead
    ///
    /// Calls of their programs that wait, and further ones, fail at once, where TCP alone would take minutes, or wait for ever: with ETIMEDOUT
    /// under `fide rack run`, else with ECONNABORTED. It ends connections of all programs in its network namespace, whatever started them, to the addresses of the planes in the agent's
    /// configuration. Connections to a host that was dead before it began stay, and so do those that are used again. It needs an agent, and
    /// CAP_NET_ADMIN.
    ///
    /// Exit codes: 0 ended by a signal, 1 no agent, 3 the kernel cannot do it, 4 not permitted.
    Hangup(hangup::Arguments),
    /// Print the monitor's metrics as Prometheus text
    ///
    /// Exit codes: 0 done, 1 no monitor, 2 usage, 4 not permitted.
    Metrics(metrics::Arguments),
}

impl Arguments {
    /// Whether it still has something to do when nobody reads what it prints.
    pub(crate) fn outlives_its_reader(&self) -> bool {
        matches!(self.command, Command::Run(_) | Command::Monitor(_) | Command::Hangup(_))
    }
}

pub(crate) fn run(arguments: &Arguments) -> Done {
    match &arguments.command {
        Command::Run(arguments) => run::run(arguments),
        Command::Monitor(arguments) => monitor::run(arguments),
        Command::Check(arguments) => check::run(arguments),
        Command::Top(arguments) => top::run(arguments),
        Command::Hangup(arguments) => hangup::run(arguments),
        Command::Metrics(arguments) => metrics::run(arguments),
    }
}
