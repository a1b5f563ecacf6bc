// SPDX-License-Identifier: Apache-2.0
//! Processes that die while their group is being founded, before they have a record.

use super::*;

/// A process that founds the group of hosts 1 to `count` with the others, of which it has not heard yet.
fn forms(host: HostId, incarnation: u32, count: u16) -> Group<Hsuc> {
    Group::form(Config { hosts: HostSet::first(count.into()), ..config(host, incarnation) }).unwrap()
}

impl World {
    fn starts(&mut self, host: HostId, incarnation: u32, count: u16) {
        self.members.insert(host, (forms(host, incarnation, count), Vec::new()));
    }

    /// Host `to` receives what host `from` has to send to it; messages of `from` to others are lost. Whether
    /// there were any for `to`.
    fn hears(&mut self, to: u16, from: u16) -> bool {
        let sent: Vec<_> = self.sent(from).into_iter().filter(|(receiver, _)| *receiver == to).collect();
        sent.iter().for_each(|(_, bytes)| drop(self.group(to).receive(from, bytes)));
        !sent.is_empty()
    }

    /// A host resends what is due, and one other host receives it.
    fn says(&mut self, from: u16, to: u16) {
        self.group(from).resend(HELD);
        assert!(self.hears(to, from));
    }

    fn stores(&mut self, host: HostId) {
        assert!(self.group(host).poll_record().is_some(), "host {host} begins nothing");
        self.group(host).recorded();
    }
}

/// A process of host 2, from which host 1 has heard that it is in no group, has died, and another one is up. The process
/// of host 3 knows that, and that one of host 1 has died, but of nobody that is up: the next ballot is its own.
fn host_2_comes_back(of_host_3: u32) -> World {
    let mut world = World { members: BTreeMap::new(), refused: Vec::new() };
    [(1, 10), (2, 20), (3, of_host_3)].into_iter().for_each(|(host, of)| world.starts(host, of, 3));
    world.group(1).up(2, 20);
    world.group(2).up(1, 10);
    world.says(2, 1);
    world.starts(2, 21, 3);
    world.group(1).down(2, 20);
    [(1, 9), (2, 20)].into_iter().for_each(|(host, of)| world.group(3).down(host, of));
    world.group(3).resend(HELD);
    world
}

/// Two first views: {1, 3}, which host 1 began alone and announced to nobody, and {3, 2}, which hosts 3 and 2 began
/// once host 1 was excluded, and in which a decision was delivered. Before that, processes died on hosts 2
/// and 3, and host 1 heard of their promises to each other late.
fn two_first_views() -> World {
    let mut world = host_2_comes_back(29);
    world.group(3).up(2, 21);
    world.group(2).up(3, 29);
    world.says(3, 2);
    // It dies as well. Its successor and host 1 know of each other, and found the group; host 1 does not know
    // that host 2 is up again.
    world.starts(3, 30, 3);
    world.group(1).up(3, 30);
    world.group(3).up(1, 10);
    world.group(3).up(2, 21);
    world.says(1, 3);
    world.says(3, 1);
    world.group(1).resend(HELD);
    world.stores(1);
    world.sent(1);
    assert_eq!(world.members_of(1), [1, 3]);
    // Now hosts 2 and 1 know of each other; the process on host 2 tells host 1 its promise.
    world.group(2).down(3, 29);
    world.group(2).up(1, 10);
    world.group(1).up(2, 21);
    world.says(2, 1);
    world.group(1).resend(HELD);
    world.sent(1);
    // It dies, and host 1 is excluded.
    world.excluded(1);
    world.group(3).down(2, 21);
    world.starts(2, 22, 3);
    world.group(3).resend(HELD);
    world.group(3).up(2, 22);
    world.group(2).up(3, 30);
    world.says(3, 2);
    world.says(2, 3);
    world.group(3).resend(HELD);
    world.stores(3);
    world.says(2, 3);
    world.says(3, 2);
    world.stores(2);
    assert_eq!((world.members_of(3), world.members_of(2)), (vec![3, 2], vec![3, 2]));
    world.group(3).propose(HELD, b"x").unwrap();
    world.says(3, 2);
    world.says(2, 3);
    // The decision is delivered only on host 2, as the lease of the other host has run out.
    world.says(3, 2);
    world.tell(2);
    assert_eq!([1, 2, 3].map(|host| world.state(host)), ["", "x", ""]);
    [3, 2].into_iter().for_each(|host| world.excluded(host));
    world
}

