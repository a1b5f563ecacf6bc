// SPDX-License-Identifier: Apache-2.0
//! Clients: their commands, their beats, their outboxes.

use std::os::fd::AsFd;

use fide_agent_api::event::{EventRecord, kind};
use fide_detector::{HostSet, PeerState, ProcessState, Target, Wanted};
use fide_sys::clock::{mono_ns, raw_ns};
use fide_types::Reason;
use fide_wire::{HOST_SLOT, Keys, MAX_PROCESSES, Name, PIGGYBACK_MAX};
use serde::{Deserialize, Serialize};

use super::{
    COMMANDS_PER_TURN, Engine, FORGOTTEN_PER_TURN, PIGGYBACKS_PER_TURN, RINGS_ALL_MAX, RINGS_MAX, TOKEN_DOORBELL,
};
use crate::{
    command::{Change, Command, JoinedProcess, Memory, MonitorRefusal, Monitored, Reply},
    snapshot::Snapshot,
};

/// One client of this agent.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) memory: Box<Memory>,
    /// Events lost because it did not read.
    pub(super) lost: u64,
    /// How often it has rung in this period.
    rings: u32,
    muted: bool,
}

/// Who registered a local process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Owner {
    /// Tells registrations of one slot apart.
    pub(super) cookie: u64,
    pub(super) client: u8,
    /// 0: the program does not beat.
    beat_timeout_ns: u64,
    beat: u64,
    beat_ns: u64,
    stalled: bool,
    /// When all changes told so far are paid for; see [`CHANGES_MAX`].
    changes_paid_ns: u64,
}

/// Changes between stalled and recovered that are told of one process at once; then one in [`CHANGE_NS`]. A program
/// can make as many as it likes, and every host has to hear of them.
const CHANGES_MAX: u64 = 4;
const CHANGE_NS: u64 = 1_000_000_000;

impl Owner {
    /// Whether a change may be told now; it then counts as told.
    fn may_change(&mut self, now: u64) -> bool {
        let paid_ns = self.changes_paid_ns.max(now);
        let may = paid_ns - now <= (CHANGES_MAX - 1) * CHANGE_NS;
        if may {
            self.changes_paid_ns = paid_ns + CHANGE_NS;
        }
        may
    }
}

impl Engine {
    /// Carries out what the control thread asked for.
    pub(super) fn commands(&mut self) {
        for _ in 0..COMMANDS_PER_TURN {
            // What the turn before has begun comes first: whoever asked waits for it.
            let next = self.closing.map(|client| Command::CloseSession { client });
            let Some(command) = next.or_else(|| self.parts.exchange.take_command()) else { return };
            let reply = match command {
                Command::CloseSession { client } => {
                    let Some(closed) = self.end_session(client) else { break };
                    Reply::Closed(closed)
                }
                command => self.command(command),
            };
            self.parts.exchange.answer(reply);
        }
        self.busy_turn = true;
    }

