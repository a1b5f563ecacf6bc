// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::families::{Families, FamilyOptions, find_families};
use crate::sample::{Sample, Schedule};
use crate::synth::{Disturbance, Noise, Scenario, Synthetic, synthesize};
use proptest::prelude::*;

const PACKETS: u64 = 60_000;
const PERIOD: u64 = 1_000_000;

fn scenario(disturbances: Vec<Disturbance>, noise: Noise, seed: u64) -> Scenario {
    let clock = Some((12_345, 0.0));
    Scenario { period_ns: PERIOD, schedule: Schedule::Absolute, packets: PACKETS, disturbances, noise, clock, seed }
}

/// The run, with B's clock further ahead by `ahead(t)` at each time `t` since the first packet.
fn moved(run: &Synthetic, ahead: impl Fn(f64) -> f64) -> Samples {
    let start = run.info.due_ns(0).unwrap();
    let mut samples = Samples::new();
    for row in 0..run.samples.len() {
        let mut sample = run.samples.get(row).unwrap();
        for at in [1, 2] {
            if sample.ts[at] != MISSING {
                sample.ts[at] += ahead((sample.ts[at] - 12_345 - start) as f64) as i64;
            }
        }
        samples.push(&Sample::new(sample.id, sample.ts), PERIOD);
    }
    samples
}

/// How far B's clock is ahead, by kind: a step in the middle, a steady drift, slews as by timesyncd and by
/// chrony, or several of these.
fn ahead(kind: usize) -> Box<dyn Fn(f64) -> f64> {
    let step = |by: f64, at: f64| move |t: f64| if t >= at { by } else { 0.0 };
    let slew = |by: f64, ppm: f64, at: f64| move |t: f64| ((t - at).max(0.0) * ppm * 1e-6).min(by.abs()) * by.signum();
    let s = 1e9;
    match kind {
        0 => Box::new(step(50_000.0, 23.4567 * s)),
        1 => Box::new(step(-400_000.0, 31.9999 * s)),
        2 => Box::new(step(7e6, 40.123 * s)),
        3 => Box::new(|t| t * 200e-6),
        4 => Box::new(|t| -t * 35e-6),
        5 => Box::new(slew(7e6, 500.0, 12.3456 * s)),
        6 => Box::new(slew(-7e6, 80_000.0, 44.4 * s)),
        _ => {
            let (a, b, c) = (step(900_000.0, 9.0005 * s), step(-2e6, 9.7 * s), slew(3e6, 500.0, 30.0 * s));
            Box::new(move |t| a(t) + b(t) + c(t) + t * 20e-6)
        }
    }
}

/// A step, a drift, a slew, and several movements; each of three stamps is disturbed.
const FEW: [usize; 4] = [1, 3, 5, 7];
const OTHERS: [usize; 4] = [0, 2, 4, 6];

fn families(run: &Synthetic, samples: &Samples) -> Families {
    find_families(&run.info, samples, &FamilyOptions::default())
}

fn no_families(kinds: [usize; 4]) {
    for (kind, noise) in kinds.into_iter().flat_map(|kind| [(kind, Noise::quiet()), (kind, Noise::busy())]) {
        let run = synthesize(&scenario(Vec::new(), noise, kind as u64));
        let found = families(&run, &moved(&run, ahead(kind)));
        let texts: Vec<&str> = found.families.iter().map(|family| family.text.as_str()).collect();
        assert!(texts.is_empty(), "kind {kind}, {noise:?}: {texts:#?}");
    }
}

#[test]
fn moving_clocks_make_no_families() {
    no_families(FEW);
}

#[test]
fn more_moving_clocks_make_no_families() {
    no_families(OTHERS);
}

fn nothing_hidden(kinds: [usize; 4]) {
    for kind in kinds {
        let stamps = [(Stamp::Ts2, 10.0071e6), (Stamp::Ts4, 33.3413e6), (Stamp::Ts1, 4.7113e6)];
        let (stamp, period) = stamps[kind % 3];
        let planted = Disturbance { phase_ns: 1_234_567.0, ..Disturbance::new(stamp, period, 300_000.0) };
        let run = synthesize(&scenario(vec![planted], Noise::busy(), kind as u64));
        let found = families(&run, &moved(&run, ahead(kind)));
        let right = |family: &crate::families::Family| {
            family.stamp == stamp
                && (family.period_ns / period - 1.0).abs() < 1e-3
                && (family.duration_ns / 300_000.0 - 1.0).abs() < 0.2
        };
        let texts: Vec<&str> = found.families.iter().map(|family| family.text.as_str()).collect();
        assert!(texts.len() == 1 && right(&found.families[0]), "kind {kind}, {stamp:?}: {texts:#?}");
    }
}

