// SPDX-License-Identifier: Apache-2.0
//! The cost of recording, and whether the jitter bench agrees with other tools.

use crate::{Args, tools};
use fide_jitter_analysis::Schedule;
use fide_jitter_analysis::stats::{Measure, series};
use fide_latency_probe::port::Method;
use fide_latency_probe::session::Measurement;
use fide_selftest::run::{Cores, How, measure};
use fide_testbed::Testbed;
use fide_testbed::figures::{Figure, Goal, Report, Samples, Statistic};

/// Blocks of each kind, approximately.
const BLOCKS: u32 = 4;

fn round_trips(measurement: &Measurement, samples: &mut Samples) {
    for ns in series(&measurement.info, &measurement.samples, Measure::RoundTrip).values {
        samples.add(ns.max(0) as u64);
    }
}

/// `recording_cost`, `vs_sockperf`, `vs_cyclictest`.
pub(crate) fn run(args: &Args, bed: &Testbed, cores: Cores, report: &mut Report) {
    let packets = u64::from(args.seconds) * 1000 / u64::from(BLOCKS);
    let (mut recorded, mut plain, mut sockperf) = (Samples::default(), Samples::default(), Samples::default());
    let mut why: Option<String> = None;
    for block in 1..=BLOCKS {
        eprintln!("round trips, block {block} of {BLOCKS}");
        for record in [false, true] {
            let how = How { method: Method::Udp, schedule: Schedule::Absolute, period_ns: 1_000_000, packets, record };
            match measure(bed, cores, how) {
                Ok(measurement) => round_trips(&measurement, if record { &mut recorded } else { &mut plain }),
                Err(error) => why = Some(format!("{error:#}")),
            }
        }
        match tools::sockperf(bed, cores, args.seconds.div_ceil(BLOCKS)) {
            Ok(samples) => sockperf.absorb(&samples),
            Err(error) => why = Some(format!("{error:#}")),
        }
    }
    let remarked = |figure: Figure| match &why {
        Some(why) => figure.remark(why.clone()),
        None => figure,
    };
    report.add(remarked(
        Figure::time("recording_cost", Statistic::P50, &recorded)
            .against("not_recorded", Statistic::P50, &plain)
            .goal(Goal::AtMost(1.05)),
    ));
    report.add(remarked(
        Figure::time("vs_sockperf", Statistic::P50, &plain)
            .against("sockperf", Statistic::P50, &sockperf)
            .goal(Goal::Near(0.15)),
    ));
    wake_ups(args, cores, report);
}

/// The doctor's wake-ups against cyclictest's.
fn wake_ups(args: &Args, cores: Cores, report: &mut Report) {
    let (mut own, mut theirs) = (Samples::default(), Samples::default());
    let mut why = None;
    for block in 1..=BLOCKS {
        eprintln!("wake-ups, block {block} of {BLOCKS}");
        for lateness in fide_selftest::wake_up::lateness(cores.b, 1_000_000, args.seconds * 1000 / BLOCKS) {
            own.add(lateness);
        }
        match tools::cyclictest(cores.b, args.seconds * 1000 / BLOCKS) {
            Ok(samples) => theirs.absorb(&samples),
            Err(error) => why = Some(format!("{error:#}")),
        }
    }
    let figure = Figure::time("vs_cyclictest", Statistic::P50, &own)
        .against("cyclictest", Statistic::P50, &theirs)
        .goal(Goal::Near(0.15));
    report.add(why.iter().fold(figure, |figure, why| figure.remark(why.clone())));
}
