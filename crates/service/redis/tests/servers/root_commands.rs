// SPDX-License-Identifier: Apache-2.0
//! Each kind of command leaves all servers alike, whatever it depends on: time, chance, other clients.

use std::{
    io::{Read, Write},
    thread,
    time::Duration,
};

use redis::{Commands, Connection, RedisResult, Value};

use crate::world::{LIMIT, World};

pub(crate) fn run(connection: &mut Connection, line: &str) -> RedisResult<Value> {
    let mut words = line.split(' ');
    let mut command = redis::cmd(words.next().expect("a name"));
    words.for_each(|word| {
        command.arg(word);
    });
    command.query(connection)
}

/// Lines that all succeed, in this order.
pub(crate) const LINES: &[&str] = &[
    // Strings and their deadlines.
    "SET s1 a",
    "SET s2 b EX 1000",
    "SET s2 c KEEPTTL",
    "SET s3 d PX 500000 NX",
    "SET s3 e XX GET",
    "SET s3 never NX",
    "SETEX s4 1000 x",
    "PSETEX s5 1000000 x",
    "GETEX s5 EX 2000",
    "GETEX s4 PERSIST",
    "GETSET s1 b",
    "APPEND s1 c",
    "SETRANGE s1 5 x",
    "INCR n",
    "INCRBY n 41",
    "INCRBYFLOAT n 0.1",
    "DECRBY m 7",
    "MSET a 1 b 2 c 3",
    "MSETNX a 9 z 9",
    "SETBIT bits 7 1",
    "BITFIELD bits INCRBY u4 0 1",
    "BITOP NOT notbits bits",
    "GETDEL c",
    "EXPIRE a 1000",
    "EXPIRE a 2000 GT",
    "EXPIRE a 1 GT",
    "PEXPIREAT b 99999999999999",
    "EXPIREAT s3 1",
    "PERSIST b",
    "COPY s1 s1copy",
    "RENAME s1copy s1moved",
    "PFADD hll a b c",
    "PFCOUNT hll",
    "PFMERGE hll2 hll",
    // Lists.
    "RPUSH l a b c d e",
    "LPUSH l z",
    "LINSERT l BEFORE c x",
    "LREM l 1 a",
    "LSET l 0 y",
    "LTRIM l 0 4",
    "LMOVE l l2 LEFT RIGHT",
    "RPOPLPUSH l l2",
    "LMPOP 2 none l LEFT COUNT 1",
    "BLPOP l 1",
    "BRPOP l2 1",
    "BLMOVE l2 l RIGHT LEFT 1",
    "RPUSH l2 1 3 2",
    "SORT l2 STORE l3",
    "SORT l2",
    // Hashes.
    "HSET h a 1 b 2",
    "HINCRBY h a 5",
    "HINCRBYFLOAT h b 0.25",
    "HSETNX h c 3",
    "HDEL h c",
    // Sets.
    "SADD st a b c d e f g h",
    "SPOP st",
    "SPOP st 3",
    "SMOVE st st2 nothing",
    "SADD st2 a b c",
    "SINTERSTORE st3 st st2",
    "SUNIONSTORE st4 st st2",
    "SREM st2 a",
    // Sorted sets.
    "ZADD z 1 a 2 b 3 c 4 d",
    "ZADD z GT CH 9 a",
    "ZINCRBY z 0.5 b",
    "ZPOPMIN z",
    "BZPOPMAX z 1",
    "ZMPOP 1 z MIN COUNT 1",
    "ZADD z 1 a 2 b 3 c 4 d",
    "ZRANGESTORE z2 z 0 1",
    "ZUNIONSTORE z3 2 z z2 WEIGHTS 2 3",
    "ZREMRANGEBYRANK z 0 0",
    "GEOADD geo 13.361389 38.115556 Palermo 15.087269 37.502669 Catania",
    "GEOSEARCHSTORE geo2 geo FROMLONLAT 15 37 BYRADIUS 200 km ASC",
    "GEORADIUS geo 15 37 200 km STORE geo3",
    // Streams.
    "XADD x * f 1",
    "XADD x * f 2",
    "XADD x MAXLEN ~ 1000 * f 3",
    "XADD x NOMKSTREAM MAXLEN 3 * f 4",
    "XADD none NOMKSTREAM * f 4",
    "XGROUP CREATE x g 0",
    "XREADGROUP GROUP g alice COUNT 2 STREAMS x >",
    "XREADGROUP GROUP g bob COUNT 1 STREAMS x >",
    "XREADGROUP GROUP g alice STREAMS x 0",
    "XAUTOCLAIM x g bob 0 0 COUNT 1",
    "XTRIM x MAXLEN 2",
    "XSETID x 99999999999999-0",
    // GROUP last, as some libraries send it, and names that are options elsewhere.
    "XADD w 1-1 f v",
    "XADD w 1-2 f v",
    "XADD w 1-3 f v",
    "XGROUP CREATE w streams 0",
    "XREADGROUP COUNT 1 BLOCK 5 GROUP streams noack STREAMS w >",
    "XREADGROUP NOACK COUNT 1 GROUP streams block STREAMS w >",
    // An entry that is pending and was deleted, and a group that is put ahead.
    "XADD y 1-1 f v",
    "XADD y 1-2 f v",
    "XGROUP CREATE y g 0",
    "XREADGROUP GROUP g alice COUNT 1 STREAMS y >",
    "XDEL y 1-1",
    "XREADGROUP GROUP g alice STREAMS y 0",
    "XREADGROUP GROUP g nobody STREAMS y 0",
    "XCLAIM y g bob 0 1-2 LASTID 1-2",
    // Ids as nobody writes them, and Redis reads them: 5 is 5-0, which is acknowledged, and not the pending 5-1.
    "XADD v 5-0 f v",
    "XADD v 5-1 f v",
    "XGROUP CREATE v g 0",
    "XREADGROUP GROUP g alice STREAMS v >",
    "XACK v g 5-0",
    "XCLAIM v g bob 0 5",
    "XCLAIM v g bob 0 +5-01 JUSTID",
    // Databases, scripts, functions.
    "SELECT 3",
    "SET other db",
    "MOVE other 4",
    "SELECT 0",
    "SWAPDB 4 5",
    "SCRIPT LOAD return(1)",
    "EVAL redis.call('SET',KEYS[1],ARGV[1]);return(redis.call('INCR',KEYS[2])) 2 lua1 lua2 v",
    "EVAL redis.call('SADD','lset','a','b','c');return(redis.call('SPOP','lset')) 0",
    "EVAL local\tt=redis.call('TIME');redis.call('SET','luatime',t[1]..t[2]) 0",
    "FUNCTION LOAD #!lua\u{20}name=lib\nredis.register_function('put',function(k,a)return(redis.call('SET',k[1],a[1]))end)",
    "FCALL put 1 fkey fvalue",
    "PUBLISH channel message",
    "UNLINK s1moved",
    "OBJECT FREQ s1",
];

