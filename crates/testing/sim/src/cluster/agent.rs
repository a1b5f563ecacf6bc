// SPDX-License-Identifier: Apache-2.0
//! A host's agent: the real detector, and the work of the agent's loop for programs of its host, in the
//! loop's order.

use std::{collections::HashMap, rc::Rc};

use fide_agent_api::event::{EVENT_MAX, EventRecord, kind};
use fide_agent_api::protocol::{JoinOk, MonitorOk, PeerState as Known};
use fide_detector::{
    Detector, Event, PeerState, ProcessState, ProcessView, RestartError, Target, Transmit, Verdict, Wanted,
};
use fide_sys::clock::{ASLEEP_NOISE_NS, Clocks};
use fide_types::{HostId, PerHost, Reason};
use fide_wire::{HOST_SLOT, MAX_PROCESSES, Name, PAYLOAD_MAX, Packet, set_seq};

use super::{
    plan::HEARTBEAT_NS,
    session::{Answer, COUNTER_NOISE_NS, Link, Op, Session, Table},
};

mod copy;

/// Heartbeats that an agent repeats at most while it hands over.
const REPEATS_MAX: u64 = 250;

/// One connection, and the session that was granted over it.
struct Connected {
    link: Rc<Link>,
    pid: u32,
    token: u32,
}

#[derive(Clone)]
struct Watch {
    id: u32,
    token: u32,
    host: HostId,
    name: Option<Name>,
}

/// Another agent reads this one's state; until it is ready, the last heartbeat is repeated.
#[derive(Clone)]
struct Frozen {
    state: Vec<u8>,
    /// How long the host had been suspended when the state was written.
    asleep_ns: u64,
    ahead_ns: u64,
    until_ns: u64,
    next_ns: u64,
    count: u64,
}

pub(super) struct Agent {
    pub(super) detector: Detector,
    me: HostId,
    pub(super) table: Rc<Table>,
    connected: Vec<Connected>,
    sessions: Vec<Rc<Session>>,
    watches: Vec<Watch>,
    /// By slot: the name whose watchers are notified of events there, which is the name of the process that
    /// was up last.
    subjects: HashMap<(u16, u8), Option<Name>>,
    next_watch: u32,
    next_token: u32,
    /// Slot, process id and session of each registered process.
    owners: Vec<(u8, u32, u32)>,
    /// Processes whose end the kernel has reported.
    exits: Vec<u32>,
    timeout_min_ns: u64,
    /// How long the host had been suspended when the clocks were last read.
    asleep_ns: u64,
    /// By how much the processor's counter was ahead of the clock at the same time.
    ahead_ns: u64,
    /// What the table was written from.
    published: PerHost<(u64, PeerState, u32)>,
    repeat: Vec<u8>,
    frozen: Option<Frozen>,
}

impl Agent {
    pub(super) fn new(me: HostId, hosts: u16, detector: Detector, now: &Clocks) -> Self {
        let incarnation = detector.config().incarnation;
        let table = Rc::new(Table::default());
        table.incarnation.set(incarnation);
        let timeout_min_ns = detector.config().timeout_ns;
        Self {
            detector,
            me,
            table,
            connected: Vec::new(),
            sessions: Vec::new(),
            watches: Vec::new(),
            subjects: HashMap::new(),
            next_watch: 0,
            next_token: incarnation << 12,
            owners: Vec::new(),
            exits: Vec::new(),
            timeout_min_ns,
            asleep_ns: now.asleep_ns(),
            ahead_ns: now.tsc - now.raw_ns,
            published: PerHost::new(usize::from(hosts), |_| (0, PeerState::Unknown, 0)),
            repeat: Vec::new(),
            frozen: None,
        }
    }

    pub(super) fn connect(&mut self, pid: u32) -> Rc<Link> {
        let link = Rc::new(Link::default());
        self.connected.push(Connected { link: Rc::clone(&link), pid, token: 0 });
        link
    }

    /// The kernel reports that a process has ended.
    pub(super) fn ended(&mut self, pid: u32) {
        self.exits.push(pid);
    }

    pub(super) fn is_frozen(&self) -> bool {
        self.frozen.is_some()
    }

