// SPDX-License-Identifier: Apache-2.0
//! What is asked of the kernel for a connection that is attached, and what is true of it.

use std::{
    mem, ptr,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use fide_rack::{wait::Patience, window::Bell};
use libc::{c_int, sigset_t};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::ioctl_fionread,
};

use crate::{
    conn::{Conn, borrowed},
    real::{self, bits},
    times::timespec_of,
};

pub(crate) const IN: c_int = libc::EPOLLIN | libc::EPOLLRDNORM;
pub(crate) const OUT: c_int = libc::EPOLLOUT | libc::EPOLLWRNORM;
pub(crate) const RDHUP: c_int = libc::EPOLLRDHUP;
const ENDS: c_int = libc::EPOLLERR | libc::EPOLLHUP;

/// A wait that is shorter is the kernel's alone.
const LOOKED_MIN: Duration = Duration::from_micros(100);
/// Of `SO_RCVLOWAT` not more counts, in bytes: a ring that is full of single bytes has more.
const LOW_AT_MAX: usize = 4096;
/// Before the next look, if what wakes is left for others.
const NAP: Duration = Duration::from_millis(1);

/// What is asked of the kernel: bytes that wake come for room, too. Its buffer is always empty, and says nothing of room.
pub(crate) fn asked(conn: &Conn, wants: c_int) -> c_int {
    let is_by = |bell| matches!(conn.end.is_ready(bell), Ok(Some(_)));
    let mut asked = wants & !OUT;
    // Also if only room is wanted and the kernel knows of it: the memory may come meanwhile.
    if wants & (IN | OUT | RDHUP) != 0 || conn.end.has_ended() {
        asked |= libc::EPOLLIN;
    }
    if wants & OUT != 0 && !is_by(Bell::Room) {
        asked |= wants & OUT;
    }
    if conn.end.is_sending() {
        asked |= libc::EPOLLOUT;
    }
    asked
}

/// The kernel says that there is room in TCP: what waits for that is sent.
pub(crate) fn sends(conn: &Conn, kernel: c_int) {
    if kernel & libc::EPOLLOUT != 0 && conn.end.is_sending() {
        // What is wrong with it the next call says.
        let _ = conn.end.follow(conn);
    }
}

/// Whether what is true of what is wanted is known without the kernel.
pub(crate) fn is_known(conn: &Conn, wants: c_int) -> bool {
    wants & libc::EPOLLPRI == 0
        && (wants & (IN | RDHUP) == 0 || conn.end.is_on_ring(Bell::Message))
        && (wants & OUT == 0 || conn.end.is_on_ring(Bell::Room))
        && !conn.end.is_ended()
}

/// What only the kernel says now of one that has something: bytes of TCP that are still to be read, or that the connection is gone.
pub(crate) fn polled(conn: &Conn, wants: c_int) -> c_int {
    if !conn.is_attached() || is_known(conn, wants & (IN | RDHUP)) {
        return 0;
    }
    let mut one = libc::pollfd { fd: conn.fd(), events: bits(wants & (IN | RDHUP)), revents: 0 };
    // SAFETY: it is there.
    unsafe { real::poll(&raw mut one, 1, 0) };
    c_int::from(one.revents & !libc::POLLNVAL)
}

/// Of what is wanted: what the kernel says, and nothing else.
pub(crate) fn beside(wants: c_int) -> c_int {
    ENDS | wants & (RDHUP | libc::EPOLLPRI)
}

/// What is true of what is wanted, if the kernel has said that.
pub(crate) fn ready(conn: &Conn, wants: c_int, kernel: c_int) -> c_int {
    let mut ready = kernel & beside(wants);
    for (bell, flags) in [(Bell::Message, IN), (Bell::Room, OUT)] {
        if wants & flags == 0 {
            continue;
        }
        ready |= wants
            & flags
            & match conn.end.is_ready(bell) {
                Ok(Some(true)) if bell == Bell::Message && is_below(conn) => 0,
                Ok(Some(true)) => flags,
                Ok(Some(false)) => 0,
                Ok(None) if bell == Bell::Message && kernel & flags != 0 && is_below_over_tcp(conn) => 0,
                Ok(None) => kernel,
                // The call that comes next says what it is.
                Err(_) => flags,
            };
    }
    let is_shut = conn.is_shut.load(Ordering::Relaxed);
    if is_shut {
        ready |= wants & IN;
    }
    if (wants & RDHUP != 0 || conn.end.has_ended()) && (is_shut || conn.end.is_ended()) {
        ready |= wants & RDHUP;
        if conn.end.has_ended() && conn.is_attached() {
            // TCP is not shut, as it still wakes. This is told to those who have not asked for it, too.
            ready |= libc::EPOLLHUP;
        }
    }
    ready
}

