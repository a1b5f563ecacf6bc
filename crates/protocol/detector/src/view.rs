// SPDX-License-Identifier: Apache-2.0
//! Consensus on the membership view (policy majority).
//!
//! A view is a numbered set of (voter, incarnation). The members of the present view decide the next one by
//! single-decree Paxos. Each repeats its state in the VIEW section of its heartbeats, so loss, duplication
//! and reordering cost only time. A member whose view is behind receives the members of the newer one.
//!
//! # Dropping a member
//!
//! A voter reports every member that is silent to it. Once a majority of the view reports the same host, the
//! lowest-numbered voter that is not silent proposes the view without it; the others back off by a few
//! heartbeats each, in the order of their ids. A voter **accepts** a view only if
//!
//! - the view contains the voter itself, or the voter is fenced and stays fenced until the decision is
//!   settled; and
//! - for each member dropped, the voter's promise has run out and it has not acknowledged that member since.
//!
//! While a proposal drops a member that the voter still hears, the voter stops acknowledging it
//! (`condemned`), so that the promise runs out. A value that a crashed proposer left half accepted can
//! therefore always be finished.
//!
//! **Partial partitions.** Two members may not hear each other while the others hear both. Neither is silent
//! to a majority, yet both would act, and each would wait for the other for ever. After [`PARTIAL_TIMEOUTS`]
//! of that, a majority of members that all hear each other goes on without the rest ([`crate::clique`]): one
//! of them proposes the view, and the acceptors' rules stay the same. A voter without a view that learns of
//! one reports which of its members it does not hear, and is admitted once it hears them all. A host evicted
//! for a partial partition also waits for [`BARRED_TIMEOUTS`], whatever its next incarnation, because it may
//! be the host that the others do not hear. A crashed host does not wait: stalled observers may briefly fail
//! to report its silence, so that it looks like a member to evict, but then nobody hears it either.
//!
//! # Why the lease of [`crate::lease`] is right across views
//!
//! Hosts promise for different lengths of time. Each promises its own shortest timeout, which grows while the
//! host runs and shrinks again when the cause of the growth is forgotten ([`crate::Detector::set_timeout`]).
//! To be shown: **when a view without x is installed anywhere, no lease of x runs.** A lease of x in view V
//! stands on a majority Q of V: x itself, and members q that acknowledged x and promised to accept no view
//! without x for the length of their promise, counted from that acknowledgement. The rules:
//!
//! 1. A voter that has accepted a next view acknowledges nobody until that view is settled.
//! 2. A voter that has accepted a next view takes no acknowledgement for its own lease until that view is
//!    settled, and an acknowledgement counts only from a member that holds the same view.
//! 3. With what it accepts, a voter says for how long the leases that it knows of may still run
//!    ([`Vote::binds_us`]). That is the longest of: its own promise, what is left of longer promises that it
//!    made before, what is left of its own lease, and what is left of the wait defined next. Whoever decides
//!    the view takes the longest of these values over a majority that accepted it. This `wait_us` travels
//!    with the view's members. A host that installs the view drops no member ([`Env::free`]) until `wait_us`
//!    later, by its own clock.
//! 4. A host that has a lease accepts no view without itself.
//!
//! **Lemma: `wait_us` after a view U is first installed, no lease that stands on an older view runs.** By
//! induction. Let A be the majority of V by which V+1 was decided, and let x have a lease in V by Q. Some q
//! is in both.
//!
//! - If q is not x, every acknowledgement of q to x that counts came before q accepted V+1: afterwards q is
//!   silent until it holds V+1 or a newer view (rule 1), and then rule 2 refuses its acknowledgement. So the
//!   acknowledgement binds no longer than q's promise after that acceptance, or than what was left of a
//!   longer promise; q reported both.
//! - If q is x, its lease did not grow after it accepted (rule 2), and it reported how long that lease was.
//! - A lease in a view older than V ends, by induction, at the latest `wait_us` of V after V was installed.
//!   Every member of A has installed V and has reported what was left of that.
//!
//! V+1 is decided after all of A has accepted it, so `wait_us` of V+1 covers all of these. Two hosts may
//! learn of V+1 by different majorities A, with different waits: each is right. A host that skipped views has
//! the wait of the view that it installs, which covers all views before it.
//!
//! **Now let U+1 be the first view without x,** decided by the majority A of U. Each member of A holds U and
//! dropped x no sooner than `wait_us` after it installed U, so no lease of x in an older view runs (the
//! lemma). A lease of x in U stands on a majority Q of U, so some q is in both A and Q. If q is not x, it
//! accepted U+1 after its promise to x had run out. If q is x, it had no lease when it accepted (rule 4) and
//! got none afterwards (rule 2). Acknowledgements that x got in an older view count in U too: their promises
//! are q's own, and q keeps each until it ends, whatever view q holds (`promised_until_ns`). And x may be
//! another incarnation by then: the promise is to the member of the view, whichever incarnation is heard.
//!
//! The cost: none if the last change of view is longer ago than `wait_us`. If two hosts die one soon after
//! the other, the second may be dropped later, by the longest promise of the fastest majority; a slow host
//! counts only where nothing is decided without it.
//!
//! Drift: x takes a margin off what others promise ([`Config::lease_of`](crate::Config::lease_of)), which
//! covers any one clock. What is left of a lease is measured by one clock and waited for by another, and is
//! lengthened by that margin.
//!
//! # Founding, and what is not possible without a disk
//!
//! State is volatile. A restarted agent is a new incarnation that holds no view, and members admit it. Views
//! shrink down to two members, so a majority of the configured voters may hold no view while two others
//! legitimately go on. Therefore a first view is founded by all configured voters but one, and at least a
//! majority, all of them without a view.
//!
//! A lease of x in an older view stands on x and at least one other member, so on some q that took part in
//! the founding as a newer incarnation. That incarnation first listened for two timeouts, and until every
//! promise of an earlier incarnation of it had run out: of this life and of those before it
//! ([`crate::Detector::heed_former`]), because with a timeout shorter than before, two timeouts are too few.
//! If q is not x, its promise to x is over. If q is x, its former agent has ended, and granted programs no
//! lease beyond the timeout that it had, which is no longer than its promise.
//!
//! A voter that accepted a first view joins no other one; it has to restart first. Nor does a voter found a
//! view after it has asked those that hold one to be admitted: it may have been admitted and dropped without
//! knowing it. (The simulator found a case: h3 had reported the death of h1; then h1 founded a view with h2,
//! which had restarted and knew of nothing.) A view of three or more configured voters never shrinks below
//! two members, not even by leaving.
//!
//! A member whose view has no majority left gives that view up once it and the voters without a view are
//! enough to found a new one ([`Outcome::Lost`]): a restart is always safe. All that remain of the view give
//! it up together, if the members that are not heard could make no majority with them.
//!
//! **Lineages are ordered as they were founded.** A view's generation is the highest incarnation of its
//! founders. Each host numbers its incarnations by its own clock, so two foundings could get one number, or
//! the later one the lower number. Therefore a voter accepts no first view, and neither acknowledges nor acts
//! in any view, until its disk holds that view's generation ([`ViewConsensus::generation`]): its next
//! incarnation is above every generation on its disk.
//!
//! - Two first views that are both decided were accepted by one common host, of three or more (each is
//!   accepted by all but one), or of two (by both). The second time that host was another incarnation, so the
//!   second view has the higher generation.
//! - A host that acts in a view stands on another member. At least one of the two is among the next founders,
//!   as an incarnation above that view's generation.
//!
//! A disk that is slow or full thus delays what is founded, and never what is held.
//!
//! With a disk a voter can come back as the incarnation that it was ([`Vote`]): a witness, so that two hosts
//! need not wait until both are there again. Its vote holds what it has promised, which it keeps even when it
//! comes back with a shorter timeout.

