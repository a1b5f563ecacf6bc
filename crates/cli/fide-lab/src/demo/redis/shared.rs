// SPDX-License-Identifier: Apache-2.0
//! What the threads of the demo share: where the servers are, and what clients have seen.

use std::{
    net::{Ipv4Addr, SocketAddr},
    ops::Range,
    path::PathBuf,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use super::connection::leader_by;

/// A server of the group.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) address: SocketAddr,
    /// Its Unix socket, which every namespace reaches.
    pub(super) socket: PathBuf,
}

/// An acknowledged write.
#[derive(Debug, Clone, Copy)]
pub(super) struct Acknowledged {
    /// CLOCK_MONOTONIC, ns.
    pub(super) at_ns: u64,
    /// The host whose server has acknowledged it, from 1.
    pub(super) host: usize,
}

pub(super) struct Shared {
    /// By host, from h1.
    pub(super) servers: Vec<Place>,
    /// The load ends.
    pub(super) stop: AtomicBool,
    /// The host that acknowledged the last write, from 1; 0 before the first one.
    pub(super) leader: AtomicUsize,
    pub(super) asked_again: AtomicU64,
    acknowledged: Mutex<Vec<Acknowledged>>,
}

impl Shared {
    pub(super) fn new(servers: Vec<Place>) -> Self {
        Self {
            servers,
            stop: AtomicBool::new(false),
            leader: AtomicUsize::new(0),
            asked_again: AtomicU64::new(0),
            acknowledged: Mutex::default(),
        }
    }

    pub(super) fn stops(&self) -> bool {
        self.stop.load(Relaxed)
    }

    fn list(&self) -> MutexGuard<'_, Vec<Acknowledged>> {
        self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn acknowledge(&self, at_ns: u64, host: usize) {
        self.leader.store(host, Relaxed);
        self.list().push(Acknowledged { at_ns, host });
    }

    pub(super) fn count(&self) -> usize {
        self.list().len()
    }

    /// The first write after that many, and not before that time, that another host has acknowledged.
    pub(super) fn first_by_another(&self, after: usize, not_before_ns: u64, host: usize) -> Option<Acknowledged> {
        let list = self.list();
        let is_it = |one: &&Acknowledged| one.host != host && one.at_ns >= not_before_ns;
        list.get(after..).unwrap_or_default().iter().filter(is_it).min_by_key(|one| one.at_ns).copied()
    }

    /// The longest time between two acknowledged writes, ns; times within these ranges do not count.
    pub(super) fn longest_pause_ns(&self, but: &[Range<u64>]) -> u64 {
        let mut times: Vec<u64> = self.list().iter().map(|one| one.at_ns).collect();
        times.sort_unstable();
        let is_out = |pause: &&[u64]| !but.iter().any(|range| range.start < pause[1] && pause[0] < range.end);
        times.windows(2).filter(is_out).map(|pause| pause[1] - pause[0]).max().unwrap_or(0)
    }

    fn host_of(&self, address: Ipv4Addr) -> Option<usize> {
        self.servers.iter().position(|place| place.address.ip() == address).map(|at| at + 1)
    }

    /// The leader's host, as the first server that answers has it; the servers after `not_first` are asked first.
    pub(super) fn find_leader(&self, not_first: usize) -> Option<usize> {
        let count = self.servers.len();
        (0..count)
            .map(|step| (not_first + step) % count)
            .find_map(|at| leader_by(self.servers[at].address).and_then(|address| self.host_of(address)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_while_a_leader_is_lost_do_not_count() {
        let shared = Shared::new(Vec::new());
        for at_ns in [10, 20, 50, 55, 95] {
            shared.acknowledge(at_ns, 1);
        }
        assert_eq!(shared.longest_pause_ns(&[]), 40);
        assert_eq!(shared.longest_pause_ns(&[60..90, 0..5]), 30);
        assert_eq!(shared.longest_pause_ns(&[60..90, 20..30]), 10);
    }

    #[test]
    fn old_leader_does_not_end_its_gap() {
        let shared = Shared::new(Vec::new());
        [(10, 1), (20, 1), (30, 2)].into_iter().for_each(|(at_ns, host)| shared.acknowledge(at_ns, host));
        assert_eq!(shared.first_by_another(1, 15, 1).map(|one| one.at_ns), Some(30));
        assert!(shared.first_by_another(3, 15, 1).is_none());
        assert!(shared.first_by_another(0, 15, 2).is_some_and(|one| one.at_ns == 20));
    }
}