#[test]
fn deliveries_of_the_later_first_view_are_not_lost() {
    let mut world = two_first_views();
    (1..=3).for_each(|host| world.comes_back(host));
    world.meet();
    world.run();
    world.run();
    assert_eq!([1, 2, 3].map(|host| world.state(host)), ["x"; 3]);
}

/// Host 1 begins a first view, announces it to nobody, and is excluded, which the next founder hears first. The host
/// after that founder promises to follow it, and asks host 1, which does not know of its exclusion yet, to be let
/// in. Then host 1 is back, and the next founder begins the first view of its ballot. The next founder is host 2;
/// or host 3, as a process of host 2 dies early and comes back without a record.
fn member_answers_after_a_later_promise(count: u16, next_founder: HostId) -> World {
    let (late, comes_back) = (next_founder + 1, next_founder == 3);
    let mut world = unfounded(count);
    for host in 2..=count {
        world.says(host, 1);
        world.group(1).resend(HELD);
        world.hears(host, 1);
        if host == 2 && comes_back {
            world.dies(2);
        }
    }
    world.stores(1);
    world.sent(1);
    world.group(next_founder).down(1, 10);
    world.says(next_founder, late);
    world.says(late, next_founder);
    for _ in 0..4 {
        world.group(late).resend(HELD);
        for (to, from) in [(1, late), (late, 1), (1, late), (late, 1)] {
            world.hears(to, from);
            world.tell(to);
        }
    }
    world.excluded(1);
    world.comes_back(1);
    if comes_back {
        world.starts(2, 21, count);
    }
    world.meet();
    let others = Vec::from_iter((1..=count).filter(|host| ![next_founder, late].contains(host)));
    for host in &others {
        world.says(next_founder, *host);
        world.says(*host, next_founder);
    }
    world.group(next_founder).resend(HELD);
    world.stores(next_founder);
    for host in others.into_iter().chain([late]) {
        world.says(host, next_founder);
        world.group(next_founder).resend(HELD);
        world.hears(host, next_founder);
        world.group(host).recorded();
    }
    world
}

#[test]
fn founder_enters_no_first_view_by_a_welcome() {
    for (count, next_founder) in [(3, 2), (4, 2), (4, 3), (5, 3)] {
        let mut world = member_answers_after_a_later_promise(count, next_founder);
        world.run();
        world.run();
        let views = world.members.values().map(|(group, _)| group.view());
        let founders = world.members[&next_founder].0.view();
        let is_one = founders.is_some() && views.eq(vec![founders; usize::from(count)]);
        assert!(is_one, "host {next_founder} of {count} founds after host 1");
        world.writes(next_founder, "a");
        world.run();
        assert!((1..=count).all(|host| world.state(host) == "a"), "host {next_founder} of {count} founds after host 1");
    }
}

/// In both first views hosts 4 and 5 have the same places, and messages have only the number of the view: host 4
/// would decide in the earlier one with the acknowledgement of host 5 in the later one.
#[test]
fn no_decision_across_two_first_views() {
    let mut world = member_answers_after_a_later_promise(5, 3);
    assert_eq!([3, 2, 5].map(|host| world.members_of(host)), [[3, 2, 4, 5]; 3]);
    world.excluded(3);
    world.group(2).propose(HELD, b"y").unwrap();
    let _ = world.group(4).propose(HELD, b"x");
    for (to, from) in [(5, 2), (2, 5), (5, 4), (4, 5)] {
        world.hears(to, from);
    }
    world.tell(4);
    world.excluded(4);
    world.tell(2);
    assert_eq!([2, 4].map(|host| world.state(host)), ["y", ""]);
}

/// A message of host 1, which has begun a view in ballot 0, to one incarnation.
fn begun_by_host_1(receiver: u32, members: &[ViewMember]) -> Vec<u8> {
    let mut bytes = Vec::new();
    Prefix { group: 7, sender: 10, receiver, view: 1, kind: Kind::Control }.write(&mut bytes);
    Control::Begin { ballot: 0, view: View::new(1, members).unwrap() }.write(&mut bytes);
    bytes
}

