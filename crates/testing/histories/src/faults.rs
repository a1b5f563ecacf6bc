// SPDX-License-Identifier: Apache-2.0
//! Injects faults into a world, and ends them.
//!
//! Faults may overlap, also of the same kind on the same host: each effect is counted, and ends with the last
//! fault.

use std::{collections::BTreeMap, time::Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    plan::{Else, Fault, Step, What},
    world::World,
};

/// An effect that lasts until it is undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Hold {
    /// A process is stopped.
    Still(u32),
    /// A host is cut off from a plane.
    Cut(usize, usize),
    /// The first does not hear the second.
    Deaf(usize, usize),
    /// The guest is stopped by its monitor.
    Frozen,
    /// The guest's clock is slewed, by so many ppm.
    Slewed(u32),
}

/// All present effects.
#[derive(Debug)]
pub(crate) struct Held {
    counts: BTreeMap<Hold, u32>,
    /// By host: number of present faults.
    hits: Vec<u32>,
    /// By host: when its last fault ended.
    over: Vec<Option<Instant>>,
}

impl Held {
    pub(crate) fn new(hosts: usize) -> Self {
        Self { counts: BTreeMap::new(), hits: vec![0; hosts], over: vec![None; hosts] }
    }
}

/// A fault that was injected, and has to be ended.
#[derive(Debug)]
pub(crate) struct Done {
    fault: Fault,
    holds: Vec<Hold>,
    hits: Vec<usize>,
}

impl Done {
    /// Whether the leader's host is stopped, and another host has to lead before the stop ends.
    pub(crate) fn stops_leader(&self) -> bool {
        matches!(self.fault, Fault::Freeze { leads: true, .. })
    }
}

impl World {
    /// As far as is known here, this host has no fault.
    fn is_whole_host(&self, host: usize) -> bool {
        let is_known = self.held.over[host - 1].is_none_or(|over| over.elapsed() > self.pace.known);
        let member = &self.members[host - 1];
        self.held.hits[host - 1] == 0 && is_known && member.is_ready && !member.is_orphan
    }

    /// Whether the group's conditions still hold if this fault comes now: a majority of hosts stays whole,
    /// and where only members end, one member does. A host that is not let in again yet, or waits as all
    /// others do, is not whole: a member that dies while all are excluded takes everything with it
    /// (docs/internals/promises.md).
    fn survives(&mut self, fault: Fault) -> bool {
        let hosts = self.hosts();
        let excluded: Vec<usize> = fault.excludes().iter().map(|who| who.host(self.leader, hosts)).collect();
        let known: Vec<usize> = (1..=hosts).filter(|host| self.is_whole_host(*host)).collect();
        let is_in = |host: &usize| self.probe(*host).is_some_and(|stands| stands.is_member);
        let members: Vec<usize> = known.into_iter().filter(is_in).collect();
        let whole = |but: &[usize]| members.iter().filter(|host| !but.contains(host)).count();
        match (fault, fault.forgets()) {
            (_, Some(who)) if excluded.is_empty() => whole(&[who.host(self.leader, hosts)]) >= 1,
            // One of two hosts that do not hear each other is dropped, not both.
            (Fault::Part { .. } | Fault::Deaf { .. }, _) => whole(&excluded) + 1 > hosts / 2,
            _ => excluded.is_empty() || whole(&excluded) > hosts / 2,
        }
    }

    /// Whether a fault may come now.
    pub(crate) fn admits(&mut self, step: &Step) -> bool {
        let is_due = !matches!(step.fault, Fault::Freeze { leads: true, .. }) || self.leader == self.hosts();
        is_due && (step.otherwise == Else::Comes || self.survives(step.fault))
    }

    pub(crate) fn leave_out(&mut self, fault: Fault) {
        self.note(&format!("left out, as too few hosts are whole, or another one leads: {fault}"));
    }

