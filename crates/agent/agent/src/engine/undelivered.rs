// SPDX-License-Identifier: Apache-2.0
//! Ends that found a client's ring full: of hosts, and of processes where no kernel program remembers them.

use fide_types::{ClientSet, ProcessRef};

use super::watches::PerSubject;

/// The clients to which the end of a subject is still to be delivered.
#[derive(Debug)]
pub(super) struct Undelivered {
    clients: PerSubject,
    any: bool,
    /// The kernel programs' count of undelivered records at the end of the last complete retry.
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

    /// Takes out the clients that wait for this end.
    pub(super) fn take(&mut self, subject: ProcessRef) -> ClientSet {
        std::mem::take(self.clients.get_mut(subject))
    }

    /// A client's session is over.
    pub(super) fn forget(&mut self, client: u8) {
        if self.any {
            self.clients.forget(client);
        }
    }

    /// Whether there may be anything to deliver: remembered here, or by the kernel's programs, which count
    /// what they could not deliver.
    pub(super) fn begin_retry(&mut self, kernel_count: u64) -> bool {
        std::mem::take(&mut self.any) || kernel_count != self.kernel_seen
    }

    /// Some subjects were not retried: the next retry goes on.
    pub(super) fn stop_early(&mut self) {
        self.any = true;
    }

    /// Everything that could be delivered was.
    pub(super) fn end_retry(&mut self, kernel_count: u64) {
        self.kernel_seen = kernel_count;
    }
}
