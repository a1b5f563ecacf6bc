// SPDX-License-Identifier: Apache-2.0
//! The client library of one program, in the order of `fide-client`'s `reattach.rs`, over memory of this
//! world. The library's own registry decodes the agent's events.
//!
//! What it does on sockets and timers there happens here when the program looks for events: a look finds at
//! most one answer, and each request is one round trip.

use std::{collections::VecDeque, rc::Rc};

use fide_agent_api::event::EventRecord;
use fide_agent_api::protocol::{JoinOk, MonitorOk, PeerState};
use fide_agreement::Lease;
use fide_client::registry::Registry;
use fide_client::{Event, MonitorId, Wanted};
use fide_sys::clock::{Clocks, FOREVER_NS};
use fide_types::HostId;

use super::{
    agent::Agent,
    session::{Answer, Link, Op, Session, Table},
};

mod copy;

const BACKOFF_MIN_NS: u64 = 5_000_000;
const BACKOFF_MAX_NS: u64 = 1_000_000_000;
/// How soon an opening program tries again if it finds no agent, or is refused.
const AGAIN_NS: u64 = 2_000_000;

#[derive(Debug)]
enum State {
    /// Never attached yet: the opening requests come first.
    Opening(Option<Rc<Link>>),
    Attached(Rc<Link>),
    Away,
    Greeting(Rc<Link>),
    Registering(Rc<Link>),
}

/// Something to register with a new agent.
#[derive(Debug, Clone, Copy)]
enum Item {
    Process(u32),
    Monitor(u32),
}

/// The requests that a program opens with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wants {
    Join(String),
    /// Watches the process of that name on that host, or the host.
    Monitor(u16, Option<String>),
}

/// Outcome of opening.
#[derive(Debug, Clone)]
pub(super) enum Opened {
    Joined(JoinOk),
    Monitored(MonitorOk),
}

#[derive(Debug)]
pub(super) struct Client {
    pid: u32,
    state: State,
    wants: Vec<Wants>,
    /// How many of the wanted items it has.
    has: usize,
    pub(super) opened: Vec<Opened>,
    registry: Registry,
    targets: Vec<(u32, u16, Option<String>)>,
    table: Rc<Table>,
    /// The incarnations of its host that the program has acknowledged, and that it was last notified of.
    acknowledged: u32,
    incarnation_notified: u32,
    session: Rc<Session>,
    todo: Vec<Item>,
    pending: VecDeque<Event>,
    attempt: u32,
    /// Timer on the program's own clock; not set at `u64::MAX`.
    pub(super) timer_ns: u64,
    lost_seen: u64,
}

/// A program's own text for a target, which distinguishes its monitors.
fn target(host: HostId, name: Option<&str>) -> String {
    format!("{}@h{host}", name.unwrap_or_default())
}

impl Client {
    pub(super) fn new(pid: u32, wants: Vec<Wants>) -> Self {
        Self {
            pid,
            state: State::Opening(None),
            wants,
            has: 0,
            opened: Vec::new(),
            registry: Registry::default(),
            targets: Vec::new(),
            table: Rc::default(),
            acknowledged: 0,
            incarnation_notified: 0,
            session: Rc::default(),
            todo: Vec::new(),
            pending: VecDeque::new(),
            attempt: 0,
            timer_ns: 0,
            lost_seen: 0,
        }
    }

    fn link(&self) -> Option<&Rc<Link>> {
        match &self.state {
            State::Opening(link) => link.as_ref(),
            State::Attached(link) | State::Greeting(link) | State::Registering(link) => Some(link),
            State::Away => None,
        }
    }

    /// The program ends.
    pub(super) fn end(&self) {
        if let Some(link) = self.link() {
            link.closed.set(true);
        }
    }

    /// The program lost its connection after it had joined, and before everything was registered. The library
    /// reports that, and such a program ends: the agent keeps its process registered, so it could not join
    /// again.
    pub(super) fn is_lost(&self) -> bool {
        let State::Opening(link) = &self.state else { return false };
        let is_cut = link.as_ref().is_none_or(|link| link.closed.get());
        is_cut && !self.registry.processes.is_empty()
    }

