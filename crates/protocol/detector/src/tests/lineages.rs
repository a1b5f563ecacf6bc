// SPDX-License-Identifier: Apache-2.0
//! Views are founded again and again by hosts whose wall clocks differ. Their generations grow in the order
//! of the foundings.

use super::world::World;
use crate::config::tests::cluster;
use fide_types::Role;
use fide_wire::ViewId;

const MS: u64 = 1_000_000;

/// Hosts with a timeout of 5 ms, whose wall clocks are that many seconds ahead. Observers come last.
fn world(ahead_s: &[u32], observers: usize) -> World {
    let count = ahead_s.len() as u16;
    let configs = (1..=count)
        .map(|me| {
            let mut c = cluster(count);
            (c.me, c.timeout_ns) = (me, 5 * MS);
            for member in c.members.iter_mut().rev().take(observers) {
                member.role = Role::Observer;
            }
            c
        })
        .collect();
    let mut world = World::new(configs, 1);
    world.ahead_s = Some(ahead_s.to_vec());
    world
}

fn cut_off(world: &mut World, node: usize) {
    for plane in 0..2 {
        world.isolate(node, plane, true);
    }
}

fn view(world: &World, node: usize) -> ViewId {
    world.nodes[node].detector.as_ref().expect("it runs").view().id
}

/// The hosts that act, and by which view.
fn acts(world: &World) -> Vec<(usize, ViewId)> {
    let acts = |node: usize| {
        let detector = world.nodes[node].detector.as_ref()?;
        (!detector.is_fenced(world.local_ns(node))).then(|| (node, detector.view().id))
    };
    (0..world.nodes.len()).filter_map(acts).collect()
}

fn run_until_a_host_acts(world: &mut World) {
    for _ in 0..2000 {
        if !acts(world).is_empty() {
            return;
        }
        world.run(MS / 20);
    }
    panic!("nobody acts:\n{}", world.trace.join("\n"));
}

/// These nodes hold one view and act by it.
fn assert_together(world: &World, nodes: &[usize]) {
    let acts: Vec<_> = acts(world).into_iter().filter(|(node, _)| nodes.contains(node)).collect();
    let alike = acts.iter().all(|(_, id)| *id == acts[0].1);
    assert!(acts.len() == nodes.len() && alike, "{acts:?}:\n{}", world.trace.join("\n"));
}

/// h1's clock is 3 s ahead. h2 acts, and dies as soon as it does.
fn tokens_do_not_go_back(disk_ns: u64) {
    let mut world = world(&[3, 0, 0], 0);
    world.disk_ns = disk_ns;
    world.start(0);
    world.start(1);
    run_until_a_host_acts(&mut world);
    let before = view(&world, 1);
    world.crash(1);
    cut_off(&mut world, 0);
    world.start(1);
    world.start(2);
    world.run(10 * MS);
    run_until_a_host_acts(&mut world);
    let (_, after) = acts(&world)[0];
    assert!(after > before, "{after:?} after {before:?}:\n{}", world.trace.join("\n"));
}

#[test]
fn later_actor_has_the_higher_token_though_a_host_died_as_soon_as_it_acted() {
    for disk_ns in [0, MS, 7 * MS, 40 * MS] {
        tokens_do_not_go_back(disk_ns);
    }
}

/// Clocks agree, no host is cut off, and no agent ends. h1 stalls just after it has decided the first view,
/// and h3 starts.
fn first_views_differ(pause_ns: u64) {
    let mut world = world(&[0, 0, 0], 0);
    world.run(950 * MS);
    world.start(1);
    world.run(60 * MS);
    world.start(0);
    while view(&world, 0).is_none() {
        world.run(MS / 20);
    }
    world.nodes[0].paused_until_ns = world.now_ns + pause_ns;
    world.start(2);
    world.run(1000 * MS);
    assert_together(&world, &[0, 1, 2]);
    world.crash(2);
    world.run(1000 * MS);
    assert_together(&world, &[0, 1]);
}

#[test]
fn first_views_of_two_foundings_have_different_ids() {
    for pause_ns in [15 * MS, 60 * MS] {
        first_views_differ(pause_ns);
    }
}

#[test]
fn host_that_never_acted_shuts_out_no_active_host() {
    for ahead_s in [[1, 0, 1], [3, 0, 0]] {
        for cut_at_us in (12_500..15_500).step_by(750) {
            let mut world = world(&ahead_s, 0);
            world.start(0);
            world.start(1);
            world.run(cut_at_us * 1000);
            cut_off(&mut world, 0);
            world.start(2);
            world.run(100 * MS);
            let act = acts(&world);
            let incarnations: Vec<_> = act.iter().map(|(node, _)| world.nodes[*node].config.incarnation).collect();
            world.cuts.clear();
            world.run(1000 * MS);
            assert_together(&world, &[0, 1, 2]);
            let now: Vec<_> = act.iter().map(|(node, _)| world.nodes[*node].config.incarnation).collect();
            assert_eq!(now, incarnations, "h1 was cut off, and those who acted go on:\n{}", world.trace.join("\n"));
        }
    }
}

