// SPDX-License-Identifier: Apache-2.0
//! Members that were excluded while their processes lived: they keep what they have, and found their group again if nobody goes on.

use super::*;
use crate::group::holding::{Claim, Held};

impl World {
    /// The others go on without it, or nobody does. It comes back as the incarnation after.
    fn excluded(&mut self, host: u16) {
        let was = self.group(host).config.incarnation;
        self.group(host).excluded();
        for (other, (group, _)) in &mut self.members {
            if *other != host {
                group.down(host, was);
            }
        }
    }

    fn comes_back(&mut self, host: u16) {
        let was = self.group(host).config.incarnation;
        self.group(host).rejoin(was + 1).unwrap();
    }

    fn standings(&self) -> Vec<Standing> {
        self.members.values().map(|(group, _)| group.standing()).collect()
    }

    /// Hosts 1 and 2 go on without host 3, and then all are out.
    fn all_out() -> Self {
        let mut world = Self::of(3);
        world.writes(1, "a");
        world.excluded(3);
        world.run();
        world.writes(1, "b");
        assert_eq!((world.members_of(1), world.state(3).as_str()), (vec![1, 2], "a"));
        [1, 2].into_iter().for_each(|host| world.excluded(host));
        assert_eq!(world.standings(), [Standing::Excluded; 3]);
        world
    }
}

#[test]
fn who_are_all_excluded_found_their_group_again() {
    let mut world = World::all_out();
    (1..=3).for_each(|host| world.comes_back(host));
    world.meet();
    assert_eq!(world.group(3).holds_for(), Some(HostSet::from_iter([1, 2])), "they have not said what they hold");
    world.run();
    world.run();
    assert_eq!(world.standings(), [Standing::Member; 3]);
    world.writes(1, "c");
    assert_eq!([1, 2, 3].map(|host| world.state(host)), ["abc"; 3]);
    // And again.
    (1..=3).for_each(|host| world.excluded(host));
    (1..=3).for_each(|host| world.comes_back(host));
    world.meet();
    world.run();
    world.run();
    let leader = world.group(2).leader().unwrap();
    world.writes(leader, "d");
    assert_eq!([1, 2, 3].map(|host| world.state(host)), ["abcd"; 3]);
}

#[test]
fn the_group_is_founded_again_with_all_that_was_told_to_anybody() {
    let mut world = World::of(3);
    world.group(1).propose(HELD, b"x").unwrap();
    // All have it, and the leader alone has told it.
    for (to, bytes) in world.sent(1) {
        world.group(to).receive(1, &bytes).unwrap();
    }
    for host in [2, 3] {
        for (_, bytes) in world.sent(host) {
            world.group(1).receive(host, &bytes).unwrap();
        }
    }
    world.tell(1);
    assert_eq!([1, 2, 3].map(|host| world.state(host)), ["x", "", ""]);
    (1..=3).for_each(|host| world.excluded(host));
    (1..=3).for_each(|host| world.comes_back(host));
    world.meet();
    world.run();
    world.run();
    assert_eq!([1, 2, 3].map(|host| world.state(host)), ["x"; 3]);
}

#[test]
fn while_one_of_the_last_view_is_missing_the_others_wait() {
    let mut world = World::all_out();
    // Its process has died: it may have gone on alone.
    world.members.remove(&1);
    [2, 3].into_iter().for_each(|host| world.comes_back(host));
    world.joins(1, 12);
    world.run();
    assert_eq!(world.standings(), [Standing::Joining; 3]);
    assert_eq!(world.group(2).holds_for(), Some(HostSet::from_iter([1])));
    assert_eq!(world.state(2), "ab", "it keeps it");
}

#[test]
fn without_a_lease_no_group_is_founded_again() {
    let mut world = World::all_out();
    (1..=3).for_each(|host| world.comes_back(host));
    world.meet();
    for _ in 0..8 {
        world.settle();
        world.members.values_mut().for_each(|(group, _)| group.resend(RUN_OUT));
    }
    assert_eq!(world.standings(), [Standing::Joining; 3]);
}