    /// Events that wait for the program.
    pub(super) fn waiting(&self) -> usize {
        self.session.len()
    }

    pub(super) fn is_open(&self) -> bool {
        !matches!(self.state, State::Opening(_))
    }

    /// The program's descriptor is readable.
    pub(super) fn is_called(&self, now_ns: u64) -> bool {
        let reads = !matches!(self.state, State::Registering(_) | State::Opening(_));
        self.timer_ns <= now_ns
            || self.link().is_some_and(|link| link.calls())
            || reads && (!self.session.is_empty() || !self.pending.is_empty())
    }

    /// Slot and incarnation of the process that it has joined as, as last received from its agent.
    pub(super) fn process(&self) -> Option<(u8, u32)> {
        self.registry.processes.values().next().map(|joined| (joined.granted.slot, joined.granted.incarnation))
    }

    /// Until when the program may act, as the incarnation of its host that it has acknowledged.
    pub(super) fn lease(&self, now: &Clocks) -> Lease {
        let now_ns = now.raw_ns;
        let until_ns = match self.table.lease_left_ns(self.acknowledged, now) {
            0 => 0,
            FOREVER_NS => FOREVER_NS,
            left_ns => now_ns.saturating_add(left_ns),
        };
        Lease { now_ns, until_ns }
    }

    /// The program acknowledges its host's new incarnation, and continues as a newcomer.
    pub(super) fn acknowledge(&mut self) {
        self.acknowledged = self.incarnation_notified;
    }

    pub(super) fn is_attached(&self) -> bool {
        matches!(self.state, State::Attached(_))
    }

    pub(super) fn watches(&self, monitor: MonitorId) -> bool {
        self.targets.iter().any(|(id, ..)| *id == monitor.0)
    }

    /// Joins again, as another process of its host, as the host's incarnation `incarnation`. None while the
    /// agent refuses.
    pub(super) fn join_again(
        &mut self,
        now_ns: u64,
        agent: &mut Agent,
        name: &str,
        incarnation: Option<u32>,
    ) -> Option<JoinOk> {
        // If there is a newer incarnation by now, the program is notified of that one too.
        if incarnation == Some(self.incarnation_notified) {
            self.acknowledge();
        }
        if let Some((_, joined)) = self.registry.processes.pop_first() {
            agent.quit(now_ns, joined.granted.slot);
        }
        let Answer::Joined(granted) = agent.join(now_ns, name, self.pid, self.session.token) else { return None };
        self.registry.add_process("process", self.pid, 0, granted.clone());
        Some(granted)
    }

    fn look_for_another_life(&mut self) {
        let incarnation = self.table.incarnation.get();
        if incarnation != self.incarnation_notified && !matches!(self.state, State::Registering(_)) {
            self.incarnation_notified = incarnation;
            self.pending.push_back(Event::Rejoined { incarnation });
        }
    }

    pub(super) fn is_heard_by(&self, host: HostId) -> bool {
        self.table.heard_by.get().contains(host)
    }

    pub(super) fn piggyback(&self, message: &[u8]) -> bool {
        let left = self.process().is_some_and(|(slot, _)| self.session.leave(slot, message));
        // A bell that rings keeps ringing.
        self.session.rung.set(left || self.session.rung.get());
        left
    }

