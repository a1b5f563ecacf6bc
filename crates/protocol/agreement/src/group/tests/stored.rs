// SPDX-License-Identifier: Apache-2.0
//! Members that store what they decide.

use super::*;

impl World {
    /// As [`World::of`], of members that store.
    pub(super) fn durable(count: u16) -> Self {
        let mut world = Self::of(count);
        world.members.values_mut().for_each(|(group, _)| group.set_durable());
        world
    }

    /// All that is to be stored is on disk.
    fn store(&mut self) {
        for (group, _) in self.members.values_mut() {
            while group.poll_store(HELD).is_some() {}
            group.stored();
            group.base_stored(group.position());
        }
    }

    /// Delivers all that hosts send, once.
    fn carries(&mut self) {
        let hosts: Vec<HostId> = self.members.keys().copied().collect();
        for from in hosts {
            for (to, bytes) in self.sent(from) {
                if let Some((group, _)) = self.members.get_mut(&to)
                    && let Err(error) = group.receive(from, &bytes)
                {
                    self.refused.push(error);
                }
            }
        }
    }

    /// Lets time pass.
    pub(super) fn stores_all(&mut self) {
        for _ in 0..40 {
            let hosts: Vec<HostId> = self.members.keys().copied().collect();
            for _ in 0..8 {
                self.store();
                hosts.iter().for_each(|host| self.tell(*host));
                self.carries();
            }
            self.members.values_mut().for_each(|(group, _)| group.resend(HELD));
        }
    }

    pub(super) fn standing(&mut self, host: HostId) -> Standing {
        self.group(host).standing()
    }
}

#[test]
fn leader_does_not_answer_before_it_was_delivered_what_it_has_told() {
    let mut world = World::durable(3);
    world.stores_all();
    assert!(world.group(1).may_answer(HELD));
    world.group(1).propose(HELD, b"a").unwrap();
    for _ in 0..8 {
        world.store();
        world.carries();
    }
    world.tell(2);
    assert_eq!(world.state(2), "a", "told by the leader");
    assert!(!world.group(1).may_answer(HELD));
    world.tell(1);
    assert!(world.group(1).may_answer(HELD));
}

#[test]
fn host_joins_only_a_view_that_is_on_disk() {
    let mut world = World::durable(1);
    world.stores_all();
    world.joins(2, 20);
    world.group(2).set_durable();
    // The decision on the next view is stored; that host 1 is a member of it is not.
    for _ in 0..40 {
        world.members.values_mut().for_each(|(group, _)| group.resend(HELD));
        if world.group(1).view().unwrap().number() == 1 {
            world.store();
        }
        [1, 2].into_iter().for_each(|host| world.tell(host));
        world.carries();
    }
    assert_eq!(world.group(1).view().unwrap().number(), 2);
    assert_eq!(world.standing(2), Standing::Joining);
    world.stores_all();
    assert_eq!(world.standing(2), Standing::Member);
}

#[test]
fn group_found_again_skips_the_number_of_a_view_that_may_be_decided() {
    let mut world = World::durable(1);
    world.stores_all();
    let view = world.group(1).view().unwrap().clone();
    let member = RecalledMember { incarnation: 10, ballot: 0, view, position: Some(4) };
    let mut again = Group::join(config(1, 11)).unwrap();
    again.set_durable();
    again.recall(Recalled { first: 1, member: Some(member) }, &Incarnations::range(1, 10));
    world.members.insert(1, (again, Vec::new()));
    world.stores_all();
    assert_eq!(world.standing(1), Standing::Member);
    assert_eq!(world.group(1).view().unwrap().number(), 3);
}

/// A host without its disk answers for none of its former processes, as none of them it may know of.
#[test]
fn member_that_lost_its_disk_is_awaited_until_that_is_back() {
    let view = View::new(4, &[member(1, 10), member(2, 20)]).unwrap();
    let recalled = |incarnation, position| {
        let member = RecalledMember { incarnation, ballot: 0, view: view.clone(), position: Some(position) };
        Recalled { first: 1, member: Some(member) }
    };
    let with = |me, incarnation, recalled: Recalled| {
        let mut group = Group::join(config(me, incarnation)).unwrap();
        group.set_durable();
        let own = Incarnations::range(recalled.first, incarnation);
        group.recall(recalled, &own);
        (group, Vec::new())
    };
    // Without a record: lower or higher than the one that is in the view.
    for lost in [19, 21] {
        let mut world = World::durable(1);
        world.members.insert(1, with(1, 11, recalled(10, 3)));
        world.members.insert(2, with(2, lost, Recalled { first: lost, member: None }));
        world.meet();
        world.stores_all();
        // It is told that there was a higher one.
        assert_eq!(world.standing(2) == Standing::Excluded, lost == 19);
        if lost == 19 {
            world.group(2).rejoin(21).unwrap();
            world.meet();
            world.stores_all();
        }
        assert_eq!([1, 2].map(|host| world.standing(host)), [Standing::Joining; 2], "as {lost}");
        assert_eq!(world.group(1).refounding_awaits(), Some(HostSet::from_iter([2])));
        world.dies(2);
        world.members.insert(2, with(2, 22, recalled(20, 5)));
        world.meet();
        world.stores_all();
        assert_eq!([1, 2].map(|host| world.standing(host)), [Standing::Member; 2], "as {lost}");
        assert_eq!(world.group(1).leader(), Some(2), "it had more");
    }
}

