// SPDX-License-Identifier: Apache-2.0
//! The input of a report.

use fide_jitter_analysis::{RunInfo, RunStats, Stamp, families::Family};
use serde::{Deserialize, Serialize};

/// [`CulpritTotal::kind`] of packets whose lateness has no known cause.
pub const UNKNOWN: &str = "unknown";

/// The content of a page.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Report<'a> {
    /// The runs, shown side by side in this order.
    pub runs: &'a [Run],
    /// Disturbances that explain several of the runs: `None` if nobody looked for them, empty if none was
    /// found.
    pub disturbances: Option<&'a [Disturbance]>,
}

impl<'a> From<&'a [Run]> for Report<'a> {
    fn from(runs: &'a [Run]) -> Self {
        Report { runs, disturbances: None }
    }
}

impl<'a> From<&'a Vec<Run>> for Report<'a> {
    fn from(runs: &'a Vec<Run>) -> Self {
        runs.as_slice().into()
    }
}

impl<'a, const N: usize> From<&'a [Run; N]> for Report<'a> {
    fn from(runs: &'a [Run; N]) -> Self {
        runs.as_slice().into()
    }
}

/// A disturbance that explains how the pattern changes from one sending interval to another (jitter report §3).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Disturbance {
    /// What is disturbed: a stamp, a host, a core.
    pub place: String,
    /// Its period, ns.
    pub period_ns: f64,
    /// How long it takes, ns.
    pub duration_ns: f64,
    /// Whether it may take longer: no packet of any run met it earlier.
    pub duration_at_least: bool,
    /// Confidence that the period is this one, 0 to 1.
    pub confidence: f64,
    /// All this in a sentence.
    pub sentence: String,
    /// Other periods that explain all runs equally well, ns, best first.
    pub alternatives_ns: Vec<f64>,
    /// How it shows in each run, in their order.
    pub shows: Vec<Shows>,
}

/// How a disturbance shows in a run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Shows {
    /// `ts2-arrow`, ...; `None` if it does not show.
    pub kind: Option<String>,
    /// How it should show in theory; `None` if it need not show.
    pub expected: Option<String>,
    /// Packets that it delayed.
    pub packets: u64,
}

/// One analysed run.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Its name, which need not be unique.
    pub name: String,
    /// The conditions under which it was made.
    pub info: RunInfo,
    /// Its numbers.
    pub stats: RunStats,
    /// Periodic disturbances: `None` if nobody looked for them, empty if there are none.
    pub families: Option<Vec<FamilyText>>,
    /// The culprits of late packets, [`UNKNOWN`] included: `None` if nothing was recorded.
    pub culprits: Option<Vec<CulpritTotal>>,
    /// The latest packets, worst first: `None` if nobody looked for them.
    pub late: Option<Vec<LatePacket>>,
}

impl Run {
    /// A run of which only the statistics are known.
    pub fn new(name: impl Into<String>, info: RunInfo, stats: RunStats) -> Self {
        Run { name: name.into(), info, stats, families: None, culprits: None, late: None }
    }
}

/// A family of periodic outliers and the disturbance behind it (jitter report §3).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FamilyText {
    /// `ts1-offset`, `ts2-arrow`, ...
    pub kind: String,
    /// What is disturbed: a stamp, a host, a core.
    pub place: String,
    /// Period of the disturbance, ns.
    pub period_ns: f64,
    /// Relative error of the period.
    pub period_error: f64,
    /// How long the disturbance takes, ns.
    pub duration_ns: f64,
    /// Whether it may take longer: no packet met it earlier.
    pub duration_at_least: bool,
    /// Packets that it delayed.
    pub hits: u64,
    /// Confidence that the family is real, 0 to 1.
    pub confidence: f64,
    /// All this in a sentence.
    pub sentence: String,
    /// Other periods that explain the same packets equally well, ns, best first.
    pub alternatives_ns: Vec<f64>,
}

/// Where a packet became late, for people.
#[must_use]
pub fn stamp_place(stamp: Stamp) -> &'static str {
    match stamp {
        Stamp::Ts1 => "ts1, sending at A",
        Stamp::Ts2 => "ts2, on the way to B",
        Stamp::Ts3 => "ts3, within B",
        Stamp::Ts4 => "ts4, on the way back",
    }
}

impl From<&Family> for FamilyText {
    fn from(of: &Family) -> Self {
        FamilyText {
            kind: of.kind.clone(),
            place: stamp_place(of.stamp).to_owned(),
            period_ns: of.period_ns,
            period_error: of.period_error_ns / of.period_ns,
            duration_ns: of.duration_ns,
            duration_at_least: !of.duration_known,
            hits: of.packets,
            confidence: of.confidence,
            sentence: of.text.clone(),
            alternatives_ns: of.alternatives.iter().map(|other| other.period_ns).collect(),
        }
    }
}

/// The total effect of one culprit.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CulpritTotal {
    /// `interrupt`, `softirq`, `thread`, `steal` or [`UNKNOWN`].
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Late packets attributed to it.
    pub packets: u64,
    /// Its share of all late packets, 0 to 1.
    pub share: f64,
    /// Lateness of the latest of them, ns.
    pub worst_ns: i64,
}

/// A late packet.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LatePacket {
    /// Its number.
    pub id: u64,
    /// When it was due, ns after the run's start.
    pub at_ns: Option<i64>,
    /// Where it was delayed: a stamp.
    pub place: String,
    /// By how much, ns.
    pub late_ns: i64,
    /// What ran meanwhile, the main culprit first; empty if unknown.
    pub blame: Vec<Blame>,
}

/// Something that ran while a packet was late.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Blame {
    /// As in [`CulpritTotal::kind`].
    pub kind: String,
    /// Its name.
    pub name: String,
    /// The core that it ran on, if known.
    pub cpu: Option<u32>,
    /// How long it ran within the packet's delay, ns.
    pub ns: i64,
}
