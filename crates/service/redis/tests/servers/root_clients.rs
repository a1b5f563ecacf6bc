// SPDX-License-Identifier: Apache-2.0
//! Clients that know Redis Sentinel follow the leader.

use std::time::Duration;

use crate::world::World;

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
