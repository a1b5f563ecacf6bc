// SPDX-License-Identifier: Apache-2.0
//! Late packets, put together where one thing delayed several, and how they would be spread if nothing were periodic.

use super::stage::Stage;

/// Packets to either side that tell how frequent outliers are around one.
const NEAR: u32 = 64;
/// Late packets that were released within this share of a period, and this time in ns, were delayed by the same thing.
const MERGE: (f64, f64) = (0.25, 15_000.0);

/// One or more packets that something delayed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Late {
    /// The first of them, in the stage.
    pub(super) i: u32,
    /// When it happened: the end of what delayed them, ns.
    pub(super) end: i64,
    /// Delay of the first, which is the longest, ns.
    pub(super) delay: i32,
    /// ln of how much more frequent outliers are here than on average; at least 0.
    pub(super) crowd: f32,
}

/// All late packets of a stage that are not masked, by time.
pub(super) fn late_packets(stage: &Stage) -> Vec<Late> {
    let merge = (MERGE.0 * stage.period).min(MERGE.1) as i64;
    let mut all: Vec<Late> = Vec::new();
    let (mut last, mut last_end) = (usize::MAX - 1, 0);
    for (i, &delay) in stage.delay.iter().enumerate() {
        if delay <= stage.threshold {
            continue;
        }
        let end = stage.due[i] + i64::from(delay);
        let same = i == last + 1 && end - last_end < merge;
        (last, last_end) = (i, end);
        if !same && !stage.masked.has(i) {
            all.push(Late { i: i as u32, end, delay, crowd: 0.0 });
        }
    }
    let usual = (all.len() as f64 / stage.len().max(1) as f64).max(1e-9);
    let (mut from, mut to) = (0, 0);
    for n in 0..all.len() {
        while all[n].i - all[from].i > NEAR {
            from += 1;
        }
        while to < all.len() && all[to].i <= all[n].i + NEAR {
            to += 1;
        }
        let here = (to - from - 1) as f64 / f64::from(2 * NEAR);
        all[n].crowd = (here / usual).max(1.0).ln() as f32;
    }
    all.sort_unstable_by_key(|l| l.end);
    all
}

/// Bins per octave of a delay.
const PER_OCTAVE: usize = 8;
/// Bins of the density.
const BINS: usize = PER_OCTAVE * 32;

fn bin(delay: i32) -> usize {
    // Exponent and three bits of the mantissa.
    let bits = f64::from(delay.max(1)).to_bits() >> 49;
    (bits - (1023 << 3)) as usize
}

/// How delays are spread if nothing is periodic: as all are, whatever their cause.
#[derive(Debug, Clone)]
pub(super) struct Null {
    /// ln of the density per packet and ns.
    density: Vec<f64>,
    /// ln of how many per ns of time have a delay within some 1.5 times.
    rate: Vec<f64>,
}

impl Null {
    pub(super) fn of(stage: &Stage, lates: &[Late]) -> Self {
        let mut counts = vec![0_u32; BINS];
        lates.iter().for_each(|l| counts[bin(l.delay)] += 1);
        let packets = stage.len().max(1) as f64;
        let around = |b: usize, reach: usize| {
            let (from, to) = (b.saturating_sub(reach), (b + reach + 1).min(BINS));
            (f64::from(counts[from..to].iter().sum::<u32>()), (to - from) as f64)
        };
        let density = (0..BINS)
            .map(|b| {
                let (n, bins) = around(b, 1);
                let width = 2_f64.powi((b / PER_OCTAVE) as i32) / PER_OCTAVE as f64;
                ((n / bins + 0.3) / (packets * width)).ln()
            })
            .collect();
        let rate = (0..BINS).map(|b| ((around(b, 4).0 + 0.5) / stage.span()).ln()).collect();
        Null { density, rate }
    }

    /// ln of the probability per ns that a packet has this delay.
    pub(super) fn ln_density(&self, delay: i32) -> f64 {
        self.density[bin(delay)]
    }

    /// ln of the density, per ns, of such a packet at some time: by chance at all, or, as packets are due at
    /// regular times, of this delay.
    pub(super) fn ln_chance(&self, delay: i32) -> f64 {
        self.rate[bin(delay)].max(self.density[bin(delay)])
    }
}
