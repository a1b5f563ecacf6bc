// SPDX-License-Identifier: Apache-2.0
//! Random commands, by several clients at once, leave all servers alike.
//!
//! `FIDE_SEED=N` and `FIDE_COMMANDS=N` choose the commands; a failure prints both.

use std::collections::HashMap;

use rand::{RngExt, SeedableRng, seq::IndexedRandom};
use rand_chacha::ChaCha8Rng;
use redis::{Connection, Value};

use crate::world::World;

/// Commands. `$s $l $h $t $z $x` are keys of a string, list, hash, set, sorted set and stream, `$k` is any key, `$v` a
/// value, `$n` a small number, `$f` a field or member, `$i` an index, `$d` a deadline from now in ms.
const COMMANDS: &str = "
SET $s $v|SET $s $n|SET $s $v NX|SET $s $v XX GET|SET $s $v PX $d|SET $s $v KEEPTTL|SETNX $s $v|GETSET $s $v|GETDEL $s
SETEX $s 100 $v|PSETEX $s $d $v|GETEX $s PX $d|GETEX $s PERSIST|APPEND $s $v|SETRANGE $s $n $v|SETBIT $s $n 1
INCR $s|DECR $s|INCRBY $s $n|DECRBY $s $n|INCRBYFLOAT $s 0.5|MSET $s $v $s $n|MSETNX $s $v $s $v|BITFIELD $s INCRBY u4 0 $n
DEL $k|UNLINK $k|DEL $k $k $k|EXPIRE $k 100|PEXPIRE $k $d|PEXPIRE $k $d NX|PERSIST $k|RENAME $k $k|RENAMENX $k $k|COPY $k $k REPLACE
LPUSH $l $v|RPUSH $l $v $n $v|LPUSHX $l $v|RPUSHX $l $v|LPOP $l|RPOP $l|LPOP $l $n|LSET $l $i $v|LINSERT $l BEFORE $n $v|LREM $l $i $n
LTRIM $l $i -1|LMOVE $l $l LEFT RIGHT|RPOPLPUSH $l $l|LMPOP 2 $l $l RIGHT COUNT $n|BLPOP $l 0.001|BLMOVE $l $l LEFT LEFT 0.001
SORT $l BY nosort STORE $l|SORT $t ALPHA STORE $l
HSET $h $f $v|HSET $h $f $n $f $v|HMSET $h $f $v|HSETNX $h $f $v|HDEL $h $f|HDEL $h $f $f|HINCRBY $h $f $n|HINCRBYFLOAT $h $f 1.5
SADD $t $f|SADD $t $f $n $f|SREM $t $f|SREM $t $f $n|SPOP $t|SPOP $t 2|SMOVE $t $t $f|SUNIONSTORE $t $t $t|SDIFFSTORE $t $t $t
ZADD $z $n $f|ZADD $z $n $f $i $f|ZADD $z GT CH $n $f|ZADD $z NX $n $f|ZADD $z INCR $n $f|ZINCRBY $z $n $f|ZREM $z $f|ZPOPMIN $z
ZPOPMAX $z 2|ZREMRANGEBYRANK $z 0 0|ZREMRANGEBYSCORE $z 0 $n|ZUNIONSTORE $z 2 $z $z|ZRANGESTORE $z $z 0 2|ZMPOP 1 $z MIN|BZPOPMIN $z 0.001
XADD $x * $f $v|XADD $x MAXLEN 3 * $f $v|XADD $x MAXLEN ~ 3 * $f $v|XTRIM $x MAXLEN $n|XDEL $x 1-1|XGROUP CREATE $x g 0|XGROUP CREATE $x g 0 MKSTREAM|XGROUP DESTROY $x g
XREADGROUP GROUP g $f COUNT 1 STREAMS $x >|XAUTOCLAIM $x g $f 0 0|XGROUP DELCONSUMER $x g $f
PFADD $s $v|PFMERGE $s $s|PFCOUNT $s|GEOADD $z 13.3 38.1 $f|GET $s|LRANGE $l 0 -1|HGETALL $h|SMEMBERS $t|TTL $k
EVAL redis.call('SET',KEYS[1],ARGV[1]);redis.call('INCR',KEYS[1]);return(redis.call('DEL',KEYS[2])) 2 $s $k $v
EVAL redis.pcall('LPUSH',KEYS[1],ARGV[1]);redis.pcall('SADD',KEYS[1],ARGV[1]);return(redis.pcall('SPOP',KEYS[1])) 1 $k $v
EVAL redis.call('SET',KEYS[1],ARGV[1]);return(redis.call('INCR',KEYS[2])) 2 $s $k $v
MULTI|MULTI|EXEC|EXEC|EXEC|DISCARD|SELECT 0|SELECT 0|SELECT 1|MOVE $k 1|SWAPDB 0 1|WATCH $k|NONSENSE $k|SET $s|INCR
";

