// SPDX-License-Identifier: Apache-2.0
//! A member that was excluded keeps what it has, until it is known that the group goes on elsewhere.
//!
//! It may not act any more, and goes on as another incarnation that asks to be let in ([`Group::rejoin`]). Where the others go on it
//! takes over their state, as anybody who joins. Where all were excluded, though their processes live, nobody could let anybody in: then they
//! tell each other what they hold (`claim`), and found the group again.
//!
//! **The rule.** V is the view of the highest number among the claims. Every member of V, as the incarnation that it is in V, has to have said
//! what it holds, or that it has never begun V. Then the one of them that was told most (of several the most senior) begins view V+1, of
//! itself alone, with what it holds; the others join it. While one member of V has not answered, all wait: it may have gone on alone.
//!
//! **What is told is not lost.** Whoever was told a decision was told it as a member of a view up to V. What was told in an earlier view
//! is before where V begins, and so with everybody who has begun V. What was told in V was told to a member of V, which answers, and stops at
//! what it holds. So the one that was told most was told all. (What was decided and told to nobody may be lost: nobody has acted on it.)
//!
//! **There is no second group beside it.** Suppose that another one lives, or could come to live, when V+1 is founded.
//! - It goes on from V: some member of V has begun a view after V, as the incarnation that it is in V. When it is excluded it holds
//!   that view, and claims no earlier one: V was not the highest. While it is not excluded it claims nothing.
//! - It was founded from V too, by another member: both had the claims of all members of V. A claim never changes: a member is excluded
//!   from V once, acts as that incarnation no more, and holds the same until it is a member again, as another incarnation, of a view after V.
//!   So both found the same one to be told most.
//! - It was founded from an earlier view U: all members of U have claimed it. Then nobody has begun the view after U but by that founding,
//!   and V came of it, or U is V.
//!
//! A claim is of incarnations that are over. A process that started anew knows nothing of its host's former incarnations, and answers for
//! none of them.
//!
//! **Two first views.** Both have number 1 ([`super::forming`] says why nobody was told a decision of the earlier one). The one of the higher
//! ballot counts as the higher: those who have begun it answer for the other one too, so that nobody founds from the other one beside them.
//!
//! **Let in, and never welcomed.** A begins view V with K and J, whom it lets in, and is excluded before either has begun it. K and J could
//! still begin V, by the word of whoever else has, so neither can say that it never has; A waits for them, and they for a welcome. So a
//! host that joins, is in a view that was claimed, and gets no welcome for [`LET_IN_RESENDS`] resends, gives its incarnation up
//! ([`Group::excluded`]), and says as the next one that it has never begun V. To the others that is a crash of a member that has told nothing,
//! which is safe at any time, also where somebody else has begun V and goes on: it goes on without, and lets the next incarnation in.
//! It ends, as no view has the next incarnation in it before somebody acts.
//!
//! The same where A is no excluded member, but one that was taken out by V and waits for somebody to begin it (*Taken out*), and who had V besides
//! died before it was known to have begun it: then nobody claims V. A tells its members of V at each resend, and J gives its incarnation up
//! when nobody else of V could still welcome it: all others are dead, or ask to be let in themselves.
//!
//! Who has died answers for nothing. But J, whose lease holds, knows then who of V was dead when it gave V up: in V nothing was ever decided without
//! J's word while J lived, and of two members one at most is told that the other is gone. So such a member has told nothing in V, nor a view after
//! it, and its word is not missed ([`GaveUp`]). Its process may live, and come back: it does not found the group, also where it has the word of
//! all, as others may have founded it without its word. J's own word is had by all who found, or J was outlived by another one, whose word all have;
//! then J's counts for nobody.
//!
//! **Held dead.** A host that lost its record, and whose clock was set back, comes as an incarnation that others hold dead already. In a view it
//! would be dead from the beginning, to them and not to itself: they would decide without it, and it would lead when they have died. So it is
//! told, let in by nobody, and comes as one above. It answers for none of the incarnations between, which another process was. It may also be
//! this process that was shut out just now, which its agent says too; so it waits for that for [`LET_IN_RESENDS`] resends first. The word of
//! one that holds a view with a later incarnation of that host counts as well: it may have been out when that one ended, and is told of no end.
//!
//! **What is on disk** does not matter for that: a record keeps hosts from founding a *first* view ([`super::forming`]). Incarnations only
//! grow, as the record has the last one.
//!
//! **Taken out.** A member that was told the view without it holds that view, and answers for the one before it. If it alone was told, it was
//! told most, and founds the group again, unless a member of the view was told as much. Nobody else was taken out by the same view: two would
//! each found the group, where they do not hear each other. (Who is left out of it for a crash acted no more when it was proposed, and was not
//! told it.) So a member that was taken out is needed until one of them has begun that
//! view ([`Standing::Leaving`]): it asks them at each resend, and who was taken out later answers as well. Where all of them are dead or out before one has said so, nobody could let anybody
//! in, and it goes on as another incarnation, as they do.
//!
//! **What gives way.** A member that holds something takes a state only of a view after the one it holds: a member that has not heard yet of
//! its own exclusion may offer an older one. A member that was told nothing has nothing to lose, and takes a state of its own view too, or of
//! another first view; so does a member that was told the view without it, as who offers that view's state was told so too. It goes on to answer that it was told nothing. Any other goes on to answer that it has never begun a view after
//! the one it held: it may be in one that others have begun, and been out before it heard of it.

