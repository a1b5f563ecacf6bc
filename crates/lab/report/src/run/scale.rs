// SPDX-License-Identifier: Apache-2.0
//! The place of a value on an axis, and the values to mark.

use crate::units;

/// Positive values are shown on a logarithmic scale if the ratio of the largest to the smallest is at least
/// this.
const LOG_FROM: f64 = 8.0;
/// The share of the values that lies within the linear part of a bent scale.
const LINEAR_SHARE: f64 = 0.99;
/// Up to this share may be outside instead, if all of them are [`GAP`] times as far away as those inside.
/// Many dots are the extremes of many packets, so extreme dots are not as rare as extreme packets.
const OUTSIDE_MAX: f64 = 0.4;
const GAP: f64 = 4.0;
/// A scale is bent if its ends are this many times as far away as the linear part reaches. Below that it is
/// better straight, so that a falling amplitude looks like one.
const BENT_FROM: f64 = 20.0;

/// How values are mapped to places.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Linear,
    Log,
    /// Linear up to `reach` from `centre`, logarithmic with weight `bend` beyond. Otherwise, a few packets
    /// that are a thousand times as late as the others would flatten the others to a line.
    Bent {
        centre: f64,
        reach: f64,
        bend: f64,
    },
}

/// A scale between two values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Scale {
    pub(crate) kind: Kind,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// The unit of a mark.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Unit {
    /// A packet's number.
    Packet,
    /// ns.
    Time,
    /// ns more or less than the sending interval, which is the value.
    Deviation(f64),
    /// How many.
    Count,
    /// Share or probability.
    Share,
    /// Share per us.
    Density,
}

impl Unit {
    fn words(self, value: f64) -> String {
        match self {
            Unit::Packet | Unit::Count => units::short_count(value),
            Unit::Time => units::time_to(value, 3),
            Unit::Deviation(base) if value == 0.0 => units::time_to(base, 6),
            Unit::Deviation(_) => units::deviation(value),
            Unit::Share | Unit::Density if (1e-4..=1.0).contains(&value) => units::short_count(value),
            Unit::Share | Unit::Density => format!("{value:.0e}"),
        }
    }

    /// For the script.
    pub(crate) fn code(self) -> String {
        match self {
            Unit::Packet => "packet".into(),
            Unit::Time => "time".into(),
            Unit::Deviation(base) => format!("deviation:{base}"),
            Unit::Count => "count".into(),
            Unit::Share => "share".into(),
            Unit::Density => "density".into(),
        }
    }
}

/// A mark of an axis: its value, and its name if it has one.
pub(crate) type Mark = (f64, Option<String>);

impl Scale {
    /// A linear scale with exactly these ends.
    pub(crate) fn linear(low: f64, high: f64) -> Self {
        let least = grain(low).max(grain(high));
        Scale { kind: Kind::Linear, low, high: high.max(low + least) }
    }

    /// A logarithmic scale; `low` must be above 0.
    pub(crate) fn log(low: f64, high: f64) -> Self {
        Scale { kind: Kind::Log, low, high: high.max(low * 1.001) }
    }

    /// A scale for the times of single packets.
    pub(crate) fn times(values: &[f64]) -> Self {
        let (low, high) = ends(values);
        Scale::positive(low, high).unwrap_or_else(|| {
            let mut sorted = values.to_vec();
            sorted.sort_unstable_by(f64::total_cmp);
            Scale::around(sorted.get(sorted.len() / 2).copied().unwrap_or(0.0), values)
        })
    }

    /// A scale for values on both sides of `centre`.
    pub(crate) fn around(centre: f64, values: &[f64]) -> Self {
        let (low, high) = ends(values);
        let mut far: Vec<f64> = values.iter().map(|v| (v - centre).abs()).collect();
        far.sort_unstable_by(|a, b| b.total_cmp(a));
        let at = |n: usize| far.get(n).copied().unwrap_or(0.0).max(1.0);
        // The scale bends at a gap, if some values are far beyond all others; else where few values are left.
        let outside = (far.len() as f64 * OUTSIDE_MAX) as usize;
        let gap = (1..=outside)
            .map(|n| (at(n - 1) / at(n), n))
            .filter(|&(ratio, n)| ratio >= GAP && at(0) / at(n) >= BENT_FROM)
            .max_by(|a, b| a.0.total_cmp(&b.0));
        let inner = (far.len() as f64 * (1.0 - LINEAR_SHARE)).ceil() as usize;
        let reach = gap.map_or(at(inner), |(_, n)| at(n));
        Scale::bending(centre, reach, low, high)
    }

