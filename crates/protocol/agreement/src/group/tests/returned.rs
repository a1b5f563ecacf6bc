// SPDX-License-Identifier: Apache-2.0
//! Disks that come back after their host has run without them.

use super::*;

/// A process of a host that finds a membership on its disk, and knows these incarnations to be of that disk.
fn with(me: u16, incarnation: u32, was: u32, view: &View, position: u64, own: &[(u32, u32)]) -> (Group<Hsuc>, Vec<u8>) {
    let mut group = Group::join(config(me, incarnation)).unwrap();
    group.set_durable();
    let member = RecalledMember { incarnation: was, ballot: 0, view: view.clone(), position: Some(position) };
    let own = Incarnations::from_ranges(own.iter().copied()).unwrap();
    group.recall(Recalled { first: 1, member: Some(member) }, &own);
    (group, Vec::new())
}

impl World {
    /// Host 1 waits with its disk, and holds 2:1000 dead: host 2 has run with an empty disk, and ended.
    fn after_an_empty_disk(view: &View) -> Self {
        let mut world = Self::durable(1);
        world.members.insert(1, with(1, 11, 10, view, 3, &[(1, 10)]));
        let mut empty = Group::join(config(2, 1000)).unwrap();
        empty.set_durable();
        world.members.insert(2, (empty, Vec::new()));
        world.meet();
        world.stores_all();
        // What was under way to it is lost.
        world.sent(1);
        world.dies(2);
        world
    }

    /// Time passes. Members that gave their incarnation up go on as another one.
    fn goes_on(&mut self) {
        for _ in 0..12 {
            let heard = HostSet::first(3);
            self.members.values_mut().for_each(|(group, _)| group.heard_by(heard));
            self.stores_all();
            self.answers_nothing_old();
            let over = |(host, (group, _)): (&u16, &(Group<Hsuc>, _))| group.standing().is_over().then_some(*host);
            let over: Vec<u16> = self.members.iter().filter_map(over).collect();
            for host in over {
                let (was, floor) = (self.group(host).config.incarnation, self.group(host).incarnation_floor());
                self.group(host).rejoin(floor + 1).unwrap();
                for (other, (group, _)) in &mut self.members {
                    if *other != host {
                        group.down(host, was);
                    }
                }
                self.meet();
            }
        }
    }

    /// At most one host may answer, and whoever may read from any member reads everything that was delivered.
    fn answers_nothing_old(&self) {
        let groups = || self.members.values().map(|(group, _)| group);
        assert!(groups().filter(|group| group.may_answer(HELD)).count() <= 1, "two may answer");
        let delivered = groups().map(Group::position).max();
        let reads: Vec<_> = groups().filter_map(|group| group.may_be_decided(HELD)).collect();
        assert!(reads.iter().all(|read| Some(*read) >= delivered), "{reads:?} and {delivered:?} delivered");
    }

    /// Exactly one of these hosts leads and may answer, and the others follow it.
    fn has_one_leader(&mut self, hosts: &[u16]) {
        let leaders: Vec<_> = hosts.iter().map(|host| self.group(*host).leader()).collect();
        let answers: Vec<u16> = hosts.iter().copied().filter(|host| self.group(*host).may_answer(HELD)).collect();
        assert!(
            answers.len() == 1 && leaders.iter().all(|leader| *leader == Some(answers[0])),
            "{leaders:?} {answers:?}"
        );
        let positions: Vec<u64> = hosts.iter().map(|host| self.group(*host).position()).collect();
        let reads: Vec<_> = hosts.iter().map(|host| self.group(*host).may_be_decided(HELD)).collect();
        assert!(reads.iter().all(|read| *read == Some(positions[0])), "{positions:?} {reads:?}");
    }

    fn are_members(&mut self, hosts: &[u16]) {
        let standings: Vec<_> = hosts.iter().map(|host| self.standing(*host)).collect();
        let views: Vec<_> = hosts.iter().map(|host| self.group(*host).view().cloned()).collect();
        assert!(standings.iter().all(|standing| *standing == Standing::Member), "{standings:?} {views:?}");
    }
}

/// The last view is host 2's alone, so it asks nobody before it founds the group. As a number from the clock, and as one
/// from a clock that was set back.
#[test]
fn host_whose_disk_came_back_founds_alone_and_lets_the_others_in() {
    let old = View::new(4, &[member(1, 10), member(2, 20)]).unwrap();
    let view = View::new(5, &[member(2, 20)]).unwrap();
    for incarnation in [1001, 900, 21] {
        let mut world = World::after_an_empty_disk(&old);
        world.members.insert(2, with(2, incarnation, 20, &view, 5, &[(1, 20)]));
        world.meet();
        world.goes_on();
        world.are_members(&[1, 2]);
        world.has_one_leader(&[1, 2]);
    }
}

