// SPDX-License-Identifier: Apache-2.0
//! Telling clients what the detector says.

use fide_agent_api::event::{EVENT_MAX, EventRecord, kind};
use fide_agent_api::table::NameBytes;
use fide_bpf::{
    Told,
    intf::{ADMIT_DEAD, ADMIT_MONITOR, Admit},
};
use fide_detector::{Event, PeerState, Verdict};
use fide_sys::clock::mono_ns;
use fide_types::Reason;
use fide_wire::{HOST_SLOT, MAX_NAME, MAX_PROCESSES, Name, PIGGYBACK_MAX};

use super::Engine;
use crate::command::{Channel, Record, wake};

/// Verdicts that found a client's ring full, offered again in one turn.
const RETRIES_PER_TURN: usize = 16;

impl Engine {
    /// Tells what happened, oldest first, so many events at most. Whether there may be more.
    pub(super) fn tell_events(&mut self, most: usize) -> bool {
        for _ in 0..most {
            let Some(event) = self.parts.detector.poll_event() else { return false };
            let event = self.parts.clock.told(event);
            let now = mono_ns();
            if !matches!(event, Event::Piggyback { .. }) {
                self.parts.exchange.note(Record { now_ns: now, event });
            }
            self.tell(now, event);
        }
        true
    }

    fn tell(&mut self, now: u64, event: Event) {
        match event {
            Event::Up { host, slot, incarnation, name } => self.tell_up(now, host, slot, incarnation, name),
            Event::Verdict(verdict) => self.tell_verdict(now, &verdict),
            Event::Piggyback { host, slot, incarnation, pb_seq, seq: _, rx_ns, len, buffer: _ } => {
                let mut bytes = [0; PIGGYBACK_MAX];
                let len = usize::from(len).min(PIGGYBACK_MAX);
                bytes[..len].copy_from_slice(&self.parts.detector.piggyback_bytes(&event)[..len]);
                let record = EventRecord {
                    kind: kind::PIGGYBACK,
                    host,
                    slot,
                    incarnation,
                    seq: u64::from(pb_seq),
                    rx_ns,
                    ..EventRecord::default()
                };
                self.tell_each(self.watches.clients(host, slot), record, &bytes[..len]);
                if let Some(kernel) = &self.parts.kernel {
                    kernel.receive.watch_piggyback(host, slot, pb_seq);
                }
            }
            Event::PathLost { host, plane } => self.tell_path(now, kind::PATH_LOST, host, plane),
            Event::PathRestored { host, plane } => self.tell_path(now, kind::PATH_RESTORED, host, plane),
            Event::ObserverStalled { gap_ns, withheld: _ } => {
                let code = i32::try_from(gap_ns / 1000).unwrap_or(i32::MAX);
                self.tell_all(EventRecord { code, ..self.about_me(now, kind::OBSERVER_STALLED) });
            }
            Event::Fenced { .. } => self.tell_fence(now, true),
            Event::Unfenced { .. } => self.tell_fence(now, false),
            Event::TimeoutChanged { host, timeout_ns } => self.tell_timeout(now, host, timeout_ns),
            Event::MonitorRequest { host, watcher_slot, slot, timeout_us: _, pbsize } => {
                let record = EventRecord {
                    kind: kind::MONITOR_REQ,
                    host,
                    slot,
                    code: i32::from(pbsize),
                    rx_ns: now,
                    ..EventRecord::default()
                };
                if let Some(client) = self.owner_of(slot) {
                    // A watcher that joined nothing itself has no name of its own.
                    let watcher = self.parts.detector.process(host, watcher_slot).map(|process| process.name);
                    let (text, len) = self.full_name(host, watcher);
                    self.tell_one(client, record, &text[..len]);
                }
            }
            // Before the verdicts that follow from it: whoever acts on one has a newer token than the dead.
            Event::ViewChanged { .. } => self.publish_view(),
            // The control thread acts on the state, whatever becomes of the record.
            Event::Excluded { .. } | Event::PutBack { .. } => {}
        }
    }

    /// A local process' message, to those who watch it from this host.
    pub(super) fn tell_piggyback(&mut self, host: u16, slot: u8, pb_seq: u32, bytes: &[u8]) {
        let clients = self.watches.clients(host, slot);
        if clients == 0 {
            return;
        }
        let record = EventRecord {
            kind: kind::PIGGYBACK,
            host,
            slot,
            incarnation: self.parts.detector.process(host, slot).map_or(0, |process| process.incarnation),
            seq: u64::from(pb_seq),
            rx_ns: mono_ns(),
            ..EventRecord::default()
        };
        self.tell_each(clients, record, bytes);
    }

