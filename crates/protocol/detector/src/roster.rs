// SPDX-License-Identifier: Apache-2.0
//! Processes: those of this host, and those that peers report.
//!
//! A changed entry has to reach every peer, and is carried until it has ([`crate::carry`]). When not all
//! entries fit, those in flight stay until acknowledged, then the next ones follow. Ends go first. A slot is
//! used again only after every peer knows of its last end.
//!
//! **One name, one process after the other.** A host has at most one live process of a name, and numbers its
//! processes in the order in which they join (by [`newer`], within one life of its agent). It reports them in
//! that order: an entry goes with or after those of all former processes of its name, and in each heartbeat
//! behind them. A peer that begins to listen gets only the last one that has settled. A receiver that hears
//! of a process for the first time takes all former ones of its name for ended, and ignores a process whose
//! successor it knows.

use crate::carry::Carry;
use crate::types::{JoinError, ProcessError, ProcessView, Via};
pub use crate::wishes::WISHES_MAX;
use fide_types::{
    HostId, MAX_PROCESSES, Name, PerHost, ProcessState,
    planted::{self, Planted},
};
use fide_wire::{Roster, SECTION_HEADER_LEN};
use serde::{Deserialize, Serialize};

/// Bits of a process incarnation that count the processes of one incarnation of its host.
const PROCESS_BITS: u32 = 12;

/// A process of this host.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Local {
    pub name: Name,
    pub incarnation: u32,
    pub state: ProcessState,
    pub at_ns: u64,
    /// Numbers of its last piggyback queued, and of its last one sent.
    pub pb_assigned: u32,
    pub pb_sent: u32,
    /// Sent before the first heartbeat that carried the present entry.
    pub pb_base: u32,
    pub carry: Carry,
    /// A notice of its end is due.
    notice: bool,
}

impl Local {
    fn joined(name: Name, incarnation: u32, now_ns: u64) -> Local {
        Local {
            name,
            incarnation,
            state: ProcessState::Alive,
            at_ns: now_ns,
            pb_assigned: 0,
            pb_sent: 0,
            pb_base: 0,
            carry: Carry::Pending,
            notice: false,
        }
    }

    pub fn is_alive(&self) -> bool {
        !self.state.is_final()
    }

    /// Its roster entry.
    pub fn wire(&self, slot: usize) -> Roster {
        Roster {
            slot: slot as u8,
            state: self.state,
            name: Some(self.name),
            incarnation: self.incarnation,
            pb_seq: if self.state.is_final() { self.pb_assigned } else { self.pb_base },
            at_ns: self.at_ns,
        }
    }

    pub fn wire_len(&self) -> usize {
        SECTION_HEADER_LEN + fide_wire::ROSTER_LEN + self.name.as_bytes().len()
    }

    /// What users see of it.
    pub fn look(&self) -> ProcessView {
        ProcessView {
            name: self.name,
            incarnation: self.incarnation,
            state: self.state,
            at_ns: self.at_ns,
            pb_seq: self.pb_assigned,
        }
    }

    /// Every peer knows of its end, so its slot is free.
    fn is_settled(&self) -> bool {
        self.state.is_final() && self.carry == Carry::Settled && !self.notice
    }

    fn is_former_of(&self, other: &Local) -> bool {
        self.name == other.name && newer(other.incarnation, self.incarnation)
    }
}

/// The processes of this host, by slot.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Locals {
    slots: Slots<Local>,
    host_incarnation: u32,
    /// Processes that this incarnation of the host has numbered.
    joins: u32,
    /// Ends of which a notice is due.
    notices: usize,
    /// That this host has named all its processes.
    pub all_named: Carry,
}

impl Locals {
    pub(crate) fn new(host_incarnation: u32) -> Locals {
        Locals { slots: slots(), host_incarnation, joins: 0, notices: 0, all_named: Carry::Settled }
    }

    /// Has the table the size that it must have?
    pub(crate) fn is_valid(&self) -> bool {
        self.slots.len() == MAX_PROCESSES
    }

    pub(crate) fn get(&self, slot: u8) -> Option<&Local> {
        self.slots.get(usize::from(slot))?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, slot: u8) -> Option<&mut Local> {
        self.slots.get_mut(usize::from(slot))?.as_mut()
    }

