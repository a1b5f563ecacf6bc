// SPDX-License-Identifier: Apache-2.0
//! Set-ups, of clients and of servers.

use std::net::SocketAddr;

use super::{
    CONFIRMED_WITHIN_NS, Connection, ConnectionId, Datagram, Endpoint, Event, SetUpError, Stage, UNCONFIRMED_MAX,
};
use crate::{
    keys::ClientKey,
    secure::{Entropy, Initiator, MESSAGE_LEN, respond},
    setup::{COOKIE_LEN, Cookie, Refused, SetUp},
    transport::{Config, Transport, clock_us},
};

/// A set-up is asked for again after this time, and each time twice as long after that, up to a bound.
const AGAIN_NS: u64 = 250_000_000;
const AGAIN_MAX_NS: u64 = 2_000_000_000;
/// And given up after this time.
const GIVES_UP_NS: u64 = 10_000_000_000;
/// So many attempts that were refused end a set-up.
const REFUSALS: u32 = 3;
/// Attempts whose time is kept, for the round trip.
const ATTEMPTS: usize = 16;

/// A client and its message: the same set-up, however often it is asked for.
pub(super) type Key = (SocketAddr, u32, [u8; MESSAGE_LEN]);

/// What an Initiation says.
pub(super) struct Asks {
    pub(super) client: u32,
    pub(super) attempt: u8,
    pub(super) cookie: Cookie,
    pub(super) message: Option<[u8; MESSAGE_LEN]>,
}

/// A connection that this end asks for.
#[derive(Debug)]
pub(super) struct Client {
    to: SocketAddr,
    key: ClientKey,
    config: Config,
    entropy: Entropy,
    message: [u8; MESSAGE_LEN],
    cookie: Cookie,
    attempt: u8,
    /// When each attempt left.
    sent_ns: [u64; ATTEMPTS],
    wait_ns: u64,
    next_ns: u64,
    gives_up_ns: u64,
    /// Attempts that were refused, and the first one that none was counted for.
    refusals: u32,
    refused_until: Option<u8>,
}

impl Client {
    pub(super) fn new(now_ns: u64, to: SocketAddr, key: ClientKey, config: Config, entropy: Entropy) -> Option<Self> {
        let (_, message) = Initiator::new(&key, entropy)?;
        Some(Self {
            to,
            key,
            config,
            entropy,
            message,
            cookie: [0; COOKIE_LEN],
            attempt: 0,
            sent_ns: [now_ns; ATTEMPTS],
            wait_ns: AGAIN_NS,
            next_ns: now_ns,
            gives_up_ns: now_ns + GIVES_UP_NS,
            refusals: 0,
            refused_until: None,
        })
    }

    pub(super) fn due_ns(&self) -> u64 {
        self.next_ns.min(self.gives_up_ns)
    }

    fn attempts_since_refusal(&self) -> u8 {
        self.refused_until.map_or(self.attempt, |until| self.attempt.wrapping_sub(until))
    }

    fn sent_ns(&self, attempt: u8) -> u64 {
        self.sent_ns[usize::from(attempt) % ATTEMPTS]
    }
}

