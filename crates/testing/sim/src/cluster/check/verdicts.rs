// SPDX-License-Identifier: Apache-2.0
//! No host is declared dead while it may still act. A verdict is final, and about a host that was up.

use std::collections::BTreeMap;

use fide_detector::{Event, Verdict};
use fide_types::HostId;
use fide_wire::{HOST_SLOT, Name};

use super::{
    super::{machines::Machines, protocol::Protocol},
    Checked, violated,
};

/// What each agent has been notified of, by the place of its machine in the world.
#[derive(Debug, Default)]
pub(in super::super) struct Verdicts(BTreeMap<usize, Beliefs>);

/// What an agent has been notified of.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct Beliefs {
    /// By host and incarnation: whether it has ended.
    ended: BTreeMap<(u16, u32), bool>,
    /// By host and name: the newest process that was up.
    latest: BTreeMap<(u16, Name), u32>,
}

impl Verdicts {
    /// An observer starts anew, and knows nothing.
    pub(in super::super) fn starts(&mut self, observer: usize) {
        self.0.remove(&observer);
    }

    /// What this observer has been notified of, for the snapshot of its machine.
    pub(in super::super) fn of(&self, observer: usize) -> Beliefs {
        self.0.get(&observer).cloned().unwrap_or_default()
    }

    pub(in super::super) fn put_back(&mut self, observer: usize, beliefs: Beliefs) {
        self.0.insert(observer, beliefs);
    }

    pub(in super::super) fn notified<P: Protocol>(
        &mut self,
        at: usize,
        event: &Event,
        hosts: &Machines<P>,
        now_ns: u64,
        forgotten: bool,
    ) -> Checked {
        let (observer, beliefs) = (hosts[at].id, self.0.entry(at).or_default());
        let (host, incarnation, ended) = match *event {
            Event::Up { host, slot: HOST_SLOT, incarnation, .. } => (host, incarnation, false),
            Event::Verdict(Verdict { host, slot: HOST_SLOT, incarnation, reason, .. }) if reason.is_final() => {
                (host, incarnation, true)
            }
            Event::Up { host, incarnation, name, .. } => return beliefs.begins(observer, host, name, incarnation),
            _ => return Ok(()),
        };
        let wrong = match (beliefs.ended.insert((host, incarnation), ended), ended) {
            (None, false) | (Some(false), true) => None,
            (Some(_), false) => Some("is up twice"),
            (Some(true), true) => Some("ended twice"),
            (None, true) => Some("ended and was never up"),
        };
        if let Some(wrong) = wrong {
            return violated("verdicts", format!("h{observer}: h{host}#{incarnation} {wrong}"));
        }
        // Nothing is promised about the verdicts of a machine that was put back or runs twice
        // (docs/internals/clocks.md).
        let subject = &hosts[host];
        if ended
            && !forgotten
            && !hosts[at].is_astray()
            && subject.acts_as(incarnation, now_ns)
            && !subject.believes_as(incarnation, now_ns)
        {
            let text = format!("h{observer} declares h{host}#{incarnation} dead, which has a lease");
            return violated("nobody who acts is dead", text);
        }
        Ok(())
    }
}

impl Beliefs {
    /// A process of that name is up. Processes of one name come up in the order in which they began; their
    /// numbers do not wrap around here.
    fn begins(&mut self, observer: HostId, host: HostId, name: Name, process: u32) -> Checked {
        let latest = self.latest.entry((host, name)).or_default();
        if process < *latest {
            let text = format!("h{observer} is notified that {name} of h{host}, {process}, is up after {latest}");
            return violated("in order", text);
        }
        *latest = process;
        Ok(())
    }
}
