// SPDX-License-Identifier: Apache-2.0
//! `fide controller` over a real fabric: lanes reach their receivers, and survive cut cables, killed
//! controllers and manipulated switches.

mod common;

use std::time::Duration;

use common::{Ears, LIMIT, world};
use fide_controller_api::{Method, paths};
use fide_testbed::fabric::{Cut, FabricSpec, SwitchKind, ThreeTier, ovs_supported};
use fide_testbed::retry_until;
use serde_json::json;

fn fabric() -> FabricSpec {
    FabricSpec::two_tier(4, 2, 3)
}

const OTHERS: [&str; 3] = ["h2", "h3", "h4"];

#[test]
fn root_a_lane_reaches_its_receivers_and_moves_off_a_cut_cable() {
    let Some(world) = world(fabric(), "") else { return };
    let mut h1 = world.member(1);
    let lane = h1.lane(&OTHERS);
    let trees: Vec<_> = (0..2).map(|tree| h1.tree(lane, tree, 0).1).collect();
    for tree in 0..2 {
        h1.moved(lane, tree, 0);
    }
    let mut ears: Vec<Ears> = trees.iter().map(|tree| Ears::open(&world.fabric, 1, tree)).collect();
    for (ears, tree) in ears.iter_mut().zip(&trees) {
        ears.reach(tree, &[2, 3, 4]);
    }

    // A cable fails with an alarm.
    let (link, ..) = world.inner_link(&trees[0]);
    let begun = ears[1].send(&trees[1], 1);
    let (cut, _) = world.fabric.cut_link(link, Cut::Carrier).unwrap();
    let (notified, moved) = h1.tree(lane, 0, 1);
    let during = ears[1].send(&trees[1], 20);
    println!("carrier cut to upcall: {} us", (notified - cut) / 1000);
    assert_ne!(moved["group"], trees[0]["group"]);
    ears[0].reach(&moved, &[2, 3, 4]);
    h1.moved(lane, 0, 1);
    let all: Vec<u32> = begun.into_iter().chain(during).collect();
    let got = ears[1].got(all.len(), &[2, 3, 4]);
    assert_eq!(got.values().collect::<Vec<_>>(), [&all, &all, &all], "the other tree has lost something");
    world.fabric.restore_link(link).unwrap();

    // A cable fails without an alarm: the receivers that miss packets report it. h2, beside the sender, misses none.
    retry_until("the cable is back", LIMIT, || {
        let cables = world.read(paths::NETWORK)["cables"].clone();
        let down: Vec<_> = cables.as_array().unwrap().iter().filter(|c| c["works"] != true).collect();
        if down.is_empty() { Ok(()) } else { Err(format!("{down:?}")) }
    })
    .unwrap();
    let (link, ..) = world.inner_link(&moved);
    world.fabric.cut_link(link, Cut::Silent).unwrap();
    ears[0].got(0, &[]);
    let numbers = ears[0].send(&moved, 10);
    let got = ears[0].got(numbers.len(), &[2]);
    let missing: Vec<usize> = (2..=4).filter(|host| got.get(host) != Some(&numbers)).collect();
    assert_eq!(missing, [3, 4]);
    for host in missing {
        let body = json!({"tree": 0, "generation": 1, "missing": true});
        world.member(host).change(Method::Post, &paths::lane_reports(lane), &body);
    }
    let (_, again) = h1.tree(lane, 0, 2);
    ears[0].reach(&again, &[2, 3, 4]);
    ears[1].reach(&trees[1], &[2, 3, 4]);
}

