// SPDX-License-Identifier: Apache-2.0
//! What an excluded member keeps, and how a group whose members were all excluded is founded again.
//!
//! An excluded member must not act any more. It goes on as another incarnation that asks to be let in
//! ([`Group::rejoin`]), and keeps its state until it knows that the group goes on elsewhere. Where the others
//! go on, it takes over their state, as any host that joins. Where all members were excluded although their
//! processes live, nobody could let anybody in: then they tell each other what they kept (`claim`), and found
//! the group again.
//!
//! **The rule.** Let V be the view of the highest number among the claims. Every member of V, as its
//! incarnation in V, has to have claimed what it kept, or that it never began V. Then the member with the
//! most delivered decisions (of several, the most senior one) begins view V+1, of itself alone, with its
//! state; the others join it. While one member of V has not answered, all wait: it may have gone on alone.
//!
//! **No delivered decision is lost.** A decision was delivered to a member of a view up to V.
//!
//! - In an earlier view: its position is before V begins, so every member that has begun V has it.
//! - In V: it was delivered to a member of V, which has answered, and delivers nothing beyond what it claims.
//!
//! So the member with the most delivered decisions has them all. (A decision that was delivered to nobody may
//! be lost: nobody has acted on it.)
//!
//! **No second group exists beside the new one.** Suppose that another one lives, or could come to live, when
//! V+1 is founded.
//!
//! - It goes on from V: some member of V, as its incarnation in V, has begun a view after V. When it is
//!   excluded it keeps that view, and claims no earlier one: V was not the highest. While it is not excluded
//!   it claims nothing.
//! - It was founded from V too, by another member: both had the claims of all members of V. A claim never
//!   changes: a member is excluded from V once, acts no more as that incarnation, and keeps the same until it
//!   is a member again, as another incarnation, of a view after V. So both found the same member to have the
//!   most delivered decisions.
//! - It was founded from an earlier view U: all members of U have claimed it. Then nobody has begun the view
//!   after U except by that founding, and V follows from that founding, or U is V.
//!
//! A claim is about incarnations that are over. A process that started anew knows nothing about the former
//! incarnations of its host, and answers for none of them.
//!
//! **Two first views.** Both have number 1 ([`super::founding`] explains why no decision of the earlier one
//! was delivered). The one of the higher ballot counts as the higher view: members that have begun it also
//! answer for the other one, so that nobody founds the group again from the other one.
//!
//! **Let in, but never welcomed.** Let A begin view V with K and J, whom it lets in, and be excluded before
//! either has begun V. K and J could still begin V, by the word of any other member that has begun it, so
//! neither can say that it never has. A waits for them, and they wait for a welcome. So a host that joins, is
//! in a view that was claimed, and gets no welcome for [`LET_IN_RESENDS`] resends gives its incarnation up
//! ([`Group::excluded`]), and says as the next one that it never began V. To the others this is the crash of
//! a member to which nothing was delivered. That is safe at any time, also where somebody else has begun V
//! and goes on: the group goes on without the incarnation that was given up, and lets the next one in. This
//! comes to an end, as no view contains the next incarnation before somebody acts.
//!
//! The same happens where A is not an excluded member, but one that was taken out by V and waits for somebody
//! to begin V (*Taken out*), and all others that had V died before they were known to have begun it: then
//! nobody claims V. A tells the members of V at each resend, and J gives its incarnation up when nobody else
//! in V could still welcome it: all others are dead, or ask to be let in themselves.
//!
//! A dead member answers for nothing. But J, whose lease holds, knows which members of V were dead when it
//! gave V up. While J lived nothing was decided in V without J's word, and of two members at most one is
//! notified that the other is gone. So such a dead member delivered nothing in V, nor a view after V, and its
//! word is not needed ([`GaveUp`]). Its process may live and come back. It does not found the group again,
//! even if it has the word of all members, as others may have founded it without its word. J's own word is
//! known to everyone that founds the group again; or J was outlived by another member whose word everyone
//! has, and then J's word counts for nobody.
//!
//! **Own incarnations.** A host's disk may be lost, and come back after its host has run without it. So processes take
//! their numbers from the clock, and each is above those of all other disks of its host, unless the clock was set back. A
//! disk answers for exactly the processes that it knows to be its own ([`Incarnations`]): what ran between them may have
//! been a member of the last view, and have answered alone. Beyond [`super::RANGES_MAX`] ranges the oldest are forgotten,
//! and the others wait where they would be needed.
//!
//! **Known to be dead.** A host whose clock was set back comes as an incarnation that others know to be dead already: it has
//! lost its record, or its disk has come back. In a view it would be dead from the beginning, to those that know and
//! not to itself: they would decide without it, and it would lead when they have died. So whoever knows sends it the
//! highest dead incarnation (`higher`), and it comes as a higher one. It does not answer for the one it gives up, which
//! may have been another process's too; and for none before that, unless it has kept a membership: there was no higher
//! one when it was let in.
//!
//! - From then on it enters no view, founds no group, and is given no claim.
//! - Others may have let it in before, which do not know; or it needed nobody's claim to found the group. Whoever knows
//!   takes no state and no view from it, enters no view with it, and says `higher` to it, a member at each resend.
//!   To the others that is the crash of a member.
//! - The dead incarnation may also be this process, excluded just now, which its agent reports too: so the host waits for
//!   its agent for [`LET_IN_RESENDS`] resends first.
//! - The word of a host that kept a view with a later incarnation of that host counts as well: it may have been out when
//!   that incarnation ended, and is not notified of the end.
//!
//! One case is left: the clock was set back, a member that does not know lets the host in, and `higher` reaches it only
//! after that. Until it has given up, members that know decide without it, while it takes itself for a member of the view
//! before, answers reads from that, and would lead if all of them died.
//!
//! **The record on disk** has no part in this: it keeps hosts from founding a *first* view
//! ([`super::founding`]). Incarnations only grow, as the record has the last one.
//!
//! **Taken out.** A member to which the view without it was delivered keeps that view, and answers for the
//! one before. If it alone was delivered the view, it has the most delivered decisions and founds the group
//! again, unless a member of the view has as many. Nobody else was taken out by the same view: two such
//! members would each found the group again where they do not hear each other. (A member that was left out
//! because it crashed no longer acted when the view was proposed, and was not delivered it.)
//!
//! So a member that was taken out is needed until one of the others has begun that view
//! ([`Standing::Leaving`]): it asks them at each resend, and members that were taken out later answer as
//! well. If all of them are dead or out before one has said so, nobody could let anybody in, and the member
//! goes on as another incarnation, as they do.
//!
//! **What gives way.** A member that keeps a state takes over only the state of a view after the one it
//! keeps: a member that has not heard of its own exclusion yet may offer an older state. There are two
//! exceptions, which also take a state of a view of the same number:
//!
//! - A member to which nothing was delivered has nothing to lose. It goes on to answer that nothing was
//!   delivered to it.
//! - A member that was delivered the view without it, as a member that offers that view's state was delivered
//!   the view too.
//!
//! Every other one, once it has taken over a state, goes on to answer that it never began a view after the
//! one it kept: it may be in a view that others have begun, and have been out before it heard of that view.