use fide_types::{
    HostSet, MAX_HOSTS,
    planted::{self, Planted},
};

use super::{Group, GroupError, Standing, control::Control, forming::Forming, tail::Tail};
use crate::{
    Start,
    lease::Lease,
    view::{Member, View},
};

/// Resends until a host that was let in with others, who are over, gives up waiting for their welcome. Those of them that act answer
/// each of its questions, and are asked with every resend.
const LET_IN_RESENDS: u32 = 16;

/// What a member has that was excluded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Held {
    /// The incarnation that was a member.
    pub(super) was: u32,
    /// Of what its user was told last; none once that was given up for a later state.
    pub(super) position: Option<u64>,
    /// The one that the first view was begun with; 0 in any other.
    pub(super) ballot: u32,
    pub(super) view: View,
}

impl Held {
    /// Which view is the later one.
    fn age(&self) -> (u32, u32) {
        (self.view.number(), if planted::is(Planted::IgnoresBallots) { 0 } else { self.ballot })
    }

    /// A member of a view with this number offers a state: does it take the place of what is held?
    pub(super) fn gives_way_to(&self, number: u32, me: u16) -> bool {
        let nothing = self.position == Some(0) && !planted::is(Planted::KeepsNothing);
        let taken_out = !self.view.holds(me, self.was);
        number > self.view.number() || (nothing || taken_out) && number == self.view.number()
    }
}

/// What a process says of its incarnations that are over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Claim {
    /// It answers for its host's incarnations from this one on.
    pub(super) since: u32,
    /// Up to this one.
    pub(super) over: u32,
    /// It was let in as one of them, and gave that up.
    pub(super) gave_up: Option<GaveUp>,
    /// Of them this one was a member last; none was.
    pub(super) held: Option<Held>,
}

/// A view that a host was let in to, never began, and gave up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GaveUp {
    /// Of the view.
    pub(super) number: u32,
    /// The incarnation that was let in.
    pub(super) was: u32,
    /// Hosts whose members of that view were dead by then.
    pub(super) dead: HostSet,
}

impl Claim {
    /// What is known of an incarnation in the last view: none if it may be acting, or have acted.
    fn answers(&self, incarnation: u32, last: &Held) -> Option<Answer> {
        let was = self.held.as_ref().map_or(0, |held| held.was);
        match &self.held {
            Some(held) if held.was == incarnation => {
                let before = (held.age() < last.age()).then_some(Answer::NeverBegan);
                held.position.map(Answer::Holds).or(before)
            }
            _ if was < incarnation && (self.since..=self.over).contains(&incarnation) => Some(Answer::NeverBegan),
            _ => None,
        }
    }

    /// The hosts whose members of the last view were dead when this process, which was let in to it, gave it up.
    fn outlived(&self, me: u16, last: &Held) -> Option<HostSet> {
        let GaveUp { number, was, dead } = self.gave_up.filter(|_| !planted::is(Planted::ForgetsWhoDied))?;
        (number == last.view.number() && last.view.holds(me, was)).then_some(dead)
    }
}

/// Members whose word is not missed, and who do not found the group, by what each of these hosts has outlived. Who was outlived itself had given the
/// view up, or was shut out, before the one that says so, and its own word counts for nothing: all who found have to find the same, whether
/// they hear it or not.
pub(super) fn outlived(by: impl Iterator<Item = (u16, HostSet)>) -> HostSet {
    let mut by: Vec<(u16, HostSet)> = by.collect();
    let mut all = HostSet::EMPTY;
    // The last first. None is the last only where two have outlived each other, which is never said.
    while let Some(at) = by.iter().position(|(host, _)| !by.iter().any(|(_, dead)| dead.contains(*host))) {
        let (_, dead) = by.remove(at);
        all = HostSet(all.0 | dead.0);
        by.retain(|(host, _)| planted::is(Planted::HeedsTheOutlived) || !dead.contains(*host));
    }
    all
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Holds(u64),
    NeverBegan,
}