mod desired;
mod round;
#[cfg(test)]
mod tests;

use fide_types::{
    HostId, HostSet, MAX_HOSTS, PerHost,
    planted::{self, Planted},
};
use fide_wire::{Membership, Proposal, ViewId, ViewRepr};
use serde::{Deserialize, Serialize};

/// Heartbeats that each further candidate waits before it proposes.
pub const BACKOFF_HEARTBEATS: u64 = 6;
/// Heartbeats after which a proposer tries again with a higher ballot (plus its id, so that two do not keep
/// step).
pub const RETRY_HEARTBEATS: u64 = 24;
/// Timeouts for which a partial partition has to last. A crashed host is silent to a majority by then, where
/// timeouts are alike.
pub const PARTIAL_TIMEOUTS: u64 = 2;
/// Timeouts for which a host evicted for a partial partition is not admitted.
pub const BARRED_TIMEOUTS: u64 = 16;

/// One incarnation for each possible host, 0 for none.
#[derive(Debug, Clone, Copy)]
pub struct Incarnations([u32; MAX_HOSTS + 1]);

impl Incarnations {
    /// Of no host.
    pub const NONE: Incarnations = Incarnations([0; MAX_HOSTS + 1]);

    pub fn set(&mut self, id: HostId, incarnation: u32) {
        self.0[usize::from(id)] = incarnation;
    }

