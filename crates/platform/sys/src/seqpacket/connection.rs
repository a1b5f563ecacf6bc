// SPDX-License-Identifier: Apache-2.0
//! The two ends of a connection: one listens at a path, the other one connects.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions, Permissions},
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::{
    event::PollFlags,
    fs::{FlockOperation, flock},
    io::Errno,
    net::{
        AddressFamily, Shutdown, SocketAddrUnix, SocketType, accept_with, bind, listen, shutdown, socket_with,
        sockopt::{self, Timeout},
    },
};

use super::{FLAGS, Until, Wait};

/// Bytes of a socket's path at most (unix(7)).
const PATH_MAX_BYTES: usize = 107;
/// Any user may connect; what it may do is decided by its credentials.
const MODE: u32 = 0o666;
/// Of the file that is locked while a socket is bound.
const LOCK_MODE: u32 = 0o600;
/// `SO_PASSRIGHTS` (Linux 6.16).
const SO_PASSRIGHTS: libc::c_int = 83;

/// Why nobody can listen at a path.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Somebody listens there.
    #[error("a program listens at {0} already")]
    Running(PathBuf),
    /// Anything else.
    #[error("{path}: {why}")]
    Io { path: PathBuf, why: io::Error },
}

/// What becomes of descriptors that are sent to a listener's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Descriptors {
    /// They arrive.
    Taken,
    /// The kernel refuses them at the sender, if it can (Linux 6.16): to close one may wait for its sender (a socket that lingers, a
    /// file of a FUSE server).
    Refused,
}

/// A listening socket. Its file is removed when it is dropped, unless another program has put one of its own there.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    path: PathBuf,
    /// The file that it is bound to. No other file can have its number while the socket is open.
    file: Option<(u64, u64)>,
    leaves_file: bool,
    takes_descriptors: bool,
}

