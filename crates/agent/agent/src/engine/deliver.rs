// SPDX-License-Identifier: Apache-2.0
//! The detector's events, delivered to clients.

use fide_agent_api::event::{EVENT_MAX, EventRecord, kind};
use fide_agent_api::table::NameBytes;
use fide_bpf::{
    Notified,
    intf::{ADMIT_DEAD, ADMIT_MONITOR, Admit},
};
use fide_detector::{Event, PeerState, Verdict};
use fide_types::{ClientSet, HostId, MAX_NAME, Name, PIGGYBACK_MAX, ProcessRef, Reason, host_index};

use super::{Engine, process_slots};
use crate::{
    clock::Now,
    command::{Channel, Record, wake},
};

/// Verdicts that found a client's ring full, offered again in one turn.
const RETRIES_PER_TURN: usize = 16;

impl Engine {
    /// Delivers events, oldest first, at most `most`. Whether there may be more.
    pub(super) fn deliver_events(&mut self, now: Now, most: usize) -> bool {
        for _ in 0..most {
            let Some(event) = self.detector.poll_event() else { return false };
            let event = self.clock.on_monotonic(event);
            if !matches!(event, Event::Piggyback { .. }) {
                self.exchange.note(Record { now_ns: now.mono_ns, event });
            }
            self.deliver_event(now, event);
        }
        true
    }

    fn deliver_event(&mut self, now: Now, event: Event) {
        match event {
            Event::Up { host, slot, incarnation, name } => {
                self.deliver_up(now, ProcessRef::new(host, slot), incarnation, name);
            }
            Event::Verdict(verdict) => self.deliver_verdict(now, &verdict),
            Event::Piggyback { host, slot, incarnation, pb_seq, seq: _, rx_ns, len, buffer: _ } => {
                let mut bytes = [0; PIGGYBACK_MAX];
                let len = usize::from(len).min(PIGGYBACK_MAX);
                bytes[..len].copy_from_slice(&self.detector.piggyback_bytes(&event)[..len]);
                let record = EventRecord {
                    kind: kind::PIGGYBACK,
                    host,
                    slot,
                    incarnation,
                    seq: u64::from(pb_seq),
                    rx_ns,
                    ..EventRecord::default()
                };
                self.deliver_each(self.watches.clients(ProcessRef::new(host, slot)), record, &bytes[..len]);
                if let Some(kernel) = &self.ports.kernel {
                    kernel.receive.watch_piggyback(ProcessRef::new(host, slot), pb_seq);
                }
            }
            Event::PathLost { host, plane } => self.deliver_path(now, kind::PATH_LOST, host, plane),
            Event::PathRestored { host, plane } => self.deliver_path(now, kind::PATH_RESTORED, host, plane),
            Event::ObserverStalled { gap_ns, withheld: _ } => {
                let code = i32::try_from(gap_ns / 1000).unwrap_or(i32::MAX);
                self.deliver_all(EventRecord { code, ..self.about_me(now, kind::OBSERVER_STALLED) });
            }
            Event::Fenced { .. } => self.deliver_fence(now, true),
            Event::Unfenced { .. } => self.deliver_fence(now, false),
            Event::TimeoutChanged { host, timeout_ns } => self.deliver_timeout(now, host, timeout_ns),
            Event::MonitorRequest { host, watcher_slot, slot, timeout_us: _, pbsize } => {
                let record = EventRecord {
                    kind: kind::MONITOR_REQ,
                    host,
                    slot,
                    code: i32::from(pbsize),
                    rx_ns: now.mono_ns,
                    ..EventRecord::default()
                };
                if let Some(client) = self.owners.client_of(slot) {
                    // A watcher that joined nothing itself has no name of its own.
                    let watcher = self.detector.process(host, watcher_slot).map(|process| process.name);
                    let (text, len) = self.full_name(host, watcher);
                    self.deliver(client, record, &text[..len]);
                }
            }
            // Before the verdicts that follow from it: a program that acts on one then has a newer token
            // than the dead host.
            Event::ViewChanged { .. } => self.publish_view(),
            // The control thread acts on the state, not on this record, which may be lost.
            Event::Excluded { .. } | Event::PutBack { .. } => {}
        }
    }

