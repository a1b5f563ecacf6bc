// SPDX-License-Identifier: Apache-2.0
//! Trials of several subjects, interleaved so that a noisy minute affects all of them.

use fide_testbed::figures::{Figure, P99_LEAST, Samples, Statistic};
use std::time::{Duration, Instant};

/// How often a long run prints its progress.
const PROGRESS: Duration = Duration::from_secs(5);
/// A subject that fails this often in a row is given up.
const MAX_FAILURES: u32 = 3;
/// A notice that comes later than this after a death counts as none.
pub(crate) const NOTICE_LIMIT_NS: u64 = 20_000_000_000;

/// A subject whose detection time is measured.
pub(crate) trait Subject {
    /// Its name in figures.
    fn name(&self) -> String;
    /// Runs one death; returns the time until its notice, ns.
    fn trial(&mut self) -> anyhow::Result<u64>;
}

/// The results of one subject.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) samples: Samples,
    /// Failed trials, and the last reason.
    pub(crate) failures: u32,
    pub(crate) why: Option<String>,
    in_a_row: u32,
    /// The samples in the order in which they were taken, ns.
    order: Vec<u64>,
}

/// Rounds of which a figure gives the least and the greatest median.
const ROUNDS: usize = 5;

impl Outcome {
    /// The medians of consecutive parts of the run, us.
    fn rounds_us(&self) -> Vec<f64> {
        let parts = self.order.chunks(self.order.len().div_ceil(ROUNDS).max(1));
        parts.map(|part| middle(part) / 1000.0).collect()
    }

    /// The samples in the order in which they were taken, ns.
    pub(crate) fn order(&self) -> &[u64] {
        &self.order
    }

    /// A figure of these samples: not met if a trial failed, and it says how many failed.
    pub(crate) fn judge(&self, mut figure: Figure) -> Figure {
        if figure.statistic == Statistic::P50.name() && figure.spread.is_none() {
            figure = figure.spread_of(self.rounds_us());
        }
        if self.failures > 0 {
            let failed =
                format!("{} trials failed: {}", self.failures, self.why.as_deref().unwrap_or("no reason is known"));
            figure.why = Some(figure.why.map_or(failed.clone(), |why| format!("{failed}; {why}")));
        }
        figure.unless(self.failures > 0)
    }

    /// As [`Outcome::judge`], for a figure beside this one: it names the subject whose trials failed.
    pub(crate) fn judge_beside(&self, name: &str, figure: Figure) -> Figure {
        let why = self.why.as_deref().unwrap_or("no reason is known");
        Outcome { why: Some(format!("{name}: {why}")), failures: self.failures, ..Outcome::default() }.judge(figure)
    }

    /// Adds the results of a later block.
    pub(crate) fn absorb(&mut self, later: Outcome) {
        self.samples.absorb(&later.samples);
        self.order.extend(later.order);
        self.failures += later.failures;
        self.why = later.why.or(self.why.take());
    }
}

