// SPDX-License-Identifier: Apache-2.0
//! When a server that takes data over leaves the other server's stream.
//!
//! The stream behind a dump begins where the dump did, and in it are marks of that time, if another server was joining
//! then. The group keeps its last decisions for servers that join, and not for as long as a dump takes to write, to send
//! and to load. So a server goes on with the stream until it has caught up: for [`QUIET`] little has waited to be read.
//! It leaves at the next mark, or at the last one, if nothing has come behind it: a leader of the version before marks
//! only what it decides, and may be idle.

use std::{
    cell::{Cell, RefCell},
    os::fd::{BorrowedFd, RawFd},
    time::{Duration, Instant},
};

use super::{ERRORS, call};
use crate::redis::Ctx;

/// A leader that has more to send does so at least so often.
const QUIET: Duration = Duration::from_millis(100);
/// Bytes that may wait to be read: much less than the decisions that the group keeps, so that the leader, which waits
/// for its members, does the rest of the waiting.
const BEHIND_MAX: u64 = 512 << 10;
/// Of the room for unread bytes, this share at most: where more waits, the other server may have more to send.
const ROOM_SHARE: u64 = 8;
/// Longest time to catch up with a leader that writes faster than this server reads. After that the group may still
/// have what is missing.
const CATCH_UP_MAX: Duration = Duration::from_secs(20);
/// Between two looks at which connection it is.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// An offer that stands for so long is meant: the group does not keep the decisions any more that would bring this
/// server's data up to date. One that came late is dropped as soon as the group lets this server in.
const OFFER_MAX: Duration = Duration::from_secs(2);

/// How far this server is.
#[derive(Debug, Default)]
struct CatchUp {
    /// The first mark.
    since: Option<Instant>,
    /// When much was seen to wait.
    behind: Option<Instant>,
    /// The position of the last mark, behind which nothing has come.
    last: Option<u64>,
}

impl CatchUp {
    /// A mark has come, and so many bytes wait. Whether this server may leave here.
    fn note_mark(&mut self, now: Instant, position: u64, is_behind: bool) -> bool {
        self.since.get_or_insert(now);
        if is_behind {
            self.behind = Some(now);
        }
        self.last = Some(position);
        self.is_there(now)
    }

    fn is_there(&self, now: Instant) -> bool {
        let Some(since) = self.since else { return false };
        let quiet = now.duration_since(self.behind.unwrap_or(since).max(since));
        quiet >= QUIET || now.duration_since(since) >= CATCH_UP_MAX
    }

    /// The position of the last mark, if nothing has come since and this server has caught up.
    fn rest(&self, now: Instant) -> Option<u64> {
        self.last.filter(|_| self.is_there(now))
    }
}

thread_local! {
    static CATCH_UP: RefCell<CatchUp> = RefCell::new(CatchUp::default());
    /// The connection to the server that the data comes from, and when that was looked for.
    static LINK: Cell<Option<(Instant, RawFd)>> = const { Cell::new(None) };
    /// Since when data is offered to this server, which has some.
    static OFFERED: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Another server's data is taken over from here on.
pub(super) fn begin() {
    CATCH_UP.set(CatchUp::default());
    LINK.set(None);
}

/// A command of the stream: a server that left at the last mark now would lack it.
pub(super) fn note_command() {
    CATCH_UP.with_borrow_mut(|catch_up| catch_up.last = None);
}

/// A mark has come. Whether this server may leave the stream here.
pub(super) fn may_leave_at(ctx: Ctx, position: u64) -> bool {
    let is_behind = is_behind(ctx);
    CATCH_UP.with_borrow_mut(|catch_up| catch_up.note_mark(Instant::now(), position, is_behind))
}

/// In each tick of a server that takes data over: the position of the last mark, if it may leave there.
pub(super) fn rest(ctx: Ctx) -> Option<u64> {
    let position = CATCH_UP.with_borrow(|catch_up| catch_up.rest(Instant::now()))?;
    (!is_behind(ctx)).then_some(position)
}

fn is_behind(ctx: Ctx) -> bool {
    let known = LINK.get().filter(|(looked, _)| looked.elapsed() < LOOK_EVERY);
    let fd = known.map(|(_, fd)| fd).or_else(|| {
        let list = call(ctx, ERRORS, &[b"CLIENT", b"LIST", b"TYPE", b"master"]);
        let fd = descriptor_in(&String::from_utf8_lossy(list.bytes()))?;
        LINK.set(Some((Instant::now(), fd)));
        Some(fd)
    });
    fd.is_some_and(waits_on)
}

fn waits_on(fd: RawFd) -> bool {
    // SAFETY: the connection on which the marks come, or one that had its number a moment ago: asked for is only how
    // much waits there.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let room = rustix::net::sockopt::socket_recv_buffer_size(fd).unwrap_or(0);
    rustix::io::ioctl_fionread(fd).is_ok_and(|bytes| bytes > BEHIND_MAX.min(room as u64 / ROOM_SHARE))
}

fn descriptor_in(list: &str) -> Option<i32> {
    list.split(' ').find_map(|field| field.strip_prefix("fd=")?.parse().ok()).filter(|fd| *fd >= 0)
}

/// No data is offered.
pub(super) fn note_no_offer() {
    OFFERED.set(None);
}

/// Data is offered. Whether it has to be taken over although this server has the group's data (`has_data`).
pub(super) fn is_left_behind(has_data: bool) -> bool {
    let since = has_data.then(|| OFFERED.get().unwrap_or_else(Instant::now));
    let is_late = since.is_some_and(|since| since.elapsed() > OFFER_MAX);
    OFFERED.set(since.filter(|_| !is_late));
    is_late
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn descriptor_is_found_in_a_list_of_clients() {
        assert_eq!(descriptor_in("$80\r\nid=5 addr=10.0.0.1:6379 laddr=10.0.0.2:5 fd=11 name= flags=M\n"), Some(11));
        assert_eq!(descriptor_in("$40\r\nid=5 addr=? fd=-1 name=\n"), None);
        assert_eq!(descriptor_in("$0\r\n\r\n"), None);
    }

    #[test]
    fn server_leaves_once_little_has_waited_for_a_while() {
        let (mut catch_up, begin) = (CatchUp::default(), Instant::now());
        assert!(!catch_up.note_mark(begin, 5, false), "what comes next is not here yet");
        assert!(!catch_up.note_mark(begin + 50 * MS, 6, true));
        assert!(!catch_up.note_mark(begin + 120 * MS, 7, false), "not quiet for long enough");
        assert!(catch_up.note_mark(begin + 150 * MS, 8, false));
    }

    #[test]
    fn server_leaves_at_the_last_mark_if_nothing_comes_behind_it() {
        let (mut catch_up, begin) = (CatchUp::default(), Instant::now());
        assert_eq!(catch_up.rest(begin), None);
        catch_up.note_mark(begin, 5, false);
        assert_eq!((catch_up.rest(begin + 99 * MS), catch_up.rest(begin + 100 * MS)), (None, Some(5)));
        catch_up.last = None;
        assert_eq!(catch_up.rest(begin + 200 * MS), None, "a command came behind it");
    }

    #[test]
    fn server_that_never_catches_up_leaves_in_the_end() {
        let (mut catch_up, begin) = (CatchUp::default(), Instant::now());
        assert!(!catch_up.note_mark(begin, 5, true) && !catch_up.note_mark(begin + CATCH_UP_MAX / 2, 6, true));
        assert!(catch_up.note_mark(begin + CATCH_UP_MAX, 7, true));
    }
}
