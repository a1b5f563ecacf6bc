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
