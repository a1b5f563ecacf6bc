// SPDX-License-Identifier: Apache-2.0
//! One end of a connection that goes over to a window ([`crate::carry`]), for all threads and processes that have its socket.
//!
//! What it knows lies in memory that a process shares with those it forks, each direction behind a lock that is held for the copy of
//! some bytes. The memory is that of this end alone: the other one sees nothing of it.
//!
//! **Sleeps.** Who waits says so in the window, looks once more, and polls the socket. The other end sends a byte over TCP for each such
//! sleep, which wakes all who wait for the socket, by whatever call. Who is alone takes the byte; where several sleep it is left until
//! one of them has what it waited for, and the others nap meanwhile.
//!
//! **Deaths.** A process that is killed as it holds the lock of a direction leaves an end of which all further calls of the others fail
//! with `ConnectionReset`. One that is killed as it sleeps counts as one that sleeps for ever: the others nap, instead of sleeping. What it
//! has read, and not yet said by a byte, the next read of another one says. Its number stands for it: who waits for its lock waits for as
//! long as another process has that number.

mod leave;
mod look;

pub use look::Look;

use std::{
    fmt, io,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence},
    },
    time::{Duration, Instant},
};

use fide_shm::region::{Mapped, RegionError, Shared};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{RecvFlags, recv},
};

use crate::{
    carry::{
        CARRIED_AT, Incoming, Outgoing,
        leave::{counts, has_left, sends_wake},
        reads_ring,
    },
    lock::{self, Lock, Lost},
    stream::{READS_NO_MORE_AT, WRITES_NO_MORE_AT},
    window::{Bell, Drain, Fill, Window},
};

/// How long a thread sleeps where nothing would wake it, or what wakes it is left for others.
const NAP: Duration = Duration::from_millis(1);

/// Numbers of a direction, and which of them has its bits.
const WORDS: usize = 6;
const IS_AT: usize = 3;
/// Bits: it goes through the ring, has ended, and goes over TCP again.
const IS_ON_RING: u64 = 1;
const IS_ENDED: u64 = 2;
const HAS_LEFT: u64 = 4;

/// What the processes of an end share. New, it is all 0.
#[repr(C, align(64))]
struct State {
    incoming: Side,
    outgoing: Side,
    /// Threads that sleep.
    sleepers: AtomicU32,
    /// The number of the last sleep.
    turn: AtomicU32,
    /// Processes that have the end, less one.
    others: AtomicU32,
    /// A process was killed as it changed something here.
    is_broken: AtomicU32,
    /// [`Patience::word`](crate::wait::Patience::word), by [`Bell`].
    patience: [AtomicU32; 2],
}

/// Of one direction.
#[repr(C, align(64))]
struct Side {
    lock: Lock,
    words: [AtomicU64; WORDS],
}

// SAFETY: only atomics, in arrays and structs of their own, and padding; aligned to 64 bytes.
unsafe impl Shared for State {}

/// Numbers that are kept in a [`Side`].
trait Kept: Sized {
    fn of(words: [u64; WORDS]) -> Self;
    fn words(&self) -> [u64; WORDS];
}

