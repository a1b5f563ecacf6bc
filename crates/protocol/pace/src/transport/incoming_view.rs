// SPDX-License-Identifier: Apache-2.0
//! What a receiver may want to know: the way from the other end to here, and that end's clock.

use super::{Transport, View, clock_us, pace::mean_way};
use crate::{
    clock::Offset,
    step::{Paces, Step},
};

impl Transport {
    /// The paces of the direction from there to here: send, transmit and network as the other end tells them, receive and deliver
    /// as this one measures them. The rate of the network in bytes is known to the other end alone.
    #[must_use]
    pub fn incoming_view(&self, now_ns: u64) -> View {
        let own_ns = self.own.of(now_ns);
        let (here, there) = (self.own_paces(own_ns), self.peer_paces.paces_ns);
        let mut paces = Paces::default();
        for (at, step) in Step::ALL.into_iter().enumerate() {
            let end = if step <= Step::Network { there } else { here };
            paces.set(step, end[at]);
        }
        let on_the_way_ns = self.one_way_here_us.map_or(self.trips.smoothed_us() * 500, |us| us * 1000);
        let waiting = u16::try_from(self.receiver.waiting()).unwrap_or(u16::MAX);
        // As in the other direction.
        let here_ns = paces.get(Step::Receive).max(paces.get(Step::Deliver));
        View {
            paces,
            bottleneck: paces.bottleneck(),
            network_bytes_per_s: None,
            delay_ns: on_the_way_ns.saturating_add(here_ns.saturating_mul(waiting.into())),
            waiting_there: waiting,
            total_ns: self.deliver_total_ns(),
            one_way_ns: self.one_way_here_us.map(|us| us * 1000),
            ..self.view(now_ns)
        }
    }

    /// By how much the other end's clock is ahead, in microseconds, and how sure that is. Only the lowest 32 bits of a time cross
    /// the network: this is a number of as many, from which multiples of 2^32 are missing. None before the first exchange of times.
    #[must_use]
    pub fn peer_clock(&self, now_ns: u64) -> Option<Offset> {
        let offset = self.trips.offset(clock_us(self.own.of(now_ns)))?;
        #[allow(clippy::cast_possible_truncation, reason = "the rest is not known")]
        let lowest = offset.us as i32;
        Some(Offset { us: lowest.into(), ..offset })
    }

    pub(super) fn send_total_ns(&self, now_ns: u64) -> Option<u64> {
        Some(self.send.slowest(self.own.of(now_ns)).total_ns).filter(|ns| *ns > 0)
    }

    pub(super) fn deliver_total_ns(&self) -> Option<u64> {
        Some(self.deliver.mean().total_ns).filter(|ns| *ns > 0)
    }

    /// The newest packet of the other end has come, which left at `sent_us` by that end's clock.
    pub(super) fn note_way_here(&mut self, now_ns: u64, sent_us: u64) {
        let Some(offset) = self.trips.offset(clock_us(now_ns)) else { return };
        let came_us = clock_us(self.came_ns).wrapping_add_signed(offset.us);
        self.one_way_here_us =
            Some(mean_way(self.one_way_here_us, came_us.saturating_sub(sent_us).min(self.trips.latest_us())));
    }
}
