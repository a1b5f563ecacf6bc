// SPDX-License-Identifier: Apache-2.0
//! Until when a member may act.

/// Of one member, at one moment of its own clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    pub now_ns: u64,
    /// `Detector::lease_until_ns`.
    pub until_ns: u64,
}

impl Lease {
    #[must_use]
    pub fn holds(self) -> bool {
        self.now_ns < self.until_ns
    }
}
