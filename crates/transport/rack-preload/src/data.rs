// SPDX-License-Identifier: Apache-2.0
//! The functions of the C library that carry bytes.

use std::{slice, sync::Arc, sync::atomic::Ordering, time::Instant};

use libc::{
    c_int, c_uint, c_ulong, c_void, iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec,
};

use rustix::io::FdFlags;

use crate::{
    bytes::{COUNT_MAX, Call, returns},
    conn::{CONNS, Conn, borrowed, carried, is_not_followed, ours, read_from},
    peers,
    real::{self, fail},
    times::{duration, until},
};

/// Pieces of one call, by the kernel (`UIO_MAXIOV`).
const PIECES_MAX: usize = 1024;
/// Messages of one call, by the kernel.
const MESSAGES_MAX: c_uint = 1024;
/// Pieces for which nothing is allocated.
const FEW: usize = 16;

fn call(conn: Arc<Conn>, flags: c_int) -> Call {
    Call { conn, flags }
}

/// # Safety
/// Nobody else writes or reads that memory meanwhile, and it is there.
unsafe fn into<'a>(buf: *mut c_void, len: size_t) -> &'a mut [u8] {
    if len == 0 || buf.is_null() {
        return &mut [];
    }
    // SAFETY: the caller's. It may hold nothing yet: it is only written to.
    unsafe { slice::from_raw_parts_mut(buf.cast(), len.min(COUNT_MAX)) }
}

/// # Safety
/// Nobody writes that memory meanwhile, and it is there.
unsafe fn from<'a>(buf: *const c_void, len: size_t) -> &'a [u8] {
    if len == 0 || buf.is_null() {
        return &[];
    }
    // SAFETY: the caller's.
    unsafe { slice::from_raw_parts(buf.cast(), len.min(COUNT_MAX)) }
}

/// The pieces that a program names.
///
/// # Safety
/// So many are there.
unsafe fn pieces<'a>(iov: *const iovec, count: usize) -> Result<&'a [iovec], c_int> {
    let pieces = match count {
        0 => &[],
        1..=PIECES_MAX if iov.is_null() => return Err(libc::EFAULT),
        // SAFETY: the caller's.
        1..=PIECES_MAX => unsafe { slice::from_raw_parts(iov, count) },
        _ => return Err(libc::EINVAL),
    };
    if pieces.iter().any(|piece| isize::try_from(piece.iov_len).is_err()) {
        return Err(libc::EINVAL);
    }
    Ok(pieces)
}

/// Whether a message has no more pieces than one may have.
fn fits(message: &msghdr) -> Result<(), c_int> {
    if message.msg_iovlen > PIECES_MAX { Err(libc::EMSGSIZE) } else { Ok(()) }
}

/// # Safety
/// As [`into`], for each piece.
unsafe fn reads(call: &Call, iov: *const iovec, count: usize) -> Result<usize, c_int> {
    // SAFETY: the caller's.
    let pieces = unsafe { pieces(iov, count) }?;
    if call.flags & libc::MSG_TRUNC != 0 {
        return call.drops(pieces.iter().map(|piece| piece.iov_len).sum());
    }
    // SAFETY: the caller's.
    let one = |piece: &iovec| unsafe { into(piece.iov_base, piece.iov_len) };
    match pieces {
        [piece] => call.reads(&mut [one(piece)]),
        pieces if pieces.len() <= FEW => {
            let mut few: [&mut [u8]; FEW] = Default::default();
            few.iter_mut().zip(pieces).for_each(|(few, piece)| *few = one(piece));
            call.reads(&mut few[..pieces.len()])
        }
        pieces => call.reads(&mut pieces.iter().map(one).collect::<Vec<_>>()),
    }
}

/// # Safety
/// As [`from`], for each piece.
unsafe fn writes(call: &Call, iov: *const iovec, count: usize) -> Result<usize, c_int> {
    // SAFETY: the caller's.
    let pieces = unsafe { pieces(iov, count) }?;
    // SAFETY: the caller's.
    let one = |piece: &iovec| unsafe { from(piece.iov_base, piece.iov_len) };
    match pieces {
        [piece] => call.writes(&[one(piece)]),
        pieces if pieces.len() <= FEW => {
            let mut few: [&[u8]; FEW] = Default::default();
            few.iter_mut().zip(pieces).for_each(|(few, piece)| *few = one(piece));
            call.writes(&few[..pieces.len()])
        }
        pieces => call.writes(&pieces.iter().map(one).collect::<Vec<_>>()),
    }
}

