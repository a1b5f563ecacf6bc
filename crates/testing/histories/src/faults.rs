// SPDX-License-Identifier: Apache-2.0
//! Faults done to a world, and undone.
//!
//! Faults may overlap, also of the same kind on the same host: what is held counts how often, and ends with the last.

use std::{collections::BTreeMap, time::Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    plan::{Else, Fault, Step, What},
    world::World,
};

/// Something that holds on until it is undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Hold {
    /// A process stands still.
    Still(u32),
    /// A host is cut off a plane.
    Cut(usize, usize),
    /// The first does not hear the second.
    Deaf(usize, usize),
    /// The guest is stopped by its monitor.
    Frozen,
    /// The guest's clock is slewed, by so many ppm.
    Slewed(u32),
}

/// All that holds now.
#[derive(Debug)]
pub(crate) struct Held {
    counts: BTreeMap<Hold, u32>,
    /// By host: faults that are not over.
    hits: Vec<u32>,
    /// By host: when the last was over.
    over: Vec<Option<Instant>>,
}

impl Held {
    pub(crate) fn new(hosts: usize) -> Self {
        Self { counts: BTreeMap::new(), hits: vec![0; hosts], over: vec![None; hosts] }
    }
}

/// A fault that was done, and has to be undone.
#[derive(Debug)]
pub(crate) struct Done {
    fault: Fault,
    holds: Vec<Hold>,
    hits: Vec<usize>,
}

impl Done {
    /// Whether the host that led is stopped, and another has to lead before that is over.
    pub(crate) fn stops_leader(&self) -> bool {
        matches!(self.fault, Fault::Freeze { leads: true, .. })
    }
}

impl World {
    /// Nothing is wrong with this host, as far as is known here.
    fn is_whole_host(&self, host: usize) -> bool {
        let is_known = self.held.over[host - 1].is_none_or(|over| over.elapsed() > self.pace.known);
        let member = &self.members[host - 1];
        self.held.hits[host - 1] == 0 && is_known && member.is_ready && !member.is_orphan
    }

    /// Whether what the group promises to survive is still kept if this fault comes now: as many hosts stay whole as make a
    /// majority, and where only members end, one member. Whoever is not let in again yet, or waits as all others do, is not whole: a member
    /// that dies while all are shut out takes everything with it, as docs/internals/promises.md says.
    fn survives(&mut self, fault: Fault) -> bool {
        let hosts = self.hosts();
        let excluded: Vec<usize> = fault.excludes().iter().map(|who| who.host(self.leader, hosts)).collect();
        let known: Vec<usize> = (1..=hosts).filter(|host| self.is_whole_host(*host)).collect();
        let is_in = |host: &usize| self.probe(*host).is_some_and(|stands| stands.is_member);
        let members: Vec<usize> = known.into_iter().filter(is_in).collect();
        let whole = |but: &[usize]| members.iter().filter(|host| !but.contains(host)).count();
        match (fault, fault.forgets()) {
            (_, Some(who)) if excluded.is_empty() => whole(&[who.host(self.leader, hosts)]) >= 1,
            // One of two that do not hear each other goes, not both.
            (Fault::Part { .. } | Fault::Deaf { .. }, _) => whole(&excluded) + 1 > hosts / 2,
            _ => excluded.is_empty() || whole(&excluded) > hosts / 2,
        }
    }

    /// Whether a fault comes now.
    pub(crate) fn admits(&mut self, step: &Step) -> bool {
        let is_due = !matches!(step.fault, Fault::Freeze { leads: true, .. }) || self.leader == self.hosts();
        is_due && (step.otherwise == Else::Comes || self.survives(step.fault))
    }

    pub(crate) fn leave_out(&mut self, fault: Fault) {
        self.note(&format!("left out, as too few hosts are whole, or another one leads: {fault}"));
    }

    /// Does a fault.
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

    /// Undoes a fault.
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
                // Only children that were not waited for: the pid is nobody else's.
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
