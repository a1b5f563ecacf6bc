// SPDX-License-Identifier: Apache-2.0
//! What a controller tells its peers unasked (X-Lane Listing 1, FiDe Listing 1).

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::lane::{Receiver, Resources, Tree};

/// The answer to a poll. A controller carries what it tells without looking at it: `E` is JSON there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch<E = Event> {
    /// What was dropped before it was acknowledged: it is learnt by asking for everything.
    pub lost: Option<Lost>,
    pub events: Vec<Numbered<E>>,
}

/// Numbers of events, first and last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    pub first: u64,
    pub last: u64,
}

/// An event, and its number among those of its peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Numbered<E = Event> {
    pub number: u64,
    pub event: E,
}

/// An event. What is none that this version knows is [`Event::Other`], not an error: a peer that stops at one event would not
/// hear the next ones either.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Event {
    /// A tree is in all switches.
    Tree(TreeReady),
    /// `bandwidthChanged`.
    BandwidthChanged(BandwidthChanged),
    /// `bandwidthTerminated`.
    BandwidthTerminated(BandwidthTerminated),
    /// This host receives the lane no longer.
    LaneEnded { lane: u64, why: String },
    /// A tree is broken, and there is no other.
    RedundancyLost(RedundancyLost),
    /// A program of this host is monitored, with so large piggybacks.
    MonitorRequest { app: String, from: String, pbsize: u64 },
    /// Piggybacks of this host's heartbeats have another size.
    PbsizeChanged { pbsize: u64 },
    /// A program that this host monitors has another timeout.
    TimeoutChanged { app: String, timeout_ns: u64 },
    /// What this version does not understand, as it came.
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

/// A lane's contract is another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BandwidthChanged {
    pub lane: u64,
    pub reason: Reason,
    pub resources: Resources,
    pub receivers: Vec<Receiver>,
    /// The old contract holds for so long.
    #[serde(default)]
    pub grace_ns: u64,
}

/// Why a contract changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// Traffic engineering: others came, went or moved.
    #[serde(rename = "TE")]
    Te,
    #[serde(rename = "BW_EXCEEDED")]
    BwExceeded,
    #[serde(rename = "BW_UNUSED")]
    BwUnused,
    #[serde(other)]
    Unknown,
}

/// A lane is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BandwidthTerminated {
    pub lane: u64,
    pub why: String,
    /// What is sent within it still arrives.
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

/// What goes on when a tree is broken and there is no other (FiDe §3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WithoutRedundancy {
    /// With a warning.
    Continue,
    /// Members are told to leave, while the remaining tree still carries their goodbye.
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
