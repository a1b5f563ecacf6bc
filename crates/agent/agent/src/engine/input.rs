// SPDX-License-Identifier: Apache-2.0
//! What arrives: heartbeats in slots, records in the wake ring, datagrams.

use fide_bpf::intf::{self, Wake};
use fide_detector::{Beat, HostSet, ProcessState};
use fide_lane::Finding;
use fide_net::jitter::Spread;
use fide_sys::clock::{mono_ns, raw_ns};
use fide_wire::{
    HEADER_LEN, KIND_OFFSET, MAX_PLANES, PAYLOAD_MAX, PLANE_OFFSET, Packet, SHAPE, SHAPE_LEN, Told, ViewId, chunk,
    verify,
};
use zerocopy::FromBytes;

use super::{DATAGRAMS_PER_TURN, EVENTS_PER_TURN, Engine, RECORDS_PER_TURN};
use crate::timeout::Network;

/// Bytes of the longest record in the wake ring.
const RECORD_MAX: usize = size_of::<Wake>() + PAYLOAD_MAX;

impl Engine {
    /// Newest heartbeats, as the receive program left them.
    pub(super) fn read_slots(&mut self) {
        let Some(kernel) = &self.parts.kernel else { return };
        if !kernel.xdp {
            return;
        }
        let (mut changed, mut slow) = (HostSet::EMPTY, None);
        for host in (1..=self.parts.members).filter(|host| *host != self.parts.me) {
            let seen = &mut self.seen[usize::from(host) - 1];
            for plane in 0..self.parts.senders.len().min(MAX_PLANES) {
                let Some(slot) = kernel.receive.slot(host, plane) else {
                    self.counters.slot_reads_failed += 1;
                    continue;
                };
                if slot.seq == 0 || (slot.incarnation == seen.incarnation && slot.seq == seen.seq[plane]) {
                    continue;
                }
                if slot.incarnation != seen.incarnation {
                    seen.incarnation = slot.incarnation;
                    seen.seq = [0; MAX_PLANES];
                    seen.spreads.iter_mut().for_each(Spread::begin_anew);
                }
                seen.seq[plane] = slot.seq;
                let now = raw_ns();
                let rx_ns = self.parts.clock.stamp(slot.rx_ns, now);
                let beat = Beat {
                    peer: host,
                    plane: u8::try_from(plane).expect("two planes"),
                    incarnation: slot.incarnation,
                    seq: slot.seq,
                    rx_ns,
                    received: slot.received,
                    ack_incarnation: slot.ack_incarnation,
                    ack_seq_low: slot.ack_seq_low,
                    promise_us: slot.promise_us,
                    view: (slot.view_known != 0)
                        .then_some(ViewId { generation: slot.view_generation, number: slot.view_number }),
                };
                // Refused: an incarnation that was declared dead since the slot was written.
                let _ = self.parts.detector.handle_beat(now, &beat);
                let before = seen.jitter_max_ns();
                seen.spreads[plane].record(slot.seq, self.parts.heartbeat_ns, rx_ns, self.parts.timeouts.stall_ns());
                if seen.jitter_max_ns() != before {
                    changed.insert(host);
                }
                if self.parts.trees {
                    let late_max_ns = seen.late_max_ns(&self.parts.timeouts);
                    let found = seen.copies.arrived(plane, slot.seq, rx_ns, late_max_ns);
                    // What is missing the detector says by itself; it must not hide what is slow.
                    slow = found.filter(|(_, finding)| *finding == Finding::Slow).map(|found| (host, found)).or(slow);
                }
            }
        }
        changed.iter().for_each(|host| self.follow_jitter(host));
        // One in a turn: others are found again.
        if let Some((host, found)) = slow {
            self.report(host, None, Some(found));
        }
    }

    /// The network between a peer and this host is planned anew.
    pub(super) fn set_network(&mut self, host: u16, network: Network) {
        let Some(seen) = usize::from(host).checked_sub(1).and_then(|index| self.seen.get_mut(index)) else { return };
        seen.network = network;
        self.follow_jitter(host);
    }