    pub(super) fn command(&mut self, command: Command) -> Reply {
        match command {
            Command::OpenSession { client, memory } => match self.add_session(client, memory, 0) {
                None => Reply::Done,
                // It was not closed before: freed where there is time for it.
                before => Reply::Closed(before),
            },
            // A part of it in each turn: `end_session`.
            Command::CloseSession { .. } => Reply::Done,
            Command::Join { client, name, beat_timeout_ns } => self.join(client, name, beat_timeout_ns),
            Command::Changed { slot, cookie, change, at_ns } => {
                match change {
                    Change::Exited(exit) => self.process_exited(raw_ns(), slot, cookie, exit, at_ns),
                    Change::Left => self.process_changed(raw_ns(), slot, cookie, ProcessState::Left, at_ns),
                }
                Reply::Done
            }
            Command::Monitor { client, host, name, wanted } => {
                Reply::Monitored(self.monitor(client, host, name, wanted))
            }
            Command::Former { client, watch, slot, incarnation, timeout_ns } => {
                self.note_former(client, watch, slot, incarnation, timeout_ns);
                Reply::Done
            }
            Command::Unmonitor { client, watch } => Reply::Unmonitored(self.unmonitor(client, watch)),
            Command::Snapshot(mut snapshot) => {
                self.fill(&mut snapshot);
                Reply::Snapshot(snapshot)
            }
            Command::SetKeys(keys) => {
                self.set_keys(&keys);
                Reply::Done
            }
            Command::Aim { plane, group } => {
                if let Some(sender) = self.parts.senders.get_mut(usize::from(plane)) {
                    sender.aim(group);
                }
                Reply::Done
            }
            Command::OpenLane { handle, lane } => Reply::Lane(self.open_lane(handle, lane)),
            Command::ShareLane { handle, clients } => {
                self.share_lane(handle, clients);
                Reply::Done
            }
            Command::AimLane { handle, tree, sender } => Reply::Sender(self.lanes.aim(handle, tree, sender)),
            Command::ChangeLane { handle, terms, type_of_service } => {
                self.lanes.change(handle, terms, type_of_service);
                Reply::Done
            }
            Command::CloseLane { handle } => Reply::Lane(self.close_lane(handle)),
            Command::Listen { client, service, on } => {
                self.lanes.listen(client, service, on);
                Reply::Done
            }
            Command::Standings => {
                let detector = &self.parts.detector;
                let is_up = |host: &u16| detector.peer(*host).is_some_and(|peer| peer.state == PeerState::Up);
                let up = (1..=self.parts.members).filter(is_up).collect();
                Reply::Standings { up, hold_us_up: detector.held_up_by() }
            }
            Command::Tell { clients, record, data } => {
                self.tell_each(clients, record, &data);
                // Freed by who made it.
                Reply::Told(data)
            }
            Command::SetNetwork { host, network } => {
                self.set_network(host, network);
                Reply::Done
            }
            Command::SetPayloadMax(payload_max) => {
                self.set_payload_max(payload_max);
                Reply::Done
            }
            Command::Restart { incarnation } => {
                if let Err(why) = self.parts.detector.restart(raw_ns(), incarnation) {
                    return Reply::NotBegun(why);
                }
                self.publish_exclusion();
                self.parts.table.set_incarnation(incarnation);
                self.publish_view();
                self.publish_me();
                let mut record = EventRecord::of_host(kind::REJOINED, self.parts.me);
                record.incarnation = incarnation;
                record.rx_ns = mono_ns();
                self.tell_all(record);
                Reply::Done
            }
            Command::Adopt { slot, client, beat_timeout_ns } => {
                Reply::Adopted(self.adopt(slot, client, beat_timeout_ns))
            }
            Command::Freeze => Reply::Frozen(Box::new(self.freeze())),
            Command::Thaw => {
                self.thaw();
                Reply::Done
            }
            Command::Leave => {
                self.parts.detector.leave(raw_ns());
                Reply::Done
            }
            Command::Stop => {
                self.stopping = true;
                Reply::Done
            }
            Command::Fault(fault) => {
                crate::fault::happen(fault);
                Reply::Done
            }
        }
    }

    fn join(&mut self, client: u8, name: Name, beat_timeout_ns: u64) -> Reply {
        let now = raw_ns();
        let joined = self.parts.detector.join(now, name);
        Reply::Joined(joined.map(|joined| {
            self.next_cookie += 1;
            let beat = self.sessions[usize::from(client)].as_ref().map_or(0, |session| session.memory.region.beat());
            self.owners[usize::from(joined.slot)] = Some(Owner {
                cookie: self.next_cookie,
                client,
                beat_timeout_ns,
                beat,
                beat_ns: now,
                stalled: false,
                changes_paid_ns: 0,
            });
            let pbsize = u16::try_from(self.parts.detector.piggyback_grant()).unwrap_or(u16::MAX);
            JoinedProcess { slot: joined.slot, incarnation: joined.incarnation, cookie: self.next_cookie, pbsize }
        }))
    }

