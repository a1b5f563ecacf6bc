// SPDX-License-Identifier: Apache-2.0
//! From the bytes of a file to the page: whatever the file contains, nothing panics in the steps that `fide
//! jitter report` takes.

use fide_jitter_analysis::attribute::attribute;
use fide_jitter_analysis::families::{FamilyOptions, find_families};
use fide_jitter_analysis::{
    CulpritKind, Host, Interference, LogWriter, MISSING, RunInfo, RunStats, Sample, Schedule, StatsOptions, read_log,
};
use fide_report::run::{FamilyText, Run, render, to_json};
use proptest::prelude::*;
use std::ops::Range;

/// A log with 3600 packets and 10000 records of what ran.
const REAL: &[u8] = include_bytes!("../../../../examples/jitter/disturbed.fjl");
const HEADER: usize = 16;
const CRC: usize = 4;

/// Runs all steps. Returns whether the bytes were a log.
fn report(bytes: &[u8]) -> bool {
    let Ok(log) = read_log(bytes) else { return false };
    let stats = RunStats::of(&log.info, &log.samples, &StatsOptions::default());
    let families = find_families(&log.info, &log.samples, &FamilyOptions::default());
    let found = attribute(&log.info, &log.samples, &log.events);
    assert!(found.packets.iter().all(|late| late.late_ns() > 0));
    let text = |family: &fide_jitter_analysis::families::Family| FamilyText {
        kind: family.kind.clone(),
        period_ns: family.period_ns,
        period_error: family.period_error_ns / family.period_ns,
        duration_ns: family.duration_ns,
        hits: family.packets,
        sentence: family.text.clone(),
        ..FamilyText::default()
    };
    let mut run = Run::new("any", log.info, stats);
    run.families = Some(families.families.iter().map(text).collect());
    let runs = [run];
    let page = render(&runs);
    assert!(page.ends_with("</html>\n") && !page.contains("NaN"));
    assert_eq!(to_json(&runs)["runs"].as_array().map(Vec::len), Some(1));
    true
}

/// Writes the checksum of a range behind it.
fn check(bytes: &mut [u8], of: Range<usize>) {
    let crc = crc32c::crc32c(&bytes[of.clone()]).to_le_bytes();
    bytes[of.end..of.end + CRC].copy_from_slice(&crc);
}

fn len_at(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes")) as usize
}

/// Payloads of all blocks except the last, which only counts the others.
fn payloads(bytes: &[u8]) -> Vec<Range<usize>> {
    let mut all = Vec::new();
    let mut at = HEADER + len_at(bytes, 12) + CRC;
    while at < bytes.len() {
        let begin = at + HEADER;
        let end = begin + len_at(bytes, at + 4);
        all.push(begin..end);
        at = end + CRC;
    }
    all.pop();
    all
}

/// A real log with some bytes of its payloads changed, and checksums as if they had always been so.
fn changed(edits: &[(usize, usize, u8)]) -> Vec<u8> {
    let mut bytes = REAL.to_vec();
    let payloads = payloads(REAL);
    // The long payloads, which have the packets and records.
    let long: Vec<&Range<usize>> = payloads.iter().filter(|payload| payload.len() > 1000).collect();
    for (block, at, value) in edits {
        let payload = long[block % long.len()].clone();
        let byte = &mut bytes[payload.start + at % payload.len()];
        // The top bit says whether a number continues. It is left alone, so there are as many numbers as
        // before.
        *byte = *byte & 0x80 | value & 0x7f;
        check(&mut bytes, payload);
    }
    bytes
}

fn any_time() -> impl Strategy<Value = i64> {
    prop_oneof![4 => any::<i64>(), 2 => -1_000_000_000_i64..1_000_000_000, 1 => Just(MISSING), 1 => Just(i64::MAX)]
}

