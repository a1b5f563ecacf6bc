// SPDX-License-Identifier: Apache-2.0
//! The evidence of all packets for a disturbance: of those that it should have delayed and did, and of those
//! that it did not.
//!
//! Consider a packet due `r` before a window's end, which is within the window for every duration D above
//! `r`. If it was delayed by `r`, up to the noise, this is more likely with the disturbance than without, by
//! `ln(K(delay - r) / f(delay))`, where `K` is the density of the noise and `f` that of all delays near
//! there. If it was delayed less, D is below `r` or the window did not hit: `ln(1 - h)`, where `h` is the
//! share of windows that hit. If it was delayed more, something else delayed it, which is no evidence. Only
//! the first packet in a window counts, because what delays it also delays those that queue behind it.

use super::chain::Chain;
use super::late::{Late, Null};
use super::stage::Stage;

/// Resolution of D, ns.
pub(super) const STEP_NS: f64 = 2000.0;
/// Longest D that is searched for, ns.
pub(super) const DURATION_MAX_NS: f64 = 6e6;
/// A delay fits if it is off by no more than this many scales.
pub(super) const FIT: f64 = 6.0;
/// A packet that should be late by the threshold plus this many scales is certainly late if it was hit.
const SURE: f64 = 2.5;
/// The start of a window is known up to packets that together count this much, where a hit or a miss counts
/// one half.
const EDGE_LESS: f64 = 0.75;
/// Share of hits that fit badly; their scale is five times as large.
const BAD_FIT: f64 = 0.1;

/// Evidence for a period, by duration.
#[derive(Debug, Clone)]
pub(super) struct Proof {
    /// Nats in favour, at the best of all durations.
    pub(super) evidence: f64,
    /// Number of windows that hit and of windows that should have hit but did not, at the best duration.
    pub(super) hit: f64,
    pub(super) missed: f64,
    /// The range of D: from the longest delay that fits to the shortest one that should have come next but
    /// did not.
    pub(super) duration: (f64, f64),
    /// Evidence by duration, in bins of [`STEP_NS`].
    pub(super) by_duration: Vec<f64>,
}

/// Counts by duration, as differences from bin to bin.
struct Steps {
    fit: Vec<f64>,
    hit: Vec<f64>,
    missed: Vec<f64>,
}

/// The evidence of a packet.
#[derive(Clone, Copy, PartialEq)]
enum Word {
    Nothing,
    Hit(f64),
    Missed,
}

/// The first packet due after `t`; the search begins near `from`.
fn seek(due: &[i64], from: usize, t: f64) -> usize {
    let t = t as i64;
    if from > 0 && due[from - 1] > t {
        return due[..from].partition_point(|&d| d <= t);
    }
    let (mut low, mut step) = (from, 1);
    while low + step < due.len() && due[low + step - 1] <= t {
        low += step;
        step *= 2;
    }
    let high = (low + step).min(due.len());
    low + due[low..high].partition_point(|&d| d <= t)
}

/// Looks up packets that were late or masked.
pub(super) struct Firsts {
    /// The packets that begin a group of late ones, and how crowded outliers are there.
    by_packet: Vec<(u32, f32)>,
    /// All packets that are late or masked.
    special: Vec<u32>,
}

impl Firsts {
    pub(super) fn of(stage: &Stage, lates: &[Late]) -> Self {
        let mut by_packet: Vec<(u32, f32)> = lates.iter().map(|l| (l.i, l.crowd)).collect();
        by_packet.sort_unstable_by_key(|f| f.0);
        let late = |i: &u32| stage.delay[*i as usize] > stage.threshold || stage.masked.has(*i as usize);
        Firsts { by_packet, special: (0..stage.len() as u32).filter(late).collect() }
    }

    fn crowd(&self, i: usize) -> Option<f32> {
        let at = self.by_packet.binary_search_by_key(&(i as u32), |f| f.0).ok()?;
        Some(self.by_packet[at].1)
    }
}

/// Calls `f` with the end of each window that the chain predicts, in order, with each period divided into
/// `cut` parts.
pub(super) fn windows(chain: &Chain, cut: i64, mut f: impl FnMut(f64)) {
    for (i, s) in chain.stretches.iter().enumerate() {
        let n = s.k.len();
        // Extends by half of the stretch's length to either side, but not to where another stretch predicts
        // better.
        let beyond = (s.k[n - 1] / 2).clamp(1, 64);
        let before = i.checked_sub(1).and_then(|p| chain.stretches[p].end.last()).map_or(f64::MIN, |&e| e);
        let after = chain.stretches.get(i + 1).map_or(f64::MAX, |next| next.end[0]);
        let from = if before == f64::MIN { f64::MIN } else { f64::midpoint(before, s.end[0]) };
        let to = if after == f64::MAX { f64::MAX } else { f64::midpoint(s.end[n - 1], after) };
        let mut near = 0;
        let mut last: Option<f64> = None;
        for k in s.k[0] - beyond..=s.k[n - 1] + beyond {
            while near + 1 < n && s.k[near + 1] <= k {
                near += 1;
            }
            let end = chain.predict(s, near, k);
            if end < from || end > to {
                continue;
            }
            if let Some(last) = last {
                (1..cut).for_each(|c| f(last + (end - last) * c as f64 / cut as f64));
            }
            f(end);
            last = Some(end);
        }
    }
}

