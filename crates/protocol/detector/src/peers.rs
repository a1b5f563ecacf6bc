// SPDX-License-Identifier: Apache-2.0
//! All hosts of the cluster, as this one hears them.

use crate::config::Config;
use crate::peer::Peer;
use fide_types::{HostId, HostSet, PerHost, Role};
use serde::{Deserialize, Serialize};
use std::ops::{Index, IndexMut};

/// One [`Peer`] for each host by its id. The entry of this host itself is never heard, never up, and judges
/// nobody.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Peers {
    me: HostId,
    hosts: PerHost<Peer>,
}

impl Peers {
    pub(crate) fn new(config: &Config) -> Peers {
        let me = config.member(config.me);
        let hosts = PerHost::new(config.members.len(), |id| {
            let member = config.member(id);
            let mut peer = Peer::new(id, member.role != Role::Observer, config.timeout_ns);
            peer.monitors_me = member.monitors.contains(me.id);
            peer.monitored = me.monitors.contains(id);
            peer
        });
        Peers { me: me.id, hosts }
    }

    /// Hosts of the cluster, this one included.
    pub(crate) fn hosts(&self) -> usize {
        self.hosts.hosts()
    }

    /// Is this host the whole cluster?
    pub(crate) fn is_alone(&self) -> bool {
        self.hosts() == 1
    }

    /// `None` for this host and for ids that are not members.
    pub(crate) fn get(&self, id: HostId) -> Option<&Peer> {
        self.hosts.get(id).filter(|peer| peer.id != self.me)
    }

    /// As [`Peers::get`], to be changed.
    pub(crate) fn get_mut(&mut self, id: HostId) -> Option<&mut Peer> {
        self.hosts.get_mut(id).filter(|peer| peer.id != self.me)
    }

    /// Is `id` a host of the cluster, this one included?
    pub(crate) fn contains(&self, id: HostId) -> bool {
        self.hosts.get(id).is_some()
    }

    /// Ids of all other hosts, ascending.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u16> + use<> {
        let me = self.me;
        (1..=self.hosts() as u16).filter(move |id| *id != me)
    }

    /// All other hosts, by ascending id.
    pub(crate) fn others(&self) -> impl Iterator<Item = &Peer> {
        self.hosts.values().iter().filter(|peer| peer.id != self.me)
    }

    /// As [`Peers::others`], to be changed.
    pub(crate) fn others_mut(&mut self) -> impl Iterator<Item = &mut Peer> {
        let me = self.me;
        self.hosts.values_mut().iter_mut().filter(move |peer| peer.id != me)
    }

    /// All hosts, beginning with another one for each `turn`: so that all get their turn where not all fit.
    pub(crate) fn in_turn(&self, turn: u64) -> impl Iterator<Item = &Peer> + Clone {
        let (first, all) = (self.turn_of(turn), self.hosts.values());
        (0..all.len()).map(move |i| &all[(first + i) % all.len()])
    }

    /// As [`Peers::in_turn`], to be changed.
    pub(crate) fn in_turn_mut(&mut self, turn: u64) -> impl Iterator<Item = &mut Peer> {
        let first = self.turn_of(turn);
        let (before, after) = self.hosts.values_mut().split_at_mut(first);
        after.iter_mut().chain(before)
    }

    fn turn_of(&self, turn: u64) -> usize {
        turn as usize % self.hosts()
    }

    /// Peers that are up and judge this host: what reaches all of them need not be repeated.
    pub(crate) fn listeners(&self) -> impl Iterator<Item = &Peer> {
        self.others().filter(|peer| peer.monitors_me && peer.is_up())
    }

    /// The shortest timeout of this host's pairs; `None` without peers.
    pub(crate) fn least_timeout_ns(&self) -> Option<u64> {
        self.others().map(|peer| peer.timeout_ns).min()
    }

    /// The peers that satisfy `wanted`.
    pub(crate) fn set_of(&self, wanted: impl Fn(&Peer) -> bool) -> HostSet {
        self.others().filter(|peer| wanted(peer)).map(|peer| peer.id).collect()
    }
}

impl Index<u16> for Peers {
    type Output = Peer;

    fn index(&self, id: HostId) -> &Peer {
        &self.hosts[id]
    }
}

impl IndexMut<u16> for Peers {
    fn index_mut(&mut self, id: HostId) -> &mut Peer {
        &mut self.hosts[id]
    }
}
