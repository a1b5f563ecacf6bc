// SPDX-License-Identifier: Apache-2.0
use super::*;

fn filled(rows: impl IntoIterator<Item = (u64, [i64; 4])>) -> Samples {
    let mut samples = Samples::new();
    for (id, ts) in rows {
        samples.push(&Sample::new(id, ts), 1000);
    }
    samples
}

#[test]
fn steady_clocks_have_no_faults() {
    let s = filled((0..100).map(|i| (i, [0, 10, 20, 30].map(|d| i as i64 * 1000 + d))));
    assert_eq!(s.faults_total(), 0);
    assert_eq!(s.get(7).unwrap().ts, [7000, 7010, 7020, 7030]);
    assert_eq!(s.get(100), None);
}

#[test]
fn a_clock_that_goes_back_jumps_or_wraps_is_flagged() {
    let back = filled([(0, [5000, 0, 1, 6000]), (1, [4000, 1000, 1001, 7000])]);
    assert_eq!(back.faults(), [Fault { row: 1, stamp: Stamp::Ts1, kind: FaultKind::Backwards, by: 1000 }]);
    let jump = filled([(0, [0, 0, 1, 100]), (1, [1000, 20_000_000_000, 20_000_000_001, 1100])]);
    let kinds: Vec<_> = jump.faults().iter().map(|f| (f.stamp, f.kind)).collect();
    assert_eq!(kinds, [(Stamp::Ts2, FaultKind::Jumped), (Stamp::Ts3, FaultKind::Jumped)]);
    let top = (1_i64 << 32) - 500;
    let wrap = filled([(0, [top, 0, 1, top + 100]), (1, [500, 1000, 1001, 600])]);
    assert!(wrap.faults().iter().all(|f| f.kind == FaultKind::Wrapped), "{:?}", wrap.faults());
    assert_eq!(wrap.faults().len(), 2);
    let extreme = filled([(0, [i64::MAX, i64::MAX, 0, i64::MIN + 1]), (u64::MAX, [i64::MIN + 1, 0, i64::MAX, 0])]);
    assert!(extreme.faults_total() > 0);
    let order = filled([(5, [0; 4]), (5, [1000; 4])]);
    assert_eq!(order.faults()[0].kind, FaultKind::Order);
}

#[test]
fn a_new_pong_is_not_compared_with_the_old() {
    let mut s = filled([(0, [0, 5_000_000, 5_000_001, 100])]);
    s.restart(1);
    s.restart(1);
    s.restart(0);
    s.push(&Sample::new(1, [1000, 7, 8, 1100]), 1000);
    assert_eq!(s.faults_total(), 0);
    assert_eq!(s.restarts(), [Restart { row: 1, incarnation: 1 }], "0 is nobody");
}

#[test]
fn hardware_columns_begin_with_their_first_stamp() {
    let mut s = filled([(0, [0; 4]), (1, [1000; 4])]);
    assert_eq!(s.hardware(Stamp::Ts1), None);
    let with = Sample { id: 2, ts: [2000; 4], hw: [MISSING, 5, MISSING, MISSING] };
    s.push(&with, 1000);
    assert_eq!(s.hardware(Stamp::Ts2), Some([MISSING, MISSING, 5].as_slice()));
    assert_eq!(s.get(2), Some(with));
    assert_eq!(s.get(0).unwrap().hw, [MISSING; 4]);
}

#[test]
fn due_times_follow_the_schedule() {
    let mut info = RunInfo { period_ns: 1000, start_ns: 5, ..RunInfo::default() };
    assert_eq!(info.due_ns(3), Some(3005));
    assert_eq!(info.due_ns(u64::MAX), None);
    info.schedule = Schedule::Relative;
    assert_eq!(info.due_ns(3), None);
}
