// SPDX-License-Identifier: Apache-2.0
//! `fide jitter`: measures what this host and its path to another host can promise.

mod analyse;
mod export;
mod path;
mod ping;
mod pong;
mod report;
mod say;
mod sweep;

use fide_latency_probe::pages::Pages;

use crate::exit::Done;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Send packets at a fixed rate and note when each was sent, received and answered
    Ping(ping::Arguments),
    /// Answer the pings of other hosts until interrupted
    Pong(pong::Arguments),
    /// Draw the measurements, and explain what they mean
    Report(report::Arguments),
    /// Measure at several sending intervals, and explain the results by one disturbance
    Sweep(sweep::Arguments),
    /// Write the packets of a log as CSV
    Export(export::Arguments),
}

impl Arguments {
    /// See [`crate::reader`].
    pub(crate) fn outlives_its_reader(&self) -> bool {
        matches!(self.command, Command::Export(_))
    }
}

pub(crate) fn run(arguments: &Arguments) -> Done {
    match &arguments.command {
        Command::Ping(arguments) => ping::run(arguments),
        Command::Pong(arguments) => pong::run(arguments),
        Command::Report(arguments) => report::run(arguments),
        Command::Sweep(arguments) => sweep::run(arguments),
        Command::Export(arguments) => export::run(arguments),
    }
}

/// Options of the measuring thread, the same at both ends.
#[derive(clap::Args)]
pub(crate) struct Conditions {
    /// Core to measure on; by default the highest this process may use
    #[arg(long)]
    core: Option<usize>,
    /// Let the scheduler choose the core
    #[arg(long, conflicts_with = "core")]
    unpinned: bool,
    /// Use an ordinary thread instead of SCHED_FIFO. A thread that polls without pause is ordinary anyway,
    /// unless --fifo is given
    #[arg(long)]
    ordinary: bool,
    /// Use SCHED_FIFO even for a thread that polls: the kernel takes 50 ms of every second away from it
    #[arg(long, conflicts_with = "ordinary")]
    fifo: bool,
    /// Let cores sleep: do not hold /dev/cpu_dma_latency
    #[arg(long)]
    sleep_states: bool,
    /// Do not lock memory
    #[arg(long)]
    unlocked: bool,
    /// Keep packets and results on huge pages where there are any; af-xdp takes two reserved ones (sysctl
    /// vm.nr_hugepages)
    #[arg(long)]
    huge_pages: bool,
}

impl Conditions {
    /// `polls`: the thread never sleeps. As a real-time thread it would meet the kernel's fair server, whose
    /// stalls of 50 ms would drown the measurement.
    fn wanted(&self, polls: bool) -> fide_latency_probe::setting::Wanted {
        let usual = fide_latency_probe::setting::Wanted::default();
        let core = self.core.unwrap_or_else(fide_net::isolation::default_core);
        fide_latency_probe::setting::Wanted {
            core: (!self.unpinned).then_some(core),
            fifo: usual.fifo.filter(|_| self.fifo || !(self.ordinary || polls)),
            no_sleep_states: !self.sleep_states,
            lock_memory: !self.unlocked,
            pages: if self.huge_pages { Pages::Huge } else { Pages::Usual },
        }
    }
}
