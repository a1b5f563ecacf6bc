// SPDX-License-Identifier: Apache-2.0
//! The detector as bytes, for an agent that takes over from another of the same version.

use crate::detector::Detector;

/// Bytes that are no detector of this version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a detector of this version: {0}")]
pub struct SnapshotError(String);

impl Detector {
    /// Everything but events not polled yet: poll them first.
    pub fn to_bytes(&self) -> Vec<u8> {
        // It holds only types that postcard can write.
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
        let is_valid = detector.peers.hosts() == members
            && detector.remotes.is_valid(members)
            && detector.locals.is_valid()
            && detector.views.is_valid();
        if !is_valid {
            return Err(SnapshotError("tables of the wrong size".into()));
        }
        detector.wishes.reserve();
        detector.requests.reserve();
        Ok(detector)
    }

    /// Counts `count` heartbeats as sent by another program: their numbers are not used again, and
    /// acknowledgements of them prolong nothing.
    pub fn skip_heartbeats(&mut self, count: u64) {
        self.sent.skip(self.sent.newest() + count);
    }
}