    /// The loop was so late. What it is late by counts until it is forgotten, and a stall not at all: the timeouts follow.
    pub(super) fn note_lateness(&mut self, late_ns: u64) {
        self.parts.own_lateness_max_ns = self.parts.own_lateness_max_ns.max(late_ns);
        let counted_ns = if late_ns > self.parts.timeouts.stall_ns() { 0 } else { late_ns };
        if self.own.record(raw_ns(), counted_ns) && self.parts.detector.lowers_timeouts() {
            self.parts.timeouts.own_lateness_ns = self.own.most_ns().max(self.parts.own_lateness_stored_ns);
            let me = self.parts.me;
            for host in (1..=self.parts.members).filter(|host| *host != me) {
                self.follow_jitter(host);
            }
        }
    }

    /// A peer's heartbeats vary more than before, or less: the timeout follows.
    fn follow_jitter(&mut self, host: u16) {
        if self.parts.timeouts.fixed {
            return;
        }
        let seen = &self.seen[usize::from(host) - 1];
        let planned = self.parts.timeouts.for_jitter(seen.jitter_max_ns(), seen.network);
        let wanted = planned.max(self.timeout_min_ns);
        // Refused where only it keeps a promise that was made before.
        let _ = self.parts.detector.set_timeout(raw_ns(), host, wanted);
    }

    /// Records of the kernel's programs.
    pub(super) fn drain_ring(&mut self) {
        // Out of the ring first: what a record causes may need the kernel's programs itself.
        let mut record = [0; RECORD_MAX];
        for _ in 0..RECORDS_PER_TURN {
            let Some(kernel) = &mut self.parts.kernel else { return };
            let mut len = 0;
            let drained = kernel.ring.drain(1, |bytes| {
                len = bytes.len().min(RECORD_MAX);
                record[..len].copy_from_slice(&bytes[..len]);
            });
            match drained {
                Ok(0) => return,
                Ok(_) => self.record(&record[..len]),
                // Only this process' own memory can be at fault; the pidfds and timeouts remain.
                Err(_) => {
                    self.counters.ring_broken += 1;
                    return;
                }
            }
        }
        self.busy_turn = true;
    }

    fn record(&mut self, bytes: &[u8]) {
        let Ok((wake, payload)) = Wake::read_from_prefix(bytes) else { return };
        let now = raw_ns();
        match wake.kind {
            intf::WAKE_EXIT => {
                let slot = u8::try_from(wake.subject).unwrap_or(u8::MAX);
                self.process_exited(
                    now,
                    slot,
                    wake.cookie,
                    ProcessState::from_wait_status(wake.detail.cast_signed()),
                    wake.ns,
                );
                // On its way before anything else; and then the core is free for who is told.
                self.transmit();
                if self.watches.clients(self.parts.me, slot) != 0 {
                    self.busy_turn |= self.tell_events(EVENTS_PER_TURN);
                }
                self.urgent_turn = true;
            }
            intf::WAKE_SILENCE => {
                if let Ok(host) = u16::try_from(wake.subject) {
                    self.parts.detector.timer_fired(now, host);
                }
            }
            intf::WAKE_PACKET => {
                let payload = &payload[..payload.len().min(wake.len as usize)];
                let plane = u8::try_from(wake.subject).unwrap_or(u8::MAX);
                let rx_ns = self.parts.clock.stamp(wake.ns, now);
                if matches!(wake.detail, intf::PACKET_CHUNKS | intf::PACKET_DAMAGED) {
                    self.chunks_received(wake.ns, payload, wake.detail == intf::PACKET_CHUNKS);
                    return;
                }
                if wake.detail == intf::PACKET_SHAPE {
                    self.shape_received(Told::read(payload));
                    return;
                }
                let result = if wake.detail == intf::PACKET_SECTIONS {
                    self.parts.detector.handle_sections(now, rx_ns, plane, payload)
                } else {
                    self.parts.detector.handle_packet(now, rx_ns, plane, payload)
                };
                self.counters.refused += u64::from(result.is_err());
            }
            _ => {}
        }
    }

