// SPDX-License-Identifier: Apache-2.0
//! The functions of the C library that make, name, set and close sockets.

use std::sync::atomic::{AtomicI32, Ordering};

use fide_rack::window::Bell;
use fide_sys::tcp::keeps_syn;
use libc::{c_int, c_long, c_uint, c_void, sockaddr, socklen_t};
use rustix::net::{SocketType, sockopt};

use crate::{
    before,
    conn::{CONNS, borrowed, connects, dups, enters, forgets, is_not_followed, leaves},
    data::is_kept,
    monitor, peers, process,
    real::{self, errno},
    rings, set,
};

const TCP_SAVE_SYN: c_int = 27;
/// `CLOSE_RANGE_CLOEXEC` of `<linux/close_range.h>`.
const CLOSE_RANGE_CLOEXEC: c_int = 4;

/// A descriptor is about to be closed, or to be another one's.
fn goes(fd: c_int) {
    if process::is_own() {
        peers::clears(fd);
        leaves(fd);
        set::leaves(fd);
    }
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    goes(fd);
    // SAFETY: the caller's.
    unsafe { real::close(fd) }
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if flags & CLOSE_RANGE_CLOEXEC == 0 && process::is_own() {
        let fds: Vec<c_int> = CONNS.all().map(|(fd, _)| fd).chain(set::all()).collect();
        fds.into_iter().filter(|fd| fd.cast_unsigned() >= first && fd.cast_unsigned() <= last).for_each(goes);
        let number = |fd: c_uint| c_int::try_from(fd).unwrap_or(c_int::MAX);
        peers::clears_all(number(first), number(last));
    }
    // SAFETY: the caller's.
    unsafe { real::close_range(first, last, flags) }
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn closefrom(first: c_int) {
    // SAFETY: the caller's.
    unsafe { close_range(first.max(0).cast_unsigned(), c_uint::MAX, 0) };
}

/// libuv closes descriptors so.
///
/// # Safety
/// That of the function. It takes as many numbers as there are registers for those of a system call, whatever the call needs.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    if number == libc::SYS_close
        && let Ok(fd) = c_int::try_from(a)
    {
        goes(fd);
    }
    // SAFETY: the caller's.
    let call = || unsafe { real::syscall(number, a, b, c, d, e, f) };
    if number == libc::SYS_io_uring_setup { rings::setup(call) } else { call() }
}

/// A descriptor has got another number, too, where nothing else is any more.
fn names(fd: c_int, to: c_int) -> c_int {
    if to >= 0 && fd != to {
        if to <= libc::STDERR_FILENO || !process::is_own() {
            // As one does before another program is begun that knows nothing of it.
            is_not_followed(fd);
        }
        if process::is_own() {
            peers::dups(fd, to);
            dups(fd, to);
            set::dups(fd, to);
        }
    }
    to
}

fn is_open(fd: c_int) -> bool {
    fd >= 0 && rustix::io::fcntl_getfd(borrowed(fd)).is_ok()
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: the caller's.
    names(fd, unsafe { real::dup(fd) })
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup2(fd: c_int, to: c_int) -> c_int {
    if fd != to && is_open(fd) {
        goes(to);
    }
    // SAFETY: the caller's.
    names(fd, unsafe { real::dup2(fd, to) })
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    if fd != to && flags & !libc::O_CLOEXEC == 0 && is_open(fd) {
        goes(to);
    }
    // SAFETY: the caller's.
    names(fd, unsafe { real::dup3(fd, to, flags) })
}

fn after_fcntl(fd: c_int, command: c_int, arg: *mut c_void, result: c_int) -> c_int {
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => return names(fd, result),
        // Signals come by TCP's bytes.
        libc::F_SETFL if arg.addr() & usize::try_from(libc::O_ASYNC).unwrap_or(0) != 0 => _ = is_not_followed(fd),
        _ => {}
    }
    result
}

