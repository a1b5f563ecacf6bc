// SPDX-License-Identifier: Apache-2.0
//! An endpoint: a socket, and connections from it and to it.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    thread,
    time::Duration,
};

use fide_pace::{
    endpoint::{self, CONNECTIONS_MAX, EndpointConfig, SetUpError},
    keys::{ClientKey, ServerKey},
    seal::Suite,
    transport::{Config, ConfigError},
};

use crate::{
    clock::nanoseconds,
    connection::Connection,
    driver::{Shared, entropy},
    now_ns,
    shown::{ShowError, Writer},
    socket::Socket,
    state::{Fate, For, State},
    waiting::{Cancels, Locked},
};

/// If it is set, and neither empty nor 0, all endpoints of the process show their connections ([`Endpoint::show`]).
const SHOW_VARIABLE: &str = "FIDE_PACE_SHOW";

/// Why an endpoint cannot be.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("no UDP socket at {address}: {why}")]
    Bind { address: SocketAddr, why: io::Error },
    #[error("no thread for an endpoint: {0}")]
    Thread(io::Error),
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// Why there is no connection.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ConnectError {
    #[error(transparent)]
    Begin(#[from] endpoint::ConnectError),
    #[error("the endpoint was closed")]
    Closed,
    #[error("no connection to {address}: {why}")]
    SetUp { address: SocketAddr, why: SetUpError },
    #[error("no connection to {address}: the endpoint is at {here}, which reaches no address of {}; bind it to [::], which reaches both families", if .address.is_ipv6() { "IPv6" } else { "IPv4" })]
    Family { address: SocketAddr, here: SocketAddr },
}

/// Why no connection is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AcceptError {
    #[error("the endpoint was closed")]
    Closed,
    #[error("this endpoint has no key for clients: make it with `Endpoint::server`")]
    NoServer,
}

/// Connections of an endpoint that only connects.
const CLIENT_CONNECTIONS_MAX: usize = 64;

/// A socket and its thread. Dropped, it takes no more connections; those that stand go on until they are dropped.
#[derive(Debug)]
pub struct Endpoint {
    pub(crate) shared: Arc<Shared>,
    is_server: bool,
}

