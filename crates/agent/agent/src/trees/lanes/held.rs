// SPDX-License-Identifier: Apache-2.0
//! One lane of this host's programs: what they asked for, what is granted, and what was reported.

use fide_types::ClientSet;
use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use fide_agent_api::event::{LaneTerms, lane_reason};
use fide_agent_api::protocol::{ErrorCode, LaneAsked, LaneOk, Refusal};
use fide_controller_api::lane::{Resources, Tree};
use fide_lane::Terms;
use fide_net::link::BEST_EFFORT;
use fide_wire::MAX_PLANES;

use super::asked::{Checked, program_period_ns};
use crate::lane::LaneCounters;

/// Packets beyond the contract within this time are one offence.
const OFFENCE: Duration = Duration::from_secs(1);

/// A step that is due later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Later {
    /// The loop begins to keep to the present terms.
    Terms,
    /// The lane is closed.
    Close,
}

#[derive(Debug)]
pub(super) struct HeldLane {
    /// The controller's number for the lane.
    pub(super) lane: u64,
    pub(super) name: String,
    pub(super) uid: u32,
    pub(super) asked: LaneAsked,
    pub(super) checked: Checked,
    pub(super) clients: ClientSet,
    /// The generation of each tree in use.
    pub(super) trees: [Option<u32>; MAX_PLANES],
    /// Requests that are answered once the lane can be used.
    pub(super) waiting: Vec<u64>,
    /// It was answered once. A change waits for no receiver: one that drops this host's packets now did so
    /// before, too.
    pub(super) is_open: bool,
    /// The latest time for its trees to be installed.
    pub(super) install_until: Instant,
    pub(super) later: Option<(Instant, Later)>,
    /// Terminated; only its grace period is left.
    pub(super) ending: bool,
    pub(super) bounded: bool,
    packet_max_bytes: usize,
    period_ns: u64,
    latency_min_ns: u64,
    jitter_max_ns: u64,
    counters: Arc<LaneCounters>,
    reported: (u64, u64),
    reported_at: Instant,
    offence_at: Option<Instant>,
}

/// The packets sent since the last report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) interval_ns: u64,
    pub(super) packets: u64,
    pub(super) exceeded: u64,
}

impl HeldLane {
    pub(super) fn new(
        lane: u64,
        name: String,
        uid: u32,
        asked: LaneAsked,
        checked: &Checked,
        counters: Arc<LaneCounters>,
    ) -> Self {
        let terms = checked.terms(&asked);
        Self {
            lane,
            name,
            uid,
            asked,
            checked: *checked,
            clients: ClientSet::EMPTY,
            trees: [None; MAX_PLANES],
            waiting: Vec::new(),
            is_open: false,
            install_until: Instant::now(),
            later: None,
            ending: false,
            bounded: true,
            packet_max_bytes: terms.packet_max_bytes,
            period_ns: terms.period_ns,
            latency_min_ns: 0,
            jitter_max_ns: 0,
            counters,
            reported: (0, 0),
            reported_at: Instant::now(),
            offence_at: None,
        }
    }

    /// Whether another program may share the lane.
    pub(super) fn may_share(&self, uid: u32, asked: &LaneAsked) -> Result<(), Refusal> {
        if uid != self.uid {
            let message = format!("lane {} belongs to user {}, the caller is user {uid}", self.name, self.uid);
            return Err(Refusal::new(ErrorCode::NotPermitted, message, "choose another name"));
        }
        if *asked != self.asked {
            let message = format!("lane {} is open, for something else", self.name);
            return Err(Refusal::new(
                ErrorCode::NameTaken,
                message,
                "ask for the same to share it, or choose another name",
            ));
        }
        Ok(())
    }

    pub(super) fn terms(&self) -> Terms {
        Terms { packet_max_bytes: self.packet_max_bytes, period_ns: self.period_ns, scheme: self.checked.scheme }
    }

    pub(super) fn type_of_service(&self) -> u8 {
        if self.bounded { self.checked.type_of_service } else { BEST_EFFORT }
    }

    pub(super) fn period(&self) -> Duration {
        Duration::from_nanos(self.period_ns)
    }

    pub(super) fn is_ready(&self) -> bool {
        let trees = self.trees.iter().flatten().count();
        trees >= self.checked.redundancy_needed && self.later.is_none() && !self.ending
    }

