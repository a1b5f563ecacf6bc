// SPDX-License-Identifier: Apache-2.0
//! What is sent: notices at once, heartbeats on an absolute schedule, and some between: those that others wait for to decide a view.

use crate::Config;
use crate::detector::{Detector, Transmit, TransmitKind};
use crate::lease;
use crate::peer::Peer;
use crate::roster::{self, Carry, Local};
use crate::types::*;
use fide_types::HostSet;
use fide_types::Trust;
use fide_types::planted::{self, Planted};
use fide_wire::{Ack, Builder, HOST_SLOT, MAX_PROCESSES, MONITOR_LEN, Monitor, PAYLOAD_MAX, SECTION_HEADER_LEN};

impl Detector {
    /// Writes the notice or heartbeat that is due. Call until `None`. Plane and tag are still to be set per plane
    /// ([`fide_wire::seal`]).
    ///
    /// Where the lease is told to others, tell `lease_until_ns` anew before sending what was written: a heartbeat that greets
    /// a newcomer binds this host from then on.
    ///
    /// Heartbeats are due at start + n * heartbeat_ns. When late, one goes out at once and the slots missed are skipped
    /// and counted; never a burst. While a view is decided a few go out between two of them ([`crate::URGENT_MAX`]): each round of a
    /// ballot waits for a packet's way so, not for a heartbeat. They take numbers as others do, and the schedule stays as it is.
    pub fn poll_transmit(&mut self, now_ns: u64, buf: &mut [u8; PAYLOAD_MAX]) -> Option<Transmit> {
        if self.excluded {
            return None;
        }
        if self.notices > 0
            && let Some(transmit) = self.write_notice(buf)
        {
            return Some(transmit);
        }
        if now_ns < self.next_heartbeat_ns {
            if !self.is_urgent() {
                return None;
            }
            self.urgent_left -= 1;
            self.counters.heartbeats_urgent += 1;
            return self.write_heartbeat(now_ns, buf);
        }
        self.urgent_left = self.urgent_max;
        let skipped = (now_ns - self.next_heartbeat_ns) / self.config.heartbeat_ns;
        self.counters.heartbeats_skipped += skipped;
        self.next_heartbeat_ns =
            self.next_heartbeat_ns.saturating_add(self.config.heartbeat_ns.saturating_mul(skipped + 1));
        self.write_heartbeat(now_ns, buf)
    }

    fn write_notice(&mut self, buf: &mut [u8; PAYLOAD_MAX]) -> Option<Transmit> {
        let slot = self.locals.iter().position(|l| l.as_ref().is_some_and(|l| l.notice))?;
        let local = self.locals[slot].as_mut()?;
        local.notice = false;
        self.notices -= 1;
        let roster = local.wire(slot);
        let len = Builder::notice(buf, self.config.me, self.config.incarnation, self.seq, &roster).ok()?;
        self.counters.notices_sent += 1;
        Some(Transmit { kind: TransmitKind::Notice, len, seq: self.seq })
    }

    fn write_heartbeat(&mut self, now_ns: u64, buf: &mut [u8; PAYLOAD_MAX]) -> Option<Transmit> {
        let seq = self.seq + 1;
        let me = self.config.me;
        let mute = if self.by_view(me) { self.agreement.mute() } else { HostSet::EMPTY };
        let buf = &mut buf[..self.config.payload_max];
        let mut b = Builder::heartbeat(buf, me, self.config.incarnation, seq).ok()?;
        let mut behind = false;
        let alone = !self.by_view(me);
        let promise_us = self.promise_us();
        // Only a listener that is acknowledged here can tell that what was said before was said to this incarnation of it.
        let mut answered = true;
        for at in 0..self.peers.len() {
            let peer = &self.peers[at];
            if peer.id == me {
                continue;
            }
            let greets = self.must_know(peer.id) && peer.state == PeerState::Unknown && peer.heard();
            let greets = greets && peer.superseded.is_none();
            let muted = mute.contains(peer.id) && peer.voter;
            let acks = self.listens(peer) && peer.heard() && !muted;
            // Or it holds another view of the same number: one of the two has to give way.
            let differs = peer.voter && peer.view == self.agreement.id;
            let differs = differs && !self.agreement.id.is_none() && !self.agreement.holds(peer.id, peer.incarnation);
            behind |= peer.heard() && (peer.view < self.agreement.id || differs) && !peer.silent(now_ns);
            let peer = &mut self.peers[at];
            let ack = if acks {
                greet(&self.config, peer, now_ns, alone);
                let until_ns = peer.last_rx_ns.saturating_add(u64::from(promise_us) * 1000);
                peer.promised_until_ns = peer.promised_until_ns.max(until_ns);
                // An acknowledged heartbeat is one whose sections were taken, so that its sender need not repeat them.
                let seq_low = if peer.last_seq > peer.up_seq { peer.last_seq as u32 } else { 0 };
                Ack { incarnation: peer.incarnation, seq_low }
            } else if greets {
                greet(&self.config, peer, now_ns, alone);
                Ack { incarnation: peer.incarnation, seq_low: 0 }
            } else {
                Ack::default()
            };
            answered &= ack.seq_low != 0 || !peer.monitors_me || peer.state != PeerState::Up;
            b.push_ack(ack).ok()?;
        }
        if self.majority() {
            b.view(&self.agreement.repr(behind)).ok()?;
        }
        if self.config.trust == Trust::Lease {
            b.promise(promise_us).ok()?;
        }
        if self.leaving {
            b.goodbye().ok()?;
        }
        if self.carrying {
            self.carry(&mut b, seq, answered);
        }
        self.write_echoes(&mut b, now_ns, seq);
        self.exclude(&mut b, seq);
        self.send_piggybacks(&mut b);
        let len = b.finish();
        self.seq = seq;
        self.sent.record(seq, now_ns);
        self.said = self.agreement.says();
        self.hurries = false;
        self.counters.heartbeats_sent += 1;
        // Greeting somebody new may shorten the lease, and must before it is sent.
        self.renew_lease(now_ns);
        Some(Transmit { kind: TransmitKind::Heartbeat, len, seq })
    }

