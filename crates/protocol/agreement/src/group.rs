// SPDX-License-Identifier: Apache-2.0
//! A member of a group that changes, on hosts that may pause and networks that may be cut (`trust =
//! "lease"`).
//!
//! **Leases.** The detector declares an incarnation dead only once nobody acts on behalf of that host any
//! more: the detectors have agreed on a view without it, and its leases have run out. The rest is done here:
//!
//! - A member whose own lease has run out delivers no decision to its user and answers no question: the
//!   others may have gone on without it. Its protocol goes on taking messages, which is harmless: it decides
//!   nothing that the others have not acknowledged.
//! - An excluded member has crashed as far as the group is concerned. It stops, and joins again as another
//!   incarnation. Until it is a member again it keeps its state, from which the group is founded again if all
//!   members were excluded (`refounding`).
//! - A group consists of incarnations, not of hosts. What another incarnation sends, or is reported about
//!   one, changes nothing.
//!
//! **Views.** The log is a chain of epochs, one for each [`View`]: a protocol among the members of that view,
//! from its first instance on. The next view is a proposal like any other, and the last decision of its
//! epoch. What is decided after it in that epoch counts for nobody, and the leader proposes it again in the
//! next epoch. A crash needs no view, as the protocol survives it; a view leaves out the members that have
//! crashed by then.
//!
//! - The first live member of a view leads. A leader that hands over proposes the same members in another order
//!   ([`Group::hand_over`]).
//! - A member begins the next epoch when it has delivered the last decision of the present one to its user.
//!   It still serves the members that have not (`epochs`), until the epoch after that ends: all live
//!   members have acknowledged what is decided in an epoch, and therefore have begun it.
//! - Nothing is decided in an epoch without its new members: they have to acknowledge, as all members do. So
//!   a new member that has the state of the position where the epoch begins lacks nothing.
//!
//! **Founding** (`founding`): by the listed hosts themselves, once.
//!
//! **Joining** (`joining`, `admission`): first a state, while the group goes on; then the view; then the
//! decisions between the two, for which alone the group waits. Members keep decisions from the moment a host
//! asks to be let in. They drop them when [`Config::tail_max`] is used up, or when no host asks any more; a
//! host that needs dropped decisions gets a newer state.
//!
//! **Crashes that a new member cannot know of:** some members of its view may have died before it could hear
//! of them. Members report to each other which members are dead until all know it. A report counts only for
//! members that have never heard this one: for all others this host's detector decides, which guarantees that
//! of two members at most one is notified that the other is gone (`liveness`).
//!
//! **Disks** (`durable`), for groups that have to survive the end of all their members: a decision is delivered
//! once enough members have stored it.
//!
//! **Payloads** that are longer than a value are sent ahead ([`crate::transfer`]); their identity is proposed
//! when all live members store them (`payloads`). So a member that is delivered a decision stores the
//! payloads that it names.

mod admission;
mod changing;
mod claim;
mod control;
mod datagram;
mod dead;
mod durable;
mod entry;
mod epoch;
mod epochs;
mod founding;
mod held;
mod incarnations;
mod joining;
mod liveness;
mod outbox;
mod past;
mod payloads;
mod protocol;
mod receiving;
mod refounding;
mod shown;
mod tail;

use std::fmt;

use fide_types::{
    HostId, HostSet,
    planted::{self, Planted},
};

use crate::{
    Decision, Refused, Start,
    lease::Lease,
    transfer::{self, Transfers},
    view::View,
};
use admission::Admission;
use control::Control;
use durable::Durable;
use epoch::Epoch;
use epochs::Epochs;
use founding::Founding;
use joining::{Backlog, Joining};
use liveness::Liveness;
use outbox::Outbox;
use past::Past;
use payloads::Pending;
use shown::Shown;
use tail::Tail;

pub use datagram::{DatagramError, PREFIX_LEN};
pub use durable::{Recalled, RecalledMember, ToStore};
pub use entry::{Entry, entries};
pub use incarnations::{Incarnations, RANGES_MAX, RangesError};

