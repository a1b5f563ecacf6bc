// SPDX-License-Identifier: Apache-2.0
//! TCP sockets as the kernel lists them (`sock_diag(7)`), and their end from outside.

use std::{
    fs, io,
    net::{Ipv4Addr, TcpListener},
    os::{fd::AsRawFd, linux::fs::MetadataExt},
    time::Duration,
};

use anyhow::anyhow;
use netlink_sys::protocols::NETLINK_SOCK_DIAG;

use crate::{
    exit::{Failure, NOT_PERMITTED, UNSUPPORTED},
    netlink::{Netlink, attribute, attributes, number},
};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
/// `struct inet_diag_msg`: where the socket's identity and its inode are, and its length.
const ID: std::ops::Range<usize> = 4..52;
const INODE: usize = 68;
const MESSAGE: usize = 72;
const LISTEN: u32 = 1 << 10;
/// All states of a connection: established to closing, without states in which no program has the socket.
pub(crate) const CONNECTED: u32 = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11;
/// Attribute of a request: which sockets, as a program.
const INET_DIAG_REQ_BYTECODE: u16 = 1;
/// Its instruction: the other end has this address.
const INET_DIAG_BC_D_COND: u8 = 8;
/// And one that goes on elsewhere.
const INET_DIAG_BC_JMP: u8 = 1;
/// Sockets are listed by family.
pub(crate) const FAMILIES: [i32; 2] = [libc::AF_INET, libc::AF_INET6];
/// Attribute of an answer, `struct tcp_info`, and where in it are the milliseconds since data and an acknowledgement came.
const INET_DIAG_INFO: u16 = 2;
const LAST_DATA_RECV: usize = 52;
const LAST_ACK_RECV: usize = 56;

/// A socket that was listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    family: u8,
    id: Vec<u8>,
    pub(crate) inode: u32,
    /// Since the other end was heard last, of a socket that says so: by the kernel's ticks, so up to 10 ms more or less.
    pub(crate) heard_before: Option<Duration>,
}

/// Sockets that were listed.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) all: Vec<Found>,
    /// The list changed during every attempt to read it: sockets that are not in it may exist all the same.
    pub(crate) changed: bool,
}

/// `struct inet_diag_req_v2`: TCP sockets of a family in these states, or the one of this identity.
fn request(family: u8, states: u32, id: &[u8]) -> Vec<u8> {
    let wanted = 1 << (INET_DIAG_INFO - 1);
    let mut bytes = vec![family, u8::try_from(libc::IPPROTO_TCP).expect("small"), wanted, 0];
    bytes.extend(states.to_ne_bytes());
    bytes.extend(id);
    bytes
}

/// `struct inet_diag_bc_op` and `struct inet_diag_hostcond`: sockets whose other end has one of some addresses, also as one that is mapped into
/// IPv6.
fn other_end(addresses: &[Ipv4Addr]) -> Vec<u8> {
    const LEN: u8 = 16;
    const JUMP: u8 = 4;
    let family = u8::try_from(libc::AF_INET).expect("small");
    let mut bytes = Vec::new();
    for (at, address) in addresses.iter().enumerate() {
        // If not this one, behind the jump that follows; behind the last one that is beyond the end: none of them.
        bytes.extend([INET_DIAG_BC_D_COND, LEN]);
        bytes.extend(u16::from(LEN + JUMP).to_ne_bytes());
        bytes.extend([family, 32, 0, 0]);
        // At any port.
        bytes.extend((-1_i32).to_ne_bytes());
        bytes.extend(address.octets());
        let left = addresses.len() - 1 - at;
        if left > 0 {
            let to_end = usize::from(JUMP) + left * usize::from(LEN) + (left - 1) * usize::from(JUMP);
            bytes.extend([INET_DIAG_BC_JMP, JUMP]);
            bytes.extend(u16::try_from(to_end).unwrap_or(u16::MAX).to_ne_bytes());
        }
    }
    bytes
}

