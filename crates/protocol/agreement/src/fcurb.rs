// SPDX-License-Identifier: Apache-2.0
//! Fail-consistent uniform reliable broadcast (FiDe §4.1, App. A.4): a member's broadcast rides on its next
//! heartbeat, and either all members deliver it or none does, each before it delivers the sender's crash.
//!
//! **`trust = "network"`** is the paper: a heartbeat is delivered when it comes, and the sender's own copy
//! when the heartbeat has left on all trees ([`Fcurb::broadcast_left`]). The caller and its network keep the
//! promises above; nothing else is sent.
//!
//! **`trust = "lease"`** keeps these promises where heartbeats are lost, late, repeated, or reach only some
//! members:
//!
//! - A member *stores* a message when it comes, and acknowledges it to the sender. The sender delivers the
//!   message when all live members have acknowledged it, and announces that. The others deliver it then, or
//!   when the sender's next message comes. So a member that delivers a message knows that all live members
//!   store it.
//! - After a crash the survivors *level* (this is the flush of view synchrony). Each takes nothing more from
//!   dead members, also if they pass on another member's message, and reports to all others the number of the
//!   last message that it stores of the dead member, and which members it knows to be dead. A survivor that
//!   stores more passes it on. Once all live members have reported the same number, each of them knowing of
//!   all the deaths that this member knows of, it delivers up to that number, and only then delivers the
//!   crash. While a crash waits for this, no message of a live member is delivered. A message that the dead
//!   member is known to have delivered, as its next message is stored here or was passed on, is delivered
//!   first: one message of each sender is stored.
//! - [`Fcurb::resend`] makes up for lost messages.
//!
//! A survivor that is known to store less of one dead sender than this member may first have to deliver a
//! message of another dead sender, whose crash it heard of before. So that two survivors do not wait for each
//! other, a crash that waits only for such a survivor does not hold up the crashes after it. Nobody has
//! delivered that crash, so no message was broadcast after it.
//!
//! *Why all survivors deliver the same messages of the dead:* let survivor i conclude with number c, while it
//! knows the members D to be dead. All live members have reported c, and know of D. To store more later, one
//! of them would have to be the first to take a message from outside of them, that is, from a member of D,
//! from which they take nothing. *Why these include what the dead member has delivered:* each survivor had
//! acknowledged that. A member that was excluded and goes on may conclude otherwise; it has no lease, and
//! delivers nothing to its user. By the model checker: `spec/fcurb_lease.tla`.
//!
//! A sender broadcasts one message after the other, so the numbers that two members store of one sender
//! differ by one message at most, and each member stores one message. The numbers only have to grow.
//!
//! **The next message.** A sender that has delivered its message may broadcast the next one while another
//! member cannot deliver the first, as that member levels after a crash. The member keeps the next message in
//! a buffer of one message per sender. A buffered message is not stored: it is neither acknowledged nor
//! reported until the message before it is delivered. At that moment the member handles it like a message
//! that has just arrived. So a buffer is the same as a longer link, with one condition, as nothing may be
//! taken from the dead: every buffered message has to come from a member that is not known to be dead. A live
//! sender's message is therefore buffered only if it comes from that sender, and each report of a crash
//! empties the buffers of all dead senders; a survivor that stores such a message passes it on, as it hears
//! from all others what they store. If the buffer is full, a further message is dropped, and comes again by
//! resend. No member that its sender waits for notices that: the sender would need its acknowledgement first.

use std::collections::VecDeque;

use fide_types::{
    HostSet, PerHost,
    planted::{self, Planted},
};

use crate::message::Message;

mod levelling;

use levelling::Report;

/// What the broadcast may rely on. Its `Debug` form is part of a group's number ([`crate::group::group_of`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Trust {
    /// A heartbeat reaches all members or none, before the detector reports its sender's crash, as published.
    Network,
    /// Only leases. [`Fcurb::resend`] has to be called from time to time.
    Lease,
}

