// SPDX-License-Identifier: Apache-2.0
//! What clients ask for.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    process,
};

use fide_bpf::{ClientRings, Registration};
use fide_client::protocol::{
    Empty, ErrorCode, EventsOk, EventsVia, HelloOk, HostInfo, JoinOk, MESSAGE_MAX, MetricsOk, MonitorOk, Op,
    PROTOCOL_VERSION, PeerState, Refusal, Reply as Answer, Request, parse_target,
};
use std::time::Instant;

use fide_detector::{JoinError, MonitorError, Wanted};
use fide_shm::{
    region::RegionError,
    session::{AgentSession, SESSION_BYTES},
};
use fide_wire::{MAX_CLIENTS, MAX_PROCESSES, Name};
use rustix::event::epoll;

use super::{
    Control, Session,
    lanes::doorbell,
    quotas::{Resource, Usage, admit},
    token,
    watched::{Watched, token_of},
};
use crate::{
    command::{Change, Channel, Command, EngineGone, Memory, MonitorRefusal, Reply, waker},
    config::UnlistedNames,
    engine::WATCHES_MAX,
    incarnation, metrics,
    names::{Caller, NotYours},
    pidns::{Namespace, TranslateError, peer_lives},
    process::Process,
    socket,
    status::{self, LeftOut},
    trees::Ask,
};

pub(super) type Answered = Result<Answer, Refusal>;

/// Bytes around an answer.
const ENVELOPE: usize = 64;
/// Characters of a program's name that are kept.
const PROGRAM_CHARS_MAX: usize = 64;
/// Heartbeats in the shortest time without a beat: what they tell cannot be known sooner.
const BEAT_HEARTBEATS: u64 = 2;
const BEAT_TIMEOUT_MIN_NS: u64 = 1_000_000;

impl From<EngineGone> for Refusal {
    fn from(gone: EngineGone) -> Self {
        Self::new(ErrorCode::Gone, gone.to_string(), "restart the agent and look into its log")
    }
}

impl Control {
    /// Carries out one request; `None` if it is answered later.
    pub(super) fn request(&mut self, connection: u64, request: Request) -> Option<(Answer, Vec<OwnedFd>)> {
        let id = request.id;
        let mut fds = Vec::new();
        let answered = match request.op {
            Op::OpenLane { name, asked } => return self.ask_lane(connection, id, Ask::Open { name, asked }),
            Op::ChangeLane { handle, asked } => return self.ask_lane(connection, id, Ask::Change { handle, asked }),
            Op::CloseLane { handle } => return self.ask_lane(connection, id, Ask::Close { handle }),
            Op::Listen { service } => self.listen(id, connection, service, true),
            Op::Unlisten { service } => self.listen(id, connection, service, false),
            Op::Hello { protocol, program, session } => {
                self.hello(id, connection, protocol, program, session.as_deref(), &mut fds)
            }
            Op::TakeOver { phase, version } => self.take_over(id, connection, phase, &version, &mut fds),
            Op::Join { name, pid, beat_timeout_us } => self.join(id, connection, &name, pid, beat_timeout_us),
            Op::Quit { slot, incarnation } => self.quit(id, connection, slot, incarnation),
            Op::Monitor { target, timeout_us, pbsize } => self.monitor(id, connection, &target, timeout_us, pbsize),
            Op::Former { watch, slot, incarnation, timeout_us } => {
                let timeout_ns = u64::from(timeout_us) * 1000;
                self.former(id, connection, |client| Command::Former { client, watch, slot, incarnation, timeout_ns })
            }
            Op::Unmonitor { watch } => self.unmonitor(id, connection, watch),
            Op::Status {} => self.status(id),
            Op::Explain { event } => self.explain(id, &event),
            Op::Metrics {} => self.metrics(id),
            Op::Events { since, kind } => {
                let events = self.journal.last(since, kind.as_deref());
                let events = events.into_iter().map(|entry| entry.to_json(&self.parts.config)).collect();
                Ok(Answer::ok(id, &EventsOk { events }))
            }
        };
        Some(match answered {
            Ok(answer) => (answer, fds),
            Err(refusal) => (Answer::error(id, refusal), Vec::new()),
        })
    }