/// Hosts 2 and 3 have promised to follow host 1 in a later ballot than that of its view.
#[test]
fn next_founder_takes_over_a_begun_view_in_its_own_ballot() {
    let mut world = unfounded(3);
    let members = [member(1, 10), member(2, 20), member(3, 30)];
    for host in [2, 3] {
        world.group(host).founding.promise(3);
        world.group(host).receive(1, &begun_by_host_1(u32::from(host) * 10, &members)).unwrap();
        assert!(world.group(host).poll_record().is_none());
    }
    world.says(3, 2);
    world.says(2, 3);
    world.says(3, 2);
    world.group(2).resend(HELD);
    world.stores(2);
    world.sent(2);
    world.says(3, 2);
    world.says(2, 3);
    world.stores(3);
    let ballots = [2, 3].map(|host| world.group(host).founding.ballot());
    assert_eq!(ballots, [4, 4], "the next founder has asked all");
    assert_eq!([2, 3].map(|host| world.members_of(host)), [[1, 2, 3]; 2]);
}

/// Host 3 hears of a view that contains the new process on host 2, while it has heard only the former
/// process, which has died. The new one could still begin another view in a lower ballot.
#[test]
fn view_of_others_needs_promises_of_all_its_members() {
    let mut world = unfounded(3);
    world.says(1, 3);
    world.says(2, 3);
    world.group(3).down(2, 20);
    world.group(3).founding.promise(2);
    let members = [member(1, 10), member(2, 21), member(3, 30)];
    world.group(3).receive(1, &begun_by_host_1(30, &members)).unwrap();
    world.group(3).resend(HELD);
    assert!(world.group(3).poll_record().is_none());
    world.starts(2, 21, 3);
    world.meet();
    world.says(3, 2);
    world.says(2, 3);
    world.group(3).resend(HELD);
    world.stores(3);
    assert_eq!(world.members_of(3), [1, 2, 3]);
}

/// Host 1 begins with all, announces it to host 2 alone, and dies. Host 3, which never heard host 1, has promised
/// to follow host 2 when it hears of that view.
#[test]
fn founder_takes_over_a_view_that_lives_though_its_founder_died_unheard() {
    let mut world = unfounded(3);
    [2, 3].into_iter().for_each(|host| world.says(host, 1));
    world.group(1).resend(HELD);
    world.stores(1);
    world.says(2, 1);
    world.says(1, 2);
    world.stores(2);
    world.dies(1);
    world.says(3, 2);
    world.says(2, 3);
    assert!(world.group(3).poll_record().is_none(), "it is a view of a lower ballot");
    world.group(3).resend(HELD);
    world.stores(3);
    assert_eq!([2, 3].map(|host| world.members_of(host)), [[1, 2, 3]; 2]);
    world.run();
    world.writes(2, "a");
    world.run();
    assert_eq!([2, 3].map(|host| world.state(host)), ["a"; 2]);
}

/// Hosts 1 and 3 know that a process of host 2 has died. Host 3 has heard its successor and begins a view of all,
/// which the successor begins too. Host 1 has promised that ballot. When host 3 dies, host 1 knows that a process
/// of host 2 is up, and has had no packet of it.
#[test]
fn founder_waits_for_a_process_that_is_up_and_was_not_heard() {
    let mut world = host_2_comes_back(30);
    for (host, of) in [(1, 10), (2, 21)] {
        world.group(host).up(3, 30);
        world.group(3).up(host, of);
        world.says(3, host);
        world.says(host, 3);
    }
    world.group(3).resend(HELD);
    world.stores(3);
    world.says(2, 3);
    world.says(3, 2);
    world.stores(2);
    assert_eq!([2, 3].map(|host| world.members_of(host)), [[3, 1, 2]; 2]);
    world.group(1).unsure_of(HostSet::only(2));
    world.dies(3);
    world.group(1).resend(HELD);
    assert!(world.group(1).poll_record().is_none(), "the other view may live");
    world.group(1).unsure_of(HostSet::EMPTY);
    world.meet();
    world.forms();
    world.forms();
    let views = [1, 2].map(|host| (world.group(host).view().map(View::number), world.members_of(host)));
    assert_eq!(views, [(Some(2), vec![1, 2]), (Some(2), vec![1, 2])], "the view after that one");
    world.writes(1, "a");
    assert_eq!([1, 2].map(|host| world.state(host)), ["a"; 2]);
}

