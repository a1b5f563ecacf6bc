// SPDX-License-Identifier: Apache-2.0
//! One side of a flow, as a process of its own.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use fide_pace_socket::{ClientKey, Config, Endpoint, ServerKey};
use fide_testbed::sys::bind_to_core;
use rustix::time::{ClockId, clock_gettime};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName},
};
use serde::{Deserialize, Serialize};

use super::{Done, MESSAGE};

/// The line of a receiver that listens.
pub(super) const READY: &str = "ready";
/// Messages that may wait at X-PACE's sender.
const QUEUE: usize = 64;
/// A receiver that gets nothing for so long has got all.
const SILENCE: Duration = Duration::from_secs(1);
/// Bytes that a TCP receiver reads at once.
const READ: usize = 1 << 16;

/// The name in the certificate of a TLS server.
pub(super) const NAME: &str = "receiver";

/// What carries the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum By {
    Ours,
    Tcp,
    /// TLS 1.3 over TCP, with what `rustls` prefers: AES-256-GCM.
    Tls,
}

/// What a side is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Side {
    pub(super) is_sender: bool,
    pub(super) by: By,
    pub(super) to: SocketAddr,
    pub(super) key: String,
    /// Of the TLS server, in DER; the private one for itself only.
    pub(super) certificate: Vec<u8>,
    pub(super) private: Vec<u8>,
    /// Messages a second; 0 for as many as may be.
    pub(super) rate: u64,
    pub(super) seconds: u64,
    pub(super) core: usize,
}

/// CPU time of all threads of this process.
fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// The process: does it, and prints what it has counted.
///
/// # Errors
/// The sockets', or a key that is none.
pub(crate) fn run(spec: &str) -> Result<()> {
    let side: Side = serde_json::from_str(spec).with_context(|| format!("what a side is to do: {spec:?}"))?;
    // The threads that it makes inherit it.
    bind_to_core(None, side.core)?;
    let done = match (side.is_sender, side.by) {
        (true, By::Ours) => {
            let config = Config { queue_max: QUEUE, ..Config::default() };
            let connection = Endpoint::client()?.connect(side.to, &ClientKey::parse(&side.key)?, config)?;
            let mut done = give(&side, |message| Ok(connection.send(message)?))?;
            let slowest = connection.view().and_then(|view| view.bottleneck);
            done.slowest = slowest.map(|(step, ns)| (step.name().to_owned(), ns));
            connection.finish(SILENCE);
            done
        }
        (true, by) => {
            let mut stream = TcpStream::connect(side.to)?;
            stream.set_nodelay(true)?;
            if by == By::Tcp {
                give(&side, move |message| stream.write_all(message).context("writing to TCP"))?
            } else {
                let client = ClientConnection::new(tls_client(&side)?, ServerName::try_from(NAME)?)?;
                let mut stream = StreamOwned::new(client, stream);
                // The set-up is not counted.
                stream.conn.complete_io(&mut stream.sock)?;
                give(&side, move |message| stream.write_all(message).context("writing to TLS"))?
            }
        }
        (false, By::Ours) => {
            let server = Endpoint::server(side.to, ServerKey::parse(&side.key)?, Config::default())?;
            println!("{READY}");
            let connection = server.accept()?;
            take(|| {
                let message = connection.recv_timeout(SILENCE).ok()??;
                connection.recycle(message);
                Some(1)
            })
        }
        (false, by) => {
            let listener = TcpListener::bind(side.to)?;
            println!("{READY}");
            let (mut stream, _) = listener.accept()?;
            stream.set_read_timeout(Some(SILENCE))?;
            if by == By::Tcp {
                take_bytes(stream)
            } else {
                let mut server = ServerConnection::new(tls_server(&side)?)?;
                server.complete_io(&mut stream)?;
                take_bytes(StreamOwned::new(server, stream))
            }
        }
    };
    println!("{}", serde_json::to_string(&done)?);
    Ok(())
}

fn tls_server(side: &Side) -> Result<Arc<ServerConfig>> {
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(side.private.clone()));
    let certificate = CertificateDer::from(side.certificate.clone());
    Ok(Arc::new(ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key)?))
}

fn tls_client(side: &Side) -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(side.certificate.clone()))?;
    Ok(Arc::new(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth()))
}

fn take_bytes(mut stream: impl Read) -> Done {
    let mut buffer = vec![0; READ];
    let mut bytes = 0;
    take(|| {
        let before = bytes / MESSAGE;
        bytes += stream.read(&mut buffer).ok().filter(|len| *len > 0)?;
        Some(bytes / MESSAGE - before)
    })
}

fn give(side: &Side, mut send: impl FnMut(&[u8]) -> Result<()>) -> Result<Done> {
    let message = [0; MESSAGE];
    let (begun, cpu, whole) = (Instant::now(), cpu_ns(), Duration::from_secs(side.seconds));
    let mut messages = 0;
    while begun.elapsed() < whole {
        if let Some(due_ns) = (messages * 1_000_000_000_u64).checked_div(side.rate) {
            thread::sleep(Duration::from_nanos(due_ns).saturating_sub(begun.elapsed()));
        }
        send(&message)?;
        messages += 1;
    }
    Ok(Done { messages, cpu_ns: cpu_ns() - cpu, whole_ns: elapsed_ns(begun), slowest: None })
}

/// Until there is none: how many came at each turn.
fn take(mut receive: impl FnMut() -> Option<usize>) -> Done {
    let (mut messages, mut first, mut last) = (0, None, None);
    let cpu = cpu_ns();
    while let Some(count) = receive() {
        messages += count as u64;
        last = Some(first.get_or_insert_with(Instant::now).elapsed());
    }
    #[allow(clippy::cast_possible_truncation, reason = "seconds")]
    let whole_ns = last.map_or(0, |last| last.as_nanos() as u64);
    Done { messages, cpu_ns: cpu_ns() - cpu, whole_ns, slowest: None }
}

#[allow(clippy::cast_possible_truncation, reason = "seconds")]
fn elapsed_ns(since: Instant) -> u64 {
    since.elapsed().as_nanos() as u64
}
