// SPDX-License-Identifier: Apache-2.0
//! A leader that takes itself out while others are just let in, and hosts that ask rarely.

use super::*;

/// Hosts 1 and 2 are members. Host 1 was delivered a view without itself, of host 2 and host 3, which is just
/// let in.
fn leaves_while_one_comes() -> World {
    let mut world = World::of(2);
    world.writes(1, "a");
    world.joins(3, 30);
    world.group(1).begin_next(View::new(2, &[member(2, 20), member(3, 30)]).unwrap());
    assert_eq!(world.standings(), [Standing::Leaving, Standing::Member, Standing::Joining]);
    world
}

#[test]
fn member_of_a_view_of_the_dead_gives_it_up() {
    let mut world = leaves_while_one_comes();
    // Before that view was delivered to host 2.
    world.dies(2);
    world.runs();
    assert_eq!(world.standings(), [Standing::Member; 2]);
    assert_eq!([1, 3].map(|host| world.state(host)), ["a"; 2]);
}

#[test]
fn several_members_of_a_view_of_the_dead_give_it_up() {
    let mut world = World::of(2);
    world.writes(1, "a");
    [(3, 30), (4, 40)].into_iter().for_each(|(host, incarnation)| world.joins(host, incarnation));
    world.group(1).begin_next(View::new(2, &[member(2, 20), member(3, 30), member(4, 40)]).unwrap());
    world.dies(2);
    world.runs();
    assert_eq!(world.standings(), [Standing::Member; 3]);
    assert_eq!([1, 3, 4].map(|host| world.state(host)), ["a"; 3]);
}

#[test]
fn member_waits_while_another_may_welcome_it() {
    let mut world = leaves_while_one_comes();
    world.run();
    world.run();
    assert_eq!(world.group(3).config.incarnation, 30);
}

/// Host 2 begins the view that is without host 1, and is heard by nobody; host 1 is excluded.
fn gives_up_while_another_may_go_on() -> (World, (Group<Hsuc>, Vec<u8>)) {
    let mut world = World::of(2);
    world.writes(1, "a");
    world.joins(3, 30);
    let view = View::new(2, &[member(1, 10), member(2, 20), member(3, 30)]).unwrap();
    [1, 2].into_iter().for_each(|host| world.group(host).begin_next(view.clone()));
    world.excluded(1);
    let unheard = world.members.remove(&2).unwrap();
    world.comes_back(1);
    world.meet();
    world.runs();
    assert_eq!(world.group(3).config.incarnation, 31);
    (world, unheard)
}

#[test]
fn member_that_dies_after_others_gave_up_is_awaited() {
    let (mut world, mut two) = gives_up_while_another_may_go_on();
    // Host 2 was notified that they are out, goes on alone, and dies.
    two.0.down(1, 10);
    two.0.down(3, 30);
    world.members.insert(2, two);
    world.writes(2, "b");
    assert_eq!(world.state(2), "ab");
    world.dies(2);
    world.runs();
    assert_eq!(world.standings(), [Standing::Joining; 2]);
    assert_eq!(world.group(1).refounding_awaits(), Some(HostSet::from_iter([2])), "it may have answered somebody");
}

/// Host 1 was taken out by the view of hosts 2 and 3, and hears nothing for a while. They let host 4 in, host
/// 2 is taken out as well, and host 3 dies.
#[test]
fn later_removed_members_confirm_an_earlier_removal() {
    let mut world = World::of(3);
    world.writes(1, "a");
    let view = View::new(2, &[member(2, 20), member(3, 30)]).unwrap();
    (1..=3).for_each(|host| world.group(host).begin_next(view.clone()));
    let unheard = world.members.remove(&1).unwrap();
    world.joins(4, 40);
    (0..20).for_each(|_| world.run());
    world.group(2).remove(HELD, 2).unwrap();
    (0..20).for_each(|_| world.run());
    world.dies(3);
    (0..20).for_each(|_| world.run());
    assert_eq!(world.standings(), [Standing::Removed, Standing::Member]);
    world.members.insert(1, unheard);
    world.group(1).down(3, 30);
    assert_eq!(world.group(1).standing(), Standing::Leaving);
    (0..20).for_each(|_| world.run());
    assert_eq!(world.standings(), [Standing::Removed, Standing::Removed, Standing::Member]);
}

impl World {
    /// Lets time pass, while some hosts do not hear some others.
    fn runs_deaf(&mut self, hears: impl Fn(u16, u16) -> bool) {
        for _ in 0..60 {
            let hosts: Vec<HostId> = self.members.keys().copied().collect();
            for host in &hosts {
                self.group(*host).resend(HELD);
                self.tell(*host);
            }
            for from in hosts {
                for (to, bytes) in self.sent(from) {
                    if hears(from, to)
                        && let Some((group, _)) = self.members.get_mut(&to)
                    {
                        let _ = group.receive(from, &bytes);
                    }
                }
            }
            self.comes_back_who_is_over();
        }
    }

