// SPDX-License-Identifier: Apache-2.0
//! One end of the handshake between two RDMA ports, over UDP.
//!
//! The end with a peer asks the peer for the number of its queue pair: when it opens, and again when no
//! answers come any more, because a peer that was started again has another number. The end without a peer
//! sends its number to everybody who asks, and remembers nothing about it.

use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    time::Duration,
};

use fide_sys::clock::mono_ns;

use super::hello::{HELLO, Hello, Kind};

/// How often it looks for hellos. It does so seldom, because it takes a system call on the measuring core.
const LOOK_NS: u64 = 10_000_000;
/// Most hellos that one look takes. Further ones wait for the next look, and are lost if the socket has no
/// room for them.
const HELLOS_PER_LOOK: usize = 8;
/// A peer is asked again no sooner than after this time, and only if it has been silent for as long, whatever
/// was sent to it.
const ASK_AGAIN_NS: u64 = 100_000_000;
/// Datagrams that have to be without an answer before the peer is asked again.
const UNANSWERED: u32 = 3;
/// How many times a peer is asked at first, [`ASK_AGAIN_NS`] apart.
const ASKS: u32 = 20;

/// See the module.
pub(super) struct Greeting {
    socket: UdpSocket,
    qpn: u32,
    role: Role,
    looked_ns: u64,
}

enum Role {
    Answers,
    Asks(Asking),
}

struct Asking {
    peer: SocketAddrV4,
    /// It is in each hello of this port and in the answers to them; an answer with another nonce is ignored.
    nonce: u64,
    asked_ns: u64,
    /// Whether an answer may still come.
    open: bool,
    heard_ns: u64,
    unanswered: u32,
}

impl Asking {
    fn has_reason(&self, now_ns: u64) -> bool {
        let long_ago = |at_ns: u64| now_ns.saturating_sub(at_ns) >= ASK_AGAIN_NS;
        self.unanswered >= UNANSWERED && long_ago(self.heard_ns) && long_ago(self.asked_ns)
    }
}

impl Greeting {
    /// Opens the handshake's end for the queue pair `qpn` on the host `own`. Without a peer, it binds to
    /// `port`.
    ///
    /// # Errors
    /// The kernel's; the port may be taken.
    pub(super) fn open(own: Ipv4Addr, peer: Option<Ipv4Addr>, port: u16, qpn: u32) -> io::Result<Self> {
        let socket = UdpSocket::bind((own, if peer.is_some() { 0 } else { port }))?;
        let role = match peer {
            None => Role::Answers,
            Some(peer) => Role::Asks(Asking {
                peer: SocketAddrV4::new(peer, port),
                nonce: crate::random()?,
                asked_ns: 0,
                open: false,
                heard_ns: 0,
                unanswered: 0,
            }),
        };
        socket.set_nonblocking(true)?;
        Ok(Self { socket, qpn, role, looked_ns: 0 })
    }

    /// Asks the peer until it answers with its queue pair; `None` if it does not for two seconds.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn meet(&mut self) -> io::Result<Option<u32>> {
        self.socket.set_nonblocking(false)?;
        self.socket.set_read_timeout(Some(Duration::from_nanos(ASK_AGAIN_NS)))?;
        let mut number = None;
        for _ in 0..ASKS {
            // A failure to send may be temporary, such as while the kernel looks for a neighbour.
            self.ask(mono_ns());
            number = self.look();
            if number.is_some() {
                break;
            }
        }
        self.socket.set_nonblocking(true)?;
        Ok(number)
    }

    /// The handshake's part of a turn in which no datagram arrived. Returns the peer's queue pair, if it has
    /// just come.
    pub(super) fn turn(&mut self, now_ns: u64) -> Option<u32> {
        if now_ns.saturating_sub(self.looked_ns) < LOOK_NS {
            return None;
        }
        self.looked_ns = now_ns;
        if let Role::Asks(asking) = &self.role {
            if asking.has_reason(now_ns) {
                self.ask(now_ns);
            } else if !asking.open {
                return None;
            }
        }
        self.look()
    }

    /// Notes that a datagram goes out.
    pub(super) fn sends(&mut self) {
        if let Role::Asks(asking) = &mut self.role {
            asking.unanswered = asking.unanswered.saturating_add(1);
        }
    }

    /// Notes that a datagram came in. Returns false if there is a peer and the datagram is not from it.
    pub(super) fn hears(&mut self, from: Ipv4Addr, at_ns: u64) -> bool {
        let Role::Asks(asking) = &mut self.role else { return true };
        if from != *asking.peer.ip() {
            return false;
        }
        (asking.heard_ns, asking.unanswered) = (at_ns, 0);
        true
    }

    fn ask(&mut self, now_ns: u64) {
        let Role::Asks(asking) = &mut self.role else { return };
        (asking.asked_ns, asking.open) = (now_ns, true);
        let ask = Hello { kind: Kind::Ask, qpn: self.qpn, nonce: asking.nonce };
        // A question that is lost is sent again.
        let _ = self.socket.send_to(&ask.emit(), asking.peer);
    }

    /// Takes the waiting packets, up to a bound.
    fn look(&mut self) -> Option<u32> {
        for _ in 0..HELLOS_PER_LOOK {
            match self.take() {
                Ok(None) => {}
                Ok(number) => return number,
                Err(_) => break,
            }
        }
        None
    }

    /// Takes one packet and answers it if it is a question. Returns the peer's queue pair if it is the peer's
    /// answer.
    fn take(&mut self) -> io::Result<Option<u32>> {
        // One byte more than a hello; otherwise a longer packet would look right.
        let mut bytes = [0; HELLO + 1];
        let (len, from) = self.socket.recv_from(&mut bytes)?;
        let Some(hello) = Hello::parse(&bytes[..len]) else { return Ok(None) };
        match (&mut self.role, hello.kind) {
            (Role::Answers, Kind::Ask) => {
                let answer = Hello { kind: Kind::Answer, qpn: self.qpn, nonce: hello.nonce };
                // If an answer is lost, the peer asks again.
                let _ = self.socket.send_to(&answer.emit(), from);
                Ok(None)
            }
            (Role::Asks(asking), Kind::Answer) if from == asking.peer.into() && hello.nonce == asking.nonce => {
                asking.open = false;
                Ok(Some(hello.qpn))
            }
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests;