    /// Something waits for the next turn, besides the detector's timers.
    pub(super) fn is_called(&self) -> bool {
        // If no heartbeat may be sent between two of the schedule, the bell changes nothing.
        let rung = || self.detector.urgent_max() > 0 && self.sessions.iter().any(|session| session.rung.get());
        !self.exits.is_empty()
            || rung()
            || self.connected.iter().any(|of| of.link.closed.get() || of.link.request.borrow().is_some())
    }

    /// The agent ends, and its connections close.
    pub(super) fn end(&self) {
        self.connected.iter().for_each(|of| of.link.closed.set(true));
    }

    /// Another agent begins to take over, and is ready at `until_ns`.
    pub(super) fn freeze(&mut self, now_ns: u64, until_ns: u64) {
        self.notify_programs();
        let (state, next_ns) = (self.detector.to_bytes(), self.detector.next_heartbeat_ns().max(now_ns));
        self.frozen =
            Some(Frozen { state, asleep_ns: self.asleep_ns, ahead_ns: self.ahead_ns, until_ns, next_ns, count: 0 });
    }

    /// When a frozen agent has its next turn.
    pub(super) fn frozen_until_ns(&self) -> Option<u64> {
        self.frozen.as_ref().map(|frozen| frozen.until_ns.min(frozen.next_ns))
    }

    /// The heartbeat that a frozen agent repeats, if one is due. Once the new agent is ready, it continues
    /// instead.
    pub(super) fn repeat(&mut self, now: &Clocks) -> Option<&[u8]> {
        self.look_at_clocks(now);
        let now_ns = now.raw_ns;
        let frozen = self.frozen.as_mut()?;
        if now_ns >= frozen.until_ns {
            let mut detector = Detector::from_bytes(&frozen.state).expect("of this version");
            detector.skip_heartbeats(REPEATS_MAX + 1);
            self.detector = detector;
            // The new agent compares its clocks with the clocks of the state that it was given.
            (self.asleep_ns, self.ahead_ns) = (frozen.asleep_ns, frozen.ahead_ns);
            self.frozen = None;
            // The clients reconnect with their sessions.
            self.end();
            self.connected.clear();
            return None;
        }
        if now_ns < frozen.next_ns {
            return None;
        }
        frozen.next_ns = now_ns + HEARTBEAT_NS;
        if self.repeat.is_empty() || frozen.count >= REPEATS_MAX {
            return None;
        }
        frozen.count += 1;
        let seq = Packet::new(&self.repeat[..]).ok()?.seq() + 1;
        set_seq(&mut self.repeat, seq);
        self.table.set_lease(self.lease_until_ns(now_ns), now);
        Some(&self.repeat)
    }

    /// Checks whether the host was stopped. If so, its old lease is over for all programs, before anything
    /// that came meanwhile is believed.
    pub(super) fn look_at_clocks(&mut self, now: &Clocks) {
        let asleep_ns = now.asleep_ns();
        let gap_ns = asleep_ns.saturating_sub(std::mem::replace(&mut self.asleep_ns, asleep_ns));
        let ahead_ns = now.tsc.saturating_sub(now.raw_ns);
        let stopped_ns = ahead_ns.saturating_sub(std::mem::replace(&mut self.ahead_ns, ahead_ns));
        if gap_ns > ASLEEP_NOISE_NS || stopped_ns > COUNTER_NOISE_NS {
            self.table.set_lease(0, now);
            self.detector.doubt(now.raw_ns, gap_ns.max(stopped_ns));
        }
    }

    /// The part of a turn before packets are sent. `kept`: the generation of views that the loop knows is on
    /// disk.
    pub(super) fn turn(&mut self, now: &Clocks, kept: u32) {
        self.look_at_clocks(now);
        let now_ns = now.raw_ns;
        for pid in std::mem::take(&mut self.exits) {
            for (slot, _, token) in self.owners.extract_if(.., |(_, of, _)| *of == pid) {
                let _ = token;
                // The process may have said goodbye before.
                let _ = self.detector.process_changed(now_ns, slot, ProcessState::Killed(9), now_ns);
            }
        }
        self.detector.has_kept_generation(kept);
        self.detector.tick(now_ns);
        self.take_messages();
        self.serve(now_ns);
    }