/// Judges a chain's period divided by `cut`.
pub(super) fn judge(stage: &Stage, null: &Null, firsts: &Firsts, chain: &Chain, cut: i64) -> Proof {
    let period = chain.period / cut as f64;
    let longest = (0.95 * period).min(DURATION_MAX_NS);
    let bins = (longest / STEP_NS) as usize + 2;
    let mut steps = Steps { fit: vec![0.0; bins], hit: vec![0.0; bins], missed: vec![0.0; bins] };
    let shortest = f64::from(stage.threshold) + SURE * chain.scale;
    let word = |i: usize, r: f64| -> Word {
        if stage.masked.has(i) {
            return Word::Nothing;
        }
        let off = f64::from(stage.delay[i]) - r;
        if off < -FIT * chain.scale || stage.delay[i] <= stage.threshold {
            return Word::Missed;
        }
        if off > FIT * chain.scale {
            return Word::Nothing;
        }
        let laplace = |scale: f64| (-off.abs() / scale).exp() / (2.0 * scale);
        let kernel = (1.0 - BAD_FIT) * laplace(chain.scale) + BAD_FIT * laplace(5.0 * chain.scale);
        match firsts.crowd(i) {
            Some(crowd) => Word::Hit(kernel.ln() - null.ln_density(stage.delay[i]) - f64::from(crowd)),
            None => Word::Nothing,
        }
    };
    let (mut at, mut until, mut special) = (0, 0, 0);
    windows(chain, cut, |end| {
        // Packets that are in the window for some duration, and whose lateness would be noticed.
        at = seek(&stage.due, at, end - longest);
        until = seek(&stage.due, until, end - shortest);
        special = {
            let from = firsts.special[special.min(firsts.special.len())..].partition_point(|&i| (i as usize) < at);
            // Windows come in order, except for the noise.
            let near = special + from;
            if near > 0 && firsts.special[near - 1] as usize >= at {
                firsts.special.partition_point(|&i| (i as usize) < at)
            } else {
                near
            }
        };
        let mut now = Word::Nothing;
        let mut step = |i: usize, next: Word| {
            if next == now {
                return;
            }
            let bin = (((end - stage.due[i] as f64) / STEP_NS) as usize).min(bins - 1);
            for (word, sign) in [(now, -1.0), (next, 1.0)] {
                match word {
                    Word::Nothing => {}
                    Word::Hit(fit) => {
                        steps.fit[bin] += sign * fit;
                        steps.hit[bin] += sign;
                    }
                    Word::Missed => steps.missed[bin] += sign,
                }
            }
            now = next;
        };
        // From the last packet backwards: each counts for durations up to where the packet before it counts.
        // All packets except the special ones were in time.
        let inside = firsts.special[special..].iter().take_while(|&&i| (i as usize) < until).count();
        let mut plain = until;
        for &i in firsts.special[special..special + inside].iter().rev() {
            let i = i as usize;
            if i + 1 < plain {
                step(plain - 1, Word::Missed);
            }
            step(i, word(i, end - stage.due[i] as f64));
            plain = i;
        }
        if at < plain {
            step(plain - 1, Word::Missed);
        }
    });
    steps.sum(shortest)
}

impl Steps {
    /// The bins between which the window begins: before them, packets are hit half as often as within the
    /// window. A window that is sometimes longer has hits beyond, and the likelihood would follow these.
    fn edge(&self, first: usize, best: usize) -> (usize, usize) {
        let half = (self.hit[best] + 0.5) / (self.hit[best] + self.missed[best] + 1.0) / 2.0;
        let score = |b: usize| self.hit[b] * (1.0 - half) - self.missed[b] * half;
        let bins = self.hit.len();
        let top = (first.min(bins - 1)..bins).max_by(|&a, &b| score(a).total_cmp(&score(b))).unwrap_or(best);
        let good = |b: &usize| score(*b) > score(top) - EDGE_LESS;
        let low = (0..=top).rev().take_while(good).last().unwrap_or(top);
        let high = (top..bins).take_while(good).last().unwrap_or(top);
        (low, high)
    }

    fn sum(mut self, shortest: f64) -> Proof {
        for v in [&mut self.fit, &mut self.hit, &mut self.missed] {
            let mut sum = 0.0;
            v.iter_mut().for_each(|x| {
                sum += *x;
                *x = sum;
            });
        }
        let evidence = |b: usize| {
            let (hit, missed) = (self.hit[b].max(0.0), self.missed[b].max(0.0));
            let share = (hit + 0.5) / (hit + missed + 1.0);
            self.fit[b] + hit * share.ln() + missed * (1.0 - share).ln()
        };
        let by_duration: Vec<f64> = (0..self.fit.len()).map(evidence).collect();
        let first = (shortest / STEP_NS) as usize;
        let best = (first.min(by_duration.len() - 1)..by_duration.len())
            .max_by(|&a, &b| by_duration[a].total_cmp(&by_duration[b]))
            .unwrap_or(0);
        let (low, high) = self.edge(first, best);
        Proof {
            evidence: by_duration[best],
            hit: self.hit[best],
            missed: self.missed[best],
            duration: (low as f64 * STEP_NS, (high + 1) as f64 * STEP_NS),
            by_duration,
        }
    }
}
