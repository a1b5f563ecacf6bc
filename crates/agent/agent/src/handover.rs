// SPDX-License-Identifier: Apache-2.0
//! One agent takes over from another: maps, sockets, sequence numbers, clients.
//!
//! ```text
//! new                                   old
//! ── prepare ──────────────────────────►  goes on as it is
//! ◄────────── sockets, maps, links ─────
//! loads its programs into the maps
//! ── switch ───────────────────────────►  freezes: repeats its last heartbeat
//! ◄────────── state, clients' memory ───
//! builds its loop
//! ── taken ────────────────────────────►  stops, tells systemd who comes after it
//! ◄────────── done ─────────────────────  ends
//! turns
//! ```
//!
//! If the new agent fails on the way, the old one thaws after [`LIMIT_HEARTBEATS`]. If the old one dies on
//! the way, the new one begins at once.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    time::Duration,
};

use fide_agent_api::protocol::{MESSAGE_MAX, Op, Refusal, Reply, Request, TakeOverPhase};
use fide_bpf::{ReceiveFds, XdpMode};
use fide_net::link::Sockets;
use fide_sys::seqpacket::{self, FDS_MAX, Received, Wait};
use fide_wire::Shape;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{frozen::Frozen, journal::Journal, names::Kept, notify::Manager, socket};

/// Heartbeats that a frozen agent waits for the new one.
pub const LIMIT_HEARTBEATS: u32 = 200;
/// How long a new agent waits for each answer.
const ANSWER: Duration = Duration::from_secs(5);
/// State and agent must be of one version, because the format of the state follows the version.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "+state.2");

/// Why a takeover did not happen. The running agent goes on.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    #[error("no agent answers at {path}: {why}; start without --takeover")]
    NoAgent { path: String, why: io::Error },
    #[error("the running agent refuses: {0}")]
    Refused(Refusal),
    #[error("the running agent's answer makes no sense: {0}; restart instead of taking over")]
    Nonsense(String),
    #[error("the running agent receives by XDP, and this one cannot: {0}; the running one goes on")]
    Program(String),
    #[error(
        "the configuration has another cluster name, members, trust or policy than the running agent: other hosts would not \
         hear this one; a takeover changes the program only, so stop the agent and start it on every host"
    )]
    Shape,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Sent with the descriptors of the first answer, which come in the order of the fields.
#[derive(Debug, Serialize, Deserialize)]
pub struct PrepareOk {
    /// Per plane, whether a packet socket follows its UDP socket.
    pub packet: Vec<bool>,
    /// Maps of the receive program, [`ReceiveFds::MAPS`] if it is loaded.
    pub maps: usize,
    /// XDP links.
    pub links: usize,
    pub native: bool,
    /// A digest of the shared part of its configuration.
    pub shape: u64,
    /// The map of watched processes, 1 if there is an exit watch.
    pub exit_watch: usize,
    /// The agent's own process.
    pub pid: u32,
    /// The service manager whose service it is.
    pub manager: Option<Manager>,
}

/// The content of the first answer.
pub struct Inherited {
    /// One per plane.
    pub sockets: Vec<Sockets>,
    pub receive: Option<ReceiveFds>,
    pub mode: Option<XdpMode>,
    pub watched: Option<OwnedFd>,
    /// The service manager of the agent before, and that agent's process.
    pub service: Option<(Manager, u32)>,
}

/// A session as it is handed over; its region and its event descriptor follow in the list.
#[derive(Debug, Serialize, Deserialize)]
pub struct SessionState {
    pub client: u8,
    pub token: String,
    pub program: String,
    pub pid: u32,
    pub uid: u32,
    pub watches: u32,
    pub ring: bool,
}

/// A process as it is handed over; its pidfd follows in the list.
#[derive(Debug, Serialize, Deserialize)]
pub struct ProcessState {
    pub slot: u8,
    pub name: String,
    pub cookie: u64,
    pub incarnation: u32,
    pub client: u8,
    pub uid: u32,
    pub by: u32,
    pub pid: u32,
    pub start_ticks: u64,
}

/// The second answer apart from descriptors: this state's memfd, the listening socket, the alive table,
/// then the ones of the sessions and processes.
#[derive(Debug, Serialize, Deserialize)]
pub struct State {
    pub host: String,
    pub incarnation: u32,
    pub timeout_ns: u64,
    pub frozen: Frozen,
    pub sessions: Vec<SessionState>,
    pub processes: Vec<ProcessState>,
    pub names: Kept,
    pub journal: Journal,
}

impl State {
    /// Writes it into a memfd, because it is larger than a message may be.
    ///
    /// # Errors
    /// The kernel's.
    pub fn write(&self) -> io::Result<OwnedFd> {
        let fd = memfd_create("fide-handover", MemfdFlags::CLOEXEC)?;
        let bytes = postcard::to_allocvec(self).map_err(io::Error::other)?;
        let mut file = std::fs::File::from(fd);
        io::Write::write_all(&mut file, &bytes)?;
        Ok(file.into())
    }

    /// Reads it from a memfd.
    ///
    /// # Errors
    /// [`HandoverError::Nonsense`] if the memfd holds something else.
    pub fn read(fd: OwnedFd) -> Result<Self, HandoverError> {
        let mut file = std::fs::File::from(fd);
        let mut bytes = Vec::new();
        io::Seek::rewind(&mut file)?;
        io::Read::read_to_end(&mut file, &mut bytes)?;
        postcard::from_bytes(&bytes).map_err(|error| HandoverError::Nonsense(error.to_string()))
    }
}

