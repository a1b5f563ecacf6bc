// SPDX-License-Identifier: Apache-2.0
//! Late packets that follow each other at multiples of a period.
//!
//! The period may drift and each window may begin late, so no single phase is assumed for the whole run: each
//! late packet is linked to an earlier one `m` periods before it, if the distance fits better than chance. If
//! none fits, the phase may be lost and found again, which costs as much as finding it by chance would. The
//! best chain is found by dynamic programming.

use super::late::{Late, Null};

/// Number of windows that a link may skip: as many as [`WORK`] allows, within this range.
const SKIP: (usize, usize) = (48, 400);
/// The same range for a sketch.
const SKIP_SKETCH: (usize, usize) = (12, 200);
/// Maximum number of late packets times windows that may be skipped.
const WORK: usize = 400_000;
/// Maximum length of a link, ns, and the number of windows that a link may span in any case. With longer
/// links, drift would make everything fit.
const LINK_MAX: (f64, usize) = (5e9, 4);
/// Drift of a period within a link, as a share of the link's length.
pub(super) const DRIFT: f64 = 3e-5;
/// A link may be off by this many scales.
const REACH: f64 = 5.0;
/// The cost of a lost phase, nats, beyond the chance of finding it again and the logarithm of the number of
/// late packets, with each of which it could be found.
const LOST_COST: f64 = 2.0;
/// Minimum number of hits in a stretch with one phase.
const STRETCH_MIN: usize = 3;
/// Numbers of hits to either side from which the end of a window is predicted: many if the period is steady,
/// few if it drifts.
const NEIGHBOURS: [usize; 3] = [8, 4, 2];
/// Largest scale, in ns and as a share of the period.
const SCALE_MAX: (f64, f64) = (40_000.0, 0.012);
/// Smallest scale, ns.
const SCALE_MIN_NS: f64 = 1500.0;

/// Hits that share a phase.
#[derive(Debug, Clone, Default)]
pub(super) struct Stretch {
    /// Number of each hit's window, counted from 0 and rising.
    pub(super) k: Vec<i64>,
    /// Index of each late packet.
    pub(super) late: Vec<u32>,
    /// End of each hit, ns.
    pub(super) end: Vec<f64>,
}

/// A period and the late packets that follow it.
#[derive(Debug, Clone)]
pub(super) struct Chain {
    pub(super) period: f64,
    /// Scale of the distance between the ends and their expected places, ns.
    pub(super) scale: f64,
    /// Number of hits to either side from which the end of a window is predicted.
    reach: usize,
    pub(super) stretches: Vec<Stretch>,
    /// How much better the chain is than chance, nats.
    pub(super) score: f64,
}

#[derive(Clone, Copy)]
struct Best {
    score: f64,
    from: u32,
    /// Number of windows since `from`; 0 if the phase is found anew.
    m: u16,
}

const NONE: u32 = u32::MAX;

/// The best chain with a period near `period`, at a given scale.
fn link(lates: &[Late], null: &Null, period: f64, scale: f64, skip: usize) -> (f64, Vec<Stretch>) {
    let skip = skip.min(((LINK_MAX.0 / period) as usize).max(LINK_MAX.1));
    let mut best: Vec<Best> = Vec::with_capacity(lates.len());
    let mut from = vec![0_usize; skip + 1];
    // By the number of windows since the last hit: the scale of how far off a hit may be, and the cost beyond
    // that.
    let scales: Vec<f64> = (0..=skip).map(|m| scale + DRIFT * m as f64 * period).collect();
    let costs: Vec<f64> = (0..=skip).map(|m| (2.0 * scales[m]).ln() + (m.max(1) as f64).ln() + 1.0).collect();
    let restart = period.ln() + LOST_COST + (lates.len().max(1) as f64).ln();
    let mut top = (0.0_f64, NONE);
    for (i, late) in lates.iter().enumerate() {
        let chance = null.ln_chance(late.delay) + f64::from(late.crowd);
        let mut here = Best { score: 0.0, from: NONE, m: 0 };
        if top.1 != NONE {
            let score = top.0 - chance - restart;
            if score > here.score {
                here = Best { score, from: top.1, m: 0 };
            }
        }
        for (m, from) in from.iter_mut().enumerate().skip(1) {
            let scale = scales[m];
            let centre = late.end as f64 - m as f64 * period;
            let low = centre - REACH * scale;
            while *from < i && (lates[*from].end as f64) < low {
                *from += 1;
            }
            let cost = costs[m] + chance;
            for j in *from..i {
                let off = lates[j].end as f64 - centre;
                if off > REACH * scale {
                    break;
                }
                let score = best[j].score - off.abs() / scale - cost;
                if score > here.score {
                    here = Best { score, from: j as u32, m: m as u16 };
                }
            }
        }
        if here.score > top.0 || top.1 == NONE {
            top = (here.score, i as u32);
        }
        best.push(here);
    }
    (top.0, stretches(lates, &best, top.1))
}

