// SPDX-License-Identifier: Apache-2.0
//! Schedules for five hosts of which the last is an emulated machine.

use rand::{RngExt, SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;

use super::{Else, Fault, Plan, Protocol, RESTARTS, Step, What, Who};

const HOSTS: usize = 5;
/// Time from a restart of an agent to the next: the host is excluded and let in meanwhile.
const RESTART_MS: std::ops::Range<u64> = 2_500..4_500;
/// Longer than a timeout: the others go on without the guest, whose clocks all say that no time has passed.
const FREEZE_MS: u64 = 1_000;
/// If the guest leads: long enough that another host has taken over when it continues.
const FREEZE_LEADING_MS: u64 = 2_000;
/// The slew that chrony may make for some seconds, and the slew that ntpd may make all the time.
const FAST_PPM: u32 = 80_000;
const FAST_MS: u64 = 3_000;
const LONG_PPM: u32 = 500;
const END_MS: u64 = 16_000;
/// In one of so many seeds all other agents are restarted before the stop: then the guest leads.
const LEADS_ONE_IN: u64 = 3;

impl Plan {
    /// The plan of a seed if the last host is a guest: three agents are restarted on different hosts, or all
    /// but the guest's. The guest is stopped once; its clock is slewed all the time, and much for a while.
    #[must_use]
    pub fn with_guest(seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let protocol = if seed.is_multiple_of(2) { Protocol::Huc } else { Protocol::Hsuc };
        let mut steps = Vec::new();
        let mut add = |at_ms: u64, fault, otherwise| steps.push(Step { at_ms, fault, otherwise });
        add(0, Fault::Slew { ppm: LONG_PPM, ms: END_MS }, Else::Comes);
        let fast_ms = random.random_range(0..END_MS - FAST_MS);
        add(fast_ms, Fault::Slew { ppm: FAST_PPM, ms: FAST_MS }, Else::Comes);
        let mut hosts: Vec<usize> = (1..HOSTS).collect();
        hosts.shuffle(&mut random);
        let mut at_ms = random.random_range(200..2_000);
        // A host that comes back is the last in line to lead.
        let leads = seed.is_multiple_of(LEADS_ONE_IN);
        let restarts = if leads { RESTARTS + 1 } else { RESTARTS };
        let frozen_after = if leads { RESTARTS } else { random.random_range(0..RESTARTS) };
        for (restart, host) in hosts.into_iter().take(restarts).enumerate() {
            add(at_ms, Fault::Kill { what: What::Agent, who: Who::Host(host) }, Else::Waits);
            if restart == frozen_after {
                // Together with the restart, or after it.
                let after_ms = if leads { RESTART_MS.end } else { random.random_range(0..2_000) };
                let ms = if leads { FREEZE_LEADING_MS } else { FREEZE_MS };
                add(at_ms + after_ms, Fault::Freeze { ms, leads }, Else::Waits);
            }
            at_ms += random.random_range(RESTART_MS);
        }
        steps.sort_by_key(|step| step.at_ms);
        Self { seed, name: None, hosts: HOSTS, has_guest: true, is_durable: false, protocol, steps }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_restarts_three_agents_stops_the_guest_and_slews_it() {
        for seed in 0..100 {
            let plan = Plan::with_guest(seed);
            assert_eq!(plan, Plan::with_guest(seed));
            assert!(plan.steps.is_sorted_by_key(|step| step.at_ms), "{plan:?}");
            let mut killed: Vec<usize> = plan
                .steps
                .iter()
                .filter_map(|step| match step.fault {
                    Fault::Kill { what: What::Agent, who } => Some(who.host(1, HOSTS)),
                    _ => None,
                })
                .collect();
            killed.sort_unstable();
            killed.dedup();
            let leads = seed.is_multiple_of(LEADS_ONE_IN);
            assert_eq!(killed.len(), RESTARTS + usize::from(leads), "{plan:?}");
            if leads {
                assert!(
                    matches!(plan.steps.last(), Some(Step { fault: Fault::Freeze { leads: true, .. }, .. })),
                    "{plan:?}"
                );
            }
            assert!(!killed.contains(&HOSTS), "{plan:?}");
            let count = |wanted: fn(&Fault) -> bool| plan.steps.iter().filter(|step| wanted(&step.fault)).count();
            assert_eq!(count(|fault| matches!(fault, Fault::Freeze { .. })), 1);
            assert_eq!(count(|fault| matches!(fault, Fault::Slew { .. })), 2);
        }
        assert_ne!(Plan::with_guest(1).protocol, Plan::with_guest(2).protocol);
    }
}
