// SPDX-License-Identifier: Apache-2.0
//! Which hosts are admitted to a view at once and which wait; how ballots are finished or given up.

use super::*;

const TIMEOUT_NS: u64 = 5_000_000;
const VIEW: ViewId = ViewId { generation: 5, number: 1 };

fn set(ids: &[HostId]) -> HostSet {
    ids.iter().copied().collect()
}

fn members(ids: impl IntoIterator<Item = HostId>) -> Membership {
    let mut members = Membership::EMPTY;
    ids.into_iter().for_each(|id| members.insert(id, u32::from(id)));
    members
}

/// Hosts 1..=count, each with its id as its incarnation.
fn incarnations(count: u16) -> Incarnations {
    let mut incarnations = Incarnations::NONE;
    (1..=count).for_each(|id| incarnations.set(id, u32::from(id)));
    incarnations
}

fn env(now_ns: u64, incarnations: &Incarnations, fresh: &[u16], silent: &[u16]) -> Env {
    Env {
        now_ns,
        heartbeat_ns: TIMEOUT_NS / 5,
        timeout_ns: TIMEOUT_NS,
        heard: set(&[2, 3, 4, 5]).minus(set(silent)),
        fresh: set(fresh),
        silent: set(silent),
        free: HostSet::EMPTY,
        left: HostSet::EMPTY,
        binds_us: 0,
        former_until_ns: 0,
        incarnations: *incarnations,
        leaving: false,
        idle: false,
        others_hold_a_view: true,
    }
}

/// h1 of five, in a view of all.
fn five() -> (ViewConsensus, Incarnations) {
    let mut this = ViewConsensus::new(1, 1, HostSet::first(5), 0, 0);
    this.install(VIEW, members(1..=5), 0);
    (this, incarnations(5))
}

/// `from`, which holds the first view, reports that it does not hear `suspects`.
fn reports(this: &mut ViewConsensus, from: u16, seq: u64, suspects: &[u16]) {
    let repr = ViewRepr { acceptor: Some((0, set(suspects).0)), ..ViewRepr::steady(VIEW) };
    assert_eq!(this.receive(from, u32::from(from), seq, &repr), Outcome::Nothing);
}

/// The view without `gone` was decided, and the next incarnation of `gone` hears all members. Is it admitted?
fn admits_again(mut this: ViewConsensus, incarnations: &Incarnations, gone: u16, now_ns: u64) -> bool {
    let next = ViewId { number: 2, ..VIEW };
    let rest = (1..=5).filter(|id| *id != gone);
    let decided = ViewRepr { members: Some(members(rest)), ..ViewRepr::steady(next) };
    let outcome = this.receive(2, 2, 9, &decided);
    assert!(matches!(outcome, Outcome::Installed { .. }), "{outcome:?}");
    let mut incarnations = *incarnations;
    incarnations.set(gone, 9);
    let back = ViewRepr { acceptor: Some((0, HostSet::only(gone).0)), ..ViewRepr::steady(ViewId::NONE) };
    let _ = this.receive(gone, 9, 1, &back);
    this.desired(&env(now_ns, &incarnations, &[2, 3, 4, 5], &[])).contains(gone, 9)
}

#[test]
fn crashed_host_is_admitted_at_once_though_stalled_observers_hid_its_silence() {
    let (mut this, incarnations) = five();
    // Only h1 and h2 report it, which is no majority: h4 and h5 stalled.
    reports(&mut this, 2, 1, &[3]);
    assert_eq!(this.step(&env(TIMEOUT_NS, &incarnations, &[2, 4, 5], &[3])), Outcome::Nothing);
    assert_eq!(this.to_evict.hosts, HostSet::only(3));
    assert!(admits_again(this, &incarnations, 3, 2 * TIMEOUT_NS));
}

