// SPDX-License-Identifier: Apache-2.0
//! A server that takes nothing from its own replication link ends, and leaves the group to the others: it would hold them
//! up once enough decisions wait for it ([`FEED_MAX`]), and could not lead.
//!
//! Redis connects again within a second wherever it can, so this is a host whose loopback does not work, or a setting that
//! keeps Redis from its link.

use super::{
    state::{Act, FEED_MAX, Mode, State},
    taking::STUCK_S,
};

impl State {
    /// Ends this server if its link is stuck and there are others.
    pub(super) fn look_whether_stuck(&mut self) {
        let is_fed = matches!(self.mode, Mode::Following | Mode::Leading);
        // Without the end of a unit there is no position, and much of it may have come.
        let waits = self.taking.pushed.min(self.fed) > self.applied || self.feed.len() > FEED_MAX;
        if !self.taking.look(is_fed && waits, self.applied, self.feed.taken()) || !self.member.has_others() {
            return;
        }
        let link = if self.feed.is_streaming() { "stands" } else { "does not stand" };
        let wait = self.feed.len();
        self.mode = Mode::Out;
        self.act(Act::End(format!(
            "it has taken nothing from its own replication link for {STUCK_S} s, which {link}; {wait} bytes of what the group has decided \
             wait for it. Redis has to reach 127.0.0.1:{}: look at the loopback interface, and at what this log says of MASTER",
            self.feed.port()
        )));
    }
}
