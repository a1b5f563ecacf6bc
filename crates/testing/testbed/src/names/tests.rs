// SPDX-License-Identifier: Apache-2.0
use super::*;

#[test]
fn a_name_is_read_back() {
    let owner = Owner { pid: 71, start_ticks: 900_001, serial: 3 };
    assert_eq!(owner.namespace("h12"), "fide-71-900001-3-h12");
    assert_eq!(Owner::parse(&owner.namespace("h12")), Some(owner.clone()));
    assert_eq!(Owner::parse(&owner.prefix()), Some(owner));
}

#[test]
fn other_peoples_names_are_not_ours() {
    for name in ["", "fide", "fide-", "fide-x-1-2-h1", "fide-1", "fide-1-2", "fide-1-2-h1", "blue-1-2-3-h1"] {
        assert_eq!(Owner::parse(name), None, "{name:?}");
    }
}

#[test]
fn this_process_lives_and_its_predecessor_with_the_same_pid_does_not() {
    let me = Owner::new().unwrap();
    assert!(me.creator_lives());
    let before = Owner { start_ticks: me.start_ticks - 1, ..me.clone() };
    assert!(!before.creator_lives());
    assert_ne!(Owner::new().unwrap().prefix(), me.prefix());
}
