// SPDX-License-Identifier: Apache-2.0
//! Disturbances of known period and length are planted: does the analysis find them, with the right period
//! and length?

use anyhow::Context;
use fide_jitter_analysis::families::{Families, Family, FamilyOptions, Shape, find_families};
use fide_jitter_analysis::{CulpritKind, Interference, MISSING, RunInfo, Samples, Schedule, Stamp};
use fide_latency_probe::{port::Method, session::Measurement};
use fide_testbed::Testbed;
use serde::{Deserialize, Serialize};

use crate::plant::{PLANTED_BY, Plant};
use crate::run::{Cores, How, measure};

/// Most that a recovered period may be off, as a share.
pub const PERIOD_OFF: f64 = 0.001;
/// Most that a recovered duration may be off, as a share.
pub const DURATION_OFF: f64 = 0.2;
/// Approximate number of packets that a run has to delay by more than [`SEEN_NS`]; its length follows from
/// it.
const HITS: u64 = 45;
/// Shorter delays do not stand out from the noise of a shared machine, ns.
const SEEN_NS: u64 = 30_000;
/// Least number of windows in a run.
const WINDOWS_MIN: u64 = 24;

/// Name of the log's condition that says what was planted.
pub const KEY: &str = "planted";

/// Periods and durations that are planted, ns. The periods are as far as possible from any ratio of small
/// whole numbers to the sending intervals (digits of the golden ratio): 37 times 3.618 ms are 134 times 999
/// us, and no run could distinguish the two.
pub const PLANTED: [(u64, u64); 12] = [
    (3_618_034, 50_000),
    (3_618_034, 150_000),
    (7_381_966, 100_000),
    (12_618_034, 200_000),
    (12_618_034, 600_000),
    (25_381_966, 300_000),
    (50_618_034, 500_000),
    (50_618_034, 1_000_000),
    (100_381_966, 800_000),
    (200_618_034, 1_500_000),
    (500_618_034, 1_500_000),
    (2_000_381_966, 2_000_000),
];
/// Sending intervals, us.
pub const SENDING_US: [u64; 4] = [999, 1000, 1001, 200];

/// One planted disturbance.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// The sender's core, or the answering one's.
    pub at_sender: bool,
    pub schedule: Schedule,
    pub sending_ns: u64,
    pub period_ns: u64,
    pub duration_ns: u64,
}

impl Case {
    /// All of them: every planted one at every sending interval, every second at the sender. Of these some
    /// are on a relative schedule: those of which theory says that the run can tell. A relative schedule
    /// locks to a disturbance, so that one that is short against the sending interval is hit at each
    /// so-many-th window, always at the same place, from which neither T nor D can be determined (see
    /// [`fide_jitter_analysis::families`]).
    #[must_use]
    pub fn all() -> Vec<Self> {
        let cases = PLANTED.iter().enumerate().flat_map(|(at, (period_ns, duration_ns))| {
            SENDING_US.iter().enumerate().map(move |(interval, sending_us)| {
                let at_sender = (at + interval) % 2 == 1;
                let relative = at_sender && *sending_us == 200 && [4, 8, 10].contains(&at);
                Self {
                    at_sender,
                    schedule: if relative { Schedule::Relative } else { Schedule::Absolute },
                    sending_ns: sending_us * 1000,
                    period_ns: *period_ns,
                    duration_ns: *duration_ns,
                }
            })
        });
        cases.collect()
    }

    /// Where its delays enter.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        if self.at_sender { Stamp::Ts1 } else { Stamp::Ts2 }
    }

    /// How many packets hit it often enough.
    #[must_use]
    pub fn packets(&self) -> u64 {
        let hits_per_window = (self.duration_ns - SEEN_NS) as f64 / self.sending_ns as f64;
        let windows = (HITS as f64 / hits_per_window.min(1.0)).max(WINDOWS_MIN as f64);
        (windows * self.period_ns as f64 / self.sending_ns as f64) as u64
    }
}

/// What became of one.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub case: Case,
    /// How it shows, by when it took the core and when packets were due: the analysis knows neither the one
    /// nor the other.
    pub shape: Option<Shape>,
    /// All that the analysis tells.
    pub found: Families,
}

