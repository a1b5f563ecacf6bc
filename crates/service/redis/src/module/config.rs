// SPDX-License-Identifier: Apache-2.0
//! Settings that can change while the server runs: `CONFIG SET fide.*`, also in redis.conf after the module.

use std::{
    ffi::{c_char, c_int, c_void},
    ptr,
};

use redis_module::raw;

use super::hot;
use crate::redis::{Ctx, api};

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
    hot(|hot| hot.passes_on.get()).into()
}

unsafe extern "C" fn set_proxy(
    _: *const c_char,
    value: c_int,
    _: *mut c_void,
    _: *mut *mut raw::RedisModuleString,
) -> c_int {
    hot(|hot| hot.passes_on.set(value != 0));
    0
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
    let result = api!(RedisModule_RegisterBoolConfig(
        ctx.0,
        c"follower-proxy".as_ptr(),
        1,
        raw::REDISMODULE_CONFIG_DEFAULT,
        Some(get_proxy),
        Some(set_proxy),
        None,
        ptr::null_mut()
    ));
    if result != 0 {
        return Err("Redis refuses the setting fide.follower-proxy".to_owned());
    }
    if api!(RedisModule_LoadConfigs(ctx.0)) != 0 {
        return Err("a setting fide.* in redis.conf is wrong: fide.reads is leader, any or stale; fide.follower-proxy yes or no".to_owned());
    }
    Ok(())
}