/// What this process and others were before.
#[derive(Debug, Clone)]
pub(super) struct Past {
    /// The first incarnation of this process.
    since: u32,
    held: Option<Held>,
    /// The view without this member, which it was told.
    without: Option<View>,
    /// By id-1: who has said it, and what.
    claims: Box<[Option<(u32, Claim)>]>,
    /// Resends since others, that are over, have said that this incarnation was let in with them.
    let_in: u32,
    /// The view that it was let in to, as a member says that was taken out by it; and how often it was said.
    told_in: Option<(View, u32)>,
    /// By id-1: the incarnation that asked to be let in last.
    joining: Box<[u32]>,
    gave_up: Option<GaveUp>,
    /// The highest incarnation of this host that others hold dead, as far as they have said; and resends since it was not below the present one.
    held_dead: (u32, u32),
}

impl Past {
    pub(super) fn new(since: u32) -> Self {
        Self {
            since,
            held: None,
            without: None,
            claims: vec![None; MAX_HOSTS].into_boxed_slice(),
            let_in: 0,
            told_in: None,
            joining: vec![0; MAX_HOSTS].into_boxed_slice(),
            gave_up: None,
            held_dead: (0, 0),
        }
    }

    /// This member was told that it is taken out.
    pub(super) fn taken_out(&mut self, view: View) {
        self.without = Some(view);
    }

    /// Whoever has begun a view of this number has begun the one without this member, or a later one.
    pub(super) fn is_replaced_by(&self, number: u32) -> bool {
        self.without.as_ref().is_none_or(|view| view.number() <= number)
    }

    /// A member that was taken out by that view says so.
    pub(super) fn is_let_in(&mut self, view: View) {
        let times = self.told_in.take().filter(|(known, _)| *known == view).map_or(0, |(_, times)| times);
        self.told_in = Some((view, times.saturating_add(1)));
    }

    /// A host asks to be let in: it is no member as that incarnation.
    pub(super) fn is_joining(&mut self, host: u16, incarnation: u32) {
        self.joining[usize::from(host) - 1] = incarnation;
    }

    /// Others hold all incarnations of this host up to this one dead.
    pub(super) fn is_held_dead(&mut self, up_to: u32) {
        self.held_dead.0 = self.held_dead.0.max(up_to);
    }

    /// Others hold all incarnations up to `dead` dead, which is not below the present one: this process answers for none of them.
    fn skip_the_dead(&mut self, dead: u32) {
        if !planted::is(Planted::AnswersForOthers) {
            self.forget();
            self.since = dead.saturating_add(1);
        }
    }

    /// The incarnation in which a host was a member of the view that is held.
    pub(super) fn member(&self, host: u16) -> u32 {
        self.held.as_ref().and_then(|held| held.view.incarnation(host)).unwrap_or(0)
    }

    pub(super) fn held(&self) -> Option<&Held> {
        self.held.as_ref()
    }

    /// The user's state was given up for another one, of a later view, which this process goes on to say that it has never begun. Whoever
    /// was told nothing has given up nothing, and goes on to say so.
    pub(super) fn replaced(&mut self) {
        match &self.held {
            Some(Held { position: Some(0), .. }) => self.held = None,
            _ if planted::is(Planted::ForgetsItsView) => self.forget(),
            _ => self.held.iter_mut().for_each(|held| held.position = None),
        }
    }

    /// What was held is not needed any more, as the group goes on; for the incarnation that held it this process does not answer.
    pub(super) fn forget(&mut self) {
        if let Some(held) = self.held.take() {
            self.since = self.since.max(held.was + 1);
        }
        self.claims.fill(None);
    }
}

impl<P: Start> Group<P> {
    /// The others go on without this member, or all of them were excluded. It is over as this incarnation, and keeps what it has;
    /// [`Group::rejoin`] makes another incarnation of it.
    pub fn excluded(&mut self) {
        if self.standing.is_over() {
            return;
        }
        let was = self.config.incarnation;
        let view = match (self.standing, self.next.take()) {
            // Told, and about to begin.
            (Standing::Member, Some(next)) => Some(next),
            (Standing::Member, None) => self.view().cloned(),
            // The others may not have begun it.
            (Standing::Leaving | Standing::Removed, _) if planted::is(Planted::RemovedKeepsNothing) => None,
            (Standing::Leaving | Standing::Removed, _) => self.past.without.take().or(self.view().cloned()),
            _ => None,
        };
        if let Some(view) = view {
            self.past.forget();
            let ballot = if view.number() == 1 { self.ballot } else { 0 };
            self.past.held = Some(Held { was, position: Some(self.position), ballot, view });
        } else if self.standing != Standing::Joining {
            self.past.forget();
            self.past.since = was + 1;
        }
        self.standing = Standing::Excluded;
    }

