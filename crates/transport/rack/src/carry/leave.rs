// SPDX-License-Identifier: Apache-2.0
//! The way back to TCP, as before a program hands its end to one that knows nothing of the window: an end leaves the rings by itself, and
//! the other one, which may do something else just then, follows as it comes to it.
//!
//! ```text
//! the end that leaves:  "asks" ── no byte that wakes is on its way ── how far it has read, "has left" ── a byte that wakes
//! the other end writes: message, fence, "has left"? what is not read goes over TCP once more, and all that follows
//! the other end reads:  what is in its ring ── the bytes that woke, as many as were counted ── TCP
//! ```
//!
//! | word of each part | what the other end has written there |
//! |---|---|
//! | 6 | 1: it asks to leave: nothing is to wake it; 2: it has left; 0: neither |
//! | 7, 8 | how far it had read as it left, and bytes of the message that it had begun |
//! | 9 | one more than the bytes that wake which it has sent; 0: it does not count them |
//! | 10 | threads of it that are about to send one |
//!
//! What an end had not read as it left the other end sends once more, by its next call, or as it is woken: it is lost if that one's program
//! is killed before. It lies in the ring until TCP has room for it: of an end that follows, the number of what the other one has read says
//! how far it was sent, and [`Outgoing::worth`] how many bytes of the next message.
//!
//! Nobody waits for the other end, but one that asks, for [`WAITS`] at most: bytes that wake are sent within a call.

use std::{
    hint, io,
    os::fd::BorrowedFd,
    sync::atomic::{Ordering::SeqCst, fence},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{SendFlags, Shutdown, connect_unspec, send, shutdown},
};

use super::{
    CARRIED_AT, Incoming, OVER_TCP_AT, Outgoing, READS_RING_AT, WAKES, has_end, invalid, now, receiver, sender,
};
use crate::{
    ring,
    stream::{READS_NO_MORE_AT, WRITES_NO_MORE_AT},
    window::{WORD, Window},
};

const LEAVES_AT: usize = 6 * WORD;
const READ_AT: usize = 7 * WORD;
const TAKEN_AT: usize = 8 * WORD;
const WAKES_AT: usize = 9 * WORD;
const WAKING_AT: usize = 10 * WORD;
const ASKS: u64 = 1;
const HAS_LEFT: u64 = 2;
/// An end that asks waits no longer for what is on its way, nor one that closes for room in TCP.
const WAITS: Duration = Duration::from_millis(100);
/// Looks before naps.
const LOOKS: u32 = 1000;
const NAP: Duration = Duration::from_micros(50);
/// Bytes that are sent once more by one call.
const PIECE: usize = 2048;

/// Bytes that wake are counted from now on.
pub(crate) fn counts(window: &impl Window) {
    window.adds(WAKES_AT, 1);
}

/// Bytes that wake which the other end has sent. None: it does not count them, as a proxy, or has no window.
fn counted(window: &impl Window) -> Option<u64> {
    let all = window.poll(WAKES_AT).checked_sub(1);
    all.filter(|_| window.poll(CARRIED_AT) == 0)
}

/// The other end asks to leave, or has left.
pub(super) fn has_asked(window: &impl Window) -> bool {
    window.poll(LEAVES_AT) != 0
}

/// The other end has left.
pub(crate) fn has_left(window: &impl Window) -> bool {
    window.poll(LEAVES_AT) == HAS_LEFT
}