    /// Panics unless `id` is in 0..=64.
    pub fn of(&self, id: HostId) -> u32 {
        self.0[usize::from(id)]
    }

    /// `None` unless `id` is in 1..=64.
    pub fn get(&self, id: HostId) -> Option<u32> {
        (1..=MAX_HOSTS as u16).contains(&id).then(|| self.of(id))
    }
}

/// What the detector observes and the consensus needs.
#[derive(Debug, Clone, Copy)]
pub struct Env {
    pub now_ns: u64,
    pub heartbeat_ns: u64,
    /// The longest of this host's timeouts and of what others promise.
    pub timeout_ns: u64,
    /// Voters whose present incarnation is heard and not silent.
    pub heard: HostSet,
    /// The subset of `heard` with a packet newer than one timeout. Peers kept alive only by the grace after a
    /// stall of this host are excluded.
    pub fresh: HostSet,
    /// Members of the view (as that incarnation) that are silent, superseded or leaving.
    pub silent: HostSet,
    /// Members of the view to which this host's promise has run out since the last acknowledgement.
    pub free: HostSet,
    /// Members of the view that said goodbye.
    pub left: HostSet,
    /// Leases that this host has granted or holds, or knows to be left of older views, end within this time.
    pub binds_us: u32,
    /// What this host promised in an earlier life holds until then.
    pub former_until_ns: u64,
    /// The incarnation heard of each voter.
    pub incarnations: Incarnations,
    /// This host is leaving.
    pub leaving: bool,
    /// This host does not act (it is fenced), or nobody relies on leases.
    pub idle: bool,
    /// A voter is heard that holds a view. This keeps a voter without a view from founding one.
    pub others_hold_a_view: bool,
}

/// What a step or a report led to.
// Matched where it is made, never stored; boxing would allocate.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Nothing,
    /// A new view is held; `before` is the membership it replaces.
    Installed {
        before: Membership,
    },
    /// The others go on without this incarnation.
    Excluded,
    /// The view held can never have a majority again, and a new one could be founded without it.
    Lost,
}

/// The newest VIEW section of a voter.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Report {
    incarnation: u32,
    seq: u64,
    repr: ViewRepr,
}

/// The ballot that this host has begun.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Proposer {
    ballot: u32,
    /// `None` during phase 1.
    value: Option<Membership>,
    /// The voters that had promised when phase 1 ended.
    promisers: HostSet,
    since_ns: u64,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct HighestBallot {
    ballot: u32,
    since_ns: u64,
}

/// Hosts of which something is true, and since when.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct HostsSince {
    hosts: HostSet,
    since_ns: u64,
}