/// The configuration of a member.
#[derive(Debug, Clone, Copy)]
pub struct Config<S> {
    /// The group's number: the same at all its members, and another one in any other group ([`group_of`]).
    pub group: u64,
    /// This host.
    pub me: u16,
    pub incarnation: u32,
    /// The hosts that may be members.
    pub hosts: HostSet,
    /// Of the protocol.
    pub setting: S,
    /// Most bytes of decisions that are kept while a host joins, and of payloads that decisions have named:
    /// at most `transfer.payload_max`, as they are sent as one payload. `transfer.stored_max` has to have
    /// room for them, and for payloads under way.
    pub tail_max: u64,
    pub transfer: transfer::Config,
}

/// The layout of datagrams and log entries: groups of different layouts have nothing to do with each other. It
/// changes only if programs of the version before cannot be members any more; a member's packets say which versions
/// of what is said in this layout it speaks, and it is refused by these, by name, before its datagrams are looked at.
const FORMAT: &[u8] = b"fide group 7";

/// The version of what is said in that layout. Programs of the version before are told nothing that only this one has
/// ([`Group::speak`]).
///
/// | version | new in it |
/// |---|---|
/// | 2 | a claim may name several ranges of incarnations |
pub const VERSION: u8 = 2;

/// The number of a group: a hash of its name, of the hosts that may be members, and of the protocol's
/// setting. So members whose lists or settings differ refuse each other ([`DatagramError::OtherGroup`]),
/// instead of agreeing on different things.
///
/// The setting is hashed in its `Debug` form: to rename a setting or one of its fields makes another group.
#[must_use]
pub fn group_of<S: fmt::Debug>(name: &str, hosts: HostSet, setting: &S) -> u64 {
    let mut hash = blake3::Hasher::new();
    hash.update(FORMAT);
    hash.update(&(name.len() as u64).to_le_bytes()).update(name.as_bytes()).update(&hosts.0.to_le_bytes());
    hash.update(format!("{setting:?}").as_bytes());
    let mut first = [0; 8];
    hash.finalize_xof().fill(&mut first);
    u64::from_le_bytes(first)
}

impl<S> Config<S> {
    /// The transfers' configuration, with room for the mark of each payload.
    fn marked(&self) -> transfer::Config {
        let payload_max = self.transfer.payload_max.saturating_add(payloads::MARK_LEN as u64);
        let stored_max = self.transfer.stored_max.saturating_add(payloads::MARK_LEN as u64);
        transfer::Config { payload_max, stored_max, ..self.transfer }
    }
}

/// Why a member was not made, or cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    #[error("this host, {me}, with incarnation {incarnation}, is not in the view; it has to join")]
    NotAMember { me: u16, incarnation: u32 },
    #[error("host {host} is in the view, but not in the list of hosts")]
    Stranger { host: HostId },
    #[error("{0}")]
    Setting(String),
    #[error(
        "tail_max is {tail_max} bytes; at most payload_max, {payload_max} here, as the tail is sent as one payload"
    )]
    TailMax { tail_max: u64, payload_max: u64 },
    #[error(transparent)]
    Transfer(#[from] transfer::ConfigError),
    #[error(
        "this member is {standing:?} as incarnation {was} and cannot go on as {incarnation}; it has to be excluded first, and the new incarnation \
         higher"
    )]
    Incarnation { incarnation: u32, was: u32, standing: Standing },
}

/// What a host is to its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It is no member yet: it has asked to be let in, or founds the group with the other hosts.
    Joining,
    Member,
    /// A view without it was decided, and no member of that view is known to have begun it. It is still
    /// needed: it serves the others, and keeps its state. [`Standing::Removed`] follows; if all members of
    /// that view are out, it asks to be let in again.
    Leaving,
    /// A view without it was decided, and has begun. Nobody needs it: its process may end.
    Removed,
    /// The detector has excluded it: it goes on as another incarnation ([`Group::rejoin`]).
    Excluded,
    /// It has left.
    Left,
    /// A decision names a payload that is not stored here. The member does not know what follows, and
    /// delivers nothing more. This never happens; if it does, another incarnation joins and takes over the
    /// state of the others.
    Lacking,
}