#[test]
fn moving_clocks_hide_no_disturbance() {
    nothing_hidden(FEW);
}

#[test]
fn more_moving_clocks_hide_no_disturbance() {
    nothing_hidden(OTHERS);
}

#[test]
fn movements_are_reported_with_place_and_size() {
    let run = synthesize(&scenario(Vec::new(), Noise::busy(), 5));
    let of = |kind: usize| {
        let samples = moved(&run, ahead(kind));
        Aligned::of(&run.info, &samples).moves.expect("two clocks")
    };
    let near = |found: f64, wanted: f64, by: f64| (found - wanted).abs() <= by;
    for (kind, row, by) in [(0, 23_456, 50_000.0), (1, 31_999, -400_000.0), (2, 40_123, 7e6)] {
        let found = of(kind);
        let [only] = found.moves[..] else { panic!("kind {kind}: {found:?}") };
        // The packets next to the step may have been late.
        assert!(
            only.row <= row + 1 && only.until_row >= row && only.until_row - only.row < 60,
            "kind {kind}: {only:?}"
        );
        assert!(near(only.by_ns as f64, by, 5_000.0), "kind {kind}: {only:?}");
    }
    for (kind, ppm) in [(3, 200.0), (4, -35.0)] {
        let found = of(kind);
        assert!(found.moves.is_empty() && near(found.drift_ppm, ppm, 1.0), "kind {kind}: {found:?}");
    }
    for (kind, from, by) in [(5, 12_345, 7e6), (6, 44_400, -7e6)] {
        let found = of(kind);
        let sum: i64 = found.moves.iter().map(|one| one.by_ns).sum();
        let begins = found.moves.first().expect("one at least").row;
        assert!(near(sum as f64, by, 30_000.0) && begins.abs_diff(from) < 1100, "kind {kind}: {found:?}");
    }
    assert!(of(7).moves_total >= 3);
}

#[test]
fn stalls_and_one_clock_are_no_movements() {
    let stalls = Noise { stalls_per_s: 2.0, ..Noise::busy() };
    let run = synthesize(&scenario(Vec::new(), stalls, 3));
    let moves = Aligned::of(&run.info, &run.samples).moves.expect("two clocks");
    assert!(moves.moves.is_empty() && moves.drift_ppm.abs() < 1.0, "{moves:?}");
    let one = synthesize(&Scenario { clock: None, ..scenario(Vec::new(), stalls, 3) });
    assert_eq!(Aligned::of(&one.info, &one.samples).moves, None);
}

#[test]
fn another_pongs_clock_is_another_one() {
    let run = synthesize(&scenario(Vec::new(), Noise::quiet(), 8));
    let mut samples = Samples::new();
    for row in 0..run.samples.len() {
        samples.restart(if row < 20_000 { 7 } else { 8 });
        let mut sample = run.samples.get(row).unwrap();
        for at in [1, 2] {
            if sample.ts[at] != MISSING && row >= 20_000 {
                sample.ts[at] += 3_600_000_000_000;
            }
        }
        samples.push(&Sample::new(sample.id, sample.ts), PERIOD);
    }
    let aligned = Aligned::of(&run.info, &samples);
    let way = |row: usize| aligned.stamps(Stamp::Ts2)[row] - aligned.stamps(Stamp::Ts1)[row];
    for row in (0..samples.len()).filter(|&row| samples.stamps(Stamp::Ts2)[row] != MISSING) {
        assert!((-100_000..2_000_000).contains(&way(row)), "row {row}: {}", way(row));
    }
}

proptest! {
    #[test]
    fn any_stamps_are_aligned_without_a_panic(
        rows in prop::collection::vec(prop::array::uniform4(prop_oneof![Just(MISSING), any::<i64>(), 0..1_000_000_i64]), 0..200)
    ) {
        let mut samples = Samples::new();
        for (id, ts) in (0_u64..).zip(&rows) {
            samples.push(&Sample::new(id, *ts), 1000);
        }
        let info = RunInfo { period_ns: 1000, ..RunInfo::default() };
        let aligned = Aligned::of(&info, &samples);
        for stamp in Stamp::ALL {
            let pairs = aligned.stamps(stamp).iter().zip(samples.stamps(stamp));
            prop_assert!(pairs.clone().count() == rows.len() && pairs.clone().all(|(a, b)| (*b == MISSING) <= (*a == MISSING)));
        }
    }
}
