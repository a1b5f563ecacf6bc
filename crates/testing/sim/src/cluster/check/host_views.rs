// SPDX-License-Identifier: Apache-2.0
//! Views of hosts: no two have the same number, whichever hosts hold them and whenever they were founded.

use std::{
    collections::BTreeMap,
    ops::Bound::{Excluded, Unbounded},
};

use fide_types::HostId;
use fide_wire::{Membership, ViewId};

use super::{
    super::{host::Host, protocol::Protocol},
    Checked, violated,
};

#[derive(Debug, Default)]
pub(in super::super) struct HostViews {
    held: BTreeMap<ViewId, (u16, Membership)>,
}

impl HostViews {
    /// A host has installed a view, or given one up.
    pub(in super::super) fn changed<P: Protocol>(&mut self, host: &Host<P>) -> Checked {
        let Some(vote) = host.agent.as_ref().map(|agent| agent.detector.vote()) else { return Ok(()) };
        if vote.id.is_none() { Ok(()) } else { self.installed(host.id, vote.id, vote.members) }
    }

    pub(super) fn installed(&mut self, by: u16, id: ViewId, members: Membership) -> Checked {
        let (before, known) = *self.held.entry(id).or_insert((by, members));
        if known == members {
            return Ok(());
        }
        let shown = |members: Membership| members.iter().map(|(id, of)| format!("h{id}#{of}")).collect::<Vec<_>>();
        let (one, other) = (shown(known), shown(members));
        violated("one view of a number", format!("{id:?} is {one:?} for h{before}, and {other:?} for h{by}"))
    }

    /// A host may act by a view: every later view that was installed anywhere contains the host, as this
    /// incarnation.
    pub(in super::super) fn acts(&self, host: HostId, view: ViewId, incarnation: u32) -> Checked {
        if self.held.last_key_value().is_none_or(|(newest, _)| *newest <= view) {
            return Ok(());
        }
        let later = self.held.range((Excluded(view), Unbounded));
        match later.into_iter().find(|(_, (_, members))| !members.contains(host, incarnation)) {
            None => Ok(()),
            Some((later, (by, _))) => {
                let text =
                    format!("h{host}#{incarnation} acts by {view:?} after h{by} has installed {later:?} without it");
                violated("no lease outlives its view", text)
            }
        }
    }

    /// Whether a host was a member, as this incarnation, of an older view of the same lineage, and is not in
    /// this one.
    pub(in super::super) fn has_excluded(&self, view: ViewId, host: HostId, incarnation: u32) -> bool {
        let is_in = |(_, members): &(u16, Membership)| members.contains(host, incarnation);
        let first = ViewId { number: 0, ..view };
        !self.held.get(&view).is_some_and(is_in) && self.held.range(first..view).any(|(_, held)| is_in(held))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(number: u32) -> ViewId {
        ViewId { generation: 9, number }
    }

    fn members(of: &[(u16, u32)]) -> Membership {
        let mut members = Membership::EMPTY;
        of.iter().for_each(|(id, incarnation)| members.insert(*id, *incarnation));
        members
    }

    #[test]
    fn second_view_of_a_number_is_found() {
        let mut views = HostViews::default();
        assert_eq!(views.installed(1, view(1), members(&[(1, 9), (2, 7)])), Ok(()));
        assert_eq!(views.installed(2, view(1), members(&[(1, 9), (2, 7)])), Ok(()));
        let violation = views.installed(3, view(1), members(&[(2, 8), (3, 9)])).expect_err("another one");
        assert_eq!(violation.property, "one view of a number");
    }

    #[test]
    fn excluded_host_acts_by_no_older_view() {
        let mut views = HostViews::default();
        views.installed(1, view(1), members(&[(1, 9), (2, 7), (3, 8)])).expect("the first");
        assert_eq!(views.acts(3, view(1), 8), Ok(()));
        views.installed(1, view(2), members(&[(1, 9), (2, 7), (3, 10)])).expect("the next");
        assert_eq!((views.acts(2, view(1), 7), views.acts(3, view(2), 10)), (Ok(()), Ok(())));
        assert!(views.acts(3, view(1), 8).is_err(), "its former incarnation is excluded");
        assert!(views.has_excluded(view(2), 3, 8) && !views.has_excluded(view(2), 3, 10));
        assert!(!views.has_excluded(view(1), 3, 10), "it is not let in yet");
    }
}
