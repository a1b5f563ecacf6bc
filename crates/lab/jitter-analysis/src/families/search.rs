// SPDX-License-Identifier: Apache-2.0
//! Finds the disturbances of one stamp one after the other: the clearest is found first, and what it explains
//! is then removed.

use super::FamilyOptions;
use super::chain::Chain;
use super::lag;
use super::late::{Late, Null, late_packets};
use super::proof::{DURATION_MAX_NS, FIT, Firsts, Proof, STEP_NS, judge, windows};
use super::stage::Stage;
use super::unfold;

/// Ranges of delays that are searched one by one, in ns, so that disturbances with a short duration do not
/// drown in longer delays, and constant amplitudes stand out. The lower end is never below the outlier
/// threshold.
const BANDS: [(f64, f64); 9] = [
    (0.0, 6e4),
    (0.0, 1.5e5),
    (0.0, 4e5),
    (0.0, 1e6),
    (0.0, DURATION_MAX_NS),
    (6e4, 1.5e5),
    (1.5e5, 4e5),
    (4e5, 1e6),
    (1e6, DURATION_MAX_NS),
];
/// Number of candidate periods to try per band.
const CANDIDATES: usize = 8;
/// How many of these are built and judged in full.
const BUILDS: usize = 2;
/// No hit is worth more nats than this.
const WORTH: f64 = 10.0;
/// A period that lacks more nats than this is not unfolded.
const UNFOLD_DEBT: f64 = 30.0;
/// A sketch must be better than chance by this much, nats; the price of being one of many candidates is
/// several times as high.
const SKETCH_MIN: f64 = 12.0;
/// How many of the best are examined as if only every n-th of their windows had been seen.
const UNFOLDS: usize = 2;
/// Number of late packets by which candidates are judged. In a run with more, the best candidates are then
/// judged by all late packets.
const PART: usize = 10_000;
/// How many candidates are then judged by all late packets, and the share of the best one's evidence that
/// they must reach.
const FROM_PART: usize = 2;
const CLOSE: f64 = 0.5;
/// Periods up to this many times faster or slower than the one found are tried.
pub(super) const FACTOR_MAX: i64 = 48;
/// Share of the hits that must be at every n-th window for a period that is `n` times slower.
const SLOWER_SHARE: f64 = 0.9;
/// A period counts as equally good if it is worse by less than this, nats.
pub(super) const AS_GOOD: f64 = 3.0;
/// A faster period must be better by this many nats.
const BETTER: f64 = 5.0;

/// Periods may be the same if they differ by less than this share, apart from a whole factor.
const SAME_PERIOD: f64 = 2e-4;
/// Durations may be the same if they differ by less than this factor.
const SAME_DURATION: f64 = 1.3;

/// Up to this many late packets, all faster periods are followed on their own.
const TRY_ALL: usize = 400;

/// A disturbance as found.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) chain: Chain,
    /// The disturbance's period is the chain's period divided by this.
    pub(super) cut: i64,
    pub(super) proof: Proof,
    /// Nats in favour, minus what the search would find by chance.
    pub(super) evidence: f64,
    /// Other periods that explain the packets equally well: divisor and proof of each.
    pub(super) faster: Vec<(i64, Proof)>,
}

impl Found {
    fn new(stage: &Stage, options: &FamilyOptions, chain: Chain, cut: i64, proof: Proof) -> Found {
        let evidence = proof.evidence - price(stage, &chain, options) - (cut as f64).ln();
        Found { chain, cut, proof, evidence, faster: Vec::new() }
    }

    /// The disturbance's period, ns.
    pub(super) fn period(&self) -> f64 {
        self.chain.period / self.cut as f64
    }
}

/// What is known about a stage until the next disturbance is removed.
pub(super) struct View {
    pub(super) lates: Vec<Late>,
    pub(super) null: Null,
    pub(super) firsts: Firsts,
}

impl View {
    pub(super) fn of(stage: &Stage) -> View {
        let mut lates = late_packets(stage);
        let null = Null::of(stage, &lates);
        let firsts = Firsts::of(stage, &lates);
        lates.retain(|l| f64::from(l.delay) <= DURATION_MAX_NS);
        View { lates, null, firsts }
    }
}

/// The price in nats of a period found by searching.
pub(super) fn search_price(stage: &Stage, scale: f64, options: &FamilyOptions) -> f64 {
    let periods = stage.span() / scale * (options.period_max_ns / options.period_min_ns).ln();
    periods.ln().max(0.0)
}

/// The price in nats of a chain with a given period: for the phase of each stretch, and for the duration.
pub(super) fn chain_price(chain: &Chain) -> f64 {
    let phase = (chain.period / chain.scale).ln() + 3.0;
    chain.stretches.len() as f64 * phase + (DURATION_MAX_NS / STEP_NS).ln()
}

