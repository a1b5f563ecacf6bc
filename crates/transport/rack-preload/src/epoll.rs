// SPDX-License-Identifier: Apache-2.0
//! `epoll`: what a set is asked for of connections that are ours is kept here ([`crate::set`]), and the kernel is asked for what wakes.
//!
//! The kernel's event of such a connection has a number of this library's, which says that it has to be looked at; what the program gets
//! is made here. What is edge-triggered is told once, and again after a call has read, or found no room, or when something more has come.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    ptr, slice,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use libc::{c_int, epoll_event, sigset_t, timespec};

use crate::{
    before,
    conn::{CONNS, is_not_followed, ours},
    monitor,
    ready::{Looks, naps},
    real::{self, fail},
    set::{Child, Interest, SETS, Set, TOKEN, bits},
    times::{duration, timespec_of, until},
};

/// Wakes in vain before a nap.
const FUTILE: u32 = 2;
/// Of so many waits one asks the kernel first.
const KERNELS: u32 = 8;
/// What `EPOLLEXCLUSIVE` may go with.
const EXCLUSIVE: c_int = libc::EPOLLEXCLUSIVE
    | libc::EPOLLIN
    | libc::EPOLLOUT
    | libc::EPOLLERR
    | libc::EPOLLHUP
    | libc::EPOLLWAKEUP
    | libc::EPOLLET;

/// Changes a set. None: the kernel does it.
fn changes(set: c_int, change: c_int, fd: c_int, event: Option<epoll_event>) -> Option<c_int> {
    let Some(conn) = ours(fd) else {
        if CONNS.has(fd)
            && let Some(of) = SETS.get(set)
        {
            // It has become the kernel's.
            of.lock().forgets(fd);
        }
        if let Some(child) = SETS.get(fd) {
            return changes_child(set, change, fd, &child, event);
        }
        if change == libc::EPOLL_CTL_ADD {
            before::sets(fd);
        }
        return None;
    };
    let of = if change == libc::EPOLL_CTL_ADD { Set::of(set) } else { SETS.get(set) }?;
    if change == libc::EPOLL_CTL_DEL {
        of.lock().forgets(fd);
        return None;
    }
    let mut event = event?;
    if of.is_polled.load(Ordering::Relaxed) {
        is_not_followed(fd);
        if conn.is_tcp() {
            return None;
        }
    }
    // More sets than one are woken, as they may be. What cannot go with it is an error that the kernel tells.
    if bits(event.events) & libc::EPOLLEXCLUSIVE != 0
        && (change != libc::EPOLL_CTL_ADD || bits(event.events) & !EXCLUSIVE != 0)
    {
        return None;
    }
    event.events &= !libc::EPOLLEXCLUSIVE.cast_unsigned();
    of.is_asked(event.events);
    let mut inner = of.lock();
    let is_slept_for = inner.sleepers > 0;
    let known = inner.one(fd).filter(|interest| Arc::ptr_eq(&interest.conn, &conn));
    if change != libc::EPOLL_CTL_ADD {
        let one = known?;
        one.renew(event);
        let result = one.change(set, change);
        if !is_slept_for {
            one.wakes();
        } else if result == 0 {
            one.joins(set);
        }
        return Some(result);
    }
    if known.is_some() {
        return None;
    }
    inner.forgets(fd);
    let mut new = Interest::new(fd, conn, event);
    let result = new.change(set, change);
    if result == 0 {
        if is_slept_for {
            new.joins(set);
        }
        inner.push(new);
    }
    Some(result)
}

/// A set is, or becomes, one of what another set is asked for.
fn changes_child(set: c_int, change: c_int, fd: c_int, child: &Arc<Set>, event: Option<epoll_event>) -> Option<c_int> {
    let of = Set::of(set)?;
    if change == libc::EPOLL_CTL_DEL {
        of.lock().forgets(fd);
        return None;
    }
    let event = event?;
    of.is_asked(event.events);
    let mut new = Child::new(fd, child, event);
    let mut inner = of.lock();
    let result = new.change(set, change);
    if result == 0 {
        inner.forgets(fd);
        if inner.sleepers > 0 {
            new.joins();
        }
        inner.push_child(new);
    }
    Some(result)
}

