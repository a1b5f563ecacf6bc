// SPDX-License-Identifier: Apache-2.0
//! How a client finds a new agent, and registers everything with it.
//!
//! ```text
//! Attached ── connection lost ──► Away ── timer ──► Greeting ── same token ──────────────────► Attached
//!                                  ▲                  │  └──── other token ──► Registering ────────┘
//!                                  └── refused, late ─┴──────────────────────────┘
//! ```
//!
//! After that, lanes are opened again one by one; the agent finds them at the controller as they were.
//!
//! All of it happens inside `poll_event`, `wait_event` and the calls, on the caller's thread, without
//! waiting (except for [`CONNECT_WAIT`] if others take all places at the agent's socket): a timer in the
//! client's epoll set triggers the next attempt. Meanwhile the old alive table stays mapped: its lease runs
//! out and the client is fenced, whatever happened to the agent. The old ring is still read, too.

use crate::client::{Client, TOKEN_SOCKET, checked_hello, poll_readable};
use crate::error::Error;
use crate::error::timed_out;
use crate::event::Event;
use crate::lanes::{LANE_TIMEOUT, LaneId};
use crate::link::{Link, Received};
use crate::memory::{Memory, now_ns};
use fide_agent_api::protocol::{
    Empty, ErrorCode, JoinOk, LaneOk, MonitorOk, Op, Outcome, PROTOCOL_VERSION, Refusal, Reply, Request,
};
use rustix::{
    event::epoll,
    fd::{AsFd, OwnedFd},
    time::{Itimerspec, TimerfdTimerFlags, Timespec},
};
use std::{sync::Arc, time::Duration};

/// First pause before looking for an agent again; doubled each time.
const BACKOFF_MIN_NS: u64 = 5_000_000;
/// Longest pause.
const BACKOFF_MAX_NS: u64 = 1_000_000_000;
/// How long to wait for a free place at the agent's socket. A client that only tried might find none for as
/// long as others try without pause. (With two others, one waited for 18 ms.)
const CONNECT_WAIT: Duration = Duration::from_millis(50);
/// How long an agent may take for each answer while re-attaching. After a restart all its clients come at
/// once, and each user's clients wait for their share.
const ANSWER_NS: u64 = 10_000_000_000;
/// How often a registration may be refused for lack of room, or because its name is still taken, before it
/// is given up.
const REFUSED_AGAIN_MAX: u32 = 8;

/// The client's connection to its agent.
#[derive(Debug)]
pub(crate) enum State {
    Attached(Link),
    Away,
    Greeting { link: Link, id: u64 },
    Registering { link: Link, id: u64 },
}

/// An item to register with a new agent: an id in the registry.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Item {
    Process(u32),
    Monitor(u32),
    /// What the former agent reported of a monitor's target, with the timeout that it had granted.
    Former(u32),
    Service(u8),
}

impl State {
    pub(crate) fn link(&self) -> Option<&Link> {
        match self {
            Self::Attached(link) | Self::Greeting { link, .. } | Self::Registering { link, .. } => Some(link),
            Self::Away => None,
        }
    }

    pub(crate) fn is_registering(&self) -> bool {
        matches!(self, Self::Registering { .. })
    }
}

impl Client {
    /// The connection is lost: reports it to the user once, and looks for an agent soon.
    pub(crate) fn detach(&mut self, why: &str) {
        if self.is_attached() {
            self.pending.push_back(Event::Detached { why: why.into() });
            self.counters.detached += 1;
            self.attempt = 0;
        }
        if let Some(link) = self.state.link() {
            let _ = epoll::delete(&self.epoll, link.as_fd());
        }
        self.state = State::Away;
        self.reopening = None;
        self.lanes.away();
        let pause = BACKOFF_MIN_NS.saturating_mul(1 << self.attempt.min(20)).min(BACKOFF_MAX_NS);
        self.attempt = self.attempt.saturating_add(1);
        self.arm(pause);
    }

