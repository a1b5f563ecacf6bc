// SPDX-License-Identifier: Apache-2.0
//! Sending on one plane, and receiving over plain UDP.

mod packet;
mod udp;

use std::{io, net::Ipv4Addr};

pub use packet::PacketSender;
pub use udp::{UdpReceiver, UdpSender};

use crate::interface::Interface;

/// Type of service of every heartbeat: DSCP CS7, "network control", which switches put into their
/// highest queue (FiDe §3.3).
pub const TYPE_OF_SERVICE: u8 = 0xe0;
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
