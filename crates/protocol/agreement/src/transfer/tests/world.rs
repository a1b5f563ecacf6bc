// SPDX-License-Identifier: Apache-2.0
//! Hosts, the messages between them, and the steps of a schedule.

use std::collections::BTreeSet;

use fide_types::host_index;
use proptest::{prelude::*, test_runner::TestCaseError};

use super::*;

/// Chunks of 4 bytes, 8 of them asked for at once, 4 payloads under way.
pub(super) fn config() -> Config {
    Config { chunk_max: 4, payload_max: 1000, stored_max: 100_000, reserved: 0, wants_max: 8, arriving_max: 4 }
}

/// Each seed and length gives other bytes.
pub(super) fn payload(seed: u8, len: usize) -> Vec<u8> {
    let mut state = u64::from(seed) + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

pub(super) fn identity(seed: u8, len: usize) -> Identity {
    Identity::of(&payload(seed, len))
}

#[derive(Clone)]
struct Packet {
    from: u16,
    to: u16,
    bytes: Vec<u8>,
    corrupt: bool,
}

pub(super) struct World {
    hosts: Vec<Transfers>,
    dead: BTreeSet<u16>,
    network: Vec<Packet>,
    /// Crashes that are to be reported: the survivor, and the crashed member.
    notices: Vec<(u16, u16)>,
    /// How many chunks may still be damaged: fewer than make a host give up a source.
    damage: usize,
    /// How often each host has offered each payload.
    offered: Vec<(u16, Identity, Vec<u8>)>,
    spread: Vec<Vec<Identity>>,
    arrived: Vec<Vec<Identity>>,
    missing: Vec<Vec<Identity>>,
}

impl World {
    pub(super) fn new(hosts: u16, config: Config) -> Self {
        Self {
            hosts: (1..=hosts).map(|me| Transfers::new(me, config).expect("a host")).collect(),
            dead: BTreeSet::new(),
            network: Vec::new(),
            notices: Vec::new(),
            damage: usize::from(TRIES_MAX) - 1,
            offered: Vec::new(),
            spread: vec![Vec::new(); hosts.into()],
            arrived: vec![Vec::new(); hosts.into()],
            missing: vec![Vec::new(); hosts.into()],
        }
    }

    pub(super) fn host(&self, host: HostId) -> &Transfers {
        &self.hosts[host_index(host)]
    }

    pub(super) fn at(&mut self, host: HostId) -> &mut Transfers {
        &mut self.hosts[host_index(host)]
    }

    /// What was reported since the last call.
    pub(super) fn spread(&mut self, host: HostId) -> Vec<Identity> {
        self.hear(host);
        std::mem::take(&mut self.spread[host_index(host)])
    }

    pub(super) fn arrived(&mut self, host: HostId) -> Vec<Identity> {
        self.hear(host);
        std::mem::take(&mut self.arrived[host_index(host)])
    }

    pub(super) fn missing(&mut self, host: HostId) -> Vec<Identity> {
        self.hear(host);
        std::mem::take(&mut self.missing[host_index(host)])
    }

    fn hear(&mut self, host: HostId) {
        let at = host_index(host);
        let node = &mut self.hosts[at];
        let spread: Vec<_> = std::iter::from_fn(|| node.poll_spread()).collect();
        self.arrived[at].extend(std::iter::from_fn(|| node.poll_arrived()));
        self.missing[at].extend(std::iter::from_fn(|| node.poll_missing()));
        for other in self.alive() {
            let lacks = spread.iter().find(|identity| self.host(other).get(identity).is_none());
            assert_eq!(lacks, None, "{host} heard that all have it, {other} has not");
        }
        self.spread[at].extend(spread);
    }

    fn alive(&self) -> Vec<u16> {
        (1..=self.hosts.len() as u16).filter(|host| !self.dead.contains(host)).collect()
    }

    /// Offers a payload to all.
    pub(super) fn offer(&mut self, host: HostId, payload: Vec<u8>) -> Identity {
        let all = HostSet::first(self.hosts.len());
        let identity = self.at(host).offer(payload.clone(), all).expect("room");
        self.offered.push((host, identity, payload));
        identity
    }

    /// One message leaves a host.
    fn send_one(&mut self, host: HostId) -> bool {
        let mut bytes = Vec::new();
        let Some(to) = self.at(host).poll_transmit(&mut bytes) else { return false };
        let packets = to.iter().map(|to| Packet { from: host, to, bytes: bytes.clone(), corrupt: false });
        self.network.extend(packets);
        true
    }

    fn deliver(&mut self, packet: &Packet) {
        if self.dead.contains(&packet.to) {
            return;
        }
        match self.at(packet.to).receive(packet.from, &packet.bytes) {
            Ok(()) => self.hear(packet.to),
            // It is late, or of a dead host.
            Err(
                TransferError::Unasked { .. }
                | TransferError::NotAsked { .. }
                | TransferError::Early { .. }
                | TransferError::Crashed { .. },
            ) => {}
            Err(error) => panic!("{} to {}: {error}", packet.from, packet.to),
        }
    }

    /// All messages of a host are sent and arrive.
    pub(super) fn step(&mut self, host: HostId) {
        while self.send_one(host) {}
        for packet in std::mem::take(&mut self.network) {
            self.deliver(&packet);
        }
    }

    pub(super) fn crash(&mut self, host: HostId) {
        if self.dead.contains(&host) || self.alive().len() == 1 {
            return;
        }
        self.dead.insert(host);
        self.notices.extend(self.alive().into_iter().map(|survivor| (survivor, host)));
    }

    pub(super) fn notice(&mut self, which: usize) -> bool {
        if self.notices.is_empty() {
            return false;
        }
        let (survivor, dead) = self.notices.remove(which % self.notices.len());
        if !self.dead.contains(&survivor) {
            self.at(survivor).crashed(dead);
            self.hear(survivor);
        }
        true
    }

    fn happen(&mut self, what: u8, which: u16, crashes: bool) {
        let (alive, index) = (self.alive(), usize::from(which));
        let host = alive[index % alive.len()];
        let packets = self.network.len();
        match what {
            0..10 => {
                let len = [0, 1, 4, 5, 33, 120][index / 5 % 6];
                self.offer(host, payload((which % 5) as u8, len));
            }
            10..15 => {
                let all = &self.offered;
                if let Some((_, identity, _)) = all.get(index % all.len().max(1)).cloned() {
                    let from = (which / 7) % self.hosts.len() as u16 + 1;
                    let _ = self.at(host).fetch(identity, from);
                    self.hear(host);
                }
            }
            15..90 => drop(self.send_one(host)),
            90..170 if packets > 0 => {
                let packet = self.network.swap_remove(index % packets);
                self.deliver(&packet);
            }
            170..185 if packets > 0 => drop(self.network.swap_remove(index % packets)),
            185..200 if packets > 0 => {
                let packet = self.network[index % packets].clone();
                self.network.extend((!packet.corrupt).then_some(packet));
            }
            200..210 if packets > 0 && self.damage > 0 => {
                let packet = &mut self.network[index % packets];
                if packet.bytes[0] == 18 && !packet.corrupt {
                    *packet.bytes.last_mut().expect("a chunk") ^= 1;
                    packet.corrupt = true;
                    self.damage -= 1;
                }
            }
            210..240 => self.at(host).resend(),
            240..250 => drop(self.notice(index)),
            250..253 if crashes => self.crash(host),
            _ => {}
        }
    }

    /// Nothing is lost any more: everything under way arrives, and missing chunks are asked for, until all is
    /// quiet.
    pub(super) fn calm(&mut self) {
        let mut quiet = 0;
        for _ in 0..10_000 {
            quiet = if self.round() { quiet + 1 } else { 0 };
            if quiet == 4 {
                return;
            }
        }
        panic!("{:?} and more are sent again and again", self.network.first().map(|packet| &packet.bytes));
    }

    /// Everything under way arrives, and what follows from it; then each host resends. Whether nothing was
    /// under way.
    pub(super) fn round(&mut self) -> bool {
        let mut quiet = true;
        loop {
            let sent = self.alive().into_iter().filter(|host| self.send_one(*host)).count();
            let noticed = self.notice(0);
            if sent == 0 && self.network.is_empty() && !noticed {
                break;
            }
            quiet = false;
            for packet in std::mem::take(&mut self.network) {
                self.deliver(&packet);
            }
        }
        self.alive().into_iter().for_each(|host| {
            self.at(host).resend();
            self.hear(host);
        });
        quiet
    }

    pub(super) fn follow(&mut self, steps: &[(u8, u16)], crashes: bool) -> Result<(), TestCaseError> {
        for (what, which) in steps {
            self.happen(*what, *which, crashes);
            for host in &self.hosts {
                prop_assert!(host.used_bytes() <= host.config.stored_max);
                prop_assert!(host.arriving.len() <= host.config.arriving_max);
            }
        }
        self.calm();
        self.check()
    }

    /// All live hosts store every payload that a live host has offered, and it is reported as often as it has
    /// to be.
    fn check(&mut self) -> Result<(), TestCaseError> {
        for host in self.alive() {
            let node = self.host(host);
            prop_assert!(node.arriving.is_empty(), "{host} waits for {:?}", node.arriving[0].identity);
            let used: u64 = node.stored().map(|(identity, _)| identity.len).sum();
            prop_assert_eq!(node.used_bytes(), used);
            for (identity, _) in node.stored() {
                prop_assert_eq!(*identity, Identity::of(node.get(identity).expect("stored")));
            }
            let mine: Vec<_> = self.offered.iter().filter(|(by, ..)| *by == host).cloned().collect();
            let spread = self.spread(host);
            for (_, identity, payload) in &mine {
                for other in self.alive() {
                    prop_assert_eq!(self.host(other).get(identity), Some(&**payload), "at {}", other);
                }
                let times = spread.iter().filter(|one| *one == identity).count();
                let offers = mine.iter().filter(|(_, offered, _)| offered == identity).count();
                prop_assert!((1..=offers).contains(&times), "{times} times spread, {offers} times offered");
            }
        }
        Ok(())
    }
}