    fn comes_back_who_is_over(&mut self) {
        let is_over = |(host, (group, _)): (&u16, &(Group<Hsuc>, Vec<u8>))| {
            (group.standing() == Standing::Excluded).then_some(*host)
        };
        let over: Vec<u16> = self.members.iter().filter_map(is_over).collect();
        for host in over {
            self.excluded(host);
            self.comes_back(host);
            self.meet();
        }
    }

    fn founders(&self) -> Vec<u16> {
        let founded = |(host, (group, _)): (&u16, &(Group<Hsuc>, Vec<u8>))| {
            let view = group.view().filter(|_| group.standing() == Standing::Member)?;
            (view.members()[0].host == *host).then_some(*host)
        };
        self.members.iter().filter_map(founded).collect()
    }
}

/// Host 2 had begun the view too, and is excluded but not dead: it hears the claims of the others, and is
/// heard by nobody.
#[test]
fn member_excluded_before_others_gave_up_founds_no_second_group() {
    for (deaf, founder) in [(1, 2), (3, 1)] {
        let mut world = leaves_while_one_comes();
        world.group(2).begin_next(View::new(2, &[member(2, 20), member(3, 30)]).unwrap());
        world.group(2).excluded();
        [1, 3].into_iter().for_each(|host| world.group(host).down(2, 20));
        world.comes_back(2);
        world.meet();
        world.runs_deaf(|from, to| from != 2 || to != deaf);
        assert_eq!(world.founders(), [founder], "not heard by {deaf}");
    }
}

/// Hosts 3 and 4 are let in by host 1, which is taken out. Host 2 is excluded, host 3 gives the view up after
/// that, and host 4 after host 3.
#[test]
fn outlived_host_does_not_vouch_for_deaths() {
    fn last(dead: &[u16]) -> HostSet {
        dead.iter().copied().collect()
    }
    // For the planted fault.
    World::of(1);
    let of = |said: &[(u16, &[u16])]| crate::group::claim::outlived(said.iter().map(|(by, dead)| (*by, last(dead))));
    assert_eq!(of(&[(3, &[2]), (4, &[3])]), last(&[3]), "as where host 3 is not heard");
    assert_eq!(of(&[(4, &[3])]), last(&[3]));
    assert_eq!(of(&[(3, &[2]), (4, &[3]), (5, &[4])]), last(&[2, 4]), "who was outlived says nothing of the third");
    assert_eq!(of(&[(3, &[2]), (4, &[2, 1])]), last(&[1, 2]));
    assert_eq!(of(&[(3, &[4]), (4, &[3])]), HostSet::EMPTY);
    assert_eq!(of(&[]), HostSet::EMPTY);
}

/// Its lease has run out: others may know it to be dead.
#[test]
fn host_without_lease_vouches_for_no_death() {
    let mut world = leaves_while_one_comes();
    world.group(1).excluded();
    world.comes_back(1);
    world.meet();
    world.dies(2);
    for _ in 0..40 {
        world.settle();
        world.members.values_mut().for_each(|(group, _)| group.resend(RUN_OUT));
    }
    assert_eq!(world.standings(), [Standing::Joining, Standing::Excluded]);
    world.runs();
    assert_eq!(world.group(1).refounding_awaits(), Some(HostSet::from_iter([2])));
}

#[test]
fn host_that_asks_rarely_is_let_in() {
    let mut world = World::of(1);
    world.writes(1, "a");
    world.joins(3, 30);
    for _ in 0..4 {
        world.group(3).resend(HELD);
        for _ in 0..300 {
            world.settle();
            world.group(1).resend(HELD);
        }
    }
    assert_eq!((world.standings(), world.state(3).as_str()), (vec![Standing::Member; 2], "a"));
}

impl World {
    /// The number of proposals that host 1 sends in this many resends, while nobody answers.
    fn sends_again(&mut self, resends: usize) -> usize {
        (0..resends)
            .map(|_| {
                self.group(1).resend(HELD);
                let sent = self.sent(1);
                sent.iter().filter(|(_, bytes)| Group::<Hsuc>::is_for_all(bytes)).count()
            })
            .sum()
    }
}

