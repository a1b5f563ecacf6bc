// SPDX-License-Identifier: Apache-2.0
//! Each program is told each death once; and what was told to be dead does nothing any more.

use std::collections::{HashMap, HashSet};

use fide_client::{Event, HOST_SLOT, Verdict};

use super::{Checked, violated};

/// A host, and the incarnation of one of its processes.
type Process = (u16, u32);

#[derive(Debug, Default)]
pub(in super::super) struct Deaths {
    /// By program and watch: what it was told of a process; whether that has ended.
    told: HashMap<(u32, u32, Process), bool>,
    /// Whose death some program was told.
    dead: HashSet<Process>,
    /// Of which processes a program was told that they are up.
    met: HashSet<(u32, Process)>,
    /// By program and watch, which is of one name: the process that began last of those that were told to be up.
    latest: HashMap<(u32, u32), u32>,
}

impl Deaths {
    /// A program was told something. What one hears that is astray is about it, and not about others.
    pub(in super::super) fn told(&mut self, pid: u32, event: &Event, is_astray: bool) -> Checked {
        let (monitor, evidence, ended) = match event {
            Event::Up { monitor, evidence, .. } => (monitor, evidence, false),
            Event::Verdict(Verdict { monitor, evidence, reason, .. }) if reason.is_final() => (monitor, evidence, true),
            _ => return Ok(()),
        };
        if evidence.slot == HOST_SLOT {
            return Ok(());
        }
        let process = (evidence.host_id, evidence.incarnation);
        let wrong = match (self.told.insert((pid, monitor.0, process), ended), ended) {
            (None, _) | (Some(false), true) => None,
            (Some(false), false) => Some("is up twice"),
            (Some(true), false) => Some("is up after its end"),
            (Some(true), true) => Some("has ended twice"),
        };
        if let Some(wrong) = wrong {
            let text = format!("program {pid} is told that process {} of h{} {wrong}", process.1, process.0);
            return violated("each death is told once", text);
        }
        if ended && is_astray {
            return Ok(());
        }
        if ended {
            self.dead.insert(process);
        } else {
            self.met.insert((pid, process));
            // Numbers of processes grow, and do not come round here.
            let latest = self.latest.entry((pid, monitor.0)).or_default();
            if process.1 < *latest {
                let text =
                    format!("program {pid} is told that process {} of h{} is up after {latest}", process.1, process.0);
                return violated("in order", text);
            }
            *latest = process.1;
        }
        Ok(())
    }

    /// A copy of a program was told what its original was.
    pub(in super::super) fn copy(&mut self, from: u32, to: u32) {
        let told: Vec<_> =
            self.told.iter().filter(|((of, ..), _)| *of == from).map(|(key, ended)| (*key, *ended)).collect();
        self.told.extend(told.into_iter().map(|((_, watch, process), ended)| ((to, watch, process), ended)));
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

    /// A process does something that only the living may do.
    pub(in super::super) fn acts(&self, host: u16, process: u32, does: &str) -> Checked {
        if self.dead.contains(&(host, process)) {
            let text = format!("process {process} of h{host} {does}, and somebody was told that it is dead");
            return violated("the dead do not act", text);
        }
        Ok(())
    }
}
