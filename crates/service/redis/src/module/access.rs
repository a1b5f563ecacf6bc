// SPDX-License-Identifier: Apache-2.0
//! Users with restricted rights: Redis checks their rights for what this module puts in front of a command, and for
//! the command itself.

use std::ffi::c_int;

use super::{
    ERRORS, call,
    words::{AS, IN_FRONT, WRITES},
};
use crate::{
    redis::{Args, Ctx, Reply, Text, is_allowed, with_args},
    resp::Value,
};

pub(super) const NOT_ALLOWED: &str = "NOPERM this user has no permissions to run the command, or for one of its keys";

/// Rules of ACL by which a user may execute what is put in front of commands: these check what the user may do.
pub(super) fn rules() -> Vec<String> {
    let names = WRITES.iter().map(|(name, _)| name).chain(&IN_FRONT).chain([&AS]);
    names.map(|name| format!("+{}", name.to_string_lossy())).collect()
}

/// Adds these rules to all users.
pub(super) fn let_users(ctx: Ctx) {
    let rules = rules();
    for user in call(ctx, ERRORS, &[b"ACL", b"USERS"]).value().list() {
        let Some(name) = user.bytes() else { continue };
        let mut set: Vec<&[u8]> = vec![b"ACL", b"SETUSER", name];
        set.extend(rules.iter().map(String::as_bytes));
        if let Value::Error(why) = call(ctx, ERRORS, &set).value() {
            ctx.log(c"warning", &format!("ACL SETUSER: {}", String::from_utf8_lossy(&why)));
        }
    }
}

/// Refuses a client that may not do what Redis has instead: in Redis 7.0 the commands of modules are in no category, so
/// that a user with `-@admin -@dangerous` could take servers out of the group. None: the client may.
pub(super) fn refuse_unless(ctx: Ctx, may: &[&str]) -> Option<c_int> {
    let words: Vec<Text> = may.iter().map(|word| Text::new(word.as_bytes())).collect();
    let is_allowed = with_args(&words, |args| is_allowed(ctx, args));
    let title = may.join(" ");
    (!is_allowed)
        .then(|| ctx.error(&format!("NOPERM this user needs the right to {title}, which it has not: it takes as much")))
}

/// The reply, with what a user may not do said as Redis says it to clients.
pub(super) fn answer(ctx: Ctx, args: Args<'_>, reply: &Reply) -> c_int {
    let Some(why) = reply.bytes().strip_prefix(b"-ERR acl verification failed") else { return ctx.reply(reply) };
    let why = String::from_utf8_lossy(why);
    if why.contains("keys") {
        return ctx.error("NOPERM this user has no permissions to access one of the keys used as arguments");
    }
    if why.contains("channel") {
        return ctx.error("NOPERM this user has no permissions to access one of the channels used as arguments");
    }
    let name = String::from_utf8_lossy(args.get(0).unwrap_or_default()).to_ascii_lowercase();
    ctx.error(&format!("NOPERM this user has no permissions to run the '{name}' command"))
}
