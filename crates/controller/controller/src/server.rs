// SPDX-License-Identifier: Apache-2.0
//! JSON over HTTP/1.1 over mutual TLS.
//!
//! ```text
//!  accept ─► TLS ─► who is it? ─► may it still? how often? ─► path, role ─► order, JSON ─► RequestSender ─► answer
//!            tls    Connection    guard                       routes                      crate::shell
//! ```
//!
//! The paths are the handler's, and `GET` of [`fide_controller_api::paths::upcalls`]. Every error is JSON,
//! `{"error": {"code", "message", ...}}`. An answer with the header `Fide-Stale: 1` has the last state that
//! this controller knew, while it cannot prove that it leads.
//!
//! Each bound is a constant here or, if clients must know it, in [`fide_controller_api::limits`], and in
//! [`Limits`] for tests. Each comment says what happens at the bound.

mod connection;
mod error;
mod handshakes;
mod limits;
mod routes;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fide_types::Time;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

pub use error::ApiError;
pub use limits::Limits;

use crate::shell::RequestSender;
use crate::tls::ServerTls;
use connection::Context;
use handshakes::Handshakes;
use limits::Peers;

/// Open connections, those in the handshake included. One more is closed at once.
pub const CONNECTIONS_MAX: usize = 1024;
/// Handshakes at a time, all and from one address (IPv6: from one /64). One more is closed at once, so that
/// unknown clients leave room for known ones.
pub const HANDSHAKES_MAX: usize = CONNECTIONS_MAX / 2;
pub const HANDSHAKES_PER_ADDRESS: usize = 32;
/// Further connections of one peer that are kept open until a request, to be answered with a refusal. One
/// more is closed at once.
pub const REFUSALS_PER_PEER: usize = 4;
/// Bytes of a request's head. A longer one is answered 431 by hyper, without a body.
pub const HEAD_MAX: usize = 16 * 1024;
/// Headers of a request; with more the same happens.
pub const HEADERS_MAX: usize = 64;
/// A handshake that takes longer is given up.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// From the end of one request to the end of the next one's head. Then the connection is closed.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// A body that takes longer is `body_too_slow`.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long running requests may take after the end was ordered. Then they are cut off.
pub const GRACE: Duration = Duration::from_secs(10);
/// Pause after a failed accept (no file descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A server that is ready to run.
#[derive(Debug)]
pub struct Server {
    context: Arc<Context>,
}

impl Server {
    pub fn new(tls: Arc<ServerTls>, request_sender: RequestSender, limits: Limits) -> Server {
        let (ending, _) = watch::channel(false);
        let peers = Peers::new(limits);
        let handshakes = Handshakes::new(limits);
        Server { context: Arc::new(Context { tls, request_sender, limits, peers, handshakes, ending }) }
    }

    /// Serves `listener` until `end`, then lets running requests finish for [`GRACE`]. Long polls are
    /// answered at once.
    pub async fn run(self, listener: TcpListener, end: impl Future<Output = ()>) {
        let router = routes::router(&self.context);
        let places = Arc::new(Semaphore::new(self.context.limits.connections));
        let mut connections = JoinSet::new();
        let mut end = std::pin::pin!(end);
        loop {
            let accepted = tokio::select! {
                () = &mut end => break,
                // Reaped, so that the set does not grow.
                Some(_) = connections.join_next() => continue,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, address)) => {
                    let place = places.clone().try_acquire_owned();
                    match (place, self.context.handshakes.begin(address.ip())) {
                        (Ok(place), Ok(handshake)) => {
                            let serving =
                                connection::serve(self.context.clone(), router.clone(), stream, address, handshake);
                            connections.spawn(async move {
                                serving.await;
                                drop(place);
                            });
                        }
                        (Err(_), _) => {
                            let open = self.context.limits.connections;
                            tracing::warn!(%address, "{open} connections are open, one more is closed");
                        }
                        (_, Err(why)) => tracing::warn!(%address, "{why}"),
                    }
                }
                Err(why) => {
                    tracing::warn!("accepting a connection: {why}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop(listener);
        self.context.ending.send_replace(true);
        let all = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(self.context.limits.grace, all).await.is_err() {
            tracing::warn!("connections are cut off after {}", Time::from(self.context.limits.grace));
        }
    }
}

#[cfg(test)]
mod tests;
