// SPDX-License-Identifier: Apache-2.0
//! The bytes of a TCP connection, which go on through a window once both ends have it.
//!
//! ```text
//!  writer: ── bytes over TCP ──┤ it has the window, and the reader has said that it reads it
//!                              └── "so many over TCP" ── bytes through the ring ──
//!  reader: ── bytes of TCP, as many as that ── bytes of the ring ──
//! ```
//!
//! | word of each part, beside those of [`crate::stream`] | what the other end has written there |
//! |---|---|
//! | 3 | not 0: it reads the ring; 0 again: it has closed its half of TCP before the other end wrote there |
//! | 4 | one more than the bytes that it has written over TCP; 0: it still does |
//! | 5 | not 0: it is a proxy ([`crate::link`]), and the end of TCP may come before the last bytes of the ring |
//! | 6 to 9 | [`leave`] |
//!
//! Each direction changes over by itself, at any byte, whenever the windows come; or never, if one end has none.
//!
//! **The TCP connection stays**, and wakes: a byte that comes over it after those that were counted says that something was read or
//! written through the ring, and nothing else. So whoever waits for the socket by whatever call of the kernel is woken. It also says when
//! the other end's program has closed it, or died: what that has written before is read, and then the end. Nobody closes a half of it
//! once a ring is used, as the other half still wakes.
//!
//! What is here is plain, so that it can lie in memory that all processes of one end share ([`crate::end`]).

pub(crate) mod leave;

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::atomic::{Ordering::SeqCst, fence},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send},
};

use crate::{
    ring::{Receiver, SendError, Sender},
    stream::{self, READS_NO_MORE_AT, SLICE, WRITES_NO_MORE_AT, broken, place},
    window::{Bell, Drain, Fill, WORD, Window},
};

pub(crate) const READS_RING_AT: usize = 3 * WORD;
pub(crate) const OVER_TCP_AT: usize = 4 * WORD;
pub(crate) const CARRIED_AT: usize = 5 * WORD;
/// A write goes on in parts when there is room for so much of the longest message: one part of so many.
pub const WORTH: usize = 4;
/// Bytes that are drained at once where they came over TCP.
const COPIED: usize = 16 << 10;
/// Bytes that wake which are taken in one call. One comes for each sleep.
const WAKES: usize = 64;
/// Such calls before a close. What is left then has the kernel reset the connection.
const DRAINS_MAX: usize = 1024;

/// What one end knows of the bytes that come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Incoming {
    /// [`Receiver::numbers`]
    pub(crate) ring: [u64; 2],
    /// Bytes that came over TCP.
    pub(crate) over_tcp: u64,
    /// It comes through the ring.
    pub(crate) is_on_ring: bool,
    /// TCP says that nothing comes any more.
    pub(crate) is_ended: bool,
    /// Bytes that woke and were taken.
    pub(crate) wakes: u64,
    /// It comes over TCP again, for good.
    pub(crate) has_left: bool,
    /// What TCP said, if it ended with an error; 0: it did not, or that was told.
    pub(crate) error: i32,
}

/// What one end knows of the bytes that go.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outgoing {
    /// [`Sender::numbers`]
    pub(crate) ring: [u64; 2],
    /// Bytes that were written over TCP.
    pub(crate) over_tcp: u64,
    pub(crate) is_on_ring: bool,
    /// It writes no more.
    pub(crate) has_ended: bool,
    /// It goes over TCP again, for good.
    pub(crate) has_left: bool,
    /// Of a write for which there was no room: it is worth to go on with so many bytes. Of one that the other end has left: [`leave`].
    pub(crate) worth: u64,
    /// The last sleep of the other end, by [`Bell`], that was ended.
    pub(crate) woken: [u32; 2],
}

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// What a call gave, or none if it had to wait.
fn now<T>(result: Result<T, Errno>) -> io::Result<Option<T>> {
    match result {
        Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(None),
        result => Ok(Some(result?)),
    }
}

fn receiver(window: &impl Window, ring: [u64; 2]) -> Receiver {
    Receiver::new(window, place(window)).at(ring)
}

fn sender(window: &impl Window, ring: [u64; 2]) -> Sender {
    Sender::new(window, place(window)).at(ring)
}

/// This end has the window, all of which was 0 as it was made: it reads the ring, once TCP is read.
pub fn reads_ring(window: &impl Window) {
    window.publish(READS_RING_AT, 1);
    // As in `Outgoing::ends`.
    fence(SeqCst);
}

impl Incoming {
    #[must_use]
    pub fn is_on_ring(&self) -> bool {
        self.is_on_ring
    }

