// SPDX-License-Identifier: Apache-2.0
//! What a write has done, as commands that do the same at every replica.
//!
//! The leader executes a write first, then asks here what to put into the log: the command itself if it does
//! the same everywhere, or what it turned out to do. Deadlines become absolute, random choices become the
//! choice, and blocking commands become those that do not block, as Redis' own replication has it.

mod results;
mod stream_id;

use crate::{group_read::GroupRead, resp::Value};
use results::{damaged_counter, empty_stream, geo_target, sort_target, whole_list, whole_sorted_set};

/// Times that a question is asked until the clock has not moved meanwhile; each takes a microsecond.
const CLOCK_TRIES: u32 = 16;

/// The leader's data, after the command.
pub trait Data {
    /// Executes a command in the database of the write; its reply.
    fn call(&mut self, args: &[&[u8]]) -> Value;

    /// The leader's wall clock, ms since 1970.
    fn now_ms(&mut self) -> i64;
}

/// How a write is replicated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// As it is: it does the same wherever the data is the same.
    Verbatim,
    /// BITFIELD: as it is, too. Redis believes that it changes nothing where it has made the key, or made it longer, and
    /// then every number would overflow.
    Bits,
    /// What it has stored, if it has a STORE option; otherwise it reads.
    IfStores,
    /// GEOSEARCHSTORE: what it has stored.
    StoresFound,
    /// SPOP: the members that it took.
    TakenMembers,
    /// EXPIRE and its family: the absolute deadline.
    Deadline,
    /// SET: with the absolute deadline, if it has one.
    Set,
    /// SETEX, PSETEX.
    SetWithDeadline,
    /// GETEX.
    GetWithDeadline,
    /// RESTORE: its time to live as a deadline.
    Restore,
    /// INCRBYFLOAT: the sum.
    FloatSum,
    /// HINCRBYFLOAT: the sum.
    FieldFloatSum,
    /// XADD: the id that was given; trimmed to the length that it has now.
    StreamEntry,
    /// XTRIM: to the length that it has now.
    StreamTrim,
    /// XREADGROUP: what was delivered, and when.
    GroupRead,
    /// XCLAIM: owner, time and count of each message.
    Claim,
    /// XAUTOCLAIM: the same.
    AutoClaim,
    /// Of the key that the reply names, one element, by this command: BLPOP, BRPOP, BZPOPMIN, BZPOPMAX.
    Popped(&'static str),
    /// BLMOVE, BRPOPLPUSH: this command, without the timeout at the end.
    Moved(&'static str),
    /// BLMPOP, BZMPOP: this command, without the timeout at the beginning.
    PoppedMany(&'static str),
}

impl Rule {
    /// The rule of a command, by its name in small letters; none if no rule is known for it.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        Some(match name {
            "append" | "bitop" | "copy" | "decr" | "decrby" | "del" | "flushall" | "flushdb" | "geoadd" | "getdel"
            | "getset" | "hdel" | "hincrby" | "hmset" | "hset" | "hsetnx" | "incr" | "incrby" | "linsert" | "lmove"
            | "lmpop" | "lpop" | "lpush" | "lpushx" | "lrem" | "lset" | "ltrim" | "move" | "mset" | "msetnx"
            | "persist" | "pfadd" | "pfcount" | "pfdebug" | "pfmerge" | "publish" | "rename" | "renamenx" | "rpop"
            | "rpoplpush" | "rpush" | "rpushx" | "sadd" | "sdiffstore" | "setbit" | "setnx" | "setrange"
            | "sinterstore" | "smove" | "spublish" | "srem" | "sunionstore" | "swapdb" | "unlink" | "xack" | "xdel"
            | "xgroup" | "xsetid" | "zadd" | "zdiffstore" | "zincrby" | "zinterstore" | "zmpop" | "zpopmax"
            | "zpopmin" | "zrangestore" | "zrem" | "zremrangebylex" | "zremrangebyrank" | "zremrangebyscore"
            | "zunionstore" | "function|load" | "function|delete" | "function|flush" | "function|restore"
            | "script|load" | "script|flush" => Self::Verbatim,
            "sort" | "georadius" | "georadiusbymember" => Self::IfStores,
            "geosearchstore" => Self::StoresFound,
            "bitfield" => Self::Bits,
            "spop" => Self::TakenMembers,
            "expire" | "pexpire" | "expireat" | "pexpireat" => Self::Deadline,
            "set" => Self::Set,
            "setex" | "psetex" => Self::SetWithDeadline,
            "getex" => Self::GetWithDeadline,
            "restore" => Self::Restore,
            "incrbyfloat" => Self::FloatSum,
            "hincrbyfloat" => Self::FieldFloatSum,
            "xadd" => Self::StreamEntry,
            "xtrim" => Self::StreamTrim,
            "xreadgroup" => Self::GroupRead,
            "xclaim" => Self::Claim,
            "xautoclaim" => Self::AutoClaim,
            "blpop" => Self::Popped("LPOP"),
            "brpop" => Self::Popped("RPOP"),
            "bzpopmin" => Self::Popped("ZPOPMIN"),
            "bzpopmax" => Self::Popped("ZPOPMAX"),
            "blmove" => Self::Moved("LMOVE"),
            "brpoplpush" => Self::Moved("RPOPLPUSH"),
            "blmpop" => Self::PoppedMany("LMPOP"),
            "bzmpop" => Self::PoppedMany("ZMPOP"),
            _ => return None,
        })
    }

    /// Whether the command may have to wait for data.
    #[must_use]
    pub fn may_block(self) -> bool {
        matches!(self, Self::Popped(_) | Self::Moved(_) | Self::PoppedMany(_) | Self::GroupRead)
    }

    /// Whether the effects depend on the reply.
    #[must_use]
    pub fn needs_reply(self) -> bool {
        !matches!(self, Self::Verbatim | Self::Bits | Self::IfStores | Self::StoresFound)
    }

    /// Whether a server that takes over from this one is given the effects, as the log is, and not what Redis would
    /// replicate: the command itself, which may do something else there, or less than it has done (consumers that were
    /// made, messages that were delivered again).
    #[must_use]
    pub fn replicates_effects(self) -> bool {
        matches!(
            self,
            Self::Bits | Self::IfStores | Self::StoresFound | Self::GroupRead | Self::Claim | Self::AutoClaim
        )
    }

    /// As [`Rule::effects`], of a command that was answered with this error: most have done nothing.
    pub fn effects_of_failed(self, args: &[&[u8]], why: &[u8], data: &mut dyn Data, log: &mut dyn FnMut(&[&[u8]])) {
        match self {
            Self::Verbatim if is(args[0], "pfadd") => damaged_counter(args[1], why, data, log),
            Self::StreamEntry => empty_stream(args[1], why, data, log),
            _ => {}
        }
    }

    /// Hands the commands that do what `args` has done to `log`, in order. `reply` is that of `args`, and no
    /// error; [`Value::Null`] unless [`Rule::needs_reply`].
    pub fn effects(self, args: &[&[u8]], reply: &Value, data: &mut dyn Data, log: &mut dyn FnMut(&[&[u8]])) {
        match self {
            Self::Verbatim | Self::Bits => log(args),
            Self::IfStores if is(args[0], "sort") => {
                if let Some(target) = sort_target(args) {
                    whole_list(target, data, log);
                }
            }
            Self::IfStores => {
                if let Some(target) = geo_target(args) {
                    whole_sorted_set(target, data, log);
                }
            }
            Self::StoresFound => whole_sorted_set(args[1], data, log),
            Self::TakenMembers => {
                let mut all: Vec<&[u8]> = vec![b"SREM", args[1]];
                match reply {
                    Value::Leaf(member) => all.push(member),
                    _ => all.extend(reply.list().iter().filter_map(Value::bytes)),
                }
                if all.len() > 2 {
                    log(&all);
                }
            }
            Self::Deadline => {
                if reply.integer() == Some(1) {
                    deadline(args[1], data, log);
                }
            }
            Self::Set => set(args, reply, data, log),
            Self::SetWithDeadline => store_with_deadline(&[b"SET", args[1], args[3]], args[1], data, log),
            Self::GetWithDeadline => match args.get(2) {
                Some(option) if is(option, "persist") => log(&[b"PERSIST", args[1]]),
                Some(_) if *reply != Value::Null => deadline(args[1], data, log),
                _ => {}
            },
            Self::Restore => restore(args, data, log),
            Self::FloatSum => {
                if let Some(sum) = reply.bytes() {
                    log(&[b"SET", args[1], sum, b"KEEPTTL"]);
                }
            }
            Self::FieldFloatSum => {
                if let Some(sum) = reply.bytes() {
                    log(&[b"HSET", args[1], args[2], sum]);
                }
            }
            Self::StreamEntry => stream_entry(args, reply, data, log),
            Self::StreamTrim => trimmed(args[1], data, log),
            Self::GroupRead => group_read(args, reply, data, log),
            Self::Claim => claimed(args, data, log),
            Self::AutoClaim => auto_claimed(args, reply, data, log),
            Self::Popped(command) => {
                if let Some(key) = reply.list().first().and_then(Value::bytes) {
                    log(&[command.as_bytes(), key]);
                }
            }
            Self::Moved(command) => {
                if *reply != Value::Null {
                    let mut all = vec![command.as_bytes()];
                    all.extend_from_slice(&args[1..args.len() - 1]);
                    log(&all);
                }
            }
            Self::PoppedMany(command) => {
                if *reply != Value::Null {
                    let mut all = vec![command.as_bytes()];
                    all.extend_from_slice(&args[2..]);
                    log(&all);
                }
            }
        }
    }
}

