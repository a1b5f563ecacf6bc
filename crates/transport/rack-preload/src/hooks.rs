// SPDX-License-Identifier: Apache-2.0
//! What runs as the program begins, forks and ends.

use crate::{conn, monitor, peers, process, real, rings, set, stats};

extern "C" fn starts() {
    real::resolve();
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
extern "C" fn ends() {
    if process::is_own() {
        conn::ends();
        stats::ends();
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static STARTS: extern "C" fn() = starts;

#[used]
#[unsafe(link_section = ".fini_array")]
static ENDS: extern "C" fn() = ends;
