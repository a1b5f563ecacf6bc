// SPDX-License-Identifier: Apache-2.0
//! The ways to send and receive a packet (jitter report §2.3), behind one trait.

mod frame;
// These are tested even where there is no libibverbs.
#[cfg(any(feature = "rdma", test))]
mod greeting;
#[cfg(any(feature = "rdma", test))]
mod hello;
#[cfg(feature = "rdma")]
mod rdma;
mod stamp;
mod udp;
mod xsk;

use std::{fmt, io, net::Ipv4Addr, str::FromStr};

use fide_bpf::BpfError;
use fide_sys::interface::{Interface, InterfaceError};
use fide_wire::PAYLOAD_MAX;

use crate::pages::Pages;

pub use frame::FramePort;
#[cfg(feature = "rdma")]
pub use rdma::RdmaPort;
pub use udp::UdpPort;
pub use xsk::XskPort;

/// How packets are sent and received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// A UDP socket that blocks.
    Udp,
    /// A UDP socket that is polled.
    UdpPoll,
    /// Whole frames that bypass the IP stack.
    Packet,
    /// AF_PACKET to send, an XDP program and shared memory to receive.
    Slot,
    /// AF_XDP; the kernel copies packets.
    Xsk,
    /// AF_XDP; the card itself writes into our memory.
    XskZeroCopy,
    /// Answers within XDP; only at B.
    Reflect,
    /// RDMA unreliable datagrams over RoCEv2; only with the feature `rdma`.
    RdmaUd,
}

impl Method {
    /// All methods, in the order of the report.
    pub const ALL: [Self; 8] =
        [Self::Udp, Self::UdpPoll, Self::Packet, Self::Slot, Self::Xsk, Self::XskZeroCopy, Self::Reflect, Self::RdmaUd];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::UdpPoll => "udp-poll",
            Self::Packet => "af-packet",
            Self::Slot => "xdp-slot",
            Self::Xsk => "af-xdp",
            Self::XskZeroCopy => "af-xdp-zc",
            Self::Reflect => "xdp-reflect",
            Self::RdmaUd => "rdma-ud",
        }
    }

    /// Whether it polls for packets without ever sleeping.
    #[must_use]
    pub fn polls(self) -> bool {
        self != Self::Udp
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Method {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|method| method.name() == text).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|method| method.name()).collect();
            format!("there is no method {text}; there are {}", names.join(", "))
        })
    }
}

/// A packet that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Payload bytes in the buffer.
    pub len: usize,
    /// When this thread had it.
    pub at_ns: u64,
    /// When the kernel or the card had it, on CLOCK_MONOTONIC, if it reports that.
    pub kernel_ns: Option<u64>,
}

/// One end of a path.
pub trait Port: Send {
    /// Hands one payload of at most [`PAYLOAD_MAX`] bytes to the kernel now. It goes to the peer, or, if none
    /// was given, to the sender of the last packet.
    ///
    /// # Errors
    /// The kernel's; the packet is lost, as on the wire.
    fn send(&mut self, payload: &[u8]) -> io::Result<()>;

    /// Receives the next payload; `None` if there was none until `until_ns`. It looks at least once.
    ///
    /// # Errors
    /// The kernel's, such as `NetworkDown` if the interface went away.
    fn receive(&mut self, buffer: &mut [u8; PAYLOAD_MAX], until_ns: u64) -> io::Result<Option<Arrived>>;

    /// The method, and the rung that it uses: `af-xdp, native`.
    fn name(&self) -> String;
}

/// Why there is no port.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    #[error("{method}: {why}")]
    Open { method: Method, why: io::Error },
    #[error("{method}: {why}")]
    Bpf { method: Method, why: BpfError },
    #[error("xdp-reflect answers pings and sends none: use it with pong, and any other method with ping")]
    ReflectSends,
    #[error(
        "{peer} has no hardware address on {interface}: is it on this network and up? (`ping {peer}`); udp needs none"
    )]
    NoNeighbour { peer: Ipv4Addr, interface: String },
    #[error("{method} needs Ethernet frames and {interface} has none; udp and udp-poll work there")]
    NoFrames { method: Method, interface: String },
    #[error("{method} is not in this program: build it with `--features {feature}` (needs libibverbs-dev)")]
    NotBuilt { method: Method, feature: &'static str },
    #[error(
        "rdma-ud: no RDMA device on interface {interface}: `rdma link add rxe0 type rxe netdev {interface}` makes a \
         software one (module rdma_rxe)"
    )]
    NoRdmaDevice { interface: String },
    #[error(
        "{peer} did not answer the rdma handshake on UDP port {port}: does `fide jitter pong --method rdma-ud` run there?"
    )]
    NoHandshake { peer: Ipv4Addr, port: u16 },
}

/// Opens one end on `interface`. It sends to `peer`; with `None`, it answers every sender. With RDMA, the
/// peer has to be an end that answers.
///
/// # Errors
/// [`PortError`], which says what to do instead. Nothing falls back by itself: a measurement must be of the
/// method that was asked for.
pub fn open(
    method: Method,
    interface: &Interface,
    peer: Option<Ipv4Addr>,
    port: u16,
) -> Result<Box<dyn Port>, PortError> {
    open_on(Pages::Usual, method, interface, peer, port)
}

/// The same, with the packets that are shared with a card on pages of this kind. [`Port::name`] says if they
/// could not be had.
///
/// # Errors
/// As [`open`].
pub fn open_on(
    pages: Pages,
    method: Method,
    interface: &Interface,
    peer: Option<Ipv4Addr>,
    port: u16,
) -> Result<Box<dyn Port>, PortError> {
    let failed = |why| PortError::Open { method, why };
    if method == Method::Reflect {
        return Err(PortError::ReflectSends);
    }
    if interface.loopback && !matches!(method, Method::Udp | Method::UdpPoll | Method::RdmaUd) {
        return Err(PortError::NoFrames { method, interface: interface.name.clone() });
    }
    Ok(match method {
        Method::Udp | Method::UdpPoll => {
            Box::new(UdpPort::open(interface, peer, port, method == Method::UdpPoll).map_err(failed)?)
        }
        Method::Packet => Box::new(FramePort::open(interface, peer, port, false)?),
        Method::Slot => Box::new(FramePort::open(interface, peer, port, true)?),
        Method::Xsk => Box::new(XskPort::open(interface, peer, port, false, pages)?),
        Method::XskZeroCopy => Box::new(XskPort::open(interface, peer, port, true, pages)?),
        Method::Reflect => return Err(PortError::ReflectSends),
        #[cfg(feature = "rdma")]
        Method::RdmaUd => Box::new(RdmaPort::open(interface, peer, port)?),
        #[cfg(not(feature = "rdma"))]
        Method::RdmaUd => return Err(PortError::NotBuilt { method, feature: "rdma" }),
    })
}
