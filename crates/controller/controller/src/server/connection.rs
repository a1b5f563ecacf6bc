// SPDX-License-Identifier: Apache-2.0
//! One connection: its handshake, its peer, its end.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use fide_controller_api::Code;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use super::handshakes::{Handshake, Handshakes};
use super::limits::Peers;
use super::{ApiError, HEAD_MAX, HEADERS_MAX, Limits};
use crate::clock::Now;
use crate::handler::Peer;
use crate::shell::RequestSender;
use crate::tls::{Admitted, ServerTls};

/// Shared by all connections.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) tls: Arc<ServerTls>,
    pub(super) request_sender: RequestSender,
    pub(super) limits: Limits,
    pub(super) peers: Peers,
    pub(super) handshakes: Handshakes,
    /// Whether the server has to end.
    pub(super) ending: watch::Sender<bool>,
}

impl Context {
    /// Ready when the server has to end.
    pub(super) fn end(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut ending = self.ending.subscribe();
        async move {
            let _ = ending.wait_for(|ending| *ending).await;
        }
    }
}

/// A request's view of its connection.
#[derive(Debug, Clone)]
pub(super) struct Connection {
    context: Arc<Context>,
    admitted: Arc<Mutex<Admitted>>,
    peer: Peer,
    one_too_many: bool,
}

impl Connection {
    /// Judges the peer by the present files.
    pub(super) fn admit(&self) -> Result<(), ApiError> {
        let mut admitted = self.admitted.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        Ok(self.context.tls.admit(&mut admitted)?)
    }
}

/// Serves one connection to its end. An error before the peer is known is only logged, because there is
/// nobody to answer.
pub(super) async fn serve(
    context: Arc<Context>,
    router: Router,
    stream: TcpStream,
    address: SocketAddr,
    handshake: Handshake,
) {
    let _ = stream.set_nodelay(true);
    let acceptor = TlsAcceptor::from(context.tls.current().config.clone());
    let stream = match tokio::time::timeout(context.limits.handshake_timeout, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(why)) => return tracing::info!(%address, "a handshake failed: {why}"),
        Err(_) => return tracing::info!(%address, "a handshake took too long"),
    };
    let admitted = match context.tls.greet(stream.get_ref().1.peer_certificates().unwrap_or_default()) {
        Ok(admitted) => admitted,
        Err(why) => return tracing::info!(%address, "a peer is not admitted: {why}"),
    };
    let peer = Peer { identity: admitted.identity };
    let Some((_held, one_too_many)) = context.peers.connect(peer.identity, Now::read().boot_ns) else {
        return tracing::info!(%address, peer = %peer.identity, "it has too many connections, one more is closed");
    };
    drop(handshake);
    let ending = context.end();
    let timeout = context.limits.head_timeout;
    let connection = Connection { context, admitted: Arc::new(Mutex::new(admitted)), peer, one_too_many };
    let service = router.map_request(move |mut request: hyper::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(connection.clone());
        request.map(Body::new)
    });
    let http = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(timeout)
        .max_buf_size(HEAD_MAX)
        .max_headers(HEADERS_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    let mut http = std::pin::pin!(http);
    let ended = tokio::select! {
        ended = &mut http => ended,
        () = ending => {
            http.as_mut().graceful_shutdown();
            http.await
        }
    };
    if let Err(why) = ended {
        tracing::debug!(%address, peer = %peer.identity, "a connection ended: {why}");
    }
}

/// Before every request, whatever its path.
pub(super) async fn guard(request: Request, next: Next) -> Response {
    match admit(&request) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

fn admit(request: &Request) -> Result<(), ApiError> {
    let connection = request.extensions().get::<Connection>().ok_or_else(nobody)?;
    connection.admit()?;
    let limits = &connection.context.limits;
    if connection.one_too_many {
        let message = format!("{} connections of yours are open; use those", limits.connections_per_peer);
        return Err(ApiError::new(429, Code::TooManyConnections, message).retry(1).closing());
    }
    connection.context.peers.request(connection.peer.identity, Now::read().boot_ns).map_err(|after_s| {
        let message = format!("at most {} requests per second are answered; wait {after_s} s", limits.requests_per_s);
        ApiError::new(429, Code::TooManyRequests, message).retry(after_s)
    })
}

fn nobody() -> ApiError {
    ApiError::new(500, Code::NoPeer, "the connection has no peer; connect again")
}

impl<S: Send + Sync> FromRequestParts<S> for Connection {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Connection, ApiError> {
        parts.extensions.get::<Connection>().cloned().ok_or_else(nobody)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Peer {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Peer, ApiError> {
        Connection::from_request_parts(parts, state).await.map(|connection| connection.peer)
    }
}
