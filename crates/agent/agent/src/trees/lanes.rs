// SPDX-License-Identifier: Apache-2.0
//! Lanes of programs (X-Lane §2.4, Listing 1): requested from the controller, opened in the loop, followed
//! and reported.
//!
//! One thread owns them, so that programs' requests, the controller's events and the counts of sent packets
//! are handled in one order. It has the loop carry out commands through the control thread, and waits for
//! that; nothing waits for it.

mod asked;
mod follow;
mod held;

use crate::lane::{Lane, LaneCounters};
use fide_types::ClientSet;
use std::{
    collections::BTreeMap,
    os::fd::OwnedFd,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, SyncSender},
    },
    time::{Duration, Instant},
};

use fide_agent_api::event::EventRecord;
use fide_agent_api::protocol::{Empty, ErrorCode, LaneAsked, Refusal};
use fide_controller_api::{Method, event::Event, lane as api, paths};
use fide_lane::{LANES_MAX, Outlet};
use fide_net::link::Sender;
use fide_sys::clock::mono_ns;
use fide_types::Time;
use fide_wire::{MAX_CLIENTS, MAX_PLANES, Name, PAYLOAD_MAX};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{Order, Talk, call, lock, order};
use crate::{
    command::{Command, Reply},
    control::quotas::{Asker, Resource, Usage, admit, is_privileged},
};
use asked::{Checked, check, refusal};
use held::{HeldLane, Later};

/// How often the counts of sent packets are checked.
const TICK: Duration = Duration::from_millis(100);
/// Without an offence, usage is reported this often, and not before [`REPORT_PERIODS`] have passed.
const REPORT: Duration = Duration::from_secs(1);
const REPORT_PERIODS: u32 = 8;
/// How long a request may take before its program gets a failure.
const LIMIT: Duration = Duration::from_secs(5);
/// The same for a report, which is made again.
const REPORT_LIMIT: Duration = Duration::from_secs(1);
/// How long the switches may take to install a lane's rules, and its receivers to see that this host is up.
const INSTALL_LIMIT: Duration = Duration::from_secs(5);
/// How long a lane of a former agent waits for its program to come back.
const ORPHAN_LIMIT: Duration = Duration::from_secs(15);

/// An input of the lanes' thread.
#[derive(Debug)]
pub enum Input {
    /// A request of a program, in this session of its client's place.
    Ask { ticket: u64, client: u8, session: u64, uid: u32, asked: Instant, ask: Ask },
    /// A session is over.
    Gone { client: u8, session: u64 },
    /// An event from the controller.
    News(Box<Event>),
    /// Events may have been missed.
    Anew,
    /// This host leaves: all lanes are given back.
    Leave { done: SyncSender<()> },
}

/// A program's request.
#[derive(Debug)]
pub enum Ask {
    Open { name: String, asked: LaneAsked },
    Change { handle: u8, asked: LaneAsked },
    Close { handle: u8 },
}

pub(super) struct Lanes {
    talk: Talk,
    orders: SyncSender<Order>,
    wake: Arc<OwnedFd>,
    /// A sender for each interface, to make more from.
    templates: Vec<Sender>,
    held: [Option<HeldLane>; LANES_MAX],
    /// Lanes that a former agent of this host has left, with their names.
    orphans: BTreeMap<u64, String>,
    orphans_until: Option<Instant>,
    /// Whether the controller has described this host's lanes once.
    learnt: bool,
    /// The session in each client's place.
    sessions: [u64; MAX_CLIENTS],
    began: Instant,
    /// When the controller last failed to answer a request.
    failed: Option<Instant>,
}

impl Lanes {
    pub(super) fn new(talk: Talk, orders: SyncSender<Order>, wake: Arc<OwnedFd>, templates: Vec<Sender>) -> Self {
        Self {
            talk,
            orders,
            wake,
            templates,
            held: [const { None }; LANES_MAX],
            orphans: BTreeMap::new(),
            orphans_until: None,
            learnt: false,
            sessions: [0; MAX_CLIENTS],
            began: Instant::now(),
            failed: None,
        }
    }

