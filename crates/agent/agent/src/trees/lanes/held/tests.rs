// SPDX-License-Identifier: Apache-2.0

use fide_controller_api::lane::Bounds;
use fide_wire::Scheme;

use super::*;

fn asked() -> LaneAsked {
    LaneAsked {
        receivers: vec!["h2".into()],
        message_max_bytes: 29,
        messages_max: 1,
        period_ns: 10_000_000,
        priority: 1,
        redundancy: None,
        latency_max_ns: None,
    }
}

fn held() -> HeldLane {
    let checked = Checked {
        scheme: Scheme::Chunks36,
        packet_max_bytes: 68,
        redundancy: 2,
        redundancy_needed: 2,
        type_of_service: 0xb8,
    };
    HeldLane::new(7, "log".into(), 1000, asked(), &checked, Arc::default())
}

#[test]
fn lane_is_shared_for_same_user_and_terms() {
    let held = held();
    assert_eq!(held.may_share(1000, &asked()), Ok(()));
    assert_eq!(held.may_share(1001, &asked()).unwrap_err().code, ErrorCode::NotPermitted);
    let other = LaneAsked { period_ns: 1, ..asked() };
    assert_eq!(held.may_share(1000, &other).unwrap_err().code, ErrorCode::NameTaken);
}

#[test]
fn unbounded_lane_is_best_effort_and_gives_reason() {
    let mut held = held();
    assert_eq!(held.answer(0).period_ns, 10_000_000, "what was asked for, though the lane's is shorter");
    assert_eq!(held.terms().period_ns, 8_750_000);
    let bounds = Bounds { size_max_bytes: 68, period_min_ns: 17_500_000, latency_min_ns: 5, jitter_max_ns: 6 };
    let resources = Resources::Bounded(bounds);
    assert_eq!(held.reason_for(&resources), lane_reason::TE);
    held.granted(&resources);
    assert_eq!((held.terms().period_ns, held.answer(0).period_ns), (17_500_000, 20_000_000));
    assert_eq!(held.reason_for(&resources), 0);
    assert_eq!(held.reason_for(&Resources::Unbounded), lane_reason::BW_EXCEEDED);
    held.granted(&Resources::Unbounded);
    assert_eq!((held.bounded, held.type_of_service()), (false, BEST_EFFORT));
    assert_eq!(held.terms().period_ns, 17_500_000, "it keeps to its terms all the same");
    assert_eq!(held.event(lane_reason::BW_EXCEEDED, 9).bounded, 0);
    held.granted(&resources);
    assert_eq!(held.type_of_service(), 0xb8);
}

#[test]
fn lane_is_ready_with_all_trees_and_no_step_left() {
    let mut held = held();
    held.trees[0] = Some(0);
    assert!(!held.is_ready());
    held.trees[1] = Some(0);
    assert!(held.is_ready());
    held.later = Some((Instant::now(), Later::Terms));
    assert!(!held.is_ready());
}

#[test]
fn offence_is_reported_at_once_and_usage_at_interval() {
    let mut held = held();
    let begun = held.reported_at;
    let second = Duration::from_secs(1);
    assert_eq!(held.report(begun + second / 2, second), None);
    held.counters.packets.store(40, Ordering::Relaxed);
    let quiet = Report { interval_ns: 1_000_000_000, packets: 40, exceeded: 0 };
    assert_eq!(held.report(begun + second, second), Some(quiet));
    held.counters.exceeded.store(3, Ordering::Relaxed);
    let loud = held.report(begun + second + second / 10, second).expect("at once");
    assert_eq!((loud.packets, loud.exceeded), (0, 3));
    // The report failed: it is made again.
    held.report_failed(&loud);
    assert_eq!(held.report(begun + second * 2, second).map(|report| report.exceeded), Some(3));
    assert_eq!(held.report(begun + second * 2, second), None);
    // A lasting offence counts once a second.
    held.counters.exceeded.store(9, Ordering::Relaxed);
    assert_eq!(held.report(begun + second * 5 / 2, second), None);
    assert_eq!(held.report(begun + second * 3, second).map(|report| report.exceeded), Some(6));
}