    /// A scale for distributions: (time, share of the values that do not exceed it).
    pub(crate) fn spread(cdfs: &[&[(i64, f64)]]) -> Self {
        let times: Vec<f64> = cdfs.iter().flat_map(|c| c.iter()).map(|p| p.0 as f64).collect();
        let (low, high) = ends(&times);
        Scale::positive(low, high).unwrap_or_else(|| {
            let at = |q: f64| cdfs.iter().filter_map(move |c| c.iter().find(|p| p.1 >= q)).map(|p| p.0 as f64);
            let (mut middle, n) = (0.0, at(0.5).count().max(1) as f64);
            at(0.5).for_each(|v| middle += v / n);
            let reach = at(0.0).chain(at(LINEAR_SHARE)).map(|v| (v - middle).abs()).fold(0.0, f64::max);
            Scale::bending(middle, reach, low, high)
        })
    }

    fn positive(low: f64, high: f64) -> Option<Self> {
        (low > 0.0 && high / low >= LOG_FROM).then(|| Scale::log(low / 1.12, high * 1.12))
    }

    fn bending(centre: f64, reach: f64, low: f64, high: f64) -> Self {
        let end = (high - centre).abs().max((low - centre).abs());
        let least = grain(low).max(grain(high)).max(grain(centre));
        let reach = (reach * 1.1).max(least);
        if end < reach * BENT_FROM {
            let room = ((high - low) * 0.06).max(least);
            return Scale::linear(low - room, high + room);
        }
        // At most half of the height is for values beyond, and no kink makes far values look nearer.
        let bend = (1.0 / (end / reach).ln()).min(1.0);
        // Some room beyond the last value, and more of it where the scale is logarithmic.
        let beyond = |far: f64| if far < reach { far + 0.1 * reach } else { far * 1.3 };
        Scale {
            kind: Kind::Bent { centre, reach, bend },
            low: centre - beyond(centre - low),
            high: centre + beyond(high - centre),
        }
    }

    fn bent(&self, v: f64) -> f64 {
        match self.kind {
            Kind::Linear => v,
            Kind::Log => v.max(self.low).ln(),
            Kind::Bent { centre, reach, bend } => {
                let d = (v - centre) / reach;
                if d.abs() <= 1.0 { d } else { d.signum() * (1.0 + bend * d.abs().ln()) }
            }
        }
    }

    /// 0 at the low end, 1 at the high one.
    pub(crate) fn unit(&self, v: f64) -> f64 {
        let (low, high) = (self.bent(self.low), self.bent(self.high));
        ((self.bent(v) - low) / (high - low)).clamp(0.0, 1.0)
    }

    /// The linear part of a bent scale.
    pub(crate) fn inner(&self) -> Option<(f64, f64)> {
        match self.kind {
            Kind::Bent { centre, reach, .. } => Some((centre - reach, centre + reach)),
            _ => None,
        }
    }

    /// The values to mark; about `many` of them have names.
    pub(crate) fn marks(&self, many: usize, unit: Unit) -> Vec<Mark> {
        let within = |v: &f64| *v >= self.low && *v <= self.high;
        let named = |v: f64| (v, Some(unit.words(v)));
        match self.kind {
            Kind::Linear => steps(self.low, self.high, many, unit).into_iter().map(named).collect(),
            Kind::Log => {
                let decades = (self.high / self.low).log10();
                let each = (decades / many as f64).ceil().max(1.0) as i32;
                // Lines between powers of ten are drawn only where they are not too dense.
                let between = decades < 4.5;
                let mut marks = Vec::new();
                for power in self.low.log10().floor() as i32..=self.high.log10().ceil() as i32 {
                    for step in (1..10).filter(|step| *step == 1 || between) {
                        let v = f64::from(step) * 10f64.powi(power);
                        let name = match step {
                            1 => power.rem_euclid(each) == 0,
                            2 | 5 => decades < many as f64 / 3.0,
                            _ => decades < 0.7,
                        };
                        marks.push(if name { named(v) } else { (v, None) });
                    }
                }
                marks.retain(|m| within(&m.0));
                marks
            }
            Kind::Bent { centre, reach, .. } => {
                let (low, high) = (self.low.max(centre - reach), self.high.min(centre + reach));
                let mut marks: Vec<Mark> = steps(low, high, many, unit).into_iter().map(named).collect();
                // Beyond the linear part: powers of ten away from the centre, or, far away, powers of ten of
                // the value itself.
                for sign in [-1.0, 1.0] {
                    for power in reach.log10().ceil() as i32..=18 {
                        let far = 10f64.powi(power);
                        let v = if far > centre.abs() * 10.0 { sign * far } else { centre + sign * far };
                        if within(&v) && (v - centre).abs() > reach * 1.5 {
                            marks.push(named(v));
                        }
                    }
                }
                marks
            }
        }
    }

