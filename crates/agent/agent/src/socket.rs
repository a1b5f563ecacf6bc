// SPDX-License-Identifier: Apache-2.0
//! The agent's Unix socket: clients that may send anything.

use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    time::Duration,
};

pub use fide_sys::seqpacket::Listener;
use fide_sys::seqpacket::{self, Descriptors, ReceiveError, Received, Wait, peer};
use rustix::{
    io::Errno,
    net::{Shutdown, shutdown},
};

/// Connections that may wait to be accepted. Further clients wait, or are refused by the kernel if they do
/// not block.
const BACKLOG: i32 = 1024;
/// How long a command waits for a place among them: any user can take them all, and give them back as fast
/// as the agent accepts.
const CONNECT_WAIT: Duration = Duration::from_secs(5);

/// The peer of a connection, according to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// 0: it lives in a pid namespace that this process cannot see.
    pub pid: u32,
    pub uid: u32,
    /// The user that it counts against ([`crate::subuid`]).
    pub share: u32,
}

/// Why the socket could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another agent answers there.
    #[error("an agent is already running at {0}; start with --takeover to replace it, or stop it first")]
    Running(PathBuf),
    /// Anything else.
    #[error("{path}: {why}")]
    Io { path: PathBuf, why: io::Error },
}

impl From<seqpacket::ListenError> for ListenError {
    fn from(why: seqpacket::ListenError) -> Self {
        match why {
            seqpacket::ListenError::Running(path) => Self::Running(path),
            seqpacket::ListenError::Io { path, why } => Self::Io { path, why },
        }
    }
}

/// Listens at `path`, and makes its directory. Replaces a file left there by an agent that was killed.
///
/// # Errors
/// [`ListenError`].
pub fn listen(path: &Path) -> Result<Listener, ListenError> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).map_err(|why| ListenError::Io { path: path.to_owned(), why })?;
    }
    Ok(Listener::bind(path, BACKLOG, Descriptors::Refused)?)
}

/// Goes on with the socket of another agent.
#[must_use]
pub fn take_over(fd: OwnedFd, path: &Path) -> Listener {
    Listener::take_over(fd, path, Descriptors::Refused)
}

/// The next connection; `None` if there is none.
///
/// # Errors
/// The kernel's (too many open files, say).
pub fn accept(listener: &Listener) -> io::Result<Option<(OwnedFd, Credentials)>> {
    let Some(fd) = listener.accept(Wait::No)? else { return Ok(None) };
    let who = peer(&fd)?;
    Ok(Some((fd, Credentials { pid: who.pid, uid: who.uid, share: who.uid })))
}

/// Connects to an agent. If its backlog is full, waits for a place, at most [`CONNECT_WAIT`].
///
/// # Errors
/// The kernel's: `CONNREFUSED` or `NOENT` if there is no agent, `AGAIN` if there was no place in that
/// time.
pub fn connect(path: &Path) -> Result<OwnedFd, Errno> {
    seqpacket::connect(path, CONNECT_WAIT)
}

/// A client's next message, as found by [`receive_request`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// A message of this many bytes.
    Message(usize),
    /// Longer than the buffer; the rest is lost.
    TooLong,
    /// No message yet.
    Nothing,
    /// The peer has closed, or sent an empty message.
    Closed,
    /// A message with descriptors. It stays in the socket, because taking it would mean closing them.
    Descriptors,
}

/// Takes one message of a client, who may send anything. With `peek`, a message with descriptors stays in
/// the socket; without, the socket must be one that refuses descriptors.
///
/// # Errors
/// The kernel's.
pub fn receive_request(socket: BorrowedFd<'_>, buffer: &mut [u8], peek: bool) -> io::Result<Request> {
    if peek && seqpacket::has_descriptors(socket)? == Some(true) {
        return Ok(Request::Descriptors);
    }
    match seqpacket::receive(socket, buffer, 0, Wait::No) {
        Ok(Received::Message(len, _)) => Ok(Request::Message(len)),
        Ok(Received::Nothing) => Ok(Request::Nothing),
        Ok(Received::End) => Ok(Request::Closed),
        Err(ReceiveError::TooLong { .. }) => Ok(Request::TooLong),
        Err(why) => Err(why.into()),
    }
}

/// Messages that may wait in a socket (`net.unix.max_dgram_qlen`: 10, with systemd 512), with room to
/// spare.
const QUEUED_MAX: usize = 1024;

/// Closes a client's socket unless that might wait: `Some` if descriptors are left in it, which would be
/// closed with it. For kernels that do not refuse them.
pub fn close_unless_it_waits(socket: OwnedFd) -> Option<OwnedFd> {
    // Nothing is added from here on.
    let _ = shutdown(&socket, Shutdown::Both);
    // An empty message looks like the end, so the end is not believed.
    for _ in 0..QUEUED_MAX {
        if matches!(receive_request(socket.as_fd(), &mut [0], true), Ok(Request::Descriptors)) {
            return Some(socket);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use fide_sys::seqpacket::{pair, send};
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    /// An empty message, with descriptors or none.
    fn send_empty(socket: &OwnedFd, fds: &[BorrowedFd<'_>]) {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
        sendmsg(socket, &[io::IoSlice::new(&[])], &mut control, SendFlags::NOSIGNAL).expect("sent");
    }

    #[test]
    fn messages_and_credentials_arrive() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("run").join("agent.sock");
        let listener = listen(&path).expect("bound");
        assert!(accept(&listener).expect("nobody").is_none());
        let client = connect(&path).expect("connected");
        let (server, who) = accept(&listener).expect("accepted").expect("one");
        assert_eq!(who.pid, std::process::id());
        let mut buffer = [0; 64];
        let mut next = || receive_request(server.as_fd(), &mut buffer, false).expect("received");
        assert_eq!(next(), Request::Nothing);
        send(&client, b"hello", &[]).expect("sent");
        send(&client, &[7; 100], &[]).expect("sent");
        assert_eq!([next(), next()], [Request::Message(5), Request::TooLong]);
        drop(client);
        assert_eq!(next(), Request::Closed);
    }

    #[test]
    fn message_with_descriptors_is_left_in_the_socket() {
        let (client, server) = pair().expect("pair");
        let mut buffer = [0; 64];
        let mut next = || receive_request(server.as_fd(), &mut buffer, true).expect("received");
        send(&client, b"plain", &[]).expect("sent");
        send(&client, b"with", &[client.as_fd()]).expect("sent");
        assert_eq!([next(), next(), next()], [Request::Message(5), Request::Descriptors, Request::Descriptors]);
        let (client, server) = pair().expect("pair");
        send_empty(&client, &[client.as_fd()]);
        assert_eq!(receive_request(server.as_fd(), &mut [0; 64], true).expect("received"), Request::Descriptors);
    }

    #[test]
    fn socket_with_descriptors_behind_other_messages_is_not_closed() {
        let (client, server) = pair().expect("pair");
        send(&client, b"plain", &[]).expect("sent");
        send_empty(&client, &[]);
        send(&client, b"more than a byte", &[]).expect("sent");
        send_empty(&client, &[client.as_fd()]);
        assert!(close_unless_it_waits(server).is_some());
        let (client, server) = pair().expect("pair");
        send(&client, b"plain", &[]).expect("sent");
        assert!(close_unless_it_waits(server).is_none());
        drop(client);
    }

    #[test]
    fn running_agent_is_not_replaced() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("agent.sock");
        let _first = listen(&path).expect("bound");
        let why = listen(&path).expect_err("running").to_string();
        assert!(why.contains("an agent is already running at") && why.contains("--takeover"), "{why}");
    }
}
