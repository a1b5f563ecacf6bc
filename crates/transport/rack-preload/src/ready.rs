// SPDX-License-Identifier: Apache-2.0
//! What is asked of the kernel for a connection that is attached, and what is true of it.

use std::{
    hint,
    time::{Duration, Instant},
};

use fide_rack::window::Bell;
use libc::c_int;

use crate::conn::{Conn, borrowed};

pub(crate) const IN: c_int = libc::EPOLLIN | libc::EPOLLRDNORM;
pub(crate) const OUT: c_int = libc::EPOLLOUT | libc::EPOLLWRNORM;
pub(crate) const RDHUP: c_int = libc::EPOLLRDHUP;
const ENDS: c_int = libc::EPOLLERR | libc::EPOLLHUP;

/// How long it is looked before a sleep: to sleep and to be woken costs about as much.
pub(crate) const LOOKS: Duration = Duration::from_micros(50);
/// Before the next look, if what wakes is left for others.
const NAP: Duration = Duration::from_millis(1);

/// What is asked of the kernel: bytes that wake come for room, too. Its buffer is always empty, and says nothing of room.
pub(crate) fn asked(conn: &Conn, wants: c_int) -> c_int {
    let is_by = |bell| matches!(conn.end.is_ready(bell), Ok(Some(_)));
    let mut asked = wants & !(IN | OUT);
    // Also if only room is wanted and the kernel knows of it: the memory may come meanwhile.
    if wants & (IN | OUT | RDHUP) != 0 {
        asked |= libc::EPOLLIN;
    }
    if wants & OUT != 0 && !is_by(Bell::Room) {
        asked |= libc::EPOLLOUT;
    }
    asked
}

/// What is true of what is wanted, if the kernel has said that.
pub(crate) fn ready(conn: &Conn, wants: c_int, kernel: c_int) -> c_int {
    let mut ready = kernel & (ENDS | wants & (RDHUP | libc::EPOLLPRI));
    for (bell, flags) in [(Bell::Message, IN), (Bell::Room, OUT)] {
        ready |= wants
            & flags
            & match conn.end.is_ready(bell) {
                Ok(Some(true)) => flags,
                Ok(Some(false)) => 0,
                Ok(None) => kernel,
                // The call that comes next says what it is.
                Err(_) => flags,
            };
    }
    if wants & RDHUP != 0 && conn.end.is_ended() {
        ready |= RDHUP;
    }
    ready
}

/// From now on the other end wakes.
pub(crate) fn arms(conn: &Conn, wants: c_int) {
    if wants & (IN | RDHUP) != 0 {
        conn.end.arms(Bell::Message);
    }
    if wants & OUT != 0 {
        conn.end.arms(Bell::Room);
    }
}

/// The kernel says that something has come over TCP. What wakes is taken.
pub(crate) fn hears(conn: &Conn, fd: i32) -> bool {
    let is_by = matches!(conn.end.is_ready(Bell::Message), Ok(Some(_)));
    // What comes while TCP is still read is the program's.
    !is_by || conn.end.hears(borrowed(fd)).unwrap_or(true)
}

/// What wakes was left for others.
pub(crate) fn naps(until: Option<Instant>) {
    let left = until.map_or(NAP, |until| until.saturating_duration_since(Instant::now()));
    std::thread::sleep(left.min(NAP));
}

/// Looks for a moment. True: it has come.
pub(crate) fn looks(until: Option<Instant>, mut has_come: impl FnMut() -> bool) -> bool {
    let ends = Instant::now() + LOOKS;
    let ends = until.map_or(ends, |until| until.min(ends));
    while Instant::now() < ends {
        for _ in 0..4 {
            if has_come() {
                return true;
            }
            hint::spin_loop();
        }
    }
    false
}