    pub(super) fn client_of(&self, connection: u64) -> Result<u8, Refusal> {
        self.connections
            .get(&connection)
            .and_then(|connection| connection.client)
            .ok_or_else(|| Refusal::new(ErrorCode::BadRequest, "this connection has no session", "send hello first"))
    }

    fn hello(
        &mut self,
        id: u64,
        connection: u64,
        protocol: u32,
        program: String,
        session: Option<&str>,
        fds: &mut Vec<OwnedFd>,
    ) -> Answered {
        if protocol != PROTOCOL_VERSION {
            return Err(Refusal::new(
                ErrorCode::Version,
                format!("the client speaks protocol {protocol}, this agent {PROTOCOL_VERSION}"),
                "link the client library that came with this agent",
            ));
        }
        if self.client_of(connection).is_ok() {
            return Err(Refusal::new(ErrorCode::BadRequest, "this connection has a session already", "say hello once"));
        }
        let client = match session.and_then(|token| self.orphan(token, connection)) {
            Some(client) => client,
            None => self.open_session(connection, program)?,
        };
        let open = &self.sessions[&client];
        for fd in [&self.parts.table, &open.region, &open.events] {
            fds.push(fd.try_clone().map_err(|error| no_session("no descriptor", &error))?);
        }
        if let Some(connection) = self.connections.get_mut(&connection) {
            connection.client = Some(client);
            connection.namespace = Namespace::of(connection.who.pid, connection.socket());
        }
        let members = self
            .parts
            .config
            .members
            .iter()
            .map(|member| HostInfo { name: member.name.as_str().to_owned(), addresses: member.addresses.clone() });
        Ok(Answer::ok(
            id,
            &HelloOk {
                protocol: PROTOCOL_VERSION,
                agent_version: env!("CARGO_PKG_VERSION").to_owned(),
                host: self.parts.config.member(self.parts.me).name.as_str().to_owned(),
                host_id: self.parts.me,
                incarnation: self.parts.incarnation,
                session: open.token.clone(),
                events: if open.ring { EventsVia::Bpf } else { EventsVia::Shm },
                heartbeat_us: u32::try_from(self.parts.config.heartbeat_ns / 1000).unwrap_or(u32::MAX),
                trust: status::trust_name(self.parts.config.trust).to_owned(),
                members: members.collect(),
            },
        ))
    }

    /// A session that was taken over and whose client is back.
    fn orphan(&mut self, token: &str, connection: u64) -> Option<u8> {
        let who = self.connections[&connection].who;
        let (client, session) = self.sessions.iter_mut().find(|(_, session)| session.token == token)?;
        if session.orphan_until.is_none() || session.who.uid != who.uid {
            return None;
        }
        session.orphan_until = None;
        session.who = who;
        Some(*client)
    }

    fn open_session(&mut self, connection: u64, program: String) -> Result<u8, Refusal> {
        let uid = self.connections[&connection].who.uid;
        let usage = Usage::of(uid, self.own_uid, self.sessions.values().map(|session| (session.who.uid, 1)));
        admit(Resource::Sessions, self.asker(uid, Resource::Sessions), usage, MAX_CLIENTS)?;
        let client = self
            .free_client()
            .ok_or_else(|| Refusal::new(ErrorCode::Full, "64 sessions are open, the most there can be", "close one"))?;
        self.opened += 1;
        let who = self.connections[&connection].who;
        let region = self.session_memory().map_err(|error| no_session("no memory", &error))?;
        let keep = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().map_err(|error| no_session("no descriptor", &error));
        let (channel, events) = match &self.parts.rings {
            Some(rings) => (Channel::Ring, rings.open(client).map_err(|error| no_session("no event ring", &error))?),
            None => {
                let waker = waker().map_err(|error| no_session("no descriptor", &error))?;
                let theirs = keep(waker.as_fd())?;
                (Channel::Inbox(waker), theirs)
            }
        };
        let doorbell = doorbell().map_err(|error| no_session("no descriptor", &error))?;
        let session = Session {
            serial: self.next_serial(),
            token: token().map_err(|error| no_session("no random numbers", &error))?,
            program: for_people(&program),
            who,
            watches: 0,
            region: keep(region.as_fd())?,
            events,
            ring: matches!(channel, Channel::Ring),
            doorbell: keep(doorbell.as_fd())?,
            orphan_until: None,
        };
        let memory = Box::new(Memory { region, channel, doorbell });
        self.parts.exchange.call(Command::OpenSession { client, memory })?;
        self.sessions.insert(client, session);
        Ok(client)
    }

