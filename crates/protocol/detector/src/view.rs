// SPDX-License-Identifier: Apache-2.0
//! The agreement on who is a member (policy majority).
//!
//! A view is a numbered set of (voter, incarnation). The next one is decided by single-decree Paxos among the members of
//! the present one, each of which repeats its state in the VIEW section of its heartbeats: loss, duplication and
//! reordering cost time only. A member whose view is behind is told the members of the newer one.
//!
//! # Dropping a member
//!
//! A voter reports whom it finds silent. Once a majority of the view reports the same host, the lowest-numbered voter that
//! is not silent (the others wait, in order, a few heartbeats each) proposes the view without it. A voter **accepts** a
//! view only if it contains itself (or it is fenced, and stays so until this is settled) and if for each member dropped
//! its promise has run out and it has not acknowledged that member since. Where it still hears such a member, it stops
//! acknowledging it (`condemned`), so that the promise does run out: a value that a crashed proposer left half accepted
//! can always be finished.
//!
//! **Partial partitions.** Two members that do not hear each other, while others hear both, are not silent to a majority. Yet both would
//! act, and wait for each other for ever. When that has lasted for [`PARTIAL_TIMEOUTS`], a majority of those who hear each other goes on
//! without the rest ([`crate::clique`]): one of them proposes it, and the acceptors' rules are the same as ever. Whoever hears of a view
//! tells which of its members it does not hear, and is let in once there is none. A host that was put out so waits for [`BARRED_TIMEOUTS`]
//! besides, whatever its next incarnation is, as it may be the one that is not heard. A host that crashed does not wait: stalled observers may fail
//! to report its silence for a moment, so that it looks like one that has to go, but then it is not heard either.
//!
//! # Why the lease of [`crate::lease`] is right across views
//!
//! Hosts promise for different lengths of time: each promises its own shortest timeout, which grows while it runs, and becomes shorter again
//! where what made it long is forgotten ([`crate::Detector::set_timeout`]). To be shown:
//! **when a view without x is installed anywhere, no lease of x runs.** A lease of x in view V stands on a majority Q of V: x, and
//! members q that acknowledged x and promised to accept no view without x for their promise, counted from that acknowledgement. The
//! rules:
//!
//! 1. a voter that has accepted a next view acknowledges nobody until it is settled;
//! 2. a voter that has accepted a next view takes no acknowledgement for its own lease until it is settled, and an
//!    acknowledgement counts only from a member that holds the same view;
//! 3. a voter says with what it accepts for how long leases may still run that it knows of ([`Vote::binds_us`]): the longest of its own
//!    promise, what is left of longer ones that it made before, what is left of its own lease, and what is left of the next line. Whoever decides the view takes the longest of a
//!    majority that accepted it; this `wait_us` is told with the view's members. Who installs the view drops no member
//!    ([`Env::free`]) until `wait_us` after that, by its own clock;
//! 4. who has a lease accepts no view without itself.
//!
//! **Lemma: `wait_us` after a view U is first installed, no lease that stands on an older view runs.** By induction. Let A be the
//! majority of V by which V+1 was decided, and let x have a lease in V by Q. Some q is in both. If q is not x, every
//! acknowledgement of q to x that counts came before q accepted V+1 (rule 1: afterwards q is silent until it holds V+1 or a newer view,
//! and then rule 2 refuses it), so it binds no longer than q's promise after that, or what was left of a longer one: q said so. If q is x, its lease did not grow after it
//! accepted (rule 2), and it said how long that was. A lease in a view older than V ends, by induction, at the latest `wait_us` of V
//! after V was installed, and every member of A has installed V and has said what was left of that. As V+1 is decided after all of A has
//! accepted it, `wait_us` of V+1 covers all of these. Two hosts may learn of V+1 by different majorities A, with different waits: each
//! is right. And a host that skipped views has the wait of the one that it installs, which covers all before it.
//!
//! **Now let U+1 be the first view without x,** decided by the majority A of U. Each member of A holds U, and dropped x no sooner than
//! `wait_us` after it installed U: no lease of x in an older view runs (the lemma). A lease of x in U stands on a majority Q of U, so some
//! q is in both. If q is not x, it accepted U+1 after its promise to x had run out. If q is x, it had no lease when it accepted (rule
//! 4), and got none afterwards (rule 2). Acknowledgements that x had in an older view count in U too: their promises are
//! q's own, and q keeps each until it ends, whatever view it holds (`promised_until_ns`). And x may be another incarnation by then:
//! the promise is to the member of the view, whichever incarnation is heard.
//!
//! What it costs: nothing where the last change of view is longer ago than `wait_us`. Two hosts that die one soon after the other may be
//! dropped later, by the longest promise of the fastest majority: a slow host counts only where nothing is decided without it.
//!
//! Drift: x takes a margin off what others promise ([`Config::lease_of`](crate::Config::lease_of)), which covers any one clock. What is left of
//! a lease is told by one clock and waited for by another, and is lengthened by as much.
//!
//! # Founding, and what is not possible without a disk
//!
//! State is volatile. A restarted agent is a new incarnation that holds no view, and members add it. Views shrink down to
//! two members, so a majority of the configured voters may hold no view while two others legitimately go on: a first view
//! is founded by all configured voters but one, and at least a majority, all of them without a view. A lease of x in an older view
//! stands on x and another member at least, so on some q that took part in founding as a newer incarnation. That one listened first,
//! for two timeouts and until what any earlier incarnation of it may have promised had run out (of this life as well as of those before,
//! [`crate::Detector::heed_former`]): with a shorter timeout than before, two timeouts are too few. If q is not x, its promise to x is over. If q is x, its former agent has
//! ended, and gave programs no lease beyond the timeout that it had, which is no longer than its promise. A voter that accepted a first view joins no other
//! one (it must restart first). Nor does one found that has asked those who hold a view to be let in: it may have been a member, and
//! dropped, without its knowing. (The simulator found it: h3 had told that h1 is dead, whereupon h1 founded a view with h2, which had started
//! again and knew of nothing.) A view of three or more configured voters never shrinks below two members, not even by
//! leaving. A member that has no majority left gives its view up once the voters without a view and itself are enough to found a new
//! one ([`Outcome::Lost`]): a restart is always safe. So do all that are left of it together, if those that are not heard could make no
//! majority with them.
//!
//! **Lineages are ordered as they were founded.** A view's generation is the highest incarnation of its founders, which are numbered by each host's
//! own clock: two foundings could have one number, or the later one the lower. So a voter accepts no first view, and neither acknowledges
//! nor acts in any view, whose generation its disk does not hold ([`Agreement::generation`]): its next incarnation is above every one that
//! its disk holds. Two first views that are both decided were accepted by one host of three or more (each by all but one; of two by
//! both), as another incarnation the second time: the second has the higher generation. And whoever acts in a view stands on another
//! member: one of the two at least is among the next founders, as an incarnation above that view's generation. A disk that is slow or
//! full so delays what is founded, and never what is held.
//!
//! With a disk a voter can come back as the incarnation that it was ([`Vote`]): a witness, for whom two hosts need not wait until
//! both are there again. What it has promised is in its vote, and is kept when it comes back with a shorter timeout.

