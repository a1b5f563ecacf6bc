// SPDX-License-Identifier: Apache-2.0
//! Heartbeat uniform consensus (FiDe §4.1 Alg. 1, App. A.4 Alg. 4), as a log: one instance after the other.
//!
//! Every member sends its proposal to the leader, the live member with the lowest id. When the leader has those of all that live it
//! decides, and broadcasts by FCURB: in its next heartbeat. Two message delays, and no acknowledgement.
//!
//! **What it stands on** is more than HSUC does: links that lose nothing between members that live, and FCURB, which is the caller's
//! part over the detector's piggyback. What [`Agreement::poll_broadcast`] gives reaches all members that live or none, and each before
//! it is told of the sender's crash; the sender's own copy is delivered when the heartbeat has left on all trees
//! ([`Agreement::broadcast_left`]).
//!
//! **What is other than published**, and why (numbers are those of `docs/errata.md`):
//!
//! - Nothing of an instance is left for the next one (4).
//! - DET joins all proposals that are there, in the order of ids, so that each instance decides what all members have to say; the
//!   published one chooses one of them. A batch of nothing is nothing's proposal, and no member waits for its turn (7).
//! - A member with nothing to say proposes nothing, once; when it has something before the decision, it proposes again. So one
//!   proposal and one heartbeat are all that a value needs, also in a group that was idle. A decision names those whose
//!   proposals it has: who came too late proposes again in the next instance.
//! - A broadcast of a member that is known to have crashed is refused: FCURB promises that there is none.
//! - Proposals that come before their receiver leads are kept, and those of the next instance: a member may have delivered what
//!   its leader has not yet delivered to itself.

use fide_detector::HostSet;
use fide_wire::MAX_HOSTS;

use crate::{
    Agreement, Decision, Refused, Start, batch,
    message::{Message, MessageError},
};

/// Bytes of a decision before its batch: the members whose proposals it has.
pub const SET_LEN: usize = 8;

/// What members have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// Longest decision, bytes: what a heartbeat takes along. Each member may fill its part of it.
    pub value_max: usize,
}

/// Why there is no such group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("member {me} is not in its own list of members")]
    NotAMember { me: u16 },
    #[error("decisions of {max} bytes have no room for a proposal of each of {members} members; {least} are the least")]
    ValueMax { max: usize, members: usize, least: usize },
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Proposals {
    /// Whose there are.
    of: HostSet,
    /// By id-1; empty: nothing to say.
    values: Box<[Vec<u8>]>,
}

impl Proposals {
    fn put(&mut self, from: u16, value: &[u8]) {
        let place = &mut self.values[usize::from(from) - 1];
        // Links reorder: "nothing" is what it had to say before.
        if self.of.contains(from) && !place.is_empty() {
            return;
        }
        self.of.insert(from);
        place.clear();
        place.extend_from_slice(value);
    }

    fn clear(&mut self) {
        self.of = HostSet::EMPTY;
        self.values.iter_mut().for_each(Vec::clear);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Broadcast {
    None,
    /// Waits for a heartbeat.
    Queued,
    /// A heartbeat has taken it.
    Taken,
}

/// One member of a group.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Huc {
    me: u16,
    members: HostSet,
    correct: HostSet,
    value_max: usize,
    /// Instances up to this one have been told.
    delivered: u64,
    /// Of this instance and of the next.
    proposals: [Proposals; 2],
    /// Proposed in this instance, if only nothing.
    has_proposed: bool,
    /// The leader lacks my proposal.
    owes: bool,
    /// What I have proposed in this instance.
    mine: Vec<u8>,
    /// What waits for the next one.
    waiting: Vec<u8>,
    broadcast: Broadcast,
    sending: Vec<u8>,
    decided: bool,
    decision: Vec<u8>,
    closed: bool,
}

impl Huc {
    /// A member that has decided nothing yet. `me` is one of `members`, which are 1..=64.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn new(setting: &Setting, me: u16, members: HostSet) -> Result<Self, ConfigError> {
        let Setting { value_max } = *setting;
        if !members.contains(me) {
            return Err(ConfigError::NotAMember { me });
        }
        let least = SET_LEN + members.len() * (batch::PREFIX_LEN + 1);
        if value_max < least {
            return Err(ConfigError::ValueMax { max: value_max, members: members.len(), least });
        }
        let proposals = || Proposals { of: HostSet::EMPTY, values: vec![Vec::new(); MAX_HOSTS].into_boxed_slice() };
        let mut member = Self {
            me,
            members,
            correct: members,
            value_max,
            delivered: 0,
            proposals: [proposals(), proposals()],
            has_proposed: false,
            owes: false,
            mine: Vec::new(),
            waiting: Vec::new(),
            broadcast: Broadcast::None,
            sending: Vec::new(),
            decided: false,
            decision: Vec::new(),
            closed: false,
        };
        member.offer();
        Ok(member)
    }

