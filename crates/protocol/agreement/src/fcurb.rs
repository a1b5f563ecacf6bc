// SPDX-License-Identifier: Apache-2.0
//! Fail-consistent uniform reliable broadcast (FiDe §4.1, App. A.4): what a member broadcasts rides on its next heartbeat, and all
//! members deliver it or none, each before it is told of the sender's crash.
//!
//! **`trust = "network"`** is the paper: the heartbeat is delivered when it comes, the sender's own copy when it has left on all trees
//! ([`Fcurb::broadcast_left`]). The caller and its network keep the promises above; nothing else is sent.
//!
//! **`trust = "lease"`** keeps them where heartbeats are lost, late, repeated, or reach some members only:
//!
//! - A message is *held* when it comes, and acknowledged to its sender. The sender delivers it when all that live have acknowledged, and
//!   says so. The others deliver it then, or when the sender's next message comes. So whoever delivers knows that all that live hold it.
//! - After a crash the survivors *level* (the flush of view synchrony): each takes nothing more of the dead, from whomever else it
//!   comes, and tells all others the number of the last message that it holds of it, and whom it holds dead. Who holds more passes it on. Once
//!   all that live have told the same number, each of them knowing of all the deaths that this member knows of, it delivers up to
//!   there, and only then tells its user of the crash. While a crash waits for this, nothing of others is delivered.
//!   What the dead is known to have delivered, as its next message is here or passed on, is delivered before: of a sender one message is kept.
//! - [`Fcurb::resend`] makes up for what was lost.
//!
//! A survivor that is known to hold less of one dead sender than this member may first have to deliver of another one, whose crash it heard of
//! before. So that two do not wait for each other, a crash that waits for such a survivor alone does not hold up those after it. Nobody has
//! told of that crash: so no message was broadcast after its word.
//!
//! *Why all survivors deliver the same of the dead:* let i conclude with the number c, holding D dead. All that live have told c
//! and know of D. To hold more later, one of them would have to be the first to take it from outside: of somebody in D, of whom they take
//! nothing. *Why it contains what the dead has delivered:* each survivor had acknowledged that. Who is excluded and goes on may conclude
//! otherwise; it has no lease, and tells its user nothing. By the model checker: `spec/fcurb_lease.tla`.
//!
//! A sender broadcasts one message after the other, so the numbers that two members hold of one sender differ by one message at most, and
//! each member holds one. The numbers only have to grow.
//!
//! **The next message.** A sender that has delivered its message may broadcast the next one while another member cannot deliver the first, as
//! that member levels after a crash. The member keeps the next message in a buffer of one per sender. A buffered message is not held: it is
//! neither acknowledged nor reported until the message before it is delivered. At that moment the member handles it like a message that has just
//! arrived. So a buffer is the same as a longer link, with one condition, as nothing of the dead may be taken: every buffered message has to come from a
//! member that is not known to be dead. A live sender's message is therefore buffered only from that sender, and each word of a crash empties the
//! buffers of all dead senders; a survivor that holds such a message passes it on, as it hears of all others what they hold. If the buffer is full, a
//! further message is dropped, and comes again by resend. No member that its sender waits for sees that: the sender would need its acknowledgement first.

use std::collections::VecDeque;

use fide_types::{
    HostSet,
    planted::{self, Planted},
};

use crate::message::Message;

mod levelling;

use levelling::Report;

/// What the broadcast may rely on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Trust {
    /// A heartbeat reaches all or none, and before the word of its sender's crash, as published.
    Network,
    /// Leases alone. [`Fcurb::resend`] has to be called from time to time.
    Lease,
}

/// What is delivered, in its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery<'a> {
    Message {
        number: u64,
        value: &'a [u8],
    },
    /// No message of this member follows.
    Crashed(u16),
}

/// What is known of one sender.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Origin {
    /// Number of the last message that is here; 0: none yet.
    held: u64,
    delivered: u64,
    /// All that live hold the messages up to this one.
    stable: u64,
    value: Vec<u8>,
    /// Number of the buffered message, which follows the one that is held and not delivered; 0: none. Only with leases.
    next: u64,
    next_value: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    /// The last message of an origin.
    Message,
    Ack,
    Chosen,
    Held {
        asks: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Out {
    to: HostSet,
    kind: Kind,
    origin: u16,
}

/// One member's part.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Fcurb {
    me: u16,
    trust: Trust,
    members: HostSet,
    /// Of whose crash this member was told.
    dead: HostSet,
    /// By id-1.
    origins: Box<[Origin]>,
    /// Origins with something held that is not delivered.
    undelivered: HostSet,
    /// Of those, whose last message came, or was asked about, since the last resend.
    fresh: HostSet,
    /// Who has acknowledged what I broadcast last.
    acks: HostSet,
    /// What I broadcast last waits for a heartbeat.
    queued: bool,
    /// A heartbeat with it has left on all trees.
    left: bool,
    /// Crashes that are not told yet, in the order of their words.
    levelling: VecDeque<u16>,
    /// By (reporter-1) times the highest id, plus (origin-1).
    reports: Box<[Report]>,
    /// At most one of each kind and origin.
    out: VecDeque<Out>,
}

