// SPDX-License-Identifier: Apache-2.0
//! Compares `docs/develop/jitter-log.md` with what the writer writes.

use std::collections::BTreeMap;

use fide_testbed::documented::{assert_documented, fields, section};

use super::*;

const PAGE: &str = include_str!("../../../../../../docs/develop/jitter-log.md");

/// The run of the page's example.
fn example() -> Vec<u8> {
    let info = RunInfo { method: "udp".into(), period_ns: 1_000_000, same_clock: true, ..RunInfo::default() };
    let mut w = LogWriter::create(Vec::new(), &info).unwrap();
    w.name(0, "timer").unwrap();
    w.restart(1).unwrap();
    w.sample(&Sample::new(0, [100, 5_100, 6_100, 11_100])).unwrap();
    w.sample(&Sample::new(1, [1_000_101, MISSING, MISSING, MISSING])).unwrap();
    w.sample(&Sample::new(2, [2_000_099, 2_005_149, 2_006_149, 2_011_099])).unwrap();
    let thread = Interference {
        kind: CulpritKind::Thread,
        host: Host::B,
        cpu: 1,
        name: 0,
        start_ns: 2_005_000,
        end_ns: 2_005_500,
    };
    w.event(&thread).unwrap();
    w.events_lost(5);
    w.finish().unwrap()
}

/// Lines of the page's example: offset, bytes, meaning.
fn dump() -> Vec<(usize, Vec<u8>, &'static str)> {
    let example = section(PAGE, "## Example");
    let text = example.split("```text\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a dump");
    let line = |line: &'static str| {
        let (offset, rest) = line.trim().split_once(' ').expect("an offset");
        let (bytes, meaning) = rest.rsplit_once("  ").expect("a meaning");
        let bytes = match bytes.trim() {
            json if json.starts_with('{') => json.as_bytes().to_vec(),
            hex => hex.split(' ').map(|byte| u8::from_str_radix(byte, 16).expect("a byte")).collect(),
        };
        (offset.parse().expect("an offset"), bytes, meaning.trim())
    };
    text.lines().map(line).collect()
}

/// Rows of a table with a field in its third cell: name, offset, bytes. Fields of variable place or size are
/// left out.
fn layout(heading: &str) -> Vec<(&'static str, usize, usize)> {
    let rows = section(PAGE, heading).lines().filter_map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let name = cells.get(3)?.strip_prefix('`')?.strip_suffix('`')?;
        Some((name, cells[1].parse().ok()?, cells[2].parse().ok()?))
    });
    rows.collect()
}

/// Rows of a table with a number in its first cell and a name in its second.
fn numbered(heading: &str) -> BTreeMap<u8, &'static str> {
    let rows = section(PAGE, heading).lines().filter_map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        Some((cells.get(1)?.parse().ok()?, cells.get(2)?.strip_prefix('`')?.strip_suffix('`')?))
    });
    rows.collect()
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// Bytes of a field of the layout at `start`.
fn field<'a>(log: &'a [u8], start: usize, layout: &[(&str, usize, usize)], name: &str) -> &'a [u8] {
    let (_, offset, len) = layout.iter().find(|(of, _, _)| *of == name).unwrap_or_else(|| panic!("{name}"));
    &log[start + offset..start + offset + len]
}

#[test]
fn documented_example_is_written_so() {
    let log = example();
    assert!(matches!(read_log(&log[..]).unwrap().ending, Ending::Whole(_)));
    let mut at = 0;
    for (offset, bytes, meaning) in dump() {
        assert_eq!(offset, at, "{meaning}");
        let written = log.get(at..at + bytes.len());
        assert_eq!(written, Some(&bytes[..]), "{meaning}, at byte {at}; the log is\n{log:02x?}");
        at += bytes.len();
    }
    assert_eq!(at, log.len(), "the example ends where the log does");
}

#[test]
fn documented_layout_is_written_so() {
    let log = example();
    let header = layout("## Header");
    assert_eq!(header.last().map(|(_, offset, len)| offset + len), Some(HEADER_LEN));
    assert_eq!(field(&log, 0, &header, "magic"), MAGIC);
    assert_eq!(number(field(&log, 0, &header, "version")), u64::from(VERSION));
    assert_eq!(number(field(&log, 0, &header, "zero")), 0);
    let json = number(field(&log, 0, &header, "info_bytes")) as usize;
    let info: serde_json::Value = serde_json::from_slice(&log[HEADER_LEN..HEADER_LEN + json]).expect("JSON");
    assert_documented(section(PAGE, "## The run"), &fields(&filled(info)));

    let kinds = numbered("## Block");
    let block = layout("## Block");
    assert_eq!(block.last().map(|(_, offset, len)| offset + len), Some(BLOCK_HEADER_LEN));
    let mut at = HEADER_LEN + json + 4;
    let mut seen = Vec::new();
    while at < log.len() {
        let kind = number(field(&log, at, &block, "kind")) as u8;
        let count = number(field(&log, at, &block, "count"));
        assert_eq!(number(field(&log, at, &block, "zero")), 0);
        let crc = number(field(&log, at, &block, "header_crc"));
        assert_eq!(crc, u64::from(crc32c::crc32c(&log[at..at + 12])));
        seen.push((*kinds.get(&kind).expect("a documented kind"), count));
        at += BLOCK_HEADER_LEN + number(field(&log, at, &block, "payload_bytes")) as usize + 4;
    }
    assert_eq!(seen, [("names", 1), ("samples", 3), ("events", 1), ("end", 0)]);
    let known = [(KIND_SAMPLES, "samples"), (KIND_EVENTS, "events"), (KIND_NAMES, "names"), (KIND_END, "end")];
    assert_eq!(kinds, known.into());
    let events = CulpritKind::ALL.map(|kind| (kind as u8, kind.name()));
    assert_eq!(numbered("## Events"), events.into());
}

/// The map of conditions is one field, whatever is in it.
fn filled(mut info: serde_json::Value) -> serde_json::Value {
    info["isolation"].take();
    info
}

#[test]
fn documented_limits_match_the_code() {
    let grouped = |n: u64| {
        let digits = n.to_string();
        let groups: Vec<&str> = digits.as_bytes().rchunks(3).rev().map(|g| std::str::from_utf8(g).unwrap()).collect();
        groups.join(",")
    };
    for (limit, heading) in [
        (u64::from(PAYLOAD_MAX), "## Header"),
        (u64::from(PAYLOAD_MAX), "## Block"),
        (u64::from(BLOCK_ROWS_MAX), "## Block"),
        (SAMPLES_MAX, "## Limits of a reader"),
        (EVENTS_MAX, "## Limits of a reader"),
        (BLOCK_ROWS as u64, "## Limits of a reader"),
        (NAME_MAX as u64, "## Names"),
    ] {
        assert!(section(PAGE, heading).contains(&grouped(limit)), "{} under {heading}", grouped(limit));
    }
    assert!(section(PAGE, "## Names").contains("2^20") && NAMES_MAX == 1 << 20);
    assert!(PAGE.contains(&format!("version {VERSION}.")));
}
