// SPDX-License-Identifier: Apache-2.0
//! Deaths that found a client's ring full: of hosts, and of processes where no kernel's program keeps them.

use fide_wire::{HOST_SLOT, MAX_HOSTS, MAX_PROCESSES};

/// Who is still to be told of which end.
#[derive(Debug)]
pub(super) struct Owed {
    /// Bit c: client c. The last entry of a host is the host itself.
    clients: Box<[[u64; MAX_PROCESSES + 1]; MAX_HOSTS]>,
    any: bool,
}

impl Owed {
    pub(super) fn new() -> Self {
        Self { clients: Box::new([[0; MAX_PROCESSES + 1]; MAX_HOSTS]), any: false }
    }

    fn entry(&mut self, host: u16, slot: u8) -> &mut u64 {
        let slot = if slot == HOST_SLOT { MAX_PROCESSES } else { usize::from(slot) };
        &mut self.clients[usize::from(host) - 1][slot]
    }

    pub(super) fn add(&mut self, host: u16, slot: u8, clients: u64) {
        *self.entry(host, slot) |= clients;
        self.any |= clients != 0;
    }

    /// Who is owed this end; nobody is from then on.
    pub(super) fn take(&mut self, host: u16, slot: u8) -> u64 {
        std::mem::take(self.entry(host, slot))
    }

    /// A client's session is over.
    pub(super) fn forget(&mut self, client: u8) {
        if self.any {
            self.clients.as_flattened_mut().iter_mut().for_each(|clients| *clients &= !(1 << client));
        }
    }

    /// Not all was looked at.
    pub(super) fn may_be_more(&mut self) {
        self.any = true;
    }

    /// Whether anything may be owed since this was asked last.
    pub(super) fn take_any(&mut self) -> bool {
        std::mem::take(&mut self.any)
    }
}
