// SPDX-License-Identifier: Apache-2.0
//! All that one end knows of a connection at a time, as numbers: what `fide pace top` shows.

use super::{Counts, Transport, clock_us};
use crate::step::{Paces, Step};

/// A connection at a time, as one end knows it. Plain numbers: taking one allocates nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// The paces of the way from here to there, and of the way back.
    pub there: Paces,
    pub back: Paces,
    /// Messages that wait: to be sent here; at the other end for its application; here for this application.
    pub waiting_to_leave: u64,
    pub waiting_there: u64,
    pub waiting_here: u64,
    /// Bytes a second: what the network is believed to take (none: not known yet), and at which packets leave.
    pub network_bytes_per_s: Option<u64>,
    pub paced_bytes_per_s: u64,
    /// Round trips in microseconds: the running mean, and the shortest of the last seconds. None before the first. What
    /// the mean is longer is the queue.
    pub round_trip_us: Option<u64>,
    pub shortest_us: Option<u64>,
    /// How far this end may be wrong about the other end's clock, in microseconds; none before the first round trip.
    pub clock_uncertainty_us: Option<u64>,
    /// By how much that is ahead, in microseconds ([`Transport::peer_clock`]), and how much faster it runs, in microseconds for each second.
    pub clock_ahead_us: Option<i64>,
    pub drift_ppm: i64,
    /// The mean time of packets on the way there and on the way here, in microseconds; each may be wrong by the uncertainty.
    pub one_way_us: Option<u64>,
    pub one_way_here_us: Option<u64>,
    /// The total paces of this end's application in nanoseconds, as it sends and as it takes messages: from one turn to the next, with all
    /// that it waits for.
    pub send_total_ns: Option<u64>,
    pub deliver_total_ns: Option<u64>,
    pub in_flight_bytes: u64,
    pub window_bytes: u64,
    /// Bytes of the largest packet that the path takes.
    pub packet_bytes: u64,
    /// Packets of this end that have come, and that were lost.
    pub came_packets: u64,
    pub lost_packets: u64,
    /// From sending to expiry, unless a message has a deadline of its own.
    pub deadline_ns: u64,
    pub counts: Counts,
    pub is_over: bool,
    /// Packets are written so long before they leave, for a host that keeps their times; 0: a timer of this end does.
    pub written_ahead_ns: u64,
}

impl Transport {
    /// All numbers at once.
    #[must_use]
    pub fn snapshot(&self, now_ns: u64) -> Snapshot {
        let now_ns = self.own.of(now_ns);
        let (here, peer) = (self.own_paces(now_ns), self.peer_paces.paces_ns);
        // A sender knows the first three steps of its direction, and the receiver the other two.
        let way = |sender: [u64; 5], receiver: [u64; 5]| {
            let mut paces = Paces::default();
            for (at, step) in Step::ALL.into_iter().enumerate() {
                let end = if step <= Step::Network { sender } else { receiver };
                paces.set(step, end[at]);
            }
            paces
        };
        let losses = self.flight.losses();
        let is_known = self.trips.is_known();
        Snapshot {
            there: way(here, peer),
            back: way(peer, here),
            waiting_to_leave: self.sender.waiting() as u64,
            waiting_there: self.peer_paces.waiting.into(),
            waiting_here: self.receiver.waiting() as u64,
            network_bytes_per_s: self.congestion.path_bytes_per_s(),
            paced_bytes_per_s: self.congestion.bytes_per_s(),
            round_trip_us: is_known.then(|| self.trips.smoothed_us()),
            shortest_us: is_known.then(|| self.trips.shortest_us()),
            clock_uncertainty_us: self.trips.offset(clock_us(now_ns)).map(|offset| offset.uncertainty_us),
            clock_ahead_us: self.peer_clock(now_ns).map(|offset| offset.us),
            drift_ppm: self.trips.drift_ppm(),
            one_way_us: self.one_way_us,
            one_way_here_us: self.one_way_here_us,
            send_total_ns: self.send_total_ns(now_ns),
            deliver_total_ns: self.deliver_total_ns(),
            in_flight_bytes: self.flight.bytes(),
            window_bytes: self.congestion.window_bytes(),
            packet_bytes: self.packet_max() as u64,
            came_packets: losses.received(),
            lost_packets: losses.lost(),
            deadline_ns: self.config.deadline_ns,
            counts: self.counts(),
            is_over: self.closed.is_some(),
            written_ahead_ns: self.ahead_ns,
        }
    }
}
