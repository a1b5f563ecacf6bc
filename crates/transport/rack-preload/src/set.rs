// SPDX-License-Identifier: Apache-2.0
//! What an epoll set is asked for of connections that are ours.
//!
//! **Sleeps.** As long as a thread sleeps for a set, the set counts among those that sleep for each of its connections, also for one that
//! comes meanwhile: so its other end wakes, and nobody else takes what wakes.
//!
//! **Quiet ones.** In a large set what has not been ready for a while is not looked at: its other end stays asked to wake, and the kernel
//! says so.

use std::{
    cell::Cell,
    collections::BTreeMap,
    mem::{self, ManuallyDrop},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use fide_rack::window::Bell;
use libc::{c_int, epoll_event};

use crate::{
    before,
    conn::{self, CONNS, Conn},
    monitor,
    ready::{IN, OUT, RDHUP, arms, asked, beside, hears, polled, ready, sends},
    real,
    table::Table,
};

pub(crate) static SETS: Table<Set> = Table::new();

/// The upper half of the kernel's events for what is ours; the lower one is the descriptor. No address of a program, and no small number.
pub(crate) const TOKEN: u64 = 0xf1de_7ac3 << 32;
/// Tries to hold all sets before a fork. One does for what others do meanwhile, and a nap where one of them has lost its core.
const FORK_TRIES: u32 = 3000;
const FORK_YIELDS: u32 = 2000;
const FORK_NAP: Duration = Duration::from_micros(100);
/// Connections that are always looked at: that costs less than what wakes.
const LOOKED_MIN: usize = 16;
/// Sleeps in which a connection was not ready, before it is quiet.
const QUIET: u32 = 3;
/// Between two looks of a set whether memory has come.
const OPENS_APART: Duration = Duration::from_micros(200);
/// And of each connection that has none.
const ALL_OPEN_APART: Duration = Duration::from_millis(20);
/// Waits in which the kernel is not asked, one after the other.
const SKIPPED_MAX: u32 = 7;

pub(crate) struct Interest {
    pub(crate) fd: c_int,
    pub(crate) conn: Arc<Conn>,
    pub(crate) wants: u32,
    pub(crate) data: u64,
    /// What the kernel is asked for.
    kernel: u32,
    /// One shot was told.
    pub(crate) is_off: bool,
    /// [`Conn::reads`] and [`Conn::full`] as it was told last.
    pub(crate) told: [Option<u32>; 2],
    /// [`fide_rack::end::End::arrived`] then.
    arrived: usize,
    /// The last turn of a wait in which it was told, and where among its events.
    turn: u64,
    at: usize,
    /// The set counts among those that sleep for the connection, once for all its threads.
    sleeps: bool,
    /// Sleeps since it was told.
    still: u32,
}

#[derive(Default)]
pub(crate) struct Inner {
    /// Those that are looked at.
    looked: Vec<Interest>,
    /// Those that the kernel says something of, if something has come: they sleep.
    quiet: BTreeMap<c_int, Interest>,
    children: Vec<Child>,
    /// Some of them have no memory yet, and when it is looked for next.
    has_open: bool,
    opens_at: Option<Instant>,
    all_open_at: Option<Instant>,
    /// So many quiet ones, or fewer, have no memory.
    quiet_open: usize,
    /// [`conn::CLOSED`], as those that are closed were forgotten last.
    closed: u32,
    pub(crate) turn: u64,
    /// Threads that sleep for the set, or are about to. If there is one, all interests that are not off sleep, whenever they came.
    pub(crate) sleepers: u32,
}

#[derive(Default)]
pub(crate) struct Set {
    inner: Mutex<Inner>,
    /// It was waited for by others' means before it was known.
    pub(crate) is_polled: AtomicBool,
    /// Of those who wait for it ([`Looks`]).
    pub(crate) patience: AtomicU32,
    /// Waits for it.
    pub(crate) waited: AtomicU32,
    /// Waits in which the kernel need not be asked.
    skipped: AtomicU32,
    /// Something in it is, or was, edge-triggered, told once, or waited for because of bytes out of band.
    has_edges: AtomicBool,
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

/// A set that is held, and stays meanwhile.
type Held = (MutexGuard<'static, Inner>, Arc<Set>);

thread_local! {
    /// The sets, as this thread forks. Nothing to be dropped: a thread may fork as it ends, when what has is gone.
    static FORKS: Cell<ManuallyDrop<Vec<Held>>> = const { Cell::new(ManuallyDrop::new(Vec::new())) };
}

/// Before a fork: nothing of a set is half changed in the child, and no connection counts as slept for that nobody sleeps for.
pub(crate) fn before_fork() {
    let sets: Vec<Arc<Set>> = SETS.all().map(|(_, set)| set).collect();
    let mut held = holds(&sets);
    for (inner, _) in &mut held {
        let quiet = mem::take(&mut inner.quiet);
        let is_slept_for = inner.sleepers > 0;
        inner.looked.extend(quiet.into_values());
        if !is_slept_for {
            inner.looked.iter_mut().for_each(Interest::wakes);
        }
    }
    FORKS.set(ManuallyDrop::new(held));
}

fn forked() -> Vec<Held> {
    ManuallyDrop::into_inner(FORKS.take())
}

/// All of them at once. Others hold one while they wait for a set within it, so that none is waited for with another one in hand.
fn holds(sets: &[Arc<Set>]) -> Vec<Held> {
    // Some have more descriptors than one.
    let mut sets: Vec<&Arc<Set>> = sets.iter().collect();
    sets.sort_by_key(|set| Arc::as_ptr(set));
    sets.dedup_by_key(|set| Arc::as_ptr(set));
    for turn in 0..FORK_TRIES {
        let mut held = Vec::with_capacity(sets.len());
        for (at, set) in sets.iter().enumerate() {
            match set.held() {
                Some(one) => held.push(one),
                // In the last turn: who is at it has been interrupted by a handler that forks, as it takes so long.
                None if turn + 1 == FORK_TRIES => {}
                None => {
                    // The one that others hold is the first one of the next turn.
                    sets.swap(0, at);
                    held.clear();
                    break;
                }
            }
        }
        if turn + 1 == FORK_TRIES || held.len() == sets.len() {
            return held;
        }
        if turn < FORK_YIELDS { thread::yield_now() } else { thread::sleep(FORK_NAP) }
    }
    Vec::new()
}

pub(crate) fn after_fork() {
    drop(forked());
}

/// In the child no thread sleeps; those of the parent do so for the parent.
pub(crate) fn in_child() {
    for (mut inner, _set) in forked() {
        inner.sleepers = 0;
        inner.looked.iter_mut().for_each(|interest| interest.sleeps = false);
        inner.children.iter_mut().for_each(|child| child.sleeps = false);
    }
}

pub(crate) fn bits(flags: u32) -> c_int {
    flags.cast_signed()
}

impl Interest {
    pub(crate) fn new(fd: c_int, conn: Arc<Conn>, event: epoll_event) -> Self {
        Self {
            fd,
            conn,
            wants: event.events,
            data: event.u64,
            kernel: 0,
            is_off: false,
            told: [None; 2],
            arrived: 0,
            turn: 0,
            at: 0,
            sleeps: false,
            still: 0,
        }
    }

    /// It changes as `EPOLL_CTL_MOD` has it.
    pub(crate) fn renew(&mut self, event: epoll_event) {
        (self.wants, self.data, self.is_off, self.told, self.still) = (event.events, event.u64, false, [None; 2], 0);
    }

    /// Whether it can be left to the kernel as it sleeps: nothing is there, and what comes through the ring wakes. That is so, too, where
    /// the other end has said nothing since there is memory, or there is none yet.
    fn is_quiet(&self) -> bool {
        let is_there = |bell| !matches!(self.conn.end.is_ready(bell), Ok(Some(false) | None));
        !(is_there(Bell::Message) || self.has(OUT) && is_there(Bell::Room)) && self.asks() == self.kernel
    }

    /// It has no memory yet.
    fn is_open(&self) -> bool {
        !self.conn.is_attached() && !self.conn.is_given() && !self.conn.is_closed()
    }

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

    pub(crate) fn change(&mut self, set: c_int, change: c_int) -> c_int {
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

    pub(crate) fn wakes(&mut self) {
        if mem::take(&mut self.sleeps) {
            self.conn.end.woke();
        }
    }

    /// It is new, or has changed, as threads sleep for the set: they are woken if it is ready, and else once it is.
    pub(crate) fn joins(&mut self, set: c_int) {
        self.sleeps();
        if ready(&self.conn, bits(self.wants), 0) != 0 {
            self.kicks(set);
        }
    }

    /// Wakes those who sleep for the set: the kernel has always room, and says so at once; who waits next asks it for what is right.
    fn kicks(&mut self, set: c_int) {
        self.kernel |= libc::EPOLLOUT.cast_unsigned();
        let mut event = epoll_event { events: self.kernel, u64: TOKEN | u64::from(self.fd.cast_unsigned()) };
        // SAFETY: the event is there.
        unsafe { real::epoll_ctl(set, libc::EPOLL_CTL_MOD, self.fd, &raw mut event) };
    }

    /// The kernel says that something has come over TCP. What wakes is taken, or left so that it wakes others, too. `others`: more threads
    /// sleep for the set. False: it was left for those that sleep for the connection by other means.
    pub(crate) fn hears(&mut self, others: bool) -> bool {
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
        let is_taken = hears(&self.conn);
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

    /// What is to be told, if the kernel has said that, with [`Conn::reads`] and [`Conn::full`] as they were.
    fn due(&self, kernel: c_int) -> (c_int, [Option<u32>; 2]) {
        let conn = &self.conn;
        let now = [&conn.reads, &conn.full].map(|count| Some(count.load(Ordering::Acquire)));
        if self.is_off {
            return (0, now);
        }
        let due = ready(conn, bits(self.wants), kernel);
        let mut new = due;
        if self.has(libc::EPOLLET) && kernel == 0 {
            let full = now[1] == self.told[1];
            let ends = IN | RDHUP | libc::EPOLLHUP;
            new &= !(if self.has_told_all() { ends } else { 0 } | if full { OUT } else { 0 });
        } else if self.has(libc::EPOLLET)
            && now[1] == self.told[1]
            && conn.end.is_ready(Bell::Room).is_ok_and(|is| is.is_some())
        {
            new &= !OUT;
        }
        // With what is new all that is true is told.
        (if new == 0 { 0 } else { due }, now)
    }

    fn tells(&mut self, kernel: c_int) -> Option<epoll_event> {
        let (mut due, mut now) = self.due(kernel);
        let end = &self.conn.end;
        // Of an edge-triggered one that has something behind what TCP has, and which is not read.
        let is_behind = || self.conn.is_attached() && !end.is_on_ring(Bell::Message) && self.arrived != end.arrived();
        let has_more = || self.has(libc::EPOLLET) && self.has(IN) && is_behind();
        if kernel == 0 && !self.is_off && (due != 0 || has_more()) {
            let says = polled(&self.conn, bits(self.wants));
            if says != 0 {
                (due, now) = self.due(says);
            }
        }
        if due == 0 {
            return None;
        }
        for (which, flags) in [IN | RDHUP | libc::EPOLLHUP, OUT].into_iter().enumerate() {
            if due & flags != 0 {
                self.told[which] = now[which];
                if which == 0 && self.has(libc::EPOLLET) {
                    self.arrived = self.conn.end.arrived();
                }
            }
        }
        (self.is_off, self.still) = (self.has(libc::EPOLLONESHOT), 0);
        if self.is_off {
            self.wakes();
        }
        Some(epoll_event { events: due.cast_unsigned(), u64: self.data })
    }
}

impl Drop for Interest {
    fn drop(&mut self) {
        self.wakes();
    }
}

/// Another set that is waited for by a set.
pub(crate) struct Child {
    fd: c_int,
    set: Weak<Set>,
    wants: u32,
    data: u64,
    /// One shot was told, and whether the kernel knows.
    is_off: bool,
    is_silent: bool,
    /// As it was looked at last, and how often it was waited for until then.
    was_ready: bool,
    waited: u32,
    turn: u64,
    /// It is slept for.
    sleeps: bool,
}

impl Child {
    pub(crate) fn new(fd: c_int, set: &Arc<Set>, event: epoll_event) -> Self {
        Self {
            fd,
            set: Arc::downgrade(set),
            wants: event.events,
            data: event.u64,
            is_off: false,
            is_silent: false,
            was_ready: false,
            waited: 0,
            turn: 0,
            sleeps: false,
        }
    }

    /// The kernel says something of its members itself, as far as that wakes.
    pub(crate) fn change(&mut self, set: c_int, change: c_int) -> c_int {
        let events = if self.is_off { 0 } else { self.wants };
        let mut event = epoll_event { events, u64: TOKEN | u64::from(self.fd.cast_unsigned()) };
        self.is_silent = self.is_off;
        // SAFETY: the event is there.
        unsafe { real::epoll_ctl(set, change, self.fd, &raw mut event) }
    }

    fn is_ready(&self) -> bool {
        !self.is_off && bits(self.wants) & IN != 0 && self.set.upgrade().is_some_and(|set| set.is_ready())
    }

    fn tells(&mut self, kernel: c_int) -> Option<epoll_event> {
        let (is_ready, was_ready) = (self.is_ready(), self.was_ready);
        self.was_ready = is_ready;
        let waited = self.set.upgrade().map_or(0, |set| set.waited.load(Ordering::Acquire));
        // What was ready may have been taken, and more have come.
        let was_ready = was_ready && mem::replace(&mut self.waited, waited) == waited;
        let is_new = is_ready && !(was_ready && bits(self.wants) & libc::EPOLLET != 0);
        let due = bits(self.wants) & (kernel | if is_new { IN } else { 0 });
        if self.is_off || due == 0 {
            return None;
        }
        self.is_off = bits(self.wants) & libc::EPOLLONESHOT != 0;
        Some(epoll_event { events: due.cast_unsigned(), u64: self.data })
    }

    fn sleeps(&mut self) {
        if !self.sleeps
            && let Some(set) = self.set.upgrade()
        {
            self.sleeps = true;
            set.lock().sleeps();
        }
    }

    /// As [`Interest::joins`].
    pub(crate) fn joins(&mut self) {
        self.sleeps();
        if self.is_ready()
            && let Some(set) = self.set.upgrade()
        {
            set.lock().kicks(self.fd);
        }
    }

    fn wakes(&mut self) {
        if mem::take(&mut self.sleeps)
            && let Some(set) = self.set.upgrade()
        {
            set.wakes();
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.wakes();
    }
}

impl Inner {
    /// A thread sleeps from now on.
    fn sleeps(&mut self) {
        self.sleepers += 1;
        self.looked.iter_mut().for_each(Interest::sleeps);
        self.children.iter_mut().for_each(Child::sleeps);
    }

    /// Something is ready: who sleeps for the set is woken.
    fn kicks(&mut self, set: c_int) {
        if let Some(interest) = self.looked.iter_mut().find(|interest| interest.due(0).0 != 0) {
            interest.kicks(set);
        } else if let Some(child) = self.children.iter_mut().find(|child| child.is_ready()) {
            child.joins();
        }
    }

    /// Whether it is worth to look without the kernel.
    pub(crate) fn has_attached(&self) -> bool {
        self.looked.iter().any(|interest| !interest.is_off && interest.conn.is_attached()) || !self.children.is_empty()
    }

    pub(crate) fn push_child(&mut self, new: Child) {
        self.children.push(new);
    }

    pub(crate) fn push(&mut self, new: Interest) {
        self.has_open |= new.is_open();
        self.looked.push(new);
    }

    /// The one of a descriptor, which is looked at from now on.
    pub(crate) fn one(&mut self, fd: c_int) -> Option<&mut Interest> {
        self.looked.extend(self.quiet.remove(&fd));
        self.looked.iter_mut().find(|interest| interest.fd == fd && !interest.conn.is_closed())
    }

    /// Forgets the one of a descriptor, also of one that was closed.
    pub(crate) fn forgets(&mut self, fd: c_int) {
        self.quiet.remove(&fd);
        self.looked.retain(|interest| interest.fd != fd);
        self.children.retain(|child| child.fd != fd);
    }

    /// What is ready, into the rest of the events.
    pub(crate) fn tells(&mut self, into: &mut [epoll_event], turn: u64) -> usize {
        let mut count = 0;
        // Those that were told last come last.
        for interest in &mut self.looked {
            if count == into.len() {
                break;
            }
            if interest.turn != turn
                && let Some(event) = interest.tells(0)
            {
                (into[count], interest.turn, interest.at) = (event, turn, count);
                count += 1;
            }
        }
        if count > 0 && count == into.len() && !self.looked.is_empty() {
            self.looked.rotate_left(1);
        }
        for child in &mut self.children {
            if count < into.len()
                && child.turn != turn
                && let Some(event) = child.tells(0)
            {
                (into[count], child.turn) = (event, turn);
                count += 1;
            }
        }
        count
    }

    /// The kernel has said something of a descriptor in a turn of a wait, which may sleep and has those events: what is to be told behind
    /// them, and whether what wakes was left for others.
    pub(crate) fn hears(
        &mut self,
        fd: c_int,
        kernel: c_int,
        (turn, events): (u64, &mut [epoll_event]),
        is_asleep: bool,
    ) -> Option<(Option<epoll_event>, bool)> {
        let (others, is_awake) = (self.sleepers > u32::from(is_asleep), self.sleepers == 0);
        if let Some(child) = self.children.iter_mut().find(|child| child.fd == fd) {
            let told = if child.turn == turn { None } else { child.tells(kernel) };
            if told.is_some() {
                child.turn = turn;
            }
            return Some((told, false));
        }
        let interest = self.one(fd)?;
        sends(&interest.conn, kernel);
        let is_left = kernel & libc::EPOLLIN != 0 && !interest.hears(others);
        let told = if interest.turn == turn {
            // What the ring knows nothing of belongs to the event that was told.
            if let Some(event) = events.get_mut(interest.at) {
                event.events |= (kernel & beside(bits(interest.wants))).cast_unsigned();
            }
            None
        } else {
            interest.tells(kernel)
        };
        if told.is_some() {
            (interest.turn, interest.at) = (turn, events.len());
        }
        if is_awake {
            interest.wakes();
        }
        Some((told, is_left))
    }

    /// Those that have not been ready for a while are left to the kernel.
    fn quietens(&mut self) {
        let mut at = 0;
        while self.looked.len() > LOOKED_MIN && at < self.looked.len() {
            let interest = &mut self.looked[at];
            interest.still += 1;
            if interest.still > QUIET && interest.sleeps && interest.is_quiet() {
                let quiet = self.looked.swap_remove(at);
                self.quiet_open += usize::from(quiet.is_open());
                self.quiet.insert(quiet.fd, quiet);
            } else {
                at += 1;
            }
        }
    }
}

impl Set {
    /// Of a descriptor.
    pub(crate) fn of(set: c_int) -> Option<Arc<Self>> {
        if SETS.get(set).is_none() {
            let new = Self::default();
            new.is_polled.store(before::has(set), Ordering::Relaxed);
            // Another thread may do so, too.
            SETS.add(set, Arc::new(new));
        }
        SETS.get(set)
    }

    /// None: somebody else holds it.
    fn held(self: &Arc<Self>) -> Option<Held> {
        let inner = match self.inner.try_lock() {
            Ok(inner) => inner,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        // SAFETY: the set stays as long as this, which lies before it and is dropped first.
        Some((unsafe { mem::transmute::<MutexGuard<'_, Inner>, MutexGuard<'static, Inner>>(inner) }, Arc::clone(self)))
    }

    pub(crate) fn is_asked(&self, events: u32) {
        if bits(events) & (libc::EPOLLET | libc::EPOLLONESHOT | libc::EPOLLPRI) != 0 {
            self.has_edges.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has become the kernel's is given back to it, what is closed is forgotten, and the kernel is asked for what it is to say now.
    pub(crate) fn tidies(&self, set: c_int) {
        self.asks_for_memory();
        let mut inner = self.lock();
        let closed = conn::CLOSED.load(Ordering::Relaxed);
        if mem::replace(&mut inner.closed, closed) != closed {
            inner.quiet.retain(|_, interest| !interest.conn.is_closed());
        }
        inner.children.retain_mut(|child| {
            if child.is_off && !child.is_silent {
                child.change(set, libc::EPOLL_CTL_MOD);
            }
            child.set.strong_count() > 0
        });
        let mut has_open = false;
        inner.looked.retain_mut(|interest| {
            has_open |= interest.is_open();
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
        inner.has_open = has_open;
    }

    /// Connections that have no memory yet ask whether it has come, but not in each wait, and now and then each of them.
    fn asks_for_memory(&self) {
        let mut inner = self.lock();
        let now = (inner.has_open || inner.quiet_open > 0).then(Instant::now);
        let Some(now) = now.filter(|now| inner.opens_at.is_none_or(|at| *now >= at)) else { return };
        inner.opens_at = Some(now + OPENS_APART);
        if inner.all_open_at.is_some_and(|at| now < at) {
            drop(inner);
            // An answer is for any connection, also of another set.
            return monitor::answers();
        }
        inner.all_open_at = Some(now + ALL_OPEN_APART);
        let all = inner.looked.iter().chain(inner.quiet.values());
        let open: Vec<_> = all.filter(|one| one.is_open()).map(|one| Arc::clone(&one.conn)).collect();
        drop(inner);
        open.iter().for_each(|conn| conn.goes_on(conn.fd()));
        let mut inner = self.lock();
        let is_tcp: Vec<c_int> = inner.quiet.values().filter(|one| one.conn.is_tcp()).map(|one| one.fd).collect();
        let is_tcp: Vec<_> = is_tcp.iter().filter_map(|fd| inner.quiet.remove(fd)).collect();
        inner.looked.extend(is_tcp);
        inner.quiet_open = inner.quiet.values().filter(|one| one.is_open()).count();
    }

    /// Whether a wait that has something is done without the kernel, which is asked now and then. What has woken is taken later then; of what
    /// is edge-triggered it would be one event more.
    pub(crate) fn skips(&self) -> bool {
        !self.has_edges.load(Ordering::Relaxed)
            && self.skipped.fetch_add(1, Ordering::Relaxed) % (SKIPPED_MAX + 1) < SKIPPED_MAX
    }

    pub(crate) fn seems_ready(&self) -> bool {
        let inner = self.lock();
        let seems = |interest: &Interest| {
            !interest.is_off
                && (interest.has(IN)
                    && !(interest.has(libc::EPOLLET) && interest.has_told_all())
                    && interest.conn.end.seems_ready(Bell::Message)
                    || interest.has(OUT)
                        && !(interest.has(libc::EPOLLET)
                            && interest.told[1] == Some(interest.conn.full.load(Ordering::Relaxed)))
                        && interest.conn.end.seems_ready(Bell::Room))
        };
        inner.looked.iter().any(seems)
            || inner.children.iter().any(|child| child.set.upgrade().is_some_and(|set| set.seems_ready()))
    }

    /// From now on the other ends wake this thread. What is ready meanwhile.
    pub(crate) fn sleeps(&self, into: &mut [epoll_event], turn: u64) -> usize {
        let mut inner = self.lock();
        inner.sleeps();
        let count = inner.tells(into, turn);
        if count == 0 {
            inner.quietens();
        }
        count
    }

    pub(crate) fn wakes(&self) {
        let mut inner = self.lock();
        inner.sleepers -= 1;
        if inner.sleepers == 0 {
            inner.looked.iter_mut().for_each(Interest::wakes);
            inner.children.iter_mut().for_each(Child::wakes);
        }
    }

    /// A thread sleeps for it by other means, until [`Set::wakes`].
    pub(crate) fn is_slept_for(&self) {
        self.lock().sleeps();
    }

    /// Whether a wait for it has something, as far as that is known without the kernel.
    pub(crate) fn is_ready(&self) -> bool {
        let inner = self.lock();
        inner.looked.iter().any(|interest| interest.due(0).0 != 0) || inner.children.iter().any(Child::is_ready)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Numbers that no other test has.
    const FDS: [c_int; 2] = [700_001, 700_002];

    /// Each sleep would cost as much as there are connections.
    #[test]
    fn connections_without_memory_are_left_to_the_kernel_and_asked_for_now_and_then() {
        let set = Set::default();
        let event = epoll_event { events: libc::EPOLLIN.cast_unsigned(), u64: 0 };
        for fd in 0..40 {
            let mut interest = Interest::new(fd, Conn::opened(fd), event);
            interest.kernel = interest.asks();
            set.lock().push(interest);
        }
        for _ in 0..=QUIET {
            assert_eq!(set.sleeps(&mut [], 1), 0);
            set.wakes();
        }
        let mut inner = set.lock();
        assert_eq!((inner.looked.len(), inner.quiet_open), (LOOKED_MIN, 40 - LOOKED_MIN));
        let quiet = inner.quiet.values().next().map(|interest| Arc::clone(&interest.conn)).unwrap();
        inner.all_open_at = None;
        drop(inner);
        quiet.stays_tcp();
        set.asks_for_memory();
        let inner = set.lock();
        assert!(inner.looked.iter().any(|interest| Arc::ptr_eq(&interest.conn, &quiet)), "it is given back");
        assert_eq!(inner.quiet_open, 40 - LOOKED_MIN - 1);
    }

    #[test]
    fn before_a_fork_all_sets_are_held_and_nobody_counts_as_one_that_sleeps() {
        let [inner, outer] = FDS.map(|fd| Set::of(fd).unwrap());
        let event = epoll_event { events: libc::EPOLLIN.cast_unsigned(), u64: 0 };
        let conn = Conn::opened(3);
        let mut interest = Interest::new(3, Arc::clone(&conn), event);
        interest.sleeps();
        inner.lock().quiet.insert(3, interest);
        // A second descriptor of it.
        SETS.put(700_003, Some(Arc::clone(&outer)));
        let is_over = AtomicBool::new(false);
        let held = thread::scope(|scope| {
            // As one that sleeps for a set in a set.
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let of_outer = outer.lock();
                    thread::sleep(Duration::from_micros(50));
                    drop(inner.lock());
                    drop(of_outer);
                    thread::sleep(Duration::from_micros(50));
                }
            });
            let held = (0..50).map(|_| {
                before_fork();
                let held = forked();
                thread::sleep(Duration::from_micros(100));
                [&inner, &outer].map(|set| held.iter().filter(|(_, of)| Arc::ptr_eq(of, set)).count())
            });
            let held: Vec<_> = held.collect();
            is_over.store(true, Ordering::Relaxed);
            held
        });
        assert_eq!(held, [[1, 1]; 50]);
        let of = inner.lock();
        assert!(of.quiet.is_empty() && of.looked.len() == 1 && !of.looked[0].sleeps);
        drop(of);
        FDS.into_iter().chain([700_003]).for_each(|fd| _ = SETS.put(fd, None));
    }
}
