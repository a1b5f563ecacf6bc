// SPDX-License-Identifier: Apache-2.0
//! Levelling: the reports that survivors of a crash exchange before they deliver it.

use fide_types::{
    HostSet,
    planted::{self, Planted},
};

use super::{Fcurb, Kind, Trust};

/// What a member has reported about one that is dead.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Report {
    /// The last message that it stores of the dead member.
    number: u64,
    /// The members that it knows to be dead.
    dead: HostSet,
}

impl Fcurb {
    /// Of [`crate::Message::Report`]: a member says which message it stores of a dead `origin`, and which
    /// members it knows to be dead.
    pub fn handle_report(&mut self, from: u16, origin: u16, number: u64, dead: HostSet, asks: bool) {
        if self.dead.contains(from) {
            return;
        }
        let report = &mut self.reports[from][origin];
        // Links reorder; both only grow.
        if number >= report.number && report.dead.minus(dead).is_empty() {
            *report = Report { number, dead };
        }
        if self.dead.contains(origin) {
            if number < self.origins[origin].stored {
                self.queue(HostSet::only(from), Kind::Message, origin);
            }
            if asks {
                self.queue(HostSet::only(from), Kind::Report { asks: false }, origin);
            }
        }
    }

    /// The detector reports that a member has crashed.
    pub fn crashed(&mut self, member: u16) {
        if !self.members.contains(member) || self.dead.contains(member) || member == self.me {
            return;
        }
        self.dead.insert(member);
        self.levelling.push_back(member);
        if self.trust == Trust::Lease {
            let dead = self.dead;
            self.empty_buffers(dead);
            // Also about dead members whose crash this member has delivered: others may not have, and have to
            // know that it knows of the crash.
            dead.iter().for_each(|origin| self.report_to_all(origin));
            // A message that `member` passed on to some may have come here after others reported that they
            // lack it; they take nothing from `member` any more.
            dead.iter().for_each(|origin| self.pass_on(origin));
        }
    }

    fn empty_buffers(&mut self, origins: HostSet) {
        if !planted::is(Planted::KeepsNext) {
            origins.iter().for_each(|origin| self.origins[origin].next = 0);
        }
    }

    /// Passes the stored message of a dead member on to survivors that are known to store less.
    fn pass_on(&mut self, origin: u16) {
        let stored = self.origins[origin].stored;
        let lacks = |report: Report| report.dead.contains(origin) && report.number < stored;
        let lacking = self.others().iter().filter(|other| lacks(self.reports[*other][origin])).collect();
        self.queue(lacking, Kind::Message, origin);
    }

    /// The position, among the crashes that are not delivered yet, of the one that comes next: its message or
    /// the crash itself.
    pub(super) fn next_of_dead(&self) -> Option<usize> {
        for (at, dead) in self.levelling.iter().copied().enumerate() {
            // A message that all live members store is delivered at once: some member may store the next one,
            // which is taken only after it.
            let is_stable = self.undelivered.contains(dead) && self.is_known_to_be_stable(dead);
            if is_stable || self.is_level(dead) {
                return Some(at);
            }
            if !self.is_lacked(dead) {
                return None;
            }
        }
        None
    }

    /// Whether a survivor that knows of all the deaths that are known here stores less of a dead member than
    /// this one does.
    fn is_lacked(&self, origin: u16) -> bool {
        let stored = self.origins[origin].stored;
        self.others().iter().any(|other| {
            let Report { number, dead } = self.reports[other][origin];
            self.dead.minus(dead).is_empty() && number < stored
        })
    }

    /// Whether all live members store the same message of a dead member, and take nothing more from it.
    pub(super) fn is_level(&self, origin: u16) -> bool {
        if self.trust == Trust::Network || planted::is(Planted::SkipsLevelling) {
            return true;
        }
        self.others().iter().all(|other| self.agrees(other, origin))
    }

    /// Whether another survivor has reported the same about a dead member, and knows of all the deaths that
    /// are known here.
    fn agrees(&self, other: u16, origin: u16) -> bool {
        let Report { number, dead } = self.reports[other][origin];
        let knows = self.dead.minus(dead).is_empty() || dead.contains(origin) && planted::is(Planted::LevelsWithOld);
        knows && number == self.origins[origin].stored
    }

    /// Reports to all others which message this member stores of a dead one.
    pub(super) fn report_to_all(&mut self, origin: u16) {
        self.queue(self.others(), Kind::Report { asks: false }, origin);
    }

    /// Reports the same to those whose report does not agree, and asks for theirs.
    pub(super) fn ask_for_reports(&mut self, origin: u16) {
        let to = self.others().iter().filter(|other| !self.agrees(*other, origin)).collect();
        self.queue(to, Kind::Report { asks: true }, origin);
    }
}
