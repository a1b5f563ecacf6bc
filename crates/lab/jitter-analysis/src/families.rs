// SPDX-License-Identifier: Apache-2.0
//! Periodic outliers and the disturbances behind them: an answer to the open question of the jitter report
//! (§3).
//!
//! # Theory
//!
//! Something takes a core for D every T: in the windows `[phi + kT, phi + kT + D)`. A packet's event on that
//! core (its send, its receive) is due at `t`. If `t` falls into a window, the event happens at the window's
//! **end**. So its delay is `D - ((t - phi) mod T)`, anything from 0 to D, and *when* it happens is
//! `phi + kT + D`, whatever its delay.
//!
//! **Absolute schedule**, `t = nP`: let `q` be the smallest number of windows after which a window meets a
//! packet again at about the same place: `q T = p P + x` with `|x| < D`. From one such hit to the next, the
//! delay changes by `x`: it falls (or rises) by the same amount each time until the packets have left the
//! window, and then starts over. This shape is called `arrow`. The packet after a late one is not late, so in
//! the differences between successive packets each point above the baseline has its mirror image below. How
//! steep, dense and long the arrows are depends only on `x`. One microsecond more or less of P changes `x` by
//! `p` microseconds, which is several times D. This is why 999, 1000 and 1001 us look so different (report,
//! figure 2) although the cause is the same.
//!
//! **Relative schedule** (a busy loop that sends P after the last send, report §3.2): a sender that was
//! delayed starts anew at a window's end, and after the same number of packets the same happens again. So
//! each hit has the same delay, at the same distance, and no mirror image. This shape is called `offset`,
//! here `ts1-offset`. Because the sends *are* shifted by it, a disturbance with the same period at the
//! receiver is also met at a fixed place, until the phase slips. Which of the two comes first depends only on
//! the two phases, as the report observed.
//!
//! **P smaller than D**: a window meets several packets, with delays `D - x, D - x - P, ...`, all of which
//! happen at its end. The first delay is between `D - P` and D, so it is nearly constant: the arrow is
//! replaced by a line (report, figures 2d, 2e).
//!
//! **T a multiple of P**, or nearly, within the run: `x` = 0. The amplitude is constant, and all that is
//! known about D is that it is above the amplitude and below the amplitude plus P.
//!
//! # Unfolding
//!
//! P hides T in the delays, but not in the ends of windows: these are multiples of T apart, whatever P is.
//! What remains open is which multiple: if all hits are `q` windows apart, `q T / m` explains them too, for
//! each `m` at which no further packet would have been hit. So the packets that were *not* late count as
//! evidence as well:
//!
//! 0. Movements of one host's clock against the other's are taken out ([`crate::clocks`]), because they are
//!    neither delays nor families.
//! 1. For each stamp: when each packet was due there, and how much later it was ([`Stamp`] by stamp, so that
//!    a delay counts where it occurs and not again at later stamps; packets that were late before are left
//!    out). An outlier is a delay above 8 sigmas of the noise, estimated from the lower 20% of all delays, or
//!    above the 98th percentile if that is more, where the percentile counts as at most 25 us. Late packets
//!    that happened together have one cause and count once.
//! 2. Candidates for T: times between late packets that are more frequent than others with the same remainder
//!    modulo P.
//! 3. For each candidate, late packets are chained, each a whole number of periods after an earlier one; the
//!    period may drift, and the phase may be lost and found again.
//! 4. All packets judge the chain: those due `r` before a window's end should be late by `r` if `r < D`. The
//!    log likelihood ratio against chance (the distribution of all delays near there) is summed up for each
//!    D. The reported D is where packets begin to be hit half as often as within the window, because windows
//!    vary in length; its range is how far one packet could shift it.
//! 5. Slower and faster periods are judged too: the slowest period that explains as much is reported, and the
//!    others that explain as much are listed as alternatives. [`sweep()`] judges several runs with different
//!    P together, which tells these periods apart.
//! 6. What the best of all candidates would have by chance is subtracted from the ratio: the number of
//!    periods times phases times durations that could have been tried, in nats, and another phase for each
//!    time that the phase was lost. By Markov's inequality, chance exceeds the remaining evidence `e` with
//!    probability at most `exp(-e)`. A family needs [`FamilyOptions::evidence_min`].
//! 7. What the family explains is removed, and the search begins anew, for at most
//!    [`FamilyOptions::families_max`].
//!
//! The likelihood ratio assumes that packets are independent except in bursts: where outliers are frequent,
//! one more is weaker evidence.

mod chain;
mod family;
mod lag;
mod late;
mod proof;
mod search;
mod shape;
mod stage;
mod sweep;
mod unfold;

pub use family::{Alternative, DURATION_KNOWN, Family, IDS_MAX};
pub use shape::{CONSTANT, Shape, expected_shape};
pub use sweep::{RunFit, RunView, SweepFamily, sweep};

use crate::clocks::Aligned;
use crate::sample::{RunInfo, Samples, Stamp};
use serde::{Deserialize, Serialize};
use stage::{Rows, Stage};

/// What to look for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FamilyOptions {
    /// Shortest period, ns.
    pub period_min_ns: f64,
    /// Longest period, ns; never more than a third of the run.
    pub period_max_ns: f64,
    /// Maximum number of families per stamp.
    pub families_max: usize,
    /// Minimum number of windows that hit a packet.
    pub hits_min: u64,
    /// Minimum evidence of a family, nats, beyond what the search finds by chance.
    pub evidence_min: f64,
}

impl Default for FamilyOptions {
    fn default() -> Self {
        FamilyOptions { period_min_ns: 5e5, period_max_ns: 5e9, families_max: 4, hits_min: 8, evidence_min: 12.0 }
    }
}

/// The delay above which packets count as outliers at a stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Threshold {
    /// The stamp.
    pub stamp: Stamp,
    /// The threshold above the baseline, ns.
    pub above_ns: i64,
    /// Number of packets above the threshold.
    pub outliers: u64,
    /// How many of these are explained by a family.
    pub explained: u64,
}

/// The families found in a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Families {
    /// By stamp, the clearest first for each.
    pub families: Vec<Family>,
    /// What counted as an outlier, by stamp.
    pub thresholds: Vec<Threshold>,
}

/// Finds the families of a run. Packets beyond the first 2^32 are not examined.
pub fn find_families(info: &RunInfo, samples: &Samples, options: &FamilyOptions) -> Families {
    let samples = &Aligned::of(info, samples);
    let mut late = Rows::new(samples.len());
    let mut all = Families { families: Vec::new(), thresholds: Vec::new() };
    for stamp in Stamp::ALL {
        let mut stage = Stage::of(info, samples, stamp, &mut late);
        let found = search::search(&mut stage, options);
        all.thresholds.push(Threshold {
            stamp,
            above_ns: stage.threshold.into(),
            outliers: stage.delay.iter().filter(|&&d| d > stage.threshold).count() as u64,
            explained: found.iter().map(|(_, doing)| doing.rows.len() as u64).sum(),
        });
        let tell = |(found, doing): &_| Family::new(stamp, stage.period, found, doing, samples.ids());
        all.families.extend(found.iter().map(tell));
    }
    all
}

#[cfg(test)]
mod tests;
