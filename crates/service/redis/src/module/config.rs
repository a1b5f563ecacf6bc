// SPDX-License-Identifier: Apache-2.0
//! Settings that can change while the server runs: `CONFIG SET fide.*`, also in redis.conf after the module.

use std::{
    cell::{Cell, RefCell},
    ffi::{c_char, c_int, c_longlong, c_void},
    ptr,
    time::Duration,
};

use redis_module::raw;

use super::{
    hot,
    stopped::{AFTER_MAX_MS, Guard},
};
use crate::redis::{Ctx, Text, api};

/// Between two comparisons of the servers' data, by default, and at most.
const COMPARE_EVERY_DEFAULT_S: i64 = 3600;
const COMPARE_EVERY_MAX_S: i64 = 366 * 24 * 3600;

thread_local! {
    static STOPPED_AFTER_MS: Cell<i64> = const { Cell::new(0) };
    static COMPARE_EVERY_S: Cell<i64> = const { Cell::new(COMPARE_EVERY_DEFAULT_S) };
    static GUARD: RefCell<Option<Guard>> = const { RefCell::new(None) };
}

/// `fide.reads`: where clients may read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reads {
    /// Only at the leader.
    Leader,
    /// At every server, and no read misses a write that was acknowledged before it.
    Any,
    /// At every server, at once: an answer may be as old as the server is behind.
    Stale,
}

const READS: [(&std::ffi::CStr, Reads); 3] =
    [(c"leader", Reads::Leader), (c"any", Reads::Any), (c"stale", Reads::Stale)];

/// `fide.follower-proxy`: what a follower does with a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FollowerProxy {
    /// It refuses it, and says who leads.
    No,
    /// It passes it on to the leader.
    Yes,
    /// It refuses it as a node of Redis Cluster does.
    Moved,
}

const PROXY: [(&std::ffi::CStr, FollowerProxy); 3] =
    [(c"no", FollowerProxy::No), (c"yes", FollowerProxy::Yes), (c"moved", FollowerProxy::Moved)];

unsafe extern "C" fn get(_: *const c_char, _: *mut c_void) -> c_int {
    let now = hot(|hot| hot.reads.get());
    let place = READS.iter().position(|(_, reads)| *reads == now).unwrap_or(1);
    c_int::try_from(place).unwrap_or(1)
}

unsafe extern "C" fn set(_: *const c_char, value: c_int, _: *mut c_void, _: *mut *mut raw::RedisModuleString) -> c_int {
    if let Some((_, reads)) = usize::try_from(value).ok().and_then(|value| READS.get(value)) {
        hot(|hot| hot.reads.set(*reads));
    }
    0
}

unsafe extern "C" fn get_proxy(_: *const c_char, _: *mut c_void) -> c_int {
    let now = hot(|hot| hot.proxy.get());
    let place = PROXY.iter().position(|(_, proxy)| *proxy == now).unwrap_or(1);
    c_int::try_from(place).unwrap_or(1)
}

unsafe extern "C" fn set_proxy(
    _: *const c_char,
    value: c_int,
    _: *mut c_void,
    _: *mut *mut raw::RedisModuleString,
) -> c_int {
    if let Some((_, proxy)) = usize::try_from(value).ok().and_then(|value| PROXY.get(value)) {
        hot(|hot| hot.proxy.set(*proxy));
    }
    0
}

unsafe extern "C" fn get_stopped(_: *const c_char, _: *mut c_void) -> c_longlong {
    STOPPED_AFTER_MS.get()
}

unsafe extern "C" fn set_stopped(
    _: *const c_char,
    value: c_longlong,
    _: *mut c_void,
    error: *mut *mut raw::RedisModuleString,
) -> c_int {
    // The former guard has ended before another one begins.
    GUARD.take();
    STOPPED_AFTER_MS.set(0);
    let Some(after_ms) = u64::try_from(value).ok().filter(|after| *after > 0) else { return 0 };
    match Guard::start(Duration::from_millis(after_ms)) {
        Ok(guard) => {
            GUARD.set(Some(guard));
            STOPPED_AFTER_MS.set(value);
            0
        }
        Err(why) => {
            let text = Text::new(format!("this server cannot be guarded, and is not now: {why}").as_bytes());
            // SAFETY: Redis gives a place for the reason, and takes it over.
            unsafe { *error = text.into_raw() };
            1
        }
    }
}

unsafe extern "C" fn get_compare(_: *const c_char, _: *mut c_void) -> c_longlong {
    COMPARE_EVERY_S.get()
}

unsafe extern "C" fn set_compare(
    _: *const c_char,
    value: c_longlong,
    _: *mut c_void,
    _: *mut *mut raw::RedisModuleString,
) -> c_int {
    COMPARE_EVERY_S.set(value);
    0
}

/// `fide.compare-every`: the time between two comparisons; none: never.
pub(super) fn compare_every() -> Option<Duration> {
    u64::try_from(COMPARE_EVERY_S.get()).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs)
}

/// # Errors
/// Redis refuses a setting, or a value of one in redis.conf.
pub(super) fn register(ctx: Ctx) -> Result<(), String> {
    let mut names = READS.map(|(name, _)| name.as_ptr());
    let numbers: [c_int; READS.len()] = [0, 1, 2];
    let result = api!(RedisModule_RegisterEnumConfig(
        ctx.0,
        c"reads".as_ptr(),
        1,
        raw::REDISMODULE_CONFIG_DEFAULT,
        names.as_mut_ptr(),
        numbers.as_ptr(),
        c_int::try_from(READS.len()).unwrap_or(0),
        Some(get),
        Some(set),
        None,
        ptr::null_mut()
    ));
    if result != 0 {
        return Err("Redis refuses the setting fide.reads".to_owned());
    }
    let mut names = PROXY.map(|(name, _)| name.as_ptr());
    let result = api!(RedisModule_RegisterEnumConfig(
        ctx.0,
        c"follower-proxy".as_ptr(),
        1,
        raw::REDISMODULE_CONFIG_DEFAULT,
        names.as_mut_ptr(),
        numbers.as_ptr(),
        c_int::try_from(PROXY.len()).unwrap_or(0),
        Some(get_proxy),
        Some(set_proxy),
        None,
        ptr::null_mut()
    ));
    if result != 0 {
        return Err("Redis refuses the setting fide.follower-proxy".to_owned());
    }
    let result = api!(RedisModule_RegisterNumericConfig(
        ctx.0,
        c"stopped-after".as_ptr(),
        0,
        raw::REDISMODULE_CONFIG_DEFAULT,
        0,
        AFTER_MAX_MS,
        Some(get_stopped),
        Some(set_stopped),
        None,
        ptr::null_mut()
    ));
    if result != 0 {
        return Err("Redis refuses the setting fide.stopped-after".to_owned());
    }
    let result = api!(RedisModule_RegisterNumericConfig(
        ctx.0,
        c"compare-every".as_ptr(),
        COMPARE_EVERY_DEFAULT_S,
        raw::REDISMODULE_CONFIG_DEFAULT,
        0,
        COMPARE_EVERY_MAX_S,
        Some(get_compare),
        Some(set_compare),
        None,
        ptr::null_mut()
    ));
    if result != 0 {
        return Err("Redis refuses the setting fide.compare-every".to_owned());
    }
    if api!(RedisModule_LoadConfigs(ctx.0)) != 0 {
        return Err("a setting fide.* in redis.conf is wrong: fide.reads is leader, any or stale; fide.follower-proxy yes, no or moved; fide.stopped-after milliseconds, 0 for never; fide.compare-every seconds, 0 for never".to_owned());
    }
    Ok(())
}
