// SPDX-License-Identifier: Apache-2.0
//! Ends of a connection whose memory lets others act between any two steps of one. What is read and written there is checked to lie
//! where it may.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::{
    cell::RefCell,
    io,
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::Duration,
};

use fide_rack::{
    end::End,
    window::{Bell, WORD, Window},
};
use fide_shm::region::{Mapped, Shared};

/// Of each part: so few that a ring is often full, and wraps.
pub(crate) const WORDS: usize = 128;
/// Where the ring of each part begins, and the words before it that mean something.
pub(crate) const RING_AT: usize = 128;
pub(crate) const WORDS_BEFORE: usize = 11;
pub(crate) const READS_NO_MORE_AT: usize = 2 * WORD;
pub(crate) const OVER_TCP_AT: usize = 4 * WORD;
pub(crate) const LEAVES_AT: usize = 6 * WORD;

/// Of an end, in its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Write,
    Publish(usize),
    Read,
    Poll(usize),
    /// It has polled a word, and goes on with what it has seen.
    Polled(usize),
    WillSleep(Bell),
    Sleeper(Bell),
}

/// Called before each step, and behind those that look.
type Hook = Box<dyn FnMut(Step)>;

thread_local! {
    /// Of the steps that this thread does for an end. It is taken out while it runs.
    static HOOK: RefCell<Option<(usize, Hook)>> = const { RefCell::new(None) };
}

/// From now on, before each step of this thread for an end.
pub(crate) fn hooks(end: usize, hook: impl FnMut(Step) + 'static) {
    HOOK.set(Some((end, Box::new(hook))));
}

pub(crate) fn unhooks() {
    HOOK.set(None);
}

/// Processes that fork share it.
#[repr(C)]
pub(crate) struct Memory {
    /// What each end reads.
    pub(crate) parts: [[AtomicU64; WORDS]; 2],
    /// As the other end has said, by [`Bell`].
    pub(crate) sleepers: [[AtomicU32; 2]; 2],
}

// SAFETY: only atomics.
unsafe impl Shared for Memory {}

/// As one end sees it.
pub(crate) struct Steps {
    pub(crate) memory: Arc<Mapped<Memory>>,
    end: usize,
}

pub(crate) fn pair() -> [Steps; 2] {
    let memory = Arc::new(Mapped::anonymous().unwrap());
    [0, 1].map(|end| Steps { memory: Arc::clone(&memory), end })
}

impl Steps {
    fn before(&self, step: Step) {
        if let Some((end, mut hook)) = HOOK.take() {
            if end == self.end {
                hook(step);
            }
            HOOK.with_borrow_mut(|place| _ = place.get_or_insert((end, hook)));
        }
    }

    /// The words of the ring, which bytes may lie in.
    fn bytes<'a>(&self, of: &'a [AtomicU64; WORDS], at: usize, len: usize) -> &'a [AtomicU64] {
        assert!(at.is_multiple_of(WORD) && at >= RING_AT && at + len <= WORDS * WORD, "{len} bytes at {at}");
        &of[at / WORD..][..len.div_ceil(WORD)]
    }

    fn word<'a>(&self, of: &'a [AtomicU64; WORDS], at: usize) -> &'a AtomicU64 {
        assert!(at.is_multiple_of(WORD) && !(WORDS_BEFORE * WORD..RING_AT).contains(&at), "a word at {at}");
        &of[at / WORD]
    }
}

impl Window for Steps {
    fn len(&self) -> usize {
        WORDS * WORD
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        self.before(Step::Write);
        let words = self.bytes(&self.memory.get().parts[1 - self.end], at, bytes.len());
        for (word, bytes) in words.iter().zip(bytes.chunks(WORD)) {
            let mut whole = [0; WORD];
            whole[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(whole), SeqCst);
        }
    }

    fn publish(&self, at: usize, word: u64) {
        self.before(Step::Publish(at));
        self.word(&self.memory.get().parts[1 - self.end], at).store(word, SeqCst);
    }

    fn adds(&self, at: usize, more: u64) {
        self.before(Step::Publish(at));
        self.word(&self.memory.get().parts[1 - self.end], at).fetch_add(more, SeqCst);
    }

