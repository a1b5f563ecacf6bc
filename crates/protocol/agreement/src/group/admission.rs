// SPDX-License-Identifier: Apache-2.0
//! Joining and leaving, as the group's leader sees it: who asks to be let in, which state they are offered,
//! who is to be taken out, who is to lead, and the next view that follows from that.

use fide_types::{
    HostId, HostSet, MAX_HOSTS, PerHost,
    planted::{self, Planted},
};

use crate::{
    transfer::Identity,
    view::{View, ViewMember},
};

/// A host that asks to be let in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub(super) incarnation: u32,
    /// The position of the state that it has.
    pub(super) have: Option<u64>,
}

/// The user's state at a position, stored for hosts that join.
#[derive(Debug, Clone, Copy)]
pub(super) struct Base {
    pub(super) position: u64,
    pub(super) state: Identity,
}

/// How far this leader is with the next view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextView {
    /// None is needed, or none was proposed yet.
    Open,
    /// The protocol had no room for it: nothing else is proposed before it.
    Waits,
    /// Proposed: nothing more is proposed in the present view. It may be without this member.
    Proposed { without_me: bool },
}

#[derive(Debug, Clone)]
pub(super) struct Admission {
    requests: PerHost<Option<Request>>,
    base: Option<Base>,
    /// Hosts for which the user is asked for its state.
    state_wanted_by: HostSet,
    /// Hosts that are to be taken out.
    removed: HostSet,
    /// The member that this leader hands the group over to.
    successor: Option<HostId>,
    next_view: NextView,
    /// For each host that was welcomed: the decisions stored for it.
    welcomes: PerHost<Option<Identity>>,
}

impl Admission {
    pub(super) fn new() -> Self {
        Self {
            requests: PerHost::new(MAX_HOSTS, |_| None),
            base: None,
            state_wanted_by: HostSet::EMPTY,
            removed: HostSet::EMPTY,
            successor: None,
            next_view: NextView::Open,
            welcomes: PerHost::new(MAX_HOSTS, |_| None),
        }
    }

    pub(super) fn note_request(&mut self, host: HostId, request: Request) {
        self.requests[host] = Some(request);
    }

    pub(super) fn forget_request(&mut self, host: HostId) {
        self.requests[host] = None;
    }

    fn requests(&self) -> impl Iterator<Item = (u16, Request)> {
        self.requests.iter().filter_map(|(host, request)| Some((host, (*request)?)))
    }

    /// The stored state, if a host that takes it can be brought up to date: the decisions from position
    /// `reaches_from` on are kept.
    pub(super) fn base(&self, reaches_from: u64) -> Option<Base> {
        self.base.filter(|base| base.position >= reaches_from)
    }

    /// Stores another state in place of the former one, which is returned.
    pub(super) fn replace_base(&mut self, base: Base) -> Option<Base> {
        self.base.replace(base)
    }

    pub(super) fn take_base(&mut self) -> Option<Base> {
        self.base.take()
    }

    /// Asks the user for its state, for this host.
    pub(super) fn want_state(&mut self, host: HostId) {
        self.state_wanted_by.insert(host);
    }

    pub(super) fn wants_state(&self) -> bool {
        !self.state_wanted_by.is_empty()
    }

    pub(super) fn take_state_wanted_by(&mut self) -> HostSet {
        std::mem::take(&mut self.state_wanted_by)
    }

    /// Stores the decisions with which a host is welcomed, in place of former ones, which are returned.
    pub(super) fn replace_welcome(&mut self, host: HostId, decisions: Identity) -> Option<Identity> {
        self.welcomes[host].replace(decisions)
    }

    /// Whether a payload is stored for a host that joins.
    pub(super) fn needs(&self, identity: &Identity) -> bool {
        self.base.is_some_and(|base| base.state == *identity) || self.welcomes.values().contains(&Some(*identity))
    }

    /// Takes a host out of the group with one of the next views.
    pub(super) fn remove(&mut self, host: HostId) {
        self.removed.insert(host);
    }

    /// Whether hosts are still to be taken out.
    pub(super) fn removes(&self) -> bool {
        !self.removed.is_empty()
    }