/// Sends a byte that wakes, without a wait. None: the other end asks to leave, or has left.
pub(crate) fn sends_wake(window: &impl Window, socket: BorrowedFd<'_>) -> Option<Result<(), Errno>> {
    window.adds(WAKING_AT, 1);
    fence(SeqCst);
    let sent = (window.poll(LEAVES_AT) == 0).then(|| {
        let sent = send(socket, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map(drop);
        if sent.is_ok() {
            window.adds(WAKES_AT, 1);
        }
        sent
    });
    window.adds(WAKING_AT, 1_u64.wrapping_neg());
    sent
}

impl Incoming {
    /// So many bytes came behind the last one of TCP, and wake.
    pub(super) fn has_woken(&mut self, window: &impl Window, count: usize) -> io::Result<()> {
        self.wakes += count as u64;
        // The other end came, wrote and left in the moment in which TCP was read.
        match counted(window) {
            Some(all) if has_left(window) && self.wakes > all => Err(invalid("bytes were taken for some that wake")),
            _ => Ok(()),
        }
    }

    /// Bytes that wake which may be taken: what comes behind them may be the program's, of one that has left.
    pub(super) fn wakes_most(&self, window: &impl Window) -> usize {
        match counted(window) {
            Some(all) => usize::try_from(all.saturating_sub(self.wakes)).unwrap_or(WAKES).min(WAKES),
            None => WAKES,
        }
    }

    /// Asked of a byte that was seen and is not counted: the other end has not left before it, and so it wakes.
    pub(super) fn is_wake(window: &impl Window) -> bool {
        !has_left(window)
    }

    /// The other end has left, and nothing of the ring or that wakes is still to be read: all comes over TCP again.
    pub(crate) fn follows(&mut self, window: &impl Window) -> bool {
        if self.has_left || !has_left(window) {
            return self.has_left;
        }
        let all_woke = counted(window).is_none_or(|all| all == self.wakes);
        let is_read = || all_woke && !receiver(window, self.ring).has_something(window);
        let never_came = !self.is_on_ring && window.poll(OVER_TCP_AT) == 0;
        self.has_left = never_came || self.is_on_ring && !self.is_ended && is_read();
        self.is_on_ring &= !self.has_left;
        self.has_left
    }
}

impl Outgoing {
    /// Nothing is to be sent once more.
    pub(super) fn leaves(&mut self) {
        (self.has_left, self.is_on_ring, self.ring[1]) = (true, false, self.ring[0]);
    }

    /// What the other end had not read as it left is still to be sent, before all else.
    pub(crate) fn is_sending(&self) -> bool {
        self.has_left && self.ring[0] != self.ring[1]
    }

    /// If the other end has left all goes over TCP, and first what that one has not read, as far as there is room. Whether it does. Behind a
    /// fence.
    ///
    /// # Errors
    /// The socket's, which is shut then; `InvalidData`: the other end breaks the rules of the window.
    pub(crate) fn follows(&mut self, window: &impl Window, socket: BorrowedFd<'_>) -> io::Result<bool> {
        if !self.has_left && !has_left(window) {
            return Ok(false);
        }
        self.goes_after(window, socket)
    }

    /// Apart, as each write asks: its room on the stack may be scarce, as in the handler of a signal.
    #[cold]
    #[inline(never)]
    fn goes_after(&mut self, window: &impl Window, socket: BorrowedFd<'_>) -> io::Result<bool> {
        let mut sent = Ok(());
        if !self.has_left {
            let (was_on_ring, of) = (self.is_on_ring, sender(window, self.ring));
            self.leaves();
            if !was_on_ring {
                return Ok(true);
            }
            let [read, taken] = [READ_AT, TAKEN_AT].map(|at| window.poll(at));
            if of.may_be_read(read) {
                (self.ring[1], self.worth) = (read, taken);
            } else {
                sent = Err(invalid("the other end says that it has read what it cannot have"));
            }
        } else if !self.is_sending() {
            return Ok(true);
        }
        let sent = sent.and_then(|()| self.sends_unread(window, socket));
        if sent.is_err() {
            let _ = shutdown(socket, Shutdown::Both);
            self.leaves();
        } else if self.has_ended && !self.is_sending() {
            let _ = shutdown(socket, Shutdown::Write);
        }
        sent.map(|()| true)
    }

    fn sends_unread(&mut self, window: &impl Window, socket: BorrowedFd<'_>) -> io::Result<()> {
        let mut piece = [0; PIECE];
        while self.is_sending() {
            let at = [self.ring[1], self.worth];
            let unread = sender(window, self.ring).unread_there(window, at, &mut piece);
            let (count, len) = unread.ok_or_else(|| invalid("what was written is in the ring no more"))?;
            if count > 0 {
                match now(send(socket, &piece[..count], SendFlags::DONTWAIT | SendFlags::NOSIGNAL))? {
                    Some(count) => {
                        self.worth += count as u64;
                        self.over_tcp += count as u64;
                    }
                    None => return Ok(()),
                }
            }
            if self.worth >= len as u64 {
                (self.ring[1], self.worth) = (self.ring[1] + ring::room(len), 0);
            }
        }
        Ok(())
    }

    /// Before a close: what the other end has not read goes over TCP, if there is room within [`WAITS`], or else the connection is reset, as
    /// an end would be taken for that of all.
    pub(crate) fn sends_last(&mut self, window: &impl Window, socket: BorrowedFd<'_>) {
        let timeout = Timespec { tv_sec: 0, tv_nsec: WAITS.subsec_nanos().into() };
        while self.follows(window, socket).is_ok() && self.is_sending() {
            if poll(&mut [PollFd::from_borrowed_fd(socket, PollFlags::OUT)], Some(&timeout)) == Ok(0) {
                let _ = connect_unspec(socket);
                self.leaves();
            }
        }
    }
}

/// Both directions of an end go over TCP from now on, for good. False: they stay, as something that wakes is on its way, or the other end
/// cannot follow.
///
/// # Errors
/// As [`Incoming::try_read`].
pub(crate) fn leave(
    incoming: &mut Incoming,
    outgoing: &mut Outgoing,
    window: &impl Window,
    socket: BorrowedFd<'_>,
) -> io::Result<bool> {
    if incoming.has_left && outgoing.has_left {
        return Ok(!outgoing.is_sending());
    }
    if window.poll(CARRIED_AT) != 0 || incoming.error != 0 {
        return Ok(false);
    }
    waits_for_other(window);
    // One that has closed its half of TCP has said so before.
    let reads_ring = outgoing.is_on_ring || !outgoing.has_ended;
    window.publish(LEAVES_AT, ASKS);
    // An end whose window comes right now stays with TCP.
    window.publish(READS_RING_AT, 0);
    fence(SeqCst);
    let is_free = is_free(incoming, outgoing, window, socket);
    let wakes = outgoing.is_on_ring;
    let stays = || {
        window.publish(READS_RING_AT, reads_ring.into());
        window.publish(LEAVES_AT, 0);
    };
    if !matches!(is_free, Ok(true)) {
        stays();
        return is_free;
    }
    window.publish(READ_AT, incoming.ring[0]);
    window.publish(TAKEN_AT, incoming.ring[1]);
    // Before it may come behind the program's own bytes.
    window.adds(WAKES_AT, wakes.into());
    window.publish(LEAVES_AT, HAS_LEFT);
    fence(SeqCst);
    if window.poll(READS_NO_MORE_AT) != 0 && receiver(window, incoming.ring).has_something(window) {
        // One that has closed meanwhile may not have seen it. What it has sent once more, if it has, is not counted, and taken at the end.
        window.adds(WAKES_AT, u64::from(wakes).wrapping_neg());
        stays();
        return Ok(false);
    }
    if wakes && send(socket, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_err() {
        // Where there is no room the other end has bytes of TCP to read, and the program writes nothing before this returns.
        window.adds(WAKES_AT, 1_u64.wrapping_neg());
    }
    if outgoing.has_ended && outgoing.is_on_ring {
        let _ = shutdown(socket, Shutdown::Write);
    }
    (incoming.has_left, incoming.is_on_ring) = (true, false);
    outgoing.leaves();
    Ok(true)
}

/// Of two that ask one stays.
fn waits_for_other(window: &impl Window) {
    let (begun, mut looks) = (Instant::now(), 0);
    while window.poll(LEAVES_AT) == ASKS && begun.elapsed() < WAITS {
        looks += 1;
        if looks < LOOKS { hint::spin_loop() } else { thread::sleep(NAP) }
    }
}

/// The other end has no window, or is there and can be woken, or has nothing to send once more; and no byte that wakes is there or on its
/// way.
fn is_free(
    incoming: &mut Incoming,
    outgoing: &mut Outgoing,
    window: &impl Window,
    socket: BorrowedFd<'_>,
) -> io::Result<bool> {
    // One that asks, too, has taken back that it reads the ring.
    if window.poll(READS_RING_AT) == 0 && window.poll(OVER_TCP_AT) == 0 && window.poll(LEAVES_AT) == 0 {
        return Ok(true);
    }
    if counted(window).is_none() || window.poll(LEAVES_AT) == ASKS {
        return Ok(false);
    }
    // One that has left sends nothing once more: it is another program's by now.
    let is_told = (outgoing.follows(window, socket)? || outgoing.changes_over(window)) && !outgoing.has_left;
    let is_unread = receiver(window, incoming.ring).has_something(window);
    let is_gone = window.poll(READS_NO_MORE_AT) != 0 || is_unread && has_end(socket);
    let has_end = window.poll(WRITES_NO_MORE_AT) != 0 && !outgoing.has_left && !is_gone;
    if is_unread && (is_gone || !is_told) || has_end && !is_told || outgoing.is_sending() {
        return Ok(false);
    }
    let (begun, mut looks) = (Instant::now(), 0);
    while !incoming.is_ended {
        let is_sending = window.poll(WAKING_AT) != 0;
        if !is_sending && counted(window) == Some(incoming.wakes) {
            break;
        }
        // Bytes of TCP may be before them, which are the program's.
        let _ = incoming.has_something(window);
        if !incoming.is_on_ring || begun.elapsed() > WAITS {
            return Ok(false);
        }
        incoming.hears(window, socket, true)?;
        looks += 1;
        if looks < LOOKS { hint::spin_loop() } else { thread::sleep(NAP) }
    }
    Ok(true)
}