    fn adopt(&mut self, slot: u8, client: u8, beat_timeout_ns: u64) -> Option<JoinedProcess> {
        let process = self.parts.detector.process(self.parts.me, slot).filter(|process| !process.state.is_final())?;
        let beat = self.sessions[usize::from(client)].as_ref()?.memory.region.beat();
        let owner = self.owners.get_mut(usize::from(slot))?.as_mut()?;
        *owner = Owner { client, beat_timeout_ns, beat, beat_ns: raw_ns(), ..*owner };
        let pbsize = u16::try_from(self.parts.detector.piggyback_grant()).unwrap_or(u16::MAX);
        Some(JoinedProcess { slot, incarnation: process.incarnation, cookie: owner.cookie, pbsize })
    }

    /// Gives back what was in its place, which is for another thread to free.
    #[must_use]
    pub(super) fn add_session(&mut self, client: u8, memory: Box<Memory>, lost: u64) -> Option<Box<Memory>> {
        // Without it a lane's message, or a piggyback, waits for the next turn, at the next heartbeat.
        let _ = self.waiter.add_edge(memory.doorbell.as_fd(), TOKEN_DOORBELL + u64::from(client));
        match self.sessions.get_mut(usize::from(client)) {
            Some(place) => place.replace(Session { memory, lost, rings: 0, muted: false }).map(|before| before.memory),
            None => Some(memory),
        }
    }

    /// A client has rung. One that does so more often than [`RINGS_MAX`] in a period, or whoever rings when all have [`RINGS_ALL_MAX`] times, is not
    /// heard until the next: what it leaves goes with the heartbeat, and the loop does not turn as often as programs like.
    pub(super) fn rung(&mut self, client: u64) {
        let Some(session) = usize::try_from(client).ok().and_then(|at| self.sessions.get_mut(at)?.as_mut()) else {
            return;
        };
        self.rung |= 1 << client;
        self.rings += 1;
        session.rings += 1;
        if !session.muted && (session.rings >= RINGS_MAX || self.rings >= RINGS_ALL_MAX) {
            let _ = self.waiter.remove(session.memory.doorbell.as_fd());
            session.muted = true;
            self.counters.bells_muted += 1;
        }
        self.parts.detector.hurry();
    }

    /// A period after the last time, whether a heartbeat goes out or not: whoever was muted is heard again.
    pub(super) fn hear_bells(&mut self, now: u64) {
        if now < self.bells_due_ns {
            return;
        }
        self.bells_due_ns = now + self.parts.heartbeat_ns;
        self.rings = 0;
        for client in HostSet(std::mem::take(&mut self.rung)).iter().map(|bit| u64::from(bit) - 1) {
            let session = usize::try_from(client).ok().and_then(|at| self.sessions.get_mut(at)?.as_mut());
            let Some(session) = session else { continue };
            session.rings = 0;
            if std::mem::take(&mut session.muted) {
                let _ = self.waiter.add_edge(session.memory.doorbell.as_fd(), TOKEN_DOORBELL + client);
            }
        }
    }

    /// The client that registered the process in `slot`.
    pub(super) fn owner_of(&self, slot: u8) -> Option<u8> {
        self.owners.get(usize::from(slot))?.as_ref().map(|owner| owner.client)
    }

