// SPDX-License-Identifier: Apache-2.0
//! `splice` between a connection and a pipe.
//!
//! The kernel holds the pipe meanwhile; here other threads may be at it. What one of them takes, or has no room left for, is not lost: bytes
//! leave the ring once the pipe has them, and the pipe once there is room for them.

use std::io;

use libc::{c_int, c_uint, size_t, ssize_t};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FileType, OFlags},
};

use fide_rack::window::Bell;

use crate::{
    bytes::{COUNT_MAX, Call, Limit, number, returns},
    conn::{Conn, borrowed, carried, read_from},
    peers, real,
};

/// All flags that there are.
const FLAGS: c_uint = libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;
/// Bytes that are spliced at once where they go over TCP: a socket that has room takes them without a wait.
const SPLICED: usize = 16 << 10;
/// Bytes for which a pipe has room if it has any (`PIPE_BUF`).
const PIECE: usize = 4096;

/// Whether this is the end of a pipe that is read (`O_RDONLY`) or written (`O_WRONLY`). Another one has an error, which the kernel tells.
fn is_pipe(fd: c_int, mode: OFlags) -> bool {
    let is_open = |flags: OFlags| flags & OFlags::ACCMODE == mode || flags & OFlags::ACCMODE == OFlags::RDWR;
    fd >= 0
        && rustix::fs::fstat(borrowed(fd)).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo)
        && rustix::fs::fcntl_getfl(borrowed(fd)).is_ok_and(is_open)
}

/// A pipe, and how a call deals with it.
struct Pipe {
    fd: c_int,
    waits: bool,
}

impl Pipe {
    fn of(fd: c_int, flags: c_uint) -> Result<Self, c_int> {
        let of_pipe = rustix::fs::fcntl_getfl(borrowed(fd)).map_err(|why| why.raw_os_error())?;
        Ok(Self { fd, waits: flags & libc::SPLICE_F_NONBLOCK == 0 && !of_pipe.contains(OFlags::NONBLOCK) })
    }

