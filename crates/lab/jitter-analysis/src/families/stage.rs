// SPDX-License-Identifier: Apache-2.0
//! What one of the four stamps adds to a packet's delay: when the packet was due there, and how much later it
//! had the stamp.

use crate::baseline::Baseline;
use crate::clocks::Aligned;
use crate::sample::{JUMP_NS, MISSING, RunInfo, Schedule, Stamp};

/// A clock that goes back by more than this has jumped; less is noise.
const BACK_NS: i64 = 1_000_000;
/// Largest time that is counted, ns: 36 years.
const TIME_MAX_NS: i64 = 1 << 60;
/// Number of values examined to estimate the noise.
const PROBE: usize = 200_000;
/// Lowest outlier threshold, ns.
const THRESHOLD_MIN_NS: f64 = 4000.0;
/// Many outliers raise the threshold to this at most, ns.
const THRESHOLD_CAP_NS: f64 = 25_000.0;
/// Minimum outlier threshold, in sigmas of the noise.
const SIGMAS: f64 = 8.0;

/// A set of row numbers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rows(Vec<u64>);

impl Rows {
    pub(crate) fn new(len: usize) -> Self {
        Rows(vec![0; len.div_ceil(64)])
    }

    pub(crate) fn set(&mut self, i: usize) {
        self.0[i / 64] |= 1 << (i % 64);
    }

    pub(crate) fn has(&self, i: usize) -> bool {
        self.0[i / 64] >> (i % 64) & 1 == 1
    }
}

/// The packets as seen by one stamp, in their order. Times are in ns.
#[derive(Debug, Clone)]
pub(crate) struct Stage {
    /// Sending interval.
    pub(crate) period: f64,
    /// Row in the samples.
    pub(crate) rows: Vec<u32>,
    /// When the packet would have had this stamp if nothing had delayed it here, counted from the first
    /// packet; never falls.
    pub(crate) due: Vec<i64>,
    /// How much later than due the packet had the stamp.
    pub(crate) delay: Vec<i32>,
    /// Packets that are no evidence (any more): those delayed before this stamp, and those already explained.
    pub(crate) masked: Rows,
    /// A delay above this is an outlier.
    pub(crate) threshold: i32,
}

impl Stage {
    /// Examines one stamp. `late` holds the rows that were late at an earlier stamp; those that are late here
    /// are added.
    pub(crate) fn of(info: &RunInfo, samples: &Aligned<'_>, stamp: Stamp, late: &mut Rows) -> Stage {
        let (rows, mut due) = raw(info, samples, stamp);
        let base = Baseline::of(&due);
        let ts = samples.stamps(stamp);
        let mut delay = Vec::with_capacity(rows.len());
        let (mut shift, mut last, mut last_id) = (None::<i64>, 0, 0);
        for (i, (slot, &row)) in due.iter_mut().zip(&rows).enumerate() {
            let d = slot.saturating_sub(base.at(i));
            delay.push(d.clamp(i32::MIN.into(), i32::MAX.into()) as i32);
            let id = samples.ids()[row as usize];
            let t = ts[row as usize].saturating_sub(d);
            // Counted from the first packet, so that nothing can overflow.
            let by = *shift.get_or_insert(t.saturating_neg());
            let expected = i64::try_from(u128::from(id.saturating_sub(last_id)) * u128::from(info.period_ns));
            let expected = expected.unwrap_or(i64::MAX);
            let mut t = t.saturating_add(by);
            let gained = t.saturating_sub(last);
            if i > 0 && (gained < -BACK_NS || gained > expected.saturating_add(JUMP_NS)) {
                // The clock jumped: continue as if it had not. The phase is lost there.
                let next = last.saturating_add(expected.min(JUMP_NS));
                shift = Some(by.saturating_add(next.saturating_sub(t)));
                t = next;
            }
            t = t.clamp(last, TIME_MAX_NS);
            (last, last_id) = (t, id);
            *slot = t;
        }
        let (threshold, usual) = threshold(&delay);
        // Moves the due times from the baseline up to the usual delay: a window that begins at that time just
        // misses the packet.
        due.iter_mut().for_each(|t| *t = t.saturating_add(usual.into()));
        delay.iter_mut().for_each(|d| *d = d.saturating_sub(usual));
        let threshold = threshold - usual;
        let mut masked = Rows::new(rows.len());
        for (i, &row) in rows.iter().enumerate() {
            let burst = i > 0 && ((due[i] - due[i - 1]) as f64) < info.period_ns as f64 / 2.0;
            // In a burst, packets wait for each other; this is the effect of what made the burst.
            if late.has(row as usize) || (burst && stamp != Stamp::Ts1) {
                masked.set(i);
            }
        }
        for (&row, &d) in rows.iter().zip(&delay) {
            if d > threshold {
                late.set(row as usize);
            }
        }
        Stage { period: info.period_ns as f64, rows, due, delay, masked, threshold }
    }