/// What a voter has said of views.
///
/// A voter that stores its vote before it says it, and recalls it when it starts again, need not become
/// another incarnation. Nothing else that it forgets can be used against it: after a restart it treats every
/// member as acknowledged just now, with the longest promise that it may have given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vote {
    pub incarnation: u32,
    pub id: ViewId,
    pub members: Membership,
    /// [`ViewConsensus::wait_us`] of that view.
    pub wait_us: u32,
    pub promised: u32,
    pub accepted: Option<(u32, Membership)>,
    /// What it said with what it accepted.
    pub binds_us: u32,
    /// The longest promise that may still hold when it starts again.
    pub promise_us: u32,
}

/// The part of a VIEW section that others wait for, to decide the next view or to act by this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Says {
    id: ViewId,
    promised: u32,
    /// The ballot, 0 for none.
    accepted: u32,
    suspects: HostSet,
    /// The ballot, and whether it has a value.
    proposed: Option<(u32, bool)>,
}

/// One voter's part in the consensus; an observer follows it without a vote.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ViewConsensus {
    me: HostId,
    incarnation: u32,
    voter: bool,
    voters: HostSet,
    /// The witness' id; 0 if there is none.
    witness: HostId,
    started_ns: u64,
    id: ViewId,
    members: Membership,
    wait_us: u32,
    promised: u32,
    accepted: Option<(u32, Membership)>,
    /// [`Env::binds_us`] when `accepted` was accepted.
    binds_us: u32,
    proposer: Option<Proposer>,
    wanted_since_ns: Option<u64>,
    highest: HighestBallot,
    /// This host begins no ballot before.
    wait_until_ns: u64,
    suspects: HostSet,
    /// Members that the running proposal drops: not acknowledged, so that the promises to them run out.
    condemned: HostSet,
    lost_since_ns: Option<u64>,
    /// Members that do not hear all others and have to go.
    to_evict: HostsSince,
    /// Hosts evicted by the last view before this one.
    barred: HostsSince,
    /// [`Env::fresh`] when this host last looked for members to evict.
    fresh: HostSet,
    /// Had there been members to evict for [`PARTIAL_TIMEOUTS`] by then?
    partition_lasts: bool,
    /// Without a view: the newest one that others report.
    foreign: (ViewId, Membership),
    /// Without a view, and listened long enough to take part in founding one.
    ready: bool,
    /// The highest generation on this host's disk; its own incarnation is among them.
    stored_generation: u32,
    /// Without a view: this incarnation has asked those that hold one to be admitted. They may have admitted
    /// it, dropped it again and declared it dead, without its knowing; so it founds nothing.
    asked: bool,
    /// Voters whose last report says more than a steady view. Without any there is nothing to decide.
    busy: HostSet,
    reports: PerHost<Option<Report>>,
    /// What the last heartbeat said.
    published: Says,
}

impl ViewConsensus {
    pub fn new(me: HostId, incarnation: u32, voters: HostSet, witness: HostId, now_ns: u64) -> ViewConsensus {
        let none_since_now = HostsSince { hosts: HostSet::EMPTY, since_ns: now_ns };
        let silence = Says { id: ViewId::NONE, promised: 0, accepted: 0, suspects: HostSet::EMPTY, proposed: None };
        ViewConsensus {
            me,
            incarnation,
            voter: voters.contains(me),
            voters,
            witness,
            started_ns: now_ns,
            id: ViewId::NONE,
            members: Membership::EMPTY,
            wait_us: 0,
            promised: 0,
            accepted: None,
            binds_us: 0,
            proposer: None,
            wanted_since_ns: None,
            highest: HighestBallot { ballot: 0, since_ns: now_ns },
            wait_until_ns: 0,
            suspects: HostSet::EMPTY,
            condemned: HostSet::EMPTY,
            lost_since_ns: None,
            to_evict: none_since_now,
            barred: none_since_now,
            fresh: HostSet::EMPTY,
            partition_lasts: false,
            foreign: (ViewId::NONE, Membership::EMPTY),
            ready: false,
            stored_generation: u32::MAX,
            asked: false,
            busy: HostSet::EMPTY,
            reports: PerHost::new(MAX_HOSTS, |_| None),
            published: silence,
        }
    }

    /// Have the tables, read from a snapshot, the sizes that they must have?
    pub fn is_valid(&self) -> bool {
        self.reports.hosts() == MAX_HOSTS
    }

