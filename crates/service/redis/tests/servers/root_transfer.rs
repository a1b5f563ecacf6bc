// SPDX-License-Identifier: Apache-2.0
//! The lead goes from server to server, and clients hardly notice.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use crate::world::{LIMIT, World};

/// Clients at each server.
const CLIENTS: usize = 2;
const ROUNDS: usize = 6;

/// What a client of one key saw.
#[derive(Default)]
struct Count {
    /// Increments that were acknowledged.
    done: u64,
    /// Increments of which it does not know whether they were done.
    open: u64,
    errors: Vec<String>,
    /// Longest time between two acknowledgements, before and after the first transfer.
    gaps: [Duration; 2],
}

/// Increments a key at one server, again and again. Each answer has to be the next number.
fn count(world: &World, host: usize, key: &str, transfers: &AtomicBool, stop: &AtomicBool) -> Count {
    let (mut count, mut connection) = (Count::default(), world.connect(host));
    let mut last = Instant::now();
    while !stop.load(Relaxed) {
        match redis::cmd("INCR").arg(key).query::<u64>(&mut connection) {
            Ok(value) => {
                count.done += 1;
                let known = count.done..=count.done + count.open;
                assert!(
                    known.contains(&value),
                    "{key} at h{host}: {value} after {} and {} open",
                    count.done,
                    count.open
                );
                let gap = &mut count.gaps[usize::from(transfers.load(Relaxed))];
                *gap = (*gap).max(last.elapsed());
                last = Instant::now();
            }
            Err(why) => {
                // A refusal says that nothing has happened; anything else may have.
                let is_refused = ["TRYAGAIN", "READONLY", "LOADING"].contains(&why.code().unwrap_or_default());
                count.open += u64::from(!is_refused);
                count.errors.push(why.to_string());
                connection = world.connect(host);
            }
        }
    }
    count
}