    fn take_messages(&mut self) {
        for session in &self.sessions {
            if session.rung.take() {
                self.detector.hurry();
            }
            while let Some((slot, message)) = session.take() {
                if self.owners.iter().any(|(of, _, token)| *of == slot && *token == session.token) {
                    // A message that finds no room is sent again otherwise.
                    let _ = self.detector.piggyback(slot, &message);
                }
            }
        }
    }

    /// Serves requests of programs.
    fn serve(&mut self, now_ns: u64) {
        for at in (0..self.connected.len()).rev() {
            if self.connected[at].link.closed.get() {
                let gone = self.connected.swap_remove(at);
                self.close(gone.token);
            }
        }
        for at in 0..self.connected.len() {
            let Connected { link, pid, token } = &self.connected[at];
            let (link, pid, token) = (Rc::clone(link), *pid, *token);
            let Some(op) = link.request.borrow_mut().take() else { continue };
            let answer = match op {
                Op::Hello { token } => {
                    let session = match self.sessions.iter().find(|session| session.token == token) {
                        Some(session) => Rc::clone(session),
                        None => {
                            self.next_token += 1;
                            self.sessions.push(Session::new(self.next_token));
                            Rc::clone(self.sessions.last().expect("just pushed"))
                        }
                    };
                    self.connected[at].token = session.token;
                    Answer::Hello { table: Rc::clone(&self.table), session }
                }
                Op::Join { name } => self.join(now_ns, &name, pid, token),
                Op::Monitor { host, name } => {
                    let name = name.map(|name| name.parse().expect("a name"));
                    self.monitor(host, name, token).map_or(Answer::Refused, Answer::Monitored)
                }
            };
            *link.answer.borrow_mut() = Some(answer);
        }
    }

    /// A process says goodbye.
    pub(super) fn quit(&mut self, now_ns: u64, slot: u8) {
        self.owners.retain(|(of, ..)| *of != slot);
        // The process may be unknown here.
        let _ = self.detector.process_changed(now_ns, slot, ProcessState::Left, now_ns);
    }

    pub(super) fn join(&mut self, now_ns: u64, name: &str, pid: u32, token: u32) -> Answer {
        // The client lost the answer, and asks again.
        if let Some((slot, process)) = self.of_pid(name, pid) {
            self.owners.iter_mut().filter(|(of, ..)| *of == slot).for_each(|owner| owner.2 = token);
            let pbsize = u16::try_from(self.detector.piggyback_grant()).expect("a packet");
            return Answer::Joined(JoinOk { slot, incarnation: process, pbsize });
        }
        match self.detector.join(now_ns, name.parse().expect("a name")) {
            Ok(joined) => {
                self.owners.retain(|(slot, ..)| *slot != joined.slot);
                self.owners.push((joined.slot, pid, token));
                let pbsize = u16::try_from(self.detector.piggyback_grant()).expect("a packet");
                Answer::Joined(JoinOk { slot: joined.slot, incarnation: joined.incarnation, pbsize })
            }
            Err(_) => Answer::Refused,
        }
    }

    /// The slot and process of the program with this name and id, if it is registered.
    fn of_pid(&self, name: &str, pid: u32) -> Option<(u8, u32)> {
        let lives = |slot: u8| {
            let process = self.detector.process(self.detector.config().me, slot)?;
            (!process.state.is_final() && process.name.as_str() == name).then_some((slot, process.incarnation))
        };
        self.owners.iter().filter(|(_, of, _)| *of == pid).find_map(|(slot, ..)| lives(*slot))
    }

