// SPDX-License-Identifier: Apache-2.0
//! Founding a group: the listed hosts do it by themselves, once.
//!
//! Every host that is in no group promises to follow one host, the founder of the highest ballot that it has
//! heard of, and tells all hosts (`present`). A host that has begun a view answers with that view (`begin`).
//! A founder begins once all hosts of the list have answered it (a dead host counts if it answered while it
//! lived): with the view that it heard of, if any, and otherwise with a new view of all live hosts that
//! are present. First it stores that there is a group. So all hosts of the list have to be up once.
//!
//! **Why at most one group** (this is Paxos with all live hosts as the quorum). A host that has promised a
//! ballot takes no view of a lower one. A view of a lower ballot lives on in a host that has begun it, which
//! tells the founder. If all of those are dead before they could tell the founder, no decision of that view
//! was delivered to anybody, as nothing is decided without all live members: the later founder is one of
//! them, as a host to which it was present begins nothing without it. What a dead founder sent, and nobody
//! has taken yet, comes too late.
//!
//! **No welcome to a first view.** A host that founds begins a first view in two ways only: as its founder, or by
//! `begin`, which has the ballot. A member of a first view sends a welcome ([`super::joining`]) to every member of
//! that view that asks to join, also to one that has promised a higher ballot since. A welcome has no ballot, so
//! that promise would be broken. The founder of the higher ballot would begin another view with this host, and
//! both views would live. At best both wait for ever. But messages of the protocol have only the number of
//! their view, which is 1 in both. Two hosts that have the same places in both views would take each other's
//! messages, and each view could decide something else. The host loses nothing by the rule: the member that
//! would send a welcome answers its `present` with `begin`. If its promise is higher, it has to refuse that view;
//! the founder of the higher ballot hears of the view and takes it over, or knows that its members are dead. A
//! welcome to a later view breaks no promise: all live members had begun the first view before it was
//! decided.
//!
//! **Ballots order first views.** Of two first views that were begun, a decision may have been delivered only
//! in the one of the higher ballot ([`super::refounding`] relies on this). It holds because all hosts have
//! answered in every ballot of a view: the ballot's founder asks all, takes over a view that lives, and
//! begins another one otherwise. Two rules follow.
//!
//! - A host that has begun a view tells it with the ballot with which the view was begun, also to hosts that
//!   have promised a higher ballot and cannot take the view then, and also if the higher ballot is its own:
//!   hosts that have not promised the higher ballot could begin another view in between, when this host is
//!   excluded. For that reason the founder also asks a member that it knows from the view only.
//! - A founder that has begun counts as gone for the hosts that cannot take its view: the next founder asks
//!   all again, and tells the view that it hears of in its own ballot.
//!
//! **A founder dies.** The next ballot belongs to the next host in the list. A host that comes back has lost
//! its promises. It is another incarnation, which is in no earlier view. There are three cases:
//!
//! - It had stored a record. Then it founds no group, and says so (`recorded`). What its former incarnation
//!   said while it lived counts, as if the host had stayed away.
//! - It has no record. Then it is waited for: it may have heard that the others are in no group, and would
//!   found one without them when they are gone. So they begin nothing without it. This includes a process that
//!   is up and has not been heard yet, whose incarnation is not known.
//! - A process that some host had not heard before it died may have begun a view with others, and without
//!   that host. Then all wait, with two exceptions: there are first processes, or a host lives that has begun the
//!   view that the founder heard of. The founder of another view would have had to ask that host, and would have
//!   taken over its view instead: nothing was delivered in another one.
//!
//! **First processes.** Let P be the first process of its host in this group, never excluded, and holding a
//! lease. Then no decision was delivered to anybody:
//!
//! - Whoever begins a view of its own has heard, of each host, that a process of it has promised or has died.
//!   P has not died, as no host can be declared dead while it holds a lease. No other process of P's host has
//!   died, as there was none. So P is in every view that was begun.
//! - P has begun none of them, and nothing is decided without P. So no view followed any of these views
//!   either.
//!
//! Therefore P may begin without a host that has died, whether or not P heard it. (A founder that is a first
//! process itself leaves out only hosts of which a process has died, and the later processes of these hosts
//! are no first ones.) What P begins has a later ballot than the views that died: P had promised their
//! ballots.
//!
//! P knows that it is the first by its host's record, which is stored before anybody hears of a process. That
//! a record was lost can be seen only late: a host that lost its record could found another group while the
//! members of the first one die unheard. So more than half of all hosts have to be up with their first
//! processes, and the founder has to be one of them; a founder that is not passes the ballot on. The word of
//! the others alone is not enough for it: one of them may have been excluded meanwhile, and others have gone
//! on without it. A host that has the state of a group, in memory or on its disk, and waits for others, says so
//! instead of `recorded`: it is waited for, and whoever hears it holds itself for no first process any more.
//!
//! **What this assumes.** A founder that hears of a host's death has heard before of every process that the dead
//! host knew. Otherwise this could happen, which nothing here prevents: a process of host A dies without a
//! record. Its successor begins a view with hosts B and C. C, which founded that view, dies at once. B, which
//! has not begun that view, hears of C's death before it hears that A is up again, and begins alone.
//!
//! **Why a record.** Hosts that all died and come back would found the group anew, without what had been
//! decided. So a host that has stored that there was a group only joins ([`Group::join`]). If this is true of
//! all hosts, and they died as processes, the group is lost, and a person has to say so by removing the
//! records while no member runs. Hosts that were only excluded found the group again ([`super::refounding`]).

