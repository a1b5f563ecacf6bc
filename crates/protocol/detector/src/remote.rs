// SPDX-License-Identifier: Apache-2.0
//! What peers report of their processes: that they are up, what they send on heartbeats, and how they end.

use crate::carry::Carry;
use crate::detector::Detector;
use crate::origin::Source;
use crate::piggyback::{Message, REORDER_MAX};
use crate::roster::{self, PendingEnd, Remote};
use crate::types::*;
use crate::wishes::{Inserted, Request};
use fide_types::{
    HostId, HostSet, MAX_PROCESSES, Name, ProcessState, Reason,
    planted::{self, Planted},
};
use fide_wire::{Monitor, Roster};

impl Detector {
    /// A roster entry of a peer that this host listens to.
    pub(crate) fn process_reported(&mut self, now_ns: u64, source: Source, entry: &Roster) {
        let (host, slot) = (source.host, entry.slot);
        let known = self.remotes.get(host, slot).map(|remote| remote.incarnation);
        if known.is_some_and(|known| roster::newer(known, entry.incarnation)) {
            return;
        }
        if known != Some(entry.incarnation) {
            if known.is_some() && entry.name.is_some() {
                self.process_replaced(now_ns, host, slot, entry.incarnation);
            }
            // Never heard of before, so nobody waits for it. A heartbeat will bring its name.
            let Some(name) = entry.name else { return };
            if !self.process_appeared(now_ns, source, entry, name) {
                return;
            }
        }
        let Some(remote) = self.remotes.get_mut(host, slot) else { return };
        // A heartbeat may complete what a notice said of an end.
        let end_is_known = |end: PendingEnd| source.via == Via::Notice || end.seq != 0;
        if remote.state.is_final() || remote.pending_end.is_some_and(end_is_known) {
            return;
        }
        if entry.state.is_final() {
            self.end_reported(now_ns, source, entry);
            return;
        }
        // Processes stall and recover repeatedly; an older heartbeat must not undo what a newer one (or a
        // notice) said.
        if entry.state != remote.state && entry.at_ns > remote.at_ns {
            (remote.state, remote.at_ns) = (entry.state, entry.at_ns);
            let stalled = entry.state == ProcessState::Stalled;
            let reason = if stalled { Reason::Stalled } else { Reason::Recovered };
            let evidence = self.evidence(now_ns, host, source.via, HostSet::EMPTY, entry.at_ns);
            self.emit_verdict(host, slot, entry.incarnation, reason, evidence);
        }
    }

    /// A process is heard of for the first time: all former ones of its name have ended. False if a later one
    /// is known, so that this one is not reported.
    fn process_appeared(&mut self, now_ns: u64, source: Source, entry: &Roster, name: Name) -> bool {
        let (host, slot, incarnation) = (source.host, entry.slot, entry.incarnation);
        if !planted::is(Planted::ReportsTheFormerLate) {
            let successor = |other: &Remote| other.name == name && roster::newer(other.incarnation, incarnation);
            if self.remotes.of(host).any(|(_, other)| successor(other)) {
                return false;
            }
            for slot in 0..MAX_PROCESSES as u8 {
                let other = self.remotes.get(host, slot);
                if other.is_some_and(|other| other.name == name && other.incarnation != incarnation) {
                    self.process_replaced(now_ns, host, slot, incarnation);
                }
            }
        }
        let remote = Remote {
            name,
            incarnation,
            state: ProcessState::Alive,
            at_ns: entry.at_ns,
            delivered: entry.pb_seq,
            lost: 0,
            pending_end: None,
            since_seq: source.seq,
            gap: false,
        };
        self.remotes.set(host, slot, remote);
        self.emit(Event::Up { host, slot, incarnation, name });
        self.carry_wishes_for(host, name);
        true
    }

    /// Local clients watch a process of that name: its host can be informed now.
    fn carry_wishes_for(&mut self, host: HostId, name: Name) {
        for wish in self.wishes.iter_mut().filter(|wish| wish.host == host && wish.process == Some(name)) {
            wish.carry = Carry::Pending;
            self.carries = true;
        }
    }

    /// The host of a process says that it has ended. The end is delivered behind the messages sent before it.
    fn end_reported(&mut self, now_ns: u64, source: Source, entry: &Roster) {
        let peer = &mut self.peers[source.host];
        let Some(remote) = self.remotes.get_mut(source.host, entry.slot) else { return };
        if remote.pending_end.is_none() {
            peer.open += 1;
        }
        remote.pending_end = Some(PendingEnd {
            state: entry.state,
            at_ns: entry.at_ns,
            via: remote.pending_end.map_or(source.via, |end| end.via),
            pb_seq: entry.pb_seq,
            seq: if source.via == Via::Roster { source.seq } else { 0 },
            deadline_ns: now_ns.saturating_add(peer.timeout_ns),
        });
        self.close_gaps(now_ns, source.host);
    }

