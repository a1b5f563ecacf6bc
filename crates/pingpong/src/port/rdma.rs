// SPDX-License-Identifier: Apache-2.0
//! RDMA: unreliable datagrams, both sides taking part (SEND and RECV), over RoCEv2.
//!
//! A port with a peer asks it over UDP for the number of its queue pair, when it opens and again when no answers come any
//! more, as a peer that was started again has another one. A port without a peer tells its number to whoever asks and
//! remembers nothing of it: whom a datagram came from is in its headers.

mod queue;

use std::{
    fs::File,
    io::{self, Read},
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    time::Duration,
};

use fide_lane::{interface::Interface, now_ns};
use fide_wire::PAYLOAD_MAX;
use queue::{Handle, Queue};

use super::{
    Arrived, Method, Port, PortError,
    hello::{HELLO, Hello, Kind},
};

/// How often it looks for hellos: it is a system call on the measuring core.
const LOOK_NS: u64 = 10_000_000;
/// Hellos per look; the rest waits for the next one, and what is more than the socket keeps is lost.
const HELLOS_PER_LOOK: usize = 8;
/// A peer is asked again so often, and only if it has been silent for so long, whatever was sent to it.
const ASK_AGAIN_NS: u64 = 100_000_000;
/// Datagrams that have to be without an answer before the peer is asked again.
const UNANSWERED: u32 = 3;
/// How often a peer is asked while the port opens, [`ASK_AGAIN_NS`] apart.
const ASKS: u32 = 20;
/// Hosts whose way is known; at the bound the one that was met first is forgotten, and found again when it is heard from.
const PEERS_MAX: usize = 16;

/// Which end of the handshake it is.
enum Role {
    Answers,
    Asks {
        peer: SocketAddrV4,
        /// In each of this port's hellos and in the answers to them: another's answer is none.
        nonce: u64,
        asked_ns: u64,
        /// An answer may come.
        open: bool,
        heard_ns: u64,
        unanswered: u32,
    },
}

/// See the module.
pub struct RdmaPort {
    // Before the queue, whose handles they are.
    peers: Vec<(Ipv4Addr, Handle)>,
    oldest: usize,
    queue: Queue,
    socket: UdpSocket,
    role: Role,
    /// To whom it sends: which of `peers`, and its queue pair.
    to: Option<(usize, u32)>,
    looked_ns: u64,
}

impl RdmaPort {
    /// Opens a queue pair on the card that the interface belongs to. If there is a peer, waits until it answers.
    ///
    /// # Errors
    /// [`PortError`]: there is no card, or no answer within two seconds.
    pub fn open(interface: &Interface, peer: Option<Ipv4Addr>, port: u16) -> Result<Self, PortError> {
        let failed = |source| PortError::Open { method: Method::RdmaUd, source };
        let queue = Queue::open(interface)?;
        let own_port = if peer.is_some() { 0 } else { port };
        let socket = UdpSocket::bind((interface.address, own_port)).map_err(failed)?;
        let role = match peer {
            None => Role::Answers,
            Some(peer) => Role::Asks {
                peer: SocketAddrV4::new(peer, port),
                nonce: random().map_err(failed)?,
                asked_ns: 0,
                open: true,
                heard_ns: 0,
                unanswered: 0,
            },
        };
        let peers = Vec::with_capacity(PEERS_MAX);
        let mut opened = Self { peers, oldest: 0, queue, socket, role, to: None, looked_ns: 0 };
        if let Some(peer) = peer {
            opened.meet(peer, port)?;
        }
        opened.socket.set_nonblocking(true).map_err(failed)?;
        Ok(opened)
    }

    /// Asks the peer until it answers.
    fn meet(&mut self, peer: Ipv4Addr, port: u16) -> Result<(), PortError> {
        let failed = |source| PortError::Open { method: Method::RdmaUd, source };
        self.socket.set_read_timeout(Some(Duration::from_nanos(ASK_AGAIN_NS))).map_err(failed)?;
        for _ in 0..ASKS {
            // What keeps it from being sent may pass, as it does while a neighbour is looked for.
            let _ = self.ask(now_ns());
            // Others may write to this port, too; a bounded number of their packets is put up with.
            for _ in 0..HELLOS_PER_LOOK {
                match self.hello() {
                    Ok(Some(qpn)) => {
                        let known = self.peer(peer).map_err(failed)?;
                        self.to = Some((known, qpn));
                        self.answered();
                        return Ok(());
                    }
                    Ok(None) => {}
                    Err(_) => break,
                }
            }
        }
        Err(PortError::NoHandshake { peer, port })
    }

