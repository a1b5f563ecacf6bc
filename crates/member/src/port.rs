// SPDX-License-Identifier: Apache-2.0
//! Packets to and from the network: trains of full packets to each host, which the kernel takes apart (GSO) and puts together (GRO)
//! where it can.

use std::{
    io::{self, IoSliceMut},
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    os::fd::AsFd,
};

use fide_wire::MAX_HOSTS;
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use rustix::fd::BorrowedFd;

use crate::{
    Error,
    packet::{PACKET_MAX, Sealer},
};

/// Packets of a train: what fits 64 KiB.
const TRAIN_MAX: usize = 65_535 / PACKET_MAX;
/// Trains that are received with one call.
const BUFFERS: usize = 8;
const BUFFER_LEN: usize = 65_535;
/// Calls for each plane in one turn.
const CALLS_PER_TURN: usize = 4;
/// Of a socket, each way, if the host allows it.
const SOCKET_BYTES: usize = 4 << 20;

struct Plane {
    socket: UdpSocket,
    state: UdpSocketState,
    /// By id - 1.
    others: Vec<Option<SocketAddr>>,
}

/// Packets for one host that were not sent yet.
#[derive(Default)]
struct Train {
    bytes: Vec<u8>,
    /// Where the packet begins that is being filled.
    start: usize,
    /// There is such a packet.
    open: bool,
}

pub(crate) struct Port {
    planes: Vec<Plane>,
    trains: Box<[Train]>,
    buffers: Box<[Vec<u8>]>,
    /// Trains that the kernel did not take: lost.
    pub(crate) lost: u64,
    pub(crate) sent: u64,
    /// Where packets do not fit.
    pub(crate) too_long: Option<SocketAddr>,
}

impl Port {
    /// `addresses`: by id - 1 and plane.
    pub(crate) fn open(me: u16, addresses: &[Vec<Ipv4Addr>], port: u16) -> Result<Self, Error> {
        let mine = &addresses[usize::from(me) - 1];
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
            let (socket, state) = bind().map_err(|source| Error::Bind { address, source })?;
            let others = addresses.iter().map(|host| Some(SocketAddr::from((*host.get(plane)?, port)))).collect();
            planes.push(Plane { socket, state, others });
        }
        Ok(Self {
            planes,
            trains: (0..MAX_HOSTS).map(|_| Train::default()).collect(),
            buffers: (0..BUFFERS).map(|_| vec![0; BUFFER_LEN]).collect(),
            lost: 0,
            sent: 0,
            too_long: None,
        })
    }

    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.planes.iter().map(|plane| plane.socket.as_fd())
    }

    /// Puts a datagram into a packet for a host; `plane` is where it goes if the train is full.
    pub(crate) fn push(&mut self, to: u16, datagram: &[u8], sealer: &mut Sealer, plane: usize) {
        let train = &mut self.trains[usize::from(to) - 1];
        if train.open && Sealer::push(&mut train.bytes, train.start, datagram) {
            return;
        }
        if train.open {
            sealer.seal(&mut train.bytes, train.start, true);
            train.open = false;
            if train.bytes.len() >= TRAIN_MAX * PACKET_MAX {
                self.depart(to, plane);
            }
        }
        self.begin(to, sealer, false);
        let train = &mut self.trains[usize::from(to) - 1];
        let fits = Sealer::push(&mut train.bytes, train.start, datagram);
        debug_assert!(fits, "an empty packet has room for a datagram");
    }

    /// Begins a packet for a host, if there is none: it says who sends it, if nothing else, and may ask for one.
    pub(crate) fn begin(&mut self, to: u16, sealer: &mut Sealer, asks: bool) {
        let train = &mut self.trains[usize::from(to) - 1];
        if !train.open {
            train.start = train.bytes.len();
            train.open = true;
            sealer.begin(&mut train.bytes, asks);
        }
    }

    /// Sends what there is for a host.
    pub(crate) fn flush(&mut self, to: u16, sealer: &Sealer, plane: usize) {
        let train = &mut self.trains[usize::from(to) - 1];
        if std::mem::take(&mut train.open) {
            sealer.seal(&mut train.bytes, train.start, false);
        }
        if !train.bytes.is_empty() {
            self.depart(to, plane);
        }
    }

    fn depart(&mut self, to: u16, plane: usize) {
        let train = &mut self.trains[usize::from(to) - 1];
        let plane = self.planes.get(plane).or(self.planes.first());
        let destination = plane.and_then(|plane| Some((plane, (*plane.others.get(usize::from(to) - 1)?)?)));
        if let Some((plane, destination)) = destination {
            let most = plane.state.max_gso_segments().max(1) * PACKET_MAX;
            for contents in train.bytes.chunks(most) {
                let segment_size = (contents.len() > PACKET_MAX).then_some(PACKET_MAX);
                let transmit = Transmit { destination, ecn: None, contents, segment_size, src_ip: None };
                self.sent += 1;
                if let Err(why) = plane.state.try_send((&plane.socket).into(), &transmit) {
                    // A full queue, a host that is gone: as lost on the way.
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

    /// Hands on what has come, up to a bound; what is beyond is found at the next turn.
    pub(crate) fn receive(&mut self, mut each: impl FnMut(&mut [u8])) {
        let mut meta = [RecvMeta::default(); BUFFERS];
        for plane in &self.planes {
            for _ in 0..CALLS_PER_TURN {
                let mut places = self.buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer));
                let mut slices: [IoSliceMut<'_>; BUFFERS] = std::array::from_fn(|_| places.next().expect("as many"));
                // Nothing there, or the answer to a packet that reached nobody.
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
