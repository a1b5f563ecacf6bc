// SPDX-License-Identifier: Apache-2.0
//! Who is up and who is dead, by this host's own timeouts and by agreed views, and with which evidence.

use crate::carry::Carry;
use crate::detector::{Detector, HOST};
use crate::types::*;
use crate::view::{Env, Incarnations, Outcome};
use fide_types::{
    HostId, HostSet, Reason, Trust,
    planted::{self, Planted},
};
use fide_wire::Membership;

/// What the silence of a peer means to this host.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Silence {
    /// Nothing: agreed views judge the peer, or one of the two hosts does not act.
    Nothing,
    /// The peer is dead.
    Dead,
    /// The peer may have declared this host dead and act without it ([`crate::lease`]), so this host is out.
    Excludes,
}

impl Detector {
    /// A hint that some peer may be silent (a kernel timer fired). It causes an evaluation, never a verdict
    /// by itself.
    pub fn timer_fired(&mut self, now_ns: u64) {
        self.counters.timer_hints += 1;
        self.tick(now_ns);
    }

    /// To be called at every turn of the loop, after feeding what was received. Detects own stalls and does
    /// what is due.
    pub fn tick(&mut self, now_ns: u64) {
        let now_ns = now_ns.max(self.last_tick_ns);
        if self.has_stalled(now_ns) {
            self.record_stall(now_ns, now_ns - self.last_tick_ns);
        }
        self.last_tick_ns = now_ns;
        self.judge(now_ns);
        self.renew_lease(now_ns);
    }

    /// Everything that time alone makes due.
    pub(crate) fn judge(&mut self, now_ns: u64) {
        for id in self.peers.ids() {
            self.settle_peer(now_ns, id);
            if self.peers[id].is_up() && self.peers[id].open > 0 {
                self.close_gaps(now_ns, id);
            }
            let peer = &mut self.peers[id];
            if peer.incarnation == 0 || !peer.monitored || !peer.silent(now_ns) {
                continue;
            }
            peer.suspected = peer.is_up() && peer.superseded.is_none();
            match self.judge_silence(now_ns, id) {
                Silence::Nothing => {}
                Silence::Dead => {
                    let votes = HostSet::only(self.config.me);
                    self.host_ended(now_ns, id, Reason::HostSilent, Via::Timeout, votes);
                }
                Silence::Excludes => self.apply(now_ns, Outcome::Lost, self.config.me),
            }
        }
        if self.uses_views() && !self.life.is_excluded() {
            let outcome = self.views.step(&self.observe(now_ns));
            self.apply(now_ns, outcome, self.config.me);
        }
    }

    /// `id` is monitored and silent.
    fn judge_silence(&self, now_ns: u64, id: HostId) -> Silence {
        let peer = &self.peers[id];
        if !peer.suspected || self.is_judged_by_views(id) || self.life.is_excluded() {
            return Silence::Nothing;
        }
        if !self.must_know_me(id) {
            return Silence::Dead;
        }
        if self.life.is_leaving() || !peer.knows_me() {
            return Silence::Nothing;
        }
        if peer.in_doubt(now_ns) && !planted::is(Planted::JudgesInDoubt) { Silence::Excludes } else { Silence::Dead }
    }

    /// Moves a peer on: from an incarnation that was superseded to the new one, from heard to up.
    pub(crate) fn settle_peer(&mut self, now_ns: u64, id: HostId) {
        let by_views = self.is_judged_by_views(id);
        if !by_views {
            match self.judge_superseded(now_ns, id) {
                Silence::Nothing => {}
                Silence::Dead => self.superseded_ended(now_ns, id, Via::Superseded, HostSet::only(self.config.me)),
                Silence::Excludes => return self.apply(now_ns, Outcome::Lost, self.config.me),
            }
        }
        let peer = &self.peers[id];
        let is_member = if by_views {
            self.views.contains(id, peer.incarnation)
        } else {
            peer.heard() && (!self.must_know_me(id) || peer.knows_me())
        };
        let is_new = peer.state == PeerState::Unknown && peer.superseded.is_none() && peer.incarnation != 0;
        if is_new && is_member {
            self.host_is_up(id);
        }
    }