#[test]
fn resends_to_a_slow_member_back_off() {
    let mut world = World::of(2);
    world.group(1).propose(HELD, b"a").unwrap();
    assert_eq!(world.sends_again(1), 1, "the first time, and an answer may be under way");
    let (first, later) = (world.sends_again(16), world.sends_again(160));
    assert!((3..=6).contains(&first) && later == 10, "{first} and {later}");
    // It answers after all. Once nothing had to be resent for a while, lost messages are resent soon.
    (0..5).for_each(|_| world.run());
    assert_eq!(world.state(1), "a");
    world.group(1).propose(HELD, b"b").unwrap();
    world.sent(1);
    assert_eq!(world.sends_again(2), 1);
}

#[test]
fn backoff_ends_with_the_slow_member() {
    let mut world = World::of(3);
    world.group(1).propose(HELD, b"a").unwrap();
    world.sends_again(160);
    world.dies(3);
    world.sent(1);
    assert_eq!(world.sends_again(2), 2, "to host 2");
}

#[cfg(feature = "planted")]
#[test]
fn planted_faults_of_leaving_are_found() {
    are_found(&[
        (Planted::OffersTakeAll, "group::tests::leader_full_of_payloads_lets_in_a_host"),
        (Planted::NeverSlows, "group::tests::leaving::resends_to_a_slow_member_back_off"),
        (Planted::AwaitsTheLeaving, "group::tests::leaving::several_members_of_a_view_of_the_dead_give_it_up"),
        (Planted::ForgetsWhoDied, "group::tests::leaving::member_of_a_view_of_the_dead_gives_it_up"),
        (Planted::HeedsTheOutlived, "group::tests::leaving::outlived_host_does_not_vouch_for_deaths"),
        (Planted::TakenOutInSilence, "group::tests::leaving::later_removed_members_confirm_an_earlier_removal"),
        (Planted::OffersWhenAsked, "group::tests::leaving::host_that_asks_rarely_is_let_in"),
    ]);
}
impl World {
    /// One turn in which no message of the first host reaches the second.
    fn turn_without(&mut self, lost: Option<(u16, u16)>) {
        for host in [1, 2, 3] {
            self.tell(host);
            for (to, bytes) in self.sent(host) {
                if lost != Some((host, to)) && self.members.contains_key(&to) {
                    let _ = self.group(to).receive(host, &bytes);
                }
            }
        }
    }
}

/// Hosts 1 and 2 have begun a view with host 3, which does not know of it. They are excluded and come back;
/// host 3 has given that view up and has announced it to both.
fn one_gave_up_the_view_of_two_that_came_back(lost: Option<(u16, u16)>) -> World {
    let mut world = World::of(2);
    world.writes(1, "a");
    world.joins(3, 30);
    let view = View::new(2, &[member(1, 10), member(2, 20), member(3, 30)]).unwrap();
    [1, 2].into_iter().for_each(|host| world.group(host).begin_next(view.clone()));
    [1, 2].into_iter().for_each(|host| world.excluded(host));
    [1, 2].into_iter().for_each(|host| world.comes_back(host));
    world.meet();
    for _ in 0..100 {
        if world.group(3).standing() == Standing::Excluded {
            break;
        }
        [1, 2, 3].into_iter().for_each(|host| world.group(host).resend(HELD));
        world.turn_without(lost);
    }
    assert_eq!(world.standings(), [Standing::Joining, Standing::Joining, Standing::Excluded]);
    world.excluded(3);
    world.comes_back(3);
    world.meet();
    world.group(3).resend(HELD);
    world.turn_without(lost);
    assert_eq!(world.standings(), [Standing::Joining; 3]);
    world
}

#[test]
fn deliveries_of_the_first_refounder_are_not_lost_with_it() {
    let mut world = one_gave_up_the_view_of_two_that_came_back(None);
    world.group(1).resend(HELD);
    world.sent(1);
    assert_eq!(world.group(1).standing(), Standing::Member);
    world.group(1).propose(HELD, b"b").unwrap();
    world.tell(1);
    world.sent(1);
    assert_eq!(world.state(1), "ab");
    world.dies(1);
    world.runs();
    assert_eq!(
        (world.standings(), world.state(2)),
        (vec![Standing::Joining; 2], "a".to_owned()),
        "host 1 has delivered b"
    );
}

#[test]
fn member_that_missed_a_claim_founds_no_second_group() {
    let mut world = one_gave_up_the_view_of_two_that_came_back(Some((1, 2)));
    [1, 2].into_iter().for_each(|host| world.group(host).resend(HELD));
    for (host, text) in [(1, b"b"), (2, b"c")] {
        let _ = world.group(host).propose(HELD, text);
        world.tell(host);
    }
    let standings = world.standings();
    assert!(standings[..2] != [Standing::Member; 2], "{standings:?}: {:?}", [1, 2].map(|host| world.state(host)));
}
