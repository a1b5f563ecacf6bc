// SPDX-License-Identifier: Apache-2.0
//! Sending on one plane, and receiving over AF_PACKET or UDP; what a plane of memory has to do ([`Polled`]).

mod filter;
pub mod frame;
mod packet;
mod udp;

use std::{
    fmt, io,
    net::Ipv4Addr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use fide_wire::PAYLOAD_MAX;
pub use packet::{PacketReceiver, PacketSender, RECEIVE_BUFFER_BYTES, frame_socket, group_socket, hear_all_groups};
pub use udp::{Membership, UdpReceiver, UdpSender};

use fide_sys::interface::Interface;

/// Type of service of every heartbeat: DSCP CS7, "network control", which switches put into their
/// highest queue (FiDe §3.3).
pub const TYPE_OF_SERVICE: u8 = 0xe0;
/// Type of service of each sub-lane, the highest priority first: DSCP CS7 and EF (X-Lane §3.3).
pub const SUB_LANES: [u8; 2] = [TYPE_OF_SERVICE, 0xb8];
/// Type of service of what has no priority.
pub const BEST_EFFORT: u8 = 0;
/// The same for this host's own queueing discipline; 7 is the highest that needs no privilege to
/// be chosen beyond CAP_NET_ADMIN.
pub const SOCKET_PRIORITY: i32 = 7;

/// Where a plane's packets go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// One packet to a multicast group; the network copies it (FiDe §3.3).
    Group(Ipv4Addr),
    /// One packet to each peer.
    Peers(Vec<Ipv4Addr>),
    /// One packet to a group that is named later and may change ([`Sender::aim`]); received from every group
    /// in the range (first, last), over whichever interface it comes: planned trees.
    Trees { first: Ipv4Addr, last: Ipv4Addr },
}

/// A way to send payloads on one plane.
#[derive(Debug)]
pub enum Sender {
    /// Raw frames past the queueing discipline.
    Packet(PacketSender),
    /// A UDP socket.
    Udp(UdpSender),
}

impl Sender {
    /// The best way this host grants: raw frames to a multicast group, else UDP.
    /// Returns why the better one was not taken.
    ///
    /// # Errors
    /// If not even a UDP socket can be had.
    pub fn open(interface: &Interface, destination: &Destination, port: u16) -> io::Result<(Self, Option<String>)> {
        let why = match destination {
            _ if interface.loopback => "loopback has no frames of its own".to_owned(),
            Destination::Peers(_) => "no multicast group is configured for this plane".to_owned(),
            Destination::Group(group) => match PacketSender::open(interface, *group, port) {
                Ok(sender) => return Ok((Self::Packet(sender), None)),
                Err(error) => format!("AF_PACKET: {error}"),
            },
            Destination::Trees { .. } => match PacketSender::open(interface, Ipv4Addr::UNSPECIFIED, port) {
                Ok(sender) => return Ok((Self::Packet(sender), None)),
                Err(error) => format!("AF_PACKET: {error}"),
            },
        };
        Ok((Self::Udp(UdpSender::open(interface, destination, port)?), Some(why)))
    }

    /// Name of the rung.
    #[must_use]
    pub fn rung(&self) -> &'static str {
        match self {
            Self::Packet(_) => "af_packet",
            Self::Udp(_) => "udp",
        }
    }

    /// From the next payload on to this group. Of a sender that was opened for peers nothing changes.
    pub fn aim(&mut self, group: Ipv4Addr) {
        match self {
            Self::Packet(sender) => sender.aim(group),
            Self::Udp(sender) => sender.aim(group),
        }
    }

    /// Another sender of the same plane, aimed at nothing yet. Needs no privilege: it sends through the
    /// socket of this one.
    ///
    /// # Errors
    /// The kernel's, if there are no descriptors left.
    pub fn another(&self) -> io::Result<Self> {
        match self {
            Self::Packet(sender) => Ok(Self::Packet(sender.another()?)),
            Self::Udp(sender) => Ok(Self::Udp(sender.another()?)),
        }
    }

    /// From the next payload on this type of service, such as one of [`SUB_LANES`].
    ///
    /// # Errors
    /// The kernel's, of a UDP socket.
    pub fn set_type_of_service(&mut self, type_of_service: u8) -> io::Result<()> {
        match self {
            Self::Packet(sender) => {
                sender.set_type_of_service(type_of_service);
                Ok(())
            }
            Self::Udp(sender) => sender.set_type_of_service(type_of_service),
        }
    }

    /// Sends one payload of at most [`fide_wire::PAYLOAD_MAX`] bytes, now. Never blocks.
    ///
    /// # Errors
    /// The kernel's (a link that is down, a full queue); the payload is lost, as on the wire.
    pub fn send(&mut self, payload: &[u8]) -> io::Result<()> {
        match self {
            Self::Packet(sender) => sender.send(payload),
            Self::Udp(sender) => sender.send(payload),
        }
    }
}

