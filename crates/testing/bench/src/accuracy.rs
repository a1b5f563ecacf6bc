// SPDX-License-Identifier: Apache-2.0
//! The shortest timeout without a false suspicion (FiDe §6.3, Fig. 4): two hosts whose agents send heartbeats
//! while no process dies.
//!
//! Agents count the gaps between heartbeats as their timers would wait for them. Their own timeout is a
//! second, so that no gap ends in a verdict: a timeout T would have suspected as often as there are gaps
//! longer than T. Three set-ups run in turn.

use crate::Args;
use crate::fide_side::await_all_up;
use anyhow::{Context, ensure};
use fide_bench::heard::{Heard, Listener};
use fide_shm::gaps::Gaps;
use fide_testbed::figures::{Figure, Goal, Report, Statistic};
use fide_testbed::sys::usable_cores;
use fide_testbed::{AgentSpec, Agents, AgentsSpec, Spec, Testbed, find_binary};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

mod table;

const HOSTS: usize = 2;
/// Time between two reads of the agents' counts and of the time that the hypervisor took.
const LOOK: Duration = Duration::from_millis(100);
/// How long agents take to settle.
const SETTLE: Duration = Duration::from_millis(300);
/// So long that no gap ends in a verdict.
const TIMEOUT_US: u32 = 1_000_000;
/// The least timeout of agents with `trust = "network"` at heartbeats of 100 us on a shared core, us: 100
/// until the next heartbeat, 100 on the way, and twice a jitter of 3.5 ms (`fide status`, `timeout_parts`).
/// With the defaults no shorter gap is a false verdict.
const DEFAULT_TIMEOUT_US: f64 = 7200.0;
/// At least this share of the due heartbeats must come, or the interval is too short for this machine.
const KEPT_UP: f64 = 0.9;

/// How agents run.
struct SetUp {
    /// In the names of its figures.
    name: &'static str,
    mode: &'static str,
    receive: &'static str,
}

const SET_UPS: [SetUp; 3] = [
    SetUp { name: "spinning", mode: "busy", receive: "auto" },
    SetUp { name: "sleeping", mode: "sleep", receive: "auto" },
    SetUp { name: "udp", mode: "sleep", receive: "udp" },
];

/// The measurements of one set-up.
#[derive(Default)]
struct Outcome {
    heard: Heard,
    /// Longest gap of each round, us: over all, and without steal.
    rounds_us: Vec<f64>,
    rounds_without_steal_us: Vec<f64>,
    /// Why a round failed.
    why: Option<String>,
}

/// The figures, the table and the drawing.
pub(crate) fn measure(args: &Args, report: &mut Report) {
    let mut outcomes: [Outcome; SET_UPS.len()] = Default::default();
    for round in 1..=args.accuracy_rounds {
        for (set_up, outcome) in SET_UPS.iter().zip(&mut outcomes) {
            eprintln!("accuracy, round {round} of {}: {}", args.accuracy_rounds, set_up.name);
            if let Err(why) = outcome.add_round(args, set_up) {
                outcome.why = Some(format!("round {round}: {why:#}"));
            }
        }
    }
    let lines: Vec<(&str, &Heard)> = SET_UPS.iter().map(|s| s.name).zip(outcomes.iter().map(|o| &o.heard)).collect();
    print!("\n{}", table::text(&lines));
    if let Err(why) = table::draw(&lines) {
        eprintln!("the drawing of false suspicions: {why:#}");
    }
    let interval_us = args.accuracy_heartbeat_us;
    for (set_up, outcome) in SET_UPS.iter().zip(&outcomes) {
        report.add(outcome.figure(set_up.name, interval_us, &outcomes[0]));
        report.add(outcome.figure_without_steal(set_up.name, &outcomes[0]));
    }
}

impl Outcome {
    fn add_round(&mut self, args: &Args, set_up: &SetUp) -> anyhow::Result<()> {
        let span = Duration::from_millis(args.accuracy_ms.into());
        let heard = listen(set_up, args.accuracy_heartbeat_us, span)?;
        ensure!(heard.all.count() > 0, "no heartbeat came");
        self.rounds_us.push(us(heard.all.longest_ns));
        if heard.without_steal.count() > 0 {
            self.rounds_without_steal_us.push(us(heard.without_steal.longest_ns));
        }
        self.heard.absorb(&heard);
        Ok(())
    }

    fn figure(&self, set_up: &str, interval_us: u32, spinning: &Outcome) -> Figure {
        let name = format!("{NAME}_{set_up}");
        let heard = &self.heard;
        let due = heard.span_ns as f64 / 1000.0 / f64::from(interval_us) * (HOSTS * (HOSTS - 1)) as f64;
        let kept_up = heard.all.count() as f64 / due.max(1.0);
        let mut says = vec![format!(
            "heartbeats of {interval_us} us, {:.0} % of those due came, in {:.1} s; ticks of 10 ms stolen: {}; p99.9 {}, p99.99 {} us",
            100.0 * kept_up,
            heard.span_ns as f64 / 1e9,
            heard.steal_ticks,
            us(heard.all.quantile_ns(0.999)),
            us(heard.all.quantile_ns(0.9999)),
        )];
        says.extend(self.why.clone());
        if heard.verdicts > 0 {
            says.push(format!(
                "{} FALSE VERDICTS fell at a timeout of 1 s: their gaps are not among these",
                heard.verdicts
            ));
        }
        let bad = heard.verdicts > 0 || kept_up < KEPT_UP || self.why.is_some();
        longest(&name, &heard.all, &self.rounds_us, (set_up, &spinning.heard.all))
            .remark(says.join("; "))
            .goal(Goal::AtMost(DEFAULT_TIMEOUT_US))
            .unless(bad)
    }

