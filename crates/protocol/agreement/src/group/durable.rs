// SPDX-License-Identifier: Apache-2.0
//! Decisions on disk, so that a group survives the end of all its members at once.
//!
//! ```text
//!  decided ──► poll_store ──► the caller's disk ──► stored ──► told to the others
//!                                                                    │
//!  delivered to the user ◄── stored by enough members of the view ◄──┘
//! ```
//!
//! **Told late.** A decision is delivered, here or anywhere, only once more than half of the members of the
//! view have it on disk; or all live ones, if those are fewer. What is on a disk is a sequence of decisions,
//! never a proposal, so that the disks of a view's members hold parts of one log, each from its beginning on.
//!
//! A member that decides before its leader does ([`crate::Agreement::decide_before_leader`]) stores the decision a
//! round trip sooner, while its acknowledgement is on its way. It is a decision all the same.
//!
//! The leader counts, delivers, and tells the others how far they may deliver; or the member that leads next,
//! once the leader is dead. So nobody has been delivered more than the leader, which may answer at any time. A
//! new leader first delivers everything that was decided before it led, as its predecessor may have told that
//! ([`Durable::may_answer`]).
//!
//! **Coming back.** A process finds on its disk which view its host was last a member of, and the log up to
//! some position ([`Recalled`]). It claims both, as if it had been excluded with that state ([`super::refounding`]),
//! and so the group is founded again by the rule that holds for excluded members: all members of the last view
//! have to answer, and the one with the most decisions goes on. No delivered decision is lost:
//!
//! - In the last view V: some members of V had it on disk when it was delivered, each after the note that it
//!   had begun V. One of them is enough, as all members of V are asked. A member that began V and stored
//!   nothing of it says that it is still in an earlier view, or that it never began V; it counts as a member
//!   to which less was delivered, and that is what it was, as far as anything was relied on.
//! - In a later view than V: somebody stored a decision of it. It was a member of V, and claims the later view; or it
//!   was let into the later view by a member that had that on disk already ([`Durable::may_welcome`]), which was let
//!   in likewise, or was a member of V. So some member of V claims a later view than V.
//! - In an earlier view: V began with the delivery of the decision on it, so some member of the view before
//!   stored all decisions up to that one, and those that stored anything of V stored these before.
//!
//! **The number of the new view** is two higher than that of V: the view after V may be in the log, although all who had
//! begun it have ended and say that they are still in V. No two views have the same number.
//!
//! **A claim may grow when a process starts again:** its disk may have more than was counted. That is no danger:
//! what a host claimed as an earlier process counts for nobody any more once the new one is up, and the new one
//! has only the claims of hosts that know that it is up. If one of those has founded the group meanwhile, it
//! claims no earlier view.
//!
//! An excluded member claims what it has stored, not what was delivered to it: others may have counted its disk.
//! If it founds the group again, it first delivers the decisions between the two.
//!
//! **A host that joins** is not counted until its user's state is on disk ([`Group::base_stored`]), which may take long.
//! Decisions are delivered there meanwhile, as others have stored them. If no live member is counted, nothing is
//! delivered.

use std::collections::VecDeque;

use fide_types::{
    HostId, HostSet, MAX_HOSTS, PerHost,
    planted::{self, Planted},
};

use super::{
    Group, Standing,
    claim::Membership,
    control::Control,
    entry::{Entry, entries_but_values},
    epoch::Epoch,
    incarnations::Incarnations,
};
use crate::{Start, lease::Lease, transfer::Identity, view::View};

/// Most bytes of decisions that wait for disks; while there are more, none is taken from the protocol, whose
/// window then fills up.
const WAITING_MAX: usize = 4 << 20;

/// In place of a position: the disk has no state of the user to begin with.
const NO_BASE: u64 = u64::MAX;

/// What is to be stored next, after everything before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToStore<'a> {
    /// This host is a member of a view that begins after this position. Whatever was stored of later positions
    /// is void.
    Member {
        incarnation: u32,
        /// With which the first view was begun; 0 in any other view.
        ballot: u32,
        view: &'a View,
        start: u64,
    },
    /// A decision ([`super::entries`] reads it). The payloads that it names are stored before it
    /// ([`Group::payload`]).
    Decision { position: u64, value: &'a [u8] },
}

/// What a process finds on disk of former processes of its host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recalled {
    /// The first incarnation of which everything is on disk that others may have relied on, if it was one of this disk's
    /// processes ([`Group::recall`]).
    pub first: u32,
    /// The last membership.
    pub member: Option<RecalledMember>,
}

/// The last view that a host was a member of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecalledMember {
    pub incarnation: u32,
    /// With which the first view was begun; 0 in any other view.
    pub ballot: u32,
    pub view: View,
    /// The user's state after this position can be had from the disk; none if the disk has no whole state.
    pub position: Option<u64>,
}

