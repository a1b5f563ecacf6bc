// SPDX-License-Identifier: Apache-2.0
//! The socket to the agent: whole messages with descriptors, never blocking once connected.

use std::{io, path::Path, time::Duration};

use fide_agent_api::protocol::{HELLO_FDS_MAX, MESSAGE_MAX};
use fide_sys::seqpacket::{self, ReceiveError, Wait};
use rustix::{
    fd::{AsFd, BorrowedFd, OwnedFd},
    io::Errno,
};

/// A connected `SOCK_SEQPACKET` socket.
#[derive(Debug)]
pub(crate) struct Link {
    socket: OwnedFd,
}

/// The result of a receive.
#[derive(Debug)]
pub(crate) enum Received {
    /// A message of this many bytes, and its descriptors: none if this process has too many files open for them.
    Message(usize, Vec<OwnedFd>),
    /// No message yet.
    Nothing,
    /// The agent is gone, or sent an unreadable message.
    Gone(String),
}

impl Link {
    /// Connects, as [`seqpacket::connect`] does.
    pub(crate) fn connect(path: &Path, wait: Duration) -> Result<Self, Errno> {
        seqpacket::connect(path, wait).map(|socket| Self { socket })
    }

    pub(crate) fn send(&self, message: &[u8]) -> io::Result<()> {
        seqpacket::send(&self.socket, message, &[])
    }

    pub(crate) fn receive(&self, buffer: &mut [u8; MESSAGE_MAX]) -> Received {
        match seqpacket::receive(&self.socket, buffer, HELLO_FDS_MAX, Wait::No) {
            Ok(seqpacket::Received::Message(len, fds)) => Received::Message(len, fds),
            Ok(seqpacket::Received::Nothing) => Received::Nothing,
            Ok(seqpacket::Received::End) => Received::Gone("the agent closed the connection".into()),
            // Lanes go on without; a greeting is refused by who needs what it lacks.
            Err(ReceiveError::Lost { len, .. }) => Received::Message(len, Vec::new()),
            Err(ReceiveError::Kernel(errno)) => Received::Gone(errno.to_string()),
            Err(why) => Received::Gone(format!("the agent sent {why}")),
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
