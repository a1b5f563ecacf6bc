// SPDX-License-Identifier: Apache-2.0
//! Who is up, who is dead, and what is told of it.

use crate::detector::{Detector, EXCLUDE_HEARTBEATS, HOST};
use crate::roster::{self, Carry, Local};
use crate::types::*;
use crate::view::{Env, Outcome};
use fide_types::Trust;
use fide_types::planted::{self, Planted};
use fide_types::{HostSet, ProcessState, Reason};
use fide_wire::{MAX_HOSTS, MAX_PROCESSES, Membership};

impl Detector {
    /// Everything that time alone makes due.
    pub(crate) fn judge(&mut self, now_ns: u64) {
        for at in 0..self.peers.len() {
            let id = at as u16 + 1;
            if id == self.config.me {
                continue;
            }
            self.settle_peer(now_ns, id);
            let peer = &mut self.peers[at];
            if peer.state == PeerState::Up && peer.open > 0 {
                self.close_gaps(now_ns, id);
            }
            let peer = &mut self.peers[at];
            if peer.incarnation == 0 || !peer.monitored || !peer.silent(now_ns) {
                continue;
            }
            let up = peer.state == PeerState::Up && peer.superseded.is_none();
            peer.suspected = up;
            let (known, in_doubt) = (peer.knows_me, peer.in_doubt(now_ns));
            let must_know = self.must_know(id);
            let acts = !self.excluded && (!self.leaving || !must_know);
            let judged = up && !self.by_view(id) && acts && (known || !must_know);
            if judged && must_know && in_doubt && !planted::is(Planted::JudgesInDoubt) {
                self.outcome(now_ns, Outcome::Lost, self.config.me);
            } else if judged {
                self.host_ended(now_ns, id, Reason::HostSilent, Via::Timeout, HostSet(1 << (self.config.me - 1)));
            }
        }
        if self.majority() && !self.excluded {
            self.agree(now_ns);
        }
    }

    /// Moves a peer on: from an incarnation that was superseded to the new one, from heard to up.
    pub(crate) fn settle_peer(&mut self, now_ns: u64, id: u16) {
        let (by_view, must_know) = (self.by_view(id), self.must_know(id));
        let peer = &self.peers[usize::from(id) - 1];
        if let Some(old) = peer.superseded
            && !by_view
        {
            let late = planted::is(Planted::DoubtsLate) && now_ns < old.until_ns;
            if old.told && old.in_doubt && !self.leaving && !late && !planted::is(Planted::JudgesInDoubt) {
                // At once: it may have held this host dead and acted, and the one that is heard now binds this host by nothing yet. And
                // once: as another incarnation it is in no doubt.
                return self.outcome(now_ns, Outcome::Lost, self.config.me);
            }
            // Who leaves judges nobody who does not know of that: they may act without regard to it.
            let acts = !self.leaving || !must_know || planted::is(Planted::EndsWhileLeaving);
            if now_ns >= old.until_ns && acts {
                self.superseded_ended(now_ns, id, Via::Superseded, HostSet(1 << (self.config.me - 1)));
            }
        }
        let peer = &mut self.peers[usize::from(id) - 1];
        let member = if by_view {
            self.agreement.holds(id, peer.incarnation)
        } else {
            peer.heard() && (!must_know || peer.knows_me)
        };
        if peer.state == PeerState::Unknown && peer.superseded.is_none() && peer.incarnation != 0 && member {
            peer.state = PeerState::Up;
            peer.up_seq = peer.last_seq;
            let first = (usize::from(id) - 1) * MAX_PROCESSES;
            self.remotes[first..first + MAX_PROCESSES].fill(None);
            self.tell_host_up(id);
            self.carry_again();
        }
    }

    /// Somebody new listens: everything has to be told again.
    fn carry_again(&mut self) {
        for slot in 0..MAX_PROCESSES {
            // Nobody who listens from here on has ever heard of it, nor will: its successor is told.
            let succeeded = self.is_succeeded(slot) && !planted::is(Planted::TellsTheFormer);
            let Some(local) = &mut self.locals[slot] else { continue };
            if succeeded && local.carry == Carry::Settled {
                continue;
            }
            local.carry = Carry::Pending;
            if !local.state.is_final() {
                local.pb_base = local.pb_sent;
            }
        }
        for wish in self.wishes.iter_mut().filter(|w| w.host != self.config.me) {
            wish.carry = Carry::Pending;
        }
        (self.carrying, self.all_named) = (true, Carry::Pending);
    }

