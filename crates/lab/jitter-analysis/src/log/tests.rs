// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::event::{CulpritKind, Interference};
use crate::sample::{Host, MISSING, RunInfo, Sample, Schedule};
use proptest::prelude::*;

mod documented;

fn info() -> RunInfo {
    RunInfo {
        method: "udp".into(),
        period_ns: 1_000_000,
        schedule: Schedule::Absolute,
        start_ns: 77,
        packet_bytes: 1024,
        cores: [Some(1), None, None, Some(1)],
        isolation: [("governor".to_string(), "performance".to_string())].into(),
        ..RunInfo::default()
    }
}

fn written(rows: &[(u32, Sample)], events: &[Interference]) -> Vec<u8> {
    let mut w = LogWriter::create(Vec::new(), &info()).unwrap();
    w.name(3, "timer").unwrap();
    for (incarnation, row) in rows {
        w.restart(*incarnation).unwrap();
        w.sample(row).unwrap();
    }
    events.iter().for_each(|e| w.event(e).unwrap());
    w.events_lost(5);
    w.finish().unwrap()
}

fn plain(n: u64) -> Vec<(u32, Sample)> {
    let jitter = |i: u64, k: i64| (i as i64 * 7919 * k) % 900;
    let row = |i: u64| {
        let t = i as i64 * 1_000_000;
        let lost = i % 50 == 7;
        let later = |v: i64| if lost { MISSING } else { v };
        Sample::new(i, [t + jitter(i, 1), later(t + 5000 + jitter(i, 3)), later(t + 6000), later(t + 11_000)])
    };
    (0..n).map(|i| (1 + u32::from(i > n / 2), row(i))).collect()
}

/// Must not panic, whatever the bytes are.
fn read_any(bytes: &[u8]) -> Result<Log, LogError> {
    read_log(bytes)
}

#[test]
fn log_of_more_than_a_measurement_writes_is_refused() {
    let log = written(&plain(10_000), &[]);
    assert_eq!(reader::read_at_most(&log[..], 10_000, 0).unwrap().samples.len(), 10_000);
    let error = reader::read_at_most(&log[..], 9_999, 0).unwrap_err();
    assert!(matches!(error, LogError::TooMany { what: "samples", limit: 9_999, .. }), "{error}");
    let event = Interference { kind: CulpritKind::Interrupt, host: Host::A, cpu: 0, name: 3, start_ns: 1, end_ns: 2 };
    let log = written(&[], &[event, event]);
    assert!(matches!(reader::read_at_most(&log[..], 0, 1), Err(LogError::TooMany { what: "events", .. })));
    assert_eq!(reader::read_at_most(&log[..], 0, 2).unwrap().events.len(), 2);
}

#[test]
fn ten_thousand_packets_come_back_and_are_small() {
    let rows = plain(10_000);
    let events: Vec<Interference> = (0..5000)
        .map(|i| Interference {
            kind: CulpritKind::ALL[i % 4],
            host: if i % 2 == 0 { Host::A } else { Host::B },
            cpu: 1,
            name: 3,
            start_ns: i as i64 * 4_000_000,
            end_ns: i as i64 * 4_000_000 + 2500,
        })
        .collect();
    let bytes = written(&rows, &events);
    let log = read_any(&bytes).unwrap();
    assert_eq!(log.info, info());
    assert_eq!(log.events, events);
    assert_eq!(log.names[3], "timer");
    assert_eq!(log.ending, Ending::Whole(Totals { samples: 10_000, events: 5000, names: 1, events_lost: 5 }));
    assert!(rows.iter().enumerate().all(|(i, (_, row))| log.samples.get(i) == Some(*row)));
    assert_eq!(log.samples.restarts().len(), 2);
    assert!(bytes.len() < 10_000 * 12 + 5000 * 12, "{} bytes", bytes.len());
    let mut csv = Vec::new();
    write_samples_csv(&mut csv, &log.info, &log.samples).unwrap();
    let csv = String::from_utf8(csv).unwrap();
    assert_eq!(csv.lines().count(), 10_001);
    assert_eq!(csv.lines().nth(8), Some("7,7000077,7000533,,,,1"));
    let mut csv = Vec::new();
    write_events_csv(&mut csv, &log.events[..1], &log.names).unwrap();
    assert_eq!(String::from_utf8(csv).unwrap(), "kind,host,cpu,name,start,end\ninterrupt,a,1,\"timer\",0,2500\n");
}

#[test]
fn zero_and_one_packets() {
    for n in [0, 1] {
        let log = read_any(&written(&plain(n), &[])).unwrap();
        assert_eq!(log.samples.len() as u64, n);
        assert!(matches!(log.ending, Ending::Whole(_)));
    }
}

#[test]
fn truncated_log_keeps_whole_blocks_and_reports_it() {
    let bytes = written(&plain(10_000), &[]);
    let header = 16 + serde_json::to_vec(&info()).unwrap().len() + 4;
    let mut kept = 0;
    // All lengths near the header and the last blocks, and some between.
    let lens = (0..bytes.len()).filter(|n| *n < header + 40 || n % 101 == 0 || n + 60 > bytes.len());
    for len in lens {
        match read_any(&bytes[..len]) {
            Ok(log) => {
                assert!(len >= header);
                assert!(log.samples.len() >= kept, "a longer log must not give less");
                kept = log.samples.len();
                let Ending::CutOff { offset, bytes: lost, .. } = log.ending else { panic!("{len}: {}", log.ending) };
                assert_eq!(offset + lost, len as u64);
            }
            Err(LogError::NoHeader { .. }) => assert!((1..header).contains(&len)),
            Err(LogError::Empty) => assert_eq!(len, 0),
            Err(e) => panic!("{len}: {e}"),
        }
    }
    assert_eq!(kept, 10_000, "only the totals are missing");
    let cut = read_any(&bytes[..bytes.len() / 2]).unwrap();
    assert!(cut.ending.to_string().contains("packets lost"), "{}", cut.ending);
}