/// Hosts 2 to `count` have heard each other but not host 1. Host 1 has heard all, begins, and dies before
/// anybody hears of it.
fn founder_dies_unheard(count: u16, firsts: impl IntoIterator<Item = u16>) -> World {
    let mut world = unfounded(count);
    firsts.into_iter().for_each(|host| world.group(host).set_first_process());
    for _ in 0..2 {
        for host in 2..=count {
            world.group(host).resend(HELD);
            for (to, bytes) in world.sent(host) {
                world.group(to).receive(host, &bytes).unwrap();
            }
        }
    }
    world.group(1).resend(HELD);
    world.stores(1);
    world.sent(1);
    assert_eq!(world.members_of(1).len(), usize::from(count));
    world.dies(1);
    (0..3).for_each(|_| world.forms());
    world
}

#[test]
fn first_processes_do_not_wait_for_an_unheard_founder() {
    let mut world = founder_dies_unheard(3, 1..=3);
    assert_eq!([2, 3].map(|host| world.members_of(host)), [[2, 3]; 2]);
    // It comes back with its record, or without it.
    for (incarnation, host) in [(11, 1), (21, 2)] {
        if host == 2 {
            world.dies(2);
        }
        world.starts(host, incarnation, 3);
        world.meet();
        world.run();
        world.run();
    }
    assert_eq!([1, 2, 3].map(|host| world.members_of(host)), [[3, 1, 2]; 3]);
}

#[test]
fn later_processes_wait_for_an_unheard_founder() {
    let mut world = founder_dies_unheard(3, [1, 3]);
    assert!([2, 3].iter().all(|host| world.group(*host).view().is_none()), "one of three is not more than half");
}

#[test]
fn excluded_process_is_no_first_process() {
    let mut world = unfounded(3);
    world.group(1).set_first_process();
    world.group(1).excluded();
    world.group(1).rejoin(11).unwrap();
    assert!(!world.group(1).founding.is_first());
}

/// Host 2 founds after host 1, and cannot know whether a view left out its host's former process.
#[test]
fn founder_passes_its_ballot_on_to_a_first_process() {
    let mut world = founder_dies_unheard(5, [1, 3, 4, 5]);
    assert_eq!([2, 3, 4, 5].map(|host| world.members_of(host)), [[3, 2, 4, 5]; 4]);
}

/// Host 1 has begun alone when the processes on hosts 2 and 3 had died without a record, and has decided. It
/// dies before their successors have heard it.
#[test]
fn founders_left_out_before_found_no_second_group() {
    let mut world = unfounded(3);
    (1..=3).for_each(|host| world.group(host).set_first_process());
    [2, 3].into_iter().for_each(|host| world.says(host, 1));
    [2, 3].into_iter().for_each(|host| world.dies(host));
    world.group(1).resend(HELD);
    world.stores(1);
    world.writes(1, "a");
    assert_eq!((world.members_of(1), world.state(1).as_str()), (vec![1], "a"));
    [(2, 21), (3, 31)].into_iter().for_each(|(host, of)| world.starts(host, of, 3));
    world.meet();
    world.dies(1);
    (0..3).for_each(|_| world.forms());
    assert_eq!([2, 3].map(|host| world.group(host).standing()), [Standing::Joining; 2]);
}

#[cfg(feature = "planted")]
#[test]
fn planted_faults_of_founders_are_found() {
    are_found(&[
        (Planted::RaisesItsBallot, "group::tests::founding::deliveries_of_the_later_first_view_are_not_lost"),
        (Planted::TakesEachForFirst, "group::tests::founding::founders_left_out_before_found_no_second_group"),
        (Planted::AsksOnlyTheKnown, "group::tests::founding::view_of_others_needs_promises_of_all_its_members"),
        (Planted::EntersByWelcome, "group::tests::founding::founder_enters_no_first_view_by_a_welcome"),
        (Planted::EntersByWelcome, "group::tests::founding::no_decision_across_two_first_views"),
        (
            Planted::OverlooksTheUnsure,
            "group::tests::founding::founder_waits_for_a_process_that_is_up_and_was_not_heard",
        ),
        (Planted::BelievesOfTheMet, "group::tests::report_of_death_is_not_taken_for_a_member_that_was_met"),
        (Planted::WaitsForTheRecorded, "group::tests::founder_that_returns_with_a_record_is_not_awaited"),
        (Planted::TakesTheReturned, "group::tests::host_that_returned_without_a_record_is_awaited"),
    ]);
}