    pub(super) fn monitor(&mut self, host: HostId, name: Option<Name>, token: u32) -> Option<MonitorOk> {
        let target = Target { host, process: name };
        let granted = self.detector.monitor(target, Wanted::default(), HOST_SLOT).ok()?;
        self.next_watch += 1;
        let id = self.next_watch;
        self.watches.push(Watch { id, token, host, name });
        let mut monitored = MonitorOk {
            watch: id,
            host_id: host,
            timeout_us: u32::try_from(granted.timeout_ns / 1000).unwrap_or(u32::MAX),
            pbsize: granted.pbsize,
            state: Known::Unknown,
            slot: HOST_SLOT,
            incarnation: 0,
        };
        let (slot, incarnation, ended) = match name {
            None => {
                let peer = self.detector.peer(host).filter(|peer| peer.incarnation != 0);
                let Some(peer) = peer else { return Some(monitored) };
                (HOST_SLOT, peer.incarnation, (peer.state != PeerState::Up).then_some(None))
            }
            Some(name) => {
                let Some((slot, process)) = self.find(host, name) else { return Some(monitored) };
                (slot, process.incarnation, process.state.is_final().then_some(Some(process)))
            }
        };
        (monitored.slot, monitored.incarnation) = (slot, incarnation);
        self.subjects.insert((host, slot), name);
        monitored.state = if ended.is_some() { Known::Dead } else { Known::Alive };
        let up = EventRecord { kind: kind::UP, host, slot, incarnation, watch: id, ..EventRecord::default() };
        self.tell_one(token, up, &[]);
        if let Some(Some(process)) = ended {
            let record =
                EventRecord { kind: kind::VERDICT, watch: id, host, slot, incarnation, ..EventRecord::default() };
            self.tell_one(token, record.with_reason(process.state.reason().unwrap_or(Reason::Left)), &[]);
        }
        Some(monitored)
    }

    /// The slot of a process by name: the live process, else the one that ended last.
    fn find(&self, host: HostId, name: Name) -> Option<(u8, ProcessView)> {
        (0..MAX_PROCESSES as u8)
            .filter_map(|slot| Some((slot, self.detector.process(host, slot)?)))
            .filter(|(_, process)| process.name == name)
            .max_by_key(|(_, process)| (!process.state.is_final(), process.incarnation))
    }

    pub(super) fn unmonitor(&mut self, id: u32) {
        for watch in self.watches.extract_if(.., |watch| watch.id == id) {
            let _ = self.detector.unmonitor(Target { host: watch.host, process: watch.name }, HOST_SLOT);
        }
    }

    fn close(&mut self, token: u32) {
        for watch in self.watches.extract_if(.., |watch| watch.token == token) {
            let _ = self.detector.unmonitor(Target { host: watch.host, process: watch.name }, HOST_SLOT);
        }
        self.sessions.retain(|session| session.token != token);
    }

    /// The agent is to continue as another incarnation. True if it does.
    pub(super) fn begin_again(&mut self, now_ns: u64, incarnation: u32) -> bool {
        match self.detector.restart(now_ns, incarnation) {
            Ok(()) => {}
            // The agent has just found out that its machine was put back, and has not reported it yet.
            Err(RestartError::PutBack) => return false,
            // Other hosts have heard of a later incarnation.
            Err(RestartError::Incarnation { present, .. }) => return self.begin_again(now_ns, present + 1),
        }
        self.table.incarnation.set(incarnation);
        let record = EventRecord { incarnation, ..EventRecord::of_host(kind::REJOINED, self.me) };
        self.tell_all(record);
        true
    }

    /// The next packet to send. Programs see its effect on the lease before it leaves.
    pub(super) fn poll_transmit(&mut self, now: &Clocks, buffer: &mut [u8; PAYLOAD_MAX]) -> Option<Transmit> {
        let now_ns = now.raw_ns;
        let sent = self.detector.poll_transmit(now_ns, buffer)?;
        self.publish_lease(now);
        if sent.kind == fide_detector::TransmitKind::Heartbeat {
            self.repeat.clear();
            self.repeat.extend_from_slice(&buffer[..sent.len]);
        }
        Some(sent)
    }

    /// Peers declare this host silent once it has sent nothing for the shortest timeout.
    fn lease_until_ns(&self, now_ns: u64) -> u64 {
        self.detector.lease_until_ns().min(now_ns + self.timeout_min_ns)
    }

    fn publish_lease(&self, now: &Clocks) {
        self.table.view.set(self.detector.view().id);
        self.table.set_lease(self.lease_until_ns(now.raw_ns), now);
    }

    pub(super) fn publish(&mut self, now: &Clocks) {
        for (id, before) in self.published.iter_mut() {
            let Some(peer) = self.detector.peer(id) else { continue };
            let seen = (peer.last_seq, peer.state, peer.incarnation);
            if std::mem::replace(before, seen) != seen {
                let mut heard = self.table.heard_by.get();
                if self.detector.heard_by().contains(id) {
                    heard.insert(id);
                } else {
                    heard.remove(id);
                }
                self.table.heard_by.set(heard);
            }
        }
        self.publish_lease(now);
    }