    /// Room for what must be in every heartbeat until acknowledged: what the longest view section leaves.
    fn carry_budget(&self) -> usize {
        self.config.payload_max - self.config.fixed_max()
    }

    fn carry(&mut self, b: &mut Builder<'_>, seq: u64, answered: bool) {
        let acked = self.listeners().map(|p| p.acked_seq).min().unwrap_or(u64::MAX);
        // Nobody listens yet: whoever comes is told everything again.
        let mut room = self.carry_budget();
        let (mut left, mut whole) = (false, true);
        for local in self.locals.iter_mut().flatten() {
            if matches!(local.carry, Carry::Since(first) if acked >= first) {
                local.carry = Carry::Settled;
            }
        }
        for at in 0..self.wishes.len() {
            let wish = &self.wishes[at];
            let gone = self.peers[usize::from(wish.host) - 1].state != PeerState::Up;
            let acked = self.peers[usize::from(wish.host) - 1].acked_seq;
            if matches!(wish.carry, Carry::Since(first) if gone || acked >= first) {
                self.wishes[at].carry = Carry::Settled;
            }
        }
        // In flight first (they always fit again), then ends, then what is alive, then wishes.
        let order = self.by_age();
        for pass in 0..3 {
            for slot in order.into_iter().map(usize::from) {
                let queued = self.queues.len(slot);
                let former_waits = pass > 0 && self.former(slot).any(|former| former.carry == Carry::Pending);
                let Some(local) = &mut self.locals[slot] else { continue };
                let ended = local.state.is_final();
                let wanted = match local.carry {
                    Carry::Settled => false,
                    Carry::Since(_) => pass == 0,
                    Carry::Pending => pass == if ended { 1 } else { 2 },
                };
                if !wanted {
                    left |= local.carry == Carry::Pending;
                    continue;
                }
                // The end of a process is in a heartbeat only after all its messages were.
                let fits = local.wire_len() <= room && !(ended && queued > 0) && !former_waits;
                if fits && local.carry == Carry::Pending && !ended {
                    local.pb_base = local.pb_sent;
                }
                if fits && b.roster(&local.wire(slot)).is_ok() {
                    room -= local.wire_len();
                    if local.carry == Carry::Pending {
                        local.carry = Carry::Since(seq);
                    }
                } else {
                    whole = false;
                }
                left = true;
            }
            if pass == 0 {
                left |= self.carry_wishes(b, seq, &mut room, true);
            }
        }
        left |= self.carry_wishes(b, seq, &mut room, false);
        if matches!(self.all_named, Carry::Since(first) if acked >= first) {
            self.all_named = Carry::Settled;
        }
        // Of a life of a witness before this one nothing is known.
        if self.all_named != Carry::Settled && !self.recalled {
            let says = (whole && answered || planted::is(Planted::NamesSome)) && room >= SECTION_HEADER_LEN;
            self.all_named = match self.all_named {
                Carry::Since(first) if says && b.all_named().is_ok() => Carry::Since(first),
                _ if says && b.all_named().is_ok() => Carry::Since(seq),
                _ => Carry::Pending,
            };
            left = true;
        }
        self.carrying = left;
    }

    /// Slots, those of the processes that joined first before the others.
    fn by_age(&self) -> [u8; MAX_PROCESSES] {
        let mut slots = std::array::from_fn(|slot| slot as u8);
        if !planted::is(Planted::TellsTheFormer) {
            let last = self.last_process_incarnation();
            let age =
                |slot: &u8| self.locals[usize::from(*slot)].as_ref().map(|local| last.wrapping_sub(local.incarnation));
            slots.sort_unstable_by_key(|slot| std::cmp::Reverse(age(slot)));
        }
        slots
    }

