// SPDX-License-Identifier: Apache-2.0
//! Addresses of the other ends of connections, whether their bytes are the kernel's or not: a call that fails because its connection was ended
//! from outside (`SOCK_DESTROY`) says `ETIMEDOUT` if the other host is declared dead ([`fide_rack::dead`]).
//!
//! They are remembered, as the kernel knows them no more once a connection has ended so (`getpeername`: `ENOTCONN`). A descriptor that the
//! program has from another one, or from before it was begun, has none: its calls fail as the kernel says.
//!
//! What is remembered may be another socket's for a moment if the program closes a descriptor under its own calls: it only names an error.

use std::{
    env,
    ffi::{CStr, CString},
    mem,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::unix::ffi::OsStringExt,
    ptr,
    sync::{
        OnceLock,
        atomic::{AtomicPtr, AtomicU64, Ordering},
    },
};

use fide_rack::dead::{OF_HOST, is_dead};
use libc::{c_int, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t, ssize_t};

use crate::{
    conn::CONNS,
    real::{errno, fail},
    table::FDS_MAX,
};

/// The directory of the addresses of hosts that are dead; by default [`OF_HOST`].
const DIRECTORY: &str = "FIDE_RACK_DEAD";
const PAGE: usize = 1024;

/// An address as IPv6 has it; 0: none is known.
type Page = [[AtomicU64; 2]; PAGE];

static PAGES: [AtomicPtr<Page>; FDS_MAX / PAGE] = [const { AtomicPtr::new(ptr::null_mut()) }; FDS_MAX / PAGE];

fn directory() -> &'static CStr {
    static AT: OnceLock<Option<CString>> = OnceLock::new();
    let named = || CString::new(env::var_os(DIRECTORY).filter(|path| !path.is_empty())?.into_vec()).ok();
    AT.get_or_init(named).as_deref().unwrap_or(OF_HOST)
}

/// All is read before the program changes its environment.
pub(crate) fn starts() {
    directory();
}

/// The place of a descriptor, if its page is there.
fn place(fd: c_int) -> Option<&'static [AtomicU64; 2]> {
    let fd = usize::try_from(fd).ok()?;
    let page = PAGES.get(fd / PAGE)?.load(Ordering::Acquire);
    // SAFETY: a page that is there stays, and was whole before it was stored.
    Some(&(unsafe { page.as_ref() }?)[fd % PAGE])
}

fn made(fd: c_int) -> Option<&'static [AtomicU64; 2]> {
    let page = PAGES.get(usize::try_from(fd).ok()? / PAGE)?;
    if page.load(Ordering::Acquire).is_null() {
        let empty: Box<[_]> = (0..PAGE).map(|_| [const { AtomicU64::new(0) }; 2]).collect();
        let new = Box::into_raw(empty).cast::<Page>();
        if page.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: nobody has seen it.
            drop(unsafe { Box::from_raw(new) });
        }
    }
    place(fd)
}

fn put(fd: c_int, peer: Option<IpAddr>) {
    let Some(place) = (if peer.is_some() { made(fd) } else { place(fd) }) else { return };
    let address = match peer {
        None => 0,
        Some(IpAddr::V4(address)) => address.to_ipv6_mapped().to_bits(),
        Some(IpAddr::V6(address)) => address.to_bits(),
    };
    #[allow(clippy::cast_possible_truncation, reason = "its two halves")]
    let halves = [(address >> 64) as u64, address as u64];
    place.iter().zip(halves).for_each(|(word, half)| word.store(half, Ordering::Relaxed));
}

fn get(fd: c_int) -> Option<IpAddr> {
    let [high, low] = place(fd)?.each_ref().map(|word| word.load(Ordering::Relaxed));
    let address = u128::from(high) << 64 | u128::from(low);
    (address != 0).then(|| Ipv6Addr::from(address).to_canonical())
}

