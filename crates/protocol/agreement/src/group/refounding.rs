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
//! **Known to be dead.** A host that lost its record, and whose clock was set back, comes as an incarnation
//! that others know to be dead already. In a view it would be dead from the beginning, to the others and not
//! to itself: they would decide without it, and it would lead when they have died. So they send it the highest
//! dead incarnation (`higher`), nobody lets it in, and it comes as a higher one. It answers for none of the
//! incarnations between, which belonged to another process. The dead incarnation may also be this process,
//! excluded just now, which its agent reports too: so the host waits for its agent for [`LET_IN_RESENDS`]
//! resends first. A disk that comes back after its host has run without it has such an incarnation, too: what it
//! kept as a member it goes on to claim, as the higher one. Until then nobody gives it a claim, so that it founds
//! nothing, and nobody takes a state or a view from it. The word of a host that kept a view with a later
//! incarnation of that host counts as well: it may have been out when that incarnation ended, and is not notified
//! of the end.
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
    HostId, HostSet, MAX_HOSTS, PerHost,
    planted::{self, Planted},
};

use super::{
    Group, GroupError, Standing,
    claim::{Claim, GaveUp, Membership, Testimony, outlived},
    control::Control,
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

/// What this process and others were before.
#[derive(Debug, Clone)]
pub(super) struct Past {
    /// The first incarnation that this process answers for.
    first: u32,
    /// What this process kept of the group when it was excluded.
    membership: Option<Membership>,
    /// The view without this member, once it was delivered.
    without_me: Option<View>,
    /// The last claim of each host, and the incarnation that sent it.
    claims: PerHost<Option<(u32, Claim)>>,
    /// Resends since others, which are over, claimed a view that this incarnation was let in to.
    unwelcomed: u32,
    /// The view that this incarnation was let in to, as a member says that was taken out by it; and how often
    /// that was said.
    let_in_to: Option<(View, u32)>,
    /// The incarnation of each host that asked to be let in last.
    asking: PerHost<u32>,
    /// The view that this process was let in to, and gave up last.
    gave_up: Option<GaveUp>,
    /// The highest incarnation of this host that others know to be dead.
    reported_dead: u32,
    /// Resends since that incarnation was not below the present one.
    reported_dead_resends: u32,
}

impl Past {
    pub(super) fn new(first: u32) -> Self {
        Self {
            first,
            membership: None,
            without_me: None,
            claims: PerHost::new(MAX_HOSTS, |_| None),
            unwelcomed: 0,
            let_in_to: None,
            asking: PerHost::new(MAX_HOSTS, |_| 0),
            gave_up: None,
            reported_dead: 0,
            reported_dead_resends: 0,
        }
    }

    /// What former processes of this host have stored.
    pub(super) fn recall(&mut self, first: u32, membership: Option<Membership>) {
        self.first = self.first.min(first);
        self.membership = membership;
    }

    /// The first incarnation that this process answers for.
    pub(super) fn first(&self) -> u32 {
        self.first
    }

    /// The view without this member was delivered.
    pub(super) fn note_taken_out(&mut self, view: View) {
        self.without_me = Some(view);
    }

    /// Whether a member that has begun view `number` has begun the view without this member, or a later one.
    pub(super) fn is_replaced_by(&self, number: u32) -> bool {
        self.without_me.as_ref().is_none_or(|view| view.number() <= number)
    }

    /// A member that was taken out by this view says that the view contains this incarnation.
    pub(super) fn note_let_in(&mut self, view: View) {
        let times = self.let_in_to.take().filter(|(known, _)| *known == view).map_or(0, |(_, times)| times);
        self.let_in_to = Some((view, times.saturating_add(1)));
    }

    /// A host asks to be let in: it is not a member as that incarnation.
    pub(super) fn note_asking(&mut self, host: HostId, incarnation: u32) {
        self.asking[host] = incarnation;
    }

    /// Others know all incarnations of this host up to this one to be dead.
    pub(super) fn note_reported_dead(&mut self, up_to: u32) {
        self.reported_dead = self.reported_dead.max(up_to);
    }

    /// All incarnations up to `dead` are dead, which is not below the present one: this process answers for
    /// none of them.
    fn skip_dead(&mut self, dead: u32) {
        if !planted::is(Planted::AnswersForOthers) {
            self.first = dead.saturating_add(1);
        }
    }

    /// The incarnation of a host in the view that this process kept; 0 for none.
    pub(super) fn member(&self, host: HostId) -> u32 {
        self.membership().and_then(|membership| membership.view.incarnation(host)).unwrap_or(0)
    }

    pub(super) fn membership(&self) -> Option<&Membership> {
        self.membership.as_ref()
    }

    /// The user's state was replaced by one of a later view, which this process goes on to say that it never
    /// began. A process to which nothing was delivered gave nothing up, and goes on to say that.
    pub(super) fn note_replaced(&mut self) {
        match &mut self.membership {
            Some(Membership { position: Some(0), .. }) => self.membership = None,
            _ if planted::is(Planted::ForgetsItsView) => self.forget(),
            Some(membership) => membership.position = None,
            None => {}
        }
    }

    /// What was kept is not needed any more, as the group goes on. This process does not answer for the
    /// incarnation that kept it.
    pub(super) fn forget(&mut self) {
        if let Some(membership) = self.membership.take() {
            self.first = self.first.max(membership.incarnation + 1);
        }
        self.claims.values_mut().fill(None);
    }
}

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
        // The incarnations between belong to another process. `was` is this process's, if its agent says that
        // it was excluded as that one.
        if self.past.reported_dead > was {
            self.past.skip_dead(self.past.reported_dead);
        }
        group.past = self.past.clone();
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

    /// The next incarnation of this host has to be above this one.
    #[must_use]
    pub fn incarnation_floor(&self) -> u32 {
        self.config.incarnation.max(self.past.reported_dead)
    }

    /// To be called at each resend while in no group: gives up an incarnation that others know to be dead.
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
        // What this process kept it kept as a member, so it knows its own numbers; incarnations above its own
        // are another process's anyway.
        if dead > incarnation || self.past.membership.is_none() {
            self.past.skip_dead(dead);
        }
    }

    /// What this process answers for: all its incarnations but the present one.
    fn claim(&self) -> Claim {
        let Past { first, gave_up, membership, .. } = &self.past;
        Claim { first: *first, last: self.config.incarnation - 1, gave_up: *gave_up, membership: membership.clone() }
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

    /// Whether the incarnation of a host that is up is one that this host knows to be dead.
    fn is_held_dead(&self, host: HostId) -> bool {
        let up = self.liveness.up(host);
        up != 0 && up <= self.highest_dead(host, up) && !planted::is(Planted::LetsInTheDead)
    }

    /// To be called at each resend while in no group: tells the others this host's claim, and founds the
    /// group again if that is up to it.
    pub(super) fn go_on_refounding(&mut self, lease: Lease) {
        let claim = self.claim();
        if claim.membership.is_none() && claim.last < claim.first {
            return;
        }
        // To be founded by a dead incarnation would be to be led by one that is dead to this host.
        let others = self.liveness.hosts_up().and(self.config.hosts);
        let others: HostSet = others.iter().filter(|host| !self.is_held_dead(*host)).collect();
        if !others.is_empty() {
            self.say(others, Control::Claim(claim));
        }
        let is_dead = self.past.reported_dead >= self.config.incarnation && !planted::is(Planted::LetsInTheDead);
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
