// SPDX-License-Identifier: Apache-2.0
//! The report for programs. Times are ns. A key, once introduced, keeps its name and its meaning. A change of
//! either increments [`JSON_VERSION`]; a new key does not.

use crate::run::measures::{self, ORDER};
use crate::run::model::{CulpritTotal, FamilyText, LatePacket, Report, Run};
use fide_jitter_analysis::RunInfo;
use fide_jitter_analysis::clocks::ClockMoves;
use fide_jitter_analysis::sample::{Fault, Restart};
use fide_jitter_analysis::stats::{Histogram, LateSends, MeasureStats, Reference, TailBound, Violation};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// `version` in the JSON, here and in the output of `fide jitter ping` and `fide-lab selftest`. In version 1,
/// a family's `alternatives` were sentences in a report and objects elsewhere; since version 2 they are
/// periods, `alternatives_ns`, everywhere.
pub const JSON_VERSION: u32 = 2;

#[derive(Serialize)]
struct RunJson<'a> {
    name: &'a str,
    conditions: &'a RunInfo,
    packets: Packets,
    clocks: Clocks<'a>,
    /// Pongs that answered, each with the row from which on it did.
    pongs: &'a [Restart],
    measures: Map<String, Value>,
    /// Null: not analysed.
    families: Option<&'a [FamilyText]>,
    /// Null: not recorded.
    culprits: Option<&'a [CulpritTotal]>,
    /// Null: not looked for.
    late_packets: Option<&'a [LatePacket]>,
}

#[derive(Serialize)]
struct Packets {
    logged: u64,
    absent: u64,
    unsent: u64,
    sent: u64,
    answered: u64,
    lost: u64,
    lost_after_b: u64,
    loss: f64,
    late_sends: LateSends,
}

#[derive(Serialize)]
struct Clocks<'a> {
    same: bool,
    faults: u64,
    first_faults: &'a [Fault],
    /// Moves of one clock against the other; null if there is one clock, or if too few packets came back.
    relative: Option<&'a ClockMoves>,
}

#[derive(Serialize)]
struct MeasureJson<'a> {
    reference: Reference,
    /// Values left out because of a clock.
    left_out: u64,
    /// Null without values.
    summary: Option<SummaryJson>,
    histogram: &'a Histogram,
    /// [time, share that does not exceed it].
    cdf: &'a [(i64, f64)],
    /// [packet, time], thinned, with all extremes.
    points: Vec<(u64, i64)>,
    violation: Option<Violation>,
    bound: Option<&'a TailBound>,
    /// Why there is no bound, for measures that can have one.
    no_bound: Option<String>,
}

#[derive(Serialize)]
struct SummaryJson {
    n: u64,
    min_ns: i64,
    max_ns: i64,
    jitter_ns: i64,
    mean_ns: f64,
    std_ns: f64,
    relative_jitter: Option<f64>,
    percentiles: Vec<PercentileJson>,
}

#[derive(Serialize)]
struct PercentileJson {
    share: f64,
    ns: i64,
}

impl<'a> RunJson<'a> {
    fn of(run: &'a Run) -> Self {
        let stats = &run.stats;
        let measures = ORDER.iter().filter_map(|&measure| {
            let value = serde_json::to_value(MeasureJson::of(stats.measure(measure)?)).ok()?;
            Some((measures::key(measure).to_owned(), value))
        });
        RunJson {
            name: &run.name,
            conditions: &run.info,
            packets: Packets {
                logged: stats.packets,
                absent: stats.absent,
                unsent: stats.unsent,
                sent: stats.packets - stats.unsent,
                answered: stats.answered,
                lost: stats.lost,
                lost_after_b: stats.lost_after_b,
                loss: stats.loss,
                late_sends: stats.late,
            },
            clocks: Clocks {
                same: run.info.same_clock,
                faults: stats.faults_total,
                first_faults: &stats.faults,
                relative: stats.clocks.as_ref(),
            },
            pongs: &stats.pongs,
            measures: measures.collect(),
            families: run.families.as_deref(),
            culprits: run.culprits.as_deref(),
            late_packets: run.late.as_deref(),
        }
    }
}

impl<'a> MeasureJson<'a> {
    fn of(stats: &'a MeasureStats) -> Self {
        let summary = stats.summary.as_ref().map(|s| SummaryJson {
            n: s.n,
            min_ns: s.min_ns,
            max_ns: s.max_ns,
            jitter_ns: s.jitter_ns,
            mean_ns: s.mean_ns,
            std_ns: s.std_ns,
            relative_jitter: s.relative_jitter,
            percentiles: s.percentiles.iter().map(|&(share, ns)| PercentileJson { share, ns }).collect(),
        });
        let tail = stats.tail.as_ref();
        MeasureJson {
            reference: stats.reference,
            left_out: stats.impossible,
            summary,
            histogram: &stats.histogram,
            cdf: &stats.cdf,
            points: stats.points.iter().map(|p| (p.id, p.ns)).collect(),
            violation: stats.violation,
            bound: tail.and_then(|t| t.as_ref().ok()),
            no_bound: tail.and_then(|t| t.as_ref().err()).map(ToString::to_string),
        }
    }
}

/// The report on these runs. Every field with its unit is in `docs/develop/jitter-json.md`.
///
/// ```text
/// { "version": 2, "unit": "ns", "runs": [ { "name", "conditions", "packets", "clocks", "pongs",
///   "measures": { "round_trip": { "summary", "histogram", "cdf", "points", "violation", "bound", "no_bound", ... }, ... },
///   "families", "culprits", "late_packets" } ],
///   "disturbances": null or [ { "place", "period_ns", "duration_ns", "shows", ... } ] }
/// ```
pub fn to_json<'a>(report: impl Into<Report<'a>>) -> Value {
    let Report { runs, disturbances } = report.into();
    // Maps with text keys and plain values can always be written as JSON.
    let runs: Vec<Value> = runs.iter().filter_map(|run| serde_json::to_value(RunJson::of(run)).ok()).collect();
    json!({ "version": JSON_VERSION, "unit": "ns", "runs": runs, "disturbances": disturbances })
}