#[test]
fn root_lanes_outlive_a_killed_controller_and_meddled_switches() {
    let Some(mut world) = world(fabric(), "audit_ms = 300") else { return };
    let mut h1 = world.member(1);
    let lane = h1.lane(&OTHERS);
    let tree = h1.tree(lane, 0, 0).1;
    h1.tree(lane, 1, 0);
    (0..2).for_each(|tree| h1.moved(lane, tree, 0));
    let mut ears = Ears::open(&world.fabric, 1, &tree);
    ears.reach(&tree, &[2, 3, 4]);
    let before = world.all_entries();
    assert!(before.values().any(|entries| !entries.is_empty()));

    world.controller.kill();
    ears.reach(&tree, &[2, 3, 4]);
    assert_eq!(world.all_entries(), before);
    let fabric = &world.fabric;
    world.controller.run(fabric).unwrap();
    ears.reach(&tree, &[2, 3, 4]);
    let lanes = world.read(paths::LANES);
    assert_eq!(lanes["lanes"][0]["lane"], lane, "{lanes}");
    assert_eq!(world.all_entries(), before);
    let mut h4 = world.member(4);
    let second = h4.lane(&["h1", "h2"]);
    let other = h4.tree(second, 0, 0).1;
    Ears::open(&world.fabric, 4, &other).reach(&other, &[1, 2]);

    // A rule is deleted by another program.
    let (_, switch, port) = world.inner_link(&tree);
    let group = tree["group"].as_str().unwrap();
    let node = world.fabric.switch(&switch).unwrap().node();
    let words = ["mdb", "del", "dev", "br0", "port", &port, "grp", group];
    assert!(node.command("bridge").args(words).status().unwrap().success());
    retry_until("the rule is back", LIMIT, || {
        let now = world.entries(&switch);
        if before[&switch].iter().all(|entry| now.contains(entry)) { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .unwrap();
    ears.reach(&tree, &[2, 3, 4]);
    // The controller logs it once it is repaired.
    retry_until("the controller says so", LIMIT, || {
        let log = std::fs::read_to_string(world.controller.log()).unwrap();
        if log.contains("was changed by others") { Ok(()) } else { Err(log) }
    })
    .unwrap();
    let (code, text) = world.operator(&["status"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("2 lanes, 0 of them with a lost tree"), "{text}");

    // The controller ends when asked, and its rules stay.
    world.controller.stop().unwrap();
    ears.reach(&tree, &[2, 3, 4]);
}

#[test]
fn root_lanes_over_open_vswitches_and_bridges_move_alike() {
    if let Err(why) = ovs_supported() {
        println!("skipped: {why}");
        return;
    }
    let mut spec = fabric();
    for switch in spec.switches.iter_mut().filter(|s| ["l1a", "l2b", "s1", "s2"].contains(&s.name.as_str())) {
        switch.kind = SwitchKind::Ovs;
    }
    let Some(mut world) = world(spec, "") else { return };
    let mut h1 = world.member(1);
    let lane = h1.lane(&OTHERS);
    let trees: Vec<_> = (0..2).map(|tree| h1.tree(lane, tree, 0).1).collect();
    let mut ears: Vec<Ears> = trees.iter().map(|tree| Ears::open(&world.fabric, 1, tree)).collect();
    for tree in 0..2 {
        h1.moved(lane, tree, 0);
        ears[tree as usize].reach(&trees[tree as usize], &[2, 3, 4]);
    }
    for (tree, ears) in ears.iter_mut().enumerate() {
        let (link, ..) = world.inner_link(&trees[tree]);
        let (cut, _) = world.fabric.cut_link(link, Cut::Carrier).unwrap();
        let (notified, moved) = h1.tree(lane, tree as u64, 1);
        println!("carrier cut to upcall over Open vSwitch: {} us", (notified - cut) / 1000);
        ears.reach(&moved, &[2, 3, 4]);
        h1.moved(lane, tree as u64, 1);
        world.fabric.restore_link(link).unwrap();
        std::thread::sleep(Duration::from_millis(200));
    }
    world.controller.stop().unwrap();
}

#[test]
fn root_three_tiers_of_slow_cables_hold_lanes_and_a_controller_gives_switches_back_if_asked() {
    let shape = ThreeTier { hosts: 4, pods: 2, edge_pairs: 1, aggregation: 2, cores: 2 };
    let Some(mut world) = world(FabricSpec::three_tier(shape).limited(10), "") else { return };
    let queues = |world: &common::World| {
        let node = world.fabric.switch("c1").unwrap().node();
        let output = node.command("tc").args(["class", "show", "dev", "a1_1"]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let mut h1 = world.member(1);
    let lane = h1.lane(&OTHERS);
    for number in 0..2 {
        let tree = h1.tree(lane, number, 0).1;
        h1.moved(lane, number, 0);
        Ears::open(&world.fabric, 1, &tree).reach(&tree, &[2, 3, 4]);
    }
    // Its own queues, at the fabric's rate.
    let there = queues(&world);
    assert!(there.contains("f1de:10") && there.contains("10Mbit"), "{there}");
    world.controller.stop().unwrap();
    assert_eq!(queues(&world), there);
    // An operator restores the switches with `run --restore-switches`, and ends the controller.
    world.controller.restoring(true);
    world.controller.run(&world.fabric).unwrap();
    world.controller.stop().unwrap();
    assert!(world.all_entries().values().all(Vec::is_empty), "{:?}", world.all_entries());
    assert!(!queues(&world).contains("f1de:10"), "{}", queues(&world));
}

/// Twenty cables are cut one after the other: time from the cut until the sender is notified of the new tree.
/// Printed, not judged.
#[test]
fn root_time_from_cut_to_upcall() {
    let Some(world) = world(fabric(), "") else { return };
    let mut h1 = world.member(1);
    let lane = h1.lane(&OTHERS);
    let mut tree = h1.tree(lane, 0, 0).1;
    h1.moved(lane, 0, 0);
    let mut times_us = Vec::new();
    for generation in 1..=20 {
        let (link, ..) = world.inner_link(&tree);
        let (cut, _) = world.fabric.cut_link(link, Cut::Carrier).unwrap();
        let notified;
        (notified, tree) = h1.tree(lane, 0, generation);
        times_us.push((notified - cut) / 1000);
        h1.moved(lane, 0, generation);
        world.fabric.restore_link(link).unwrap();
        // Waits for the port's carrier, and for the request limit of a host.
        std::thread::sleep(Duration::from_millis(100));
    }
    if std::env::var_os("FIDE_LOG").is_some() {
        println!("{}", world.controller.log_tail());
    }
    times_us.sort_unstable();
    println!("from cut to upcall, us: p50 {}, worst {}, all {times_us:?}", times_us[10], times_us[19]);
}
