// SPDX-License-Identifier: Apache-2.0
//! Handing the loop's state to another agent without a missed beat.
//!
//! While the new agent reads the state, this one repeats its last heartbeat under new sequence
//! numbers: what it acknowledges and promises stays true, and it takes in nothing that the new agent
//! would not know of. The new agent begins [`REPEATS_MAX`] numbers further.

use fide_detector::{Detector, SnapshotError};
use fide_sys::clock::{mono_ns, raw_ns};
use fide_wire::{PAYLOAD_MAX, Packet, seal, set_seq};
use serde::{Deserialize, Serialize};

use super::WATCHES_MAX;
use super::{
    Engine,
    lanes::FrozenLanes,
    sessions::Owner,
    watches::{Watch, Watches},
};
use crate::{clock::Clock, command::Memory, timeout::Network};

/// Heartbeats that are repeated at most; then this host falls silent, as if the agent had died.
pub(super) const REPEATS_MAX: u64 = 250;

/// Everything the loop knows, written down.
#[derive(Debug, Serialize, Deserialize)]
pub struct Frozen {
    detector: Vec<u8>,
    watches: Vec<Watch>,
    next_watch: u32,
    owners: Vec<Option<Owner>>,
    next_cookie: u64,
    lost: Vec<u64>,
    started_ns: u64,
    formers: Vec<super::former::Open>,
    lanes: FrozenLanes,
    clock: Clock,
    gaps: Vec<super::gaps::FrozenGaps>,
    /// By host: how much its heartbeats varied of late, and what the network was planned to add.
    late: Vec<(u64, Network)>,
    /// How late the loop was of late, ns.
    own_late_ns: u64,
}

/// The state of the agent before could not be taken on.
#[derive(Debug, thiserror::Error)]
#[error("the running agent's state cannot be taken on: {0}; restart instead of taking over")]
pub struct ResumeError(#[from] SnapshotError);

/// The last heartbeat, kept to be repeated.
#[derive(Debug)]
pub(super) struct Repeat {
    payload: Box<[u8; PAYLOAD_MAX]>,
    pub(super) len: usize,
    pub(super) next_ns: Option<u64>,
    pub(super) count: u64,
}

impl Repeat {
    pub(super) fn new() -> Self {
        Self { payload: Box::new([0; PAYLOAD_MAX]), len: 0, next_ns: None, count: 0 }
    }

    /// Keeps a heartbeat that is about to be sent.
    pub(super) fn keep(&mut self, payload: &[u8]) {
        self.payload[..payload.len()].copy_from_slice(payload);
        self.len = payload.len();
    }

    /// When to repeat it next; `None` unless frozen.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.next_ns
    }
}

impl Frozen {
    /// The detector, as far on as if all repeats had been sent.
    ///
    /// # Errors
    /// [`ResumeError`].
    pub fn detector(&self) -> Result<Detector, ResumeError> {
        let mut detector = Detector::from_bytes(&self.detector)?;
        detector.skip_heartbeats(REPEATS_MAX + 1);
        Ok(detector)
    }
}

impl Engine {
    /// Writes the state down and begins to repeat.
    pub(super) fn freeze(&mut self) -> Frozen {
        // What is known is told first: the new agent begins with nothing to tell. As many turns' worth as the detector can hold.
        while self.tell_events(super::EVENTS_PER_TURN) {}
        self.lose_what_is_owed();
        let (watches, next_watch) = self.watches.to_parts();
        self.repeat.next_ns = Some(self.parts.detector.next_heartbeat_ns());
        self.repeat.count = 0;
        Frozen {
            detector: self.parts.detector.to_bytes(),
            watches,
            next_watch,
            owners: self.owners.to_vec(),
            next_cookie: self.next_cookie,
            lost: self.sessions.iter().map(|session| session.as_ref().map_or(0, |session| session.lost)).collect(),
            started_ns: self.started_ns,
            formers: self.formers.open.clone(),
            lanes: self.lanes.freeze(),
            clock: self.parts.clock.clone(),
            gaps: self.freeze_gaps(),
            late: self
                .seen
                .iter()
                .take(self.parts.members.into())
                .map(|seen| (seen.jitter_max_ns(), seen.network))
                .collect(),
            own_late_ns: self.own.most_ns(),
        }
    }

    /// The other agent did not take over.
    pub(super) fn thaw(&mut self) {
        if self.repeat.next_ns.take().is_some() {
            self.parts.detector.skip_heartbeats(self.repeat.count + 1);
        }
    }

    /// Sends the kept heartbeat again under the next number, when it is due.
    pub(super) fn repeat_heartbeat(&mut self) {
        let Some(due) = self.repeat.next_ns.filter(|due| *due <= raw_ns()) else { return };
        self.repeat.next_ns = Some(due + self.parts.heartbeat_ns);
        // One that was excluded, or put back, has nothing to say: what it said last is true no more.
        if self.repeat.len == 0 || self.repeat.count >= REPEATS_MAX || self.parts.detector.is_excluded() {
            return;
        }
        self.repeat.count += 1;
        let payload = &mut self.repeat.payload[..self.repeat.len];
        let Ok(packet) = Packet::new(&payload) else { return };
        let seq = packet.seq() + 1;
        set_seq(payload, seq);
        for (plane, sender) in (0u8..).zip(&mut self.parts.senders) {
            seal(payload, plane, &self.parts.keys.current);
            self.counters.sends_failed += u64::from(sender.send(payload).is_err());
        }
        self.publish_lease();
        self.parts.table.tick(mono_ns());
    }

    /// Goes on where `frozen` stopped, with the clients' memory. To be called before [`Engine::run`].
    pub fn resume(&mut self, frozen: Frozen, memories: Vec<(u8, Box<Memory>)>) {
        self.watches = Watches::from_parts(frozen.watches, frozen.next_watch);
        for (mine, theirs) in self.owners.iter_mut().zip(frozen.owners) {
            *mine = theirs;
        }
        self.next_cookie = frozen.next_cookie;
        self.started_ns = frozen.started_ns;
        self.formers.open.extend(frozen.formers.into_iter().take(WATCHES_MAX));
        self.lanes.resume(frozen.lanes);
        self.parts.clock = frozen.clock;
        self.resume_gaps(frozen.gaps);
        // Its timeouts, and what it promised by them, do not fall at once.
        let now = raw_ns();
        for (seen, (jitter_ns, network)) in self.seen.iter_mut().zip(frozen.late) {
            seen.network = network;
            seen.spreads.iter_mut().for_each(|spread| spread.recall(now, jitter_ns));
        }
        self.own.record(now, frozen.own_late_ns);
        for (client, memory) in memories {
            let lost = frozen.lost.get(usize::from(client)).copied().unwrap_or(0);
            // There was none before.
            let _ = self.add_session(client, memory, lost);
        }
        self.reassign_watches();
    }

    /// Who waits for whom, from the watches and what the detector knows.
    fn reassign_watches(&mut self) {
        for host in 1..=self.parts.members {
            self.watches.assign(host, fide_wire::HOST_SLOT, None);
            for slot in 0..u8::try_from(fide_wire::MAX_PROCESSES).expect("64") {
                if let Some(process) = self.parts.detector.process(host, slot) {
                    self.watches.assign(host, slot, Some(process.name));
                }
            }
        }
    }
}
