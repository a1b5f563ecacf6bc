// SPDX-License-Identifier: Apache-2.0
//! The detector written down, for an agent that takes over from another of the same version.

use std::collections::VecDeque;

use crate::detector::{Detector, EVENTS_MAX};
use crate::roster::{REQUESTS_MAX, WISHES_MAX};

/// Bytes that are no detector of this version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a detector of this version: {0}")]
pub struct SnapshotError(String);

impl Detector {
    /// Everything but events not polled yet: poll them first.
    pub fn to_bytes(&self) -> Vec<u8> {
        // Only types that postcard can write are in it.
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// The inverse, with room for all there will ever be.
    ///
    /// # Errors
    /// [`SnapshotError`] for bytes of another version, or cut off.
    pub fn from_bytes(bytes: &[u8]) -> Result<Detector, SnapshotError> {
        let mut detector: Detector = postcard::from_bytes(bytes).map_err(|error| SnapshotError(error.to_string()))?;
        detector.config.validate().map_err(|error| SnapshotError(error.to_string()))?;
        let members = detector.config.members.len();
        let sizes = [detector.peers.len(), detector.remotes.len() / fide_wire::MAX_PROCESSES];
        if sizes.iter().any(|size| *size != members) || detector.locals.len() != fide_wire::MAX_PROCESSES {
            return Err(SnapshotError("tables of the wrong size".into()));
        }
        detector.events = VecDeque::with_capacity(EVENTS_MAX);
        detector.wishes.reserve_exact(WISHES_MAX.saturating_sub(detector.wishes.len()));
        detector.requests.reserve_exact(REQUESTS_MAX.saturating_sub(detector.requests.len()));
        Ok(detector)
    }

    /// Counts `count` heartbeats as sent by somebody else: their numbers are not used again, and acknowledgements of
    /// them prolong nothing.
    pub fn skip_heartbeats(&mut self, count: u64) {
        self.seq += count;
        self.sent.skip(self.seq);
    }

    /// When the next heartbeat is due.
    pub fn next_heartbeat_ns(&self) -> u64 {
        self.next_heartbeat_ns
    }
}
