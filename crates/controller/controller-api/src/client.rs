// SPDX-License-Identifier: Apache-2.0
//! A host's connection to its controllers: blocking, for threads that have nothing else to do.
//!
//! * [`Caller`] is one connection, made anew when it breaks, to whichever of the controllers leads.
//! * [`Ordered`] numbers changing requests, so that one whose answer was lost can be repeated without harm.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde::Serialize;
use serde::de::{Deserialize, DeserializeOwned};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::failure::{Code, Details, Failed, Failure};
use crate::method::Method;
use crate::sequence::{HEADER, Sequence};
use crate::tls::ClientTls;

/// Header of an answer that may be old: the controller cannot prove that it still leads.
pub const STALE: &str = "fide-stale";
/// To connect, with TLS.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// For an answer, in addition to the request's own wait.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// Largest answer that is read.
const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Between two tries of a request that must be carried out.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    #[error("{address}: {why}")]
    Unreachable { address: SocketAddr, why: String },
    #[error("{address} answered what is no JSON: {why}")]
    Nonsense { address: SocketAddr, why: String },
    /// No controller could be asked in time.
    #[error("no controller has answered for {seconds} s, the last trouble: {last}")]
    Nobody { seconds: u64, last: String },
    #[error("no thread for calls: {0}")]
    Runtime(String),
}

/// An answer: HTTP status and body.
#[derive(Debug, Clone, PartialEq)]
pub struct Answered {
    pub status: u16,
    pub body: Value,
    /// The last state that the controller knew: it cannot prove that it still leads.
    pub stale: bool,
}

impl Answered {
    /// The error, if the answer is one.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        Failed::deserialize(&self.body).ok().map(|failed| failed.error)
    }

    /// The error's code, if it is one.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        self.body.get("error")?.get("code")?.as_str().map(Code::from)
    }

    /// The error's message, if it is one.
    #[must_use]
    pub fn message(&self) -> &str {
        let message = self.body.get("error").and_then(|error| error.get("message"));
        message.and_then(Value::as_str).unwrap_or("")
    }

    /// Whether the status is 200.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.status == 200
    }

    /// The body as a `T`. Fields that `T` does not have are ignored.
    ///
    /// # Errors
    /// The field that is missing or has another type.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        T::deserialize(&self.body)
    }

    /// Whether the request was not judged yet, or its outcome is unknown: repeat it, a change with the same
    /// number.
    #[must_use]
    pub fn is_to_be_repeated(&self) -> bool {
        self.code().is_some_and(|code| code.is_to_be_repeated())
    }
}

/// A connection to one of the controllers.
#[derive(Debug)]
pub struct Caller {
    runtime: tokio::runtime::Runtime,
    addresses: Vec<SocketAddr>,
    /// The controller that is asked.
    at: usize,
    tls: Arc<ClientTls>,
    connection: Option<SendRequest<Full<Bytes>>>,
    /// The set of files under which it was made.
    generation: u64,
}

