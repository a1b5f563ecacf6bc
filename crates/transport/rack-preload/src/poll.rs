// SPDX-License-Identifier: Apache-2.0
//! `poll`, `select` and their kin.

use std::{
    cell::Cell,
    fs, mem, ptr, slice,
    sync::{
        Arc,
        atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use fide_rack::window::Bell;
use libc::{
    POLLIN, POLLNVAL, POLLOUT, POLLPRI, c_int, c_short, c_ulong, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec,
    timeval,
};

use crate::{
    conn::{CONNS, Conn, ours},
    ready::{IN, Looks, OUT, arms, asked, hears, is_known as is_known_of, naps, ready, sends},
    real::{self, bits, fail},
    set::{SETS, Set},
    times::{duration, timespec_of, until},
};

/// Wakes in vain before a nap.
const FUTILE: u32 = 2;
/// Waits in which the kernel is not asked, one after the other.
const SKIPPED_MAX: u32 = 15;
/// Without a wait.
static NOW: timespec = timespec { tv_sec: 0, tv_nsec: 0 };

/// What a wait needs, kept by its thread for the next one.
#[derive(Default)]
struct Room {
    /// Those of the descriptors that are, or may come to be, attached, with their index. Sleeps of the latter count, too: who attaches has
    /// them woken.
    ours: Vec<(usize, Arc<Conn>)>,
    /// Those that are epoll sets.
    sets: Vec<(usize, Arc<Set>)>,
    /// What the kernel is asked.
    kernel: Vec<pollfd>,
    /// What `select` is asked.
    fds: Vec<pollfd>,
    /// [`Looks`]
    patience: AtomicU32,
    /// Waits since the kernel was asked.
    skipped: u32,
}

/// What is kept for so many threads: a further one shares that of another one.
const ROOMS: usize = 64;
/// In cache lines of their own.
#[repr(align(64))]
struct Kept(AtomicPtr<Room>);

static KEPT: [Kept; ROOMS] = [const { Kept(AtomicPtr::new(ptr::null_mut())) }; ROOMS];

thread_local! {
    /// The number of this thread; 0: it has none yet. Nothing to be dropped, for which the C library would allocate.
    static OWN: Cell<usize> = const { Cell::new(0) };
}

impl Room {
    fn kept() -> &'static AtomicPtr<Self> {
        static LAST: AtomicUsize = AtomicUsize::new(0);
        if OWN.get() == 0 {
            OWN.set(LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1));
        }
        &KEPT[OWN.get() % ROOMS].0
    }

    /// This thread's, or another one if a handler has interrupted who has it.
    fn take() -> Box<Self> {
        let kept = Self::kept().swap(ptr::null_mut(), Ordering::Acquire);
        // SAFETY: it came from a box, and is in one place at a time.
        if kept.is_null() { Box::default() } else { unsafe { Box::from_raw(kept) } }
    }

    fn put(mut self: Box<Self>) {
        self.ours.clear();
        self.sets.clear();
        self.kernel.clear();
        self.fds.clear();
        let other = Self::kept().swap(Box::into_raw(self), Ordering::AcqRel);
        if !other.is_null() {
            // SAFETY: as above.
            drop(unsafe { Box::from_raw(other) });
        }
    }

    /// Whether a wait for them is not the kernel's alone.
    fn finds(&mut self, fds: &[pollfd]) -> bool {
        for (index, fd) in fds.iter().enumerate() {
            if let Some(conn) = ours(fd.fd) {
                self.ours.push((index, conn));
            } else if let Some(set) = SETS.get(fd.fd) {
                self.sets.push((index, set));
            }
        }
        !self.ours.is_empty() || !self.sets.is_empty()
    }
}

/// Whether it may be ours. Nothing is allocated for others: the handler of a signal may wait for them.
fn is_known(fd: c_int) -> bool {
    CONNS.has(fd) || SETS.has(fd)
}

