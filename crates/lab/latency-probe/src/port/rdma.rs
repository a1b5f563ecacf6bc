// SPDX-License-Identifier: Apache-2.0
//! RDMA: unreliable datagrams over RoCEv2, where both sides take part (SEND and RECV).
//!
//! A port with a peer learns the number of the peer's queue pair from the peer (`greeting.rs`). A port
//! without a peer answers the sender of each datagram, which its headers name.

mod queue;

use std::{io, net::Ipv4Addr};

use fide_sys::clock::mono_ns;
use fide_sys::interface::Interface;
use fide_wire::PAYLOAD_MAX;
use queue::{Handle, Queue};

use super::{Arrived, Method, Port, PortError, greeting::Greeting};

/// Most hosts to which a path is known. At the bound, the one that was met first is forgotten, and found
/// again when a datagram comes from it.
const PEERS_MAX: usize = 16;

/// See the module.
pub struct RdmaPort {
    queue: Queue,
    greeting: Greeting,
    peers: Vec<(Ipv4Addr, Handle)>,
    oldest: usize,
    /// The destination: the index into `peers`, and the queue pair.
    to: Option<(usize, u32)>,
    answers: bool,
}

impl RdmaPort {
    /// Opens a queue pair on the card that the interface belongs to. If there is a peer, waits until it answers.
    ///
    /// # Errors
    /// [`PortError`]: there is no card, or no answer within two seconds.
    pub fn open(interface: &Interface, peer: Option<Ipv4Addr>, port: u16) -> Result<Self, PortError> {
        let failed = |why| PortError::Open { method: Method::RdmaUd, why };
        let queue = Queue::open(interface)?;
        let greeting = Greeting::open(interface.address, peer, port, queue.qpn()).map_err(failed)?;
        let peers = Vec::with_capacity(PEERS_MAX);
        let mut opened = Self { queue, greeting, peers, oldest: 0, to: None, answers: peer.is_none() };
        if let Some(peer) = peer {
            let qpn = opened.greeting.meet().map_err(failed)?.ok_or(PortError::NoHandshake { peer, port })?;
            opened.to = Some((opened.peer(peer).map_err(failed)?, qpn));
        }
        Ok(opened)
    }

    /// The index of the peer with this address; it is added if it is new.
    fn peer(&mut self, address: Ipv4Addr) -> io::Result<usize> {
        if let Some(known) = self.peers.iter().position(|(other, _)| *other == address) {
            return Ok(known);
        }
        let handle = self.queue.handle(address)?;
        if self.peers.len() < PEERS_MAX {
            self.peers.push((address, handle));
            return Ok(self.peers.len() - 1);
        }
        let at = self.oldest;
        self.peers[at] = (address, handle);
        self.oldest = (at + 1) % PEERS_MAX;
        Ok(at)
    }

    /// Notes the sender of a datagram. Returns false if the datagram is not to be passed on.
    fn note(&mut self, from: Ipv4Addr, qpn: u32, at_ns: u64) -> bool {
        // No address: it did not come over IPv4.
        if from.is_unspecified() || !self.greeting.hears(from, at_ns) {
            return false;
        }
        if self.answers {
            // A host to which there is no path cannot be answered.
            let Ok(known) = self.peer(from) else { return false };
            self.to = Some((known, qpn));
        }
        true
    }
}

impl Port for RdmaPort {
    fn send(&mut self, payload: &[u8]) -> io::Result<()> {
        let Some((known, qpn)) = self.to else { return Err(io::ErrorKind::NotConnected.into()) };
        self.greeting.sends();
        self.queue.send(&self.peers[known].1, qpn, payload)
    }

    fn receive(&mut self, buffer: &mut [u8; PAYLOAD_MAX], until_ns: u64) -> io::Result<Option<Arrived>> {
        loop {
            if let Some(datagram) = self.queue.take()? {
                let at_ns = mono_ns();
                let (from, qpn) = datagram.source();
                let bytes = datagram.bytes();
                let len = bytes.len().min(PAYLOAD_MAX);
                buffer[..len].copy_from_slice(&bytes[..len]);
                datagram.give_back()?;
                if self.note(from, qpn, at_ns) {
                    return Ok(Some(Arrived { len, at_ns, kernel_ns: None }));
                }
            }
            let now_ns = mono_ns();
            if let Some(number) = self.greeting.turn(now_ns)
                && let Some((_, qpn)) = &mut self.to
            {
                *qpn = number;
            }
            if now_ns >= until_ns {
                return Ok(None);
            }
            std::hint::spin_loop();
        }
    }

    fn name(&self) -> String {
        format!("{}, {}", Method::RdmaUd, self.queue.device())
    }
}
