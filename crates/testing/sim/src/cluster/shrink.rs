// SPDX-License-Identifier: Apache-2.0
//! Shrinks a failing plan: faults are removed and the network improved, as long as the same property is
//! violated.

use super::{
    Failure,
    plan::{NOTES_NS, Plan, WALLS},
    run,
};

/// Runs to spend on shrinking a failure.
const RUNS_MAX: usize = 200;

/// The smallest plan found that violates the same property, and how.
///
/// # Panics
/// If the plan does not fail.
#[must_use]
pub fn shrink(plan: &Plan) -> (Plan, Failure) {
    let mut best = plan.clone();
    let mut failure = run(&best, None).expect_err("a plan that fails");
    let property = failure.violation.property;
    let mut runs = 0;
    let mut attempt = |candidate: Plan, best: &mut Plan, failure: &mut Failure| {
        runs += 1;
        if runs > RUNS_MAX || candidate == *best {
            return false;
        }
        match run(&candidate, None) {
            Err(other) if other.violation.property == property => {
                *best = candidate;
                *failure = other;
                true
            }
            _ => false,
        }
    };
    loop {
        let before = best.clone();
        for at in (0..best.faults.len()).rev() {
            let mut candidate = best.clone();
            candidate.faults.remove(at);
            attempt(candidate, &mut best, &mut failure);
        }
        let milder: [fn(&mut Plan); 10] = [
            |plan| plan.straggle_permille = 0,
            |plan| plan.walls.values_mut().fill([0; WALLS]),
            |plan| plan.disk_ns = NOTES_NS,
            |plan| plan.durable.iter_mut().for_each(|durable| durable.sync_ns = 60_000),
            |plan| plan.durable.iter_mut().for_each(|durable| durable.save_ns = 2),
            |plan| plan.loss_permille = 0,
            |plan| plan.duplicate_permille = 0,
            |plan| plan.nap_permille = 0,
            |plan| plan.jitter_max_ns = 0,
            |plan| plan.work_every_ns = plan.work_every_ns.saturating_mul(4).min(10_000_000),
        ];
        for change in milder {
            let mut candidate = best.clone();
            change(&mut candidate);
            attempt(candidate, &mut best, &mut failure);
        }
        if best == before {
            return (best, failure);
        }
    }
}
