// SPDX-License-Identifier: Apache-2.0
//! The agent's Unix socket: whole messages, peer credentials, descriptors.

use std::{
    fs, io,
    mem::MaybeUninit,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use fide_client::open_socket;
use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
    },
};

/// Descriptors in one message at most (the kernel's own bound is 253).
pub const FDS_MAX: usize = 250;
/// Connections that may wait to be accepted. Further clients wait, or are refused by the kernel if they do
/// not block.
const BACKLOG: i32 = 1024;
/// How long a command waits for a place among them: any user can take them all, and give them back as fast
/// as the agent accepts.
const CONNECT_WAIT: Duration = Duration::from_secs(5);
/// Bytes of a socket's path at most (unix(7)).
const PATH_MAX_BYTES: usize = 107;
/// `SO_PASSRIGHTS` (Linux 6.16).
const SO_PASSRIGHTS: libc::c_int = 83;

/// `SO_PEERGROUPS` (Linux 4.13).
const SO_PEERGROUPS: libc::c_int = 59;
/// Groups that a process can have.
const GROUPS_MAX: usize = 65_536;

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

/// Locks out other agents that are about to listen at `path`, waiting for them. The file stays, and only
/// the agent's user can use it.
fn alone(path: &Path) -> io::Result<fs::File> {
    let mut lock = path.as_os_str().to_owned();
    lock.push(".lock");
    let file = fs::OpenOptions::new().create(true).append(true).mode(0o600).open(lock)?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)?;
    Ok(file)
}

/// The address of a socket at `path`.
///
/// # Errors
/// [`ListenError::Io`] if the path is longer than the kernel takes.
pub(crate) fn address(path: &Path) -> Result<SocketAddrUnix, ListenError> {
    SocketAddrUnix::new(path).map_err(|errno| {
        let why = match errno {
            Errno::NAMETOOLONG => io::Error::new(
                io::ErrorKind::InvalidFilename,
                format!("its path is longer than the {PATH_MAX_BYTES} bytes that a socket can have"),
            ),
            errno => errno.into(),
        };
        ListenError::Io { path: path.to_owned(), why }
    })
}

/// The listening socket; its file is removed when it is dropped, unless it was handed over.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    path: PathBuf,
    /// The file that it is bound to. No other file can have its number while the socket is open.
    file: Option<(u64, u64)>,
    keep_file: bool,
    takes_descriptors: bool,
}

impl Listener {
    /// Listens at `path`. Replaces a file left there by an agent that was killed.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn bind(path: &Path) -> Result<Self, ListenError> {
        let fail = |why: io::Error| ListenError::Io { path: path.to_owned(), why };
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).map_err(fail)?;
        }
        // If two start at once, the second finds the first one listening.
        let _alone = alone(path).map_err(fail)?;
        match open_socket(path, Duration::ZERO) {
            // An agent whose backlog is full listens, too.
            Ok(_) | Err(Errno::AGAIN) => return Err(ListenError::Running(path.to_owned())),
            Err(Errno::NOENT) => {}
            Err(Errno::CONNREFUSED) => match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(fail(error)),
                _ => {}
            },
            // Whatever this is, it is not an agent that was killed.
            Err(errno) => return Err(fail(errno.into())),
        }
        let fd = seqpacket().map_err(fail)?;
        let address = address(path)?;
        rustix::net::bind(&fd, &address).map_err(|error| fail(error.into()))?;
        // Before any client can connect, because connections inherit it.
        let takes_descriptors = !refuse_descriptors(fd.as_fd());
        rustix::net::listen(&fd, BACKLOG).map_err(|error| fail(error.into()))?;
        // Any user may ask; its credentials decide what it may do.
        fs::set_permissions(path, fs::Permissions::from_mode(0o666)).map_err(fail)?;
        Ok(Self { fd, path: path.to_owned(), file: file_at(path), keep_file: false, takes_descriptors })
    }

    /// Goes on with the socket of another agent.
    #[must_use]
    pub fn take_over(fd: OwnedFd, path: &Path) -> Self {
        let takes_descriptors = !refuse_descriptors(fd.as_fd());
        Self { fd, path: path.to_owned(), file: file_at(path), keep_file: false, takes_descriptors }
    }

    /// Whether clients can send descriptors: this kernel has no way to refuse them (it is older than Linux
    /// 6.16).
    #[must_use]
    pub fn takes_descriptors(&self) -> bool {
        self.takes_descriptors
    }

    /// Leaves the file for the agent that takes over.
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
        let peer = credentials(fd.as_fd())?;
        Ok(Some((fd, Credentials { pid: u32::try_from(peer.pid).unwrap_or(0), uid: peer.uid, share: peer.uid })))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Another agent may have replaced it since: a file that is not its own stays.
        if !self.keep_file && self.file.is_some() && self.file == file_at(&self.path) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Device and number of the file at `path`.