/// Something to be delivered, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery<'a> {
    Message {
        number: u64,
        value: &'a [u8],
    },
    /// This member has crashed. None of its messages follows.
    Crashed(u16),
}

/// What is known of one sender. Messages are known by their numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Origin {
    /// The last message that is stored; 0: none yet.
    stored: u64,
    delivered: u64,
    /// All live members store the messages up to this one.
    stable: u64,
    value: Vec<u8>,
    /// The buffered message, which follows the one that is stored and not delivered; 0: none. Only with
    /// leases.
    next: u64,
    next_value: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    /// The stored message of an origin.
    Message,
    Ack,
    Chosen,
    Report {
        asks: bool,
    },
}

/// A queued message about an origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Outgoing {
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
    /// Members whose crash the detector has reported.
    dead: HostSet,
    origins: PerHost<Origin>,
    /// Origins of which a message is stored and not delivered.
    undelivered: HostSet,
    /// Of those, origins whose message came, or was asked about, since the last resend.
    fresh: HostSet,
    /// Members that have acknowledged my last broadcast.
    acks: HostSet,
    /// My last broadcast waits for a heartbeat.
    queued: bool,
    /// A heartbeat with my last broadcast has left on all trees.
    left: bool,
    /// Crashes that are not delivered yet, in the order in which the detector reported them.
    levelling: VecDeque<u16>,
    /// By reporter, then by origin: the last report. Empty where the network is trusted.
    reports: PerHost<PerHost<Report>>,
    /// At most one message of each kind and origin.
    out: VecDeque<Outgoing>,
}

impl Fcurb {
    /// `me` is one of `members`.
    #[must_use]
    pub fn new(trust: Trust, me: u16, members: HostSet) -> Self {
        let ids = usize::from(members.iter().last().unwrap_or(me));
        let reporters = if trust == Trust::Lease { ids } else { 0 };
        Self {
            me,
            trust,
            members,
            dead: HostSet::EMPTY,
            origins: PerHost::new(ids, |_| Origin::default()),
            undelivered: HostSet::EMPTY,
            fresh: HostSet::EMPTY,
            acks: HostSet::EMPTY,
            queued: false,
            left: false,
            levelling: VecDeque::new(),
            reports: PerHost::new(reporters, |_| PerHost::new(ids, |_| Report::default())),
            out: VecDeque::new(),
        }
    }

    #[must_use]
    pub fn trust(&self) -> Trust {
        self.trust
    }

    fn others(&self) -> HostSet {
        self.members.minus(self.dead).minus(HostSet::only(self.me))
    }

    /// Whether this member has not delivered its own last broadcast yet: until then it cannot broadcast
    /// anything else.
    #[must_use]
    pub fn is_sending(&self) -> bool {
        self.undelivered.contains(self.me)
    }

    /// The last message of any origin that is stored or buffered here; 0: none. No message after it is
    /// delivered anywhere, if only leases are trusted: for that this member has to store it first.
    #[must_use]
    pub fn stored(&self) -> u64 {
        self.origins.values().iter().map(|origin| origin.stored.max(origin.next)).max().unwrap_or(0)
    }

    /// The values that are stored or buffered here as message `number` and not delivered, with their origins.
    pub fn held(&self, number: u64) -> impl Iterator<Item = (u16, &[u8])> {
        let of = move |origin: u16| {
            let here = &self.origins[origin];
            let is_stored = here.stored == number && here.delivered < number && !planted::is(Planted::OverlooksStored);
            let stored = is_stored.then_some(&here.value[..]);
            stored.or((here.next == number && number > 0).then_some(&here.next_value[..])).map(|value| (origin, value))
        };
        self.members.iter().filter_map(of)
    }

