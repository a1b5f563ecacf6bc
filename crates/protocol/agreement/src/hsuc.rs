// SPDX-License-Identifier: Apache-2.0
//! Hierarchical stabilizing uniform consensus (FiDe App. A.3, Alg. 3) over optimistic stabilizing reliable broadcast (App. A.2,
//! Alg. 2), as a log: one instance after the other, several of them under way.
//!
//! The live member with the lowest id leads. It proposes, all members adopt and acknowledge, and when all that live have, it
//! decides and tells. When it crashes, the next one proposes what it has adopted. Whoever has decided knows that all had adopted.
//!
//! **What is other than published**, and why (numbers are those of `docs/errata.md`, which has the counterexamples):
//!
//! - Acknowledgements carry the round, and what a round has gathered begins anew with it and with each instance (2).
//! - A decision that comes from a member that is known to have crashed is relayed at once. Alg. 2 relays at the crash only what was
//!   there by then; what comes later would stay with one member (1).
//! - A proposal of a member that is known to have crashed is ignored: a new leader that adopts it has a proposal that nobody makes
//!   (line 8), and is stuck (3). Its proposer cannot have decided: this member had not acknowledged.
//! - Decisions are told one by one, and the window moves when one was told, after the call that brought it (6). Messages have the
//!   instance as their identity (5).
//! - A leader tells its decision to those who have acknowledged it, and so have its value already, without the value. Who has
//!   adopted something else since takes no notice: a later leader will tell it, or this one when it sends again.
//! - A crash is looked at as an acknowledgement is: the last one that was waited for may be that of the dead.
//!
//! **Pipelining.** With a window of W instances a member acknowledges instance i only when it has told decision i - W. So who
//! learns decision i knows that all live members have decision i - W: that is the stability of Alg. 3, line 30, which it publishes
//! for W = 1. A leader proposes at most W instances beyond the last one that it has told; a member that is W behind it still
//! has room for them. So every buffer has its place: W decisions that may have to be relayed, 2 W instances to come.
//!
//! **Batching.** What is proposed between two calls of [`Agreement::poll_transmit`] shares an instance, as far as it fits; while the window
//! is full it waits.
//!
//! **Lossy links** ([`Links::Lossy`]): see [`resend`].

mod resend;

use std::collections::VecDeque;

use fide_types::{
    HostSet,
    planted::{self, Planted},
};

use crate::{
    Agreement, Decision, Refused, Start, batch,
    message::{Message, MessageError},
};

/// Instances under way, at most.
pub const WINDOW_MAX: u64 = 1024;

/// What links between members that live do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Links {
    /// They lose nothing, as published. No message more than published is sent.
    Reliable,
    /// They lose, repeat and reorder. [`Agreement::resend`] has to be called from time to time.
    Lossy,
}

/// What members have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// Instances under way at once, from 1.
    pub window: u64,
    /// Longest value of an instance, bytes.
    pub value_max: usize,
    pub links: Links,
}

/// Why there is no such group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("member {me} is not in its own list of members")]
    NotAMember { me: u16 },
    #[error("a window of {window} instances; 1 to {WINDOW_MAX} are possible")]
    Window { window: u64 },
    #[error("values of {max} bytes have no room for a proposal; {} are the least", batch::PREFIX_LEN + 1)]
    ValueMax { max: usize },
}

