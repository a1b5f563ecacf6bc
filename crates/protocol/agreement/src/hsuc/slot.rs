// SPDX-License-Identifier: Apache-2.0
//! What a member knows of one instance, and the algorithm's conditions on it. Faults that can be planted in a
//! condition stand with it.

use fide_types::{
    HostSet,
    planted::{self, Planted},
};

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Slot {
    pub(super) instance: u64,
    /// The member whose proposal is adopted; 0: none yet.
    pub(super) round: u16,
    /// Members that have acknowledged my own proposal.
    pub(super) acks: HostSet,
    /// The round that I acknowledged last.
    pub(super) acked: u16,
    pub(super) decided: bool,
    /// Sent since the last [`crate::Agreement::resend`]: an answer may be under way.
    pub(super) fresh: bool,
    pub(super) value: Vec<u8>,
}

impl Slot {
    /// Whether a message about `instance` is about this slot.
    pub(super) fn is_of(&self, instance: u64) -> bool {
        self.instance == instance || planted::is(Planted::MixesInstances)
    }

    /// Line 14: whether a proposal of `round` replaces the adopted one.
    pub(super) fn is_replaced_by(&self, round: u16) -> bool {
        round > self.round || planted::is(Planted::AdoptsLower)
    }

    /// Lines 16 and 17: whether the adopted proposal, of a correct member other than me, was not acknowledged
    /// yet.
    pub(super) fn is_to_be_acknowledged(&self, me: u16, correct: HostSet) -> bool {
        let is_adopted = self.round != 0 && self.round != me && !self.decided;
        is_adopted && self.acked != self.round && correct.contains(self.round)
    }

    /// Line 20: whether all correct members have acknowledged my proposal.
    pub(super) fn is_acknowledged_by_all(&self, correct: HostSet) -> bool {
        let missing = correct.minus(self.acks).len();
        missing == 0 || missing == 1 && correct.len() > 2 && planted::is(Planted::DecidesEarly)
    }

    pub(super) fn may_be_delivered(&self) -> bool {
        self.decided || self.acked != 0 && planted::is(Planted::DeliversAdopted)
    }

    /// Line 8: as a new leader, I propose the adopted value; an empty one where none was adopted.
    pub(super) fn inherit_value(&mut self) {
        if planted::is(Planted::DropsAdopted) {
            self.value.clear();
        }
    }

    pub(super) fn set_value(&mut self, value: &[u8]) {
        self.value.clear();
        self.value.extend_from_slice(value);
    }
}