use fide_types::{
    HostId, HostSet, MAX_HOSTS,
    planted::{self, Planted},
};

use super::{
    Group, GroupError, Standing,
    claim::{Claim, GaveUp, Membership, Testimony, outlived},
    control::Control,
    incarnations::Incarnations,
    past::Past,
    tail::Tail,
};
use crate::{
    Start,
    lease::Lease,
    view::{View, ViewMember},
};

/// Resends until a host that was let in with others, which are over, gives up waiting for their welcome.
/// Those of them that act answer each of its requests, and are asked with every resend.
const LET_IN_RESENDS: u32 = 16;

impl<P: Start> Group<P> {
    /// This host was excluded: the others go on without it, or all hosts were excluded. The member is over as
    /// this incarnation, and keeps its state; [`Group::rejoin`] makes another incarnation of it.
    pub fn excluded(&mut self) {
        if self.standing.is_over() {
            return;
        }
        let incarnation = self.config.incarnation;
        let view = match (self.standing, self.epochs.take_next()) {
            // Delivered, and about to begin.
            (Standing::Member, Some(next)) => Some(next),
            (Standing::Member, None) => self.view().cloned(),
            // The others may not have begun it.
            (Standing::Leaving | Standing::Removed, _) if planted::is(Planted::RemovedKeepsNothing) => None,
            (Standing::Leaving | Standing::Removed, _) => self.past.without_me.take().or(self.view().cloned()),
            _ => None,
        };
        if let Some(view) = view {
            self.past.forget();
            let ballot = if view.number() == 1 { self.founding.ballot() } else { 0 };
            // Of a state that is not on disk nothing was counted.
            let stored = if self.durable.is_on() { self.durable.excluded(self.position) } else { self.position };
            let position = Some(stored);
            self.past.membership = Some(Membership { incarnation, position, ballot, view });
        } else if self.standing != Standing::Joining {
            self.past.forget();
            self.past.first = incarnation + 1;
        }
        self.standing = Standing::Excluded;
    }