fn words(template: &str, random: &mut ChaCha8Rng) -> Vec<String> {
    let fill = |word: &str, random: &mut ChaCha8Rng| match word.strip_prefix('$') {
        Some("v") => "x".repeat(random.random_range(0..40)),
        Some("n") => random.random_range(0..9).to_string(),
        Some("i") => random.random_range(-2..3).to_string(),
        Some("d") => random.random_range(1..60).to_string(),
        Some("f") => format!("f{}", random.random_range(0..6)),
        Some("k") => format!("{}{}", ["s", "l", "h", "t", "z", "x"].choose(random).unwrap(), random.random_range(0..3)),
        // Now and then a key of another type.
        Some(_) if random.random_ratio(1, 25) => format!("h{}", random.random_range(0..3)),
        Some(kind) => format!("{kind}{}", random.random_range(0..3)),
        None => word.to_owned(),
    };
    template.split(' ').map(|word| fill(word, random)).collect()
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is no number")))
}

/// A client's answer is not looked at, but for the ones that say that the server or the group is in a bad way.
fn send(connection: &mut Connection, words: &[String]) -> Result<Value, String> {
    let mut command = redis::cmd(&words[0]);
    words[1..].iter().for_each(|word| {
        command.arg(word);
    });
    match command.query(connection) {
        Err(why) if why.is_io_error() || why.is_connection_dropped() => Err(format!("{words:?}: {why}")),
        Err(why) => Ok(Value::SimpleString(why.to_string())),
        Ok(value) => Ok(value),
    }
}

#[test]
fn root_random_commands_leave_all_servers_alike() {
    /// Commands between two looks at all servers.
    const ROUND: u64 = 500;
    /// The client that asks a follower.
    const AT_FOLLOWER: usize = 3;
    let (seed, count) = (number("FIDE_SEED", 1), number("FIDE_COMMANDS", 3000));
    let Some(world) = World::new(3, "hsuc") else { return };
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let leader = world.leader();
    let mut clients: Vec<Connection> = (0..3).map(|_| world.connect(leader)).collect();
    let follower = world.followers()[0];
    clients.push(world.connect(follower));
    let commands: Vec<&str> =
        COMMANDS.lines().flat_map(|line| line.split('|')).filter(|line| !line.is_empty()).collect();
    let mut last: Vec<String> = Vec::new();
    let mut answered: HashMap<String, u64> = HashMap::new();
    for at in 1..=count {
        let client = random.random_range(0..clients.len());
        let template = *commands.choose(&mut random).unwrap();
        // Without transactions the leader executes many writes in another way.
        let is_plain = (at - 1) / ROUND % 2 == 1;
        let template = if is_plain && matches!(template, "MULTI") { "GET $s" } else { template };
        let words = words(template, &mut random);
        last.push(format!("{client}: {}", words.join(" ")));
        let mut answer = send(&mut clients[client], &words);
        if answer.is_err() && client == AT_FOLLOWER {
            // After a transaction whose writes were refused the connection is closed.
            clients[client] = world.connect(follower);
            answer = send(&mut clients[client], &words);
        }
        let replay = || format!("FIDE_SEED={seed} FIDE_COMMANDS={at}");
        let answer = answer.unwrap_or_else(|why| panic!("{why}\n{}\n{}", replay(), world.logs()));
        *answered.entry(words[0].clone()).or_default() +=
            u64::from(!matches!(answer, Value::SimpleString(text) if text.contains(' ')));
        if at % ROUND == 0 || at == count {
            // Half of what the clients began is ended, so that writes go both ways.
            for client in &mut clients {
                if random.random() {
                    let _ = send(client, &["EXEC".to_owned()]);
                }
            }
            println!("{at} of {count} commands; if this fails: {}\n{}", replay(), last.join("\n"));
            world.assert_alike();
            last.clear();
            if !is_plain {
                for client in &mut clients {
                    let _ = send(client, &["DISCARD".to_owned()]);
                }
                // Until the leader sees that there is no transaction any more.
                std::thread::sleep(std::time::Duration::from_millis(1200));
            }
        }
    }
    let unanswered: Vec<&str> = commands
        .iter()
        .map(|line| line.split(' ').next().unwrap())
        .filter(|name| answered.get(*name) == Some(&0))
        .collect();
    assert!(
        unanswered.iter().all(|name| matches!(*name, "NONSENSE")),
        "these were refused each time, so nothing was tested of them: {unanswered:?}"
    );
}
