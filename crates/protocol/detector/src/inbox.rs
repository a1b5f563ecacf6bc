// SPDX-License-Identifier: Apache-2.0
//! What arrives: heartbeats, notices, and the sections in them.

use crate::detector::{ACK_AHEAD_MAX, Detector, EXCLUDE_HEARTBEATS, HOST};
use crate::lease;
use crate::peer::{Peer, Superseded};
use crate::piggyback::{REORDER_MAX, Waiting};
use crate::roster::{self, Carry, Held, REQUESTS_MAX, Remote, Request};
use crate::types::*;
use crate::view::Outcome;
use fide_types::planted::{self, Planted};
use fide_types::{HostSet, ProcessState, Reason};
use fide_types::{Policy, Trust};
use fide_wire::{Ack, Body, Excluded, Kind, MAX_PROCESSES, Monitor, Packet, Roster, Seen, ViewId, ViewRepr, section};

/// Where a section came from.
#[derive(Clone, Copy)]
struct From {
    host: u16,
    seq: u64,
    rx_ns: u64,
    via: Via,
}

/// A message, as it goes to the user.
struct Received {
    pb_seq: u32,
    seq: u64,
    rx_ns: u64,
    len: u16,
}

impl Detector {
    /// The newest state of one (peer, plane) from the kernel's receive program: authenticated and de-duplicated there.
    /// Skipped and repeated sequence numbers are fine. Feed the sections received (`handle_sections`) before the beats
    /// of the same turn of the loop: a beat says that what was sent before it has arrived or is lost.
    pub fn handle_beat(&mut self, now_ns: u64, beat: &Beat) -> Result<(), Refusal> {
        let Beat { peer, plane, incarnation, seq, rx_ns, .. } = *beat;
        if plane >= self.config.planes {
            self.counters.refused_wrong_plane += 1;
            return Err(Refusal::WrongPlane { sent: plane, arrived: plane });
        }
        let ack = Ack { incarnation: beat.ack_incarnation, seq_low: beat.ack_seq_low };
        self.look_at_itself(now_ns, (peer, incarnation, seq), ack);
        self.admit(now_ns, peer, incarnation, true)?;
        self.peers[usize::from(peer) - 1].has_heard_me |= self.ack_answers(ack);
        if !self.is_live(peer, seq, rx_ns, self.ack_answers(ack)) {
            return Ok(());
        }
        let received = &mut self.peers[usize::from(peer) - 1].received[usize::from(plane)];
        *received = (*received).max(beat.received);
        if let Some(view) = beat.view {
            // The receive program keeps steady heartbeats to itself: the slot is all that says that its sender suspects nobody any more.
            if planted::is(Planted::KeepsReports) {
                self.peers[usize::from(peer) - 1].view = view;
            } else {
                self.view_reported(now_ns, (peer, incarnation, seq), &ViewRepr::steady(view));
            }
        }
        if seq == 0 || !self.heard(now_ns, peer, plane, seq, rx_ns) {
            return Ok(());
        }
        let knows_view = beat.view.is_some() || !self.by_view(self.config.me);
        self.acknowledged(now_ns, peer, seq, ack, if knows_view { beat.promise_us } else { 0 });
        self.settle_peer(now_ns, peer);
        self.renew_lease(now_ns);
        Ok(())
    }

    /// An authenticated packet that arrived on `plane`. Checks incarnation and replay, counts it as a sign of life,
    /// reads its sections.
    ///
    /// # Errors
    /// A [`Refusal`]; nothing but its counter changed (and, for a dead incarnation, that it will be told so), unless the packet shows that this
    /// machine was put back: that is true of what is refused, too.
    pub fn handle_packet(&mut self, now_ns: u64, rx_ns: u64, plane: u8, payload: &[u8]) -> Result<Accepted, Refusal> {
        let packet = self.check(plane, payload)?;
        let (host, seq) = (packet.sender(), packet.seq());
        if let Some(ack) = packet.ack(self.config.me) {
            self.look_at_itself(now_ns, (packet.sender(), packet.incarnation(), packet.seq()), ack);
        }
        self.hear_of_itself(&packet);
        self.admit_packet(now_ns, &packet)?;
        if !self.is_no_recording(rx_ns, &packet) {
            self.heed_exclusion(now_ns, &packet);
            return Ok(Accepted::Unanswered);
        }
        if packet.kind() == Kind::Notice {
            self.read(now_ns, rx_ns, &packet);
            self.counters.notices_accepted += 1;
            return Ok(Accepted::Notice);
        }
        let peer = &mut self.peers[usize::from(host) - 1];
        let known = peer.window.check(seq);
        let new_on_plane = seq > peer.plane_seq[usize::from(plane)];
        if known == Seen::Old || known == Seen::Duplicate && !new_on_plane {
            self.counters.refused_replayed += 1;
            return Err(Refusal::Replayed { host, seq });
        }
        let first = peer.mark(seq) == Seen::Fresh;
        peer.received[usize::from(plane)] += 1;
        self.heard(now_ns, host, plane, seq, rx_ns);
        if !first {
            self.counters.copies_accepted += 1;
            return Ok(Accepted::Copy);
        }
        self.counters.heartbeats_accepted += 1;
        self.read(now_ns, rx_ns, &packet);
        Ok(Accepted::Heartbeat)
    }

