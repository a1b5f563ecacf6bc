// SPDX-License-Identifier: Apache-2.0
//! Lost planes, silence, and what is counted as lost.

use super::*;

#[test]
fn silent_plane_is_reported_lost_once() {
    let mut p = Peer::new(2, true, 100);
    p.beat(2, 0, 1, 1000);
    assert_eq!(p.beat(2, 0, 2, 1040).lost, None);
    assert_eq!(p.beat(2, 0, 3, 1080).lost, None);
    assert_eq!(p.beat(2, 0, 4, 1100).lost, Some(1));
    assert_eq!(p.beat(2, 0, 5, 1140).lost, None);
    assert!(p.beat(2, 1, 5, 1141).restored);
    assert_eq!(p.beat(2, 0, 6, 1500).lost, None, "silent on both");
    assert_eq!(p.beat(2, 1, 6, 1501).lost, None);
    assert_eq!(p.beat(1, 0, 5, 9999).lost, None);
}

#[test]
fn numbers_between_two_lives_are_not_lost() {
    let mut p = Peer::new(2, true, 100);
    for seq in [1, 2, 4, (1 << LIFE_BITS) + 1, (1 << LIFE_BITS) + 3] {
        p.beat(1, 0, seq, 1000 + seq % 100);
        p.count_received(0);
    }
    assert_eq!(p.look().lost[0], 2, "3, and one of the second life");
    let mut p = Peer::new(2, true, 100);
    p.beat(1, 0, 7 << LIFE_BITS, 1000);
    p.count_received(0);
    assert_eq!(p.look().lost[0], 0);
}

#[test]
fn silence_counts_from_the_newest_heartbeat_or_the_floor() {
    let mut p = Peer::new(2, true, 100);
    p.beat(2, 0, 5, 1000);
    p.beat(2, 1, 5, 1050);
    assert_eq!(p.deadline_ns(), 1100);
    p.beat(2, 1, 4, 1090);
    assert_eq!(p.deadline_ns(), 1100);
    p.floor_ns = 1500;
    assert_eq!(p.deadline_ns(), 1600);
}

#[test]
fn heartbeat_is_passed_once_every_working_plane_delivered_a_newer_one() {
    let mut p = Peer::new(2, true, 100);
    p.beat(2, 0, 7, 1000);
    assert!(!p.passed(2, 6));
    p.beat(2, 1, 7, 1000);
    assert!(p.passed(2, 6) && !p.passed(2, 7));
    p.planes[1].lost = true;
    p.beat(2, 0, 8, 1001);
    assert!(p.passed(2, 7));
}

#[test]
fn plane_that_falls_behind_is_lost_before_a_long_timeout() {
    const MS: u64 = 1_000_000;
    let mut p = Peer::new(2, true, 60 * MS);
    for seq in 1..=5 {
        p.beat(2, 0, seq, seq * MS);
        p.beat(2, 1, seq, seq * MS);
    }
    for seq in 6..15 {
        assert_eq!(p.beat(2, 0, seq, seq * MS).lost, None, "{seq}");
    }
    assert_eq!(p.beat(2, 0, 15, 15 * MS).lost, Some(1));
    assert!(p.beat(2, 1, 15, 15 * MS + 1).restored);
    // A host that stalls is late on both planes.
    assert_eq!(p.beat(2, 0, 16, 50 * MS).lost, None);
    assert_eq!(p.beat(2, 1, 16, 50 * MS).lost, None);
}
