// SPDX-License-Identifier: Apache-2.0
//! Servers compare their data; one whose data differs says so, ends, and takes the group's data over.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
};

use fide_testbed::retry_until;

use crate::world::{LIMIT, Stops, World, foreign_module};

impl World {
    /// Compares, and waits until these servers know the outcome: how many had a digest, and which differ.
    pub(crate) fn compare(&self, leader: usize) -> u64 {
        let asked = retry_until("FIDE.COMPARE", LIMIT, || {
            let reply = self.ask(leader, "FIDE.COMPARE");
            let number = reply.strip_prefix(':').and_then(|number| number.trim().parse::<u64>().ok());
            // A server that joins is sent the data by a child.
            if number.is_none() && !reply.starts_with("-TRYAGAIN") {
                panic!("{reply}\n{}", self.logs());
            }
            number.ok_or(reply)
        });
        asked.unwrap_or_else(|why| panic!("{why}\n{}", self.logs()))
    }

    /// Compares until all servers had a digest: one that writes a dump, for its disk or for a server that joins, has
    /// none. All have the same data.
    pub(crate) fn compare_all(&self, leader: usize) {
        let all = retry_until("a comparison of all servers", LIMIT, || {
            let number = self.compare(leader);
            let last: Vec<_> = self.hosts().iter().map(|host| self.await_compared(*host, number)).collect();
            assert!(last.iter().all(|last| last["differ"] == serde_json::json!([])), "{last:?}");
            let is_all = last.iter().all(|last| last["servers"] == self.hosts().len());
            if is_all { Ok(()) } else { Err(format!("{last:?}")) }
        });
        all.unwrap_or_else(|why| panic!("{why}\n{}", self.logs()));
    }

    pub(crate) fn await_compared(&self, host: usize, number: u64) -> serde_json::Value {
        let last = retry_until("the comparison", LIMIT, || {
            let last = self.status(host)["compared"]["last"].clone();
            if last["number"].as_u64() == Some(number) { Ok(last) } else { Err(format!("{last}")) }
        });
        last.unwrap_or_else(|why| panic!("h{host}, comparison {number}: {why}\n{}", self.logs()))
    }

    pub(crate) fn await_end(&mut self, host: usize) -> String {
        let mut server = self.servers[host - 1].take().expect("it runs");
        let ended = retry_until("its end", LIMIT, || {
            server.ended().map_or_else(|| Err("it runs".to_owned()), |status| Ok(status.to_string()))
        });
        ended.unwrap_or_else(|why| panic!("h{host}: {why}\n{}\n{}", server.log(), self.logs()));
        server.log()
    }
}

const ROUNDS: usize = 8;

#[test]
fn root_servers_with_the_same_data_compare_equal_under_load() {
    for protocol in ["hsuc", "huc"] {
        let Some(world) = World::new(3, protocol) else { return };
        let leader = world.leader();
        let code = "#!lua name=l\nredis.register_function('f', function() return 1 end)";
        world.server(leader).command(&["FUNCTION", "LOAD", code]).unwrap();
        let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            for writer in 0..3 {
                let (world, stop, written) = (&world, &stop, &written);
                scope.spawn(move || {
                    let mut connection = world.connect(leader);
                    for n in 0_u64.. {
                        if stop.load(Relaxed) {
                            return;
                        }
                        let mut pipe = redis::pipe();
                        pipe.cmd("SELECT").arg(n % 3).ignore();
                        pipe.cmd("SET").arg(format!("k{writer}:{}", n % 500)).arg(n).arg("PX").arg(1 + n % 40).ignore();
                        pipe.cmd("RPUSH").arg("l").arg(n).ignore();
                        pipe.cmd("LTRIM").arg("l").arg(-100).arg(-1).ignore();
                        pipe.cmd("ZADD").arg("z").arg(n).arg(n % 70).ignore();
                        pipe.cmd("XADD").arg("x").arg("MAXLEN").arg(50).arg("*").arg("f").arg(n).ignore();
                        pipe.cmd("SADD").arg("s").arg(n % 90).ignore();
                        pipe.cmd("SPOP").arg("s").ignore();
                        pipe.cmd("FIDE.ONCE").arg(format!("c{writer}")).arg(n).arg("INCR").arg("n").ignore();
                        pipe.cmd("SET").arg(format!("d{}", n % 50)).arg(n).arg("EX").arg(1000 + n).ignore();
                        pipe.query::<()>(&mut connection).unwrap_or_else(|why| panic!("{why}\n{}", world.logs()));
                        written.fetch_add(10, Relaxed);
                    }
                });
            }
            let _stops = Stops(&stop);
            for round in 1..=ROUNDS {
                let number = world.compare(leader);
                for host in world.hosts() {
                    let last = world.await_compared(host, number);
                    assert_eq!((last["servers"].as_u64(), &last["differ"]), (Some(3), &serde_json::json!([])));
                    let compared = world.status(host)["compared"].clone();
                    let counts = ["count", "skipped", "differed"].map(|name| compared[name].as_u64());
                    assert_eq!(counts, [Some(round as u64), Some(0), Some(0)], "h{host}");
                }
            }
        });
        println!("{protocol}: {ROUNDS} comparisons during {} writes", written.load(Relaxed));
        world.assert_alike();
    }
}

