// SPDX-License-Identifier: Apache-2.0
//! A user installs another member's state, or says that it did without having been offered one.

use super::*;

/// Host 3 joins hosts 1 and 2, whose state is "a", and was offered that state.
fn with_an_offer() -> World {
    let mut world = World::of(2);
    world.writes(1, "a");
    world.joins(3, 30);
    while world.group(3).poll_install().is_none() {
        exchange(&mut world);
    }
    world
}

/// All hosts resend, and are heard; hosts 1 and 2 deliver.
fn exchange(world: &mut World) {
    world.members.values_mut().for_each(|(group, _)| group.resend(HELD));
    for from in 1..=3 {
        for (to, bytes) in world.sent(from) {
            let _ = world.group(to).receive(from, &bytes);
        }
    }
    [1, 2].into_iter().for_each(|host| world.tell(host));
}

/// Hosts 1 and 2 decide, and host 3 hears nothing of it.
fn goes_on_without_3(world: &mut World, text: &str) {
    world.group(1).propose(HELD, text.as_bytes()).unwrap();
    for _ in 0..4 {
        for from in 1..=2 {
            for (to, bytes) in world.sent(from).into_iter().filter(|(to, _)| *to != 3) {
                let _ = world.group(to).receive(from, &bytes);
            }
        }
        [1, 2].into_iter().for_each(|host| world.tell(host));
    }
}

#[test]
fn installed_without_an_offer_changes_nothing() {
    let mut world = World::of(2);
    world.writes(1, "a");
    world.joins(3, 30);
    world.run();
    world.writes(1, "b");
    // Host 3 joined with the state after "a", and is beyond that.
    world.group(3).installed();
    world.writes(1, "c");
    assert_eq!([1, 2, 3].map(|host| world.state(host)), ["abc"; 3]);
    assert_eq!(world.group(3).position(), world.group(1).position());

    // The state that excluded members keep is not changed either.
    (1..=3).for_each(|host| world.excluded(host));
    (1..=3).for_each(|host| world.comes_back(host));
    (1..=3).for_each(|host| world.group(host).installed());
    world.meet();
    world.run();
    world.run();
    assert_eq!(world.standings(), [Standing::Member; 3]);
    let leader = world.group(2).leader().unwrap();
    world.writes(leader, "d");
    assert_eq!([1, 2, 3].map(|host| world.state(host)), ["abcd"; 3]);
}

#[test]
fn no_state_and_decision_at_once() {
    let mut world = with_an_offer();
    let joins = world.group(3);
    assert!(joins.poll_decision(HELD).is_none() && !joins.wants_state(), "no member yet");
    let (position, state) = joins.take_install().expect("offered");
    assert_eq!((state.as_slice(), position, joins.position()), (&b"a"[..], position, position));
    assert!(joins.take_install().is_none(), "once");
    world.members.get_mut(&3).expect("it joins").1 = state;
    world.run();
    world.writes(1, "b");
    assert_eq!((world.group(3).standing(), world.state(3).as_str()), (Standing::Member, "ab"));
}

/// The offer is an address, say: the user fetches the state there, as it is some decisions later.
#[test]
fn state_that_was_fetched_elsewhere_may_be_a_later_one() {
    let mut world = with_an_offer();
    let (offered, _) = world.group(3).poll_install().expect("offered");
    assert!(!world.group(3).installed_at(offered - 1), "older than the offer");
    world.group(3).state_dropped();
    // Meanwhile the group goes on.
    ["b", "c"].into_iter().for_each(|text| goes_on_without_3(&mut world, text));
    let position = world.group(2).position();
    assert!(position > offered);
    world.members.get_mut(&3).expect("it joins").1 = b"abc".to_vec();
    assert!(world.group(3).installed_at(position));
    assert!(!world.group(3).installed_at(position), "once");
    world.run();
    world.writes(1, "d");
    assert_eq!([1, 2, 3].map(|host| world.state(host)), ["abcd"; 3]);
    assert_eq!(world.group(3).standing(), Standing::Member);
}

/// The user of an address does not take the same address again.
#[test]
fn offer_that_comes_late_does_not_keep_a_host_out() {
    let mut world = with_an_offer();
    let (offered, _) = world.group(3).poll_install().expect("offered");
    world.group(3).state_dropped();
    assert!(world.group(3).installed_at(offered));
    world.members.get_mut(&3).expect("it joins").1 = b"a".to_vec();
    // A later state, as another host has asked for it.
    goes_on_without_3(&mut world, "b");
    let late = world.group(1).position();
    assert!(late > offered);
    let state = b"ab".to_vec();
    world.group(1).give_state(state.clone()).unwrap();
    let identity = crate::transfer::Identity::of(&state);
    let joins = world.group(3);
    joins.joining.offered(1, late, identity, &mut joins.transfers);
    // It is here, and the user leaves it where it is.
    let rounds = (0..60).take_while(|_| {
        exchange(&mut world);
        world.group(3).standing() != Standing::Member
    });
    assert!(rounds.count() < 60, "let in with what it has: {:?}", world.group(3).poll_install().map(|(at, _)| at));
    world.run();
    world.writes(1, "c");
    assert_eq!([1, 3].map(|host| world.state(host)), ["abc"; 2]);
}

#[test]
fn offer_that_is_declined_is_made_anew() {
    let mut world = with_an_offer();
    world.group(3).state_dropped();
    world.group(3).decline_offer();
    assert!(world.group(3).poll_install().is_none());
    world.group(3).decline_offer();
    world.run();
    world.writes(1, "b");
    assert_eq!((world.group(3).standing(), world.state(3).as_str()), (Standing::Member, "ab"));
}