impl Fcurb {
    /// `me` is one of `members`.
    #[must_use]
    pub fn new(trust: Trust, me: u16, members: HostSet) -> Self {
        let ids = usize::from(members.iter().last().unwrap_or(me));
        let reports = if trust == Trust::Lease { ids * ids } else { 0 };
        Self {
            me,
            trust,
            members,
            dead: HostSet::EMPTY,
            origins: vec![Origin::default(); ids].into_boxed_slice(),
            undelivered: HostSet::EMPTY,
            fresh: HostSet::EMPTY,
            acks: HostSet::EMPTY,
            queued: false,
            left: false,
            levelling: VecDeque::new(),
            reports: vec![Report::default(); reports].into_boxed_slice(),
            out: VecDeque::new(),
        }
    }

    #[must_use]
    pub fn trust(&self) -> Trust {
        self.trust
    }

    fn at(&mut self, origin: u16) -> &mut Origin {
        &mut self.origins[usize::from(origin) - 1]
    }

    fn others(&self) -> HostSet {
        self.members.minus(self.dead).minus(only(self.me))
    }

    /// What this member has broadcast is not delivered here yet: nothing else can be.
    #[must_use]
    pub fn is_sending(&self) -> bool {
        self.undelivered.contains(self.me)
    }

    /// Broadcasts what `write` appends. `number` is higher than any before, and [`Fcurb::is_sending`] is false.
    pub fn broadcast(&mut self, number: u64, write: impl FnOnce(&mut Vec<u8>)) {
        debug_assert!(!self.is_sending(), "one after the other");
        let me = self.me;
        let mine = self.at(me);
        mine.held = number;
        mine.value.clear();
        write(&mut mine.value);
        self.undelivered.insert(me);
        self.fresh.insert(me);
        self.acks = HostSet::EMPTY;
        (self.queued, self.left) = (true, false);
    }

