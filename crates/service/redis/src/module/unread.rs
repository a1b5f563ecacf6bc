// SPDX-License-Identifier: Apache-2.0
//! Clients whose earlier replies Redis could not write yet.
//!
//! Redis writes the rest of them as soon as the connection takes it, also in the middle of a turn, and with it
//! whatever the client was replied since. So what such a client writes is decided before it is answered, not
//! at the end of the turn. Redis waits for these connections with its epoll, which tells of one as long as it
//! is ready: asked again in a turn, it names all that Redis has yet to write to in that turn, and maybe some that have
//! become ready since.

use std::{
    collections::{HashMap, HashSet},
    os::fd::{BorrowedFd, RawFd},
};

use rustix::{
    buffer::spare_capacity,
    event::{Timespec, epoll},
};

/// Most clients whose descriptors are remembered.
const DESCRIPTORS_MAX: usize = 100_000;
/// Most connections that are asked for at once; beyond that all may have unread replies.
const READY_MAX: usize = 100_000;
const READY_AT_FIRST: usize = 256;

/// What is known of clients with unread replies.
#[derive(Default)]
pub(super) struct Unread {
    epoll: Option<RawFd>,
    /// Descriptors that Redis is about to write to.
    writable: HashSet<RawFd>,
    /// The loop was asked in this turn: Redis watches others only at the end of a turn.
    is_known: bool,
    ready: Vec<epoll::Event>,
    /// Descriptors of clients, by their ids, which are never used again.
    descriptors: HashMap<u64, RawFd>,
}

impl Unread {
    /// For the loop with this epoll descriptor.
    pub(super) fn of_loop(epoll: Option<RawFd>) -> Self {
        Self { epoll, ..Self::default() }
    }

    /// A new turn begins.
    pub(super) fn begin_turn(&mut self) {
        self.is_known = false;
    }

    /// Whether any connection has unread replies. Of an unknown loop, all may have.
    pub(super) fn is_any(&mut self) -> bool {
        if !self.is_known {
            self.ask();
        }
        self.epoll.is_none() || !self.writable.is_empty()
    }

    /// The descriptor of a client's connection, if it was asked for before.
    pub(super) fn descriptor(&self, client: u64) -> Option<RawFd> {
        self.descriptors.get(&client).copied()
    }

    /// Whether a client with this descriptor has. None: it was not found.
    pub(super) fn is_of(&mut self, client: u64, fd: Option<RawFd>) -> bool {
        if self.descriptors.len() >= DESCRIPTORS_MAX {
            self.descriptors.clear();
        }
        self.descriptors.extend(fd.map(|fd| (client, fd)));
        self.is_any() && (self.epoll.is_none() || fd.is_none_or(|fd| self.writable.contains(&fd)))
    }

    fn ask(&mut self) {
        let Some(epoll) = self.epoll else { return };
        // SAFETY: Redis' loop is open as long as the process lives.
        let epoll = unsafe { BorrowedFd::borrow_raw(epoll) };
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        self.ready.clear();
        self.ready.reserve(READY_AT_FIRST);
        while epoll::wait(epoll, spare_capacity(&mut self.ready), Some(&at_once)).is_ok() {
            if self.ready.len() < self.ready.capacity() {
                let writable = self.ready.iter().filter(|event| ({ event.flags }).contains(epoll::EventFlags::OUT));
                self.writable.clear();
                // Redis keeps the descriptor in its first four bytes.
                self.writable.extend(writable.filter_map(|event| RawFd::try_from(event.data.u64() & 0xffff_ffff).ok()));
                self.is_known = true;
                return;
            }
            let more = 2 * self.ready.len();
            if more > READY_MAX {
                break;
            }
            self.ready.clear();
            self.ready.reserve(more);
        }
        self.epoll = None;
    }
}

/// The epoll descriptor of this process that watches this one.
pub(super) fn epoll_that_watches(fd: RawFd) -> Option<RawFd> {
    let watched = format!("tfd: {fd:>8} ");
    std::fs::read_dir("/proc/self/fdinfo").ok()?.flatten().find_map(|entry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        let info = std::fs::read_to_string(entry.path()).ok()?;
        info.contains(&watched).then_some(number)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    fn watch(set: &impl std::os::fd::AsFd, fd: &impl std::os::fd::AsFd, flags: epoll::EventFlags) {
        let number = u64::try_from(fd.as_fd().as_raw_fd()).unwrap();
        epoll::add(set, fd, epoll::EventData::new_u64(number), flags).unwrap();
    }

    #[test]
    fn descriptors_that_redis_is_about_to_write_to_are_found() {
        let (one, two) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        watch(&set, &one.0, epoll::EventFlags::IN);
        let mut unread = Unread::of_loop(epoll_that_watches(one.0.as_raw_fd()));
        assert!(!unread.is_any());
        watch(&set, &two.1, epoll::EventFlags::OUT);
        assert!(!unread.is_any(), "not before the next turn");
        unread.begin_turn();
        assert!(unread.is_of(7, Some(two.1.as_raw_fd())));
        assert!(!unread.is_of(8, Some(one.0.as_raw_fd())));
        assert_eq!((unread.descriptor(7), unread.descriptor(9)), (Some(two.1.as_raw_fd()), None));
        assert!(unread.is_of(9, None), "who is not found may have");
        epoll::delete(&set, &two.1).unwrap();
        unread.begin_turn();
        assert!(!unread.is_any());
    }

    #[test]
    fn each_question_has_the_same_answer_and_takes_nothing_away() {
        let pipes: Vec<_> = (0..2 * READY_AT_FIRST).map(|_| std::io::pipe().unwrap()).collect();
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        pipes.iter().for_each(|(_, write)| watch(&set, write, epoll::EventFlags::OUT));
        let mut unread = Unread::of_loop(Some(set.as_raw_fd()));
        for _ in 0..3 {
            unread.begin_turn();
            assert!(unread.is_any());
            assert_eq!(unread.writable.len(), pipes.len(), "more than were asked for at first");
        }
        let mut events = Vec::with_capacity(pipes.len() + 1);
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        epoll::wait(&set, spare_capacity(&mut events), Some(&at_once)).unwrap();
        assert_eq!(events.len(), pipes.len(), "Redis is told of all of them, too");
    }

    #[test]
    fn of_an_unknown_loop_everybody_may_have_unread_replies() {
        let mut unread = Unread::of_loop(None);
        assert!(unread.is_any() && unread.is_of(1, Some(3)));
    }
}
