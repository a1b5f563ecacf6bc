// SPDX-License-Identifier: Apache-2.0
//! A member of a group that changes, on hosts that may pause and networks that may be cut (`trust = "lease"`).
//!
//! **Leases.** The detector says who has crashed once nobody acts on that host's behalf any more: views of the detector are
//! agreed, leases have run out. What is left to do here:
//!
//! - A member whose own lease has run out tells its user no decision and answers no question: the others may have gone on.
//!   Its protocol goes on taking messages, which harms nobody: it decides nothing that the others have not acknowledged.
//! - One that is excluded has crashed, as far as the group goes. It stops, and joins again as another incarnation. Until it is a member
//!   it keeps what it has, from which the group is founded again if all were excluded ([`holding`]).
//! - A group is of incarnations, not of hosts. What another incarnation sends, or what is told of it, changes nothing.
//!
//! **Views.** The log is a chain of epochs, one for each [`View`]: a protocol among the members of that view, from its first
//! instance on. The next view is a proposal like any other, and the last decision of its epoch: what is decided after it there
//! counts for nobody, and whoever leads proposes it again in the next one. A crash needs no view, as the protocol survives it;
//! a view leaves out who has crashed by then.
//!
//! - A member begins the next epoch when it has told its user the last decision of this one. It still serves those who have not
//!   (`previous`), until the epoch after that ends: what is decided in an epoch all its live members have acknowledged, so that
//!   all of them have begun it.
//! - Nothing is decided in an epoch without its new members: they are asked for acknowledgements as any other. So a new member
//!   that has the state of where the epoch begins lacks nothing.
//!
//! **Founding** ([`forming`]): by those who are there, once.
//!
//! **Joining** ([`joining`], [`admission`]): a state first, while the group goes on; then the view; then the decisions between the
//! two, for which alone the group waits. Members keep decisions from when somebody asks to be let in, and forget them when
//! [`Config::tail_max`] is used up, or nobody asks any more; who needs them gets a newer state.
//!
//! **Crashes that a new member cannot know of:** some members of its view have died before they could hear of it. Members tell each
//! other whom they hold dead until all know it. It is taken for members only that have never heard this one: of the others the
//! detector tells, and sees to it that of two members one at most is told that the other is gone.
//!
//! **Payloads** that are longer than a value are sent ahead ([`crate::transfer`]), and their identity is proposed when all members
//! that live have them. So whoever is told a decision has what it names.

mod admission;
mod changing;
mod control;
mod datagram;
mod entry;
mod epoch;
mod forming;
mod holding;
mod joining;
mod payloads;
mod receiving;
mod tail;

use std::{collections::VecDeque, fmt};

use fide_types::{
    HostSet, MAX_HOSTS,
    planted::{self, Planted},
};

use crate::{
    Decision, Refused, Start,
    lease::Lease,
    transfer::{self, Identity, Transfers},
    view::View,
};
use admission::Admission;
use control::Control;
use epoch::Epoch;
use forming::Forming;
use holding::Past;
use joining::Joining;
use tail::Tail;

pub use datagram::{DatagramError, PREFIX_LEN};
pub use entry::{Entry, entries};

/// What a member of a group is told at its start.
#[derive(Debug, Clone, Copy)]
pub struct Config<S> {
    /// Which group: the same number at all its members, another for any other ([`group_of`]).
    pub group: u64,
    pub me: u16,
    pub incarnation: u32,
    /// Who may be in it.
    pub hosts: HostSet,
    pub setting: S,
    /// Bytes of decisions that are kept while somebody joins, and of payloads that decisions have named: at most
    /// `transfer.payload_max`, as they are sent as one payload. `transfer.held_max` has to have room for them, and for what is under
    /// way.
    pub tail_max: u64,
    pub transfer: transfer::Config,
}

/// What members say, and what a log's entries mean: members of different programs refuse each other.
const FORMAT: &[u8] = b"fide group 7";

/// The number of a group: of its name, of who may be in it, and of what members have in common. So members whose lists or settings
/// differ refuse each other ([`DatagramError::OtherGroup`]), and do not agree on something else each.
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
    /// With room for the mark of each payload.
    fn marked(&self) -> transfer::Config {
        let payload_max = self.transfer.payload_max.saturating_add(payloads::MARK_LEN as u64);
        let held_max = self.transfer.held_max.saturating_add(payloads::MARK_LEN as u64);
        transfer::Config { payload_max, held_max, ..self.transfer }
    }
}

