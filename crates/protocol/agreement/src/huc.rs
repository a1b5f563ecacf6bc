// SPDX-License-Identifier: Apache-2.0
//! Heartbeat uniform consensus (FiDe §4.1 Alg. 1, App. A.4 Alg. 4), as a log: one instance after the other.
//!
//! Every member sends its proposal to the leader, the live member with the lowest id. When the leader has those of all that live it
//! decides, and broadcasts by FCURB ([`crate::fcurb`]): in its next heartbeat. As published that is all, two message delays and no
//! acknowledgement ([`Trust::Network`]); under leases ([`Trust::Lease`]) one more delay, and links may lose, repeat and reorder.
//!
//! **What is other than published**, and why (numbers are those of `docs/errata.md`):
//!
//! - Nothing of an instance is left for the next one (4).
//! - DET joins all proposals that are there and fit, so that each instance decides what the members have to say; the
//!   published one chooses one of them. It begins with another member in each instance, so that all have their turn. A batch of nothing is
//!   nothing's proposal, and no member waits for its turn (7).
//! - A member with nothing to say proposes nothing, once; when it has something before the decision, it proposes again. So one
//!   proposal and one heartbeat are all that a value needs, also in a group that was idle. With leases
//!   a silent member says so of the next instance when it acknowledges the decision of this one. A decision names those whose
//!   proposals it has: who came too late, or did not fit, proposes again in the next instance. What comes just after the word that there is nothing may
//!   miss one instance more.
//! - A broadcast of a member that is known to have crashed is refused with `trust = "network"`: FCURB promises that there is none.
//! - Proposals that come before their receiver leads are kept, and those of the next instance: a member may have delivered what
//!   its leader has not yet delivered to itself.
//!
//! **Lossy links** (with leases): a leader that has something to decide asks those whose proposals it lacks; a member that has something to say
//! says it again until it is decided. Where nobody has anything to say, nothing is sent.

use fide_types::{
    HostSet, MAX_HOSTS,
    planted::{self, Planted},
};

use crate::{
    Agreement, Decision, Refused, Start, batch,
    fcurb::{Delivery, Fcurb, Trust},
    message::{HEADER_LEN, Message, MessageError},
};

/// Bytes of a decision before its batch: the members whose proposals it has.
pub const SET_LEN: usize = 8;

/// What members have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// Longest decision, bytes: what a heartbeat takes along.
    pub value_max: usize,
    pub trust: Trust,
}

/// Why there is no such group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("member {me} is not in its own list of members")]
    NotAMember { me: u16 },
    #[error("decisions of {max} bytes have no room for a proposal; {} are the least", SET_LEN + batch::PREFIX_LEN + 1)]
    ValueMax { max: usize },
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

    fn value(&self, id: u16) -> &[u8] {
        &self.values[usize::from(id) - 1]
    }

    fn say_anything(&self) -> bool {
        self.values.iter().any(|value| !value.is_empty())
    }

    fn clear(&mut self) {
        self.of = HostSet::EMPTY;
        self.values.iter_mut().for_each(Vec::clear);
    }
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
    /// The last instance of which the leader is told ahead, with an acknowledgement, that I have nothing to say; 0: none.
    silent_in: u64,
    /// It is not told so yet.
    owes_silence: bool,
    /// What I have proposed in this instance.
    mine: Vec<u8>,
    /// What waits for the next one.
    waiting: Vec<u8>,
    /// Proposed, or asked for, since the last [`Agreement::resend`].
    fresh: bool,
    /// Who is to be asked for what it has to say.
    lacking: HostSet,
    fcurb: Fcurb,
    decided: bool,
    decision: Vec<u8>,
    /// The one before it, while the user looks at it.
    telling: Vec<u8>,
    closed: bool,
}