mod round;
#[cfg(test)]
mod tests;
mod wanted;

use fide_types::HostSet;
use fide_types::planted::{self, Planted};
use fide_wire::{MAX_HOSTS, Membership, Proposal, ViewId, ViewRepr};
use serde::{Deserialize, Serialize};

/// Heartbeats that each further candidate waits before it proposes.
pub const BACKOFF_HEARTBEATS: u64 = 6;
/// Heartbeats after which a proposer tries again with a higher ballot (plus its id, so that two do not keep step).
pub const RETRY_HEARTBEATS: u64 = 24;
/// Timeouts for which a partial partition has to last: whoever has died is silent to a majority by then, where timeouts are alike.
pub const PARTIAL_TIMEOUTS: u64 = 2;
/// Timeouts for which nobody is let in who was put out for one.
pub const BARRED_TIMEOUTS: u64 = 16;

/// What the detector knows and the agreement needs.
#[derive(Debug, Clone, Copy)]
pub struct Env<'a> {
    pub now_ns: u64,
    pub heartbeat_ns: u64,
    /// The longest of this host's, and of what others promise.
    pub timeout_ns: u64,
    /// Voters whose present incarnation is heard and not silent.
    pub heard: HostSet,
    /// Of these, those of whom something has come within a timeout: not who is only given the time that this host did not run.
    pub fresh: HostSet,
    /// Members of the view (as that incarnation) that are silent, superseded or leaving.
    pub silent: HostSet,
    /// Members of the view superseded by a newer incarnation: they will not come back.
    pub superseded: HostSet,
    /// Members of the view to which the promise has run out since the last acknowledgement.
    pub free: HostSet,
    /// Members of the view that said goodbye.
    pub left: HostSet,
    /// Leases that this host has granted or holds, or knows to be left of older views, end within this.
    pub binds_us: u32,
    /// What this host promised in an earlier life holds until then.
    pub former_until_ns: u64,
    /// By id-1: the incarnation heard.
    pub incarnations: &'a [u32; MAX_HOSTS],
    /// This host is leaving.
    pub leaving: bool,
    /// This host does not act (fenced), or nobody relies on leases.
    pub idle: bool,
    /// Hearing anyone that holds a view keeps a voter without one from founding.
    pub others_hold_a_view: bool,
}

