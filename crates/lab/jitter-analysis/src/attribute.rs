// SPDX-License-Identifier: Apache-2.0
//! What made packets late.
//!
//! The way of a packet has four stages, each ending in a stamp: sent (`ts1`, after it was due), received at B
//! (`ts2`), about to be answered (`ts3`), back (`ts4`). A stage is late by the time that it took beyond its
//! median; it is an outlier if this is more than [`OUTLIER_MAD`] median deviations and more than
//! [`LEAST_NS`]. During that time something else ran on a core that the stage needs. The records of that core
//! are compared with the late time: where they nest, the innermost counts, and the culprit is whatever had
//! most of the time. If less than half of the time is explained, the culprit is [`Culprit::Unknown`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::event::{CulpritKind, Interference};
use crate::sample::{Host, MISSING, RunInfo, Samples, Schedule, Stamp};

/// A stage is late beyond its median by more than this, ns.
pub const LEAST_NS: i64 = 20_000;
/// It must also be late by more than this many median absolute deviations.
pub const OUTLIER_MAD: i64 = 10;
/// How many late packets are kept one by one, the latest ones.
pub const KEPT_MAX: usize = 20_000;
/// Maximum number of records examined for one packet; further records of a longer list are not blamed.
const RECORDS_MAX: usize = 4096;

/// What a late packet is attributed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Culprit {
    /// Something that was recorded.
    Known {
        /// Its kind.
        kind: CulpritKind,
        /// Index of its name in the log's names.
        name: u32,
    },
    /// What was recorded does not explain half of the time.
    Unknown,
}

/// The time that one culprit had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blame {
    /// Who.
    pub kind: CulpritKind,
    /// Index of its name.
    pub name: u32,
    /// Where.
    pub cpu: u32,
    /// Its part of the lateness, ns.
    pub ns: i64,
}

/// One late packet, in the stage in which it became late.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Late {
    /// Row in the samples.
    pub row: usize,
    /// Its id.
    pub id: u64,
    /// The stamp that ends the stage.
    pub stamp: Stamp,
    /// When the packet began to wait, on the clock of the stamp's host, ns.
    pub from_ns: i64,
    /// When it stopped waiting, on the same clock, ns.
    pub to_ns: i64,
    /// What it is attributed to.
    pub culprit: Culprit,
    /// All culprits that had a part, the largest part first.
    pub blame: Vec<Blame>,
}

impl Late {
    /// How late it is, ns.
    pub fn late_ns(&self) -> i64 {
        self.to_ns - self.from_ns
    }
}

/// All lateness that is attributed to one culprit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Total {
    /// Who.
    pub culprit: Culprit,
    /// Packets.
    pub packets: u64,
    /// Lateness of the latest of them, ns.
    pub worst_ns: i64,
    /// Their total lateness, ns.
    pub sum_ns: i64,
}

/// The culprits of the late packets of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attribution {
    /// The time beyond its median from which each stage counts as late, ns, by [`Stamp::index`].
    pub thresholds_ns: [i64; 4],
    /// Number of late stages of packets.
    pub late: u64,
    /// The latest [`KEPT_MAX`], the latest first.
    pub packets: Vec<Late>,
    /// By number of packets, most first; the unknown culprit is included.
    pub totals: Vec<Total>,
}

/// Records of one core in the order of their starts, and for each the latest end of all up to it.
struct Core<'a> {
    events: Vec<&'a Interference>,
    reach: Vec<i64>,
}

/// Attributes late packets to what ran at the time.
pub fn attribute(info: &RunInfo, samples: &Samples, events: &[Interference]) -> Attribution {
    let mut cores: BTreeMap<(Host, u32), Core<'_>> = BTreeMap::new();
    for event in events {
        let core =
            cores.entry((event.host, event.cpu)).or_insert_with(|| Core { events: Vec::new(), reach: Vec::new() });
        core.events.push(event);
    }
    for core in cores.values_mut() {
        core.events.sort_unstable_by_key(|event| (event.start_ns, event.end_ns));
        let mut reach = i64::MIN;
        core.reach = core
            .events
            .iter()
            .map(|event| {
                reach = reach.max(event.end_ns);
                reach
            })
            .collect();
    }
    let mut found = Attribution::default();
    let mut totals: BTreeMap<Culprit, Total> = BTreeMap::new();
    let mut latest: Vec<Late> = Vec::new();
    for stamp in Stamp::ALL {
        let times = stage(info, samples, stamp);
        let Some((median, threshold)) = normal(&times) else { continue };
        found.thresholds_ns[stamp.index()] = threshold;
        for (row, &time) in times.iter().enumerate().filter(|(_, time)| **time != MISSING) {
            let late_ns = time.saturating_sub(median);
            if late_ns <= threshold {
                continue;
            }
            let to_ns = samples.stamps(stamp)[row];
            let (culprit, blame) = blame(info, &cores, samples, row, stamp, late_ns);
            let total = totals.entry(culprit).or_insert(Total { culprit, packets: 0, worst_ns: 0, sum_ns: 0 });
            total.packets += 1;
            total.worst_ns = total.worst_ns.max(late_ns);
            total.sum_ns = total.sum_ns.saturating_add(late_ns);
            found.late += 1;
            latest.push(Late {
                row,
                id: samples.ids()[row],
                stamp,
                from_ns: to_ns.saturating_sub(late_ns),
                to_ns,
                culprit,
                blame,
            });
            if latest.len() == 2 * KEPT_MAX {
                keep_latest(&mut latest);
            }
        }
    }
    keep_latest(&mut latest);
    found.packets = latest;
    found.totals = totals.into_values().collect();
    found.totals.sort_by_key(|total| (std::cmp::Reverse(total.packets), total.culprit));
    found
}

