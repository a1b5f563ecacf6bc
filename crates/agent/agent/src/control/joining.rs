// SPDX-License-Identifier: Apache-2.0
//! Processes that join and quit, and the owners of names.
//!
//! A name belongs to one process at a time. What happens to another request for it:
//!
//! - The same process, whose session is over or waits for a client that has not come back: the process goes
//!   on.
//! - The same process over another open connection, or another process while the first one lives: refused
//!   with `name_taken`.
//! - Another process, after the first one ended and before this thread has seen that: the end is reported,
//!   then the new process joins.

use std::process;

use fide_agent_api::protocol::{Empty, ErrorCode, JoinOk, Refusal, Reply as Answer};
use fide_bpf::Registration;
use fide_detector::JoinError;
use fide_sys::seqpacket;
use fide_types::Time;
use fide_wire::{MAX_PROCESSES, Name};
use rustix::{event::epoll, io::Errno};
use std::os::fd::AsFd;

use super::{
    Control, Session,
    connections::Answered,
    quotas::{Resource, Usage, admit},
    watched::{Watched, token_of},
};
use crate::{
    command::{Change, Command, EngineGone, JoinedProcess, Reply},
    config::UnlistedNames,
    incarnation,
    names::{Caller, NotYours},
    pidns::{self, TranslateError},
    process::{Process, Users},
    socket::Credentials,
};

/// Heartbeats in the shortest beat timeout: heartbeats carry the beats, so a stall cannot be known sooner.
const BEAT_HEARTBEATS: u64 = 2;
const BEAT_TIMEOUT_MIN_NS: u64 = 1_000_000;

/// A request about a process that is under watch already.
struct Joining<'a> {
    client: u8,
    who: Credentials,
    name: &'a str,
    beat_timeout_ns: u64,
}

impl Control {
    pub(super) fn join(&mut self, id: u64, connection: u64, name: &str, pid: u32, beat_timeout_us: u32) -> Answered {
        let client = self.client_of(connection)?;
        let who = self.connections[&connection].who;
        let wire_name =
            Name::new(name.as_bytes()).map_err(|error| Refusal::new(ErrorCode::BadRequest, error.to_string(), ""))?;
        let process = self.hold(connection, pid)?;
        let pid = process.pid();
        let beat_timeout_ns = self.beat_timeout_ns(name, beat_timeout_us)?;
        self.report_ended(name, pid);
        if let Some(slot) = self.processes.iter().find(|(_, other)| other.process.pid() == pid).map(|(slot, _)| *slot) {
            return self.join_again(id, slot, Joining { client, who, name, beat_timeout_ns });
        }
        self.may_join(connection, name)?;
        // Before the join is announced: a process whose end could not be seen must not join.
        let token = token_of(self.next_serial());
        self.await_end(&process, token).map_err(|error| {
            let hint = "raise /proc/sys/fs/epoll/max_user_watches, or have fewer programs join";
            Refusal::new(ErrorCode::Full, format!("the end of process {pid} cannot be awaited: {error}"), hint)
        })?;
        let joined = match self.join_loop(client, wire_name, beat_timeout_ns) {
            Ok(joined) => joined,
            Err(refusal) => {
                let _ = epoll::delete(&self.epoll, process.as_fd());
                return Err(refusal);
            }
        };
        if let Err(error) =
            incarnation::reserve(&self.parts.config.state_dir, self.parts.incarnation, joined.incarnation)
        {
            tracing::warn!(name, "{error}; after a restart others may take its successor for an earlier process");
        }
        self.watch_exit(name, &process, &joined);
        let gone = process.has_exited();
        let watched = Watched {
            name: name.to_owned(),
            cookie: joined.cookie,
            incarnation: joined.incarnation,
            client,
            uid: process.uid(),
            by: who.uid,
            share: who.share,
            process,
            token,
        };
        self.processes.insert(joined.slot, watched);
        self.names.keep(name, who.share, who.uid == 0 || who.uid == self.own_uid);
        if gone {
            // It ended while it was being registered, perhaps before the hook knew of it.
            self.process_left(token);
            return Err(Refusal::new(ErrorCode::Gone, format!("process {pid} has just gone"), ""));
        }
        Ok(Answer::ok(id, &JoinOk { slot: joined.slot, incarnation: joined.incarnation, pbsize: joined.pbsize }))
    }

