// SPDX-License-Identifier: Apache-2.0
//! What clients do to the links between servers, and to that of a server with its own module.

use std::{path::Path, thread, time::Duration};

use fide_testbed::retry_until;

use crate::{
    root_commands::run,
    world::{LIMIT, World},
};

/// Longer than anything here waits.
const PAUSE: &str = "CLIENT PAUSE 3600000 WRITE";

/// Redis 7.2 executes what was held up without telling this module.
fn is_refused_by_later(reply: &str) -> bool {
    reply.starts_with("-ERR CLIENT PAUSE is refused in a group from Redis 7.2 on")
}

/// Redis holds up its replication link as any client.
#[test]
fn root_client_pause_holds_up_no_follower() {
    let Some(mut world) = World::new(3, "hsuc") else { return };
    let (leader, followers) = (world.leader(), world.followers());
    for line in [PAUSE, "CLIENT PAUSE 3600000"] {
        let reply = world.ask(followers[0], line);
        assert!(reply.starts_with("-ERR CLIENT PAUSE is refused at a server that does not lead"), "{reply}");
    }
    assert_eq!(world.ask(leader, "INCR n"), ":1\r\n");
    let reply = world.ask(leader, PAUSE);
    if is_refused_by_later(&reply) {
        return;
    }
    assert_eq!(reply, "+OK\r\n");
    assert_eq!(world.ask(leader, "GET n"), "$1\r\n1\r\n", "reads go on");
    thread::scope(|scope| {
        let held_up = scope.spawn(|| {
            let mut connection = world.connect(leader);
            redis::cmd("SET").arg("held").arg("up").query::<String>(&mut connection).map_err(|why| why.to_string())
        });
        let blocked = retry_until("a write that is held up", LIMIT, || {
            let clients = world.ask(leader, "INFO clients");
            if clients.contains("blocked_clients:1\r\n") { Ok(()) } else { Err(clients) }
        });
        blocked.unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(world.ask(leader, &format!("FIDE.TRANSFER h{}", followers[0])), "+OK\r\n");
        // The pause of the former leader ends: its client is answered, and it applies what the next one writes.
        let answer = held_up.join().expect("an answer");
        assert!(
            answer.as_deref() == Ok("OK") || answer.as_ref().is_err_and(|why| why.contains("READONLY")),
            "{answer:?}"
        );
    });
    world.await_ready();
    assert_eq!(world.ask(followers[0], "INCR n"), ":2\r\n");
    world.assert_alike();
    // It leads again at once.
    world.kill(followers[0]);
    world.kill(followers[1]);
    world.await_ready();
    assert_eq!(world.ask(leader, "INCR n"), ":3\r\n");
}

/// Keys that expire during a pause are gone for commands, and deleted by nobody: those of the same transaction would do
/// something else at followers.
#[test]
fn root_transaction_cannot_pause_clients() {
    let Some(world) = World::new(2, "hsuc") else { return };
    let leader = world.leader();
    let mut connection = world.connect(leader);
    let mut asked = |line: &str| run(&mut connection, line).map_err(|why| why.to_string());
    asked("DEBUG SET-ACTIVE-EXPIRE 0").unwrap();
    asked("SADD k a b").unwrap();
    asked("PEXPIRE k 1").unwrap();
    thread::sleep(Duration::from_millis(20));
    asked("MULTI").unwrap();
    asked("CLIENT PAUSE 1 WRITE").unwrap();
    asked("SUNIONSTORE d k").unwrap();
    let answer = asked("EXEC");
    assert!(format!("{answer:?}").contains("CLIENT PAUSE cannot stand in a transaction"), "{answer:?}");
    world.assert_alike();
    assert_eq!(world.ask(leader, "EXISTS d"), ":0\r\n");
}

