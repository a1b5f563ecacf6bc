// SPDX-License-Identifier: Apache-2.0
//! A process of host 2 is killed, and a program on host 1 (on host 2 for pidfd) is notified.
//!
//! Each watcher has its own kills: if all watched the same kill, the agent, woken by the exit, would delay
//! the rest of the exit, and with it the FIN and the pidfd. Blocks alternate, half of them without agents. A
//! host without Fide has TCP's FIN of those blocks; running agents change it, since they keep the cores out
//! of sleep (the FIN is sooner) and send heartbeats (it is later). The FIN beside agents is measured too
//! (`..._beside_agents`), and for a reader that is woken as Fide's watcher is (`tcp_fin_eager`). Fide is also
//! measured with its defaults (`..._default_...`).

use crate::Args;
use crate::fide_side::{Fide, Mode, Noticed, Waiting};
use crate::list::{self, Settings};
use crate::trials::{NOTICE_LIMIT_NS, Outcome, Subject, interleave};
use anyhow::Context;
use fide_testbed::baseline::{TcpFin, watch_pidfd};
use fide_testbed::figures::{Figure, Goal, Report, Samples, Statistic};
use fide_testbed::{Spec, Testbed, Victim, VictimSpec};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

const VICTIM_HOST: usize = 2;
const WATCHER_HOST: usize = 1;
const BIG_MIB: usize = 512;
const FIDE: &str = "fide";
const BESIDE: &str = "_beside_agents";
/// The reader has called `wake_eagerly`.
const EAGER: &str = "tcp_fin_eager";
/// With leases and agreed views.
const DEFAULT: &str = "fide_default";
/// Blocks without agents, and as many with.
const BLOCKS: u32 = 4;
/// How long the watcher takes to block, and the victim to sleep.
const SETTLE: Duration = Duration::from_millis(2);

/// The parts of the time.
#[derive(Default)]
pub(crate) struct Stages {
    to_hook: Samples,
    to_receive: Samples,
    to_program: Samples,
    direct: u64,
}

/// Ways in which a watcher watches a victim.
pub(crate) enum Watcher<'a> {
    Tcp(TcpFin),
    TcpEager(TcpFin),
    Pidfd,
    Fide(&'a mut Fide, &'a RefCell<Stages>),
    /// The parts are the same.
    Default(&'a mut Fide),
}

pub(crate) struct Kill<'a> {
    pub(crate) bed: &'a Testbed,
    pub(crate) watcher: Watcher<'a>,
    pub(crate) resident_mib: usize,
    /// Agents run meanwhile.
    pub(crate) beside: bool,
    /// The victim's core; `None`: the kernel chooses.
    pub(crate) core: Option<usize>,
}

impl Subject for Kill<'_> {
    fn name(&self) -> String {
        let name = match self.watcher {
            Watcher::Tcp(_) => "tcp_fin",
            Watcher::TcpEager(_) => EAGER,
            Watcher::Pidfd => "pidfd",
            Watcher::Fide(..) => return FIDE.into(),
            Watcher::Default(_) => return DEFAULT.into(),
        };
        if self.beside { format!("{name}{BESIDE}") } else { name.into() }
    }

    fn trial(&mut self) -> anyhow::Result<u64> {
        let spec = VictimSpec {
            resident_mib: self.resident_mib,
            tcp: match &self.watcher {
                Watcher::Tcp(fin) | Watcher::TcpEager(fin) => Some(fin.address()),
                _ => None,
            },
            ..VictimSpec::default()
        };
        let plain = |ns| Noticed { ns, stages: None, direct: false };
        let mut victim = Victim::spawn(Some(self.bed.host(VICTIM_HOST)), &spec)?;
        if let Some(core) = self.core {
            victim.bind_to_core(core)?;
        }
        let waiting: Waiting = match &mut self.watcher {
            Watcher::Tcp(fin) => {
                let notice = fin.watch()?;
                Box::new(move |limit| notice.wait(limit).map(plain))
            }
            Watcher::TcpEager(fin) => {
                // If the kernel lacks the feature, it is the same as the other one.
                let notice = fin.watch_prepared(|| {
                    let _ = fide_client::wake_eagerly();
                })?;
                Box::new(move |limit| notice.wait(limit).map(plain))
            }
            Watcher::Pidfd => {
                let notice = watch_pidfd(victim.pid())?;
                Box::new(move |limit| notice.wait(limit).map(plain))
            }
            Watcher::Fide(fide, _) | Watcher::Default(fide) => fide.watch(&victim)?,
        };
        std::thread::sleep(SETTLE);
        let killed = victim.kill()?;
        let notice = waiting(NOTICE_LIMIT_NS).context("no notice of the kill")?;
        if let (Watcher::Fide(_, stages), Some((hook, received))) = (&self.watcher, notice.stages) {
            let mut stages = stages.borrow_mut();
            stages.to_hook.add(hook.saturating_sub(killed));
            stages.to_receive.add(received.saturating_sub(hook));
            stages.to_program.add(notice.ns.saturating_sub(received));
            stages.direct += u64::from(notice.direct);
        }
        // The next victim starts once this one's memory is freed.
        victim.wait()?;
        Ok(notice.ns.saturating_sub(killed))
    }
}

