// SPDX-License-Identifier: Apache-2.0
//! What of the network the lane may use (FiDe §3.3: "at most a given fraction of network bandwidth and queue
//! capacity, or a desired subset of network links").

use serde::{Deserialize, Serialize};

use crate::topology::{CableId, Topology};

/// Shares and the subset of cables.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Share of every link's bandwidth, above 0 and at most 1.
    pub bandwidth_share: f64,
    /// Share of every egress queue, above 0 and at most 1.
    pub queue_share: f64,
    /// Wire bytes of the largest frame that others send on the same links at a lower priority; one of them
    /// may be on the wire already when a packet comes.
    pub best_effort_wire_bytes: u64,
    /// Cables never used, by name (`a--b`).
    pub exclude: Vec<String>,
    /// If not empty: the only cables used.
    pub only: Vec<String>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bandwidth_share: 0.5,
            queue_share: 0.5,
            best_effort_wire_bytes: crate::request::BEST_EFFORT_WIRE_BYTES,
            exclude: Vec::new(),
            only: Vec::new(),
        }
    }
}

/// Why limits make no sense.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum LimitsError {
    #[error("limits: {what} is {value}; it must be above 0 and at most 1")]
    Share { what: &'static str, value: f64 },
    #[error("limits: best_effort_wire_bytes is {0}; it must be at most 65536")]
    Frame(u64),
    #[error(
        "limits: there is no cable {name:?}, or several; write it as a--b, with ports as a:p--b:q if there are several"
    )]
    Cable { name: String },
}

impl Limits {
    /// For each cable whether it may be used.
    ///
    /// # Errors
    /// [`LimitsError`].
    pub fn usable(&self, topology: &Topology) -> Result<Vec<bool>, LimitsError> {
        for (what, value) in [("bandwidth_share", self.bandwidth_share), ("queue_share", self.queue_share)] {
            if !(value > 0.0 && value <= 1.0) {
                return Err(LimitsError::Share { what, value });
            }
        }
        if self.best_effort_wire_bytes > 1 << 16 {
            return Err(LimitsError::Frame(self.best_effort_wire_bytes));
        }
        let find = |name: &String| -> Result<CableId, LimitsError> {
            topology.find_cable(name).ok_or_else(|| LimitsError::Cable { name: name.chars().take(160).collect() })
        };
        let mut usable = vec![self.only.is_empty(); topology.cables().len()];
        for name in &self.only {
            usable[find(name)?.at()] = true;
        }
        for name in &self.exclude {
            usable[find(name)?.at()] = false;
        }
        Ok(usable)
    }
}
