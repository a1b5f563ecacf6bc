// SPDX-License-Identifier: Apache-2.0
//! What the agent tells of the other members' processes, as incarnations of members.
//!
//! An agent numbers processes anew when it starts, so that its numbers go round. A member has a number of its own, which it
//! remembers and which only grows; every packet carries both. A process that the agent says is up, and of which no packet has
//! come yet, is one of which nothing is known: as long as that lasts nobody else's word is taken for its death.
//!
//! **Order.** The agent tells of the processes of one name in the order in which they began, and a new one means that the one before
//! is over ([`fide_client::Event::Up`]). What it tells of an earlier one afterwards changes nothing here: the numbers say which is the
//! earlier. They go round, and those of a later life are higher, however many processes an agent has numbered in one
//! (`reserve` in `agent/src/incarnation.rs`).

use fide_agreement::{
    Group, HostSet, Start,
    planted::{self, Planted},
};
use fide_client::{Event, HOST_SLOT, Reason, Verdict};
use fide_wire::MAX_HOSTS;

use crate::packet::Sender;

#[derive(Debug, Clone, Copy, Default)]
struct Peer {
    /// As its agent tells it; 0: none is up.
    process: u32,
    /// The one that began last, of those that were told, whether it is up or not.
    latest: u32,
    /// In the group; 0: not known yet.
    member: u32,
    /// From its last packet.
    said: Option<(u32, u32)>,
    /// Bit p: plane p to it is silent.
    lost: u8,
}

/// What is heard of all others.
#[derive(Debug, Clone)]
pub(crate) struct Ears {
    /// By id - 1.
    peers: [Peer; MAX_HOSTS],
    /// Those with a process that is up.
    up: HostSet,
    /// CLOCK_MONOTONIC of the last death that was told.
    pub(crate) death_ns: u64,
    /// The agent had more to tell than there was room for.
    pub(crate) lost_events: bool,
}

impl Default for Ears {
    fn default() -> Self {
        Self { peers: [Peer::default(); MAX_HOSTS], up: HostSet::EMPTY, death_ns: 0, lost_events: false }
    }
}

/// Joins of one host between two processes of which it is still known which is the former. Lives begin by the clock, 4096 numbers a second,
/// so that after twelve days they come round; within so many numbers, 16 s, behind a process of which it was told a later one is taken
/// for a former one. What an agent tells in order needs none of this.
const FORMER_JOINS: u32 = 1 << 16;

/// Whether a process began before another one of that host.
fn is_former(process: u32, latest: u32) -> bool {
    let behind = latest.wrapping_sub(process);
    latest != 0 && (1..FORMER_JOINS).contains(&behind) && !planted::is(Planted::TellsTheFormer)
}

impl Ears {
    fn peer(&mut self, host: u16) -> Option<&mut Peer> {
        self.peers.get_mut(usize::from(host).wrapping_sub(1))
    }

    /// Nobody is known to be up.
    pub(crate) fn begin_anew(&mut self) {
        for peer in &mut self.peers {
            (peer.process, peer.member) = (0, 0);
        }
        self.up = HostSet::EMPTY;
    }

    /// An event of the agent. False if it ends this member: the others go on without it.
    pub(crate) fn told<P: Start>(&mut self, event: &Event, group: &mut Group<P>) -> bool {
        match event {
            Event::Up { evidence, .. } if evidence.slot != HOST_SLOT => {
                self.up(evidence.host_id, evidence.incarnation, group);
            }
            Event::Verdict(Verdict { reason, evidence, .. })
                if evidence.slot != HOST_SLOT && !matches!(reason, Reason::Stalled | Reason::Recovered) =>
            {
                self.down(evidence.host_id, evidence.incarnation, group);
                self.death_ns = evidence.rx_ns;
            }
            // Up to the caller: it asks anew.
            Event::Lost { .. } => self.lost_events = !planted::is(Planted::MissesTheLost),
            Event::PathLost { host_id, plane } => self.path(*host_id, *plane, true),
            Event::PathRestored { host_id, plane } => self.path(*host_id, *plane, false),
            // This process is another one to the others now.
            Event::Rejoined { .. } | Event::Reattached { resumed: false } | Event::Dropped { .. } => return false,
            _ => {}
        }
        true
    }