fn any_info() -> impl Strategy<Value = RunInfo> {
    let period = prop_oneof![any::<u64>(), 0..10_000_000_u64, Just(1_000_000_u64)];
    (period, any_time(), any::<bool>(), any::<bool>(), any::<[Option<u32>; 4]>(), ".{0,20}").prop_map(
        |(period_ns, start_ns, relative, same_clock, cores, text)| RunInfo {
            method: text.clone(),
            period_ns,
            start_ns,
            schedule: if relative { Schedule::Relative } else { Schedule::Absolute },
            same_clock,
            cores: cores.map(|core| core.map(|core| core % 4)),
            isolation: [("culprits", "recorded"), ("ended", &text)].map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            ..RunInfo::default()
        },
    )
}

/// A run that is regular, or nearly so.
fn nearly_even(packets: u64, wrong: &[(usize, usize, i64)], ids: &[(usize, u64)]) -> Vec<Sample> {
    let mut rows: Vec<Sample> = (0..packets)
        .map(|id| {
            let due = id.cast_signed() * 1_000_000 + id.cast_signed() % 7 * 311;
            let late = if id % 13 == 5 { 200_000 } else { 0 };
            Sample::new(id, [due, due + 20_000 + late, due + 21_000 + late, due + 40_000 + late])
        })
        .collect();
    for (row, stamp, value) in wrong.iter().filter(|_| packets > 0) {
        let sample = &mut rows[row % packets as usize];
        if *stamp < 4 { sample.ts[*stamp] = *value } else { sample.hw[stamp % 4] = *value }
    }
    for (row, id) in ids.iter().filter(|_| packets > 0) {
        rows[row % packets as usize].id = *id;
    }
    rows
}

fn any_event() -> impl Strategy<Value = Interference> {
    (0..4_usize, any::<bool>(), 0..4_u32, any::<u32>(), any_time(), any_time()).prop_map(|(k, b, cpu, name, x, y)| {
        let host = if b { Host::B } else { Host::A };
        Interference { kind: CulpritKind::ALL[k], host, cpu, name, start_ns: x.min(y), end_ns: x.max(y) }
    })
}

#[test]
fn the_real_log_is_one() {
    assert!(report(REAL));
    assert!(payloads(REAL).iter().any(|payload| payload.len() > 10_000));
    assert_eq!(changed(&[]), REAL);
    // Changes all over the log. Some places hold kinds or numbers of names, where not every value is valid.
    let still = (0..40).filter(|n| report(&changed(&[(*n, 997 * n, 5 * *n as u8)]))).count();
    assert!(still >= 20, "only {still} of 40 changed logs get past the reader");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), at in any::<prop::sample::Index>()) {
        report(&bytes);
        // A log that is cut off, and one with other bytes after it.
        let mut real = REAL[..at.index(REAL.len())].to_vec();
        report(&real);
        real.extend(bytes);
        report(&real);
    }

    #[test]
    fn no_changed_log_panics(edits in prop::collection::vec((any::<usize>(), any::<usize>(), any::<u8>()), 0..6)) {
        report(&changed(&edits));
    }

    #[test]
    fn no_run_panics(
        info in any_info(),
        packets in 0..600_u64,
        wrong in prop::collection::vec((any::<usize>(), 0..8_usize, any_time()), 0..40),
        ids in prop::collection::vec((any::<usize>(), any::<u64>()), 0..4),
        restarts in prop::collection::vec((any::<usize>(), any::<u32>()), 0..4),
        events in prop::collection::vec(any_event(), 0..60),
    ) {
        let mut log = LogWriter::create(Vec::new(), &info).unwrap();
        log.name(1, "a name").unwrap();
        for (row, sample) in nearly_even(packets, &wrong, &ids).iter().enumerate() {
            for (_, incarnation) in restarts.iter().filter(|(at, _)| at % 600 == row) {
                log.restart(*incarnation).unwrap();
            }
            log.sample(sample).unwrap();
        }
        events.iter().for_each(|event| log.event(event).unwrap());
        prop_assert!(report(&log.finish().unwrap()));
    }
}
