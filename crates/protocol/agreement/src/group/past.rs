// SPDX-License-Identifier: Apache-2.0
//! What a process knows of its host's incarnations that are over, and what others said of theirs ([`super::refounding`]).

use fide_types::{
    HostId, MAX_HOSTS, PerHost,
    planted::{self, Planted},
};

use super::{
    claim::{Claim, GaveUp, Membership},
    incarnations::Incarnations,
};
use crate::view::View;

/// What this process and others were before.
#[derive(Debug, Clone)]
pub(super) struct Past {
    /// This process answers for no incarnation below this one.
    pub(super) first: u32,
    /// Incarnations of this host that are over, and of which it knows that they were no other process's: those of this
    /// process, and of those whose record it has.
    pub(super) own: Incarnations,
    /// Others hold this incarnation dead, and it may have been another process's before.
    pub(super) is_disowned: bool,
    /// What this process kept of the group when it was excluded.
    pub(super) membership: Option<Membership>,
    /// The view without this member, once it was delivered.
    pub(super) without_me: Option<View>,
    /// The last claim of each host, and the incarnation that sent it.
    pub(super) claims: PerHost<Option<(u32, Claim)>>,
    /// Resends since others, which are over, claimed a view that this incarnation was let in to.
    pub(super) unwelcomed: u32,
    /// The view that this incarnation was let in to, as a member says that was taken out by it; and how often
    /// that was said.
    pub(super) let_in_to: Option<(View, u32)>,
    /// The incarnation of each host that asked to be let in last.
    pub(super) asking: PerHost<u32>,
    /// The view that this process was let in to, and gave up last.
    pub(super) gave_up: Option<GaveUp>,
    /// The highest incarnation of this host that others know to be dead.
    pub(super) reported_dead: u32,
    /// Resends since that incarnation was not below the present one.
    pub(super) reported_dead_resends: u32,
}

impl Past {
    pub(super) fn new(first: u32) -> Self {
        Self {
            first,
            own: Incarnations::default(),
            is_disowned: false,
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
    pub(super) fn recall(&mut self, first: u32, own: Incarnations, membership: Option<Membership>) {
        self.first = self.first.min(first);
        (self.own, self.membership) = (own, membership);
    }

    /// The first incarnation that this process may answer for.
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
