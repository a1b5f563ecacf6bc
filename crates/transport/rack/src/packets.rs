// SPDX-License-Identifier: Apache-2.0
//! Packets through a window, as over a wire: whole, in order, or not at all. For what is worth nothing late, such as heartbeats and lanes.
//!
//! Nobody waits. A packet for which the ring has no room, or which nobody reads, is dropped and counted. Either end may end at any time,
//! and another one go on in its place: the two begin their ring anew.
//!
//! | word of each part | what the other end has written there |
//! |---|---|
//! | 0 | how far its inbox has read ([`crate::ring`]) |
//! | 1, 2 | its inbox wants the ring to begin anew: the number of the outbox that is asked, and one of its own |
//! | 3 | the number of its outbox |
//! | 4 | the own number of the inbox for which that outbox has begun the ring last |
//! | 5 | how far it has written there: the lower half of that number, and of the bytes |
//!
//! ```text
//!  outbox: ── its number ──►          ◄── ring's index 0, for that number, its own ── inbox
//!          ── first header 0, the inbox' number ──► packets ──►
//! ```
//!
//! A number is another one whenever an outbox or an inbox begins, and whenever it finds its ring broken. What the other end makes of the
//! words costs it packets, and this end a few words for each call.
//!
//! A word that somebody else overwrites, or that is lost as a device is reset, costs a few packets: each end writes its words again, and an
//! inbox that finds no packet where word 5 says that there is one has the ring begin anew. Nobody is to be taken for dead by that.

use crate::{
    ring::{Broken, Place, Receiver, SendError, Sender},
    window::{WORD, Window},
};

const TOLD_AT: usize = 0;
const ASKS_FOR_AT: usize = WORD;
const ASKS_AT: usize = 2 * WORD;
const OUTBOX_AT: usize = 3 * WORD;
const BEGUN_AT: usize = 4 * WORD;
const WRITTEN_AT: usize = 5 * WORD;
/// Bytes before the ring.
const BEFORE: usize = 128;
/// Bytes of the shortest part through which packets go.
pub const PART_MIN: usize = BEFORE + 8 * WORD;

/// Packets that are dropped one after the other as the ring is full, before it begins anew: what lies there is old, if it is read at all.
pub const FULL_MAX: u32 = 64;
/// Looks at an outbox that does not answer, before it is asked anew.
pub const LOOKS_MAX: u32 = 256;

/// Why a packet was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Dropped {
    /// The other end is not there, or has not answered yet.
    #[error("no inbox at the other end has asked for packets")]
    Unheard,
    /// The other end reads slower than packets come, or has stopped.
    #[error("the ring is full")]
    Full,
    #[error("a packet of {len} bytes, where the ring takes {most} at most")]
    TooLong { len: usize, most: usize },
    /// The ring begins anew.
    #[error(transparent)]
    Broken(#[from] Broken),
}

/// What became of packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    pub sent: u64,
    pub unheard: u64,
    pub full: u64,
    pub too_long: u64,
    pub broken: u64,
}

/// What came.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Received {
    pub received: u64,
    /// The ring began anew: another outbox is there, or it was broken.
    pub begun: u64,
    pub broken: u64,
}

/// Packets to the other end.
#[derive(Debug)]
pub struct Outbox {
    number: u64,
    /// The number of the inbox that reads the ring; 0: none.
    asked: u64,
    /// Packets in a row for which there was no room.
    full: u32,
    sender: Sender,
    sent: Sent,
}

/// Packets of the other end.
#[derive(Debug)]
pub struct Inbox {
    number: u64,
    /// The outbox that was asked; 0: none.
    outbox: u64,
    /// In a row, without an answer.
    looks: u32,
    receiver: Receiver,
    /// How far it had read before the last packet.
    before: u64,
    received: Received,
}

pub(crate) fn place(window: &impl Window) -> Place {
    Place { told_at: TOLD_AT, at: BEFORE, len: window.len() - BEFORE }
}

/// 0 means none.
fn after(number: u64) -> u64 {
    number.wrapping_add(1).max(1)
}

/// The lower halves of a number and of an index, of which both ends know the upper ones.
fn halves(number: u64, index: u64) -> u64 {
    number << 32 | index & 0xffff_ffff
}

impl Outbox {
    /// `number`: one that no outbox of this end has had, as of a clock in nanoseconds, or by chance.
    ///
    /// # Panics
    /// If the window's parts are shorter than [`PART_MIN`].
    pub fn new(window: &impl Window, number: u64) -> Self {
        let mut this =
            Self { number, asked: 0, full: 0, sender: Sender::new(window, place(window)), sent: Sent::default() };
        this.begins(window);
        this
    }

    /// Another number: whoever reads is to ask anew.
    fn begins(&mut self, window: &impl Window) {
        self.number = after(self.number);
        (self.asked, self.full) = (0, 0);
        window.publish(BEGUN_AT, 0);
        window.publish(OUTBOX_AT, self.number);
    }

    #[must_use]
    pub fn sent(&self) -> Sent {
        self.sent
    }