/// A stream with its groups, and what is pending of whom since when. Not when a consumer was last seen or active (Redis
/// 7.2), which Redis does not replicate either.
pub(crate) fn stream(connection: &mut Connection, key: &str) -> Vec<String> {
    fn flat(value: Value, all: &mut Vec<String>) {
        match value {
            Value::Array(values) => values.into_iter().for_each(|value| flat(value, all)),
            Value::BulkString(bytes) => all.push(String::from_utf8_lossy(&bytes).into_owned()),
            other => all.push(format!("{other:?}")),
        }
    }
    let mut all = Vec::new();
    flat(redis::cmd("XINFO").arg("STREAM").arg(key).arg("FULL").query(connection).unwrap(), &mut all);
    let is_local = |name: &str| name == "seen-time" || name == "active-time";
    for at in (1..all.len()).filter(|at| is_local(&all[at - 1])).collect::<Vec<_>>() {
        all[at].clear();
    }
    all
}

#[test]
fn root_every_kind_of_command_leaves_all_servers_alike() {
    let Some(world) = World::new(3, "hsuc") else { return };
    let leader = world.leader();
    let mut connection = world.connect(leader);
    for line in LINES {
        let result = if let Some(code) = line.strip_prefix("FUNCTION LOAD ") {
            redis::cmd("FUNCTION").arg("LOAD").arg(code).query(&mut connection)
        } else {
            run(&mut connection, line)
        };
        // Redis says so, as there is no LFU policy.
        let is_expected = line.starts_with("OBJECT FREQ") || line.starts_with("EXPIREAT");
        assert!(result.is_ok() || is_expected, "{line}: {result:?}\n{}", world.logs());
    }
    let dump: Vec<u8> = redis::cmd("DUMP").arg("s2").query(&mut connection).unwrap();
    redis::cmd("RESTORE").arg("restored").arg(77_000).arg(&dump[..]).exec(&mut connection).unwrap();
    redis::cmd("RESTORE").arg("restored").arg(0).arg(&dump[..]).arg("REPLACE").exec(&mut connection).unwrap();
    world.assert_alike();
    // What a digest does not show: deadlines, and who reads a stream.
    for follower in world.followers() {
        let mut other = world.connect(follower);
        for key in ["s2", "s3", "s4", "s5", "a", "b", "restored"] {
            let deadline =
                |connection: &mut Connection| redis::cmd("PEXPIRETIME").arg(key).query::<i64>(connection).unwrap();
            assert_eq!(deadline(&mut other), deadline(&mut connection), "{key} on h{follower}");
        }
        for key in ["v", "w", "x", "y"] {
            assert_eq!(stream(&mut other, key), stream(&mut connection, key), "the stream {key} with its groups");
        }
        let functions =
            |connection: &mut Connection| redis::cmd("FUNCTION").arg("DUMP").query::<Vec<u8>>(connection).unwrap();
        assert_eq!(functions(&mut other), functions(&mut connection));
    }
}

