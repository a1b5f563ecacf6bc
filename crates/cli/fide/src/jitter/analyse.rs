// SPDX-License-Identifier: Apache-2.0
//! Turns measurements into what a report says about one run and about several.

use fide_jitter_analysis::{
    Interference, RunInfo, Samples,
    attribute::{Attribution, Culprit, Late, Total, attribute},
    families::{FamilyOptions, RunView, SweepFamily, find_families, sweep},
    stats::{RunStats, StatsOptions},
};
use fide_report::run::{Blame, CulpritTotal, Disturbance, FamilyText, LatePacket, Run, Shows, UNKNOWN, stamp_place};

/// Late packets shown one by one.
const SHOWN_MAX: usize = 50;
/// Most packets, of all runs together, that are searched for a common cause: each takes some 80 bytes of
/// memory.
pub(super) const SWEEP_PACKETS_MAX: usize = 8_000_000;

/// Everything that a report says about one run.
pub(super) fn run_of(
    name: String,
    info: RunInfo,
    samples: &Samples,
    (events, names): (&[Interference], &[String]),
    options: &StatsOptions,
) -> Run {
    let stats = RunStats::of(&info, samples, options);
    let recorded = info.isolation.get("culprits").is_some_and(|state| state == "recorded");
    let found = recorded.then(|| attribute(&info, samples, events));
    let families = find_families(&info, samples, &FamilyOptions::default());
    let start_ns = info.start_ns;
    let mut run = Run::new(name, info, stats);
    run.families = Some(families.families.iter().map(FamilyText::from).collect());
    run.culprits = found.as_ref().map(|found| totals(found, names));
    run.late = found.as_ref().map(|found| late(found, names, start_ns));
    run
}

/// The disturbances that explain several runs together.
pub(super) fn across(views: &[RunView]) -> Vec<Disturbance> {
    sweep(views, &FamilyOptions::default()).iter().map(disturbance).collect()
}

fn name_of(names: &[String], id: u32) -> String {
    names.get(id as usize).cloned().unwrap_or_else(|| format!("name {id}"))
}

fn disturbance(of: &SweepFamily) -> Disturbance {
    let shows = |fit: &fide_jitter_analysis::families::RunFit| Shows {
        kind: fit.family.as_ref().map(|family| family.kind.clone()),
        expected: fit.expected.map(|shape| format!("{}-{}", of.stamp.name(), shape.name())),
        packets: fit.family.as_ref().map_or(0, |family| family.packets),
    };
    Disturbance {
        place: stamp_place(of.stamp).to_owned(),
        period_ns: of.period_ns,
        duration_ns: of.duration_ns,
        duration_at_least: !of.duration_known,
        confidence: of.confidence,
        sentence: of.text.clone(),
        alternatives_ns: of.alternatives_ns.clone(),
        shows: of.runs.iter().map(shows).collect(),
    }
}

fn totals(found: &Attribution, names: &[String]) -> Vec<CulpritTotal> {
    let total = |of: &Total| {
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
    let packet = |late: &Late| LatePacket {
        id: late.id,
        at_ns: Some(late.from_ns.saturating_sub(start_ns)),
        place: stamp_place(late.stamp).to_owned(),
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