    /// One step of opening; true once everything is registered.
    pub(super) fn open(&mut self, now_ns: u64, agent: Option<&mut Agent>) -> bool {
        let State::Opening(link) = &self.state else { return true };
        let Some(link) = link.clone().filter(|link| !link.closed.get()) else {
            self.begin_anew(now_ns, agent);
            return false;
        };
        let Some(answer) = link.answer.borrow_mut().take() else { return false };
        match answer {
            Answer::Hello { table, session } => {
                self.acknowledged = table.incarnation.get();
                self.incarnation_notified = self.acknowledged;
                (self.table, self.session) = (table, session);
            }
            Answer::Refused => {
                link.closed.set(true);
                self.state = State::Opening(None);
                self.timer_ns = now_ns + AGAIN_NS;
                return false;
            }
            Answer::Joined(granted) => {
                self.registry.add_process("process", self.pid, 0, granted.clone());
                self.opened.push(Opened::Joined(granted));
                self.has += 1;
            }
            Answer::Monitored(granted) => {
                let Wants::Monitor(host, name) = self.wants[self.has].clone() else { unreachable!("it was asked for") };
                let id = self.registry.add_monitor(&target(host, name.as_deref()), Wanted::default(), granted.clone());
                self.targets.push((id.0, host, name));
                self.opened.push(Opened::Monitored(granted));
                self.has += 1;
            }
        }
        match self.wants.get(self.has).cloned() {
            Some(Wants::Join(name)) => *link.request.borrow_mut() = Some(Op::Join { name }),
            Some(Wants::Monitor(host, name)) => *link.request.borrow_mut() = Some(Op::Monitor { host, name }),
            None => {
                self.state = State::Attached(link);
                self.timer_ns = u64::MAX;
                return true;
            }
        }
        false
    }

    fn begin_anew(&mut self, now_ns: u64, agent: Option<&mut Agent>) {
        if self.timer_ns > now_ns && self.timer_ns != u64::MAX {
            return;
        }
        (self.has, self.registry) = (0, Registry::default());
        self.opened.clear();
        self.targets.clear();
        match agent {
            None => self.timer_ns = now_ns + AGAIN_NS,
            Some(agent) => {
                let link = agent.connect(self.pid);
                *link.request.borrow_mut() = Some(Op::Hello { token: 0 });
                self.state = State::Opening(Some(link));
                self.timer_ns = u64::MAX;
            }
        }
    }

    /// The next event; never waits.
    pub(super) fn poll_event(&mut self, now_ns: u64, agent: Option<&mut Agent>) -> Option<Event> {
        if self.pending.is_empty() && !matches!(self.state, State::Registering(_)) {
            self.drain();
        }
        if let Some(event) = self.pending.pop_front() {
            return Some(event);
        }
        self.turn(now_ns, agent);
        self.pending.pop_front()
    }

    fn turn(&mut self, now_ns: u64, agent: Option<&mut Agent>) {
        if let Some(link) = self.link().cloned() {
            if link.closed.get() {
                self.detach(now_ns);
            } else if let Some(answer) = link.answer.borrow_mut().take() {
                self.answered(answer, Rc::clone(&link), now_ns);
            }
        }
        if self.timer_ns <= now_ns {
            self.timer_ns = u64::MAX;
            if matches!(self.state, State::Away) {
                self.greet(now_ns, agent);
            }
        }
    }

    fn detach(&mut self, now_ns: u64) {
        if matches!(self.state, State::Attached(_)) {
            self.pending.push_back(Event::Detached { why: "the agent hung up".into() });
            self.attempt = 0;
        }
        self.state = State::Away;
        let pause_ns = BACKOFF_MIN_NS.saturating_mul(1 << self.attempt.min(20)).min(BACKOFF_MAX_NS);
        self.attempt = self.attempt.saturating_add(1);
        self.timer_ns = now_ns + pause_ns;
    }

    fn greet(&mut self, now_ns: u64, agent: Option<&mut Agent>) {
        let Some(agent) = agent else { return self.detach(now_ns) };
        let link = agent.connect(self.pid);
        *link.request.borrow_mut() = Some(Op::Hello { token: self.session.token });
        self.state = State::Greeting(link);
    }

    fn answered(&mut self, answer: Answer, link: Rc<Link>, now_ns: u64) {
        match (&self.state, answer) {
            (State::Greeting(_), Answer::Hello { table, session }) => self.greeted(table, session, link),
            (State::Registering(_), answer) => {
                if let Some(item) = self.todo.pop() {
                    self.registered(item, answer);
                }
                self.register_next(link);
            }
            _ => self.detach(now_ns),
        }
    }

