// SPDX-License-Identifier: Apache-2.0
//! How the amplitudes of a family follow each other (jitter report §3).

use crate::sample::Schedule;
use crate::synth::Disturbance;
use serde::{Deserialize, Serialize};

/// Amplitudes are constant if the middle 80% of them spread over no more than this share of the upper end.
pub const CONSTANT: f64 = 0.25;
/// They also count as constant if they spread over no more than this many scales of the noise.
const CONSTANT_SCALES: f64 = 2.0;
/// Number of windows examined to tell which shape to expect.
const WINDOWS_MAX: u64 = 1_000_000;

/// How amplitudes follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Shape {
    /// Constant: the line of `ts1-offset`.
    Offset,
    /// Falling (or rising) from hit to hit, over and over: the arrows of `ts2-arrow`.
    Arrow,
}

impl Shape {
    /// `offset` or `arrow`.
    pub fn name(self) -> &'static str {
        match self {
            Shape::Offset => "offset",
            Shape::Arrow => "arrow",
        }
    }

    /// The shape of the delays of the first packet in each window, sorted, ns; None without delays.
    pub fn of(sorted: &[f64]) -> Option<Shape> {
        (!sorted.is_empty()).then(|| shape_of(sorted, 0.0))
    }
}

/// The shape of sorted amplitudes (delays of the first packet in each window).
pub(super) fn shape_of(sorted: &[f64], scale: f64) -> Shape {
    let at = |q: f64| sorted.get(((sorted.len().max(1) - 1) as f64 * q).round() as usize).copied().unwrap_or(0.0);
    let (low, high) = (at(0.1), at(0.9));
    if high - low <= (CONSTANT * high).max(CONSTANT_SCALES * scale) { Shape::Offset } else { Shape::Arrow }
}

/// The shape that a disturbance gives a run of this many packets according to theory alone; None if it hits
/// none.
pub fn expected_shape(disturbance: &Disturbance, schedule: Schedule, sending_ns: f64, packets: u64) -> Option<Shape> {
    let Disturbance { period_ns, duration_ns, phase_ns, .. } = *disturbance;
    let mut firsts = Vec::new();
    match schedule {
        Schedule::Absolute => {
            for k in 0..WINDOWS_MAX {
                let from = phase_ns + k as f64 * period_ns;
                let due = (from / sending_ns).ceil();
                if due >= packets as f64 {
                    break;
                }
                let amplitude = from + duration_ns - due * sending_ns;
                if amplitude > 0.0 {
                    firsts.push(amplitude);
                }
            }
        }
        Schedule::Relative => {
            let mut due = 0.0;
            for _ in 0..packets {
                let within = (due - phase_ns).rem_euclid(period_ns);
                if due >= phase_ns && within < duration_ns {
                    firsts.push(duration_ns - within);
                    due += duration_ns - within;
                }
                due += sending_ns;
            }
        }
    }
    firsts.sort_unstable_by(f64::total_cmp);
    Shape::of(&firsts)
}