    /// Reads what is there, as far as there is room: how many bytes, 0 at the end, or none if nothing is there. `leaves`: it is only
    /// looked at. `is_alone`: nobody else of this end sleeps, so that bytes that wake may be taken.
    ///
    /// # Errors
    /// The socket's; `InvalidData`: the other end breaks the rules of the window.
    pub fn try_read(
        &mut self,
        window: Option<&impl Window>,
        socket: impl AsFd,
        into: &mut [u8],
        leaves: bool,
        is_alone: bool,
    ) -> io::Result<Option<usize>> {
        if into.is_empty() {
            return Ok(Some(0));
        }
        let Some(window) = window.filter(|_| !self.has_left) else { return self.read_only_tcp(socket, into, leaves) };
        if !self.is_on_ring {
            // Before TCP is read: what it says then may be its end, and the ring goes on.
            let left = self.left_over_tcp(window)?;
            if left != Some(0)
                && let Some(count) = self.read_tcp(window, socket.as_fd(), into, left, leaves, is_alone)?
            {
                return Ok(count);
            }
            self.is_on_ring = true;
        }
        if let Some(count) = self.read_ring(window, into, leaves)? {
            return Ok(Some(count));
        }
        if self.is_ended {
            return self.end(window).map(Some);
        }
        self.hears(window, socket.as_fd(), is_alone)?;
        match self.read_ring(window, into, leaves)? {
            None if self.is_ended => self.end(window).map(Some),
            None if self.follows(window) => self.read_only_tcp(socket, into, leaves),
            read => Ok(read),
        }
    }

    fn read_only_tcp(&mut self, socket: impl AsFd, into: &mut [u8], leaves: bool) -> io::Result<Option<usize>> {
        Ok(now(recv(socket, into, flags(leaves)))?.map(|(_, count)| {
            self.over_tcp += if leaves { 0 } else { count as u64 };
            count
        }))
    }

    /// As [`Incoming::try_read`], of at most so many bytes that something else takes ([`Window::drain`]): what it has no room for is left. 0 is
    /// the end.
    ///
    /// # Errors
    /// As [`Incoming::try_read`], and those of `drain`, which is to fail where it has no room at all. Nothing was taken.
    pub fn try_drain(
        &mut self,
        window: Option<&impl Window>,
        socket: impl AsFd,
        most: usize,
        drain: &mut Drain<'_>,
        is_alone: bool,
    ) -> io::Result<Option<usize>> {
        if let Some(window) = window.filter(|_| self.is_on_ring) {
            let mut receiver = receiver(window, self.ring);
            let drained = receiver.drain(window, most, drain);
            self.ring = receiver.numbers();
            if let Some(count) = drained? {
                return Ok(Some(count));
            }
        }
        let mut copied = [0; COPIED];
        let (socket, most) = (socket.as_fd(), most.min(COPIED));
        let there = match self.try_read(window, socket, &mut copied[..most], true, is_alone)? {
            Some(there @ 1..) => there,
            nothing => return Ok(nothing),
        };
        let count = drain(copied.as_ptr(), there)?.min(there);
        let mut at = 0;
        while at < count {
            match self.try_read(window, socket, &mut copied[at..count], false, is_alone)? {
                Some(more @ 1..) => at += more,
                // They were there, and nobody else takes them.
                _ => return Err(invalid("bytes that were looked at are there no more")),
            }
        }
        Ok(Some(count))
    }

    /// Bytes that are still to come over TCP; none: the other end still writes there.
    fn left_over_tcp(&self, window: &impl Window) -> io::Result<Option<u64>> {
        match window.poll(OVER_TCP_AT) {
            0 => Ok(None),
            all => match (all - 1).checked_sub(self.over_tcp) {
                None => Err(invalid("the other end says that it wrote fewer bytes over TCP than came")),
                left => Ok(left),
            },
        }
    }

