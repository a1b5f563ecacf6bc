// SPDX-License-Identifier: Apache-2.0
//! What operators and clients get wrong: it is refused by name, or does no harm.

use std::{
    fs,
    io::{Read, Write},
    path::PathBuf,
    process::Command,
};

use fide_testbed::retry_until;

use crate::{
    root_commands::{LINES, run},
    root_durable::has_state,
    world::{LIMIT, World, foreign_module},
};

impl World {
    /// Starts a server that ends by itself; its log since then.
    pub(crate) fn start_in_vain(&mut self, host: usize, of_server: &[&str], of_module: &[&str]) -> String {
        let why = self.try_start(host, of_server, of_module);
        why.map_or_else(|why| why, |()| panic!("h{host} runs\n{}", self.logs()))
    }
}

#[test]
fn root_wrong_arguments_end_the_server_with_what_would_be_right() {
    let Some(mut world) = World::new(2, "hsuc") else { return };
    let host = world.followers()[0];
    world.kill(host);
    for (of_server, of_module, wanted) in [
        (&[][..], &["nodes", "3"][..], "unknown argument \"nodes\"; known are cluster FILE"),
        (&[], &["hosts", "h1,h2"], "hosts is given twice"),
        (&[], &["durable", "always"], "durable \"always\" is wrong: it is group"),
        (&[], &["durable"], "durable is given without a value"),
        (&[], &["version-for-tests", "0"], "version-for-tests \"0\" is wrong"),
        (&["--cluster-enabled", "yes"], &[], "cluster-enabled yes: this server is part of a group"),
        (&["--replicaof", "127.0.0.1 1"], &[], "replicaof: the group decides who follows whom"),
        (&["--fide.reads", "never"], &[], "fide.reads is leader, any or stale"),
        (&["--fide.compare-every", "-1"], &[], "fide.compare-every seconds, 0 for never"),
    ] {
        let log = world.start_in_vain(host, of_server, of_module);
        assert!(log.contains(wanted), "{of_server:?} {of_module:?}: {log}");
    }
    world.start(host);
    world.await_ready();
}

#[test]
fn root_hosts_that_the_agents_do_not_know_are_named() {
    let Some(mut world) = World::new(2, "hsuc") else { return };
    world.kill(2);
    for (hosts, wanted) in [
        ("h1,h9", "host h9 is none of this cluster; its hosts are h1, h2"),
        ("h1", "this host, h2, is not among the hosts of the group: h1"),
        ("h1,h2,h2", "host h2 is in the group's list twice"),
    ] {
        world.set_hosts(hosts);
        let log = world.start_in_vain(2, &[], &[]);
        assert!(log.contains(wanted), "{hosts}: {log}");
    }
    world.set_hosts("h1,h2");
    world.start(2);
    world.await_ready();
    world.assert_alike();
}

