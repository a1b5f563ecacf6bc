// SPDX-License-Identifier: Apache-2.0
//! The results of many runs.

use std::fmt;

use serde::Serialize;

use crate::{plan::RESTARTS, run::Outcome};

/// Times, milliseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Spread {
    pub n: usize,
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
}

impl Spread {
    fn of(mut all: Vec<f64>) -> Self {
        all.sort_by(f64::total_cmp);
        #[allow(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an index"
        )]
        let at =
            |share: f64| all.get((share * all.len().saturating_sub(1) as f64).ceil() as usize).copied().unwrap_or(0.0);
        Self { n: all.len(), p50: at(0.5), p99: at(0.99), max: at(1.0) }
    }
}

/// All runs together.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub runs: usize,
    /// Runs with any problem.
    pub failed: usize,
    /// Runs, among those, that did not start or finish.
    pub not_done: usize,
    pub illegal: usize,
    /// Histories that took too long to be judged.
    pub not_judged: usize,
    /// Runs after which some members did not come back.
    pub not_recovered: usize,
    pub faults: usize,
    pub faults_left_out: usize,
    /// Runs in which three agents or more were killed and restarted.
    pub three_restarts: usize,
    /// Runs, among those, in which a guest was also stopped, and its clock slewed.
    pub with_guest: usize,
    /// Stops of a guest that led, and continued under another leader.
    pub guest_overtaken: usize,
    pub operations: u64,
    /// Operations with unknown outcome.
    pub open: u64,
    pub refused_reads: u64,
    pub stale_answers: u64,
    pub stale_max_ms: f64,
    pub recovery_ms: Spread,
    pub failures: Vec<Outcome>,
}

impl Report {
    #[must_use]
    pub fn of(outcomes: &[Outcome]) -> Self {
        let verdicts = || outcomes.iter().filter_map(|outcome| outcome.verdict.as_ref());
        let count = |what: &dyn Fn(&&Outcome) -> bool| outcomes.iter().filter(what).count();
        let oldest = verdicts().filter_map(|verdict| verdict.oldest.as_ref()).map(|stale| stale.age_ns).max();
        Self {
            runs: outcomes.len(),
            failed: count(&|outcome| !outcome.is_ok()),
            not_done: count(&|outcome| outcome.verdict.is_none()),
            illegal: count(&|outcome| outcome.is_illegal()),
            not_judged: verdicts().filter(|verdict| verdict.verdict == "unknown").count(),
            not_recovered: count(&|outcome| outcome.verdict.is_some() && outcome.recovery_ms.is_none()),
            faults: outcomes.iter().map(|outcome| outcome.faults).sum(),
            faults_left_out: outcomes.iter().map(|outcome| outcome.faults_left_out).sum(),
            three_restarts: count(&|outcome| outcome.restarts >= RESTARTS),
            with_guest: count(&|outcome| {
                outcome.restarts >= RESTARTS && outcome.guest_stops > 0 && outcome.guest_slews > 0
            }),
            guest_overtaken: outcomes.iter().map(|outcome| outcome.guest_overtaken).sum(),
            operations: outcomes.iter().map(|outcome| outcome.operations).sum(),
            open: outcomes.iter().map(|outcome| outcome.open).sum(),
            refused_reads: outcomes.iter().map(|outcome| outcome.refused).sum(),
            stale_answers: verdicts().map(|verdict| verdict.stale).sum(),
            #[allow(clippy::cast_precision_loss, reason = "to be read")]
            stale_max_ms: oldest.unwrap_or(0) as f64 / 1e6,
            recovery_ms: Spread::of(outcomes.iter().filter_map(|outcome| outcome.recovery_ms).collect()),
            failures: outcomes.iter().filter(|outcome| !outcome.is_ok()).cloned().collect(),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { runs, failed, not_done, illegal, not_judged, not_recovered, .. } = self;
        let Spread { n, p50, p99, max } = &self.recovery_ms;
        writeln!(
            f,
            "{runs} runs, {failed} failed ({not_done} not done, {illegal} not linearizable, {not_judged} not judged, {not_recovered} not recovered)"
        )?;
        writeln!(
            f,
            "{} operations, {} of unknown outcome; {} reads refused; {} faults ({} more left out); {} runs with three restarts of agents or more",
            self.operations, self.open, self.refused_reads, self.faults, self.faults_left_out, self.three_restarts
        )?;
        writeln!(
            f,
            "all members back after the last fault, n = {n}: p50 {p50:.0} ms, p99 {p99:.0} ms, max {max:.0} ms"
        )?;
        if self.with_guest > 0 {
            let Self { with_guest, guest_overtaken, .. } = self;
            writeln!(
                f,
                "{with_guest} runs with a stop of the guest and slews of its clock besides; {guest_overtaken} of a guest that led, and went on \
                 under another leader"
            )?;
        }
        if self.stale_answers > 0 {
            writeln!(f, "{} stale answers, by up to {:.1} ms", self.stale_answers, self.stale_max_ms)?;
        }
        for outcome in &self.failures {
            writeln!(f, "failed: {}", outcome.replay())?;
            if let Some(kept) = &outcome.kept {
                writeln!(f, "  kept in {}", kept.display())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_of_few_and_of_none() {
        assert_eq!(Spread::of(vec![]), Spread::default());
        assert_eq!(Spread::of(vec![3.0, 1.0, 2.0]), Spread { n: 3, p50: 2.0, p99: 3.0, max: 3.0 });
        let many = Spread::of((0..=1000).map(f64::from).collect());
        assert_eq!((many.p50, many.p99, many.max), (500.0, 990.0, 1000.0));
    }
}