    /// Delivers a local process' message to the clients of this host that watch it.
    pub(super) fn deliver_own_piggyback(&mut self, now: Now, slot: u8, pb_seq: u32, bytes: &[u8]) {
        let host = self.facts.me;
        let clients = self.watches.clients(ProcessRef::new(host, slot));
        if clients.is_empty() {
            return;
        }
        let record = EventRecord {
            kind: kind::PIGGYBACK,
            host,
            slot,
            incarnation: self.detector.process(host, slot).map_or(0, |process| process.incarnation),
            seq: u64::from(pb_seq),
            rx_ns: now.mono_ns,
            ..EventRecord::default()
        };
        self.deliver_each(clients, record, bytes);
    }

    fn about_me(&self, now: Now, kind: u32) -> EventRecord {
        EventRecord { rx_ns: now.mono_ns, ..EventRecord::of_host(kind, self.facts.me) }
    }

    fn deliver_up(&mut self, now: Now, subject: ProcessRef, incarnation: u32, name: Name) {
        let ProcessRef { host, slot } = subject;
        let name = (!subject.is_host()).then_some(name);
        if subject.is_host() {
            self.admit(host, false);
            self.publish_host(now, host);
        } else {
            self.publish_process(now, subject);
        }
        // After this nobody delivers the end of the former incarnation: clients whose ring was full have
        // lost it. A host's end covers its processes too.
        let mut late = self.take_undelivered(subject);
        if subject.is_host() {
            for slot in process_slots() {
                late = late.union(self.take_undelivered(ProcessRef::new(host, slot)));
            }
        }
        for client in late.iter() {
            self.count_lost(client);
        }
        let record =
            EventRecord { kind: kind::UP, host, slot, incarnation, rx_ns: now.mono_ns, ..EventRecord::default() };
        // The list of watches does not change meanwhile.
        for position in 0..self.watches.len() {
            let watch = self.watches.at(position);
            if watch.host == host && watch.name == name {
                self.deliver_watcher_up(watch.client, watch.id, record, name);
            }
        }
        let clients = self.watches.assign(subject, name);
        if !subject.is_host()
            && let Some(kernel) = &self.ports.kernel
        {
            // From here on the receive program may deliver the end of this process by itself.
            kernel.receive.begin_watch(ProcessRef::new(host, slot), incarnation, clients.0, 0);
        }
    }

    /// `up` carries the watch and the whole name, so that the client knows what later records are about.
    pub(super) fn deliver_watcher_up(&mut self, client: u8, watch: u32, record: EventRecord, name: Option<Name>) {
        let (text, len) = self.full_name(record.host, name);
        self.deliver(client, EventRecord { watch, ..record }, &text[..len]);
    }

    fn deliver_verdict(&mut self, now: Now, verdict: &Verdict) {
        let subject = ProcessRef::new(verdict.host, verdict.slot);
        let record = verdict_record(verdict);
        if subject.is_host() {
            self.admit(subject.host, true);
            self.publish_host(now, subject.host);
            self.deliver_end(subject, record);
            return;
        }
        self.publish_process(now, subject);
        if !verdict.reason.is_final() {
            self.deliver_each(self.watches.clients(subject), record, &[]);
            return;
        }
        let Some(kernel) = &mut self.ports.kernel else { return self.deliver_end(subject, record) };
        let mut bytes = [0; EVENT_MAX];
        let Ok(encoded) = record.encode(&[], &mut bytes) else { return };
        match kernel.receive.notify_watch(subject, encoded) {
            Notified::Yes | Notified::Before => self.counters.events_delivered += 1,
            // `retry_undelivered` handles these in this very turn.
            Notified::RingFull | Notified::Nobody => {}
        }
    }

    /// Delivers an end. A full ring does not lose it: it is offered again ([`Engine::retry_undelivered`]).
    fn deliver_end(&mut self, subject: ProcessRef, record: EventRecord) {
        let clients = self.watches.clients(subject);
        let full = clients.iter().filter(|client| !self.offer(*client, record, &[])).collect();
        self.undelivered.add(subject, full);
    }

