// SPDX-License-Identifier: Apache-2.0
//! Packets on every plane, the alive table, and the lease in it.

use fide_agent_api::table::{HostRecord, ProcessRecord, ViewRecord, name_bytes, state};
use fide_detector::{PeerState, TransmitKind};
use fide_types::{HostId, MAX_PLANES, ProcessRef};

use super::{Engine, TRANSMITS_PER_TURN};
use crate::{
    clock::{Clocks, Now},
    trees::NOTICES_PER_HEARTBEAT,
};

impl Engine {
    /// Sends the packets that are due: notices first, then the heartbeat; each on every plane.
    pub(super) fn transmit(&mut self, clocks: &mut impl Clocks) {
        self.hear_bells(clocks.now());
        for _ in 0..TRANSMITS_PER_TURN {
            if !self.transmit_one(clocks.now()) {
                return;
            }
        }
        self.busy_turn = true;
    }

    /// Clients that were muted are heard again a period later, whether a heartbeat goes out or not.
    pub(super) fn hear_bells(&mut self, now: Now) {
        for client in self.bells.next_period(now.raw_ns).iter() {
            if let Some(session) = self.sessions.get(client) {
                self.ports.hear(client, &session.memory);
            }
        }
    }

    /// Sends the next packet that is due; false if none is.
    fn transmit_one(&mut self, now: Now) -> bool {
        let Some(transmit) = self.detector.poll_transmit(now.raw_ns, &mut self.payload) else { return false };
        // This packet may have shortened the lease: programs must know that before it is sent.
        self.publish_lease(now);
        let payload = &mut self.payload[..transmit.len];
        if transmit.kind == TransmitKind::Heartbeat {
            self.repeat.keep(payload);
            self.notices_sent = 0;
        } else if self.facts.trees {
            // The lane has room for this many notices; the next heartbeat carries the others' news too.
            if self.notices_sent >= NOTICES_PER_HEARTBEAT {
                self.counters.notices_held += 1;
                return true;
            }
            self.notices_sent += 1;
        }
        self.ports.send(payload, &self.keys.current, &mut self.counters);
        true
    }

    /// Publishes the state that clients read without asking.
    pub(super) fn publish(&mut self, clocks: &mut impl Clocks) {
        let now = clocks.now();
        for host in self.facts.peers() {
            self.publish_host(now, host);
        }
        // The turn may have been long.
        self.look_at_clocks(clocks);
        self.publish_lease(clocks.now());
        self.table.tick(now.mono_ns);
    }

    /// Publishes the view that this host holds.
    pub(super) fn publish_view(&self) {
        let view = self.detector.view();
        self.table.set_view(&ViewRecord {
            generation: view.id.generation,
            number: view.id.number,
            members: view.members.0,
            settled_ns: self.clock.mono_after(self.detector.view_settled_ns()),
        });
    }

    /// Writes this host into its own table: alive as long as a reader finds a lease there that is not over.
    pub(super) fn publish_me(&self, now: Now) {
        let me = self.facts.me;
        let record = HostRecord {
            state: state::ALIVE,
            incarnation: self.detector.config().incarnation,
            changed_ns: now.mono_ns,
            name: self.host_name(me),
            ..HostRecord::default()
        };
        self.table.write_host(me, &record);
        self.table.changed();
    }

    pub(super) fn publish_host(&self, now: Now, host: HostId) {
        let Some(peer) = self.detector.peer(host) else { return };
        let newest = peer.last_rx_ns.into_iter().max().unwrap_or(0);
        let before = self.table.host(host).unwrap_or_default();
        let state = match peer.state {
            PeerState::Unknown => state::UNKNOWN,
            PeerState::Up => state::ALIVE,
            PeerState::Dead => state::HOST_SILENT,
            PeerState::Left => state::LEFT,
        };
        if before.last_seq == peer.last_seq && before.state == state && before.incarnation == peer.incarnation {
            return;
        }
        let up = |plane: usize| {
            peer.last_rx_ns[plane] != 0 && now.raw_ns.saturating_sub(peer.last_rx_ns[plane]) < peer.timeout_ns
        };
        let mut planes_up = 0;
        for plane in 0..MAX_PLANES {
            if up(plane) {
                planes_up |= 1 << plane;
            }
        }
        let record = HostRecord {
            state,
            planes_up,
            hears_us: u8::from(self.detector.heard_by().contains(host)),
            incarnation: peer.incarnation,
            last_rx_ns: self.clock.mono_of(newest),
            last_seq: peer.last_seq,
            timeout_ns: peer.timeout_ns,
            plane_rx_ns: peer.last_rx_ns.map(|rx_ns| self.clock.mono_of(rx_ns)),
            changed_ns: if before.state == state { before.changed_ns } else { now.mono_ns },
            name: self.host_name(host),
            ..HostRecord::default()
        };
        self.table.write_host(host, &record);
        if before.state != state {
            self.table.changed();
        }
    }

    pub(super) fn publish_process(&self, now: Now, subject: ProcessRef) {
        let ProcessRef { host, slot } = subject;
        let Some(process) = self.detector.process(host, slot) else { return };
        let (state, code) = process.state.to_bytes();
        let record = ProcessRecord {
            state,
            reason: process.state.reason().map_or(0, |why| why.to_bytes().0),
            incarnation: process.incarnation,
            code,
            pb_seq: process.pb_seq,
            last_rx_ns: now.mono_ns,
            changed_ns: now.mono_ns,
            at_ns: process.at_ns,
            name: name_bytes(process.name.as_str()),
            ..ProcessRecord::default()
        };
        self.table.write_process(host, slot, &record);
        self.table.changed();
    }

    /// Checks whether the machine stood still. If it did, the lease that it had is over for every reader,
    /// before anything else happens.
    pub(super) fn look_at_clocks(&mut self, clocks: &mut impl Clocks) {
        let (look, is_narrow) = clocks.look();
        let Some(doubt) = self.clock.looked(&look, is_narrow) else { return };
        self.table.set_lease(&self.clock.lease(0), 0);
        self.detector.doubt(clocks.now().raw_ns, doubt.gap_ns());
    }

    /// Until when programs of this host may act. Under either trust, peers suspect this host once it has
    /// sent nothing for a timeout: programs must not outlive a loop that does not run.
    pub(super) fn lease_until_ns(&self, now_raw_ns: u64) -> u64 {
        // No longer than the timeout that this host promises, because nobody waits longer for the programs
        // of an agent that has ended. And no longer than its first timeout, because peers may not have
        // heard of a promise that has grown since.
        let shortest_ns = self.detector.config().timeout_ns.min(self.detector.timeout_least_ns());
        self.detector.lease_until_ns().min(now_raw_ns + shortest_ns)
    }

    /// Writes the lease where clients read it.
    pub(super) fn publish_lease(&self, now: Now) {
        self.publish_exclusion();
        // The view goes first: a reader of the lease finds its view beside it.
        let id = self.detector.view().id;
        if self.table.view_id() != (id.generation, id.number) {
            self.publish_view();
        }
        let until_raw_ns = self.lease_until_ns(now.raw_ns);
        let clock = &self.clock;
        self.table.set_lease(&clock.lease(until_raw_ns), clock.mono_of(until_raw_ns));
    }

    /// Publishes the state that the control thread acts on: it has this host begin again, or reports that
    /// it was put back.
    pub(super) fn publish_exclusion(&self) {
        let (excluded, put_back) = (self.detector.is_excluded(), self.detector.is_put_back());
        self.exchange.set_put_back(put_back);
        self.exchange.set_excluded(excluded && !put_back);
    }
}
