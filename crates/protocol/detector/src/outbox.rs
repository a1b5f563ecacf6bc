// SPDX-License-Identifier: Apache-2.0
//! What is sent: notices at once, heartbeats on an absolute schedule, and urgent heartbeats in between.

use crate::carry::Carry;
use crate::detector::Detector;
use crate::peer::Peer;
use crate::roster::Local;
use crate::types::*;
use crate::view::Vote;
use fide_types::planted::{self, Planted};
use fide_types::{HOST_SLOT, HostSet, MAX_PROCESSES, PAYLOAD_MAX, Trust};
use fide_wire::{Ack, Builder, MONITOR_LEN, Monitor, SECTION_HEADER_LEN};

/// Bytes of a section that says who watches a process.
const MONITOR_SECTION_LEN: usize = SECTION_HEADER_LEN + MONITOR_LEN;

/// The kind of packet that [`Detector::poll_transmit`] wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransmitKind {
    Heartbeat,
    Notice,
}

/// One packet, to be sealed per plane and sent on each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transmit {
    pub kind: TransmitKind,
    pub len: usize,
    pub seq: u64,
}

/// What this host says to one peer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// It takes nothing of the peer.
    Nothing,
    /// It hears the peer: the greeting, which acknowledges no heartbeat.
    Greeting,
    /// It takes what the peer sends.
    Acknowledgement,
}

/// The entries that a pass over the processes carries.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    InFlight,
    Ends,
    Alive,
}

/// What one heartbeat carries of the entries that have to reach every peer.
struct Load {
    seq: u64,
    /// Bytes left for them.
    room: usize,
    /// Something has yet to reach a peer, in this heartbeat or a later one.
    unsettled: bool,
    /// The entries of all processes that have to be carried are in this heartbeat.
    complete: bool,
}

impl Detector {
    /// What this host says of views in what [`Detector::poll_transmit`] gives next. A witness stores it
    /// before it asks for that.
    pub fn vote(&self) -> Vote {
        let inherited_us = self.promises.inherited_us(self.last_tick_ns);
        Vote { promise_us: self.longest_promise_us().max(inherited_us), ..self.views.vote() }
    }

    /// Writes the notice or heartbeat that is due. Call until `None`. Plane and tag are still to be set per
    /// plane ([`fide_wire::seal`]).
    ///
    /// Where others rely on the lease, publish `lease_until_ns` again before sending what was written: a
    /// heartbeat that greets a newcomer binds this host from then on.
    ///
    /// Heartbeats are due at start + n * heartbeat_ns. A late one goes out at once, and the slots missed are
    /// skipped and counted; there is never a burst. While a view is decided a few go out between two of them
    /// ([`crate::URGENT_MAX`]), so that each round of a ballot waits only for a packet to travel, not for a
    /// heartbeat. They take numbers as others do, and the schedule stays as it is.
    pub fn poll_transmit(&mut self, now_ns: u64, buf: &mut [u8; PAYLOAD_MAX]) -> Option<Transmit> {
        if self.life.is_excluded() {
            return None;
        }
        if let Some(transmit) = self.write_notice(buf) {
            return Some(transmit);
        }
        if let Some(skipped) = self.schedule.take_scheduled(now_ns) {
            self.counters.heartbeats_skipped += skipped;
        } else if self.is_urgent() {
            self.schedule.take_urgent();
            self.counters.heartbeats_urgent += 1;
        } else {
            return None;
        }
        self.write_heartbeat(now_ns, buf)
    }

    fn write_notice(&mut self, buf: &mut [u8; PAYLOAD_MAX]) -> Option<Transmit> {
        let roster = self.locals.take_notice()?;
        let seq = self.sent.newest();
        let len = Builder::notice(buf, self.config.me, self.config.incarnation, seq, &roster).ok()?;
        self.counters.notices_sent += 1;
        Some(Transmit { kind: TransmitKind::Notice, len, seq })
    }

    fn write_heartbeat(&mut self, now_ns: u64, buf: &mut [u8; PAYLOAD_MAX]) -> Option<Transmit> {
        let seq = self.sent.newest() + 1;
        let buf = &mut buf[..self.config.payload_max];
        let mut b = Builder::heartbeat(buf, self.config.me, self.config.incarnation, seq).ok()?;
        let spread = self.peers.others().any(|peer| self.needs_members(now_ns, peer));
        let answered = self.write_acks(&mut b, now_ns)?;
        if self.uses_views() {
            b.view(&self.views.repr(spread)).ok()?;
        }
        if self.config.trust == Trust::Lease {
            b.promise(self.promise_us()).ok()?;
        }
        if self.life.is_leaving() {
            b.goodbye().ok()?;
        }
        if self.carries {
            self.write_entries(&mut b, seq, answered);
        }
        self.write_echoes(&mut b, now_ns, seq);
        self.write_exclusions(&mut b, seq);
        self.write_piggybacks(&mut b);
        let len = b.finish();
        self.sent.record(seq, now_ns);
        self.views.mark_published();
        self.schedule.heartbeat_written();
        self.counters.heartbeats_sent += 1;
        // Greeting a newcomer may shorten the lease, which has to happen before the heartbeat is sent.
        self.renew_lease(now_ns);
        Some(Transmit { kind: TransmitKind::Heartbeat, len, seq })
    }

