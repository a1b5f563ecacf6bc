// SPDX-License-Identifier: Apache-2.0
//! `fide jitter report`: logs in, one page and the same in JSON out.

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::anyhow;
use fide_jitter::{
    Stamp,
    attribute::{Attribution, Culprit, attribute},
    families::{Family, FamilyOptions, find_families},
    stats::{RunStats, StatsOptions, TailOptions},
};
use fide_jitter_report::{Blame, CulpritTotal, FamilyText, LatePacket, Run, UNKNOWN, render, to_json};

use super::export;
use crate::exit::{Done, Failure, USAGE};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Logs of `fide jitter ping`; several are shown side by side
    #[arg(required = true)]
    logs: Vec<PathBuf>,
    /// Where to write the page
    #[arg(long, value_name = "FILE", default_value = "jitter.html")]
    html: PathBuf,
    /// Print the same as JSON
    #[arg(long)]
    json: bool,
    /// For how many packets to come bounds are given
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    next: u64,
    /// Probability with which one of them may be beyond the bound
    #[arg(long, value_name = "P", default_value_t = 0.01)]
    risk: f64,
}

pub(crate) fn run(arguments: &Arguments) -> Done {
    if !(arguments.risk > 0.0 && arguments.risk < 1.0) || arguments.next == 0 {
        return Err(Failure::new(USAGE, anyhow!("--risk is between 0 and 1, --next at least 1")));
    }
    let tail = TailOptions { packets: arguments.next, risk: arguments.risk, ..TailOptions::default() };
    let options = StatsOptions { tail, ..StatsOptions::default() };
    let mut runs = Vec::new();
    for path in &arguments.logs {
        eprintln!("reading {}", path.display());
        let log = export::open(path)?;
        let stats = RunStats::of(&log.info, &log.samples, &options);
        let name = path.file_stem().map_or_else(|| "run".to_owned(), |name| name.to_string_lossy().into_owned());
        let recorded = log.info.isolation.get("culprits").is_some_and(|state| state == "recorded");
        let found = recorded.then(|| attribute(&log.info, &log.samples, &log.events));
        let families = find_families(&log.info, &log.samples, &FamilyOptions::default());
        let start_ns = log.info.start_ns;
        let mut run = Run::new(name, log.info, stats);
        run.families = Some(families.families.iter().map(family).collect());
        run.culprits = found.as_ref().map(|found| totals(found, &log.names));
        run.late = found.as_ref().map(|found| late(found, &log.names, start_ns));
        runs.push(run);
    }
    fs::write(&arguments.html, render(&runs))
        .map_err(|error| Failure::new(USAGE, anyhow!("{}: {error}", arguments.html.display())))?;
    eprintln!("written to {}", arguments.html.display());
    if arguments.json {
        println!("{:#}", to_json(&runs));
    }
    Ok(ExitCode::SUCCESS)
}

/// Late packets shown one by one.
const SHOWN_MAX: usize = 50;

fn name_of(names: &[String], id: u32) -> String {
    names.get(id as usize).cloned().unwrap_or_else(|| format!("name {id}"))
}

/// Where a packet became late, for people.
fn place(stamp: Stamp) -> &'static str {
    match stamp {
        Stamp::Ts1 => "ts1, sending at A",
        Stamp::Ts2 => "ts2, on the way to B",
        Stamp::Ts3 => "ts3, within B",
        Stamp::Ts4 => "ts4, on the way back",
    }
}

fn family(of: &Family) -> FamilyText {
    FamilyText {
        kind: of.kind.clone(),
        place: place(of.stamp).to_owned(),
        period_ns: of.period_ns,
        period_error: of.period_error_ns / of.period_ns,
        duration_ns: of.duration_ns,
        duration_at_least: !of.duration_known,
        hits: of.packets,
        confidence: of.confidence,
        sentence: of.text.clone(),
        alternatives: of.alternatives.iter().map(|other| format!("{:.4} ms", other.period_ns / 1e6)).collect(),
    }
}

fn totals(found: &Attribution, names: &[String]) -> Vec<CulpritTotal> {
    let total = |of: &fide_jitter::attribute::Total| {
        let (kind, name) = match of.culprit {
            Culprit::Known { kind, name } => (kind.name().to_owned(), name_of(names, name)),
            Culprit::Unknown => (UNKNOWN.to_owned(), String::new()),
        };
        let share = of.packets as f64 / found.late.max(1) as f64;
        CulpritTotal { kind, name, packets: of.packets, share, worst_ns: of.worst_ns }
    };
    found.totals.iter().map(total).collect()
}

fn late(found: &Attribution, names: &[String], start_ns: i64) -> Vec<LatePacket> {
    let packet = |late: &fide_jitter::attribute::Late| LatePacket {
        id: late.id,
        at_ns: Some(late.from_ns.saturating_sub(start_ns)),
        place: place(late.stamp).to_owned(),
        late_ns: late.late_ns(),
        blame: late
            .blame
            .iter()
            .map(|part| Blame {
                kind: part.kind.name().to_owned(),
                name: name_of(names, part.name),
                cpu: Some(part.cpu),
                ns: part.ns,
            })
            .collect(),
    };
    found.packets.iter().take(SHOWN_MAX).map(packet).collect()
}
