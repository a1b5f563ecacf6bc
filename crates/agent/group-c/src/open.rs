// SPDX-License-Identifier: Apache-2.0
//! Options checked; a member made and ended.

use std::time::Duration;

use fide_client::capi::boundary::{Failure, guard, invalid, needed, sized, text};
use fide_group::{Config, ConnectOptions, Key, Member, hsuc, huc};
use libc::{c_char, c_int};

use crate::{FIDE_GROUP_HOSTS_MAX, FideGroup, FideGroupOptions, FideGroupProtocol, failure::failed, handle::AnyMember};

const WINDOW: u64 = 32;

/// # Safety
/// `hosts` is null or has `len` pointers, each null or to a NUL-terminated string.
unsafe fn hosts_of<'a>(hosts: *const *const c_char, len: usize) -> Result<Vec<&'a str>, Failure> {
    if len == 0 {
        return Err(invalid("hosts_len is 0; name the hosts of the group"));
    }
    if hosts.is_null() {
        return Err(invalid("hosts is NULL; pass an array of host names"));
    }
    if len > FIDE_GROUP_HOSTS_MAX {
        return Err(invalid(&format!("hosts_len is {len}; a group has at most {FIDE_GROUP_HOSTS_MAX} hosts")));
    }
    let host = |at| {
        // SAFETY: `len` pointers are readable at `hosts`, each null or to a string, by the contract.
        unsafe { needed(hosts.add(at).read(), "a name in hosts") }
    };
    (0..len).map(host).collect()
}

/// # Safety
/// As fide_group_open requires of the texts.
unsafe fn config_of<S>(given: &FideGroupOptions, setting: S) -> Result<Config<S>, Failure> {
    // SAFETY: by the contract.
    let (group, hosts, key, state_dir) = unsafe {
        (
            needed(given.group, "group")?,
            hosts_of(given.hosts, given.hosts_len)?,
            needed(given.key, "key")?,
            needed(given.state_dir, "state_dir")?,
        )
    };
    let key: Key = key.parse().map_err(|why| invalid(&format!("key: {why}")))?;
    if state_dir.is_empty() {
        return Err(invalid("state_dir is empty; name the directory of this host's record of the group"));
    }
    let mut config = Config::new(group, &hosts, key, state_dir, setting);
    if given.port > 0 {
        config.port = u16::try_from(given.port)
            .map_err(|_| invalid(&format!("port is {}; a UDP port is at most 65535", given.port)))?;
    }
    if given.resend_us > 0 {
        config.resend = Duration::from_micros(given.resend_us.into());
    }
    if given.tail_max_bytes > 0 {
        config.tail_max = given.tail_max_bytes;
    }
    if given.payload_max_bytes > 0 {
        config.payload_max = given.payload_max_bytes;
    }
    if given.compact_bytes > 0 {
        config.compact_bytes = given.compact_bytes;
    }
    config = match given.durable {
        0 => config,
        1 => config.durable(),
        other => return Err(invalid(&format!("durable is {other}; it is 0 or 1"))),
    };
    Ok(config)
}

/// Joins with the agent of this host, and begins to found or join the group; fide_group_wait does the rest.
/// On success `*out` is the handle, to be used by one thread at a time. Returns 0 or a negative errno:
/// -EINVAL for options that cannot be (the message names the field), -ENOENT or -ECONNREFUSED without an
/// agent, -EHOSTUNREACH for an unknown host, -EBUSY if another process of the group runs on this host,
/// -EADDRINUSE for a port in use, -EBADMSG for a damaged record or log, -ERANGE if heartbeats are too short for
/// FIDE_GROUP_PROTOCOL_HUC.
///
/// # Safety
/// `options` points to a fide_group_options whose `size` is set, and whose texts are NUL-terminated strings
/// or NULL; `hosts` has `hosts_len` of them; `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_open(options: *const FideGroupOptions, out: *mut *mut FideGroup) -> c_int {
    guard(|| {
        if out.is_null() {
            return Err(invalid("out is NULL; pass the address of a fide_group_t pointer"));
        }
        // SAFETY: writable by the contract.
        unsafe { out.write(std::ptr::null_mut()) };
        // SAFETY: by the contract; zero is valid for fide_group_options (null pointers and numbers).
        let given = unsafe { sized(options, "fide_group_options") }?
            .ok_or_else(|| invalid("options is NULL; a group needs a name, hosts, a key and a state_dir"))?;
        let mut connect = ConnectOptions::default();
        // SAFETY: the strings are NUL-terminated or NULL, by the contract.
        let (socket, program) = unsafe { (text(given.socket, "socket")?, text(given.program, "program")?) };
        connect.path = socket.map(Into::into);
        connect.program = program.unwrap_or_default().to_owned();
        if given.call_timeout_ms > 0 {
            connect.call_timeout = Duration::from_millis(given.call_timeout_ms.into());
        }
        let member = match given.protocol {
            protocol if protocol == FideGroupProtocol::Hsuc as u32 => {
                let window = if given.window > 0 { given.window.into() } else { WINDOW };
                // SAFETY: by the contract.
                let config = unsafe { config_of(&given, hsuc(window)) }?;
                AnyMember::Hsuc(Box::new(Member::open(config, connect).map_err(failed)?))
            }
            protocol if protocol == FideGroupProtocol::Huc as u32 => {
                // SAFETY: by the contract.
                let config = unsafe { config_of(&given, huc()) }?;
                AnyMember::Huc(Box::new(Member::open(config, connect).map_err(failed)?))
            }
            other => return Err(invalid(&format!("protocol is {other}; use a fide_group_protocol"))),
        };
        // SAFETY: writable by the contract.
        unsafe { out.write(Box::into_raw(Box::new(FideGroup::new(member)))) };
        Ok(0)
    })
}

/// Ends the use of a handle; NULL is allowed. This does not take the member out of the group: until the
/// process ends the others wait for it, unless its standing is FIDE_STANDING_REMOVED. So end the process
/// next.
///
/// # Safety
/// `group` came from fide_group_open, is not closed yet, and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_close(group: *mut FideGroup) {
    guard(|| {
        if !group.is_null() {
            // SAFETY: from Box::into_raw in fide_group_open, by the contract; nobody else uses it.
            drop(unsafe { Box::from_raw(group) });
        }
        Ok(0)
    });
}
