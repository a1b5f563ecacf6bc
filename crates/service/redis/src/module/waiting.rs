// SPDX-License-Identifier: Apache-2.0
//! Commands of the leader's clients that wait until a key has data.

use std::ffi::{CString, c_int};

use redis_module::raw;

use super::{
    ERRORS,
    access::answer,
    awaited::{self, Wait},
    call, commit_now, hot, pushed,
    state::Mode,
    writing::{UNKNOWN, WRITE, call_write, has_unread, note},
};
use crate::{
    group_read::GroupRead,
    redis::{Args, Argv, Ctx, Text, api},
    resp::Value,
    rules::Rule,
};

/// To one that waits in XREADGROUP, in Redis' words.
const NO_STREAM: &str = "UNBLOCKED the stream key no longer exists";
/// Where nobody can say whether there was data.
const UNSURE: &str = "TRYAGAIN the group does not agree at the moment; ask again";

pub(super) fn is_empty(value: &Value) -> bool {
    matches!(value, Value::Null) || matches!(value, Value::List(values) if values.is_empty())
}

/// A command that waits for data.
struct Waiting {
    rule: Rule,
    args: Vec<Text>,
    _wait: Option<Wait>,
}

impl Waiting {
    /// The command for one of its keys: what the others are meanwhile does not matter.
    fn for_key(&self, key: &Text) -> Vec<Text> {
        let (args, len) = (&self.args, self.args.len());
        match self.rule {
            Rule::Popped(_) => vec![args[0].clone(), key.clone(), args[len - 1].clone()],
            Rule::PoppedMany(_) => {
                let keys = String::from_utf8_lossy(args[2].bytes()).parse().unwrap_or(0);
                let mut all = vec![args[0].clone(), args[1].clone(), Text::new(b"1"), key.clone()];
                all.extend(args.iter().skip(3 + keys).cloned());
                all
            }
            Rule::GroupRead => {
                let words: Vec<&[u8]> = args.iter().map(Text::bytes).collect();
                let Some(GroupRead { first, streams, .. }) = GroupRead::of(&words) else { return args.clone() };
                let Some(at) = (first..first + streams).find(|at| words[*at] == key.bytes()) else {
                    return args.clone();
                };
                let mut all = args[..first].to_vec();
                all.extend([args[at].clone(), args[at + streams].clone()]);
                all
            }
            _ => args.clone(),
        }
    }

    /// The key holds what the command cannot take, and the client waits on, as without this module. An error about
    /// another key, to which it would move the data, is its answer.
    fn is_of_another_type(&self, ctx: Ctx, key: &Text, value: &Value) -> bool {
        match (self.rule, value) {
            (Rule::Popped(_) | Rule::PoppedMany(_), Value::Error(why)) => why.starts_with(b"WRONGTYPE"),
            (Rule::Moved(_), Value::Error(why)) if why.starts_with(b"WRONGTYPE") => {
                call(ctx, ERRORS, &[b"TYPE", key.bytes()]).value().bytes() != Some(b"list")
            }
            _ => false,
        }
    }
}

/// The keys of a blocking command, and its timeout, ms; none if it does not wait.
pub(super) fn keys_and_timeout(rule: Rule, args: &[&[u8]]) -> Option<(Vec<Vec<u8>>, i64)> {
    let seconds = timeout_ms;
    let number = |arg: &[u8]| std::str::from_utf8(arg).ok()?.parse::<usize>().ok();
    let owned = |keys: &[&[u8]]| keys.iter().map(|key| key.to_vec()).collect();
    Some(match rule {
        Rule::Popped(_) => (owned(&args[1..args.len() - 1]), seconds(args[args.len() - 1])?),
        Rule::Moved(_) => (owned(&args[1..2]), seconds(args[args.len() - 1])?),
        Rule::PoppedMany(_) => (owned(args.get(3..3 + number(args[2])?)?), seconds(args[1])?),
        Rule::GroupRead => {
            let read = GroupRead::of(args)?;
            (read.keys(args).map(<[u8]>::to_vec).collect(), read.block_ms?)
        }
        _ => return None,
    })
}

