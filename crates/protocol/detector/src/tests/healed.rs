// SPDX-License-Identifier: Apache-2.0
//! Two hosts stop hearing each other for a moment: no host is evicted for that.

use super::world::World;
use crate::config::tests::cluster;
use crate::*;

const MS: u64 = 1_000_000;
const TIMEOUT_NS: u64 = 5 * MS;

/// Three hosts. The first does not hear the second for a little longer than a timeout; then nothing is wrong
/// for a long time.
fn healed(seed: u64, kernel: bool) -> World {
    let config = |me| Config { me, timeout_ns: TIMEOUT_NS, planes: 2, ..cluster(3) };
    let mut world = World::new((1..=3).map(config).collect(), seed);
    world.strict = true;
    world.kernel = kernel;
    world.latency_ns = 50_000;
    world.jitter_ns = 300_000;
    (0..3).for_each(|node| world.start(node));
    world.run(100 * MS);
    world.cuts.extend((0..2).map(|plane| (1, 0, plane)));
    world.run(TIMEOUT_NS + 2 * MS);
    world.cuts.clear();
    world.run(100 * MS);
    world
}

/// With UDP, an agent reads every heartbeat. With XDP, the kernel keeps steady heartbeats, whose sender
/// suspects nobody, to itself, and the agent sees only their slot.
#[test]
fn healed_partial_partition_excludes_nobody_on_any_rung() {
    for (seed, kernel) in (0..40).flat_map(|seed| [(seed, false), (seed, true)]) {
        let world = healed(seed, kernel);
        for node in &world.nodes {
            let view = node.detector.as_ref().expect("it runs").view();
            assert_eq!(
                (view.id.number, view.members.len()),
                (1, 3),
                "seed {seed}, {}: {:#?}",
                if kernel { "xdp" } else { "udp" },
                world.trace
            );
        }
    }
}

#[cfg(feature = "planted")]
#[test]
fn planted_faults_keep_reports_of_partitions_that_are_over() {
    assert!(super::fails_with(
        fide_types::planted::Planted::KeepsReports,
        healed_partial_partition_excludes_nobody_on_any_rung
    ));
}