    fn about_me(&self, now: u64, kind: u32) -> EventRecord {
        EventRecord { rx_ns: now, ..EventRecord::of_host(kind, self.parts.me) }
    }

    fn tell_up(&mut self, now: u64, host: u16, slot: u8, incarnation: u32, name: Name) {
        let subject = (slot != HOST_SLOT).then_some(name);
        if slot == HOST_SLOT {
            self.admit(host, false);
            self.publish_host(host, now);
        } else {
            self.publish_process(host, slot, now);
        }
        // Nobody is told of the former one's end after this: whom it found with a full ring has lost it. With a host its processes are over.
        let mut late = self.take_owed(host, slot);
        if slot == HOST_SLOT {
            late |=
                (0..u8::try_from(MAX_PROCESSES).expect("64")).fold(0, |late, slot| late | self.take_owed(host, slot));
        }
        each(late, |client| self.has_lost(client));
        let record = EventRecord { kind: kind::UP, host, slot, incarnation, rx_ns: now, ..EventRecord::default() };
        // The watches' list does not change meanwhile.
        for position in 0..self.watches.len() {
            let watch = self.watches.at(position);
            if watch.host == host && watch.name == subject {
                self.tell_watcher_up(watch.client, watch.id, record, subject);
            }
        }
        let clients = self.watches.assign(host, slot, subject);
        if slot != HOST_SLOT
            && let Some(kernel) = &self.parts.kernel
        {
            // From here on the receive program may tell of its death by itself.
            kernel.receive.begin_watch(host, slot, incarnation, clients, 0);
        }
    }

    /// `up` carries the watch and the whole name, so that the client knows what later records are about.
    pub(super) fn tell_watcher_up(&mut self, client: u8, watch: u32, record: EventRecord, name: Option<Name>) {
        let (text, len) = self.full_name(record.host, name);
        self.tell_one(client, EventRecord { watch, ..record }, &text[..len]);
    }

    fn tell_verdict(&mut self, now: u64, verdict: &Verdict) {
        let Verdict { host, slot, .. } = *verdict;
        let record = verdict_record(verdict);
        if slot == HOST_SLOT {
            self.admit(host, true);
            self.publish_host(host, now);
            self.tell_end(host, slot, self.watches.clients(host, slot), record);
            return;
        }
        self.publish_process(host, slot, now);
        let mut bytes = [0; EVENT_MAX];
        let Ok(encoded) = record.encode(&[], &mut bytes) else { return };
        if verdict.reason.is_final()
            && let Some(kernel) = &mut self.parts.kernel
        {
            match kernel.receive.tell_watch(host, slot, encoded) {
                Told::Yes | Told::Before => self.counters.events_told += 1,
                // `retry_undelivered` comes by in this very turn.
                Told::Full | Told::Nobody => {}
            }
            return;
        }
        let clients = self.watches.clients(host, slot);
        if verdict.reason.is_final() {
            self.tell_end(host, slot, clients, record);
        } else {
            self.tell_each(clients, record, &[]);
        }
    }

    /// An end is not lost in a full ring: it is offered again ([`Engine::retry_undelivered`]).
    fn tell_end(&mut self, host: u16, slot: u8, clients: u64, record: EventRecord) {
        let mut owed = 0;
        each(clients, |client| {
            if !self.offer(client, record, &[]) {
                owed |= 1 << client;
            }
        });
        self.owed.add(host, slot, owed);
    }

    /// Tells the receive program which incarnation of a host to hear.
    pub(super) fn admit(&self, host: u16, dead: bool) {
        let (Some(kernel), Some(peer)) = (&self.parts.kernel, self.parts.detector.peer(host)) else { return };
        let mut flags = if self.parts.monitors.contains(host) { ADMIT_MONITOR } else { 0 };
        if dead {
            flags |= ADMIT_DEAD;
        }
        kernel.receive.admit(host, Admit { incarnation: peer.incarnation, flags, timeout_ns: peer.timeout_ns });
    }