    fn monitor(
        &mut self,
        client: u8,
        host: u16,
        name: Option<Name>,
        wanted: Wanted,
    ) -> Result<Monitored, MonitorRefusal> {
        let now = raw_ns();
        let watcher = self.owners.iter().position(|owner| owner.is_some_and(|owner| owner.client == client));
        let watcher_slot = watcher.map_or(HOST_SLOT, |slot| u8::try_from(slot).expect("64 slots"));
        let target = Target { host, process: name };
        let granted =
            self.parts.detector.monitor(now, target, wanted, watcher_slot).map_err(MonitorRefusal::Detector)?;
        let Some(watch) = self.watches.add(client, host, name, watcher_slot) else {
            let _ = self.parts.detector.unmonitor(target, watcher_slot);
            return Err(MonitorRefusal::Full);
        };
        let mut monitored = Monitored {
            watch: watch.id,
            timeout_ns: granted.timeout_ns,
            pbsize: granted.pbsize,
            slot: HOST_SLOT,
            incarnation: 0,
            alive: None,
        };
        match name {
            None => {
                // One that is not up has perhaps never been: it may be a recording.
                let known = |peer: &fide_detector::PeerView| peer.state != PeerState::Unknown;
                if let Some(peer) = self.parts.detector.peer(host).filter(known) {
                    monitored.incarnation = peer.incarnation;
                    monitored.alive = Some(peer.state == PeerState::Up);
                    self.tell_newcomer(client, watch.id, host, HOST_SLOT, peer.incarnation, None);
                    let why = match peer.state {
                        PeerState::Dead => Some(Reason::HostSilent),
                        PeerState::Left => Some(Reason::Left),
                        PeerState::Unknown | PeerState::Up => None,
                    };
                    if let Some(why) = why {
                        self.tell_one(client, self.end_of(watch.id, host, HOST_SLOT, peer.incarnation, why), &[]);
                    }
                }
                // Whoever comes up later is told to it.
                self.watches.assign(host, HOST_SLOT, None);
            }
            Some(name) => {
                if let Some((slot, process)) = self.find(host, name) {
                    monitored.slot = slot;
                    monitored.incarnation = process.incarnation;
                    monitored.alive = Some(!process.state.is_final());
                    self.tell_newcomer(client, watch.id, host, slot, process.incarnation, Some(name));
                    self.watches.assign(host, slot, Some(name));
                    let told =
                        self.parts.kernel.as_ref().is_some_and(|k| k.receive.watch_client(host, slot, client, true));
                    // Too late for the receive program, or dead for long: from the agent then.
                    if (told || process.state.is_final())
                        && let Some(record) = self.verdict_of(host, slot)
                    {
                        // For this watch alone: another one may not have been told that the process was up.
                        self.tell_one(client, EventRecord { watch: watch.id, ..record }, &[]);
                    }
                }
            }
        }
        Ok(monitored)
    }

    fn tell_newcomer(&mut self, client: u8, watch: u32, host: u16, slot: u8, incarnation: u32, name: Option<Name>) {
        let record =
            EventRecord { kind: kind::UP, host, slot, incarnation, rx_ns: mono_ns(), ..EventRecord::default() };
        self.tell_watcher_up(client, watch, record, name);
    }

    /// The slot of a process by name: the live one, else the one that ended last.
    pub(super) fn find(&self, host: u16, name: Name) -> Option<(u8, fide_detector::ProcessView)> {
        (0..u8::try_from(MAX_PROCESSES).expect("64"))
            .filter_map(|slot| Some((slot, self.parts.detector.process(host, slot)?)))
            .filter(|(_, process)| process.name == name)
            .max_by_key(|(_, process)| (!process.state.is_final(), process.incarnation))
    }

    fn unmonitor(&mut self, client: u8, id: u32) -> bool {
        match self.watches.remove(client, id) {
            Some(watch) => {
                self.forget(watch);
                true
            }
            None => false,
        }
    }

    /// Nobody is to be told for a watch that is gone, unless another one is for the same.
    fn forget(&mut self, watch: super::watches::Watch) {
        let target = Target { host: watch.host, process: watch.name };
        // It was there: `monitor` granted it.
        let _ = self.parts.detector.unmonitor(target, watch.watcher_slot);
        let Some(name) = watch.name else {
            self.watches.assign(watch.host, HOST_SLOT, None);
            return;
        };
        if let Some((slot, _)) = self.find(watch.host, name) {
            let clients = self.watches.assign(watch.host, slot, Some(name));
            if clients >> watch.client & 1 == 0
                && let Some(kernel) = &self.parts.kernel
            {
                kernel.receive.watch_client(watch.host, slot, watch.client, false);
            }
        }
    }