    /// The view held; [`ViewId::NONE`] for none.
    pub fn id(&self) -> ViewId {
        self.id
    }

    pub fn members(&self) -> &Membership {
        &self.members
    }

    /// Does this host hold a view?
    pub fn has_view(&self) -> bool {
        !self.id.is_none()
    }

    /// For so long after this view was installed, leases of older views may run: the bound reported by the
    /// voters that accepted it.
    pub fn wait_us(&self) -> u32 {
        self.wait_us
    }

    /// What this voter says from now on.
    pub fn vote(&self) -> Vote {
        let ViewConsensus { incarnation, id, members, wait_us, promised, accepted, binds_us, .. } = *self;
        Vote { incarnation, id, members, wait_us, promised, accepted, binds_us, promise_us: 0 }
    }

    /// What the next VIEW section says that others wait for.
    fn says(&self) -> Says {
        Says {
            id: self.id,
            promised: self.promised,
            accepted: self.accepted.map_or(0, |(ballot, _)| ballot),
            suspects: self.suspects,
            proposed: self.proposer.map(|proposer| (proposer.ballot, proposer.value.is_some())),
        }
    }

    /// Has something that others wait for changed since the last heartbeat?
    pub fn has_news(&self) -> bool {
        self.says() != self.published
    }

    /// A heartbeat with [`ViewConsensus::repr`] goes out.
    pub fn mark_published(&mut self) {
        self.published = self.says();
    }

    /// Goes on with what this incarnation has said before.
    pub fn recall(&mut self, vote: &Vote) {
        (self.id, self.members, self.wait_us) = (vote.id, vote.members, vote.wait_us);
        (self.promised, self.accepted, self.binds_us) = (vote.promised, vote.accepted, vote.binds_us);
    }

    /// This host's disk holds no generation above `stored`, and its next incarnation follows from that. A
    /// host that never calls this behaves as if its disk held every generation.
    pub fn limit_stored(&mut self, stored: u32) {
        self.stored_generation = stored.max(self.incarnation);
    }

    /// This host's disk holds `generation` now.
    pub fn generation_stored(&mut self, generation: u32) {
        self.stored_generation = self.stored_generation.max(generation);
    }

    /// The generation that the disk has to hold before this host goes on: of the view that it holds, or of
    /// every view that it may come to hold.
    pub fn generation(&self) -> u32 {
        if self.has_view() || planted::is(Planted::ForgetsGeneration) {
            return self.id.generation;
        }
        let voters = if self.voter { self.voters } else { HostSet::EMPTY };
        let reports = voters.iter().filter_map(|id| self.reports[id].as_ref());
        let reported = reports.map(|report| {
            let founds = report.repr.id.is_none();
            let proposed = report.repr.proposal.as_ref().and_then(|proposal| proposal.value.as_ref());
            // A proposer has to take up what is accepted somewhere.
            let accepted = report.repr.accepted.as_ref().map(|(_, value)| value);
            let generation = |value: Option<&Membership>| match value {
                Some(value) if founds => founding_id(value).generation,
                _ => 0,
            };
            report.incarnation.max(generation(proposed)).max(generation(accepted))
        });
        let own = self.proposer.as_ref().and_then(|proposer| proposer.value.as_ref());
        let own = own.map_or(0, |value| founding_id(value).generation);
        reported.max().unwrap_or(0).max(self.foreign.0.generation).max(own)
    }

    /// Does the disk hold `generation`, so that the next incarnation of this host is above it?
    fn has_stored(&self, generation: u32) -> bool {
        generation <= self.stored_generation || planted::is(Planted::ForgetsGeneration)
    }

    /// May this host acknowledge others in its view, and act by it?
    pub fn has_stored_its_view(&self) -> bool {
        self.has_stored(self.id.generation)
    }

