// SPDX-License-Identifier: Apache-2.0
//! One socket's worth of connections: datagrams and addresses in, datagrams and events out. It sets connections up, seals
//! and opens, and follows a peer whose address changes.
//!
//! A datagram that is forged, replayed, cut or not for this endpoint changes nothing, and is answered by less than itself or not at
//! all.

mod dues;
mod paths;
mod sealed;
mod setting_up;
mod spent;

use std::{
    collections::{HashMap, VecDeque},
    net::SocketAddr,
};

use rustc_hash::FxHashMap;

pub use crate::packet::DATAGRAM_MAX;
use crate::{
    keys::{ClientKey, ServerKey},
    packet::{Arrival, HEADER_LEN, Kind, low},
    seal::{Sealer, Suite},
    secure::Entropy,
    setup::{Baker, Refused, SetUp, Tagger},
    step::Step,
    transport::{Closed, Config, ConfigError, OwnClock, Reading, Snapshot, Transport},
};
use dues::Dues;
use paths::Paths;
use setting_up::Client;
use spent::Spent;

/// Most connections of one endpoint, unless the user says fewer.
pub const CONNECTIONS_MAX: usize = 4096;
/// Answers to set-ups that wait to be sent; further ones are dropped, and the clients ask again.
const ANSWERS_MAX: usize = 256;
/// Connections that clients have not confirmed, at most; further ones are refused.
const UNCONFIRMED_MAX: usize = 1024;
/// A connection that the client has not confirmed is forgotten after this time.
const CONFIRMED_WITHIN_NS: u64 = 5_000_000_000;
/// A connection that is over is remembered so long, to tell a peer that still sends; and as long as it has messages for the
/// application that have not expired.
const OVER_NS: u64 = 3_000_000_000;
/// It tells it so often at most.
const CLOSES_NS: u64 = 20_000_000;

/// A connection of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(u32);

impl ConnectionId {
    /// The number by which the other end knows it.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }
}

/// Why a set-up came to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SetUpError {
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("nobody answered within {} s: is the address right, does the other end run, and is UDP let through?", .after_ns / 1_000_000_000)]
    Silence { after_ns: u64 },
}

/// What has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A client's connection stands.
    Connected(ConnectionId),
    /// A client has connected, from this address.
    Accepted(ConnectionId, SocketAddr),
    /// A set-up came to nothing.
    Failed(ConnectionId, SetUpError),
    /// The connection is over.
    Closed(ConnectionId, Closed),
    /// The peer is at another address now.
    Moved(ConnectionId, SocketAddr),
    /// Nothing is known any more of a connection that is over, but this.
    Forgotten(ConnectionId, Box<Last>),
}

/// A connection as it was when it was forgotten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Last {
    /// Where the peer was.
    pub address: SocketAddr,
    pub snapshot: Snapshot,
    /// Everything that was sent had arrived, or was given up.
    pub is_idle: bool,
}

/// Why no connection is begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    #[error("there are {0} connections already, as many as are allowed")]
    Full(usize),
    #[error("the other end's public key is none that a server can have: copy it once more")]
    Key,
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// What became of datagrams that were no packet of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dropped {
    /// Not of this protocol, or cut.
    pub malformed: u64,
    /// For a connection that is not here.
    pub unknown: u64,
    /// Not sealed by the peer.
    pub forged: u64,
    /// Set-ups with a cookie that is not this endpoint's, or is too old.
    pub cookies: u64,
    /// Set-ups by clients with another key.
    pub keys: u64,
    /// Set-ups while there were as many connections as are allowed.
    pub full: u64,
    /// Answers for which there was no room.
    pub answers: u64,
}

/// How an endpoint is to be.
#[derive(Debug, Clone, PartialEq)]
pub struct EndpointConfig {
    /// Accepts connections of clients that know this key; none: accepts no connection.
    pub accepts: Option<ServerKey>,
    /// How packets of the connections are sealed that this end asks for. The others are as their clients ask.
    pub suite: Suite,
    pub connections_max: usize,
    /// Of connections that are accepted.
    pub connection: Config,
}

