// SPDX-License-Identifier: Apache-2.0
//! `durable disk`: all servers end at once, and what was acknowledged is there when they are back.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use fide_testbed::retry_until;

use crate::world::{LIMIT, World, foreign_module};

/// So small that each test has dumps.
const ARGUMENTS: [&str; 4] = ["durable", "disk", "log-bytes", "100000"];

impl World {
    pub(crate) fn kill_all(&mut self) {
        for host in self.hosts() {
            self.kill(host);
        }
    }

    pub(crate) fn start_all(&mut self) {
        (1..=self.servers.len())
            .filter(|host| self.servers[host - 1].is_none())
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|host| self.start(host));
        self.await_ready();
    }

    /// A client has been acknowledged so many writes.
    fn await_count(&self, acknowledged: &AtomicU64, least: u64) {
        let enough = retry_until("writes", LIMIT, || {
            let count = acknowledged.load(Ordering::Relaxed);
            if count >= least { Ok(()) } else { Err(format!("{count} so far")) }
        });
        enough.unwrap_or_else(|why| panic!("{why}\n{}", self.logs()));
    }

    /// Every server's log begins with a state: it has one to come back from.
    fn await_states(&self) {
        let stored = retry_until("a state on each disk", LIMIT, || {
            let lacks: Vec<usize> = self.hosts().into_iter().filter(|host| !has_state(self, *host)).collect();
            if lacks.is_empty() { Ok(()) } else { Err(format!("{lacks:?} have none")) }
        });
        stored.unwrap_or_else(|why| panic!("{why}\n{}", self.logs()));
    }
}

pub(crate) fn has_state(world: &World, host: usize) -> bool {
    let dir = world.server(host).dir().join("group/redis.log");
    let manifest = std::fs::read_to_string(dir.join("manifest.toml")).unwrap_or_default();
    manifest.contains("[base]")
}

#[test]
fn root_data_is_back_after_all_servers_have_ended() {
    let Some(mut world) = World::with(3, "hsuc", &ARGUMENTS) else { return };
    let leader = world.leader();
    for line in [
        "SET k v",
        "RPUSH l a b c",
        "SADD s x",
        "ZADD z 1 m",
        "XADD x 1-1 f v",
        "SET gone v PX 1",
        "SELECT 0",
        "HSET h f v",
    ] {
        world.ask(leader, line);
    }
    assert_eq!(world.ask(leader, "FIDE.ONCE me 1 INCR n"), ":1\r\n");
    world.assert_alike();
    for round in 1..=3_u64 {
        world.kill_all();
        world.start_all();
        let leader = world.leader();
        assert_eq!(world.ask(leader, "GET k"), "$1\r\nv\r\n", "round {round}\n{}", world.logs());
        assert_eq!(world.ask(leader, "LRANGE l 0 -1"), "*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n");
        let before = if round == 1 { 1 } else { round - 1 };
        let again = world.ask(leader, &format!("FIDE.ONCE me {round} INCR n"));
        assert_eq!(again, format!(":{before}\r\n"), "it was answered before");
        assert_eq!(world.ask(leader, &format!("FIDE.ONCE me {} INCR more", round + 1)), format!(":{round}\r\n"));
        world.assert_alike();
        // Some 150 kB, so that the next round comes back from dumps.
        for number in 0..150 {
            world.ask(leader, &format!("SET filler:{number} {}", "x".repeat(1000)));
        }
        world.assert_alike();
        world.await_states();
        assert!(
            world.logs().contains("all servers of the group had ended, and it goes on from this server"),
            "{}",
            world.logs()
        );
    }
    assert_eq!(world.ask(world.leader(), "DBSIZE"), ":158\r\n");
}

/// A client writes and counts what was acknowledged; the servers end in the middle of it.
#[test]
fn root_no_acknowledged_write_is_lost_when_all_servers_end() {
    for protocol in ["hsuc", "huc"] {
        let Some(mut world) = World::with(3, protocol, &ARGUMENTS) else { return };
        for round in 0..3 {
            let leader = world.leader();
            let (acknowledged, ends) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
            let mut connection = world.connect(leader);
            let writer = {
                let (acknowledged, ends) = (Arc::clone(&acknowledged), Arc::clone(&ends));
                std::thread::spawn(move || {
                    while !ends.load(Ordering::Relaxed) {
                        let number = acknowledged.load(Ordering::Relaxed) + 1;
                        let set =
                            redis::cmd("SET").arg(format!("{round}:{number}")).arg(number).query::<()>(&mut connection);
                        if set.is_err() {
                            return;
                        }
                        acknowledged.store(number, Ordering::Relaxed);
                    }
                })
            };
            world.await_count(&acknowledged, 100);
            // One of them comes back while the others go on, and takes over the data anew.
            if round == 1 {
                let follower = world.followers()[0];
                world.kill(follower);
                world.start(follower);
                world.await_ready();
            }
            world.kill_all();
            ends.store(true, Ordering::Relaxed);
            writer.join().expect("it counts");
            world.start_all();
            let count = acknowledged.load(Ordering::Relaxed);
            let leader = world.leader();
            for number in 1..=count {
                let got = world.ask(leader, &format!("GET {round}:{number}"));
                assert!(
                    got.ends_with(&format!("\r\n{number}\r\n")),
                    "{protocol}: {number} of {count}: {got}\n{}",
                    world.logs()
                );
            }
            world.assert_alike();
        }
    }
}

