// SPDX-License-Identifier: Apache-2.0
//! Durable groups: slow disks, full disks, disks that come back, and ends of all hosts or all members at once.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::{EARLIER, FAULTS_NS, Fault, MS, Plan, What};

/// How members store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Durable {
    /// The longest that a sync takes.
    pub sync_ns: u64,
    /// The longest that a user takes to write its state.
    pub save_ns: u64,
    /// Decisions on disk after which a user writes its state again.
    pub compact: usize,
}

/// A durable group is left alone for so much longer: all hosts may have to start, and found it again.
pub(super) const BACK_NS: u64 = 150 * MS;

impl Plan {
    /// One host runs with an empty disk, and then with its former one again, also after all others have ended.
    fn swap_disks(&mut self, random: &mut ChaCha8Rng) {
        let host = random.random_range(1..=self.hosts);
        let mut at_ns = random.random_range(0..FAULTS_NS / 2);
        for _ in 0..random.random_range(2..6) {
            let what = match random.random_range(0..3) {
                0 => Some(What::KillSeats),
                1 => Some(What::PowerCut { down_ns: random.random_range(MS..20 * MS) }),
                _ => None,
            };
            self.faults.extend(what.map(|what| Fault { at_ns, what }));
            at_ns += random.random_range(0..4 * MS);
            self.faults.push(Fault { at_ns, what: What::SwapDisk { host } });
            at_ns += [5 * MS, 30 * MS, 150 * MS][random.random_range(0..3)];
        }
    }

    pub(super) fn be_durable(&mut self, random: &mut ChaCha8Rng) {
        self.durable = Some(Durable {
            sync_ns: [60_000, MS / 2, 3 * MS, 8 * MS][random.random_range(0..4)],
            save_ns: [2, 5 * MS, 60 * MS][random.random_range(0..3)],
            compact: [3, 20, 100, 1000][random.random_range(0..4)],
        });
        let within_ns = if self.early { FAULTS_NS / EARLIER } else { FAULTS_NS };
        let down_ns = |random: &mut ChaCha8Rng| [2 * MS, 20 * MS, 100 * MS][random.random_range(0..3)];
        for _ in 0..random.random_range(1..=4) {
            let what = match random.random_range(0..3) {
                0 => What::KillSeats,
                _ => What::PowerCut { down_ns: down_ns(random) },
            };
            self.faults.push(Fault { at_ns: random.random_range(0..within_ns), what });
        }
        if self.early && random.random_range(0..2) == 0 {
            // While members store that there is a group.
            let what = What::PowerCutAtRecord { down_ns: down_ns(random) };
            self.faults.push(Fault { at_ns: random.random_range(0..60 * MS), what });
        }
        if random.random_range(0..3) == 0 {
            // A host that has delivered what only the others have stored crashes, while these are shut out.
            let host = random.random_range(1..=self.hosts.min(2));
            let mut at_ns = random.random_range(0..FAULTS_NS / 2);
            self.faults.push(Fault { at_ns, what: What::FillDisk { host, for_ns: 100 * MS } });
            at_ns += random.random_range(MS..20 * MS);
            for other in (1..=self.hosts).filter(|other| *other != host) {
                let what = What::KillAgent { host: other, down_ns: random.random_range(0..MS) };
                self.faults.push(Fault { at_ns: at_ns + random.random_range(0..MS / 4), what });
            }
            self.faults.push(Fault { at_ns: at_ns + random.random_range(0..MS / 2), what: What::Crash { host } });
            at_ns += random.random_range(MS..60 * MS);
            self.faults.push(Fault { at_ns, what: What::Start { host } });
        }
        if random.random_range(0..2) == 0 {
            // Hosts come back one by one, and some of them end again.
            let mut at_ns = random.random_range(0..FAULTS_NS / 2);
            for _ in 0..random.random_range(2..5) {
                self.faults.push(Fault { at_ns, what: What::PowerCut { down_ns: down_ns(random) } });
                at_ns += random.random_range(MS..100 * MS);
                let host = random.random_range(1..=self.hosts);
                self.faults.push(Fault { at_ns, what: What::Crash { host } });
                let at_ns = at_ns + random.random_range(MS..60 * MS);
                self.faults.push(Fault { at_ns, what: What::Start { host } });
            }
        }
        if random.random_range(0..3) == 0 {
            self.add(random, 4, |random, host| What::FillDisk { host, for_ns: random.random_range(MS..150 * MS) });
        }
        // Drawn after everything else, so that plans without it stay what they were.
        if random.random_range(0..2) == 0 {
            self.swap_disks(random);
        }
    }
}
