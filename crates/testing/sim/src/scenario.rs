// SPDX-License-Identifier: Apache-2.0
//! Networks and requests at random, by seed.

use fide_planner::topology::{Cable, CableSpec, FatTree, LeafSpine, Node, NodeId, NodeKind};
use fide_planner::{Limits, Planner, Request, Topology};
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// How large and how loaded.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Switches of an irregular network at most.
    pub switches: usize,
    pub hosts: usize,
    /// Requests asked for; some may be refused.
    pub requests: usize,
}

fn cables(random: &mut ChaCha8Rng) -> CableSpec {
    let bandwidth_bps = *[100_000_000, 1_000_000_000, 10_000_000_000_u64].choose(random).expect("not empty");
    CableSpec {
        bandwidth_bps,
        queue_bytes: *[16_384, 131_072, 1_048_576].choose(random).expect("not empty"),
        latency_min_ns: random.random_range(0..2_000),
        jitter_max_ns: *[0, 50, 5_000].choose(random).expect("not empty"),
        host_latency_min_ns: random.random_range(0..5_000),
        host_jitter_max_ns: *[0, 300, 20_000].choose(random).expect("not empty"),
    }
}

/// Some hosts and switches with cables of all kinds between them; every host has one to three.
#[must_use]
pub fn irregular(random: &mut ChaCha8Rng, size: Size) -> Topology {
    let switches = random.random_range(2..=size.switches.max(2));
    let hosts = random.random_range(2..=size.hosts.max(2));
    let node = |kind, name: String| Node { name, kind, tier: u8::from(kind == NodeKind::Switch) };
    let mut nodes: Vec<Node> = (0..switches).map(|s| node(NodeKind::Switch, format!("s{s}"))).collect();
    nodes.extend((1..=hosts).map(|h| node(NodeKind::Host, format!("h{h}"))));
    let mut pairs: Vec<(usize, usize)> = Vec::new();
    for a in 0..switches {
        for b in a + 1..switches {
            if random.random_range(0..100) < 60 {
                pairs.push((a, b));
            }
            // Parallel cables.
            if random.random_range(0..100) < 5 {
                pairs.push((a, b));
            }
        }
    }
    for host in switches..switches + hosts {
        let homes = random.random_range(1..=3.min(switches));
        let all: Vec<usize> = (0..switches).collect();
        pairs.extend(all.sample(random, homes).map(|home| (host, *home)));
        if random.random_range(0..100) < 3 && host + 1 < switches + hosts {
            pairs.push((host, host + 1));
        }
    }
    let base = cables(random);
    let list = pairs.iter().enumerate().map(|(number, (a, b))| {
        let spec = if random.random_range(0..4) == 0 { cables(random) } else { base };
        Cable {
            ends: [NodeId(u32::try_from(*a).expect("few")), NodeId(u32::try_from(*b).expect("few"))],
            ports: [format!("c{number}"), format!("c{number}")],
            bandwidth_bps: spec.bandwidth_bps,
            queue_bytes: spec.queue_bytes,
            latency_min_ns: spec.latency_min_ns,
            jitter_max_ns: spec.jitter_max_ns,
            reserved_bps: if random.random_range(0..8) == 0 { spec.bandwidth_bps / 10 } else { 0 },
            reserved_burst_bytes: 0,
            kind: None,
            failure_per_year: None,
        }
    });
    let list: Vec<Cable> = list.collect();
    Topology::new(nodes, list).expect("made to be right")
}

/// A network of any kind with requests that it holds.
#[must_use]
pub fn random(seed: u64, size: Size) -> Planner {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let spec = cables(&mut random);
    let topology = match random.random_range(0..4) {
        0 => FatTree { k: 4, homing: 2 }.build(&spec).expect("k = 4 is right"),
        1 => {
            let groups = random.random_range(1..=3);
            let spines = random.random_range(2..=4);
            let homing = random.random_range(1..=3);
            LeafSpine { groups, homing, spines, hosts: random.random_range(2..=4) }.build(&spec).expect("in range")
        }
        _ => irregular(&mut random, size),
    };
    let limits = Limits {
        bandwidth_share: *[0.1, 0.5, 1.0].choose(&mut random).expect("not empty"),
        queue_share: *[0.5, 1.0].choose(&mut random).expect("not empty"),
        ..Limits::default()
    };
    let hosts: Vec<String> = topology.hosts().map(|host| topology.node(host).name.clone()).collect();
    let mut planner = Planner::new(topology, limits).expect("limits are right");
    for number in 0..random.random_range(1..=size.requests) {
        let request = request(&mut random, &hosts, number);
        // One that cannot be held is not the point here.
        let _ = planner.request(request);
    }
    planner
}

/// A request of any size between some of the hosts.
#[must_use]
pub fn request(random: &mut ChaCha8Rng, hosts: &[String], number: usize) -> Request {
    let members = random.random_range(2..=hosts.len().min(9));
    let chosen: Vec<String> = hosts.sample(random, members).cloned().collect();
    Request {
        name: format!("r{number}"),
        sender: chosen[0].clone(),
        receivers: chosen[1..].to_vec(),
        size_max_bytes: random.random_range(1..=1472),
        period_min_ns: *[20_000, 100_000, 1_000_000, 5_000_000].choose(random).expect("not empty"),
        priority: random.random_range(0..3),
        redundancy: random.random_range(1..=2),
        latency_max_ns: None,
    }
}
