// SPDX-License-Identifier: Apache-2.0
//! The time without acknowledged writes after a leader was lost, by its stages.

use serde::Serialize;

/// How a leader was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Fault {
    /// kill -9.
    Killed,
    /// Stopped, and then killed.
    Stopped,
    /// Its host was cut off both networks.
    Cut,
}

impl Fault {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::Stopped => "stopped",
            Self::Cut => "cut off",
        }
    }
}

/// One gap. Times are CLOCK_MONOTONIC, ns: the hosts are on one machine and share it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gap {
    pub(super) fault: Fault,
    /// Hosts, from 1.
    pub(super) leader: usize,
    pub(super) next: usize,
    /// Before SIGSTOP; with other faults the same as `lost_ns`.
    pub(super) stopped_ns: u64,
    /// Before SIGKILL, or before the first cable was cut.
    pub(super) lost_ns: u64,
    /// The next leader's host knew of it.
    pub(super) known_ns: u64,
    /// The next leader had everything that was decided.
    pub(super) levelled_ns: u64,
    /// Its server took writes.
    pub(super) leads_ns: u64,
    /// Its first unit was decided.
    pub(super) decided_ns: u64,
    /// A client had the acknowledgement of a write.
    pub(super) acknowledged_ns: u64,
    /// The lost server follows again, with all data.
    pub(super) back_ns: u64,
}

impl Gap {
    pub(super) const STAGES: [&str; 5] = ["detect", "level", "lead", "first write", "client"];

    /// How long each stage took.
    pub(super) fn stages_ns(&self) -> [u64; 5] {
        let ends = [self.known_ns, self.levelled_ns, self.leads_ns, self.decided_ns, self.acknowledged_ns];
        let mut from = self.lost_ns;
        ends.map(|end| {
            let stage = end.saturating_sub(from);
            from = from.max(end);
            stage
        })
    }

    /// From the loss to the next acknowledged write.
    pub(super) fn total_ns(&self) -> u64 {
        self.acknowledged_ns.saturating_sub(self.lost_ns)
    }

    /// How long the leader was stopped before it was killed.
    pub(super) fn stopped_for_ns(&self) -> u64 {
        self.lost_ns.saturating_sub(self.stopped_ns)
    }

    /// `h1 killed`, `h2 stopped for 300 ms, then killed`.
    pub(super) fn what(&self) -> String {
        match self.fault {
            Fault::Stopped => {
                format!("h{} stopped, after {} ms killed", self.leader, self.stopped_for_ns() / 1_000_000)
            }
            fault => format!("h{} {}", self.leader, fault.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_add_up_to_the_gap() {
        let mut gap = Gap {
            fault: Fault::Killed,
            leader: 1,
            next: 2,
            stopped_ns: 100,
            lost_ns: 100,
            known_ns: 150,
            levelled_ns: 170,
            leads_ns: 175,
            decided_ns: 180,
            acknowledged_ns: 200,
            back_ns: 900,
        };
        assert_eq!(gap.stages_ns(), [50, 20, 5, 5, 20]);
        assert_eq!(gap.stages_ns().iter().sum::<u64>(), gap.total_ns());
        // Another client was served before the one whose write was decided first.
        gap.decided_ns = 300;
        assert_eq!(gap.stages_ns()[4], 0);
    }
}
