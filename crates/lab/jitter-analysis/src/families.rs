// SPDX-License-Identifier: Apache-2.0
//! Periodic outliers and the disturbances behind them: an answer to the open question of the jitter report (§3).
//!
//! # Theory
//!
//! Something takes a core for D every T: in the windows `[phi + kT, phi + kT + D)`. A packet's event on that
//! core (its send, its receive) is due at `t`. If `t` falls into a window, the event happens at the window's
//! **end**. So its delay is `D - ((t - phi) mod T)`, anything from 0 to D, and *when* it happens is
//! `phi + kT + D`, whatever its delay.
//!
//! **Absolute schedule**, `t = nP`: let `q` windows be the least after which a window meets a packet again at
//! about the same place, `q T = p P + x` with `|x| < D`. From one such hit to the next the delay changes by
//! `x`: it falls (or rises) by the same amount each time, until the packets have left the window, and starts
//! over: `arrow`. The packet after a late one is not late, so that in the differences between successive
//! packets each point above the baseline has its mirror image below. How steep, dense and long the arrows are
//! is all in `x`, which one microsecond more or less of P changes by `p` microseconds, several times D. That
//! is why 999, 1000 and 1001 us look so different (report, figure 2) with one and the same cause.
//!
//! **Relative schedule** (a busy loop that sends P after the last send, report §3.2): a sender that was
//! delayed starts anew at a window's end, from where the same packets later the same happens: each hit has
//! the same delay, at the same distance, and no mirror image: `offset`. That is `ts1-offset`; and since the
//! sends *are* shifted by it, a disturbance of the same period at the receiver is met at a fixed place too,
//! until the phase slips. Which of the two comes first depends on the two phases only, as the report
//! observed.
//!
//! **P smaller than D**: a window meets several packets, with delays `D - x, D - x - P, ...`, all of which
//! happen at its end. The first is between `D - P` and D, nearly constant: the arrow is replaced by a line
//! (report, figures 2d, 2e).
//!
//! **T a multiple of P**, or nearly, within the run: `x` = 0. The amplitude is constant, and of D is known
//! only that it is above the amplitude, and below that plus P.
//!
//! # Unfolding
//!
//! Delays hide T behind P, ends do not: they are multiples of T apart, whatever P is. What remains is which
//! multiple: if all hits are `q` windows apart, `q T / m` explains them too, for each `m` at which no further
//! packet would have been hit. So the packets that were *not* late count as evidence as well:
//!
//! 0. Movements of one host's clock against the other's are taken out ([`crate::clocks`]): no delay, and no family.
//! 1. Per stamp: when each packet was due there and how much later it was ([`Stamp`] by stamp, so that a
//!    delay counts where it enters, and not again at later stamps; packets late before are left out).
//!    Outliers: above 8 sigmas of the noise, estimated from the lower 20% of all delays, or the 98th
//!    percentile if that is more, though not above 25 us for it. Late packets that happened together were
//!    delayed by one thing and count once.
//! 2. Candidates for T: times between late packets that are more frequent than those with the same remainder modulo P.
//! 3. For a candidate, late packets are chained, each a whole number of periods after one before; the period
//!    may drift and the phase may get lost and found again.
//! 4. All packets judge the chain: those due `r` before a window's end should be late by `r` if `r < D`. The
//!    log likelihood ratio against chance (all delays as they are spread around there) is summed up for each
//!    D. D is reported where packets begin to be hit half as often as within the window, as windows vary in
//!    length; its range is what one packet could change.
//! 5. Slower and faster periods are judged too: the slowest that explains as much is reported, those that
//!    explain as much are listed as alternatives. [`sweep()`] judges several runs with different P together,
//!    which tells them apart.
//! 6. From the ratio is taken what the best of all candidates would have by chance (periods times phases
//!    times durations that could have been tried, in nats; and a phase anew for each time it got lost). By
//!    Markov's inequality chance exceeds what is left, `e`, with probability at most `exp(-e)`. A family
//!    needs [`FamilyOptions::evidence_min`].
//! 7. What the family explains is taken away, and the search begins anew, for at most [`FamilyOptions::families_max`].
//!
//! The likelihood ratio takes packets for independent but for bursts: where outliers are frequent, one more says less.

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
    /// Families per stamp, at most.
    pub families_max: usize,
    /// Windows that must have hit.
    pub hits_min: u64,
    /// Evidence that a family needs, nats, beyond what the search finds by chance.
    pub evidence_min: f64,
}

impl Default for FamilyOptions {
    fn default() -> Self {
        FamilyOptions { period_min_ns: 5e5, period_max_ns: 5e9, families_max: 4, hits_min: 8, evidence_min: 12.0 }
    }
}

/// Delays above this count as outliers at a stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Threshold {
    /// At which stamp.
    pub stamp: Stamp,
    /// Above the baseline, ns.
    pub above_ns: i64,
    /// Packets above it.
    pub outliers: u64,
    /// Of these, explained by a family.
    pub explained: u64,
}

/// What was found in a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Families {
    /// By stamp, the clearest first.
    pub families: Vec<Family>,
    /// What counted as an outlier, by stamp.
    pub thresholds: Vec<Threshold>,
}

/// Finds the families of a run. Packets beyond the first 2^32 are not looked at.
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