fn before_fcntl(fd: c_int, command: c_int, arg: *mut c_void) {
    if command == libc::F_SETFD && arg.addr() & usize::try_from(libc::FD_CLOEXEC).unwrap_or(0) == 0 && is_kept(fd) {
        is_not_followed(fd);
    }
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fcntl(fd: c_int, command: c_int, arg: *mut c_void) -> c_int {
    before_fcntl(fd, command, arg);
    // SAFETY: the caller's.
    after_fcntl(fd, command, arg, unsafe { real::fcntl(fd, command, arg) })
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, arg: *mut c_void) -> c_int {
    before_fcntl(fd, command, arg);
    // SAFETY: the caller's.
    after_fcntl(fd, command, arg, unsafe { real::fcntl64(fd, command, arg) })
}

/// A program that is begun so gets a descriptor.
///
/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn posix_spawn_file_actions_adddup2(actions: *mut c_void, fd: c_int, to: c_int) -> c_int {
    is_not_followed(fd);
    // SAFETY: the caller's.
    unsafe { real::posix_spawn_file_actions_adddup2(actions, fd, to) }
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    // Also while the monitor is away: this one may be accepted from for long.
    if fd >= 0 && monitor::is_named() {
        let before = errno();
        // Of another socket it fails, and that is no harm.
        let _ = keeps_syn(borrowed(fd));
        real::fail(before);
    }
    // SAFETY: the caller's.
    unsafe { real::listen(fd, backlog) }
}

fn accepted(listener: c_int, fd: c_int) -> c_int {
    // It is new, also where the C library has closed another one of its number.
    before::clears(fd);
    if fd >= 0 && monitor::is_there() {
        let (mut keeps, mut len): (c_int, socklen_t) = (0, 4);
        let before = errno();
        // SAFETY: both are there, and the length is that of the number.
        let result = unsafe {
            real::getsockopt(listener, libc::IPPROTO_TCP, TCP_SAVE_SYN, (&raw mut keeps).cast(), &raw mut len)
        };
        if result == 0 && keeps != 0 {
            enters(fd);
        }
        real::fail(before);
    } else if fd >= 0 {
        forgets(fd);
    }
    fd
}

/// Of one of the functions below.
///
/// # Safety
/// That of the function.
unsafe fn told(
    listener: c_int,
    address: *const sockaddr,
    len: *const socklen_t,
    accepts: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the caller's.
    let room = if len.is_null() { 0 } else { unsafe { *len } };
    let fd = accepts();
    // SAFETY: the caller's.
    unsafe { peers::accepted(fd, address, len, room) };
    accepted(listener, fd)
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the caller's.
    unsafe { told(fd, address, len, || real::accept(fd, address, len)) }
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    // SAFETY: the caller's.
    unsafe { told(fd, address, len, || real::accept4(fd, address, len, flags)) }
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the caller's.
    let result = unsafe { peers::connected(fd, address, len, real::connect(fd, address, len)) };
    if fd < 0 || !monitor::is_named() || address.is_null() || (len as usize) < size_of::<sockaddr>() {
        return result;
    }
    let before = errno();
    // SAFETY: the caller's: so many bytes are there.
    let family = c_int::from(unsafe { (*address).sa_family });
    let is_stream = || sockopt::socket_type(borrowed(fd)) == Ok(SocketType::STREAM);
    if matches!(family, libc::AF_INET | libc::AF_INET6) && is_stream() {
        match (result, before) {
            (0, _) if CONNS.get(fd).is_none_or(|conn| conn.is_tcp()) => enters(fd),
            (-1, libc::EINPROGRESS | libc::EINTR) => connects(fd),
            _ => {}
        }
    } else if family == libc::AF_UNSPEC && result == 0 {
        leaves(fd);
        // The other end of its next connection is another one, and the monitor knows it by this one still.
        before::sets(fd);
    }
    real::fail(before);
    result
}

/// # Safety
/// `value` is null, or so many bytes are there.
unsafe fn number(value: *const c_void, len: socklen_t) -> Option<c_int> {
    // SAFETY: the caller's; it may lie anywhere.
    (!value.is_null() && len as usize >= size_of::<c_int>()).then(|| unsafe { value.cast::<c_int>().read_unaligned() })
}

fn kept(conn: &crate::conn::Conn, level: c_int, name: c_int) -> Option<&AtomicI32> {
    match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) if conn.is_attached() => Some(&conn.no_delay),
        (libc::IPPROTO_TCP, libc::TCP_CORK) if conn.is_attached() => Some(&conn.cork),
        _ => None,
    }
}

