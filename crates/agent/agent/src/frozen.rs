// SPDX-License-Identifier: Apache-2.0
//! The loop's state, written down for the agent that takes over.

use fide_detector::{Detector, SnapshotError};
use fide_types::{ClientSet, HostId, Name, ProcessRef};
use serde::{Deserialize, Serialize};

use crate::{clock::Clock, timeout::Network};

/// Watches of all clients of one agent together.
pub const WATCHES_MAX: usize = fide_detector::roster::WISHES_MAX;
/// Heartbeats that a frozen agent repeats at most. Then its host falls silent, as if the agent had died.
pub const REPEATS_MAX: u64 = 250;

/// The loop's whole state.
#[derive(Debug, Serialize, Deserialize)]
pub struct Frozen {
    pub detector: Vec<u8>,
    pub watches: Vec<Watch>,
    pub next_watch: u32,
    /// By slot.
    pub owners: Vec<Option<Owner>>,
    pub next_cookie: u64,
    /// Events that each client has lost.
    pub lost: Vec<u64>,
    pub started_ns: u64,
    pub formers: Vec<OpenFormer>,
    pub lanes: FrozenLanes,
    pub clock: Clock,
    /// By host from 1.
    pub gaps: Vec<FrozenGaps>,
    /// By host from 1: its recent jitter, and what its planned network adds.
    pub late: Vec<(u64, Network)>,
    /// The loop's recent lateness, ns.
    pub own_late_ns: u64,
}

/// One client's wish to be notified about one process or host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    pub id: u32,
    pub client: u8,
    pub host: HostId,
    /// `None`: the host itself.
    pub name: Option<Name>,
    /// The client's own process, so that the subject's host knows which process watches.
    pub watcher_slot: u8,
}

/// The client that registered a local process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Owner {
    /// Distinguishes the registrations of one slot.
    pub cookie: u64,
    /// `u8::MAX`: its session is over.
    pub client: u8,
    /// 0: the program does not beat.
    pub beat_timeout_ns: u64,
    pub beat: u64,
    pub beat_ns: u64,
    pub stalled: bool,
    /// When all changes announced so far are paid for.
    pub changes_paid_ns: u64,
}

/// A subject that an agent before this one reported up, without an end so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFormer {
    pub client: u8,
    pub watch: u32,
    pub subject: ProcessRef,
    pub incarnation: u32,
    pub timeout_ns: u64,
    /// Since when it has been known to be over with its host's life; 0: not known.
    pub other_since_ns: u64,
}

/// Keeps messages of lanes from being delivered twice, and listeners listening.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct FrozenLanes {
    /// Host, lane, incarnation, newest packet.
    pub newest: Vec<(u16, u8, u32, u64)>,
    /// Service, clients.
    pub listeners: Vec<(u8, ClientSet)>,
}

/// The gaps of one peer.
#[derive(Debug, Serialize, Deserialize)]
pub struct FrozenGaps {
    pub longest_ns: u64,
    pub longest_at_ns: u64,
    pub sum_ns: u64,
    pub incarnation: u32,
    /// Bucket and count of the buckets that are not empty.
    pub counts: Vec<(u16, u64)>,
}

/// The state of the agent before could not be resumed.
#[derive(Debug, thiserror::Error)]
#[error("the running agent's state cannot be taken on: {0}; restart instead of taking over")]
pub struct ResumeError(SnapshotError);

impl From<SnapshotError> for ResumeError {
    fn from(why: SnapshotError) -> Self {
        Self(why)
    }
}

impl Frozen {
    /// The detector, advanced as if all repeats had been sent.
    ///
    /// # Errors
    /// [`ResumeError`].
    pub fn detector(&self) -> Result<Detector, ResumeError> {
        let mut detector = Detector::from_bytes(&self.detector)?;
        detector.skip_heartbeats(REPEATS_MAX + 1);
        Ok(detector)
    }
}
