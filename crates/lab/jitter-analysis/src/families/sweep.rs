// SPDX-License-Identifier: Apache-2.0
//! Several runs with different sending intervals, explained by the same disturbances.
//!
//! Disturbances that one sending interval cannot tell apart can be told apart by another: each period that is
//! possible in any run is judged in all runs, and the log likelihood ratios are added, duration by duration.
//! A run in which such a disturbance must have hit packets, but in which no late packets follow its period,
//! is evidence against it.

use super::chain::Chain;
use super::family::{duration, ms, us};
use super::proof::{Proof, STEP_NS, judge};
use super::search::{Found, View, chain_price, search, search_price, take_away};
use super::shape::{Shape, expected_shape};
use super::stage::{Rows, Stage};
use super::{Family, FamilyOptions};
use crate::clocks::Aligned;
use crate::sample::{RunInfo, Samples, Schedule, Stamp};
use crate::synth::Disturbance;
use serde::{Deserialize, Serialize};

/// Periods that differ by less than this share are the same.
const SAME: f64 = 2e-4;
/// Maximum number of periods judged in all runs: the best of each run and their alternatives.
const PERIODS_MAX: usize = 200;
/// Number of phases tried to tell how often a disturbance must hit.
const PHASES: u64 = 16;
/// Evidence of a packet that must have been hit and was not, nats.
const MISSED: f64 = 3.0;
/// A run counts against a period by at most this, nats: the disturbance may just not have been active then.
const AGAINST_MAX: f64 = 60.0;
/// A run with more evidence than this, nats, does not count against a period, even if it is too little to
/// count in favour.
const WEAK: f64 = 10.0;
/// Scale of the noise to begin with, ns.
const SCALE_NS: f64 = 5000.0;
/// A slower period is preferred if it is worse by less than this, nats.
const AS_GOOD: f64 = 3.0;

/// The part of a run that a sweep needs: about 80 bytes per packet, so that the samples need not be kept.
#[derive(Debug, Clone)]
pub struct RunView {
    sending_ns: u64,
    schedule: Schedule,
    stages: Vec<Stage>,
    ids: Vec<u64>,
}

impl RunView {
    /// The view of a run.
    pub fn of(info: &RunInfo, samples: &Samples) -> RunView {
        let samples = &Aligned::of(info, samples);
        let mut late = Rows::new(samples.len());
        let stages = Stamp::ALL.iter().map(|&stamp| Stage::of(info, samples, stamp, &mut late)).collect();
        RunView { sending_ns: info.period_ns, schedule: info.schedule, stages, ids: samples.ids().to_vec() }
    }
}

/// How a disturbance fits one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunFit {
    /// Its sending interval, ns.
    pub sending_ns: u64,
    /// How the disturbance shows in it, if it does.
    pub family: Option<Family>,
    /// How it should show according to theory; None if it need not show at all.
    pub expected: Option<Shape>,
    /// Nats for (or against) the disturbance from this run.
    pub evidence: f64,
}

/// A disturbance that explains families of several runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepFamily {
    /// The stamp at which the delay occurs.
    pub stamp: Stamp,
    /// T, ns.
    pub period_ns: f64,
    /// D, ns; if it is not known, its minimum.
    pub duration_ns: f64,
    /// The range of D, ns.
    pub duration_range_ns: (f64, f64),
    /// See [`Family::duration_known`].
    pub duration_known: bool,
    /// Nats in favour from all runs together, beyond what a search finds by chance.
    pub evidence: f64,
    /// Share of this period in the likelihood of all periods tried.
    pub confidence: f64,
    /// Other periods, ns, that explain all runs equally well.
    pub alternatives_ns: Vec<f64>,
    /// The fit of each run, in the order given.
    pub runs: Vec<RunFit>,
    /// The disturbance in a sentence.
    pub text: String,
}

/// A period in one run.
struct Trial {
    chain: Option<(Chain, Proof)>,
    /// Nats by duration, minus the price of the search.
    by_duration: Vec<f64>,
}

/// A period in all runs.
struct Joint {
    period: f64,
    trials: Vec<Trial>,
    evidence: f64,
    duration: (f64, f64),
}

