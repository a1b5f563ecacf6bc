// SPDX-License-Identifier: Apache-2.0
//! Time and memory to write many packets to a log, read them again, analyse and draw them.

use crate::Args;
use anyhow::Context;
use fide_jitter_analysis::attribute::attribute;
use fide_jitter_analysis::families::{FamilyOptions, find_families};
use fide_jitter_analysis::stats::{RunStats, StatsOptions};
use fide_jitter_analysis::synth::{Disturbance, Noise, Scenario, synthesize};
use fide_jitter_analysis::{LogWriter, Schedule, Stamp, read_log};
use fide_report::run::{Run, render};
use fide_testbed::figures::{Figure, Goal, Report};
use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::time::Instant;

/// For ten million packets.
const LIMIT_S: f64 = 30.0;
const LIMIT_MIB: f64 = 1024.0;

pub(crate) fn run(args: &Args, report: &mut Report) {
    eprintln!("{} packets are made up, written, read, analysed and drawn", args.packets);
    match measure(args.packets) {
        Ok((seconds, mib)) => {
            let figure = |name: &str, value: f64, unit: &str, limit: f64| {
                Figure {
                    value: Some(value),
                    statistic: "total".into(),
                    n: args.packets,
                    ..Figure { figure: name.into(), unit: unit.into(), ..Figure::default() }
                }
                .goal(Goal::AtMost(limit))
            };
            report.add(figure("analyse_10m", seconds, "s", LIMIT_S));
            report.add(figure("analyse_10m_memory", mib, "MiB", LIMIT_MIB));
        }
        Err(error) => {
            for (name, unit) in [("analyse_10m", "s"), ("analyse_10m_memory", "MiB")] {
                report.add(Figure::unmeasured(name, unit, format!("{error:#}")));
            }
        }
    }
}

fn measure(packets: u64) -> anyhow::Result<(f64, f64)> {
    let file = tempfile::NamedTempFile::new()?;
    {
        let scenario = Scenario {
            period_ns: 1_000_000,
            schedule: Schedule::Absolute,
            packets,
            // So that the analysis has something to find.
            disturbances: vec![
                Disturbance::new(Stamp::Ts2, 25_381_966.0, 300_000.0),
                Disturbance::new(Stamp::Ts1, 4_000_000.0, 60_000.0),
            ],
            noise: Noise::busy(),
            clock: None,
            seed: 1,
        };
        let made = synthesize(&scenario);
        let mut log = LogWriter::create(BufWriter::new(File::create(file.path())?), &made.info)?;
        for row in 0..made.samples.len() {
            log.sample(&made.samples.get(row).context("a packet")?)?;
        }
        log.finish()?;
    }
    // The memory peak of making up the packets does not belong to the analysis.
    std::fs::write("/proc/self/clear_refs", "5")?;
    let start = Instant::now();
    let log = read_log(BufReader::new(File::open(file.path())?))?;
    let stats = RunStats::of(&log.info, &log.samples, &StatsOptions::default());
    let families = find_families(&log.info, &log.samples, &FamilyOptions::default());
    let found = attribute(&log.info, &log.samples, &log.events);
    let page = render(&[Run::new("volume", log.info, stats)]);
    let seconds = start.elapsed().as_secs_f64();
    eprintln!("{} late stages, a page of {} bytes", found.late, page.len());
    families.families.iter().for_each(|family| eprintln!("{}", family.text));
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak_kib =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse::<f64>().ok());
    Ok((seconds, peak_kib.context("no VmHWM")? / 1024.0))
}