    pub(crate) fn len(&self) -> usize {
        self.due.len()
    }

    /// First to last due time, ns; at least 1.
    pub(crate) fn span(&self) -> f64 {
        match (self.due.first(), self.due.last()) {
            (Some(a), Some(b)) => (b - a).max(1) as f64,
            _ => 1.0,
        }
    }
}

/// Rows that have the stamp, and the time from what it follows to the stamp.
fn raw(info: &RunInfo, samples: &Aligned<'_>, stamp: Stamp) -> (Vec<u32>, Vec<i64>) {
    let (ids, ts) = (samples.ids(), samples.stamps(stamp));
    let n = ids.len().min(u32::MAX as usize);
    let (mut rows, mut values) = (Vec::with_capacity(n), Vec::with_capacity(n));
    let mut put = |row: usize, value: i64| {
        rows.push(row as u32);
        values.push(value);
    };
    let mut before: Option<(u64, i64)> = None;
    for (row, (&id, &t)) in ids.iter().zip(ts).enumerate().take(n) {
        if t == MISSING {
            continue;
        }
        if stamp == Stamp::Ts1 {
            let due = match (info.schedule, before) {
                (Schedule::Absolute, _) => info.due_ns(id),
                (Schedule::Relative, Some((last, then))) => {
                    let after = u128::from(id.saturating_sub(last)) * u128::from(info.period_ns);
                    Some(then.saturating_add(i64::try_from(after).unwrap_or(i64::MAX)))
                }
                (Schedule::Relative, None) => None,
            };
            before = Some((id, t));
            if let Some(due) = due {
                put(row, t.saturating_sub(due));
            }
            continue;
        }
        // The stamp follows the previous stamp, or the last one that was taken.
        let from = Stamp::ALL[..stamp.index()].iter().rev().map(|&s| samples.stamps(s)[row]).find(|&t| t != MISSING);
        if let Some(from) = from {
            put(row, t.saturating_sub(from));
        }
    }
    (rows, values)
}

/// The threshold, and the median of the delays below it. The threshold is [`SIGMAS`] times the noise,
/// estimated from the lower part of the delays, which no disturbance reaches; or, if that is more, the delay
/// that 2% of all exceed, up to [`THRESHOLD_CAP_NS`].
fn threshold(delay: &[i32]) -> (i32, i32) {
    let step = delay.len().div_ceil(PROBE).max(1);
    let mut probe: Vec<i32> = delay.iter().step_by(step).copied().collect();
    if probe.is_empty() {
        return (THRESHOLD_MIN_NS as i32, 0);
    }
    probe.sort_unstable();
    let at = |q: f64| f64::from(probe[((probe.len() - 1) as f64 * q) as usize]);
    // In a normal distribution, these quantiles are 0.803 sigma apart.
    let sigma = (at(0.2) - at(0.05)) / 0.803;
    let t = (SIGMAS * sigma).max(at(0.98).min(THRESHOLD_CAP_NS)).max(THRESHOLD_MIN_NS);
    let t = t.min(f64::from(i32::MAX)) as i32;
    (t, probe[probe.partition_point(|d| *d <= t) / 2].clamp(0, t))
}
