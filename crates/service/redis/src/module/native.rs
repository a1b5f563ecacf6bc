// SPDX-License-Identifier: Apache-2.0
//! Writes that Redis executes as it is used to, without this module's word in front.
//!
//! For the commands that are told of ([`crate::commands::Checks::told`]) the filter writes down what would be
//! replicated. The event of the changed key, which Redis sends while it executes the command, says that it
//! happened. That takes a third of the time of a command in front, which looks up, checks and answers twice.
//!
//! | what might go wrong | why it does not |
//! |---|---|
//! | the command fails, is refused, or changes nothing | Redis sends no event, and the next command forgets what was written down |
//! | an event of something else | another command passes the filter first; expired and evicted keys have events of other kinds |
//! | a key turns out to have expired, and is deleted at the others after the command | these commands have one key, which expires before it changes |
//! | another module is told of the event first, and calls commands | where there are other modules, all writes have the word in front |
//! | a script keeps it from replicas (`redis.set_repl`), and a server joins, which takes over what Redis replicates | in scripts writes have the word in front while any server replicates from this one, or has asked to |
//! | the command is queued (`MULTI`): the filter sees it then, and not when it is executed | while any client may be in a transaction, all writes have the word in front |

use std::{
    cell::{Cell, RefCell},
    time::{Duration, Instant},
};

use redis_module::raw;

use super::{ERRORS, Mode, TURN, awaited, call, hot, replies::is_in_transaction};
use crate::{
    redis::{Ctx, Filtered, key_bytes},
    resp,
    stream::mark,
};

/// Longest command that is written down before it is executed, bytes of its words.
const WRITTEN_MAX: usize = 16 << 10;
/// After the last MULTI, clients are asked about so much later whether any is still in a transaction; and later
/// if that takes long: a thousand times as long as it took.
const ASK_AFTER: Duration = Duration::from_secs(1);
const ASK_COST: u32 = 1000;

/// Kinds of events that tell of these commands.
pub(super) const EVENTS: std::ffi::c_int = raw::REDISMODULE_NOTIFY_STRING
    | raw::REDISMODULE_NOTIFY_HASH
    | raw::REDISMODULE_NOTIFY_SET
    | raw::REDISMODULE_NOTIFY_ZSET
    | raw::REDISMODULE_NOTIFY_LIST
    | raw::REDISMODULE_NOTIFY_GENERIC;

/// The command that passed the filter last, if it is one of these.
#[derive(Debug, Default)]
struct Written {
    is_set: bool,
    bytes: Vec<u8>,
    key: Vec<u8>,
}

