// SPDX-License-Identifier: Apache-2.0
//! Servers of two versions in one group: an upgrade, one server after the other, and servers that are too far apart.
//!
//! A server claims another version by an argument that only tests use. It says so to the others as a server of that
//! version would, and speaks the version before it where the others know no newer one.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
};

use fide_testbed::retry_until;

use crate::world::{LIMIT, Stops, World};

const CLAIM: &str = "version-for-tests";

impl World {
    fn claiming(hosts: usize, version: &str) -> Option<Self> {
        Self::with(hosts, "hsuc", &[CLAIM, version])
    }

    fn versions(&self, host: usize) -> [u64; 2] {
        let version = self.status(host)["version"].clone();
        ["speaks", "in_use"].map(|name| version[name].as_u64().unwrap_or_default())
    }

    /// All servers use this version: each knows what the others speak.
    fn await_version(&self, version: u64) {
        let used = retry_until("the version", LIMIT, || {
            let used: Vec<u64> = self.hosts().iter().map(|host| self.versions(*host)[1]).collect();
            if used.iter().all(|used| *used == version) { Ok(()) } else { Err(format!("{used:?}")) }
        });
        used.unwrap_or_else(|why| panic!("{version}: {why}\n{}", self.logs()));
    }

    /// As the operators' page says: a leader hands over first.
    fn upgrade(&mut self, host: usize, version: &str) {
        if self.leader() == host {
            let reply = self.ask(host, "FIDE.TRANSFER");
            assert_eq!(reply, "+OK\r\n", "{}", self.logs());
            let led = retry_until("another leader", LIMIT, || {
                if self.mode(host) == "following" { Ok(()) } else { Err(self.mode(host)) }
            });
            led.unwrap_or_else(|why| panic!("{why}\n{}", self.logs()));
        }
        self.kill(host);
        self.set_arguments(&[CLAIM, version]);
        self.start(host);
        self.await_ready();
    }
}

#[test]
fn root_servers_are_upgraded_one_by_one_while_clients_write() {
    let Some(mut world) = World::claiming(3, "1") else { return };
    world.await_version(1);
    let sockets: Vec<_> = world.hosts().iter().map(|host| world.server(*host).socket()).collect();
    let (stop, acknowledged) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let (sockets, stop, acknowledged) = (&sockets, &stop, &acknowledged);
        let writer = scope.spawn(move || {
            for number in 1_u64.. {
                if stop.load(Relaxed) {
                    return;
                }
                // Until it is answered, at any server.
                for socket in sockets.iter().cycle().skip(usize::try_from(number % 3).unwrap_or(0)) {
                    let client = redis::Client::open(format!("redis+unix://{}", socket.display())).expect("an address");
                    let Ok(mut connection) = client.get_connection() else { continue };
                    let _ = connection.set_read_timeout(Some(LIMIT));
                    let mut command = redis::cmd("FIDE.ONCE");
                    command.arg("w").arg(number).arg("RPUSH").arg("l").arg(number);
                    match command.query::<u64>(&mut connection) {
                        Ok(len) => {
                            assert_eq!(len, number, "each number counts once");
                            acknowledged.store(number, Relaxed);
                            break;
                        }
                        Err(why) => assert!(!why.to_string().contains("ONCE"), "{number}: {why}"),
                    }
                    if stop.load(Relaxed) {
                        return;
                    }
                }
            }
        });
        let stops = Stops(stop);
        // From the version before this one to this one, and on to the next one.
        for (before, version) in [(1, 2), (2, 3)] {
            for host in 1..=3 {
                let written = acknowledged.load(Relaxed);
                world.upgrade(host, &version.to_string());
                assert_eq!(world.versions(host)[0], version);
                if host < 3 {
                    world.await_version(before);
                    if before == 1 {
                        let reply = world.ask(world.leader(), "FIDE.COMPARE");
                        assert!(reply.contains("speaks version 1 of this module's messages"), "{reply}");
                    }
                } else {
                    world.await_version(version);
                }
                let goes_on = retry_until("writes", LIMIT, || {
                    if acknowledged.load(Relaxed) > written { Ok(()) } else { Err("none".to_owned()) }
                });
                goes_on.unwrap_or_else(|why| panic!("{why}\n{}", world.logs()));
            }
            world.compare_all(world.leader());
        }
        drop(stops);
        writer.join().expect("it counts");
    });
    let count = acknowledged.load(Relaxed);
    println!("{count} writes while three servers were upgraded twice");
    let mut connection = world.connect(world.leader());
    let all: Vec<u64> = redis::cmd("LRANGE").arg("l").arg(0).arg(-1).query(&mut connection).expect("a list");
    let (whole, rest) = all.split_at(usize::try_from(count).expect("a count"));
    assert_eq!(whole, (1..=count).collect::<Vec<_>>(), "what was acknowledged is there, once and in order");
    assert!(rest.len() <= 1, "one write was under way: {rest:?}");
    world.assert_alike();
}

#[test]
fn root_server_two_versions_apart_is_refused_by_name() {
    let Some(mut world) = World::claiming(3, "2") else { return };
    let follower = world.followers()[0];
    let leader = world.leader();
    world.ask(leader, "SET k v");
    world.kill(follower);
    world.set_arguments(&[CLAIM, "4"]);
    world.start(follower);
    let refused = retry_until("both sides say why", LIMIT, || {
        let waits_for = world.status(follower)["waits_for"].as_str().unwrap_or_default().to_owned();
        let refuses = world.status(leader)["refuses"].as_str().unwrap_or_default().to_owned();
        let here = format!(
            "host h{leader} speaks versions 1 and 2 of its service's messages, and this program versions 3 and 4"
        );
        let there = format!(
            "host h{follower} speaks versions 3 and 4 of its service's messages, and this program versions 1 and 2"
        );
        if waits_for.contains(&here) && refuses == format!("{there}; upgrade one version at a time") {
            Ok(())
        } else {
            Err(format!("{waits_for}\n{refuses}"))
        }
    });
    refused.unwrap_or_else(|why| panic!("{why}\n{}", world.logs()));
    assert!(world.ask(follower, "GET k").starts_with("-LOADING this server is no member of its group yet: host h"));
    assert_eq!(world.ask(leader, "SET k w"), "+OK\r\n", "the others go on");
    let number = world.compare(leader);
    assert_eq!(world.await_compared(leader, number)["servers"], 2, "and know what both speak");
    let said = retry_until("the log", LIMIT, || {
        let log = world.server(leader).log();
        if log.contains("upgrade one version at a time") { Ok(()) } else { Err(log) }
    });
    said.unwrap_or_else(|why| panic!("{why}"));
    world.kill(follower);
    world.set_arguments(&[CLAIM, "3"]);
    world.start(follower);
    world.await_ready();
    assert_eq!(world.ask(follower, "GET k"), "$1\r\nw\r\n");
    assert!(world.status(leader)["refuses"].is_null());
    world.assert_alike();
}
