// SPDX-License-Identifier: Apache-2.0
//! Plain UDP: the rung that always works, and what the rungs above it need of it.

use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use fide_wire::PAYLOAD_MAX;

use super::{Destination, SOCKET_PRIORITY, Sockets, TYPE_OF_SERVICE, filter};
use fide_sys::interface::Interface;

/// A socket and the addresses it sends to.
#[derive(Debug)]
pub struct UdpSender {
    socket: OwnedFd,
    peers: Vec<libc::sockaddr_in>,
    port: u16,
    trees: bool,
    interface: Interface,
}

/// A bound socket, joined to the group where there is one.
#[derive(Debug)]
pub struct UdpReceiver {
    socket: OwnedFd,
}

/// Holds the port and the membership of the group for a receiver below the IP layer, so that switches and
/// NICs let the packets through and no sender learns that the port is closed. Takes in nothing.
#[derive(Debug)]
pub struct Membership {
    socket: OwnedFd,
    /// Another program holds this port of the group.
    without: Option<SocketAddrV4>,
}

impl UdpSender {
    /// Opens a socket that sends from `interface`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open(interface: &Interface, destination: &Destination, port: u16) -> io::Result<Self> {
        let socket = socket()?;
        bind(&socket, interface.address, 0)?;
        // Refused without privilege on some kernels; the packets are then ordinary ones, which the
        // measured bound shows.
        let _ = set_option(&socket, libc::SOL_SOCKET, libc::SO_PRIORITY, SOCKET_PRIORITY);
        let _ = set_option(&socket, libc::IPPROTO_IP, libc::IP_TOS, i32::from(TYPE_OF_SERVICE));
        let peers = match destination {
            Destination::Group(group) => {
                let request = multicast(Ipv4Addr::UNSPECIFIED, interface);
                set_option(&socket, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, request)?;
                set_option(&socket, libc::IPPROTO_IP, libc::IP_MULTICAST_TTL, 1)?;
                set_option(&socket, libc::IPPROTO_IP, libc::IP_MULTICAST_LOOP, i32::from(interface.loopback))?;
                vec![socket_address(*group, port)]
            }
            Destination::Peers(peers) => peers.iter().map(|peer| socket_address(*peer, port)).collect(),
            Destination::Trees { .. } => {
                let request = multicast(Ipv4Addr::UNSPECIFIED, interface);
                set_option(&socket, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, request)?;
                set_option(&socket, libc::IPPROTO_IP, libc::IP_MULTICAST_TTL, 1)?;
                Vec::with_capacity(1)
            }
        };
        let trees = matches!(destination, Destination::Trees { .. });
        Ok(Self { socket, peers, port, trees, interface: interface.clone() })
    }

    /// From the next payload on to this group, if it was opened for trees.
    pub fn aim(&mut self, group: Ipv4Addr) {
        if self.trees {
            self.peers.clear();
            self.peers.push(socket_address(group, self.port));
        }
    }

    /// A socket of its own: the type of service is a socket's.
    ///
    /// # Errors
    /// The kernel's.
    pub fn another(&self) -> io::Result<Self> {
        let (first, last) = fide_wire::TREE_GROUPS;
        Self::open(&self.interface, &Destination::Trees { first, last }, self.port)
    }

    /// # Errors
    /// The kernel's.
    pub fn set_type_of_service(&mut self, type_of_service: u8) -> io::Result<()> {
        set_option(&self.socket, libc::IPPROTO_IP, libc::IP_TOS, i32::from(type_of_service))
    }

    /// Sends one payload to everyone; the first error is returned after all were tried.
    ///
    /// # Errors
    /// The kernel's.
    pub fn send(&mut self, payload: &[u8]) -> io::Result<()> {
        let mut result = Ok(());
        for peer in &self.peers {
            // SAFETY: payload and address outlive the call and are of the sizes given.
            let sent = unsafe {
                libc::sendto(
                    self.socket.as_raw_fd(),
                    payload.as_ptr().cast(),
                    payload.len(),
                    libc::MSG_DONTWAIT,
                    std::ptr::from_ref(peer).cast(),
                    libc::socklen_t::try_from(size_of_val(peer)).expect("small"),
                )
            };
            if sent < 0 && result.is_ok() {
                let error = io::Error::last_os_error();
                // A peer that is not there yet answers with an ICMP that is reported at the next send.
                if error.kind() != io::ErrorKind::ConnectionRefused {
                    result = Err(error);
                }
            }
        }
        result
    }
}