    /// Starts again without a view, as a new incarnation.
    pub fn restart(&mut self, incarnation: u32, now_ns: u64) {
        self.incarnation = incarnation;
        self.generation_stored(incarnation);
        self.started_ns = now_ns;
        self.id = ViewId::NONE;
        self.members = Membership::EMPTY;
        self.wait_us = 0;
        self.barred.hosts = HostSet::EMPTY;
        self.foreign = (ViewId::NONE, Membership::EMPTY);
        self.reports.values_mut().fill(None);
        self.busy = HostSet::EMPTY;
        self.settle();
    }

    /// Hosts that must not be acknowledged now. These are all hosts until what was accepted is settled and
    /// the disk holds the view's generation; else those that a running proposal drops.
    pub fn unacknowledged(&self) -> HostSet {
        let all = self.accepted.is_some() && !planted::is(Planted::AcksAccepted);
        if all || !self.has_stored_its_view() { HostSet(u64::MAX) } else { self.condemned }
    }

    /// May acknowledgements prolong the lease?
    pub fn takes_acks(&self) -> bool {
        self.has_view() && (self.accepted.is_none() || planted::is(Planted::TakesAcksAccepted))
    }

    /// Is this incarnation of host `id` in the view?
    pub fn contains(&self, id: HostId, incarnation: u32) -> bool {
        self.members.contains(id, incarnation)
    }

    /// Voters that have to be there to found a first view.
    fn founding_quorum(&self) -> usize {
        let voters = self.voters.len();
        (voters / 2 + 1).max(voters.saturating_sub(1))
    }

    fn quorum(&self) -> usize {
        if !self.has_view() {
            return self.founding_quorum();
        }
        self.members.len() / 2 + usize::from(!planted::is(Planted::HalfIsMajority) || self.members.len() < 2)
    }

    /// Views do not shrink below this.
    fn smallest_view(&self) -> usize {
        if self.voters.len() >= 3 { 2 } else { 1 }
    }

    /// The least number of members of the next view. A first view is accepted by its members only: with fewer
    /// than a quorum it would never be decided, and a voter that had accepted it could accept no other.
    fn smallest_next_view(&self) -> usize {
        if self.has_view() { self.smallest_view() } else { self.quorum() }
    }

    fn settle(&mut self) {
        self.promised = 0;
        self.accepted = None;
        self.binds_us = 0;
        self.proposer = None;
        self.wanted_since_ns = None;
        self.wait_until_ns = 0;
        self.highest.ballot = 0;
        self.suspects = HostSet::EMPTY;
        self.condemned = HostSet::EMPTY;
        self.lost_since_ns = None;
        self.to_evict.hosts = HostSet::EMPTY;
        self.fresh = HostSet::EMPTY;
        self.partition_lasts = false;
        self.ready = false;
        self.asked = false;
    }

    /// Takes the VIEW section of heartbeat `seq` of `from`.
    pub fn receive(&mut self, from: u16, incarnation: u32, seq: u64, repr: &ViewRepr) -> Outcome {
        self.remember(from, incarnation, seq, repr);
        if repr.id <= self.id {
            return if self.yields_to(repr) { Outcome::Excluded } else { Outcome::Nothing };
        }
        let same_lineage = repr.id.generation == self.id.generation;
        if self.voter && self.has_view() && !same_lineage {
            return Outcome::Excluded;
        }
        let Some(members) = &repr.members else { return Outcome::Nothing };
        if !self.voter {
            return self.install(repr.id, *members, repr.wait_us);
        }
        if !members.contains(self.me, self.incarnation) {
            if repr.id >= self.foreign.0 {
                self.foreign = (repr.id, *members);
            }
            return if self.has_view() { Outcome::Excluded } else { Outcome::Nothing };
        }
        if !self.has_view()
            && let Some((_, value)) = &self.accepted
        {
            let founded = founding_id(value);
            if repr.id.generation != founded.generation || (repr.id == founded && members != value) {
                return Outcome::Excluded;
            }
        }
        self.install(repr.id, *members, repr.wait_us)
    }

