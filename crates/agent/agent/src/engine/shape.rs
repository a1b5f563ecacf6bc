// SPDX-License-Identifier: Apache-2.0
//! Hosts that take the cluster for something else are not heard. That they are there, and in what they differ, they say in
//! packets of their own ([`fide_wire::shape`]), while somebody is not heard.

use fide_detector::PeerState;
use fide_sys::clock::raw_ns;
use fide_wire::{Key, SHAPE_LEN, Told, seal, verify};

use super::Engine;

/// Between two tellings of this host's shape.
const PERIOD_NS: u64 = 1_000_000_000;

impl Engine {
    /// Says what this host takes the cluster to be, while a member is not up.
    pub(super) fn say_shape(&mut self) {
        let now = raw_ns();
        if now < self.shape_next_ns {
            return;
        }
        self.shape_next_ns = now + PERIOD_NS;
        let detector = &self.parts.detector;
        let mut peers = (1..=self.parts.members).filter_map(|host| detector.peer(host));
        if detector.is_excluded() || peers.all(|peer| peer.state == PeerState::Up) {
            return;
        }
        let (name, incarnation) = (self.parts.name, detector.config().incarnation);
        let mut packet: [u8; SHAPE_LEN] = self.parts.shape.packet(self.parts.me, &name, incarnation);
        let key: Key = self.parts.plain.current;
        for (plane, sender) in (0u8..).zip(&mut self.parts.senders) {
            seal(&mut packet, plane, &key);
            self.counters.sends_failed += u64::from(sender.send(&packet).is_err());
        }
    }

    /// What another host takes the cluster to be, from a socket: the tag is not checked yet.
    pub(super) fn shape_unchecked(&mut self, len: usize) {
        if verify(&self.datagram[..len], &self.parts.plain).is_err() {
            self.counters.bad_tag += 1;
            return;
        }
        let told = Told::read(&self.datagram[..len]);
        self.shape_received(told);
    }

    /// Handed to the control thread, which compares and shows it. Of a member that is up it can only be a recording.
    pub(super) fn shape_received(&mut self, told: Option<Told>) {
        let Some(told) = told else {
            self.counters.malformed += 1;
            return;
        };
        let detector = &self.parts.detector;
        let mine = told.name == self.parts.name && told.incarnation == detector.config().incarnation;
        let up = (1..=self.parts.members).any(|host| {
            let member = &detector.config().members[usize::from(host) - 1];
            member.name == told.name && detector.peer(host).is_some_and(|peer| peer.state == PeerState::Up)
        });
        if !mine && !up {
            self.parts.exchange.tell_shape(told);
        }
    }
}