impl UdpReceiver {
    /// Opens a non-blocking socket for what arrives on `interface` at `port`.
    ///
    /// # Errors
    /// The kernel's; the address may be taken by another program.
    pub fn open(interface: &Interface, destination: &Destination, port: u16) -> io::Result<Self> {
        if matches!(destination, Destination::Trees { .. }) {
            let why =
                "planned trees are received by XDP or AF_PACKET: a UDP socket takes only groups that it has joined";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let socket = socket()?;
        join(&socket, interface, destination, port)?;
        Ok(Self { socket })
    }

    /// Takes one datagram; `None` if there is none. Longer ones than [`PAYLOAD_MAX`] are returned
    /// with their true length, which the packet view refuses.
    ///
    /// # Errors
    /// The kernel's.
    pub fn receive(&self, buffer: &mut [u8; PAYLOAD_MAX + 1]) -> io::Result<Option<usize>> {
        // SAFETY: the buffer is writable for its length.
        let got = unsafe {
            libc::recv(self.socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT)
        };
        if got >= 0 {
            return Ok(Some(got.unsigned_abs()));
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::ConnectionRefused => Ok(None),
            _ => Err(error),
        }
    }
}

impl AsFd for UdpReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl From<OwnedFd> for UdpReceiver {
    /// A socket taken over from another agent.
    fn from(socket: OwnedFd) -> Self {
        Self { socket }
    }
}

impl Membership {
    /// Joins the group of `destination` on `interface`, if it is one, and takes the port. A group is joined
    /// also where another program holds its port ([`Membership::lacks`]): any user can, packets arrive below
    /// it all the same, and no error says that a group's port is closed.
    ///
    /// # Errors
    /// The kernel's; an address that is no group may be taken by another program.
    pub fn open(interface: &Interface, destination: &Destination, port: u16) -> io::Result<Self> {
        let open = |port| {
            let socket = socket()?;
            // Before it is bound: what was queued until then would stay.
            filter::nothing(&socket)?;
            join(&socket, interface, destination, port)?;
            io::Result::Ok(socket)
        };
        match (open(port), destination) {
            (Err(error), Destination::Group(group)) if error.kind() == io::ErrorKind::AddrInUse => {
                Ok(Self { socket: open(0)?, without: Some(SocketAddrV4::new(*group, port)) })
            }
            (socket, _) => Ok(Self { socket: socket?, without: None }),
        }
    }

    /// What it does without, for people.
    #[must_use]
    pub fn lacks(&self) -> Option<String> {
        self.without.map(|at| {
            format!("another program holds UDP {at} (`ss -lunp` names it): the group is joined without that port")
        })
    }

