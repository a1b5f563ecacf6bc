// SPDX-License-Identifier: Apache-2.0
//! Scripts and functions that clients send to a follower: the leader executes them, as the same user.
//!
//! A follower sends `FIDE.AS proof user command ...`. What a script may do is checked for each of its commands, so the
//! leader has to know whose it is; a write that is passed on alone was checked by the follower. SORT with BY or GET is
//! passed on in the same way: Redis checks while it executes SORT whether the user may read every key. The proof is made
//! of the group's key: without it a client could choose whom it is.

use std::ffi::c_int;

use redis_module::raw;

use super::{
    Mode,
    access::{NOT_ALLOWED, answer},
    call_args, class_of,
    commands::refuse,
    hot, numbered, pushed,
    words::{inner, is_proof},
    writing::{UNKNOWN, call_write, note},
};
use crate::{
    commands::Class,
    redis::{Args, Argv, Ctx, User},
    resp::Value,
    rules::Rule,
};

/// Errors as replies, the client's protocol, the permissions of the user that was named, and Redis' own replication:
/// without it Redis replicates nothing of what a script does.
const SCRIPT: &std::ffi::CStr = c"!E0C";
/// The same of a write; the word in front of it does not check the memory limit, so this does.
const WRITE: &std::ffi::CStr = c"!E0CM";
/// Of numbered requests: in RESP2, as their answers are kept.
const ONCE_WRITE: &std::ffi::CStr = c"!ECM";
const ONCE_SCRIPT: &std::ffi::CStr = c"!EC";
/// What the proof is derived for, so that it is of no use elsewhere.
const PURPOSE: &str = "fide redis 1: a follower passes a script on";

/// What shows the leader that a server of the group has sent a command.
pub(super) fn proof(key: fide_group::Key) -> Vec<u8> {
    blake3::derive_key(PURPOSE, &key.0).iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect()
}

/// Whether Redis checks the rights of a command's user while it executes the command, and not only before that.
pub(super) fn is_checked_within(args: Args<'_>) -> bool {
    let command = if class_of(args) == Class::Once { args.rest().rest().rest() } else { args };
    class_of(command) == Class::Script || reads_by_pattern(command)
}

/// SORT with BY or GET, which name patterns of keys.
fn reads_by_pattern(args: Args<'_>) -> bool {
    let is = |arg: &[u8], word: &str| arg.eq_ignore_ascii_case(word.as_bytes());
    let is_pattern = |arg: &[u8]| is(arg, "by") || is(arg, "get");
    args.get(0).is_some_and(|name| is(name, "sort")) && (2..args.len()).filter_map(|at| args.get(at)).any(is_pattern)
}

/// Executes a script, a function, SORT, or a numbered one of these, with the rights of a user of this server. Of this
/// module's own links and clients only.
pub(super) fn execute_as(ctx: Ctx, user: &[u8], args: Args<'_>, is_early: bool) -> c_int {
    let Some(user) = User::named(user) else {
        let user = String::from_utf8_lossy(user);
        return ctx.error(&format!("NOPERM the leader has no user {user}; define users alike on all servers"));
    };
    let command = if class_of(args) == Class::Once { args.rest().rest().rest() } else { args };
    if !user.may(args) || !user.may(command) {
        return ctx.error(NOT_ALLOWED);
    }
    hot(|hot| hot.has_shown.set(true));
    user.lend(ctx, || {
        if class_of(args) == Class::Once {
            return numbered::execute(ctx, args, is_early, ONCE_WRITE, ONCE_SCRIPT);
        }
        let reply = if let Class::Write(rule) = class_of(args) {
            let reply = call_write(ctx, WRITE, rule, args);
            if !reply.is_error() {
                note(ctx, rule, args, &Value::Null);
            }
            reply
        } else {
            hot(|hot| hot.scripts.set(hot.scripts.get() + 1));
            let reply = call_args(ctx, SCRIPT, args);
            hot(|hot| hot.scripts.set(hot.scripts.get() - 1));
            reply
        };
        if is_early && !pushed::decide(ctx) {
            return ctx.error(UNKNOWN);
        }
        answer(ctx, args, &reply)
    })
}

/// A follower passes on a script, or SORT, of one of its clients.
pub(super) unsafe extern "C" fn fide_as(ctx: *mut raw::RedisModuleCtx, argv: Argv, argc: c_int) -> c_int {
    let (ctx, args) = (Ctx(ctx), inner(argv, argc));
    let (given, user, command) = (args.get(0).unwrap_or_default(), args.get(1).unwrap_or_default(), args.rest().rest());
    let is_passed_so = matches!(class_of(command), Class::Script | Class::Once | Class::Write(Rule::IfStores));
    if !is_proof(given) || ctx.is_nested() || !is_passed_so {
        return ctx.error("ERR FIDE.AS is for this module's own use");
    }
    if hot(|hot| hot.mode.get()) != Mode::Leader {
        return refuse(ctx, command);
    }
    execute_as(ctx, user, command, pushed::is_early(ctx))
}
