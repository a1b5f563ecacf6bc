// SPDX-License-Identifier: Apache-2.0
//! What a service asks for, and the contract that it gets (X-Lane Listing 1, FiDe §3.3).

use serde::{Deserialize, Serialize};

use crate::topology::{NodeId, Topology};

/// Receivers of one request: a cluster's hosts but one.
pub const RECEIVERS_MAX: usize = 63;
/// Redundant trees of one request.
pub const REDUNDANCY_MAX: usize = 3;
/// Sub-lanes; 0 is the highest.
pub const PRIORITIES: usize = 4;
/// Largest payload that a request may ask for: one packet at an MTU of 9000.
pub const PAYLOAD_MAX_BYTES: u64 = 8972;
/// Longest period, a minute.
pub const PERIOD_MAX_NS: u64 = 60_000_000_000;
/// Shortest period.
pub const PERIOD_MIN_NS: u64 = 1_000;
/// What a payload costs on the wire beside itself: UDP, IPv4 and Ethernet headers, frame check sequence, preamble
/// and gap between frames.
pub const OVERHEAD_BYTES: u64 = 8 + 20 + 14 + 4 + 20;
/// What the smallest frame costs on the wire.
pub const WIRE_MIN_BYTES: u64 = 64 + 20;
/// What the largest frame of best-effort traffic costs on the wire, at an MTU of 1500.
pub const BEST_EFFORT_WIRE_BYTES: u64 = 1500 + 18 + 20;

/// Bytes on the wire for a UDP payload of `payload_bytes`.
#[must_use]
pub const fn wire_bytes(payload_bytes: u64) -> u64 {
    let bytes = payload_bytes + OVERHEAD_BYTES;
    if bytes < WIRE_MIN_BYTES { WIRE_MIN_BYTES } else { bytes }
}

/// A request for a periodic multicast protocol.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Its name in reports.
    pub name: String,
    pub sender: String,
    pub receivers: Vec<String>,
    /// sigma_max: largest UDP payload, bytes.
    pub size_max_bytes: u64,
    /// pi_min: shortest time between two packets, nanoseconds.
    pub period_min_ns: u64,
    /// Sub-lane; 0 is the highest (X-Lane §3.3).
    #[serde(default)]
    pub priority: u8,
    /// K: trees that share no switch and no cable.
    #[serde(default = "two")]
    pub redundancy: u8,
    /// Refuse what cannot be held within this, nanoseconds: the largest lambda_min + delta_max of any receiver.
    #[serde(default)]
    pub latency_max_ns: Option<u64>,
}

const fn two() -> u8 {
    2
}

/// Why a request makes no sense in a topology.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RequestError {
    #[error("there is no host {name:?}{hint}")]
    UnknownHost { name: String, hint: String },
    #[error("{name:?} is a switch; senders and receivers are hosts")]
    NotAHost { name: String },
    #[error("receiver {name:?} is named twice")]
    ReceiverTwice { name: String },
    #[error("{name:?} sends and receives; a sender needs no tree to itself")]
    SenderReceives { name: String },
    #[error("{count} receivers: 1 to {RECEIVERS_MAX} are possible")]
    Receivers { count: usize },
    #[error("{what} is {value}; it must be {low} to {high}")]
    Value { what: &'static str, value: u64, low: u64, high: u64 },
}

/// A request whose hosts are known.
#[derive(Clone, Debug)]
pub(crate) struct Resolved {
    pub(crate) sender: NodeId,
    pub(crate) receivers: Vec<NodeId>,
}

impl Request {
    /// Looks up its hosts and checks its figures.
    pub(crate) fn resolve(&self, topology: &Topology) -> Result<Resolved, RequestError> {
        let within = |what, value: u64, low: u64, high: u64| {
            if (low..=high).contains(&value) { Ok(()) } else { Err(RequestError::Value { what, value, low, high }) }
        };
        within("size_max_bytes", self.size_max_bytes, 1, PAYLOAD_MAX_BYTES)?;
        within("period_min_ns", self.period_min_ns, PERIOD_MIN_NS, PERIOD_MAX_NS)?;
        within("priority", u64::from(self.priority), 0, PRIORITIES as u64 - 1)?;
        within("redundancy", u64::from(self.redundancy), 1, REDUNDANCY_MAX as u64)?;
        if !(1..=RECEIVERS_MAX).contains(&self.receivers.len()) {
            return Err(RequestError::Receivers { count: self.receivers.len() });
        }
        let sender = host(topology, &self.sender)?;
        let mut receivers = Vec::with_capacity(self.receivers.len());
        for name in &self.receivers {
            let receiver = host(topology, name)?;
            if receiver == sender {
                return Err(RequestError::SenderReceives { name: name.clone() });
            }
            if receivers.contains(&receiver) {
                return Err(RequestError::ReceiverTwice { name: name.clone() });
            }
            receivers.push(receiver);
        }
        Ok(Resolved { sender, receivers })
    }

    /// Bytes of its largest packet on the wire.
    #[must_use]
    pub fn wire_bytes(&self) -> u64 {
        wire_bytes(self.size_max_bytes)
    }

    /// Bandwidth that one tree takes of each of its links, bits per second, rounded up.
    #[must_use]
    pub fn bandwidth_bps(&self) -> u64 {
        (self.wire_bytes() * 8 * 1_000_000_000).div_ceil(self.period_min_ns)
    }
}

fn host(topology: &Topology, name: &str) -> Result<NodeId, RequestError> {
    let Some(node) = topology.find(name) else {
        let hosts = topology.hosts().count();
        let hint = match topology.hosts().next() {
            Some(first) => format!("; the topology has {hosts}, the first is {:?}", topology.node(first).name),
            None => "; the topology has none".to_owned(),
        };
        let name = name.chars().take(64).collect();
        return Err(RequestError::UnknownHost { name, hint });
    };
    if topology.is_host(node) { Ok(node) } else { Err(RequestError::NotAHost { name: name.to_owned() }) }
}

/// Latency of one receiver, over one tree or over a set of redundant ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Latency {
    /// lambda_min, nanoseconds: no packet is sooner.
    pub latency_min_ns: u64,
    /// delta_max, nanoseconds: none is later than lambda_min + delta_max.
    pub jitter_max_ns: u64,
}

impl Latency {
    /// lambda_min + delta_max.
    #[must_use]
    pub const fn latency_max_ns(self) -> u64 {
        self.latency_min_ns + self.jitter_max_ns
    }

    /// TO = HB + lambda_min + 2 delta_max (FiDe §3.3), nanoseconds, if a heartbeat is sent every `heartbeat_ns`.
    #[must_use]
    pub const fn timeout_ns(self, heartbeat_ns: u64) -> u64 {
        heartbeat_ns + self.latency_min_ns + 2 * self.jitter_max_ns
    }
}

/// What the network promises, as long as the sender keeps to it (X-Lane §2.1, Listing 1; FiDe App. B).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Contract {
    pub size_max_bytes: u64,
    pub period_min_ns: u64,
    /// For each receiver, in the order of the request: over the whole set of trees, as long as one of them works.
    pub receivers: Vec<Latency>,
}

impl Contract {
    /// The set as a whole, as X-Lane's Listing 1 has it: the earliest packet of any receiver, the latest of any.
    #[must_use]
    pub fn overall(&self) -> Latency {
        let min = self.receivers.iter().map(|r| r.latency_min_ns).min().unwrap_or(0);
        let max = self.receivers.iter().map(|r| r.latency_max_ns()).max().unwrap_or(0);
        Latency { latency_min_ns: min, jitter_max_ns: max - min }
    }
}
