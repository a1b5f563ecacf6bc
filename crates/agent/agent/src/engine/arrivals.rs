// SPDX-License-Identifier: Apache-2.0
//! The newest heartbeat of each peer on each plane.

use fide_lane::{Copies, Finding};
use fide_types::{HostId, MAX_HOSTS, MAX_PLANES, PerHost};

/// The heartbeats that have arrived from each peer.
pub(super) struct Arrivals(PerHost<Arrived>);

#[derive(Clone, Copy, Default)]
struct Arrived {
    incarnation: u32,
    seq: [u64; MAX_PLANES],
    copies: Copies,
}

impl Arrivals {
    pub(super) fn new() -> Self {
        Self(PerHost::new(MAX_HOSTS, |_| Arrived::default()))
    }

    /// Whether this heartbeat differs from the last one of its plane.
    pub(super) fn is_new(&self, host: HostId, plane: usize, incarnation: u32, seq: u64) -> bool {
        let arrived = &self.0[host];
        (arrived.incarnation, arrived.seq[plane]) != (incarnation, seq)
    }

    /// Notes a heartbeat. Whether its peer has another incarnation than before.
    pub(super) fn note(&mut self, host: HostId, plane: usize, incarnation: u32, seq: u64) -> bool {
        let arrived = &mut self.0[host];
        let is_other = arrived.incarnation != incarnation;
        if is_other {
            (arrived.incarnation, arrived.seq) = (incarnation, [0; MAX_PLANES]);
        }
        arrived.seq[plane.min(MAX_PLANES - 1)] = seq;
        is_other
    }

    /// Notes the copy of a heartbeat that came over this tree. Returns what the copies now show of a tree.
    pub(super) fn copy(
        &mut self,
        host: HostId,
        plane: usize,
        seq: u64,
        rx_ns: u64,
        late_max_ns: u64,
    ) -> Option<(usize, Finding)> {
        self.0[host].copies.arrived(plane, seq, rx_ns, late_max_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_plane_has_its_own_newest_heartbeat() {
        let mut arrivals = Arrivals::new();
        assert!(arrivals.is_new(2, 0, 7, 1));
        assert!(arrivals.note(2, 0, 7, 1), "the first incarnation");
        assert!(!arrivals.is_new(2, 0, 7, 1) && arrivals.is_new(2, 1, 7, 1));
        assert!(!arrivals.note(2, 1, 7, 1));
        assert!(arrivals.is_new(2, 0, 8, 1), "another incarnation numbers anew");
        assert!(arrivals.note(2, 0, 8, 1) && arrivals.is_new(2, 1, 8, 1));
    }
}
