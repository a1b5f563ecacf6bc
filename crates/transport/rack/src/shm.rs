// SPDX-License-Identifier: Apache-2.0
//! A window between two programs of one host: a sealed memfd, one half of it for each.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering, fence},
    },
    time::Duration,
};

use fide_shm::region::{Mapped, Region, RegionError, Shared};
use rustix::{event::Timespec, thread::futex};

use crate::window::{Bell, Drain, Fill, WORD, Window, load, store, words};

/// What both ends map. `WORDS`: of each part.
#[repr(C)]
struct Memory<const WORDS: usize> {
    ends: [Part<WORDS>; 2],
}

/// What one end reads and the other one writes. Bell and sleeper are not in one cache line with the words, nor with each
/// other: those who write them are two.
#[repr(C, align(128))]
struct Part<const WORDS: usize> {
    /// Of this end, by [`Bell`]: 1 if one has rung since somebody slept by it last.
    bells: [Line<AtomicU32>; 2],
    /// Not 0: a thread of the other end sleeps by that bell, or is about to; the number of that sleep.
    sleepers: [Line<AtomicU32>; 2],
    words: [AtomicU64; WORDS],
}

#[repr(C, align(128))]
struct Line<T>(T);

// SAFETY: only atomics and padding; aligned to 128 bytes.
unsafe impl<const WORDS: usize> Shared for Memory<WORDS> {}

/// Where the words of both parts begin in the memory, in bytes, for those who look at it from outside. The first of each says how much of
/// what its end has sent was read, with headers, and lags by a ring at most ([`crate::stream`]).
#[must_use]
pub const fn words_at<const WORDS: usize>() -> [usize; 2] {
    let words = std::mem::offset_of!(Part<WORDS>, words);
    [words, size_of::<Part<WORDS>>() + words]
}

/// One end of a shared memory of `WORDS` words for each direction.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub struct ShmWindow<const WORDS: usize> {
    memory: Arc<Mapped<Memory<WORDS>>>,
    /// Which part is this end's own.
    end: usize,
    /// Its ends wake each other by other means.
    is_silent: bool,
}

impl<const WORDS: usize> ShmWindow<WORDS> {
    /// Both ends of a new one, for two threads, or for a process that hands the descriptor of one to another process.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn pair() -> Result<[Self; 2], RegionError> {
        Ok(Self::pair_and_descriptor()?.0)
    }

    /// As [`ShmWindow::pair`], with the descriptor by which another process opens an end.
    ///
    /// # Errors
    /// As [`ShmWindow::pair`].
    pub fn pair_and_descriptor() -> Result<([Self; 2], OwnedFd), RegionError> {
        let descriptor = Region::<Memory<WORDS>>::create("fide-rack")?.into_descriptor();
        let memory = Arc::new(Mapped::map(descriptor.as_fd())?);
        Ok(([0, 1].map(|end| Self { memory: Arc::clone(&memory), end, is_silent: false }), descriptor))
    }

    /// An end of one that another process has made. `is_maker`: as its maker. The descriptor is not kept.
    ///
    /// # Errors
    /// [`RegionError`]: the descriptor is no memory of this size that is sealed against shrinking.
    pub fn open(descriptor: impl AsFd, is_maker: bool) -> Result<Self, RegionError> {
        Ok(Self { memory: Arc::new(Mapped::map(descriptor.as_fd())?), end: usize::from(!is_maker), is_silent: false })
    }

    /// For ends that do not sleep by [`Window::sleep`]: [`Window::ring`] does nothing.
    #[must_use]
    pub fn silent(self) -> Self {
        Self { is_silent: true, ..self }
    }

    fn own(&self) -> &Part<WORDS> {
        &self.memory.get().ends[self.end]
    }

    fn other(&self) -> &Part<WORDS> {
        &self.memory.get().ends[1 - self.end]
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX), tv_nsec: time.subsec_nanos().into() }
}

impl<const WORDS: usize> Window for ShmWindow<WORDS> {
    fn len(&self) -> usize {
        WORDS * WORD
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        store(words(&self.other().words, at, bytes.len()), bytes);
    }

    fn fill(&self, at: usize, len: usize, fill: &mut Fill<'_>) -> io::Result<usize> {
        // Atomics may be written through what is shared.
        let place = words(&self.other().words, at, len).as_ptr().cast_mut().cast();
        Ok(fill(place, len)?.min(len))
    }

    fn words_there(&self, at: usize, len: usize) -> Option<&[AtomicU64]> {
        Some(words(&self.other().words, at, len))
    }

    fn words_here(&self, at: usize, len: usize) -> Option<&[AtomicU64]> {
        Some(words(&self.own().words, at, len))
    }

    fn publish(&self, at: usize, word: u64) {
        words(&self.other().words, at, WORD)[0].store(word, Ordering::Release);
    }

