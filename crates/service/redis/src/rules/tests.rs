// SPDX-License-Identifier: Apache-2.0
//! What each kind of write puts into the log. That the log does the same at a replica is seen end to end
//! (`tests/servers/root_commands.rs`).

use super::*;

/// The leader's data, as far as a rule asks: the answers to some commands.
struct Answers(Vec<(&'static str, Value)>);

impl Data for Answers {
    fn call(&mut self, args: &[&[u8]]) -> Value {
        let asked: Vec<_> = args.iter().map(|arg| String::from_utf8_lossy(arg)).collect();
        let asked = asked.join(" ");
        let answer = self.0.iter().find(|(question, _)| *question == asked);
        answer.unwrap_or_else(|| panic!("nobody expected {asked}")).1.clone()
    }

    fn now_ms(&mut self) -> i64 {
        1_000_000
    }
}

fn leaf(text: &str) -> Value {
    Value::Leaf(text.as_bytes().to_vec())
}

fn list(texts: &[&str]) -> Value {
    Value::List(texts.iter().map(|text| leaf(text)).collect())
}

/// The log of a line with this reply, where the leader would answer so.
fn log(line: &str, reply: &Value, answers: &[(&'static str, Value)]) -> Vec<String> {
    let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
    let rule = Rule::of(&line.split(' ').next().unwrap_or_default().to_ascii_lowercase()).expect("a rule");
    let mut log = Vec::new();
    rule.effects(&args, reply, &mut Answers(answers.to_vec()), &mut |command| {
        log.push(command.iter().map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>().join(" "));
    });
    log
}

#[test]
fn deadlines_become_absolute() {
    let at = |ms: &str| [("PEXPIRETIME k", leaf(ms))];
    let one = leaf("1");
    let ok = leaf("OK");
    assert_eq!(log("EXPIRE k 10", &one, &at("2000")), ["PEXPIREAT k 2000"]);
    assert_eq!(log("EXPIRE k -1", &one, &at("-2")), ["DEL k"]);
    assert!(log("EXPIRE k 10 GT", &leaf("0"), &[]).is_empty());
    assert_eq!(log("SET k v", &ok, &[]), ["SET k v"]);
    assert_eq!(log("SET k v EX 10", &ok, &at("2000")), ["SET k v PXAT 2000"]);
    assert_eq!(log("SET k v PXAT 1", &ok, &at("-2")), ["DEL k"]);
    assert_eq!(log("SET k v KEEPTTL", &ok, &[]), ["SET k v KEEPTTL"]);
    assert_eq!(log("SETEX k 10 v", &ok, &at("2000")), ["SET k v PXAT 2000"]);
    assert_eq!(log("GETEX k EX 10", &leaf("v"), &at("2000")), ["PEXPIREAT k 2000"]);
    assert_eq!(log("GETEX k PERSIST", &leaf("v"), &[]), ["PERSIST k"]);
    assert!(log("GETEX k", &leaf("v"), &[]).is_empty());
    assert!(log("GETEX k EX 10", &Value::Null, &[]).is_empty());
    assert_eq!(
        log("RESTORE k 10 dump REPLACE FREQ 3", &ok, &at("2000")),
        ["RESTORE k 2000 dump REPLACE ABSTTL FREQ 3"]
    );
}

#[test]
fn set_that_stored_nothing_is_not_logged() {
    let none = [("PEXPIRETIME k", leaf("-1"))];
    assert!(log("SET k v NX", &Value::Null, &[]).is_empty());
    assert_eq!(log("SET k v NX", &leaf("OK"), &none), ["SET k v"]);
    // With GET the reply is the old value.
    assert!(log("SET k v NX GET", &leaf("old"), &[]).is_empty());
    assert_eq!(log("SET k v NX GET", &Value::Null, &none), ["SET k v"]);
    assert!(log("SET k v XX GET", &Value::Null, &[]).is_empty());
    assert_eq!(log("SET k v GET", &Value::Null, &none), ["SET k v"]);
}

#[test]
fn chance_and_arithmetic_are_logged_as_they_came_out() {
    assert_eq!(log("SPOP s", &leaf("a"), &[]), ["SREM s a"]);
    assert_eq!(log("SPOP s 2", &list(&["a", "b"]), &[]), ["SREM s a b"]);
    assert!(log("SPOP s", &Value::Null, &[]).is_empty());
    assert_eq!(log("INCRBYFLOAT k 0.1", &leaf("0.3"), &[]), ["SET k 0.3 KEEPTTL"]);
    assert_eq!(log("HINCRBYFLOAT h f 0.1", &leaf("0.3"), &[]), ["HSET h f 0.3"]);
    assert_eq!(
        log("XADD x NOMKSTREAM MAXLEN ~ 10 LIMIT 5 * f v", &leaf("7-1"), &[("XLEN x", leaf("9"))]),
        ["XADD x 7-1 f v", "XTRIM x MAXLEN = 9"]
    );
    assert_eq!(log("XADD x maxlen * v", &leaf("7-1"), &[("XLEN x", leaf("1"))]).len(), 2, "an option, not an id");
    assert!(log("XADD x NOMKSTREAM * f v", &Value::Null, &[]).is_empty());
}

#[test]
fn what_waited_is_logged_as_what_does_not_wait() {
    assert_eq!(log("BLPOP a b 0", &list(&["b", "v"]), &[]), ["LPOP b"]);
    assert_eq!(log("BZPOPMAX z 1", &list(&["z", "m", "1"]), &[]), ["ZPOPMAX z"]);
    assert_eq!(log("BLMOVE a b LEFT RIGHT 1", &leaf("v"), &[]), ["LMOVE a b LEFT RIGHT"]);
    assert_eq!(log("BLMPOP 1 2 a b LEFT COUNT 3", &list(&["a", "v"]), &[]), ["LMPOP 2 a b LEFT COUNT 3"]);
    assert!(log("BLPOP a 1", &Value::Null, &[]).is_empty());
}

#[test]
fn commands_that_store_only_if_told_are_logged_only_then() {
    assert!(log("GEORADIUS g 1 1 1 m", &Value::Null, &[]).is_empty());
}

#[test]
fn messages_are_logged_with_owner_time_and_count() {
    let entry = Value::List(vec![leaf("1-1"), list(&["f", "v"])]);
    let reply = Value::List(vec![Value::List(vec![leaf("x"), Value::List(vec![entry])])]);
    let map =
        |pairs: &[(&str, &str)]| Value::List(vec![list(&pairs.iter().flat_map(|(a, b)| [*a, *b]).collect::<Vec<_>>())]);
    let answers = [
        ("XINFO CONSUMERS x g", map(&[("name", "alice")])),
        ("XINFO GROUPS x", map(&[("name", "g"), ("last-delivered-id", "1-1"), ("entries-read", "1")])),
        ("XPENDING x g 1-1 1-1 1", Value::List(vec![list(&["1-1", "alice", "40", "1"])])),
    ];
    assert_eq!(
        log("XREADGROUP GROUP g alice COUNT 1 STREAMS x >", &reply, &answers),
        [
            "XGROUP CREATECONSUMER x g alice",
            "XGROUP SETID x g 1-1 ENTRIESREAD 1",
            "XCLAIM x g alice 0 1-1 TIME 999960 RETRYCOUNT 1 FORCE JUSTID"
        ]
    );
    // The same reply in RESP3 is a map.
    let Value::List(pairs) = &reply else { unreachable!() };
    let flat = Value::List(pairs[0].list().to_vec());
    assert_eq!(log("XREADGROUP GROUP g alice COUNT 1 STREAMS x >", &flat, &answers).len(), 3);
    // An entry that was deleted while it is pending stays so.
    let deleted =
        Value::List(vec![Value::List(vec![leaf("x"), Value::List(vec![Value::List(vec![leaf("1-1"), Value::Null])])])]);
    assert_eq!(log("XREADGROUP GROUP g alice STREAMS x 0", &deleted, &answers), ["XGROUP CREATECONSUMER x g alice"]);
    // A message that is not pending any more was deleted by the claim.
    let answers =
        [("XINFO CONSUMERS x g", Value::List(Vec::new())), ("XPENDING x g 1-1 1-1 1", Value::List(Vec::new()))];
    assert_eq!(log("XCLAIM x g bob 0 1-1", &Value::List(Vec::new()), &answers), ["XACK x g 1-1"]);
}

#[test]
fn writes_that_nobody_knows_have_no_rule() {
    assert_eq!(Rule::of("migrate"), None);
    assert_eq!(Rule::of("get"), None);
}

#[test]
fn sorted_list_is_logged_as_it_came_out() {
    let answers = [("LRANGE d 0 -1", list(&["b", "a"]))];
    for line in ["SORT s BY w:* ALPHA STORE d", "sort s limit 0 store store d", "SORT s BY store STORE x STORE d"] {
        assert_eq!(log(line, &leaf("2"), &answers), ["DEL d", "RPUSH d b a"], "{line}");
    }
    assert_eq!(log("SORT s STORE d", &leaf("0"), &[("LRANGE d 0 -1", list(&[]))]), ["DEL d"]);
    assert!(log("SORT s BY store", &list(&["a"]), &[]).is_empty());
}

#[test]
fn places_that_are_stored_are_logged_as_they_were_found() {
    let found = [("ZRANGE d 0 -1 WITHSCORES", list(&["a", "1.5", "b", "190.44242984775784"]))];
    for line in [
        "GEORADIUS g 1 1 1 m STORE d",
        "georadius store store storedist 1 m count 2 STORE x storedist d",
        "GEORADIUSBYMEMBER g member 1 m WITHNOTHING COUNT 3 ANY STORE d",
        "GEOSEARCHSTORE d g FROMLONLAT 1 1 BYRADIUS 1 m",
    ] {
        assert_eq!(log(line, &Value::Null, &found), ["DEL d", "ZADD d 1.5 a 190.44242984775784 b"], "{line}");
    }
    assert_eq!(log("GEORADIUS g 1 1 1 m STORE d", &Value::Null, &[("ZRANGE d 0 -1 WITHSCORES", list(&[]))]), ["DEL d"]);
    assert!(log("GEORADIUSBYMEMBER g store 1 m", &Value::Null, &[]).is_empty());
}

#[test]
fn what_a_failed_command_has_done_is_logged() {
    let failed = |line: &str, why: &str, answers: &[(&'static str, Value)]| {
        let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let rule = Rule::of(&String::from_utf8_lossy(args[0]).to_ascii_lowercase()).expect("a rule");
        let mut log = Vec::new();
        rule.effects_of_failed(&args, why.as_bytes(), &mut Answers(answers.to_vec()), &mut |command| {
            log.push(command.iter().map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>().join(" "));
        });
        log
    };
    let damaged = "INVALIDOBJ Corrupted HLL object detected";
    assert_eq!(failed("PFADD k a b", damaged, &[("GET k", leaf("HYLL"))]), ["SET k HYLL KEEPTTL"]);
    assert!(failed("PFADD k a b", "WRONGTYPE Key is not a valid HyperLogLog string value.", &[]).is_empty());
    assert!(failed("PFMERGE k a b", damaged, &[]).is_empty(), "it has looked at all before it wrote");
    let large = "ERR Elements are too large to be stored";
    let empty = [("XLEN s", leaf("0")), ("DUMP s", leaf("dump")), ("PEXPIRETIME s", leaf("-1"))];
    assert_eq!(failed("XADD s * f v", large, &empty), ["RESTORE s 0 dump REPLACE ABSTTL"]);
    assert!(failed("XADD s * f v", large, &[("XLEN s", leaf("1"))]).is_empty());
    assert!(failed("XADD s * f v", "ERR The ID specified in XADD is equal or smaller", &[]).is_empty());
    assert!(failed("SET k v", "OOM command not allowed", &[]).is_empty());
}
