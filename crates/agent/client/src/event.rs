// SPDX-License-Identifier: Apache-2.0
//! The events of a client.

use crate::lanes::{LaneGrant, LaneId, LaneReason};
use fide_agent_api::protocol::Refusal;
use fide_types::Reason;
use std::{sync::Arc, time::Duration};

/// One `monitor` of this client. Stays the same when the agent is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MonitorId(pub u32);

/// One `join` of this client. Stays the same when the agent is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessId(pub u32);

/// The subject of an event, and how it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Evidence {
    /// Host id of the subject.
    pub host_id: u16,
    /// Its slot there; [`crate::HOST_SLOT`] for the host itself.
    pub slot: u8,
    /// Its incarnation.
    pub incarnation: u32,
    /// Sequence number of the last heartbeat of its host, or of the piggyback.
    pub seq: u64,
    /// This host's CLOCK_MONOTONIC when the packet was seen, or the verdict decided.
    pub rx_ns: u64,
    /// CLOCK_MONOTONIC of the subject's host at its exit, if known.
    pub at_ns: Option<u64>,
    /// Plane that the packet came on.
    pub plane: u8,
    /// Delivered by the kernel's receive program itself, without the agent.
    pub direct: bool,
}

/// A verdict on one incarnation. A final one is delivered exactly once per monitor and incarnation, and
/// never withdrawn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The monitor.
    pub monitor: MonitorId,
    /// Its target, "name@host" or "@host".
    pub target: Arc<str>,
    /// Why.
    pub reason: Reason,
    /// The subject, and how the verdict is known.
    pub evidence: Evidence,
}

/// An event of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A target is alive in this incarnation. Delivered once per monitor and incarnation, before any
    /// verdict on it. A new incarnation means that the one before is over. Processes of one host in one
    /// life of its agent (same upper 20 bits) are delivered in the order in which they began; a process
    /// that this host first hears of when a later one is known is not delivered at all. The numbers of two
    /// lives do not show which was first: they wrap around.
    Up {
        /// The monitor.
        monitor: MonitorId,
        /// Its target.
        target: Arc<str>,
        /// The subject, and how it is known.
        evidence: Evidence,
    },
    /// A target died, left, stalled or recovered (FiDe §3.1 `on_failure`).
    Verdict(Verdict),
    /// A message from a target (FiDe §3.1 `on_piggyback_rcv`); `evidence.seq` is its number.
    Piggyback {
        /// The monitor.
        monitor: MonitorId,
        /// Its target.
        target: Arc<str>,
        /// The subject, and how it is known.
        evidence: Evidence,
        /// The message.
        bytes: Box<[u8]>,
    },
    /// The timeout granted to a monitor changed (FiDe §3.1 `on_timeout_changed`).
    TimeoutChanged {
        /// The monitor.
        monitor: MonitorId,
        /// Now granted.
        timeout: Duration,
    },
    /// A program monitors one of this client's processes (FiDe §3.1 `on_monitor_req`).
    MonitorRequest {
        /// Which process.
        process: ProcessId,
        /// Host id of the watcher.
        watcher_host_id: u16,
        /// "name@host" of the watcher as far as known; may be empty.
        watcher: Box<str>,
        /// Piggyback bytes per heartbeat that it asks for.
        pbsize: u16,
    },
    /// The piggyback size granted to one of this client's processes changed (FiDe §3.1 `on_pbsize_changed`).
    PbsizeChanged {
        /// Which process.
        process: ProcessId,
        /// Now granted, in bytes.
        pbsize: u16,
    },
    /// This host must not act, because it cannot prove that it is heard. [`crate::Live::fenced`] shows it
    /// earlier.
    Fenced,
    /// This host may act again.
    Unfenced,
    /// One plane to a host is silent: a network fault, and no death.
    PathLost {
        /// The host.
        host_id: u16,
        /// The plane.
        plane: u8,
    },
    /// That plane is back.
    PathRestored {
        /// The host.
        host_id: u16,
        /// The plane.
        plane: u8,
    },
    /// This host has another incarnation: it was excluded and is back, or its agent started anew. Others
    /// have declared dead everything that ran here before, and may have replaced it. This program is fenced
    /// until [`crate::Client::rejoined_acknowledge`].
    Rejoined {
        /// The new incarnation.
        incarnation: u32,
    },
    /// This observer did not run on time; its suspicion of that host was withheld.
    ObserverStalled {
        /// The host that was not suspected.
        host_id: u16,
    },
    /// A message came over a lane, for a service that this client listens to (X-Lane §2.4).
    LaneMessage {
        /// Host id of the sender.
        host_id: u16,
        /// Incarnation of the sender's agent.
        incarnation: u32,
        /// 1..=255.
        service: u8,
        /// Number of the packet: later packets of one sending lane have higher ones.
        seq: u64,
        /// This host's CLOCK_MONOTONIC when the packet was seen.
        rx_ns: u64,
        /// Tree that the packet came over first.
        plane: u8,
        /// The message.
        bytes: Box<[u8]>,
    },
    /// A lane's terms have changed (X-Lane `bandwidthChanged`). The previous terms hold until the grace
    /// period is over.
    LaneChanged {
        /// The lane.
        lane: LaneId,
        /// The lane's new terms.
        grant: LaneGrant,
        /// Why.
        reason: LaneReason,
        /// How long the previous terms still hold.
        grace: Duration,
    },
    /// A lane is terminated (X-Lane `bandwidthTerminated`); open another one.
    LaneTerminated {
        /// The lane.
        lane: LaneId,
        /// Its name.
        name: Arc<str>,
        /// Why.
        why: Box<str>,
        /// How long the lane may still be used.
        grace: Duration,
    },
    /// The agent went away. Nothing is lost yet; if it stays away, the lease runs out and this host is
    /// fenced.
    Detached {
        /// How the client noticed.
        why: Box<str>,
    },
    /// An agent is back.
    Reattached {
        /// Whether it continued the old session, or is a new one with which everything was registered
        /// again.
        resumed: bool,
    },
    /// A new agent refused to register a process, monitor, lane or service again; it is no longer registered.
    Dropped {
        /// What: "name" of a process or a lane, "name@host" of a monitor, "service N".
        what: Arc<str>,
        /// Why.
        refusal: Refusal,
    },
    /// Events were lost because the ring was full: read the table ([`crate::Client::peer_state`]).
    Lost {
        /// How many since the last such event.
        count: u64,
    },
}
