// SPDX-License-Identifier: Apache-2.0
//! Connections that are closed after an answer.
//!
//! A client of Sentinel looks for the leader when it connects. Where a stock replica refuses a write as it is queued,
//! libraries disconnect by themselves; here the refusal stands in the answer to EXEC, which they take for the
//! transaction's own. So after it the connection is closed: the client finds the leader.

use std::cell::RefCell;

use super::{ERRORS, call};
use crate::redis::Ctx;

#[derive(Default)]
struct Closing {
    /// To be closed once the replies of this turn are written.
    now: Vec<u64>,
    /// Their replies are written.
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