/// What came of something.
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

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Report {
    incarnation: u32,
    seq: u64,
    repr: ViewRepr,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Proposer {
    ballot: u32,
    value: Option<Membership>,
    /// Who promised when phase 1 ended.
    promisers: HostSet,
    since_ns: u64,
}

/// What a voter has said of views. A voter that stores it before it says it, and recalls it when it starts again, need not become
/// another incarnation: nothing that it forgets besides can be used against it, as it takes every member for acknowledged just then, with the longest promise that
/// it may have given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vote {
    pub incarnation: u32,
    pub id: ViewId,
    pub members: Membership,
    /// [`Agreement::wait_us`] of that view.
    pub wait_us: u32,
    pub promised: u32,
    pub accepted: Option<(u32, Membership)>,
    /// What it said with what it accepted.
    pub binds_us: u32,
    /// The longest promise that may still hold when it starts again.
    pub promise_us: u32,
}

/// What of a VIEW section others wait for, to decide the next view or to act by this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Says {
    id: ViewId,
    promised: u32,
    /// The ballot, 0 for none.
    accepted: u32,
    suspects: HostSet,
    /// The ballot, and whether a value is proposed by it.
    proposed: Option<(u32, bool)>,
}

/// One voter's (or, without a vote, one observer's) part.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Agreement {
    me: u16,
    incarnation: u32,
    voter: bool,
    voters: HostSet,
    /// The witness' id; 0 if there is none.
    witness: u16,
    started_ns: u64,
    pub id: ViewId,
    pub members: Membership,
    /// For so long after this view was installed leases of older views may run: what those bound who accepted it.
    pub wait_us: u32,
    promised: u32,
    accepted: Option<(u32, Membership)>,
    /// Of what was accepted.
    binds_us: u32,
    proposer: Option<Proposer>,
    wanted_since_ns: Option<u64>,
    /// The highest ballot that is known, and since when.
    highest: (u32, u64),
    wait_until_ns: u64,
    suspects: HostSet,
    condemned: HostSet,
    lost_since_ns: Option<u64>,
    /// Members that do not hear all others and have to go, and since when this is so.
    outside: (HostSet, u64),
    /// Who was put out in the last view before this one, and when.
    barred: (HostSet, u64),
    /// [`Env::fresh`] when this host last looked for members that have to go.
    fresh: HostSet,
    /// Had somebody to go for [`PARTIAL_TIMEOUTS`] by then?
    lasts: bool,
    /// Without a view: the newest that others have told of.
    foreign: (ViewId, Membership),
    /// Without a view, and listened long enough to take part in founding one.
    ready: bool,
    /// The highest generation that this host's disk holds; its own incarnation is among them.
    kept: u32,
    /// Without a view: it has asked those who hold one to be let in. They may have done so, and dropped it again, and told of it as dead,
    /// without its knowing: it founds nothing as this incarnation.
    asked: bool,
    /// Whose last report says more than a steady view: with none of them there is nothing to agree on.
    busy: HostSet,
    reports: Box<[Option<Report>]>,
}

impl Agreement {
    pub fn new(me: u16, incarnation: u32, voters: HostSet, witness: u16, now_ns: u64) -> Agreement {
        Agreement {
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
            highest: (0, now_ns),
            wait_until_ns: 0,
            suspects: HostSet::EMPTY,
            condemned: HostSet::EMPTY,
            lost_since_ns: None,
            outside: (HostSet::EMPTY, now_ns),
            barred: (HostSet::EMPTY, now_ns),
            fresh: HostSet::EMPTY,
            lasts: false,
            foreign: (ViewId::NONE, Membership::EMPTY),
            ready: false,
            kept: u32::MAX,
            asked: false,
            busy: HostSet::EMPTY,
            reports: vec![None; MAX_HOSTS].into_boxed_slice(),
        }
    }

