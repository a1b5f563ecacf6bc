// SPDX-License-Identifier: Apache-2.0
//! Hierarchical stabilizing uniform consensus (FiDe App. A.3, Alg. 3) over optimistic stabilizing reliable
//! broadcast (App. A.2, Alg. 2), as a log: one instance after the other, several of them under way.
//!
//! The live member with the lowest id leads. It proposes a value, all members adopt and acknowledge it, and
//! when all live members have, the leader decides and announces the decision. When the leader crashes, the
//! next one proposes what it has adopted. A member that has decided a value knows that all members had
//! adopted it.
//!
//! **Differences from the published algorithm**, and why (numbers are those of `docs/errata.md`, which has
//! the counterexamples):
//!
//! - Acknowledgements carry the round, and the acknowledgements of a round are gathered anew for it and for
//!   each instance (2).
//! - A decision that comes from a member that is known to have crashed is relayed at once. Alg. 2 relays at
//!   the crash only the decisions that had come by then; a later one would stay with one member (1).
//! - A proposal of a member that is known to have crashed is ignored: a new leader that adopts it has a
//!   proposal that nobody makes (line 8), and is stuck (3). Its proposer cannot have decided, as this member
//!   had not acknowledged.
//! - Decisions are delivered one by one, and the window moves when one was delivered, after the call that
//!   brought it (6). Messages have the instance as their identity (5).
//! - A leader announces a decision without the value to members that have acknowledged it, and so store its
//!   value already. A member that has adopted something else since ignores that: a later leader will announce
//!   it, or this one when it resends.
//! - A crash is handled as an acknowledgement is: the last acknowledgement that was awaited may be that of
//!   the dead member.
//! - Of two members the one that adopts a proposal decides it at once if it may ([`Agreement::decide_before_leader`]):
//!   its proposer has the value too, whoever of the two survives has it, and nobody else ever leads. No decision is
//!   announced to it.
//!
//! **Pipelining.** With a window of W instances a member acknowledges instance i only when it has delivered
//! decision i - W. So a member that learns decision i knows that all live members have decision i - W: that
//! is the stability of Alg. 3, line 30, which the paper publishes for W = 1. A leader proposes at most W
//! instances beyond the last one that it has delivered; a member that is W behind it still has room for them.
//! So every slot has its place: W decisions that may have to be relayed, and 2 W instances to come.
//!
//! **Batching.** Values that are proposed between two calls of [`Agreement::poll_transmit`] share an
//! instance, as far as they fit; while the window is full they wait.
//!
//! **Lossy links** ([`Links::Lossy`]): see the module `resend`.

mod resend;
mod slot;

use std::collections::VecDeque;

use fide_types::{
    HostSet,
    planted::{self, Planted},
};

use slot::Slot;

use crate::{
    Agreement, Decision, Held, Refused, Start, batch,
    message::{Message, MessageError},
};

/// Most instances under way.
pub const WINDOW_MAX: u64 = 1024;

/// The links between live members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Links {
    /// They lose nothing, as published. No more messages than published are sent.
    Reliable,
    /// They lose, repeat and reorder messages. [`Agreement::resend`] has to be called from time to time.
    Lossy,
}

/// What all members have to have in common. Its `Debug` form is part of a group's number
/// ([`crate::group::group_of`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// Instances under way at once, from 1 to [`WINDOW_MAX`].
    pub window: u64,
    /// Longest value of an instance, bytes.
    pub value_max: usize,
    pub links: Links,
}

/// Why a member was not made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("member {me} is not in its own list of members")]
    NotAMember { me: u16 },
    #[error("a window of {window} instances; it has to be 1 to {WINDOW_MAX}")]
    Window { window: u64 },
    #[error("values of {max} bytes have no room for a proposal; at least {} are needed", batch::PREFIX_LEN + 1)]
    ValueMax { max: usize },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Propose,
    Ack,
    Decide,
    Chosen,
    Delivered,
}

/// A queued message. Its value is read from the instance's slot when it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Outgoing {
    to: HostSet,
    kind: Kind,
    instance: u64,
    /// Greater than `instance` only in a range of acks or chosens.
    last: u64,
    round: u16,
}

