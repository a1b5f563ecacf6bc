// SPDX-License-Identifier: Apache-2.0
//! The lease under which a member may act.

/// The lease of one member, read at one moment of its own clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// That moment.
    pub now_ns: u64,
    /// The lease's end: `Detector::lease_until_ns`.
    pub until_ns: u64,
}

impl Lease {
    #[must_use]
    pub fn holds(self) -> bool {
        self.now_ns < self.until_ns
    }
}
