// SPDX-License-Identifier: Apache-2.0
//! What arrives: heartbeats in slots, records in the wake ring, datagrams.

use fide_bpf::intf::{self, Slot, Wake};
use fide_detector::{Beat, PeerState, ProcessState};
use fide_lane::Finding;
use fide_types::{HostId, MAX_PLANES, PAYLOAD_MAX, ProcessRef};
use fide_wire::{
    AnnouncedShape, HEADER_LEN, KIND_OFFSET, Kind, PLANE_OFFSET, Packet, SHAPE, SHAPE_LEN, ViewId, chunk, verify,
};
use zerocopy::FromBytes;

use super::{DATAGRAMS_PER_TURN, EVENTS_PER_TURN, Engine, RECORDS_PER_TURN};
use crate::{
    clock::{Clocks, Now},
    timeout::Network,
};

/// Bytes of the longest record in the wake ring.
const RECORD_MAX: usize = size_of::<Wake>() + PAYLOAD_MAX;

/// A heartbeat that was taken in, by either path.
struct Heartbeat {
    host: HostId,
    plane: usize,
    incarnation: u32,
    seq: u64,
    rx_ns: u64,
}

impl Engine {
    /// Takes in the newest heartbeats that the receive program left in its slots.
    pub(super) fn read_slots(&mut self, clocks: &mut impl Clocks) {
        if !self.ports.kernel.as_ref().is_some_and(|kernel| kernel.xdp) {
            return;
        }
        for host in self.facts.peers() {
            for plane in 0..self.ports.senders.len().min(MAX_PLANES) {
                let Some(kernel) = &self.ports.kernel else { return };
                let Some(slot) = kernel.receive.slot(host, plane) else {
                    self.counters.slot_reads_failed += 1;
                    continue;
                };
                if slot.seq != 0 && self.arrivals.is_new(host, plane, slot.incarnation, slot.seq) {
                    self.slot_filled(clocks.now(), host, plane, &slot);
                }
            }
        }
    }

    /// The receive program has left a peer's newest heartbeat on a plane.
    pub(super) fn slot_filled(&mut self, now: Now, host: HostId, plane: usize, slot: &Slot) {
        let rx_ns = self.clock.stamp(slot.rx_ns, now.raw_ns);
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
        // The detector refuses an incarnation that was declared dead since the slot was written.
        let _ = self.detector.handle_beat(now.raw_ns, &beat);
        let heartbeat = Heartbeat { host, plane, incarnation: slot.incarnation, seq: slot.seq, rx_ns };
        self.heartbeat_seen(now, &heartbeat);
    }

    /// Measures what the detector does not use of a heartbeat: the jitter of its path, and whether a tree is
    /// late.
    fn heartbeat_seen(&mut self, now: Now, heartbeat: &Heartbeat) {
        let Heartbeat { host, plane, incarnation, seq, rx_ns } = *heartbeat;
        if self.arrivals.note(host, plane, incarnation, seq) {
            self.timing.begin_anew(host);
        }
        if self.timing.heartbeat(host, plane, seq, rx_ns) {
            self.follow_jitter(now, host);
        }
        if self.facts.trees {
            let late_max_ns = self.timing.late_max_ns(host);
            let found = self.arrivals.copy(host, plane, seq, rx_ns, late_max_ns);
            // The detector itself reports which heartbeats are missing.
            self.report(host, None, found.filter(|(_, finding)| *finding == Finding::Slow));
        }
    }

    /// The network between a peer and this host is planned anew.
    pub(super) fn set_network(&mut self, now: Now, host: HostId, network: Network) {
        if self.timing.set_network(host, network) {
            self.follow_jitter(now, host);
        }
    }

    /// The loop was this late: the timeouts follow.
    pub(super) fn was_late(&mut self, now: Now, late_ns: u64) {
        if self.timing.was_late(now.raw_ns, late_ns) && self.detector.lowers_timeouts() {
            self.timing.follow_own();
            for host in self.facts.peers() {
                self.follow_jitter(now, host);
            }
        }
    }