/// Waits as `ppoll` does.
///
/// # Safety
/// `mask` is null, or there.
unsafe fn waits(fds: &mut [pollfd], room: &mut Room, within: Option<Duration>, mask: *const sigset_t) -> c_int {
    let until = until(within);
    let Room { ours, sets, kernel, patience, skipped, .. } = room;
    kernel.extend_from_slice(fds);
    let mut futile = 0;
    let mut looks = Looks::new(patience, within != Some(Duration::ZERO));
    loop {
        let is_over = until.is_some_and(|until| Instant::now() >= until);
        let is_ready = |(index, conn): &(usize, Arc<Conn>)| ready(conn, fds[*index].events.into(), 0) != 0;
        let is_set_ready =
            |(index, set): &(usize, Arc<Set>)| c_int::from(fds[*index].events) & IN != 0 && set.is_ready();
        let is_any = || ours.iter().any(is_ready) || sets.iter().any(is_set_ready);
        let mut is_there = is_any();
        let can_look =
            || ours.iter().any(|(_, conn)| conn.is_attached()) || sets.iter().any(|(_, set)| set.lock().has_attached());
        if !is_there && !is_over && can_look() {
            is_there = looks.look(until, || {
                ours.iter().any(|(index, conn)| {
                    let seems =
                        |flags, bell| c_int::from(fds[*index].events) & flags != 0 && conn.end.seems_ready(bell);
                    seems(IN, Bell::Message) || seems(OUT, Bell::Room)
                }) || sets.iter().any(|(_, set)| set.seems_ready())
            });
        }
        let sleeps = !is_there && !is_over;
        if sleeps {
            for (index, conn) in &*ours {
                conn.end.sleeps();
                arms(conn, fds[*index].events.into());
            }
            sets.iter().for_each(|(_, set)| set.is_slept_for());
            is_there = is_any();
        }
        let can_skip = |(index, conn): &(usize, Arc<Conn>)| is_known_of(conn, fds[*index].events.into());
        if is_there && !sleeps && ours.len() == fds.len() && *skipped < SKIPPED_MAX && ours.iter().all(can_skip) {
            *skipped += 1;
            let count = tells(fds, ours);
            if count > 0 {
                return count;
            }
        }
        *skipped = 0;
        for (index, conn) in &*ours {
            kernel[*index].events = bits(asked(conn, fds[*index].events.into()));
        }
        let left = until.map(|until| timespec_of(until.saturating_duration_since(Instant::now())));
        let timeout = match &left {
            _ if is_there || is_over => &raw const NOW,
            Some(left) => ptr::from_ref(left),
            None => ptr::null(),
        };
        // SAFETY: so many are there, and the mask is the caller's.
        let result = unsafe { real::ppoll(kernel.as_mut_ptr(), kernel.len() as nfds_t, timeout, mask) };
        let errno = real::errno();
        looks.slept();
        let mut naps_then = false;
        for (index, conn) in &*ours {
            if result > 0 {
                sends(conn, kernel[*index].revents.into());
            }
            // Also without a wait, lest they add up.
            if result > 0 && kernel[*index].revents & POLLIN != 0 {
                if !sleeps {
                    conn.end.sleeps();
                }
                naps_then |= !hears(conn);
                if !sleeps {
                    conn.end.woke();
                }
            }
            if sleeps {
                conn.end.woke();
            }
        }
        if sleeps {
            sets.iter().for_each(|(_, set)| set.wakes());
        }
        if result < 0 {
            fail(errno);
            return result;
        }
        let mut count = 0;
        for (fd, kernel) in fds.iter_mut().zip(&*kernel) {
            fd.revents = kernel.revents;
        }
        for (index, conn) in &*ours {
            let fd = &mut fds[*index];
            if fd.revents & POLLNVAL == 0 {
                fd.revents = bits(ready(conn, fd.events.into(), fd.revents.into()));
            }
        }
        for (index, set) in &*sets {
            let fd = &mut fds[*index];
            if c_int::from(fd.events) & IN != 0 && set.is_ready() {
                fd.revents |= fd.events & bits(IN);
            }
        }
        fds.iter().for_each(|fd| count += c_int::from(fd.revents != 0));
        if count > 0 || is_over {
            return count;
        }
        futile += u32::from(result > 0);
        // SAFETY: the mask is the caller's.
        if (naps_then || futile > FUTILE) && !unsafe { naps(until, mask) } {
            return -1;
        }
    }
}

