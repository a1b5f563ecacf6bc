// SPDX-License-Identifier: Apache-2.0
//! Redis' own test suite, unmodified, against a group of one server and against the leader of three. It runs
//! where `FIDE_REDIS_SUITE` names the unpacked source of Redis: `make test-redis-suite`.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use crate::{
    suite::{LeftOut, Passed, chosen, run, units},
    world::World,
};

/// A script of the suite writes a million members of a set: 40 MB for each follower, which a debug build takes at some
/// megabyte a second.
const APPLY_LIMIT: Duration = Duration::from_secs(180);
/// What is known to fail, and why.
const LEFT_OUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/left-out.txt");
/// How many tests pass.
const PASSED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/passed.txt");

#[test]
fn root_suite_of_redis_passes_but_for_what_is_listed() {
    let Some(source) = std::env::var_os("FIDE_REDIS_SUITE").map(PathBuf::from) else {
        println!("skipped: FIDE_REDIS_SUITE names no source of Redis; make test-redis-suite gets it");
        return;
    };
    let source = source.canonicalize().expect("FIDE_REDIS_SUITE names the unpacked source of Redis");
    let list = LeftOut::read(&std::fs::read_to_string(LEFT_OUT).expect(LEFT_OUT)).expect(LEFT_OUT);
    let recorded = Passed::read(&std::fs::read_to_string(PASSED).expect(PASSED)).expect(PASSED);
    let wanted = std::env::var("FIDE_REDIS_SUITE_UNITS").unwrap_or_default();
    let sizes = std::env::var("FIDE_REDIS_SUITE_SERVERS").unwrap_or_else(|_| "1,3".to_owned());
    let units = chosen(units(&source), &wanted).unwrap_or_else(|why| panic!("{why}"));
    let mut wrong = Vec::new();
    for servers in sizes.split(',').map(|size| size.parse::<usize>().expect("numbers of servers")) {
        let begun = Instant::now();
        let (mut passed, mut failed, mut skipped, mut ignored) = (0, 0, 0, 0);
        for unit in &units {
            let unit_begun = Instant::now();
            // A new group for each file: settings that a failed test leaves behind fail no other file.
            let Some(world) = World::new(servers, "hsuc") else { return };
            let made = unit_begun.elapsed();
            let leader = world.leader();
            let log = source.join(format!("../logs/{servers}/{}.log", unit.replace('/', "-")));
            let skip = list.skipped(unit, servers);
            let said = match run(&source, world.bed.host(leader), unit, &skip, &log) {
                Ok(said) => said,
                Err(why) => {
                    wrong.push(format!("{servers} servers: {why}"));
                    continue;
                }
            };
            let mut now_wrong = list.judge(unit, servers, &said);
            now_wrong.extend(recorded.judge(unit, servers, &said, &list));
            println!(
                "{servers} servers: {unit}: {} passed, {} failed, {} skipped, {} not for such servers; {:.1} s, group {:.1} s",
                said.passed.len(),
                said.failed.len(),
                said.skipped.len(),
                said.ignored,
                unit_begun.elapsed().as_secs_f64(),
                made.as_secs_f64()
            );
            now_wrong.iter().for_each(|wrong| println!("  {wrong}"));
            wrong.extend(now_wrong.into_iter().map(|wrong| format!("{servers} servers: {wrong}")));
            passed += said.passed.len();
            failed += said.failed.len();
            skipped += said.skipped.len();
            ignored += said.ignored;
            world.assert_alike_within(APPLY_LIMIT);
            assert_eq!(world.leader(), leader, "{unit}: another server leads\n{}", world.logs());
        }
        println!(
            "{servers} servers: {passed} passed, {failed} failed, {skipped} skipped, {ignored} not for such servers, in {:.0} s",
            begun.elapsed().as_secs_f64()
        );
        for (reason, count) in list.by_reason(servers) {
            println!("  {count} left out: {reason}");
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
