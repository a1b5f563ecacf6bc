// SPDX-License-Identifier: Apache-2.0
//! Clients that are sent what they have not just asked for: subscribers, monitors, clients that wait for data (XREAD) or
//! track keys.
//!
//! Redis adds to their replies while another client's command runs. If such a client also has earlier replies that Redis
//! could not write yet ([`super::unread`]), Redis may write all of them later in the same turn, before the turn is
//! decided. So what others write is decided at once while there is such a client. A transaction cannot be: nothing of
//! this module runs between its last command and the next client. It is refused.

use std::{
    cell::{Cell, RefCell},
    os::fd::RawFd,
};

use super::{ERRORS, UNREAD, call, closing, commit_now, hot, unread::Unread, writing::has_unread};
use crate::redis::Ctx;

/// Flags in the list of clients: subscribes (P), monitors (O), tracks keys (t, B), waits (b).
const FLAGS: &[u8] = b"POtBb";

/// Its id, and its descriptor if Redis names it.
type Listener = (u64, Option<RawFd>);

thread_local! {
    /// These clients; none: a client may have become one since the list was read. One that has ended
    /// stays here until then: whoever has its descriptor is taken for one, and what others write is decided at once.
    static KNOWN: RefCell<Option<Vec<Listener>>> = const { RefCell::new(None) };
    /// Whether any of them has unread replies; none: nobody has looked in this turn.
    static IS_ANY: Cell<Option<bool>> = const { Cell::new(None) };
}

/// Commands by which a client becomes one of these, but for those that wait for this module's data.
const LISTENING: [&[u8]; 9] =
    [b"subscribe", b"psubscribe", b"ssubscribe", b"monitor", b"client", b"hello", b"reset", b"exec", b"xread"];

/// A command passes the filter.
pub(super) fn note_command(name: &[u8]) {
    if LISTENING.iter().any(|listening| name.eq_ignore_ascii_case(listening)) {
        forget();
    }
}

/// A client may become one of these.
pub(super) fn forget() {
    KNOWN.set(None);
    IS_ANY.set(None);
}

/// A turn begins.
pub(super) fn begin_turn() {
    IS_ANY.set(None);
}

/// Whether a client may be sent what is written now, before the end of the turn.
pub(super) fn may_be(ctx: Ctx) -> bool {
    if !UNREAD.with_borrow_mut(Unread::is_any) {
        return false;
    }
    if let Some(known) = IS_ANY.get() {
        return known;
    }
    let known = KNOWN.take().unwrap_or_else(|| clients(call(ctx, ERRORS, &[b"CLIENT", b"LIST"]).bytes()));
    let is_any = UNREAD.with_borrow_mut(|unread| known.iter().any(|(id, fd)| unread.is_of(*id, *fd)));
    // A transaction may subscribe after this.
    if !ctx.is_nested() {
        KNOWN.set(Some(known));
        IS_ANY.set(Some(is_any));
    }
    is_any
}

/// Whether what this command writes is decided before it is answered: the end of the turn is too late for its own
/// client, or for another one.
pub(super) fn is_early(ctx: Ctx) -> bool {
    hot(|hot| hot.is_late.get()) || has_unread(ctx) || may_be(ctx)
}

/// Decides what this command has written. Whether it is decided. If not, nobody is sent it: the connections of such
/// clients are shut down at once, all others at the end of the turn.
pub(super) fn decide(ctx: Ctx) -> bool {
    if commit_now() {
        return true;
    }
    let own = ctx.client();
    for (id, fd) in clients(call(ctx, ERRORS, &[b"CLIENT", b"LIST"]).bytes()) {
        if let Some(fd) = fd.filter(|_| id != own) {
            closing::shut(fd);
        }
    }
    false
}

/// Ends the connections of these clients: what this server executes from now on may never be decided.
pub(super) fn end(ctx: Ctx) {
    for (id, _) in clients(call(ctx, ERRORS, &[b"CLIENT", b"LIST"]).bytes()) {
        call(ctx, ERRORS, &[b"CLIENT", b"KILL", b"ID", id.to_string().as_bytes()]);
    }
}

/// Ids and descriptors of these clients in a list of all.
fn clients(list: &[u8]) -> Vec<Listener> {
    let list = String::from_utf8_lossy(list);
    // What the tracking of one client finds may be sent to another one, which has no flag.
    let targets: Vec<&str> = list.split(' ').filter_map(|field| field.strip_prefix("redir=")).collect();
    let one = |line: &str| {
        let field = |name: &str| line.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        let id = field("id")?;
        let is_flagged = field("flags").is_none_or(|flags| flags.bytes().any(|flag| FLAGS.contains(&flag)));
        let fd = field("fd").and_then(|fd| fd.parse().ok());
        (is_flagged || targets.contains(&id)).then(|| Some((id.parse().ok()?, fd)))?
    };
    list.lines().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::clients;

    #[test]
    fn clients_that_are_sent_messages_are_found_in_a_list() {
        let line = |id: u64, fd: u64, flags: &str, redir: i64| {
            format!(
                "id={id} addr=/redis.sock:0 laddr=/redis.sock:0 fd={fd} name= flags={flags} db=0 redir={redir} resp=2\n"
            )
        };
        let lines = [
            line(3, 8, "N", -1),
            line(4, 9, "P", -1),
            line(5, 10, "tU", 7),
            line(6, 11, "xU", -1),
            line(7, 12, "U", -1),
            line(8, 13, "bU", -1),
            line(9, 14, "O", -1),
            line(10, 15, "S", -1),
        ];
        let list = format!("${}\r\n{}\r\n", lines.concat().len(), lines.concat());
        let found = clients(list.as_bytes());
        assert_eq!(found, [(4, 9), (5, 10), (7, 12), (8, 13), (9, 14)].map(|(id, fd)| (id, Some(fd))));
        assert!(clients(b"-ERR no\r\n").is_empty());
    }
}