    /// Opens a pidfd of the process that this connection's program calls `pid`. Refuses a process that the
    /// caller may not register.
    fn hold(&self, connection: u64, called: u32) -> Result<Process, Refusal> {
        let uid = self.connections[&connection].who.uid;
        let pid = self.pid_of(connection, called)?;
        if pid == process::id() {
            return Err(Refusal::new(
                ErrorCode::BadRequest,
                "an agent cannot watch itself",
                "its peers report its silence; watch it as @host from another host",
            ));
        }
        let process = Process::open(pid).map_err(|error| match error.raw_os_error() {
            Some(libc::ESRCH) => gone(called),
            _ => Refusal::new(ErrorCode::NotSupported, format!("process {pid} cannot be held: {error}"), ""),
        })?;
        // With the pidfd open, the number cannot be reused: if it still stands for this process, it is the
        // one that was meant.
        if self.pid_of(connection, called)? != pid || process.has_exited() {
            return Err(gone(called));
        }
        if uid != 0 {
            // A root daemon that acts for this user at the moment still counts as root's.
            let users = Users::of(pid).ok_or_else(|| gone(called))?;
            if process.has_exited() {
                return Err(gone(called));
            }
            if !users.are_all(uid) {
                return Err(Refusal::new(
                    ErrorCode::NotPermitted,
                    format!("process {pid} runs as {users}, the caller is user {uid}"),
                    "ask as that user, or as root",
                ));
            }
        }
        Ok(process)
    }

    /// After how long without a beat a process counts as stalled; 0 if it does not beat.
    fn beat_timeout_ns(&self, name: &str, beat_timeout_us: u32) -> Result<u64, Refusal> {
        let wanted_ns = u64::from(beat_timeout_us) * 1000;
        let heartbeat_ns = self.parts.config.heartbeat_ns;
        let shortest_ns = (heartbeat_ns * BEAT_HEARTBEATS).max(BEAT_TIMEOUT_MIN_NS);
        if wanted_ns != 0 && wanted_ns < shortest_ns {
            return Err(Refusal::new(
                ErrorCode::TimeoutTooShort,
                format!(
                    "without a beat for {} {name} would count as stalled; heartbeats carry it, one each {}",
                    Time::ns(wanted_ns),
                    Time::ns(heartbeat_ns)
                ),
                format!("{} is the shortest here", Time::ns(shortest_ns)),
            ));
        }
        Ok(wanted_ns)
    }

    /// A request for a process that is already under watch in `slot`: from its own program, or from another
    /// one.
    fn join_again(&mut self, id: u64, slot: u8, joining: Joining<'_>) -> Answered {
        let Joining { client, who, name, beat_timeout_ns } = joining;
        if self.processes[&slot].client != client {
            self.close_hung_up(self.processes[&slot].client);
        }
        let other = &self.processes[&slot];
        // A session that another program holds for this process is kept for that program to come back to.
        let waits = |session: &Session| {
            session.orphan_until.is_some() && (session.who.pid, session.who.uid) == (who.pid, who.uid) && who.pid != 0
        };
        // A process that root registered, say, can only be taken back by root.
        let may = who.uid == 0 || who.uid == other.by;
        let is_free = || other.client == client || self.sessions.get(&other.client).is_none_or(waits);
        if other.name != name || !may || !is_free() {
            return Err(Refusal::new(
                ErrorCode::NameTaken,
                format!("process {} is under watch already, as {}", other.process.pid(), other.name),
                "quit it there first",
            ));
        }
        // Its client lost the answer, or its connection, and asks again.
        let adopted = self.adopt(id, slot, client, beat_timeout_ns)?;
        if who.uid == 0
            && let Some(watched) = self.processes.get_mut(&slot)
        {
            watched.by = 0;
        }
        Ok(adopted)
    }

    /// Whether the caller may have one more process under watch, under this name.
    fn may_join(&self, connection: u64, name: &str) -> Result<(), Refusal> {
        let who = self.connections[&connection].who;
        let asker = self.asker(who.share, Resource::Processes);
        if !asker.privileged {
            let groups = seqpacket::groups(self.connections[&connection].socket());
            self.may_be_called(name, &Caller { uid: who.uid, share: who.share, groups })?;
        }
        let usage = Usage::of(who.share, self.own_uid, self.processes.values().map(|watched| (watched.share, 1)));
        admit(Resource::Processes, asker, usage, MAX_PROCESSES)
    }