impl Standing {
    /// Whether this incarnation takes no part any more.
    #[must_use]
    pub fn is_over(self) -> bool {
        matches!(self, Self::Excluded | Self::Left | Self::Lacking)
    }
}

/// A member of a group, or a host that wants to be one.
#[derive(Debug, Clone)]
pub struct Group<P: Start> {
    config: Config<P::Setting>,
    standing: Standing,
    /// Which incarnations are up and dead.
    liveness: Liveness,
    /// The protocols of the present view and the one before.
    epochs: Epochs<P>,
    /// Decisions up to this position were delivered to the user.
    position: u64,
    /// The last decisions and their payloads, for hosts that join.
    tail: Tail,
    /// How this host founds the group, while it is in none.
    founding: Founding,
    /// How this host joins the group, while it is in none.
    joining: Joining,
    /// Decisions that this host was given when it joined.
    backlog: Backlog,
    /// What this process was before, and what others were.
    past: Past,
    /// The version of the group's protocol that all processes speak ([`Group::speak`]).
    version: u8,
    shown: Shown,
    /// Decisions that wait for disks, where they have to.
    durable: Durable,
    /// Hosts that ask to be let in, members to be taken out, and the next view.
    admission: Admission,
    /// Entries and payloads that this member has yet to propose.
    pending: Pending,
    transfers: Transfers,
    outbox: Outbox,
    /// Reused by [`Group::poll_transmit`].
    scratch: Vec<u8>,
}

impl<P: Start> Group<P> {
    /// A member of a group that begins with this view, number 1, which all members are given.
    ///
    /// # Errors
    /// [`GroupError`].
    pub fn found(config: Config<P::Setting>, view: View) -> Result<Self, GroupError> {
        let Config { me, incarnation, .. } = config;
        if !view.holds(me, incarnation) {
            return Err(GroupError::NotAMember { me, incarnation });
        }
        if let Some(host) = view.hosts().minus(config.hosts).iter().next() {
            return Err(GroupError::Stranger { host });
        }
        let epoch = Epoch::new(&config.setting, view, me, 0)
            .map_err(|error: P::Error| GroupError::Setting(error.to_string()))?;
        let mut group = Self::join(config)?;
        group.standing = Standing::Member;
        group.epochs.begin(epoch);
        Ok(group)
    }

    /// A host that wants to be let into a group that exists.
    ///
    /// # Errors
    /// [`GroupError`].
    pub fn join(config: Config<P::Setting>) -> Result<Self, GroupError> {
        let (tail_max, payload_max) = (config.tail_max, config.transfer.payload_max);
        if tail_max > payload_max {
            return Err(GroupError::TailMax { tail_max, payload_max });
        }
        Ok(Self {
            standing: Standing::Joining,
            liveness: Liveness::new(),
            epochs: Epochs::new(),
            position: 0,
            tail: Tail::new(0, config.tail_max),
            founding: Founding::default(),
            joining: Joining::default(),
            backlog: Backlog::default(),
            past: Past::new(config.incarnation),
            version: VERSION,
            shown: Shown::new(),
            durable: Durable::new(),
            admission: Admission::new(),
            pending: Pending::default(),
            transfers: Transfers::new(config.me, config.marked())?,
            outbox: Outbox::default(),
            scratch: Vec::new(),
            config,
        })
    }

    #[must_use]
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// The view that this member is in; none before it is a member.
    #[must_use]
    pub fn view(&self) -> Option<&View> {
        self.epochs.view()
    }

    /// Decisions up to this position were delivered to the user.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The host that leads, as far as this member knows.
    #[must_use]
    pub fn leader(&self) -> Option<u16> {
        self.epochs.current().filter(|_| self.standing == Standing::Member)?.leader()
    }

