// SPDX-License-Identifier: Apache-2.0
//! Who should be in the next view.

use crate::clique;
use fide_types::HostSet;
use fide_wire::{Membership, ViewRepr};

use super::{Agreement, BARRED_TIMEOUTS, Env, PARTIAL_TIMEOUTS};

impl Agreement {
    /// A voter without a view, to those who have one: itself, and which of them it does not hear.
    pub(super) fn unheard_of_the_view(&self, env: &Env<'_>) -> HostSet {
        let mut suspects = HostSet(self.foreign.1.hosts).minus(env.fresh);
        if !self.foreign.0.is_none() && self.keeps(self.foreign.0.generation) {
            suspects.insert(self.me);
        }
        suspects
    }

    /// Does this voter without a view hear all of these?
    fn hears(&self, id: u16, incarnation: u32, members: HostSet) -> bool {
        let report = self.reports[usize::from(id) - 1].as_ref();
        let report = report.filter(|r| r.incarnation == incarnation && r.repr.id.is_none());
        let lacks =
            report.and_then(|r| r.repr.acceptor).map(|(_, suspects)| HostSet(suspects)).filter(|s| s.contains(id));
        lacks.is_some_and(|lacks| lacks.minus(HostSet::from_iter([id])).and(members).is_empty())
    }

    /// Members that a majority of the view reports.
    fn reported(&self, env: &Env<'_>) -> HostSet {
        let majority = self.members.len() / 2 + 1;
        let by = |id: u16| {
            let others = self.electors().filter(|(other, r)| {
                (!env.silent.contains(*other) || env.left.contains(*other))
                    && r.acceptor.is_some_and(|(_, s)| HostSet(s).contains(id))
            });
            others.count() + usize::from(self.suspects.contains(id))
        };
        HostSet(self.members.hosts).iter().filter(|id| by(*id) >= majority).collect()
    }

    /// Members that have to go so that all others, of which this host is one and which are a majority, hear each other.
    pub(super) fn outside(&self, env: &Env<'_>) -> HostSet {
        let members = HostSet(self.members.hosts).minus(self.reported(env));
        let reports = self.electors().filter(|(id, _)| env.heard.contains(*id));
        let reports = reports.filter_map(|(id, repr)| Some((id, HostSet(repr.acceptor?.1))));
        let gone = clique::outside(members, self.witness, reports.chain([(self.me, env.silent)]));
        let stay = members.minus(gone);
        let enough = stay.len() > self.members.len() / 2 && stay.len() >= self.smallest();
        if enough && stay.contains(self.me) { gone } else { HostSet::EMPTY }
    }

    /// Has somebody had to go for so long that it is a partial partition?
    pub(super) fn outside_lasts(&self, env: &Env<'_>) -> bool {
        env.now_ns >= self.outside.1.saturating_add(PARTIAL_TIMEOUTS * env.timeout_ns)
    }

    /// Who should be in the next view, as this host sees it.
    pub(super) fn desired(&self, env: &Env<'_>) -> Membership {
        let mut next = self.members;
        if self.id.is_none() {
            next.insert(self.me, self.incarnation);
            // Who reports somebody has heard of a view.
            let founds = |r: &ViewRepr| r.acceptor.is_some_and(|(_, suspects)| suspects == 0);
            for (id, _) in self.electors().filter(|(id, r)| env.heard.contains(*id) && founds(r)) {
                next.insert(id, env.incarnations[usize::from(id) - 1]);
            }
            return next;
        }
        let put_out = if self.outside_lasts(env) { self.outside.0 } else { HostSet::EMPTY };
        self.reported(env).iter().chain(put_out.iter()).for_each(|id| next.remove(id));
        let bars = env.now_ns < self.barred.1.saturating_add(BARRED_TIMEOUTS * env.timeout_ns);
        let barred = if bars { self.barred.0 } else { HostSet::EMPTY };
        for id in self.voters.minus(barred).iter().filter(|id| *id != self.me && env.heard.contains(*id)) {
            let incarnation = env.incarnations[usize::from(id) - 1];
            if next.incarnation(id).is_none() && self.hears(id, incarnation, HostSet(next.hosts)) {
                next.insert(id, incarnation);
            }
        }
        if next.len() < self.smallest() { self.members } else { next }
    }
}
