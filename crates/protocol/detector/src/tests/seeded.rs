// SPDX-License-Identifier: Apache-2.0
//! Random faults, many seeds. A failure prints its seed and how to run it again.

use super::world::{Rng, World};
use crate::config::tests::cluster;
use crate::*;
use fide_types::host_index;

const MS: u64 = 1_000_000;

struct Plan {
    hosts: u64,
    trust: Trust,
    policy: Policy,
    /// All planes between two hosts may be cut.
    partitions: bool,
    /// Machines are suspended, with their clocks.
    suspensions: bool,
    /// Suspended hosts do not notice it.
    blind: bool,
    /// Each host has its own timeout, which changes while it runs, and may differ when it restarts.
    uneven: bool,
}

/// Some hosts are slow, and most are much faster.
fn timeout_of(rng: &mut Rng) -> u64 {
    if rng.chance(600) { 4 * MS + rng.below(4 * MS) } else { 10 * MS + rng.below(50 * MS) }
}

fn build(seed: u64, plan: &Plan) -> World {
    let mut rng = Rng::new(seed);
    let n = plan.hosts as u16;
    let configs = (1..=n)
        .map(|me| {
            let mut c = cluster(n);
            c.me = me;
            c.trust = plan.trust;
            c.policy = plan.policy;
            c.timeout_ns = if plan.uneven { timeout_of(&mut rng) } else { 8 * MS };
            c
        })
        .collect();
    let mut world = World::new(configs, rng.next());
    let split = plan.policy == Policy::Network && plan.partitions;
    world.strict = plan.trust == Trust::Lease && !split;
    world.kernel = seed % 3 == 2;
    world.step_ns = 250_000;
    world.latency_ns = 20_000 + rng.below(200_000);
    world.jitter_ns = rng.below(800_000);
    world.loss = rng.below(60);
    world.duplicate = rng.below(100);
    world.lazy = rng.below(100);
    let mut clocks = Rng::new(seed ^ 0xc10c);
    world.ahead_s = Some((0..n).map(|_| clocks.below(4) as u32).collect());
    world.disk_ns = clocks.below(4 * MS);
    let mut urgent = Rng::new(seed ^ 0x0e6e);
    for node in &mut world.nodes {
        node.urgent_max = urgent.below(u64::from(URGENT_MAX) + 1) as u32;
        node.drift_ppm = rng.below(181) as i64 - 90;
        node.offset_ns = rng.below(1 << 40);
    }
    world
}

fn scenario(seed: u64, plan: &Plan) {
    let mut world = build(seed, plan);
    world.blind = plan.blind;
    let mut rng = Rng::new(seed ^ 0x5eed);
    if seed % 2 == 1 {
        world.record();
    }
    for node in 0..world.nodes.len() {
        world.start(node);
        world.run(rng.below(4) * MS);
    }
    let faults = 4 + rng.below(10);
    for _ in 0..faults {
        if plan.uneven && rng.chance(300) {
            if rng.chance(700) {
                let_in(&mut world, &mut rng, plan);
            } else {
                found_without(&mut world, &mut rng, plan);
            }
        } else {
            fault(&mut world, &mut rng, plan);
        }
        let longest_ns = if plan.uneven && rng.chance(300) { 60 * MS } else { 10 * MS };
        for _ in 0..rng.below(4) {
            work(&mut world, &mut rng);
            world.run(rng.below(longest_ns));
            if plan.uneven && rng.chance(300) {
                find_others_late(&mut world, &mut rng);
            }
        }
    }
    heal(&mut world, plan);
}

/// Some hosts come back, and others crash or are cut off while the former are admitted.
fn let_in(world: &mut World, rng: &mut Rng, plan: &Plan) {
    let count = world.nodes.len() as u64;
    world.cuts.clear();
    world.run(rng.below(150) * MS);
    let first = rng.below(count);
    let back: Vec<usize> = (0..1 + rng.below(2)).map(|i| ((first + i) % count) as usize).collect();
    for node in &back {
        if world.nodes[*node].detector.is_some() {
            world.crash(*node);
        }
    }
    world.run((80 + rng.below(120)) * MS);
    for node in &back {
        start(world, rng, *node, true);
    }
    world.run(3 * MS + rng.below(8) * MS / 2);
    for _ in 0..1 + rng.below(2) {
        let other = ((first + back.len() as u64 + rng.below(count - back.len() as u64)) % count) as usize;
        meanwhile(world, rng, plan, other);
        world.run(rng.below(5) * MS / 2);
    }
    world.run(rng.below(100) * MS);
}