    /// After [`Group::excluded`]: this host wants to be in again, as a higher incarnation, which is stored. It keeps the user's state, and its
    /// position. Who is up has to be told anew.
    ///
    /// # Errors
    /// [`GroupError::Incarnation`]; nothing has changed.
    pub fn rejoin(&mut self, incarnation: u32) -> Result<(), GroupError> {
        let was = self.config.incarnation;
        if self.standing != Standing::Excluded || incarnation <= self.above() {
            return Err(GroupError::Incarnation { incarnation, was, standing: self.standing });
        }
        let mut group = Self::join(super::Config { incarnation, ..self.config })?;
        // Those between are another's. `was` is this process', where its agent says that it was shut out as that one.
        if self.past.held_dead.0 > was {
            self.past.skip_the_dead(self.past.held_dead.0);
        }
        group.past = self.past.clone();
        group.dead = self.dead;
        group.position = self.position;
        group.forming = self.forming.take().map(|_| Forming::new());
        *self = group;
        Ok(())
    }

    /// The next incarnation of this host has to be above.
    #[must_use]
    pub fn above(&self) -> u32 {
        self.config.incarnation.max(self.past.held_dead.0)
    }

    /// To be called at each resend while in no group. See the first page: *Held dead*.
    pub(super) fn step_up(&mut self) {
        let incarnation = self.config.incarnation;
        let (dead, resends) = self.past.held_dead;
        if dead < incarnation {
            return;
        }
        self.past.held_dead.1 = resends + 1;
        if resends + 1 < LET_IN_RESENDS {
            return;
        }
        self.past.held_dead.1 = 0;
        self.excluded();
        // What this process holds it held as a member, so that it knows its numbers; those above its own are another's all the same.
        if dead > incarnation || self.past.held.is_none() {
            self.past.skip_the_dead(dead);
        }
    }

    /// What this process answers for: all its incarnations but the present one.
    fn claim(&self) -> Claim {
        let (over, held) = (self.config.incarnation - 1, self.past.held.clone());
        Claim { since: self.past.since, over, gave_up: self.past.gave_up, held }
    }

    /// What a host has said, as the incarnation that is up.
    fn claim_of(&self, host: u16) -> Option<&Claim> {
        let at = usize::from(host).checked_sub(1)?;
        let (by, claim) = self.past.claims.get(at)?.as_ref()?;
        (*by == self.up[at] && *by != 0).then_some(claim)
    }

    /// To be called at each resend while [`Standing::Leaving`]. See the first page: *Taken out*.
    pub(super) fn leave_on(&mut self) {
        let Some(without) = &self.past.without else { return };
        let lives = without.members().iter().filter(|member| !self.is_dead(member));
        let (view, to) = (without.clone(), lives.map(|member| member.host).collect());
        if HostSet::is_empty(to) {
            self.excluded();
        } else {
            self.say(to, Control::Out { view });
        }
    }

    /// To be called at each resend while in no group. See the first page: *Let in, and never welcomed*.
    pub(super) fn step_back(&mut self, lease: Lease) {
        let super::Config { me, incarnation, .. } = self.config;
        let is_mine = |view: &&View| view.holds(me, incarnation);
        let claims = (1..=MAX_HOSTS as u16).filter_map(|host| self.claim_of(host)?.held.as_ref());
        let claimed = claims.map(|held| &held.view).filter(is_mine).max_by_key(|view| view.number()).cloned();
        let waits = claimed.is_some() && !self.joining.is_welcomed() && !planted::is(Planted::AwaitsWelcome);
        self.past.let_in = if waits { self.past.let_in + 1 } else { 0 };
        let told = self.past.told_in.as_ref().filter(|(_, times)| *times >= LET_IN_RESENDS).map(|(view, _)| view);
        let can_welcome = |member: &Member| {
            let asks = self.past.joining[usize::from(member.host) - 1] == member.incarnation;
            member.host != me && !self.is_dead(member) && !asks
        };
        let is_left = |view: &&View| !view.members().iter().any(can_welcome);
        let told = told.filter(is_mine).filter(|_| lease.holds() && !planted::is(Planted::AwaitsTheLeaving));
        let told = told.filter(|_| !self.joining.is_welcomed()).filter(is_left);
        let claimed = claimed.filter(|_| self.past.let_in >= LET_IN_RESENDS);
        if let Some(view) = told.cloned().filter(|_| claimed.is_none()) {
            // Who has claimed something is heard of by others too.
            let is_gone = |member: &&Member| self.is_dead(member) && self.claim_of(member.host).is_none();
            let dead = view.members().iter().filter(is_gone).map(|member| member.host).collect();
            self.past.gave_up = Some(GaveUp { number: view.number(), was: incarnation, dead });
        } else if claimed.is_none() {
            return;
        }
        (self.past.let_in, self.past.told_in) = (0, None);
        self.excluded();
    }