fn is(arg: &[u8], word: &str) -> bool {
    arg.eq_ignore_ascii_case(word.as_bytes())
}

/// The deadline of a key, ms since 1970: -1 without one, -2 without the key.
fn deadline_of(key: &[u8], data: &mut dyn Data) -> i64 {
    data.call(&[b"PEXPIRETIME", key]).integer().unwrap_or(-2)
}

/// The key has the deadline that it has now. A deadline in the past has deleted it.
fn deadline(key: &[u8], data: &mut dyn Data, log: &mut dyn FnMut(&[&[u8]])) {
    match deadline_of(key, data) {
        -2 => log(&[b"DEL", key]),
        -1 => log(&[b"PERSIST", key]),
        at_ms => log(&[b"PEXPIREAT", key, at_ms.to_string().as_bytes()]),
    }
}

/// A command that stores a string, and the deadline that the key has now.
fn store_with_deadline(store: &[&[u8]], key: &[u8], data: &mut dyn Data, log: &mut dyn FnMut(&[&[u8]])) {
    match deadline_of(key, data) {
        -2 => log(&[b"DEL", key]),
        -1 => log(store),
        at_ms => {
            let at = at_ms.to_string();
            log(&[store, &[b"PXAT", at.as_bytes()]].concat());
        }
    }
}