/// Host 1 is stopped while the others go on, and joins through host 3, which knows nothing of 2:1000.
#[test]
fn host_that_joins_later_is_led_by_no_host_that_is_dead_to_it() {
    let old = View::new(3, &[member(3, 30), member(2, 20), member(1, 10)]).unwrap();
    let view = View::new(4, &[member(3, 30), member(2, 20)]).unwrap();
    for incarnation in [1001, 21] {
        let mut world = World::after_an_empty_disk(&old);
        let stopped = world.members.remove(&1).unwrap();
        world.members.insert(2, with(2, incarnation, 20, &view, 7, &[(1, 20)]));
        world.members.insert(3, with(3, 31, 30, &view, 7, &[(1, 30)]));
        world.meet();
        world.goes_on();
        world.are_members(&[2, 3]);
        world.members.insert(1, stopped);
        world.meet();
        world.goes_on();
        world.are_members(&[1, 2, 3]);
        world.has_one_leader(&[1, 2, 3]);
        world.dies(3);
        world.goes_on();
        world.has_one_leader(&[1, 2]);
        let leader = world.group(1).leader().unwrap();
        world.group(leader).propose(HELD, b"x").unwrap();
        world.goes_on();
        world.has_one_leader(&[1, 2]);
        world.dies(1);
        world.goes_on();
        assert!(world.group(2).may_answer(HELD) && world.state(2).ends_with('x'), "{}", world.state(2));
    }
}

/// Nobody is stopped: the group that host 2 founds alone is handed over to host 3, by which host 1 joins.
#[test]
fn host_that_joins_by_another_is_led_by_no_host_that_is_dead_to_it() {
    let old = View::new(3, &[member(3, 30), member(2, 20), member(1, 10)]).unwrap();
    let view = View::new(5, &[member(2, 20)]).unwrap();
    for incarnation in [1001, 21] {
        let mut world = World::after_an_empty_disk(&old);
        world.members.insert(2, with(2, incarnation, 20, &view, 7, &[(1, 20)]));
        world.members.insert(3, with(3, 31, 30, &old, 3, &[(1, 30)]));
        world.meet();
        world.goes_on();
        world.are_members(&[1, 2, 3]);
        let leader = world.group(3).leader().unwrap();
        if leader != 3 {
            world.group(leader).hand_over(HELD, 3).unwrap();
        }
        world.goes_on();
        world.group(3).propose(HELD, b"x").unwrap();
        world.goes_on();
        world.has_one_leader(&[1, 2, 3]);
        world.dies(3);
        world.goes_on();
        world.has_one_leader(&[1, 2]);
    }
}

/// Host 3 has most, and does not know that 2:1000 ran.
#[test]
fn founder_that_knows_nothing_of_it_lets_no_dead_host_in_beside_one_that_does() {
    for order in [[member(3, 30), member(2, 20), member(1, 10)], [member(3, 30), member(1, 10), member(2, 20)]] {
        for incarnation in [1001, 21] {
            let view = View::new(4, &order).unwrap();
            let mut world = World::after_an_empty_disk(&view);
            world.members.insert(2, with(2, incarnation, 20, &view, 5, &[(1, 20)]));
            world.members.insert(3, with(3, 31, 30, &view, 7, &[(1, 30)]));
            world.meet();
            world.stores_all();
            world.group(3).propose(HELD, b"y").unwrap();
            world.stores_all();
            world.answers_nothing_old();
            world.goes_on();
            world.are_members(&[1, 2, 3]);
            world.group(3).propose(HELD, b"x").unwrap();
            world.goes_on();
            world.has_one_leader(&[1, 2, 3]);
            world.dies(3);
            world.goes_on();
            world.has_one_leader(&[1, 2]);
        }
    }
}

/// What host 1 said as the view began was lost, or it had not heard host 2 yet: it says again that host 2 is dead to it.
#[test]
fn member_that_is_dead_to_another_is_told_so_until_it_hears_it() {
    let view = View::new(4, &[member(3, 30), member(2, 20), member(1, 10)]).unwrap();
    let mut world = World::durable(1);
    for host in 1..=3 {
        world.members.insert(host, with(host, u32::from(host) * 10 + 1, u32::from(host) * 10, &view, 7, &[(1, 30)]));
    }
    world.meet();
    world.goes_on();
    world.are_members(&[1, 2, 3]);
    world.group(1).down(2, 1000);
    world.group(1).up(2, 21);
    for _ in 0..2 {
        world.sent(1);
        world.group(1).resend(HELD);
        let says = |bytes: &[u8]| matches!(Control::read(&bytes[PREFIX_LEN..]), Ok(Control::Higher { dead: 1000 }));
        assert!(world.sent(1).iter().any(|(to, bytes)| *to == 2 && bytes.len() > PREFIX_LEN && says(bytes)));
    }
}