/// What is there to read is less than the program waits for (`SO_RCVLOWAT`), and more may come.
fn is_below(conn: &Conn) -> bool {
    let least = conn.low_at().min(LOW_AT_MAX);
    least > 1 && conn.end.count().is_ok_and(|count| count < least) && !conn.end.is_ended()
}

/// The same of one that has memory, and whose bytes come over TCP still, or again: the kernel does not know the mark any more, or has said
/// so of bytes that woke.
fn is_below_over_tcp(conn: &Conn) -> bool {
    if !conn.is_attached() || conn.low_at() <= 1 && !conn.end.is_leaving() {
        return false;
    }
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let (socket, least) = (borrowed(conn.fd()), conn.low_at() as u64);
    let is_over = || poll(&mut [PollFd::new(&socket, PollFlags::RDHUP)], Some(&now)) != Ok(0);
    ioctl_fionread(socket).is_ok_and(|count| count < least) && !is_over()
}

/// From now on the other end wakes.
pub(crate) fn arms(conn: &Conn, wants: c_int) {
    if wants & (IN | RDHUP) != 0 || conn.end.has_ended() {
        conn.end.arms(Bell::Message);
    }
    if wants & OUT != 0 {
        conn.end.arms(Bell::Room);
    }
}

/// The kernel says that something has come over TCP. What wakes is taken.
pub(crate) fn hears(conn: &Conn) -> bool {
    let is_by = matches!(conn.end.is_ready(Bell::Message), Ok(Some(_)));
    // What comes while TCP is still read is the program's.
    !is_by || conn.end.hears(conn).unwrap_or(true)
}

/// What wakes was left for others. False: a signal has ended it, as it ends a wait, and `errno` says so.
///
/// # Safety
/// The mask is null, or there.
pub(crate) unsafe fn naps(until: Option<Instant>, mask: *const sigset_t) -> bool {
    let left = until.map_or(NAP, |until| until.saturating_duration_since(Instant::now()));
    let left = timespec_of(left.min(NAP));
    // SAFETY: there are no descriptors, the time is there, and the mask is the caller's.
    unsafe { real::ppoll(ptr::null_mut(), 0, &raw const left, mask) >= 0 }
}

/// What is kept of the patience of those who wait, in a word: between the look of a wait and its sleep it is looked after here.
pub(crate) struct Looks<'a> {
    kept: &'a AtomicU32,
    in_vain: Option<(Patience, Instant)>,
    has_looked: bool,
}

impl<'a> Looks<'a> {
    /// `waits`: else nothing is looked for.
    pub(crate) fn new(kept: &'a AtomicU32, waits: bool) -> Self {
        Self { kept, in_vain: None, has_looked: !waits }
    }

    /// Looks for a moment, once. True: it has come.
    pub(crate) fn look(&mut self, until: Option<Instant>, has_come: impl FnMut() -> bool) -> bool {
        let now = Instant::now();
        // A short wait ends in time.
        if mem::replace(&mut self.has_looked, true) || until.is_some_and(|until| until < now + LOOKED_MIN) {
            return false;
        }
        let mut patience = Patience::of(self.kept.load(Ordering::Relaxed));
        let is_seen = patience.looks(has_come);
        if is_seen {
            self.kept.store(patience.word(), Ordering::Relaxed);
        } else {
            self.in_vain = Some((patience, now));
        }
        is_seen
    }

    /// The sleep after the look is over.
    pub(crate) fn slept(&mut self) {
        if let Some((mut patience, begun)) = self.in_vain.take() {
            patience.slept(begun.elapsed());
            self.kept.store(patience.word(), Ordering::Relaxed);
        }
    }
}