/// They are more than half of the hosts, and the first processes of theirs as far as they know.
#[test]
fn hosts_that_lost_their_disks_found_no_group_beside_a_disk() {
    for number in [1, 5] {
        let members: Vec<ViewMember> = (1..=3).map(|host| member(host, 10 * u32::from(host))).collect();
        let view = View::new(number, &members).unwrap();
        let mut world = World { members: BTreeMap::new(), refused: Vec::new() };
        for host in [1, 2] {
            let hosts = HostSet::first(3);
            let mut group = Group::form(Config { hosts, ..config(host, 10 * u32::from(host) + 5) }).unwrap();
            group.set_first_process();
            group.set_durable();
            world.members.insert(host, (group, Vec::new()));
        }
        let mut kept = Group::join(Config { hosts: HostSet::first(3), ..config(3, 31) }).unwrap();
        kept.set_durable();
        let member = RecalledMember { incarnation: 30, ballot: 1, view, position: Some(7) };
        kept.recall(Recalled { first: 1, member: Some(member) }, &Incarnations::range(1, 30));
        world.members.insert(3, (kept, Vec::new()));
        world.meet();
        world.stores_all();
        assert!([1, 2].iter().all(|host| world.group(*host).poll_record().is_none()), "view {number}");
        assert_eq!(world.group(3).refounding_awaits(), Some(HostSet::from_iter([1, 2])));
        // Also if it ends.
        world.dies(3);
        world.stores_all();
        assert!([1, 2].iter().all(|host| world.group(*host).poll_record().is_none()), "view {number}");
    }
}

/// Its host has run without it meanwhile, as a higher incarnation, which the others know to be dead.
#[test]
fn disk_that_comes_back_is_not_led_by_a_dead_incarnation() {
    for order in [[member(2, 20), member(1, 10)], [member(1, 10), member(2, 20)]] {
        let view = View::new(4, &order).unwrap();
        let with = |me, incarnation, was, position| {
            let mut group = Group::join(config(me, incarnation)).unwrap();
            group.set_durable();
            let member = RecalledMember { incarnation: was, ballot: 0, view: view.clone(), position: Some(position) };
            group.recall(Recalled { first: 1, member: Some(member) }, &Incarnations::range(1, was));
            (group, Vec::new())
        };
        let mut world = World::durable(1);
        world.members.insert(1, with(1, 11, 10, 3));
        let mut empty = Group::join(config(2, 1000)).unwrap();
        empty.set_durable();
        world.members.insert(2, (empty, Vec::new()));
        world.meet();
        world.stores_all();
        // What was under way to the former one is lost.
        world.sent(1);
        world.dies(2);
        world.members.insert(2, with(2, 21, 20, 5));
        world.meet();
        world.stores_all();
        assert_eq!([1, 2].map(|host| world.standing(host)), [Standing::Joining, Standing::Excluded]);
        let floor = world.group(2).incarnation_floor();
        world.group(2).rejoin(floor + 1).unwrap();
        world.meet();
        world.stores_all();
        assert_eq!([1, 2].map(|host| world.standing(host)), [Standing::Member; 2]);
        assert_eq!([1, 2].map(|host| world.group(host).leader()), [Some(2); 2], "it had more on its disk");
        world.group(2).propose(HELD, b"a").unwrap();
        world.stores_all();
        assert_eq!([1, 2].map(|host| world.group(host).position()), [world.group(1).position(); 2]);
    }
}

#[test]
fn leader_that_was_taken_out_tells_the_others_how_far_they_may_deliver() {
    let mut world = World::durable(3);
    world.stores_all();
    world.group(1).remove(HELD, 1).unwrap();
    // What the leader says once the view without it is delivered there is lost.
    for _ in 0..200 {
        world.store();
        if world.group(1).poll_decision(HELD).is_some() {
            world.sent(1);
            break;
        }
        world.carries();
        world.members.values_mut().for_each(|(group, _)| group.resend(HELD));
    }
    assert_eq!(world.standing(1), Standing::Leaving);
    world.stores_all();
    assert_eq!([2, 3].map(|host| world.members_of(host)), [[2, 3], [2, 3]]);
}

/// See [`are_found`].
#[cfg(feature = "planted")]
#[test]
fn planted_faults_of_disks_are_found() {
    are_found(&[
        (Planted::LetsInTheDead, "group::tests::stored::disk_that_comes_back_is_not_led_by_a_dead_incarnation"),
        (Planted::WelcomesUnstored, "group::tests::stored::host_joins_only_a_view_that_is_on_disk"),
        (Planted::FoundsBesideAState, "group::tests::stored::hosts_that_lost_their_disks_found_no_group_beside_a_disk"),
    ]);
}
