// SPDX-License-Identifier: Apache-2.0
//! Heartbeat uniform consensus (FiDe §4.1 Alg. 1, App. A.4 Alg. 4), as a log: one instance after the other.
//!
//! Every member sends its proposal to the leader, the live member with the lowest id. When the leader has the
//! proposals of all live members it decides, and broadcasts the decision by FCURB ([`crate::fcurb`]): in its
//! next heartbeat. As published that is all: two message delays and no acknowledgement ([`Trust::Network`]).
//! Under leases ([`Trust::Lease`]) it takes one more delay, and links may lose, repeat and reorder.
//!
//! **One instance at one member:**
//!
//! ```text
//!   ┌──────┐  propose_waiting: a value, or none  ┌──────────┐  handle_deliveries: FCURB  ┌─────────┐
//!   │ open │ ──────────────────────────────────► │ proposed │ ─────────────────────────► │ decided │
//!   └──────┘                                     └──────────┘   delivers the decision    └─────────┘
//!       ▲       a value comes after "none"         │   ▲  │                                   │ poll_decision
//!       └──────────────────────────────────────────┘   └──┘                                   ▼
//!                                         the leader crashes:                  the next instance: open; or proposed,
//!                                         submit_proposal, to the next         if "none" was announced for it
//! ```
//!
//! The leader calls `decide_if_complete` with each proposal and with each crash. A proposal reaches the
//! leader as follows: `submit_proposal` sets `owes_proposal`, and `poll_transmit` sends what is owed. A
//! "none" for the next instance goes ahead with an acknowledgement (`announce_silence`).
//!
//! **Differences from the published algorithm**, and why (numbers are those of `docs/errata.md`):
//!
//! - Nothing of an instance is left for the next one (4).
//! - DET joins all proposals that have come and fit, so that each instance decides what the members have to
//!   say; the published DET chooses one of them. It begins with another member in each instance, so that all
//!   have their turn. An empty batch counts as no proposal, and no member waits for its turn (7).
//! - A member with nothing to say proposes nothing, once; when it has a value before the decision, it
//!   proposes again. So one proposal and one heartbeat are all that a value needs, also in a group that was
//!   idle. With leases a silent member announces this for the next instance when it acknowledges the decision
//!   of this one. A decision names the members whose proposals it contains: a member whose proposal came too
//!   late, or did not fit, proposes it again in the next instance. A value that comes just after the
//!   announcement of silence may miss one more instance.
//! - With `trust = "network"` a broadcast of a member that is known to have crashed is refused: FCURB
//!   promises that there is none.
//! - Proposals that come before their receiver leads are kept, and so are those of the next instance: a
//!   member may have delivered a decision that its leader has not yet delivered to itself.
//!
//! **Lossy links** (with leases): a leader that has something to decide asks for the proposals that it lacks;
//! a member that has something to say repeats it until it is decided. Where nobody has anything to say,
//! nothing is sent.

use fide_types::{
    HostSet, MAX_HOSTS, PerHost,
    planted::{self, Planted},
};

use crate::{
    Agreement, Decision, Held, Refused, Start, batch,
    fcurb::{Delivery, Fcurb, Trust},
    message::{HEADER_LEN, Message, MessageError},
};

/// Bytes of a decision before its batch: the set of the members whose proposals it contains.
pub const SET_LEN: usize = 8;

/// What all members have to have in common. Its `Debug` form is part of a group's number
/// ([`crate::group::group_of`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// Longest decision, bytes: it has to fit a heartbeat.
    pub value_max: usize,
    pub trust: Trust,
}

/// Why a member was not made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("member {me} is not in its own list of members")]
    NotAMember { me: u16 },
    #[error("decisions of {max} bytes have no room for a proposal; at least {} are needed", SET_LEN + batch::PREFIX_LEN + 1)]
    ValueMax { max: usize },
}

/// The proposals of one instance, at its leader.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Proposals {
    /// Members whose proposal has come.
    of: HostSet,
    /// Empty: the member has nothing to say.
    values: PerHost<Vec<u8>>,
}

impl Proposals {
    fn new() -> Self {
        Self { of: HostSet::EMPTY, values: PerHost::new(MAX_HOSTS, |_| Vec::new()) }
    }

    fn put(&mut self, from: u16, value: &[u8]) {
        let place = &mut self.values[from];
        // Links reorder: an empty proposal is older than one with a value.
        if self.of.contains(from) && !place.is_empty() {
            return;
        }
        self.of.insert(from);
        place.clear();
        place.extend_from_slice(value);
    }

