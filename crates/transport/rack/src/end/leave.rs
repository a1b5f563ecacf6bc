// SPDX-License-Identifier: Apache-2.0
//! The way back to TCP ([`crate::carry::leave`]), under the locks of an end.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

use super::{End, HAS_LEFT};
use crate::{
    carry::{Outgoing, leave},
    window::Window,
};

impl<W: Window> End<W> {
    /// Both directions go over TCP from now on, for good, as those who get the socket know nothing of the window. What is still to be read
    /// through the ring the other end sends once more, as it comes to it. False: they stay, as a thread sleeps, something that wakes is on
    /// its way, or the other end cannot follow.
    ///
    /// # Errors
    /// As [`End::read`].
    pub fn leave(&self, socket: impl AsFd) -> io::Result<bool> {
        let (socket, window) = (socket.as_fd(), self.window.get());
        self.incoming(|incoming| {
            self.outgoing(|outgoing| match window {
                Some(window) if self.is_alone(0) => {
                    self.is_open()?;
                    leave::leave(incoming, outgoing, window, socket)
                }
                _ => Ok(false),
            })
        })??
    }

    /// One of the two ends has left the rings, and this one is to follow ([`End::follow`]), if it has not.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.window.get().is_some_and(leave::has_left) || self.of().outgoing.is(HAS_LEFT)
    }

    /// The other end has left, and what it had not read waits for room in TCP: whoever waits for the connection is to wait for that, too, and
    /// call [`End::follow`].
    #[must_use]
    pub fn is_sending(&self) -> bool {
        let outgoing = &self.of().outgoing;
        outgoing.is(HAS_LEFT) && outgoing.load::<Outgoing>().is_sending()
    }

    /// The other end has left: what it has not read waits for this end, whatever that calls.
    pub(super) fn sends_unread(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let is_due = |window: &&W| leave::has_left(*window) && !self.of().outgoing.is(HAS_LEFT) || self.is_sending();
        match self.window.get().filter(is_due) {
            Some(window) => self.outgoing(|outgoing| {
                self.is_open()?;
                outgoing.follows(window, socket).map(|_| ())
            })?,
            None => Ok(()),
        }
    }

    /// Follows an end that has left, as far as all was read that came before. Whether all goes over TCP from now on.
    ///
    /// # Errors
    /// As [`End::read`].
    pub fn follow(&self, socket: impl AsFd) -> io::Result<bool> {
        let (socket, Some(window)) = (socket.as_fd(), self.window.get()) else { return Ok(false) };
        let has_left = self.incoming(|incoming| {
            self.is_open()?;
            // All of TCP may have been read, and nobody have looked for more.
            let _ = incoming.has_something(window);
            incoming.hears(window, socket, self.is_alone(0))?;
            Ok::<_, io::Error>(incoming.follows(window))
        })??;
        self.sends_unread(socket)?;
        Ok(has_left && self.of().outgoing.is(HAS_LEFT) && !self.is_sending())
    }
}
