// SPDX-License-Identifier: Apache-2.0
//! Packets to and from the network: trains of full packets to each host, which the kernel takes apart (GSO)
//! and puts together (GRO) where it can.

use std::{
    io::{self, IoSliceMut},
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    os::fd::AsFd,
};

use fide_agreement::HostSet;
use fide_types::{HostId, MAX_HOSTS, PerHost, host_index};
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use rustix::fd::BorrowedFd;

use crate::{
    Error,
    packet::{PACKET_MAX, Sealer},
};

/// Most packets of a train: as many as fit 64 KiB.
const TRAIN_MAX: usize = 65_535 / PACKET_MAX;
/// Most trains that are received with one call.
const BUFFERS: usize = 8;
const BUFFER_LEN: usize = 65_535;
/// Most receive calls for each plane in one turn.
const CALLS_PER_TURN: usize = 4;
/// Buffer of a socket, each way, if the host allows it.
const SOCKET_BYTES: usize = 4 << 20;

struct Plane {
    socket: UdpSocket,
    state: UdpSocketState,
    /// Addresses of the hosts on this plane.
    others: PerHost<Option<SocketAddr>>,
}

/// Packets for one destination that were not sent yet.
#[derive(Default)]
struct Train {
    bytes: Vec<u8>,
    /// Where the packet that is being filled begins.
    start: usize,
    /// Whether there is such a packet.
    open: bool,
}

impl Train {
    /// Begins a packet, unless one is being filled. It shows its sender even if it stays empty, and may ask
    /// for a packet in return.
    fn begin(&mut self, sealer: &mut Sealer, asks: bool) {
        if !self.open {
            self.start = self.bytes.len();
            self.open = true;
            sealer.begin(&mut self.bytes, asks);
        }
    }

    /// Appends a datagram to the packet that is being filled. If it does not fit, returns false and changes
    /// nothing.
    fn push(&mut self, datagram: &[u8]) -> bool {
        self.open && Sealer::push(&mut self.bytes, self.start, datagram)
    }

    /// Seals the packet that is being filled, if there is one.
    fn seal(&mut self, sealer: &Sealer, fill: bool) {
        if std::mem::take(&mut self.open) {
            sealer.seal(&mut self.bytes, self.start, fill);
        }
    }

    fn is_full(&self) -> bool {
        self.bytes.len() >= TRAIN_MAX * PACKET_MAX
    }
}

/// Which train.
#[derive(Clone, Copy)]
enum For {
    Host(u16),
    /// Sealed once, and sent to each of [`Port::many`].
    Many,
}

pub(crate) struct Port {
    planes: Vec<Plane>,
    /// The train of each host.
    trains: PerHost<Train>,
    /// Hosts whose trains are not empty.
    due: HostSet,
    /// The train that several hosts are sent.
    common: Train,
    /// These hosts; none while the common train is empty.
    many: HostSet,
    buffers: Box<[Vec<u8>]>,
    /// Trains that the kernel did not take; they are lost.
    pub(crate) lost: u64,
    pub(crate) sent: u64,
    /// A destination for which packets are too long.
    pub(crate) too_long: Option<SocketAddr>,
}

