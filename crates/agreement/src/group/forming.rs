// SPDX-License-Identifier: Apache-2.0
//! How hosts found a group: by themselves, once, of those who are there.
//!
//! Everybody who is in no group promises to follow one host, the founder of the highest ballot it has heard of, and tells all
//! (`present`). A founder that every host of the list has promised, but for those that were present and have died since, begins: it
//! stores that there is a group, and then leads its first view. Whoever is present still is told of it by those who have begun
//! (`begin`). So all hosts of the list have to be there once.
//!
//! **Why one group at most.** Who has promised a ballot takes no view of a lower one. A view of a lower ballot lives on in a host
//! that has begun, which promises nothing any more: so no later founder has all promises while that host lives. When it is dead,
//! nobody was told a decision of that view, as nothing is decided without all that live: the later founder is in it, as whoever has
//! been present to it founds nothing without it. What a dead founder has sent and nobody has taken yet comes too late.
//!
//! A founder dies: the next ballot is that of the next host in the list. A host that comes back has lost its promises, and is another
//! incarnation, which no view of before has in it.
//!
//! **Why a record.** Hosts that all have died and come back would found the group anew, without what had been decided. Whoever has
//! stored that there was one only joins ([`Group::join`]). If that is true of all of them the group is lost, and a person has to
//! say so by removing the records while none runs.

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

#[derive(Debug, Clone)]
pub(super) struct Forming {
    /// Promised: no view of a lower one is taken.
    ballot: u32,
    /// By id-1: the incarnation that has promised, and which ballot.
    present: Box<[(u32, u32)]>,
    /// Begun as soon as it is stored.
    begins: Option<View>,
}

impl Forming {
    pub(super) fn new() -> Self {
        Self { ballot: 0, present: vec![(0, 0); MAX_HOSTS].into_boxed_slice(), begins: None }
    }
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

    /// A group is about to begin, with this host in it. That there is one has to be stored, so that it outlives this host; then
    /// [`Group::recorded`] is called.
    #[must_use]
    pub fn poll_record(&self) -> Option<&View> {
        self.forming.as_ref()?.begins.as_ref()
    }

    /// The group of [`Group::poll_record`] is on record.
    pub fn recorded(&mut self) {
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
        let list: Vec<u16> = hosts.iter().collect();
        let (up, dead) = (&self.up, &self.dead);
        let dead = |host: u16| if up[usize::from(host) - 1] == 0 { dead[usize::from(host) - 1] } else { 0 };
        let Some(forming) = self.forming.as_mut().filter(|forming| forming.begins.is_none() && lease.holds()) else {
            return;
        };
        // Not for ever: this host is not gone.
        let founder = loop {
            let Some(&founder) = list.get(forming.ballot as usize % list.len().max(1)) else { return };
            if founder == me || dead(founder) == 0 {
                break founder;
            }
            forming.ballot += 1;
        };
        let ballot = forming.ballot;
        let others = hosts.minus(HostSet::from_iter([me]));
        if founder == me {
            let gone = |host: u16| {
                let (incarnation, _) = forming.present[usize::from(host) - 1];
                incarnation != 0 && dead(host) == incarnation || planted::is(Planted::TakesTheGone) && dead(host) != 0
            };
            let present = |host: u16| {
                let at = usize::from(host) - 1;
                let (incarnation, promised) = forming.present[at];
                (incarnation != 0 && up[at] == incarnation && promised == ballot)
                    .then_some(Member { host, incarnation })
            };
            let unheard = |host: u16| planted::is(Planted::FoundsWithout) && up[usize::from(host) - 1] == 0;
            if others.iter().all(|host| gone(host) || unheard(host) || present(host).is_some()) {
                let members: Vec<Member> =
                    [Member { host: me, incarnation }].into_iter().chain(others.iter().filter_map(present)).collect();
                forming.begins = View::new(1, &members).ok();
                return;
            }
        }
        self.say(others, Control::Present { ballot });
    }

    pub(super) fn presented(&mut self, from: u16, incarnation: u32, ballot: u32) {
        if let Some(forming) = self.forming.as_mut().filter(|forming| forming.begins.is_none()) {
            forming.ballot = forming.ballot.max(ballot);
            forming.present[usize::from(from) - 1] = (incarnation, ballot);
            return;
        }
        let first = self.view().filter(|view| view.number() == 1 && view.holds(from, incarnation));
        if let Some(view) = first.cloned().filter(|_| self.standing == Standing::Member) {
            self.say(HostSet::from_iter([from]), Control::Begin { ballot: self.ballot, view });
        }
    }

    pub(super) fn begun(&mut self, ballot: u32, view: View) {
        let Config { me, incarnation, .. } = self.config;
        let fits = view.number() == 1 && view.holds(me, incarnation);
        let forming = self.forming.as_mut().filter(|forming| forming.begins.is_none() && ballot >= forming.ballot);
        if let Some(forming) = forming.filter(|_| fits) {
            forming.ballot = ballot;
            forming.begins = Some(view);
        }
    }
}
