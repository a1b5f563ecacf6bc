// SPDX-License-Identifier: Apache-2.0
//! Ends that found a client's ring full: of hosts, and of processes where no kernel program keeps them.

use fide_types::{ClientSet, ProcessRef};

use super::watches::PerSubject;

/// The clients to which the end of a subject is still to be delivered.
#[derive(Debug)]
pub(super) struct Undelivered {
    clients: PerSubject,
    any: bool,
    /// How many records the kernel's programs had not delivered when all were looked at last.
    kernel_seen: u64,
}

impl Undelivered {
    pub(super) fn new() -> Self {
        Self { clients: PerSubject::new(), any: false, kernel_seen: 0 }
    }

    pub(super) fn add(&mut self, subject: ProcessRef, clients: ClientSet) {
        let waiting = self.clients.get_mut(subject);
        *waiting = waiting.union(clients);
        self.any |= !clients.is_empty();
    }

    /// The clients that wait for this end; none do from then on.
    pub(super) fn take(&mut self, subject: ProcessRef) -> ClientSet {
        std::mem::take(self.clients.get_mut(subject))
    }

    /// A client's session is over.
    pub(super) fn forget(&mut self, client: u8) {
        if self.any {
            self.clients.forget(client);
        }
    }

    /// Whether there may be anything to deliver: kept here, or by the kernel's programs, which count what they could not deliver.
    pub(super) fn begin_retry(&mut self, kernel_count: u64) -> bool {
        std::mem::take(&mut self.any) || kernel_count != self.kernel_seen
    }

    /// Not all subjects were looked at: the next retry goes on.
    pub(super) fn stop_early(&mut self) {
        self.any = true;
    }

    /// All that could be delivered was.
    pub(super) fn end_retry(&mut self, kernel_count: u64) {
        self.kernel_seen = kernel_count;
    }
}
