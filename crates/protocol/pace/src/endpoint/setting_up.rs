// SPDX-License-Identifier: Apache-2.0
//! Set-ups, of clients and of servers.

use std::net::SocketAddr;

use super::{
    CONFIRMED_WITHIN_NS, Connection, ConnectionId, Datagram, Endpoint, Event, Now, SetUpError, Stage, UNCONFIRMED_MAX,
    paths::Paths,
};
use crate::{
    keys::ClientKey,
    seal::Suite,
    secure::{ANSWER_LEN, Entropy, Initiator, MESSAGE_LEN, respond},
    setup::{COOKIE_LEN, Cookie, Message, Read, Refused, SetUp, Tagger, bound},
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
pub(super) type Key = (SocketAddr, u32, Message);

/// What an Initiation says.
pub(super) struct Asks {
    pub(super) version: u8,
    pub(super) client: u32,
    pub(super) attempt: u8,
    pub(super) cookie: Cookie,
    pub(super) message: Message,
}

/// A connection that this end asks for.
#[derive(Debug)]
pub(super) struct Client {
    to: SocketAddr,
    suite: Suite,
    key: ClientKey,
    tagger: Tagger,
    config: Config,
    entropy: Entropy,
    message: Message,
    cookie: Cookie,
    attempt: u8,
    /// The first attempt with this cookie, and the first one since the last refusal that counted.
    first: u8,
    refused_until: u8,
    /// When each attempt left.
    sent_ns: [u64; ATTEMPTS],
    wait_ns: u64,
    next_ns: u64,
    gives_up_ns: u64,
    /// Attempts that were refused.
    refusals: u32,
    /// What answers that nobody with the key has made may mean: the other end has none, or somebody else made them. So they count only if
    /// nothing better comes.
    doubt: Option<Refused>,
}

impl Client {
    pub(super) fn new(
        id: u32,
        now_ns: u64,
        (to, suite): (SocketAddr, Suite),
        key: ClientKey,
        config: Config,
        entropy: Entropy,
    ) -> Option<Self> {
        let cookie = [0; COOKIE_LEN];
        let (_, message) = Initiator::new(suite, &key, &bound(id, &cookie), entropy)?;
        Some(Self {
            to,
            suite,
            tagger: Tagger::of_client(&key),
            key,
            config,
            entropy,
            message,
            cookie,
            attempt: 0,
            first: 0,
            refused_until: 0,
            sent_ns: [now_ns; ATTEMPTS],
            wait_ns: AGAIN_NS,
            next_ns: now_ns,
            gives_up_ns: now_ns + GIVES_UP_NS,
            refusals: 0,
            doubt: None,
        })
    }

    pub(super) fn due_ns(&self) -> u64 {
        self.next_ns.min(self.gives_up_ns)
    }

    /// Whether an attempt has left that was made at this one or later.
    fn has_sent(&self, attempt: u8, since: u8) -> bool {
        (1..=self.attempt.wrapping_sub(since)).contains(&self.attempt.wrapping_sub(attempt))
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

    /// Gives a set-up up, if its time has come.
    pub(super) fn client_timeout(&mut self, id: u32, now_ns: u64) {
        let Some(client) = self.clients.get(&id).filter(|client| now_ns >= client.gives_up_ns) else { return };
        self.fail(id, client.doubt.map_or(SetUpError::Silence { after_ns: GIVES_UP_NS }, SetUpError::from));
    }

    pub(super) fn client_transmit(&mut self, id: u32, now_ns: u64, into: &mut [u8]) -> Option<Datagram> {
        // It is due then, too, and sends no more.
        self.client_timeout(id, now_ns);
        let client = self.clients.get(&id)?;
        let initiation = SetUp::Initiation {
            version: client.suite.version(),
            client: id,
            attempt: client.attempt,
            cookie: client.cookie,
            message: client.message,
        };
        let (len, to) = (initiation.write(&client.tagger, None, into), client.to);
        self.change_client(id, |client| {
            client.sent_ns[usize::from(client.attempt) % ATTEMPTS] = now_ns;
            client.attempt = client.attempt.wrapping_add(1);
            client.next_ns = now_ns + client.wait_ns;
            client.wait_ns = (2 * client.wait_ns).min(AGAIN_MAX_NS);
        });
        Some(Datagram { to, len, connection: None, departs_ns: None })
    }

    /// The set-up that this is an answer to, if somebody made it who has the key and has seen the client's message.
    fn answered_client(&mut self, from: SocketAddr, id: u32, read: &Read<'_>) -> Option<&mut Client> {
        let client = self.clients.get_mut(&id).filter(|client| client.to == from)?;
        if read.is_by(&client.tagger, Some(&client.message)) {
            return Some(client);
        }
        self.dropped.forged += 1;
        // After a cookie of an end with the key nothing else is believed.
        if client.cookie == [0; COOKIE_LEN] {
            client.doubt = Some(if read.has_tag() { Refused::Key } else { Refused::Version });
        }
        None
    }

    /// The server wants to see that this end gets packets here.
    pub(super) fn cookie(&mut self, now_ns: u64, from: SocketAddr, id: u32, cookie: Cookie, read: &Read<'_>) {
        let Some(client) = self.answered_client(from, id, read) else { return };
        let Some((_, message)) = Initiator::new(client.suite, &client.key, &bound(id, &cookie), client.entropy) else {
            return;
        };
        let is_first = client.cookie == [0; COOKIE_LEN];
        self.change_client(id, |client| {
            (client.cookie, client.message, client.doubt) = (cookie, message, None);
            (client.first, client.refused_until) = (client.attempt, client.attempt);
            // A server that gives one after the other is asked no more often than one that gives none.
            let soon_ns = if is_first { now_ns } else { client.sent_ns(client.attempt.wrapping_sub(1)) + AGAIN_NS };
            client.next_ns = client.next_ns.min(soon_ns.max(now_ns));
            if is_first {
                client.wait_ns = AGAIN_NS;
            }
        });
    }

    pub(super) fn refusal(&mut self, from: SocketAddr, id: u32, attempt: u8, reason: Refused, read: &Read<'_>) {
        let Some(client) = self.answered_client(from, id, read) else { return };
        // One for each attempt: the first may have been repeated.
        if !client.has_sent(attempt, client.refused_until) {
            return;
        }
        client.refused_until = client.attempt;
        client.refusals += 1;
        if client.refusals >= REFUSALS {
            self.fail(id, reason.into());
        }
    }

    pub(super) fn response(
        &mut self,
        now: Now,
        from: SocketAddr,
        id: u32,
        attempt: u8,
        message: &[u8; ANSWER_LEN],
        read: &Read<'_>,
    ) -> Option<ConnectionId> {
        let client = self.answered_client(from, id, read)?;
        let begun = Initiator::new(client.suite, &client.key, &bound(id, &client.cookie), client.entropy);
        let finished = begun.and_then(|(initiator, _)| initiator.finish(message));
        let Some((sealer, server)) = finished.filter(|_| client.has_sent(attempt, client.first)) else {
            self.dropped.forged += 1;
            return None;
        };
        let client = self.clients.remove(&id)?;
        let round_trip_us = now.own_ns.saturating_sub(client.sent_ns(attempt)) / 1000;
        let connection = Connection {
            transport: Transport::new(now.callers_ns, client.config, round_trip_us),
            sealer,
            peer_id: server,
            paths: Paths::new(from),
            closes_ns: 0,
            stage: Stage::Stands,
            due_ns: now.own_ns,
            set_up: None,
        };
        self.connections.insert(id, connection);
        self.events.push_back(Event::Connected(ConnectionId(id)));
        self.refresh(id, now);
        Some(ConnectionId(id))
    }

    /// A client asks for a connection.
    pub(super) fn initiation(
        &mut self,
        now: Now,
        from: SocketAddr,
        asks: &Asks,
        read: &Read<'_>,
        entropy: impl FnOnce() -> Entropy,
    ) {
        let Asks { version, client, attempt, ref cookie, message } = *asks;
        let (Some(key), Some(tagger)) = (self.config.accepts.clone(), &self.tagger) else {
            self.dropped.unknown += 1;
            return;
        };
        let is_tagged = read.is_by(tagger, None);
        let now_us = clock_us(now.own_ns);
        let age_us = self.baker.age_us(now_us, from, client, cookie);
        if age_us.is_none() {
            self.dropped.cookies += u64::from(*cookie != [0; COOKIE_LEN]);
        }
        let asked = (from, client, message);
        if let Some(id) = self.answered.get(&asked).filter(|_| age_us.is_some() && is_tagged)
            && let Some((_, SetUp::Response { message, .. })) =
                self.connections.get(id).and_then(|connection| connection.set_up.as_ref())
        {
            // The answer was lost.
            let answer = SetUp::Response { client, attempt, message: *message };
            self.answer(&asked, answer);
            return;
        }
        let spent = &self.spent;
        let Some(age_us) = age_us.filter(|age_us| spent.allows(now_us - age_us, &message)) else {
            let cookie = self.baker.bake(now_us, from, client);
            self.answer(&asked, SetUp::Cookie { client, attempt, cookie });
            return;
        };
        let suite = Suite::of_version(version);
        if !is_tagged {
            self.dropped.keys += 1;
            let reason = if suite.is_some() { Refused::Key } else { Refused::Version };
            // Somebody may have altered a client's packet: this is no answer to that one's message.
            self.answer(&(from, client, [0; MESSAGE_LEN]), SetUp::Refusal { client, attempt, reason });
            return;
        }
        let Some(suite) = suite else {
            self.answer(&asked, SetUp::Refusal { client, attempt, reason: Refused::Version });
            return;
        };
        if self.refuses || self.is_full() || self.unconfirmed >= UNCONFIRMED_MAX {
            self.dropped.full += 1;
            self.answer(&asked, SetUp::Refusal { client, attempt, reason: Refused::Full });
            return;
        }
        let id = self.new_id();
        let Some((sealer, message)) = respond(suite, &key, &message, &bound(client, cookie), id, entropy()) else {
            self.dropped.keys += 1;
            self.answer(&asked, SetUp::Refusal { client, attempt, reason: Refused::Key });
            return;
        };
        self.spent.add(now_us, now_us - age_us, &asked.2);
        let until_ns = now.own_ns + CONFIRMED_WITHIN_NS;
        let answer = SetUp::Response { client, attempt, message };
        let connection = Connection {
            // The cookie was on its way as long as a packet and its answer.
            transport: Transport::new(now.callers_ns, self.config.connection, age_us),
            sealer,
            peer_id: client,
            paths: Paths::new(from),
            closes_ns: 0,
            stage: Stage::Unconfirmed { until_ns },
            due_ns: until_ns,
            set_up: Some((asked, answer)),
        };
        self.connections.insert(id, connection);
        self.unconfirmed += 1;
        self.dues.push(until_ns, id);
        self.answered.insert(asked, id);
        self.answer(&asked, answer);
    }
}