    pub(crate) fn up<P: Start>(&mut self, host: u16, process: u32, group: &mut Group<P>) {
        let is_news = |peer: &&mut Peer| peer.process != process && !is_former(process, peer.latest);
        let Some(peer) = self.peer(host).filter(is_news) else { return };
        let before = peer.process;
        let said = peer.said.filter(|(said, _)| *said == process);
        if before != 0 {
            self.down(host, before, group);
        }
        if process != 0 {
            self.up.insert(host);
        }
        let Some(peer) = self.peer(host) else { return };
        (peer.process, peer.latest, peer.member) = (process, process, 0);
        if let Some((_, member)) = said {
            peer.member = member;
            group.up(host, member);
        }
    }

    /// What the agent knows of a process now: none, or which is up.
    pub(crate) fn now_up<P: Start>(&mut self, host: u16, process: Option<u32>, group: &mut Group<P>) {
        let before = self.peer(host).map_or(0, |peer| peer.process);
        match process {
            Some(process) => self.up(host, process, group),
            None if before != 0 => self.down(host, before, group),
            None => {}
        }
    }

    pub(crate) fn down<P: Start>(&mut self, host: u16, process: u32, group: &mut Group<P>) {
        let Some(peer) = self.peer(host).filter(|peer| peer.process == process) else { return };
        let member = std::mem::take(&mut peer.member);
        peer.process = 0;
        self.up.remove(host);
        if member != 0 {
            group.down(host, member);
        }
    }

    /// A packet has come: false if its sender is not known to be up.
    pub(crate) fn heard<P: Start>(&mut self, sender: Sender, group: &mut Group<P>) -> bool {
        let Some(peer) = self.peer(sender.host) else { return false };
        if peer.process == sender.process && peer.member == sender.incarnation {
            return true;
        }
        peer.said = Some((sender.process, sender.incarnation));
        if peer.process != sender.process || peer.member != 0 {
            return false;
        }
        peer.member = sender.incarnation;
        group.up(sender.host, sender.incarnation);
        true
    }

    fn path(&mut self, host: u16, plane: u8, lost: bool) {
        if let Some(peer) = self.peer(host) {
            let bit = 1 << (plane & 7);
            peer.lost = if lost { peer.lost | bit } else { peer.lost & !bit };
        }
    }

    /// The first plane that is not silent; the first of all if every one is.
    pub(crate) fn plane(&self, host: u16) -> usize {
        let lost = self.peers.get(usize::from(host).wrapping_sub(1)).map_or(0, |peer| peer.lost);
        let plane = lost.trailing_ones() as usize;
        if plane < fide_wire::MAX_PLANES { plane } else { 0 }
    }

    pub(crate) fn is_up(&self, host: u16) -> bool {
        self.peers.get(usize::from(host).wrapping_sub(1)).is_some_and(|peer| peer.process != 0)
    }

    /// Whether this process is known to be a member, or to want to be one.
    pub(crate) fn is_member(&self, host: u16, process: u32) -> bool {
        let peer = self.peers.get(usize::from(host).wrapping_sub(1));
        peer.is_some_and(|peer| peer.process == process && peer.member != 0)
    }

    /// Hosts whose process is up, and not known as a member.
    pub(crate) fn unknown(&self) -> HostSet {
        let unknown = |host: &u16| self.peers[usize::from(*host) - 1].member == 0;
        self.up.iter().filter(unknown).collect()
    }

    /// Of each host of [`Ears::unknown`] the process that is up.
    pub(crate) fn silent(&self) -> impl Iterator<Item = (u16, u32)> {
        self.unknown().iter().map(|host| (host, self.peers[usize::from(host) - 1].process))
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