impl Caller {
    /// Does not connect yet.
    ///
    /// # Errors
    /// [`CallError::Runtime`].
    ///
    /// # Panics
    /// If there are no addresses.
    pub fn new(addresses: Vec<SocketAddr>, tls: Arc<ClientTls>) -> Result<Caller, CallError> {
        assert!(!addresses.is_empty(), "a controller has an address");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| CallError::Runtime(error.to_string()))?;
        Ok(Caller { runtime, addresses, at: 0, tls, connection: None, generation: 0 })
    }

    /// The controller that is asked.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.addresses[self.at]
    }

    /// Asks once; `wait` is what the request itself may take. After a failure the next controller is asked.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn call(
        &mut self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        sequence: Option<Sequence>,
        wait: Duration,
    ) -> Result<Answered, CallError> {
        let address = self.address();
        let done = self.try_call(address, method, path, body, sequence, wait);
        let elsewhere = match &done {
            Err(_) => true,
            // A controller that cannot store may have been followed by another, which can.
            Ok(answered) => matches!(answered.code(), Some(Code::NotLeader | Code::Stopping | Code::ReadOnly)),
        };
        if elsewhere {
            self.ask_another();
        }
        done
    }

    /// The next request goes over a new connection to the next controller: to the same one, if it is the only
    /// one.
    pub fn ask_another(&mut self) {
        self.connection = None;
        self.at = (self.at + 1) % self.addresses.len();
    }

    fn try_call(
        &mut self,
        address: SocketAddr,
        method: Method,
        path: &str,
        body: Option<&Value>,
        sequence: Option<Sequence>,
        wait: Duration,
    ) -> Result<Answered, CallError> {
        let unreachable = |why: String| CallError::Unreachable { address, why };
        // The files have changed: a controller that they do not accept any more is not asked again.
        let generation = self.tls.generation();
        if generation != std::mem::replace(&mut self.generation, generation) {
            self.connection = None;
        }
        let (runtime, connection, tls) = (&self.runtime, &mut self.connection, &self.tls);
        runtime.block_on(async {
            if connection.as_ref().is_none_or(SendRequest::is_closed) {
                let fresh = tokio::time::timeout(CONNECT_LIMIT, connect(address, tls)).await;
                *connection = Some(fresh.map_err(|_| unreachable("no answer".into()))?.map_err(unreachable)?);
            }
            let connection = connection.as_mut().expect("connected above");
            let text = body.map_or(String::new(), Value::to_string);
            let mut request = hyper::Request::builder()
                .method(method.as_str())
                .uri(path)
                .header("host", address.to_string())
                .header("content-type", "application/json");
            if let Some(sequence) = sequence {
                request = request.header(HEADER, sequence.to_string());
            }
            let request = request.body(Full::new(Bytes::from(text))).map_err(|e| unreachable(e.to_string()))?;
            let exchange = async {
                let response = connection.send_request(request).await.map_err(|e| unreachable(e.to_string()))?;
                let status = response.status().as_u16();
                let stale = response.headers().contains_key(STALE);
                let bytes = Limited::new(response.into_body(), ANSWER_BYTES_MAX)
                    .collect()
                    .await
                    .map_err(|e| unreachable(e.to_string()))?
                    .to_bytes();
                let body =
                    serde_json::from_slice(&bytes).map_err(|e| CallError::Nonsense { address, why: e.to_string() })?;
                Ok(Answered { status, body, stale })
            };
            tokio::time::timeout(wait + ANSWER_LIMIT, exchange).await.map_err(|_| unreachable("no answer".into()))?
        })
    }
}

async fn connect(address: SocketAddr, tls: &ClientTls) -> Result<SendRequest<Full<Bytes>>, String> {
    let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    let connector = TlsConnector::from(tls.current().config.clone());
    let stream = connector
        .connect(ServerName::IpAddress(address.ip().into()), stream)
        .await
        .map_err(|error| error.to_string())?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    // It runs while a call is waited for, and ends with the sender.
    tokio::spawn(connection);
    Ok(sender)
}

/// The order of this peer's changing requests.
#[derive(Debug)]
pub struct Ordered {
    /// This life of the peer, in the upper half; the lower counts fresh starts of the order.
    incarnation: u64,
    number: u64,
}

impl Ordered {
    /// `life` never goes back over restarts of the peer.
    #[must_use]
    pub fn new(life: u32) -> Ordered {
        Ordered { incarnation: u64::from(life).max(1) << 32, number: 0 }
    }

    /// Has a request carried out, by repeating it until its outcome is known, for `limit` at most.
    ///
    /// # Errors
    /// [`CallError::Nobody`]; the request may have been carried out.
    pub fn change(
        &mut self,
        caller: &mut Caller,
        method: Method,
        path: &str,
        body: &impl Serialize,
        limit: Duration,
    ) -> Result<Answered, CallError> {
        let body = json!(body);
        let begun = Instant::now();
        self.number += 1;
        loop {
            let sequence = Sequence { incarnation: self.incarnation, number: self.number };
            let last = match caller.call(method, path, Some(&body), Some(sequence), Duration::ZERO) {
                Ok(answered) => match answered.failure() {
                    // Another life, or this one before a fault, has used up this number: this request was
                    // not carried out under it.
                    Some(Failure {
                        code: Code::OutOfOrder | Code::Replayed | Code::NumberReused,
                        message,
                        details: Details { expected, .. },
                    }) => {
                        match expected {
                            Some(Sequence { incarnation, number }) if incarnation >= self.incarnation => {
                                (self.incarnation, self.number) = (incarnation, number);
                            }
                            _ => self.anew(),
                        }
                        message
                    }
                    Some(failure) if failure.code.is_to_be_repeated() => failure.message,
                    _ => return Ok(answered),
                },
                Err(error) => error.to_string(),
            };
            if begun.elapsed() >= limit {
                // The number may be used up or not: begins a new order.
                self.anew();
                self.number = 0;
                return Err(CallError::Nobody { seconds: limit.as_secs(), last });
            }
            std::thread::sleep(RETRY_PAUSE);
        }
    }

    fn anew(&mut self) {
        self.incarnation += 1;
        self.number = 1;
    }
}
