// SPDX-License-Identifier: Apache-2.0
//! What runs as the program begins, forks and ends.

use std::ptr;

use libc::{c_int, c_void};

use crate::{conn, exec, monitor, peers, process, real, rings, set, stats};

unsafe extern "C" {
    fn __cxa_atexit(what: unsafe extern "C" fn(*mut c_void), with: *mut c_void, of_library: *mut c_void) -> c_int;
}

extern "C" fn starts() {
    // Of no library, and before the program's own: it comes behind those of the program, and behind what its libraries do as they end, which
    // may still write.
    // SAFETY: the function stays, as the library is never unloaded.
    unsafe { __cxa_atexit(ends, ptr::null_mut(), ptr::null_mut()) };
    real::resolve();
    exec::resolve();
    process::starts();
    monitor::starts();
    rings::starts();
    peers::starts();
    stats::starts();
    if monitor::is_named() {
        // SAFETY: the functions stay: the library is never unloaded.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child)) };
    }
}

unsafe extern "C" fn before_fork() {
    monitor::before_fork();
    set::before_fork();
}

unsafe extern "C" fn after_fork() {
    set::after_fork();
    monitor::after_fork();
}

unsafe extern "C" fn in_child() {
    process::starts();
    fide_rack::end::in_child();
    set::in_child();
    monitor::in_child();
}

/// What the program has not closed is closed as it would have been.
unsafe extern "C" fn ends(_: *mut c_void) {
    if process::is_own() {
        conn::ends();
        stats::ends();
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static STARTS: extern "C" fn() = starts;
