// SPDX-License-Identifier: Apache-2.0
//! The functions that come next after those of this library: the C library's, as a rule.
//!
//! They are called instead of the system calls, so that what else stands there, and the cancellation of threads, goes on.

use libc::{
    c_char, c_int, c_long, c_short, c_uint, c_ulong, c_void, epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t,
    off_t, pollfd, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval,
};
use std::{
    ffi::CStr,
    mem,
    sync::atomic::{AtomicPtr, Ordering},
};

/// What `dlsym` finds, once.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// That of a library that is loaded.
    pub(crate) fn of(&self, library: *mut c_void) -> *mut c_void {
        // SAFETY: the name ends with a 0, and the library stays.
        unsafe { libc::dlsym(library, self.name.as_ptr().cast::<c_char>()) }
    }

    pub(crate) fn get(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if !found.is_null() {
            return found;
        }
        // SAFETY: the name ends with a 0.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr().cast::<c_char>()) };
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

pub(crate) fn fail(errno: c_int) {
    // SAFETY: it is this thread's.
    unsafe { *libc::__errno_location() = errno };
}

pub(crate) fn errno() -> c_int {
    // SAFETY: it is this thread's.
    unsafe { *libc::__errno_location() }
}

/// What a function gives that fails.
trait Failed {
    const FAILED: Self;
}

impl Failed for c_int {
    const FAILED: Self = -1;
}

impl Failed for c_long {
    const FAILED: Self = -1;
}

impl Failed for ssize_t {
    const FAILED: Self = -1;
}

impl Failed for *mut c_void {
    const FAILED: Self = std::ptr::null_mut();
}

macro_rules! next {
    ($($symbol:literal $name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        /// Before the program begins: a handler of a signal finds them so.
        pub(crate) fn resolve() {
            $(let _ = nexts::$name.get();)*
        }

        #[allow(non_upper_case_globals, reason = "named as the functions")]
        mod nexts {
            $(pub(super) static $name: super::Next = super::Next::new($symbol);)*
        }

        $(
            /// # Safety
            /// That of the function of this name.
            pub(crate) unsafe fn $name($($arg: $type),*) -> $result {
                let found = nexts::$name.get();
                if found.is_null() {
                    fail(libc::ENOSYS);
                    return <$result as Failed>::FAILED;
                }
                // SAFETY: the function of this name has these arguments and this result. A variable one is one register, as it is here.
                let call: unsafe extern "C" fn($($type),*) -> $result = unsafe { mem::transmute(found) };
                // SAFETY: the caller's.
                unsafe { call($($arg),*) }
            }
        )*
    };
}

next! {
    c"read" read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t;
    c"readv" readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    c"preadv2" preadv2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t;
    c"pwritev2" pwritev2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t;
    c"recv" recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    c"recvfrom" recvfrom(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t) -> ssize_t;
    c"recvmsg" recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    c"recvmmsg" recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    c"write" write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t;
    c"writev" writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    c"send" send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    c"sendto" sendto(fd: c_int, buf: *const c_void, len: size_t, flags: c_int, to: *const sockaddr, to_len: socklen_t) -> ssize_t;
    c"sendmsg" sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    c"sendmmsg" sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    c"sendfile64" sendfile64(out: c_int, from: c_int, offset: *mut i64, count: size_t) -> ssize_t;
    c"sendfile" sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    c"splice" splice(from: c_int, from_at: *mut i64, to: c_int, to_at: *mut i64, len: size_t, flags: c_uint) -> ssize_t;
    c"vdprintf" vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
    c"__vdprintf_chk" __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
    c"shutdown" shutdown(fd: c_int, how: c_int) -> c_int;
    c"close" close(fd: c_int) -> c_int;
    c"close_range" close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    c"dup" dup(fd: c_int) -> c_int;
    c"dup2" dup2(fd: c_int, to: c_int) -> c_int;
    c"dup3" dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
    c"fcntl" fcntl(fd: c_int, command: c_int, arg: *mut c_void) -> c_int;
    c"fcntl64" fcntl64(fd: c_int, command: c_int, arg: *mut c_void) -> c_int;
    c"ioctl" ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int;
    c"syscall" syscall(number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long) -> c_long;
    c"posix_spawn_file_actions_adddup2" posix_spawn_file_actions_adddup2(actions: *mut c_void, fd: c_int, to: c_int) -> c_int;
    c"posix_spawn" posix_spawn(child: *mut c_int, path: *const c_char, actions: *const c_void, how: *const c_void, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    c"posix_spawnp" posix_spawnp(child: *mut c_int, file: *const c_char, actions: *const c_void, how: *const c_void, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    c"fdopen" fdopen(fd: c_int, mode: *const c_char) -> *mut c_void;
    c"popen" popen(command: *const c_char, mode: *const c_char) -> *mut c_void;
    c"system" system(command: *const c_char) -> c_int;
    c"execve" execve(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    c"execv" execv(path: *const c_char, arguments: *const *const c_char) -> c_int;
    c"execvp" execvp(file: *const c_char, arguments: *const *const c_char) -> c_int;
    c"execvpe" execvpe(file: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    c"fexecve" fexecve(program: c_int, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    c"execveat" execveat(at: c_int, path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char, flags: c_int) -> c_int;
    c"listen" listen(fd: c_int, backlog: c_int) -> c_int;
    c"accept" accept(fd: c_int, from: *mut sockaddr, from_len: *mut socklen_t) -> c_int;
    c"accept4" accept4(fd: c_int, from: *mut sockaddr, from_len: *mut socklen_t, flags: c_int) -> c_int;
    c"connect" connect(fd: c_int, to: *const sockaddr, to_len: socklen_t) -> c_int;
    c"setsockopt" setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    c"getsockopt" getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    c"poll" poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int;
    c"ppoll" ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    c"select" select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int;
    c"pselect" pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    c"epoll_create" epoll_create(size: c_int) -> c_int;
    c"epoll_create1" epoll_create1(flags: c_int) -> c_int;
    c"epoll_ctl" epoll_ctl(set: c_int, change: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    c"epoll_pwait" epoll_pwait(set: c_int, events: *mut epoll_event, most: c_int, timeout_ms: c_int, mask: *const sigset_t) -> c_int;
    c"epoll_wait" epoll_wait(set: c_int, events: *mut epoll_event, most: c_int, timeout_ms: c_int) -> c_int;
    c"epoll_pwait2" epoll_pwait2(set: c_int, events: *mut epoll_event, most: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int;
}

/// Which of the flags of `poll` are of these bits.
pub(crate) fn bits(flags: c_int) -> c_short {
    c_short::try_from(flags).unwrap_or(0)
}
