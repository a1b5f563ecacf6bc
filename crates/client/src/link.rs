// SPDX-License-Identifier: Apache-2.0
//! The socket to the agent: whole messages, never blocking, descriptors with them.

use crate::protocol::{HELLO_FDS, MESSAGE_MAX};
use rustix::{
    fd::{AsFd, BorrowedFd, OwnedFd},
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, SocketAddrUnix,
        SocketFlags, SocketType,
    },
};
use std::{io::IoSliceMut, mem::MaybeUninit, path::Path};

/// A connected `SOCK_SEQPACKET` socket.
#[derive(Debug)]
pub(crate) struct Link {
    socket: OwnedFd,
}

/// What a receive gave.
#[derive(Debug)]
pub(crate) enum Received {
    /// A message of this many bytes, and its descriptors.
    Message(usize, Vec<OwnedFd>),
    /// Nothing there yet.
    Nothing,
    /// The agent is gone, or sent what nobody can read.
    Gone(String),
}

impl Link {
    /// Connects; does not wait (a full backlog is `EAGAIN`).
    pub(crate) fn connect(path: &Path) -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Self { socket })
    }

    pub(crate) fn send(&self, message: &[u8]) -> Result<(), Errno> {
        rustix::net::send(&self.socket, message, SendFlags::NOSIGNAL).map(drop)
    }

    pub(crate) fn receive(&self, buffer: &mut [u8; MESSAGE_MAX]) -> Received {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(HELLO_FDS))];
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