impl Huc {
    /// A member that has decided nothing yet. `me` is one of `members`, which are 1..=64.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn new(setting: &Setting, me: u16, members: HostSet) -> Result<Self, ConfigError> {
        let Setting { value_max, trust } = *setting;
        if !members.contains(me) {
            return Err(ConfigError::NotAMember { me });
        }
        if value_max < SET_LEN + batch::PREFIX_LEN + 1 {
            return Err(ConfigError::ValueMax { max: value_max });
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
            silent_in: 0,
            owes_silence: false,
            mine: Vec::new(),
            waiting: Vec::new(),
            fresh: false,
            lacking: HostSet::EMPTY,
            fcurb: Fcurb::new(trust, me, members),
            decided: false,
            decision: Vec::new(),
            telling: Vec::new(),
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

    /// Bytes that a member may propose in one instance.
    #[must_use]
    pub fn share_max(&self) -> usize {
        self.value_max - SET_LEN
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
        self.fresh = true;
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
        if !self.leads() || self.decided || self.closed || self.fcurb.is_sending() || !complete {
            return;
        }
        let instance = self.delivered + 1;
        let speaking: HostSet = now.of.and(self.correct).iter().filter(|id| !now.value(*id).is_empty()).collect();
        if speaking.is_empty() {
            return;
        }
        // Of all members, whoever speaks: with a turn among those who speak, two who speak in every other instance keep out a third.
        let nth = (instance % self.members.len() as u64) as usize;
        let first = self.members.iter().nth(nth).unwrap_or(self.me);
        let turn = |is_late: bool| speaking.iter().filter(move |id| (*id < first) == is_late);
        let in_turn = || turn(false).chain(turn(true));
        let mut room = self.value_max - SET_LEN;
        let fits = |id: &u16| {
            let len = now.value(*id).len();
            let fits = len <= room;
            room -= if fits { len } else { 0 };
            fits
        };
        let from: HostSet = in_turn().filter(fits).collect();
        self.fcurb.broadcast(instance, |value| {
            value.extend_from_slice(&from.0.to_le_bytes());
            in_turn().filter(|id| from.contains(*id)).for_each(|id| value.extend_from_slice(now.value(id)));
        });
        self.advance();
    }

    /// What the broadcast has to say (lines 15 to 23), up to a decision.
    fn advance(&mut self) {
        while !self.decided
            && let Some(delivery) = self.fcurb.poll()
        {
            match delivery {
                Delivery::Message { number, value } if number == self.delivered + 1 && !self.closed => {
                    self.decision.clear();
                    self.decision.extend_from_slice(value);
                    self.decided = true;
                    self.owes = false;
                }
                // Of a log that has ended.
                Delivery::Message { .. } => {}
                Delivery::Crashed(member) => self.lost(member),
            }
        }
    }

    /// Lines 16 to 21.
    fn lost(&mut self, member: u16) {
        let led = self.leader();
        self.correct.remove(member);
        for proposals in &mut self.proposals {
            proposals.of.remove(member);
            proposals.values[usize::from(member) - 1].clear();
        }
        if member == led {
            // The next leader is told of none ahead.
            self.silent_in = self.silent_in.min(self.delivered + 1);
        }
        if self.closed {
            return;
        }
        if member == led && self.has_proposed {
            self.submit();
        }
        self.decide();
    }

    /// Of [`Message::Propose`].
    fn proposed(&mut self, from: u16, instance: u64, value: &[u8]) -> Result<(), MessageError> {
        let Some(ahead) = instance.checked_sub(self.delivered + 1).filter(|_| !self.closed) else { return Ok(()) };
        if value.len() > self.share_max() {
            return Err(MessageError::TooLong { len: value.len(), max: self.share_max() });
        }
        let Some(proposals) = usize::try_from(ahead).ok().and_then(|ahead| self.proposals.get_mut(ahead)) else {
            return Err(MessageError::Future { instance, delivered: self.delivered });
        };
        // What comes late of the dead is not waited for, and may have been decided (line 17).
        if self.correct.contains(from) {
            proposals.put(from, value);
            self.decide();
        }
        Ok(())
    }

    /// Of [`Message::Decide`]: the broadcast of `origin`, from itself or passed on.
    fn broadcast(&mut self, from: u16, origin: u16, instance: u64, value: &[u8]) -> Result<(), MessageError> {
        let lease = self.fcurb.trust() == Trust::Lease;
        if instance <= self.delivered && !lease || instance > self.delivered && self.closed {
            return Ok(());
        }
        if !(SET_LEN..=self.value_max).contains(&value.len()) {
            return Err(MessageError::TooLong { len: value.len(), max: self.value_max });
        }
        // With leases the one before may be held, and its sender be ahead.
        if instance > self.delivered + if lease { 2 } else { 1 } {
            return Err(MessageError::Future { instance, delivered: self.delivered });
        }
        if !lease && !self.correct.contains(from) {
            return Err(MessageError::AfterCrash { from });
        }
        if !lease && self.decided {
            return Ok(());
        }
        self.fcurb.succeeded(origin, instance);
        self.advance();
        self.fcurb.receive(from, origin, instance, value);
        self.advance();
        self.be_silent();
        Ok(())
    }

    /// A member that acknowledges a decision and has nothing to say in the next instance tells its leader so at the same time. Otherwise the
    /// leader waits for it after the decision, by a round trip, where only the leader's own clients have something to say.
    fn be_silent(&mut self) {
        let instance = self.delivered + 2;
        let acknowledges = self.fcurb.acknowledges(self.leader()) == self.delivered + 1;
        let speaks = !self.mine.is_empty() || !self.waiting.is_empty();
        if acknowledges && !speaks && !self.decided && !self.closed && self.silent_in < instance {
            (self.silent_in, self.owes_silence) = (instance, true);
        }
    }
}

impl Agreement for Huc {
    fn propose_tagged(&mut self, tag: Option<u8>, value: &[u8]) -> Result<(), Refused> {
        let (len, max) = (usize::from(tag.is_some()) + value.len(), self.share_max() - batch::PREFIX_LEN);
        if len > max {
            return Err(Refused::TooLong { len, max });
        }
        let share_max = self.share_max();
        if !batch::push_tagged(&mut self.waiting, tag, value, share_max) {
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
        let lease = self.fcurb.trust() == Trust::Lease;
        let is_own = match message {
            Message::Propose { .. } | Message::Chosen { .. } | Message::Lacking { .. } => round == from,
            Message::Decide { .. } => lease || round == from,
            Message::Ack { .. } => round == self.me,
            Message::Held { .. } | Message::Told { .. } | Message::Acks { .. } | Message::AllChosen { .. } => true,
        };
        match *message {
            Message::Told { .. } | Message::Acks { .. } | Message::AllChosen { .. } => {
                return Err(MessageError::NotOfProtocol);
            }
            Message::Ack { .. } | Message::Chosen { .. } | Message::Held { .. } | Message::Lacking { .. } if !lease => {
                return Err(MessageError::NotOfProtocol);
            }
            _ if !is_own => return Err(MessageError::Impostor { from, round }),
            Message::Propose { .. } => return self.proposed(from, instance, value),
            Message::Decide { .. } => return self.broadcast(from, round, instance, value),
            Message::Ack { .. } => self.fcurb.acknowledged(from, instance),
            Message::Chosen { .. } => self.fcurb.chosen(from, instance),
            Message::Held { dead, asks, .. } => self.fcurb.reported(from, round, instance, dead, asks),
            Message::Lacking { .. } => {
                let here = instance == self.delivered + 1 && from == self.leader();
                self.owes |= here && self.has_proposed && !self.decided && !self.closed;
            }
        }
        self.advance();
        Ok(())
    }

    fn crashed(&mut self, member: u16) {
        self.fcurb.crashed(member);
        self.advance();
    }

    fn poll_transmit(&mut self) -> Option<(HostSet, Message<'_>)> {
        let (instance, round) = (self.delivered + 1, self.me);
        if std::mem::take(&mut self.owes) {
            let to = HostSet::from_iter([self.leader()]);
            return Some((to, Message::Propose { instance, round, value: &self.mine }));
        }
        if std::mem::take(&mut self.owes_silence) && self.silent_in > self.delivered {
            let to = HostSet::from_iter([self.leader()]);
            return Some((to, Message::Propose { instance: self.silent_in, round, value: &[] }));
        }
        let lacking = std::mem::take(&mut self.lacking);
        if !lacking.is_empty() {
            return Some((lacking, Message::Lacking { instance, round }));
        }
        self.fcurb.poll_transmit()
    }

    fn poll_broadcast(&mut self) -> Option<Message<'_>> {
        self.fcurb.poll_broadcast()
    }

