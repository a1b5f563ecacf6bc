// SPDX-License-Identifier: Apache-2.0
//! A UDP socket: batches of datagrams in and out, with marks of congestion, without fragments.

use std::{
    io::{self, IoSliceMut},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket},
};

use fide_pace::{
    endpoint::{ConnectionId, DATAGRAM_MAX, Datagram},
    transport::Arrival,
};
use fide_sys::{
    clock::mono_ns,
    departure::{self, Timed},
};
use quinn_udp::{BATCH_SIZE, EcnCodepoint, RecvMeta, Transmit, UdpSocketState};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::{clock::HostClock, departure as kept};

/// Bytes of datagrams that are sent by one call.
const BATCH_BYTES: usize = 60_000;
/// Bytes of the socket's buffers: what comes while the thread does not run.
const BUFFER_BYTES: usize = 4 << 20;
/// Longest batch of datagrams that the kernel joins into one.
const JOINED_BYTES: usize = 65_536;

/// The socket.
#[derive(Debug)]
pub(crate) struct Socket {
    socket: UdpSocket,
    state: UdpSocketState,
    family: Family,
    /// It has all addresses of the host, so that the kernel may choose another one for an answer than was asked.
    is_anywhere: bool,
    /// It takes times at which datagrams are to leave.
    takes_times: bool,
}

/// Addresses of which family a socket sends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    V4,
    V6,
    /// Both, those of IPv4 as addresses of IPv6.
    Both,
}

/// Datagrams to one peer, of one length but for the last, which one call sends.
#[derive(Debug)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    to: Option<SocketAddr>,
    connection: Option<ConnectionId>,
    /// From this address of the host; none: the kernel's choice.
    from: Option<IpAddr>,
    /// Bytes of each.
    each: usize,
    count: usize,
    is_closed: bool,
}

/// A datagram that has come.
#[derive(Debug)]
pub(crate) struct Came<'a> {
    pub(crate) from: SocketAddr,
    /// To this address of the host, if the socket is at all of them.
    pub(crate) to: Option<IpAddr>,
    pub(crate) bytes: &'a [u8],
    pub(crate) arrival: Arrival,
}

/// What one call received.
#[derive(Debug)]
pub(crate) struct Received {
    buffers: Vec<Vec<u8>>,
    metas: [RecvMeta; BATCH_SIZE],
    count: usize,
    is_anywhere: bool,
    clock: HostClock,
    /// Nobody looked between these two times: what came then did not wait for the work on other packets.
    pub(crate) unwatched_ns: [u64; 2],
    /// When somebody looked last.
    pub(crate) watched_ns: u64,
}

impl Socket {
    /// `[::]` is for both families.
    pub(crate) fn bind(address: SocketAddr) -> io::Result<Self> {
        let (socket, family) = match address {
            SocketAddr::V6(v6) if v6.ip().is_unspecified() => (both_families(&v6)?, Family::Both),
            SocketAddr::V6(_) => (UdpSocket::bind(address)?, Family::V6),
            SocketAddr::V4(_) => (UdpSocket::bind(address)?, Family::V4),
        };
        let state = UdpSocketState::new((&socket).into())?;
        // As far as the host's limits let it.
        let _ = state.set_recv_buffer_size((&socket).into(), BUFFER_BYTES);
        let _ = state.set_send_buffer_size((&socket).into(), BUFFER_BYTES);
        let takes_times = departure::takes_times(&socket).is_ok();
        Ok(Self { socket, state, family, is_anywhere: address.ip().is_unspecified(), takes_times })
    }

    /// At any free port, for both families if the host has both.
    pub(crate) fn anywhere() -> io::Result<Self> {
        Self::bind((Ipv6Addr::UNSPECIFIED, 0).into()).or_else(|_| Self::bind((Ipv4Addr::UNSPECIFIED, 0).into()))
    }

