// SPDX-License-Identifier: Apache-2.0
//! Each program is notified of each death once; and a process does nothing after a program was notified of
//! its death.

use std::collections::{HashMap, HashSet};

use fide_client::{Event, HOST_SLOT, Verdict};
use fide_types::HostId;

use super::{Checked, violated};

/// A host, and the incarnation of one of its processes.
type Process = (u16, u32);

#[derive(Debug, Default)]
pub(in super::super) struct Deaths {
    /// By program, watch and process: whether the program was last notified of its end.
    notified: HashMap<(u32, u32, Process), bool>,
    /// Processes of whose death some program was notified.
    dead: HashSet<Process>,
    /// By program: the processes that it was notified are up.
    met: HashSet<(u32, Process)>,
    /// By program and watch, which is of one name: the newest process that the program was notified is up.
    latest: HashMap<(u32, u32), u32>,
}

impl Deaths {
    /// A program was notified of an event. A notification to an astray program counts for it alone.
    pub(in super::super) fn notified(&mut self, pid: u32, event: &Event, is_astray: bool) -> Checked {
        let (monitor, evidence, ended) = match event {
            Event::Up { monitor, evidence, .. } => (monitor, evidence, false),
            Event::Verdict(Verdict { monitor, evidence, reason, .. }) if reason.is_final() => (monitor, evidence, true),
            _ => return Ok(()),
        };
        if evidence.slot == HOST_SLOT {
            return Ok(());
        }
        let process = (evidence.host_id, evidence.incarnation);
        let wrong = match (self.notified.insert((pid, monitor.0, process), ended), ended) {
            (None, _) | (Some(false), true) => None,
            (Some(false), false) => Some("is up twice"),
            (Some(true), false) => Some("is up after its end"),
            (Some(true), true) => Some("has ended twice"),
        };
        if let Some(wrong) = wrong {
            let text = format!("program {pid} is notified that process {} of h{} {wrong}", process.1, process.0);
            return violated("notified of each death once", text);
        }
        if ended && is_astray {
            return Ok(());
        }
        if ended {
            self.dead.insert(process);
        } else {
            self.met.insert((pid, process));
            // Process numbers grow, and do not wrap around in a run.
            let latest = self.latest.entry((pid, monitor.0)).or_default();
            if process.1 < *latest {
                let text = format!(
                    "program {pid} is notified that process {} of h{} is up after {latest}",
                    process.1, process.0
                );
                return violated("in order", text);
            }
            *latest = process.1;
        }
        Ok(())
    }

    /// A copy of a program has had the notifications of its original.
    pub(in super::super) fn copy(&mut self, from: u32, to: u32) {
        let notified: Vec<_> =
            self.notified.iter().filter(|((of, ..), _)| *of == from).map(|(key, ended)| (*key, *ended)).collect();
        self.notified.extend(notified.into_iter().map(|((_, watch, process), ended)| ((to, watch, process), ended)));
        let met: Vec<_> = self.met.iter().filter(|(of, _)| *of == from).map(|(_, process)| (to, *process)).collect();
        self.met.extend(met);
        let latest: Vec<_> =
            self.latest.iter().filter(|((of, _), _)| *of == from).map(|(key, process)| (*key, *process)).collect();
        self.latest.extend(latest.into_iter().map(|((_, watch), process)| ((to, watch), process)));
    }

    pub(in super::super) fn has_met(&self, pid: u32, process: Process) -> bool {
        self.met.contains(&(pid, process))
    }

    pub(in super::super) fn is_dead(&self, process: Process) -> bool {
        self.dead.contains(&process)
    }

    /// A process does something that only a living process may do.
    pub(in super::super) fn acts(&self, host: HostId, process: u32, does: &str) -> Checked {
        if self.dead.contains(&(host, process)) {
            let text = format!("process {process} of h{host} {does}, and some program was notified that it is dead");
            return violated("the dead do not act", text);
        }
        Ok(())
    }
}
