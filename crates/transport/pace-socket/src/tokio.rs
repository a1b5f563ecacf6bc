// SPDX-License-Identifier: Apache-2.0
//! An endpoint and connections for the runtime tokio (feature `tokio`).
//!
//! ```no_run
//! use fide_pace_socket::{ClientKey, Config, tokio::Endpoint};
//!
//! # async fn example(key: &ClientKey) -> Result<(), Box<dyn std::error::Error>> {
//! let endpoint = Endpoint::client()?;
//! let connection = endpoint.connect("192.0.2.7:7000".parse()?, key, Config::default()).await?;
//! for frame in 0..100_u32 {
//!     // Returns when the next message may leave: a loop becomes paced by it.
//!     connection.send(&frame.to_be_bytes()).await?;
//! }
//! connection.finish().await;
//! # Ok(())
//! # }
//! ```
//!
//! Each future may be dropped at any time, as by `select!` or `tokio::time::timeout`; each says what has happened by then.
//!
//! Everything has to be called within a runtime that has its I/O enabled (`enable_io`, `#[tokio::main]`), else it panics; a
//! connection waits only in the runtime in which it was made.

use std::{
    io,
    net::SocketAddr,
    os::fd::OwnedFd,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use fide_pace::{
    keys::{ClientKey, ServerKey},
    receiver::Message,
    transport::Config,
};
use rustix::{
    event::Timespec,
    io::read,
    time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime},
};
use tokio::io::{Interest, unix::AsyncFd};

use crate::{BindError, RecvError, SendError, clock::nanoseconds, now_ns};

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error(transparent)]
    Connect(#[from] crate::ConnectError),
    #[error("no timer for a connection: {0}")]
    Timer(io::Error),
}

/// Why no connection is accepted.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    #[error(transparent)]
    Accept(#[from] crate::AcceptError),
    /// The connection that came is closed.
    #[error("no timer for a connection: {0}")]
    Timer(io::Error),
}

/// [`crate::Endpoint`] in tokio.
#[derive(Debug)]
pub struct Endpoint(crate::Endpoint);

impl Endpoint {
    /// [`crate::Endpoint::client`]: one that only connects.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn client() -> Result<Self, BindError> {
        crate::Endpoint::client().map(Self)
    }

    /// [`crate::Endpoint::server`]: one that accepts connections of clients with a key.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn server(address: SocketAddr, key: ServerKey, config: Config) -> Result<Self, BindError> {
        crate::Endpoint::server(address, key, config).map(Self)
    }

    /// Connects, and returns when the connection stands. Dropped before, it has made none.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn connect(&self, to: SocketAddr, key: &ClientKey, config: Config) -> Result<Connection, ConnectError> {
        let timer = Timer::new().map_err(ConnectError::Timer)?;
        Ok(Connection::new(self.0.connect_async(to, key, config).await?, timer))
    }

    /// The next connection of a client. Dropped before it is ready it has taken none.
    ///
    /// # Errors
    /// [`AcceptError`]. Without a descriptor for the connection's timer that connection is closed, and the next call waits for another.
    pub async fn accept(&self) -> Result<Connection, AcceptError> {
        // The timer comes second: while descriptors are short, a loop around this fails once for each client, and does not spin.
        let connection = self.0.accept_async().await?;
        let timer = Timer::new().map_err(AcceptError::Timer)?;
        Ok(Connection::new(connection, timer))
    }

    /// What else it can do: its address, `close`, `show`.
    #[must_use]
    pub fn get_ref(&self) -> &crate::Endpoint {
        &self.0
    }
}

/// One that may also be bound otherwise ([`crate::Endpoint::bind`]).
impl From<crate::Endpoint> for Endpoint {
    fn from(endpoint: crate::Endpoint) -> Self {
        Self(endpoint)
    }
}

/// [`crate::Connection`] in tokio. Dropped, it is closed; what has not left is dropped with it ([`Connection::finish`]).
#[derive(Debug)]
pub struct Connection {
    connection: crate::Connection,
    timer: Timer,
}

impl Connection {
    fn new(connection: crate::Connection, timer: Timer) -> Self {
        Self { connection, timer }
    }