#[test]
fn root_server_whose_data_differs_says_so_and_takes_the_groups_over() {
    let Some(module) = foreign_module() else { return };
    let Some(mut world) = World::beside(3, &module) else {
        return;
    };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    world.ask(leader, "SET k right");
    world.assert_alike();
    world.assert_alike();
    assert_eq!(world.ask(follower, "FOREIGN.SET k wrong"), "+OK\r\n");
    assert_ne!(world.digest(follower), world.digest(leader), "what other tests rely on");
    assert_eq!(world.ask(follower, "GET k"), "$5\r\nwrong\r\n", "nobody has noticed");
    let number = world.compare(leader);
    let log = world.await_end(follower);
    assert!(log.contains(&format!("comparison {number}: at position")), "{log}");
    assert!(log.contains("differs from the group's. Here: data ") && log.contains("The group: data "), "{log}");
    for host in world.hosts() {
        let last = world.await_compared(host, number);
        assert_eq!(
            (last["servers"].as_u64(), &last["differ"]),
            (Some(3), &serde_json::json!([format!("h{follower}")]))
        );
        let log = world.server(host).log();
        assert!(log.contains(&format!("comparison {number} found servers whose data differs: ")), "{log}");
    }
    world.start(follower);
    world.await_ready();
    assert_eq!(world.ask(follower, "GET k"), "$5\r\nright\r\n");
    world.assert_alike();
    // The leader is one of three, too.
    assert_eq!(world.ask(leader, "FOREIGN.SET other wrong"), "+OK\r\n");
    world.compare(leader);
    world.await_end(leader);
    world.await_ready();
    let next = world.leader();
    assert_eq!(world.ask(next, "EXISTS other"), ":0\r\n");
    assert_eq!(world.ask(next, "INCR n"), ":1\r\n");
    world.start(leader);
    world.await_ready();
    assert_eq!(world.ask(leader, "EXISTS other"), ":0\r\n");
    world.assert_alike();
    let number = world.compare(next);
    for host in world.hosts() {
        assert_eq!(world.await_compared(host, number)["differ"], serde_json::json!([]));
    }
}

/// What a digest of Redis does not show.
#[test]
fn root_comparison_is_made_by_itself_and_sees_deadlines() {
    let Some(module) = foreign_module() else { return };
    let Some(mut world) = World::beside(2, &module) else {
        return;
    };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    // A second deadline behind the group's back: both have one, and the same value.
    world.ask(leader, "SET k v EX 1000");
    world.assert_alike();
    assert_eq!(world.ask(follower, "FOREIGN.EXPIRE k 2000000"), "+OK\r\n");
    world.assert_alike();
    assert_eq!(world.ask(leader, "CONFIG SET fide.compare-every 1"), "+OK\r\n");
    let log = world.await_end(follower);
    assert!(log.contains("differs from the group's"), "{log}");
    world.start(follower);
    world.await_ready();
    let count = || world.status(follower)["compared"]["count"].as_u64().unwrap_or(0);
    retry_until("a comparison", LIMIT, || if count() > 0 { Ok(()) } else { Err("none".to_owned()) }).unwrap();
    assert_eq!(world.status(follower)["compared"]["differed"], 0);
    assert_eq!(world.ask(leader, "CONFIG SET fide.compare-every 0"), "+OK\r\n");
}

