// SPDX-License-Identifier: Apache-2.0
//! How hosts found a group: by themselves, once, of those who are there.
//!
//! Everybody who is in no group promises to follow one host, the founder of the highest ballot it has heard of, and tells all
//! (`present`). Whoever has begun answers with the view (`begin`). A founder that all hosts of the list have answered, dead ones while they
//! lived, begins: with the view that it was told of, if any; with a new one of all that live and are present otherwise. It stores that
//! there is a group first. So all hosts of the list have to be there once.
//!
//! **Why one group at most** (it is Paxos, with all that live for a quorum). Who has promised a ballot takes no view of a lower one. A
//! view of a lower ballot lives on in a host that has begun, and tells the founder. When all of those are dead before they could tell it,
//! nobody was told a decision of that view, as nothing is decided without all that live: the later founder is in it, as whoever has been
//! present to it begins nothing without it. What a dead founder has sent and nobody has taken yet comes too late.
//!
//! **Ballots order first views.** Of two that were begun the one of the higher ballot is the one in which a decision may have been told
//! ([`super::holding`]). That is true because every ballot of a view is one that all had answered: a founder's, which asks all, takes over what
//! lives, and else begins another. So whoever has begun a view tells it with the ballot that it was begun with, also to those who have promised a
//! higher one and cannot take it then, also where that ballot is its own: those who have not promised that one could begin another view in
//! between when this host is shut out. For that also a member is asked that this founder knows from the view only. A founder that has begun counts for those as one that is gone: the next one asks all again, and
//! tells the view that it hears of in its own ballot.
//!
//! A founder dies: the next ballot is that of the next host in the list. A host that comes back has lost its promises, and is another
//! incarnation, which no view of before has in it. If it had stored a record it forms no group, and says so (`recorded`): what counts is
//! what its former incarnation had said while it lived, as if it had stayed away. Without a record it is waited for. It may have heard that
//! the others are in no group, and would found one without them when they are gone; so they begin nothing without it. A process that
//! nobody had heard before it died may have begun with others, and all wait.
//!
//! **Why a record.** Hosts that all have died and come back would found the group anew, without what had been decided. Whoever has
//! stored that there was one only joins ([`Group::join`]). If that is true of all of them, and they have died as processes, the group is
//! lost, and a person has to say so by removing the records while none runs. Those that were only excluded found it again
//! ([`super::holding`]).

use fide_detector::{
    HostSet,
    planted::{self, Planted},
};
use fide_wire::MAX_HOSTS;

use super::{Config, Group, Standing, control::Control};
use crate::{
    Start,
    lease::Lease,
    view::{Member, View},
};

/// What a host has said to this founder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Nothing,
    /// It has promised this ballot.
    Present(u32),
    Begun,
}

#[derive(Debug, Clone)]
pub(super) struct Forming {
    /// Promised: no view of a lower one is taken.
    pub(super) ballot: u32,
    /// By id-1: which incarnation has answered, and what.
    answers: Box<[(u32, Answer)]>,
    /// Of those that others have begun with, the one of the highest ballot.
    best: Option<(u32, View)>,
    /// Begun as soon as it is stored.
    begins: Option<View>,
    /// By id-1: which incarnation has said that it forms no group; 0 for none.
    recorded: [u32; MAX_HOSTS],
}

impl Forming {
    pub(super) fn new() -> Self {
        let answers = vec![(0, Answer::Nothing); MAX_HOSTS].into_boxed_slice();
        Self { ballot: 0, answers, best: None, begins: None, recorded: [0; MAX_HOSTS] }
    }
}

/// Who founds in this ballot.
fn founder(hosts: HostSet, ballot: u32) -> Option<u16> {
    hosts.iter().nth(ballot as usize % hosts.len().max(1))
}

impl<P: Start> Group<P> {
    /// A host that founds the group together with the others of [`Config::hosts`], or is let in if there is one already. For a host
    /// without a record of a group ([`Group::poll_record`]).
    ///
    /// # Errors
    /// [`super::GroupError`].
    pub fn form(config: Config<P::Setting>) -> Result<Self, super::GroupError> {
        let mut group = Self::join(config)?;
        group.forming = Some(Forming::new());
        Ok(group)
    }

    /// Has this founder ever heard that that host founds the group too? Without that it waits for it, also once it is dead: it may have
    /// begun with others.
    pub fn has_heard_founding(&self, host: u16) -> bool {
        let at = usize::from(host).wrapping_sub(1);
        self.forming.as_ref().and_then(|forming| forming.answers.get(at)).is_some_and(|answer| answer.0 != 0)
    }

    /// A group is about to begin, with this host in it. That there is one has to be stored, so that it outlives this host; then
    /// [`Group::recorded`] is called.
    #[must_use]
    pub fn poll_record(&self) -> Option<&View> {
        self.forming.as_ref().filter(|_| !self.standing.is_over())?.begins.as_ref()
    }

    /// The group of [`Group::poll_record`] is on record.
    pub fn recorded(&mut self) {
        if self.standing.is_over() {
            return;
        }
        let Some(Forming { ballot, begins: Some(view), .. }) = self.forming.take_if(|forming| forming.begins.is_some())
        else {
            return;
        };
        self.ballot = ballot;
        self.joining.give_up(&mut self.transfers);
        self.begin(view, 0);
        self.pump();
    }

