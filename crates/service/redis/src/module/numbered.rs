// SPDX-License-Identifier: Apache-2.0
//! `FIDE.ONCE client number command ...`: a write that its client may send again, and that happens once
//! ([`crate::once`]).
//!
//! The answer is part of the unit that the command is part of, so either both are decided or neither.

use std::{ffi::CStr, ffi::c_int};

use super::{
    HOT, TURN, call_args, class_of, hot, pushed, replies, with_state,
    writing::{call_write, note, note_failed, refuse_late},
};
use crate::{
    commands::Class,
    once::Note,
    redis::{Args, Ctx, now_ms},
    resp::Value,
};

/// The command of `FIDE.ONCE client number command ...`, if it is one that may be numbered.
///
/// # Errors
/// Why it may not, for the client.
pub(super) fn command(args: Args<'_>) -> Result<Args<'_>, String> {
    let command = args.rest().rest().rest();
    let Some(name) = command.get(0) else {
        return Err("ERR FIDE.ONCE takes the client's id, a number, and a command".to_owned());
    };
    let name = String::from_utf8_lossy(name).to_ascii_uppercase();
    match class_of(command) {
        Class::Write(rule) if rule.may_block() => {
            Err(format!("ERR FIDE.ONCE does not take {name}: it may wait for data; use the command that does not"))
        }
        Class::Write(_) | Class::Script => Ok(command),
        Class::Refused(why) => Err(format!("ERR {name} is refused in a group: {why}")),
        _ => Err(format!(
            "ERR FIDE.ONCE takes a write, a script or a function, and {name} is none, or has too few words"
        )),
    }
}

/// Executes it, or answers as it was answered before, at the leader. `is_early`: its answer may leave before the
/// end of the turn. `write`, `script`: flags of the call, for a reply in RESP2.
pub(super) fn execute(ctx: Ctx, args: Args<'_>, is_early: bool, write: &CStr, script: &CStr) -> c_int {
    let command = match command(args) {
        Ok(command) => command,
        Err(why) => return ctx.error(&why),
    };
    let (client, number) = (args.get(1).unwrap_or_default(), args.get(2).unwrap_or_default());
    let Some(number) = std::str::from_utf8(number).ok().and_then(|number| number.parse::<u64>().ok()) else {
        return ctx
            .error("ERR the number of FIDE.ONCE is one from 0 to 2^64 - 1, and each is higher than the one before");
    };
    hot(|hot| hot.has_shown.set(true));
    let known =
        with_state(|state| state.kept.once.look(client, number, now_ms()).map(|answer| answer.map(<[u8]>::to_vec)));
    match known {
        Some(Ok(Some(answer))) => {
            if is_early && !pushed::decide(ctx) {
                return refuse_late(ctx);
            }
            // In the client's own protocol, the same each time.
            replies::write(ctx, &answer);
            return 0;
        }
        Some(Ok(None)) => {}
        Some(Err(why)) => return ctx.error(&format!("ONCE {why}")),
        None => return ctx.error("ERR the module has not begun"),
    }
    let before = TURN.with_borrow(crate::stream::Stream::commands);
    let reply = match class_of(command) {
        Class::Script => {
            HOT.with(|hot| hot.scripts.set(hot.scripts.get() + 1));
            let reply = call_args(ctx, script, command);
            HOT.with(|hot| hot.scripts.set(hot.scripts.get() - 1));
            reply
        }
        Class::Write(rule) => {
            let reply = call_write(ctx, write, rule, command);
            if reply.is_error() {
                note_failed(ctx, rule, command, &reply.value());
            } else {
                let value = if rule.needs_reply() { reply.value() } else { Value::Null };
                note(ctx, rule, command, &value);
            }
            reply
        }
        _ => return ctx.error("ERR not a write"),
    };
    // What has failed and done nothing may be tried again under its number: it may have lacked memory.
    if !reply.is_error() || TURN.with_borrow(crate::stream::Stream::commands) > before {
        let note = Note::new(now_ms(), client, number, reply.bytes());
        with_state(|state| state.kept.keep(note));
    }
    if is_early && !pushed::decide(ctx) {
        return refuse_late(ctx);
    }
    replies::write(ctx, reply.bytes());
    0
}
