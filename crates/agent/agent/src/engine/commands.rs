// SPDX-License-Identifier: Apache-2.0
//! Commands of the control thread.

use fide_agent_api::event::{EventRecord, kind};
use fide_detector::{PeerState, PeerView, Target, Wanted};
use fide_types::{HOST_SLOT, HostId, MAX_PROCESSES, Name, ProcessRef, ProcessState, Reason};
use fide_wire::Keys;

use super::{COMMANDS_PER_TURN, Engine, FORGOTTEN_PER_TURN, formers::end_of, process_slots};
use crate::{
    clock::{Clocks, Now},
    command::{Change, Command, JoinedProcess, Memory, MonitorRefusal, Monitored, Reply},
    frozen::Watch,
    snapshot::Snapshot,
};

impl Engine {
    /// Carries out the control thread's commands.
    pub(super) fn commands(&mut self, clocks: &mut impl Clocks) {
        for _ in 0..COMMANDS_PER_TURN {
            // A command that the turn before began comes first: the control thread waits for it.
            let next = self.closing.map(|client| Command::CloseSession { client });
            let Some(command) = next.or_else(|| self.exchange.take_command()) else { return };
            let reply = match command {
                Command::CloseSession { client } => {
                    let Some(closed) = self.end_session_timed(clocks, client) else { break };
                    Reply::Closed(closed)
                }
                command => self.command(clocks.now(), command),
            };
            self.exchange.answer(reply);
        }
        self.busy_turn = true;
    }

    pub(super) fn command(&mut self, now: Now, command: Command) -> Reply {
        match command {
            Command::OpenSession { client, memory } => match self.add_session(client, memory, 0) {
                None => Reply::Done,
                // There was a session in its place: the control thread frees its memory.
                before => Reply::Closed(before),
            },
            // Closed in parts, one in each turn: `end_session`.
            Command::CloseSession { .. } => Reply::Done,
            Command::Join { client, name, beat_timeout_ns } => self.join(now, client, name, beat_timeout_ns),
            Command::Adopt { slot, client, beat_timeout_ns } => {
                Reply::Adopted(self.adopt(now, slot, client, beat_timeout_ns))
            }
            Command::Monitor { client, host, name, wanted } => {
                Reply::Monitored(self.monitor(now, client, host, name, wanted))
            }
            Command::Unmonitor { client, watch } => Reply::Unmonitored(self.unmonitor(client, watch)),
            Command::Snapshot(mut snapshot) => {
                self.fill(now, &mut snapshot);
                Reply::Snapshot(snapshot)
            }
            Command::OpenLane { handle, lane } => Reply::Lane(self.open_lane(handle, lane)),
            Command::AimLane { handle, tree, sender } => Reply::Sender(self.lanes.aim(handle, tree, sender)),
            Command::CloseLane { handle } => Reply::Lane(self.close_lane(handle)),
            Command::Standings => {
                let is_up = |host: &HostId| self.detector.peer(*host).is_some_and(|peer| peer.state == PeerState::Up);
                let up = self.facts.hosts().filter(is_up).collect();
                Reply::Standings { up, hold_us_up: self.detector.held_up_by() }
            }
            Command::Deliver { clients, record, data } => {
                self.deliver_each(clients, record, &data);
                // The thread that allocated it frees it.
                Reply::Delivered(data)
            }
            Command::Restart { incarnation } => self.restart(now, incarnation),
            Command::Freeze => Reply::Frozen(Box::new(self.freeze(now))),
            command => {
                self.quiet_command(now, command);
                Reply::Done
            }
        }
    }