    fn words_there(&self, at: usize, len: usize) -> Option<&[AtomicU64]> {
        Some(self.bytes(&self.memory.get().parts[1 - self.end], at, len))
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        let words = self.bytes(&self.memory.get().parts[self.end], at, into.len());
        for (bytes, word) in into.chunks_mut(WORD).zip(words) {
            self.before(Step::Read);
            bytes.copy_from_slice(&word.load(SeqCst).to_ne_bytes()[..bytes.len()]);
        }
    }

    fn poll(&self, at: usize) -> u64 {
        self.before(Step::Poll(at));
        let word = self.word(&self.memory.get().parts[self.end], at).load(SeqCst);
        self.before(Step::Polled(at));
        word
    }

    fn will_sleep(&self, by: Bell, turn: u32) {
        self.before(Step::WillSleep(by));
        self.memory.get().sleepers[1 - self.end][by as usize].store(turn, SeqCst);
    }

    fn sleeps_no_more(&self, by: Bell, up_to: u32) {
        let word = &self.memory.get().sleepers[1 - self.end][by as usize];
        self.before(Step::WillSleep(by));
        let turn = word.load(SeqCst);
        self.before(Step::WillSleep(by));
        if turn != 0 && turn <= up_to {
            let _ = word.compare_exchange(turn, 0, SeqCst, SeqCst);
        }
    }

    fn sleeper(&self, bell: Bell) -> u32 {
        self.before(Step::Sleeper(bell));
        self.memory.get().sleepers[self.end][bell as usize].load(SeqCst)
    }

    fn sleep(&self, _: Bell, _: Option<Duration>) {
        unreachable!("ends poll their socket")
    }

    fn ring(&self, _: Bell) {}
}

/// An end with its socket.
pub(crate) struct Side {
    pub(crate) end: End<Steps>,
    pub(crate) socket: TcpStream,
}

impl Side {
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<Option<usize>> {
        self.end.write(&self.socket, bytes)
    }

    pub(crate) fn read(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        self.end.read(&self.socket, into, false)
    }

    pub(crate) fn fill(&self) {
        while self.write(&[7; 100]).unwrap().is_some() {}
    }
}

/// Without windows.
pub(crate) fn sides() -> [Arc<Side>; 2] {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    [here, listener.accept().unwrap().0].map(|socket| {
        socket.set_nodelay(true).unwrap();
        Arc::new(Side { end: End::new().unwrap(), socket })
    })
}

/// Both have the window, after the first one has written so many bytes. It does not know yet that the second one reads the ring, and
/// writes over TCP until it looks.
pub(crate) fn attached(over_tcp: usize) -> ([Arc<Side>; 2], Arc<Mapped<Memory>>) {
    let (sides, windows) = (sides(), pair());
    let memory = Arc::clone(&windows[0].memory);
    if over_tcp > 0 {
        assert_eq!(sides[0].write(&vec![b't'; over_tcp]).unwrap(), Some(over_tcp));
    }
    for (side, window) in sides.iter().zip(windows) {
        assert!(side.end.attach(window).unwrap());
    }
    settles();
    (sides, memory)
}

/// What is done once, before the step of this number.
pub(crate) fn once(at: usize, what: impl FnOnce() + 'static) -> impl FnMut(Step) + 'static {
    let (mut step, mut what) = (0, Some(what));
    move |_| {
        if step == at
            && let Some(what) = what.take()
        {
            what();
        }
        step += 1;
    }
}

/// More than an operation here has.
pub(crate) const STEPS: usize = 32;

/// What another thread says, if it comes at all: each wait is short, should this process be stopped for a while.
pub(crate) fn hears<T>(told: &mpsc::Receiver<T>) -> Option<T> {
    (0..2000).find_map(|_| told.recv_timeout(Duration::from_millis(10)).ok())
}

/// What comes over TCP is in the kernel's hands for a moment.
pub(crate) fn settles() {
    thread::sleep(Duration::from_millis(1));
}

/// Numbers from a seed.
#[derive(Clone)]
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB) >> 8
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }
}
