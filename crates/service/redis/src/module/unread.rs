// SPDX-License-Identifier: Apache-2.0
//! Clients whose earlier replies Redis could not write yet.
//!
//! Redis writes the rest of them as soon as the connection takes it, also in the middle of a turn, and with it
//! whatever the client was replied since. So what such a client writes is decided before it is answered, not
//! at the end of the turn. Redis watches their descriptors for writing; the kernel's list of what its epoll
//! watches says so, in some 20 us for 60 clients.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    os::{fd::RawFd, unix::fs::FileExt},
};

/// `EPOLLOUT`, in the list's hexadecimal mask.
const WRITABLE: u32 = 4;
/// Most clients whose descriptors are remembered.
const DESCRIPTORS_MAX: usize = 100_000;
/// Longest list: that of 100,000 descriptors.
const LIST_MAX: usize = 10 << 20;

/// What is known of clients with unread replies.
#[derive(Debug, Default)]
pub(super) struct Unread {
    list: Option<File>,
    /// Descriptors that Redis watches for writing.
    writable: HashSet<RawFd>,
    /// The list was read in this turn: Redis watches others only at the end of a turn.
    is_known: bool,
    text: Vec<u8>,
    /// Descriptors of clients, by their ids, which are never used again.
    descriptors: HashMap<u64, RawFd>,
}

impl Unread {
    /// For the loop with this epoll descriptor.
    pub(super) fn of_loop(epoll: Option<RawFd>) -> Self {
        let list = epoll.and_then(|epoll| File::open(format!("/proc/self/fdinfo/{epoll}")).ok());
        Self { list, ..Self::default() }
    }

    /// A new turn begins.
    pub(super) fn begin_turn(&mut self) {
        self.is_known = false;
    }

    /// Whether any connection has unread replies. Without the list, all may have.
    pub(super) fn is_any(&mut self) -> bool {
        if !self.is_known {
            self.read();
        }
        self.list.is_none() || !self.writable.is_empty()
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
        self.is_any() && (self.list.is_none() || fd.is_none_or(|fd| self.writable.contains(&fd)))
    }

    fn read(&mut self) {
        let Some(list) = &self.list else { return };
        let mut len = 0;
        loop {
            if self.text.len() < len + (16 << 10) {
                self.text.resize(len + (64 << 10), 0);
            }
            match list.read_at(&mut self.text[len..], len as u64) {
                Ok(0) => break,
                Ok(more) if len + more < LIST_MAX => len += more,
                _ => {
                    self.list = None;
                    return;
                }
            }
        }
        self.writable = writable(&self.text[..len]).collect();
        self.is_known = true;
    }
}

/// The descriptors that an epoll watches for writing, from its list in /proc: lines such as
/// `tfd:        8 events:       19 data:                8  pos:0 ino:61 sdev:5`.
fn writable(list: &[u8]) -> impl Iterator<Item = RawFd> {
    // Once for each turn with writes and each client: by hand, which takes a tenth of the time of words and numbers.
    list.split(|byte| *byte == b'\n').filter_map(|line| {
        let (fd, rest) = number(line.strip_prefix(b"tfd:")?, 10)?;
        let (mask, _) = number(rest.strip_prefix(b" events:")?, 16)?;
        (mask & WRITABLE != 0).then_some(RawFd::try_from(fd).ok()?)
    })
}

/// The number at the beginning of `text`, after spaces, and what follows it.
fn number(text: &[u8], radix: u32) -> Option<(u32, &[u8])> {
    let begin = text.iter().position(|byte| *byte != b' ')?;
    let digits = &text[begin..];
    let (mut number, mut len) = (0_u32, 0);
    while let Some(digit) = digits.get(len).and_then(|digit| char::from(*digit).to_digit(radix)) {
        number = number.checked_mul(radix)?.checked_add(digit)?;
        len += 1;
    }
    (len > 0).then_some((number, &digits[len..]))
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

    use rustix::event::epoll;

    #[test]
    fn descriptors_watched_for_writing_are_found() {
        let (one, two) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        epoll::add(&set, &one.0, epoll::EventData::new_u64(1), epoll::EventFlags::IN).unwrap();
        let mut unread = Unread::of_loop(epoll_that_watches(one.0.as_raw_fd()));
        assert!(!unread.is_any());
        epoll::add(&set, &two.1, epoll::EventData::new_u64(2), epoll::EventFlags::OUT).unwrap();
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
    fn lines_of_the_list_are_read() {
        let line =
            |fd: i32, mask: u32| format!("tfd: {fd:>8} events: {mask:>8x} data: {fd:>16x}  pos:0 ino:61 sdev:5\n");
        let list = format!("pos:\t0\nflags:\t02\n{}{}{}", line(8, 0x19), line(123_456_789, 0x1d), line(9, 0x8000_0004));
        assert_eq!(writable(list.as_bytes()).collect::<Vec<_>>(), [123_456_789, 9]);
    }

    #[test]
    fn without_the_list_everybody_may_have_unread_replies() {
        let mut unread = Unread::of_loop(None);
        assert!(unread.is_any() && unread.is_of(1, Some(3)));
    }
}
