// SPDX-License-Identifier: Apache-2.0
//! A group of stock servers: writes are everywhere, and survive the leader.

use crate::world::World;

#[test]
fn root_writes_are_at_all_servers_and_survive_the_leader() {
    let Some(mut world) = World::new(3, "hsuc") else { return };
    let leader = world.leader();
    assert_eq!(world.ask(leader, "SET k v"), "+OK\r\n");
    for host in world.hosts() {
        assert_eq!(world.ask(host, "GET k"), "$1\r\nv\r\n", "h{host}");
    }
    for follower in world.followers() {
        assert!(world.ask(follower, "SET k w").starts_with("-READONLY this server follows; the leader is h"));
    }
    world.assert_alike();
    world.kill(leader);
    world.await_ready();
    let next = world.leader();
    assert_eq!(world.ask(next, "GET k"), "$1\r\nv\r\n");
    assert_eq!(world.ask(next, "INCR n"), ":1\r\n");
    world.assert_alike();
    // It comes back, with what it missed.
    world.start(leader);
    world.await_ready();
    assert_eq!(world.ask(leader, "GET n"), "$1\r\n1\r\n");
    world.assert_alike();
    // One after the other, down to one.
    for _ in 0..2 {
        let leader = world.leader();
        world.kill(leader);
        world.await_ready();
        let next = world.leader();
        world.ask(next, "INCR n");
    }
    assert_eq!(world.ask(world.leader(), "GET n"), "$1\r\n3\r\n");
}
