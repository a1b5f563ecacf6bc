// SPDX-License-Identifier: Apache-2.0
//! Handing the loop's state to another agent without a missed beat.
//!
//! While the new agent reads the state, this one repeats its last heartbeat under new sequence numbers. The
//! heartbeat's acknowledgements and promises stay true, and this agent takes in nothing that the new one
//! would not know. The new agent begins [`crate::frozen::REPEATS_MAX`] numbers further.

use fide_types::ProcessRef;

use super::{EVENTS_PER_TURN, Engine, process_slots, watches::Watches};
use crate::{
    clock::Now,
    command::Memory,
    frozen::{Frozen, WATCHES_MAX},
};

impl Engine {
    /// Writes the state down and begins to repeat.
    pub(super) fn freeze(&mut self, now: Now) -> Frozen {
        // Events that are pending are delivered first, so the new agent begins with none. The detector's
        // queue bounds the loop.
        while self.deliver_events(now, EVENTS_PER_TURN) {}
        self.give_up_undelivered();
        let (watches, next_watch) = self.watches.to_parts();
        let (owners, next_cookie) = self.owners.freeze();
        let (late, own_late_ns) = self.timing.freeze(self.facts.members);
        self.repeat.begin(self.detector.next_heartbeat_ns());
        Frozen {
            detector: self.detector.to_bytes(),
            watches,
            next_watch,
            owners,
            next_cookie,
            lost: self.sessions.lost(),
            started_ns: self.started_ns,
            formers: self.formers.freeze(),
            lanes: self.lanes.freeze(),
            clock: self.clock.clone(),
            gaps: self.gaps.freeze(self.facts.members),
            late,
            own_late_ns,
        }
    }

    /// The other agent did not take over: goes on.
    pub(super) fn thaw(&mut self) {
        if let Some(repeats) = self.repeat.end() {
            self.detector.skip_heartbeats(repeats + 1);
        }
    }

    /// Sends the kept heartbeat again under the next number, when it is due.
    pub(super) fn repeat_heartbeat(&mut self, now: Now) {
        if self.repeat.take_due(now.raw_ns, self.facts.heartbeat_ns).is_none() {
            return;
        }
        // A host that was excluded or put back sends nothing: its last heartbeat is not true any more.
        if self.detector.is_excluded() {
            return;
        }
        let Some(payload) = self.repeat.next() else { return };
        self.ports.send(payload, &self.keys.current, &mut self.counters);
        self.publish_lease(now);
        self.table.tick(now.mono_ns);
    }

    /// Goes on where `frozen` stopped, with the clients' memory. Call it before [`Engine::run`].
    pub fn resume(&mut self, now: Now, frozen: Frozen, memories: Vec<(u8, Box<Memory>)>) {
        self.watches = Watches::from_parts(frozen.watches, frozen.next_watch);
        self.owners.resume(frozen.owners, frozen.next_cookie);
        self.started_ns = frozen.started_ns;
        self.formers.resume(frozen.formers.into_iter().take(WATCHES_MAX));
        self.lanes.resume(frozen.lanes);
        self.clock = frozen.clock;
        self.gaps.resume(frozen.gaps);
        self.timing.resume(now.raw_ns, frozen.late, frozen.own_late_ns);
        for (client, memory) in memories {
            let lost = frozen.lost.get(usize::from(client)).copied().unwrap_or(0);
            // No session was open in that place.
            let _ = self.add_session(client, memory, lost);
        }
        self.reassign_watches();
    }

    /// Recomputes which clients watch which subject, from the watches and the detector's processes.
    fn reassign_watches(&mut self) {
        for host in self.facts.hosts() {
            self.watches.assign(ProcessRef::of_host(host), None);
            for slot in process_slots() {
                if let Some(process) = self.detector.process(host, slot) {
                    self.watches.assign(ProcessRef::new(host, slot), Some(process.name));
                }
            }
        }
    }
}
