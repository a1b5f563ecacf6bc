// SPDX-License-Identifier: Apache-2.0
//! Connections: accepted, paused, refused, closed.
//!
//! A client may be malicious. Neither what it sends nor what it leaves unread may cost other users
//! anything.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use fide_agent_api::protocol::{ErrorCode, Refusal, Reply as Answer};
use fide_sys::seqpacket;
use fide_wire::{MAX_CLIENTS, MAX_PROCESSES};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

use super::{
    Control, TOKEN_CONNECTION,
    quotas::{Budgets, Resource, Usage, admit, credit_of, most},
};
use crate::config::Limits;
use crate::frozen::WATCHES_MAX;
use crate::pidns::Namespace;
use crate::socket::{self, Credentials};

/// Connections at a time, sessions among them.
const CONNECTIONS_MAX: usize = 256;
/// Connections beyond that which get an answer why they are refused.
const REFUSED_MAX: usize = 32;
/// Connections accepted before the open ones have their turn.
const ACCEPTS_PER_TURN: usize = 64;
/// Threads that close connections for clients that sent descriptors.
const HANGING_MAX: usize = 16;

pub(super) type Answered = Result<Answer, Refusal>;

/// A connection and what it has claimed.
pub(super) struct Connection {
    fd: OwnedFd,
    pub(super) who: Credentials,
    pub(super) client: Option<u8>,
    /// Known once there is a session.
    pub(super) namespace: Namespace,
    /// The answer to every request, if this connection was only accepted to be refused.
    pub(super) refused: Option<Refusal>,
}

/// All connections.
pub(super) struct Connections {
    open: BTreeMap<u64, Connection>,
    last: u64,
    pub(super) budgets: Budgets,
    /// Connections of users that asked too much. Until they may ask again, only their hang-up is awaited.
    paused: BTreeSet<u64>,
    /// Threads that are closing a connection.
    hanging: Arc<AtomicUsize>,
    /// Connections to be closed that have no thread yet.
    parked: Vec<(OwnedFd, Credentials)>,
}

impl Connections {
    /// No connections yet. A client that connects within `grace` may register all that a user may have
    /// without waiting.
    pub(super) fn new(limits: &Limits, grace: Duration) -> Self {
        let sessions = most(MAX_CLIENTS, limits.sessions);
        let processes = most(MAX_PROCESSES, limits.processes);
        let credit = credit_of(sessions, processes, most(WATCHES_MAX, limits.watches));
        Self {
            open: BTreeMap::new(),
            last: 0,
            budgets: Budgets::new(credit, Instant::now() + grace),
            paused: BTreeSet::new(),
            hanging: Arc::default(),
            parked: Vec::new(),
        }
    }

    pub(super) fn get(&self, token: &u64) -> Option<&Connection> {
        self.open.get(token)
    }

    pub(super) fn get_mut(&mut self, token: &u64) -> Option<&mut Connection> {
        self.open.get_mut(token)
    }

    /// Whether some user is paused until it may ask again.
    pub(super) fn has_paused(&self) -> bool {
        !self.paused.is_empty()
    }

    /// The user of each connection, except of those that are only refused.
    fn users(&self) -> impl Iterator<Item = (u32, usize)> {
        let open = self.open.values().filter(|connection| connection.refused.is_none()).map(|open| open.who.share);
        open.chain(self.parked.iter().map(|(_, who)| who.share)).map(|share| (share, 1))
    }
}

impl std::ops::Index<&u64> for Connections {
    type Output = Connection;

    fn index(&self, token: &u64) -> &Connection {
        &self.open[token]
    }
}