/// One member of a group.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Hsuc {
    me: u16,
    members: HostSet,
    correct: HostSet,
    window: u64,
    value_max: usize,
    /// Instances up to this one have been delivered.
    delivered: u64,
    /// The highest instance in which anything was proposed.
    seen: u64,
    /// The highest instance about which another member has sent something. Of a leader: earlier leaders may
    /// have decided the instances up to this one; all beyond it are its own.
    inherited: u64,
    closed: bool,
    /// [`Agreement::decide_before_leader`].
    decides_before_leader: bool,
    progress: resend::Progress,
    slots: Box<[Slot]>,
    /// Proposals that wait for the next instance.
    waiting: Vec<u8>,
    out: VecDeque<Outgoing>,
}

impl Hsuc {
    /// A member that has decided nothing yet. `me` is one of `members`, which are 1..=64.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn new(setting: &Setting, me: u16, members: HostSet) -> Result<Self, ConfigError> {
        let Setting { window, value_max, links } = *setting;
        if !members.contains(me) {
            return Err(ConfigError::NotAMember { me });
        }
        if !(1..=WINDOW_MAX).contains(&window) {
            return Err(ConfigError::Window { window });
        }
        if value_max <= batch::PREFIX_LEN {
            return Err(ConfigError::ValueMax { max: value_max });
        }
        let slots = usize::try_from(3 * window).expect("at most 3072");
        Ok(Self {
            me,
            members,
            correct: members,
            window,
            value_max,
            delivered: 0,
            seen: 0,
            inherited: 0,
            closed: false,
            decides_before_leader: false,
            progress: resend::Progress::new(links),
            slots: vec![Slot::default(); slots].into_boxed_slice(),
            waiting: Vec::with_capacity(value_max),
            out: VecDeque::new(),
        })
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

    fn others(&self) -> HostSet {
        self.correct.minus(HostSet::only(self.me))
    }

    fn leads(&self) -> bool {
        self.leader() == self.me
    }

    fn position(&self, instance: u64) -> usize {
        usize::try_from(instance % self.slots.len() as u64).expect("below the number of slots")
    }

    /// The slot of an instance, if it has one here.
    fn slot(&self, instance: u64) -> Option<&Slot> {
        Some(&self.slots[self.position(instance)]).filter(|slot| slot.instance == instance && instance > 0)
    }

    /// The slot of an instance that is neither stable nor beyond reach; a new one if need be.
    fn slot_mut(&mut self, instance: u64) -> &mut Slot {
        debug_assert!(instance + self.window > self.delivered && instance <= self.delivered + 2 * self.window);
        let position = self.position(instance);
        let slot = &mut self.slots[position];
        if slot.instance != instance {
            let value = std::mem::take(&mut slot.value);
            *slot = Slot { instance, value, ..Slot::default() };
            slot.value.clear();
        }
        slot
    }

    fn send(&mut self, to: HostSet, kind: Kind, instance: u64, round: u16) {
        if to.is_empty() {
            return;
        }
        let follows = |out: &Outgoing| {
            let same = (out.to, out.kind, out.round) == (to, kind, round);
            same && matches!(kind, Kind::Ack | Kind::Chosen) && out.last + 1 == instance
        };
        let new = Outgoing { to, kind, instance, last: instance, round };
        match self.out.back_mut() {
            Some(out) if follows(out) => out.last = instance,
            // Consecutive decisions that come again are answered once.
            Some(out) if kind == Kind::Delivered && *out == new => {}
            _ => self.out.push_back(new),
        }
    }

    /// As leader: proposes what dead leaders have left, then the waiting proposals, as far as the window
    /// reaches (as I acknowledge my own proposals too).
    fn propose_as_leader(&mut self) {
        if !self.leads() || self.closed {
            return;
        }
        for instance in self.delivered + 1..=self.inherited.min(self.delivered + self.window) {
            // Where nothing was adopted nobody can have decided anything: an empty value closes the gap.
            if self.slot(instance).is_none_or(|slot| !slot.decided && slot.round != self.me) {
                self.slot_mut(instance).inherit_value();
                self.propose_in(instance);
            }
        }
        while self.leads() && !self.waiting.is_empty() && self.seen < self.delivered + self.window {
            let instance = self.seen.max(self.delivered) + 1;
            let mut waiting = std::mem::take(&mut self.waiting);
            let slot = self.slot_mut(instance);
            std::mem::swap(&mut slot.value, &mut waiting);
            waiting.clear();
            self.waiting = waiting;
            self.propose_in(instance);
        }
    }

