// SPDX-License-Identifier: Apache-2.0
//! A host falls silent: it is cut off at the switches, and nothing is told of it but what it no longer sends.

use crate::Args;
use crate::fide_side::Fide;
use crate::trials::{Outcome, Subject, interleave};
use fide_testbed::baseline::{Bfd, Fastest, Knobs, Memberlist, find_fastest};
use fide_testbed::figures::{Figure, Report, Statistic};
use fide_testbed::{Spec, Testbed};
use std::time::Duration;

/// BFD as fabrics run it at its fastest.
const BFD_INTERVAL_MS: u32 = 10;
const BFD_MULTIPLIER: u32 = 3;
const SILENT_HOST: usize = 3;
/// A fresh memberlist cluster has gossiped its beginnings by then.
const SETTLE: Duration = Duration::from_secs(1);

const BFD: &str = "bfd_10ms_x3";
const LAN: &str = "memberlist_lan";
const NO_SUSPICION: &str = "memberlist_fast_no_suspicion";
const NO_DEATH: &str = "memberlist_fast_no_false_death";

struct BfdSilence<'a>(&'a Testbed, Bfd);

impl Subject for BfdSilence<'_> {
    fn name(&self) -> String {
        BFD.into()
    }

    fn trial(&mut self) -> anyhow::Result<u64> {
        Ok(self.1.silence(self.0)?)
    }
}

/// A cluster that lives for one trial, so that it is no load for the others.
struct MemberlistSilence<'a> {
    bed: &'a Testbed,
    name: &'static str,
    knobs: Knobs,
}

impl Subject for MemberlistSilence<'_> {
    fn name(&self) -> String {
        self.name.into()
    }

    fn trial(&mut self) -> anyhow::Result<u64> {
        let mut list = Memberlist::start(self.bed, self.knobs)?;
        std::thread::sleep(SETTLE);
        Ok(list.silence(self.bed, SILENT_HOST)?)
    }
}

struct FideSilence<'a>(&'a Testbed, Fide);

impl Subject for FideSilence<'_> {
    fn name(&self) -> String {
        "fide".into()
    }

    fn trial(&mut self) -> anyhow::Result<u64> {
        self.1.silence(self.0)
    }
}

/// All of them; those that cannot run are figures that say why.
pub(crate) fn measure(args: &Args, report: &mut Report) -> anyhow::Result<()> {
    // A bed each: a cut is for one of them.
    let bfd_bed = Testbed::build(Spec::hosts(2))?;
    let list_bed = Testbed::build(Spec::hosts(3))?;
    let fide_bed = Testbed::build(Spec::hosts(3))?;

    let mut missing: Vec<(&str, String)> = Vec::new();
    let mut subjects: Vec<(Box<dyn Subject + '_>, u32)> = Vec::new();
    if args.no_memberlist {
        for name in [LAN, NO_SUSPICION, NO_DEATH] {
            missing.push((name, "left out as told".into()));
        }
    } else {
        let stretch = Duration::from_secs(args.stretch_s.into());
        match find_fastest(&list_bed, stretch, |line| eprintln!("{line}")) {
            Ok(found) => {
                for (name, knobs, n) in [
                    (LAN, Some(Knobs::LAN), args.lan_silences),
                    (NO_SUSPICION, found.no_suspicion_ms.map(Knobs::at_probe_interval), args.silences),
                    (NO_DEATH, found.no_death_ms.map(Knobs::at_probe_interval), args.silences),
                ] {
                    let bed = &list_bed;
                    match knobs {
                        Some(knobs) => subjects.push((Box::new(MemberlistSilence { bed, name, knobs }), n)),
                        None => missing.push((name, "no setting that was tried is this safe".into())),
                    }
                }
                add_search(report, &found);
            }
            Err(e) => {
                for name in [LAN, NO_SUSPICION, NO_DEATH] {
                    missing.push((name, e.to_string()));
                }
            }
        }
    }
    let bfd = if args.no_bfd {
        Err("left out as told".into())
    } else {
        Bfd::start(&bfd_bed, (1, 2), 0, BFD_INTERVAL_MS, BFD_MULTIPLIER).map_err(|e| e.to_string())
    };
    match bfd {
        Ok(bfd) => subjects.push((Box::new(BfdSilence(&bfd_bed, bfd)), args.silences)),
        Err(why) => missing.push((BFD, why)),
    }
    let mut fide_missing = None;
    match Fide::start(&fide_bed) {
        Ok(fide) => subjects.push((Box::new(FideSilence(&fide_bed, fide)), args.silences)),
        Err(why) => fide_missing = Some(why),
    }

    let outcomes = interleave("a host falls silent", &mut subjects);
    let named: Vec<(String, Outcome)> = subjects.iter().map(|(s, _)| s.name()).zip(outcomes).collect();
    drop(subjects);
    let of = |name: &str| named.iter().find(|(n, _)| n == name).map(|(_, o)| o);
    for name in [BFD, LAN, NO_SUSPICION, NO_DEATH] {
        report.add(match of(name) {
            Some(o) => Figure::time(name, Statistic::P50, &o.samples),
            None => Figure::unmeasured(name, "us", reason(&missing, name)),
        });
    }
    for name in [BFD, LAN, NO_SUSPICION, NO_DEATH] {
        let figure = format!("host_silent_vs_{name}");
        let figure = match (of("fide"), &fide_missing) {
            (Some(o), _) => Figure::time(&figure, Statistic::P50, &o.samples),
            (None, why) => Figure::unmeasured(&figure, "us", why.clone().unwrap_or_default()),
        };
        let nothing = Default::default();
        let samples = of(name).map_or(&nothing, |o| &o.samples);
        report.add(figure.against(name, Statistic::P50, samples));
    }
    Ok(())
}

fn reason(missing: &[(&str, String)], name: &str) -> String {
    let found = missing.iter().find(|(n, _)| *n == name);
    found.map(|(_, why)| why.clone()).unwrap_or_default()
}

/// The settings that the search found, and what it saw on the way.
fn add_search(report: &mut Report, found: &Fastest) {
    let seen: Vec<_> = found
        .tried
        .iter()
        .map(|(ms, s, a)| format!("{ms} ms, {s} s: {} suspicions, {} deaths", a.suspicions, a.deaths))
        .collect();
    let n = found.tried.len() as u64;
    for (name, ms) in [(NO_SUSPICION, found.no_suspicion_ms), (NO_DEATH, found.no_death_ms)] {
        let name = format!("{name}_probe_interval");
        report.add(match ms {
            Some(ms) => {
                let mut figure = Figure::count(&name, ms.into(), n).remark(seen.join("; "));
                figure.unit = "ms".into();
                figure.statistic = "search".into();
                figure
            }
            None => Figure::unmeasured(&name, "ms", seen.join("; ")),
        });
    }
}
