// SPDX-License-Identifier: Apache-2.0
//! The agent's Unix socket: whole messages, peer credentials, descriptors.

use std::{
    fs, io,
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::PermissionsExt,
    },
    path::{Path, PathBuf},
};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};

/// Descriptors in one message at most (the kernel's own bound is 253).
pub const FDS_MAX: usize = 250;

/// Who is at the other end, by the kernel's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    pub pid: u32,
    pub uid: u32,
}

/// Why the socket could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another agent answers there.
    #[error("an agent is already running at {0}; start with --takeover to replace it, or stop it first")]
    Running(PathBuf),
    /// Anything else.
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
}

/// The listening socket; its file goes when it is dropped, unless it was handed over.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    path: PathBuf,
    keep_file: bool,
}

impl Listener {
    /// Listens at `path`. A file left there by an agent that was killed is replaced.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn bind(path: &Path) -> Result<Self, ListenError> {
        let fail = |source: io::Error| ListenError::Io { path: path.to_owned(), source };
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).map_err(fail)?;
        }
        if connect(path).is_ok() {
            return Err(ListenError::Running(path.to_owned()));
        }
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(fail(error)),
            _ => {}
        }
        let fd = seqpacket().map_err(fail)?;
        let address = SocketAddrUnix::new(path).map_err(|error| fail(error.into()))?;
        rustix::net::bind(&fd, &address).map_err(|error| fail(error.into()))?;
        rustix::net::listen(&fd, 64).map_err(|error| fail(error.into()))?;
        // Anybody may ask; what they may do is decided by their credentials.
        fs::set_permissions(path, fs::Permissions::from_mode(0o666)).map_err(fail)?;
        Ok(Self { fd, path: path.to_owned(), keep_file: false })
    }

    /// Goes on with the socket of another agent.
    #[must_use]
    pub fn take_over(fd: OwnedFd, path: &Path) -> Self {
        Self { fd, path: path.to_owned(), keep_file: false }
    }

    /// Leaves the file for whoever takes over.
    pub fn hand_over(&mut self) {
        self.keep_file = true;
    }

    /// The next connection; `None` if there is none.
    ///
    /// # Errors
    /// The kernel's (too many open files, say).
    pub fn accept(&self) -> io::Result<Option<(OwnedFd, Credentials)>> {
        let fd = match rustix::net::accept_with(&self.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(fd) => fd,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::CONNABORTED | rustix::io::Errno::INTR) => {
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let peer = sockopt::socket_peercred(&fd)?;
        let pid = u32::try_from(peer.pid.as_raw_nonzero().get()).unwrap_or(0);
        Ok(Some((fd, Credentials { pid, uid: peer.uid.as_raw() })))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if !self.keep_file {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn seqpacket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Connects to an agent.
///
/// # Errors
/// The kernel's: `ECONNREFUSED` or `ENOENT` if none is there.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let fd = seqpacket()?;
    rustix::net::connect(&fd, &SocketAddrUnix::new(path)?)?;
    Ok(fd)
}

/// Sends one message with descriptors; never blocks.
///
/// # Errors
/// The kernel's: a peer that does not read has a full buffer (`EAGAIN`).
pub fn send(socket: BorrowedFd<'_>, message: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors for one message"));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[io::IoSlice::new(message)], &mut control, flags)?;
    Ok(())
}

/// Takes one message: its length (0: the peer has closed) and its descriptors; `None` if there is
/// none yet.
///
/// # Errors
/// The kernel's; `InvalidData` for a message longer than `buffer`.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Option<(usize, Vec<OwnedFd>)>> {
    let mut space = [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message = match rustix::net::recvmsg(socket, &mut [io::IoSliceMut::new(buffer)], &mut control, flags) {
        Ok(message) => message,
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut fds = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            fds.extend(rights);
        }
    }
    if message.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "message too long"));
    }
    Ok(Some((message.bytes, fds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_credentials_and_descriptors_arrive() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("run").join("agent.sock");
        let listener = Listener::bind(&path).expect("bound");
        assert!(listener.accept().expect("nobody").is_none());
        let client = connect(&path).expect("connected");
        let (server, who) = listener.accept().expect("accepted").expect("one");
        assert_eq!(who.pid, std::process::id());
        send(client.as_fd(), b"hello", &[listener.as_fd()]).expect("sent");
        let mut buffer = [0; 64];
        let (len, fds) = receive(server.as_fd(), &mut buffer).expect("received").expect("there");
        assert_eq!((&buffer[..len], fds.len()), (&b"hello"[..], 1));
        assert!(receive(server.as_fd(), &mut buffer).expect("empty").is_none());
        drop(client);
        assert_eq!(receive(server.as_fd(), &mut buffer).expect("closed").map(|(len, _)| len), Some(0));
    }

    #[test]
    fn a_running_agent_is_not_replaced_and_a_dead_ones_file_is() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("agent.sock");
        let mut first = Listener::bind(&path).expect("bound");
        assert!(Listener::bind(&path).expect_err("running").to_string().contains("--takeover"));
        first.hand_over();
        drop(first);
        assert!(path.exists());
        let _second = Listener::bind(&path).expect("replaced");
    }

    #[test]
    fn a_message_that_is_too_long_is_refused() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("agent.sock");
        let listener = Listener::bind(&path).expect("bound");
        let client = connect(&path).expect("connected");
        let (server, _) = listener.accept().expect("accepted").expect("one");
        send(client.as_fd(), &[7; 100], &[]).expect("sent");
        let error = receive(server.as_fd(), &mut [0; 64]).expect_err("long");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
