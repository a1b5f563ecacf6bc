// SPDX-License-Identifier: Apache-2.0
//! Memory of this library's own, and not of the C library's allocator: a handler of a signal that has interrupted that one may read from,
//! write to and close a connection, all of which may take and give memory here.
//!
//! Pieces that are free are in lists by their length, each of which is changed in one step: a handler, another thread or the child of a fork
//! finds them whole at any time. What was once taken from the kernel for them is kept.

use std::{
    alloc::{GlobalAlloc, Layout},
    ptr,
    sync::atomic::{AtomicU64, Ordering},
};

/// Bytes of the shortest pieces, and kinds of pieces: each is twice as long as the one before.
const SHORTEST: usize = 16;
const KINDS: usize = 17;
/// Longer ones are the kernel's, each by itself.
const LONGEST: usize = SHORTEST << (KINDS - 1);
/// Bytes that are taken from the kernel at once for short ones.
const AT_ONCE: usize = 64 << 10;
/// The kernel's pages have so many bytes at least, and begin at multiples of that.
const PAGE: usize = 4096;
/// Of the head of a list: where the first piece is. The others count its changes, so that one who was interrupted sees them.
const ADDRESS: u64 = (1 << 48) - 1;
const CHANGE: u64 = 1 << 48;

pub(crate) struct Memory {
    free: [AtomicU64; KINDS],
}

/// Bytes of the piece that is taken for so much; none: the kernel gives no memory that is aligned so.
fn length(layout: Layout) -> Option<usize> {
    let length = layout.size().max(layout.align()).max(SHORTEST).checked_next_power_of_two();
    length.filter(|_| layout.align() <= PAGE)
}

/// A new piece of memory, or null.
fn from_kernel(length: usize) -> *mut u8 {
    let (may, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: at no address that anybody has.
    let at = unsafe { libc::mmap(ptr::null_mut(), length, may, kind, -1, 0) };
    if at == libc::MAP_FAILED { ptr::null_mut() } else { at.cast() }
}

/// The first word of a piece that is free, or was so a moment ago: where the next one is.
fn next_of(piece: u64) -> &'static AtomicU64 {
    let at = ptr::with_exposed_provenance::<AtomicU64>(usize::try_from(piece).unwrap_or(0));
    // SAFETY: pieces of the lists are at least as long, aligned to that, and never given back to the kernel. Where this one was taken
    // meanwhile the word is its owner's: it is read in vain, as the list has changed since.
    unsafe { &*at }
}

impl Memory {
    pub(crate) const fn new() -> Self {
        Self { free: [const { AtomicU64::new(0) }; KINDS] }
    }

    fn list(&self, length: usize) -> &AtomicU64 {
        &self.free[(length / SHORTEST).ilog2() as usize % KINDS]
    }

    fn takes(&self, length: usize) -> *mut u8 {
        let list = self.list(length);
        let mut head = list.load(Ordering::Acquire);
        loop {
            let first = head & ADDRESS;
            if first == 0 {
                return self.more(length);
            }
            let after = next_of(first).load(Ordering::Relaxed) & ADDRESS | (head & !ADDRESS).wrapping_add(CHANGE);
            match list.compare_exchange_weak(head, after, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return ptr::with_exposed_provenance_mut(usize::try_from(first).unwrap_or(0)),
                Err(now) => head = now,
            }
        }
    }

    /// Pieces from one to another one, which are linked, are free.
    fn puts(&self, length: usize, [first, last]: [u64; 2]) {
        let list = self.list(length);
        let mut head = list.load(Ordering::Relaxed);
        loop {
            next_of(last).store(head & ADDRESS, Ordering::Relaxed);
            let after = first | (head & !ADDRESS).wrapping_add(CHANGE);
            match list.compare_exchange_weak(head, after, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// A piece of what is taken from the kernel; the others are free.
    fn more(&self, length: usize) -> *mut u8 {
        let all = length.max(AT_ONCE);
        let piece = from_kernel(all);
        if piece.is_null() {
            return piece;
        }
        let (begin, step) = (piece.expose_provenance() as u64, length as u64);
        let others = all as u64 / step - 1;
        for number in 1..others {
            next_of(begin + number * step).store(begin + (number + 1) * step, Ordering::Relaxed);
        }
        if others > 0 {
            self.puts(length, [begin + step, begin + others * step]);
        }
        piece
    }
}

// SAFETY: a piece is at least as long and aligned as it is to be, as all begin at multiples of their length or of a page's, and is given to
// one at a time.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match length(layout) {
            None => ptr::null_mut(),
            Some(length) if length > LONGEST => from_kernel(length),
            Some(length) => self.takes(length),
        }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        match length(layout) {
            None => {}
            // SAFETY: the caller's: it came from the kernel, with this length, and nobody has it any more.
            Some(length) if length > LONGEST => _ = unsafe { libc::munmap(at.cast(), length) },
            Some(length) => self.puts(length, [at.expose_provenance() as u64; 2]),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Each piece is one's own as long as one has it, whoever else takes and gives meanwhile.
    #[test]
    fn pieces_are_apart_and_taken_again() {
        let memory = &Memory::new();
        let sizes = [1, 8, 16, 17, 100, 4096, 5000, 70_000, LONGEST, LONGEST + 1];
        thread::scope(|threads| {
            for seed in 1..=4_u8 {
                threads.spawn(move || {
                    let mut kept: Vec<(*mut u8, Layout, u8)> = Vec::new();
                    for turn in 0..20_000_usize {
                        let number = turn.wrapping_mul(31).wrapping_add(usize::from(seed) * 7);
                        let big = turn.is_multiple_of(100);
                        let size = if big { sizes[number / 100 % sizes.len()] } else { 1 + number % 200 };
                        let layout = Layout::from_size_align(size, 1 << (number % 7)).unwrap();
                        // SAFETY: of a length that is not 0.
                        let at = unsafe { memory.alloc(layout) };
                        assert!(!at.is_null() && at.addr().is_multiple_of(layout.align()));
                        let mark = (turn as u8).wrapping_mul(seed) ^ seed;
                        // SAFETY: so many bytes are there.
                        unsafe { ptr::write_bytes(at, mark, size) };
                        kept.push((at, layout, mark));
                        if kept.len() > 50 {
                            let (at, layout, mark) = kept.swap_remove(number % 50);
                            // SAFETY: it was written so, and is given once.
                            let is_own = unsafe { std::slice::from_raw_parts(at, layout.size()) };
                            assert!(is_own.iter().all(|byte| *byte == mark));
                            // SAFETY: as above.
                            unsafe { memory.dealloc(at, layout) };
                        }
                    }
                });
            }
        });
        let layout = Layout::from_size_align(40, 8).unwrap();
        // SAFETY: of a length that is not 0, and given back as it was taken.
        let twice = [0, 1].map(|_| unsafe {
            let at = memory.alloc(layout);
            memory.dealloc(at, layout);
            at
        });
        assert_eq!(twice[0], twice[1]);
        assert!(length(Layout::from_size_align(8, 2 * PAGE).unwrap()).is_none());
    }
}