    /// After [`Group::excluded`]: this host wants to be in the group again, as a higher incarnation, which is
    /// stored. It keeps the user's state and its position. Which hosts are up has to be reported anew.
    ///
    /// # Errors
    /// [`GroupError::Incarnation`]; nothing has changed.
    pub fn rejoin(&mut self, incarnation: u32) -> Result<(), GroupError> {
        let was = self.config.incarnation;
        if self.standing != Standing::Excluded || incarnation <= self.incarnation_floor() {
            return Err(GroupError::Incarnation { incarnation, was, standing: self.standing });
        }
        let mut group = Self::join(super::Config { incarnation, ..self.config })?;
        group.past = Past { own: self.own_incarnations(), is_disowned: false, ..self.past.clone() };
        group.version = self.version;
        group.liveness = self.liveness.deaths_only();
        group.position = self.position;
        for identity in self.durable.named() {
            if let Some(payload) = self.transfers.get(&identity) {
                // There is room: it was stored before, and nothing else is yet.
                let _ = group.transfers.store(payload.to_vec());
            }
        }
        group.durable = self.durable.clone();
        group.founding = self.founding.restart();
        *self = group;
        Ok(())
    }

    /// Incarnations for which this host answers as its next one ([`Group::rejoin`]): they are to be stored with that.
    #[must_use]
    pub fn own_incarnations(&self) -> Incarnations {
        let Past { own, is_disowned, membership, reported_dead, .. } = &self.past;
        let (mut own, incarnation) = (own.clone(), self.config.incarnation);
        // Those between belong to another process. The present one is this process's, if its agent says that it was
        // excluded as that one.
        match *is_disowned || *reported_dead > incarnation {
            false => own.push(incarnation),
            true if planted::is(Planted::AnswersForOthers) => own = Incarnations::range(1, self.incarnation_floor()),
            // It was a member as one of those before: so there was no higher one then.
            true if membership.is_some() => {}
            true => own.disown(incarnation),
        }
        own
    }

    /// The next incarnation of this host has to be above this one.
    #[must_use]
    pub fn incarnation_floor(&self) -> u32 {
        self.config.incarnation.max(self.past.reported_dead)
    }

    /// To be called at each resend: gives up an incarnation that others know to be dead.
    /// See the module's text: *Known to be dead*.
    pub(super) fn give_up_dead_incarnation(&mut self) {
        let (incarnation, dead) = (self.config.incarnation, self.past.reported_dead);
        if dead < incarnation {
            return;
        }
        self.past.reported_dead_resends += 1;
        if self.past.reported_dead_resends < LET_IN_RESENDS {
            return;
        }
        self.past.reported_dead_resends = 0;
        self.excluded();
        // Unless this process was a member as this very incarnation, the dead one may have been another process of that
        // number; incarnations above its own are another process's anyway.
        let is_own = self.past.membership.as_ref().is_some_and(|membership| membership.incarnation == incarnation);
        self.past.is_disowned = dead > incarnation || !is_own;
    }

