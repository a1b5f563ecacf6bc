// SPDX-License-Identifier: Apache-2.0
//! What all ways of writing at the leader have in common.

use std::{cell::RefCell, ffi::c_int};

use super::{ERRORS, TURN, UNREAD, call, unread::Unread};
use crate::{
    redis::{Args, Ctx, now_ms},
    resp::Value,
    rules::{Data, Rule},
};

/// Errors as replies, the client's protocol and permissions, and Redis' own replication. Redis has checked the
/// memory limit by the flags of FIDE.W: here, in the middle of a transaction or script, is too late.
pub(super) const WRITE: &std::ffi::CStr = c"!E0C";
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
        now_ms()
    }
}

/// Notes what a write has done for this turn's unit.
pub(super) fn note(ctx: Ctx, rule: Rule, args: Args<'_>, reply: &Value) {
    let (db, args) = (ctx.db(), args.to_bytes());
    // Not while commands of Redis run, which may be noted too: deletions of expired keys.
    let done: RefCell<Vec<Vec<Vec<u8>>>> = RefCell::default();
    if !rule.needs_reply() {
        rule.effects(&args, reply, &mut Own { ctx }, &mut |command| {
            TURN.with_borrow_mut(|turn| turn.push(db, command));
        });
        return;
    }
    rule.effects(&args, reply, &mut Own { ctx }, &mut |command| {
        done.borrow_mut().push(command.iter().map(|word| word.to_vec()).collect());
    });
    TURN.with_borrow_mut(|turn| {
        for command in done.into_inner() {
            turn.push(db, &command.iter().map(Vec::as_slice).collect::<Vec<_>>());
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
