// SPDX-License-Identifier: Apache-2.0
//! What all ways of writing at the leader have in common.

use std::{
    cell::RefCell,
    ffi::{CStr, c_int},
};

use super::{ERRORS, TURN, UNREAD, call, call_args, unread::Unread};
use crate::{
    redis::{Args, Ctx, Reply, cached_now_ms, now_ms, server_version},
    resp::Value,
    rules::{Data, Rule},
};

/// Errors as replies, the client's protocol and permissions, and Redis' own replication. Redis has checked the
/// memory limit by the flags of FIDE.W: here, in the middle of a transaction or script, is too late.
pub(super) const WRITE: &CStr = c"!E0C";
pub(super) const UNKNOWN: &str =
    "UNKNOWN the group has not agreed on this write yet; it may or may not happen. Read the data before you repeat it";

/// The leader's data, as [`Rule::effects`] asks for it.
struct Own {
    ctx: Ctx,
}

impl Data for Own {
    fn call(&mut self, args: &[&[u8]]) -> Value {
        // With replication: a key that is found expired is deleted at servers that take over from this one, too.
        call(self.ctx, c"!E", args).value()
    }

    fn now_ms(&mut self) -> i64 {
        // From Redis 7.2 on all commands of one call have one time, that of its beginning.
        if server_version() >= (7, 2) { cached_now_ms() } else { now_ms() }
    }
}

/// Executes a write, with these flags of a call. `!` among them is left out where [`note`] tells what to replicate.
pub(super) fn call_write(ctx: Ctx, flags: &CStr, rule: Rule, args: Args<'_>) -> Reply {
    let flags = flags.to_bytes_with_nul();
    let flags = flags.strip_prefix(b"!").filter(|_| rule.replicates_effects()).unwrap_or(flags);
    call_args(ctx, CStr::from_bytes_with_nul(flags).expect("the end of a string with one zero"), args)
}

/// Notes what a failed write has done, if anything, for this turn's unit and for servers that replicate from this one.
/// Redis does not replicate it.
pub(super) fn note_failed(ctx: Ctx, rule: Rule, args: Args<'_>, reply: &Value) {
    let Value::Error(why) = reply else { return };
    let (db, args) = (ctx.db(), args.to_bytes());
    rule.effects_of_failed(&args, why, &mut Own { ctx }, &mut |command| {
        TURN.with_borrow_mut(|turn| turn.push(db, command));
        ctx.replicate(command);
    });
}

/// Notes what a write has done for this turn's unit.
pub(super) fn note(ctx: Ctx, rule: Rule, args: Args<'_>, reply: &Value) {
    let (db, args) = (ctx.db(), args.to_bytes());
    // Not while commands of Redis run, which may be noted too: deletions of expired keys.
    let done: RefCell<Vec<Vec<Vec<u8>>>> = RefCell::default();
    if !rule.needs_reply() {
        rule.effects(&args, reply, &mut Own { ctx }, &mut |command| {
            TURN.with_borrow_mut(|turn| turn.push(db, command));
            if rule.replicates_effects() {
                ctx.replicate(command);
            }
        });
        return;
    }
    rule.effects(&args, reply, &mut Own { ctx }, &mut |command| {
        done.borrow_mut().push(command.iter().map(|word| word.to_vec()).collect());
    });
    TURN.with_borrow_mut(|turn| {
        for command in done.into_inner() {
            let command: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
            turn.push(db, &command);
            if rule.replicates_effects() {
                ctx.replicate(&command);
            }
        }
    });
}

/// Whether the client has earlier replies that Redis could not write yet.
pub(super) fn has_unread(ctx: Ctx) -> bool {
    if !UNREAD.with_borrow_mut(Unread::is_any) {
        return false;
    }
    let client = ctx.client();
    let fd = UNREAD.with_borrow(|unread| unread.descriptor(client)).or_else(|| {
        let list = call(ctx, ERRORS, &[b"CLIENT", b"LIST", b"ID", client.to_string().as_bytes()]);
        String::from_utf8_lossy(list.bytes()).split(' ').find_map(|field| field.strip_prefix("fd=")?.parse().ok())
    });
    UNREAD.with_borrow_mut(|unread| unread.is_of(client, fd))
}

/// A write is executed, and nobody knows whether it will be decided.
pub(super) fn refuse_late(ctx: Ctx) -> c_int {
    ctx.error(UNKNOWN)
}
