// SPDX-License-Identifier: Apache-2.0
//! A copy of a member's process, as a snapshot of its machine has it.

use super::{super::session::Copies, Protocol, Seat};

impl<P: Protocol> Seat<P> {
    pub(in super::super) fn copy(&self, copies: &mut Copies) -> Self {
        Self {
            pid: copies.pid(self.pid),
            core: self.core.clone(),
            client: self.client.copy(copies),
            sender: self.sender,
            held: self.held,
            first: self.first,
            opened: self.opened,
            inbox: self.inbox.clone(),
            outbox: self.outbox.clone(),
            state: self.state,
            durable: self.durable.clone(),
            waited: self.waited,
            is_copy: true,
            paused_until_ns: self.paused_until_ns,
            turn_ns: self.turn_ns,
            ends_ns: self.ends_ns,
            rejoined: self.rejoined,
            again_ns: self.again_ns,
            delivered: self.delivered,
            alone: self.alone,
        }
    }
}