    /// Members that are not known to have crashed.
    #[must_use]
    pub fn correct(&self) -> HostSet {
        self.correct
    }

    /// Instances up to this one have been told.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Bytes that each member may propose in one instance.
    #[must_use]
    pub fn share_max(&self) -> usize {
        (self.value_max - SET_LEN) / self.members.len()
    }

    fn leads(&self) -> bool {
        self.leader() == self.me
    }

    /// Proposes what waits, or nothing (lines 5 to 7).
    fn offer(&mut self) {
        if self.decided || self.closed {
            return;
        }
        if self.mine.is_empty() && !self.waiting.is_empty() {
            std::mem::swap(&mut self.mine, &mut self.waiting);
            self.has_proposed = false;
        }
        if !self.has_proposed {
            self.has_proposed = true;
            self.submit();
        }
    }

    fn submit(&mut self) {
        if self.leads() {
            self.proposals[0].put(self.me, &self.mine);
            self.decide();
        } else {
            self.owes = true;
        }
    }

    /// Decides if the proposals of all that live are there, and one of them says anything (lines 11 to 14).
    fn decide(&mut self) {
        let [now, _] = &self.proposals;
        let complete = self.correct.minus(now.of).is_empty();
        let says = |id: &u16| !now.values[usize::from(*id) - 1].is_empty();
        if !self.leads() || self.decided || self.broadcast != Broadcast::None || !complete {
            return;
        }
        let from: HostSet = now.of.and(self.correct).iter().filter(says).collect();
        if from.is_empty() {
            return;
        }
        self.sending.clear();
        self.sending.extend_from_slice(&from.0.to_le_bytes());
        from.iter().for_each(|id| self.sending.extend_from_slice(&now.values[usize::from(id) - 1]));
        self.broadcast = Broadcast::Queued;
    }

    /// Lines 22 and 23.
    fn deliver(&mut self, value: &[u8]) {
        self.decision.clear();
        self.decision.extend_from_slice(value);
        self.decided = true;
        self.owes = false;
    }
}

impl Agreement for Huc {
    fn propose(&mut self, value: &[u8]) -> Result<(), Refused> {
        let (len, max) = (value.len(), self.share_max() - batch::PREFIX_LEN);
        if len > max {
            return Err(Refused::TooLong { len, max });
        }
        let share_max = self.share_max();
        if !batch::push(&mut self.waiting, value, share_max) {
            return Err(Refused::Full);
        }
        self.offer();
        Ok(())
    }

