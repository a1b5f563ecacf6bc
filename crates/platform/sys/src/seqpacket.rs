// SPDX-License-Identifier: Apache-2.0
//! Whole messages, with descriptors or none, between programs of one host: Unix sockets of type `SOCK_SEQPACKET`.
//!
//! - [`Listener`] and [`connect`]: the two ends of a connection.
//! - [`send`] and [`receive`]: one message, never a part of one.
//! - [`peer`]: who has connected, as the kernel has it.
//!
//! All sockets made here are close-on-exec and do not block; [`Wait`] says how long a call waits.
//!
//! **Invariant: no message is empty.** The kernel reports an empty message as it reports the end of a connection, so that both count
//! as the end.

use std::{
    fmt, io,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
    },
};

mod connection;
mod peer;

pub use connection::{Descriptors, ListenError, Listener, address, connect};
pub use peer::{Peer, groups, peer, peer_lives};

/// Descriptors in one message at most, by the kernel (`SCM_MAX_FD`).
pub const FDS_MAX: usize = 253;
/// Bytes of control data that hold them.
const CONTROL_BYTES: usize = rustix::cmsg_space!(ScmRights(FDS_MAX));
/// Every socket of this module.
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// How long a call waits for what is not there yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// At most this long.
    For(Duration),
    /// Until it is there.
    Forever,
}

/// The outcome of [`receive`].
#[derive(Debug)]
pub enum Received {
    /// A message of this many bytes, and the descriptors that came with it: close-on-exec.
    Message(usize, Vec<OwnedFd>),
    /// No message yet.
    Nothing,
    /// The other end has closed, or sent an empty message.
    End,
}

/// Why there is no message. What came with it is closed, and the next one can be received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveError {
    /// The buffer holds the first bytes of the message.
    #[error("a message of more than {max} bytes")]
    TooLong { max: usize },
    /// More descriptors than the caller takes.
    #[error("a message with {}", MoreThan(*max))]
    TooMany { max: usize },
    /// The kernel has delivered some of the descriptors only. The buffer holds the message, of `len` bytes: a caller that can do
    /// without descriptors goes on.
    #[error(
        "a message of whose descriptors only {taken} could be taken: this process has as many files open as it may \
         (RLIMIT_NOFILE); raise that limit"
    )]
    Lost { len: usize, taken: usize },
    /// The kernel's.
    #[error(transparent)]
    Kernel(#[from] Errno),
}

struct MoreThan(usize);

impl fmt::Display for MoreThan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("descriptors, where none may come"),
            max => write!(f, "more than {max} descriptors"),
        }
    }
}

impl From<ReceiveError> for io::Error {
    fn from(why: ReceiveError) -> Self {
        match why {
            ReceiveError::Kernel(errno) => errno.into(),
            why => Self::new(io::ErrorKind::InvalidData, why),
        }
    }
}

/// Two ends of a connection without a name.
///
/// # Errors
/// The kernel's.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?)
}

/// Sends one message with descriptors, [`FDS_MAX`] at most; never waits.
///
/// # Errors
/// The kernel's: `WouldBlock` if the other end does not read, `BrokenPipe` if it has closed. `InvalidInput` for an empty message, or
/// too many descriptors.
pub fn send(socket: impl AsFd, message: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let invalid = |why: String| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    if message.is_empty() {
        return invalid("an empty message, which the other end would take for the end of the connection".to_owned());
    }
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if fds.len() > FDS_MAX || !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return invalid(format!("{} descriptors for one message, which takes {FDS_MAX} at most", fds.len()));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[io::IoSlice::new(message)], &mut control, flags)?;
    Ok(())
}