impl Outcome {
    /// The family that is the planted one, if there is.
    #[must_use]
    pub fn recovered(&self) -> Option<&Family> {
        let within = |found: f64, planted: u64, share: f64| (found / planted as f64 - 1.0).abs() <= share;
        self.found.families.iter().find(|family| {
            within(family.period_ns, self.case.period_ns, PERIOD_OFF)
                && within(family.duration_ns, self.case.duration_ns, DURATION_OFF)
                && family.stamp == self.case.stamp()
                && self.shape.is_none_or(|shape| family.shape == shape)
        })
    }
}

/// Plants noise and measures it. The log says what was planted, in its conditions under [`KEY`].
///
/// # Errors
/// What keeps it from being planted or measured.
pub fn record(bed: &Testbed, cores: Cores, case: Case) -> anyhow::Result<Measurement> {
    let how = How {
        method: Method::Udp,
        schedule: case.schedule,
        period_ns: case.sending_ns,
        packets: case.packets(),
        record: true,
    };
    let plant = Plant::thread(if case.at_sender { cores.a } else { cores.b }, case.period_ns, case.duration_ns)?;
    let mut measured = measure(bed, cores, how)?;
    let windows = plant.stop().len();
    anyhow::ensure!(windows > 0, "nothing was planted: the run was shorter than one period");
    measured.info.isolation.insert(KEY.to_owned(), serde_json::to_string(&case)?);
    Ok(measured)
}

/// Analyses a run in which something was planted.
///
/// # Errors
/// If the log does not tell what.
pub fn judge(info: &RunInfo, samples: &Samples, events: &[Interference], names: &[String]) -> anyhow::Result<Outcome> {
    let text =
        info.isolation.get(KEY).context("nothing was planted in this run: it is not one that a selftest kept")?;
    let case: Case = serde_json::from_str(text).context("what was planted in this run")?;
    let planted = |event: &&Interference| {
        event.kind == CulpritKind::Thread && names.get(event.name as usize).is_some_and(|name| name == PLANTED_BY)
    };
    let ends: Vec<i64> = events.iter().filter(planted).map(|event| event.end_ns).collect();
    anyhow::ensure!(!ends.is_empty(), "what was planted was not recorded: {:?}", info.isolation);
    Ok(Outcome {
        case,
        shape: shape(&case, info, samples, &ends),
        found: find_families(info, samples, &FamilyOptions::default()),
    })
}

/// How the delays of the first packets in windows with these ends are spread.
fn shape(case: &Case, info: &RunInfo, samples: &Samples, ends: &[i64]) -> Option<Shape> {
    let due = due(case, info, samples);
    let first = |end: &i64| {
        let from = due.partition_point(|due| *due <= end.saturating_sub_unsigned(case.duration_ns));
        due.get(from).map(|due| end.saturating_sub(*due)).filter(|delay| *delay > SEEN_NS.cast_signed())
    };
    let mut delays: Vec<f64> = ends.iter().filter_map(first).map(|delay| delay as f64).collect();
    delays.sort_unstable_by(f64::total_cmp);
    Shape::of(&delays)
}

/// When each packet would have had the stamp in question, had nothing been planted: as long after what it follows as
/// packets typically are.
fn due(case: &Case, info: &RunInfo, samples: &Samples) -> Vec<i64> {
    let (ts1, ts2) = (samples.stamps(Stamp::Ts1), samples.stamps(Stamp::Ts2));
    let from: Vec<i64> = match (case.at_sender, case.schedule) {
        (false, _) => ts1.to_vec(),
        (true, Schedule::Absolute) => samples.ids().iter().map(|id| info.due_ns(*id).unwrap_or(0)).collect(),
        (true, Schedule::Relative) => ts1.first().into_iter().chain(ts1).take(ts1.len()).copied().collect(),
    };
    let to = if case.at_sender { ts1 } else { ts2 };
    let both = from.iter().zip(to).filter(|(from, to)| **from != MISSING && **to != MISSING);
    let mut after: Vec<i64> = both.map(|(from, to)| to.saturating_sub(*from)).collect();
    let middle = after.len() / 2;
    let typical = if after.is_empty() { 0 } else { *after.select_nth_unstable(middle).1 };
    from.iter().map(|from| from.saturating_add(typical)).collect()
}
