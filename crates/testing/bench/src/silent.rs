// SPDX-License-Identifier: Apache-2.0
//! A host falls silent: it is cut off at the switches, so other hosts learn of it only from missing packets.

use crate::Args;
use crate::fide_side::{Fide, Mode, Silence};
use crate::list::{self, Settings};
use crate::trials::{Outcome, Subject, interleave, signed_us};
use fide_testbed::baseline::Bfd;
use fide_testbed::figures::{Figure, Goal, Report, Samples, Statistic};
use fide_testbed::{Spec, Testbed};
use std::cell::RefCell;

/// BFD as fabrics run it at its fastest.
const BFD_INTERVAL_MS: u32 = 10;
const BFD_MULTIPLIER: u32 = 3;
const BFD: &str = "bfd";

/// A configuration in which Fide is measured.
struct Way {
    /// In the names of its figures.
    name: &'static str,
    mode: Mode,
    /// Goal in parts of BFD's time.
    vs_bfd: f64,
    /// The callback comes at most this much later than the timeout, us.
    over_timeout_us: f64,
}

const WAYS: [Way; 2] = [
    Way { name: "host_silent", mode: Mode::Published, vs_bfd: 0.4, over_timeout_us: 1000.0 },
    Way { name: "host_silent_lease", mode: Mode::Default, vs_bfd: 0.5, over_timeout_us: 1500.0 },
];

struct BfdSilence<'a>(&'a Testbed, Bfd);

impl Subject for BfdSilence<'_> {
    fn name(&self) -> String {
        BFD.into()
    }

    fn trial(&mut self) -> anyhow::Result<u64> {
        Ok(self.1.silence(self.0)?)
    }
}

struct FideSilence<'a>(&'a Way, &'a Testbed, Fide, &'a RefCell<Vec<Silence>>);

impl Subject for FideSilence<'_> {
    fn name(&self) -> String {
        self.0.name.into()
    }

    fn trial(&mut self) -> anyhow::Result<u64> {
        let silence = self.2.silence(self.1)?;
        self.3.borrow_mut().push(silence);
        // As with the baselines: from the moment when the cut is in force.
        Ok(silence.notified_ns.saturating_sub(silence.after_ns))
    }
}

/// Measures all; a subject that cannot run yields figures that say why.
pub(crate) fn measure(args: &Args, lists: &Settings, report: &mut Report) -> anyhow::Result<()> {
    // One bed for each: a cut affects only one of them.
    let bfd_bed = Testbed::build(Spec::hosts(2))?;
    let beds = [Testbed::build(Spec::hosts(3))?, Testbed::build(Spec::hosts(3))?];
    let silences = [const { RefCell::new(Vec::new()) }; 2];

    let mut missing: Vec<(&str, String)> = Vec::new();
    let mut subjects: Vec<(Box<dyn Subject + '_>, u32)> = Vec::new();
    for setting in &lists.all {
        match &setting.knobs {
            Ok(knobs) => {
                let silence = list::Silence { bed: &lists.bed, name: setting.name, knobs: *knobs };
                subjects.push((Box::new(silence), setting.trials));
            }
            Err(why) => missing.push((setting.name, why.clone())),
        }
    }
    let bfd = if args.no_bfd {
        Err("left out as asked".into())
    } else {
        Bfd::start(&bfd_bed, (1, 2), 0, BFD_INTERVAL_MS, BFD_MULTIPLIER).map_err(|e| e.to_string())
    };
    match bfd {
        Ok(bfd) => subjects.push((Box::new(BfdSilence(&bfd_bed, bfd)), args.silences)),
        Err(why) => missing.push((BFD, why)),
    }
    for ((way, bed), silences) in WAYS.iter().zip(&beds).zip(&silences) {
        match Fide::start(bed, way.mode) {
            Ok(fide) => subjects.push((Box::new(FideSilence(way, bed, fide, silences)), args.fide_silences)),
            Err(why) => missing.push((way.name, why)),
        }
    }

    let outcomes = interleave("a host falls silent", &mut subjects);
    let named: Vec<(String, Outcome)> = subjects.iter().map(|(s, _)| s.name()).zip(outcomes).collect();
    drop(subjects);
    let of = |name: &str| named.iter().find(|(n, _)| n == name).map(|(_, o)| o);
    let why = |name: &str| {
        let found = missing.iter().find(|(n, _)| *n == name).map(|(_, why)| why.clone());
        found.or_else(|| of(name)?.why.clone()).unwrap_or_default()
    };
    let baselines = [BFD, list::SAFE, list::NO_FALSE_DEATH, list::LAN];
    for name in baselines {
        let silence = format!("{name}_silence");
        report.add(match of(name) {
            Some(o) if o.samples.n() > 0 => Figure::time(&silence, Statistic::P50, &o.samples),
            _ => Figure::unmeasured(&silence, "us", why(name)),
        });
    }
    for (way, silences) in WAYS.iter().zip(silences) {
        // A missed silence, or a verdict before it, is in no sample.
        let judge = |figure| match of(way.name) {
            Some(fide) => fide.judge(figure),
            None => figure,
        };
        for name in baselines {
            let figure = format!("{}_vs_{name}", way.name);
            let figure = match of(way.name) {
                Some(o) if o.samples.n() > 0 => Figure::time(&figure, Statistic::P50, &o.samples),
                _ => Figure::unmeasured(&figure, "us", why(way.name)),
            };
            let nothing = Samples::default();
            let figure = figure.against(name, Statistic::P50, of(name).map_or(&nothing, |o| &o.samples));
            let figure = if name == BFD { figure.goal(Goal::AtMost(way.vs_bfd)) } else { figure };
            let figure = judge(figure);
            report.add(match of(name) {
                Some(missed) => missed.judge_beside(name, figure),
                None => figure,
            });
        }
        add_over_timeout(report, way, &silences.into_inner(), &why(way.name), judge);
    }
    Ok(())
}

fn add_over_timeout(report: &mut Report, way: &Way, silences: &[Silence], why: &str, judge: impl Fn(Figure) -> Figure) {
    let name = |what: &str| format!("{}_{what}", way.name);
    let over_timeout = name("over_timeout");
    let over: Vec<i64> = silences.iter().map(Silence::over_timeout_ns).collect();
    let goal = Goal::AtMost(way.over_timeout_us);
    report.add(match signed_us(&over_timeout, Statistic::P99, &over) {
        Some(figure) => judge(
            figure
                .remark("from before the cut; below 0: the last heartbeat that came through was older than the cut")
                .goal(goal),
        ),
        None => Figure::unmeasured(&over_timeout, "us", why).goal(goal),
    });
    // The agent's share of it, without waking a program on a busy machine.
    let decided_over = name("decided_over_timeout");
    let decided: Vec<i64> =
        silences.iter().map(|s| s.over_timeout_ns() - s.notified_ns.saturating_sub(s.decided_ns) as i64).collect();
    let decided = signed_us(&decided_over, Statistic::P99, &decided);
    report.add(decided.unwrap_or_else(|| Figure::unmeasured(&decided_over, "us", why)));
    let mut timeouts = Samples::default();
    let mut to_program = Samples::default();
    for s in silences {
        timeouts.add(s.timeout_ns);
        to_program.add(s.notified_ns.saturating_sub(s.decided_ns));
    }
    for (what, samples) in [("timeout", timeouts), ("decided_to_program", to_program)] {
        report.add(match samples.n() {
            0 => Figure::unmeasured(&name(what), "us", why),
            _ => Figure::time(&name(what), Statistic::P50, &samples),
        });
    }
}