fn keep_latest(late: &mut Vec<Late>) {
    late.sort_by_key(|late| (std::cmp::Reverse(late.late_ns()), late.row, late.stamp));
    late.truncate(KEPT_MAX);
}

/// The time that each packet took for the stage that ends in `stamp`, or [`MISSING`].
fn stage(info: &RunInfo, samples: &Samples, stamp: Stamp) -> Vec<i64> {
    let to = samples.stamps(stamp);
    let from = |row: usize| match stamp {
        Stamp::Ts1 if info.schedule == Schedule::Absolute => info.due_ns(samples.ids()[row]),
        Stamp::Ts1 => row.checked_sub(1).and_then(|before| {
            let adjacent = samples.ids()[before].checked_add(1) == Some(samples.ids()[row]);
            (adjacent && to[before] != MISSING).then(|| to[before].checked_add(i64::try_from(info.period_ns).ok()?))?
        }),
        _ => Some(samples.stamps(Stamp::ALL[stamp.index() - 1])[row]),
    };
    let time = |row: usize| {
        let from_ns = from(row).filter(|from| *from != MISSING && to[row] != MISSING)?;
        to[row].checked_sub(from_ns)
    };
    (0..to.len()).map(|row| time(row).unwrap_or(MISSING)).collect()
}

/// The median, and how far beyond it a time counts as late; `None` for fewer than ten times.
fn normal(times: &[i64]) -> Option<(i64, i64)> {
    let count = times.iter().filter(|time| **time != MISSING).count();
    if count < 10 {
        return None;
    }
    let mut values: Vec<i64> = Vec::with_capacity(count);
    values.extend(times.iter().filter(|time| **time != MISSING));
    let middle = count / 2;
    let median = *values.select_nth_unstable(middle).1;
    for value in &mut values {
        *value = value.saturating_sub(median).saturating_abs();
    }
    let deviation = *values.select_nth_unstable(middle).1;
    Some((median, deviation.saturating_mul(OUTLIER_MAD).max(LEAST_NS)))
}

/// The culprits that had the time that the stage lost. A packet on its way needs the core that sends and the
/// one that receives; the one that explains more is taken.
fn blame(
    info: &RunInfo,
    cores: &BTreeMap<(Host, u32), Core<'_>>,
    samples: &Samples,
    row: usize,
    stamp: Stamp,
    late_ns: i64,
) -> (Culprit, Vec<Blame>) {
    let at = |stamp: Stamp| samples.stamps(stamp)[row];
    let mut best: Vec<Blame> = Vec::new();
    let explained = |blame: &[Blame]| blame.iter().map(|part| part.ns).fold(0, i64::saturating_add);
    let mut look = |of: Stamp, from_ns: i64, to_ns: i64| {
        let Some(cpu) = info.cores[of.index()] else { return };
        let Some(core) = cores.get(&(of.host(), cpu)) else { return };
        let found = overlaps(core, from_ns, to_ns);
        if explained(&found) > explained(&best) {
            best = found;
        }
    };
    let to_ns = at(stamp);
    look(stamp, to_ns.saturating_sub(late_ns), to_ns);
    if matches!(stamp, Stamp::Ts2 | Stamp::Ts4) {
        // The packet may have been sent, but not yet be on its way.
        let sent = Stamp::ALL[stamp.index() - 1];
        look(sent, at(sent), at(sent).saturating_add(late_ns));
    }
    let culprit = match best.first() {
        Some(most) if explained(&best).saturating_mul(2) >= late_ns => {
            Culprit::Known { kind: most.kind, name: most.name }
        }
        _ => Culprit::Unknown,
    };
    (culprit, best)
}

/// The time of each culprit between two moments, most first; where records nest, the time belongs to the
/// innermost.
fn overlaps(core: &Core<'_>, from_ns: i64, to_ns: i64) -> Vec<Blame> {
    let end = core.events.partition_point(|event| event.start_ns < to_ns);
    // No earlier record reaches into this time.
    let begin = core.reach[..end].partition_point(|reach| *reach <= from_ns).max(end.saturating_sub(RECORDS_MAX));
    let inside: Vec<&&Interference> = core.events[begin..end].iter().filter(|event| event.end_ns > from_ns).collect();
    let mut edges: Vec<i64> =
        inside.iter().flat_map(|event| [event.start_ns.max(from_ns), event.end_ns.min(to_ns)]).collect();
    edges.sort_unstable();
    edges.dedup();
    let mut shares: BTreeMap<(CulpritKind, u32, u32), i64> = BTreeMap::new();
    for span in edges.windows(2) {
        // The record that began last is the innermost.
        let innermost = inside.iter().rev().find(|event| event.start_ns <= span[0] && event.end_ns >= span[1]);
        if let Some(event) = innermost {
            let share = shares.entry((event.kind, event.name, event.cpu)).or_default();
            *share = share.saturating_add(span[1].saturating_sub(span[0]));
        }
    }
    let mut blame: Vec<Blame> =
        shares.into_iter().map(|((kind, name, cpu), ns)| Blame { kind, name, cpu, ns }).collect();
    blame.sort_by_key(|part| std::cmp::Reverse(part.ns));
    blame
}

#[cfg(test)]
mod tests;