fn set(args: &[&[u8]], reply: &Value, data: &mut dyn Data, log: &mut dyn FnMut(&[&[u8]])) {
    if args.len() == 3 {
        return log(args);
    }
    let has = |word: &str| args[3..].iter().any(|arg| is(arg, word));
    // The old value is the reply of GET: then NX has stored nothing if there was one, XX if there was none.
    let has_stored = match (has("get"), has("nx"), has("xx")) {
        (true, true, _) => *reply == Value::Null,
        (true, _, true) => *reply != Value::Null,
        (true, ..) => true,
        (false, ..) => *reply != Value::Null,
    };
    if !has_stored {
        return;
    }
    if has("keepttl") {
        return log(&[b"SET", args[1], args[2], b"KEEPTTL"]);
    }
    store_with_deadline(&[b"SET", args[1], args[2]], args[1], data, log);
}

fn restore(args: &[&[u8]], data: &mut dyn Data, log: &mut dyn FnMut(&[&[u8]])) {
    let at = match deadline_of(args[1], data) {
        // Its deadline was past: it has replaced what was there by nothing.
        -2 => return log(&[b"DEL", args[1]]),
        -1 => 0,
        at_ms => at_ms,
    };
    let at = at.to_string();
    let mut all: Vec<&[u8]> = vec![b"RESTORE", args[1], at.as_bytes(), args[3], b"REPLACE", b"ABSTTL"];
    let mut rest = args[4..].iter();
    while let Some(option) = rest.next() {
        if is(option, "idletime") || is(option, "freq") {
            all.push(option);
            all.extend(rest.next());
        }
    }
    log(&all);
}

