// SPDX-License-Identifier: Apache-2.0
use fide_group::batch;
use proptest::prelude::*;

use super::*;
use crate::{commands::Commands, resp::Value, stream::Stream, unit::Unit};

/// What is not followed by anything.
const NOTHING: &[u8] = &[];

fn commands() -> Commands {
    let leaf = |text: &str| Value::Leaf(text.as_bytes().to_vec());
    let one = |(name, flag, keys): (&str, &str, [&str; 3])| {
        let mut all = vec![leaf(name), leaf("-2"), Value::List(vec![leaf("write"), leaf(flag)])];
        all.extend(keys.map(leaf));
        all.extend((0..4).map(|_| Value::List(Vec::new())));
        Value::List(all)
    };
    Commands::new(&Value::List(
        [
            ("select", "fast", ["0", "0", "0"]),
            ("set", "fast", ["1", "1", "1"]),
            ("mset", "fast", ["1", "-1", "2"]),
            ("lmpop", "movablekeys", ["0", "0", "0"]),
            ("flushall", "fast", ["0", "0", "0"]),
        ]
        .map(one)
        .to_vec(),
    ))
}

/// A decision with these proposals.
fn decision(fragments: &[&[u8]]) -> Vec<u8> {
    let mut value = Vec::new();
    for fragment in fragments {
        assert!(batch::push_tagged(&mut value, Some(0), fragment, usize::MAX));
    }
    value
}

fn unit(number: u64, content: Vec<u8>) -> Unit {
    Unit { session: 7, number, content, ..Unit::default() }
}

/// One unit in one fragment, as a decision.
fn unit_of(number: u64, lines: &[&str]) -> Vec<u8> {
    let fragment = unit(number, content(lines)).fragments(1 << 30).remove(0);
    decision(&[&fragment])
}

fn content(lines: &[&str]) -> Vec<u8> {
    let mut stream = Stream::default();
    for line in lines {
        stream.push(3, &line.split(' ').map(str::as_bytes).collect::<Vec<_>>());
    }
    stream.take()
}

struct World {
    commands: Commands,
    written: Written,
}

impl World {
    fn new() -> Self {
        let mut written = Written::default();
        written.take_interest();
        Self { commands: commands(), written }
    }

    fn deliver(&mut self, position: u64, value: &[u8]) {
        self.written.deliver(position, value, 0, &|name| self.commands.written_by(name));
    }

    /// Walks through what is stored after `delivered`.
    fn walk<'a>(&mut self, delivered: u64, held: impl IntoIterator<Item = (u64, u16, &'a [u8])>) {
        self.written.begin_walk(delivered);
        for (position, round, value) in held {
            self.written.visit((position, 1, round), value, 0, &|name| self.commands.written_by(name));
        }
    }

    fn last_of(&self, key: &str) -> u64 {
        self.written.last_of(&[hash_of(key.as_bytes())])
    }
}

#[test]
fn keys_of_stored_and_delivered_units_are_known() {
    let mut world = World::new();
    world.deliver(1, NOTHING);
    world.deliver(2, &unit_of(1, &["SET a 1", "MSET b x c y"]));
    world.walk(2, [(3, 1, &unit_of(2, &["LMPOP 2 d e LEFT"])[..]), (4, 1, &unit_of(3, &["SET a 2"]))]);
    assert_eq!(["a", "b", "c", "d", "e"].map(|key| world.last_of(key)), [4, 2, 2, 3, 3]);
    assert_eq!(["x", "y", "z", "1"].map(|key| world.last_of(key)), [0; 4], "values are no keys");
    assert_eq!(world.written.last_of(&[hash_of(b"b"), hash_of(b"d"), hash_of(b"z")]), 3);
}

#[test]
fn what_cannot_be_read_may_write_everything() {
    for unreadable in [
        unit_of(1, &["FLUSHALL"]),
        unit_of(1, &["NONSENSE a"]),
        decision(&[&unit(1, b"no command".to_vec()).fragments(100)[0]]),
        // Another version of this module, and a fragment without its beginning.
        decision(&[&[9; 30]]),
        decision(&[&unit(1, vec![b'*'; 60]).fragments(40)[1]]),
    ] {
        let mut world = World::new();
        world.walk(5, [(6, 1, &unit_of(1, &["SET a 1"])[..]), (8, 1, &unreadable)]);
        assert_eq!(world.last_of("z"), 8, "{unreadable:?}");
    }
    // A payload that was sent ahead.
    let (mut payload, mut value) = (Vec::new(), Vec::new());
    fide_group::Identity::of(b"x").write(&mut payload);
    assert!(batch::push_tagged(&mut value, Some(1), &payload, usize::MAX));
    let mut world = World::new();
    world.walk(5, [(6, 1, &value[..])]);
    assert_eq!(world.last_of("z"), 6);
}

#[test]
fn nothing_is_read_while_nobody_asks() {
    let mut world = World { commands: commands(), written: Written::default() };
    world.deliver(1, &unit_of(1, &["SET a 1"]));
    assert_eq!(world.last_of("z"), 1);
    world.written.take_interest();
    for position in 2..=u64::from(INTEREST) + 1 {
        world.deliver(position, &unit_of(position, &["SET a 1"]));
    }
    assert_eq!((world.last_of("a"), world.last_of("z")), (u64::from(INTEREST) + 1, 1));
    world.deliver(u64::from(INTEREST) + 2, &unit_of(2, &["SET a 1"]));
    assert_eq!(world.last_of("z"), u64::from(INTEREST) + 2);
}

