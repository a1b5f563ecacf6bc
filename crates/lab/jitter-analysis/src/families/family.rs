// SPDX-License-Identifier: Apache-2.0
//! A family of periodic outliers, as reported.

use super::FamilyOptions;
use super::search::{Doing, Found};
use super::shape::{Shape, shape_of};
use crate::sample::Stamp;
use serde::{Deserialize, Serialize};

/// Packet numbers that a family lists.
pub const IDS_MAX: usize = 10_000;
/// A duration is known if half of its range is at most this share of it.
pub const DURATION_KNOWN: f64 = 0.2;

/// A disturbance that a run at this sending interval cannot tell from the one that is reported.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Alternative {
    /// Its period, ns.
    pub period_ns: f64,
    /// Its duration is between these, ns.
    pub duration_range_ns: (f64, f64),
    /// How much better it explains the packets, nats; below 0: worse.
    pub gain: f64,
}

/// A family of periodic outliers and the disturbance behind it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Family {
    /// `ts1-offset`, `ts2-arrow`, ...: where and how.
    pub kind: String,
    /// Where the delay enters: the first stamp that shows it.
    pub stamp: Stamp,
    /// How amplitudes follow each other.
    pub shape: Shape,
    /// T: the core is taken every so many ns, on the clock of the stamp's host.
    pub period_ns: f64,
    /// Standard error of it, ns.
    pub period_error_ns: f64,
    /// D: for so many ns each time. If it is not known, at least so many.
    pub duration_ns: f64,
    /// It is between these, ns.
    pub duration_range_ns: (f64, f64),
    /// False if the packets always met the same part of the window, and D may be anything in its range.
    pub duration_known: bool,
    /// Delay of the first packet in a window, ns: 10%, 50% and 90% quantile.
    pub amplitude_ns: (f64, f64, f64),
    /// From one hit to the next: so many windows, and the delay rises by so many ns (below 0: falls).
    pub step: (u64, f64),
    /// Scale of how far the windows' ends are from where they should be, ns.
    pub jitter_ns: f64,
    /// Packets delayed by it.
    pub packets: u64,
    /// The first [`IDS_MAX`] of their numbers.
    pub ids: Vec<u64>,
    /// Windows that met a packet that could tell.
    pub windows: u64,
    /// Of these, it was delayed.
    pub windows_hit: u64,
    /// Nats in favour, beyond what a search like this finds by chance.
    pub evidence: f64,
    /// Probability that a run without any disturbance shows as much (a bound: `exp(-evidence)`).
    pub false_alarm: f64,
    /// Share of the likelihood among the period and the alternatives.
    pub confidence: f64,
    /// Other disturbances that would look the same at this sending interval, best first.
    pub alternatives: Vec<Alternative>,
    /// All this in a sentence or two.
    pub text: String,
}

/// How long a disturbance may be, from the range of its proof: (duration, known).
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