#[test]
fn zeros_of_a_file_system_count_as_truncation() {
    let mut bytes = written(&plain(9000), &[]);
    let whole = bytes.len();
    for keep in [whole - 60, whole - 3000, whole - 3001] {
        let cut = read_any(&bytes[..keep - 8]).unwrap();
        bytes[keep..].fill(0);
        bytes.resize(whole + 10_000, 0);
        let log = read_any(&bytes).unwrap();
        assert_eq!(log.samples.len(), cut.samples.len());
        assert!(matches!(log.ending, Ending::CutOff { .. }));
    }
}

#[test]
fn every_flipped_bit_is_noticed() {
    let bytes = written(&plain(300), &[]);
    for at in (0..bytes.len()).filter(|at| *at < 600 || at % 7 == 0) {
        for bit in 0..8 {
            let mut bad = bytes.clone();
            bad[at] ^= 1 << bit;
            let error = read_any(&bad).err().unwrap_or_else(|| panic!("bit {bit} of byte {at}"));
            match error {
                LogError::Corrupt { offset, .. } => assert!(offset <= bytes.len() as u64),
                LogError::Magic { .. } => assert!(at < 8),
                LogError::Version { .. } => assert!((8..10).contains(&at)),
                LogError::NoHeader { .. } => assert!((12..16).contains(&at)),
                e => panic!("{e}"),
            }
        }
    }
    let mut more = bytes;
    more.push(0);
    assert!(read_any(&more).is_err());
}

#[test]
fn errors_say_where_and_what() {
    let text = read_any(b"PK\x03\x04 something else").err().unwrap().to_string();
    assert!(text.contains("not a jitter log"), "{text}");
    let mut bytes = written(&plain(10), &[]);
    let last = bytes.len() - 30;
    bytes[last] ^= 4;
    let text = read_any(&bytes).err().unwrap().to_string();
    assert!(text.contains("corrupt at byte") && text.contains("expected checksum"), "{text}");
    let mut w = LogWriter::create(Vec::new(), &info()).unwrap();
    let event = Interference { kind: CulpritKind::Steal, host: Host::A, cpu: 0, name: 0, start_ns: 5, end_ns: 4 };
    assert!(w.event(&event).is_err());
}

fn any_stamp() -> impl Strategy<Value = i64> {
    prop_oneof![4 => any::<i64>(), 2 => 0..1_000_000_000_i64, 1 => Just(MISSING), 1 => Just(i64::MAX)]
}

fn any_sample() -> impl Strategy<Value = (u32, Sample)> {
    let stamps = || [any_stamp(), any_stamp(), any_stamp(), any_stamp()];
    (0..3_u32, any::<u64>(), stamps(), stamps(), any::<bool>()).prop_map(|(incarnation, id, ts, hw, has)| {
        (incarnation, Sample { id, ts, hw: if has { hw } else { [MISSING; 4] } })
    })
}

fn any_event() -> impl Strategy<Value = Interference> {
    (0..4_usize, any::<bool>(), any::<u32>(), any::<u32>(), any::<i64>(), any::<i64>()).prop_map(
        |(k, b, cpu, name, x, y)| {
            let host = if b { Host::B } else { Host::A };
            Interference { kind: CulpritKind::ALL[k], host, cpu, name, start_ns: x.min(y), end_ns: x.max(y) }
        },
    )
}

proptest! {
    #[test]
    fn whatever_is_written_is_read(rows in prop::collection::vec(any_sample(), 0..200),
                                   events in prop::collection::vec(any_event(), 0..50)) {
        let log = read_any(&written(&rows, &events)).unwrap();
        prop_assert_eq!(log.samples.len(), rows.len());
        for (i, (_, row)) in rows.iter().enumerate() {
            prop_assert_eq!(log.samples.get(i).unwrap(), *row);
        }
        prop_assert_eq!(log.events, events);
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = read_any(&bytes);
        let mut log = LogWriter::create(Vec::new(), &info()).unwrap().finish().unwrap();
        log.truncate(log.len() - 24);
        log.extend(bytes);
        let _ = read_any(&log);
    }

    /// Payloads with right checksums and wrong contents.
    #[test]
    fn no_payload_makes_the_reader_panic(kind in 0..6_u8, count in 0..70_000_u32,
                                         payload in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut log = LogWriter::create(Vec::new(), &info()).unwrap().finish().unwrap();
        log.truncate(log.len() - 24);
        let mut head = vec![kind, 0, 0, 0];
        head.extend((payload.len() as u32).to_le_bytes());
        head.extend(count.to_le_bytes());
        head.extend(crc32c::crc32c(&head).to_le_bytes());
        log.extend(head);
        log.extend(&payload);
        log.extend(crc32c::crc32c(&payload).to_le_bytes());
        let _ = read_any(&log);
    }
}
