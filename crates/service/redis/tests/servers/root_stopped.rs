// SPDX-License-Identifier: Apache-2.0
//! `fide.stopped-after`: a server that is stopped is killed by its guard, and a busy one is not.

use std::{fs, path::PathBuf, thread, time::Duration};

use fide_testbed::retry_until;

use crate::world::{LIMIT, World};

/// The processes that a server has begun, and that live.
fn children(pid: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn guard(world: &World, host: usize) -> u32 {
    let children = children(world.server(host).pid());
    assert_eq!(children.len(), 1, "{children:?}");
    children[0]
}

fn await_end(pid: u32) {
    let stat = PathBuf::from(format!("/proc/{pid}/stat"));
    let is_over = || fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z"));
    retry_until("the end of a process", LIMIT, || if is_over() { Ok(()) } else { Err(format!("{pid} lives")) })
        .unwrap();
}

#[test]
fn root_stopped_server_is_killed_and_the_group_goes_on() {
    let Some(mut world) = World::new(3, "hsuc") else { return };
    for host in world.hosts() {
        assert_eq!(world.ask(host, "CONFIG GET fide.stopped-after"), "*2\r\n$18\r\nfide.stopped-after\r\n$1\r\n0\r\n");
        assert!(children(world.server(host).pid()).is_empty(), "off, without a word");
        assert_eq!(world.ask(host, "CONFIG SET fide.stopped-after 300"), "+OK\r\n");
    }
    let leader = world.leader();
    assert_eq!(world.ask(leader, "SET k v"), "+OK\r\n");
    // Nobody continues it.
    let guard_of_leader = guard(&world, leader);
    world.server(leader).pause();
    retry_until("its end", LIMIT, || {
        let server = world.servers[leader - 1].as_mut().expect("it was started");
        server.ended().map(drop).ok_or_else(|| "it is stopped".to_owned())
    })
    .unwrap();
    await_end(guard_of_leader);
    world.kill(leader);
    world.await_ready();
    let next = world.leader();
    assert_eq!((world.ask(next, "GET k"), world.ask(next, "INCR n")), ("$1\r\nv\r\n".into(), ":1\r\n".into()));
    // It comes back.
    world.start(leader);
    world.await_ready();
    world.assert_alike();
}

#[test]
fn root_guard_leaves_servers_that_run_and_ends_with_them() {
    let Some(mut world) = World::new(2, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    for wrong in ["-1", "x", "86400001"] {
        assert!(world.ask(leader, &format!("CONFIG SET fide.stopped-after {wrong}")).starts_with("-ERR"), "{wrong}");
    }
    assert_eq!(world.ask(follower, "CONFIG SET fide.stopped-after 400"), "+OK\r\n");
    let first = guard(&world, follower);
    // Busy for much longer, and stopped for less, again and again.
    assert_eq!(world.ask(follower, "DEBUG SLEEP 1.5"), "+OK\r\n");
    for _ in 0..20 {
        world.server(follower).pause();
        thread::sleep(Duration::from_millis(60));
        world.server(follower).resume();
        thread::sleep(Duration::from_millis(60));
    }
    world.await_ready();
    assert_eq!(guard(&world, follower), first);
    // A client that the server disconnects sees that, although a guard is there.
    let mut connection = world.connect(follower);
    let id: u64 = redis::cmd("CLIENT").arg("ID").query(&mut connection).unwrap();
    assert_eq!(world.ask(follower, &format!("CLIENT KILL ID {id}")), ":1\r\n");
    assert!(redis::cmd("PING").exec(&mut connection).is_err());
    // Another time, another guard; none; and one that ends with its server.
    assert_eq!(world.ask(follower, "CONFIG SET fide.stopped-after 500"), "+OK\r\n");
    await_end(first);
    assert_ne!(guard(&world, follower), first);
    assert_eq!(world.ask(follower, "CONFIG SET fide.stopped-after 0"), "+OK\r\n");
    assert!(children(world.server(follower).pid()).is_empty());
    assert_eq!(world.ask(follower, "CONFIG SET fide.stopped-after 500"), "+OK\r\n");
    let last = guard(&world, follower);
    world.kill(follower);
    await_end(last);
}