/// What happens to a member while others are admitted.
fn meanwhile(world: &mut World, rng: &mut Rng, plan: &Plan, node: usize) {
    let side = rng.next();
    match rng.below(4) {
        0 => {
            world.crash(node);
            start(world, rng, node, true);
        }
        // A side of several hosts, or a single one; or one peer stops hearing it.
        choice if plan.partitions => {
            let with = |other: usize| choice == 1 && side >> other & 1 == 1;
            let from: Vec<usize> = (0..world.nodes.len()).filter(|other| *other != node && !with(*other)).collect();
            for other in &from[..if choice == 3 { 1 } else { from.len() }] {
                world.cuts.extend([(node, *other, 0), (node, *other, 1)]);
                if choice != 3 {
                    world.cuts.extend([(*other, node, 0), (*other, node, 1)]);
                }
            }
        }
        _ => world.isolate(node, 0, true),
    }
}

/// One host is cut off, and all others restart at once: they found a view without it.
fn found_without(world: &mut World, rng: &mut Rng, plan: &Plan) {
    let node = rng.below(world.nodes.len() as u64) as usize;
    world.isolate(node, 0, true);
    if plan.partitions {
        world.isolate(node, 1, true);
    }
    for other in (0..world.nodes.len()).filter(|other| *other != node) {
        if world.nodes[other].detector.is_some() {
            world.crash(other);
        }
        start(world, rng, other, true);
    }
    world.run(rng.below(150) * MS);
}

fn start(world: &mut World, rng: &mut Rng, node: usize, uneven: bool) {
    if uneven && rng.chance(500) {
        world.nodes[node].config.timeout_ns = timeout_of(rng);
    }
    world.start(node);
}

/// One host measures that another one is slower than it knew, or no longer as slow.
fn find_others_late(world: &mut World, rng: &mut Rng) {
    let node = rng.below(world.nodes.len() as u64) as usize;
    let (one, timeout_ns) = (rng.below(world.nodes.len() as u64) as u16 + 1, timeout_of(rng));
    let all = rng.chance(700);
    let now = world.local_ns(node);
    let Some(d) = &mut world.nodes[node].detector else { return };
    // No agent lets its timeouts fall below what it grants its programs.
    let timeout_ns = timeout_ns.max(d.config().timeout_ns);
    for id in (1..=d.config().members.len() as u16).filter(|id| all || *id == one) {
        let _ = d.set_timeout(now, id, timeout_ns);
    }
}

fn fault(world: &mut World, rng: &mut Rng, plan: &Plan) {
    let node = rng.below(plan.hosts) as usize;
    let other = rng.below(plan.hosts) as usize;
    let down = world.nodes[node].detector.is_none();
    match rng.below(13) {
        // Recordings of a host are replayed to another: of one that is down, if there is one.
        11 | 12 => {
            let down = (0..world.nodes.len()).find(|n| world.nodes[*n].detector.is_none());
            world.replay(down.unwrap_or(other), node);
        }
        10 => {
            let now = world.local_ns(node);
            if let Some(d) = &mut world.nodes[node].detector {
                d.leave(now);
            }
        }
        0 | 1 if !down => world.crash(node),
        0..=3 if down => start(world, rng, node, plan.uneven),
        2 if !down => {
            // It is back at once, while the promises of its earlier incarnation still hold.
            world.crash(node);
            world.run(rng.below(3) * MS);
            start(world, rng, node, plan.uneven);
        }
        4 if plan.suspensions => world.suspend(node, rng.below(200) * MS),
        3 | 4 => world.nodes[node].paused_until_ns = world.now_ns + rng.below(60) * MS,
        5 => world.isolate(node, rng.below(2) as u8, true),
        6 if plan.partitions => {
            world.isolate(node, 0, true);
            world.isolate(node, 1, true);
        }
        7 if plan.partitions && node != other => {
            // Two sides, or one direction of a pair.
            let oneway = rng.chance(500);
            let side = rng.next();
            for a in 0..world.nodes.len() {
                for b in 0..world.nodes.len() {
                    let crosses = side >> a & 1 != side >> b & 1;
                    if a != b && (if oneway { (a, b) == (node, other) } else { crosses }) {
                        world.cuts.extend([(a, b, 0), (a, b, 1)]);
                    }
                }
            }
        }
        _ => world.cuts.clear(),
    }
    if !plan.partitions {
        // At most one plane at a time, so that no two hosts are ever cut apart.
        let plane = rng.below(2) as u8;
        world.cuts.retain(|cut| cut.2 == plane);
    }
}