use fide_types::{
    HostId, HostSet, MAX_HOSTS, PerHost,
    planted::{self, Planted},
};

use super::{Config, Group, Standing, claim::Membership, control::Control, durable::ToStore, liveness::Liveness};
use crate::{
    Start,
    lease::Lease,
    view::{View, ViewMember},
};

/// What a host has said to this founder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reply {
    Nothing,
    /// It has promised this ballot, and is the first process of its host or not.
    Present {
        ballot: u32,
        is_first: bool,
    },
    Begun,
}

/// What a host in no group knows while the group is founded.
#[derive(Debug, Clone)]
pub(super) struct Forming {
    /// Promised: no view of a lower one is taken.
    ballot: u32,
    /// The last reply of each host, and the incarnation that gave it; 0 for none.
    replies: PerHost<(u32, Reply)>,
    /// Of the views that others have begun, the one of the highest ballot.
    best: Option<(u32, View)>,
    /// Begins as soon as it is stored.
    begins: Option<View>,
    /// This process is the first one of its host in this group.
    is_first: bool,
    /// The incarnation of each host that said that it founds no group; 0 for none.
    recorded: PerHost<u32>,
}

/// What a founder does next.
enum Step {
    /// Waits until `begins` is stored.
    Begins,
    /// Nothing: there are no hosts.
    Nothing,
    /// Tells the hosts that follow it a view that it is not in itself. It joins that group later.
    TellsView { to: HostSet, ballot: u32, view: View },
    /// Tells all hosts which ballot it has promised.
    IsPresent { ballot: u32 },
}

impl Forming {
    fn new() -> Self {
        Self {
            ballot: 0,
            replies: PerHost::new(MAX_HOSTS, |_| (0, Reply::Nothing)),
            best: None,
            begins: None,
            is_first: planted::is(Planted::TakesEachForFirst),
            recorded: PerHost::new(MAX_HOSTS, |_| 0),
        }
    }

    /// Whether a host has replied as the incarnation that is up.
    fn has_live_reply(&self, host: HostId, liveness: &Liveness) -> bool {
        let (by, _) = self.replies[host];
        by != 0 && by == liveness.up(host)
    }

    fn has_begun(&self, host: HostId, liveness: &Liveness) -> bool {
        self.has_live_reply(host, liveness) && self.replies[host].1 == Reply::Begun
    }

    /// Whether a host has promised the present ballot.
    fn is_present(&self, host: HostId, liveness: &Liveness) -> bool {
        let has_promised = matches!(self.replies[host].1, Reply::Present { ballot, .. } if ballot == self.ballot);
        has_promised && self.has_live_reply(host, liveness)
    }

    fn is_first(&self, host: HostId, liveness: &Liveness) -> bool {
        let is_first = matches!(self.replies[host].1, Reply::Present { is_first: true, .. });
        is_first && self.has_live_reply(host, liveness)
    }

