// SPDX-License-Identifier: Apache-2.0
//! Scripts and functions at followers do what they do at the leader; and followers that say `-MOVED`.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

use fide_testbed::retry_until;
use redis::{Connection, RedisResult, Value};

use crate::world::{LIMIT, Stops, World};

fn eval(connection: &mut Connection, script: &str) -> RedisResult<Value> {
    redis::cmd("EVAL").arg(script).arg(0).query(connection)
}

/// Each of these has the same answer, by both protocols.
const SCRIPTS: [&str; 12] = [
    "return redis.call('INCR', 'n')",
    "return redis.call('GET', 'n')",
    "return {1, {'two', {3}}, false}",
    "return nil",
    "return true",
    "return redis.status_reply('FINE')",
    "return redis.error_reply('MINE of its own')",
    "return redis.call('INCR', 'list')",
    "redis.call('INCR', 'n') error('half way')",
    "return redis.call('NONSENSE')",
    "redis.call('SADD', 's', 'a', 'b', 'c') return #redis.call('SPOP', 's', 2)",
    "this is no script",
];

#[test]
fn root_scripts_are_answered_at_followers_as_at_the_leader() {
    let Some(world) = World::new(3, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    world.ask(leader, "RPUSH list x");
    for connect in [World::connect, World::connect_by_resp3] {
        let [mut own, mut passed] = [leader, follower].map(|host| connect(&world, host));
        for script in SCRIPTS {
            // Each in a database of its own, from the same state.
            for (connection, db) in [(&mut own, 1), (&mut passed, 2)] {
                redis::cmd("SELECT").arg(db).exec(connection).unwrap();
                redis::cmd("RPUSH").arg("list").arg("x").exec(connection).unwrap();
            }
            let answers =
                [&mut own, &mut passed].map(|connection| eval(connection, script).map_err(|why| why.to_string()));
            assert_eq!(answers[0], answers[1], "{script}");
        }
        let last: [i64; 2] =
            [&mut own, &mut passed].map(|connection| redis::cmd("GET").arg("n").query(connection).unwrap());
        assert_eq!(last[0], last[1], "each script was executed once");
    }
    for (line, wanted) in [
        ("EVAL_RO return(redis.call('LLEN',KEYS[1])) 1 list", ":1\r\n"),
        ("FCALL put 1 k v", "-ERR Function not found\r\n"),
        ("EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0", "-NOSCRIPT No matching script. Please use EVAL.\r\n"),
    ] {
        assert_eq!(world.ask(follower, line), wanted, "{line}");
    }
    let mut connection = world.connect(follower);
    // An error of the script, whatever its name: it is not executed again.
    let of_script = "redis.call('INCR','once') return redis.error_reply('READONLY says the script')";
    assert!(eval(&mut connection, of_script).unwrap_err().to_string().contains("says the script"));
    assert_eq!(world.ask(follower, "GET once"), "$1\r\n1\r\n");
    world.assert_alike();
}

/// All clients of a follower share one connection to the leader.
#[test]
fn root_deep_and_long_answers_at_a_follower_do_not_disturb_other_clients() {
    /// Levels of the deepest answer; more than Redis' own ever have.
    const DEEP: usize = 1000;
    const LONG: usize = 200_000;
    let Some(world) = World::new(2, "hsuc") else { return };
    let follower = world.followers()[0];
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let others = scope.spawn(|| {
            let (mut connection, mut count) = (world.connect(follower), 0);
            while !stop.load(Relaxed) {
                count += 1;
                assert_eq!(redis::cmd("INCR").arg("n").query::<u64>(&mut connection), Ok(count));
            }
            count
        });
        let _stops = Stops(&stop);
        let eval = |number: Option<&str>, script: &str| {
            let once = number.map(|number| ["FIDE.ONCE", "c", number]);
            let words: Vec<&str> = once.iter().flatten().copied().chain(["EVAL", script, "0"]).collect();
            world.server(follower).command(&words).unwrap_or_else(|why| panic!("{script}: {why}"))
        };
        let deep = format!("local t={{}} for i=1,{DEEP} do t={{t}} end return t");
        let long = format!("return redis.status_reply(string.rep('x',{LONG}))");
        let many = format!("local t={{}} for i=1,{LONG} do t[i]='e'..i end return t");
        let many_answer: String =
            (1..=LONG).map(|at| format!("e{at}")).map(|e| format!("${}\r\n{e}\r\n", e.len())).collect();
        let many_answer = format!("*{LONG}\r\n{many_answer}");
        for (script, answer, numbers) in [
            (&deep, format!("{}*0\r\n", "*1\r\n".repeat(DEEP)), ["1", "2"]),
            (&long, format!("+{}\r\n", "x".repeat(LONG)), ["3", "4"]),
            (&many, many_answer, ["5", "6"]),
        ] {
            for number in [None, Some(numbers[0]), Some(numbers[1])] {
                let given = eval(number, script);
                assert!(given == answer, "{script}: {} bytes, {:?}", given.len(), given.get(..100));
            }
        }
        stop.store(true, Relaxed);
        assert!(others.join().expect("no write of others was lost") > 0);
    });
    world.assert_alike();
}