fn work(world: &mut World, rng: &mut Rng) {
    let node = rng.below(world.nodes.len() as u64) as usize;
    let now = world.local_ns(node);
    let Some(d) = &mut world.nodes[node].detector else { return };
    let slot = rng.below(3) as u8;
    match rng.below(6) {
        0 | 1 => {
            let _ = d.join(now, format!("p{slot}").parse().unwrap());
        }
        2 => {
            let state = match rng.below(5) {
                0 => ProcessState::Stalled,
                1 => ProcessState::Alive,
                2 => ProcessState::Exited(3),
                3 => ProcessState::Left,
                _ => ProcessState::Killed(9),
            };
            let _ = d.process_changed(now, slot, state, now);
        }
        _ => {
            for _ in 0..rng.below(20) {
                let size = if rng.chance(200) { 1300 } else { rng.below(300) as usize };
                let _ = world.piggyback(node, slot, size);
            }
        }
    }
}

/// Once the faults are over, all hosts act together again.
fn heal(world: &mut World, plan: &Plan) {
    world.cuts.clear();
    world.loss = world.loss.min(20);
    for node in 0..world.nodes.len() {
        world.nodes[node].paused_until_ns = 0;
        if world.nodes[node].detector.as_ref().is_none_or(|d| d.life.is_leaving()) {
            world.start(node);
        }
    }
    let together = |w: &World| {
        let first = w.nodes[0].detector.as_ref().map(|d| d.view());
        w.nodes.iter().enumerate().all(|(n, node)| {
            let Some(d) = &node.detector else { return false };
            let peers_up = (1..=plan.hosts as u16)
                .filter_map(|id| Some((id, d.peer(id)?)))
                .all(|(id, p)| p.state == PeerState::Up && p.incarnation == w.nodes[host_index(id)].config.incarnation);
            let view = d.view();
            let whole = plan.policy == Policy::Network || view.members.len() as u64 == plan.hosts;
            !d.is_fenced(w.local_ns(n)) && peers_up && whole && Some(view) == first
        })
    };
    for _ in 0..if plan.uneven { 400 } else { 100 } {
        world.run(10 * MS);
        if together(world) {
            return;
        }
    }
    for (n, d) in world.nodes.iter().enumerate().filter_map(|(n, node)| Some((n, node.detector.as_ref()?))) {
        let heard: Vec<_> = d.peers.others().map(|p| (p.id, p.incarnation, p.state, p.suspected, p.view)).collect();
        let id = (n + 1, d.config().incarnation, d.is_excluded(), d.is_fenced(world.local_ns(n)));
        eprintln!("h{id:?}: {:?}\n  {heard:?}\n  {:?}\n  {:?}", d.view(), d.views.repr(true), d.counters());
    }
    panic!("not together again long after all was healed");
}

