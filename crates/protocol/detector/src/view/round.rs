// SPDX-License-Identifier: Apache-2.0
//! How a view is decided: what this host accepts, what it proposes and when, and whether a proposal is
//! decided.

use fide_types::{
    HostId, HostSet, MAX_HOSTS,
    planted::{self, Planted},
};
use fide_wire::{Membership, Proposal, ViewId};

use super::{BACKOFF_HEARTBEATS, Env, Outcome, Proposer, RETRY_HEARTBEATS, ViewConsensus, founding_id};

/// A ballot is a round, and in the lowest byte the id of its proposer.
const ROUND_SHIFT: u32 = 8;
/// Rounds of one decision; after the last one no ballot begins.
const ROUNDS_MAX: u32 = 1 << 24;

/// The host that began `ballot`.
fn proposer_of(ballot: u32) -> u16 {
    (ballot & 0xff) as u16
}

impl ViewConsensus {
    /// Promises, and if the rules allow accepts, the proposal with the highest ballot.
    pub(super) fn accept(&mut self, env: &Env) {
        let own = self.proposer.map(|p| Proposal { ballot: p.ballot, value: p.value });
        let best = self.electors().filter_map(|(_, repr)| repr.proposal).chain(own).max_by_key(|p| p.ballot);
        let Some(best) = best.filter(|best| best.ballot >= self.promised) else {
            self.condemned = HostSet::EMPTY;
            return;
        };
        self.promised = best.ballot;
        // Until the value is known the condemned stay the same: their promises keep running out meanwhile.
        let Some(value) = best.value else { return };
        self.condemned = HostSet::EMPTY;
        if self.accepted.is_some_and(|(ballot, _)| ballot == best.ballot) {
            return;
        }
        let idle = env.leaving || env.idle || planted::is(Planted::AcceptsWithoutItself);
        let may_be_dropped = idle && !self.id.is_none();
        if !value.contains(self.me, self.incarnation) && !may_be_dropped {
            return;
        }
        let mut dropped: HostSet =
            self.members.iter().filter(|(id, inc)| !value.contains(*id, *inc)).map(|(id, _)| id).collect();
        dropped.remove(self.me);
        // Not acknowledged from now on, so the promises to them run out.
        self.condemned = dropped;
        // A first view is accepted only once the disk holds its generation; each step asks again.
        let stored = !self.id.is_none() || self.has_stored(founding_id(&value).generation);
        let promises_over = dropped.minus(env.free).minus(env.left).is_empty();
        if stored && promises_over && value.len() >= self.smallest_next_view() {
            self.accepted = Some((best.ballot, value));
            self.binds_us = env.binds_us;
        }
    }

    /// Is `id` missing from the value accepted last, as far as this host knows? Then it cannot finish a
    /// ballot: only a member of that value can.
    fn is_dropped_by_accepted(&self, id: HostId, env: &Env) -> bool {
        let incarnation = env.incarnations.get(id);
        let accepted = self.electors().filter_map(|(_, repr)| repr.accepted).chain(self.accepted);
        let last = accepted.max_by_key(|(ballot, _)| *ballot);
        last.is_some_and(|(_, value)| !incarnation.is_some_and(|incarnation| value.contains(id, incarnation)))
    }

    /// Can `id` finish a ballot that it has begun?
    fn can_finish(&self, id: HostId, env: &Env) -> bool {
        env.incarnations.get(id).is_some_and(|incarnation| {
            env.heard.contains(id) && (self.id.is_none() || self.members.contains(id, incarnation))
        })
    }

    /// Begins a ballot when one is due, and gives it a value once a quorum has promised.
    pub(super) fn propose(&mut self, env: &Env) {
        let highest = self.note_highest_ballot(env);
        self.abandon_ballot(highest, env);
        let desired = self.desired(env);
        let wants = if self.id.is_none() { desired.len() >= self.quorum() } else { desired != self.members };
        if highest == 0 && !wants {
            self.wanted_since_ns = None;
            self.proposer = None;
            return;
        }
        self.begin_ballot(highest, wants, env);
        self.choose_value(desired, env);
    }

    fn note_highest_ballot(&mut self, env: &Env) -> u32 {
        let ballots = self.electors().flat_map(|(_, repr)| {
            let promised = repr.acceptor.map_or(0, |(ballot, _)| ballot);
            [promised, repr.proposal.as_ref().map_or(0, |p| p.ballot)]
        });
        let highest = ballots.max().unwrap_or(0).max(self.promised);
        if highest != self.highest.ballot {
            self.highest.ballot = highest;
            self.highest.since_ns = env.now_ns;
        }
        highest
    }

    /// How long a ballot may take before its proposer tries a higher one. It differs by host, so that two
    /// proposers do not keep step.
    fn retry_ns(&self, env: &Env) -> u64 {
        (RETRY_HEARTBEATS + 3 * u64::from(self.me)) * env.heartbeat_ns
    }

