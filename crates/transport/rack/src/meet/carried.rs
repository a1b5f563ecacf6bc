// SPDX-License-Identifier: Apache-2.0
//! A connection to another host, between the proxy that carries it and the thread that has its program's socket. The proxy never touches the
//! socket: its program can keep the kernel's lock of it.

use std::{
    os::fd::{AsRawFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering, fence},
    },
};

use fide_shm::region::RegionError;
use rustix::{
    fs::{FlockOperation, Mode, OFlags, flock, open},
    io::Errno,
    net::{SendFlags, connect_unspec, send},
};

use super::WORDS;
use crate::{
    carry::{READS_RING_AT, reads_ring},
    link::{App, is_of_link},
    shm::ShmWindow,
    window::Window,
};

const WAKES: u32 = 1;
const RESETS: u32 = 2;
const IS_CARRIED: u32 = 4;
const IS_GONE: u32 = 8;
/// The program was told how much comes over TCP, or that it may write to the ring.
const KNOWS: u32 = 16;
const OPENS: u32 = 32;

/// A connection, as its proxy has it.
#[derive(Debug, Clone)]
pub struct Carried(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    window: ShmWindow<WORDS>,
    state: AtomicU32,
    /// Of the thread that has the socket.
    bell: Arc<OwnedFd>,
}

/// What is given to a program. Dropped, it was not.
#[derive(Debug)]
pub struct Given {
    carried: Carried,
    /// Of this process.
    memory: Option<OwnedFd>,
    /// Of the program: whoever has it, or has it mapped, holds a lock of the memory.
    pub of_program: OwnedFd,
}

/// A connection with its program's socket.
#[derive(Debug)]
pub struct Held {
    /// The question.
    pub id: u32,
    carried: Carried,
    memory: OwnedFd,
    socket: Arc<OwnedFd>,
}

impl Given {
    /// For a program whose socket a thread has that waits for a bell, an eventfd. `reads_ring`: the other host's program has its memory.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(bell: &Arc<OwnedFd>, reads_ring: bool) -> Result<Self, RegionError> {
        let ([window, _], memory) = ShmWindow::pair_and_descriptor()?;
        let failed = |errno| RegionError::System { call: "opening a memfd once more, by /proc", errno };
        let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
        let of_program = open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
        flock(&of_program, FlockOperation::NonBlockingLockShared).map_err(failed)?;
        is_of_link(&window);
        let shared = Shared { window: window.silent(), state: AtomicU32::new(0), bell: Arc::clone(bell) };
        let carried = Carried(Arc::new(shared));
        if reads_ring {
            carried.opens();
        }
        Ok(Self { carried, memory: Some(memory), of_program })
    }

    #[must_use]
    pub fn carried(&self) -> Carried {
        self.carried.clone()
    }

    /// The program was told.
    #[must_use]
    pub fn held(mut self, id: u32, socket: Arc<OwnedFd>) -> Option<Held> {
        Some(Held { id, carried: self.carried.clone(), memory: self.memory.take()?, socket })
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        if self.memory.is_some() {
            self.carried.is_carried();
        }
    }
}

impl Held {
    /// Does what the proxy asks for. False: it is done with the socket.
    #[must_use]
    pub fn serves(&self) -> bool {
        let state = self.carried.0.state.fetch_and(!WAKES, Ordering::AcqRel);
        if state & RESETS != 0 {
            // For all who have the socket.
            let _ = connect_unspec(&self.socket);
            return false;
        }
        if state & WAKES != 0
            && send(&self.socket, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) == Err(Errno::WOULDBLOCK)
        {
            // There is no room yet.
            self.carried.0.state.fetch_or(WAKES, Ordering::AcqRel);
        }
        state & IS_CARRIED == 0
    }

    /// The program has taken its memory.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.carried.window().poll(READS_RING_AT) != 0
    }

    /// Its program has taken the question back, or never takes the memory.
    pub fn is_refused(&self) {
        self.carried.is_carried();
    }

    /// Its program has ended, or was given memory a while ago: whether no other one that it has forked has the memory, nor is about to take it.
    #[must_use]
    pub fn is_left(&self) -> bool {
        let is_left = flock(&self.memory, FlockOperation::NonBlockingLockExclusive).is_ok();
        if is_left {
            let _ = flock(&self.memory, FlockOperation::Unlock);
            self.carried.0.state.fetch_or(IS_GONE, Ordering::AcqRel);
        }
        is_left
    }

    /// Nobody carries it any more.
    pub fn resets(&self) {
        let _ = connect_unspec(&self.socket);
    }

    #[must_use]
    pub fn into_socket(self) -> Arc<OwnedFd> {
        self.socket
    }
}

impl Carried {
    fn is(&self, bits: u32) -> bool {
        self.0.state.load(Ordering::Acquire) & bits != 0
    }

    fn sets(&self, bit: u32) {
        if self.0.state.fetch_or(bit, Ordering::AcqRel) & bit == 0 {
            // It is full only if it has been rung.
            let _ = rustix::io::write(&self.0.bell, &1_u64.to_ne_bytes());
        }
    }
}

impl App for Carried {
    type Window = ShmWindow<WORDS>;

    fn window(&self) -> &Self::Window {
        &self.0.window
    }

    fn is_woken_over_tcp(&self) -> bool {
        true
    }

    fn wakes(&self) {
        self.sets(WAKES);
    }

    fn resets(&self) {
        // One that has not gone over, and cannot any more, is left with TCP.
        let is_used = self.is(KNOWS)
            || self.is(OPENS) && {
                self.window().publish(READS_RING_AT, 0);
                // As in `reads_ring`: either the program sees that, or this sees that it has its memory.
                fence(Ordering::SeqCst);
                self.window().poll(READS_RING_AT) != 0
            };
        self.sets(if is_used { RESETS } else { IS_CARRIED });
    }

    fn is_gone(&self) -> bool {
        self.is(IS_GONE)
    }

    fn opens(&self) {
        self.0.state.fetch_or(OPENS, Ordering::AcqRel);
        reads_ring(self.window());
    }

    fn knows_over_tcp(&self) {
        self.0.state.fetch_or(KNOWS, Ordering::AcqRel);
    }

    fn is_known_over_tcp(&self) -> bool {
        self.is(KNOWS)
    }

    fn is_carried(&self) {
        self.sets(IS_CARRIED);
    }

    fn is_over(&self) -> bool {
        self.is(RESETS | IS_CARRIED)
    }
}