fn both(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

#[allow(clippy::cast_possible_truncation, reason = "its two halves")]
fn halves(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}

fn bits(word: u64) -> [bool; 3] {
    [IS_ON_RING, IS_ENDED, HAS_LEFT].map(|bit| word & bit != 0)
}

fn word([first, second, third]: [bool; 3]) -> u64 {
    let bit = |is, bit| if is { bit } else { 0 };
    bit(first, IS_ON_RING) | bit(second, IS_ENDED) | bit(third, HAS_LEFT)
}

impl Kept for Incoming {
    fn of([read, taken, over_tcp, is, error, wakes]: [u64; WORDS]) -> Self {
        let (error, [is_on_ring, is_ended, has_left]) = (halves(error)[0].cast_signed(), bits(is));
        Self { ring: [read, taken], over_tcp, is_on_ring, is_ended, wakes, has_left, error }
    }

    fn words(&self) -> [u64; WORDS] {
        let is = word([self.is_on_ring, self.is_ended, self.has_left]);
        [self.ring[0], self.ring[1], self.over_tcp, is, both(self.error.cast_unsigned(), 0), self.wakes]
    }
}

impl Kept for Outgoing {
    fn of([written, read, over_tcp, is, worth, woken]: [u64; WORDS]) -> Self {
        let [is_on_ring, has_ended, has_left] = bits(is);
        Self { ring: [written, read], over_tcp, is_on_ring, has_ended, has_left, worth, woken: halves(woken) }
    }

    fn words(&self) -> [u64; WORDS] {
        let is = word([self.is_on_ring, self.has_ended, self.has_left]);
        let [message, room] = self.woken;
        [self.ring[0], self.ring[1], self.over_tcp, is, self.worth, both(message, room)]
    }
}

impl Side {
    fn load<T: Kept>(&self) -> T {
        T::of(self.words.each_ref().map(|word| word.load(Ordering::Relaxed)))
    }

    fn store<T: Kept>(&self, kept: &T) {
        for (word, number) in self.words.iter().zip(kept.words()) {
            word.store(number, Ordering::Relaxed);
        }
    }

    /// Whether it has a bit, without the lock.
    fn is(&self, bit: u64) -> bool {
        self.words[IS_AT].load(Ordering::Relaxed) & bit != 0
    }
}

/// After a fork, in the child, before it uses an end: what is kept of its thread is the parent's.
pub fn in_child() {
    lock::in_child();
}

/// One end of a connection.
pub struct End<W> {
    state: Mapped<State>,
    window: OnceLock<W>,
    /// This process has closed it.
    has_closed: AtomicBool,
    /// Threads of this process among [`State::sleepers`].
    own_sleepers: AtomicU32,
}

impl<W> fmt::Debug for End<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (incoming, outgoing): (Incoming, Outgoing) = (self.of().incoming.load(), self.of().outgoing.load());
        f.debug_struct("End").field("incoming", &incoming).field("outgoing", &outgoing).finish_non_exhaustive()
    }
}

impl<W> End<W> {
    fn of(&self) -> &State {
        self.state.get()
    }
}

impl<W: Window> End<W> {
    /// Of a connection over which nothing has gone so far.
    ///
    /// # Errors
    /// [`RegionError`]: the kernel has no memory.
    pub fn new() -> Result<Self, RegionError> {
        let (has_closed, own_sleepers) = (AtomicBool::new(false), AtomicU32::new(0));
        Ok(Self { state: Mapped::anonymous()?, window: OnceLock::new(), has_closed, own_sleepers })
    }

    /// In a process that was forked: those that sleep are the parent's.
    pub fn is_forked(&self) {
        self.own_sleepers.store(0, Ordering::Relaxed);
    }

    /// Another process has the end, too: as one that is forked has.
    pub fn shared(&self) {
        self.of().others.fetch_add(1, Ordering::Relaxed);
    }

    /// This process has it no more, and others may.
    pub fn left(&self) {
        self.leaves();
    }

    /// False: no other process has it.
    fn leaves(&self) -> bool {
        let one_less = |others: u32| others.checked_sub(1);
        self.of().others.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }

    /// No other process has the end.
    #[must_use]
    pub fn is_lone(&self) -> bool {
        self.of().others.load(Ordering::Relaxed) == 0
    }

    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.window.get().is_some()
    }

    /// The window has come, all of which was 0 as it was made: from now on the ring is read, once TCP is, and written to once the other end
    /// reads it. It is not taken, and all goes on over TCP, if another process has the end, which would not see it; if this end writes no
    /// more, as nothing could wake the other one; or if there is one already.
    ///
    /// # Errors
    /// [`End::read`]'s of an end that is broken.
    pub fn attach(&self, window: W) -> io::Result<bool> {
        self.incoming(|incoming| {
            self.outgoing(|outgoing| {
                let state = self.of();
                let is_ours = self.is_lone() && !self.has_closed.load(Ordering::Relaxed);
                if !is_ours || outgoing.has_ended || incoming.is_ended || self.window.set(window).is_err() {
                    return false;
                }
                if let Some(window) = self.window.get() {
                    fence(Ordering::SeqCst);
                    if state.sleepers.load(Ordering::Relaxed) > 0 {
                        // They did not say so in the window, which was not there.
                        self.arms(Bell::Message);
                        self.arms(Bell::Room);
                    }
                    counts(window);
                    reads_ring(window);
                    outgoing.changes_over(window);
                }
                true
            })
        })?
    }

    /// The program closes its last descriptor of the socket. If no other process has one, this end reads and writes no more, and the other
    /// one is told.
    pub fn close(&self, socket: impl AsFd) {
        let socket = socket.as_fd();
        // Also where others have it.
        let _ = self.sends_unread(socket);
        let window = self.lets_go();
        let ended = match window {
            Some(window) => self.outgoing(|outgoing| {
                let is_on_ring = outgoing.ends(Some(window), socket);
                outgoing.sends_last(window, socket);
                outgoing.wakes(window, socket, Bell::Room);
                is_on_ring
            }),
            // Other processes had it: they may be gone, of which nobody knows here.
            None => Ok(self.is_on_ring(Bell::Message)),
        };
        if let Some(of) = self.window.get()
            && (ended.is_ok_and(|is_on_ring| is_on_ring) || has_left(of))
            && (window.is_some() || self.is_alone(0))
        {
            // What wakes and is not taken would have the kernel reset the connection.
            let _ = self.incoming(|incoming| incoming.drains(of, socket));
        }
    }

    /// As [`End::close`], of a socket that was reset: that tells the other end, which reads what was written, and then the error.
    pub fn reset(&self) {
        self.lets_go();
    }

    /// Once this process has closed it, the descriptor of a call that still waits may be another socket's: `EBADF`. Asked under a lock that
    /// [`End::lets_go`] takes, and before the socket is used.
    fn is_open(&self) -> io::Result<()> {
        if self.has_closed.load(Ordering::Relaxed) { Err(Errno::BADF.into()) } else { Ok(()) }
    }

    /// Of a close: the window, if no other process has the end.
    fn lets_go(&self) -> Option<&W> {
        let closes = || {
            self.has_closed.store(true, Ordering::Relaxed);
            self.leaves()
        };
        // Behind the locks that attach, and that calls use the socket under: from now on that the others are one is none of this process'
        // business, and the descriptor may be another socket's.
        let leaves = self.incoming(|_: &mut Incoming| self.outgoing(|_: &mut Outgoing| closes()));
        if leaves.flatten().unwrap_or_else(|_| closes()) {
            // For the others nobody of this process sleeps any more, also where a thread comes to say so later, or never.
            while self.wakes_one() {}
            return None;
        }
        let window = self.window.get()?;
        window.publish(READS_NO_MORE_AT, 1);
        Some(window)
    }

    /// The other end has said through the ring that it writes no more, or TCP says so.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        let says_ring = |window: &W| window.poll(WRITES_NO_MORE_AT) != 0;
        self.window.get().is_some_and(says_ring) || self.of().incoming.is(IS_ENDED)
    }

    /// It goes over a link to another host.
    #[must_use]
    pub fn is_carried(&self) -> bool {
        self.window.get().is_some_and(|window| window.poll(CARRIED_AT) != 0)
    }

    /// This end writes no more.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.of().outgoing.is(IS_ENDED)
    }

    /// This end has written over TCP.
    #[must_use]
    pub fn has_written(&self) -> bool {
        self.of().outgoing.load::<Outgoing>().over_tcp > 0
    }

    /// This thread is about to poll the socket, as one of those that sleep: others leave what wakes until [`End::woke`].
    pub fn sleeps(&self) {
        let counts = || {
            self.of().sleepers.fetch_add(1, Ordering::Relaxed);
            self.own_sleepers.fetch_add(1, Ordering::Relaxed)
        };
        // Under the lock: who has seen that nobody sleeps takes what wakes before it lets it go.
        if self.incoming(|_: &mut Incoming| counts()).is_err() {
            counts();
        }
        // Either the window is seen, or who attaches it sees that somebody sleeps.
        fence(Ordering::SeqCst);
    }

    /// Whether a read, or a write, seems to go on through the ring. Without the lock: for those who look again and again before a sleep.
    #[must_use]
    pub fn seems_ready(&self, bell: Bell) -> bool {
        let Some(window) = self.window.get() else { return false };
        let (mut incoming, mut outgoing): (Incoming, Outgoing) = (self.of().incoming.load(), self.of().outgoing.load());
        match bell {
            Bell::Message => incoming.is_on_ring() && incoming.has_something(window),
            Bell::Room => outgoing.is_on_ring() && outgoing.has_room(window) == Some(true),
        }
    }

    /// This thread polls the socket no more. If nobody does, the other end need not wake anybody: each byte that does costs as much as one
    /// over TCP.
    pub fn woke(&self) {
        self.wakes_one();
    }

    /// False: no thread of this process sleeps.
    fn wakes_one(&self) -> bool {
        let one_less = |own: u32| own.checked_sub(1);
        if self.own_sleepers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_err() {
            return false;
        }
        let state = self.of();
        // Whoever sleeps from now on has a later number.
        let turn = state.turn.load(Ordering::SeqCst);
        if state.sleepers.fetch_sub(1, Ordering::SeqCst) == 1
            && let Some(window) = self.window.get()
        {
            [Bell::Message, Bell::Room].into_iter().for_each(|bell| window.sleeps_no_more(bell, turn));
        }
        true
    }

    fn incoming<T>(&self, change: impl FnOnce(&mut Incoming) -> T) -> io::Result<T> {
        self.change(&self.of().incoming, change)
    }

    fn outgoing<T>(&self, change: impl FnOnce(&mut Outgoing) -> T) -> io::Result<T> {
        self.change(&self.of().outgoing, change)
    }

    fn change<K: Kept, T>(&self, side: &Side, change: impl FnOnce(&mut K) -> T) -> io::Result<T> {
        let state = self.of();
        let (_held, result) = side.lock.hold();
        match result {
            Ok(()) => {}
            // The kernel would let the call wait until the interrupted one is done, which it never is.
            Err(Lost::Own) => return Err(io::ErrorKind::WouldBlock.into()),
            Err(Lost::HolderDied) => state.is_broken.store(1, Ordering::Relaxed),
        }
        if state.is_broken.load(Ordering::Relaxed) != 0 {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let mut kept = side.load();
        let result = change(&mut kept);
        side.store(&kept);
        Ok(result)
    }

    /// Nobody else of this end sleeps: asked, and made use of, under the lock of what comes ([`End::sleeps`]).
    fn is_alone(&self, own: u32) -> bool {
        self.of().sleepers.load(Ordering::Relaxed) <= own
    }

    /// Reads what is there, as far as there is room: how many bytes, 0 at the end, or none if nothing is there. `leaves`: it is only
    /// looked at.
    ///
    /// # Errors
    /// The socket's; `InvalidData`: the other end breaks the rules of the window; `ConnectionReset`: the other end's program has died, or one of
    /// this end was killed while it read or wrote; `WouldBlock`: this thread does so already, and was interrupted by a signal; `EBADF`: this
    /// process has closed it.
    pub fn read(&self, socket: impl AsFd, into: &mut [u8], leaves: bool) -> io::Result<Option<usize>> {
        let socket = socket.as_fd();
        self.reads(socket, leaves, |incoming, window, is_alone| {
            incoming.try_read(window, socket, into, leaves, is_alone)
        })
    }

    /// As [`End::read`], of at most so many bytes that something else takes ([`Window::drain`]), while nobody else reads: what it has no room
    /// for is left.
    ///
    /// # Errors
    /// As [`End::read`], and those of `drain`, which is to fail where it has no room at all. Nothing was taken.
    pub fn drain(&self, socket: impl AsFd, most: usize, drain: &mut Drain<'_>) -> io::Result<Option<usize>> {
        let socket = socket.as_fd();
        self.reads(socket, false, |incoming, window, is_alone| {
            incoming.try_drain(window, socket, most, drain, is_alone)
        })
    }

    fn reads(
        &self,
        socket: BorrowedFd<'_>,
        leaves: bool,
        read: impl FnOnce(&mut Incoming, Option<&W>, bool) -> io::Result<Option<usize>>,
    ) -> io::Result<Option<usize>> {
        let read = self.incoming(|incoming| {
            self.is_open()?;
            // Not before: another thread may attach it meanwhile, and then what comes over TCP may be a byte that wakes.
            let read = read(incoming, self.window.get(), self.is_alone(0));
            read.map(|read| (read, incoming.is_on_ring()))
        })??;
        // What was read is not to be lost by an error of a write.
        let _ = self.sends_unread(socket);
        if read.1
            && !leaves
            && let Some(window) = self.window.get()
        {
            self.wakes_writer(window, socket);
        }
        Ok(read.0)
    }

    /// Wakes the other end's writer if it sleeps: also where nothing was read, as one who has read may have been killed before it came to
    /// this.
    fn wakes_writer(&self, window: &W, socket: BorrowedFd<'_>) {
        if window.poll(CARRIED_AT) != 0 {
            // The proxies wake, once the other end knows that no more comes over TCP.
            if !self.of().outgoing.is(IS_ON_RING) {
                let _ = self.outgoing(|outgoing| !outgoing.has_ended && outgoing.changes_over(window));
            }
            return;
        }
        let turn = window.sleeper(Bell::Room);
        // Without the lock: whoever has stored this number wakes it.
        let woken = self.of().outgoing.load::<Outgoing>().woken[Bell::Room as usize];
        if turn != 0 && turn != woken {
            let woken = self.outgoing(|outgoing| {
                outgoing.changes_over(window);
                if self.is_open().is_ok() {
                    outgoing.wakes(window, socket, Bell::Room);
                }
            });
            // An error is for the next write, and what was read is not to be lost by it. This thread may be in the handler of a signal that has
            // interrupted a write: one byte too many wakes in vain. If that one was just about to go over to the ring, the next read wakes.
            if woken.is_err() && self.of().outgoing.is(IS_ON_RING) {
                let _ = sends_wake(window, socket);
            }
        }
    }

    /// Writes as many bytes as there is room for; none if there is no room, or too little to be worth it.
    ///
    /// # Errors
    /// As [`End::read`], and `BrokenPipe` if this end writes no more.
    pub fn write(&self, socket: impl AsFd, bytes: &[u8]) -> io::Result<Option<usize>> {
        let socket = socket.as_fd();
        self.writes(socket, |outgoing| outgoing.try_write(self.window.get(), socket, bytes))
    }

    /// Writes at most so many bytes that something else puts into the ring ([`Window::fill`]), while nobody else writes: how many, 0 if there
    /// were none, or none if there is no room, or too little to be worth it.
    ///
    /// # Errors
    /// As [`End::write`], and those of `fill`. `Unsupported`: they still go over TCP.
    pub fn fill(&self, socket: impl AsFd, most: usize, fill: &mut Fill<'_>) -> io::Result<Option<usize>> {
        let socket = socket.as_fd();
        self.writes(socket, |outgoing| outgoing.try_fill(self.window.get(), socket, most, fill))
    }

    /// Something else writes to the socket, and says how many bytes, or that it would have to wait, as long as writes go over TCP, and while
    /// nobody else writes. None: they go through the ring, or it would have to wait.
    ///
    /// # Errors
    /// As [`End::write`], and those of `sends`.
    pub fn send(
        &self,
        socket: impl AsFd,
        sends: impl FnOnce() -> io::Result<Option<usize>>,
    ) -> io::Result<Option<usize>> {
        let socket = socket.as_fd();
        self.writes(socket, |outgoing| outgoing.try_send(self.window.get(), socket, sends))
    }

    fn writes(
        &self,
        socket: BorrowedFd<'_>,
        write: impl FnOnce(&mut Outgoing) -> io::Result<Option<usize>>,
    ) -> io::Result<Option<usize>> {
        // TCP has said that the other end's program is gone, which would not take what it finds room for: the kernel takes one write, too.
        let is_in_vain = self.has_seen_end() && self.is_gone(socket)?;
        let result = self.outgoing(|outgoing| {
            self.is_open()?;
            let written = if is_in_vain { Err(io::ErrorKind::BrokenPipe.into()) } else { write(outgoing) }?;
            Ok::<_, io::Error>((written, outgoing.is_on_ring()))
        })?;
        let (written, is_on_ring) = match result {
            // The socket tells its error once, and this end has taken it as it looked for what wakes.
            Err(why) if why.kind() == io::ErrorKind::BrokenPipe && !self.has_ended() => {
                let error = self.incoming(|incoming| std::mem::take(&mut incoming.error))?;
                return Err(if error == 0 { why } else { io::Error::from_raw_os_error(error) });
            }
            result => result?,
        };
        if written.is_none() && is_on_ring && self.is_gone(socket)? {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        Ok(written)
    }

    /// Whether this end writes through the ring, and has seen the end of TCP, of which the other end has said nothing. Without the locks: seen
    /// a moment later, it is one write more.
    fn has_seen_end(&self) -> bool {
        let is_open = |window: &W| window.poll(READS_NO_MORE_AT) == 0;
        self.of().incoming.is(IS_ENDED) && self.is_on_ring(Bell::Room) && self.window.get().is_some_and(is_open)
    }

    /// Whether nobody will make room in the ring any more: the other end's program has closed the connection, or died. Not before this end
    /// writes there: a byte goes over TCP.
    fn is_gone(&self, socket: BorrowedFd<'_>) -> io::Result<bool> {
        let seen = looks(socket, PollFlags::RDHUP)?;
        if seen.intersects(PollFlags::ERR | PollFlags::HUP) {
            return Ok(true);
        }
        let window = self.window.get().filter(|window| window.poll(CARRIED_AT) == 0);
        let Some(window) = window.filter(|_| seen.contains(PollFlags::RDHUP)) else {
            // Its proxy says so; a byte could come before what says that no more comes over TCP.
            return Ok(false);
        };
        // It may have closed its half before it had the window, and read on. The kernel of one that is gone answers with a reset.
        let probes = |outgoing: &mut Outgoing| {
            self.is_open()?;
            // Another thread may have had it leave meanwhile.
            Ok(outgoing.is_on_ring() && matches!(sends_wake(window, socket), Some(Err(Errno::PIPE | Errno::CONNRESET))))
        };
        self.outgoing(probes).flatten()
    }

    /// Writes no more: the other end reads what was written, and then the end.
    ///
    /// # Errors
    /// As [`End::read`], and the kernel's.
    pub fn shut(&self, socket: impl AsFd) -> io::Result<()> {
        let socket = socket.as_fd();
        let ends = |outgoing: &mut Outgoing| self.is_open().map(|()| outgoing.ends(self.window.get(), socket));
        if !self.outgoing(ends).flatten()? {
            rustix::net::shutdown(socket, rustix::net::Shutdown::Write)?;
        }
        Ok(())
    }

    /// Bytes that can be read without a wait, of those that came through the ring.
    ///
    /// # Errors
    /// As [`End::read`].
    pub fn count(&self) -> io::Result<usize> {
        self.incoming(|incoming| match self.window.get() {
            Some(window) if incoming.has_something(window) => incoming.count(window),
            _ => 0,
        })
    }

    /// A number that differs once something more has come through the ring, or the end of it, as long as nobody reads. Also while TCP is
    /// still to be read.
    #[must_use]
    pub fn arrived(&self) -> usize {
        let count = self.incoming(|incoming| self.window.get().map_or(0, |window| incoming.count(window)));
        count.unwrap_or(usize::MAX - 1) + usize::from(self.is_ended())
    }

    /// Whether a read, or a write, goes on without a wait, as far as the ring says. None: the socket says it.
    ///
    /// # Errors
    /// As [`End::read`].
    pub fn is_ready(&self, bell: Bell) -> io::Result<Option<bool>> {
        let Some(window) = self.window.get() else { return Ok(None) };
        match bell {
            Bell::Message if self.has_nothing(window) => Ok(Some(false)),
            Bell::Message => self.incoming(|incoming| {
                let has_something = incoming.has_something(window);
                (has_something || incoming.is_on_ring()).then_some(has_something)
            }),
            Bell::Room => self.outgoing(|outgoing| outgoing.has_room(window)),
        }
    }

    /// Nothing is there to be read through the ring, without the lock: a server looks at many connections, of which few have something.
    fn has_nothing(&self, window: &W) -> bool {
        let (state, read) = (self.of(), || self.of().incoming.words[0].load(Ordering::Acquire));
        let at = read();
        let mut incoming: Incoming = state.incoming.load();
        // Nobody has read on meanwhile, and so it was looked at the right place.
        incoming.is_on_ring()
            && !incoming.has_something(window)
            && read() == at
            && state.is_broken.load(Ordering::Relaxed) == 0
    }

    /// From now on the other end wakes who polls the socket once there is something to read, or room. After that [`End::is_ready`] is to
    /// be asked once more.
    pub fn arms(&self, bell: Bell) {
        if let Some(window) = self.window.get() {
            window.will_sleep(bell, self.next_turn());
        }
    }

    /// Not 0, which stands for none, and never the same twice in a row, also as they begin anew.
    fn next_turn(&self) -> u32 {
        let turns = &self.of().turn;
        let next = || turns.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        match next() {
            0 => next(),
            turn => turn,
        }
    }

    /// Whether reads, or writes, go through the ring, as the last call that looked has seen it. Without the lock.
    #[must_use]
    pub fn is_on_ring(&self, bell: Bell) -> bool {
        match bell {
            Bell::Message => self.of().incoming.is(IS_ON_RING),
            Bell::Room => self.of().outgoing.is(IS_ON_RING),
        }
    }

    fn sleep(&self, of: &impl AsFd, bell: Bell, until: Option<Instant>) -> io::Result<bool> {
        loop {
            // It may be closed, or have another descriptor, since.
            self.is_open()?;
            let socket = of.as_fd();
            self.arms(bell);
            let is_ready = self.is_ready(bell)?;
            if is_ready == Some(true) {
                return Ok(true);
            }
            let events = match (bell, is_ready) {
                (Bell::Message, _) => PollFlags::IN,
                (Bell::Room, None) => PollFlags::OUT,
                (Bell::Room, Some(_)) => PollFlags::IN | PollFlags::RDHUP,
            };
            let is_sending = self.is_sending();
            let seen = if bell == Bell::Room && is_ready.is_none() && self.of().outgoing.is(HAS_LEFT) {
                // Nothing that wakes is for this thread, and nobody is to leave it for it.
                self.meanwhile(|| polls(socket, events, until))?
            } else if is_sending {
                polls(socket, events | PollFlags::OUT, until)?
            } else if until.is_none() && events.contains(PollFlags::IN) {
                match peeks(socket)? {
                    Ok(true) if bell == Bell::Message => PollFlags::IN,
                    Ok(true) => looks(socket, events)?,
                    Ok(false) => polls(socket, events, until)?,
                    // It was taken from the socket, and is for the call that waits, or for the next read.
                    Err(why) if is_ready.is_none() => return Err(why.into()),
                    Err(why) => {
                        self.incoming(|incoming| self.is_open().map(|()| incoming.fails(why))).flatten()?;
                        return if bell == Bell::Message {
                            Ok(true)
                        } else {
                            Err(io::ErrorKind::ConnectionReset.into())
                        };
                    }
                }
            } else {
                polls(socket, events, until)?
            };
            if seen.is_empty() && until.is_some() {
                return Ok(self.is_ready(bell)? == Some(true));
            }
            if is_ready.is_none() {
                // Data, room, the end or an error of the socket; or a byte that wakes, as it has gone over to the ring.
                return Ok(true);
            }
            if bell == Bell::Room && seen.intersects(PollFlags::RDHUP | PollFlags::ERR | PollFlags::HUP) {
                if self.is_gone(of.as_fd())? {
                    return Err(io::ErrorKind::ConnectionReset.into());
                }
                self.meanwhile(|| nap(until))?;
            } else if !self.hears(of)? && self.is_ready(bell)? == Some(false) {
                self.meanwhile(|| nap(until))?;
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(self.is_ready(bell)? == Some(true));
            }
        }
    }

    /// Does something between [`End::sleeps`] and [`End::woke`] in which this thread does not count.
    fn meanwhile<T>(&self, what: impl FnOnce() -> T) -> T {
        self.woke();
        let done = what();
        self.sleeps();
        done
    }

    /// Takes what wakes, between [`End::sleeps`] and [`End::woke`]. False: it was left, as others sleep, or what is there is something else.
    ///
    /// # Errors
    /// As [`End::read`].
    pub fn hears(&self, socket: impl AsFd) -> io::Result<bool> {
        let socket = socket.as_fd();
        let is_taken = self.incoming(|incoming| {
            self.is_open()?;
            // All of TCP may have been read, and nobody have looked for more: what is there now wakes.
            let Some(window) = self.window.get() else { return Ok(false) };
            let _ = incoming.has_something(window);
            let is_alone = self.is_alone(1);
            let is_all = incoming.hears(window, socket, is_alone)?;
            incoming.follows(window);
            Ok((incoming.is_on_ring() || incoming.has_left) && is_alone && is_all)
        })?;
        self.sends_unread(socket)?;
        is_taken
    }
}

/// What wakes was left for others. A signal ends it, as it ends a sleep.
fn nap(until: Option<Instant>) -> io::Result<()> {
    let left = until.map_or(NAP, |until| until.saturating_duration_since(Instant::now()));
    polls_all(&mut [], Some(left.min(NAP)))
}

/// Waits until something comes, by a call with which the kernel goes on after a signal whose handler has `SA_RESTART`, as with a read. False:
/// the socket does not let it wait.
fn peeks(socket: BorrowedFd<'_>) -> io::Result<Result<bool, Errno>> {
    match recv(socket, &mut [0], RecvFlags::PEEK) {
        Ok(_) => Ok(Ok(true)),
        Err(Errno::WOULDBLOCK) => Ok(Ok(false)),
        Err(Errno::INTR) => Err(io::ErrorKind::Interrupted.into()),
        // So says the kernel to one that waits as another one resets the connection (`connect` to nobody), by which a monitor ends it.
        Err(Errno::PIPE) => Ok(Err(Errno::CONNRESET)),
        Err(why) => Ok(Err(why)),
    }
}

/// As [`polls`], without a wait: no signal ends it, as the wait that comes next knows whether it is to go on after one.
fn looks(socket: BorrowedFd<'_>, events: PollFlags) -> io::Result<PollFlags> {
    loop {
        match polls(socket, events, Some(Instant::now())) {
            Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
            seen => return seen,
        }
    }
}

/// Polls until a time. Nothing: in vain.
fn polls(socket: BorrowedFd<'_>, events: PollFlags, until: Option<Instant>) -> io::Result<PollFlags> {
    let mut fds = [PollFd::from_borrowed_fd(socket, events)];
    polls_all(&mut fds, until.map(|until| until.saturating_duration_since(Instant::now())))?;
    Ok(fds[0].revents())
}

fn polls_all(fds: &mut [PollFd<'_>], within: Option<Duration>) -> io::Result<()> {
    // One that is too long for the kernel is for ever.
    let timeout: Option<Timespec> = within.and_then(|within| within.try_into().ok());
    match poll(fds, timeout.as_ref()) {
        Err(Errno::INTR) => Err(io::ErrorKind::Interrupted.into()),
        result => result.map(drop).map_err(io::Error::from),
    }
}

#[cfg(test)]
mod tests;