    /// Slots in use, and their processes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u8, &Local)> {
        (0u8..).zip(&self.slots).filter_map(|(slot, local)| Some((slot, local.as_ref()?)))
    }

    /// The number of the process that joined last, in this incarnation of the host.
    pub(crate) fn last_number(&self) -> u32 {
        (self.host_incarnation << PROCESS_BITS).wrapping_add(self.joins).max(1)
    }

    /// Has a process got this number in this incarnation of the host?
    pub(crate) fn has_numbered(&self, process: u32) -> bool {
        let first = self.host_incarnation << PROCESS_BITS;
        (1..=self.last_number().wrapping_sub(first)).contains(&process.wrapping_sub(first))
    }

    fn next_number(&mut self) -> u32 {
        self.joins = self.joins.wrapping_add(1);
        self.last_number()
    }

    /// Gives a process a slot and a number: a slot never used, else one whose last end every peer knows of.
    pub(crate) fn join(&mut self, now_ns: u64, name: Name) -> Result<(u8, u32), JoinError> {
        if let Some((slot, _)) = self.iter().find(|(_, local)| local.is_alive() && local.name == name) {
            return Err(JoinError::NameTaken { name, slot });
        }
        let unused = self.slots.iter().position(Option::is_none);
        let settled = || self.slots.iter().position(|local| local.as_ref().is_some_and(Local::is_settled));
        let slot = unused.or_else(settled).ok_or(JoinError::Full)?;
        let incarnation = self.next_number();
        self.slots[slot] = Some(Local::joined(name, incarnation, now_ns));
        Ok((slot as u8, incarnation))
    }

    /// The process is in that state from now on. Returns its incarnation, or `None` if it was already.
    pub(crate) fn change(&mut self, slot: u8, state: ProcessState, at_ns: u64) -> Result<Option<u32>, ProcessError> {
        let local = self.slots.get_mut(usize::from(slot)).and_then(Option::as_mut);
        let local = local.ok_or(ProcessError::NotJoined { slot })?;
        if local.state.is_final() {
            return Err(ProcessError::Ended { slot });
        }
        if local.state == state {
            return Ok(None);
        }
        local.state = state;
        local.at_ns = at_ns;
        local.pb_base = local.pb_sent;
        local.carry = Carry::Pending;
        // A program stalls and recovers as often as it likes: heartbeats report that, and no notice is sent.
        if state.is_final() && !local.notice {
            local.notice = true;
            self.notices += 1;
        }
        Ok(Some(local.incarnation))
    }

    /// Is a notice due?
    pub(crate) fn has_notices(&self) -> bool {
        self.notices > 0
    }

    /// The entry of an end of which a notice is due; it is sent now.
    pub(crate) fn take_notice(&mut self) -> Option<Roster> {
        if self.notices == 0 {
            return None;
        }
        let slot = self.slots.iter().position(|local| local.as_ref().is_some_and(|local| local.notice))?;
        let local = self.slots[slot].as_mut()?;
        local.notice = false;
        self.notices -= 1;
        Some(local.wire(slot))
    }

    /// The host goes on as another incarnation: live processes get new numbers, ended ones are forgotten.
    pub(crate) fn restart(&mut self, host_incarnation: u32) {
        (self.host_incarnation, self.joins, self.notices) = (host_incarnation, 0, 0);
        for slot in 0..self.slots.len() {
            let Some(local) = self.slots[slot] else { continue };
            self.slots[slot] = local.is_alive().then(|| {
                let (state, at_ns) = (local.state, local.at_ns);
                Local { state, ..Local::joined(local.name, self.next_number(), at_ns) }
            });
        }
        self.all_named = Carry::Pending;
    }

    /// Listening peers have acknowledged heartbeats up to `acked_seq`.
    pub(crate) fn acknowledge(&mut self, acked_seq: u64) {
        self.slots.iter_mut().flatten().for_each(|local| local.carry.acknowledge(acked_seq));
    }

    /// A peer begins to listen: it has to hear of every process.
    pub(crate) fn carry_again(&mut self) {
        for slot in 0..self.slots.len() {
            // Peers that begin to listen never hear of a process that has settled and has a successor.
            let has_successor = self.has_successor(slot) && !planted::is(Planted::ReportsTheFormerLate);
            let Some(local) = &mut self.slots[slot] else { continue };
            if has_successor && local.carry == Carry::Settled {
                continue;
            }
            local.carry = Carry::Pending;
            if local.is_alive() {
                local.pb_base = local.pb_sent;
            }
        }
        self.all_named = Carry::Pending;
    }

    fn has_successor(&self, slot: usize) -> bool {
        let Some(this) = &self.slots[slot] else { return false };
        self.slots.iter().flatten().any(|other| this.is_former_of(other))
    }

    /// Does the entry of a former process of the same name still wait for its first heartbeat?
    pub(crate) fn former_is_pending(&self, slot: u8) -> bool {
        let Some(this) = self.get(slot) else { return false };
        self.slots.iter().flatten().any(|other| other.is_former_of(this) && other.carry == Carry::Pending)
    }

    /// All slots, those of the processes that joined first before the others.
    pub(crate) fn by_age(&self) -> [u8; MAX_PROCESSES] {
        let mut slots = std::array::from_fn(|slot| slot as u8);
        if !planted::is(Planted::ReportsTheFormerLate) {
            let last = self.last_number();
            let age = |slot: &u8| self.get(*slot).map(|local| last.wrapping_sub(local.incarnation));
            slots.sort_unstable_by_key(|slot| std::cmp::Reverse(age(slot)));
        }
        slots
    }
}

