// SPDX-License-Identifier: Apache-2.0
//! When packets leave a host, by its kernel: a packet socket's copies have the time at which they were handed to the device
//! (Linux Documentation/networking/timestamping.rst). Whoever reads them late reads the same times.

use crate::{Error, Host, Result, sys};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, eth, socket_with, sockopt};

/// Bytes of the socket's buffer: some thousand packets.
const BUFFER_BYTES: usize = 32 << 20;
/// Room for control messages, words.
const CONTROL: usize = 16;

/// Packets that leave by one device, from when it was made on.
#[derive(Debug)]
pub struct Departures {
    socket: OwnedFd,
    device: i32,
}

impl Departures {
    /// # Errors
    /// There is no such device, or the kernel gives no packet socket with times.
    pub fn of(host: &Host, device: &str) -> Result<Self> {
        let of = |why| Error::io(format!("watching what leaves by {device}"), why);
        let (socket, index) = host.run_in(|| -> Result<_> {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, Some(eth::ALL))
                .map_err(|why| of(why.into()))?;
            Ok((socket, sys::link_index(device)?))
        })??;
        sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER_BYTES).map_err(|why| of(why.into()))?;
        let stamps = (libc::SOF_TIMESTAMPING_RX_SOFTWARE | libc::SOF_TIMESTAMPING_SOFTWARE).cast_signed();
        // SAFETY: the value outlives the call and is of the size given.
        let rc = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_TIMESTAMPING,
                (&raw const stamps).cast(),
                size_of_val(&stamps) as libc::socklen_t,
            )
        };
        if rc != 0 {
            return Err(of(std::io::Error::last_os_error()));
        }
        Ok(Self { socket, device: index.cast_signed() })
    }

    /// Appends what has left since it was asked last: when, by CLOCK_REALTIME in ns, and its bytes with IP's header. The kernel
    /// begins to note times a moment after it was asked to; packets before that are left out. Returns packets for which there was no
    /// room: ask more often than the buffer fills.
    ///
    /// # Errors
    /// The kernel's.
    pub fn take(&mut self, into: &mut Vec<(u64, usize)>) -> Result<u32> {
        while let Some((at_ns, bytes, from)) = self.receive()? {
            let is_leaving = from.sll_pkttype == libc::PACKET_OUTGOING && from.sll_ifindex == self.device;
            into.extend(at_ns.filter(|_| is_leaving).map(|at_ns| (at_ns, bytes)));
        }
        // SAFETY: zeros are a valid value of this plain structure.
        let mut counts: libc::tpacket_stats = unsafe { std::mem::zeroed() };
        let mut len = size_of_val(&counts) as libc::socklen_t;
        // SAFETY: the kernel writes as many bytes as `len` says at most.
        let rc = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut counts).cast(),
                &raw mut len,
            )
        };
        if rc != 0 {
            return Err(Error::io("asking for packets without room", std::io::Error::last_os_error()));
        }
        Ok(counts.tp_drops)
    }

    /// The next packet: its time, its bytes, and where it was seen.
    fn receive(&self) -> Result<Option<(Option<u64>, usize, libc::sockaddr_ll)>> {
        // SAFETY: zeros are valid values of these plain structures.
        let (mut message, mut from): (libc::msghdr, libc::sockaddr_ll) = unsafe { std::mem::zeroed() };
        let mut control = [0_u64; CONTROL];
        message.msg_name = (&raw mut from).cast();
        message.msg_namelen = size_of_val(&from) as libc::socklen_t;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        // SAFETY: the message points to live buffers of the lengths given; of the packet itself nothing is asked for but its length.
        let got = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut message, libc::MSG_TRUNC) };
        if got < 0 {
            let why = std::io::Error::last_os_error();
            let is_empty = why.kind() == std::io::ErrorKind::WouldBlock;
            return if is_empty { Ok(None) } else { Err(Error::io("reading what has left", why)) };
        }
        Ok(Some((stamp_ns(&message), got.unsigned_abs(), from)))
    }
}

/// The kernel's time among the control messages.
fn stamp_ns(message: &libc::msghdr) -> Option<u64> {
    // SAFETY: the kernel filled `msg_control` up to `msg_controllen`; the macros stay inside of it.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(message);
        while let Some(header) = control.as_ref() {
            if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SO_TIMESTAMPING {
                let seen = libc::CMSG_DATA(header).cast::<libc::timespec>().read_unaligned();
                let at_ns = seen.tv_sec.cast_unsigned() * 1_000_000_000 + seen.tv_nsec.cast_unsigned();
                return (at_ns > 0).then_some(at_ns);
            }
            control = libc::CMSG_NXTHDR(message, header);
        }
    }
    None
}