    /// To be called at each resend while in no group.
    pub(super) fn form_on(&mut self, lease: Lease) {
        let Config { me, incarnation, hosts, .. } = self.config;
        let (up, dead) = (&self.up, &self.dead);
        let Some(forming) = self.forming.as_mut().filter(|forming| forming.begins.is_none() && lease.holds()) else {
            return;
        };
        // It has died. Where its host is up again, it has answered before and says now that it forms no group: else it is to answer again,
        // as it would found another group without those who have not waited for it.
        let recorded = forming.recorded;
        let best = forming.best.as_ref().map(|(_, view)| view);
        let is_over = |host: u16, answer: (u32, Answer)| {
            let at = usize::from(host) - 1;
            if up[at] == 0 {
                // It is in the view that others have begun, so that it is another one than has died: one that was not heard yet.
                let is_unknown = best.and_then(|view| view.incarnation(host)).is_some_and(|member| member > dead[at]);
                return dead[at] != 0 && (!is_unknown || planted::is(Planted::AsksOnlyTheKnown));
            }
            let forms_none = recorded[at] == up[at] || planted::is(Planted::TakesTheReturned);
            let was_heard = answer.0 != 0 && answer.0 <= dead[at];
            was_heard && forms_none && !planted::is(Planted::WaitsForTheRecorded)
        };
        let answer = |host: u16| forming.answers[usize::from(host) - 1];
        let lives = |host: u16| up[usize::from(host) - 1] == answer(host).0 && answer(host).0 != 0;
        let has_begun = |host: u16| lives(host) && answer(host).1 == Answer::Begun;
        // Not for ever: this host is not gone, and has not begun.
        let founder = loop {
            let Some(founder) = founder(hosts, forming.ballot) else { return };
            if founder == me || !is_over(founder, answer(founder)) && !has_begun(founder) {
                break founder;
            }
            forming.ballot += 1;
        };
        let ballot = forming.ballot;
        let others = hosts.minus(HostSet::from_iter([me]));
        let present = |host: &u16| lives(*host) && answer(*host).1 == Answer::Present(ballot);
        let answered = |host: u16| {
            let at = usize::from(host) - 1;
            let heard = up[at] != 0 || dead[at] == answer(host).0 || planted::is(Planted::TakesTheGone);
            let gone = is_over(host, answer(host)) && heard;
            let unheard = planted::is(Planted::FoundsWithout) && up[usize::from(host) - 1] == 0;
            gone || unheard || present(&host) || has_begun(host)
        };
        if founder == me && others.iter().all(answered) {
            match &forming.best {
                Some((_, view)) if view.holds(me, incarnation) => forming.begins = Some(view.clone()),
                // Not for this host, which joins it later; but who is in it follows this host.
                Some((_, view)) => {
                    let (to, view) = (others.iter().filter(present).collect(), view.clone());
                    self.say(to, Control::Begin { ballot, view });
                }
                None => {
                    let member = |host| Member { host, incarnation: answer(host).0 };
                    let members = others.iter().filter(present).map(member);
                    let members: Vec<Member> = [Member { host: me, incarnation }].into_iter().chain(members).collect();
                    forming.begins = View::new(1, &members).ok();
                }
            }
            return;
        }
        self.say(others, Control::Present { ballot });
    }

    pub(super) fn presented(&mut self, from: u16, incarnation: u32, ballot: u32) {
        if let Some(forming) = self.forming.as_mut().filter(|forming| forming.begins.is_none()) {
            forming.ballot = forming.ballot.max(ballot);
            forming.answers[usize::from(from) - 1] = (incarnation, Answer::Present(ballot));
        } else if self.standing == Standing::Joining && self.forming.is_none() {
            self.say(HostSet::from_iter([from]), Control::Recorded);
        } else {
            self.present.insert(from);
            if planted::is(Planted::RaisesItsBallot) && founder(self.config.hosts, ballot) == Some(self.config.me) {
                self.ballot = self.ballot.max(ballot);
            }
        }
    }

    pub(super) fn forms_none(&mut self, from: u16, incarnation: u32) {
        if let Some(forming) = &mut self.forming {
            forming.recorded[usize::from(from) - 1] = incarnation;
        }
    }

    /// To be called at each resend by those who have begun: others have not.
    pub(super) fn tell_of_the_first(&mut self, lease: Lease) {
        let to = std::mem::take(&mut self.present);
        if to.is_empty() {
            return;
        }
        let Some(view) = self.view().filter(|view| view.number() == 1 && lease.holds()).cloned() else { return };
        self.say(to, Control::Begin { ballot: self.ballot, view });
    }

    /// `has_begun`: it is in that view. A founder also tells a view of others.
    pub(super) fn begun(&mut self, from: u16, sender: u32, has_begun: bool, ballot: u32, view: View) {
        let Config { me, incarnation, .. } = self.config;
        let Some(forming) = self.forming.as_mut().filter(|forming| forming.begins.is_none() && view.number() == 1)
        else {
            return;
        };
        if ballot >= forming.ballot && view.holds(me, incarnation) {
            forming.ballot = ballot;
            forming.begins = Some(view);
            return;
        }
        if has_begun {
            forming.answers[usize::from(from) - 1] = (sender, Answer::Begun);
        }
        if forming.best.as_ref().is_none_or(|(best, _)| ballot > *best) {
            forming.best = Some((ballot, view));
        }
    }
}