type Subjects<'a> = Vec<(Box<dyn Subject + 'a>, u32)>;

/// Both sizes, all watchers.
pub(crate) fn measure(args: &Args, lists: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let bed = Testbed::build(Spec::default())?;
    let os_watchers = |resident_mib, n, beside| -> anyhow::Result<Subjects<'_>> {
        let fin = TcpFin::listen(bed.host(WATCHER_HOST), 0)?;
        let kill = |watcher| Box::new(Kill { bed: &bed, watcher, resident_mib, beside, core: None });
        let mut watchers: Subjects<'_> = vec![(kill(Watcher::Tcp(fin)), n), (kill(Watcher::Pidfd), n)];
        if !beside {
            watchers.push((kill(Watcher::TcpEager(TcpFin::listen(bed.host(WATCHER_HOST), 0)?)), n));
        }
        Ok(watchers)
    };
    for (size, resident_mib, n) in [("small", 0, args.kills), ("512mib", BIG_MIB, args.big_kills)] {
        let stages = RefCell::new(Stages::default());
        let mut named: BTreeMap<String, Outcome> = BTreeMap::new();
        let mut why = None;
        for block in 1..=BLOCKS {
            let share = |n: u32| n.div_ceil(BLOCKS);
            let mut subjects = os_watchers(resident_mib, share(n), false)?;
            if size == "small" {
                for setting in lists.all.iter().filter(|s| s.name != list::NO_FALSE_DEATH) {
                    if let Ok(knobs) = setting.knobs {
                        let kill = list::Kill { bed: &lists.bed, name: setting.name, knobs };
                        subjects.push((Box::new(kill), share(setting.trials)));
                    }
                }
            }
            let what = format!("SIGKILL of a process, {size}, block {block} of {BLOCKS}");
            run(&format!("{what}, no agents"), subjects, &mut named);
            match Fide::start(&bed, Mode::Published) {
                Ok(mut fide) => {
                    let mut subjects = os_watchers(resident_mib, share(n).div_ceil(2), true)?;
                    let watcher = Watcher::Fide(&mut fide, &stages);
                    subjects.push((
                        Box::new(Kill { bed: &bed, watcher, resident_mib, beside: true, core: None }),
                        share(n),
                    ));
                    run(&what, subjects, &mut named);
                }
                Err(error) => why = Some(error),
            }
            match Fide::start(&bed, Mode::Default) {
                Ok(mut fide) => {
                    let watcher = Watcher::Default(&mut fide);
                    let kill = Kill { bed: &bed, watcher, resident_mib, beside: true, core: None };
                    run(&format!("{what}, by default"), vec![(Box::new(kill), share(n))], &mut named);
                }
                Err(error) => why = Some(error),
            }
        }
        add_figures(report, size, &named, lists, why.as_ref());
        report.add(by_default(size, &named, why.as_ref()));
        if named.contains_key(FIDE) {
            stages_of(size, &stages.into_inner()).into_iter().for_each(|figure| report.add(figure));
        }
    }
    Ok(())
}