    /// A peer's jitter has changed: the timeout follows.
    fn follow_jitter(&mut self, now: Now, host: HostId) {
        if let Some(wanted_ns) = self.timing.wanted_ns(host) {
            // Refused only to keep an earlier promise.
            let _ = self.detector.set_timeout(now.raw_ns, host, wanted_ns);
        }
    }

    /// Handles the records of the kernel's programs.
    pub(super) fn drain_ring(&mut self, clocks: &mut impl Clocks) {
        // The record is copied out of the ring first: handling it may need the kernel's programs itself.
        let mut record = [0; RECORD_MAX];
        for _ in 0..RECORDS_PER_TURN {
            let Some(kernel) = &mut self.ports.kernel else { return };
            let mut len = 0;
            let drained = kernel.ring.drain(1, |bytes| {
                len = bytes.len().min(RECORD_MAX);
                record[..len].copy_from_slice(&bytes[..len]);
            });
            match drained {
                Ok(0) => return,
                Ok(_) => self.record(clocks, &record[..len]),
                // Only this process' own memory can be at fault; the pidfds and timeouts remain.
                Err(_) => {
                    self.counters.ring_broken += 1;
                    return;
                }
            }
        }
        self.busy_turn = true;
    }

    fn record(&mut self, clocks: &mut impl Clocks, bytes: &[u8]) {
        let Ok((wake, payload)) = Wake::read_from_prefix(bytes) else { return };
        let now = clocks.now();
        match wake.kind {
            intf::WAKE_EXIT => {
                let slot = u8::try_from(wake.subject).unwrap_or(u8::MAX);
                let ended = ProcessState::from_wait_status(wake.detail.cast_signed());
                self.process_exited(now, slot, wake.cookie, ended, wake.ns);
                self.announce_exit(clocks, slot);
            }
            intf::WAKE_SILENCE => self.detector.timer_fired(now.raw_ns),
            intf::WAKE_PACKET => {
                self.packet_woken(now, &wake, &payload[..payload.len().min(wake.len as usize)]);
            }
            _ => {}
        }
    }

    /// Sends an exit before anything else; then the core is free for the programs that are notified.
    fn announce_exit(&mut self, clocks: &mut impl Clocks, slot: u8) {
        self.transmit(clocks);
        let subject = ProcessRef::new(self.facts.me, slot);
        if !self.watches.clients(subject).is_empty() && self.deliver_events(clocks.now(), EVENTS_PER_TURN) {
            self.busy_turn = true;
        }
        self.urgent_turn = true;
    }

    /// Takes in a packet that the receive program left to this loop, its tag checked.
    fn packet_woken(&mut self, now: Now, wake: &Wake, payload: &[u8]) {
        let plane = u8::try_from(wake.subject).unwrap_or(u8::MAX);
        let rx_ns = self.clock.stamp(wake.ns, now.raw_ns);
        let result = match wake.detail {
            intf::PACKET_CHUNKS | intf::PACKET_DAMAGED => {
                return self.chunks_received(wake.ns, payload, wake.detail == intf::PACKET_CHUNKS);
            }
            intf::PACKET_SHAPE => return self.shape_received(AnnouncedShape::read(payload)),
            intf::PACKET_SECTIONS => self.detector.handle_sections(now.raw_ns, rx_ns, plane, payload),
            _ => self.detector.handle_packet(now.raw_ns, rx_ns, plane, payload),
        };
        if result.is_err() {
            self.counters.refused += 1;
        }
    }

    /// A local process has ended, according to the kernel's hook or its pidfd.
    pub(super) fn process_exited(&mut self, now: Now, slot: u8, cookie: u64, ended: ProcessState, at_ns: u64) {
        // Its last messages come before the news of its end.
        self.drain_outboxes(now);
        self.process_changed(now, slot, cookie, ended, at_ns);
    }

