// SPDX-License-Identifier: Apache-2.0
//! The steps from a group's present ports to its wanted ones.

use crate::{Drift, Rule};
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

/// Ports by group.
pub(crate) type Table = BTreeMap<Ipv4Addr, BTreeSet<String>>;

/// Ports to add to a group, and then ports to take away: never the other way round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) add: BTreeSet<String>,
    pub(crate) drop: BTreeSet<String>,
}

/// What happens to ports that a rule does not name, if a port that it names is refused. Without a refusal,
/// they are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Former {
    /// They stay: they may be the former ports of a change, which is not made by halves.
    Stays,
    /// They are removed: the change will not be completed, and a group's packets go where its rule says and
    /// nowhere else.
    Goes,
}

/// From a group's present ports to its rule's. Ports that are right already are in neither.
pub(crate) fn change(has: &BTreeSet<String>, rule: &Rule) -> Change {
    Change { add: &rule.ports - has, drop: has - &rule.ports }
}

/// If a group comes twice, the last rule counts.
pub(crate) fn by_group(rules: &[Rule]) -> BTreeMap<Ipv4Addr, &Rule> {
    rules.iter().map(|rule| (rule.group, rule)).collect()
}

/// The part of a rule that is in force, for a message.
pub(crate) fn in_force(has: &BTreeSet<String>, rule: &Rule) -> Vec<String> {
    (has & &rule.ports).into_iter().collect()
}

/// The differences, in order of the groups. A group without ports counts as missing.
pub(crate) fn drift(present: &Table, wanted: &[Rule]) -> Vec<Drift> {
    let wanted = by_group(wanted);
    let mut found = Vec::new();
    for rule in wanted.values() {
        let Change { add, drop } = change(present.get(&rule.group).unwrap_or(&BTreeSet::new()), rule);
        match (present.contains_key(&rule.group), add.is_empty() && drop.is_empty()) {
            (_, true) => {}
            (false, _) => found.push(Drift::Missing { group: rule.group }),
            (true, _) => found.push(Drift::Ports { group: rule.group, missing: add, extra: drop }),
        }
    }
    let extra = present.keys().filter(|g| !wanted.contains_key(g));
    found.extend(extra.map(|g| Drift::Extra { group: *g }));
    found
}

/// Groups that a repair removes.
pub(crate) fn unwanted(found: &[Drift]) -> Vec<Ipv4Addr> {
    found.iter().filter_map(|d| if let Drift::Extra { group } = d { Some(*group) } else { None }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tables() -> impl Strategy<Value = Table> {
        let group = (0u8..4).prop_map(|n| Ipv4Addr::new(239, 71, 0, n));
        let ports = proptest::collection::btree_set("[a-e]", 1..4);
        proptest::collection::btree_map(group, ports, 0..4)
    }

    fn rules(table: &Table) -> Vec<Rule> {
        table.iter().map(|(g, p)| Rule { group: *g, ports: p.clone() }).collect()
    }

    proptest! {
        #[test]
        fn changes_lead_to_the_wanted_ports_and_leave_kept_ones(present in tables(), wanted in tables()) {
            let mut table = present.clone();
            for rule in rules(&wanted) {
                let none = BTreeSet::new();
                let has = present.get(&rule.group).unwrap_or(&none);
                let Change { add, drop } = change(has, &rule);
                let kept = has & &rule.ports;
                prop_assert!(kept.is_disjoint(&add) && kept.is_disjoint(&drop) && add.is_disjoint(&drop));
                let ports = table.entry(rule.group).or_default();
                *ports = &(&*ports | &add) - &drop;
            }
            for group in unwanted(&drift(&present, &rules(&wanted))) {
                table.remove(&group);
            }
            prop_assert_eq!(&table, &wanted);
            prop_assert_eq!(drift(&table, &rules(&wanted)), vec![]);
            prop_assert_eq!(drift(&present, &rules(&wanted)).is_empty(), present == wanted);
        }
    }

    #[test]
    fn each_difference_is_named() {
        let group = |n| Ipv4Addr::new(239, 71, 0, n);
        let present = Table::from([(group(1), ["a", "b"].map(String::from).into()), (group(2), ["a".into()].into())]);
        let wanted = [Rule::new(group(1), ["b", "c"]), Rule::new(group(3), ["a"])];
        let text: Vec<_> = drift(&present, &wanted).iter().map(ToString::to_string).collect();
        assert_eq!(
            text,
            [
                "group 239.71.0.1 lacks ports {c} and has {a} too many",
                "group 239.71.0.3 is missing",
                "group 239.71.0.2 is not wanted"
            ]
        );
    }
}
