// SPDX-License-Identifier: Apache-2.0
//! Rings of io_uring, whose operations the library does not see.
//!
//! | `FIDE_RACK_IO_URING` | a program that makes a ring |
//! |---|---|
//! | `tcp`, or nothing | keeps all its connections with TCP from then on. Once one has memory, it gets no ring (`ENOSYS`), as on a kernel without io_uring |
//! | `refuse` | gets no ring |
//! | `files` | gets it: no connection of it meets a ring |
//!
//! Rings are made by functions of liburing and by `syscall`, as libuv does it. One of a program that has its own system calls is not seen.

use std::{
    env,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use libc::{c_int, c_long, c_uint, c_void, size_t};

use crate::real::{self, Next};

const RULE: &str = "FIDE_RACK_IO_URING";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    Tcp,
    Refuse,
    Files,
}

/// Rings that were made, and those that are being made.
static MADE: AtomicU32 = AtomicU32::new(0);
/// A connection has memory, or is about to have it.
static HAS_CARRIED: AtomicBool = AtomicBool::new(false);

/// As it was when the program began.
pub(crate) fn starts() {
    rule();
}

fn rule() -> Rule {
    static OF: OnceLock<Rule> = OnceLock::new();
    *OF.get_or_init(|| match env::var(RULE).as_deref() {
        Ok("refuse") => Rule::Refuse,
        Ok("files") => Rule::Files,
        _ => Rule::Tcp,
    })
}

/// Whether connections may have memory.
pub(crate) fn is_free() -> bool {
    MADE.load(Ordering::SeqCst) == 0
}

/// Before a connection gets its memory. False: it stays with TCP.
pub(crate) fn carries() -> bool {
    HAS_CARRIED.store(true, Ordering::SeqCst);
    is_free()
}

/// Makes a ring; `fails`: whether it was not made.
fn makes<T>(refused: T, make: impl FnOnce() -> T, fails: impl Fn(&T) -> bool) -> T {
    match rule() {
        Rule::Files => return make(),
        Rule::Refuse => return refused,
        Rule::Tcp => {}
    }
    // Either this is seen by who takes memory, or what that has said is seen here.
    MADE.fetch_add(1, Ordering::SeqCst);
    let made = if HAS_CARRIED.load(Ordering::SeqCst) { refused } else { make() };
    if fails(&made) {
        MADE.fetch_sub(1, Ordering::SeqCst);
    }
    made
}

/// By `syscall`.
pub(crate) fn setup(make: impl FnOnce() -> c_long) -> c_long {
    let made = makes(None, || Some(make()), |made| made.is_none_or(|made| made < 0));
    made.unwrap_or_else(|| {
        real::fail(libc::ENOSYS);
        -1
    })
}

/// Of a liburing that something has loaded for itself; null: of none.
fn of_loaded(function: &Next) -> *mut c_void {
    // SAFETY: the name ends with a 0. What is loaded already runs nothing.
    let library = unsafe { libc::dlopen(c"liburing.so.2".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if library.is_null() { library } else { function.of(library) }
}

/// liburing's functions answer with a number below 0, and leave `errno` alone.
fn of_liburing(function: &Next, make: impl FnOnce(*mut c_void) -> c_int) -> c_int {
    let found = function.get();
    let found = if found.is_null() { of_loaded(function) } else { found };
    if found.is_null() {
        return -libc::ENOSYS;
    }
    makes(-libc::ENOSYS, || make(found), |made| *made < 0)
}

macro_rules! liburing {
    ($($symbol:literal $name:ident($($arg:ident: $type:ty),*);)*) => {
        $(
            /// # Safety
            /// That of the function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
                static NEXT: Next = Next::new($symbol);
                of_liburing(&NEXT, |found| {
                    // SAFETY: the function of this name has these arguments and this result.
                    let call: unsafe extern "C" fn($($type),*) -> c_int = unsafe { std::mem::transmute(found) };
                    // SAFETY: the caller's.
                    unsafe { call($($arg),*) }
                })
            }
        )*
    };
}

liburing! {
    c"io_uring_queue_init" io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint);
    c"io_uring_queue_init_params" io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, params: *mut c_void);
    c"io_uring_queue_init_mem" io_uring_queue_init_mem(entries: c_uint, ring: *mut c_void, params: *mut c_void, memory: *mut c_void, len: size_t);
    c"io_uring_setup" io_uring_setup(entries: c_uint, params: *mut c_void);
}