    fn figure_without_steal(&self, set_up: &str, spinning: &Outcome) -> Figure {
        let name = format!("{NAME}_{set_up}_without_steal");
        let heard = &self.heard;
        let left_out = 100.0 * (1.0 - heard.span_without_steal_ns as f64 / heard.span_ns.max(1) as f64);
        let of = (set_up, &spinning.heard.without_steal);
        longest(&name, &heard.without_steal, &self.rounds_without_steal_us, of).remark(format!(
            "{left_out:.0} % of the time left out: intervals of {} ms in which the hypervisor ran others, and the one after each",
            LOOK.as_millis()
        ))
    }
}

const NAME: &str = "accuracy_perfect_timeout";

fn us(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

/// The longest gap, which is the least timeout without a false suspicion, beside the longest gap of the
/// spinning set-up.
fn longest(name: &str, gaps: &Gaps, rounds_us: &[f64], (set_up, spinning): (&str, &Gaps)) -> Figure {
    if gaps.count() == 0 {
        return Figure::unmeasured(name, "us", "no gap was counted");
    }
    let value = us(gaps.longest_ns);
    let (p50, p99) = (us(gaps.quantile_ns(0.5)), us(gaps.quantile_ns(0.99)));
    let mut figure = Figure {
        figure: name.into(),
        value: Some(value),
        unit: "us".into(),
        statistic: Statistic::Max.name().into(),
        n: gaps.count(),
        p50: Some(p50),
        p99: Some(p99),
        max: Some(value),
        ..Figure::default()
    };
    if set_up != SET_UPS[0].name && spinning.longest_ns > 0 {
        // Stands beside the value; the goal is not about it.
        figure.ratio = Some(value / us(spinning.longest_ns));
        figure.baseline_value = Some(us(spinning.longest_ns));
    }
    figure.spread_of(rounds_us.iter().copied())
}

/// One round of one set-up.
fn listen(set_up: &SetUp, heartbeat_us: u32, span: Duration) -> anyhow::Result<Heard> {
    let bed = Testbed::build(Spec::hosts(HOSTS))?;
    let agents = Agents::start(&bed, spec(set_up, heartbeat_us)?)?;
    await_all_up(&agents, HOSTS)?;
    std::thread::sleep(SETTLE);
    let mut listener = Listener::start(&agents, HOSTS)?;
    let (mut heard, start) = (Heard::default(), Instant::now());
    while start.elapsed() < span {
        std::thread::sleep(LOOK);
        heard.absorb(&listener.listen(&agents)?);
    }
    listener.judge(&agents, &mut heard)?;
    Ok(heard)
}

/// The agents of a set-up, each on a core of its own.
fn spec(set_up: &SetUp, heartbeat_us: u32) -> anyhow::Result<AgentsSpec> {
    let cores = usable_cores();
    let agent =
        |core| AgentSpec { mode: set_up.mode.into(), core, receive: set_up.receive.into(), ..AgentSpec::default() };
    let overrides: BTreeMap<usize, AgentSpec> =
        (1..=HOSTS).zip(&cores).map(|(host, core)| (host, agent(Some(*core)))).collect();
    ensure!(overrides.len() == HOSTS, "{} cores are too few: each agent needs one of its own", cores.len());
    Ok(AgentsSpec {
        program: vec![find_binary("fide").context("the agents' program")?],
        arguments: vec!["--force-timeout".into()],
        trust: "network".into(),
        policy: "network".into(),
        heartbeat_us,
        timeout_us: Some(TIMEOUT_US),
        sections: "[limits]\nonly_root = true\n".into(),
        overrides,
        ..AgentsSpec::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(longest_us: u64, verdicts: u64) -> Outcome {
        let mut gaps = Gaps::NONE;
        let mut now_ns = 1;
        for gap_us in std::iter::repeat_n(100, 999).chain([longest_us]) {
            gaps.arrived(1, now_ns);
            now_ns += gap_us * 1000;
        }
        gaps.arrived(1, now_ns);
        let heard = Heard { all: gaps, without_steal: gaps, span_ns: 50_000_000, verdicts, ..Heard::default() };
        Outcome { heard, rounds_us: vec![longest_us as f64], ..Outcome::default() }
    }

    #[test]
    fn false_verdict_fails_a_figure_that_is_within_its_goal() {
        let (spinning, good) = (outcome(400, 0), outcome(1200, 0));
        let figure = good.figure("udp", 100, &spinning);
        assert_eq!((figure.met, figure.value, figure.ratio, figure.n), (Some(true), Some(1200.0), Some(3.0), 1000));
        let figure = outcome(1200, 1).figure("udp", 100, &spinning);
        assert!(figure.met == Some(false) && figure.why.is_some_and(|why| why.contains("1 FALSE VERDICTS")));
        let figure = outcome(8000, 0).figure("spinning", 100, &spinning);
        assert_eq!((figure.met, figure.ratio), (Some(false), None));
        let figure = good.figure("udp", 10, &spinning);
        assert_eq!(figure.met, Some(false), "a tenth of what was due came");
        assert_eq!(Outcome::default().figure("udp", 100, &spinning).met, None);
    }
}
