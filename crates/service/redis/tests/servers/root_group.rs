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
        assert_eq!(world.ask(follower, "CONFIG SET fide.follower-proxy no"), "+OK\r\n");
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

/// A client that knows one server only writes there, whoever leads.
#[test]
fn root_followers_pass_writes_on() {
    let Some(mut world) = World::new(3, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    for (line, wanted) in [
        ("SET k v", "+OK\r\n"),
        ("INCR n", ":1\r\n"),
        ("GETSET k w", "$1\r\nv\r\n"),
        ("LPOP nothing", "$-1\r\n"),
        ("RPUSH l a b", ":2\r\n"),
        ("LPOP l 5", "*2\r\n$1\r\na\r\n$1\r\nb\r\n"),
        ("LPOP l 5", "*-1\r\n"),
        ("INCR k", "-ERR value is not an integer or out of range\r\n"),
    ] {
        assert_eq!(world.ask(follower, line), wanted, "{line}");
    }
    // By RESP3 a client is answered as the leader answers it.
    let mut by_resp3 = [leader, follower].map(|host| world.connect_by_resp3(host));
    for line in [
        "SET @ v",
        "SET @ w GET",
        "GETDEL @",
        "GETDEL @",
        "INCRBYFLOAT @ 1.5",
        "RPUSH @:l a b",
        "LPOP @:l 2",
        "LPOP @:l 2",
        "SADD @:s a",
        "SPOP @:s",
        "SPOP @:s",
        "HSET @:h f 1",
        "HINCRBYFLOAT @:h f 0.5",
        "ZADD @:z 1 m",
        "BITFIELD @:b OVERFLOW FAIL INCRBY u2 1 9",
        "XADD @:x 1-1 f v",
        "XADD @:y NOMKSTREAM 1-1 f v",
        "XGROUP CREATE @:x g 0",
        "XAUTOCLAIM @:x g c 0 0",
        "SETNX @ 1",
        "EXPIRE @ 100",
        "INCR @:h",
    ] {
        let [own, passed] = [0, 1].map(|at| {
            let line = line.replace('@', &format!("key{at}"));
            let mut words = line.split(' ');
            let mut command = redis::cmd(words.next().unwrap());
            words.for_each(|word| {
                command.arg(word);
            });
            command.query::<redis::Value>(&mut by_resp3[at]).map_err(|why| why.to_string())
        });
        assert_eq!(own, passed, "{line}");
        assert_eq!(own.is_err(), line == "INCR @:h", "{line}: {own:?}");
    }
    let double = redis::cmd("ZINCRBY").arg("key1:z").arg(1).arg("m").query::<redis::Value>(&mut by_resp3[1]);
    assert!(double.as_ref().is_err_and(|why| why.to_string().contains("the leader is h")), "{double:?}");
    // What it has passed on is there at once.
    assert_eq!(world.ask(follower, "GET k"), "$1\r\nw\r\n");
    assert!(world.ask(follower, "BLPOP l 1").starts_with("-READONLY"), "nothing waits on the connection to the leader");
    assert!(world.ask(follower, "FIDE.P GET k").starts_with("-ERR FIDE.P is for"));
    // Another database, and many at once.
    let mut connection = world.connect(follower);
    redis::cmd("SELECT").arg(3).exec(&mut connection).unwrap();
    let mut pipe = redis::pipe();
    for n in 0..500 {
        pipe.cmd("SET").arg(format!("key{n}")).arg(n).ignore();
    }
    pipe.query::<()>(&mut connection).unwrap();
    assert_eq!(redis::cmd("DBSIZE").query::<i64>(&mut connection).unwrap(), 500);
    world.kill(leader);
    world.await_ready();
    let last = world.followers()[0];
    assert_eq!(world.ask(last, "INCR n"), ":2\r\n");
    world.assert_alike();
}

/// The section of INFO has the facts of FIDE.STATUS.
#[test]
fn root_info_says_what_status_says() {
    let Some(mut world) = World::new(3, "hsuc") else { return };
    let first = world.leader();
    world.ask(first, "SET k v");
    world.kill(first);
    world.await_ready();
    let leader = world.leader();
    world.ask(leader, "INCR n");
    let info = world.ask(leader, "INFO fide");
    let field = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix("fide_")?.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {name}: {info}")).to_owned()
    };
    assert!(info.contains("# fide\r\n"), "{info}");
    assert_eq!((field("mode"), field("host"), field("failovers")), ("leader".into(), format!("h{leader}"), "1".into()));
    assert_eq!(field("leader_address"), format!("{}:6379", world.bed.host(leader).address(0)));
    let members = field("members");
    assert!(members.split(',').any(|member| member == format!("h{leader}")), "{members}");
    for name in [
        "view",
        "decided",
        "applied",
        "units",
        "commit_us_p50",
        "commit_us_p99",
        "commit_us_max",
        "reads_waited",
        "reads_by_key",
        "disconnects",
        "handed_over",
        "last_failover_us_notified",
        "last_failover_us_levelled",
        "last_failover_us_leads",
        "last_failover_us_first_write",
    ] {
        assert!(field(name).parse::<f64>().is_ok(), "{name}: {}", field(name));
    }
    // Each fact of the status is there.
    let status = world.status(leader);
    for name in status.as_object().expect("a status").keys() {
        assert!(info.contains(&format!("fide_{name}")), "{name}: {info}");
    }
    assert!(!world.ask(leader, "INFO").contains("fide_mode"), "only where it is asked for, as with every module");
}
