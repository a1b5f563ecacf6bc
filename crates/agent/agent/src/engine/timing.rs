// SPDX-License-Identifier: Apache-2.0
//! How long each peer may be silent: the timeout follows how much its heartbeats vary, and how late this loop is.

use fide_agent_api::status::TimeoutParts;
use fide_net::jitter::{Recent, Spread};
use fide_types::{MAX_HOSTS, MAX_PLANES, PerHost};

use crate::timeout::{Network, Timeouts};

/// What the timeouts of all peers are computed from.
pub(super) struct Timing {
    timeouts: Timeouts,
    /// How late this loop was of late.
    own: Recent,
    own_max_ns: u64,
    /// Measured before, for long: it counts whatever the loop sees.
    own_stored_ns: u64,
    /// No timeout falls below this.
    least_ns: u64,
    peers: PerHost<PeerTiming>,
}

#[derive(Clone, Copy, Default)]
struct PeerTiming {
    /// By plane: one may take longer than the other, which is no jitter.
    spreads: [Spread; MAX_PLANES],
    /// As the controller has planned it.
    network: Network,
}

impl PeerTiming {
    /// The most that its heartbeats were seen to vary on any plane.
    fn jitter_ns(&self) -> u64 {
        self.spreads.iter().map(Spread::jitter_max_ns).max().unwrap_or(0)
    }
}

impl Timing {
    /// `own_max_ns` is how late the loop was measured to be, `own_stored_ns` how late it was in a measurement that counts whatever is
    /// seen, `timeout_ns` what the detector begins with.
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

    /// A heartbeat of a peer arrived. Whether its heartbeats vary more, or less, than was known.
    pub(super) fn heartbeat(&mut self, host: u16, plane: usize, seq: u64, rx_ns: u64) -> bool {
        let peer = &mut self.peers[host];
        let before = peer.jitter_ns();
        let spread = &mut peer.spreads[plane.min(MAX_PLANES - 1)];
        spread.record(seq, self.timeouts.heartbeat_ns, rx_ns, self.timeouts.stall_ns());
        peer.jitter_ns() != before
    }

    /// A peer is another incarnation: its heartbeats are numbered anew.
    pub(super) fn begin_anew(&mut self, host: u16) {
        self.peers[host].spreads.iter_mut().for_each(Spread::begin_anew);
    }

    /// The network between a peer and this host is planned to add this. Whether there is such a peer.
    pub(super) fn set_network(&mut self, host: u16, network: Network) -> bool {
        let Some(peer) = self.peers.get_mut(host) else { return false };
        peer.network = network;
        true
    }

    /// The loop was so late. It counts until it is forgotten, and a stall does not count. Whether what counts has changed.
    pub(super) fn was_late(&mut self, now_raw_ns: u64, late_ns: u64) -> bool {
        self.own_max_ns = self.own_max_ns.max(late_ns);
        let counted_ns = if late_ns > self.timeouts.stall_ns() { 0 } else { late_ns };
        self.own.record(now_raw_ns, counted_ns)
    }

    /// From now on timeouts allow for what this loop was late by of late.
    pub(super) fn follow_own(&mut self) {
        self.timeouts.own_lateness_ns = self.own.most_ns().max(self.own_stored_ns);
    }

    /// The timeout that a peer needs; `None` if the configuration fixes it.
    pub(super) fn wanted_ns(&self, host: u16) -> Option<u64> {
        let peer = &self.peers[host];
        let planned_ns = || self.timeouts.for_jitter(peer.jitter_ns(), peer.network);
        (!self.timeouts.fixed).then(|| planned_ns().max(self.least_ns))
    }

    /// How much later one copy of a packet may be than another: what the network may take beyond its least, and what a host may
    /// be late between sending two.
    pub(super) fn late_max_ns(&self, host: u16) -> u64 {
        let peer = &self.peers[host];
        peer.network.jitter_max_ns + self.timeouts.stall_slack_ns(peer.jitter_ns())
    }

    /// How much a peer's heartbeats vary, what its network adds, and what its timeout is made of unless the configuration fixes it.
    pub(super) fn of(&self, host: u16) -> (u64, Network, Option<TimeoutParts>) {
        let peer = &self.peers[host];
        let jitter_ns = peer.jitter_ns();
        let parts = (!self.timeouts.fixed).then(|| self.timeouts.parts(jitter_ns, peer.network));
        (jitter_ns, peer.network, parts)
    }

    /// The latest that this loop ever was.
    pub(super) fn own_max_ns(&self) -> u64 {
        self.own_max_ns
    }

    /// For the next agent: jitter and network of so many hosts, and how late this loop was of late.
    pub(super) fn freeze(&self, hosts: u16) -> (Vec<(u64, Network)>, u64) {
        let of = |peer: &PeerTiming| (peer.jitter_ns(), peer.network);
        (self.peers.values().iter().take(hosts.into()).map(of).collect(), self.own.most_ns())
    }

    /// As the agent before has seen it: its timeouts, and what it promised by them, do not fall at once.
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
        let timeouts =
            Timeouts { trust: Trust::Network, heartbeat_ns: MS, kind: HostKind::Shared, own_lateness_ns: 0, fixed };
        Timing::new(1, timeouts, 0, 0, 4 * MS)
    }

    #[test]
    fn a_fixed_timeout_follows_nothing() {
        let mut timing = timing(true);
        timing.heartbeat(2, 0, 1, 10 * MS);
        assert!(timing.heartbeat(2, 0, 2, 13 * MS), "two periods late");
        assert_eq!((timing.wanted_ns(2), timing.of(2).2), (None, None));
    }

    #[test]
    fn the_timeout_follows_a_peer_that_varies_and_a_loop_that_is_late() {
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
    fn a_plane_that_takes_longer_is_no_jitter() {
        let mut timing = timing(false);
        for seq in 1..10 {
            assert!(!timing.heartbeat(2, 0, seq, 10 * MS + seq * MS), "plane 0");
            assert!(!timing.heartbeat(2, 1, seq, 13 * MS + seq * MS), "plane 1");
        }
    }

    #[test]
    fn a_host_that_cannot_be_has_no_network() {
        let mut timing = timing(false);
        assert!(timing.set_network(64, Network::default()));
        assert!(!timing.set_network(65, Network::default()) && !timing.set_network(0, Network::default()));
    }
}
