// SPDX-License-Identifier: Apache-2.0
//! Datagrams that the kernel sends at a time (`SO_TXTIME`).

use std::{
    io,
    mem::{offset_of, size_of},
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    ptr,
};

use rustix::{
    net::{TxTimeFlags, sockopt},
    time::ClockId,
};

/// Bytes of control messages: a time, a class of traffic and an address, each with its header and padding.
const CONTROL_LEN: usize = 128;

/// Room for control messages, aligned as the kernel reads them.
#[repr(C, align(8))]
struct Control([u8; CONTROL_LEN]);

/// From now on a socket takes the times of [`send_at`]. Whether they are kept is up to the queue of the interface.
///
/// # Errors
/// The kernel's: it is older than Linux 4.19.
pub fn takes_times(socket: impl AsFd) -> io::Result<()> {
    Ok(sockopt::set_txtime(socket, ClockId::Monotonic, TxTimeFlags::empty())?)
}

/// A datagram to be sent by [`send_at`].
#[derive(Debug, Clone, Copy)]
pub struct Timed<'a> {
    pub bytes: &'a [u8],
    /// Of IPv4, or of IPv6, as the socket is; a socket for both takes those of IPv4 as addresses of IPv6.
    pub to: SocketAddr,
    /// From this address of the host; none: the kernel's choice.
    pub from: Option<IpAddr>,
    /// What `IP_TOS` and `IPV6_TCLASS` are set to: the lowest two bits are those of ECN.
    pub class: u8,
    /// By `CLOCK_MONOTONIC`, in nanoseconds.
    pub at_ns: u64,
}

/// Sends a datagram on a socket that takes times ([`takes_times`]).
///
/// # Errors
/// The kernel's, as of `sendmsg`.
pub fn send_at(socket: impl AsFd, datagram: &Timed<'_>) -> io::Result<()> {
    send(socket.as_fd(), datagram)
}

fn send(socket: BorrowedFd<'_>, datagram: &Timed<'_>) -> io::Result<()> {
    let is_v4 = datagram.to.ip().to_canonical().is_ipv4();
    let (mut address, address_len) = raw(datagram.to);
    let mut part = libc::iovec { iov_base: datagram.bytes.as_ptr().cast_mut().cast(), iov_len: datagram.bytes.len() };
    let mut control = Control([0; CONTROL_LEN]);
    let mut len = put(&mut control, 0, [libc::SOL_SOCKET, libc::SCM_TXTIME], &datagram.at_ns.to_ne_bytes());
    let class = i32::from(datagram.class).to_ne_bytes();
    let of = if is_v4 { [libc::IPPROTO_IP, libc::IP_TOS] } else { [libc::IPPROTO_IPV6, libc::IPV6_TCLASS] };
    len = put(&mut control, len, of, &class);
    match datagram.from {
        Some(IpAddr::V4(from)) => {
            let mut info = [0; size_of::<libc::in_pktinfo>()];
            let at = offset_of!(libc::in_pktinfo, ipi_spec_dst);
            info[at..at + 4].copy_from_slice(&from.octets());
            len = put(&mut control, len, [libc::IPPROTO_IP, libc::IP_PKTINFO], &info);
        }
        Some(IpAddr::V6(from)) => {
            let mut info = [0; size_of::<libc::in6_pktinfo>()];
            info[..16].copy_from_slice(&from.octets());
            len = put(&mut control, len, [libc::IPPROTO_IPV6, libc::IPV6_PKTINFO], &info);
        }
        None => {}
    }
    // SAFETY: plain data, for which zeroes are valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = (&raw mut address).cast();
    message.msg_namelen = address_len;
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = len;
    loop {
        // SAFETY: address, part and control live until the call returns, are as long as the message says, and the kernel
        // writes to none of them.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT) };
        if sent >= 0 {
            return Ok(());
        }
        let why = io::Error::last_os_error();
        if why.kind() != io::ErrorKind::Interrupted {
            return Err(why);
        }
    }
}

/// Appends a control message at `at`, and returns where the next one begins.
fn put(control: &mut Control, at: usize, [level, kind]: [i32; 2], data: &[u8]) -> usize {
    const HEADER: usize = size_of::<libc::cmsghdr>();
    let len = HEADER + data.len();
    let end = at + len.next_multiple_of(size_of::<usize>());
    let room = &mut control.0[at..end];
    // `cmsg_len`, `cmsg_level` and `cmsg_type`, as the kernel has them on each 64-bit machine.
    room[..8].copy_from_slice(&len.to_ne_bytes());
    room[8..12].copy_from_slice(&level.to_ne_bytes());
    room[12..16].copy_from_slice(&kind.to_ne_bytes());
    room[HEADER..len].copy_from_slice(data);
    end
}

const _: () = assert!(size_of::<libc::cmsghdr>() == 16 && offset_of!(libc::cmsghdr, cmsg_type) == 12);

/// As the kernel reads it.
fn raw(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: plain data, for which zeroes are valid.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let to: *mut libc::sockaddr_storage = &raw mut storage;
    let len = match address {
        SocketAddr::V4(v4) => {
            let from = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: a storage has room for, and the alignment of, each kind of address.
            unsafe { ptr::write(to.cast(), from) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let from = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { ptr::write(to.cast(), from) };
            size_of::<libc::sockaddr_in6>()
        }
    };
    #[allow(clippy::cast_possible_truncation, reason = "at most 28")]
    (storage, len as libc::socklen_t)
}

#[cfg(test)]
mod tests {
    use std::{net::UdpSocket, time::Duration};

    use super::*;

    #[test]
    fn datagrams_with_a_time_come_from_the_address_that_was_told() {
        for (sender, receiver, from) in [
            ("0.0.0.0:0", "127.0.0.1:0", "127.9.8.7"),
            ("[::]:0", "[::1]:0", "::1"),
            ("127.0.0.1:0", "127.0.0.1:0", ""),
        ] {
            let (sender, receiver) = (UdpSocket::bind(sender).unwrap(), UdpSocket::bind(receiver).unwrap());
            takes_times(&sender).unwrap();
            receiver.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            let now = rustix::time::clock_gettime(ClockId::Monotonic);
            let at_ns = now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned() + 1000;
            let (to, from) = (receiver.local_addr().unwrap(), from.parse().ok());
            send_at(&sender, &Timed { bytes: b"at a time", to, from, class: 2, at_ns }).unwrap();
            let mut bytes = [0; 32];
            let (len, came_from) = receiver.recv_from(&mut bytes).unwrap();
            assert_eq!(&bytes[..len], b"at a time");
            assert_eq!(came_from.ip(), from.unwrap_or(to.ip()));
        }
    }

    #[test]
    fn address_that_the_host_does_not_have_is_refused() {
        let sender = UdpSocket::bind("0.0.0.0:0").unwrap();
        takes_times(&sender).unwrap();
        let from = Some("192.0.2.1".parse().unwrap());
        let datagram = Timed { bytes: b"x", to: "127.0.0.1:9".parse().unwrap(), from, class: 0, at_ns: 0 };
        send_at(&sender, &datagram).unwrap_err();
    }
}