    /// Proposes the value of the instance's slot in my round.
    fn propose_in(&mut self, instance: u64) {
        let (me, others) = (self.me, self.others());
        self.seen = self.seen.max(instance);
        let slot = self.slot_mut(instance);
        slot.round = me;
        slot.acks = HostSet::only(me);
        slot.fresh = true;
        self.send(others, Kind::Propose, instance, me);
        self.decide_if_acknowledged(instance);
    }

    /// Decides if all correct members have acknowledged my proposal (line 20).
    fn decide_if_acknowledged(&mut self, instance: u64) {
        let (me, correct, others) = (self.me, self.correct, self.others());
        let position = self.position(instance);
        let slot = &mut self.slots[position];
        let is_mine = slot.instance == instance && slot.round == me && !slot.decided;
        if !is_mine || !slot.is_acknowledged_by_all(correct) {
            return;
        }
        slot.decided = true;
        slot.fresh = true;
        if !self.is_adopted_by_all() {
            self.send(others, Kind::Chosen, instance, me);
        }
    }

    /// Of [`Message::Ack`] (line 18).
    fn handle_ack(&mut self, from: u16, instance: u64, round: u16) {
        self.note_delivered(from, self.delivered_before_ack(instance));
        let position = self.position(instance);
        let slot = &mut self.slots[position];
        let (is_of, instance) = (slot.is_of(instance), slot.instance);
        if is_of && round == self.me && slot.round == self.me {
            slot.acks.insert(from);
            self.decide_if_acknowledged(instance);
        }
    }

    /// Whether all members have a proposal that one of them adopts, which decides it then.
    fn is_adopted_by_all(&self) -> bool {
        self.decides_before_leader && self.members.len() == 2
    }

    /// Acknowledges the adopted proposal of an instance if the window reaches it and that was not done yet
    /// (line 17).
    fn acknowledge(&mut self, instance: u64) {
        let (me, correct, position) = (self.me, self.correct, self.position(instance));
        let is_in_window = instance <= self.last_to_acknowledge();
        let is_adopted_by_all = self.is_adopted_by_all() || planted::is(Planted::DecidesAsIfOfTwo);
        let slot = &mut self.slots[position];
        if slot.instance != instance || !is_in_window || !slot.is_to_be_acknowledged(me, correct) {
            return;
        }
        slot.acked = slot.round;
        let round = slot.round;
        slot.decided |= is_adopted_by_all;
        self.send(HostSet::only(round), Kind::Ack, instance, round);
    }

    /// The highest instance that may be acknowledged: an acknowledgement says that the instance a window
    /// before it was delivered.
    fn last_to_acknowledge(&self) -> u64 {
        let beyond = if planted::is(Planted::AcksBeyondWindow) { self.window } else { 0 };
        self.delivered + self.window + beyond
    }

    /// The instance up to which a member has delivered that acknowledges `instance`.
    fn delivered_before_ack(&self, instance: u64) -> u64 {
        let window = if planted::is(Planted::AckMeansDelivered) { 0 } else { self.window };
        instance.saturating_sub(window)
    }

    /// Another member has sent something about an instance.
    fn inherit(&mut self, instance: u64) {
        self.seen = self.seen.max(instance);
        self.inherited = self.inherited.max(instance);
    }

    /// Of [`Message::Propose`] (lines 13 to 17).
    fn handle_proposal(&mut self, from: u16, instance: u64, round: u16, value: &[u8]) -> Result<(), MessageError> {
        if round != from {
            return Err(MessageError::Impostor { from, round });
        }
        // Nobody has decided a proposal that comes late from a dead leader: I have not acknowledged it.
        if !self.correct.contains(from) {
            return Ok(());
        }
        if instance <= self.delivered || self.slot(instance).is_some_and(|slot| slot.decided) {
            self.answer_repeated(from, instance);
            return Ok(());
        }
        self.inherit(instance);
        let slot = self.slot_mut(instance);
        let is_newer = slot.is_replaced_by(round);
        if is_newer {
            slot.set_value(value);
            slot.round = round;
        }
        if is_newer || slot.round == round {
            self.forget_ack(instance);
            self.acknowledge(instance);
        }
        Ok(())
    }

