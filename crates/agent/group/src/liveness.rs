// SPDX-License-Identifier: Apache-2.0
//! The other members' processes, as the agent reports them, as incarnations of members.
//!
//! An agent numbers processes anew when it starts, so its numbers wrap around. A member has a number of its
//! own, its incarnation, which is stored and only grows; every packet carries both numbers. If the agent
//! reports a process as up, and no packet of it has come yet, its incarnation is unknown: as long as that
//! lasts no other member's report of its death counts.
//!
//! **Order.** The agent reports the processes of one name in the order in which they began, and a new one
//! means that the one before is over ([`fide_client::Event::Up`]). A later report about an earlier process
//! changes nothing here: the numbers show which process is the earlier one. Although they wrap around, the
//! numbers of an agent's later life are higher, however many processes the agent has numbered in one life
//! (`reserve` in `agent/src/incarnation.rs`).

use fide_agreement::{
    Group, HostSet, Start,
    planted::{self, Planted},
};
use fide_client::{Event, HOST_SLOT, Reason, Verdict};
use fide_types::{HostId, MAX_HOSTS, PerHost};

use crate::{packet::Sender, versions::Spoken};

/// The process of another member's host.
#[derive(Debug, Clone, Copy, Default)]
struct Peer {
    /// The process that is up, by its agent's number; 0: none.
    process: u32,
    /// The last process to begin, of those that were reported, whether or not it is up.
    latest: u32,
    /// The member's incarnation; 0: not known yet.
    incarnation: u32,
    /// Process and incarnation in the last packet that came from that host.
    last_packet: Option<(u32, u32)>,
    /// What that process speaks; what it was refused for if it has no incarnation.
    spoken: Option<(u32, Spoken)>,
    /// Bit p: plane p to that host is silent.
    silent_planes: u8,
}

/// Which processes of the other members are up.
#[derive(Debug, Clone)]
pub(crate) struct Liveness {
    peers: PerHost<Peer>,
    /// Hosts with a process that is up.
    up: HostSet,
    /// CLOCK_MONOTONIC of the last reported death.
    death_ns: u64,
    /// The agent had no room for some events.
    has_lost_events: bool,
    /// What this program speaks.
    mine: Spoken,
}

impl Default for Liveness {
    fn default() -> Self {
        let peers = PerHost::new(MAX_HOSTS, |_| Peer::default());
        Self { peers, up: HostSet::EMPTY, death_ns: 0, has_lost_events: false, mine: Spoken::default() }
    }
}

/// A process whose number is at most this far below that of a later process is known to be the earlier one.
/// Lives of an agent begin by the clock, 4096 numbers a second, so numbers wrap around after twelve days; a
/// process within this many numbers, 16 s, below one that was reported is taken for an earlier one. Events
/// that an agent reports in order do not need this.
const FORMER_JOINS: u32 = 1 << 16;

/// Whether a process began before the latest one of that host.
fn is_former(process: u32, latest: u32) -> bool {
    let behind = latest.wrapping_sub(process);
    latest != 0 && (1..FORMER_JOINS).contains(&behind) && !planted::is(Planted::ReportsTheFormerLate)
}

impl Liveness {
    /// No process is known to be up.
    pub(crate) fn reset(&mut self) {
        for peer in self.peers.values_mut() {
            (peer.process, peer.incarnation) = (0, 0);
        }
        self.up = HostSet::EMPTY;
    }

    /// CLOCK_MONOTONIC of the last reported death; 0 for none.
    pub(crate) fn death_ns(&self) -> u64 {
        self.death_ns
    }

    /// Whether events were lost since this was asked last: then the watches have to begin anew.
    pub(crate) fn take_lost_events(&mut self) -> bool {
        std::mem::take(&mut self.has_lost_events)
    }

    /// Handles an event of the agent. False if it excludes this member: the others go on without it.
    pub(crate) fn handle_event<P: Start>(&mut self, event: &Event, group: &mut Group<P>) -> bool {
        match event {
            Event::Up { evidence, .. } if evidence.slot != HOST_SLOT => {
                self.process_up(evidence.host_id, evidence.incarnation, group);
            }
            Event::Verdict(Verdict { reason, evidence, .. })
                if evidence.slot != HOST_SLOT && !matches!(reason, Reason::Stalled | Reason::Recovered) =>
            {
                self.process_down(evidence.host_id, evidence.incarnation, group);
                self.death_ns = evidence.rx_ns;
            }
            // The caller begins the watches anew.
            Event::Lost { .. } => self.has_lost_events = !planted::is(Planted::MissesTheLost),
            Event::PathLost { host_id, plane } => self.set_silent(*host_id, *plane, true),
            Event::PathRestored { host_id, plane } => self.set_silent(*host_id, *plane, false),
            // To the others this process is another one now.
            Event::Rejoined { .. } | Event::Reattached { resumed: false } | Event::Dropped { .. } => return false,
            _ => {}
        }
        true
    }

    fn process_up<P: Start>(&mut self, host: HostId, process: u32, group: &mut Group<P>) {
        let is_news = |peer: &&mut Peer| peer.process != process && !is_former(process, peer.latest);
        let Some(peer) = self.peers.get_mut(host).filter(is_news) else { return };
        let before = peer.process;
        let known = peer.last_packet.filter(|(of, _)| *of == process);
        if before != 0 {
            self.process_down(host, before, group);
        }
        if process != 0 {
            self.up.insert(host);
        }
        let peer = &mut self.peers[host];
        (peer.process, peer.latest, peer.incarnation) = (process, process, 0);
        if let Some((_, incarnation)) = known {
            peer.incarnation = incarnation;
            group.up(host, incarnation);
        }
    }