    /// Sends a packet, or drops it. It never waits.
    ///
    /// # Errors
    /// [`Dropped`].
    pub fn send(&mut self, window: &impl Window, packet: &[u8]) -> Result<(), Dropped> {
        self.answers(window);
        if self.asked == 0 {
            self.sent.unheard += 1;
            return Err(Dropped::Unheard);
        }
        let why = match self.sender.send(window, packet) {
            Ok(()) => {
                self.sent.sent += 1;
                self.full = 0;
                // It may have been overwritten.
                window.publish(BEGUN_AT, self.asked);
                let [written, _] = self.sender.numbers();
                window.publish(WRITTEN_AT, halves(self.asked, written));
                return Ok(());
            }
            Err(SendError::Full) => Dropped::Full,
            Err(SendError::TooLong { len, most }) => Dropped::TooLong { len, most },
            Err(SendError::Broken(why)) => Dropped::Broken(why),
        };
        match why {
            Dropped::Full => {
                self.sent.full += 1;
                self.full += 1;
                if self.full == FULL_MAX {
                    self.begins(window);
                }
            }
            Dropped::TooLong { .. } => self.sent.too_long += 1,
            _ => {
                self.sent.broken += 1;
                self.begins(window);
            }
        }
        Err(why)
    }

    /// Begins the ring for an inbox that asks. [`Outbox::send`] does so too: what is called between two packets saves the other end the first
    /// of those that would be dropped.
    pub fn answers(&mut self, window: &impl Window) {
        let asks = window.poll(ASKS_AT);
        if asks == self.asked {
            if asks == 0 {
                // Who asks nothing sees no outbox: it may have been overwritten.
                window.publish(OUTBOX_AT, self.number);
            }
            return;
        }
        if asks == 0 || window.poll(ASKS_FOR_AT) != self.number {
            // It has not seen this outbox, or what it has seen was overwritten.
            window.publish(OUTBOX_AT, self.number);
            return;
        }
        let place = place(window);
        // All of the ring need not be 0: a packet has the next header be 0 before it is seen.
        window.publish(place.at, 0);
        self.sender = Sender::new(window, place);
        (self.asked, self.full) = (asks, 0);
        window.publish(BEGUN_AT, asks);
    }
}

impl Inbox {
    /// `number`: one that no inbox of this end has had, as of a clock in nanoseconds, or by chance.
    ///
    /// # Panics
    /// As [`Outbox::new`].
    pub fn new(window: &impl Window, number: u64) -> Self {
        Self {
            number,
            outbox: 0,
            looks: 0,
            before: 0,
            receiver: Receiver::new(window, place(window)),
            received: Received::default(),
        }
    }

    #[must_use]
    pub fn received(&self) -> Received {
        self.received
    }

    /// Asks the outbox to begin the ring.
    fn asks(&mut self, window: &impl Window, outbox: u64) {
        self.number = after(self.number);
        (self.outbox, self.looks) = (outbox, 0);
        self.received.begun += 1;
        self.receiver = Receiver::new(window, place(window));
        self.before = 0;
        // Before it is asked: the ring that begins is not read yet.
        window.publish(TOLD_AT, 0);
        self.says_what_it_asks(window);
    }

    fn says_what_it_asks(&self, window: &impl Window) {
        window.publish(ASKS_FOR_AT, self.outbox);
        window.publish(ASKS_AT, self.number);
    }

    /// There is no packet where there is to be one. To be asked where none has come.
    fn has_lost(&self, window: &impl Window) -> bool {
        let written = window.poll(WRITTEN_AT);
        let [read, _] = self.receiver.numbers();
        // Of another ring, it says nothing; of the last packet, it may be said later than that comes. Else one has come since, or is lost.
        let is_of_ring = written >> 32 == self.number & 0xffff_ffff;
        let is_known = [read, self.before].iter().any(|known| written == halves(self.number, *known));
        is_of_ring && !is_known && self.receiver.next(window) == Ok(None)
    }

    /// Copies the next packet into a buffer; of one that is longer, as much as there is room for. None: nothing has come. A hostile end may
    /// have as many come as are taken: take so many at a time, and do something else.
    pub fn receive(&mut self, window: &impl Window, into: &mut [u8]) -> Option<usize> {
        let outbox = window.poll(OUTBOX_AT);
        if outbox != self.outbox {
            self.asks(window, outbox);
        }
        if outbox == 0 {
            return None;
        }
        if window.poll(BEGUN_AT) != self.number {
            self.looks += 1;
            if self.looks == LOOKS_MAX {
                self.asks(window, outbox);
            } else if self.looks.is_power_of_two() {
                // It may have been overwritten.
                self.says_what_it_asks(window);
            }
            return None;
        }
        self.looks = 0;
        let next = match self.receiver.next(window) {
            Ok(Some(next)) => next,
            Ok(None) if !self.has_lost(window) => return None,
            _ => {
                self.received.broken += 1;
                self.asks(window, outbox);
                return None;
            }
        };
        [self.before, _] = self.receiver.numbers();
        let come = self.receiver.come(window, next);
        let count = come.len.min(into.len());
        self.receiver.copy_at(window, 0, &mut into[..count]);
        self.receiver.release(window, come, come.len);
        self.received.received += 1;
        Some(count)
    }
}

#[cfg(test)]
mod tests;
