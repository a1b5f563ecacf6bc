// SPDX-License-Identifier: Apache-2.0
//! What arrives: heartbeats and notices, who may speak, and what acknowledgements say.

use crate::detector::Detector;
use crate::origin::{Origin, Source};
use crate::peer::{BindingAck, Superseded};
use crate::types::*;
use crate::view::Outcome;
use fide_types::{
    HostId, HostSet, Policy, Reason, Trust,
    planted::{self, Planted},
};
use fide_wire::{Ack, Body, Kind, Packet, Seen, ViewId, ViewRepr, section};

impl Detector {
    /// The newest state of one (peer, plane) from the kernel's receive program, which has authenticated and
    /// de-duplicated it. Skipped and repeated sequence numbers are fine. Feed the sections received
    /// ([`Detector::handle_sections`]) before the beats of the same turn of the loop: a beat says that what
    /// was sent before it has arrived or is lost.
    pub fn handle_beat(&mut self, now_ns: u64, beat: &Beat) -> Result<(), Refusal> {
        let Beat { peer: host, plane, incarnation, seq, rx_ns, .. } = *beat;
        if plane >= self.config.planes {
            self.counters.refused_wrong_plane += 1;
            return Err(Refusal::WrongPlane { sent: plane, arrived: plane });
        }
        let origin = Origin { host, incarnation, seq };
        let ack = Ack { incarnation: beat.ack_incarnation, seq_low: beat.ack_seq_low };
        self.check_put_back(now_ns, origin, ack);
        self.admit(now_ns, host, incarnation, true)?;
        let answers = self.ack_answers(ack);
        self.peers[host].has_heard_me |= answers;
        if !self.note_answer(host, seq, rx_ns, answers) {
            return Ok(());
        }
        self.peers[host].received_at_least(plane, beat.received);
        if let Some(view) = beat.view {
            // The receive program keeps steady heartbeats to itself: only the slot says that their sender has
            // stopped to suspect anybody.
            if planted::is(Planted::KeepsReports) {
                self.peers[host].view = view;
            } else {
                self.view_reported(now_ns, origin, &ViewRepr::steady(view));
            }
        }
        if seq == 0 || !self.heard(now_ns, host, plane, seq, rx_ns) {
            return Ok(());
        }
        let knows_view = beat.view.is_some() || !self.is_judged_by_views(self.config.me);
        self.acknowledged(now_ns, host, seq, ack, if knows_view { beat.promise_us } else { 0 });
        self.settle_peer(now_ns, host);
        self.renew_lease(now_ns);
        Ok(())
    }

    /// An authenticated packet that arrived on `plane`. Checks incarnation and replay, counts it as a sign of
    /// life, and reads its sections.
    ///
    /// # Errors
    /// A [`Refusal`]. Then only its counter has changed, and for a dead incarnation that it will be named dead;
    /// unless the packet shows that this machine was put back, which a refused packet can show too.
    pub fn handle_packet(&mut self, now_ns: u64, rx_ns: u64, plane: u8, payload: &[u8]) -> Result<Accepted, Refusal> {
        let Some(packet) = self.open(now_ns, rx_ns, plane, payload)? else { return Ok(Accepted::Unanswered) };
        let (host, seq) = (packet.sender(), packet.seq());
        if packet.kind() == Kind::Notice {
            self.read(now_ns, rx_ns, &packet);
            self.counters.notices_accepted += 1;
            return Ok(Accepted::Notice);
        }
        let peer = &mut self.peers[host];
        let known = peer.window.check(seq);
        if known == Seen::Old || known == Seen::Duplicate && !peer.is_new_on(plane, seq) {
            self.counters.refused_replayed += 1;
            return Err(Refusal::Replayed { host, seq });
        }
        let first = peer.mark(seq) == Seen::Fresh;
        peer.count_received(plane);
        self.heard(now_ns, host, plane, seq, rx_ns);
        if !first {
            self.counters.copies_accepted += 1;
            return Ok(Accepted::Copy);
        }
        self.counters.heartbeats_accepted += 1;
        self.read(now_ns, rx_ns, &packet);
        Ok(Accepted::Heartbeat)
    }

    /// As [`Detector::handle_packet`], for a packet that the kernel's receive program has already counted as
    /// a sign of life: only its contents are read. The same packet does nothing the second time.
    pub fn handle_sections(&mut self, now_ns: u64, rx_ns: u64, plane: u8, payload: &[u8]) -> Result<Accepted, Refusal> {
        let Some(packet) = self.open(now_ns, rx_ns, plane, payload)? else { return Ok(Accepted::Unanswered) };
        if packet.kind() == Kind::Heartbeat {
            self.heard(now_ns, packet.sender(), plane, packet.seq(), rx_ns);
        }
        self.read(now_ns, rx_ns, &packet);
        Ok(match packet.kind() {
            Kind::Heartbeat => Accepted::Heartbeat,
            Kind::Notice => Accepted::Notice,
        })
    }