    /// A message of a process of a peer that this host listens to.
    pub(crate) fn piggyback_received(&mut self, now_ns: u64, source: Source, slot: u8, pb_seq: u32, bytes: &[u8]) {
        let Source { host, seq, rx_ns, .. } = source;
        let Some(remote) = self.remotes.get(host, slot).copied() else { return };
        let stale = seq < remote.since_seq || remote.state.is_final();
        let waits = remote.gap && self.pool.is_waiting(host, slot, pb_seq);
        if stale || !roster::newer(pb_seq, remote.delivered) || waits {
            return;
        }
        let Some(buffer) = self.pool.put(bytes) else {
            self.counters.piggybacks_no_buffer += 1;
            return;
        };
        let message = Message { host, slot, pb_seq, seq, rx_ns, len: bytes.len() as u16 };
        if !remote.gap && pb_seq == remote.delivered.wrapping_add(1) {
            // The ordinary case: next in order, and nothing waits.
            self.emit_piggyback(buffer, message);
        } else {
            self.pool.wait(buffer, message);
            self.deliver_in_order(host, slot);
            while self.pool.lowest(host, slot).is_some_and(|(_, _, count)| count > REORDER_MAX) {
                self.give_up_gap(host, slot);
            }
            self.note_gap(host, slot);
        }
        if self.peers[host].open > 0 {
            self.close_gaps(now_ns, host);
        }
    }

    /// Delivers the waiting messages that are next in order.
    fn deliver_in_order(&mut self, host: HostId, slot: u8) {
        while let Some((buffer, waiting, _)) = self.pool.lowest(host, slot) {
            let Some(remote) = self.remotes.get(host, slot) else { return };
            if waiting.pb_seq != remote.delivered.wrapping_add(1) {
                return;
            }
            self.pool.unwait(buffer);
            self.emit_piggyback(buffer, waiting);
        }
    }

    /// Counts the messages before the lowest one that waits as lost, and delivers what is then next in order.
    fn give_up_gap(&mut self, host: HostId, slot: u8) {
        let Some((buffer, waiting, _)) = self.pool.lowest(host, slot) else { return };
        let Some(remote) = self.remotes.get_mut(host, slot) else { return };
        let missing = waiting.pb_seq.wrapping_sub(remote.delivered).wrapping_sub(1);
        remote.lost = remote.lost.saturating_add(missing);
        self.counters.piggybacks_lost += u64::from(missing);
        self.pool.unwait(buffer);
        self.emit_piggyback(buffer, waiting);
        self.deliver_in_order(host, slot);
    }

    /// Delivers every message of a process that waits for an earlier one.
    fn give_up_all_gaps(&mut self, host: HostId, slot: u8) {
        while self.pool.lowest(host, slot).is_some() {
            self.give_up_gap(host, slot);
        }
        self.note_gap(host, slot);
    }

    fn emit_piggyback(&mut self, buffer: u16, message: Message) {
        let Message { host, slot, pb_seq, seq, rx_ns, len } = message;
        let timeout_ns = self.peers[host].timeout_ns;
        let Some(remote) = self.remotes.get_mut(host, slot) else { return };
        remote.delivered = pb_seq;
        if let Some(end) = &mut remote.pending_end {
            // More may be on the way: the end waits for another timeout from here.
            end.deadline_ns = end.deadline_ns.max(rx_ns.saturating_add(timeout_ns));
        }
        let incarnation = remote.incarnation;
        self.counters.piggybacks_delivered += 1;
        self.emit(Event::Piggyback { host, slot, incarnation, pb_seq, seq, rx_ns, len, buffer });
    }

    /// Updates the peer's count of undecided processes after the messages that wait changed.
    fn note_gap(&mut self, host: HostId, slot: u8) {
        let gap = self.pool.lowest(host, slot).is_some();
        let Some(remote) = self.remotes.get_mut(host, slot) else { return };
        let open = &mut self.peers[host].open;
        match (remote.gap, gap) {
            (false, true) => *open += 1,
            (true, false) => *open -= 1,
            _ => {}
        }
        remote.gap = gap;
    }