    fn tell_path(&mut self, now: u64, kind: u32, host: u16, plane: u8) {
        let record = EventRecord { plane, rx_ns: now, ..EventRecord::of_host(kind, host) };
        let clients = (0..self.watches.len())
            .map(|i| self.watches.at(i))
            .filter(|watch| watch.host == host)
            .fold(0, |bits, watch| bits | 1u64 << watch.client);
        self.tell_each(clients, record, &[]);
    }

    fn tell_fence(&mut self, now: u64, fenced: bool) {
        self.parts.table.set_fenced(fenced);
        self.tell_all(self.about_me(now, if fenced { kind::FENCED } else { kind::UNFENCED }));
    }

    fn tell_timeout(&mut self, now: u64, host: u16, timeout_ns: u64) {
        if let Some(kernel) = &self.parts.kernel {
            let admitted = kernel.receive.admitted(host);
            kernel.receive.admit(host, Admit { timeout_ns, ..admitted });
        }
        let code = i32::try_from(timeout_ns / 1000).unwrap_or(i32::MAX);
        for position in 0..self.watches.len() {
            let watch = self.watches.at(position);
            if watch.host == host {
                let record = EventRecord {
                    watch: watch.id,
                    code,
                    rx_ns: now,
                    ..EventRecord::of_host(kind::TIMEOUT_CHANGED, host)
                };
                self.tell_one(watch.client, record, &[]);
            }
        }
    }

    pub(super) fn tell_all(&mut self, record: EventRecord) {
        let open = (0u8..).zip(self.sessions.iter()).filter(|(_, session)| session.is_some());
        let clients = open.fold(0, |bits, (client, _)| bits | 1u64 << client);
        self.tell_each(clients, record, &[]);
    }

    pub(super) fn tell_each(&mut self, clients: u64, record: EventRecord, data: &[u8]) {
        each(clients, |client| {
            self.tell_one(client, record, data);
        });
    }

    /// Puts one record into one client's ring. A ring that is full loses it, and the client is told
    /// how many; ends are offered again.
    pub(super) fn tell_one(&mut self, client: u8, record: EventRecord, data: &[u8]) -> bool {
        let told = self.offer(client, record, data);
        if !told {
            self.has_lost(client);
        }
        told
    }

    /// As [`Engine::tell_one`]; a ring that is full has lost nothing yet.
    fn offer(&mut self, client: u8, record: EventRecord, data: &[u8]) -> bool {
        let mut bytes = [0; EVENT_MAX];
        // A process whose client has gone belongs to nobody who could be told.
        let session = self.sessions.get_mut(usize::from(client)).and_then(Option::as_mut);
        let (Some(session), Ok(encoded)) = (session, record.encode(data, &mut bytes)) else { return false };
        let told = match (&session.memory.channel, &mut self.parts.kernel) {
            (Channel::Ring, Some(kernel)) => kernel.receive.tell_client(client, encoded) == Told::Yes,
            (Channel::Inbox(waker), _) => {
                let pushed = session.memory.region.push_inbox(encoded).is_ok();
                wake(waker);
                pushed
            }
            (Channel::Ring, None) => false,
        };
        self.counters.events_told += u64::from(told);
        told
    }

    fn has_lost(&mut self, client: u8) {
        let session = self.sessions.get_mut(usize::from(client)).and_then(Option::as_mut);
        let Some(session) = session else { return };
        session.lost += 1;
        session.memory.region.set_lost(session.lost);
        self.counters.events_undelivered += 1;
    }

    /// What is owed is told by nobody after this agent: it counts as lost.
    pub(super) fn lose_what_is_owed(&mut self) {
        for (host, slot) in self.subjects() {
            each(self.owed.take(host, slot), |client| self.has_lost(client));
        }
    }

    /// Every host, and every place of a process.
    fn subjects(&self) -> impl Iterator<Item = (u16, u8)> + use<> {
        let slots = || (0..u8::try_from(MAX_PROCESSES).expect("64")).chain([HOST_SLOT]);
        (1..=self.parts.members).flat_map(move |host| slots().map(move |slot| (host, slot)))
    }