#[test]
fn root_transactions_are_whole_and_watched() {
    let Some(world) = World::new(2, "hsuc") else { return };
    let leader = world.leader();
    let (mut one, mut two) = (world.connect(leader), world.connect(leader));
    run(&mut one, "WATCH k").unwrap();
    run(&mut two, "SET k other").unwrap();
    run(&mut one, "MULTI").unwrap();
    assert_eq!(run(&mut one, "SET k mine").unwrap(), Value::SimpleString("QUEUED".into()));
    assert_eq!(run(&mut one, "EXEC").unwrap(), Value::Nil);
    run(&mut one, "MULTI").unwrap();
    run(&mut one, "SET k mine").unwrap();
    run(&mut one, "SPOP none").unwrap();
    run(&mut one, "INCR n").unwrap();
    let replies: (String, Option<String>, i64) = redis::cmd("EXEC").query(&mut one).unwrap();
    assert_eq!(replies, ("OK".to_owned(), None, 1));
    run(&mut one, "MULTI").unwrap();
    assert!(run(&mut one, "SET k").is_err());
    assert!(run(&mut one, "EXEC").is_err(), "a command that was wrong ends the transaction");
    world.assert_alike();
}

#[test]
fn root_blocked_clients_are_served_once_and_everywhere() {
    let Some(world) = World::new(2, "hsuc") else { return };
    let leader = world.leader();
    thread::scope(|scope| {
        let popper = |line: &'static str| {
            let mut connection = world.connect(leader);
            scope.spawn(move || run(&mut connection, line).unwrap())
        };
        let waiting = [popper("BLPOP q1 q2 20"), popper("BLMOVE q3 q4 LEFT LEFT 20"), popper("BZPOPMIN z1 20")];
        let late = popper("BLPOP nothing 0.1");
        let mut connection = world.connect(leader);
        thread::sleep(Duration::from_millis(300));
        assert_eq!(late.join().unwrap(), Value::Nil);
        for line in ["RPUSH q2 a b", "RPUSH q3 c", "ZADD z1 1 d"] {
            run(&mut connection, line).unwrap();
        }
        for client in waiting {
            assert_ne!(client.join().unwrap(), Value::Nil);
        }
        assert_eq!(connection.lrange::<_, Vec<String>>("q2", 0, -1).unwrap(), ["b"]);
        assert_eq!(connection.lrange::<_, Vec<String>>("q4", 0, -1).unwrap(), ["c"]);
    });
    world.assert_alike();
}