/// Who comes back while others lived takes over their data, not its own.
#[test]
fn root_server_that_was_away_brings_nothing_old_back() {
    let Some(mut world) = World::with(3, "hsuc", &ARGUMENTS) else { return };
    let leader = world.leader();
    world.ask(leader, "SET k old");
    world.assert_alike();
    world.kill(leader);
    world.await_ready();
    world.ask(world.leader(), "SET k new");
    world.kill_all();
    world.start_all();
    for host in world.hosts() {
        assert_eq!(world.ask(host, "GET k"), "$3\r\nnew\r\n", "h{host}\n{}", world.logs());
    }
    world.assert_alike();
}

/// All hosts are excluded at once while a client writes: what the leader had executed and nobody decided is in its data.
#[test]
fn root_leader_that_is_excluded_in_the_middle_of_a_write_answers_nothing_that_may_be_lost() {
    let Some(mut world) = World::with(3, "hsuc", &ARGUMENTS) else { return };
    for round in 0..3 {
        let leader = world.leader();
        let (acknowledged, ends) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let mut connection = world.connect(leader);
        let writer = {
            let (acknowledged, ends) = (Arc::clone(&acknowledged), Arc::clone(&ends));
            std::thread::spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    let count: Result<u64, _> = redis::cmd("INCR").arg("count").query(&mut connection);
                    let Ok(count) = count else { return };
                    acknowledged.store(count, Ordering::Relaxed);
                }
            })
        };
        let before = acknowledged.load(Ordering::Relaxed);
        world.await_count(&acknowledged, before + 50);
        for host in 1..=3 {
            world.agents.kill(host).expect("it runs");
        }
        for host in 1..=3 {
            world.agents.start_again(host).expect("an agent");
        }
        // A service manager would start a server again that has ended.
        let ready = retry_until("all servers", LIMIT, || {
            for host in 1..=3 {
                if world.servers[host - 1].as_mut().is_some_and(|server| server.ended().is_some()) {
                    world.start(host);
                }
            }
            let modes: Vec<String> = (1..=3).map(|host| world.mode(host)).collect();
            let leaders = modes.iter().filter(|mode| *mode == "leader").count();
            let followers = modes.iter().filter(|mode| *mode == "following").count();
            if (leaders, followers) == (1, 2) { Ok(()) } else { Err(format!("{modes:?}")) }
        });
        ends.store(true, Ordering::Relaxed);
        ready.unwrap_or_else(|why| panic!("round {round}: {why}\n{}", world.logs()));
        writer.join().expect("it counts");
        let count = acknowledged.load(Ordering::Relaxed);
        let got = world.ask(world.leader(), "GET count");
        let got: u64 = got.lines().nth(1).and_then(|count| count.parse().ok()).unwrap_or(0);
        // The write that was under way may have happened, and no other.
        assert!(
            got == count || got == count + 1,
            "round {round}: {got}, and {count} were acknowledged\n{}",
            world.logs()
        );
        world.assert_alike();
        world.kill_all();
        world.start_all();
        let again = world.ask(world.leader(), "GET count");
        assert!(again.ends_with(&format!("\r\n{got}\r\n")), "round {round}: {again} after {got}\n{}", world.logs());
    }
}

/// A follower ends where a command of its link fails. The only copy of the data does not.
#[test]
fn root_error_in_a_log_does_not_keep_the_only_copy_from_coming_back() {
    let Some(module) = foreign_module() else { return };
    let Some(mut world) =
        World::with(1, "hsuc", &["durable", "disk", "other-modules", "foreign", "--loadmodule", &module])
    else {
        return;
    };
    assert_eq!(world.ask(1, "RPUSH l a"), ":1\r\n");
    // What the group does not know of: the next command succeeds here, and not when it is replayed.
    assert_eq!(world.ask(1, "FOREIGN.SET l string"), "+OK\r\n");
    assert_eq!(world.ask(1, "APPEND l x"), ":7\r\n");
    assert_eq!(world.ask(1, "SET after v"), "+OK\r\n");
    world.kill_all();
    world.start_all();
    let log = world.server(1).log();
    assert!(log.contains("== CRITICAL == This replica is sending an error to its master: '-WRONGTYPE"), "{log}");
    assert_eq!(world.ask(1, "GET after"), "$1\r\nv\r\n");
    assert_eq!(world.ask(1, "LLEN l"), ":1\r\n");
}
