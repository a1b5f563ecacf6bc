// SPDX-License-Identifier: Apache-2.0
//! Hosts that take the cluster to be something else ([`fide_wire::Shape`]) do not hear each other. While some
//! member is not up, each host sends its shape in packets of their own ([`fide_wire::shape`]), so that the
//! others can show that it is there, and in what it differs.

use fide_detector::PeerState;
use fide_types::host_index;
use fide_wire::{AnnouncedShape, Key, SHAPE_LEN, verify};

use super::Engine;
use crate::clock::Now;

/// Between two packets with this host's shape.
const PERIOD_NS: u64 = 1_000_000_000;

impl Engine {
    /// Sends this host's shape while a member is not up.
    pub(super) fn say_shape(&mut self, now: Now) {
        if now.raw_ns < self.shape_next_ns {
            return;
        }
        self.shape_next_ns = now.raw_ns + PERIOD_NS;
        let detector = &self.detector;
        let mut peers = self.facts.hosts().filter_map(|host| detector.peer(host));
        if detector.is_excluded() || peers.all(|peer| peer.state == PeerState::Up) {
            return;
        }
        let incarnation = detector.config().incarnation;
        let mut packet: [u8; SHAPE_LEN] = self.facts.shape.packet(self.facts.me, &self.facts.name, incarnation);
        let key: Key = self.plain.current;
        self.ports.send(&mut packet, &key, &mut self.counters);
    }

    /// Another host's shape came through a socket: its tag is not checked yet.
    pub(super) fn shape_unchecked(&mut self, len: usize) {
        if verify(&self.datagram[..len], &self.plain).is_err() {
            self.counters.bad_tag += 1;
            return;
        }
        self.shape_received(AnnouncedShape::read(&self.datagram[..len]));
    }

    /// Passes another host's shape to the control thread, which compares and shows it. If that host is up,
    /// the packet can only be a recording.
    pub(super) fn shape_received(&mut self, shape: Option<AnnouncedShape>) {
        let Some(shape) = shape else {
            self.counters.malformed += 1;
            return;
        };
        let detector = &self.detector;
        let mine = shape.name == self.facts.name && shape.incarnation == detector.config().incarnation;
        let up = self.facts.hosts().any(|host| {
            let member = &detector.config().members[host_index(host)];
            member.name == shape.name && detector.peer(host).is_some_and(|peer| peer.state == PeerState::Up)
        });
        if !mine && !up {
            self.exchange.pass_shape(shape);
        }
    }
}
