// SPDX-License-Identifier: Apache-2.0
//! What a host that waits knows of the others: advice to people depends on it.

use super::*;

#[test]
fn host_that_joins_knows_who_is_a_member() {
    let mut world = World::of(2);
    world.writes(1, "a");
    world.joins(3, 30);
    assert!(world.group(3).known_members().is_empty());
    world.group(1).give_state(b"a".to_vec()).unwrap();
    // The leader offers its state; host 3 does not take it over, as a user with a full disk.
    world.group(3).resend(HELD);
    for (to, bytes) in world.sent(3) {
        world.group(to).receive(3, &bytes).unwrap();
    }
    world.group(1).give_state(b"a".to_vec()).unwrap();
    for _ in 0..2 {
        for (to, bytes) in world.sent(1) {
            world.group(to).receive(1, &bytes).unwrap();
        }
    }
    assert_eq!(world.group(3).standing(), Standing::Joining);
    assert_eq!(world.group(3).known_members(), HostSet::only(1));
    assert!(!world.group(3).is_known_to_be_lost());
    // Its next incarnation has to show it anew.
    world.group(3).down(1, 10);
    world.group(3).up(1, 11);
    assert!(world.group(3).known_members().is_empty());
}

#[test]
fn group_is_known_to_be_lost_once_all_say_that_they_are_in_none() {
    let mut world = World::of(5);
    world.writes(1, "a");
    (1..=5).for_each(|host| world.dies(host));
    (1..=4).for_each(|host| world.joins(host, 11 * u32::from(host)));
    world.run();
    assert!(!world.group(1).is_known_to_be_lost(), "host 5 may be a member");
    world.joins(5, 55);
    world.run();
    assert!((1..=5).all(|host| world.group(host).is_known_to_be_lost()));
}

#[test]
fn group_whose_state_somebody_keeps_is_not_lost() {
    let mut world = World::of(5);
    world.writes(1, "a");
    (1..=5).for_each(|host| world.excluded(host));
    world.comes_back(2);
    for host in [1, 3, 4, 5] {
        world.members.remove(&host);
        world.joins(host, 11 * u32::from(host));
    }
    world.run();
    assert!((1..=5).all(|host| !world.group(host).is_known_to_be_lost()), "host 2 keeps it");
}