#[derive(Debug, Clone)]
pub(super) struct Durable {
    is_on: bool,
    /// Decisions after the position that was delivered last, and their bytes.
    waiting: VecDeque<Vec<u8>>,
    bytes: usize,
    spare: Vec<Vec<u8>>,
    /// The decision that was delivered last.
    delivered: Vec<u8>,
    /// Handed out by [`Group::poll_store`] up to this position.
    handed: u64,
    /// The number of the view whose membership was handed out.
    handed_view: u32,
    /// The number of the view whose membership is on disk, with the user's state.
    stored_view: u32,
    /// The last decision that was handed out is the next view: what the protocol decides after it counts for
    /// nobody.
    is_closed: bool,
    /// The user's state is on disk up to this position; none if the disk has no state to begin with.
    mine: Option<u64>,
    /// Enough members have stored everything up to this position.
    told: u64,
    /// Of each host: the incarnation that said so, and up to which position it has stored.
    others: PerHost<(u32, u64)>,
    /// The view in which this member leads, and what was decided when it began to: it answers nothing before it has
    /// delivered that.
    leads_from: Option<(u32, u64)>,
}

impl Durable {
    pub(super) fn new() -> Self {
        Self {
            is_on: false,
            waiting: VecDeque::new(),
            bytes: 0,
            spare: Vec::new(),
            delivered: Vec::new(),
            handed: 0,
            handed_view: 0,
            stored_view: 0,
            is_closed: false,
            mine: Some(0),
            told: 0,
            others: PerHost::new(MAX_HOSTS, |_| (0, 0)),
            leads_from: None,
        }
    }

    /// Whether the leader of view `number` that was delivered everything up to `position` lacks nothing that
    /// others were delivered: neither what was decided before it led, nor what it has told them itself.
    pub(super) fn may_answer(&self, number: u32, position: u64) -> bool {
        let has_caught_up =
            self.leads_from.is_some_and(|(view, from)| view == number && position >= from.max(self.told));
        !self.is_on || has_caught_up || planted::is(Planted::AnswersUntold)
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Whether a host that joins may be told that this member has begun view `number`, and be given its state.
    pub(super) fn may_welcome(&self, number: u32) -> bool {
        !self.is_on || self.stored_view == number || planted::is(Planted::WelcomesUnstored)
    }

    /// How much higher than the last view's number that of the view is with which a group is founded again. The
    /// view between may be decided, and begun by processes that have ended.
    pub(super) fn skips(&self) -> u32 {
        if self.is_on { 2 } else { 1 }
    }

    /// Whether the next view is decided, and waits to be delivered.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// The decisions that wait, in order: the first one is that after the position that was delivered last.
    pub(super) fn waiting_values(&self) -> impl Iterator<Item = &[u8]> {
        self.waiting.iter().map(Vec::as_slice)
    }

    /// How many decisions wait.
    pub(super) fn waiting(&self) -> u64 {
        self.waiting.len() as u64
    }

    /// The user's state is another one, after this position, and not on disk.
    pub(super) fn replaced(&mut self, position: u64) {
        self.forget_waiting();
        (self.handed, self.mine, self.is_closed) = (position, None, false);
        self.stored_view = 0;
        // Somebody had it delivered.
        self.told = position;
    }

    /// The user's state is still the one after `position`, and the log goes on from there with a new protocol.
    pub(super) fn begun(&mut self, start: u64) {
        self.is_closed = false;
        self.told = self.told.max(start);
    }

    fn forget_waiting(&mut self) {
        self.waiting.clear();
        self.bytes = 0;
    }

    /// For the next incarnation: what is not stored is not claimed, and not delivered either.
    pub(super) fn excluded(&mut self, delivered: u64) -> u64 {
        let mine = if planted::is(Planted::ForgetsStored) { 0 } else { self.mine.unwrap_or(0) };
        let stored = mine.max(delivered);
        let keeps = usize::try_from(stored - delivered).unwrap_or(usize::MAX);
        self.waiting.truncate(keeps);
        self.bytes = self.waiting.iter().map(Vec::len).sum();
        (self.handed, self.handed_view, self.is_closed) = (stored, 0, false);
        self.stored_view = 0;
        self.leads_from = None;
        self.others.values_mut().fill((0, 0));
        stored
    }

    /// The payloads that waiting decisions name.
    pub(super) fn named(&self) -> impl Iterator<Item = Identity> + '_ {
        self.waiting.iter().flat_map(|value| entries_but_values(value)).filter_map(|entry| match entry {
            Entry::Payload(identity) => Some(identity),
            _ => None,
        })
    }

    pub(super) fn names(&self, identity: &Identity) -> bool {
        self.named().any(|named| named == *identity)
    }

