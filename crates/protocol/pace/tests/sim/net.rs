// SPDX-License-Identifier: Apache-2.0
//! Endpoints with addresses, and a network between them that loses, repeats, forges and replays datagrams.

use std::{cmp::Reverse, collections::BinaryHeap, net::SocketAddr};

use fide_pace::{
    endpoint::{ConnectionId, DATAGRAM_MAX, Endpoint, Event},
    transport::Arrival,
};
use rand::{RngExt, SeedableRng, rngs::SmallRng};

const MS: u64 = 1_000_000;

/// What the network does to datagrams, each with a probability.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Harm {
    pub(crate) loses: f64,
    pub(crate) repeats: f64,
    /// A copy with a bit turned, or cut, comes besides.
    pub(crate) forges: f64,
    /// A datagram of before comes again, from its own address or from the attacker's.
    pub(crate) replays: f64,
}

pub(crate) struct Host {
    pub(crate) address: SocketAddr,
    pub(crate) endpoint: Endpoint,
    pub(crate) events: Vec<Event>,
    /// Messages that were delivered.
    pub(crate) delivered: Vec<(ConnectionId, Vec<u8>)>,
}

/// From, to, and the datagram.
pub(crate) type Sent = (SocketAddr, SocketAddr, Vec<u8>);

/// Somebody on the path, who sees each datagram as it is sent. What he adds is faster than all others.
pub(crate) type OnPath = Box<dyn FnMut(&Sent) -> Vec<Sent>>;

pub(crate) struct Net {
    pub(crate) now_ns: u64,
    pub(crate) hosts: Vec<Host>,
    pub(crate) harm: Harm,
    pub(crate) attacker: SocketAddr,
    pub(crate) on_path: Option<OnPath>,
    /// How long datagrams are on their way, at least.
    pub(crate) delay_ns: u64,
    /// When each comes, and in which order of those that come at once.
    under_way: BinaryHeap<Reverse<(u64, u64, Sent)>>,
    /// What the attacker has seen.
    seen: Vec<Sent>,
    count: u64,
    /// Bytes that went to the attacker.
    pub(crate) to_attacker: usize,
    pub(crate) random: SmallRng,
}

pub(crate) fn address(host: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, host], port))
}

impl Net {
    pub(crate) fn new(seed: u64, harm: Harm, endpoints: Vec<Endpoint>) -> Self {
        let host = |(at, endpoint)| Host {
            address: address(u8::try_from(at).unwrap() + 1, 5000),
            endpoint,
            events: Vec::new(),
            delivered: Vec::new(),
        };
        Self {
            now_ns: 3_600_000_000_000,
            hosts: endpoints.into_iter().enumerate().map(host).collect(),
            harm,
            attacker: address(200, 6666),
            on_path: None,
            delay_ns: 4 * MS,
            under_way: BinaryHeap::new(),
            seen: Vec::new(),
            count: 0,
            to_attacker: 0,
            random: SmallRng::seed_from_u64(seed),
        }
    }

    pub(crate) fn entropy(&mut self) -> [u8; 32] {
        self.random.random()
    }

    fn add(&mut self, from: SocketAddr, to: SocketAddr, bytes: Vec<u8>) {
        let takes_ns = self.random.random_range(self.delay_ns..self.delay_ns + 2 * MS);
        self.add_in(takes_ns, (from, to, bytes));
    }

    fn add_in(&mut self, takes_ns: u64, sent: Sent) {
        self.count += 1;
        self.under_way.push(Reverse((self.now_ns + takes_ns, self.count, sent)));
    }

    /// A datagram enters the network.
    pub(crate) fn send(&mut self, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        if let Some(on_path) = &mut self.on_path {
            let added = on_path(&(from, to, bytes.to_vec()));
            added.into_iter().for_each(|sent| self.add_in(MS, sent));
        }
        let Harm { loses, repeats, forges, replays } = self.harm;
        if self.random.random_bool(forges) {
            let mut forged = bytes.to_vec();
            if self.random.random_bool(0.3) {
                forged.truncate(self.random.random_range(0..bytes.len()));
            } else {
                let bit = self.random.random_range(0..bytes.len() * 8);
                forged[bit / 8] ^= 1 << (bit % 8);
            }
            self.add(from, to, forged);
        }
        if self.random.random_bool(replays) && !self.seen.is_empty() {
            let (from, to, bytes) = self.seen[self.random.random_range(0..self.seen.len())].clone();
            let from = if self.random.random_bool(0.5) { self.attacker } else { from };
            self.add(from, to, bytes);
        }
        if self.seen.len() < 10_000 {
            self.seen.push((from, to, bytes.to_vec()));
        }
        if self.random.random_bool(repeats) {
            self.add(from, to, bytes.to_vec());
        }
        if !self.random.random_bool(loses) {
            self.add(from, to, bytes.to_vec());
        }
    }

    /// All that a host can do now.
    fn act(&mut self, at: usize) {
        let now_ns = self.now_ns;
        self.hosts[at].endpoint.timeout(now_ns);
        let mut bytes = [0; DATAGRAM_MAX];
        for turn in 0.. {
            assert!(turn < 10_000, "a host never rests");
            let host = &mut self.hosts[at];
            let Some(datagram) = host.endpoint.transmit(now_ns, &mut bytes) else { break };
            let from = host.address;
            self.send(from, datagram.to, &bytes[..datagram.len]);
        }
        let host = &mut self.hosts[at];
        while let Some(event) = host.endpoint.poll_event() {
            host.events.push(event);
        }
        for id in host.connections() {
            while let Some(Some(message)) = host.endpoint.with(id, now_ns, |transport| transport.poll_message(now_ns)) {
                host.delivered.push((id, message.bytes));
            }
        }
    }

    /// Runs for a time.
    pub(crate) fn run(&mut self, for_ns: u64) {
        let until_ns = self.now_ns + for_ns;
        for turn in 0.. {
            assert!(turn < 2_000_000, "too much happens");
            (0..self.hosts.len()).for_each(|at| self.act(at));
            let arrives_ns = self.under_way.peek().map_or(u64::MAX, |Reverse((at_ns, ..))| *at_ns);
            let due_ns = self.hosts.iter_mut().map(|host| host.endpoint.due_ns()).min().unwrap_or(u64::MAX);
            let next_ns = arrives_ns.min(due_ns).max(self.now_ns + 1);
            if next_ns > until_ns {
                break;
            }
            self.now_ns = next_ns;
            while let Some(Reverse((at_ns, ..))) = self.under_way.peek()
                && *at_ns <= self.now_ns
            {
                let Some(Reverse((_, _, (from, to, bytes)))) = self.under_way.pop() else { break };
                if to == self.attacker {
                    self.to_attacker += bytes.len();
                }
                let entropy = self.entropy();
                if let Some(host) = self.hosts.iter_mut().find(|host| host.address == to) {
                    host.endpoint.receive(self.now_ns, from, &bytes, Arrival::default(), || entropy);
                }
            }
        }
        self.now_ns = until_ns;
    }
}

impl Host {
    /// Connections that stand, or stood.
    pub(crate) fn connections(&self) -> Vec<ConnectionId> {
        let of = |event: &Event| match event {
            Event::Connected(id) | Event::Accepted(id, _) => Some(*id),
            _ => None,
        };
        self.events.iter().filter_map(of).collect()
    }
}
