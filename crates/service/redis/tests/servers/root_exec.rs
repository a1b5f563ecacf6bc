// SPDX-License-Identifier: Apache-2.0
//! Transactions at the moments in which `EXEC` is refused, and those that begin before a server is one of its group.

use std::{
    collections::BTreeSet,
    io::{Read, Write},
    os::unix::net::UnixStream,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    thread,
};

use fide_testbed::retry_until;

use crate::world::{LIMIT, Stops, World};

/// Redis queues what refuses it, and would say so before anything of the module runs again. Here the group does not
/// agree on the deletion of a key that was found expired just before.
#[test]
fn root_exec_that_is_refused_behind_a_command_that_waited_is_not_answered() {
    let Some(world) = World::new(2, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    for line in ["DEBUG SET-ACTIVE-EXPIRE 0", "SET expired v PX 1"] {
        assert_eq!(world.ask(leader, line), "+OK\r\n");
    }
    let mut stream = UnixStream::connect(world.server(leader).socket()).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(b"BLPOP none 0.5\r\nGET expired\r\nMULTI\r\nSET k v\r\nEXEC\r\n").unwrap();
    let waits = retry_until("a client that waits", LIMIT, || {
        let list = world.ask(leader, "INFO clients");
        if list.contains("blocked_clients:1") { Ok(()) } else { Err(list) }
    });
    waits.unwrap_or_else(|why| panic!("{why}"));
    // Without this server nothing is decided.
    world.server(follower).pause();
    let mut answer = Vec::new();
    let end = stream.read_to_end(&mut answer);
    world.server(follower).resume();
    assert!(end.is_ok() || end.is_err_and(|why| why.kind() == std::io::ErrorKind::ConnectionReset));
    let answer = String::from_utf8_lossy(&answer);
    assert!(!answer.contains("QUEUED"), "{answer}");
    world.await_ready();
    assert_eq!(world.ask(leader, "EXISTS k"), ":0\r\n");
    // The transaction had begun: it was its EXEC that found the group stalled.
    let counts = world.ask(leader, "INFO commandstats");
    assert!(counts.contains("cmdstat_multi:calls=1,") && !counts.contains("cmdstat_exec:"), "{counts}");
    world.assert_alike();
}

/// The module has looked at nothing of it.
#[test]
fn root_transaction_that_begins_while_redis_loads_its_dump_is_ended() {
    /// With the delay of each, enough for a few requests.
    const KEYS: u32 = 1000;
    let Some(mut world) = World::new(2, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    let mut connection = world.connect(leader);
    for number in 0..KEYS {
        redis::cmd("SET").arg(format!("key{number}")).arg("x".repeat(30)).exec(&mut connection).unwrap();
    }
    world.assert_alike();
    assert_eq!(world.ask(follower, "SAVE"), "+OK\r\n");
    world.kill(follower);
    world.start_beside(follower, &["--key-load-delay", "3000", "--loading-process-events-interval-bytes", "1024"]);
    let mut stream = UnixStream::connect(world.server(follower).socket()).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    // Redis takes it while it loads, and a group refuses it.
    let setting = "replica-read-only";
    stream.write_all(format!("MULTI\r\nCONFIG SET {setting} no\r\n").as_bytes()).unwrap();
    let mut queued = [0; b"+OK\r\n+QUEUED\r\n".len()];
    stream.read_exact(&mut queued).unwrap();
    assert_eq!(&queued, b"+OK\r\n+QUEUED\r\n");
    let loading = world.ask(follower, "INFO persistence");
    assert!(loading.contains("\nloading:1\r"), "it has loaded before that: {loading}");
    world.await_ready();
    let mut answer = Vec::new();
    // If the connection has ended, that may be known already.
    let _ = stream.write_all(b"EXEC\r\nQUIT\r\n");
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.is_empty(), "{}", String::from_utf8_lossy(&answer));
    let answer = world.ask(follower, &format!("CONFIG GET {setting}"));
    assert!(answer.ends_with("$3\r\nyes\r\n"), "{answer}");
    world.assert_alike();
}

/// The answer to a line; empty: the connection has ended.
fn ask(stream: &mut UnixStream, line: &str) -> String {
    let mut answer = [0; 512];
    let len = stream.write_all(format!("{line}\r\n").as_bytes()).and_then(|()| stream.read(&mut answer)).unwrap_or(0);
    String::from_utf8_lossy(&answer[..len]).into_owned()
}

/// Has clients talk to a server that takes the data over from a leader under load, and again, until one has met the moment
/// in which the server leaves the leader's stream. `talk`: whether the connection is kept for the next talk. `has_met`: given
/// what Redis has counted since the server began.
fn at_the_cut(world: &mut World, talk: impl Fn(&mut UnixStream) -> bool + Sync, has_met: impl Fn(&str) -> bool) {
    const ROUNDS: usize = 20;
    const CLIENTS: usize = 4;
    let (leader, joins) = (world.leader(), world.followers()[0]);
    let mut writer = world.connect(leader);
    redis::cmd("SET").arg("key").arg("value").exec(&mut writer).unwrap();
    for _ in 0..ROUNDS {
        world.kill(joins);
        world.start(joins);
        let (world, talk, stop) = (&*world, &talk, &AtomicBool::new(false));
        let socket = world.server(joins).socket();
        thread::scope(|scope| {
            let _stops = Stops(stop);
            // The leader marks in its stream what is decided.
            let mut writer = world.connect(leader);
            scope.spawn(move || {
                while !stop.load(Relaxed) {
                    redis::cmd("SET").arg("other").arg("value").exec(&mut writer).unwrap();
                }
            });
            for _ in 0..CLIENTS {
                scope.spawn(|| {
                    while !stop.load(Relaxed) {
                        let Ok(mut stream) = UnixStream::connect(&socket) else { continue };
                        stream.set_read_timeout(Some(LIMIT)).unwrap();
                        while talk(&mut stream) && !stop.load(Relaxed) {}
                    }
                });
            }
            world.await_ready();
        });
        if has_met(&world.ask(joins, "INFO commandstats")) {
            return;
        }
    }
    panic!("no client has met the moment in {ROUNDS} rounds");
}

/// How often Redis has counted this of a command.
fn count(counts: &str, command: &str, what: &str) -> u32 {
    let mut lines = counts.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.strip_prefix(command));
    let fields = lines.find_map(|line| line.strip_prefix(':')).unwrap_or_default();
    let field = fields.split(',').find_map(|field| field.strip_prefix(what)?.strip_prefix('='));
    field.map_or(0, |number| number.parse().unwrap())
}

