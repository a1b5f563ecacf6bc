// SPDX-License-Identifier: Apache-2.0
//! A transaction that a client with unread replies would be shown too early is refused whole.
//!
//! A transaction is refused while its own client, or one that is sent messages ([`super::pushed`]), has unread replies.
//! Redis shows this module only the single writes of a transaction. The first write looks, and the answer holds for all
//! others. Otherwise one half could be executed: a transaction may change which clients are sent messages, and the
//! commands of its scripts come from a client of Redis' own that has no connection.
//!
//! A slow client that a transaction itself names as the target of its tracking may so be told too early which keys are
//! written, and nothing of the data.

use std::{cell::Cell, os::fd::RawFd};

use super::{ERRORS, UNREAD, call, pushed, unread::Unread, writing::has_unread};
use crate::redis::Ctx;

const OWN_UNREAD: &str = "TRYAGAIN read the earlier replies of this connection before a transaction";
const OTHER_UNREAD: &str =
    "TRYAGAIN another client that is sent messages is about to read its earlier replies; send the transaction again";

/// Whether writes may be executed now; otherwise the error.
type Answer = Result<(), &'static str>;

thread_local! {
    /// The answer for the transaction that Redis executes; none: no write of it has asked.
    static OF_TRANSACTION: Cell<Option<Answer>> = const { Cell::new(None) };
}

/// Redis is about to execute EXEC.
pub(super) fn begin() {
    OF_TRANSACTION.set(None);
}

/// Whether a write inside of a transaction, or of a script that this module has not called, may be executed.
///
/// # Errors
/// The client's answer: a client with unread replies would be shown the write before it is decided.
pub(super) fn may_write(ctx: Ctx) -> Answer {
    if !ctx.is_in_transaction() {
        return look(ctx, has_unread(ctx));
    }
    OF_TRANSACTION.get().unwrap_or_else(|| {
        let answer = look(ctx, if ctx.is_in_script() { has_exec_unread(ctx) } else { has_unread(ctx) });
        OF_TRANSACTION.set(Some(answer));
        answer
    })
}

fn look(ctx: Ctx, is_own: bool) -> Answer {
    match () {
        () if is_own => Err(OWN_UNREAD),
        () if pushed::may_be(ctx) => Err(OTHER_UNREAD),
        () => Ok(()),
    }
}

/// Whether the client whose EXEC Redis executes has unread replies. If it is not found, it may have.
fn has_exec_unread(ctx: Ctx) -> bool {
    if !UNREAD.with_borrow_mut(Unread::is_any) {
        return false;
    }
    let list = call(ctx, ERRORS, &[b"CLIENT", b"LIST"]);
    match in_exec(&String::from_utf8_lossy(list.bytes())) {
        Some((client, fd)) => UNREAD.with_borrow_mut(|unread| unread.is_of(client, fd)),
        None => true,
    }
}

/// The id and the descriptor of the client in this list whose EXEC Redis executes.
fn in_exec(list: &str) -> Option<(u64, Option<RawFd>)> {
    let mut all = list.lines().filter_map(|line| {
        let field = |name: &str| line.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        // After its EXEC a client is in no transaction. That of a client that is held up (CLIENT PAUSE), or was until now,
        // has not begun.
        let is_it = field("cmd")? == "exec" && field("multi")? != "-1" && !field("flags")?.contains(['b', 'u']);
        is_it.then(|| Some((field("id")?.parse().ok()?, field("fd").and_then(|fd| fd.parse().ok()))))?
    });
    all.next().filter(|_| all.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::in_exec;

    #[test]
    fn client_that_executes_a_transaction_is_found_in_a_list() {
        let line = |id: u64, flags: &str, multi: i32, command: &str| {
            format!("id={id} addr=/redis.sock:0 fd={} name= flags={flags} multi={multi} cmd={command} resp=2\n", id + 5)
        };
        let others = [
            line(3, "N", -1, "exec"),
            line(4, "x", 2, "set"),
            line(5, "xb", 2, "exec"),
            line(9, "xu", 2, "exec"),
            line(6, "N", -1, "client|list"),
            line(7, "x", 0, "multi"),
        ];
        assert_eq!(in_exec(&others.concat()), None);
        let list = [others.concat(), line(8, "xU", 2, "exec")].concat();
        assert_eq!(in_exec(&list), Some((8, Some(13))));
        assert_eq!(in_exec("-ERR no\r\n"), None);
        let two = [list, line(10, "x", 2, "exec")].concat();
        assert_eq!(in_exec(&two), None, "it may be either");
    }
}