    /// Gives up gaps that every working plane has passed, and delivers the ends that waited for them.
    pub(crate) fn close_gaps(&mut self, now_ns: u64, host: HostId) {
        let planes = self.config.planes;
        for slot in 0..MAX_PROCESSES as u8 {
            let Some(remote) = self.remotes.get(host, slot) else { continue };
            if remote.gap
                && let Some((_, low, _)) = self.pool.lowest(host, slot)
            {
                let peer = &self.peers[host];
                if peer.passed(planes, low.seq) || now_ns >= low.rx_ns.saturating_add(peer.timeout_ns) {
                    self.give_up_gap(host, slot);
                    self.note_gap(host, slot);
                }
            }
            let Some(remote) = self.remotes.get(host, slot) else { continue };
            let Some(end) = remote.pending_end else { continue };
            let complete = !roster::newer(end.pb_seq, remote.delivered);
            let passed = end.seq != 0 && self.peers[host].passed(planes, end.seq);
            if complete || passed || now_ns >= end.deadline_ns {
                self.deliver_end(now_ns, host, slot);
            }
        }
    }

    /// Delivers the end of a process that waited for its piggybacks; those still missing are lost.
    fn deliver_end(&mut self, now_ns: u64, host: HostId, slot: u8) {
        self.give_up_all_gaps(host, slot);
        let Some(remote) = self.remotes.get_mut(host, slot) else { return };
        let Some(end) = remote.pending_end.take() else { return };
        let missing = end.pb_seq.wrapping_sub(remote.delivered);
        if missing < 1 << 31 {
            remote.lost = remote.lost.saturating_add(missing);
            remote.delivered = end.pb_seq;
            self.counters.piggybacks_lost += u64::from(missing);
        }
        (remote.state, remote.at_ns) = (end.state, end.at_ns);
        let (incarnation, piggybacks_lost) = (remote.incarnation, remote.lost);
        self.peers[host].open -= 1;
        let reason = end.state.reason().unwrap_or(Reason::Left);
        let evidence = self.evidence(now_ns, host, end.via, HostSet::only(host), end.at_ns);
        self.emit_verdict(host, slot, incarnation, reason, Evidence { piggybacks_lost, ..evidence });
    }

    /// A newer process took the slot or the name before the end of this one was heard of.
    fn process_replaced(&mut self, now_ns: u64, host: HostId, slot: u8, by: u32) {
        self.give_up_all_gaps(host, slot);
        if self.remotes.get(host, slot).is_some_and(|remote| remote.pending_end.is_some()) {
            self.deliver_end(now_ns, host, slot);
        }
        let Some(remote) = self.remotes.get_mut(host, slot) else { return };
        if remote.state.is_final() {
            return;
        }
        remote.state = ProcessState::Exited(-1);
        let (incarnation, piggybacks_lost) = (remote.incarnation, remote.lost);
        let evidence = self.evidence(now_ns, host, Via::Superseded, HostSet::only(host), 0);
        let evidence = Evidence { superseded_by: by, piggybacks_lost, ..evidence };
        self.emit_verdict(host, slot, incarnation, Reason::Exited(-1), evidence);
    }

    /// Delivers every message of `host` that waits for an earlier one.
    pub(crate) fn deliver_all(&mut self, host: HostId) {
        for slot in 0..MAX_PROCESSES as u8 {
            self.give_up_all_gaps(host, slot);
        }
    }

    /// All processes of a host end with it.
    pub(crate) fn end_processes(&mut self, now_ns: u64, host: HostId, reason: Reason, evidence: Evidence) {
        self.deliver_all(host);
        for slot in 0..MAX_PROCESSES as u8 {
            if self.remotes.get(host, slot).is_some_and(|remote| remote.pending_end.is_some()) {
                self.deliver_end(now_ns, host, slot);
            }
            let Some(remote) = self.remotes.get_mut(host, slot) else { continue };
            if remote.state.is_final() {
                continue;
            }
            remote.state = if reason == Reason::Left { ProcessState::Left } else { ProcessState::HostSilent };
            let (incarnation, piggybacks_lost) = (remote.incarnation, remote.lost);
            self.emit_verdict(host, slot, incarnation, reason, Evidence { piggybacks_lost, ..evidence });
        }
    }

    /// A peer watches a process of this host, or the host itself.
    pub(crate) fn watch_requested(&mut self, host: HostId, incarnation: u32, monitor: &Monitor) {
        if monitor.target_host != self.config.me {
            return;
        }
        let Monitor { target_slot: slot, watcher_slot, timeout_us, pbsize, .. } = *monitor;
        match self.requests.insert(Request { host, incarnation, watcher_slot, slot, timeout_us, pbsize }) {
            Inserted::Known => return,
            Inserted::New => {}
            Inserted::NewForOldest => self.counters.wishes_lost += 1,
        }
        self.emit(Event::MonitorRequest { host, watcher_slot, slot, timeout_us, pbsize });
    }
}
