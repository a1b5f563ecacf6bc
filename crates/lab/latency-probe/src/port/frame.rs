// SPDX-License-Identifier: Apache-2.0
//! Sends whole frames through AF_PACKET; receives them through AF_PACKET too, or through XDP and a slot.

use std::{
    io,
    net::Ipv4Addr,
    os::fd::{AsRawFd, OwnedFd},
};

use fide_bpf::{
    XdpMode,
    pingpong::{Mode, PingPong},
};
use fide_net::link::frame::{ETHERNET, HEADERS, IPV4, finish, headers, payload_len};
use fide_net::link::frame_socket;
use fide_sys::clock::mono_ns;
use fide_sys::interface::Interface;
use fide_wire::PAYLOAD_MAX;

use super::{Arrived, Method, Port, PortError, stamp};
use crate::packet::HEADER;

/// A frame whose headers are written only once, for one peer.
pub(super) struct Envelope {
    pub(super) bytes: Box<[u8; HEADERS + PAYLOAD_MAX]>,
    /// Whether no peer was given, so that it answers the sender of the last packet.
    pub(super) open: bool,
}

impl Envelope {
    pub(super) fn new(interface: &Interface, peer: Option<Ipv4Addr>, port: u16) -> Result<Self, PortError> {
        let hardware = peer.map(|peer| neighbour(peer, interface)).transpose()?;
        let to = peer.unwrap_or(Ipv4Addr::UNSPECIFIED);
        let mut bytes = Box::new(headers(interface, hardware.unwrap_or_default(), to, port));
        // Unlike a lane's packets, this frame may cross a router.
        bytes[ETHERNET + 8] = 64;
        Ok(Self { bytes, open: peer.is_none() })
    }

    /// Makes answers go to the sender of this frame.
    pub(super) fn answer(&mut self, frame: &[u8; HEADERS]) {
        if self.open {
            self.bytes[..6].copy_from_slice(&frame[6..12]);
            self.bytes[ETHERNET + 16..ETHERNET + 20].copy_from_slice(&frame[ETHERNET + 12..ETHERNET + 16]);
            self.bytes[ETHERNET + IPV4 + 2..ETHERNET + IPV4 + 4]
                .copy_from_slice(&frame[ETHERNET + IPV4..ETHERNET + IPV4 + 2]);
        }
    }

    /// Completes the frame around a payload.
    pub(super) fn close(&mut self, payload: &[u8]) -> &[u8] {
        let len = HEADERS + payload.len();
        self.bytes[HEADERS..len].copy_from_slice(payload);
        finish(&mut self.bytes[..len]);
        &self.bytes[..len]
    }
}

/// The hardware address of a host on this network. The kernel asks for it, and it is read from the kernel's
/// table.
fn neighbour(peer: Ipv4Addr, interface: &Interface) -> Result<[u8; 6], PortError> {
    let none = || PortError::NoNeighbour { peer, interface: interface.name.clone() };
    for _ in 0..20 {
        // Any packet makes the kernel ask; nobody needs to receive this one.
        let probe = std::net::UdpSocket::bind((interface.address, 0)).and_then(|s| s.send_to(&[], (peer, 9)));
        let table = std::fs::read_to_string("/proc/thread-self/net/arp").unwrap_or_default();
        if let Some(hardware) = table.lines().find_map(|line| parse_neighbour(line, peer, &interface.name)) {
            return Ok(hardware);
        }
        if probe.is_err() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    Err(none())
}

/// A line of the kernel's table: address, type, flags (2: complete), hardware address, mask, device.
fn parse_neighbour(line: &str, peer: Ipv4Addr, interface: &str) -> Option<[u8; 6]> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [address, _, flags, hardware, _, device] = fields[..] else { return None };
    let flags = u32::from_str_radix(flags.trim_start_matches("0x"), 16).ok()?;
    if address.parse() != Ok(peer) || device != interface || flags & 2 == 0 {
        return None;
    }
    let mut bytes = [0; 6];
    let mut parts = hardware.split(':');
    for byte in &mut bytes {
        *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
    }
    Some(bytes)
}