#[test]
fn who_was_excluded_takes_over_from_those_who_went_on() {
    let mut world = World::of(3);
    world.writes(1, "a");
    world.excluded(3);
    world.comes_back(3);
    world.meet();
    world.writes(1, "b");
    world.run();
    world.writes(1, "c");
    assert_eq!(world.standings(), [Standing::Member; 3]);
    assert_eq!([1, 2, 3].map(|host| world.state(host)), ["abc"; 3]);
}

#[test]
fn what_is_held_gives_way_to_a_later_view_only() {
    let mut world = World::all_out();
    [1, 2].into_iter().for_each(|host| world.comes_back(host));
    // Host 3 has not heard that it is out, and believes to be alone: it has no lease.
    let view = View::new(1, &[member(1, 10), member(2, 20), member(3, 30)]).unwrap();
    let mut late = Group::found(config(3, 30), view).unwrap();
    late.down(1, 10);
    late.down(2, 20);
    world.members.insert(3, (late, b"old".to_vec()));
    world.meet();
    for _ in 0..8 {
        world.settle();
        for host in [1, 2] {
            world.group(host).resend(RUN_OUT);
        }
        world.group(3).resend(RUN_OUT);
    }
    assert_eq!([1, 2].map(|host| world.state(host)), ["ab"; 2]);
    world.excluded(3);
    world.comes_back(3);
    world.meet();
    world.run();
    world.run();
    assert_eq!((world.standings(), world.state(3).as_str()), (vec![Standing::Member; 3], "ab"));
}

#[test]
fn who_was_let_in_and_never_began_holds_up_nobody() {
    let mut world = World::of(2);
    world.writes(1, "a");
    // Host 3 is in the view, and does not know it.
    let view = View::new(2, &[member(1, 10), member(2, 20), member(3, 30)]).unwrap();
    [1, 2].into_iter().for_each(|host| world.group(host).begin_next(view.clone()));
    world.joins(3, 30);
    (1..=3).for_each(|host| world.excluded(host));
    (1..=3).for_each(|host| world.comes_back(host));
    world.meet();
    world.run();
    world.run();
    assert_eq!(world.standings(), [Standing::Member; 3]);
    assert_eq!([1, 2, 3].map(|host| world.state(host)), ["a"; 3]);
}

#[test]
fn who_was_removed_answers_for_nothing() {
    let mut world = World::of(2);
    world.group(1).remove(HELD, 2).unwrap();
    world.run();
    assert_eq!(world.group(2).standing(), Standing::Removed);
    world.excluded(2);
    world.comes_back(2);
    assert!(world.group(2).holds_for().is_none());
    // Were it asked for the view that it was in, it had nothing to say.
    let view = View::new(9, &[member(2, 20)]).unwrap();
    let claim = Claim { since: 10, over: 10, held: Some(Held { was: 10, position: 0, view }) };
    world.group(2).up(1, 11);
    world.group(2).claimed(1, 11, claim);
    world.group(2).resend(HELD);
    assert_eq!(world.group(2).standing(), Standing::Joining);
}

#[test]
fn who_is_no_excluded_member_goes_on_as_no_other() {
    let mut world = World::of(1);
    let wrong = |world: &mut World, incarnation| world.group(1).rejoin(incarnation).is_err();
    assert!(wrong(&mut world, 11), "it is a member");
    world.group(1).excluded();
    assert!(wrong(&mut world, 10) && wrong(&mut world, 9));
    assert!(!wrong(&mut world, 11));
    // Alone it needs nobody's word.
    world.writes_nothing();
}

impl World {
    fn writes_nothing(&mut self) {
        self.run();
        assert_eq!(self.standings(), [Standing::Member]);
    }
}