    /// Does `peer` hold an older view, or another one of the same number, so that it has to learn this one's
    /// members? (Of two views of one number, one has to give way.)
    fn needs_members(&self, now_ns: u64, peer: &Peer) -> bool {
        let same_id = peer.voter && peer.view == self.views.id() && self.views.has_view();
        let differs = same_id && !self.views.contains(peer.id, peer.incarnation);
        peer.heard() && (peer.view < self.views.id() || differs) && !peer.silent(now_ns)
    }

    /// Writes what this host says to each peer. Returns whether every listener is acknowledged: only then has
    /// what was said before been said to this incarnation of each.
    fn write_acks(&mut self, b: &mut Builder<'_>, now_ns: u64) -> Option<bool> {
        let alone = !self.is_judged_by_views(self.config.me);
        let promise_ns = u64::from(self.promise_us()) * 1000;
        let mut answered = true;
        for id in self.peers.ids() {
            let answer = self.answer_to(&self.peers[id]);
            let peer = &mut self.peers[id];
            if answer != Answer::Nothing {
                peer.greet(&self.config, now_ns, alone);
            }
            let ack = match answer {
                Answer::Nothing => Ack::default(),
                Answer::Greeting => Ack { incarnation: peer.incarnation, seq_low: 0 },
                Answer::Acknowledgement => {
                    let until_ns = peer.last_rx_ns.saturating_add(promise_ns);
                    peer.promised_until_ns = peer.promised_until_ns.max(until_ns);
                    // An acknowledged heartbeat is one whose sections were taken, so that its sender need not
                    // repeat them.
                    let seq_low = if peer.last_seq > peer.up_seq { peer.last_seq as u32 } else { 0 };
                    Ack { incarnation: peer.incarnation, seq_low }
                }
            };
            answered &= ack.seq_low != 0 || !peer.monitors_me || !peer.is_up();
            b.push_ack(ack).ok()?;
        }
        Some(answered)
    }

    fn answer_to(&self, peer: &Peer) -> Answer {
        let withheld =
            if self.is_judged_by_views(self.config.me) { self.views.unacknowledged() } else { HostSet::EMPTY };
        let is_withheld = peer.voter && withheld.contains(peer.id);
        if self.listens_to(peer) && peer.heard() && !is_withheld {
            return Answer::Acknowledgement;
        }
        let is_new = peer.state == PeerState::Unknown && peer.heard() && peer.superseded.is_none();
        if is_new && self.must_know_me(peer.id) { Answer::Greeting } else { Answer::Nothing }
    }

    /// Writes what has to be in every heartbeat until acknowledged, as far as there is room: what the longest
    /// view section leaves.
    fn write_entries(&mut self, b: &mut Builder<'_>, seq: u64, answered: bool) {
        // Without listeners, whoever comes gets everything again.
        let acked_seq = self.peers.listeners().map(Peer::acked_seq).min().unwrap_or(u64::MAX);
        self.locals.acknowledge(acked_seq);
        for wish in self.wishes.iter_mut() {
            let peer = &self.peers[wish.host];
            wish.carry.acknowledge(if peer.is_up() { peer.acked_seq() } else { u64::MAX });
        }
        let room = self.config.payload_max - self.config.fixed_max();
        let mut load = Load { seq, room, unsettled: false, complete: true };
        // Entries in flight come first, and always fit again; then ends, then live processes, then wishes.
        let order = self.locals.by_age();
        self.write_processes(b, &order, Pass::InFlight, &mut load);
        self.write_wishes(b, Pass::InFlight, &mut load);
        self.write_processes(b, &order, Pass::Ends, &mut load);
        self.write_processes(b, &order, Pass::Alive, &mut load);
        self.write_wishes(b, Pass::Alive, &mut load);
        self.locals.all_named.acknowledge(acked_seq);
        // Nothing is known of the processes of a witness' former life.
        if self.locals.all_named != Carry::Settled && !self.life.is_resumed() {
            let complete = load.complete && answered || planted::is(Planted::NamesSome);
            if complete && load.room >= SECTION_HEADER_LEN && b.all_named().is_ok() {
                self.locals.all_named.carried(seq);
            } else {
                self.locals.all_named = Carry::Pending;
            }
            load.unsettled = true;
        }
        self.carries = load.unsettled;
    }