thread_local! {
    static WRITTEN: RefCell<Written> = RefCell::new(Written::default());
    /// When clients are asked whether any is in a transaction.
    static ASK_AT: Cell<Option<Instant>> = const { Cell::new(None) };
    /// When this server is asked whether another one still replicates from it; none: no other one has asked to.
    static ASK_REPLICAS_AT: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Another command passes the filter.
pub(super) fn forget() {
    WRITTEN.with_borrow_mut(|written| written.is_set = false);
}

/// Writes down what would be replicated of a command. Whether that is all that is to be done.
pub(super) fn write_down(command: &Filtered) -> bool {
    let len = command.len();
    let words = (0..len).map_while(|at| command.get(at));
    if words.map(<[u8]>::len).sum::<usize>() > WRITTEN_MAX {
        return false;
    }
    WRITTEN.with_borrow_mut(|written| {
        let Written { is_set, bytes, key } = written;
        bytes.clear();
        resp::number(bytes, b'*', len);
        for at in 0..len {
            let Some(word) = command.get(at) else { return false };
            let begin = resp::word(bytes, word);
            match at {
                0 => mark(&mut bytes[begin..begin + word.len()]),
                1 => {
                    key.clear();
                    key.extend_from_slice(word);
                }
                _ => {}
            }
        }
        *is_set = true;
        true
    })
}

/// A key has changed.
pub(super) unsafe extern "C" fn on_changed(
    ctx: *mut raw::RedisModuleCtx,
    _: std::ffi::c_int,
    _: *const std::ffi::c_char,
    key: *mut raw::RedisModuleString,
) -> std::ffi::c_int {
    WRITTEN.with_borrow_mut(|written| {
        if written.is_set && written.key == key_bytes(key) {
            written.is_set = false;
            TURN.with_borrow_mut(|turn| turn.push_written(Ctx(ctx).db(), &written.bytes));
        }
    });
    awaited::note(key_bytes(key));
    0
}

/// A client begins a transaction.
pub(super) fn note_transaction() {
    hot(|hot| hot.has_transactions.set(true));
    ASK_AT.set(Some(Instant::now() + ASK_AFTER));
}

/// Whether all transactions have ended, from time to time.
pub(super) fn look_for_transactions(ctx: Ctx) {
    let now = Instant::now();
    if ASK_AT.get().is_none_or(|at| at > now) {
        return;
    }
    let list = call(ctx, ERRORS, &[b"CLIENT", b"LIST"]);
    let is_any = has_transaction(list.bytes());
    ASK_AT.set(is_any.then(|| now + ASK_AFTER.max(now.elapsed() * ASK_COST)));
    hot(|hot| hot.has_transactions.set(is_any));
}

/// Whether a client of this list has begun a transaction. Where the list does not say so, one may have.
fn has_transaction(list: &[u8]) -> bool {
    let mut clients = list.split(|byte| *byte == b'\n').filter(|line| line.len() > 1 && line.first() != Some(&b'$'));
    clients.any(is_in_transaction)
}

/// Another server asks for this one's data.
pub(super) fn note_replica() {
    ASK_REPLICAS_AT.set(Some(Instant::now() + ASK_AFTER));
}

/// Whether no server replicates from this one any more, from time to time. Redis counts one from the moment in which it
/// asks, long before it tells of it.
pub(super) fn look_for_replicas(ctx: Ctx) {
    let now = Instant::now();
    if ASK_REPLICAS_AT.get().is_none_or(|at| at > now) {
        return;
    }
    let info = call(ctx, ERRORS, &[b"INFO", b"replication"]);
    ASK_REPLICAS_AT.set((!has_no_replica(info.bytes())).then(|| now + ASK_AFTER));
}

fn has_no_replica(info: &[u8]) -> bool {
    info.split(|byte| *byte == b'\n').any(|line| line.trim_ascii() == b"connected_slaves:0")
}

/// Whether this module's word is left out before a write of the leader now.
pub(super) fn is_possible() -> bool {
    if ASK_REPLICAS_AT.get().is_some() && Ctx::is_within_other() {
        return false;
    }
    hot(|hot| {
        let is_plain = !hot.has_transactions.get() && !hot.has_other_modules.get();
        hot.mode.get() == Mode::Leader && !hot.is_late.get() && is_plain
    })
}

#[cfg(test)]
mod tests {
    use super::{has_no_replica, has_transaction};

    #[test]
    fn replicas_are_seen_in_what_redis_says_of_replication() {
        let info = |count: u32| format!("$9\r\n# Replication\r\nrole:master\r\nconnected_slaves:{count}\r\nx:0\r\n");
        assert!(has_no_replica(info(0).as_bytes()));
        assert!(!has_no_replica(info(1).as_bytes()) && !has_no_replica(info(10).as_bytes()));
        assert!(!has_no_replica(b"-ERR no\r\n"), "nothing is known");
    }

    #[test]
    fn transactions_are_seen_in_a_list_of_clients() {
        let line =
            |multi: &str| format!("id=3 addr=127.0.0.1:1 name= db=0 sub=0 psub=0 multi={multi} qbuf=0 cmd=set\n");
        let list = |lines: &[String]| format!("${}\r\n{}\r\n", lines.concat().len(), lines.concat());
        assert!(!has_transaction(list(&[line("-1"), line("-1")]).as_bytes()));
        assert!(has_transaction(list(&[line("-1"), line("0")]).as_bytes()));
        assert!(has_transaction(list(&[line("12"), line("-1")]).as_bytes()));
        assert!(has_transaction(b"-ERR no\r\n"), "nothing is known");
        assert!(has_transaction(b"$9\r\nid=3 db=0\r\n"));
    }
}
