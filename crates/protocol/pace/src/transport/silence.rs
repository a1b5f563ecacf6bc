// SPDX-License-Identifier: Apache-2.0
//! Feedback that does not come: packets that count as lost by that, and outages.
//!
//! In an outage nothing leaves but requests for the other end's clock, so that whatever is sent into nothing is little, and the
//! other end's record of numbers is not outrun. They are small, so they also come over a path that takes no large packets any more
//! ([`crate::mtu`]). Once one is answered everything goes on. Messages expire all the while.

use super::Transport;
use crate::{
    flight::{Cargo, LATER_US, Outcome, VARIES_LEAST_US},
    sender::Way,
};

/// Feedback is missing if there is none for so many of the times in which one for the last packet should have come.
const SILENCE_WAITS: u64 = 4;
/// So many silences in a row are an outage: until something is heard, only requests for the other end's clock leave, so
/// often at most.
const OUTAGE_SILENCES: u32 = 3;
pub(super) const OUTAGE_PING_NS: u64 = 100_000_000;

impl Transport {
    /// Nothing comes through.
    pub(super) fn is_out(&self) -> bool {
        self.silences >= OUTAGE_SILENCES
    }

    /// When feedback that is missing counts as lost: RFC 9002 §6.2, and some such times after the last news if more and more is
    /// sent.
    pub(super) fn silence_ns(&self) -> Option<u64> {
        let (sent_ns, news_ns) = (self.flight.newest_unknown_sent_ns()?, self.flight.waits_since_ns()?);
        let wait_us = self.trips.smoothed_us() + 4 * self.trips.variation_us().max(VARIES_LEAST_US) + LATER_US;
        let wait_ns = wait_us * 1000 + self.late.varies_ns.saturating_mul(4);
        Some((sent_ns + (wait_ns << self.silences.min(6))).min(news_ns + SILENCE_WAITS * wait_ns))
    }

    /// If feedback is missing, all packets under way are lost.
    pub(super) fn note_silence(&mut self, now_ns: u64, told: &mut Vec<Outcome>) {
        if self.silence_ns().is_none_or(|at_ns| now_ns < at_ns) {
            return;
        }
        self.silences += 1;
        let is_first = self.silences == 1;
        self.flight.all_lost(&mut |outcome| match outcome.cargo {
            Cargo::Probe if !is_first => self.mtu.put_off(now_ns),
            _ => told.push(outcome),
        });
        self.congestion.silence(now_ns);
        if self.is_out() {
            self.pings.no_later_than(now_ns);
        }
    }

    /// When something expires that waits for room.
    pub(super) fn late_ns(&self, way: &Way) -> Option<u64> {
        self.sender.due_ns(way).into_iter().chain(self.sender.late_ns(way)).min()
    }

    /// What waits for room, and cannot come in time any more, is dropped.
    pub(super) fn drop_late(&mut self, now_ns: u64) {
        let (way, symbol_max) = (self.way(), self.symbol_max());
        if !self.has_room() && self.late_ns(&way).is_some_and(|late_ns| late_ns <= now_ns) {
            self.sender.prepare(now_ns, &way, symbol_max);
        }
    }
}