    /// Gives up this host's ballot if it took too long or there is a higher one.
    fn abandon_ballot(&mut self, highest: u32, env: &Env) {
        let Some(proposer) = self.proposer else { return };
        let retry_ns = self.retry_ns(env);
        // Acceptors wait for their promises to run out, and start over with each ballot.
        let patience_ns = retry_ns + if proposer.value.is_some() { env.timeout_ns } else { 0 };
        if highest <= proposer.ballot && env.now_ns < proposer.since_ns.saturating_add(patience_ns) {
            return;
        }
        self.proposer = None;
        // A proposer that the accepted value drops cannot finish, and gives up by itself.
        let contended = highest > proposer.ballot && !self.is_dropped_by_accepted(proposer_of(highest), env);
        self.wait_until_ns = env.now_ns.saturating_add(if contended { retry_ns } else { 0 });
    }

    /// Phase 1, after the back-off: asks for promises to a ballot above all others.
    fn begin_ballot(&mut self, highest: u32, wants: bool, env: &Env) {
        let wanted_since_ns = *self.wanted_since_ns.get_or_insert(env.now_ns);
        if self.proposer.is_some() || env.leaving {
            return;
        }
        let rank = self.electors().filter(|(id, _)| *id < self.me && env.heard.contains(*id)).count() as u64;
        let backoff_ns = rank * BACKOFF_HEARTBEATS * env.heartbeat_ns;
        // Another host's ballot may take as long as promises do to run out. A host that itself wants a new
        // view does not wait for a proposer that is gone.
        let owner = proposer_of(highest);
        let foreign = highest > 0 && owner != self.me && !self.is_dropped_by_accepted(owner, env);
        let running = foreign && (!wants || self.can_finish(owner, env));
        let patience_ns = if running { 2 * env.timeout_ns + self.retry_ns(env) } else { 0 };
        let due_ns = wanted_since_ns.saturating_add(backoff_ns);
        let due_ns = due_ns.max(self.highest.since_ns.saturating_add(patience_ns)).max(self.wait_until_ns);
        if env.now_ns < due_ns {
            return;
        }
        let next_round = (highest >> ROUND_SHIFT).checked_add(1).filter(|round| *round < ROUNDS_MAX);
        let Some(round) = next_round else { return };
        let ballot = round << ROUND_SHIFT | u32::from(self.me);
        self.proposer = Some(Proposer { ballot, value: None, promisers: HostSet::EMPTY, since_ns: env.now_ns });
        self.promised = ballot;
    }

    /// Phase 2, once a quorum has promised: proposes the value that one of them accepted with the highest
    /// ballot, else `desired`.
    fn choose_value(&mut self, desired: Membership, env: &Env) {
        let Some(mut proposer) = self.proposer.filter(|proposer| proposer.value.is_none()) else { return };
        let promised = self.electors().filter(|(id, repr)| {
            let to_this_ballot = repr.acceptor.is_some_and(|(ballot, _)| ballot == proposer.ballot);
            to_this_ballot && (!self.id.is_none() || env.heard.contains(*id))
        });
        let promisers = promised.map(|(id, _)| id).collect::<HostSet>().union(HostSet::only(self.me));
        if promisers.len() < self.quorum() {
            return;
        }
        let accepted = self.electors().filter(|(id, _)| promisers.contains(*id)).filter_map(|(_, repr)| repr.accepted);
        let accepted = accepted.chain(self.accepted).max_by_key(|(ballot, _)| *ballot);
        let value = accepted.map_or(desired, |(_, value)| value);
        if !value.contains(self.me, self.incarnation) || value.len() < self.smallest_next_view() {
            // One of its members has to finish it; or this host hears fewer voters than when it began the
            // ballot.
            self.proposer = None;
            self.wait_until_ns = env.now_ns.saturating_add(2 * self.retry_ns(env));
            return;
        }
        (proposer.value, proposer.promisers, proposer.since_ns) = (Some(value), promisers, env.now_ns);
        self.proposer = Some(proposer);
        self.accept(env);
    }

    /// Installs the proposed view if a quorum has accepted it.
    pub(super) fn decide(&mut self, env: &Env) -> Outcome {
        let Some(Proposer { ballot, value: Some(value), promisers, .. }) = self.proposer else {
            return Outcome::Nothing;
        };
        let own = self.accepted.filter(|(accepted, _)| *accepted == ballot).map(|_| self.binds_us);
        let others =
            self.electors().filter(|(_, r)| r.accepted.as_ref().is_some_and(|(accepted, _)| *accepted == ballot));
        let mut binds_us = [0; MAX_HOSTS];
        let mut votes = 0;
        for bind_us in others.map(|(_, repr)| repr.binds_us).chain(own) {
            binds_us[votes] = bind_us;
            votes += 1;
        }
        if votes < self.quorum() {
            return Outcome::Nothing;
        }
        // Of all majorities that have accepted the value, take the one that is bound for the shortest time.
        let (_, wait_us, _) = binds_us[..votes].select_nth_unstable(self.quorum() - 1);
        let wait_us = *wait_us;
        if !self.id.is_none() {
            let id = ViewId { generation: self.id.generation, number: self.id.number + 1 };
            return self.install(id, value, wait_us);
        }
        // A promiser that has restarted since has forgotten its promise.
        if !promisers.minus(HostSet::only(self.me)).minus(env.heard).is_empty() {
            return Outcome::Nothing;
        }
        self.install(founding_id(&value), value, wait_us)
    }
}
