// SPDX-License-Identifier: Apache-2.0
//! A program's side: asks the monitor of its host for the other end of a connection.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use fide_shm::region::RegionError;
use fide_sys::seqpacket::{self, send};
use rustix::net::{Shutdown, shutdown};

use super::{
    Refused, WORDS,
    wire::{Answer, FDS_MAX, Malformed, Request, receive},
};
use crate::shm::ShmWindow;

/// How long a program waits for a place among those that wait to be accepted.
pub const CONNECT_WAIT: Duration = Duration::from_secs(5);

/// The number of the next question, also of another monitor: what one is told late is none of the other's.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// A connection to the monitor, for all threads of a program.
#[derive(Debug)]
pub struct Asks {
    socket: OwnedFd,
}

/// What the monitor has answered to a question.
#[derive(Debug)]
pub enum Told {
    /// Both ends were sent this memory. The other one may not use it yet, or never.
    Paired {
        id: u32,
        window: ShmWindow<WORDS>,
    },
    Refused {
        id: u32,
        why: Refused,
    },
}

/// The monitor is gone, or not one.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    #[error("asking the monitor: {0}")]
    Io(io::Error),
    #[error("the monitor has sent {0}")]
    Malformed(Malformed),
    #[error(
        "the monitor has answered question {id} with {fds} descriptors, where {FDS_MAX} is needed: has this program too many files open?"
    )]
    Descriptors { id: u32, fds: usize },
    #[error("the memory that the monitor has sent for question {id}: {why}")]
    Memory { id: u32, why: RegionError },
}

impl AskError {
    /// The question whose memory this program could not take: further answers may come. None: there is nothing to hear any more.
    #[must_use]
    pub fn question(&self) -> Option<u32> {
        match self {
            Self::Descriptors { id, .. } | Self::Memory { id, .. } => Some(*id),
            Self::Io(_) | Self::Malformed(_) => None,
        }
    }
}

impl Asks {
    /// Connects to the monitor that listens there. If too many wait for it, waits for a place, at most [`CONNECT_WAIT`].
    ///
    /// # Errors
    /// The kernel's: `NotFound` or `ConnectionRefused` if there is none, `WouldBlock` if there was no place in that time.
    pub fn connect(path: &Path) -> io::Result<Self> {
        Self::connect_within(path, CONNECT_WAIT)
    }

    /// As [`Asks::connect`], with another longest wait; of zero it is none.
    ///
    /// # Errors
    /// As [`Asks::connect`].
    pub fn connect_within(path: &Path, wait: Duration) -> io::Result<Self> {
        Ok(Self { socket: seqpacket::connect(path, wait)? })
    }

    /// With another descriptor, the first free one from a number on: out of the way of a program that does not know of it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn moved(self, least: i32) -> io::Result<Self> {
        Ok(Self { socket: rustix::io::fcntl_dupfd_cloexec(&self.socket, least)? })
    }

    /// Asks for the other end of a TCP socket's connection, and returns the number of the question. The monitor keeps the socket until
    /// it has answered, the question is taken back, or this program ends. It has taken `SO_LINGER` from it then.
    ///
    /// # Errors
    /// The kernel's: `WouldBlock` if the monitor is slow. Nothing was asked.
    pub fn ask(&self, socket: impl AsFd) -> io::Result<u32> {
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        send(&self.socket, &Request::Ask { id }.write(), &[socket.as_fd()])?;
        Ok(id)
    }

    /// Takes a question back: before a socket is closed, as the other end does not see that while the monitor keeps it.
    ///
    /// # Errors
    /// As [`Asks::ask`].
    pub fn cancel(&self, id: u32) -> io::Result<()> {
        send(&self.socket, &Request::Cancel { id }.write(), &[])
    }

    /// As [`Asks::cancel`]. If the monitor is too slow to be told, this connection to it ends instead, with which it gives back all that it
    /// keeps: it would keep the socket for as long as this program runs.
    pub fn cancel_or_end(&self, id: u32) {
        if self.cancel(id).is_err() {
            let _ = shutdown(&self.socket, Shutdown::Both);
        }
    }

    /// Waits for the next answer. None: the monitor has ended.
    ///
    /// # Errors
    /// [`AskError`].
    pub fn told(&self) -> Result<Option<Told>, AskError> {
        let Some(received) = receive(&self.socket, FDS_MAX).map_err(|why| AskError::Io(why.into()))? else {
            return Ok(None);
        };
        Ok(Some(match Answer::read(received.bytes()).map_err(AskError::Malformed)? {
            Answer::Refused { id, why } => Told::Refused { id, why },
            Answer::Paired { id, is_first } => {
                let fds = <[OwnedFd; FDS_MAX]>::try_from(received.fds);
                let [memory] = fds.map_err(|fds| AskError::Descriptors { id, fds: fds.len() })?;
                let window = ShmWindow::open(memory, is_first).map_err(|why| AskError::Memory { id, why })?;
                Told::Paired { id, window }
            }
        }))
    }
}

/// Readable when there is an answer.
impl AsFd for Asks {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