    /// Sets which incarnation of a host the receive program takes packets from.
    pub(super) fn admit(&self, host: HostId, dead: bool) {
        let (Some(kernel), Some(peer)) = (&self.ports.kernel, self.detector.peer(host)) else { return };
        let mut flags = if self.facts.monitors.contains(host) { ADMIT_MONITOR } else { 0 };
        if dead {
            flags |= ADMIT_DEAD;
        }
        kernel.receive.admit(host, Admit { incarnation: peer.incarnation, flags, timeout_ns: peer.timeout_ns });
    }

    fn deliver_path(&mut self, now: Now, kind: u32, host: HostId, plane: u8) {
        let record = EventRecord { plane, rx_ns: now.mono_ns, ..EventRecord::of_host(kind, host) };
        let watches = (0..self.watches.len()).map(|position| self.watches.at(position));
        let clients = watches.filter(|watch| watch.host == host).map(|watch| watch.client).collect();
        self.deliver_each(clients, record, &[]);
    }

    fn deliver_fence(&mut self, now: Now, fenced: bool) {
        self.table.set_fenced(fenced);
        self.deliver_all(self.about_me(now, if fenced { kind::FENCED } else { kind::UNFENCED }));
    }

    fn deliver_timeout(&mut self, now: Now, host: HostId, timeout_ns: u64) {
        if let Some(kernel) = &self.ports.kernel {
            let admitted = kernel.receive.admitted(host);
            kernel.receive.admit(host, Admit { timeout_ns, ..admitted });
        }
        let code = i32::try_from(timeout_ns / 1000).unwrap_or(i32::MAX);
        for position in 0..self.watches.len() {
            let watch = self.watches.at(position);
            if watch.host == host {
                let of_host = EventRecord::of_host(kind::TIMEOUT_CHANGED, host);
                let record = EventRecord { watch: watch.id, code, rx_ns: now.mono_ns, ..of_host };
                self.deliver(watch.client, record, &[]);
            }
        }
    }

    /// Delivers to every client.
    pub(super) fn deliver_all(&mut self, record: EventRecord) {
        self.deliver_each(self.sessions.clients(), record, &[]);
    }

    /// Delivers to each of these clients.
    pub(super) fn deliver_each(&mut self, clients: ClientSet, record: EventRecord, data: &[u8]) {
        for client in clients.iter() {
            let _ = self.deliver(client, record, data);
        }
    }

    /// Puts one record into one client's ring. If the ring is full, the record is lost, and the client is
    /// shown how many it has lost; only ends are offered again.
    pub(super) fn deliver(&mut self, client: u8, record: EventRecord, data: &[u8]) -> bool {
        let delivered = self.offer(client, record, data);
        if !delivered {
            self.count_lost(client);
        }
        delivered
    }

    /// Like [`Engine::deliver`], but a full ring does not count as a loss yet.
    fn offer(&mut self, client: u8, record: EventRecord, data: &[u8]) -> bool {
        let mut bytes = [0; EVENT_MAX];
        // A process whose client has gone has nobody to notify.
        let (Some(session), Ok(encoded)) = (self.sessions.get_mut(client), record.encode(data, &mut bytes)) else {
            return false;
        };
        let delivered = match (&session.memory.channel, &mut self.ports.kernel) {
            (Channel::Ring, Some(kernel)) => kernel.receive.notify_client(client, encoded) == Notified::Yes,
            (Channel::Inbox(waker), _) => {
                let pushed = session.memory.region.push_inbox(encoded).is_ok();
                wake(waker);
                pushed
            }
            (Channel::Ring, None) => false,
        };
        if delivered {
            self.counters.events_delivered += 1;
        }
        delivered
    }

    fn count_lost(&mut self, client: u8) {
        if self.sessions.count_lost(client) {
            self.counters.events_undelivered += 1;
        }
    }

    /// Ends that could not be delivered yet count as lost: the next agent does not deliver them.
    pub(super) fn give_up_undelivered(&mut self) {
        for subject in self.facts.subjects() {
            for client in self.undelivered.take(subject).iter() {
                self.count_lost(client);
            }
        }
    }

