// SPDX-License-Identifier: Apache-2.0
//! Members that were excluded while their processes lived: they keep their state, and found their group again
//! if nobody goes on.

use super::*;

impl World {
    /// The others go on without it, or nobody does. It comes back as the next incarnation.
    pub(super) fn excluded(&mut self, host: HostId) {
        let was = self.group(host).config.incarnation;
        self.group(host).excluded();
        for (other, (group, _)) in &mut self.members {
            if *other != host {
                group.down(host, was);
            }
        }
    }

    pub(super) fn comes_back(&mut self, host: HostId) {
        let was = self.group(host).config.incarnation;
        self.group(host).rejoin(was + 1).unwrap();
    }

    pub(super) fn standings(&self) -> Vec<Standing> {
        self.members.values().map(|(group, _)| group.standing()).collect()
    }

    /// Hosts 1 and 2 go on without host 3, and then all are excluded.
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
fn all_excluded_members_found_their_group_again() {
    let mut world = World::all_out();
    (1..=3).for_each(|host| world.comes_back(host));
    world.meet();
    assert_eq!(
        world.group(3).refounding_awaits(),
        Some(HostSet::from_iter([1, 2])),
        "they have not said what they hold"
    );
    world.run();
    world.run();
    assert_eq!(world.standings(), [Standing::Member; 3]);
    world.writes(1, "c");
    assert_eq!([1, 2, 3].map(|host| world.state(host)), ["abc"; 3]);
    // Once more.
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
fn refounded_group_has_all_delivered_decisions() {
    let mut world = World::of(3);
    world.group(1).propose(HELD, b"x").unwrap();
    // All have it, but only the leader has delivered it.
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
fn refounding_waits_for_all_members_of_the_last_view() {
    let mut world = World::all_out();
    // Its process has died, and may have gone on alone before.
    world.members.remove(&1);
    [2, 3].into_iter().for_each(|host| world.comes_back(host));
    world.joins(1, 12);
    world.run();
    assert_eq!(world.standings(), [Standing::Joining; 3]);
    assert_eq!(world.group(2).refounding_awaits(), Some(HostSet::from_iter([1])));
    assert_eq!(world.state(2), "ab", "it keeps it");
}

#[test]
fn no_refounding_without_lease() {
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
fn excluded_member_takes_over_from_the_surviving_group() {
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
fn kept_state_gives_way_only_to_a_later_view() {
    let mut world = World::all_out();
    [1, 2].into_iter().for_each(|host| world.comes_back(host));
    // Host 3 has not heard that it is excluded, and believes that it is alone; it has no lease.
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
fn unwelcomed_host_is_not_awaited() {
    let mut world = World::of(2);
    world.writes(1, "a");
    // Host 3 is in the view, and does not know that.
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

impl World {
    /// Lets time pass; a host that gives its incarnation up comes back as another one.
    pub(super) fn runs(&mut self) {
        for _ in 0..4 {
            self.run();
            let over: Vec<u16> = self
                .members
                .iter()
                .filter(|(_, (group, _))| group.standing() == Standing::Excluded)
                .map(|(host, _)| *host)
                .collect();
            for host in over {
                self.excluded(host);
                self.comes_back(host);
                self.meet();
            }
        }
    }
}

#[test]
fn two_unwelcomed_hosts_are_not_awaited() {
    let mut world = World::of(1);
    world.writes(1, "a");
    [(2, 20), (3, 30)].into_iter().for_each(|(host, incarnation)| world.joins(host, incarnation));
    // Both are in the view, and its only other member is excluded before it could welcome them.
    let view = View::new(2, &[member(1, 10), member(2, 20), member(3, 30)]).unwrap();
    world.group(1).begin_next(view);
    world.excluded(1);
    world.comes_back(1);
    world.meet();
    world.runs();
    assert_eq!(world.standings(), [Standing::Member; 3]);
    assert_eq!([1, 2, 3].map(|host| world.state(host)), ["a"; 3]);
}

#[test]
fn lone_first_view_gives_way_to_the_others() {
    let mut world = unfounded(3);
    let hold = |world: &mut World| world.members.values_mut().for_each(|(group, _)| group.resend(HELD));
    (0..2).for_each(|_| {
        hold(&mut world);
        world.settle();
    });
    // It begins, and is excluded before anybody hears of it.
    world.group(1).recorded();
    assert_eq!(world.members_of(1), [1, 2, 3]);
    world.sent(1);
    world.excluded(1);
    world.forms();
    assert_eq!((world.members_of(2), world.members_of(3)), (vec![2, 3], vec![2, 3]));
    world.writes(2, "b");
    world.comes_back(1);
    world.meet();
    world.runs();
    assert_eq!(world.standings(), [Standing::Member; 3]);
    assert_eq!([1, 2, 3].map(|host| world.state(host)), ["b"; 3]);
}

#[test]
fn member_without_deliveries_answers_after_taking_over_a_state() {
    let mut world = World::of(3);
    world.excluded(3);
    world.comes_back(3);
    world.meet();
    // Host 1 offers its state in the view that host 3 was in; then the others are excluded before the view
    // without host 3.
    let base = {
        let state = world.group(1).transfers.store(b"".to_vec()).unwrap();
        let (bytes, base) = (&mut Vec::new(), Control::Base { position: 0, state });
        Prefix { group: 7, sender: 10, receiver: 31, view: 1, kind: Kind::Control }.write(bytes);
        base.write(bytes);
        bytes.clone()
    };
    world.group(3).receive(1, &base).unwrap();
    world.settle();
    assert_eq!((world.group(3).joining.have(), world.group(3).refounding_awaits()), (Some(0), None));
    [1, 2].into_iter().for_each(|host| world.excluded(host));
    [1, 2].into_iter().for_each(|host| world.comes_back(host));
    world.meet();
    world.runs();
    assert_eq!(world.standings(), [Standing::Member; 3]);
}

#[test]
fn higher_ballot_wins_of_two_first_views() {
    // Host 4 founded and began one alone; hosts 1 to 3 founded another one when it was gone. Nothing was
    // delivered to anybody.
    let began = |host: HostId, ballot: u32, order: &[u16]| {
        let members: Vec<ViewMember> = order.iter().map(|host| member(*host, 10 * u32::from(*host))).collect();
        let mut group = Group::found(config(host, 10 * u32::from(host)), View::new(1, &members).unwrap()).unwrap();
        group.founding.set_ballot(ballot);
        (host, (group, Vec::new()))
    };
    let three = [1, 2, 3].map(|host| began(host, 5, &[1, 2, 3]));
    let members = three.into_iter().chain([began(4, 3, &[4, 1, 2, 3])]).collect();
    let mut world = World { members, refused: Vec::new() };
    (1..=4).for_each(|host| world.excluded(host));
    (1..=4).for_each(|host| world.comes_back(host));
    world.meet();
    // The claim of host 4 has reached nobody when host 1 founds the group again; host 4 has the claims of
    // all.
    for host in 1..=3 {
        world.group(host).resend(RUN_OUT);
    }
    world.settle();
    for host in [1, 4] {
        world.group(host).resend(HELD);
    }
    let founded = world.standings().iter().filter(|standing| **standing == Standing::Member).count();
    assert_eq!((founded, world.group(1).standing()), (1, Standing::Member));
}

#[test]
fn member_that_took_over_a_state_never_began_its_view() {
    let mut world = World::of(2);
    world.writes(1, "a");
    // Host 2 is excluded before it hears of the view with both, which host 1 has begun.
    world.excluded(2);
    let view = View::new(2, &[member(1, 10), member(2, 20)]).unwrap();
    world.group(1).begin_next(view);
    world.group(1).down(2, 20);
    world.comes_back(2);
    world.meet();
    let base = {
        let state = world.group(1).transfers.store(b"a".to_vec()).unwrap();
        let bytes = &mut Vec::new();
        Prefix { group: 7, sender: 10, receiver: 21, view: 2, kind: Kind::Control }.write(bytes);
        Control::Base { position: 1, state }.write(bytes);
        bytes.clone()
    };
    world.group(2).receive(1, &base).unwrap();
    world.settle();
    assert_eq!((world.group(2).joining.have(), world.group(2).refounding_awaits()), (Some(1), None));
    world.excluded(1);
    world.comes_back(1);
    world.meet();
    world.runs();
    assert_eq!(world.standings(), [Standing::Member; 2]);
    assert_eq!([1, 2].map(|host| world.state(host)), ["a"; 2]);
}

#[test]
fn last_member_is_taken_out_once_another_has_its_state() {
    let mut world = World::of(2);
    world.writes(1, "a");
    world.excluded(2);
    world.group(1).remove(HELD, 1).unwrap();
    world.settle();
    world.writes(1, "b");
    world.comes_back(2);
    world.meet();
    world.runs();
    assert_eq!(world.group(1).standing(), Standing::Removed);
    assert_eq!((world.members_of(2), world.state(2).as_str()), (vec![2], "ab"));
}

#[test]
fn new_incarnation_ends_the_former_one() {
    let mut world = World::of(3);
    world.excluded(3);
    world.comes_back(3);
    // A death that was reported while it was out, and one that was never reported.
    let mut of_3 = Group::<Hsuc>::found(config(1, 10), world.group(1).view().unwrap().clone()).unwrap();
    of_3.excluded();
    of_3.down(2, 20);
    of_3.rejoin(11).unwrap();
    of_3.up(3, 31);
    assert_eq!((of_3.liveness.dead(2), of_3.liveness.dead(3)), (20, 30));
}

#[test]
fn removed_member_with_most_deliveries_founds_again() {
    let mut world = World::of(2);
    world.writes(1, "a");
    // Only to host 2 the view without it is delivered, and a value with it.
    world.members.get_mut(&2).unwrap().1.push(b'b');
    world.group(2).position += 1;
    world.group(2).begin_next(View::new(2, &[member(1, 10)]).unwrap());
    assert_eq!(world.group(2).standing(), Standing::Leaving);
    [1, 2].into_iter().for_each(|host| world.excluded(host));
    [1, 2].into_iter().for_each(|host| world.comes_back(host));
    world.meet();
    world.runs();
    assert_eq!(world.standings(), [Standing::Member; 2]);
    assert_eq!([1, 2].map(|host| world.state(host)), ["ab"; 2]);
}

#[test]
fn removed_member_is_needed_until_the_next_view_has_begun() {
    let mut world = World::of(2);
    world.writes(1, "a");
    world.group(1).remove(HELD, 1).unwrap();
    for (_, bytes) in world.sent(1) {
        world.group(2).receive(1, &bytes).unwrap();
    }
    // Host 2 has acknowledged that view, but it was not delivered to host 2.
    for (_, bytes) in world.sent(2) {
        world.group(1).receive(2, &bytes).unwrap();
    }
    world.tell(1);
    world.group(1).settle();
    assert_eq!(world.standings(), [Standing::Leaving, Standing::Member]);
    world.run();
    assert_eq!(world.standings(), [Standing::Removed, Standing::Member]);
}

/// Two members are taken out, and the view may be delivered to both before the member that stays. Each would
/// found the group again where it does not hear the other.
#[test]
fn at_most_one_of_two_removed_members_founds_again() {
    let mut world = World::of(3);
    world.writes(1, "a");
    let passes = |world: &mut World| {
        for (to, bytes) in world.sent(1) {
            world.group(to).receive(1, &bytes).unwrap();
        }
        for host in [2, 3] {
            world.tell(host);
            for (_, bytes) in world.sent(host) {
                world.group(1).receive(host, &bytes).unwrap();
            }
        }
    };
    // Both removals wait for a decision that is under way.
    world.group(1).propose(HELD, b"b").unwrap();
    passes(&mut world);
    [2, 3].into_iter().for_each(|host| world.group(1).remove(HELD, host).unwrap());
    world.tell(1);
    world.group(1).resend(HELD);
    // Host 1 decides the next view, and has no time to deliver it.
    (0..3).for_each(|_| passes(&mut world));
    assert_eq!(world.group(1).view().unwrap().number(), 1);
    assert!(world.standings().contains(&Standing::Leaving));
    (1..=3).for_each(|host| world.excluded(host));
    (1..=3).for_each(|host| world.comes_back(host));
    world.meet();
    (1..=3).for_each(|host| world.group(host).resend(RUN_OUT));
    for from in 1..=3 {
        for (to, bytes) in world.sent(from) {
            // Messages of host 2 to host 3 are lost.
            if (from, to) != (2, 3) {
                world.group(to).receive(from, &bytes).unwrap();
            }
        }
    }
    (1..=3).for_each(|host| world.group(host).resend(HELD));
    let founded = world.standings().iter().filter(|standing| **standing == Standing::Member).count();
    assert_eq!(founded, 1, "{:?}", world.standings());
    world.meet();
    world.runs();
    assert_eq!(world.standings(), [Standing::Member; 3]);
}

#[test]
fn members_are_taken_out_one_by_one_and_the_leader_last() {
    let mut world = World::of(4);
    world.writes(1, "a");
    [2, 1, 4].into_iter().for_each(|host| world.group(1).remove(HELD, host).unwrap());
    world.run();
    world.run();
    assert_eq!((world.members_of(3), world.group(3).view().unwrap().number()), (vec![3], 4));
    assert_eq!(world.standings().iter().filter(|standing| **standing == Standing::Removed).count(), 3);
}

#[test]
fn all_but_the_leader_are_taken_out() {
    let mut world = World::of(3);
    world.writes(1, "a");
    [2, 1, 3].into_iter().for_each(|host| world.group(1).remove(HELD, host).unwrap());
    world.run();
    world.run();
    assert_eq!(world.standings(), [Standing::Member, Standing::Removed, Standing::Removed]);
}

/// It would not be a member any more to do it.
#[test]
fn leaving_leader_takes_out_nobody_else() {
    let mut world = World::of(3);
    world.writes(1, "a");
    world.group(1).remove(HELD, 1).unwrap();
    assert_eq!(world.group(1).remove(HELD, 3), Err(Refused::Changing));
    world.run();
    assert_eq!(world.standings(), [Standing::Removed, Standing::Member, Standing::Member]);
    world.group(2).remove(HELD, 3).unwrap();
    world.run();
    assert_eq!(world.standings(), [Standing::Removed, Standing::Member, Standing::Removed]);
}

#[test]
fn member_removed_by_an_unbegun_view_founds_again() {
    let mut world = World::of(2);
    world.writes(1, "a");
    world.group(1).begin_next(View::new(2, &[member(2, 20)]).unwrap());
    world.excluded(2);
    world.group(1).resend(HELD);
    assert_eq!(world.standings(), [Standing::Excluded; 2]);
    world.group(2).down(1, 10);
    [1, 2].into_iter().for_each(|host| world.comes_back(host));
    world.meet();
    world.runs();
    assert_eq!(world.standings(), [Standing::Member; 2]);
    assert_eq!([1, 2].map(|host| world.state(host)), ["a"; 2]);
}

#[test]
fn removed_member_is_let_in_again() {
    let mut world = World::of(2);
    world.writes(1, "a");
    world.group(1).remove(HELD, 2).unwrap();
    world.run();
    assert_eq!(world.group(2).standing(), Standing::Removed);
    world.excluded(2);
    world.comes_back(2);
    world.meet();
    world.runs();
    assert_eq!((world.standings(), world.state(2).as_str()), (vec![Standing::Member; 2], "a"));
}

#[test]
fn only_an_excluded_member_rejoins() {
    let mut world = World::of(1);
    let wrong = |world: &mut World, incarnation| world.group(1).rejoin(incarnation).is_err();
    assert!(wrong(&mut world, 11), "it is a member");
    world.group(1).excluded();
    assert!(wrong(&mut world, 10) && wrong(&mut world, 9));
    assert!(!wrong(&mut world, 11));
    // A lone member needs no answer.
    world.writes_nothing();
}

impl World {
    fn writes_nothing(&mut self) {
        self.run();
        assert_eq!(self.standings(), [Standing::Member]);
    }
}

/// Host 3 has lost its record, and its clock is behind: it comes as an incarnation that there was already, or
/// as a lower one.
fn comes_too_low(incarnation: u32) -> World {
    let mut world = World::of(3);
    world.writes(1, "a");
    world.dies(3);
    world.run();
    world.joins(3, incarnation);
    for _ in 0..2 {
        world.run();
        world.run();
    }
    world
}

#[test]
fn dead_incarnation_is_given_up_for_a_higher_one() {
    for incarnation in [25, 29, 30] {
        let mut world = comes_too_low(incarnation);
        assert_eq!(world.standings(), [Standing::Member, Standing::Member, Standing::Excluded], "{incarnation}");
        assert_eq!((world.members_of(1), world.group(3).incarnation_floor()), (vec![1, 2], 30));
        assert!(matches!(world.group(3).rejoin(30), Err(GroupError::Incarnation { .. })));
        world.group(3).rejoin(31).unwrap();
        world.meet();
        world.run();
        assert_eq!(world.standings(), [Standing::Member; 3]);
        world.writes(1, "b");
        assert_eq!(world.state(3), "ab");
    }
}

#[test]
fn dead_incarnation_never_leads() {
    let mut world = comes_too_low(25);
    world.writes(1, "b");
    // Both at once, so that neither can say that the other is in no view any more.
    world.dies(1);
    world.dies(2);
    world.run();
    assert!(!world.group(3).may_answer(HELD), "not everything was delivered to it: {}", world.state(3));
}

#[test]
fn founder_takes_in_no_dead_incarnation() {
    let mut world = unfounded(2);
    world.members.values_mut().for_each(|(group, _)| group.resend(HELD));
    world.settle();
    world.dies(2);
    let config = Config { hosts: HostSet::first(2), ..config(2, 15) };
    world.members.insert(2, (Group::form(config).unwrap(), Vec::new()));
    world.meet();
    world.forms();
    assert_eq!(world.group(1).standing(), Standing::Joining, "it may have begun");
}

/// Host 3, as incarnation 30, may have gone on alone; that process is gone, and the next one comes as
/// incarnation 25.
fn comes_below_what_is_held_dead() -> World {
    let mut world = World::of(3);
    world.writes(1, "a");
    (1..=2).for_each(|host| world.excluded(host));
    world.dies(3);
    (1..=2).for_each(|host| world.comes_back(host));
    world.joins(3, 25);
    world
}

#[test]
fn process_answers_for_no_skipped_incarnations() {
    let mut world = comes_below_what_is_held_dead();
    world.run();
    world.run();
    assert_eq!(world.group(3).standing(), Standing::Excluded);
    world.group(3).rejoin(31).unwrap();
    world.meet();
    world.run();
    world.run();
    assert_eq!(world.group(1).refounding_awaits(), Some(HostSet::from_iter([3])), "nobody knows what that process did");
}

/// As before, but its host is excluded just when it has heard that its incarnation is dead.
#[test]
fn excluded_process_answers_for_no_skipped_incarnations() {
    let mut world = comes_below_what_is_held_dead();
    world.meet();
    world.group(3).resend(HELD);
    world.settle();
    assert_eq!((world.group(3).standing(), world.group(3).incarnation_floor()), (Standing::Joining, 30));
    world.excluded(3);
    world.group(3).rejoin(31).unwrap();
    world.meet();
    world.run();
    world.run();
    assert_eq!(world.group(1).refounding_awaits(), Some(HostSet::from_iter([3])), "nobody knows what that process did");
}

/// As before, but its process died while the others were out, and nobody is notified.
#[test]
fn higher_incarnation_does_not_answer_for_a_dead_member() {
    let mut world = World::of(3);
    world.writes(1, "a");
    (1..=2).for_each(|host| world.excluded(host));
    (1..=2).for_each(|host| world.comes_back(host));
    world.joins(3, 25);
    world.meet();
    for _ in 0..10 {
        world.group(3).resend(HELD);
        world.settle();
        world.excluded(3);
        let above = world.group(3).incarnation_floor();
        world.group(3).rejoin(above + 1).unwrap();
        world.meet();
    }
    world.run();
    world.run();
    assert_eq!(world.group(1).refounding_awaits(), Some(HostSet::from_iter([3])), "nobody knows what that process did");
}

#[cfg(feature = "planted")]
#[test]
fn planted_faults_of_dead_incarnations_are_found() {
    are_found(&[
        (Planted::LetsInTheDead, "group::tests::refounding::dead_incarnation_never_leads"),
        (Planted::AnswersForOthers, "group::tests::refounding::process_answers_for_no_skipped_incarnations"),
        (Planted::AnswersForOthers, "group::tests::refounding::excluded_process_answers_for_no_skipped_incarnations"),
        (Planted::AnswersForOthers, "group::tests::refounding::higher_incarnation_does_not_answer_for_a_dead_member"),
    ]);
}

#[cfg(feature = "planted")]
#[test]
fn planted_faults_of_refounding_are_found() {
    are_found(&[
        (Planted::MissesTheFormer, "group::tests::refounding::new_incarnation_ends_the_former_one"),
        (Planted::IgnoresBallots, "group::tests::refounding::higher_ballot_wins_of_two_first_views"),
        (Planted::RemovesTheLast, "group::tests::refounding::last_member_is_taken_out_once_another_has_its_state"),
        (Planted::RemovedEndsEarly, "group::tests::refounding::member_removed_by_an_unbegun_view_founds_again"),
        (Planted::TakesOutSeveral, "group::tests::refounding::members_are_taken_out_one_by_one_and_the_leader_last"),
    ]);
}
