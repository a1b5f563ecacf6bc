// SPDX-License-Identifier: Apache-2.0
//! Events, which clients poll (upcalls of X-Lane Listing 1 and FiDe Listing 1).

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::lane::{Receiver, Resources, Tree};

/// The answer to a poll. The controller's server does not look into events: `E` is plain JSON there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch<E = Event> {
    /// Events that were dropped before they were acknowledged. The client reads the whole state instead.
    pub lost: Option<Lost>,
    pub events: Vec<Numbered<E>>,
}

/// Numbers of the first and the last event that were dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    pub first: u64,
    pub last: u64,
}

/// An event and its number; each client has numbers of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Numbered<E = Event> {
    pub number: u64,
    pub event: E,
}

/// An event. An event that this version cannot read is [`Event::Other`], not an error: a client that
/// stopped there would never read the next one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Event {
    /// A tree is in all switches.
    Tree(TreeReady),
    /// `bandwidthChanged`.
    BandwidthChanged(BandwidthChanged),
    /// `bandwidthTerminated`.
    BandwidthTerminated(BandwidthTerminated),
    /// The client does not receive this lane any longer.
    LaneEnded { lane: u64, why: String },
    /// A tree is broken, and there is no other.
    RedundancyLost(RedundancyLost),
    /// A host monitors a program of this client; its heartbeats carry piggybacks of this size.
    MonitorRequest { app: String, from: String, pbsize: u64 },
    /// Another size of the piggybacks in this client's heartbeats.
    PbsizeChanged { pbsize: u64 },
    /// Another timeout for a program that this client monitors.
    TimeoutChanged { app: String, timeout_ns: u64 },
    /// An event that this version cannot read, as it came.
    #[serde(untagged)]
    Other(Value),
}

/// A tree that its sender may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeReady {
    pub lane: u64,
    pub name: String,
    pub sender: String,
    pub label: Option<u8>,
    #[serde(flatten)]
    pub tree: Tree,
}

/// A lane has another contract.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BandwidthChanged {
    pub lane: u64,
    pub reason: Reason,
    pub resources: Resources,
    pub receivers: Vec<Receiver>,
    /// The old contract holds for this time.
    #[serde(default)]
    pub grace_ns: u64,
}

/// Why a contract changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// Traffic engineering: other lanes came, went or moved.
    #[serde(rename = "TE")]
    Te,
    #[serde(rename = "BW_EXCEEDED")]
    BwExceeded,
    #[serde(rename = "BW_UNUSED")]
    BwUnused,
    #[serde(other)]
    Unknown,
}

/// A lane is terminated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BandwidthTerminated {
    pub lane: u64,
    pub why: String,
    /// Packets sent within this time still arrive.
    #[serde(default)]
    pub grace_ns: u64,
}

/// A tree is lost (FiDe §3.3).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RedundancyLost {
    pub lane: u64,
    pub name: String,
    pub sender: String,
    pub tree: u8,
    pub why: String,
    /// Why there is no other.
    pub no_other: String,
    pub policy: WithoutRedundancy,
}

/// The policy for a tree that is lost and cannot be replaced (FiDe §3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WithoutRedundancy {
    /// Go on with a warning.
    Continue,
    /// Members have to leave, while the remaining tree still carries their goodbye.
    Stop,
}

impl WithoutRedundancy {
    /// As it is written.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            WithoutRedundancy::Continue => "continue",
            WithoutRedundancy::Stop => "stop",
        }
    }
}
