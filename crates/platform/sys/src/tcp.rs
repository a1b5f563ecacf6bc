// SPDX-License-Identifier: Apache-2.0
//! Which connection a TCP socket is an end of.

use std::{
    io,
    mem::size_of,
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
};

use rustix::net::{SocketType, getpeername, getsockname, sockopt};

/// `SO_NETNS_COOKIE` (Linux 5.14).
const SO_NETNS_COOKIE: libc::c_int = 71;
/// Of `tcp_info.tcpi_state`, its first byte (RFC 9293, as `include/net/tcp_states.h` numbers it).
const TCP_ESTABLISHED: u8 = 1;

/// One end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TcpEnd {
    /// The network namespace that the socket was made in: a number that is never used again.
    pub netns: u64,
    pub local: SocketAddr,
    pub peer: SocketAddr,
}

impl TcpEnd {
    /// Of a socket.
    ///
    /// # Errors
    /// `InvalidInput`: it is no TCP socket. `NotConnected`: its connection is not set up, or is over at one of the ends. The kernel's.
    pub fn of(socket: impl AsFd) -> io::Result<Self> {
        let socket = socket.as_fd();
        let is_tcp = || {
            Ok::<_, io::Error>(
                sockopt::socket_type(socket)? == SocketType::STREAM
                    && sockopt::socket_protocol(socket)? == Some(rustix::net::ipproto::TCP),
            )
        };
        if !is_tcp().unwrap_or(false) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no TCP socket"));
        }
        if !is_established(socket)? {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let address = |any: rustix::net::SocketAddrAny| -> io::Result<SocketAddr> {
            let address = SocketAddr::try_from(any)?;
            // Those of IPv4 are the same for sockets of either family.
            Ok((address.ip().to_canonical(), address.port()).into())
        };
        let peer = getpeername(socket)?.ok_or(io::ErrorKind::NotConnected)?;
        Ok(Self { netns: netns(socket)?, local: address(getsockname(socket)?)?, peer: address(peer)? })
    }

    /// The other end of a connection within the namespace.
    #[must_use]
    pub fn other(self) -> Self {
        Self { netns: self.netns, local: self.peer, peer: self.local }
    }
}

/// Whether both directions of a TCP socket's connection are open.
///
/// # Errors
/// The kernel's: it is no TCP socket.
pub fn is_established(socket: impl AsFd) -> io::Result<bool> {
    let mut state = [0_u8];
    option(socket.as_fd(), [libc::IPPROTO_TCP, libc::TCP_INFO], &mut state)?;
    Ok(state == [TCP_ESTABLISHED])
}

fn netns(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut cookie = [0_u8; size_of::<u64>()];
    option(socket, [libc::SOL_SOCKET, SO_NETNS_COOKIE], &mut cookie)?;
    Ok(u64::from_ne_bytes(cookie))
}

/// Reads as many bytes of an option as there is room for.
fn option(socket: BorrowedFd<'_>, [level, name]: [libc::c_int; 2], into: &mut [u8]) -> io::Result<()> {
    let mut len = libc::socklen_t::try_from(into.len()).map_err(io::Error::other)?;
    // SAFETY: `into` is writable for `len` bytes, and both outlive the call.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, into.as_mut_ptr().cast(), &raw mut len) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    if len as usize != into.len() {
        return Err(io::Error::other("the kernel knows less of the socket than was asked"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, TcpListener, TcpStream, UdpSocket};

    use super::*;

    fn connection(at: SocketAddr) -> [TcpStream; 2] {
        let listener = TcpListener::bind(at).unwrap();
        let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        [here, listener.accept().unwrap().0]
    }

    #[test]
    fn both_ends_of_a_connection_name_each_other() {
        for at in [(Ipv4Addr::LOCALHOST, 0).into(), (Ipv6Addr::LOCALHOST, 0).into()] {
            let streams = connection(at);
            let [here, there] = streams.each_ref().map(|stream| TcpEnd::of(stream).unwrap());
            assert_eq!(here.other(), there);
            assert_ne!(here, there);
        }
    }

    /// A server for both families, and a client of IPv4.
    #[test]
    fn address_of_ipv4_is_the_same_for_both_families() {
        let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let here = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        let there = listener.accept().unwrap().0;
        assert_eq!(TcpEnd::of(&here).unwrap().other(), TcpEnd::of(&there).unwrap());
    }

    #[test]
    fn other_sockets_and_those_that_are_not_connected_are_named() {
        let kind = |socket: BorrowedFd<'_>| TcpEnd::of(socket).unwrap_err().kind();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert_eq!(kind(listener.as_fd()), io::ErrorKind::NotConnected);
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert_eq!(kind(udp.as_fd()), io::ErrorKind::InvalidInput);
        assert_eq!(kind(std::fs::File::open("/dev/null").unwrap().as_fd()), io::ErrorKind::InvalidInput);
        let (unix, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(kind(unix.as_fd()), io::ErrorKind::InvalidInput);
        let [here, there] = connection((Ipv4Addr::LOCALHOST, 0).into());
        there.shutdown(Shutdown::Write).unwrap();
        assert_eq!(kind(there.as_fd()), io::ErrorKind::NotConnected);
        drop(here);
    }
}
