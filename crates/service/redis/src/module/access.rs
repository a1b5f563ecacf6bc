// SPDX-License-Identifier: Apache-2.0
//! Users with restricted rights: Redis checks their rights for what this module puts in front of a command, and for
//! the command itself.

use std::ffi::c_int;

use super::{
    ERRORS, call,
    words::{AS, IN_FRONT, WRITES},
};
use crate::{
    redis::{Args, Ctx, Reply, Text, is_allowed, peer_of, with_args},
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

/// Why the client may not execute DEBUG. Redis does not look at that setting for what a module calls.
pub(super) fn why_no_debug(ctx: Ctx) -> Option<&'static str> {
    let setting = call(ctx, ERRORS, &[b"CONFIG", b"GET", b"enable-debug-command"]).value();
    let is_allowed = match setting.list().get(1).and_then(Value::bytes) {
        Some(b"yes") => true,
        Some(b"local") => is_local(&peer_of(ctx.client()).unwrap_or_default()),
        _ => false,
    };
    (!is_allowed).then_some(
        "ERR DEBUG command not allowed. If the enable-debug-command option is set to \"local\", you can run it from a local connection, \
         otherwise you need to set this option in the configuration file, and then restart the server.",
    )
}

/// Whether a client's address is one of this host, as Redis sees it.
fn is_local(peer: &str) -> bool {
    let ip = peer.rsplit_once(':').map_or(peer, |(ip, _)| ip);
    matches!(ip, "127.0.0.1" | "::1" | "/unixsocket")
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

#[cfg(test)]
mod tests {
    use super::is_local;

    #[test]
    fn clients_of_this_host_are_known_by_their_address() {
        for peer in ["127.0.0.1:4000", "::1:4000", "/unixsocket:0"] {
            assert!(is_local(peer), "{peer}");
        }
        for peer in ["10.0.0.1:4000", "127.0.0.2:1", "::10:1", ""] {
            assert!(!is_local(peer), "{peer}");
        }
    }
}
