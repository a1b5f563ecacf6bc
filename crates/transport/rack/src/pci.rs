// SPDX-License-Identifier: Apache-2.0
//! A window between two hosts: memory of a PCI device that both map (NTSocks §4.1.2).
//!
//! | device | what the two ends map |
//! |---|---|
//! | one memory that both hosts see, such as `ivshmem` of two guests | the same: [`PciWindow::open`] gives each end a half |
//! | a non-transparent bridge (NTB) | its outbound memory, which is the other host's, and the inbound buffer: [`PciWindow::of_ntb`] |
//!
//! Both are files: of a device, `resourceN` in `/sys/bus/pci/devices/…`, or `resourceN_wc`, through which writes are combined into
//! fewer packets on the bus. A file of one host's memory that two programs map, as in
//! `/dev/shm`, does as well.
//!
//! Device memory is read and written by aligned words of eight bytes, and no other way. The kernel never copies from or to it
//! ([`Window::fill`] copies once more).
//!
//! Nobody can be woken through it: [`Window::sleep`] is a nap.
//!
//! **A device may go away while it is used**, and then the window is cut ([`PciWindow::is_cut`]): reads see zeros, and what is written goes
//! nowhere. It stays so; open another one. It takes two ways to find that out:
//!
//! | what happens | who notices |
//! |---|---|
//! | an access raises SIGBUS: a file was truncated, or a driver took the device's memory | a handler, which the first window installs |
//! | nothing: Linux since 5.12 leaves the mapping of a device that was removed. Reads see zeros or ones; once a device comes to the same address, it is that one's memory | [`PciWindow::is_current`], which looks whether the file is still the one that was mapped. Call it with each heartbeat |
//!
//! A device that is removed is to have no window, therefore: until `is_current` is called, writes may come to whatever is given its
//! addresses.
//!
//! **What was tested**: files of one host, and `ivshmem-plain` between two guests. The order of writes through a bridge, and
//! through write-combining memory, follows the processor's manual; no hardware was there to test it.

mod cut;
mod file;
#[cfg(test)]
mod tests;

use std::{
    fs::File,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use crate::window::{Bell, WORD, Window, load, store, words};
pub use cut::WINDOWS_MAX;
use file::Memory;
pub use file::PciError;

/// Bytes of the shortest part: a ring takes less, and no device has less.
pub const PART_MIN: usize = 1024;
/// The first nap, and the longest: each is twice as long as the one before, unless something was read or written meanwhile.
const NAPS: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(1)];
/// Naps until the longest one.
const NAPS_UNTIL_LONGEST: u32 = 5;

/// Which half of a memory an end writes. The two ends take different ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Writes the first half, and reads the second one.
    First,
    /// Writes the second half, and reads the first one.
    Second,
}

/// One end of a memory that two hosts share. See the [module](self).
#[derive(Debug)]
pub struct PciWindow {
    outbound: Part,
    inbound: Part,
    naps: AtomicU32,
}

/// Words of a memory.
#[derive(Debug)]
struct Part {
    memory: Arc<Memory>,
    /// Its first word, and how many it has.
    first: usize,
    count: usize,
}

impl Part {
    fn words(&self) -> &[AtomicU64] {
        &self.memory.words()[self.first..][..self.count]
    }
}

impl PciWindow {
    /// An end of a memory that both hosts see: all of the file, one half for each direction. Its length is a multiple of 16 bytes. A PCI
    /// device that is not enabled is enabled.
    ///
    /// # Errors
    /// [`PciError`].
    pub fn open(path: impl AsRef<Path>, side: Side) -> Result<Self, PciError> {
        Self::halves(Memory::open(path.as_ref(), 2)?, side)
    }

    /// As [`PciWindow::open`], of a file that is open for reading and writing. It has no path: [`PciWindow::is_current`] does not know
    /// whether it was removed.
    ///
    /// # Errors
    /// [`PciError`].
    pub fn of_file(file: File, side: Side) -> Result<Self, PciError> {
        Self::halves(Memory::of_file(file, 2)?, side)
    }

    fn halves(memory: Memory, side: Side) -> Result<Self, PciError> {
        let count = memory.len() / WORD / 2;
        let memory = Arc::new(memory);
        let half = |first| Part { memory: Arc::clone(&memory), first, count };
        let [outbound, inbound] = match side {
            Side::First => [half(0), half(count)],
            Side::Second => [half(count), half(0)],
        };
        Ok(Self { outbound, inbound, naps: AtomicU32::new(0) })
    }

