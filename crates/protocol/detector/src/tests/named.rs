// SPDX-License-Identifier: Apache-2.0
//! A host says that it has named all its processes, to each peer that begins to listen.

use super::world::Rng;
use crate::config::tests::cluster;
use crate::roster::newer;
use crate::*;
use fide_wire::{MAX_PROCESSES, PAYLOAD_MAX};

const MS: u64 = 1_000_000;

/// Three hosts that judge each other alone, with packets as small as they may be.
pub(super) struct Hosts {
    pub(super) nodes: [Option<Detector>; 3],
    pub(super) incarnations: [u32; 3],
    /// An excluded host restarts that many milliseconds later.
    pub(super) restarts_after: u64,
    excluded_at: [Option<u64>; 3],
    config: Config,
    now: u64,
    random: Rng,
}

impl Hosts {
    pub(super) fn new(trust: Trust, policy: Policy, seed: u64) -> Self {
        let config = Config { trust, policy, ..cluster(3) };
        let config = Config { payload_max: config.payload_min() + 40, ..config };
        let mut hosts = Self {
            nodes: [None, None, None],
            incarnations: [10; 3],
            restarts_after: 0,
            excluded_at: [None; 3],
            config,
            now: 0,
            random: Rng::new(seed),
        };
        (0..3).for_each(|node| hosts.start(node));
        hosts
    }

    pub(super) fn start(&mut self, node: usize) {
        self.incarnations[node] += 1;
        let (me, incarnation) = (node as u16 + 1, self.incarnations[node]);
        self.nodes[node] = Some(Detector::new(Config { me, incarnation, ..self.config.clone() }, self.now).unwrap());
    }

    /// Runs one millisecond, in which that many packets of a hundred are lost.
    pub(super) fn round(&mut self, lost: u64) {
        let mut buf = [0u8; PAYLOAD_MAX];
        for from in 0..3 {
            let now = self.now;
            let Some(mut sender) = self.nodes[from].take() else { continue };
            sender.tick(now);
            while let Some(sent) = sender.poll_transmit(now, &mut buf) {
                for to in 0..3 {
                    let arrives = self.random.below(100) >= lost;
                    if arrives && let Some(receiver) = self.nodes[to].as_mut() {
                        let _ = receiver.handle_packet(now, now, 0, &buf[..sent.len]);
                    }
                }
            }
            while sender.poll_event().is_some() {}
            let since = sender.is_excluded().then(|| *self.excluded_at[from].get_or_insert(now));
            if since.is_some_and(|since| now >= since + self.restarts_after * MS) && !sender.is_put_back() {
                self.excluded_at[from] = None;
                self.incarnations[from] += 1;
                // Others have heard of a later incarnation of it.
                if let Err(RestartError::Incarnation { present, .. }) = sender.restart(now, self.incarnations[from]) {
                    self.incarnations[from] = present + 1;
                    sender.restart(now, self.incarnations[from]).unwrap();
                }
            }
            self.nodes[from] = Some(sender);
        }
        self.now += MS;
    }

    fn node(&mut self, node: usize) -> &mut Detector {
        self.nodes[node].as_mut().expect("it runs")
    }

    /// The live processes of host 2: slot and number.
    fn live(&mut self) -> Vec<(u8, u32)> {
        let one = |host: &Detector, slot| {
            host.process(2, slot).filter(|p| !p.state.is_final()).map(|p| (slot, p.incarnation))
        };
        let host = self.node(1);
        (0..MAX_PROCESSES as u8).filter_map(|slot| one(host, slot)).collect()
    }
}

/// Host 1 knows every process that was alive when it started and is still alive, once it hears that all are
/// named.
fn holds(hosts: &mut Hosts, last: u32) -> bool {
    if !hosts.node(0).all_named(2) {
        return false;
    }
    for (slot, incarnation) in hosts.live().into_iter().filter(|(_, incarnation)| !newer(*incarnation, last)) {
        let known = hosts.node(0).process(2, slot).map(|p| p.incarnation);
        assert_eq!(known, Some(incarnation), "slot {slot} of h2 lives, and h1 holds all for named");
    }
    true
}