    /// Of [`Message::Decide`] and [`Message::Chosen`]. `value`: none if it is the one of that round, which I
    /// have acknowledged.
    fn handle_decision(&mut self, from: u16, instance: u64, round: u16, value: Option<&[u8]>) {
        if instance <= self.delivered || self.slot(instance).is_some_and(|slot| slot.decided) {
            return self.send_delivered(from);
        }
        if value.is_none() && self.slot(instance).is_none_or(|slot| slot.round != round) {
            return;
        }
        self.inherit(instance);
        let slot = self.slot_mut(instance);
        if let Some(value) = value {
            slot.set_value(value);
        }
        slot.round = round;
        slot.decided = true;
        if !self.correct.contains(round) {
            // It may have reached nobody else, and no crash is to come at which it would be relayed.
            self.send(self.others(), self.relay_kind(), instance, round);
        }
    }
}

impl Agreement for Hsuc {
    fn propose_tagged(&mut self, tag: Option<u8>, value: &[u8]) -> Result<(), Refused> {
        if !self.leads() {
            return Err(Refused::NotLeader { leader: self.leader() });
        }
        let (len, max) = (usize::from(tag.is_some()) + value.len(), self.value_max - batch::PREFIX_LEN);
        if len > max {
            return Err(Refused::TooLong { len, max });
        }
        if !batch::push_tagged(&mut self.waiting, tag, value, self.value_max) {
            self.propose_as_leader();
            if !batch::push_tagged(&mut self.waiting, tag, value, self.value_max) {
                return Err(Refused::Full);
            }
        }
        Ok(())
    }

    fn receive(&mut self, from: u16, message: &Message<'_>) -> Result<(), MessageError> {
        let (instance, value) = (message.instance(), message.value());
        let round = message.round().unwrap_or(from);
        for member in [from, round] {
            if !self.members.contains(member) {
                return Err(MessageError::Stranger { member });
            }
        }
        if value.len() > self.value_max {
            return Err(MessageError::TooLong { len: value.len(), max: self.value_max });
        }
        let last = message.last();
        if instance == 0 || last > self.delivered + 2 * self.window {
            return Err(MessageError::Future { instance: last, delivered: self.delivered });
        }
        if last - instance >= self.slots.len() as u64 {
            return Err(MessageError::Range { instance, last });
        }
        // Delivered instances still serve others.
        let last = if self.closed { last.min(self.delivered) } else { last };
        if instance > last {
            return Ok(());
        }
        match message {
            Message::Propose { .. } => self.handle_proposal(from, instance, round, value)?,
            Message::Ack { .. } | Message::AckRange { .. } => {
                (instance..=last).for_each(|instance| self.handle_ack(from, instance, round))
            }
            Message::Decide { .. } => self.handle_decision(from, instance, round, Some(value)),
            Message::Chosen { .. } | Message::ChosenRange { .. } => {
                (instance..=last).for_each(|instance| self.handle_decision(from, instance, round, None));
            }
            Message::Delivered { .. } => self.note_delivered(from, instance),
            Message::Report { .. } | Message::Solicit { .. } => return Err(MessageError::NotOfProtocol),
        }
        Ok(())
    }

    fn crashed(&mut self, member: u16) {
        if !self.correct.contains(member) || member == self.me {
            return;
        }
        self.correct.remove(member);
        // Alg. 2, line 14: relays decisions that may have reached only some members.
        let unstable = (self.delivered + 1).saturating_sub(self.window).max(1)..=self.seen;
        for instance in unstable {
            if let Some(slot) = self.slot(instance).filter(|slot| slot.decided) {
                self.send(self.others(), self.relay_kind(), instance, slot.round);
            }
        }
        // Its acknowledgement may be the last one that was awaited.
        if !planted::is(Planted::WaitsForTheDead) {
            (self.delivered + 1..=self.seen).for_each(|instance| self.decide_if_acknowledged(instance));
        }
        self.propose_as_leader();
    }