    /// Sets the timer; 0 stops it.
    fn arm(&self, after_ns: u64) {
        let after = Timespec { tv_sec: (after_ns / 1_000_000_000) as i64, tv_nsec: (after_ns % 1_000_000_000) as i64 };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: after };
        // Cannot fail: the descriptor is a timer and the time is a valid one.
        let _ = rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
    }

    /// Makes the descriptor readable if events came up during a call, for a program that waits on it.
    pub(crate) fn wake_for_pending(&self) {
        if self.is_attached() && !self.pending.is_empty() {
            self.arm(1);
        }
    }

    /// Handles the timer, if it has run out.
    pub(crate) fn on_timer(&mut self) {
        if rustix::io::read(&self.timer, &mut [0; 8]).is_err() {
            return;
        }
        match self.state {
            State::Attached(_) => (),
            State::Away => self.greet(),
            State::Greeting { .. } | State::Registering { .. } => self.detach("the agent does not answer"),
        }
    }

    fn greet(&mut self) {
        let link = match Link::connect(&self.path, CONNECT_WAIT) {
            Ok(link) => link,
            Err(errno) => return self.detach(&errno.to_string()),
        };
        let id = self.new_id();
        let session = Some(self.hello.session.clone());
        let op = Op::Hello { protocol: PROTOCOL_VERSION, program: self.program.clone(), session, bell: true };
        let sent =
            link.send(&Request { id, op }.to_bytes()).is_ok() && self.watch_fd(link.as_fd(), TOKEN_SOCKET).is_ok();
        self.state = State::Greeting { link, id };
        if sent {
            self.arm(ANSWER_NS);
        } else {
            self.detach("the agent hung up");
        }
    }

    /// Handles a message from the socket, if there is one.
    pub(crate) fn on_socket(&mut self) {
        let Some(link) = self.state.link() else { return };
        let (len, fds) = match link.receive(&mut self.buffer) {
            Received::Nothing => return,
            Received::Gone(why) => return self.detach(&why),
            Received::Message(len, fds) => (len, fds),
        };
        let Ok(reply) = Reply::parse(&self.buffer[..len]) else {
            return self.detach("the agent sent what is no reply");
        };
        match &self.state {
            State::Greeting { id, .. } if *id == reply.id => self.greeted(reply, fds),
            State::Registering { id, .. } if *id == reply.id => {
                if let Some(item) = self.todo.pop() {
                    self.registered(item, reply);
                }
                self.register_next();
            }
            _ => self.late_reply(reply, fds),
        }
    }

    /// Handles a reply for a lane that is being opened again, or to a call that was given up.
    pub(crate) fn late_reply(&mut self, reply: Reply, fds: Vec<OwnedFd>) {
        if let Some(at) = self.lanes.given_up.iter().position(|id| *id == reply.id) {
            self.lanes.given_up.remove(at);
            if let (Ok(LaneOk { handle, .. }), State::Attached(link)) = (reply.result(), &self.state) {
                self.next_id += 1;
                // Its answer is ignored, whatever it is.
                let _ = link.send(&Request { id: self.next_id, op: Op::CloseLane { handle } }.to_bytes());
            }
            return;
        }
        let Some((_, lane)) = self.reopening.take_if(|(id, _)| *id == reply.id) else { return };
        match reply.result::<LaneOk>() {
            Ok(granted) => self.pending.extend(self.lanes.opened_again(lane, granted, fds)),
            Err(refusal) => {
                if let Some(held) = self.lanes.held.remove(&lane) {
                    self.pending.push_back(Event::Dropped { what: held.wanted.name.as_str().into(), refusal });
                }
            }
        }
        self.reopen_next();
    }

    /// Has the new agent open the next lane. That takes the controller and switches, so nothing waits for
    /// it.
    fn reopen_next(&mut self) {
        let State::Attached(link) = &self.state else { return };
        let Some((lane, op)) = self.lanes.next_away() else { return };
        self.next_id += 1;
        let id = self.next_id;
        match link.send(&Request { id, op }.to_bytes()) {
            Ok(()) => self.reopening = Some((id, lane)),
            Err(_) => self.detach("the agent hung up"),
        }
    }

    /// If this lane is just being opened again, waits for the answer, so that no lane is left over at the
    /// agent.
    pub(crate) fn await_reopened(&mut self, lane: LaneId) -> Result<(), Error> {
        let deadline_ns = now_ns().saturating_add(LANE_TIMEOUT.as_nanos() as u64);
        while self.reopening.is_some_and(|(_, reopening)| reopening == lane.0) {
            let remaining = deadline_ns.saturating_sub(now_ns());
            let link = match self.state.link() {
                Some(link) if remaining > 0 => link,
                _ => return Err(timed_out("open_lane", LANE_TIMEOUT)),
            };
            poll_readable(&[link.as_fd()], Duration::from_nanos(remaining));
            self.on_socket();
        }
        self.wake_for_pending();
        Ok(())
    }

    fn greeted(&mut self, reply: Reply, fds: Vec<OwnedFd>) {
        // Takes the old ring's last records before the new one is read, which may be the same ring and
        // continues where this stops.
        self.drain_all();
        let (hello, memory) = match checked_hello(reply).and_then(|hello| Ok((Memory::map(&hello, fds)?, hello))) {
            Ok((memory, hello)) => (hello, memory),
            Err(error) => return self.detach(&error.to_string()),
        };
        let State::Greeting { link, id } = std::mem::replace(&mut self.state, State::Away) else { return };
        let resumed = hello.session == self.hello.session;
        self.install(memory);
        self.hello = hello;
        if resumed && self.todo.is_empty() {
            return self.attach(link, true);
        }
        if !resumed {
            self.lost_seen = self.memory.session.lost();
            for monitored in self.registry.monitors.values_mut() {
                monitored.watch = 0;
            }
            // Taken from the end: processes first, then monitors, each in the order of their first
            // registration.
            let monitors = self.registry.monitors.keys().rev().map(|id| Item::Monitor(*id));
            let processes = self.registry.processes.keys().rev().map(|id| Item::Process(*id));
            let services = self.lanes.services.iter().map(|service| Item::Service(*service));
            self.todo = services.chain(monitors).chain(processes).collect();
        }
        self.state = State::Registering { link, id };
        self.register_next();
    }

    fn attach(&mut self, link: Link, resumed: bool) {
        self.state = State::Attached(link);
        self.arm(0);
        if self.watch_events().is_err() {
            return self.detach("the event descriptor cannot be waited for");
        }
        (self.attempt, self.refused_again) = (0, 0);
        self.pending.push_back(Event::Reattached { resumed });
        self.check_incarnation();
        self.reopen_next();
    }

    /// Asks for the next registration, or attaches after the last one.
    fn register_next(&mut self) {
        let State::Registering { link, .. } = std::mem::replace(&mut self.state, State::Away) else { return };
        let Some(item) = self.todo.last() else { return self.attach(link, false) };
        let op = match item {
            Item::Process(id) => self.registry.processes.get(id).map(|joined| Op::Join {
                name: joined.name.to_string(),
                pid: joined.pid,
                beat_timeout_us: joined.beat_timeout_us,
            }),
            Item::Monitor(id) => self.registry.monitors.get(id).map(|m| m.wanted.op(&m.target)),
            Item::Former(id) => {
                self.registry.monitors.get(id).zip(self.registry.open(*id)).map(|(monitored, (slot, incarnation))| {
                    Op::Former { watch: monitored.watch, slot, incarnation, timeout_us: monitored.former_timeout_us }
                })
            }
            Item::Service(service) => Some(Op::Listen { service: *service }),
        };
        let id = self.new_id();
        let sent = op.is_some_and(|op| link.send(&Request { id, op }.to_bytes()).is_ok());
        self.state = State::Registering { link, id };
        if sent {
            self.arm(ANSWER_NS);
        } else {
            self.detach("the agent hung up");
        }
    }

    fn forget_former_timeout(&mut self, id: u32) {
        if let Some(monitored) = self.registry.monitors.get_mut(&id) {
            monitored.former_timeout_us = 0;
        }
    }

    fn registered(&mut self, item: Item, reply: Reply) {
        // Resources of the former agent may not be given back yet: the places of clients that have not come
        // again, or the name of a connection whose end the agent has not seen.
        if let Outcome::Error(Refusal { code: ErrorCode::Full | ErrorCode::NameTaken, message, .. }) = &reply.outcome
            && matches!(item, Item::Process(_) | Item::Monitor(_))
            && self.refused_again < REFUSED_AGAIN_MAX
        {
            self.refused_again += 1;
            let why = format!("not registered yet: {message}");
            self.todo.push(item);
            return self.detach(&why);
        }
        let refused: Option<(Arc<str>, Refusal)> = match item {
            Item::Process(id) => match (self.registry.processes.get_mut(&id), reply.result::<JoinOk>()) {
                (Some(joined), Ok(granted)) => {
                    joined.granted = granted;
                    None
                }
                (_, Ok(_)) => None,
                (_, Err(refusal)) => self.registry.processes.remove(&id).map(|joined| (joined.name, refusal)),
            },
            Item::Monitor(id) => match (self.registry.monitors.get_mut(&id), reply.result::<MonitorOk>()) {
                (Some(monitored), Ok(granted)) => {
                    // An agent in between may have gone before it got the former timeout.
                    monitored.former_timeout_us = monitored.former_timeout_us.max(monitored.granted.timeout_us);
                    monitored.register(granted);
                    // The new agent may never hear of the process or host that the former one reported up.
                    if self.registry.open(id).is_some() {
                        self.todo.push(Item::Former(id));
                    } else {
                        self.forget_former_timeout(id);
                    }
                    None
                }
                (_, Ok(_)) => None,
                (_, Err(refusal)) => self.registry.monitors.remove(&id).map(|monitored| (monitored.target, refusal)),
            },
            // An agent that does not know this request reports only what it hears itself.
            Item::Former(id) => {
                self.forget_former_timeout(id);
                None
            }
            Item::Service(service) => reply.result::<Empty>().err().map(|refusal| {
                self.lanes.services.retain(|other| *other != service);
                (format!("service {service}").into(), refusal)
            }),
        };
        if let Some((what, refusal)) = refused {
            self.pending.push_back(Event::Dropped { what, refusal });
        }
    }
}
