// SPDX-License-Identifier: Apache-2.0
//! The figures of each part by name, so that one that could not be measured is in the report, too.

use fide_testbed::figures::{Figure, Goal, Report};

use super::Args;

/// Tolerated failures of the largest cluster of RedisRaft.
pub(super) const RAFT_FAILURES: usize = 2;

/// How many figures a name stands for.
#[derive(Debug, Clone, Copy)]
enum Each {
    Run,
    /// One for each number of failures that a group tolerates, `NAME_1` and so on.
    Failures,
    /// The same beside RedisRaft.
    RaftFailures,
}

/// A figure, or one for each number of tolerated failures.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub(super) name: &'static str,
    unit: &'static str,
    goal: Option<Goal>,
    each: Each,
}

/// Unit of rates, as [`Figure::rate`] has it.
const RATE: &str = "per second";

impl Wanted {
    const fn new(name: &'static str, unit: &'static str) -> Self {
        Self { name, unit, goal: None, each: Each::Run }
    }

    pub(super) const fn rate(name: &'static str) -> Self {
        Self::new(name, RATE)
    }

    pub(super) const fn time(name: &'static str) -> Self {
        Self::new(name, "us")
    }

    pub(super) const fn share(name: &'static str) -> Self {
        Self::new(name, "share")
    }

    pub(super) const fn count(name: &'static str) -> Self {
        Self::new(name, "count")
    }

    pub(super) const fn goal(mut self, goal: Goal) -> Self {
        self.goal = Some(goal);
        self
    }

    pub(super) const fn each_failure(mut self) -> Self {
        self.each = Each::Failures;
        self
    }

    pub(super) const fn each_raft(mut self) -> Self {
        self.each = Each::RaftFailures;
        self
    }

    /// Names of its figures.
    pub(super) fn names(&self, failures: usize) -> Vec<String> {
        let numbered = |last| (1..=last).map(|failures| format!("{}_{failures}", self.name)).collect();
        match self.each {
            Each::Run => vec![self.name.to_owned()],
            Each::Failures => numbered(failures),
            Each::RaftFailures => numbered(RAFT_FAILURES),
        }
    }

    pub(super) fn unmeasured(&self, name: &str, why: &str) -> Figure {
        Figure::unmeasured(name, self.unit, why)
    }
}

/// Ends a part whose figures are those of the report from index `begun` on: drops those that nobody asked for,
/// adds each missing one without a value and with the reason, and sets the goals. Returns the names of the missing.
pub(super) fn settle(args: &Args, part: &[Wanted], report: &mut Report, begun: usize, why: &str) -> Vec<String> {
    let mut missing = Vec::new();
    let mut added = report.figures.split_off(begun);
    added.retain(|figure| args.wants(&figure.figure));
    for wanted in part {
        for name in wanted.names(usize::from(args.failures)).into_iter().filter(|name| args.wants(name)) {
            if !added.iter().any(|figure| figure.figure == name) {
                added.push(wanted.unmeasured(&name, why));
                missing.push(name.clone());
            }
            let with_goal = |figure: Figure| match wanted.goal {
                Some(goal) if figure.figure == name => figure.goal(goal),
                _ => figure,
            };
            added = added.into_iter().map(with_goal).collect();
        }
    }
    report.figures.append(&mut added);
    missing
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    const PART: [Wanted; 2] =
        [Wanted::rate("redis_a").each_failure().goal(Goal::AtLeast(2.0)), Wanted::time("redis_b")];

    fn settled(arguments: &[&str]) -> (Vec<String>, Vec<Figure>) {
        let args = Args::parse_from(["bench-redis"].iter().chain(arguments));
        let mut report = Report::new("redis");
        report.add(Figure::rate("redis_before", &[1.0]));
        report.add(Figure::rate("redis_a_1", &[3.0]));
        let missing = settle(&args, &PART, &mut report, 1, "a server has ended");
        (missing, report.figures)
    }

    #[test]
    fn failed_part_keeps_what_it_measured_and_names_the_rest() {
        let (missing, figures) = settled(&["--failures", "2"]);
        assert_eq!(missing, ["redis_a_2", "redis_b"]);
        let names: Vec<&str> = figures.iter().map(|figure| figure.figure.as_str()).collect();
        assert_eq!(names, ["redis_before", "redis_a_1", "redis_a_2", "redis_b"]);
        assert_eq!((figures[1].value, figures[1].met), (Some(3.0), Some(true)));
        assert_eq!((figures[2].value, figures[2].met), (None, None));
        assert_eq!(figures[2].why.as_deref(), Some("a server has ended"));
        assert_eq!((figures[2].goal.as_deref(), figures[3].unit.as_str()), (Some(">= 2"), "us"));
    }

    #[test]
    fn unasked_figures_are_not_missing() {
        assert_eq!(settled(&["--only", "redis_a_1"]).0, [""; 0]);
        assert_eq!(settled(&["--only", "redis_a", "--failures", "3"]).0, ["redis_a_2", "redis_a_3"]);
        let (missing, figures) = settled(&["--only", "redis_b"]);
        assert_eq!((missing, figures.len()), (vec!["redis_b".to_owned()], 2));
    }
}
