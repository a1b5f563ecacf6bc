// SPDX-License-Identifier: Apache-2.0
//! Reads and writes of a connection, with the kernel's meaning of flags, options and signals.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Instant,
};

use fide_rack::{end::Look, window::Bell};
use libc::{c_int, ssize_t};
use rustix::{fs::OFlags, net::sockopt};

use crate::{
    conn::{Conn, IS_OVER},
    peers::told,
    real::{errno, fail},
};

/// The most that one call of the kernel's reads or writes.
pub(crate) const COUNT_MAX: usize = 0x7fff_f000;
/// Bytes of pieces that are written as one.
const GATHER: usize = 4096;
/// Bytes of a file that are copied at once, where it has to be waited for, or they go over TCP.
const COPIED: usize = 16 << 10;
/// Bytes that are read at once to be thrown away.
const SCRATCH: usize = 4096;
/// Bytes that are looked at by one call that has no one place for them: as many as there can be.
const LOOKED_MAX: usize = 1 << 20;
/// Milliseconds between two looks whether all has come that is to be looked at.
const NAP_MS: c_int = 1;

/// When a wait of a call ends ([`Call::limit`]), once it is known.
pub(crate) type Limit = Option<Option<Instant>>;

/// Of a connection. The descriptor that the program called with may be closed while the call waits, and be another socket's then.
pub(crate) struct Call {
    pub(crate) conn: Arc<Conn>,
    pub(crate) flags: c_int,
}

/// The number of an error, as the kernel has it.
pub(crate) fn number(why: &io::Error) -> c_int {
    why.raw_os_error().unwrap_or(match why.kind() {
        io::ErrorKind::WouldBlock => libc::EAGAIN,
        io::ErrorKind::ConnectionReset => libc::ECONNRESET,
        io::ErrorKind::BrokenPipe => libc::EPIPE,
        io::ErrorKind::Interrupted => libc::EINTR,
        io::ErrorKind::NotConnected => libc::ENOTCONN,
        // The other end breaks the rules: nothing more can be believed.
        _ => libc::EIO,
    })
}

/// The result of a call of a descriptor's, as C has it: one that goes well leaves `errno` alone. What panics is an error.
pub(crate) fn returns(fd: c_int, call: impl FnOnce() -> Result<usize, c_int>) -> ssize_t {
    let before = errno();
    match catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(libc::EIO)) {
        Ok(count) => {
            fail(before);
            ssize_t::try_from(count).unwrap_or(ssize_t::MAX)
        }
        Err(errno) => {
            fail(told(fd, errno));
            -1
        }
    }
}

/// Counts as it is dropped.
pub(crate) struct Counts<'a>(&'a AtomicU32);

impl Drop for Counts<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