    /// Former processes of the same name, in other slots.
    pub(crate) fn former(&self, slot: usize) -> impl Iterator<Item = &Local> {
        let this = self.locals[slot].as_ref();
        let is_former = move |other: &&Local| {
            this.is_some_and(|this| other.name == this.name && roster::newer(this.incarnation, other.incarnation))
        };
        self.locals.iter().flatten().filter(is_former)
    }

    fn carry_wishes(&mut self, b: &mut Builder<'_>, seq: u64, room: &mut usize, in_flight: bool) -> bool {
        let mut left = false;
        for at in 0..self.wishes.len() {
            let wish = self.wishes[at];
            if wish.carry == Carry::Settled || in_flight != matches!(wish.carry, Carry::Since(_)) {
                continue;
            }
            // Not there yet: told when it is (its host up, its name known).
            if self.peers[usize::from(wish.host) - 1].state != PeerState::Up {
                continue;
            }
            let slot = match &wish.process {
                None => Some(HOST_SLOT),
                Some(name) => self.find(wish.host, name),
            };
            let Some(target_slot) = slot else { continue };
            left = true;
            // Whoever is told of the wish looks up the watcher's name: its roster entry goes first.
            let watcher = self.locals.get(usize::from(wish.watcher_slot)).and_then(|local| local.as_ref());
            if watcher.is_some_and(|watcher| watcher.carry == Carry::Pending) {
                continue;
            }
            let section = Monitor {
                target_host: wish.host,
                target_slot,
                watcher_slot: wish.watcher_slot,
                timeout_us: wish.timeout_us,
                pbsize: wish.pbsize,
            };
            if SECTION_HEADER_LEN + MONITOR_LEN <= *room && b.monitor(&section).is_ok() {
                *room -= SECTION_HEADER_LEN + MONITOR_LEN;
                if !in_flight {
                    self.wishes[at].carry = Carry::Since(seq);
                }
            }
        }
        left
    }

    /// Tells zombies that they are. What does not fit has its turn in a later heartbeat.
    fn exclude(&mut self, b: &mut Builder<'_>, seq: u64) {
        if self.peers.iter().all(|p| p.exclude_left == 0) {
            return;
        }
        let (start, count) = (seq as usize, self.peers.len());
        let peers = &self.peers;
        let entries = (0..count)
            .map(move |i| &peers[(start + i) % count])
            .filter(|p| p.exclude_left > 0)
            .map(|p| (p.id, p.exclude_incarnation));
        // One that was later and is dead, too, so that it does not come back as that.
        let later = peers.iter().filter(|p| p.exclude_left > 0 && p.dead_incarnation > p.exclude_incarnation);
        let entries = entries.chain(later.map(|p| (p.id, p.dead_incarnation)));
        if let Ok(done) = b.excluded(entries) {
            let told = (0..count).map(|i| (start + i) % count);
            let mut done = done;
            for at in told {
                if done > 0 && self.peers[at].exclude_left > 0 {
                    self.peers[at].exclude_left -= 1;
                    done -= 1;
                }
            }
        }
    }

    fn send_piggybacks(&mut self, b: &mut Builder<'_>) {
        if self.queues.is_empty() {
            return;
        }
        // Those of ended processes go first: their verdict waits for them. Then in turn, as long as something fits.
        let mut more = true;
        while more {
            more = false;
            for ended in [true, false] {
                for slot in self.queues.turns() {
                    let Some(local) = &mut self.locals[slot] else { continue };
                    // A listener must know of the process before it hears its messages.
                    if local.state.is_final() != ended || !ended && local.carry == Carry::Pending {
                        continue;
                    }
                    let Some(bytes) = self.queues.front(slot) else { continue };
                    if bytes.len() > self.grant {
                        // Accepted when packets could be longer: its number stays out, so that receivers know of it.
                        local.pb_sent += 1;
                        self.counters.piggybacks_lost += 1;
                        self.queues.pop(slot);
                        more = true;
                        continue;
                    }
                    if b.piggyback(slot as u8, local.pb_sent + 1, bytes).is_ok() {
                        local.pb_sent += 1;
                        self.counters.piggybacks_sent += 1;
                        self.queues.pop(slot);
                        self.queues.served(slot);
                        more = true;
                    }
                }
            }
        }
    }
}

/// The heartbeat sent now is the first to tell `peer` that it is heard: its first limit, if peers judge this host alone
/// rather than by agreed views ([`crate::lease`]).
fn greet(config: &Config, peer: &mut Peer, now_ns: u64, alone: bool) {
    if !peer.greeted {
        peer.greeted = true;
        if alone {
            peer.limit_ns = peer.limit_ns.max(lease::limit_ns(config, now_ns, peer.promise_us));
        }
    }
}