    /// As [`Detector::handle_packet`], for a packet whose sign of life the kernel's receive program has taken already:
    /// only its contents are read. The same packet twice does nothing the second time.
    pub fn handle_sections(&mut self, now_ns: u64, rx_ns: u64, plane: u8, payload: &[u8]) -> Result<Accepted, Refusal> {
        let packet = self.check(plane, payload)?;
        if let Some(ack) = packet.ack(self.config.me) {
            self.look_at_itself(now_ns, (packet.sender(), packet.incarnation(), packet.seq()), ack);
        }
        self.hear_of_itself(&packet);
        self.admit_packet(now_ns, &packet)?;
        if !self.is_no_recording(rx_ns, &packet) {
            self.heed_exclusion(now_ns, &packet);
            return Ok(Accepted::Unanswered);
        }
        if packet.kind() == Kind::Heartbeat {
            self.heard(now_ns, packet.sender(), plane, packet.seq(), rx_ns);
        }
        self.read(now_ns, rx_ns, &packet);
        Ok(match packet.kind() {
            Kind::Heartbeat => Accepted::Heartbeat,
            Kind::Notice => Accepted::Notice,
        })
    }

    /// Only a heartbeat can be an answer: a notice has no room for one.
    fn is_no_recording(&mut self, rx_ns: u64, packet: &Packet<&[u8]>) -> bool {
        let host = packet.sender();
        match packet.kind() {
            Kind::Heartbeat => {
                if !self.peers[usize::from(host) - 1].has_heard_me {
                    self.peers[usize::from(host) - 1].has_heard_me = self.hears_me(packet);
                }
                let answered = self.peers[usize::from(host) - 1].answered;
                self.is_live(host, packet.seq(), rx_ns, answered || self.answers(packet))
            }
            Kind::Notice => self.peers[usize::from(host) - 1].answered,
        }
    }

    /// A witness that comes back was dropped meanwhile. Whoever dropped it answers nothing else to this incarnation, also once it has lost
    /// its own view. Only a view drops an incarnation, and for good: so this is true also where it is a recording.
    fn heed_exclusion(&mut self, now_ns: u64, packet: &Packet<&[u8]>) {
        let host = packet.sender();
        let names_me = self.is_named_dead(packet);
        if self.recalled && self.voters.contains(host) && names_me && !planted::is(Planted::DroppedUnheard) {
            self.outcome(now_ns, Outcome::Excluded, host);
        }
    }