/// See the module.
pub struct FramePort {
    socket: OwnedFd,
    envelope: Envelope,
    slots: Option<(PingPong, XdpMode)>,
}

impl FramePort {
    /// Opens the port. With `slot`, an XDP program receives the packets.
    ///
    /// # Errors
    /// [`PortError`], without CAP_NET_RAW or (for a slot) CAP_BPF and CAP_NET_ADMIN, and if the peer is not
    /// reachable.
    pub fn open(interface: &Interface, peer: Option<Ipv4Addr>, port: u16, slot: bool) -> Result<Self, PortError> {
        let method = if slot { Method::Slot } else { Method::Packet };
        let envelope = Envelope::new(interface, peer, port)?;
        let socket = frame_socket(interface, port).map_err(|why| PortError::Open { method, why })?;
        stamp::enable(&socket);
        let slots = slot.then(|| attach(interface, port, Mode::Slot, method)).transpose()?;
        Ok(Self { socket, envelope, slots })
    }
}

/// Loads the receive program and attaches it as well as the driver allows.
pub(super) fn attach(
    interface: &Interface,
    port: u16,
    mode: Mode,
    method: Method,
) -> Result<(PingPong, XdpMode), PortError> {
    let failed = |why| PortError::Bpf { method, why };
    let mut program = PingPong::load(port, mode, 0).map_err(failed)?;
    if program.attach(interface.index, XdpMode::Native).is_ok() {
        return Ok((program, XdpMode::Native));
    }
    program.attach(interface.index, XdpMode::Generic).map_err(failed)?;
    Ok((program, XdpMode::Generic))
}

impl Port for FramePort {
    fn send(&mut self, payload: &[u8]) -> io::Result<()> {
        let frame = self.envelope.close(payload);
        // SAFETY: the frame outlives the call.
        let sent = unsafe { libc::send(self.socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn receive(&mut self, buffer: &mut [u8; PAYLOAD_MAX], until_ns: u64) -> io::Result<Option<Arrived>> {
        loop {
            if let Some((program, _)) = &mut self.slots {
                if let Some(arrived) = program.take() {
                    buffer[..HEADER].copy_from_slice(&arrived.header);
                    let at_ns = mono_ns();
                    return Ok(Some(Arrived { len: HEADER, at_ns, kernel_ns: Some(arrived.rx_ns) }));
                }
            } else {
                let mut headers = [0; HEADERS];
                let parts = &mut [io::IoSliceMut::new(&mut headers), io::IoSliceMut::new(&mut buffer[..])];
                match stamp::receive(&self.socket, None, parts, libc::MSG_DONTWAIT) {
                    Ok((len, at_ns, kernel_ns)) => {
                        if let Some(len) = payload_len(&headers, len) {
                            self.envelope.answer(&headers);
                            return Ok(Some(Arrived { len, at_ns, kernel_ns }));
                        }
                    }
                    Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                    Err(error) => return Err(error),
                }
            }
            if mono_ns() >= until_ns {
                return Ok(None);
            }
            std::hint::spin_loop();
        }
    }

    fn name(&self) -> String {
        match &self.slots {
            Some((_, mode)) => format!("xdp-slot, {mode}"),
            None => "af-packet".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_table_is_read_and_nothing_else_is() {
        let peer = Ipv4Addr::new(10, 70, 1, 2);
        let good = "10.70.1.2        0x1         0x2         02:00:00:00:00:0a     *        p0";
        assert_eq!(parse_neighbour(good, peer, "p0"), Some([2, 0, 0, 0, 0, 10]));
        assert_eq!(parse_neighbour(good, peer, "p1"), None);
        assert_eq!(parse_neighbour(&good.replace("0x2  ", "0x0  "), peer, "p0"), None, "not complete");
        assert_eq!(parse_neighbour("IP address HW type Flags HW address Mask Device", peer, "p0"), None);
        assert_eq!(parse_neighbour("", peer, "p0"), None);
        assert_eq!(parse_neighbour("10.70.1.2 0x1 0x2 02:00 * p0", peer, "p0"), None);
    }
}
