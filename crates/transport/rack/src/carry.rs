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
//! | 3 | not 0: it reads the ring |
//! | 4 | one more than the bytes that it has written over TCP; 0: it still does |
//!
//! Each direction changes over by itself, at any byte, whenever the windows come; or never, if one end has none. The TCP
//! connection stays, and says when the other end's program has died: what that has written before is read, and then the end.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send},
};

use crate::{
    ring::{Receiver, SendError, Sender},
    stream::{self, READS_NO_MORE_AT, SLICE, WRITES_NO_MORE_AT, broken, place},
    wait::Patience,
    window::{Bell, WORD, Window},
};

const READS_RING_AT: usize = 3 * WORD;
const OVER_TCP_AT: usize = 4 * WORD;
/// A write goes on in parts when there is room for so much of the longest message: one part of so many.
pub const WORTH: usize = 4;

/// A window whose bells wake who polls.
pub trait Polled: Window {
    /// Readable once the other end has rung. [`Polled::heard`] makes it silent.
    fn bell(&self, bell: Bell) -> BorrowedFd<'_>;

    fn heard(&self, bell: Bell);
}

/// What comes from the other end.
#[derive(Debug)]
pub struct Incoming<W> {
    window: Option<Arc<W>>,
    reader: Option<Receiver>,
    /// Bytes that came over TCP.
    over_tcp: u64,
    /// It comes through the ring.
    is_on_ring: bool,
    /// TCP says that nothing comes any more.
    is_ended: bool,
    patience: Patience,
}

/// What goes to the other end.
#[derive(Debug)]
pub struct Outgoing<W> {
    window: Option<Arc<W>>,
    sender: Option<Sender>,
    /// Bytes that were written over TCP.
    over_tcp: u64,
    is_on_ring: bool,
    /// Of a write for which there was no room: it is worth to go on with so many bytes.
    worth: usize,
    patience: Patience,
}