/// The price in nats of a chain found by searching.
fn price(stage: &Stage, chain: &Chain, options: &FamilyOptions) -> f64 {
    search_price(stage, chain.scale, options) + chain_price(chain)
}

/// Finds the clearest disturbance.
fn clearest(stage: &Stage, view: &View, options: &FamilyOptions) -> Option<Found> {
    let part = &view.lates[..view.lates.len().min(PART)];
    let mut found = best(stage, view, part, options);
    if part.len() == view.lates.len() {
        return found.into_iter().max_by(|a, b| a.evidence.total_cmp(&b.evidence));
    }
    found.sort_unstable_by(|a, b| b.evidence.total_cmp(&a.evidence));
    found.truncate(FROM_PART);
    // A candidate that is far behind in a part of the packets will not be ahead in all of them.
    let best = found.first().map_or(0.0, |found| found.evidence);
    found.retain(|found| best <= 0.0 || found.evidence >= CLOSE * best);
    let whole = found.into_iter().filter_map(|found| {
        let chain = Chain::build(&view.lates, &view.null, found.chain.period, found.chain.scale)?;
        let proof = judge(stage, &view.null, &view.firsts, &chain, found.cut);
        Some(Found { faster: found.faster, ..Found::new(stage, options, chain, found.cut, proof) })
    });
    whole.max_by(|a, b| a.evidence.total_cmp(&b.evidence))
}

/// Finds the clearest disturbances: candidates come from all late packets, but are judged by a part of them.
fn best(stage: &Stage, view: &View, part: &[Late], options: &FamilyOptions) -> Vec<Found> {
    let range = (options.period_min_ns, options.period_max_ns.min(stage.span() / 3.0));
    let mut sketches: Vec<Chain> = Vec::new();
    let mut counts: Vec<(f64, usize)> = Vec::new();
    for band in BANDS {
        let low = band.0.max(f64::from(stage.threshold));
        if band.1 <= low {
            continue;
        }
        let inside = |l: &&Late| (low..=band.1).contains(&f64::from(l.delay));
        let lates: Vec<Late> = view.lates.iter().filter(inside).copied().collect();
        // Nearly the same packets as in an earlier band.
        let like = |&(from, n): &(f64, usize)| from == low && n as f64 > 0.9 * lates.len() as f64;
        if counts.iter().any(like) {
            continue;
        }
        counts.push((low, lates.len()));
        let look = &lates[..lates.len().min(PART)];
        let candidates = lag::candidates(&lates, stage.period, range, CANDIDATES);
        let mut of_band: Vec<Chain> =
            candidates.iter().filter_map(|c| Chain::sketch(look, &view.null, c.period, c.slack)).collect();
        of_band.sort_unstable_by(|a, b| b.score.total_cmp(&a.score));
        of_band.truncate(BUILDS);
        of_band.retain(|c| c.score > SKETCH_MIN);
        sketches.extend(of_band);
    }
    sketches.sort_unstable_by(|a, b| b.score.total_cmp(&a.score));
    let mut built: Vec<Found> = Vec::new();
    let mut tried: Vec<f64> = Vec::new();
    for sketch in sketches {
        if tried.iter().any(|t| (sketch.period / t - 1.0).abs() < 1e-4) {
            continue;
        }
        tried.push(sketch.period);
        let Some(chain) = Chain::build(part, &view.null, sketch.period, sketch.scale) else { continue };
        if price(stage, &chain, options) > WORTH * chain.hits() as f64 {
            continue;
        }
        let (chain, proof) = slower(stage, view, chain);
        built.push(Found::new(stage, options, chain, 1, proof));
    }
    // Keeps the periods that explain most as they are, and those that may explain more when unfolded.
    built.sort_unstable_by(|a, b| b.evidence.total_cmp(&a.evidence));
    let rest = built.split_off(built.len().min(UNFOLDS));
    let most = rest.into_iter().max_by(|a, b| a.proof.evidence.total_cmp(&b.proof.evidence));
    let promising = |b: &Found| b.evidence > -UNFOLD_DEBT;
    let unfold = |b: Found| if promising(&b) { faster(stage, view, part, b, options) } else { b };
    built.into_iter().chain(most).map(unfold).collect()
}

/// The slowest period that explains the packets equally well.
fn slower(stage: &Stage, view: &View, chain: Chain) -> (Chain, Proof) {
    let proof = judge(stage, &view.null, &view.firsts, &chain, 1);
    for times in (2..=FACTOR_MAX).rev() {
        let Some(mut slow) = chain.slower(times, SLOWER_SHARE) else { continue };
        if slow.refine().is_none() {
            continue;
        }
        let other = judge(stage, &view.null, &view.firsts, &slow, 1);
        if other.evidence > proof.evidence - AS_GOOD {
            return slower(stage, view, slow);
        }
    }
    (chain, proof)
}