    /// This host judges `id` alone. Is its superseded incarnation, if it has one, dead by now?
    fn judge_superseded(&self, now_ns: u64, id: HostId) -> Silence {
        let Some(old) = self.peers[id].superseded else { return Silence::Nothing };
        let leaving = self.life.is_leaving();
        let late = planted::is(Planted::DoubtsLate) && now_ns < old.until_ns;
        if old.reported && old.in_doubt && !leaving && !late && !planted::is(Planted::JudgesInDoubt) {
            // At once: the old incarnation may have declared this host dead and acted, and the one heard now
            // is not bound to this host yet. And only once: as another incarnation this host is in no doubt.
            return Silence::Excludes;
        }
        // A host that leaves judges no peer that does not know of that: the peer may act without regard to
        // it.
        let acts = !leaving || !self.must_know_me(id) || planted::is(Planted::EndsWhileLeaving);
        if acts && now_ns >= old.until_ns { Silence::Dead } else { Silence::Nothing }
    }

    fn host_is_up(&mut self, id: HostId) {
        let peer = &mut self.peers[id];
        peer.state = PeerState::Up;
        peer.up_seq = peer.last_seq;
        let incarnation = peer.incarnation;
        self.remotes.clear(id);
        let name = self.config.member(id).name;
        self.emit(Event::Up { host: id, slot: HOST, incarnation, name });
        self.carry_again();
    }

    /// A peer begins to listen: everything has to be carried again.
    fn carry_again(&mut self) {
        self.locals.carry_again();
        let me = self.config.me;
        for wish in self.wishes.iter_mut().filter(|wish| wish.host != me) {
            wish.carry = Carry::Pending;
        }
        self.carries = true;
    }

    /// What the consensus on views needs to know.
    fn observe(&self, now_ns: u64) -> Env {
        let lease = self.config.trust == Trust::Lease;
        let mut env = Env {
            now_ns,
            heartbeat_ns: self.config.heartbeat_ns,
            timeout_ns: self.config.timeout_ns,
            heard: HostSet::EMPTY,
            fresh: HostSet::EMPTY,
            silent: HostSet::EMPTY,
            free: HostSet::EMPTY,
            left: HostSet::EMPTY,
            binds_us: self.binds_us(now_ns),
            // A host that restarted may have promised more before its timeouts shrank.
            former_until_ns: self.promises.settled_ns(),
            incarnations: Incarnations::NONE,
            leaving: self.life.is_leaving(),
            idle: !lease || now_ns >= self.lease.until_ns(),
            others_hold_a_view: false,
        };
        for peer in self.peers.others().filter(|peer| peer.voter) {
            let id = peer.id;
            env.incarnations.set(id, peer.incarnation);
            // By the end of it a host that has died is silent here, and what others have promised has run
            // out, as each promises its shortest timeout.
            env.timeout_ns = env.timeout_ns.max(peer.timeout_ns).max(u64::from(peer.promise_us()) * 1000);
            let silent = peer.silent(now_ns);
            if peer.heard() && !silent && peer.state != PeerState::Dead {
                if !peer.goodbye {
                    env.heard.insert(id);
                    if now_ns < peer.last_rx_ns.saturating_add(peer.timeout_ns) {
                        env.fresh.insert(id);
                    }
                }
                env.others_hold_a_view |= !peer.view.is_none();
            }
            let Some(member) = self.views.members().incarnation(id) else { continue };
            let early_ns = if planted::is(Planted::SuspectsEarly) { u64::from(self.promise_us()) * 250 } else { 0 };
            let promise_over = !lease || now_ns >= peer.promised_until_ns.saturating_sub(early_ns);
            if member == peer.incarnation {
                let left = peer.goodbye;
                if left {
                    env.left.insert(id);
                }
                if silent || left {
                    env.silent.insert(id);
                }
                if promise_over && (silent || left || self.views.unacknowledged().contains(id)) {
                    env.free.insert(id);
                }
            } else {
                env.silent.insert(id);
                if promise_over || planted::is(Planted::FreesSuperseded) && peer.superseded.is_none() {
                    env.free.insert(id);
                }
            }
        }
        env
    }

    /// Does what follows from an outcome of the consensus, or from what `by` said.
    pub(crate) fn apply(&mut self, now_ns: u64, outcome: Outcome, by: u16) {
        match outcome {
            Outcome::Nothing => {}
            Outcome::Excluded => self.exclude(now_ns, by),
            Outcome::Lost => self.exclude(now_ns, self.config.me),
            Outcome::Installed { before } => self.view_installed(now_ns, before),
        }
    }

    /// The others go on without this incarnation.
    fn exclude(&mut self, now_ns: u64, by: u16) {
        if self.life.is_excluded() || planted::is(Planted::GoesOnExcluded) {
            return;
        }
        self.life.exclude();
        if self.life.is_leaving() {
            // It is out, as it wished to be.
            return;
        }
        self.emit(Event::Excluded { by, incarnation: self.config.incarnation });
        self.renew_lease(now_ns);
    }

