// SPDX-License-Identifier: Apache-2.0
//! Which incarnations of the other hosts are up and which are dead, as this host's detector has reported.

use fide_types::{
    HostId, HostSet, MAX_HOSTS, PerHost,
    planted::{self, Planted},
};

use crate::view::ViewMember;

#[derive(Debug, Clone)]
pub(super) struct Liveness {
    /// The incarnation that is up; 0 for none.
    up: PerHost<u32>,
    /// Hosts whose incarnation in `up` has heard this incarnation.
    met: HostSet,
    /// Hosts that are up but whose incarnation is not yet known.
    unsure: HostSet,
    /// The highest incarnation that is dead; 0 for none. It only grows.
    dead: PerHost<u32>,
}

impl Liveness {
    pub(super) fn new() -> Self {
        let none = || PerHost::new(MAX_HOSTS, |_| 0);
        Self { up: none(), met: HostSet::EMPTY, unsure: HostSet::EMPTY, dead: none() }
    }

    /// For the next incarnation of this host: deaths stay known, everything else is reported anew.
    pub(super) fn deaths_only(&self) -> Self {
        Self { dead: self.dead.clone(), ..Self::new() }
    }

    /// An incarnation of a host is up, and has not heard this one yet. False if there is no such host.
    pub(super) fn note_up(&mut self, host: HostId, incarnation: u32) -> bool {
        let Some(up) = self.up.get_mut(host) else { return false };
        *up = incarnation;
        self.met.remove(host);
        true
    }

    /// A host's incarnations up to this one are dead. False if there is no such host.
    pub(super) fn note_dead(&mut self, host: HostId, incarnation: u32) -> bool {
        let Some(dead) = self.dead.get_mut(host) else { return false };
        *dead = incarnation.max(*dead);
        true
    }

    /// After [`Liveness::note_dead`]: ends the incarnation that is up, if it is one of the dead ones. Whether
    /// the host is down now.
    pub(super) fn end(&mut self, host: HostId, incarnation: u32) -> bool {
        let is_down = self.up[host] <= incarnation;
        if is_down {
            self.up[host] = 0;
        }
        is_down
    }

    pub(super) fn note_met(&mut self, hosts: HostSet) {
        self.met = self.met.union(hosts);
    }

    pub(super) fn set_unsure(&mut self, hosts: HostSet) {
        self.unsure = hosts;
    }

    /// Whether a host is up but its incarnation is not yet known.
    pub(super) fn is_unsure(&self, host: HostId) -> bool {
        self.unsure.contains(host)
    }

    /// The incarnation of a host that is up; 0 for none, and for a host that there is not.
    pub(super) fn up(&self, host: HostId) -> u32 {
        self.up.get(host).copied().unwrap_or(0)
    }

    /// The highest incarnation of a host that is dead; 0 for none.
    pub(super) fn dead(&self, host: HostId) -> u32 {
        self.dead.get(host).copied().unwrap_or(0)
    }

    pub(super) fn is_dead(&self, member: &ViewMember) -> bool {
        self.dead.get(member.host).is_some_and(|dead| *dead >= member.incarnation)
    }

    /// Hosts of which some incarnation is up.
    pub(super) fn hosts_up(&self) -> HostSet {
        self.up.hosts_where(|up| *up != 0)
    }

    /// Whether only this host's detector may declare the member dead, so that no other member's report of its
    /// death is taken: the member has heard this one, or may have.
    pub(super) fn trusts_only_own_detector(&self, member: &ViewMember) -> bool {
        let is_up = self.up(member.host) == member.incarnation;
        let has_met = self.met.contains(member.host) && !planted::is(Planted::BelievesOfTheMet);
        is_up && has_met || self.is_unsure(member.host)
    }
}