    /// The next decision, if it may be delivered.
    fn deliver(&mut self, delivered: u64) -> bool {
        if delivered >= self.told && !planted::is(Planted::TellsUnstored) {
            return false;
        }
        let Some(value) = self.waiting.pop_front() else { return false };
        self.bytes -= value.len();
        self.spare.push(std::mem::replace(&mut self.delivered, value));
        true
    }

    fn take(&mut self, value: &[u8]) {
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(value);
        self.bytes += copy.len();
        self.waiting.push_back(copy);
        self.handed += 1;
    }
}

impl<P: Start> Group<P> {
    /// Decisions are delivered once they are stored ([`Group::poll_store`]). To be called when the group is
    /// made, at all members or at none: `group_of` has to be given another setting.
    pub fn set_durable(&mut self) {
        self.durable.is_on = true;
        self.epochs.iter_mut().for_each(|epoch| epoch.protocol.decide_before_leader());
    }

    /// What former processes of this host have stored. To be called when the group is made. The user's state is
    /// taken for the one after the position there. `own`: the incarnations of those processes, as far as they are known.
    pub fn recall(&mut self, recalled: Recalled, own: &Incarnations) {
        let Recalled { first, member } = recalled;
        let membership = member.map(|member| {
            let RecalledMember { incarnation, ballot, view, position } = member;
            Membership { incarnation, position, ballot, view }
        });
        // A host that was never a member has nothing to keep.
        let position = membership.as_ref().map_or(Some(0), |membership| membership.position);
        self.past.recall(first, own.before(self.config.incarnation), membership);
        self.position = position.unwrap_or(0);
        (self.durable.handed, self.durable.mine) = (self.position, position);
    }

    /// What is to be on disk of former incarnations, from the moment on when the disk has another state of the
    /// user in place of the one before ([`Group::base_stored`]).
    #[must_use]
    pub fn recalled(&self) -> Recalled {
        let member = self.past.membership().map(|membership| {
            let Membership { incarnation, position, ballot, view } = membership.clone();
            RecalledMember { incarnation, ballot, view, position }
        });
        Recalled { first: self.past.first(), member }
    }

