// SPDX-License-Identifier: Apache-2.0
//! Reads at a follower wait for what may write their keys, and for nothing else.

use std::{
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use crate::world::{LIMIT, World};

/// A question is given up at a follower after a second; it is asked again.
fn is_late(reply: &str) -> bool {
    reply.starts_with("-TRYAGAIN")
}

/// While a write of one key cannot be decided, as another server is stopped.
fn reads_go_past(protocol: &str) {
    let Some(world) = World::new(3, protocol) else { return };
    let (leader, follower, stopped) = (world.leader(), world.followers()[0], world.followers()[1]);
    for line in ["MSET a old b 1 c 2", "RPUSH l x y", "HSET h f v"] {
        assert!(!world.ask(leader, line).starts_with('-'), "{line}");
    }
    world.assert_alike();
    let count = |name: &str| world.status(follower)[name].as_u64().expect("a count");
    let (by_key, waited) = (count("reads_by_key"), count("reads_waited"));
    world.server(stopped).pause();
    thread::scope(|scope| {
        let resumes = Resumes(&world, stopped);
        // The leader gives up after a second, and its client does not know what becomes of it.
        scope.spawn(|| world.server(leader).command(&["MSET", "a", "new", "d", "new"]));
        // The follower has it once a read of the key waits.
        let until = Instant::now() + LIMIT;
        while count("reads_waited") == waited {
            assert!(Instant::now() < until, "the write does not come\n{}", world.logs());
            let _ = world.server(follower).command(&["GET", "a"]);
        }
        for (line, wanted) in [
            ("GET b", "$1\r\n1\r\n"),
            ("MGET b c", "*2\r\n$1\r\n1\r\n$1\r\n2\r\n"),
            ("LRANGE l 0 -1", "*2\r\n$1\r\nx\r\n$1\r\ny\r\n"),
            ("HGET h f", "$1\r\nv\r\n"),
            ("EXISTS none", ":0\r\n"),
        ] {
            assert_eq!(world.ask(follower, line), wanted, "{line}, which nothing under way writes");
        }
        assert_eq!(count("reads_by_key"), by_key + 5);
        // What the write changes, or may change, waits.
        let (told, answers) = mpsc::channel();
        for line in [
            "GET a",
            "MGET b a",
            "EXISTS d",
            "DBSIZE",
            "KEYS *",
            "SCAN 0",
            "RANDOMKEY",
            "OBJECT ENCODING b",
            "DEBUG OBJECT a",
            "DEBUG DIGEST-VALUE a",
            "SORT_RO l BY b",
        ] {
            let (told, world) = (told.clone(), &world);
            scope.spawn(move || {
                let words: Vec<&str> = line.split(' ').collect();
                let reply = world.server(follower).command(&words);
                told.send((line, reply)).expect("somebody listens");
            });
        }
        drop(told);
        while let Ok((line, reply)) = answers.recv_timeout(Duration::from_millis(100)) {
            assert!(reply.as_ref().is_ok_and(|reply| is_late(reply)), "{line}: {reply:?} while the write is open");
        }
        drop(resumes);
        // Nothing old is shown from now on either.
        for (line, reply) in answers {
            let reply = reply.expect("an answer");
            assert!(is_late(&reply) || !reply.contains("old"), "{line}: {reply}");
        }
    });
    world.await_ready();
    world.assert_alike();
    assert_eq!(world.ask(follower, "MGET a d"), "*2\r\n$3\r\nnew\r\n$3\r\nnew\r\n");
    assert_eq!(world.ask(follower, "DBSIZE"), ":6\r\n");
}

/// Lets a stopped server go on, also when the test fails meanwhile.
struct Resumes<'a>(&'a World, usize);

impl Drop for Resumes<'_> {
    fn drop(&mut self) {
        self.0.server(self.1).resume();
    }
}

#[test]
fn root_follower_answers_for_keys_that_nothing_under_way_writes() {
    reads_go_past("hsuc");
}

#[test]
fn root_follower_answers_for_other_keys_with_huc_too() {
    reads_go_past("huc");
}

/// Units of many fragments, whose keys are spread over them.
#[test]
fn root_keys_of_a_long_unit_are_known_and_no_other_key_waits() {
    const KEYS: usize = 200;
    let Some(world) = World::new(3, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    assert_eq!(world.ask(leader, "SET other 1"), "+OK\r\n");
    let rounds = 40;
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut connection = world.connect(leader);
            for round in 1..=rounds {
                let mut command = redis::cmd("MSET");
                for key in 0..KEYS {
                    command.arg(format!("key{key}")).arg(format!("{round}:{}", "x".repeat(100)));
                }
                command.query::<()>(&mut connection).unwrap();
            }
        });
        // A transaction is whole: both keys have the value of one round, however far the server is with it.
        let mut connection = world.connect(follower);
        let mut last = 0;
        while !writer.is_finished() {
            let ends: Vec<Option<String>> =
                redis::cmd("MGET").arg("key0").arg(format!("key{}", KEYS - 1)).query(&mut connection).unwrap();
            assert_eq!(ends[0], ends[1], "a unit that is applied in part was seen");
            let round = ends[0].as_ref().map_or(0, |value| value.split(':').next().unwrap().parse().unwrap());
            assert!(round >= last, "round {round} after {last}");
            last = round;
            let other: u64 = redis::cmd("GET").arg("other").query(&mut connection).unwrap();
            assert_eq!(other, 1);
        }
    });
    println!("{}", world.status(follower)["reads_by_key"]);
    assert!(
        world.status(follower)["reads_by_key"].as_u64() > Some(0),
        "no read was answered while a unit was under way"
    );
    world.assert_alike();
}