    /// Whether all other members have crashed or left: a proposal is then decided at once, and can be polled.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.standing == Standing::Member && self.epochs.current().is_some_and(|epoch| epoch.others().is_empty())
    }

    /// Other members of the present view that are not known to have crashed: nothing is decided without them.
    #[must_use]
    pub fn others(&self) -> HostSet {
        self.epochs.current().map_or(HostSet::EMPTY, Epoch::other_hosts)
    }

    /// The protocol of the present view, to look at.
    #[must_use]
    pub fn protocol(&self) -> Option<&P> {
        self.epochs.current().map(|epoch| &epoch.protocol)
    }

    fn may_act(&self, lease: Lease) -> bool {
        self.standing == Standing::Member && lease.holds()
    }

    /// The present epoch, if this member leads it and may act.
    fn leading(&self, lease: Lease) -> Result<&Epoch<P>, Refused> {
        let epoch = self.epochs.current().filter(|_| self.may_act(lease)).ok_or(Refused::Fenced)?;
        if epoch.leads() { Ok(epoch) } else { Err(Refused::NotLeader { leader: epoch.leader().unwrap_or(0) }) }
    }

    /// An incarnation of a host is up. To be called for all that are up when this member is made, and later
    /// when the detector reports one.
    pub fn up(&mut self, host: HostId, incarnation: u32) {
        if host == self.config.me {
            return;
        }
        if !planted::is(Planted::MissesTheFormer) {
            // Earlier incarnations are over, even if their end was not reported, or was reported while this
            // member was out.
            self.down(host, incarnation.saturating_sub(1));
        }
        if self.liveness.note_up(host, incarnation) {
            if self.is_awaited(host, |member| member == incarnation) {
                self.transfers.away(host);
            }
            self.transfers.joined(host);
        }
    }

    /// All processes that are up speak this version of the group's protocol; [`VERSION`] if nothing else is said.
    pub fn speak(&mut self, version: u8) {
        self.version = version;
    }

    /// Hosts that hear this one (`Detector::heard_by`). To be called before each datagram is received: the
    /// detector will report the end of these hosts.
    pub fn heard_by(&mut self, hosts: HostSet) {
        self.liveness.note_met(hosts);
    }

    /// Hosts that are up but whose incarnation is not yet known: no other member's report of their death
    /// counts, and a founder waits for them. To be called together with [`Group::heard_by`], by callers that learn
    /// incarnations later than the detector does.
    pub fn unsure_of(&mut self, hosts: HostSet) {
        self.liveness.set_unsure(hosts);
    }

    /// An incarnation of a host is dead, or has left, for good.
    pub fn down(&mut self, host: HostId, incarnation: u32) {
        self.settle();
        self.crashed(host, incarnation);
        self.pump();
    }

    /// This member stops: it does and says nothing from now on. To be called before the detector says
    /// goodbye, as the others go on without this host when they hear that. A member that wants to leave the
    /// view too is removed first ([`Group::remove`]).
    pub fn leave(&mut self) {
        self.standing = Standing::Left;
    }

    fn crashed(&mut self, host: HostId, incarnation: u32) {
        // Deaths are noted also while this member is excluded: they are not reported again to its next
        // incarnation.
        if host == self.config.me || !self.liveness.note_dead(host, incarnation) || self.standing.is_over() {
            return;
        }
        for epoch in self.epochs.iter_mut() {
            epoch.crashed(host, incarnation);
        }
        self.note_told();
        if self.liveness.end(host, incarnation) {
            self.admission.forget_request(host);
            self.admission.forget_successor(host);
            self.joining.crashed(host, &mut self.transfers);
            if self.is_awaited(host, |member| member > incarnation) {
                self.transfers.away(host);
            } else {
                self.transfers.crashed(host);
            }
        }
    }

    /// Whether a host is in the present view as such an incarnation, which is not known to have crashed.
    fn is_awaited(&self, host: HostId, is_wanted: impl Fn(u32) -> bool) -> bool {
        let Some(epoch) = self.epochs.current().filter(|_| !planted::is(Planted::WaitsForHosts)) else { return false };
        let is_alive = epoch.view.place(host).is_some_and(|place| epoch.alive().contains(place));
        is_alive && epoch.view.incarnation(host).is_some_and(is_wanted)
    }

    /// Proposes a value for one of the next instances. Only a member whose lease holds takes one.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn propose(&mut self, lease: Lease, value: &[u8]) -> Result<(), Refused> {
        self.settle();
        if !self.may_act(lease) {
            return Err(Refused::Fenced);
        }
        if self.admission.holds_up_proposals() || self.pending.has_entries() || self.may_have_ended() {
            return Err(Refused::Changing);
        }
        self.propose_entry(Some(entry::VALUE), value)
    }

    /// A leader that has died may have handed over, which this one does not know yet, or has not delivered: what is
    /// proposed after that decision would be nobody's.
    fn may_have_ended(&self) -> bool {
        let inherits = |epoch: &Epoch<P>| !epoch.protocol.has_inherited() || self.durable.is_closed();
        self.epochs.current().is_some_and(|epoch| epoch.leads() && inherits(epoch))
    }

    fn propose_entry(&mut self, kind: Option<u8>, content: &[u8]) -> Result<(), Refused> {
        let epoch = self.epochs.current_mut().ok_or(Refused::Fenced)?;
        epoch.protocol.propose_tagged(kind, content).map_err(|refused| match refused {
            Refused::NotLeader { leader } => {
                Refused::NotLeader { leader: epoch.view.member(leader).map_or(0, |member| member.host) }
            }
            // Without the byte of its kind.
            Refused::TooLong { len, max } => Refused::TooLong { len: len - 1, max: max - 1 },
            other => other,
        })
    }

    /// The next decision to be delivered to the user; none while the lease does not hold, but the decision is
    /// kept until it does. Its `instance` is its position in the group's log; [`entries`] reads its value.
    pub fn poll_decision(&mut self, lease: Lease) -> Option<Decision<'_>> {
        self.settle();
        let may_act =
            self.may_act(lease) || self.standing == Standing::Member && planted::is(Planted::DeliversUnleased);
        if !may_act {
            return None;
        }
        if self.durable.is_on() {
            if !self.deliver_stored() {
                return None;
            }
            if lacks_payload(&self.tail, &self.transfers) {
                self.standing = Standing::Lacking;
                return None;
            }
            return Some(Decision { instance: self.position, value: self.delivered_stored() });
        }
        if self.backlog.deliver() {
            self.position += 1;
            self.tail.push(self.backlog.delivered());
            if !lacks_payload(&self.tail, &self.transfers) {
                return Some(Decision { instance: self.position, value: self.backlog.delivered() });
            }
            self.standing = Standing::Lacking;
            return None;
        }
        let decision = self.epochs.poll_decision(&mut self.tail)?;
        self.position += 1;
        debug_assert_eq!(self.position, decision.instance, "positions go on from epoch to epoch");
        if lacks_payload(&self.tail, &self.transfers) {
            self.standing = Standing::Lacking;
            return None;
        }
        Some(decision)
    }

    /// Whether everything that was decided anywhere has been delivered here, so that a question about the
    /// state may be answered from it. At any moment this is true of at most one member: of the leader, once
    /// it has decided what its predecessors may have decided.
    pub fn may_answer(&self, lease: Lease) -> bool {
        self.durable.may_answer(self.epochs.number(), self.position) && self.speaks_for_all(lease)
    }

    /// Whether nobody knows of a decision that this member does not know of. It may have to wait until it is
    /// stored.
    fn speaks_for_all(&self, lease: Lease) -> bool {
        let may_act = self.may_act(lease) || self.standing == Standing::Member && planted::is(Planted::AnswersUnleased);
        let all_known = !self.epochs.is_ending() && !self.durable.is_closed() && self.backlog.is_empty();
        may_act && all_known && self.epochs.current().is_some_and(|epoch| epoch.protocol.speaks_for_all())
    }

    /// The position up to which the log may be decided anywhere. A question about the state that is asked now
    /// may be answered here, once everything up to that position is delivered here and if this is still a
    /// [`Standing::Member`] then. None: this member may not answer.
    ///
    /// **Why that is linearizable at every member, without a message.** A decision is delivered only once all
    /// live members store it, and "live" includes this one while its lease holds: the others declare it dead
    /// only after that. So whatever anybody has seen of the log, or was told is done, before this call, is
    /// delivered here or stored here at a position up to the returned one. The answer reflects all of it once
    /// these positions are delivered, and nothing that is undecided. One of them may be a view without this
    /// member, from which on the others ask it no more: therefore it has to be a member still.
    ///
    /// The returned position may never be decided: it may be the proposal of a leader that died, of which
    /// the next leader has not heard. A caller that waits for it therefore asks the leader after a while, or
    /// waits until the number of [`Group::view`] has changed.
    #[must_use]
    pub fn may_be_decided(&self, lease: Lease) -> Option<u64> {
        let epoch = self.epochs.current().filter(|_| self.may_act(lease) && self.backlog.is_empty())?;
        let stored = if planted::is(Planted::AnswersUnstored) { 0 } else { epoch.protocol.stored() };
        Some((epoch.start + stored).max(self.position))
    }

    /// Whether the answer of another member is due at once ([`crate::Agreement::awaits_answer`]).
    #[must_use]
    pub fn awaits_answer(&self) -> bool {
        self.epochs.current().is_some_and(|epoch| epoch.protocol.awaits_answer())
    }

    /// To be called from time to time: sends again what was sent before the last call and has had no answer.
    /// A good interval is a little more than a round trip.
    pub fn resend(&mut self, lease: Lease) {
        self.settle();
        if self.standing.is_over() {
            return;
        }
        self.epochs.iter_mut().for_each(Epoch::resend);
        self.transfers.resend();
        match self.standing {
            Standing::Joining => {
                self.joining.note_resend(self.transfers.counters().chunks_taken, &mut self.transfers);
                self.ask_to_join();
                self.go_on_founding(lease);
                self.go_on_refounding(lease);
                self.give_up_unwelcomed(lease);
                self.give_up_dead_incarnation();
            }
            Standing::Member => {
                self.report_deaths();
                self.ask_for_stored();
                self.give_up_dead_incarnation();
                self.tell_held_dead_members();
            }
            Standing::Leaving => self.ask_for_begun(),
            _ => {}
        }
        self.expire_tail();
        self.tell_first_view(lease);
        self.propose_next_view(lease);
        self.pump();
    }

    /// To be called at each resend: reports deaths to members that do not know of them, and asks all for
    /// theirs after a long silence.
    fn report_deaths(&mut self) {
        let Some(epoch) = self.epochs.current_mut() else { return };
        let all = epoch.is_quiet().then(|| epoch.other_hosts());
        let places = epoch.dead();
        if let Some(to) = all.filter(|all| !all.is_empty()).or_else(|| epoch.hosts_unaware_of_deaths()) {
            self.say(to, Control::Dead { places, asks: true });
        }
    }

    /// Does what had to wait until the user was done with the last decision.
    fn settle(&mut self) {
        while let Some(identity) = self.tail.pop_unnamed() {
            self.forget_unneeded(&identity);
        }
        if let Some(view) = self.epochs.take_next() {
            self.begin_next(view);
            self.pump();
        }
    }
}

/// Whether the last decision names a payload that is not stored.
fn lacks_payload(tail: &Tail, transfers: &Transfers) -> bool {
    tail.last_named().any(|identity| transfers.get(identity).is_none())
}

#[cfg(test)]
mod tests;
