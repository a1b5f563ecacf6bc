// SPDX-License-Identifier: Apache-2.0
//! Clients' requests.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use fide_agent_api::protocol::{
    Empty, ErrorCode, EventsOk, EventsVia, HelloOk, HostInfo, MESSAGE_MAX, MetricsOk, MonitorOk, Op, PROTOCOL_VERSION,
    PeerState, Refusal, Reply as Answer, Request, parse_target,
};
use fide_agent_api::status::{ClientStatus, LocalProcess};
use fide_bpf::ClientRings;
use std::time::Instant;

use fide_agent_api::session::{AgentSession, SESSION_BYTES};
use fide_detector::{MonitorError, Wanted};
use fide_shm::region::RegionError;
use fide_wire::{MAX_CLIENTS, Name};
use serde_json::json;

use super::{
    Control, Session,
    connections::Answered,
    quotas::{Resource, Usage, admit},
    token,
};
use crate::command::{Channel, Command, EngineGone, Memory, MonitorRefusal, Reply, waker};
use crate::frozen::WATCHES_MAX;
use crate::metrics;
use crate::pidns::Namespace;
use crate::status::{self, LeftOut};
use crate::trees::Ask;

/// Bytes around an answer.
const ENVELOPE: usize = 64;
/// Characters of a program's name that are kept.
const PROGRAM_CHARS_MAX: usize = 64;

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
            Op::Hello { protocol, program, session, bell } => {
                self.hello(id, connection, protocol, program, session.as_deref(), &mut fds).and_then(|answer| {
                    if bell { self.push_bell(connection, &mut fds).map(|()| answer) } else { Ok(answer) }
                })
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
            Op::Gaps { host } => self.gaps(id, &host),
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
                trust: self.parts.config.trust.as_str().to_owned(),
                members: members.collect(),
            },
        ))
    }

    /// Adds the doorbell of the session that a connection has just been given.
    fn push_bell(&self, connection: u64, fds: &mut Vec<OwnedFd>) -> Result<(), Refusal> {
        let client = self.client_of(connection)?;
        let bell = self.sessions[&client].doorbell.try_clone().map_err(|error| no_session("no descriptor", &error))?;
        fds.push(bell);
        Ok(())
    }

    /// The session with this token, if it was taken over and its client comes back now.
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
        let uid = self.connections[&connection].who.share;
        let usage = Usage::of(uid, self.own_uid, self.sessions.values().map(|session| (session.who.share, 1)));
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
        let doorbell = crate::command::doorbell().map_err(|error| no_session("no descriptor", &error))?;
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

    /// Memory whose pages a client cannot remove, where the kernel offers such memory.
    fn session_memory(&self) -> Result<AgentSession, RegionError> {
        if self.parts.rings.is_some() {
            match ClientRings::memory(SESSION_BYTES) {
                Ok(memory) => return AgentSession::create_in(memory),
                Err(error) => tracing::warn!("a session's memory is a file: {error}"),
            }
        }
        AgentSession::create()
    }

    fn monitor(&mut self, id: u64, connection: u64, target: &str, timeout_us: u32, pbsize: u16) -> Answered {
        let client = self.client_of(connection)?;
        let uid = self.connections[&connection].who.share;
        let of = |session: &Session| (session.who.share, usize::try_from(session.watches).unwrap_or(usize::MAX));
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
            .map(|(slot, watched)| LocalProcess {
                slot: *slot,
                name: watched.name.clone(),
                pid: watched.process.pid(),
                uid: watched.uid,
                // After an exclusion it differs from the incarnation that it joined with.
                incarnation: snapshot.process(self.parts.me, *slot).map_or(0, |process| process.incarnation),
                program: self.sessions.get(&watched.client).map(|session| session.program.clone()),
            })
            .collect();
        let clients: Vec<_> = self
            .sessions
            .values()
            .map(|session| ClientStatus {
                program: session.program.clone(),
                pid: session.who.pid,
                uid: session.who.uid,
                watches: session.watches,
            })
            .collect();
        let mut report = status::Report {
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
        let mut answer = json!(report.status());
        for left_out in [LeftOut::Ended, LeftOut::All, LeftOut::Gaps] {
            if answer.to_string().len() + ENVELOPE > MESSAGE_MAX {
                report.left_out = left_out;
                answer = json!(report.status());
            }
        }
        Ok(Answer::ok(id, &answer))
    }

    fn metrics(&mut self, id: u64) -> Answered {
        self.look()?;
        let snapshot = self.snapshot.as_deref().ok_or(EngineGone)?;
        let text = |thinned| metrics::text(&self.parts.config, self.parts.me, snapshot, &self.journal, thinned);
        // With many hosts of long names, not every bucket of their gaps fits.
        let fits = |text: &String| json!(text).to_string().len() + ENVELOPE <= MESSAGE_MAX;
        let text = metrics::THINNED.into_iter().map(&text).find(fits).unwrap_or_else(|| text(usize::MAX));
        Ok(Answer::ok(id, &MetricsOk { text }))
    }

    fn gaps(&mut self, id: u64, host: &str) -> Answered {
        let config = &self.parts.config;
        let peer =
            (1u16..).zip(&config.members).find(|(peer, member)| *peer != self.parts.me && member.name.as_str() == host);
        let Some((peer, _)) = peer else {
            return Err(Refusal::new(ErrorCode::UnknownHost, format!("{host} is no other host of this cluster"), ""));
        };
        self.look()?;
        let snapshot = self.snapshot.as_deref().ok_or(EngineGone)?;
        Ok(Answer::ok(id, &status::all_gaps(&self.parts.config, peer, snapshot)))
    }

    fn explain(&self, id: u64, event: &str) -> Answered {
        let entry = self.journal.find(event).ok_or_else(|| {
            Refusal::new(
                ErrorCode::NotFound,
                format!("this agent remembers no event {event}"),
                format!("it remembers {}; `fide explain` without an id lists the last ones", self.journal.range()),
            )
        })?;
        Ok(Answer::ok(id, &entry.to_json(&self.parts.config)))
    }
}

/// Whether a character does more to a terminal or a page than being shown: controls, and invisible
/// characters that reorder text, hide in it, or end a line.
fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// A client's own description, made safe to show.
fn for_people(program: &str) -> String {
    program.chars().filter(|c| !steers(*c)).take(PROGRAM_CHARS_MAX).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_names_are_stripped_of_control_characters() {
        assert_eq!(for_people("a\u{202e}b\u{2028}c\u{200b}\u{2066}\u{feff}\x1b[31m\n"), "abc[31m");
        assert_eq!(for_people("Größe 大 👍"), "Größe 大 👍");
        assert_eq!(for_people(&"x".repeat(60_000)).len(), PROGRAM_CHARS_MAX);
    }
}