    /// A later process has the name of the one in this slot.
    fn is_succeeded(&self, slot: usize) -> bool {
        let Some(this) = &self.locals[slot] else { return false };
        let later = |other: &Local| other.name == this.name && roster::newer(other.incarnation, this.incarnation);
        self.locals.iter().flatten().any(later)
    }

    fn agree(&mut self, now_ns: u64) {
        let me = self.config.me;
        let mut incarnations = [0u32; MAX_HOSTS];
        let mut env = Env {
            now_ns,
            heartbeat_ns: self.config.heartbeat_ns,
            timeout_ns: self.config.timeout_ns,
            heard: HostSet::EMPTY,
            fresh: HostSet::EMPTY,
            silent: HostSet::EMPTY,
            superseded: HostSet::EMPTY,
            free: HostSet::EMPTY,
            left: HostSet::EMPTY,
            binds_us: self.binds_us(now_ns),
            // Whoever begins again may have promised more, before its timeouts became shorter.
            former_until_ns: self.former_until_ns.max(self.promise_settled_ns),
            incarnations: &[0; MAX_HOSTS],
            leaving: self.leaving,
            idle: !matches!(self.config.trust, Trust::Lease) || now_ns >= self.lease_ns,
            others_hold_a_view: false,
        };
        let lease = self.config.trust == Trust::Lease;
        for peer in self.peers.iter().filter(|p| p.voter && p.id != me) {
            incarnations[usize::from(peer.id) - 1] = peer.incarnation;
            // Within it whoever has died is silent here, and what others have promised has run out (each promises its shortest).
            env.timeout_ns = env.timeout_ns.max(peer.timeout_ns).max(u64::from(peer.promise_us) * 1000);
            let silent = peer.silent(now_ns);
            if peer.heard() && !silent && peer.state != PeerState::Dead {
                if !peer.goodbye {
                    env.heard.insert(peer.id);
                    if now_ns < peer.last_rx_ns.saturating_add(peer.timeout_ns) {
                        env.fresh.insert(peer.id);
                    }
                }
                env.others_hold_a_view |= !peer.view.is_none();
            }
            let Some(member) = self.agreement.members.incarnation(peer.id) else { continue };
            let early_ns = if planted::is(Planted::SuspectsEarly) { u64::from(self.promise_us()) * 250 } else { 0 };
            let over = !lease || now_ns >= peer.promised_until_ns.saturating_sub(early_ns);
            if member == peer.incarnation {
                let left = peer.goodbye;
                if left {
                    env.left.insert(peer.id);
                }
                if silent || left {
                    env.silent.insert(peer.id);
                }
                if over && (silent || left || self.agreement.mute().contains(peer.id)) {
                    env.free.insert(peer.id);
                }
            } else {
                env.superseded.insert(peer.id);
                env.silent.insert(peer.id);
                if over || planted::is(Planted::FreesSuperseded) && peer.superseded.is_none() {
                    env.free.insert(peer.id);
                }
            }
        }
        env.incarnations = &incarnations;
        let outcome = self.agreement.step(&env);
        self.outcome(now_ns, outcome, me);
    }

    pub(crate) fn outcome(&mut self, now_ns: u64, outcome: Outcome, by: u16) {
        match outcome {
            Outcome::Nothing => {}
            Outcome::Excluded | Outcome::Lost => {
                if !self.excluded && !planted::is(Planted::GoesOnExcluded) {
                    self.excluded = true;
                    if self.leaving {
                        // As it wished.
                        return;
                    }
                    let by = if outcome == Outcome::Lost { self.config.me } else { by };
                    self.tell(Event::Excluded { by, incarnation: self.config.incarnation });
                    self.renew_lease(now_ns);
                }
            }
            Outcome::Installed { before } => self.installed(now_ns, before),
        }
    }