    /// Keeps the report if it is the newest of its sender.
    fn remember(&mut self, from: u16, incarnation: u32, seq: u64, repr: &ViewRepr) {
        let slot = &mut self.reports[from];
        if slot.as_ref().is_some_and(|known| known.incarnation == incarnation && seq <= known.seq) {
            return;
        }
        match slot {
            // Most of the time nothing is being decided, and a report is long to copy.
            Some(known) if repr.is_steady() && known.repr.is_steady() => {
                (known.incarnation, known.seq, known.repr.id) = (incarnation, seq, repr.id);
            }
            _ => *slot = Some(Report { incarnation, seq, repr: *repr }),
        }
        if repr.id.is_none() || repr.acceptor.is_some() || repr.accepted.is_some() || repr.proposal.is_some() {
            self.busy.insert(from);
        } else {
            self.busy.remove(from);
        }
    }

    /// Two views with one number and different members: some hosts have lost what their disks held. All hosts
    /// agree on which of the two stays.
    fn yields_to(&self, repr: &ViewRepr) -> bool {
        let same_id = self.voter && self.has_view() && repr.id == self.id;
        same_id && repr.members.is_some_and(|other| other.iter().gt(self.members.iter()))
    }

    fn install(&mut self, id: ViewId, members: Membership, wait_us: u32) -> Outcome {
        let before = self.members;
        let evicted = self.to_evict.hosts.minus(HostSet(members.hosts));
        // Bar a host evicted for a partial partition, but not one that crashed. It is a partition if the host
        // is still heard here, or if this has lasted longer than a crash goes unreported. Being heard is
        // enough: timeouts differ, so it may have lasted only elsewhere.
        let all = self.partition_lasts || planted::is(Planted::BarsTheCrashed);
        let barred = if all { evicted } else { evicted.and(self.fresh) };
        if !barred.is_empty() {
            self.barred = HostsSince { hosts: barred, since_ns: self.to_evict.since_ns };
        }
        self.id = id;
        self.members = members;
        self.wait_us = wait_us;
        self.settle();
        Outcome::Installed { before }
    }

    /// Reports of the other voters that hold the same view and are (or may become) members.
    fn electors(&self) -> impl Iterator<Item = (u16, &ViewRepr)> {
        self.voters.iter().filter(|id| *id != self.me).filter_map(|id| {
            let report = self.reports[id].as_ref()?;
            let same_view = report.repr.id == self.id;
            let elector = !self.has_view() || self.members.contains(id, report.incarnation);
            (same_view && elector).then_some((id, &report.repr))
        })
    }

    /// Does what is due. Cheap when nothing is.
    pub fn step(&mut self, env: &Env) -> Outcome {
        if !self.voter {
            return Outcome::Nothing;
        }
        let founding = !self.has_view();
        if !founding && !self.members.contains(self.me, self.incarnation) {
            return Outcome::Nothing;
        }
        if founding {
            let listened = env.now_ns >= self.started_ns.saturating_add(2 * env.timeout_ns).max(env.former_until_ns);
            self.suspects = if env.others_hold_a_view { self.admission_request(env) } else { HostSet::EMPTY };
            self.asked |= self.suspects.contains(self.me) && !planted::is(Planted::FoundsAfterAsking);
            let founds = listened && !env.others_hold_a_view && !env.leaving;
            self.ready = founds && !self.asked;
            if !self.ready {
                return self.lost_for_long(founds, env);
            }
        }
        let quiet = self.busy.is_empty() && env.silent.is_empty() && !env.leaving;
        if quiet && !founding && self.promised == 0 {
            self.suspects = HostSet::EMPTY;
            self.lost_since_ns = None;
            self.wanted_since_ns = None;
            self.to_evict.hosts = HostSet::EMPTY;
            return Outcome::Nothing;
        }
        self.suspects = if env.leaving { env.silent.union(HostSet::only(self.me)) } else { env.silent };
        self.forget_former_incarnations(env);
        let to_evict = if founding { HostSet::EMPTY } else { self.members_to_evict(env) };
        if to_evict != self.to_evict.hosts {
            self.to_evict = HostsSince { hosts: to_evict, since_ns: env.now_ns };
        }
        (self.fresh, self.partition_lasts) = (env.fresh, self.partition_lasts(env));
        self.accept(env);
        self.propose(env);
        let outcome = self.decide(env);
        if outcome == Outcome::Nothing { self.check_lost(env) } else { outcome }
    }

