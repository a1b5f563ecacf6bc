// SPDX-License-Identifier: Apache-2.0
//! A protocol among the members of one view.

use fide_types::{
    HostId, HostSet, MAX_HOSTS, PerHost,
    planted::{self, Planted},
};

use crate::{Start, view::View};

/// Resends without a message from any member of the view, after which this member asks the others whether the
/// view is still current.
const QUIET_RESENDS: u32 = 16;

/// Most resends of the group from one resend of the protocol to the next. Without this backoff, a member that
/// needs longer to take messages than the messages take to arrive would be kept busy with repetitions for
/// ever.
const BACKOFF_MAX: u32 = 16;

/// The log from one change of members to the next. The protocol knows members by their place in the view.
#[derive(Debug, Clone)]
pub(super) struct Epoch<P> {
    pub(super) protocol: P,
    pub(super) view: View,
    /// The last position before this epoch.
    pub(super) start: u64,
    /// This host's place.
    place: u16,
    /// Places of members that are known to have crashed.
    dead: HostSet,
    /// By place: the members that this member has reported as dead.
    reported_dead: PerHost<HostSet>,
    /// Places of members that are in the view and still ask for the state.
    stateless: HostSet,
    /// Resends since a message of these members came.
    quiet: u32,
    backoff: Backoff,
}

/// How many resends of the group pass from one resend of the protocol to the next: twice as many each time
/// something had to be sent again, half as many each time nothing had.
#[derive(Debug, Clone)]
struct Backoff {
    interval: u32,
    waited: u32,
}

impl Backoff {
    fn is_due(&mut self) -> bool {
        self.waited += 1;
        self.waited >= self.interval
    }

    fn note(&mut self, has_resent: bool) {
        let slows = has_resent && !planted::is(Planted::NeverSlows);
        self.waited = 0;
        self.interval = if slows { (2 * self.interval).min(BACKOFF_MAX) } else { (self.interval / 2).max(1) };
    }
}

impl<P: Start> Epoch<P> {
    /// `me` is a member of the view.
    pub(super) fn new(setting: &P::Setting, view: View, me: u16, start: u64) -> Result<Self, P::Error> {
        let place = view.place(me).unwrap_or(1);
        let protocol = P::start(setting, place, HostSet::first(view.members().len()))?;
        Ok(Self {
            protocol,
            view,
            start,
            place,
            dead: HostSet::EMPTY,
            reported_dead: PerHost::new(MAX_HOSTS, |_| HostSet::EMPTY),
            stateless: HostSet::EMPTY,
            quiet: 0,
            backoff: Backoff { interval: 1, waited: 0 },
        })
    }

    pub(super) fn leads(&self) -> bool {
        self.protocol.leader() == self.place
    }

    /// The host that leads.
    pub(super) fn leader(&self) -> Option<u16> {
        Some(self.view.member(self.protocol.leader())?.host)
    }

    /// The host that counts what is stored: the most senior one that is not known to have crashed. The protocol may
    /// not lead with it yet, as it handles a crash only after the decisions before that are taken from it.
    pub(super) fn counter(&self) -> Option<u16> {
        Some(self.view.member(self.alive().iter().next()?)?.host)
    }

    /// Places of members that are not known to have crashed.
    pub(super) fn alive(&self) -> HostSet {
        HostSet::first(self.view.members().len()).minus(self.dead)
    }

    /// Places of members that are known to have crashed.
    pub(super) fn dead(&self) -> HostSet {
        self.dead
    }

    /// Places of the other live members.
    pub(super) fn others(&self) -> HostSet {
        self.alive().minus(HostSet::only(self.place))
    }

    /// Hosts of the other live members.
    pub(super) fn other_hosts(&self) -> HostSet {
        self.view.hosts_of(self.others())
    }

    /// A host's incarnations up to this one are dead: notifies the protocol if a member is among them.
    pub(super) fn crashed(&mut self, host: HostId, incarnation: u32) {
        let Some(place) = self.view.place(host) else { return };
        let is_it = |member: u32| member <= incarnation || planted::is(Planted::CrashesTheLater);
        let is_dead = self.view.incarnation(host).is_some_and(is_it);
        if is_dead && place != self.place && !self.dead.contains(place) {
            self.dead.insert(place);
            self.protocol.crashed(place);
            // The backoff may have been for that member.
            self.backoff.interval = 1;
        }
    }

    /// To be called at each resend of the group.
    pub(super) fn resend(&mut self) {
        if self.backoff.is_due() {
            let has_resent = self.protocol.resend();
            self.backoff.note(has_resent);
        }
    }

    /// A message of the protocol came from this member: it has the state.
    pub(super) fn heard(&mut self, place: u16) {
        self.quiet = 0;
        self.stateless.remove(place);
    }

    /// The member at place `asking` asks for the state. Whether this member has to give it: the most senior
    /// live member that has it does.
    pub(super) fn gives_state(&mut self, asking: u16) -> bool {
        self.stateless.insert(asking);
        self.alive().minus(self.stateless).iter().next() == Some(self.place)
    }

    /// Whether the member at this place has asked for the state and was not heard since.
    pub(super) fn lacks_state(&self, place: u16) -> bool {
        self.stateless.contains(place)
    }

    /// To be asked once at each resend: whether no message has come for so long that the others may have gone
    /// on without this member.
    pub(super) fn is_quiet(&mut self) -> bool {
        self.quiet += 1;
        let quiet = self.quiet >= QUIET_RESENDS;
        if quiet {
            self.quiet = 0;
        }
        quiet
    }

    /// A host's member has reported which members are dead. Returns those of them that are other live members
    /// as far as known here.
    pub(super) fn note_dead(&mut self, from: u16, places: HostSet) -> HostSet {
        let Some(place) = self.view.place(from) else { return HostSet::EMPTY };
        self.heard(place);
        self.reported_dead[place] = places;
        places.and(self.others())
    }

    /// Hosts of live members that have not reported all the deaths that are known here.
    pub(super) fn hosts_unaware_of_deaths(&self) -> Option<HostSet> {
        let is_unaware = |place: &u16| !self.dead.minus(self.reported_dead[*place]).is_empty();
        let places: HostSet = self.others().iter().filter(is_unaware).collect();
        (!places.is_empty()).then(|| self.view.hosts_of(places))
    }
}