#[cfg(feature = "planted")]
#[test]
fn planted_faults_bar_a_crashed_host() {
    fide_types::planted::arm_thread(Some(Planted::BarsTheCrashed));
    let (mut this, incarnations) = five();
    reports(&mut this, 2, 1, &[3]);
    let _ = this.step(&env(TIMEOUT_NS, &incarnations, &[2, 4, 5], &[3]));
    let admitted = admits_again(this, &incarnations, 3, 2 * TIMEOUT_NS);
    fide_types::planted::arm_thread(None);
    assert!(!admitted);
}

#[test]
fn evicted_host_is_barred_where_it_is_heard() {
    let (mut this, incarnations) = five();
    reports(&mut this, 2, 1, &[4]);
    reports(&mut this, 4, 1, &[2]);
    assert_eq!(this.step(&env(TIMEOUT_NS, &incarnations, &[2, 3, 4, 5], &[])), Outcome::Nothing);
    assert_eq!(this.to_evict.hosts, HostSet::only(4));
    // Even if the partial partition has not lasted here.
    assert!(!admits_again(this, &incarnations, 4, 2 * TIMEOUT_NS));
}

#[test]
fn evicted_host_is_barred_where_it_was_silent_for_long() {
    let (mut this, incarnations) = five();
    for now_ns in [TIMEOUT_NS, (PARTIAL_TIMEOUTS + 1) * TIMEOUT_NS] {
        reports(&mut this, 4, now_ns, &[1]);
        let _ = this.step(&env(now_ns, &incarnations, &[2, 3, 5], &[4]));
    }
    assert_eq!(this.to_evict.hosts, HostSet::only(4));
    assert!(!admits_again(this, &incarnations, 4, (PARTIAL_TIMEOUTS + 2) * TIMEOUT_NS));
}

/// One step of h1 of four, after three others that may found a first view with it have reported (id,
/// promised, suspects).
fn founding(this: &mut ViewConsensus, now_ns: u64, heard: &[u16], others: [(u16, u32, u64); 3]) -> Outcome {
    for (id, promised, suspects) in others {
        let repr = ViewRepr { acceptor: Some((promised, suspects)), ..ViewRepr::steady(ViewId::NONE) };
        assert_eq!(this.receive(id, u32::from(id), now_ns, &repr), Outcome::Nothing);
    }
    let env = env(now_ns, &incarnations(4), &[], &[]);
    this.step(&Env { heard: set(heard), others_hold_a_view: false, ..env })
}

#[test]
fn first_view_is_not_proposed_with_too_few_to_decide_it() {
    let mut this = ViewConsensus::new(1, 1, HostSet::first(4), 0, 0);
    let _ = founding(&mut this, 2 * TIMEOUT_NS, &[2, 3, 4], [(2, 0, 0), (3, 0, 0), (4, 0, 0)]);
    let ballot = this.proposer.expect("it has begun").ballot;
    // All promise; meanwhile h3 and h4 have heard of a view, and found none.
    let heard_of_one = |id: HostId| HostSet::only(id).0;
    let others = [(2, ballot, 0), (3, ballot, heard_of_one(3)), (4, ballot, heard_of_one(4))];
    let _ = founding(&mut this, 2 * TIMEOUT_NS + 1, &[2, 3, 4], others);
    assert_eq!((this.proposer.map(|p| p.ballot), this.accepted), (None, None));
}

#[test]
fn accepted_first_view_is_given_up_once_enough_others_are_there() {
    let accepted = || {
        let mut this = ViewConsensus::new(1, 1, HostSet::first(4), 0, 0);
        this.accepted = Some((0x102, members([1, 2, 3])));
        this
    };
    let (begins, ends) = (3 * TIMEOUT_NS, 6 * TIMEOUT_NS);
    let last = |heard: &[u16]| {
        let mut this = accepted();
        let quiet = [(2, 0x102, 0), (3, 0x102, 0), (4, 0x102, 0)];
        assert_eq!(founding(&mut this, begins, heard, quiet), Outcome::Nothing);
        founding(&mut this, ends, heard, quiet)
    };
    // Without h3 nothing is decided, and with h4 there are enough for another view.
    assert_eq!(last(&[2, 4]), Outcome::Lost);
    // Its members may decide it yet, or nobody could found another one.
    assert_eq!(last(&[2, 3, 4]), Outcome::Nothing);
    assert_eq!(last(&[2]), Outcome::Nothing);
}

