// SPDX-License-Identifier: Apache-2.0

use super::*;

const GIGABIT: u64 = 1_000_000_000;
/// Picoseconds of 1000 bytes at a gigabit.
const LONG: u64 = 8_000_000;

fn server() -> Server {
    Server { bandwidth_bps: GIGABIT, best_effort_ps: 12_304_000, reserved_burst_ps: 0, reserved_bps: 0 }
}

fn flow(priority: u8, input: Option<u32>) -> Arrival {
    Arrival {
        priority,
        transmission_ps: LONG,
        transmission_min_ps: LONG,
        period_ps: 1_000_000_000,
        jitter_ps: 0,
        input: input.map(|link| Input { link, bandwidth_bps: GIGABIT, jitter_ps: 0 }),
    }
}

/// All delays are a picosecond above what follows from the model: the one for bends.
fn delays(flows: &[Arrival]) -> Vec<u64> {
    bounds(&server(), flows).unwrap().delay_ps.into_iter().map(|delay| delay - 1).collect()
}

#[test]
fn a_packet_alone_waits_for_one_best_effort_frame() {
    assert_eq!(delays(&[flow(0, None)]), [12_304_000 + LONG]);
}

#[test]
fn packets_from_different_links_meet_and_those_from_one_do_not() {
    assert_eq!(delays(&[flow(0, Some(1)), flow(0, Some(2))]), [12_304_000 + 2 * LONG; 2]);
    // A picosecond for each packet is for rounding.
    assert_eq!(delays(&[flow(0, Some(1)), flow(0, Some(1))]), [12_304_000 + LONG + 2; 2]);
    // Two that start here may start at once.
    assert_eq!(delays(&[flow(0, None), flow(0, None)]), [12_304_000 + 2 * LONG; 2]);
}

#[test]
fn a_lower_sub_lane_pays_for_the_higher_and_not_the_other_way_round() {
    let mut large = flow(1, None);
    large.transmission_ps = 20_000_000;
    let [high, low] = delays(&[flow(0, None), large])[..] else { panic!("two flows") };
    assert_eq!(low, 12_304_000 + LONG + 20_000_000);
    // The higher one waits for a frame that has begun, be it of the lower sub-lane.
    assert_eq!(high, 20_000_000 + LONG);
}

#[test]
fn jitter_makes_bursts() {
    let mut late = flow(0, None);
    // As much as three periods: four packets may come at once.
    late.jitter_ps = 3 * late.period_ps;
    assert_eq!(delays(&[late]), [12_304_000 + 4 * LONG]);
}

#[test]
fn what_others_have_reserved_comes_first() {
    let reserved = Server { reserved_burst_ps: 5 * LONG, reserved_bps: GIGABIT / 2, ..server() };
    let alone = bounds(&server(), &[flow(0, None)]).unwrap().delay_ps[0];
    let beside = bounds(&reserved, &[flow(0, None)]).unwrap().delay_ps[0];
    // The burst, and half of the time until the packet begins.
    assert!(beside >= alone + 5 * LONG + (12_304_000 + 5 * LONG) / 2, "{beside} beside {alone}");
}

#[test]
fn more_than_a_link_carries_has_no_bound() {
    let mut often = flow(0, None);
    often.period_ps = LONG / 2;
    assert_eq!(bounds(&server(), &[often]), Err(Unbounded));
    let reserved = Server { reserved_bps: GIGABIT, ..server() };
    assert_eq!(bounds(&reserved, &[flow(0, None)]), Err(Unbounded));
}

#[test]
fn the_queue_holds_all_that_may_come_behind_a_frame() {
    let one = bounds(&server(), &[flow(0, None)]).unwrap().backlog_bytes;
    let two = bounds(&server(), &[flow(0, None), flow(2, None)]).unwrap().backlog_bytes;
    assert_eq!((one, two), (1000, 2000));
    // Two at once, two more a packet's time and three after: the first has left by then, and 462 bytes of the second.
    let mut often = flow(0, None);
    (often.period_ps, often.jitter_ps) = (2 * LONG, 3 * LONG);
    assert_eq!(bounds(&server(), &[often]).unwrap().backlog_bytes, 4000 - 462);
}

#[test]
fn transmission_times_are_rounded_up() {
    assert_eq!(transmission_ps(1, 8_000_000_000_000), 1);
    assert_eq!(transmission_ps(1, 3_000_000_000_000), 3);
    assert_eq!(transmission_ps(125, GIGABIT), 1_000_000);
}