    /// Whether it can send to an address of this family.
    pub(crate) fn reaches(&self, address: SocketAddr) -> bool {
        match self.family {
            Family::V4 => address.is_ipv4(),
            Family::V6 => address.is_ipv6(),
            Family::Both => true,
        }
    }

    pub(crate) fn local_address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    pub(crate) fn descriptor(&self) -> &UdpSocket {
        &self.socket
    }

    #[cfg(test)]
    pub(crate) fn takes_times(&self) -> bool {
        self.takes_times
    }

    /// Whether the kernel keeps the times of datagrams to an address.
    pub(crate) fn keeps_times_to(&self, peer: SocketAddr) -> bool {
        self.takes_times && kept::is_kept_to(peer)
    }

    /// As the kernel wants to have it.
    fn destination(&self, to: SocketAddr) -> SocketAddr {
        match to {
            SocketAddr::V4(v4) if self.family == Family::Both => (v4.ip().to_ipv6_mapped(), v4.port()).into(),
            to => to,
        }
    }

    /// Sends a datagram of a connection that is to leave at a time, if it takes times. False: the socket's buffer is full. What the
    /// kernel refuses is lost, as anywhere on the path.
    pub(crate) fn send_at(&self, bytes: &[u8], to: SocketAddr, from: Option<IpAddr>, departs_ns: u64) -> bool {
        // The kernel's clock does not go on while the host is suspended.
        let at_ns = mono_ns().saturating_add(departs_ns.saturating_sub(crate::now_ns()));
        let mut timed = Timed { bytes, to: self.destination(to), from, class: EcnCodepoint::Ect0 as u8, at_ns };
        let mut result = departure::send_at(&self.socket, &timed);
        if timed.from.is_some() && result.as_ref().is_err_and(|why| why.kind() != io::ErrorKind::WouldBlock) {
            // The host may not have this address any more.
            timed.from = None;
            result = departure::send_at(&self.socket, &timed);
        }
        !result.is_err_and(|why| why.kind() == io::ErrorKind::WouldBlock)
    }

    /// Datagrams that one call can send.
    pub(crate) fn segments_max(&self) -> usize {
        self.state.max_gso_segments()
    }

    /// Sends a batch. False: the socket's buffer is full, and the batch is kept. What the kernel refuses is lost, as anywhere
    /// on the path.
    pub(crate) fn send(&self, batch: &mut Batch) -> bool {
        let Some(to) = batch.to.filter(|_| batch.count > 0) else { return true };
        let mut transmit = Transmit {
            destination: self.destination(to),
            ecn: batch.connection.map(|_| EcnCodepoint::Ect0),
            contents: &batch.bytes,
            segment_size: (batch.count > 1).then_some(batch.each),
            src_ip: batch.from,
        };
        let mut result = self.state.try_send((&self.socket).into(), &transmit);
        if transmit.src_ip.is_some() && result.as_ref().is_err_and(|why| why.kind() != io::ErrorKind::WouldBlock) {
            // The host may not have this address any more.
            transmit.src_ip = None;
            result = self.state.try_send((&self.socket).into(), &transmit);
        }
        if result.is_err_and(|why| why.kind() == io::ErrorKind::WouldBlock) {
            return false;
        }
        batch.clear();
        true
    }

    /// Receives what is there. False: nothing.
    pub(crate) fn receive(&self, into: &mut Received) -> bool {
        let Received { buffers, metas, count, is_anywhere, watched_ns, .. } = into;
        (*count, *is_anywhere) = (0, self.is_anywhere);
        let mut buffers = buffers.iter_mut();
        let mut slices: [IoSliceMut<'_>; BATCH_SIZE] =
            std::array::from_fn(|_| IoSliceMut::new(buffers.next().map_or(&mut [], |buffer| &mut buffer[..])));
        // An error is one of an earlier datagram that was sent: nobody listens there, or it was too large.
        if let Ok(received) = self.state.recv((&self.socket).into(), &mut slices, metas) {
            *count = received;
        }
        *watched_ns = crate::now_ns();
        *count > 0
    }
}

impl Batch {
    pub(crate) fn new() -> Self {
        let bytes = Vec::with_capacity(BATCH_BYTES + DATAGRAM_MAX);
        Self { bytes, to: None, connection: None, from: None, each: 0, count: 0, is_closed: false }
    }