    fn is_dead(&self, member: &Member) -> bool {
        self.dead.get(usize::from(member.host).wrapping_sub(1)).is_some_and(|dead| *dead >= member.incarnation)
    }

    /// To be called at each resend while in no group.
    pub(super) fn claim_on(&mut self, lease: Lease) {
        let claim = self.claim();
        if claim.held.is_none() && claim.over < claim.since {
            return;
        }
        let up = (1..).zip(&self.up).filter(|(_, up)| **up != 0).map(|(host, _)| host);
        let others = up.collect::<HostSet>().and(self.config.hosts);
        if !others.is_empty() {
            self.say(others, Control::Claim(claim));
        }
        if let Ok((view, first)) = self.found_again(lease)
            && first == self.config.me
        {
            self.joining.give_up(&mut self.transfers);
            self.past.forget();
            self.tail = Tail::new(self.position, self.config.tail_max);
            self.begin(view, self.position);
            self.pump();
        }
    }

    pub(super) fn claimed(&mut self, from: u16, sender: u32, claim: Claim) {
        if self.standing == Standing::Joining {
            self.past.claims[usize::from(from) - 1] = Some((sender, claim));
        }
    }

    /// The view with which the group would be founded again, and by whom; else the hosts whose word is missing.
    fn found_again(&self, lease: Lease) -> Result<(View, u16), HostSet> {
        let super::Config { me, incarnation, .. } = self.config;
        let mine = self.claim();
        let claims = |host: u16| if host == me { Some(&mine) } else { self.claim_of(host) };
        let held = (1..=MAX_HOSTS as u16).filter_map(|host| claims(host)?.held.as_ref());
        let Some(last) = held.max_by_key(|held| held.age()) else { return Err(HostSet::EMPTY) };
        let outlived = outlived((1..=MAX_HOSTS as u16).filter_map(|by| Some((by, claims(by)?.outlived(by, last)?))));
        let mut missing = HostSet::EMPTY;
        let mut most: Option<(u64, u16)> = None;
        for member in last.view.members() {
            if outlived.contains(member.host) {
                // Also if it answers: others may not hear it, and have to find the same.
                continue;
            }
            match claims(member.host).and_then(|claim| claim.answers(member.incarnation, last)) {
                Some(Answer::Holds(position)) if most.is_none_or(|(most, _)| position > most) => {
                    most = Some((position, member.host));
                }
                Some(_) => {}
                None if planted::is(Planted::FoundsFromSome) => {}
                None => missing.insert(member.host),
            }
        }
        // Who was told last may have been told that it is out.
        for host in (1..=MAX_HOSTS as u16).filter(|host| last.view.place(*host).is_none()) {
            let held = claims(host).and_then(|claim| claim.held.as_ref()).filter(|held| held.age() == last.age());
            if let Some(position) = held.and_then(|held| held.position)
                && most.is_none_or(|(most, _)| position > most)
            {
                most = Some((position, host));
            }
        }
        let next = last.view.number().checked_add(1);
        let view = next.and_then(|number| View::new(number, &[Member { host: me, incarnation }]).ok());
        match (view, most) {
            (Some(view), Some((_, first))) if missing.is_empty() && lease.holds() => Ok((view, first)),
            _ => Err(missing),
        }
    }

    /// Whether this host was excluded and keeps what it has; then hosts without whose word the group is not founded again.
    #[must_use]
    pub fn holds_for(&self) -> Option<HostSet> {
        self.past.held.as_ref().filter(|held| self.standing == Standing::Joining && held.position.is_some())?;
        Some(self.found_again(Lease { now_ns: 0, until_ns: 1 }).err().unwrap_or(HostSet::EMPTY))
    }
}