    fn greeted(&mut self, table: Rc<Table>, session: Rc<Session>, link: Rc<Link>) {
        // The last events of the old ring.
        self.drain();
        let resumed = session.token == self.session.token;
        (self.table, self.session) = (table, session);
        if resumed && self.todo.is_empty() {
            return self.attach(link, true);
        }
        if !resumed {
            self.lost_seen = self.session.lost.get();
            for monitored in self.registry.monitors.values_mut() {
                monitored.watch = 0;
            }
            // Taken from the end: processes first, then monitors, each in the order of their first
            // registration.
            let monitors = self.registry.monitors.keys().rev().map(|id| Item::Monitor(*id));
            let processes = self.registry.processes.keys().rev().map(|id| Item::Process(*id));
            self.todo = monitors.chain(processes).collect();
        }
        self.register_next(link);
    }

    fn attach(&mut self, link: Rc<Link>, resumed: bool) {
        self.state = State::Attached(link);
        self.timer_ns = u64::MAX;
        self.attempt = 0;
        self.pending.push_back(Event::Reattached { resumed });
        self.look_for_another_life();
    }

    fn register_next(&mut self, link: Rc<Link>) {
        let Some(item) = self.todo.last() else { return self.attach(link, false) };
        let op = match item {
            Item::Process(_) => {
                let name = self.wants.iter().find_map(|wants| match wants {
                    Wants::Join(name) => Some(name.clone()),
                    Wants::Monitor(..) => None,
                });
                Op::Join { name: name.expect("it has joined") }
            }
            Item::Monitor(id) => {
                let (_, host, name) = self.targets.iter().find(|(of, ..)| of == id).expect("it was granted").clone();
                Op::Monitor { host, name }
            }
        };
        *link.request.borrow_mut() = Some(op);
        self.state = State::Registering(link);
    }

    fn registered(&mut self, item: Item, answer: Answer) {
        let refused = match (item, answer) {
            (Item::Process(id), Answer::Joined(granted)) => {
                if let Some(joined) = self.registry.processes.get_mut(&id) {
                    joined.granted = granted;
                }
                false
            }
            (Item::Monitor(id), Answer::Monitored(granted)) => {
                if let Some(monitored) = self.registry.monitors.get_mut(&id) {
                    monitored.register(granted);
                }
                false
            }
            (Item::Process(id), _) => self.registry.processes.remove(&id).is_some(),
            (Item::Monitor(id), _) => self.registry.monitors.remove(&id).is_some(),
        };
        if refused {
            let refusal =
                fide_agent_api::protocol::Refusal::new(fide_agent_api::protocol::ErrorCode::NameTaken, "taken", "");
            self.pending.push_back(Event::Dropped { what: "it".into(), refusal });
        }
    }

    fn drain(&mut self) {
        let Self { session, registry, pending, .. } = self;
        while let Some(bytes) = session.pop() {
            let (record, data) = EventRecord::split(&bytes).expect("a record");
            let event = record.decode(data).expect("of this version");
            registry.feed(&record, event, |event| pending.push_back(event));
        }
        self.look_for_another_life();
        let lost = self.session.lost.get();
        if lost != self.lost_seen {
            self.pending.push_back(Event::Lost { count: lost.wrapping_sub(self.lost_seen) });
            self.lost_seen = lost;
        }
    }

    /// Ends the watch on a process and begins another one; returns the process that is up. Fails while no
    /// agent answers.
    pub(super) fn watch_again(&mut self, agent: Option<&mut Agent>, host: HostId) -> Result<Option<u32>, ()> {
        let (Some(agent), State::Attached(_)) = (agent, &self.state) else { return Err(()) };
        let Some(at) = self.targets.iter().position(|(_, of, _)| *of == host) else { return Ok(None) };
        let (id, _, name) = self.targets[at].clone();
        if let Some(monitored) = self.registry.monitors.remove(&id) {
            agent.unmonitor(monitored.watch);
        }
        let process = name.as_deref().map(|name| name.parse().expect("a name"));
        let granted = agent.monitor(host, process, self.session.token).ok_or(())?;
        let new = self.registry.add_monitor(&target(host, name.as_deref()), Wanted::default(), granted.clone());
        self.targets[at].0 = new.0;
        Ok((granted.state == PeerState::Alive).then_some(granted.incarnation))
    }
}