fn run(name: &str, plan: &Plan, default: u64) {
    let seeds: u64 = std::env::var("FIDE_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(default);
    let only: Option<u64> = std::env::var("FIDE_SEED").ok().and_then(|s| s.parse().ok());
    for seed in only.map_or(0..seeds, |s| s..s + 1) {
        let run = std::panic::catch_unwind(|| scenario(seed, plan));
        assert!(
            run.is_ok(),
            "seed {seed} failed; run it again: FIDE_SEED={seed} cargo test -p fide-detector seeded::{name} -- --nocapture"
        );
    }
}

/// Each planted fault is found by a world that looks for it, within some thousands of seeds; without the
/// fault none fails.
#[cfg(feature = "planted")]
#[test]
fn planted_faults_are_found() {
    use fide_types::planted::{Planted, arm_thread};
    let uneven = |hosts| Plan { hosts, uneven: true, ..LEASE_MAJORITY };
    // With the seed that found it before, which is tried first.
    let faults = [
        (Planted::TakesRecordings, LEASE_MAJORITY, 7),
        (Planted::WaitsOwnPromise, uneven(5), 0),
        (Planted::ForgetsPromise, uneven(3), 59),
        (Planted::ForgetsGeneration, LEASE_MAJORITY, 8786),
        (Planted::AcksAccepted, uneven(3), 1),
        (Planted::TakesAcksAccepted, uneven(5), 1670),
        (Planted::AcceptsWithoutItself, uneven(3), 15),
    ];
    let most: u64 = std::env::var("FIDE_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(10_000);
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    for (fault, plan, known) in faults {
        scenario(known, &plan);
        arm_thread(Some(fault));
        let broken = |seed| {
            let why = std::panic::catch_unwind(|| scenario(seed, &plan)).err()?;
            let why = why.downcast::<String>().map_or_else(|_| "a panic".to_owned(), |why| *why);
            Some(format!("seed {seed}: {}", why.split(": Verdict").next().unwrap_or_default()))
        };
        let found = broken(known).or_else(|| (0..most).find_map(broken));
        arm_thread(None);
        println!("{fault:?}: {found:?}");
        if found.is_none() {
            missed.push(fault);
        }
    }
    // Each needs several faults in an order that seeds hardly ever choose.
    let scenarios = [
        (Planted::FreesSuperseded, include_str!("../../scenarios/30_superseded_before_the_view.txt")),
        (Planted::EndsUnbound, include_str!("../../scenarios/31_superseded_unbound.txt")),
        (Planted::FindsStallsLate, include_str!("../../scenarios/32_superseded_while_stalled.txt")),
        (Planted::TrustsLateHeartbeats, include_str!("../../scenarios/38_stall_shorter_than_its_limit.txt")),
        (Planted::FoundsAfterAsking, include_str!("../../scenarios/39_member_that_never_knew.txt")),
        (Planted::ForgetsLonger, include_str!("../../scenarios/41_longer_promise_before.txt")),
        (Planted::EndsWhileLeaving, include_str!("../../scenarios/43_leaves_and_hears_of_another.txt")),
        (Planted::DoubtsLate, include_str!("../../scenarios/33_superseded_in_doubt.txt")),
        (Planted::DoubtsOnlyTheHeard, include_str!("../../scenarios/36_doubt_before_an_answer.txt")),
        (Planted::DroppedUnheard, include_str!("../../scenarios/35_witness_dropped_meanwhile.txt")),
    ];
    for (fault, text) in scenarios {
        arm_thread(Some(fault));
        let found = std::panic::catch_unwind(|| super::scenario::run(text)).map_or(true, |got| got != text);
        arm_thread(None);
        if !found {
            missed.push(fault);
        }
    }
    let _ = std::panic::take_hook();
    assert!(missed.is_empty(), "no seed shows {missed:?}");
}

const LEASE_MAJORITY: Plan = Plan {
    hosts: 3,
    trust: Trust::Lease,
    policy: Policy::Majority,
    partitions: true,
    suspensions: false,
    blind: false,
    uneven: false,
};
const SUSPENDED: Plan = Plan { suspensions: true, ..LEASE_MAJORITY };
const SUSPENDED_ALONE: Plan = Plan { policy: Policy::Network, partitions: false, ..SUSPENDED };

#[test]
fn three_lease_majority() {
    run("three_lease_majority", &LEASE_MAJORITY, 100);
}

#[test]
fn five_lease_majority() {
    run("five_lease_majority", &Plan { hosts: 5, ..LEASE_MAJORITY }, 60);
}

#[test]
fn five_unequal_timeouts() {
    run("five_unequal_timeouts", &Plan { hosts: 5, uneven: true, ..LEASE_MAJORITY }, 60);
}

#[test]
fn three_unequal_timeouts() {
    run("three_unequal_timeouts", &Plan { uneven: true, ..LEASE_MAJORITY }, 60);
}

#[test]
fn three_unequal_timeouts_network() {
    let plan = Plan { policy: Policy::Network, partitions: false, uneven: true, ..LEASE_MAJORITY };
    run("three_unequal_timeouts_network", &plan, 60);
}

#[test]
fn four_lease_majority() {
    run("four_lease_majority", &Plan { hosts: 4, ..LEASE_MAJORITY }, 60);
}

#[test]
fn two_lease_majority() {
    run("two_lease_majority", &Plan { hosts: 2, ..LEASE_MAJORITY }, 60);
}

#[test]
fn three_lease_network() {
    let plan = Plan { policy: Policy::Network, partitions: false, ..LEASE_MAJORITY };
    run("three_lease_network", &plan, 100);
}

/// As published: verdicts may be wrong here (pauses, cuts), but stay consistent.
#[test]
fn three_network_network() {
    let plan = Plan { policy: Policy::Network, trust: Trust::Network, ..LEASE_MAJORITY };
    run("three_network_network", &plan, 60);
}

#[test]
fn three_network_majority() {
    run("three_network_majority", &Plan { trust: Trust::Network, ..LEASE_MAJORITY }, 60);
}

/// Trust lease, policy network: two sides cut apart both go on, and come together again once healed.
#[test]
fn three_lease_network_split() {
    let plan = Plan { policy: Policy::Network, ..LEASE_MAJORITY };
    run("three_lease_network_split", &plan, 60);
}

#[test]
fn suspended_lease_majority() {
    run("suspended_lease_majority", &SUSPENDED, 100);
}

#[test]
fn suspended_lease_network() {
    run("suspended_lease_network", &SUSPENDED_ALONE, 100);
}

/// The two tests above can fail: here hosts do not notice that their clock stood still.
#[test]
fn unnoticed_suspension_is_found() {
    for plan in [SUSPENDED, SUSPENDED_ALONE] {
        let blind = Plan { blind: true, ..plan };
        let found = (0..2000).find(|seed| std::panic::catch_unwind(|| scenario(*seed, &blind)).is_err());
        assert!(found.is_some(), "{:?}", blind.policy);
    }
}