/// Both directions of a connection over which nothing has gone so far.
#[must_use]
pub fn both<W: Polled>() -> (Incoming<W>, Outgoing<W>) {
    let incoming = Incoming {
        window: None,
        reader: None,
        over_tcp: 0,
        is_on_ring: false,
        is_ended: false,
        patience: Patience::default(),
    };
    let outgoing = Outgoing {
        window: None,
        sender: None,
        over_tcp: 0,
        is_on_ring: false,
        worth: 1,
        patience: Patience::default(),
    };
    (incoming, outgoing)
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

impl<W: Polled> Incoming<W> {
    /// The window has come, all of which was 0 as it was made: from now on the ring is read, once TCP is.
    pub fn attach(&mut self, window: Arc<W>) {
        self.reader = Some(Receiver::new(&*window, place(&*window)));
        window.publish(READS_RING_AT, 1);
        // It may wait for room in TCP's buffer.
        window.ring(Bell::Room);
        self.window = Some(window);
    }

    #[must_use]
    pub fn is_on_ring(&self) -> bool {
        self.is_on_ring
    }

    /// Reads what is there: how many bytes, 0 at the end, or none if nothing is there.
    ///
    /// # Errors
    /// The socket's; `InvalidData`: the other end breaks the rules of the window.
    pub fn try_read(&mut self, socket: impl AsFd, into: &mut [u8]) -> io::Result<Option<usize>> {
        if into.is_empty() {
            return Ok(Some(0));
        }
        if !self.is_on_ring {
            // Before TCP is read: what it says then may be its end, and the ring goes on.
            let left = self.left_over_tcp()?;
            if left != Some(0) {
                return self.read_tcp(socket.as_fd(), left, into);
            }
            self.is_on_ring = true;
        }
        self.read_ring(into)
    }

    /// Bytes that are still to come over TCP; none: the other end still writes there.
    fn left_over_tcp(&self) -> io::Result<Option<u64>> {
        let Some(window) = &self.window else { return Ok(None) };
        match window.poll(OVER_TCP_AT) {
            0 => Ok(None),
            all => match (all - 1).checked_sub(self.over_tcp) {
                None => Err(invalid("the other end says that it wrote fewer bytes over TCP than came")),
                left => Ok(left),
            },
        }
    }

    fn read_tcp(&mut self, socket: BorrowedFd<'_>, left: Option<u64>, into: &mut [u8]) -> io::Result<Option<usize>> {
        let most = left.and_then(|left| usize::try_from(left).ok()).map_or(into.len(), |left| left.min(into.len()));
        let Some((_, count)) = now(recv(socket, &mut into[..most], RecvFlags::DONTWAIT))? else { return Ok(None) };
        self.over_tcp += count as u64;
        if count > 0 {
            return Ok(Some(count));
        }
        match self.left_over_tcp()? {
            None => Ok(Some(0)),
            Some(0) => {
                (self.is_on_ring, self.is_ended) = (true, true);
                self.read_ring(into)
            }
            Some(_) => Err(io::ErrorKind::ConnectionReset.into()),
        }
    }

    fn read_ring(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        match (&self.window, &mut self.reader) {
            (Some(window), Some(reader)) => stream::try_read(reader, &**window, self.is_ended, into, false),
            _ => Ok(None),
        }
    }

    /// Waits until something is there, or the end, but no longer than a time. False: it is not.
    ///
    /// # Errors
    /// As [`Incoming::try_read`].
    pub fn wait(&mut self, socket: impl AsFd, within: Option<Duration>) -> io::Result<bool> {
        let Self { window, reader, patience, is_on_ring, .. } = self;
        let begun = Instant::now();
        let until = within.map(|within| begun + within);
        if let (true, Some(window), Some(reader)) = (*is_on_ring, &window, &reader)
            && patience.looks(|| stream::has_something(reader, &**window))
        {
            return Ok(true);
        }
        let is_there = self.sleep(socket.as_fd(), until);
        self.patience.took(begun.elapsed());
        is_there
    }

    fn sleep(&mut self, socket: BorrowedFd<'_>, until: Option<Instant>) -> io::Result<bool> {
        let Some(window) = self.window.clone() else {
            return Ok(polls(&mut [PollFd::from_borrowed_fd(socket, PollFlags::IN)], until)? > 0);
        };
        window.will_sleep(Bell::Message, true);
        let result = self.sleep_by(&*window, socket, until);
        window.will_sleep(Bell::Message, false);
        result
    }

    fn sleep_by(&mut self, window: &W, socket: BorrowedFd<'_>, until: Option<Instant>) -> io::Result<bool> {
        loop {
            if self.has_something(window)? {
                return Ok(true);
            }
            let of_socket = if self.is_ended { PollFlags::empty() } else { PollFlags::IN };
            let mut fds = [
                PollFd::from_borrowed_fd(window.bell(Bell::Message), PollFlags::IN),
                PollFd::from_borrowed_fd(socket, of_socket),
            ];
            if polls(&mut fds, until)? == 0 {
                return self.has_something(window);
            }
            let [has_rung, has_come] = fds.map(|fd| !fd.revents().is_empty());
            if has_rung {
                window.heard(Bell::Message);
            }
            // A hostile end may ring for ever.
            if is_past(until) {
                return self.has_something(window);
            }
            if has_come && !self.is_on_ring {
                return Ok(true);
            }
            if has_come {
                self.look_at_tcp(socket)?;
            }
        }
    }

    fn has_something(&mut self, window: &W) -> io::Result<bool> {
        if !self.is_on_ring && self.left_over_tcp()? == Some(0) {
            self.is_on_ring = true;
        }
        let of_ring = || self.reader.as_ref().is_some_and(|reader| stream::has_something(reader, window));
        Ok(self.is_on_ring && (self.is_ended || of_ring()))
    }

    /// Nothing comes over TCP any more but its end.
    fn look_at_tcp(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        match now(recv(socket, &mut [0; 1], RecvFlags::DONTWAIT | RecvFlags::PEEK))? {
            Some((_, 0)) => self.is_ended = true,
            Some(_) => return Err(invalid("the other end goes on over TCP, after it has said that it does not")),
            None => {}
        }
        Ok(())
    }
}

impl<W: Polled> Outgoing<W> {
    /// The window has come: what is written goes through the ring once the other end reads that.
    pub fn attach(&mut self, window: Arc<W>) {
        self.sender = Some(Sender::new(&*window, place(&*window)));
        self.window = Some(window);
    }

    #[must_use]
    pub fn is_on_ring(&self) -> bool {
        self.is_on_ring
    }

    /// Writes as many bytes as there is room for, of those at most one slice; none if there is no room, or too little to be worth it
    /// ([`WORTH`]).
    ///
    /// # Errors
    /// The socket's, `BrokenPipe` if nobody reads any more; `InvalidData`: the other end breaks the rules of the window.
    pub fn try_write(&mut self, socket: impl AsFd, bytes: &[u8]) -> io::Result<Option<usize>> {
        if bytes.is_empty() {
            return Ok(Some(0));
        }
        self.changes_over();
        match (&self.window, &mut self.sender) {
            (Some(window), Some(sender)) if self.is_on_ring => {
                if window.poll(READS_NO_MORE_AT) != 0 {
                    return Err(io::ErrorKind::BrokenPipe.into());
                }
                let slice = &bytes[..bytes.len().min(SLICE).min(sender.most())];
                match sender.send(&**window, slice) {
                    Ok(()) => return Ok(Some(slice.len())),
                    Err(SendError::Full) => {}
                    Err(SendError::Broken(why)) => return Err(broken(why)),
                    Err(why @ SendError::TooLong { .. }) => return Err(io::Error::other(why)),
                }
                self.worth = slice.len().min(sender.most() / WORTH);
                let room = sender.room(&**window).map_err(broken)?.filter(|room| *room >= self.worth);
                let Some(part) = room.map(|room| &slice[..room.min(slice.len())]) else { return Ok(None) };
                sender.send(&**window, part).map_err(io::Error::other)?;
                Ok(Some(part.len()))
            }
            _ => {
                let count = now(send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL))?;
                self.over_tcp += count.unwrap_or(0) as u64;
                Ok(count)
            }
        }
    }

    /// Goes over to the ring, if the other end reads that.
    fn changes_over(&mut self) {
        let Some(window) = self.window.as_ref().filter(|_| !self.is_on_ring) else { return };
        if window.poll(READS_RING_AT) != 0 {
            window.publish(OVER_TCP_AT, self.over_tcp + 1);
            window.ring(Bell::Message);
            self.is_on_ring = true;
        }
    }

    /// Nothing more is written: the other end reads what was, and then the end. Its socket is to be shut down besides.
    pub fn ends(&mut self) {
        self.changes_over();
        if let Some(window) = self.window.as_ref().filter(|_| self.is_on_ring) {
            window.publish(WRITES_NO_MORE_AT, 1);
            window.ring(Bell::Message);
        }
    }

    /// Waits until there is room, or nobody reads any more, but no longer than a time. False: there is none.
    ///
    /// # Errors
    /// The socket's.
    pub fn wait(&mut self, socket: impl AsFd, within: Option<Duration>) -> io::Result<bool> {
        let begun = Instant::now();
        let until = within.map(|within| begun + within);
        let Some(window) = self.window.clone() else {
            return Ok(polls(&mut [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::OUT)], until)? > 0);
        };
        let Self { sender, patience, is_on_ring, worth, .. } = self;
        let mut has_room = |on_ring: bool| match (on_ring, sender.as_mut()) {
            (true, Some(sender)) => sender.has_room(&*window, *worth) || window.poll(READS_NO_MORE_AT) != 0,
            // It goes over to the ring, then.
            _ => window.poll(READS_RING_AT) != 0,
        };
        if *is_on_ring && patience.looks(|| has_room(true)) {
            return Ok(true);
        }
        window.will_sleep(Bell::Room, true);
        let slept = loop {
            if has_room(*is_on_ring) {
                break Ok(true);
            }
            // Through the ring: only the end of the connection matters.
            // One that writes to the ring says that it writes no more, before TCP does, unless its program has died.
            let writes_to_ring = || window.poll(OVER_TCP_AT) != 0 && window.poll(WRITES_NO_MORE_AT) == 0;
            let is_told = writes_to_ring();
            let of_socket = match *is_on_ring {
                true if is_told => PollFlags::RDHUP,
                true => PollFlags::empty(),
                false => PollFlags::OUT,
            };
            let mut fds = [
                PollFd::from_borrowed_fd(window.bell(Bell::Room), PollFlags::IN),
                PollFd::from_borrowed_fd(socket.as_fd(), of_socket),
            ];
            match polls(&mut fds, until) {
                Ok(0) => break Ok(has_room(*is_on_ring)),
                Err(why) => break Err(why),
                Ok(_) => {}
            }
            let [has_rung, has_come] = fds.map(|fd| !fd.revents().is_empty());
            if has_rung {
                window.heard(Bell::Room);
            }
            if *is_on_ring && has_come && is_told && !writes_to_ring() {
                // It has just said so.
                continue;
            }
            if has_come {
                // Room in TCP's buffer, or an error that the next write gets.
                break if *is_on_ring { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(true) };
            }
            if is_past(until) {
                break Ok(has_room(*is_on_ring));
            }
        };
        window.will_sleep(Bell::Room, false);
        patience.took(begun.elapsed());
        slept
    }
}

fn is_past(until: Option<Instant>) -> bool {
    until.is_some_and(|until| Instant::now() >= until)
}

/// Polls until a time. How many are ready; 0: none in time.
fn polls(fds: &mut [PollFd<'_>], until: Option<Instant>) -> io::Result<usize> {
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = left.map(|left| Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        match poll(fds, timeout.as_ref()) {
            Err(Errno::INTR) => {}
            result => return Ok(result?),
        }
    }
}
