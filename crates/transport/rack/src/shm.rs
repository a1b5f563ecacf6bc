// SPDX-License-Identifier: Apache-2.0
//! A window between two programs of one host: a sealed memfd, one half of it for each.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering, fence},
    },
    time::Duration,
};

use fide_shm::region::{Region, RegionError, Shared};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    thread::futex,
};

use crate::{
    carry::Polled,
    window::{Bell, WORD, Window},
};

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
    /// Not 0: a thread of the other end sleeps by that bell, or is about to.
    sleepers: [Line<AtomicU32>; 2],
    words: [AtomicU64; WORDS],
}

#[repr(C, align(128))]
struct Line<T>(T);

// SAFETY: only atomics and padding; aligned to 128 bytes.
unsafe impl<const WORDS: usize> Shared for Memory<WORDS> {}

/// One end of a shared memory of `WORDS` words for each direction.
#[derive(Debug)]
pub struct ShmWindow<const WORDS: usize> {
    memory: Arc<Region<Memory<WORDS>>>,
    /// Which part is this end's own.
    end: usize,
    /// For ends that sleep by a poll; else by a futex.
    bells: Option<Bells>,
}

/// Event counters by which two ends wake each other, for each [`Bell`]: this end's own, and the other one's.
#[derive(Debug)]
pub struct Bells {
    pub own: [OwnedFd; 2],
    pub other: [OwnedFd; 2],
}

impl Bells {
    /// Those of both ends.
    ///
    /// # Errors
    /// The kernel's.
    pub fn pair() -> io::Result<[Self; 2]> {
        let bell = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let own = [bell()?, bell()?];
        let other = [bell()?, bell()?];
        let twin = |bells: &[OwnedFd; 2]| Ok::<_, io::Error>([bells[0].try_clone()?, bells[1].try_clone()?]);
        let first = Self { own: twin(&own)?, other: twin(&other)? };
        Ok([first, Self { own: other, other: own }])
    }
}

impl<const WORDS: usize> ShmWindow<WORDS> {
    /// Both ends of a new one, for two threads, or for a process that hands the descriptor of one to another process.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn pair() -> Result<[Self; 2], RegionError> {
        let memory = Arc::new(Region::create("fide-rack")?);
        Ok([0, 1].map(|end| Self { memory: Arc::clone(&memory), end, bells: None }))
    }

    /// An end of one that another process has made. `is_maker`: as its maker.
    ///
    /// # Errors
    /// [`RegionError`]: the descriptor is no memory of this size that is sealed against shrinking.
    pub fn open(descriptor: OwnedFd, is_maker: bool) -> Result<Self, RegionError> {
        Ok(Self { memory: Arc::new(Region::map(descriptor)?), end: usize::from(!is_maker), bells: None })
    }

    /// Both ends have bells, or neither.
    #[must_use]
    pub fn with_bells(self, bells: Bells) -> Self {
        Self { bells: Some(bells), ..self }
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

impl<const WORDS: usize> AsFd for ShmWindow<WORDS> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

/// The words that hold so many bytes from an offset on.
fn words(of: &[AtomicU64], at: usize, len: usize) -> &[AtomicU64] {
    assert!(at.is_multiple_of(WORD), "{at} is not the offset of a word");
    &of[at / WORD..][..len.div_ceil(WORD)]
}

impl<const WORDS: usize> Window for ShmWindow<WORDS> {
    fn len(&self) -> usize {
        WORDS * WORD
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        let into = words(&self.other().words, at, bytes.len());
        let (whole, rest) = bytes.as_chunks::<WORD>();
        for (word, bytes) in into.iter().zip(whole) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        if let Some(word) = into.get(whole.len()) {
            let mut last = [0; WORD];
            last[..rest.len()].copy_from_slice(rest);
            word.store(u64::from_ne_bytes(last), Ordering::Relaxed);
        }
    }

    fn publish(&self, at: usize, word: u64) {
        words(&self.other().words, at, WORD)[0].store(word, Ordering::Release);
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        let from = words(&self.own().words, at, into.len());
        let (whole, rest) = into.as_chunks_mut::<WORD>();
        let count = whole.len();
        for (bytes, word) in whole.iter_mut().zip(from) {
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        if let Some(word) = from.get(count) {
            let last = word.load(Ordering::Relaxed).to_ne_bytes();
            rest.copy_from_slice(&last[..rest.len()]);
        }
    }

    fn poll(&self, at: usize) -> u64 {
        words(&self.own().words, at, WORD)[0].load(Ordering::Acquire)
    }

    fn will_sleep(&self, by: Bell, sleeps: bool) {
        self.other().sleepers[by as usize].0.store(sleeps.into(), Ordering::Relaxed);
        if sleeps {
            // Either this end sees what was published, or the other one sees that it sleeps.
            fence(Ordering::SeqCst);
        }
    }

    fn sleep(&self, by: Bell, within: Option<Duration>) {
        if let Some(bells) = &self.bells {
            let timeout = within.map(timespec);
            let _ = poll(&mut [PollFd::new(&bells.own[by as usize], PollFlags::IN)], timeout.as_ref());
            self.heard(by);
            return;
        }
        let bell = &self.own().bells[by as usize].0;
        if bell.swap(0, Ordering::Acquire) != 0 {
            return;
        }
        let timeout = within.map(timespec);
        // A signal, the time, or a bell that has rung meanwhile: the caller looks again.
        let _ = futex::wait(bell, futex::Flags::empty(), 0, timeout.as_ref());
    }

    fn ring(&self, bell: Bell) {
        fence(Ordering::SeqCst);
        if self.own().sleepers[bell as usize].0.load(Ordering::Relaxed) == 0 {
            return;
        }
        if let Some(bells) = &self.bells {
            // One that has rung so often that there is no room rings.
            let _ = rustix::io::write(&bells.other[bell as usize], &1_u64.to_ne_bytes());
            return;
        }
        let bell = &self.other().bells[bell as usize].0;
        if bell.swap(1, Ordering::Release) == 0 {
            // One thread sleeps there at most.
            let _ = futex::wake(bell, futex::Flags::empty(), 1);
        }
    }
}

/// One with bells.
impl<const WORDS: usize> Polled for ShmWindow<WORDS> {
    /// # Panics
    /// If it has none.
    fn bell(&self, bell: Bell) -> BorrowedFd<'_> {
        self.bells.as_ref().expect("a window with bells").own[bell as usize].as_fd()
    }

    fn heard(&self, bell: Bell) {
        if let Some(bells) = &self.bells {
            let _ = rustix::io::read(&bells.own[bell as usize], &mut [0; 8]);
        }
    }
}
