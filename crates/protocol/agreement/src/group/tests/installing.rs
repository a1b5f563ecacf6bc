// SPDX-License-Identifier: Apache-2.0
//! A user installs another member's state, or says that it did without having been offered one.

use super::*;

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
    let mut world = World::of(2);
    world.writes(1, "a");
    world.joins(3, 30);
    while world.group(3).poll_install().is_none() {
        world.members.values_mut().for_each(|(group, _)| group.resend(HELD));
        for from in 1..=3 {
            for (to, bytes) in world.sent(from) {
                let _ = world.group(to).receive(from, &bytes);
            }
        }
        [1, 2].into_iter().for_each(|host| world.tell(host));
    }
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
