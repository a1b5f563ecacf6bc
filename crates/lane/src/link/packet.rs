// SPDX-License-Identifier: Apache-2.0
//! Raw frames past the queueing discipline: the shortest way from a thread to the driver.

use std::{
    io,
    net::Ipv4Addr,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use fide_wire::PAYLOAD_MAX;

use super::{SOCKET_PRIORITY, TYPE_OF_SERVICE};
use crate::interface::Interface;

const ETHERNET: usize = 14;
const IPV4: usize = 20;
const UDP: usize = 8;
const HEADERS: usize = ETHERNET + IPV4 + UDP;

/// A packet socket with a frame whose headers are written once.
#[derive(Debug)]
pub struct PacketSender {
    socket: OwnedFd,
    frame: Box<[u8; HEADERS + PAYLOAD_MAX]>,
}

impl PacketSender {
    /// Opens a socket on `interface` for packets to `group`.
    ///
    /// # Errors
    /// The kernel's, without CAP_NET_RAW.
    pub fn open(interface: &Interface, group: Ipv4Addr, port: u16) -> io::Result<Self> {
        // SAFETY: no memory is handed over; the descriptor is ours alone. Protocol 0 receives nothing.
        let socket = unsafe {
            let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        // SAFETY: zeroes are a valid value of this plain structure.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = interface.index.cast_signed();
        // SAFETY: the address outlives the call and is of the size given.
        if unsafe {
            libc::bind(
                socket.as_raw_fd(),
                (&raw const address).cast(),
                libc::socklen_t::try_from(size_of_val(&address)).expect("small"),
            )
        } != 0
        {
            return Err(io::Error::last_os_error());
        }
        for (level, option, value) in
            [(libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1), (libc::SOL_SOCKET, libc::SO_PRIORITY, SOCKET_PRIORITY)]
        {
            super::udp::set_option(&socket, level, option, value)?;
        }
        Ok(Self { socket, frame: Box::new(headers(interface, group, port)) })
    }

    /// Sends one payload.
    ///
    /// # Errors
    /// The kernel's.
    ///
    /// # Panics
    /// If `payload` is longer than [`PAYLOAD_MAX`].
    pub fn send(&mut self, payload: &[u8]) -> io::Result<()> {
        let len = HEADERS + payload.len();
        self.frame[HEADERS..len].copy_from_slice(payload);
        finish(&mut self.frame[..len]);
        // SAFETY: `len` bytes of the frame are initialised.
        let sent = unsafe { libc::send(self.socket.as_raw_fd(), self.frame.as_ptr().cast(), len, 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// The headers, with lengths and checksum still to be filled in.
fn headers(interface: &Interface, group: Ipv4Addr, port: u16) -> [u8; HEADERS + PAYLOAD_MAX] {
    let mut frame = [0; HEADERS + PAYLOAD_MAX];
    // RFC 1112 §6.4: the low 23 bits of the group.
    let [_, b, c, d] = group.octets();
    frame[..6].copy_from_slice(&[0x01, 0x00, 0x5e, b & 0x7f, c, d]);
    frame[6..12].copy_from_slice(&interface.hardware);
    frame[12..14].copy_from_slice(&0x0800u16.to_be_bytes());
    let ip = &mut frame[ETHERNET..ETHERNET + IPV4];
    ip[0] = 0x45;
    ip[1] = TYPE_OF_SERVICE;
    ip[6] = 0x40; // don't fragment
    ip[8] = 1; // time to live: a multicast stays on its segment
    ip[9] = 17;
    ip[12..16].copy_from_slice(&interface.address.octets());
    ip[16..20].copy_from_slice(&group.octets());
    let udp = &mut frame[ETHERNET + IPV4..HEADERS];
    udp[..2].copy_from_slice(&port.to_be_bytes());
    udp[2..4].copy_from_slice(&port.to_be_bytes());
    // Checksum 0: none (RFC 768); the tag covers the payload.
    frame
}

/// Fills in lengths and the IPv4 checksum of a whole frame.
fn finish(frame: &mut [u8]) {
    let total = u16::try_from(frame.len() - ETHERNET).expect("at most 1500");
    let udp = total - u16::try_from(IPV4).expect("20");
    frame[ETHERNET + IPV4 + 4..ETHERNET + IPV4 + 6].copy_from_slice(&udp.to_be_bytes());
    let ip = &mut frame[ETHERNET..ETHERNET + IPV4];
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    ip[10..12].fill(0);
    let sum: u32 = ip.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    ip[10..12].copy_from_slice(&(!u16::try_from(sum).expect("folded")).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_what_the_standards_say() {
        let interface = Interface {
            name: "p0".to_owned(),
            index: 7,
            hardware: [2, 0, 0, 0, 0, 9],
            address: Ipv4Addr::new(10, 70, 1, 2),
            loopback: false,
        };
        let mut frame = headers(&interface, Ipv4Addr::new(239, 198, 0, 1), 7411);
        finish(&mut frame[..HEADERS + 3]);
        assert_eq!(frame[..14], [1, 0, 0x5e, 0x46, 0, 1, 2, 0, 0, 0, 0, 9, 8, 0]);
        // A receiver sums the header with its checksum to all ones.
        let sum: u32 = frame[14..34].chunks_exact(2).map(|p| u32::from(u16::from_be_bytes([p[0], p[1]]))).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        assert_eq!(frame[16..18], 31u16.to_be_bytes());
        assert_eq!(frame[38..40], 11u16.to_be_bytes());
        assert_eq!(frame[15], 0xe0);
    }
}