impl Endpoint {
    /// One that only connects, at any free port, to addresses of IPv4 and, where the host has it, of IPv6.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn client() -> Result<Self, BindError> {
        let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let socket = Socket::anywhere().map_err(|why| BindError::Bind { address, why })?;
        Self::with_socket(socket, None, Config::default(), CLIENT_CONNECTIONS_MAX)
    }

    /// One that accepts connections of clients with a key. `address`: `[::]` is for both families. `config`: of these connections.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn server(address: SocketAddr, key: ServerKey, config: Config) -> Result<Self, BindError> {
        Self::bind(address, Some(key), config, CONNECTIONS_MAX)
    }

    /// Either. `connections_max`: most connections at a time.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn bind(
        address: SocketAddr,
        accepts: Option<ServerKey>,
        config: Config,
        connections_max: usize,
    ) -> Result<Self, BindError> {
        let socket = Socket::bind(address).map_err(|why| BindError::Bind { address, why })?;
        Self::with_socket(socket, accepts, config, connections_max)
    }

    fn with_socket(
        socket: Socket,
        accepts: Option<ServerKey>,
        config: Config,
        connections_max: usize,
    ) -> Result<Self, BindError> {
        config.check()?;
        let is_server = accepts.is_some();
        let endpoint = endpoint::Endpoint::new(
            EndpointConfig { accepts, suite: Suite::of_host(), connections_max, connection: config },
            &entropy(),
        );
        let shared = Shared::new(socket, endpoint).map_err(BindError::Thread)?;
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new().name("fide-pace".to_owned()).spawn(move || of_thread.run());
        thread.map_err(BindError::Thread)?;
        let this = Self { shared, is_server };
        if std::env::var_os(SHOW_VARIABLE).is_some_and(|value| !value.is_empty() && value != "0") {
            // Connections are worth more than a view of them.
            let _ = this.show();
        }
        Ok(this)
    }

    /// Shows the connections of this endpoint to `fide pace top`, of the same user or root, from now on. It costs a copy of
    /// some numbers ten times a second.
    ///
    /// # Errors
    /// [`ShowError`]: there is no memory for that. The endpoint is as before.
    pub fn show(&self) -> Result<(), ShowError> {
        let local = self.local_address().unwrap_or(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
        let writer = Writer::new(local, self.is_server)?;
        self.shared.lock().shown.get_or_insert(writer);
        self.shared.ring();
        Ok(())
    }

    /// Where it is.
    ///
    /// # Errors
    /// The socket's.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.shared.socket.local_address()
    }

    /// Connects, and returns when the connection stands.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn connect(&self, to: SocketAddr, key: &ClientKey, config: Config) -> Result<Connection, ConnectError> {
        let (connection, mut state) = self.begin(to, key, config)?;
        loop {
            if let Some(result) = connection.is_set_up(&mut state) {
                drop(state);
                return result.map(|()| connection.stands()).map_err(|why| ConnectError::SetUp { address: to, why });
            }
            state = connection.wait(state, For::Event, None);
        }
    }

    /// The same, asynchronously.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn connect_async(
        &self,
        to: SocketAddr,
        key: &ClientKey,
        config: Config,
    ) -> Result<Connection, ConnectError> {
        let (connection, state) = self.begin(to, key, config)?;
        drop(state);
        let result = connection.look(For::Event, |state| connection.is_set_up(state)).await;
        result.map(|()| connection.stands()).map_err(|why| ConnectError::SetUp { address: to, why })
    }

    fn begin(&self, to: SocketAddr, key: &ClientKey, config: Config) -> Result<(Connection, Locked<'_>), ConnectError> {
        if !self.shared.socket.reaches(to) {
            let here = self.local_address().unwrap_or_else(|_| (Ipv4Addr::UNSPECIFIED, 0).into());
            return Err(ConnectError::Family { address: to, here });
        }
        let mut state = self.shared.lock();
        if state.is_ending {
            return Err(ConnectError::Closed);
        }
        let id = state.endpoint.connect(now_ns(), to, key, config, entropy())?;
        state.fates.insert(id, Fate::default());
        self.shared.flush(&mut state);
        Ok((Connection::new(Arc::clone(&self.shared), id, &state), state))
    }

    /// The next connection of a client.
    ///
    /// # Errors
    /// [`AcceptError`].
    pub fn accept(&self) -> Result<Connection, AcceptError> {
        let mut state = self.shared.lock();
        loop {
            if let Some(result) = self.next(&mut state) {
                drop(state);
                return result.map(Connection::stands);
            }
            self.shared.waits(&mut state, None);
            state = state.wait(None, |state| Some(&mut state.accepting));
        }
    }

    /// The next connection of a client; waits for it no longer than a time. None: nobody has connected.
    ///
    /// # Errors
    /// [`AcceptError`].
    pub fn accept_timeout(&self, within: Duration) -> Result<Option<Connection>, AcceptError> {
        let until_ns = now_ns().saturating_add(nanoseconds(within));
        let mut state = self.shared.lock();
        loop {
            if let Some(result) = self.next(&mut state) {
                drop(state);
                return result.map(|connection| Some(connection.stands()));
            }
            if now_ns() >= until_ns {
                return Ok(None);
            }
            self.shared.waits(&mut state, Some(until_ns));
            state = state.wait(Some(until_ns), |state| Some(&mut state.accepting));
        }
    }

    /// [`Endpoint::accept`], asynchronously.
    ///
    /// # Errors
    /// [`AcceptError`].
    pub async fn accept_async(&self) -> Result<Connection, AcceptError> {
        let accepts = Cancels::new(&self.shared, |state: &mut State| Some(&mut state.accepting));
        accepts.look(|state| self.next(state)).await.map(Connection::stands)
    }

    fn next(&self, state: &mut State) -> Option<Result<Connection, AcceptError>> {
        if !self.is_server {
            return Some(Err(AcceptError::NoServer));
        }
        if state.is_ending {
            return Some(Err(AcceptError::Closed));
        }
        let id = state.accepted.pop_front()?;
        Some(Ok(Connection::new(Arc::clone(&self.shared), id, state)))
    }

    /// Datagrams that were no packet of a connection.
    #[must_use]
    pub fn dropped(&self) -> endpoint::Dropped {
        self.shared.lock().endpoint.dropped()
    }

    /// Takes no more connections, and makes none: those who wait for one get an error, and clients are refused. Connections that
    /// stand go on until they are dropped.
    pub fn close(&self) {
        self.shared.lock().close();
        self.shared.ring();
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::UdpSocket,
        sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    };

    use super::*;
    use crate::Departures;

    fn connected(server: &Endpoint, client: &Endpoint, key: &ServerKey) -> (Connection, Connection) {
        let at = server.local_address().expect("bound");
        let here = client.connect(at, &key.for_clients(), Config::default()).expect("a connection");
        (here, server.accept().expect("one that connected"))
    }

    /// Those who poll leave the lock to the endpoint's thread.
    #[test]
    fn setting_that_no_connection_can_have_is_refused_by_name() {
        let config = Config { paces_window_ns: 0, ..Config::default() };
        let server = Endpoint::server((Ipv4Addr::LOCALHOST, 0).into(), ServerKey::Secret([7; 32]), config);
        assert!(server.unwrap_err().to_string().contains("paces_window_ns"));
        let key = ServerKey::Secret([7; 32]).for_clients();
        let why =
            Endpoint::client().expect("bound").connect((Ipv4Addr::LOCALHOST, 9).into(), &key, config).unwrap_err();
        assert!(why.to_string().contains("paces_window_ns"), "{why}");
    }

    #[test]
    fn polls_take_no_lock_as_long_as_nothing_comes() {
        let key = ServerKey::Secret([7; 32]);
        let server = Endpoint::server((Ipv4Addr::LOCALHOST, 0).into(), key.clone(), Config::default()).expect("bound");
        let client = Endpoint::client().expect("a socket");
        let (here, there) = connected(&server, &client, &key);
        let locks = |act: &dyn Fn()| {
            let before = server.shared.locks();
            (0..20_000).for_each(|_| act());
            server.shared.locks() - before
        };
        let began_ns = now_ns();
        let of_polls = locks(&|| assert!(there.try_recv().expect("it stands").is_none()));
        let of_views = locks(&|| assert!(there.view().is_some()));
        // The thread's own ones, and one for each millisecond.
        let most = 1000 + (now_ns() - began_ns) / 1_000_000;
        assert!(of_polls < 1000 && of_views < most, "{of_polls} and {of_views} of 20,000, and {most} are enough");
        // What comes is seen, and so is the end.
        here.send(b"comes").expect("it stands");
        let came = std::iter::repeat_with(|| there.try_recv().expect("it stands")).flatten().next();
        assert_eq!(came.map(|message| message.bytes), Some(b"comes".to_vec()));
        here.close("enough");
        while there.try_recv().is_ok() {
            thread::yield_now();
        }
    }

    /// As over an interface with the queue `fq`, by a socket for all addresses, which tells the kernel its own. The loopback keeps no
    /// times, so that packets come somewhat early.
    #[test]
    fn messages_go_on_where_the_kernel_keeps_times() {
        let key = ServerKey::Secret([7; 32]);
        // Both ways: on a host with much else to do a message may wait for longer than the usual deadline.
        let config = Config { residual_loss: 0.0, deadline_ns: 10_000_000_000, ..Config::default() };
        let server = Endpoint::server((Ipv4Addr::UNSPECIFIED, 0).into(), key.clone(), config).expect("bound");
        let port = server.local_address().expect("bound").port();
        let at = (Ipv4Addr::new(127, 0, 0, 9), port).into();
        let client = Endpoint::client().expect("a socket");
        let here = client.connect(at, &key.for_clients(), config).expect("a connection");
        let there = server.accept().expect("one that connected");
        assert_eq!((here.departures(), there.departures()), (Departures::Timer, Departures::Timer));
        for (end, shared) in [(&here, &client.shared), (&there, &server.shared)] {
            assert!(shared.socket.takes_times());
            shared.lock().keeps_times(end.id);
            assert_eq!(end.departures(), Departures::Kernel);
        }
        thread::scope(|scope| {
            for [from, to] in [[&here, &there], [&there, &here]] {
                scope.spawn(move || {
                    (0..500_u32)
                        .for_each(|number| from.send(&[number.to_be_bytes(); 200].concat()).expect("it stands"));
                });
                scope.spawn(move || {
                    for number in 0..500_u32 {
                        let message = to.recv().expect("it stands");
                        assert_eq!(message.bytes[..4], number.to_be_bytes());
                    }
                });
            }
        });
    }

    /// A relay whose address becomes another one, between a client and a server where the kernel keeps times.
    #[test]
    fn timer_keeps_the_times_to_a_peer_that_has_moved() {
        let key = ServerKey::Secret([7; 32]);
        let server = Endpoint::server((Ipv4Addr::LOCALHOST, 0).into(), key.clone(), Config::default()).expect("bound");
        let socket = || {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("bound");
            socket.set_read_timeout(Some(Duration::from_millis(1))).expect("not zero");
            socket
        };
        let (front, backs) = (socket(), [socket(), socket()]);
        for back in &backs {
            back.connect(server.local_address().expect("bound")).expect("the loopback");
        }
        let (at, back, is_over) = (front.local_addr().expect("bound"), AtomicUsize::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                let (mut client, mut bytes) = (None, [0; 2048]);
                while !is_over.load(Ordering::Relaxed) {
                    if let Ok((len, from)) = front.recv_from(&mut bytes) {
                        client = Some(from);
                        let _ = backs[back.load(Ordering::Relaxed)].send(&bytes[..len]);
                    }
                    // What is sent to the former address is lost.
                    let back = &backs[back.load(Ordering::Relaxed)];
                    if let (Ok(len), Some(client)) = (back.recv(&mut bytes), client) {
                        let _ = front.send_to(&bytes[..len], client);
                    }
                }
            });
            let client = Endpoint::client().expect("a socket");
            let here = client.connect(at, &key.for_clients(), Config::default()).expect("a connection");
            let there = server.accept().expect("one that connected");
            server.shared.lock().keeps_times(there.id);
            let before = there.peer();
            back.store(1, Ordering::Relaxed);
            while there.peer() == before && !there.is_over() {
                let _ = here.try_send(b"from another address", None);
                thread::sleep(Duration::from_millis(10));
            }
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(there.departures(), Departures::Timer);
            assert_eq!(there.snapshot().map(|snapshot| snapshot.written_ahead_ns), Some(0));
        });
    }

    /// They are closed with the endpoint, which says so in events of its own.
    #[test]
    fn connections_that_nobody_took_leave_nothing() {
        let key = ServerKey::Secret([7; 32]);
        let server =
            Endpoint::server((Ipv4Addr::LOCALHOST, 0).into(), key.clone(), Config::default()).expect("the loopback");
        let (at, client) = (server.local_address().expect("bound"), Endpoint::client().expect("a socket"));
        let connect = || client.connect(at, &key.for_clients(), Config::default()).expect("a connection");
        let (here, there) = (connect(), server.accept().expect("one that connected"));
        let others: Vec<_> = (0..5).map(|_| connect()).collect();
        while server.shared.lock().accepted.len() < others.len() {
            thread::yield_now();
        }
        server.close();
        for other in &others {
            assert!(other.recv().is_err());
        }
        while server.shared.lock().endpoint.connections() > 1 {
            thread::yield_now();
        }
        assert_eq!(server.shared.lock().fates.len(), 1, "of the one that was taken");
        drop((here, there));
        assert_eq!(server.shared.lock().fates.len(), 0);
    }
}
