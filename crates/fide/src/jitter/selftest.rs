// SPDX-License-Identifier: Apache-2.0
//! `fide jitter selftest`: are planted disturbances found?

use std::process::ExitCode;

use anyhow::Context;
use fide_selftest::{
    recover::{Case, Outcome, run as recover},
    run::Cores,
};
use fide_testbed::{Spec, Testbed};
use serde_json::{Value, json};

use super::say::time;
use crate::exit::{Done, Failure, UNHEALTHY, UNSUPPORTED};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Every planted disturbance at every sending interval (about six minutes) instead of a handful
    #[arg(long)]
    all: bool,
    /// Print what was planted and found as JSON
    #[arg(long)]
    json: bool,
}

/// Cases of the short selftest, among all.
const SHORT_EVERY: usize = 7;
/// What it takes to be right in the end.
const SHARE: f64 = 0.95;
/// A short one does not take longer for one case.
const SHORT_NS: u64 = 5_000_000_000;

pub(crate) fn run(arguments: &Arguments) -> Done {
    fide_testbed::supported().map_err(|error| Failure::new(UNSUPPORTED, error))?;
    ctrlc::set_handler(|| std::process::exit(130)).context("setting up the interrupt")?;
    let cores = Cores::here().map_err(|error| Failure::new(UNSUPPORTED, error))?;
    let bed = Testbed::build(Spec { planes: 1, ..Spec::hosts(2) }).context("building two hosts")?;
    let mut cases = Case::all();
    if !arguments.all {
        cases.retain(|case| case.packets() * case.sending_ns <= SHORT_NS);
        cases = cases.into_iter().step_by(SHORT_EVERY / 2).collect();
    }
    if !arguments.json {
        println!(
            "{:<10} {:<9} {:>9}   {:>11} {:>10}   {:<12} {:>12} {:>10}",
            "core of", "schedule", "sending", "planted T", "D", "found", "T", "D"
        );
    }
    let (mut right, mut told) = (0usize, Vec::new());
    let count = cases.len();
    for (at, case) in cases.into_iter().enumerate() {
        eprintln!("{} of {count}: {}", at + 1, time((case.packets() * case.sending_ns) as f64));
        let outcome = recover(&bed, cores, case)?;
        right += usize::from(outcome.recovered().is_some());
        if !arguments.json {
            println!("{}", line(&outcome));
        }
        told.push(to_json(&outcome));
    }
    let share = right as f64 / count.max(1) as f64;
    if arguments.json {
        println!("{:#}", json!({ "planted": count, "recovered": right, "share": share, "cases": told }));
    } else {
        println!("{right} of {count} found as they were planted: T within 0.1%, D within 20%, and the right kind");
    }
    Ok(if share >= SHARE { ExitCode::SUCCESS } else { ExitCode::from(UNHEALTHY) })
}

fn line(outcome: &Outcome) -> String {
    let case = &outcome.case;
    let found = outcome.recovered().or_else(|| outcome.found.families.first());
    format!(
        "{:<10} {:<9} {:>9}   {:>11} {:>10}   {:<12} {:>12} {:>10}{}",
        if case.at_sender { "sender" } else { "receiver" },
        format!("{:?}", case.schedule).to_lowercase(),
        time(case.sending_ns as f64),
        format!("{:.4} ms", outcome.period_ns / 1e6),
        time(outcome.duration_ns),
        found.map_or("nothing", |family| family.kind.as_str()),
        found.map_or(String::new(), |family| format!("{:.4} ms", family.period_ns / 1e6)),
        found.map_or(String::new(), |family| time(family.duration_ns)),
        if outcome.recovered().is_some() { "" } else { "  WRONG" },
    )
}

fn to_json(outcome: &Outcome) -> Value {
    let case = &outcome.case;
    json!({
        "at": if case.at_sender { "sender" } else { "receiver" },
        "schedule": case.schedule,
        "sending_ns": case.sending_ns,
        "period_ns": outcome.period_ns,
        "duration_ns": outcome.duration_ns,
        "windows": outcome.windows,
        "recovered": outcome.recovered().is_some(),
        "families": outcome.found.families,
    })
}