    /// For another agent.
    ///
    /// # Errors
    /// The kernel's, if there are no descriptors left.
    pub fn sockets(&self) -> io::Result<Sockets> {
        Ok(Sockets { udp: self.socket.try_clone()?, packet: None })
    }
}

impl AsFd for Membership {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl From<OwnedFd> for Membership {
    /// A socket taken over from another agent; its filter came with it.
    fn from(socket: OwnedFd) -> Self {
        Self { socket, without: None }
    }
}

/// Binds to what `destination` sends to on `interface`.
fn join(socket: &OwnedFd, interface: &Interface, destination: &Destination, port: u16) -> io::Result<()> {
    match destination {
        Destination::Group(group) => {
            set_option(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
            bind(socket, *group, port)?;
            set_option(socket, libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP, multicast(*group, interface))?;
            // Only what arrives on this interface: both planes may use one group.
            set_option(socket, libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, 0)
        }
        Destination::Peers(_) | Destination::Trees { .. } => bind(socket, interface.address, port),
    }
}

fn socket() -> io::Result<OwnedFd> {
    // SAFETY: no memory is handed over; the descriptor is ours alone.
    unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

fn socket_address(address: Ipv4Addr, port: u16) -> libc::sockaddr_in {
    let address = SocketAddrV4::new(address, port);
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
        sin_zero: [0; 8],
    }
}

fn bind(socket: &OwnedFd, address: Ipv4Addr, port: u16) -> io::Result<()> {
    let address = socket_address(address, port);
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

fn multicast(group: Ipv4Addr, interface: &Interface) -> libc::ip_mreqn {
    libc::ip_mreqn {
        imr_multiaddr: libc::in_addr { s_addr: u32::from(group).to_be() },
        imr_address: libc::in_addr { s_addr: u32::from(interface.address).to_be() },
        imr_ifindex: interface.index.cast_signed(),
    }
}

pub(super) fn set_option<T>(socket: &OwnedFd, level: i32, option: i32, value: T) -> io::Result<()> {
    // SAFETY: the value outlives the call and is of the size given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            libc::socklen_t::try_from(size_of::<T>()).expect("small"),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fide_sys::interface::by_address;

    #[test]
    fn a_datagram_reaches_each_peer_on_loopback() {
        let a = by_address(Ipv4Addr::new(127, 7, 0, 1)).expect("lo");
        let b = by_address(Ipv4Addr::new(127, 7, 0, 2)).expect("lo");
        let peers = Destination::Peers(vec![b.address]);
        let port = 17_411;
        let receiver = UdpReceiver::open(&b, &Destination::Peers(vec![a.address]), port).expect("receiver");
        let mut sender = UdpSender::open(&a, &peers, port).expect("sender");
        let mut buffer = [0; PAYLOAD_MAX + 1];
        assert_eq!(receiver.receive(&mut buffer).expect("empty"), None);
        sender.send(b"beat").expect("sent");
        assert_eq!(receiver.receive(&mut buffer).expect("there"), Some(4));
        assert_eq!(&buffer[..4], b"beat");
    }

    #[test]
    fn a_membership_takes_in_nothing() {
        let a = by_address(Ipv4Addr::new(127, 7, 0, 4)).expect("lo");
        let here = Destination::Peers(vec![a.address]);
        let port = 17_413;
        let membership = Membership::open(&a, &here, port).expect("free");
        UdpSender::open(&a, &here, port).expect("sender").send(b"beat").expect("sent");
        // Loopback has delivered, or not, when the call returns.
        let receiver = UdpReceiver::from(membership.as_fd().try_clone_to_owned().expect("a descriptor"));
        assert_eq!(receiver.receive(&mut [0; PAYLOAD_MAX + 1]).expect("empty"), None);
    }

    #[test]
    fn group_is_joined_beside_a_program_that_holds_its_port() {
        let a = by_address(Ipv4Addr::new(127, 7, 0, 5)).expect("lo");
        let group = Ipv4Addr::new(239, 70, 7, 1);
        let port = 17_414;
        // Any user's: bound with SO_REUSEADDR beside nobody, and kept without.
        let other = socket().expect("a socket");
        bind(&other, group, port).expect("free");
        let membership = Membership::open(&a, &Destination::Group(group), port).expect("joined");
        assert!(membership.lacks().expect("not with its port").contains("239.70.7.1:17414"));
        let error = UdpReceiver::open(&a, &Destination::Group(group), port).expect_err("what receives by UDP needs it");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop(other);
        assert_eq!(Membership::open(&a, &Destination::Group(group), port).expect("free").lacks(), None);
    }

    #[test]
    fn a_port_in_use_is_an_error() {
        let a = by_address(Ipv4Addr::new(127, 7, 0, 3)).expect("lo");
        let none = Destination::Peers(vec![]);
        let _first = UdpReceiver::open(&a, &none, 17_412).expect("free");
        assert_eq!(UdpReceiver::open(&a, &none, 17_412).expect_err("taken").kind(), io::ErrorKind::AddrInUse);
    }
}