    /// `left`: of [`Incoming::left_over_tcp`], some. None: all has come, and the ring is next.
    fn read_tcp(
        &mut self,
        window: &impl Window,
        socket: BorrowedFd<'_>,
        into: &mut [u8],
        left: Option<u64>,
        leaves: bool,
        is_alone: bool,
    ) -> io::Result<Option<Option<usize>>> {
        let most = left.and_then(|left| usize::try_from(left).ok()).map_or(into.len(), |left| left.min(into.len()));
        // What wakes is left for those who sleep; and behind that there may be bytes of an end that has written and left meanwhile.
        let may_go_over = left.is_none() && (window.poll(READS_RING_AT) != 0 || leave::has_asked(window));
        let looks = leaves || !is_alone || may_go_over;
        let Some((_, count)) = now(recv(socket, &mut into[..most], flags(looks)))? else {
            return Ok(Some(None));
        };
        if count == 0 {
            return match self.left_over_tcp(window)? {
                None => Ok(Some(Some(0))),
                Some(0) => {
                    self.is_ended = true;
                    Ok(None)
                }
                Some(_) => Err(io::ErrorKind::ConnectionReset.into()),
            };
        }
        // Meanwhile the other end may have gone over to the ring: what came behind its last byte is none of these.
        let came = count;
        let mut count = match self.left_over_tcp(window)? {
            Some(left) => usize::try_from(left).map_or(came, |left| came.min(left)),
            None => came,
        };
        if !looks {
            self.has_woken(window, came - count)?;
        }
        if !leaves && looks && count > 0 {
            let Some((_, taken)) = now(recv(socket, &mut into[..count], flags(false)))? else { return Ok(Some(None)) };
            count = taken;
        }
        if !leaves {
            self.over_tcp += count as u64;
        }
        Ok((count > 0).then_some(Some(count)))
    }

    fn read_ring(&mut self, window: &impl Window, into: &mut [u8], leaves: bool) -> io::Result<Option<usize>> {
        let mut receiver = receiver(window, self.ring);
        let read = stream::try_read(&mut receiver, window, false, into, leaves);
        self.ring = receiver.numbers();
        read
    }

