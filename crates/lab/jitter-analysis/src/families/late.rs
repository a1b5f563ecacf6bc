// SPDX-License-Identifier: Apache-2.0
//! Late packets, grouped if one cause delayed several, and their distribution if nothing were periodic.

use super::stage::Stage;

/// Number of packets to either side of a late one that tell how frequent outliers are around it.
const NEAR: u32 = 64;
/// Neighbouring late packets whose delays end within this share of a sending interval and this time in ns of
/// each other have the same cause.
const MERGE: (f64, f64) = (0.25, 15_000.0);

/// One or more packets that one cause delayed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Late {
    /// Index of the first of them in the stage.
    pub(super) i: u32,
    /// When the first packet's event happened, which is when the delay ended, ns.
    pub(super) end: i64,
    /// Delay of the first packet, which is the longest, ns.
    pub(super) delay: i32,
    /// ln of how much more frequent outliers are here than on average; at least 0.
    pub(super) crowd: f32,
}

/// All late packets of a stage that are not masked, in the order of time.
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
    // The exponent and three bits of the mantissa.
    let bits = f64::from(delay.max(1)).to_bits() >> 49;
    (bits - (1023 << 3)) as usize
}

/// The distribution of delays if nothing is periodic: that of all delays, whatever their cause.
#[derive(Debug, Clone)]
pub(super) struct Null {
    /// ln of the density per packet and ns.
    density: Vec<f64>,
    /// ln of how many late packets per ns of time have a delay within a factor of about 1.5.
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

    /// ln of the density, per ns, of a packet with such a delay at a given time. It is the larger of two: the
    /// rate at which such packets occur by chance at all, and, because packets are due at regular times, the
    /// density of this delay.
    pub(super) fn ln_chance(&self, delay: i32) -> f64 {
        self.rate[bin(delay)].max(self.density[bin(delay)])
    }
}
