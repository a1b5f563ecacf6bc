// SPDX-License-Identifier: Apache-2.0
//! A view's decision: what this host accepts, what it proposes and when, and whether that is decided.

use fide_types::HostSet;
use fide_types::planted::{self, Planted};
use fide_wire::{MAX_HOSTS, Proposal, ViewId};

use super::{Agreement, BACKOFF_HEARTBEATS, Env, Outcome, Proposer, RETRY_HEARTBEATS, founding_id};

impl Agreement {
    pub(super) fn accept(&mut self, env: &Env<'_>) {
        let own = self.proposer.map(|p| Proposal { ballot: p.ballot, value: p.value });
        let best = self.electors().filter_map(|(_, r)| r.proposal).chain(own).max_by_key(|p| p.ballot);
        let Some(best) = best.filter(|b| b.ballot >= self.promised) else {
            self.condemned = HostSet::EMPTY;
            return;
        };
        self.promised = best.ballot;
        // Condemned as before until it is known who is: promises run out all the while.
        let Some(value) = best.value else { return };
        self.condemned = HostSet::EMPTY;
        if self.accepted.is_some_and(|(ballot, _)| ballot == best.ballot) {
            return;
        }
        let gives_up = env.leaving || env.idle || planted::is(Planted::AcceptsWithoutItself);
        let may_give_up = !self.id.is_none() && gives_up;
        if !value.contains(self.me, self.incarnation) && !may_give_up {
            return;
        }
        let dropped: HostSet =
            self.members.iter().filter(|(id, inc)| !value.contains(*id, *inc)).map(|(id, _)| id).collect();
        let mut dropped = dropped;
        dropped.remove(self.me);
        // Not acknowledged from now on; the promise made to them runs out by itself.
        self.condemned = dropped;
        // A first view is accepted once the disk holds its generation: looked at again in each step.
        let kept = !self.id.is_none() || self.keeps(founding_id(&value).generation);
        if kept && dropped.minus(env.free).minus(env.left).is_empty() && value.len() >= self.least() {
            self.accepted = Some((best.ballot, value));
            self.binds_us = env.binds_us;
        }
    }

    /// Is this host outside of what was accepted last, as far as is known? Then it cannot finish a ballot, and only a member can.
    fn is_outside(&self, id: u16, env: &Env<'_>) -> bool {
        let incarnation = env.incarnations.get(usize::from(id).wrapping_sub(1)).copied();
        let accepted = self.electors().filter_map(|(_, r)| r.accepted).chain(self.accepted);
        let last = accepted.max_by_key(|(ballot, _)| *ballot);
        last.is_some_and(|(_, value)| !incarnation.is_some_and(|incarnation| value.contains(id, incarnation)))
    }

    /// May this host finish a ballot that it has begun?
    fn finishes(&self, id: u16, env: &Env<'_>) -> bool {
        let incarnation = env.incarnations.get(usize::from(id).wrapping_sub(1)).copied();
        incarnation.is_some_and(|incarnation| {
            env.heard.contains(id) && (self.id.is_none() || self.members.contains(id, incarnation))
        })
    }