    /// Takes a part of the watches of a client away, and with the last of them the session. None: there are more, for the next
    /// turn. Counts the heartbeats that this has cost.
    pub(super) fn end_session(&mut self, client: u8) -> Option<Option<Box<Memory>>> {
        let begun_ns = mono_ns();
        self.closing = self.forget_some(client).then_some(client);
        let closed = self.closing.is_none().then(|| self.close_session(client));
        let late_ns = mono_ns().saturating_sub(begun_ns);
        self.counters.session_end_skipped += late_ns / self.parts.heartbeat_ns.max(1);
        closed
    }

    /// Whether there may be more.
    fn forget_some(&mut self, client: u8) -> bool {
        for _ in 0..FORGOTTEN_PER_TURN {
            let Some(watch) = self.watches.pop_of(client) else { return false };
            self.forget(watch);
        }
        true
    }

    /// The session of a client without watches. Its ring stays in the kernel's map until the control thread has it taken out:
    /// that waits for the kernel's programs, as freeing the memory may. No program writes into it, as nobody watches for it.
    pub(super) fn close_session(&mut self, client: u8) -> Option<Box<Memory>> {
        // Its processes stay under the kernel's watch; they just do not beat any more.
        for owner in self.owners.iter_mut().flatten().filter(|owner| owner.client == client) {
            owner.beat_timeout_ns = 0;
            owner.client = u8::MAX;
        }
        let session = self.sessions[usize::from(client)].take()?;
        self.lanes.forget_client(client);
        self.owed.forget(client);
        let _ = self.waiter.remove(session.memory.doorbell.as_fd());
        Some(session.memory)
    }

    /// Programs that promised to beat and do not (X-Lane §5.1).
    pub(super) fn watch_beats(&mut self, now: u64) {
        for slot in 0..MAX_PROCESSES {
            let Some(owner) = &mut self.owners[slot] else { continue };
            // One that does not beat any more, as its session is over or it came back without, is not stalled for ever.
            let stalled = if owner.beat_timeout_ns == 0 {
                false
            } else {
                let Some(Some(session)) = self.sessions.get(usize::from(owner.client)) else { continue };
                let beat = session.memory.region.beat();
                if beat != owner.beat {
                    owner.beat = beat;
                    owner.beat_ns = now;
                }
                now.saturating_sub(owner.beat_ns) > owner.beat_timeout_ns
            };
            if stalled != owner.stalled && owner.may_change(now) {
                owner.stalled = stalled;
                let state = if stalled { ProcessState::Stalled } else { ProcessState::Alive };
                let slot = u8::try_from(slot).expect("64 slots");
                // A process that has ended is not stalled any more.
                let _ = self.parts.detector.process_changed(now, slot, state, mono_ns());
            }
        }
    }

    /// Piggybacks that clients left for the next heartbeat.
    pub(super) fn drain_outboxes(&mut self) {
        let mut buffer = [0; PIGGYBACK_MAX];
        for client in 0..self.sessions.len() {
            if self.sessions[client].as_ref().is_none_or(|session| session.memory.region.outbox_is_empty()) {
                continue;
            }
            // What finds no place in the detector's queues stays in the outbox, which is the client's to feel.
            let owned = (0u8..)
                .zip(self.owners.iter())
                .filter(|(_, owner)| owner.is_some_and(|owner| usize::from(owner.client) == client));
            let room = owned.map(|(slot, _)| self.parts.detector.piggyback_capacity(slot)).min();
            for _ in 0..room.unwrap_or(PIGGYBACKS_PER_TURN).min(PIGGYBACKS_PER_TURN) {
                let Some(session) = &mut self.sessions[client] else { break };
                match session.memory.region.pop_outbox(&mut buffer) {
                    Ok(Some((slot, bytes))) => {
                        let owned = self.owners.get(usize::from(slot)).copied().flatten();
                        let mine = owned.is_some_and(|owner| usize::from(owner.client) == client);
                        match mine.then(|| self.parts.detector.piggyback(slot, bytes)) {
                            // Watchers of this very host hear it now; the others with the heartbeat.
                            Some(Ok(pb_seq)) => self.tell_piggyback(self.parts.me, slot, pb_seq, bytes),
                            Some(Err(_)) | None => self.counters.piggybacks_declined += 1,
                        }
                    }
                    Ok(None) => break,
                    Err(_) => {
                        self.counters.outbox_broken += 1;
                        break;
                    }
                }
            }
        }
    }