    /// The end, and once the error that TCP ended with.
    fn end(&mut self, window: &impl Window) -> io::Result<usize> {
        match std::mem::take(&mut self.error) {
            // The proxy would have said so, and has died.
            0 if window.poll(CARRIED_AT) != 0 && window.poll(WRITES_NO_MORE_AT) == 0 => {
                Err(io::ErrorKind::ConnectionReset.into())
            }
            0 => Ok(0),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Takes bytes that wake, or sees the end. `is_alone`: else they are left, so that they wake others, too, unless the end is behind them,
    /// which wakes all for good. False: there are bytes behind those that wake, and are left.
    pub(crate) fn hears(&mut self, window: &impl Window, socket: BorrowedFd<'_>, is_alone: bool) -> io::Result<bool> {
        if !self.is_on_ring || self.is_ended {
            return Ok(true);
        }
        let takes = is_alone || has_end(socket);
        let most = if takes { self.wakes_most(window) } else { 0 };
        let mut heard = self.takes_some(socket, most)?;
        // Its sender has lost its core before it has counted it, or was killed.
        let is_uncounted = takes && most == 0 && heard > 0 && Self::is_wake(window);
        if is_uncounted {
            heard = self.takes_some(socket, heard)?;
        }
        self.wakes += if most > 0 || is_uncounted { heard as u64 } else { 0 };
        Ok(most > 0 || is_uncounted || heard == 0)
    }

    /// At most so many bytes that wake; how many there were. 0: it is looked how many there are, or whether there is the end.
    fn takes_some(&mut self, socket: BorrowedFd<'_>, most: usize) -> io::Result<usize> {
        let mut wakes = [0; WAKES];
        match recv(socket, &mut wakes[..if most == 0 { WAKES } else { most }], flags(most == 0)) {
            Ok((_, 0)) => self.is_ended = true,
            Ok((_, count)) => return Ok(count),
            Err(Errno::WOULDBLOCK | Errno::INTR) => {}
            Err(Errno::NOTCONN) => return Err(Errno::NOTCONN.into()),
            Err(why) => self.fails(why),
        }
        Ok(0)
    }

    /// Before a close: takes all bytes that wake, of which there are many where they were left for others for long.
    pub(crate) fn drains(&mut self, window: &impl Window, socket: BorrowedFd<'_>) {
        let _ = self.has_something(window);
        let mut turns = 0;
        while self.is_on_ring && !self.is_ended && turns < DRAINS_MAX {
            turns += 1;
            // What comes behind them is the program's, and unread.
            let most = if leave::has_left(window) { self.wakes_most(window) } else { WAKES };
            let count = if most > 0 { self.takes_some(socket, most).unwrap_or(0) } else { 0 };
            self.wakes += count as u64;
            if count < WAKES {
                return;
            }
        }
    }

    /// TCP has ended with an error.
    pub(crate) fn fails(&mut self, why: Errno) {
        (self.is_ended, self.error) = (true, why.raw_os_error());
    }

    /// Whether there is something to read through the ring, the end, or an error; what TCP has is not looked at.
    pub(crate) fn has_something(&mut self, window: &impl Window) -> bool {
        if self.has_left {
            return false;
        }
        if !self.is_on_ring {
            match self.left_over_tcp(window) {
                Ok(Some(0)) => self.is_on_ring = true,
                Ok(_) => return false,
                Err(_) => return true,
            }
        }
        self.is_ended || stream::has_something(&receiver(window, self.ring), window)
    }

    /// Bytes that are there to be read through the ring.
    pub(crate) fn count(&self, window: &impl Window) -> usize {
        receiver(window, self.ring).count(window, usize::MAX).unwrap_or(0)
    }
}

/// The end, or an error, has come, maybe behind bytes that are still to be read.
fn has_end(socket: BorrowedFd<'_>) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
    poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
}

fn flags(leaves: bool) -> RecvFlags {
    if leaves { RecvFlags::DONTWAIT | RecvFlags::PEEK } else { RecvFlags::DONTWAIT }
}

impl Outgoing {
    #[must_use]
    pub fn is_on_ring(&self) -> bool {
        self.is_on_ring
    }

    /// Writes as many bytes as there is room for; none if there is no room, or too little to be worth it ([`WORTH`]).
    ///
    /// # Errors
    /// The socket's, as where the other end has closed; `BrokenPipe`: this end has ended; `InvalidData`: the other end breaks the rules of the
    /// window.
    pub fn try_write(
        &mut self,
        window: Option<&impl Window>,
        socket: impl AsFd,
        bytes: &[u8],
    ) -> io::Result<Option<usize>> {
        let socket = socket.as_fd();
        let Some(window) = self.goes_through(window, socket)? else { return self.write_tcp(socket, bytes) };
        let mut sender = sender(window, self.ring);
        let written = self.write_ring(window, &mut sender, bytes);
        self.ring = sender.numbers();
        // With a fence.
        let turn = window.sleeper(Bell::Message);
        self.follows(window, socket)?;
        if written.as_ref().is_ok_and(Option::is_some) {
            self.wakes_from(window, socket, Bell::Message, turn);
        }
        written
    }

    fn write_tcp(&mut self, socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<Option<usize>> {
        if self.is_sending() {
            return Ok(None);
        }
        let count = now(send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL))?;
        self.over_tcp += count.unwrap_or(0) as u64;
        Ok(count)
    }

    /// The window that a write goes through; none: it goes over TCP, also if the other end has closed, whose kernel has the answer. `BrokenPipe`:
    /// this end has ended.
    fn goes_through<'a, W: Window>(
        &mut self,
        window: Option<&'a W>,
        socket: BorrowedFd<'_>,
    ) -> io::Result<Option<&'a W>> {
        if self.has_ended {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if let Some(window) = window {
            self.follows(window, socket)?;
        }
        Ok(window.filter(|window| self.changes_over(*window) && window.poll(READS_NO_MORE_AT) == 0))
    }

    fn write_ring(&mut self, window: &impl Window, sender: &mut Sender, bytes: &[u8]) -> io::Result<Option<usize>> {
        let mut written = 0;
        while written < bytes.len() {
            let rest = &bytes[written..];
            let slice = &rest[..rest.len().min(SLICE).min(sender.most())];
            match sender.send(window, slice) {
                Ok(()) => written += slice.len(),
                Err(SendError::Full) if written > 0 => break,
                Err(SendError::Full) => {
                    let worth = slice.len().min(sender.most() / WORTH);
                    self.worth = worth as u64;
                    let room = sender.room(window).map_err(broken)?.filter(|room| *room >= worth);
                    let Some(part) = room.map(|room| &slice[..room.min(slice.len())]) else { return Ok(None) };
                    sender.send(window, part).map_err(io::Error::other)?;
                    return Ok(Some(part.len()));
                }
                Err(_) if written > 0 => break,
                Err(SendError::Broken(why)) => return Err(broken(why)),
                Err(why @ SendError::TooLong { .. }) => return Err(io::Error::other(why)),
            }
        }
        Ok(Some(written))
    }

    /// As [`Outgoing::try_write`], of at most so many bytes that something else puts into the ring ([`Window::fill`]); 0: there were none.
    ///
    /// # Errors
    /// As [`Outgoing::try_write`], and those of `fill`. `Unsupported`: they still go over TCP.
    pub fn try_fill(
        &mut self,
        window: Option<&impl Window>,
        socket: impl AsFd,
        most: usize,
        fill: &mut Fill<'_>,
    ) -> io::Result<Option<usize>> {
        let socket = socket.as_fd();
        let Some(window) = self.goes_through(window, socket)? else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let mut sender = sender(window, self.ring);
        let worth = most.min(sender.most() / WORTH);
        let filled = sender.fill(window, most.min(SLICE), worth, fill);
        self.ring = sender.numbers();
        match filled {
            Ok(None) => self.worth = worth as u64,
            Ok(Some(1..)) => {
                let turn = window.sleeper(Bell::Message);
                self.follows(window, socket)?;
                self.wakes_from(window, socket, Bell::Message, turn);
            }
            _ => {}
        }
        filled
    }

    /// Something else writes to the socket, and says how many bytes, or that it would have to wait, as long as writes go over TCP. None: they
    /// go through the ring, or it would have to wait.
    ///
    /// # Errors
    /// `BrokenPipe`: this end has ended; those of `sends`.
    pub fn try_send(
        &mut self,
        window: Option<&impl Window>,
        socket: BorrowedFd<'_>,
        sends: impl FnOnce() -> io::Result<Option<usize>>,
    ) -> io::Result<Option<usize>> {
        if self.goes_through(window, socket)?.is_some() || self.is_sending() {
            return Ok(None);
        }
        let sent = sends()?;
        self.over_tcp += sent.unwrap_or(0) as u64;
        Ok(sent)
    }

    /// Goes over to the ring, if the other end reads that. Whether it is on the ring.
    pub(crate) fn changes_over(&mut self, window: &impl Window) -> bool {
        if !self.is_on_ring && !self.has_ended && !self.has_left && window.poll(READS_RING_AT) != 0 {
            window.publish(OVER_TCP_AT, self.over_tcp + 1);
            self.is_on_ring = true;
        }
        self.is_on_ring
    }

    /// Wakes the other end, if it sleeps by this bell and was not woken from that sleep.
    pub(crate) fn wakes(&mut self, window: &impl Window, socket: impl AsFd, bell: Bell) {
        self.wakes_from(window, socket.as_fd(), bell, window.sleeper(bell));
    }

    /// The same, of a sleep of this number.
    fn wakes_from(&mut self, window: &impl Window, socket: BorrowedFd<'_>, bell: Bell, turn: u32) {
        if turn == 0 || turn == self.woken[bell as usize] || !self.is_on_ring {
            return;
        }
        // Of one that leaves nobody sleeps.
        let Some(sent) = leave::sends_wake(window, socket) else { return };
        // Where there is no room the other end has not read what was sent before, which wakes it as well; should it only wait for what is
        // new, the next call tries again.
        if !matches!(sent, Err(Errno::WOULDBLOCK | Errno::INTR)) {
            self.woken[bell as usize] = turn;
        }
    }

    /// Nothing more is written: the other end reads what was, and then the end. False: this goes over TCP, and its socket is to be shut down
    /// now.
    pub fn ends(&mut self, window: Option<&impl Window>, socket: impl AsFd) -> bool {
        let socket = socket.as_fd();
        let is_over_tcp = self.has_left || self.has_ended && !self.is_on_ring;
        let Some(window) = window.filter(|_| !is_over_tcp) else {
            self.has_ended = true;
            return self.is_sending();
        };
        let goes = self.goes_over_to_end(window);
        self.has_ended = true;
        if !goes {
            return false;
        }
        window.publish(WRITES_NO_MORE_AT, 1);
        fence(SeqCst);
        if self.follows(window, socket).unwrap_or(true) {
            return self.is_sending();
        }
        self.wakes(window, socket, Bell::Message);
        true
    }

    fn goes_over_to_end(&mut self, window: &impl Window) -> bool {
        if !self.changes_over(window) {
            // Without its half of TCP it could not wake one that writes through the ring. Either the other end, whose window comes right now,
            // sees that it is not to, or this one sees that it has come.
            window.publish(READS_RING_AT, 0);
            fence(SeqCst);
            if !self.changes_over(window) {
                return false;
            }
            window.publish(READS_RING_AT, 1);
        }
        true
    }

    /// Whether a write through the ring goes on, or fails; none: it goes over TCP.
    pub(crate) fn has_room(&mut self, window: &impl Window) -> Option<bool> {
        if leave::has_left(window) || !self.changes_over(window) {
            return None;
        }
        let mut sender = sender(window, self.ring);
        let worth = usize::try_from(self.worth).unwrap_or(0).clamp(1, sender.most());
        let has_room = sender.has_room(window, worth) || window.poll(READS_NO_MORE_AT) != 0;
        self.ring = sender.numbers();
        Some(has_room || self.has_ended)
    }
}