/// As [`writes`], of `writev`: the kernel does not ask the socket where nothing is to be written, also where nothing more can be.
///
/// # Safety
/// As [`writes`].
unsafe fn writes_vector(call: &Call, iov: *const iovec, count: c_int) -> Result<usize, c_int> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    // SAFETY: the caller's.
    if unsafe { pieces(iov, count) }?.iter().all(|piece| piece.iov_len == 0) {
        return Ok(0);
    }
    // SAFETY: the caller's.
    unsafe { writes(call, iov, count) }
}

/// What is read from the kernel whatever the socket is.
const KERNEL: c_int = libc::MSG_OOB | libc::MSG_ERRQUEUE;

/// The connection that is read from, or looked at, which is no read.
fn read_by(fd: c_int, flags: c_int) -> Option<Arc<Conn>> {
    match flags {
        _ if flags & KERNEL != 0 => None,
        _ if flags & libc::MSG_PEEK != 0 => ours(fd),
        _ => read_from(fd),
    }
}

/// The connection that is written to. One with urgent bytes before its memory has come stays with TCP, which they are part of.
fn written(fd: c_int, flags: c_int) -> Option<Arc<Conn>> {
    if flags & libc::MSG_OOB != 0 {
        is_not_followed(fd);
    }
    carried(fd)
}