    fn view_installed(&mut self, now_ns: u64, before: Membership) {
        let members = *self.views.members();
        let wait_us = if planted::is(Planted::WaitsOwnPromise) { self.promise_us() } else { self.views.wait_us() };
        let settled_ns = now_ns.saturating_add(u64::from(wait_us) * 1000);
        self.promises.install_view(settled_ns);
        let votes = HostSet(members.hosts);
        self.emit(Event::ViewChanged { id: self.views.id(), members: votes });
        for id in self.voters.minus(HostSet::only(self.config.me)).iter() {
            let member = members.incarnation(id);
            if let Some(old) = self.peers[id].superseded
                && member != Some(old.incarnation)
            {
                self.superseded_ended(now_ns, id, Via::View, votes);
            }
            match member {
                Some(incarnation) => {
                    self.is_member(now_ns, id, incarnation, settled_ns, votes);
                    if before.incarnation(id) != member {
                        let floor_ns = &mut self.peers[id].floor_ns;
                        *floor_ns = (*floor_ns).max(now_ns);
                    }
                    self.settle_peer(now_ns, id);
                }
                None => self.is_no_member(now_ns, id, before.incarnation(id), votes),
            }
        }
        self.renew_lease(now_ns);
    }

    /// The view just installed has this incarnation of `id`.
    fn is_member(&mut self, now_ns: u64, id: HostId, incarnation: u32, settled_ns: u64, votes: HostSet) {
        if incarnation > self.peers[id].incarnation {
            // Known through the view only; from now on its silence counts.
            if self.peers[id].is_up() {
                self.host_ended(now_ns, id, Reason::HostSilent, Via::View, votes);
            }
            self.peers[id].follow(incarnation);
        }
        let peer = &mut self.peers[id];
        // No member is dropped while a lease of an older view may run (rule 3 of the view's argument).
        peer.promised_until_ns = peer.promised_until_ns.max(settled_ns);
        if let Some(old) = &mut peer.superseded {
            old.until_ns = old.until_ns.max(settled_ns);
        }
    }

    /// The view just installed lacks `id`, which was `former` in the one before.
    fn is_no_member(&mut self, now_ns: u64, id: HostId, former: Option<u32>, votes: HostSet) {
        let peer = &mut self.peers[id];
        match peer.state {
            PeerState::Up if peer.goodbye => {
                self.host_ended(now_ns, id, Reason::Left, Via::Goodbye, votes);
                let peer = &mut self.peers[id];
                peer.dead_incarnation = peer.incarnation;
            }
            PeerState::Up => self.host_ended(now_ns, id, Reason::HostSilent, Via::View, votes),
            PeerState::Left => peer.dead_incarnation = peer.incarnation,
            PeerState::Unknown | PeerState::Dead => {
                if let Some(former) = former {
                    peer.dead_incarnation = peer.dead_incarnation.max(former);
                }
            }
        }
    }

    /// The superseded incarnation of `id` is dead.
    fn superseded_ended(&mut self, now_ns: u64, id: HostId, via: Via, votes: HostSet) {
        let peer = &mut self.peers[id];
        let Some(old) = peer.superseded.take() else { return };
        peer.dead_incarnation = peer.dead_incarnation.max(old.incarnation);
        if !old.reported {
            return;
        }
        let superseded_by = peer.incarnation;
        let (last_seq, last_rx_ns) = (old.last_seq, old.last_rx_ns);
        let evidence = self.evidence(now_ns, id, via, votes, 0);
        let evidence = Evidence { last_seq, last_rx_ns, superseded_by, ..evidence };
        self.emit_verdict(id, HOST, old.incarnation, Reason::HostSilent, evidence);
        self.end_processes(now_ns, id, Reason::HostSilent, evidence);
    }

    /// The present incarnation of `id` is dead or has left.
    pub(crate) fn host_ended(&mut self, now_ns: u64, id: HostId, reason: Reason, via: Via, votes: HostSet) {
        let evidence = self.evidence(now_ns, id, via, votes, 0);
        let peer = &mut self.peers[id];
        let incarnation = peer.incarnation;
        peer.suspected = false;
        if reason == Reason::Left {
            peer.state = PeerState::Left;
        } else {
            peer.state = PeerState::Dead;
            // Announced even before it speaks again: it may find this when it wakes.
            peer.announce_exclusion(incarnation);
            peer.dead_incarnation = peer.dead_incarnation.max(incarnation);
        }
        // What was received comes first.
        self.deliver_all(id);
        self.emit_verdict(id, HOST, incarnation, reason, evidence);
        self.end_processes(now_ns, id, reason, evidence);
        self.renew_lease(now_ns);
    }
}