    /// What this voter says from now on.
    pub fn vote(&self) -> Vote {
        let Agreement { incarnation, id, members, wait_us, promised, accepted, binds_us, .. } = *self;
        Vote { incarnation, id, members, wait_us, promised, accepted, binds_us, promise_us: 0 }
    }

    /// What its next VIEW section says that others wait for.
    pub fn says(&self) -> Says {
        Says {
            id: self.id,
            promised: self.promised,
            accepted: self.accepted.map_or(0, |(ballot, _)| ballot),
            suspects: self.suspects,
            proposed: self.proposer.map(|proposer| (proposer.ballot, proposer.value.is_some())),
        }
    }

    /// Goes on with what this incarnation has said before.
    pub fn recall(&mut self, vote: &Vote) {
        (self.id, self.members, self.wait_us) = (vote.id, vote.members, vote.wait_us);
        (self.promised, self.accepted, self.binds_us) = (vote.promised, vote.accepted, vote.binds_us);
    }

    /// This host's disk holds no generation above `kept`, from which its next incarnation is taken. Without this word all are held.
    pub fn keeps_up_to(&mut self, kept: u32) {
        self.kept = kept.max(self.incarnation);
    }

    /// This host's disk holds `generation` now.
    pub fn has_kept(&mut self, generation: u32) {
        self.kept = self.kept.max(generation);
    }

    /// The generation that the disk has to hold before this host goes on: of the view that it holds, or of all that it may come to hold.
    pub fn generation(&self) -> u32 {
        if !self.id.is_none() || planted::is(Planted::ForgetsGeneration) {
            return self.id.generation;
        }
        let voters = if self.voter { self.voters } else { HostSet::EMPTY };
        let reports = voters.iter().filter_map(|id| self.reports[usize::from(id) - 1].as_ref());
        let heard = reports.map(|report| {
            let founds = report.repr.id.is_none();
            let proposed = report.repr.proposal.as_ref().and_then(|proposal| proposal.value.as_ref());
            // Whoever proposes has to take up what is accepted somewhere.
            let accepted = report.repr.accepted.as_ref().map(|(_, value)| value);
            let of =
                |value: Option<&Membership>| value.filter(|_| founds).map_or(0, |value| founding_id(value).generation);
            report.incarnation.max(of(proposed)).max(of(accepted))
        });
        let own =
            self.proposer.as_ref().and_then(|p| p.value.as_ref()).map_or(0, |value| founding_id(value).generation);
        heard.max().unwrap_or(0).max(self.foreign.0.generation).max(own)
    }

    /// Is the next incarnation of this host above `generation`?
    fn keeps(&self, generation: u32) -> bool {
        generation <= self.kept || planted::is(Planted::ForgetsGeneration)
    }

    /// May this host acknowledge others in its view, and act by it?
    pub fn keeps_its_view(&self) -> bool {
        self.keeps(self.id.generation)
    }

    /// Starts again without a view, as a new incarnation.
    pub fn restart(&mut self, incarnation: u32, now_ns: u64) {
        self.incarnation = incarnation;
        self.has_kept(incarnation);
        self.started_ns = now_ns;
        self.id = ViewId::NONE;
        self.members = Membership::EMPTY;
        self.wait_us = 0;
        self.barred.0 = HostSet::EMPTY;
        self.foreign = (ViewId::NONE, Membership::EMPTY);
        self.reports.fill(None);
        self.busy = HostSet::EMPTY;
        self.settle();
    }

    /// Hosts that must not be acknowledged now: all, until what was accepted is settled and the view's generation is on disk, or those that a running proposal drops.
    pub fn mute(&self) -> HostSet {
        let all = self.accepted.is_some() && !planted::is(Planted::AcksAccepted);
        if all || !self.keeps_its_view() { HostSet(u64::MAX) } else { self.condemned }
    }

    /// May acknowledgements prolong the lease?
    pub fn takes_acks(&self) -> bool {
        !self.id.is_none() && (self.accepted.is_none() || planted::is(Planted::TakesAcksAccepted))
    }

