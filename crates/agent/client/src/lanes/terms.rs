// SPDX-License-Identifier: Apache-2.0
//! The terms of a lane: requested, granted, and why they change (X-Lane Listing 1).

use fide_agent_api::protocol::{LaneAsked, Op};
use std::time::Duration;

/// One lane of this client. Stays the same when the agent is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId(pub u32);

/// A request for a lane (X-Lane Listing 1, `struct request`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneWanted {
    /// Name of the lane on this host: 1 to 31 of `A-Za-z0-9._-`. Programs of one user that ask for the same
    /// share it.
    pub name: String,
    /// Names of the receiving hosts.
    pub receivers: Vec<String>,
    /// Longest message, in bytes; at most [`LANE_MESSAGE_MAX`](fide_agent_api::session::LANE_MESSAGE_MAX).
    pub message_max_bytes: u32,
    /// Messages of that length in one period.
    pub messages_max: u32,
    /// Shortest time between two packets.
    pub period: Duration,
    /// Sub-lane: 0 is served before 1. Heartbeats are in 0.
    pub priority: u8,
    /// Disjoint trees, 1 or 2; `None`: as many as this host has planes.
    pub redundancy: Option<u8>,
    /// The lane is refused rather than later than this at any receiver.
    pub latency_max: Option<Duration>,
}

impl LaneWanted {
    /// One message of at most `message_max_bytes` a period, below heartbeats, over as many trees as there
    /// are.
    pub fn new(name: &str, receivers: &[&str], message_max_bytes: u32, period: Duration) -> Self {
        Self {
            name: name.to_owned(),
            receivers: receivers.iter().map(|host| (*host).to_owned()).collect(),
            message_max_bytes,
            messages_max: 1,
            period,
            priority: 1,
            redundancy: None,
            latency_max: None,
        }
    }

    pub(super) fn terms(&self) -> LaneAsked {
        LaneAsked {
            receivers: self.receivers.clone(),
            message_max_bytes: self.message_max_bytes,
            messages_max: self.messages_max,
            period_ns: nanos(self.period),
            priority: self.priority,
            redundancy: self.redundancy,
            latency_max_ns: self.latency_max.map(nanos),
        }
    }

    pub(crate) fn op(&self) -> Op {
        Op::OpenLane { name: self.name.clone(), asked: self.terms() }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The resources that a lane grants (X-Lane Listing 1, `struct resources`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneGrant {
    /// Largest packet.
    pub packet_max_bytes: u32,
    /// Longest message.
    pub message_max_bytes: u32,
    /// Shortest time between two packets.
    pub period: Duration,
    /// Latency between sending host and receiving host; `None`: best effort, without a bound.
    pub latency: Option<LaneLatency>,
}

/// From the time a packet leaves its host until it is at every receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneLatency {
    /// At the nearest receiver, by the fastest path.
    pub min: Duration,
    /// In addition, at the farthest one.
    pub jitter_max: Duration,
}

/// Why a lane's terms have changed (X-Lane Listing 1, `enum Reason`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneReason {
    /// Traffic engineering: other lanes came, went or moved.
    Te,
    /// It sent more than agreed: best effort from now on, until [`crate::Client::change_lane`].
    BwExceeded,
    /// It used less than half of its bandwidth.
    BwUnused,
    /// A reason of a later version.
    Other(u8),
}

/// An open lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lane {
    /// Its id in calls and events.
    pub id: LaneId,
    /// The controller's number, for people.
    pub number: u64,
    /// The granted resources.
    pub grant: LaneGrant,
    /// Trees that its packets go over.
    pub trees: u8,
}