    /// Whether a host has died. If it is up again, it has to have said that it founds no group: otherwise it
    /// has to reply again, as it would found another group without the hosts that have not waited for it.
    fn is_over(&self, host: HostId, liveness: &Liveness) -> bool {
        let (up, dead) = (liveness.up(host), liveness.dead(host));
        if liveness.is_unsure(host) && !planted::is(Planted::OverlooksTheUnsure) {
            // Another process of it is up, and may be in a view with others by now.
            return false;
        }
        if up == 0 {
            // In the view that others have begun it is a later incarnation than has died: one that was not
            // heard yet.
            let member = self.best.as_ref().and_then(|(_, view)| view.incarnation(host));
            let is_unheard = member.is_some_and(|member| member > dead);
            return dead != 0 && (!is_unheard || planted::is(Planted::AsksOnlyTheKnown));
        }
        let founds_none = self.recorded[host] == up || planted::is(Planted::TakesTheReturned);
        founds_none && !planted::is(Planted::WaitsForTheRecorded)
    }

    /// Whether the incarnation of a host that has died had replied before.
    fn was_heard(&self, host: HostId, liveness: &Liveness) -> bool {
        let (by, dead) = (self.replies[host].0, liveness.dead(host));
        if liveness.up(host) == 0 { by == dead || planted::is(Planted::TakesTheGone) } else { by != 0 && by <= dead }
    }

    /// Whether this founder need not wait for a host. `unheard_count`: hosts that died unheard need not be
    /// waited for.
    fn is_settled(&self, host: HostId, unheard_count: bool, liveness: &Liveness) -> bool {
        let is_gone = self.is_over(host, liveness) && (unheard_count || self.was_heard(host, liveness));
        let is_skipped = planted::is(Planted::FoundsWithout) && liveness.up(host) == 0;
        is_gone || is_skipped || self.is_present(host, liveness) || self.has_begun(host, liveness)
    }

    /// Goes on to the first ballot whose founder is this host, or may still found the group. The loop ends,
    /// as this host is not gone and has begun nothing.
    fn skip_founders(&mut self, me: u16, hosts: HostSet, liveness: &Liveness) -> Option<u16> {
        loop {
            let founder = founder(hosts, self.ballot)?;
            if founder == me || !self.is_over(founder, liveness) && !self.has_begun(founder, liveness) {
                return Some(founder);
            }
            self.ballot += 1;
        }
    }

    /// `firsts`: the hosts that are up with their first processes, if they are enough.
    fn step<S>(&mut self, config: &Config<S>, firsts: HostSet, liveness: &Liveness) -> Step {
        let (me, incarnation, hosts) = (config.me, config.incarnation, config.hosts);
        let others = hosts.minus(HostSet::only(me));
        let Some(founder) = self.skip_founders(me, hosts, liveness) else { return Step::Nothing };
        let all_settled =
            |forming: &Self, unheard_count| others.iter().all(|host| forming.is_settled(host, unheard_count, liveness));
        let nothing_was_delivered = firsts.contains(me);
        // Nothing was delivered in any other view.
        let best_lives = self.best.as_ref().is_some_and(|(_, view)| {
            let has_begun = |host| self.has_begun(host, liveness) && view.holds(host, self.replies[host].0);
            others.iter().any(has_begun)
        });
        if founder == me && all_settled(self, nothing_was_delivered || best_lives) {
            let present: HostSet = others.iter().filter(|host| self.is_present(*host, liveness)).collect();
            match &self.best {
                Some((_, view)) if view.holds(me, incarnation) => self.begins = Some(view.clone()),
                Some((_, view)) => {
                    return Step::TellsView { to: present, ballot: self.ballot, view: view.clone() };
                }
                None => {
                    let member = |host| ViewMember { host, incarnation: self.replies[host].0 };
                    let mut members = vec![ViewMember { host: me, incarnation }];
                    members.extend(present.iter().map(member));
                    self.begins = View::new(1, &members).ok();
                }
            }
            return Step::Begins;
        }
        // A first process can begin where this one cannot.
        let passes_on = founder == me && !firsts.is_empty() && !self.is_first && all_settled(self, true);
        self.ballot += u32::from(passes_on);
        Step::IsPresent { ballot: self.ballot }
    }
}

