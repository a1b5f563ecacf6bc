// SPDX-License-Identifier: Apache-2.0
//! The verbs.

use crate::config::{Config, ConfigError};
use crate::lease::{self, Sent};
use crate::peer::Peer;
use crate::piggyback::{Pool, Queues};
use crate::promise::wait_us;
use crate::roster::{self, Carry, Local, REQUESTS_MAX, Remote, Request, Slots, WISHES_MAX, Wish};
use crate::types::*;
use crate::view::{Agreement, Outcome, Says, Vote};
use fide_types::planted::{self, Planted};
use fide_types::{HostSet, ProcessState, Reason};
use fide_types::{Policy, Role, Trust};
use fide_wire::{HOST_SLOT, MAX_PROCESSES, Name, PAYLOAD_MAX};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Events that wait to be polled. The last [`EVENTS_RESERVE`] places are for what must not be lost.
pub const EVENTS_MAX: usize = 2048 + EVENTS_RESERVE;
/// One verdict for each process of each host, one for each host, and some.
pub const EVENTS_RESERVE: usize = 64 * 64 + 64 + 64;
/// Heartbeats in which a zombie is told that it is one, after each sign of it.
pub const EXCLUDE_HEARTBEATS: u32 = 64;
/// An acknowledgement that is as far as this from the one before, or further, may as well be behind it: 25 days of 1 ms.
pub(crate) const ACK_AHEAD_MAX: u64 = 1 << 31;
/// Heartbeats between two of the schedule at most: a round of a ballot is two, and a second one may follow.
pub const URGENT_MAX: u32 = 4;
/// Heartbeats of one life of an incarnation: 2^40 of 1 ms are 34 years.
pub(crate) const LIFE_BITS: u32 = 40;

/// What [`Detector::poll_transmit`] wrote.
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

/// The failure detector of one host.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Detector {
    pub(crate) config: Config,
    pub(crate) grant: usize,
    pub(crate) voters: HostSet,
    /// By id-1; the own entry is unused.
    pub(crate) peers: Vec<Peer>,
    pub(crate) locals: Slots<Local>,
    /// By (id-1) * 64 + slot.
    pub(crate) remotes: Slots<Remote>,
    pub(crate) wishes: Vec<Wish>,
    pub(crate) requests: VecDeque<Request>,
    pub(crate) queues: Queues,
    pub(crate) pool: Pool,
    /// Told before a snapshot is taken.
    #[serde(skip)]
    pub(crate) events: VecDeque<Event>,
    #[serde(skip)]
    pub(crate) lent: Option<u16>,
    pub(crate) agreement: Agreement,
    pub(crate) sent: Sent,
    pub(crate) counters: Counters,
    pub(crate) seq: u64,
    pub(crate) next_heartbeat_ns: u64,
    /// What the last heartbeat said of views.
    pub(crate) said: Says,
    /// Urgent heartbeats that may still go out before the next of the schedule.
    pub(crate) urgent_left: u32,
    pub(crate) urgent_max: u32,
    /// Somebody waits for what was piggybacked since the last heartbeat.
    pub(crate) hurries: bool,
    pub(crate) last_tick_ns: u64,
    /// The end of its last stall.
    pub(crate) stalled_until_ns: u64,
    pub(crate) lease_ns: u64,
    /// No lease that was given under an older view runs at this time any more.
    pub(crate) view_settled_ns: u64,
    /// What an earlier life of this host promised holds until then.
    pub(crate) former_until_ns: u64,
    /// It promises no more than this, whatever its timeouts come to.
    pub(crate) promise_max_us: u32,
    /// The longest that it had promised before its timeouts became shorter; 0 if they never did.
    pub(crate) promise_before_us: u32,
    /// What was promised before that has run out then.
    pub(crate) promise_settled_ns: u64,
    pub(crate) fenced: bool,
    pub(crate) excluded: bool,
    /// Its machine was put back to a snapshot, or runs twice: it is no host any more until people start it anew.
    pub(crate) put_back: bool,
    pub(crate) leaving: bool,
    pub(crate) had_lease: bool,
    /// This incarnation had another life before: answers to it may be recordings.
    pub(crate) recalled: bool,
    /// The last number that this life did not use.
    pub(crate) life_seq: u64,
    /// The highest incarnation of this host that others were heard to speak of.
    pub(crate) former_incarnation: u32,
    pub(crate) joins: u32,
    pub(crate) verdict_id: u64,
    pub(crate) notices: usize,
    /// Something may need a roster entry in the next heartbeat.
    pub(crate) carrying: bool,
    /// That this host has named all its processes.
    pub(crate) all_named: Carry,
}