#[test]
fn root_writes_go_on_while_the_lead_goes_round() {
    for protocol in ["hsuc", "huc"] {
        let Some(world) = World::new(3, protocol) else { return };
        let (transfers, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        let counts = thread::scope(|scope| {
            let (world, transfers, stop) = (&world, &transfers, &stop);
            let keys =
                world.hosts().into_iter().flat_map(|host| (0..CLIENTS).map(move |at| (host, format!("n{host}{at}"))));
            let clients: Vec<_> = keys
                .map(|(host, key)| (key.clone(), scope.spawn(move || count(world, host, &key, transfers, stop))))
                .collect();
            let _stops = Stops(stop);
            thread::sleep(Duration::from_millis(500));
            transfers.store(true, Relaxed);
            for round in 0..ROUNDS {
                let (leader, followers) = (world.leader(), world.followers());
                // By name, or the most senior one.
                let line = if round % 2 == 0 {
                    format!("FIDE.TRANSFER h{}", followers[round % followers.len()])
                } else {
                    "FIDE.TRANSFER".to_owned()
                };
                assert_eq!(world.ask(leader, &line), "+OK\r\n", "{line}");
                fide_testbed::retry_until("another leader", LIMIT, || {
                    let leads = |host: &usize| *host != leader && world.mode(*host) == "leader";
                    if world.hosts().iter().any(leads) { Ok(()) } else { Err("none".to_owned()) }
                })
                .unwrap_or_else(|why| panic!("{why}\n{}", world.logs()));
                world.await_ready();
                thread::sleep(Duration::from_millis(100));
            }
            stop.store(true, Relaxed);
            clients.into_iter().map(|(key, client)| (key, client.join().unwrap())).collect::<Vec<_>>()
        });
        world.assert_alike();
        for (key, count) in &counts {
            let value: u64 = redis::cmd("GET").arg(key).query(&mut world.connect(world.leader())).unwrap();
            println!(
                "{protocol} {key}: {} done, {} open, longest gap {:?}, with transfers {:?}, {:?}",
                count.done, count.open, count.gaps[0], count.gaps[1], count.errors
            );
            assert!((count.done..=count.done + count.open).contains(&value), "{key} is {value}, {} done", count.done);
        }
        let statuses: Vec<_> = world.hosts().iter().map(|host| world.status(*host)).collect();
        let sum = |name: &str| statuses.iter().map(|status| status[name].as_u64().unwrap()).sum::<u64>();
        assert_eq!(sum("handed_over"), ROUNDS as u64);
        // If the machine held nothing up, no client has seen anything.
        if sum("disconnects") == 0 && sum("failovers") == 0 {
            let errors: Vec<_> = counts.iter().flat_map(|(_, count)| &count.errors).collect();
            assert!(errors.is_empty(), "{errors:?}\n{}", world.logs());
        }
    }
}

/// Ends the clients also when the test fails meanwhile.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn root_transfer_ends_transactions_and_waiting_clients_and_nothing_else() {
    let Some(world) = World::new(3, "hsuc") else { return };
    let (leader, next) = (world.leader(), world.followers()[1]);
    let ask = |connection: &mut redis::Connection, line: &str| {
        let mut command = redis::Cmd::new();
        line.split(' ').for_each(|word| {
            command.arg(word);
        });
        command.query::<redis::Value>(connection)
    };
    let (mut plain, mut in_multi, mut watching) = (world.connect(leader), world.connect(leader), world.connect(leader));
    ask(&mut plain, "SET k 1").unwrap();
    ask(&mut watching, "WATCH k").unwrap();
    ask(&mut in_multi, "MULTI").unwrap();
    ask(&mut in_multi, "SET k 9").unwrap();
    let mut connection = world.connect(leader);
    let mut subscription = connection.as_pubsub();
    subscription.subscribe("+switch-master").unwrap();
    subscription.subscribe("news").unwrap();
    thread::scope(|scope| {
        let mut blocked = world.connect(leader);
        let blocked = scope.spawn(move || ask(&mut blocked, "BLPOP q 20"));
        thread::sleep(Duration::from_millis(200));
        assert_eq!(world.ask(leader, &format!("FIDE.TRANSFER h{next}")), "+OK\r\n");
        world.await_ready();
        assert_eq!(world.leader(), next);
        let why = blocked.join().unwrap().unwrap_err().to_string();
        assert!(why.to_ascii_lowercase().contains("unblock"), "{why}");
    });
    assert!(ask(&mut in_multi, "EXEC").is_err(), "disconnected");
    // The same connection, and its writes go to the next leader.
    ask(&mut plain, "INCR k").unwrap();
    assert_eq!(ask(&mut plain, "GET k").unwrap(), redis::Value::BulkString(b"2".to_vec()));
    // What was watched has changed; and nothing is written there.
    ask(&mut watching, "MULTI").unwrap();
    ask(&mut watching, "SET k mine").unwrap();
    assert_eq!(ask(&mut watching, "EXEC").unwrap(), redis::Value::Nil);
    ask(&mut watching, "MULTI").unwrap();
    ask(&mut watching, "SET k mine").unwrap();
    let refused = ask(&mut watching, "EXEC").unwrap_err().to_string();
    assert!(refused.contains("this server follows; the leader is h"), "{refused}");
    assert!(ask(&mut watching, "PING").is_err(), "it looks for the leader when it connects again");
    let mut watching = world.connect(leader);
    ask(&mut watching, "WATCH k").unwrap();
    let ip = |host: usize| world.bed.host(host).address(0).to_string();
    let message: String = subscription.get_message().unwrap().get_payload().unwrap();
    assert_eq!(message, format!("redis {} 6379 {} 6379", ip(leader), ip(next)));
    world.ask(next, "PUBLISH news hello");
    assert_eq!(subscription.get_message().unwrap().get_payload::<String>().unwrap(), "hello");
    // Back again: what was watched has changed.
    ask(&mut plain, "SET k 2").unwrap();
    assert_eq!(world.ask(next, &format!("FIDE.TRANSFER h{leader}")), "+OK\r\n");
    world.await_ready();
    ask(&mut watching, "MULTI").unwrap();
    ask(&mut watching, "SET k mine").unwrap();
    assert_eq!(ask(&mut watching, "EXEC").unwrap(), redis::Value::Nil);
    assert_eq!(world.ask(leader, "GET k"), "$1\r\n2\r\n");
    world.assert_alike();
}

#[test]
fn root_transfer_is_refused_by_name() {
    let Some(mut world) = World::new(3, "hsuc") else { return };
    let (leader, followers) = (world.leader(), world.followers());
    for (host, line, wanted) in [
        (followers[0], format!("FIDE.TRANSFER h{}", followers[1]), format!("-ERR the leader is h{leader} at ")),
        (leader, format!("FIDE.TRANSFER h{leader}"), format!("-ERR h{leader} leads already")),
        (leader, "FIDE.TRANSFER nowhere".to_owned(), "-ERR no host of this cluster is named nowhere".to_owned()),
        (leader, "FIDE.TRANSFER a b".to_owned(), "-ERR FIDE.TRANSFER takes".to_owned()),
    ] {
        let reply = world.ask(host, &line);
        assert!(reply.starts_with(&wanted), "{line} at h{host}: {reply}");
    }
    world.kill(followers[0]);
    world.await_ready();
    let reply = world.ask(leader, &format!("FIDE.TRANSFER h{}", followers[0]));
    assert!(reply.contains("is dead") || reply.contains("is not a member"), "{reply}");
    assert_eq!(world.ask(leader, "FIDE.TRANSFER"), "+OK\r\n");
    world.await_ready();
    assert_eq!(world.leader(), followers[1]);
    world.kill(leader);
    world.await_ready();
    assert!(world.ask(followers[1], "FIDE.TRANSFER").starts_with("-ERR no other server is in the group"));
}
