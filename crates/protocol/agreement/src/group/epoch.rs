// SPDX-License-Identifier: Apache-2.0
//! A protocol among the members of one view.

use fide_types::{
    HostSet, MAX_HOSTS,
    planted::{self, Planted},
};

use crate::{Start, view::View};

/// Who has heard nothing for so many resends asks the others whether the view is still theirs.
const QUIET_RESENDS: u32 = 16;

/// Most resends of the group from one of the protocol to the next. What a slow member takes longer for than it takes to come would keep it busy
/// with repetitions for ever.
const APART_MAX: u32 = 16;

/// The log from one change of members to the next.
#[derive(Debug, Clone)]
pub(super) struct Epoch<P> {
    pub(super) protocol: P,
    pub(super) view: View,
    /// The last position before it.
    pub(super) start: u64,
    /// This host's.
    place: u16,
    /// Places of those who are known to have crashed.
    dead: HostSet,
    /// By place - 1: whom that member has said to hold dead.
    known: Box<[HostSet]>,
    /// Places of those who are in and still ask for the state.
    stateless: HostSet,
    /// Resends since anything was heard of these members.
    quiet: u32,
    /// Resends of the group from one of the protocol to the next: twice as many each time that something had to be sent again, half as many
    /// each time that nothing had. And how many there were since.
    apart: u32,
    waited: u32,
}

impl<P: Start> Epoch<P> {
    /// `me` is a member of the view.
    pub(super) fn new(setting: &P::Setting, view: View, me: u16, start: u64) -> Result<Self, P::Error> {
        let place = view.place(me).unwrap_or(1);
        let protocol = P::start(setting, place, HostSet::first(view.members().len()))?;
        let known = vec![HostSet::EMPTY; MAX_HOSTS].into_boxed_slice();
        Ok(Self {
            protocol,
            view,
            start,
            place,
            dead: HostSet::EMPTY,
            known,
            stateless: HostSet::EMPTY,
            quiet: 0,
            apart: 1,
            waited: 0,
        })
    }

    pub(super) fn leads(&self) -> bool {
        self.protocol.leader() == self.place
    }

    /// A host.
    pub(super) fn leader(&self) -> Option<u16> {
        Some(self.view.member(self.protocol.leader())?.host)
    }

    /// Places.
    pub(super) fn alive(&self) -> HostSet {
        HostSet::first(self.view.members().len()).minus(self.dead)
    }

    pub(super) fn dead(&self) -> HostSet {
        self.dead
    }

    pub(super) fn others(&self) -> HostSet {
        self.alive().minus(HostSet::from_iter([self.place]))
    }

    /// This incarnation, or a later one, is dead: is that news of a member?
    pub(super) fn crashed(&mut self, host: u16, incarnation: u32) {
        let Some(place) = self.view.place(host) else { return };
        let is_it = |member: u32| member <= incarnation || planted::is(Planted::CrashesTheLater);
        let dead = self.view.incarnation(host).is_some_and(is_it);
        if dead && place != self.place && !self.dead.contains(place) {
            self.dead.insert(place);
            self.protocol.crashed(place);
            // It may have been for that one.
            self.apart = 1;
        }
    }

    /// To be called at each resend of the group.
    pub(super) fn resend(&mut self) {
        self.waited += 1;
        if self.waited < self.apart {
            return;
        }
        let again = self.protocol.resend() && !planted::is(Planted::NeverSlows);
        self.waited = 0;
        self.apart = if again { (2 * self.apart).min(APART_MAX) } else { (self.apart / 2).max(1) };
    }

    /// The protocol has a message of one of these members: it has the state.
    pub(super) fn heard(&mut self, place: u16) {
        self.quiet = 0;
        self.stateless.remove(place);
    }

    /// A member asks for the state: is it for this one to give it? It is the most senior of those who live and have it.
    pub(super) fn gives_state(&mut self, asks: u16) -> bool {
        self.stateless.insert(asks);
        self.alive().minus(self.stateless).iter().next() == Some(self.place)
    }

    /// To be asked once for each resend: was nothing heard for so long that the others may have gone on without this member?
    pub(super) fn is_quiet(&mut self) -> bool {
        self.quiet += 1;
        let quiet = self.quiet >= QUIET_RESENDS;
        if quiet {
            self.quiet = 0;
        }
        quiet
    }

    /// A member has said whom it holds dead; those of them that were not known here.
    pub(super) fn note_dead(&mut self, from: u16, places: HostSet) -> HostSet {
        let Some(place) = self.view.place(from) else { return HostSet::EMPTY };
        self.heard(place);
        self.known[usize::from(place) - 1] = places;
        places.and(self.others())
    }

    /// Hosts that have not said that they know whom this member holds dead.
    pub(super) fn untold(&self) -> Option<HostSet> {
        let lacks = |place: &u16| !self.dead.minus(self.known[usize::from(*place) - 1]).is_empty();
        let places: HostSet = self.others().iter().filter(lacks).collect();
        (!places.is_empty()).then(|| self.view.hosts_of(places))
    }
}
