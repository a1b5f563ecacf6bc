// SPDX-License-Identifier: Apache-2.0
//! Verdicts, and the evidence that they carry.

use crate::detector::Detector;
use crate::types::*;
use fide_types::{HostId, HostSet, Reason};

impl Detector {
    pub(crate) fn evidence(&self, now_ns: u64, host: HostId, via: Via, votes: HostSet, at_ns: u64) -> Evidence {
        let peer = &self.peers[host];
        Evidence {
            observer: self.config.me,
            via,
            decided_ns: now_ns,
            last_seq: peer.last_seq,
            last_rx_ns: peer.plane_rx_ns(),
            timeout_ns: peer.timeout_ns,
            at_ns,
            own_stalls: self.counters.stalls,
            withheld: peer.withheld,
            votes,
            superseded_by: 0,
            piggybacks_lost: 0,
        }
    }

    pub(crate) fn own_evidence(&self, now_ns: u64, at_ns: u64) -> Evidence {
        let evidence = self.evidence(now_ns, self.config.me, Via::Local, HostSet::EMPTY, at_ns);
        Evidence { last_seq: self.sent.newest(), ..evidence }
    }

    /// Verdicts are numbered from 1.
    pub(crate) fn emit_verdict(
        &mut self,
        host: HostId,
        slot: u8,
        incarnation: u32,
        reason: Reason,
        evidence: Evidence,
    ) {
        self.counters.verdicts += 1;
        let id = self.counters.verdicts;
        self.emit(Event::Verdict(Verdict { id, host, slot, incarnation, reason, evidence }));
    }
}
