// SPDX-License-Identifier: Apache-2.0

use super::*;
use proptest::prelude::*;

fn peer(name: &str) -> Identity {
    Identity::host(name).unwrap()
}

fn at(incarnation: u64, number: u64) -> Sequence {
    Sequence { incarnation, number }
}

fn kept(text: &str) -> Kept {
    Kept::new(200, text.into())
}

#[test]
fn requests_are_carried_out_once_and_in_order() {
    let (mut seen, a) = (Sequences::default(), peer("a"));
    assert!(matches!(seen.check(a, at(3, 2), 0), Err(Refusal::OutOfOrder { expected, .. }) if expected == at(3, 1)));
    assert_eq!(seen.check(a, at(3, 1), 7), Ok(Admission::Fresh));
    seen.record(a, at(3, 1), 7, kept("one"));
    assert_eq!(seen.check(a, at(3, 1), 7), Ok(Admission::Repeat(kept("one"))));
    assert!(matches!(seen.check(a, at(3, 1), 8), Err(Refusal::Reused { .. })));
    assert!(matches!(seen.check(a, at(3, 3), 7), Err(Refusal::OutOfOrder { expected, .. }) if expected == at(3, 2)));
    assert!(matches!(seen.check(a, at(2, 2), 7), Err(Refusal::Replayed { expected, .. }) if expected == at(3, 2)));
    seen.record(a, at(3, 2), 7, kept("two"));
    let replayed = seen.check(a, at(3, 1), 7).unwrap_err();
    assert_eq!((replayed.code(), replayed.expected()), (Code::Replayed, Some(at(3, 3))));
    assert!(replayed.to_string().contains("go on with 3.3"), "{replayed}");
    // A new life begins at 1, and the old one is over.
    assert!(matches!(seen.check(a, at(9, 3), 7), Err(Refusal::OutOfOrder { expected, .. }) if expected == at(9, 1)));
    assert_eq!(seen.check(a, at(9, 1), 7), Ok(Admission::Fresh));
    seen.record(a, at(9, 1), 7, kept("new"));
    assert!(matches!(seen.check(a, at(3, 3), 7), Err(Refusal::Replayed { .. })));
    // Others have an order of their own.
    assert_eq!(seen.check(peer("b"), at(1, 1), 7), Ok(Admission::Fresh));
}

#[test]
fn long_answers_are_not_kept_and_the_table_is_bounded() {
    assert_eq!(Kept::new(200, "x".repeat(ANSWER_MAX + 1)).body, None);
    assert!(Kept::new(200, "x".repeat(ANSWER_MAX)).body.is_some());
    let mut seen = Sequences::default();
    for n in 0..PEERS_MAX {
        let one = peer(&format!("h{n}"));
        assert_eq!(seen.check(one, at(1, 1), 0), Ok(Admission::Fresh));
        seen.record(one, at(1, 1), 0, kept(""));
    }
    assert!(matches!(seen.check(peer("late"), at(1, 1), 0), Err(Refusal::TooManyPeers { .. })));
    assert_eq!(seen.check(peer("h5"), at(1, 2), 0), Ok(Admission::Fresh));
    seen.forget(peer("h5"));
    assert_eq!(seen.check(peer("late"), at(1, 1), 0), Ok(Admission::Fresh));
}

#[test]
fn highest_number_leads_to_the_next_incarnation() {
    let (mut seen, a) = (Sequences::default(), peer("a"));
    seen.record(a, at(1, u64::MAX), 0, kept(""));
    let stale = seen.check(a, at(1, 5), 0).unwrap_err();
    assert_eq!(stale.expected(), Some(at(2, 1)));
    assert_eq!(seen.check(a, at(2, 1), 0), Ok(Admission::Fresh));
}

#[test]
fn digest_separates_the_parts_of_a_request() {
    assert_ne!(digest("POST", "/a", b"b"), digest("POST", "/ab", b""));
    assert_eq!(digest("POST", "/a", b"b"), digest("POST", "/a", b"b"));
}

proptest! {
    /// Any requests in any order, with a restart anywhere: the carried out numbers are 1, 2, 3 ... of
    /// incarnations that only grow, each once.
    #[test]
    fn carried_out_is_a_gapless_order(
        tries in prop::collection::vec((1..4u64, 1..6u64, 0..2u64), 0..200), restart in 0..200usize,
    ) {
        let (mut seen, a) = (Sequences::default(), peer("a"));
        let mut done: Vec<(Sequence, u64)> = Vec::new();
        for (n, (incarnation, number, digest)) in tries.into_iter().enumerate() {
            if n == restart {
                seen = postcard::from_bytes(&postcard::to_stdvec(&seen).unwrap()).unwrap();
            }
            let got = at(incarnation, number);
            match seen.check(a, got, digest) {
                Ok(Admission::Fresh) => {
                    let (last, fits) = (done.last().map(|d| d.0), |l: Sequence| got == l.next() || (got.incarnation > l.incarnation && number == 1));
                    prop_assert!(last.map_or(number == 1, fits));
                    done.push((got, digest));
                    seen.record(a, got, digest, kept(&got.to_string()));
                }
                Ok(Admission::Repeat(answer)) => {
                    prop_assert_eq!(done.last(), Some(&(got, digest)));
                    prop_assert_eq!(answer.body, Some(got.to_string()));
                }
                // The number that the peer is asked for is accepted.
                Err(refusal) => {
                    let expected = refusal.expected().unwrap();
                    prop_assert_eq!(seen.check(a, expected, digest), Ok(Admission::Fresh));
                }
            }
        }
    }
}
