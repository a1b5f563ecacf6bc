// SPDX-License-Identifier: Apache-2.0
//! Wall clocks that differ, slow disks, and lineages that are founded soon after each other.

use fide_detector::Policy;
use fide_types::HostId;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::{FAULTS_NS, Fault, MS, Plan, What};

/// The least that wall clocks show at the beginning, ns since 1970. Process numbers are derived from it, and
/// do not wrap around in a run.
const WALL_NS: u64 = 100_000_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;
/// Starts of a host for which a plan sets the wall clock; the last one holds for all later ones.
pub const WALLS: usize = 4;
/// How long a control thread takes at most to write to an idle disk.
pub const NOTES_NS: u64 = 500_000;

impl Plan {
    /// The wall clock of a host, by how often the host has started: seconds since 1970.
    pub(in super::super) fn wall_s(&self, host: HostId, starts: u64, now_ns: u64) -> u64 {
        let start = usize::try_from(starts.saturating_sub(1)).map_or(WALLS - 1, |start| start.min(WALLS - 1));
        (WALL_NS + self.walls[host][start] + now_ns) / SECOND_NS
    }

    /// Wall clocks are seconds or hours apart, and are set forwards or back while a host is down.
    pub(super) fn set_wall_clocks(&mut self, random: &mut ChaCha8Rng) {
        let apart_ns = if random.random_range(0..2) == 0 { 4 * SECOND_NS } else { 6 * 3600 * SECOND_NS };
        let sets = random.random_range(0..2) == 0;
        for walls in self.walls.values_mut() {
            walls.fill(random.random_range(0..apart_ns));
            for start in 1..WALLS {
                if sets && random.random_range(0..2) == 0 {
                    walls[start..].fill(random.random_range(0..apart_ns));
                }
            }
        }
        self.disk_ns = [NOTES_NS, 2 * MS, 8 * MS, 40 * MS][random.random_range(0..4)];
        if self.policy == Policy::Majority && self.hosts > 2 && !self.witness && random.random_range(0..2) == 0 {
            self.found_twice(random);
        }
    }

    /// All agents start again and found a view. As soon as a host acts by it, the host with the latest wall
    /// clock is cut off, and all others crash and found another view. That one is higher if each host has
    /// stored the generation that it acted by.
    fn found_twice(&mut self, random: &mut ChaCha8Rng) {
        let mut at_ns = random.random_range(0..FAULTS_NS / 2);
        for host in 1..=self.hosts {
            let what = What::KillAgent { host, down_ns: random.random_range(0..MS) };
            self.faults.push(Fault { at_ns, what });
        }
        let away = (1..=self.hosts).max_by_key(|host| self.walls[*host][0]).expect("hosts");
        at_ns += MS;
        let what = What::CrashAtFounding { away, after_ns: random.random_range(0..3 * MS) };
        self.faults.push(Fault { at_ns, what });
        // A view is founded after two timeouts, here twice.
        at_ns += 8 * self.timeout_ns() + 2 * self.disk_ns + random.random_range(20..80) * MS;
        self.faults.push(Fault { at_ns: at_ns.min(FAULTS_NS - 1), what: What::Heal });
    }
}
