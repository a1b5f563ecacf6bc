// SPDX-License-Identifier: Apache-2.0
//! Raw frames past the queueing discipline: the shortest way from a thread to the driver, and the shortest
//! way back that needs no program in the kernel but a filter.

use std::{
    io::{self, IoSliceMut},
    net::Ipv4Addr,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use fide_wire::PAYLOAD_MAX;

use super::{
    Destination, SOCKET_PRIORITY, Sockets, filter,
    frame::{DESTINATION, HEADERS, TYPE_OF_SERVICE_AT, finish, headers, multicast_hardware, payload_len},
    udp::{Membership, set_option},
};
use fide_sys::interface::Interface;

/// Room for what waits to be received, of which the kernel allots twice as much: on Linux 6.18 some 1600
/// heartbeats of a cluster of 64 hosts, 25 of each, or 2500 short packets. Beyond it the kernel drops the
/// newest. Without CAP_NET_ADMIN it is `net.core.rmem_max` if that is less.
pub const RECEIVE_BUFFER_BYTES: i32 = 1 << 20;

/// A packet socket with a frame whose headers are written once.
#[derive(Debug)]
pub struct PacketSender {
    socket: OwnedFd,
    frame: Box<[u8; HEADERS + PAYLOAD_MAX]>,
    /// No group is known yet: what is sent goes nowhere.
    aimless: bool,
}

/// A packet socket that is given the cluster's packets on one interface and nothing else, and the membership
/// that makes them arrive there. The interface is not put into promiscuous mode.
#[derive(Debug)]
pub struct PacketReceiver {
    socket: OwnedFd,
    membership: Membership,
}

impl PacketSender {
    /// Opens a socket on `interface` for packets to `group`; 0.0.0.0: to a group named later.
    ///
    /// # Errors
    /// The kernel's, without CAP_NET_RAW.
    pub fn open(interface: &Interface, group: Ipv4Addr, port: u16) -> io::Result<Self> {
        let aimless = group.is_unspecified();
        let socket = socket()?;
        // Protocol 0 receives nothing.
        bind(&socket, interface.index, 0)?;
        for (level, option, value) in
            [(libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1), (libc::SOL_SOCKET, libc::SO_PRIORITY, SOCKET_PRIORITY)]
        {
            set_option(&socket, level, option, value)?;
        }
        Ok(Self { socket, frame: Box::new(headers(interface, multicast_hardware(group), group, port)), aimless })
    }

    /// From the next payload on to this group.
    pub fn aim(&mut self, group: Ipv4Addr) {
        self.frame[..6].copy_from_slice(&multicast_hardware(group));
        self.frame[DESTINATION..DESTINATION + 4].copy_from_slice(&group.octets());
        self.aimless = false;
    }

    /// Another frame for the same socket, for a group named later.
    ///
    /// # Errors
    /// The kernel's, if there are no descriptors left.
    pub fn another(&self) -> io::Result<Self> {
        Ok(Self { socket: self.socket.try_clone()?, frame: self.frame.clone(), aimless: true })
    }

    pub fn set_type_of_service(&mut self, type_of_service: u8) {
        self.frame[TYPE_OF_SERVICE_AT] = type_of_service;
    }

    /// Sends one payload.
    ///
    /// # Errors
    /// The kernel's.
    ///
    /// # Panics
    /// If `payload` is longer than [`PAYLOAD_MAX`].
    pub fn send(&mut self, payload: &[u8]) -> io::Result<()> {
        if self.aimless {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let len = HEADERS + payload.len();
        self.frame[HEADERS..len].copy_from_slice(payload);
        finish(&mut self.frame[..len]);
        // SAFETY: `len` bytes of the frame are initialised.
        let sent = unsafe { libc::send(self.socket.as_raw_fd(), self.frame.as_ptr().cast(), len, 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl PacketReceiver {
    /// Opens a non-blocking socket for what arrives on `interface` at `port`, for the group of `destination`
    /// or else for the interface's own address.
    ///
    /// # Errors
    /// The kernel's, without CAP_NET_RAW; `Unsupported` if the interface has no Ethernet frames.
    pub fn open(interface: &Interface, destination: &Destination, port: u16) -> io::Result<Self> {
        let socket = socket()?;
        let addresses = match destination {
            Destination::Group(group) => *group..=*group,
            Destination::Peers(_) => interface.address..=interface.address,
            Destination::Trees { first, last } => *first..=*last,
        };
        // All of this before it is bound to a protocol: until then nothing is queued.
        filter::cluster_only(&socket, addresses, port)?;
        set_option(&socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
        set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)
            .or_else(|_| set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, RECEIVE_BUFFER_BYTES))?;
        bind(&socket, interface.index, u16::try_from(libc::ETH_P_IP).expect("0x0800"))?;
        if hardware_type(&socket)? != libc::ARPHRD_ETHER {
            let why = format!("{} has no Ethernet frames", interface.name);
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        Ok(Self { socket, membership: Membership::open(interface, destination, port)? })
    }

    /// Takes one packet; `None` if there is none. What is no whole UDP packet of at most [`PAYLOAD_MAX`]
    /// bytes is an empty payload, which the packet view refuses.
    ///
    /// # Errors
    /// The kernel's, such as `NetworkDown` once after the interface went down.
    pub fn receive(&self, buffer: &mut [u8; PAYLOAD_MAX + 1]) -> io::Result<Option<usize>> {
        let mut headers = [0; HEADERS];
        let parts = &mut [IoSliceMut::new(&mut headers), IoSliceMut::new(buffer)];
        match rustix::io::readv(&self.socket, parts) {
            Ok(len) => Ok(Some(payload_len(&headers, len).unwrap_or(0))),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// What it does without, for people ([`Membership::lacks`]).
    #[must_use]
    pub fn lacks(&self) -> Option<String> {
        self.membership.lacks()
    }

    /// For another agent: both sockets, in use here on.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn sockets(&self) -> io::Result<Sockets> {
        Ok(Sockets { packet: Some(self.socket.try_clone()?), ..self.membership.sockets()? })
    }

    /// With what another agent has opened; filter and buffer came with it.
    pub(super) fn take_over(socket: OwnedFd, membership: Membership) -> Self {
        Self { socket, membership }
    }
}

impl AsFd for PacketReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Has an interface take in the frames of all multicast groups, as long as the socket lives. On a network of
/// planned trees only those reach it that are meant for it, and which these are may change at any time.
///
/// # Errors
/// The kernel's, without CAP_NET_RAW.
pub fn hear_all_groups(interface: &Interface) -> io::Result<OwnedFd> {
    let socket = socket()?;
    // SAFETY: zeroes are a valid value of this plain structure.
    let mut request: libc::packet_mreq = unsafe { std::mem::zeroed() };
    request.mr_ifindex = interface.index.cast_signed();
    request.mr_type = u16::try_from(libc::PACKET_MR_ALLMULTI).expect("2");
    set_option(&socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, request)?;
    Ok(socket)
}

/// A socket for all UDP packets to `port` that arrive on an interface, whole frames, whoever they are for; and to send
/// frames of any kind, past the queueing discipline.
///
/// # Errors
/// The kernel's, without CAP_NET_RAW.
pub fn frame_socket(interface: &Interface, port: u16) -> io::Result<OwnedFd> {
    let socket = socket()?;
    filter::port_only(&socket, port)?;
    set_option(&socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
    set_option(&socket, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1)?;
    set_option(&socket, libc::SOL_SOCKET, libc::SO_PRIORITY, SOCKET_PRIORITY)?;
    bind(&socket, interface.index, u16::try_from(libc::ETH_P_IP).expect("0x0800"))?;
    Ok(socket)
}

/// A socket for all frames of one type that arrive on an interface and are for a group, and to send frames of
/// any kind through the queueing discipline, as best effort. What a bridge or switch whose port it is would
/// take away is heard too.
///
/// # Errors
/// The kernel's, without CAP_NET_RAW; `Unsupported` if the interface has no Ethernet frames.
pub fn group_socket(index: u32, ethertype: u16, group: [u8; 6]) -> io::Result<OwnedFd> {
    let socket = socket()?;
    filter::ethertype_only(&socket, ethertype)?;
    set_option(&socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
    // SAFETY: zeroes are a valid value of this plain structure.
    let mut request: libc::packet_mreq = unsafe { std::mem::zeroed() };
    request.mr_ifindex = index.cast_signed();
    request.mr_type = u16::try_from(libc::PACKET_MR_MULTICAST).expect("0");
    request.mr_alen = 6;
    request.mr_address[..6].copy_from_slice(&group);
    set_option(&socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, request)?;
    // A protocol of its own would be served after the bridge.
    bind(&socket, index, u16::try_from(libc::ETH_P_ALL).expect("3"))?;
    if hardware_type(&socket)? != libc::ARPHRD_ETHER {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "the interface has no Ethernet frames"));
    }
    Ok(socket)
}

/// A packet socket that receives nothing yet.
fn socket() -> io::Result<OwnedFd> {
    // SAFETY: no memory is handed over; the descriptor is ours alone.
    unsafe {
        let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// From here on the socket receives `protocol` from the interface with this index.
fn bind(socket: &OwnedFd, index: u32, protocol: u16) -> io::Result<()> {
    // SAFETY: zeroes are a valid value of this plain structure.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = index.cast_signed();
    // SAFETY: the address outlives the call and is of the size given.
    let result = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            libc::socklen_t::try_from(size_of_val(&address)).expect("small"),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What frames of the interface look like that the socket is bound to.
fn hardware_type(socket: &OwnedFd) -> io::Result<u16> {
    // SAFETY: zeroes are a valid value of this plain structure.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut len = libc::socklen_t::try_from(size_of_val(&address)).expect("small");
    // SAFETY: address and length are writable, and the length is the address'.
    let result = unsafe { libc::getsockname(socket.as_raw_fd(), (&raw mut address).cast(), &raw mut len) };
    if result == 0 { Ok(address.sll_hatype) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests;
