// SPDX-License-Identifier: Apache-2.0
//! Reads the kernel's own time of arrival (Linux Documentation/networking/timestamping.rst).

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
};

use fide_sys::clock::mono_ns;

/// Room for control messages, words.
const CONTROL: usize = 16;

/// Asks the kernel for it. The bench measures even without it.
pub(super) fn enable(socket: &OwnedFd) {
    let stamps = (libc::SOF_TIMESTAMPING_RX_SOFTWARE | libc::SOF_TIMESTAMPING_SOFTWARE).cast_signed();
    // SAFETY: the value outlives the call and is of the size given.
    let _ = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPING,
            (&raw const stamps).cast(),
            size_of_val(&stamps) as libc::socklen_t,
        )
    };
}

/// A packet: its length, when this thread had it, and when the kernel had it, both on CLOCK_MONOTONIC.
pub(super) type Received = (usize, u64, Option<u64>);

/// Receives the next packet into `parts`, one after the other, and its sender into `from`.
///
/// # Errors
/// The kernel's.
pub(super) fn receive(
    socket: &OwnedFd,
    from: Option<&mut libc::sockaddr_in>,
    parts: &mut [io::IoSliceMut<'_>],
    flags: i32,
) -> io::Result<Received> {
    // SAFETY: zeroes are a valid value of this plain structure.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    let mut control = [0u64; CONTROL];
    if let Some(from) = from {
        message.msg_namelen = size_of_val(from) as libc::socklen_t;
        message.msg_name = std::ptr::from_mut(from).cast();
    }
    // An IoSliceMut is an iovec.
    message.msg_iov = parts.as_mut_ptr().cast();
    message.msg_iovlen = parts.len();
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    // SAFETY: the message points to live buffers of the lengths given.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    let at_ns = mono_ns();
    if got < 0 { Err(io::Error::last_os_error()) } else { Ok((got.unsigned_abs(), at_ns, stamp(&message))) }
}

/// The kernel's time of arrival among the control messages, on CLOCK_MONOTONIC.
fn stamp(message: &libc::msghdr) -> Option<u64> {
    // SAFETY: the kernel filled `msg_control` up to `msg_controllen`; the macros stay inside of it.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(message);
        while let Some(header) = control.as_ref() {
            if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SO_TIMESTAMPING {
                let seen = libc::CMSG_DATA(header).cast::<libc::timespec>().read_unaligned();
                return to_monotonic(seen);
            }
            control = libc::CMSG_NXTHDR(message, header);
        }
    }
    None
}

/// Converts from CLOCK_REALTIME, by the present difference of both clocks.
fn to_monotonic(seen: libc::timespec) -> Option<u64> {
    let real = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let ns = |seconds: i64, ns: i64| i128::from(seconds) * 1_000_000_000 + i128::from(ns);
    let ago = ns(real.tv_sec, real.tv_nsec) - ns(seen.tv_sec, seen.tv_nsec);
    // Zero: the kernel did not stamp the packet.
    (seen.tv_sec != 0).then_some(())?;
    u64::try_from(i128::from(mono_ns()) - ago).ok()
}