/// The stream has the length that it has now: trimming takes the oldest entries, so that this says all.
fn trimmed(key: &[u8], data: &mut dyn Data, log: &mut dyn FnMut(&[&[u8]])) {
    if let Some(len) = data.call(&[b"XLEN", key]).integer() {
        log(&[b"XTRIM", key, b"MAXLEN", b"=", len.to_string().as_bytes()]);
    }
}

/// `XADD key [NOMKSTREAM] [MAXLEN|MINID [=|~] threshold [LIMIT count]] id field value ...`
fn stream_entry(args: &[&[u8]], reply: &Value, data: &mut dyn Data, log: &mut dyn FnMut(&[&[u8]])) {
    let Some(id) = reply.bytes() else { return };
    let (mut at, mut trims) = (2, false);
    while let Some(arg) = args.get(at) {
        if is(arg, "nomkstream") {
            at += 1;
        } else if is(arg, "maxlen") || is(arg, "minid") {
            trims = true;
            at += 1;
            if args.get(at).is_some_and(|arg| *arg == b"=" || *arg == b"~") {
                at += 1;
            }
            at += 1;
        } else if is(arg, "limit") {
            at += 2;
        } else {
            break;
        }
    }
    let fields = args.get(at + 1..).unwrap_or_default();
    log(&[&[b"XADD", args[1], id], fields].concat());
    if trims {
        trimmed(args[1], data, log);
    }
}

/// Owner, time and count of a message that is pending, as the leader has them; not pending any more, it is
/// acknowledged.
fn pending(key: &[u8], group: &[u8], id: &[u8], data: &mut dyn Data, log: &mut dyn FnMut(&[&[u8]])) {
    // Redis says how long ago it was, and not when: the clock must not move while it is asked.
    let mut now_ms = data.now_ms();
    let mut reply = data.call(&[b"XPENDING", key, group, id, id, b"1"]);
    for _ in 0..CLOCK_TRIES {
        let after_ms = data.now_ms();
        if after_ms == now_ms {
            break;
        }
        now_ms = after_ms;
        reply = data.call(&[b"XPENDING", key, group, id, id, b"1"]);
    }
    let entry = reply.list().first().map(Value::list).unwrap_or_default();
    let [_, consumer, idle, count] = entry else {
        if !reply.is_error() {
            log(&[b"XACK", key, group, id]);
        }
        return;
    };
    let (Some(consumer), Some(idle_ms), Some(count)) = (consumer.bytes(), idle.integer(), count.bytes()) else {
        return;
    };
    let at = (now_ms - idle_ms).to_string();
    log(&[
        b"XCLAIM",
        key,
        group,
        consumer,
        b"0",
        id,
        b"TIME",
        at.as_bytes(),
        b"RETRYCOUNT",
        count,
        b"FORCE",
        b"JUSTID",
    ]);
}

/// XREADGROUP.
fn group_read(args: &[&[u8]], reply: &Value, data: &mut dyn Data, log: &mut dyn FnMut(&[&[u8]])) {
    let Some(read) = GroupRead::of(args) else { return };
    let GroupRead { group, consumer, no_ack, .. } = read;
    for (key, start) in read.starts(args) {
        consumer_of(key, group, consumer, data, log);
        let delivered = entries_of(reply, key);
        if start != b">" {
            // Messages of its own, read again: each counts as delivered once more, now.
            delivered.iter().for_each(|id| pending(key, group, id, data, log));
            continue;
        }
        if delivered.is_empty() {
            continue;
        }
        position_of(key, group, data, log);
        if !no_ack {
            delivered.iter().for_each(|id| pending(key, group, id, data, log));
        }
    }
}