impl Endpoint {
    /// Changes a client's set-up, and notes when it is due.
    fn change_client(&mut self, id: u32, change: impl FnOnce(&mut Client)) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        change(client);
        self.dues.push(client.due_ns(), id);
    }

    fn fail(&mut self, id: u32, why: SetUpError) {
        if self.clients.remove(&id).is_some() {
            self.events.push_back(Event::Failed(ConnectionId(id), why));
        }
    }

    pub(super) fn client_timeout(&mut self, id: u32, now_ns: u64) {
        if self.clients.get(&id).is_some_and(|client| now_ns >= client.gives_up_ns) {
            self.fail(id, SetUpError::Silence { after_ns: GIVES_UP_NS });
        }
    }

    pub(super) fn client_transmit(&mut self, id: u32, now_ns: u64, into: &mut [u8]) -> Option<Datagram> {
        let client = self.clients.get(&id)?;
        let initiation = SetUp::Initiation {
            client: id,
            attempt: client.attempt,
            cookie: client.cookie,
            message: Some(client.message),
        };
        let (len, to) = (initiation.write(into), client.to);
        self.change_client(id, |client| {
            client.sent_ns[usize::from(client.attempt) % ATTEMPTS] = now_ns;
            client.attempt = client.attempt.wrapping_add(1);
            client.next_ns = now_ns + client.wait_ns;
            client.wait_ns = (2 * client.wait_ns).min(AGAIN_MAX_NS);
        });
        Some(Datagram { to, len, connection: None })
    }

    /// The server wants to see that this end gets packets here.
    pub(super) fn cookie(&mut self, now_ns: u64, from: SocketAddr, client: u32, cookie: Cookie) {
        let is_new = self.clients.get(&client).is_some_and(|client| client.to == from && client.cookie != cookie);
        if is_new {
            self.change_client(client, |client| {
                client.cookie = cookie;
                client.next_ns = now_ns;
                client.wait_ns = AGAIN_NS;
            });
        }
    }

    pub(super) fn refusal(&mut self, from: SocketAddr, client: u32, attempt: u8, reason: Refused) {
        // Before it has a cookie no server says so.
        let is_of = |client: &&mut Client| client.to == from && client.cookie != [0; COOKIE_LEN];
        let Some(this) = self.clients.get_mut(&client).filter(is_of) else { return };
        if this.attempt.wrapping_sub(attempt) > this.attempts_since_refusal() {
            return;
        }
        this.refused_until = Some(this.attempt);
        this.refusals += 1;
        if this.refusals >= REFUSALS {
            self.fail(client, reason.into());
        }
    }

    pub(super) fn response(
        &mut self,
        now_ns: u64,
        from: SocketAddr,
        client: u32,
        attempt: u8,
        server: u32,
        message: &[u8; MESSAGE_LEN],
    ) -> Option<ConnectionId> {
        let id = client;
        let client = self.clients.get(&id).filter(|client| client.to == from)?;
        let finished = Initiator::new(&client.key, client.entropy).and_then(|(initiator, _)| initiator.finish(message));
        let Some(sealer) = finished else {
            self.dropped.forged += 1;
            return None;
        };
        let client = self.clients.remove(&id)?;
        let round_trip_us = now_ns.saturating_sub(client.sent_ns(attempt)) / 1000;
        let connection = Connection {
            transport: Transport::new(now_ns, client.config, round_trip_us),
            sealer,
            peer_id: server,
            address: from,
            challenged: None,
            challenge_ns: 0,
            stage: Stage::Stands,
            due_ns: now_ns,
            set_up: None,
        };
        self.connections.insert(id, connection);
        self.events.push_back(Event::Connected(ConnectionId(id)));
        self.refresh(id, now_ns);
        Some(ConnectionId(id))
    }

    /// A client asks for a connection.
    pub(super) fn initiation(&mut self, now_ns: u64, from: SocketAddr, asks: &Asks, entropy: impl FnOnce() -> Entropy) {
        let Asks { client, attempt, ref cookie, message } = *asks;
        let Some(key) = self.config.accepts.clone() else {
            self.dropped.unknown += 1;
            return;
        };
        let now_us = clock_us(now_ns);
        let Some(age_us) = self.baker.age_us(now_us, from, client, cookie) else {
            self.dropped.cookies += u64::from(*cookie != [0; COOKIE_LEN]);
            let cookie = self.baker.bake(now_us, from, client);
            self.answer(from, SetUp::Cookie { client, attempt, cookie });
            return;
        };
        let Some(message) = message else {
            self.answer(from, SetUp::Refusal { client, attempt, reason: Refused::Version });
            return;
        };
        let asked = (from, client, message);
        if let Some(id) = self.answered.get(&asked)
            && let Some((_, SetUp::Response { server, message, .. })) =
                self.connections.get(id).and_then(|connection| connection.set_up.as_ref())
        {
            // The answer was lost.
            let answer = SetUp::Response { client, attempt, server: *server, message: *message };
            self.answer(from, answer);
            return;
        }
        if self.refuses || self.is_full() || self.unconfirmed >= UNCONFIRMED_MAX {
            self.dropped.full += 1;
            self.answer(from, SetUp::Refusal { client, attempt, reason: Refused::Full });
            return;
        }
        let Some((sealer, message)) = respond(&key, &message, entropy()) else {
            self.dropped.keys += 1;
            self.answer(from, SetUp::Refusal { client, attempt, reason: Refused::Key });
            return;
        };
        let id = self.new_id();
        let until_ns = now_ns + CONFIRMED_WITHIN_NS;
        let answer = SetUp::Response { client, attempt, server: id, message };
        let connection = Connection {
            // The cookie was on its way as long as a packet and its answer.
            transport: Transport::new(now_ns, self.config.connection, age_us),
            sealer,
            peer_id: client,
            address: from,
            challenged: None,
            challenge_ns: 0,
            stage: Stage::Unconfirmed { until_ns },
            due_ns: until_ns,
            set_up: Some((asked, answer)),
        };
        self.connections.insert(id, connection);
        self.unconfirmed += 1;
        self.dues.push(until_ns, id);
        self.answered.insert(asked, id);
        self.answer(from, answer);
    }
}