    fn adds(&self, at: usize, more: u64) {
        words(&self.other().words, at, WORD)[0].fetch_add(more, Ordering::SeqCst);
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        load(words(&self.own().words, at, into.len()), into);
    }

    fn drain(&self, at: usize, len: usize, drain: &mut Drain<'_>) -> io::Result<usize> {
        let before = at % WORD;
        let words = words(&self.own().words, at - before, before + len);
        // Within them: they hold so many bytes.
        Ok(drain(words.as_ptr().cast::<u8>().wrapping_add(before), len)?.min(len))
    }

    fn poll(&self, at: usize) -> u64 {
        words(&self.own().words, at, WORD)[0].load(Ordering::Acquire)
    }

    fn will_sleep(&self, by: Bell, turn: u32) {
        self.other().sleepers[by as usize].0.store(turn, Ordering::Relaxed);
        if turn != 0 {
            // Either this end sees what was published, or the other one sees that it sleeps.
            fence(Ordering::SeqCst);
        }
    }

    fn sleeps_no_more(&self, by: Bell, up_to: u32) {
        let word = &self.other().sleepers[by as usize].0;
        let turn = word.load(Ordering::Relaxed);
        // Numbers wrap.
        let is_newer = turn.wrapping_sub(up_to).wrapping_sub(1) < u32::MAX / 2;
        if turn != 0 && !is_newer {
            let _ = word.compare_exchange(turn, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    fn sleeper(&self, bell: Bell) -> u32 {
        fence(Ordering::SeqCst);
        self.own().sleepers[bell as usize].0.load(Ordering::Relaxed)
    }

    fn sleep(&self, by: Bell, within: Option<Duration>) {
        let bell = &self.own().bells[by as usize].0;
        if bell.swap(0, Ordering::Acquire) != 0 {
            return;
        }
        let timeout = within.map(timespec);
        // A signal, the time, or a bell that has rung meanwhile: the caller looks again.
        let _ = futex::wait(bell, futex::Flags::empty(), 0, timeout.as_ref());
    }

    fn ring(&self, bell: Bell) {
        if self.is_silent || self.sleeper(bell) == 0 {
            return;
        }
        let bell = &self.other().bells[bell as usize].0;
        if bell.swap(1, Ordering::Release) == 0 {
            // One thread sleeps there at most.
            let _ = futex::wake(bell, futex::Flags::empty(), 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, os::fd::AsRawFd};

    use rustix::{
        fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create},
        io::Errno,
    };

    use super::*;
    use crate::stream::halves;

    const WORDS: usize = 1024;
    const LEN: u64 = size_of::<Memory<WORDS>>() as u64;

    /// Whoever has the memory may punch holes into it, which is as if zeros were written, and can neither cut it nor seal it further.
    #[test]
    fn memory_can_be_cut_by_nobody() {
        let ([here, there], descriptor) = ShmWindow::<WORDS>::pair_and_descriptor().unwrap();
        for len in [0, 4096, LEN - 1, LEN + 1] {
            assert_eq!(ftruncate(&descriptor, len), Err(Errno::PERM));
        }
        for seal in [SealFlags::WRITE, SealFlags::FUTURE_WRITE] {
            assert!(fcntl_add_seals(&descriptor, seal).is_err());
        }
        let ((mut reads, _), (_, mut writes)) = (halves(here), halves(there));
        writes.write_all(&[7; 1000]).unwrap();
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&descriptor, punch, 0, LEN).unwrap();
        reads.set_timeout(Some(Duration::from_millis(1)));
        assert!(std::io::Read::read(&mut reads, &mut [0; 8]).is_err());
        assert!(writes.write_all(&[7; 1000]).is_ok());
        // Also by its name in /proc.
        let by_name = std::fs::OpenOptions::new().write(true).open(format!("/proc/self/fd/{}", descriptor.as_raw_fd()));
        assert_eq!(ftruncate(by_name.unwrap(), 0), Err(Errno::PERM));
    }

    #[test]
    fn memory_that_could_be_cut_or_is_too_short_is_refused() {
        let open = |len, seals| {
            let descriptor = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
            ftruncate(&descriptor, len).unwrap();
            fcntl_add_seals(&descriptor, seals).unwrap();
            ShmWindow::<WORDS>::open(descriptor, false).map(drop)
        };
        assert!(open(LEN, SealFlags::SHRINK | SealFlags::GROW).is_ok());
        for seals in [SealFlags::empty(), SealFlags::GROW, SealFlags::SHRINK] {
            assert!(matches!(open(LEN, seals), Err(RegionError::NotSealed)), "{seals:?}");
        }
        for len in [0, LEN - 1, LEN + 1] {
            assert!(matches!(open(len, SealFlags::SHRINK | SealFlags::GROW), Err(RegionError::Size { .. })), "{len}");
        }
        let file = tempfile::tempfile().unwrap();
        file.set_len(LEN).unwrap();
        assert!(matches!(ShmWindow::<WORDS>::open(file, false), Err(RegionError::NotSealed)));
    }
}