impl Detector {
    /// Allocates everything there will ever be. The first heartbeat is due at `now_ns`.
    pub fn new(config: Config, now_ns: u64) -> Result<Detector, ConfigError> {
        config.validate()?;
        let voters = config.voters();
        let me = &config.members[usize::from(config.me) - 1];
        let mut peers: Vec<Peer> =
            config.members.iter().map(|m| Peer::new(m.id, m.role != Role::Observer, config.timeout_ns)).collect();
        for (peer, member) in peers.iter_mut().zip(&config.members) {
            peer.monitored = me.monitors.contains(peer.id);
            peer.monitors_me = member.monitors.contains(config.me);
        }
        let count = peers.len();
        let agreement = Agreement::new(config.me, config.incarnation, voters, config.witness(), now_ns);
        let mut detector = Detector {
            grant: config.piggyback_grant(),
            voters,
            locals: roster::slots(1),
            remotes: roster::slots(count),
            wishes: Vec::with_capacity(WISHES_MAX),
            requests: VecDeque::with_capacity(REQUESTS_MAX),
            queues: Queues::new(),
            pool: Pool::new(),
            events: VecDeque::with_capacity(EVENTS_MAX),
            lent: None,
            said: agreement.says(),
            urgent_left: 0,
            urgent_max: 0,
            hurries: false,
            agreement,
            sent: Sent::new(),
            counters: Counters::default(),
            seq: 0,
            next_heartbeat_ns: now_ns,
            last_tick_ns: now_ns,
            stalled_until_ns: 0,
            lease_ns: 0,
            view_settled_ns: 0,
            former_until_ns: now_ns,
            promise_max_us: u32::MAX,
            promise_before_us: 0,
            promise_settled_ns: 0,
            fenced: config.trust == Trust::Lease,
            excluded: false,
            put_back: false,
            leaving: false,
            had_lease: false,
            recalled: false,
            life_seq: 0,
            former_incarnation: 0,
            joins: 0,
            verdict_id: 0,
            notices: 0,
            carrying: false,
            all_named: Carry::Settled,
            peers,
            config,
        };
        detector.renew_lease(now_ns);
        Ok(detector)
    }

    /// A voter that starts again as the incarnation that it was, with what it has stored of its vote. `life`: higher than any before of
    /// this incarnation, from 1; its heartbeats' numbers begin with it.
    ///
    /// # Errors
    /// [`ConfigError`]; of the vote's incarnation if the configuration has another.
    pub fn resume(config: Config, vote: &Vote, life: u32, now_ns: u64) -> Result<Detector, ConfigError> {
        if vote.incarnation != config.incarnation || life == 0 {
            return Err(ConfigError::Incarnation);
        }
        let mut detector = Detector::new(config, now_ns)?;
        detector.seq = u64::from(life) << LIFE_BITS;
        (detector.recalled, detector.life_seq) = (true, detector.seq);
        detector.sent.skip(detector.seq);
        detector.sent.forget();
        let before = detector.agreement.members;
        detector.agreement.recall(vote);
        if !vote.id.is_none() {
            detector.outcome(now_ns, Outcome::Installed { before }, detector.config.me);
        }
        detector.heed_former(now_ns, vote.promise_us);
        Ok(detector)
    }