/// The founder of a ballot.
fn founder(hosts: HostSet, ballot: u32) -> Option<u16> {
    hosts.iter().nth(ballot as usize % hosts.len().max(1))
}

/// What a host knows of the founding of its group.
#[derive(Debug, Clone, Default)]
pub(super) struct Founding {
    /// None where the group certainly exists.
    forming: Option<Forming>,
    /// The ballot with which the first view was begun; 0 for a view that was given.
    ballot: u32,
    /// Hosts that said since the last resend that they are in no group.
    present: HostSet,
}

impl Founding {
    fn start() -> Self {
        Self { forming: Some(Forming::new()), ..Self::default() }
    }

    /// For the next incarnation of this host, if it has not become a member: its promises are void.
    pub(super) fn restart(&self) -> Self {
        if self.forming.is_some() { Self::start() } else { Self::default() }
    }

    /// The group exists.
    pub(super) fn end(&mut self) {
        self.forming = None;
    }

    /// The ballot with which the first view was begun; 0 for a view that was given.
    pub(super) fn ballot(&self) -> u32 {
        self.ballot
    }

    /// Whether a welcome to this view is refused. See the module's text: *No welcome to a first view*.
    pub(super) fn refuses_welcome_to(&self, view: &View) -> bool {
        view.number() == 1 && self.forming.is_some() && !planted::is(Planted::EntersByWelcome)
    }

    /// While the group is founded, and before this host waits for its record.
    fn undecided(&mut self) -> Option<&mut Forming> {
        self.forming.as_mut().filter(|forming| forming.begins.is_none())
    }

    #[cfg(test)]
    pub(super) fn promise(&mut self, ballot: u32) {
        self.forming.as_mut().unwrap().ballot = ballot;
    }

    #[cfg(test)]
    pub(super) fn set_ballot(&mut self, ballot: u32) {
        self.ballot = ballot;
    }

    #[cfg(test)]
    pub(super) fn is_first(&self) -> bool {
        self.forming.as_ref().unwrap().is_first
    }
}

impl<P: Start> Group<P> {
    /// A host that founds the group together with the other hosts of [`Config::hosts`], or is let in if there
    /// is a group already. For a host without a record of a group ([`Group::poll_record`]).
    ///
    /// # Errors
    /// [`super::GroupError`].
    pub fn form(config: Config<P::Setting>) -> Result<Self, super::GroupError> {
        let mut group = Self::join(config)?;
        group.founding = Founding::start();
        Ok(group)
    }

    /// Whether this founder has ever heard that `host` founds the group too. If not, it waits for that host
    /// even once it is dead: it may have begun with others.
    pub fn has_heard_founding(&self, host: HostId) -> bool {
        let reply = self.founding.forming.as_ref().and_then(|forming| forming.replies.get(host));
        reply.is_some_and(|(by, _)| *by != 0)
    }

    /// Declares that no process of this host was ever a member of this group, or wanted to be one: nothing is
    /// stored of one. To be called when the group is made; it changes something only after [`Group::form`].
    pub fn set_first_process(&mut self) {
        if let Some(forming) = &mut self.founding.forming {
            forming.is_first = true;
        }
    }

    /// Hosts that are up with their first process in this group, if these are more than half of
    /// [`Config::hosts`]; otherwise none. See the module's text: *First processes*.
    pub fn first_processes(&self) -> HostSet {
        let Some(forming) = &self.founding.forming else { return HostSet::EMPTY };
        let Config { me, hosts, .. } = self.config;
        let is_first = |host: &HostId| {
            if *host == me { forming.is_first } else { forming.is_first(*host, &self.liveness) }
        };
        let firsts: HostSet = hosts.iter().filter(is_first).collect();
        if 2 * firsts.len() > hosts.len() { firsts } else { HostSet::EMPTY }
    }

    /// The view of a group that is about to begin with this host in it. The host has to store that there is a
    /// group, so that this outlives the process, and then to call [`Group::recorded`].
    #[must_use]
    pub fn poll_record(&self) -> Option<&View> {
        self.founding.forming.as_ref().filter(|_| !self.standing.is_over())?.begins.as_ref()
    }

