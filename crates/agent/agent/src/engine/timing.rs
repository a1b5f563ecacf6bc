// SPDX-License-Identifier: Apache-2.0
//! How long each peer may be silent: the timeout follows the jitter of its heartbeats and the lateness of
//! this loop.

use fide_agent_api::status::TimeoutParts;
use fide_net::jitter::{Recent, Spread};
use fide_types::{HostId, MAX_HOSTS, MAX_PLANES, PerHost};

use crate::timeout::{Network, Timeouts};

/// The measurements from which the timeouts of all peers are computed.
pub(super) struct Timing {
    timeouts: Timeouts,
    /// The recent lateness of this loop.
    own: Recent,
    own_max_ns: u64,
    /// From an earlier, long measurement: it counts whatever the loop itself observes.
    own_stored_ns: u64,
    /// No timeout falls below this.
    least_ns: u64,
    peers: PerHost<PeerTiming>,
}

#[derive(Clone, Copy, Default)]
struct PeerTiming {
    /// Per plane: if one takes longer than the other, that is no jitter.
    spreads: [Spread; MAX_PLANES],
    /// As planned by the controller.
    network: Network,
}

impl PeerTiming {
    /// The largest jitter of its heartbeats on any plane.
    fn jitter_ns(&self) -> u64 {
        self.spreads.iter().map(Spread::jitter_max_ns).max().unwrap_or(0)
    }
}

impl Timing {
    /// `own_max_ns`: the loop's measured lateness. `own_stored_ns`: its lateness in an earlier measurement,
    /// which counts whatever the loop observes. `timeout_ns`: the detector's first timeout.
    pub(super) fn new(
        now_raw_ns: u64,
        timeouts: Timeouts,
        own_max_ns: u64,
        own_stored_ns: u64,
        timeout_ns: u64,
    ) -> Self {
        Self {
            own: Recent::begin(now_raw_ns, timeouts.own_lateness_ns),
            own_max_ns,
            own_stored_ns,
            least_ns: timeouts.least_ns(own_stored_ns).min(timeout_ns),
            peers: PerHost::new(MAX_HOSTS, |_| PeerTiming::default()),
            timeouts,
        }
    }

    /// A heartbeat of a peer arrived. Whether the peer's jitter has changed.
    pub(super) fn heartbeat(&mut self, host: HostId, plane: usize, seq: u64, rx_ns: u64) -> bool {
        let peer = &mut self.peers[host];
        let before = peer.jitter_ns();
        let spread = &mut peer.spreads[plane.min(MAX_PLANES - 1)];
        spread.record(seq, self.timeouts.heartbeat_ns, rx_ns, self.timeouts.stall_ns());
        peer.jitter_ns() != before
    }

    /// A peer has another incarnation: its heartbeats are numbered anew.
    pub(super) fn begin_anew(&mut self, host: HostId) {
        self.peers[host].spreads.iter_mut().for_each(Spread::begin_anew);
    }

    /// Sets the planned network between a peer and this host. Returns whether there is such a peer.
    pub(super) fn set_network(&mut self, host: HostId, network: Network) -> bool {
        let Some(peer) = self.peers.get_mut(host) else { return false };
        peer.network = network;
        true
    }

    /// The loop was this late. That counts until it is forgotten; a stall does not count. Whether the
    /// lateness that counts has changed.
    pub(super) fn was_late(&mut self, now_raw_ns: u64, late_ns: u64) -> bool {
        self.own_max_ns = self.own_max_ns.max(late_ns);
        let counted_ns = if late_ns > self.timeouts.stall_ns() { 0 } else { late_ns };
        self.own.record(now_raw_ns, counted_ns)
    }

    /// From now on timeouts allow for the recent lateness of this loop.
    pub(super) fn follow_own(&mut self) {
        self.timeouts.own_lateness_ns = self.own.most_ns().max(self.own_stored_ns);
    }

    /// The timeout that a peer needs; `None` if the configuration fixes it.
    pub(super) fn wanted_ns(&self, host: HostId) -> Option<u64> {
        let peer = &self.peers[host];
        let planned_ns = || self.timeouts.for_jitter(peer.jitter_ns(), peer.network);
        (!self.timeouts.fixed).then(|| planned_ns().max(self.least_ns))
    }

