// SPDX-License-Identifier: Apache-2.0
//! User-space reader of a BPF ring buffer map, given only its file descriptor: no BPF library and no privilege needed.
//!
//! The kernel's layout: a page with the consumer's position (ours to write), a page with the producer's, then the data
//! mapped twice in a row so that no record ever wraps. A record is a 32-bit length with a busy and a discard bit, 32
//! bits of the kernel's, and the bytes, padded to 8.

use crate::region::{Mapping, RegionError};
use rustix::{fd::BorrowedFd, io::Errno};
use std::{
    os::fd::AsRawFd,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

const BUSY: u32 = 1 << 31;
const DISCARD: u32 = 1 << 30;
const HEADER: u64 = 8;

/// Why a BPF ring buffer cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BpfRingError {
    /// The size is none that a ring buffer can have.
    #[error("a BPF ring buffer has a power of two of whole pages ({page} bytes); {size} is not")]
    Size {
        /// Size given.
        size: u64,
        /// Page size here.
        page: u64,
    },
    /// The descriptor does not say what it is.
    #[error("cannot learn the size of the ring buffer: {0}")]
    Unknown(String),
    /// It cannot be mapped.
    #[error(transparent)]
    Map(#[from] RegionError),
    /// A record is longer than what is there (the kernel would not do that).
    #[error("BPF ring buffer record of {len} bytes, {available} are there")]
    Length {
        /// Length in the record's header.
        len: u64,
        /// Bytes between the positions.
        available: u64,
    },
}

/// The consuming end of one ring buffer map. There must be one consumer only.
#[derive(Debug)]
pub struct BpfRing {
    consumer_page: Mapping,
    producer_pages: Mapping,
    page: usize,
    mask: u64,
    position: u64,
}

impl BpfRing {
    /// Maps the ring buffer `fd` of `size` bytes (the map's `max_entries`), continuing where the last consumer stopped.
    ///
    /// # Errors
    /// [`BpfRingError::Size`], [`BpfRingError::Map`].
    pub fn map(fd: BorrowedFd<'_>, size: u32) -> Result<Self, BpfRingError> {
        let page = rustix::param::page_size();
        if !size.is_power_of_two() || (size as usize) < page {
            return Err(BpfRingError::Size { size: size.into(), page: page as u64 });
        }
        let consumer_page = Mapping::new(fd, 0, page, true)?;
        let producer_pages = Mapping::new(fd, page as u64, page + 2 * size as usize, false)?;
        let mut ring = Self { consumer_page, producer_pages, page, mask: u64::from(size) - 1, position: 0 };
        ring.position = ring.consumer().load(Ordering::Acquire);
        Ok(ring)
    }

    /// As [`BpfRing::map`], with the size as the kernel tells it of `fd` in `/proc/self/fdinfo`.
    ///
    /// # Errors
    /// [`BpfRingError::Unknown`] if `fd` is no BPF ring buffer map, or as `map`.
    pub fn open(fd: BorrowedFd<'_>) -> Result<Self, BpfRingError> {
        const RINGBUF_TYPE: u64 = 27;
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))
            .map_err(|error| BpfRingError::Unknown(format!("/proc/self/fdinfo: {error}")))?;
        let field = |name: &str| {
            info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse::<u64>().ok())
        };
        match (field("map_type"), field("max_entries")) {
            (Some(RINGBUF_TYPE), Some(size)) => {
                let size = u32::try_from(size).map_err(|_| BpfRingError::Size { size, page: 0 })?;
                Self::map(fd, size)
            }
            (Some(other), _) => Err(BpfRingError::Unknown(format!("BPF map type {other}, 27 is a ring buffer"))),
            _ => Err(BpfRingError::Unknown(Errno::BADF.to_string() + ", not a BPF map")),
        }
    }

    fn consumer(&self) -> &AtomicU64 {
        // SAFETY: the first word of a page-aligned writable mapping, alive as long as self.
        unsafe { &*self.consumer_page.as_ptr().cast::<AtomicU64>() }
    }

    fn producer(&self) -> &AtomicU64 {
        // SAFETY: the first word of a page-aligned mapping, alive as long as self; only loaded from.
        unsafe { &*self.producer_pages.as_ptr().cast::<AtomicU64>() }
    }

    /// Whether anything was reserved that is not consumed. What a spinning reader polls: one load.
    pub fn is_empty(&self) -> bool {
        self.producer().load(Ordering::Acquire) == self.position
    }

    /// Hands at most `limit` records to `each`, oldest first, and frees their place; how many there were. Discarded
    /// records are skipped but count towards the limit; a record still being written ends the call.
    ///
    /// # Errors
    /// [`BpfRingError::Length`].
    pub fn drain(&mut self, limit: usize, mut each: impl FnMut(&[u8])) -> Result<usize, BpfRingError> {
        let produced = self.producer().load(Ordering::Acquire);
        let mut records = 0;
        for _ in 0..limit {
            let available = produced.wrapping_sub(self.position);
            if available == 0 {
                break;
            }
            // SAFETY: the data starts one page into the mapping and is mapped twice, so that an offset below the size
            // is followed by at least `size` readable bytes. The kernel does not write to a committed record before
            // the consumer's position, which only this value moves, has passed it.
            let step = unsafe {
                let data = self.producer_pages.as_ptr().add(self.page);
                walk(data.add((self.position & self.mask) as usize), available.min(self.mask + 1), &mut each)
            }?;
            match step {
                Step::Busy => break,
                Step::Record(bytes) => {
                    records += 1;
                    self.advance(bytes);
                }
                Step::Discarded(bytes) => self.advance(bytes),
            }
        }
        Ok(records)
    }

    fn advance(&mut self, bytes: u64) {
        self.position = self.position.wrapping_add(bytes);
        self.consumer().store(self.position, Ordering::Release);
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Step {
    Busy,
    Record(u64),
    Discarded(u64),
}

/// Looks at the record at `at`, of which `available` bytes are produced.
///
/// # Safety
/// `at` is 8-byte aligned and `available` bytes (at least 8) from it on are readable; they do not change once the busy
/// bit is seen clear.
unsafe fn walk(at: *const u8, available: u64, each: &mut impl FnMut(&[u8])) -> Result<Step, BpfRingError> {
    // SAFETY: aligned and readable by the contract; the kernel commits a record with an atomic exchange of this word.
    let header = unsafe { &*at.cast::<AtomicU32>() }.load(Ordering::Acquire);
    if header & BUSY != 0 {
        return Ok(Step::Busy);
    }
    let len = u64::from(header & !(BUSY | DISCARD));
    let total = (len + HEADER).next_multiple_of(8);
    if total > available {
        return Err(BpfRingError::Length { len, available });
    }
    if header & DISCARD != 0 {
        return Ok(Step::Discarded(total));
    }
    // SAFETY: 8 + len bytes are readable and no longer change, by the contract and the check above.
    each(unsafe { std::slice::from_raw_parts(at.add(HEADER as usize), len as usize) });
    Ok(Step::Record(total))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::{AsFd, FromRawFd, OwnedFd};

    fn look(words: &[u64]) -> (Result<Step, BpfRingError>, Vec<u8>) {
        let mut seen = Vec::new();
        // SAFETY: the words are aligned, readable and nobody writes them.
        let step = unsafe { walk(words.as_ptr().cast(), words.len() as u64 * 8, &mut |r: &[u8]| seen.extend(r)) };
        (step, seen)
    }

    #[test]
    fn records_are_walked_by_their_header() {
        let (step, seen) = look(&[5, u64::from_le_bytes(*b"hello...")]);
        assert_eq!((step.unwrap(), &seen[..]), (Step::Record(16), &b"hello"[..]));
        assert_eq!(look(&[u64::from(BUSY | 5), 0]).0.unwrap(), Step::Busy);
        assert_eq!(look(&[u64::from(DISCARD | 9), 0, 0]).0.unwrap(), Step::Discarded(24));
        assert_eq!(look(&[0]).0.unwrap(), Step::Record(8));
        assert!(matches!(look(&[17, 0, 0]).0, Err(BpfRingError::Length { len: 17, available: 24 })));
    }

    /// A ring over a plain memfd with the kernel's layout (the data once only, so nothing may wrap).
    #[test]
    fn draining_is_bounded_and_frees_what_it_took() {
        let page = rustix::param::page_size();
        let fd = rustix::fs::memfd_create("ring", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, (page * 4) as u64).unwrap();
        let writer = Mapping::new(fd.as_fd(), 0, page * 4, true).unwrap();
        let put = |offset: usize, word: u64| {
            // SAFETY: the offset is an aligned one within the four mapped pages.
            unsafe { &*writer.as_ptr().add(offset).cast::<AtomicU64>() }.store(word, Ordering::Release);
        };
        let mut ring = BpfRing::map(fd.as_fd(), page as u32).unwrap();
        assert!(ring.is_empty());
        for i in 0..3 {
            put(2 * page + i * 16, 8);
            put(2 * page + i * 16 + 8, i as u64);
        }
        put(2 * page + 16, u64::from(DISCARD | 8));
        put(2 * page + 48, u64::from(BUSY | 8));
        put(page, 64);
        assert!(!ring.is_empty());
        let mut seen = Vec::new();
        assert_eq!(ring.drain(1, |r| seen.push(r[0])).unwrap(), 1);
        assert_eq!(ring.consumer().load(Ordering::Relaxed), 16);
        assert_eq!(ring.drain(10, |r| seen.push(r[0])).unwrap(), 1);
        assert_eq!(seen, [0, 2]);
        assert_eq!(ring.consumer().load(Ordering::Relaxed), 48, "stops before the busy record");
        drop(ring);
        let mut next = BpfRing::map(fd.as_fd(), page as u32).unwrap();
        put(2 * page + 48, 8);
        assert_eq!(next.drain(10, |_| ()).unwrap(), 1, "the next consumer goes on there");
        assert!(next.is_empty());
    }

    #[test]
    fn wrong_sizes_and_descriptors_are_explained() {
        let null = std::fs::File::open("/dev/null").unwrap();
        for size in [0, 1, 4097, 12 << 10] {
            assert!(matches!(BpfRing::map(null.as_fd(), size), Err(BpfRingError::Size { .. })));
        }
        let error = BpfRing::open(null.as_fd()).unwrap_err().to_string();
        assert!(error.contains("not a BPF map"), "{error}");
    }

    /// Maps a real map if the kernel lets this user make one.
    #[test]
    fn root_a_real_map_is_mapped_and_empty() {
        let mut attr = [0u32; 32];
        (attr[0], attr[3]) = (27, 64 << 10);
        // SAFETY: BPF_MAP_CREATE reads the given, zero-padded attribute and returns a descriptor.
        let raw = unsafe { libc::syscall(libc::SYS_bpf, 0, attr.as_ptr(), 72) };
        if raw < 0 {
            eprintln!("skipped: making a BPF map is not permitted here");
            return;
        }
        // SAFETY: a new descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(raw as i32) };
        let mut ring = BpfRing::open(fd.as_fd()).unwrap();
        assert!(ring.is_empty());
        assert_eq!(ring.drain(10, |_| ()).unwrap(), 0);
        assert!(BpfRing::map(fd.as_fd(), 128 << 10).is_err(), "a size beyond the map's is refused by the kernel");
    }
}
