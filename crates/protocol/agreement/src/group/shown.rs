// SPDX-License-Identifier: Apache-2.0
//! Which hosts have shown that they are members, and which that they are not: for what a host that waits says to
//! people. Nothing else depends on it.

use fide_types::{HostId, HostSet, MAX_HOSTS, PerHost};

use super::{Group, datagram::Prefix};
use crate::Start;

/// The last incarnation of each host from which a datagram has come, and the number of its view; 0 for none.
#[derive(Debug, Clone)]
pub(super) struct Shown(PerHost<(u32, u32)>);

impl Shown {
    pub(super) fn new() -> Self {
        Self(PerHost::new(MAX_HOSTS, |_| (0, 0)))
    }

    /// A datagram of a host's incarnation that is up has come. Within an incarnation nobody goes from a view to none.
    pub(super) fn note(&mut self, from: HostId, prefix: &Prefix) {
        let (incarnation, view) = &mut self.0[from];
        let before = if *incarnation == prefix.sender { *view } else { 0 };
        (*incarnation, *view) = (prefix.sender, prefix.view.max(before));
    }

    /// The view of a host's incarnation, as far as it has said; 0: none.
    fn view_of(&self, host: HostId, incarnation: u32) -> Option<u32> {
        let (of, view) = *self.0.get(host)?;
        (incarnation != 0 && of == incarnation).then_some(view)
    }
}

impl<P: Start> Group<P> {
    fn others_in_list(&self) -> impl Iterator<Item = HostId> {
        self.config.hosts.iter().filter(|host| *host != self.config.me)
    }

    /// Other hosts that are up and have shown that they are in a view of the group.
    #[must_use]
    pub fn known_members(&self) -> HostSet {
        let is_member = |host: &HostId| self.shown.view_of(*host, self.liveness.up(*host)).is_some_and(|view| view > 0);
        self.others_in_list().filter(is_member).collect()
    }

    /// Other hosts that are up and have shown nothing yet.
    #[must_use]
    pub fn silent_hosts(&self) -> HostSet {
        let is_silent = |host: &HostId| {
            let up = self.liveness.up(*host);
            up != 0 && self.shown.view_of(*host, up).is_none()
        };
        self.others_in_list().filter(is_silent).collect()
    }

    /// Whether each other host is up and has shown that it is no member, and none of them, nor this one, keeps a state
    /// from which the group could go on.
    #[must_use]
    pub fn is_known_to_be_lost(&self) -> bool {
        self.others_in_list().all(|host| self.shown.view_of(host, self.liveness.up(host)) == Some(0)) && !self.is_kept()
    }
}