    /// Takes over the terms that the controller grants now.
    pub(super) fn granted(&mut self, resources: &Resources) {
        self.bounded = resources.bounds().is_some();
        (self.latency_min_ns, self.jitter_max_ns) = (0, 0);
        if let Resources::Bounded(bounds) = resources {
            self.packet_max_bytes = usize::try_from(bounds.size_max_bytes).unwrap_or(self.packet_max_bytes);
            self.period_ns = bounds.period_min_ns;
            (self.latency_min_ns, self.jitter_max_ns) = (bounds.latency_min_ns, bounds.jitter_max_ns);
        }
    }

    /// The period that its programs may send at.
    fn program_period_ns(&self) -> u64 {
        let asked = self.checked.terms(&self.asked).period_ns;
        // Rounding does not count as a change of terms.
        if self.period_ns == asked { self.asked.period_ns } else { program_period_ns(self.period_ns) }
    }

    /// Waits for the trees that are being installed anew.
    pub(super) fn await_trees(&mut self, announced: &[Tree]) {
        for tree in announced {
            let place = self.trees.get_mut(usize::from(tree.tree));
            if let Some(place) = place.filter(|place| place.is_some_and(|known| tree.generation > known)) {
                *place = None;
            }
        }
    }

    /// Why the controller's description of a lane differs from the known terms; 0 if it does not.
    pub(super) fn reason_for(&self, resources: &Resources) -> u8 {
        let same = match resources {
            Resources::Unbounded if self.bounded => return lane_reason::BW_EXCEEDED,
            Resources::Unbounded => true,
            Resources::Bounded(bounds) => {
                self.bounded
                    && (bounds.period_min_ns, bounds.latency_min_ns, bounds.jitter_max_ns)
                        == (self.period_ns, self.latency_min_ns, self.jitter_max_ns)
            }
        };
        if same { 0 } else { lane_reason::TE }
    }

    pub(super) fn answer(&self, handle: u8) -> LaneOk {
        LaneOk {
            handle,
            lane: self.lane,
            packet_max_bytes: u32::try_from(self.packet_max_bytes).unwrap_or(u32::MAX),
            message_max_bytes: self.asked.message_max_bytes,
            period_ns: self.program_period_ns(),
            bounded: self.bounded,
            latency_min_ns: self.latency_min_ns,
            jitter_max_ns: self.jitter_max_ns,
            trees: u8::try_from(self.trees.iter().flatten().count()).expect("at most 2"),
        }
    }

    pub(super) fn event(&self, reason: u8, grace_ns: u64) -> LaneTerms {
        LaneTerms {
            packet_max_bytes: u32::try_from(self.packet_max_bytes).unwrap_or(u32::MAX),
            message_max_bytes: self.asked.message_max_bytes,
            period_ns: self.program_period_ns(),
            latency_min_ns: self.latency_min_ns,
            jitter_max_ns: self.jitter_max_ns,
            grace_ns,
            reason,
            bounded: u8::from(self.bounded),
            reserved: [0; 6],
        }
    }

    /// The report that is due. An offence is reported at once, the next one not within [`OFFENCE`]; without
    /// any, a report is due after `interval`.
    pub(super) fn report(&mut self, now: Instant, interval: Duration) -> Option<Report> {
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let sent = (load(&self.counters.packets), load(&self.counters.exceeded));
        let elapsed = now.saturating_duration_since(self.reported_at);
        let offence = sent.1 != self.reported.1;
        let soon = if offence { self.offence_at.map_or(Duration::ZERO, |_| OFFENCE) } else { interval };
        let since = match self.offence_at {
            Some(at) if offence => now.saturating_duration_since(at),
            _ => elapsed,
        };
        if since < soon {
            return None;
        }
        if offence {
            self.offence_at = Some(now);
        }
        let report = Report {
            interval_ns: u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX).max(1),
            packets: sent.0 - self.reported.0,
            exceeded: sent.1 - self.reported.1,
        };
        self.reported = sent;
        self.reported_at = now;
        Some(report)
    }

    /// The report did not reach the controller: its offences are reported again, the other packets are not.
    pub(super) fn report_failed(&mut self, report: &Report) {
        self.reported.1 -= report.exceeded;
        self.offence_at = None;
    }
}

#[cfg(test)]
mod tests;