/// The position of a group, and how many entries it has read.
fn position_of(key: &[u8], group: &[u8], data: &mut dyn Data, log: &mut dyn FnMut(&[&[u8]])) {
    let info = data.call(&[b"XINFO", b"GROUPS", key]);
    let named = |fields: &&[Value]| field(fields, "name").and_then(Value::bytes) == Some(group);
    let Some(fields) = info.list().iter().map(Value::list).find(named) else { return };
    let Some(last) = field(fields, "last-delivered-id").and_then(Value::bytes) else { return };
    match field(fields, "entries-read").and_then(Value::bytes) {
        Some(read) => log(&[b"XGROUP", b"SETID", key, group, last, b"ENTRIESREAD", read]),
        None => log(&[b"XGROUP", b"SETID", key, group, last]),
    }
}

/// A consumer that the command may have made.
fn consumer_of(key: &[u8], group: &[u8], consumer: &[u8], data: &mut dyn Data, log: &mut dyn FnMut(&[&[u8]])) {
    let info = data.call(&[b"XINFO", b"CONSUMERS", key, group]);
    if info.list().iter().any(|fields| field(fields.list(), "name").and_then(Value::bytes) == Some(consumer)) {
        log(&[b"XGROUP", b"CREATECONSUMER", key, group, consumer]);
    }
}

/// The field of a flat map.
fn field<'a>(fields: &'a [Value], name: &str) -> Option<&'a Value> {
    fields.chunks_exact(2).find(|pair| pair[0].bytes() == Some(name.as_bytes())).map(|pair| &pair[1])
}

/// The ids of the entries that a reply of XREADGROUP has for a stream, in RESP2 (pairs) or RESP3 (a map).
fn entries_of<'a>(reply: &'a Value, key: &[u8]) -> Vec<&'a [u8]> {
    let pairs: Vec<(&Value, &Value)> = match reply.list() {
        [first, ..] if !first.list().is_empty() => {
            reply.list().iter().filter_map(|pair| Some((pair.list().first()?, pair.list().get(1)?))).collect()
        }
        flat => flat.chunks_exact(2).map(|pair| (&pair[0], &pair[1])).collect(),
    };
    let entries = pairs.into_iter().filter(|(of, _)| of.bytes() == Some(key)).flat_map(|(_, entries)| entries.list());
    // One that was deleted has an id and no fields; followers would take it off the list of what is pending.
    let is_there = |entry: &&Value| entry.list().get(1).is_some_and(|fields| *fields != Value::Null);
    entries.filter(is_there).filter_map(|entry| entry.list().first()?.bytes()).collect()
}

/// `XCLAIM key group consumer min-idle id ... [options]`
fn claimed(args: &[&[u8]], data: &mut dyn Data, log: &mut dyn FnMut(&[&[u8]])) {
    let (key, group, consumer) = (args[1], args[2], args[3]);
    consumer_of(key, group, consumer, data, log);
    if args[5..].iter().any(|arg| is(arg, "lastid")) {
        position_of(key, group, data, log);
    }
    for (ms, sequence) in args[5..].iter().map_while(|arg| stream_id::parse(arg)) {
        pending(key, group, format!("{ms}-{sequence}").as_bytes(), data, log);
    }
}

/// `XAUTOCLAIM key group consumer min-idle start [COUNT n] [JUSTID]`: its reply has the next start, the
/// claimed entries, and those that were deleted.
fn auto_claimed(args: &[&[u8]], reply: &Value, data: &mut dyn Data, log: &mut dyn FnMut(&[&[u8]])) {
    let (key, group, consumer) = (args[1], args[2], args[3]);
    consumer_of(key, group, consumer, data, log);
    let all = reply.list().iter().skip(1).flat_map(Value::list);
    let ids = all.filter_map(|entry| entry.bytes().or_else(|| entry.list().first()?.bytes()));
    for id in ids {
        pending(key, group, id, data, log);
    }
}

#[cfg(test)]
mod tests;