    /// Ends that found a ring full: once more, until the client has made room.
    pub(super) fn retry_undelivered(&mut self) {
        let full = self.parts.kernel.as_ref().map_or(0, |kernel| kernel.receive.stats().client_ring_full);
        let owes = self.owed.take_any();
        if full == self.ring_full_seen && !owes {
            return;
        }
        // A client whose ring is still full is asked once, and holds up no other.
        let (mut told, mut closed, mut failed) = (0, 0u64, false);
        for (host, slot) in self.subjects() {
            if told == RETRIES_PER_TURN {
                self.owed.may_be_more();
                failed = true;
                break;
            }
            let left = self.take_owed(host, slot);
            if left == 0 {
                continue;
            }
            let mut owed = 0;
            match self.verdict_of(host, slot) {
                Some(record) => each(left, |client| {
                    let asked = told < RETRIES_PER_TURN && closed >> client & 1 == 0;
                    match asked && self.offer(client, record, &[]) {
                        true => told += 1,
                        false => {
                            closed |= u64::from(asked) << client;
                            owed |= 1 << client;
                        }
                    }
                }),
                // The kernel's program was first: the notice by which it ended is still to be read here.
                None if slot != HOST_SLOT && self.parts.detector.process(host, slot).is_some() => owed = left,
                // Nobody knows any more what became of it.
                None => each(left, |client| self.has_lost(client)),
            }
            match &self.parts.kernel {
                // There it outlives this agent.
                Some(kernel) if slot != HOST_SLOT => kernel.receive.mark_undelivered(host, slot, owed),
                _ => self.owed.add(host, slot, owed),
            }
            failed |= owed != 0;
        }
        if !failed {
            self.ring_full_seen = full;
        }
    }

    /// Who is owed an end, here and by the kernel's program; nobody is from then on.
    fn take_owed(&mut self, host: u16, slot: u8) -> u64 {
        let owed = self.owed.take(host, slot);
        match &self.parts.kernel {
            Some(kernel) if slot != HOST_SLOT => owed | kernel.receive.take_undelivered(host, slot),
            _ => owed,
        }
    }

    /// The verdict of a process that has ended, or of a host, as a client is told it.
    pub(super) fn verdict_of(&self, host: u16, slot: u8) -> Option<EventRecord> {
        if slot == HOST_SLOT {
            let peer = self.parts.detector.peer(host)?;
            let why = match peer.state {
                PeerState::Dead => Reason::HostSilent,
                PeerState::Left => Reason::Left,
                PeerState::Unknown | PeerState::Up => return None,
            };
            let of_host = EventRecord::of_host(kind::VERDICT, host);
            return Some(EventRecord { incarnation: peer.incarnation, rx_ns: mono_ns(), ..of_host }.with_reason(why));
        }
        let process = self.parts.detector.process(host, slot)?;
        let why = process.state.reason().filter(|why| why.is_final())?;
        let record = EventRecord {
            kind: kind::VERDICT,
            host,
            slot,
            incarnation: process.incarnation,
            rx_ns: mono_ns(),
            at_ns: process.at_ns,
            ..EventRecord::default()
        };
        Some(record.with_reason(why))
    }

    /// "name@host", or "@host", and its length.
    fn full_name(&self, host: u16, name: Option<Name>) -> ([u8; 2 * MAX_NAME + 1], usize) {
        let mut text = [0u8; 2 * MAX_NAME + 1];
        let mut len = 0;
        let host_name = self.host_name(host);
        let host_name = &host_name[..host_name.iter().position(|byte| *byte == 0).unwrap_or(MAX_NAME)];
        for part in [name.as_ref().map_or(&b""[..], |name| name.as_bytes()), b"@", host_name] {
            text[len..len + part.len()].copy_from_slice(part);
            len += part.len();
        }
        (text, len)
    }

    pub(super) fn host_name(&self, host: u16) -> NameBytes {
        self.parts.names[usize::from(host) - 1]
    }
}

/// Each client whose bit is set.
fn each(mut clients: u64, mut f: impl FnMut(u8)) {
    while clients != 0 {
        let client = u8::try_from(clients.trailing_zeros()).expect("below 64");
        clients &= clients - 1;
        f(client);
    }
}

fn verdict_record(verdict: &Verdict) -> EventRecord {
    let record = EventRecord {
        kind: kind::VERDICT,
        host: verdict.host,
        slot: verdict.slot,
        incarnation: verdict.incarnation,
        seq: verdict.evidence.last_seq,
        rx_ns: verdict.evidence.decided_ns,
        at_ns: verdict.evidence.at_ns,
        ..EventRecord::default()
    };
    record.with_reason(verdict.reason)
}