    /// What this process answers for: all its incarnations but the present one.
    fn claim(&self) -> Claim {
        let Past { first, own, gave_up, membership, .. } = &self.past;
        let before = self.config.incarnation - 1;
        let own = if planted::is(Planted::AnswersForGaps) { &Incarnations::range(1, before) } else { own };
        Claim::new(&own.since(*first), self.config.incarnation, *gave_up, membership.clone())
    }

    /// The claim of a host's incarnation that is up.
    fn claim_of(&self, host: HostId) -> Option<&Claim> {
        let (by, claim) = self.past.claims.get(host)?.as_ref()?;
        (*by == self.liveness.up(host) && *by != 0).then_some(claim)
    }

    /// To be called at each resend while [`Standing::Leaving`]: asks the members of the view without this one
    /// whether they have begun it. See the module's text: *Taken out*.
    pub(super) fn ask_for_begun(&mut self) {
        let Some(without_me) = &self.past.without_me else { return };
        let alive = without_me.members().iter().filter(|member| !self.liveness.is_dead(member));
        let (view, to): (_, HostSet) = (without_me.clone(), alive.map(|member| member.host).collect());
        if to.is_empty() {
            self.excluded();
        } else {
            self.say(to, Control::Out { view });
        }
    }

    /// To be called at each resend while in no group: gives up an incarnation that was let in and gets no
    /// welcome. See the module's text: *Let in, but never welcomed*.
    pub(super) fn give_up_unwelcomed(&mut self, lease: Lease) {
        let super::Config { me, incarnation, .. } = self.config;
        let is_mine = |view: &&View| view.holds(me, incarnation);
        let claims = (1..=MAX_HOSTS as u16).filter_map(|host| self.claim_of(host)?.membership.as_ref());
        let claimed =
            claims.map(|membership| &membership.view).filter(is_mine).max_by_key(|view| view.number()).cloned();
        let is_welcomed = self.joining.is_welcomed();
        let waits = claimed.is_some() && !is_welcomed && !planted::is(Planted::AwaitsWelcome);
        self.past.unwelcomed = if waits { self.past.unwelcomed + 1 } else { 0 };
        let let_in_to = self.past.let_in_to.as_ref().filter(|(_, times)| *times >= LET_IN_RESENDS);
        let can_welcome = |member: &ViewMember| {
            let asks = self.past.asking[member.host] == member.incarnation;
            member.host != me && !self.liveness.is_dead(member) && !asks
        };
        let is_left_alone = |view: &&View| !view.members().iter().any(can_welcome);
        let left = let_in_to.map(|(view, _)| view).filter(is_mine);
        let left = left.filter(|_| lease.holds() && !planted::is(Planted::AwaitsTheLeaving));
        let left = left.filter(|_| !is_welcomed).filter(is_left_alone).cloned();
        let claimed = claimed.filter(|_| self.past.unwelcomed >= LET_IN_RESENDS);
        match (claimed, left) {
            (Some(_), _) => {}
            (None, Some(view)) => {
                // A member that has claimed something is heard of by others too.
                let is_gone =
                    |member: &&ViewMember| self.liveness.is_dead(member) && self.claim_of(member.host).is_none();
                let dead = view.members().iter().filter(is_gone).map(|member| member.host).collect();
                self.past.gave_up = Some(GaveUp { number: view.number(), incarnation, dead });
            }
            (None, None) => return,
        }
        (self.past.unwelcomed, self.past.let_in_to) = (0, None);
        self.excluded();
    }

    /// To be called at each resend while in no group: tells the others this host's claim, and founds the
    /// group again if that is up to it.
    pub(super) fn go_on_refounding(&mut self, lease: Lease) {
        let claim = self.claim();
        if claim.says_nothing() {
            return;
        }
        // A process of version 1 knows one range: it hears of the last one, and waits where it would need another.
        let told = if self.version < 2 { claim.of_last_range() } else { claim };
        // To be founded by a dead incarnation would be to be led by one that is dead to this host.
        let others = self.liveness.hosts_up().and(self.config.hosts);
        let others: HostSet = others.iter().filter(|host| !self.is_held_dead(*host)).collect();
        if !others.is_empty() {
            self.say(others, Control::Claim(told));
        }
        let is_dead = self.is_reported_dead();
        if let Ok((view, founder)) = self.refounded_view(lease)
            && founder == self.config.me
            && !is_dead
        {
            self.joining.give_up(&mut self.transfers);
            self.past.forget();
            let start = self.position + self.durable.waiting();
            self.tail = Tail::new(self.position, self.config.tail_max);
            self.begin(view, start);
            self.pump();
        }
    }