    fn broadcast_left(&mut self) {
        self.fcurb.broadcast_left();
        self.advance();
    }

    fn poll_decision(&mut self) -> Option<Decision<'_>> {
        self.advance();
        if !std::mem::take(&mut self.decided) {
            return None;
        }
        self.delivered += 1;
        std::mem::swap(&mut self.decision, &mut self.telling);
        let (set, _) = self.telling.split_first_chunk::<SET_LEN>().expect("checked when it came");
        if HostSet(u64::from_le_bytes(*set)).contains(self.me) {
            self.mine.clear();
        }
        self.has_proposed = self.silent_in == self.delivered + 1 && self.mine.is_empty();
        self.proposals[0].clear();
        self.proposals.swap(0, 1);
        self.offer();
        // What follows may be acknowledged already.
        self.be_silent();
        Some(Decision { instance: self.delivered, value: &self.telling[SET_LEN..] })
    }

    fn leader(&self) -> u16 {
        self.correct.iter().next().unwrap_or(self.me)
    }

    /// A leader has delivered what its predecessors have sent before it leads, and delivers first what it sends itself.
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
        (self.owes, self.owes_silence, self.decided, self.lacking) = (false, false, false, HostSet::EMPTY);
        self.proposals.iter_mut().for_each(Proposals::clear);
        self.closed = true;
    }

    fn resend(&mut self) -> bool {
        if self.fcurb.trust() == Trust::Network || planted::is(Planted::NeverResends) {
            return false;
        }
        let again = self.fcurb.resend();
        if std::mem::take(&mut self.fresh) || self.decided || self.closed {
            return again;
        }
        if !self.leads() {
            self.owes |= !self.mine.is_empty();
        } else if !self.fcurb.is_sending() && self.proposals[0].say_anything() {
            self.lacking = self.correct.minus(self.proposals[0].of);
            return again || !self.lacking.is_empty();
        }
        again
    }
}

impl Start for Huc {
    type Setting = Setting;
    type Error = ConfigError;

    fn broadcast_max(setting: &Setting) -> usize {
        HEADER_LEN + setting.value_max
    }

    fn start(setting: &Setting, me: u16, members: HostSet) -> Result<Self, ConfigError> {
        Self::new(setting, me, members)
    }
}

#[cfg(test)]
mod tests;