    fn value(&self, id: u16) -> &[u8] {
        &self.values[id]
    }

    fn have_values(&self) -> bool {
        self.values.values().iter().any(|value| !value.is_empty())
    }

    fn remove(&mut self, member: u16) {
        self.of.remove(member);
        self.values[member].clear();
    }

    fn clear(&mut self) {
        self.of = HostSet::EMPTY;
        self.values.values_mut().iter_mut().for_each(Vec::clear);
    }
}

/// One member of a group.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Huc {
    me: u16,
    members: HostSet,
    correct: HostSet,
    value_max: usize,
    /// Instances up to this one have been delivered.
    delivered: u64,
    /// Of the present instance and the next one.
    proposals: [Proposals; 2],
    /// I have proposed in this instance, if only nothing.
    has_proposed: bool,
    /// My proposal has to be sent to the leader.
    owes_proposal: bool,
    /// The last instance for which I have announced, with an acknowledgement, that I have nothing to say; 0:
    /// none.
    silent_in: u64,
    /// That announcement has to be sent to the leader.
    owes_silence: bool,
    /// My proposal in this instance.
    mine: Vec<u8>,
    /// What waits for the next instance.
    waiting: Vec<u8>,
    /// I have proposed, or was asked for my proposal, since the last [`Agreement::resend`].
    fresh: bool,
    /// Members to be asked for their proposals.
    solicited: HostSet,
    fcurb: Fcurb,
    /// The present instance is decided, and not delivered yet.
    is_decided: bool,
    /// Of the present instance.
    decision: Vec<u8>,
    /// The decision delivered last, while the user looks at it.
    delivered_decision: Vec<u8>,
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
        let mut member = Self {
            me,
            members,
            correct: members,
            value_max,
            delivered: 0,
            proposals: [Proposals::new(), Proposals::new()],
            has_proposed: false,
            owes_proposal: false,
            silent_in: 0,
            owes_silence: false,
            mine: Vec::new(),
            waiting: Vec::new(),
            fresh: false,
            solicited: HostSet::EMPTY,
            fcurb: Fcurb::new(trust, me, members),
            is_decided: false,
            decision: Vec::new(),
            delivered_decision: Vec::new(),
            closed: false,
        };
        member.propose_waiting();
        Ok(member)
    }

    /// Members that are not known to have crashed.
    #[must_use]
    pub fn correct(&self) -> HostSet {
        self.correct
    }

    /// Instances up to this one have been delivered.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Most bytes that a member may propose in one instance.
    #[must_use]
    pub fn share_max(&self) -> usize {
        self.value_max - SET_LEN
    }

    fn leads(&self) -> bool {
        self.leader() == self.me
    }

    /// Proposes the waiting values, or nothing, in the present instance (lines 5 to 7). Again if it proposed
    /// nothing before.
    fn propose_waiting(&mut self) {
        if self.is_decided || self.closed {
            return;
        }
        if self.mine.is_empty() && !self.waiting.is_empty() {
            std::mem::swap(&mut self.mine, &mut self.waiting);
            self.has_proposed = false;
        }
        if !self.has_proposed {
            self.has_proposed = true;
            self.submit_proposal();
        }
    }

    /// Hands my proposal to the leader, which may be me.
    fn submit_proposal(&mut self) {
        self.fresh = true;
        if self.leads() {
            self.proposals[0].put(self.me, &self.mine);
            self.decide_if_complete();
        } else {
            self.owes_proposal = true;
        }
    }

    /// As leader: decides if the proposals of all live members have come, and one of them has a value (lines
    /// 11 to 14).
    fn decide_if_complete(&mut self) {
        let [now, _] = &self.proposals;
        let is_complete = self.correct.minus(now.of).is_empty();
        if !self.leads() || self.is_decided || self.closed || self.fcurb.is_sending() || !is_complete {
            return;
        }
        let instance = self.delivered + 1;
        let speaking: HostSet = now.of.and(self.correct).iter().filter(|id| !now.value(*id).is_empty()).collect();
        if speaking.is_empty() {
            return;
        }
        // The turn goes round all members, not only those that speak: otherwise two members that speak in
        // every other instance would keep out a third.
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
        self.handle_deliveries();
    }

    /// Handles what FCURB delivers (lines 15 to 23), up to a decision.
    fn handle_deliveries(&mut self) {
        while !self.is_decided
            && let Some(delivery) = self.fcurb.poll()
        {
            match delivery {
                Delivery::Message { number, value } if number == self.delivered + 1 && !self.closed => {
                    self.decision.clear();
                    self.decision.extend_from_slice(value);
                    self.is_decided = true;
                    self.owes_proposal = false;
                }
                // The log has ended.
                Delivery::Message { .. } => {}
                Delivery::Crashed(member) => self.handle_crash(member),
            }
        }
    }

    /// FCURB has delivered a crash (lines 16 to 21).
    fn handle_crash(&mut self, member: u16) {
        let led = self.leader();
        self.correct.remove(member);
        self.proposals.iter_mut().for_each(|proposals| proposals.remove(member));
        if member == led {
            // The announcement of silence has to be repeated to the next leader.
            self.silent_in = self.silent_in.min(self.delivered + 1);
        }
        if self.closed {
            return;
        }
        if member == led && self.has_proposed {
            self.submit_proposal();
        }
        self.decide_if_complete();
    }

    /// Of [`Message::Propose`].
    fn handle_proposal(&mut self, from: u16, instance: u64, value: &[u8]) -> Result<(), MessageError> {
        let Some(ahead) = instance.checked_sub(self.delivered + 1).filter(|_| !self.closed) else { return Ok(()) };
        if value.len() > self.share_max() {
            return Err(MessageError::TooLong { len: value.len(), max: self.share_max() });
        }
        let Some(proposals) = usize::try_from(ahead).ok().and_then(|ahead| self.proposals.get_mut(ahead)) else {
            return Err(MessageError::Future { instance, delivered: self.delivered });
        };
        // A proposal that comes late from a dead member is not awaited, and may have been decided (line 17).
        if self.correct.contains(from) {
            proposals.put(from, value);
            self.decide_if_complete();
        }
        Ok(())
    }

    /// Of [`Message::Decide`]: the broadcast of `origin`, from itself or passed on.
    fn handle_broadcast(&mut self, from: u16, origin: u16, instance: u64, value: &[u8]) -> Result<(), MessageError> {
        let lease = self.fcurb.trust() == Trust::Lease;
        if instance <= self.delivered && !lease || instance > self.delivered && self.closed {
            return Ok(());
        }
        if !(SET_LEN..=self.value_max).contains(&value.len()) {
            return Err(MessageError::TooLong { len: value.len(), max: self.value_max });
        }
        // With leases the decision before it may be stored and not delivered, while its sender is one ahead.
        if instance > self.delivered + if lease { 2 } else { 1 } {
            return Err(MessageError::Future { instance, delivered: self.delivered });
        }
        if !lease && !self.correct.contains(from) {
            return Err(MessageError::AfterCrash { from });
        }
        if !lease && self.is_decided {
            return Ok(());
        }
        self.fcurb.note_successor(origin, instance);
        self.handle_deliveries();
        self.fcurb.receive(from, origin, instance, value);
        self.handle_deliveries();
        self.announce_silence();
        Ok(())
    }

    /// A member that acknowledges a decision and has nothing to say in the next instance announces that to
    /// its leader at the same time. Otherwise the leader would wait for its proposal after the decision, for
    /// a round trip, although only the leader's own clients have something to say.
    fn announce_silence(&mut self) {
        let instance = self.delivered + 2;
        let acknowledges = self.fcurb.acknowledges(self.leader()) == self.delivered + 1;
        let speaks = !self.mine.is_empty() || !self.waiting.is_empty();
        if acknowledges && !speaks && !self.is_decided && !self.closed && self.silent_in < instance {
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
        self.propose_waiting();
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
            Message::Propose { .. } | Message::Chosen { .. } | Message::Solicit { .. } => round == from,
            Message::Decide { .. } => lease || round == from,
            Message::Ack { .. } => round == self.me,
            Message::Report { .. }
            | Message::Delivered { .. }
            | Message::AckRange { .. }
            | Message::ChosenRange { .. } => true,
        };
        match *message {
            Message::Delivered { .. } | Message::AckRange { .. } | Message::ChosenRange { .. } => {
                return Err(MessageError::NotOfProtocol);
            }
            Message::Ack { .. } | Message::Chosen { .. } | Message::Report { .. } | Message::Solicit { .. }
                if !lease =>
            {
                return Err(MessageError::NotOfProtocol);
            }
            _ if !is_own => return Err(MessageError::Impostor { from, round }),
            Message::Propose { .. } => return self.handle_proposal(from, instance, value),
            Message::Decide { .. } => return self.handle_broadcast(from, round, instance, value),
            Message::Ack { .. } => self.fcurb.handle_ack(from, instance),
            Message::Chosen { .. } => self.fcurb.handle_chosen(from, instance),
            Message::Report { dead, asks, .. } => self.fcurb.handle_report(from, round, instance, dead, asks),
            Message::Solicit { .. } => {
                let here = instance == self.delivered + 1 && from == self.leader();
                self.owes_proposal |= here && self.has_proposed && !self.is_decided && !self.closed;
            }
        }
        self.handle_deliveries();
        Ok(())
    }

    fn crashed(&mut self, member: u16) {
        self.fcurb.crashed(member);
        self.handle_deliveries();
    }

    fn poll_transmit(&mut self) -> Option<(HostSet, Message<'_>)> {
        let (instance, round) = (self.delivered + 1, self.me);
        if std::mem::take(&mut self.owes_proposal) {
            let to = HostSet::only(self.leader());
            return Some((to, Message::Propose { instance, round, value: &self.mine }));
        }
        if std::mem::take(&mut self.owes_silence) && self.silent_in > self.delivered {
            let to = HostSet::only(self.leader());
            return Some((to, Message::Propose { instance: self.silent_in, round, value: &[] }));
        }
        let solicited = std::mem::take(&mut self.solicited);
        if !solicited.is_empty() {
            return Some((solicited, Message::Solicit { instance, round }));
        }
        self.fcurb.poll_transmit()
    }

    fn poll_broadcast(&mut self) -> Option<Message<'_>> {
        self.fcurb.poll_broadcast()
    }

    fn broadcast_left(&mut self) {
        self.fcurb.broadcast_left();
        self.handle_deliveries();
    }

    fn poll_decision(&mut self) -> Option<Decision<'_>> {
        self.handle_deliveries();
        if !std::mem::take(&mut self.is_decided) {
            return None;
        }
        self.delivered += 1;
        std::mem::swap(&mut self.decision, &mut self.delivered_decision);
        let (set, _) = self.delivered_decision.split_first_chunk::<SET_LEN>().expect("checked when it came");
        if HostSet(u64::from_le_bytes(*set)).contains(self.me) {
            self.mine.clear();
        }
        self.has_proposed = self.silent_in == self.delivered + 1 && self.mine.is_empty();
        self.proposals[0].clear();
        self.proposals.swap(0, 1);
        self.propose_waiting();
        // The next decision may be acknowledged already.
        self.announce_silence();
        Some(Decision { instance: self.delivered, value: &self.delivered_decision[SET_LEN..] })
    }

    fn leader(&self) -> u16 {
        self.correct.iter().next().unwrap_or(self.me)
    }

    /// A leader has delivered all broadcasts of its predecessors before it leads, and is the first to deliver
    /// its own.
    fn speaks_for_all(&self) -> bool {
        self.leads() && !self.is_decided
    }

    fn stored(&self) -> u64 {
        self.fcurb.stored().max(self.delivered + u64::from(self.is_decided))
    }

    fn each_held(&self, each: &mut dyn FnMut(Held<'_>)) -> bool {
        let batch = |value: &'_ [u8]| value.len().min(SET_LEN);
        for instance in self.delivered + 1..=self.stored() {
            if self.is_decided && instance == self.delivered + 1 {
                each(Held { instance, round: 0, value: &self.decision[batch(&self.decision)..] });
            }
            for (round, value) in self.fcurb.held(instance) {
                each(Held { instance, round, value: &value[batch(value)..] });
            }
        }
        // Where the network is trusted others deliver what this member has yet to hear.
        self.fcurb.trust() == Trust::Lease
    }

    fn close(&mut self, undecided: &mut dyn FnMut(&[u8])) {
        for values in [&mut self.mine, &mut self.waiting] {
            if !values.is_empty() {
                undecided(values);
                values.clear();
            }
        }
        (self.owes_proposal, self.owes_silence, self.is_decided) = (false, false, false);
        self.solicited = HostSet::EMPTY;
        self.proposals.iter_mut().for_each(Proposals::clear);
        self.closed = true;
    }

    fn resend(&mut self) -> bool {
        if self.fcurb.trust() == Trust::Network || planted::is(Planted::NeverResends) {
            return false;
        }
        let again = self.fcurb.resend();
        if std::mem::take(&mut self.fresh) || self.is_decided || self.closed {
            return again;
        }
        if !self.leads() {
            self.owes_proposal |= !self.mine.is_empty();
        } else if !self.fcurb.is_sending() && self.proposals[0].have_values() {
            self.solicited = self.correct.minus(self.proposals[0].of);
            return again || !self.solicited.is_empty();
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