/// Runs `n` trials of each subject, spread evenly over the run; outcomes are in the subjects' order.
pub(crate) fn interleave(what: &str, subjects: &mut [(Box<dyn Subject + '_>, u32)]) -> Vec<Outcome> {
    let rounds = subjects.iter().map(|(_, n)| *n).max().unwrap_or(0);
    let mut outcomes: Vec<Outcome> = subjects.iter().map(|_| Outcome::default()).collect();
    let mut said = Instant::now();
    for round in 0..rounds {
        for ((subject, n), outcome) in subjects.iter_mut().zip(&mut outcomes) {
            if !takes_part(round, rounds, *n) || outcome.in_a_row >= MAX_FAILURES {
                continue;
            }
            match subject.trial() {
                Ok(ns) => {
                    outcome.samples.add(ns);
                    outcome.order.push(ns);
                    outcome.in_a_row = 0;
                }
                Err(e) => {
                    eprintln!("{what}, {}: {e:#}", subject.name());
                    outcome.failures += 1;
                    outcome.in_a_row += 1;
                    outcome.why = Some(format!("{e:#}"));
                }
            }
        }
        if said.elapsed() >= PROGRESS {
            said = Instant::now();
            eprintln!("{what}: {} of {rounds} rounds", round + 1);
        }
    }
    outcomes
}

fn middle(ns: &[u64]) -> f64 {
    let mut sorted = ns.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).map_or(0.0, |ns| *ns as f64)
}

/// Whether a subject with `n` trials has one in this round.
fn takes_part(round: u32, rounds: u32, n: u32) -> bool {
    let before = |r: u32| u64::from(r) * u64::from(n) / u64::from(rounds);
    before(round + 1) > before(round)
}

/// A figure of times that may be negative, given in ns; none without samples.
pub(crate) fn signed_us(name: &str, statistic: Statistic, samples: &[i64]) -> Option<Figure> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let us = |ns: i64| ns as f64 / 1000.0;
    // The smallest value that a share `p` does not exceed.
    let at = |p: f64| sorted.get(((p * sorted.len() as f64).ceil() as usize).saturating_sub(1)).copied().map(us);
    let (min, p50, p99, max) = (at(0.0)?, at(0.5)?, at(0.99)?, at(1.0)?);
    let n = sorted.len() as u64;
    let statistic = statistic.of_so_many(n);
    let value = match statistic {
        Statistic::P50 => p50,
        Statistic::P99 => p99,
        Statistic::Max => max,
    };
    Some(Figure {
        figure: name.into(),
        value: Some(value),
        unit: "us".into(),
        statistic: statistic.name().into(),
        n,
        min: Some(min),
        p50: Some(p50),
        p99: (n >= P99_LEAST).then_some(p99),
        max: Some(max),
        ..Figure::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use fide_testbed::figures::Goal;

    struct Count(u64, bool);
    impl Subject for Count {
        fn name(&self) -> String {
            "count".into()
        }
        fn trial(&mut self) -> anyhow::Result<u64> {
            self.0 += 1;
            anyhow::ensure!(!self.1, "always fails");
            Ok(self.0)
        }
    }

    #[test]
    fn every_subject_gets_its_trials() {
        for (rounds, n) in [(300, 300), (300, 7), (30, 1), (5, 0)] {
            let taken = (0..rounds).filter(|r| takes_part(*r, rounds, n)).count();
            assert_eq!(taken as u32, n, "{n} of {rounds}");
        }
        let outcomes = interleave("test", &mut [(Box::new(Count(0, false)), 20), (Box::new(Count(0, false)), 3)]);
        assert_eq!(outcomes.iter().map(|o| o.samples.n()).collect::<Vec<_>>(), [20, 3]);
        // 1 to 20 ns, four to a round.
        assert_eq!(outcomes[0].rounds_us(), [0.003, 0.007, 0.011, 0.015, 0.019]);
        let figure = outcomes[0].judge(Figure::time("x", Statistic::P50, &outcomes[0].samples));
        assert_eq!(figure.spread, Some([0.003, 0.019]));
    }

    #[test]
    fn negative_times_are_kept() {
        let ns: Vec<i64> = (1..=1000).rev().map(|i| (i - 500) * 1000).collect();
        let figure = signed_us("test", Statistic::P99, &ns).unwrap();
        assert_eq!((figure.min, figure.p50, figure.value), (Some(-499.0), Some(0.0), Some(490.0)));
        assert_eq!((figure.max, figure.n), (Some(500.0), 1000));
        let few = signed_us("test", Statistic::P99, &ns[..100]).unwrap();
        assert_eq!((few.statistic.as_str(), few.value, few.p99), ("max", few.max, None));
        assert!(signed_us("test", Statistic::P99, &[]).is_none());
    }

    #[test]
    fn subject_that_keeps_failing_is_given_up_with_the_reason() {
        let outcomes = interleave("test", &mut [(Box::new(Count(0, true)), 20)]);
        assert_eq!((outcomes[0].failures, outcomes[0].samples.n()), (MAX_FAILURES, 0));
        assert_eq!(outcomes[0].why.as_deref(), Some("always fails"));
    }

    #[test]
    fn a_failed_trial_fails_its_figure_and_is_counted() {
        let mut outcome = Outcome::default();
        outcome.samples.add(1000);
        let figure = || Figure::time("test", Statistic::P50, &Samples::default()).goal(Goal::AtMost(9.0));
        let met = || Figure::count("test", 1, 1).remark("as it is").goal(Goal::AtMost(9.0));
        assert_eq!((outcome.judge(met()).met, outcome.judge(figure()).met), (Some(true), None));
        (outcome.failures, outcome.why) = (2, Some("no notice".into()));
        let judged = outcome.judge(met());
        assert_eq!(judged.met, Some(false));
        assert_eq!(judged.why.as_deref(), Some("2 trials failed: no notice; as it is"));
        let beside = outcome.judge_beside("bfdd", met());
        assert_eq!(beside.met, Some(false), "what a baseline missed fails the comparison");
        assert_eq!(beside.why.as_deref(), Some("2 trials failed: bfdd: no notice; as it is"));
        assert_eq!(outcome.judge(figure()).met, None, "what was not measured stays so");
    }
}
