// SPDX-License-Identifier: Apache-2.0
//! Finds the numbers by which a period may have to be divided.
//!
//! If hits were only seen at every n-th window, other late packets lie at multiples of an n-th of the period
//! from them. These distances stand out among the late packets between two windows.

use super::chain::Chain;
use super::late::Late;

/// Maximum number of bins between two windows.
const BINS_MAX: usize = 1 << 20;
/// Minimum number of late packets at one distance for it to stand out.
const COUNT_MIN: u32 = 4;
/// Number of distances to examine.
const PEAKS: usize = 64;
/// A number must explain these distances by this many nats more than any number would by chance.
const NATS_MIN: f64 = 8.0;
/// How many of the best numbers to try.
const CUTS: usize = 4;
/// A part of the period is at least this many bins long; otherwise every distance would fit.
const PART_MIN: f64 = 8.0;

/// Numbers above `beyond`, up to `most`, to divide the chain's period by.
pub(super) fn cuts(chain: &Chain, lates: &[Late], beyond: i64, most: i64) -> Vec<i64> {
    let period = chain.period;
    let bin = (4.0 * chain.scale).max(period / BINS_MAX as f64);
    let bins = (period / bin) as usize + 1;
    let (mut counts, mut sums, mut total) = (vec![0_u32; bins], vec![0.0_f64; bins], 0.0);
    for s in &chain.stretches {
        let (first, last) = (s.end[0], s.end[s.end.len() - 1]);
        let from = lates.partition_point(|l| (l.end as f64) < first - period / 2.0);
        let mut near = 0;
        for late in lates[from..].iter().take_while(|l| (l.end as f64) < last + period / 2.0) {
            let end = late.end as f64;
            while near + 1 < s.k.len() && s.end[near + 1] <= end {
                near += 1;
            }
            let after = (end - s.end[near]).rem_euclid(period);
            let at = ((after / bin) as usize).min(bins - 1);
            counts[at] += 1;
            sums[at] += after;
            total += 1.0;
        }
    }
    let usual = total / bins as f64;
    let stands_out = |&b: &usize| {
        let after = (b as f64 + 0.5) * bin;
        // Not the hits themselves.
        counts[b] >= COUNT_MIN
            && f64::from(counts[b]) > 2.0 * usual + 4.0 * usual.sqrt()
            && after > 2.0 * bin
            && after < period - 2.0 * bin
    };
    let mut peaks: Vec<usize> = (0..bins).filter(stands_out).collect();
    peaks.sort_unstable_by_key(|&b| std::cmp::Reverse(counts[b]));
    peaks.truncate(PEAKS);
    let distances: Vec<(f64, f64)> =
        peaks.iter().map(|&b| (sums[b] / f64::from(counts[b]), f64::from(counts[b]))).collect();
    let all: f64 = distances.iter().map(|d| d.1).sum();
    let mut found: Vec<(f64, i64)> = Vec::new();
    for cut in beyond + 1..=most.min((period / (PART_MIN * bin)) as i64) {
        let part = period / cut as f64;
        let on_it = |after: f64| (after - (after / part).round() * part).abs() < bin;
        let here: f64 = distances.iter().filter(|d| on_it(d.0)).map(|d| d.1).sum();
        let by_chance = all * 2.0 * bin / part;
        let nats = if here > by_chance { here * (here / by_chance).ln() - (here - by_chance) } else { 0.0 };
        if nats > NATS_MIN {
            found.push((nats, cut));
        }
    }
    found.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
    found.into_iter().take(CUTS).map(|f| f.1).collect()
}