    fn installed(&mut self, now_ns: u64, before: Membership) {
        let members = self.agreement.members;
        let wait_us = if planted::is(Planted::WaitsOwnPromise) { self.promise_us() } else { self.agreement.wait_us };
        let settled_ns = now_ns.saturating_add(u64::from(wait_us) * 1000);
        self.view_settled_ns = settled_ns;
        self.tell(Event::ViewChanged { id: self.agreement.id, members: HostSet(members.hosts) });
        let votes = HostSet(members.hosts);
        let mut others = self.voters;
        others.remove(self.config.me);
        for id in others.iter() {
            let at = usize::from(id) - 1;
            let member = members.incarnation(id);
            if let Some(old) = self.peers[at].superseded
                && member != Some(old.incarnation)
            {
                self.superseded_ended(now_ns, id, Via::View, votes);
            }
            let peer = &mut self.peers[at];
            match member {
                Some(incarnation) => {
                    if incarnation > peer.incarnation {
                        // Known through the view only; from now on its silence counts.
                        if peer.state == PeerState::Up {
                            self.host_ended(now_ns, id, Reason::HostSilent, Via::View, votes);
                        }
                        self.peers[at].follow(incarnation);
                    }
                    let peer = &mut self.peers[at];
                    // Nobody is dropped while a lease of an older view may run (rule 3 of the view's argument).
                    peer.promised_until_ns = peer.promised_until_ns.max(settled_ns);
                    if let Some(old) = &mut peer.superseded {
                        old.until_ns = old.until_ns.max(settled_ns);
                    }
                    if before.incarnation(id) != member {
                        peer.floor_ns = peer.floor_ns.max(now_ns);
                    }
                    self.settle_peer(now_ns, id);
                }
                None => match peer.state {
                    PeerState::Up if peer.goodbye => {
                        self.host_ended(now_ns, id, Reason::Left, Via::Goodbye, votes);
                        let peer = &mut self.peers[at];
                        peer.dead_incarnation = peer.incarnation;
                    }
                    PeerState::Up => self.host_ended(now_ns, id, Reason::HostSilent, Via::View, votes),
                    PeerState::Left => peer.dead_incarnation = peer.incarnation,
                    PeerState::Unknown | PeerState::Dead => {
                        if let Some(gone) = before.incarnation(id) {
                            peer.dead_incarnation = peer.dead_incarnation.max(gone);
                        }
                    }
                },
            }
        }
        self.renew_lease(now_ns);
    }

    /// The superseded incarnation of `id` is dead.
    fn superseded_ended(&mut self, now_ns: u64, id: u16, via: Via, votes: HostSet) {
        let peer = &mut self.peers[usize::from(id) - 1];
        let Some(old) = peer.superseded.take() else { return };
        peer.dead_incarnation = peer.dead_incarnation.max(old.incarnation);
        if !old.told {
            return;
        }
        let by = peer.incarnation;
        let mut evidence = self.evidence(now_ns, id, via, votes, 0);
        evidence.last_seq = old.last_seq;
        evidence.last_rx_ns = old.last_rx_ns;
        evidence.superseded_by = by;
        self.verdict(id, HOST, old.incarnation, Reason::HostSilent, evidence);
        self.end_processes(now_ns, id, Reason::HostSilent, evidence);
    }

    /// The present incarnation of `id` is dead or has left.
    pub(crate) fn host_ended(&mut self, now_ns: u64, id: u16, reason: Reason, via: Via, votes: HostSet) {
        let evidence = self.evidence(now_ns, id, via, votes, 0);
        let peer = &mut self.peers[usize::from(id) - 1];
        let incarnation = peer.incarnation;
        peer.suspected = false;
        if reason == Reason::Left {
            peer.state = PeerState::Left;
        } else {
            peer.state = PeerState::Dead;
            // Told even before it speaks again: it may find this when it wakes.
            peer.exclude_incarnation = incarnation;
            peer.exclude_left = EXCLUDE_HEARTBEATS;
            peer.dead_incarnation = peer.dead_incarnation.max(incarnation);
        }
        // What was received comes first.
        self.flush(id);
        self.verdict(id, HOST, incarnation, reason, evidence);
        self.end_processes(now_ns, id, reason, evidence);
        self.renew_lease(now_ns);
    }

    /// Delivers every message of `host` that waited for an earlier one.
    fn flush(&mut self, host: u16) {
        for slot in 0..MAX_PROCESSES as u8 {
            while self.pool.lowest(host, slot).is_some() {
                self.deliver(host, slot, true);
            }
            self.note_gap(host, slot);
        }
    }