fn made(set: c_int) -> c_int {
    if set >= 0 && monitor::is_named() {
        SETS.put(set, None);
        let _ = Set::of(set);
    }
    set
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_create(size: c_int) -> c_int {
    // SAFETY: the caller's.
    made(unsafe { real::epoll_create(size) })
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: the caller's.
    made(unsafe { real::epoll_create1(flags) })
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_ctl(set: c_int, change: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    // SAFETY: the caller's; it may lie anywhere.
    let named = (!event.is_null()).then(|| unsafe { event.read_unaligned() });
    let changed = catch_unwind(|| changes(set, change, fd, named)).unwrap_or(None);
    // SAFETY: the caller's.
    changed.unwrap_or_else(|| unsafe { real::epoll_ctl(set, change, fd, event) })
}

/// # Safety
/// The mask is null, or there.
unsafe fn kernel_waits(set: c_int, into: &mut [epoll_event], within: Option<Duration>, mask: *const sigset_t) -> c_int {
    let most = c_int::try_from(into.len()).unwrap_or(c_int::MAX);
    let timeout = within.map(timespec_of);
    let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: so many are there, and the mask is the caller's.
    let result = unsafe { real::epoll_pwait2(set, into.as_mut_ptr(), most, timeout, mask) };
    if result >= 0 || real::errno() != libc::ENOSYS {
        return result;
    }
    let ms = |within: Duration| c_int::try_from(within.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX);
    // SAFETY: as above.
    unsafe { real::epoll_pwait(set, into.as_mut_ptr(), most, within.map_or(-1, ms), mask) }
}

/// Waits as `epoll_pwait2` does.
///
/// # Safety
/// The mask is null, or there.
unsafe fn waits(
    set: c_int,
    of: &Set,
    into: &mut [epoll_event],
    within: Option<Duration>,
    mask: *const sigset_t,
) -> c_int {
    let until = until(within);
    // Now and then the kernel's come first: those that are ours may be more than there is room for.
    let mut is_kernels = of.waited.fetch_add(1, Ordering::Release).is_multiple_of(KERNELS) && of.is_ready();
    let (mut looks, mut futile) = (Looks::new(&of.patience, within != Some(Duration::ZERO)), 0);
    loop {
        let is_over = until.is_some_and(|until| Instant::now() >= until);
        of.tidies(set);
        let (turn, mut count) = {
            let mut inner = of.lock();
            inner.turn += 1;
            let turn = inner.turn;
            (turn, if is_kernels { 0 } else { inner.tells(into, turn) })
        };
        if count == 0 && !is_over && !is_kernels && of.lock().has_attached() && looks.look(until, || of.seems_ready()) {
            count = of.lock().tells(into, turn);
        }
        let sleeps = count == 0 && !is_over && !is_kernels;
        if sleeps {
            count = of.sleeps(into, turn);
        }
        let left = if count > 0 || is_over || is_kernels {
            Some(Duration::ZERO)
        } else {
            until.map(|until| until.saturating_duration_since(Instant::now()))
        };
        let skips = count > 0 && !sleeps && of.skips();
        let rest = &mut into[count..];
        // SAFETY: the mask is the caller's.
        let result = if rest.is_empty() || skips { 0 } else { unsafe { kernel_waits(set, rest, left, mask) } };
        let errno = real::errno();
        looks.slept();
        let came = usize::try_from(result).unwrap_or(0);
        let mut is_left = false;
        let kernels = count;
        for at in 0..came {
            let event = into[kernels + at];
            let (token, kernel) = (event.u64, bits(event.events));
            if token & (u64::MAX << 32) != TOKEN {
                into[count] = event;
                count += 1;
                continue;
            }
            let fd = c_int::try_from(token & u64::from(u32::MAX)).unwrap_or(-1);
            let Some((told, left)) = of.lock().hears(fd, kernel, (turn, &mut into[..count]), sleeps) else { continue };
            is_left |= left;
            if let Some(event) = told {
                into[count] = event;
                count += 1;
            }
        }
        if sleeps {
            of.wakes();
        }
        if count == 0 && result < 0 {
            fail(errno);
            return result;
        }
        if count < into.len() && (came > 0 || is_kernels) {
            count += of.lock().tells(&mut into[count..], turn);
        }
        if count > 0 || is_over {
            return c_int::try_from(count).unwrap_or(c_int::MAX);
        }
        is_kernels = false;
        futile += u32::from(came > 0);
        // SAFETY: the mask is the caller's.
        if (is_left || futile > FUTILE) && !unsafe { naps(until, mask) } {
            return -1;
        }
    }
}

/// Waits, also for a set that has no connections of ours: one may come meanwhile.
///
/// # Safety
/// So many events are there, and the mask is null, or there.
unsafe fn if_ours(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    within: Option<Duration>,
    mask: *const sigset_t,
) -> Option<c_int> {
    let of = if monitor::is_named() { Set::of(set) } else { SETS.get(set) }?;
    let most = usize::try_from(most).ok().filter(|most| *most > 0 && !events.is_null())?;
    // SAFETY: the caller's. They are numbers, and are only written to before they are read.
    let into = unsafe { slice::from_raw_parts_mut(events, most) };
    // SAFETY: the caller's.
    let waited = catch_unwind(AssertUnwindSafe(|| unsafe { waits(set, &of, into, within, mask) }));
    Some(waited.unwrap_or_else(|_| {
        fail(libc::EINTR);
        -1
    }))
}

fn ms(timeout_ms: c_int) -> Option<Duration> {
    u64::try_from(timeout_ms).ok().map(Duration::from_millis)
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_wait(set: c_int, events: *mut epoll_event, most: c_int, timeout_ms: c_int) -> c_int {
    // SAFETY: the caller's; there is no mask.
    let waited = unsafe { if_ours(set, events, most, ms(timeout_ms), ptr::null()) };
    // SAFETY: the caller's.
    waited.unwrap_or_else(|| unsafe { real::epoll_wait(set, events, most, timeout_ms) })
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_pwait(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout_ms: c_int,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's.
    let waited = unsafe { if_ours(set, events, most, ms(timeout_ms), mask) };
    // SAFETY: the caller's.
    waited.unwrap_or_else(|| unsafe { real::epoll_pwait(set, events, most, timeout_ms, mask) })
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_pwait2(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's.
    let waited = match unsafe { duration(timeout) } {
        // SAFETY: the caller's.
        Ok(within) => unsafe { if_ours(set, events, most, within, mask) },
        Err(_) => None,
    };
    // SAFETY: the caller's.
    waited.unwrap_or_else(|| unsafe { real::epoll_pwait2(set, events, most, timeout, mask) })
}
