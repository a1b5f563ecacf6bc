// SPDX-License-Identifier: Apache-2.0
//! Virtual machines that are put back, or run twice.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::{FAULTS_NS, Fault, MS, Plan, Policy, Reaches, What};

impl Plan {
    pub(super) fn be_cloned(&mut self, random: &mut ChaCha8Rng) {
        let longest_ns = self.timeout_ns();
        for _ in 0..random.random_range(1..=2) {
            // A witness that was put back has forgotten votes that it had stored, and cannot be trusted:
            // docs/internals/clocks.md.
            let most = self.hosts - u16::from(self.witness);
            let host = random.random_range(1..=most).min(random.random_range(1..=most));
            // The age of the snapshot: no host has missed it yet, some host just has, or older.
            let age_ns = match random.random_range(0..4) {
                0 => random.random_range(0..3 * MS),
                1 => random.random_range(0..longest_ns),
                2 => longest_ns + random.random_range(0..3 * MS),
                _ => random.random_range(0..200 * MS),
            };
            let mut at_ns = random.random_range(0..FAULTS_NS - 200 * MS);
            self.faults.push(Fault { at_ns, what: What::Snapshot { host } });
            at_ns += age_ns;
            // Under `network` the machine may declare the others dead, or they the machine, and both continue
            // for good, as after a cut.
            if random.random_range(0..2) == 0 || self.policy == Policy::Network {
                self.faults.push(Fault { at_ns, what: What::PutBack { host } });
                continue;
            }
            let reaches = [Reaches::Both, Reaches::Latest, Reaches::LatestUnlessAll][random.random_range(0..3)];
            self.faults.push(Fault { at_ns, what: What::Clone { host, reaches } });
            at_ns += random.random_range(0..120 * MS);
            self.faults.push(Fault { at_ns, what: What::EndClone });
        }
    }
}
