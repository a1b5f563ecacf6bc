// SPDX-License-Identifier: Apache-2.0
//! Digests of the data, taken in a child of Redis, so that nothing waits for them ([`super::comparing`]).
//!
//! The server forks when its data is exactly that of the position: the leader at the end of the turn whose unit has
//! the remark, a follower when its replication link brings the position. Redis has one child at a time, so a server
//! that writes a dump leaves the comparison out. The child ends when its server does.

use std::{
    ffi::{c_int, c_void},
    fs::File,
    io::{Read, Write},
    os::fd::{BorrowedFd, FromRawFd, IntoRawFd},
    ptr,
};

use redis_module::raw;
use rustix::{
    fs::FileType,
    process::{Signal, getppid, set_parent_process_death_signal},
};

use super::{
    ERRORS, MODULE, PROOF,
    access::refuse_unless,
    call,
    compared::Own,
    config, hot,
    state::{Mode, State},
    with_state,
    words::{inner, is_proof},
};
use crate::{
    redis::{Argv, Ctx, api, key_bytes},
    remark::{Digest, data_of},
    resp::Value,
};

/// What the child writes: `DEBUG DIGEST`, and two sums.
const FOUND_LEN: usize = 36;

/// Whether Redis has a child: it may have no other then.
pub(super) fn has_child(ctx: Ctx) -> bool {
    ctx.flags() & raw::REDISMODULE_CTX_FLAGS_ACTIVE_CHILD != 0
}

/// The remarks of this turn, at the leader.
pub(super) fn remarks(ctx: Ctx) -> Vec<u8> {
    let every = config::compare_every();
    with_state(|state| state.take_remarks(every, || has_child(ctx))).unwrap_or_default()
}

/// Does what the leader has said, and takes a digest if one is due at this moment. Not while the module's state is borrowed.
pub(super) fn take_digest() {
    let due = with_state(|state| {
        state.follow_remarks();
        state.digest_due()
    });
    let Some(Some(own)) = due else { return };
    let Some(ctx) = MODULE.with_borrow(|module| module.as_ref().map(|module| module.ctx)) else { return };
    if fork(ctx, own) {
        with_state(State::digest_runs);
    } else {
        end(own.number, None);
    }
}

/// Whether there is a child now.
fn fork(ctx: Ctx, own: Own) -> bool {
    if has_child(ctx) {
        return false;
    }
    let Ok((read, mut write)) = std::io::pipe() else { return false };
    let server = rustix::process::getpid();
    let result = Box::new(Result { number: own.number, pipe: read.into_raw_fd() });
    let result = Box::into_raw(result);
    match api!(RedisModule_Fork(Some(on_done), result.cast())) {
        0 => {
            // It holds what the server holds, such as the lock of the group's record.
            close_sockets();
            let is_tied = set_parent_process_death_signal(Some(Signal::KILL)).is_ok() && getppid() == Some(server);
            let is_done = is_tied && digest(ctx).is_some_and(|found| write.write_all(&found).is_ok());
            api!(RedisModule_ExitFromChild(c_int::from(!is_done)));
            unreachable!("the child has ended")
        }
        -1 => {
            // SAFETY: it is the box of above, which Redis has not been given.
            drop(unsafe { Box::from_raw(result) }.into_file());
            false
        }
        _ => true,
    }
}

/// In the child: a connection that the server closes while the child has it, too, would stay open for its client.
fn close_sockets() {
    let Ok(all) = std::fs::read_dir("/proc/self/fd") else { return };
    let all: Vec<c_int> = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    for fd in all {
        // SAFETY: the child has one thread, which opens and closes nothing meanwhile; a descriptor that is gone is an
        // error.
        let status = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(fd) });
        if status.is_ok_and(|status| FileType::from_raw_mode(status.st_mode) == FileType::Socket) {
            // SAFETY: nobody uses a socket in the child any more: it ends by `_exit`, and drops nothing.
            unsafe { libc::close(fd) };
        }
    }
}

/// Where the child's result comes from.
struct Result {
    number: u64,
    pipe: c_int,
}

impl Result {
    fn into_file(self) -> File {
        // SAFETY: the descriptor is the pipe's, and nobody else has it.
        unsafe { File::from_raw_fd(self.pipe) }
    }
}

unsafe extern "C" fn on_done(code: c_int, signal: c_int, result: *mut c_void) {
    // SAFETY: it is the box of `fork`, which Redis returns once.
    let result = *unsafe { Box::from_raw(result.cast::<Result>()) };
    let number = result.number;
    let mut bytes = Vec::new();
    let read = result.into_file().take(FOUND_LEN as u64 + 1).read_to_end(&mut bytes);
    let is_whole = read.is_ok() && code == 0 && signal == 0;
    end(number, is_whole.then(|| found(&bytes)).flatten());
}

fn found(bytes: &[u8]) -> Option<([u8; 20], u64, u64)> {
    let (data, rest) = bytes.split_first_chunk()?;
    let (deadlines, rest) = rest.split_first_chunk()?;
    let functions = rest.try_into().ok()?;
    Some((*data, u64::from_le_bytes(*deadlines), u64::from_le_bytes(functions)))
}