/// Checks whether a faster period explains more, and which faster periods explain as much.
fn faster(stage: &Stage, view: &View, part: &[Late], mut found: Found, options: &FamilyOptions) -> Found {
    for _ in 0..4 {
        let mut better: Option<Found> = None;
        let mut as_good = Vec::new();
        let mut cuts: Vec<i64> = (2..=FACTOR_MAX).collect();
        let most = (found.chain.period / options.period_min_ns) as i64;
        cuts.extend(unfold::cuts(&found.chain, part, FACTOR_MAX, most));
        for cut in cuts {
            let period = found.chain.period / cut as f64;
            if period < options.period_min_ns {
                continue;
            }
            let proof = judge(stage, &view.null, &view.firsts, &found.chain, cut);
            let gain = proof.evidence - found.proof.evidence;
            if gain > -AS_GOOD {
                as_good.push((cut, proof.clone()));
            }
            let mut offer = |other: Found| {
                if other.evidence > better.as_ref().unwrap_or(&found).evidence + BETTER {
                    better = Some(other);
                }
            };
            if gain > BETTER {
                offer(Found::new(stage, options, found.chain.clone(), cut, proof));
            } else if part.len() > TRY_ALL {
                continue;
            }
            // A faster period may explain packets where the slower one was lost.
            if let Some(chain) = Chain::build(part, &view.null, period, found.chain.scale) {
                let proof = judge(stage, &view.null, &view.firsts, &chain, 1);
                offer(Found::new(stage, options, chain, 1, proof));
            }
        }
        found.faster = as_good;
        match better {
            None => break,
            Some(next) if next.cut == 1 => {
                let (chain, proof) = slower(stage, view, next.chain);
                found = Found::new(stage, options, chain, 1, proof);
            }
            Some(next) => {
                found = next;
                break;
            }
        }
    }
    found
}

/// The effects of a disturbance.
#[derive(Debug, Clone, Default)]
pub(super) struct Doing {
    /// Rows of the packets that it delayed.
    pub(super) rows: Vec<u32>,
    /// Number of windows that met a packet.
    pub(super) met: u64,
    /// For each window that delayed a packet: how long before the window's end the first such packet was due,
    /// ns.
    pub(super) firsts: Vec<f64>,
}

/// Masks the packets that a disturbance explains, and returns its effects.
pub(super) fn take_away(stage: &mut Stage, found: &Found) -> Doing {
    let duration = f64::midpoint(found.proof.duration.0, found.proof.duration.1);
    let slack = 4.0 * found.chain.scale;
    let mut doing = Doing::default();
    let mut ends = Vec::new();
    windows(&found.chain, found.cut, |end| ends.push(end));
    for end in ends {
        let from = stage.due.partition_point(|&d| (d as f64) < end - duration - slack);
        let mut met = None;
        for i in from..stage.len() {
            let r = end - stage.due[i] as f64;
            if r < -slack {
                break;
            }
            let late = stage.delay[i] > stage.threshold && f64::from(stage.delay[i]) < duration + slack;
            if late && !stage.masked.has(i) {
                doing.rows.push(stage.rows[i]);
            }
            if met.is_none() && r > 0.0 && (r < duration || late) {
                met = Some(r);
                let fits = (f64::from(stage.delay[i]) - r).abs() < FIT * found.chain.scale;
                if late && fits && !stage.masked.has(i) {
                    doing.firsts.push(r);
                }
            }
            stage.masked.set(i);
        }
        doing.met += u64::from(met.is_some());
    }
    doing.rows.sort_unstable();
    doing.rows.dedup();
    doing
}

/// True if one is a remainder of the other.
fn same(a: &Found, b: &Found) -> bool {
    let ratio = (a.period() / b.period()).max(b.period() / a.period());
    let whole = (ratio / ratio.round() - 1.0).abs() < SAME_PERIOD && ratio < FACTOR_MAX as f64;
    whole
        && a.proof.duration.0 < SAME_DURATION * b.proof.duration.1
        && b.proof.duration.0 < SAME_DURATION * a.proof.duration.1
}

/// All disturbances of a stage, and the effects of each.
pub(super) fn search(stage: &mut Stage, options: &FamilyOptions) -> Vec<(Found, Doing)> {
    let mut all: Vec<(Found, Doing)> = Vec::new();
    // The remainder of a disturbance that was lost on the way does not count as another disturbance.
    for _ in 0..2 * options.families_max {
        let view = View::of(stage);
        let Some(found) = clearest(stage, &view, options) else { break };
        if found.evidence < options.evidence_min || found.proof.hit < options.hits_min as f64 {
            break;
        }
        let doing = take_away(stage, &found);
        if let Some((_, known)) = all.iter_mut().find(|(f, _)| same(f, &found)) {
            known.rows.extend(doing.rows);
            known.met += doing.met;
            known.firsts.extend(doing.firsts);
        } else if all.len() < options.families_max {
            all.push((found, doing));
        } else {
            break;
        }
    }
    all
}