    /// An end of a non-transparent bridge. `outbound`: the file of its memory, what is written to which comes to the other host.
    /// `inbound`: the file of this host's buffer, into which the bridge puts what the other host writes. The four lengths at both hosts
    /// are the same, a multiple of 8 bytes.
    ///
    /// It was tested with files of one host, and not with a bridge.
    ///
    /// # Errors
    /// [`PciError`].
    pub fn of_ntb(outbound: impl AsRef<Path>, inbound: impl AsRef<Path>) -> Result<Self, PciError> {
        let (outbound, inbound) = (Memory::open(outbound.as_ref(), 1)?, Memory::open(inbound.as_ref(), 1)?);
        if outbound.len() != inbound.len() {
            return Err(PciError::Differ { outbound: outbound.len(), inbound: inbound.len() });
        }
        let part = |memory: Memory| Part { first: 0, count: memory.len() / WORD, memory: Arc::new(memory) };
        Ok(Self { outbound: part(outbound), inbound: part(inbound), naps: AtomicU32::new(0) })
    }

    /// Whether an access has found that the memory is gone. Ask after a read, and before its bytes are believed: some of them may be
    /// zeros that nobody has written.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.outbound.memory.is_cut() || self.inbound.memory.is_cut()
    }

    /// Whether it is not cut, and its files are still where they were opened: if they are not, it is cut. It takes a system call or two:
    /// call it every few milliseconds.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.outbound.memory.is_current() & self.inbound.memory.is_current()
    }

    /// Something was read or written: the next nap is short.
    fn is_used(&self) {
        if self.naps.load(Ordering::Relaxed) != 0 {
            self.naps.store(0, Ordering::Relaxed);
        }
    }
}

impl Window for PciWindow {
    fn len(&self) -> usize {
        self.outbound.count * WORD
    }

    /// As [`PciWindow::is_current`] has it.
    fn is_cut(&self) -> bool {
        !self.is_current()
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        self.is_used();
        store(words(self.outbound.words(), at, bytes.len()), bytes);
    }

    fn publish(&self, at: usize, word: u64) {
        let place = &words(self.outbound.words(), at, WORD)[0];
        written_before();
        place.store(word, Ordering::Release);
        // It leaves now, and not when other writes push it out.
        written_before();
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        self.is_used();
        load(words(self.inbound.words(), at, into.len()), into);
    }

    fn poll(&self, at: usize) -> u64 {
        let word = words(self.inbound.words(), at, WORD)[0].load(Ordering::Acquire);
        read_before();
        word
    }

    /// Nobody could wake it.
    fn will_sleep(&self, _: Bell, _: u32) {}

    /// Nobody is known to sleep.
    fn sleeper(&self, _: Bell) -> u32 {
        0
    }

    /// A nap of a millisecond at most (and what the kernel adds), whatever happens at the other end.
    fn sleep(&self, _: Bell, within: Option<Duration>) {
        let naps = self.naps.load(Ordering::Relaxed).min(NAPS_UNTIL_LONGEST);
        self.naps.store(naps + 1, Ordering::Relaxed);
        let nap = (NAPS[0] * (1 << naps)).min(NAPS[1]);
        thread::sleep(within.map_or(nap, |within| within.min(nap)));
    }

    /// Nobody could be woken.
    fn ring(&self, _: Bell) {}
}

/// All that was written before comes to the memory before all that is written after.
///
/// Stores of x86-64 are in order but for those to write-combining memory, which wait in buffers for others to the same cache line. The
/// language knows no such memory.
#[inline]
fn written_before() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE, which has it, is a part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier, which changes nothing. The language's own ones are for processors only, and not for devices.
    unsafe {
        std::arch::asm!("dmb oshst", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    std::sync::atomic::fence(Ordering::SeqCst);
}

/// All that is read after is read later than what was read before. Write-combining memory may be read out of order also by x86-64.
#[inline]
fn read_before() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE2, which has it, is a part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_lfence();
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as in `written_before`.
    unsafe {
        std::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    std::sync::atomic::fence(Ordering::SeqCst);
}