    fn clear(&mut self) {
        self.bytes.clear();
        (self.count, self.is_closed, self.to) = (0, false, None);
    }

    /// Whose packets they are, and how many.
    pub(crate) fn of(&self) -> Option<(ConnectionId, u64)> {
        self.connection.filter(|_| self.count > 0).map(|id| (id, self.count as u64))
    }

    /// Whether a datagram goes into it; it is appended then. `from`: the own address from which it leaves.
    pub(crate) fn add(&mut self, datagram: &Datagram, from: Option<IpAddr>, bytes: &[u8], segments_max: usize) -> bool {
        let is_first = self.count == 0;
        let is_alike = self.to == Some(datagram.to)
            && self.connection == datagram.connection
            && self.from == from
            && datagram.len <= self.each
            && !self.is_closed
            && self.count < segments_max
            && self.bytes.len() + datagram.len <= BATCH_BYTES;
        if !is_first && !is_alike {
            return false;
        }
        if is_first {
            (self.to, self.connection, self.each) = (Some(datagram.to), datagram.connection, datagram.len);
            self.from = from;
        }
        // Only the last one may be shorter.
        self.is_closed = datagram.len < self.each;
        self.bytes.extend_from_slice(&bytes[..datagram.len]);
        self.count += 1;
        true
    }
}

impl Received {
    pub(crate) fn new() -> Self {
        Self {
            buffers: vec![vec![0; JOINED_BYTES]; BATCH_SIZE],
            metas: [RecvMeta::default(); BATCH_SIZE],
            count: 0,
            is_anywhere: false,
            clock: HostClock::default(),
            unwatched_ns: [0; 2],
            watched_ns: 0,
        }
    }

    /// Whether there was as much as one call can receive, so that there may be more.
    pub(crate) fn is_full(&self) -> bool {
        self.count == BATCH_SIZE
    }

    /// What has come, read at `now_ns`.
    pub(crate) fn datagrams(&mut self, now_ns: u64) -> impl Iterator<Item = Came<'_>> {
        let (compared, is_anywhere, [from_ns, until_ns]) = (self.clock.compare(), self.is_anywhere, self.unwatched_ns);
        self.buffers.iter().zip(&self.metas[..self.count]).flat_map(move |(buffer, meta)| {
            // What came while this end worked on others is a queue of this end's: it comes as it is read.
            let came_ns = meta
                .timestamp
                .and_then(|came| compared.of_day_ns(came))
                .filter(|came_ns| (from_ns..until_ns).contains(came_ns));
            let waited_ns = came_ns.map_or(0, |came_ns| now_ns.saturating_sub(came_ns));
            let arrival = Arrival { is_marked: meta.ecn == Some(EcnCodepoint::Ce), waited_ns };
            let joined = &buffer[..meta.len.min(buffer.len())];
            let (from, to) = (unmapped(meta.addr), meta.dst_ip.filter(|_| is_anywhere));
            joined.chunks(meta.stride.max(1)).map(move |bytes| Came { from, to, bytes, arrival })
        })
    }
}

fn both_families(address: &SocketAddrV6) -> io::Result<UdpSocket> {
    let socket = rustix::net::socket_with(AddressFamily::INET6, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_ipv6_v6only(&socket, false)?;
    rustix::net::bind(&socket, address)?;
    Ok(socket.into())
}

/// An address of IPv4 as itself.
fn unmapped(address: SocketAddr) -> SocketAddr {
    let ip = address.ip().to_canonical();
    if ip == address.ip() { address } else { (ip, address.port()).into() }
}
