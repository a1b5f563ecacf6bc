// SPDX-License-Identifier: Apache-2.0
//! `epoll`: what a set is asked for of connections that are ours is kept here, and the kernel is asked for what wakes.
//!
//! The kernel's event of such a connection has a number of this library's, which says that it has to be looked at; what the program gets
//! is made here. What is edge-triggered is told once, and again after a call has read, or found no room, or when something more has come.

use std::{
    cell::Cell,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr, slice,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use fide_rack::window::Bell;
use libc::{c_int, epoll_event, sigset_t, timespec};

use crate::{
    before,
    conn::{CONNS, Conn, is_not_followed, ours},
    monitor,
    ready::{IN, Looks, OUT, RDHUP, arms, asked, hears, naps, ready},
    real::{self, fail},
    table::Table,
    times::{duration, timespec_of, until},
};

static SETS: Table<Set> = Table::new();

/// The upper half of the kernel's events for what is ours; the lower one is the descriptor. No address of a program, and no small number.
const TOKEN: u64 = 0xf1de_7ac3 << 32;
/// Wakes in vain before a nap.
const FUTILE: u32 = 2;
/// Tries to hold a set before a fork. One does for what others do meanwhile.
const FORK_TRIES: u32 = 10_000;

struct Interest {
    fd: c_int,
    conn: Arc<Conn>,
    wants: u32,
    data: u64,
    /// What the kernel is asked for.
    kernel: u32,
    /// One shot was told.
    is_off: bool,
    /// [`Conn::reads`] and [`Conn::full`] as it was told last.
    told: [Option<u32>; 2],
    /// [`fide_rack::end::End::arrived`] then.
    arrived: usize,
    /// The last turn of a wait in which it was told.
    turn: u64,
    /// The set counts among those that sleep for the connection, once for all its threads.
    sleeps: bool,
}

#[derive(Default)]
struct Inner {
    all: Vec<Interest>,
    turn: u64,
    /// Threads that sleep for the set, or are about to. If there is one, all interests that are not off sleep, whenever they came.
    sleepers: u32,
}

#[derive(Default)]
pub(crate) struct Set {
    inner: Mutex<Inner>,
    /// It is waited for by others' means, which do not know what is ready here.
    is_polled: AtomicBool,
    /// Of those who wait for it ([`Looks`]).
    patience: AtomicU32,
}

/// A descriptor is closed.
pub(crate) fn leaves(fd: c_int) {
    before::clears(fd);
    SETS.put(fd, None);
}

/// A descriptor has got another number, too.
pub(crate) fn dups(fd: c_int, to: c_int) {
    if let Some(set) = SETS.get(fd) {
        SETS.put(to, Some(set));
    } else if !CONNS.has(fd) {
        before::sets(fd);
        before::sets(to);
    }
}

/// Descriptors of sets.
pub(crate) fn all() -> impl Iterator<Item = c_int> {
    SETS.all().map(|(fd, _)| fd)
}

/// A set is waited for as other descriptors are.
pub(crate) fn is_polled(fd: c_int) {
    if let Some(set) = SETS.get(fd) {
        set.is_polled.store(true, Ordering::Relaxed);
        set.lock().all.iter().for_each(|interest| interest.conn.stays_tcp());
    }
}

/// A set that is held, and stays meanwhile.
type Held = (MutexGuard<'static, Inner>, Arc<Set>);

thread_local! {
    /// The sets, as this thread forks.
    static FORKS: Cell<Vec<Held>> = const { Cell::new(Vec::new()) };
}

/// Before a fork: nothing of a set is half changed in the child.
pub(crate) fn before_fork() {
    let held = SETS.all().filter_map(|(_, set)| {
        // Who is at it has been interrupted by a handler that forks, if it takes so long.
        let inner = (0..FORK_TRIES).find_map(|_| {
            set.inner.try_lock().ok().or_else(|| {
                thread::yield_now();
                None
            })
        })?;
        // SAFETY: the set stays as long as this, which lies before it and is dropped first.
        Some((unsafe { mem::transmute::<MutexGuard<'_, Inner>, MutexGuard<'static, Inner>>(inner) }, Arc::clone(&set)))
    });
    FORKS.set(held.collect());
}

pub(crate) fn after_fork() {
    FORKS.take();
}

/// In the child no thread sleeps; those of the parent do so for the parent.
pub(crate) fn in_child() {
    for (mut inner, _set) in FORKS.take() {
        inner.sleepers = 0;
        inner.all.iter_mut().for_each(|interest| interest.sleeps = false);
    }
}

fn bits(flags: u32) -> c_int {
    flags.cast_signed()
}

impl Interest {
    fn has(&self, flag: c_int) -> bool {
        bits(self.wants) & flag != 0
    }

    /// What the kernel is to be asked for.
    fn asks(&self) -> u32 {
        if self.is_off {
            return 0;
        }
        (asked(&self.conn, bits(self.wants)) & !libc::EPOLLONESHOT).cast_unsigned()
    }

    fn change(&mut self, set: c_int, change: c_int) -> c_int {
        let kernel = self.asks();
        let mut event = epoll_event { events: kernel, u64: TOKEN | u64::from(self.fd.cast_unsigned()) };
        // SAFETY: the event is there.
        let result = unsafe { real::epoll_ctl(set, change, self.fd, &raw mut event) };
        if result == 0 {
            self.kernel = kernel;
        }
        result
    }

    /// From now on the other end wakes who sleeps for the set.
    fn sleeps(&mut self) {
        if self.is_off {
            return;
        }
        if !self.sleeps {
            self.sleeps = true;
            self.conn.end.sleeps();
        }
        self.arms();
    }

    fn arms(&self) {
        let is_told = self.has(libc::EPOLLET) && self.told[1] == Some(self.conn.full.load(Ordering::Relaxed));
        arms(&self.conn, bits(self.wants) & !if is_told { OUT } else { 0 });
    }

    fn wakes(&mut self) {
        if mem::take(&mut self.sleeps) {
            self.conn.end.woke();
        }
    }

    /// It is new, or has changed, as threads sleep for the set: they are woken if it is ready, and else once it is.
    fn joins(&mut self, set: c_int) {
        self.sleeps();
        if ready(&self.conn, bits(self.wants), 0) != 0 {
            // The kernel has always room, and says so at once; who waits next asks it for what is right.
            self.kernel |= libc::EPOLLOUT.cast_unsigned();
            let mut event = epoll_event { events: self.kernel, u64: TOKEN | u64::from(self.fd.cast_unsigned()) };
            // SAFETY: the event is there.
            unsafe { real::epoll_ctl(set, libc::EPOLL_CTL_MOD, self.fd, &raw mut event) };
        }
    }

    /// The kernel says that something has come over TCP. What wakes is taken, or left so that it wakes others, too. `others`: more threads
    /// sleep for the set. False: it was left for those that sleep for the connection by other means.
    fn hears(&mut self, others: bool) -> bool {
        // One of the threads is told what is edge-triggered, and each what is not.
        if others && !self.is_off && !self.has(libc::EPOLLET | libc::EPOLLONESHOT) {
            self.arms();
            if ready(&self.conn, bits(self.wants), 0) != 0 {
                return true;
            }
        }
        let is_awake = !self.sleeps;
        if is_awake {
            self.conn.end.sleeps();
        }
        // The descriptor may be closed, and another one of the connection not.
        let is_taken = hears(&self.conn, self.conn.fd());
        if is_awake {
            self.conn.end.woke();
        }
        if others && !self.is_off {
            self.arms();
        }
        is_taken
    }

    /// Edge-triggered, it was told of all that there is to read, and nobody has read since.
    fn has_told_all(&self) -> bool {
        self.told[0] == Some(self.conn.reads.load(Ordering::Acquire)) && self.arrived == self.conn.end.arrived()
    }

    /// What is to be told, if the kernel has said that.
    fn tells(&mut self, kernel: c_int) -> Option<epoll_event> {
        if self.is_off {
            return None;
        }
        let conn = &self.conn;
        let now = [&conn.reads, &conn.full].map(|count| Some(count.load(Ordering::Acquire)));
        let mut told = ready(conn, bits(self.wants), kernel);
        if self.has(libc::EPOLLET) && kernel == 0 {
            let full = now[1] == self.told[1];
            told &= !(if self.has_told_all() { IN | RDHUP } else { 0 } | if full { OUT } else { 0 });
        } else if self.has(libc::EPOLLET)
            && now[1] == self.told[1]
            && conn.end.is_ready(Bell::Room).is_ok_and(|is| is.is_some())
        {
            told &= !OUT;
        }
        if told == 0 {
            return None;
        }
        for (which, flags) in [IN, OUT].into_iter().enumerate() {
            if told & flags != 0 {
                self.told[which] = now[which];
                if which == 0 && self.has(libc::EPOLLET) {
                    self.arrived = self.conn.end.arrived();
                }
            }
        }
        self.is_off = self.has(libc::EPOLLONESHOT);
        if self.is_off {
            self.wakes();
        }
        Some(epoll_event { events: told.cast_unsigned(), u64: self.data })
    }
}

impl Drop for Interest {
    fn drop(&mut self) {
        self.wakes();
    }
}

impl Inner {
    /// Whether it is worth to look without the kernel.
    fn has_attached(&self) -> bool {
        self.all.iter().any(|interest| !interest.is_off && interest.conn.is_attached())
    }

    /// What is ready, into the rest of the events.
    fn tells(&mut self, into: &mut [epoll_event]) -> usize {
        let mut count = 0;
        // Those that were told last come last.
        for interest in &mut self.all {
            if count == into.len() {
                break;
            }
            if interest.turn != self.turn
                && let Some(event) = interest.tells(0)
            {
                (into[count], interest.turn) = (event, self.turn);
                count += 1;
            }
        }
        if count > 0 && count == into.len() && !self.all.is_empty() {
            self.all.rotate_left(1);
        }
        count
    }
}

impl Set {
    /// Of a descriptor.
    fn of(set: c_int) -> Option<Arc<Self>> {
        if SETS.get(set).is_none() {
            let new = Self::default();
            new.is_polled.store(before::has(set), Ordering::Relaxed);
            // Another thread may do so, too.
            SETS.add(set, Arc::new(new));
        }
        SETS.get(set)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has become the kernel's is given back to it, what is closed is forgotten, and the kernel is asked for what it is to say now.
    fn tidies(&self, set: c_int) {
        let is_open = |interest: &&Interest| !interest.conn.is_attached() && !interest.conn.is_closed();
        // Without the lock: an answer is for any connection, also of another set.
        let open: Vec<Arc<Conn>> =
            self.lock().all.iter().filter(is_open).map(|interest| Arc::clone(&interest.conn)).collect();
        open.iter().for_each(|conn| conn.goes_on(conn.fd()));
        self.lock().all.retain_mut(|interest| {
            if interest.conn.is_closed() {
                return false;
            }
            if interest.conn.is_tcp() {
                let mut event =
                    epoll_event { events: if interest.is_off { 0 } else { interest.wants }, u64: interest.data };
                // SAFETY: the event is there.
                unsafe { real::epoll_ctl(set, libc::EPOLL_CTL_MOD, interest.fd, &raw mut event) };
                return false;
            }
            if interest.asks() != interest.kernel {
                interest.change(set, libc::EPOLL_CTL_MOD);
            }
            true
        });
    }

    fn seems_ready(&self) -> bool {
        self.lock().all.iter().any(|interest| {
            !interest.is_off
                && (interest.has(IN)
                    && !(interest.has(libc::EPOLLET) && interest.has_told_all())
                    && interest.conn.end.seems_ready(Bell::Message)
                    || interest.has(OUT)
                        && !(interest.has(libc::EPOLLET)
                            && interest.told[1] == Some(interest.conn.full.load(Ordering::Relaxed)))
                        && interest.conn.end.seems_ready(Bell::Room))
        })
    }

    /// From now on the other ends wake this thread. What is ready meanwhile.
    fn sleeps(&self, into: &mut [epoll_event]) -> usize {
        let mut inner = self.lock();
        inner.sleepers += 1;
        inner.all.iter_mut().for_each(Interest::sleeps);
        inner.tells(into)
    }

    fn wakes(&self) {
        let mut inner = self.lock();
        inner.sleepers -= 1;
        if inner.sleepers == 0 {
            inner.all.iter_mut().for_each(Interest::wakes);
        }
    }
}

/// Changes a set. None: the kernel does it.
fn changes(set: c_int, change: c_int, fd: c_int, event: Option<epoll_event>) -> Option<c_int> {
    let Some(conn) = ours(fd) else {
        if change == libc::EPOLL_CTL_ADD {
            before::sets(fd);
            is_polled(fd);
        }
        return None;
    };
    let of = if change == libc::EPOLL_CTL_ADD { Set::of(set) } else { SETS.get(set) }?;
    let is_one = |interest: &Interest| interest.fd == fd && Arc::ptr_eq(&interest.conn, &conn);
    if change == libc::EPOLL_CTL_DEL {
        of.lock().all.retain(|interest| !is_one(interest));
        return None;
    }
    let event = event?;
    if bits(event.events) & libc::EPOLLEXCLUSIVE != 0 || of.is_polled.load(Ordering::Relaxed) {
        is_not_followed(fd);
        if conn.is_tcp() {
            return None;
        }
    }
    let (wants, data) = (event.events & !libc::EPOLLEXCLUSIVE.cast_unsigned(), event.u64);
    let mut inner = of.lock();
    if change == libc::EPOLL_CTL_ADD {
        inner.all.retain(|interest| interest.fd != fd || !interest.conn.is_closed());
        if inner.all.iter().any(is_one) {
            return None;
        }
        let mut new = Interest {
            fd,
            conn: Arc::clone(&conn),
            wants,
            data,
            kernel: 0,
            is_off: false,
            told: [None; 2],
            arrived: 0,
            turn: 0,
            sleeps: false,
        };
        let result = new.change(set, change);
        if result == 0 {
            if inner.sleepers > 0 {
                new.joins(set);
            }
            inner.all.push(new);
        }
        return Some(result);
    }
    let is_slept_for = inner.sleepers > 0;
    let one = inner.all.iter_mut().find(|interest| is_one(interest))?;
    (one.wants, one.data, one.is_off, one.told) = (wants, data, false, [None; 2]);
    let result = one.change(set, change);
    if result == 0 && is_slept_for {
        one.joins(set);
    }
    Some(result)
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
    let (mut looks, mut futile) = (Looks::new(&of.patience, within != Some(Duration::ZERO)), 0);
    loop {
        let is_over = until.is_some_and(|until| Instant::now() >= until);
        of.tidies(set);
        let (turn, mut count) = {
            let mut inner = of.lock();
            inner.turn += 1;
            (inner.turn, inner.tells(into))
        };
        if count == 0 && !is_over && of.lock().has_attached() && looks.look(until, || of.seems_ready()) {
            count = of.lock().tells(into);
        }
        let sleeps = count == 0 && !is_over;
        if sleeps {
            count = of.sleeps(into);
        }
        let left = if count > 0 || is_over {
            Some(Duration::ZERO)
        } else {
            until.map(|until| until.saturating_duration_since(Instant::now()))
        };
        let rest = &mut into[count..];
        // SAFETY: the mask is the caller's.
        let result = if rest.is_empty() { 0 } else { unsafe { kernel_waits(set, rest, left, mask) } };
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
            let mut inner = of.lock();
            let others = inner.sleepers > u32::from(sleeps);
            let fd = c_int::try_from(token & u64::from(u32::MAX)).unwrap_or(-1);
            let Some(interest) = inner.all.iter_mut().find(|one| one.fd == fd && !one.conn.is_closed()) else {
                continue;
            };
            if kernel & libc::EPOLLIN != 0 {
                is_left |= !interest.hears(others);
            }
            if interest.turn != turn
                && let Some(event) = interest.tells(kernel)
            {
                interest.turn = turn;
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
        if count < into.len() && came > 0 {
            count += of.lock().tells(&mut into[count..]);
        }
        if count > 0 || is_over {
            return c_int::try_from(count).unwrap_or(c_int::MAX);
        }
        futile += u32::from(came > 0);
        if is_left || futile > FUTILE {
            naps(until);
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
    let of = if monitor::is_there() { Set::of(set) } else { SETS.get(set) }?;
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
