// SPDX-License-Identifier: Apache-2.0
//! When this host's clock may have stood still, because its machine was suspended or a hypervisor stopped it.
//!
//! [`crate::lease`] relies on a clock that advances while others wait out their promises. A stall does no
//! harm: the clock ran meanwhile, and the lease with it. But after a suspension the clock says that no time
//! has passed, and a lease would go on where it stopped. So everything acknowledged so far counts for
//! nothing: only a heartbeat that is sent from now on, and acknowledged, gives a lease again.
//!
//! What this host has promised to others needs no care. It counts their silence on the same clock, which
//! advanced by less than theirs, so it only waits longer than it has to.

use crate::detector::Detector;

impl Detector {
    /// The clock of `now_ns` may have stood still since the last call of any function, for `gap_ns` as far as
    /// is known. Ends the lease until a heartbeat sent from now on is acknowledged, and withholds suspicions
    /// as after a stall. To be called before anything that was received since is fed.
    pub fn doubt(&mut self, now_ns: u64, gap_ns: u64) {
        let now_ns = now_ns.max(self.last_tick_ns);
        self.last_tick_ns = now_ns;
        self.sent.forget();
        self.peers.others_mut().for_each(|peer| peer.unbind());
        self.record_stall(now_ns, gap_ns);
        self.renew_lease(now_ns);
    }
}

#[cfg(test)]
mod tests;
