// SPDX-License-Identifier: Apache-2.0
//! Who has opened a connection.

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
};

use nix::sys::socket::{
    getsockopt,
    sockopt::{PeerCredentials, PeerPidfd},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// `SO_PEERGROUPS` (Linux 4.13).
const SO_PEERGROUPS: libc::c_int = 59;
/// Groups that a process can have.
const GROUPS_MAX: usize = 65_536;

/// The process at the other end of a connection, as of the moment when it connected or listened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// 0: it lives in a pid namespace that this process cannot see.
    pub pid: u32,
    pub uid: u32,
    pub gid: u32,
}

/// The process at the other end. Not by rustix, whose pid cannot be 0.
///
/// # Errors
/// The kernel's.
pub fn peer(socket: impl AsFd) -> io::Result<Peer> {
    let found = getsockopt(&socket, PeerCredentials)?;
    Ok(Peer { pid: u32::try_from(found.pid()).unwrap_or(0), uid: found.uid(), gid: found.gid() })
}

/// The groups of the process at the other end: its own and the supplementary ones. Empty if the kernel does not say.
#[must_use]
pub fn groups(socket: impl AsFd) -> Vec<u32> {
    let mut groups = vec![0u32; GROUPS_MAX];
    let mut len = libc::socklen_t::try_from(size_of_val(&groups[..])).expect("256 KiB");
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: `groups` is writable for `len` bytes, and both outlive the call.
    let more =
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, SO_PEERGROUPS, groups.as_mut_ptr().cast(), &raw mut len) };
    groups.truncate(if more == 0 { len as usize / size_of::<u32>() } else { 0 });
    groups.extend(peer(socket).map(|peer| peer.gid));
    groups
}

/// Whether the process that opened the connection is still there; true if the kernel cannot say (before Linux 6.5).
#[must_use]
pub fn peer_lives(socket: impl AsFd) -> bool {
    match getsockopt(&socket, PeerPidfd) {
        Ok(process) => {
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&now)) == Ok(0)
        }
        Err(errno) => errno == nix::errno::Errno::ENOPROTOOPT,
    }
}