    /// The packet, if it may be read. `None`: its sender has not answered this host, so it may be a
    /// recording.
    fn open<'a>(
        &mut self,
        now_ns: u64,
        rx_ns: u64,
        plane: u8,
        payload: &'a [u8],
    ) -> Result<Option<Packet<&'a [u8]>>, Refusal> {
        let packet = self.check(plane, payload)?;
        if let Some(ack) = packet.ack(self.config.me) {
            self.check_put_back(now_ns, Origin::of(&packet), ack);
        }
        self.note_own_incarnations(&packet);
        self.admit_packet(now_ns, &packet)?;
        if self.is_answered(rx_ns, &packet) {
            return Ok(Some(packet));
        }
        self.heed_exclusion(now_ns, &packet);
        Ok(None)
    }

    /// Has the sender answered this host, with this packet or before? Only a heartbeat can be an answer: a
    /// notice has no room for one.
    fn is_answered(&mut self, rx_ns: u64, packet: &Packet<&[u8]>) -> bool {
        let host = packet.sender();
        if packet.kind() == Kind::Notice {
            return self.peers[host].has_answered();
        }
        if !self.peers[host].has_heard_me {
            self.peers[host].has_heard_me = self.hears_me(packet);
        }
        let answers = self.peers[host].has_answered() || self.answers(packet);
        self.note_answer(host, packet.seq(), rx_ns, answers)
    }

    /// A witness that comes back was dropped from the view meanwhile. A host that dropped it answers this
    /// incarnation nothing else, even once that host has lost its own view. Only a view drops an incarnation,
    /// and for good: so this is true even where the packet is a recording.
    fn heed_exclusion(&mut self, now_ns: u64, packet: &Packet<&[u8]>) {
        let host = packet.sender();
        let names_me = self.is_named_dead(packet);
        if self.life.is_resumed() && self.voters.contains(host) && names_me && !planted::is(Planted::DroppedUnheard) {
            self.apply(now_ns, Outcome::Excluded, host);
        }
    }

    fn check<'a>(&mut self, plane: u8, payload: &'a [u8]) -> Result<Packet<&'a [u8]>, Refusal> {
        let packet = Packet::new(payload).inspect_err(|_| self.counters.refused_malformed += 1)?;
        if packet.plane() != plane || plane >= self.config.planes {
            self.counters.refused_wrong_plane += 1;
            return Err(Refusal::WrongPlane { sent: packet.plane(), arrived: plane });
        }
        let (got, want) = (packet.ack_count(), self.peers.hosts() - 1);
        if packet.kind() == Kind::Heartbeat && got != want {
            self.counters.refused_malformed += 1;
            return Err(Refusal::Members { got, want });
        }
        Ok(packet)
    }

    fn admit_packet(&mut self, now_ns: u64, packet: &Packet<&[u8]>) -> Result<(), Refusal> {
        let admitted = self.admit(now_ns, packet.sender(), packet.incarnation(), packet.kind() == Kind::Heartbeat);
        if let Err(Refusal::DeadIncarnation { host, .. }) = admitted
            && !self.is_judged_by_views(self.config.me)
            && host < self.config.me
            && self.is_named_dead(packet)
        {
            // Each has declared the other dead after every path between them was cut (policy network splits
            // then). When they hear each other again, the one with the higher id starts anew.
            self.apply(now_ns, Outcome::Excluded, host);
        }
        admitted
    }

    /// Checks who speaks. A newer incarnation replaces the one known, if `heartbeat`.
    fn admit(&mut self, now_ns: u64, host: HostId, incarnation: u32, heartbeat: bool) -> Result<(), Refusal> {
        if host == self.config.me {
            self.counters.refused_not_a_member += 1;
            return Err(Refusal::OwnId { host });
        }
        let Some(peer) = self.peers.get_mut(host) else {
            self.counters.refused_not_a_member += 1;
            return Err(Refusal::NotAMember { host });
        };
        if incarnation == peer.incarnation && incarnation > peer.dead_incarnation {
            return Ok(());
        }
        if incarnation <= peer.dead_incarnation && !planted::is(Planted::TakesTheDead) {
            peer.announce_exclusion(incarnation);
            self.counters.refused_dead_incarnation += 1;
            return Err(Refusal::DeadIncarnation { host, incarnation });
        }
        let current = peer.incarnation;
        if incarnation < current || !heartbeat {
            self.counters.refused_stale_incarnation += 1;
            return Err(Refusal::StaleIncarnation { host, incarnation, current });
        }
        if peer.superseded.is_none() && (peer.is_up() || self.views.contains(host, current)) {
            self.supersede(now_ns, host);
        }
        self.peers[host].follow(incarnation);
        Ok(())
    }

    /// A newer incarnation of `host` is heard while the present one is up or in the view: its end is due,
    /// once no lease of it can run any more.
    fn supersede(&mut self, now_ns: u64, host: HostId) {
        let promise_ns =
            if self.config.trust == Trust::Lease { u64::from(self.longest_promise_us()) * 1000 } else { 0 };
        let (must_know, last_tick_ns) = (self.must_know_me(host), self.last_tick_ns);
        // What came while this host stalled is read before the next tick finds the stall.
        let has_stalled = self.has_stalled(now_ns) && !planted::is(Planted::FindsStallsLate);
        let peer = &mut self.peers[host];
        if has_stalled {
            peer.note_own_stall(now_ns);
        }
        // It may judge this incarnation from the first heartbeat that greeted it, and its answer may have
        // come during the stall.
        let answered_unheard = peer.is_greeted()
            && now_ns >= peer.limit_ns()
            && !peer.silent(last_tick_ns)
            && !planted::is(Planted::DoubtsOnlyTheHeard);
        let in_doubt = must_know && (peer.knows_me() || answered_unheard) && peer.in_doubt(now_ns);
        // A peer that has not acknowledged this incarnation, or may have declared it dead, acts whatever was
        // promised to it. But it acts no longer than its agent grants its programs from its last turn: its
        // own promise at most ([`crate::lease`]).
        let unbound = must_know && (!peer.knows_me() || in_doubt) && !planted::is(Planted::EndsUnbound);
        let until_ns = if promise_ns == 0 {
            now_ns
        } else {
            let granted_ns = self.config.with_drift(u64::from(peer.promise_us()) * 1000);
            let alone_ns = if unbound { now_ns.saturating_add(granted_ns) } else { 0 };
            peer.promised_until_ns.max(peer.last_rx_ns.saturating_add(promise_ns)).max(alone_ns)
        };
        peer.superseded = Some(Superseded {
            incarnation: peer.incarnation,
            reported: peer.is_up(),
            until_ns,
            in_doubt,
            last_seq: peer.last_seq,
            last_rx_ns: peer.plane_rx_ns(),
        });
    }

    /// A sign of life. Returns whether it is the newest of that peer.
    fn heard(&mut self, now_ns: u64, host: HostId, plane: u8, seq: u64, rx_ns: u64) -> bool {
        let planes = self.config.planes;
        let heard = self.peers[host].beat(planes, plane, seq, rx_ns.min(now_ns));
        if heard.restored {
            self.emit(Event::PathRestored { host, plane });
        }
        if let Some(plane) = heard.lost {
            self.emit(Event::PathLost { host, plane });
        }
        self.settle_peer(now_ns, host);
        if heard.on_plane && self.peers[host].open > 0 {
            self.close_gaps(now_ns, host);
        }
        heard.newest
    }

    /// Heartbeat `seq` of `host` acknowledges this host, with the promise that comes with it (0 for none).
    fn acknowledged(&mut self, now_ns: u64, host: HostId, seq: u64, ack: Ack, promise_us: u32) {
        let peer = &mut self.peers[host];
        if self.life.is_resumed() && seq < peer.answered_seq() && !planted::is(Planted::TakesFormerAcks) {
            return;
        }
        if promise_us != 0 {
            peer.promises(promise_us);
        }
        let is_mine = ack.incarnation == self.config.incarnation;
        let mut stopped_hearing = false;
        if seq >= peer.last_seq {
            // A peer that stopped hearing this host says so before it falls silent itself.
            stopped_hearing = peer.set_knows_me(is_mine);
        }
        if stopped_hearing && self.must_know_me(host) && self.counts_as_judge(host) {
            // It has declared this incarnation dead: nothing else makes it stop to acknowledge it. Its word
            // of that may have been lost.
            self.apply(now_ns, Outcome::Excluded, host);
        }
        if !is_mine {
            return;
        }
        self.peers[host].acknowledges_incarnation();
        // It hears this host, and no more. As a number, 0 would stand for the newest one with a lower half of
        // 0.
        if ack.seq_low == 0 && !planted::is(Planted::TakesNothingForANumber) {
            return;
        }
        let Some(acked_seq) = self.sent.expand(ack.seq_low) else { return };
        self.peers[host].acknowledges(acked_seq, seq);
        let by_views = self.is_judged_by_views(self.config.me);
        let counts = !by_views || self.views.takes_acks() && self.peers[host].view == self.views.id();
        if counts
            && self.config.trust == Trust::Lease
            && let Some(sent_ns) = self.sent.time_of(acked_seq)
        {
            let (received_ns, stalled_until_ns) = (self.last_tick_ns, self.stalled_until_ns);
            let ack = BindingAck { sent_ns, received_ns, stalled_until_ns, seq, promise_us };
            self.peers[host].bind(&self.config, now_ns, &ack);
        }
    }

    /// The sender of a heartbeat reports this of views.
    fn view_reported(&mut self, now_ns: u64, origin: Origin, repr: &ViewRepr) {
        let Origin { host, incarnation, seq } = origin;
        let peer = &mut self.peers[host];
        if seq >= peer.view_seq {
            peer.view = repr.id;
            peer.view_seq = seq;
        }
        if self.uses_views() && self.voters.contains(host) && !self.life.is_excluded() {
            let outcome = self.views.receive(host, incarnation, seq, repr);
            self.apply(now_ns, outcome, host);
        }
    }

    /// Reads all sections of a packet.
    fn read(&mut self, now_ns: u64, rx_ns: u64, packet: &Packet<&[u8]>) {
        let origin = Origin::of(packet);
        let Origin { host, incarnation, seq } = origin;
        let via = if packet.kind() == Kind::Notice { Via::Notice } else { Via::Roster };
        let source = Source { host, seq, rx_ns, via };
        let mut promise_us = 0;
        for body in packet.bodies_of(|kind| matches!(kind, section::VIEW | section::PROMISE)) {
            match body {
                Body::View(view) if self.uses_views() => self.view_reported(now_ns, origin, &view.repr()),
                Body::Promise { timeout_us } => promise_us = timeout_us,
                _ => {}
            }
        }
        let ack = packet.ack(self.config.me);
        if let Some(ack) = ack {
            self.acknowledged(now_ns, host, seq, ack, promise_us);
            self.settle_peer(now_ns, host);
        }
        // What the sender named before it listened to this incarnation, it named to another one.
        let to_me = ack.is_some_and(|ack| ack.incarnation == self.config.incarnation && ack.seq_low != 0);
        let to_me = to_me && !self.life.is_resumed() && self.peers[host].monitored;
        for body in packet.bodies_of(|kind| !matches!(kind, section::VIEW | section::PROMISE | section::ECHO)) {
            // Asked again for each section, because the one before may have changed it.
            let listens = self.listens_to(&self.peers[host]);
            match body {
                Body::Roster(roster) if listens => self.process_reported(now_ns, source, &roster),
                Body::Piggyback { slot, pb_seq, bytes } if listens => {
                    self.piggyback_received(now_ns, source, slot, pb_seq, bytes);
                }
                Body::AllNamed if listens && to_me => self.peers[host].all_named = true,
                Body::Monitor(monitor) if listens => self.watch_requested(host, incarnation, &monitor),
                Body::Excluded(excluded) if self.names_me(excluded) && self.counts_as_judge(host) => {
                    self.apply(now_ns, Outcome::Excluded, host);
                }
                Body::Goodbye => self.goodbye(now_ns, host),
                _ => {}
            }
        }
        self.renew_lease(now_ns);
    }

    /// `host` leaves: it acts no more, and declares nobody dead from now on. But it may have declared this
    /// host dead by now, and of two members at most one may learn that the other is gone. No host can be
    /// declared dead while it holds a lease. A host that is leaving itself may learn anything, as it acts
    /// no more.
    fn goodbye(&mut self, now_ns: u64, host: HostId) {
        let is_fenced = self.config.trust == Trust::Lease && self.is_fenced(now_ns);
        let (by_views, must_know) = (self.is_judged_by_views(host), self.must_know_me(host));
        let peer = &mut self.peers[host];
        peer.goodbye = true;
        let may_be_excluded = by_views && is_fenced || must_know && peer.in_doubt(now_ns);
        if peer.is_up() && (self.life.is_leaving() || !may_be_excluded) {
            self.host_ended(now_ns, host, Reason::Left, Via::Goodbye, HostSet::EMPTY);
        }
    }

    /// May `host` say that this incarnation is dead?
    fn counts_as_judge(&self, host: HostId) -> bool {
        match self.config.policy {
            Policy::Majority if self.voters.contains(self.config.me) => {
                self.voters.contains(host) && self.peers[host].view > ViewId::NONE
            }
            _ => self.peers[host].monitors_me,
        }
    }
}