/// Redis refuses it then, and leaves the client in its transaction: its next command would be queued.
#[test]
fn root_exec_at_the_cut_is_answered_by_closing_the_connection() {
    let Some(mut world) = World::new(2, "hsuc") else { return };
    let wrong = Mutex::new(BTreeSet::new());
    let talk = |stream: &mut UnixStream| {
        let answers = ["MULTI", "GET key", "EXEC"].map(|line| ask(stream, line));
        let is_right = match &answers {
            [begun, queued, executed] if begun == "+OK\r\n" && queued == "+QUEUED\r\n" => {
                executed.is_empty() || executed.starts_with("*1\r\n")
            }
            [.., executed] => executed.is_empty(),
        };
        let has_ended = answers[2].is_empty();
        if !is_right {
            wrong.lock().unwrap().insert(answers);
        }
        !has_ended
    };
    at_the_cut(&mut world, talk, |counts| count(counts, "fide.skip", "rejected_calls") > 0);
    assert_eq!(wrong.into_inner().unwrap(), BTreeSet::new());
    world.assert_alike();
}

/// The rest of a long pipeline may be read once the server follows.
#[test]
fn root_nothing_behind_a_multi_at_the_cut_is_executed() {
    let Some(mut world) = World::new(2, "hsuc") else { return };
    let executed = AtomicU32::new(0);
    let talk = |stream: &mut UnixStream| {
        let begun = ask(stream, "MULTI");
        if begun == "+OK\r\n" {
            return !ask(stream, "DISCARD").is_empty();
        }
        // It is refused or ended until then.
        let mut answer = begun;
        while answer.starts_with('-') {
            answer = ask(stream, "INCR part");
        }
        executed.fetch_add(u32::from(!answer.is_empty()), Relaxed);
        !answer.is_empty()
    };
    let has_met = |counts: &str| executed.load(Relaxed) > 0 || count(counts, "fide.multi", "failed_calls") > 0;
    at_the_cut(&mut world, talk, has_met);
    assert_eq!(world.ask(world.leader(), "GET part"), "$-1\r\n", "executed {executed:?} times");
    world.assert_alike();
}
