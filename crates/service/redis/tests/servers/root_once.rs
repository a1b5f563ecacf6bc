// SPDX-License-Identifier: Apache-2.0
//! Numbered requests happen once, however often they are sent and whoever leads.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::Duration,
};

use rand::RngExt as _;
use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};

use crate::world::World;

#[test]
fn root_retry_has_the_first_answer_at_every_server() {
    let Some(mut world) = World::new(3, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    for (host, line, wanted) in [
        (leader, "FIDE.ONCE c 1 INCR n", ":1\r\n"),
        (leader, "FIDE.ONCE c 1 INCR n", ":1\r\n"),
        (follower, "FIDE.ONCE c 1 INCR n", ":1\r\n"),
        (follower, "FIDE.ONCE c 2 INCR n", ":2\r\n"),
        (leader, "fide.once c 2 INCR n", ":2\r\n"),
        (leader, "FIDE.ONCE d 1 INCR n", ":3\r\n"),
        // Answers of all kinds, and of commands that do nothing.
        (leader, "FIDE.ONCE c 3 RPUSH l a b c", ":3\r\n"),
        (leader, "FIDE.ONCE c 4 LPOP l 2", "*2\r\n$1\r\na\r\n$1\r\nb\r\n"),
        (follower, "FIDE.ONCE c 4 LPOP l 2", "*2\r\n$1\r\na\r\n$1\r\nb\r\n"),
        (leader, "FIDE.ONCE c 5 SPOP none", "$-1\r\n"),
        (leader, "SADD none x", ":1\r\n"),
        (leader, "FIDE.ONCE c 5 SPOP none", "$-1\r\n"),
        (leader, "FIDE.ONCE c 6 EVAL return(redis.call('INCR','s')) 0", ":1\r\n"),
        (follower, "FIDE.ONCE c 6 EVAL return(redis.call('INCR','s')) 0", ":1\r\n"),
        // A script has failed and done something: its retry does nothing.
        (leader, "GET s", "$1\r\n1\r\n"),
    ] {
        assert_eq!(world.ask(host, line), wanted, "{line} at h{host}");
    }
    let failed = "FIDE.ONCE c 7 EVAL redis.call('INCR','s');redis.call('INCR','l') 0";
    let first = world.ask(leader, failed);
    assert!(first.starts_with("-WRONGTYPE"), "{first}");
    assert_eq!((world.ask(follower, failed), world.ask(leader, "GET s").as_str()), (first, "$1\r\n2\r\n"));
    // What has failed and done nothing may succeed later.
    assert!(world.ask(leader, "FIDE.ONCE c 8 INCR l").starts_with("-WRONGTYPE"));
    world.ask(leader, "DEL l");
    assert_eq!(world.ask(leader, "FIDE.ONCE c 8 INCR l"), ":1\r\n");
    // FLUSHALL forgets no answer.
    world.ask(leader, "FLUSHALL");
    assert_eq!(world.ask(leader, "FIDE.ONCE c 8 INCR l"), ":1\r\n");
    world.assert_alike();
    // The next leader, one that was not there, and one that took over.
    world.kill(leader);
    world.await_ready();
    let next = world.leader();
    assert_eq!(world.ask(next, "FIDE.ONCE c 8 INCR l"), ":1\r\n");
    assert_eq!(world.ask(next, "FIDE.ONCE c 9 INCR n"), ":1\r\n");
    world.start(leader);
    world.await_ready();
    world.assert_alike();
    assert_eq!(world.status(leader)["numbered"]["clients"], 2);
    world.ask(next, "SET x y");
    assert_eq!(world.ask(next, &format!("FIDE.TRANSFER h{leader}")), "+OK\r\n");
    world.await_ready();
    assert_eq!(world.leader(), leader);
    assert_eq!(world.ask(leader, "FIDE.ONCE c 9 INCR n"), ":1\r\n");
    assert_eq!(world.ask(leader, "GET n"), "$1\r\n1\r\n");
    world.assert_alike();
}

#[test]
fn root_numbered_requests_are_refused_by_name() {
    let Some(world) = World::new(2, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    let long = "x".repeat(65);
    world.ask(leader, "FIDE.ONCE c 5 INCR n");
    world.ask(leader, &format!("SET big {}", "x".repeat(5000)));
    assert!(world.ask(leader, "FIDE.ONCE big 1 GETDEL big").starts_with("$5000"));
    for (line, wanted) in [
        (
            "FIDE.ONCE big 1 GETDEL big",
            "-ONCE number 1 of client big was executed, and its answer was longer than 4096",
        ),
        ("FIDE.ONCE c 4 INCR n", "-ONCE number 4 of client c is over: the last one was 5"),
        (&format!("FIDE.ONCE {long} 1 INCR n"), "-ONCE an id of 65 bytes; 1 to 64 name a client"),
        ("FIDE.ONCE c x INCR n", "-ERR the number of FIDE.ONCE is"),
        ("FIDE.ONCE c -1 INCR n", "-ERR the number of FIDE.ONCE is"),
        ("FIDE.ONCE c 6", "-ERR FIDE.ONCE takes the client's id, a number, and a command"),
        ("FIDE.ONCE c 6 GET n", "-ERR FIDE.ONCE takes a write, a script or a function, and GET is none"),
        ("FIDE.ONCE c 6 BLPOP l 1", "-ERR FIDE.ONCE does not take BLPOP: it may wait"),
        ("FIDE.ONCE c 6 REPLICAOF NO ONE", "-ERR REPLICAOF is refused in a group"),
        ("FIDE.ONCE c 6 FIDE.ONCE c 6 INCR n", "-ERR FIDE.ONCE takes a write"),
        ("EVAL return(redis.call('FIDE.ONCE','c','6','INCR','n')) 0", "-ERR FIDE.ONCE cannot stand in a transaction"),
    ] {
        for host in [leader, follower] {
            if host == follower && line.starts_with("EVAL") {
                continue;
            }
            let reply = world.ask(host, line);
            assert!(reply.starts_with(wanted), "{line} at h{host}: {reply}");
        }
    }
    let mut connection = world.connect(leader);
    redis::cmd("MULTI").exec(&mut connection).unwrap();
    redis::cmd("FIDE.ONCE").arg("c").arg(6).arg("INCR").arg("n").exec(&mut connection).unwrap();
    let replies = redis::cmd("EXEC").query::<Vec<redis::Value>>(&mut connection);
    assert!(format!("{replies:?}").contains("cannot stand in a transaction"), "{replies:?}");
    assert_eq!(world.ask(leader, "GET n"), "$1\r\n1\r\n", "nothing of all that has happened");
    world.assert_alike();
}

const CLIENTS: usize = 4;
const KILLS: usize = 4;

/// Sends each request until it is answered, at any server.
fn count(world: &[std::path::PathBuf], name: &str, stop: &AtomicBool, retries: &AtomicU64, seed: u64) -> u64 {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut number = 0;
    while !stop.load(Relaxed) {
        number += 1;
        for attempt in 0.. {
            if attempt > 0 {
                retries.fetch_add(1, Relaxed);
                thread::sleep(Duration::from_millis(5));
            }
            let socket = &world[random.random_range(0..world.len())];
            let Ok(client) = redis::Client::open(format!("redis+unix://{}", socket.display())) else { continue };
            let Ok(mut connection) = client.get_connection() else { continue };
            let _ = connection.set_read_timeout(Some(Duration::from_secs(8)));
            let mut command = redis::cmd("FIDE.ONCE");
            command.arg(name).arg(number).arg("EVAL").arg("redis.call('INCR','all') return redis.call('INCR',KEYS[1])");
            match command.arg(1).arg(format!("n{name}")).query::<u64>(&mut connection) {
                Ok(value) => {
                    assert_eq!(value, number, "{name}: each number counts once");
                    break;
                }
                Err(why) => assert!(!why.to_string().contains("ONCE"), "{name} {number}: {why}"),
            }
        }
    }
    number
}

#[test]
fn root_each_number_counts_once_while_leaders_are_killed() {
    for protocol in ["hsuc", "huc"] {
        let Some(mut world) = World::new(3, protocol) else { return };
        let sockets: Vec<_> = world.hosts().iter().map(|host| world.server(*host).socket()).collect();
        let (stop, retries) = (AtomicBool::new(false), AtomicU64::new(0));
        let mut random = ChaCha8Rng::seed_from_u64(7);
        let counts: Vec<u64> = thread::scope(|scope| {
            let (sockets, stop, retries) = (&sockets, &stop, &retries);
            let clients: Vec<_> = (0..CLIENTS)
                .map(|at| scope.spawn(move || count(sockets, &format!("c{at}"), stop, retries, at as u64)))
                .collect();
            let _stops = Stops(stop);
            for _ in 0..KILLS {
                thread::sleep(Duration::from_millis(random.random_range(100..400)));
                let leader = world.leader();
                world.kill(leader);
                world.await_ready();
                thread::sleep(Duration::from_millis(random.random_range(0..100)));
                world.start(leader);
                world.await_ready();
            }
            stop.store(true, Relaxed);
            clients.into_iter().map(|client| client.join().unwrap()).collect()
        });
        world.assert_alike();
        let leader = world.leader();
        for (at, count) in counts.iter().enumerate() {
            assert_eq!(
                world.ask(leader, &format!("GET nc{at}")),
                format!("${}\r\n{count}\r\n", count.to_string().len())
            );
        }
        let all: u64 = counts.iter().sum();
        println!("{protocol}: {all} numbers, {} retries, {KILLS} leaders killed", retries.load(Relaxed));
        assert_eq!(world.ask(leader, "GET all"), format!("${}\r\n{all}\r\n", all.to_string().len()));
        assert!(retries.load(Relaxed) > 0, "nothing was sent again");
    }
}

/// Ends the clients also when the test fails meanwhile.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
