// SPDX-License-Identifier: Apache-2.0
use proptest::prelude::*;

use super::*;
use crate::sample::Sample;

const PERIOD_NS: i64 = 1_000_000;

fn info() -> RunInfo {
    RunInfo {
        period_ns: PERIOD_NS as u64,
        same_clock: true,
        cores: [Some(0), Some(1), Some(1), Some(0)],
        ..RunInfo::default()
    }
}

/// A quiet run in which certain stages of certain packets take longer.
fn run(late: &[(u64, Stamp, i64)]) -> Samples {
    let mut samples = Samples::new();
    for id in 0..200u64 {
        let extra = |stamp| late.iter().filter(|l| (l.0, l.1) == (id, stamp)).map(|l| l.2).sum::<i64>();
        let ts1 = id as i64 * PERIOD_NS + 100 + (id % 7) as i64 + extra(Stamp::Ts1);
        let ts2 = ts1 + 5_000 + (id % 11) as i64 + extra(Stamp::Ts2);
        let ts3 = ts2 + 200 + extra(Stamp::Ts3);
        let ts4 = ts3 + 5_000 + (id % 5) as i64 + extra(Stamp::Ts4);
        samples.push(&Sample::new(id, [ts1, ts2, ts3, ts4]), PERIOD_NS as u64);
    }
    samples
}

fn event(kind: CulpritKind, host: Host, cpu: u32, name: u32, start_ns: i64, end_ns: i64) -> Interference {
    Interference { kind, host, cpu, name, start_ns, end_ns }
}

#[test]
fn each_stage_is_attributed_to_its_core() {
    let samples = run(&[
        (50, Stamp::Ts1, 400_000),
        (80, Stamp::Ts2, 300_000),
        (110, Stamp::Ts3, 200_000),
        (140, Stamp::Ts4, 100_000),
        (170, Stamp::Ts2, 90_000),
    ]);
    let at = |row: usize, stamp: Stamp| samples.stamps(stamp)[row];
    let events = [
        event(CulpritKind::Thread, Host::A, 0, 1, 50 * PERIOD_NS - 10_000, at(50, Stamp::Ts1) - 1_000),
        event(CulpritKind::Softirq, Host::B, 1, 2, at(80, Stamp::Ts2) - 290_000, at(80, Stamp::Ts2) - 500),
        event(CulpritKind::Steal, Host::B, 1, 3, at(110, Stamp::Ts3) - 199_000, at(110, Stamp::Ts3)),
        // This one kept the answer from leaving B.
        event(CulpritKind::Interrupt, Host::B, 1, 4, at(140, Stamp::Ts3) + 100, at(140, Stamp::Ts3) + 95_000),
        // On another core, at exactly the time of the last late packet.
        event(CulpritKind::Thread, Host::B, 7, 5, at(170, Stamp::Ts2) - 90_000, at(170, Stamp::Ts2)),
    ];
    let found = attribute(&info(), &samples, &events);
    let blamed: Vec<(u64, Stamp, Culprit)> = found.packets.iter().map(|l| (l.id, l.stamp, l.culprit)).collect();
    let known = |kind, name| Culprit::Known { kind, name };
    assert_eq!(
        blamed,
        [
            (50, Stamp::Ts1, known(CulpritKind::Thread, 1)),
            (80, Stamp::Ts2, known(CulpritKind::Softirq, 2)),
            (110, Stamp::Ts3, known(CulpritKind::Steal, 3)),
            (140, Stamp::Ts4, known(CulpritKind::Interrupt, 4)),
            (170, Stamp::Ts2, Culprit::Unknown),
        ]
    );
    assert_eq!(found.late, 5);
    assert_eq!(found.totals.iter().map(|total| total.packets).sum::<u64>(), 5);
    let unknown = found.totals.iter().find(|total| total.culprit == Culprit::Unknown).expect("one");
    assert_eq!((unknown.packets, unknown.worst_ns), (1, found.packets[4].late_ns()));
}

#[test]
fn where_records_nest_the_innermost_has_the_time_and_half_is_needed() {
    let samples = run(&[(100, Stamp::Ts1, 100_000), (120, Stamp::Ts1, 100_000)]);
    let (start, rest) = (100 * PERIOD_NS, 120 * PERIOD_NS);
    let events = [
        event(CulpritKind::Thread, Host::A, 0, 1, start - 50_000, start + 100_000),
        event(CulpritKind::Interrupt, Host::A, 0, 2, start + 10_000, start + 90_000),
        event(CulpritKind::Softirq, Host::A, 0, 3, start + 20_000, start + 40_000),
        event(CulpritKind::Thread, Host::A, 0, 1, rest, rest + 49_000),
    ];
    let found = attribute(&info(), &samples, &events);
    let shares: Vec<(u32, i64)> = found.packets[0].blame.iter().map(|part| (part.name, part.ns / 1000)).collect();
    assert_eq!(shares[0], (2, 60), "{shares:?}");
    assert!(shares.contains(&(3, 20)) && shares.iter().any(|(name, us)| *name == 1 && (18..=20).contains(us)));
    assert_eq!(found.packets[0].culprit, Culprit::Known { kind: CulpritKind::Interrupt, name: 2 });
    assert_eq!(found.packets[1].culprit, Culprit::Unknown, "49 of 100 us");
}

#[test]
fn few_packets_have_no_normal_and_none_no_culprits() {
    for packets in 0..10 {
        let mut samples = Samples::new();
        for id in 0..packets {
            samples.push(&Sample::new(id, [id as i64 * 10, 1 << 40, MISSING, MISSING]), 10);
        }
        assert_eq!(attribute(&info(), &samples, &[]).late, 0);
    }
}

#[test]
fn only_the_latest_are_kept_and_all_are_counted() {
    let late: Vec<(u64, Stamp, i64)> = (0..60).map(|id| (id * 3, Stamp::Ts2, 50_000 + id as i64 * 1000)).collect();
    let found = attribute(&info(), &run(&late), &[]);
    assert_eq!(found.late, 60);
    assert!(found.packets.windows(2).all(|pair| pair[0].late_ns() >= pair[1].late_ns()));
}

proptest! {
    /// Whatever was recorded, no time is attributed to two culprits, and none that was not lost.
    #[test]
    fn shares_are_of_the_lateness(spans in proptest::collection::vec((0..400_000i64, 1..300_000i64, 0..5u32), 0..60)) {
        let samples = run(&[(100, Stamp::Ts1, 200_000)]);
        let start = 100 * PERIOD_NS - 100_000;
        let events: Vec<Interference> = spans
            .iter()
            .map(|(at, len, name)| event(CulpritKind::Thread, Host::A, 0, *name, start + at, start + at + len))
            .collect();
        let found = attribute(&info(), &samples, &events);
        prop_assert_eq!(found.late, 1);
        let late = &found.packets[0];
        let sum: i64 = late.blame.iter().map(|part| part.ns).sum();
        prop_assert!(sum <= late.late_ns(), "{} of {}", sum, late.late_ns());
        // By brute force: which parts of the lateness were covered by any event?
        let covered = (late.from_ns..late.to_ns).step_by(97)
            .filter(|t| events.iter().any(|e| e.start_ns <= *t && *t < e.end_ns)).count() as i64 * 97;
        prop_assert!((sum - covered).abs() <= 97 * 130, "{} against {}", sum, covered);
    }
}