fn file_at(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// The peer of a connected socket. Not by rustix, whose pid cannot be 0.
fn credentials(fd: BorrowedFd<'_>) -> io::Result<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = libc::socklen_t::try_from(size_of_val(&peer)).expect("small");
    // SAFETY: `peer` is writable for `len` bytes, and both outlive the call.
    let got = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut peer).cast(), &raw mut len)
    };
    if got == 0 { Ok(peer) } else { Err(io::Error::last_os_error()) }
}

/// The groups of the process that opened a connection, as of that moment: its own and the supplementary
/// ones.
#[must_use]
pub fn groups(fd: BorrowedFd<'_>) -> Vec<u32> {
    let mut groups = vec![0u32; GROUPS_MAX];
    let mut len = libc::socklen_t::try_from(size_of_val(&groups[..])).expect("256 KiB");
    // SAFETY: `groups` is writable for `len` bytes, and both outlive the call.
    let more = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, SO_PEERGROUPS, groups.as_mut_ptr().cast(), &raw mut len)
    };
    groups.truncate(if more == 0 { len as usize / size_of::<u32>() } else { 0 });
    groups.extend(credentials(fd).map(|peer| peer.gid));
    groups
}

/// Has the kernel refuse descriptors that are sent to this socket, or to those accepted from it: closing
/// one may wait for its sender (a socket that lingers, a file of a FUSE server). `false` before Linux 6.16.
fn refuse_descriptors(fd: BorrowedFd<'_>) -> bool {
    let off: libc::c_int = 0;
    let len = libc::socklen_t::try_from(size_of_val(&off)).expect("small");
    // SAFETY: the value outlives the call, and its size is given.
    unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, (&raw const off).cast(), len) == 0 }
}

fn seqpacket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Connects to an agent. If its backlog is full, waits for a place, at most [`CONNECT_WAIT`].
///
/// # Errors
/// The kernel's: `ECONNREFUSED` or `ENOENT` if there is no agent, `EAGAIN` if there was no place in that
/// time.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    Ok(open_socket(path, CONNECT_WAIT)?)
}

/// Sends one message with descriptors; never blocks.
///
/// # Errors
/// The kernel's: the buffer of a peer that does not read is full (`EAGAIN`).
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
    if peek {
        match take(socket, &mut [0], RecvFlags::PEEK)? {
            None => return Ok(Request::Nothing),
            // Without room for descriptors, the kernel only reports that there are some.
            Some((_, flags)) if flags.contains(ReturnFlags::CTRUNC) => return Ok(Request::Descriptors),
            Some(_) => {}
        }
    }
    Ok(match take(socket, buffer, RecvFlags::empty())? {
        None => Request::Nothing,
        Some((0, _)) => Request::Closed,
        Some((_, flags)) if flags.contains(ReturnFlags::TRUNC) => Request::TooLong,
        Some((len, _)) => Request::Message(len),
    })
}