/// A follower authenticates at the leader by `masterauth`.
#[test]
fn root_passwords_set_in_one_command_are_those_of_the_links() {
    let Some(world) = World::new(2, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    let as_known = |host: usize| {
        let mut connection = world.connect(host);
        redis::cmd("AUTH").arg("new").exec(&mut connection).expect("the password");
        connection
    };
    // Nothing of a command that Redis refuses is taken.
    for line in ["CONFIG SET masterauth wrong maxmemory many", "CONFIG SET masterauth wrong masterauth wrong"] {
        assert!(world.ask(follower, line).starts_with("-ERR CONFIG SET failed"), "{line}");
    }
    for host in [leader, follower] {
        assert_eq!(world.ask(host, "CONFIG SET requirepass new masterauth new maxclients 9000"), "+OK\r\n");
        let clients: Vec<String> =
            redis::cmd("CONFIG").arg("GET").arg("maxclients").query(&mut as_known(host)).expect("a setting");
        assert_eq!(clients[1], "9000");
    }
    assert!(world.ask(follower, "SET k v").starts_with("-NOAUTH"), "a client without it");
    let passed = redis::cmd("INCR").arg("n").query::<u64>(&mut as_known(follower));
    assert_eq!(passed, Ok(1), "{}", world.logs());
    for host in [leader, follower] {
        redis::cmd("CONFIG").arg("SET").arg("requirepass").arg("").exec(&mut as_known(host)).expect("none");
    }
    world.assert_alike();
}

#[test]
fn root_setting_that_would_end_a_link_is_refused() {
    let Some(world) = World::new(2, "hsuc") else { return };
    for host in world.hosts() {
        let reply = world.ask(host, "CONFIG SET tls-replication yes");
        assert!(
            reply.starts_with("-ERR CONFIG SET tls-replication is refused in a group, except for \"no\""),
            "{reply}"
        );
    }
}

/// It could not lead, and would hold up the others once enough waits for it.
#[test]
fn root_server_whose_own_link_is_stuck_leaves_the_group_to_the_others() {
    let Some(mut world) = World::new(3, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    assert_eq!(world.ask(leader, "INCR n"), ":1\r\n");
    world.assert_alike();
    let loopback = |world: &World, way: &str| {
        let mut ip = world.bed.host(follower).command(Path::new("ip"));
        let status = ip.args(["link", "set", "lo", way]).status().expect("ip");
        assert!(status.success(), "ip link set lo {way}: {status}");
    };
    loopback(&world, "down");
    assert_eq!(world.ask(leader, "INCR n"), ":2\r\n");
    let server = world.servers[follower - 1].as_mut().expect("it runs");
    let ended = retry_until("its end", LIMIT, || server.ended().ok_or_else(|| "it runs".to_owned()));
    let log = server.log();
    ended.unwrap_or_else(|why| panic!("{why}\n{log}"));
    assert!(log.contains("it has taken nothing from its own replication link for 10 s"), "{log}");
    world.kill(follower);
    assert_eq!(world.ask(leader, "INCR n"), ":3\r\n", "the others go on");
    loopback(&world, "up");
    world.start(follower);
    world.await_ready();
    assert_eq!(world.ask(follower, "GET n"), "$1\r\n3\r\n");
    world.assert_alike();
}

/// Redis counts the link among the clients, and a server that has lost it does not know what it has applied.
#[test]
fn root_client_kill_ends_clients_and_not_the_link() {
    let Some(world) = World::new(2, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    assert_eq!(world.ask(leader, "INCR n"), ":1\r\n");
    world.assert_alike();
    let list = world.ask(follower, "CLIENT LIST TYPE master");
    let field = |name: &str| list.split(' ').find_map(|field| field.strip_prefix(name)).unwrap_or_default().to_owned();
    let [id, address, own] = ["id=", "addr=", "laddr="].map(field);
    let id = list.split("id=").nth(1).and_then(|rest| rest.split(' ').next()).map_or(id, str::to_owned);
    for filters in [
        "TYPE master",
        &format!("ID {id}"),
        &address,
        &format!("ADDR {address}"),
        &format!("LADDR {own}"),
        "SKIPME yes",
        "TYPE master SKIPME no",
    ] {
        let reply = world.ask(follower, &format!("CLIENT KILL {filters}"));
        assert!(
            reply.starts_with("-ERR this CLIENT KILL would end the server's own replication link"),
            "{filters}: {reply}"
        );
    }
    let mut client = world.connect(follower);
    let number: u64 = redis::cmd("CLIENT").arg("ID").query(&mut client).expect("its number");
    assert_eq!(world.ask(follower, &format!("CLIENT KILL ID {number}")), ":1\r\n");
    assert!(redis::cmd("PING").exec(&mut client).is_err(), "it is disconnected");
    assert_eq!(world.ask(follower, "CLIENT KILL TYPE normal"), ":0\r\n");
    assert_eq!(world.ask(leader, "CLIENT KILL TYPE master"), ":0\r\n", "it has no link");
    assert_eq!(world.ask(leader, "INCR n"), ":2\r\n");
    world.assert_alike();
}

/// What a server is still sent when it was taken out is nothing to it, and no difference that would end it.
#[test]
fn root_server_that_is_taken_out_in_the_middle_of_a_unit_stays_and_says_so() {
    let Some(world) = World::new(3, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    let many = "for i = 1, 100000 do redis.call('SET', i, i) end";
    for _ in 0..3 {
        redis::cmd("EVAL").arg(many).arg(0).exec(&mut world.connect(leader)).unwrap();
    }
    assert_eq!(world.ask(leader, &format!("FIDE.LEAVE h{follower}")), "+OK\r\n");
    retry_until("it is out", LIMIT, || {
        let mode = world.mode(follower);
        if mode == "out" { Ok(()) } else { Err(mode) }
    })
    .unwrap();
    // What is left of its link comes meanwhile.
    thread::sleep(Duration::from_millis(500));
    assert_eq!(world.mode(follower), "out", "{}", world.logs());
    assert!(world.ask(follower, "SET k v").starts_with("-CLUSTERDOWN"));
}

/// Redis replicates nothing while it is paused, and would end itself where this module does.
#[test]
fn root_server_that_joins_ends_a_pause_of_the_leader() {
    let Some(mut world) = World::new(2, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    assert_eq!(world.ask(leader, "SET k v"), "+OK\r\n");
    let reply = world.ask(leader, PAUSE);
    if is_refused_by_later(&reply) {
        return;
    }
    assert_eq!(reply, "+OK\r\n");
    world.kill(follower);
    world.start(follower);
    world.await_ready();
    assert_eq!(world.leader(), leader);
    assert_eq!(world.ask(leader, "SET k w"), "+OK\r\n");
    world.assert_alike();
}