/// A datagram to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram {
    pub to: SocketAddr,
    pub len: usize,
    /// The connection that stands whose packet it is: it may be marked as ECN-capable. None: it belongs to a set-up.
    pub connection: Option<ConnectionId>,
    /// It is to leave at this time ([`Endpoint::writes_ahead`]), before which it may not; none: now.
    pub departs_ns: Option<u64>,
}

/// How far a server's connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The client has not shown that it has the keys.
    Unconfirmed {
        until_ns: u64,
    },
    Stands,
    Over {
        until_ns: u64,
    },
}

#[derive(Debug)]
struct Connection {
    transport: Transport,
    sealer: Sealer,
    /// The number that the peer knows it by.
    peer_id: u32,
    paths: Paths,
    /// One that is over does not tell so before this time.
    closes_ns: u64,
    stage: Stage,
    due_ns: u64,
    /// The client's message that began it, and the answer: a repetition makes no second connection.
    set_up: Option<(setting_up::Key, SetUp)>,
}

/// A time.
#[derive(Debug, Clone, Copy)]
struct Now {
    /// By the caller's clock, which each connection reads for itself.
    callers_ns: u64,
    /// By the endpoint's own one, which never goes back: set-ups and addresses have their times by it.
    own_ns: u64,
}

/// The connections of one socket.
#[derive(Debug)]
pub struct Endpoint {
    config: EndpointConfig,
    baker: Baker,
    /// Of answers to clients.
    tagger: Option<Tagger>,
    /// Of challenges.
    secret: [u8; 32],
    /// Clients that ask for a connection are refused.
    refuses: bool,
    next_id: u32,
    // By numbers of this end's own making: nobody chooses any that meet in one place.
    connections: FxHashMap<u32, Connection>,
    clients: FxHashMap<u32, Client>,
    /// Set-ups that were answered.
    answered: HashMap<setting_up::Key, u32>,
    spent: Spent,
    unconfirmed: usize,
    own: OwnClock,
    /// When connections and set-ups have something to do, by the own clock.
    dues: Dues,
    /// Those that [`Endpoint::timeout`] looks at: empty between two calls, so that none allocates.
    due: Vec<u32>,
    /// Of [`Endpoint::take_changed`].
    changed: Vec<ConnectionId>,
    /// To whom, and what.
    answers: VecDeque<(setting_up::Key, SetUp)>,
    events: VecDeque<Event>,
    dropped: Dropped,
    plain: Vec<u8>,
}

impl Endpoint {
    /// `entropy`: of its cookies, its numbers and its challenges.
    #[must_use]
    pub fn new(config: EndpointConfig, entropy: &Entropy) -> Self {
        let first = blake3::derive_key("fide-pace connection numbers", entropy);
        Self {
            baker: Baker::new(entropy),
            tagger: config.accepts.as_ref().map(Tagger::of_server),
            config,
            secret: blake3::derive_key("fide-pace challenges", entropy),
            refuses: false,
            next_id: first.first_chunk().copied().map_or(1, u32::from_be_bytes),
            connections: FxHashMap::default(),
            clients: FxHashMap::default(),
            answered: HashMap::new(),
            spent: Spent::default(),
            unconfirmed: 0,
            own: OwnClock::new(0),
            dues: Dues::default(),
            due: Vec::new(),
            changed: Vec::new(),
            answers: VecDeque::new(),
            events: VecDeque::new(),
            dropped: Dropped::default(),
            plain: vec![0; DATAGRAM_MAX],
        }
    }

