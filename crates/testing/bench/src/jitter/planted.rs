// SPDX-License-Identifier: Apache-2.0
//! Disturbances are planted on either end's core at several sending intervals. Are they found with the right
//! period and length? And is nothing found where nothing was planted?

use crate::Args;
use fide_jitter_analysis::Schedule;
use fide_jitter_analysis::families::{FamilyOptions, find_families};
use fide_jitter_analysis::synth::{Noise, Scenario, synthesize};
use fide_selftest::recover::{Case, SENDING_US, judge, record};
use fide_selftest::run::Cores;
use fide_testbed::Testbed;
use fide_testbed::figures::{Figure, Goal, Report};

/// The goal of both shares.
const SHARE: f64 = 0.95;
/// Made-up runs without anything periodic.
const QUIET: u64 = 100;
/// A quick run leaves out longer ones.
const QUICK_NS: u64 = 2_000_000_000;

pub(crate) fn run(args: &Args, bed: &Testbed, cores: Cores, report: &mut Report) {
    let mut cases = Case::all();
    if args.quick {
        cases.retain(|case| case.packets() * case.sending_ns <= QUICK_NS);
        cases.truncate(3);
    }
    let (count, mut right, mut wrong) = (cases.len() as u64, 0u64, Vec::new());
    for (at, case) in cases.into_iter().enumerate() {
        eprintln!("planted disturbance {} of {count}", at + 1);
        match record(bed, cores, case).and_then(|run| judge(&run.info, &run.samples, &run.events, &run.names)) {
            Ok(outcome) if outcome.recovered().is_some() => right += 1,
            Ok(outcome) => {
                let found = outcome.found.families.first().map_or("nothing".to_owned(), |family| {
                    format!("{} of {:.4} ms, {:.0} us", family.kind, family.period_ns / 1e6, family.duration_ns / 1e3)
                });
                wrong.push(format!(
                    "{:.4} ms, {:.0} us at the {} every {} us: {found}",
                    outcome.case.period_ns as f64 / 1e6,
                    outcome.case.duration_ns as f64 / 1e3,
                    if outcome.case.at_sender { "sender" } else { "receiver" },
                    outcome.case.sending_ns / 1000
                ));
            }
            Err(error) => wrong.push(format!("{error:#}")),
        }
    }
    let figure =
        Figure::share("planted_recovered", right as f64 / count.max(1) as f64, count).goal(Goal::AtLeast(SHARE));
    report.add(if wrong.is_empty() { figure } else { figure.remark(format!("not: {}", wrong.join("; "))) });

    eprintln!("{QUIET} made-up runs without a disturbance");
    let silent = (0..QUIET).filter(|seed| {
        let busy = Noise::busy();
        let made = synthesize(&Scenario {
            period_ns: SENDING_US[(seed % 4) as usize] * 1000,
            schedule: if seed % 3 == 2 { Schedule::Relative } else { Schedule::Absolute },
            packets: 15_000 + seed * 3_337 % 15_000,
            disturbances: Vec::new(),
            noise: [Noise::quiet(), busy, Noise { stalls_per_s: 2.0, ..busy }, Noise { tail_sigma: 1.3, ..busy }]
                [(seed / 4 % 4) as usize],
            clock: Some((12_345, 2.0)),
            seed: *seed,
        });
        find_families(&made.info, &made.samples, &FamilyOptions::default()).families.is_empty()
    });
    let share = silent.count() as f64 / QUIET as f64;
    report.add(Figure::share("no_false_family", share, QUIET).goal(Goal::AtLeast(SHARE)));
}
