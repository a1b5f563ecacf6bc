// SPDX-License-Identifier: Apache-2.0
//! The loop's outlets: the planes' senders, the kernel's programs, and the set of descriptors that it waits
//! for.

use std::io;
use std::os::fd::AsFd;

use fide_bpf::Receive;
use fide_net::link::{Polled, Receiver, Sender};
use fide_net::pace::{Mode, Waiter};
use fide_shm::bpf_ring::BpfRing;
use fide_wire::{Key, seal};

use crate::{command::Memory, snapshot::EngineCounters};

pub(super) const TOKEN_COMMAND: u64 = 0;
pub(super) const TOKEN_RING: u64 = 1;
pub(super) const TOKEN_SOCKET: u64 = 2;
/// Token of the first client's doorbell; the others follow.
pub(super) const TOKEN_DOORBELL: u64 = 64;

/// The loop's side of the BPF programs.
pub struct Kernel {
    pub receive: Receive,
    pub ring: BpfRing,
    /// Whether heartbeats come through the receive program.
    pub xdp: bool,
}

/// All that the loop reads from and writes to, except memory shared with clients.
pub(super) struct Ports {
    /// One for each plane.
    pub(super) senders: Vec<Sender>,
    /// Per plane; `None` where the receive program takes the packets.
    pub(super) receivers: Vec<Option<Receiver>>,
    /// Planes of memory, which follow those.
    pub(super) polled: Vec<Box<dyn Polled>>,
    pub(super) kernel: Option<Kernel>,
    pub(super) waiter: Waiter,
}

impl Ports {
    /// # Errors
    /// The kernel's, if it has no epoll descriptor left.
    pub(super) fn new(
        mode: Mode,
        senders: Vec<Sender>,
        receivers: Vec<Option<Receiver>>,
        polled: Vec<Box<dyn Polled>>,
        kernel: Option<Kernel>,
    ) -> io::Result<Self> {
        let waiter = Waiter::new(mode)?;
        if let Some(kernel) = &kernel {
            waiter.add(kernel.receive.wake_fd(), TOKEN_RING)?;
        }
        for receiver in receivers.iter().flatten() {
            waiter.add(receiver.as_fd(), TOKEN_SOCKET)?;
        }
        Ok(Self { senders, receivers, polled, kernel, waiter })
    }

    /// Seals a packet for each plane and sends it there.
    pub(super) fn send(&mut self, packet: &mut [u8], key: &Key, counters: &mut EngineCounters) {
        for (plane, sender) in (0u8..).zip(&mut self.senders) {
            seal(packet, plane, key);
            if sender.send(packet).is_err() {
                counters.sends_failed += 1;
            }
        }
        let first = self.polled_plane(0);
        for (plane, polled) in (first..).zip(&mut self.polled) {
            seal(packet, plane, key);
            if polled.send(packet).is_err() {
                counters.sends_failed += 1;
            }
        }
    }

    /// The number of a plane of memory.
    pub(super) fn polled_plane(&self, index: usize) -> u8 {
        u8::try_from(self.receivers.len() + index).expect("two planes")
    }

    /// Waits for a client's doorbell too. If that fails, the client's messages wait for the next heartbeat.
    pub(super) fn hear(&self, client: u8, memory: &Memory) {
        let _ = self.waiter.add_edge(memory.doorbell.as_fd(), TOKEN_DOORBELL + u64::from(client));
    }

    /// Stops waiting for a client's doorbell.
    pub(super) fn mute(&self, memory: &Memory) {
        let _ = self.waiter.remove(memory.doorbell.as_fd());
    }
}