    /// A new watch has found this process of a host up, or none.
    pub(crate) fn watch_found<P: Start>(&mut self, host: HostId, process: Option<u32>, group: &mut Group<P>) {
        let before = self.peers.get(host).map_or(0, |peer| peer.process);
        match process {
            Some(process) => self.process_up(host, process, group),
            None if before != 0 => self.process_down(host, before, group),
            None => {}
        }
    }

    fn process_down<P: Start>(&mut self, host: HostId, process: u32, group: &mut Group<P>) {
        let Some(peer) = self.peers.get_mut(host).filter(|peer| peer.process == process) else { return };
        let incarnation = std::mem::take(&mut peer.incarnation);
        peer.process = 0;
        self.up.remove(host);
        if incarnation != 0 {
            group.down(host, incarnation);
        }
    }

    /// A packet has come. Whether its sender is known to be up, and speaks a version that this program speaks.
    pub(crate) fn note_packet<P: Start>(&mut self, sender: Sender, spoken: Spoken, group: &mut Group<P>) -> bool {
        let Some(peer) = self.peers.get_mut(sender.host) else { return false };
        let is_up = peer.process == sender.process && peer.incarnation == sender.incarnation;
        // A packet of a former process that comes late says nothing about the present one.
        if is_up && peer.spoken.is_some_and(|(process, _)| process == sender.process) {
            return true;
        }
        peer.spoken = Some((sender.process, spoken));
        if is_up {
            return true;
        }
        // Like one that has another key: its process is up, and no member.
        if self.mine.common(spoken).is_none() {
            return false;
        }
        peer.last_packet = Some((sender.process, sender.incarnation));
        if peer.process != sender.process || peer.incarnation != 0 {
            return false;
        }
        peer.incarnation = sender.incarnation;
        group.up(sender.host, sender.incarnation);
        true
    }

    pub(crate) fn set_spoken(&mut self, spoken: Spoken) {
        self.mine = spoken;
    }

    /// What the processes that are up speak; none of one that has not said so yet.
    fn spoken(&self) -> impl Iterator<Item = (HostId, Option<Spoken>)> {
        self.up.iter().map(|host| {
            let peer = &self.peers[host];
            (host, peer.spoken.filter(|(process, _)| *process == peer.process).map(|(_, spoken)| spoken))
        })
    }

    /// The highest versions of the group's protocol and of the service's messages that this program has in common with
    /// all processes that are up: members, and those that want to be, to which what members say now may be handed
    /// later. While one of them has not said what it speaks, the oldest ones.
    pub(crate) fn common(&self) -> (u8, u8) {
        self.spoken().fold((self.mine.group.newest, self.mine.service.newest), |(group, service), (_, spoken)| {
            match spoken {
                None => (group.min(self.mine.group.oldest), service.min(self.mine.service.oldest)),
                // One that is refused is no member, now or later.
                Some(spoken) => {
                    self.mine.common(spoken).map_or((group, service), |both| (group.min(both.0), service.min(both.1)))
                }
            }
        })
    }

    /// Hosts whose process is up and is refused, as it has no version in common with this program: what it speaks.
    pub(crate) fn refused(&self) -> impl Iterator<Item = (HostId, Spoken)> {
        let refused = |(host, spoken): (HostId, Option<Spoken>)| {
            Some((host, spoken.filter(|spoken| self.mine.common(*spoken).is_none())?))
        };
        self.spoken().filter_map(refused)
    }

    fn set_silent(&mut self, host: HostId, plane: u8, is_silent: bool) {
        if let Some(peer) = self.peers.get_mut(host) {
            let bit = 1 << (plane & 7);
            peer.silent_planes = if is_silent { peer.silent_planes | bit } else { peer.silent_planes & !bit };
        }
    }

    /// The first plane to a host that is not silent; the first one if all are.
    pub(crate) fn plane(&self, host: HostId) -> usize {
        let silent = self.peers.get(host).map_or(0, |peer| peer.silent_planes);
        let plane = silent.trailing_ones() as usize;
        if plane < fide_wire::MAX_PLANES { plane } else { 0 }
    }

    pub(crate) fn is_up(&self, host: HostId) -> bool {
        self.peers.get(host).is_some_and(|peer| peer.process != 0)
    }

    /// Whether this process is up, and its incarnation is known: it is a member, or wants to be one.
    pub(crate) fn is_member(&self, host: HostId, process: u32) -> bool {
        let peer = self.peers.get(host);
        peer.is_some_and(|peer| peer.process == process && peer.incarnation != 0)
    }

    /// Hosts whose process is up, while its incarnation is not known: no packet of it has come.
    pub(crate) fn unheard(&self) -> HostSet {
        self.up.iter().filter(|host| self.peers[*host].incarnation == 0).collect()
    }

    /// The hosts of [`Liveness::unheard`], each with its process that is up.
    pub(crate) fn unheard_processes(&self) -> impl Iterator<Item = (u16, u32)> {
        self.unheard().iter().map(|host| (host, self.peers[host].process))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn former_process_is_known_beyond_4096_joins_and_across_lives() {
        let most = FORMER_JOINS - 1;
        for (former, latest) in [(7, 8), (7, 7 + 4096), (7, 7 + most), (u32::MAX, 4), (9 << 12, 10 << 12)] {
            assert!(is_former(former, latest) && !is_former(latest, former), "{former} {latest}");
        }
        assert!(!is_former(7, 7) && !is_former(7, 0), "itself, and none");
        assert!(!is_former(7, 8 + most), "at the bound it is another life's, and up");
    }
}