/// What is ready without the kernel, if all are ours. What has woken is taken at a later sleep.
fn tells(fds: &mut [pollfd], ours: &[(usize, Arc<Conn>)]) -> c_int {
    let mut count = 0;
    for (index, conn) in ours {
        let fd = &mut fds[*index];
        fd.revents = bits(ready(conn, fd.events.into(), 0));
        count += c_int::from(fd.revents != 0);
    }
    count
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
    let within = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
    // SAFETY: the caller's; there is no mask.
    if let Some(waited) = unsafe { if_ours(fds, count, Ok(within), ptr::null()) } {
        return waited;
    }
    // SAFETY: the caller's.
    unsafe { real::poll(fds, count, timeout_ms) }
}

/// Waits, if any of them is ours.
///
/// # Safety
/// So many are there, and `mask` is null, or there.
unsafe fn if_ours(
    fds: *mut pollfd,
    count: nfds_t,
    within: Result<Option<Duration>, c_int>,
    mask: *const sigset_t,
) -> Option<c_int> {
    if fds.is_null() || count == 0 || count > crate::table::FDS_MAX as nfds_t {
        return None;
    }
    // SAFETY: the caller's.
    let fds = unsafe { slice::from_raw_parts_mut(fds, usize::try_from(count).ok()?) };
    if !fds.iter().any(|fd| is_known(fd.fd)) {
        return None;
    }
    let mut room = Room::take();
    let waited = room.finds(fds).then(|| match within {
        // SAFETY: the caller's.
        Ok(within) => unsafe { waits(fds, &mut room, within, mask) },
        Err(errno) => {
            fail(errno);
            -1
        }
    });
    room.put();
    waited
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int, room: size_t) -> c_int {
    checks(count, room);
    // SAFETY: the caller's.
    unsafe { poll(fds, count, timeout_ms) }
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    checks(count, room);
    // SAFETY: the caller's.
    unsafe { ppoll(fds, count, timeout, mask) }
}

/// As the C library has it, for too little room.
fn checks(count: nfds_t, room: size_t) {
    if room / size_of::<pollfd>() < usize::try_from(count).unwrap_or(usize::MAX) {
        std::process::abort();
    }
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's.
    let within = unsafe { duration(timeout) };
    // SAFETY: the caller's.
    if let Some(waited) = unsafe { if_ours(fds, count, within, mask) } {
        return waited;
    }
    // SAFETY: the caller's.
    unsafe { real::ppoll(fds, count, timeout, mask) }
}

/// What a set of `select` asks for, and what it is told by.
const ASKED: [(c_short, c_short); 3] =
    [(POLLIN, POLLIN | libc::POLLHUP | libc::POLLERR), (POLLOUT, POLLOUT | libc::POLLERR), (POLLPRI, POLLPRI)];

/// Descriptors in a word of a set.
const BITS: c_int = c_ulong::BITS.cast_signed();

/// Of a set that has at least so many.
///
/// # Safety
/// It is null, or has that one.
unsafe fn is_in(fd: c_int, set: *const fd_set) -> bool {
    let (word, bit) = (fd / BITS, fd % BITS);
    // SAFETY: the caller's; it is an array of words.
    !set.is_null() && unsafe { *set.cast::<c_ulong>().offset(word as isize) } >> bit & 1 != 0
}

/// # Safety
/// As [`is_in`].
unsafe fn takes_out(fd: c_int, set: *mut fd_set) {
    let (word, bit) = (fd / BITS, fd % BITS);
    // SAFETY: the caller's; it is an array of words.
    unsafe { *set.cast::<c_ulong>().offset(word as isize) &= !(1 << bit) };
}

/// Descriptors of the sets that are looked at. A program may name more than the sets have: the kernel looks at no more than it keeps places
/// for, which are those of one set as a rule.
fn looked_at(count: c_int) -> c_int {
    const OF_A_SET: c_int = 1024;
    let places = || {
        let status = fs::read_to_string("/proc/thread-self/status").ok()?;
        status.lines().find_map(|line| line.strip_prefix("FDSize:"))?.trim().parse().ok()
    };
    if count <= OF_A_SET { count } else { count.min(places().unwrap_or(OF_A_SET)) }
}

