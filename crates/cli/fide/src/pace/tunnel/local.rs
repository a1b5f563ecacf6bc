// SPDX-License-Identifier: Apache-2.0
//! The programs at an end of a tunnel, and its sockets for them.

use std::{
    io,
    mem::MaybeUninit,
    net::{SocketAddr, UdpSocket},
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::anyhow;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

use super::{
    flows::{FLOW_LEN, Flows},
    towards,
};
use crate::exit::Failure;

/// Room for the longest datagram, with its flow in front.
pub(super) const ROOM: usize = FLOW_LEN + 65_536;
/// How soon a thread that waits for a datagram sees that the connection is over.
const LOOKS_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Datagrams of one socket that are taken before another one is looked at, and sockets that are looked at in a turn.
const TAKES_MAX: usize = 64;
const SOCKETS_MAX: usize = 32;

/// The local end of a tunnel.
pub(super) enum Local {
    /// Takes datagrams of any programs.
    Many(Programs),
    /// Exchanges datagrams with one program, by a socket for each flow.
    One(Sockets),
}

/// One socket for all programs that send there.
pub(super) struct Programs {
    socket: UdpSocket,
    flows: Mutex<Flows<SocketAddr>>,
}

/// A socket for each flow, so that the program knows them apart, and answers.
pub(super) struct Sockets {
    program: SocketAddr,
    flows: Mutex<Flows<Arc<UdpSocket>>>,
    /// All of them, each with its flow; one that is closed leaves it by itself.
    watch: OwnedFd,
}

fn lock<T>(flows: &Mutex<T>) -> MutexGuard<'_, T> {
    flows.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a datagram may come later.
fn goes_on(why: &io::Error) -> bool {
    // The last one is an answer to a datagram that was sent: nobody listens there now.
    use io::ErrorKind::{ConnectionRefused, Interrupted, WouldBlock};
    matches!(why.kind(), WouldBlock | Interrupted | ConnectionRefused)
}

/// No error if a signal interrupts a wait.
fn unless_interrupted(why: rustix::io::Errno) -> io::Result<()> {
    if why == rustix::io::Errno::INTR { Ok(()) } else { Err(why.into()) }
}

/// Takes what a socket has, each with room for its flow in front.
fn take(
    mut receive: impl FnMut(&mut [u8]) -> io::Result<(usize, u32)>,
    each: &mut impl FnMut(&[u8]),
    buffer: &mut [u8],
) -> io::Result<()> {
    for _ in 0..TAKES_MAX {
        match receive(&mut buffer[FLOW_LEN..]) {
            Ok((len, flow)) => {
                buffer[..FLOW_LEN].copy_from_slice(&flow.to_be_bytes());
                each(&buffer[..FLOW_LEN + len]);
            }
            Err(why) if goes_on(&why) => return Ok(()),
            Err(why) => return Err(why),
        }
    }
    Ok(())
}

impl Local {
    /// Waits for datagrams for a while, and hands each on with its flow in front. `buffer`: [`ROOM`] bytes.
    pub(super) fn receive(&self, buffer: &mut [u8], mut each: impl FnMut(&[u8])) -> io::Result<()> {
        match self {
            Self::Many(programs) => programs.receive(buffer, &mut each),
            Self::One(sockets) => sockets.receive(buffer, &mut each),
        }
    }

    /// A datagram of a flow. Lost, if the program is not there, or the flow has made way for another one.
    pub(super) fn send(&self, flow: u32, datagram: &[u8]) {
        let _ = match self {
            Self::Many(programs) => {
                let to = lock(&programs.flows).get(flow).copied();
                to.map_or(Ok(0), |to| programs.socket.send_to(datagram, to))
            }
            Self::One(sockets) => sockets.of(flow).map_or(Ok(0), |socket| socket.send(datagram)),
        };
    }
}

impl Programs {
    pub(super) fn new(socket: UdpSocket) -> Self {
        Self { socket, flows: Mutex::default() }
    }

    fn receive(&self, buffer: &mut [u8], each: &mut impl FnMut(&[u8])) -> io::Result<()> {
        poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&LOOKS_EVERY))
            .map(drop)
            .or_else(unless_interrupted)?;
        let receive = |into: &mut [u8]| {
            let (len, from) = self.socket.recv_from(into)?;
            Ok((len, lock(&self.flows).number_of(from)))
        };
        take(receive, each, buffer)
    }
}

impl Sockets {
    pub(super) fn new(program: SocketAddr) -> Result<Self, Failure> {
        let watch =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|why| anyhow!("sockets cannot be watched: {why}"))?;
        Ok(Self { program, flows: Mutex::default(), watch })
    }

    /// The socket of a flow, which may be a new one; none: the host has no further socket.
    fn of(&self, flow: u32) -> Option<Arc<UdpSocket>> {
        let mut flows = lock(&self.flows);
        if let Some(socket) = flows.get(flow) {
            return Some(Arc::clone(socket));
        }
        let socket = Arc::new(towards(self.program).ok()?);
        epoll::add(&self.watch, &socket, epoll::EventData::new_u64(flow.into()), epoll::EventFlags::IN).ok()?;
        flows.add(flow, Arc::clone(&socket));
        Some(socket)
    }

    fn receive(&self, buffer: &mut [u8], each: &mut impl FnMut(&[u8])) -> io::Result<()> {
        let mut events = [const { MaybeUninit::uninit() }; SOCKETS_MAX];
        let ready = match epoll::wait(&self.watch, &mut events, Some(&LOOKS_EVERY)) {
            Ok((ready, _)) => ready,
            Err(why) => return unless_interrupted(why),
        };
        for event in ready {
            // What is registered is a number of a flow.
            let Ok(flow) = u32::try_from(event.data.u64()) else { continue };
            let Some(socket) = lock(&self.flows).get(flow).map(Arc::clone) else { continue };
            take(|into| Ok((socket.recv(into)?, flow)), each, buffer)?;
        }
        Ok(())
    }
}