    fn end_processes(&mut self, now_ns: u64, host: u16, reason: Reason, evidence: Evidence) {
        self.flush(host);
        for slot in 0..MAX_PROCESSES as u8 {
            let at = (usize::from(host) - 1) * MAX_PROCESSES + usize::from(slot);
            if self.remotes[at].is_some_and(|r| r.held.is_some()) {
                self.release_held(now_ns, host, slot);
            }
            let Some(remote) = &mut self.remotes[at] else { continue };
            if remote.state.is_final() {
                continue;
            }
            remote.state = if reason == Reason::Left { ProcessState::Left } else { ProcessState::HostSilent };
            let incarnation = remote.incarnation;
            let piggybacks_lost = remote.lost;
            self.verdict(host, slot, incarnation, reason, Evidence { piggybacks_lost, ..evidence });
        }
    }

    /// Tells the end of a process that waited for its piggybacks; those still missing are lost.
    pub(crate) fn release_held(&mut self, now_ns: u64, host: u16, slot: u8) {
        while self.pool.lowest(host, slot).is_some() {
            self.deliver(host, slot, true);
        }
        self.note_gap(host, slot);
        let at = (usize::from(host) - 1) * MAX_PROCESSES + usize::from(slot);
        let Some(remote) = &mut self.remotes[at] else { return };
        let Some(held) = remote.held.take() else { return };
        let missing = held.pb_seq.wrapping_sub(remote.delivered);
        if missing < 1 << 31 {
            remote.lost = remote.lost.saturating_add(missing);
            remote.delivered = held.pb_seq;
            self.counters.piggybacks_lost += u64::from(missing);
        }
        remote.state = held.state;
        remote.at_ns = held.at_ns;
        let (incarnation, lost) = (remote.incarnation, remote.lost);
        self.peers[usize::from(host) - 1].open -= 1;
        let reason = held.state.reason().unwrap_or(Reason::Left);
        let mut evidence = self.evidence(now_ns, host, held.via, HostSet(1 << (host - 1)), held.at_ns);
        evidence.piggybacks_lost = lost;
        self.verdict(host, slot, incarnation, reason, evidence);
    }

    /// A newer process incarnation took the slot before the end of the older one was heard of.
    pub(crate) fn replaced(&mut self, now_ns: u64, host: u16, slot: u8, by: u32) {
        while self.pool.lowest(host, slot).is_some() {
            self.deliver(host, slot, true);
        }
        self.note_gap(host, slot);
        let at = (usize::from(host) - 1) * MAX_PROCESSES + usize::from(slot);
        if self.remotes[at].is_some_and(|r| r.held.is_some()) {
            self.release_held(now_ns, host, slot);
        }
        let Some(remote) = &mut self.remotes[at] else { return };
        if remote.state.is_final() {
            return;
        }
        remote.state = ProcessState::Exited(-1);
        let (incarnation, piggybacks_lost) = (remote.incarnation, remote.lost);
        let evidence = self.evidence(now_ns, host, Via::Superseded, HostSet(1 << (host - 1)), 0);
        let evidence = Evidence { superseded_by: by, piggybacks_lost, ..evidence };
        self.verdict(host, slot, incarnation, Reason::Exited(-1), evidence);
    }

    pub(crate) fn evidence(&self, now_ns: u64, host: u16, via: Via, votes: HostSet, at_ns: u64) -> Evidence {
        let peer = &self.peers[usize::from(host) - 1];
        Evidence {
            observer: self.config.me,
            via,
            decided_ns: now_ns,
            last_seq: peer.last_seq,
            last_rx_ns: peer.plane_rx_ns,
            timeout_ns: peer.timeout_ns,
            at_ns,
            own_stalls: self.counters.stalls,
            withheld: peer.withheld,
            votes,
            superseded_by: 0,
            piggybacks_lost: 0,
        }
    }

    pub(crate) fn own_evidence(&self, now_ns: u64, at_ns: u64) -> Evidence {
        Evidence { last_seq: self.seq, ..self.evidence(now_ns, self.config.me, Via::Local, HostSet::EMPTY, at_ns) }
    }

    pub(crate) fn verdict(&mut self, host: u16, slot: u8, incarnation: u32, reason: Reason, evidence: Evidence) {
        self.verdict_id += 1;
        self.counters.verdicts += 1;
        let id = self.verdict_id;
        self.tell(Event::Verdict(Verdict { id, host, slot, incarnation, reason, evidence }));
    }
}