    /// A local process has left, by the kernel's word or by its pidfd's.
    pub(super) fn process_exited(&mut self, now: u64, slot: u8, cookie: u64, ended: ProcessState, at_ns: u64) {
        // What it said last comes before the news of its end.
        self.drain_outboxes();
        self.process_changed(now, slot, cookie, ended, at_ns);
    }

    /// Only for the registration it is about: a slot may have a new owner by now.
    pub(super) fn process_changed(&mut self, now: u64, slot: u8, cookie: u64, state: ProcessState, at_ns: u64) {
        let owner = self.owners.get(usize::from(slot)).copied().flatten();
        if owner.is_some_and(|owner| owner.cookie == cookie) {
            // A process that has ended already stays ended.
            let _ = self.parts.detector.process_changed(now, slot, state, at_ns);
        }
    }

    /// Datagrams on the planes that the receive program does not serve.
    pub(super) fn drain_receivers(&mut self) {
        for plane in 0..self.parts.receivers.len() {
            for count in 1..=DATAGRAMS_PER_TURN {
                let Some(receiver) = &self.parts.receivers[plane] else { break };
                let len = match receiver.receive(&mut self.datagram) {
                    Ok(Some(len)) => len,
                    Ok(None) | Err(_) => break,
                };
                self.busy_turn |= count == DATAGRAMS_PER_TURN;
                self.datagram_received(u8::try_from(plane).expect("two planes"), len.min(PAYLOAD_MAX + 1));
            }
        }
    }

    pub(super) fn datagram_received(&mut self, plane: u8, len: usize) {
        let now = raw_ns();
        let payload = &self.datagram[..len];
        // What the receive program would count so, too.
        if !(HEADER_LEN..=PAYLOAD_MAX).contains(&len) {
            self.counters.malformed += 1;
            return;
        }
        if len == SHAPE_LEN && payload[KIND_OFFSET] & 0xf == SHAPE {
            self.shape_unchecked(len);
            return;
        }
        let whole = verify(payload, &self.parts.keys).is_ok();
        let chunks = payload[KIND_OFFSET] & 0xf == chunk::CHUNKS;
        if !whole {
            self.counters.bad_tag += 1;
        }
        if chunks && (whole || self.parts.salvage) {
            let mut copy = [0; PAYLOAD_MAX];
            copy[..len].copy_from_slice(payload);
            self.chunks_received(mono_ns(), &copy[..len], whole);
            return;
        }
        if !whole {
            return;
        }
        // Over whichever interface a tree comes: which it is the packet says, and its tag proves.
        let plane = if self.parts.trees { payload[PLANE_OFFSET] } else { plane };
        let accepted = match self.parts.detector.handle_packet(now, now, plane, payload) {
            Ok(accepted) => accepted,
            Err(_) => {
                self.counters.refused += 1;
                return;
            }
        };
        let Ok(packet) = Packet::new(payload) else { return };
        if packet.kind() != fide_wire::Kind::Heartbeat {
            return;
        }
        let (host, seq, incarnation) = (packet.sender(), packet.seq(), packet.incarnation());
        self.count_gap(host, accepted, now);
        let seen = &mut self.seen[usize::from(host) - 1];
        if seen.incarnation != incarnation {
            seen.incarnation = incarnation;
            seen.spreads.iter_mut().for_each(Spread::begin_anew);
        }
        let before = seen.jitter_max_ns();
        seen.spreads[usize::from(plane).min(MAX_PLANES - 1)].record(
            seq,
            self.parts.heartbeat_ns,
            now,
            self.parts.timeouts.stall_ns(),
        );
        if seen.jitter_max_ns() != before {
            self.follow_jitter(host);
        }
        if self.parts.trees {
            let late_max_ns = self.seen[usize::from(host) - 1].late_max_ns(&self.parts.timeouts);
            let copies = &mut self.seen[usize::from(host) - 1].copies;
            let found = copies.arrived(usize::from(plane), seq, now, late_max_ns);
            self.report(host, None, found);
        }
    }
}
