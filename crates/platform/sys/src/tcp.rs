// SPDX-License-Identifier: Apache-2.0
//! Which connection a TCP socket is an end of, and whether two sockets are those of one.
//!
//! Addresses alone do not say so: with NAT within a host the socket of a client and that of a server may name each other, and be ends of
//! two connections. But the clock by which a client stamps its segments (RFC 7323) has an offset of its own for each connection, which
//! nobody can guess, and a server can have the client's first segment kept, with its stamp (`TCP_SAVE_SYN`): a client whose clock
//! has run on from there since a moment ago has sent it.

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

/// Linux 4.3.
const TCP_SAVE_SYN: libc::c_int = 27;
const TCP_SAVED_SYN: libc::c_int = 28;
/// Bytes of the longest first segment: the headers of IP and TCP with all options.
const SYN_MAX: usize = 60 + 60 + 40;
/// Where `tcp_info.tcpi_options` lies, and its bit for stamps in microseconds.
const TCPI_OPTIONS: usize = 5;
const TCPI_OPT_USEC_TS: u8 = 64;

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

/// The number of a socket, for all who have it: one that no other socket of this kernel has had.
///
/// # Errors
/// The kernel's: it is no socket.
pub fn cookie(socket: impl AsFd) -> io::Result<u64> {
    let mut cookie = [0_u8; size_of::<u64>()];
    option(socket.as_fd(), [libc::SOL_SOCKET, libc::SO_COOKIE], &mut cookie)?;
    Ok(u64::from_ne_bytes(cookie))
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

/// Has the kernel keep the first segment of each connection that is accepted from this listener ([`syn_stamp`]).
///
/// # Errors
/// The kernel's.
pub fn keeps_syn(listener: impl AsFd) -> io::Result<()> {
    let on: libc::c_int = 1;
    let len = libc::socklen_t::try_from(size_of_val(&on)).map_err(io::Error::other)?;
    let fd = listener.as_fd().as_raw_fd();
    // SAFETY: the value outlives the call, and its size is given.
    let result = unsafe { libc::setsockopt(fd, libc::IPPROTO_TCP, TCP_SAVE_SYN, (&raw const on).cast(), len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The stamp of the client's first segment, at a socket that was accepted. The kernel gives it once. None: it has given it, or keeps none,
/// or the segment has no stamp (`net.ipv4.tcp_timestamps` is 0).
///
/// # Errors
/// The kernel's: it is no TCP socket.
pub fn syn_stamp(socket: impl AsFd) -> io::Result<Option<u32>> {
    let mut segment = [0; SYN_MAX];
    let len = option_up_to(socket.as_fd(), [libc::IPPROTO_TCP, TCP_SAVED_SYN], &mut segment)?;
    Ok(stamp_of(&segment[..len]))
}

/// What the clock of a TCP socket stamps its segments with now: milliseconds, modulo 2^32. The stamp of a segment that has just left may be
/// one more, as each is rounded by itself.
///
/// # Errors
/// `Unsupported`: it stamps microseconds. The kernel's: it is no TCP socket.
pub fn stamp_now(socket: impl AsFd) -> io::Result<u32> {
    let (mut stamp, mut info) = ([0; size_of::<u32>()], [0; TCPI_OPTIONS + 1]);
    option(socket.as_fd(), [libc::IPPROTO_TCP, libc::TCP_INFO], &mut info)?;
    if info[TCPI_OPTIONS] & TCPI_OPT_USEC_TS != 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    option(socket.as_fd(), [libc::IPPROTO_TCP, libc::TCP_TIMESTAMP], &mut stamp)?;
    Ok(u32::from_ne_bytes(stamp))
}

/// The stamp of a segment, with the headers of IP and TCP.
fn stamp_of(segment: &[u8]) -> Option<u32> {
    let version_and_len = *segment.first()?;
    let ip_len = match version_and_len >> 4 {
        4 => usize::from(version_and_len & 15) * 4,
        6 => 40,
        _ => return None,
    };
    let tcp = segment.get(ip_len..)?;
    let tcp_len = usize::from(*tcp.get(12)? >> 4) * 4;
    let mut options = tcp.get(20..tcp_len)?;
    loop {
        match *options {
            [1, ref rest @ ..] => options = rest,
            [8, 10, a, b, c, d, ..] => return Some(u32::from_be_bytes([a, b, c, d])),
            [0, ..] | [] | [_] | [_, 0 | 1, ..] => return None,
            [_, len, ..] => options = options.get(usize::from(len)..)?,
        }
    }
}

/// The number of the network namespace that a socket was made in.
///
/// # Errors
/// The kernel's.
pub fn netns(socket: impl AsFd) -> io::Result<u64> {
    let socket = socket.as_fd();
    let mut cookie = [0_u8; size_of::<u64>()];
    option(socket, [libc::SOL_SOCKET, SO_NETNS_COOKIE], &mut cookie)?;
    Ok(u64::from_ne_bytes(cookie))
}

/// Reads as many bytes of an option as there is room for.
fn option(socket: BorrowedFd<'_>, name: [libc::c_int; 2], into: &mut [u8]) -> io::Result<()> {
    if option_up_to(socket, name, into)? != into.len() {
        return Err(io::Error::other("the kernel knows less of the socket than was asked"));
    }
    Ok(())
}

/// Reads an option, and returns how many bytes it has.
fn option_up_to(socket: BorrowedFd<'_>, [level, name]: [libc::c_int; 2], into: &mut [u8]) -> io::Result<usize> {
    let mut len = libc::socklen_t::try_from(into.len()).map_err(io::Error::other)?;
    // SAFETY: `into` is writable for `len` bytes, and both outlive the call.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, into.as_mut_ptr().cast(), &raw mut len) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((len as usize).min(into.len()))
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

    #[test]
    fn number_of_a_socket_is_the_same_for_all_who_have_it() {
        let [here, there] = connection((Ipv4Addr::LOCALHOST, 0).into());
        let too = here.try_clone().unwrap();
        assert_eq!(cookie(&here).unwrap(), cookie(&too).unwrap());
        assert_ne!(cookie(&here).unwrap(), cookie(&there).unwrap());
        assert!(cookie(std::fs::File::open("/dev/null").unwrap()).is_err());
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
    fn client_of_a_connection_is_known_by_its_stamp() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        keeps_syn(&listener).unwrap();
        let ends: Vec<_> = (0..3)
            .map(|_| {
                let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                let there = listener.accept().unwrap().0;
                let stamp = syn_stamp(&there).unwrap().expect("a stamp");
                assert_eq!(syn_stamp(&there).unwrap(), None, "it is given once");
                assert_eq!(syn_stamp(&here).unwrap(), None, "a client has none");
                (here, there, stamp)
            })
            .collect();
        for (client, (here, there, _)) in ends.iter().enumerate() {
            for (server, (_, _, stamp)) in ends.iter().enumerate() {
                // Both are rounded by themselves.
                let since_ms = |socket: &TcpStream| stamp_now(socket).unwrap().wrapping_add(2).wrapping_sub(*stamp);
                // A minute, of 50 days: one of others is as near in one run of 70,000.
                assert_eq!(since_ms(here) < 60_000, client == server);
                assert!(since_ms(there) >= 60_000);
            }
        }
    }

    #[test]
    fn stamps_are_found_among_the_options() {
        let segment = |ip: &[u8], offset: u8, options: &[u8]| {
            let mut tcp = [0; 20];
            tcp[12] = offset << 4;
            [ip, &tcp, options].concat()
        };
        let v4 = [&[0x45][..], &[0; 19]].concat();
        let v6 = [&[0x60][..], &[0; 39]].concat();
        let stamp = [2, 4, 5, 180, 1, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 0];
        for ip in [&v4, &v6] {
            assert_eq!(stamp_of(&segment(ip, 9, &stamp)), Some(0x0102_0304));
            assert_eq!(stamp_of(&segment(ip, 5, &[])), None);
            assert_eq!(stamp_of(&segment(ip, 6, &stamp)), None, "behind the header");
        }
        for broken in [&[2, 0, 0, 0][..], &[2, 1, 0, 0], &[3, 40, 0, 0], &[8, 10, 1, 2], &[0, 8, 10, 1]] {
            assert_eq!(stamp_of(&segment(&v4, 6, broken)), None, "{broken:?}");
        }
        for len in 0..v4.len() + 36 {
            let _ = stamp_of(&segment(&v4, 9, &stamp)[..len]);
        }
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
