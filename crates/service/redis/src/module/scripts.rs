// SPDX-License-Identifier: Apache-2.0
//! Scripts and functions that clients send to a follower: the leader executes them, as the same user.
//!
//! A follower sends `FIDE.AS proof user command ...`. What a script may do is checked for each of its commands, so the
//! leader has to know whose it is; a write that is passed on alone was checked by the follower. The proof is made of the
//! group's key: without it a client could choose whom it is.

use std::ffi::c_int;

use redis_module::raw;

use super::{
    Mode,
    access::answer,
    call_args, class_of,
    commands::refuse,
    commit_now, hot, numbered,
    words::{inner, is_proof},
    writing::{UNKNOWN, has_unread},
};
use crate::{
    commands::Class,
    redis::{Args, Argv, Ctx, User},
};

/// Errors as replies, the client's protocol, and the permissions of the user that was named.
const SCRIPT: &std::ffi::CStr = c"E0C";
/// Of numbered requests: in RESP2, as their answers are kept.
const ONCE_WRITE: &std::ffi::CStr = c"!ECM";
const ONCE_SCRIPT: &std::ffi::CStr = c"!EC";
/// What the proof is derived for, so that it is of no use elsewhere.
const PURPOSE: &str = "fide redis 1: a follower passes a script on";

/// What shows the leader that a server of the group has sent a command.
pub(super) fn proof(key: fide_group::Key) -> Vec<u8> {
    blake3::derive_key(PURPOSE, &key.0).iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect()
}

/// Executes a script or function, or a numbered one, with the rights of a user of this server. Of this module's own
/// links and clients only.
pub(super) fn execute_as(ctx: Ctx, user: &[u8], args: Args<'_>, is_early: bool) -> c_int {
    let Some(user) = User::named(user) else {
        let user = String::from_utf8_lossy(user);
        return ctx.error(&format!("NOPERM the leader has no user {user}; define users alike on all servers"));
    };
    hot(|hot| hot.has_shown.set(true));
    user.lend(ctx, || {
        if class_of(args) == Class::Once {
            return numbered::execute(ctx, args, is_early, ONCE_WRITE, ONCE_SCRIPT);
        }
        hot(|hot| hot.scripts.set(hot.scripts.get() + 1));
        let reply = call_args(ctx, SCRIPT, args);
        hot(|hot| hot.scripts.set(hot.scripts.get() - 1));
        if is_early && !commit_now() {
            return ctx.error(UNKNOWN);
        }
        answer(ctx, args, &reply)
    })
}

/// A follower passes on a script of one of its clients.
pub(super) unsafe extern "C" fn fide_as(ctx: *mut raw::RedisModuleCtx, argv: Argv, argc: c_int) -> c_int {
    let (ctx, args) = (Ctx(ctx), inner(argv, argc));
    let (given, user, command) = (args.get(0).unwrap_or_default(), args.get(1).unwrap_or_default(), args.rest().rest());
    if !is_proof(given) || ctx.is_nested() || !matches!(class_of(command), Class::Script | Class::Once) {
        return ctx.error("ERR FIDE.AS is for this module's own use");
    }
    if hot(|hot| hot.mode.get()) != Mode::Leader {
        return refuse(ctx, command);
    }
    let is_early = hot(|hot| hot.is_late.get()) || has_unread(ctx);
    execute_as(ctx, user, command, is_early)
}