/// One message without its descriptors.
fn take(socket: BorrowedFd<'_>, buffer: &mut [u8], flags: RecvFlags) -> io::Result<Option<(usize, ReturnFlags)>> {
    let mut control = RecvAncillaryBuffer::default();
    let flags = flags | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    match rustix::net::recvmsg(socket, &mut [io::IoSliceMut::new(buffer)], &mut control, flags) {
        Ok(message) => Ok(Some((message.bytes, message.flags))),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Messages that may wait in a socket (`net.unix.max_dgram_qlen`: 10, with systemd 512), with room to
/// spare.
const QUEUED_MAX: usize = 1024;

/// Closes a client's socket unless that might wait: `Some` if descriptors are left in it, which would be
/// closed with it. For kernels that do not refuse them.
pub fn close_unless_it_waits(socket: OwnedFd) -> Option<OwnedFd> {
    // Nothing is added from here on.
    let _ = rustix::net::shutdown(&socket, Shutdown::Both);
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
    use super::*;

    fn try_connect(path: &Path) -> Result<OwnedFd, Errno> {
        open_socket(path, Duration::ZERO)
    }

    #[test]
    fn messages_credentials_and_descriptors_arrive() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("run").join("agent.sock");
        let listener = Listener::bind(&path).expect("bound");
        assert!(listener.accept().expect("nobody").is_none());
        let client = connect(&path).expect("connected");
        let (server, who) = listener.accept().expect("accepted").expect("one");
        assert_eq!(who.pid, std::process::id());
        send(client.as_fd(), b"hello", &[]).expect("sent");
        let mut buffer = [0; 64];
        let (len, fds) = receive(server.as_fd(), &mut buffer).expect("received").expect("there");
        assert_eq!((&buffer[..len], fds.len()), (&b"hello"[..], 0));
        assert!(receive(server.as_fd(), &mut buffer).expect("empty").is_none());
        drop(client);
        assert_eq!(receive(server.as_fd(), &mut buffer).expect("closed").map(|(len, _)| len), Some(0));
    }

    fn pair() -> (OwnedFd, OwnedFd) {
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("pair")
    }

    #[test]
    fn message_with_descriptors_is_left_in_the_socket() {
        let (client, server) = pair();
        let mut buffer = [0; 64];
        let mut next = || receive_request(server.as_fd(), &mut buffer, true).expect("received");
        send(client.as_fd(), b"plain", &[]).expect("sent");
        send(client.as_fd(), b"with", &[client.as_fd()]).expect("sent");
        assert_eq!([next(), next(), next()], [Request::Message(5), Request::Descriptors, Request::Descriptors]);
        let (client, server) = pair();
        send(client.as_fd(), b"", &[client.as_fd()]).expect("sent");
        assert_eq!(receive_request(server.as_fd(), &mut [0; 64], true).expect("received"), Request::Descriptors);
    }

    #[test]
    fn socket_with_descriptors_behind_other_messages_is_not_closed() {
        let (client, server) = pair();
        for message in [&b"plain"[..], b"", b"more than a byte"] {
            send(client.as_fd(), message, &[]).expect("sent");
        }
        send(client.as_fd(), b"", &[client.as_fd()]).expect("sent");
        assert!(close_unless_it_waits(server).is_some());
        let (client, server) = pair();
        send(client.as_fd(), b"plain", &[]).expect("sent");
        assert!(close_unless_it_waits(server).is_none());
        drop(client);
    }

    #[test]
    fn descriptors_are_refused_where_the_kernel_can() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("agent.sock");
        let listener = Listener::bind(&path).expect("bound");
        let client = connect(&path).expect("connected");
        let (server, _) = listener.accept().expect("accepted").expect("one");
        assert_eq!(send(client.as_fd(), b"with", &[client.as_fd()]).is_err(), !listener.takes_descriptors());
        // In the other direction they arrive.
        send(server.as_fd(), b"with", &[listener.as_fd()]).expect("sent");
        let (len, fds) = receive(client.as_fd(), &mut [0; 64]).expect("received").expect("there");
        assert_eq!((len, fds.len()), (4, 1));
    }

    #[test]
    fn only_a_dead_agents_socket_file_is_replaced() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("agent.sock");
        let mut first = Listener::bind(&path).expect("bound");
        assert!(Listener::bind(&path).expect_err("running").to_string().contains("--takeover"));
        first.hand_over();
        drop(first);
        assert!(path.exists());
        let _second = Listener::bind(&path).expect("replaced");
    }

    /// A listener at `path` with a full backlog, and a client that waits there.
    fn crowded(path: &Path) -> (OwnedFd, Vec<OwnedFd>) {
        let listener = seqpacket().expect("a socket");
        rustix::net::bind(&listener, &SocketAddrUnix::new(path).expect("short")).expect("bound");
        rustix::net::listen(&listener, 0).expect("listens");
        (listener, std::iter::from_fn(|| try_connect(path).ok()).collect())
    }

    #[test]
    fn agent_with_a_full_backlog_is_not_replaced() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("agent.sock");
        let (_listener, crowd) = crowded(&path);
        assert!(!crowd.is_empty());
        let before = file_at(&path);
        assert!(matches!(Listener::bind(&path), Err(ListenError::Running(_))));
        assert_eq!(file_at(&path), before);
    }

    #[test]
    fn other_files_at_the_path_are_not_replaced() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("agent.sock");
        let other = std::os::unix::net::UnixListener::bind(&path).expect("a stream socket");
        let before = file_at(&path);
        assert!(matches!(Listener::bind(&path), Err(ListenError::Io { .. })));
        assert_eq!(file_at(&path), before);
        drop(other);
    }

    #[test]
    fn ending_agent_removes_only_its_own_file() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("agent.sock");
        let first = Listener::bind(&path).expect("bound");
        fs::remove_file(&path).expect("removed");
        let second = Listener::bind(&path).expect("bound");
        drop(first);
        assert!(try_connect(&path).is_ok(), "the second one's is there");
        let third = Listener::take_over(second.as_fd().try_clone_to_owned().expect("cloned"), &path);
        fs::remove_file(&path).expect("removed");
        let _fourth = Listener::bind(&path).expect("bound");
        drop((second, third));
        assert!(try_connect(&path).is_ok(), "the fourth one's is there");
    }

    #[test]
    fn connecting_waits_for_a_place_in_the_backlog() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("agent.sock");
        let (listener, crowd) = crowded(&path);
        let path = path.as_path();
        assert_eq!(try_connect(path).map(drop), Err(Errno::AGAIN));
        let connected = std::thread::scope(|scope| {
            let (send, thread) = std::sync::mpsc::channel();
            let waiting = scope.spawn(move || {
                send.send(rustix::thread::gettid()).expect("listened to");
                connect(path)
            });
            let stat = format!("/proc/self/task/{}/stat", thread.recv().expect("its id").as_raw_nonzero());
            while !waiting.is_finished() && !fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") S ")) {
                std::thread::yield_now();
            }
            // Now one place is free.
            rustix::net::accept_with(&listener, SocketFlags::CLOEXEC).expect("one of the crowd");
            waiting.join().expect("no panic")
        });
        drop(crowd);
        assert!(connected.is_ok(), "{connected:?}");
    }

    #[test]
    fn too_long_message_is_refused() {
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