impl Port {
    /// `addresses`: by id - 1 and plane.
    pub(crate) fn open(me: u16, addresses: &[Vec<Ipv4Addr>], port: u16) -> Result<Self, Error> {
        let mine = &addresses[host_index(me)];
        let mut planes = Vec::new();
        for (plane, address) in mine.iter().enumerate() {
            let address = SocketAddr::from((*address, port));
            let bind = || -> io::Result<_> {
                let socket = UdpSocket::bind(address)?;
                let state = UdpSocketState::new((&socket).into())?;
                // What the kernel grants is enough for small windows.
                let _ = state.set_send_buffer_size((&socket).into(), SOCKET_BYTES);
                let _ = state.set_recv_buffer_size((&socket).into(), SOCKET_BYTES);
                Ok((socket, state))
            };
            let (socket, state) = bind().map_err(|why| Error::Bind { address, why })?;
            let address = |host: HostId| Some(SocketAddr::from((*addresses[host_index(host)].get(plane)?, port)));
            let others = PerHost::new(addresses.len(), address);
            planes.push(Plane { socket, state, others });
        }
        Ok(Self {
            planes,
            trains: PerHost::new(MAX_HOSTS, |_| Train::default()),
            due: HostSet::EMPTY,
            common: Train::default(),
            many: HostSet::EMPTY,
            buffers: (0..BUFFERS).map(|_| vec![0; BUFFER_LEN]).collect(),
            lost: 0,
            sent: 0,
            too_long: None,
        })
    }

    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.planes.iter().map(|plane| plane.socket.as_fd())
    }

    /// Puts a datagram into a packet for each of some hosts, the same packet where possible. A full train
    /// departs at once: `plane` is the plane by which a host is reached.
    pub(crate) fn push(&mut self, to: HostSet, datagram: &[u8], sealer: &mut Sealer, plane: &dyn Fn(u16) -> usize) {
        // Usually these are all others; a host that needs something else gets it in a train of its own.
        let common = to.len() > 1 && (self.many == to || self.many.is_empty());
        if common {
            self.many = to;
            return self.push_for(For::Many, datagram, sealer, plane);
        }
        for host in to.iter() {
            self.push_for(For::Host(host), datagram, sealer, plane);
        }
    }

    fn push_for(&mut self, whose: For, datagram: &[u8], sealer: &mut Sealer, plane: &dyn Fn(u16) -> usize) {
        let train = self.train(whose);
        if train.push(datagram) {
            return;
        }
        train.seal(sealer, true);
        if train.is_full() {
            self.depart(whose, plane);
        }
        let train = self.train(whose);
        train.begin(sealer, false);
        let fits = train.push(datagram);
        debug_assert!(fits, "an empty packet has room for a datagram");
    }

    fn train(&mut self, whose: For) -> &mut Train {
        match whose {
            For::Host(host) => {
                self.due.insert(host);
                &mut self.trains[host]
            }
            For::Many => &mut self.common,
        }
    }

    /// Begins a packet for a host, which shows its sender even if it stays empty, and may ask for a packet in
    /// return.
    pub(crate) fn begin(&mut self, to: u16, sealer: &mut Sealer, asks: bool) {
        self.train(For::Host(to)).begin(sealer, asks);
    }

    /// Drops all packets that were begun and not sent. Another sealer would seal them under a number that it
    /// uses again.
    pub(crate) fn discard(&mut self) {
        for train in self.trains.values_mut().iter_mut().chain([&mut self.common]) {
            train.bytes.clear();
            (train.start, train.open) = (0, false);
        }
        (self.due, self.many) = (HostSet::EMPTY, HostSet::EMPTY);
    }

    /// Sends all packets.
    pub(crate) fn flush(&mut self, sealer: &Sealer, plane: &dyn Fn(u16) -> usize) {
        if !self.many.is_empty() {
            self.common.seal(sealer, false);
            self.depart(For::Many, plane);
            self.many = HostSet::EMPTY;
        }
        for host in std::mem::take(&mut self.due).iter() {
            self.trains[host].seal(sealer, false);
            self.depart(For::Host(host), plane);
        }
    }

    fn depart(&mut self, whose: For, plane: &dyn Fn(u16) -> usize) {
        let (to, train) = match whose {
            For::Host(host) => (HostSet::only(host), &mut self.trains[host]),
            For::Many => (self.many, &mut self.common),
        };
        for host in to.iter() {
            let plane = self.planes.get(plane(host)).or(self.planes.first());
            let destination = plane.and_then(|plane| Some((plane, (*plane.others.get(host)?)?)));
            let Some((plane, destination)) = destination else { continue };
            let most = plane.state.max_gso_segments().max(1) * PACKET_MAX;
            for contents in train.bytes.chunks(most) {
                let segment_size = (contents.len() > PACKET_MAX).then_some(PACKET_MAX);
                let transmit = Transmit { destination, ecn: None, contents, segment_size, src_ip: None };
                self.sent += 1;
                if let Err(why) = plane.state.try_send((&plane.socket).into(), &transmit) {
                    // A full queue, or a host that is gone: as if lost on the way.
                    self.lost += 1;
                    if quinn_udp::is_msg_size_err(&why) {
                        self.too_long = Some(destination);
                    }
                }
            }
        }
        train.bytes.clear();
        train.start = 0;
    }

    /// Hands over packets that have come on these planes (bit p: plane p), up to a bound; the rest is found
    /// in the next turn.
    pub(crate) fn receive(&mut self, ready: u8, mut each: impl FnMut(&mut [u8])) {
        let mut meta = [RecvMeta::default(); BUFFERS];
        for (_, plane) in (0..).zip(&self.planes).filter(|(at, _)| ready >> at & 1 == 1) {
            for _ in 0..CALLS_PER_TURN {
                let mut places = self.buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer));
                let mut slices: [IoSliceMut<'_>; BUFFERS] = std::array::from_fn(|_| places.next().expect("as many"));
                // Nothing has come, or an ICMP error for a packet that reached nobody.
                let Ok(count) = plane.state.recv((&plane.socket).into(), &mut slices, &mut meta) else { break };
                for (slice, meta) in slices.iter_mut().zip(&meta[..count]) {
                    slice[..meta.len].chunks_mut(meta.stride.max(1)).for_each(&mut each);
                }
                if count < BUFFERS {
                    break;
                }
            }
        }
    }
}