    /// Notifies programs of everything that has happened, and returns those events.
    pub(super) fn notify_programs(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(event) = self.detector.poll_event() {
            self.notify(&event);
            if !matches!(event, Event::Piggyback { .. }) {
                events.push(event);
            }
        }
        events
    }

    fn notify(&mut self, event: &Event) {
        match *event {
            Event::Up { host, slot, incarnation, name } => {
                let name = (slot != HOST_SLOT).then_some(name);
                self.subjects.insert((host, slot), name);
                let record = EventRecord { kind: kind::UP, host, slot, incarnation, ..EventRecord::default() };
                for watch in self.watches.iter().filter(|watch| watch.host == host && watch.name == name) {
                    self.tell_one(watch.token, EventRecord { watch: watch.id, ..record }, &[]);
                }
            }
            Event::Verdict(verdict) => {
                let Verdict { host, slot, incarnation, .. } = verdict;
                let record = EventRecord { kind: kind::VERDICT, host, slot, incarnation, ..EventRecord::default() };
                self.notify_watchers(host, slot, record.with_reason(verdict.reason), &[]);
            }
            Event::Piggyback { host, slot, incarnation, pb_seq, .. } => {
                let bytes = self.detector.piggyback_bytes(event);
                let seq = u64::from(pb_seq);
                let record =
                    EventRecord { kind: kind::PIGGYBACK, host, slot, incarnation, seq, ..EventRecord::default() };
                self.notify_watchers(host, slot, record, bytes);
            }
            Event::PathLost { host, plane } => self.tell_path(kind::PATH_LOST, host, plane),
            Event::PathRestored { host, plane } => self.tell_path(kind::PATH_RESTORED, host, plane),
            Event::Fenced { .. } => self.tell_fence(true),
            Event::Unfenced { .. } => self.tell_fence(false),
            _ => {}
        }
    }

    fn tell_fence(&self, fenced: bool) {
        self.table.fenced.set(fenced);
        self.tell_all(EventRecord::of_host(if fenced { kind::FENCED } else { kind::UNFENCED }, self.me));
    }

    fn tell_path(&self, kind: u32, host: HostId, plane: u8) {
        let record = EventRecord { plane, ..EventRecord::of_host(kind, host) };
        let watched = |token| self.watches.iter().any(|watch| watch.token == token && watch.host == host);
        for session in self.sessions.iter().filter(|session| watched(session.token)) {
            push(session, record, &[]);
        }
    }

    /// Notifies all programs that watch the process in that slot.
    fn notify_watchers(&self, host: HostId, slot: u8, record: EventRecord, data: &[u8]) {
        let name = self.subjects.get(&(host, slot)).copied().flatten();
        if name.is_none() && slot != HOST_SLOT {
            return;
        }
        let watched =
            |token| self.watches.iter().any(|watch| watch.token == token && watch.host == host && watch.name == name);
        for session in self.sessions.iter().filter(|session| watched(session.token)) {
            push(session, record, data);
        }
    }

    fn tell_all(&self, record: EventRecord) {
        self.sessions.iter().for_each(|session| push(session, record, &[]));
    }

    fn tell_one(&self, token: u32, record: EventRecord, data: &[u8]) {
        self.sessions.iter().filter(|session| session.token == token).for_each(|session| push(session, record, data));
    }

    /// Reports a plane to a host as lost and restored, so often.
    pub(super) fn flood(&self, host: HostId, times: u32) {
        for _ in 0..times {
            self.tell_path(kind::PATH_LOST, host, 0);
            self.tell_path(kind::PATH_RESTORED, host, 0);
        }
    }

    /// Sets the timeout of this agent for a peer.
    pub(super) fn set_timeout(&mut self, now_ns: u64, peer: HostId, timeout_ns: u64) {
        // The detector refuses it for this host, and refuses lower ones if hosts judge alone. It is never
        // lower than the timeout that this agent grants its programs.
        let _ = self.detector.set_timeout(now_ns, peer, timeout_ns.max(self.timeout_min_ns));
    }
}

fn push(session: &Session, record: EventRecord, data: &[u8]) {
    let mut bytes = [0; EVENT_MAX];
    session.push(record.encode(data, &mut bytes).expect("short data"));
}