/// Why there is no such group.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    #[error("this host, {me}, with incarnation {incarnation}, is not in the view; it has to join")]
    NotAMember { me: u16, incarnation: u32 },
    #[error("host {host} is in the view and not in the list of hosts")]
    Stranger { host: u16 },
    #[error("{0}")]
    Setting(String),
    #[error(
        "tail_max is {tail_max} bytes; payload_max, {payload_max} here, is the most, as decisions are sent as a payload"
    )]
    TailMax { tail_max: u64, payload_max: u64 },
    #[error(transparent)]
    Transfer(#[from] transfer::ConfigError),
    #[error(
        "this member is {standing:?} as incarnation {was} and cannot go on as {incarnation}; it has to be excluded, and the number higher"
    )]
    Incarnation { incarnation: u32, was: u32, standing: Standing },
}

/// What a host is to its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It wants to be in: has asked to be let in, or waits for the others to found a group with it.
    Joining,
    Member,
    /// A view was agreed without it, and no member of that view is known to have begun it. This one is needed still: it serves the others, and
    /// keeps what it was told. [`Standing::Removed`] follows; where all members of that view are out, it asks to be let in again.
    Leaving,
    /// A view was agreed without it, and has begun. Nobody needs it: its process may end.
    Removed,
    /// The detector has excluded it: it goes on as another incarnation ([`Group::rejoin`]).
    Excluded,
    /// It has left.
    Left,
    /// A decision names a payload that is not here: what follows is not known here, and nothing more is told. It is never met; if it
    /// is, another incarnation joins and takes over the state of the others.
    Lacking,
}

impl Standing {
    /// Nothing follows from it any more.
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
    /// By id-1: the incarnation that is up, as the detector has told; 0 for none.
    up: [u32; MAX_HOSTS],
    /// Those of them that have heard this incarnation.
    met: HostSet,
    /// Hosts that are up, it is not known as which incarnation.
    unsure: HostSet,
    /// By id-1: the highest incarnation that is dead.
    dead: [u32; MAX_HOSTS],
    current: Option<Epoch<P>>,
    previous: Option<Epoch<P>>,
    /// Told to the user, and begins with the next call.
    next: Option<View>,
    /// Messages of the view after this one, which their senders have begun already.
    early: VecDeque<(u16, Vec<u8>)>,
    /// The user was told all up to this position.
    position: u64,
    tail: Tail,
    /// Resends since somebody has asked to be let in, while decisions are kept for it.
    unasked: u32,
    /// None where the group exists for sure.
    forming: Option<Forming>,
    /// That the first view was begun with; 0 for one that was given.
    ballot: u32,
    /// Hosts that are in no group, as they have said since the last resend.
    present: HostSet,
    joining: Joining,
    past: Past,
    admission: Admission,
    /// By id-1: decisions kept for one who joins.
    kept: Box<[Option<Identity>]>,
    transfers: Transfers,
    /// Decisions that a new member was given with its welcome, not told yet; and the one told last.
    catching: VecDeque<Vec<u8>>,
    caught: Vec<u8>,
    /// Entries that are to be proposed as soon as it goes.
    again: VecDeque<Vec<u8>>,
    /// Payloads of this member that are offered, and proposed once all members that live have them.
    offered: Vec<Identity>,
    /// How many this member has proposed.
    marks: u64,
    /// Payloads that nobody seemed to need when this view began.
    doomed: Vec<Identity>,
    /// To whom, and in which view it was said.
    out: VecDeque<(HostSet, u32, Control)>,
    scratch: Vec<u8>,
}