/// A server whose child is at work takes no digest, and a leader that dies takes the comparison with it.
#[test]
fn root_comparison_is_left_out_where_redis_has_a_child() {
    let Some(mut world) = World::new(3, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    let mut connection = world.connect(leader);
    for n in 0..200 {
        redis::cmd("SET").arg(format!("k{n}")).arg(vec![b'x'; 1000]).exec(&mut connection).unwrap();
    }
    world.assert_alike();
    // 200 keys, each 10 ms.
    assert_eq!(world.ask(follower, "CONFIG SET rdb-key-save-delay 10000"), "+OK\r\n");
    // On a connection that stays: the child has it, too, so its end would come with that of the child.
    let mut other = world.connect(follower);
    redis::cmd("BGSAVE").exec(&mut other).unwrap();
    let number = world.compare(leader);
    for host in world.hosts() {
        let last = world.await_compared(host, number);
        assert_eq!((last["servers"].as_u64(), &last["differ"]), (Some(2), &serde_json::json!([])));
        assert_eq!(world.status(host)["compared"]["skipped"], u64::from(host == follower), "h{host}");
    }
    for (host, line, wanted) in [
        (follower, "FIDE.COMPARE", format!("-ERR the leader is h{leader} at")),
        (leader, "FIDE.COMPARE now", "-ERR FIDE.COMPARE takes no arguments".to_owned()),
        (leader, "FIDE.DIGEST 1 2 x", "-ERR FIDE.DIGEST is for".to_owned()),
        (leader, "CONFIG SET fide.compare-every -1", "-ERR".to_owned()),
    ] {
        let reply = world.ask(host, line);
        assert!(reply.starts_with(&wanted), "{line}: {reply}");
    }
    world.compare(leader);
    world.kill(leader);
    world.await_ready();
    let next = world.leader();
    let number = world.compare(next);
    for host in world.hosts() {
        assert_eq!(world.await_compared(host, number)["differ"], serde_json::json!([]), "h{host}");
    }
    world.assert_alike();
}

/// What the log on disk says of comparisons is over when all servers come back.
#[test]
fn root_comparisons_in_a_log_on_disk_are_not_made_again() {
    let Some(mut world) = World::with(3, "hsuc", &["durable", "disk"]) else { return };
    let leader = world.leader();
    for n in 0..3 {
        world.ask(leader, &format!("SET k{n} v"));
        let number = world.compare(leader);
        for host in world.hosts() {
            assert_eq!(world.await_compared(host, number)["differ"], serde_json::json!([]), "h{host}");
        }
    }
    world.kill_all();
    world.start_all();
    let leader = world.leader();
    assert_eq!(world.ask(leader, "DBSIZE"), ":3\r\n");
    for host in world.hosts() {
        assert_eq!(world.status(host)["compared"]["count"], 0, "h{host}\n{}", world.logs());
    }
    world.compare_all(leader);
    world.assert_alike();
}

/// Without it the server would differ until the next comparison.
#[test]
fn root_server_on_which_a_command_of_the_leader_fails_ends_at_once() {
    let Some(module) = foreign_module() else { return };
    let Some(mut world) = World::new(3, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    world.kill(follower);
    world.set_arguments(&["other-modules", "foreign", "--loadmodule", &module]);
    world.start(follower);
    world.await_ready();
    assert_eq!(world.ask(leader, "RPUSH k a"), ":1\r\n");
    world.assert_alike();
    assert_eq!(world.ask(follower, "FOREIGN.SET k string"), "+OK\r\n");
    assert_eq!(world.ask(leader, "RPUSH k b"), ":2\r\n");
    let log = world.await_end(follower);
    println!("{log}");
    assert!(log.contains("panicked sending an error to its master after processing the command 'rpush'"), "{log}");
    assert_eq!(world.ask(leader, "RPUSH k c"), ":3\r\n", "the others go on");
    world.start(follower);
    world.await_ready();
    assert_eq!(world.ask(follower, "LLEN k"), ":3\r\n");
    world.assert_alike();
}