    pub fn holds(&self, id: u16, incarnation: u32) -> bool {
        self.members.contains(id, incarnation)
    }

    fn quorum(&self) -> usize {
        if self.id.is_none() {
            let n = self.voters.len();
            (n / 2 + 1).max(n.saturating_sub(1))
        } else {
            self.members.len() / 2 + usize::from(!planted::is(Planted::HalfIsMajority) || self.members.len() < 2)
        }
    }

    fn smallest(&self) -> usize {
        if self.voters.len() >= 3 { 2 } else { 1 }
    }

    /// Members of the next view at the least. A first view is accepted by its members only: with fewer it would never be decided, and
    /// whoever had accepted it could accept no other.
    fn least(&self) -> usize {
        if self.id.is_none() { self.quorum() } else { self.smallest() }
    }

    fn settle(&mut self) {
        self.promised = 0;
        self.accepted = None;
        self.binds_us = 0;
        self.proposer = None;
        self.wanted_since_ns = None;
        self.wait_until_ns = 0;
        self.highest.0 = 0;
        self.suspects = HostSet::EMPTY;
        self.condemned = HostSet::EMPTY;
        self.lost_since_ns = None;
        self.outside.0 = HostSet::EMPTY;
        self.fresh = HostSet::EMPTY;
        self.lasts = false;
        self.ready = false;
        self.asked = false;
    }