    pub(super) fn propose(&mut self, env: &Env<'_>) {
        let highest = self
            .electors()
            .flat_map(|(_, r)| [r.acceptor.map_or(0, |a| a.0), r.proposal.as_ref().map_or(0, |p| p.ballot)])
            .max()
            .unwrap_or(0)
            .max(self.promised);
        if highest != self.highest.0 {
            self.highest = (highest, env.now_ns);
        }
        let retry_ns = (RETRY_HEARTBEATS + 3 * u64::from(self.me)) * env.heartbeat_ns;
        // Acceptors wait for their promises to run out, and begin anew with each ballot.
        let patience_ns = |proposer: Proposer| retry_ns + if proposer.value.is_some() { env.timeout_ns } else { 0 };
        if let Some(proposer) = self.proposer
            && (highest > proposer.ballot || env.now_ns >= proposer.since_ns.saturating_add(patience_ns(proposer)))
        {
            self.proposer = None;
            // Who is outside of what was accepted cannot finish: it gives up by itself.
            let contended = highest > proposer.ballot && !self.is_outside((highest & 0xff) as u16, env);
            self.wait_until_ns = env.now_ns.saturating_add(if contended { retry_ns } else { 0 });
        }
        let desired = self.desired(env);
        let wants = if self.id.is_none() { desired.len() >= self.quorum() } else { desired != self.members };
        if highest == 0 && !wants {
            self.wanted_since_ns = None;
            self.proposer = None;
            return;
        }
        let since = *self.wanted_since_ns.get_or_insert(env.now_ns);
        let rank = self.electors().filter(|(id, _)| *id < self.me && env.heard.contains(*id)).count() as u64;
        // What another has begun takes as long as promises do to run out. Who wants something does not wait for who is gone.
        let owner = (highest & 0xff) as u16;
        let theirs = highest > 0 && owner != self.me && !self.is_outside(owner, env);
        let begun = theirs && (!wants || self.finishes(owner, env));
        let patience_ns = if begun { 2 * env.timeout_ns + retry_ns } else { 0 };
        let backoff_ns = rank * BACKOFF_HEARTBEATS * env.heartbeat_ns;
        let due =
            since.saturating_add(backoff_ns).max(self.highest.1.saturating_add(patience_ns)).max(self.wait_until_ns);
        if self.proposer.is_none() && env.now_ns >= due && !env.leaving {
            let Some(round) = (highest >> 8).checked_add(1).filter(|r| *r < 1 << 24) else { return };
            let ballot = round << 8 | u32::from(self.me);
            self.proposer = Some(Proposer { ballot, value: None, promisers: HostSet::EMPTY, since_ns: env.now_ns });
            self.promised = ballot;
        }
        let Some(mut proposer) = self.proposer else { return };
        if proposer.value.is_none() {
            let mut promisers: HostSet = self
                .electors()
                .filter(|(id, r)| {
                    r.acceptor.is_some_and(|(p, _)| p == proposer.ballot)
                        && (!self.id.is_none() || env.heard.contains(*id))
                })
                .map(|(id, _)| id)
                .collect();
            promisers.insert(self.me);
            if promisers.len() >= self.quorum() {
                let accepted = self
                    .electors()
                    .filter(|(id, _)| promisers.contains(*id))
                    .filter_map(|(_, r)| r.accepted)
                    .chain(self.accepted)
                    .max_by_key(|(ballot, _)| *ballot);
                let value = accepted.map_or(desired, |(_, value)| value);
                if !value.contains(self.me, self.incarnation) || value.len() < self.least() {
                    // To be finished by one of its members; or fewer are heard now than when this began.
                    self.proposer = None;
                    self.wait_until_ns = env.now_ns.saturating_add(2 * retry_ns);
                    return;
                }
                proposer.value = Some(value);
                proposer.promisers = promisers;
                proposer.since_ns = env.now_ns;
                self.proposer = Some(proposer);
                self.accept(env);
            }
        }
    }

    /// Is the proposed view decided?
    pub(super) fn count(&mut self, env: &Env<'_>) -> Outcome {
        let Some(Proposer { ballot, value: Some(value), promisers, .. }) = self.proposer else {
            return Outcome::Nothing;
        };
        let own = self.accepted.filter(|(b, _)| *b == ballot).map(|_| self.binds_us);
        let others = self.electors().filter(|(_, r)| r.accepted.as_ref().is_some_and(|(b, _)| *b == ballot));
        let mut binds_us = [0; MAX_HOSTS];
        let mut votes = 0;
        for bind_us in others.map(|(_, r)| r.binds_us).chain(own) {
            binds_us[votes] = bind_us;
            votes += 1;
        }
        if votes < self.quorum() {
            return Outcome::Nothing;
        }
        // Of all majorities that have accepted it, the one that is bound for the shortest time.
        let (_, wait_us, _) = binds_us[..votes].select_nth_unstable(self.quorum() - 1);
        let wait_us = *wait_us;
        let id = if self.id.is_none() {
            // A promiser that restarted since has forgotten its promise.
            let mut others = promisers;
            others.remove(self.me);
            if !others.minus(env.heard).is_empty() {
                return Outcome::Nothing;
            }
            founding_id(&value)
        } else {
            ViewId { generation: self.id.generation, number: self.id.number + 1 }
        };
        self.install(id, value, wait_us)
    }
}