/// Runs one block, and adds its results to earlier blocks.
fn run(what: &str, mut subjects: Subjects<'_>, named: &mut BTreeMap<String, Outcome>) {
    let outcomes = interleave(what, &mut subjects);
    for ((subject, _), outcome) in subjects.iter().zip(outcomes) {
        named.entry(subject.name()).or_default().absorb(outcome);
    }
}

fn add_figures(
    report: &mut Report,
    size: &str,
    named: &BTreeMap<String, Outcome>,
    lists: &Settings,
    why: Option<&String>,
) {
    let of = |name: &str| named.get(name);
    let goals: &[(&str, Option<f64>)] = match size {
        "small" => &[
            ("tcp_fin", Some(0.7)),
            (EAGER, None),
            ("pidfd", None),
            ("tcp_fin_beside_agents", None),
            ("pidfd_beside_agents", None),
            (list::SAFE, Some(0.002)),
            (list::LAN, None),
        ],
        _ => &[("tcp_fin", Some(0.005)), (EAGER, None), ("pidfd", None), ("tcp_fin_beside_agents", None)],
    };
    for (baseline, goal) in goals {
        let own = format!("{baseline}_{size}");
        let nothing = Samples::default();
        let samples = of(baseline).map_or(&nothing, |o| &o.samples);
        let missing = || match of(baseline) {
            Some(o) => o.why.clone(),
            None => lists.all.iter().find(|s| s.name == *baseline).and_then(|s| s.knobs.clone().err()),
        };
        report.add(match samples.n() {
            0 => Figure::unmeasured(&own, "us", missing().unwrap_or_default()),
            _ => Figure::time(&own, Statistic::P50, samples),
        });
        let name = format!("sigkill_{size}_vs_{baseline}");
        let figure = match (of(FIDE), why) {
            (Some(fide), _) => Figure::time(&name, Statistic::P50, &fide.samples).remark(match samples.n() {
                0 => format!("{baseline} was not measured"),
                _ => format!("p10 {:.0} us, of the baseline {:.0} us", p10_us(&fide.samples), p10_us(samples)),
            }),
            (None, why) => Figure::unmeasured(&name, "us", why.cloned().unwrap_or_default()),
        };
        let figure = figure.against(baseline, Statistic::P50, samples);
        let figure = goal.iter().fold(figure, |f, goal| f.goal(Goal::AtMost(*goal)));
        // A missed death is in no sample, whichever watcher missed it.
        let figure = match of(FIDE) {
            Some(fide) => fide.judge(figure),
            None => figure,
        };
        report.add(match of(baseline) {
            Some(missed) => missed.judge_beside(baseline, figure),
            None => figure,
        });
    }
}

/// The figure with Fide's defaults, beside the comparison with the published configuration.
fn by_default(size: &str, named: &BTreeMap<String, Outcome>, why: Option<&String>) -> Figure {
    let name = format!("sigkill_{size}_default_vs_tcp_fin");
    let (Some(fide), Some(fin)) = (named.get(DEFAULT), named.get("tcp_fin")) else {
        return Figure::unmeasured(&name, "us", why.cloned().unwrap_or_default());
    };
    let figure = Figure::time(&name, Statistic::P50, &fide.samples);
    fin.judge_beside("tcp_fin", fide.judge(figure.against("tcp_fin", Statistic::P50, &fin.samples)))
}

fn p10_us(samples: &Samples) -> f64 {
    samples.quantile(0.1) as f64 / 1000.0
}

/// Figures of the parts.
pub(crate) fn stages_of(size: &str, stages: &Stages) -> Vec<Figure> {
    let direct = format!("{} of {} notified by the receive program itself", stages.direct, stages.to_hook.n());
    let parts = [
        ("signal_to_exit_hook", &stages.to_hook),
        ("exit_hook_to_receive", &stages.to_receive),
        ("receive_to_program", &stages.to_program),
    ];
    let figure = |(stage, samples): (&str, &Samples)| {
        let figure = Figure::time(&format!("sigkill_{size}_{stage}"), Statistic::P50, samples);
        figure.remark(format!("p10 {:.0} us; {direct}", p10_us(samples)))
    };
    parts.into_iter().map(figure).collect()
}