/// A later leader proposes another value at the position before, of which this one was a part or not.
#[test]
fn value_is_read_again_where_the_one_before_it_has_changed() {
    let content = content(&["SET abc def"]);
    let cut: Vec<_> = unit(1, content).fragments(18 + 25).iter().map(|fragment| decision(&[fragment])).collect();
    assert_eq!(cut.len(), 3, "the key is in the second one");
    let mut world = World::new();
    world.deliver(1, NOTHING);
    world.walk(1, [(2, 2, NOTHING), (3, 1, &cut[1][..])]);
    assert_eq!(world.last_of("abc"), 0, "a fragment without a beginning does nothing");
    world.walk(1, [(2, 3, &cut[0][..]), (3, 1, &cut[1])]);
    assert_eq!((world.last_of("abc"), world.last_of("z")), (3, 0));
    // Nothing is stored at the position before: what it brings is not known.
    world.walk(1, [(3, 1, &cut[1][..]), (4, 1, &cut[2])]);
    assert_eq!(world.last_of("z"), 4);
}

#[test]
fn too_many_keys_are_everything_until_they_are_applied() {
    let mut world = World::new();
    let keys: Vec<String> = (0..=KEYS_MAX).map(|key| format!("SET k{key} v")).collect();
    let value = unit_of(1, &keys.iter().map(String::as_str).collect::<Vec<_>>());
    world.deliver(1, NOTHING);
    world.deliver(2, &value);
    assert_eq!((world.last_of("z"), world.written.keys.len()), (2, 0));
    world.written.deliver(3, &unit_of(2, &["SET a 1"]), 2, &|name| world.commands.written_by(name));
    assert_eq!((world.last_of("a"), world.last_of("z")), (3, 2));
}

#[test]
fn keys_of_applied_positions_make_room() {
    let mut world = World::new();
    let set = |key: usize| unit_of(1, &[&format!("SET k{key} v")]);
    for (position, key) in (1..).zip(0..KEYS_MAX) {
        if position % u64::from(INTEREST) == 0 {
            world.written.take_interest();
        }
        world.written.deliver(position, &set(key), 0, &|name| world.commands.written_by(name));
    }
    world.written.take_interest();
    let last = KEYS_MAX as u64 + 1;
    world.written.deliver(last, &set(KEYS_MAX), last - 10, &|name| world.commands.written_by(name));
    assert_eq!((world.written.keys.len(), world.last_of("z")), (10, 0));
    assert_eq!(world.last_of(&format!("k{KEYS_MAX}")), last);
}

proptest! {
    /// Units cut at any place, of which some are delivered, some stored, and some missing.
    #[test]
    fn no_key_of_a_unit_is_missed_wherever_it_is_cut(
        units in prop::collection::vec((prop::collection::vec((0usize..6, 0usize..30), 1..4), 0usize..20, 0usize..20), 1..6),
        max in 19usize..90,
        delivered in 0usize..12,
        missing in prop::collection::vec(any::<bool>(), 60),
    ) {
        let mut log: Vec<(Vec<u8>, Vec<String>, bool)> = Vec::new();
        for ((sets, notes, remarks), number) in units.iter().zip(1..) {
            let lines: Vec<String> = sets.iter().map(|(key, len)| format!("SET key{key} {}", "v".repeat(*len))).collect();
            let body = content(&lines.iter().map(String::as_str).collect::<Vec<_>>());
            let keys: Vec<String> = sets.iter().map(|(key, _)| format!("key{key}")).collect();
            let (notes, remarks) = (vec![9; *notes], vec![7; *remarks]);
            let cut = Unit { session: 5, number, notes, remarks, content: body }.fragments(max);
            for (at, fragment) in cut.iter().enumerate() {
                log.push((decision(&[fragment]), keys.clone(), at == 0));
            }
        }
        let mut world = World::new();
        world.deliver(1, NOTHING);
        let delivered = delivered.min(log.len());
        for (at, (value, ..)) in log[..delivered].iter().enumerate() {
            world.deliver(at as u64 + 2, value);
        }
        let held = || (delivered..log.len()).filter(|at| !missing[*at % 60]).map(|at| (at as u64 + 2, 1, &log[at].0[..]));
        // What comes later is seen by another walk.
        let count = held().count();
        world.walk(delivered as u64 + 1, held().take(count / 2));
        world.walk(delivered as u64 + 1, held());
        let is_there = |at: usize| at < delivered || !missing[at % 60];
        // Of each unit that is whole: no key is missed as long as its first position is not applied.
        let firsts: Vec<usize> = (0..log.len()).filter(|at| log[*at].2).collect();
        for (at, first) in firsts.iter().enumerate() {
            let end = firsts.get(at + 1).copied().unwrap_or(log.len());
            if (*first..end).all(is_there) {
                for key in &log[*first].1 {
                    prop_assert!(world.last_of(key) >= *first as u64 + 2, "{key}");
                }
            }
        }
        if (0..log.len()).all(is_there) {
            let unwritten = (0..6).map(|key| format!("key{key}")).filter(|key| !log.iter().any(|(_, keys, _)| keys.contains(key)));
            for key in unwritten {
                prop_assert_eq!(world.last_of(&key), 0);
            }
        }
    }

    #[test]
    fn any_bytes_are_read_or_write_everything(values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..8)) {
        let mut world = World::new();
        for (value, position) in values.iter().zip(1..) {
            world.deliver(position, &decision(&[value]));
        }
        world.walk(values.len() as u64, values.iter().zip(values.len() as u64 + 1..).map(|(value, position)| (position, 1, &value[..])));
        prop_assert!(world.last_of("z") <= 2 * values.len() as u64);
    }
}
