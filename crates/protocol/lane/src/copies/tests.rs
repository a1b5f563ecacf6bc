// SPDX-License-Identifier: Apache-2.0

use proptest::prelude::*;

use super::*;

const PERIOD: u64 = 5_000_000;
const LATE: u64 = 1_000_000;

/// Feeds packets from..to; `way` gives a copy's delay on a plane, or that it is lost.
fn feed(
    copies: &mut Copies,
    numbers: std::ops::Range<u64>,
    way: impl Fn(usize, u64) -> Option<u64>,
) -> Vec<(u64, usize, Finding)> {
    let mut arrivals: Vec<(u64, usize, u64)> = numbers
        .flat_map(|number| (0..2).map(move |plane| (number, plane)))
        .filter_map(|(number, plane)| Some((number * PERIOD + way(plane, number)?, plane, number)))
        .collect();
    arrivals.sort_unstable();
    let found = arrivals.into_iter().filter_map(|(at, plane, number)| {
        let (plane, finding) = copies.arrived(plane, number, at, LATE)?;
        Some((number, plane, finding))
    });
    found.collect()
}

proptest! {
    #[test]
    fn what_keeps_the_contract_is_never_blamed(delays in prop::collection::vec((0..LATE, 0..LATE, 0u8..20), 1..300)) {
        let mut copies = Copies::default();
        // Now and then one copy is lost: once in a while is nobody's fault.
        let found = feed(&mut copies, 1..delays.len() as u64 + 1, |plane, number| {
            let (a, b, lost) = delays[number as usize - 1];
            let lost = lost == 0 && (number % 2 == plane as u64) && number % 3 == 0;
            (!lost).then_some(if plane == 0 { a } else { b })
        });
        prop_assert_eq!(found, []);
    }

    #[test]
    fn a_cut_tree_is_found_soon_and_only_that_one(at in 5u64..50, plane in 0usize..2) {
        let mut copies = Copies::default();
        let found = feed(&mut copies, 1..at + 4, |p, number| (p != plane || number < at).then_some(0));
        prop_assert_eq!(found, [(at + 2, plane, Finding::Missing)]);
        // It comes back.
        let found = feed(&mut copies, at + 4..at + 20, |_, _| Some(0));
        prop_assert_eq!(found, [(at + 4, plane, Finding::Back)]);
    }

    #[test]
    fn any_copies_are_taken(all in prop::collection::vec((0usize..3, 0u64..100_000_000, 0u64..u64::MAX / 2), 0..200)) {
        let mut copies = Copies::default();
        for (plane, number, at) in all {
            if let Some((plane, _)) = copies.arrived(plane, number, at, LATE) {
                prop_assert!(plane < 2);
            }
        }
    }
}

#[test]
fn a_tree_that_never_brought_anything_is_missing() {
    let found = feed(&mut Copies::default(), 1000..1004, |plane, _| (plane == 0).then_some(0));
    assert_eq!(found, [(1002, 1, Finding::Missing)]);
}

#[test]
fn it_is_found_again_after_a_while_as_the_tree_that_replaced_it_may_be_broken_too() {
    let found = feed(&mut Copies::default(), 1..60, |plane, number| (plane == 0 || number < 10).then_some(0));
    assert_eq!(found, [(12, 1, Finding::Missing), (32, 1, Finding::Missing), (52, 1, Finding::Missing)]);
    // A sender that says little is not blamed for its silence.
    let mut copies = Copies::default();
    feed(&mut copies, 1..12, |plane, number| (plane == 0 || number < 10).then_some(0));
    assert_eq!(copies.arrived(0, 12, 400 * PERIOD, LATE), Some((1, Finding::Missing)));
    assert_eq!(copies.arrived(0, 13, 800 * PERIOD, LATE), None, "one packet more tells nothing more");
}

#[test]
fn a_slow_tree_is_found_by_copies_in_a_row() {
    let found = feed(&mut Copies::default(), 1..40, |plane, _| Some(if plane == 1 { LATE + 1 } else { 0 }));
    assert_eq!(found, [(5, 1, Finding::Slow), (25, 1, Finding::Slow)]);
    let found = feed(&mut Copies::default(), 1..40, |plane, number| {
        Some(if plane == 1 && number % 5 != 0 { LATE + 1 } else { 0 })
    });
    assert_eq!(found, [], "four late ones in a row are a burst");
}
