// SPDX-License-Identifier: Apache-2.0
//! Transactions at the moments in which `EXEC` is refused, and those that begin before a server is one of its group.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
};

use fide_testbed::retry_until;

use crate::world::{LIMIT, World};

/// Redis queues what refuses it, and would say so before anything of the module runs again. Here the group does not
/// agree on the deletion of a key that was found expired just before.
#[test]
fn root_exec_that_is_refused_behind_a_command_that_waited_is_not_answered() {
    let Some(world) = World::new(2, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    for line in ["DEBUG SET-ACTIVE-EXPIRE 0", "SET expired v PX 1"] {
        assert_eq!(world.ask(leader, line), "+OK\r\n");
    }
    let mut stream = UnixStream::connect(world.server(leader).socket()).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(b"BLPOP none 0.5\r\nGET expired\r\nMULTI\r\nSET k v\r\nEXEC\r\n").unwrap();
    let waits = retry_until("a client that waits", LIMIT, || {
        let list = world.ask(leader, "INFO clients");
        if list.contains("blocked_clients:1") { Ok(()) } else { Err(list) }
    });
    waits.unwrap_or_else(|why| panic!("{why}"));
    // Without this server nothing is decided.
    world.server(follower).pause();
    let mut answer = Vec::new();
    let end = stream.read_to_end(&mut answer);
    world.server(follower).resume();
    assert!(end.is_ok() || end.is_err_and(|why| why.kind() == std::io::ErrorKind::ConnectionReset));
    let answer = String::from_utf8_lossy(&answer);
    assert!(!answer.contains("QUEUED"), "{answer}");
    world.await_ready();
    assert_eq!(world.ask(leader, "EXISTS k"), ":0\r\n");
    // The transaction had begun: it was its EXEC that found the group stalled.
    let counts = world.ask(leader, "INFO commandstats");
    assert!(counts.contains("cmdstat_multi:calls=1,") && !counts.contains("cmdstat_exec:"), "{counts}");
    world.assert_alike();
}

/// The module has looked at nothing of it.
#[test]
fn root_transaction_that_begins_while_redis_loads_its_dump_is_ended() {
    /// With the delay of each, enough for a few requests.
    const KEYS: u32 = 1000;
    let Some(mut world) = World::new(2, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    let mut connection = world.connect(leader);
    for number in 0..KEYS {
        redis::cmd("SET").arg(format!("key{number}")).arg("x".repeat(30)).exec(&mut connection).unwrap();
    }
    world.assert_alike();
    assert_eq!(world.ask(follower, "SAVE"), "+OK\r\n");
    world.kill(follower);
    world.start_beside(follower, &["--key-load-delay", "3000", "--loading-process-events-interval-bytes", "1024"]);
    let mut stream = UnixStream::connect(world.server(follower).socket()).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    // Redis takes it while it loads, and a group refuses it.
    let setting = "replica-read-only";
    stream.write_all(format!("MULTI\r\nCONFIG SET {setting} no\r\n").as_bytes()).unwrap();
    let mut queued = [0; b"+OK\r\n+QUEUED\r\n".len()];
    stream.read_exact(&mut queued).unwrap();
    assert_eq!(&queued, b"+OK\r\n+QUEUED\r\n");
    let loading = world.ask(follower, "INFO persistence");
    assert!(loading.contains("\nloading:1\r"), "it has loaded before that: {loading}");
    world.await_ready();
    let mut answer = Vec::new();
    // If the connection has ended, that may be known already.
    let _ = stream.write_all(b"EXEC\r\nQUIT\r\n");
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.is_empty(), "{}", String::from_utf8_lossy(&answer));
    let answer = world.ask(follower, &format!("CONFIG GET {setting}"));
    assert!(answer.ends_with("$3\r\nyes\r\n"), "{answer}");
    world.assert_alike();
}
