// SPDX-License-Identifier: Apache-2.0
//! The standard network stack.

use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use fide_lane::{interface::Interface, link::TYPE_OF_SERVICE, now_ns};
use fide_wire::PAYLOAD_MAX;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Arrived, Port};

/// A UDP socket; it asks for the kernel's own time of arrival.
pub struct UdpPort {
    socket: OwnedFd,
    to: Option<libc::sockaddr_in>,
    polls: bool,
    /// How long a blocking receive waits at most, as the kernel was told.
    limit_ns: u64,
}

/// The kernel counts the limit of a blocking receive in its own ticks: only waits that may end so much later use it. The
/// others are ended by poll(2), which is exact and costs a system call more.
const COARSE_NS: u64 = 50_000_000;

impl UdpPort {
    /// Binds to the interface's address.
    ///
    /// # Errors
    /// The kernel's; the port may be taken.
    pub fn open(interface: &Interface, peer: Option<Ipv4Addr>, port: u16, polls: bool) -> io::Result<Self> {
        // SAFETY: no memory is handed over; the descriptor is ours alone.
        let socket = unsafe {
            let fd = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        let own = address(interface.address, port);
        // SAFETY: the address outlives the call and is of the size given.
        if unsafe { libc::bind(socket.as_raw_fd(), (&raw const own).cast(), ADDRESS_LEN) } != 0 {
            let error = io::Error::last_os_error();
            return Err(match error.kind() {
                io::ErrorKind::AddrInUse => io::Error::new(error.kind(), taken(interface.address, port)),
                _ => error,
            });
        }
        let stamps = libc::SOF_TIMESTAMPING_RX_SOFTWARE | libc::SOF_TIMESTAMPING_SOFTWARE;
        for (level, option, value) in [
            (libc::IPPROTO_IP, libc::IP_TOS, i32::from(TYPE_OF_SERVICE)),
            (libc::SOL_SOCKET, libc::SO_TIMESTAMPING, stamps.cast_signed()),
        ] {
            // Both only help to see and to be quick; without them it still measures.
            // SAFETY: the value outlives the call and is of the size given.
            let _ = unsafe {
                libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), size_of::<i32>() as u32)
            };
        }
        Ok(Self { socket, to: peer.map(|peer| address(peer, port)), polls, limit_ns: 0 })
    }

    /// Has blocking receives end after so long.
    fn limit(&mut self, limit_ns: u64) -> io::Result<()> {
        if self.limit_ns.abs_diff(limit_ns) < COARSE_NS / 2 {
            return Ok(());
        }
        let limit = libc::timeval {
            tv_sec: (limit_ns / 1_000_000_000).cast_signed(),
            tv_usec: (limit_ns % 1_000_000_000 / 1000).cast_signed(),
        };
        // SAFETY: the value outlives the call and is of the size given.
        let result = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVTIMEO,
                (&raw const limit).cast(),
                size_of_val(&limit) as libc::socklen_t,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        self.limit_ns = limit_ns;
        Ok(())
    }
}

fn taken(address: Ipv4Addr, port: u16) -> String {
    format!(
        "port {port} of {address} is taken, perhaps by another ping or pong: end that, or give both ends another --port"
    )
}

const ADDRESS_LEN: libc::socklen_t = size_of::<libc::sockaddr_in>() as libc::socklen_t;

fn address(address: Ipv4Addr, port: u16) -> libc::sockaddr_in {
    let address = SocketAddrV4::new(address, port);
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
        sin_zero: [0; 8],
    }
}

impl UdpPort {
    /// Takes the next datagram; waits for it, up to the limit, if `flags` do not say MSG_DONTWAIT.
    fn take(&mut self, buffer: &mut [u8; PAYLOAD_MAX], flags: i32) -> io::Result<Option<Arrived>> {
        // SAFETY: zeroes are valid values of these plain structures.
        let (mut from, mut message): (libc::sockaddr_in, libc::msghdr) = unsafe { std::mem::zeroed() };
        let mut control = [0u64; 16];
        let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        message.msg_name = (&raw mut from).cast();
        message.msg_namelen = ADDRESS_LEN;
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        // SAFETY: the message points to live buffers of the lengths given.
        let got = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut message, flags) };
        let at_ns = now_ns();
        if got < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                // A peer that is not there yet answers with an ICMP that is reported at the next call.
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::ConnectionRefused => Ok(None),
                _ => Err(error),
            };
        }
        if self.to.is_none_or(|to| to.sin_addr.s_addr == from.sin_addr.s_addr) {
            self.to = Some(from);
        }
        Ok(Some(Arrived { len: got.unsigned_abs(), at_ns, kernel_ns: stamp(&message) }))
    }
}

/// The kernel's time of arrival among the control messages, on CLOCK_MONOTONIC.
fn stamp(message: &libc::msghdr) -> Option<u64> {
    // SAFETY: the kernel filled `msg_control` up to `msg_controllen`; the macros stay inside of it.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(message);
        while let Some(header) = control.as_ref() {
            if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SO_TIMESTAMPING {
                let seen = libc::CMSG_DATA(header).cast::<libc::timespec>().read_unaligned();
                return to_monotonic(seen);
            }
            control = libc::CMSG_NXTHDR(message, header);
        }
    }
    None
}

/// From CLOCK_REALTIME, by the distance of both clocks now.
fn to_monotonic(seen: libc::timespec) -> Option<u64> {
    let real = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let ns = |seconds: i64, ns: i64| i128::from(seconds) * 1_000_000_000 + i128::from(ns);
    let ago = ns(real.tv_sec, real.tv_nsec) - ns(seen.tv_sec, seen.tv_nsec);
    // Zero: the kernel has not stamped it.
    (seen.tv_sec != 0).then_some(())?;
    u64::try_from(i128::from(now_ns()) - ago).ok()
}

impl Port for UdpPort {
    fn send(&mut self, payload: &[u8]) -> io::Result<()> {
        let Some(to) = &self.to else { return Err(io::ErrorKind::NotConnected.into()) };
        // SAFETY: payload and address outlive the call and are of the sizes given.
        let sent = unsafe {
            libc::sendto(
                self.socket.as_raw_fd(),
                payload.as_ptr().cast(),
                payload.len(),
                libc::MSG_DONTWAIT,
                std::ptr::from_ref(to).cast(),
                ADDRESS_LEN,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn receive(&mut self, buffer: &mut [u8; PAYLOAD_MAX], until_ns: u64) -> io::Result<Option<Arrived>> {
        loop {
            let left_ns = until_ns.saturating_sub(now_ns());
            if !self.polls && left_ns >= COARSE_NS {
                self.limit(left_ns)?;
                return self.take(buffer, 0);
            }
            if let Some(arrived) = self.take(buffer, libc::MSG_DONTWAIT)? {
                return Ok(Some(arrived));
            }
            let left_ns = until_ns.saturating_sub(now_ns());
            if left_ns == 0 {
                return Ok(None);
            }
            if !self.polls {
                let limit = Timespec {
                    tv_sec: (left_ns / 1_000_000_000).cast_signed(),
                    tv_nsec: (left_ns % 1_000_000_000).cast_signed(),
                };
                match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&limit)) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }

    fn name(&self) -> String {
        if self.polls { "udp-poll" } else { "udp" }.to_owned()
    }
}
