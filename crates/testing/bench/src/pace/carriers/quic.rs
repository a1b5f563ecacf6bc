// SPDX-License-Identifier: Apache-2.0
//! QUIC as the carrier, by quinn with its default congestion control (CUBIC, paced): datagrams, or one stream with the
//! messages one after the other. Both ends encrypt, with a certificate that is made for the run.
//!
//! Tuned as TCP is: a stream has the scenario's buffers as its windows. The sender of datagrams is held by a queue of one
//! message, as X-PACE's is; flow control does not hold it, as QUIC has none for datagrams.

use std::{
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use fide_testbed::Host;
use quinn::{
    ClientConfig, Connection, Endpoint, EndpointConfig, RecvStream, ServerConfig, TokioRuntime, TransportConfig,
    VarInt,
    rustls::{
        RootCertStore,
        pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    },
};
use tokio::{
    runtime::{Builder, Runtime},
    time::timeout,
};

use super::{Receive, SILENCE, Send};
use crate::flow::Scenario;

/// The server's name in its certificate.
const NAME: &str = "fide-bench";
/// A message that cannot be sent for so long is not sent any more.
const STUCK: Duration = Duration::from_secs(20);
/// An end says within this that it is gone.
const END: Duration = Duration::from_secs(1);
/// What quinn counts for a datagram in its queue beside its bytes, and less than a message more.
const QUEUE_AROUND: usize = 200;

/// What of QUIC carries the messages.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Quic {
    Datagrams,
    Stream,
}

/// One end: quinn's own thread runs beside the application's, as X-PACE's does.
struct End {
    connection: Connection,
    endpoint: Endpoint,
    runtime: Option<Runtime>,
}

impl End {
    fn run<F: Future>(&self, future: F) -> Option<F::Output> {
        self.runtime.as_ref().map(|runtime| runtime.block_on(future))
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.connection.close(VarInt::from_u32(0), b"");
        self.run(async { timeout(END, self.endpoint.wait_idle()).await });
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(END);
        }
    }
}

fn endpoint(host: &Host, at: SocketAddr, server: Option<ServerConfig>) -> Result<(Runtime, Endpoint)> {
    let socket = host.run_in(|| UdpSocket::bind(at))??;
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let inside = runtime.enter();
    let endpoint = Endpoint::new(EndpointConfig::default(), server, socket, Arc::new(TokioRuntime))?;
    drop(inside);
    Ok((runtime, endpoint))
}

/// Of the server and the client.
fn configs(scenario: &Scenario, len: usize) -> Result<(ServerConfig, ClientConfig)> {
    let mut transport = TransportConfig::default();
    transport
        .send_window(scenario.send_buffer as u64)
        .stream_receive_window(VarInt::from_u64(scenario.receive_buffer as u64)?)
        .datagram_receive_buffer_size(Some(scenario.receive_buffer))
        .datagram_send_buffer_size(len + QUEUE_AROUND);
    let transport = Arc::new(transport);
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone())?;
    let mut server = ServerConfig::with_single_cert(vec![made.cert.der().clone()], key)?;
    server.transport_config(Arc::clone(&transport));
    let mut client = ClientConfig::with_root_certificates(Arc::new(roots))?;
    client.transport_config(transport);
    Ok((server, client))
}

fn connect(here: &Host, there: &Host, to: SocketAddr, scenario: &Scenario, len: usize) -> Result<[End; 2]> {
    let (server, client) = configs(scenario, len)?;
    let (of_server, server) = endpoint(there, to, Some(server))?;
    let (of_client, outgoing) = endpoint(here, SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)), None)?;
    let accepting = of_server.spawn({
        let server = server.clone();
        async move {
            let incoming = server.accept().await.ok_or_else(|| anyhow!("the server's endpoint is closed"))?;
            anyhow::Ok(incoming.await?)
        }
    });
    let connecting =
        of_client.block_on(async { outgoing.connect_with(client, to, NAME)?.await.map_err(anyhow::Error::from) });
    let sender = connecting.context("connecting")?;
    let receiver = of_server.block_on(accepting)?.context("accepting")?;
    Ok([
        End { connection: sender, endpoint: outgoing, runtime: Some(of_client) },
        End { connection: receiver, endpoint: server, runtime: Some(of_server) },
    ])
}

pub(super) fn open(
    here: &Host,
    there: &Host,
    to: SocketAddr,
    kind: Quic,
    scenario: &Scenario,
    len: usize,
) -> Result<(Send, Receive)> {
    let [sender, receiver] = connect(here, there, to, scenario, len)?;
    Ok(match kind {
        Quic::Datagrams => (datagrams_from(sender), datagrams_to(receiver)),
        Quic::Stream => (stream_from(sender)?, stream_to(receiver, len)),
    })
}

fn datagrams_from(end: End) -> Send {
    Box::new(move |message| {
        let bytes = message.to_vec().into();
        let sent = end.run(async { timeout(STUCK, end.connection.send_datagram_wait(bytes)).await });
        matches!(sent, Some(Ok(Ok(()))))
    })
}

fn datagrams_to(end: End) -> Receive {
    Box::new(move |into| {
        let came = end.run(async { timeout(SILENCE, end.connection.read_datagram()).await });
        let Some(Ok(Ok(bytes))) = came else { return None };
        let len = bytes.len().min(into.len());
        into[..len].copy_from_slice(&bytes[..len]);
        Some(len)
    })
}

fn stream_from(end: End) -> Result<Send> {
    let mut stream = end.run(async { timeout(STUCK, end.connection.open_uni()).await }).context("no runtime")???;
    Ok(Box::new(move |message| {
        let sent = end.run(async { timeout(STUCK, stream.write_all(message)).await });
        matches!(sent, Some(Ok(Ok(()))))
    }))
}

fn stream_to(end: End, len: usize) -> Receive {
    // It is there with its first bytes.
    let mut stream: Option<RecvStream> = None;
    Box::new(move |into| {
        if stream.is_none() {
            let accepted = end.run(async { timeout(SILENCE, end.connection.accept_uni()).await });
            let Some(Ok(Ok(accepted))) = accepted else { return None };
            stream = Some(accepted);
        }
        let stream = stream.as_mut()?;
        let came = end.run(async { timeout(SILENCE, stream.read_exact(&mut into[..len])).await });
        matches!(came, Some(Ok(Ok(())))).then_some(len)
    })
}
