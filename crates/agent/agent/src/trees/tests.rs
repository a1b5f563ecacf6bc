// SPDX-License-Identifier: Apache-2.0

use std::net::Ipv4Addr;

use super::*;

#[test]
fn trees_are_kept_over_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(memory::FILE);
    assert_eq!(Kept::load(&path).unwrap(), Kept::default());
    let tree = Tree { lane: 7, generation: 3, group: Ipv4Addr::new(239, 64, 0, 9) };
    let mut kept = Kept::default();
    kept.set(1, tree);
    kept.save(&path).unwrap();
    let again = Kept::load(&path).unwrap();
    assert_eq!((again.of(0), again.of(1), again.of(2)), (None, Some(tree), None));
    std::fs::write(&path, "{\"planes\": 3}").unwrap();
    let error = Kept::load(&path).unwrap_err().to_string();
    assert!(error.contains("trees.json") && error.contains("remove it"), "{error}");
}

#[test]
fn tree_groups_are_only_those_of_the_range() {
    for (group, right) in [
        ([239, 64, 0, 1], true),
        ([239, 79, 255, 255], true),
        ([239, 80, 0, 0], false),
        ([239, 63, 255, 255], false),
        ([10, 0, 0, 1], false),
    ] {
        assert_eq!(is_tree_group(group.into()), right, "{group:?}");
    }
}