    fn write_processes(&mut self, b: &mut Builder<'_>, order: &[u8; MAX_PROCESSES], pass: Pass, load: &mut Load) {
        for slot in order.iter().copied() {
            let at = usize::from(slot);
            let queued = self.queues.len(at);
            let former_waits = pass != Pass::InFlight && self.locals.former_is_pending(slot);
            let Some(local) = self.locals.get_mut(slot) else { continue };
            let is_pending = local.carry == Carry::Pending;
            if pass_of(local) != Some(pass) {
                load.unsettled |= is_pending;
                continue;
            }
            load.unsettled = true;
            // The end of a process goes into a heartbeat only after all its messages did.
            let waits = !local.is_alive() && queued > 0 || former_waits;
            let fits = local.wire_len() <= load.room && !waits;
            if fits && is_pending && local.is_alive() {
                local.pb_base = local.pb_sent;
            }
            if fits && b.roster(&local.wire(at)).is_ok() {
                load.room -= local.wire_len();
                local.carry.carried(load.seq);
            } else {
                load.complete = false;
            }
        }
    }

    fn write_wishes(&mut self, b: &mut Builder<'_>, pass: Pass, load: &mut Load) {
        for at in 0..self.wishes.len() {
            let wish = *self.wishes.at(at);
            let in_flight = matches!(wish.carry, Carry::Since(_));
            // Not there yet: its host is informed when it is up and the name is known.
            let is_there = wish.carry != Carry::Settled && self.peers[wish.host].is_up();
            if in_flight != (pass == Pass::InFlight) || !is_there {
                continue;
            }
            let slot = match &wish.process {
                None => Some(HOST_SLOT),
                Some(name) => self.find(wish.host, name),
            };
            let Some(target_slot) = slot else { continue };
            load.unsettled = true;
            // The subject's host looks up the watcher's name, so the roster entry of the watcher goes first.
            if self.locals.get(wish.watcher_slot).is_some_and(|watcher| watcher.carry == Carry::Pending) {
                continue;
            }
            let section = Monitor {
                target_host: wish.host,
                target_slot,
                watcher_slot: wish.watcher_slot,
                timeout_us: wish.timeout_us,
                pbsize: wish.pbsize,
            };
            if MONITOR_SECTION_LEN <= load.room && b.monitor(&section).is_ok() {
                load.room -= MONITOR_SECTION_LEN;
                self.wishes.at_mut(at).carry.carried(load.seq);
            }
        }
    }

    /// Tells excluded incarnations that they are excluded. What does not fit has its turn in a later
    /// heartbeat.
    fn write_exclusions(&mut self, b: &mut Builder<'_>, seq: u64) {
        let excluded = self.peers.in_turn(seq).filter_map(|peer| Some((peer.id, peer.exclusion()?)));
        if excluded.clone().next().is_none() {
            return;
        }
        // Also a later incarnation that is dead, so that the host does not come back as that.
        let later = self.peers.in_turn(0).filter_map(|peer| Some((peer.id, peer.later_exclusion()?)));
        let Ok(written) = b.excluded(excluded.chain(later)) else { return };
        let named = self.peers.in_turn_mut(seq).filter(|peer| peer.exclusion().is_some());
        named.take(written).for_each(Peer::exclusion_sent);
    }

    fn write_piggybacks(&mut self, b: &mut Builder<'_>) {
        if self.queues.is_empty() {
            return;
        }
        // In turn, as long as something fits.
        let mut more = true;
        while more {
            more = false;
            // Those of ended processes go first, as the delivery of the end waits for them.
            for ended in [true, false] {
                for slot in self.queues.turns() {
                    more |= self.write_piggyback(b, slot, ended);
                }
            }
        }
    }

    /// Writes the next message of a process that has `ended` or not. Returns whether its queue became
    /// shorter.
    fn write_piggyback(&mut self, b: &mut Builder<'_>, slot: usize, ended: bool) -> bool {
        let granted = self.piggyback_grant();
        let Some(local) = self.locals.get_mut(slot as u8) else { return false };
        // A listener has to know of the process before it gets its messages.
        if local.is_alive() == ended || !ended && local.carry == Carry::Pending {
            return false;
        }
        let Some(bytes) = self.queues.front(slot) else { return false };
        if bytes.len() > granted {
            // It was accepted when packets could be longer. Its number stays unused, so that receivers notice
            // the loss.
            local.pb_sent += 1;
            self.counters.piggybacks_lost += 1;
            self.queues.pop(slot);
            return true;
        }
        if b.piggyback(slot as u8, local.pb_sent + 1, bytes).is_err() {
            return false;
        }
        local.pb_sent += 1;
        self.counters.piggybacks_sent += 1;
        self.queues.pop(slot);
        self.queues.served(slot);
        true
    }
}

/// The pass that carries the entry of a process; `None` if every peer knows it.
fn pass_of(local: &Local) -> Option<Pass> {
    match local.carry {
        Carry::Settled => None,
        Carry::Since(_) => Some(Pass::InFlight),
        Carry::Pending => Some(if local.is_alive() { Pass::Alive } else { Pass::Ends }),
    }
}