/// h1's clock is 3 s ahead, and h4 is an observer. Once h1 has decided the first view, only h4 hears it.
#[test]
fn observer_follows_the_active_hosts() {
    let mut world = world(&[3, 0, 0, 0], 1);
    for node in [3, 0, 1] {
        world.start(node);
    }
    while view(&world, 0).is_none() {
        world.run(MS / 20);
    }
    cut_off(&mut world, 0);
    for plane in 0..2 {
        world.cuts.remove(&(0, 3, plane));
    }
    world.start(2);
    world.run(60 * MS);
    world.cuts.clear();
    world.run(1000 * MS);
    assert_together(&world, &[0, 1, 2]);
    assert_eq!(view(&world, 3), view(&world, 0));
    world.crash(2);
    world.run(1000 * MS);
    assert_together(&world, &[0, 1]);
    assert_eq!(view(&world, 3), view(&world, 0), "it reports the death");
}

/// h2 loses its state directory between the two foundings, and its clock does not make up for it.
#[test]
fn one_of_two_views_with_the_same_id_yields() {
    let mut world = world(&[1, 0, 1], 0);
    (world.strict, world.one_membership) = (false, false);
    world.start(0);
    world.start(1);
    while view(&world, 0).is_none() || view(&world, 1).is_none() {
        world.run(MS / 20);
    }
    world.crash(1);
    cut_off(&mut world, 0);
    (world.nodes[1].kept, world.nodes[1].config.incarnation) = (0, 0);
    world.start(1);
    world.start(2);
    world.run(100 * MS);
    assert_eq!(view(&world, 1), view(&world, 0), "with h3 instead of h1");
    world.cuts.clear();
    world.run(1000 * MS);
    assert_together(&world, &[0, 1, 2]);
}

/// A disk that stores nothing: the others go on, and no host acts by a generation that is not on its disk.
#[test]
fn host_with_a_full_disk_acts_by_no_new_lineage() {
    let mut world = world(&[0, 0, 3], 0);
    world.disk_ns = u64::MAX / 2;
    for node in 0..3 {
        world.start(node);
    }
    world.run(200 * MS);
    assert!(acts(&world).is_empty(), "two of three have to found it, and one of these has the lower incarnation");
    for node in &mut world.nodes {
        node.keeping = None;
    }
    world.disk_ns = MS;
    world.run(200 * MS);
    assert_together(&world, &[0, 1, 2]);
}

/// Its disk does not hold the view's generation, so as a member it would acknowledge nobody.
#[test]
fn host_with_a_full_disk_is_admitted_to_no_view() {
    // h1 acts alone, once h2 has left.
    let mut two = world(&[3, 0], 0);
    (0..2).for_each(|node| two.start(node));
    two.run(100 * MS);
    let now_ns = two.local_ns(1);
    two.nodes[1].detector.as_mut().expect("it runs").leave(now_ns);
    two.run(50 * MS);
    two.crash(1);
    two.nodes[1].kept = 0;
    // One of four dies: as a member, the fourth would be needed for a majority.
    let mut four = world(&[3, 0, 0, 0], 0);
    (0..3).for_each(|node| four.start(node));
    four.run(100 * MS);
    for (mut world, joins, dies) in [(two, 1, None), (four, 3, Some(2))] {
        world.disk_ns = u64::MAX / 2;
        world.start(joins);
        world.run(200 * MS);
        dies.into_iter().for_each(|node| world.crash(node));
        world.run(400 * MS);
        assert!(!acts(&world).is_empty(), "h{} fences them:\n{}", joins + 1, world.trace.join("\n"));
    }
}

#[cfg(feature = "planted")]
#[test]
fn planted_faults_mix_lineages() {
    std::panic::set_hook(Box::new(|_| {}));
    let fails = |test| super::fails_with(fide_types::planted::Planted::ForgetsGeneration, test);
    let found = [
        fails(later_actor_has_the_higher_token_though_a_host_died_as_soon_as_it_acted),
        fails(first_views_of_two_foundings_have_different_ids),
        fails(host_that_never_acted_shuts_out_no_active_host),
    ];
    let _ = std::panic::take_hook();
    assert_eq!(found, [true; 3]);
}