    /// With [`Group::poll_record`], where decisions are stored: to be stored before the record, so that a host
    /// on record knows what it was a member of.
    #[must_use]
    pub fn poll_store_first(&self) -> Option<ToStore<'_>> {
        let (view, ballot) = (self.poll_record()?, self.founding.forming.as_ref()?.ballot);
        Some(ToStore::Member { incarnation: self.config.incarnation, ballot, view, start: 0 })
    }

    /// The group of [`Group::poll_record`] is on record.
    pub fn recorded(&mut self) {
        if self.standing.is_over() {
            return;
        }
        let forming = self.founding.forming.take_if(|forming| forming.begins.is_some());
        let Some(Forming { ballot, begins: Some(view), .. }) = forming else { return };
        self.founding.ballot = ballot;
        self.joining.give_up(&mut self.transfers);
        self.begin(view, 0);
        self.pump();
    }

    /// To be called at each resend while in no group.
    pub(super) fn go_on_founding(&mut self, lease: Lease) {
        let firsts = self.first_processes();
        let Some(forming) = self.founding.undecided().filter(|_| lease.holds()) else { return };
        let is_first = forming.is_first;
        match forming.step(&self.config, firsts, &self.liveness) {
            Step::Begins | Step::Nothing => {}
            Step::TellsView { to, ballot, view } => self.say(to, Control::Begin { ballot, view }),
            Step::IsPresent { ballot } => {
                let others = self.config.hosts.minus(HostSet::only(self.config.me));
                self.say(others, Control::Present { ballot, is_first });
            }
        }
    }

    /// Of [`Control::Present`].
    pub(super) fn handle_present(&mut self, from: u16, incarnation: u32, ballot: u32, is_first: bool) {
        if let Some(forming) = self.founding.undecided() {
            forming.ballot = forming.ballot.max(ballot);
            forming.replies[from] = (incarnation, Reply::Present { ballot, is_first });
        } else if self.standing == Standing::Joining && self.founding.forming.is_none() {
            // With a state to go on from it says that at each resend, and nobody founds a group without it.
            let keeps = self.past.membership().is_some_and(Membership::proves_a_group);
            if !keeps || planted::is(Planted::FoundsBesideAState) {
                self.say(HostSet::only(from), Control::Recorded);
            }
        } else {
            self.founding.present.insert(from);
            if planted::is(Planted::RaisesItsBallot) && founder(self.config.hosts, ballot) == Some(self.config.me) {
                self.founding.ballot = self.founding.ballot.max(ballot);
            }
        }
    }

    /// Of [`Control::Recorded`].
    pub(super) fn handle_recorded(&mut self, from: u16, incarnation: u32) {
        if let Some(forming) = &mut self.founding.forming {
            forming.recorded[from] = incarnation;
        }
    }

    /// A host claims to have been a member of a group in which something was decided. So a record was lost here if
    /// there is none.
    pub(super) fn note_group(&mut self) {
        if let Some(forming) = &mut self.founding.forming
            && !planted::is(Planted::FoundsBesideAState)
        {
            forming.is_first = false;
        }
    }

    /// To be called at each resend: a member of the first view tells it to hosts that are in no group.
    pub(super) fn tell_first_view(&mut self, lease: Lease) {
        let to = std::mem::take(&mut self.founding.present);
        if to.is_empty() {
            return;
        }
        let Some(view) = self.view().filter(|view| view.number() == 1 && lease.holds()).cloned() else { return };
        self.say(to, Control::Begin { ballot: self.founding.ballot, view });
    }

    /// Of [`Control::Begin`]. `has_begun`: the sender has begun that view. A founder also tells a view that
    /// others have begun.
    pub(super) fn handle_begin(&mut self, from: u16, sender: u32, has_begun: bool, ballot: u32, view: View) {
        let is_in = view.holds(self.config.me, self.config.incarnation);
        let Some(forming) = self.founding.undecided().filter(|_| view.number() == 1) else { return };
        if ballot >= forming.ballot && is_in {
            forming.ballot = ballot;
            forming.begins = Some(view);
            return;
        }
        // If this process is not in the view, the record of an earlier process of this host was lost.
        forming.is_first &= is_in;
        if has_begun {
            forming.replies[from] = (sender, Reply::Begun);
        }
        if forming.best.as_ref().is_none_or(|(best, _)| ballot > *best) {
            forming.best = Some((ballot, view));
        }
    }
}
