// SPDX-License-Identifier: Apache-2.0
//! Partial partitions: two members do not hear each other, and others hear both (Alquraan et al., OSDI 2020, have what that does to
//! systems). Who may stay is a clique of those who hear each other.

use fide_types::HostSet;
use fide_wire::MAX_HOSTS;

/// Members that have to go, so that all that stay hear each other. `reports`: of each member whose word is known, whom it does not
/// hear; that only one of two does not hear the other is enough.
///
/// The member with the most such pairs goes first, of several the witness (0: none), else the one with the highest id; and so on until no
/// pair is left. Whoever knows the same reports finds the same. (The largest clique is hard to find, and not always found; cables fail one
/// by one, or a host's all at once.)
pub fn outside(members: HostSet, witness: u16, reports: impl Iterator<Item = (u16, HostSet)>) -> HostSet {
    let mut pairs = [HostSet::EMPTY; MAX_HOSTS];
    for (by, silent) in reports.filter(|(by, _)| members.contains(*by)) {
        for other in silent.and(members).iter().filter(|other| *other != by) {
            pairs[usize::from(by) - 1].insert(other);
            pairs[usize::from(other) - 1].insert(by);
        }
    }
    let mut gone = HostSet::EMPTY;
    loop {
        let stay = members.minus(gone);
        let count = |id: u16| pairs[usize::from(id) - 1].and(stay).len();
        match stay.iter().max_by_key(|id| (count(*id), *id == witness, *id)).filter(|id| count(*id) > 0) {
            Some(id) => gone.insert(id),
            None => return gone,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(ids: &[u16]) -> HostSet {
        ids.iter().copied().collect()
    }

    #[test]
    fn of_two_the_higher_goes_and_of_more_the_one_that_most_do_not_hear() {
        let all = set(&[1, 2, 3, 4, 5]);
        let outside =
            |reports: &[(u16, &[u16])]| outside(all, 4, reports.iter().map(|(by, silent)| (*by, set(silent))));
        assert_eq!(outside(&[]), set(&[]));
        assert_eq!(outside(&[(1, &[2]), (2, &[1])]), set(&[2]));
        assert_eq!(outside(&[(2, &[1])]), set(&[2]), "one of both is enough");
        assert_eq!(outside(&[(1, &[2, 3]), (2, &[1]), (3, &[1])]), set(&[1]));
        assert_eq!(outside(&[(1, &[2, 3, 4, 5])]), set(&[1]), "a host that hears nothing");
        assert_eq!(outside(&[(1, &[2]), (3, &[4])]), set(&[2, 4]));
        assert_eq!(outside(&[(4, &[5])]), set(&[4]), "of two the witness");
        assert_eq!(outside(&[(4, &[5]), (5, &[3])]), set(&[5]));
        assert_eq!(outside(&[(1, &[1, 9])]), set(&[]), "itself, when it leaves, and who is no member");
    }

    proptest! {
        #[test]
        fn who_stays_hears_all_that_stay_and_nobody_goes_without_cause(
            members: u64, witness in 0u16..=64, reports in prop::collection::vec((1u16..=64, any::<u64>(), any::<u64>(), any::<u64>()), 0..20),
        ) {
            let members = HostSet(members);
            let reports: Vec<(u16, HostSet)> =
                reports.iter().map(|(by, a, b, c)| (*by, HostSet(a & b & c))).collect();
            let gone = outside(members, witness, reports.iter().copied());
            let stay = members.minus(gone);
            let apart = |a: u16, b: u16| {
                a != b && reports.iter().any(|(by, silent)| *by == a && silent.contains(b) || *by == b && silent.contains(a))
            };
            prop_assert!(stay.iter().all(|a| stay.iter().all(|b| !apart(a, b))));
            prop_assert!(gone.iter().all(|a| members.iter().any(|b| apart(a, b))));
            prop_assert!(gone.minus(members).is_empty());
        }
    }
}
