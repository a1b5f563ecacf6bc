// SPDX-License-Identifier: Apache-2.0
//! What the loop does when its clock may have stood still, and how a lease gets into shared memory.

use fide_sys::clock::raw_ns;

use super::Engine;

impl Engine {
    /// Asks whether the machine stood still. If it did, the lease of before is over for everybody, before anything else.
    pub(super) fn look_at_clocks(&mut self) {
        let Some(doubt) = self.parts.clock.look() else { return };
        self.parts.table.set_lease(&self.parts.clock.lease(0), 0);
        self.parts.detector.doubt(raw_ns(), doubt.gap_ns());
    }

    /// Until when programs of this host may act. Peers hold it silent once nothing was sent for a timeout, whatever the trust: programs must not
    /// outlive a loop that does not run.
    pub(super) fn lease_until_ns(&self, now_raw_ns: u64) -> u64 {
        // No longer than this host promises: nobody waits longer for the programs of an agent that has ended. Nor than its first timeout, as a
        // promise that has grown since may not have been heard.
        let shortest_ns = self.parts.detector.config().timeout_ns.min(self.parts.detector.timeout_least_ns());
        self.parts.detector.lease_until_ns().min(now_raw_ns + shortest_ns)
    }

    /// As clients read it.
    pub(super) fn publish_lease(&self) {
        self.publish_exclusion();
        // The view first: whoever reads a lease of it finds it beside the lease.
        let id = self.parts.detector.view().id;
        if self.parts.table.view_id() != (id.generation, id.number) {
            self.publish_view();
        }
        let until_raw_ns = self.lease_until_ns(raw_ns());
        let clock = &self.parts.clock;
        self.parts.table.set_lease(&clock.lease(until_raw_ns), clock.mono_of(until_raw_ns));
    }

    /// What the control thread acts on: it has this host begin again, or says that it was put back.
    pub(super) fn publish_exclusion(&self) {
        let (excluded, put_back) = (self.parts.detector.is_excluded(), self.parts.detector.is_put_back());
        self.parts.exchange.set_put_back(put_back);
        self.parts.exchange.set_excluded(excluded && !put_back);
    }
}