    /// Begins a connection. [`Event::Connected`] or [`Event::Failed`] follows.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn connect(
        &mut self,
        now_ns: u64,
        to: SocketAddr,
        key: &ClientKey,
        config: Config,
        entropy: Entropy,
    ) -> Result<ConnectionId, ConnectError> {
        config.check()?;
        if self.is_full() {
            return Err(ConnectError::Full(self.config.connections_max));
        }
        let now = self.reads(now_ns);
        let id = self.new_id();
        let client = Client::new(id, now.own_ns, (to, self.config.suite), key.clone(), config, entropy)
            .ok_or(ConnectError::Key)?;
        self.dues.push(client.due_ns(), id);
        self.clients.insert(id, client);
        Ok(ConnectionId(id))
    }

    /// From now on clients that ask for a connection are refused, as by an endpoint that is full. What they have been answered
    /// already, but not confirmed, is forgotten.
    pub fn refuse(&mut self) {
        self.refuses = true;
        let is_unconfirmed = |connection: &Connection| matches!(connection.stage, Stage::Unconfirmed { .. });
        let unconfirmed = self.connections.iter().filter(|(_, connection)| is_unconfirmed(connection));
        for id in unconfirmed.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.forget(id);
        }
    }

    /// Connections and set-ups, those that are over left out.
    #[must_use]
    pub fn connections(&self) -> usize {
        let open = self.connections.values().filter(|connection| !matches!(connection.stage, Stage::Over { .. }));
        open.count() + self.clients.len()
    }

    fn is_full(&self) -> bool {
        self.connections.len() + self.clients.len() >= self.config.connections_max.min(CONNECTIONS_MAX)
    }

    fn new_id(&mut self) -> u32 {
        loop {
            self.next_id = self.next_id.wrapping_add(1);
            let id = self.next_id;
            if !self.connections.contains_key(&id) && !self.clients.contains_key(&id) {
                return id;
            }
        }
    }

    #[must_use]
    pub fn dropped(&self) -> Dropped {
        self.dropped
    }

    /// What has happened, in order.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Does something with a connection; none if it is not there, or over for a while.
    pub fn with<R>(&mut self, id: ConnectionId, now_ns: u64, act: impl FnOnce(&mut Transport) -> R) -> Option<R> {
        let connection = self.connections.get_mut(&id.0)?;
        let result = act(&mut connection.transport);
        // The clock is not read: a caller may go on with a time that it took before this one.
        self.refresh(id.0, Now { callers_ns: now_ns, own_ns: self.own.of(now_ns) });
        Some(result)
    }

    /// A connection, to look at.
    #[must_use]
    pub fn get(&self, id: ConnectionId) -> Option<&Transport> {
        self.connections.get(&id.0).map(|connection| &connection.transport)
    }

    /// The same, to do what makes nothing due sooner: to take a message, to look at what changes by being looked at, or to note that the
    /// application waits. It costs no look at all that is under way.
    pub fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Transport> {
        self.connections.get_mut(&id.0).map(|connection| &mut connection.transport)
    }

    /// What a step at this end has taken for a packet of a connection, as the caller measured it: transmit and receive.
    pub fn note_step(&mut self, id: ConnectionId, now_ns: u64, step: Step, took_ns: u64) {
        if let Some(connection) = self.connections.get_mut(&id.0) {
            connection.transport.note_step(now_ns, step, took_ns);
        }
    }

    /// Whoever sends the datagrams of a connection keeps their times, and gets them by so much before these
    /// ([`Datagram::departs_ns`]). 0, as it is at first: never before.
    pub fn writes_ahead(&mut self, id: ConnectionId, ns: u64) {
        if let Some(connection) = self.connections.get_mut(&id.0) {
            connection.transport.writes_ahead(ns);
        }
    }

    /// Where the peer is.
    #[must_use]
    pub fn address(&self, id: ConnectionId) -> Option<SocketAddr> {
        self.connections.get(&id.0).map(|connection| connection.paths.current())
    }

    /// Gives up a connection that is being set up, or ends one that stands.
    pub fn close(&mut self, id: ConnectionId, now_ns: u64, reason: &str) {
        self.clients.remove(&id.0);
        self.with(id, now_ns, |transport| transport.close(reason));
    }

    /// When to call [`Endpoint::timeout`], and [`Endpoint::transmit`] after it, even if nothing comes.
    #[must_use]
    pub fn due_ns(&mut self) -> u64 {
        let first_ns = self.first_due().map_or(u64::MAX, |(due_ns, _)| due_ns);
        if self.answers.is_empty() { self.own.callers(first_ns) } else { 0 }
    }

    /// Reads the caller's clock. If that has gone back, each connection is to see it: what it said of when it is due was by the clock
    /// of before.
    fn reads(&mut self, callers_ns: u64) -> Now {
        let (own_ns, reading) = self.own.read(callers_ns);
        let now = Now { callers_ns, own_ns };
        if reading == Reading::WentBack {
            for id in self.connections.keys().copied().collect::<Vec<_>>() {
                self.connection_timeout(id, now);
            }
        }
        now
    }

    fn first_due(&mut self) -> Option<(u64, u32)> {
        let Self { dues, connections, clients, .. } = self;
        dues.first(connections.len() + clients.len(), |id| {
            let connection = || connections.get(&id).map(|connection| connection.due_ns);
            clients.get(&id).map(Client::due_ns).or_else(connection)
        })
    }

    /// Notes when a connection has something to do, and what became of it.
    fn refresh(&mut self, id: u32, now: Now) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if let Some(why) = connection.transport.closed()
            && !matches!(connection.stage, Stage::Over { .. })
        {
            let was_shown = connection.stage == Stage::Stands;
            if was_shown {
                self.events.push_back(Event::Closed(ConnectionId(id), why.clone()));
            }
            connection.stage = Stage::Over { until_ns: now.own_ns + OVER_NS };
        }
        let due_ns = match connection.transport.due_ns(now.callers_ns) {
            u64::MAX => u64::MAX,
            due_ns => self.own.of(due_ns),
        };
        let due_ns = match connection.stage {
            Stage::Unconfirmed { until_ns } => until_ns,
            Stage::Stands => due_ns.min(connection.paths.due_ns()),
            Stage::Over { until_ns } => due_ns.min(until_ns),
        };
        connection.due_ns = due_ns;
        self.dues.push(due_ns, id);
    }

    fn forget(&mut self, id: u32) {
        if let Some(connection) = self.connections.remove(&id) {
            self.unconfirmed -= usize::from(matches!(connection.stage, Stage::Unconfirmed { .. }));
            if let Some((key, _)) = connection.set_up {
                self.answered.remove(&key);
            }
        }
    }

    /// Time has passed.
    pub fn timeout(&mut self, now_ns: u64) {
        self.changed.clear();
        let now = self.reads(now_ns);
        let mut due = std::mem::take(&mut self.due);
        while let Some((_, id)) = self.first_due().filter(|(due_ns, _)| *due_ns <= now.own_ns) {
            self.dues.pop();
            due.push(id);
        }
        for id in due.drain(..) {
            if let Some(client) = self.clients.get(&id) {
                self.dues.push(client.due_ns(), id);
                self.client_timeout(id, now.own_ns);
                continue;
            }
            self.connection_timeout(id, now);
        }
        self.due = due;
    }

    fn connection_timeout(&mut self, id: u32, now: Now) {
        let Now { callers_ns, own_ns } = now;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        self.changed.push(ConnectionId(id));
        if let Stage::Over { until_ns } = &mut connection.stage
            && own_ns >= *until_ns
            && connection.transport.has_message(callers_ns)
        {
            *until_ns = own_ns + OVER_NS;
        }
        match connection.stage {
            Stage::Unconfirmed { until_ns } if own_ns >= until_ns => self.forget(id),
            Stage::Over { until_ns } if own_ns >= until_ns => {
                let last = Last {
                    address: connection.paths.current(),
                    snapshot: connection.transport.snapshot(callers_ns),
                    is_idle: connection.transport.is_idle(),
                };
                self.events.push_back(Event::Forgotten(ConnectionId(id), Box::new(last)));
                self.forget(id);
            }
            _ => {
                connection.transport.timeout(callers_ns);
                let before = connection.paths.current();
                connection.paths.timeout(own_ns);
                self.moved(id, now, before);
                self.refresh(id, now);
            }
        }
    }

    /// Connections that have released messages, perhaps, or made room for some, though nothing came or left: their time had come in
    /// the last [`Endpoint::timeout`], or [`Endpoint::transmit`] has dropped what could not arrive in time.
    pub fn take_changed(&mut self) -> impl Iterator<Item = ConnectionId> {
        self.changed.drain(..)
    }

    /// The next datagram to send; none if there is none now. `into` has room for [`DATAGRAM_MAX`] bytes.
    pub fn transmit(&mut self, now_ns: u64, into: &mut [u8]) -> Option<Datagram> {
        if let (Some(((to, _, asked), answer)), Some(tagger)) = (self.answers.pop_front(), &self.tagger) {
            let len = answer.write(tagger, Some(&asked), into);
            return Some(Datagram { to, len, connection: None, departs_ns: None });
        }
        let now = self.reads(now_ns);
        // Each turn of this loop moves the one that is looked at behind `now`, or sends.
        for _ in 0..self.connections.len() + self.clients.len() {
            let (_, id) = self.first_due().filter(|(due_ns, _)| *due_ns <= now.own_ns)?;
            if self.clients.contains_key(&id) {
                match self.client_transmit(id, now.own_ns, into) {
                    None => continue,
                    datagram => return datagram,
                }
            }
            if let Some(datagram) = self.write(id, now, into) {
                return Some(datagram);
            }
            self.changed.push(ConnectionId(id));
            if let Some(connection) = self.connections.get_mut(&id).filter(|connection| connection.due_ns <= now.own_ns)
            {
                // It waits for time to pass.
                connection.due_ns = now.own_ns + 1;
                self.dues.push(now.own_ns + 1, id);
            }
        }
        None
    }

    fn write(&mut self, id: u32, now: Now, into: &mut [u8]) -> Option<Datagram> {
        let connection = self.connections.get_mut(&id)?;
        let sent = if matches!(connection.stage, Stage::Unconfirmed { .. }) {
            None
        } else {
            connection.transport.write(now.callers_ns, into.get_mut(HEADER_LEN..)?)
        };
        let datagram = sent.and_then(|written| {
            into[0] = Kind::Sealed as u8;
            into[1..5].copy_from_slice(&connection.peer_id.to_be_bytes());
            into[5..HEADER_LEN].copy_from_slice(&low(written.number).to_be_bytes());
            let len = HEADER_LEN + connection.sealer.seal(written.number, &mut into[HEADER_LEN..], written.len)?;
            let paths = &connection.paths;
            let to = written.challenge.map_or(paths.current(), |echo| paths.asked(echo));
            Some(Datagram { to, len, connection: Some(ConnectionId(id)), departs_ns: written.departs_ns })
        });
        self.refresh(id, now);
        datagram
    }

    /// A datagram has come. `entropy`: called for each connection that is accepted.
    /// Returns the connection whose packet it was.
    pub fn receive(
        &mut self,
        now_ns: u64,
        from: SocketAddr,
        datagram: &[u8],
        arrival: Arrival,
        entropy: impl FnOnce() -> Entropy,
    ) -> Option<ConnectionId> {
        let now = self.reads(now_ns);
        if Kind::of(datagram) == Some(Kind::Sealed) {
            return self.sealed(now, from, datagram, arrival);
        }
        let Some(read) = SetUp::read(datagram) else {
            self.dropped.malformed += 1;
            return None;
        };
        match read.packet {
            SetUp::Initiation { version, client, attempt, cookie, message } => {
                let asks = setting_up::Asks { version, client, attempt, cookie, message };
                self.initiation(now, from, &asks, &read, entropy);
            }
            SetUp::Cookie { client, cookie, .. } => self.cookie(now.own_ns, from, client, cookie, &read),
            SetUp::Response { client, attempt, message } => {
                return self.response(now, from, client, attempt, &message, &read);
            }
            SetUp::Refusal { client, attempt, reason } => self.refusal(from, client, attempt, reason, &read),
        }
        None
    }

    fn answer(&mut self, asked: &setting_up::Key, answer: SetUp) {
        if self.answers.len() >= ANSWERS_MAX {
            self.dropped.answers += 1;
            return;
        }
        self.answers.push_back((*asked, answer));
    }
}
