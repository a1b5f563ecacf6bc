// SPDX-License-Identifier: Apache-2.0
//! Ethernet, IPv4 and UDP around a payload.

use std::net::Ipv4Addr;

use fide_wire::PAYLOAD_MAX;

use super::TYPE_OF_SERVICE;
use fide_sys::interface::Interface;

pub const ETHERNET: usize = 14;
pub const IPV4: usize = 20;
pub const UDP: usize = 8;
/// Where the type of service is.
pub const TYPE_OF_SERVICE_AT: usize = ETHERNET + 1;
/// Where the destination's address begins.
pub const DESTINATION: usize = ETHERNET + 16;
/// Bytes in front of the payload.
pub const HEADERS: usize = ETHERNET + IPV4 + UDP;

/// Length of the payload in a frame of `len` bytes that begins with `headers`. Padding behind the packet does
/// not count; `None` if the lengths contradict each other or it is no UDP packet with headers of these sizes.
#[must_use]
pub fn payload_len(headers: &[u8; HEADERS], len: usize) -> Option<usize> {
    let word = |at| usize::from(u16::from_be_bytes([headers[at], headers[at + 1]]));
    let (total, udp) = (word(ETHERNET + 2), word(ETHERNET + IPV4 + 4));
    let shape = word(12) == 0x0800 && headers[14] == 0x45 && headers[23] == 17 && word(20) & 0x3fff == 0;
    let whole = len >= HEADERS && ETHERNET + total <= len && IPV4 + udp <= total;
    let payload = udp.checked_sub(UDP)?;
    (shape && whole && payload <= PAYLOAD_MAX).then_some(payload)
}

/// The hardware address of a multicast group: RFC 1112 §6.4, the low 23 bits of the group.
#[must_use]
pub fn multicast_hardware(group: Ipv4Addr) -> [u8; 6] {
    let [_, b, c, d] = group.octets();
    [0x01, 0x00, 0x5e, b & 0x7f, c, d]
}

/// The headers, with lengths and checksum still to be filled in.
#[must_use]
pub fn headers(interface: &Interface, hardware: [u8; 6], to: Ipv4Addr, port: u16) -> [u8; HEADERS + PAYLOAD_MAX] {
    let mut frame = [0; HEADERS + PAYLOAD_MAX];
    frame[..6].copy_from_slice(&hardware);
    frame[6..12].copy_from_slice(&interface.hardware);
    frame[12..14].copy_from_slice(&0x0800u16.to_be_bytes());
    let ip = &mut frame[ETHERNET..ETHERNET + IPV4];
    ip[0] = 0x45;
    ip[1] = TYPE_OF_SERVICE;
    ip[6] = 0x40; // don't fragment
    ip[8] = 1; // time to live: a multicast stays on its segment
    ip[9] = 17;
    ip[12..16].copy_from_slice(&interface.address.octets());
    ip[16..20].copy_from_slice(&to.octets());
    let udp = &mut frame[ETHERNET + IPV4..HEADERS];
    udp[..2].copy_from_slice(&port.to_be_bytes());
    udp[2..4].copy_from_slice(&port.to_be_bytes());
    // Checksum 0: none (RFC 768); the tag covers the payload.
    frame
}

/// Fills in lengths and the IPv4 checksum of a whole frame.
///
/// # Panics
/// If the frame is shorter than its headers, or longer than 1514 bytes.
pub fn finish(frame: &mut [u8]) {
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