/// Of a connection that has memory: the last byte is urgent, and goes over TCP, where it is no part of what is read there; the others before
/// it do not.
///
/// # Safety
/// That of `send`.
unsafe fn urgent(conn: Arc<Conn>, fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    let flags_before = flags & !libc::MSG_OOB;
    // SAFETY: the caller's.
    let bytes = unsafe { from(buf, len) };
    let Some((last, before)) = bytes.split_last() else { return 0 };
    if !before.is_empty() {
        let count = returns(fd, || call(conn, flags_before).writes(&[before]));
        if usize::try_from(count) != Ok(before.len()) {
            return count;
        }
    }
    // SAFETY: the byte is there.
    let count = peers::kernel(fd, unsafe { real::send(fd, std::ptr::from_ref(last).cast(), 1, flags) });
    let before = ssize_t::try_from(before.len()).unwrap_or(ssize_t::MAX);
    if count == 1 || before > 0 { before + count.max(0) } else { count }
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t {
    match read_from(fd) {
        // SAFETY: the caller's.
        None => peers::kernel(fd, unsafe { real::read(fd, buf, len) }),
        // SAFETY: the caller's.
        Some(conn) => returns(fd, || call(conn, 0).reads(&mut [unsafe { into(buf, len) }])),
    }
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __read_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t) -> ssize_t {
    checks(len, room);
    // SAFETY: the caller's.
    unsafe { read(fd, buf, len) }
}

/// As the C library has it, for a buffer that is too short.
fn checks(len: size_t, room: size_t) {
    if len > room {
        std::process::abort();
    }
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    match read_from(fd) {
        // SAFETY: the caller's.
        None => peers::kernel(fd, unsafe { real::readv(fd, iov, count) }),
        Some(conn) => {
            // SAFETY: the caller's.
            returns(fd, || unsafe { reads(&call(conn, 0), iov, usize::try_from(count).unwrap_or(usize::MAX)) })
        }
    }
}

/// Of the flags of `preadv2` and `pwritev2` those that a socket may have: the others are not known, or for files.
const OF_SOCKETS: c_int = libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_NOWAIT | libc::RWF_APPEND;

/// The flags of a call, of those of `preadv2` and `pwritev2`: a connection has no places.
fn at_once(at: i64, flags: c_int) -> Result<c_int, c_int> {
    match (at, flags) {
        (i64::MIN..-1, _) => Err(libc::EINVAL),
        (0.., _) => Err(libc::ESPIPE),
        (-1, flags) if flags & !OF_SOCKETS != 0 => Err(libc::EOPNOTSUPP),
        (-1, flags) if flags & libc::RWF_NOWAIT != 0 => Ok(libc::MSG_DONTWAIT),
        (-1, _) => Ok(0),
    }
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn preadv2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t {
    match read_from(fd) {
        // SAFETY: the caller's.
        None => peers::kernel(fd, unsafe { real::preadv2(fd, iov, count, at, flags) }),
        Some(conn) => returns(fd, || {
            let call = call(conn, at_once(at, flags)?);
            // SAFETY: the caller's.
            unsafe { reads(&call, iov, usize::try_from(count).unwrap_or(usize::MAX)) }
        }),
    }
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn preadv64v2(fd: c_int, iov: *const iovec, count: c_int, at: i64, flags: c_int) -> ssize_t {
    // SAFETY: the caller's; both places have 64 bits.
    unsafe { preadv2(fd, iov, count, at, flags) }
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pwritev2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t {
    match carried(fd) {
        // SAFETY: the caller's.
        None => peers::kernel(fd, unsafe { real::pwritev2(fd, iov, count, at, flags) }),
        Some(conn) => returns(fd, || {
            let call = call(conn, at_once(at, flags)?);
            // SAFETY: the caller's.
            unsafe { writes_vector(&call, iov, count) }
        }),
    }
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pwritev64v2(fd: c_int, iov: *const iovec, count: c_int, at: i64, flags: c_int) -> ssize_t {
    // SAFETY: the caller's; both places have 64 bits.
    unsafe { pwritev2(fd, iov, count, at, flags) }
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    match read_by(fd, flags) {
        // SAFETY: the caller's.
        None => peers::kernel(fd, unsafe { real::recv(fd, buf, len, flags) }),
        Some(conn) if len == 0 => returns(fd, || call(conn, flags).reads_none()),
        Some(conn) if flags & libc::MSG_TRUNC != 0 => returns(fd, || call(conn, flags).drops(len)),
        // SAFETY: the caller's.
        Some(conn) => returns(fd, || call(conn, flags).reads(&mut [unsafe { into(buf, len) }])),
    }
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __recv_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t {
    checks(len, room);
    // SAFETY: the caller's.
    unsafe { recv(fd, buf, len, flags) }
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn recvfrom(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> ssize_t {
    if read_by(fd, flags).is_none() {
        // SAFETY: the caller's.
        return peers::kernel(fd, unsafe { real::recvfrom(fd, buf, len, flags, address, address_len) });
    }
    // SAFETY: the caller's.
    let count = unsafe { recv(fd, buf, len, flags) };
    if count >= 0 && !address.is_null() && !address_len.is_null() {
        // SAFETY: the caller's. TCP names nobody.
        unsafe { *address_len = 0 };
    }
    count
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __recvfrom_chk(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> ssize_t {
    checks(len, room);
    // SAFETY: the caller's.
    unsafe { recvfrom(fd, buf, len, flags, address, address_len) }
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let Some(conn) = (!message.is_null()).then(|| read_by(fd, flags)).flatten() else {
        // SAFETY: the caller's.
        return peers::kernel(fd, unsafe { real::recvmsg(fd, message, flags) });
    };
    // SAFETY: the caller's, and it is there.
    let message = unsafe { &mut *message };
    let count = returns(fd, || {
        fits(message)?;
        let call = call(conn, flags);
        // SAFETY: the caller's.
        if unsafe { pieces(message.msg_iov, message.msg_iovlen) }?.iter().all(|piece| piece.iov_len == 0) {
            return call.reads_none();
        }
        // SAFETY: the caller's.
        unsafe { reads(&call, message.msg_iov, message.msg_iovlen) }
    });
    if count >= 0 {
        (message.msg_namelen, message.msg_controllen) = (0, 0);
        message.msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
    }
    count
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    if read_by(fd, flags).is_none() {
        // SAFETY: the caller's.
        return peers::kernel_of(fd, unsafe { real::recvmmsg(fd, messages, count, flags, timeout) });
    }
    // SAFETY: the caller's.
    let until = match unsafe { duration(timeout) } {
        Ok(within) => until(within),
        Err(errno) => {
            fail(errno);
            return -1;
        }
    };
    let mut flags = flags;
    for done in 0..count.min(MESSAGES_MAX) {
        // SAFETY: the caller's: there are so many.
        let message = unsafe { &mut *messages.add(done as usize) };
        // SAFETY: as above.
        let read = unsafe { recvmsg(fd, &raw mut message.msg_hdr, flags & !libc::MSG_WAITFORONE) };
        let told = c_int::try_from(done).unwrap_or(c_int::MAX);
        let Ok(read) = c_uint::try_from(read) else { return if done > 0 { told } else { -1 } };
        message.msg_len = read;
        // It is looked at between two messages only.
        if until.is_some_and(|until| Instant::now() >= until) {
            return told + 1;
        }
        if flags & libc::MSG_WAITFORONE != 0 {
            flags |= libc::MSG_DONTWAIT;
        }
    }
    c_int::try_from(count.min(MESSAGES_MAX)).unwrap_or(c_int::MAX)
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t {
    match carried(fd) {
        // SAFETY: the caller's.
        None => peers::kernel(fd, unsafe { real::write(fd, buf, len) }),
        // SAFETY: the caller's.
        Some(conn) => returns(fd, || call(conn, 0).writes(&[unsafe { from(buf, len) }])),
    }
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    match carried(fd) {
        // SAFETY: the caller's.
        None => peers::kernel(fd, unsafe { real::writev(fd, iov, count) }),
        Some(conn) => {
            // SAFETY: the caller's.
            returns(fd, || unsafe { writes_vector(&call(conn, 0), iov, count) })
        }
    }
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    match written(fd, flags) {
        // SAFETY: the caller's.
        None => peers::kernel(fd, unsafe { real::send(fd, buf, len, flags) }),
        // SAFETY: the caller's.
        Some(conn) if flags & libc::MSG_OOB != 0 => unsafe { urgent(conn, fd, buf, len, flags) },
        // SAFETY: the caller's.
        Some(conn) => returns(fd, || call(conn, flags).writes(&[unsafe { from(buf, len) }])),
    }
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sendto(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    address: *const sockaddr,
    address_len: socklen_t,
) -> ssize_t {
    match written(fd, flags) {
        // SAFETY: the caller's.
        None => peers::kernel(fd, unsafe { real::sendto(fd, buf, len, flags, address, address_len) }),
        // SAFETY: the caller's.
        Some(conn) if flags & libc::MSG_OOB != 0 => unsafe { urgent(conn, fd, buf, len, flags) },
        // A connection takes no notice of the address.
        // SAFETY: the caller's.
        Some(conn) => returns(fd, || call(conn, flags).writes(&[unsafe { from(buf, len) }])),
    }
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    let Some(conn) = (!message.is_null()).then(|| written(fd, flags)).flatten() else {
        // SAFETY: the caller's.
        if !message.is_null() && !unsafe { hands_on(&*message) } {
            fail(libc::EOPNOTSUPP);
            return -1;
        }
        // SAFETY: the caller's.
        return peers::kernel(fd, unsafe { real::sendmsg(fd, message, flags) });
    };
    // SAFETY: the caller's, and it is there.
    let message = unsafe { &*message };
    if flags & libc::MSG_OOB != 0 {
        // SAFETY: the caller's.
        if let Ok([piece]) = unsafe { pieces(message.msg_iov, message.msg_iovlen) } {
            // SAFETY: the caller's.
            return unsafe { urgent(conn, fd, piece.iov_base, piece.iov_len, flags) };
        }
        fail(libc::EOPNOTSUPP);
        return -1;
    }
    returns(fd, || {
        fits(message)?;
        // SAFETY: the caller's.
        unsafe { writes(&call(conn, flags), message.msg_iov, message.msg_iovlen) }
    })
}

/// Another process gets descriptors, and does not know what is known here of them: they stay with TCP. False: one is over memory.
///
/// # Safety
/// The control messages are there.
unsafe fn hands_on(message: &msghdr) -> bool {
    let mut is_tcp = true;
    if message.msg_control.is_null() || message.msg_controllen == 0 {
        return is_tcp;
    }
    // SAFETY: the caller's; the walk stays within what the message says.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !at.is_null() {
        // SAFETY: as above.
        let header = unsafe { &*at };
        if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: as above.
            let data = unsafe { libc::CMSG_DATA(at) }.cast::<c_int>();
            let len = header.cmsg_len.saturating_sub(data as usize - at as usize);
            for index in 0..len / size_of::<c_int>() {
                // SAFETY: within the message's length; it may lie anywhere.
                let fd = unsafe { data.add(index).read_unaligned() };
                is_tcp &= is_not_followed(fd);
            }
        }
        // SAFETY: as above.
        at = unsafe { libc::CMSG_NXTHDR(message, at) };
    }
    is_tcp
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    if written(fd, flags).is_none() {
        for index in 0..count as usize {
            // SAFETY: the caller's: there are so many.
            if !unsafe { hands_on(&(*messages.add(index)).msg_hdr) } {
                // Those before it are sent.
                if index == 0 {
                    fail(libc::EOPNOTSUPP);
                    return -1;
                }
                // SAFETY: the caller's.
                return peers::kernel_of(fd, unsafe {
                    real::sendmmsg(fd, messages, c_uint::try_from(index).unwrap_or(0), flags)
                });
            }
        }
        // SAFETY: the caller's.
        return peers::kernel_of(fd, unsafe { real::sendmmsg(fd, messages, count, flags) });
    }
    for index in 0..count.min(MESSAGES_MAX) {
        // SAFETY: the caller's: there are so many.
        let message = unsafe { &mut *messages.add(index as usize) };
        let all: usize = {
            // SAFETY: the caller's.
            let pieces = unsafe { pieces(message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) };
            pieces.map_or(0, |pieces| pieces.iter().map(|piece| piece.iov_len).sum())
        };
        // SAFETY: the caller's.
        let written = unsafe { sendmsg(fd, &raw const message.msg_hdr, flags) };
        let done = c_int::try_from(index).unwrap_or(c_int::MAX);
        let Ok(written) = usize::try_from(written) else { return if index > 0 { done } else { -1 } };
        message.msg_len = c_uint::try_from(written).unwrap_or(c_uint::MAX);
        if written < all {
            return done + 1;
        }
    }
    c_int::try_from(count.min(MESSAGES_MAX)).unwrap_or(c_int::MAX)
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sendfile64(out: c_int, file: c_int, offset: *mut i64, count: size_t) -> ssize_t {
    if ours(file).is_some() {
        // A socket is no file to send from, as the kernel says.
        fail(libc::EINVAL);
        return -1;
    }
    let Some(conn) = carried(out) else {
        // SAFETY: the caller's.
        return peers::kernel(out, unsafe { real::sendfile64(out, file, offset, count) });
    };
    let call = call(conn, 0);
    // SAFETY: the caller's.
    let begun = if offset.is_null() { unsafe { libc::lseek64(file, 0, libc::SEEK_CUR) } } else { unsafe { *offset } };
    if begun < 0 {
        if !offset.is_null() || real::errno() == libc::ESPIPE {
            fail(libc::EINVAL);
        }
        return -1;
    }
    let mut at = begun;
    let sent = returns(out, || {
        let (mut sent, mut limit) = (0, None);
        while sent < count.min(COUNT_MAX) {
            match call.fills((file, at), count - sent, &mut limit) {
                Ok(0) => break,
                Ok(more) => (sent, at) = (sent + more, at + i64::try_from(more).unwrap_or(0)),
                Err(_) if sent > 0 => break,
                // What cannot be sent so, as the kernel says.
                Err(libc::EISDIR) => return Err(libc::EINVAL),
                why => return call.signals(why),
            }
        }
        Ok(sent)
    });
    if sent > 0 {
        // SAFETY: the caller's.
        unsafe {
            if offset.is_null() {
                libc::lseek64(file, at, libc::SEEK_SET);
            } else {
                *offset = at;
            }
        }
    }
    sent
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sendfile(out: c_int, file: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    if carried(out).is_none() && ours(file).is_none() {
        // SAFETY: the caller's.
        return peers::kernel(out, unsafe { real::sendfile(out, file, offset, count) });
    }
    // SAFETY: the caller's; both offsets have 64 bits.
    unsafe { sendfile64(out, file, offset, count) }
}

/// A connection that other programs do not get, so far: a program that changes that is about to begin one that is to have it.
pub(crate) fn is_kept(fd: c_int) -> bool {
    CONNS.has(fd) && rustix::io::fcntl_getfd(borrowed(fd)).is_ok_and(|flags| flags.contains(FdFlags::CLOEXEC))
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int {
    if request == libc::FIONREAD
        && !arg.is_null()
        && let Some(conn) =
            ours(fd).filter(|conn| matches!(conn.end.is_ready(fide_rack::window::Bell::Message), Ok(Some(_))))
    {
        let count = conn.end.count().unwrap_or(0);
        // SAFETY: the caller's: the request writes a number.
        unsafe { *arg.cast::<c_int>() = c_int::try_from(count).unwrap_or(c_int::MAX) };
        return 0;
    }
    if request == libc::FIOASYNC || request == libc::FIONCLEX && is_kept(fd) {
        is_not_followed(fd);
    }
    // SAFETY: the caller's.
    unsafe { real::ioctl(fd, request, arg) }
}

/// # Safety
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    let Some(conn) = ours(fd).filter(|conn| conn.is_attached()) else {
        is_not_followed(fd);
        // SAFETY: the caller's.
        return unsafe { real::shutdown(fd, how) };
    };
    conn.reads.fetch_add(1, Ordering::Relaxed);
    if matches!(how, libc::SHUT_WR | libc::SHUT_RDWR) {
        let shut = returns(fd, || conn.end.shut(borrowed(fd)).map(|()| 0).map_err(|why| crate::bytes::number(&why)));
        if how == libc::SHUT_WR || shut != 0 {
            return c_int::try_from(shut).unwrap_or(-1);
        }
    }
    // It wakes those who read, and those of the other end.
    // SAFETY: the caller's.
    let result = unsafe { real::shutdown(fd, how) };
    conn.is_shut.fetch_or(result == 0, Ordering::Relaxed);
    conn.end.sleeps();
    let _ = conn.end.hears(borrowed(fd));
    conn.end.woke();
    result
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        net::{Ipv4Addr, TcpListener, TcpStream},
        os::fd::AsRawFd,
    };

    use super::*;
    use crate::conn::Memory;

    /// As a server does that looks at what a client wants before another process serves it.
    #[test]
    fn connection_that_is_only_looked_at_or_read_a_little_has_no_memory() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = listener.accept().unwrap().0;
        let (fd, mut buf) = (socket.as_raw_fd(), [0_u8; 8]);
        let conn = Conn::opened(fd);
        conn.gives(Memory::pair().unwrap().into_iter().next().unwrap());
        CONNS.put(fd, Some(Arc::clone(&conn)));
        client.write_all(b"abc").unwrap();
        // SAFETY: so many bytes are there.
        let read = |flags, buf: &mut [u8; 8]| unsafe { recv(fd, buf.as_mut_ptr().cast(), buf.len(), flags) };
        for _ in 0..200 {
            assert_eq!(read(libc::MSG_PEEK, &mut buf), 3);
        }
        assert_eq!(read(0, &mut buf), 3);
        for _ in 0..50 {
            assert_eq!(read(libc::MSG_DONTWAIT, &mut buf), -1);
        }
        assert!(conn.is_given() && !conn.is_attached());
        // Another test may hold what the process has once.
        while conn.is_given() {
            read(libc::MSG_DONTWAIT, &mut buf);
        }
        assert!(conn.is_attached() && &buf[..3] == b"abc", "one that only reads");
        CONNS.put(fd, None);
        let conn = Conn::opened(fd);
        conn.gives(Memory::pair().unwrap().into_iter().next().unwrap());
        CONNS.put(fd, Some(Arc::clone(&conn)));
        while conn.is_given() {
            // SAFETY: as above.
            assert_eq!(unsafe { send(fd, buf.as_ptr().cast(), 1, 0) }, 1);
        }
        assert!(conn.is_attached(), "one that writes");
        CONNS.put(fd, None);
    }
}