    /// Carries out commands whose reply says no more than that.
    fn quiet_command(&mut self, now: Now, command: Command) {
        match command {
            Command::Changed { slot, cookie, change: Change::Exited(ended), at_ns } => {
                self.process_exited(now, slot, cookie, ended, at_ns);
            }
            Command::Changed { slot, cookie, change: Change::Left, at_ns } => {
                self.process_changed(now, slot, cookie, ProcessState::Left, at_ns);
            }
            Command::Former { client, watch, slot, incarnation, timeout_ns } => {
                self.note_former(client, watch, slot, incarnation, timeout_ns);
            }
            Command::SetKeys(keys) => self.set_keys(&keys),
            Command::Aim { plane, group } => {
                if let Some(sender) = self.ports.senders.get_mut(usize::from(plane)) {
                    sender.aim(group);
                }
            }
            Command::ShareLane { handle, clients } => self.share_lane(handle, clients),
            Command::ChangeLane { handle, terms, type_of_service } => {
                self.lanes.change(now, handle, terms, type_of_service);
            }
            Command::Listen { client, service, on } => self.lanes.listen(client, service, on),
            Command::SetNetwork { host, network } => self.set_network(now, host, network),
            Command::SetPayloadMax(payload_max) => self.set_payload_max(now, payload_max),
            Command::Thaw => self.thaw(),
            Command::Leave => self.detector.leave(now.raw_ns),
            Command::Stop => self.stopping = true,
            Command::Fault(fault) => crate::fault::happen(fault),
            // Answered by `command`.
            Command::OpenSession { .. }
            | Command::CloseSession { .. }
            | Command::Join { .. }
            | Command::Adopt { .. }
            | Command::Monitor { .. }
            | Command::Unmonitor { .. }
            | Command::Snapshot(_)
            | Command::OpenLane { .. }
            | Command::AimLane { .. }
            | Command::CloseLane { .. }
            | Command::Standings
            | Command::Deliver { .. }
            | Command::Restart { .. }
            | Command::Freeze => {}
        }
    }

    /// Begins again as another incarnation.
    fn restart(&mut self, now: Now, incarnation: u32) -> Reply {
        if let Err(why) = self.detector.restart(now.raw_ns, incarnation) {
            return Reply::NotBegun(why);
        }
        self.publish_exclusion();
        self.table.set_incarnation(incarnation);
        self.publish_view();
        self.publish_me(now);
        let of_host = EventRecord::of_host(kind::REJOINED, self.facts.me);
        self.deliver_all(EventRecord { incarnation, rx_ns: now.mono_ns, ..of_host });
        Reply::Done
    }

    fn join(&mut self, now: Now, client: u8, name: Name, beat_timeout_ns: u64) -> Reply {
        let joined = self.detector.join(now.raw_ns, name);
        Reply::Joined(joined.map(|joined| {
            let beat = self.sessions.beat(client).unwrap_or(0);
            let cookie = self.owners.register(joined.slot, client, beat_timeout_ns, beat, now.raw_ns);
            JoinedProcess { slot: joined.slot, incarnation: joined.incarnation, cookie, pbsize: self.pbsize() }
        }))
    }

    fn adopt(&mut self, now: Now, slot: u8, client: u8, beat_timeout_ns: u64) -> Option<JoinedProcess> {
        let process = self.detector.process(self.facts.me, slot).filter(|process| !process.state.is_final())?;
        let beat = self.sessions.beat(client)?;
        let cookie = self.owners.adopt(slot, client, beat_timeout_ns, beat, now.raw_ns)?;
        Some(JoinedProcess { slot, incarnation: process.incarnation, cookie, pbsize: self.pbsize() })
    }

    /// Bytes of the largest piggyback.
    fn pbsize(&self) -> u16 {
        u16::try_from(self.detector.piggyback_grant()).unwrap_or(u16::MAX)
    }

    /// A client has rung. A client that does so too often is muted until the next period: its messages go
    /// with the heartbeat, and programs cannot make the loop turn as often as they like.
    pub(super) fn rung(&mut self, client: u8) {
        let Some(session) = self.sessions.get(client) else { return };
        if self.bells.rung(client) {
            self.ports.mute(&session.memory);
            self.counters.bells_muted += 1;
        }
        self.detector.hurry();
    }

    fn monitor(
        &mut self,
        now: Now,
        client: u8,
        host: HostId,
        name: Option<Name>,
        wanted: Wanted,
    ) -> Result<Monitored, MonitorRefusal> {
        let watcher_slot = self.owners.slots_of(client).next().unwrap_or(HOST_SLOT);
        let target = Target { host, process: name };
        let granted = self.detector.monitor(target, wanted, watcher_slot).map_err(MonitorRefusal::Detector)?;
        let Some(watch) = self.watches.add(client, host, name, watcher_slot) else {
            let _ = self.detector.unmonitor(target, watcher_slot);
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
            None => self.begin_host_watch(now, &watch, &mut monitored),
            Some(name) => self.begin_process_watch(now, &watch, name, &mut monitored),
        }
        Ok(monitored)
    }

