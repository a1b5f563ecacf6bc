// SPDX-License-Identifier: Apache-2.0
//! A writer killed at any instruction loses nothing that it acknowledged.

use super::*;
use crate::testing::{as_child, reopen, respawn, say};
use std::time::{Duration, Instant};

/// Kills; half of them after so many microseconds of the child's life, half after so many acknowledgements.
const KILLS: u64 = 120;
/// Records between two snapshots.
const SNAPSHOT_EVERY: u64 = 40;

/// The state after record `number`: a chain over all contents, so that a missing or exchanged one shows.
fn chain(state: u32, number: u64) -> u32 {
    crc32c::crc32c_append(state, &record(number))
}

fn state_of(loaded: &Loaded) -> u32 {
    let state = loaded.snapshot.as_ref().map_or(0, |s| u32::from_le_bytes(s.state[..4].try_into().unwrap()));
    (loaded.last() + 1 - loaded.records.len() as u64..).zip(&loaded.records).fold(state, |state, (number, bytes)| {
        assert!(*bytes == record(number), "record {number} is not what was written");
        chain(state, number)
    })
}

#[test]
fn child_writes_until_it_is_killed() {
    let Some(path) = as_child() else { return };
    let mut store = reopen(std::path::Path::new(&path));
    let epoch = store.last_epoch().unwrap() + 1;
    let loaded = store.load(epoch).unwrap();
    let (mut last, mut state) = (loaded.last(), state_of(&loaded));
    loop {
        let count = last % 5 + 1;
        store.append(last + 1, &batch(last + 1, count)).unwrap();
        state = (last + 1..=last + count).fold(state, chain);
        last += count;
        say(format!("ack {last}"));
        if last % SNAPSHOT_EVERY < count {
            // Of some size, so that it is more than one page.
            let mut bytes = state.to_le_bytes().to_vec();
            bytes.resize(4 + 60_000, 0);
            store.snapshot(last, &bytes).unwrap();
        }
    }
}

#[test]
fn killed_writer_loses_nothing_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let path = redb_file(dir.path());
    let seed = crate::clock::Now::read().unix_ns | 1;
    println!("seed {seed}");
    let (mut random, mut acknowledged, mut progressed) = (seed, 0, 0);
    for round in 0..KILLS {
        // Xorshift.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let (mut child, lines) = respawn("store::tests::kill::child_writes_until_it_is_killed", path.to_str().unwrap());
        let before = acknowledged;
        let ack = |line: String| match line.strip_prefix("ack ") {
            Some(number) => number.parse::<u64>().unwrap(),
            None => panic!("the child said: {line}"),
        };
        let spin = |ns: u64| {
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_nanos(ns) {
                std::hint::spin_loop();
            }
        };
        if round % 2 == 0 {
            std::thread::sleep(Duration::from_micros(random % 60_000));
        } else {
            for _ in 0..random % 30 + 1 {
                acknowledged = ack(lines.next().expect("the child writes"));
            }
            spin(random / 64 % 3_000_000);
        }
        child.kill();
        // Its last lines before it died count.
        while let Some(line) = lines.next() {
            acknowledged = ack(line);
        }
        let mut store = reopen(&path);
        let epoch = store.last_epoch().unwrap() + 1;
        let loaded = store.load(epoch).unwrap();
        let last = loaded.last();
        assert!(last >= acknowledged, "round {round}: {acknowledged} was acknowledged, {last} is there");
        // At most the one batch whose acknowledgement was cut off, and then completely.
        let mut whole = acknowledged;
        while whole < last {
            whole += whole % 5 + 1;
        }
        assert_eq!(last, whole, "round {round}: a batch is torn");
        let state = state_of(&loaded);
        assert_eq!(state, (1..=last).fold(0, chain), "round {round}: not the state after record {last}");
        progressed += u64::from(last > before);
        acknowledged = last;
    }
    println!("{KILLS} kills, {acknowledged} records, {progressed} rounds with progress");
    assert!(progressed >= KILLS / 2, "the writers were killed before they wrote: {progressed}");
}
