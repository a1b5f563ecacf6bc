// SPDX-License-Identifier: Apache-2.0
//! Messages that clients leave in their memory for the next heartbeat.

use fide_types::PIGGYBACK_MAX;

use super::{Engine, PIGGYBACKS_PER_TURN};
use crate::clock::Now;

impl Engine {
    /// Takes the piggybacks that clients have left for the next heartbeat.
    pub(super) fn drain_outboxes(&mut self, now: Now) {
        for client in self.sessions.clients().iter() {
            self.drain_outbox(now, client);
        }
    }

    fn drain_outbox(&mut self, now: Now, client: u8) {
        if self.sessions.get(client).is_none_or(|session| session.memory.region.outbox_is_empty()) {
            return;
        }
        let mut buffer = [0; PIGGYBACK_MAX];
        // Messages for which the detector's queues have no room stay in the outbox, whose client then finds
        // it full.
        let room = self.owners.slots_of(client).map(|slot| self.detector.piggyback_capacity(slot)).min();
        for _ in 0..room.unwrap_or(PIGGYBACKS_PER_TURN).min(PIGGYBACKS_PER_TURN) {
            let Some(session) = self.sessions.get_mut(client) else { return };
            let (slot, bytes) = match session.memory.region.pop_outbox(&mut buffer) {
                Ok(Some(popped)) => popped,
                Ok(None) => return,
                Err(_) => {
                    self.counters.outbox_broken += 1;
                    return;
                }
            };
            let mine = self.owners.client_of(slot) == Some(client);
            match mine.then(|| self.detector.piggyback(slot, bytes)) {
                // Watchers on this host get it now, the others with the heartbeat.
                Some(Ok(pb_seq)) => self.deliver_own_piggyback(now, slot, pb_seq, bytes),
                Some(Err(_)) | None => self.counters.piggybacks_declined += 1,
            }
        }
    }
}