/// What the program has set, where the kernel has something else.
fn known(conn: &crate::conn::Conn, level: c_int, name: c_int) -> Option<c_int> {
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) if conn.is_attached() => c_int::try_from(conn.low_at()).ok(),
        _ => kept(conn, level, name).map(|kept| kept.load(Ordering::Relaxed)),
    }
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    if let Some(conn) = CONNS.get(fd).filter(|conn| !conn.is_tcp()) {
        // SAFETY: the caller's.
        let set = unsafe { number(value, len) };
        if let (Some(kept), Some(set)) = (kept(&conn, level, name), set) {
            kept.store((set != 0).into(), Ordering::Relaxed);
            return 0;
        }
        if let (libc::SOL_SOCKET, libc::SO_RCVLOWAT, Some(set)) = (level, name, set) {
            if conn.is_attached() {
                conn.sets_low_at(set);
                return 0;
            }
            // SAFETY: the caller's.
            let result = unsafe { real::setsockopt(fd, level, name, value, len) };
            conn.takes_low_at(fd);
            return result;
        }
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO) => {
                conn.is_timed.store(true, Ordering::Relaxed);
                // SAFETY: the caller's.
                let result = unsafe { real::setsockopt(fd, level, name, value, len) };
                if result == 0 {
                    // SAFETY: the kernel has taken it: a time is there, which may lie anywhere.
                    let limit = unsafe { value.cast::<libc::timeval>().read_unaligned() };
                    let which = if name == libc::SO_RCVTIMEO { Bell::Message } else { Bell::Room };
                    conn.is_at_once[which as usize].store(limit.tv_sec < 0, Ordering::Relaxed);
                }
                return result;
            }
            (libc::SOL_SOCKET, libc::SO_LINGER) if len as usize >= size_of::<libc::linger>() && !value.is_null() => {
                // SAFETY: the caller's; it may lie anywhere.
                let linger = unsafe { value.cast::<libc::linger>().read_unaligned() };
                conn.linger_s.store(if linger.l_onoff == 0 { -1 } else { linger.l_linger }, Ordering::Relaxed);
            }
            // A program that is refused kernel TLS, or to send without a copy, does without.
            (libc::SOL_SOCKET, libc::SO_ZEROCOPY | libc::SO_OOBINLINE)
            | (libc::IPPROTO_TCP, libc::TCP_ULP | libc::TCP_REPAIR)
                if !is_not_followed(fd) && name != libc::SO_OOBINLINE =>
            {
                real::fail(libc::EOPNOTSUPP);
                return -1;
            }
            _ => {}
        }
    }
    // SAFETY: the caller's.
    unsafe { real::setsockopt(fd, level, name, value, len) }
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if let Some(conn) = CONNS.get(fd).filter(|conn| !conn.is_tcp())
        && !value.is_null()
        && !len.is_null()
    {
        // SAFETY: the caller's. More than a signed number is less than nothing.
        let room = usize::try_from(unsafe { *len }.cast_signed()).unwrap_or(0);
        if let Some(kept) = known(&conn, level, name).filter(|_| room >= size_of::<c_int>()) {
            // SAFETY: the caller's; the number may lie anywhere.
            unsafe {
                value.cast::<c_int>().write_unaligned(kept);
                *len = 4;
            }
            return 0;
        }
        let linger_s = conn.linger_s.load(Ordering::Relaxed);
        if (level, name) == (libc::SOL_SOCKET, libc::SO_LINGER) && linger_s >= 0 && room >= size_of::<libc::linger>() {
            // The monitor may have taken it meanwhile.
            let linger = libc::linger { l_onoff: 1, l_linger: linger_s };
            // SAFETY: as above.
            unsafe {
                value.cast::<libc::linger>().write_unaligned(linger);
                *len = 8;
            }
            return 0;
        }
    }
    // SAFETY: the caller's.
    let result = unsafe { real::getsockopt(fd, level, name, value, len) };
    if result == 0 && (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR) {
        // SAFETY: the kernel has written so many bytes there.
        if let Some(why) = unsafe { number(value, *len) }.filter(|why| *why != 0) {
            // SAFETY: as above.
            unsafe { value.cast::<c_int>().write_unaligned(peers::told(fd, why)) };
        }
    }
    result
}
