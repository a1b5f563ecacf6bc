// SPDX-License-Identifier: Apache-2.0
//! Who waits before it is let in again.

use super::*;

const TIMEOUT_NS: u64 = 5_000_000;
const VIEW: ViewId = ViewId { generation: 5, number: 1 };

fn members(ids: impl IntoIterator<Item = u16>) -> Membership {
    let mut members = Membership::EMPTY;
    ids.into_iter().for_each(|id| members.insert(id, u32::from(id)));
    members
}

fn env<'a>(now_ns: u64, incarnations: &'a [u32; MAX_HOSTS], fresh: &[u16], silent: &[u16]) -> Env<'a> {
    let set = |ids: &[u16]| ids.iter().copied().collect::<HostSet>();
    Env {
        now_ns,
        heartbeat_ns: TIMEOUT_NS / 5,
        timeout_ns: TIMEOUT_NS,
        heard: set(&[2, 3, 4, 5]).minus(set(silent)),
        fresh: set(fresh),
        silent: set(silent),
        superseded: HostSet::EMPTY,
        free: HostSet::EMPTY,
        left: HostSet::EMPTY,
        binds_us: 0,
        former_until_ns: 0,
        incarnations,
        leaving: false,
        idle: false,
        others_hold_a_view: true,
    }
}

/// h1 of five in a view, and by id-1 which incarnation each host is.
fn five() -> (Agreement, [u32; MAX_HOSTS]) {
    let mut this = Agreement::new(1, 1, HostSet::first(5), 0, 0);
    this.install(VIEW, members(1..=5), 0);
    let mut incarnations = [0; MAX_HOSTS];
    (1..=5u16).for_each(|id| incarnations[usize::from(id) - 1] = u32::from(id));
    (this, incarnations)
}

/// What a host that holds the first view reports of the others.
fn reports(this: &mut Agreement, from: u16, seq: u64, suspects: &[u16]) {
    let suspects = suspects.iter().copied().collect::<HostSet>();
    let repr = ViewRepr { acceptor: Some((0, suspects.0)), ..ViewRepr::steady(VIEW) };
    assert_eq!(this.receive(from, u32::from(from), seq, &repr), Outcome::Nothing);
}

/// The view without `gone` was decided; the next incarnation of `gone` hears all. Is it wanted?
fn wanted_again(mut this: Agreement, incarnations: &[u32; MAX_HOSTS], gone: u16, now_ns: u64) -> bool {
    let next = ViewId { number: 2, ..VIEW };
    let rest = (1..=5).filter(|id| *id != gone);
    let told = ViewRepr { members: Some(members(rest)), ..ViewRepr::steady(next) };
    let outcome = this.receive(2, 2, 9, &told);
    assert!(matches!(outcome, Outcome::Installed { .. }), "{outcome:?}");
    let mut incarnations = *incarnations;
    incarnations[usize::from(gone) - 1] = 9;
    let back = ViewRepr { acceptor: Some((0, HostSet::from_iter([gone]).0)), ..ViewRepr::steady(ViewId::NONE) };
    let _ = this.receive(gone, 9, 1, &back);
    this.desired(&env(now_ns, &incarnations, &[2, 3, 4, 5], &[])).contains(gone, 9)
}

#[test]
fn crashed_host_is_let_in_at_once_though_stalled_observers_hid_its_silence() {
    let (mut this, incarnations) = five();
    // h1 and h2 report it, which is no majority: h4 and h5 stood still.
    reports(&mut this, 2, 1, &[3]);
    assert_eq!(this.step(&env(TIMEOUT_NS, &incarnations, &[2, 4, 5], &[3])), Outcome::Nothing);
    assert_eq!(this.outside.0, HostSet::from_iter([3]));
    assert!(wanted_again(this, &incarnations, 3, 2 * TIMEOUT_NS));
}

#[cfg(feature = "planted")]
#[test]
fn planted_faults_bar_a_crashed_host() {
    crate::planted::arm(Some(Planted::BarsTheCrashed));
    let (mut this, incarnations) = five();
    reports(&mut this, 2, 1, &[3]);
    let _ = this.step(&env(TIMEOUT_NS, &incarnations, &[2, 4, 5], &[3]));
    let wanted = wanted_again(this, &incarnations, 3, 2 * TIMEOUT_NS);
    crate::planted::arm(None);
    assert!(!wanted);
}

#[test]
fn host_put_out_for_a_partial_partition_waits_where_it_is_heard() {
    let (mut this, incarnations) = five();
    reports(&mut this, 2, 1, &[4]);
    reports(&mut this, 4, 1, &[2]);
    assert_eq!(this.step(&env(TIMEOUT_NS, &incarnations, &[2, 3, 4, 5], &[])), Outcome::Nothing);
    assert_eq!(this.outside.0, HostSet::from_iter([4]));
    // Also where it has not lasted here.
    assert!(!wanted_again(this, &incarnations, 4, 2 * TIMEOUT_NS));
}

#[test]
fn host_put_out_for_a_partial_partition_waits_where_it_was_silent_for_long() {
    let (mut this, incarnations) = five();
    for now_ns in [TIMEOUT_NS, (PARTIAL_TIMEOUTS + 1) * TIMEOUT_NS] {
        reports(&mut this, 4, now_ns, &[1]);
        let _ = this.step(&env(now_ns, &incarnations, &[2, 3, 5], &[4]));
    }
    assert_eq!(this.outside.0, HostSet::from_iter([4]));
    assert!(!wanted_again(this, &incarnations, 4, (PARTIAL_TIMEOUTS + 2) * TIMEOUT_NS));
}