    fn check<'a>(&mut self, plane: u8, payload: &'a [u8]) -> Result<Packet<&'a [u8]>, Refusal> {
        let packet = Packet::new(payload).inspect_err(|_| self.counters.refused_malformed += 1)?;
        if packet.plane() != plane || plane >= self.config.planes {
            self.counters.refused_wrong_plane += 1;
            return Err(Refusal::WrongPlane { sent: packet.plane(), arrived: plane });
        }
        let (got, want) = (packet.ack_count(), self.peers.len() - 1);
        if packet.kind() == Kind::Heartbeat && got != want {
            self.counters.refused_malformed += 1;
            return Err(Refusal::Members { got, want });
        }
        Ok(packet)
    }

    fn admit_packet(&mut self, now_ns: u64, packet: &Packet<&[u8]>) -> Result<(), Refusal> {
        let admitted = self.admit(now_ns, packet.sender(), packet.incarnation(), packet.kind() == Kind::Heartbeat);
        if let Err(Refusal::DeadIncarnation { host, .. }) = admitted
            && !self.by_view(self.config.me)
            && host < self.config.me
            && self.is_named_dead(packet)
        {
            // Each holds the other dead, after every path between them was cut (policy network splits then). When they
            // hear each other again, the one with the higher id starts anew.
            self.outcome(now_ns, Outcome::Excluded, host);
        }
        admitted
    }

    /// Does this packet name this incarnation of this host as dead?
    pub(crate) fn is_named_dead(&self, packet: &Packet<&[u8]>) -> bool {
        let named = packet.bodies_of(|kind| kind == section::EXCLUDED);
        named.into_iter().any(|body| matches!(body, Body::Excluded(excluded) if self.names_me(excluded)))
    }

    pub(crate) fn names_me(&self, excluded: Excluded<'_>) -> bool {
        excluded.iter().any(|e| e == (self.config.me, self.config.incarnation))
    }

    /// Checks who speaks. A newer incarnation replaces the one known, if `heartbeat`.
    fn admit(&mut self, now_ns: u64, host: u16, incarnation: u32, heartbeat: bool) -> Result<(), Refusal> {
        if host == self.config.me {
            self.counters.refused_not_a_member += 1;
            return Err(Refusal::OwnId { host });
        }
        let Some(peer) = self.peers.get_mut(usize::from(host).wrapping_sub(1)) else {
            self.counters.refused_not_a_member += 1;
            return Err(Refusal::NotAMember { host });
        };
        if incarnation == peer.incarnation && incarnation > peer.dead_incarnation {
            return Ok(());
        }
        if incarnation <= peer.dead_incarnation && !planted::is(Planted::TakesTheDead) {
            peer.exclude_incarnation = incarnation;
            peer.exclude_left = EXCLUDE_HEARTBEATS;
            self.counters.refused_dead_incarnation += 1;
            return Err(Refusal::DeadIncarnation { host, incarnation });
        }
        let current = peer.incarnation;
        if incarnation < current || !heartbeat {
            self.counters.refused_stale_incarnation += 1;
            return Err(Refusal::StaleIncarnation { host, incarnation, current });
        }
        let told = peer.state == PeerState::Up && peer.superseded.is_none();
        if told || peer.superseded.is_none() && self.agreement.holds(host, current) {
            let promise_ns =
                if self.config.trust == Trust::Lease { u64::from(self.promise_most_us()) * 1000 } else { 0 };
            let (must_know, last_tick_ns) = (self.must_know(host), self.last_tick_ns);
            // What came while this host stood still is read before it finds that it did.
            let stood_still = self.stands_still(now_ns) && !planted::is(Planted::FindsStallsLate);
            let peer = &mut self.peers[usize::from(host) - 1];
            peer.bound &= !stood_still || now_ns < peer.limit_ns;
            peer.sent_late |= stood_still;
            // A peer that had not acknowledged this incarnation, or may have held it dead, acts whatever was promised to it, but no
            // longer than its agent grants its programs from its last turn: its own promise at most ([`crate::lease`]).
            // It may judge this incarnation from the first heartbeat that told it so, and its answer may have come while this host stood still.
            let answered_unheard = peer.greeted
                && now_ns >= peer.limit_ns
                && !peer.silent(last_tick_ns)
                && !planted::is(Planted::DoubtsOnlyTheHeard);
            let in_doubt = must_know && (peer.knows_me || answered_unheard) && peer.in_doubt(now_ns);
            let unbound = must_know && (!peer.knows_me || in_doubt) && !planted::is(Planted::EndsUnbound);
            let until_ns = if promise_ns == 0 {
                now_ns
            } else {
                let granted_ns = self.config.with_drift(u64::from(peer.promise_us) * 1000);
                let alone_ns = if unbound { now_ns.saturating_add(granted_ns) } else { 0 };
                peer.promised_until_ns.max(peer.last_rx_ns.saturating_add(promise_ns)).max(alone_ns)
            };
            peer.superseded = Some(Superseded {
                incarnation: current,
                told,
                until_ns,
                in_doubt,
                last_seq: peer.last_seq,
                last_rx_ns: peer.plane_rx_ns,
            });
        }
        self.peers[usize::from(host) - 1].follow(incarnation);
        Ok(())
    }

    /// A sign of life. Returns whether it is the newest of that peer.
    fn heard(&mut self, now_ns: u64, host: u16, plane: u8, seq: u64, rx_ns: u64) -> bool {
        let planes = self.config.planes;
        let heard = self.peers[usize::from(host) - 1].beat(planes, plane, seq, rx_ns.min(now_ns));
        if heard.restored {
            self.tell(Event::PathRestored { host, plane });
        }
        if let Some(plane) = heard.lost {
            self.tell(Event::PathLost { host, plane });
        }
        self.settle_peer(now_ns, host);
        if heard.on_plane && self.peers[usize::from(host) - 1].open > 0 {
            self.close_gaps(now_ns, host);
        }
        heard.newest
    }

    /// An acknowledgement for this host, with the promise that comes with it (0 for none).
    fn acknowledged(&mut self, now_ns: u64, host: u16, seq: u64, ack: Ack, promise_us: u32) {
        let peer = &mut self.peers[usize::from(host) - 1];
        if self.recalled && seq < peer.answered_seq && !planted::is(Planted::TakesFormerAcks) {
            return;
        }
        if promise_us != 0 {
            peer.promise_us = promise_us;
        }
        let mut forgotten = false;
        if seq >= peer.last_seq {
            // A peer that stopped hearing this host says so before it falls silent itself.
            let knows_me = ack.incarnation == self.config.incarnation;
            forgotten = peer.knows_me && !knows_me;
            peer.knows_me = knows_me;
        }
        if forgotten && self.must_know(host) && self.counts_as_judge(host) {
            // It holds this incarnation dead: only so does it stop to acknowledge it. Its word of that may have been lost.
            self.outcome(now_ns, Outcome::Excluded, host);
        }
        if ack.incarnation != self.config.incarnation {
            return;
        }
        self.peers[usize::from(host) - 1].sure_of_me = true;
        // Heard, and no more: it would be taken for the newest number of which the lower half is 0.
        if ack.seq_low == 0 && !planted::is(Planted::TakesNothingForANumber) {
            return;
        }
        let Some(acked) = self.sent.expand(ack.seq_low) else { return };
        let counts = if self.by_view(self.config.me) {
            self.agreement.takes_acks() && self.peers[usize::from(host) - 1].view == self.agreement.id
        } else {
            true
        };
        let peer = &mut self.peers[usize::from(host) - 1];
        if acked >= peer.acked_seq {
            (peer.acked_seq, peer.acked_by_seq) = (acked, seq);
        }
        if counts
            && self.config.trust == Trust::Lease
            && let Some(sent_ns) = self.sent.time_of(acked)
        {
            peer.sent_late &= sent_ns < self.stalled_until_ns;
            let sent_ns = if planted::is(Planted::LeaseFromReceipt) { self.last_tick_ns } else { sent_ns };
            let limit_ns = lease::limit_ns(&self.config, sent_ns, promise_us);
            peer.limit_ns = peer.limit_ns.max(limit_ns);
            // By the limit of what was acknowledged: a greeting sent since may reach further, and says nothing of the peer.
            peer.bound = now_ns < limit_ns || peer.bound && seq < peer.last_seq;
        }
    }

    /// `host` acknowledges a heartbeat that this one has yet to send, or a later incarnation of it: this machine was put back to a snapshot, or a
    /// clone of it runs. It has forgotten what it promised and accepted. To be asked before anything else of the packet is taken, as one that
    /// was put back votes on nothing, and also where the packet is refused: one that has begun anew since answers this incarnation nothing.
    ///
    /// What was heard before says nothing. A peer that was put back itself acknowledges what it heard long ago, and a host that has lost
    /// its memory, and whose former incarnation was later, hears of that one by recordings: so the packet must be the newest of its
    /// sender, and one that acknowledges a later incarnation comes from a peer that has heard this one.
    /// (The lives of a witness have numbers of which an acknowledgement shows the lower half only: [`Detector::ack_answers`].)
    fn look_at_itself(&mut self, now_ns: u64, (host, incarnation, seq): (u16, u32, u64), ack: Ack) {
        let Some(peer) = self.peers.get(usize::from(host).wrapping_sub(1)).filter(|peer| peer.id != self.config.me)
        else {
            return;
        };
        self.former_incarnation = self.former_incarnation.max(ack.incarnation);
        let is_same = incarnation == peer.incarnation;
        let is_newest = incarnation > peer.incarnation || is_same && seq >= peer.last_seq;
        let is_newest = is_newest || is_same && planted::is(Planted::HeedsTheOld);
        let is_known = is_same && peer.answered || !planted::is(Planted::HeedsTheKnownOnly);
        let takes_naming = peer.answered && planted::is(Planted::TakesNamingForHearing);
        let is_later =
            ack.incarnation > self.config.incarnation && (peer.has_heard_me || takes_naming) && is_newest && is_known;
        let heeds_all = ack.incarnation > self.config.incarnation && planted::is(Planted::HeedsRecordings);
        let is_ahead = is_newest && incarnation > peer.dead_incarnation && self.is_ahead(peer, (incarnation, seq), ack);
        if is_later || heeds_all || is_ahead && self.ack_answers(ack) {
            self.find_itself_put_back(now_ns, host);
        }
    }

    /// An acknowledgement shows the lower half of a number. Where this incarnation has sent no heartbeat of that half, it is one that it has yet to send.
    /// Otherwise a peer acknowledges no less than it did before: what looks like less is such a one, too, or the peer was put back itself and hears
    /// this host no more. That one was at most half as many heartbeats behind as there are such numbers; or it has not sent as many itself since then
    /// as a host that hears so many more. Where this host has sent half of them meanwhile, it says nothing.
    fn is_ahead(&self, peer: &Peer, (incarnation, seq): (u32, u64), ack: Ack) -> bool {
        if ack.seq_low == 0 {
            return false;
        }
        #[allow(clippy::cast_possible_truncation, reason = "the lower half, as in acknowledgements")]
        let ago = u64::from((self.seq as u32).wrapping_sub(ack.seq_low));
        // The newest that it can mean of those that were sent.
        let Some(newest) = self.seq.checked_sub(ago).filter(|newest| *newest > self.life_seq) else { return true };
        let acked = if planted::is(Planted::CountsFromNow) { self.seq } else { peer.acked_seq };
        let sent = self.seq.saturating_sub(acked);
        // Another incarnation of it may have been put back further than its numbers show.
        if incarnation != peer.incarnation || newest >= acked || sent >= 1 << 31 {
            return false;
        }
        let further = newest + (1 << 32) - acked;
        let lived = seq.saturating_sub(peer.acked_by_seq);
        let has_lived = lived >= further / 4 * 3 && lived / 4 >= sent;
        further < ACK_AHEAD_MAX || has_lived || planted::is(Planted::TakesBehindForAhead)
    }

    /// Others speak of a later incarnation of this host, as of one that is dead, say: it had another state directory. What comes after this incarnation
    /// is later than that one, and not the same.
    fn hear_of_itself(&mut self, packet: &Packet<&[u8]>) {
        let me = self.config.me;
        let named = packet.bodies_of(|kind| kind == section::EXCLUDED).flat_map(|body| match body {
            Body::Excluded(excluded) => excluded.iter().filter(|e| e.0 == me).map(|e| e.1).max(),
            _ => None,
        });
        self.former_incarnation = self.former_incarnation.max(named.max().unwrap_or_default());
    }

    /// Also after an exclusion: what was put back begins nothing anew.
    fn find_itself_put_back(&mut self, now_ns: u64, host: u16) {
        if self.put_back || planted::is(Planted::MissesItself) {
            return;
        }
        if self.excluded && planted::is(Planted::ExcludedOnly) {
            return;
        }
        self.excluded = true;
        if self.leaving {
            // As it wished.
            return;
        }
        self.put_back = true;
        self.tell(Event::PutBack { by: host, incarnation: self.config.incarnation });
        self.renew_lease(now_ns);
    }

    /// A heartbeat of (host, incarnation, sequence number) says this of views.
    fn view_reported(&mut self, now_ns: u64, (host, incarnation, seq): (u16, u32, u64), repr: &ViewRepr) {
        let peer = &mut self.peers[usize::from(host) - 1];
        if seq >= peer.view_seq {
            peer.view = repr.id;
            peer.view_seq = seq;
        }
        if self.majority() && self.voters.contains(host) && !self.excluded {
            let outcome = self.agreement.receive(host, incarnation, seq, repr);
            self.outcome(now_ns, outcome, host);
        }
    }

    fn read(&mut self, now_ns: u64, rx_ns: u64, packet: &Packet<&[u8]>) {
        let host = packet.sender();
        let notice = packet.kind() == Kind::Notice;
        let from = From { host, seq: packet.seq(), rx_ns, via: if notice { Via::Notice } else { Via::Roster } };
        let mut promise_us = 0;
        for body in packet.bodies_of(|kind| matches!(kind, section::VIEW | section::PROMISE)) {
            match body {
                Body::View(view) if self.majority() => {
                    self.view_reported(now_ns, (host, packet.incarnation(), from.seq), &view.repr());
                }
                Body::Promise { timeout_us } => promise_us = timeout_us,
                _ => {}
            }
        }
        if let Some(ack) = packet.ack(self.config.me) {
            self.acknowledged(now_ns, host, packet.seq(), ack, promise_us);
            self.settle_peer(now_ns, host);
        }
        let me = self.config.incarnation;
        // What it told before it listened to this incarnation, it told to another.
        let to_me = packet.ack(self.config.me).is_some_and(|ack| ack.incarnation == me && ack.seq_low != 0);
        let to_me = to_me && !self.recalled && self.peers[usize::from(host) - 1].monitored;
        for body in packet.bodies_of(|kind| !matches!(kind, section::VIEW | section::PROMISE | section::ECHO)) {
            // Asked anew each time: a section before may have changed it.
            let listens = self.listens(&self.peers[usize::from(host) - 1]);
            match body {
                Body::Roster(roster) if listens => self.roster(now_ns, from, &roster),
                Body::Piggyback { slot, pb_seq, bytes } if listens => self.message(now_ns, from, slot, pb_seq, bytes),
                Body::AllNamed if listens && to_me => self.peers[usize::from(host) - 1].all_named = true,
                Body::Monitor(monitor) if listens => self.request(host, packet.incarnation(), &monitor),
                Body::Excluded(excluded) if self.names_me(excluded) && self.counts_as_judge(host) => {
                    self.outcome(now_ns, Outcome::Excluded, host);
                }
                Body::Goodbye => self.goodbye(now_ns, host),
                _ => {}
            }
        }
        self.renew_lease(now_ns);
    }

    /// `host` acts no more, and holds nobody dead from now on. But it may hold this one dead by now: of two members, one at most
    /// may be told that the other is gone. Nobody holds dead who has a lease; and who leaves itself may be told anything, as
    /// it acts no more.
    fn goodbye(&mut self, now_ns: u64, host: u16) {
        let no_lease = self.config.trust == Trust::Lease && self.is_fenced(now_ns);
        let (by_view, must_know, leaving) = (self.by_view(host), self.must_know(host), self.leaving);
        let peer = &mut self.peers[usize::from(host) - 1];
        peer.goodbye = true;
        let excluded = by_view && no_lease || must_know && peer.in_doubt(now_ns);
        if peer.state == PeerState::Up && (leaving || !excluded) {
            self.host_ended(now_ns, host, Reason::Left, Via::Goodbye, HostSet::EMPTY);
        }
    }

    /// May `host` say that this incarnation is dead?
    fn counts_as_judge(&self, host: u16) -> bool {
        match self.config.policy {
            Policy::Majority if self.voters.contains(self.config.me) => {
                self.voters.contains(host) && self.peers[usize::from(host) - 1].view > ViewId::NONE
            }
            _ => self.peers[usize::from(host) - 1].monitors_me,
        }
    }

    fn remote_at(host: u16, slot: u8) -> usize {
        (usize::from(host) - 1) * MAX_PROCESSES + usize::from(slot)
    }

    fn roster(&mut self, now_ns: u64, from: From, entry: &Roster) {
        let at = Self::remote_at(from.host, entry.slot);
        let state = entry.state;
        let known = self.remotes[at];
        if let Some(remote) = known {
            if roster::newer(remote.incarnation, entry.incarnation) {
                return;
            }
            if remote.incarnation != entry.incarnation && entry.name.is_some() {
                self.replaced(now_ns, from.host, entry.slot, entry.incarnation);
            }
        }
        if known.is_none_or(|r| r.incarnation != entry.incarnation) {
            // Never heard of before, so nobody waits for it. A heartbeat will bring its name.
            let Some(name) = entry.name else { return };
            if !self.succeeds(now_ns, from.host, entry.incarnation, &name) {
                return;
            }
            self.remotes[at] = Some(Remote {
                name,
                incarnation: entry.incarnation,
                state: ProcessState::Alive,
                at_ns: entry.at_ns,
                delivered: entry.pb_seq,
                lost: 0,
                held: None,
                since_seq: from.seq,
                gap: false,
            });
            self.tell(Event::Up { host: from.host, slot: entry.slot, incarnation: entry.incarnation, name });
            self.resolve_wishes(from.host, &name);
        }
        let Some(mut remote) = self.remotes[at] else { return };
        if remote.state.is_final() || remote.held.is_some_and(|h| from.via == Via::Notice || h.seq != 0) {
            return;
        }
        if state.is_final() {
            let timeout_ns = self.peers[usize::from(from.host) - 1].timeout_ns;
            let seq = if from.via == Via::Roster { from.seq } else { 0 };
            if remote.held.is_none() {
                self.peers[usize::from(from.host) - 1].open += 1;
            }
            let via = remote.held.map_or(from.via, |h| h.via);
            remote.held = Some(Held {
                state,
                at_ns: entry.at_ns,
                via,
                pb_seq: entry.pb_seq,
                seq,
                deadline_ns: now_ns.saturating_add(timeout_ns),
            });
            self.remotes[at] = Some(remote);
            self.close_gaps(now_ns, from.host);
            return;
        }
        // Stalled and alive again come and go; an older heartbeat must not undo what a newer one (or a notice) said.
        if state != remote.state && entry.at_ns > remote.at_ns {
            let reason = if state == ProcessState::Stalled { Reason::Stalled } else { Reason::Recovered };
            remote.state = state;
            remote.at_ns = entry.at_ns;
            self.remotes[at] = Some(remote);
            let evidence = self.evidence(now_ns, from.host, from.via, HostSet::EMPTY, entry.at_ns);
            self.verdict(from.host, entry.slot, entry.incarnation, reason, evidence);
        }
    }

    /// A process is heard of for the first time: all former ones of its name have ended. False if a later one is known: of this one
    /// nothing is told.
    fn succeeds(&mut self, now_ns: u64, host: u16, incarnation: u32, name: &fide_wire::Name) -> bool {
        if planted::is(Planted::TellsTheFormer) {
            return true;
        }
        let named = |remote: Option<Remote>| remote.filter(|remote| remote.name == *name);
        let slots = 0..MAX_PROCESSES as u8;
        let of = |detector: &Self, slot| named(detector.remotes[Self::remote_at(host, slot)]);
        if slots.clone().any(|slot| of(self, slot).is_some_and(|other| roster::newer(other.incarnation, incarnation))) {
            return false;
        }
        for slot in slots {
            if of(self, slot).is_some_and(|other| other.incarnation != incarnation) {
                self.replaced(now_ns, host, slot, incarnation);
            }
        }
        true
    }

    fn message(&mut self, now_ns: u64, from: From, slot: u8, pb_seq: u32, bytes: &[u8]) {
        let at = Self::remote_at(from.host, slot);
        let Some(remote) = self.remotes[at] else { return };
        let stale = from.seq < remote.since_seq || remote.state.is_final();
        let waits = remote.gap && self.pool.is_waiting(from.host, slot, pb_seq);
        if stale || !roster::newer(pb_seq, remote.delivered) || waits {
            return;
        }
        let Some(buffer) = self.pool.put(bytes) else {
            self.counters.piggybacks_no_buffer += 1;
            return;
        };
        if !remote.gap && pb_seq == remote.delivered.wrapping_add(1) {
            // As it should be: next in order, nothing waits.
            self.hand_over(
                from.host,
                slot,
                buffer,
                Received { pb_seq, seq: from.seq, rx_ns: from.rx_ns, len: bytes.len() as u16 },
            );
            if self.peers[usize::from(from.host) - 1].open > 0 {
                self.close_gaps(now_ns, from.host);
            }
            return;
        }
        let waiting =
            Waiting { host: from.host, slot, pb_seq, seq: from.seq, rx_ns: from.rx_ns, len: bytes.len() as u16 };
        self.pool.wait(buffer, waiting);
        self.deliver(from.host, slot, false);
        while let Some((_, _, count)) = self.pool.lowest(from.host, slot)
            && count > REORDER_MAX
        {
            self.deliver(from.host, slot, true);
        }
        self.note_gap(from.host, slot);
        if self.peers[usize::from(from.host) - 1].open > 0 {
            self.close_gaps(now_ns, from.host);
        }
    }

    /// Delivers what is next in order; with `skip`, gives the first gap up before.
    pub(crate) fn deliver(&mut self, host: u16, slot: u8, mut skip: bool) {
        let at = Self::remote_at(host, slot);
        while let Some((buffer, waiting, _)) = self.pool.lowest(host, slot) {
            let Some(remote) = &mut self.remotes[at] else { return };
            let missing = waiting.pb_seq.wrapping_sub(remote.delivered).wrapping_sub(1);
            if missing > 0 && !skip {
                return;
            }
            skip = false;
            remote.lost = remote.lost.saturating_add(missing);
            self.counters.piggybacks_lost += u64::from(missing);
            self.pool.unwait(buffer);
            let Waiting { pb_seq, seq, rx_ns, len, .. } = waiting;
            self.hand_over(host, slot, buffer, Received { pb_seq, seq, rx_ns, len });
        }
    }

    fn hand_over(&mut self, host: u16, slot: u8, buffer: u16, received: Received) {
        let timeout_ns = self.peers[usize::from(host) - 1].timeout_ns;
        let Some(remote) = &mut self.remotes[Self::remote_at(host, slot)] else { return };
        let Received { pb_seq, seq, rx_ns, len } = received;
        remote.delivered = pb_seq;
        if let Some(held) = &mut remote.held {
            // More may be on the way: its end waits on from here.
            held.deadline_ns = held.deadline_ns.max(rx_ns.saturating_add(timeout_ns));
        }
        let incarnation = remote.incarnation;
        self.counters.piggybacks_delivered += 1;
        self.tell(Event::Piggyback { host, slot, incarnation, pb_seq, seq, rx_ns, len, buffer });
    }

    /// Keeps the peer's count of undecided processes right after the messages that wait changed.
    pub(crate) fn note_gap(&mut self, host: u16, slot: u8) {
        let gap = self.pool.lowest(host, slot).is_some();
        let Some(remote) = &mut self.remotes[Self::remote_at(host, slot)] else { return };
        let open = &mut self.peers[usize::from(host) - 1].open;
        match (remote.gap, gap) {
            (false, true) => *open += 1,
            (true, false) => *open -= 1,
            _ => {}
        }
        remote.gap = gap;
    }

    /// Gives up what every working plane has passed, and releases the ends that waited for it.
    pub(crate) fn close_gaps(&mut self, now_ns: u64, host: u16) {
        let planes = self.config.planes;
        for slot in 0..MAX_PROCESSES as u8 {
            let at = Self::remote_at(host, slot);
            let Some(remote) = self.remotes[at] else { continue };
            if remote.gap {
                let peer = &self.peers[usize::from(host) - 1];
                let timeout_ns = peer.timeout_ns;
                if let Some((_, low, _)) = self.pool.lowest(host, slot)
                    && (peer.passed(planes, low.seq) || now_ns >= low.rx_ns.saturating_add(timeout_ns))
                {
                    self.deliver(host, slot, true);
                    self.note_gap(host, slot);
                }
            }
            let Some(remote) = self.remotes[at] else { continue };
            let Some(held) = remote.held else { continue };
            let missing = if roster::newer(held.pb_seq, remote.delivered) {
                held.pb_seq.wrapping_sub(remote.delivered)
            } else {
                0
            };
            let peer = &self.peers[usize::from(host) - 1];
            let passed = held.seq != 0 && peer.passed(planes, held.seq);
            if missing == 0 || passed || now_ns >= held.deadline_ns {
                self.release_held(now_ns, host, slot);
            }
        }
    }

    fn request(&mut self, host: u16, incarnation: u32, monitor: &Monitor) {
        if monitor.target_host != self.config.me {
            return;
        }
        let Monitor { target_slot: slot, watcher_slot, timeout_us, pbsize, .. } = *monitor;
        let request = Request { host, incarnation, watcher_slot, slot, timeout_us, pbsize };
        let same = |r: &&mut Request| (r.host, r.watcher_slot, r.slot) == (host, watcher_slot, slot);
        match self.requests.iter_mut().find(same) {
            Some(known) if *known == request => return,
            Some(known) => *known = request,
            None => {
                if self.requests.len() == REQUESTS_MAX {
                    self.requests.pop_front();
                    self.counters.wishes_lost += 1;
                }
                self.requests.push_back(request);
            }
        }
        self.tell(Event::MonitorRequest { host, watcher_slot, slot, timeout_us, pbsize });
    }

    /// A process of that name is there now: its host can be told who watches it.
    fn resolve_wishes(&mut self, host: u16, name: &fide_wire::Name) {
        for wish in self.wishes.iter_mut().filter(|w| w.host == host && w.process.as_ref() == Some(name)) {
            wish.carry = Carry::Pending;
            self.carrying = true;
        }
    }

    /// The host's own name, as an event needs it.
    pub(crate) fn tell_host_up(&mut self, host: u16) {
        let incarnation = self.peers[usize::from(host) - 1].incarnation;
        let name = self.config.members[usize::from(host) - 1].name;
        self.tell(Event::Up { host, slot: HOST, incarnation, name });
    }
}
