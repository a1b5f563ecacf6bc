// SPDX-License-Identifier: Apache-2.0
//! What leaves: packets on every plane, and the alive table.

use fide_agent_api::table::{HostRecord, ProcessRecord, ViewRecord, name_bytes, state};
use fide_detector::{PeerState, TransmitKind};
use fide_sys::clock::{mono_ns, raw_ns};
use fide_wire::{MAX_PLANES, seal};

use super::{Engine, TRANSMITS_PER_TURN};
use crate::trees::NOTICES_PER_HEARTBEAT;

impl Engine {
    /// Sends what is due: notices first, then the heartbeat; each on every plane.
    pub(super) fn transmit(&mut self) {
        if self.rung != 0 {
            self.hear_bells(raw_ns());
        }
        for _ in 0..TRANSMITS_PER_TURN {
            let Some(transmit) = self.parts.detector.poll_transmit(raw_ns(), &mut self.payload) else { return };
            // What this packet says may have shortened the lease: known before it is sent.
            self.publish_lease();
            let payload = &mut self.payload[..transmit.len];
            if transmit.kind == TransmitKind::Heartbeat {
                self.repeat.keep(payload);
                self.notices_sent = 0;
            } else if self.parts.trees {
                // The lane has room for so many; what the others say is in the next heartbeat too.
                if self.notices_sent >= NOTICES_PER_HEARTBEAT {
                    self.counters.notices_held += 1;
                    continue;
                }
                self.notices_sent += 1;
            }
            for (plane, sender) in (0u8..).zip(&mut self.parts.senders) {
                seal(payload, plane, &self.parts.keys.current);
                self.counters.sends_failed += u64::from(sender.send(payload).is_err());
            }
        }
        self.busy_turn = true;
    }

    /// What clients read without asking.
    pub(super) fn publish(&mut self) {
        let now = mono_ns();
        for host in (1..=self.parts.members).filter(|host| *host != self.parts.me) {
            self.publish_host(host, now);
        }
        // The turn may have been long.
        self.look_at_clocks();
        self.publish_lease();
        self.parts.table.tick(now);
    }

    /// The view that this host holds.
    pub(super) fn publish_view(&self) {
        let view = self.parts.detector.view();
        self.parts.table.set_view(&ViewRecord {
            generation: view.id.generation,
            number: view.id.number,
            members: view.members.0,
            settled_ns: self.parts.clock.mono_after(self.parts.detector.view_settled_ns()),
        });
    }

    /// This host in its own table: alive as long as anybody reads a lease in it that has not passed.
    pub(super) fn publish_me(&self) {
        let me = self.parts.me;
        let record = HostRecord {
            state: state::ALIVE,
            incarnation: self.parts.detector.config().incarnation,
            changed_ns: mono_ns(),
            name: self.host_name(me),
            ..HostRecord::default()
        };
        self.parts.table.write_host(me, &record);
        self.parts.table.changed();
    }

    pub(super) fn publish_host(&self, host: u16, now: u64) {
        let Some(peer) = self.parts.detector.peer(host) else { return };
        let newest = peer.last_rx_ns.into_iter().max().unwrap_or(0);
        let before = self.parts.table.host(host).unwrap_or_default();
        let state = match peer.state {
            PeerState::Unknown => state::UNKNOWN,
            PeerState::Up => state::ALIVE,
            PeerState::Dead => state::HOST_SILENT,
            PeerState::Left => state::LEFT,
        };
        if before.last_seq == peer.last_seq && before.state == state && before.incarnation == peer.incarnation {
            return;
        }
        let now_raw = raw_ns();
        let up = |plane: usize| {
            peer.last_rx_ns[plane] != 0 && now_raw.saturating_sub(peer.last_rx_ns[plane]) < peer.timeout_ns
        };
        let planes_up = (0..MAX_PLANES).fold(0, |bits, plane| bits | u8::from(up(plane)) << plane);
        let record = HostRecord {
            state,
            planes_up,
            hears_us: u8::from(self.parts.detector.heard_by().contains(host)),
            incarnation: peer.incarnation,
            last_rx_ns: self.parts.clock.mono_of(newest),
            last_seq: peer.last_seq,
            timeout_ns: peer.timeout_ns,
            plane_rx_ns: peer.last_rx_ns.map(|rx_ns| self.parts.clock.mono_of(rx_ns)),
            changed_ns: if before.state == state { before.changed_ns } else { now },
            name: self.host_name(host),
            ..HostRecord::default()
        };
        self.parts.table.write_host(host, &record);
        if before.state != state {
            self.parts.table.changed();
        }
    }

    pub(super) fn publish_process(&self, host: u16, slot: u8, now: u64) {
        let Some(process) = self.parts.detector.process(host, slot) else { return };
        let (state, code) = process.state.to_bytes();
        let record = ProcessRecord {
            state,
            reason: process.state.reason().map_or(0, |why| why.to_bytes().0),
            incarnation: process.incarnation,
            code,
            pb_seq: process.pb_seq,
            last_rx_ns: now,
            changed_ns: now,
            at_ns: process.at_ns,
            name: name_bytes(process.name.as_str()),
            ..ProcessRecord::default()
        };
        self.parts.table.write_process(host, slot, &record);
        self.parts.table.changed();
    }
}
