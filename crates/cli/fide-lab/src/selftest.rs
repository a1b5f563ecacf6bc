// SPDX-License-Identifier: Apache-2.0
//! `fide-lab selftest`: checks that planted disturbances are found.

use std::{
    fs::{self, File},
    io::BufWriter,
    path::PathBuf,
    process::ExitCode,
};

use anyhow::{Context, anyhow};
use fide_report::run::{FamilyText, JSON_VERSION};
use fide_selftest::{
    recover::{self, Case, Outcome},
    run::Cores,
};
use fide_testbed::{Spec, Testbed};
use serde_json::{Value, json};

use fide_cli::exit::{Done, Failure, UNHEALTHY, UNSUPPORTED, USAGE};
use fide_cli::{
    logs,
    say::{say, tell},
    units::{interval, time},
};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Plant every disturbance at every sending interval (about nine minutes) instead of a handful
    #[arg(long)]
    all: bool,
    /// Print what was planted and found as JSON
    #[arg(long)]
    json: bool,
    /// Keep the log of every case in this directory
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Measure nothing: analyse logs that were kept
    #[arg(long, value_name = "LOG", num_args = 1.., conflicts_with_all = ["all", "keep"])]
    replay: Vec<PathBuf>,
}

/// The short selftest takes one of this many cases.
const SHORT_EVERY: usize = 3;
/// The share of cases that must be right.
const SHARE: f64 = 0.95;
/// The longest that a case of the short selftest may take.
const SHORT_NS: u64 = 5_000_000_000;

pub(crate) fn run(arguments: &Arguments) -> Done {
    let mut outcomes = Outcomes { json: arguments.json, outcomes: Vec::new() };
    if arguments.replay.is_empty() {
        plant(arguments, &mut outcomes)?;
    } else {
        outcomes.begin();
        for path in &arguments.replay {
            let log = logs::open(path)?;
            let outcome = recover::judge(&log.info, &log.samples, &log.events, &log.names)
                .map_err(|error| Failure::new(USAGE, error.context(path.display().to_string())))?;
            outcomes.one(outcome);
        }
    }
    Ok(outcomes.end())
}

fn plant(arguments: &Arguments, outcomes: &mut Outcomes) -> Result<(), Failure> {
    fide_testbed::supported().map_err(|error| Failure::new(UNSUPPORTED, error))?;
    ctrlc::set_handler(|| std::process::exit(130)).context("setting up the interrupt")?;
    if let Some(dir) = &arguments.keep {
        fs::create_dir_all(dir).map_err(|error| Failure::new(USAGE, anyhow!("{}: {error}", dir.display())))?;
    }
    let cores = Cores::here().map_err(|error| Failure::new(UNSUPPORTED, error))?;
    let bed = Testbed::build(Spec { planes: 1, ..Spec::hosts(2) }).context("building two hosts")?;
    let mut cases = Case::all();
    if !arguments.all {
        cases.retain(|case| case.packets() * case.sending_ns <= SHORT_NS);
        cases = cases.into_iter().step_by(SHORT_EVERY).collect();
    }
    outcomes.begin();
    let count = cases.len();
    for (at, case) in cases.into_iter().enumerate() {
        say!("{} of {count}: {}", at + 1, time((case.packets() * case.sending_ns) as f64));
        let measured = recover::record(&bed, cores, case)?;
        if let Some(dir) = &arguments.keep {
            let path = dir.join(format!("{:02}.fjl", at + 1));
            let failed = |error: &dyn std::fmt::Display| Failure::new(USAGE, anyhow!("{}: {error}", path.display()));
            let file = File::create(&path).map_err(|error| failed(&error))?;
            measured.write(BufWriter::new(file)).map_err(|error| failed(&error))?;
        }
        outcomes.one(recover::judge(&measured.info, &measured.samples, &measured.events, &measured.names)?);
    }
    Ok(())
}

/// Prints the outcomes.
struct Outcomes {
    json: bool,
    outcomes: Vec<Outcome>,
}

impl Outcomes {
    fn begin(&self) {
        if !self.json {
            tell!(
                "{:<10} {:<9} {:>9}   {:>11} {:>10}   {:<12} {:>12} {:>10}",
                "core of",
                "schedule",
                "sending",
                "planted T",
                "D",
                "found",
                "T",
                "D"
            );
        }
    }

    fn one(&mut self, outcome: Outcome) {
        if !self.json {
            tell!("{}", line(&outcome));
        }
        self.outcomes.push(outcome);
    }

    fn end(self) -> ExitCode {
        let count = self.outcomes.len();
        let right = self.outcomes.iter().filter(|outcome| outcome.recovered().is_some()).count();
        let share = right as f64 / count.max(1) as f64;
        if self.json {
            tell!("{:#}", to_json(&self.outcomes));
        } else {
            tell!("{right} of {count} found as they were planted: T within 0.1%, D within 20%, and the right kind");
        }
        if share >= SHARE { ExitCode::SUCCESS } else { ExitCode::from(UNHEALTHY) }
    }
}

fn line(outcome: &Outcome) -> String {
    let case = &outcome.case;
    let found = outcome.recovered().or_else(|| outcome.found.families.first());
    format!(
        "{:<10} {:<9} {:>9}   {:>11} {:>10}   {:<12} {:>12} {:>10}{}",
        if case.at_sender { "sender" } else { "receiver" },
        case.schedule,
        interval(case.sending_ns),
        format!("{:.4} ms", case.period_ns as f64 / 1e6),
        time(case.duration_ns as f64),
        found.map_or("nothing", |family| family.kind.as_str()),
        found.map_or(String::new(), |family| format!("{:.4} ms", family.period_ns / 1e6)),
        found.map_or(String::new(), |family| time(family.duration_ns)),
        if outcome.recovered().is_some() { "" } else { "  WRONG" },
    )
}

fn to_json(outcomes: &[Outcome]) -> Value {
    let count = outcomes.len();
    let right = outcomes.iter().filter(|outcome| outcome.recovered().is_some()).count();
    let share = right as f64 / count.max(1) as f64;
    let cases: Vec<Value> = outcomes.iter().map(case_to_json).collect();
    json!({ "version": JSON_VERSION, "planted": count, "recovered": right, "share": share, "cases": cases })
}

fn case_to_json(outcome: &Outcome) -> Value {
    let case = &outcome.case;
    json!({
        "at": if case.at_sender { "sender" } else { "receiver" },
        "schedule": case.schedule,
        "sending_ns": case.sending_ns,
        "period_ns": case.period_ns,
        "duration_ns": case.duration_ns,
        "recovered": outcome.recovered().is_some(),
        "families": outcome.found.families.iter().map(FamilyText::from).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use fide_jitter_analysis::families::Families;
    use fide_testbed::documented::{assert_documented, fields, section};

    use super::*;

    #[test]
    fn every_field_is_documented() {
        let found = Families { families: Vec::new(), thresholds: Vec::new() };
        let outcome = Outcome { case: Case::all()[0], shape: None, found };
        let page = include_str!("../../../../docs/develop/jitter-json.md");
        assert_documented(section(page, "## What a selftest prints"), &fields(&to_json(&[outcome])));
    }
}
