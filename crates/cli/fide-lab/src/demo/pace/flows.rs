// SPDX-License-Identifier: Apache-2.0
//! Two flows of messages, each with the time at which it was made: by X-PACE, and by TCP.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use fide_link_model::LinkSpec;
use fide_pace_socket::{Config, Connection, Endpoint, Step, new_secret};
use fide_sys::clock::mono_ns;
use fide_testbed::{Host, emulator::Emulator};
use rustix::net::sockopt;

use super::outcome::Run;

/// The link: 15 ms, and 5 ms for a packet.
const DELAY_NS: u64 = 15_000_000;
const BITS_PER_S: u64 = 1_600_000;
const BUFFER_BYTES: u64 = 18_000;
pub(super) const LINK_IN_WORDS: &str = "1.6 Mbit/s, 15 ms, and a buffer of 18 packets";
/// Of a packet on the link.
pub(super) const PACKET_BYTES: u64 = 1000;
/// A message of one packet over an empty link.
pub(super) const OPTIMUM_NS: u64 = DELAY_NS + PACKET_BYTES * 8 * 1_000_000_000 / BITS_PER_S;
/// Bytes of a message with which its packet has [`PACKET_BYTES`]: around it are IP, UDP, the header, the time, the frame, the
/// symbol's description and the tag; or IP and TCP with the times of packets.
const OF_PACE: usize = PACKET_BYTES as usize - 79;
const OF_TCP: usize = PACKET_BYTES as usize - 52;
/// Buffers of a tuned TCP: the link's own bytes under way, and some more.
const TUNED_BYTES: usize = 18_000;
/// A receiver that gets nothing for so long knows that no more comes.
const SILENCE: Duration = Duration::from_secs(2);
const PORT: u16 = 7000;

pub(super) fn link() -> LinkSpec {
    LinkSpec::of(DELAY_NS).with_rate(BITS_PER_S, BUFFER_BYTES)
}

/// Acknowledgements and feedback find an empty link.
pub(super) fn back() -> LinkSpec {
    LinkSpec::of(DELAY_NS)
}

/// Returns when the next message may be made. False: the connection is over.
type Give = Box<dyn FnMut(&[u8]) -> bool + Send>;
/// Puts a message into the buffer. False: no more comes.
type Take = Box<dyn FnMut(&mut [u8]) -> bool + Send>;
/// The slowest step now.
pub(super) type Slowest = Arc<dyn Fn() -> Option<Step> + Send + Sync>;

/// A flow, before it runs.
pub(super) struct Flow {
    pub(super) name: String,
    pub(super) send: Give,
    pub(super) receive: Take,
    pub(super) taken: Taken,
    pub(super) slowest: Option<Slowest>,
}

/// What has come of a flow.
#[derive(Debug, Clone)]
pub(super) struct Taken {
    len: usize,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    sent: u64,
    /// When each message that came was made (`CLOCK_MONOTONIC`), and how long it was on its way, ns.
    messages: Vec<(u64, u64)>,
}

impl Taken {
    fn new(len: usize) -> Self {
        Self { len, state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those made from a time on.
    pub(super) fn since(&self, from_ns: u64) -> Vec<(u64, u64)> {
        let state = self.state();
        let begin = state.messages.partition_point(|(made_ns, _)| *made_ns < from_ns);
        state.messages[begin..].to_vec()
    }

    pub(super) fn run(&self, name: String) -> Run {
        let mut state = self.state();
        Run { name, sent: state.sent, messages: std::mem::take(&mut state.messages) }
    }
}

/// Sends messages until it is to stop.
pub(super) fn give(send: &mut (dyn FnMut(&[u8]) -> bool + Send), taken: &Taken, stop: &AtomicBool) {
    let mut message = vec![0; taken.len];
    while !stop.load(Ordering::Relaxed) {
        message[..8].copy_from_slice(&mono_ns().to_be_bytes());
        if !send(&message) {
            return;
        }
        taken.state().sent += 1;
    }
}

/// Takes messages until no more comes.
pub(super) fn take(receive: &mut (dyn FnMut(&mut [u8]) -> bool + Send), taken: &Taken) {
    let mut message = vec![0; taken.len];
    while receive(&mut message) {
        let made_ns = message.first_chunk().copied().map_or(0, u64::from_be_bytes);
        let time_ns = mono_ns().saturating_sub(made_ns);
        taken.state().messages.push((made_ns, time_ns));
    }
}

fn address() -> SocketAddr {
    SocketAddr::from((Emulator::address(1), PORT))
}

/// X-PACE as it comes: a sender that is held, a queue of one message, a deadline of 100 ms.
pub(super) fn paced(here: &Host, there: &Host) -> Result<Flow> {
    let (key, config) = (new_secret(), Config::default());
    let server = there.run_in(|| Endpoint::server(address(), key.clone(), config))??;
    let client = here.run_in(Endpoint::client)??;
    let sender = Arc::new(client.connect(address(), &key.for_clients(), config).context("connecting by X-PACE")?);
    let receiver = server.accept()?;
    let of_view = Arc::clone(&sender);
    let receive = move |into: &mut [u8]| {
        let _stays = &server;
        take_paced(&receiver, into)
    };
    Ok(Flow {
        name: "X-PACE".to_owned(),
        send: Box::new(move |message| sender.send(message).is_ok()),
        receive: Box::new(receive),
        taken: Taken::new(OF_PACE),
        slowest: Some(Arc::new(move || Some(of_view.view()?.bottleneck?.0))),
    })
}

fn take_paced(receiver: &Connection, into: &mut [u8]) -> bool {
    let since = Instant::now();
    while since.elapsed() < SILENCE {
        match receiver.recv_timeout(SILENCE) {
            Ok(Some(message)) => {
                let len = message.bytes.len().min(into.len());
                into[..len].copy_from_slice(&message.bytes[..len]);
                receiver.recycle(message);
                return true;
            }
            Ok(None) => {}
            Err(_) => return false,
        }
    }
    false
}

/// TCP: tuned, it has small buffers, sends and acknowledges at once.
pub(super) fn tcp(here: &Host, there: &Host, congestion: &'static str, is_tuned: bool) -> Result<Flow> {
    let listener = there.run_in(|| -> io::Result<TcpListener> {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT))?;
        if is_tuned {
            // Those that are accepted inherit it. The kernel doubles it.
            sockopt::set_socket_recv_buffer_size(&listener, TUNED_BYTES / 2)?;
        }
        Ok(listener)
    })??;
    let mut sender = here.run_in(|| TcpStream::connect(address()))?.context("connecting by TCP")?;
    let (mut receiver, _) = listener.accept()?;
    sockopt::set_tcp_congestion(&sender, congestion).map_err(|why| {
        let known = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap_or_default();
        anyhow!(
            "TCP {congestion} is not to be had here ({why}), these are: {}; name another one with --against",
            known.trim()
        )
    })?;
    if is_tuned {
        sender.set_nodelay(true)?;
        sockopt::set_socket_send_buffer_size(&sender, TUNED_BYTES / 2)?;
    }
    receiver.set_read_timeout(Some(SILENCE))?;
    let receive = move |into: &mut [u8]| {
        if is_tuned {
            // The kernel forgets it after a while.
            let _ = sockopt::set_tcp_quickack(&receiver, true);
        }
        receiver.read_exact(into).is_ok()
    };
    Ok(Flow {
        name: format!("TCP {}", congestion.to_uppercase()),
        send: Box::new(move |message| sender.write_all(message).is_ok()),
        receive: Box::new(receive),
        taken: Taken::new(OF_TCP),
        slowest: None,
    })
}
