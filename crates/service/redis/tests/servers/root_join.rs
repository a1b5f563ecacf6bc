// SPDX-License-Identifier: Apache-2.0
//! A server that takes over the data of another one has the same data, whatever that one writes meanwhile.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

use fide_testbed::retry_until;
use redis::{Connection, RedisResult, Value};

use crate::{
    root_commands::{run, stream},
    world::{LIMIT, Stops, World},
};

/// A counter whose registers end in the middle: PFADD adds elements of the first half, and fails at the first one of the
/// second.
const DAMAGED: &[u8] = b"HYLL\x01\0\0\0\0\0\0\0\0\0\0\0\x5f\xff";

/// So many keys, each with so many bytes: they take a moment to be loaded.
fn fill(connection: &mut Connection, keys: u32, bytes: usize) {
    for number in 0..keys {
        redis::cmd("SET").arg(format!("other{number}")).arg("x".repeat(bytes)).exec(connection).unwrap();
    }
}

fn set_damaged(connection: &mut Connection, key: &str) {
    redis::cmd("SET").arg(key).arg(DAMAGED).exec(connection).unwrap();
}

/// Elements that the damaged counter takes, and behind them such that it does not.
fn elements(connection: &mut Connection) -> String {
    let (taken, refused): (Vec<char>, Vec<char>) = ('a'..='z').partition(|element| {
        set_damaged(connection, "damaged");
        run(connection, &format!("PFADD damaged {element}")).is_ok()
    });
    assert!(!taken.is_empty() && !refused.is_empty(), "{taken:?} {refused:?}");
    taken.into_iter().chain(refused).map(String::from).collect::<Vec<_>>().join(" ")
}

/// Has a server join while `write` is called, with a number that counts up.
fn join_while(prepare: impl Fn(&mut Connection), write: impl Fn(&mut Connection, u32) + Sync) -> Option<World> {
    /// So that it takes a moment to load them.
    const OTHERS: u32 = 2000;
    let mut world = World::new(2, "hsuc")?;
    let (leader, follower) = (world.leader(), world.followers()[0]);
    world.kill(follower);
    let mut connection = world.connect(leader);
    fill(&mut connection, OTHERS, 1000);
    prepare(&mut connection);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stops = Stops(&stop);
        scope.spawn(|| {
            for number in 0.. {
                if stop.load(Relaxed) {
                    return;
                }
                write(&mut connection, number);
            }
        });
        world.start(follower);
        world.await_ready();
    });
    world.assert_alike();
    Some(world)
}

