// SPDX-License-Identifier: Apache-2.0
//! The socket to the agent: whole messages with descriptors, never blocking once connected.

use crate::memory::now_ns;
use fide_agent_api::protocol::{HELLO_FDS_MAX, MESSAGE_MAX};
use rustix::{
    fd::{AsFd, BorrowedFd, OwnedFd},
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, SocketAddrUnix,
        SocketFlags, SocketType,
        sockopt::{self, Timeout},
    },
};
use std::{io::IoSliceMut, mem::MaybeUninit, path::Path, time::Duration};

/// A connected `SOCK_SEQPACKET` socket.
#[derive(Debug)]
pub(crate) struct Link {
    socket: OwnedFd,
}

/// The result of a receive.
#[derive(Debug)]
pub(crate) enum Received {
    /// A message of this many bytes, and its descriptors.
    Message(usize, Vec<OwnedFd>),
    /// No message yet.
    Nothing,
    /// The agent is gone, or sent an unreadable message.
    Gone(String),
}

/// Connects to the agent at `path`. Any user can connect and hang up as often as it likes. So if the agent
/// accepts nobody at the moment, this waits for a place for up to `wait`; a later client may get it first.
/// The socket does not block any more once it is connected.
///
/// # Errors
/// The kernel's: `AGAIN` if there was no place in that time.
#[doc(hidden)]
pub fn open_socket(path: &Path, wait: Duration) -> Result<OwnedFd, Errno> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let deadline_ns = now_ns().saturating_add(wait.as_nanos() as u64);
    let mut outcome = rustix::net::connect(&socket, &address);
    while matches!(outcome, Err(Errno::AGAIN | Errno::INTR)) {
        let left_ns = deadline_ns.saturating_sub(now_ns());
        if left_ns == 0 {
            return Err(Errno::AGAIN);
        }
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(Duration::from_nanos(left_ns)))?;
        rustix::io::ioctl_fionbio(&socket, false)?;
        outcome = rustix::net::connect(&socket, &address);
        rustix::io::ioctl_fionbio(&socket, true)?;
    }
    outcome.map(|()| socket)
}

impl Link {
    /// Connects, as [`open_socket`] does.
    pub(crate) fn connect(path: &Path, wait: Duration) -> Result<Self, Errno> {
        open_socket(path, wait).map(|socket| Self { socket })
    }

    pub(crate) fn send(&self, message: &[u8]) -> Result<(), Errno> {
        rustix::net::send(&self.socket, message, SendFlags::NOSIGNAL).map(drop)
    }

    pub(crate) fn receive(&self, buffer: &mut [u8; MESSAGE_MAX]) -> Received {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(HELLO_FDS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received =
            rustix::net::recvmsg(&self.socket, &mut [IoSliceMut::new(&mut buffer[..])], &mut ancillary, flags);
        let received = match received {
            Err(Errno::AGAIN | Errno::INTR) => return Received::Nothing,
            Err(errno) => return Received::Gone(errno.to_string()),
            Ok(received) => received,
        };
        let mut fds = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if received.bytes == 0 {
            return Received::Gone("the agent closed the connection".into());
        }
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Received::Gone(format!("the agent sent a message of more than {MESSAGE_MAX} bytes"));
        }
        Received::Message(received.bytes, fds)
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