    /// Sends a message, and returns when the next one may be made, as far as the slowest step between the two applications is
    /// concerned: a loop around it is paced, and each message that it makes is fresh.
    ///
    /// Dropped before it is ready, it has sent the whole message, or nothing if the message could not leave yet: also the call before
    /// returns somewhat earlier than that. A caller that has to know which uses [`Connection::ready`] and
    /// [`crate::Connection::try_send`].
    ///
    /// # Errors
    /// [`SendError`].
    pub async fn send(&self, bytes: &[u8]) -> Result<(), SendError> {
        self.send_within(bytes, None).await
    }

    /// The same with a deadline of its own, from now to delivery.
    ///
    /// # Errors
    /// [`SendError`].
    pub async fn send_within(&self, bytes: &[u8], deadline: Option<Duration>) -> Result<(), SendError> {
        self.connection.send_within_async(bytes, deadline, |time| self.timer.sleep(time)).await
    }

    /// Waits until the next message may be made; at once if the connection is over. For those who choose what to send only then,
    /// and send it by [`crate::Connection::try_send`]. Dropped before it is ready, it has changed nothing.
    pub async fn ready(&self) {
        self.connection.ready_async(|time| self.timer.sleep(time)).await;
    }

    /// The next message; waits for it. Dropped before it is ready it has taken none.
    ///
    /// # Errors
    /// The connection is over, and all that came has been taken.
    pub async fn recv(&self) -> Result<Message, RecvError> {
        self.connection.recv_async().await
    }

    /// Waits until everything that was sent has arrived or expired, or the connection is over. False: it is over, and something has
    /// not. Dropped before, it has changed nothing.
    pub async fn finish(&self) -> bool {
        self.connection.finish_async().await
    }

    /// What else it can do, without waiting: `try_send`, `try_recv`, `view`, `changes`, `counts`, `close`. Its `send`, `recv`,
    /// `recv_timeout` and `finish` would hold the runtime's thread.
    #[must_use]
    pub fn get_ref(&self) -> &crate::Connection {
        &self.connection
    }
}

/// A timer of the kernel, which the runtime waits for as for a socket. `tokio::time::sleep` rounds up to a millisecond, which is
/// the pace of 10 Mbit/s. The endpoint's thread could wake the task at the right instant, too, but that costs two wake-ups of
/// threads, each of them late by itself, where this costs one; and it needs the endpoint's lock.
///
/// All waits of a connection share it: it is set to the earliest of their ends, and wakes each of them.
#[derive(Debug)]
struct Timer {
    /// When it fires next, while it is set. Locked for a call of the kernel, and never while a future waits.
    fires_ns: Mutex<Option<u64>>,
    file: AsyncFd<OwnedFd>,
}

impl Timer {
    fn new() -> io::Result<Self> {
        // The clock of `now_ns`: a host that was suspended has slept long enough.
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Boottime, flags)?;
        // SAFETY: it is open as long as it is registered: the result owns both, and is never taken apart.
        let file = unsafe { AsyncFd::register_with_interest(timer, Interest::READABLE) }?;
        Ok(Self { fires_ns: Mutex::new(None), file })
    }

    async fn sleep(&self, time: Duration) {
        let until_ns = now_ns().saturating_add(nanoseconds(time));
        while now_ns() < until_ns {
            self.fires_by(until_ns);
            let Ok(mut ready) = self.file.readable().await else {
                // The runtime ends: nobody polls this any more.
                return std::future::pending().await;
            };
            let mut fires_ns = self.fires_ns.lock().unwrap_or_else(PoisonError::into_inner);
            // Of the waits that are woken one finds that it has fired. The others set it again, if their ends are later.
            if ready.try_io(|file| Ok(read(file.get_ref(), &mut [0; 8])?)).is_ok() {
                *fires_ns = None;
            }
        }
    }

    /// Sets it, if it would fire later, or not at all. One that was set by a wait that was dropped fires in vain.
    fn fires_by(&self, until_ns: u64) {
        let mut fires_ns = self.fires_ns.lock().unwrap_or_else(PoisonError::into_inner);
        if fires_ns.is_none_or(|fires_ns| until_ns < fires_ns) {
            *fires_ns = Some(until_ns);
            let spec = |ns: u64| Timespec {
                tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
                tv_nsec: i64::try_from(ns % 1_000_000_000).unwrap_or(0),
            };
            let once = Itimerspec { it_interval: spec(0), it_value: spec(until_ns) };
            // It fails for no time that can be said.
            let _ = timerfd_settime(self.file.get_ref(), TimerfdTimerFlags::ABSTIME, &once);
        }
    }
}