/// Follows the best chain back from its end.
fn stretches(lates: &[Late], best: &[Best], mut at: u32) -> Vec<Stretch> {
    let mut all = Vec::new();
    let mut stretch = Stretch::default();
    let mut k = 0_i64;
    while at != NONE {
        stretch.k.push(k);
        stretch.late.push(at);
        stretch.end.push(lates[at as usize].end as f64);
        let step = best[at as usize];
        k -= i64::from(step.m);
        if step.m == 0 {
            all.push(std::mem::take(&mut stretch));
            k = 0;
        }
        at = step.from;
    }
    all.retain(|s| s.k.len() >= STRETCH_MIN);
    all.reverse();
    for s in &mut all {
        s.late.reverse();
        s.end.reverse();
        s.k.reverse();
        let first = s.k[0];
        s.k.iter_mut().for_each(|k| *k -= first);
    }
    all
}

impl Stretch {
    /// Where window `k` should end, according to the hits near position `near`, one of which may be left out.
    fn predict(&self, near: usize, k: i64, without: Option<usize>, (period, scale, reach): (f64, f64, usize)) -> f64 {
        let (from, to) = (near.saturating_sub(reach), (near + reach + 1).min(self.k.len()));
        let others = || (from..to).filter(|&p| Some(p) != without);
        let n = others().count().max(1) as f64;
        // Residuals against the period, relative to the neighbour, so that the precision suffices.
        let (k0, e0) = (self.k[near], self.end[near]);
        let residual = |p: usize| self.end[p] - e0 - (self.k[p] - k0) as f64 * period;
        let mean_k = others().map(|p| (self.k[p] - k0) as f64).sum::<f64>() / n;
        let mean_r = others().map(residual).sum::<f64>() / n;
        let (mut kk, mut kr) = (0.0, 0.0);
        for p in others() {
            let x = (self.k[p] - k0) as f64 - mean_k;
            kk += x * x;
            kr += x * (residual(p) - mean_r);
        }
        // The slope is that of the period, except for a drift.
        let prior = (scale / (DRIFT * period)).powi(2);
        let slope = kr / (kk + prior);
        e0 + (k - k0) as f64 * period + mean_r + slope * ((k - k0) as f64 - mean_k)
    }

    /// The distance of each hit from where the others predict it.
    fn residuals(&self, how: (f64, f64, usize)) -> Vec<f64> {
        (0..self.k.len()).map(|p| self.end[p] - self.predict(p, self.k[p], Some(p), how)).collect()
    }
}

impl Chain {
    /// A quick search for the best chain with a period that may be off by `slack`.
    pub(super) fn sketch(lates: &[Late], null: &Null, period: f64, slack: f64) -> Option<Chain> {
        let scale = (slack / 2.0).clamp(6000.0, 60_000.0).min(SCALE_MAX.1 * period);
        let skip = (WORK / lates.len().max(1)).clamp(SKIP_SKETCH.0, SKIP_SKETCH.1);
        let (score, stretches) = link(lates, null, period, scale, skip);
        let mut chain = Chain { period, scale, reach: NEIGHBOURS[0], stretches, score };
        chain.refine()?;
        Some(chain)
    }

    /// The same search in full, from a period and a scale that are about right.
    pub(super) fn build(lates: &[Late], null: &Null, period: f64, scale: f64) -> Option<Chain> {
        let mut chain = Chain { period, scale, reach: NEIGHBOURS[0], stretches: Vec::new(), score: 0.0 };
        let skip = (WORK / lates.len().max(1)).clamp(SKIP.0, SKIP.1);
        for _ in 0..2 {
            (chain.score, chain.stretches) = link(lates, null, chain.period, chain.scale, skip);
            chain.refine()?;
        }
        Some(chain)
    }

    /// Where window `k` of a stretch should end, according to the hits around its hit `near`, without this
    /// hit itself if it is in window `k`.
    pub(super) fn predict(&self, s: &Stretch, near: usize, k: i64) -> f64 {
        let own = (s.k[near] == k).then_some(near);
        s.predict(near, k, own, (self.period, self.scale, self.reach))
    }