    /// Of [`Control::Claim`].
    pub(super) fn handle_claim(&mut self, from: u16, sender: u32, claim: Claim) {
        if self.standing == Standing::Joining {
            if claim.membership.as_ref().is_some_and(Membership::proves_a_group) {
                self.note_group();
            }
            self.past.claims[from] = Some((sender, claim));
        }
    }

    /// The view with which this host would found the group again, and which host has to; or the hosts whose
    /// claims are missing.
    fn refounded_view(&self, lease: Lease) -> Result<(View, u16), HostSet> {
        let super::Config { me, incarnation, .. } = self.config;
        let hosts = || 1..=MAX_HOSTS as u16;
        let mine = self.claim();
        let claims = |host: HostId| if host == me { Some(&mine) } else { self.claim_of(host) };
        let memberships = hosts().filter_map(|host| claims(host)?.membership.as_ref());
        let Some(last) = memberships.max_by_key(|membership| membership.age()) else { return Err(HostSet::EMPTY) };
        let outlived = outlived(hosts().filter_map(|by| Some((by, claims(by)?.outlived(by, last)?))));
        let mut missing = HostSet::EMPTY;
        let mut most: Option<(u64, u16)> = None;
        // An outlived member counts for nothing, even if it answers: others may not hear it, and have to come
        // to the same result.
        for member in last.view.members().iter().filter(|member| !outlived.contains(member.host)) {
            match claims(member.host).and_then(|claim| claim.testimony(member.incarnation, last)) {
                Some(Testimony::DeliveredUpTo(position)) if most.is_none_or(|(most, _)| position > most) => {
                    most = Some((position, member.host));
                }
                Some(_) => {}
                None if planted::is(Planted::FoundsFromSome) => {}
                None => missing.insert(member.host),
            }
        }
        // The member with the most delivered decisions may be the one that was taken out by that view.
        for host in hosts().filter(|host| last.view.place(*host).is_none()) {
            let membership = claims(host).and_then(|claim| claim.membership.as_ref());
            let position = membership.filter(|membership| membership.age() == last.age()).and_then(|of| of.position);
            if let Some(position) = position
                && most.is_none_or(|(most, _)| position > most)
            {
                most = Some((position, host));
            }
        }
        let next = last.view.number().checked_add(self.durable.skips());
        let view = next.and_then(|number| View::new(number, &[ViewMember { host: me, incarnation }]).ok());
        match (view, most) {
            (Some(view), Some((_, founder))) if missing.is_empty() && lease.holds() => Ok((view, founder)),
            _ => Err(missing),
        }
    }

    /// If this host was excluded and keeps its state: the hosts without whose claims the group is not founded
    /// again.
    #[must_use]
    pub fn refounding_awaits(&self) -> Option<HostSet> {
        let keeps_state = self.past.membership().is_some_and(|membership| membership.position.is_some());
        if self.standing != Standing::Joining || !keeps_state {
            return None;
        }
        Some(self.refounded_view(Lease { now_ns: 0, until_ns: 1 }).err().unwrap_or(HostSet::EMPTY))
    }

    /// Whether this host, or one that has said so, keeps a state from which the group could go on.
    pub(super) fn is_kept(&self) -> bool {
        let keeps = |membership: Option<&Membership>| membership.is_some_and(|of| of.position.is_some());
        let claims = |host| self.claim_of(host).and_then(|claim| claim.membership.as_ref());
        keeps(self.past.membership()) || (1..=MAX_HOSTS as u16).any(|host| keeps(claims(host)))
    }
}