    pub(super) fn run(mut self, inputs: &Receiver<Input>) {
        loop {
            let idle = self.held.iter().all(Option::is_none) && self.orphans.is_empty();
            let wait = if idle { Duration::from_secs(3600) } else { TICK };
            match inputs.recv_timeout(wait) {
                Ok(Input::Ask { ticket, client, session, uid, asked, ask }) => {
                    self.session(client, session);
                    if waited_in_vain(self.failed, asked, &ask) {
                        let message = "the controller did not answer while this request waited for its turn";
                        self.answer(ticket, Err(Refusal::new(ErrorCode::Gone, message, "is a controller running?")));
                    } else {
                        self.ask(ticket, client, uid, ask);
                    }
                }
                // Another session may have that place by now.
                Ok(Input::Gone { client, session }) if self.sessions[usize::from(client)] == session => {
                    self.gone(client)
                }
                Ok(Input::Gone { .. }) => {}
                Ok(Input::News(body)) => self.news(&body),
                Ok(Input::Anew) => self.learn(),
                Ok(Input::Leave { done }) => {
                    for handle in 0..LANES_MAX {
                        self.release(handle, REPORT_LIMIT);
                    }
                    // The thread that asked may have given up waiting.
                    let _ = done.try_send(());
                    return;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.tick();
        }
    }

    fn check(&self, asked: &LaneAsked) -> Result<Checked, Refusal> {
        // For an interface that is gone, its path's verdict reports that.
        let largest = crate::mtu::payload_max(&self.talk.interfaces).unwrap_or(PAYLOAD_MAX);
        check(&self.talk.config, self.talk.me, asked, self.templates.len(), largest)
    }

    fn ask(&mut self, ticket: u64, client: u8, uid: u32, ask: Ask) {
        let done = match ask {
            Ask::Open { name, asked } => self.open(ticket, client, uid, name, asked),
            Ask::Change { handle, asked } => self.change(ticket, client, handle, asked),
            Ask::Close { handle } => self.close(ticket, client, handle),
        };
        if let Err(refusal) = done {
            self.answer(ticket, Err(refusal));
        }
    }

    fn open(&mut self, ticket: u64, client: u8, uid: u32, name: String, asked: LaneAsked) -> Result<(), Refusal> {
        let checked = self.check(&asked)?;
        asked::check_lane_name(&name)?;
        if let Some(handle) = self.find(|held| held.name == name) {
            let held = self.held[handle].as_mut().expect("found");
            if held.ending {
                self.drop_lane(handle);
            } else {
                held.may_share(uid, &asked)?;
                held.clients.insert(client);
                held.waiting.push(ticket);
                let clients = held.clients;
                self.call(Command::ShareLane { handle: byte(handle), clients })?;
                self.answer_if_ready(handle);
                return Ok(());
            }
        }
        let own_uid = rustix::process::geteuid().as_raw();
        let limits = &self.talk.config.limits;
        let asker = Asker {
            uid,
            privileged: is_privileged(uid, own_uid),
            limit: limits.lanes,
            only_root: limits.only_root == Some(true),
        };
        let usage = Usage::of(uid, own_uid, self.held.iter().flatten().map(|held| (held.uid, 1)));
        admit(Resource::Lanes, asker, usage, LANES_MAX)?;
        let Some(handle) = self.held.iter().position(Option::is_none) else {
            let message = format!("this host has {LANES_MAX} lanes, the most there can be");
            return Err(Refusal::new(ErrorCode::Full, message, "close one"));
        };
        let body = checked.body(&name, &asked, byte(handle));
        if !self.learnt {
            self.learn();
        }
        // A lane that a former agent has left goes on, with what is asked now.
        let left = self.orphans.iter().find(|(_, of)| **of == name).map(|(lane, _)| *lane);
        let opened: api::Lane = match left {
            Some(lane) => self.request(Method::Put, &paths::lane(lane), &body),
            None => self.request(Method::Post, paths::LANES, &body),
        }?;
        if let Some(lane) = left {
            self.orphans.remove(&lane);
        }
        let counters = Arc::new(LaneCounters::default());
        let outlet = Outlet::new(byte(handle), self.talk.me, checked.terms(&asked), mono_ns());
        let lane = Lane {
            name: Name::new(name.as_bytes()).expect("checked"),
            outlet,
            trees: [const { None }; MAX_PLANES],
            clients: ClientSet::only(client),
            counters: counters.clone(),
        };
        let mut held = HeldLane::new(opened.lane, name, uid, asked, &checked, counters);
        held.clients = ClientSet::only(client);
        held.waiting.push(ticket);
        held.install_until = Instant::now() + INSTALL_LIMIT;
        held.granted(&opened.resources);
        if opened.begins_in_ns > 0 {
            held.later = Some((Instant::now() + Duration::from_nanos(opened.begins_in_ns), Later::Terms));
        }
        self.held[handle] = Some(held);
        self.call(Command::OpenLane { handle: byte(handle), lane: Box::new(lane) })?;
        self.follow(handle, &opened);
        Ok(())
    }

    fn change(&mut self, ticket: u64, client: u8, handle: u8, asked: LaneAsked) -> Result<(), Refusal> {
        let checked = self.check(&asked)?;
        let held = self.own(client, handle)?;
        if checked.redundancy != held.checked.redundancy {
            let message = "the number of trees of an open lane cannot change";
            return Err(Refusal::new(ErrorCode::BadRequest, message, "close the lane and open another one"));
        }
        if held.clients.len() > 1 && asked != held.asked {
            let message = format!("lane {} is shared by {} programs", held.name, held.clients.len());
            let hint = "only the same terms can be asked for again, which brings back its bounds; or open another lane";
            return Err(Refusal::new(ErrorCode::BadRequest, message, hint));
        }
        let (path, body) = (paths::lane(held.lane), checked.body(&held.name, &asked, handle));
        let changed: api::Lane = self.request(Method::Put, &path, &body)?;
        let held = self.own(client, handle)?;
        held.waiting.push(ticket);
        held.asked = asked;
        held.checked = checked;
        held.install_until = Instant::now() + INSTALL_LIMIT;
        let begins_in = Duration::from_nanos(changed.begins_in_ns);
        held.granted(&changed.resources);
        held.later = Some((Instant::now() + begins_in, Later::Terms));
        held.await_trees(&changed.trees);
        self.follow(usize::from(handle), &changed);
        self.tick_lane(usize::from(handle));
        Ok(())
    }

    fn close(&mut self, ticket: u64, client: u8, handle: u8) -> Result<(), Refusal> {
        let held = self.own(client, handle)?;
        held.clients.remove(client);
        self.settle_clients(usize::from(handle))?;
        self.answer(ticket, Ok(json!(Empty {})));
        Ok(())
    }

    /// Takes the present session of a client's place; if it is a new one, the one before is gone.
    fn session(&mut self, client: u8, session: u64) {
        if std::mem::replace(&mut self.sessions[usize::from(client)], session) != session {
            self.gone(client);
        }
    }

    fn gone(&mut self, client: u8) {
        for handle in 0..LANES_MAX {
            let Some(held) = self.held[handle].as_mut().filter(|held| held.clients.contains(client)) else {
                continue;
            };
            held.clients.remove(client);
            if let Err(refusal) = self.settle_clients(handle) {
                tracing::warn!("a lane of a program that is gone: {refusal}");
            }
        }
    }

    /// Fewer programs have a lane; it is given back when none has it.
    fn settle_clients(&mut self, handle: usize) -> Result<(), Refusal> {
        let Some(held) = &self.held[handle] else { return Ok(()) };
        if held.clients.is_empty() {
            self.release(handle, LIMIT);
            return Ok(());
        }
        self.call(Command::ShareLane { handle: byte(handle), clients: held.clients }).map(drop)
    }

    fn release(&mut self, handle: usize, limit: Duration) {
        let Some(held) = &self.held[handle] else { return };
        let (lane, name) = (held.lane, held.name.clone());
        let ending = held.ending;
        self.drop_lane(handle);
        if ending {
            return;
        }
        if let Err(why) = self.give_back(lane, limit) {
            tracing::warn!("lane {lane} ({name}) could not be given back yet: {why}");
            self.orphans.insert(lane, name);
            self.orphans_until = Some(Instant::now() + ORPHAN_LIMIT);
        }
    }

    fn give_back(&mut self, lane: u64, limit: Duration) -> Result<(), String> {
        let path = paths::lane(lane);
        let answered = lock(&self.talk.ordered)
            .change(&mut self.talk.caller, Method::Delete, &path, &Value::Null, limit)
            .map_err(|error| error.to_string())?;
        match answered.status {
            200 | 404 => Ok(()),
            _ => Err(answered.message().to_owned()),
        }
    }

    /// Takes a lane out of the loop, and refuses the requests that still wait for it.
    fn drop_lane(&mut self, handle: usize) {
        let Some(held) = self.held[handle].take() else { return };
        let _ = self.call(Command::CloseLane { handle: byte(handle) });
        for ticket in held.waiting {
            let why = Refusal::new(ErrorCode::Gone, format!("lane {} is over", held.name), "open it again");
            self.answer(ticket, Err(why));
        }
    }

    fn find(&self, wanted: impl Fn(&HeldLane) -> bool) -> Option<usize> {
        self.held.iter().position(|held| held.as_ref().is_some_and(&wanted))
    }

    fn own(&mut self, client: u8, handle: u8) -> Result<&mut HeldLane, Refusal> {
        let held = self.held.get_mut(usize::from(handle)).and_then(Option::as_mut);
        held.filter(|held| held.clients.contains(client) && !held.ending).ok_or_else(|| {
            Refusal::new(ErrorCode::NotFound, format!("this program has no lane {handle}"), "open it first")
        })
    }

    fn answer_if_ready(&mut self, handle: usize) {
        let ready = |held: &&HeldLane| held.is_ready() && !held.waiting.is_empty();
        let Some(held) = self.held[handle].as_ref().filter(ready) else { return };
        if !held.is_open && Instant::now() < held.install_until && !self.is_taken(&held.asked.receivers) {
            return;
        }
        let Some(held) = self.held[handle].as_mut() else { return };
        held.is_open = true;
        let (tickets, granted) = (std::mem::take(&mut held.waiting), held.answer(byte(handle)));
        for ticket in tickets {
            self.answer(ticket, Ok(json!(granted)));
        }
    }

    /// Whether all of these receivers take this host's packets. A host drops packets of a sender that it
    /// does not know to be up, and this host may have begun just now. Receivers that are down are not
    /// waited for; but a host that has begun just now does not know yet which receivers are up.
    fn is_taken(&self, receivers: &[String]) -> bool {
        let Ok(Reply::Standings { up, hold_us_up }) = self.call(Command::Standings) else { return true };
        let begins = self.began.elapsed() < INSTALL_LIMIT;
        (1..)
            .zip(&self.talk.config.members)
            .filter(|(_, member)| receivers.iter().any(|name| member.name.as_str() == name))
            .all(|(host, _)| hold_us_up.contains(host) || !begins && !up.contains(host))
    }

    fn tick(&mut self) {
        for handle in 0..LANES_MAX {
            self.tick_lane(handle);
            self.report(handle);
        }
        if self.orphans_until.is_some_and(|until| Instant::now() >= until) {
            self.orphans_until = None;
            for (lane, name) in std::mem::take(&mut self.orphans) {
                tracing::info!("lane {lane} ({name}) is nobody's any more, and is given back");
                if let Err(why) = self.give_back(lane, REPORT_LIMIT) {
                    tracing::warn!("lane {lane} ({name}) could not be given back: {why}");
                    self.orphans.insert(lane, name);
                    self.orphans_until = Some(Instant::now() + ORPHAN_LIMIT);
                }
            }
        }
    }

    /// Carries out the step that is due for a lane.
    fn tick_lane(&mut self, handle: usize) {
        let now = Instant::now();
        let Some(held) = self.held[handle].as_mut() else { return };
        match held.later.take_if(|(at, _)| *at <= now) {
            Some((_, Later::Close)) => return self.drop_lane(handle),
            Some((_, Later::Terms)) => {
                let (terms, type_of_service) = (held.terms(), held.type_of_service());
                let _ = self.call(Command::ChangeLane { handle: byte(handle), terms, type_of_service });
                self.answer_if_ready(handle);
            }
            None => self.answer_if_ready(handle),
        }
        let Some(held) = self.held[handle].as_mut() else { return };
        if held.waiting.is_empty() || now < held.install_until {
            return;
        }
        if held.trees.iter().any(Option::is_some) {
            // With one tree of two the lane works, and its answer says how many there are.
            held.checked.redundancy_needed = 1;
            self.answer_if_ready(handle);
            return;
        }
        let why =
            format!("the switches have not taken the rules of lane {} within {}", held.name, Time::from(INSTALL_LIMIT));
        for ticket in std::mem::take(&mut held.waiting) {
            let refusal = Refusal::new(ErrorCode::Gone, why.as_str(), "look at `fide controller status`");
            self.answer(ticket, Err(refusal));
        }
        self.release(handle, LIMIT);
    }

    /// Reports the sent packets to the controller (X-Lane §3.3).
    fn report(&mut self, handle: usize) {
        let Some(held) = self.held[handle].as_mut().filter(|held| !held.ending) else { return };
        let Some(report) = held.report(Instant::now(), REPORT.max(held.period() * REPORT_PERIODS)) else { return };
        let path = paths::usage(held.lane);
        let usage = api::Usage { interval_ns: report.interval_ns, packets: report.packets, exceeded: report.exceeded };
        let answered =
            lock(&self.talk.ordered).change(&mut self.talk.caller, Method::Post, &path, &usage, REPORT_LIMIT);
        match answered {
            Ok(answered) if answered.status == 200 => {}
            Ok(answered) if answered.status == 404 => {
                self.terminated(handle, "the controller does not know it any more", 0)
            }
            Ok(answered) => {
                tracing::warn!("the controller does not take what lane {} sent: {}", path, answered.message())
            }
            // It goes with the next report.
            Err(_) => {
                if let Some(held) = self.held[handle].as_mut() {
                    held.report_failed(&report);
                }
            }
        }
    }

    fn request<T: DeserializeOwned>(
        &mut self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Refusal> {
        let answered = lock(&self.talk.ordered).change(&mut self.talk.caller, method, path, body, LIMIT);
        let answered = answered
            .inspect_err(|_| self.failed = Some(Instant::now()))
            .map_err(|error| Refusal::new(ErrorCode::Gone, error.to_string(), "is a controller running?"))?;
        if !answered.is_ok() {
            return Err(refusal(&answered));
        }
        answered.read().map_err(|why| asked::nonsense(&why))
    }

    /// Has the loop carry out a command.
    fn call(&self, command: Command) -> Result<Reply, Refusal> {
        call(&self.orders, &self.wake, command).ok_or_else(|| Refusal::new(ErrorCode::Gone, "the agent is ending", ""))
    }

    fn tell(&self, clients: ClientSet, record: EventRecord, data: &[u8]) {
        let _ = self.call(Command::Deliver { clients, record, data: data.into() });
    }

    fn answer(&self, ticket: u64, answer: Result<Value, Refusal>) {
        order(&self.orders, &self.wake, Order::Answer { ticket, answer });
    }
}

/// Whether a request waited while the controller failed to answer another one. It is not tried: each would
/// cost everybody another [`LIMIT`]. Giving back a lane is always carried out.
fn waited_in_vain(failed: Option<Instant>, asked: Instant, ask: &Ask) -> bool {
    !matches!(ask, Ask::Close { .. }) && failed.is_some_and(|failed| asked <= failed)
}

/// A handle or tree as commands carry it.
fn byte(index: usize) -> u8 {
    u8::try_from(index).expect("at most 16")
}

fn code(handle: usize) -> i32 {
    i32::try_from(handle).expect("at most 16")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_that_waited_for_a_silent_controller_is_refused() {
        let asked = json!({ "receivers": [], "message_max_bytes": 1, "period_ns": 1 });
        let asked = serde_json::from_value(asked).expect("a request");
        let (close, open) = (Ask::Close { handle: 0 }, Ask::Open { name: "a".to_owned(), asked });
        let before = Instant::now();
        let failed = before + LIMIT;
        assert!(waited_in_vain(Some(failed), before, &open));
        assert!(!waited_in_vain(Some(failed), failed + TICK, &open), "the next one is tried");
        assert!(!waited_in_vain(None, before, &open) && !waited_in_vain(Some(failed), before, &close));
    }
}