/// h2 has accepted its own first view with h1, which is dead now and which h3 never heard. The disk of h3
/// does not hold that generation yet, and h3 is first with each ballot.
#[test]
fn first_view_accepted_elsewhere_is_finished_or_given_up() {
    let mut value = members([2, 3]);
    value.insert(1, 9);
    let consensus = |me| ViewConsensus::new(me, u32::from(me), HostSet::first(3), 0, 0);
    let (mut h2, mut h3) = (consensus(2), consensus(3));
    h2.limit_stored(9);
    h3.limit_stored(0);
    (h2.accepted, h2.promised) = (Some((0x102, value)), 0x102);
    let since_ns = 2 * TIMEOUT_NS;
    h3.proposer = Some(Proposer { ballot: 0x103, value: None, promisers: HostSet::EMPTY, since_ns });
    h3.promised = 0x103;
    let _ = h2.receive(3, 3, 0, &h3.repr(false));
    let (mut of2, mut of3) = (Incarnations::NONE, Incarnations::NONE);
    of2.set(1, 9);
    of2.set(3, 3);
    of3.set(2, 2);
    for turn in 1..10_000u64 {
        let now_ns = since_ns + turn * TIMEOUT_NS / 5;
        let step = |this: &mut ViewConsensus, of: &Incarnations, heard: u16| {
            let heard = HostSet::only(heard);
            let outcome = this.step(&Env { heard, others_hold_a_view: false, ..env(now_ns, of, &[], &[]) });
            this.generation_stored(this.generation());
            outcome
        };
        if [step(&mut h3, &of3, 2), step(&mut h2, &of2, 3)].iter().any(|outcome| *outcome != Outcome::Nothing) {
            return;
        }
        let (of2, of3) = (h2.repr(false), h3.repr(false));
        let _ = h3.receive(2, 2, turn, &of2);
        let _ = h2.receive(3, 3, turn, &of3);
    }
    panic!("neither finishes it, nor gives up; h3 has stored {}", h3.stored_generation);
}

/// h1 has begun a ballot to finish a view without h4, whose proposer h3 died; `other` began a higher one. The
/// next ballot of h1, if it begins one at once.
fn begins_again_beside(other: u16) -> Option<u32> {
    let (mut this, incarnations) = five();
    (this.promised, this.accepted) = (0x103, Some((0x103, members([1, 2, 3, 5]))));
    [2, 4, 5].into_iter().for_each(|from| reports(&mut this, from, 1, &[3]));
    let _ = this.step(&env(TIMEOUT_NS, &incarnations, &[2, 4, 5], &[3]));
    assert_eq!(this.proposer.map(|p| p.ballot), Some(0x201));
    let ballot = 0x200 | u32::from(other);
    let repr = ViewRepr {
        acceptor: Some((ballot, HostSet::only(3).0)),
        proposal: Some(Proposal { ballot, value: None }),
        ..ViewRepr::steady(VIEW)
    };
    assert_eq!(this.receive(other, u32::from(other), 2, &repr), Outcome::Nothing);
    let _ = this.step(&env(TIMEOUT_NS + 1, &incarnations, &[2, 4, 5], &[3]));
    this.proposer.map(|p| p.ballot)
}

#[test]
fn proposer_that_cannot_finish_its_ballot_is_not_waited_for() {
    assert_eq!(begins_again_beside(4), Some(0x301), "the accepted view lacks h4, which gives up");
    assert_eq!(begins_again_beside(2), None, "h2 may finish it");
}