    /// Injects a fault.
    pub(crate) fn begin(&mut self, fault: Fault) -> anyhow::Result<Done> {
        let hosts = self.hosts();
        let leader = self.leader;
        self.note(&format!("{fault} (leader: h{leader})"));
        let mut done = Done { fault, holds: Vec::new(), hits: Vec::new() };
        match fault {
            Fault::Kill { what, who } => {
                let host = who.host(leader, hosts);
                if what != What::Member {
                    self.agents.start_again(host)?;
                    self.members[host - 1].is_orphan = true;
                }
                if what != What::Agent {
                    self.kill_member(host)?;
                }
            }
            Fault::KillAll { what } => {
                // First all are dead, then they start again.
                for host in 1..=hosts {
                    self.kill_member(host)?;
                    if what == What::Both {
                        self.agents.kill(host)?;
                    }
                }
                for host in (1..=hosts).filter(|_| what == What::Both) {
                    self.agents.start_again(host)?;
                }
            }
            Fault::Stop { what, who, .. } => done.holds = self.processes(what, who.host(leader, hosts)),
            Fault::StopAll { .. } => {
                done.holds = (1..=hosts).flat_map(|host| self.processes(What::Both, host)).collect();
            }
            Fault::Cut { who, .. } => {
                let host = who.host(leader, hosts);
                done.holds = (0..self.bed.planes()).map(|plane| Hold::Cut(host, plane)).collect();
            }
            Fault::CutPlane { who, plane, .. } => done.holds = vec![Hold::Cut(who.host(leader, hosts), plane)],
            Fault::Part { a, b, .. } => {
                let (a, b) = (a.host(leader, hosts), b.host(leader, hosts));
                done.holds = vec![Hold::Deaf(a, b), Hold::Deaf(b, a)];
            }
            Fault::Deaf { by, of, .. } => done.holds = vec![Hold::Deaf(by.host(leader, hosts), of.host(leader, hosts))],
            Fault::TakeOver { who } => self.agents.take_over(who.host(leader, hosts))?,
            Fault::Freeze { .. } => done.holds = vec![Hold::Frozen],
            Fault::Slew { ppm, .. } => done.holds = vec![Hold::Slewed(ppm)],
        }
        done.hits = fault.excludes().iter().map(|who| who.host(leader, hosts)).collect();
        for host in &done.hits {
            self.held.hits[host - 1] += 1;
        }
        for hold in &done.holds {
            let count = self.held.counts.entry(*hold).or_default();
            *count += 1;
            if *count == 1 {
                self.hold(*hold, true)?;
            }
        }
        Ok(done)
    }

    /// Ends a fault.
    pub(crate) fn end(&mut self, done: &Done) -> anyhow::Result<()> {
        if done.fault.ms() > 0 {
            self.note(&format!("over: {}", done.fault));
        }
        for hold in &done.holds {
            let Some(count) = self.held.counts.get_mut(hold) else { continue };
            *count -= 1;
            if *count == 0 {
                self.held.counts.remove(hold);
                self.hold(*hold, false)?;
            }
        }
        for host in &done.hits {
            self.held.hits[host - 1] -= 1;
            self.held.over[host - 1] = Some(Instant::now());
        }
        Ok(())
    }

    fn processes(&self, what: What, host: usize) -> Vec<Hold> {
        let agent = self.agents.pid(host).filter(|_| what != What::Member);
        let member = self.members[host - 1].pid().filter(|_| what != What::Agent);
        agent.into_iter().chain(member).map(Hold::Still).collect()
    }

    fn hold(&mut self, hold: Hold, on: bool) -> anyhow::Result<()> {
        match (hold, on) {
            (Hold::Still(pid), _) => {
                // Only children that were not waited for: no other process can have the pid.
                let is_ours = self.members.iter().any(|member| member.pid() == Some(pid))
                    || (1..=self.hosts()).any(|host| self.agents.pid(host) == Some(pid));
                if let Some(pid) = Pid::from_raw(pid.cast_signed()).filter(|_| is_ours) {
                    kill_process(pid, if on { Signal::STOP } else { Signal::CONT })?;
                }
            }
            (Hold::Cut(host, plane), true) => drop(self.bed.cut(host, plane)?),
            (Hold::Cut(host, plane), false) => drop(self.bed.restore(host, plane)?),
            (Hold::Deaf(by, of), true) => self.bed.deafen(by, of)?,
            (Hold::Deaf(by, of), false) => self.bed.undeafen(by, of)?,
            (Hold::Frozen, _) => self.guest()?.freeze(on)?,
            (Hold::Slewed(ppm), _) => self.guest()?.slew(ppm, on)?,
        }
        Ok(())
    }
}
