// SPDX-License-Identifier: Apache-2.0
//! `fdopen` of a connection: the C library reads and writes its own files without the functions of this library, and so gets one that
//! reads and writes by them (`fopencookie`).

use std::sync::atomic::Ordering;

use libc::{FILE, c_char, c_int, c_void, size_t, ssize_t};

use rustix::net::{SocketType, sockopt};

use crate::{
    before, calls,
    conn::{borrowed, ours},
    data, real,
};

/// Where a file has its descriptor (`struct _IO_FILE` of glibc for 64 bits, which is part of its binary interface), in bytes, and what one
/// that was made by `fopencookie` has there.
const FILENO_AT: usize = 112;
const NO_FILENO: c_int = -2;

/// `cookie_io_functions_t`
#[repr(C)]
struct Functions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: Option<unsafe extern "C" fn(*mut c_void, *mut i64, c_int) -> c_int>,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
}

fn fd_of(cookie: *mut c_void) -> c_int {
    c_int::try_from(cookie.addr()).unwrap_or(-1)
}

unsafe extern "C" fn reads(cookie: *mut c_void, into: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: the C library's: there is room for so many bytes.
    unsafe { data::read(fd_of(cookie), into.cast(), len) }
}

/// All of them, as the C library takes less for an error; and that is no negative number here.
unsafe extern "C" fn writes(cookie: *mut c_void, from: *const c_char, len: size_t) -> ssize_t {
    let mut written = 0;
    while written < len {
        // SAFETY: the C library's: so many bytes are there.
        match usize::try_from(unsafe { data::write(fd_of(cookie), from.add(written).cast(), len - written) }) {
            Ok(more @ 1..) => written += more,
            _ => break,
        }
    }
    ssize_t::try_from(written).unwrap_or(ssize_t::MAX)
}

unsafe extern "C" fn closes(cookie: *mut c_void) -> c_int {
    // SAFETY: the file's own descriptor.
    unsafe { calls::close(fd_of(cookie)) }
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut c_void {
    let Some(conn) = ours(fd) else {
        // It may be connected later.
        if fd >= 0 && sockopt::socket_type(borrowed(fd)) == Ok(SocketType::STREAM) {
            before::sets(fd);
        }
        // SAFETY: the caller's.
        return unsafe { real::fdopen(fd, mode) };
    };
    conn.has_file.store(true, Ordering::Relaxed);
    let cookie = std::ptr::without_provenance_mut(usize::try_from(fd).unwrap_or(usize::MAX));
    let functions = Functions { read: reads, write: writes, seek: None, close: closes };
    // SAFETY: the mode is the caller's, and the functions are those of the C library's type.
    let file = unsafe { fopencookie(cookie, mode, functions) };
    if !file.is_null() {
        // SAFETY: a file has more bytes than that, and nobody else has it yet. It is aligned as a pointer is.
        let fileno = unsafe { &mut *file.cast::<u8>().add(FILENO_AT).cast::<c_int>() };
        if *fileno == NO_FILENO {
            *fileno = fd;
        }
    }
    file.cast()
}
