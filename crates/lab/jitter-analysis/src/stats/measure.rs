// SPDX-License-Identifier: Apache-2.0
//! Measures that are computed from the four time stamps.

use crate::baseline::Baseline;
use crate::clocks::Aligned;
use crate::sample::{JUMP_NS, MISSING, RunInfo, Samples, Schedule, Stamp};
use serde::{Deserialize, Serialize};

/// A time per packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Difference of a stamp from the same stamp of the previous packet (jitter report §2.1, figure 1).
    Successive(Stamp),
    /// How much later than due a packet was sent: `ts1 - due`, or `ts1 - (ts1 of the previous packet +
    /// period)` in a relative schedule.
    SendLateness,
    /// Ping: `ts2 - ts1`.
    AToB,
    /// Time within B: `ts3 - ts2`.
    AtB,
    /// Pong: `ts4 - ts3`.
    BToA,
    /// `ts4 - ts1`.
    RoundTrip,
    /// Round trip without the time within B: `(ts4 - ts1) - (ts3 - ts2)`, which does not depend on clock
    /// offsets.
    Network,
}

impl Measure {
    /// All.
    pub const ALL: [Measure; 10] = [
        Measure::Successive(Stamp::Ts1),
        Measure::Successive(Stamp::Ts2),
        Measure::Successive(Stamp::Ts3),
        Measure::Successive(Stamp::Ts4),
        Measure::SendLateness,
        Measure::AToB,
        Measure::AtB,
        Measure::BToA,
        Measure::RoundTrip,
        Measure::Network,
    ];

    /// What its values are relative to in a run.
    pub fn reference(self, info: &RunInfo) -> Reference {
        match self {
            Measure::AToB | Measure::BToA if !info.same_clock => Reference::Baseline,
            _ => Reference::Absolute,
        }
    }
}

/// What the values of a measure are relative to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reference {
    /// The values are absolute: they are what the measure is called.
    Absolute,
    /// The hosts' clocks differ and drift, so the values are relative to the run's own lower baseline, which
    /// is followed over about 5000 packets after steps and slews of the clocks were taken out
    /// ([`crate::clocks`]). The shortest time that a packet takes, and slow changes of it, cannot be
    /// determined; how much longer some packets take can be.
    Baseline,
}

/// The values of a measure, in the order of the packets, ns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Series {
    /// Row of each value in the samples.
    pub rows: Vec<u32>,
    /// Value, ns.
    pub values: Vec<i64>,
    /// Packets that had to be left out because a clock jumped, went back, or belongs to another process. Lost
    /// packets do not count.
    pub impossible: u64,
}

/// Computes a measure. At most 2^32 packets are examined.
pub fn series(info: &RunInfo, samples: &Samples, measure: Measure) -> Series {
    let mut out = Series::default();
    let rows = samples.len().min(u32::MAX as usize);
    out.rows.reserve_exact(rows);
    out.values.reserve_exact(rows);
    match measure {
        Measure::Successive(stamp) => successive(samples, stamp, 0, &mut out),
        Measure::SendLateness if info.schedule == Schedule::Relative => {
            successive(samples, Stamp::Ts1, info.period_ns, &mut out);
        }
        Measure::SendLateness => {
            let (ids, ts1) = (samples.ids(), samples.stamps(Stamp::Ts1));
            for row in 0..rows {
                let due = info.due_ns(ids[row]);
                // A packet may be sent slightly early because of the resolution of a timer.
                put(&mut out, row, ts1[row] != MISSING, due.and_then(|due| ts1[row].checked_sub(due)), -JUMP_NS);
            }
        }
        _ => latency(info, Stamp::ALL.map(|stamp| samples.stamps(stamp)), measure, &mut out),
    }
    above_baseline(info, measure, &mut out);
    out
}

/// Like [`series`], but if two clocks are compared, it uses the stamps from which the clocks' movements were
/// taken out.
pub(super) fn aligned_series(info: &RunInfo, samples: &Samples, aligned: &Aligned<'_>, measure: Measure) -> Series {
    if measure.reference(info) == Reference::Absolute {
        return series(info, samples, measure);
    }
    let mut out = Series::default();
    latency(info, Stamp::ALL.map(|stamp| aligned.stamps(stamp)), measure, &mut out);
    above_baseline(info, measure, &mut out);
    out
}

fn above_baseline(info: &RunInfo, measure: Measure, out: &mut Series) {
    if measure.reference(info) == Reference::Baseline {
        let base = Baseline::of(&out.values);
        for (i, v) in out.values.iter_mut().enumerate() {
            *v = v.saturating_sub(base.at(i));
        }
    }
}

fn put(out: &mut Series, row: usize, there: bool, value: Option<i64>, lowest: i64) {
    match value.filter(|v| *v >= lowest) {
        _ if !there => {}
        Some(v) => {
            out.rows.push(row as u32);
            out.values.push(v);
        }
        None => out.impossible += 1,
    }
}

/// Differences between neighbours, minus `less` for each.
fn successive(samples: &Samples, stamp: Stamp, less: u64, out: &mut Series) {
    let (ids, ts) = (samples.ids(), samples.stamps(stamp));
    let mut restarts = samples.restarts().iter().map(|r| r.row).peekable();
    for row in 1..ids.len().min(u32::MAX as usize) {
        while restarts.next_if(|&r| r < row as u64).is_some() {}
        // A new pong may have another clock.
        let same = stamp.host() == crate::sample::Host::A || restarts.peek() != Some(&(row as u64));
        let there = ts[row] != MISSING && ts[row - 1] != MISSING && ids[row].checked_sub(ids[row - 1]) == Some(1);
        let difference = ts[row].checked_sub(ts[row - 1]).filter(|d| same && *d >= 0 && *d <= JUMP_NS);
        put(out, row, there, difference.and_then(|d| d.checked_sub_unsigned(less)), i64::MIN);
    }
}

fn latency(info: &RunInfo, [ts1, ts2, ts3, ts4]: [&[i64]; 4], measure: Measure, out: &mut Series) {
    // Two clocks may differ by anything.
    let lowest = if measure.reference(info) == Reference::Absolute { 0 } else { i64::MIN };
    let span = |from: i64, to: i64| to.checked_sub(from);
    let stamps = ts1.iter().zip(ts2).zip(ts3).zip(ts4).take(u32::MAX as usize);
    for (row, (((&a, &b), &c), &d)) in stamps.enumerate() {
        let known = |stamps: &[i64]| !stamps.contains(&MISSING);
        let (there, value) = match measure {
            Measure::AToB => (known(&[a, b]), span(a, b)),
            Measure::AtB => (known(&[b, c]), span(b, c)),
            Measure::BToA => (known(&[c, d]), span(c, d)),
            Measure::RoundTrip => (known(&[a, d]), span(a, d)),
            _ => {
                let at_b = span(b, c).filter(|at_b| *at_b >= 0);
                (known(&[a, b, c, d]), span(a, d).zip(at_b).and_then(|(all, at_b)| all.checked_sub(at_b)))
            }
        };
        put(out, row, there, value, lowest);
    }
}