#[test]
fn root_loaded_scripts_and_functions_are_at_all_servers_after_the_leader() {
    let Some(mut world) = World::new(3, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    let mut connection = world.connect(follower);
    let script = "return redis.call('INCRBY', KEYS[1], ARGV[1])";
    let sha: String = redis::cmd("SCRIPT").arg("LOAD").arg(script).query(&mut connection).unwrap();
    let none = "0".repeat(40);
    let exists: Vec<u8> = redis::cmd("SCRIPT").arg("EXISTS").arg(&sha).arg(&none).query(&mut connection).unwrap();
    assert_eq!(exists, [1, 0], "what the leader knows");
    let call = |world: &World, host: usize| world.ask(host, &format!("EVALSHA {sha} 1 n 2"));
    assert_eq!(call(&world, follower), ":2\r\n");
    let library = "#!lua name=lib\nredis.register_function('put', function(keys, args) return redis.call('SET', keys[1], args[1]) end)\n\
                   redis.register_function{function_name='look', callback=function(keys) return redis.call('GET', keys[1]) end, flags={'no-writes'}}";
    assert_eq!(redis::cmd("FUNCTION").arg("LOAD").arg(library).query::<String>(&mut connection).unwrap(), "lib");
    assert!(redis::cmd("FUNCTION").arg("LOAD").arg(library).exec(&mut connection).is_err(), "it is there");
    assert_eq!(world.ask(follower, "FCALL put 1 k v"), "+OK\r\n");
    assert_eq!(world.ask(follower, "FCALL_RO look 1 k"), "$1\r\nv\r\n");
    assert!(world.ask(follower, "FCALL_RO put 1 k v").starts_with("-ERR Can not execute a script with write flag"));
    // A script that the leader was only shown is its own; a loaded one is everybody's.
    world.kill(leader);
    world.await_ready();
    for (host, wanted) in world.hosts().into_iter().zip([":4\r\n", ":6\r\n"]) {
        assert_eq!(call(&world, host), wanted);
        assert_eq!(world.ask(host, "FCALL_RO look 1 k"), "$1\r\nv\r\n");
    }
    // One that joins has the functions, and may be asked for the scripts while another leads.
    world.start(leader);
    world.await_ready();
    assert_eq!(call(&world, leader), ":8\r\n");
    assert_eq!(world.ask(leader, "FCALL_RO look 1 k"), "$1\r\nv\r\n");
    let follower = world.followers()[0];
    assert_eq!(world.ask(follower, "FUNCTION DELETE lib"), "+OK\r\n");
    assert_eq!(world.ask(follower, "SCRIPT FLUSH"), "+OK\r\n");
    for host in world.hosts() {
        assert!(call(&world, host).starts_with("-NOSCRIPT"), "h{host}");
        assert_eq!(world.ask(host, "FCALL put 1 k v"), "-ERR Function not found\r\n");
    }
    world.assert_alike();
}

/// What a script does is checked for the user who has sent it, at the leader.
#[test]
fn root_script_at_a_follower_may_do_what_its_user_may() {
    let Some(world) = World::new(2, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    for host in [leader, follower] {
        assert_eq!(world.ask(host, "ACL SETUSER ann on nopass ~a* +@all -flushall"), "+OK\r\n");
    }
    assert_eq!(world.ask(follower, "ACL SETUSER only on nopass ~* +@all"), "+OK\r\n");
    world.ask(leader, "SET b kept");
    let login = |user: &str| {
        let mut connection = world.connect(follower);
        redis::cmd("AUTH").arg(user).arg("x").query::<()>(&mut connection).expect("a user");
        connection
    };
    let mut ann = login("ann");
    assert_eq!(eval(&mut ann, "return redis.call('INCR', 'an')").unwrap(), Value::Int(1));
    for script in
        ["return redis.call('SET', 'b', 'stolen')", "return redis.call('FLUSHALL')", "return redis.call('GET', 'b')"]
    {
        for number in [None, Some(1)] {
            let mut command = redis::cmd(if number.is_some() { "FIDE.ONCE" } else { "EVAL" });
            if let Some(number) = number {
                command.arg("ann").arg(number).arg("EVAL");
            }
            let why = command.arg(script).arg(0).query::<Value>(&mut ann).unwrap_err().to_string();
            assert!(why.contains("user"), "{script}: {why}");
        }
    }
    assert!(redis::cmd("EVAL").arg("return 1").arg(1).arg("b").query::<Value>(&mut ann).is_err(), "not her key");
    let why = eval(&mut login("only"), "return 1").unwrap_err().to_string();
    assert!(why.contains("the leader has no user only; define users alike"), "{why}");
    // Nobody but a server of the group says whose a script is.
    for host in [leader, follower] {
        let reply = world.ask(host, "FIDE.AS 0 default EVAL return(1) 0");
        let wanted = if host == leader { "-ERR FIDE.AS is for this module's own use" } else { "-READONLY" };
        assert!(reply.starts_with(wanted), "{reply}");
    }
    assert_eq!(world.ask(leader, "GET b"), "$4\r\nkept\r\n");
    world.assert_alike();
}

#[test]
fn root_follower_says_where_the_leader_is_as_redis_cluster_does() {
    let Some(mut world) = World::new(2, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    assert_eq!(
        world.ask(follower, "CONFIG GET fide.follower-proxy"),
        "*2\r\n$19\r\nfide.follower-proxy\r\n$3\r\nyes\r\n"
    );
    assert!(world.ask(follower, "CONFIG SET fide.follower-proxy maybe").starts_with("-ERR"));
    for host in [leader, follower] {
        assert_eq!(world.ask(host, "CONFIG SET fide.follower-proxy moved"), "+OK\r\n");
    }
    assert_eq!(
        world.ask(follower, "CONFIG GET fide.follower-proxy"),
        "*2\r\n$19\r\nfide.follower-proxy\r\n$5\r\nmoved\r\n"
    );
    let address = format!("{}:6379", world.bed.host(leader).address(0));
    for (line, slot) in [
        ("SET foo 1", 12182),
        ("SET {hash_tag}foo 1", 2515),
        ("MSET foo 1 bar 2", 12182),
        ("EVAL return(1) 1 foo", 12182),
        ("EVAL return(1) 0", 0),
        ("FIDE.ONCE c 1 INCR foo", 12182),
        ("BLPOP foo 1", 12182),
        ("ZUNIONSTORE foo 1 bar", 12182),
        ("FLUSHALL", 0),
        ("PUBLISH foo 1", 0),
    ] {
        assert_eq!(world.ask(follower, line), format!("-MOVED {slot} {address}\r\n"), "{line}");
    }
    assert_eq!(world.ask(follower, "GET foo"), "$-1\r\n", "reads are answered");
    assert_eq!(world.ask(follower, "CONFIG SET fide.reads leader"), "+OK\r\n");
    assert_eq!(world.ask(follower, "GET foo"), format!("-MOVED 12182 {address}\r\n"));
    assert_eq!(world.ask(leader, "SET foo 1"), "+OK\r\n", "the leader takes it");
    world.kill(leader);
    world.await_ready();
    assert_eq!(world.ask(follower, "INCR foo"), ":2\r\n");
}

/// A reader would see half of a script that is cut into units, and so would the next leader.
#[test]
fn root_script_is_one_unit_also_behind_a_command_that_waited() {
    const WRITES: u64 = 20;
    let Some(world) = World::new(2, "hsuc") else { return };
    let leader = world.leader();
    let units = || world.status(leader)["units"].as_u64().unwrap();
    let script = format!("for i=1,{WRITES} do redis.call('SET','k'..i,i) redis.call('GET','k1') end");
    let mut waiting = world.connect(leader);
    let before = units();
    let one = std::thread::spawn(move || {
        let mut pipe = redis::pipe();
        pipe.cmd("BLPOP").arg("q").arg(0).cmd("EVAL").arg(script).arg(0);
        pipe.query::<(Vec<String>, Value)>(&mut waiting)
    });
    let blocked = retry_until("a client that waits", LIMIT, || {
        let clients = world.ask(leader, "INFO clients");
        if clients.contains("blocked_clients:1") { Ok(()) } else { Err(clients) }
    });
    blocked.unwrap_or_else(|why| panic!("{why}"));
    world.ask(leader, "LPUSH q x");
    assert_eq!(one.join().unwrap().unwrap(), (vec!["q".to_owned(), "x".to_owned()], Value::Nil));
    assert_eq!(world.ask(leader, "GET k20"), "$2\r\n20\r\n");
    let units = units() - before;
    assert!(units < WRITES, "the script and two more writes were {units} units");
    world.assert_alike();
}
