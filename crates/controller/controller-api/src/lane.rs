// SPDX-License-Identifier: Apache-2.0
//! Lanes: bodies of requests and answers (X-Lane Listing 1).
//!
//! A controller refuses a request with an unknown field, as it cannot meet a demand that it does not know. A
//! client ignores unknown fields of an answer.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::failure::Failure;

/// `POST` and `PUT` of a lane: `requestBandwidth`, `changeBandwidth`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaneRequest {
    pub name: String,
    /// May be left out; otherwise it must be the calling host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sender: Option<String>,
    pub receivers: Vec<String>,
    pub size_max_bytes: u64,
    pub period_min_ns: u64,
    #[serde(default)]
    pub priority: u8,
    /// Number of trees; 2 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redundancy: Option<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_max_ns: Option<u64>,
    /// The lane's number in its packets; receivers learn it from the controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<u8>,
}

/// A lane as the controller describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lane {
    pub lane: u64,
    pub name: String,
    pub purpose: Purpose,
    pub sender: String,
    pub priority: u8,
    pub label: Option<u8>,
    pub standing: Standing,
    pub resources: Resources,
    pub receivers: Vec<Receiver>,
    pub trees: Vec<Tree>,
    /// The sender must not begin earlier: until then other lanes have their old contracts.
    #[serde(default)]
    pub begins_in_ns: u64,
}

/// The purpose of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// A lane of a program, or of an agent.
    Service,
    /// Heartbeats, opened by the controller for the hosts that monitor a host.
    Heartbeat,
    #[serde(other)]
    Unknown,
}

/// Whether a lane's contract is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    Held,
    /// Its sender exceeded the contract: the lane has no bounds and the lowest priority (X-Lane §3.3).
    Demoted,
    Ended,
    #[serde(other)]
    Unknown,
}

/// A tree's progress from planned to used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Its rules are on the way to the switches.
    Installing,
    /// In every switch; the sender is notified.
    Ready,
    /// The sender uses it.
    Used,
    /// Broken, and there is no other.
    Lost,
    #[serde(other)]
    Unknown,
}

impl Purpose {
    /// As it is written.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Purpose::Service => "service",
            Purpose::Heartbeat => "heartbeat",
            Purpose::Unknown => "unknown",
        }
    }
}

impl Standing {
    /// As it is written.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Standing::Held => "held",
            Standing::Demoted => "demoted",
            Standing::Ended => "ended",
            Standing::Unknown => "unknown",
        }
    }
}

impl Phase {
    /// As it is written.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Installing => "installing",
            Phase::Ready => "ready",
            Phase::Used => "used",
            Phase::Lost => "lost",
            Phase::Unknown => "unknown",
        }
    }
}

/// `struct resources` of Listing 1, or the text `UNBOUNDED`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
pub enum Resources {
    Bounded(Bounds),
    /// Its packets have no bounds, and the lowest priority.
    Unbounded,
}

/// A lane's limits, and its latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    pub size_max_bytes: u64,
    pub period_min_ns: u64,
    pub latency_min_ns: u64,
    pub jitter_max_ns: u64,
}

impl Resources {
    /// The bounds, if there are any.
    #[must_use]
    pub fn bounds(&self) -> Option<&Bounds> {
        match self {
            Resources::Bounded(bounds) => Some(bounds),
            Resources::Unbounded => None,
        }
    }
}

/// What [`Resources::Unbounded`] is written as.
const UNBOUNDED: &str = "UNBOUNDED";

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Bounds(Bounds),
    Text(String),
}

impl From<Written> for Resources {
    fn from(written: Written) -> Resources {
        match written {
            Written::Bounds(bounds) => Resources::Bounded(bounds),
            Written::Text(_) => Resources::Unbounded,
        }
    }
}

impl From<Resources> for Written {
    fn from(resources: Resources) -> Written {
        match resources {
            Resources::Bounded(bounds) => Written::Bounds(bounds),
            Resources::Unbounded => Written::Text(UNBOUNDED.to_owned()),
        }
    }
}

/// A receiver of a lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receiver {
    pub host: String,
    /// `None` while the lane has no bounds.
    pub latency: Option<Latency>,
}

/// When packets come to a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// The earliest.
    pub latency_min_ns: u64,
    /// How much later the latest may be.
    pub jitter_max_ns: u64,
}

/// A link of a tree: the node that it leaves, the port there, the node that it comes to.
pub type Link = (String, String, String);

/// A tree of a lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree {
    pub tree: u8,
    /// Grows each time that the tree is replaced.
    pub generation: u32,
    /// The sender sends to it.
    pub group: Ipv4Addr,
    /// The two groups that generations use in turns. A receiver listens to both, so it need not know when a
    /// tree changes.
    pub groups: [Ipv4Addr; 2],
    /// The sender's port that it leaves by.
    pub port: Option<String>,
    pub phase: Phase,
    pub links: Vec<Link>,
}

impl Tree {
    /// Whether it is in every switch.
    #[must_use]
    pub fn is_installed(&self) -> bool {
        matches!(self.phase, Phase::Ready | Phase::Used)
    }
}

/// The lanes that the caller sends or receives on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lanes {
    pub lanes: Vec<Lane>,
}

/// The answer to `DELETE` of a lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Released {
    pub lane: u64,
    pub ended: bool,
}

/// Packets sent on a lane since the last such request (X-Lane §3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Usage {
    pub interval_ns: u64,
    pub packets: u64,
    /// Dropped at the sender, because they were too large or too early.
    pub exceeded: u64,
}

/// The answer to [`Usage`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum UsageAnswer {
    /// The lane as it is now.
    Lane(Box<Lane>),
    /// The lane is over, or one of the controller's heartbeats: nothing changes.
    Ignored { standing: Unchanged },
}

/// The text `unchanged`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unchanged {
    #[default]
    Unchanged,
}

/// The sender uses this generation of a tree now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moved {
    pub tree: u8,
    pub generation: u32,
}

/// The answer to [`Moved`] and [`TreeReport`]: the tree's generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generation {
    pub generation: u32,
}

/// Whether a tree reaches a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TreeReport {
    pub tree: u8,
    /// Generation of the group that was listened to last.
    pub generation: u32,
    /// Missing, or later than its bound: a slow tree is a broken one.
    pub missing: bool,
}

/// Reports about trees of several lanes. The controller judges each by itself, with `R` as plain JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reports<R = LaneReport> {
    pub reports: Vec<R>,
}

/// A [`TreeReport`] and its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LaneReport {
    pub lane: u64,
    #[serde(flatten)]
    pub report: TreeReport,
}

/// The answer to [`Reports`]: the reports that were refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reported {
    pub refused: Vec<RefusedReport>,
}

/// A report that was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedReport {
    /// As it was sent, which need not be a number.
    pub lane: Value,
    pub error: Failure,
}
