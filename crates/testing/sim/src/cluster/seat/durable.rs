// SPDX-License-Identifier: Apache-2.0
//! What a durable member's process knows of its disk: a model of `crates/agent/group/src/durable.rs`. Each sync
//! takes time, during which the process does nothing else.

use std::{collections::VecDeque, rc::Rc};

use fide_agreement::{
    Lease, Standing,
    group::{Entry, ToStore, entries},
};

use super::{
    super::{
        plan,
        state::State,
        store::{Decided, Record, Store},
    },
    AGAIN_NS, Protocol, Seat,
};

/// What the process waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Step {
    /// The sync of its first membership, before its record is stored.
    First,
    /// The sync of what was decided.
    Log,
    /// The user's state.
    Base,
}

#[derive(Debug, Clone)]
struct Replay {
    base: Option<State>,
    log: VecDeque<Rc<Decided>>,
}

#[derive(Debug, Clone)]
pub(in super::super) struct Durable {
    plan: plan::Durable,
    pub(in super::super) step: Option<Step>,
    /// Taken from the group, and not written.
    pub(in super::super) buffer: Vec<Record>,
    /// Up to which position the user has yet to be given what was on disk.
    unread: Option<u64>,
    /// The group was founded again from this disk, and the user has not been given everything.
    replay: Option<Replay>,
    /// The user has another state, after this position: the log has to be told.
    pub(in super::super) replaced: Option<u64>,
    /// A state that is to be stored.
    pub(in super::super) base: Option<State>,
    /// A state that the user is writing, and when it is done, on the host's clock.
    saving: Option<(State, u64)>,
    /// When something is to be stored again that found no room, on the host's clock; 0 for never.
    again_ns: u64,
}

impl Durable {
    /// `found`: the position of what is on disk.
    pub(super) fn new(plan: plan::Durable, found: Option<u64>) -> Self {
        Self {
            plan,
            step: None,
            buffer: Vec::new(),
            unread: found.filter(|position| *position > 0),
            replay: None,
            replaced: None,
            base: None,
            saving: None,
            again_ns: 0,
        }
    }

    pub(in super::super) fn is_replaying(&self) -> bool {
        self.unread.is_some()
    }

    /// There was no room.
    pub(in super::super) fn note_full(&mut self, now_ns: u64) {
        self.again_ns = now_ns + AGAIN_NS;
    }

    /// Whether the process waits before it tries to store something again.
    pub(in super::super) fn waits(&mut self, now_ns: u64) -> bool {
        if self.again_ns <= now_ns {
            self.again_ns = 0;
        }
        self.again_ns > 0
    }

    pub(super) fn due_ns(&self) -> u64 {
        if self.again_ns == 0 { u64::MAX } else { self.again_ns }
    }

    /// The user's state is that of others now.
    fn replaced(&mut self, position: u64) {
        (self.replay, self.unread, self.base, self.saving) = (None, None, None, None);
        self.replaced = Some(position);
    }
}

impl<P: Protocol> Seat<P> {
    /// The process waits for its disk.
    pub(in super::super) fn is_storing(&self) -> bool {
        self.durable.as_ref().is_some_and(|durable| durable.step.is_some())
    }

    /// The user has yet to be given what was on disk.
    pub(in super::super) fn is_replaying(&self) -> bool {
        self.durable.as_ref().is_some_and(Durable::is_replaying)
    }

    /// Takes what is to be stored. Whether there is anything.
    pub(in super::super) fn take(&mut self, lease: Lease, store: &Store) -> bool {
        let Self { core, durable: Some(durable), .. } = self else { return false };
        // The log of another state has to begin first.
        if durable.replaced.is_some() {
            return true;
        }
        while let Some(what) = core.group.poll_store(lease) {
            let (position, value) = match what {
                ToStore::Member { incarnation, ballot, view, start } => {
                    durable.buffer.push(Record::member(incarnation, ballot, view, start));
                    continue;
                }
                ToStore::Decision { position, value } => (position, value.to_vec()),
            };
            let named = entries(&value).filter_map(|entry| match entry {
                Entry::Payload(identity) => Some((identity, core.group.payload(&identity)?.to_vec())),
                _ => None,
            });
            let payloads = named.collect();
            durable.buffer.push(Record::decision(Decided { position, value, payloads }));
        }
        !durable.buffer.is_empty() || store.is_unsynced() || durable.base.is_some()
    }

    /// Begins to give the user what is on disk, once the group goes on from it. True if it begins.
    pub(in super::super) fn begin_replay(&mut self, store: &Store) -> bool {
        let standing = self.standing();
        let Some(durable) = &mut self.durable else { return false };
        let Some(until) = durable.unread.filter(|_| durable.replay.is_none() && standing == Standing::Member) else {
            return false;
        };
        let (base, log) = store.read(until);
        durable.replay = Some(Replay { base: Some(base).filter(|base| base.position > 0), log: log.into() });
        true
    }

    /// The stored state, once.
    pub(in super::super) fn take_base(&mut self) -> Option<State> {
        self.durable.as_mut()?.replay.as_mut()?.base.take()
    }

    /// The next decision on disk. After the last one the user's state is the group's.
    pub(in super::super) fn next_on_disk(&mut self) -> Option<Rc<Decided>> {
        let durable = self.durable.as_mut()?;
        let replay = durable.replay.as_mut().filter(|replay| replay.base.is_none())?;
        let next = replay.log.pop_front();
        if next.is_none() {
            (durable.replay, durable.unread) = (None, None);
        }
        next
    }

    /// The user has put the state of another member in place of its own. `at_once`: that one is stored, and
    /// not a later one.
    pub(in super::super) fn state_replaced(&mut self, at_once: bool) {
        let state = self.state;
        if let Some(durable) = &mut self.durable {
            durable.replaced(state.position);
            durable.base = at_once.then_some(state);
        }
    }

    /// The user stores its state from time to time, in a time of its own, which `draw` tells.
    pub(in super::super) fn save(&mut self, now_ns: u64, store: &Store, draw: impl FnOnce(u64) -> u64) {
        let (lacks, state, standing) = (self.core.group.lacks_base(), self.state, self.standing());
        let Some(durable) = &mut self.durable else { return };
        if let Some((saved, _)) = durable.saving.take_if(|(_, ready_ns)| *ready_ns <= now_ns) {
            durable.base = Some(saved);
        }
        let is_due = lacks || store.since_base() > durable.plan.compact;
        let is_free = durable.base.is_none() && durable.saving.is_none() && durable.replaced.is_none();
        if is_due && is_free && !durable.is_replaying() && standing == Standing::Member {
            durable.saving = Some((state, now_ns + draw(durable.plan.save_ns)));
        }
    }
}
