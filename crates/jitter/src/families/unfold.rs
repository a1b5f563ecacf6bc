// SPDX-License-Identifier: Apache-2.0
//! By which numbers a period may have to be divided.
//!
//! If hits were only seen at each so-many-th window, other late packets lie at whole parts of the period from them. Those
//! distances stand out among the late packets between two windows.

use super::chain::Chain;
use super::late::Late;

/// Bins between two windows, at most.
const BINS_MAX: usize = 1 << 20;
/// Late packets at one distance that make it stand out, at least.
const COUNT_MIN: u32 = 4;
/// Distances to look at.
const PEAKS: usize = 6;
/// A distance may be up to so many faster periods.
const PARTS_MAX: i64 = 6;

/// Numbers above `beyond` to divide the chain's period by.
pub(super) fn cuts(chain: &Chain, lates: &[Late], beyond: i64) -> Vec<i64> {
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
    let mut found = Vec::new();
    for &b in peaks.iter().take(PEAKS) {
        let after = sums[b] / f64::from(counts[b]);
        for distance in [after, period - after] {
            for parts in 1..=PARTS_MAX {
                let cut = (parts as f64 * period / distance).round() as i64;
                let off = distance - parts as f64 * period / cut as f64;
                if cut > beyond && off.abs() < bin && !found.contains(&cut) {
                    found.push(cut);
                }
            }
        }
    }
    found
}
