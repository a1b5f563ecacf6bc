// SPDX-License-Identifier: Apache-2.0
//! `make bench-planner`: whether the planner's bounds hold and are tight, whether its trees are cheap, and
//! how long it takes.
//!
//! | figure | what happens | compared with |
//! |---|---|---|
//! | `bound_violations` | 10,000 random allocations, each run packet by packet | what the planner promised |
//! | `bound_tightness` | fat trees with 20 requests, schedules aimed at each tree | the same |
//! | `cost_vs_brute_force` | one more request on small networks | all sets of trees tried |
//! | `plan_k16_200` | a fat tree of 1,024 hosts, 200 requests of 9 members, two trees each | |
//! | `replan_k16` | one more request there, or a broken tree replaced | |
//! | `priority_under_flood` | a heartbeat over flooded links, in the lane | the same idle; and without the lane |
//! | `plan_k48_1` | a request in a fat tree of 27,648 hosts | |
#![forbid(unsafe_code)]

mod bounds;
mod brute;
mod priority;
mod speed;

use clap::Parser;
use fide_testbed::figures::{Figure, Goal, Report};
use std::process::ExitCode;

/// Measures the planner and writes target/bench/planner.json and planner-growth.svg.
#[derive(Debug, Parser)]
struct Args {
    /// Say what has moved beyond the spread since an earlier run: its JSON file, or a folder with one of this
    /// bench's name.
    #[arg(long, value_name = "OLD")]
    compare: Option<std::path::PathBuf>,
    /// Random allocations to be run.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    allocations: u32,
    /// Small networks whose trees are all tried.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    networks: u32,
    /// First seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
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
    /// Bounds that hold and are tight.
    Bounds,
    /// Cost beside all sets of trees.
    Brute,
    /// Time.
    Speed,
    /// A heartbeat over flooded links; needs root.
    Priority,
}

impl Args {
    fn runs(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }
}

/// Values in ascending order, as a figure.
fn spread(name: &str, unit: &str, statistic: &str, mut values: Vec<f64>, goal: Goal) -> Figure {
    if values.is_empty() {
        return Figure::unmeasured(name, unit, "nothing to measure came up").goal(goal);
    }
    values.sort_by(f64::total_cmp);
    let at = |share: f64| {
        #[allow(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share"
        )]
        let place = ((values.len() - 1) as f64 * share).round() as usize;
        values[place]
    };
    let value = match statistic {
        "p50" => at(0.5),
        "p99" => at(0.99),
        _ => at(1.0),
    };
    let figure = Figure {
        figure: name.into(),
        value: Some(value),
        unit: unit.into(),
        statistic: statistic.into(),
        n: values.len() as u64,
        min: Some(at(0.0)),
        p50: Some(at(0.5)),
        p99: Some(at(0.99)),
        max: Some(at(1.0)),
        ..Figure::default()
    };
    figure.goal(goal)
}

fn main() -> ExitCode {
    let mut args = Args::parse();
    if args.quick {
        (args.allocations, args.networks) = (300, 100);
    }
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("bench-planner: {why:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> anyhow::Result<()> {
    // The fabric's reaper removes everything that was started, however this ends.
    ctrlc::set_handler(|| std::process::exit(130))?;
    let mut report = Report::new("planner").compared_with(args.compare.as_deref())?;
    if args.runs(Part::Speed) {
        speed::run(args, &mut report)?;
    }
    if args.runs(Part::Brute) {
        brute::run(args, &mut report);
    }
    if args.runs(Part::Bounds) {
        bounds::run(args, &mut report)?;
    }
    if args.runs(Part::Priority) {
        priority::run(args, &mut report);
    }
    report.conclude()?;
    Ok(())
}