/// A way to receive payloads on one plane where the receive program of `fide-bpf` does not.
#[derive(Debug)]
pub enum Receiver {
    /// Frames before the IP layer.
    Packet(PacketReceiver),
    /// A UDP socket.
    Udp(UdpReceiver),
}

/// A plane whose packets lie in memory until they are looked for: nobody is woken by them. Packets go to each peer that it was made for.
///
/// Until the first call nothing is sent or taken, so that another process may use the same memory up to then.
pub trait Polled: Send + fmt::Debug {
    /// Sends one payload of at most [`fide_wire::PAYLOAD_MAX`] bytes to each peer, now. Never blocks. Where a peer does not read, the payload
    /// is lost, as on the wire.
    ///
    /// # Errors
    /// If the memory of a peer was taken away; the others were sent the payload.
    fn send(&mut self, payload: &[u8]) -> io::Result<()>;

    /// Takes one payload; `None` if there is none. Never blocks. What is longer than [`PAYLOAD_MAX`] is given a length that the packet view
    /// refuses. A hostile peer may have payloads come as fast as they are taken.
    fn receive(&mut self, buffer: &mut [u8; PAYLOAD_MAX + 1]) -> Option<usize>;
}

/// What one agent hands another so that it goes on receiving where it stopped: what arrives in between
/// waits in the socket.
#[derive(Debug)]
pub struct Sockets {
    /// The UDP socket; only a [`Membership`] beside a packet socket or the receive program.
    pub udp: OwnedFd,
    /// The packet socket, on that rung.
    pub packet: Option<OwnedFd>,
}

impl Receiver {
    /// The best way this host grants: frames, else UDP. Returns why the better one was not taken.
    ///
    /// # Errors
    /// If not even a UDP socket can be had; the address may be taken by another program.
    pub fn open(interface: &Interface, destination: &Destination, port: u16) -> io::Result<(Self, Option<String>)> {
        let why = if interface.loopback {
            "loopback has no frames of its own".to_owned()
        } else {
            match PacketReceiver::open(interface, destination, port) {
                Ok(receiver) => return Ok((Self::Packet(receiver), None)),
                Err(error) => format!("AF_PACKET: {error}"),
            }
        };
        Ok((Self::Udp(UdpReceiver::open(interface, destination, port)?), Some(why)))
    }

    /// Name of the rung.
    #[must_use]
    pub fn rung(&self) -> &'static str {
        match self {
            Self::Packet(_) => "af_packet",
            Self::Udp(_) => "udp",
        }
    }

    /// What it does without on this rung, for people ([`udp::Membership::lacks`]).
    #[must_use]
    pub fn lacks(&self) -> Option<String> {
        match self {
            Self::Packet(receiver) => receiver.lacks(),
            Self::Udp(_) => None,
        }
    }

    /// Takes one payload; `None` if there is none. Never blocks. What is longer than [`PAYLOAD_MAX`] is given
    /// a length that the packet view refuses.
    ///
    /// # Errors
    /// The kernel's.
    pub fn receive(&self, buffer: &mut [u8; PAYLOAD_MAX + 1]) -> io::Result<Option<usize>> {
        match self {
            Self::Packet(receiver) => receiver.receive(buffer),
            Self::Udp(receiver) => receiver.receive(buffer),
        }
    }

    /// For another agent, which is on the same rung with them; in use here on.
    ///
    /// # Errors
    /// The kernel's, if there are no descriptors left.
    pub fn sockets(&self) -> io::Result<Sockets> {
        match self {
            Self::Packet(receiver) => receiver.sockets(),
            Self::Udp(receiver) => Ok(Sockets { udp: receiver.as_fd().try_clone_to_owned()?, packet: None }),
        }
    }
}

impl From<Sockets> for Receiver {
    fn from(Sockets { udp, packet }: Sockets) -> Self {
        match packet {
            Some(packet) => Self::Packet(PacketReceiver::take_over(packet, Membership::from(udp))),
            None => Self::Udp(UdpReceiver::from(udp)),
        }
    }
}

impl AsFd for Receiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Packet(receiver) => receiver.as_fd(),
            Self::Udp(receiver) => receiver.as_fd(),
        }
    }
}