/// Redis would queue what refuses an EXEC, and answer QUEUED.
#[test]
fn root_transaction_of_a_server_that_joins_is_ended_by_closing_the_connection() {
    const ROUNDS: usize = 20;
    let Some(mut world) = World::new(2, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    let mut connection = world.connect(leader);
    fill(&mut connection, 20_000, 1000);
    let mut ended = 0;
    for _ in 0..ROUNDS {
        world.kill(follower);
        world.start(follower);
        loop {
            let mut client = world.connect(follower);
            // Taken in any state: what stands behind it in a pipeline would be executed by itself. But for the moments in
            // which the server begins, and ends what was queued before, and in which it leaves the other one's stream.
            if let Err(why) = run(&mut client, "MULTI") {
                assert!(why.is_io_error(), "{why}");
                continue;
            }
            match run(&mut client, "EXEC") {
                Ok(answer) => assert_eq!(answer, Value::Array(Vec::new())),
                Err(why) => {
                    assert!(why.is_io_error(), "{why}");
                    ended += 1;
                }
            }
            if world.mode(follower) == "following" {
                break;
            }
        }
        world.await_ready();
        if ended > 0 {
            return world.assert_alike();
        }
    }
    panic!("no EXEC was refused in {ROUNDS} rounds");
}

/// The second one waits for the first one's dump to end, so its own comes late, and the marks of the first one's are in
/// the stream behind it.
#[test]
fn root_two_servers_join_at_once_under_load() {
    const KEYS: u32 = 4000;
    const CLIENTS: u64 = 4;
    let Some(mut world) = World::new(3, "hsuc") else { return };
    let (leader, followers) = (world.leader(), world.followers());
    let mut connection = world.connect(leader);
    fill(&mut connection, KEYS, 1);
    // A dump takes two seconds.
    world.ask(leader, "CONFIG SET rdb-key-save-delay 500");
    let stop = AtomicBool::new(false);
    let sockets = world.server(leader).socket();
    thread::scope(|scope| {
        let _stops = Stops(&stop);
        for writer in 0..CLIENTS {
            let (stop, sockets) = (&stop, &sockets);
            scope.spawn(move || {
                let client = redis::Client::open(format!("redis+unix://{}", sockets.display())).unwrap();
                let mut connection = client.get_connection().unwrap();
                for number in 0_u64.. {
                    if stop.load(Relaxed) {
                        return;
                    }
                    let mut set = redis::cmd("SET");
                    set.arg(format!("k{writer}:{}", number % 100)).arg("x".repeat(1000));
                    set.exec(&mut connection).expect("writes go on");
                }
            });
        }
        followers.iter().for_each(|host| {
            world.kill(*host);
        });
        followers.iter().for_each(|host| world.start(*host));
        world.await_ready();
    });
    world.assert_alike();
}

/// The offer names the server that the data comes from.
#[test]
fn root_server_whose_source_dies_takes_the_data_over_from_another_one() {
    const KEYS: u32 = 4000;
    let Some(mut world) = World::new(3, "hsuc") else { return };
    let (leader, followers) = (world.leader(), world.followers());
    let mut connection = world.connect(leader);
    fill(&mut connection, KEYS, 1);
    world.kill(followers[1]);
    // A dump takes two seconds.
    world.ask(leader, "CONFIG SET rdb-key-save-delay 500");
    world.start(followers[1]);
    let syncs = retry_until("a dump under way", LIMIT, || {
        let info = world.ask(leader, "INFO persistence");
        if info.contains("rdb_bgsave_in_progress:1") { Ok(()) } else { Err(world.mode(followers[1])) }
    });
    syncs.unwrap_or_else(|why| panic!("{why}\n{}", world.logs()));
    world.kill(leader);
    world.await_ready();
    assert_eq!(world.leader(), followers[0]);
    world.assert_alike();
    assert_eq!(world.ask(followers[1], "GET other7"), "$1\r\nx\r\n");
}

/// Redis replicates what a script does only where the command around it is to be replicated.
#[test]
fn root_script_that_a_follower_passes_on_is_at_a_server_that_joins() {
    const ROUNDS: usize = 3;
    let Some(mut world) = World::new(3, "hsuc") else { return };
    let (leader, followers) = (world.leader(), world.followers());
    let code = "#!lua name=l\nredis.register_function('count', function(keys) return redis.call('INCR', keys[1]) end)";
    world.server(leader).command(&["FUNCTION", "LOAD", code]).unwrap();
    let mut connection = world.connect(leader);
    fill(&mut connection, 2000, 1000);
    let mut asks = world.connect(followers[0]);
    let stop = AtomicBool::new(false);
    let counted = thread::scope(|scope| {
        let _stops = Stops(&stop);
        let counts = scope.spawn(|| {
            let mut counted = 0;
            while !stop.load(Relaxed) {
                for words in [["EVAL", "return redis.call('INCR',KEYS[1])", "1", "n"], ["FCALL", "count", "1", "m"]] {
                    redis::cmd(words[0]).arg(&words[1..]).exec(&mut asks).unwrap();
                }
                counted += 1;
            }
            counted
        });
        for _ in 0..ROUNDS {
            world.kill(followers[1]);
            world.start(followers[1]);
            world.await_ready();
        }
        stop.store(true, Relaxed);
        counts.join().expect("a client")
    });
    world.assert_alike();
    assert_eq!(world.ask(leader, "GET n"), format!("${}\r\n{counted}\r\n", counted.to_string().len()));
}

/// Servers that have taken over from one another would call their histories by the same name. A former leader that goes
/// on as another one's replica takes over all data: a place in its own stream is none in that of another server.
#[test]
fn root_former_leader_that_lived_on_takes_over_all_data() {
    let Some(mut world) = World::new(3, "hsuc") else { return };
    let (leader, followers) = (world.leader(), world.followers());
    for host in followers {
        world.kill(host);
        world.start(host);
        world.await_ready();
    }
    for _ in 0..30 {
        world.ask(leader, "INCR n");
    }
    world.bed.isolate(leader).expect("cut");
    let others = world.hosts().into_iter().filter(|host| *host != leader).collect::<Vec<_>>();
    let next = retry_until("another leader", LIMIT, || {
        others.iter().copied().find(|host| world.mode(*host) == "leader").ok_or("none".to_owned())
    });
    let next = next.unwrap_or_else(|why| panic!("{why}\n{}", world.logs()));
    world.ask(next, "INCR n");
    world.bed.rejoin(leader).expect("back");
    world.await_ready();
    world.assert_alike();
    assert_eq!(world.ask(leader, "GET n"), "$2\r\n31\r\n");
    for host in world.hosts() {
        let log = world.server(host).log();
        let is_let_go_on =
            |line: &str| line.contains("Partial resynchronization request from") && line.contains("accepted");
        assert!(!log.lines().any(is_let_go_on), "{}", world.logs());
    }
}

/// The order of members that weigh the same is another one at each server.
#[test]
fn root_joining_server_has_sorted_lists_as_the_leader_has_them() {
    const KEYS: u32 = 500;
    join_while(
        |connection| {
            for member in 0..100 {
                run(connection, &format!("SADD s m{member}")).unwrap();
                run(connection, &format!("SET w:m{member} same")).unwrap();
            }
            run(connection, "GEOADD geo 13.361389 38.115556 Palermo 15.087269 37.502669 Catania").unwrap();
        },
        |connection, request| {
            let number = request % KEYS;
            run(connection, &format!("SORT s BY w:* ALPHA STORE list{number}")).unwrap();
            run(connection, &format!("FIDE.ONCE c{number} {request} SORT s BY w:* ALPHA STORE numbered{number}"))
                .unwrap();
            let script = format!("EVAL return(redis.call('SORT','s','BY','w:*','ALPHA','STORE','script{number}')) 0");
            run(connection, &script).unwrap();
            run(connection, &format!("GEOSEARCHSTORE geo{number} geo FROMLONLAT 15 37 BYRADIUS 200 km ASC")).unwrap();
            run(connection, &format!("GEORADIUS geo 15 37 200 km STOREDIST dist{number}")).unwrap();
        },
    );
}

#[test]
fn root_joining_server_has_what_a_failed_command_did() {
    let known = OnceLock::new();
    join_while(
        |connection| known.set(elements(connection)).expect("once"),
        |connection, number| {
            let (key, elements) = (format!("damaged{number}"), known.get().expect("prepared"));
            set_damaged(connection, &key);
            run(connection, &format!("PFADD {key} {elements}")).expect_err("it is damaged");
        },
    );
}

/// A script may keep from replicas what it writes. A group has it at all servers, also one that joins.
#[test]
fn root_joining_server_has_what_a_script_keeps_from_replicas() {
    join_while(
        |_| {},
        |connection, number| {
            let script = "redis.set_repl(redis.REPL_NONE) return redis.call('INCR',KEYS[1])";
            redis::cmd("EVAL").arg(script).arg(1).arg(format!("n{number}")).exec(connection).unwrap();
        },
    );
}

/// Redis believes that these have changed nothing, and tells no replica.
#[test]
fn root_joining_server_has_what_redis_does_not_replicate() {
    let world = join_while(
        |connection| {
            run(connection, "XADD x 1-1 f v").unwrap();
        },
        |connection, number| {
            run(connection, &format!("BITFIELD bits{number} OVERFLOW FAIL INCRBY u1 0 5")).unwrap();
            // Enough groups for a while: who reads all of them gets a long answer.
            if number < 2000 {
                run(connection, &format!("XGROUP CREATE x g{number} 0")).unwrap();
                run(connection, &format!("XREADGROUP GROUP g{number} alice COUNT 1 STREAMS x >")).unwrap();
                run(connection, &format!("XREADGROUP GROUP g{number} alice STREAMS x 0")).unwrap();
                run(connection, &format!("XREADGROUP GROUP g{number} nobody STREAMS x 0")).unwrap();
            }
        },
    );
    let Some(world) = world else { return };
    let [one, other] = [1, 2].map(|host| stream(&mut world.connect(host), "x"));
    let differs = one.iter().zip(&other).position(|(one, other)| one != other);
    let around = |all: &[String]| differs.map(|at| all[at.saturating_sub(20)..at + 1].join(" "));
    assert_eq!(around(&one), around(&other));
    assert_eq!(one.len(), other.len());
}

#[test]
fn root_command_that_fails_half_way_leaves_all_servers_alike() {
    let Some(world) = World::new(2, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    let mut connection = world.connect(leader);
    let changed = |world: &World, key: &str| {
        let mut connection = world.connect(leader);
        let value: Vec<u8> = redis::cmd("GET").arg(key).query(&mut connection).unwrap();
        value != DAMAGED
    };
    let elements = elements(&mut connection);
    for (key, host, command) in [
        ("alone", leader, format!("PFADD alone {elements}")),
        ("passed", follower, format!("PFADD passed {elements}")),
        ("numbered", leader, format!("FIDE.ONCE c 1 PFADD numbered {elements}")),
        ("script", leader, "EVAL return(redis.call('PFADD','script',unpack(ARGV))) 0 ".to_owned() + &elements),
    ] {
        set_damaged(&mut connection, key);
        let expiring: RedisResult<Value> = run(&mut connection, &format!("EXPIRE {key} 1000"));
        expiring.unwrap();
        let why = run(&mut world.connect(host), &command).expect_err(key).to_string();
        assert!(why.contains("INVALIDOBJ") || why.contains("Corrupted"), "{key}: {why}");
        assert!(changed(&world, key), "{key}: it did nothing, and shows nothing");
        world.assert_alike();
        assert_eq!(
            world.ask(follower, &format!("PEXPIRETIME {key}")),
            world.ask(leader, &format!("PEXPIRETIME {key}"))
        );
    }
}