/// Explains several runs by as few disturbances as possible, the clearest first. Empty if nothing is found.
pub fn sweep(runs: &[RunView], options: &FamilyOptions) -> Vec<SweepFamily> {
    let mut all: Vec<SweepFamily> = Vec::new();
    for stamp in Stamp::ALL {
        let mut stages: Vec<Stage> = runs.iter().map(|r| r.stages[stamp.index()].clone()).collect();
        for _ in 0..options.families_max {
            let periods = possible(&stages, options);
            let views: Vec<View> = stages.iter().map(View::of).collect();
            let mut joints: Vec<Joint> =
                periods.iter().map(|&p| Joint::of(p, runs, &stages, &views, options)).collect();
            joints.sort_unstable_by(|a, b| b.evidence.total_cmp(&a.evidence));
            let Some(best) = joints.first().filter(|b| b.evidence >= options.evidence_min).map(|b| b.evidence) else {
                break;
            };
            // Takes the slowest of those that are equally good: it has the fewest windows that were not seen.
            let as_good: Vec<&Joint> = joints.iter().take_while(|j| j.evidence > best - AS_GOOD).collect();
            let Some(chosen) = as_good.iter().max_by(|a, b| a.period.total_cmp(&b.period)) else { break };
            let mut family = chosen.tell(stamp, runs, &mut stages);
            let weight = |j: &Joint| (j.evidence - best).exp();
            let others = |j: &&Joint| (j.period / chosen.period - 1.0).abs() > SAME;
            let rest: f64 = joints.iter().filter(others).map(weight).sum();
            family.confidence = weight(chosen) / (weight(chosen) + rest);
            family.alternatives_ns =
                as_good.iter().map(|j| j.period).filter(|p| (p / chosen.period - 1.0).abs() > SAME).collect();
            all.push(family);
        }
    }
    all.sort_by(|a, b| b.evidence.total_cmp(&a.evidence));
    all
}

/// Periods that are possible in any of the runs.
fn possible(stages: &[Stage], options: &FamilyOptions) -> Vec<f64> {
    let mut periods: Vec<f64> = Vec::new();
    for stage in stages {
        let once = FamilyOptions { families_max: 1, ..*options };
        // On a copy: nothing is removed before all runs have been judged.
        for (found, _) in search(&mut stage.clone(), &once) {
            let mut these = vec![found.period()];
            these.extend(found.faster.iter().filter(|_| found.cut == 1).map(|(cut, _)| found.period() / *cut as f64));
            for p in these {
                if periods.len() < PERIODS_MAX && !periods.iter().any(|q| (p / q - 1.0).abs() < SAME) {
                    periods.push(p);
                }
            }
        }
    }
    periods
}

impl Joint {
    fn of(period: f64, runs: &[RunView], stages: &[Stage], views: &[View], options: &FamilyOptions) -> Joint {
        let trials: Vec<Trial> = runs
            .iter()
            .zip(stages.iter().zip(views))
            .map(|(run, (stage, view))| Trial::of(period, run, stage, view))
            .collect();
        let bins = trials.iter().map(|t| t.by_duration.len()).max().unwrap_or(0);
        let total = |bin: usize| -> f64 {
            trials.iter().map(|t| t.by_duration.get(bin).or(t.by_duration.last()).copied().unwrap_or(0.0)).sum()
        };
        let totals: Vec<f64> = (0..bins).map(total).collect();
        let best = (0..bins).max_by(|&a, &b| totals[a].total_cmp(&totals[b])).unwrap_or(0);
        let evidence = totals.get(best).copied().unwrap_or(f64::MIN);
        let good = |b: &usize| totals[*b] > evidence - 1.0;
        // The period was searched for once.
        let dearest = stages.iter().map(|s| search_price(s, SCALE_NS, options)).fold(0.0, f64::max);
        let low = (0..=best).rev().take_while(good).last().unwrap_or(best);
        let high = (best..bins).take_while(good).last().unwrap_or(best);
        let duration = (low as f64 * STEP_NS, (high + 1) as f64 * STEP_NS);
        // Refined by the run with the smallest error.
        let known = trials.iter().filter_map(|t| t.chain.as_ref()).filter_map(|(c, _)| c.slope());
        let period = known.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(period, |s| s.0);
        Joint { period, trials, evidence: evidence - dearest, duration }
    }