/// The descriptors of the sets, if one of them is attached.
///
/// # Safety
/// Each set is null, or has so many, or as many as the kernel looks at.
unsafe fn sets(count: c_int, sets: [*mut fd_set; 3]) -> Option<(Box<Room>, Vec<pollfd>)> {
    let known = c_int::try_from(CONNS.end().max(SETS.end())).unwrap_or(c_int::MAX);
    let count = if known > 0 { looked_at(count) } else { 0 };
    // SAFETY: the caller's.
    let is_in = |fd, set: *mut fd_set| unsafe { is_in(fd, set) };
    if !(0..count.min(known)).any(|fd| is_known(fd) && sets.iter().any(|set| is_in(fd, *set))) {
        return None;
    }
    let mut room = Room::take();
    let mut fds = mem::take(&mut room.fds);
    for fd in 0..count {
        let mut events = 0;
        for (set, (asks, _)) in sets.iter().zip(ASKED) {
            if is_in(fd, *set) {
                events |= asks;
            }
        }
        if events != 0 {
            fds.push(pollfd { fd, events, revents: 0 });
        }
    }
    if room.finds(&fds) {
        return Some((room, fds));
    }
    room.fds = fds;
    room.put();
    None
}

/// # Safety
/// As [`sets`], and `mask` is null, or there.
unsafe fn selects(
    (mut room, mut fds): (Box<Room>, Vec<pollfd>),
    sets: [*mut fd_set; 3],
    within: Option<Duration>,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's.
    let result = unsafe { waits(&mut fds, &mut room, within, mask) };
    // SAFETY: the caller's.
    let result = if result < 0 { result } else { unsafe { selected(&fds, sets) } };
    room.fds = fds;
    room.put();
    result
}

/// What `select` has of what was ready.
///
/// # Safety
/// As [`sets`].
unsafe fn selected(fds: &[pollfd], sets: [*mut fd_set; 3]) -> c_int {
    if fds.iter().any(|fd| fd.revents & POLLNVAL != 0) {
        fail(libc::EBADF);
        return -1;
    }
    let mut count = 0;
    for fd in fds {
        for (set, (asks, told)) in sets.into_iter().zip(ASKED) {
            if set.is_null() || fd.events & asks == 0 {
                continue;
            }
            if fd.revents & told != 0 {
                count += 1;
            } else {
                // SAFETY: the caller's.
                unsafe { takes_out(fd.fd, set) };
            }
        }
    }
    count
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let all = [read, write, except];
    // SAFETY: the caller's.
    let Some(found) = (unsafe { sets(count, all) }) else {
        // SAFETY: the caller's.
        return unsafe { real::select(count, read, write, except, timeout) };
    };
    // SAFETY: the caller's.
    let timeout = unsafe { timeout.as_mut() };
    let within = match &timeout {
        None => None,
        Some(timeout) => match (u64::try_from(timeout.tv_sec), u64::try_from(timeout.tv_usec)) {
            (Ok(s), Ok(us)) => Some(Duration::from_secs(s).saturating_add(Duration::from_micros(us))),
            _ => {
                fail(libc::EINVAL);
                return -1;
            }
        },
    };
    let ends = until(within);
    // SAFETY: the caller's; there is no mask.
    let result = unsafe { selects(found, all, within, ptr::null()) };
    // As Linux does.
    if let (Some(timeout), Some(ends)) = (timeout, ends) {
        let left = ends.saturating_duration_since(Instant::now());
        *timeout =
            timeval { tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX), tv_usec: left.subsec_micros().into() };
    }
    result
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let all = [read, write, except];
    // SAFETY: the caller's.
    let Some(found) = (unsafe { sets(count, all) }) else {
        // SAFETY: the caller's.
        return unsafe { real::pselect(count, read, write, except, timeout, mask) };
    };
    // SAFETY: the caller's.
    match unsafe { duration(timeout) } {
        // SAFETY: the caller's.
        Ok(within) => unsafe { selects(found, all, within, mask) },
        Err(errno) => {
            fail(errno);
            -1
        }
    }
}