    /// Has this member lead with the next view.
    pub(super) fn hand_over_to(&mut self, host: HostId) {
        self.successor = Some(host);
    }

    /// Whether another member is to lead with the next view.
    pub(super) fn is_handing_over(&self) -> bool {
        self.successor.is_some()
    }

    /// The member that was to lead is dead, and this one goes on.
    pub(super) fn forget_successor(&mut self, host: HostId) {
        self.successor.take_if(|successor| *successor == host);
    }

    /// Whether the next view is proposed.
    pub(super) fn is_closing(&self) -> bool {
        matches!(self.next_view, NextView::Proposed { .. })
    }

    /// Whether the next view is proposed, and is without this member.
    pub(super) fn is_leaving(&self) -> bool {
        self.next_view == NextView::Proposed { without_me: true }
    }

    /// Whether nothing else is proposed before the next view has begun.
    pub(super) fn holds_up_proposals(&self) -> bool {
        self.next_view != NextView::Open || self.is_handing_over()
    }

    pub(super) fn reopen(&mut self) {
        self.next_view = NextView::Open;
    }

    /// The protocol had no room for the next view.
    pub(super) fn note_full(&mut self) {
        self.next_view = NextView::Waits;
    }

    pub(super) fn note_proposed(&mut self, without_me: bool) {
        self.next_view = NextView::Proposed { without_me };
    }

    /// Of the hosts to be taken out, the least senior one, so that the leader goes last. Only one at a time:
    /// of several that were delivered the view without them, each could found the group again (the module
    /// `refounding` says when).
    fn next_removed(&self, view: &View, removed: HostSet) -> HostSet {
        if planted::is(Planted::TakesOutSeveral) {
            return removed;
        }
        let hosts = view.members().iter().map(|member| member.host);
        hosts.rev().find(|host| removed.contains(*host)).into_iter().collect()
    }

    /// A view has begun.
    pub(super) fn begun(&mut self, view: &View) {
        self.reopen();
        self.successor.take_if(|host| view.place(*host).is_none_or(|place| place == 1));
        self.removed = self.removed.and(view.hosts());
        // A member of the view has to ask again before it is answered.
        for member in view.members() {
            self.forget_request(member.host);
        }
    }

    /// The view that should follow, if any: without the members that have crashed or are to be taken out, with
    /// the hosts that ask and can be brought up to date, as decisions are kept from position `reaches_from` on,
    /// and with the member that is to lead in the first place.
    pub(super) fn next(&self, view: &View, alive: HostSet, reaches_from: u64) -> Option<View> {
        let alive = view.hosts_of(alive);
        // A view needs one member of the view before, which has the state: the last one stays until another
        // member has it.
        let removed = alive.and(self.removed);
        let is_last = removed == alive && alive.len() == 1 && !planted::is(Planted::RemovesTheLast);
        let removed = if is_last { HostSet::EMPTY } else { self.next_removed(view, removed) };
        let all_stay = alive.len() == view.members().len() && removed.is_empty();
        if all_stay && self.requests().next().is_none() && !self.is_handing_over() {
            return None;
        }
        let stays = |member: &ViewMember| alive.contains(member.host) && !removed.contains(member.host);
        let mut members: Vec<ViewMember> = view.members().iter().copied().filter(stays).collect();
        let removes = members.len() < view.members().len();
        // It is a member of this view, so it has the state.
        let successor = members.iter().position(|member| Some(member.host) == self.successor);
        if let Some(at) = successor {
            members[..=at].rotate_right(1);
        }
        // An older incarnation of the same host has to be dead first.
        let is_ready = |(host, request): &(u16, Request)| {
            request.have.is_some_and(|have| have >= reaches_from) && !alive.contains(*host)
        };
        let joining = self.requests().filter(is_ready);
        let stay = members.len();
        members.extend(joining.map(|(host, Request { incarnation, .. })| ViewMember { host, incarnation }));
        if !removes && members.len() == stay && successor.is_none() {
            return None;
        }
        View::new(view.number().checked_add(1)?, &members).ok()
    }
}