    /// Computes period and scale from the hits, and drops hits that are off. None if too few are left.
    pub(super) fn refine(&mut self) -> Option<()> {
        for _ in 0..2 {
            self.period = self.slope()?.0;
            let mut best = f64::INFINITY;
            for reach in NEIGHBOURS {
                let mut all = Vec::new();
                for s in &self.stretches {
                    all.extend(s.residuals((self.period, self.scale, reach)).into_iter().map(f64::abs));
                }
                let middle = all.len() / 2;
                let typical = *all.select_nth_unstable_by(middle, f64::total_cmp).1;
                // Fewer neighbours are taken only if they are clearly better.
                if typical < 0.8 * best {
                    (best, self.reach) = (typical, reach);
                }
            }
            let most = SCALE_MAX.0.min(SCALE_MAX.1 * self.period).max(SCALE_MIN_NS);
            self.scale = (best / std::f64::consts::LN_2).clamp(SCALE_MIN_NS, most);
            let limit = REACH * self.scale;
            for s in &mut self.stretches {
                let keep: Vec<bool> =
                    s.residuals((self.period, self.scale, self.reach)).iter().map(|r| r.abs() <= limit).collect();
                let mut which = keep.iter();
                s.end.retain(|_| which.next() == Some(&true));
                let mut which = keep.iter();
                s.late.retain(|_| which.next() == Some(&true));
                let mut which = keep.iter();
                s.k.retain(|_| which.next() == Some(&true));
            }
            self.stretches.retain(|s| s.k.len() >= STRETCH_MIN);
        }
        self.period = self.slope()?.0;
        Some(())
    }

    /// Period and its standard error, ns, from all stretches.
    pub(super) fn slope(&self) -> Option<(f64, f64)> {
        let (mut kk, mut ke, mut rest, mut n) = (0.0, 0.0, 0.0, 0.0);
        for s in &self.stretches {
            let hits = s.k.len() as f64;
            let mean_k = s.k.iter().sum::<i64>() as f64 / hits;
            let off = |p: usize| s.end[p] - s.end[0] - s.k[p] as f64 * self.period;
            let mean = (0..s.k.len()).map(off).sum::<f64>() / hits;
            for p in 0..s.k.len() {
                let x = s.k[p] as f64 - mean_k;
                kk += x * x;
                ke += x * (off(p) - mean);
                rest += (off(p) - mean).powi(2);
            }
            n += hits - 1.0;
        }
        if n < 2.0 || kk == 0.0 {
            return None;
        }
        let step = ke / kk;
        let left = (rest - step * step * kk).max(0.0);
        Some((self.period + step, (left / (n - 1.0).max(1.0) / kk).sqrt()))
    }

    /// The typical step from one hit to the next: the number of windows (of the period divided by `cut`), and
    /// how much longer the delay becomes, ns.
    pub(super) fn step(&self, sending: f64, cut: i64) -> (u64, f64) {
        let mut gaps: Vec<i64> = self.stretches.iter().flat_map(|s| s.k.windows(2).map(|w| w[1] - w[0])).collect();
        if gaps.is_empty() {
            return (0, 0.0);
        }
        let middle = gaps.len() / 2;
        let gap = *gaps.select_nth_unstable(middle).1;
        let ahead = gap as f64 * self.period;
        let change = ahead - (ahead / sending).round() * sending;
        ((gap * cut) as u64, change)
    }

    /// Number of hits of all stretches.
    pub(super) fn hits(&self) -> usize {
        self.stretches.iter().map(|s| s.k.len()).sum()
    }

    /// The same hits, seen as windows of `times` the period, if at least `share` of all allow it.
    pub(super) fn slower(&self, times: i64, share: f64) -> Option<Chain> {
        let mut slow = Chain { period: self.period * times as f64, stretches: Vec::new(), ..*self };
        let (mut all, mut fit) = (0, 0);
        for s in &self.stretches {
            let mut counts = vec![0_usize; times as usize];
            s.k.iter().for_each(|k| counts[(k % times) as usize] += 1);
            let (class, n) = counts.iter().enumerate().max_by_key(|(_, n)| **n)?;
            all += s.k.len();
            fit += *n;
            let fits = (0..s.k.len()).filter(|&p| s.k[p] % times == class as i64);
            let mut t = Stretch::default();
            for p in fits {
                t.k.push(s.k[p] / times);
                t.late.push(s.late[p]);
                t.end.push(s.end[p]);
            }
            let first = t.k[0];
            t.k.iter_mut().for_each(|k| *k -= first);
            slow.stretches.push(t);
        }
        slow.stretches.retain(|s| s.k.len() >= STRETCH_MIN);
        (fit as f64 >= share * all as f64 && !slow.stretches.is_empty()).then_some(slow)
    }
}