impl std::fmt::Debug for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Port").field("planes", &self.planes.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{DATAGRAM_MAX, Opener, Sender};
    use fide_wire::Key;
    use std::time::{Duration, Instant};

    const KEY: Key = Key([7; 16]);

    /// The datagrams that come to a port, until there are so many, sorted.
    fn received(port: &mut Port, count: usize) -> Vec<Vec<u8>> {
        let (mut opener, mut all, begun) = (Opener::new(KEY), Vec::new(), Instant::now());
        while all.len() < count && begun.elapsed() < Duration::from_secs(10) {
            port.receive(u8::MAX, |packet| {
                all.extend(opener.open(packet).expect("sealed").datagrams.map(<[u8]>::to_vec))
            });
        }
        all.sort();
        all
    }

    /// Ports of hosts 1 to `hosts` with one plane, on loopback addresses that no other test has.
    fn ports(net: u8, hosts: u8) -> Vec<Port> {
        let addresses: Vec<Vec<Ipv4Addr>> = (1..=hosts).map(|host| vec![Ipv4Addr::new(127, 0, net, host)]).collect();
        let free =
            UdpSocket::bind((addresses[0][0], 0)).and_then(|socket| socket.local_addr()).expect("loopback").port();
        (1..=hosts).map(|me| Port::open(me.into(), &addresses, free).expect("a port")).collect()
    }

    /// A packet begun by one sealer and sealed by the next would take a number of the next one's, which that
    /// uses for another packet.
    #[test]
    fn packet_begun_under_another_sealer_is_never_sealed() {
        let mut ports = ports(72, 3);
        let mut before = Sealer::new(&KEY, Sender { host: 1, process: 1, incarnation: 1 }, 1);
        let plane = |_| 0;
        let all: HostSet = [2, 3].into_iter().collect();
        ports[0].begin(2, &mut before, false);
        ports[0].push(all, b"before", &mut before, &plane);
        ports[0].discard();
        let mut after = Sealer::new(&KEY, Sender { host: 1, process: 2, incarnation: 2 }, 2);
        ports[0].flush(&after, &plane);
        assert_eq!(ports[0].sent, 0);
        ports[0].push(all, b"after", &mut after, &plane);
        ports[0].flush(&after, &plane);
        assert_eq!(received(&mut ports[1], 1), [b"after".to_vec()]);
    }

    #[test]
    fn common_train_is_sealed_once_and_reaches_each_host() {
        let mut ports = ports(71, 4);
        let mut sealer = Sealer::new(&KEY, Sender { host: 1, process: 1, incarnation: 1 }, 1);
        let set = |hosts: &[u16]| hosts.iter().copied().collect::<HostSet>();
        let plane = |_| 0;
        let (all, own) = (vec![1; 100], vec![2; 100]);
        // More than a packet for all, a few packets for others, and one that only asks.
        for at in 0..20 {
            ports[0].push(set(&[2, 3]), &all, &mut sealer, &plane);
            if at == 7 {
                ports[0].push(set(&[3]), &own, &mut sealer, &plane);
                ports[0].push(set(&[3, 4]), &[3; DATAGRAM_MAX], &mut sealer, &plane);
            }
        }
        ports[0].begin(2, &mut sealer, true);
        ports[0].flush(&sealer, &plane);
        assert_eq!(
            (ports[0].sent, ports[0].lost),
            (5, 0),
            "to each of 2 and 3 what is for both, to each of all its own"
        );
        let twenty = || vec![all.clone(); 20];
        assert_eq!(received(&mut ports[1], 20), twenty());
        assert_eq!(received(&mut ports[2], 22), [twenty(), vec![own, vec![3; DATAGRAM_MAX]]].concat());
        assert_eq!(received(&mut ports[3], 1), [vec![3; DATAGRAM_MAX]]);
        // The next time it may be for others.
        ports[0].push(set(&[3, 4]), &all, &mut sealer, &plane);
        ports[0].flush(&sealer, &plane);
        assert_eq!(ports[0].sent, 7);
        for port in [2, 3] {
            assert_eq!(received(&mut ports[port], 1), std::slice::from_ref(&all));
        }
    }
}
