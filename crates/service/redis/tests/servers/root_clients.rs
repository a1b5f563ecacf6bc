// SPDX-License-Identifier: Apache-2.0
//! Clients that know Redis Sentinel follow the leader.

use std::time::Duration;

use fide_testbed::retry_until;

use crate::world::{LIMIT, World};

#[test]
fn root_clients_find_the_leader_as_with_sentinel_and_hear_of_the_next() {
    let Some(mut world) = World::new(3, "hsuc") else { return };
    let leader = world.leader();
    let address = |world: &World, host: usize| {
        let ip = world.bed.host(host).address(0).to_string();
        format!("*2\r\n${}\r\n{ip}\r\n$4\r\n6379\r\n", ip.len())
    };
    for host in world.hosts() {
        assert_eq!(world.ask(host, "SENTINEL get-master-addr-by-name redis"), address(&world, leader), "h{host}");
    }
    let follower = world.followers()[0];
    let masters = world.ask(follower, "SENTINEL masters");
    assert!(masters.contains("redis") && masters.contains("num-slaves\r\n$1\r\n2\r\n"), "{masters}");
    assert_eq!(world.ask(follower, "SENTINEL replicas redis").matches("master-link-status").count(), 2);
    assert_eq!(world.ask(follower, "SENTINEL sentinels redis").matches("runid").count(), 2);
    assert_eq!(world.ask(follower, "SENTINEL get-master-addr-by-name other"), "$-1\r\n");
    assert!(world.ask(follower, "SENTINEL masters2").starts_with("-ERR SENTINEL MASTERS2 is not answered"));
    // Libraries read the description of a server as a map, from RESP3 as from Sentinel.
    let mut newer = world.connect_by_resp3(follower);
    for (question, count) in [("masters", 1), ("replicas redis", 2), ("sentinels redis", 2)] {
        let mut command = redis::cmd("SENTINEL");
        question.split(' ').for_each(|word| {
            command.arg(word);
        });
        let reply: redis::Value = command.query(&mut newer).unwrap();
        let redis::Value::Array(all) = &reply else { panic!("{question}: {reply:?}") };
        assert_eq!(all.len(), count, "{question}: {reply:?}");
        assert!(all.iter().all(|one| matches!(one, redis::Value::Map(_))), "{question}: {reply:?}");
    }
    let one: redis::Value = redis::cmd("SENTINEL").arg("master").arg("redis").query(&mut newer).unwrap();
    assert!(matches!(one, redis::Value::Map(_)), "{one:?}");
    // A subscriber hears of the next leader.
    let mut connection = world.connect(follower);
    connection.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut subscription = connection.as_pubsub();
    subscription.subscribe("+switch-master").unwrap();
    world.kill(leader);
    let message: String = subscription.get_message().unwrap().get_payload().unwrap();
    world.await_ready();
    let ip = |host: usize| world.bed.host(host).address(0).to_string();
    assert_eq!(message, format!("redis {} 6379 {} 6379", ip(leader), ip(world.leader())));
}

/// Redis checks the rights of a user for the command that is put in front, too.
#[test]
fn root_users_with_few_rights_may_do_what_they_may_without_a_group() {
    let Some(world) = World::new(2, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    for host in [leader, follower] {
        assert_eq!(world.ask(host, "ACL SETUSER ann on nopass ~a* +get +set +blpop +client|id"), "+OK\r\n");
    }
    // At its start the module asks for all commands by name, which is slow on a busy machine.
    assert_eq!(world.ask(leader, "SLOWLOG RESET"), "+OK\r\n");
    let as_ann = |host: usize, line: &str| {
        let mut connection = world.connect(host);
        redis::cmd("AUTH").arg("ann").arg("x").query::<()>(&mut connection).expect("ann may log in");
        let words: Vec<&str> = line.split(' ').collect();
        let reply = redis::cmd(words[0]).arg(&words[1..]).query::<redis::Value>(&mut connection);
        reply.map_err(|why| why.to_string())
    };
    as_ann(leader, "SET a 1").expect("she may");
    as_ann(leader, "BLPOP ab 0.01").expect("she may");
    as_ann(follower, "GET a").expect("she may");
    as_ann(follower, "SET ab 2").expect("she may");
    for host in [leader, follower] {
        for line in ["SET b 1", "DEL a", "CONFIG SET maxmemory 1", "CONFIG SET masterauth stolen", "FIDE.W DEL a"] {
            let why = as_ann(host, line).expect_err(line);
            let why = why.to_lowercase();
            assert!(why.contains("noperm") || why.contains("readonly"), "{line} at h{host}: {why}");
        }
    }
    assert_eq!(world.ask(leader, "GET a"), "$1\r\n1\r\n");
    assert_eq!(world.ask(leader, "CONFIG GET masterauth"), "*2\r\n$10\r\nmasterauth\r\n$0\r\n\r\n");
    assert_eq!(world.ask(leader, "CONFIG SET masterauth unseen"), "+OK\r\n");
    let slow = world.ask(leader, "SLOWLOG GET 128");
    assert!(!slow.contains("unseen") && !slow.contains("fide."), "{slow}");
    world.assert_alike();
}

#[test]
fn root_role_names_the_servers_of_the_group() {
    let Some(mut world) = World::new(3, "hsuc") else { return };
    let leader = world.leader();
    let role = |world: &World, host: usize| -> redis::Value {
        redis::cmd("ROLE").query(&mut world.connect(host)).unwrap_or_else(|why| panic!("h{host}: {why}"))
    };
    let address = |world: &World, host: usize| world.bed.host(host).address(0).to_string();
    let of_leader: (String, u64, Vec<(String, String, String)>) =
        redis::from_redis_value(role(&world, leader)).expect("a master's role");
    assert_eq!(of_leader.0, "master");
    let mut replicas: Vec<String> = of_leader.2.into_iter().map(|(ip, port, _)| format!("{ip}:{port}")).collect();
    replicas.sort();
    let wanted: Vec<String> =
        world.followers().into_iter().map(|host| format!("{}:6379", address(&world, host))).collect();
    assert_eq!(replicas, wanted);
    let check = |world: &World| {
        let leader = world.leader();
        for host in world.followers() {
            // It may still shake hands.
            let connected = retry_until("a link", LIMIT, || {
                let (name, ip, port, link, offset): (String, String, u16, String, i64) =
                    redis::from_redis_value(role(world, host)).expect("a replica's role");
                assert_eq!((name.as_str(), ip, port), ("slave", address(world, leader), 6379));
                if link == "connected" && offset >= 0 { Ok(()) } else { Err(format!("{link}, {offset}")) }
            });
            connected.unwrap_or_else(|why| panic!("h{host}: {why}\n{}", world.logs()));
        }
    };
    check(&world);
    world.kill(leader);
    world.await_ready();
    check(&world);
    let host = world.leader();
    assert_eq!(world.ask(host, "ACL SETUSER ann on nopass ~* +@all -role"), "+OK\r\n");
    let mut ann = world.connect(host);
    redis::cmd("AUTH").arg("ann").arg("x").exec(&mut ann).expect("ann may log in");
    let why = redis::cmd("ROLE").query::<redis::Value>(&mut ann).expect_err("she may not").to_string();
    assert!(why.contains("no permissions to run the 'role' command"), "{why}");
    assert!(world.ask(host, "FIDE.ROLE GET k").starts_with("-ERR FIDE.ROLE is for"));
}