    fn polls(&self, events: PollFlags, waits: bool) -> Result<PollFlags, c_int> {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::from_borrowed_fd(borrowed(self.fd), events)];
        poll(&mut fds, (!waits).then_some(&now)).map_err(|why| why.raw_os_error())?;
        Ok(fds[0].revents())
    }

    /// Waits for room, but not if the call does not.
    fn has_room(&self) -> Result<(), c_int> {
        let seen = self.polls(PollFlags::OUT, self.waits)?;
        if seen.contains(PollFlags::ERR) {
            // Nobody reads it any more.
            // SAFETY: it takes a number.
            unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGPIPE) };
            return Err(libc::EPIPE);
        }
        if seen.contains(PollFlags::OUT) { Ok(()) } else { Err(libc::EAGAIN) }
    }

    /// Bytes that are there: waits for some, but not if the call does not. 0: nobody writes any more.
    fn count(&self) -> Result<usize, c_int> {
        loop {
            let count = rustix::io::ioctl_fionread(borrowed(self.fd)).map_err(|why| why.raw_os_error())?;
            if count > 0 {
                return Ok(usize::try_from(count).unwrap_or(usize::MAX));
            }
            let seen = self.polls(PollFlags::IN, self.waits)?;
            match (seen.contains(PollFlags::IN), seen.contains(PollFlags::HUP)) {
                (true, _) => {}
                (false, true) => return Ok(0),
                (false, false) => return Err(libc::EAGAIN),
            }
        }
    }

    /// Writes to it, without a wait. Like what follows it runs under a lock: a thread is not cancelled in it, as in functions of the C
    /// library.
    ///
    /// # Safety
    /// So many bytes are there.
    unsafe fn write(&self, from: *const u8, len: usize) -> io::Result<usize> {
        let piece = libc::iovec { iov_base: from.cast_mut().cast(), iov_len: len };
        // SAFETY: the caller's. The upper half of the place is for 32 bits.
        let mut count = unsafe {
            libc::syscall(libc::SYS_pwritev2, self.fd, &raw const piece, 1, -1_i64, -1_i64, libc::RWF_NOWAIT)
        };
        if count < 0 && real::errno() == libc::EOPNOTSUPP {
            if !self.polls(PollFlags::OUT, false).is_ok_and(|seen| !seen.is_empty()) {
                return Err(io::Error::from_raw_os_error(libc::EAGAIN));
            }
            // SAFETY: as above.
            count = unsafe { libc::syscall(libc::SYS_write, self.fd, from, len.min(PIECE)) };
        }
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    /// Reads from it, without a wait.
    ///
    /// # Safety
    /// So many bytes may be written there.
    unsafe fn read(&self, into: *mut u8, len: usize) -> io::Result<usize> {
        let piece = libc::iovec { iov_base: into.cast(), iov_len: len };
        // SAFETY: as above.
        let mut count =
            unsafe { libc::syscall(libc::SYS_preadv2, self.fd, &raw const piece, 1, -1_i64, -1_i64, libc::RWF_NOWAIT) };
        if count < 0 && real::errno() == libc::EOPNOTSUPP {
            if !self.polls(PollFlags::IN, false).is_ok_and(|seen| !seen.is_empty()) {
                return Err(io::Error::from_raw_os_error(libc::EAGAIN));
            }
            // SAFETY: as above.
            count = unsafe { libc::syscall(libc::SYS_read, self.fd, into, len) };
        }
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    /// Has the kernel splice what is there to a socket: none if it would have to wait. A socket whose calls wait has room first.
    fn send(&self, call: &Call, most: usize, flags: c_uint) -> io::Result<Option<usize>> {
        let socket = call.conn.fd();
        let mut fds = [PollFd::from_borrowed_fd(borrowed(socket), PollFlags::OUT)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll(&mut fds, Some(&now))? == 0 {
            return Ok(None);
        }
        let (none, flags) = (std::ptr::null_mut::<i64>(), flags | libc::SPLICE_F_NONBLOCK);
        // SAFETY: there are no places.
        let count = unsafe { libc::syscall(libc::SYS_splice, self.fd, none, socket, none, most.min(SPLICED), flags) };
        match usize::try_from(count) {
            Ok(count) => Ok(Some(count)),
            Err(_) if real::errno() == libc::EAGAIN => Ok(None),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }
}

impl Call {
    /// Into a pipe.
    fn drains(&self, pipe: &Pipe, most: usize) -> Result<usize, c_int> {
        pipe.has_room()?;
        let _read = self.counts_read();
        let (mut count, mut limit): (_, Limit) = (0, None);
        while count < most {
            // It has no room, which is no error of the connection.
            let mut is_full = false;
            let mut writes = |from: *const u8, len: usize| {
                // SAFETY: so many bytes are there.
                let written = unsafe { pipe.write(from, len) };
                is_full = written.as_ref().is_err_and(|why| why.raw_os_error() == Some(libc::EAGAIN));
                written
            };
            match self.conn.end.drain(&*self.conn, most - count, &mut writes).map_err(|why| number(&why)) {
                Ok(Some(0)) => break,
                Ok(Some(more)) => count += more,
                Ok(None) | Err(_) if count > 0 => break,
                Ok(None) => {
                    self.waits(Bell::Message, &mut limit, None)?;
                    self.goes_over(Bell::Message);
                }
                Err(_) if is_full && pipe.waits => pipe.has_room()?,
                Err(why) => return Err(why),
            }
        }
        Ok(count)
    }

    /// Out of a pipe.
    fn pours(&self, pipe: &Pipe, most: usize, flags: c_uint) -> Result<usize, c_int> {
        let (mut count, mut limit): (_, Limit) = (0, None);
        while count < most {
            let there = match pipe.count() {
                Ok(0) => break,
                Err(_) if count > 0 => break,
                there => there?,
            };
            match self.pours_some(pipe, there.min(most - count), flags, &mut limit) {
                Ok(more) => count += more,
                Err(_) if count > 0 => break,
                why => return self.signals(why),
            }
            if count > 0 && rustix::io::ioctl_fionread(borrowed(pipe.fd)).is_ok_and(|left| left == 0) {
                break;
            }
        }
        Ok(count)
    }

    /// 0: another thread has read the pipe meanwhile.
    fn pours_some(&self, pipe: &Pipe, most: usize, flags: c_uint, limit: &mut Limit) -> Result<usize, c_int> {
        let poured = self.goes_on(limit, || {
            // SAFETY: so many bytes may be written there.
            let mut reads = |into: *mut u8, len: usize| match unsafe { pipe.read(into, len) } {
                Err(why) if why.raw_os_error() == Some(libc::EAGAIN) => Ok(0),
                read => read,
            };
            match self.conn.end.fill(&*self.conn, most, &mut reads) {
                Err(why) if why.kind() == io::ErrorKind::Unsupported => {
                    self.conn.end.send(&*self.conn, || pipe.send(self, most, flags))
                }
                poured => poured,
            }
        });
        poured.map_err(|why| number(&why))
    }
}

/// One that goes through this library, into a pipe or out of one; none: the kernel does it, or says what is wrong.
fn spliced(from: c_int, to: c_int) -> Option<(std::sync::Arc<Conn>, bool)> {
    match read_from(from) {
        Some(conn) => is_pipe(to, OFlags::WRONLY).then_some((conn, true)),
        None => carried(to).filter(|_| is_pipe(from, OFlags::RDONLY)).map(|conn| (conn, false)),
    }
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn splice(
    from: c_int,
    from_at: *mut i64,
    to: c_int,
    to_at: *mut i64,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    // Neither has a place.
    let is_wrong = len == 0 || flags & !FLAGS != 0 || !from_at.is_null() || !to_at.is_null();
    let Some((conn, is_read)) = (!is_wrong).then(|| spliced(from, to)).flatten() else {
        // SAFETY: the caller's.
        let count = unsafe { real::splice(from, from_at, to, to_at, len, flags) };
        // It says nothing of which of them has failed.
        return peers::kernel(to, peers::kernel(from, count));
    };
    let most = len.min(COUNT_MAX);
    if is_read {
        let call = Call { conn, flags: 0 };
        return returns(from, || call.drains(&Pipe::of(to, flags)?, most));
    }
    let call = Call { conn, flags: 0 };
    returns(to, || call.pours(&Pipe::of(from, flags)?, most, flags))
}
