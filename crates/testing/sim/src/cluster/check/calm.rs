// SPDX-License-Identifier: Apache-2.0
//! Where all is well nobody is put out.

use std::collections::BTreeSet;

use fide_detector::{Event, Reason, Verdict};
use fide_wire::HOST_SLOT;

use super::{
    super::{machines::Machines, plan::Plan, protocol::Protocol},
    Checked, violated,
};
use crate::cluster::plan::MS;

/// What is on its way when the last fault is mended: reports of silence, ballots.
const SETTLES_NS: u64 = 10 * MS;

/// Since when there is no fault any more, nobody stands still, and all that start have started.
#[derive(Debug)]
pub(in super::super) struct Calm {
    since_ns: u64,
    /// Host and incarnation of those that have acted since. Who was alone and fenced before may be put out by those who come back.
    acted: BTreeSet<(u16, u32)>,
}

impl Calm {
    pub(in super::super) const NONE: Self = Self { since_ns: u64::MAX, acted: BTreeSet::new() };

    /// A host may act.
    pub(in super::super) fn acts(&mut self, host: u16, incarnation: u32, now_ns: u64) {
        if now_ns >= self.since_ns {
            self.acted.insert((host, incarnation));
        }
    }

    /// All is well from then on.
    pub(in super::super) fn begins(&mut self, at_ns: u64) {
        self.since_ns = at_ns;
    }

    /// A host starts, or runs again: it is not heard before.
    pub(in super::super) fn but_from(&mut self, at_ns: u64) {
        if self.since_ns != u64::MAX {
            self.since_ns = self.since_ns.max(at_ns);
        }
    }

    /// An agent is told this, long after.
    pub(in super::super) fn told<P: Protocol>(
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
        // Who gives up a view by itself, as too few of it are left, is not put out by others.
        let Event::Verdict(Verdict { host, slot: HOST_SLOT, incarnation, reason: Reason::HostSilent, .. }) = *event
        else {
            return Ok(());
        };
        let subject = &hosts[host];
        let acted = self.acted.contains(&(host, incarnation));
        if acted && subject.agent.is_some() && subject.incarnation == incarnation && !subject.leaves {
            let text = format!("h{} is told {event:?}, and h{host}#{incarnation} runs and is heard", hosts[at].id);
            return violated("nobody is put out where all is well", text);
        }
        Ok(())
    }
}
