// SPDX-License-Identifier: Apache-2.0
//! Partial partitions: two members do not hear each other while the others hear both. Alquraan et al. (OSDI
//! 2020) describe what that does to systems. The members that stay form a clique: each hears every other.

use fide_types::{HostId, HostSet, MAX_HOSTS};

/// The members to evict, so that all that stay hear each other.
///
/// `reports` holds, for each member that has reported, the hosts it does not hear. A pair counts as
/// disconnected if one of the two does not hear the other. The member with the most such pairs goes first; of
/// several, the witness (0: none), else the one with the highest id. This repeats until no pair is left, so
/// every host that knows the same reports evicts the same members.
///
/// Finding the largest clique is hard, and this greedy choice does not always find it. In practice one cable
/// fails, or all cables of one host.
pub fn members_to_evict(members: HostSet, witness: HostId, reports: impl Iterator<Item = (u16, HostSet)>) -> HostSet {
    // By host id; 0 is unused.
    let mut disconnected = [HostSet::EMPTY; MAX_HOSTS + 1];
    for (by, unheard) in reports.filter(|(by, _)| members.contains(*by)) {
        for other in unheard.and(members).iter().filter(|other| *other != by) {
            disconnected[usize::from(by)].insert(other);
            disconnected[usize::from(other)].insert(by);
        }
    }
    let mut evicted = HostSet::EMPTY;
    loop {
        let stay = members.minus(evicted);
        let pairs = |id: HostId| disconnected[usize::from(id)].and(stay).len();
        match stay.iter().max_by_key(|id| (pairs(*id), *id == witness, *id)).filter(|id| pairs(*id) > 0) {
            Some(id) => evicted.insert(id),
            None => return evicted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(ids: &[HostId]) -> HostSet {
        ids.iter().copied().collect()
    }

    #[test]
    fn the_most_disconnected_member_is_evicted_and_of_a_pair_the_higher_id() {
        let all = set(&[1, 2, 3, 4, 5]);
        let evicted = |reports: &[(u16, &[u16])]| {
            members_to_evict(all, 4, reports.iter().map(|(by, unheard)| (*by, set(unheard))))
        };
        assert_eq!(evicted(&[]), set(&[]));
        assert_eq!(evicted(&[(1, &[2]), (2, &[1])]), set(&[2]));
        assert_eq!(evicted(&[(2, &[1])]), set(&[2]), "one direction is enough");
        assert_eq!(evicted(&[(1, &[2, 3]), (2, &[1]), (3, &[1])]), set(&[1]));
        assert_eq!(evicted(&[(1, &[2, 3, 4, 5])]), set(&[1]), "a host that hears nothing");
        assert_eq!(evicted(&[(1, &[2]), (3, &[4])]), set(&[2, 4]));
        assert_eq!(evicted(&[(4, &[5])]), set(&[4]), "the witness goes before the higher id");
        assert_eq!(evicted(&[(4, &[5]), (5, &[3])]), set(&[5]));
        assert_eq!(evicted(&[(1, &[1, 9])]), set(&[]), "a leaving host reports itself; h9 is no member");
    }

    proptest! {
        #[test]
        fn members_that_stay_hear_each_other_and_none_is_evicted_without_cause(
            members: u64,
            witness in 0u16..=64,
            reports in prop::collection::vec((1u16..=64, any::<u64>(), any::<u64>(), any::<u64>()), 0..20),
        ) {
            let members = HostSet(members);
            let reports: Vec<(u16, HostSet)> =
                reports.iter().map(|(by, a, b, c)| (*by, HostSet(a & b & c))).collect();
            let evicted = members_to_evict(members, witness, reports.iter().copied());
            let stay = members.minus(evicted);
            let disconnected = |a: u16, b: u16| {
                let reported =
                    |(by, unheard): &(u16, HostSet)| *by == a && unheard.contains(b) || *by == b && unheard.contains(a);
                a != b && reports.iter().any(reported)
            };
            prop_assert!(stay.iter().all(|a| stay.iter().all(|b| !disconnected(a, b))));
            prop_assert!(evicted.iter().all(|a| members.iter().any(|b| disconnected(a, b))));
            prop_assert!(evicted.minus(members).is_empty());
        }
    }
}