fn found(family: u8, body: &[u8]) -> Option<Found> {
    let (id, inode) = (body.get(ID)?.to_vec(), number(body, INODE)?);
    let more = body.get(MESSAGE..)?;
    let info = attributes(more).into_iter().find(|(kind, _)| *kind == INET_DIAG_INFO).map(|(_, at)| &more[at]);
    let since_ms = |at| info.and_then(|info| number(info, at));
    let heard_before = since_ms(LAST_DATA_RECV).zip(since_ms(LAST_ACK_RECV)).map(|(data, ack)| data.min(ack));
    let heard_before = heard_before.map(|ms| Duration::from_millis(ms.into()));
    Some(Found { family, id, inode, heard_before })
}

/// TCP sockets in these states, of all families.
///
/// # Errors
/// The kernel's.
pub(crate) fn list(diag: &mut Netlink, states: u32) -> io::Result<Listed> {
    let mut listed = Listed { all: Vec::new(), changed: false };
    for family in FAMILIES {
        let Listed { all, changed } = list_to(diag, family, states, &[])?;
        listed.changed |= changed;
        listed.all.extend(all);
    }
    Ok(listed)
}

/// Those of a family whose other end has one of some addresses; with none, all.
///
/// # Errors
/// The kernel's.
pub(crate) fn list_to(diag: &mut Netlink, family: i32, states: u32, to: &[Ipv4Addr]) -> io::Result<Listed> {
    let family = u8::try_from(family).expect("small");
    let mut body = request(family, states, &[0; 48]);
    if !to.is_empty() {
        body.extend(attribute(INET_DIAG_REQ_BYTECODE, &other_end(to)));
    }
    let list = diag.list(SOCK_DIAG_BY_FAMILY, &body)?;
    let all = list.all.iter().filter_map(|message| found(family, &message.body)).collect();
    Ok(Listed { all, changed: list.changed })
}

/// Ends a socket: its program's calls fail with `ECONNABORTED`, also those that wait, and the other end is sent a reset. One that
/// is gone is no error.
///
/// # Errors
/// The kernel's.
pub(crate) fn destroy(diag: &mut Netlink, found: &Found) -> io::Result<()> {
    match diag.change(SOCK_DESTROY, 0, &request(found.family, u32::MAX, &found.id)) {
        // It has just been closed.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// As [`destroy`], of some: the result for each.
///
/// # Errors
/// The kernel's where it does not answer: some may have been ended.
pub(crate) fn destroy_all(diag: &mut Netlink, all: &[&Found]) -> io::Result<Vec<io::Result<()>>> {
    let bodies: Vec<_> = all.iter().map(|found| request(found.family, u32::MAX, &found.id)).collect();
    let done = |result: io::Result<()>| match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    };
    Ok(diag.change_all(SOCK_DESTROY, &bodies)?.into_iter().map(done).collect())
}

/// Whether this process may end sockets: by the end of one of its own. `what`: what of this program needs that.
///
/// # Errors
/// What is missing.
pub(crate) fn may_destroy(what: &str) -> Result<Netlink, Failure> {
    let attempt = || -> io::Result<Netlink> {
        let mut diag = Netlink::open(NETLINK_SOCK_DIAG)?;
        let own = TcpListener::bind("127.0.0.1:0")?;
        let inode = fs::metadata(format!("/proc/self/fd/{}", own.as_raw_fd()))?.st_ino();
        let listed = list_to(&mut diag, libc::AF_INET, LISTEN, &[])?;
        match listed.all.iter().find(|found| u64::from(found.inode) == inode) {
            Some(found) => destroy(&mut diag, found).map(|()| diag),
            None => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the kernel lists no TCP sockets (CONFIG_INET_TCP_DIAG)",
            )),
        }
    };
    attempt().map_err(|error| {
        let code = if error.kind() == io::ErrorKind::PermissionDenied { NOT_PERMITTED } else { UNSUPPORTED };
        let needs = "it needs CAP_NET_ADMIN, and a kernel with CONFIG_INET_DIAG_DESTROY";
        Failure::new(code, anyhow!("{what}: {error}; {needs}"))
    })
}
