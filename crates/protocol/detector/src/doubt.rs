// SPDX-License-Identifier: Apache-2.0
//! When this host's clock may have stood still: its machine was suspended, or stopped by a hypervisor.
//!
//! [`crate::lease`] counts on a clock that advances while others wait out their promises. A stall is no harm to that: the
//! clock ran meanwhile, and the lease with it. After a suspension the clock says that no time has passed, and a lease would
//! go on where it stopped. So all that was acknowledged counts for nothing any more: only a heartbeat that is sent, and
//! acknowledged, from now on gives a lease again.
//!
//! What this host has promised to others needs nothing: it counts their silence on the same clock, which advanced by less
//! than theirs. It just waits longer than it would have to.

use crate::detector::Detector;

impl Detector {
    /// The clock of `now_ns` may have stood still since the last call of anything, for `gap_ns` as far as is known. Ends the
    /// lease until a heartbeat sent from now on is acknowledged, and withholds suspicions as after a stall. To be called
    /// before anything that was received since is handed in.
    pub fn doubt(&mut self, now_ns: u64, gap_ns: u64) {
        let now_ns = now_ns.max(self.last_tick_ns);
        self.last_tick_ns = now_ns;
        self.sent.forget();
        for peer in &mut self.peers {
            peer.limit_ns = 0;
            peer.bound = false;
        }
        self.stalled(now_ns, gap_ns);
        self.renew_lease(now_ns);
    }
}

#[cfg(test)]
mod tests;
