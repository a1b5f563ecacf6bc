// SPDX-License-Identifier: Apache-2.0
//! Streams that clients wait for in XREADGROUP, and that are deleted: the clients are told so.
//!
//! Redis serves its own clients then. It says nothing to a module whose client waits for the key, so that the
//! events of keys are listened to, and what may have been deleted is looked up before the turn ends.

use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, HashSet},
    ffi::c_int,
};

use redis_module::raw;

use super::{ERRORS, call};
use crate::redis::{Ctx, WaitingClient, api};

/// A client that waits.
#[derive(Debug)]
struct Awaited {
    client: WaitingClient,
    db: u32,
    keys: Vec<Vec<u8>>,
}

/// All of them. Redis bounds the clients, and so this.
#[derive(Debug, Default)]
struct All {
    last: u64,
    waiting: HashMap<u64, Awaited>,
    /// Who waits for a key of that name, in any database.
    by_key: HashMap<Vec<u8>, HashSet<u64>>,
    /// Who may wait for a key that is not there.
    suspects: HashSet<u64>,
}

thread_local! {
    static ALL: RefCell<All> = RefCell::new(All::default());
    static IS_DELETED: Cell<bool> = const { Cell::new(false) };
}

/// As long as it lives, the client is told when one of the keys is deleted.
#[derive(Debug)]
pub(super) struct Wait(u64);

impl Wait {
    /// The number of a client, before it waits.
    pub(super) fn next() -> Self {
        ALL.with_borrow_mut(|all| {
            all.last += 1;
            Self(all.last)
        })
    }

    pub(super) fn number(&self) -> u64 {
        self.0
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        ALL.with_borrow_mut(|all| {
            let Some(Awaited { keys, .. }) = all.waiting.remove(&self.0) else { return };
            for key in keys {
                if let Some(clients) = all.by_key.get_mut(&key) {
                    clients.remove(&self.0);
                    if clients.is_empty() {
                        all.by_key.remove(&key);
                    }
                }
            }
            all.suspects.remove(&self.0);
        });
    }
}

/// The client with this number waits for these keys.
pub(super) fn begin(number: u64, client: WaitingClient, db: u32, keys: Vec<Vec<u8>>) {
    ALL.with_borrow_mut(|all| {
        for key in &keys {
            all.by_key.entry(key.clone()).or_default().insert(number);
        }
        all.waiting.insert(number, Awaited { client, db, keys });
    });
}

/// Something has happened to a key.
pub(super) fn note(key: &[u8]) {
    ALL.with_borrow_mut(|all| {
        if let Some(clients) = all.by_key.get(key) {
            all.suspects.extend(clients);
        }
    });
}

/// Databases were emptied or exchanged.
pub(super) unsafe extern "C" fn on_databases(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    _: u64,
    _: *mut std::ffi::c_void,
) {
    ALL.with_borrow_mut(|all| all.suspects.extend(all.waiting.keys()));
}

/// Whether the client whose wait ends at this moment is told that its stream was deleted.
pub(super) fn is_deleted() -> bool {
    IS_DELETED.get()
}

/// Ends the waits of those whose stream is not there any more.
pub(super) fn end(ctx: Ctx) {
    let suspects = ALL.with_borrow_mut(|all| std::mem::take(&mut all.suspects));
    if suspects.is_empty() {
        return;
    }
    let before = ctx.db();
    for number in suspects {
        let found = ALL.with_borrow(|all| {
            let Awaited { client, db, keys } = all.waiting.get(&number)?;
            Some((*client, *db, keys.clone()))
        });
        let Some((client, db, keys)) = found else { continue };
        if api!(RedisModule_SelectDb(ctx.0, c_int::try_from(db).unwrap_or(0))) != 0 {
            continue;
        }
        let is_gone = |key: &Vec<u8>| call(ctx, ERRORS, &[b"EXISTS", key]).value().integer() == Some(0);
        if keys.iter().any(is_gone) {
            IS_DELETED.set(true);
            client.end();
            IS_DELETED.set(false);
        }
    }
    api!(RedisModule_SelectDb(ctx.0, c_int::try_from(before).unwrap_or(0)));
}