/// A key that becomes something else does not end the wait, nor does it stand in the way of another key.
#[test]
fn root_client_that_waits_is_served_by_data_of_its_kind_only() {
    let Some(world) = World::new(2, "hsuc") else { return };
    let leader = world.leader();
    let wait = |line: &'static str| {
        let mut connection = world.connect(leader);
        let id: i64 = redis::cmd("CLIENT").arg("ID").query(&mut connection).unwrap();
        let waiting = thread::spawn(move || run(&mut connection, line));
        fide_testbed::retry_until("it waits", LIMIT, || {
            let line = world.ask(leader, &format!("CLIENT LIST ID {id}"));
            if line.contains("flags=b") { Ok(()) } else { Err(line) }
        })
        .unwrap();
        waiting
    };
    let mut connection = world.connect(leader);
    let waiting = wait("BLPOP k1 k2 0");
    let as_one = "redis.call('rpush','k1','x') redis.call('del','k1') redis.call('set','k1','x')";
    redis::cmd("EVAL").arg(as_one).arg(0).query::<()>(&mut connection).unwrap();
    run(&mut connection, "RPUSH k2 a b").unwrap();
    let served: (String, String) = redis::from_redis_value(waiting.join().unwrap().unwrap()).unwrap();
    assert_eq!(served, ("k2".to_owned(), "a".to_owned()));

    let waiting = wait("BLMPOP 0 2 k5 k3 RIGHT COUNT 2");
    run(&mut connection, "RPUSH k3 a b c").unwrap();
    waiting.join().unwrap().expect("it is served");
    assert_eq!(world.ask(leader, "LLEN k3"), ":1\r\n");

    let waiting = wait("BLMOVE k4 k1 LEFT LEFT 0");
    run(&mut connection, "RPUSH k4 a").unwrap();
    let why = waiting.join().unwrap().expect_err("the other key is a string").to_string();
    assert!(why.contains("WRONGTYPE"), "{why}");

    run(&mut connection, "SET number 12345").unwrap();
    for host in world.hosts() {
        assert_eq!(world.ask(host, "OBJECT ENCODING number"), "$3\r\nint\r\n");
    }
    world.assert_alike();
}

/// However the stream goes.
#[test]
fn root_client_that_waits_for_a_stream_is_told_that_it_was_deleted() {
    let Some(world) = World::new(2, "hsuc") else { return };
    let leader = world.leader();
    let mut connection = world.connect(leader);
    for deletion in ["DEL s", "UNLINK kept s", "FLUSHALL", "PEXPIRE s 20", "RENAME s t", "SWAPDB 0 7"] {
        for line in ["XADD s 1-1 f v", "XADD kept 1-1 f v", "XGROUP CREATE s g $", "XGROUP CREATE kept g $"] {
            run(&mut connection, line).unwrap();
        }
        let mut other = world.connect(leader);
        let waiting = thread::spawn(move || run(&mut other, "XREADGROUP BLOCK 0 GROUP g me STREAMS kept s > >"));
        fide_testbed::retry_until("it waits", LIMIT, || {
            let clients = world.ask(leader, "INFO clients");
            if waiting.is_finished() {
                return Err(format!("{deletion}: it does not wait"));
            }
            if clients.contains("blocked_clients:1\r") { Ok(()) } else { Err(clients) }
        })
        .unwrap();
        run(&mut connection, "SET another value").unwrap();
        run(&mut connection, "DEL another").unwrap();
        assert!(!waiting.is_finished(), "{deletion}: another key was deleted");
        run(&mut connection, deletion).unwrap();
        let why = waiting.join().unwrap().expect_err("it is not served").to_string();
        assert!(why.contains("the stream key no longer exists"), "{deletion}: {why}");
        run(&mut connection, "FLUSHALL").unwrap();
    }
    world.assert_alike();
}