    /// Without a view: a voter that restarted is not bound by what its earlier incarnation said.
    fn forget_former_incarnations(&mut self, env: &Env) {
        if self.has_view() {
            return;
        }
        for (id, report) in self.reports.iter_mut() {
            if report.as_ref().is_some_and(|known| known.incarnation < env.incarnations.of(id)) {
                *report = None;
            }
        }
    }

    /// Finds that the view can have no majority again while enough voters without one can found another.
    fn check_lost(&mut self, env: &Env) -> Outcome {
        if !self.has_view() {
            return self.lost_for_long(self.accepted.is_some_and(|(_, value)| self.cannot_found(&value, env)), env);
        }
        let present = self.count_present(&self.members, env);
        let viewless = env.heard.iter().filter(|id| {
            let holds_none = |r: &Report| r.incarnation == env.incarnations.of(*id) && r.repr.id.is_none();
            self.reports[*id].as_ref().is_some_and(holds_none)
        });
        // A member that is not heard may be alive but cut off, and count towards a majority when it is heard
        // again.
        let is_missing = |(id, inc): &(u16, u32)| {
            let is_heard = *id == self.me || env.heard.contains(*id);
            !is_heard && !env.left.contains(*id) && env.incarnations.of(*id) == *inc
        };
        let missing = self.members.iter().filter(is_missing).count();
        let majority_may_return = present + missing > self.members.len() / 2;
        // Otherwise all members that are present find the same, and give the view up too.
        let giving_up = if majority_may_return { 1 } else { present };
        let lost = present <= self.members.len() / 2 && viewless.count() + giving_up >= self.founding_quorum();
        self.lost_for_long(lost, env)
    }

    /// A first view accepted here is never finished if one of its members has restarted since. Nor is it
    /// while too few of its members are there; give it up then if, with other voters, enough are there to
    /// found another one.
    fn cannot_found(&self, value: &Membership, env: &Env) -> bool {
        let has_restarted = |(id, inc): (u16, u32)| id != self.me && env.incarnations.of(id) > inc;
        let too_few = self.count_present(value, env) < self.quorum();
        value.iter().any(has_restarted) || too_few && env.heard.len() + 1 >= self.quorum()
    }

    /// How many of `members` are heard as that incarnation, this host included.
    fn count_present(&self, members: &Membership, env: &Env) -> usize {
        let is_present =
            |(id, inc): &(u16, u32)| *id == self.me || env.heard.contains(*id) && env.incarnations.of(*id) == *inc;
        members.iter().filter(is_present).count()
    }

    fn lost_for_long(&mut self, lost: bool, env: &Env) -> Outcome {
        if !lost {
            self.lost_since_ns = None;
            return Outcome::Nothing;
        }
        let since_ns = *self.lost_since_ns.get_or_insert(env.now_ns);
        if env.now_ns >= since_ns.saturating_add(2 * env.timeout_ns) { Outcome::Lost } else { Outcome::Nothing }
    }

    /// The VIEW section of the next heartbeat. With `spread`, because a peer's view is behind, it includes
    /// the members.
    pub fn repr(&self, spread: bool) -> ViewRepr {
        let mut repr = ViewRepr::steady(self.id);
        if spread && self.has_view() {
            (repr.members, repr.wait_us) = (Some(self.members), self.wait_us);
        }
        if self.voter && (self.promised != 0 || !self.suspects.is_empty() || self.ready) {
            repr.acceptor = Some((self.promised, self.suspects.0));
        }
        (repr.accepted, repr.binds_us) = (self.accepted, self.binds_us);
        repr.proposal = self.proposer.map(|p| Proposal { ballot: p.ballot, value: p.value });
        repr
    }
}

/// The number of a first view: 1, in the generation of its highest incarnation.
fn founding_id(members: &Membership) -> ViewId {
    ViewId { generation: members.iter().map(|(_, inc)| inc).max().unwrap_or(0), number: 1 }
}