    /// What a client cannot take pages away from, where there is such memory.
    fn session_memory(&self) -> Result<AgentSession, RegionError> {
        if self.parts.rings.is_some() {
            match ClientRings::memory(SESSION_BYTES) {
                Ok(memory) => return AgentSession::create_in(memory),
                Err(error) => tracing::warn!("a session's memory is a file: {error}"),
            }
        }
        AgentSession::create()
    }

    fn join(&mut self, id: u64, connection: u64, name: &str, pid: u32, beat_timeout_us: u32) -> Answered {
        let client = self.client_of(connection)?;
        let who = self.connections[&connection].who;
        let bad = |error: &dyn std::fmt::Display| Refusal::new(ErrorCode::BadRequest, error.to_string(), "");
        let wire_name = Name::new(name.as_bytes()).map_err(|error| bad(&error))?;
        let called = pid;
        let pid = self.pid_of(connection, called)?;
        if pid == process::id() {
            return Err(Refusal::new(
                ErrorCode::BadRequest,
                "an agent cannot watch itself",
                "its silence is told by its peers; watch it as @host from another host",
            ));
        }
        let process = Process::open(pid).map_err(|error| match error.raw_os_error() {
            Some(libc::ESRCH) => gone(called),
            _ => Refusal::new(ErrorCode::NotSupported, format!("process {pid} cannot be held: {error}"), ""),
        })?;
        // Held, it keeps its number: it is the one that was meant if it has that still.
        if self.pid_of(connection, called)? != pid || process.has_exited() {
            return Err(gone(called));
        }
        if who.uid != 0 && who.uid != process.uid() {
            return Err(Refusal::new(
                ErrorCode::NotPermitted,
                format!("process {pid} belongs to user {}, the caller is user {}", process.uid(), who.uid),
                "ask as that user, or as root",
            ));
        }
        let beat_timeout_ns = u64::from(beat_timeout_us) * 1000;
        let shortest_ns = (self.parts.config.heartbeat_ns * BEAT_HEARTBEATS).max(BEAT_TIMEOUT_MIN_NS);
        if beat_timeout_ns != 0 && beat_timeout_ns < shortest_ns {
            return Err(Refusal::new(
                ErrorCode::TimeoutTooShort,
                format!(
                    "without a beat for {beat_timeout_us} us {name} would be told stalled; heartbeats tell it, one each {} us",
                    self.parts.config.heartbeat_ns / 1000
                ),
                format!("{} us is the shortest here", shortest_ns / 1000),
            ));
        }
        if let Some((slot, other)) = self.processes.iter().find(|(_, other)| other.process.pid() == pid) {
            let (slot, orphaned) = (*slot, !self.sessions.contains_key(&other.client) || other.client == client);
            if other.name == name && orphaned {
                // Its client lost the answer, or its connection, and asks again.
                return self.adopt(id, slot, client, beat_timeout_ns);
            }
            return Err(Refusal::new(
                ErrorCode::NameTaken,
                format!("process {pid} is under watch already, as {}", other.name),
                "quit it there first",
            ));
        }
        let asker = self.asker(who.uid, Resource::Processes);
        if !asker.privileged {
            let groups = socket::groups(self.connections[&connection].socket());
            self.may_be_called(name, &Caller { uid: who.uid, groups })?;
        }
        let usage = Usage::of(who.uid, self.own_uid, self.processes.values().map(|watched| (watched.by, 1)));
        admit(Resource::Processes, asker, usage, MAX_PROCESSES)?;
        let joined = match self.parts.exchange.call(Command::Join { client, name: wire_name, beat_timeout_ns })? {
            Reply::Joined(joined) => joined.map_err(|error| {
                let code = match error {
                    JoinError::NameTaken { .. } => ErrorCode::NameTaken,
                    JoinError::Full => ErrorCode::Full,
                    JoinError::Leaving => ErrorCode::Gone,
                    JoinError::Witness => ErrorCode::NotSupported,
                };
                let hint = match error {
                    JoinError::Witness => {
                        "run the program on a host with role = \"voter\" or \"observer\"; watch works here too"
                    }
                    _ => "",
                };
                Refusal::new(code, error.to_string(), hint)
            })?,
            _ => return Err(EngineGone.into()),
        };
        let slot = joined.slot;
        if let Err(error) =
            incarnation::reserve(&self.parts.config.state_dir, self.parts.incarnation, joined.incarnation)
        {
            tracing::warn!(name, "{error}; after a restart others may take its successor for an earlier process");
        }
        if let Some(exit_watch) = &self.parts.exit_watch {
            let registration =
                Registration { pid, start_ticks: process.start_ticks(), slot: u32::from(slot), cookie: joined.cookie };
            // The pidfd below watches on; the kernel's hook is only faster.
            if let Err(error) = exit_watch.watch(&registration) {
                tracing::warn!(name, "falls back to a pidfd: {error}");
            }
        }
        let token = token_of(slot, self.next_serial());
        epoll::add(&self.epoll, &process, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
            .map_err(|error| Refusal::new(ErrorCode::Full, format!("process {pid} cannot be watched: {error}"), ""))?;
        let gone = process.has_exited();
        self.processes.insert(
            slot,
            Watched {
                name: name.to_owned(),
                cookie: joined.cookie,
                incarnation: joined.incarnation,
                client,
                uid: process.uid(),
                by: who.uid,
                process,
                token,
            },
        );
        self.names.keep(name, who.uid, who.uid == 0 || who.uid == self.own_uid);
        if gone {
            // It went while it was being registered, perhaps before the hook knew of it.
            self.process_left(token);
            return Err(Refusal::new(ErrorCode::Gone, format!("process {pid} has just gone"), ""));
        }
        Ok(Answer::ok(id, &JoinOk { slot, incarnation: joined.incarnation, pbsize: joined.pbsize }))
    }

    /// The agent's number of what this connection's program calls `pid`.
    fn pid_of(&self, connection: u64, pid: u32) -> Result<u32, Refusal> {
        let connection = &self.connections[&connection];
        let ended = || {
            let message = "the process that opened this connection has ended, or cannot be seen from here";
            Refusal::new(ErrorCode::Gone, message, "connect anew, and from no pid namespace beside the agent's")
        };
        match pid {
            0 if connection.who.pid == 0 || !peer_lives(connection.socket()) => Err(ended()),
            0 => Ok(connection.who.pid),
            _ => connection.namespace.translate(pid).map_err(|error| match error {
                TranslateError::Gone(_) => Refusal::new(ErrorCode::Gone, error.to_string(), "start it first"),
                TranslateError::Hidden { .. } => {
                    let hint = "have it join by itself (pid 0), or ask from the agent's namespace";
                    Refusal::new(ErrorCode::NotSupported, error.to_string(), hint)
                }
            }),
        }
    }

    /// Whether this user may join under this name.
    fn may_be_called(&self, name: &str, caller: &Caller) -> Result<(), Refusal> {
        let config = &self.parts.config;
        let only_listed = config.unlisted_names == UnlistedNames::Nobody;
        let uid = caller.uid;
        self.names.check(&config.names, only_listed, name, caller).map_err(|why| {
            let (message, hint) = match why {
                NotYours::Rule(rule) => (
                    format!("user {uid} may not join as {name}: [[name]] {} is about others", rule.pattern),
                    "choose another name, or have the user added there, in fide.toml".to_owned(),
                ),
                NotYours::Unlisted => (
                    format!(
                        "user {uid} may not join as {name}: no [[name]] is about it, and unlisted_names = \"nobody\""
                    ),
                    format!("have [[name]] with pattern = \"{name}\" and users = [\"{uid}\"] added to fide.toml"),
                ),
                NotYours::Kept { by } => (
                    format!("{name} is a name of user {by}, who joined under it first; the caller is user {uid}"),
                    "choose another name, or have whose it is written into fide.toml: [[name]] with pattern and users"
                        .to_owned(),
                ),
            };
            Refusal::new(ErrorCode::NotPermitted, message, hint)
        })
    }

    fn adopt(&mut self, id: u64, slot: u8, client: u8, beat_timeout_ns: u64) -> Answered {
        match self.parts.exchange.call(Command::Adopt { slot, client, beat_timeout_ns })? {
            Reply::Adopted(Some(joined)) => {
                if let Some(watched) = self.processes.get_mut(&slot) {
                    (watched.client, watched.incarnation) = (client, joined.incarnation);
                }
                Ok(Answer::ok(id, &JoinOk { slot, incarnation: joined.incarnation, pbsize: joined.pbsize }))
            }
            _ => Err(Refusal::new(ErrorCode::Gone, "the process has just gone", "")),
        }
    }

    /// `incarnation`: of the process that is meant. Others may have got its slot since.
    fn quit(&mut self, id: u64, connection: u64, slot: u8, incarnation: Option<u32>) -> Answered {
        let who = self.connections[&connection].who;
        let not_found = |why: String| Refusal::new(ErrorCode::NotFound, why, "");
        let watched = self.processes.get(&slot);
        let watched = watched.ok_or_else(|| not_found(format!("no process is under watch in slot {slot}")))?;
        if let Some(incarnation) = incarnation.filter(|incarnation| *incarnation != watched.incarnation) {
            let present = watched.incarnation;
            return Err(not_found(format!(
                "incarnation {incarnation} is not under watch any more in slot {slot}: incarnation {present} is"
            )));
        }
        if who.uid != 0 && who.uid != watched.uid {
            return Err(Refusal::new(
                ErrorCode::NotPermitted,
                format!("{} belongs to user {}, the caller is user {}", watched.name, watched.uid, who.uid),
                "ask as that user, or as root",
            ));
        }
        let watched = self.processes.remove(&slot).expect("looked up above");
        let _ = epoll::delete(&self.epoll, watched.process.as_fd());
        if let Some(exit_watch) = &self.parts.exit_watch {
            exit_watch.unwatch(watched.process.pid());
        }
        let at_ns = fide_lane::now_ns();
        self.parts.exchange.call(Command::Changed { slot, cookie: watched.cookie, change: Change::Left, at_ns })?;
        Ok(Answer::ok(id, &Empty {}))
    }

    fn monitor(&mut self, id: u64, connection: u64, target: &str, timeout_us: u32, pbsize: u16) -> Answered {
        let client = self.client_of(connection)?;
        let uid = self.connections[&connection].who.uid;
        let of = |session: &Session| (session.who.uid, usize::try_from(session.watches).unwrap_or(usize::MAX));
        let usage = Usage::of(uid, self.own_uid, self.sessions.values().map(of));
        admit(Resource::Watches, self.asker(uid, Resource::Watches), usage, WATCHES_MAX)?;
        let (name, host) =
            parse_target(target).map_err(|error| Refusal::new(ErrorCode::BadRequest, error.to_string(), ""))?;
        let members = &self.parts.config.members;
        let position = members.iter().position(|member| member.name.as_str() == host).ok_or_else(|| {
            let names: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
            Refusal::new(
                ErrorCode::UnknownHost,
                format!("no host of this cluster is called {host}"),
                format!("there are {}", names.join(", ")),
            )
        })?;
        let host_id = u16::try_from(position + 1).expect("at most 64 members");
        let name = name.map(|name| Name::new(name.as_bytes()).expect("parse_target checked it"));
        let wanted = Wanted { timeout_ns: u64::from(timeout_us) * 1000, pbsize };
        let granted = match self.parts.exchange.call(Command::Monitor { client, host: host_id, name, wanted })? {
            Reply::Monitored(Ok(granted)) => granted,
            Reply::Monitored(Err(refusal)) => return Err(monitor_refusal(refusal)),
            _ => return Err(EngineGone.into()),
        };
        if let Some(session) = self.sessions.get_mut(&client) {
            session.watches += 1;
        }
        Ok(Answer::ok(
            id,
            &MonitorOk {
                watch: granted.watch,
                host_id,
                timeout_us: u32::try_from(granted.timeout_ns / 1000).unwrap_or(u32::MAX),
                pbsize: granted.pbsize,
                state: match granted.alive {
                    None => PeerState::Unknown,
                    Some(true) => PeerState::Alive,
                    Some(false) => PeerState::Dead,
                },
                slot: granted.slot,
                incarnation: granted.incarnation,
            },
        ))
    }

    fn former(&mut self, id: u64, connection: u64, command: impl FnOnce(u8) -> Command) -> Answered {
        let client = self.client_of(connection)?;
        self.parts.exchange.call(command(client))?;
        Ok(Answer::ok(id, &Empty {}))
    }

    fn unmonitor(&mut self, id: u64, connection: u64, watch: u32) -> Answered {
        let client = self.client_of(connection)?;
        match self.parts.exchange.call(Command::Unmonitor { client, watch })? {
            Reply::Unmonitored(true) => {
                if let Some(session) = self.sessions.get_mut(&client) {
                    session.watches -= 1;
                }
                Ok(Answer::ok(id, &Empty {}))
            }
            _ => Err(Refusal::new(ErrorCode::NotFound, format!("this session has no watch {watch}"), "")),
        }
    }

    fn status(&mut self, id: u64) -> Answered {
        self.look()?;
        let snapshot = self.snapshot.as_deref().ok_or(EngineGone)?;
        let local: Vec<_> = self
            .processes
            .iter()
            .map(|(slot, watched)| status::Local {
                slot: *slot,
                name: &watched.name,
                pid: watched.process.pid(),
                uid: watched.uid,
                // After an exclusion it is another one than it was at its join.
                incarnation: snapshot.process(self.parts.me, *slot).map_or(0, |process| process.incarnation),
                session: self.sessions.get(&watched.client).map(|session| session.program.as_str()),
            })
            .collect();
        let clients: Vec<_> = self
            .sessions
            .values()
            .map(|session| status::Client {
                program: &session.program,
                pid: session.who.pid,
                uid: session.who.uid,
                watches: session.watches,
            })
            .collect();
        let mut told = status::Told {
            config: &self.parts.config,
            me: self.parts.me,
            rungs: &self.parts.rungs,
            snapshot,
            local,
            clients,
            records_lost: self.parts.exchange.records_lost(),
            timeout_ns: self.parts.timeout_ns,
            excluded: self.excluded.as_ref(),
            left_out: LeftOut::None,
            differs: self.shapes.differing(Instant::now()).map(|(name, items)| (name.as_str(), items)).collect(),
        };
        let mut answer = told.to_json();
        for left_out in [LeftOut::Ended, LeftOut::All] {
            if answer.to_string().len() + ENVELOPE > MESSAGE_MAX {
                told.left_out = left_out;
                answer = told.to_json();
            }
        }
        Ok(Answer::ok(id, &answer))
    }

    fn metrics(&mut self, id: u64) -> Answered {
        self.look()?;
        let snapshot = self.snapshot.as_deref().ok_or(EngineGone)?;
        let text = metrics::text(&self.parts.config, self.parts.me, snapshot, &self.journal);
        Ok(Answer::ok(id, &MetricsOk { text }))
    }

    fn explain(&self, id: u64, event: &str) -> Answered {
        let entry = self.journal.find(event).ok_or_else(|| {
            Refusal::new(
                ErrorCode::NotFound,
                format!("this agent remembers no event {event}"),
                format!("it remembers {}; `fide status` lists the last ones", self.journal.range()),
            )
        })?;
        Ok(Answer::ok(id, &entry.to_json(&self.parts.config)))
    }
}

fn gone(pid: u32) -> Refusal {
    Refusal::new(ErrorCode::Gone, format!("there is no process {pid}, or no more"), "start it first")
}

/// What a client says of itself, fit to be shown.
fn for_people(program: &str) -> String {
    program.chars().filter(|c| !c.is_control()).take(PROGRAM_CHARS_MAX).collect()
}

fn no_session(what: &str, error: &dyn std::fmt::Display) -> Refusal {
    Refusal::new(ErrorCode::NotSupported, format!("{what} for a session: {error}"), "look into the agent's log")
}

fn monitor_refusal(refusal: MonitorRefusal) -> Refusal {
    match refusal {
        MonitorRefusal::Full => Refusal::new(
            ErrorCode::Full,
            format!("{} watches exist on this host, the most there can be", WATCHES_MAX),
            "unmonitor some",
        ),
        MonitorRefusal::Detector(error) => {
            let code = match error {
                MonitorError::UnknownHost { .. } => ErrorCode::UnknownHost,
                MonitorError::NotMonitored { .. } => ErrorCode::NotSupported,
                MonitorError::TimeoutTooShort { .. } => ErrorCode::TimeoutTooShort,
                MonitorError::Full { .. } => ErrorCode::Full,
                MonitorError::NotFound => ErrorCode::NotFound,
            };
            Refusal::new(code, error.to_string(), "")
        }
    }
}