    /// The planes carry longer packets than before, or only shorter ones: programs are told what remains for them.
    fn set_payload_max(&mut self, payload_max: usize) {
        let before = self.parts.detector.piggyback_grant();
        let granted = self.parts.detector.set_payload_max(payload_max);
        if granted == before {
            return;
        }
        for (slot, owner) in (0u8..).zip(*self.owners) {
            let Some(client) = owner.map(|owner| owner.client).filter(|client| *client != u8::MAX) else { continue };
            let ended = self.parts.detector.process(self.parts.me, slot).is_none_or(|process| process.state.is_final());
            if !ended {
                let record = EventRecord {
                    kind: kind::PBSIZE_CHANGED,
                    host: self.parts.me,
                    slot,
                    code: i32::try_from(granted).unwrap_or(i32::MAX),
                    rx_ns: mono_ns(),
                    ..EventRecord::default()
                };
                self.tell_one(client, record, &[]);
            }
        }
    }

    fn set_keys(&mut self, plain: &Keys) {
        let keys = self.parts.shape.keys(plain);
        (self.parts.plain, self.parts.keys) = (*plain, keys);
        if let Some(kernel) = &self.parts.kernel {
            // The new one is accepted before it is used anywhere.
            kernel.receive.set_key(1, keys.previous.as_ref().map(|key| &key.0));
            kernel.receive.set_key(0, Some(&keys.current.0));
            kernel.receive.set_plain_key(1, plain.previous.as_ref().map(|key| &key.0));
            kernel.receive.set_plain_key(0, Some(&plain.current.0));
        }
    }

    fn fill(&self, snapshot: &mut Snapshot) {
        let detector = &self.parts.detector;
        let now = raw_ns();
        snapshot.now_ns = now;
        snapshot.mono_ns = mono_ns();
        snapshot.started_ns = self.started_ns;
        snapshot.incarnation = detector.config().incarnation;
        snapshot.lease_until_ns = detector.lease_until_ns();
        snapshot.fenced = detector.is_fenced(now);
        let view = detector.view();
        snapshot.view = view.id;
        snapshot.view_members = view.members;
        for host in 1..=self.parts.members {
            let index = usize::from(host) - 1;
            snapshot.peers[index] = detector.peer(host);
            snapshot.jitter_ns[index] = self.seen[index].jitter_max_ns();
            snapshot.networks[index] = self.seen[index].network;
            self.read_gaps(host, &mut snapshot.gaps[index]);
            let parts = || self.parts.timeouts.parts(snapshot.jitter_ns[index], self.seen[index].network);
            snapshot.timeouts[index] = (!self.parts.timeouts.fixed).then(parts);
            for slot in 0..MAX_PROCESSES {
                snapshot.processes[index * MAX_PROCESSES + slot] =
                    detector.process(host, u8::try_from(slot).expect("64 slots"));
            }
        }
        for (place, lane) in snapshot.lanes.iter_mut().zip(self.lanes.views()) {
            *place = lane;
        }
        snapshot.counters = *detector.counters();
        snapshot.doubts = self.parts.clock.doubts;
        snapshot.counter = self.parts.clock.counter();
        snapshot.engine = self.counters;
        snapshot.kernel = self.parts.kernel.as_ref().map(|kernel| kernel.receive.stats());
        snapshot.own_lateness_max_ns = self.parts.own_lateness_max_ns;
    }
}
