// SPDX-License-Identifier: Apache-2.0
//! X-PACE over UDP sockets: connections that carry messages with deadlines, in order, paced to the slowest step
//! between two applications.
//!
//! ```no_run
//! use fide_pace_socket::{ClientKey, Config, Endpoint};
//!
//! let endpoint = Endpoint::client()?;
//! let key = ClientKey::parse("fide-pace-secret:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=")?;
//! let connection = endpoint.connect("192.0.2.7:7000".parse()?, &key, Config::default())?;
//! for frame in 0..100_u32 {
//!     // Returns when the next message may leave: a loop becomes paced by it.
//!     connection.send(&frame.to_be_bytes())?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! One thread for each [`Endpoint`] reads its socket and keeps its times. A message is sent by the thread that sends it,
//! without a hop, if it may leave at once; one that sends often looks at the socket, too, so that the endpoint's thread
//! sleeps. The state is behind one lock, which is held for the work on one batch of packets at most, and never while a
//! waker is called.
//!
//! Blocking functions have an asynchronous one beside them, for any executor: [`Connection::send_async`]. With the feature
//! `tokio` the module `tokio` has them for that runtime, paced below a millisecond.

mod ask;
mod clock;
mod connection;
mod departure;
mod driver;
mod endpoint;
mod loan;
mod shown;
mod socket;
mod state;
#[cfg(feature = "tokio")]
pub mod tokio;
mod waiting;

pub use ask::Changes;
pub use connection::{Connection, Departures, RecvError, SendError};
pub use endpoint::{AcceptError, BindError, ConnectError, Endpoint};
pub use fide_pace::{
    clock::Offset,
    congestion,
    endpoint::{ConnectError as BeginError, SetUpError},
    keys::{ClientKey, KeyError, ServerKey},
    receiver::Message,
    sender,
    step::{Paces, Step},
    transport::{Algorithm, Closed, Config, ConfigError, Counts, IDLE_LEAST_NS, Snapshot, View},
};
pub use shown::{
    SHOWN_MAX, ShowError,
    read::{Shown, ShownConnection, ShownEndpoint, shown},
};

/// Nanoseconds of the clock that all times of this crate are of (`CLOCK_BOOTTIME`): it never steps, and counts while the
/// host is suspended.
#[must_use]
pub fn now_ns() -> u64 {
    fide_sys::clock::boot_ns()
}

/// A new secret for both ends.
#[must_use]
pub fn new_secret() -> ServerKey {
    ServerKey::Secret(driver::entropy())
}

/// A new private key for a server.
#[must_use]
pub fn new_private() -> ServerKey {
    ServerKey::Private(driver::entropy())
}
