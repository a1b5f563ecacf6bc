// SPDX-License-Identifier: Apache-2.0
//! What local programs ask for: processes that join and end, messages on heartbeats, watches.

use crate::carry::Carry;
use crate::detector::Detector;
use crate::piggyback::QUEUE_MAX;
use crate::types::*;
use crate::wishes::{WISHES_MAX, Wish};
use fide_types::{Name, ProcessState, Reason};

impl Detector {
    /// A process of this host. Its incarnation is higher than that of any earlier one in the same slot, also
    /// across restarts of the agent with a higher incarnation. A witness keeps its incarnation, so it has no
    /// processes.
    pub fn join(&mut self, now_ns: u64, name: Name) -> Result<Joined, JoinError> {
        if self.life.is_leaving() {
            return Err(JoinError::Leaving);
        }
        let me = self.config.me;
        if self.config.witness() == me {
            return Err(JoinError::Witness);
        }
        let (slot, incarnation) = self.locals.join(now_ns, name)?;
        self.queues.clear(usize::from(slot));
        self.carries = true;
        self.emit(Event::Up { host: me, slot, incarnation, name });
        for at in 0..self.wishes.len() {
            let wish = *self.wishes.at(at);
            if wish.host == me && wish.process == Some(name) {
                self.emit_local_request(&wish, slot);
            }
        }
        Ok(Joined { slot, incarnation })
    }

    /// A watch of a process of this very host, which no heartbeat of another one brings.
    fn emit_local_request(&mut self, wish: &Wish, slot: u8) {
        let Wish { host, watcher_slot, timeout_us, pbsize, .. } = *wish;
        self.emit(Event::MonitorRequest { host, watcher_slot, slot, timeout_us, pbsize });
    }

    /// Has a process of this host got this number in this life? Numbers come round after 12 days, so a
    /// process of a life that began then may have had it too.
    pub fn has_numbered(&self, process: u32) -> bool {
        self.locals.has_numbered(process)
    }

    /// What the local kernel (or the process's own beat) says. A notice of an end is due at once; heartbeats
    /// carry every change.
    pub fn process_changed(
        &mut self,
        now_ns: u64,
        slot: u8,
        state: ProcessState,
        at_ns: u64,
    ) -> Result<(), ProcessError> {
        if state == ProcessState::HostSilent {
            return Err(ProcessError::NotForLocal);
        }
        let Some(incarnation) = self.locals.change(slot, state, at_ns)? else { return Ok(()) };
        self.carries = true;
        let evidence = self.own_evidence(now_ns, at_ns);
        self.emit_verdict(self.config.me, slot, incarnation, state.reason().unwrap_or(Reason::Recovered), evidence);
        Ok(())
    }

    /// Queues a message for the next heartbeat with room. Returns its number, from 1 in each process
    /// incarnation.
    pub fn piggyback(&mut self, slot: u8, bytes: &[u8]) -> Result<u32, PiggybackError> {
        let result = self.queue_piggyback(slot, bytes);
        if result.is_err() {
            self.counters.piggybacks_declined += 1;
        }
        result
    }

    fn queue_piggyback(&mut self, slot: u8, bytes: &[u8]) -> Result<u32, PiggybackError> {
        let (size, granted) = (bytes.len(), self.piggyback_grant());
        let local = self.locals.get_mut(slot).filter(|local| local.is_alive());
        let local = local.ok_or(PiggybackError::NotJoined { slot })?;
        if size > granted {
            return Err(PiggybackError::TooLarge { size, granted });
        }
        if !self.queues.push(usize::from(slot), bytes) {
            return Err(PiggybackError::Full { queued: self.queues.len(usize::from(slot)) });
        }
        local.pb_assigned += 1;
        Ok(local.pb_assigned)
    }

    /// Messages that `slot` can queue now.
    pub fn piggyback_capacity(&self, slot: u8) -> usize {
        match self.locals.get(slot) {
            Some(_) => QUEUE_MAX - self.queues.len(usize::from(slot)),
            None => 0,
        }
    }

    /// Adds a watch and informs the subject's host of it. The same watch twice counts twice.
    pub fn monitor(&mut self, target: Target, wanted: Wanted, watcher_slot: u8) -> Result<Granted, MonitorError> {
        let host = target.host;
        let local = host == self.config.me;
        if !self.peers.contains(host) {
            return Err(MonitorError::UnknownHost { host });
        }
        let peer = &self.peers[host];
        if !local && !peer.monitored {
            return Err(MonitorError::NotMonitored { host });
        }
        let timeout_ns = if local { 0 } else { peer.timeout_ns };
        if wanted.timeout_ns != 0 && wanted.timeout_ns < timeout_ns {
            return Err(MonitorError::TimeoutTooShort { wanted_ns: wanted.timeout_ns, granted_ns: timeout_ns });
        }
        let granted = Granted { timeout_ns, pbsize: (self.piggyback_grant() as u16).min(wanted.pbsize) };
        if !self.wishes.add_watcher(target, watcher_slot, granted.pbsize) {
            let wish = Wish {
                host,
                process: target.process,
                watcher_slot,
                timeout_us: u32::try_from(timeout_ns / 1000).unwrap_or(u32::MAX),
                pbsize: granted.pbsize,
                carry: if local { Carry::Settled } else { Carry::Pending },
                watchers: 1,
            };
            if !self.wishes.push(wish) {
                return Err(MonitorError::Full { bound: WISHES_MAX });
            }
            if local && let Some(slot) = target.process.and_then(|name| self.find(host, &name)) {
                self.emit_local_request(&wish, slot);
            }
        }
        self.carries = true;
        Ok(granted)
    }

    /// Takes one watch back. The subject's host is not informed; nothing depends on it.
    pub fn unmonitor(&mut self, target: Target, watcher_slot: u8) -> Result<(), MonitorError> {
        if self.wishes.remove_watcher(target, watcher_slot) { Ok(()) } else { Err(MonitorError::NotFound) }
    }
}
