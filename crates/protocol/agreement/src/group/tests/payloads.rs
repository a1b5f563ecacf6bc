// SPDX-License-Identifier: Apache-2.0
//! A decision's payload is stored: equal payloads, and hosts that are not up as the incarnation that is a
//! member.

use super::*;

impl World {
    /// Everything under way arrives once.
    fn step(&mut self) {
        let hosts: Vec<HostId> = self.members.keys().copied().collect();
        let mut sent = Vec::new();
        for host in hosts {
            self.tell(host);
            sent.extend(self.sent(host).into_iter().map(|(to, bytes)| (host, to, bytes)));
        }
        for (from, to, bytes) in sent {
            let _ = self.group(to).receive(from, &bytes);
        }
        self.members.keys().copied().collect::<Vec<_>>().into_iter().for_each(|host| self.tell(host));
    }
}

#[test]
fn equal_payloads_are_decided_once_per_proposal() {
    // Below tail_max, but more than fits beside what is kept.
    for len in [5, (1 << 20) + 1] {
        for steps in 0..10 {
            let mut world = World::of(2);
            world.group(1).propose_payload(HELD, vec![3; len]).unwrap();
            (0..steps).for_each(|_| world.step());
            world.group(1).propose_payload(HELD, vec![3; len]).unwrap();
            world.run();
            let twice = format!("[{len}][{len}]");
            assert_eq!([1, 2].map(|host| world.state(host)), [twice.clone(), twice], "after {steps} steps");
        }
    }
}

#[test]
fn payload_outlives_an_equal_older_one() {
    let mut world = World::of(2);
    world.group(1).propose_payload(HELD, vec![3; 1000]).unwrap();
    world.run();
    world.group(1).propose_payload(HELD, vec![3; 1000]).unwrap();
    world.step();
    world.step();
    // The first one is dropped to make room for it.
    world.group(1).propose_payload(HELD, vec![4; 1 << 20]).unwrap();
    world.run();
    assert_eq!([1, 2].map(|host| world.state(host)), ["[1000][1000][1048576]"; 2]);
}

/// Host 3 is in the second view as incarnation 31, while hosts 1 and 2 know only of incarnation 30.
fn with_one_not_up() -> World {
    let mut world = World::of(3);
    let view = View::new(2, &[member(1, 10), member(2, 20), member(3, 31)]).unwrap();
    let mut third = Group::found(config(3, 31), view.clone()).unwrap();
    third.up(1, 10);
    third.up(2, 20);
    world.members.insert(3, (third, Vec::new()));
    [1, 2].into_iter().for_each(|host| world.group(host).begin_next(view.clone()));
    world.group(2).up(3, 31);
    world
}

#[test]
fn payload_waits_for_member_whose_former_incarnation_dies() {
    let mut world = with_one_not_up();
    world.group(1).propose_payload(HELD, vec![3; 1000]).unwrap();
    world.settle();
    world.group(1).down(3, 30);
    world.run();
    assert_eq!(world.state(1), "", "host 3 does not have it");
    world.group(1).up(3, 31);
    world.run();
    assert_eq!([1, 2, 3].map(|host| world.state(host)), ["[1000]"; 3]);
}

#[test]
fn payload_waits_for_member_that_is_not_up_yet() {
    let mut world = with_one_not_up();
    world.group(1).down(3, 30);
    world.group(1).propose_payload(HELD, vec![3; 1000]).unwrap();
    world.run();
    assert_eq!(world.state(1), "", "host 3 does not have it");
    world.group(1).up(3, 31);
    world.settle();
    world.run();
    assert_eq!([1, 2, 3].map(|host| world.state(host)), ["[1000]"; 3]);
}

#[test]
fn payload_does_not_wait_for_member_that_died() {
    let mut world = with_one_not_up();
    world.group(1).down(3, 30);
    world.group(1).propose_payload(HELD, vec![3; 1000]).unwrap();
    world.run();
    world.dies(3);
    world.run();
    assert_eq!([1, 2].map(|host| world.state(host)), ["[1000]"; 2]);
}

#[cfg(feature = "planted")]
#[test]
fn planted_faults_of_payloads_sent_ahead_are_found() {
    are_found(&[
        (Planted::WaitsForHosts, "group::tests::payloads::payload_waits_for_member_that_is_not_up_yet"),
        (Planted::WaitsForHosts, "group::tests::payloads::payload_waits_for_member_whose_former_incarnation_dies"),
    ]);
}