    /// The next thing to be stored; to be asked until there is none, after each call and before
    /// [`Group::poll_decision`]. [`Group::stored`] says that it was done. None while the lease does not hold:
    /// what this member decides then may be something else than what the others decide without it.
    pub fn poll_store(&mut self, lease: Lease) -> Option<ToStore<'_>> {
        self.settle();
        let may_act = self.may_act(lease) || self.standing == Standing::Member && planted::is(Planted::StoresUnleased);
        if !self.durable.is_on || !may_act || self.epochs.is_ending() {
            return None;
        }
        let (number, start) = self.epochs.current().map(|epoch| (epoch.view.number(), epoch.start))?;
        if self.durable.handed_view != number && self.durable.handed >= start {
            self.durable.handed_view = number;
            let ballot = if number == 1 { self.founding.ballot() } else { 0 };
            let view = &self.epochs.current()?.view;
            return Some(ToStore::Member { incarnation: self.config.incarnation, ballot, view, start });
        }
        if self.durable.is_closed || self.durable.bytes > WAITING_MAX {
            return None;
        }
        if self.backlog.deliver() {
            self.durable.take(self.backlog.delivered());
        } else {
            let epoch = self.epochs.current_mut()?;
            let Some(decision) = epoch.protocol.poll_decision() else {
                let begins = self.durable.leads_from.is_none_or(|(view, _)| view != number);
                if begins && epoch.leads() && epoch.protocol.speaks_for_all() {
                    self.durable.leads_from = Some((number, self.durable.handed));
                    self.note_told();
                }
                return None;
            };
            let follows =
                |entry: Entry<'_>| matches!(entry, Entry::View(view) if view.number() == number.wrapping_add(1));
            self.durable.is_closed = entries_but_values(decision.value).any(follows);
            self.durable.take(decision.value);
            debug_assert_eq!(self.durable.handed, start + decision.instance, "positions go on");
        }
        let value = self.durable.waiting.back()?;
        Some(ToStore::Decision { position: self.durable.handed, value })
    }

    /// Everything that [`Group::poll_store`] has handed out is on disk.
    pub fn stored(&mut self) {
        if self.durable.mine.is_some() {
            self.durable.stored_view = self.durable.handed_view;
        }
        if self.durable.mine.is_some_and(|mine| mine < self.durable.handed) {
            self.durable.mine = Some(self.durable.handed);
            self.say_stored(false);
        }
    }

    /// The user's state after `position` is on disk, and so is everything that was handed out since: what is
    /// stored counts from now on, also at a host that has joined.
    pub fn base_stored(&mut self, position: u64) {
        if position <= self.durable.handed && self.durable.mine.is_none() {
            self.durable.mine = Some(self.durable.handed);
            self.durable.stored_view = self.durable.handed_view;
            self.say_stored(false);
        }
    }

    /// Whether the disk of this host has no state of its user to begin with: one is to be stored.
    #[must_use]
    pub fn lacks_base(&self) -> bool {
        self.durable.is_on && self.durable.mine.is_none()
    }

    /// Everything up to this position is on enough disks; for people.
    #[must_use]
    pub fn told(&self) -> u64 {
        self.durable.told
    }

    /// Tells the leader what is stored here, or counts it as leader.
    fn say_stored(&mut self, asks: bool) {
        let position = self.durable.mine.unwrap_or(NO_BASE);
        let Some(epoch) = self.epochs.current() else { return };
        match epoch.counter() {
            Some(counter) if counter != self.config.me => {
                self.say(HostSet::only(counter), Control::Stored { position, asks });
            }
            _ => {
                self.note_told();
                if asks {
                    self.say(self.others(), Control::Stored { position, asks });
                }
            }
        }
    }

    /// To be called at each resend: asks again, if something waits.
    pub(super) fn ask_for_stored(&mut self) {
        if !self.durable.waiting.is_empty() {
            self.say_stored(true);
        }
    }

    /// Of [`Control::Stored`].
    pub(super) fn handle_stored(&mut self, from: HostId, sender: u32, position: u64, asks: bool) {
        if !self.durable.is_on {
            return;
        }
        // The sender may be in the view before, or count where this member does not: a leader that has handed over, or
        // was taken out, still tells how far the others may deliver, as often as it is asked.
        if asks {
            self.say(HostSet::only(from), Control::Told { position: self.durable.told });
        }
        if self.standing != Standing::Member {
            return;
        }
        let (by, known) = &mut self.durable.others[from];
        let is_first = *by != sender || *known == NO_BASE || position == NO_BASE;
        *known = if is_first { position } else { position.max(*known) };
        *by = sender;
        self.note_told();
        let counts = self.epochs.current().and_then(Epoch::counter) == Some(self.config.me);
        if asks && !counts {
            let position = self.durable.mine.unwrap_or(NO_BASE);
            self.say(HostSet::only(from), Control::Stored { position, asks: false });
        }
    }

    /// Of [`Control::Told`]. It may come from a leader that has died since: its word counts, as the next one
    /// delivers everything that it may have told before it answers anything.
    pub(super) fn handle_told(&mut self, from: HostId, sender: u32, position: u64) {
        let is_member = self.epochs.current().is_some_and(|epoch| epoch.view.holds(from, sender));
        if self.standing == Standing::Member && is_member {
            self.durable.told = self.durable.told.max(position);
        }
    }

    /// Who has stored what, or who is alive, has changed: the leader counts, and tells the others.
    pub(super) fn note_told(&mut self) {
        let (durable, me) = (&self.durable, self.config.me);
        let counts = |epoch: &&Epoch<P>| durable.is_on && epoch.counter() == Some(me);
        let Some(epoch) = self.epochs.current().filter(counts) else { return };
        // None: a live member whose disk has no state of the user yet. It is not waited for: one disk that has all is
        // enough to come back from, and its state may take minutes to store.
        let stored = |host: HostId| {
            let (by, position) = durable.others[host];
            if host == me {
                return durable.mine;
            }
            let position = if Some(by) == epoch.view.incarnation(host) { position } else { 0 };
            (position != NO_BASE).then_some(position)
        };
        let (mut positions, mut count) = ([0; MAX_HOSTS], 0);
        for position in epoch.view.hosts_of(epoch.alive()).iter().filter_map(stored) {
            positions[count] = position;
            count += 1;
        }
        let live = &mut positions[..count];
        live.sort_unstable_by(|a, b| b.cmp(a));
        let most = epoch.view.members().len() / 2 + 1;
        let told = most.min(live.len()).checked_sub(1).and_then(|at| live.get(at)).copied().unwrap_or(0);
        // What others have stored beyond this member's own is not decided here yet.
        let told = told.min(durable.handed);
        let others = epoch.other_hosts();
        if told > self.durable.told {
            self.durable.told = told;
            if !others.is_empty() {
                self.say(others, Control::Told { position: told });
            }
        }
    }

    /// As [`Group::poll_decision`], of decisions that are stored. Whether there is one.
    pub(super) fn deliver_stored(&mut self) -> bool {
        if !self.durable.deliver(self.position) {
            return false;
        }
        self.position += 1;
        let is_of_epoch = self.epochs.current().is_some_and(|epoch| self.position > epoch.start);
        self.epochs.push(&mut self.tail, &self.durable.delivered, is_of_epoch);
        true
    }

    pub(super) fn delivered_stored(&self) -> &[u8] {
        &self.durable.delivered
    }
}
