// SPDX-License-Identifier: Apache-2.0
//! Writes that are replicated by the data they have left: what they did depends on more than the data before them, or
//! they have failed half way.

use super::{Data, deadline_of, is};
use crate::resp::Value;

/// The key after STORE in `SORT key [BY pattern] [LIMIT offset count] [GET pattern ...] [ASC|DESC] [ALPHA] [STORE key]`.
pub(super) fn sort_target<'a>(args: &[&'a [u8]]) -> Option<&'a [u8]> {
    let (mut at, mut target) = (2, None);
    while let Some(arg) = args.get(at) {
        at += match () {
            () if is(arg, "by") || is(arg, "get") => 2,
            () if is(arg, "limit") => 3,
            () if is(arg, "store") => {
                target = args.get(at + 1).copied();
                2
            }
            () => 1,
        };
    }
    target
}

/// The key after STORE or STOREDIST in `GEORADIUS key longitude latitude radius unit [option ...]`, or
/// `GEORADIUSBYMEMBER key member radius unit [option ...]`. Of several Redis takes the last one.
pub(super) fn geo_target<'a>(args: &[&'a [u8]]) -> Option<&'a [u8]> {
    let (mut at, mut target) = (if is(args[0], "georadius") { 6 } else { 5 }, None);
    while let Some(arg) = args.get(at) {
        at += match () {
            () if is(arg, "count") => 2,
            () if is(arg, "store") || is(arg, "storedist") => {
                target = args.get(at + 1).copied();
                2
            }
            () => 1,
        };
    }
    target
}

/// A list as it is now. Members of a set that weigh the same are sorted as the set's table has them, which is another
/// order at each server.
pub(super) fn whole_list(key: &[u8], data: &mut dyn Data, log: &mut dyn FnMut(&[&[u8]])) {
    log(&[b"DEL", key]);
    let list = data.call(&[b"LRANGE", key, b"0", b"-1"]);
    let mut command: Vec<&[u8]> = vec![b"RPUSH", key];
    command.extend(list.list().iter().filter_map(Value::bytes));
    if command.len() > 2 {
        log(&command);
    }
}

/// A sorted set as it is now. Distances, and what is within one, are computed with functions of the C library, whose
/// last bit may be another one with another processor or version.
pub(super) fn whole_sorted_set(key: &[u8], data: &mut dyn Data, log: &mut dyn FnMut(&[&[u8]])) {
    log(&[b"DEL", key]);
    let all = data.call(&[b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"]);
    let mut command: Vec<&[u8]> = vec![b"ZADD", key];
    for pair in all.list().chunks_exact(2) {
        let (Some(member), Some(score)) = (pair[0].bytes(), pair[1].bytes()) else { continue };
        command.extend([score, member]);
    }
    if command.len() > 2 {
        log(&command);
    }
}

/// PFADD has failed. Where the key is there and damaged, elements before the one that does not fit were added.
pub(super) fn damaged_counter(key: &[u8], why: &[u8], data: &mut dyn Data, log: &mut dyn FnMut(&[&[u8]])) {
    if !why.starts_with(b"INVALIDOBJ") {
        return;
    }
    if let Value::Leaf(bytes) = data.call(&[b"GET", key]) {
        log(&[b"SET", key, &bytes, b"KEEPTTL"]);
    }
}

/// XADD has failed. An entry that is too large leaves the stream that was made for it, without an entry.
pub(super) fn empty_stream(key: &[u8], why: &[u8], data: &mut dyn Data, log: &mut dyn FnMut(&[&[u8]])) {
    if !why.starts_with(b"ERR Elements are too large") || data.call(&[b"XLEN", key]).integer() != Some(0) {
        return;
    }
    if let Value::Leaf(dump) = data.call(&[b"DUMP", key]) {
        let at = deadline_of(key, data).max(0).to_string();
        log(&[b"RESTORE", key, at.as_bytes(), &dump, b"REPLACE", b"ABSTTL"]);
    }
}