#[test]
fn root_keys_expire_everywhere_by_the_leaders_clock() {
    let Some(world) = World::new(2, "hsuc") else { return };
    let mut connection = world.connect(world.leader());
    for n in 0..20 {
        connection.pset_ex::<_, _, ()>(format!("k{n}"), "v", 50).unwrap();
    }
    let follower = world.followers()[0];
    let mut other = world.connect(follower);
    fide_testbed::retry_until("all keys gone", LIMIT, || {
        let left: i64 = redis::cmd("DBSIZE").query(&mut other).map_err(|why| why.to_string())?;
        if left == 0 { Ok(()) } else { Err(format!("{left} left")) }
    })
    .unwrap();
    world.assert_alike();
}

#[test]
fn root_what_would_make_servers_differ_is_refused_by_name() {
    let Some(world) = World::new(2, "hsuc") else { return };
    let leader = world.leader();
    for (line, wanted) in [
        ("REPLICAOF NO ONE", "-ERR REPLICAOF is refused in a group: the group decides"),
        ("MIGRATE 127.0.0.1 1 k 0 10", "-ERR MIGRATE is refused in a group: it writes to another server"),
        ("CONFIG SET replica-read-only no", "-ERR CONFIG SET replica-read-only is refused"),
        ("FIDE.W GET k", "-ERR FIDE.W is for"),
        ("FIDE.W SET k v", "-ERR FIDE.W is for"),
        ("FIDE.APPLIED 5", "-ERR FIDE.APPLIED is for the replication link"),
        ("FIDE.MARK 999999", "-ERR FIDE.MARK is for this module's own use"),
        ("FIDE.R DEL k", "-ERR FIDE.R is for"),
        ("MODULE LOAD /nowhere.so", "-ERR MODULE LOAD is refused in a group"),
        ("CLUSTER SLOTS", "-ERR CLUSTER SLOTS is refused in a group: this server is part of a group"),
        ("SCRIPT DEBUG YES", "-ERR SCRIPT DEBUG is refused in a group: its debugger"),
        ("CONFIG REWRITE", "-ERR CONFIG REWRITE is refused in a group"),
        ("DEBUG POPULATE 3", "-ERR DEBUG POPULATE is refused in a group"),
        ("PSYNC a 1 FAILOVER", "-ERR PSYNC is refused in a group: the group decides who leads"),
    ] {
        let reply = world.ask(leader, line);
        assert!(reply.starts_with(wanted), "{line}: {reply}");
    }
    assert_eq!(world.ask(leader, "CONFIG SET maxmemory 100mb"), "+OK\r\n");
    assert_eq!(world.ask(leader, "WAIT 1 100"), ":1\r\n");
    let follower = world.followers()[0];
    assert!(world.ask(follower, "FIDE.R FLUSHALL").starts_with("-ERR FIDE.R is for"));
    // Written as the log writes it: Redis itself refuses it.
    assert!(world.ask(follower, "SEt k v").starts_with("-READONLY"));
    // Redis would let a client of a replica do these.
    run(&mut world.connect(leader), "PFADD counted a b c").unwrap();
    let script = world.ask(leader, "SCRIPT LOAD return(1)");
    let sum = script.lines().nth(1).unwrap().to_owned();
    for line in ["PFCOUNt counted", "PUBLISh channel message", "SPUBLISh channel message", "SCRIPt FLUSH"] {
        assert!(world.ask(follower, line).starts_with("-READONLY"), "{line}");
    }
    assert_eq!(world.ask(follower, "PFCOUNT counted"), ":3\r\n");
    world.assert_alike();
    assert_eq!(world.ask(leader, &format!("EVALSHA {sum} 0")), ":1\r\n");
    world.assert_alike();
}

/// The leader evicts, and the others delete what it has evicted.
#[test]
fn root_evicted_keys_are_gone_everywhere() {
    const KEYS: i64 = 3000;
    let Some(world) = World::new(3, "hsuc") else { return };
    let leader = world.leader();
    let mut connection = world.connect(leader);
    let info: String = redis::cmd("INFO").arg("memory").query(&mut connection).unwrap();
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")).expect("it says so");
    let limit = used.trim().parse::<u64>().unwrap() + (1 << 20);
    for host in world.hosts() {
        assert_eq!(world.ask(host, "CONFIG SET maxmemory-policy allkeys-lru"), "+OK\r\n");
        assert_eq!(world.ask(host, &format!("CONFIG SET maxmemory {limit}")), "+OK\r\n");
    }
    for key in 0..KEYS {
        connection.set::<_, _, ()>(format!("key{key}"), vec![b'x'; 1000]).unwrap();
    }
    let left: i64 = redis::cmd("DBSIZE").query(&mut connection).unwrap();
    assert!((1..KEYS).contains(&left), "{left} of {KEYS} are left");
    world.assert_alike();
}