    /// What the next heartbeat takes along.
    pub fn poll_broadcast(&mut self) -> Option<Message<'_>> {
        if !std::mem::take(&mut self.queued) || self.trust == Trust::Lease && self.others().is_empty() {
            return None;
        }
        let me = self.me;
        let Origin { held, value, .. } = self.at(me);
        Some(Message::Decide { instance: *held, round: me, value })
    }

    /// The heartbeat with the last [`Fcurb::poll_broadcast`] has left on all trees.
    pub fn broadcast_left(&mut self) {
        self.left = true;
    }

    /// `origin`'s next message is there: all that live hold the one before.
    pub fn succeeded(&mut self, origin: u16, number: u64) {
        let Origin { held, stable, .. } = self.at(origin);
        if number > *held {
            *stable = *held;
        }
    }

    /// A message of `origin` has come, from itself or passed on. `origin` is a member.
    pub fn receive(&mut self, from: u16, origin: u16, number: u64, value: &[u8]) {
        let is_dead = self.dead.contains(from) && !planted::is(Planted::TakesOfTheDead);
        let is_told = self.dead.contains(origin) && !self.levelling.contains(&origin);
        if is_dead || is_told || origin == self.me {
            return;
        }
        let lease = self.trust == Trust::Lease;
        let here = self.at(origin);
        if number > here.held && here.held > here.delivered {
            self.buffer(from, origin, number, value);
        } else if number > here.held {
            here.value.clear();
            here.value.extend_from_slice(value);
            if !lease {
                here.stable = number;
            }
            self.hold(origin, number);
        } else {
            self.acknowledge(origin);
        }
    }

    /// Keeps a message until the one before it is delivered. One that finds the buffer full comes again by resend.
    fn buffer(&mut self, from: u16, origin: u16, number: u64, value: &[u8]) {
        // What others pass on of a sender that lives here has to come again once its crash is known: see the module's text.
        let may_keep = self.trust == Trust::Lease && (from == origin || self.dead.contains(origin));
        let here = self.at(origin);
        if may_keep && here.next == 0 {
            here.next = number;
            here.next_value.clear();
            here.next_value.extend_from_slice(value);
        }
    }

    /// The value of `origin`'s message `number` is in its place.
    fn hold(&mut self, origin: u16, number: u64) {
        self.at(origin).held = number;
        self.undelivered.insert(origin);
        self.fresh.insert(origin);
        if self.levelling.contains(&origin) {
            self.tell_all(origin, false);
        }
        self.acknowledge(origin);
    }

    fn acknowledge(&mut self, origin: u16) {
        if self.trust == Trust::Lease && !self.dead.contains(origin) {
            self.put(only(origin), Kind::Ack, origin);
        }
    }

    /// Number of the last message of `origin` that this member has acknowledged, or will with what is sent next. 0: none, or `origin` is dead.
    #[must_use]
    pub fn acknowledges(&self, origin: u16) -> u64 {
        let is_asked = self.trust == Trust::Lease && origin != self.me && !self.dead.contains(origin);
        if is_asked { self.origins[usize::from(origin) - 1].held } else { 0 }
    }

    /// Somebody holds my messages up to this one.
    pub fn acknowledged(&mut self, from: u16, number: u64) {
        let me = self.me;
        let is_sending = self.is_sending();
        if self.dead.contains(from) || self.at(me).held != number {
            return;
        }
        if is_sending {
            self.acks.insert(from);
        } else {
            self.put(only(from), Kind::Chosen, me);
        }
    }

    /// A sender says that all hold its messages up to this one.
    pub fn chosen(&mut self, from: u16, number: u64) {
        if !self.dead.contains(from) && self.at(from).held == number {
            self.at(from).stable = number;
        }
    }

    /// What is next, for the user. To be asked until there is none, after each call of the others.
    pub fn poll(&mut self) -> Option<Delivery<'_>> {
        let origin = if !self.levelling.is_empty() {
            let at = self.next_of_dead()?;
            let dead = self.levelling[at];
            if !self.undelivered.contains(dead) {
                self.levelling.remove(at);
                return Some(Delivery::Crashed(dead));
            }
            dead
        } else {
            self.undelivered.iter().find(|origin| self.is_stable(*origin))?
        };
        if origin == self.me && self.trust == Trust::Lease && !self.others().is_empty() {
            self.put(self.others(), Kind::Chosen, origin);
        }
        self.undelivered.remove(origin);
        let here = self.at(origin);
        let number = here.held;
        (here.delivered, here.stable) = (number, number);
        let next = std::mem::take(&mut here.next);
        if next == 0 {
            return Some(Delivery::Message { number, value: &self.at(origin).value });
        }
        std::mem::swap(&mut here.value, &mut here.next_value);
        self.hold(origin, next);
        Some(Delivery::Message { number, value: &self.at(origin).next_value })
    }

    /// Has the sender said, if only by its next message, that all that live hold its last?
    fn is_known(&self, origin: u16) -> bool {
        let here = &self.origins[usize::from(origin) - 1];
        here.stable >= here.held && !planted::is(Planted::KeepsKnown)
    }

    fn is_stable(&self, origin: u16) -> bool {
        let here = &self.origins[usize::from(origin) - 1];
        if planted::is(Planted::DeliversHeld) && self.trust == Trust::Lease {
            return true;
        }
        match self.trust {
            Trust::Network if origin == self.me => self.left,
            Trust::Lease if origin == self.me => self.others().minus(self.acks).is_empty(),
            _ => here.stable >= here.held,
        }
    }

    /// What was sent before the last call and has had no answer is sent again. At most three messages to each member for each
    /// crash that is not told yet, and three more. Whether there was anything.
    pub fn resend(&mut self) -> bool {
        if self.trust == Trust::Network || planted::is(Planted::NeverResends) {
            return false;
        }
        let before = self.out.len();
        for origin in self.undelivered.minus(self.fresh).minus(self.dead).iter() {
            if origin == self.me {
                self.put(self.others().minus(self.acks), Kind::Message, origin);
            } else {
                // The sender may have said that all hold it.
                self.put(only(origin), Kind::Ack, origin);
            }
        }
        self.fresh = HostSet::EMPTY;
        for at in 0..self.levelling.len() {
            self.tell_all(self.levelling[at], true);
        }
        self.out.len() > before
    }

    fn put(&mut self, to: HostSet, kind: Kind, origin: u16) {
        match self.out.iter_mut().find(|out| (out.kind, out.origin) == (kind, origin)) {
            Some(out) => out.to = HostSet(out.to.0 | to.0),
            None => self.out.push_back(Out { to, kind, origin }),
        }
    }

    /// The next message to be sent, and to whom. To be asked until there is none, after each call of the others.
    pub fn poll_transmit(&mut self) -> Option<(HostSet, Message<'_>)> {
        let (to, Out { kind, origin, .. }) = loop {
            let out = self.out.pop_front()?;
            let to = out.to.minus(self.dead);
            if !to.is_empty() {
                break (to, out);
            }
        };
        let (dead, round) = (self.dead, origin);
        let Origin { held: instance, delivered, value, .. } = &self.origins[usize::from(origin) - 1];
        let instance = *instance;
        let message = match kind {
            Kind::Message => Message::Decide { instance, round, value },
            Kind::Ack => Message::Ack { instance, round },
            Kind::Chosen => Message::Chosen { instance: *delivered, round },
            Kind::Held { asks } => Message::Held { instance, round, dead, asks },
        };
        Some((to, message))
    }
}

fn only(member: u16) -> HostSet {
    HostSet::from_iter([member])
}

#[cfg(test)]
mod tests;
