// SPDX-License-Identifier: Apache-2.0
//! Fencing tokens: a host that acts after another was excluded has a higher token than the excluded host ever
//! had.
//!
//! A token is a view, then the incarnation that acts by it. Within a lineage a host may act by a view that
//! was agreed before another host was let in. It then has the lower token, but that is no error, because the
//! other host was not excluded. Across lineages there is no such case: a host that acts by another lineage
//! than the last one that acted has founded it later.

use std::collections::BTreeMap;

use fide_types::HostId;
use fide_wire::ViewId;

use super::{Checked, HostViews, violated};

#[derive(Debug, Default)]
pub(in super::super) struct Tokens {
    /// By host and incarnation: the newest view that it acted by.
    highest: BTreeMap<(u16, u32), ViewId>,
    /// The newest view of all.
    newest: ViewId,
}

impl Tokens {
    /// A host may act.
    pub(in super::super) fn acts(
        &mut self,
        host: HostId,
        view: ViewId,
        incarnation: u32,
        views: &HostViews,
    ) -> Checked {
        let own = self.highest.entry((host, incarnation)).or_insert(view);
        *own = view.max(*own);
        self.newest = self.newest.max(view);
        if self.newest == view {
            // No host has acted by a newer view.
            return Ok(());
        }
        // All hosts that act by one view are its members, so tokens of the same view exclude no host.
        let is_higher = |&(&(of, life), &newest): &(&(u16, u32), &ViewId)| {
            newest > view && (newest.generation > view.generation || views.has_excluded(view, of, life))
        };
        match self.highest.iter().find(is_higher) {
            None => Ok(()),
            Some(((of, life), newest)) => {
                let text = format!(
                    "h{host}#{incarnation} acts by {}.{} after h{of}#{life} did by {}.{}",
                    view.generation, view.number, newest.generation, newest.number
                );
                violated("tokens", text)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fide_wire::Membership;

    fn view(generation: u32, number: u32) -> ViewId {
        ViewId { generation, number }
    }

    #[test]
    fn lower_generation_does_not_act_after_a_higher_one() {
        let (mut tokens, views) = (Tokens::default(), HostViews::default());
        assert_eq!(tokens.acts(1, view(9, 2), 9, &views), Ok(()));
        assert_eq!(tokens.acts(2, view(10, 1), 10, &views), Ok(()));
        let violation = tokens.acts(1, view(9, 3), 9, &views).expect_err("tokens go back");
        assert_eq!(violation.property, "tokens");
    }

    #[test]
    fn admitted_host_may_have_the_higher_token_and_excluded_host_may_not() {
        let (mut tokens, mut views) = (Tokens::default(), HostViews::default());
        for (number, ids) in [(1, [1, 3]), (2, [1, 2]), (3, [1, 2])] {
            let mut members = Membership::EMPTY;
            ids.into_iter().for_each(|id| members.insert(id, 7));
            views.installed(1, view(9, number), members).expect("one of each");
        }
        assert_eq!(tokens.acts(2, view(9, 3), 7, &views), Ok(()));
        assert_eq!(tokens.acts(1, view(9, 1), 7, &views), Ok(()), "it has not heard of h2 yet");
        let mut tokens = Tokens::default();
        assert_eq!(tokens.acts(3, view(9, 3), 7, &views), Ok(()));
        assert!(tokens.acts(1, view(9, 2), 7, &views).is_err(), "h3 was excluded before");
    }
}
