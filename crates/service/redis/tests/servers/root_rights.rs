// SPDX-License-Identifier: Apache-2.0
//! A user may do at a follower what that user may do at the leader, also where Redis checks it late.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Instant,
};

use redis::{Connection, Value};

use crate::{
    root_commands::run,
    world::{LIMIT, Stops, World},
};

impl World {
    /// A user at all servers.
    fn add_user(&self, rules: &str) {
        for host in self.hosts() {
            assert_eq!(self.ask(host, &format!("ACL SETUSER {rules}")), "+OK\r\n", "{rules}");
        }
    }

    fn login(&self, host: usize, user: &str) -> Connection {
        let mut connection = self.connect(host);
        redis::cmd("AUTH").arg(user).arg("x").query::<()>(&mut connection).expect("a user");
        connection
    }
}

/// The commands of modules are in no category of Redis 7.0.
#[test]
fn root_user_without_admin_rights_cannot_change_the_group() {
    let Some(world) = World::new(2, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    world.add_user("app on nopass ~app:* +@all -@admin -@dangerous");
    let mut app = world.login(leader, "app");
    for (line, needed) in [
        (format!("FIDE.LEAVE h{follower}"), "REPLICAOF NO ONE"),
        ("FIDE.TRANSFER".to_owned(), "FAILOVER"),
        ("FIDE.COMPARE".to_owned(), "BGSAVE"),
    ] {
        let why = run(&mut app, &line).expect_err(&line).to_string();
        assert!(why.contains(&format!("this user needs the right to {needed}")), "{line}: {why}");
    }
    run(&mut app, "FIDE.STATUS").expect("a reading");
    world.add_user("operator on nopass ~* +fide.transfer +failover");
    run(&mut world.login(leader, "operator"), "FIDE.TRANSFER").expect("it may");
    world.await_ready();
    assert_eq!(world.leader(), follower);
}

/// Redis checks the patterns of SORT while it executes it.
#[test]
fn root_sort_by_pattern_at_a_follower_has_the_rights_of_its_user() {
    let Some(world) = World::new(2, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    world.add_user("ann on nopass ~list* +sort +sort_ro +fide.once");
    world.add_user("all on nopass ~* +sort +fide.once");
    for line in ["RPUSH list 1 2", "MSET secret:1 hidden secret:2 hidden"] {
        assert!(!world.ask(leader, line).starts_with('-'), "{line}");
    }
    for host in [leader, follower] {
        let (mut ann, mut all) = (world.login(host, "ann"), world.login(host, "all"));
        for line in [
            "SORT list BY nosort GET secret:*",
            "SORT list BY secret:* ALPHA",
            "SORT list BY nosort GET secret:* STORE list2",
            "FIDE.ONCE ann 1 SORT list BY nosort GET secret:* STORE list2",
            "SORT_RO list BY nosort GET secret:*",
        ] {
            let why = run(&mut ann, line).expect_err(line).to_string();
            assert!(why.contains("denied due to insufficient ACL permissions"), "{line} at h{host}: {why}");
        }
        let words = |words: &[&str]| Value::Array(words.iter().map(|word| Value::BulkString((*word).into())).collect());
        assert_eq!(run(&mut ann, "SORT list DESC").unwrap(), words(&["2", "1"]), "h{host}");
        assert_eq!(run(&mut ann, "SORT list BY nosort STORE list3").unwrap(), Value::Int(2), "h{host}");
        assert_eq!(run(&mut all, "SORT list BY nosort GET secret:*").unwrap(), words(&["hidden", "hidden"]));
        assert_eq!(run(&mut all, "SORT list GET secret:* STORE sorted").unwrap(), Value::Int(2), "h{host}");
        let numbered = format!("FIDE.ONCE all{host} 1 SORT list GET secret:* STORE sorted");
        assert_eq!(run(&mut all, &numbered).unwrap(), Value::Int(2));
    }
    assert_eq!(world.ask(leader, "EXISTS list2"), ":0\r\n");
    assert_eq!(world.ask(follower, "LRANGE sorted 0 -1"), "*2\r\n$6\r\nhidden\r\n$6\r\nhidden\r\n");
    world.assert_alike();
}

#[test]
fn root_read_that_waits_at_a_follower_has_the_rights_of_its_user() {
    const WAITED: u64 = 20;
    let Some(world) = World::new(2, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    world.add_user("ann on nopass ~list* +sort_ro");
    for line in ["RPUSH list 1 2", "MSET secret:1 hidden secret:2 hidden"] {
        assert!(!world.ask(leader, line).starts_with('-'), "{line}");
    }
    let waited = || world.status(follower)["reads_waited"].as_u64().expect("a count");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stops = Stops(&stop);
        scope.spawn(|| {
            let mut connection = world.connect(leader);
            while !stop.load(Relaxed) {
                run(&mut connection, "INCR n").unwrap();
            }
        });
        let mut ann = world.login(follower, "ann");
        let (enough, until) = (waited() + WAITED, Instant::now() + LIMIT);
        while waited() < enough {
            assert!(Instant::now() < until, "too few reads waited: {}", waited());
            for _ in 0..WAITED {
                let why = run(&mut ann, "SORT_RO list BY nosort GET secret:*").expect_err("not her keys").to_string();
                assert!(why.contains("denied due to insufficient ACL permissions"), "{why}");
                run(&mut ann, "SORT_RO list").expect("her key");
            }
        }
        // Rights that end while a read waits have ended.
        for host in world.hosts() {
            assert_eq!(world.ask(host, "ACL SETUSER ann resetkeys"), "+OK\r\n");
        }
        for _ in 0..WAITED {
            run(&mut ann, "SORT_RO list").expect_err("no key of hers");
        }
    });
}

#[test]
fn root_numbered_write_takes_the_right_to_number() {
    let Some(world) = World::new(2, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    world.add_user("ann on nopass ~* +set +eval +sort");
    world.add_user("all on nopass ~* +set +eval +sort +fide.once");
    assert_eq!(world.ask(leader, "RPUSH list 2 1"), ":2\r\n");
    for host in [leader, follower] {
        for command in ["1 SET k v", "2 EVAL return(1) 0", "3 SORT list GET # STORE s"] {
            let line = format!("FIDE.ONCE c{host} {command}");
            let why = run(&mut world.login(host, "ann"), &line).expect_err(&line).to_string();
            assert!(why.contains("no permissions"), "{line} at h{host}: {why}");
            let reply = run(&mut world.login(host, "all"), &line);
            assert!(reply.is_ok(), "{line} at h{host}: {reply:?}");
        }
        // What the right to number does not replace.
        let why = run(&mut world.login(host, "all"), "FIDE.ONCE c 4 DEL k").expect_err("not hers").to_string();
        assert!(why.contains("no permissions"), "{why}");
    }
    world.assert_alike();
}

/// Redis does not look at that setting for what a module calls, and in a transaction at a follower this module calls it.
#[test]
fn root_debug_is_allowed_where_the_server_allows_it() {
    for (setting, is_allowed) in [("no", false), ("local", true)] {
        let Some(world) = World::with_servers(2, &["--enable-debug-command", setting]) else { return };
        let (leader, follower) = (world.leader(), world.followers()[0]);
        assert_eq!(world.ask(leader, "SET k v"), "+OK\r\n");
        for host in [leader, follower] {
            let mut client = world.connect(host);
            for line in ["MULTI", "DEBUG OBJECT k"] {
                let _ = run(&mut client, line);
            }
            let transaction = format!("{:?}", run(&mut client, "EXEC"));
            let alone = world.ask(host, "DEBUG OBJECT k");
            for answer in [transaction, alone] {
                assert_eq!(answer.contains("Value at:"), is_allowed, "{setting} at h{host}: {answer}");
            }
        }
    }
}