    /// Takes the VIEW section of a heartbeat of `from`.
    pub fn receive(&mut self, from: u16, incarnation: u32, seq: u64, repr: &ViewRepr) -> Outcome {
        let slot = &mut self.reports[usize::from(from) - 1];
        if slot.as_ref().is_none_or(|r| r.incarnation != incarnation || seq > r.seq) {
            match slot {
                // Most of the time nothing is agreed, and a report is long.
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
        if repr.id <= self.id {
            return if self.gives_way_to(repr) { Outcome::Excluded } else { Outcome::Nothing };
        }
        let lineage = repr.id.generation == self.id.generation;
        if self.voter && !self.id.is_none() && !lineage {
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
            return if self.id.is_none() { Outcome::Nothing } else { Outcome::Excluded };
        }
        if self.id.is_none()
            && let Some((_, value)) = &self.accepted
        {
            let founded = founding_id(value);
            if repr.id.generation != founded.generation || (repr.id == founded && members != value) {
                return Outcome::Excluded;
            }
        }
        self.install(repr.id, *members, repr.wait_us)
    }

    /// Two views of one number, with other members: hosts have forgotten what their disks held. One of the two stays, the same for all.
    fn gives_way_to(&self, repr: &ViewRepr) -> bool {
        let same = self.voter && !self.id.is_none() && repr.id == self.id;
        same && repr.members.is_some_and(|other| other.iter().gt(self.members.iter()))
    }

    fn install(&mut self, id: ViewId, members: Membership, wait_us: u32) -> Outcome {
        let before = self.members;
        let put_out = self.outside.0.minus(HostSet(members.hosts));
        // A partial partition, and no crash: the host is still heard here, or this has lasted for longer than a crash goes unreported. To be
        // heard is enough: timeouts differ, and it may have lasted elsewhere only.
        let put_out =
            if self.lasts || planted::is(Planted::BarsTheCrashed) { put_out } else { put_out.and(self.fresh) };
        if !put_out.is_empty() {
            self.barred = (put_out, self.outside.1);
        }
        self.id = id;
        self.members = members;
        self.wait_us = wait_us;
        self.settle();
        Outcome::Installed { before }
    }

    /// Reports of those who hold the same view as this host and are (or may become) members.
    fn electors(&self) -> impl Iterator<Item = (u16, &ViewRepr)> {
        self.voters.iter().filter(|id| *id != self.me).filter_map(|id| {
            let report = self.reports[usize::from(id) - 1].as_ref()?;
            let same = report.repr.id == self.id;
            let elector = self.id.is_none() || self.members.contains(id, report.incarnation);
            (same && elector).then_some((id, &report.repr))
        })
    }

    /// Does what is due. Cheap when nothing is.
    pub fn step(&mut self, env: &Env<'_>) -> Outcome {
        if !self.voter {
            return Outcome::Nothing;
        }
        let founding = self.id.is_none();
        if !founding && !self.members.contains(self.me, self.incarnation) {
            return Outcome::Nothing;
        }
        if founding {
            let listened = env.now_ns >= self.started_ns.saturating_add(2 * env.timeout_ns).max(env.former_until_ns);
            self.suspects = if env.others_hold_a_view { self.unheard_of_the_view(env) } else { HostSet::EMPTY };
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
            self.outside.0 = HostSet::EMPTY;
            return Outcome::Nothing;
        }
        let mut suspects = env.silent;
        if env.leaving {
            suspects.insert(self.me);
        }
        self.suspects = suspects;
        self.forget_the_gone(env);
        let outside = if founding { HostSet::EMPTY } else { self.outside(env) };
        if outside != self.outside.0 {
            self.outside = (outside, env.now_ns);
        }
        (self.fresh, self.lasts) = (env.fresh, self.outside_lasts(env));
        self.accept(env);
        self.propose(env);
        let outcome = self.count(env);
        if outcome == Outcome::Nothing { self.check_lost(env) } else { outcome }
    }

    /// A voter without a view that restarted has no part in what its earlier incarnation said.
    fn forget_the_gone(&mut self, env: &Env<'_>) {
        if !self.id.is_none() {
            return;
        }
        for (at, report) in self.reports.iter_mut().enumerate() {
            if report.as_ref().is_some_and(|r| r.incarnation < env.incarnations[at]) {
                *report = None;
            }
        }
    }

    /// No majority of the view is left, and there are enough voters without one to found another.
    fn check_lost(&mut self, env: &Env<'_>) -> Outcome {
        if self.id.is_none() {
            // A first view accepted here, whose members have restarted since, would never be finished. Nor would one while too few of
            // them are there; with others there are enough to found another one.
            let is_gone = |(id, inc): (u16, u32)| id != self.me && env.incarnations[usize::from(id) - 1] > inc;
            let stale = self.accepted.is_some_and(|(_, v)| {
                let too_few = self.there(&v, env) < self.quorum();
                v.iter().any(is_gone) || too_few && env.heard.len() + 1 >= self.quorum()
            });
            return self.lost_for_long(stale, env);
        }
        let alive = self.there(&self.members, env);
        let viewless = env
            .heard
            .iter()
            .filter(|id| {
                self.reports[usize::from(*id) - 1]
                    .as_ref()
                    .is_some_and(|r| r.incarnation == env.incarnations[usize::from(*id) - 1] && r.repr.id.is_none())
            })
            .count();
        let n = self.voters.len();
        let founding = (n / 2 + 1).max(n.saturating_sub(1));
        // Who is not heard may live, cut off, and make a majority when it is heard again.
        let is_missing = |(id, inc): &(u16, u32)| {
            let is_heard = *id == self.me || env.heard.contains(*id);
            !is_heard && !env.left.contains(*id) && env.incarnations[usize::from(*id) - 1] == *inc
        };
        let missing = self.members.iter().filter(is_missing).count();
        // Those that are left of this view find the same, and give it up too.
        let alone = alive + missing > self.members.len() / 2;
        let gives_up = if alone { 1 } else { alive };
        self.lost_for_long(alive <= self.members.len() / 2 && viewless + gives_up >= founding, env)
    }

    /// Of these, how many are heard as the incarnation that is meant, this host included.
    fn there(&self, of: &Membership, env: &Env<'_>) -> usize {
        let is_there = |(id, inc): &(u16, u32)| {
            *id == self.me || env.heard.contains(*id) && env.incarnations[usize::from(*id) - 1] == *inc
        };
        of.iter().filter(is_there).count()
    }

    fn lost_for_long(&mut self, lost: bool, env: &Env<'_>) -> Outcome {
        if !lost {
            self.lost_since_ns = None;
            return Outcome::Nothing;
        }
        let since = *self.lost_since_ns.get_or_insert(env.now_ns);
        if env.now_ns >= since.saturating_add(2 * env.timeout_ns) { Outcome::Lost } else { Outcome::Nothing }
    }

    /// The VIEW section of the next heartbeat. `spread`: somebody heard is behind.
    pub fn repr(&self, spread: bool) -> ViewRepr {
        let mut repr = ViewRepr::steady(self.id);
        if spread && !self.id.is_none() {
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

/// A first view's number: 1, in the generation of its highest incarnation.
fn founding_id(members: &Membership) -> ViewId {
    ViewId { generation: members.iter().map(|(_, inc)| inc).max().unwrap_or(0), number: 1 }
}