impl Connection {
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Control {
    pub(super) fn accept(&mut self) {
        for _ in 0..ACCEPTS_PER_TURN {
            let Ok(Some((fd, mut who))) = socket::accept(&self.parts.listener) else { return };
            who.share = self.shares.of(who.uid);
            let asker = self.asker(who.share, Resource::Connections);
            let usage = Usage::of(who.share, self.own_uid, self.connections.users());
            let refused = admit(Resource::Connections, asker, usage, CONNECTIONS_MAX).err();
            if refused.is_some() {
                self.make_room_for_refusal();
            }
            self.connections.last += 1;
            let token = TOKEN_CONNECTION | (self.connections.last & 0xffff_ffff);
            let connection = Connection { fd, who, client: None, namespace: Namespace::Hidden(String::new()), refused };
            let data = epoll::EventData::new_u64(token);
            if epoll::add(&self.epoll, connection.socket(), data, epoll::EventFlags::IN).is_ok() {
                self.connections.open.insert(token, connection);
            }
        }
    }

    /// Closes the refusal that has been open longest, if there are too many.
    fn make_room_for_refusal(&mut self) {
        let mut refused = self.connections.open.iter().filter(|(_, connection)| connection.refused.is_some());
        let (first, more) = (refused.next().map(|(token, _)| *token), refused.count());
        if more + 1 >= REFUSED_MAX
            && let Some(token) = first
        {
            self.close(token);
        }
    }

    /// Closes connections whose clients have hung up. Requests that they left unread are not carried out:
    /// nobody would get the answers, and other programs of that user would wait for them.
    pub(super) fn close_dead(&mut self, events: &[epoll::Event]) {
        for event in events {
            let (token, flags) = (event.data.u64(), event.flags);
            if token & TOKEN_CONNECTION != 0 && flags.contains(epoll::EventFlags::HUP) {
                self.close(token);
            }
        }
    }

    /// Closes the connection of this client if it has hung up, even if its event has not been handled yet.
    pub(super) fn close_hung_up(&mut self, client: u8) {
        let hung_up = |connection: &Connection| {
            let mut fds = [PollFd::new(&connection.fd, PollFlags::empty())];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::HUP)
        };
        let mut open = self.connections.open.iter();
        let of = open.find(|(_, connection)| connection.client == Some(client) && hung_up(connection));
        if let Some(token) = of.map(|(token, _)| *token) {
            self.close(token);
        }
    }

    pub(super) fn answer(&mut self, token: u64, answer: &Answer, fds: &[OwnedFd]) {
        let Some(connection) = self.connections.get(&token) else { return };
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        if seqpacket::send(connection.socket(), &answer.to_bytes(), &fds).is_err() {
            // A client that does not read its answers is not served any longer.
            self.close(token);
        }
    }

    /// The user has asked too much: its further requests wait in the socket.
    pub(super) fn pause(&mut self, token: u64) {
        let end_only = epoll::EventFlags::empty();
        if let Some(connection) = self.connections.get(&token)
            && epoll::modify(&self.epoll, connection.socket(), epoll::EventData::new_u64(token), end_only).is_ok()
        {
            self.connections.paused.insert(token);
        }
    }

    /// Resumes connections whose users have waited long enough, and closes those that had no thread before.
    pub(super) fn tend_connections(&mut self) {
        let now = Instant::now();
        let Self { connections: Connections { open, paused, budgets, .. }, epoll, .. } = self;
        paused.retain(|token| {
            let Some(connection) = open.get(token) else { return false };
            let data = epoll::EventData::new_u64(*token);
            let goes_on = budgets.may_ask(connection.who.share, now)
                && epoll::modify(&*epoll, connection.socket(), data, epoll::EventFlags::IN).is_ok();
            !goes_on
        });
        budgets.forget(now);
        self.close_parked();
    }

    /// Closes the connection of a client that is gone. Its watches end; its processes stay under watch.
    pub(super) fn close(&mut self, token: u64) {
        let Some(connection) = self.connections.open.remove(&token) else { return };
        if let Some(client) = connection.client {
            self.end_session(client);
        }
        if self.parts.listener.takes_descriptors() {
            self.hang_up(connection);
        }
    }

    /// Closes a connection that may hold descriptors. Closing those can take as long as their sender likes,
    /// so it happens in a thread that nobody waits for.
    fn hang_up(&mut self, connection: Connection) {
        let Connection { fd, who, .. } = connection;
        let Some(socket) = socket::close_unless_it_waits(fd) else { return };
        tracing::warn!(pid = who.pid, uid = who.uid, "hung up on a client that sent descriptors");
        self.connections.parked.push((socket, who));
        self.close_parked();
    }

    fn close_parked(&mut self) {
        while let Some((socket, who)) = self.connections.parked.pop() {
            let closing = Arc::new(Mutex::new(Some(socket)));
            let (theirs, hanging) = (closing.clone(), self.connections.hanging.clone());
            let close = move || {
                drop(theirs.lock().map(|mut socket| socket.take()));
                hanging.fetch_sub(1, Ordering::Relaxed);
            };
            let spawned = self.connections.hanging.fetch_add(1, Ordering::Relaxed) < HANGING_MAX
                && std::thread::Builder::new().name("fide-close".to_owned()).spawn(close).is_ok();
            if !spawned {
                self.connections.hanging.fetch_sub(1, Ordering::Relaxed);
                let socket = closing.lock().ok().and_then(|mut socket| socket.take());
                // It counts against its user until there is a thread for it.
                return self.connections.parked.extend(socket.map(|socket| (socket, who)));
            }
        }
    }

    pub(super) fn client_of(&self, connection: u64) -> Result<u8, Refusal> {
        self.connections
            .get(&connection)
            .and_then(|connection| connection.client)
            .ok_or_else(|| Refusal::new(ErrorCode::BadRequest, "this connection has no session", "send hello first"))
    }
}