/// Processes come and go, host 1 restarts again and again, packets are lost. Returns how often all were
/// named.
fn disturbed(trust: Trust, policy: Policy, seed: u64) -> u32 {
    let mut hosts = Hosts::new(trust, policy, seed);
    let (mut joined, mut last, mut named) = (0, 0, 0);
    for ms in 0..1200 {
        match hosts.random.below(12) {
            0..4 if joined < 200 => {
                joined += 1;
                let (now, name) = (hosts.now, format!("process-{}", joined % 90));
                let _ = hosts.node(1).join(now, name.parse().unwrap());
            }
            4 => {
                let live = hosts.live();
                if !live.is_empty() {
                    let (slot, _) = live[hosts.random.below(live.len() as u64) as usize];
                    let now = hosts.now;
                    hosts.node(1).process_changed(now, slot, ProcessState::Exited(1), now).unwrap();
                }
            }
            5 if ms % 10 == 0 => {
                hosts.start(0);
                last = hosts.node(1).locals.last_number();
            }
            6 if ms % 20 == 0 => hosts.start(2),
            _ => {}
        }
        let lost = if ms % 300 < 150 { 30 } else { 0 };
        hosts.round(lost);
        named += u32::from(holds(&mut hosts, last));
    }
    hosts.start(0);
    last = hosts.node(1).locals.last_number();
    for _ in 0..600 {
        hosts.round(0);
        holds(&mut hosts, last);
    }
    assert!(hosts.node(0).all_named(2), "seed {seed}, {trust:?}, {policy:?}: in the end it is named");
    named
}

#[test]
fn no_live_process_is_missing_once_all_are_named() {
    let mut named = 0;
    for seed in 1..=8 {
        named += disturbed(Trust::Network, Policy::Network, seed);
        named += disturbed(Trust::Lease, Policy::Network, seed);
        named += disturbed(Trust::Lease, Policy::Majority, seed);
    }
    assert!(named > 300, "{named}");
}

#[cfg(feature = "planted")]
#[test]
fn planted_faults_name_some() {
    fide_types::planted::arm_thread(Some(fide_types::planted::Planted::NamesSome));
    let found =
        (1..=10).any(|seed| std::panic::catch_unwind(|| disturbed(Trust::Network, Policy::Network, seed)).is_err());
    fide_types::planted::arm_thread(None);
    assert!(found);
}

/// A process dies while the agent of a watcher is away. Another one takes its slot and ends too, as a third
/// takes its name.
#[test]
fn end_is_known_though_its_slot_was_reused_while_the_watchers_agent_was_away() {
    let mut hosts = Hosts::new(Trust::Network, Policy::Network, 1);
    (0..30).for_each(|_| hosts.round(0));
    let now = hosts.now;
    let db = hosts.node(1).join(now, "db".parse().unwrap()).unwrap();
    for n in 1..MAX_PROCESSES {
        let now = hosts.now;
        hosts.node(1).join(now, format!("n{n}").parse().unwrap()).unwrap();
    }
    (0..200).for_each(|_| hosts.round(0));
    assert_eq!(hosts.node(0).process(2, db.slot).map(|p| p.incarnation), Some(db.incarnation));
    hosts.nodes[0] = None;
    (0..30).for_each(|_| hosts.round(0));
    let ends = |hosts: &mut Hosts, slot| {
        let now = hosts.now;
        hosts.node(1).process_changed(now, slot, ProcessState::Killed(9), now).unwrap();
        (0..100).for_each(|_| hosts.round(0));
    };
    ends(&mut hosts, db.slot);
    let joins = |hosts: &mut Hosts| {
        let now = hosts.now;
        hosts.node(1).join(now, "web".parse().unwrap()).unwrap()
    };
    let web = joins(&mut hosts);
    assert_eq!(web.slot, db.slot);
    let another = hosts.live()[5].0;
    ends(&mut hosts, another);
    ends(&mut hosts, web.slot);
    // Not in the slot that `db` had: a peer that begins to listen now never hears of that process.
    let now = hosts.now;
    hosts.node(1).join(now, "in-between".parse().unwrap()).unwrap();
    let last = joins(&mut hosts);
    hosts.start(0);
    let mut rounds = 0;
    while !hosts.node(0).all_named(2) {
        hosts.round(0);
        rounds += 1;
        assert!(rounds < 400);
    }
    let known: Vec<_> = (0..MAX_PROCESSES as u8).filter_map(|slot| hosts.node(0).process(2, slot)).collect();
    assert!(known.iter().all(|p| p.incarnation != db.incarnation && p.name != "db".parse().unwrap()));
    assert!(known.iter().any(|p| p.incarnation == last.incarnation));
}
