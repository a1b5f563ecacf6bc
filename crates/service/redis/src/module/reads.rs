// SPDX-License-Identifier: Apache-2.0
//! Reads at a follower: which may be answered at once, and which wait for what.
//!
//! A read of the whole state waits until everything is applied that this server stores. A read of some keys waits for
//! the last position at which one of them may be written ([`crate::written`]), and for nothing if there is none. That
//! holds also while the server has applied a part of a unit: no unit that it has yet to apply as a whole writes these
//! keys.

use std::time::{Duration, Instant};

use fide_group::Standing;

use super::{
    COMMANDS,
    read::{Reads, WaitingRead},
    state::State,
};
use crate::{
    redis::{Args, Blocked, Text},
    written::hash_of,
};

/// Hashes of the keys on which alone a read depends.
pub(super) fn keys_of(args: Args<'_>) -> Option<Vec<u64>> {
    let keys = COMMANDS.with_borrow(|commands| commands.read_by(&args.to_bytes()))?;
    Some(keys.into_iter().map(hash_of).collect())
}

impl State {
    /// Whether any read may be answered at this moment.
    pub(super) fn may_read(&self) -> bool {
        self.member.may_be_decided().is_some_and(|need| need <= self.applied)
    }

    /// Whether a read of these keys may be answered at this moment.
    pub(super) fn may_read_keys(&mut self, keys: &[u64]) -> bool {
        let may = self.need_of(Some(keys)).is_some_and(|need| need <= self.applied);
        self.seen.reads_by_key += u64::from(may);
        may
    }

    /// The position that has to be applied before a read is answered that is asked now. None: it may not be answered.
    fn need_of(&mut self, keys: Option<&[u64]>) -> Option<u64> {
        let until = self.member.may_be_decided()?;
        let Some(keys) = keys.filter(|_| until > self.applied) else { return Some(until) };
        let changes = self.member.changes();
        if self.reads.walked != Some(changes) {
            self.reads.written.take_interest();
            self.reads.walked = self.walk().then_some(changes);
        }
        let last = self.reads.walked.map_or(until, |_| self.reads.written.last_of(keys));
        Some(last.min(until))
    }

    /// Looks at what is stored and was not delivered. Whether it is known.
    fn walk(&mut self) -> bool {
        let (view, applied) = (self.view_number(), self.applied);
        let Self { member, reads: Reads { written, .. }, .. } = self;
        written.begin_walk(member.position());
        COMMANDS.with_borrow(|commands| {
            let keys_of = |name: &[u8]| commands.written_by(name);
            let until = member.each_held(&mut |(position, round, value)| {
                written.visit((position, view, round), value, applied, &keys_of);
            });
            until.is_some()
        })
    }

    pub(super) fn wait_for(&mut self, client: Blocked, args: Vec<Text>, user: Vec<u8>, keys: Option<Vec<u64>>) {
        let (need, view) = (self.need_of(keys.as_deref()), self.view_number());
        self.seen.reads_waited += 1;
        self.reads.waiting.push_back(WaitingRead { client, args, user, keys, need, view, since: Instant::now() });
    }

    /// Reads that may be answered now. `is_whole`: the server has applied no part of a unit.
    pub(super) fn take_reads(&mut self, is_whole: bool) -> Vec<WaitingRead> {
        // What they waited for may have been a view without this member: then they are answered as late ones.
        if self.member.standing() != Standing::Member {
            return Vec::new();
        }
        let view = self.view_number();
        let is_all = self.has_applied_all();
        let is_whole = is_whole || is_all;
        let mut ready = Vec::new();
        for _ in 0..self.reads.waiting.len() {
            let Some(mut read) = self.reads.waiting.pop_front() else { break };
            if read.need.is_none() {
                (read.need, read.view) = (self.need_of(read.keys.as_deref()), view);
            }
            // A new view begins only with all that was decided before it.
            let is_applied = read.need.is_some_and(|need| need <= self.applied);
            let is_due = is_applied || read.need.is_some() && read.view != view && is_all;
            // Within a unit: where nothing that is to be applied writes the keys.
            let mut is_apart = || {
                read.keys
                    .as_deref()
                    .is_some_and(|keys| self.need_of(Some(keys)).is_some_and(|need| need <= self.applied))
            };
            if is_due && is_whole || !is_whole && is_apart() {
                ready.push(read);
            } else {
                self.reads.waiting.push_back(read);
            }
        }
        ready
    }

    /// Reads that wait for longer than this, or at a server that is no member: the leader may answer them.
    pub(super) fn take_late_reads(&mut self, limit: Duration) -> Vec<WaitingRead> {
        let mut late = Vec::new();
        let is_outside = self.mode.is_outside();
        while self.reads.waiting.front().is_some_and(|read| is_outside || read.since.elapsed() > limit) {
            late.extend(self.reads.waiting.pop_front());
        }
        late
    }
}
