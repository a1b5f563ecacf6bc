// SPDX-License-Identifier: Apache-2.0
//! A process of host 2 is killed; host 1 (the same host for pidfd) is told.

use crate::Args;
use crate::fide_side::Fide;
use crate::trials::{Outcome, Subject, interleave};
use anyhow::Context;
use fide_testbed::baseline::{TcpFin, watch_pidfd};
use fide_testbed::figures::{Figure, Goal, Report, Statistic};
use fide_testbed::{Spec, Testbed, Victim, VictimSpec};
use std::time::Duration;

const VICTIM_HOST: usize = 2;
const WATCHER_HOST: usize = 1;
const BIG_MIB: usize = 512;
/// Until the watcher blocks and the victim sleeps.
const SETTLE: Duration = Duration::from_millis(2);
const NOTICE_LIMIT_NS: u64 = 20_000_000_000;

/// Waits at most so many ns for the notice; gives its CLOCK_MONOTONIC time.
pub(crate) type Waiting = Box<dyn FnOnce(u64) -> Option<u64>>;

/// How a watcher gets to watch a victim.
enum Watcher<'a> {
    Tcp(TcpFin),
    Pidfd,
    Fide(&'a mut Fide),
}

struct Kill<'a> {
    bed: &'a Testbed,
    watcher: Watcher<'a>,
    resident_mib: usize,
}

impl Subject for Kill<'_> {
    fn name(&self) -> String {
        match self.watcher {
            Watcher::Tcp(_) => "tcp_fin",
            Watcher::Pidfd => "pidfd",
            Watcher::Fide(_) => "fide",
        }
        .into()
    }

    fn trial(&mut self) -> anyhow::Result<u64> {
        let spec = VictimSpec {
            resident_mib: self.resident_mib,
            tcp: match &self.watcher {
                Watcher::Tcp(fin) => Some(fin.address()),
                _ => None,
            },
            ..VictimSpec::default()
        };
        let mut victim = Victim::spawn(Some(self.bed.host(VICTIM_HOST)), &spec)?;
        let waiting: Waiting = match &mut self.watcher {
            Watcher::Tcp(fin) => {
                let notice = fin.watch()?;
                Box::new(move |limit| notice.wait(limit))
            }
            Watcher::Pidfd => {
                let notice = watch_pidfd(victim.pid())?;
                Box::new(move |limit| notice.wait(limit))
            }
            Watcher::Fide(fide) => fide.watch(&victim)?,
        };
        std::thread::sleep(SETTLE);
        let killed = victim.kill()?;
        let told = waiting(NOTICE_LIMIT_NS).context("no notice of the kill")?;
        // The next victim starts when this one's memory is gone.
        victim.wait()?;
        Ok(told.saturating_sub(killed))
    }
}

/// Both sizes, all watchers.
pub(crate) fn measure(args: &Args, report: &mut Report) -> anyhow::Result<()> {
    let bed = Testbed::build(Spec::default())?;
    let mut fide = Fide::start(&bed);
    for (size, resident_mib, n) in [("small", 0, args.kills), ("512mib", BIG_MIB, args.big_kills)] {
        let kill = |watcher| Kill { bed: &bed, watcher, resident_mib };
        let mut subjects: Vec<(Box<dyn Subject + '_>, u32)> = vec![
            (Box::new(kill(Watcher::Tcp(TcpFin::listen(bed.host(WATCHER_HOST), 0)?))), n),
            (Box::new(kill(Watcher::Pidfd)), n),
        ];
        if let Ok(fide) = &mut fide {
            subjects.push((Box::new(kill(Watcher::Fide(fide))), n));
        }
        let outcomes = interleave(&format!("SIGKILL of a process, {size}"), &mut subjects);
        drop(subjects);
        let why = fide.as_ref().err();
        add_figures(report, size, &outcomes, why);
    }
    Ok(())
}

fn add_figures(report: &mut Report, size: &str, outcomes: &[Outcome], why: Option<&String>) {
    let [tcp, pidfd, rest @ ..] = outcomes else {
        return;
    };
    for (name, outcome) in [("tcp_fin", tcp), ("pidfd", pidfd)] {
        report.add(Figure::time(&format!("{name}_{size}"), Statistic::P50, &outcome.samples));
    }
    for (baseline, outcome, goal) in [("tcp_fin", tcp, Some(Goal::AtMost(0.7))), ("pidfd", pidfd, None)] {
        let name = format!("sigkill_{size}_vs_{baseline}");
        let figure = match (rest.first(), why) {
            (Some(fide), _) => Figure::time(&name, Statistic::P50, &fide.samples),
            (None, why) => Figure::unmeasured(&name, "us", why.cloned().unwrap_or_default()),
        };
        let figure = figure.against(baseline, Statistic::P50, &outcome.samples);
        report.add(match goal {
            Some(goal) => figure.goal(goal),
            None => figure,
        });
    }
}
