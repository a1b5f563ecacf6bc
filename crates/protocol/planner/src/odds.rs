// SPDX-License-Identifier: Apache-2.0
//! How likely it is that all trees of a set fail together: the critical compound failure of FiDe App. C.
//!
//! A failure takes several cables at once with probability p_g. For trees that share nothing, a bound is the
//! sum over the cables of one tree of the probability that the cable fails within a year, times p_g (App. C,
//! equation 4). The smaller of the sums of all trees is taken: the argument holds for each.
//!
//! The published closed form for n processes in a fat tree of height H says
//! `max(H - 2, 0) p_cr + max(H - 1, 0) p_tr`, which is 0 for H = 1 and half of the published figure for H =
//! 2. What reproduces all three published figures, and what the derivation gives, is a trunk cable between a
//! host and its switch (H >= 1), another to the next tier (H >= 2), and a core cable above (H = 3):
//! `max(H - 2, 0) p_cr + min(H, 2) p_tr`.

use serde::{Deserialize, Serialize};

use crate::plan::Allocation;
use crate::topology::{CableId, CableKind, Topology};

/// Published rates, from Gill et al. (SIGCOMM 2011), as App. C quotes them.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rates {
    /// p_tr: a trunk cable fails within a year.
    pub trunk_per_year: f64,
    /// p_cr: a core cable fails within a year.
    pub core_per_year: f64,
    /// p_g: a failure is one of a group.
    pub group: f64,
}

impl Default for Rates {
    fn default() -> Self {
        Self { trunk_per_year: 0.054, core_per_year: 0.095, group: 0.41 }
    }
}

/// A rate that is no probability.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[error("[rates]: {what} is {value}; it must be a probability, 0 to 1")]
pub struct RatesError {
    what: &'static str,
    value: f64,
}

impl Rates {
    /// # Errors
    /// [`RatesError`].
    pub fn check(&self) -> Result<(), RatesError> {
        let all =
            [("trunk_per_year", self.trunk_per_year), ("core_per_year", self.core_per_year), ("group", self.group)];
        match all.into_iter().find(|(_, value)| !(0.0..=1.0).contains(value)) {
            Some((what, value)) => Err(RatesError { what, value }),
            None => Ok(()),
        }
    }

    /// p'_CCF of App. C for `processes` in a fat tree of `height` 1 to 3, two trees.
    #[must_use]
    pub fn fat_tree(&self, processes: u32, height: u32) -> f64 {
        let core = f64::from(height.saturating_sub(2)) * self.core_per_year;
        let trunk = f64::from(height.min(2)) * self.trunk_per_year;
        self.group * f64::from(processes) * (core + trunk)
    }

    /// Probability that a cable fails within a year: its own, else that of its kind.
    #[must_use]
    pub fn cable(&self, topology: &Topology, cable: CableId) -> f64 {
        let kind = match topology.cable_kind(cable) {
            CableKind::Trunk => self.trunk_per_year,
            CableKind::Core => self.core_per_year,
        };
        topology.cables()[cable.at()].failure_per_year.unwrap_or(kind)
    }

    /// Upper bound for the trees of one request; 1 at most. One tree alone fails whenever one of its cables does.
    #[must_use]
    pub fn compound(&self, topology: &Topology, allocation: &Allocation) -> f64 {
        let of_tree =
            |tree: &crate::tree::Tree| -> f64 { tree.links().map(|link| self.cable(topology, link.cable())).sum() };
        let smallest = allocation.trees.iter().map(of_tree).fold(f64::INFINITY, f64::min);
        let together = if allocation.trees.len() > 1 { self.group } else { 1.0 };
        (smallest * together).min(1.0)
    }
}

/// The published comparison with TCP (App. C): an error that passes Ethernet's and TCP's checks.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct TcpErrors {
    /// Seconds to the first undetected error, at 1 in 16 million packets.
    pub soonest_s: f64,
    /// The same at 1 in 10 billion.
    pub latest_s: f64,
}

/// Packets in which one passes with an error undetected: "roughly 1 in 16 million to 10 billion" (App. C).
const TCP_PACKETS: [f64; 2] = [16e6, 10e9];

/// Undetected errors of TCP at one packet every `period_ns`.
#[must_use]
pub fn tcp_errors(period_ns: u64) -> TcpErrors {
    #[allow(clippy::cast_precision_loss, reason = "a period is far below 2^53 ns")]
    let period_s = period_ns as f64 / 1e9;
    TcpErrors { soonest_s: TCP_PACKETS[0] * period_s, latest_s: TCP_PACKETS[1] * period_s }
}

#[cfg(test)]
mod tests;
