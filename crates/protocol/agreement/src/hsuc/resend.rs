// SPDX-License-Identifier: Apache-2.0
//! HSUC over links that lose, repeat and reorder messages.
//!
//! Only the leader resends, as whatever is missing is missing at a member for which the leader waits: it
//! resends proposals to members that have not acknowledged them, and decisions to members that have not
//! delivered them (which a member says, or shows by acknowledging the instance W later). A message that comes
//! a second time is answered a second time. Nothing is buffered for this: each message is made again from its
//! instance's slot.
//!
//! A new leader proposes again what it has seen. A member that has decided it answers with the decision. That
//! is enough: all members have acknowledged what any member has decided, so the new leader has seen it. The
//! relaying of Alg. 2 stays, and saves a round trip where nothing is lost. But only the fact of a decision is
//! relayed, as every member it reaches has acknowledged its value: W values to each member would delay what
//! the new leader proposes by more than a round trip.
//!
//! At most 2 W messages to each member follow one call: W decisions and W proposals.

use fide_types::{
    HostSet, MAX_HOSTS, PerHost,
    planted::{self, Planted},
};

use super::{Hsuc, Kind, Links};
use crate::Agreement;

/// What is known of the other members' progress; nothing where links are reliable.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Progress {
    links: Links,
    /// Each member has delivered at least the instances up to this one.
    delivered: PerHost<u64>,
    /// The instance up to which this member said last that it has delivered.
    said: u64,
}

impl Progress {
    pub(super) fn new(links: Links) -> Self {
        let hosts = if links == Links::Lossy { MAX_HOSTS } else { 0 };
        Self { links, delivered: PerHost::new(hosts, |_| 0), said: 0 }
    }
}

impl Hsuc {
    fn is_lossy(&self) -> bool {
        self.progress.links == Links::Lossy
    }

    /// How a decision of a crashed member is relayed. Where links are reliable nobody answers a proposal of
    /// what it has decided, so the value has to be sent too, for members that have adopted it in a later
    /// round since.
    pub(super) fn relay_kind(&self) -> Kind {
        if self.is_lossy() { Kind::Chosen } else { Kind::Decide }
    }

    pub(super) fn note_delivered(&mut self, member: u16, instance: u64) {
        if let Some(delivered) = self.progress.delivered.get_mut(member) {
            *delivered = instance.max(*delivered);
        }
    }

    /// A member has sent a proposal again that I know to be decided: it lacks the decision, or my answer.
    pub(super) fn answer_repeated(&mut self, from: u16, instance: u64) {
        if !self.is_lossy() || planted::is(Planted::KeepsDecisions) {
            return;
        }
        match self.slot(instance).filter(|slot| slot.decided).map(|slot| slot.round) {
            Some(round) => self.send(HostSet::only(from), Kind::Decide, instance, round),
            // So old that all live members know it.
            None => self.send_delivered(from),
        }
    }

    pub(super) fn send_delivered(&mut self, to: u16) {
        if self.is_lossy() && self.delivered > 0 {
            self.progress.said = self.delivered;
            self.send(HostSet::only(to), Kind::Delivered, self.delivered, 0);
        }
    }

    /// A proposal has come again: my acknowledgement was lost.
    pub(super) fn forget_ack(&mut self, instance: u64) {
        if self.is_lossy() {
            self.slot_mut(instance).acked = 0;
        }
    }

    /// Whether there was anything to send again.
    pub(super) fn send_again(&mut self) -> bool {
        if !self.is_lossy() || planted::is(Planted::NeverResends) {
            return false;
        }
        if !self.leads() {
            if self.progress.said < self.delivered {
                self.send_delivered(self.leader());
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
                let delivered = &self.progress.delivered;
                let lacking: HostSet = others.iter().filter(|other| delivered[*other] < instance).collect();
                again = again.union(lacking);
                self.send(lacking, Kind::Decide, instance, round);
            } else if round == me {
                let lacking = others.minus(acks);
                again = again.union(lacking);
                self.send(lacking, Kind::Propose, instance, me);
            }
        }
        !again.is_empty()
    }
}