    /// Offers ends that found a ring full once more, until the client has made room.
    pub(super) fn retry_undelivered(&mut self, now: Now) {
        let kernel_count = self.ports.kernel.as_ref().map_or(0, |kernel| kernel.receive.stats().client_ring_full);
        if !self.undelivered.begin_retry(kernel_count) {
            return;
        }
        let mut retry = Retry { delivered: 0, full: ClientSet::EMPTY };
        let mut failed = false;
        for subject in self.facts.subjects() {
            if retry.delivered == RETRIES_PER_TURN {
                self.undelivered.stop_early();
                return;
            }
            let waiting = self.take_undelivered(subject);
            if waiting.is_empty() {
                continue;
            }
            let still = self.retry_subject(now, subject, waiting, &mut retry);
            match &self.ports.kernel {
                // The kernel's mark outlives this agent.
                Some(kernel) if !subject.is_host() => {
                    kernel.receive.mark_undelivered(subject, still.0);
                }
                _ => self.undelivered.add(subject, still),
            }
            if !still.is_empty() {
                failed = true;
            }
        }
        if !failed {
            self.undelivered.end_retry(kernel_count);
        }
    }

    /// Offers the end of a subject to the clients that wait for it. Returns the clients that still do.
    fn retry_subject(&mut self, now: Now, subject: ProcessRef, waiting: ClientSet, retry: &mut Retry) -> ClientSet {
        let Some(record) = self.verdict_of(now, subject) else {
            // The kernel's program was faster: this loop has yet to read the notice of the end.
            if !subject.is_host() && self.detector.process(subject.host, subject.slot).is_some() {
                return waiting;
            }
            // It is not known any more what became of it.
            for client in waiting.iter() {
                self.count_lost(client);
            }
            return ClientSet::EMPTY;
        };
        let mut still = ClientSet::EMPTY;
        for client in waiting.iter() {
            let asks = retry.delivered < RETRIES_PER_TURN && !retry.full.contains(client);
            if asks && self.offer(client, record, &[]) {
                retry.delivered += 1;
                continue;
            }
            still.insert(client);
            if asks {
                retry.full.insert(client);
            }
        }
        still
    }

    /// Takes out the clients that wait for an end, here and in the kernel's program.
    fn take_undelivered(&mut self, subject: ProcessRef) -> ClientSet {
        let waiting = self.undelivered.take(subject);
        match &self.ports.kernel {
            Some(kernel) if !subject.is_host() => waiting.union(ClientSet(kernel.receive.take_undelivered(subject))),
            _ => waiting,
        }
    }

    /// The verdict on a process that has ended, or on a host, as it is delivered.
    pub(super) fn verdict_of(&self, now: Now, subject: ProcessRef) -> Option<EventRecord> {
        let ProcessRef { host, slot } = subject;
        if subject.is_host() {
            let peer = self.detector.peer(host)?;
            let why = match peer.state {
                PeerState::Dead => Reason::HostSilent,
                PeerState::Left => Reason::Left,
                PeerState::Unknown | PeerState::Up => return None,
            };
            let of_host = EventRecord::of_host(kind::VERDICT, host);
            let record = EventRecord { incarnation: peer.incarnation, rx_ns: now.mono_ns, ..of_host };
            return Some(record.with_reason(why));
        }
        let process = self.detector.process(host, slot)?;
        let why = process.state.reason().filter(|why| why.is_final())?;
        let record = EventRecord {
            kind: kind::VERDICT,
            host,
            slot,
            incarnation: process.incarnation,
            rx_ns: now.mono_ns,
            at_ns: process.at_ns,
            ..EventRecord::default()
        };
        Some(record.with_reason(why))
    }

    /// "name@host", or "@host", and its length.
    fn full_name(&self, host: HostId, name: Option<Name>) -> ([u8; 2 * MAX_NAME + 1], usize) {
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

    pub(super) fn host_name(&self, host: HostId) -> NameBytes {
        self.facts.names[host_index(host)]
    }
}

/// One round of offering ends again.
struct Retry {
    delivered: usize,
    /// Clients whose rings were still full: each is asked once, and holds up no other.
    full: ClientSet,
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
