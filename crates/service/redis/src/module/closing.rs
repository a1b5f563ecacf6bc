// SPDX-License-Identifier: Apache-2.0
//! Connections that are closed after an answer.
//!
//! A client of Sentinel looks for the leader when it connects. Where a stock replica refuses a write as it is queued,
//! libraries disconnect by themselves; here the refusal stands in the answer to EXEC, which they take for the
//! transaction's own. So after it the connection is closed: the client finds the leader.
//!
//! A connection over which nothing more may leave is shut down at once ([`shut`]). Redis finds that out when it writes or
//! reads. To end its client is possible at the end of a turn only: Redis may be going through those that wait, or
//! executing the command of one.

use std::{
    cell::RefCell,
    os::fd::{BorrowedFd, RawFd},
};

use super::{ERRORS, call};
use crate::redis::Ctx;

#[derive(Default)]
struct Closing {
    /// To be closed once the replies of this turn are written.
    now: Vec<u64>,
    /// Their replies are written, or are not to be.
    next: Vec<u64>,
}

thread_local! {
    static CLOSING: RefCell<Closing> = RefCell::new(Closing::default());
}

/// The client of this context, after the answer that it is about to be given.
pub(super) fn after_this(ctx: Ctx) {
    let client = ctx.client();
    CLOSING.with_borrow_mut(|closing| {
        if !closing.now.contains(&client) {
            closing.now.push(client);
        }
    });
}

/// The client of this context, as soon as nothing more is executed in this turn, and before it is answered.
pub(super) fn after_this_turn(ctx: Ctx) {
    let client = ctx.client();
    CLOSING.with_borrow_mut(|closing| closing.next.push(client));
}

/// Nothing more is sent to a client. Its descriptor is that of a list that Redis has made just now.
pub(super) fn shut(fd: RawFd) {
    // SAFETY: Redis closes no connection between the list and this call, so the descriptor is open, and the client's.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Both);
}

/// The loop is about to sleep, before replies are written.
pub(super) fn end_turn(ctx: Ctx) {
    let due = CLOSING.with_borrow_mut(|closing| {
        let due = std::mem::take(&mut closing.next);
        closing.next = std::mem::take(&mut closing.now);
        due
    });
    for client in due {
        call(ctx, ERRORS, &[b"CLIENT", b"KILL", b"ID", client.to_string().as_bytes()]);
    }
}