    fn begin_host_watch(&mut self, now: Now, watch: &Watch, monitored: &mut Monitored) {
        let subject = ProcessRef::of_host(watch.host);
        // A host in this state may never have been up: its packets may be a recording.
        let known = |peer: &PeerView| peer.state != PeerState::Unknown;
        if let Some(peer) = self.detector.peer(watch.host).filter(known) {
            monitored.incarnation = peer.incarnation;
            monitored.alive = Some(peer.state == PeerState::Up);
            self.deliver_newcomer(now, watch, subject, peer.incarnation);
            let why = match peer.state {
                PeerState::Dead => Some(Reason::HostSilent),
                PeerState::Left => Some(Reason::Left),
                PeerState::Unknown | PeerState::Up => None,
            };
            if let Some(why) = why {
                self.deliver(watch.client, end_of(now, watch.id, subject, peer.incarnation, why), &[]);
            }
        }
        // If the host comes up later, this watch is notified.
        self.watches.assign(subject, None);
    }

    fn begin_process_watch(&mut self, now: Now, watch: &Watch, name: Name, monitored: &mut Monitored) {
        let Some((slot, process)) = self.find(watch.host, name) else { return };
        let subject = ProcessRef::new(watch.host, slot);
        monitored.slot = slot;
        monitored.incarnation = process.incarnation;
        monitored.alive = Some(!process.state.is_final());
        self.deliver_newcomer(now, watch, subject, process.incarnation);
        self.watches.assign(subject, Some(name));
        let kernel = self.ports.kernel.as_ref();
        let was_delivered = kernel
            .is_some_and(|kernel| kernel.receive.watch_client(ProcessRef::new(watch.host, slot), watch.client, true));
        // The receive program was set too late, or the process has long been dead: the agent delivers its
        // end.
        if (was_delivered || process.state.is_final())
            && let Some(record) = self.verdict_of(now, subject)
        {
            // For this watch alone: another watch may not have been notified that the process was up.
            self.deliver(watch.client, EventRecord { watch: watch.id, ..record }, &[]);
        }
    }

    fn deliver_newcomer(&mut self, now: Now, watch: &Watch, subject: ProcessRef, incarnation: u32) {
        let ProcessRef { host, slot } = subject;
        let record =
            EventRecord { kind: kind::UP, host, slot, incarnation, rx_ns: now.mono_ns, ..EventRecord::default() };
        self.deliver_watcher_up(watch.client, watch.id, record, watch.name);
    }

    fn unmonitor(&mut self, client: u8, id: u32) -> bool {
        let Some(watch) = self.watches.remove(client, id) else { return false };
        self.forget(&watch);
        true
    }

    /// Removes a watch: its client is not notified any more, unless it has another watch on the same
    /// subject.
    fn forget(&mut self, watch: &Watch) {
        let target = Target { host: watch.host, process: watch.name };
        // The watch existed, so `monitor` had granted it.
        let _ = self.detector.unmonitor(target, watch.watcher_slot);
        let Some(name) = watch.name else {
            self.watches.assign(ProcessRef::of_host(watch.host), None);
            return;
        };
        if let Some((slot, _)) = self.find(watch.host, name) {
            let clients = self.watches.assign(ProcessRef::new(watch.host, slot), Some(name));
            if !clients.contains(watch.client)
                && let Some(kernel) = &self.ports.kernel
            {
                kernel.receive.watch_client(ProcessRef::new(watch.host, slot), watch.client, false);
            }
        }
    }

    /// Ends a part of a session, and counts the heartbeats that this took.
    fn end_session_timed(&mut self, clocks: &mut impl Clocks, client: u8) -> Option<Option<Box<Memory>>> {
        let begun_ns = clocks.now().mono_ns;
        let closed = self.end_session(client);
        let took_ns = clocks.now().mono_ns.saturating_sub(begun_ns);
        self.counters.session_end_skipped += took_ns / self.facts.heartbeat_ns.max(1);
        closed
    }

    /// Removes a part of a client's watches, and with the last of them the session. `None`: more are left
    /// for the next turn.
    pub(super) fn end_session(&mut self, client: u8) -> Option<Option<Box<Memory>>> {
        self.closing = self.forget_some(client).then_some(client);
        if self.closing.is_some() { None } else { Some(self.close_session(client)) }
    }

    /// Removes some of a client's watches. Whether there may be more.
    fn forget_some(&mut self, client: u8) -> bool {
        for _ in 0..FORGOTTEN_PER_TURN {
            let Some(watch) = self.watches.pop_of(client) else { return false };
            self.forget(&watch);
        }
        true
    }