impl<P: Start> Group<P> {
    /// A member of a group that begins. All members are given the same view, number 1.
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
        group.current = Some(epoch);
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
            up: [0; MAX_HOSTS],
            met: HostSet::EMPTY,
            unsure: HostSet::EMPTY,
            dead: [0; MAX_HOSTS],
            current: None,
            previous: None,
            next: None,
            early: VecDeque::new(),
            position: 0,
            tail: Tail::new(0, config.tail_max),
            unasked: 0,
            forming: None,
            ballot: 0,
            present: HostSet::EMPTY,
            joining: Joining::default(),
            past: Past::new(config.incarnation),
            admission: Admission::new(),
            kept: vec![None; MAX_HOSTS].into_boxed_slice(),
            transfers: Transfers::new(config.me, config.marked())?,
            catching: VecDeque::new(),
            caught: Vec::new(),
            again: VecDeque::new(),
            offered: Vec::new(),
            marks: 0,
            doomed: Vec::new(),
            out: VecDeque::new(),
            scratch: Vec::new(),
            config,
        })
    }

    #[must_use]
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// The view that it is in; none before it is a member.
    #[must_use]
    pub fn view(&self) -> Option<&View> {
        self.current.as_ref().map(|epoch| &epoch.view)
    }

    /// The user was told all up to this position.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The host that leads, as far as this member knows.
    #[must_use]
    pub fn leader(&self) -> Option<u16> {
        self.current.as_ref().filter(|_| self.standing == Standing::Member)?.leader()
    }

    /// Whether all others have crashed or left: what is proposed is decided with nobody's word, and can be polled at once.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.standing == Standing::Member && self.current.as_ref().is_some_and(|epoch| epoch.others().is_empty())
    }

    /// Other members of the present view that are not known to have crashed: without their word nothing is decided.
    #[must_use]
    pub fn others(&self) -> HostSet {
        self.current.as_ref().map_or(HostSet::EMPTY, |epoch| epoch.view.hosts_of(epoch.others()))
    }

    /// The protocol of the present view, to look at.
    #[must_use]
    pub fn protocol(&self) -> Option<&P> {
        self.current.as_ref().map(|epoch| &epoch.protocol)
    }

    fn acts(&self, lease: Lease) -> bool {
        self.standing == Standing::Member && lease.holds()
    }

    /// The present epoch, if this member leads it and may act.
    fn leading(&self, lease: Lease) -> Result<&Epoch<P>, Refused> {
        let epoch = self.current.as_ref().filter(|_| self.acts(lease)).ok_or(Refused::Fenced)?;
        if epoch.leads() { Ok(epoch) } else { Err(Refused::NotLeader { leader: epoch.leader().unwrap_or(0) }) }
    }

    /// A host is up. For those that are when this member is made; of others the detector tells.
    pub fn up(&mut self, host: u16, incarnation: u32) {
        if host != self.config.me && !planted::is(Planted::MissesTheFormer) {
            // Whatever it was before is over, also where that was not told, or told while this member was out.
            self.down(host, incarnation.saturating_sub(1));
        }
        let up = self.up.get_mut(usize::from(host).wrapping_sub(1));
        if let Some(up) = up.filter(|_| host != self.config.me) {
            *up = incarnation;
            self.met.remove(host);
            if self.is_awaited(host, |member| member == incarnation) {
                self.transfers.away(host);
            }
            self.transfers.joined(host);
        }
    }

    /// Hosts that hear this one (`Detector::heard_by`). To be told before each datagram is received: of these
    /// the detector will tell the end.
    pub fn heard_by(&mut self, hosts: HostSet) {
        self.met = HostSet(self.met.0 | hosts.0);
    }

    /// Hosts that are up, while it is not known as which incarnation: of these no other member's word is taken. To be told with
    /// [`Group::heard_by`], by callers that learn incarnations later than the detector does.
    pub fn unsure_of(&mut self, hosts: HostSet) {
        self.unsure = hosts;
    }

    /// An incarnation of a host is dead, or has left, for good.
    pub fn down(&mut self, host: u16, incarnation: u32) {
        self.settle();
        self.crashed(host, incarnation);
        self.pump();
    }

    /// This member does and says nothing from now on. To be called before the detector says goodbye, as the others go on without
    /// this host when they hear it. A member that wants to be gone from the view too is removed first ([`Group::remove`]).
    pub fn leave(&mut self) {
        self.standing = Standing::Left;
    }

    fn crashed(&mut self, host: u16, incarnation: u32) {
        let Some(at) = usize::from(host).checked_sub(1).filter(|at| *at < MAX_HOSTS) else { return };
        if host == self.config.me {
            return;
        }
        // Also while it is excluded: the incarnation after it is not told again.
        self.dead[at] = self.dead[at].max(incarnation);
        if self.standing.is_over() {
            return;
        }
        for epoch in self.current.iter_mut().chain(&mut self.previous) {
            epoch.crashed(host, incarnation);
        }
        if self.up[at] <= incarnation {
            self.up[at] = 0;
            self.admission.forget(host);
            self.joining.crashed(host, &mut self.transfers);
            if self.is_awaited(host, |member| member > incarnation) {
                self.transfers.away(host);
            } else {
                self.transfers.crashed(host);
            }
        }
    }

    /// Whether a host is in the present view as such an incarnation, which is not known to have crashed.
    fn is_awaited(&self, host: u16, as_which: impl Fn(u32) -> bool) -> bool {
        let Some(epoch) = self.current.as_ref().filter(|_| !planted::is(Planted::WaitsForHosts)) else { return false };
        let lives = epoch.view.place(host).is_some_and(|place| epoch.alive().contains(place));
        lives && epoch.view.incarnation(host).is_some_and(as_which)
    }

    /// A value for one of the next instances. Only a member whose lease holds is asked.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn propose(&mut self, lease: Lease, value: &[u8]) -> Result<(), Refused> {
        self.settle();
        if !self.acts(lease) {
            return Err(Refused::Fenced);
        }
        if self.admission.closing || self.admission.next_waits || !self.again.is_empty() {
            return Err(Refused::Changing);
        }
        self.propose_entry(Some(entry::VALUE), value)
    }

    fn propose_entry(&mut self, kind: Option<u8>, content: &[u8]) -> Result<(), Refused> {
        let epoch = self.current.as_mut().ok_or(Refused::Fenced)?;
        epoch.protocol.propose_tagged(kind, content).map_err(|refused| match refused {
            Refused::NotLeader { leader } => {
                Refused::NotLeader { leader: epoch.view.member(leader).map_or(0, |member| member.host) }
            }
            // Without its kind.
            Refused::TooLong { len, max } => Refused::TooLong { len: len - 1, max: max - 1 },
            other => other,
        })
    }

    /// The next decision that may be told. None while the lease does not hold: it is kept until it does. Its `instance` is its
    /// position in the log of the group; [`entries`] reads its value.
    pub fn poll_decision(&mut self, lease: Lease) -> Option<Decision<'_>> {
        self.settle();
        let acts = self.acts(lease) || self.standing == Standing::Member && planted::is(Planted::TellsUnleased);
        if !acts {
            return None;
        }
        if let Some(value) = self.catching.pop_front() {
            self.caught = value;
            self.position += 1;
            self.tail.push(&self.caught);
            if self.tail.named().any(|identity| self.transfers.get(identity).is_none()) {
                self.standing = Standing::Lacking;
                return None;
            }
            return Some(Decision { instance: self.position, value: &self.caught });
        }
        let epoch = self.current.as_mut()?;
        let decision = epoch.protocol.poll_decision()?;
        self.position += 1;
        debug_assert_eq!(self.position, epoch.start + decision.instance, "positions go on from epoch to epoch");
        let follows = |view: &View| view.number() == epoch.view.number() + 1;
        self.next = self.tail.push(decision.value).filter(follows);
        if self.tail.named().any(|identity| self.transfers.get(identity).is_none()) {
            self.standing = Standing::Lacking;
            return None;
        }
        Some(Decision { instance: self.position, value: decision.value })
    }

    /// Whether what was told here is all that was decided anywhere: a question about the state may be answered from it. True of one
    /// member at most, at any moment: of the leader, when it has decided what its predecessors may have.
    pub fn may_answer(&self, lease: Lease) -> bool {
        let acts = self.acts(lease) || self.standing == Standing::Member && planted::is(Planted::AnswersUnleased);
        let told = self.next.is_none() && self.catching.is_empty();
        acts && told && self.current.as_ref().is_some_and(|epoch| epoch.protocol.speaks_for_all())
    }

    /// Whether the answer of another member is due at once ([`Agreement::awaits_answer`]).
    #[must_use]
    pub fn awaits_answer(&self) -> bool {
        self.current.as_ref().is_some_and(|epoch| epoch.protocol.awaits_answer())
    }

    /// To be called from time to time: what was sent before the last call and has had no answer is sent again. A good time between
    /// calls is a little more than a round trip.
    pub fn resend(&mut self, lease: Lease) {
        self.settle();
        if self.standing.is_over() {
            return;
        }
        for epoch in self.current.iter_mut().chain(&mut self.previous) {
            epoch.resend();
        }
        self.transfers.resend();
        match (self.standing, &mut self.current) {
            (Standing::Joining, _) => {
                self.joining.waits(self.transfers.counters().chunks_taken, &mut self.transfers);
                self.ask();
                self.form_on(lease);
                self.claim_on(lease);
                self.step_back(lease);
                self.step_up();
            }
            (Standing::Member, Some(epoch)) => {
                let all = epoch.is_quiet().then(|| epoch.view.hosts_of(epoch.others()));
                let places = epoch.dead();
                if let Some(to) = all.filter(|all| !all.is_empty()).or_else(|| epoch.untold()) {
                    self.say(to, Control::Dead { places, asks: true });
                }
            }
            (Standing::Leaving, _) => self.leave_on(),
            _ => {}
        }
        self.rest();
        self.tell_of_the_first(lease);
        self.manage(lease);
        self.pump();
    }

    /// What was put off until the user was done with what it was told.
    fn settle(&mut self) {
        // The user is done with what it was told.
        while let Some(identity) = self.tail.pop_unnamed() {
            self.give_up(&identity);
        }
        if let Some(view) = self.next.take() {
            self.begin_next(view);
            self.pump();
        }
    }
}

#[cfg(test)]
mod tests;
