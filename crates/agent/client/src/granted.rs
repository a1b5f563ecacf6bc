// SPDX-License-Identifier: Apache-2.0
//! A program's requests to an agent, and the agent's grants.

use std::time::Duration;

use fide_agent_api::protocol::{Op, PeerState};

use crate::event::{MonitorId, ProcessId};

/// A monitor's wishes (FiDe §3.1, `resources`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wanted {
    /// Timeout; `None` for the shortest possible. The agent refuses a timeout that its host cannot hold.
    pub timeout: Option<Duration>,
    /// Piggyback bytes per heartbeat.
    pub pbsize: u16,
}

/// A monitor's granted resources, and the present state of its target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Monitor {
    /// Its id in events.
    pub id: MonitorId,
    /// Host id of the target.
    pub host_id: u16,
    /// Timeout granted; at least the wanted one.
    pub timeout: Duration,
    /// Piggyback bytes per heartbeat granted.
    pub pbsize: u16,
    /// The target's state now.
    pub state: PeerState,
    /// The target's slot (0xff: the host itself) and incarnation; meaningless while `state` is unknown.
    pub slot: u8,
    /// See `slot`.
    pub incarnation: u32,
}

/// A joined process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Joined {
    /// Its id in events.
    pub id: ProcessId,
    /// Slot on this host.
    pub slot: u8,
    /// Incarnation.
    pub incarnation: u32,
    /// Largest piggyback it may send, in bytes.
    pub pbsize: u16,
}

impl Wanted {
    pub(crate) fn op(self, target: &str) -> Op {
        let timeout_us = self.timeout.map_or(0, micros);
        Op::Monitor { target: target.to_owned(), timeout_us, pbsize: self.pbsize }
    }
}

/// Whole microseconds, rounded up so that a wish never becomes "none".
pub(crate) fn micros(duration: Duration) -> u32 {
    duration.as_nanos().div_ceil(1_000).min(u32::MAX.into()) as u32
}