    /// An earlier life of this host, which has ended, promised up to `promise_us`, perhaps just before it ended. To be told before
    /// anything else: until all that has run out this one founds no view and drops nobody.
    pub fn heed_former(&mut self, now_ns: u64, promise_us: u32) {
        if planted::is(Planted::ForgetsPromise) {
            return;
        }
        let until_ns = now_ns.saturating_add(u64::from(promise_us) * 1000);
        self.former_until_ns = self.former_until_ns.max(until_ns);
        for peer in &mut self.peers {
            peer.promised_until_ns = peer.promised_until_ns.max(until_ns);
        }
    }

    /// From now on up to `urgent_max` heartbeats go out between two of the schedule while a view is decided, and for piggybacks that somebody
    /// waits for ([`Detector::hurry`]); at most [`URGENT_MAX`], and none before this is called: for networks that have room for more than one
    /// in each period.
    pub fn set_urgent_max(&mut self, urgent_max: u32) {
        self.urgent_max = urgent_max.min(URGENT_MAX);
        self.urgent_left = self.urgent_max;
    }

    /// How many heartbeats may go out between two of the schedule.
    pub fn urgent_max(&self) -> u32 {
        self.urgent_max
    }

    /// What was piggybacked so far does not wait for the next heartbeat of the schedule, if one between two of them is left.
    pub fn hurry(&mut self) {
        self.hurries = true;
    }

    /// Do others wait for what the next heartbeat says of views, or takes along, so that it goes out before it is due?
    pub(crate) fn is_urgent(&self) -> bool {
        let decides = || self.by_view(self.config.me) && self.agreement.says() != self.said;
        // What programs hurry for leaves some to views.
        let hurries = || self.hurries && self.urgent_left > self.urgent_max / 2 && !self.queues.is_empty();
        self.urgent_left > 0 && !self.excluded && (hurries() || decides())
    }

    /// The highest generation of views that this host's disk holds as it starts: its next incarnation is above. Whoever is never told founds and
    /// acts as if its disk held all.
    pub fn keeps_generations_up_to(&mut self, kept: u32) {
        self.agreement.keeps_up_to(kept);
    }

    /// The generation that this host's disk has to hold before it founds or acts by a view of it; to be asked after each turn. 0: none.
    pub fn generation_to_keep(&self) -> u32 {
        self.agreement.generation()
    }

    /// This host's disk holds that generation now.
    pub fn has_kept_generation(&mut self, generation: u32) {
        self.agreement.has_kept(generation);
    }

