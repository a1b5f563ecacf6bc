// SPDX-License-Identifier: Apache-2.0
//! When heartbeats go out: at start + n * heartbeat_ns, plus a bounded number of urgent ones between two of
//! these.

use serde::{Deserialize, Serialize};

/// The most heartbeats between two of the schedule. One round of a ballot takes two, and a second round may
/// follow.
pub const URGENT_MAX: u32 = 4;

/// The heartbeats due.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Schedule {
    heartbeat_ns: u64,
    next_ns: u64,
    urgent_max: u32,
    /// Urgent heartbeats that may still go out before the next scheduled one.
    urgent_left: u32,
    /// A program waits for what was piggybacked since the last heartbeat.
    hurried: bool,
}

impl Schedule {
    /// The first heartbeat is due at `now_ns`. None is urgent until [`Schedule::set_urgent_max`].
    pub(crate) fn new(heartbeat_ns: u64, now_ns: u64) -> Schedule {
        Schedule { heartbeat_ns, next_ns: now_ns, urgent_max: 0, urgent_left: 0, hurried: false }
    }

    pub(crate) fn set_urgent_max(&mut self, urgent_max: u32) {
        self.urgent_max = urgent_max.min(URGENT_MAX);
        self.urgent_left = self.urgent_max;
    }

    pub(crate) fn urgent_max(&self) -> u32 {
        self.urgent_max
    }

    pub(crate) fn next_ns(&self) -> u64 {
        self.next_ns
    }

    pub(crate) fn hurry(&mut self) {
        self.hurried = true;
    }

    /// Is there an urgent heartbeat left for a change of view?
    pub(crate) fn allows_urgent(&self) -> bool {
        self.urgent_left > 0
    }

    /// Does a program wait, and is there an urgent heartbeat left for it? Half of them are kept for changes
    /// of view.
    pub(crate) fn allows_hurried(&self) -> bool {
        self.hurried && self.urgent_left > self.urgent_max / 2
    }

    /// If a scheduled heartbeat is due: how many were missed before it. A late one goes out at once, the
    /// missed ones are skipped; there is never a burst.
    pub(crate) fn take_scheduled(&mut self, now_ns: u64) -> Option<u64> {
        let late_ns = now_ns.checked_sub(self.next_ns)?;
        let skipped = late_ns / self.heartbeat_ns;
        self.urgent_left = self.urgent_max;
        self.next_ns = self.next_ns.saturating_add(self.heartbeat_ns.saturating_mul(skipped + 1));
        Some(skipped)
    }

    /// An urgent heartbeat goes out. The schedule stays as it is.
    pub(crate) fn take_urgent(&mut self) {
        self.urgent_left -= 1;
    }

    /// A heartbeat was written: nobody waits any more.
    pub(crate) fn heartbeat_written(&mut self) {
        self.hurried = false;
    }
}