    /// For the script, which shows the value under the cursor.
    pub(crate) fn code(&self) -> String {
        let Scale { kind, low, high } = self;
        match kind {
            Kind::Linear => format!("linear {low} {high}"),
            Kind::Log => format!("log {low} {high}"),
            Kind::Bent { centre, reach, bend } => format!("bent {low} {high} {centre} {reach} {bend}"),
        }
    }
}

/// The smallest difference to show between values of this size: a ns, and more than rounding errors.
fn grain(v: f64) -> f64 {
    (v.abs() * 1e-12).max(1.0)
}

fn ends(values: &[f64]) -> (f64, f64) {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if low <= high { (low, high) } else { (0.0, 1.0) }
}

/// About `many` round values between `low` and `high`.
fn steps(low: f64, high: f64, many: usize, unit: Unit) -> Vec<f64> {
    let rough = (high - low) / many.max(1) as f64;
    let decade = 10f64.powf(rough.log10().floor());
    let mut step = [1.0, 2.0, 5.0, 10.0].map(|f| f * decade).into_iter().find(|s| *s >= rough).unwrap_or(rough);
    if matches!(unit, Unit::Packet | Unit::Count) {
        step = step.max(1.0);
    }
    let first = (low / step).ceil();
    let marks = (0..).map(|i| (first + f64::from(i)) * step).take_while(|v| *v <= high);
    // Minus zero is zero.
    marks.map(|v| v + 0.0).take(4 * many + 4).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_few_far_ones_bend_the_scale_and_stay_in_order() {
        let mut values: Vec<f64> = (0..1000).map(|i| f64::from(i % 7) - 3.0).collect();
        assert_eq!(Scale::around(0.0, &values).kind, Kind::Linear);
        values.extend([500.0, 50_000.0]);
        let scale = Scale::around(0.0, &values);
        assert!(matches!(scale.kind, Kind::Bent { .. }), "{scale:?}");
        assert!(scale.unit(3.0) - scale.unit(-3.0) > 0.25, "the many have room");
        let places = [-3.0, 0.0, 3.0, 500.0, 50_000.0].map(|v| scale.unit(v));
        assert!(places.windows(2).all(|w| w[0] + 0.05 < w[1]), "{places:?}");
        let marks = scale.marks(6, Unit::Deviation(1e6));
        assert!(marks.iter().any(|m| m.1.as_deref() == Some("+10 us")), "{marks:?}");
        assert!(marks.iter().any(|m| m.1.as_deref() == Some("1 ms")), "{marks:?}");
    }

    #[test]
    fn many_stalls_do_not_flatten_outliers_and_an_arrow_stays_straight() {
        // Dots of a long run: a third are stalls of 5 to 50 ms, the others outliers of up to 500 us.
        let stalls = (0..300).map(|i| 5e6 + f64::from(i) * 1.5e5);
        let outliers: Vec<f64> = stalls.chain((0..700).map(|i| f64::from(i) * 1400.0 - 5e5)).collect();
        let (_, reach) = Scale::around(0.0, &outliers).inner().unwrap();
        assert!((5e5..6e5).contains(&reach), "{reach}");
        // A falling amplitude above a baseline of 5 us has no gap.
        let arrow: Vec<f64> =
            (0..900).map(|i| f64::from(i % 10) * 1e3 - 5e3).chain((1..40).map(|i| f64::from(i) * 5e3)).collect();
        assert_eq!(Scale::around(0.0, &arrow).kind, Kind::Linear);
    }

    #[test]
    fn positive_times_far_apart_are_logarithmic() {
        let scale = Scale::times(&[5e3, 7e3, 6e6]);
        assert_eq!(scale.kind, Kind::Log);
        let names: Vec<String> = scale.marks(6, Unit::Time).into_iter().filter_map(|m| m.1).collect();
        assert_eq!(names, ["10 us", "100 us", "1 ms"]);
    }

    proptest! {
        #[test]
        fn any_values_have_places_and_marks(values in prop::collection::vec(-1e18..1e18f64, 0..50), n in 1..9usize) {
            for scale in [Scale::times(&values), Scale::around(values.first().copied().unwrap_or(0.0), &values)] {
                prop_assert!(scale.marks(n, Unit::Time).len() < 400);
                for v in &values {
                    prop_assert!((0.0..=1.0).contains(&scale.unit(*v)), "{scale:?} {v}");
                }
            }
        }
    }
}
