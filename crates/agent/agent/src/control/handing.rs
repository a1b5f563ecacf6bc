// SPDX-License-Identifier: Apache-2.0
//! The old agent's end of a takeover.

use std::{
    io, iter,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use fide_agent_api::protocol::{Empty, ErrorCode, Op, Refusal, Reply as Answer, Request, TakeOverPhase};
use fide_net::isolation::Urgent;
use fide_sys::seqpacket;

use super::{Control, End};
use crate::{
    command::{Command, EngineGone, Reply},
    handover::{LIMIT_HEARTBEATS, PrepareOk, ProcessState, SessionState, State, VERSION, receive},
    key,
};

impl Control {
    /// Carries out one step of a takeover, at the request of an agent that may replace this one.
    pub(super) fn take_over(
        &mut self,
        id: u64,
        connection: u64,
        phase: TakeOverPhase,
        version: &str,
        fds: &mut Vec<OwnedFd>,
    ) -> Result<Answer, Refusal> {
        self.check_successor(connection, version)?;
        match phase {
            TakeOverPhase::Prepare => self.prepare(id, fds),
            TakeOverPhase::Switch => self.switch(id, connection),
            TakeOverPhase::Taken => {
                Err(Refusal::new(ErrorCode::BadRequest, "nothing was handed over", "ask with phase switch first"))
            }
        }
    }

    /// Only root and the agent's own user may replace it, and only with the same version.
    fn check_successor(&self, connection: u64, version: &str) -> Result<(), Refusal> {
        let who = self.connections[&connection].who;
        let own_uid = rustix::process::geteuid().as_raw();
        if who.uid != 0 && who.uid != own_uid {
            return Err(Refusal::new(
                ErrorCode::NotPermitted,
                format!("user {} may not replace the agent of user {own_uid}", who.uid),
                "ask as that user, or as root",
            ));
        }
        if version != VERSION {
            return Err(Refusal::new(
                ErrorCode::Version,
                format!("this agent is version {VERSION}, the new one {version}"),
                "its state can only be handed to the same version: stop this one with SIGTERM and start the new one",
            ));
        }
        Ok(())
    }

    /// Describes what the new agent may share while this one still runs, and puts copies of its files into
    /// `fds`.
    fn prepare(&self, id: u64, fds: &mut Vec<OwnedFd>) -> Result<Answer, Refusal> {
        let failed = |error: io::Error| Refusal::new(ErrorCode::NotSupported, error.to_string(), "");
        let estate = &self.parts.estate;
        let watch = self.parts.exit_watch.as_ref().map(|watch| watch.watched_fd().try_clone_to_owned());
        let sockets = estate.sockets.iter().flat_map(|of| iter::once(&of.udp).chain(&of.packet));
        let shared = sockets.chain(&estate.receive).map(OwnedFd::try_clone);
        *fds = shared.chain(watch).collect::<io::Result<_>>().map_err(failed)?;
        let prepared = PrepareOk {
            packet: estate.sockets.iter().map(|of| of.packet.is_some()).collect(),
            maps: estate.receive.len() - estate.links,
            links: estate.links,
            native: estate.native,
            shape: self.parts.shape.digest(),
            exit_watch: usize::from(self.parts.exit_watch.is_some()),
            pid: std::process::id(),
            manager: self.notify.manager().cloned(),
        };
        Ok(Answer::ok(id, &prepared))
    }

    /// Freezes the loop and hands its state over. If that fails, this agent goes on.
    fn switch(&mut self, id: u64, connection: u64) -> Result<Answer, Refusal> {
        self.check_may_switch()?;
        let _urgent = Urgent::begin();
        let frozen = match self.parts.exchange.call(Command::Freeze)? {
            Reply::Frozen(frozen) => *frozen,
            _ => return Err(EngineGone.into()),
        };
        // The loop's last records belong into this agent's journal, which is handed over.
        self.note_records();
        // This agent does not wait for the disk while the loop is frozen: a new view is stored by the agent
        // that goes on, because that agent's loop asks for it.
        if self.hand_over(id, connection, frozen).is_ok() {
            self.parts.listener.hand_over();
            self.end = Some(End::HandedOver);
            return Ok(Answer::ok(id, &Empty {}));
        }
        self.parts.exchange.call(Command::Thaw)?;
        tracing::warn!("the new agent did not take over; this one goes on");
        Err(Refusal::new(ErrorCode::Gone, "the takeover took too long; this agent goes on", "try again"))
    }

    /// No takeover during a change of the key, nor while sessions are being closed.
    fn check_may_switch(&mut self) -> Result<(), Refusal> {
        // The new agent knows only the key file, and not which keys other hosts still use.
        if key::stamp(&self.parts.config.key_file) != self.key_stamp {
            self.reload_key();
        }
        if let Some(left) = self.key_change_left() {
            let why = format!("the cluster's key is being changed, for another {:.0} s", left.as_secs_f64().ceil());
            return Err(Refusal::new(
                ErrorCode::Full,
                why,
                "take over when that is done; `fide status` of this agent goes on",
            ));
        }
        // The new agent may give the slots of these sessions to others.
        if !self.closer.finish() {
            let why = "sessions of this agent are still being closed";
            return Err(Refusal::new(ErrorCode::Full, why, "try again"));
        }
        Ok(())
    }

    /// Hands the state over, and waits until the new agent says that it has taken it.
    fn hand_over(&mut self, id: u64, connection: u64, frozen: crate::frozen::Frozen) -> io::Result<()> {
        let mut fds = Vec::new();
        let mut sessions = Vec::new();
        let mut processes = Vec::new();
        for (client, session) in &self.sessions {
            fds.push(session.region.as_fd());
            fds.push(session.events.as_fd());
            sessions.push(SessionState {
                client: *client,
                token: session.token.clone(),
                program: session.program.clone(),
                pid: session.who.pid,
                uid: session.who.uid,
                watches: session.watches,
                ring: session.ring,
            });
        }
        for (slot, watched) in &self.processes {
            fds.push(watched.process.as_fd());
            processes.push(ProcessState {
                slot: *slot,
                name: watched.name.clone(),
                cookie: watched.cookie,
                incarnation: watched.incarnation,
                client: watched.client,
                uid: watched.uid,
                by: watched.by,
                pid: watched.process.pid(),
                start_ticks: watched.process.start_ticks(),
            });
        }
        let state = State {
            host: self.parts.config.member(self.parts.me).name.as_str().to_owned(),
            incarnation: self.parts.incarnation,
            timeout_ns: self.parts.timeout_ns,
            frozen,
            sessions,
            processes,
            names: self.names.clone(),
            journal: self.journal.clone(),
        }
        .write()?;
        let mut all = vec![state.as_fd(), self.parts.listener.as_fd(), self.parts.estate.table.as_fd()];
        all.extend(fds);
        let heir = self.connections[&connection].socket();
        seqpacket::send(heir, &Answer::ok(id, &Empty {}).to_bytes(), &all)?;
        let limit = Duration::from_nanos(self.parts.config.heartbeat_ns) * LIMIT_HEARTBEATS;
        let (message, _) = receive(heir, 0, limit)?;
        match Request::parse(&message) {
            Ok(Request { op: Op::TakeOver { phase: TakeOverPhase::Taken, .. }, .. }) => {}
            _ => return Err(io::Error::from(io::ErrorKind::InvalidData)),
        }
        // From here on only the new agent sends.
        self.parts.exchange.call(Command::Stop).map_err(io::Error::other)?;
        // Before the new agent learns that it may begin: systemd trusts its messages only from here on.
        self.notify.handed_over(self.connections[&connection].who.pid);
        Ok(())
    }
}