    fn poll_transmit(&mut self) -> Option<(HostSet, Message<'_>)> {
        // Values proposed since the last call share an instance.
        if !self.waiting.is_empty() {
            self.propose_as_leader();
        }
        loop {
            let Outgoing { to, kind, instance, last, round } = self.out.pop_front()?;
            // Members that have crashed since need nothing; an instance that is stable by now is known to
            // all.
            let to = to.and(self.correct);
            let first = (instance..=last).find(|instance| self.slot(*instance).is_some());
            let Some(instance) =
                first.or(Some(instance).filter(|_| kind == Kind::Delivered)).filter(|_| !to.is_empty())
            else {
                continue;
            };
            let position = self.position(instance);
            let value: &[u8] = &self.slots[position].value;
            return Some((
                to,
                match kind {
                    Kind::Propose => Message::Propose { instance, round, value },
                    Kind::Ack if last > instance => Message::AckRange { instance, last, round },
                    Kind::Chosen if last > instance => Message::ChosenRange { instance, last, round },
                    Kind::Ack => Message::Ack { instance, round },
                    Kind::Decide => Message::Decide { instance, round, value },
                    Kind::Chosen => Message::Chosen { instance, round },
                    Kind::Delivered => Message::Delivered { instance },
                },
            ));
        }
    }

    fn poll_decision(&mut self) -> Option<Decision<'_>> {
        if !self.waiting.is_empty() && self.others().is_empty() {
            // There is nobody to wait for.
            self.propose_as_leader();
        }
        let instance = self.delivered + 1;
        if !self.slot(instance).is_some_and(Slot::may_be_delivered) {
            return None;
        }
        self.delivered = instance;
        // The window has moved on.
        self.acknowledge(instance + self.window);
        self.propose_as_leader();
        let position = self.position(instance);
        Some(Decision { instance, value: &self.slots[position].value })
    }

    fn leader(&self) -> u16 {
        self.correct.iter().next().unwrap_or(self.me)
    }

    fn speaks_for_all(&self) -> bool {
        // Others may have delivered a decision that I have not delivered yet.
        let is_undelivered = self.slot(self.delivered + 1).is_some_and(|slot| slot.decided);
        let all_delivered = !is_undelivered || planted::is(Planted::AnswersUndelivered);
        let all_inherited = self.delivered >= self.inherited || planted::is(Planted::SpeaksEarly);
        self.leads() && all_delivered && all_inherited
    }

    fn has_inherited(&self) -> bool {
        self.delivered >= self.inherited
    }

    fn stored(&self) -> u64 {
        self.seen.max(self.delivered)
    }

    fn each_held(&self, each: &mut dyn FnMut(Held<'_>)) -> bool {
        for instance in self.delivered + 1..=self.seen {
            let Some(slot) = self.slot(instance).filter(|slot| slot.decided || slot.round != 0) else { continue };
            if slot.decided || !planted::is(Planted::OverlooksStored) {
                each(Held { instance, round: slot.round, value: &slot.value });
            }
        }
        true
    }

    fn decide_before_leader(&mut self) {
        self.decides_before_leader = true;
    }

    fn awaits_answer(&self) -> bool {
        self.seen > self.delivered
    }

    fn close(&mut self, undecided: &mut dyn FnMut(&[u8])) {
        let mine = self.leads();
        for instance in self.delivered + 1..=self.seen {
            let (me, position) = (self.me, self.position(instance));
            let slot = &mut self.slots[position];
            if slot.instance != instance {
                continue;
            }
            if mine && slot.round == me {
                undecided(&slot.value);
            }
            slot.instance = 0;
        }
        if !self.waiting.is_empty() {
            undecided(&self.waiting);
            self.waiting.clear();
        }
        self.seen = self.delivered;
        self.inherited = self.inherited.min(self.delivered);
        self.closed = true;
    }

    fn resend(&mut self) -> bool {
        self.send_again()
    }
}

impl Start for Hsuc {
    type Setting = Setting;
    type Error = ConfigError;

    fn start(setting: &Setting, me: u16, members: HostSet) -> Result<Self, ConfigError> {
        Self::new(setting, me, members)
    }
}

#[cfg(test)]
mod tests;