    fn tell(&self, stamp: Stamp, runs: &[RunView], stages: &mut [Stage]) -> SweepFamily {
        let (duration_ns, duration_known) = duration(self.duration);
        let bin = (f64::midpoint(self.duration.0, self.duration.1) / STEP_NS) as usize;
        let fits: Vec<RunFit> = (runs.iter().zip(&self.trials).zip(stages))
            .map(|((run, trial), stage)| {
                let evidence = trial.by_duration.get(bin).or(trial.by_duration.last()).copied().unwrap_or(0.0);
                let sending = run.sending_ns as f64;
                let family = trial.chain.as_ref().filter(|_| evidence > 0.0).map(|(chain, proof)| {
                    let found =
                        Found { chain: chain.clone(), cut: 1, proof: proof.clone(), evidence, faster: Vec::new() };
                    let doing = take_away(stage, &found);
                    Family::new(stamp, sending, &found, &doing, &run.ids)
                });
                let what = Disturbance::new(stamp, self.period, duration_ns);
                let sure = must_hit(self.period, duration_ns, run, stage).0 > 0;
                let expected = expected_shape(&what, run.schedule, sending, run.ids.len() as u64).filter(|_| sure);
                RunFit { sending_ns: run.sending_ns, family, expected, evidence }
            })
            .collect();
        let shows: Vec<String> = fits
            .iter()
            .map(|f| {
                let how = f.family.as_ref().map_or("not at all", |family| &family.kind);
                format!("{how} at {}", us(f.sending_ns as f64))
            })
            .collect();
        let least = if duration_known { "" } else { "at least " };
        SweepFamily {
            stamp,
            period_ns: self.period,
            duration_ns,
            duration_range_ns: self.duration,
            duration_known,
            evidence: self.evidence,
            confidence: 1.0,
            alternatives_ns: Vec::new(),
            text: format!(
                "something takes the core behind {} every {} for {least}{}; it shows as {}",
                stamp.name(),
                ms(self.period),
                us(duration_ns),
                shows.join(", ")
            ),
            runs: fits,
        }
    }
}

impl Trial {
    fn of(period: f64, run: &RunView, stage: &Stage, view: &View) -> Trial {
        let scale = SCALE_NS.min(0.012 * period);
        let chain = Chain::build(&view.lates, &view.null, period, scale)
            .filter(|c| (c.period / period - 1.0).abs() < SAME)
            .map(|chain| {
                let proof = judge(stage, &view.null, &view.firsts, &chain, 1);
                (chain, proof)
            });
        if let Some((chain, proof)) = chain {
            let price = chain_price(&chain);
            if proof.evidence > price {
                let by_duration = proof.by_duration.iter().map(|e| e - price).collect();
                return Trial { chain: Some((chain, proof)), by_duration };
            }
            // The evidence is too little to count in favour, and too much to count against the period.
            if proof.evidence > WEAK {
                return Trial { chain: None, by_duration: vec![0.0] };
            }
        }
        // The period does not show: which durations does this count against?
        let bins = ((0.95 * period).min(super::proof::DURATION_MAX_NS) / STEP_NS) as usize + 2;
        let mut by_duration = vec![0.0; bins];
        // The longer the duration, the more packets are hit; computed in steps of 16 bins.
        for from in (0..bins).step_by(16) {
            let (hits, _) = must_hit(period, from as f64 * STEP_NS, run, stage);
            let against = (MISSED * hits as f64).min(AGAINST_MAX);
            by_duration[from..bins.min(from + 16)].fill(-against);
        }
        Trial { chain: None, by_duration }
    }
}

/// The minimum number of windows that must make a packet late enough to be noticed, whatever the phase, and
/// the number of all windows.
fn must_hit(period: f64, duration: f64, run: &RunView, stage: &Stage) -> (u64, u64) {
    let windows = ((stage.span() / period) as u64).min(2000);
    let seen = duration - f64::from(stage.threshold);
    // A relative schedule begins anew with each hit, and may never meet a window again.
    if seen <= 0.0 || run.schedule == Schedule::Relative {
        return (0, windows);
    }
    let sending = run.sending_ns as f64;
    let hits = |phase: u64| {
        let start = phase as f64 / PHASES as f64 * sending;
        // The time from a window's start to the next packet that is due.
        let until = |k: u64| (-(start + k as f64 * period)).rem_euclid(sending);
        (0..windows).filter(|&k| until(k) < seen).count() as u64
    };
    ((0..PHASES).map(hits).min().unwrap_or(0), windows)
}
