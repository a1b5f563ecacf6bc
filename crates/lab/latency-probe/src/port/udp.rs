// SPDX-License-Identifier: Apache-2.0
//! A port on the standard network stack.

use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    time::Duration,
};

use fide_net::link::TYPE_OF_SERVICE;
use fide_sys::clock::mono_ns;
use fide_sys::interface::Interface;
use fide_wire::PAYLOAD_MAX;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::sockopt,
};

use super::{Arrived, Port, stamp};

/// A UDP socket; it asks for the kernel's own time of arrival.
pub struct UdpPort {
    socket: OwnedFd,
    to: Option<libc::sockaddr_in>,
    polls: bool,
    /// How long a blocking receive waits at most, as set in the kernel.
    limit_ns: u64,
}

/// The kernel counts the limit of a blocking receive in its own ticks, so only waits of at least this length
/// use it. Shorter waits use poll(2), which is exact and costs one more system call.
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
        stamp::enable(&socket);
        // A failure is ignored: this only helps packets to be quick.
        let _ = sockopt::set_ip_tos(&socket, TYPE_OF_SERVICE);
        Ok(Self { socket, to: peer.map(|peer| address(peer, port)), polls, limit_ns: 0 })
    }

    /// Makes blocking receives end after `limit_ns`.
    fn limit(&mut self, limit_ns: u64) -> io::Result<()> {
        if self.limit_ns.abs_diff(limit_ns) < COARSE_NS / 2 {
            return Ok(());
        }
        sockopt::set_socket_timeout(&self.socket, sockopt::Timeout::Recv, Some(Duration::from_nanos(limit_ns)))?;
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
    /// Receives the next datagram; waits for it, up to the limit, unless `flags` contain MSG_DONTWAIT.
    fn take(&mut self, buffer: &mut [u8; PAYLOAD_MAX], flags: i32) -> io::Result<Option<Arrived>> {
        // SAFETY: zeroes are a valid value of this plain structure.
        let mut from: libc::sockaddr_in = unsafe { std::mem::zeroed() };
        let parts = &mut [io::IoSliceMut::new(&mut buffer[..])];
        let (len, at_ns, kernel_ns) = match stamp::receive(&self.socket, Some(&mut from), parts, flags) {
            Ok(received) => received,
            // A peer that is not there yet answers with an ICMP message, which is reported at the next call.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::ConnectionRefused
                ) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        if self.to.is_none_or(|to| to.sin_addr.s_addr == from.sin_addr.s_addr) {
            self.to = Some(from);
        }
        Ok(Some(Arrived { len, at_ns, kernel_ns }))
    }
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
            let left_ns = until_ns.saturating_sub(mono_ns());
            if !self.polls && left_ns >= COARSE_NS {
                self.limit(left_ns)?;
                return self.take(buffer, 0);
            }
            if let Some(arrived) = self.take(buffer, libc::MSG_DONTWAIT)? {
                return Ok(Some(arrived));
            }
            let left_ns = until_ns.saturating_sub(mono_ns());
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