/// The end of a peer's process that is not delivered yet, because piggybacks sent before it may still come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingEnd {
    pub state: ProcessState,
    pub at_ns: u64,
    pub via: Via,
    /// The last piggyback of the process.
    pub pb_seq: u32,
    /// All its piggybacks were in heartbeats up to this one; 0 while that is not known (a notice reported the
    /// end).
    pub seq: u64,
    /// It is delivered then, whatever is missing.
    pub deadline_ns: u64,
}

/// A process of a peer.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Remote {
    pub name: Name,
    pub incarnation: u32,
    pub state: ProcessState,
    pub at_ns: u64,
    /// The last piggyback delivered, and how many were lost.
    pub delivered: u32,
    pub lost: u32,
    pub pending_end: Option<PendingEnd>,
    /// The heartbeat that reported it first.
    pub since_seq: u64,
    /// A piggyback waits for an earlier one.
    pub gap: bool,
}

impl Remote {
    /// What users see of it.
    pub fn look(&self) -> ProcessView {
        ProcessView {
            name: self.name,
            incarnation: self.incarnation,
            state: self.state,
            at_ns: self.at_ns,
            pb_seq: self.delivered,
        }
    }
}

/// The processes of all peers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Remotes(PerHost<Slots<Remote>>);

impl Remotes {
    pub(crate) fn new(hosts: usize) -> Remotes {
        Remotes(PerHost::new(hosts, |_| slots()))
    }

    /// Have the tables of `hosts` hosts the sizes that they must have?
    pub(crate) fn is_valid(&self, hosts: usize) -> bool {
        self.0.hosts() == hosts && self.0.values().iter().all(|slots| slots.len() == MAX_PROCESSES)
    }

    pub(crate) fn get(&self, host: HostId, slot: u8) -> Option<&Remote> {
        self.0.get(host)?.get(usize::from(slot))?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, host: HostId, slot: u8) -> Option<&mut Remote> {
        self.0.get_mut(host)?.get_mut(usize::from(slot))?.as_mut()
    }

    /// The process of that slot; a former one is forgotten.
    pub(crate) fn set(&mut self, host: HostId, slot: u8, remote: Remote) {
        self.0[host][usize::from(slot)] = Some(remote);
    }

    /// The processes of a host, with their slots.
    pub(crate) fn of(&self, host: HostId) -> impl Iterator<Item = (u8, &Remote)> {
        (0u8..).zip(&self.0[host]).filter_map(|(slot, remote)| Some((slot, remote.as_ref()?)))
    }

    /// Forgets all processes of a host.
    pub(crate) fn clear(&mut self, host: HostId) {
        self.0[host].fill(None);
    }
}

/// The processes of one host, by slot.
type Slots<T> = Box<[Option<T>]>;

fn slots<T: Copy>() -> Slots<T> {
    vec![None; MAX_PROCESSES].into_boxed_slice()
}

/// Of two processes of one host, in one life of its agent: did `a` join after `b`?
pub fn newer(a: u32, b: u32) -> bool {
    a != b && a.wrapping_sub(b) < 1 << 31
}
