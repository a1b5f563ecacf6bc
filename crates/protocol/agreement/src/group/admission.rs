// SPDX-License-Identifier: Apache-2.0
//! The way into a group, and out of it, as its leader has it.

use fide_types::{
    HostSet, MAX_HOSTS,
    planted::{self, Planted},
};

use crate::{
    transfer::Identity,
    view::{Member, View},
};

/// Somebody who asks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asks {
    pub(super) incarnation: u32,
    pub(super) have: Option<u64>,
}

/// A state that was kept for those who ask.
#[derive(Debug, Clone, Copy)]
pub(super) struct Base {
    pub(super) position: u64,
    pub(super) state: Identity,
}

#[derive(Debug, Clone)]
pub(super) struct Admission {
    /// By id-1. One for each host at most.
    asks: Box<[Option<Asks>]>,
    pub(super) base: Option<Base>,
    /// The user is asked for its state, for these.
    pub(super) wanted_by: HostSet,
    removed: HostSet,
    /// Proposed the next view: nothing more is proposed in this one.
    pub(super) closing: bool,
    /// That one is without this member.
    pub(super) goes: bool,
    /// There was no room for the next view: nothing else is proposed before it.
    pub(super) next_waits: bool,
}

impl Admission {
    pub(super) fn new() -> Self {
        let asks = vec![None; MAX_HOSTS].into_boxed_slice();
        let removed = HostSet::EMPTY;
        Self { asks, base: None, wanted_by: HostSet::EMPTY, removed, closing: false, goes: false, next_waits: false }
    }

    pub(super) fn asked(&mut self, host: u16, asks: Asks) {
        self.asks[usize::from(host) - 1] = Some(asks);
    }

    pub(super) fn forget(&mut self, host: u16) {
        self.asks[usize::from(host) - 1] = None;
    }

    /// Those who ask, by host.
    pub(super) fn asking(&self) -> impl Iterator<Item = (u16, Asks)> {
        (1..).zip(&self.asks).filter_map(|(host, asks)| Some((host, (*asks)?)))
    }

    pub(super) fn remove(&mut self, host: u16) {
        self.removed.insert(host);
    }

    /// Of those who are to go, the youngest, so that whoever leads goes last. One at a time: of several that were told the view without
    /// them each could found the group again (the module `holding` says when).
    fn one_of(&self, view: &View, removed: HostSet) -> HostSet {
        if planted::is(Planted::TakesOutSeveral) {
            return removed;
        }
        let hosts = view.members().iter().map(|member| member.host);
        hosts.rev().find(|host| removed.contains(*host)).into_iter().collect()
    }

    /// A view has begun.
    pub(super) fn begun(&mut self, view: &View) {
        (self.closing, self.goes, self.next_waits) = (false, false, false);
        self.removed = self.removed.and(view.hosts());
        // Who is in now is answered when it asks again.
        for member in view.members() {
            self.forget(member.host);
        }
    }

    /// The view that should follow, if any: without who has crashed or is to go, with those who can be brought up to date from
    /// position `reaches_from` on.
    pub(super) fn next(&self, view: &View, alive: HostSet, reaches_from: u64) -> Option<View> {
        // A view has one member of the view before, who has the state: whoever is to go stays until another has it.
        let removed = view.hosts_of(alive).and(self.removed);
        let is_last = removed == view.hosts_of(alive) && alive.len() == 1 && !planted::is(Planted::RemovesTheLast);
        let removed = if is_last { HostSet::EMPTY } else { self.one_of(view, removed) };
        let all_stay = alive.len() == view.members().len() && removed.is_empty();
        if all_stay && self.asking().next().is_none() {
            return None;
        }
        let alive = view.hosts_of(alive);
        let stays = |member: &Member| alive.contains(member.host) && !removed.contains(member.host);
        let mut members: Vec<Member> = view.members().iter().copied().filter(stays).collect();
        let removes = members.len() < view.members().len();
        // An older incarnation of the same host has to be dead before.
        let ready =
            |(host, asks): &(u16, Asks)| asks.have.is_some_and(|have| have >= reaches_from) && !alive.contains(*host);
        let joining = self.asking().filter(ready);
        let stay = members.len();
        members.extend(joining.map(|(host, Asks { incarnation, .. })| Member { host, incarnation }));
        if !removes && members.len() == stay {
            return None;
        }
        View::new(view.number().checked_add(1)?, &members).ok()
    }
}
