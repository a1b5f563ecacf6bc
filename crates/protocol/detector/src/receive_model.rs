// SPDX-License-Identifier: Apache-2.0
//! What the kernel's receive program does with packets that bear the right tag (`receive_heartbeat` in
//! `crates/platform/bpf/src/c/heartbeat.bpf.c`), for worlds that simulate hosts. It keeps the newest
//! heartbeat of each peer and plane in a slot, and gives the agent only packets that hold more than a steady
//! heartbeat.

use fide_types::{HostId, HostSet, MAX_HOSTS, PerHost};
use fide_wire::{Body, Kind, Packet, ReplayWindow, Seen, ViewId};

use crate::types::Beat;

const PLANES: usize = 2;

/// What the program itself reads of a heartbeat: a steady view and a promise, in either order, before
/// anything else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Steady {
    view: Option<ViewId>,
    promise_us: u32,
    /// There is nothing else, so the agent does not get the packet.
    is_all: bool,
}

impl Steady {
    fn of(packet: &Packet<&[u8]>) -> Self {
        let mut steady = Self { is_all: true, ..Self::default() };
        for (at, body) in packet.bodies().enumerate() {
            match body {
                Body::View(view) if at < 2 && steady.is_all && view.is_steady() => {
                    steady.view = Some(view.id());
                }
                Body::Promise { timeout_us } if at < 2 && steady.is_all => steady.promise_us = timeout_us,
                _ => steady.is_all = false,
            }
        }
        steady
    }
}

#[derive(Debug, Clone, Default)]
struct Slot {
    incarnation: u32,
    window: ReplayWindow,
    received: [u64; PLANES],
    beats: [Option<Beat>; PLANES],
}

/// The slots of one agent. They end with it, so each agent begins with empty ones; an agent that takes over
/// from another goes on with that one's slots.
#[derive(Debug, Clone)]
pub struct ReceiveModel {
    me: HostId,
    slots: PerHost<Slot>,
    /// Hosts with heartbeats that may not have been read.
    unread: HostSet,
}

impl ReceiveModel {
    /// For the host with this id.
    #[must_use]
    pub fn new(me: HostId) -> Self {
        Self { me, slots: PerHost::new(MAX_HOSTS, |_| Slot::default()), unread: HostSet::EMPTY }
    }

    /// A packet has come. Returns whether the agent gets its sections ([`crate::Detector::handle_sections`]),
    /// for which its ring must have room: what it does not get counts as lost on the way.
    pub fn take(&mut self, rx_ns: u64, plane: u8, bytes: &[u8], has_room: bool) -> bool {
        let Ok(packet) = Packet::new(bytes) else { return false };
        let plane_at = usize::from(plane);
        let (Some(slot), true) = (self.slots.get_mut(packet.sender()), plane_at < PLANES) else { return false };
        if packet.kind() == Kind::Notice || packet.incarnation() < slot.incarnation {
            return has_room;
        }
        let steady = Steady::of(&packet);
        if !steady.is_all && !has_room {
            return false;
        }
        if packet.incarnation() > slot.incarnation {
            *slot = Slot { incarnation: packet.incarnation(), ..Slot::default() };
        }
        let ack = packet.ack(self.me).unwrap_or_default();
        slot.received[plane_at] += 1;
        self.unread.insert(packet.sender());
        if slot.beats[plane_at].is_none_or(|beat| packet.seq() > beat.seq) {
            slot.beats[plane_at] = Some(Beat {
                peer: packet.sender(),
                plane,
                incarnation: packet.incarnation(),
                seq: packet.seq(),
                rx_ns,
                received: slot.received[plane_at],
                ack_incarnation: ack.incarnation,
                ack_seq_low: ack.seq_low,
                promise_us: steady.promise_us,
                view: steady.view,
            });
        }
        slot.window.accept(packet.seq()) == Seen::Fresh && !steady.is_all
    }

    /// The newest heartbeat taken of that host: its incarnation and number, zeroes for none.
    #[must_use]
    pub fn newest(&self, host: HostId) -> (u32, u64) {
        self.slots.get(host).map_or((0, 0), |slot| (slot.incarnation, slot.window.highest()))
    }

    /// Heartbeats that were not read before ([`crate::Detector::handle_beat`]). To be read after the sections
    /// that came with them.
    pub fn beats(&mut self) -> impl Iterator<Item = Beat> + '_ {
        std::iter::from_fn(|| {
            while let Some(host) = self.unread.iter().next() {
                match self.slots[host].beats.iter_mut().find_map(Option::take) {
                    None => self.unread.remove(host),
                    beat => return beat,
                }
            }
            None
        })
    }
}