    /// How much later one copy of a packet may be than another: the network's jitter, and how late a host
    /// may be between sending the two.
    pub(super) fn late_max_ns(&self, host: HostId) -> u64 {
        let peer = &self.peers[host];
        peer.network.jitter_max_ns + self.timeouts.stall_slack_ns(peer.jitter_ns())
    }

    /// A peer's jitter, its network, and the parts of its timeout unless the configuration fixes it.
    pub(super) fn of(&self, host: HostId) -> (u64, Network, Option<TimeoutParts>) {
        let peer = &self.peers[host];
        let jitter_ns = peer.jitter_ns();
        let parts = (!self.timeouts.fixed).then(|| self.timeouts.parts(jitter_ns, peer.network));
        (jitter_ns, peer.network, parts)
    }

    /// The largest lateness of this loop so far.
    pub(super) fn own_max_ns(&self) -> u64 {
        self.own_max_ns
    }

    /// For the next agent: jitter and network of the first `hosts` hosts, and the recent lateness of this
    /// loop.
    pub(super) fn freeze(&self, hosts: u16) -> (Vec<(u64, Network)>, u64) {
        let of = |peer: &PeerTiming| (peer.jitter_ns(), peer.network);
        (self.peers.values().iter().take(hosts.into()).map(of).collect(), self.own.most_ns())
    }

    /// Goes on with the former agent's observations, so that timeouts, and the promises made by them, do
    /// not fall at once.
    pub(super) fn resume(&mut self, now_raw_ns: u64, late: Vec<(u64, Network)>, own_late_ns: u64) {
        for (peer, (jitter_ns, network)) in self.peers.values_mut().iter_mut().zip(late) {
            peer.network = network;
            peer.spreads.iter_mut().for_each(|spread| spread.recall(now_raw_ns, jitter_ns));
        }
        self.own.record(now_raw_ns, own_late_ns);
    }
}

#[cfg(test)]
mod tests {
    use fide_net::jitter::HostKind;
    use fide_types::Trust;

    use super::*;

    const MS: u64 = 1_000_000;

    fn timing(fixed: bool) -> Timing {
        let timeouts = Timeouts {
            trust: Trust::Network,
            heartbeat_ns: MS,
            kind: HostKind::Shared,
            own_lateness_ns: 0,
            poll_ns: 0,
            fixed,
        };
        Timing::new(1, timeouts, 0, 0, 4 * MS)
    }

    #[test]
    fn fixed_timeout_never_changes() {
        let mut timing = timing(true);
        timing.heartbeat(2, 0, 1, 10 * MS);
        assert!(timing.heartbeat(2, 0, 2, 13 * MS), "two periods late");
        assert_eq!((timing.wanted_ns(2), timing.of(2).2), (None, None));
    }

    #[test]
    fn timeout_follows_peer_jitter_and_loop_lateness() {
        let mut timing = timing(false);
        let calm = timing.wanted_ns(2).expect("not fixed");
        timing.heartbeat(2, 0, 1, 10 * MS);
        assert!(!timing.heartbeat(2, 0, 2, 11 * MS), "on time");
        assert!(timing.heartbeat(2, 0, 3, 12 * MS + 3 * MS), "three periods late");
        let varies = timing.wanted_ns(2).expect("not fixed");
        assert!(varies > calm && timing.wanted_ns(3) == Some(calm), "{varies} {calm}");
        assert!(timing.was_late(20 * MS, 5 * MS));
        assert_eq!(timing.wanted_ns(3), Some(calm), "not yet");
        timing.follow_own();
        assert!(timing.wanted_ns(3) > Some(calm) && timing.own_max_ns() == 5 * MS);
    }

    #[test]
    fn slower_plane_is_no_jitter() {
        let mut timing = timing(false);
        for seq in 1..10 {
            assert!(!timing.heartbeat(2, 0, seq, 10 * MS + seq * MS), "plane 0");
            assert!(!timing.heartbeat(2, 1, seq, 13 * MS + seq * MS), "plane 1");
        }
    }

    #[test]
    fn impossible_host_has_no_network() {
        let mut timing = timing(false);
        assert!(timing.set_network(64, Network::default()));
        assert!(!timing.set_network(65, Network::default()) && !timing.set_network(0, Network::default()));
    }
}