/// # Safety
/// So many bytes are there.
unsafe fn read(address: *const sockaddr, len: usize) -> Option<IpAddr> {
    if address.is_null() || len < size_of::<libc::sa_family_t>() {
        return None;
    }
    // SAFETY: the caller's; it may lie anywhere.
    let family = c_int::from(unsafe { (&raw const (*address).sa_family).read_unaligned() });
    match family {
        libc::AF_INET if len >= size_of::<sockaddr_in>() => {
            // SAFETY: as above.
            let address = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 if len >= mem::offset_of!(sockaddr_in6, sin6_scope_id) => {
            // SAFETY: as above.
            let octets = unsafe { (&raw const (*address.cast::<sockaddr_in6>()).sin6_addr.s6_addr).read_unaligned() };
            Some(Ipv6Addr::from(octets).into())
        }
        _ => None,
    }
}

/// A call of `connect`, and its result: the same, with the error that is to be said.
///
/// # Safety
/// The address is null, or so many bytes are there.
pub(crate) unsafe fn connected(fd: c_int, address: *const sockaddr, len: socklen_t, result: c_int) -> c_int {
    let why = if result == 0 { 0 } else { errno() };
    // With another error the bytes may not be there.
    if matches!(why, 0 | libc::EINPROGRESS | libc::EINTR | libc::ECONNABORTED) {
        // SAFETY: the caller's.
        put(fd, unsafe { read(address, len as usize) });
        if why == libc::ECONNABORTED {
            fails(fd);
        }
    }
    result
}

/// A descriptor that was accepted, and the address as the program was told it.
///
/// # Safety
/// Both are as the program has given them to `accept`.
pub(crate) unsafe fn accepted(fd: c_int, address: *const sockaddr, len: *const socklen_t, room: socklen_t) {
    if fd < 0 {
        return;
    }
    if !address.is_null() && !len.is_null() {
        // SAFETY: the caller's: the kernel has written as many as there was room for.
        return put(fd, unsafe { read(address, (*len).min(room) as usize) });
    }
    // SAFETY: of numbers.
    let mut peer: sockaddr_storage = unsafe { mem::zeroed() };
    let mut len = size_of::<sockaddr_storage>() as socklen_t;
    let before = errno();
    // SAFETY: both are there, and the length is that of the address.
    let result = unsafe { libc::getpeername(fd, (&raw mut peer).cast(), &raw mut len) };
    // SAFETY: it is there as a whole.
    put(fd, if result == 0 { unsafe { read((&raw const peer).cast(), len as usize) } } else { None });
    fail(before);
}

/// A descriptor has got another number, too.
pub(crate) fn dups(fd: c_int, to: c_int) {
    let peer = get(fd);
    if peer.is_some() || get(to).is_some() {
        put(to, peer);
    }
}

/// The descriptor is closed.
pub(crate) fn clears(fd: c_int) {
    if get(fd).is_some() {
        put(fd, None);
    }
}

/// So are all from one to another one.
pub(crate) fn clears_all(first: c_int, last: c_int) {
    let is_within = |fd: &c_int| (first..=last).contains(fd);
    let numbers = (0..PAGES.len()).filter(|page| !PAGES[*page].load(Ordering::Relaxed).is_null());
    let fds = numbers.flat_map(|page| page * PAGE..(page + 1) * PAGE).filter_map(|fd| c_int::try_from(fd).ok());
    fds.filter(is_within).for_each(clears);
}

/// The error that a call is to say, of one that a socket has told.
pub(crate) fn told(fd: c_int, errno: c_int) -> c_int {
    let is_ended = match errno {
        libc::ECONNABORTED => true,
        // So does a monitor end one that went over a link to the other host.
        libc::ECONNRESET => CONNS.get(fd).is_some_and(|conn| conn.end.is_carried()),
        _ => false,
    };
    if is_ended && get(fd).is_some_and(|peer| is_dead(directory(), peer)) { libc::ETIMEDOUT } else { errno }
}

fn fails(fd: c_int) {
    let errno = errno();
    fail(told(fd, errno));
}

/// The result of a call of the kernel's that reads or writes: the same, with the error that is to be said.
pub(crate) fn kernel(fd: c_int, result: ssize_t) -> ssize_t {
    if result < 0 {
        fails(fd);
    }
    result
}

/// As [`kernel`].
pub(crate) fn kernel_of(fd: c_int, result: c_int) -> c_int {
    if result < 0 {
        fails(fd);
    }
    result
}

#[cfg(test)]
mod tests {
    use std::{
        net::{TcpListener, TcpStream},
        os::fd::AsRawFd,
    };

    use super::*;

    /// Numbers that no other test has.
    const FDS: [c_int; 2] = [701_001, 701_002];

    #[test]
    fn addresses_are_kept_until_the_descriptor_is_closed() {
        let [fd, to] = FDS;
        assert_eq!((get(fd), get(-1), get(c_int::MAX)), (None, None, None));
        for address in ["10.0.0.2", "fd00::2"] {
            put(fd, Some(address.parse().unwrap()));
            dups(fd, to);
            clears(fd);
            assert_eq!((get(fd), get(to)), (None, Some(address.parse().unwrap())));
        }
        dups(fd, to);
        assert_eq!(get(to), None, "it is another socket");
        put(c_int::MAX, Some(Ipv4Addr::LOCALHOST.into()));
        FDS.into_iter().for_each(|fd| put(fd, Some(Ipv4Addr::LOCALHOST.into())));
        clears_all(to, c_int::MAX);
        assert_eq!(FDS.map(get), [Some(Ipv4Addr::LOCALHOST.into()), None]);
        clears(fd);
    }

    #[test]
    fn peer_of_an_accepted_connection_is_known_also_if_the_program_does_not_ask() {
        let listener = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
        let _here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let there = listener.accept().unwrap().0;
        // SAFETY: there is no address.
        unsafe { accepted(there.as_raw_fd(), ptr::null(), ptr::null(), 0) };
        assert_eq!(get(there.as_raw_fd()), Some(Ipv6Addr::LOCALHOST.into()));
        clears(there.as_raw_fd());
    }
}
