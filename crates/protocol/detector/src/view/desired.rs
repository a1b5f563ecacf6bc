// SPDX-License-Identifier: Apache-2.0
//! Which members the next view should have.

use crate::clique;
use fide_types::{HostId, HostSet};
use fide_wire::{Membership, ViewRepr};

use super::{BARRED_TIMEOUTS, Env, PARTIAL_TIMEOUTS, ViewConsensus};

impl ViewConsensus {
    /// What a voter without a view reports to those that hold one: itself, as it asks to be admitted, and the
    /// members that it does not hear.
    pub(super) fn admission_request(&self, env: &Env) -> HostSet {
        let (id, members) = &self.foreign;
        let mut suspects = HostSet(members.hosts).minus(env.fresh);
        if !id.is_none() && self.has_stored(id.generation) {
            suspects.insert(self.me);
        }
        suspects
    }

    /// Does the voter `id`, which holds no view and asks to be admitted, hear all of `members`?
    fn hears_all(&self, id: HostId, incarnation: u32, members: HostSet) -> bool {
        let asks = |suspects: &HostSet| suspects.contains(id);
        let report = self.reports[id].as_ref().filter(|r| r.incarnation == incarnation && r.repr.id.is_none());
        let unheard = report.and_then(|r| r.repr.acceptor).map(|(_, suspects)| HostSet(suspects)).filter(asks);
        unheard.is_some_and(|unheard| unheard.minus(HostSet::only(id)).and(members).is_empty())
    }

    /// Members that a majority of the view reports as silent.
    fn reported_by_majority(&self, env: &Env) -> HostSet {
        let majority = self.members.len() / 2 + 1;
        let reporters = |id: HostId| {
            let others = self.electors().filter(|(other, repr)| {
                let counts = !env.silent.contains(*other) || env.left.contains(*other);
                counts && repr.acceptor.is_some_and(|(_, suspects)| HostSet(suspects).contains(id))
            });
            others.count() + usize::from(self.suspects.contains(id))
        };
        HostSet(self.members.hosts).iter().filter(|id| reporters(*id) >= majority).collect()
    }

    /// Members to evict so that all others hear each other. Empty unless this host stays and the others are a
    /// majority.
    pub(super) fn members_to_evict(&self, env: &Env) -> HostSet {
        let members = HostSet(self.members.hosts).minus(self.reported_by_majority(env));
        let reports = self.electors().filter(|(id, _)| env.heard.contains(*id));
        let reports = reports.filter_map(|(id, repr)| Some((id, HostSet(repr.acceptor?.1))));
        let evicted = clique::members_to_evict(members, self.witness, reports.chain([(self.me, env.silent)]));
        let stay = members.minus(evicted);
        let enough = stay.len() > self.members.len() / 2 && stay.len() >= self.smallest_view();
        if enough && stay.contains(self.me) { evicted } else { HostSet::EMPTY }
    }

    /// Have there been the same members to evict for so long that this is a partial partition, and no crash
    /// that some members have yet to report?
    pub(super) fn partition_lasts(&self, env: &Env) -> bool {
        env.now_ns >= self.to_evict.since_ns.saturating_add(PARTIAL_TIMEOUTS * env.timeout_ns)
    }

    /// The next view's members, as far as this host sees.
    pub(super) fn desired(&self, env: &Env) -> Membership {
        if self.id.is_none() { self.desired_first_view(env) } else { self.desired_next_view(env) }
    }

    fn desired_first_view(&self, env: &Env) -> Membership {
        let mut next = self.members;
        next.insert(self.me, self.incarnation);
        // A voter that suspects somebody has heard of a view, and founds none.
        let founds = |repr: &ViewRepr| repr.acceptor.is_some_and(|(_, suspects)| suspects == 0);
        for (id, _) in self.electors().filter(|(id, repr)| env.heard.contains(*id) && founds(repr)) {
            next.insert(id, env.incarnations.of(id));
        }
        next
    }

    fn desired_next_view(&self, env: &Env) -> Membership {
        let mut next = self.members;
        let evicted = if self.partition_lasts(env) { self.to_evict.hosts } else { HostSet::EMPTY };
        self.reported_by_majority(env).iter().chain(evicted.iter()).for_each(|id| next.remove(id));
        let bars = env.now_ns < self.barred.since_ns.saturating_add(BARRED_TIMEOUTS * env.timeout_ns);
        let barred = if bars { self.barred.hosts } else { HostSet::EMPTY };
        for id in self.voters.minus(barred).iter().filter(|id| *id != self.me && env.heard.contains(*id)) {
            let incarnation = env.incarnations.of(id);
            if next.incarnation(id).is_none() && self.hears_all(id, incarnation, HostSet(next.hosts)) {
                next.insert(id, incarnation);
            }
        }
        if next.len() < self.smallest_view() { self.members } else { next }
    }
}