    /// What this host says of views in what [`Detector::poll_transmit`] gives next. A witness stores it before it asks for that.
    pub fn vote(&self) -> Vote {
        let former_us = wait_us(self.former_until_ns.saturating_sub(self.last_tick_ns));
        Vote { promise_us: self.promise_most_us().max(former_us), ..self.agreement.vote() }
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// A hint that `peer` may be silent (a kernel timer fired). Causes an evaluation, never a verdict by itself.
    pub fn timer_fired(&mut self, now_ns: u64, peer: u16) {
        let _ = peer;
        self.counters.timer_hints += 1;
        self.tick(now_ns);
    }

    /// Call at every turn of the loop, after feeding what was received. Finds own stalls, does what is due.
    pub fn tick(&mut self, now_ns: u64) {
        let now_ns = now_ns.max(self.last_tick_ns);
        self.notice_stall(now_ns);
        self.last_tick_ns = now_ns;
        self.judge(now_ns);
        self.renew_lease(now_ns);
    }

    fn notice_stall(&mut self, now_ns: u64) {
        if self.stands_still(now_ns) {
            self.stalled(now_ns, now_ns - self.last_tick_ns);
        }
    }

    /// Has nothing been done for longer than a loop that runs may take?
    pub(crate) fn stands_still(&self, now_ns: u64) -> bool {
        let gap_ns = now_ns.saturating_sub(self.last_tick_ns);
        gap_ns > self.config.heartbeat_ns.saturating_add(self.config.stall_slack_ns)
    }

    pub(crate) fn stalled(&mut self, now_ns: u64, gap_ns: u64) {
        self.stalled_until_ns = now_ns;
        self.counters.stalls += 1;
        self.counters.stalled_ns += gap_ns;
        let mut withheld = 0;
        for peer in &mut self.peers {
            let followed = peer.monitored && peer.incarnation != 0;
            if followed && peer.state == PeerState::Up && peer.silent(now_ns) {
                peer.withheld += 1;
                withheld += 1;
            }
            peer.bound &= now_ns < peer.limit_ns;
            peer.sent_late = true;
            peer.floor_ns = now_ns;
        }
        self.counters.suspicions_withheld += u64::from(withheld);
        self.tell(Event::ObserverStalled { gap_ns, withheld });
    }

    /// A process of this host. Its incarnation is higher than that of any earlier one in the same slot, also across
    /// restarts of the agent with a higher incarnation. A witness keeps its incarnation, so it has no processes.
    pub fn join(&mut self, now_ns: u64, name: Name) -> Result<Joined, JoinError> {
        if self.leaving {
            return Err(JoinError::Leaving);
        }
        if self.config.witness() == self.config.me {
            return Err(JoinError::Witness);
        }
        let alive = |l: &Local| !l.state.is_final();
        if let Some(slot) = self.locals.iter().position(|l| l.as_ref().is_some_and(|l| alive(l) && l.name == name)) {
            return Err(JoinError::NameTaken { name, slot: slot as u8 });
        }
        let never = self.locals.iter().position(|l| l.is_none());
        let settled = |l: &Local| l.state.is_final() && l.carry == Carry::Settled && !l.notice;
        let slot = never
            .or_else(|| self.locals.iter().position(|l| l.as_ref().is_some_and(settled)))
            .ok_or(JoinError::Full)?;
        let incarnation = self.next_process_incarnation();
        self.queues.clear(slot);
        self.locals[slot] = Some(Local {
            name,
            incarnation,
            state: ProcessState::Alive,
            at_ns: now_ns,
            pb_assigned: 0,
            pb_sent: 0,
            pb_base: 0,
            carry: Carry::Pending,
            notice: false,
        });
        self.carrying = true;
        self.tell(Event::Up { host: self.config.me, slot: slot as u8, incarnation, name });
        for at in 0..self.wishes.len() {
            let wish = &self.wishes[at];
            if wish.host == self.config.me && wish.process == Some(name) {
                self.tell_wish(at, slot as u8);
            }
        }
        Ok(Joined { slot: slot as u8, incarnation })
    }

    /// A watch of this very host's process: nobody else's heartbeat brings it.
    fn tell_wish(&mut self, at: usize, slot: u8) {
        let Wish { host, watcher_slot, timeout_us, pbsize, .. } = self.wishes[at];
        self.tell(Event::MonitorRequest { host, watcher_slot, slot, timeout_us, pbsize });
    }

    fn next_process_incarnation(&mut self) -> u32 {
        self.joins = self.joins.wrapping_add(1);
        self.last_process_incarnation()
    }

    /// Whether a process of this host has got this number in this life. Numbers come round after 12 days: a process of a life that began
    /// then may have had it, too.
    pub fn has_numbered(&self, process: u32) -> bool {
        let first = self.config.incarnation << 12;
        (1..=self.last_process_incarnation().wrapping_sub(first)).contains(&process.wrapping_sub(first))
    }

    pub(crate) fn last_process_incarnation(&self) -> u32 {
        (self.config.incarnation << 12).wrapping_add(self.joins).max(1)
    }

    /// What the local kernel (or the process's own beat) says. Of an end a notice is due at once; heartbeats carry every change.
    pub fn process_changed(
        &mut self,
        now_ns: u64,
        slot: u8,
        state: ProcessState,
        at_ns: u64,
    ) -> Result<(), ProcessError> {
        if state == ProcessState::HostSilent {
            return Err(ProcessError::NotForLocal);
        }
        let local = self.locals.get_mut(usize::from(slot)).and_then(|l| l.as_mut());
        let local = local.ok_or(ProcessError::NotJoined { slot })?;
        if local.state.is_final() {
            return Err(ProcessError::Ended { slot });
        }
        if local.state == state {
            return Ok(());
        }
        let reason = state.reason().unwrap_or(Reason::Recovered);
        local.state = state;
        local.at_ns = at_ns;
        local.pb_base = local.pb_sent;
        local.carry = Carry::Pending;
        // Stalled and recovered are the program's own doing, as often as it likes: heartbeats tell them, and nothing more is sent.
        if state.is_final() && !local.notice {
            local.notice = true;
            self.notices += 1;
        }
        let incarnation = local.incarnation;
        self.carrying = true;
        let evidence = self.own_evidence(now_ns, at_ns);
        self.verdict(self.config.me, slot, incarnation, reason, evidence);
        Ok(())
    }

    /// Queues a message for the next heartbeat with room. Returns its number, from 1 in each process incarnation.
    pub fn piggyback(&mut self, slot: u8, bytes: &[u8]) -> Result<u32, PiggybackError> {
        let granted = self.grant;
        let local = self.locals.get_mut(usize::from(slot)).and_then(|l| l.as_mut()).filter(|l| !l.state.is_final());
        let refused = match local {
            None => PiggybackError::NotJoined { slot },
            Some(_) if bytes.len() > granted => PiggybackError::TooLarge { size: bytes.len(), granted },
            Some(local) => {
                if self.queues.push(usize::from(slot), bytes) {
                    local.pb_assigned += 1;
                    return Ok(local.pb_assigned);
                }
                PiggybackError::Full { queued: self.queues.len(usize::from(slot)) }
            }
        };
        self.counters.piggybacks_declined += 1;
        Err(refused)
    }

    /// Messages that `slot` can queue now.
    pub fn piggyback_capacity(&self, slot: u8) -> usize {
        match self.locals.get(usize::from(slot)) {
            Some(Some(_)) => crate::piggyback::QUEUE_MAX - self.queues.len(usize::from(slot)),
            _ => 0,
        }
    }

    /// Largest message, bytes.
    pub fn piggyback_grant(&self) -> usize {
        self.grant
    }

    /// The largest packet that every plane carries is now `payload_max` bytes (held between [`Config::payload_min`] and
    /// [`PAYLOAD_MAX`]). Returns the new grant; longer messages that wait are given up and counted as lost.
    pub fn set_payload_max(&mut self, payload_max: usize) -> usize {
        self.config.payload_max = payload_max.clamp(self.config.payload_min(), PAYLOAD_MAX);
        self.grant = self.config.piggyback_grant();
        self.grant
    }

    /// Notes a watch and tells the subject's host of it. The same watch twice counts twice.
    pub fn monitor(
        &mut self,
        _now_ns: u64,
        target: Target,
        wanted: Wanted,
        watcher_slot: u8,
    ) -> Result<Granted, MonitorError> {
        let host = target.host;
        let local = host == self.config.me;
        let peer = self.peers.get(usize::from(host).wrapping_sub(1)).ok_or(MonitorError::UnknownHost { host })?;
        if !local && !peer.monitored {
            return Err(MonitorError::NotMonitored { host });
        }
        let timeout_ns = if local { 0 } else { peer.timeout_ns };
        if wanted.timeout_ns != 0 && wanted.timeout_ns < timeout_ns {
            return Err(MonitorError::TimeoutTooShort { wanted_ns: wanted.timeout_ns, granted_ns: timeout_ns });
        }
        let granted = Granted { timeout_ns, pbsize: (self.grant as u16).min(wanted.pbsize) };
        let same = |w: &&mut Wish| w.host == host && w.process == target.process && w.watcher_slot == watcher_slot;
        if let Some(wish) = self.wishes.iter_mut().find(same) {
            wish.watchers += 1;
            if granted.pbsize > wish.pbsize {
                wish.pbsize = granted.pbsize;
                wish.carry = Carry::Pending;
            }
        } else if self.wishes.len() == WISHES_MAX {
            return Err(MonitorError::Full { bound: WISHES_MAX });
        } else {
            self.wishes.push(Wish {
                host,
                process: target.process,
                watcher_slot,
                timeout_us: u32::try_from(timeout_ns / 1000).unwrap_or(u32::MAX),
                pbsize: granted.pbsize,
                carry: if local { Carry::Settled } else { Carry::Pending },
                watchers: 1,
            });
            if local && let Some(slot) = target.process.and_then(|name| self.find(host, &name)) {
                self.tell_wish(self.wishes.len() - 1, slot);
            }
        }
        self.carrying = true;
        Ok(granted)
    }

    /// Takes one watch back. The subject's host is not told; nothing depends on it.
    pub fn unmonitor(&mut self, target: Target, watcher_slot: u8) -> Result<(), MonitorError> {
        let same = |w: &Wish| w.host == target.host && w.process == target.process && w.watcher_slot == watcher_slot;
        let at = self.wishes.iter().position(same).ok_or(MonitorError::NotFound)?;
        self.wishes[at].watchers -= 1;
        if self.wishes[at].watchers == 0 {
            self.wishes.swap_remove(at);
        }
        Ok(())
    }

    /// Says goodbye in every further heartbeat, and acts no more.
    pub fn leave(&mut self, now_ns: u64) {
        self.leaving = true;
        self.renew_lease(now_ns);
    }

    /// Every live, listening peer has acknowledged the goodbye's heartbeats up to now (or there is none).
    pub fn left(&self, since_seq: u64) -> bool {
        self.leaving && self.listeners().all(|p| p.acked_seq >= since_seq)
    }

    /// After [`Event::Excluded`]: goes on as a new incarnation, and so do the local processes that are alive.
    ///
    /// # Errors
    /// [`RestartError`]; nothing has changed.
    pub fn restart(&mut self, now_ns: u64, incarnation: u32) -> Result<(), RestartError> {
        if self.put_back {
            return Err(RestartError::PutBack);
        }
        let heard_of = if planted::is(Planted::PassesThroughFormers) { 0 } else { self.former_incarnation };
        let present = self.config.incarnation.max(heard_of);
        if incarnation <= present {
            return Err(RestartError::Incarnation { incarnation, present });
        }
        self.config.incarnation = incarnation;
        (self.recalled, self.life_seq) = (false, self.seq);
        self.joins = 0;
        self.excluded = false;
        self.had_lease = false;
        self.sent.forget();
        self.agreement.restart(incarnation, now_ns);
        for peer in &mut self.peers {
            peer.limit_ns = 0;
            (peer.bound, peer.sent_late) = (false, false);
            peer.acked_seq = 0;
            peer.knows_me = false;
            peer.greeted = false;
            peer.sure_of_me = false;
            peer.all_named = false;
            peer.floor_ns = now_ns;
            if let Some(old) = &mut peer.superseded {
                old.in_doubt = false;
            }
        }
        for slot in 0..MAX_PROCESSES {
            let Some(mut local) = self.locals[slot] else { continue };
            if local.notice {
                self.notices -= 1;
            }
            self.queues.clear(slot);
            if local.state.is_final() {
                self.locals[slot] = None;
                continue;
            }
            let fresh = self.next_process_incarnation();
            local = Local {
                incarnation: fresh,
                pb_assigned: 0,
                pb_sent: 0,
                pb_base: 0,
                carry: Carry::Pending,
                notice: false,
                ..local
            };
            self.locals[slot] = Some(local);
            self.tell(Event::Up { host: self.config.me, slot: slot as u8, incarnation: fresh, name: local.name });
        }
        for wish in &mut self.wishes {
            wish.carry = Carry::Pending;
        }
        (self.carrying, self.all_named) = (true, Carry::Pending);
        self.renew_lease(now_ns);
        Ok(())
    }

    /// When to come back: the next heartbeat, the next silence, the end of the lease.
    pub fn poll_timeout(&self) -> u64 {
        if self.notices > 0 && !self.excluded || self.is_urgent() {
            return self.last_tick_ns;
        }
        let mut at = if self.excluded { u64::MAX } else { self.next_heartbeat_ns };
        for peer in &self.peers {
            let is_up = peer.state == PeerState::Up;
            if is_up && peer.monitored && !peer.suspected {
                at = at.min(peer.deadline_ns());
            }
            if is_up && peer.open > 0 {
                at = at.min(self.last_tick_ns.saturating_add(self.config.heartbeat_ns));
            }
            if let Some(old) = peer.superseded.as_ref().filter(|o| o.until_ns > self.last_tick_ns) {
                at = at.min(old.until_ns);
            }
        }
        if self.fenced { at } else { at.min(self.lease_ns) }
    }

    /// The next thing to tell. Bytes lent for the one before are taken back.
    pub fn poll_event(&mut self) -> Option<Event> {
        if let Some(buffer) = self.lent.take() {
            self.pool.release(buffer);
        }
        let event = self.events.pop_front()?;
        if let Event::Piggyback { buffer, .. } = event {
            self.lent = Some(buffer);
        }
        Some(event)
    }

    /// The message of the [`Event::Piggyback`] polled last; empty for any other event.
    pub fn piggyback_bytes(&self, event: &Event) -> &[u8] {
        match *event {
            Event::Piggyback { buffer, len, .. } if self.lent == Some(buffer) => self.pool.get(buffer, len),
            _ => &[],
        }
    }

    /// Until when this node may act (own clock); `u64::MAX` under trust = network, 0 when excluded or leaving.
    pub fn lease_until_ns(&self) -> u64 {
        self.lease_ns
    }

    pub fn is_fenced(&self, now_ns: u64) -> bool {
        now_ns >= self.lease_ns
    }

    pub fn is_excluded(&self) -> bool {
        self.excluded
    }

    /// After [`Event::PutBack`].
    pub fn is_put_back(&self) -> bool {
        self.put_back
    }

    /// `None` for this host and for ids that are not members.
    pub fn peer(&self, id: u16) -> Option<PeerView> {
        self.peers.get(usize::from(id).wrapping_sub(1)).filter(|p| p.id != self.config.me).map(Peer::look)
    }

    /// Hosts that have said lately that they hear this host's present incarnation.
    pub fn heard_by(&self) -> HostSet {
        self.peers.iter().filter(|peer| peer.knows_me).map(|peer| peer.id).collect()
    }

    /// Of these, those that have said lately that they hold this host's present incarnation for up. They take all that it sends.
    pub fn held_up_by(&self) -> HostSet {
        self.peers.iter().filter(|peer| peer.knows_me && peer.acked_seq > 0).map(|peer| peer.id).collect()
    }

    /// Whether that host has named all its processes to this incarnation of this one. A process that it gave out before and that is
    /// not known here has ended.
    pub fn all_named(&self, host: u16) -> bool {
        self.peers.get(usize::from(host).wrapping_sub(1)).is_some_and(|p| p.state == PeerState::Up && p.all_named)
    }

    pub fn process(&self, host: u16, slot: u8) -> Option<ProcessView> {
        let slot = usize::from(slot);
        if slot >= MAX_PROCESSES {
            return None;
        }
        if host == self.config.me {
            return self.locals[slot].as_ref().map(Local::look);
        }
        let at = usize::from(host).checked_sub(1)? * MAX_PROCESSES + slot;
        self.remotes.get(at)?.as_ref().map(Remote::look)
    }

    /// The slot of the live process of that name; the latest ended one otherwise.
    pub fn find(&self, host: u16, name: &Name) -> Option<u8> {
        let named = |slot: &u8| self.process(host, *slot).is_some_and(|p| p.name == *name);
        let slots = 0..MAX_PROCESSES as u8;
        slots
            .clone()
            .filter(named)
            .find(|s| self.process(host, *s).is_some_and(|p| !p.state.is_final()))
            .or_else(|| slots.filter(named).max_by_key(|s| self.process(host, *s).map_or(0, |p| p.at_ns)))
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// `ViewId::NONE` under policy network.
    pub fn view(&self) -> ViewInfo {
        ViewInfo { id: self.agreement.id, members: HostSet(self.agreement.members.hosts) }
    }

    /// As which incarnation a host is in [`Detector::view`], if it is.
    pub fn member_incarnation(&self, host: u16) -> Option<u32> {
        self.agreement.members.incarnation(host)
    }

    /// From when on no host acts by a lease of an older view than [`Detector::view`] ([`crate::view`], rule 3).
    pub fn view_settled_ns(&self) -> u64 {
        self.view_settled_ns
    }

    /// Number of the last heartbeat sent.
    pub fn last_seq(&self) -> u64 {
        self.seq
    }

    pub(crate) fn majority(&self) -> bool {
        self.config.policy == Policy::Majority
    }

    /// Is `peer` judged by agreed views rather than by this host's own timeout?
    pub(crate) fn by_view(&self, peer: u16) -> bool {
        self.majority() && self.voters.contains(peer)
    }

    /// Is what `peer` says of its processes taken, and acknowledged?
    pub(crate) fn listens(&self, peer: &Peer) -> bool {
        peer.state == PeerState::Up && (!self.by_view(peer.id) || self.agreement.holds(peer.id, peer.incarnation))
    }

    /// Must `peer` know of this host before it is up and can be judged? (trust = lease, judged by this host alone)
    pub(crate) fn must_know(&self, peer: u16) -> bool {
        self.config.trust == Trust::Lease && !self.by_view(peer)
    }

    pub(crate) fn listeners(&self) -> impl Iterator<Item = &Peer> {
        self.peers.iter().filter(|p| p.monitors_me && p.state == PeerState::Up)
    }

    pub(crate) fn tell(&mut self, event: Event) {
        let spare =
            matches!(event, Event::Piggyback { .. } | Event::MonitorRequest { .. } | Event::TimeoutChanged { .. });
        let bound = if spare { EVENTS_MAX - EVENTS_RESERVE } else { EVENTS_MAX };
        if self.events.len() < bound {
            self.events.push_back(event);
        } else {
            self.counters.events_lost += 1;
            if let Event::Piggyback { buffer, .. } = event {
                self.pool.release(buffer);
            }
        }
    }

    /// Computes the lease anew and tells when it begins or ends.
    pub(crate) fn renew_lease(&mut self, now_ns: u64) {
        self.lease_ns = self.compute_lease();
        let fenced = now_ns >= self.lease_ns;
        if fenced != self.fenced {
            self.fenced = fenced;
            let lease_until_ns = self.lease_ns;
            self.tell(if fenced { Event::Fenced { lease_until_ns } } else { Event::Unfenced { lease_until_ns } });
        }
        self.had_lease |= !fenced;
    }

    fn compute_lease(&self) -> u64 {
        if self.excluded || self.leaving {
            return 0;
        }
        if self.config.trust == Trust::Network || self.peers.len() == 1 {
            return u64::MAX;
        }
        let me = self.config.me;
        if self.by_view(me) {
            let agreement = &self.agreement;
            let holds = !agreement.id.is_none() && agreement.holds(me, self.config.incarnation);
            if !holds || !agreement.keeps_its_view() {
                return 0;
            }
            let limits = self.peers.iter().filter(|p| p.id != me && agreement.holds(p.id, p.incarnation));
            return lease::majority(agreement.members.len(), limits.map(|p| p.limit_ns));
        }
        let now_ns = self.last_tick_ns;
        let counts = |p: &&Peer| match p.state {
            PeerState::Up => p.greeted && (p.knows_me || !p.silent(now_ns)),
            PeerState::Unknown => p.greeted && !p.silent(now_ns),
            PeerState::Dead | PeerState::Left => false,
        };
        let live = self.peers.iter().filter(|p| p.monitors_me).filter(counts);
        match lease::least(live.map(|p| p.limit_ns)) {
            Some(limit) => limit,
            None if self.had_lease || !self.peers.iter().any(|p| p.monitors_me) => u64::MAX,
            None => 0,
        }
    }
}

/// The host itself as a subject.
pub(crate) const HOST: u8 = HOST_SLOT;
