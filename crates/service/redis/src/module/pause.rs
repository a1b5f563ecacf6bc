// SPDX-License-Identifier: Apache-2.0
//! `CLIENT PAUSE` at a leader.
//!
//! While clients are paused, Redis deletes no key that has expired. A command sees it as gone all the same, and so
//! would not do at other servers what it does here: between two commands that may stand in the log, only in a
//! transaction that pauses. And from Redis 7.2 on a command that a pause has held up does not come by this
//! module's filter again: it would be executed without being replicated.

use std::ffi::{CStr, c_int};

use redis_module::raw;

use super::{access::answer, call_args, class_of, hot, state::Mode, words::inner};
use crate::{
    commands::Class,
    redis::{Argv, Ctx, server_version},
};

pub(super) const NOT_LEADING: &str = "ERR CLIENT PAUSE is refused at a server that does not lead its group: what the leader writes would be held up, too; pause the leader";
/// Errors as replies, and the rights of the client.
const PAUSE: &CStr = c"E0C";
/// From this version on, what was held up is executed without another look.
const UNSEEN_FROM: (u8, u8) = (7, 2);

pub(super) unsafe extern "C" fn fide_pause(ctx: *mut raw::RedisModuleCtx, argv: Argv, argc: c_int) -> c_int {
    let (ctx, args) = (Ctx(ctx), inner(argv, argc));
    if class_of(args) != Class::Pause {
        return ctx.error("ERR FIDE.PAUSE is for this module's own use");
    }
    if !matches!(hot(|hot| hot.mode.get()), Mode::Leader | Mode::Undecided) {
        return ctx.error(NOT_LEADING);
    }
    if ctx.is_nested() {
        return ctx.error(
            "ERR CLIENT PAUSE cannot stand in a transaction of a group: keys that expire meanwhile would not be deleted at all servers; send it by itself",
        );
    }
    if server_version() >= UNSEEN_FROM {
        return ctx.error(
            "ERR CLIENT PAUSE is refused in a group from Redis 7.2 on: what it holds up would not be replicated; stop the clients that write, or hand the lead over by FIDE.TRANSFER",
        );
    }
    answer(ctx, args, &call_args(ctx, PAUSE, args))
}
