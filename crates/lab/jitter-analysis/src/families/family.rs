// SPDX-License-Identifier: Apache-2.0
//! A family of periodic outliers, as reported.

use super::FamilyOptions;
use super::search::{Doing, Found};
use super::shape::{Shape, shape_of};
use crate::sample::Stamp;
use serde::{Deserialize, Serialize};

/// Maximum number of packet numbers that a family lists.
pub const IDS_MAX: usize = 10_000;
/// A duration counts as known if half of its range is at most this share of it.
pub const DURATION_KNOWN: f64 = 0.2;

/// A disturbance that a run at this sending interval cannot tell from the reported one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Alternative {
    /// Its period, ns.
    pub period_ns: f64,
    /// The range of its duration, ns.
    pub duration_range_ns: (f64, f64),
    /// How much better it explains the packets, nats; negative if worse.
    pub gain: f64,
}

/// A family of periodic outliers and the disturbance behind it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Family {
    /// Stamp and shape: `ts1-offset`, `ts2-arrow`, ...
    pub kind: String,
    /// Where the delay occurs: the first stamp that shows it.
    pub stamp: Stamp,
    /// How amplitudes follow each other.
    pub shape: Shape,
    /// T, ns: how often the core is taken, on the clock of the stamp's host.
    pub period_ns: f64,
    /// Standard error of the period, ns.
    pub period_error_ns: f64,
    /// D, ns: for how long the core is taken each time. If it is not known, this is its minimum.
    pub duration_ns: f64,
    /// The range of D, ns.
    pub duration_range_ns: (f64, f64),
    /// False if the packets always met the same part of the window, so that D may be anywhere in its range.
    pub duration_known: bool,
    /// Delay of the first packet in a window, ns: 10%, 50% and 90% quantile.
    pub amplitude_ns: (f64, f64, f64),
    /// From one hit to the next: the number of windows, and by how many ns the delay rises (negative if it
    /// falls).
    pub step: (u64, f64),
    /// Scale of the distance between the windows' ends and their expected places, ns.
    pub jitter_ns: f64,
    /// Number of packets delayed by the disturbance.
    pub packets: u64,
    /// The first [`IDS_MAX`] of their numbers.
    pub ids: Vec<u64>,
    /// Number of windows that met a packet from which a hit or a miss can be told.
    pub windows: u64,
    /// In how many of these windows the packet was delayed.
    pub windows_hit: u64,
    /// Nats in favour of the family, beyond what a search like this finds by chance.
    pub evidence: f64,
    /// Upper bound, `exp(-evidence)`, of the probability that a run without any disturbance shows as much.
    pub false_alarm: f64,
    /// Share of this period in the likelihood of all, itself and the alternatives.
    pub confidence: f64,
    /// Other disturbances that would look the same at this sending interval, best first.
    pub alternatives: Vec<Alternative>,
    /// The family in a sentence or two.
    pub text: String,
}

/// The duration of a disturbance, and whether it is known, from the range in its proof.
pub(super) fn duration((low, high): (f64, f64)) -> (f64, bool) {
    let middle = f64::midpoint(low, high);
    if (high - low) / 2.0 <= DURATION_KNOWN * middle { (middle, true) } else { (low, false) }
}

fn quantile(sorted: &[f64], q: f64) -> f64 {
    sorted.get(((sorted.len().max(1) - 1) as f64 * q).round() as usize).copied().unwrap_or(0.0)
}

pub(super) fn ms(ns: f64) -> String {
    format!("{:.4} ms", ns / 1e6)
}

pub(super) fn us(ns: f64) -> String {
    format!("{:.0} us", ns / 1e3)
}

impl Family {
    pub(super) fn new(stamp: Stamp, sending_ns: f64, found: &Found, doing: &Doing, ids: &[u64]) -> Family {
        let mut firsts = doing.firsts.clone();
        firsts.sort_unstable_by(f64::total_cmp);
        let shape = shape_of(&firsts, found.chain.scale);
        let (duration_ns, duration_known) = duration(found.proof.duration);
        let period_ns = found.period();
        let mut alternatives: Vec<Alternative> = found
            .faster
            .iter()
            .filter(|_| found.cut == 1)
            .map(|(cut, proof)| Alternative {
                period_ns: period_ns / *cut as f64,
                duration_range_ns: proof.duration,
                gain: proof.evidence - found.proof.evidence,
            })
            .collect();
        alternatives.sort_unstable_by(|a, b| b.gain.total_cmp(&a.gain));
        let all: f64 = alternatives.iter().map(|a| a.gain.exp()).sum();
        let mut family = Family {
            kind: format!("{}-{}", stamp.name(), shape.name()),
            stamp,
            shape,
            period_ns,
            period_error_ns: found.chain.slope().map_or(0.0, |s| s.1) / found.cut as f64,
            duration_ns,
            duration_range_ns: found.proof.duration,
            duration_known,
            amplitude_ns: (quantile(&firsts, 0.1), quantile(&firsts, 0.5), quantile(&firsts, 0.9)),
            step: found.chain.step(sending_ns, found.cut),
            jitter_ns: found.chain.scale,
            packets: doing.rows.len() as u64,
            ids: doing.rows.iter().take(IDS_MAX).map(|&r| ids[r as usize]).collect(),
            windows: (found.proof.hit + found.proof.missed).round() as u64,
            windows_hit: found.proof.hit.round() as u64,
            evidence: found.evidence,
            false_alarm: (-found.evidence).exp().min(1.0),
            confidence: 1.0 / (1.0 + all),
            alternatives,
            text: String::new(),
        };
        family.text = family.tell();
        family
    }

    fn tell(&self) -> String {
        let (low, high) = self.duration_range_ns;
        let host = match self.stamp {
            Stamp::Ts1 => "the sender at A",
            Stamp::Ts2 => "the receiver at B",
            Stamp::Ts3 => "the sender at B",
            Stamp::Ts4 => "the receiver at A",
        };
        let long = if self.duration_known {
            format!("for {} ({} to {})", us(self.duration_ns), us(low), us(high))
        } else {
            format!(
                "for at least {} and less than {}: the packets always met the same part of it, so that this sending interval \
                 cannot tell more",
                us(low),
                us(high)
            )
        };
        let mut text = format!(
            "{}: something takes the core of {host} every {} (+- {:.1} ns) {long}; {} packets late",
            self.kind,
            ms(self.period_ns),
            self.period_error_ns,
            self.packets
        );
        let (windows, change) = self.step;
        match self.shape {
            Shape::Arrow => {
                let how = if change < 0.0 { "falls" } else { "rises" };
                let change = change.abs() / 1e3;
                text += &format!(", from hit to hit ({windows} periods) the delay {how} by {change:.1} us");
            }
            Shape::Offset => text += &format!(", each by about {}", us(self.amplitude_ns.1)),
        }
        if let Some(best) = self.alternatives.first() {
            text += &format!(
                ". At this sending interval {} other periods would look the same, such as {}: sweep over several to tell",
                self.alternatives.len(),
                ms(best.period_ns)
            );
        }
        text
    }

    /// True if the family would be reported with these options.
    pub fn meets(&self, options: &FamilyOptions) -> bool {
        self.evidence >= options.evidence_min && self.windows_hit >= options.hits_min
    }
}