/// Takes the next message, with `fds_max` descriptors at most ([`FDS_MAX`] at most). [`Received::Nothing`] only after the whole wait.
///
/// # Errors
/// [`ReceiveError`].
pub fn receive(socket: impl AsFd, buffer: &mut [u8], fds_max: usize, wait: Wait) -> Result<Received, ReceiveError> {
    let until = Until::of(wait);
    loop {
        match take(socket.as_fd(), buffer, fds_max.min(FDS_MAX)) {
            Err(ReceiveError::Kernel(Errno::AGAIN)) => {
                if until.readable(socket.as_fd())?.is_empty() {
                    return Ok(Received::Nothing);
                }
            }
            Err(ReceiveError::Kernel(Errno::INTR)) => {}
            // The other end has closed before it had read everything. The kernel says so once, and what it had sent follows.
            Err(ReceiveError::Kernel(Errno::CONNRESET)) => {}
            done => return done,
        }
    }
}

fn take(socket: BorrowedFd<'_>, buffer: &mut [u8], fds_max: usize) -> Result<Received, ReceiveError> {
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    // What does not fit never becomes a descriptor of this process. For none, there must not even be room for a header.
    let bytes = if fds_max == 0 { 0 } else { rustix::cmsg_space!(ScmRights(fds_max)) };
    let mut control = RecvAncillaryBuffer::new(&mut space[..bytes]);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let message = recvmsg(socket, &mut [io::IoSliceMut::new(buffer)], &mut control, flags)?;
    let mut fds = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            fds.extend(rights);
        }
    }
    let is_cut = message.flags.contains(ReturnFlags::CTRUNC);
    // Room is rounded up: one or two more may fit.
    if fds.len() > fds_max || is_cut && fds.len() == fds_max {
        return Err(ReceiveError::TooMany { max: fds_max });
    }
    if is_cut {
        return Err(ReceiveError::Lost { len: message.bytes, taken: fds.len() });
    }
    if message.flags.contains(ReturnFlags::TRUNC) {
        return Err(ReceiveError::TooLong { max: buffer.len() });
    }
    Ok(if message.bytes == 0 { Received::End } else { Received::Message(message.bytes, fds) })
}

/// Whether the next message comes with descriptors; it is left where it is. `None` if there is none yet.
///
/// # Errors
/// The kernel's.
pub fn has_descriptors(socket: impl AsFd) -> io::Result<Option<bool>> {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    loop {
        // Without room for descriptors, the kernel only reports that there are some.
        let mut control = RecvAncillaryBuffer::default();
        return match recvmsg(&socket, &mut [io::IoSliceMut::new(&mut [0])], &mut control, flags) {
            Ok(message) => Ok(Some(message.flags.contains(ReturnFlags::CTRUNC))),
            Err(Errno::AGAIN) => Ok(None),
            Err(Errno::INTR | Errno::CONNRESET) => continue,
            Err(errno) => Err(errno.into()),
        };
    }
}

/// The end of a wait.
enum Until {
    Now,
    At(Instant),
    Never,
}

impl Until {
    fn of(wait: Wait) -> Self {
        match wait {
            Wait::No => Self::Now,
            // A wait that no clock holds has no end.
            Wait::For(limit) => Instant::now().checked_add(limit).map_or(Self::Never, Self::At),
            Wait::Forever => Self::Never,
        }
    }

    /// Waits until there is something to read or to accept, or the end, and returns which. Empty: neither in this time.
    fn readable(&self, socket: BorrowedFd<'_>) -> Result<PollFlags, Errno> {
        loop {
            let left = match self {
                Self::Now => return Ok(PollFlags::empty()),
                Self::At(end) => Some(Timespec::try_from(end.saturating_duration_since(Instant::now())).unwrap_or(MAX)),
                Self::Never => None,
            };
            let mut found = [PollFd::new(&socket, PollFlags::IN)];
            match poll(&mut found, left.as_ref()) {
                Err(Errno::INTR) => {}
                ready => return ready.map(|_| found[0].revents()),
            }
        }
    }
}

/// More than a clock counts to.
const MAX: Timespec = Timespec { tv_sec: i64::MAX, tv_nsec: 0 };

#[cfg(test)]
mod tests;