impl Listener {
    /// Listens at `path`, for all users. Replaces the socket of a program that was killed, and nothing else. Up to `backlog`
    /// connections wait to be accepted; further clients wait for a place ([`connect`]). A file beside the socket, with `.lock` after
    /// its name, stays.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn bind(path: &Path, backlog: i32, descriptors: Descriptors) -> Result<Self, ListenError> {
        let fail = |why: io::Error| ListenError::Io { path: path.to_owned(), why };
        let address = address(path).map_err(fail)?;
        // If two start at once, the second one finds the first one listening.
        let _alone = lock(path).map_err(fail)?;
        match connect(path, Duration::ZERO) {
            // Where the backlog is full, somebody listens, too.
            Ok(_) | Err(Errno::AGAIN) => return Err(ListenError::Running(path.to_owned())),
            Err(Errno::NOENT) => {}
            Err(Errno::CONNREFUSED) => remove(path).map_err(fail)?,
            // Whatever this is, it is not a program that was killed.
            Err(errno) => return Err(fail(errno.into())),
        }
        let opened = || -> io::Result<_> {
            let fd = seqpacket()?;
            bind(&fd, &address)?;
            let file = file_at(path);
            fs::set_permissions(path, Permissions::from_mode(MODE))?;
            // Before anybody can connect, because connections inherit it.
            let takes_descriptors = descriptors == Descriptors::Taken || !refuse_descriptors(fd.as_fd());
            listen(&fd, backlog)?;
            Ok(Self { fd, path: path.to_owned(), file, leaves_file: false, takes_descriptors })
        };
        opened().map_err(fail)
    }

    /// Goes on with the listening socket of another program, which left its file at `path`.
    #[must_use]
    pub fn take_over(fd: OwnedFd, path: &Path, descriptors: Descriptors) -> Self {
        let takes_descriptors = descriptors == Descriptors::Taken || !refuse_descriptors(fd.as_fd());
        Self { fd, path: path.to_owned(), file: file_at(path), leaves_file: false, takes_descriptors }
    }

    /// Whether descriptors arrive: they are taken, or this kernel has no way to refuse them (before Linux 6.16).
    #[must_use]
    pub fn takes_descriptors(&self) -> bool {
        self.takes_descriptors
    }

    /// Leaves the file for the program that takes over.
    pub fn hand_over(&mut self) {
        self.leaves_file = true;
    }

    /// The next connection. `None`: there was none in this time, or it was given up again.
    ///
    /// # Errors
    /// The kernel's: too many open files, say, or `InvalidInput` after [`Listener::close`].
    pub fn accept(&self, wait: Wait) -> io::Result<Option<OwnedFd>> {
        let until = Until::of(wait);
        loop {
            match accept_with(&self.fd, FLAGS) {
                Ok(fd) => return Ok(Some(fd)),
                Err(Errno::AGAIN) => match until.readable(self.as_fd())? {
                    found if found.is_empty() => return Ok(None),
                    // A socket that does not block is not told so by accept(2).
                    found if found.contains(PollFlags::HUP) => return Err(Errno::INVAL.into()),
                    _ => {}
                },
                Err(Errno::CONNABORTED | Errno::INTR) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Refuses further connections, and ends the waits of [`Listener::accept`].
    pub fn close(&self) {
        let _ = shutdown(&self.fd, Shutdown::Both);
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if !self.leaves_file && self.file.is_some() && self.file == file_at(&self.path) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The address of a socket at `path`.
///
/// # Errors
/// If the path is longer than the kernel takes, or holds a zero byte.
pub fn address(path: &Path) -> io::Result<SocketAddrUnix> {
    SocketAddrUnix::new(path).map_err(|errno| match errno {
        Errno::NAMETOOLONG => io::Error::new(
            io::ErrorKind::InvalidFilename,
            format!("its path is longer than the {PATH_MAX_BYTES} bytes that a socket can have"),
        ),
        errno => errno.into(),
    })
}

/// Connects to the program that listens at `path`. Any user can connect and hang up as often as it likes. So if nobody is accepted at
/// the moment, this waits for a place for up to `wait`; a later client may get it first.
///
/// # Errors
/// The kernel's: `NOENT` or `CONNREFUSED` if nobody listens, `PROTOTYPE` if that socket is of another type, `AGAIN` if there was no
/// place in that time.
pub fn connect(path: &Path, wait: Duration) -> Result<OwnedFd, Errno> {
    let address = SocketAddrUnix::new(path)?;
    let socket = seqpacket()?;
    let began = Instant::now();
    let mut outcome = rustix::net::connect(&socket, &address);
    while matches!(outcome, Err(Errno::AGAIN | Errno::INTR)) {
        let left = wait.saturating_sub(began.elapsed());
        if left.is_zero() {
            return Err(Errno::AGAIN);
        }
        // Only a connect that blocks waits for a place. The kernel counts in microseconds, and 0 has no end.
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(left.max(Duration::from_micros(1))))?;
        rustix::io::ioctl_fionbio(&socket, false)?;
        outcome = rustix::net::connect(&socket, &address);
        rustix::io::ioctl_fionbio(&socket, true)?;
    }
    outcome.map(|()| socket)
}

fn seqpacket() -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)
}

/// Locks out others that are about to listen at `path`, waiting for them. Only this user can use the file.
fn lock(path: &Path) -> io::Result<File> {
    let lock: OsString = [path.as_os_str(), ".lock".as_ref()].into_iter().collect();
    let file = OpenOptions::new().create(true).append(true).mode(LOCK_MODE).open(lock)?;
    flock(&file, FlockOperation::LockExclusive)?;
    Ok(file)
}

/// Removes a socket that nobody listens at.
fn remove(path: &Path) -> io::Result<()> {
    let removed = fs::metadata(path).and_then(|found| match found.file_type().is_socket() {
        true => fs::remove_file(path),
        false => Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "a file that is no socket is there; remove it, or name another path",
        )),
    });
    match removed {
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Device and number of the file at `path`.
fn file_at(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// Has the kernel refuse descriptors that are sent to this socket, or to those accepted from it. `false`: it cannot.
fn refuse_descriptors(socket: BorrowedFd<'_>) -> bool {
    let off: libc::c_int = 0;
    let len = libc::socklen_t::try_from(size_of_val(&off)).expect("small");
    // SAFETY: the value outlives the call, and its size is given.
    unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, (&raw const off).cast(), len) == 0 }
}
