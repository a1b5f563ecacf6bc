// SPDX-License-Identifier: Apache-2.0
//! `make bench-detect`: detection times of Fide and of its baselines, with interleaved trials in one run.
//!
//! | part | what happens | compared with |
//! |---|---|---|
//! | `killed` | a process dies, small and with 512 MiB resident | TCP FIN, pidfd, memberlist |
//! | `busy` | the same, and the watcher spins | what is least possible on this machine |
//! | `silent` | a host's ports at the switches are cut | BFD, memberlist |
//! | `steady` | nobody dies: false verdicts under load, an agent's share of a core | |
//! | `accuracy` | nobody dies: how short a timeout would suspect nobody | agents that spin, that sleep, on plain UDP |
//! | `crowd` | 64 programs on each of 9 hosts, one of each dies | |
//! | `sessions` | programs come and go: heartbeats that are late because of it | |
#![forbid(unsafe_code)]

mod accuracy;
mod busy;
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
    /// Say what has moved beyond the spread since an earlier run: its JSON file, or a folder with one of this
    /// bench's name.
    #[arg(long, value_name = "OLD")]
    compare: Option<std::path::PathBuf>,
    /// Trials of each kind with a small process.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    kills: u32,
    /// Trials of each kind with 512 MiB resident.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    big_kills: u32,
    /// Trials of BFD with a silent host, which take three seconds each.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    silences: u32,
    /// Trials of Fide with a silent host, in each mode.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=10_000))]
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
    /// Rounds of the accuracy sweep, each with all of its set-ups.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    accuracy_rounds: u32,
    /// Milliseconds for which each set-up is listened to in a round.
    #[arg(long, default_value_t = 2_500, value_parser = clap::value_parser!(u32).range(200..=600_000))]
    accuracy_ms: u32,
    /// Time between the heartbeats of the accuracy sweep, us. What this machine does not keep up with is said.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(20..=100_000))]
    accuracy_heartbeat_us: u32,
    /// Only these parts, or the part of a figure by its name, and a result file with only what was named; all
    /// when nothing is.
    #[arg(long, value_name = "PART|FIGURE", value_parser = Wanted::parse)]
    only: Vec<Wanted>,
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
    Busy,
    Silent,
    Steady,
    Accuracy,
    Crowd,
    Sessions,
}

impl Part {
    /// The part that measures a figure of this name: prefixes of its names, and its figures of memberlist and
    /// of other baselines.
    fn of_figure(name: &str) -> Option<Part> {
        let parts: [(&[&str], Part); 7] = [
            (&["sigkill_busy"], Part::Busy),
            (&["sigkill_", "tcp_fin_", "pidfd_"], Part::Killed),
            (&["host_silent", "bfd_silence"], Part::Silent),
            (&["false_verdicts_under_load", "agent_cpu_share"], Part::Steady),
            (&["accuracy_"], Part::Accuracy),
            (&["programs_64_hosts_9"], Part::Crowd),
            (&["session_end_skipped_heartbeats"], Part::Sessions),
        ];
        parts.into_iter().find(|(begin, _)| begin.iter().any(|begin| name.starts_with(begin))).map(|(_, part)| part)
    }
}

/// The argument of `--only`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wanted {
    part: Part,
    /// Only figures with this prefix; `None`: all of the part.
    figure: Option<String>,
}

impl Wanted {
    fn parse(word: &str) -> Result<Wanted, String> {
        if let Ok(part) = <Part as clap::ValueEnum>::from_str(word, false) {
            return Ok(Wanted { part, figure: None });
        }
        let part = Part::of_figure(word).ok_or_else(|| {
            let parts: Vec<String> =
                <Part as clap::ValueEnum>::value_variants().iter().map(|p| format!("{p:?}").to_lowercase()).collect();
            format!(
                "no part and no figure begins so; parts are {}, figures are in docs/benchmarks.md",
                parts.join(", ")
            )
        })?;
        Ok(Wanted { part, figure: Some(word.to_string()) })
    }
}

impl Args {
    fn quickened(mut self) -> Self {
        if self.quick {
            (self.kills, self.big_kills, self.list_trials, self.lan_trials) = (10, 2, 1, 1);
            (self.silences, self.fide_silences, self.load_s, self.idle_s) = (2, 5, 5, 2);
            (self.accuracy_rounds, self.accuracy_ms) = (1, 400);
        }
        self
    }

    /// How long nine hosts are watched for a false verdict before a program is killed.
    fn quiet(&self) -> Duration {
        Duration::from_millis(if self.quick { 500 } else { 5000 })
    }

    fn wants(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.iter().any(|wanted| wanted.part == part)
    }

    fn wants_figure(&self, name: &str) -> bool {
        let of = Part::of_figure(name);
        let whole = |wanted: &Wanted| wanted.figure.is_none() && of.is_none_or(|part| part == wanted.part);
        let named = |wanted: &Wanted| wanted.figure.as_ref().is_some_and(|figure| name.starts_with(figure));
        self.only.is_empty() || self.only.iter().any(|wanted| whole(wanted) || named(wanted))
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
    // The testbed's reaper removes everything that was started, however this ends.
    ctrlc::set_handler(|| std::process::exit(130))?;
    let mut report = Report::new("detect").compared_with(args.compare.as_deref())?;
    if args.wants(Part::Killed) || args.wants(Part::Silent) {
        let lists = list::Settings::find(args, &mut report)?;
        if args.wants(Part::Killed) {
            killed::measure(args, &lists, &mut report)?;
        }
        if args.wants(Part::Silent) {
            silent::measure(args, &lists, &mut report)?;
        }
    }
    if args.wants(Part::Busy) {
        busy::measure(args, &mut report);
    }
    if args.wants(Part::Steady) {
        steady::measure(args, &mut report);
    }
    if args.wants(Part::Accuracy) {
        accuracy::measure(args, &mut report);
    }
    if args.wants(Part::Crowd) {
        crowd::measure(args, &mut report);
    }
    if args.wants(Part::Sessions) {
        sessions::measure(args, &mut report);
    }
    report.figures.retain(|figure| args.wants_figure(&figure.figure));
    report.conclude()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_figures_are_named_and_nothing_else() {
        let args = |words: &[&str]| Args::try_parse_from([&["bench-detect"], words].concat());
        let by_part = args(&["--only", "silent"]).unwrap();
        assert!(by_part.wants(Part::Silent) && !by_part.wants(Part::Killed) && by_part.wants_figure("bfd_silence"));
        let by_figure = args(&["--only", "sigkill_small_vs_tcp_fin", "--only", "host_silent_lease"]).unwrap();
        assert!(by_figure.wants(Part::Killed) && by_figure.wants(Part::Silent) && !by_figure.wants(Part::Crowd));
        assert!(by_figure.wants_figure("host_silent_lease_vs_bfd") && !by_figure.wants_figure("host_silent_vs_bfd"));
        let busy = args(&["--only", "sigkill_busy"]).unwrap();
        assert!(busy.wants(Part::Busy) && !busy.wants(Part::Killed) && busy.wants_figure("sigkill_busy_vs_floor"));
        let why = args(&["--only", "sigkil"]).unwrap_err().to_string();
        assert!(why.contains("parts are killed, busy, silent, steady, accuracy, crowd, sessions"), "{why}");
        let all = args(&[]).unwrap();
        assert!(all.wants(Part::Sessions) && all.wants_figure("anything"));
    }
}