    /// Closes the session of a client without watches. Its ring stays in the kernel's map until the control
    /// thread has it removed, because both that and freeing the memory may wait for the kernel's programs.
    /// No program writes into the ring, because no watch is left.
    pub(super) fn close_session(&mut self, client: u8) -> Option<Box<Memory>> {
        self.owners.orphan(client);
        let memory = self.sessions.close(client)?;
        self.lanes.forget_client(client);
        self.undelivered.forget(client);
        self.bells.forget(client);
        self.ports.mute(&memory);
        Some(memory)
    }

    /// Announces programs that promised to beat and do not (X-Lane §5.1).
    pub(super) fn watch_beats(&mut self, now: Now) {
        for slot in process_slots() {
            let state = match self.owners.beat(slot, now.raw_ns, |client| self.sessions.beat(client)) {
                None => continue,
                Some(true) => ProcessState::Stalled,
                Some(false) => ProcessState::Alive,
            };
            // A process that has ended is not stalled any more.
            let _ = self.detector.process_changed(now.raw_ns, slot, state, now.mono_ns);
        }
    }

    /// The planes carry longer or shorter packets than before: programs are notified of the room that
    /// remains for theirs.
    fn set_payload_max(&mut self, now: Now, payload_max: usize) {
        let before = self.detector.piggyback_grant();
        let granted = self.detector.set_payload_max(payload_max);
        if granted == before {
            return;
        }
        let host = self.facts.me;
        for slot in process_slots() {
            let Some(client) = self.owners.client_of(slot) else { continue };
            let ended = self.detector.process(host, slot).is_none_or(|process| process.state.is_final());
            if !ended {
                let record = EventRecord {
                    kind: kind::PBSIZE_CHANGED,
                    host,
                    slot,
                    code: i32::try_from(granted).unwrap_or(i32::MAX),
                    rx_ns: now.mono_ns,
                    ..EventRecord::default()
                };
                self.deliver(client, record, &[]);
            }
        }
    }

    fn set_keys(&mut self, plain: &Keys) {
        let keys = self.facts.shape.keys(plain);
        (self.plain, self.keys) = (*plain, keys);
        if let Some(kernel) = &self.ports.kernel {
            // The new key is accepted before it is used anywhere.
            kernel.receive.set_key(1, keys.previous.as_ref().map(|key| &key.0));
            kernel.receive.set_key(0, Some(&keys.current.0));
            kernel.receive.set_plain_key(1, plain.previous.as_ref().map(|key| &key.0));
            kernel.receive.set_plain_key(0, Some(&plain.current.0));
        }
    }

    fn fill(&self, now: Now, snapshot: &mut Snapshot) {
        let detector = &self.detector;
        snapshot.now_ns = now.raw_ns;
        snapshot.mono_ns = now.mono_ns;
        snapshot.started_ns = self.started_ns;
        snapshot.incarnation = detector.config().incarnation;
        snapshot.lease_until_ns = detector.lease_until_ns();
        snapshot.fenced = detector.is_fenced(now.raw_ns);
        let view = detector.view();
        snapshot.view = view.id;
        snapshot.view_members = view.members;
        for (index, host) in self.facts.hosts().enumerate() {
            snapshot.peers[index] = detector.peer(host);
            (snapshot.jitter_ns[index], snapshot.networks[index], snapshot.timeouts[index]) = self.timing.of(host);
            // Where the receive program takes the packets, it counts.
            match self.ports.kernel.as_ref().filter(|kernel| kernel.xdp) {
                Some(kernel) => kernel.receive.read_gaps(host, &mut snapshot.gaps[index]),
                None => snapshot.gaps[index] = self.gaps.read(now, host),
            }
            for slot in process_slots() {
                snapshot.processes[index * MAX_PROCESSES + usize::from(slot)] = detector.process(host, slot);
            }
        }
        for (place, lane) in snapshot.lanes.iter_mut().zip(self.lanes.views()) {
            *place = lane;
        }
        snapshot.counters = *detector.counters();
        snapshot.doubts = self.clock.doubts;
        snapshot.counter = self.clock.counter();
        snapshot.engine = self.counters;
        snapshot.kernel = self.ports.kernel.as_ref().map(|kernel| kernel.receive.stats());
        snapshot.own_lateness_max_ns = self.timing.own_max_ns();
    }
}