    /// Changes the process only if the registration is still the same: a slot may have a new owner by now.
    pub(super) fn process_changed(&mut self, now: Now, slot: u8, cookie: u64, state: ProcessState, at_ns: u64) {
        if self.owners.is_registration(slot, cookie) {
            // A process that has ended already stays ended.
            let _ = self.detector.process_changed(now.raw_ns, slot, state, at_ns);
        }
    }

    /// Datagrams on the planes that the receive program does not serve.
    pub(super) fn drain_receivers(&mut self, clocks: &mut impl Clocks) {
        for plane in 0..self.ports.receivers.len() {
            for count in 1..=DATAGRAMS_PER_TURN {
                let Some(receiver) = &self.ports.receivers[plane] else { break };
                let len = match receiver.receive(&mut self.datagram) {
                    Ok(Some(len)) => len,
                    Ok(None) | Err(_) => break,
                };
                if count == DATAGRAMS_PER_TURN {
                    self.busy_turn = true;
                }
                let plane = u8::try_from(plane).expect("two planes");
                self.datagram_received(clocks.now(), plane, len.min(PAYLOAD_MAX + 1));
            }
        }
    }

    /// Packets on planes of memory, which nothing has announced. At the bound the rest waits for the next look: a host that writes without
    /// end does not keep the loop from sleeping.
    pub(super) fn look_into_memory(&mut self, clocks: &mut impl Clocks) {
        for index in 0..self.ports.polled.len() {
            for _ in 0..DATAGRAMS_PER_TURN {
                let Some(len) = self.ports.polled[index].receive(&mut self.datagram) else { break };
                let plane = self.ports.polled_plane(index);
                self.datagram_received(clocks.now(), plane, len.min(PAYLOAD_MAX + 1));
            }
        }
    }

    /// Takes in a datagram, the first `len` bytes of the buffer. Its tag is not checked yet.
    pub(super) fn datagram_received(&mut self, now: Now, plane: u8, len: usize) {
        let payload = &self.datagram[..len];
        // The receive program counts such packets as malformed too.
        if !(HEADER_LEN..=PAYLOAD_MAX).contains(&len) {
            self.counters.malformed += 1;
            return;
        }
        if len == SHAPE_LEN && payload[KIND_OFFSET] & 0xf == SHAPE {
            self.shape_unchecked(len);
            return;
        }
        let whole = verify(payload, &self.keys).is_ok();
        let chunks = payload[KIND_OFFSET] & 0xf == chunk::CHUNKS;
        if !whole {
            self.counters.bad_tag += 1;
        }
        if chunks && (whole || self.facts.salvage) {
            let mut copy = [0; PAYLOAD_MAX];
            copy[..len].copy_from_slice(payload);
            self.chunks_received(now.mono_ns, &copy[..len], whole);
            return;
        }
        if !whole {
            return;
        }
        // A tree's packets may come over any interface: the packet names its tree, and the tag proves it.
        let plane = if self.facts.trees { payload[PLANE_OFFSET] } else { plane };
        let Ok(accepted) = self.detector.handle_packet(now.raw_ns, now.raw_ns, plane, payload) else {
            self.counters.refused += 1;
            return;
        };
        let Ok(packet) = Packet::new(payload) else { return };
        if packet.kind() != Kind::Heartbeat {
            return;
        }
        let heartbeat = Heartbeat {
            host: packet.sender(),
            plane: usize::from(plane).min(MAX_PLANES - 1),
            incarnation: packet.incarnation(),
            seq: packet.seq(),
            rx_ns: now.raw_ns,
        };
        if accepted == fide_detector::Accepted::Heartbeat {
            self.count_gap(now, heartbeat.host);
        }
        self.heartbeat_seen(now, &heartbeat);
    }

    /// Counts the gap before a fresh heartbeat that the receive program has not seen.
    fn count_gap(&mut self, now: Now, host: HostId) {
        let Some(peer) = self.detector.peer(host) else { return };
        let is_watched = peer.state == PeerState::Up && self.facts.monitors.contains(host);
        self.gaps.arrived(host, peer.incarnation, now.raw_ns, is_watched);
    }
}

#[cfg(test)]
mod tests;
