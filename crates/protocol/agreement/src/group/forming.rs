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
//! somebody had not heard before it died may have begun with others, and without this process: all wait, unless there are first processes.
//!
//! **First processes.** P is the first process of its host in this group, was never shut out, and holds a lease. Then no decision was told to
//! anybody. Whoever begins a view of their own has heard of each host that a process of it has promised, or has died. P has not died: nobody
//! holds dead who has a lease. No other process of its host has died, as there was none. So P is in every view that was begun. P has begun
//! none, and without P nothing is decided, so that no view followed any of these either. So P may begin without a host that has died, whether it
//! heard it or not. (A founder that is a first process itself leaves out only hosts of which a process has died, and their later processes
//! are no first ones.) What P begins has a later ballot than those that died: P had promised theirs.
//!
//! P knows what it was by its host's record, which is stored before anybody hears of a process. That a record was lost can only be seen late: one
//! that lost it could found another group while those who have the first one die unheard. So more than half of all hosts have to be
//! there with their first processes. The founder is one of them; one that is none passes on to the next. The word of the others
//! alone is not enough for it: one of them may have been shut out meanwhile, and others have gone on without it.
//!
//! **Why a record.** Hosts that all have died and come back would found the group anew, without what had been decided. Whoever has
//! stored that there was one only joins ([`Group::join`]). If that is true of all of them, and they have died as processes, the group is
//! lost, and a person has to say so by removing the records while none runs. Those that were only excluded found it again
//! ([`super::holding`]).

use fide_types::{
    HostSet, MAX_HOSTS,
    planted::{self, Planted},
};

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
    /// It has promised this ballot, and is the first process of its host or not.
    Present(u32, bool),
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
    /// This incarnation is the first that its host ever was in this group.
    pub(super) is_first: bool,
    /// By id-1: which incarnation has said that it forms no group; 0 for none.
    recorded: [u32; MAX_HOSTS],
}

impl Forming {
    pub(super) fn new() -> Self {
        let answers = vec![(0, Answer::Nothing); MAX_HOSTS].into_boxed_slice();
        let is_first = planted::is(Planted::TakesEachForFirst);
        Self { ballot: 0, answers, best: None, begins: None, is_first, recorded: [0; MAX_HOSTS] }
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

    /// No process of this host was ever a member of this group, or wanted to be one: nothing is stored of one. To be called when it is made, and
    /// changes nothing but after [`Group::form`].
    pub fn is_first_of_its_host(&mut self) {
        self.forming.iter_mut().for_each(|forming| forming.is_first = true);
    }

    /// Hosts that are there as the first that they ever were in this group, if they are more than half of [`Config::hosts`]; else none. See the first
    /// page: *First processes*.
    pub fn first_processes(&self) -> HostSet {
        let Some(forming) = &self.forming else { return HostSet::EMPTY };
        let Config { me, hosts, .. } = self.config;
        let is_first = |host: &u16| {
            let at = usize::from(*host) - 1;
            let (by, answer) = forming.answers[at];
            let other = by != 0 && by == self.up[at] && matches!(answer, Answer::Present(_, true));
            if *host == me { forming.is_first } else { other }
        };
        let firsts: HostSet = hosts.iter().filter(is_first).collect();
        if 2 * firsts.len() > hosts.len() { firsts } else { HostSet::EMPTY }
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
        let firsts = self.first_processes();
        let (up, dead) = (&self.up, &self.dead);
        let Some(forming) = self.forming.as_mut().filter(|forming| forming.begins.is_none() && lease.holds()) else {
            return;
        };
        let (recorded, is_first) = (forming.recorded, forming.is_first);
        let best = forming.best.as_ref().map(|(_, view)| view);
        // It has died. Where its host is up again, it says now that it forms no group: else it is to answer again, as it would found another
        // group without those who have not waited for it.
        let is_over = |host: u16| {
            let at = usize::from(host) - 1;
            if up[at] == 0 {
                // It is in the view that others have begun, so that it is another one than has died: one that was not heard yet.
                let is_unknown = best.and_then(|view| view.incarnation(host)).is_some_and(|member| member > dead[at]);
                return dead[at] != 0 && (!is_unknown || planted::is(Planted::AsksOnlyTheKnown));
            }
            let forms_none = recorded[at] == up[at] || planted::is(Planted::TakesTheReturned);
            forms_none && !planted::is(Planted::WaitsForTheRecorded)
        };
        let answer = |host: u16| forming.answers[usize::from(host) - 1];
        let lives = |host: u16| up[usize::from(host) - 1] == answer(host).0 && answer(host).0 != 0;
        let has_begun = |host: u16| lives(host) && answer(host).1 == Answer::Begun;
        // Not for ever: this host is not gone, and has not begun.
        let founder = loop {
            let Some(founder) = founder(hosts, forming.ballot) else { return };
            if founder == me || !is_over(founder) && !has_begun(founder) {
                break founder;
            }
            forming.ballot += 1;
        };
        let ballot = forming.ballot;
        let others = hosts.minus(HostSet::from_iter([me]));
        let present =
            |host: &u16| lives(*host) && matches!(answer(*host).1, Answer::Present(promised, _) if promised == ballot);
        // Before it died.
        let was_heard = |host: u16| {
            let (at, of) = (usize::from(host) - 1, answer(host).0);
            if up[at] == 0 { of == dead[at] || planted::is(Planted::TakesTheGone) } else { of != 0 && of <= dead[at] }
        };
        let answered = |host: u16, all_heard: bool| {
            let gone = is_over(host) && (all_heard || was_heard(host));
            let unheard = planted::is(Planted::FoundsWithout) && up[usize::from(host) - 1] == 0;
            gone || unheard || present(&host) || has_begun(host)
        };
        let nothing_was_told = firsts.contains(me);
        if founder == me && others.iter().all(|host| answered(host, nothing_was_told)) {
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
        // One of those can begin where this one cannot.
        let passes = founder == me && !firsts.is_empty() && !is_first && others.iter().all(|host| answered(host, true));
        forming.ballot += u32::from(passes);
        let ballot = forming.ballot;
        self.say(others, Control::Present { ballot, is_first });
    }

    pub(super) fn presented(&mut self, from: u16, incarnation: u32, ballot: u32, is_first: bool) {
        if let Some(forming) = self.forming.as_mut().filter(|forming| forming.begins.is_none()) {
            forming.ballot = forming.ballot.max(ballot);
            forming.answers[usize::from(from) - 1] = (incarnation, Answer::Present(ballot, is_first));
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
        // What was stored of another process of this host was lost.
        forming.is_first &= view.holds(me, incarnation);
        if has_begun {
            forming.answers[usize::from(from) - 1] = (sender, Answer::Begun);
        }
        if forming.best.as_ref().is_none_or(|(best, _)| ballot > *best) {
            forming.best = Some((ballot, view));
        }
    }
}
