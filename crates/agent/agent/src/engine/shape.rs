// SPDX-License-Identifier: Apache-2.0
//! Hosts that take the cluster for something else are not heard. That they are there, and in what they differ, they say in
//! packets of their own ([`fide_wire::shape`]), while somebody is not heard.

use fide_detector::PeerState;
use fide_wire::{AnnouncedShape, Key, SHAPE_LEN, verify};

use super::Engine;
use crate::clock::Now;

/// Between two tellings of this host's shape.
const PERIOD_NS: u64 = 1_000_000_000;

impl Engine {
    /// Says what this host takes the cluster to be, while a member is not up.
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

    /// What another host takes the cluster to be, from a socket: the tag is not checked yet.
    pub(super) fn shape_unchecked(&mut self, len: usize) {
        if verify(&self.datagram[..len], &self.plain).is_err() {
            self.counters.bad_tag += 1;
            return;
        }
        let told = AnnouncedShape::read(&self.datagram[..len]);
        self.shape_received(told);
    }

    /// Handed to the control thread, which compares and shows it. Of a member that is up it can only be a recording.
    pub(super) fn shape_received(&mut self, told: Option<AnnouncedShape>) {
        let Some(told) = told else {
            self.counters.malformed += 1;
            return;
        };
        let detector = &self.detector;
        let mine = told.name == self.facts.name && told.incarnation == detector.config().incarnation;
        let up = self.facts.hosts().any(|host| {
            let member = &detector.config().members[usize::from(host) - 1];
            member.name == told.name && detector.peer(host).is_some_and(|peer| peer.state == PeerState::Up)
        });
        if !mine && !up {
            self.exchange.tell_shape(told);
        }
    }
}
