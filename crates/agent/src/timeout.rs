// SPDX-License-Identifier: Apache-2.0
//! Which timeout this host can hold.

use fide_lane::jitter::{HostKind, STALL_FACTOR, bound_ns};

use crate::config::Trust;

/// One-way latency assumed between two hosts of a cluster until it is measured: a few switches.
pub const LATENCY_MIN_NS: u64 = 100_000;

/// What the network between two hosts adds (FiDe §3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// lambda_min.
    pub latency_min_ns: u64,
    /// The network's part of delta_max; the hosts' comes beside it.
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
    /// How late this host's own loop was measured to be: what every timeout allows for, whatever was observed.
    pub own_lateness_ns: u64,
    /// The configuration fixed the timeout: measurements do not raise it.
    pub fixed: bool,
}

impl Timeouts {
    /// The timeout for a pair whose heartbeats were seen to vary by `observed_ns`, over such a network.
    ///
    /// Under `trust = "network"` it is the published one (FiDe §3.3). Under a lease the
    /// acknowledgement must come back before the lease runs out: a heartbeat to be sent, its way
    /// there, the peer's next heartbeat, its way back, this loop's next turn; each may be late once.
    #[must_use]
    pub fn for_jitter(&self, observed_ns: u64, network: Network) -> u64 {
        let late_ns = observed_ns.max(self.own_lateness_ns).min(self.stall_ns());
        let jitter_max_ns = bound_ns(self.kind, late_ns) + network.jitter_max_ns;
        match self.trust {
            Trust::Network => fide_detector::timeout_ns(self.heartbeat_ns, network.latency_min_ns, jitter_max_ns),
            Trust::Lease => 3 * self.heartbeat_ns + 2 * network.latency_min_ns + 3 * jitter_max_ns,
        }
    }

    /// A heartbeat later than this is a stall, which no timeout should follow.
    #[must_use]
    pub fn stall_ns(&self) -> u64 {
        STALL_FACTOR * self.kind.jitter_floor_ns()
    }

    /// How late the loop may be before it counts as stalled: more than what the timeout allows for.
    #[must_use]
    pub fn stall_slack_ns(&self, lateness_ns: u64) -> u64 {
        bound_ns(self.kind, lateness_ns.min(self.stall_ns()))
    }
}

/// The timeout in the configuration is one this host was measured not to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "timeout_us = {} is below what this host was measured to hold: {} us \
     (heartbeat {} us, own lateness up to {} us; {kind:?} core). \
     Use at least that, leave timeout_us out, or start with --force-timeout",
    .wanted_ns / 1000, .measured_ns / 1000, .heartbeat_ns / 1000, .lateness_ns / 1000
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
    fn the_published_timeout_and_the_room_for_an_acknowledgement() {
        let network = Timeouts {
            trust: Trust::Network,
            heartbeat_ns: 1_000_000,
            kind: HostKind::Shared,
            own_lateness_ns: 0,
            fixed: false,
        };
        let (assumed, planned) = (Network::default(), Network { latency_min_ns: 20_000, jitter_max_ns: 500_000 });
        assert_eq!(network.for_jitter(0, assumed), 1_000_000 + 100_000 + 2 * 3_500_000);
        assert_eq!(network.for_jitter(0, planned), 1_000_000 + 20_000 + 2 * (3_500_000 + 500_000));
        let lease = Timeouts { trust: Trust::Lease, ..network };
        assert!(lease.for_jitter(0, assumed) > network.for_jitter(0, assumed) + 2 * 1_000_000);
        assert!(lease.for_jitter(8_000_000, assumed) > lease.for_jitter(0, assumed), "follows what is observed");
        assert!(lease.for_jitter(0, planned) > lease.for_jitter(0, assumed), "follows what is planned");
        let late = Timeouts { own_lateness_ns: 8_000_000, ..lease };
        assert_eq!(late.for_jitter(0, assumed), lease.for_jitter(8_000_000, assumed));
        assert!(late.for_jitter(0, planned) > late.for_jitter(0, assumed), "also where this host is late itself");
    }
}
