// SPDX-License-Identifier: Apache-2.0
//! The shortest timeout that this host can hold.

use fide_agent_api::status::{JitterOf, TimeoutParts};
use fide_net::jitter::{HostKind, STALL_FACTOR, bound_ns};
use fide_types::Time;

use serde::{Deserialize, Serialize};

use crate::config::Trust;

/// One-way latency assumed between two hosts of a cluster until it is measured: a few switches.
pub const LATENCY_MIN_NS: u64 = 100_000;

/// What the network between two hosts adds (FiDe §3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// lambda_min.
    pub latency_min_ns: u64,
    /// The network's part of delta_max; the hosts' part is added.
    pub jitter_max_ns: u64,
}

impl Default for Network {
    /// Until a controller has planned it.
    fn default() -> Self {
        Self { latency_min_ns: LATENCY_MIN_NS, jitter_max_ns: 0 }
    }
}

/// Everything a timeout is computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    pub trust: Trust,
    pub heartbeat_ns: u64,
    pub kind: HostKind,
    /// The lateness of this host's own loop, which every timeout allows for, whatever was observed. From an
    /// earlier measurement; without one, from the calibration, and later from the loop's recent lateness.
    pub own_lateness_ns: u64,
    /// How long a packet may lie in memory before this host's loop looks for it; 0: it is woken by each.
    pub poll_ns: u64,
    /// The configuration fixed the timeout: measurements do not raise it.
    pub fixed: bool,
}

/// The sum of a timeout's parts.
fn sum_ns(parts: &TimeoutParts, heartbeat_ns: u64, network: Network) -> u64 {
    parts.periods * heartbeat_ns + parts.ways * network.latency_min_ns + parts.jitters * parts.jitter_ns
}

impl Timeouts {
    /// The timeout for a pair whose heartbeats were seen to vary by `observed_ns`, over such a network.
    ///
    /// Under `trust = "network"` it is the published one (FiDe §3.3). Under a lease the acknowledgement
    /// must come back before the lease runs out. A lease counts from the moment when a heartbeat was sent,
    /// and lasts until the next heartbeat's acknowledgement is seen. That takes up to a period until the
    /// next heartbeat is sent, its way there, up to a period until the peer's next heartbeat, its way back,
    /// and up to a period until this loop's next turn. The peer may be late once and this host once; each
    /// jitter covers a whole way, with sender, network and receiver. A host that is late twice within these
    /// periods is fenced until its next turn, and then may act again.
    #[must_use]
    pub fn for_jitter(&self, observed_ns: u64, network: Network) -> u64 {
        sum_ns(&self.parts(observed_ns, network), self.heartbeat_ns, network)
    }

    /// The shortest possible timeout on a host with this measured lateness, unless the configuration fixes
    /// it.
    #[must_use]
    pub fn least_ns(&self, measured_ns: u64) -> u64 {
        match self.fixed {
            true => u64::MAX,
            false => Self { own_lateness_ns: measured_ns, ..*self }.for_jitter(0, Network::default()),
        }
    }

    /// The parts of [`Timeouts::for_jitter`].
    #[must_use]
    pub fn parts(&self, observed_ns: u64, network: Network) -> TimeoutParts {
        let own_ns = self.own_lateness_ns + self.poll_ns;
        let late_ns = observed_ns.max(own_ns).min(self.stall_ns());
        let hosts_ns = bound_ns(self.kind, late_ns);
        let jitter_of = match hosts_ns {
            hosts_ns if hosts_ns == self.kind.jitter_floor_ns() => JitterOf::Least,
            _ if observed_ns < own_ns => JitterOf::Own,
            _ => JitterOf::Seen,
        };
        let (periods, ways) = match self.trust {
            Trust::Network => (1, 1),
            Trust::Lease => (3, 2),
        };
        let (jitter_ns, network_ns) = (hosts_ns + network.jitter_max_ns, network.jitter_max_ns);
        TimeoutParts { periods, ways, jitters: 2, jitter_ns, network_ns, jitter_of }
    }

    /// A heartbeat later than this shows a stall, which no timeout should follow.
    #[must_use]
    pub fn stall_ns(&self) -> u64 {
        STALL_FACTOR * self.kind.jitter_floor_ns()
    }

    /// How late the loop may be before it counts as stalled: more than the timeout allows for.
    #[must_use]
    pub fn stall_slack_ns(&self, lateness_ns: u64) -> u64 {
        bound_ns(self.kind, lateness_ns.min(self.stall_ns()))
    }
}

/// The configured timeout is shorter than the one that this host was measured to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "timeout_us = {} is below what this host was measured to hold: {} ({} us; heartbeat {}, own lateness up to {}, {kind}). \
     Use at least that, leave timeout_us out, or start with --force-timeout",
    .wanted_ns / 1000, Time::ns(*.measured_ns), .measured_ns.div_ceil(1000), Time::ns(*.heartbeat_ns), Time::ns(*.lateness_ns)
)]
pub struct TimeoutTooShort {
    pub wanted_ns: u64,
    pub measured_ns: u64,
    pub heartbeat_ns: u64,
    pub lateness_ns: u64,
    pub kind: HostKind,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeout_is_as_published_plus_room_for_an_acknowledgement() {
        let network = Timeouts {
            trust: Trust::Network,
            heartbeat_ns: 1_000_000,
            kind: HostKind::Shared,
            own_lateness_ns: 0,
            poll_ns: 0,
            fixed: false,
        };
        let (assumed, planned) = (Network::default(), Network { latency_min_ns: 20_000, jitter_max_ns: 500_000 });
        assert_eq!(network.for_jitter(0, assumed), 1_000_000 + 100_000 + 2 * 3_500_000);
        assert_eq!(network.for_jitter(0, planned), 1_000_000 + 20_000 + 2 * (3_500_000 + 500_000));
        let lease = Timeouts { trust: Trust::Lease, ..network };
        assert_eq!(lease.for_jitter(0, assumed), 3_000_000 + 2 * 100_000 + 2 * 3_500_000);
        // FiDe §3.3 says the same.
        let published = fide_detector::timeout_ns(1_000_000, 20_000, 4_000_000);
        assert_eq!(network.for_jitter(0, planned), published);
        assert!(lease.for_jitter(8_000_000, assumed) > lease.for_jitter(0, assumed), "follows what is observed");
        assert!(lease.for_jitter(0, planned) > lease.for_jitter(0, assumed), "follows what is planned");
        let late = Timeouts { own_lateness_ns: 8_000_000, ..lease };
        assert_eq!(late.for_jitter(0, assumed), lease.for_jitter(8_000_000, assumed));
        let of = |timeouts: Timeouts, observed_ns| timeouts.parts(observed_ns, assumed).jitter_of;
        let all = [of(lease, 0), of(lease, 2_000_000), of(lease, 3_000_000), of(late, 0), of(late, 9_000_000)];
        assert_eq!(all, [JitterOf::Least, JitterOf::Least, JitterOf::Seen, JitterOf::Own, JitterOf::Seen]);
        assert!(late.for_jitter(0, planned) > late.for_jitter(0, assumed), "also where this host is late itself");
        // What lies in memory until it is looked for is late by as much.
        let polled = Timeouts { own_lateness_ns: 6_000_000, poll_ns: 2_000_000, ..lease };
        assert_eq!(polled.for_jitter(0, assumed), late.for_jitter(0, assumed));
        assert_eq!(of(polled, 7_000_000), JitterOf::Own);
    }
}