    /// Broadcasts what `write` appends. `number` is higher than any before; [`Fcurb::is_sending`] has to be
    /// false.
    pub fn broadcast(&mut self, number: u64, write: impl FnOnce(&mut Vec<u8>)) {
        debug_assert!(!self.is_sending(), "one after the other");
        let me = self.me;
        let mine = &mut self.origins[me];
        mine.stored = number;
        mine.value.clear();
        write(&mut mine.value);
        self.undelivered.insert(me);
        self.fresh.insert(me);
        self.acks = HostSet::EMPTY;
        (self.queued, self.left) = (true, false);
    }

    /// The message for the next heartbeat.
    pub fn poll_broadcast(&mut self) -> Option<Message<'_>> {
        if !std::mem::take(&mut self.queued) || self.trust == Trust::Lease && self.others().is_empty() {
            return None;
        }
        let me = self.me;
        let Origin { stored, value, .. } = &self.origins[me];
        Some(Message::Decide { instance: *stored, round: me, value })
    }

    /// The heartbeat with the message of the last [`Fcurb::poll_broadcast`] has left on all trees.
    pub fn broadcast_left(&mut self) {
        self.left = true;
    }

    /// Message `number` of `origin` has come: if it is a later one, all live members store the one before.
    pub fn note_successor(&mut self, origin: u16, number: u64) {
        let Origin { stored, stable, .. } = &mut self.origins[origin];
        if number > *stored {
            *stable = *stored;
        }
    }

    /// A message of the member `origin` has come, from itself or passed on.
    pub fn receive(&mut self, from: u16, origin: u16, number: u64, value: &[u8]) {
        if !self.takes_from(from) || self.is_crash_delivered(origin) || origin == self.me {
            return;
        }
        let here = &mut self.origins[origin];
        if number > here.stored && here.stored > here.delivered {
            self.buffer(from, origin, number, value);
        } else if number > here.stored {
            here.value.clear();
            here.value.extend_from_slice(value);
            if self.trust == Trust::Network {
                here.stable = number;
            }
            self.store(origin, number);
        } else {
            self.acknowledge(origin);
        }
    }

    /// Nothing is taken from a dead member, also if it passes on another member's message.
    fn takes_from(&self, member: u16) -> bool {
        !self.dead.contains(member) || planted::is(Planted::TakesOfTheDead)
    }

    fn is_crash_delivered(&self, member: u16) -> bool {
        self.dead.contains(member) && !self.levelling.contains(&member)
    }

    /// Buffers a message until the one before it is delivered. A message that finds the buffer full comes
    /// again by resend.
    fn buffer(&mut self, from: u16, origin: u16, number: u64, value: &[u8]) {
        // A message of a sender that is alive here, passed on by another, has to come again once the sender's
        // crash is known: see the module's text.
        let may_keep = self.trust == Trust::Lease && (from == origin || self.dead.contains(origin));
        let here = &mut self.origins[origin];
        if may_keep && here.next == 0 {
            here.next = number;
            here.next_value.clear();
            here.next_value.extend_from_slice(value);
        }
    }

    /// Message `number` of `origin`, whose value is in its place, is stored from now on.
    fn store(&mut self, origin: u16, number: u64) {
        self.origins[origin].stored = number;
        self.undelivered.insert(origin);
        self.fresh.insert(origin);
        if self.levelling.contains(&origin) {
            self.report_to_all(origin);
        }
        self.acknowledge(origin);
    }

    fn acknowledge(&mut self, origin: u16) {
        if self.trust == Trust::Lease && !self.dead.contains(origin) {
            self.queue(HostSet::only(origin), Kind::Ack, origin);
        }
    }

    /// The last message of `origin` that this member has acknowledged, or acknowledges with the next messages
    /// that it sends. 0: none, or `origin` is dead.
    #[must_use]
    pub fn acknowledges(&self, origin: u16) -> u64 {
        let is_acknowledged = self.trust == Trust::Lease && origin != self.me && !self.dead.contains(origin);
        if is_acknowledged { self.origins[origin].stored } else { 0 }
    }

    /// Of [`Message::Ack`]: a member stores my messages up to this one.
    pub fn handle_ack(&mut self, from: u16, number: u64) {
        let me = self.me;
        if self.dead.contains(from) || self.origins[me].stored != number {
            return;
        }
        if self.is_sending() {
            self.acks.insert(from);
        } else {
            self.queue(HostSet::only(from), Kind::Chosen, me);
        }
    }

    /// Of [`Message::Chosen`]: all live members store the sender's messages up to this one.
    pub fn handle_chosen(&mut self, from: u16, number: u64) {
        let here = &mut self.origins[from];
        if !self.dead.contains(from) && here.stored == number {
            here.stable = number;
        }
    }

    /// The next delivery. To be polled until there is none, after each call of another method.
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
            self.queue(self.others(), Kind::Chosen, origin);
        }
        self.undelivered.remove(origin);
        let here = &mut self.origins[origin];
        let number = here.stored;
        (here.delivered, here.stable) = (number, number);
        let next = std::mem::take(&mut here.next);
        if next == 0 {
            return Some(Delivery::Message { number, value: &self.origins[origin].value });
        }
        std::mem::swap(&mut here.value, &mut here.next_value);
        self.store(origin, next);
        Some(Delivery::Message { number, value: &self.origins[origin].next_value })
    }

    /// Whether the sender has said, if only by its next message, that all live members store its last one.
    fn is_known_to_be_stable(&self, origin: u16) -> bool {
        let here = &self.origins[origin];
        here.stable >= here.stored && !planted::is(Planted::KeepsKnown)
    }

    /// Whether all live members store the message of a live sender.
    fn is_stable(&self, origin: u16) -> bool {
        if planted::is(Planted::DeliversHeld) && self.trust == Trust::Lease {
            return true;
        }
        let here = &self.origins[origin];
        match self.trust {
            Trust::Network if origin == self.me => self.left,
            Trust::Lease if origin == self.me => self.others().minus(self.acks).is_empty(),
            _ => here.stable >= here.stored,
        }
    }

    /// Sends again what was sent before the last call and has had no answer: at most three messages to each
    /// member for each crash that is not delivered yet, and three more. Whether there was anything.
    pub fn resend(&mut self) -> bool {
        if self.trust == Trust::Network || planted::is(Planted::NeverResends) {
            return false;
        }
        let before = self.out.len();
        for origin in self.undelivered.minus(self.fresh).minus(self.dead).iter() {
            if origin == self.me {
                self.queue(self.others().minus(self.acks), Kind::Message, origin);
            } else {
                // The sender may have announced that all live members store it.
                self.queue(HostSet::only(origin), Kind::Ack, origin);
            }
        }
        self.fresh = HostSet::EMPTY;
        for at in 0..self.levelling.len() {
            self.ask_for_reports(self.levelling[at]);
        }
        self.out.len() > before
    }

    fn queue(&mut self, to: HostSet, kind: Kind, origin: u16) {
        match self.out.iter_mut().find(|out| (out.kind, out.origin) == (kind, origin)) {
            Some(out) => out.to = out.to.union(to),
            None => self.out.push_back(Outgoing { to, kind, origin }),
        }
    }

    /// The next message to be sent, and its receivers. To be polled until there is none, after each call of
    /// another method.
    pub fn poll_transmit(&mut self) -> Option<(HostSet, Message<'_>)> {
        let (to, Outgoing { kind, origin, .. }) = loop {
            let out = self.out.pop_front()?;
            let to = out.to.minus(self.dead);
            if !to.is_empty() {
                break (to, out);
            }
        };
        let (dead, round) = (self.dead, origin);
        let Origin { stored: instance, delivered, value, .. } = &self.origins[origin];
        let instance = *instance;
        let message = match kind {
            Kind::Message => Message::Decide { instance, round, value },
            Kind::Ack => Message::Ack { instance, round },
            Kind::Chosen => Message::Chosen { instance: *delivered, round },
            Kind::Report { asks } => Message::Report { instance, round, dead, asks },
        };
        Some((to, message))
    }
}

#[cfg(test)]
mod tests;