/// `preadv2`, without the C library: a thread is not cancelled in it.
///
/// # Safety
/// So many bytes may be written there.
unsafe fn reads_file(file: c_int, into: *mut u8, len: usize, at: i64, flags: c_int) -> io::Result<usize> {
    let piece = libc::iovec { iov_base: into.cast(), iov_len: len };
    // SAFETY: the caller's. The upper half of the place is for 32 bits.
    let count = unsafe { libc::syscall(libc::SYS_preadv2, file, &raw const piece, 1, at, 0, flags) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

impl Call {
    fn has(&self, flag: c_int) -> bool {
        self.flags & flag != 0
    }

    /// A wait ends at that time; none: never. `EAGAIN`: the call does not wait.
    fn limit(&self, bell: Bell) -> Result<Option<Instant>, c_int> {
        if self.has(libc::MSG_DONTWAIT) {
            return Err(libc::EAGAIN);
        }
        let flags = rustix::fs::fcntl_getfl(&*self.conn).map_err(|why| why.raw_os_error())?;
        let is_blocking = !flags.contains(OFlags::NONBLOCK);
        self.conn.is_blocking.store(is_blocking, Ordering::Relaxed);
        if !is_blocking {
            return Err(libc::EAGAIN);
        }
        if !self.conn.is_timed.load(Ordering::Relaxed) {
            return Ok(None);
        }
        if self.conn.is_at_once[bell as usize].load(Ordering::Relaxed) {
            return Err(libc::EAGAIN);
        }
        let which = match bell {
            Bell::Message => sockopt::Timeout::Recv,
            Bell::Room => sockopt::Timeout::Send,
        };
        let timeout = sockopt::socket_timeout(&*self.conn, which).map_err(|why| why.raw_os_error())?;
        Ok(timeout.map(|timeout| Instant::now() + timeout))
    }

    /// After a wait: its memory may have come. A look leaves it.
    pub(crate) fn goes_over(&self, bell: Bell) {
        self.conn.goes_on(self.conn.fd());
        match bell {
            Bell::Message if self.has(libc::MSG_PEEK) => {}
            Bell::Message => self.conn.is_read(),
            Bell::Room if self.conn.is_given() => self.conn.attaches(),
            Bell::Room => {}
        }
    }

    /// Before the socket is asked, which takes longer: what a call waits for is there soon, as a rule.
    fn looks_before(&self) -> Option<Look> {
        let is_at_once = self.conn.is_at_once[Bell::Message as usize].load(Ordering::Relaxed);
        let waits = self.conn.is_blocking.load(Ordering::Relaxed) && !is_at_once && !self.has(libc::MSG_DONTWAIT);
        if waits { self.conn.end.looks(Bell::Message) } else { None }
    }

    /// Waits, but not if the call does not.
    pub(crate) fn waits(&self, bell: Bell, limit: &mut Limit, look: Option<Look>) -> Result<(), c_int> {
        let until = match *limit {
            Some(until) => until,
            None => *limit.insert(self.limit(bell)?),
        };
        let is_there = self.conn.end.wait_after(look, &*self.conn, bell, until).map_err(|why| number(&why))?;
        if !is_there && until.is_some_and(|until| Instant::now() >= until) {
            return Err(libc::EAGAIN);
        }
        Ok(())
    }

    /// A call reads. Once more behind it: an edge that was told meanwhile was of what this reads.
    pub(crate) fn counts_read(&self) -> Counts<'_> {
        self.conn.reads.fetch_add(1, Ordering::Relaxed);
        Counts(&self.conn.reads)
    }

    /// Reads into the pieces in turn.
    pub(crate) fn reads(&self, pieces: &mut [&mut [u8]]) -> Result<usize, c_int> {
        let _read = self.counts_read();
        let all = pieces.iter().map(|piece| piece.len()).sum::<usize>();
        let least = if self.has(libc::MSG_WAITALL) { all } else { all.min(self.conn.low_at()) };
        let (mut count, mut limit) = (0, None);
        if self.has(libc::MSG_PEEK) {
            return self.looks(pieces, all, &mut limit);
        }
        for piece in pieces {
            let mut at = 0;
            while at < piece.len() {
                let waits = count == 0 || count < least;
                let read = if waits {
                    self.reads_piece(&mut piece[at..], false, &mut limit)
                } else {
                    self.conn
                        .end
                        .read(&*self.conn, &mut piece[at..], false)
                        .map_err(|why| number(&why))
                        .and_then(|read| read.ok_or(libc::EAGAIN))
                };
                match read {
                    Ok(0) => return Ok(count),
                    Ok(more) => (at, count) = (at + more, count + more),
                    // An error that was taken from the socket is lost, as is that of a call of the kernel's that has read something.
                    Err(_) if count > 0 => return Ok(count),
                    Err(why) => return Err(why),
                }
                if count >= least && at < piece.len() {
                    return Ok(count);
                }
            }
        }
        Ok(count)
    }

    /// As [`Call::reads`], and leaves what is there.
    fn looks(&self, pieces: &mut [&mut [u8]], all: usize, limit: &mut Limit) -> Result<usize, c_int> {
        if let [piece] = pieces {
            return self.looks_at(piece, limit);
        }
        let mut seen = vec![0; all.min(LOOKED_MAX)];
        let count = self.looks_at(&mut seen, limit)?;
        let mut rest = &seen[..count];
        for piece in pieces {
            let (part, after) = rest.split_at(rest.len().min(piece.len()));
            piece[..part.len()].copy_from_slice(part);
            rest = after;
        }
        Ok(count)
    }

    fn looks_at(&self, into: &mut [u8], limit: &mut Limit) -> Result<usize, c_int> {
        let mut count = self.reads_piece(into, true, limit)?;
        // Nothing wakes for what follows, as long as something is there.
        while self.has(libc::MSG_WAITALL) && count > 0 && count < into.len() {
            let until = match *limit {
                Some(until) => Ok(until),
                None => self.limit(Bell::Message).inspect(|until| *limit = Some(*until)),
            };
            let is_over = |until: Option<Instant>| until.is_some_and(|until| Instant::now() >= until);
            // SAFETY: of no descriptors.
            if until.map_or(true, is_over) || unsafe { libc::poll(std::ptr::null_mut(), 0, NAP_MS) } < 0 {
                break;
            }
            let more = self.reads_piece(into, true, limit)?;
            let end = &self.conn.end;
            // What has come through the ring is not seen before that of TCP is read.
            let is_apart = end.is_attached() && end.arrived() > 0 && matches!(end.is_ready(Bell::Message), Ok(None));
            if more == count && (end.is_ended() || is_apart) {
                break;
            }
            count = more;
        }
        Ok(count)
    }

    /// A read of no bytes waits for some, or the end.
    pub(crate) fn reads_none(&self) -> Result<usize, c_int> {
        self.reads_piece(&mut [0], true, &mut None).map(|_| 0)
    }

    fn reads_piece(&self, into: &mut [u8], leaves: bool, limit: &mut Limit) -> Result<usize, c_int> {
        loop {
            let look = self.looks_before();
            if let Some(count) = self.conn.end.read(&*self.conn, into, leaves).map_err(|why| number(&why))? {
                return Ok(count);
            }
            self.waits(Bell::Message, limit, look)?;
            self.goes_over(Bell::Message);
        }
    }

    /// Reads so many bytes at most, and throws them away (`MSG_TRUNC`).
    pub(crate) fn drops(&self, len: usize) -> Result<usize, c_int> {
        if self.has(libc::MSG_PEEK) {
            return self.reads(&mut [&mut vec![0; len.min(LOOKED_MAX)]]);
        }
        let (mut scratch, mut count) = ([0; SCRATCH], 0);
        // Only the first part is waited for.
        let rest = Self { conn: Arc::clone(&self.conn), flags: self.flags | libc::MSG_DONTWAIT };
        while count < len {
            let most = (len - count).min(SCRATCH);
            let call = if count == 0 || self.has(libc::MSG_WAITALL) { self } else { &rest };
            match call.reads(&mut [&mut scratch[..most]]) {
                Ok(more) if more == most => count += more,
                Ok(more) => return Ok(count + more),
                Err(_) if count > 0 => break,
                Err(why) => return Err(why),
            }
        }
        Ok(count)
    }

    /// Writes the pieces in turn: all of them, if the call waits.
    pub(crate) fn writes(&self, pieces: &[&[u8]]) -> Result<usize, c_int> {
        let all: usize = pieces.iter().map(|piece| piece.len()).sum();
        let written = if pieces.len() > 1 && all <= GATHER {
            let (mut gathered, mut at) = ([0; GATHER], 0);
            for piece in pieces {
                gathered[at..at + piece.len()].copy_from_slice(piece);
                at += piece.len();
            }
            self.writes_pieces(&[&gathered[..at]])
        } else {
            self.writes_pieces(pieces)
        };
        self.signals(written)
    }

    /// As the kernel does.
    pub(crate) fn signals(&self, mut written: Result<usize, c_int>) -> Result<usize, c_int> {
        if written == Err(libc::ECONNRESET) && self.conn.end.has_ended() {
            // Another thread has shut it meanwhile.
            written = Err(libc::EPIPE);
        }
        if written == Err(libc::EPIPE) && !self.has(libc::MSG_NOSIGNAL) && !IS_OVER.load(Ordering::Relaxed) {
            // SAFETY: it takes a number.
            unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGPIPE) };
        }
        written
    }

    fn writes_pieces(&self, pieces: &[&[u8]]) -> Result<usize, c_int> {
        let (mut count, mut limit) = (0, None);
        if pieces.iter().all(|piece| piece.is_empty()) {
            // Nothing cannot be written, either, where nothing more can be.
            return self.writes_some(&[], &mut limit);
        }
        for piece in pieces {
            let mut at = 0;
            while at < piece.len() {
                match self.writes_some(&piece[at..], &mut limit) {
                    Ok(more) => (at, count) = (at + more, count + more),
                    Err(_) if count > 0 => return Ok(count),
                    Err(why) => return Err(why),
                }
            }
        }
        Ok(count)
    }

    fn writes_some(&self, bytes: &[u8], limit: &mut Limit) -> Result<usize, c_int> {
        self.goes_on(limit, || self.conn.end.write(&*self.conn, bytes)).map_err(|why| number(&why))
    }

    /// Writes at most so many bytes of a file: 0 at its end.
    pub(crate) fn fills(&self, (file, at): (c_int, i64), most: usize, limit: &mut Limit) -> Result<usize, c_int> {
        // The lock of what goes is held meanwhile: only what is in memory already, and nothing that a thread could be cancelled in.
        let mut cached = |into: *mut u8, len: usize| {
            // SAFETY: so many bytes may be written there.
            unsafe { reads_file(file, into, len, at, libc::RWF_NOWAIT) }.map_err(|why| match why.raw_os_error() {
                Some(libc::EAGAIN | libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL) => {
                    io::ErrorKind::Unsupported.into()
                }
                _ => why,
            })
        };
        match self.goes_on(limit, || self.conn.end.fill(&*self.conn, most, &mut cached)) {
            Err(why) if why.kind() == io::ErrorKind::Unsupported => {}
            filled => return filled.map_err(|why| number(&why)),
        }
        let mut copied = [0; COPIED];
        // SAFETY: so many bytes may be written there.
        let read = unsafe { reads_file(file, copied.as_mut_ptr(), most.min(COPIED), at, 0) };
        match read.map_err(|why| number(&why))? {
            0 => Ok(0),
            count => self.writes_some(&copied[..count], limit),
        }
    }

    /// What is tried again whenever there is room.
    pub(crate) fn goes_on(
        &self,
        limit: &mut Limit,
        mut tries: impl FnMut() -> io::Result<Option<usize>>,
    ) -> io::Result<usize> {
        loop {
            if let Some(count) = tries()? {
                return Ok(count);
            }
            self.conn.full.fetch_add(1, Ordering::Release);
            // For those who wait for it already in an epoll set, edge-triggered.
            self.conn.end.arms(Bell::Room);
            if matches!(self.conn.end.is_ready(Bell::Room), Ok(Some(true))) {
                continue;
            }
            self.waits(Bell::Room, limit, None).map_err(io::Error::from_raw_os_error)?;
            self.goes_over(Bell::Room);
        }
    }
}