/// Seconds as Redis reads them, in milliseconds: also `0x1p-1`, and numbers so small that they are 0 as a double.
fn timeout_ms(arg: &[u8]) -> Option<i64> {
    let text = CString::new(arg).ok()?;
    // SAFETY: a string with a zero at its end, and no place for where the number ends: Redis has seen that it is one.
    let seconds = unsafe { libc::strtod(text.as_ptr(), std::ptr::null_mut()) };
    let mantissa = arg.split(|byte| matches!(byte, b'e' | b'E' | b'p' | b'P')).next().unwrap_or_default();
    let is_none = seconds == 0.0 && !mantissa.iter().any(|byte| matches!(byte, b'1'..=b'9'));
    // Redis has checked the range; 0 is for ever, and nothing else becomes 0.
    #[allow(clippy::cast_possible_truncation, reason = "below 2^63, as Redis has checked")]
    Some(if is_none { 0 } else { ((seconds * 1000.0).ceil() as i64).max(1) })
}

/// Suspends the client until there is data for it.
pub(super) fn wait_for_data(ctx: Ctx, rule: Rule, args: Args<'_>) -> bool {
    let Some((keys, timeout_ms)) = keys_and_timeout(rule, &args.to_bytes()) else { return false };
    let mut texts: Vec<Text> = keys.iter().map(|key| Text::new(key)).collect();
    let wait = (rule == Rule::GroupRead).then(Wait::next);
    let number = wait.as_ref().map(Wait::number);
    let waiting = Waiting { rule, args: args.retain(), _wait: wait };
    let client = ctx.block_on_keys(&mut texts, timeout_ms, on_data, on_no_data, Box::new(waiting));
    pushed::forget();
    if let Some(number) = number {
        awaited::begin(number, client, ctx.db(), keys);
    }
    true
}

/// A key that a client waits for has data.
unsafe extern "C" fn on_data(ctx: *mut raw::RedisModuleCtx, _: Argv, _: c_int) -> c_int {
    let ctx = Ctx(ctx);
    if hot(|hot| hot.mode.get()) != Mode::Leader {
        return 1;
    }
    // SAFETY: a callback of `wait_for_data`, whose data is a `Waiting`.
    let waiting: &Waiting = unsafe { ctx.private() };
    let Some(key) = ctx.ready_key() else { return 1 };
    let args = waiting.for_key(&key);
    let reply = crate::redis::with_args(&args, |args| call_write(ctx, WRITE, waiting.rule, args));
    let value = reply.value();
    if is_empty(&value) || waiting.is_of_another_type(ctx, &key, &value) {
        return 1;
    }
    hot(|hot| hot.has_shown.set(true));
    if waiting.rule == Rule::GroupRead && matches!(&value, Value::Error(why) if why.starts_with(b"WRONGTYPE")) {
        return ctx.error(NO_STREAM);
    }
    if !reply.is_error() {
        crate::redis::with_args(&args, |args| note(ctx, waiting.rule, args, &value));
    }
    if pushed::is_early(ctx) && !pushed::decide(ctx) {
        return ctx.error(UNKNOWN);
    }
    crate::redis::with_args(&args, |args| answer(ctx, args, &reply))
}

/// A client has waited for long enough: it is shown that there was no data.
unsafe extern "C" fn on_no_data(ctx: *mut raw::RedisModuleCtx, _: Argv, _: c_int) -> c_int {
    hot(|hot| hot.has_shown.set(true));
    // Its answer may leave before the end of the turn.
    let is_early = hot(|hot| hot.is_late.get()) || has_unread(Ctx(ctx));
    if is_early && !commit_now() {
        return Ctx(ctx).error(UNSURE);
    }
    if awaited::is_deleted() {
        return Ctx(ctx).error(NO_STREAM);
    }
    api!(RedisModule_ReplyWithNullArray(ctx))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_read_as_redis_reads_them() {
        for (text, ms) in [
            ("0", 0),
            ("0.0", 0),
            ("-0", 0),
            ("1", 1000),
            ("0.0001", 1),
            ("1e-400", 1),
            ("0e5", 0),
            ("0x1p-1", 500),
            ("0xa", 10_000),
        ] {
            assert_eq!(timeout_ms(text.as_bytes()), Some(ms), "{text}");
        }
    }
}