/// 2:21 was let in to the last view and its disk has 2:20, as the power went before its state was stored. Then host 2 ran
/// with an empty disk as 2:1000. The disk comes back with a number from the clock, and with one from a clock that was set
/// back, which is given up for a higher one.
#[test]
fn disk_that_comes_back_answers_for_the_processes_before_the_jump() {
    let before = View::new(4, &[member(1, 10), member(2, 20)]).unwrap();
    let last = View::new(6, &[member(1, 10), member(2, 21)]).unwrap();
    for (incarnation, own) in [(1005, (20, 21)), (900, (20, 21)), (22, (20, 21))] {
        let mut world = World::after_an_empty_disk(&last);
        world.members.insert(2, with(2, incarnation, 20, &before, 3, &[own]));
        world.meet();
        world.goes_on();
        world.are_members(&[1, 2]);
        world.has_one_leader(&[1, 2]);
    }
}

/// 2:1000 had no disk, and was let in: it may have answered alone. No other disk answers for it, whatever number that
/// comes back with.
#[test]
fn disk_that_comes_back_does_not_answer_for_the_empty_one() {
    let before = View::new(4, &[member(1, 10), member(2, 20)]).unwrap();
    let last = View::new(6, &[member(1, 10), member(2, 1000)]).unwrap();
    for incarnation in [1005, 1000, 900, 22] {
        let mut world = World::after_an_empty_disk(&last);
        world.members.insert(2, with(2, incarnation, 20, &before, 9, &[(20, 21)]));
        world.meet();
        world.goes_on();
        assert_eq!([1, 2].map(|host| world.standing(host)), [Standing::Joining; 2], "as {incarnation}");
        assert_eq!(world.group(1).refounding_awaits(), Some(HostSet::from_iter([2])), "as {incarnation}");
    }
}

/// The group waits at the bound rather than that an incarnation is answered for by mistake.
#[test]
fn oldest_processes_are_not_answered_for_beyond_the_bound() {
    let before = View::new(4, &[member(1, 10), member(2, 20)]).unwrap();
    for (let_in, goes_on) in [(22, false), (24, true)] {
        let last = View::new(6, &[member(1, 10), member(2, let_in)]).unwrap();
        let mut world = World::durable(1);
        world.members.insert(1, with(1, 11, 10, &last, 9, &[(1, 10)]));
        let mut own = Incarnations::default();
        (10..=11 + RANGES_MAX as u32).for_each(|at| own.push(2 * at));
        world.members.insert(2, with(2, 1000, 20, &before, 3, own.ranges()));
        world.meet();
        world.goes_on();
        assert_eq!(world.standing(1) == Standing::Member, goes_on, "2:{let_in}");
    }
}

/// A member of version 1 knows one range, and refuses what says more.
#[test]
fn claim_for_a_process_of_version_1_names_the_last_range() {
    let view = View::new(4, &[member(1, 10), member(2, 20)]).unwrap();
    let claims = |version| {
        let mut world = World::durable(1);
        world.members.insert(1, with(1, 11, 10, &view, 3, &[(1, 10)]));
        world.members.insert(2, with(2, 1000, 20, &view, 3, &[(20, 21), (500, 501)]));
        world.meet();
        world.group(2).speak(version);
        world.group(2).resend(HELD);
        let read = |bytes: &[u8]| Control::read(&bytes[PREFIX_LEN..]).ok().map(|control| (control, bytes[PREFIX_LEN]));
        let sent: Vec<_> = world.sent(2).iter().filter_map(|(_, bytes)| read(bytes)).collect();
        let claims = sent.into_iter().filter_map(|(control, kind)| match control {
            Control::Claim(claim) => Some((claim.earlier.ranges().to_vec(), claim.first, claim.last, kind)),
            _ => None,
        });
        claims.collect::<Vec<_>>()
    };
    assert_eq!(claims(2), [(vec![(20, 21)], 500, 501, 14)]);
    assert_eq!(claims(1), [(vec![], 500, 501, 8)]);
}

/// See [`are_found`].
#[cfg(feature = "planted")]
#[test]
fn planted_faults_of_returned_disks_are_found() {
    are_found(&[
        (
            Planted::LetsInTheDead,
            "group::tests::returned::host_whose_disk_came_back_founds_alone_and_lets_the_others_in",
        ),
        (Planted::LetsInTheDead, "group::tests::returned::host_that_joins_later_is_led_by_no_host_that_is_dead_to_it"),
        (Planted::AnswersForOthers, "group::tests::returned::disk_that_comes_back_does_not_answer_for_the_empty_one"),
        (Planted::AnswersForGaps, "group::tests::returned::disk_that_comes_back_does_not_answer_for_the_empty_one"),
    ]);
}