/// After a refused MULTI the commands behind it would be passed on one by one.
#[test]
fn root_transaction_in_one_pipeline_at_a_follower_does_nothing() {
    let Some(world) = World::new(2, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    world.ask(leader, "MSET left 50 right 50");
    for (end, answer) in [("EXEC", "*3\r\n-READONLY"), ("DISCARD", "+OK\r\n")] {
        let mut stream = std::os::unix::net::UnixStream::connect(world.server(follower).socket()).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let all = format!("MULTI\r\nDECRBY left 30\r\nINCRBY right 30\r\nGET left\r\n{end}\r\n");
        stream.write_all(all.as_bytes()).unwrap();
        if end == "DISCARD" {
            stream.write_all(b"QUIT\r\n").unwrap();
        }
        // After refused writes the server closes the connection: a library looks for the leader then.
        let mut all = String::new();
        stream.read_to_string(&mut all).unwrap();
        assert!(all.starts_with(&format!("+OK\r\n{}{answer}", "+QUEUED\r\n".repeat(3))), "{all}");
        assert!(end == "DISCARD" || all.contains("the leader is h") && all.contains("\r\n$2\r\n50\r\n"), "{all}");
        for host in world.hosts() {
            assert_eq!(world.ask(host, "MGET left right"), "*2\r\n$2\r\n50\r\n$2\r\n50\r\n");
        }
    }
    world.assert_alike();
}

/// What Redis checks by the flags of a command holds for the commands of scripts and transactions, too.
#[test]
fn root_memory_limit_and_scripts_are_checked_as_redis_does() {
    let Some(world) = World::new(2, "hsuc") else { return };
    let leader = world.leader();
    let mut connection = world.connect(leader);
    let mut other = world.connect(leader);
    let mut eval = |script: &str| redis::cmd("EVAL").arg(script).arg(0).query::<Value>(&mut connection);
    for forbidden in ["'script','flush'", "'function','flush'", "'eval','return 1',0", "'wait','0','0'"] {
        let why = eval(&format!("return redis.call({forbidden})")).unwrap_err().to_string();
        assert!(why.contains("not allowed from script"), "{forbidden}: {why}");
    }
    run(&mut other, "SET x 1").unwrap();
    run(&mut other, "MULTI").unwrap();
    run(&mut other, "DEL x").unwrap();
    run(&mut other, "SET y 1").unwrap();
    assert_eq!(world.ask(leader, "CONFIG SET maxmemory 1"), "+OK\r\n");
    let why = run(&mut other, "EXEC").unwrap_err().to_string();
    assert!(why.contains("maxmemory"), "{why}");
    assert_eq!(world.ask(leader, "EXISTS x"), ":1\r\n", "a transaction is whole");
    let why = run(&mut other, "SET y 1").unwrap_err().to_string();
    assert!(why.contains("maxmemory"), "{why}");
    assert!(eval("return redis.call('set', 'y', '1')").is_err());
    eval("redis.call('del', 'x') return redis.call('set', 'y', '1')").expect("a script is whole");
    eval("#!lua flags=allow-oom\n return redis.call('set', 'z', '1')").expect("it may");
    world.assert_alike();
}

/// Redis writes the rest of a long reply in the middle of a turn: what such a client writes is decided first.
#[test]
fn root_client_with_unread_replies_is_answered_in_order() {
    let Some(world) = World::new(2, "hsuc") else { return };
    let leader = world.leader();
    let mut connection = world.connect(leader);
    let long = vec![b'x'; 3 << 20];
    connection.set::<_, _, ()>("long", &long[..]).unwrap();
    let mut stream = std::os::unix::net::UnixStream::connect(world.server(leader).socket()).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(b"GET long\r\n").unwrap();
    thread::sleep(Duration::from_millis(100));
    stream
        .write_all(b"SET k v\r\nMULTI\r\nSET k w\r\nEXEC\r\nEVAL \"return redis.call('INCR','n')\" 0\r\nQUIT\r\n")
        .unwrap();
    thread::sleep(Duration::from_millis(100));
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    let rest = String::from_utf8_lossy(&all[all.len() - 200..]).into_owned();
    let rest = rest.rsplit_once("xx\r\n").expect("the long value").1;
    // The connection takes nothing, so no reply can leave before its turn has ended.
    assert_eq!(rest, "+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n:1\r\n+OK\r\n");
    assert_eq!(connection.get::<_, String>("k").unwrap(), "w");
    world.assert_alike();
}

/// Nothing is written for longer than a replica waits for its master.
#[test]
fn root_idle_servers_stay_in_their_group() {
    let Some(world) = World::new(2, "hsuc") else { return };
    for host in world.hosts() {
        assert_eq!(world.ask(host, "CONFIG SET repl-timeout 5"), "+OK\r\n");
    }
    thread::sleep(Duration::from_millis(7500));
    world.await_ready();
    assert_eq!(world.ask(world.leader(), "SET k v"), "+OK\r\n");
    world.assert_alike();
}

/// While a server is stopped nothing is decided, and keys expire all the same.
#[test]
fn root_key_that_expires_while_the_group_waits_is_gone_everywhere() {
    let Some(world) = World::new(2, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    assert_eq!(world.ask(leader, "SET k 10 PX 400"), "+OK\r\n");
    world.server(follower).pause();
    let mut connection = world.connect(leader);
    assert!(run(&mut connection, "SET other v").is_err(), "disconnected, as nobody knows whether it will happen");
    assert!(world.ask(leader, "GET k").starts_with("-TRYAGAIN"));
    world.server(follower).resume();
    world.await_ready();
    assert_eq!(world.ask(leader, "INCR k"), ":1\r\n");
    world.assert_alike();
    assert_eq!(world.ask(follower, "GET k"), "$1\r\n1\r\n");
    assert_eq!(world.ask(follower, "GET other"), "$1\r\nv\r\n");
}

#[test]
fn root_server_whose_commands_were_renamed_does_not_start() {
    let Some(mut world) = World::new(1, "hsuc") else { return };
    world.kill(1);
    let why = world.start_with(1, &["--rename-command", "FLUSHALL", "XFLUSH"]).unwrap_err();
    assert!(why.contains("the command flushall was renamed"), "{why}");
}

/// Of several keys it is a read: a client that tracks keys hears of them, and a follower answers by itself.
#[test]
fn root_count_of_several_keys_is_a_read() {
    let Some(world) = World::new(2, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    for line in ["PFADD a 1 2", "PFADD b 2 3"] {
        assert_eq!(world.ask(leader, line), ":1\r\n");
    }
    assert_eq!(world.ask(follower, "CONFIG SET fide.follower-proxy no"), "+OK\r\n");
    assert_eq!(world.ask(follower, "PFCOUNT a b"), ":3\r\n");
    assert!(world.ask(follower, "PFCOUNT a").starts_with("-READONLY"));
    assert_eq!(world.ask(leader, "FIDE.W PFCOUNT a b"), ":3\r\n", "as an older follower passes it on");
    let mut stream = std::os::unix::net::UnixStream::connect(world.server(leader).socket()).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(b"HELLO 3\r\nCLIENT TRACKING ON\r\nPFCOUNT a b\r\n").unwrap();
    let mut read = |end: &str| {
        let (mut all, mut buffer) = (String::new(), [0; 1024]);
        while !all.ends_with(end) {
            let len = stream.read(&mut buffer).unwrap_or_else(|why| panic!("{why} after {all:?}"));
            all += &String::from_utf8_lossy(&buffer[..len]);
        }
        all
    };
    assert!(read(":3\r\n").contains("+OK"));
    assert_eq!(world.ask(leader, "PFADD a 4"), ":1\r\n");
    assert_eq!(read("a\r\n"), ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n");
    world.assert_alike();
}