    /// Has the kernel's exit hook watch the process too, if there is one.
    fn watch_exit(&self, name: &str, process: &Process, joined: &JoinedProcess) {
        let Some(exit_watch) = &self.parts.exit_watch else { return };
        let registration = Registration {
            pid: process.pid(),
            start_ticks: process.start_ticks(),
            slot: u32::from(joined.slot),
            cookie: joined.cookie,
        };
        // The pidfd still watches; the kernel's hook is only faster.
        if let Err(error) = exit_watch.watch(&registration) {
            tracing::warn!(name, "falls back to a pidfd: {error}");
        }
    }

    /// Reports the end of processes that had this name or process id, if this thread has not seen it yet.
    fn report_ended(&mut self, name: &str, pid: u32) {
        let ended =
            |watched: &&Watched| (watched.name == name || watched.process.pid() == pid) && watched.process.has_exited();
        let tokens: Vec<u64> = self.processes.values().filter(ended).map(|watched| watched.token).collect();
        for token in tokens {
            self.process_left(token);
        }
    }

    /// Has epoll report under `token` when the process ends.
    fn await_end(&mut self, process: &Process, token: u64) -> Result<(), Errno> {
        if std::mem::take(&mut self.join_unwatched) {
            return Err(Errno::NOSPC);
        }
        epoll::add(&self.epoll, process, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
    }

    /// Has the process join in the loop, which announces it to the other hosts.
    fn join_loop(&self, client: u8, name: Name, beat_timeout_ns: u64) -> Result<JoinedProcess, Refusal> {
        let Reply::Joined(joined) = self.parts.exchange.call(Command::Join { client, name, beat_timeout_ns })? else {
            return Err(EngineGone.into());
        };
        joined.map_err(|error| {
            let (code, hint) = match error {
                JoinError::NameTaken { .. } => (ErrorCode::NameTaken, ""),
                JoinError::Full => (ErrorCode::Full, ""),
                JoinError::Leaving => (ErrorCode::Gone, ""),
                JoinError::Witness => (
                    ErrorCode::NotSupported,
                    "run the program on a host with role = \"voter\" or \"observer\"; watch works here too",
                ),
            };
            Refusal::new(code, error.to_string(), hint)
        })
    }

    /// The agent's process id for the process that this connection's program calls `pid`.
    fn pid_of(&self, connection: u64, pid: u32) -> Result<u32, Refusal> {
        let connection = &self.connections[&connection];
        if connection.who.pid == 0 {
            return Err(pidns::outside());
        }
        let ended = || {
            let message = "the process that opened this connection has ended";
            Refusal::new(ErrorCode::Gone, message, "connect anew")
        };
        match pid {
            0 if !seqpacket::peer_lives(connection.socket()) => Err(ended()),
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

    /// `incarnation`: of the process to quit. Another process may have got its slot since.
    pub(super) fn quit(&mut self, id: u64, connection: u64, slot: u8, incarnation: Option<u32>) -> Answered {
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
        if who.uid != 0 && who.uid != watched.by {
            return Err(Refusal::new(
                ErrorCode::NotPermitted,
                format!("user {} had {} watched, the caller is user {}", watched.by, watched.name, who.uid),
                "ask as that user, or as root",
            ));
        }
        let watched = self.processes.remove(&slot).expect("looked up above");
        let _ = epoll::delete(&self.epoll, watched.process.as_fd());
        if let Some(exit_watch) = &self.parts.exit_watch {
            exit_watch.unwatch(watched.process.pid());
        }
        let at_ns = fide_sys::clock::mono_ns();
        self.parts.exchange.call(Command::Changed { slot, cookie: watched.cookie, change: Change::Left, at_ns })?;
        Ok(Answer::ok(id, &Empty {}))
    }
}

fn gone(pid: u32) -> Refusal {
    Refusal::new(ErrorCode::Gone, format!("there is no process {pid}, or no more"), "start it first")
}