    fn ask(&mut self, now_ns: u64) -> io::Result<()> {
        let Role::Asks { peer, nonce, asked_ns, open, .. } = &mut self.role else { return Ok(()) };
        (*asked_ns, *open) = (now_ns, true);
        let ask = Hello { kind: Kind::Ask, qpn: self.queue.qpn(), nonce: *nonce };
        self.socket.send_to(&ask.emit(), *peer).map(drop)
    }

    /// Takes one packet from the handshake's socket: answers it if it asks. The peer's queue pair if it is its answer.
    fn hello(&mut self) -> io::Result<Option<u32>> {
        // One byte more, or a longer packet would look right.
        let mut bytes = [0; HELLO + 1];
        let (len, from) = self.socket.recv_from(&mut bytes)?;
        let Some(hello) = Hello::parse(&bytes[..len]) else { return Ok(None) };
        match (&self.role, hello.kind) {
            (Role::Answers, Kind::Ask) => {
                let answer = Hello { kind: Kind::Answer, qpn: self.queue.qpn(), nonce: hello.nonce };
                // One that is lost is asked for again.
                let _ = self.socket.send_to(&answer.emit(), from);
                Ok(None)
            }
            (Role::Asks { peer, nonce, .. }, Kind::Answer) if from == (*peer).into() && hello.nonce == *nonce => {
                Ok(Some(hello.qpn))
            }
            _ => Ok(None),
        }
    }

    /// The handshake's part of a turn in which nothing had arrived.
    fn greet(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.looked_ns) < LOOK_NS {
            return;
        }
        self.looked_ns = now_ns;
        if let Role::Asks { asked_ns, open, heard_ns, unanswered, .. } = &self.role {
            let long_ago = |at_ns: u64| now_ns.saturating_sub(at_ns) >= ASK_AGAIN_NS;
            if *unanswered >= UNANSWERED && long_ago(*heard_ns) && long_ago(*asked_ns) {
                // It will be asked again.
                let _ = self.ask(now_ns);
            } else if !open {
                return;
            }
        }
        for _ in 0..HELLOS_PER_LOOK {
            match self.hello() {
                Ok(Some(qpn)) => {
                    if let Some((_, to)) = &mut self.to {
                        *to = qpn;
                    }
                    self.answered();
                }
                Ok(None) => {}
                Err(_) => return,
            }
        }
    }

    fn answered(&mut self) {
        if let Role::Asks { open, .. } = &mut self.role {
            *open = false;
        }
    }

    /// Which of the peers has this address.
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

    /// Notes whom a datagram came from; false if it is none to hand on.
    fn note(&mut self, from: Ipv4Addr, qpn: u32, at_ns: u64) -> bool {
        match &mut self.role {
            Role::Asks { peer, heard_ns, unanswered, .. } => {
                if from != *peer.ip() {
                    return false;
                }
                (*heard_ns, *unanswered) = (at_ns, 0);
                true
            }
            // It came over something else than IPv4.
            Role::Answers if from.is_unspecified() => false,
            Role::Answers => match self.peer(from) {
                Ok(known) => {
                    self.to = Some((known, qpn));
                    true
                }
                // Whom there is no way to cannot be answered.
                Err(_) => false,
            },
        }
    }
}

fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

impl Port for RdmaPort {
    fn send(&mut self, payload: &[u8]) -> io::Result<()> {
        let Some((known, qpn)) = self.to else { return Err(io::ErrorKind::NotConnected.into()) };
        if let Role::Asks { unanswered, .. } = &mut self.role {
            *unanswered = unanswered.saturating_add(1);
        }
        self.queue.send(&self.peers[known].1, qpn, payload)
    }

    fn receive(&mut self, buffer: &mut [u8; PAYLOAD_MAX], until_ns: u64) -> io::Result<Option<Arrived>> {
        loop {
            if let Some(datagram) = self.queue.take()? {
                let at_ns = now_ns();
                let (from, qpn) = datagram.source();
                let bytes = datagram.bytes();
                let len = bytes.len().min(PAYLOAD_MAX);
                buffer[..len].copy_from_slice(&bytes[..len]);
                datagram.give_back()?;
                if self.note(from, qpn, at_ns) {
                    return Ok(Some(Arrived { len, at_ns, kernel_ns: None }));
                }
            }
            let now_ns = now_ns();
            self.greet(now_ns);
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
