// SPDX-License-Identifier: Apache-2.0
//! What an agent that has just started finds out about hosts that the agent before it has reported.

use super::world::World;
use crate::config::tests::cluster;
use crate::*;
use fide_types::HostId;

const MS: u64 = 1_000_000;

fn world(hosts: u16, policy: Policy, trust: Trust) -> World {
    let configs = (1..=hosts).map(|me| Config { me, policy, trust, ..cluster(hosts) }).collect();
    let mut world = World::new(configs, 1);
    (0..usize::from(hosts)).for_each(|node| world.start(node));
    world.run(60 * MS);
    world
}

fn incarnation(world: &World, node: usize) -> u32 {
    world.nodes[node].config.incarnation
}

/// What h1, which started at `since_ns`, knows of an incarnation of another host.
fn former(world: &World, host: HostId, incarnation: u32, since_ns: u64) -> Former {
    let detector = world.nodes[0].detector.as_ref().expect("it runs");
    detector.became_of(world.local_ns(0), host, |is| is == incarnation, 5 * MS, since_ns)
}

#[test]
fn former_member_is_over_once_a_view_lacks_it() {
    let mut world = world(4, Policy::Majority, Trust::Lease);
    let (third, second) = (incarnation(&world, 2), incarnation(&world, 1));
    world.crash(0);
    world.run(40 * MS);
    world.crash(2);
    world.run(40 * MS);
    world.start(0);
    let since_ns = world.local_ns(0);
    let mut over = false;
    for _ in 0..120 {
        world.run(MS / 2);
        let now = former(&world, 3, third, since_ns);
        assert_ne!(now, Former::Here);
        assert!(!over || now == Former::Over, "once over, it stays over");
        over |= now == Former::Over;
        // The incarnation that is alive is never over.
        assert_ne!(former(&world, 2, second, since_ns), Former::Over);
    }
    assert!(over);
    assert_eq!(former(&world, 2, second, since_ns), Former::Here);
    world.start(2);
    world.run(60 * MS);
    assert_eq!(former(&world, 3, third, since_ns), Former::Over, "another is up");
    assert_eq!(former(&world, 3, incarnation(&world, 2), since_ns), Former::Here);
    assert_eq!(former(&world, 9, 1, since_ns), Former::Unknown);
}

#[test]
fn former_member_is_not_over_without_a_view_or_in_a_view_that_has_it() {
    let mut world = world(3, Policy::Majority, Trust::Lease);
    let third = incarnation(&world, 2);
    // Cut off from its start, h1 founds nothing and knows nothing.
    world.crash(0);
    for plane in 0..2 {
        world.isolate(0, plane, true);
    }
    world.start(0);
    let since_ns = world.local_ns(0);
    world.run(200 * MS);
    assert_eq!(former(&world, 3, third, since_ns), Former::Unknown);
}

#[test]
fn former_is_over_by_silence_only_under_trust_network() {
    for (trust, end) in [(Trust::Network, Former::Over), (Trust::Lease, Former::Unknown)] {
        let mut world = world(2, Policy::Network, trust);
        let second = incarnation(&world, 1);
        world.crash(0);
        world.crash(1);
        world.start(0);
        let since_ns = world.local_ns(0);
        world.run(4 * MS);
        assert_eq!(former(&world, 2, second, since_ns), Former::Unknown, "not before the timeout");
        world.run(10 * MS);
        assert_eq!(former(&world, 2, second, since_ns), end);
        world.start(1);
        world.run(20 * MS);
        assert_eq!(former(&world, 2, second, since_ns), end, "another is up");
        world.run(1000 * MS);
        assert_eq!(former(&world, 2, second, since_ns), Former::Over, "and no lease can run any more");
    }
}

#[test]
fn former_that_is_heard_but_not_up_is_not_over() {
    let mut world = world(2, Policy::Network, Trust::Network);
    let second = incarnation(&world, 1);
    world.crash(0);
    // h1 hears it, but it does not hear h1, so it cannot answer.
    world.cuts.extend([(0, 1, 0), (0, 1, 1)]);
    world.start(0);
    let since_ns = world.local_ns(0);
    world.run(50 * MS);
    assert_eq!(former(&world, 2, second, since_ns), Former::Unknown);
    world.cuts.clear();
    world.run(10 * MS);
    assert_eq!(former(&world, 2, second, since_ns), Former::Here);
}

#[test]
fn former_is_over_no_sooner_than_the_longest_lease_of_its_programs() {
    // The timeout that its agent granted its programs, and the one that this host had for it.
    for (timeout_ns, granted_ns) in [(60 * MS, 5 * MS), (5 * MS, 60 * MS)] {
        let configs = (1..=2).map(|me| Config {
            me,
            policy: Policy::Network,
            timeout_ns: if me == 2 { timeout_ns } else { 5 * MS },
            ..cluster(2)
        });
        let mut world = World::new(configs.collect(), 1);
        (0..2).for_each(|node| world.start(node));
        world.run(200 * MS);
        // Alone, its lease has no limit, so its programs may act for a whole timeout after their agent.
        world.crash(0);
        world.run(200 * MS);
        let second = incarnation(&world, 1);
        world.crash(1);
        assert!(world.acts_as(1, second));
        world.start(1);
        world.start(0);
        let since_ns = world.local_ns(0);
        let mut over_ns = None;
        for _ in 0..4000 {
            world.run(MS / 2);
            let detector = world.nodes[0].detector.as_ref().expect("it runs");
            let former = detector.became_of(world.local_ns(0), 2, |is| is == second, granted_ns, since_ns);
            assert!(former == Former::Unknown || !world.acts_as(1, second), "{former:?} while its programs act");
            let up = detector.peer(2).is_some_and(|peer| peer.state == PeerState::Up);
            assert!(up || former == Former::Unknown, "nothing shows that it is over");
            if former == Former::Over {
                over_ns = over_ns.or(Some(world.local_ns(0) - since_ns));
            }
        }
        assert!(over_ns.is_some_and(|ns| ns >= timeout_ns.max(granted_ns)), "{over_ns:?}");
    }
}

#[cfg(feature = "planted")]
#[test]
fn planted_faults_end_formers_while_their_programs_act() {
    assert!(super::fails_with(
        fide_types::planted::Planted::EndsFormers,
        former_is_over_no_sooner_than_the_longest_lease_of_its_programs
    ));
}