/// What is known of one instance.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Slot {
    instance: u64,
    /// Whose proposal is adopted; 0: none yet.
    round: u16,
    /// Of my own round.
    acks: HostSet,
    /// The round that was acknowledged last.
    acked: u16,
    decided: bool,
    /// Sent since the last [`Agreement::resend`]: an answer may be under way.
    fresh: bool,
    value: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Propose,
    Ack,
    Decide,
    Chosen,
    Told,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Out {
    to: HostSet,
    kind: Kind,
    instance: u64,
    /// Greater only of acknowledgements, and of decisions without their value.
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
    /// Instances up to this one have been told.
    delivered: u64,
    /// The highest instance in which anything was proposed.
    seen: u64,
    /// The highest instance of which others have told: what predecessors may have decided, of who leads. Beyond it all are its own.
    inherited: u64,
    closed: bool,
    links: resend::Known,
    slots: Box<[Slot]>,
    /// Proposals that wait for the next instance.
    waiting: Vec<u8>,
    out: VecDeque<Out>,
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
            links: resend::Known::new(links),
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

    /// Instances up to this one have been told.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    fn others(&self) -> HostSet {
        let mut others = self.correct;
        others.remove(self.me);
        others
    }

    fn leads(&self) -> bool {
        self.leader() == self.me
    }

    fn position(&self, instance: u64) -> usize {
        usize::try_from(instance % self.slots.len() as u64).expect("below the number of slots")
    }

    /// What is known of an instance that has a place here.
    fn slot(&self, instance: u64) -> Option<&Slot> {
        Some(&self.slots[self.position(instance)]).filter(|slot| slot.instance == instance && instance > 0)
    }

    /// The place of an instance that is neither stable nor beyond reach.
    fn claim(&mut self, instance: u64) -> &mut Slot {
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
        let follows = |out: &Out| {
            let same = (out.to, out.kind, out.round) == (to, kind, round);
            same && matches!(kind, Kind::Ack | Kind::Chosen) && out.last + 1 == instance
        };
        let new = Out { to, kind, instance, last: instance, round };
        match self.out.back_mut() {
            Some(out) if follows(out) => out.last = instance,
            // A run of decisions that come again is answered once.
            Some(out) if kind == Kind::Told && *out == new => {}
            _ => self.out.push_back(new),
        }
    }

    /// Proposes what a dead leader has left, then what has come to wait; as far as the window reaches, as I acknowledge my own
    /// proposals too.
    fn lead(&mut self) {
        if !self.leads() || self.closed {
            return;
        }
        for instance in self.delivered + 1..=self.inherited.min(self.delivered + self.window) {
            // Where nothing was adopted nobody can have decided anything: an empty value closes the gap.
            if self.slot(instance).is_none_or(|slot| !slot.decided && slot.round != self.me) {
                if planted::is(Planted::DropsAdopted) {
                    self.claim(instance).value.clear();
                }
                self.propose_in(instance);
            }
        }
        while self.leads() && !self.waiting.is_empty() && self.seen < self.delivered + self.window {
            let instance = self.seen.max(self.delivered) + 1;
            let mut waiting = std::mem::take(&mut self.waiting);
            let slot = self.claim(instance);
            std::mem::swap(&mut slot.value, &mut waiting);
            waiting.clear();
            self.waiting = waiting;
            self.propose_in(instance);
        }
    }

    /// Proposes what the instance's place holds, in my round.
    fn propose_in(&mut self, instance: u64) {
        let (me, others) = (self.me, self.others());
        self.seen = self.seen.max(instance);
        let slot = self.claim(instance);
        slot.round = me;
        slot.acks = HostSet::EMPTY;
        slot.acks.insert(me);
        slot.fresh = true;
        self.send(others, Kind::Propose, instance, me);
        self.decide(instance);
    }

    /// Decides if all that live have acknowledged my proposal (line 20).
    fn decide(&mut self, instance: u64) {
        let (me, correct, others) = (self.me, self.correct, self.others());
        let position = self.position(instance);
        let slot = &mut self.slots[position];
        let missing = correct.minus(slot.acks).len();
        let enough = missing == 0 || missing == 1 && correct.len() > 2 && planted::is(Planted::DecidesEarly);
        if slot.instance != instance || slot.decided || slot.round != me || !enough {
            return;
        }
        slot.decided = true;
        slot.fresh = true;
        self.send(others, Kind::Chosen, instance, me);
    }

    /// A member has acknowledged (line 18).
    fn acked(&mut self, from: u16, instance: u64, round: u16) {
        let window = if planted::is(Planted::AckMeansTold) { 0 } else { self.window };
        self.note_told(from, instance.saturating_sub(window));
        let position = self.position(instance);
        let slot = &mut self.slots[position];
        let same = slot.instance == instance || planted::is(Planted::MixesInstances);
        let instance = slot.instance;
        if same && round == self.me && slot.round == self.me {
            slot.acks.insert(from);
            self.decide(instance);
        }
    }

    /// Acknowledges what is adopted and was not acknowledged yet, as far as the window reaches.
    fn acknowledge(&mut self, instance: u64) {
        let beyond = if planted::is(Planted::AcksBeyondWindow) { self.window } else { 0 };
        let reach = self.delivered + self.window + beyond;
        let (me, correct, position) = (self.me, self.correct, self.position(instance));
        let slot = &mut self.slots[position];
        let due = slot.instance == instance && !slot.decided && slot.round != 0 && slot.acked != slot.round;
        if !due || instance > reach || slot.round == me || !correct.contains(slot.round) {
            return;
        }
        slot.acked = slot.round;
        let mut to = HostSet::EMPTY;
        to.insert(slot.round);
        let round = slot.round;
        self.send(to, Kind::Ack, instance, round);
    }

    /// Somebody else has told of an instance.
    fn inherit(&mut self, instance: u64) {
        self.seen = self.seen.max(instance);
        self.inherited = self.inherited.max(instance);
    }

    fn adopt(&mut self, from: u16, instance: u64, round: u16, value: &[u8]) -> Result<(), MessageError> {
        if round != from {
            return Err(MessageError::Impostor { from, round });
        }
        // What comes late of a dead leader was decided by nobody: I have not acknowledged it.
        if !self.correct.contains(from) {
            return Ok(());
        }
        if instance <= self.delivered || self.slot(instance).is_some_and(|slot| slot.decided) {
            self.answer_repeated(from, instance);
            return Ok(());
        }
        self.inherit(instance);
        let slot = self.claim(instance);
        // Line 14.
        if round >= slot.round || planted::is(Planted::AdoptsLower) {
            if round > slot.round || planted::is(Planted::AdoptsLower) {
                slot.value.clear();
                slot.value.extend_from_slice(value);
                slot.round = round;
            }
            self.forget_ack(instance);
            self.acknowledge(instance);
        }
        Ok(())
    }

    /// `value`: none if it is what I have acknowledged of that round.
    fn learn(&mut self, from: u16, instance: u64, round: u16, value: Option<&[u8]>) {
        if instance <= self.delivered || self.slot(instance).is_some_and(|slot| slot.decided) {
            return self.say_told(from);
        }
        if value.is_none() && self.slot(instance).is_none_or(|slot| slot.round != round) {
            return;
        }
        self.inherit(instance);
        let slot = self.claim(instance);
        if let Some(value) = value {
            slot.value.clear();
            slot.value.extend_from_slice(value);
        }
        slot.round = round;
        slot.decided = true;
        if !self.correct.contains(round) {
            // It may have reached nobody else, and there is no crash to come at which it would be relayed.
            self.send(self.others(), self.relays_as(), instance, round);
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
            self.lead();
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
            return Err(MessageError::Run { instance, last });
        }
        // What was told serves others still; and none of a run of which nothing is left.
        let last = if self.closed { last.min(self.delivered) } else { last };
        if instance > last {
            return Ok(());
        }
        match message {
            Message::Propose { .. } => self.adopt(from, instance, round, value)?,
            Message::Ack { .. } | Message::Acks { .. } => {
                (instance..=last).for_each(|instance| self.acked(from, instance, round))
            }
            Message::Decide { .. } => self.learn(from, instance, round, Some(value)),
            Message::Chosen { .. } | Message::AllChosen { .. } => {
                (instance..=last).for_each(|instance| self.learn(from, instance, round, None));
            }
            Message::Told { .. } => self.note_told(from, instance),
            Message::Held { .. } | Message::Lacking { .. } => return Err(MessageError::NotOfProtocol),
        }
        Ok(())
    }

    fn crashed(&mut self, member: u16) {
        if !self.correct.contains(member) || member == self.me {
            return;
        }
        self.correct.remove(member);
        // Alg. 2, line 14: what may have reached only some.
        let unstable = (self.delivered + 1).saturating_sub(self.window).max(1)..=self.seen;
        for instance in unstable {
            if let Some(slot) = self.slot(instance).filter(|slot| slot.decided) {
                self.send(self.others(), self.relays_as(), instance, slot.round);
            }
        }
        // It may be the last acknowledgement that was waited for.
        let waits = planted::is(Planted::WaitsForTheDead);
        for instance in self.delivered + 1..=self.seen {
            if !waits {
                self.decide(instance);
            }
        }
        self.lead();
    }

    fn poll_transmit(&mut self) -> Option<(HostSet, Message<'_>)> {
        // What was proposed since the last time goes together.
        if !self.waiting.is_empty() {
            self.lead();
        }
        loop {
            let Out { to, kind, instance, last, round } = self.out.pop_front()?;
            // Whoever has crashed since needs nothing; an instance that is stable by now is known to all.
            let to = to.and(self.correct);
            let first = (instance..=last).find(|instance| self.slot(*instance).is_some());
            let Some(instance) = first.or(Some(instance).filter(|_| kind == Kind::Told)).filter(|_| !to.is_empty())
            else {
                continue;
            };
            let position = self.position(instance);
            let value: &[u8] = &self.slots[position].value;
            return Some((
                to,
                match kind {
                    Kind::Propose => Message::Propose { instance, round, value },
                    Kind::Ack if last > instance => Message::Acks { instance, last, round },
                    Kind::Chosen if last > instance => Message::AllChosen { instance, last, round },
                    Kind::Ack => Message::Ack { instance, round },
                    Kind::Decide => Message::Decide { instance, round, value },
                    Kind::Chosen => Message::Chosen { instance, round },
                    Kind::Told => Message::Told { instance },
                },
            ));
        }
    }

    fn poll_decision(&mut self) -> Option<Decision<'_>> {
        if !self.waiting.is_empty() && self.others().is_empty() {
            // Nobody has to be told.
            self.lead();
        }
        let instance = self.delivered + 1;
        let adopted = |slot: &Slot| planted::is(Planted::TellsAdopted) && slot.acked != 0;
        if !self.slot(instance).is_some_and(|slot| slot.decided || adopted(slot)) {
            return None;
        }
        self.delivered = instance;
        // The window has moved on.
        self.acknowledge(instance + self.window);
        self.lead();
        let position = self.position(instance);
        Some(Decision { instance, value: &self.slots[position].value })
    }

    fn leader(&self) -> u16 {
        self.correct.iter().next().unwrap_or(self.me)
    }

    fn speaks_for_all(&self) -> bool {
        // What I have decided and not told others may have told.
        let waits = self.slot(self.delivered + 1).is_some_and(|slot| slot.decided);
        let told = !waits || planted::is(Planted::SpeaksUntold);
        self.leads() && told && (self.delivered >= self.inherited || planted::is(Planted::SpeaksEarly))
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