/// It would execute what the leader wrote in another database, or be looked for where it is not.
#[test]
fn root_server_with_other_databases_or_another_port_is_told_so() {
    let Some(mut world) = World::new(2, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    let mut connection = world.connect(leader);
    redis::cmd("SELECT").arg(9).exec(&mut connection).unwrap();
    redis::cmd("SET").arg("k").arg("v").exec(&mut connection).unwrap();
    // A server of an older Redis than its leader is told so, too: what each has is in its dumps, before the checksum.
    let dump: Vec<u8> = redis::cmd("DUMP").arg("k").query(&mut connection).unwrap();
    let version = u16::from_le_bytes(dump[dump.len() - 10..dump.len() - 8].try_into().unwrap());
    for host in [leader, follower] {
        assert_eq!(world.status(host)["rdb_version"], version, "h{host}");
    }
    world.kill(follower);
    for (arguments, wanted) in [
        (["--databases", "20"], format!("`databases` is 20 on this server, and 16 on h{leader}, which leads")),
        (["--port", "7000"], format!("`port` is 7000 on this server, and 6379 on h{leader}, which leads")),
        (
            ["--hll-sparse-max-bytes", "16"],
            format!("`hll-sparse-max-bytes` is 16 on this server, and 3000 on h{leader}, which leads"),
        ),
    ] {
        let log = world.start_in_vain(follower, &arguments, &[]);
        assert!(log.contains(&wanted), "{log}");
        redis::cmd("INCR").arg("n").exec(&mut connection).expect("the others go on");
    }
    world.start(follower);
    world.await_ready();
    world.assert_alike();
    for setting in ["port 7000", "hll-sparse-max-bytes 16"] {
        let reply = world.ask(leader, &format!("CONFIG SET {setting}"));
        let name = setting.split(' ').next().unwrap_or_default();
        assert!(reply.starts_with(&format!("-ERR CONFIG SET {name} is refused in a group")), "{reply}");
    }
}

/// Each sees what the former one made of a command, and what this module executes comes by a second time.
#[test]
fn root_second_module_that_filters_commands_is_refused_whatever_the_order() {
    let Some(module) = foreign_module() else { return };
    let Some(mut world) = World::new(2, "hsuc") else { return };
    let host = world.followers()[0];
    world.kill(host);
    let load = ["--loadmodule", &module, "rename", "PUT", "SET"];
    for (of_server, of_module) in [(&load[..], &[][..]), (&[], &load)] {
        let log = world.start_in_vain(host, of_server, of_module);
        assert!(log.contains("the module foreign filters commands, too"), "{log}");
    }
    // One without a filter has to be allowed by name.
    let log = world.start_in_vain(host, &[], &["--loadmodule", &module]);
    assert!(log.contains("the module foreign is loaded, too") && log.contains("other-modules foreign"), "{log}");
    world.set_arguments(&["other-modules", "other,foreign", "--loadmodule", &module]);
    world.start(host);
    world.await_ready();
    assert_eq!(world.ask(host, "SET k v"), "+OK\r\n");
    let reply = world.ask(host, &format!("MODULE LOAD {module} rename PUT SET"));
    assert!(reply.starts_with("-ERR MODULE LOAD is refused in a group"), "{reply}");
    // Nobody would replicate what its thread writes.
    assert_eq!(world.ask(host, "FOREIGN.THREAD k other"), "+OK\r\n");
    let log = world.await_end(host);
    assert!(log.contains("a thread of another module calls commands of this server"), "{log}");
    assert_eq!(world.ask(world.leader(), "GET k"), "$1\r\nv\r\n");
}

#[test]
fn root_values_beyond_a_limit_are_refused_and_large_ones_are_everywhere() {
    const LARGE: usize = 20 << 20;
    let Some(world) = World::new(2, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    for line in ["CONFIG SET proto-max-bulk-len 1mb", "CONFIG SET client-query-buffer-limit 1mb"] {
        assert_eq!(world.ask(follower, line), "+OK\r\n");
    }
    // More than what waits for a server at most.
    let mut connection = world.connect(leader);
    let large = vec![b'x'; LARGE];
    redis::cmd("SET")
        .arg("large")
        .arg(&large)
        .exec(&mut connection)
        .unwrap_or_else(|why| panic!("{why}\n{}", world.logs()));
    redis::cmd("APPEND").arg("large").arg("y").exec(&mut connection).unwrap();
    redis::cmd("SETRANGE").arg("sparse").arg(3 << 20).arg("y").exec(&mut connection).unwrap();
    world.assert_alike();
    assert_eq!(world.ask(follower, "STRLEN large"), format!(":{}\r\n", LARGE + 1));
    // Redis closes the connection of a client that announces more than it takes, and refuses what would become longer.
    let reply = world.ask(leader, "SETRANGE k 536870912 x");
    assert!(reply.contains("exceeds maximum allowed size"), "{reply}");
    let mut stream = std::os::unix::net::UnixStream::connect(world.server(leader).socket()).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870913\r\nxx").unwrap();
    let mut reply = String::new();
    let _ = stream.read_to_string(&mut reply);
    assert!(reply.contains("invalid bulk length"), "{reply}");
    world.await_ready();
    assert_eq!(world.ask(leader, "EXISTS k"), ":0\r\n");
    world.assert_alike();
}

#[test]
fn root_data_that_is_not_the_groups_is_refused_or_dropped() {
    let Some(mut world) = World::new(2, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    world.ask(leader, "SET k old");
    world.assert_alike();
    assert_eq!(world.ask(follower, "SAVE"), "+OK\r\n");
    world.kill(follower);
    world.ask(leader, "SET k new");
    // It was in the group: its own dump is of no use.
    world.start(follower);
    world.await_ready();
    assert_eq!(world.ask(follower, "GET k"), "$3\r\nnew\r\n");
    let record = world.server(follower).dir().join("group");
    world.kill(follower);
    // As far as it knows it never was: the dump is somebody's data.
    fs::remove_dir_all(&record).unwrap();
    let log = world.start_in_vain(follower, &[], &[]);
    assert!(log.contains("this server has data that is not the group's"), "{log}");
    fs::remove_file(record.with_file_name("dump.rdb")).unwrap();
    world.start(follower);
    world.await_ready();
    world.assert_alike();
}

/// Its connection ends at each place of a transaction.
#[test]
fn root_client_that_goes_in_the_middle_of_a_transaction_leaves_all_of_it_or_nothing() {
    let Some(world) = World::new(2, "hsuc") else { return };
    let leader = world.leader();
    let whole = b"MULTI\r\nINCR a\r\nINCR b\r\nRPUSH l 1 2 3\r\nEXEC\r\n";
    for cut in 0..=whole.len() {
        let mut stream = std::os::unix::net::UnixStream::connect(world.server(leader).socket()).unwrap();
        stream.write_all(&whole[..cut]).unwrap();
        drop(stream);
    }
    let counts = retry_until("the last one", LIMIT, || {
        let counts = ["GET a", "GET b"].map(|line| world.ask(leader, line));
        if counts[0] == "$-1\r\n" { Err(format!("{counts:?}")) } else { Ok(counts) }
    });
    let [a, b] = counts.unwrap();
    assert_eq!((a.as_str(), &a), ("$1\r\n1\r\n", &b), "only the whole one has happened");
    assert_eq!(world.ask(leader, "LLEN l"), ":3\r\n");
    let clients = world.ask(leader, "CLIENT LIST TYPE normal");
    assert!(!clients.contains("multi=1") && !clients.contains("multi=2"), "{clients}");
    world.assert_alike();
}

/// Settings of Redis that may differ do not make the data differ.
#[test]
fn root_servers_with_other_settings_have_the_same_data() {
    let Some(world) = World::new(3, "hsuc") else { return };
    let (leader, followers) = (world.leader(), world.followers());
    let tiny = [
        "hash-max-listpack-entries 1",
        "hash-max-listpack-value 1",
        "set-max-intset-entries 1",
        "zset-max-listpack-entries 1",
        "list-max-listpack-size 1",
        "list-compress-depth 1",
        "stream-node-max-entries 2",
    ];
    let other = [
        "notify-keyspace-events KEA",
        "lazyfree-lazy-eviction yes",
        "lazyfree-lazy-expire yes",
        "lazyfree-lazy-server-del yes",
        "lazyfree-lazy-user-del yes",
        "lazyfree-lazy-user-flush yes",
        "replica-lazy-flush yes",
        "active-expire-effort 10",
        "hz 100",
        "maxmemory-policy allkeys-lfu",
        "maxmemory 1mb",
        "lfu-decay-time 0",
        "proto-max-bulk-len 1mb",
        "client-query-buffer-limit 1mb",
        "timeout 1",
        "appendonly yes",
        "tracking-table-max-keys 1",
        "latency-tracking no",
        "min-replicas-max-lag 1",
        "replica-serve-stale-data no",
    ];
    for (host, settings) in [(leader, &tiny[..]), (followers[0], &other)] {
        for setting in settings {
            assert_eq!(world.ask(host, &format!("CONFIG SET {setting}")), "+OK\r\n", "{setting}");
        }
    }
    let mut connection = world.connect(leader);
    for round in 0..2 {
        for line in LINES.iter().filter(|line| !line.starts_with("FUNCTION")) {
            let _ = run(&mut connection, line);
        }
        for n in 0..30 {
            run(&mut connection, &format!("XADD trimmed MAXLEN ~ 5 * f {n}")).unwrap();
            run(&mut connection, &format!("XADD trimmed2 MINID ~ {n} {}-1 f {n}", n + 1 + 100 * round)).unwrap();
            run(&mut connection, &format!("PFADD hll {n}")).unwrap();
            run(&mut connection, &format!("SADD unsorted member{n}")).unwrap();
        }
        run(&mut connection, "XTRIM trimmed MAXLEN ~ 3").unwrap();
        // All weigh the same: what Redis makes of that depends on the order in which its table has the members.
        run(&mut connection, "MSET weight:member1 same weight:member2 same").unwrap();
        run(&mut connection, "SORT unsorted BY weight:* ALPHA STORE sorted").unwrap();
        run(&mut connection, "SORT unsorted BY nosort GET # STORE sorted2").unwrap();
        run(&mut connection, &format!("SET big {}", "x".repeat(2 << 20))).unwrap();
        world.assert_alike();
    }
    let number = world.compare(leader);
    for host in world.hosts() {
        assert_eq!(world.await_compared(host, number)["differ"], serde_json::json!([]), "h{host}");
    }
    for (line, wanted) in [
        ("CONFIG SET min-replicas-to-write 1", "-ERR CONFIG SET min-replicas-to-write is refused in a group"),
        ("CONFIG SET hz 20 replica-ignore-maxmemory no", "-ERR CONFIG SET replica-ignore-maxmemory is refused"),
        (
            "CONFIG SET replica-ignore-disk-write-errors no",
            "-ERR CONFIG SET replica-ignore-disk-write-errors is refused",
        ),
    ] {
        let reply = world.ask(followers[0], line);
        assert!(reply.starts_with(wanted), "{line}: {reply}");
    }
    // The one with other settings is not worse as a leader.
    assert_eq!(world.ask(followers[0], "CONFIG SET maxmemory 0"), "+OK\r\n");
    assert_eq!(world.ask(leader, &format!("FIDE.TRANSFER h{}", followers[0])), "+OK\r\n");
    world.await_ready();
    let mut connection = world.connect(followers[0]);
    for line in LINES.iter().filter(|line| !line.starts_with("FUNCTION")) {
        let _ = run(&mut connection, line);
    }
    world.assert_alike();
}

#[test]
fn root_agent_that_is_down_or_restarts_costs_a_server_its_place_for_that_time() {
    let Some(mut world) = World::new(3, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    world.ask(leader, "SET k v");
    world.agents.kill(follower).unwrap();
    // Without its agent it answers no read, and the others go on without it.
    let refused = retry_until("no answer", LIMIT, || {
        let reply = world.ask(follower, "GET k");
        if reply.starts_with("-TRYAGAIN") || reply.starts_with("-LOADING") { Ok(()) } else { Err(reply) }
    });
    refused.unwrap_or_else(|why| panic!("{why}\n{}", world.logs()));
    let written = retry_until("a write", LIMIT, || {
        let reply = world.ask(leader, "SET k w");
        if reply == "+OK\r\n" { Ok(()) } else { Err(reply) }
    });
    written.unwrap_or_else(|why| panic!("{why}\n{}", world.logs()));
    // Nor does it start.
    world.kill(follower);
    let log = world.start_in_vain(follower, &[], &[]);
    assert!(log.contains("no Fide agent at"), "{log}");
    world.agents.start_again(follower).unwrap();
    let up = retry_until("an agent", LIMIT, || world.agents.ask(follower, "status", serde_json::json!({})).map(drop));
    up.unwrap_or_else(|why| panic!("{why}\n{}", world.logs()));
    world.start(follower);
    world.await_ready();
    assert_eq!(world.ask(follower, "GET k"), "$1\r\nw\r\n");
    // One that is started anew at once: its server comes back by itself.
    world.agents.start_again(leader).unwrap();
    let written = retry_until("a write", LIMIT, || {
        let leads = |host: &usize| world.mode(*host) == "leader";
        let leader = world.hosts().into_iter().find(leads).ok_or("no leader")?;
        // The one that led until now may disconnect its clients at this moment.
        let reply = world.server(leader).command(&["SET", "n", "1"])?;
        if reply == "+OK\r\n" { Ok(()) } else { Err(reply) }
    });
    written.unwrap_or_else(|why| panic!("{why}\n{}", world.logs()));
    world.await_ready();
    world.assert_alike();
}

const DURABLE: [&str; 2] = ["durable", "disk"];

/// A file system of its own, unmounted at the end.
pub(crate) struct Small(pub(crate) PathBuf);

impl Small {
    pub(crate) fn over(dir: PathBuf, size: &str) -> Self {
        fs::create_dir_all(&dir).unwrap();
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={size}"), "none"]).arg(&dir).status();
        assert!(mounted.is_ok_and(|status| status.success()), "a tmpfs over {}", dir.display());
        Self(dir)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn root_full_disk_holds_up_writes_and_loses_none() {
    let Some(mut world) = World::with(2, "hsuc", &DURABLE) else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    let dir = world.server(follower).dir().join("group");
    world.kill(follower);
    fs::remove_dir_all(&dir).unwrap();
    let small = Small::over(dir.clone(), "16m");
    world.start(follower);
    world.await_ready();
    assert_eq!(world.ask(leader, "SET k v"), "+OK\r\n");
    world.assert_alike();
    // From then on its disk counts.
    let stored = retry_until("its state on its disk", LIMIT, || {
        if has_state(&world, follower) { Ok(()) } else { Err("none".to_owned()) }
    });
    stored.unwrap_or_else(|why| panic!("{why}\n{}", world.logs()));
    let filler = dir.join("filler");
    let free = vec![1_u8; 64 << 10];
    let mut file = fs::File::create(&filler).unwrap();
    while file.write_all(&free).is_ok() {}
    drop(file);
    // What the log has room for, and then nothing: two of two disks have to have it.
    let mut connection = world.connect(leader);
    let mut written = 0_u64;
    while written < 1000 && redis::cmd("RPUSH").arg("l").arg(vec![b'x'; 64 << 10]).query::<u64>(&mut connection).is_ok()
    {
        written += 1;
    }
    assert!(written < 1000, "the disk is not full");
    let said = retry_until("what it waits for", LIMIT, || {
        let status = world.status(follower)["waits_for"].as_str().unwrap_or_default().to_owned();
        if status.contains("No space left") { Ok(()) } else { Err(status) }
    });
    said.unwrap_or_else(|why| panic!("{why}\n{}", world.logs()));
    fs::remove_file(&filler).unwrap();
    world.await_ready();
    assert_eq!(world.ask(leader, "SET k w"), "+OK\r\n");
    world.assert_alike();
    let len = world.ask(leader, "LLEN l");
    let len: u64 = len.trim_start_matches(':').trim().parse().unwrap();
    assert!(len == written || len == written + 1, "{len}, and {written} were acknowledged");
    println!("{written} writes of 64 kB until the disk was full");
    world.kill(follower);
    drop(small);
}

#[test]
fn root_log_that_has_lost_data_is_refused_and_taken_over_once_it_is_moved_away() {
    let Some(mut world) = World::with(3, "hsuc", &DURABLE) else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    for n in 0..300 {
        world.ask(leader, &format!("SET k{n} {}", "x".repeat(500)));
    }
    world.assert_alike();
    let dir = world.server(follower).dir().join("group/redis.log");
    world.kill(follower);
    let largest = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).max_by_key(|path| {
        let is_log = path.extension().is_none_or(|extension| extension != "toml");
        fs::metadata(path).map_or(0, |file| if is_log { file.len() } else { 0 })
    });
    let segment = largest.unwrap();
    let mut bytes = fs::read(&segment).unwrap();
    let place = bytes.windows(20).position(|window| window == [b'x'; 20]).expect("a value is in the log");
    bytes[place] ^= 1;
    fs::write(&segment, bytes).unwrap();
    let log = world.start_in_vain(follower, &[], &[]);
    assert!(log.contains("is damaged at byte") && log.contains("move this folder away"), "{log}");
    assert_eq!(world.ask(leader, "INCR n"), ":1\r\n", "the others go on");
    fs::rename(&dir, dir.with_extension("damaged")).unwrap();
    world.start(follower);
    world.await_ready();
    assert_eq!(world.ask(follower, "GET n"), "$1\r\n1\r\n");
    world.assert_alike();
}
