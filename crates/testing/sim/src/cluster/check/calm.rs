// SPDX-License-Identifier: Apache-2.0
//! While there is no fault, no running host is declared dead.

use std::collections::BTreeSet;

use fide_detector::{Event, Reason, Verdict};
use fide_types::HostId;
use fide_wire::HOST_SLOT;

use super::{
    super::{machines::Machines, plan::Plan, protocol::Protocol},
    Checked, violated,
};
use crate::cluster::plan::MS;

/// Time for what is under way when the last fault is mended: reports of silence, ballots.
const SETTLES_NS: u64 = 10 * MS;

/// Since when there has been no fault: no host is paused, and all hosts that start have started.
#[derive(Debug)]
pub(in super::super) struct Calm {
    since_ns: u64,
    /// Host and incarnation of hosts that have acted since then. A host that was alone and fenced before may
    /// be dropped by hosts that come back.
    acted: BTreeSet<(u16, u32)>,
}

impl Calm {
    pub(in super::super) const NONE: Self = Self { since_ns: u64::MAX, acted: BTreeSet::new() };

    /// A host may act.
    pub(in super::super) fn acts(&mut self, host: HostId, incarnation: u32, now_ns: u64) {
        if now_ns >= self.since_ns {
            self.acted.insert((host, incarnation));
        }
    }

    /// There is no fault from then on.
    pub(in super::super) fn begins(&mut self, at_ns: u64) {
        self.since_ns = at_ns;
    }

    /// A host starts, or runs again: it cannot be heard before.
    pub(in super::super) fn but_from(&mut self, at_ns: u64) {
        if self.since_ns != u64::MAX {
            self.since_ns = self.since_ns.max(at_ns);
        }
    }

    /// An agent has this event, long after the last fault.
    pub(in super::super) fn notified<P: Protocol>(
        &self,
        plan: &Plan,
        hosts: &Machines<P>,
        at: usize,
        event: &Event,
        now_ns: u64,
    ) -> Checked {
        let longest_ns = plan.promises.values().iter().copied().max().unwrap_or(0);
        if now_ns <= self.since_ns.saturating_add(longest_ns + SETTLES_NS) {
            return Ok(());
        }
        // A host that gives up a view itself, because too few of its members are left, is not declared dead
        // by others.
        let Event::Verdict(Verdict { host, slot: HOST_SLOT, incarnation, reason: Reason::HostSilent, .. }) = *event
        else {
            return Ok(());
        };
        let subject = &hosts[host];
        let acted = self.acted.contains(&(host, incarnation));
        if acted && subject.agent.is_some() && subject.incarnation == incarnation && !subject.leaves {
            let text = format!("h{} has {event:?}, and h{host}#{incarnation} runs and is heard", hosts[at].id);
            return violated("nobody is put out where all is well", text);
        }
        Ok(())
    }
}