/// The new agent's end of the conversation.
#[derive(Debug)]
pub struct Successor {
    socket: OwnedFd,
    /// How long the old agent may take to answer.
    answer: Duration,
}

impl Successor {
    /// Finds the running agent and gets its maps and sockets.
    ///
    /// # Errors
    /// [`HandoverError`].
    pub fn prepare(path: &Path, shape: &Shape) -> Result<(Self, Inherited), HandoverError> {
        let socket = socket::connect(path)
            .map_err(|why| HandoverError::NoAgent { path: path.display().to_string(), why: why.into() })?;
        let successor = Self { socket, answer: ANSWER };
        let (prepared, fds): (PrepareOk, _) = successor.ask(TakeOverPhase::Prepare)?;
        if prepared.shape != shape.digest() {
            return Err(HandoverError::Shape);
        }
        let missing = || HandoverError::Nonsense("descriptors are missing".to_owned());
        if prepared.maps != 0 && prepared.maps != ReceiveFds::MAPS {
            let (maps, wanted) = (prepared.maps, ReceiveFds::MAPS);
            return Err(HandoverError::Nonsense(format!(
                "its receive program has {maps} maps, this one's has {wanted}"
            )));
        }
        let mut fds = fds.into_iter();
        let mut sockets = Vec::new();
        for packet in &prepared.packet {
            let udp = fds.next().ok_or_else(missing)?;
            let packet = if *packet { Some(fds.next().ok_or_else(missing)?) } else { None };
            sockets.push(Sockets { udp, packet });
        }
        let maps: Vec<OwnedFd> = fds.by_ref().take(prepared.maps + prepared.links).collect();
        let watched = fds.by_ref().take(prepared.exit_watch).next();
        let receive = if prepared.maps == 0 { None } else { ReceiveFds::from_fds(maps) };
        if receive.is_some() != (prepared.maps > 0) {
            return Err(missing());
        }
        let mode = match (prepared.links, prepared.native) {
            (0, _) => None,
            (_, true) => Some(XdpMode::Native),
            (_, false) => Some(XdpMode::Generic),
        };
        let service = prepared.manager.map(|manager| (manager, prepared.pid));
        Ok((successor, Inherited { sockets, receive, mode, watched, service }))
    }

    /// Freezes the running agent and gets its state, and the descriptors behind it.
    ///
    /// # Errors
    /// [`HandoverError`].
    pub fn switch(&self) -> Result<(State, Vec<OwnedFd>), HandoverError> {
        let (_, mut fds): (serde_json::Value, _) = self.ask(TakeOverPhase::Switch)?;
        if fds.is_empty() {
            return Err(HandoverError::Nonsense("the state is missing".to_owned()));
        }
        let state = State::read(fds.remove(0))?;
        let wanted = 2 + 2 * state.sessions.len() + state.processes.len();
        if fds.len() != wanted {
            return Err(HandoverError::Nonsense(format!("{} descriptors instead of {wanted}", fds.len())));
        }
        Ok((state, fds))
    }

    /// Has the running agent stop. An agent that is gone counts as stopped; a silent one may go on by
    /// itself once it runs again.
    ///
    /// # Errors
    /// [`HandoverError::Refused`] if it went on by itself because this took too long; `TimedOut` if it may.
    pub fn taken(self) -> Result<(), HandoverError> {
        match self.ask::<serde_json::Value>(TakeOverPhase::Taken) {
            Err(HandoverError::Io(error)) if error.kind() == io::ErrorKind::TimedOut => Err(HandoverError::Io(error)),
            Ok(_) | Err(HandoverError::Io(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn ask<T: DeserializeOwned>(&self, phase: TakeOverPhase) -> Result<(T, Vec<OwnedFd>), HandoverError> {
        let request = Request { id: 1, op: Op::TakeOver { phase, version: VERSION.to_owned() } };
        seqpacket::send(&self.socket, &request.to_bytes(), &[])?;
        let (message, fds) = receive(self.socket.as_fd(), FDS_MAX, self.answer)?;
        let reply = Reply::parse(&message).map_err(|error| HandoverError::Nonsense(error.to_string()))?;
        Ok((reply.result().map_err(HandoverError::Refused)?, fds))
    }
}

/// One message within `limit`, with `fds_max` descriptors at most.
///
/// # Errors
/// `TimedOut`, `UnexpectedEof` if the other side has closed, or as [`seqpacket::receive`].
pub fn receive(socket: BorrowedFd<'_>, fds_max: usize, limit: Duration) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut buffer = vec![0; MESSAGE_MAX];
    match seqpacket::receive(socket, &mut buffer, fds_max, Wait::For(limit))? {
        Received::Message(len, fds) => {
            buffer.truncate(len);
            Ok((buffer, fds))
        }
        Received::Nothing => Err(io::ErrorKind::TimedOut.into()),
        Received::End => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn successor() -> (Successor, OwnedFd) {
        let (socket, other) = seqpacket::pair().expect("sockets");
        (Successor { socket, answer: Duration::from_millis(20) }, other)
    }

    /// It may be stopped, and go on by itself once it runs again.
    #[test]
    fn gone_agent_has_stopped_but_a_silent_one_has_not() {
        let (successor, silent) = successor();
        let error = successor.taken().expect_err("it may go on");
        assert!(matches!(error, HandoverError::Io(error) if error.kind() == io::ErrorKind::TimedOut));
        drop(silent);
        let (successor, gone) = self::successor();
        drop(gone);
        successor.taken().expect("it has ended");
    }
}
