// SPDX-License-Identifier: Apache-2.0
//! What the survivors of a crash tell each other before they tell their users of it.

use fide_types::{
    HostSet,
    planted::{self, Planted},
};

use super::{Fcurb, Kind, Trust, only};

/// What a member has told of one that it holds dead.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Report {
    number: u64,
    dead: HostSet,
}

impl Fcurb {
    /// Place of what `of` has reported of `origin`.
    fn report_at(&self, of: u16, origin: u16) -> usize {
        (usize::from(of) - 1) * self.origins.len() + usize::from(origin) - 1
    }

    fn report_of(&self, of: u16, origin: u16) -> Report {
        self.reports[self.report_at(of, origin)]
    }

    /// A member says what it holds of one that it knows to be dead, and whom else it holds dead.
    pub fn reported(&mut self, from: u16, origin: u16, number: u64, dead: HostSet, asks: bool) {
        if self.dead.contains(from) {
            return;
        }
        let at = self.report_at(from, origin);
        let report = &mut self.reports[at];
        // Links reorder; what is told only grows.
        if number >= report.number && report.dead.minus(dead).is_empty() {
            *report = Report { number, dead };
        }
        if self.dead.contains(origin) {
            if number < self.at(origin).held {
                self.put(only(from), Kind::Message, origin);
            }
            if asks {
                self.put(only(from), Kind::Held { asks: false }, origin);
            }
        }
    }

    /// The detector says that a member has crashed.
    pub fn crashed(&mut self, member: u16) {
        if !self.members.contains(member) || self.dead.contains(member) || member == self.me {
            return;
        }
        self.dead.insert(member);
        self.levelling.push_back(member);
        if self.trust == Trust::Lease {
            if !planted::is(Planted::KeepsNext) {
                self.dead.iter().for_each(|origin| self.origins[usize::from(origin) - 1].next = 0);
            }
            // Also of those whom this member is done with: others may not be, and have to know that it knows.
            self.dead.iter().for_each(|origin| self.tell_all(origin, false));
            // What was passed on by `member` to some may have come here since others have said that they lack it, and take nothing of `member`.
            self.dead.iter().for_each(|origin| self.pass_on(origin));
        }
    }

    /// What this member holds of one that is dead, to those that are known to hold less.
    fn pass_on(&mut self, origin: u16) {
        let held = self.at(origin).held;
        let lacks = |report: Report| report.dead.contains(origin) && report.number < held;
        let lacking = self.others().iter().filter(|other| lacks(self.report_of(*other, origin))).collect();
        self.put(lacking, Kind::Message, origin);
    }

    /// Place among the crashes that are not told yet of the one of which something is next: a message or its word.
    pub(super) fn next_of_dead(&self) -> Option<usize> {
        for (at, dead) in self.levelling.iter().copied().enumerate() {
            // What all that live hold does not wait for that: somebody may hold the next one, which is only taken after it.
            let known = self.undelivered.contains(dead) && self.is_known(dead);
            if known || self.is_level(dead) {
                return Some(at);
            }
            if !self.is_lacked(dead) {
                return None;
            }
        }
        None
    }

    /// Somebody that knows of all the deaths that are known here holds less of one that is dead.
    fn is_lacked(&self, origin: u16) -> bool {
        let held = self.origins[usize::from(origin) - 1].held;
        self.others().iter().any(|other| {
            let Report { number, dead } = self.report_of(other, origin);
            self.dead.minus(dead).is_empty() && number < held
        })
    }

    /// All that live hold the same of the dead, and take nothing more of it.
    pub(super) fn is_level(&self, origin: u16) -> bool {
        if self.trust == Trust::Network || planted::is(Planted::SkipsLevelling) {
            return true;
        }
        self.others().iter().all(|other| self.agrees(other, origin))
    }

    fn agrees(&self, other: u16, origin: u16) -> bool {
        let Report { number, dead } = self.report_of(other, origin);
        let knows = self.dead.minus(dead).is_empty() || dead.contains(origin) && planted::is(Planted::LevelsWithOld);
        knows && number == self.origins[usize::from(origin) - 1].held
    }

    /// What this member holds of one that is dead, to those whose word of it is not the same.
    pub(super) fn tell_all(&mut self, origin: u16, asks: bool) {
        let to = if asks {
            self.others().iter().filter(|other| !self.agrees(*other, origin)).collect()
        } else {
            self.others()
        };
        self.put(to, Kind::Held { asks }, origin);
    }
}