    fn receive(&mut self, from: u16, message: &Message<'_>) -> Result<(), MessageError> {
        let (instance, value) = (message.instance(), message.value());
        let round = message.round().unwrap_or(from);
        if let Some(member) = [from, round].into_iter().find(|member| !self.members.contains(*member)) {
            return Err(MessageError::Stranger { member });
        }
        if round != from {
            return Err(MessageError::Impostor { from, round });
        }
        let Some(ahead) = instance.checked_sub(self.delivered + 1).filter(|_| !self.closed) else { return Ok(()) };
        match message {
            Message::Propose { .. } => {
                if value.len() > self.share_max() {
                    return Err(MessageError::TooLong { len: value.len(), max: self.share_max() });
                }
                let Some(proposals) = usize::try_from(ahead).ok().and_then(|ahead| self.proposals.get_mut(ahead))
                else {
                    return Err(MessageError::Future { instance, delivered: self.delivered });
                };
                // What comes late of the dead is not waited for, and may have been decided (line 17).
                if self.correct.contains(from) {
                    proposals.put(from, value);
                    self.decide();
                }
                Ok(())
            }
            Message::Decide { .. } => {
                if !(SET_LEN..=self.value_max).contains(&value.len()) {
                    return Err(MessageError::TooLong { len: value.len(), max: self.value_max });
                }
                if ahead > 0 {
                    return Err(MessageError::Future { instance, delivered: self.delivered });
                }
                if !self.correct.contains(from) {
                    return Err(MessageError::AfterCrash { from });
                }
                if !self.decided {
                    self.deliver(value);
                }
                Ok(())
            }
            Message::Ack { .. } | Message::Told { .. } | Message::Chosen { .. } => Err(MessageError::NotOfProtocol),
        }
    }

    fn crashed(&mut self, member: u16) {
        if !self.correct.contains(member) || member == self.me {
            return;
        }
        let led = self.leader();
        self.correct.remove(member);
        for proposals in &mut self.proposals {
            proposals.of.remove(member);
            proposals.values[usize::from(member) - 1].clear();
        }
        if self.decided || self.closed {
            return;
        }
        if member == led && self.has_proposed {
            self.submit();
        }
        self.decide();
    }

    fn poll_transmit(&mut self) -> Option<(HostSet, Message<'_>)> {
        if !std::mem::take(&mut self.owes) {
            return None;
        }
        let to = HostSet::from_iter([self.leader()]);
        Some((to, Message::Propose { instance: self.delivered + 1, round: self.me, value: &self.mine }))
    }

    fn poll_broadcast(&mut self) -> Option<Message<'_>> {
        if self.broadcast != Broadcast::Queued {
            return None;
        }
        self.broadcast = Broadcast::Taken;
        Some(Message::Decide { instance: self.delivered + 1, round: self.me, value: &self.sending })
    }

    fn broadcast_left(&mut self) {
        if self.broadcast == Broadcast::Taken {
            self.broadcast = Broadcast::None;
            let sending = std::mem::take(&mut self.sending);
            self.deliver(&sending);
            self.sending = sending;
        }
    }

    fn poll_decision(&mut self) -> Option<Decision<'_>> {
        if !std::mem::take(&mut self.decided) {
            return None;
        }
        self.delivered += 1;
        let (set, _) = self.decision.split_first_chunk::<SET_LEN>().expect("checked when it came");
        if HostSet(u64::from_le_bytes(*set)).contains(self.me) {
            self.mine.clear();
        }
        self.has_proposed = false;
        self.proposals[0].clear();
        self.proposals.swap(0, 1);
        self.offer();
        Some(Decision { instance: self.delivered, value: &self.decision[SET_LEN..] })
    }

    fn leader(&self) -> u16 {
        self.correct.iter().next().unwrap_or(self.me)
    }

    /// Of FCURB a leader delivers what its predecessor has sent before it leads.
    fn speaks_for_all(&self) -> bool {
        self.leads() && !self.decided
    }

    fn close(&mut self, undecided: &mut dyn FnMut(&[u8])) {
        for values in [&mut self.mine, &mut self.waiting] {
            if !values.is_empty() {
                undecided(values);
                values.clear();
            }
        }
        (self.owes, self.decided, self.broadcast) = (false, false, Broadcast::None);
        self.proposals.iter_mut().for_each(Proposals::clear);
        self.closed = true;
    }

    fn resend(&mut self) {}
}

impl Start for Huc {
    type Setting = Setting;
    type Error = ConfigError;

    fn start(setting: &Setting, me: u16, members: HostSet) -> Result<Self, ConfigError> {
        Self::new(setting, me, members)
    }
}

#[cfg(test)]
mod tests;
