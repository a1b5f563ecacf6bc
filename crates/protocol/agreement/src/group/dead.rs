// SPDX-License-Identifier: Apache-2.0
//! Hosts that come as an incarnation that others know to be dead ([`super::refounding`], *Known to be dead*).

use fide_types::{
    HostId, HostSet,
    planted::{self, Planted},
};

use super::{Group, control::Control};
use crate::{
    Start,
    view::{View, ViewMember},
};

impl<P: Start> Group<P> {
    /// The highest incarnation of a host that is known to be dead. Also those before the one in the view that
    /// this host kept, as a host that is out meanwhile is not notified when they end.
    pub(super) fn highest_dead(&self, from: u16, sender: u32) -> u32 {
        let member = Some(self.past.member(from)).filter(|member| *member > sender);
        self.liveness.dead(from).max(member.unwrap_or(0))
    }

    /// Whether the incarnation of a host that is up is one that this host knows to be dead.
    pub(super) fn is_held_dead(&self, host: HostId) -> bool {
        let up = self.liveness.up(host);
        up != 0 && up <= self.highest_dead(host, up) && !planted::is(Planted::LetsInTheDead)
    }

    /// Whether others hold this incarnation dead.
    pub(super) fn is_reported_dead(&self) -> bool {
        self.past.reported_dead >= self.config.incarnation && !planted::is(Planted::LetsInTheDead)
    }

    /// Members of a view that are up, and that this host holds dead.
    pub(super) fn held_dead_of(&self, view: &View) -> HostSet {
        let is_up = |member: &&ViewMember| self.liveness.up(member.host) == member.incarnation;
        let up = view.members().iter().filter(is_up).map(|member| member.host);
        up.filter(|host| self.is_held_dead(*host)).collect()
    }

    /// To be called at each resend of a member: as [`Group::tell_held_dead`], of its view. What it said as the view began may
    /// be lost, and such a member asks nobody to be let in.
    pub(super) fn tell_held_dead_members(&mut self) {
        let Some(view) = self.view().filter(|view| !self.held_dead_of(view).is_empty()) else { return };
        self.tell_held_dead(&view.clone());
    }

    /// Tells members of a view that are up that they are dead here.
    pub(super) fn tell_held_dead(&mut self, view: &View) {
        for host in self.held_dead_of(view).iter() {
            let dead = self.highest_dead(host, self.liveness.up(host));
            self.say(HostSet::only(host), Control::Higher { dead });
        }
    }
}
