// SPDX-License-Identifier: Apache-2.0
//! Over links that lose, repeat and reorder.
//!
//! Only the leader sends again, as everything that can be missing is missing at somebody whom it waits for: proposals to those
//! who have not acknowledged them, decisions to those who have not said, or shown by an acknowledgement W instances later, that
//! they have told them. What comes a second time is answered a second time. Nothing is buffered for it: each message is made
//! again from its instance's place.
//!
//! A new leader proposes again what it has seen. Whoever has decided it answers with the decision. That is enough: what anybody
//! has decided all have acknowledged, so the new leader has seen it. The relaying of Alg. 2 stays, and saves a round trip where nothing
//! is lost; but of a decision only that it is one, as whoever it reaches has acknowledged its value: W values to each would hold up what the new leader
//! proposes by more than a round trip.
//!
//! At most 2 W messages to each member follow one call: W decisions and W proposals.

use fide_types::{
    HostSet, MAX_HOSTS,
    planted::{self, Planted},
};

use super::{Hsuc, Kind, Links};
use crate::Agreement;

/// What is known of the others' progress; nothing where links are reliable.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Known {
    links: Links,
    /// By id-1: instances up to this one have been told there, at least.
    told: Box<[u64]>,
    /// What this member has said of itself last.
    said: u64,
}

impl Known {
    pub(super) fn new(links: Links) -> Self {
        let hosts = if links == Links::Lossy { MAX_HOSTS } else { 0 };
        Self { links, told: vec![0; hosts].into_boxed_slice(), said: 0 }
    }
}

impl Hsuc {
    fn is_lossy(&self) -> bool {
        self.links.links == Links::Lossy
    }

    /// How a decision of a member that has crashed is relayed. Where links are reliable nobody answers a proposal of what it has decided, so
    /// the value has to come also to whom has adopted it in a later round since.
    pub(super) fn relays_as(&self) -> Kind {
        if self.is_lossy() { Kind::Chosen } else { Kind::Decide }
    }

    pub(super) fn note_told(&mut self, member: u16, instance: u64) {
        if let Some(told) = self.links.told.get_mut(usize::from(member) - 1) {
            *told = instance.max(*told);
        }
    }

    /// A member has sent again what I know to be decided: it lacks that, or my word.
    pub(super) fn answer_repeated(&mut self, from: u16, instance: u64) {
        if !self.is_lossy() || planted::is(Planted::KeepsDecisions) {
            return;
        }
        match self.slot(instance).filter(|slot| slot.decided).map(|slot| slot.round) {
            Some(round) => self.send(only(from), Kind::Decide, instance, round),
            // So old that it is known to all who live.
            None => self.say_told(from),
        }
    }

    pub(super) fn say_told(&mut self, to: u16) {
        if self.is_lossy() && self.delivered > 0 {
            self.links.said = self.delivered;
            self.send(only(to), Kind::Told, self.delivered, 0);
        }
    }

    /// A proposal has come again: my acknowledgement was lost.
    pub(super) fn forget_ack(&mut self, instance: u64) {
        if self.is_lossy() {
            self.claim(instance).acked = 0;
        }
    }

    /// Whether there was anything to send again.
    pub(super) fn send_again(&mut self) -> bool {
        if !self.is_lossy() || planted::is(Planted::NeverResends) {
            return false;
        }
        if !self.leads() {
            if self.links.said < self.delivered {
                self.say_told(self.leader());
            }
            return false;
        }
        let mut again = HostSet::EMPTY;
        let (me, others) = (self.me, self.others());
        let first = (self.delivered + 1).saturating_sub(self.window).max(1);
        for instance in first..=self.seen.min(self.delivered + self.window) {
            let position = self.position(instance);
            let slot = &mut self.slots[position];
            if slot.instance != instance || std::mem::take(&mut slot.fresh) {
                continue;
            }
            let (decided, round, acks) = (slot.decided, slot.round, slot.acks);
            if decided {
                let told = &self.links.told;
                let lacking: HostSet = others.iter().filter(|other| told[usize::from(*other) - 1] < instance).collect();
                again = HostSet(again.0 | lacking.0);
                self.send(lacking, Kind::Decide, instance, round);
            } else if round == me {
                again = HostSet(again.0 | others.minus(acks).0);
                self.send(others.minus(acks), Kind::Propose, instance, me);
            }
        }
        !again.is_empty()
    }
}

fn only(member: u16) -> HostSet {
    HostSet::from_iter([member])
}
