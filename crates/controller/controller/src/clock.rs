// SPDX-License-Identifier: Apache-2.0
//! Points in time, as they are passed to state machines.

use rustix::time::{ClockId, clock_gettime};

/// One moment on both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Now {
    /// Nanoseconds since this host was started, its suspensions included: for durations and deadlines of this
    /// life.
    pub boot_ns: u64,
    /// Nanoseconds since 1970: for stored times that may be read on another host. May jump.
    pub unix_ns: u64,
}

impl Now {
    /// Reads both clocks.
    pub fn read() -> Now {
        let ns = |clock| {
            let at = clock_gettime(clock);
            (at.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(at.tv_nsec as u64)
        };
        Now { boot_ns: ns(ClockId::Boottime), unix_ns: ns(ClockId::Realtime) }
    }
}
