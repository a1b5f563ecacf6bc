// SPDX-License-Identifier: Apache-2.0
//! Callers in other pid namespaces: their process ids mean other processes here.
//!
//! The kernel identifies the peer of a socket in the agent's own numbers (`SO_PEERCRED`). A number that the
//! caller writes itself is one of the caller's namespace, and is translated before it is used.

use std::{
    fs, io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::fs::MetadataExt,
    },
};

use fide_client::protocol::{ErrorCode, Refusal};
use fide_sys::seqpacket::peer_lives;

/// `NS_GET_PID_FROM_PIDNS` (Linux 6.11): `_IOR(0xb7, 6, int)`.
const GET_PID: libc::c_ulong = 0x8004_b706;

/// The namespace of a caller's process ids.
#[derive(Debug)]
pub enum Namespace {
    /// The agent's namespace.
    Own,
    /// A namespace below it.
    Nested(OwnedFd),
    /// Unknown; why.
    Hidden(String),
}

/// The refusal for a caller to whom the kernel gives the process id 0: none of its processes can be named
/// here.
#[must_use]
pub fn outside() -> Refusal {
    Refusal::new(
        ErrorCode::NotSupported,
        "this agent runs in a pid namespace of its own, and the caller outside of it: the kernel gives the caller's process id as 0, so that \
         no process of it can be put under watch",
        "run the agent in the host's pid namespace (docker and podman: --pid=host, Kubernetes: hostPID: true), or the program in the agent's",
    )
}

/// Why a process id means nothing here.
#[derive(Debug, thiserror::Error)]
pub enum TranslateError {
    #[error("there is no process {0} in the caller's pid namespace, or no more")]
    Gone(u32),
    #[error("process {pid} is in a pid namespace that this agent does not know: {why}")]
    Hidden { pid: u32, why: String },
}

impl Namespace {
    /// The namespace of the process `pid` (by `SO_PEERCRED`), which opened the connection `socket`.
    #[must_use]
    pub fn of(pid: u32, socket: BorrowedFd<'_>) -> Self {
        let found = Self::look(pid);
        // The data read is the peer's only if the peer is still there.
        if found.is_ok() && !peer_lives(socket) {
            return Self::Hidden("the process that opened this connection has ended".to_owned());
        }
        found.unwrap_or_else(Self::Hidden)
    }

    fn look(pid: u32) -> Result<Self, String> {
        if pid == 0 {
            return Err("the caller is not visible in the agent's".to_owned());
        }
        let own = std::process::id();
        if fs::read_link("/proc/self").ok().is_none_or(|path| path.as_os_str() != own.to_string().as_str()) {
            return Err("/proc is that of another".to_owned());
        }
        let ids = Ids::read(pid).ok_or("the caller has ended")?;
        if ids.depth == Ids::read(own).map_or(1, |ids| ids.depth) {
            return Ok(Self::Own);
        }
        let open = fs::File::open(format!("/proc/{pid}/ns/pid"));
        open.map(|file| Self::Nested(file.into())).map_err(|error| format!("it cannot be opened: {error}"))
    }

    /// The agent's number for a caller's `pid` in this namespace. The number may have been reused by the
    /// time it is used: translate again once the process is open.
    ///
    /// # Errors
    /// [`TranslateError`].
    pub fn translate(&self, pid: u32) -> Result<u32, TranslateError> {
        match self {
            Self::Own => Ok(pid),
            Self::Nested(namespace) => {
                // SAFETY: the request takes the number itself, no pointer.
                let found = unsafe { libc::ioctl(namespace.as_raw_fd(), GET_PID, libc::c_ulong::from(pid)) };
                if found > 0 {
                    return Ok(found.unsigned_abs());
                }
                match io::Error::last_os_error().raw_os_error() {
                    Some(libc::ESRCH) => None,
                    _ => search(namespace.as_fd(), pid),
                }
                .ok_or(TranslateError::Gone(pid))
            }
            Self::Hidden(why) => Err(TranslateError::Hidden { pid, why: why.clone() }),
        }
    }
}

/// Before Linux 6.11: the process of that namespace which has this number there.
fn search(namespace: BorrowedFd<'_>, pid: u32) -> Option<u32> {
    let wanted = rustix::fs::fstat(namespace).ok()?;
    fs::read_dir("/proc").ok()?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).find(|own: &u32| {
        let found = || {
            let is_it = Ids::read(*own)?.innermost == pid;
            let there = is_it.then(|| fs::metadata(format!("/proc/{own}/ns/pid")).ok())??;
            Some((there.dev(), there.ino()) == (wanted.st_dev, wanted.st_ino))
        };
        found() == Some(true)
    })
}

/// A process' numbers, from the outermost namespace that `/proc` shows to its own.
struct Ids {
    depth: usize,
    innermost: u32,
}

impl Ids {
    fn read(pid: u32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        // Not there in a kernel without pid namespaces.
        let Some(ids) = status.lines().find_map(|line| line.strip_prefix("NSpid:")) else {
            return Some(Self { depth: 1, innermost: pid });
        };
        let innermost = ids.split_ascii_whitespace().next_back()?.parse().ok()?;
        Some(Self { depth: ids.split_ascii_whitespace().count(), innermost })
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    #[test]
    fn own_namespace_needs_no_translation() {
        let (near, _far) = fide_sys::seqpacket::pair().expect("pair");
        let namespace = Namespace::of(std::process::id(), near.as_fd());
        assert!(matches!(namespace, Namespace::Own), "{namespace:?}");
        assert_eq!(namespace.translate(1).expect("own"), 1);
        let hidden = Namespace::of(0, near.as_fd());
        assert!(hidden.translate(1).expect_err("hidden").to_string().contains("not visible"));
    }

    /// A shell that is process 1 of its namespace, and waits.
    fn nested() -> Option<(Child, u32)> {
        let arguments = ["--user", "--map-root-user", "--pid", "--fork", "sh", "-c", "echo; read line"];
        let mut unshare = Command::new("unshare");
        unshare.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = unshare.spawn().ok()?;
        let mut line = [0];
        // It runs once it has printed that.
        io::Read::read_exact(child.stdout.as_mut()?, &mut line).ok()?;
        let children = format!("/proc/{0}/task/{0}/children", child.id());
        let inner = fs::read_to_string(children).ok()?.trim().parse().ok()?;
        Some((child, inner))
    }

    #[test]
    fn numbers_of_nested_namespace_are_translated() {
        let Some((mut child, inner)) = nested() else {
            eprintln!("skipped: pid namespaces cannot be made here");
            return;
        };
        let namespace = Namespace::look(inner).expect("seen");
        let Namespace::Nested(fd) = &namespace else { panic!("{namespace:?}") };
        assert_eq!(namespace.translate(1).expect("translated"), inner);
        assert_eq!(search(fd.as_fd(), 1), Some(inner), "as before Linux 6.11");
        assert!(matches!(namespace.translate(999), Err(TranslateError::Gone(999))));
        assert_eq!(search(fd.as_fd(), 999), None);
        drop(child.stdin.take());
        child.wait().expect("ended");
        assert!(matches!(namespace.translate(1), Err(TranslateError::Gone(1))));
    }
}