/// This server has its digest, or will have none: the leader is told.
fn end(number: u64, found: Option<([u8; 20], u64, u64)>) {
    let Some(Some((number, digest))) = with_state(|state| state.found(number, found)) else { return };
    MODULE.with_borrow_mut(|module| {
        let Some(module) = module else { return };
        let mut words = vec![module.state.member.host().to_string(), number.to_string()];
        words.extend(digest.iter().flat_map(Digest::words));
        PROOF.with_borrow(|proof| {
            let words = words.iter().map(String::as_bytes);
            let all: Vec<&[u8]> = [&b"FIDE.DIGEST"[..], proof].into_iter().chain(words).collect();
            module.proxy.tell(&all);
        });
    });
}

/// In the child.
fn digest(ctx: Ctx) -> Option<[u8; FOUND_LEN]> {
    let mut found = [0; FOUND_LEN];
    let data = call(ctx, ERRORS, &[b"DEBUG", b"DIGEST"]).value();
    found[..20].copy_from_slice(&data_of(data.bytes()?)?);
    found[20..28].copy_from_slice(&deadlines(ctx).to_le_bytes());
    found[28..].copy_from_slice(&functions(ctx).to_le_bytes());
    Some(found)
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// A sum over all keys that have a deadline. Those that have expired and are not deleted yet are there, at every
/// server: this does not look them up.
fn deadlines(ctx: Ctx) -> u64 {
    struct Sum {
        db: u32,
        sum: u64,
    }
    unsafe extern "C" fn add(
        _: *mut raw::RedisModuleCtx,
        name: *mut raw::RedisModuleString,
        key: *mut raw::RedisModuleKey,
        sum: *mut c_void,
    ) {
        // SAFETY: it is the sum that is lent to the scan, which calls back before it returns.
        let sum = unsafe { &mut *sum.cast::<Sum>() };
        let at = api!(RedisModule_GetAbsExpire(key));
        if at < 0 {
            return;
        }
        let whole = [&sum.db.to_le_bytes(), &at.to_le_bytes()[..], key_bytes(name)].concat();
        sum.sum = sum.sum.wrapping_add(hash(&whole));
    }
    let mut sum = Sum { db: 0, sum: 0 };
    let databases = with_state(|state| state.compare.settings.databases).unwrap_or(0);
    for db in 0..databases {
        if api!(RedisModule_SelectDb(ctx.0, c_int::try_from(db).unwrap_or(0))) != 0 {
            continue;
        }
        sum.db = db;
        let cursor = api!(RedisModule_ScanCursorCreate());
        while api!(RedisModule_Scan(ctx.0, cursor, Some(add), ptr::from_mut(&mut sum).cast())) != 0 {}
        api!(RedisModule_ScanCursorDestroy(cursor));
    }
    sum.sum
}

/// A sum over the libraries of functions.
fn functions(ctx: Ctx) -> u64 {
    let list = call(ctx, ERRORS, &[b"FUNCTION", b"LIST", b"WITHCODE"]).value();
    let code = |library: &Value| {
        let fields = library.list();
        let at = fields.iter().position(|field| field.bytes() == Some(b"library_code"))?;
        fields.get(at + 1)?.bytes().map(hash)
    };
    list.list().iter().filter_map(code).fold(0, u64::wrapping_add)
}

/// `FIDE.COMPARE`
pub(super) unsafe extern "C" fn fide_compare(ctx: *mut raw::RedisModuleCtx, _: Argv, argc: c_int) -> c_int {
    let ctx = Ctx(ctx);
    if let Some(refused) = refuse_unless(ctx, &["BGSAVE"]) {
        return refused;
    }
    if argc > 1 {
        return ctx.error("ERR FIDE.COMPARE takes no arguments");
    }
    let has_child = has_child(ctx);
    match with_state(|state| state.ask_to_compare(has_child)) {
        Some(Ok(number)) => ctx.integer(i64::try_from(number).unwrap_or(i64::MAX)),
        Some(Err(why)) => ctx.error(&why),
        None => ctx.error("ERR the module has not begun"),
    }
}

/// `FIDE.DIGEST proof host number [four words]`: what a follower has found.
pub(super) unsafe extern "C" fn fide_digest(ctx: *mut raw::RedisModuleCtx, argv: Argv, argc: c_int) -> c_int {
    let (ctx, args) = (Ctx(ctx), inner(argv, argc));
    if !is_proof(args.get(0).unwrap_or_default()) {
        return ctx.error("ERR FIDE.DIGEST is for this module's own use");
    }
    let args = args.rest();
    let number = |at: usize| std::str::from_utf8(args.get(at)?).ok()?.parse::<u64>().ok();
    let host = number(0).and_then(|host| u16::try_from(host).ok());
    let all = args.to_bytes();
    let digest = match all.get(2..) {
        Some([]) => Some(None),
        Some(&[data, deadlines, functions, numbered]) => {
            Digest::from_words([data, deadlines, functions, numbered]).map(Some)
        }
        _ => None,
    };
    let (Some(host), Some(number), Some(digest)) = (host, number(1), digest) else {
        return ctx.error("ERR FIDE.DIGEST is for this module's own use");
    };
    if hot(|hot| hot.mode.get()) == Mode::Leader {
        with_state(|state| state.collect(host, number, digest));
    }
    ctx.ok()
}
